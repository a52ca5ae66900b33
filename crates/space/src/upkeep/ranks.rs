//! The ranks that read a space, and how far each has come: for programs that read for them elsewhere.
//!
//! Guarantees: looking is a few loads a rank and changes nothing. Not here: whole spaces (`inspect.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::Arc;
use std::time::Duration;

use forebay_config::Absent;
use forebay_tier::Result;

use crate::attributes;
use crate::control::{group, head, member, HOLDS_NOTHING};
use crate::open::attach::Attachment;
use crate::open::create::attach;
use crate::open::groups::{has_left, held_by_cursors, policy_of, readers_of, registered_groups};
use crate::open::opening::{are_together, streams, Claim};
use crate::open::producers::{writers_lived, writers_of};
use crate::part::Part;
use crate::place::demand::Wanted;

/// One rank of a reader group.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderRank {
    /// Its group.
    pub group: String,
    /// Ranks of the group.
    pub size: u32,
    /// The rank.
    pub rank: u32,
    /// Of a group that keeps a cursor, what writers do while it is away.
    pub absent: Option<Absent>,
    /// Its process; None: none reads as this rank now.
    pub pid: Option<u32>,
    /// It has released every version below this one.
    pub below: u64,
    /// Whether it has seen the end of the stream.
    pub ended: bool,
    /// Whether it has left its group for good.
    pub left: bool,
}

/// A hold on a space from outside; it is no member, and no process waits for it.
#[doc(hidden)]
pub struct ReaderRanks {
    space: Arc<Attachment>,
}

impl ReaderRanks {
    /// Of a space that is there. Errors: those of [`crate::inspect`].
    pub fn open(name: &str) -> Result<ReaderRanks> {
        Ok(ReaderRanks { space: attach(name)? })
    }

    /// Ranks that read now, those that have seen the end, and those that have left their group for good.
    pub fn now(&self) -> Vec<ReaderRank> {
        let control = &self.space.control;
        let mut out = Vec::new();
        for index in registered_groups(control) {
            let mut ranks: Vec<ReaderRank> = readers_of(control, index)
                .filter(|slot| self.space.is_alive(*slot))
                .map(|slot| {
                    let word = |field| control.member(slot, field).load(Acquire);
                    let rank = (word(member::RANK) >> 32) as u32;
                    let below = Some(word(member::CURSOR)).filter(|cursor| *cursor != HOLDS_NOTHING);
                    self.rank(index, rank, Some(word(member::PID) as u32), below.unwrap_or(0))
                })
                .collect();
            for rank in 0..control.group_size(index) {
                let is_known = ranks.iter().any(|known| known.rank == rank);
                let is_over =
                    || control.group_bit(index, group::ENDED, rank) || has_left(control, index, rank);
                if !is_known && is_over() {
                    ranks.push(self.rank(index, rank, None, control.complete()));
                }
            }
            out.extend(ranks);
        }
        out
    }

    fn rank(&self, index: usize, rank: u32, pid: Option<u32>, below: u64) -> ReaderRank {
        let control = &self.space.control;
        ReaderRank {
            group: control.group_name(index),
            size: control.group_size(index),
            rank,
            absent: policy_of(control, index),
            pid,
            below,
            ended: control.group_bit(index, group::ENDED, rank),
            left: pid.is_none() && has_left(control, index, rank),
        }
    }

    /// Whether a group holds versions of which no rank reads now.
    pub fn is_awaited(&self) -> bool {
        let control = &self.space.control;
        registered_groups(control).any(|index| {
            let lives = || readers_of(control, index).any(|slot| self.space.is_alive(slot));
            held_by_cursors(&self.space, index).is_some() && !lives()
        })
    }

    /// Whether a reader of another node streams what is there, its writers having ended, as one of this node would.
    pub fn is_streamed_by(&self, wanted: &Wanted) -> bool {
        let control = &self.space.control;
        let claim = || Claim {
            finished: wanted.finished,
            same_run: wanted.run != 0 && control.word(head::RUN_TOKEN).load(Relaxed) == wanted.run,
            is_started_together: are_together(wanted.began.clone(), writers_lived(&self.space)),
            ..Claim::default()
        };
        streams(writers_of(&self.space), claim)
    }

    /// Of a part of a space with writers on several nodes: which ranks they are, once all of them have opened it.
    ///
    /// # Errors
    /// Those of the file of attributes.
    pub fn part(&self) -> Result<Option<Part>> {
        Ok(Part::of(&attributes::read(&self.space.dir)?))
    }

    /// When the last of the writers' processes began, at the latest, and when the last of them ended; nanoseconds since
    /// 1970, 0: they have not ended.
    pub fn writers_lived(&self) -> Range<u64> {
        writers_lived(&self.space)
    }

    /// When the last writer ended, nanoseconds since 1970; 0: they have not.
    pub fn ended_unix_ns(&self) -> u64 {
        self.space.control.word(head::CLOSED).load(Acquire)
    }

    /// Identity of the space: another one that takes its name has another.
    pub fn uuid(&self) -> String {
        uuid::Uuid::from_bytes(self.space.superblock.uuid).to_string()
    }

    /// Whether the space was removed.
    pub fn is_removed(&self) -> bool {
        self.space.control.is_removed()
    }

    /// Whether a live process has the space open.
    pub fn has_members(&self) -> bool {
        (0..self.space.control.members_high()).any(|slot| self.space.is_alive(slot))
    }

    /// A count that rises when a rank releases a version, comes or goes. Read it before [`ReaderRanks::now`].
    pub fn changes(&self) -> u32 {
        self.space.control.free_space().load(Relaxed)
    }

    /// Sleeps while [`ReaderRanks::changes`] is `seen`, at most `timeout`.
    pub fn wait(&self, seen: u32, timeout: Duration) {
        self.space.control.wait_free_space(seen, timeout);
    }
}
