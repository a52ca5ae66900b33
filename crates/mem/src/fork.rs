//! What a child of `fork` has of its parent's window: nothing.
//!
//! The mapping is not there in the child, so that neither changes what the other has. Its addresses are kept empty,
//! so that memory of the parent can be told from the child's own: freeing it does nothing, touching it ends the child
//! with SIGSEGV. A child that has big allocations of its own gets a window of its own. `exec` begins anew.

use std::sync::atomic::{AtomicUsize, Ordering::*};

use libc::c_void;

use crate::{inside, next, place};

/// The ranges of parents, oldest first: who forks, and whose child forks, has some.
const PARENTS_MAX: usize = 16;
static PARENTS: [(AtomicUsize, AtomicUsize); PARENTS_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; PARENTS_MAX];
static USED: AtomicUsize = AtomicUsize::new(0);

/// Notices forks from now on.
pub(crate) fn prepare() {
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

unsafe extern "C" fn in_child() {
    inside::leave();
    let Some(range) = place::forget_parents() else { return };
    let at = USED.load(Relaxed);
    if at < PARENTS_MAX {
        let (flags, bytes) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, range.len());
        // SAFETY: where nothing is (the window is not in the child), else the kernel refuses; nothing may be touched.
        unsafe {
            let exactly = flags | libc::MAP_FIXED_NOREPLACE;
            next::mmap(range.start as *mut c_void, bytes, libc::PROT_NONE, exactly, -1, 0);
        }
        PARENTS[at].0.store(range.start, Relaxed);
        PARENTS[at].1.store(range.end, Relaxed);
        USED.store(at + 1, Release);
    }
}

/// Whether an address was the window's of a process that this one was forked from.
#[inline]
pub(crate) fn was_parents(memory: *const c_void) -> bool {
    let at = memory as usize;
    let is_in =
        |(start, end): &(AtomicUsize, AtomicUsize)| (start.load(Relaxed)..end.load(Relaxed)).contains(&at);
    PARENTS[..USED.load(Acquire)].iter().any(is_in)
}
