//! Reading ahead: tiles are asked for in a known order, many before they are used.
//!
//! What is asked for stays pinned until it is used, so at most half of the frames that arrays of these tiles can hope
//! for are taken ahead, by all who read ahead together: what else they do needs frames, too. With one frame left to it,
//! the order goes on tile by tile.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::atomic::Ordering::Relaxed;

use forebay_tier::Result;

use crate::array::Array;
use crate::engine::DEPTH;
use crate::pin::{Asked, Tile};

/// Bytes under way that keep a fast device busy with long requests.
const AHEAD_BYTES: usize = 16 << 20;

/// Requests that are handed over together.
const BATCH: usize = 16;

/// See the file's head. It is tied to its thread: completions come to the thread that asked.
pub(crate) struct Ahead<'a, I: Iterator<Item = u64>> {
    array: &'a Array,
    order: Peekable<I>,
    /// Asked for, in order; whether it is claimed.
    asked: VecDeque<(u64, bool)>,
    depth: usize,
    /// Most claims of all.
    claims_max: usize,
    /// Begun and not handed over.
    begun: usize,
    thread: std::marker::PhantomData<*const ()>,
}

impl<'a, I: Iterator<Item = u64>> Ahead<'a, I> {
    pub(crate) fn new(array: &'a Array, order: I) -> Ahead<'a, I> {
        let tile = array.tile_bytes();
        let frames = array.pool.0.frames_of(&array.core.shelf);
        let depth = DEPTH.min(AHEAD_BYTES / tile).min(frames / 2).max(1);
        Ahead {
            array,
            order: order.peekable(),
            asked: VecDeque::with_capacity(depth),
            depth,
            claims_max: (frames / 2).max(1),
            begun: 0,
            thread: std::marker::PhantomData,
        }
    }

    /// Asks for as many as fit.
    fn fill(&mut self) {
        while self.asked.len() < self.depth {
            let Some(tile) = self.order.peek().copied() else { break };
            if self.array.core.shelf.claims.load(Relaxed) >= self.claims_max {
                break;
            }
            let claimed = match self.array.ask(tile) {
                Asked::Claimed => true,
                Asked::Locked => false,
                Asked::NoFrame => break,
            };
            self.order.next();
            self.asked.push_back((tile, claimed));
            self.array.core.shelf.claims.fetch_add(usize::from(claimed), Relaxed);
            self.begun += usize::from(claimed);
            if self.begun >= BATCH {
                self.submit();
            }
        }
    }

    fn submit(&mut self) {
        if std::mem::take(&mut self.begun) > 0 {
            self.array.pool.0.submit(self.array.pool.0.own_engine());
        }
    }

    /// A tile that was locked when it was asked for. A thread that waits for a frame or for a writer holds no claims:
    /// all that read ahead could hold every frame, and wait for each other.
    fn late(&mut self, tile: u64) -> Result<Tile<'a>> {
        // What is on the way comes whatever is held here.
        self.array.settle(tile)?;
        if self.array.ask(tile) == Asked::Claimed {
            self.array.pool.0.submit(self.array.pool.0.own_engine());
            return self.array.claimed(tile);
        }
        self.let_go();
        self.array.pin(tile)
    }

    /// Releases all claims; the tiles are asked for again in their turn.
    fn let_go(&mut self) {
        for (tile, claimed) in &mut self.asked {
            if std::mem::take(claimed) {
                self.array.core.shelf.claims.fetch_sub(1, Relaxed);
                self.array.unclaim(*tile);
            }
        }
    }

    /// The next tile of the order.
    pub(crate) fn next(&mut self) -> Option<Result<Tile<'a>>> {
        // Refilled in batches: one call hands over many.
        if self.asked.len() + BATCH.min(self.depth / 2) <= self.depth {
            self.fill();
        }
        match self.asked.pop_front() {
            Some((tile, true)) => {
                self.array.core.shelf.claims.fetch_sub(1, Relaxed);
                if !self.array.has_come(tile) {
                    self.submit();
                }
                Some(self.array.claimed(tile))
            }
            Some((tile, false)) => {
                self.submit();
                Some(self.late(tile))
            }
            None => self.order.next().map(|tile| self.array.pin(tile)),
        }
    }
}

impl<I: Iterator<Item = u64>> Drop for Ahead<'_, I> {
    fn drop(&mut self) {
        self.submit();
        self.let_go();
    }
}

/// Reading ahead of writes: tiles are loaded but not pinned, because the pin that writes suffers no other, not even one
/// of the same thread.
pub(crate) struct AheadOfWrites<'a, I: Iterator<Item = u64>> {
    array: &'a Array,
    order: I,
    depth: usize,
    /// Loaded ahead and not yet used.
    ahead: usize,
}

impl<'a, I: Iterator<Item = u64>> AheadOfWrites<'a, I> {
    pub(crate) fn new(array: &'a Array, order: I) -> AheadOfWrites<'a, I> {
        let frames = array.pool.0.frames_of(&array.core.shelf);
        // No more than a policy keeps of what was touched once: the rest would leave before it is used.
        let depth = DEPTH.min(AHEAD_BYTES / array.tile_bytes()).min(frames / 10).max(1);
        AheadOfWrites { array, order, depth, ahead: 0 }
    }

    /// Goes on by one tile of the order, which is used next.
    pub(crate) fn advance(&mut self) {
        if self.ahead <= self.depth / 2 {
            for tile in self.order.by_ref().take(self.depth - self.ahead) {
                // Without a frame it is loaded when its turn comes.
                self.array.prefetch_tile(tile);
                self.ahead += 1;
            }
            self.array.pool.0.submit(self.array.pool.0.own_engine());
        }
        self.ahead = self.ahead.saturating_sub(1);
    }
}
