//! The state word of a tile: who may touch it, and where it is.
//!
//! One word of 8 bytes. Its low byte is the lock: 0 free, 1 to 253 pins that read, 254 one that writes, 255 busy (its
//! frame is on the way from or to the backing). Above it flags, in the upper half the frame of a tile that is there, or
//! of a busy one the ring that works on it (0: none yet).
//!
//! Invariants: the bytes of a frame are read only under a pin, changed only by the writer's pin or by the thread that
//! made the tile busy; a tile is evicted only from lock 0; what failed to load keeps the pins of those that have not
//! seen the error yet. A waiter sets [`WAITED`] by the same compare-and-swap that sees the lock it waits for; the
//! thread that opens the lock takes the flag with the lock and wakes: so no wake-up is lost.
//!
//! The functions are generic over [`Word`], so that the model checker runs exactly these lines (tests/state).

use std::sync::atomic::{AtomicU64, Ordering, Ordering::*};

/// The lock's byte.
pub(crate) const LOCK: u64 = 0xff;
/// Most pins that read at once.
pub(crate) const PINS_MAX: u64 = 253;
/// One pin that writes.
pub(crate) const WRITER: u64 = 254;
/// On the way.
pub(crate) const BUSY: u64 = 255;
/// A frame holds the tile.
pub(crate) const RESIDENT: u64 = 1 << 8;
/// The frame differs from the backing.
pub(crate) const DIRTY: u64 = 1 << 9;
/// A thread sleeps until the lock opens.
pub(crate) const WAITED: u64 = 1 << 10;
/// Loading failed; the array keeps the error until the last pin is gone.
pub(crate) const FAILED: u64 = 1 << 11;
/// The tile's bytes are in the overlay, not in the backing.
pub(crate) const OVERLAID: u64 = 1 << 12;

const PAYLOAD_SHIFT: u32 = 32;

/// Frame of a resident tile, ring of a busy one.
pub(crate) fn payload(word: u64) -> u32 {
    (word >> PAYLOAD_SHIFT) as u32
}

/// The lock.
pub(crate) fn lock_of(word: u64) -> u64 {
    word & LOCK
}

/// A word that the functions below change.
pub(crate) trait Word {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::swap`].
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::compare_exchange`] with a relaxed load where it fails; true: exchanged.
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    #[inline(always)]
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.compare_exchange(from, to, order, Relaxed).is_ok()
    }
}

/// What an attempt to pin a tile found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// Pinned; the frame.
    Frame(u32),
    /// Pinned (to read), but loading had failed: the array has the error.
    Failed,
    /// Nothing there: it has to be loaded.
    Absent,
    /// Locked, as this word says.
    Locked(u64),
}

// ---- the protocol

/// Takes a pin that reads.
#[inline]
pub(crate) fn pin<W: Word>(word: &W) -> Pin {
    loop {
        let seen = word.load(Relaxed);
        if lock_of(seen) >= PINS_MAX {
            return Pin::Locked(seen);
        }
        if seen & (RESIDENT | FAILED) == 0 {
            return Pin::Absent;
        }
        if word.exchange_if(seen, seen + 1, Acquire) {
            return if seen & FAILED != 0 { Pin::Failed } else { Pin::Frame(payload(seen)) };
        }
    }
}

/// Takes the pin that writes (of what failed to load: one that reads).
pub(crate) fn pin_to_write<W: Word>(word: &W) -> Pin {
    loop {
        let seen = word.load(Relaxed);
        if seen & FAILED != 0 {
            return pin(word);
        }
        if lock_of(seen) != 0 {
            return Pin::Locked(seen);
        }
        if seen & RESIDENT == 0 {
            return Pin::Absent;
        }
        if word.exchange_if(seen, seen | WRITER, Acquire) {
            return Pin::Frame(payload(seen));
        }
    }
}

/// Releases a pin; `dirty` where the writer changed the frame. True: wake who waits.
#[inline]
#[must_use]
pub(crate) fn unpin<W: Word>(word: &W, dirty: bool) -> bool {
    loop {
        let seen = word.load(Relaxed);
        let left = if lock_of(seen) == WRITER { 0 } else { lock_of(seen) - 1 };
        let to = seen & !LOCK | left | if dirty { DIRTY } else { 0 };
        let opened = if left == 0 { to & !(WAITED | FAILED) } else { to };
        if word.exchange_if(seen, opened, Release) {
            return left == 0 && seen & WAITED != 0;
        }
    }
}

/// Makes an absent tile busy; true: the caller loads it.
pub(crate) fn begin_load<W: Word>(word: &W) -> bool {
    loop {
        let seen = word.load(Relaxed);
        if seen & (LOCK | RESIDENT | FAILED) != 0 {
            return false;
        }
        // Acquire: the thread that evicted it is done with the frame that may come next.
        if word.exchange_if(seen, seen & OVERLAID | BUSY, Acquire) {
            return true;
        }
    }
}

/// Makes a tile that is there and that no thread pins busy, to evict or to write it; the word before.
pub(crate) fn begin_move<W: Word>(word: &W) -> Option<u64> {
    begin_move_if(word, |_| true)
}

/// As [`begin_move`], of a tile that is in this frame and no other.
pub(crate) fn begin_eviction<W: Word>(word: &W, frame: u32) -> Option<u64> {
    begin_move_if(word, |seen| payload(seen) == frame)
}

fn begin_move_if<W: Word>(word: &W, wanted: impl Fn(u64) -> bool) -> Option<u64> {
    loop {
        let seen = word.load(Relaxed);
        if seen & RESIDENT == 0 || lock_of(seen) != 0 || !wanted(seen) {
            return None;
        }
        if word.exchange_if(seen, seen & OVERLAID | BUSY, Acquire) {
            return Some(seen);
        }
    }
}

/// Says which ring (counted from 1) works on a tile that the caller made busy.
pub(crate) fn set_ring<W: Word>(word: &W, ring: u32) {
    loop {
        let seen = word.load(Relaxed);
        let to = seen & 0xffff_ffff | u64::from(ring) << PAYLOAD_SHIFT;
        if word.exchange_if(seen, to, Relaxed) {
            return;
        }
    }
}

/// Opens a busy tile: `to` is its new word without payload, then the frame. True: wake who waits.
#[must_use]
pub(crate) fn finish<W: Word>(word: &W, to: u64, frame: u32) -> bool {
    word.swap(to | u64::from(frame) << PAYLOAD_SHIFT, Release) & WAITED != 0
}

/// Says that the caller will sleep until a locked tile opens, of which it saw `seen`; false: look again.
pub(crate) fn announce<W: Word>(word: &W, seen: u64) -> bool {
    seen & WAITED != 0 && word.load(Relaxed) == seen || word.exchange_if(seen, seen | WAITED, Relaxed)
}
