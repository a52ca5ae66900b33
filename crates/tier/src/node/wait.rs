//! Waiting for a shared 32-bit word to change, and waking those who wait: a futex across processes.
//!
//! A wake-up is a hint: callers read the word and their condition again, and slice long waits (at most 50 ms
//! a slice) so that they notice dead peers. Nothing is lost when a waker dies between its store and its wake,
//! as long as the waiter slices. The word must lie in memory shared by all parties, such as
//! [`crate::SharedWords`].

use std::time::Duration;

use crate::host::atomic::{AtomicU32, Ordering};
use crate::{clock, sys};

/// How long a waiter may spin before it sleeps: about what a sleep and its wake-up cost (30 to 50 µs), so that
/// spinning never costs more than twice the best choice.
pub const SPIN_NS: u64 = if cfg!(forebay_simulated) { 5_000 } else { 50_000 };

/// The spin budget for a process that shares the node with `ranks` busy processes (itself included):
/// [`SPIN_NS`] while every one of them has a core, 0 otherwise, because then spinning takes a core from the
/// process it waits for. Cores are those this process may run on.
pub fn spin_ns(ranks: usize) -> u64 {
    let cores = match cfg!(forebay_simulated) {
        true => 3,
        false => std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    if ranks <= cores {
        SPIN_NS
    } else {
        0
    }
}

/// Sleeps while `word` holds `expected`, at most `timeout`. False: the time passed. True: the word differs,
/// or another thread or process woke this one, or a signal came; read it again.
#[cfg_attr(forebay_simulated, track_caller)]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> bool {
    sys::futex_wait(word, expected, timeout)
}

/// Wakes every process and thread that waits on `word`. Call it after the store it announces.
#[cfg_attr(forebay_simulated, track_caller)]
pub fn wake_all(word: &AtomicU32) {
    sys::futex_wake(word, i32::MAX);
}

/// Wakes one waiter.
pub fn wake_one(word: &AtomicU32) {
    sys::futex_wake(word, 1);
}

/// As [`wait`], but first watches the word for at most `spin_ns` without sleeping. `timeout` covers both.
pub fn spin_then_wait(word: &AtomicU32, expected: u32, spin_ns: u64, timeout: Duration) -> bool {
    let begin = clock::now_ns();
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    if spin(word, expected, spin_ns.min(timeout_ns)) {
        return true;
    }
    let left = timeout_ns.saturating_sub(clock::now_ns() - begin);
    wait(word, expected, Duration::from_nanos(left))
}

/// Watches the word for at most `spin_ns`; true as soon as it is no longer `expected`. No system call: no process has
/// to wake a caller of this.
#[cfg_attr(forebay_simulated, track_caller)]
pub fn spin(word: &AtomicU32, expected: u32, spin_ns: u64) -> bool {
    if spin_ns == 0 {
        return word.load(Ordering::Acquire) != expected;
    }
    let mut now = clock::now_ns();
    let spin_end = now.saturating_add(spin_ns);
    while now < spin_end {
        // The clock costs some 25 ns and a pause some 10 to 40: look at it rarely.
        for _ in 0..32 {
            if word.load(Ordering::Acquire) != expected {
                return true;
            }
            std::hint::spin_loop();
        }
        now = clock::now_ns();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_changed_word_does_not_sleep_and_an_equal_one_times_out() {
        let word = AtomicU32::new(7);
        assert!(wait(&word, 6, Duration::from_secs(60)));
        assert!(!wait(&word, 7, Duration::from_millis(1)));
        assert!(!spin_then_wait(&word, 7, 1000, Duration::from_millis(1)));
        assert!(!spin_then_wait(&word, 7, 1000, Duration::ZERO));
        assert!(spin_then_wait(&word, 6, 0, Duration::from_secs(60)));
    }

    #[test]
    fn a_waiter_is_woken() {
        let word = Arc::new(AtomicU32::new(0));
        let other = word.clone();
        let waiter = std::thread::spawn(move || {
            while other.load(Ordering::Acquire) == 0 {
                assert!(wait(&other, 0, Duration::from_secs(60)), "never woken");
            }
        });
        word.store(1, Ordering::Release);
        wake_all(&word);
        waiter.join().unwrap();
    }
}
