//! Where frames come from: free ones, slabs that no shelf has, slabs of a shelf that has more than its share, and tiles
//! that leave.

use std::sync::atomic::Ordering::*;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_tier::engine::Frame;
use forebay_tier::Result;

use crate::array::Core;
use crate::engine::Op;
use crate::pool::{hash, lock, Inside, TILE_BITS, UNIT_BYTES};
use crate::shelf::{Inner, Shelf};
use crate::state::{self, Word, DIRTY, OVERLAID, RESIDENT};

/// Evictions begun together, so that their writes are under way together.
const BATCH: usize = 32;

/// How long a thread sleeps that needs a frame while all are pinned.
const FRAME_SLICE: Duration = Duration::from_millis(1);

/// What became of a tile that was to leave.
enum Evicted {
    /// It stays; its owner.
    No(u64),
    Clean(Frame),
    /// To be written first.
    Dirty(Box<Op>, Frame),
}

impl Inside {
    /// A frame, waiting for one if need be.
    pub(crate) fn frame(&self, core: &Core) -> Result<Frame> {
        let shelf = &core.shelf;
        let (failures, mut patience) = (shelf.failures(), self.patience());
        loop {
            if let Some(frame) = self.try_frame(core) {
                return Ok(frame);
            }
            let goes_on = self.drive_any();
            let failed = shelf.failures() - failures;
            if failed >= 2 * BATCH as u64 || failed > 0 && !goes_on {
                return Err(shelf.failure().expect("a failed write has left its error"));
            }
            patience.check("every frame of the budget is pinned")?;
            if !goes_on {
                std::thread::sleep(FRAME_SLICE);
            }
        }
    }

    /// A frame if one can be had at once. Where dirty tiles stand in the way their writes begin.
    pub(crate) fn try_frame(&self, core: &Core) -> Option<Frame> {
        if let Some(frame) = core.shelf.lock().free.pop() {
            return Some(frame);
        }
        // In a statement of its own: the lock of the slabs is not held while others are taken.
        let slab = lock(&self.slabs).pop();
        if let Some(slab) = slab.or_else(|| self.take_slab_for(&core.shelf)) {
            let mut inner = core.shelf.lock();
            inner.add_slab(slab, core.shelf.tile_bytes);
            return inner.free.pop();
        }
        let mut writes = Vec::new();
        let found = self.evict(&core.shelf, &mut writes);
        self.begin_writes(writes);
        found
    }

    /// Evicts tiles of a shelf until a clean one gave its frame, or a batch of dirty ones is to be written.
    fn evict(&self, shelf: &Shelf, writes: &mut Vec<(Op, Frame)>) -> Option<Frame> {
        let mut inner = shelf.lock();
        for _ in 0..inner.admitted() {
            let number = inner.victim(self)?;
            match self.evict_one(number) {
                Evicted::No(owner) => inner.keep(number, hash(owner)),
                Evicted::Clean(frame) => return Some(frame),
                Evicted::Dirty(op, frame) => writes.push((*op, frame)),
            }
            if writes.len() == BATCH {
                break;
            }
        }
        None
    }

    /// Evicts the tile in this place, if there is one and no thread pins it.
    fn evict_one(&self, number: u32) -> Evicted {
        let (owner, core) = self.owner_of(number);
        let Some(core) = core else { return Evicted::No(owner) };
        let tile = owner & ((1 << TILE_BITS) - 1);
        // The owner may be one of before: only a tile that is in this very frame leaves.
        let Some(seen) = state::begin_eviction(core.table.word(tile), number) else {
            return Evicted::No(owner);
        };
        let frame = self.take(number);
        self.counts.evicted.fetch_add(1, Relaxed);
        if seen & DIRTY != 0 {
            let op = core.write_op(tile, false, seen);
            return Evicted::Dirty(Box::new(op), frame);
        }
        self.open(&core, tile, seen & OVERLAID, 0);
        Evicted::Clean(frame)
    }

    /// Whether the tile in this place, if there is one, is pinned.
    fn is_pinned(&self, number: u32) -> bool {
        let (owner, core) = self.owner_of(number);
        core.is_some_and(|core| {
            let seen = Word::load(core.table.word(owner & ((1 << TILE_BITS) - 1)), Relaxed);
            seen & RESIDENT != 0 && state::payload(seen) == number && state::lock_of(seen) != 0
        })
    }

    /// A slab from the shelf that has most, for one with less than its share; what stands in the way leaves, so that
    /// it may come off only later.
    fn take_slab_for(&self, shelf: &Arc<Shelf>) -> Option<Frame> {
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner).clone();
        let share = (self.slabs_total.load(Relaxed) as usize / shelves.len()).max(1);
        if shelves.len() == 1 || shelf.slabs() >= share {
            return None;
        }
        let others = shelves.iter().filter(|other| !Arc::ptr_eq(other, shelf));
        let richest = others.max_by_key(|other| other.slabs())?;
        let mut writes = Vec::new();
        let slab = {
            let mut inner = richest.lock();
            let slab = inner.take_slab(self.slab_bytes);
            slab.or_else(|| self.clear_slab(richest, &mut inner, &mut writes))
        };
        self.begin_writes(writes);
        slab
    }

    /// Evicts what is in the first slab that no thread pins; the slab, unless tiles of it have to be written first.
    fn clear_slab(&self, shelf: &Shelf, inner: &mut Inner, writes: &mut Vec<(Op, Frame)>) -> Option<Frame> {
        let step = shelf.tile_bytes / UNIT_BYTES;
        let frames = |start: usize| {
            (start / UNIT_BYTES..(start + self.slab_bytes) / UNIT_BYTES).step_by(step).map(|at| at as u32)
        };
        let starts = inner.slab_starts();
        let start = starts.into_iter().find(|start| !frames(*start).any(|number| self.is_pinned(number)))?;
        for number in frames(start) {
            match self.evict_one(number) {
                Evicted::No(_) => continue,
                Evicted::Clean(frame) => inner.free.push(frame),
                Evicted::Dirty(op, frame) => writes.push((*op, frame)),
            }
            inner.remove(number);
        }
        inner.take_slab(self.slab_bytes)
    }

    /// Drops what an array holds: it goes, and no thread pins its tiles.
    ///
    /// # Errors
    /// `TimedOut`, for tiles whose requests do not end: they stay.
    pub(crate) fn drop_tiles(&self, core: &Core) -> Result<()> {
        let mut dropped = Ok(());
        for tile in core.table.touched(0..core.table.tiles()) {
            dropped = dropped.and(self.drop_tile(core, tile));
        }
        dropped
    }

    /// Evicts the tile and drops what it holds, after the thread that evicts or writes it right now is done.
    fn drop_tile(&self, core: &Core, tile: u64) -> Result<()> {
        let (word, mut patience) = (core.table.word(tile), self.patience());
        loop {
            if let Some(seen) = state::begin_move(word) {
                let number = state::payload(seen);
                let frame = self.take(number);
                let mut inner = core.shelf.lock();
                inner.remove(number);
                inner.free.push(frame);
                drop(inner);
                self.open(core, tile, 0, 0);
            }
            let seen = Word::load(word, Acquire);
            if state::lock_of(seen) != 0 {
                patience.check("a tile of an array that ends is in use").map_err(|e| e.with("tile", tile))?;
                self.wait(core, tile, seen);
            } else if seen & RESIDENT == 0 {
                return Ok(());
            }
        }
    }
}
