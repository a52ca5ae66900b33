//! An array: a range of bytes of a backing, cut into tiles that come and go.
//!
//! Tiles are cut from the start of the backing, not of the data, so that each is aligned there; the data may begin
//! anywhere ([`ArrayOptions::origin`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_tier::plain::PlainFile;
use forebay_tier::{Error, Horizon, Kind, Result};

use crate::backing::{Backing, FileBacking};
use crate::engine::Op;
use crate::policy::Policy;
use crate::pool::{Pool, TILE_BYTES_MAX, UNIT_BYTES};
use crate::shelf::Shelf;
use crate::state::{self, Word, OVERLAID};
use crate::table::Table;

/// What may be done with an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Read.
    #[default]
    ReadOnly,
    /// Read and write.
    ReadWrite,
    /// Read and write; what is written stays with this array and goes with it. What does not fit the budget lies in a
    /// file without a name.
    CopyOnWrite,
}

/// How to open an array.
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    /// Length of a tile: a power of two from 4 KiB to the longest of the pool.
    pub tile_bytes: usize,
    /// What may be done.
    pub mode: Mode,
    /// Which tiles leave first.
    pub policy: Policy,
    /// When writes become durable: with each `write`, with `flush` and the end of the array, or with `flush` alone.
    pub horizon: Horizon,
    /// Byte of the backing where the data begins.
    pub origin: u64,
    /// Bytes of data; None: to the end of the backing.
    pub bytes: Option<u64>,
    /// Folder for the file of what was copied on write.
    pub overlay: PathBuf,
}

impl ArrayOptions {
    /// Tiles of this length, everything else as it is mostly wanted.
    pub fn new(tile_bytes: usize) -> ArrayOptions {
        ArrayOptions {
            tile_bytes,
            mode: Mode::default(),
            policy: Policy::default(),
            horizon: Horizon::Epoch,
            origin: 0,
            bytes: None,
            overlay: std::env::temp_dir(),
        }
    }
}

/// An error that is told to several, who each need one of their own.
pub(crate) struct Kept {
    kind: Kind,
    message: String,
    hint: Option<String>,
    facts: Vec<(&'static str, String)>,
}

impl Kept {
    pub(crate) fn new(e: &Error) -> Kept {
        Kept {
            kind: e.kind(),
            message: e.message().to_string(),
            hint: e.hint_text().map(str::to_string),
            facts: e.context().to_vec(),
        }
    }

    pub(crate) fn error(&self) -> Error {
        let mut error = Error::new(self.kind, self.message.clone());
        for (key, value) in &self.facts {
            error = error.with(key, value);
        }
        match &self.hint {
            Some(hint) => error.hint(hint.clone()),
            None => error,
        }
    }
}

/// What pool and handles share of an array.
pub(crate) struct Core {
    pub(crate) number: u16,
    pub(crate) table: Table,
    pub(crate) shelf: Arc<Shelf>,
    backing: Arc<dyn Backing>,
    overlay: Option<FileBacking>,
    pub(crate) mode: Mode,
    /// What the load of a tile failed with, as long as its word says that it did; read under a pin of the tile.
    load_errors: Mutex<HashMap<u64, Kept>>,
    /// Claims of tiles on the way whose owners waited too long: the thread that completes the load releases them.
    left_claims: Mutex<HashSet<u64>>,
    /// Tiles whose last write failed, and what with. They are dirty still, and a flush that covers them reports the
    /// error, however many flushes run at once, until a later write of the tile succeeds.
    write_errors: Mutex<BTreeMap<u64, Kept>>,
    flushing: Mutex<()>,
    /// What the first failed flush said: from then on it is unknown what the medium holds.
    poison: Mutex<Option<Kept>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    #[inline]
    pub(crate) fn tile_bytes(&self) -> usize {
        self.shelf.tile_bytes
    }

    pub(crate) fn tile_offset(&self, tile: u64) -> u64 {
        tile * self.tile_bytes() as u64
    }

    /// Where reads and writes go: in the overlay, or not.
    pub(crate) fn backing(&self, overlaid: bool) -> &dyn Backing {
        match &self.overlay {
            Some(overlay) if overlaid => overlay,
            _ => &*self.backing,
        }
    }

    /// Bytes of a tile that the backing has.
    pub(crate) fn needed(&self, tile: u64) -> usize {
        let left = self.backing.bytes() - self.tile_offset(tile);
        left.min(self.tile_bytes() as u64) as usize
    }

    fn op(self: &Arc<Core>, tile: u64, write: bool, seen: u64) -> Op {
        let was_overlaid = seen & OVERLAID != 0;
        Op {
            core: self.clone(),
            tile,
            write,
            keep: false,
            claim: false,
            done: 0,
            needed: self.needed(tile),
            overlaid: if write { self.overlay.is_some() } else { was_overlaid },
            was_overlaid,
            repeats: 0,
        }
    }

    /// To load a tile whose word is `seen`, with a pin for who asks or without.
    pub(crate) fn load_op(self: &Arc<Core>, tile: u64, seen: u64, claim: bool) -> Op {
        Op { claim, ..self.op(tile, false, seen) }
    }

    /// To write a tile whose word was `seen`; it stays where it is, or leaves.
    pub(crate) fn write_op(self: &Arc<Core>, tile: u64, keep: bool, seen: u64) -> Op {
        Op { keep, ..self.op(tile, true, seen) }
    }

    pub(crate) fn keep_error(&self, tile: u64, e: Error) {
        lock(&self.load_errors).insert(tile, Kept::new(&e));
    }

    /// The error of a tile that failed to load, which the caller pins and `unpin` lets go: with the last pin it goes.
    pub(crate) fn take_load_error(&self, tile: u64, unpin: impl FnOnce()) -> Error {
        let mut errors = lock(&self.load_errors);
        let kept = errors.get(&tile).map(Kept::error);
        unpin();
        // A thread that loads the tile next and fails says so after this lock.
        if Word::load(self.table.word(tile), Acquire) & state::FAILED == 0 {
            errors.remove(&tile);
        }
        kept.unwrap_or_else(|| Error::new(Kind::Internal, "a tile failed to load and left no error"))
            .with("tile", tile)
    }

    /// Leaves a claim on a busy tile to the thread that completes its load; false: the load has ended.
    pub(crate) fn leave_claim(&self, tile: u64) -> bool {
        let mut left = lock(&self.left_claims);
        // Under the lock that the other side takes after it has opened the tile.
        let busy = state::lock_of(Word::load(self.table.word(tile), Acquire)) == state::BUSY;
        if busy {
            left.insert(tile);
        }
        busy
    }

    /// Whether a tile that was just opened has a claim that its owner left.
    pub(crate) fn take_left_claim(&self, tile: u64) -> bool {
        lock(&self.left_claims).remove(&tile)
    }

    /// The last write of this tile failed; said before the tile opens.
    pub(crate) fn write_failed(&self, tile: u64, e: &Error) {
        lock(&self.write_errors).insert(tile, Kept::new(e));
    }

    /// The last write of this tile succeeded; said before the tile opens.
    pub(crate) fn write_succeeded(&self, tile: u64) {
        lock(&self.write_errors).remove(&tile);
    }

    /// What the last write of one of these tiles failed with.
    pub(crate) fn check_written(&self, tiles: Range<u64>) -> Result<()> {
        match lock(&self.write_errors).range(tiles).next() {
            None => Ok(()),
            Some((tile, kept)) => Err(kept.error().with("tile", tile)),
        }
    }

    /// How many errors are kept.
    #[cfg(test)]
    pub(crate) fn errors_kept(&self) -> (usize, usize) {
        (lock(&self.load_errors).len(), lock(&self.write_errors).len())
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.mode == Mode::ReadOnly {
            return Err(Error::new(
                Kind::PermissionDenied,
                format!("{} is open read-only", self.backing.name()),
            )
            .hint("open it in mode r+ or c"));
        }
        self.check_poison()
    }

    pub(crate) fn check_poison(&self) -> Result<()> {
        match &*lock(&self.poison) {
            None => Ok(()),
            Some(kept) => Err(kept.error()),
        }
    }

    /// Makes durable what was written. One thread after the other: the system tells of a failed flush only once, and
    /// the next thread must not take the silence for success.
    pub(crate) fn flush_backing(&self) -> Result<()> {
        let _one = lock(&self.flushing);
        self.check_poison()?;
        self.backing.flush().map_err(|e| {
            let poison = Error::new(
                Kind::Poisoned,
                format!("a flush of {} failed: {}", self.backing.name(), e.message()),
            )
            .hint("data flushed before are intact; check the disk (kernel log), then open the array again");
            let kept = Kept::new(&poison);
            lock(&self.poison).get_or_insert(kept);
            poison.caused_by(e)
        })
    }
}

/// An array in a pool. Threads may share it. When it goes, what was written is written back (and made durable, with
/// horizons other than `none`); errors are then only seen by who calls [`Array::close`].
pub struct Array {
    pub(crate) pool: Pool,
    pub(crate) core: Arc<Core>,
    pub(crate) origin: u64,
    pub(crate) bytes: u64,
    pub(crate) horizon: Horizon,
    pub(crate) closed: bool,
}

impl Array {
    /// An array over `backing` in `pool`.
    ///
    /// # Errors
    /// `Usage` for tiles that the pool cannot hold, `Damaged` when the backing ends before the data, `TierFull` when
    /// its page table does not fit the budget.
    pub fn open(pool: &Pool, backing: Arc<dyn Backing>, options: &ArrayOptions) -> Result<Array> {
        pool.0.check()?;
        check_tile(pool, options.tile_bytes)?;
        let there = backing.bytes();
        let bytes = options.bytes.unwrap_or(there.saturating_sub(options.origin));
        if options.origin.checked_add(bytes).is_none_or(|end| end > there) {
            return Err(Error::new(Kind::Damaged, format!("{} is too short", backing.name()))
                .with("bytes", there)
                .with("wanted", options.origin.saturating_add(bytes))
                .hint("the shape or dtype is wrong, or the file was truncated"));
        }
        let tiles = (options.origin + bytes).div_ceil(options.tile_bytes as u64);
        let overlay = match options.mode {
            Mode::CopyOnWrite => Some(FileBacking::new(PlainFile::nameless(&options.overlay, there)?)?),
            _ => None,
        };
        let make = |number, shelf| {
            Arc::new(Core {
                number,
                table: Table::new(tiles),
                shelf,
                backing,
                overlay,
                mode: options.mode,
                load_errors: Mutex::default(),
                left_claims: Mutex::default(),
                write_errors: Mutex::default(),
                flushing: Mutex::default(),
                poison: Mutex::default(),
            })
        };
        let core = pool.0.register(options.tile_bytes, options.policy, tiles, make)?;
        let (origin, horizon) = (options.origin, options.horizon);
        Ok(Array { pool: pool.clone(), core, origin, bytes, horizon, closed: false })
    }

    /// Bytes of data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of a tile.
    pub fn tile_bytes(&self) -> usize {
        self.core.tile_bytes()
    }

    /// How many tiles there are; the first and the last may hold less data than the others.
    pub fn tiles_total(&self) -> u64 {
        self.core.table.tiles()
    }

    /// What may be done.
    pub fn mode(&self) -> Mode {
        self.core.mode
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What its bytes come from: without what copy-on-write keeps to itself, and as it was flushed last.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.core.backing
    }

    /// Byte of the backing where the data begins.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// `direct` or what else its backing says.
    pub fn method(&self) -> &'static str {
        self.core.backing.method()
    }

    /// The data of a tile: which bytes of the array.
    pub fn tile_range(&self, tile: u64) -> Range<u64> {
        let start = self.core.tile_offset(tile);
        let end = (start + self.tile_bytes() as u64).min(self.origin + self.bytes);
        start.saturating_sub(self.origin)..end.saturating_sub(self.origin)
    }

    /// The tile that holds a byte of data, and where in its frame.
    #[inline]
    pub(crate) fn tile_of(&self, byte: u64) -> (u64, usize) {
        let at = self.origin + byte;
        let tile_bytes = self.tile_bytes() as u64;
        (at / tile_bytes, (at % tile_bytes) as usize)
    }

    /// The part of a tile's frame that holds data.
    pub(crate) fn data_of(&self, tile: u64) -> Range<usize> {
        let start = self.core.tile_offset(tile);
        let from = self.origin.saturating_sub(start) as usize;
        from..((self.origin + self.bytes - start).min(self.tile_bytes() as u64)) as usize
    }

    pub(crate) fn check_range(&self, range: &Range<u64>) -> Result<()> {
        self.pool.0.check()?;
        if range.start <= range.end && range.end <= self.bytes {
            return Ok(());
        }
        Err(Error::new(Kind::BoxOutsideShape, "range out of bounds of the array")
            .with("start", range.start)
            .with("end", range.end)
            .with("bytes", self.bytes))
    }

    /// Ends the array: as dropping it, with the errors.
    ///
    /// # Errors
    /// What could not be written or made durable; it is lost then.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) || self.pool.0.check().is_err() {
            // A forked child has copies of frames that are the parent's to write.
            return Ok(());
        }
        let written = match self.core.mode {
            Mode::ReadWrite if self.horizon == Horizon::None => self.write_back(0..self.tiles_total()),
            Mode::ReadWrite => self.flush(),
            _ => Ok(()),
        };
        let dropped = self.pool.0.drop_tiles(&self.core);
        if dropped.is_ok() {
            self.pool.0.forget(&self.core);
        }
        // Where a tile is still on its way, the pool goes on knowing the array: the frame comes back by eviction.
        written.and(dropped)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // A caller that wants to know calls `close` or `flush` before.
        let _ = self.end();
    }
}

fn check_tile(pool: &Pool, tile_bytes: usize) -> Result<()> {
    if tile_bytes.is_power_of_two() && (UNIT_BYTES..=pool.tile_max()).contains(&tile_bytes) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("tiles of {tile_bytes} bytes do not fit the pool"))
        .with("tile_max", pool.tile_max())
        .hint(format!(
            "a power of two from {UNIT_BYTES} to the longest of the pool ({TILE_BYTES_MAX} at most)"
        )))
}
