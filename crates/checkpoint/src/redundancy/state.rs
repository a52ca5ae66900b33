//! How far the redundancy of a step is: by names, for those who wait for it, and byte by byte, for those who look.

use forebay_tier::checksum::crc32c;
use forebay_tier::Result;
use serde::Serialize;

use crate::format::{
    commit_name, damaged, directory_of, keeper_of, kept_file, Commit, ParityRecord, StepId, CHUNK_BYTES,
    MANIFEST_BYTES_MAX, PARITY, RECORD,
};
use crate::level::{missing, plan, Level};
use crate::place::Place;

/// How far the redundancy of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Everything is there.
    Complete,
    /// Something is missing: it is not written yet, or lost.
    Incomplete,
    /// Something that is there is not what was written.
    Damaged,
}

/// The redundancy of a step in a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Protection {
    /// The kind, as in the level: `partner`, `xor:4`, `rs:4+2`.
    pub kind: String,
    /// How far it is.
    pub state: State,
    /// Parity files (of `partner`: copies) that the step has when it is complete; 0 where that is not known.
    pub files: usize,
    /// How many of them are missing.
    pub missing: usize,
    /// What is wrong with one that is there, if something is.
    pub fault: Option<String>,
}

/// The redundancy of a committed step; with `read` every byte of it is compared. None without redundancy.
pub(crate) fn look(level: &Level, commit: &Commit, read: bool) -> Result<Option<Protection>> {
    let Some(guard) = &level.guard else { return Ok(None) };
    let mut found = Protection {
        kind: guard.code.to_string(),
        state: State::Incomplete,
        files: 0,
        missing: 0,
        fault: None,
    };
    match plan(guard, commit) {
        Ok(Some(groups)) => {
            found.files = groups.iter().map(|group| group.holders.len()).sum();
            let (parity, uncommitted) = missing(guard, commit.id, &groups)?;
            found.missing = parity;
            if parity + uncommitted == 0 {
                found.state = State::Complete;
            }
        }
        Ok(None) => {}
        Err(e) => found.fault = Some(e.message().to_string()),
    }
    if read {
        for (node, place) in guard.nodes.all()? {
            let dir = directory_of(commit.id);
            let record = place.load(&commit_name(commit.id), MANIFEST_BYTES_MAX)?;
            if record.is_some_and(|bytes| bytes != commit.encode()) {
                found.state = State::Damaged;
                found.fault.get_or_insert(format!("a commit record is damaged (on node {node})"));
            }
            for (rank, row) in place.list(&dir)?.iter().filter_map(|file| keeper_of(file)) {
                if let Err(e) = check(&*place, commit, rank, row) {
                    found.state = State::Damaged;
                    let file = kept_file(rank, row, PARITY);
                    found.fault.get_or_insert(format!("{} ({file} on node {node})", e.message()));
                }
            }
        }
    }
    Ok(Some(found))
}

/// A record as it stands on a node, of this step.
///
/// # Errors
/// `Damaged` also when it is missing or of another step; `UnknownFormat`.
pub(super) fn record(place: &dyn Place, id: StepId, rank: u32, row: u32) -> Result<ParityRecord> {
    let name = format!("{}/{}", directory_of(id), kept_file(rank, row, RECORD));
    let missing = || damaged("a record of redundancy", "it is missing");
    let bytes = place.load(&name, MANIFEST_BYTES_MAX)?.ok_or_else(missing)?;
    let record = ParityRecord::decode(&bytes)?;
    match record.id == id && record.row == row {
        true => Ok(record),
        false => Err(damaged("a record of redundancy", "it belongs to another step")),
    }
}

/// Reads a parity file and its record, and compares every byte.
pub(super) fn check(place: &dyn Place, commit: &Commit, rank: u32, row: u32) -> Result<()> {
    let record = record(place, commit.id, rank, row)?;
    if record.commit != commit.encode() {
        return Err(damaged("a record of redundancy", "it names another commit record"));
    }
    let name = format!("{}/{}", directory_of(commit.id), kept_file(rank, row, PARITY));
    let blob = place.open(&name)?.ok_or_else(|| damaged("parity", "its file is missing"))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    for (nth, crc) in record.parity_crcs.iter().enumerate() {
        blob.read((nth * CHUNK_BYTES) as u64, &mut chunk)?;
        if crc32c(&chunk) != *crc {
            return Err(damaged("parity", "it does not match its checksum"));
        }
    }
    Ok(())
}
