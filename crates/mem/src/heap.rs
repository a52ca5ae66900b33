//! malloc and those around it: what is long enough comes from the window, everything else from the allocator that the
//! program links.
//!
//! Guarantees: `free` and `realloc` know by the address where memory came from; the window's is aligned to a tile, and
//! zeros.

use std::alloc::{GlobalAlloc, Layout};

use libc::{c_int, c_void, size_t};

use crate::{linked, next, place};

/// What Rust code of this library allocates.
pub(crate) struct Own;

/// What the C library aligns everything to.
const ALIGNED: usize = 16;

// SAFETY: the C library's allocator, which keeps the contract for sizes and, through memalign, for alignments.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: sizes and alignments as Layout has them.
        unsafe {
            match layout.align() <= ALIGNED {
                true => next::__libc_malloc(layout.size()).cast(),
                false => next::__libc_memalign(layout.align(), layout.size()).cast(),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: as above.
            return unsafe { next::__libc_calloc(1, layout.size()).cast() };
        }
        // SAFETY: as above; as many bytes as were given.
        unsafe {
            let memory = self.alloc(layout);
            if !memory.is_null() {
                memory.write_bytes(0, layout.size());
            }
            memory
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: memory of the C library's, given once.
        unsafe { next::__libc_free(memory.cast()) }
    }
}

/// Memory of at least `bytes` from a multiple of `alignment` on.
unsafe fn aligned(alignment: size_t, bytes: size_t) -> *mut c_void {
    match place::is_big(bytes).then(|| place::allocate(bytes, alignment)).flatten() {
        Some(memory) => memory,
        // SAFETY: the caller's arguments.
        None => unsafe { linked::memalign(alignment, bytes) },
    }
}

/// malloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    match place::is_big(bytes).then(|| place::allocate(bytes, 1)).flatten() {
        Some(memory) => memory,
        // SAFETY: any number of bytes.
        None => unsafe { linked::malloc(bytes) },
    }
}

/// calloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    let big = count.checked_mul(bytes).filter(|all| place::is_big(*all));
    match big.and_then(|all| place::allocate(all, 1)) {
        Some(memory) => memory,
        // SAFETY: any numbers; it looks for an overflow itself.
        None => unsafe { linked::calloc(count, bytes) },
    }
}

/// free(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    let Some(offset) = place::offset_of(memory) else {
        // SAFETY: not of a window, so of the program's allocator, or null.
        unsafe { linked::free(memory) };
        return;
    };
    let errno = next::errno();
    let Some(here) = place::here() else { return };
    match here.bytes_at(offset) {
        Some(bytes) => here.release(offset..offset + bytes),
        None => {
            place::say(&[b"free(): an address that was not given out"]);
            // SAFETY: ends the process, as the C library does.
            unsafe { libc::abort() }
        }
    }
    next::set_errno(errno);
}

/// realloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void {
    if memory.is_null() {
        // SAFETY: any number of bytes.
        return unsafe { malloc(bytes) };
    }
    let Some(offset) = place::offset_of(memory) else {
        if place::is_big(bytes) {
            // SAFETY: memory of the program's allocator.
            let old = unsafe { malloc_usable_size(memory) };
            // SAFETY: the caller's memory, which is `old` long.
            return unsafe { moved(memory, old, bytes) };
        }
        // SAFETY: memory of the program's allocator.
        return unsafe { linked::realloc(memory, bytes) };
    };
    if bytes == 0 {
        // SAFETY: the caller's memory.
        unsafe { free(memory) };
        return std::ptr::null_mut();
    }
    let old = place::here().and_then(|here| here.bytes_at(offset)).unwrap_or(0) as usize;
    let stays = place::is_big(bytes) && place::here().is_some_and(|here| here.resize(offset, bytes as u64));
    if stays {
        return memory;
    }
    // SAFETY: the caller's memory, which is `old` long.
    unsafe { moved(memory, old, bytes) }
}

/// New memory with what the old holds, which is freed.
unsafe fn moved(memory: *mut c_void, old: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: any number of bytes; both are as long as what is copied and do not overlap; the old one is the caller's.
    unsafe {
        let new = malloc(bytes);
        if !new.is_null() {
            std::ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast::<u8>(), old.min(bytes));
            free(memory);
        }
        new
    }
}

/// reallocarray(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: size_t, bytes: size_t) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's memory.
        Some(all) => unsafe { realloc(memory, all) },
        None => {
            next::set_errno(libc::ENOMEM);
            std::ptr::null_mut()
        }
    }
}

/// posix_memalign(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, alignment: size_t, bytes: size_t) -> c_int {
    if !alignment.is_power_of_two() || alignment % size_of::<*mut c_void>() != 0 {
        return libc::EINVAL;
    }
    let errno = next::errno();
    // SAFETY: an alignment that is one.
    let memory = unsafe { aligned(alignment, bytes) };
    next::set_errno(errno);
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: where the caller wants the address.
    unsafe { *to = memory };
    0
}

/// aligned_alloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: any numbers; what is none is refused where memory is made.
    unsafe { memalign(alignment, bytes) }
}

/// memalign(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn memalign(alignment: size_t, bytes: size_t) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        // SAFETY: an alignment that is one.
        Some(alignment) => unsafe { aligned(alignment, bytes) },
        None => {
            next::set_errno(libc::EINVAL);
            std::ptr::null_mut()
        }
    }
}

/// valloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    // SAFETY: pages are a power of two long.
    unsafe { aligned(place::pages(1), bytes) }
}

/// pvalloc(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: size_t) -> *mut c_void {
    // SAFETY: as above.
    unsafe { aligned(place::pages(1), place::pages(bytes.max(1))) }
}

/// malloc_usable_size(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> size_t {
    match place::offset_of(memory) {
        Some(offset) => place::here().and_then(|here| here.bytes_at(offset)).unwrap_or(0) as usize,
        // SAFETY: not of a window, so of the program's allocator, or null.
        None => unsafe { linked::usable_size(memory) },
    }
}
