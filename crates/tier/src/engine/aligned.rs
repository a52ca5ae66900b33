//! Heap memory that begins on a page, as O_DIRECT asks for.

use crate::sys;

/// Bytes aligned to a page, zero at first.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    skew: usize,
    len: usize,
}

impl Aligned {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Aligned {
        let page = sys::page_bytes();
        let bytes = vec![0; len + page];
        let skew = bytes.as_ptr().align_offset(page);
        assert!(skew < page, "bytes can be aligned to pages");
        Aligned { bytes, skew, len }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes.
    pub fn part(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len, "more than there is");
        &mut self.bytes[self.skew..self.skew + len]
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.skew..self.skew + self.len]
    }

    /// All of them, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.part(self.len)
    }
}
