//! Little-endian numbers in and out of byte strings, for the records of this crate.
//!
//! Guarantees: reading past the end gives `None`, never a panic; what was written is read again.

/// A byte string that grows.
#[derive(Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Zeros up to the next multiple of 8.
    pub(crate) fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// Sets eight bytes that were written before.
    pub(crate) fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// A byte string that is read from front to back.
pub(crate) struct In<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> In<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> In<'a> {
        In { bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Skips to the next multiple of 8.
    pub(crate) fn pad(&mut self) -> Option<()> {
        self.take(self.at.next_multiple_of(8) - self.at).map(drop)
    }

    /// Bytes that were not read yet.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}
