//! Private memory cut into frames, and a ring that fills and empties them.
//!
//! Guarantees: each byte of the memory belongs to exactly one [`Frame`], a frame to one hand at a time: the caller's,
//! or the kernel's from [`FrameRing::push`] until its completion was taken. So no frame can be freed, read or written
//! while a request uses it. Memory, files and what the caller hung on a request live until the kernel is done with
//! them, also when the ring is dropped early.
//!
//! Not here: which requests, and what to do after a short one. A ring may be used by any thread, by one at a time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types, EnterFlags, IoUring};

use super::private::Private;
use super::uring::{self, passing};
use super::ForkMark;
use crate::counters;

/// The longest buffer that the kernel registers as one; a multiple of every power of two below.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// The memory of all frames that were split from one.
struct Memory {
    private: Private,
    len: usize,
}

// SAFETY: of the memory itself only addresses are given out; its bytes are reached through frames, which do not
// overlap and follow the borrow rules.
unsafe impl Sync for Memory {}

/// Names the memory that frames were split from, and keeps it.
#[derive(Clone)]
pub struct FrameMemory(Arc<Memory>);

impl FrameMemory {
    /// All its bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.0.len
    }
}

/// A part of private memory that belongs to this value alone.
pub struct Frame {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl Frame {
    /// `len` zero bytes (a multiple of the page), of which no page is there before it is touched. Huge pages where
    /// the kernel has them.
    ///
    /// # Errors
    /// When the address space is exhausted.
    pub fn new(len: usize) -> io::Result<Frame> {
        assert!(len > 0, "a frame has bytes");
        let private = Private::new(len)?;
        // SAFETY: our own mapping, which no other code knows yet; the advice changes no content. Refused where huge
        // pages are not built in: then pages are small, nothing else changes.
        unsafe { libc::madvise(private.at(0).as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(Frame { memory: Arc::new(Memory { private, len }), start: 0, len })
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a frame has bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins in the memory that it was split from.
    #[inline]
    pub fn start(&self) -> usize {
        self.start
    }

    /// The memory that it was split from.
    pub fn memory(&self) -> FrameMemory {
        FrameMemory(self.memory.clone())
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: [start, start + len) lies in the mapping, which `memory` keeps (`split_at` and `join` keep frames
        // inside, and apart from each other); this value alone owns it, and it is borrowed. The pages are zeros
        // at first, so all are initialised.
        unsafe { std::slice::from_raw_parts(self.memory.private.at(self.start).as_ptr(), self.len) }
    }

    /// Its bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.private.at(self.start).as_ptr(), self.len) }
    }

    /// The first `bytes` and the rest, both not empty.
    pub fn split_at(self, bytes: usize) -> (Frame, Frame) {
        assert!(0 < bytes && bytes < self.len, "both parts of a frame have bytes");
        let first = Frame { memory: self.memory.clone(), start: self.start, len: bytes };
        (first, Frame { memory: self.memory, start: self.start + bytes, len: self.len - bytes })
    }

    /// One frame of this one and of the one that begins where it ends.
    pub fn join(self, next: Frame) -> Frame {
        assert!(Arc::ptr_eq(&self.memory, &next.memory), "frames of two memories");
        assert_eq!(self.start + self.len, next.start, "frames that do not touch");
        Frame { memory: self.memory, start: self.start, len: self.len + next.len }
    }

    /// Returns its pages to the system; its bytes are zeros afterwards.
    ///
    /// # Errors
    /// When the kernel refuses: then nothing has changed.
    pub fn discard(&mut self) -> io::Result<()> {
        let at = self.memory.private.at(self.start).as_ptr().cast();
        // SAFETY: this value alone owns the range, which lies in a private anonymous mapping: fresh zeros afterwards.
        match unsafe { libc::madvise(at, self.len, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}+{})", self.start, self.len)
    }
}

/// What a request moves between a part of a frame and a file.
#[derive(Clone, Debug)]
pub struct FrameRequest {
    /// The file; kept open until the request is done.
    pub file: Arc<File>,
    /// Byte in the file.
    pub offset: u64,
    /// First byte in the frame.
    pub from: usize,
    /// Bytes.
    pub len: usize,
    /// From the frame to the file.
    pub write: bool,
}

/// What the kernel has of one request.
struct Sent<T> {
    frame: Frame,
    /// Only kept: the kernel reads and writes it.
    _file: Arc<File>,
    about: T,
}

/// See the file's head. `T` is what the caller wants back with a frame.
pub struct FrameRing<T> {
    // Dropped in this order: the ring goes before the memory that it may still point to.
    uring: IoUring,
    sent: Vec<Option<Sent<T>>>,
    free: Vec<u32>,
    queued: usize,
    in_kernel: usize,
    /// Memory whose first bytes are registered, and how many.
    registered: Option<(Arc<Memory>, usize)>,
    mark: ForkMark,
}

impl<T> FrameRing<T> {
    /// A ring for at most `depth` requests.
    ///
    /// # Errors
    /// Where io_uring is refused or too old.
    pub fn new(depth: usize) -> io::Result<FrameRing<T>> {
        let entries = depth as u32;
        // Several threads use it in turn, so it has no issuer of its own.
        let made =
            uring::with_operations(uring::plain(entries)?, &[opcode::Read::CODE, opcode::Write::CODE])?;
        Ok(FrameRing {
            uring: made,
            sent: (0..depth).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            queued: 0,
            in_kernel: 0,
            registered: None,
            mark: ForkMark::here(),
        })
    }

    /// Registers the first `bytes_max` bytes of a memory, as far as the limit on locked memory allows (all of them,
    /// half, … none); says how many. Their pages are all there from then on. Requests on other memory only cost more.
    /// At most once.
    pub fn register(&mut self, FrameMemory(memory): &FrameMemory, bytes_max: usize) -> usize {
        let mut len = memory.len.min(bytes_max);
        while len >= super::page_bytes() && self.registered.is_none() {
            let parts: Vec<libc::iovec> = (0..len)
                .step_by(REGISTERED_BYTES_MAX)
                .map(|at| libc::iovec {
                    iov_base: memory.private.at(at).as_ptr().cast(),
                    iov_len: REGISTERED_BYTES_MAX.min(len - at),
                })
                .collect();
            // SAFETY: each part lies in the mapping, which `registered` keeps until after the ring is closed (order
            // of the fields); the kernel keeps its own references to the pages. Frames are moved through it only by
            // requests that own them.
            if unsafe { self.uring.submitter().register_buffers(&parts) }.is_ok() {
                self.registered = Some((memory.clone(), len));
            }
            len /= 2;
        }
        self.registered.as_ref().map_or(0, |(_, len)| *len)
    }

    /// Whether another request fits.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        !self.free.is_empty()
    }

    /// Requests that were pushed and whose completion was not taken.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.in_kernel + self.queued
    }

    /// Queues a request on a part of `frame`, which comes back with its completion.
    ///
    /// # Panics
    /// When the ring is full, or the part is not in the frame.
    pub fn push(&mut self, request: FrameRequest, frame: Frame, about: T) {
        let slot = self.free.pop().expect("a free slot for the request");
        let end = request.from.checked_add(request.len).filter(|end| *end <= frame.len);
        assert!(end.is_some() && request.len > 0 && request.len <= u32::MAX as usize, "a part of the frame");
        let start = frame.start + request.from;
        let at = frame.memory.private.at(start).as_ptr();
        let fd = types::Fd(request.file.as_raw_fd());
        let (len, offset) = (request.len as u32, request.offset);
        let entry = match (self.registered_part(&frame, start, request.len), request.write) {
            (Some(part), false) => opcode::ReadFixed::new(fd, at, len, part).offset(offset).build(),
            (Some(part), true) => opcode::WriteFixed::new(fd, at, len, part).offset(offset).build(),
            (None, false) => opcode::Read::new(fd, at, len).offset(offset).build(),
            (None, true) => opcode::Write::new(fd, at, len).offset(offset).build(),
        };
        // SAFETY: the entry's memory is a part of `frame` (asserted), which this ring owns until the completion was
        // taken, as it owns the file.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(u64::from(slot))) };
        pushed.expect("the ring has an entry for each slot");
        self.sent[slot as usize] = Some(Sent { frame, _file: request.file, about });
        self.queued += 1;
    }

    /// The registered buffer that holds all of this part.
    fn registered_part(&self, frame: &Frame, start: usize, len: usize) -> Option<u16> {
        let (memory, registered) = self.registered.as_ref()?;
        let part = start / REGISTERED_BYTES_MAX;
        let whole = start + len <= *registered && (start + len - 1) / REGISTERED_BYTES_MAX == part;
        (Arc::ptr_eq(memory, &frame.memory) && whole).then_some(part as u16)
    }

    /// Hands everything that is queued to the kernel.
    ///
    /// # Errors
    /// When the kernel takes no requests any more.
    pub fn submit(&mut self) -> io::Result<()> {
        let mut attempts = 0;
        while self.queued > 0 {
            counters::add_syscall();
            match self.enter(self.queued, 0) {
                Ok(taken) => {
                    assert!(taken <= self.queued, "the kernel took more requests than there were");
                    self.queued -= taken;
                    self.in_kernel += taken;
                }
                Err(e) => passing(e, &mut attempts)?,
            }
        }
        Ok(())
    }

    /// Hands over what is queued, then takes every completion that is there, blocking until there are `least` (of
    /// the requests under way): `done` gets what was pushed and the bytes moved. Says how many came.
    ///
    /// # Errors
    /// When the kernel cannot be asked any more.
    pub fn reap(
        &mut self,
        least: usize,
        done: &mut dyn FnMut(T, Frame, io::Result<usize>),
    ) -> io::Result<usize> {
        let least = least.min(self.under_way());
        let (mut seen, mut attempts) = (self.take(done), 0);
        while self.queued > 0 || seen < least {
            let want = least.saturating_sub(seen).min(self.in_kernel + self.queued);
            counters::add_syscall();
            match self.enter(self.queued, want) {
                Ok(taken) => {
                    let taken = taken.min(self.queued);
                    self.queued -= taken;
                    self.in_kernel += taken;
                }
                Err(e) => passing(e, &mut attempts)?,
            }
            seen += self.take(done);
        }
        Ok(seen)
    }

    /// Ends a ring that fails: waits for what the kernel has and returns every request; those that it never took
    /// as broken off (ECANCELED).
    pub fn into_rest(mut self) -> Vec<(T, Frame, io::Result<usize>)> {
        let mut rest = Vec::new();
        while self.in_kernel > 0 {
            let seen = self.take(&mut |about, frame, moved| rest.push((about, frame, moved)));
            if seen == 0 && self.enter(0, 1).is_err() {
                std::thread::yield_now();
            }
        }
        // No kernel thread looks at the ring, so that what was not handed over cannot begin any more.
        let broken_off =
            |sent: Sent<T>| (sent.about, sent.frame, Err(io::Error::from_raw_os_error(libc::ECANCELED)));
        rest.extend(self.sent.iter_mut().filter_map(Option::take).map(broken_off));
        rest
    }

    fn take(&mut self, done: &mut dyn FnMut(T, Frame, io::Result<usize>)) -> usize {
        let mut seen = 0;
        for completion in self.uring.completion() {
            let slot = completion.user_data() as usize;
            let sent = self.sent[slot].take().expect("each request completes once");
            self.free.push(slot as u32);
            seen += 1;
            let moved = match completion.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                bytes => Ok(bytes as usize),
            };
            done(sent.about, sent.frame, moved);
        }
        self.in_kernel -= seen;
        seen
    }

    /// One io_uring_enter. Also when it only hands over it takes what has completed, which saves a call later.
    fn enter(&self, requests: usize, want: usize) -> io::Result<usize> {
        let (requests, want, flags) = (requests as u32, want as u32, EnterFlags::GETEVENTS.bits());
        // SAFETY: every entry that the kernel may take was pushed by `push`, which answers for its memory and file;
        // no argument block.
        unsafe { self.uring.submitter().enter::<libc::sigset_t>(requests, want, flags, None) }
    }
}

impl<T> Drop for FrameRing<T> {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            // The parent's requests and completions are none of this process's business.
            return;
        }
        // What the kernel never took it cannot touch.
        while self.in_kernel > 0 {
            if self.take(&mut |_, _, _| ()) == 0 && self.enter(0, 1).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn frames_are_split_and_joined_and_keep_their_bytes() {
        let mut whole = Frame::new(16384).unwrap();
        assert!(whole.bytes().iter().all(|byte| *byte == 0));
        whole.bytes_mut()[4096] = 7;
        let (first, rest) = whole.split_at(4096);
        let (mut second, third) = rest.split_at(4096);
        assert_eq!((first.start(), second.start(), third.start()), (0, 4096, 8192));
        assert_eq!(second.bytes()[0], 7);
        second.discard().unwrap();
        assert_eq!(second.bytes()[0], 0);
        let whole = first.join(second).join(third);
        assert_eq!((whole.start(), whole.len()), (0, 16384));
    }

    #[test]
    #[should_panic(expected = "do not touch")]
    fn frames_apart_cannot_be_joined() {
        let (first, rest) = Frame::new(12288).unwrap().split_at(4096);
        let (_, third) = rest.split_at(4096);
        first.join(third);
    }

    #[test]
    fn a_ring_moves_frames_and_gives_them_back() {
        let mut ring: FrameRing<usize> = match FrameRing::new(4) {
            Ok(ring) => ring,
            Err(e) => return crate::skips::skipped("frames on io_uring", &e.to_string()),
        };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (mut first, second) = Frame::new(8192).unwrap().split_at(4096);
        assert!(ring.register(&first.memory(), 4096) <= 4096);
        first.bytes_mut().fill(3);
        let request = |write, offset, len| FrameRequest { file: file.clone(), offset, from: 0, len, write };
        ring.push(request(true, 0, 4096), first, 1);
        let mut back = Vec::new();
        ring.reap(1, &mut |about, frame, moved| back.push((about, frame, moved.unwrap()))).unwrap();
        assert_eq!((back[0].0, back[0].2), (1, 4096));
        let mut there = [0; 4096];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(there.iter().all(|byte| *byte == 3));
        // A read past the end is short; one behind it moves nothing.
        ring.push(request(false, 2048, 4096), second, 2);
        ring.push(request(false, 9999, 4096), back.pop().unwrap().1, 3);
        assert_eq!(ring.under_way(), 2);
        let mut moved = Vec::new();
        ring.reap(2, &mut |about, _, bytes| moved.push((about, bytes.unwrap()))).unwrap();
        moved.sort_unstable();
        assert_eq!(moved, [(2, 2048), (3, 0)]);
        assert!(ring.has_capacity() && ring.under_way() == 0);
    }
}
