//! Private memory of this process, page by page: what the kernel reads into and writes from.

use std::io;
use std::ptr::{self, NonNull};

/// An anonymous mapping that belongs to this value alone.
pub(super) struct Private {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone; nothing is tied to the thread that mapped it.
unsafe impl Send for Private {}

impl Private {
    /// Zeros, of which no page is there before it is touched.
    pub(super) fn new(len: usize) -> io::Result<Private> {
        // SAFETY: a fresh private mapping at an address the kernel chooses; nothing else is affected.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 unasked");
        Ok(Private { base, len })
    }

    /// Where byte `offset` lies.
    #[inline]
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len);
        // SAFETY: inside the mapping, asserted.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the code that handed out parts of it has waited for the kernel, or the kernel keeps
        // the pages that it was given.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
