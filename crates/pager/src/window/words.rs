//! The word of a tile of a window: where it is on its way in and out, and who may change that.
//!
//! 32 bits, so that a thread can sleep on it in the kernel: three of state, five flags, 24 of payload (the slot of a
//! tile that is there or on its way; of an absent one when it left, counted in evictions).
//!
//! Invariants: only the thread that took a tile to `BUSY`, `LEAVING` or `HELD` changes its pages, their protection or
//! the slot, and only it takes it further; pages of a tile exist from the end of `BUSY` to the end of `LEAVING`; a
//! store to a tile without `DIRTY` is a fault. A waiter sets `WAITED` by the same exchange that sees the state it waits
//! for; the thread that opens the tile takes the flag and wakes: so no wake-up is lost.

use std::sync::atomic::{AtomicU32, Ordering::*};

use forebay_tier::window;

/// The state's bits.
pub(crate) const STATE: u32 = 7;
/// Nothing there.
pub(crate) const ABSENT: u32 = 0;
/// Being read.
pub(crate) const BUSY: u32 = 1;
/// There.
pub(crate) const PRESENT: u32 = 2;
/// Being written, or evicted.
pub(crate) const LEAVING: u32 = 3;
/// There, and a thread changes its protection, writes it or copies.
pub(crate) const HELD: u32 = 4;
/// Differs from where it came from; stores to it are no faults.
pub(crate) const DIRTY: u32 = 1 << 3;
/// A thread sleeps until it opens.
pub(crate) const WAITED: u32 = 1 << 4;
/// Its bytes are in the overlay.
pub(crate) const OVERLAID: u32 = 1 << 5;
/// Some of its pages could not be read.
pub(crate) const BAD: u32 = 1 << 6;
/// It came back soon after it had left: the hand passes it by once.
pub(crate) const HOT: u32 = 1 << 7;

const PAYLOAD_SHIFT: u32 = 8;
/// Most slots, and where the count of evictions begins again.
pub(crate) const PAYLOAD_MAX: u32 = (1 << 24) - 1;

/// Milliseconds of one sleep: the sleeping thread then looks again.
pub(crate) const SLICE_MS: u32 = 50;

/// How often a waiter looks before it sleeps: an answer of a fast device takes longer anyway.
const LOOKS: u32 = 64;

pub(crate) fn state(word: u32) -> u32 {
    word & STATE
}

pub(crate) fn payload(word: u32) -> u32 {
    word >> PAYLOAD_SHIFT
}

pub(crate) fn with_payload(flags: u32, payload: u32) -> u32 {
    debug_assert!(payload <= PAYLOAD_MAX);
    flags | payload << PAYLOAD_SHIFT
}

/// Takes a tile of which `seen` was seen to another state, flags and payload as they are.
pub(crate) fn take(word: &AtomicU32, seen: u32, to: u32) -> bool {
    word.compare_exchange(seen, seen & !STATE | to, Acquire, Relaxed).is_ok()
}

/// Opens a tile that the caller took: `to` is its new word.
pub(crate) fn open(word: &AtomicU32, to: u32) {
    if word.swap(to & !WAITED, Release) & WAITED != 0 {
        window::wake_in_handler(word);
    }
}

/// Waits until a tile of which `seen` was seen is opened, at most a slice.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    for _ in 0..LOOKS {
        if word.load(Relaxed) & !WAITED != seen & !WAITED {
            return;
        }
        std::hint::spin_loop();
    }
    let waited = seen | WAITED;
    if word.load(Relaxed) == waited || word.compare_exchange(seen, waited, Relaxed, Relaxed).is_ok() {
        window::wait_in_handler(word, waited, SLICE_MS);
    }
}

/// A condition that is hoped for by those who found none free, and the few who sleep for it.
#[derive(Default)]
pub(crate) struct Event {
    count: AtomicU32,
    waiters: AtomicU32,
}

impl Event {
    /// Something was freed.
    pub(crate) fn tell(&self) {
        if self.waiters.load(SeqCst) > 0 {
            self.count.fetch_add(1, SeqCst);
            window::wake_in_handler(&self.count);
        }
    }

    /// Sleeps until something is freed, unless `look` finds something; at most a slice.
    pub(crate) fn wait<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        self.waiters.fetch_add(1, SeqCst);
        let count = self.count.load(SeqCst);
        let found = look();
        if found.is_none() {
            window::wait_in_handler(&self.count, count, SLICE_MS);
        }
        self.waiters.fetch_sub(1, SeqCst);
        found
    }
}
