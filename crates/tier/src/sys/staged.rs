//! Writable memory that a producer fills before a record exists: pool memory itself, or heap for pools that
//! are written by system calls.

use std::ops::Range;
use std::sync::Arc;

use super::Mapping;

/// A range of a pool being filled in place, or a heap buffer that will be written to it.
///
/// Obtained from [`Device::stage`](crate::Device::stage), returned to
/// [`Device::unstage`](crate::Device::unstage); dropping it instead leaves the range unpublished, with any
/// bytes in it. It is `Send` and keeps the mapping alive, so it may outlive the device handle. Its first byte
/// is aligned to 64 bytes when the range's offset is. Pool memory holds what was there before; heap holds
/// zeros.
#[derive(Debug)]
pub struct StagedWrite {
    range: Range<u64>,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Pool(Arc<Mapping>),
    /// Zeroed bytes of the allocator, of which the first `skew` are skipped to reach a line boundary. (Plain
    /// bytes, because only those come zeroed from the kernel without being touched.)
    Heap {
        bytes: Box<[u8]>,
        skew: usize,
    },
}

/// Least alignment of heap memory: a cache line.
const ALIGNMENT: usize = 64;

impl StagedWrite {
    /// In place. The caller of `stage` promises (as for every write) that it alone owns the range.
    pub(crate) fn in_pool(mapping: Arc<Mapping>, range: Range<u64>) -> StagedWrite {
        assert!(mapping.is_writable(), "staging in a read-only mapping");
        mapping.at(range.start, range.end - range.start);
        StagedWrite { range, memory: Memory::Pool(mapping) }
    }

    pub(crate) fn on_heap(range: Range<u64>) -> StagedWrite {
        Self::on_heap_like(range, ALIGNMENT)
    }

    /// On the heap, at an address that leaves the same remainder to `align` (a power of two) as the range's offset:
    /// whole blocks of the range are aligned in memory, too.
    pub(crate) fn on_heap_like(range: Range<u64>, align: usize) -> StagedWrite {
        let len = (range.end - range.start) as usize;
        let align = align.max(ALIGNMENT);
        // The remainder is rounded down to a line, so that the memory is aligned to one even if the offset is not.
        let remainder = (range.start % align as u64) as usize / ALIGNMENT * ALIGNMENT;
        let bytes = vec![0u8; len + 2 * align].into_boxed_slice();
        let skew = bytes.as_ptr().align_offset(align) + remainder;
        assert!(skew < 2 * align);
        StagedWrite { range, memory: Memory::Heap { bytes, skew } }
    }

    /// The range of the pool that this will become.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bytes are the pool's own (no copy will follow).
    pub fn is_in_pool(&self) -> bool {
        matches!(self.memory, Memory::Pool(_))
    }

    /// Whether it lies in this mapping.
    pub(crate) fn is_of(&self, mapping: &Arc<Mapping>) -> bool {
        matches!(&self.memory, Memory::Pool(own) if Arc::ptr_eq(own, mapping))
    }

    /// The address of the first byte; stays the same until `self` is dropped.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.memory {
            Memory::Pool(mapping) => mapping.at(self.range.start, self.len() as u64).as_ptr(),
            Memory::Heap { bytes, skew } => bytes[*skew..].as_ptr(),
        }
    }

    /// The address for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Pool(mapping) => mapping.at(self.range.start, self.range.end - self.range.start).as_ptr(),
            Memory::Heap { bytes, skew } => bytes[*skew..].as_mut_ptr(),
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: as_ptr gives len() initialised bytes (mapped memory, `at` asserts; or heap of len() + 2 * align
        // bytes of which skew < 2 * align are skipped, asserted in `on_heap_like`); no code writes them while `self`
        // is borrowed, because this value alone owns the unpublished range.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len();
        // SAFETY: as above, and `in_pool` asserted a writable mapping; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), len) }
    }
}
