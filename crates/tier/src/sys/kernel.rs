//! Calls that go straight to the kernel, past the C library's names for them.
//!
//! A library in front of the C library may have taken these names (that of `forebay mem` has): what a window does with
//! its own pages must not come back to it as if the program had asked for it.

use std::io;

use libc::{c_int, c_void};

/// madvise(2).
///
/// # Safety
/// The caller's pages, which the advice may change as it says.
pub(super) unsafe fn madvise(start: *mut c_void, len: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// pread(2).
///
/// # Safety
/// `len` bytes at `to` that no other code uses.
pub(super) unsafe fn pread(fd: c_int, to: *mut c_void, len: usize, offset: i64) -> io::Result<usize> {
    // SAFETY: as the caller promises.
    let got = unsafe { libc::syscall(libc::SYS_pread64, fd, to, len, offset) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// pwrite(2).
///
/// # Safety
/// `len` bytes at `from` that no thread changes.
pub(super) unsafe fn pwrite(fd: c_int, from: *const c_void, len: usize, offset: i64) -> io::Result<usize> {
    // SAFETY: as the caller promises.
    let put = unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, len, offset) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// mmap(2): a page of zeros over what is mapped there.
///
/// # Safety
/// The caller's own pages, of which no byte is needed.
pub(super) unsafe fn map_zeros(start: usize, len: usize, protection: c_int) -> io::Result<()> {
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: as the caller promises.
    unsafe { map_file(start, len, protection, flags, -1, 0) }
}

/// mmap(2) over what is mapped there; `flags` have MAP_FIXED.
///
/// # Safety
/// The caller's own pages; every holder of slices of them accepts the new content.
pub(super) unsafe fn map_file(
    start: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::syscall(libc::SYS_mmap, start, len, protection, flags, fd, offset) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
