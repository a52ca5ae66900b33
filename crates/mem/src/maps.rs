//! mmap and those around it: anonymous private mappings that are long enough lie in the window.
//!
//! Only what a program would use as an array is taken: readable and writable, at no fixed address, not reserved for
//! later, no stack. Guarantees: pages are zeros until they are stored into, also after MADV_DONTNEED; parts may be
//! unmapped. Does not: protect parts of the window from being read or written (`mprotect` grants and never takes), nor
//! map files over it.

use std::cell::Cell;

use libc::{c_int, c_void, off_t, size_t};

use crate::{next, place};

/// Mappings that are something else than an array.
const OTHERS: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_SHARED;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

thread_local! {
    /// Where the next reservation of a window of this thread shall lie, and how long the window is.
    static WANTED: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// Runs `make`, which maps a window of `bytes` bytes: at `base`, where nothing is mapped.
pub(crate) fn at<T>(base: usize, bytes: usize, make: impl FnOnce() -> T) -> T {
    WANTED.set(Some((base, bytes)));
    let made = make();
    WANTED.set(None);
    made
}

/// What a window reserves beside its bytes, to have an aligned part: of that nothing is mapped here, and so nothing is
/// unmapped either.
fn reserve_at(base: usize, bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: where nothing is, else the kernel refuses; nothing may be touched.
    let made = unsafe { next::mmap(base as *mut c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    match made as usize == base {
        true => made,
        false => libc::MAP_FAILED,
    }
}

/// mmap(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let array = flags & libc::MAP_ANONYMOUS != 0 && flags & OTHERS == 0 && protection == READ_WRITE;
    if array && place::is_big(bytes) {
        match place::allocate(place::pages(bytes), 1) {
            Some(memory) if memory.is_null() => return libc::MAP_FAILED,
            Some(memory) => return memory,
            None => {}
        }
    }
    if let Some((base, wanted)) = WANTED.get() {
        if at.is_null() && protection == libc::PROT_NONE && bytes == wanted + place::ALIGNMENT_MAX {
            return reserve_at(base, wanted);
        }
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 && place::offset_of(at).is_some() {
        // Whatever lay there would be taken for ours.
        next::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller's arguments.
    unsafe { next::mmap(at, bytes, protection, flags, fd, offset) }
}

/// mmap(2), by its other name.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { mmap(at, bytes, protection, flags, fd, offset) }
}

/// The place and the offset of an address that a program may have of it.
fn of_window(at: *mut c_void) -> Option<(&'static place::Place, u64)> {
    let offset = place::offset_of(at).filter(|_| !crate::inside::is_inside())?;
    Some((place::here()?, offset))
}

/// munmap(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, bytes: size_t) -> c_int {
    if WANTED
        .get()
        .is_some_and(|(base, wanted)| at as usize == base + wanted && bytes == place::ALIGNMENT_MAX)
    {
        return 0;
    }
    let Some((here, offset)) = of_window(at) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::munmap(at, bytes) };
    };
    if bytes == 0 || at as usize != place::pages(at as usize) {
        next::set_errno(libc::EINVAL);
        return -1;
    }
    here.release(offset..offset.saturating_add(place::pages(bytes) as u64).min(here.window.bytes()));
    0
}

/// mremap(2). The last argument is there only with MREMAP_FIXED.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let Some((here, offset)) = of_window(at) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::mremap(at, old, new, flags, to) };
    };
    let (old, new) = (place::pages(old), place::pages(new));
    let (start, end) = (offset, offset.saturating_add(old as u64));
    if flags & !libc::MREMAP_MAYMOVE != 0 || new == 0 || !here.covers(&(start..end)) {
        next::set_errno(libc::EINVAL);
        return libc::MAP_FAILED;
    }
    if new <= old {
        here.release(start + new as u64..end);
        return at;
    }
    if here.bytes_at(offset) == Some(old as u64) && here.resize(offset, new as u64) {
        // What was cut off before may lie in the tile still.
        here.clear(&(end..here.end_of_tile(end).min(start + new as u64)));
        return at;
    }
    let moved = match flags & libc::MREMAP_MAYMOVE {
        0 => None,
        _ => place::allocate(new, 1).filter(|memory| !memory.is_null()),
    };
    let Some(moved) = moved else {
        next::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    };
    // SAFETY: both are as long as what is copied, and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), moved.cast::<u8>(), old) };
    here.release(start..end);
    moved
}

/// madvise(2): of the window only what changes content; the rest is decided by its own looks.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let Some((here, offset)) = of_window(at) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::madvise(at, bytes, advice) };
    };
    let range = offset..offset.saturating_add(place::pages(bytes) as u64);
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_REMOVE) {
        if !here.covers(&range) {
            next::set_errno(libc::ENOMEM);
            return -1;
        }
        here.clear(&range);
    }
    0
}

/// mprotect(2): what is granted is granted; the window stays readable and writable.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mprotect(at: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    match of_window(at) {
        Some(_) if protection & libc::PROT_EXEC == 0 => 0,
        // SAFETY: the caller's pages, as before and executable.
        Some(_) => unsafe { next::mprotect(at, bytes, protection | READ_WRITE) },
        // SAFETY: the caller's arguments.
        None => unsafe { next::mprotect(at, bytes, protection) },
    }
}
