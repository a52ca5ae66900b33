//! The two clocks: one for durations and for comparing events on a node, one for people.
//!
//! Both are read without a system call (vDSO). Neither is comparable across nodes.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds of CLOCK_MONOTONIC: the same clock in every process of this node, never set back.
#[inline]
#[cfg_attr(forebay_simulated, track_caller)]
pub fn now_ns() -> u64 {
    #[cfg(forebay_simulated)]
    if let Some(ns) = crate::simulation::clock_ns(std::panic::Location::caller()) {
        return ns;
    }
    crate::sys::monotonic_ns()
}

/// What the calendar says when a simulated run begins.
#[cfg(forebay_simulated)]
pub(crate) const SIMULATED_EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// Nanoseconds since 1970 in UTC, as the machine believes; may jump.
#[cfg_attr(forebay_simulated, track_caller)]
pub fn realtime_ns() -> u64 {
    #[cfg(forebay_simulated)]
    if let Some(ns) = crate::simulation::clock_ns(std::panic::Location::caller()) {
        return ns + SIMULATED_EPOCH_NS;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// When the machine was booted, in nanoseconds since 1970; never too early, by at most what one read of a clock takes.
pub(crate) fn boot_unix_ns() -> u64 {
    // A thread may lose its processor between the two reads: of several the narrowest counts.
    const READS: u32 = 5;
    let read = || {
        let (before, now, after) = (crate::sys::boottime_ns(), realtime_ns(), crate::sys::boottime_ns());
        (after - before, now.saturating_sub(before))
    };
    (0..READS).map(|_| read()).min().map_or(0, |(_, boot)| boot)
}

#[cfg(test)]
mod tests {
    #[test]
    fn monotonic_does_not_go_back() {
        let a = super::now_ns();
        let b = super::now_ns();
        assert!(a > 0 && b >= a);
        assert!(super::realtime_ns() > 1_600_000_000_000_000_000);
    }
}
