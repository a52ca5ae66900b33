//! One io_uring together with the buffers and files that its requests use: what a load generator needs.
//!
//! Guarantees: a buffer is in one hand at a time: the caller's, or the kernel's from [`Queue::push`] until its
//! completion was taken; buffers and files live until the kernel is done with every request, also when the queue is
//! dropped early. Nothing is allocated after [`Queue::new`]. Requests are handed over only when asked.
//!
//! Not here: which requests, and what to do after a short one. A queue stays on the thread that made it.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use io_uring::{opcode, squeue, types, EnterFlags, IoUring};

use super::page_bytes;
use super::private::Private;
use super::uring::{self, passing};
use super::ForkMark;
use crate::counters;

/// How long the kernel's submission thread spins before it sleeps, in ms.
const KERNEL_THREAD_IDLE_MS: u32 = 1000;

/// What a queue registers with the kernel, and how it learns of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    /// Buffers are pinned once (needs that much lockable memory).
    pub fixed_buffers: bool,
    /// Files are looked up once.
    pub fixed_files: bool,
    /// Completions are polled from the device.
    pub poll: bool,
    /// A kernel thread takes the requests; `submit` then only wakes it.
    pub kernel_thread: bool,
}

/// One request; files by their index in the list given to [`Queue::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Fills the first `len` bytes of the slot's buffer from `offset`.
    Read {
        /// Index of the file.
        file: u32,
        /// Byte in the file.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Writes the first `len` bytes of the slot's buffer to `offset`.
    Write {
        /// Index of the file.
        file: u32,
        /// Byte in the file.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// fsync, or fdatasync. Covers what was complete before.
    Flush {
        /// Index of the file.
        file: u32,
        /// Without the metadata that is not needed to read the data again.
        data_only: bool,
    },
}

/// See the file's head.
pub struct Queue {
    // Dropped in this order: the ring goes before the memory that it may still point to.
    uring: IoUring,
    memory: Memory,
    files: Vec<File>,
    /// Slots that are queued or in the kernel.
    taken: Vec<bool>,
    queued: usize,
    in_kernel: usize,
    options: QueueOptions,
    mark: ForkMark,
    /// Rings of one issuer are tied to their thread.
    thread: PhantomData<*const ()>,
}

impl Queue {
    /// A queue of `depth` slots with a page-aligned, zeroed buffer of `buffer_bytes` each.
    ///
    /// # Errors
    /// Where io_uring is refused or too old, there is no memory, or (with `fixed_buffers`) none that may be locked.
    pub fn new(
        files: Vec<File>,
        depth: usize,
        buffer_bytes: usize,
        options: QueueOptions,
    ) -> io::Result<Queue> {
        assert!(depth > 0 && u32::try_from(buffer_bytes).is_ok(), "a queue has slots, a buffer below 4 GiB");
        let uring = ring(depth as u32, options)?;
        let memory = Memory::new(depth, buffer_bytes)?;
        if options.fixed_buffers {
            let parts: Vec<libc::iovec> = (0..depth)
                .map(|slot| libc::iovec {
                    iov_base: memory.slot(slot).as_ptr().cast(),
                    iov_len: buffer_bytes,
                })
                .collect();
            // SAFETY: each part lies in the mapping; it is unmapped after the ring is closed (order of the fields),
            // and the kernel keeps its own references to the pages.
            unsafe { uring.submitter().register_buffers(&parts) }?;
        }
        if options.fixed_files {
            let fds: Vec<RawFd> = files.iter().map(File::as_raw_fd).collect();
            uring.submitter().register_files(&fds)?;
        }
        Ok(Queue {
            uring,
            memory,
            files,
            taken: vec![false; depth],
            queued: 0,
            in_kernel: 0,
            options,
            mark: ForkMark::here(),
            thread: PhantomData,
        })
    }

    /// The files.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// The buffer of a slot.
    ///
    /// # Panics
    /// When the slot's request has not been completed.
    #[inline]
    pub fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.taken[slot], "the buffer of a request that is under way");
        // SAFETY: slot < depth (indexing above), so the memory is mapped for the life of `self`; it is not taken, so
        // that the kernel has no address of it; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.slot(slot).as_ptr(), self.memory.buffer_bytes) }
    }

    /// Requests that were pushed and whose completion was not taken.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.in_kernel + if self.options.kernel_thread { 0 } else { self.queued }
    }

    /// Requests that were pushed and not handed over.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Queues a request on a free slot.
    ///
    /// # Panics
    /// When the slot is taken, or file or length do not exist.
    #[inline]
    pub fn push(&mut self, slot: usize, request: Request) {
        assert!(!self.taken[slot], "one request a slot");
        let entry = match request {
            Request::Read { file, offset, len } => self.transfer(slot, file, offset, len, false),
            Request::Write { file, offset, len } => self.transfer(slot, file, offset, len, true),
            Request::Flush { file, data_only } => {
                let flags = if data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
                match self.target(file) {
                    Target::Fixed(fd) => opcode::Fsync::new(fd).flags(flags).build(),
                    Target::Open(fd) => opcode::Fsync::new(fd).flags(flags).build(),
                }
            }
        };
        // SAFETY: the entry's memory is this slot's buffer, mapped until after the ring is closed; `taken` keeps all
        // other users from it until the completion was taken. Its file is open as long.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(slot as u64)) };
        pushed.expect("the ring has an entry for each slot");
        self.taken[slot] = true;
        self.queued += 1;
        if self.options.kernel_thread {
            // Its thread sees the entry at once, whether it is told or not.
            self.in_kernel += 1;
        }
    }

    #[inline]
    fn transfer(&self, slot: usize, file: u32, offset: u64, len: u32, write: bool) -> squeue::Entry {
        assert!(len as usize <= self.memory.buffer_bytes, "more than a buffer");
        let at = self.memory.slot(slot).as_ptr();
        macro_rules! build {
            ($fd:expr) => {
                match (write, self.options.fixed_buffers) {
                    (false, false) => opcode::Read::new($fd, at, len).offset(offset).build(),
                    (true, false) => opcode::Write::new($fd, at, len).offset(offset).build(),
                    (false, true) => opcode::ReadFixed::new($fd, at, len, slot as u16).offset(offset).build(),
                    (true, true) => opcode::WriteFixed::new($fd, at, len, slot as u16).offset(offset).build(),
                }
            };
        }
        match self.target(file) {
            Target::Fixed(fd) => build!(fd),
            Target::Open(fd) => build!(fd),
        }
    }

    #[inline]
    fn target(&self, file: u32) -> Target {
        let open = &self.files[file as usize];
        match self.options.fixed_files {
            true => Target::Fixed(types::Fixed(file)),
            false => Target::Open(types::Fd(open.as_raw_fd())),
        }
    }

    /// Hands everything that is queued to the kernel; says how many requests that were.
    ///
    /// # Errors
    /// When the kernel takes no requests any more.
    #[inline]
    pub fn submit(&mut self) -> io::Result<usize> {
        let asked = self.queued;
        let mut attempts = 0;
        while self.queued > 0 {
            counters::add_syscall();
            if self.options.kernel_thread {
                match self.uring.submit() {
                    Ok(_) => self.queued = 0,
                    Err(e) => passing(e, &mut attempts)?,
                }
                continue;
            }
            match self.enter(self.queued, 0) {
                Ok(taken) => {
                    assert!(taken <= self.queued, "the kernel took more requests than there were");
                    self.queued -= taken;
                    self.in_kernel += taken;
                }
                Err(e) => passing(e, &mut attempts)?,
            }
        }
        Ok(asked)
    }

    /// Takes completions, `most` at most: `done` gets slot and result of each. Blocks until there are `least`
    /// (of the requests handed over); says how many came.
    ///
    /// # Errors
    /// When the kernel cannot be asked any more.
    #[inline]
    pub fn reap(
        &mut self,
        least: usize,
        most: usize,
        done: &mut impl FnMut(usize, io::Result<usize>),
    ) -> io::Result<usize> {
        let least = least.min(self.in_kernel);
        let (mut seen, mut asked, mut attempts) = (0, false, 0);
        loop {
            seen += self.take(most - seen, done);
            if seen >= most || (seen >= least && (seen > 0 || asked || self.in_kernel == 0)) {
                return Ok(seen);
            }
            asked = true;
            if let Err(e) = self.wait(least - seen.min(least)) {
                passing(e, &mut attempts)?;
            }
        }
    }

    #[inline]
    fn take(&mut self, most: usize, done: &mut impl FnMut(usize, io::Result<usize>)) -> usize {
        let (taken, mut seen) = (&mut self.taken, 0);
        for completion in self.uring.completion().take(most) {
            let slot = completion.user_data() as usize;
            assert!(std::mem::take(&mut taken[slot]), "each request completes once");
            seen += 1;
            done(
                slot,
                match completion.result() {
                    error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                    bytes => Ok(bytes as usize),
                },
            );
        }
        self.in_kernel -= seen;
        seen
    }

    /// One call that waits for completions and hands nothing over.
    fn wait(&self, want: usize) -> io::Result<()> {
        counters::add_syscall();
        self.enter(0, want).map(drop)
    }

    /// One io_uring_enter. Also when it only hands over it takes what has completed, which saves a call later.
    fn enter(&self, requests: usize, want: usize) -> io::Result<usize> {
        let (requests, want, flags) = (requests as u32, want as u32, EnterFlags::GETEVENTS.bits());
        // SAFETY: every entry that the kernel may take was pushed by `push`, which answers for its memory and file;
        // no argument block.
        unsafe { self.uring.submitter().enter::<libc::sigset_t>(requests, want, flags, None) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            // The parent's requests and completions are none of this process's business.
            return;
        }
        // What the kernel never took it cannot touch.
        while self.in_kernel > 0 {
            if self.take(usize::MAX, &mut |_, _| ()) == 0 && self.wait(1).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

enum Target {
    Fixed(types::Fixed),
    Open(types::Fd),
}

/// A ring for one issuer where the kernel has that (6.1), without interrupts (5.19), or as it comes.
fn ring(depth: u32, options: QueueOptions) -> io::Result<IoUring> {
    let plain = || {
        let mut builder = IoUring::builder();
        if options.poll {
            builder.setup_iopoll();
        }
        if options.kernel_thread {
            builder.setup_sqpoll(KERNEL_THREAD_IDLE_MS);
        }
        builder
    };
    let made = if options.kernel_thread {
        plain().build(depth)
    } else {
        let deferred = || plain().setup_single_issuer().setup_defer_taskrun().build(depth);
        deferred().or_else(|_| plain().setup_coop_taskrun().build(depth)).or_else(|_| plain().build(depth))
    }?;
    uring::with_operations(made, &[opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE])
}

/// The buffers, each on pages of its own.
struct Memory {
    private: Private,
    stride: usize,
    buffer_bytes: usize,
}

impl Memory {
    fn new(slots: usize, buffer_bytes: usize) -> io::Result<Memory> {
        let stride = buffer_bytes.max(1).next_multiple_of(page_bytes());
        let len = stride.checked_mul(slots).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Memory { private: Private::new(len)?, stride, buffer_bytes })
    }

    #[inline]
    fn slot(&self, slot: usize) -> NonNull<u8> {
        self.private.at(slot * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A queue on a fresh file, or None (counted) where io_uring is refused.
    fn queue(depth: usize, options: QueueOptions) -> Option<Queue> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        match Queue::new(vec![file], depth, 8192, options) {
            Ok(queue) => Some(queue),
            Err(e) => {
                static SAID: std::sync::Once = std::sync::Once::new();
                SAID.call_once(|| crate::skips::skipped("queue on io_uring", &e.to_string()));
                None
            }
        }
    }

    fn all(queue: &mut Queue, least: usize) -> Vec<(usize, usize)> {
        let mut done = Vec::new();
        queue.reap(least, usize::MAX, &mut |slot, moved| done.push((slot, moved.unwrap()))).unwrap();
        done.sort_unstable();
        done
    }

    #[test]
    fn bytes_go_both_ways_with_and_without_registration() {
        let fixed = QueueOptions { fixed_buffers: true, fixed_files: true, ..QueueOptions::default() };
        let kernel_thread = QueueOptions { kernel_thread: true, ..QueueOptions::default() };
        for options in [QueueOptions::default(), fixed, kernel_thread] {
            let Some(mut queue) = queue(4, options) else { return };
            for slot in 0..4 {
                queue.buffer(slot).fill(slot as u8 + 1);
                queue.push(slot, Request::Write { file: 0, offset: slot as u64 * 8192, len: 8192 });
            }
            assert_eq!((queue.queued(), queue.submit().unwrap(), queue.under_way()), (4, 4, 4));
            assert_eq!(all(&mut queue, 4), [0, 1, 2, 3].map(|slot| (slot, 8192)));
            queue.push(0, Request::Flush { file: 0, data_only: true });
            queue.push(1, Request::Read { file: 0, offset: 8192 * 3 - 1, len: 2 });
            queue.submit().unwrap();
            assert_eq!(all(&mut queue, 2), [(0, 0), (1, 2)]);
            assert_eq!(queue.buffer(1)[..2], [3, 4]);
            let mut seen = [0; 1];
            queue.files()[0].read_exact_at(&mut seen, 8192).unwrap();
            assert_eq!(seen, [2]);
        }
    }

    #[test]
    fn not_more_than_asked_for_is_taken_and_nothing_is_waited_for_in_vain() {
        let Some(mut queue) = queue(3, QueueOptions::default()) else { return };
        assert_eq!(queue.reap(1, 1, &mut |_, _| ()).unwrap(), 0, "nothing is under way");
        (0..3).for_each(|slot| queue.push(slot, Request::Read { file: 0, offset: 0, len: 512 }));
        queue.submit().unwrap();
        assert_eq!(queue.reap(1, 1, &mut |_, _| ()).unwrap(), 1);
        assert_eq!(queue.under_way(), 2);
        assert_eq!(queue.reap(3, 8, &mut |_, _| ()).unwrap(), 2);
    }

    #[test]
    fn requests_under_way_are_waited_for_when_it_is_dropped() {
        let Some(mut queue) = queue(2, QueueOptions::default()) else { return };
        let file = queue.files()[0].try_clone().unwrap();
        queue.buffer(0).fill(9);
        queue.push(0, Request::Write { file: 0, offset: 0, len: 8192 });
        queue.submit().unwrap();
        queue.push(1, Request::Write { file: 0, offset: 100_000, len: 1 });
        drop(queue);
        let mut seen = [0; 2];
        file.read_exact_at(&mut seen, 8190).unwrap();
        assert_eq!(seen, [9, 9]);
    }

    #[test]
    #[should_panic(expected = "under way")]
    fn a_buffer_in_the_kernel_is_not_shown() {
        let Some(mut queue) = queue(1, QueueOptions::default()) else {
            panic!("none to show, none under way")
        };
        queue.push(0, Request::Read { file: 0, offset: 0, len: 1 });
        queue.buffer(0);
    }
}
