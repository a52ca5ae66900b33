//! A space that is there already, by the table of `opening.rs`: what a writer does with it, and who streams it.
//!
//! Guarantees: changes nothing, but that writers which are dead are noted as dead.
//! Not here: how its writers stand (`producers.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use forebay_config::{Mechanism, OpenOptions};
use forebay_tier::{Error, Result};

use super::attach::Attachment;
use super::channel::is_stream;
use super::contents;
use super::groups::{self, find_group, live_reader, registered_groups, unread_from};
use super::member::{describe, Role};
use super::opening::{
    format_ranks, is_started_together, refused, streams, writing, Claim, Refusal, Writers, Writing,
};
use super::producers::{is_of_this_run, unjoined_ranks, writers_lived, writers_of};
use crate::control::{group, member, HOLDS_NOTHING};
use crate::place::name;
use crate::version_range::format_versions;

/// Retained versions that some registered reader group has not read; without a group all of them.
pub(crate) fn unread(space: &Attachment) -> Range<u64> {
    let control = &space.control;
    let complete = control.complete();
    let read =
        registered_groups(control).map(|index| unread_from(space, index).unwrap_or(HOLDS_NOTHING)).min();
    let first = read.unwrap_or(0).max(control.oldest()).min(complete);
    first..complete
}

/// A member that has the space in use, in words: a reader that holds a view or has not read what is complete, or a
/// writer that has not ended.
pub(crate) fn holder(space: &Attachment) -> Option<String> {
    let control = &space.control;
    (0..control.members_high()).find_map(|slot| {
        let role = Role::of_state(control.member(slot, member::STATE).load(Acquire))?;
        let lease = control.member(slot, member::LEASE).load(SeqCst);
        let cursor = control.member(slot, member::CURSOR).load(SeqCst);
        let rank = control.member(slot, member::RANK).load(Relaxed) >> 32;
        let what = if role == Role::Writer && control.lane_owner(rank as u32) == (Some(slot), false) {
            "lives".to_string()
        } else if lease != HOLDS_NOTHING {
            format!("holds version {lease}")
        } else if role == Role::Reader && cursor < control.complete() {
            format!("has not read version {cursor}")
        } else {
            return None;
        };
        space.is_alive(slot).then(|| format!("{} {what}", describe(space, slot)))
    })
}

/// What a writer does with a space.
pub(crate) fn decided(space: &Attachment, options: &OpenOptions, writers: Writers) -> Writing {
    let is_partial = || !unjoined_ranks(space).is_empty();
    writing(options, writers, || holder(space).is_some(), || !unread(space).is_empty(), is_partial)
}

/// The error of a writer that is refused by a space.
pub(crate) fn refused_space(space: &Attachment, why: Refusal, writers: Writers) -> Error {
    let detail = match why {
        Refusal::Held => holder(space).unwrap_or_default(),
        Refusal::Partial => format_ranks(&unjoined_ranks(space)),
        _ => {
            let unread = unread(space);
            format!("versions {}", format_versions(unread))
        }
    };
    refused(&format!("space {}", space.name), why, writers, &detail)
}

/// The reader group that a reader is of.
pub(crate) fn group_of(options: &OpenOptions) -> &str {
    options.group.as_deref().or(options.component.as_deref()).unwrap_or_default()
}

/// Whether a reader streams the space.
pub(crate) fn is_streamed(space: &Attachment, options: &OpenOptions) -> bool {
    let group = group_of(options);
    let claim = || Claim {
        finished: options.finished,
        same_run: is_of_this_run(space),
        is_started_together: is_started_together(writers_lived(space)),
        // A group that has read all of it has nothing to take: what it waits for is to come.
        has_cursor: groups::stored_cursor(space, group).is_some_and(|at| at < space.control.complete()),
        has_peers: has_peers(space, group, options.rank.unwrap_or(0)),
    };
    // Asked first: it costs nothing.
    options.finished || streams(writers_of(space), claim)
}

/// Whether ranks of the group stream the space and await this one.
fn has_peers(space: &Attachment, name: &str, rank: u32) -> bool {
    let control = &space.control;
    let Some(index) = find_group(space, name) else { return false };
    let lives = |other: u32| other != rank && live_reader(space, index, other).is_some();
    let is_awaited = rank < control.group_size(index)
        && control.group_count(index, group::JOINED) > 0
        && groups::awaited_from(space, index).is_some()
        && groups::rank_awaited_from(space, index, rank).is_some();
    is_awaited || (0..control.group_size(index)).any(lives)
}

/// How programs exchange data through what has this name; None where there is nothing, or nothing of Forebay.
///
/// # Errors
/// `BadName`.
pub fn mechanism_of(name: &str) -> Result<Option<Mechanism>> {
    let dir = name::directory(name)?;
    Ok(match () {
        () if is_stream(&dir) => Some(Mechanism::Files),
        () if contents::is_of_a_space(&dir) => Some(Mechanism::Space),
        () => None,
    })
}
