//! Looking at every byte: which records of committed versions are damaged, and where.

use std::collections::BTreeMap;

use forebay_tier::persist::checksum_ahead;
use forebay_tier::{watch, Device, Result};

use crate::format::{RecordHeader, RecordKind, Superblock, CHUNK_BYTES};
use crate::recover::{find_segments, lanes_of, walk_lane};

/// One damaged place.
#[derive(Clone, Debug, serde::Serialize)]
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

/// What a walk through one lane collects.
#[derive(Default)]
struct LaneCheck {
    pieces: BTreeMap<u64, Vec<u64>>,
    commits: BTreeMap<u64, (u64, u64)>,
    /// Commit records without their word, by version: crashes leave one at the end of a lane, damage anywhere.
    open: BTreeMap<u64, u64>,
    last_version: u64,
}

/// Reads every record and payload of the pool. Blocks for as long as that takes. Does not change anything.
pub fn verify(device: &dyn Device, superblock: &Superblock) -> Result<Report> {
    let mut report = Report::default();
    let lanes = lanes_of(&find_segments(device, superblock)?);
    let mut versions = std::collections::BTreeSet::new();
    for (lane, chain) in &lanes {
        let mut check = LaneCheck::default();
        let mut holes = Vec::new();
        walk_lane(
            device,
            chain,
            |_, offset, header| check_record(device, &mut report, &mut check, offset, header),
            |_, offset| holes.push(offset),
        );
        let end = check.commits.keys().next_back().copied();
        for offset in holes {
            report.damaged.push(Damage {
                version: None,
                rank: lane.rank,
                variable: None,
                offset,
                what: "no valid record header here, but records follow".into(),
            });
        }
        let first = chain[0].df.first_record;
        for (version, (first_record, pieces)) in &check.commits {
            versions.insert(*version);
            let found =
                check.pieces.get(version).map_or(0, |p| p.iter().filter(|s| *s >= first_record).count());
            if *first_record >= first && found as u64 != *pieces {
                report.damaged.push(Damage {
                    version: Some(*version),
                    rank: lane.rank,
                    variable: None,
                    offset: chain[0].df.offset_bytes,
                    what: format!("{found} of {pieces} pieces are readable"),
                });
            }
        }
        for (version, offset) in check.open.range(..check.last_version) {
            if !check.commits.contains_key(version) {
                report.damaged.push(Damage {
                    version: Some(*version),
                    rank: lane.rank,
                    variable: None,
                    offset: *offset,
                    what: "the commit word is damaged: later versions follow".into(),
                });
            }
        }
        // A version was begun if it has pieces, or lies between two that were committed.
        let from = check.commits.keys().next().copied().unwrap_or(0);
        let between = end.into_iter().flat_map(|end| from..end);
        let begun = check.pieces.keys().copied().filter(|v| *v < check.last_version).chain(between);
        let missing: std::collections::BTreeSet<u64> =
            begun.filter(|v| !check.commits.contains_key(v) && !check.open.contains_key(v)).collect();
        for version in missing {
            report.damaged.push(Damage {
                version: Some(version),
                rank: lane.rank,
                variable: None,
                offset: chain[0].df.offset_bytes,
                what: "the commit record is unreadable".into(),
            });
        }
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
    report.damaged.extend(what.map(|(at, what)| Damage {
        version: Some(place.version),
        rank: place.rank,
        variable: Some(header.name().to_string()),
        offset: offset + header.payload_offset() + at,
        what,
    }));
}
