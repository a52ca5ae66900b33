//! The thread that keeps a process's part of the budget: it looks how much is there, and asks the job how much may be.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

use crate::inside::Inside;
use crate::place::Place;

/// How often it looks: a process that is short of memory gets more that much later.
const SLICE: Duration = Duration::from_millis(10);

/// Slices between two looks of one that has nothing to do.
const IDLE: u32 = 5;

/// Runs `work` with all signals but SIGBUS blocked, which threads that it starts inherit: the program's signals are
/// not theirs.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sets of this frame; all-zero bytes are one.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let done = work();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    done
}

/// Starts it.
pub(crate) fn start(place: &'static Place) {
    static FAILED: AtomicBool = AtomicBool::new(false);
    let spawn = || std::thread::Builder::new().name("forebay-mem".into()).spawn(move || keep(place));
    if without_signals(spawn).is_err() && !FAILED.swap(true, Relaxed) {
        crate::place::say(&[b"no thread can be started; the part of the budget stays as it is"]);
    }
}

fn keep(place: &'static Place) {
    let _inside = Inside::enter();
    let (window, member) = (&place.window, &place.member);
    let least = window.budget_min();
    let (mut before, mut quiet) = ((0, 0), 0);
    loop {
        std::thread::sleep(if quiet > IDLE { SLICE * IDLE } else { SLICE });
        let seen = window.statistics_within(SLICE);
        place.end_where_a_write_failed();
        let there = seen.resident_bytes + window.beside();
        let now = (seen.faults, seen.evicted_bytes);
        quiet = if now == before { quiet + 1 } else { 0 };
        let short = quiet == 0 && there + there / 16 >= member.claim();
        before = now;
        // A job whose lock cannot be had goes on as it is.
        let claim = member.claim();
        let target = member.adjust(there, short, least).unwrap_or(claim);
        if target != claim || quiet == 0 {
            window.set_budget(target);
        }
        if target < claim {
            // An exact count: memory that is still in use must not be given away.
            member.shrink(target.max(window.statistics().resident_bytes + window.beside()).min(claim));
        }
        place.say();
    }
}
