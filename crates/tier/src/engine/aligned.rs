//! Heap memory that begins on a page, as O_DIRECT asks for.

use crate::sys;

/// Bytes aligned to a page, zero at first.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    skew: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Aligned {
        let page = sys::page_bytes();
        let bytes = vec![0; len + page];
        let skew = bytes.as_ptr().align_offset(page);
        assert!(skew < page, "bytes can be aligned to pages");
        Aligned { bytes, skew, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first `len` bytes.
    pub(crate) fn part(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len, "more than there is");
        &mut self.bytes[self.skew..self.skew + len]
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.skew..self.skew + self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.part(self.len)
    }
}
