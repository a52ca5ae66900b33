//! The search for the step to go on from: newest first, verified while it is loaded, the same for all ranks.
//!
//! Guarantees: what is loaded is one committed step, whole, or an error is returned; what was looked at and not taken
//! is in the report, with its reason; so is every step that had been acknowledged and is newer than the one restored.
//! Where a level has redundancy, what is missing or damaged is brought back and written back before the step is
//! rejected; the report says what that was.
//! Ranks agree on each step before any of them takes it: a step that one rank cannot load no rank takes.
//!
//! The order of steps is that of time: a later run's before an earlier run's, then by number. A step is tried in each
//! level that has it, the fastest first.

use std::fmt;

use forebay_tier::{Durability, Error, Kind, Result};

use crate::format::StepId;
use crate::level::load::{load, Wanted};
use crate::level::{not_committed, Level};
use crate::place::Place;
use crate::redundancy::{repair, Repair};
use crate::run::{Acknowledged, Run, WORDS};

/// A step, or one level's copy of it, that was looked at and not taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reject {
    /// The step.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// Where it lies; None: another rank refused it.
    pub place: Option<String>,
    /// The kind of the error.
    pub kind: &'static str,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of run {}", self.step, self.run)?;
        if let Some(place) = &self.place {
            write!(f, " in {place}")?;
        }
        write!(f, " was not taken: {}", self.reason)
    }
}

/// What was restored, and what was not.
#[must_use = "it says whether an acknowledged step was lost"]
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// The step.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// Where it was loaded from.
    pub place: String,
    /// What was looked at before.
    pub rejected: Vec<Reject>,
    /// What this process brought back from redundancy, and wrote back.
    pub repaired: Vec<Repair>,
    /// The newest step that had been acknowledged, when it is newer than the one restored: the work since is lost.
    pub lost: Option<u64>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "restored step {} of run {} from {}", self.step, self.run, self.place)?;
        for reject in &self.rejected {
            write!(f, "\n  {reject}")?;
        }
        for repair in &self.repaired {
            write!(f, "\n  {repair}")?;
        }
        if let Some(lost) = self.lost {
            write!(f, "\n  step {lost} was saved and is lost")?;
        }
        Ok(())
    }
}

/// A rank's word on a step: it could load it.
const YES: &str = "yes";
/// It could not.
const NO: &str = "no";
/// It asks for something that was not saved, and ends the search with an error.
const STOP: &str = "stop";

/// Who searches, and in what.
pub(crate) struct Search<'a> {
    pub(crate) levels: &'a [Level],
    pub(crate) run: &'a Run,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Counts the searches of this process, which all ranks make in the same order.
    pub(crate) number: u64,
    /// The newest step that this rank saved in this run; all ranks have saved the same when they search.
    pub(crate) saved: Option<StepId>,
    /// Only this step.
    pub(crate) only: Option<u64>,
}

impl Search<'_> {
    /// Loads the newest step that all ranks can load; None when there is none at all.
    ///
    /// # Errors
    /// The reason of the newest reject when there were steps and none could be taken; what the program asks for and
    /// the step does not hold.
    pub(crate) fn restore(&self, wanted: &mut Wanted<'_, '_>) -> Result<Option<Restored>> {
        let (mut rejected, mut repaired) = (Vec::new(), Vec::new());
        let mut first_error = None;
        let mut is_any_committed = false;
        for id in self.candidates()? {
            let mut reasons = Vec::new();
            is_any_committed |= !self.is_unfinished(id)?;
            let taken = self.try_step(id, wanted, &mut reasons, &mut repaired).inspect_err(|_| {
                // The others learn of it as far as files can be written; they end with their deadline else.
                let _ = self.say(id, STOP);
            })?;
            for (place, error) in reasons {
                rejected.push(reject(id, place, &error));
                first_error = first_error.or(Some(error));
            }
            let all = self.agree(id, taken.is_some())?;
            if let (Some(place), true) = (taken.clone(), all) {
                let lost = self.acknowledged()?.map(|newest| newest.id).filter(|newest| *newest > id);
                let lost = lost.map(|newest| newest.step);
                let (step, run) = (id.step, id.incarnation);
                return Ok(Some(Restored { step, run, place, rejected, repaired, lost }));
            }
            if taken.is_some_and(|_| !all) {
                let what = Error::new(Kind::Damaged, "another rank could not load it");
                rejected.push(reject(id, None, &what));
                first_error = first_error.or(Some(what));
            }
        }
        match first_error {
            None => self.nothing_there(),
            // Killed in its first save: no save has returned yet, so that nothing is lost.
            Some(_) if !is_any_committed && self.only.is_none() && self.acknowledged()?.is_none() => Ok(None),
            Some(error) => {
                let list: Vec<String> = rejected.iter().map(Reject::to_string).collect();
                Err(Error::new(error.kind(), "no step can be restored")
                    .with("rejected", list.join("; "))
                    .hint("forebay ckpt verify PATH reads every level")
                    .caused_by(error))
            }
        }
    }

    /// No level has a step. That is right at the first start, and after a reboot where all levels are memory.
    fn nothing_there(&self) -> Result<Option<Restored>> {
        let Some(newest) = self.acknowledged()? else { return Ok(None) };
        let volatile = self.levels.iter().all(|level| level.place.durability() == Durability::Process);
        if volatile && !newest.this_boot {
            return Ok(None);
        }
        Err(Error::new(Kind::VersionGone, format!("step {} was saved, but no level has it", newest.id.step))
            .with("run", newest.id.incarnation)
            .with("levels", self.levels.iter().map(|l| l.place.describe()).collect::<Vec<_>>().join(" "))
            .hint("to start over, remove the checkpoint directory"))
    }

    /// Steps of all levels, the newest first. All ranks see the same ones: what a rank that is done already saves after
    /// its search is left out, and no rank is done with a search that has candidates before all have looked.
    fn candidates(&self) -> Result<Vec<StepId>> {
        let mut ids = Vec::new();
        for level in self.levels {
            ids.extend(level.steps()?.iter().map(|found| found.id));
        }
        let before =
            |id: &StepId| id.incarnation < self.run.incarnation || self.saved.is_some_and(|last| *id <= last);
        ids.retain(|id| before(id) && self.only.is_none_or(|only| id.step == only));
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.dedup();
        Ok(ids)
    }

    /// Whether no level has a commit record of the step, readable or not.
    fn is_unfinished(&self, id: StepId) -> Result<bool> {
        for level in self.levels {
            if !matches!(level.commit_record(id), Ok(None)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Loads a step from the first level that has it whole, and says which that was; notes why others did not do.
    fn try_step(
        &self,
        id: StepId,
        wanted: &mut Wanted<'_, '_>,
        reasons: &mut Vec<(Option<String>, Error)>,
        repaired: &mut Vec<Repair>,
    ) -> Result<Option<String>> {
        let mut unfinished = None;
        for level in self.levels {
            let place = level.place.describe();
            let loaded = match self.load_whole(level, id, wanted, repaired)? {
                Some(loaded) => loaded,
                None => {
                    let has = level.steps()?.iter().any(|found| found.id == id);
                    unfinished =
                        unfinished.or_else(|| has.then(|| (place.clone(), not_committed(level, id))));
                    continue;
                }
            };
            match loaded {
                Ok(()) => return Ok(Some(place)),
                // Not this copy's fault: an older one would be as wrong.
                Err(e)
                    if matches!(
                        e.kind(),
                        Kind::UnknownVariable | Kind::VariableMismatch | Kind::UnknownFormat
                    ) =>
                {
                    return Err(e.with("step", id.step).with("place", place));
                }
                Err(e) => reasons.push((Some(place), e)),
            }
        }
        // A copy that was never finished is worth a word only where no other was there.
        if let (true, Some((place, error))) = (reasons.is_empty(), unfinished) {
            reasons.push((Some(place), error));
        }
        Ok(None)
    }

    /// Loads a step from a level, and repairs it there where that is needed and possible. None when it is not committed
    /// there.
    fn load_whole(
        &self,
        level: &Level,
        id: StepId,
        wanted: &mut Wanted<'_, '_>,
        repaired: &mut Vec<Repair>,
    ) -> Result<Option<Result<()>>> {
        let mut load_once = || match level.commit_record(id) {
            Ok(None) => None,
            Ok(Some(commit)) => Some(load(level, &commit, self.rank, wanted)),
            Err(e) => Some(Err(e)),
        };
        let mut loaded = load_once();
        if level.guard.is_none() || !self.wants_repair(level, id, &loaded)? {
            return Ok(loaded);
        }
        // Another rank may have repaired it while this one waited.
        self.run.repairing(|| {
            loaded = load_once();
            if !self.wants_repair(level, id, &loaded)? {
                return Ok(());
            }
            match repair(level, id) {
                Ok(done) => {
                    repaired.extend(done);
                    loaded = load_once();
                }
                Err(e) if matches!(loaded, Some(Err(_))) => loaded = Some(Err(e)),
                // Loaded as it was, or never committed.
                Err(_) => {}
            }
            Ok(())
        })?;
        Ok(loaded)
    }

    /// Whether something of a step is missing or damaged, as far as it was looked at: also redundancy, of steps that no
    /// rank is about to write it for.
    fn wants_repair(&self, level: &Level, id: StepId, loaded: &Option<Result<()>>) -> Result<bool> {
        Ok(match loaded {
            Some(Ok(())) => id.incarnation < self.run.incarnation && !level.is_protected(id)?,
            Some(Err(e)) => !matches!(e.kind(), Kind::UnknownVariable | Kind::VariableMismatch),
            None => level.steps()?.iter().any(|found| found.id == id),
        })
    }

    /// Whether all ranks could load the step. Each says so in a file; the first word against it decides.
    fn agree(&self, id: StepId, mine: bool) -> Result<bool> {
        if self.size == 1 {
            return Ok(mine);
        }
        self.say(id, if mine { YES } else { NO })?;
        let mut open: Vec<u32> = (0..self.size).filter(|rank| *rank != self.rank).collect();
        let mut all = mine;
        // Every word is waited for, also after one against it: a rank that lags behind reads the files too.
        self.run.wait("other ranks have not looked for a step to restore", || {
            let mut left = Vec::new();
            for rank in open.drain(..) {
                match self.run.base().load(&self.word_name(id, rank), 16)?.as_deref() {
                    Some(word) if word == STOP.as_bytes() => return Err(stopped(id, rank)),
                    Some(word) => all &= word == YES.as_bytes(),
                    None => left.push(rank),
                }
            }
            open = left;
            Ok(open.is_empty().then_some(all))
        })
    }

    fn acknowledged(&self) -> Result<Option<Acknowledged>> {
        let known = crate::run::acknowledged(self.run.base(), self.levels.len())?;
        let newest = known.into_iter().flatten().max_by_key(|found| found.id);
        Ok(newest.filter(|_| self.only.is_none()))
    }

    /// Writes this rank's word on a step.
    fn say(&self, id: StepId, word: &str) -> Result<()> {
        if self.size == 1 {
            return Ok(());
        }
        let (base, dir) = (self.run.base(), self.words());
        let hidden = format!("{dir}/.{}", self.rank);
        let said = base
            .make_dir(&dir)
            .and_then(|()| base.store(&hidden, word.as_bytes()))
            .and_then(|()| base.rename(&hidden, &self.word_name(id, self.rank)));
        // A later run removes the words of this one.
        said.map_err(|e| self.run.check().err().unwrap_or(e))
    }

    fn words(&self) -> String {
        format!("{WORDS}{:06}", self.run.incarnation)
    }

    fn word_name(&self, id: StepId, rank: u32) -> String {
        format!("{}/{}-s{}-r{}-{rank}", self.words(), self.number, id.step, id.incarnation)
    }
}

#[cold]
fn stopped(id: StepId, rank: u32) -> Error {
    Error::new(Kind::ComponentFailed, format!("rank {rank} gave up the search at {id}"))
        .hint("see the error of that rank")
}

pub(crate) fn reject(id: StepId, place: Option<String>, error: &Error) -> Reject {
    let facts: Vec<String> = error.context().iter().map(|(key, value)| format!("{key}={value}")).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    Reject {
        step: id.step,
        run: id.incarnation,
        place,
        kind: error.kind().name(),
        reason: format!("{}{facts}", error.message()),
    }
}
