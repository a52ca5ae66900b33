//! Reader groups of a space or channel that do not come any more, removed or left by request.
//!
//! Guarantees: a group of which a rank lives is not removed.
//! Not here: how groups are kept (`open/groups.rs`).

use forebay_tier::host::time::Instant;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_tier::Result;

use super::channels;
use crate::control::{head, READERS_REMOVED_MARK};
use crate::open::channel::is_stream;
use crate::open::create::{attach, attach_until};
use crate::open::groups::{
    find_group, forget_group, group_in_use, leave_unjoined, readers_of, registered_groups, unknown_group,
};
use crate::open::member::describe;
use crate::open::read_to_end::remove_if_read;
use crate::place::name;

/// Changes of the table of groups take microseconds.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Removes a reader group: versions are no longer kept for it, and its cursors are forgotten.
///
/// # Errors
/// `PeerMissing` without such a space, `UnknownComponent` without such a group, `NameInUse`
/// while one of its ranks lives.
pub fn remove_reader_group(name: &str, group: &str) -> Result<()> {
    let dir = name::directory(name)?;
    if is_stream(&dir) {
        return channels::remove_reader_group(name, &dir, group);
    }
    let space = attach(name)?;
    space.with_setup_lock(Instant::now() + REMOVE_TIMEOUT, || {
        let control = &space.control;
        let Some(index) = find_group(&space, group) else {
            let known: Vec<String> = registered_groups(control).map(|i| control.group_name(i)).collect();
            return Err(unknown_group(name, group, &known.join(", ")));
        };
        if let Some(slot) = readers_of(control, index).find(|slot| space.is_alive(*slot)) {
            return Err(group_in_use(name, group, &describe(&space, slot)));
        }
        forget_group(&space, index)?;
        control.word(head::READERS_REMOVED).store(READERS_REMOVED_MARK, SeqCst);
        control.announce_space();
        Ok(())
    })
}

/// Leaves a reader group in the place of a rank that is not there and does not come any more, as
/// [`crate::Reader::leave`] does; nothing happens where the rank lives. Waits `timeout` for a lock. Whether there is
/// such a group.
///
/// # Errors
/// `PeerMissing` without such a space; `TimedOut`; `Io`.
pub fn leave_reader_group(name: &str, group: &str, rank: u32, timeout: Duration) -> Result<bool> {
    let dir = name::directory(name)?;
    if is_stream(&dir) {
        return channels::leave_reader_group(name, &dir, (group, rank), timeout);
    }
    let deadline = Instant::now() + timeout;
    let space = attach_until(name, deadline)?;
    let is_known = space.with_setup_lock(deadline, || leave_unjoined(&space, group, rank))?;
    remove_if_read(&space);
    Ok(is_known)
}
