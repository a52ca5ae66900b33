//! Advice on how often a program should save, from what its own saves cost and how often it failed.
//!
//! Rank 0 writes what it measured into `costs.json` of the checkpoint directory, at its 1st, 2nd, 4th, 8th … save and
//! at the end. Failures are runs that ended without closing. Not here: the formulas (`interval.rs`).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_tier::{Error, Kind, Result, TierKind};
use serde::{Deserialize, Serialize};

use super::interval::{advise, mtbf, LevelAdvice, LevelCost};
use super::statistics::Statistics;
use super::MTBF_DEFAULT_S;
use crate::level::LevelInfo;
use crate::place::{Directory, Place};
use crate::run::control;

const COSTS: &str = "costs.json";
const SCHEMA: &str = "forebay.checkpoint-costs/1";

/// How much rarer failures are that need the next lower level: in the published study of SCR 85 % of all failures were
/// recovered from the level above (SC10).
const RARER: f64 = 1.0 / 0.15;

/// What a program measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    schema: String,
    /// Steps that were saved in the last run.
    pub saves: u64,
    /// Seconds that a save kept the program from going on, of late.
    pub cost_s: f64,
    /// Seconds that a step took to the last level, of late.
    pub carried_s: f64,
    /// Seconds that the last restore took; 0 when there was none.
    pub restore_s: f64,
}

/// What is best, and from which numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What was measured.
    pub costs: Costs,
    /// Runs that ended without closing.
    pub failures: u64,
    /// Seconds since the first run.
    pub seen_s: f64,
    /// Mean seconds between failures: as it was given, or from the two above and a prior of one a day.
    pub mtbf_s: f64,
    /// Whether it was given.
    pub mtbf_given: bool,
    /// For each level, the fastest first.
    pub levels: Vec<(LevelInfo, LevelCost, LevelAdvice)>,
}

/// Writes what was measured; for rank 0.
pub(crate) fn write(base: &dyn Place, seen: &Statistics) -> Result<()> {
    let costs = Costs {
        schema: SCHEMA.into(),
        saves: seen.saves,
        cost_s: seen.cost_s,
        carried_s: seen.carried_s,
        restore_s: seen.restore_s,
    };
    let hidden = format!(".{COSTS}");
    base.store(&hidden, &serde_json::to_vec_pretty(&costs).expect("plain data"))?;
    base.rename(&hidden, COSTS)
}

/// The best interval of each level of a checkpoint directory.
///
/// # Errors
/// `PeerMissing` when this is no checkpoint directory, or nothing was saved there; `Damaged`, `UnknownFormat`.
pub fn advice(path: &Path, mtbf_s: Option<f64>) -> Result<Advice> {
    let missing = |what: &str| Error::new(Kind::PeerMissing, format!("{} {what}", path.display()));
    let known = control(path)?.ok_or_else(|| missing("is not a checkpoint directory"))?;
    let base = Directory::for_looking(path, TierKind::File)?;
    let text = base.load(COSTS, 1 << 20)?;
    let text =
        text.ok_or_else(|| missing("holds no measured costs").hint("they are written by the first save"))?;
    let costs: Costs = serde_json::from_slice(&text)
        .map_err(|e| Error::new(Kind::Damaged, format!("cannot parse {COSTS}: {e}")))?;
    if costs.schema != SCHEMA {
        return Err(Error::new(Kind::UnknownFormat, format!("{COSTS} has schema {}", costs.schema))
            .with("known", SCHEMA));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seen_s = now.saturating_sub(known.began_unix_s) as f64;
    let mtbf_given = mtbf_s.is_some();
    let mtbf_s = mtbf_s.unwrap_or_else(|| mtbf(MTBF_DEFAULT_S, seen_s, known.failures));
    let cost_of = |at: usize| LevelCost {
        blocked_s: if at == 0 { costs.cost_s } else { 0.0 },
        carried_s: if at == 0 { 0.0 } else { costs.carried_s },
        restart_s: costs.restore_s,
        mtbf_s: mtbf_s * RARER.powi(at as i32),
    };
    let levels: Vec<LevelCost> = (0..known.levels.len()).map(cost_of).collect();
    let advised = advise(&levels);
    let levels =
        known.levels.into_iter().zip(levels).zip(advised).map(|((info, cost), best)| (info, cost, best));
    Ok(Advice { costs, failures: known.failures, seen_s, mtbf_s, mtbf_given, levels: levels.collect() })
}
