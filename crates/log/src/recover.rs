//! Recovery: which versions a pool holds, from its bytes alone.
//!
//! Reads only; running it again, or crashing inside it, changes nothing. What comes back is every version that
//! all ranks of its incarnation committed and whose segments are still there. On block devices the newest version
//! of each lane is also checked against its payload checksums, because there the commit record and the payload
//! may have reached the medium in any order; if it is not whole it was never acknowledged and is left out.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_tier::{watch, Device, Error, Horizon, Kind, Result, TierKind};

use crate::format::{
    CommitDf, IncarnationDf, RecordHeader, RecordKind, SegmentDf, Superblock, HEADER_BYTES,
    INCARNATION_OFFSETS, RECORD_ALIGN,
};
use crate::scan::{LaneId, SegmentScan};
use crate::verify::payload_damage;

/// A segment found in the pool.
#[derive(Clone, Copy, Debug)]
pub struct SegmentInfo {
    /// Its header.
    pub df: SegmentDf,
    /// Newest version with records in it.
    pub last_version: u64,
    /// What its header and records take.
    pub filled_bytes: u64,
}

impl SegmentInfo {
    /// The lane it belongs to.
    pub fn lane(&self) -> LaneId {
        LaneId { incarnation: self.df.incarnation, rank: self.df.rank }
    }

    /// A record with this header lies in it, at `offset` of the pool.
    fn note(&mut self, offset: u64, header: &RecordHeader<'_>) {
        self.last_version = self.last_version.max(header.place().version);
        let end = offset + header.total_bytes() - self.df.offset_bytes;
        self.filled_bytes = self.filled_bytes.max(end.min(self.df.length_bytes));
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
    /// Segments with a valid header that count no more: second copies of a segment that was being moved. Their
    /// headers have to be wiped before their space is used again, and not before [`take_over`].
    pub stale: Vec<SegmentInfo>,
    /// Offset of the newest commit record of each lane.
    pub newest_commits: Vec<u64>,
    /// Incarnations that left segments, and the newest one, oldest first.
    pub incarnations: Vec<Incarnation>,
    /// First version that is retained.
    pub oldest: u64,
    /// One more than the last complete version.
    pub complete: u64,
}

struct LaneState {
    /// First version of which nothing was reclaimed.
    first_whole: Option<u64>,
    /// One more than the last version that it committed, as far as the lane tells.
    committed: Option<u64>,
    newest_commit: Option<u64>,
    ended: bool,
}

/// The segment whose header is `head`, at `offset`. None where there is no header, or where the segment that it tells
/// of does not lie within one pool.
pub fn segment_in(device: &dyn Device, head: &[u8], uuid: &[u8; 16], offset: u64) -> Option<SegmentDf> {
    let available = device.pool_end(offset).saturating_sub(offset);
    SegmentDf::decode(head, uuid, offset).filter(|df| (HEADER_BYTES..=available).contains(&df.length_bytes))
}

/// Finds every segment header by looking at the start of each granule with [`Device::read`], which, unlike a
/// mapping, allocates no page where nothing was ever written; holes are passed over. Of the records nothing is said
/// yet.
pub fn find_segments(device: &dyn Device, superblock: &Superblock) -> Result<Vec<SegmentInfo>> {
    let granule = superblock.granule_bytes;
    let mut out = Vec::new();
    let next = |at: u64| device.after_hole(at) / granule * granule;
    let mut at = next(granule);
    let mut head = [0u8; std::mem::size_of::<SegmentDf>()];
    while at + granule <= superblock.capacity_bytes {
        match device.read(at, &mut head) {
            // On persistent memory that is a bad block: what stands there is lost, and the rest of the pool is not.
            Err(e) if e.kind() == Kind::Io && device.kind() == TierKind::Pmem => head.fill(0),
            read => read?,
        }
        match segment_in(device, &head, &superblock.uuid, at) {
            Some(df) if df.length_bytes <= superblock.capacity_bytes - at => {
                out.push(SegmentInfo { df, last_version: df.base_version, filled_bytes: HEADER_BYTES });
                at += df.length_bytes.next_multiple_of(granule);
            }
            _ => at = next(at + granule),
        }
    }
    Ok(out)
}

/// The segments of each lane in order. Of two copies of one segment the one that lies first counts. A chain may
/// have gaps: a header may be lost with the version that was being written, or be damaged.
pub fn lanes_of(segments: &[SegmentInfo]) -> BTreeMap<LaneId, Vec<SegmentInfo>> {
    let mut lanes: BTreeMap<LaneId, Vec<SegmentInfo>> = BTreeMap::new();
    for s in segments {
        lanes.entry(s.lane()).or_default().push(*s);
    }
    for chain in lanes.values_mut() {
        chain.sort_by_key(|s| (s.df.sequence, s.df.offset_bytes));
        chain.dedup_by_key(|s| s.df.sequence);
    }
    lanes
}

/// Goes through a lane, also across damaged places. `see` gets each record with its offset. Returns the offset of the
/// first segment in which the medium did not give a page.
pub fn walk_lane(
    device: &dyn Device,
    chain: &[SegmentInfo],
    mut see: impl FnMut(usize, u64, &RecordHeader<'_>),
    mut damaged: impl FnMut(usize, u64),
) -> Option<u64> {
    let (mut next_record, mut lost) = (0, None);
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
        if scan.met_lost_page() {
            lost = lost.or(Some(segment.df.offset_bytes));
        }
    }
    lost
}

/// A commit of a lane.
#[derive(Clone, Copy)]
struct Committed {
    first_record: u64,
    pieces: u64,
    /// Place of the commit record's segment in the chain.
    segment: usize,
    /// Offset of the commit record.
    offset: u64,
    /// A record between the commit before and this one is unreadable, and others follow it.
    behind_hole: bool,
}

/// A piece of a lane.
struct PieceAt {
    sequence: u64,
    /// The record, which lies in one segment and so in one pool.
    record: Range<u64>,
}

fn lane_state(device: &dyn Device, chain: &mut [SegmentInfo]) -> Result<LaneState> {
    let base = chain.first().map_or(0, |s| s.df.base_version);
    let mut committed: BTreeMap<u64, Committed> = BTreeMap::new();
    let mut pieces: BTreeMap<u64, Vec<PieceAt>> = BTreeMap::new();
    let mut ended = false;
    let hole = Cell::new(false);
    let mut contents: Vec<SegmentInfo> = chain.to_vec();
    let lost = walk_lane(
        device,
        chain,
        |segment, offset, header| {
            let place = header.place();
            contents[segment].note(offset, header);
            match (header.kind(), header.commit()) {
                (RecordKind::Commit, Some(commit)) if header.is_committed() => {
                    let CommitDf { first_record, pieces, .. } = commit;
                    let behind_hole = hole.replace(false);
                    let commit = Committed { first_record, pieces, segment, offset, behind_hole };
                    committed.insert(place.version, commit);
                }
                (RecordKind::End, _) => ended = header.is_committed(),
                (RecordKind::Piece, _) => {
                    let record = offset..offset + header.payload_offset() + header.payload_bytes();
                    pieces
                        .entry(place.version)
                        .or_default()
                        .push(PieceAt { sequence: place.sequence, record });
                }
                _ => {}
            }
        },
        |_, _| hole.set(true),
    );
    chain.copy_from_slice(&contents);
    if !device.byte_addressable() {
        // A disk may give the page the next time, and then it shows what was acknowledged.
        if let Some(offset) = lost {
            return Err(Error::new(Kind::Io, "a page of a segment could not be read")
                .with("pool", device.path().display())
                .with("segment_offset", offset)
                .hint(
                    "recovery needs every record: check the disk (kernel log), then open the space again",
                ));
        }
        drop_unflushed_end(device, chain, &mut committed, &pieces)?;
    }
    // Of a chain with a gap before its newest commit, the part before the gap is lost: headers are persistent
    // before the commits of what they head, so this one was damaged.
    let newest = committed.values().next_back().map(|commit| commit.segment);
    let first_record = newest.map_or(0, |newest| chain[run_start(chain, newest)].df.first_record);
    // A version is begun after the one before was committed. So any record tells of commits, also of those whose
    // segments were released.
    let begun = chain.iter().map(|s| s.last_version).max().unwrap_or(base);
    let end = committed.keys().next_back().map_or(begun, |v| begun.max(v + 1));
    // Of a chain with a gap behind its newest commit, where a version after the gap tells of another commit in it, the
    // part before the gap was released: it is the old place of a segment that had been moved.
    let is_left_over = newest.is_some_and(|newest| run_start(chain, chain.len() - 1) > newest)
        && committed.keys().next_back().is_some_and(|v| begun > v + 1);
    Ok(LaneState {
        first_whole: committed
            .iter()
            .find(|(_, commit)| commit.first_record >= first_record && !is_left_over)
            .map(|(v, _)| *v),
        committed: Some(end).filter(|end| *end > base),
        newest_commit: committed.values().next_back().map(|commit| commit.offset),
        ended,
    })
}

/// The first segment from which on the chain has no gap up to segment `to`.
fn run_start(chain: &[SegmentInfo], to: usize) -> usize {
    let joins = |i: &usize| chain[*i - 1].df.sequence + 1 == chain[*i].df.sequence;
    (1..=to).rev().take_while(joins).last().map_or(to, |i| i - 1)
}

/// On block devices: removes the newest commit if its version is not whole, or the segments and records between it
/// and the commit before are not all there, also those that were given up: readers do not pass over a hole. Versions
/// before it were flushed before it began, so one look is enough.
fn drop_unflushed_end(
    device: &dyn Device,
    chain: &[SegmentInfo],
    committed: &mut BTreeMap<u64, Committed>,
    pieces: &BTreeMap<u64, Vec<PieceAt>>,
) -> Result<()> {
    let mut newest = committed.iter().rev();
    let Some((&version, &newest_commit)) = newest.next() else { return Ok(()) };
    let Committed { first_record, pieces: count, segment, behind_hole, .. } = newest_commit;
    // Only the version before counts: an older one stands in the old place of a segment that had been moved and, with
    // all behind it, released.
    let before = newest.next().filter(|(before, _)| **before + 1 == version);
    let joins = before.is_none_or(|(_, before)| run_start(chain, segment) <= before.segment);
    let own = || pieces.get(&version).into_iter().flatten().filter(|piece| piece.sequence >= first_record);
    let mut whole = own().count() as u64 == count;
    for piece in own() {
        let bytes = device.bytes(piece.record.clone());
        let (is_whole, lost) =
            watch(|| RecordHeader::decode(bytes).is_some_and(|h| payload_damage(&h, bytes).is_none()));
        if let Some(page) = lost {
            // As above: not to be taken for a version that was never whole.
            return Err(page.error());
        }
        whole &= is_whole;
    }
    if behind_hole || !(joins && whole) {
        committed.remove(&version);
    }
    Ok(())
}

/// What the pool holds. Reads every record header; on block devices also the newest payloads.
pub fn recover(device: &dyn Device, superblock: &Superblock) -> Result<Recovered> {
    let segments = find_segments(device, superblock)?;
    let mut lanes = lanes_of(&segments);
    let mut incarnations = begun_incarnations(device, superblock, &lanes)?;
    let mut states: BTreeMap<LaneId, LaneState> = BTreeMap::new();
    for (lane, chain) in &mut lanes {
        states.insert(*lane, lane_state(device, chain)?);
    }
    for (lane, state) in &states {
        let incarnation = incarnations.get_mut(&lane.incarnation).expect("one of each lane");
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
    let newest_commits = states.values().filter_map(|state| state.newest_commit).collect();
    Ok(Recovered { segments: live, stale, newest_commits, incarnations, oldest, complete })
}

/// The incarnations that left segments, and the newest one, none of which has committed anything.
pub(crate) fn begun_incarnations(
    device: &dyn Device,
    superblock: &Superblock,
    lanes: &BTreeMap<LaneId, Vec<SegmentInfo>>,
) -> Result<BTreeMap<u32, Incarnation>> {
    let begun = |number, size: u32, base| Incarnation {
        number,
        size,
        base,
        committed: vec![base; size as usize],
        ended: vec![false; size as usize],
    };
    let mut incarnations = BTreeMap::new();
    for (lane, chain) in lanes {
        let head = chain[0].df;
        incarnations
            .entry(lane.incarnation)
            .or_insert_with(|| begun(lane.incarnation, head.group_size, head.base_version));
    }
    if let Some(newest) = newest_incarnation(device, superblock)? {
        incarnations
            .entry(newest.number)
            .or_insert_with(|| begun(newest.number, newest.group_size, newest.base_version));
    }
    Ok(incarnations)
}

/// What [`take_over`] noted last.
fn newest_incarnation(device: &dyn Device, superblock: &Superblock) -> Result<Option<IncarnationDf>> {
    let mut newest: Option<IncarnationDf> = None;
    let mut bytes = [0u8; std::mem::size_of::<IncarnationDf>()];
    for offset in INCARNATION_OFFSETS {
        device.read(offset, &mut bytes)?;
        let found = IncarnationDf::decode(&bytes, &superblock.uuid);
        newest = found.into_iter().chain(newest).max_by_key(|df| df.number);
    }
    Ok(newest)
}

/// The first step of a new incarnation, before it writes anything: makes what recovery found certain, and notes the
/// incarnation, durably as the horizon says.
///
/// Recovery reads memory, and memory may know more than the medium: a producer killed between a commit word and its
/// flush, or between a wipe and its flush, leaves both in the caches. What goes on from there must not be there
/// without them after the next power failure. The note keeps the number from being given twice, and the progress
/// when all segments of earlier incarnations have been released.
///
/// # Errors
/// Those of the device.
pub fn take_over(
    device: &dyn Device,
    superblock: &Superblock,
    found: &Recovered,
    number: u32,
    group_size: u32,
    base_version: u64,
) -> Result<()> {
    let durable = superblock.horizon != Horizon::None;
    if durable && !found.incarnations.is_empty() {
        make_certain(device, superblock, &found.newest_commits)?;
    }
    let df = IncarnationDf { magic: 0, number, uuid: superblock.uuid, base_version, group_size, crc: 0 };
    let at = INCARNATION_OFFSETS[number as usize % 2];
    device.write(at, bytemuck::bytes_of(&df.sealed()))?;
    if durable {
        device.persist_written(at..at + std::mem::size_of::<IncarnationDf>() as u64)?;
    }
    Ok(())
}

/// Persists headers, also wiped ones, of which the identity still stands there, and the newest commits. Of a block
/// device one flush takes all, its payloads too.
fn make_certain(device: &dyn Device, superblock: &Superblock, newest_commits: &[u64]) -> Result<()> {
    // What flushes took beyond the range that they were asked for: whole pools.
    let mut flushed: Vec<Range<u64>> = Vec::new();
    let granule = superblock.granule_bytes;
    let mut head = [0u8; std::mem::size_of::<SegmentDf>()];
    for at in (1..superblock.capacity_bytes / granule).map(|i| i * granule) {
        if flushed.iter().any(|pool| pool.contains(&at)) {
            continue;
        }
        device.read(at, &mut head)?;
        let df: SegmentDf = bytemuck::pod_read_unaligned(&head);
        if df.uuid == superblock.uuid {
            let header = at..at + head.len() as u64;
            device.persist(header.clone())?;
            flushed.extend(Some(device.persisted_with(header.clone())).filter(|taken| *taken != header));
        }
    }
    for commit in newest_commits.iter().filter(|commit| !flushed.iter().any(|pool| pool.contains(commit))) {
        device.persist(*commit..*commit + RECORD_ALIGN)?;
    }
    Ok(())
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
