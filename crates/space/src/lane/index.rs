//! What a version holds: every process builds this for itself from the record headers in the lanes.
//!
//! Names are not copied: an entry points at the record header in the pool, which the reader's lease keeps there.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use forebay_log::format::{
    RecordDf, RecordHeader, RecordKind, SegmentDf, BLOCK_BYTES, CHUNK_BYTES, COMMIT_RECORD_BYTES,
    HEADER_BYTES,
};
use forebay_log::recover::segment_in;
use forebay_log::{Dims, Dtype, LaneId, RecordRef, SegmentScan};
use forebay_tier::persist::checksum_ahead;
use forebay_tier::{watched, Device, Error, Kind, Result};
use rustc_hash::{FxHashMap, FxHasher};
use serde::Serialize;
use smallvec::SmallVec;

use crate::control::{FoundSegment, GranuleState, LANES_MAX};
use crate::description::{is_reserved, Description};
use crate::open::attach::Attachment;
use forebay_log::nd_box::{concatenate, format_shape, NdBox, CONCAT};

/// A variable of a version.
#[derive(Clone, Debug, Serialize)]
pub struct VariableInfo {
    /// Its name.
    pub name: String,
    /// Element type, NumPy's name.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Names of the dimensions and attributes, as far as its writers gave them.
    #[serde(flatten)]
    pub description: Description,
    /// The boxes that ranks put.
    pub pieces: Vec<PieceInfo>,
}

/// One rank's box of a variable.
#[derive(Clone, Debug, Serialize)]
pub struct PieceInfo {
    /// The rank that put it.
    pub rank: u32,
    /// First element.
    pub start: Vec<u64>,
    /// Extents.
    pub count: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

fn dtype_name<S: serde::Serializer>(dtype: &Dtype, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

const NONE: u32 = u32::MAX;

/// How many entries ahead of a get the header is fetched.
const PREFETCH_ENTRIES: usize = 4;

/// How much of a record its header is guessed to take.
const PREFETCH_HEADER_BYTES: u64 = 128;

/// Payloads up to this size are fetched one entry ahead; of longer ones the processor itself guesses what comes next.
const PREFETCH_PAYLOAD_BYTES_MAX: usize = 16 << 10;

/// A piece in the index.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    record: RecordRef,
    pub rank: u32,
    /// Next entry whose name has the same hash.
    next: u32,
    /// Its one chunk, or all of its chunks, matched their checksums.
    verified: bool,
}

/// The index of one version.
#[derive(Default)]
pub(crate) struct VersionIndex {
    pub version: u64,
    bring: Bring,
    entries: Vec<Entry>,
    by_name: FxHashMap<u64, u32>,
    /// Hashes of the entries' names, while the index is built.
    hashes: Vec<u64>,
    /// Pieces of the lane being read, with number and hash of the name; those of an aborted try may be among them.
    found: Vec<(u64, u64, RecordRef)>,
    /// Chunks seen to match, for pieces of several chunks that were only read in part.
    chunks: FxHashMap<u32, Vec<u64>>,
    pub payload_bytes: u64,
}

/// What of the segments is brought into memory while it is looked at what a version holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bring {
    /// All of them, with one call each: their payloads are wanted next.
    #[default]
    Segments,
    /// The headers alone: the version may be larger than the memory.
    Headers,
}

/// Where the scan of a lane stands: at the first record of `version`.
#[derive(Clone, Copy)]
pub(crate) struct LaneCursor {
    segment: SegmentDf,
    at: u64,
    next_record: u64,
    version: u64,
}

fn hash_name(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

/// Reads what version `version` holds, going on at `cursors` where they stand at it. The caller holds a lease.
/// `old` is an index of no more use, whose memory is used again.
pub(crate) fn build(
    space: &Arc<Attachment>,
    version: u64,
    bring: Bring,
    cursors: &mut FxHashMap<LaneId, LaneCursor>,
    old: VersionIndex,
) -> Result<VersionIndex> {
    let (incarnation, size) = producers_of(space, version)?.ok_or_else(|| {
        Error::new(Kind::VersionGone, format!("version {version} of space {} has been dropped", space.name))
    })?;
    let mut index = old;
    watched(|| {
        index = std::mem::take(&mut index).emptied();
        (index.version, index.bring) = (version, bring);
        (0..size).try_for_each(|rank| read_lane(space, LaneId { incarnation, rank }, cursors, &mut index))
    })?;
    index.link_names();
    Ok(index)
}

/// Incarnation and size of the group that produced a retained version. A start of the writers that the control segment
/// does not remember any more is found by the headers of its segments: the newest group one of whose segments begins at
/// or below the version. Errors: those of reading the headers.
pub(crate) fn producers_of(space: &Attachment, version: u64) -> Result<Option<(u32, u32)>> {
    let control = &space.control;
    let remembered = control.remembered_producers_of(version);
    if remembered.is_some() || version < control.oldest() {
        return Ok(remembered);
    }
    let mut newest: Option<(u32, u32)> = None;
    for granule in 1..control.granules() {
        let GranuleState::Segment { lane, .. } = control.granule_state(granule) else { continue };
        if newest.is_some_and(|(incarnation, _)| incarnation >= lane.incarnation) {
            continue;
        }
        let header = segment_at(space, granule, Bring::Headers)?;
        let begins = |df: &SegmentDf| df.incarnation == lane.incarnation && df.base_version <= version;
        if let Some(df) = header.filter(begins) {
            newest = Some((df.incarnation, df.group_size.min(LANES_MAX as u32)));
        }
    }
    Ok(newest)
}

/// Reads what one lane holds of the version of `index`.
fn read_lane(
    space: &Attachment,
    lane: LaneId,
    cursors: &mut FxHashMap<LaneId, LaneCursor>,
    index: &mut VersionIndex,
) -> Result<()> {
    let version = index.version;
    // No lease held the segment in which the cursor stands: it may have been moved, or freed.
    let holds = |cursor: &&LaneCursor| cursor.version == version && is_held(space, lane, cursor);
    let cursor = cursors.get(&lane).filter(holds).copied();
    let next = match cursor.map(|cursor| scan_version(space, lane, version, cursor, index)) {
        None => scan_located(space, lane, version, index)?,
        Some(Err(e)) if e.kind() == Kind::Damaged => scan_located(space, lane, version, index)?,
        Some(done) => done?,
    };
    cursors.insert(lane, next);
    Ok(())
}

/// Versions that are retained. The control segment has no checksum: where its counts are damaged, no more come back
/// than the pools can hold and its segments speak of, so that a loop over them comes to an end.
pub(crate) fn retained(space: &Attachment) -> Range<u64> {
    let control = &space.control;
    let complete = control.complete();
    let oldest = control.oldest().min(complete);
    // Each of them takes a commit record of each rank.
    let versions_max = space.superblock.capacity_bytes / COMMIT_RECORD_BYTES;
    if complete - oldest <= versions_max {
        return oldest..complete;
    }
    let segments = (1..control.granules())
        .filter(|index| matches!(control.granule_state(*index), GranuleState::Segment { .. }));
    let newest = segments.map(|index| control.granule_last(index)).max();
    let complete = newest.map_or(0, |newest| newest.saturating_add(1)).min(complete);
    let oldest = oldest.min(complete);
    oldest.max(complete.saturating_sub(versions_max))..complete
}

fn unreadable(space: &Attachment, lane: LaneId, version: u64, offset: u64) -> Error {
    Error::new(
        Kind::Damaged,
        format!("version {version} of space {} is committed but not readable", space.name),
    )
    .with("rank", lane.rank)
    .with("incarnation", lane.incarnation)
    .with("pool_offset", offset)
    .hint(format!("`forebay verify {}` lists every damaged record", space.name))
}

/// The segment that begins at a granule, mapped for reading. Errors: those of [`Device::can_read`], for the whole
/// segment, because its record headers lie anywhere in it; where headers alone are brought in, for its own.
fn segment_at(space: &Attachment, granule: usize, bring: Bring) -> Result<Option<SegmentDf>> {
    let offset = granule as u64 * space.superblock.granule_bytes;
    match bring {
        Bring::Segments => space.populate(offset..offset + space.superblock.granule_bytes),
        Bring::Headers => space.device.populate_read(offset..offset + HEADER_BYTES),
    }
    space.device.can_read(offset..offset + HEADER_BYTES)?;
    let head = space.device.bytes(offset..offset + HEADER_BYTES);
    let found = watched(|| Ok(segment_in(&*space.device, head, &space.superblock.uuid, offset)))?;
    let Some(df) = found else { return Ok(None) };
    if bring == Bring::Headers {
        return Ok(Some(df));
    }
    let segment = offset..offset + df.length_bytes;
    space.populate(segment.clone());
    space.device.can_read(segment)?;
    Ok(Some(df))
}

/// The header of a segment of a lane that the table of granules names. Its place may have got another owner between the
/// look at the table and this one.
fn header_of(
    space: &Attachment,
    lane: LaneId,
    found: Option<FoundSegment>,
    bring: Bring,
) -> Result<Option<SegmentDf>> {
    let Some(FoundSegment { granule, sequence }) = found else { return Ok(None) };
    let df = segment_at(space, granule, bring)?;
    Ok(df.filter(|df| (df.incarnation, df.rank, df.sequence) == (lane.incarnation, lane.rank, sequence)))
}

/// The first segment of a lane that holds records of `version` or later.
fn locate(space: &Attachment, lane: LaneId, version: u64, bring: Bring) -> Result<LaneCursor> {
    let found = space.control.find_segment(lane, |_, last| last >= version);
    header_of(space, lane, found, bring)?
        .map(|segment| LaneCursor { segment, at: HEADER_BYTES, next_record: segment.first_record, version })
        .ok_or_else(|| unreadable(space, lane, version, 0))
}

/// How often a scan begins again because segments moved under it, or places before them changed hands. The lease keeps
/// what it looks for; what still cannot be read then is damaged.
const SCANS_MAX: usize = 16;

fn scan_located(
    space: &Attachment,
    lane: LaneId,
    version: u64,
    index: &mut VersionIndex,
) -> Result<LaneCursor> {
    let mut tries = 0;
    loop {
        tries += 1;
        match locate(space, lane, version, index.bring)
            .and_then(|at| scan_version(space, lane, version, at, index))
        {
            Err(e) if e.kind() != Kind::Damaged || tries == SCANS_MAX => return Err(e),
            Err(_) => {}
            done => return done,
        }
    }
}

/// Whether the segment is still where it was read, and stays there for as long as the caller's lease. A place that is
/// being left does not count: a cursor from before the lease may stand in one whose mover has seen no lease.
fn is_still_there(space: &Attachment, lane: LaneId, segment: &SegmentDf) -> bool {
    let granule = (segment.offset_bytes / space.superblock.granule_bytes) as usize;
    space.control.is_segment_of(granule, lane) && space.control.granule_segment(granule).0 == segment.sequence
}

/// Whether the version at which the cursor stands has records in its segment, so that the caller's lease on that
/// version holds the segment where it is.
fn is_held(space: &Attachment, lane: LaneId, cursor: &LaneCursor) -> bool {
    let granule = (cursor.segment.offset_bytes / space.superblock.granule_bytes) as usize;
    is_still_there(space, lane, &cursor.segment) && space.control.granule_last(granule) >= cursor.version
}

/// Moves a scan that a lost page ended to what follows; what was on the page is missed by who counts the pieces.
fn is_behind_lost_page(scan: &mut SegmentScan<'_>) -> bool {
    scan.met_lost_page() && scan.resync().is_some()
}

/// Brings in the header of the record at `from` and nothing else, where it lies on a medium. Errors: those of
/// [`Device::can_read`].
fn bring_header(space: &Attachment, segment: &SegmentDf, from: u64) -> Result<()> {
    let (end, fixed) = (segment.offset_bytes + segment.length_bytes, from + size_of::<RecordDf>() as u64);
    if space.is_in_memory(from) || fixed > end {
        return Ok(());
    }
    let bring = |range: Range<u64>| {
        space.device.populate_read(range.clone());
        space.device.can_read(range)
    };
    let block = from..(from + BLOCK_BYTES).min(end);
    bring(block.clone())?;
    let df: RecordDf = bytemuck::pod_read_unaligned(space.device.bytes(from..fixed));
    let meta_end = (from + u64::from(df.meta_bytes)).min(end);
    match meta_end > block.end {
        true => bring(block.end..meta_end),
        false => Ok(()),
    }
}

/// The scan's next record of `version` or later.
fn next_record<'a>(
    space: &Attachment,
    scan: &mut SegmentScan<'a>,
    segment: &SegmentDf,
    version: u64,
    bring: Bring,
) -> Result<Option<(RecordRef, RecordHeader<'a>)>> {
    loop {
        if bring == Bring::Headers {
            bring_header(space, segment, segment.offset_bytes + scan.at)?;
        }
        match scan.next() {
            Some((_, header)) if header.place().version < version => {}
            other => return Ok(other),
        }
    }
}

fn scan_version(
    space: &Attachment,
    lane: LaneId,
    version: u64,
    cursor: LaneCursor,
    index: &mut VersionIndex,
) -> Result<LaneCursor> {
    let LaneCursor { mut segment, mut at, mut next_record, .. } = cursor;
    index.found.clear();
    loop {
        let mut scan = SegmentScan::resume(&*space.device, &segment, lane, at, next_record);
        while let Some((record, header)) =
            self::next_record(space, &mut scan, &segment, version, index.bring)?
        {
            let place = header.place();
            if place.version > version {
                return Err(unreadable(space, lane, version, record.offset));
            }
            match (header.kind(), header.commit()) {
                // The name is hashed now, while the header is in the cache.
                (RecordKind::Piece, _) => {
                    index.found.push((place.sequence, hash_name(header.name_bytes()), record));
                }
                (RecordKind::Commit, Some(commit)) if header.is_committed() => {
                    if !is_still_there(space, lane, &segment) {
                        return Err(unreadable(space, lane, version, record.offset));
                    }
                    let VersionIndex { found, hashes, entries, .. } = index;
                    found.retain(|(sequence, ..)| *sequence >= commit.first_record);
                    if found.len() as u64 != commit.pieces {
                        return Err(unreadable(space, lane, version, record.offset));
                    }
                    index.payload_bytes = index.payload_bytes.saturating_add(commit.payload_bytes);
                    hashes.extend(found.iter().map(|(_, hash, _)| hash));
                    entries.extend(found.iter().map(|(.., record)| Entry {
                        record: *record,
                        rank: lane.rank,
                        next: NONE,
                        verified: false,
                    }));
                    return Ok(LaneCursor {
                        segment,
                        at: scan.at,
                        next_record: scan.next_record,
                        version: version + 1,
                    });
                }
                _ => {}
            }
        }
        next_record = scan.next_record;
        if is_behind_lost_page(&mut scan) {
            at = scan.at;
            continue;
        }
        if !is_still_there(space, lane, &segment) {
            return Err(unreadable(space, lane, version, segment.offset_bytes + scan.at));
        }
        let wanted = segment.sequence + 1;
        let next = space.control.find_segment(lane, |sequence, _| sequence == wanted);
        segment = header_of(space, lane, next, index.bring)?
            .ok_or_else(|| unreadable(space, lane, version, segment.offset_bytes + scan.at))?;
        at = HEADER_BYTES;
        next_record = next_record.max(segment.first_record);
    }
}

impl VersionIndex {
    /// Nothing of a version, but the memory for as many pieces; not that of one much larger than the last.
    fn emptied(mut self) -> VersionIndex {
        if self.entries.capacity() > 1024 + 8 * self.entries.len() {
            return VersionIndex::default();
        }
        self.entries.clear();
        self.by_name.clear();
        self.hashes.clear();
        self.chunks.clear();
        self.payload_bytes = 0;
        self
    }

    fn link_names(&mut self) {
        self.by_name.reserve(self.entries.len());
        // Backwards, so that chains run in the order of ranks and records.
        for (i, hash) in self.hashes.iter().enumerate().rev() {
            let head = self.by_name.insert(*hash, i as u32);
            self.entries[i].next = head.unwrap_or(NONE);
        }
        self.hashes.clear();
    }

    /// The piece of a variable that is one piece, covering all of it: its extents are the global shape. None for any
    /// other, whatever the reason.
    #[inline]
    pub(crate) fn single<'a>(&self, device: &'a dyn Device, name: &str) -> Option<(u32, RecordHeader<'a>)> {
        let i = *self.by_name.get(&hash_name(name.as_bytes()))?;
        let (header, _) = self.header(device, i)?;
        // Those who get many objects mostly take them in the order they were put in.
        self.fetch_soon(device, i as usize + PREFETCH_ENTRIES, 0..PREFETCH_HEADER_BYTES);
        let alone = self.entries[i as usize].next == NONE
            && header.name_bytes() == name.as_bytes()
            && header.start().all(|at| at == 0)
            && header
                .count()
                .zip(header.shape())
                .enumerate()
                .all(|(d, (count, extent))| count == extent || (d == 0 && extent == CONCAT));
        alone.then_some((i, header))
    }

    /// Has the processor fetch these bytes of the record of entry `i`, if there is one, while others are worked on.
    #[inline]
    fn fetch_soon(&self, device: &dyn Device, i: usize, within: Range<u64>) {
        if let Some(Entry { record, .. }) = self.entries.get(i) {
            let [begin, end] =
                [within.start, within.end].map(|at| record.offset + at.min(record.available_bytes));
            forebay_tier::persist::prefetch(device.bytes(begin..end));
        }
    }

    /// The header of entry `i`.
    #[inline]
    pub(crate) fn header<'a>(&self, device: &'a dyn Device, i: u32) -> Option<(RecordHeader<'a>, &'a [u8])> {
        let record = self.entries[i as usize].record;
        let bytes = device.bytes(record.offset..record.offset + record.available_bytes);
        RecordHeader::reread(bytes).map(|header| (header, bytes))
    }

    /// As [`VersionIndex::header`], of an entry that was there when the version was looked at. Errors: `Damaged`, when
    /// it is no longer.
    #[inline]
    pub(crate) fn header_there<'a>(
        &self,
        device: &'a dyn Device,
        i: u32,
    ) -> Result<(RecordHeader<'a>, &'a [u8])> {
        self.header(device, i).ok_or_else(|| self.damaged(i, "its header changed", 0))
    }

    /// Rank that put entry `i`.
    pub(crate) fn rank(&self, i: u32) -> u32 {
        self.entries[i as usize].rank
    }

    /// Offset in the pool of entry `i`'s record.
    pub(crate) fn offset(&self, i: u32) -> u64 {
        self.entries[i as usize].record.offset
    }

    /// Number of pieces of the version.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries of a variable, in the order of ranks and puts; empty if there is none.
    #[inline]
    pub(crate) fn find(&self, device: &dyn Device, name: &str) -> SmallVec<[u32; 4]> {
        let mut out = SmallVec::new();
        let mut at = self.by_name.get(&hash_name(name.as_bytes())).copied().unwrap_or(NONE);
        while at != NONE {
            if self.header(device, at).is_some_and(|(h, _)| h.name_bytes() == name.as_bytes()) {
                out.push(at);
            }
            at = self.entries[at as usize].next;
        }
        out
    }

    /// Names of all variables that users put, each once, in the order of their first piece.
    pub(crate) fn names(&self, device: &dyn Device) -> Vec<String> {
        let mut seen = rustc_hash::FxHashSet::default();
        let mut out = Vec::new();
        for i in 0..self.entries.len() as u32 {
            if let Some((header, _)) = self.header(device, i) {
                if !is_reserved(header.name_bytes()) && seen.insert(header.name_bytes()) {
                    out.push(header.name().to_string());
                }
            }
        }
        out
    }

    /// Checks the chunks of entry `i` that bytes `from..to` of its payload touch, those not yet checked in this
    /// process unless `always`, and hands each touched chunk's range to `each` right after, while it is in cache.
    pub(crate) fn verify_chunks(
        &mut self,
        device: &dyn Device,
        i: u32,
        from: usize,
        to: usize,
        always: bool,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let (header, bytes) = self.header_there(device, i)?;
        let base = header.payload_offset() as usize;
        let payload = &bytes[base..base + header.payload_bytes() as usize];
        if from > to || to > payload.len() {
            return Err(self.damaged(i, "its header changed", 0));
        }
        let place = self.offset(i) + base as u64;
        device.will_read(place + from as u64..place + to as u64)?;
        let done = self.entries[i as usize].verified && !always;
        if !header.is_checked() || done {
            each(from, &payload[from..to]);
            return Ok(());
        }
        if payload.len() <= PREFETCH_PAYLOAD_BYTES_MAX {
            // The next object probably is as long. Its payload comes from memory while this one is summed.
            self.fetch_soon(device, i as usize + 1, PREFETCH_HEADER_BYTES..header.total_bytes());
        }
        let last = payload.len().div_ceil(CHUNK_BYTES);
        let whole = from < CHUNK_BYTES && to.div_ceil(CHUNK_BYTES) == last;
        for chunk in from / CHUNK_BYTES..to.div_ceil(CHUNK_BYTES) {
            let begin = chunk * CHUNK_BYTES;
            let end = (begin + CHUNK_BYTES).min(payload.len());
            let check = always || !self.is_chunk_seen(i, chunk);
            if check && checksum_ahead(payload, begin..end) != header.crc(chunk) {
                return Err(self
                    .damaged(i, "the payload does not match its checksum", begin)
                    .with("variable", header.name()));
            }
            if !whole && last > 1 {
                self.mark_chunk(i, chunk, last);
            }
            let (lo, hi) = (begin.max(from), end.min(to));
            each(lo, &payload[lo..hi]);
        }
        if whole {
            self.entries[i as usize].verified = true;
        }
        Ok(())
    }

    fn is_chunk_seen(&self, i: u32, chunk: usize) -> bool {
        self.chunks.get(&i).is_some_and(|bits| bits[chunk / 64] >> (chunk % 64) & 1 == 1)
    }

    fn mark_chunk(&mut self, i: u32, chunk: usize, chunks: usize) {
        let bits = self.chunks.entry(i).or_insert_with(|| vec![0; chunks.div_ceil(64)]);
        bits[chunk / 64] |= 1 << (chunk % 64);
    }

    /// Bytes `range` of the payload of entry `i`, unchecked. Errors: `Damaged` where its header no longer says that it
    /// has so many; those of [`Device::will_read`].
    pub(crate) fn payload_part<'a>(
        &self,
        device: &'a dyn Device,
        i: u32,
        range: Range<usize>,
    ) -> Result<&'a [u8]> {
        let (header, bytes) = self.header_there(device, i)?;
        let base = header.payload_offset() as usize;
        let payload = &bytes[base..base + header.payload_bytes() as usize];
        let part = payload.get(range.clone()).ok_or_else(|| self.damaged(i, "its header changed", 0))?;
        let place = self.offset(i) + base as u64;
        device.will_read(place + range.start as u64..place + range.end as u64)?;
        Ok(part)
    }

    #[cold]
    fn damaged(&self, i: u32, what: &str, at: usize) -> Error {
        damaged(self.version, what, self.rank(i), self.offset(i), at)
    }

    /// Dtype and global shape of the variable; all its pieces were put with the same. Errors:
    /// [`Kind::VariableMismatch`].
    #[inline]
    pub(crate) fn agreed(&self, device: &dyn Device, name: &str, pieces: &[u32]) -> Result<(Dtype, Dims)> {
        let (first, _) = self.header_there(device, pieces[0])?;
        let (dtype, mut shape): (Dtype, Dims) = (first.dtype(), first.shape().collect());
        for i in &pieces[1..] {
            let (header, _) = self.header_there(device, *i)?;
            if header.dtype() != dtype || !header.shape().eq(shape.iter().copied()) {
                let other: Dims = header.shape().collect();
                let first = (self.rank(pieces[0]), dtype, &shape[..]);
                return Err(ranks_disagree(
                    name,
                    self.version,
                    first,
                    (self.rank(*i), header.dtype(), &other),
                ));
            }
        }
        if shape.first() == Some(&CONCAT) {
            shape[0] = self.boxes(device, pieces)?.last().map_or(0, |last| last.end(0));
        }
        Ok((dtype, shape))
    }

    /// The boxes of all pieces of a variable, at their places.
    #[inline]
    pub(crate) fn boxes(&self, device: &dyn Device, pieces: &[u32]) -> Result<SmallVec<[NdBox; 4]>> {
        let put = |i: &u32| Ok(box_of(&self.header_there(device, *i)?.0));
        let mut boxes: SmallVec<[NdBox; 4]> = pieces.iter().map(put).collect::<Result<_>>()?;
        let (first, _) = self.header_there(device, pieces[0])?;
        if first.shape().next() == Some(CONCAT) {
            concatenate(boxes.iter_mut());
        }
        Ok(boxes)
    }

    /// Everything about a variable.
    pub(crate) fn describe(&self, device: &dyn Device, name: &str) -> Result<VariableInfo> {
        let entries = self.find(device, name);
        if entries.is_empty() {
            return Err(self.unknown_variable(device, name));
        }
        let (dtype, shape) = self.agreed(device, name, &entries)?;
        let pieces = entries.iter().zip(self.boxes(device, &entries)?);
        let describe = |(i, part): (&u32, NdBox)| {
            let (start, count) = (part.start.to_vec(), part.count.to_vec());
            let bytes = self.header_there(device, *i)?.0.payload_bytes();
            Ok(PieceInfo { rank: self.rank(*i), start, count, bytes })
        };
        let pieces = pieces.map(describe).collect::<Result<_>>()?;
        let description = Description::default();
        Ok(VariableInfo { name: name.to_string(), dtype, shape: shape.to_vec(), description, pieces })
    }

    /// The error for a name that the version lacks.
    #[cold]
    pub(crate) fn unknown_variable(&self, device: &dyn Device, name: &str) -> Error {
        unknown_variable(name, self.version, &self.names(device))
    }
}

/// Variables that an error names.
const NAMED_MAX: usize = 8;

/// The error for a name that a version with these variables lacks.
pub(crate) fn unknown_variable(name: &str, version: u64, names: &[String]) -> Error {
    let error = Error::new(Kind::UnknownVariable, format!("version {version} has no variable {name}"));
    match crate::did_you_mean(name, names.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None if names.is_empty() => error.hint("the version is empty"),
        None => {
            let some = names[..names.len().min(NAMED_MAX)].join(", ");
            error.hint(format!("variables: {some}{}", if names.len() > NAMED_MAX { ", …" } else { "" }))
        }
    }
}

/// The error for ranks that put a variable with different dtypes or shapes.
#[cold]
pub(crate) fn ranks_disagree(
    name: &str,
    version: u64,
    (rank, dtype, shape): (u32, Dtype, &[u64]),
    (other_rank, other_dtype, other_shape): (u32, Dtype, &[u64]),
) -> Error {
    Error::new(Kind::VariableMismatch, format!("ranks disagree on variable {name} in version {version}"))
        .with("rank", rank)
        .with("has", format!("{dtype} {}", format_shape(shape)))
        .with("other_rank", other_rank)
        .with("other_has", format!("{other_dtype} {}", format_shape(other_shape)))
        .hint("all ranks must put a variable with the same dtype and global shape in one version")
}

/// The error for a record that is not what was committed.
#[cold]
pub(crate) fn damaged(version: u64, what: &str, rank: u32, pool_offset: u64, payload_byte: usize) -> Error {
    Error::new(Kind::Damaged, format!("version {version} is damaged: {what}"))
        .with("rank", rank)
        .with("pool_offset", pool_offset)
        .with("payload_byte", payload_byte)
        .hint("the data were changed after they were committed; `forebay verify` lists every damaged record")
}

/// The error for a box that the pieces of a variable do not cover.
#[cold]
pub(crate) fn not_covered(name: &str, version: u64, wanted: &NdBox, gap: &NdBox, pieces: usize) -> Error {
    Error::new(Kind::BoxNotCovered, format!("the pieces of {name} in version {version} do not cover the box"))
        .with("box", wanted)
        .with("uncovered", gap)
        .with("pieces", pieces)
        .hint("every element of the box must be put by some rank; `forebay cat NAME --json` lists the pieces")
}

/// The box of a record, as it was put.
fn box_of(header: &RecordHeader<'_>) -> NdBox {
    NdBox { start: header.start().collect(), count: header.count().collect() }
}
