//! What is asked of a window that is memory: tiles that stay while the system uses them, that are forgotten, and a
//! budget that changes.
//!
//! Guarantees: a tile that is pinned neither leaves nor is protected; `pin` and `unpin` may run anywhere, as a fault
//! may.

use std::sync::atomic::{fence, Ordering::*};

use super::{Service, BATCH, NO_TILE, PAGE};
use crate::window::words::{self, ABSENT, DIRTY, LEAVING, OVERLAID, PRESENT};

impl Service {
    /// Whether a call of the system uses a tile that the caller has just taken.
    pub(super) fn is_pinned(&self, tile: u32) -> bool {
        // Between the taking and the looking: `pin` counts first and looks at the word then.
        fence(SeqCst);
        self.pins.get(tile as usize).is_some_and(|pins| pins.load(Relaxed) > 0)
    }

    pub(in crate::window) fn pin(&self, tile: u32, write: bool) -> std::result::Result<(), i32> {
        self.pins[tile as usize].fetch_add(1, Relaxed);
        fence(SeqCst);
        self.bring(tile, Some(write)).inspect_err(|_| self.unpin(tile))
    }

    pub(in crate::window) fn unpin(&self, tile: u32) {
        self.pins[tile as usize].fetch_sub(1, Release);
        self.freed.tell();
    }

    /// Bytes of the buffers.
    pub(in crate::window) fn buffer_bytes(&self) -> u64 {
        self.buffers_total * self.tile_bytes as u64
    }

    pub(in crate::window) fn pins_at_once(&self) -> u64 {
        u64::from(self.limit.load(Relaxed) / 4).max(1)
    }

    /// Changes how many slots may be used.
    pub(in crate::window) fn set_limit(&self, slots: u32) {
        let slots = slots.min(self.slots() as u32);
        self.limit.store(slots, SeqCst);
        self.freed.tell();
        while self.used.load(SeqCst) > slots {
            // What cannot be written stays, and is tried again.
            if self.evict(BATCH, 0).0 == 0 {
                return;
            }
        }
    }

    /// Before anybody touches them: the file holds these tiles.
    pub(in crate::window) fn is_stored(&self, tiles: std::ops::Range<u64>) {
        tiles.for_each(|tile| self.word(tile as u32).store(ABSENT | OVERLAID, Release));
    }

    /// Whether a tile is zeros that no access has touched.
    pub(in crate::window) fn is_blank(&self, tile: u32) -> bool {
        let seen = self.word(tile).load(Acquire);
        self.blank && words::state(seen) == ABSENT && seen & OVERLAID == 0
    }

    /// Makes a tile absent and blank, without writing it.
    pub(in crate::window) fn forget(&self, tile: u32) {
        let word = self.word(tile);
        loop {
            let seen = word.load(Acquire);
            match words::state(seen) {
                ABSENT if seen == ABSENT => return,
                ABSENT => {
                    if word.compare_exchange(seen, ABSENT, AcqRel, Relaxed).is_ok() {
                        return;
                    }
                }
                PRESENT => {
                    if words::take(word, seen, LEAVING) {
                        return self.forget_taken(tile, seen);
                    }
                }
                _ => words::wait(word, seen),
            }
        }
    }

    fn forget_taken(&self, tile: u32, seen: u32) {
        let range = self.range(tile);
        self.failures.forget(&range);
        let gone = self.memory.discard(std::iter::once(range.clone()));
        if gone.is_err() {
            // Memory that may not go (mlock) is made zeros, and stays.
            let _ = self.memory.protect(&range, false);
            range.clone().step_by(PAGE).for_each(|page| self.memory.copy_in(page, &[0; PAGE]));
            return words::open(self.word(tile), seen & !words::STATE | PRESENT | DIRTY);
        }
        let slot = words::payload(seen);
        self.slots[slot as usize].store(NO_TILE, Release);
        words::open(self.word(tile), ABSENT);
        self.give_back(slot);
        self.freed.tell();
    }
}
