//! Reading a lane: record after record through a segment.
//!
//! A scan ends at the first place that holds no valid record of the lane with a rising number: the end of what
//! was written, or damage. Only who knows what was committed can tell which; [`SegmentScan::resync`] looks for
//! more records behind such a place. A page that the medium does not give ends a scan as damage does, and is told.

use forebay_tier::{watch, Device};

use crate::format::{
    round_up, RecordHeader, RecordKind, SegmentDf, BLOCK_BYTES, HEADER_BYTES, RECORD_ALIGN, RECORD_BYTES,
};

/// How many records ahead of a scan headers are fetched: some 100 ns from memory, some 20 ns to check one.
const PREFETCH_RECORDS: u64 = 8;

/// How much of a record its header is guessed to take.
const PREFETCH_BYTES: usize = 128;

/// A lane's identity in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// Incarnation of its producers.
    pub incarnation: u32,
    /// Rank in it.
    pub rank: u32,
}

/// Where a record lies in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef {
    /// Offset of its header.
    pub offset: u64,
    /// Bytes from the header to the end of the segment.
    pub available_bytes: u64,
}

impl RecordRef {
    /// The header. Panics if it is no longer there: the caller holds the version.
    pub fn header<'a>(&self, device: &'a dyn Device) -> Option<RecordHeader<'a>> {
        RecordHeader::decode(device.bytes(self.offset..self.offset + self.available_bytes))
    }
}

/// Goes through the records of one segment, from any record on.
pub struct SegmentScan<'a> {
    bytes: &'a [u8],
    offset: u64,
    /// Next place to look at, from the start of the segment.
    pub at: u64,
    /// Least number the next record may have.
    pub next_record: u64,
    lane: LaneId,
    blocks: bool,
    lost: bool,
}

impl<'a> SegmentScan<'a> {
    /// Begins behind the segment's header. `device.bytes` of the segment must be allocated.
    pub fn new(device: &'a dyn Device, segment: &SegmentDf) -> SegmentScan<'a> {
        let lane = LaneId { incarnation: segment.incarnation, rank: segment.rank };
        Self::resume(device, segment, lane, HEADER_BYTES, segment.first_record)
    }

    /// Goes on where an earlier scan of the segment stopped.
    pub fn resume(
        device: &'a dyn Device,
        segment: &SegmentDf,
        lane: LaneId,
        at: u64,
        next_record: u64,
    ) -> SegmentScan<'a> {
        let offset = segment.offset_bytes;
        SegmentScan {
            bytes: device.bytes(offset..offset + segment.length_bytes),
            offset,
            at,
            next_record,
            lane,
            blocks: !device.byte_addressable(),
            lost: false,
        }
    }

    #[inline]
    fn header_at(&mut self, at: u64) -> Option<RecordHeader<'a>> {
        let bytes = self.bytes.get(at as usize..)?;
        let (header, lost) = watch(|| RecordHeader::decode(bytes));
        self.lost |= lost.is_some();
        let header = header.filter(|_| lost.is_none())?;
        let place = header.place();
        let fits = place.rank == self.lane.rank
            && place.incarnation == self.lane.incarnation
            && place.sequence >= self.next_record;
        fits.then_some(header)
    }

    /// Whether a page was met that the medium does not give.
    pub fn met_lost_page(&self) -> bool {
        self.lost
    }

    /// Looks for the next valid record of the lane behind the current place, at every possible alignment, and
    /// moves there. Returns how many bytes were passed over, or None if there is none in this segment.
    pub fn resync(&mut self) -> Option<u64> {
        let from = self.at;
        let mut at = round_up(from, RECORD_ALIGN);
        while at + RECORD_BYTES as u64 <= self.bytes.len() as u64 {
            if self.header_at(at).is_some() {
                self.at = at;
                return Some(at - from);
            }
            at += RECORD_ALIGN;
        }
        None
    }
}

impl<'a> Iterator for SegmentScan<'a> {
    type Item = (RecordRef, RecordHeader<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let header = self.header_at(self.at)?;
        let record =
            RecordRef { offset: self.offset + self.at, available_bytes: self.bytes.len() as u64 - self.at };
        let stride = header.total_bytes();
        self.at += stride;
        // Headers of small objects lie too far apart for the processor to guess; equal objects let us guess for it.
        if let Some(ahead) = self.bytes.get((self.at + PREFETCH_RECORDS * stride) as usize..) {
            forebay_tier::persist::prefetch(&ahead[..ahead.len().min(PREFETCH_BYTES)]);
        }
        if self.blocks && matches!(header.kind(), RecordKind::Commit | RecordKind::End) {
            self.at = round_up(self.at, BLOCK_BYTES);
        }
        self.next_record = header.place().sequence + 1;
        Some((record, header))
    }
}
