//! What a rank still owes: parity of steps that were not committed by all ranks when its own piece was there.
//!
//! Guarantees: nothing waits here; a step that was dropped meanwhile is owed no more. What fails is told once and tried
//! again, because a step without redundancy keeps an older one from going.

use forebay_tier::host::time::Instant;
use std::time::Duration;

use forebay_tier::Result;

use super::parity::{protect, Progress};
use crate::format::StepId;
use crate::level::Level;

/// How long something that failed is left alone.
const AGAIN: Duration = Duration::from_millis(500);

/// See the file's head.
#[derive(Default)]
pub(crate) struct Owed {
    /// The oldest first.
    list: Vec<Debt>,
}

struct Debt {
    level: usize,
    id: StepId,
    /// When it failed last.
    failed: Option<Instant>,
}

impl Owed {
    /// Notes a step whose piece has arrived in a level.
    pub(crate) fn push(&mut self, levels: &[Level], at: usize, id: StepId) {
        if levels[at].guard.is_some() {
            self.list.push(Debt { level: at, id, failed: None });
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

    /// Forgets what has failed, which was told.
    pub(crate) fn forget_failed(&mut self) {
        self.list.retain(|debt| debt.failed.is_none());
    }

    /// Forgets steps that will never be committed: every rank whose piece is missing has `gone`.
    pub(crate) fn forget_hopeless(&mut self, levels: &[Level], gone: &[u32]) -> Result<()> {
        let mut failed = Ok(());
        self.list.retain(|debt| match levels[debt.level].missing_ranks(debt.id) {
            Ok((missing, _)) => missing.is_empty() || !missing.iter().all(|rank| gone.contains(rank)),
            Err(e) => {
                failed = Err(e);
                true
            }
        });
        failed
    }

    /// Does what can be done now; the first error that was not told, and the step that it was about, after everything
    /// was tried.
    pub(crate) fn attempt(&mut self, levels: &[Level], rank: u32) -> Result<()> {
        let mut first = Ok(());
        self.list.retain_mut(|debt| {
            if debt.failed.is_some_and(|failed| failed.elapsed() < AGAIN) {
                return true;
            }
            let done = step(&levels[debt.level], debt.id, rank).map_err(|e| e.with("step", debt.id.step));
            let keep = !matches!(done, Ok(true));
            if let Err(e) = done {
                let told = debt.failed.replace(Instant::now()).is_some();
                if first.is_ok() && !told {
                    first = Err(e);
                }
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
