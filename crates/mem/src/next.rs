//! The functions of the C library that this one takes the place of.
//!
//! Its allocator is called by the names that it has beside the usual ones, so that nothing has to be looked up before
//! the first allocation; calls that work on mappings go to the kernel; everything else is looked up once.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use libc::{c_int, c_long, c_void, off_t, size_t};

extern "C" {
    pub(crate) fn __libc_malloc(bytes: size_t) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: size_t, bytes: size_t) -> *mut c_void;
    pub(crate) fn __libc_realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void;
    pub(crate) fn __libc_memalign(alignment: size_t, bytes: size_t) -> *mut c_void;
    pub(crate) fn __libc_free(memory: *mut c_void);
}

/// A function that is looked up when it is first called.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; the caller has its type from the manual.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.found.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL; the loader knows which library comes next.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            crate::place::say(&[b"the C library has no ", self.name.to_bytes()]);
            // SAFETY: ends the process: a call without a target cannot be made.
            unsafe { libc::abort() }
        }
        self.found.store(found, Relaxed);
        found
    }
}

/// Calls the function of the C library that comes next, by its name and type.
macro_rules! next {
    ($name:literal as fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        // SAFETY: the C library's function of this name has this type.
        let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(NEXT.get()) };
        // SAFETY: the caller's arguments, under the same contract.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use next;

// ---- of mappings, without a look-up: the loader itself may call them

pub(crate) unsafe fn mmap(
    at: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, under the contract of mmap.
    unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, fd, offset) as *mut c_void }
}

pub(crate) unsafe fn munmap(at: *mut c_void, bytes: size_t) -> c_int {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) as c_int }
}

pub(crate) unsafe fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_mremap, at, old, new, flags as c_long, to) as *mut c_void }
}

pub(crate) unsafe fn madvise(at: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) as c_int }
}

pub(crate) unsafe fn mprotect(at: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_mprotect, at, bytes, protection) as c_int }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
