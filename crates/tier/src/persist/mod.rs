//! Moving bytes into pools with processor instructions: non-temporal copies, cache-line write-back, fences.
//!
//! What the processor has is found once at run time: AVX-512, AVX2 or SSE2 for stores that bypass the cache;
//! clwb, clflushopt or clflush (x86-64), dc cvap or dc cvac (aarch64) for writing lines back. With eADR (the
//! caches are inside the persistence domain) lines need no write-back, but fences stay.
//! This file promises nothing about the medium: only a DAX mapping makes write-back mean persistence.

use std::ops::Range;
use std::sync::OnceLock;

use crate::checksum::crc32c_append;
use crate::counters;

// `--cfg forebay_portable`: as on processors we know no instructions for. Sanitizers see what those copies do; of
// non-temporal stores they see nothing.
#[cfg(all(target_arch = "aarch64", not(forebay_portable)))]
mod aarch64;
#[cfg(any(forebay_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(forebay_portable)))]
use aarch64 as arch;
#[cfg(any(forebay_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use portable as arch;
#[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
use x86_64 as arch;

pub mod vector;

#[cfg(test)]
mod tests;

/// Bytes that a cache moves at once. 64 on every x86-64; on aarch64 the smallest line, so none is left out.
pub const LINE_BYTES: usize = 64;

/// From this length on, copies to persistent memory bypass the cache.
///
/// 256 bytes is the unit in which the published persistent memory of the studies writes its medium; below it
/// a store through the cache followed by write-back of its lines was faster there.
pub const NON_TEMPORAL_BYTES_MIN: usize = 256;

/// Up to this length, copies to DRAM go through the cache.
///
/// Above it a cached store first reads the line that it is about to overwrite, which for objects streamed through a
/// pool larger than the cache doubles the traffic: puts of 2 KiB took 330 ns through the cache and 280 ns past it.
/// Below it the ends that do not fill a line outweigh that.
pub const DRAM_TEMPORAL_BYTES_MAX: usize = 255;

/// The block in which a checksummed copy alternates between summing and copying.
///
/// Small enough to be still in the first-level cache when it is copied (32 KiB or more everywhere), large
/// enough that the start-up of the vectorised CRC does not show.
pub const CHECKSUM_BLOCK_BYTES: usize = 8 << 10;

/// How far behind the line being copied past the cache the source is asked for. One block of a checksummed copy: the
/// next block is then read from memory while this one is on its way there, instead of after it.
const AHEAD_BYTES: usize = CHECKSUM_BLOCK_BYTES;

/// How to copy into one kind of pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyPolicy {
    /// From this length on, stores bypass the cache.
    non_temporal_from: usize,
    /// Lines stored through the cache are written back.
    write_back: bool,
}

impl CopyPolicy {
    /// No persistence needed.
    pub(crate) const DRAM: CopyPolicy =
        CopyPolicy { non_temporal_from: DRAM_TEMPORAL_BYTES_MAX + 1, write_back: false };
    /// Persistent after a fence.
    pub(crate) const PMEM: CopyPolicy =
        CopyPolicy { non_temporal_from: NON_TEMPORAL_BYTES_MIN, write_back: true };
    /// Persistent after a fence, where caches are inside the persistence domain.
    pub(crate) const PMEM_EADR: CopyPolicy =
        CopyPolicy { non_temporal_from: NON_TEMPORAL_BYTES_MIN, write_back: false };

    /// The same through the cache, for what is read at once, where nothing has to be written back.
    pub(crate) fn staying_near(self) -> CopyPolicy {
        match self.write_back {
            true => self,
            false => CopyPolicy { non_temporal_from: usize::MAX, ..self },
        }
    }
}

/// The instructions chosen for this machine.
#[derive(Clone, Copy)]
struct Instructions {
    stream: arch::Stream,
    flush: arch::Flush,
}

fn instructions() -> Instructions {
    static CHOSEN: OnceLock<Instructions> = OnceLock::new();
    *CHOSEN.get_or_init(|| Instructions { stream: arch::Stream::best(), flush: arch::Flush::best() })
}

/// Name of the store instructions used for large copies: "avx512", "avx2", "sse2", "aarch64" or "portable".
pub fn stream_instructions() -> &'static str {
    instructions().stream.name()
}

/// Name of the instruction that writes cache lines back: "clwb", "clflushopt", "clflush", "dc cvap", "dc
/// cvac", or "none" where there is none (persistent memory is not possible then).
pub fn flush_instruction() -> &'static str {
    instructions().flush.name()
}

/// Orders all earlier stores of this thread, also those that bypass the cache, before all later ones, and
/// waits for earlier cache-line write-backs. Does not write anything back itself.
#[inline]
pub fn fence() {
    counters::add_fence();
    arch::fence();
}

/// Writes the cache lines of `range` back to memory; persistent after [`fence`] when the memory is.
pub fn write_back(range: &[u8]) {
    // SAFETY: a live slice is mapped memory.
    unsafe { write_back_raw(range.as_ptr(), range.len()) }
}

/// [`write_back`] and [`fence`].
pub fn persist(range: &[u8]) {
    write_back(range);
    fence();
}

/// Copies `src` to `dst` and makes it persistent when `dst` is persistent memory: stores that bypass the
/// cache from [`NON_TEMPORAL_BYTES_MIN`] on, ordinary stores and write-back below; one fence.
///
/// # Panics
/// When the lengths differ.
pub fn copy_persist(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "lengths differ");
    // SAFETY: both are live slices of the same length; the exclusive borrow of dst excludes overlap.
    unsafe { copy_fenced(dst.as_mut_ptr(), src.as_ptr(), src.len(), CopyPolicy::PMEM) };
}

/// Copies `src` to `dst`, past the cache from [`NON_TEMPORAL_BYTES_MIN`] on, and orders it before later stores. Nothing
/// is written back: this is a copy to main memory.
///
/// # Panics
/// When the lengths differ.
pub fn copy_streaming_to(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "lengths differ");
    // SAFETY: both are live slices of the same length; the exclusive borrow of dst excludes overlap.
    unsafe { copy_fenced(dst.as_mut_ptr(), src.as_ptr(), src.len(), CopyPolicy::DRAM) };
}

/// Copies `len` bytes without a fence. True if it used stores that bypass the cache: they are unordered with
/// everything, even with a release store, until a fence.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, without overlap, and no other thread accesses `dst`.
#[inline]
#[must_use = "without a fence what was copied may come after later stores"]
pub(crate) unsafe fn copy_unfenced(dst: *mut u8, src: *const u8, len: usize, policy: CopyPolicy) -> bool {
    counters::add_bytes_copied(len as u64);
    if len < policy.non_temporal_from {
        // SAFETY: the caller's promise.
        unsafe { copy_cached(dst, src, len, policy.write_back) };
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { copy_streaming(dst, src, len, 0, policy.write_back, instructions().stream) };
    true
}

/// As [`copy_unfenced`], always with a fence at the end: persistent when `dst` is persistent memory.
///
/// # Safety
/// As [`copy_unfenced`].
#[inline]
pub(crate) unsafe fn copy_fenced(dst: *mut u8, src: *const u8, len: usize, policy: CopyPolicy) {
    // SAFETY: the caller's promise is the same.
    let _needs_one = unsafe { copy_unfenced(dst, src, len, policy) };
    fence();
}

/// Asks the processor to fetch the cache lines of `bytes`, for a reader that will want them soon: at most some KiB,
/// since more would push out what is wanted now. Never faults, and changes nothing but time.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        arch::prefetch(line.as_ptr());
    }
}

/// Ordinary stores, then write-back of the lines if asked.
///
/// # Safety
/// As [`copy_unfenced`].
#[inline]
unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize, write_back: bool) {
    // SAFETY: the caller promises valid, disjoint ranges.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    if write_back {
        // SAFETY: dst is mapped for len bytes.
        unsafe { write_back_raw(dst, len) };
    }
}

/// Whole lines of `dst` by stores that bypass the cache; the partial lines at both ends by ordinary ones. The caller
/// is about to read `follows` more bytes of the source.
///
/// # Safety
/// As [`copy_unfenced`]; the machine has `stream`.
unsafe fn copy_streaming(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    follows: usize,
    write_back: bool,
    stream: arch::Stream,
) {
    let head = dst.align_offset(LINE_BYTES).min(len);
    let lines = (len - head) / LINE_BYTES;
    let tail = len - head - lines * LINE_BYTES;
    // Nothing is asked for that is not wanted: small objects lie anywhere.
    let asking = ((len - head + follows).saturating_sub(AHEAD_BYTES) / LINE_BYTES).min(lines);
    // SAFETY: head + lines * LINE_BYTES + tail == len, so all three parts lie inside the caller's ranges; dst
    // + head is aligned to LINE_BYTES whenever lines > 0.
    unsafe {
        if head > 0 {
            copy_cached(dst, src, head, write_back);
        }
        stream.copy_lines(dst.add(head), src.add(head), asking, AHEAD_BYTES);
        let asked = head + asking * LINE_BYTES;
        stream.copy_lines(dst.add(asked), src.add(asked), lines - asking, 0);
        if write_back && !arch::STREAM_BYPASSES_CACHE {
            write_back_raw(dst.add(head), lines * LINE_BYTES);
        }
        if tail > 0 {
            let at = head + lines * LINE_BYTES;
            copy_cached(dst.add(at), src.add(at), tail, write_back);
        }
    }
}

/// Copies `src` and appends the CRC-32C of each of its `chunk_bytes` pieces (the last may be short) to
/// `crcs`. Memory is read once: each block is summed, then copied while it is in the cache. No fence; says
/// whether one is needed as [`copy_unfenced`].
///
/// # Safety
/// As [`copy_unfenced`] for `src.len()` bytes.
#[must_use = "without a fence what was copied may come after later stores"]
pub(crate) unsafe fn copy_checksummed_unfenced(
    dst: *mut u8,
    src: &[u8],
    policy: CopyPolicy,
    chunk_bytes: usize,
    crcs: &mut Vec<u32>,
) -> bool {
    assert!(chunk_bytes > 0, "chunks of no bytes");
    counters::add_bytes_copied(src.len() as u64);
    let streaming = src.len() >= policy.non_temporal_from;
    let stream = instructions().stream;
    // Copies end at line boundaries of dst, whatever the chunks are, so that no line is stored in two ways.
    let skew = dst as usize % LINE_BYTES;
    let (mut summed, mut copied, mut crc) = (0, 0, 0);
    while summed < src.len() {
        let chunk_end = (summed / chunk_bytes + 1).saturating_mul(chunk_bytes).min(src.len());
        let end = (summed + CHECKSUM_BLOCK_BYTES).min(chunk_end);
        crc = crc32c_append(crc, &src[summed..end]);
        summed = end;
        if summed == chunk_end {
            crcs.push(crc);
            crc = 0;
        }
        let until = match summed == src.len() {
            true => summed,
            false => ((summed + skew) / LINE_BYTES * LINE_BYTES).saturating_sub(skew),
        };
        if until > copied {
            // SAFETY: copied < until <= src.len(), so both ranges are inside the caller's.
            unsafe {
                let (to, from) = (dst.add(copied), src.as_ptr().add(copied));
                match streaming {
                    true => {
                        let follows = src.len() - until;
                        copy_streaming(to, from, until - copied, follows, policy.write_back, stream)
                    }
                    false => copy_cached(to, from, until - copied, policy.write_back),
                }
            }
            copied = until;
        }
    }
    streaming && !src.is_empty()
}

/// The CRC-32C of each `chunk_bytes` piece of bytes that are in place already.
pub fn checksum_chunks(data: &[u8], chunk_bytes: usize, crcs: &mut Vec<u32>) {
    let chunks = (0..data.len()).step_by(chunk_bytes);
    crcs.extend(chunks.map(|at| checksum_ahead(data, at..(at + chunk_bytes).min(data.len()))));
}

/// The CRC-32C of `data[part]`. Memory is asked for one block ahead, behind `part` as well: the processor's own guesses
/// end at every page, so that what is in no cache would be waited for there.
#[inline]
pub fn checksum_ahead(data: &[u8], part: Range<usize>) -> u32 {
    let mut crc = 0;
    for at in part.clone().step_by(CHECKSUM_BLOCK_BYTES) {
        let end = (at + CHECKSUM_BLOCK_BYTES).min(part.end);
        prefetch(&data[end..(end + CHECKSUM_BLOCK_BYTES).min(data.len())]);
        crc = crc32c_append(crc, &data[at..end]);
    }
    crc
}

/// Writes back every line that `[start, start + len)` touches. No fence.
///
/// # Safety
/// The range is mapped.
pub(crate) unsafe fn write_back_raw(start: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let first = start as usize / LINE_BYTES * LINE_BYTES;
    let lines = (start as usize + len - first).div_ceil(LINE_BYTES);
    counters::add_flushes(lines as u64);
    // SAFETY: every line holds at least one byte of the mapped range.
    unsafe { instructions().flush.lines(first as *const u8, lines) }
}
