//! Signals of a program whose memory comes by SIGBUS: it stays deliverable, and the program's own handler for it
//! comes behind ours.
//!
//! Who blocks all signals in a thread would end the process with the first touch of what is not there: so SIGBUS is
//! taken out of sets that are blocked. What a program sees of its own handlers stays as it set it, but for SIGBUS.

use libc::{c_int, sigaction as Action, sighandler_t, sigset_t};

use crate::inside::{is_inside, Inside};
use crate::next::{errno, next, set_errno};
use crate::place;

/// Puts ours in front again, after the program has set its own.
fn keep_ours(signal: c_int) {
    if signal != libc::SIGBUS || !place::has_handler() {
        return;
    }
    let kept = errno();
    if let Some(_inside) = Inside::enter() {
        // Only a try: without it things are as the program wants them.
        let _ = forebay_tier::window::keep_handler();
    }
    set_errno(kept);
}

/// A set without SIGBUS; None: there is nothing to take out.
unsafe fn without_bus(set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller's set, or null.
    let mut set = *unsafe { set.as_ref() }?;
    // SAFETY: a set of this frame.
    unsafe {
        if is_inside() || libc::sigismember(&set, libc::SIGBUS) != 1 {
            return None;
        }
        libc::sigdelset(&mut set, libc::SIGBUS);
    }
    Some(set)
}

/// sigaction(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's struct, or null.
    let mut changed = unsafe { new.as_ref() }.copied();
    if let Some(action) = &mut changed {
        // SAFETY: a set of this frame.
        if let Some(mask) = unsafe { without_bus(&action.sa_mask) } {
            action.sa_mask = mask;
        }
    }
    let given = changed.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let rc = next!(c"sigaction" as fn(c_int, *const Action, *mut Action) -> c_int, signal, given, old);
    if rc == 0 && !given.is_null() && !is_inside() {
        keep_ours(signal);
    }
    rc
}

/// signal(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    let before = next!(c"signal" as fn(c_int, sighandler_t) -> sighandler_t, number, handler);
    keep_ours(number);
    before
}

macro_rules! mask {
    ($function:ident, $name:literal) => {
        /// pthread_sigmask(3), sigprocmask(2).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
            // SAFETY: the caller's set, or null.
            let changed = if how == libc::SIG_UNBLOCK { None } else { unsafe { without_bus(set) } };
            let set = changed.as_ref().map_or(set, std::ptr::from_ref);
            next!($name as fn(c_int, *const sigset_t, *mut sigset_t) -> c_int, how, set, old)
        }
    };
}

mask!(pthread_sigmask, c"pthread_sigmask");
mask!(sigprocmask, c"sigprocmask");
