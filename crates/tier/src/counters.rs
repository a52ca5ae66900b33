//! Counts of what the data path did in this process: bytes copied, flushes, fences, system calls.
//!
//! They make performance testable without a clock: a test compares the difference of two snapshots with the
//! number that the operation should cost. Counting is relaxed: exact in total, unordered with the data.
//! They do not count what other crates or the C library do on their own.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// One counter alone on its cache line, so that threads counting different things do not slow each other.
#[repr(align(64))]
struct Padded(AtomicU64);

static BYTES_COPIED: Padded = Padded(AtomicU64::new(0));
static FLUSHES: Padded = Padded(AtomicU64::new(0));
static FENCES: Padded = Padded(AtomicU64::new(0));
static SYSCALLS: Padded = Padded(AtomicU64::new(0));

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
    Counters {
        bytes_copied: BYTES_COPIED.0.load(Relaxed),
        flushes: FLUSHES.0.load(Relaxed),
        fences: FENCES.0.load(Relaxed),
        syscalls: SYSCALLS.0.load(Relaxed),
    }
}

/// Counts `bytes` copied. Public so that the gather of `forebay-space` counts into the same total.
#[inline]
pub fn add_bytes_copied(bytes: u64) {
    BYTES_COPIED.0.fetch_add(bytes, Relaxed);
}

#[inline]
pub(crate) fn add_flushes(n: u64) {
    FLUSHES.0.fetch_add(n, Relaxed);
}

#[inline]
pub(crate) fn add_fence() {
    FENCES.0.fetch_add(1, Relaxed);
}

#[inline]
pub(crate) fn add_syscall() {
    SYSCALLS.0.fetch_add(1, Relaxed);
}
