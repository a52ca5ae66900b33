//! A shared mapping of one whole pool file, aligned to huge pages, that lives as long as it is used.
//!
//! Guarantees: every accessor checks its range against the length; a read-only mapping refuses stores. A page that the
//! medium does not give, or that was cut off, is told to [`super::watch`] where that was asked for; it is SIGBUS else.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8};

use super::lost::{watched, Covered, Replaced};
use crate::counters;
use crate::host;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::persist::{self, CopyPolicy};
use crate::Result;

/// Mappings begin at a multiple of this, so that 2 MiB pages fit where the kernel has them.
const ALIGNMENT: usize = 2 << 20;

/// Populating goes in slices of this size, so that a signal is served within milliseconds.
const POPULATE_SLICE: usize = 64 << 20;

/// Size of a page of this machine.
pub(crate) fn page_bytes() -> usize {
    static PAGE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers, no effect.
            let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u32;
            PAGE.store(bytes, Ordering::Relaxed);
            bytes as usize
        }
        bytes => bytes as usize,
    }
}

/// How to map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapOptions {
    /// Stores are allowed (the file must be open for writing).
    pub(crate) writable: bool,
    /// MAP_SYNC: the kernel promises that file metadata is durable before a page becomes writable.
    pub(crate) sync: bool,
    /// Ask for huge pages.
    pub(crate) huge: bool,
    /// The address shall be a multiple of this power of two, too (0: nothing more than always).
    pub(crate) align: usize,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Kind of mapping, as the kernel was told.
    flags: libc::c_int,
    /// Where lost pages are told.
    covered: Option<Covered>,
    /// Where lost pages are replaced by zeros.
    replaced: Option<Replaced>,
}

// SAFETY: the mapping is plain shared memory with a fixed address; all mutation through &self is atomic or
// goes to ranges that their single owner writes (see `copy_in` and `bytes`).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`. The caller has made the file at least that long.
    pub(crate) fn new(file: &File, len: u64, options: MapOptions) -> io::Result<Mapping> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let align = options.align.max(ALIGNMENT);
        let reserved = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let hole = Reservation::new(reserved)?;
        let base = hole.aligned(align);
        let protection = libc::PROT_READ | if options.writable { libc::PROT_WRITE } else { 0 };
        let flags = match options.sync {
            true => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            false => libc::MAP_SHARED,
        };
        // SAFETY: [base, base + len) lies inside the address range just reserved, which no other code uses;
        // MAP_FIXED replaces only that.
        let mapped = unsafe {
            libc::mmap(base.as_ptr().cast(), len, protection, flags | libc::MAP_FIXED, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        hole.keep_only(base, len);
        #[cfg(forebay_simulated)]
        crate::simulation::map_added(base.as_ptr() as usize, len, file, super::simulated::MEMORY);
        let mapping = Mapping { base, len, writable: options.writable, flags, covered: None, replaced: None };
        if options.huge {
            // Refused where huge pages are not built in: then pages are small, nothing else changes.
            let _ = mapping.advise(&(0..len as u64), libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// From now on [`super::watch`] is told of pages of `file`, which is what is mapped here, that the medium does not
    /// give. Best effort: a process has at most some 4000 such mappings.
    pub(crate) fn tell_lost_pages(&mut self, file: &File, path: &Path) {
        if cfg!(forebay_simulated) {
            // Simulated processes share one table of mappings, which those that are killed never leave.
            return;
        }
        let protection = libc::PROT_READ | if self.writable { libc::PROT_WRITE } else { 0 };
        let place = (self.base.as_ptr() as usize, self.len);
        self.covered = Covered::new(place, file, path, (protection, self.flags)).ok();
    }

    /// From now on pages that the medium does not give are replaced by zeros. Best effort, as above.
    pub(crate) fn replace_lost_pages(&mut self) {
        if cfg!(forebay_simulated) {
            return;
        }
        self.replaced = Replaced::new(self.base.as_ptr() as usize, self.len).ok();
    }

    /// Whether a page was replaced.
    #[inline]
    pub(crate) fn met_lost_page(&self) -> bool {
        self.replaced.as_ref().is_some_and(Replaced::met_lost_page)
    }

    /// Loads a byte of each page of a range, for which a page that the medium does not give is lost.
    pub(crate) fn touch_read(&self, range: &Range<u64>) -> Result<()> {
        if self.covered.is_none() || range.is_empty() {
            return Ok(());
        }
        let page = page_bytes() as u64;
        let start = self.at(range.start, range.end - range.start).as_ptr();
        watched(|| {
            let pages = (range.start / page + 1) * page..range.end;
            for at in std::iter::once(range.start).chain(pages.step_by(page as usize)) {
                // SAFETY: inside the range that `at` has checked; any value will do.
                unsafe { start.add((at - range.start) as usize).read_volatile() };
            }
            Ok(())
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of an offset, after the range check that every other function rests on.
    pub(crate) fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len as u64);
        assert!(inside, "range {offset}+{len} is outside the mapping of {} bytes", self.len);
        // SAFETY: offset <= len of the mapping, asserted above.
        unsafe { self.base.add(offset as usize) }
    }

    /// Published bytes, without a copy.
    ///
    /// This is the one place where memory that other processes may write becomes a plain slice. It rests on
    /// the protocol of the log above: a range is handed out only after its commit word was read (acquire), a
    /// published range is never written again, and it is not reused while anybody holds a lease on it. A
    /// caller that asks for unpublished bytes may see any values, changing.
    pub(crate) fn bytes(&self, range: Range<u64>) -> &[u8] {
        host::point("view");
        assert!(range.start <= range.end, "range {range:?} is reversed");
        let len = range.end - range.start;
        let start = self.at(range.start, len);
        // SAFETY: the range is inside the mapping (`at` asserts), mapped readable for as long as `self`
        // lives; immutable by the protocol above.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) }
    }

    /// The 8-byte word at an offset, for loads.
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset % 8 == 0, "offset {offset} of a word is not a multiple of 8");
        // SAFETY: in range (`at` asserts), aligned (asserted; the base is page-aligned), mapped while `self`
        // lives. Read-only mappings are only loaded from: callers store through `word_mut`.
        unsafe { self.at(offset, 8).cast::<AtomicU64>().as_ref() }
    }

    /// The 8-byte word at an offset, for stores.
    pub(crate) fn word_mut(&self, offset: u64) -> &AtomicU64 {
        assert!(self.writable, "store into a read-only mapping");
        self.word(offset)
    }

    /// The 4-byte word at an offset of a writable mapping.
    pub(crate) fn word32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset % 4 == 0, "offset {offset} of a word is not a multiple of 4");
        assert!(self.writable, "atomics on a read-only mapping");
        // SAFETY: as in `word`.
        unsafe { self.at(offset, 4).cast::<AtomicU32>().as_ref() }
    }

    /// The byte at an offset of a writable mapping.
    pub(crate) fn byte(&self, offset: u64) -> &AtomicU8 {
        assert!(self.writable, "atomics on a read-only mapping");
        // SAFETY: as in `word`; any address is aligned for a byte.
        unsafe { self.at(offset, 1).cast::<AtomicU8>().as_ref() }
    }

    /// Copies `src` into a range that only the caller writes and no process reads yet. Ordered before later stores.
    pub(crate) fn copy_in(&self, offset: u64, src: &[u8], policy: CopyPolicy) {
        if self.copy_in_unfenced(offset, src, policy) {
            persist::fence();
        }
    }

    /// As `copy_in`, but without the fence; says whether one is needed before anything may be taken for later.
    #[inline]
    pub(crate) fn copy_in_unfenced(&self, offset: u64, src: &[u8], policy: CopyPolicy) -> bool {
        host::point("copy in");
        assert!(self.writable, "store into a read-only mapping");
        let dst = self.at(offset, src.len() as u64);
        // SAFETY: dst is src.len() writable bytes (`at` and the assertion above); `src` is a live slice and
        // does not overlap, because no code may hold a slice of an unpublished range.
        unsafe { persist::copy_unfenced(dst.as_ptr(), src.as_ptr(), src.len(), policy) }
    }

    /// As `copy_in`, with a fence at the end whatever the length.
    #[inline]
    pub(crate) fn copy_in_fenced(&self, offset: u64, src: &[u8], policy: CopyPolicy) {
        assert!(self.writable, "store into a read-only mapping");
        let dst = self.at(offset, src.len() as u64);
        // SAFETY: as in `copy_in`; that `src` is no part of the range is checked by the caller (`Region`).
        unsafe { persist::copy_fenced(dst.as_ptr(), src.as_ptr(), src.len(), policy) }
    }

    /// As `copy_in_unfenced`, and appends the CRC-32C of each `chunk_bytes` of `src` to `crcs`.
    #[inline]
    pub(crate) fn copy_in_checksummed_unfenced(
        &self,
        offset: u64,
        src: &[u8],
        policy: CopyPolicy,
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> bool {
        host::point("copy in");
        assert!(self.writable, "store into a read-only mapping");
        let dst = self.at(offset, src.len() as u64);
        // SAFETY: as in `copy_in_unfenced`.
        unsafe { persist::copy_checksummed_unfenced(dst.as_ptr(), src, policy, chunk_bytes, crcs) }
    }

    /// Writes the cache lines of a range back to the medium (no fence).
    pub(crate) fn write_back(&self, range: &Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        let start = self.at(range.start, len);
        // SAFETY: the range is mapped (`at` asserts); writing lines back changes no value.
        unsafe { persist::write_back_raw(start.as_ptr(), len as usize) }
    }

    /// msync: writes the pages of a range to their file, and what the file system needs to find them again.
    /// EINTR is repeated; any other error means that pages may be lost.
    pub(crate) fn sync(&self, range: &Range<u64>) -> io::Result<()> {
        let page = page_bytes() as u64;
        let start = range.start / page * page;
        let len = range.end.saturating_sub(start);
        let address = self.at(start, len);
        loop {
            counters::add_syscall();
            counters::add_flushes(1);
            // SAFETY: the range is mapped (`at` asserts) and begins at a page; writing back changes no value.
            if unsafe { libc::msync(address.as_ptr().cast(), len as usize, libc::MS_SYNC) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Makes the pages of a range present and writable in this process; existing bytes stay as they are.
    /// The blocks must be allocated, or a full file system becomes EFAULT here (never a signal).
    pub(crate) fn populate_write(&self, range: &Range<u64>) -> io::Result<()> {
        assert!(self.writable, "populating a read-only mapping for writing");
        static UNSUPPORTED: AtomicBool = AtomicBool::new(false);
        if !UNSUPPORTED.load(Ordering::Relaxed) {
            match self.populate(range, libc::MADV_POPULATE_WRITE) {
                Err(e) if is_unknown_advice(&e) => UNSUPPORTED.store(true, Ordering::Relaxed),
                other => return other,
            }
        }
        self.touch_write(range);
        Ok(())
    }

    /// Whether the kernel has MADV_POPULATE_WRITE (5.14): asked with an empty range, which touches nothing.
    pub(crate) fn can_populate(&self) -> bool {
        self.writable && self.advise(&(0..0), libc::MADV_POPULATE_WRITE).is_ok()
    }

    /// Touches each page with an atomic "or 0": a store that changes nothing, also under concurrent stores.
    /// The blocks must be allocated before, or a full file system is a SIGBUS.
    pub(crate) fn touch_write(&self, range: &Range<u64>) {
        for page in range.clone().step_by(page_bytes()) {
            self.byte(page).fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Maps the pages of a range for reading in this process. Best effort.
    pub(crate) fn populate_read(&self, range: &Range<u64>) {
        let _ = self.try_populate_read(range);
    }

    /// As `populate_read`. EFAULT when touching a page would be a SIGBUS; other errors say only that the kernel
    /// lacks the call.
    pub(crate) fn try_populate_read(&self, range: &Range<u64>) -> io::Result<()> {
        self.populate(range, libc::MADV_POPULATE_READ).inspect_err(|_| {
            // Slower and without a result, but every kernel has it.
            let _ = self.advise(range, libc::MADV_WILLNEED);
        })
    }

    fn populate(&self, range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let page = page_bytes() as u64;
        let (mut at, end) =
            (range.start / page * page, range.end.next_multiple_of(page).min(self.mapped_end()));
        while at < end {
            let next = (at + POPULATE_SLICE as u64).min(end);
            match self.advise(&(at..next), advice) {
                Ok(()) => at = next,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Turns off reading ahead at page faults. Best effort.
    pub(crate) fn expect_random(&self) {
        let _ = self.advise(&(0..self.mapped_end()), libc::MADV_RANDOM);
    }

    fn mapped_end(&self) -> u64 {
        (self.len as u64).next_multiple_of(page_bytes() as u64)
    }

    /// madvise of a page-aligned range.
    fn advise(&self, range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.mapped_end(), "advice outside the mapping");
        let page = page_bytes() as u64;
        let start = range.start / page * page;
        counters::add_syscall();
        // SAFETY: the range is inside the mapping (asserted); the advices used here (HUGEPAGE, POPULATE_*,
        // RANDOM, WILLNEED) change no content.
        let rc = unsafe {
            libc::madvise(self.base.as_ptr().add(start as usize).cast(), (range.end - start) as usize, advice)
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// EINVAL: a kernel before 5.14. ENOSYS, EPERM: a sandbox that filters madvise by its argument.
fn is_unknown_advice(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        (self.covered, self.replaced) = (None, None);
        #[cfg(forebay_simulated)]
        crate::simulation::map_removed(self.base.as_ptr() as usize);
        // SAFETY: the range was mapped by `new` and belongs to this value alone; slices of it borrow from
        // `self`, and staged writes keep `self` alive by an Arc.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Address space without memory, from which an aligned part is taken.
pub(super) struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

impl Reservation {
    pub(super) fn new(len: usize) -> io::Result<Reservation> {
        // SAFETY: a fresh inaccessible mapping at an address the kernel chooses; nothing else is affected.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 unasked");
        Ok(Reservation { base, len })
    }

    /// The first address in it that is a multiple of `align`.
    pub(super) fn aligned(&self, align: usize) -> NonNull<u8> {
        let skip = self.base.as_ptr().align_offset(align);
        assert!(skip < align && skip < self.len);
        // SAFETY: skip < len of the reservation, asserted.
        unsafe { self.base.add(skip) }
    }

    /// Unmaps what lies before `base` and after its `len` bytes; the rest belongs to the caller.
    pub(super) fn keep_only(self, base: NonNull<u8>, len: usize) {
        let head = base.as_ptr() as usize - self.base.as_ptr() as usize;
        let kept = len.next_multiple_of(page_bytes());
        assert!(head + kept <= self.len);
        let tail = self.len - head - kept;
        // SAFETY: head and tail are the parts of our own reservation outside [base, base + kept), asserted
        // above; no code ever got their addresses.
        unsafe {
            if head > 0 {
                libc::munmap(self.base.as_ptr().cast(), head);
            }
            if tail > 0 {
                libc::munmap(base.as_ptr().add(kept).cast(), tail);
            }
        }
        std::mem::forget(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: our own reservation; `keep_only` forgets `self` when part of it was handed out.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_keeps_bytes_when_populated() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(3 << 20).unwrap();
        let map = Mapping::new(&file, 3 << 20, MapOptions { writable: true, ..Default::default() }).unwrap();
        assert_eq!(map.at(0, 0).as_ptr() as usize % ALIGNMENT, 0);
        map.copy_in(4095, b"kept", CopyPolicy::DRAM);
        map.populate_write(&(0..3 << 20)).unwrap();
        map.touch_write(&(0..3 << 20));
        map.populate_read(&(0..3 << 20));
        assert_eq!(map.bytes(4095..4099), b"kept");
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn a_range_past_the_end_is_refused() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(4096).unwrap();
        let map = Mapping::new(&file, 4096, MapOptions::default()).unwrap();
        map.bytes(4000..4097);
    }
}
