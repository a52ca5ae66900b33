//! What a rank still owes: parity of steps that were not committed by all ranks when its own piece was there.
//!
//! Guarantees: nothing waits here; a step that was dropped meanwhile is owed no more.

use forebay_tier::Result;

use super::parity::{protect, Progress};
use crate::format::StepId;
use crate::level::Level;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Owed {
    /// Level and step, the oldest first.
    list: Vec<(usize, StepId)>,
}

impl Owed {
    /// Notes a step whose piece has arrived in a level.
    pub(crate) fn push(&mut self, levels: &[Level], at: usize, id: StepId) {
        if levels[at].guard.is_some() {
            self.list.push((at, id));
        }
    }

    /// Whether nothing is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets everything: it cannot be done any more.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Forgets steps that will never be committed: every rank whose piece is missing has `gone`.
    pub(crate) fn forget_hopeless(&mut self, levels: &[Level], gone: &[u32]) -> Result<()> {
        let mut failed = Ok(());
        self.list.retain(|(at, id)| match levels[*at].missing_ranks(*id) {
            Ok((missing, _)) => missing.is_empty() || !missing.iter().all(|rank| gone.contains(rank)),
            Err(e) => {
                failed = Err(e);
                true
            }
        });
        failed
    }

    /// Does what can be done now; the first error, and the step that it was about, after everything was tried.
    pub(crate) fn attempt(&mut self, levels: &[Level], rank: u32) -> Result<()> {
        let mut first = Ok(());
        self.list.retain(|(at, id)| {
            let done = step(&levels[*at], *id, rank).map_err(|e| e.with("step", id.step));
            let keep = matches!(done, Ok(false));
            if let (Err(e), true) = (done, first.is_ok()) {
                first = Err(e);
            }
            keep
        });
        first
    }
}

/// Whether a step is owed no more.
fn step(level: &Level, id: StepId, rank: u32) -> Result<bool> {
    let Some(guard) = &level.guard else { return Ok(true) };
    match level.commit_record(id)? {
        Some(commit) => Ok(matches!(protect(level, guard, &commit, rank)?, Progress::Done | Progress::Gone)),
        // Without this rank's piece it was dropped; else other ranks have not saved it yet.
        None => Ok(!level.has(id, rank)?),
    }
}
