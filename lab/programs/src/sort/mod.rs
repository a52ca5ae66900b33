//! Sorting more keys than memory holds: an external merge sort on tiles, and beside it the plain in-place sort, of a
//! window and of the mapped file that both are compared with; by one process or by several.
//!
//! Ranks take part in phases: first each sorts its part of the keys, then, where several sorted runs have come of it,
//! each merges an equally long part of the result ([`split`]). The process that starts the ranks waits between phases.
//! Keys are uniformly random 64-bit numbers of a seed ([`keys`]). All sorts begin with the same file, and what they
//! leave is checked by order and by a hash that every permutation of the keys has and hardly anything else.

mod external;
mod in_place;
pub mod keys;
mod merge;
mod plan;
mod split;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_pager::FileBacking;
use forebay_space::Result;
use serde::{Deserialize, Serialize};

pub use keys::{Checked, Permutation};

/// What is sorted, and within what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Keys of 8 bytes.
    pub keys: u64,
    /// Their seed.
    pub seed: u64,
    /// Most memory for keys and for what is known of them, of all ranks together.
    pub budget: u64,
    /// Length of a tile; a power of two.
    pub tile_bytes: usize,
    /// Processes, each with a part of the keys and of the budget.
    pub ranks: usize,
    /// Threads of each.
    pub threads: usize,
}

impl Task {
    fn budget_each(&self) -> u64 {
        self.budget / self.ranks as u64
    }

    /// The keys, and the places in the result, of one rank: whole tiles, so that no two write the same one.
    fn part(&self, rank: usize) -> Range<u64> {
        split::places(0..self.keys, self.tile_bytes as u64 / 8, self.ranks, rank)
    }
}

/// How keys are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Merge sort on tiles.
    External,
    /// In place in a window; several ranks merge their parts through windows.
    Window,
    /// In place in a mapped file; several ranks merge their parts through mappings.
    Mmap,
}

/// What ranks do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Each sorts its part of the keys, to one run or several.
    Runs,
    /// Each merges a part of the result from all runs.
    Merge,
}

impl Way {
    /// As commands and documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Way::External => "external",
            Way::Window => "window",
            Way::Mmap => "mmap",
        }
    }

    /// The phases of a sort by so many ranks.
    pub fn phases(self, ranks: usize) -> &'static [Phase] {
        match (self, ranks) {
            (Way::Window | Way::Mmap, 1) => &[Phase::Runs],
            _ => &[Phase::Runs, Phase::Merge],
        }
    }
}

/// What one rank did in a phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Did {
    /// When it began and ended, in seconds since 1970.
    pub span_s: [f64; 2],
    /// Sorted runs that it made.
    pub runs: usize,
    /// Bytes that the pager read and wrote.
    pub moved_bytes: Option<[u64; 2]>,
    /// How its file was reached: `direct`, `cached`, `mmap`, or the engine of a window. Empty: it had no keys.
    pub method: String,
}

/// How a sort went. Times are measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sorted {
    /// From the first read to everything being durable.
    pub seconds: f64,
    /// Of that, where there were two: sorting runs, and merging them.
    pub phases: Option<[f64; 2]>,
    /// Sorted runs that were merged.
    pub runs: Option<usize>,
    /// Bytes that the pager read and wrote.
    pub moved_bytes: Option<[u64; 2]>,
    /// As [`Did::method`].
    pub method: String,
}

impl Sorted {
    /// Of what every rank did in every phase.
    pub fn of(phases: &[Vec<Did>]) -> Sorted {
        // From the first that began to the last that ended.
        let spans: Vec<f64> = phases
            .iter()
            .map(|ranks| {
                let [begun, ended] = ranks.iter().fold([f64::INFINITY, 0.0], |[begun, ended], rank| {
                    [rank.span_s[0].min(begun), rank.span_s[1].max(ended)]
                });
                ended - begun
            })
            .collect();
        let all = || phases.iter().flatten();
        let moved = all()
            .map(|rank| rank.moved_bytes)
            .try_fold([0; 2], |[read, written], moved| moved.map(|more| [read + more[0], written + more[1]]));
        Sorted {
            seconds: spans.iter().sum(),
            phases: spans.try_into().ok(),
            runs: (phases.len() == 2).then(|| phases[0].iter().map(|rank| rank.runs).sum()),
            moved_bytes: moved,
            method: all()
                .map(|rank| rank.method.clone())
                .find(|method| !method.is_empty())
                .unwrap_or_default(),
        }
    }
}

/// Whether there is enough memory to sort in this way.
///
/// # Errors
/// `Usage`, with what is wanted.
pub fn check_budget(task: &Task, way: Way) -> Result<()> {
    match way {
        Way::External => plan::Plan::of(task).map(drop),
        Way::Window | Way::Mmap => Ok(()),
    }
}

/// Where a sort leaves the sorted keys of the file `keys`: in it, or in one beside it.
pub fn sorted_name(keys: &Path, way: Way, ranks: usize) -> PathBuf {
    match way.phases(ranks).contains(&Phase::Merge) {
        true => beside(keys, ".sorted"),
        false => keys.to_owned(),
    }
}

/// The name of a file beside the one of the keys.
fn beside(keys: &Path, ending: &str) -> PathBuf {
    let mut name = keys.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Makes the file that the result comes into, if that is another one: once, before the first phase.
///
/// # Errors
/// `NameInUse`, or `TierFull`.
pub fn begin(keys: &Path, task: &Task, way: Way) -> Result<()> {
    let target = sorted_name(keys, way, task.ranks);
    match target == keys {
        true => Ok(()),
        false => FileBacking::create(&target, task.keys * 8).map(drop),
    }
}

/// What one rank does in a phase of sorting the keys in a file, after [`begin`] and after all ranks have ended the one
/// before. What the last phase wrote is durable when it has ended.
///
/// # Errors
/// As [`check_budget`], or what reading and writing fails with.
pub fn take_part(keys: &Path, task: &Task, way: Way, phase: Phase, rank: usize) -> Result<Did> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let begun = now();
    let mut did = match (way, phase) {
        (Way::External, Phase::Runs) => external::runs(keys, task, rank),
        (Way::External, Phase::Merge) => external::merge(keys, task, rank),
        (Way::Window | Way::Mmap, Phase::Runs) => in_place::sort_part(keys, task, way, rank),
        (Way::Window | Way::Mmap, Phase::Merge) => in_place::merge(keys, task, way, rank),
    }?;
    did.span_s = [begun, now()];
    Ok(did)
}
