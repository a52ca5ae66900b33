//! Memory whose pages come when they are touched: an anonymous range under userfaultfd, and the buffers that are read
//! into before a page appears.
//!
//! Guarantees: a page appears whole, by one copy; what is there changes only by stores of the program. Every call
//! checks its range. Nothing here but making and dropping allocates, locks or counts: it is called in signal
//! handlers. A child that is forked has no such range (MADV_DONTFORK): touching it there is SIGSEGV, never zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

use super::kernel;
use super::mapping::{page_bytes, Reservation};
use super::private::Private;
use super::sigbus::{Serve, Served};
use super::userfault::Userfault;
use super::view::View;

/// The range begins at a multiple of this.
const ALIGNMENT: usize = 2 << 20;

/// Ranges of one call that releases pages: a KiB of the stack of the thread that runs the handler.
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
        // SAFETY: inside the address range just reserved, which no other code uses; MAP_FIXED replaces only that.
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
        assert!(inside, "range out of bounds of the window");
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
        unsafe { kernel::pread(file.as_raw_fd(), to.as_ptr().add(at).cast(), len, offset as i64) }
    }

    /// Lets `with` fill the first `len` bytes of a buffer that the caller alone uses.
    pub fn fill<R>(&self, number: usize, len: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
        let to = self.buffer(number, len);
        // SAFETY: inside the buffer (`buffer` asserts), which is mapped from the beginning, and which the caller owns.
        with(unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) })
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
                // The thread that put them there may not have woken all waiters.
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

    /// Writes up to `len` bytes of pages that are there, and that no thread changes, to `file` at `to`.
    pub fn write(&self, offset: u64, len: usize, file: &File, to: u64) -> io::Result<usize> {
        let from = self.address(offset, len);
        // SAFETY: mapped memory (`address` asserts); the kernel only reads it.
        unsafe { kernel::pwrite(file.as_raw_fd(), from as *const _, len, to as i64) }
    }

    /// Releases the pages of ranges: they are absent then.
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
        unsafe { kernel::madvise(start as *mut _, len, advice) }
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
        unsafe { kernel::madvise(part.iov_base, part.iov_len, libc::MADV_DONTNEED)? };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_child;
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;

    /// Brings pages of a file; none behind byte `end`.
    struct Pages {
        memory: Arc<Faulted>,
        file: File,
        end: u64,
    }

    impl Serve for Pages {
        fn serve(&self, offset: u64, _write: Option<bool>) -> bool {
            let start = offset / PAGE as u64 * PAGE as u64;
            start < self.end && {
                assert_eq!(self.memory.read(0, 0, &self.file, start, PAGE).unwrap(), PAGE);
                let came = self.memory.appear(&(start..start + PAGE as u64), 0, false);
                came.is_ok() || came.unwrap_err().raw_os_error() == Some(libc::EEXIST)
            }
        }
    }

    /// A window on four pages, of which the last never comes. None where userfaultfd is refused.
    fn window(what: &str) -> Option<(Arc<Faulted>, FaultsServed, View)> {
        let file = tempfile::tempfile().unwrap();
        for page in 0..4 {
            file.write_all_at(&[page + 1; PAGE], u64::from(page) * PAGE as u64).unwrap();
        }
        let memory = match Faulted::new(4 * PAGE, false, (1, PAGE), true) {
            Ok(memory) => Arc::new(memory),
            Err(e) => {
                crate::skips::skipped(what, &format!("userfaultfd is refused: {e}"));
                return None;
            }
        };
        let server = Pages { memory: memory.clone(), file, end: 3 * PAGE as u64 };
        let served = memory.serve_by(Arc::new(server)).unwrap();
        let view = memory.view(&(0..4 * PAGE as u64));
        Some((memory, served, view))
    }

    #[test]
    fn pages_come_when_they_are_touched_and_again_when_they_were_released() {
        let Some((memory, _served, view)) = window("pages that come") else { return };
        for _ in 0..3 {
            let seen: Vec<u8> = (0..3).map(|page| view.as_slice()[page * PAGE + 17]).collect();
            assert_eq!(seen, [1, 2, 3]);
            memory.discard([0..PAGE as u64, 2 * PAGE as u64..3 * PAGE as u64].into_iter()).unwrap();
        }
    }

    /// Ends the process with a status of its own.
    extern "C" fn end_with_42(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: ends this process.
        unsafe { libc::_exit(42) }
    }

    #[test]
    fn what_cannot_be_had_goes_to_the_handler_that_was_there_before() {
        let status = in_child(|| {
            // SAFETY: a whole sigaction with a handler of the signature that SA_SIGINFO asks for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = end_with_42;
                action.sa_sigaction = handler as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            }
            let Some((_memory, _served, view)) = window("the handler that was there before") else {
                return 42;
            };
            if view.as_slice()[0] != 1 {
                return 1;
            }
            i32::from(view.as_slice()[3 * PAGE])
        });
        assert_eq!(status, 42);
    }

    #[test]
    fn a_forked_child_has_no_window() {
        let Some((_memory, _served, view)) = window("a window and fork") else { return };
        assert_eq!(view.as_slice()[0], 1);
        let address = view.as_ptr() as usize;
        let status = in_child(|| {
            let mut there = 0u8;
            // SAFETY: one byte for one page; asks whether something is mapped and touches nothing else.
            let rc = unsafe { libc::mincore(address as *mut _, PAGE, &mut there) };
            let gone = rc != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
            i32::from(!gone)
        });
        assert_eq!(status, 0);
        assert_eq!(view.as_slice()[PAGE], 2, "the parent's goes on");
    }

    #[test]
    fn windows_come_and_go_while_others_are_used() {
        let Some((memory, _served, view)) = window("windows that come and go") else { return };
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                for _ in 0..50 {
                    let (_memory, _served, view) = window("").unwrap();
                    assert_eq!(view.as_slice()[PAGE], 2);
                }
            });
            while !others.is_finished() {
                assert_eq!(view.as_slice()[2 * PAGE], 3);
                memory.discard(std::iter::once(0..4 * PAGE as u64)).unwrap();
            }
        });
    }
}
