//! Names: of the directory of a step and of the files in it, as every level has them, and of nodes.
//!
//! Described in docs/src/formats/checkpoint.md.

use forebay_tier::{Error, Kind, Result};

use super::StepId;

/// Name of the commit record in a step's directory.
pub(crate) const COMMIT: &str = "commit";
/// What a manifest's name ends with.
const MANIFEST: &str = ".manifest";
/// What a data file's name ends with.
pub(crate) const DATA: &str = ".data";
/// The file of the value that was given when a step was saved; rank 0 writes it.
const METRIC: &str = "00000.metric";

/// What the names of parity and of the records about it end with.
pub(crate) const PARITY: &str = ".parity";
pub(crate) const RECORD: &str = ".redundancy";

/// Longest name of a node.
const NODE_BYTES_MAX: usize = 64;

/// The name of a step's directory.
pub(crate) fn directory_of(id: StepId) -> String {
    format!("s{:010}-r{:06}", id.step, id.incarnation)
}

/// The step of a directory of that name.
pub(crate) fn step_of(name: &str) -> Option<StepId> {
    let (step, run) = name.strip_prefix('s')?.split_once("-r")?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
    let id = StepId { step: digits(step)?, incarnation: digits(run)? };
    (directory_of(id) == name).then_some(id)
}

fn in_step(id: StepId, file: &str) -> String {
    format!("{}/{file}", directory_of(id))
}

pub(crate) fn data_name(id: StepId, rank: u32) -> String {
    in_step(id, &format!("{rank:05}{DATA}"))
}

/// The manifest of a rank, in a step's directory.
pub(crate) fn manifest_file(rank: u32) -> String {
    format!("{rank:05}{MANIFEST}")
}

pub(crate) fn manifest_name(id: StepId, rank: u32) -> String {
    in_step(id, &manifest_file(rank))
}

/// Whether a file in a step's directory is the manifest of a rank.
pub(crate) fn is_manifest(file: &str) -> bool {
    file.ends_with(MANIFEST) && !file.starts_with('.')
}

/// Whose manifest a file in a step's directory is.
pub(crate) fn rank_of_manifest(file: &str) -> Option<u32> {
    file.strip_suffix(MANIFEST)?.parse().ok()
}

pub(crate) fn metric_name(id: StepId) -> String {
    in_step(id, METRIC)
}

pub(crate) fn commit_name(id: StepId) -> String {
    in_step(id, COMMIT)
}

/// The file in a step's directory that a rank keeps for a row of pieces.
pub(crate) fn kept_file(holder: u32, row: u32, end: &str) -> String {
    format!("{holder:05}.{row}{end}")
}

/// Rank and row of the file of a record about parity.
pub(crate) fn keeper_of(file: &str) -> Option<(u32, u32)> {
    let (holder, row) = file.strip_suffix(RECORD)?.split_once('.')?;
    Some((holder.parse().ok()?, row.parse().ok()?))
}

/// Checks the name of a node.
///
/// # Errors
/// `BadName`.
pub(crate) fn check_node(node: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = (1..=NODE_BYTES_MAX).contains(&node.len()) && !node.starts_with('.');
    if fits && node.chars().all(good) {
        return Ok(());
    }
    Err(Error::new(Kind::BadName, format!("`{node}` is not a valid node name"))
        .hint("1 to 64 letters, digits, `.`, `_` and `-`, not beginning with a dot"))
}
