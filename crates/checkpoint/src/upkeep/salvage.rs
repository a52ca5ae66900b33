//! What can be done with the steps of a program that does not run: carry them down, and take arrays out.
//!
//! Guarantees: [`drain`] holds every rank of the directory meanwhile, so that it never meets a living program; a step
//! is carried with its run, its checksums and its commit, or not at all. [`extract`] changes nothing but what it brings
//! back from redundancy while no program runs; what it hands out matched its checksums.

use std::path::Path;

use forebay_log::NdBox;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use super::inspect::levels_of;
use crate::format::{Commit, Manifest, StepId, Variable};
use crate::level::load::{self, load, read_piece, zeros, Wanted};
use crate::level::{not_committed, Level, Piece};
use crate::redundancy::{protect_all, repair, Repair};
use crate::restore::{reject, Reject};
use crate::run::{hold_all, mark_acknowledged};

/// What was carried down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// The step; None: the lower levels had everything.
    pub step: Option<u64>,
    /// The run that saved it.
    pub run: Option<u64>,
    /// Directories of the levels that it was carried to.
    pub to: Vec<std::path::PathBuf>,
    /// Bytes of data that were written.
    pub bytes: u64,
    /// Steps of the first level that could not be carried.
    pub rejected: Vec<Reject>,
    /// What was brought back from redundancy before.
    pub repaired: Vec<Repair>,
}

/// What was taken out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extracted {
    /// The step.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// Where it was loaded from.
    pub place: String,
    /// Newer steps, and other copies, that were not taken.
    pub rejected: Vec<Reject>,
    /// What was brought back from redundancy, and written back.
    pub repaired: Vec<Repair>,
}

/// Carries the newest step that a program left in its upper levels down to every level that lacks it.
///
/// # Errors
/// `NameInUse` while the program lives; `PeerMissing` when this is no checkpoint directory; those of the levels.
pub fn drain(base: &Path) -> Result<Carried> {
    let (control, levels) = levels_of(base)?;
    let held = hold_all(base, &control)?;
    let mut carried = Carried::default();
    for id in newest_first(&levels, None)? {
        let lacking: Vec<usize> = (0..levels.len()).filter(|at| !has(&levels[*at], id)).collect();
        if lacking.is_empty() {
            break;
        }
        let found = whole_copy(&levels, id, &mut carried.rejected, Some(&mut carried.repaired))?;
        match found {
            None => continue,
            Some((from, commit)) => {
                let lower: Vec<usize> = lacking.into_iter().filter(|at| *at > from).collect();
                for at in &lower {
                    carried.bytes += copy_step(&levels[from], &levels[*at], &commit)?;
                    mark_acknowledged(base, *at, id)?;
                    carried.to.push(control.levels[*at].dir.clone());
                }
                if !lower.is_empty() {
                    (carried.step, carried.run) = (Some(id.step), Some(id.incarnation));
                }
                break;
            }
        }
    }
    drop(held);
    Ok(carried)
}

fn has(level: &Level, id: StepId) -> bool {
    level.commit_record(id).is_ok_and(|commit| commit.is_some())
}

fn newest_first(levels: &[Level], only: Option<u64>) -> Result<Vec<StepId>> {
    let mut ids = Vec::new();
    for level in levels {
        ids.extend(level.steps()?.iter().map(|found| found.id));
    }
    ids.retain(|id| only.is_none_or(|only| id.step == only));
    ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    ids.dedup();
    Ok(ids)
}

/// The first level that has a step whole, every byte compared; with `repaired`, made whole where redundancy can.
fn whole_copy(
    levels: &[Level],
    id: StepId,
    rejected: &mut Vec<Reject>,
    mut repaired: Option<&mut Vec<Repair>>,
) -> Result<Option<(usize, Commit)>> {
    for (at, level) in levels.iter().enumerate() {
        let mut tried = whole_in(level, id);
        if let (Some(repaired), Some(_), false) = (&mut repaired, &level.guard, matches!(tried, Some(Ok(_))))
        {
            match repair(level, id) {
                Ok(done) => {
                    repaired.extend(done);
                    tried = whole_in(level, id);
                }
                Err(e) => tried = tried.map(|_| Err(e)),
            }
        }
        match tried {
            None => {}
            Some(Ok(commit)) => return Ok(Some((at, commit))),
            Some(Err(e)) if e.kind() == Kind::UnknownFormat => return Err(e),
            Some(Err(e)) => rejected.push(reject(id, Some(level.place.describe()), &e)),
        }
    }
    Ok(None)
}

/// Reads every byte of a step in a level; None when it is not there.
fn whole_in(level: &Level, id: StepId) -> Option<Result<Commit>> {
    match level.commit_record(id) {
        Ok(Some(commit)) => Some(load::verify(level, &commit).map(|_| commit)),
        Ok(None) => match level.steps() {
            Ok(steps) => steps.iter().any(|found| found.id == id).then(|| Err(not_committed(level, id))),
            Err(e) => Some(Err(e)),
        },
        Err(e) => Some(Err(e)),
    }
}

/// Copies a committed step, rank by rank.
fn copy_step(from: &Level, to: &Level, commit: &Commit) -> Result<u64> {
    let (mut bytes, metric) = (0, from.metric_if_known(commit.id)?);
    // What a carry that was cut off has left there does not count, and is in the way.
    to.drop_step(commit.id, None)?;
    for rank in 0..commit.ranks.len() as u32 {
        let manifest = from.manifest(commit, rank)?;
        let read = read_piece(from, &manifest)?;
        let sources: Vec<&[u8]> = read.iter().map(Vec::as_slice).collect();
        let variables = manifest.described();
        to.write(&Piece::of(&manifest, &variables, &sources, metric))?;
        bytes += manifest.data_bytes;
    }
    match to.commit(commit.id, 0, commit.ranks.len() as u32, &|| Ok(()))? {
        true => protect_all(to, commit.id).map(|()| bytes),
        false => Err(Error::new(Kind::Internal, format!("{} is incomplete after the copy", commit.id))),
    }
}

/// Hands every variable of the newest step that is whole (or of one step) to `take`, with its global shape; a
/// variable that every rank holds whole as rank 0 holds it.
///
/// # Errors
/// The reason of the newest reject when no step could be taken; `VersionGone` when there is none; what `take` returns.
pub fn extract(
    base: &Path,
    only: Option<u64>,
    take: &mut dyn FnMut(&Variable, &[u8]) -> Result<()>,
) -> Result<Extracted> {
    let (control, levels) = levels_of(base)?;
    let (mut rejected, mut repaired) = (Vec::new(), Vec::new());
    // A living program repairs its steps itself.
    let held = match levels.iter().any(|level| level.guard.is_some()) {
        true => hold_all(base, &control).ok(),
        false => None,
    };
    for id in newest_first(&levels, only)? {
        let repairs = held.as_ref().map(|_| &mut repaired);
        if let Some((at, commit)) = whole_copy(&levels, id, &mut rejected, repairs)? {
            let level = &levels[at];
            for (variable, saved) in &variables_of(level, &commit)? {
                let whole = variable.bytes()?;
                // Looked at before memory is taken by a number out of a record.
                if (whole as u64) > *saved {
                    let error = format!("no rank saved a part of {}", variable.name);
                    return Err(Error::new(Kind::BoxNotCovered, error)
                        .with("bytes", whole)
                        .with("saved", saved));
                }
                let mut bytes = zeros(whole)?;
                let wanted = std::slice::from_ref(variable);
                load(level, &commit, 0, &mut Wanted { variables: wanted, targets: &mut [&mut bytes] })?;
                take(variable, &bytes)?;
            }
            let place = level.place.describe();
            return Ok(Extracted { step: id.step, run: id.incarnation, place, rejected, repaired });
        }
    }
    match rejected.first() {
        None => {
            let what =
                only.map_or("there is no step to restore".into(), |step| format!("no level has step {step}"));
            Err(Error::new(Kind::VersionGone, what)
                .hint("forebay ckpt list PATH shows the steps that are there"))
        }
        Some(first) => Err(Error::new(Kind::Damaged, "no step can be restored").with("newest", first)),
    }
}

/// The variables of a step, each whole, and how many bytes of each the ranks saved.
fn variables_of(level: &Level, commit: &Commit) -> Result<Vec<(Variable, u64)>> {
    let mut found: Vec<(Variable, u64)> = Vec::new();
    for rank in 0..commit.ranks.len() as u32 {
        let manifest: Manifest = level.manifest(commit, rank)?;
        for stored in manifest.variables {
            match found.iter_mut().find(|(known, _)| known.name == stored.variable.name) {
                Some((_, saved)) => *saved = saved.saturating_add(stored.bytes),
                None => {
                    let part = NdBox::whole(&stored.variable.shape);
                    found.push((Variable { part, ..stored.variable }, stored.bytes));
                }
            }
        }
    }
    Ok(found)
}
