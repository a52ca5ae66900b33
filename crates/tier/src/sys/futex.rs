//! Futex across processes (never FUTEX_PRIVATE): the kernel finds waiters by inode and offset of the word.

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::{counters, host};

/// Sleeps while `word == expected`, at most `timeout`; false only when the time passed.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn futex_wait(word: &host::atomic::AtomicU32, expected: u32, timeout: Duration) -> bool {
    #[cfg(forebay_simulated)]
    if let Some(woken) = crate::simulation::futex_wait(word.plain(), expected, timeout) {
        return woken;
    }
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    counters::add_syscall();
    wait_uncounted(ptr::from_ref(word).cast(), expected, &timeout)
}

/// As `futex_wait`; may be called in a signal handler, where nothing is counted (a thread's first count allocates).
pub(crate) fn futex_wait_in_handler(word: &AtomicU32, expected: u32, milliseconds: u32) -> bool {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::from(milliseconds / 1000),
        tv_nsec: libc::c_long::from(milliseconds % 1000) * 1_000_000,
    };
    wait_uncounted(word.as_ptr(), expected, &timeout)
}

fn wait_uncounted(word: *const u32, expected: u32, timeout: &libc::timespec) -> bool {
    // SAFETY: `word` is a live, aligned u32 (callers have a reference); the timespec outlives the call; the kernel only
    // reads both. No other argument is a pointer.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
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
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn futex_wake(word: &host::atomic::AtomicU32, count: i32) {
    #[cfg(forebay_simulated)]
    if crate::simulation::futex_wake(word.plain(), count).is_some() {
        return;
    }
    counters::add_syscall();
    wake_uncounted(ptr::from_ref(word).cast(), count);
}

/// As `futex_wake`; may be called in a signal handler.
pub(crate) fn futex_wake_in_handler(word: &AtomicU32, count: i32) {
    wake_uncounted(word.as_ptr(), count);
}

fn wake_uncounted(word: *const u32, count: i32) {
    // SAFETY: `word` is a live, aligned u32; waking only uses its address as a key.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAKE,
            count,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}
