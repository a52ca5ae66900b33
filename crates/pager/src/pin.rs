//! Pins: a tile that stays where it is as long as a thread looks at it or writes it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use bytemuck::{AnyBitPattern, NoUninit};
use forebay_tier::engine::Frame;
use forebay_tier::{Error, Kind, Result};

use crate::array::Array;
use crate::state::{self, Pin, BUSY, DIRTY, RESIDENT, WRITER};

/// The data of a tile, to read; pinned until dropped.
pub struct Tile<'a> {
    array: &'a Array,
    tile: u64,
    data: Range<usize>,
    frame: Option<RwLockReadGuard<'a, Option<Frame>>>,
}

/// The data of a tile, to read and write; no other thread sees it until it is dropped.
pub struct TileMut<'a> {
    array: &'a Array,
    tile: u64,
    data: Range<usize>,
    frame: Option<RwLockWriteGuard<'a, Option<Frame>>>,
}

const LIVE: &str = "a pin has its frame until it is dropped";

impl Tile<'_> {
    /// Which tile.
    pub fn number(&self) -> u64 {
        self.tile
    }

    /// Which bytes of the array.
    pub fn range(&self) -> Range<u64> {
        self.array.tile_range(self.tile)
    }

    /// Its data as values.
    ///
    /// # Errors
    /// `BufferMismatch` when a value would straddle its ends.
    pub fn values<T: AnyBitPattern>(&self) -> Result<&[T]> {
        bytemuck::try_cast_slice(self).map_err(|e| mismatch::<T>(&e.to_string()))
    }
}

impl TileMut<'_> {
    /// Which tile.
    pub fn number(&self) -> u64 {
        self.tile
    }

    /// Which bytes of the array.
    pub fn range(&self) -> Range<u64> {
        self.array.tile_range(self.tile)
    }

    /// Its data as values.
    ///
    /// # Errors
    /// `BufferMismatch` when a value would straddle its ends.
    pub fn values<T: AnyBitPattern + NoUninit>(&mut self) -> Result<&mut [T]> {
        bytemuck::try_cast_slice_mut(self).map_err(|e| mismatch::<T>(&e.to_string()))
    }
}

#[cold]
fn mismatch<T>(why: &str) -> Error {
    Error::new(
        Kind::BufferMismatch,
        format!("a tile cannot be a slice of {}: {why}", std::any::type_name::<T>()),
    )
}

impl Deref for Tile<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let frame = self.frame.as_ref().and_then(|guard| guard.as_ref()).expect(LIVE);
        &frame.bytes()[self.data.clone()]
    }
}

impl Deref for TileMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let frame = self.frame.as_ref().and_then(|guard| guard.as_ref()).expect(LIVE);
        &frame.bytes()[self.data.clone()]
    }
}

impl DerefMut for TileMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let frame = self.frame.as_mut().and_then(|guard| guard.as_mut()).expect(LIVE);
        &mut frame.bytes_mut()[self.data.clone()]
    }
}

impl Drop for Tile<'_> {
    fn drop(&mut self) {
        // Before the pin: the next thread finds the frame free.
        self.frame = None;
        self.array.unpin(self.tile, false);
    }
}

impl Drop for TileMut<'_> {
    fn drop(&mut self) {
        self.frame = None;
        self.array.unpin(self.tile, true);
    }
}

/// What asking for a tile ahead of its use led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is pinned, or will be when its load has ended.
    Claimed,
    /// Another thread has it; ask again.
    Locked,
    /// There is no frame for it now.
    NoFrame,
}

impl Array {
    /// Pins a tile, loading it if need be.
    ///
    /// # Errors
    /// What the load failed with; `TimedOut` when another thread writes it, or every frame is pinned, for a minute.
    pub fn pin(&self, tile: u64) -> Result<Tile<'_>> {
        self.check_tile(tile)?;
        let mut patience = self.pool.0.patience();
        loop {
            match state::pin(self.core.table.word(tile)) {
                Pin::Frame(frame) => {
                    self.pool.0.count_hit();
                    return Ok(self.tile(tile, frame));
                }
                Pin::Failed => return Err(self.failed(tile)),
                Pin::Absent => {
                    if self.load(tile)? {
                        return self.claimed(tile);
                    }
                }
                Pin::Locked(seen) => {
                    patience.check("another thread writes the tile").map_err(|e| e.with("tile", tile))?;
                    self.wait(tile, seen);
                }
            }
        }
    }

    /// Pins a tile to write it, loading it if need be.
    ///
    /// # Errors
    /// As [`Array::pin`], and `PermissionDenied` for a read-only array.
    pub fn pin_mut(&self, tile: u64) -> Result<TileMut<'_>> {
        self.pin_to_write(tile, false)
    }

    /// As [`Array::pin_mut`]; with `overwrite` the caller promises to write all of the tile's data, so that it need not
    /// be loaded.
    pub(crate) fn pin_to_write(&self, tile: u64, overwrite: bool) -> Result<TileMut<'_>> {
        self.core.check_writable()?;
        self.check_tile(tile)?;
        // What the frame has beside the data must be kept, too.
        let overwrite = overwrite && self.data_of(tile) == (0..self.core.needed(tile));
        let mut patience = self.pool.0.patience();
        loop {
            match state::pin_to_write(self.core.table.word(tile)) {
                Pin::Frame(frame) => return Ok(self.tile_mut(tile, frame)),
                Pin::Failed => return Err(self.failed(tile)),
                Pin::Absent if overwrite => {
                    if let Some(frame) = self.place_fresh(tile)? {
                        return Ok(self.tile_mut(tile, frame));
                    }
                }
                Pin::Absent => {
                    if self.load(tile)? {
                        // The claim is to read; it is released for one that writes.
                        drop(self.claimed(tile)?);
                    }
                }
                Pin::Locked(seen) => {
                    patience.check("another thread pins the tile").map_err(|e| e.with("tile", tile))?;
                    self.wait(tile, seen);
                }
            }
        }
    }

    /// Asks for a tile ahead of its use. The load is handed over by the next `submit`.
    pub(crate) fn ask(&self, tile: u64) -> Asked {
        match state::pin(self.core.table.word(tile)) {
            Pin::Frame(_) => {
                self.pool.0.count_hit();
                Asked::Claimed
            }
            Pin::Failed => Asked::Claimed,
            Pin::Locked(_) => Asked::Locked,
            Pin::Absent => {
                let inside = &self.pool.0;
                let Some(frame) = inside.try_frame(&self.core) else { return Asked::NoFrame };
                self.begin_load(tile, frame, true)
            }
        }
    }

    /// Begins to read the tiles that hold these bytes, as far as they fit, and does not wait for them. Only a
    /// hint: nothing is pinned, and errors are those of who touches the tiles later.
    pub fn prefetch(&self, range: std::ops::Range<u64>) {
        let range = range.start.min(self.bytes())..range.end.min(self.bytes());
        if range.is_empty() || self.pool.0.check().is_err() {
            return;
        }
        let most = self.pool.0.frames_of(&self.core.shelf) / 2;
        for tile in (self.tile_of(range.start).0..=self.tile_of(range.end - 1).0).take(most) {
            if !self.prefetch_tile(tile) {
                break;
            }
        }
        self.pool.0.submit(self.pool.0.own_engine());
    }

    /// Begins to read an absent tile without a pin; handed over by the next `submit`. False: there is no frame for it.
    pub(crate) fn prefetch_tile(&self, tile: u64) -> bool {
        let word = state::Word::load(self.core.table.word(tile), std::sync::atomic::Ordering::Relaxed);
        if word & (RESIDENT | state::FAILED) != 0 || state::lock_of(word) != 0 {
            return true;
        }
        let frame = self.pool.0.try_frame(&self.core);
        frame.map(|frame| self.begin_load(tile, frame, false)).is_some()
    }

    fn begin_load(&self, tile: u64, frame: Frame, claim: bool) -> Asked {
        let (inside, word) = (&self.pool.0, self.core.table.word(tile));
        if !state::begin_load(word) {
            self.core.shelf.lock().free.push(frame);
            return Asked::Locked;
        }
        let seen = state::Word::load(word, std::sync::atomic::Ordering::Relaxed);
        inside.begin(inside.own_engine(), self.core.load_op(tile, seen, claim), frame);
        Asked::Claimed
    }

    /// Begins to load an absent tile; false: another thread was faster.
    fn load(&self, tile: u64) -> Result<bool> {
        let frame = self.pool.0.frame(&self.core)?;
        let begun = self.begin_load(tile, frame, true) == Asked::Claimed;
        self.pool.0.submit(self.pool.0.own_engine());
        Ok(begun)
    }

    /// The tile of a claim, once its load has ended.
    pub(crate) fn claimed(&self, tile: u64) -> Result<Tile<'_>> {
        let word = self.core.table.word(tile);
        let mut patience = self.pool.0.patience();
        loop {
            let seen = state::Word::load(word, std::sync::atomic::Ordering::Acquire);
            if state::lock_of(seen) != BUSY {
                return match seen & state::FAILED {
                    0 => Ok(self.tile(tile, state::payload(seen))),
                    _ => Err(self.failed(tile)),
                };
            }
            match patience.check("a tile does not come") {
                Ok(()) => self.wait(tile, seen),
                Err(e) if self.core.leave_claim(tile) => return Err(e.with("tile", tile)),
                // It came in the last moment.
                Err(_) => {}
            }
        }
    }

    /// Whether the load of a claim has ended.
    pub(crate) fn has_come(&self, tile: u64) -> bool {
        let seen = state::Word::load(self.core.table.word(tile), std::sync::atomic::Ordering::Acquire);
        state::lock_of(seen) != BUSY
    }

    /// Releases a claim.
    pub(crate) fn unclaim(&self, tile: u64) {
        drop(self.claimed(tile));
    }

    /// An absent tile gets a fresh frame to be written; its number, or None when another thread was faster.
    fn place_fresh(&self, tile: u64) -> Result<Option<u32>> {
        let (inside, core) = (&self.pool.0, &self.core);
        let mut frame = inside.frame(core)?;
        if !state::begin_load(core.table.word(tile)) {
            core.shelf.lock().free.push(frame);
            return Ok(None);
        }
        // If the writer panics, there are zeros and not what another tile held.
        frame.bytes_mut().fill(0);
        let seen = state::Word::load(core.table.word(tile), std::sync::atomic::Ordering::Relaxed);
        let number = inside.install(core, tile, frame);
        inside.admit(core, tile, number);
        inside.open(core, tile, RESIDENT | DIRTY | seen & state::OVERLAID | WRITER, number);
        Ok(Some(number))
    }

    fn tile(&self, tile: u64, frame: u32) -> Tile<'_> {
        self.pool.0.touched(frame);
        let guard = self.pool.0.place(frame).frame.try_read().expect("a pinned tile is only read");
        Tile { array: self, tile, data: self.data_of(tile), frame: Some(guard) }
    }

    fn tile_mut(&self, tile: u64, frame: u32) -> TileMut<'_> {
        self.pool.0.touched(frame);
        let guard = self.pool.0.place(frame).frame.try_write().expect("one writer at a time");
        TileMut { array: self, tile, data: self.data_of(tile), frame: Some(guard) }
    }

    /// The error of a tile that failed to load; the pin on it is released.
    #[cold]
    fn failed(&self, tile: u64) -> Error {
        self.core.take_load_error(tile, || self.unpin(tile, false))
    }

    pub(crate) fn unpin(&self, tile: u64, dirty: bool) {
        self.pool.0.unpin(&self.core, tile, dirty);
    }

    /// Waits until a locked tile, whose word was `seen`, may have opened.
    pub(crate) fn wait(&self, tile: u64, seen: u64) {
        self.pool.0.wait(&self.core, tile, seen);
    }

    /// Waits until a tile is not busy.
    ///
    /// # Errors
    /// `TimedOut`, when what is under way does not end.
    pub(crate) fn settle(&self, tile: u64) -> Result<()> {
        let mut patience = self.pool.0.patience();
        loop {
            let seen = state::Word::load(self.core.table.word(tile), std::sync::atomic::Ordering::Acquire);
            if state::lock_of(seen) != BUSY {
                return Ok(());
            }
            patience.check("a tile is on its way and does not come").map_err(|e| e.with("tile", tile))?;
            self.wait(tile, seen);
        }
    }

    fn check_tile(&self, tile: u64) -> Result<()> {
        self.pool.0.check()?;
        if tile < self.tiles_total() {
            return Ok(());
        }
        Err(Error::new(Kind::BoxOutsideShape, format!("tile {tile} of {}", self.tiles_total())))
    }
}
