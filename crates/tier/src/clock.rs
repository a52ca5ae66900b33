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

/// Nanoseconds since 1970 in UTC, as the machine believes; may jump.
#[cfg_attr(forebay_simulated, track_caller)]
pub fn realtime_ns() -> u64 {
    #[cfg(forebay_simulated)]
    if let Some(ns) = crate::simulation::clock_ns(std::panic::Location::caller()) {
        return ns + 1_700_000_000_000_000_000;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
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
