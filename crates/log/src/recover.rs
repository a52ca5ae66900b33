//! Recovery: which versions a pool holds, from its bytes alone.
//!
//! Reads only; running it again, or crashing inside it, changes nothing. What comes back is every version that
//! all ranks of its incarnation committed and whose segments are still there. On block devices the newest version
//! of each lane is also checked against its payload checksums, because there the commit record and the payload
//! may have reached the medium in any order; if it is not whole it was never acknowledged and is left out.

use std::collections::{BTreeMap, BTreeSet};

use forebay_tier::{Device, Result};

use crate::format::{RecordHeader, RecordKind, SegmentDf, Superblock, HEADER_BYTES};
use crate::scan::{LaneId, SegmentScan};
use crate::verify::payload_damage;

/// A segment found in the pool.
#[derive(Clone, Copy, Debug)]
pub struct SegmentInfo {
    /// Its header.
    pub df: SegmentDf,
    /// Newest version with records in it.
    pub last_version: u64,
}

impl SegmentInfo {
    /// The lane it belongs to.
    pub fn lane(&self) -> LaneId {
        LaneId { incarnation: self.df.incarnation, rank: self.df.rank }
    }
}

/// What one incarnation of the producers left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Its number.
    pub number: u32,
    /// Its ranks.
    pub size: u32,
    /// Its first version.
    pub base: u64,
    /// For each rank, one more than the last version it committed.
    pub committed: Vec<u64>,
    /// For each rank, whether its lane ended cleanly.
    pub ended: Vec<bool>,
}

impl Incarnation {
    /// One more than the last version that all ranks committed.
    pub fn complete(&self) -> u64 {
        self.committed.iter().copied().min().unwrap_or(self.base)
    }
}

/// What a pool holds.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// All live segments, by lane and then in order.
    pub segments: Vec<SegmentInfo>,
    /// Segments with a valid header that count no more: second copies of a segment that was being moved, and what
    /// was being reclaimed. Their headers have to be wiped before their space is used again.
    pub stale: Vec<SegmentInfo>,
    /// Incarnations that left segments, oldest first.
    pub incarnations: Vec<Incarnation>,
    /// First version that is retained.
    pub oldest: u64,
    /// One more than the last complete version.
    pub complete: u64,
}

struct LaneState {
    /// First version of which nothing was reclaimed.
    first_whole: Option<u64>,
    committed: Option<u64>,
    ended: bool,
}

/// Finds every segment header by looking at the start of each granule with [`Device::read`], which, unlike a
/// mapping, allocates no page where nothing was ever written. `last_version` is not filled in.
pub fn find_segments(device: &dyn Device, superblock: &Superblock) -> Result<Vec<SegmentInfo>> {
    let granule = superblock.granule_bytes;
    let mut out = Vec::new();
    let mut at = granule;
    let mut head = [0u8; std::mem::size_of::<SegmentDf>()];
    while at + granule <= superblock.capacity_bytes {
        device.read(at, &mut head)?;
        match SegmentDf::decode(&head, &superblock.uuid, at) {
            Some(df)
                if df.length_bytes >= HEADER_BYTES && at + df.length_bytes <= superblock.capacity_bytes =>
            {
                out.push(SegmentInfo { df, last_version: df.base_version });
                at += df.length_bytes.next_multiple_of(granule);
            }
            _ => at += granule,
        }
    }
    Ok(out)
}

/// The segments of each lane in order. Of two copies of one segment the one that lies first counts. Of a lane whose
/// chain has a gap only the newest run counts: what lies before the gap was being reclaimed.
pub fn lanes_of(segments: &[SegmentInfo]) -> BTreeMap<LaneId, Vec<SegmentInfo>> {
    let mut lanes: BTreeMap<LaneId, Vec<SegmentInfo>> = BTreeMap::new();
    for s in segments {
        lanes.entry(s.lane()).or_default().push(*s);
    }
    for chain in lanes.values_mut() {
        chain.sort_by_key(|s| (s.df.sequence, s.df.offset_bytes));
        chain.dedup_by_key(|s| s.df.sequence);
        let gap = chain.windows(2).rposition(|w| w[0].df.sequence + 1 != w[1].df.sequence);
        if let Some(gap) = gap {
            chain.drain(..=gap);
        }
    }
    lanes
}

/// Goes through a lane, also across damaged places. `see` gets each record with its offset.
pub fn walk_lane(
    device: &dyn Device,
    chain: &[SegmentInfo],
    mut see: impl FnMut(usize, u64, &RecordHeader<'_>),
    mut damaged: impl FnMut(usize, u64),
) {
    let mut next_record = 0;
    for (i, segment) in chain.iter().enumerate() {
        let mut scan = SegmentScan::new(device, &segment.df);
        scan.next_record = scan.next_record.max(next_record);
        loop {
            for (at, header) in scan.by_ref() {
                see(i, at.offset, &header);
            }
            let hole = scan.at;
            if scan.resync().is_none() {
                break;
            }
            damaged(i, segment.df.offset_bytes + hole);
        }
        next_record = scan.next_record;
    }
}

fn lane_state(device: &dyn Device, chain: &mut [SegmentInfo]) -> LaneState {
    let first_record = chain.first().map_or(0, |s| s.df.first_record);
    let base = chain.first().map_or(0, |s| s.df.base_version);
    let mut committed: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut pieces: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut ended = false;
    let mut last_versions: Vec<u64> = chain.iter().map(|s| s.last_version).collect();
    walk_lane(
        device,
        chain,
        |segment, offset, header| {
            let place = header.place();
            last_versions[segment] = last_versions[segment].max(place.version);
            match (header.kind(), header.commit()) {
                (RecordKind::Commit, Some(commit)) if header.is_committed() => {
                    committed.insert(place.version, (commit.first_record, commit.pieces));
                }
                (RecordKind::End, _) => ended = header.is_committed(),
                (RecordKind::Piece, _) => {
                    pieces.entry(place.version).or_default().push((place.sequence, offset));
                }
                _ => {}
            }
        },
        |_, _| {},
    );
    for (segment, last) in chain.iter_mut().zip(last_versions) {
        segment.last_version = last;
    }
    if !device.byte_addressable() {
        drop_unflushed_end(device, &mut committed, &pieces);
    }
    LaneState {
        first_whole: committed.iter().find(|(_, (first, _))| *first >= first_record).map(|(v, _)| *v),
        committed: committed.keys().next_back().map(|v| v + 1).filter(|end| *end > base),
        ended,
    }
}

/// On block devices: removes the newest commit if its version is not whole. Versions before it were flushed
/// before it began, so one look is enough.
fn drop_unflushed_end(
    device: &dyn Device,
    committed: &mut BTreeMap<u64, (u64, u64)>,
    pieces: &BTreeMap<u64, Vec<(u64, u64)>>,
) {
    let Some((&version, &(first, count))) = committed.iter().next_back() else { return };
    let empty = Vec::new();
    let own: Vec<u64> = pieces
        .get(&version)
        .unwrap_or(&empty)
        .iter()
        .filter(|(sequence, _)| *sequence >= first)
        .map(|(_, offset)| *offset)
        .collect();
    let whole = own.len() as u64 == count
        && own.iter().all(|offset| {
            let bytes = device.bytes(*offset..device.capacity());
            RecordHeader::decode(bytes).is_some_and(|h| payload_damage(&h, bytes).is_none())
        });
    if !whole {
        committed.remove(&version);
    }
}

/// What the pool holds. Reads every record header; on block devices also the newest payloads.
pub fn recover(device: &dyn Device, superblock: &Superblock) -> Result<Recovered> {
    let segments = find_segments(device, superblock)?;
    let mut lanes = lanes_of(&segments);
    let mut states: BTreeMap<LaneId, LaneState> = BTreeMap::new();
    let mut incarnations: BTreeMap<u32, Incarnation> = BTreeMap::new();
    for (lane, chain) in &mut lanes {
        let head = chain[0].df;
        states.insert(*lane, lane_state(device, chain));
        incarnations.entry(lane.incarnation).or_insert_with(|| Incarnation {
            number: lane.incarnation,
            size: head.group_size,
            base: head.base_version,
            committed: vec![head.base_version; head.group_size as usize],
            ended: vec![false; head.group_size as usize],
        });
    }
    for (lane, state) in &states {
        let incarnation = incarnations.get_mut(&lane.incarnation).expect("inserted above");
        let rank = lane.rank as usize;
        if rank < incarnation.committed.len() {
            incarnation.committed[rank] = state.committed.unwrap_or(incarnation.base);
            incarnation.ended[rank] = state.ended;
        }
    }
    let incarnations: Vec<Incarnation> = incarnations.into_values().collect();
    let complete = incarnations.last().map_or(0, Incarnation::complete);
    let oldest = oldest_retained(&incarnations, &states, complete);
    let live: Vec<SegmentInfo> = lanes.into_values().flatten().collect();
    let counts: BTreeSet<u64> = live.iter().map(|s| s.df.offset_bytes).collect();
    let stale = segments.into_iter().filter(|s| !counts.contains(&s.df.offset_bytes)).collect();
    Ok(Recovered { segments: live, stale, incarnations, oldest, complete })
}

/// The first version from which on nothing was reclaimed, going back through the incarnations.
fn oldest_retained(incarnations: &[Incarnation], states: &BTreeMap<LaneId, LaneState>, complete: u64) -> u64 {
    let mut oldest = complete;
    for incarnation in incarnations.iter().rev() {
        let from = (0..incarnation.size)
            .map(|rank| {
                states.get(&LaneId { incarnation: incarnation.number, rank }).and_then(|s| s.first_whole)
            })
            .try_fold(incarnation.base, |max, first| first.map(|f| max.max(f)));
        match from {
            Some(from) if from < oldest && incarnation.complete() >= oldest => {
                oldest = from;
                if from > incarnation.base {
                    break;
                }
            }
            // An incarnation that committed nothing has no version of its own and hides none.
            _ if incarnation.base == oldest => {}
            _ => break,
        }
    }
    oldest
}
