//! Appending to a lane: place a piece, copy it in, seal the version, flush, commit.
//!
//! The order is kept by types: a version is [`Lane::seal`]ed, then flushed, and only a `Sealed<Flushed>` has
//! `commit`. On a byte-addressable pool the commit is one aligned 8-byte word, stored after everything before it
//! is persistent; on a block pool the commit record is written with its word and one flush makes all of it
//! persistent, which is sound because every record certifies itself.
//!
//! A lane has one owner, a thread of the producer; nothing here locks. Space comes from a [`SegmentSource`].

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use forebay_tier::{Device, Error, Horizon, Kind, Result, StagedWrite};

use crate::batch::Batch;
use crate::dtype::{Dims, Dtype};
use crate::format::{
    encode_commit, encode_piece, piece_meta_bytes, round_up, CommitDf, PieceHeader, Place, RecordKind,
    SegmentDf, BLOCK_BYTES, CHUNK_BYTES, COMMIT_OFFSET, COMMIT_RECORD_BYTES, DIMS_MAX, HEADER_BYTES,
    NAME_BYTES_MAX, RECORD_ALIGN,
};
use crate::nd_box::CONCAT;
use crate::reclaim::retire;

/// On a block device a payload up to this size is joined with its header, so that the record costs one system
/// call; above it the copy would cost more than the call.
const JOIN_BYTES_MAX: usize = 64 * 1024;

/// The payloads at the beginning of each version that stay in the cache on memory tiers: a waiting reader has 4 KiB in
/// half the time then. A stream of many objects goes past the cache, where it takes half the time to put.
const SOON_BYTES_MAX: u64 = 16 * 1024;

/// Largest payload: its checksums still fit the meta part, whose length is a 32-bit number.
const PAYLOAD_BYTES_MAX: u64 = 1 << 45;

/// What is being put: a box of a variable.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Variable name, 1 to 1024 bytes.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Global shape; its first extent may be [`CONCAT`].
    pub shape: &'a [u64],
    /// First element of the box.
    pub start: &'a [u64],
    /// Extents of the box.
    pub count: &'a [u64],
}

impl Piece<'_> {
    /// Checks name, dimensions and box. Returns the bytes of the payload.
    /// Errors: [`Kind::BadName`], [`Kind::Usage`], [`Kind::BoxOutsideShape`].
    pub fn payload_bytes(&self) -> Result<u64> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(Error::new(
                Kind::BadName,
                format!("a variable name has 1 to {NAME_BYTES_MAX} bytes"),
            )
            .with("bytes", self.name.len()));
        }
        let dims = self.shape.len();
        if dims > DIMS_MAX || self.start.len() != dims || self.count.len() != dims {
            return Err(Error::new(
                Kind::Usage,
                format!("shape, start and count need the same length, at most {DIMS_MAX}"),
            )
            .with("variable", self.name)
            .with("shape", format!("{:?}", self.shape))
            .with("start", format!("{:?}", self.start))
            .with("count", format!("{:?}", self.count)));
        }
        if self.shape.first() == Some(&CONCAT) && self.start[0] != 0 {
            return Err(Error::new(
                Kind::BoxOutsideShape,
                "a box of a concatenated variable starts at 0 in the first dimension",
            )
            .with("variable", self.name)
            .with("start", format!("{:?}", self.start))
            .hint("its offset follows from the pieces of lower ranks"));
        }
        let mut elements = 1u64;
        for d in 0..dims {
            let inside = self.start[d].checked_add(self.count[d]).is_some_and(|end| end <= self.shape[d]);
            let product = elements.checked_mul(self.count[d]);
            let (true, Some(product)) = (inside, product) else {
                return Err(Error::new(Kind::BoxOutsideShape, "the box exceeds the shape")
                    .with("variable", self.name)
                    .with("dimension", d)
                    .with("start", format!("{:?}", self.start))
                    .with("count", format!("{:?}", self.count))
                    .with("shape", format!("{:?}", self.shape)));
            };
            elements = product;
        }
        elements.checked_mul(self.dtype.size() as u64).filter(|b| *b < PAYLOAD_BYTES_MAX).ok_or_else(|| {
            Error::new(Kind::Usage, "the box has more bytes than a record can hold")
                .with("variable", self.name)
        })
    }

    /// [`Piece::payload_bytes`], for a payload that is there. Errors also: [`Kind::BufferMismatch`].
    #[inline]
    pub fn check_data(&self, data: &[u8]) -> Result<u64> {
        let payload_bytes = self.payload_bytes()?;
        if payload_bytes != data.len() as u64 {
            return Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the box")
                .with("variable", self.name)
                .with("buffer_bytes", data.len())
                .with("box_bytes", payload_bytes));
        }
        Ok(payload_bytes)
    }

    fn header(&self) -> PieceHeader<'_> {
        PieceHeader {
            name: self.name,
            dtype: self.dtype,
            shape: self.shape,
            start: self.start,
            count: self.count,
        }
    }
}

/// Where a lane gets its segments. The space implements it with quota, waiting and a table of owners.
pub trait SegmentSource {
    /// A fresh, faulted-in range of at least `bytes_min` for `version`, the `sequence`-th segment of the lane.
    /// May block until its deadline.
    fn segment(&mut self, bytes_min: u64, version: u64, sequence: u64) -> Result<Range<u64>>;

    /// The segment that begins at `offset` now also holds records of `version`.
    fn note_version(&mut self, offset: u64, version: u64);

    /// Header and records of the segment that begins at `offset` take `bytes`. Said when a version is sealed and when
    /// the next segment is begun.
    fn note_filled(&mut self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// The segment that was given last is not used: its header could not be written, and now it is too small. Its
    /// header is wiped. The next segment has the same sequence.
    fn release(&mut self, range: Range<u64>);

    /// Retires the last segment and frees its space, as [`crate::Ledger::take_back`] says, which a source calls for it.
    fn take_back(&mut self, version: u64, before: Option<&Range<u64>>) -> TakenBack;
}

/// What became of a segment that was to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// It is retired, and is no segment of the lane any more. The next segment has the same sequence.
    Retired(Range<u64>),
    /// It is still the lane's last. Its header was to be wiped, which failed: it is as one that was never opened.
    Unopened(Range<u64>),
    /// It stays as it is, since something else is known by it.
    Stays,
}

/// Who a lane belongs to.
#[derive(Clone, Copy, Debug)]
pub struct LaneOwner {
    /// The pool.
    pub uuid: [u8; 16],
    /// Rank.
    pub rank: u32,
    /// Incarnation.
    pub incarnation: u32,
    /// Ranks in the incarnation.
    pub group_size: u32,
    /// First version of the incarnation.
    pub base_version: u64,
}

struct OpenVersion {
    version: u64,
    first_record: u64,
    pieces: u64,
    payload_bytes: u64,
    /// Everything written since the version began lies in these ranges; block devices flush them.
    written: Option<Range<u64>>,
    /// Reservations that were neither filled nor dropped into a void.
    reserved: u32,
    /// Segments that were begun for it.
    segments: u32,
    /// The segment before those and all of them but the last, with the newest version noted for each and its tail.
    closed: Vec<(Range<u64>, u64, u64)>,
    /// The program has, or had, memory of the pool to write to.
    is_lent: bool,
}

/// The append end of one lane.
pub struct Lane {
    device: Arc<dyn Device>,
    owner: LaneOwner,
    horizon: Horizon,
    checksum: bool,
    /// The segment being written and the newest version noted for it.
    current: Option<(Range<u64>, u64)>,
    /// A segment that was given and whose header could not be written: it is the next one all the same, so that no
    /// two segments have one sequence.
    unopened: Option<Range<u64>>,
    tail: u64,
    /// A write at the tail failed, and may have left headers of records from there up to this offset, which must not
    /// be counted.
    stale_end: Option<u64>,
    next_segment: u64,
    next_record: u64,
    open: Option<OpenVersion>,
    /// Small pieces of the open version that are not in the pool yet: they lie before the tail.
    batch: Option<Batch>,
    /// Scratch for headers and checksums, so that a put allocates nothing.
    header: Vec<u8>,
    crcs: Vec<u32>,
}

/// Space in the pool (or a buffer, on block devices) that the producer fills in place.
pub struct Reserved {
    staged: Option<StagedWrite>,
    at: u64,
    record: u64,
    version: u64,
    name: String,
    dtype: Dtype,
    shape: Dims,
    start: Dims,
    count: Dims,
}

impl Reserved {
    /// The payload's memory. Its content is undefined until written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.staged.as_mut().expect("present until filled").as_mut_slice()
    }

    /// Variable name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Global shape of the variable.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Extents of the box.
    pub fn count(&self) -> &[u64] {
        &self.count
    }

    /// The version it belongs to.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Address of the payload, for languages that keep raw pointers.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
}

/// State of a sealed version: its records are written, but not yet persistent.
pub enum Unflushed {}
/// State of a sealed version: its records are persistent, as the horizon says.
pub enum Flushed {}

/// A version whose records are all placed.
///
/// Committing what was not flushed does not compile:
/// ```compile_fail
/// fn wrong(sealed: forebay_log::Sealed<'_, forebay_log::Unflushed>) {
///     sealed.commit().unwrap();
/// }
/// ```
/// ```
/// fn right(sealed: forebay_log::Sealed<'_, forebay_log::Unflushed>) {
///     sealed.flush().unwrap().commit().unwrap();
/// }
/// ```
#[must_use = "a sealed version that is not committed does not count"]
pub struct Sealed<'a, State> {
    lane: &'a mut Lane,
    at: u64,
    word: u64,
    state: PhantomData<State>,
}

impl Lane {
    /// An empty lane that will begin at record 0 and segment 0.
    pub fn new(device: Arc<dyn Device>, owner: LaneOwner, horizon: Horizon, checksum: bool) -> Lane {
        Lane {
            device,
            owner,
            horizon,
            checksum,
            current: None,
            unopened: None,
            tail: 0,
            stale_end: None,
            next_segment: 0,
            next_record: 0,
            open: None,
            batch: None,
            header: Vec::with_capacity(512),
            crcs: Vec::new(),
        }
    }

    /// Keeps small pieces back in memory until there are `bytes` of them or the version is sealed, so that the device
    /// gets them with one write. Pieces of more than half of that go on being written by themselves.
    ///
    /// # Panics
    /// At horizon `write`, where a piece is persistent when it was put.
    pub fn in_batches(mut self, bytes: usize) -> Lane {
        assert!(self.horizon != Horizon::Write, "pieces are persistent one by one");
        self.batch = Some(Batch::new(bytes));
        self
    }

    /// The version that is open, if any.
    pub fn open_version(&self) -> Option<u64> {
        self.open.as_ref().map(|o| o.version)
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Horizon of its commits.
    pub fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// Opens a version. Which number is due is the space's business.
    pub fn begin(&mut self, version: u64) {
        assert!(self.open.is_none(), "one version at a time");
        self.open = Some(OpenVersion {
            version,
            first_record: self.next_record,
            pieces: 0,
            payload_bytes: 0,
            written: None,
            reserved: 0,
            segments: 0,
            closed: Vec::new(),
            is_lent: false,
        });
    }

    /// Appends a piece: one copy of `data` into the pool, checksummed on the way. Not visible before the commit.
    /// At horizon `write` it is persistent on return.
    /// Errors: those of [`Piece::payload_bytes`], [`Kind::BufferMismatch`], those of the segment source and device; in
    /// batches also of writing those before it. The piece is then not part of the version.
    #[inline]
    pub fn append(&mut self, source: &mut dyn SegmentSource, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        let payload_bytes = piece.check_data(data)?;
        let at = self.place(source, piece, payload_bytes)?;
        let payload_at = at + self.payload_offset(piece, payload_bytes);
        if self.gathers(piece, payload_bytes) {
            self.keep_back(at, payload_at, piece, data)?;
        } else {
            self.write_batch()?;
            self.write_piece(at, payload_at, piece, data).inspect_err(|_| self.note_stale(at))?;
        }
        self.advance(at, payload_at + payload_bytes, payload_bytes, 1)
    }

    /// Whether pieces of this size go through a batch, which copies them once more.
    pub fn gathers(&self, piece: &Piece<'_>, payload_bytes: u64) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.is_for(self.record_bytes(piece, payload_bytes)))
    }

    /// Bytes of the record of a piece, from its header to the end of its payload.
    fn record_bytes(&self, piece: &Piece<'_>, payload_bytes: u64) -> u64 {
        self.payload_offset(piece, payload_bytes).saturating_add(payload_bytes)
    }

    /// Whether a piece would only be kept back in memory: nothing of the device is touched when it is appended.
    pub fn keeps_back(&self, piece: &Piece<'_>, payload_bytes: u64) -> bool {
        let (Some(batch), Some((segment, _)), Some(_)) = (&self.batch, &self.current, &self.open) else {
            return false;
        };
        let bytes = self.record_bytes(piece, payload_bytes);
        let end = self.tail.saturating_add(round_up(bytes, RECORD_ALIGN));
        batch.is_for(bytes) && batch.has_capacity(self.tail, end) && end + self.closing_bytes() <= segment.end
    }

    /// Adds a piece to the batch, which is written first when it is full.
    fn keep_back(&mut self, at: u64, payload_at: u64, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        let payload_bytes = data.len() as u64;
        let has_capacity = |batch: &Batch| batch.has_capacity(at, payload_at + payload_bytes);
        if !self.batch.as_ref().is_some_and(has_capacity) {
            self.write_batch()?;
        }
        self.crcs.clear();
        if self.checksum {
            self.crcs.extend(data.chunks(CHUNK_BYTES).map(forebay_tier::checksum::crc32c));
        }
        let place = self.next_place();
        encode_piece(&mut self.header, place, RecordKind::Piece, &piece.header(), payload_bytes, &self.crcs);
        let batch = self.batch.as_mut().expect("asked by the caller");
        batch.push(at, &self.header, payload_at, data);
        Ok(())
    }

    /// Writes what was kept back. When that fails it stays kept back, and the next call tries again.
    fn write_batch(&mut self) -> Result<()> {
        let soon = self.is_wanted_soon(0);
        let Some(batch) = &mut self.batch else { return Ok(()) };
        let Some((at, bytes)) = batch.kept_back() else { return Ok(()) };
        self.device.write_unordered(at, bytes, None, &mut self.crcs, soon)?;
        batch.clear();
        Ok(())
    }

    /// Writes payload and header of a piece.
    #[inline]
    fn write_piece(&mut self, at: u64, payload_at: u64, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        self.crcs.clear();
        let payload_bytes = data.len() as u64;
        let join = !self.device.byte_addressable() && data.len() <= JOIN_BYTES_MAX;
        if join {
            if self.checksum {
                self.crcs.extend(data.chunks(CHUNK_BYTES).map(forebay_tier::checksum::crc32c));
            }
        } else {
            let chunk = self.checksum.then_some(CHUNK_BYTES);
            let soon = self.is_wanted_soon(payload_bytes);
            self.device.write_unordered(payload_at, data, chunk, &mut self.crcs, soon)?;
        }
        let place = self.next_place();
        encode_piece(&mut self.header, place, RecordKind::Piece, &piece.header(), payload_bytes, &self.crcs);
        if join {
            self.header.extend_from_slice(data);
        }
        self.write_header(at)
    }

    /// Space for a piece that the caller fills in place and returns by [`Lane::fill`]. Errors as for `append`.
    pub fn reserve(&mut self, source: &mut dyn SegmentSource, piece: &Piece<'_>) -> Result<Reserved> {
        let payload_bytes = piece.payload_bytes()?;
        self.write_batch()?;
        let at = self.place(source, piece, payload_bytes)?;
        let payload_at = at + self.payload_offset(piece, payload_bytes);
        // Until it is filled the place holds a void, so that the lane can be read across it.
        self.crcs.clear();
        self.crcs.resize(if self.checksum { crate::format::crc_count(payload_bytes) } else { 0 }, 0);
        let place = self.next_place();
        encode_piece(&mut self.header, place, RecordKind::Void, &piece.header(), payload_bytes, &self.crcs);
        let written = self.write_header(at);
        let staged = written.and_then(|()| self.device.stage(payload_at..payload_at + payload_bytes));
        let staged = staged.inspect_err(|_| self.note_stale(at))?;
        self.advance(at, payload_at + payload_bytes, 0, 0)?;
        let open = self.open.as_mut().expect("a version is open");
        open.reserved += 1;
        open.is_lent |= self.device.byte_addressable();
        Ok(Reserved {
            staged: Some(staged),
            at,
            record: place.sequence,
            version: open.version,
            name: piece.name.to_string(),
            dtype: piece.dtype,
            shape: Dims::from_slice(piece.shape),
            start: Dims::from_slice(piece.start),
            count: Dims::from_slice(piece.count),
        })
    }

    /// Makes a filled reservation part of the open version. Nothing is copied on byte-addressable pools; the
    /// checksum is computed here. Errors: [`Kind::StepState`] when its version is no longer open.
    pub fn fill(&mut self, mut reserved: Reserved) -> Result<()> {
        if self.open_version() != Some(reserved.version) {
            return Err(Error::new(Kind::StepState, "the step of this reservation has ended")
                .with("variable", &reserved.name)
                .with("version", reserved.version)
                .hint("commit a reservation before the step ends"));
        }
        let staged = reserved.staged.take().expect("filled once");
        let payload_bytes = staged.len() as u64;
        self.crcs.clear();
        let chunk = self.checksum.then_some(CHUNK_BYTES);
        self.device.unstage(staged, chunk, &mut self.crcs)?;
        let piece = PieceHeader {
            name: &reserved.name,
            dtype: reserved.dtype,
            shape: &reserved.shape,
            start: &reserved.start,
            count: &reserved.count,
        };
        let place = Place {
            sequence: reserved.record,
            version: reserved.version,
            rank: self.owner.rank,
            incarnation: self.owner.incarnation,
        };
        encode_piece(&mut self.header, place, RecordKind::Piece, &piece, payload_bytes, &self.crcs);
        if let Err(e) = self.write_header(reserved.at) {
            // Torn in the middle of the lane, where a scan of the segment may now end: the step cannot be sealed,
            // and what comes next goes into another segment.
            self.current = None;
            return Err(e);
        }
        let open = self.open.as_mut().expect("looked at above");
        open.reserved -= 1;
        open.pieces += 1;
        open.payload_bytes += payload_bytes;
        let end = reserved.at + self.header.len() as u64 + payload_bytes;
        if self.device.byte_addressable() && self.horizon != Horizon::None {
            // The caller's own stores went through the cache: unlike a write, nothing has written them back.
            return self.device.persist(reserved.at..end);
        }
        self.persist_at_write(reserved.at..end)
    }

    /// Whether the version is so small, with this piece, that its reader finds it in the cache when it is complete.
    #[inline]
    fn is_wanted_soon(&self, payload_bytes: u64) -> bool {
        let before = self.open.as_ref().map_or(0, |open| open.payload_bytes);
        before.saturating_add(payload_bytes) <= SOON_BYTES_MAX
    }

    /// Writes what `self.header` holds. Like the payload it is ordered by the fence before the commit word.
    #[inline]
    fn write_header(&mut self, at: u64) -> Result<()> {
        self.device.write_unordered(at, &self.header, None, &mut self.crcs, false)
    }

    /// Ends the version's records. Errors: [`Kind::StepState`] without an open version or with reservations
    /// that were not filled; those of the segment source.
    pub fn seal(&mut self, source: &mut dyn SegmentSource) -> Result<Sealed<'_, Unflushed>> {
        self.seal_as(source, RecordKind::Commit)
    }

    fn seal_as(&mut self, source: &mut dyn SegmentSource, kind: RecordKind) -> Result<Sealed<'_, Unflushed>> {
        let Some(open) = &self.open else {
            return Err(Error::new(Kind::StepState, "no step is open"));
        };
        if open.reserved > 0 {
            return Err(Error::new(Kind::StepState, "a reservation of this step was not committed")
                .with("version", open.version)
                .with("reservations", open.reserved)
                .hint("commit every reservation, or abort the step"));
        }
        let commit = CommitDf {
            first_record: open.first_record,
            pieces: open.pieces,
            payload_bytes: open.payload_bytes,
        };
        self.write_batch()?;
        let at = self.claim(source, COMMIT_RECORD_BYTES, true)?;
        if let Some((range, _)) = &self.current {
            source.note_filled(range.start, at + COMMIT_RECORD_BYTES - range.start);
        }
        let place = self.next_place();
        let word = encode_commit(&mut self.header, place, kind, &commit);
        Ok(Sealed { lane: self, at, word, state: PhantomData })
    }

    /// Says that nothing follows in this lane, durably as the horizon says. A lane without this record ended
    /// with its process. Errors: [`Kind::StepState`] while a version is open; those of source and device.
    pub fn finish(&mut self, source: &mut dyn SegmentSource, next_version: u64) -> Result<()> {
        if self.open.is_some() {
            return Err(Error::new(Kind::StepState, "a step is still open"));
        }
        if self.next_segment == 0 {
            // A lane that never opened a segment holds nothing that recovery could miss.
            return Ok(());
        }
        self.begin(next_version);
        let sealed = self.seal_as(source, RecordKind::End);
        match sealed {
            Ok(sealed) => sealed.flush()?.commit(),
            Err(e) => {
                self.abort(source);
                Err(e)
            }
        }
    }

    /// Gives the open version up. Reservations of it can no longer be filled. Segments that were begun for it are free
    /// again, unless memory of the pool was reserved, which the program may still write to: then they are when the
    /// version has been released. So are they where a device fails.
    pub fn abort(&mut self, source: &mut dyn SegmentSource) {
        // Records in older segments stay where they are: they belong to no commit, and their numbers are never used
        // again.
        let Some(mut open) = self.open.take() else { return };
        if let Some(at) = self.batch.as_mut().and_then(Batch::clear) {
            // Those that were never written would leave a hole, which ends a scan. A write that failed may have left
            // some of them.
            self.stale_end = Some(self.tail);
            self.tail = at;
        }
        if open.is_lent || self.unopened.is_some() {
            return;
        }
        // The newest first: what a crash leaves of the chain has no gap. The one before has space for the commit or the
        // end that comes next.
        for _ in 0..open.segments {
            let before = open.closed.pop();
            if before.is_none() && self.next_segment > 1 {
                return;
            }
            let taken = source.take_back(open.version, before.as_ref().map(|(range, ..)| range));
            if taken == TakenBack::Stays {
                return;
            }
            self.next_segment -= 1;
            (self.current, self.stale_end) = (None, None);
            if let TakenBack::Unopened(range) = taken {
                self.unopened = Some(range);
                return;
            }
            if let Some((range, noted, tail)) = before {
                (self.current, self.tail) = (Some((range, noted)), tail);
            }
        }
    }

    fn next_place(&self) -> Place {
        let open = self.open.as_ref().expect("a version is open");
        Place {
            sequence: self.next_record,
            version: open.version,
            rank: self.owner.rank,
            incarnation: self.owner.incarnation,
        }
    }

    fn payload_offset(&self, piece: &Piece<'_>, payload_bytes: u64) -> u64 {
        let crcs = if self.checksum { crate::format::crc_count(payload_bytes) } else { 0 };
        round_up(piece_meta_bytes(piece.shape.len(), piece.name.len(), crcs) as u64, RECORD_ALIGN)
    }

    fn place(
        &mut self,
        source: &mut dyn SegmentSource,
        piece: &Piece<'_>,
        payload_bytes: u64,
    ) -> Result<u64> {
        if self.open.is_none() {
            return Err(Error::new(Kind::StepState, "no step is open").with("variable", piece.name));
        }
        let bytes = self.payload_offset(piece, payload_bytes) + round_up(payload_bytes, RECORD_ALIGN);
        self.claim(source, bytes, false)
    }

    /// Space for the commit record of this version and the end record of the lane.
    fn closing_bytes(&self) -> u64 {
        if self.device.byte_addressable() {
            2 * COMMIT_RECORD_BYTES
        } else {
            2 * BLOCK_BYTES
        }
    }

    /// Where the next record of `bytes` goes. Pieces always leave space for the commit record, so that a commit
    /// does not fail for lack of space.
    #[inline]
    fn claim(&mut self, source: &mut dyn SegmentSource, bytes: u64, is_commit: bool) -> Result<u64> {
        let version = self.open_version().expect("a version is open");
        if self.stale_end.is_some() {
            self.wipe_stale()?;
        }
        let needed = if is_commit { bytes } else { bytes + self.closing_bytes() };
        let fits = self.current.as_ref().is_some_and(|(range, _)| self.tail + needed <= range.end);
        if !fits {
            self.add_segment(source, needed, version)?;
        }
        let (range, noted) = self.current.as_mut().expect("just made sure");
        if *noted != version {
            *noted = version;
            source.note_version(range.start, version);
        }
        Ok(self.tail)
    }

    #[cold]
    fn add_segment(&mut self, source: &mut dyn SegmentSource, needed: u64, version: u64) -> Result<()> {
        self.write_batch()?;
        let range = self.next_range(source, HEADER_BYTES + needed, version)?;
        assert!(range.start % HEADER_BYTES == 0, "segments begin on a page");
        assert!(range.end - range.start >= HEADER_BYTES + needed, "the source gives what was asked for");
        let df = SegmentDf {
            magic: 0,
            version: 0,
            uuid: self.owner.uuid,
            offset_bytes: range.start,
            length_bytes: range.end - range.start,
            sequence: self.next_segment,
            first_record: self.next_record,
            base_version: self.owner.base_version,
            rank: self.owner.rank,
            incarnation: self.owner.incarnation,
            group_size: self.owner.group_size,
            crc: 0,
        };
        // From here on nothing goes into the segment before, unless this version is given up: its owner counts it as
        // closed.
        let before = self.current.take().map(|(range, noted)| (range, noted, self.tail));
        if let Some((range, ..)) = &before {
            source.note_filled(range.start, self.tail - range.start);
        }
        self.open.as_mut().expect("a version is open").closed.extend(before);
        if let Err(e) = self.device.write(range.start, bytemuck::bytes_of(&df.sealed())) {
            self.unopened = Some(range);
            return Err(e);
        }
        self.unopened = None;
        self.next_segment += 1;
        self.open.as_mut().expect("as above").segments += 1;
        self.tail = range.start + HEADER_BYTES;
        self.note_written(range.start..self.tail);
        self.current = Some((range, version));
        Ok(())
    }

    /// A write of one record at the tail failed.
    fn note_stale(&mut self, at: u64) {
        self.stale_end = Some(at + RECORD_ALIGN);
    }

    /// Wipes what a failed write left behind the tail. A header that did reach the pool would count as a piece, or a
    /// commit, of this version: what comes next may be shorter, or lie in another segment.
    #[cold]
    fn wipe_stale(&mut self) -> Result<()> {
        let Some(end) = self.stale_end else { return Ok(()) };
        self.device.write(self.tail, &vec![0; (end - self.tail) as usize])?;
        self.note_written(self.tail..end);
        self.stale_end = None;
        Ok(())
    }

    /// Where the next segment goes: the one that could not be opened before, or a fresh one.
    fn next_range(&mut self, source: &mut dyn SegmentSource, bytes: u64, version: u64) -> Result<Range<u64>> {
        if let Some(range) = self.unopened.clone() {
            if range.end - range.start >= bytes {
                source.note_version(range.start, version);
                return Ok(range);
            }
            retire(&*self.device, range.start, self.horizon)?;
            source.release(range);
            self.unopened = None;
        }
        source.segment(bytes, version, self.next_segment)
    }

    fn note_written(&mut self, range: Range<u64>) {
        if let Some(open) = &mut self.open {
            open.written = Some(match open.written.take() {
                None => range,
                Some(w) => w.start.min(range.start)..w.end.max(range.end),
            });
        }
    }

    #[inline]
    fn advance(&mut self, at: u64, end: u64, payload_bytes: u64, pieces: u64) -> Result<()> {
        self.next_record += 1;
        self.tail = round_up(end, RECORD_ALIGN);
        self.note_written(at..end);
        let open = self.open.as_mut().expect("a version is open");
        open.pieces += pieces;
        open.payload_bytes += payload_bytes;
        self.persist_at_write(at..end)
    }

    fn persist_at_write(&self, range: Range<u64>) -> Result<()> {
        match (self.horizon, self.device.byte_addressable()) {
            (Horizon::Write, true) => {
                self.device.fence();
                Ok(())
            }
            (Horizon::Write, false) => self.device.persist(range),
            _ => Ok(()),
        }
    }
}

impl<'a> Sealed<'a, Unflushed> {
    /// Writes the commit record and makes the version persistent, as the horizon says. On block devices this
    /// already persists the commit. Blocks for one flush. Errors: those of the device; a failed flush poisons it.
    pub fn flush(mut self) -> Result<Sealed<'a, Flushed>> {
        let lane = &mut *self.lane;
        let end = self.at + COMMIT_RECORD_BYTES;
        lane.note_stale(self.at);
        if lane.device.byte_addressable() {
            lane.write_header(self.at)?;
            // Every line of the version was streamed or written back, none of them in order. The fence puts all
            // before the commit word: for readers at any horizon, and on the medium for the horizons above `none`.
            lane.device.fence();
        } else {
            let word = COMMIT_OFFSET as usize;
            lane.header[word..word + 8].copy_from_slice(&self.word.to_le_bytes());
            lane.device.write(self.at, &lane.header)?;
            lane.note_written(self.at..end);
            if lane.horizon != Horizon::None {
                let written = lane.open.as_ref().and_then(|o| o.written.clone()).expect("just noted");
                lane.device.persist(written)?;
            }
        }
        self.word = if lane.device.byte_addressable() { self.word } else { 0 };
        Ok(Sealed { lane: self.lane, at: self.at, word: self.word, state: PhantomData })
    }
}

impl Sealed<'_, Flushed> {
    /// Stores the commit word. On return the version of this lane is committed and survives what the horizon
    /// promises. Errors: those of the device.
    pub fn commit(self) -> Result<()> {
        let lane = self.lane;
        if lane.device.byte_addressable() {
            lane.device.store_word(self.at + COMMIT_OFFSET, self.word)?;
            if lane.horizon != Horizon::None {
                lane.device.persist(self.at..self.at + RECORD_ALIGN)?;
            }
        }
        lane.open = None;
        lane.stale_end = None;
        lane.next_record += 1;
        lane.tail = self.at + COMMIT_RECORD_BYTES;
        if !lane.device.byte_addressable() {
            lane.tail = round_up(lane.tail, BLOCK_BYTES);
        }
        Ok(())
    }
}
