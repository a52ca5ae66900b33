//! What is known of a run from outside, past the death of its processes, and what must hold because of it.
//!
//! A process tells a fact right after the call that establishes it has returned. A fact that a process did not live to
//! tell is unknown: what was in flight may be there or not, but whole.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_tier::simulation::process;

use crate::cast::Cast;

/// Facts of a run.
#[derive(Clone, Default)]
pub struct Oracle(Arc<Mutex<Facts>>);

/// See [`Oracle`].
#[derive(Default)]
pub struct Facts {
    /// By incarnation and rank: versions whose `end_step` returned.
    committed: BTreeMap<(u64, u32), u64>,
    /// Ranks that have joined, by incarnation.
    joined: BTreeMap<u64, Vec<u32>>,
    /// Versions that every rank of one incarnation acknowledged, with that incarnation.
    pub complete: BTreeMap<u64, u64>,
    /// Versions that a reader has read, with the incarnation whose data it found.
    pub read: BTreeMap<u64, u64>,
    /// Reader ranks that were told the end of the stream, with the version after the last.
    pub ended: BTreeMap<(usize, u32), u64>,
    /// By group and rank: versions below which `end_step` of a reader has returned, and below which it was called.
    pub released: BTreeMap<(usize, u32), (u64, u64)>,
    /// Writer ranks that closed the stream.
    pub closed: u32,
    /// The stream was seen finished.
    pub finished: bool,
    /// Inode of the directory of the space that all this is about.
    space: Option<u64>,
    /// Before which version everything is complete, as a writer was told that goes on there.
    pub resumed: u64,
    /// How many spaces were there before it that were cleaned away.
    pub cleaned: u64,
    /// Calls of `clean` that may have removed the space.
    cleans: u64,
    /// Handles of each process that has the space open: from the return of the call that opened it until it begins to
    /// close it.
    holders: BTreeMap<u32, u32>,
}

/// A process has the space open by one handle while this lives.
pub struct Holding(Oracle);

impl Drop for Holding {
    fn drop(&mut self) {
        let mut facts = self.0.facts();
        if let Some(handles) = facts.holders.get_mut(&process::own()) {
            *handles -= 1;
        }
        facts.holders.retain(|_, handles| *handles > 0);
    }
}

impl Oracle {
    /// The facts, locked.
    pub fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling process has opened the space. Where that is another one than before, the one before had gone: it was
    /// read to its end, or cleaned away, in both cases while no process had it open. After a `clean` nothing is known.
    pub fn opened(&self, cast: &Cast) -> Holding {
        let inode = std::fs::metadata(cast.name()).map(|meta| meta.ino()).ok();
        let is_read = self.is_read_to_its_end(cast);
        let mut facts = self.facts();
        if inode.is_some() && inode != facts.space {
            let lives = |pid: &&u32| process::exit(**pid).is_none();
            if let Some(pid) = facts.holders.keys().find(lives) {
                process::fail(format!("the space was removed while process {pid} had it open"));
            }
            if facts.space.is_none() {
                facts.space = inode;
            } else if !is_read {
                if facts.cleans == 0 {
                    process::fail("the space has gone, and no process cleaned");
                }
                let (cleaned, cleans) = (facts.cleaned + 1, facts.cleans);
                *facts = Facts { space: inode, cleaned, cleans, ..Facts::default() };
                process::note("finds another space: the one before was cleaned away");
            }
        }
        *facts.holders.entry(process::own()).or_default() += 1;
        drop(facts);
        Holding(self.clone())
    }

    /// A process is about to clean, and may be killed before it can tell what went.
    pub fn cleans(&self) {
        self.facts().cleans += 1;
    }

    /// Whether the space may have been cleaned away.
    pub fn may_be_cleaned(&self) -> bool {
        self.facts().cleans > 0
    }

    /// Rank `rank` of `ranks` has been told that its part of `version` counts.
    pub fn committed(&self, incarnation: u64, (rank, ranks): (u32, u32), version: u64) {
        let mut facts = self.facts();
        facts.committed.insert((incarnation, rank), version + 1);
        let least = (0..ranks).map(|r| facts.committed.get(&(incarnation, r)).copied().unwrap_or(0)).min();
        if least.is_some_and(|least| least > version) {
            facts.settle(version, incarnation);
        }
    }

    /// Whether every reader was told the end: the space may be gone.
    pub fn is_read_to_its_end(&self, cast: &Cast) -> bool {
        self.facts().ended.len() == cast.groups.iter().sum::<u32>() as usize
    }

    /// A reader found `version` whole, written by `incarnation`.
    pub fn was_read(&self, version: u64, incarnation: u64) {
        let mut facts = self.facts();
        facts.settle(version, incarnation);
        facts.read.insert(version, incarnation);
    }

    /// Where a rank of a group that keeps its cursors may go on: at the first version that it has not ended, or the one
    /// behind, if it was ending that. In a group of several ranks, which may come again as a whole, also at an earlier
    /// one that not all of them had ended.
    pub fn may_resume(&self, (group, rank): (usize, u32), size: u32) -> std::ops::RangeInclusive<u64> {
        let (done, called) = self.facts().released.get(&(group, rank)).copied().unwrap_or((0, 0));
        if size == 1 {
            done..=called
        } else {
            0..=called
        }
    }

    /// A reader ends `version`, or has ended it.
    pub fn releases(&self, reader: (usize, u32), version: u64, is_done: bool) {
        let mut facts = self.facts();
        let (done, called) = facts.released.get(&reader).copied().unwrap_or((0, 0));
        let done = if is_done { version + 1 } else { done };
        facts.released.insert(reader, (done, called.max(version + 1)));
    }

    /// A rank has opened the space for writing.
    pub fn joined(&self, incarnation: u64, rank: u32) {
        self.facts().joined.entry(incarnation).or_default().push(rank);
    }

    /// Ranks that have joined the newest incarnation.
    pub fn newest(&self) -> Vec<u32> {
        self.facts().joined.values().next_back().cloned().unwrap_or_default()
    }

    /// Versions that are known to be complete: all below the result.
    pub fn known(&self) -> u64 {
        let facts = self.facts();
        facts.complete.keys().next_back().map_or(0, |version| version + 1).max(facts.resumed)
    }
}

impl Facts {
    /// A complete version keeps its data.
    fn settle(&mut self, version: u64, incarnation: u64) {
        let known = *self.complete.entry(version).or_insert(incarnation);
        if known != incarnation {
            process::fail(format!(
                "version {version} was complete by incarnation {known} and is now one of incarnation {incarnation}"
            ));
        }
    }
}

/// Every element, wherever it stands: no two versions, incarnations or indices have the same.
pub fn element(version: u64, incarnation: u64, index: u64) -> u64 {
    let mut x = index ^ version << 32 ^ incarnation << 52;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}
