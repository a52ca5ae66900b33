//! What windows over files stand on: memory whose pages come when they are touched ([`Faulted`]), mappings of files
//! whose pages are managed explicitly ([`FileWindow`]), and the few calls that may be made while a fault is answered.
//!
//! Decides nothing: which pages come and go is the pager's business.

use std::io;
use std::sync::atomic::AtomicU32;

use crate::sys;
use crate::{Error, Kind, Result};

pub use crate::sys::{Expect, Faulted, FaultsServed, FileWindow, Serve, UserfaultAbility, View};

/// What this process may do with userfaultfd.
///
/// # Errors
/// `NotPossibleHere` where it may not use it at all.
pub fn userfault() -> Result<UserfaultAbility> {
    sys::userfault_ability().map_err(|errno| {
        let e = io::Error::from_raw_os_error(errno);
        Error::new(Kind::NotPossibleHere, format!("userfaultfd is refused: {e}"))
            .hint("`forebay doctor` says how to allow it; until then windows use a file mapping (engine kernel)")
            .caused_by(e)
    })
}

/// Makes this process's handler for SIGBUS ours again, where the program put its own in its place.
///
/// # Errors
/// What the system says.
pub fn keep_handler() -> Result<()> {
    sys::keep_sigbus().map_err(|e| Error::io("cannot install a handler for SIGBUS", e))
}

/// As [`crate::wait::wait`], in a signal handler.
pub fn wait_in_handler(word: &AtomicU32, expected: u32, milliseconds: u32) -> bool {
    sys::futex_wait_in_handler(word, expected, milliseconds)
}

/// As [`crate::wait::wake_all`], in a signal handler.
pub fn wake_in_handler(word: &AtomicU32) {
    sys::futex_wake_in_handler(word, i32::MAX);
}

/// As [`wake_in_handler`], but one of those who wait.
pub fn wake_one_in_handler(word: &AtomicU32) {
    sys::futex_wake_in_handler(word, 1);
}

/// Ends the process by SIGBUS, whatever handlers it has.
pub fn end_by_sigbus() -> ! {
    sys::end_by_sigbus()
}

/// Writes to standard error, in a signal handler.
pub fn say_in_handler(parts: &[&[u8]]) {
    sys::say_in_handler(parts);
}

/// Page faults of this process: those for which a device was read, and the others.
pub fn faults() -> (u64, u64) {
    sys::process_faults()
}
