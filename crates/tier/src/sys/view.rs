//! The one slice over the memory of a window.
//!
//! Guarantees: there is one view of a range, so that Rust's rules on borrowing hold for everything that goes through
//! it. What the pager below does (releasing pages, reading them again) changes no byte that can be seen.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// See the file's head.
pub struct View {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as a boxed slice: the bytes belong to the view; the memory is kept alive from any thread.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Of `len` bytes from `start` on.
    ///
    /// # Safety
    /// They are mapped as long as `keep` lives, writable if `writable` says so, and no other code makes a view of them.
    pub(super) unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> View {
        View { start, len, writable, _keep: keep }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` lives (`new`); changed only through `as_mut_slice`, which borrows `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to store into. None where they may only be read.
    #[inline]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above; writable as `new` was told, and borrowed by the caller alone.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Where it begins, for those who arrange themselves who stores when.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}
