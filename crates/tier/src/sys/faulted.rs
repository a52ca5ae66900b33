//! Memory whose pages come when they are touched: an anonymous range under userfaultfd, and the buffers that are read
//! into before a page appears.
//!
//! Guarantees: a page appears whole, by one copy; what is there changes only by stores of the program. Every call checks
//! its range. Nothing here but making and dropping allocates, locks or counts: it is called in signal handlers. A child
//! that is forked has no such range (MADV_DONTFORK): touching it there is SIGSEGV, never zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

use super::mapping::{page_bytes, Reservation};
use super::private::Private;
use super::sigbus::{Serve, Served};
use super::userfault::Userfault;
use super::view::View;

/// The range begins at a multiple of this.
const ALIGNMENT: usize = 2 << 20;

/// Ranges of one call that gives pages back: a KiB of the stack of whoever runs the handler.
const VECTOR: usize = 64;

/// `PIDFD_SELF`: this process, without a descriptor (6.14).
const PIDFD_SELF: libc::c_int = -10_000;

/// See the file's head.
pub struct Faulted {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    buffers: Private,
    buffer_bytes: usize,
    buffers_total: usize,
    fault: Userfault,
    viewed: AtomicBool,
    mark: u64,
}

// SAFETY: the memory belongs to this value; it is changed by system calls on ranges that the pager above owns at that
// time, and by who holds the one writable view.
unsafe impl Send for Faulted {}
// SAFETY: as above.
unsafe impl Sync for Faulted {}

impl std::fmt::Debug for Faulted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulted").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Keeps the faults of a range going to a server.
#[derive(Debug)]
pub struct FaultsServed(#[allow(dead_code)] Served);

impl Faulted {
    /// `len` bytes of which nothing is there, with `buffers` buffers of `buffer_bytes`. `by_signal`: who touches them
    /// gets SIGBUS, else [`Faulted::next_fault`] tells.
    pub fn new(
        len: usize,
        writable: bool,
        (buffers, buffer_bytes): (usize, usize),
        by_signal: bool,
    ) -> io::Result<Faulted> {
        let fault = Userfault::open(by_signal)?;
        if writable && !fault.has_write_protect() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let len = len.next_multiple_of(page_bytes());
        let hole = Reservation::new(len + ALIGNMENT)?;
        let base = hole.aligned(ALIGNMENT);
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: inside the address range just reserved, which nobody else uses; MAP_FIXED replaces only that.
        let mapped = unsafe { libc::mmap(base.as_ptr().cast(), len, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        hole.keep_only(base, len);
        let made = Faulted {
            base,
            len,
            writable,
            buffers: Private::new(buffers * buffer_bytes)?,
            buffer_bytes,
            buffers_total: buffers,
            fault,
            viewed: AtomicBool::new(false),
            mark: super::fork_generation(),
        };
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            let refused = made.advise(0, len, advice).is_err();
            if refused && advice == libc::MADV_DONTFORK {
                return Err(io::Error::last_os_error());
            }
        }
        made.fault.register(made.address(0, len), len as u64, writable)?;
        Ok(made)
    }

    /// From now on faults go to `server`, until the result is dropped.
    pub fn serve_by(&self, server: Arc<dyn Serve>) -> io::Result<FaultsServed> {
        Served::enter(self.base.as_ptr() as usize, self.len, server).map(FaultsServed)
    }

    /// The address of an offset, after the check of its range.
    fn address(&self, offset: u64, len: usize) -> u64 {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len as u64);
        assert!(inside, "a range outside the window");
        self.base.as_ptr() as u64 + offset
    }

    fn buffer(&self, number: usize, len: usize) -> NonNull<u8> {
        assert!(number < self.buffers_total && len <= self.buffer_bytes, "a part outside the buffers");
        self.buffers.at(number * self.buffer_bytes)
    }

    /// Reads up to `len` bytes of `file` at `offset` into a buffer, which the caller alone uses, from byte `at` on.
    pub fn read(&self, number: usize, at: usize, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let to = self.buffer(number, at + len);
        // SAFETY: at + len bytes of the buffer (`buffer` asserts), which the caller owns; the descriptor is open.
        let got =
            unsafe { libc::pread(file.as_raw_fd(), to.as_ptr().add(at).cast(), len, offset as libc::off_t) };
        match got {
            -1 => Err(io::Error::last_os_error()),
            got => Ok(got as usize),
        }
    }

    /// Zeros a part of a buffer that the caller alone uses.
    pub fn clear(&self, number: usize, range: Range<usize>) {
        let to = self.buffer(number, range.end);
        assert!(range.start <= range.end);
        // SAFETY: inside the buffer (asserted), which the caller owns.
        unsafe { to.as_ptr().add(range.start).write_bytes(0, range.end - range.start) };
    }

    /// Makes the pages of `range`, of which none is there, appear with what the buffer holds; `protect`: a store to
    /// them is a fault.
    pub fn appear(&self, range: &Range<u64>, number: usize, protect: bool) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        let from = self.buffer(number, len);
        match self.fault.copy(self.address(range.start, len), from.as_ptr() as u64, len as u64, protect) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                // Whoever put them there may not have woken everybody.
                self.wake(range);
                Err(e)
            }
            other => other,
        }
    }

    /// Makes absent pages fail when they are touched.
    pub fn poison(&self, range: &Range<u64>) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        self.fault.poison(self.address(range.start, len), len as u64)
    }

    /// Makes stores to pages that are there faults, or no longer.
    pub fn protect(&self, range: &Range<u64>, on: bool) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        self.fault.protect(self.address(range.start, len), len as u64, on)
    }

    /// Wakes who sleeps in a fault of the range.
    pub fn wake(&self, range: &Range<u64>) {
        let len = (range.end - range.start) as usize;
        self.fault.wake(self.address(range.start, len), len as u64);
    }

    /// The next fault of a range that is not served by signal: its offset, and whether it was a store.
    pub fn next_fault(&self, timeout_ms: i32) -> io::Result<Option<(u64, bool)>> {
        let base = self.base.as_ptr() as u64;
        Ok(self.fault.next(timeout_ms)?.map(|(address, write)| (address - base, write)))
    }

    /// Writes up to `len` bytes of pages that are there, and that nobody changes, to `file` at `to`.
    pub fn write(&self, offset: u64, len: usize, file: &File, to: u64) -> io::Result<usize> {
        let from = self.address(offset, len);
        // SAFETY: mapped memory (`address` asserts); the kernel only reads it.
        let put = unsafe { libc::pwrite(file.as_raw_fd(), from as *const _, len, to as libc::off_t) };
        match put {
            -1 => Err(io::Error::last_os_error()),
            put => Ok(put as usize),
        }
    }

    /// Gives the pages of ranges back: they are absent then.
    pub fn discard(&self, ranges: impl Iterator<Item = Range<u64>>) -> io::Result<()> {
        let mut vector = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; VECTOR];
        let mut used = 0;
        for range in ranges {
            let len = (range.end - range.start) as usize;
            let start = self.address(range.start, len);
            vector[used] = libc::iovec { iov_base: start as *mut _, iov_len: len };
            used += 1;
            if used == VECTOR {
                discard_all(&vector)?;
                used = 0;
            }
        }
        discard_all(&vector[..used])
    }

    /// Copies bytes that are there, and stay until it returns, out of the range.
    pub fn copy_out(&self, offset: u64, out: &mut [u8]) {
        let from = self.address(offset, out.len());
        // SAFETY: mapped memory (`address` asserts); `out` is no part of it that anybody may store into, since it is
        // borrowed.
        unsafe { std::ptr::copy(from as *const u8, out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes into a part of the range that is there and stays until it returns.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) {
        assert!(self.writable, "a store into a window that is open to read");
        let to = self.address(offset, bytes.len());
        // SAFETY: mapped writable memory (`address` and the assertion above); the caller holds the only right to
        // change it (`Window::write` borrows the view mutably).
        unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    /// The memory as a slice; once.
    pub fn view(self: &Arc<Faulted>, range: &Range<u64>) -> View {
        assert!(!self.viewed.swap(true, SeqCst), "a range has one view");
        let len = (range.end - range.start) as usize;
        let start = self.address(range.start, len) as *mut u8;
        let start = NonNull::new(start).expect("memory is nowhere at 0");
        // SAFETY: the range is mapped (`address` asserts) as long as `self` is kept; it is the only view, asserted.
        unsafe { View::new(start, len, self.writable, self.clone()) }
    }

    fn advise(&self, offset: u64, len: usize, advice: libc::c_int) -> io::Result<()> {
        let start = self.address(offset, len);
        // SAFETY: our own range (`address` asserts); the advices used on it neither free nor change pages.
        match unsafe { libc::madvise(start as *mut _, len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// MADV_DONTNEED of ranges of one `Faulted`: one call and one flush of translations for all, where the kernel can.
fn discard_all(vector: &[libc::iovec]) -> io::Result<()> {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let mut done = 0;
    if vector.len() > 1 && !REFUSED.load(Relaxed) {
        // SAFETY: live iovecs of ranges that the caller owns, checked when they were made; their pages may go.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF,
                vector.as_ptr(),
                vector.len(),
                libc::MADV_DONTNEED,
                0,
            )
        };
        if advised < 0 {
            REFUSED.store(true, Relaxed);
        }
        done = advised.max(0) as usize;
    }
    for part in vector {
        if done >= part.iov_len {
            done -= part.iov_len;
            continue;
        }
        done = 0;
        // SAFETY: as above.
        if unsafe { libc::madvise(part.iov_base, part.iov_len, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Drop for Faulted {
    fn drop(&mut self) {
        if self.mark != super::fork_generation() {
            // A forked child never had the range; something else may lie there now.
            return;
        }
        // SAFETY: mapped by `new`, ours alone; the view keeps `self` alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
