//! One io_uring with its frames, behind a scope that never ends while the kernel still uses a buffer.
//!
//! Guarantees: [`Ring::scope`] returns, also by a panic, only after every request that the kernel took has
//! completed, so that borrowed buffers outlive it; a frame is in one hand at a time: the caller's or the
//! kernel's. Frames are registered as far as RLIMIT_MEMLOCK allows, which saves pinning them for each request
//! and is never needed. Not here: which requests to make, and what to do after a short one (`engine`).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::NonNull;

use io_uring::{opcode, squeue, types, EnterFlags, IoUring};

use super::private::Private;
use super::uring::{self, passing};
use super::ForkMark;
use crate::counters;

/// Requests in flight per ring, and frames. See `engine` for why.
pub(crate) const RING_DEPTH: usize = 16;

/// Bytes of a frame: the size of one request.
pub(crate) const FRAME_BYTES: usize = 512 << 10;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Where they lie in memory.
pub(crate) enum Buffer<'ring, 'env> {
    /// Caller's memory, to be written to the file.
    Out(&'env [u8]),
    /// Caller's memory, to be filled from the file.
    In(&'env mut [u8]),
    /// Part of a frame, either way.
    Frame(Frame<'ring>, Direction),
}

/// One request: this buffer and that place in the file.
pub(crate) struct Transfer<'ring, 'env> {
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer<'ring, 'env>,
}

/// A frame in the caller's hand, with the part that is to be moved.
pub(crate) struct Frame<'ring> {
    index: usize,
    start: NonNull<u8>,
    pub(crate) from: usize,
    pub(crate) to: usize,
    ring: PhantomData<&'ring mut [u8]>,
}

impl Frame<'_> {
    /// The part that is to be moved.
    pub(crate) fn part(&mut self) -> &mut [u8] {
        assert!(self.from <= self.to && self.to <= FRAME_BYTES, "a part outside its frame");
        // SAFETY: frame memory is mapped for FRAME_BYTES while the ring lives ('ring), the part is inside (asserted),
        // and this value is its only holder: `take_frame` hands out each free index once, the kernel has none of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.from), self.to - self.from) }
    }
}

/// See the file's head.
pub(crate) struct Ring {
    uring: IoUring,
    frames: Option<Frames>,
    mark: ForkMark,
    /// The kernel refused to be entered in a way that has no remedy; requests may lie in the queue unseen.
    broken: bool,
}

impl Ring {
    /// A new ring for this thread. Fails where io_uring is refused or too old to read and write plainly (5.6).
    pub(crate) fn new() -> io::Result<Ring> {
        let entries = RING_DEPTH as u32;
        let made = uring::plain(entries)?;
        let uring = uring::with_operations(made, &[opcode::Read::CODE, opcode::Write::CODE])?;
        Ok(Ring { uring, frames: None, mark: ForkMark::here(), broken: false })
    }

    /// Whether it must be replaced: inherited from the parent process, or broken.
    pub(crate) fn is_unusable(&self) -> bool {
        self.broken || self.mark.is_forked()
    }

    /// How many bytes of frames are registered with the kernel.
    #[cfg(test)]
    pub(crate) fn registered_bytes(&self) -> usize {
        self.frames.as_ref().map_or(0, |frames| frames.registered * FRAME_BYTES)
    }

    /// Makes the frames, once.
    pub(crate) fn need_frames(&mut self) -> io::Result<()> {
        if self.frames.is_none() {
            let mut frames = Frames::new()?;
            frames.register(&self.uring);
            self.frames = Some(frames);
        }
        Ok(())
    }

    /// Runs `work` with this ring on `file`, then waits until the kernel is done with everything.
    pub(crate) fn scope<'env, T>(
        &mut self,
        file: &'env File,
        work: impl FnOnce(&mut Batch<'_, 'env>) -> T,
    ) -> T {
        assert!(!self.is_unusable(), "a ring that another process made, or that broke");
        let free_frames = if self.frames.is_some() { (0..RING_DEPTH).collect() } else { Vec::new() };
        let mut batch = Batch {
            ring: self,
            file,
            slots: std::array::from_fn(|_| None),
            free_slots: (0..RING_DEPTH).collect(),
            free_frames,
            queued: 0,
            in_kernel: 0,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut batch)));
        batch.drain();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Requests of one scope.
pub(crate) struct Batch<'ring, 'env> {
    ring: &'ring mut Ring,
    file: &'env File,
    slots: [Option<Transfer<'ring, 'env>>; RING_DEPTH],
    free_slots: VecDeque<usize>,
    free_frames: Vec<usize>,
    /// Requests in the submission queue that the kernel has not taken.
    queued: usize,
    /// Requests that the kernel took and has not completed.
    in_kernel: usize,
    /// Invariant: no code may shorten what the buffers borrow.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'ring, 'env> Batch<'ring, 'env> {
    /// Whether one more request can be pushed.
    pub(crate) fn has_capacity(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued + self.in_kernel == 0
    }

    /// A free frame of which the first `len` bytes are to be moved.
    pub(crate) fn take_frame(&mut self, len: usize) -> Option<Frame<'ring>> {
        assert!(len <= FRAME_BYTES, "more than a frame");
        let index = self.free_frames.pop()?;
        let start = self.ring.frames.as_ref().expect("free frames exist").frame(index);
        Some(Frame { index, start, from: 0, to: len, ring: PhantomData })
    }

    /// A frame that is no longer needed.
    pub(crate) fn give_frame(&mut self, frame: Frame<'ring>) {
        self.free_frames.push(frame.index);
    }

    /// Queues a request; the kernel sees it with the next [`Batch::submit`] or [`Batch::wait`].
    pub(crate) fn push(&mut self, transfer: Transfer<'ring, 'env>) {
        let slot = self.free_slots.pop_front().expect("has_capacity was asked");
        let registered = self.ring.frames.as_ref().map_or(0, |frames| frames.registered);
        // From its slot, where it stays: nothing borrows the buffer anew while the kernel has its address.
        let entry = entry(self.file, self.slots[slot].insert(transfer), registered).user_data(slot as u64);
        // SAFETY: the entry's memory is a borrow of 'env or a frame of the ring, kept in the slot until its completion
        // is taken; `scope` does not return (so neither ends) before `drain` saw all completions.
        let pushed = unsafe { self.ring.uring.submission().push(&entry) };
        pushed.expect("the queue has an entry for each slot");
        self.queued += 1;
    }

    /// Hands what is queued to the kernel.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        let mut attempts = 0;
        while self.queued > 0 {
            self.enter(0, &mut attempts)?;
        }
        Ok(())
    }

    /// Waits for one completion (handing over what is queued): the request as it was, and how many bytes moved.
    ///
    /// # Panics
    /// When nothing is under way.
    pub(crate) fn wait(&mut self) -> io::Result<(Transfer<'ring, 'env>, io::Result<usize>)> {
        assert!(!self.is_idle(), "waiting for nothing");
        let mut attempts = 0;
        loop {
            if self.queued == 0 {
                if let Some(done) = self.completed() {
                    return Ok(done);
                }
            }
            self.enter(1, &mut attempts)?;
        }
    }

    /// A completion that is there already.
    pub(crate) fn completed(&mut self) -> Option<(Transfer<'ring, 'env>, io::Result<usize>)> {
        let completion = self.ring.uring.completion().next()?;
        let slot = completion.user_data() as usize;
        let transfer = self.slots[slot].take().expect("each request completes once");
        self.free_slots.push_back(slot);
        self.in_kernel -= 1;
        let moved = match completion.result() {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            bytes => Ok(bytes as usize),
        };
        Some((transfer, moved))
    }

    /// One io_uring_enter. Interruptions and passing lack of memory are no errors: the caller comes again.
    fn enter(&mut self, want: usize, attempts: &mut u32) -> io::Result<()> {
        counters::add_syscall();
        match self.ring.uring.submit_and_wait(want) {
            Ok(taken) => {
                assert!(taken <= self.queued, "the kernel took more requests than there were");
                self.queued -= taken;
                self.in_kernel += taken;
                Ok(())
            }
            Err(e) => passing(e, attempts).inspect_err(|_| self.ring.broken = true),
        }
    }

    /// Waits until the kernel uses no buffer any more. Requests that it never took are forgotten: the ring is broken
    /// then and is never entered with them again.
    fn drain(&mut self) {
        self.ring.broken |= self.queued > 0;
        while self.in_kernel > 0 {
            if self.completed().is_some() {
                continue;
            }
            counters::add_syscall();
            // SAFETY: submits nothing (0), so no buffer is handed over; no argument block.
            let entered = unsafe {
                self.ring.uring.submitter().enter::<libc::sigset_t>(0, 1, EnterFlags::GETEVENTS.bits(), None)
            };
            if entered.is_err() {
                // Completions arrive all the same: they are posted when this thread enters the kernel for anything.
                std::thread::yield_now();
            }
        }
    }
}

/// The request as the kernel reads it; the first `registered` frames go by their registration.
fn entry(file: &File, transfer: &mut Transfer<'_, '_>, registered: usize) -> squeue::Entry {
    let (fd, offset) = (types::Fd(file.as_raw_fd()), transfer.offset);
    match &mut transfer.buffer {
        Buffer::Out(bytes) => {
            opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(offset).build()
        }
        Buffer::In(bytes) => {
            opcode::Read::new(fd, bytes.as_mut_ptr(), bytes.len() as u32).offset(offset).build()
        }
        Buffer::Frame(frame, direction) => {
            let fixed = frame.index < registered;
            let (at, len) = (frame.part().as_mut_ptr(), frame.part().len() as u32);
            match (direction, fixed) {
                (Direction::Write, true) => opcode::WriteFixed::new(fd, at, len, 0).offset(offset).build(),
                (Direction::Write, false) => opcode::Write::new(fd, at, len).offset(offset).build(),
                (Direction::Read, true) => opcode::ReadFixed::new(fd, at, len, 0).offset(offset).build(),
                (Direction::Read, false) => opcode::Read::new(fd, at, len).offset(offset).build(),
            }
        }
    }
}

/// Memory of all frames of a ring.
struct Frames {
    memory: Private,
    registered: usize,
}

const FRAMES_BYTES: usize = RING_DEPTH * FRAME_BYTES;

impl Frames {
    fn new() -> io::Result<Frames> {
        Ok(Frames { memory: Private::new(FRAMES_BYTES)?, registered: 0 })
    }

    fn frame(&self, index: usize) -> NonNull<u8> {
        self.memory.at(index * FRAME_BYTES)
    }

    /// Registers as many frames as the limit on locked memory allows: all, half of them, … none.
    fn register(&mut self, uring: &IoUring) {
        let mut frames = RING_DEPTH;
        while frames > 0 {
            let all = libc::iovec { iov_base: self.frame(0).as_ptr().cast(), iov_len: frames * FRAME_BYTES };
            // SAFETY: the memory is mapped for at least that long; it is unmapped only in `drop`, where the kernel
            // keeps its own references to the pinned pages until the ring goes.
            if unsafe { uring.submitter().register_buffers(&[all]) }.is_ok() {
                self.registered = frames;
                return;
            }
            frames /= 2;
        }
    }
}
