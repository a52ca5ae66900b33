//! `fork`: the child gets a copy of the parent's big allocations, at the same addresses, in a window of its own.
//!
//! The mapping itself is not inherited: both processes would store into one file. So the thread that calls `fork`
//! copies what is allocated into a file for the child first, and the child maps that file where the parent's window is.
//!
//! Guarantees: what the forking thread has stored, and what is guarded by locks that it or a fork handler holds, is in
//! the copy; stores that other threads make while it is copied may be missing. What the child needs of the budget is
//! reserved before. Where that or the copy fails (no space on the tier), `fork` fails with ENOMEM; a child that
//! cannot map its copy ends before any code of the program runs.
//! Not helped: children made past the C library (clone without CLONE_VM): touching the window there is SIGSEGV.

use std::cell::{Cell, RefCell};

use libc::{c_int, pid_t};

use crate::next::{errno, next, set_errno};
use crate::place::{self, Inheritance};
use crate::{descriptors, ends, inside};

/// What a child ends with that cannot have its memory, as one whose program cannot be started.
const NO_MEMORY: c_int = 127;

thread_local! {
    /// From before the fork until after it.
    static PREPARED: RefCell<Option<Inheritance>> = const { RefCell::new(None) };
    /// What was reserved for the last child.
    static RESERVED: Cell<u64> = const { Cell::new(0) };
    /// The copy failed.
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Notices forks from now on.
pub(crate) fn prepare() {
    // SAFETY: functions that live as long as the process.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    FAILED.set(false);
    let Some(place) = place::here() else { return };
    let kept = errno();
    match place.bequeath() {
        Ok(inheritance) => PREPARED.with(|prepared| *prepared.borrow_mut() = Some(inheritance)),
        Err(e) => {
            FAILED.set(true);
            let hint = e.hint_text().map(|hint| format!(" ({hint})")).unwrap_or_default();
            place::say(&[format!("a child cannot be made: {e}{hint}").as_bytes()]);
        }
    }
    set_errno(kept);
}

unsafe extern "C" fn in_parent() {
    let kept = errno();
    // Its file is the child's now.
    let inheritance = PREPARED.with(|prepared| prepared.borrow_mut().take());
    RESERVED.set(inheritance.map_or(0, |inheritance| inheritance.reserved()));
    set_errno(kept);
}

unsafe extern "C" fn in_child() {
    inside::leave();
    if FAILED.get() {
        // SAFETY: ends this process, before the program sees it.
        unsafe { libc::_exit(NO_MEMORY) }
    }
    let Some(inheritance) = PREPARED.with(|prepared| prepared.borrow_mut().take()) else {
        return place::forget_parents();
    };
    descriptors::pass_on(&inheritance.descriptors());
    if let Err(e) = place::inherit(inheritance) {
        place::say(&[format!("a child cannot have its memory: {e}").as_bytes()]);
        // SAFETY: as above.
        unsafe { libc::_exit(NO_MEMORY) }
    }
    ends::own();
}

/// fork(2): fails where the child would have no memory.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    let child = next!(c"fork" as fn() -> pid_t,);
    if child < 0 {
        let kept = errno();
        if let Some(place) = place::here() {
            place.member.cancel_reserved(RESERVED.replace(0));
        }
        set_errno(kept);
    }
    if child <= 0 || !FAILED.replace(false) {
        return child;
    }
    // SAFETY: our own child, which ends at once; a handler of the program for its end may have taken it already.
    unsafe { while libc::waitpid(child, std::ptr::null_mut(), 0) < 0 && errno() == libc::EINTR {} }
    set_errno(libc::ENOMEM);
    -1
}
