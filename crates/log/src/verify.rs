//! Looking at every byte: which records of committed versions are damaged, and where.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use forebay_tier::persist::checksum_ahead;
use forebay_tier::{watch, Device, Result};

use crate::format::{RecordHeader, RecordKind, Superblock, CHUNK_BYTES};
use crate::recover::{begun_incarnations, find_segments, lanes_of, walk_lane};

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Damage {
    /// Version, where known.
    pub version: Option<u64>,
    /// Rank of the lane.
    pub rank: u32,
    /// Variable, where known.
    pub variable: Option<String>,
    /// Offset in the pool file.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// What a full look found.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Versions that at least one rank committed.
    pub versions: u64,
    /// Records read.
    pub records: u64,
    /// Payload bytes checked.
    pub bytes: u64,
    /// Payload bytes that carry no checksum and could not be checked.
    pub unchecked_bytes: u64,
    /// What is wrong.
    pub damaged: Vec<Damage>,
}

/// Offset of the first damaged chunk from the start of the payload, or None. `record` begins at the header.
pub fn payload_damage(header: &RecordHeader<'_>, record: &[u8]) -> Option<u64> {
    if !header.is_checked() {
        return None;
    }
    let from = header.payload_offset() as usize;
    let payload = &record[from..from + header.payload_bytes() as usize];
    let mut begins = (0..payload.len()).step_by(CHUNK_BYTES).enumerate();
    let bad = begins.find(|(i, begin)| {
        checksum_ahead(payload, *begin..(begin + CHUNK_BYTES).min(payload.len())) != header.crc(*i)
    })?;
    Some(bad.1 as u64)
}

/// Longest gap between two committed versions whose versions are listed one by one: where a number is damaged it may
/// have any length.
const GAP_MAX: u64 = 1000;

/// What a walk through one lane collects.
#[derive(Default)]
struct LaneCheck {
    pieces: BTreeMap<u64, Vec<u64>>,
    commits: BTreeMap<u64, (u64, u64)>,
    /// Commit records without their word, by version: crashes leave one at the end of a lane, damage anywhere.
    open: BTreeMap<u64, u64>,
    last_version: u64,
    /// Damaged payloads, with version and number of their records.
    payloads: Vec<(u64, u64, Damage)>,
}

impl LaneCheck {
    /// Versions that are not whole, in a lane whose first record is `first`: where that is known, and what is wrong.
    fn damaged_versions(&self, first: u64) -> Vec<(u64, Option<u64>, String)> {
        let mut damaged = Vec::new();
        for (version, (first_record, pieces)) in &self.commits {
            let known = self.pieces.get(version).into_iter().flatten();
            let found = known.filter(|sequence| *sequence >= first_record).count();
            if *first_record >= first && found as u64 != *pieces {
                damaged.push((*version, None, format!("{found} of {pieces} pieces are readable")));
            }
        }
        for (version, offset) in self.open.range(..self.last_version) {
            if !self.commits.contains_key(version) {
                let what = "the commit word is damaged: later versions follow";
                damaged.push((*version, Some(*offset), what.into()));
            }
        }
        let what = "the commit record is unreadable";
        let is_lost = |version: &u64| !self.commits.contains_key(version) && !self.open.contains_key(version);
        // A version was begun if it lies between two that were committed, or has pieces.
        for (before, end) in self.commits.keys().zip(self.commits.keys().skip(1)) {
            let between = before + 1..*end;
            if end - before > GAP_MAX {
                let lost = end - before - 1 - self.open.range(between).count() as u64;
                let what = format!("the commit records of {lost} versions up to this one are unreadable");
                damaged.push((end - 1, None, what));
            } else {
                damaged.extend(between.filter(is_lost).map(|version| (version, None, what.into())));
            }
        }
        let ends = (self.commits.keys().next(), self.commits.keys().next_back());
        let is_between =
            |version: &u64| ends.0.is_some_and(|first| first < version) && ends.1 > Some(version);
        let begun = self.pieces.keys().copied().filter(|version| *version < self.last_version);
        let begun = begun.filter(|version| !is_between(version) && is_lost(version));
        damaged.extend(begun.map(|version| (version, None, what.into())));
        damaged
    }

    /// The damaged payloads of committed versions. A producer that is killed leaves payloads of the version that was
    /// open, also of one that was aborted and begun again, as they happened to be.
    fn damaged_payloads(&mut self) -> impl Iterator<Item = Damage> + '_ {
        let LaneCheck { commits, payloads, .. } = self;
        let counts =
            |version: &u64, sequence: u64| commits.get(version).is_some_and(|(first, _)| sequence >= *first);
        payloads
            .drain(..)
            .filter(move |(version, sequence, _)| counts(version, *sequence))
            .map(|(_, _, damage)| damage)
    }
}

/// Reads every record and payload of the pool. Blocks for as long as that takes. Does not change anything.
pub fn verify(device: &dyn Device, superblock: &Superblock) -> Result<Report> {
    let mut report = Report::default();
    let lanes = lanes_of(&find_segments(device, superblock)?);
    let incarnations = begun_incarnations(device, superblock, &lanes)?;
    let mut versions = BTreeSet::new();
    for (lane, chain) in &lanes {
        let mut check = LaneCheck::default();
        // Each with the number of commits before it. Behind the last commit stand records of a version that was never
        // acknowledged, of which a power failure leaves any.
        let (mut holes, commits) = (Vec::new(), RefCell::new(Vec::new()));
        // Versions from here on are those of later incarnations: what this lane has of them is freed piece by piece.
        let later = incarnations.range(lane.incarnation + 1..).map(|(_, incarnation)| incarnation.base);
        let end_of_lane = later.min().unwrap_or(u64::MAX);
        let counts = |header: &RecordHeader<'_>| header.place().version < end_of_lane;
        walk_lane(
            device,
            chain,
            |_, offset, header| match counts(header) {
                true => {
                    check_record(device, &mut report, &mut check, offset, header);
                    if header.kind() == RecordKind::Commit && header.is_committed() {
                        commits.borrow_mut().push(header.place().version);
                    }
                }
                false => report.records += 1,
            },
            |_, offset| holes.push((offset, commits.borrow().len())),
        );
        let commits = commits.into_inner();
        report.damaged.extend(check.damaged_payloads());
        let damage =
            |version, offset, what: String| Damage { version, rank: lane.rank, variable: None, offset, what };
        let hole = "no valid record header here, but records follow";
        let holes = holes.into_iter().filter_map(|(offset, before)| Some((offset, *commits.get(before)?)));
        report.damaged.extend(holes.map(|(offset, version)| damage(Some(version), offset, hole.into())));
        let head = chain[0].df;
        let versions_damaged = check.damaged_versions(head.first_record).into_iter();
        report.damaged.extend(
            versions_damaged.map(|(version, offset, what)| {
                damage(Some(version), offset.unwrap_or(head.offset_bytes), what)
            }),
        );
        versions.extend(check.commits.keys().copied());
    }
    report.versions = versions.len() as u64;
    Ok(report)
}

fn check_record(
    device: &dyn Device,
    report: &mut Report,
    check: &mut LaneCheck,
    offset: u64,
    header: &RecordHeader<'_>,
) {
    report.records += 1;
    let place = header.place();
    check.last_version = check.last_version.max(place.version);
    match (header.kind(), header.commit()) {
        (RecordKind::Commit, Some(commit)) if header.is_committed() => {
            check.commits.insert(place.version, (commit.first_record, commit.pieces));
        }
        (RecordKind::Commit, _) => {
            check.open.insert(place.version, offset);
        }
        _ => {}
    }
    if header.kind() != RecordKind::Piece {
        return;
    }
    check.pieces.entry(place.version).or_default().push(place.sequence);
    if !header.is_checked() {
        report.unchecked_bytes += header.payload_bytes();
        return;
    }
    report.bytes += header.payload_bytes();
    let record = device.bytes(offset..offset + header.payload_offset() + header.payload_bytes());
    let (damage, lost) = watch(|| payload_damage(header, record));
    let what = match (damage, lost) {
        (_, Some(lost)) => Some((damage.unwrap_or(0), lost.to_string())),
        (Some(at), None) => {
            Some((at, format!("the payload does not match its checksum in the chunk at byte {at}")))
        }
        (None, None) => None,
    };
    check.payloads.extend(what.map(|(at, what)| {
        let damage = Damage {
            version: Some(place.version),
            rank: place.rank,
            variable: Some(header.name().to_string()),
            offset: offset + header.payload_offset() + at,
            what,
        };
        (place.version, place.sequence, damage)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(commits: &[u64], open: &[u64], pieces: &[u64]) -> Vec<u64> {
        let check = LaneCheck {
            commits: commits.iter().map(|version| (*version, (*version, 0))).collect(),
            open: open.iter().map(|version| (*version, 0)).collect(),
            pieces: pieces.iter().map(|version| (*version, Vec::new())).collect(),
            last_version: commits.iter().chain(open).chain(pieces).copied().max().unwrap_or(0),
            payloads: Vec::new(),
        };
        check.damaged_versions(0).into_iter().map(|(version, ..)| version).collect()
    }

    #[test]
    fn versions_without_a_commit_record_are_listed() {
        assert_eq!(versions(&[3, 4, 7], &[], &[]), [5, 6]);
        assert_eq!(versions(&[3, 7], &[5, 9], &[1, 6, 8, 9]), [5, 4, 6, 1, 8]);
        assert_eq!(versions(&[], &[], &[2, 4]), [2], "of the last one nothing is known");
    }

    /// As a damaged number makes it: what is listed takes memory.
    #[test]
    fn a_gap_of_any_length_is_one_line() {
        assert_eq!(versions(&[3, 1 << 40], &[7], &[8]), [7, (1 << 40) - 1]);
    }
}
