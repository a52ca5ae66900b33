//! The allocator that the program links: the C library's, or jemalloc, tcmalloc and the like, which come behind this
//! library in the loader's order. What is not placed comes from it and goes back to it.
//!
//! Found by the first allocation. Guarantees: memory goes back to the allocator that gave it. What is allocated while
//! the loader looks it up comes from a few KiB of our own and is never freed.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use std::cell::Cell;
use std::ffi::CStr;

use libc::{c_int, c_void, size_t};

use crate::next;

/// Whose functions are called.
const UNKNOWN: u32 = 0;
const C_LIBRARY: u32 = 1;
const OTHER: u32 = 2;
static WHOSE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Functions of another allocator, by number.
const MALLOC: usize = 0;
const CALLOC: usize = 1;
const REALLOC: usize = 2;
const ALIGN: usize = 3;
const FREE: usize = 4;
const USABLE: usize = 5;
const NAMES: [&CStr; 6] =
    [c"malloc", c"calloc", c"realloc", c"posix_memalign", c"free", c"malloc_usable_size"];
static FOUND: [AtomicPtr<c_void>; 6] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 6];

thread_local! {
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// What the C library aligns everything to.
const ALIGNED: usize = 16;

/// Memory for who allocates while symbols are looked up: the loader, a few bytes for a message.
const EARLY_BYTES: usize = 64 << 10;

#[repr(align(16))]
struct Early(std::cell::UnsafeCell<[u8; EARLY_BYTES]>);

// SAFETY: parts are given out once, by an atomic counter.
unsafe impl Sync for Early {}

static EARLY: Early = Early(std::cell::UnsafeCell::new([0; EARLY_BYTES]));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// Zeros, of which the 16 bytes before them say how many; null: there are no more.
fn early(bytes: usize, alignment: usize) -> *mut c_void {
    let Some(needed) = bytes.checked_add(alignment.max(ALIGNED) + 2 * ALIGNED) else {
        return std::ptr::null_mut();
    };
    let base = EARLY.0.get() as usize;
    let at = EARLY_USED.fetch_add(needed.min(EARLY_BYTES).next_multiple_of(ALIGNED), Relaxed);
    if at.saturating_add(needed) > EARLY_BYTES {
        return std::ptr::null_mut();
    }
    let memory = (base + at + ALIGNED).next_multiple_of(alignment.max(ALIGNED));
    // SAFETY: inside the part just given out, which no other caller has.
    unsafe { ((memory - ALIGNED) as *mut usize).write(bytes) };
    memory as *mut c_void
}

/// How long memory from `early` is; None: it is not from there.
fn early_bytes(memory: *const c_void) -> Option<usize> {
    let base = EARLY.0.get() as usize;
    let is_early = (base..base + EARLY_BYTES).contains(&(memory as usize));
    // SAFETY: given out by `early`, which has written the length there.
    is_early.then(|| unsafe { ((memory as usize - ALIGNED) as *const usize).read() })
}

/// Who is asked.
enum Asked {
    CLibrary,
    Other,
    /// Not looked up yet.
    Early,
}

#[inline]
fn asked() -> Asked {
    match WHOSE.load(Acquire) {
        C_LIBRARY => Asked::CLibrary,
        OTHER => Asked::Other,
        _ => look(),
    }
}

#[cold]
fn look() -> Asked {
    if LOOKING.replace(true) {
        return Asked::Early;
    }
    for (name, found) in NAMES.iter().zip(&FOUND) {
        // SAFETY: the name ends with NUL; the loader knows which library comes next.
        found.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Relaxed);
    }
    let own = next::__libc_malloc as unsafe extern "C" fn(size_t) -> *mut c_void as usize;
    let first = FOUND[MALLOC].load(Relaxed) as usize;
    let is_whole = FOUND.iter().all(|found| !found.load(Relaxed).is_null());
    let whose = if is_whole && first != own { OTHER } else { C_LIBRARY };
    WHOSE.store(whose, Release);
    LOOKING.set(false);
    asked()
}

/// A function of the other allocator.
macro_rules! other {
    ($which:ident as fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        let found = FOUND[$which].load(Relaxed);
        // SAFETY: not null, and the function of this name has this type.
        let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
        // SAFETY: the caller's arguments, under the same contract.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) unsafe fn malloc(bytes: size_t) -> *mut c_void {
    match asked() {
        // SAFETY: any number of bytes.
        Asked::CLibrary => unsafe { next::__libc_malloc(bytes) },
        Asked::Other => other!(MALLOC as fn(size_t) -> *mut c_void, bytes),
        Asked::Early => early(bytes, 1),
    }
}

pub(crate) unsafe fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    match asked() {
        // SAFETY: any numbers; it looks for an overflow itself.
        Asked::CLibrary => unsafe { next::__libc_calloc(count, bytes) },
        Asked::Other => other!(CALLOC as fn(size_t, size_t) -> *mut c_void, count, bytes),
        Asked::Early => count.checked_mul(bytes).map_or(std::ptr::null_mut(), |all| early(all, 1)),
    }
}

pub(crate) unsafe fn memalign(alignment: size_t, bytes: size_t) -> *mut c_void {
    match asked() {
        // SAFETY: the caller's arguments.
        Asked::CLibrary => unsafe { next::__libc_memalign(alignment, bytes) },
        Asked::Other => {
            let mut made = std::ptr::null_mut();
            let alignment = alignment.max(size_of::<*mut c_void>());
            type To = *mut *mut c_void;
            match other!(ALIGN as fn(To, size_t, size_t) -> c_int, &mut made, alignment, bytes) {
                0 => made,
                errno => {
                    next::set_errno(errno);
                    std::ptr::null_mut()
                }
            }
        }
        Asked::Early => early(bytes, alignment),
    }
}

/// Of memory that came from here.
pub(crate) unsafe fn realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void {
    if let Some(old) = early_bytes(memory) {
        // SAFETY: any number of bytes; both are as long as what is copied.
        unsafe {
            let new = malloc(bytes);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast::<u8>(), old.min(bytes));
            }
            return new;
        }
    }
    match asked() {
        Asked::Other => other!(REALLOC as fn(*mut c_void, size_t) -> *mut c_void, memory, bytes),
        // SAFETY: memory of the C library's: nothing else gave any before the look-up.
        _ => unsafe { next::__libc_realloc(memory, bytes) },
    }
}

/// Of memory that came from here, or null.
pub(crate) unsafe fn free(memory: *mut c_void) {
    if memory.is_null() || early_bytes(memory).is_some() {
        return;
    }
    match asked() {
        Asked::Other => other!(FREE as fn(*mut c_void) -> (), memory),
        // SAFETY: memory of the C library's.
        _ => unsafe { next::__libc_free(memory) },
    }
}

/// Of memory that came from here, or null.
pub(crate) unsafe fn usable_size(memory: *mut c_void) -> size_t {
    if let Some(bytes) = early_bytes(memory) {
        return bytes;
    }
    match asked() {
        Asked::Other => other!(USABLE as fn(*mut c_void) -> size_t, memory),
        _ => next::next!(c"malloc_usable_size" as fn(*mut c_void) -> size_t, memory),
    }
}
