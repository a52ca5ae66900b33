//! Looking at a checkpoint directory without taking part: which steps are where, and whether their bytes are whole.
//!
//! Guarantees: changes nothing, holds no rank. A step that goes away meanwhile is no damage.

use std::path::Path;

use forebay_tier::{Durability, Error, Kind, Result, TierKind};
use serde::Serialize;

use crate::format::{Commit, Manifest, StepId};
use crate::level::keep::Reason;
use crate::level::{load, not_committed, Keep, Level, Packing};
use crate::place::Directory;
use crate::redundancy::{look, Protection};
use crate::run::{self, control, Control};

/// A step in one level.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Its number.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// Whether it counts.
    pub committed: bool,
    /// Number of pieces; 0 where that is not known.
    pub size: u32,
    /// Bytes of data files.
    pub bytes: u64,
    /// The full step that it stands on; None: it is a full one. (The newest, where ranks stand on several.)
    pub incremental_on: Option<u64>,
    /// When it was saved, in ns since 1970; 0 where that is not known.
    pub saved_unix_ns: u64,
    /// The value that was given when it was saved.
    pub metric: Option<f64>,
    /// Why it stays when the next step is committed; nothing: it may go.
    pub stays: Vec<Reason>,
    /// What is wrong with it, if something is.
    pub fault: Option<String>,
    /// How far its redundancy is; None where the level has none, or the step does not count.
    pub redundancy: Option<Protection>,
}

/// A level and its steps.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// Its directory.
    pub dir: std::path::PathBuf,
    /// The kind of tier.
    pub tier: TierKind,
    /// What a committed step survives here.
    pub durability: Durability,
    /// Which committed steps stay.
    #[serde(flatten)]
    pub keep: Keep,
    /// What else is kept of each step on other nodes: `partner`, `xor:4`, `rs:4+2`; None: nothing.
    pub redundancy: Option<String>,
    /// How steps are stored there now.
    pub packing: Packing,
    /// The steps, the newest first.
    pub steps: Vec<StepReport>,
}

/// A checkpoint directory.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The program that saves here, or nothing.
    pub program: String,
    /// The number of the current run.
    pub run: u64,
    /// Its ranks.
    pub size: u32,
    /// The levels, the fastest first.
    pub levels: Vec<LevelReport>,
    /// The newest step that was acknowledged in any level.
    pub acknowledged: Option<u64>,
}

/// What reading every byte has shown.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Where the step lies.
    pub dir: std::path::PathBuf,
    /// Its number.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// Bytes that were read and compared; of an incremental step also those that lie in the full one.
    pub bytes: u64,
    /// The full step that it stands on; None: it is a full one.
    pub incremental_on: Option<u64>,
    /// The kind of what is wrong.
    pub kind: Option<&'static str>,
    /// What is wrong.
    pub fault: Option<String>,
    /// Its redundancy, every byte of it compared; None where the level has none.
    pub redundancy: Option<Protection>,
}

/// The levels of a checkpoint directory, for looking at them.
pub(crate) fn levels_of(base: &Path) -> Result<(Control, Vec<Level>)> {
    let found = control(base)?.ok_or_else(|| {
        Error::new(Kind::PeerMissing, format!("{} is not a checkpoint directory", base.display()))
            .hint("use the path that the program passed to Checkpoint")
    })?;
    let mut levels = Vec::new();
    for info in &found.levels {
        levels.push(Level::for_looking(info)?);
    }
    Ok((found, levels))
}

/// What is in a checkpoint directory.
///
/// # Errors
/// `PeerMissing` when it is none; `UnknownFormat`; `Damaged`; those of the operating system.
pub fn list(base: &Path) -> Result<Inspection> {
    let (found, levels) = levels_of(base)?;
    let mut reports = Vec::new();
    for (info, level) in found.levels.iter().zip(&levels) {
        let found = level.steps()?;
        let reasons = level.reasons(&found, level.keep.last)?;
        let steps: Result<Vec<StepReport>> =
            found.iter().map(|step| describe(level, step.id, &reasons)).collect();
        reports.push(LevelReport {
            dir: info.dir.clone(),
            tier: info.tier,
            durability: level.place.durability(),
            keep: info.keep,
            redundancy: info.redundancy.map(|code| code.to_string()),
            packing: info.packing,
            steps: steps?,
        });
    }
    let place = Directory::for_looking(base, TierKind::File)?;
    let acknowledged =
        run::acknowledged(&place, levels.len())?.into_iter().flatten().map(|known| known.id).max();
    Ok(Inspection {
        program: found.program,
        run: found.incarnation,
        size: found.size,
        levels: reports,
        acknowledged: acknowledged.map(|id| id.step),
    })
}

fn describe(level: &Level, id: StepId, reasons: &[(StepId, Vec<Reason>)]) -> Result<StepReport> {
    let mut report = StepReport {
        step: id.step,
        run: id.incarnation,
        committed: false,
        size: 0,
        bytes: 0,
        incremental_on: None,
        saved_unix_ns: 0,
        metric: None,
        stays: reasons.iter().find(|(of, _)| *of == id).map_or(Vec::new(), |(_, why)| why.clone()),
        fault: None,
        redundancy: None,
    };
    match level.commit_record(id) {
        Ok(Some(commit)) => {
            report.committed = true;
            report.size = commit.ranks.len() as u32;
            report.bytes = commit.data_bytes();
            report.incremental_on = newest_base(&commit);
            report.saved_unix_ns = commit.saved_unix_ns;
            report.redundancy = look(level, &commit, false)?;
            match level.metric(id) {
                Ok(value) => report.metric = value,
                Err(e) => report.fault = Some(in_words(&e)),
            }
        }
        Ok(None) => report.fault = Some(in_words(&not_committed(level, id))),
        Err(e) => report.fault = Some(in_words(&e)),
    }
    Ok(report)
}

fn newest_base(commit: &Commit) -> Option<u64> {
    commit.bases().iter().map(|base| base.step).max()
}

/// Reads every byte of the committed steps in every level (of one step, if one is named) and compares it.
///
/// # Errors
/// As [`list`]; damage is in the report.
pub fn verify(base: &Path, only: Option<u64>) -> Result<Vec<VerifyReport>> {
    let (found, levels) = levels_of(base)?;
    let mut reports = Vec::new();
    for (info, level) in found.levels.iter().zip(&levels) {
        for step in level.steps()?.iter().filter(|s| s.committed && only.is_none_or(|only| s.id.step == only))
        {
            let (mut redundancy, mut incremental_on) = (None, None);
            let read = level.commit_record(step.id).and_then(|commit| match commit {
                Some(commit) => {
                    redundancy = look(level, &commit, true)?;
                    incremental_on = newest_base(&commit);
                    load::verify(level, &commit)
                        .and_then(|bytes| level.metric(commit.id).map(|_| Some(bytes)))
                }
                None => Ok(None),
            });
            let (bytes, error) = match read {
                Ok(Some(bytes)) => (bytes, None),
                // Given up since it was listed.
                Ok(None) => continue,
                Err(_) if !level.steps()?.contains(step) => continue,
                Err(_) if only.is_none() && is_superseded(level, step.id)? => continue,
                Err(e) => (0, Some(e)),
            };
            reports.push(VerifyReport {
                dir: info.dir.clone(),
                step: step.id.step,
                run: step.id.incarnation,
                bytes,
                incremental_on,
                kind: error.as_ref().map(|e| e.kind().name()),
                fault: error.as_ref().map(in_words),
                redundancy,
            });
        }
    }
    Ok(reports)
}

/// Whether a step is not kept any more: it is about to go, or stays only because others stand on pieces of it, so that
/// it need not be whole. Those pieces are looked at with the steps that stand on them.
fn is_superseded(level: &Level, id: StepId) -> Result<bool> {
    let reasons = level.reasons(&level.steps()?, level.keep.last)?;
    // With redundancy a step also stays until a newer one has it.
    Ok(level.guard.is_none() && reasons.iter().any(|(of, why)| *of == id && why.is_empty()))
}

/// The variables of a committed step, as its pieces name them, rank by rank.
///
/// # Errors
/// `VersionGone` when no level has the step; `Damaged` when none has it whole.
pub fn pieces(base: &Path, step: u64) -> Result<Vec<Manifest>> {
    let (_, levels) = levels_of(base)?;
    let mut last = Error::new(Kind::VersionGone, format!("no level has step {step}"));
    for level in &levels {
        for found in level.steps()?.iter().filter(|found| found.id.step == step) {
            let read = level.commit_record(found.id).and_then(|commit| match commit {
                Some(commit) => {
                    (0..commit.ranks.len() as u32).map(|rank| level.manifest(&commit, rank)).collect()
                }
                None => Err(not_committed(level, found.id)),
            });
            match read {
                Ok(manifests) => return Ok(manifests),
                Err(e) => last = e,
            }
        }
    }
    Err(last)
}

/// An error in one line.
fn in_words(error: &Error) -> String {
    let facts: Vec<String> = error.context().iter().map(|(key, value)| format!("{key}={value}")).collect();
    match facts.is_empty() {
        true => error.message().to_string(),
        false => format!("{} ({})", error.message(), facts.join(", ")),
    }
}
