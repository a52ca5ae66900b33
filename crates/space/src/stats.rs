//! Counters of one handle: what it moved and where its time went.

use forebay_tier::clock;
use serde::{Deserialize, Serialize};

/// Counters since the handle was opened. Times of calls below 32 KiB are sampled, one call in 16.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Steps ended.
    pub steps: u64,
    /// Steps that were skipped because they were dropped, or complete already.
    pub skipped: u64,
    /// Of these, the steps that a reader missed because they were dropped before it came to them.
    pub dropped: u64,
    /// Pieces put, by copy.
    pub puts: u64,
    /// Pieces put in place, without a copy.
    pub reserves: u64,
    /// Boxes got, by copy.
    pub gets: u64,
    /// Boxes viewed, without a copy.
    pub views: u64,
    /// Payload bytes put.
    pub bytes_put: u64,
    /// Payload bytes got or viewed.
    pub bytes_got: u64,
    /// Payload bytes that this handle copied.
    pub bytes_copied: u64,
    /// Time inside put, commit and end of step, without waiting.
    pub put_ns: u64,
    /// Time inside get and view, and reading headers.
    pub get_ns: u64,
    /// Time waiting: for a version, or for free space.
    pub wait_ns: u64,
}

/// What a member did so far, for lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) steps: u64,
    pub(crate) bytes: u64,
    pub(crate) op_ns: u64,
    pub(crate) wait_ns: u64,
}

impl Stats {
    /// Of a reader.
    pub(crate) fn got(&self) -> Counters {
        let Stats { steps, bytes_got: bytes, get_ns: op_ns, wait_ns, .. } = *self;
        Counters { steps, bytes, op_ns, wait_ns }
    }

    /// Of a writer.
    pub(crate) fn put(&self) -> Counters {
        let Stats { steps, bytes_put: bytes, put_ns: op_ns, wait_ns, .. } = *self;
        Counters { steps, bytes, op_ns, wait_ns }
    }
}

/// Calls that move less are timed one in 2^[`SAMPLE_BITS`]: reading the clock twice costs as much as such a call.
const TIMED_BYTES_MIN: usize = 32 << 10;
const SAMPLE_BITS: u32 = 4;

/// Whether a small call is timed. Multiples of the golden ratio fall evenly, and at no period that objects could have
/// with pages or segments: every sixteenth call of all would time page faults always or never.
#[inline]
fn is_timed(nth: u64) -> bool {
    nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SAMPLE_BITS) == 0
}

/// A clock for calls, cheap for small ones.
pub(crate) struct CallTimer {
    began: u64,
    weight: u64,
}

impl CallTimer {
    /// Starts; `nth` counts the calls of the handle.
    #[inline]
    pub(crate) fn start(bytes: usize, nth: u64) -> CallTimer {
        if bytes >= TIMED_BYTES_MIN {
            CallTimer { began: clock::now_ns(), weight: 1 }
        } else if is_timed(nth) {
            CallTimer { began: clock::now_ns(), weight: 1 << SAMPLE_BITS }
        } else {
            CallTimer { began: 0, weight: 0 }
        }
    }

    /// Nanoseconds this call stands for.
    #[inline]
    pub(crate) fn stop(self) -> u64 {
        if self.weight == 0 {
            return 0;
        }
        (clock::now_ns() - self.began) * self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_sixteen_is_timed_whatever_the_period() {
        let calls = 1 << 16;
        for period in [1, 2, 3, 7, 16, 64] {
            for phase in 0..period.min(3) {
                let own: Vec<u64> = (0..calls).filter(|n| n % period == phase).collect();
                let timed = own.iter().filter(|n| is_timed(**n)).count() as f64;
                let share = timed * 16.0 / own.len() as f64;
                assert!((0.9..1.1).contains(&share), "period {period}, phase {phase}: {share}");
            }
        }
    }
}
