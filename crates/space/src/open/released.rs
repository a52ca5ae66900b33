//! What is not needed any more: the versions that readers have released, those that leases hold, and who holds them.
//!
//! Guarantees: what a live member holds is never counted as released; a dead one holds nothing.
//! Not here: freeing the memory (`lane/`), and taking a lease (`membership.rs`).

use forebay_config::Retention;
use forebay_tier::host::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::attach::Attachment;
use super::groups;
use super::member::{describe, Role};
use crate::control::{head, member, protocol, Control, HOLDS_NOTHING, READERS_REMOVED_MARK};

/// The version below which no member needs anything: what producers may drop. Never above the complete ones.
pub(crate) fn release_floor(space: &Attachment) -> u64 {
    let control = &space.control;
    let complete = control.complete();
    let floor = match space.retention() {
        Retention::Forever => 0,
        Retention::Last(k) => complete.saturating_sub(k),
        Retention::Released => released_by_groups(space),
    };
    floor.min(complete).min(lowest_lease(space)).max(control.oldest().min(lowest_lease(space)))
}

/// Drops what no reader needs; returns below which version space may be used again.
pub(crate) fn drop_released(space: &Attachment) -> u64 {
    space.control.drop_below(|| release_floor(space))
}

/// With retention `last:K`: drops all but the K newest complete versions and what is held, whether or not the lanes
/// have a whole segment to free by that.
pub(crate) fn drop_beyond_last(space: &Attachment) {
    if matches!(space.retention(), Retention::Last(_)) {
        drop_released(space);
    }
}

/// The oldest version that a live view holds.
pub(crate) fn lowest_lease(space: &Attachment) -> u64 {
    let control = &space.control;
    let leases = (0..control.members_high()).map(|slot| control.member(slot, member::LEASE));
    protocol::lowest_held(leases, |slot| space.is_alive(slot as u32))
}

/// Whether a member holds a version from `first` to `last`, or may be about to.
pub(crate) fn is_leased(space: &Attachment, first: u64, last: u64) -> bool {
    protocol::is_held(leases(space), (first, last), |slot| space.is_alive(slot as u32))
}

/// Whether a place that holds versions from `first` to `last`, and was left before this call, is read by no process.
pub(crate) fn is_deserted(space: &Attachment, first: u64, last: u64) -> bool {
    protocol::is_deserted(leases(space), (first, last), |slot| space.is_alive(slot as u32))
}

fn leases(space: &Attachment) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
    (0..space.control.members_high()).map(|slot| lease_words(&space.control, slot))
}

/// The oldest and the newest version that a member holds.
pub(crate) fn lease_words(control: &Control, slot: u32) -> (&AtomicU64, &AtomicU64) {
    (control.member(slot, member::LEASE), control.member(slot, member::LEASE_NEWEST))
}

/// The version that each reader will ask for next; where ranks or groups are still to come, the oldest there is.
pub(crate) fn reading_positions(space: &Attachment) -> Vec<u64> {
    let control = &space.control;
    let mut out = Vec::new();
    let mut groups = 0;
    for index in groups::registered_groups(control) {
        groups += 1;
        out.extend(groups::awaited_from(space, index));
        out.extend(groups::held_by_cursors(space, index));
    }
    for slot in 0..control.members_high() {
        let cursor = control.member(slot, member::CURSOR).load(Acquire);
        let reads = control.member(slot, member::STATE).load(Acquire) == Role::Reader.state();
        if reads && cursor != HOLDS_NOTHING && space.is_alive(slot) {
            out.push(cursor);
        }
    }
    if groups == 0 {
        out.push(control.oldest());
    }
    out
}

/// The version below which every reader that is there, or is still to come for the first time, has released everything;
/// with `absent` also every group that is away and holds by its cursors.
fn released_by(space: &Attachment, absent: bool) -> u64 {
    let control = &space.control;
    let mut floor = HOLDS_NOTHING;
    let mut groups = 0;
    for index in groups::registered_groups(control) {
        groups += 1;
        floor = groups::awaited_from(space, index).map_or(floor, |awaited| floor.min(awaited));
        if absent {
            floor = groups::held_by_cursors(space, index).map_or(floor, |held| floor.min(held));
        }
    }
    if groups == 0 {
        // Before any reader came everything is kept, until the quota; when the last group was removed, nothing.
        let removed = control.word(head::READERS_REMOVED).load(SeqCst) == READERS_REMOVED_MARK;
        return if removed { control.complete() } else { 0 };
    }
    let cursors = (0..control.members_high()).map(|slot| control.member(slot, member::CURSOR));
    floor.min(protocol::lowest_held(cursors, |slot| {
        let state = control.member(slot as u32, member::STATE).load(Acquire);
        state == Role::Reader.state() && space.is_alive(slot as u32)
    }))
}

/// The version below which no reader group needs anything.
pub(crate) fn released_by_groups(space: &Attachment) -> u64 {
    released_by(space, true)
}

/// The version below which the readers that are there have released everything: what writers wait for that go by turns.
pub(crate) fn released_by_present(space: &Attachment) -> u64 {
    released_by(space, false)
}

/// Who keeps version `version` from being dropped, in words; for the error of a full space.
pub(crate) fn holders(space: &Attachment, version: u64) -> Vec<String> {
    let control = &space.control;
    let mut out = Vec::new();
    let mut groups = 0;
    for index in groups::registered_groups(control) {
        groups += 1;
        out.extend(groups::absent_holders(space, index, version));
    }
    for slot in 0..control.members_high() {
        let state = control.member(slot, member::STATE).load(Acquire);
        let cursor = control.member(slot, member::CURSOR).load(SeqCst);
        let lease = control.member(slot, member::LEASE).load(SeqCst);
        let reads = state == Role::Reader.state() && space.retention() == Retention::Released;
        if state != 0 && (lease <= version || (reads && cursor <= version)) && space.is_alive(slot) {
            let what = if lease <= version {
                format!("holds a view of version {lease}")
            } else {
                format!("has not released version {cursor}")
            };
            out.push(format!("{} {what}", describe(space, slot)));
        }
    }
    if groups == 0 && space.retention() == Retention::Released {
        out.push("no reader has come yet".into());
    }
    match space.retention() {
        Retention::Forever => out.push("retention forever drops nothing".into()),
        Retention::Last(count) if version.saturating_add(count) >= control.complete() => {
            out.push(format!("retention last:{count} keeps the {count} newest complete versions"));
        }
        _ => {}
    }
    out
}
