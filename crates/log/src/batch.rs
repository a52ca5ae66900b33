//! Small records kept back in memory, so that the device below gets many of them with one write.
//!
//! Guarantees: the bytes of a batch are those that the records would have been written as, one after the other, at the
//! same place: who reads the pool cannot tell. Records follow each other; who writes elsewhere empties the batch first.
//! Not here: when it is written, and what becomes of it when that fails.

/// The end of a lane that is not in the pool yet.
pub(crate) struct Batch {
    bytes_max: usize,
    bytes: Vec<u8>,
    /// Where in the pool the first byte goes.
    at: u64,
}

impl Batch {
    /// An empty one of at most so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Batch {
        Batch { bytes_max, bytes: Vec::with_capacity(bytes_max), at: 0 }
    }

    /// Whether records of so many bytes are kept back: of others not even two would go with one write.
    pub(crate) fn is_for(&self, record_bytes: u64) -> bool {
        record_bytes <= self.bytes_max as u64 / 2
    }

    /// Whether what lies from `at` to `end` in the pool can be added.
    pub(crate) fn has_capacity(&self, at: u64, end: u64) -> bool {
        let from = if self.bytes.is_empty() { at } else { self.at };
        end - from <= self.bytes_max as u64
    }

    /// Adds a record: its header part at `at`, its payload at `payload_at`.
    ///
    /// # Panics
    /// When it does not fit, or when it does not lie behind what is there.
    pub(crate) fn push(&mut self, at: u64, header: &[u8], payload_at: u64, payload: &[u8]) {
        assert!(self.has_capacity(at, payload_at + payload.len() as u64), "asked for before");
        if self.bytes.is_empty() {
            self.at = at;
        }
        self.add_at(at, header);
        self.add_at(payload_at, payload);
    }

    fn add_at(&mut self, at: u64, bytes: &[u8]) {
        let from = (at - self.at) as usize;
        assert!(from >= self.bytes.len(), "records do not overlap");
        self.bytes.resize(from, 0);
        self.bytes.extend_from_slice(bytes);
    }

    /// What there is, and where it goes; None when it is empty.
    pub(crate) fn kept_back(&self) -> Option<(u64, &[u8])> {
        (!self.bytes.is_empty()).then_some((self.at, &self.bytes))
    }

    /// Empties it. Where its first record was to go; None when there was none.
    pub(crate) fn clear(&mut self) -> Option<u64> {
        let first = (!self.bytes.is_empty()).then_some(self.at);
        self.bytes.clear();
        first
    }
}
