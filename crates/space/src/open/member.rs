//! A slot of the table of members: what its member does, in words, and whether it is the producer of a lane.
//!
//! Not here: joining and leaving (`membership.rs`).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use forebay_log::LaneId;
use forebay_tier::{clock, process};

use super::attach::Attachment;
use crate::control::member;

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A producer rank.
    Writer,
    /// A rank of a registered reader group.
    Reader,
    /// Looks, holds leases, is never waited for.
    Observer,
}

impl Role {
    pub(crate) fn of_state(word: u64) -> Option<Role> {
        match word {
            1 => Some(Role::Writer),
            2 => Some(Role::Reader),
            3 => Some(Role::Observer),
            _ => None,
        }
    }

    pub(crate) fn state(self) -> u64 {
        match self {
            Role::Writer => 1,
            Role::Reader => 2,
            Role::Observer => 3,
        }
    }

    /// As in messages and lists.
    pub fn name(self) -> &'static str {
        match self {
            Role::Writer => "writer",
            Role::Reader => "reader",
            Role::Observer => "observer",
        }
    }
}

/// A member in words: `writer rank 2 of gray-scott (pid 17, since 12 s)`.
pub(crate) fn describe(space: &Attachment, slot: u32) -> String {
    let control = &space.control;
    let rank = control.member(slot, member::RANK).load(Relaxed) >> 32;
    let pid = control.member(slot, member::PID).load(Relaxed);
    let since = control.member(slot, member::SINCE).load(Relaxed);
    let role = Role::of_state(control.member(slot, member::STATE).load(Acquire)).map_or("member", Role::name);
    let age_s = clock::realtime_ns().saturating_sub(since) / 1_000_000_000;
    format!("{role} rank {rank} of {} (pid {pid}, since {age_s} s)", control.member_name(slot))
}

/// Whether the member in a slot lives and is the producer of a lane: its slot may be another's now.
pub(crate) fn owns_lane(space: &Attachment, slot: u32, lane: LaneId) -> bool {
    is_of_lane(space, slot, lane) && space.is_alive(slot)
}

/// Whether a slot speaks of the producer of a lane, alive or dead.
pub(crate) fn is_of_lane(space: &Attachment, slot: u32, lane: LaneId) -> bool {
    let word = |field| space.control.member(slot, field).load(Acquire);
    word(member::STATE) == Role::Writer.state()
        && word(member::INCARNATION) == u64::from(lane.incarnation)
        && word(member::RANK) >> 32 == u64::from(lane.rank)
}

/// Whether a member slot speaks of this process.
pub(crate) fn is_own_slot(space: &Attachment, slot: u32) -> bool {
    let word = |field| space.control.member(slot, field).load(Relaxed);
    let pid = process::pid();
    word(member::PID) == u64::from(pid)
        && word(member::START_TICKS) == process::start_time_ticks(pid).unwrap_or(0)
}
