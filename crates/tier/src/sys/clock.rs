//! Clocks as numbers: `std::time::Instant` hides them, and processes must compare them.

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of CLOCK_BOOTTIME: since boot, time asleep included; the kernel says by it when a process began.
pub(crate) fn boottime_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec that outlives the call; the call keeps no pointer.
    let rc = unsafe { libc::clock_gettime(clock, &mut now) };
    debug_assert_eq!(rc, 0, "every Linux kernel has CLOCK_MONOTONIC and CLOCK_BOOTTIME");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
