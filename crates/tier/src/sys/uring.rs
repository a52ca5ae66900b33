//! What every ring of this crate needs of io_uring: a plain one, the operations it must know, and which failures pass.

use std::io;

use io_uring::IoUring;

/// How often a call that the kernel has no memory for is repeated.
const ATTEMPTS_MAX: u32 = 1000;

/// A ring that may be used by one thread after the other. Completions interrupt no thread where the kernel supports
/// that (5.19): elsewhere it is slower, nothing else.
pub(super) fn plain(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))
}

/// The ring, if it knows these operations.
///
/// # Errors
/// `ENOSYS` where the kernel is too old.
pub(super) fn with_operations(uring: IoUring, needed: &[u8]) -> io::Result<IoUring> {
    let mut probe = io_uring::Probe::new();
    uring.submitter().register_probe(&mut probe)?;
    match needed.iter().all(|code| probe.is_supported(*code)) {
        true => Ok(uring),
        false => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// Interruptions and passing lack of memory are no errors: the caller tries again.
#[cold]
pub(super) fn passing(e: io::Error, attempts: &mut u32) -> io::Result<()> {
    if e.kind() == io::ErrorKind::Interrupted {
        return Ok(());
    }
    *attempts += 1;
    let passes = matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
    if passes && *attempts < ATTEMPTS_MAX {
        std::thread::yield_now();
        return Ok(());
    }
    Err(e)
}
