//! A space that was read to its end goes with the last of its members.
//!
//! Guarantees: a [`Member`], as writers, readers and their views hold it, frees its slot when the last of them is
//! dropped, and looks then whether the space is still wanted: one whose retention is another, that a group has not
//! read, or in which a member lives, stays. A [`Membership`] by itself removes nothing.
//! Not here: removing spaces on request (`upkeep/`).

use forebay_config::Retention;
use forebay_tier::host::time::Instant;
use forebay_tier::process::ForkMark;
use forebay_tier::Kind;
use std::ops::Deref;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use super::attach::Attachment;
use super::groups::{has_read_all, registered_groups, was_read_by};
use super::member::describe;
use super::membership::Membership;
use crate::control::member;

/// Other processes hold the lock for microseconds, or for a recovery.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A membership as its handles share it. The order of the fields is that in which they go: the slot is free before it
/// is asked whether a member lives.
pub(crate) struct Member {
    membership: Membership,
    _gone: Gone,
}

impl Member {
    /// For handles of a member that has just joined.
    pub(crate) fn of(membership: Membership) -> Arc<Member> {
        let gone = Gone { space: membership.space.clone(), mark: ForkMark::here() };
        Arc::new(Member { membership, _gone: gone })
    }
}

impl Deref for Member {
    type Target = Membership;

    #[inline(always)]
    fn deref(&self) -> &Membership {
        &self.membership
    }
}

/// Dropped when a member has gone.
struct Gone {
    space: Arc<Attachment>,
    mark: ForkMark,
}

impl Drop for Gone {
    fn drop(&mut self) {
        // In a forked child the member is the parent's, and lives.
        if !self.mark.is_forked() {
            remove_if_read(&self.space);
        }
    }
}

/// A member that lives, in words.
pub(crate) fn live_member(space: &Attachment) -> Option<String> {
    let control = &space.control;
    (0..control.members_high())
        .find(|slot| control.member(*slot, member::STATE).load(Acquire) != 0 && space.is_alive(*slot))
        .map(|slot| describe(space, slot))
}

/// Whether every reader group of a finished stream has read all that it was to read, and a rank all there is.
fn is_read_to_its_end(space: &Attachment) -> bool {
    let control = &space.control;
    let groups = || registered_groups(control);
    // What no rank has read to its end stays where all have left, too.
    groups().any(|i| was_read_by(space, i)) && groups().all(|i| has_read_all(space, i))
}

/// Called whenever a member has gone: the last one takes a space away that was read to its end.
pub(crate) fn remove_if_read(space: &Attachment) {
    let may_go = || {
        space.retention() == Retention::Released
            && space.control.producer_state().is_finished()
            && is_read_to_its_end(space)
            && live_member(space).is_none()
    };
    if !may_go() {
        return;
    }
    // A space that cannot be removed now stays for `forebay clean`; the program that ends here did its work.
    let removed = space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || {
        if may_go() {
            say_kept(space, &space.remove_files()?);
        }
        Ok(())
    });
    if let Err(e) = removed {
        if e.kind() != Kind::PeerMissing {
            eprintln!("forebay: removing space {}: {e}", space.name);
        }
    }
}

/// Why a space could go, and which files stay.
pub(crate) fn reason(why: &str, kept: &[String]) -> String {
    match kept {
        [] => why.into(),
        kept => format!("{why}; lower pools that could not be removed: {}", kept.join("; ")),
    }
}

/// What stays of a space that is removed without a report.
pub(crate) fn say_kept(space: &Attachment, kept: &[String]) {
    if !kept.is_empty() {
        eprintln!("forebay: {}", reason(&format!("space {} was removed", space.name), kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::create::attached;
    use crate::{OpenOptions, Reader, Writer};
    use std::path::Path;

    #[test]
    fn the_last_handle_of_a_member_removes_what_was_read_and_a_membership_does_not() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions {
            quota_bytes: Some(2 << 20),
            component: Some("test".into()),
            finished: true,
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        writer.begin_step().unwrap();
        writer.end_step().unwrap();
        writer.close().unwrap();
        let space = attached(&name);
        let look_on = || {
            let deadline = Instant::now() + Duration::from_secs(60);
            Membership::join_readers(&space, 0, 1, "test", None, deadline).unwrap()
        };
        // While one looks on, the reader that has read it to its end leaves it there.
        let membership = look_on();
        let mut reader = Reader::open(&name, &options).unwrap();
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        reader.end_step().unwrap();
        assert_eq!(reader.begin_step(None).unwrap(), None);
        drop(reader);
        drop(membership);
        assert!(Path::new(&name).exists());
        let first = Member::of(look_on());
        let last = first.clone();
        drop(first);
        assert!(Path::new(&name).exists());
        drop(last);
        assert!(!Path::new(&name).exists());
    }
}
