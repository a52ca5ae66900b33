//! What is known of the saved steps from outside, past the death of the processes that saved them.
//!
//! A step counts as acknowledged when `save` has returned in every rank of one run. From then on a restart gets it or a
//! later one, until the power is cut: then what the levels on disks had acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_checkpoint::Restored;
use forebay_tier::simulation::process;

use super::cast::Cast;

/// A step by the run that saved it, and its number.
pub type Id = (u64, u64);

/// See the file's head.
#[derive(Clone, Default)]
pub struct Oracle(Arc<Mutex<Facts>>);

/// What is known.
#[derive(Default)]
pub struct Facts {
    /// Ranks whose `save` returned.
    saved: BTreeMap<Id, BTreeSet<u32>>,
    /// Ranks whose `close` returned behind a step.
    closed: BTreeMap<Id, BTreeSet<u32>>,
    /// The newest step that is acknowledged.
    acknowledged: Option<Id>,
    /// The newest one that survives a power cut.
    durable: Option<Id>,
    /// Ranks that have joined each run.
    joined: BTreeSet<(u64, u32)>,
    /// A rank that had joined a run has begun to leave it, and may have said so.
    has_leavers: bool,
    /// The step that the ranks of a run were given.
    given: BTreeMap<u64, Option<Id>>,
    /// The power was cut.
    was_cut: bool,
    /// A rank was told that nothing can be restored, and rightly.
    is_lost: bool,
}

impl Oracle {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank has joined a run: no number is given twice.
    pub fn joined(&self, run: u64, rank: u32) {
        if !self.facts().joined.insert((run, rank)) {
            process::fail(format!("rank {rank} joined run {run} twice"));
        }
    }

    /// A rank is about to leave its run; it may be killed after it has said so.
    pub fn begins_to_leave(&self) {
        self.facts().has_leavers = true;
    }

    /// Whether a run may hold a rank that said that it leaves: where launches are not said, ranks that come later and
    /// never were in the run may join it.
    pub fn has_leavers(&self) -> bool {
        self.facts().has_leavers
    }

    /// `save` has returned.
    pub fn saved(&self, cast: &Cast, id: Id, rank: u32) {
        let mut facts = self.facts();
        let ranks = facts.saved.entry(id).or_default();
        ranks.insert(rank);
        if ranks.len() == cast.ranks as usize {
            facts.acknowledged = facts.acknowledged.max(Some(id));
            if !cast.is_first_memory() {
                facts.durable = facts.durable.max(Some(id));
            }
        }
    }

    /// `close` has returned behind this step: all ranks that did have carried it down.
    pub fn closed(&self, cast: &Cast, id: Id, rank: u32) {
        let mut facts = self.facts();
        let ranks = facts.closed.entry(id).or_default();
        ranks.insert(rank);
        if ranks.len() == cast.ranks as usize {
            drop(facts);
            self.carried(id);
        }
    }

    /// `wait` has returned this step.
    pub fn carried(&self, id: Id) {
        let mut facts = self.facts();
        facts.acknowledged = facts.acknowledged.max(Some(id));
        facts.durable = facts.durable.max(Some(id));
    }

    /// The power was cut.
    pub fn cut(&self, cast: &Cast) {
        let mut facts = self.facts();
        facts.acknowledged = facts.durable;
        if cast.is_first_memory() {
            // A piece that one rank saved before and another one that a rank saves later are no step.
            facts.saved.clear();
        }
        facts.was_cut = true;
    }

    /// Whether an error that nothing can be restored is right: what was acknowledged lay in memory when the power was
    /// cut.
    pub fn may_be_lost(&self) -> bool {
        let mut facts = self.facts();
        facts.is_lost = facts.was_cut && facts.durable.is_none();
        facts.is_lost
    }

    /// Whether a rank was told so.
    pub fn is_lost(&self) -> bool {
        self.facts().is_lost
    }

    /// Whether the user has to begin anew; forgets everything then.
    pub fn begins_anew(&self) -> bool {
        let mut facts = self.facts();
        let is_lost = facts.is_lost;
        if is_lost {
            *facts = Facts { was_cut: true, ..Facts::default() };
        }
        is_lost
    }

    /// The newest acknowledged step.
    pub fn acknowledged(&self) -> Option<Id> {
        self.facts().acknowledged
    }

    /// A rank of a run was given this step, where `least` was acknowledged before it began. After a call that failed it
    /// may be an older one, and is told so.
    pub fn check_restored(&self, cast: &Cast, run: u64, least: Option<Id>, restored: Option<&Restored>) {
        let id = restored.map(|restored| (restored.run, restored.step));
        let is_told = restored.is_some_and(|restored| !restored.rejected.is_empty());
        if id < least && !(is_told && cast.dangers.fault_per_million > 0) {
            process::fail(format!("restored {id:?}, but {least:?} was acknowledged: {restored:?}"));
        }
        let mut facts = self.facts();
        let may_lose = facts.was_cut || cast.dangers.fault_per_million > 0;
        if let Some(lost) = restored.and_then(|restored| restored.lost).filter(|_| !may_lose) {
            process::fail(format!("restored {id:?}, which says that step {lost} was lost"));
        }
        let given = *facts.given.entry(run).or_insert(id);
        if given != id {
            process::fail(format!("a rank of run {run} is given {id:?}, another one {given:?}"));
        }
        // It is whole; in the last level it need not be.
        facts.acknowledged = facts.acknowledged.max(id);
    }
}

/// Every element: no two steps, runs or indices have the same.
pub fn element((run, step): Id, index: u64) -> u64 {
    let mut x = index ^ step << 32 ^ run << 48;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}
