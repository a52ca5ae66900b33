//! How the writers of a space stand: whether they live, have ended or died, who is missing, and of which run they were.
//!
//! Guarantees: who is alive is asked of the kernel; an open group with a dead rank is noted as dead.
//! Not here: what follows of it for who opens the space (`opening.rs`, `existing.rs`), and joining (`membership.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use forebay_log::LaneId;
use forebay_tier::{process, Error, Kind};

use super::attach::Attachment;
use super::member::{describe, is_of_lane, owns_lane};
use super::opening::{after_loss, may_have_come_before, run_token, Writers};
use crate::control::{head, ProducerState};

/// The producers' state after asking the kernel who is alive: an open group with a dead rank is dead.
pub(crate) fn settle_producers(space: &Attachment) -> ProducerState {
    let control = &space.control;
    if control.producer_state() == ProducerState::Open {
        let (incarnation, size) = control.producers();
        for rank in 0..size {
            if let (Some(slot), false) = control.lane_owner(rank) {
                if !owns_lane(space, slot, LaneId { incarnation, rank }) && still_owned(space, rank, slot) {
                    control.mark_died(slot, incarnation);
                    break;
                }
            }
        }
        control.settle_all_ended(incarnation, size);
    }
    control.producer_state()
}

/// Whether the lane was not ended or given free between the two looks that found its owner dead.
fn still_owned(space: &Attachment, rank: u32, slot: u32) -> bool {
    space.control.lane_owner(rank) == (Some(slot), false)
}

/// Whether `rank` of a launch may come late to the open group: others of its launch came and ended, it never was there.
/// Where nothing tells launches apart, its process has to be older than the end of the others.
pub(crate) fn has_late_writers(space: &Attachment, rank: u32, token: u64) -> bool {
    let control = &space.control;
    let (_, size) = control.producers();
    let has_ended = (0..size).any(|rank| control.lane_owner(rank).1);
    has_ended
        && rank < size
        && control.lane_owner(rank).0.is_none()
        && control.word(head::RUN_TOKEN).load(Relaxed) == token
        && (token != 0 || may_have_come_before(control.word(head::CLOSED).load(Acquire)))
}

/// The ranks whose commit version `version` lacks, in words.
pub(crate) fn missing_producers(space: &Attachment, version: u64) -> Vec<String> {
    let control = &space.control;
    let (incarnation, size) = control.producers();
    if size == 0 {
        return vec!["no writer has come yet".into()];
    }
    let mut out = Vec::new();
    for rank in 0..size {
        let (lane, committed) = control.progress(rank);
        if lane == incarnation && committed > version {
            continue;
        }
        out.push(match control.lane_owner(rank) {
            (None, _) => format!("writer rank {rank} of {} never joined", control.name(head::PRODUCER)),
            (Some(slot), false) if is_of_lane(space, slot, LaneId { incarnation, rank }) => {
                describe(space, slot)
            }
            (Some(_), false) => {
                let pid = control.lane_pid(rank).load(Relaxed);
                format!("writer rank {rank} of {} (pid {pid}, gone)", control.name(head::PRODUCER))
            }
            (Some(_), true) => format!("writer rank {rank} ended before version {version}"),
        });
    }
    out
}

/// The error for producers of which one died or left, naming it. The lane says who it was: its slot may be another's.
pub(crate) fn producer_died(space: &Attachment, slot: Option<u32>) -> Error {
    let control = &space.control;
    let reason = slot.and_then(|slot| control.reason_of(slot));
    let what = match reason {
        Some(_) => format!("a writer of space {} left", space.name),
        None => format!("a writer of space {} died", space.name),
    };
    let error = Error::new(Kind::ProducerDied, what);
    let rank = slot.and_then(|slot| {
        let ranks = 0..control.producers().1;
        // A rank that has ended keeps the number of its slot, which another member may use now.
        ranks.into_iter().find(|rank| control.lane_owner(*rank) == (Some(slot), false))
    });
    let error = match (slot, rank) {
        (_, Some(rank)) => error
            .with("rank", rank)
            .with("pid", control.lane_pid(rank).load(Relaxed))
            .with("component", control.name(head::PRODUCER)),
        (Some(_), None) => error.with("rank", "unknown: another group of writers is taking over"),
        (None, _) => error.with("rank", "unknown: it was before this boot, or the shared state was lost"),
    };
    let error = match reason {
        Some(reason) => error.with("reason", reason),
        None => error,
    };
    after_loss(error, control.complete())
}

/// How the writers of a space stand, for `rank` of the launch `token`.
pub(crate) fn writers_for(space: &Attachment, rank: u32, token: u64) -> Writers {
    match settle_producers(space) {
        ProducerState::None => Writers::NeverCame,
        ProducerState::Finished | ProducerState::Withdrawn(_) => Writers::Finished,
        ProducerState::Died(_) => Writers::Dead,
        ProducerState::Open if has_writers(space) || has_late_writers(space, rank, token) => Writers::Open,
        ProducerState::Open => Writers::Dead,
    }
}

/// How the writers of a space stand, for a reader.
pub(crate) fn writers_of(space: &Attachment) -> Writers {
    match settle_producers(space) {
        ProducerState::None => Writers::NeverCame,
        ProducerState::Finished | ProducerState::Withdrawn(_) => Writers::Finished,
        ProducerState::Died(_) => Writers::Dead,
        ProducerState::Open if has_writers(space) => Writers::Open,
        ProducerState::Open => Writers::Dead,
    }
}

/// Whether a rank of the open group has joined, has not ended and is alive. The state of the producers alone does not
/// say that: it stays open when a rank is killed while it takes over a group some ranks of which never joined.
pub(crate) fn has_writers(space: &Attachment) -> bool {
    let (incarnation, size) = space.control.producers();
    (0..size).any(|rank| match space.control.lane_owner(rank) {
        (Some(slot), false) => owns_lane(space, slot, LaneId { incarnation, rank }),
        _ => false,
    })
}

/// Ranks of the group that never joined, while others have committed steps and ended cleanly. Empty if a rank died or
/// is alive.
pub(crate) fn unjoined_ranks(space: &Attachment) -> Vec<u32> {
    let control = &space.control;
    let (incarnation, size) = control.producers();
    let has_committed = |rank| {
        let (of, committed) = control.progress(rank);
        of == incarnation && committed > control.base()
    };
    let has_ended = (0..size).any(|rank| control.lane_owner(rank).1 && has_committed(rank));
    if control.producer_state() != ProducerState::Open || has_writers(space) || !has_ended {
        return Vec::new();
    }
    (0..size).filter(|rank| control.lane_owner(*rank).0.is_none()).collect()
}

/// When the last of the writers' processes began, and when the last of them ended; nanoseconds since 1970.
pub(crate) fn writers_lived(space: &Attachment) -> Range<u64> {
    let control = &space.control;
    let start_ticks = |rank| control.lane_start_ticks(rank).load(Relaxed);
    let last = (0..control.producers().1).map(start_ticks).max().unwrap_or(0);
    process::ticks_unix_ns(last)..control.word(head::CLOSED).load(Acquire)
}

/// Whether the last writers were of this run or job, or of this process.
pub(crate) fn is_of_this_run(space: &Attachment) -> bool {
    let control = &space.control;
    let (token, own) = (control.word(head::RUN_TOKEN).load(Relaxed), run_token());
    if own != 0 && token == own {
        return true;
    }
    let pid = process::pid();
    let start_ticks = process::start_time_ticks(pid).unwrap_or(0);
    (0..control.producers().1).any(|rank| {
        control.lane_pid(rank).load(Relaxed) == u64::from(pid)
            && control.lane_start_ticks(rank).load(Relaxed) == start_ticks
    })
}
