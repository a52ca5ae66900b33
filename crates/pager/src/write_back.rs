//! Writing back: what was changed goes to the backing, many tiles at once, and stays there.

use std::ops::Range;

use forebay_tier::{Horizon, Result};

use crate::array::{Array, Mode};
use crate::engine::DEPTH;
use crate::state::{self, DIRTY, RESIDENT};

impl Array {
    /// Writes back what was changed and makes it durable. Of a copy-on-write array nothing is ever written back.
    ///
    /// # Errors
    /// A write that failed now, no matter which thread began it: what it was to write stays in memory, and the next
    /// flush tries again, as this one did with writes that had failed when frames were wanted. `TimedOut` when a tile
    /// is pinned, or its request does not end, for long. Or what the flush of the backing failed with: then it is
    /// unknown what the medium holds, and the array takes no more writes (`Poisoned`).
    pub fn flush(&self) -> Result<()> {
        self.flush_tiles(0..self.tiles_total())
    }

    pub(crate) fn flush_tiles(&self, tiles: Range<u64>) -> Result<()> {
        self.pool.0.check()?;
        if self.core.mode != Mode::ReadWrite {
            return Ok(());
        }
        self.core.check_poison()?;
        self.write_back(tiles)?;
        self.core.flush_backing()
    }

    /// After a write to these bytes: what the horizon asks for.
    pub(crate) fn wrote(&self, range: &Range<u64>) -> Result<()> {
        if self.horizon != Horizon::Write || range.is_empty() {
            return Ok(());
        }
        self.flush_tiles(self.tile_of(range.start).0..self.tile_of(range.end - 1).0 + 1)
    }

    /// Writes the dirty ones of these tiles, and returns when they are written.
    pub(crate) fn write_back(&self, tiles: Range<u64>) -> Result<()> {
        let (inside, at) = (&self.pool.0, self.pool.0.own_engine());
        let mut begun = Vec::new();
        let mut result = Ok(());
        for tile in self.core.table.touched(tiles.clone()) {
            match self.begin_write_back(tile) {
                Ok(true) => begun.push(tile),
                Ok(false) => {}
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            if begun.len() == DEPTH {
                inside.submit(at);
                result = result.and(begun.drain(..).try_for_each(|tile| self.settle(tile)));
                if result.is_err() {
                    break;
                }
            }
        }
        inside.submit(at);
        result = result.and(begun.drain(..).try_for_each(|tile| self.settle(tile)));
        // Also what failed in the hands of others, who may have been told before us.
        result.and_then(|()| self.core.check_written(tiles))
    }

    /// Begins to write a tile if it is dirty, waiting for pins on it. True also for a write that another thread began.
    fn begin_write_back(&self, tile: u64) -> Result<bool> {
        let (inside, word) = (&self.pool.0, self.core.table.word(tile));
        let mut patience = inside.patience();
        loop {
            let seen = state::Word::load(word, std::sync::atomic::Ordering::Acquire);
            if state::lock_of(seen) == state::BUSY {
                // It is written right now, or read: what is read is clean.
                return Ok(true);
            }
            let writer = state::lock_of(seen) == state::WRITER;
            if !writer && seen & (RESIDENT | DIRTY) != RESIDENT | DIRTY {
                return Ok(false);
            }
            if let Some(seen) = state::begin_move(word) {
                if seen & DIRTY == 0 {
                    // Another thread was faster.
                    inside.open(&self.core, tile, seen & !state::WAITED & 0xffff_ffff, state::payload(seen));
                    return Ok(false);
                }
                let frame = inside.take(state::payload(seen));
                inside.begin(inside.own_engine(), self.core.write_op(tile, true, seen), frame);
                return Ok(true);
            }
            patience
                .check("a tile that is to be written back is pinned")
                .map_err(|e| e.with("tile", tile))?;
            self.wait(tile, seen);
        }
    }
}
