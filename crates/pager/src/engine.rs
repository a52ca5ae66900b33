//! Engines: how frames are filled from backings and emptied into them, many at once.
//!
//! `io_uring` where the process may use it and the backing says where its bytes lie in a file; else `threads`, which
//! call the backing. An engine owns a frame from `push` until it hands it back with the result.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use forebay_tier::engine::{Frame, FrameMemory, FrameRequest, FrameRing};
use forebay_tier::process::ForkMark;
use forebay_tier::Error;

use crate::array::Core;
use crate::backing::{ended_early, Backing};

/// Requests of one engine under way at once.
pub(crate) const DEPTH: usize = 128;

/// Threads of one engine: what a device of today needs to be busy, little enough for a node of few cores.
const THREADS: usize = 16;

/// How much of the frames an engine registers, once it has moved as much: a request costs less then, but all their
/// pages have to be there, which a large budget that is hardly used should not pay for.
const REGISTERED_BYTES_MAX: usize = 256 << 20;

/// Direct transfers go on after short ones at a multiple of this.
const BLOCK_BYTES: usize = 4096;

/// How often a request is repeated that the kernel broke off.
const REPEATS_MAX: u32 = 100;

/// What is moved, and what shall happen then.
pub(crate) struct Op {
    pub(crate) core: Arc<Core>,
    pub(crate) tile: u64,
    pub(crate) write: bool,
    /// Of a write: the tile stays where it is, clean.
    pub(crate) keep: bool,
    /// Of a read: the thread that asked has a pin when it has ended.
    pub(crate) claim: bool,
    /// Bytes already moved.
    pub(crate) done: usize,
    /// Bytes that the backing has of this tile.
    pub(crate) needed: usize,
    /// In the overlay of the array, not in its backing.
    pub(crate) overlaid: bool,
    /// Of a write: whether the tile's bytes were in the overlay before.
    pub(crate) was_overlaid: bool,
    pub(crate) repeats: u32,
}

impl Op {
    fn backing(&self) -> &dyn Backing {
        self.core.backing(self.overlaid)
    }

    fn offset(&self) -> u64 {
        self.core.tile_offset(self.tile)
    }

    /// The request for what is left, where it can go directly.
    fn request(&self) -> Option<FrameRequest> {
        let len = self.needed.next_multiple_of(BLOCK_BYTES);
        if self.write && len != self.needed {
            // Whole blocks would make the file longer.
            return None;
        }
        let (file, offset) = self.backing().direct(self.offset(), len)?;
        let from = self.done / BLOCK_BYTES * BLOCK_BYTES;
        Some(FrameRequest { file, offset: offset + from as u64, from, len: len - from, write: self.write })
    }

    /// Moves all of it by calls of the backing.
    fn call(&self, frame: &mut Frame) -> Result<(), Error> {
        match self.write {
            true => self.backing().write(self.offset(), &frame.bytes()[..self.needed]),
            false => self.backing().read(self.offset(), &mut frame.bytes_mut()[..self.needed]),
        }
    }

    /// After a request moved `moved` bytes: None when it is done, true when it has to go on.
    fn after(&mut self, moved: io::Result<usize>) -> Result<bool, Error> {
        let from = self.done / BLOCK_BYTES * BLOCK_BYTES;
        match moved {
            Ok(0) if self.write => Err(self.failed(io::ErrorKind::WriteZero.into())),
            Ok(0) => Err(ended_early(self.backing(), self.offset() + from as u64, self.needed - from)),
            Ok(moved) if from + moved >= self.needed => Ok(false),
            Ok(moved) if from + moved > self.done || self.repeats < REPEATS_MAX => {
                self.repeats += u32::from(from + moved <= self.done);
                self.done = self.done.max(from + moved);
                Ok(true)
            }
            Ok(_) => Err(ended_early(self.backing(), self.offset() + from as u64, self.needed - from)),
            Err(e) if passes(&e) && self.repeats < REPEATS_MAX => {
                self.repeats += 1;
                Ok(true)
            }
            Err(e) => Err(self.failed(e)),
        }
    }

    #[cold]
    fn failed(&self, e: io::Error) -> Error {
        let doing = if self.write { "write" } else { "read" };
        Error::io(format!("cannot {doing} {}", self.backing().name()), e)
            .with("offset", self.offset())
            .with("bytes", self.needed)
    }
}

/// Errors of a request that was broken off (the thread that handed it over ended, a signal came), not of the device.
fn passes(e: &io::Error) -> bool {
    const ECANCELED: i32 = 125;
    e.kind() == io::ErrorKind::Interrupted
        || e.kind() == io::ErrorKind::WouldBlock
        || e.raw_os_error() == Some(ECANCELED)
}

/// Gets each operation that has ended, with its frame.
pub(crate) type Done<'a> = &'a mut dyn FnMut(Op, Frame, Result<(), Error>);

/// See the file's head.
pub(crate) struct Engine {
    ring: Option<FrameRing<Op>>,
    threads: Option<Threads>,
    /// To be registered when the ring has moved enough; None: it is.
    memory: Option<FrameMemory>,
    moved_bytes: usize,
    /// Answers that are there already.
    ended: Vec<(Op, Frame, Result<(), Error>)>,
}

impl Engine {
    /// With a ring where `ring` says so and one can be had, for frames of `memory`.
    pub(crate) fn new(ring: bool, memory: &FrameMemory) -> Engine {
        let ring = ring.then(|| FrameRing::new(DEPTH).ok()).flatten();
        Engine { ring, threads: None, memory: Some(memory.clone()), moved_bytes: 0, ended: Vec::new() }
    }

    pub(crate) fn has_capacity(&self) -> bool {
        self.ring.as_ref().is_none_or(FrameRing::has_capacity)
            && self.threads.as_ref().is_none_or(|threads| threads.under_way() < DEPTH)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.ring.as_ref().map_or(0, FrameRing::under_way)
            + self.threads.as_ref().map_or(0, Threads::under_way)
            + self.ended.len()
    }

    /// Takes an operation on a frame; it begins at the next `submit` or `reap`. There must be a free slot.
    pub(crate) fn push(&mut self, op: Op, frame: Frame) {
        match (op.request(), &mut self.ring) {
            (Some(request), Some(ring)) => {
                self.moved_bytes += request.len;
                let enough =
                    |memory: &mut FrameMemory| self.moved_bytes >= memory.len().min(REGISTERED_BYTES_MAX);
                if let Some(memory) = self.memory.take_if(enough) {
                    ring.register(&memory, REGISTERED_BYTES_MAX);
                }
                ring.push(request, frame, op);
            }
            _ => self.threads.get_or_insert_with(Threads::new).push(op, frame),
        }
    }

    /// Hands over what was pushed.
    pub(crate) fn submit(&mut self) {
        if self.ring.as_mut().is_some_and(|ring| ring.submit().is_err()) {
            self.give_up();
        }
    }

    /// What tells that a thread has ended an operation, where nothing else can be waited for: without the engine, which
    /// other threads may need meanwhile.
    pub(crate) fn ends_by_threads(&self) -> Option<ThreadsEnd> {
        let has_ring = self.ring.as_ref().is_some_and(|ring| ring.under_way() > 0);
        let threads = self.threads.as_ref().filter(|_| !has_ring && self.ended.is_empty())?;
        Some(ThreadsEnd(threads.shared.clone()))
    }

    /// Takes what has ended, blocking until something has if anything is under way.
    pub(crate) fn reap(&mut self, done: Done<'_>) {
        let mut again = Vec::new();
        let wait_on_threads = self.threads.as_ref().is_some_and(|threads| threads.under_way() > 0);
        let ended = &mut self.ended;
        if let Some(ring) = &mut self.ring {
            // Not for the ring while threads work, which may be first.
            let least = usize::from(!wait_on_threads && ended.is_empty());
            let reaped = ring.reap(least, &mut |mut op, frame, moved| match op.after(moved) {
                Ok(true) => again.push((op, frame)),
                Ok(false) => ended.push((op, frame, Ok(()))),
                Err(e) => ended.push((op, frame, Err(e))),
            });
            if reaped.is_err() {
                self.give_up();
            }
        }
        for (op, frame) in again {
            self.push(op, frame);
        }
        if let Some(threads) = &self.threads {
            threads.take(wait_on_threads && self.ended.is_empty(), &mut self.ended);
        }
        for (op, frame, result) in self.ended.drain(..) {
            done(op, frame, result);
        }
    }

    /// The kernel takes nothing from this ring any more: threads do what it had, and all that comes.
    #[cold]
    fn give_up(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        for (mut op, frame, moved) in ring.into_rest() {
            match op.after(moved) {
                Ok(true) => self.push(op, frame),
                Ok(false) => self.ended.push((op, frame, Ok(()))),
                Err(e) => self.ended.push((op, frame, Err(e))),
            }
        }
    }
}

/// Threads that call backings.
struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    mark: ForkMark,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    some_ended: Condvar,
}

#[derive(Default)]
struct Work {
    queue: VecDeque<(Op, Frame)>,
    running: usize,
    ended: Vec<(Op, Frame, Result<(), Error>)>,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once something has ended, or nothing is under way; or after a slice, so that the waiting thread looks again at
    /// what it waits for.
    fn wait(&self) -> MutexGuard<'_, Work> {
        let work = self.lock();
        if !work.ended.is_empty() || work.queue.len() + work.running == 0 {
            return work;
        }
        let waited = self.some_ended.wait_timeout(work, crate::parking::SLICE);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn serve(&self) {
        let mut work = self.lock();
        loop {
            if let Some((op, mut frame)) = work.queue.pop_front() {
                work.running += 1;
                drop(work);
                let result = op.call(&mut frame);
                work = self.lock();
                work.running -= 1;
                work.ended.push((op, frame, result));
                self.some_ended.notify_all();
            } else if work.stop {
                return;
            } else {
                work = self.more.wait(work).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Threads {
    fn new() -> Threads {
        let shared = Arc::<Shared>::default();
        let start = |number| {
            let shared = shared.clone();
            let named = std::thread::Builder::new().name(format!("forebay-pager-{number}"));
            named.spawn(move || shared.serve()).ok()
        };
        let handles: Vec<_> = (0..THREADS).filter_map(start).collect();
        assert!(!handles.is_empty(), "not one thread can be started");
        Threads { shared, handles, mark: ForkMark::here() }
    }

    fn push(&self, op: Op, frame: Frame) {
        self.shared.lock().queue.push_back((op, frame));
        self.shared.more.notify_one();
    }

    fn under_way(&self) -> usize {
        let work = self.shared.lock();
        work.queue.len() + work.running + work.ended.len()
    }

    fn take(&self, wait: bool, out: &mut Vec<(Op, Frame, Result<(), Error>)>) {
        let mut work = if wait { self.shared.wait() } else { self.shared.lock() };
        out.append(&mut work.ended);
    }
}

/// See [`Engine::ends_by_threads`].
pub(crate) struct ThreadsEnd(Arc<Shared>);

impl ThreadsEnd {
    /// Waits a slice at most; false: nothing has ended.
    pub(crate) fn wait(&self) -> bool {
        !self.0.wait().ended.is_empty()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            // The threads are the parent's, and one of them may have held the lock when this process was forked.
            std::mem::take(&mut self.handles).into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.lock().stop = true;
        self.shared.more.notify_all();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// Whether this process uses io_uring, as `FOREBAY_ENGINE` and the kernel say.
pub(crate) fn ring_wanted() -> Result<bool, Error> {
    Ok(forebay_tier::engine::Engine::of_process()?.name() == "io_uring")
}
