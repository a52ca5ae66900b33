//! Processors we know no instructions for: plain copies; persistent memory is not possible.

use super::LINE_BYTES;

/// Plain copies do not.
pub(super) const STREAM_BYPASSES_CACHE: bool = false;

/// Plain copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream;

impl Stream {
    #[cfg(test)]
    pub(super) fn available() -> Vec<Stream> {
        vec![Stream]
    }

    pub(super) fn best() -> Stream {
        Stream
    }

    pub(super) fn name(self) -> &'static str {
        "portable"
    }

    /// # Safety
    /// Both are valid for `lines` lines and do not overlap.
    pub(super) unsafe fn copy_lines(self, dst: *mut u8, src: *const u8, lines: usize, _ahead: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, lines * LINE_BYTES) }
    }
}

/// No write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flush;

impl Flush {
    pub(super) fn best() -> Flush {
        Flush
    }

    #[cfg(test)]
    pub(super) fn available() -> Vec<Flush> {
        vec![Flush]
    }

    pub(super) fn name(self) -> &'static str {
        "none"
    }

    /// # Safety
    /// None needed.
    pub(super) unsafe fn lines(self, _first: *const u8, _lines: usize) {}
}

/// No hint.
#[inline]
pub(super) fn prefetch(_line: *const u8) {}

/// A full fence.
#[inline]
pub(super) fn fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
