//! Notices `fork` with one memory read: a page that the kernel empties in the child (MADV_WIPEONFORK, 4.14).
//!
//! The page holds a generation number; a child finds 0 there and takes the next number. Where the kernel
//! refuses the advice (some sandboxes), the pid is asked each time instead: a system call, equally right.
//! There is no lock anywhere: a child may be forked while another thread is in here.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::{Error, Kind, Result};

/// The generation of a process that had no forking ancestor using this library.
pub(crate) const FIRST_GENERATION: u64 = 1;

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static NEXT: AtomicU64 = AtomicU64::new(FIRST_GENERATION);
/// Fallback: pid in the upper half, generation in the lower.
static BY_PID: AtomicU64 = AtomicU64::new(0);
const STATE_UNKNOWN: u32 = 0;
const STATE_PAGE: u32 = 1;
const STATE_PID: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(STATE_UNKNOWN);

/// A number that differs between a process and every child forked from it since its first use of this
/// library.
#[inline]
pub(crate) fn fork_generation() -> u64 {
    #[cfg(forebay_simulated)]
    if let Some(pid) = crate::simulation::pid() {
        return u64::from(pid);
    }
    match STATE.load(Ordering::Acquire) {
        STATE_PAGE => by_page(),
        STATE_PID => by_pid(),
        _ => first_use(),
    }
}

/// This process's id, in its own PID namespace.
pub fn pid() -> u32 {
    #[cfg(forebay_simulated)]
    if let Some(pid) = crate::simulation::pid() {
        return pid;
    }
    std::process::id()
}

/// Remembers in which process a handle was made.
///
/// `fork` copies handles but not locks, threads or the right to write. A handle keeps a mark and refuses to
/// work (`Kind::ForkedHandle`) when [`ForkMark::is_forked`]. Asking costs one read of a page that the kernel
/// empties on fork (about a nanosecond).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkMark(u64);

impl ForkMark {
    /// The mark of the calling process.
    pub fn here() -> ForkMark {
        ForkMark(fork_generation())
    }

    /// Whether the calling process is a forked child of the one that made this mark.
    #[inline]
    pub fn is_forked(self) -> bool {
        fork_generation() != self.0
    }

    /// `Kind::ForkedHandle` in a forked child, else nothing. `what` names the handle: "writer of space heat".
    pub fn check(self, what: &str) -> Result<()> {
        if !self.is_forked() {
            return Ok(());
        }
        Err(Error::new(
            Kind::ForkedHandle,
            format!("the {what} was opened before fork and is invalid in the child"),
        )
        .with("pid", pid())
        .hint("open it in the child, after fork; with multiprocessing use the start method \"spawn\""))
    }
}

#[cold]
fn first_use() -> u64 {
    let page = wiped_page();
    if page.is_null() {
        STATE.store(STATE_PID, Ordering::Release);
        return by_pid();
    }
    // A second page from a race stays mapped: 4 KiB once, against the risk of unmapping one in use.
    let _ = PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
    STATE.store(STATE_PAGE, Ordering::Release);
    by_page()
}

#[inline]
fn by_page() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: STATE is STATE_PAGE only after PAGE was set to a page that is never unmapped; an AtomicU64 at
    // its start is aligned, and zero bytes (fresh or wiped) are a value.
    let word = unsafe { &*page };
    match word.load(Ordering::Acquire) {
        0 => {
            let mine = NEXT.fetch_add(1, Ordering::AcqRel);
            word.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire)
                .map_or_else(|other| other, |_| mine)
        }
        generation => generation,
    }
}

fn by_pid() -> u64 {
    let pid = u64::from(std::process::id());
    let known = BY_PID.load(Ordering::Acquire);
    if known >> 32 == pid && known != 0 {
        return known & 0xFFFF_FFFF;
    }
    let mine = NEXT.fetch_add(1, Ordering::AcqRel) & 0xFFFF_FFFF;
    match BY_PID.compare_exchange(known, pid << 32 | mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => mine,
        Err(other) => other & 0xFFFF_FFFF,
    }
}

fn wiped_page() -> *mut AtomicU64 {
    let len = super::page_bytes();
    // SAFETY: a fresh anonymous private mapping at an address the kernel chooses; nothing else is affected.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the range is the mapping just made; no other code knows its address.
    let refused = unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) != 0 };
    if refused {
        // SAFETY: as above; the page was never handed out.
        unsafe { libc::munmap(page, len) };
        return ptr::null_mut();
    }
    page.cast()
}

/// The one `T` of this process in `cell`; a forked child, for which the inherited one is not `current`, makes
/// its own and leaves the old one alone. Values are never freed. No lock is taken.
pub(crate) fn process_local<T: Send + Sync + 'static>(
    cell: &'static AtomicPtr<T>,
    current: impl Fn(&T) -> bool,
    make: impl Fn() -> T,
) -> &'static T {
    #[cfg(forebay_simulated)]
    if let Some(value) = crate::simulation::local_state(cell.as_ptr() as usize, &make) {
        return value;
    }
    loop {
        let known = cell.load(Ordering::Acquire);
        // SAFETY: a non-null pointer in `cell` came from Box::into_raw below and is never freed.
        if let Some(value) = unsafe { known.as_ref() }.filter(|value| current(value)) {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        if cell.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `fresh` was not published; this takes the box back.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Runs `f` in a forked child and gives its exit status; a panic there is status 101. For tests only.
#[cfg(test)]
pub(crate) fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `f` (which allocates, as glibc allows after fork) and leaves by _exit, so
    // that no destructor or test harness code of the parent runs twice.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
            // SAFETY: ends this process.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: `status` outlives the call; `child` is our own child, waited for once.
            let rc = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(rc, child);
            assert!(libc::WIFEXITED(status), "child ended by a signal: status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_and_its_child_see_new_generations() {
        let parent = fork_generation();
        assert_eq!(parent, fork_generation());
        let status = in_child(|| {
            let child = fork_generation();
            assert_ne!(child, parent);
            assert_eq!(child, fork_generation());
            in_child(|| {
                let grandchild = fork_generation();
                i32::from(grandchild == parent || grandchild == child)
            })
        });
        assert_eq!(status, 0);
        assert_eq!(parent, fork_generation());
    }

    #[test]
    fn the_fallback_sees_them_too() {
        let parent = by_pid();
        assert_eq!(parent, by_pid());
        assert_eq!(in_child(|| i32::from(by_pid() == parent)), 0);
    }
}
