//! A mapping of a file whose pages are managed explicitly: brings in, takes out of the mapping, writes back, drops from
//! the page cache, counts.
//!
//! Guarantees: nothing here loses a byte: only clean pages that are mapped nowhere leave the page cache. A forked child
//! does not have the mapping.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

use super::kernel;
use super::mapping::{page_bytes, Reservation};
use super::view::View;

const ALIGNMENT: usize = 2 << 20;

/// `cachestat(2)` (6.5), the same number everywhere.
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages that `mincore` is asked about at once.
const MINCORE_PAGES: usize = 4096;

/// The kernel's default, of all devices that say nothing else.
const READ_AHEAD_BYTES: u64 = 128 << 10;

/// What is expected of the next accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The kernel finds out.
    Normal,
    /// Nothing is read beside what is touched.
    Random,
    /// Much is read ahead.
    Sequential,
}

/// See the file's head.
#[derive(Debug)]
pub struct FileWindow {
    base: NonNull<u8>,
    len: usize,
    file: File,
    /// The same file opened once more, where it is written: an open file is told of a failed write once, and `flush`
    /// shall be the one.
    writing: Option<File>,
    writable: bool,
    viewed: AtomicBool,
    mark: u64,
}

// SAFETY: plain shared memory at a fixed address; bytes are reached only through the one view.
unsafe impl Send for FileWindow {}
// SAFETY: as above.
unsafe impl Sync for FileWindow {}

/// The file, opened and not duplicated.
fn again(file: &File) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl FileWindow {
    /// Maps the first `len` bytes of `file`, which is that long and stays so.
    pub fn new(file: File, len: u64, writable: bool) -> io::Result<FileWindow> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let hole = Reservation::new(len + ALIGNMENT)?;
        let base = hole.aligned(ALIGNMENT);
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd());
        // SAFETY: inside the address range just reserved, which no other code uses; MAP_FIXED replaces only that.
        let mapped = unsafe { libc::mmap(base.as_ptr().cast(), len, protection, flags, fd, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        hole.keep_only(base, len);
        let mark = super::fork_generation();
        let writing = writable.then(|| again(&file)).transpose()?;
        let made = FileWindow { base, len, file, writing, writable, viewed: AtomicBool::new(false), mark };
        made.advise(&(0..len as u64), libc::MADV_DONTFORK)?;
        Ok(made)
    }

    /// How many bytes are mapped.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// The address of a range, rounded out to pages, and its length.
    fn pages(&self, range: &Range<u64>) -> (usize, usize) {
        let page = page_bytes() as u64;
        let end = range.end.next_multiple_of(page);
        assert!(
            range.start <= range.end && end <= (self.len as u64).next_multiple_of(page),
            "outside the window"
        );
        let start = range.start / page * page;
        (self.base.as_ptr() as usize + start as usize, (end - start) as usize)
    }

    fn advise(&self, range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
        let (start, len) = self.pages(range);
        // SAFETY: our own mapping of a file (`pages` asserts): these advices change no content, since the bytes of a
        // shared mapping are the file's.
        unsafe { kernel::madvise(start as *mut _, len, advice) }
    }

    /// Says what to expect. Best effort.
    pub fn expect(&self, range: &Range<u64>, what: Expect) {
        let advice = match what {
            Expect::Normal => libc::MADV_NORMAL,
            Expect::Random => libc::MADV_RANDOM,
            Expect::Sequential => libc::MADV_SEQUENTIAL,
        };
        let _ = self.advise(range, advice);
    }

    /// What the kernel reads ahead of this file, at most; what it has as default where it does not tell.
    pub fn read_ahead_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let device = self.file.metadata().map_or(0, |seen| seen.dev());
        let name = format!("{}:{}", libc::major(device), libc::minor(device));
        // A partition has none of its own; what is no device at all has one by the number of the file system.
        let places = [
            format!("/sys/dev/block/{name}/queue/read_ahead_kb"),
            format!("/sys/dev/block/{name}/../queue/read_ahead_kb"),
            format!("/sys/class/bdi/{name}/read_ahead_kb"),
        ];
        let told =
            places.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
        told.map_or(READ_AHEAD_BYTES, |kib| kib << 10)
    }

    /// Brings the pages of a range in and maps them (5.14); EFAULT where touching one would be SIGBUS.
    pub fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        loop {
            match self.advise(range, libc::MADV_POPULATE_READ) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Begins to bring pages in. Best effort.
    pub fn begin_to_read(&self, range: &Range<u64>) {
        let _ = self.advise(range, libc::MADV_WILLNEED);
    }

    /// Takes the pages of a range out of the mapping; they stay in the page cache, dirty ones dirty.
    pub fn unmap_pages(&self, range: &Range<u64>) -> io::Result<()> {
        self.advise(range, libc::MADV_DONTNEED)
    }

    /// Makes a range zeros again, and releases its memory and blocks: only for files that no other process has.
    pub fn forget(&self, range: &Range<u64>) -> io::Result<()> {
        let (start, len) = self.pages(range);
        // SAFETY: our own mapping (`pages` asserts) of a file whose owner says that these bytes are not needed.
        unsafe { kernel::madvise(start as *mut _, len, libc::MADV_REMOVE) }
    }

    /// Drops the pages of a range that are clean and not mapped from the page cache.
    pub fn drop_cached(&self, range: &Range<u64>) -> io::Result<()> {
        let len = (range.end - range.start) as libc::off_t;
        // SAFETY: the descriptor is open; no pointers; only what the file holds goes.
        let errno = unsafe {
            libc::posix_fadvise(
                self.file.as_raw_fd(),
                range.start as libc::off_t,
                len,
                libc::POSIX_FADV_DONTNEED,
            )
        };
        match errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Begins to write the dirty pages of a range; with `wait` also waits until they are written. Not durable: `flush`
    /// is.
    pub fn write_back(&self, range: &Range<u64>, wait: bool) -> io::Result<()> {
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let flags = if wait { all } else { libc::SYNC_FILE_RANGE_WRITE };
        let (start, len) = (range.start as libc::off64_t, (range.end - range.start) as libc::off64_t);
        let Some(writing) = &self.writing else { return Ok(()) };
        // SAFETY: the descriptor is open; no pointers; writing back changes no value.
        match unsafe { libc::sync_file_range(writing.as_raw_fd(), start, len, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What a write of this file's pages failed with since the last call of this, of `write_back` or of `flush`: also
    /// one that the kernel began by itself. Looks at the first page, and blocks while that page is being written.
    pub fn check_written(&self) -> io::Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        // SAFETY: the descriptor is open; no pointers; waiting changes no value.
        match unsafe { libc::sync_file_range(writing.as_raw_fd(), 0, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps threads that fault in this file waiting for as long as the disk takes for one page more, behind all that
    /// is on its way to it: they bring and dirty no pages meanwhile.
    ///
    /// A page behind the data is written, and at once made a hole again. File systems let no thread fault while they
    /// make a hole, and they wait for pages that are just being written. Only for files of this process alone; their
    /// end moves. Where a file system has no holes, this is an error.
    pub fn hold_faults(&self) -> io::Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        // In a piece of the page cache of its own.
        let page = page_bytes();
        let at = (self.len.next_multiple_of(ALIGNMENT) + ALIGNMENT) as libc::off64_t;
        std::os::unix::fs::FileExt::write_all_at(writing, &vec![1; page], at as u64)?;
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (fd, bytes) = (writing.as_raw_fd(), page as libc::off64_t);
        // SAFETY: the descriptor is open; no pointers; behind the data, where nothing is mapped.
        let rc = unsafe {
            libc::sync_file_range(fd, at, bytes, libc::SYNC_FILE_RANGE_WRITE);
            libc::fallocate(fd, hole, at, bytes)
        };
        match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes everything that was stored durable.
    pub fn flush(&self) -> io::Result<()> {
        super::flush_data(&self.file)
    }

    /// How many pages of a range are in the page cache; an error where that is not told.
    pub fn cached_pages(&self, range: &Range<u64>) -> io::Result<u64> {
        static REFUSED: AtomicBool = AtomicBool::new(false);
        if !REFUSED.load(Relaxed) {
            let (asked, mut found) = ([range.start, range.end - range.start], [0u64; 5]);
            // SAFETY: two words to read and five to write, as the call has them; both outlive it.
            let rc = unsafe {
                libc::syscall(SYS_CACHESTAT, self.file.as_raw_fd(), asked.as_ptr(), found.as_mut_ptr(), 0)
            };
            if rc == 0 {
                return Ok(found[0]);
            }
            let e = io::Error::last_os_error();
            if e.raw_os_error() != Some(libc::ENOSYS) {
                // The kernel tells nothing about a file of another user, and mincore would say that all of it is there.
                return Err(e);
            }
            REFUSED.store(true, Relaxed);
        }
        self.cached_by_mincore(range)
    }

    fn cached_by_mincore(&self, range: &Range<u64>) -> io::Result<u64> {
        let (start, len) = self.pages(range);
        let page = page_bytes();
        let mut found = [0u8; MINCORE_PAGES];
        let mut total = 0;
        for at in (0..len).step_by(MINCORE_PAGES * page) {
            let part = (len - at).min(MINCORE_PAGES * page);
            // SAFETY: our own mapping (`pages` asserts); one byte a page is written, and the vector has as many.
            if unsafe { libc::mincore((start + at) as *mut _, part, found.as_mut_ptr().cast()) } != 0 {
                return Err(io::Error::last_os_error());
            }
            total += found[..part.div_ceil(page)].iter().filter(|byte| **byte & 1 != 0).count() as u64;
        }
        Ok(total)
    }

    /// The memory as a slice; once.
    pub fn view(self: &Arc<FileWindow>, range: &Range<u64>) -> View {
        assert!(!self.viewed.swap(true, SeqCst), "a window has one view");
        assert!(range.start <= range.end && range.end <= self.len as u64, "outside the window");
        let (start, len) = (self.base, (range.end - range.start) as usize);
        // SAFETY: inside the mapping, asserted, which lives as long as `self` is kept; the only view, asserted.
        unsafe { View::new(start.add(range.start as usize), len, self.writable, self.clone()) }
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        if self.mark == super::fork_generation() {
            // SAFETY: mapped by `new`, ours alone; the view keeps `self` alive. (A forked child never had it.)
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}
