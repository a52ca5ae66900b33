//! [`VersionBacking`]: one variable of one version as the range of bytes below an array larger than memory.
//!
//! The bytes are those of the global n-D array in C order. A range of them is a handful of boxes, each of which meets a
//! piece in one contiguous stretch of its payload; so every piece is read once, in order, whatever the decomposition.
//!
//! Guarantees: the version is held as long as this lives, also when its writers died or its reader was closed; payloads
//! are checked as `get` checks them; what no rank put is `BoxNotCovered` where it is touched, never a fill value. Pools
//! in memory are read where they lie. Others are read into a buffer, not through the mapping, so that a version larger
//! than the memory leaves nothing mapped; past the page cache where the pool is `direct`.
//! Does not: write, go through the gate of the execution mode, wait for anybody.

use forebay_config::{environment, Mechanism, OpenOptions, Verify};
use forebay_tier::host::atomic::{AtomicU64, Ordering::Relaxed};
use forebay_tier::host::sync::Mutex;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use forebay_log::format::{BLOCK_BYTES, CHUNK_BYTES};
use forebay_log::gather::{contiguous_range, copy_overlap, coverage_gap};
use forebay_log::{Dims, Dtype, NdBox};
use forebay_pager::Backing;
use forebay_tier::engine::Aligned;
use forebay_tier::persist::checksum_ahead;
use forebay_tier::{counters, watched, Device, Error, Kind, Result, TierKind};
use smallvec::SmallVec;

use crate::lane::index::{self, VersionIndex};
use crate::lane::view::Lease;
use crate::open::attach::Attachment;
use crate::reader::consume::SpaceReader;

/// A request is worked on in parts of at most this: what buffers a read needs beside the caller's memory is bounded by
/// it. Long enough that a disk delivers what it can.
const PART_BYTES: usize = 256 << 10;

/// See the file's head. Shared by threads; a read blocks for as long as the tier takes.
pub struct VersionBacking {
    lease: Arc<Lease>,
    name: String,
    space: String,
    dtype: Dtype,
    shape: Dims,
    bytes: u64,
    verify: Verify,
    /// In the order of ranks and puts: where pieces overlap, the later one is seen, as with `get`.
    pieces: Vec<Piece>,
    by_place: ByPlace,
    /// Buffers that no read uses now; as many as ever read at once.
    buffers: Mutex<Vec<Buffers>>,
    method: &'static str,
}

/// Where and what a piece is; nothing of it is read from the pool again but the payload.
struct Piece {
    region: NdBox,
    rank: u32,
    /// Pool offsets of the record and of its payload.
    record: u64,
    payload: u64,
    bytes: usize,
    source: Source,
    /// A checksum for each chunk; none where payloads are not checked.
    sums: Box<[u32]>,
    /// A bit for each chunk that was seen to match.
    seen: Box<[AtomicU64]>,
}

/// How a piece is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Memory,
    Cached,
    Direct,
}

impl Source {
    fn of(space: &Attachment, offset: u64) -> Source {
        match space.tier_at(offset) {
            _ if space.is_in_memory(offset) => Source::Memory,
            TierKind::Direct => Source::Direct,
            _ => Source::Cached,
        }
    }
}

/// What a read needs beside the caller's memory: blocks of the pool, and a stretch of a piece that is then spread.
#[derive(Default)]
struct Buffers {
    blocks: Option<Aligned>,
    stretch: Vec<u8>,
}

/// The pieces by their first element in C order, to find those of a range without a look at each.
struct ByPlace {
    /// First element and number of each piece, ascending.
    firsts: Vec<(u64, u32)>,
    /// Last element of any piece up to here.
    lasts: Vec<u64>,
}

impl ByPlace {
    fn of(pieces: &[Piece], shape: &[u64]) -> ByPlace {
        let mut ends: Vec<(u64, u64, u32)> = (0..)
            .zip(pieces)
            .map(|(i, piece)| {
                let (first, last) = ends_of(&piece.region, shape);
                (first, last, i)
            })
            .collect();
        ends.sort_unstable();
        let lasts = ends.iter().scan(0, |most, (_, last, _)| {
            *most = (*most).max(*last);
            Some(*most)
        });
        ByPlace { lasts: lasts.collect(), firsts: ends.iter().map(|(first, _, i)| (*first, *i)).collect() }
    }

    /// The pieces that may have elements from `first` to `last`, in the order of ranks and puts.
    fn find(&self, first: u64, last: u64) -> SmallVec<[u32; 8]> {
        let from = self.lasts.partition_point(|most| *most < first);
        let to = self.firsts.partition_point(|(begin, _)| *begin <= last);
        let mut found: SmallVec<[u32; 8]> =
            self.firsts[from.min(to)..to].iter().map(|(_, number)| *number).collect();
        found.sort_unstable();
        found
    }
}

/// First and last element of a box with elements, counted in C order.
fn ends_of(region: &NdBox, shape: &[u64]) -> (u64, u64) {
    shape.iter().enumerate().fold((0, 0), |(first, last), (i, extent)| {
        (first * extent + region.start[i], last * extent + region.start[i] + region.count[i] - 1)
    })
}

/// Elements `range` of an array of this shape, in C order, as boxes that are contiguous in it, in order.
fn boxes(shape: &[u64], range: Range<u64>) -> impl Iterator<Item = NdBox> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        // The outermost dimension of which whole rows begin here; those inside it are whole.
        let (mut row, mut place) = (1, at);
        let mut region = NdBox::whole(shape);
        let mut taken = None;
        for i in (0..shape.len()).rev() {
            let index = place % shape[i];
            if taken.is_none() {
                let fits = ((range.end - at) / row).min(shape[i] - index);
                if fits < shape[i] || index > 0 || i == 0 {
                    taken = Some(fits * row);
                    (region.start[i], region.count[i]) = (index, fits);
                }
            } else {
                (region.start[i], region.count[i]) = (index, 1);
            }
            row *= shape[i];
            place /= shape[i];
        }
        at += taken.unwrap_or(1);
        Some(region)
    })
}

impl VersionBacking {
    /// Looks into `version` of the space `space` (None: the newest that is complete) as an observer, and takes its
    /// variable `name`. Reads the headers of records and nothing else, so that it may be larger than the memory. Of
    /// the options, `timeout` is for joining, and `verify` says how payloads are checked.
    ///
    /// # Errors
    /// `PeerMissing` (no such space), `TimedOut` (the version is not complete, or none is), `VersionGone`,
    /// `UnknownVariable`, `VariableMismatch`, `Damaged`; `NotPossibleHere` for a channel of files.
    pub fn open(
        space: &str,
        name: &str,
        version: Option<u64>,
        options: &OpenOptions,
    ) -> Result<VersionBacking> {
        environment::check()?;
        let options = OpenOptions { observer: true, ..options.clone() };
        let options = options.resolved(space, &environment::process)?;
        if options.channel == Mechanism::Files {
            return Err(no_files(name));
        }
        let mut reader = SpaceReader::open(space, options)?;
        reader.bring_headers_alone();
        let version = match version {
            Some(version) => version,
            None => reader.latest()?.ok_or_else(|| {
                Error::new(Kind::TimedOut, format!("space {space} has no complete version"))
                    .hint("try again when a version is complete")
            })?,
        };
        VersionBacking::of_current(&reader.open_version(version)?, name)
    }

    /// Of the current version of a reader. See [`crate::Reader::backing`].
    pub(crate) fn of_current(reader: &SpaceReader, name: &str) -> Result<VersionBacking> {
        let (space, lease, index, verify) = reader.held()?;
        watched(|| VersionBacking::of(space, lease, index, name, verify))
    }

    /// Of a version that is leased and indexed.
    fn of(
        space: &Attachment,
        lease: &Arc<Lease>,
        index: &VersionIndex,
        name: &str,
        verify: Verify,
    ) -> Result<VersionBacking> {
        let device = lease.device();
        let found = index.find(device, name);
        if found.is_empty() {
            return Err(index.unknown_variable(device, name));
        }
        let (dtype, shape) = index.agreed(device, name, &found)?;
        let bytes = NdBox::whole(&shape).bytes(dtype.size())? as u64;
        let mut pieces = Vec::with_capacity(found.len());
        for (i, region) in found.iter().copied().zip(index.boxes(device, &found)?) {
            let (header, _) = index.header_there(device, i)?;
            region.check_inside(name, &shape)?;
            if region.bytes(dtype.size())? as u64 != header.payload_bytes() {
                return Err(index::damaged(
                    index.version,
                    "its header changed",
                    index.rank(i),
                    index.offset(i),
                    0,
                ));
            }
            let record = index.offset(i);
            let sums: Box<[u32]> = match header.is_checked() && verify != Verify::Never {
                true => (0..(header.payload_bytes() as usize).div_ceil(CHUNK_BYTES))
                    .map(|chunk| header.crc(chunk))
                    .collect(),
                false => Box::default(),
            };
            let piece = Piece {
                rank: index.rank(i),
                record,
                payload: record + header.payload_offset(),
                bytes: header.payload_bytes() as usize,
                source: Source::of(space, record),
                seen: (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
                sums,
                region,
            };
            if !piece.region.is_empty() {
                pieces.push(piece);
            }
        }
        let is_some = |source| pieces.iter().any(|piece| piece.source == source);
        Ok(VersionBacking {
            lease: lease.clone(),
            name: name.to_string(),
            space: space.name.clone(),
            dtype,
            bytes,
            verify,
            by_place: ByPlace::of(&pieces, &shape),
            shape,
            buffers: Mutex::default(),
            method: match (is_some(Source::Cached), is_some(Source::Direct)) {
                (true, _) => "cached",
                (false, true) => "direct",
                (false, false) => "device",
            },
            pieces,
        })
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Global shape.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The version.
    pub fn version(&self) -> u64 {
        self.lease.version()
    }

    /// Reads whole elements from byte `offset` on.
    fn read_elements(&self, offset: u64, out: &mut [u8], buffers: &mut Buffers) -> Result<()> {
        let size = self.dtype.size() as u64;
        let elements = offset / size..(offset + out.len() as u64) / size;
        let mut rest = out;
        for region in boxes(&self.shape, elements) {
            let (part, behind) = rest.split_at_mut(region.bytes(size as usize)?);
            self.read_box(&region, part, buffers)?;
            rest = behind;
        }
        Ok(())
    }

    /// Reads a box that is contiguous in the global array.
    fn read_box(&self, region: &NdBox, out: &mut [u8], buffers: &mut Buffers) -> Result<()> {
        let size = self.dtype.size();
        let (first, last) = ends_of(region, &self.shape);
        let found = self.by_place.find(first, last);
        let pieces: SmallVec<[&Piece; 8]> = found.iter().map(|i| &self.pieces[*i as usize]).collect();
        if let Some(gap) = coverage_gap(region, pieces.iter().map(|piece| &piece.region)) {
            return Err(index::not_covered(&self.name, self.version(), region, &gap, self.pieces.len()));
        }
        for piece in pieces {
            let Some(overlap) = piece.region.intersect(region) else { continue };
            let range = contiguous_range(&piece.region, &overlap, size).ok_or_else(not_contiguous)?;
            if let Some(there) = contiguous_range(region, &overlap, size) {
                self.read_piece(piece, range, &mut out[there], &mut buffers.blocks)?;
                continue;
            }
            let mut stretch = std::mem::take(&mut buffers.stretch);
            stretch.resize(range.len(), 0);
            self.read_piece(piece, range, &mut stretch, &mut buffers.blocks)?;
            copy_overlap(&overlap, &stretch, region, out, size)?;
            buffers.stretch = stretch;
        }
        Ok(())
    }

    /// Reads a range of a piece's payload, checking the chunks that it touches.
    fn read_piece(
        &self,
        piece: &Piece,
        range: Range<usize>,
        out: &mut [u8],
        blocks: &mut Option<Aligned>,
    ) -> Result<()> {
        let device = self.lease.device();
        let at = |range: &Range<usize>| piece.payload + range.start as u64..piece.payload + range.end as u64;
        let unchecked = self.unchecked(piece, &range);
        if piece.source == Source::Memory {
            return watched(|| {
                let hull = unchecked.clone().unwrap_or_else(|| range.clone());
                device.will_read(at(&hull))?;
                if unchecked.is_some() {
                    self.check(piece, &hull, device.bytes(at(&hull)))?;
                }
                out.copy_from_slice(device.bytes(at(&range)));
                counters::add_bytes_copied(out.len() as u64);
                Ok(())
            });
        }
        if unchecked.is_none() && piece.source == Source::Cached {
            return device.read(at(&range).start, out);
        }
        let hull = unchecked.clone().unwrap_or_else(|| range.clone());
        let bytes = read_blocks(device, at(&hull), blocks)?;
        if unchecked.is_some() {
            self.check(piece, &hull, bytes)?;
        }
        out.copy_from_slice(&bytes[range.start - hull.start..range.end - hull.start]);
        counters::add_bytes_copied(out.len() as u64);
        Ok(())
    }

    /// The chunks that a range touches, if one of them is to be checked.
    fn unchecked(&self, piece: &Piece, range: &Range<usize>) -> Option<Range<usize>> {
        if piece.sums.is_empty() {
            return None;
        }
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        let is_open = |chunk: usize| piece.seen[chunk / 64].load(Relaxed) >> (chunk % 64) & 1 == 0;
        let wanted = self.verify == Verify::Always || chunks.clone().any(is_open);
        wanted.then(|| chunks.start * CHUNK_BYTES..(chunks.end * CHUNK_BYTES).min(piece.bytes))
    }

    /// Compares the checksums of whole chunks, `range` of the payload, which are in `bytes`.
    fn check(&self, piece: &Piece, range: &Range<usize>, bytes: &[u8]) -> Result<()> {
        let first = range.start / CHUNK_BYTES;
        for (i, begin) in (0..bytes.len()).step_by(CHUNK_BYTES).enumerate() {
            let chunk = first + i;
            let end = (begin + CHUNK_BYTES).min(bytes.len());
            if checksum_ahead(bytes, begin..end) != piece.sums[chunk] {
                let what = "the payload does not match its checksum";
                return Err(index::damaged(
                    self.version(),
                    what,
                    piece.rank,
                    piece.record,
                    range.start + begin,
                )
                .with("variable", &self.name));
            }
            piece.seen[chunk / 64].fetch_or(1 << (chunk % 64), Relaxed);
        }
        Ok(())
    }

    fn take_buffers(&self) -> Buffers {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_buffers(&self, buffers: Buffers) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        self.lease.check_fork()?;
        if offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(Error::new(Kind::BoxOutsideShape, format!("range out of bounds of {}", Backing::name(self)))
            .with("start", offset)
            .with("bytes", len)
            .with("variable_bytes", self.bytes))
    }

    #[cold]
    fn read_only(&self) -> Error {
        Error::new(Kind::PermissionDenied, format!("{} is complete and read-only", Backing::name(self)))
            .hint("open the array in mode \"c\" (copy on write) for private changes")
    }
}

/// Reads a range of a pool by whole blocks, as transfers past the page cache ask for.
fn read_blocks<'a>(
    device: &dyn Device,
    range: Range<u64>,
    blocks: &'a mut Option<Aligned>,
) -> Result<&'a [u8]> {
    let from = range.start / BLOCK_BYTES * BLOCK_BYTES;
    let to = range.end.next_multiple_of(BLOCK_BYTES).min(device.capacity());
    let len = (to - from) as usize;
    if blocks.as_ref().is_none_or(|blocks| blocks.len() < len) {
        *blocks = Some(Aligned::new(len));
    }
    let read = blocks.as_mut().expect("made above").part(len);
    device.read(from, read)?;
    let skip = (range.start - from) as usize;
    Ok(&read[skip..skip + (range.end - range.start) as usize])
}

impl Backing for VersionBacking {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// # Errors
    /// `Damaged`, `BoxNotCovered`, `BoxOutsideShape`, `ForkedHandle`, or what the tier says.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check_range(offset, out.len())?;
        let size = self.dtype.size() as u64;
        let (skip, end) = ((offset % size) as usize, offset + out.len() as u64);
        let mut buffers = self.take_buffers();
        let done = match skip == 0 && end % size == 0 {
            true => (offset..)
                .step_by(PART_BYTES)
                .zip(out.chunks_mut(PART_BYTES))
                .try_for_each(|(at, part)| self.read_elements(at, part, &mut buffers)),
            false => {
                let mut whole = vec![0; (end.next_multiple_of(size) - offset) as usize + skip];
                let read = self.read_elements(offset - skip as u64, &mut whole, &mut buffers);
                out.copy_from_slice(&whole[skip..skip + out.len()]);
                read
            }
        };
        self.give_buffers(buffers);
        done
    }

    /// # Errors
    /// Always `PermissionDenied`: a complete version never changes.
    fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(self.read_only())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Nowhere: payloads are checked on their way.
    fn direct(&self, _offset: u64, _len: usize) -> Option<(Arc<File>, u64)> {
        None
    }

    fn name(&self) -> String {
        format!("variable {} of version {} of space {}", self.name, self.version(), self.space)
    }

    /// `device` where all of it lies in memory.
    fn method(&self) -> &'static str {
        self.method
    }
}

#[cold]
fn not_contiguous() -> Error {
    Error::new(Kind::Internal, "a range of the global array maps to several ranges of one piece")
}

/// The error for a channel that keeps a file per object.
#[cold]
pub(crate) fn no_files(variable: &str) -> Error {
    Error::new(Kind::NotPossibleHere, format!("variable {variable} is in a channel of files"))
        .hint("use channel=\"space\", or open the files by path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn boxes_are_the_range_in_order(
            shape in prop::collection::vec(1..6u64, 0..5), ends in (0..10_000u64, 0..10_000u64),
        ) {
            let all: u64 = shape.iter().product();
            let (from, to) = (ends.0.min(ends.1) % (all + 1), ends.0.max(ends.1) % (all + 1));
            let range = from.min(to)..from.max(to);
            let mut next = range.start;
            let mut count = 0;
            for region in boxes(&shape, range.clone()) {
                let (first, last) = ends_of(&region, &shape);
                prop_assert_eq!(first, next);
                prop_assert_eq!(last + 1 - first, region.volume().unwrap(), "{:?} is contiguous", region);
                next = last + 1;
                count += 1;
            }
            prop_assert_eq!(next, range.end);
            prop_assert!(count <= 2 * shape.len().max(1), "{} boxes", count);
        }
    }
}
