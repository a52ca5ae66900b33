//! Counts of what the data path did in this process: bytes copied, flushes, fences, system calls.
//!
//! They make performance testable without a clock: a test compares the difference of two snapshots with the
//! number that the operation should cost. Counting is relaxed: exact in total, unordered with the data.
//! They do not count what other crates or the C library do on their own.

use std::ops::Sub;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use serde::Serialize;

/// Threads that count at the same time without sharing a line; those beyond count together, a little slower.
const SHARDS: usize = 64;

#[derive(Clone, Copy)]
enum What {
    BytesCopied,
    Flushes,
    Fences,
    Syscalls,
}

/// The counts of one thread, alone on their cache line.
///
/// Only the thread that took it stores, so adding needs no locked instruction: one would wait for all of the
/// thread's stores to reach the cache, which costs a small put more than its copy.
#[repr(align(64))]
struct Shard {
    taken: AtomicBool,
    counts: [AtomicU64; 4],
}

impl Shard {
    const fn new() -> Shard {
        Shard { taken: AtomicBool::new(false), counts: [const { AtomicU64::new(0) }; 4] }
    }
}

static SHARED: Shard = Shard::new();
static OWNED: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];

/// A thread's right to store into a shard; released when the thread ends, counts included.
struct Claim(Option<&'static Shard>);

impl Claim {
    fn take() -> Claim {
        let free = |shard: &&Shard| shard.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        Claim(OWNED.iter().find(free))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(shard) = self.0 {
            shard.taken.store(false, Release);
        }
    }
}

thread_local! {
    static MINE: Claim = Claim::take();
}

#[inline]
fn add(what: What, n: u64) {
    // Between the end of a thread's own data and its end, it counts with the others.
    match MINE.try_with(|claim| claim.0).ok().flatten() {
        Some(shard) => {
            let count = &shard.counts[what as usize];
            count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
        }
        None => {
            SHARED.counts[what as usize].fetch_add(n, Relaxed);
        }
    }
}

/// Totals since the process began (after a fork the child goes on from its parent's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Payload bytes moved by the processor: into pools, out of pools, into heap staging.
    pub bytes_copied: u64,
    /// Cache lines written back on persistent memory, plus `fdatasync` calls on files.
    pub flushes: u64,
    /// Store fences.
    pub fences: u64,
    /// System calls made by devices, locks and waits. Opening and closing are not counted.
    pub syscalls: u64,
}

impl Sub for Counters {
    type Output = Counters;
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            bytes_copied: self.bytes_copied - earlier.bytes_copied,
            flushes: self.flushes - earlier.flushes,
            fences: self.fences - earlier.fences,
            syscalls: self.syscalls - earlier.syscalls,
        }
    }
}

/// The totals now.
pub fn snapshot() -> Counters {
    let total = |what: What| {
        let shards = OWNED.iter().chain([&SHARED]);
        shards.fold(0u64, |sum, shard| sum.wrapping_add(shard.counts[what as usize].load(Relaxed)))
    };
    Counters {
        bytes_copied: total(What::BytesCopied),
        flushes: total(What::Flushes),
        fences: total(What::Fences),
        syscalls: total(What::Syscalls),
    }
}

/// Counts `bytes` copied. Public so that the gather of `forebay-space` counts into the same total.
#[inline]
pub fn add_bytes_copied(bytes: u64) {
    add(What::BytesCopied, bytes);
}

#[inline]
pub(crate) fn add_flushes(n: u64) {
    add(What::Flushes, n);
}

#[inline]
pub(crate) fn add_fence() {
    add(What::Fences, 1);
}

#[inline]
pub(crate) fn add_syscall() {
    add(What::Syscalls, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_shards_lose_no_count() {
        let threads = 2 * SHARDS as u64;
        let before = snapshot();
        let barrier = std::sync::Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    // All of them hold their shard, or share, at once.
                    add_bytes_copied(1);
                    barrier.wait();
                    (0..1000).for_each(|_| add_bytes_copied(3));
                });
            }
        });
        let seen = (snapshot() - before).bytes_copied;
        // Other tests of this process may copy meanwhile.
        assert!(seen >= threads * 3001, "{seen}");
    }

    #[test]
    fn the_counts_of_an_ended_thread_stay() {
        let before = snapshot();
        for _ in 0..3 * SHARDS {
            std::thread::spawn(add_syscall).join().expect("it only counts");
        }
        assert!((snapshot() - before).syscalls >= 3 * SHARDS as u64);
    }
}
