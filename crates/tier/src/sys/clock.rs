//! CLOCK_MONOTONIC as a number: `std::time::Instant` hides it, and processes must compare it.

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec that outlives the call; the call keeps no pointer.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    debug_assert_eq!(rc, 0, "every Linux kernel has CLOCK_MONOTONIC");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
