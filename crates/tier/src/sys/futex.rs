//! Futex across processes (never FUTEX_PRIVATE): the kernel finds waiters by inode and offset of the word.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::counters;

/// Sleeps while `word == expected`, at most `timeout`; false only when the time passed.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> bool {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    counters::add_syscall();
    wait_uncounted(word, expected, &timeout)
}

/// As `futex_wait`; may be called in a signal handler, where nothing is counted (a thread's first count allocates).
pub(crate) fn futex_wait_in_handler(word: &AtomicU32, expected: u32, milliseconds: u32) -> bool {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::from(milliseconds / 1000),
        tv_nsec: libc::c_long::from(milliseconds % 1000) * 1_000_000,
    };
    wait_uncounted(word, expected, &timeout)
}

fn wait_uncounted(word: &AtomicU32, expected: u32, timeout: &libc::timespec) -> bool {
    // SAFETY: `word` is a live, aligned u32 (a reference); the timespec outlives the call; the kernel only
    // reads both. No other argument is a pointer.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            timeout as *const libc::timespec,
            std::ptr::null::<u32>(),
            0u32,
        )
    };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes up to `count` waiters.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    counters::add_syscall();
    futex_wake_in_handler(word, count);
}

/// As `futex_wake`; may be called in a signal handler.
pub(crate) fn futex_wake_in_handler(word: &AtomicU32, count: i32) {
    // SAFETY: `word` is a live, aligned u32; waking only uses its address as a key.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            count,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}
