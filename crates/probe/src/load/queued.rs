//! Runs a job on io_uring, with as many requests under way as it asks for.
//!
//! Requests are made, handed over and taken back in the order and numbers that the job says: by default each one is
//! handed over as soon as it is made, and when the queue is full one completion frees the slot of the next request.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay_tier::clock::now_ns;
use forebay_tier::engine::{Queue, QueueOptions, Request};
use forebay_tier::{Error, Kind, Result};

use super::files;
use super::job::{Job, Uring};
use super::order::{Next, Step, What};
use super::report::Depths;
use super::tally::Times;
use super::worker::Worker;

/// What a slot's request is.
#[derive(Clone, Copy, Debug)]
struct Under {
    next: Next,
    times: Times,
}

/// A queue for the job on its files.
pub(crate) fn queue(job: &Job, files: Vec<File>, uring: Uring) -> Result<Queue> {
    let options = QueueOptions {
        fixed_buffers: uring.fixed_buffers,
        fixed_files: uring.fixed_files,
        poll: uring.poll,
        kernel_thread: uring.kernel_thread,
    };
    Queue::new(files, job.depth as usize, job.block_max() as usize, options).map_err(|e| {
        let kind = match e.raw_os_error() {
            Some(errno) if errno == rustix::io::Errno::NOMEM.raw_os_error() => Kind::TierFull,
            _ => Kind::NotPossibleHere,
        };
        Error::new(kind, format!("no io_uring of depth {}: {e}", job.depth))
            .with("job", &job.name)
            .hint("the engine for one request at a time needs nothing; fixed buffers need lockable memory (ulimit -l)")
            .caused_by(e)
    })
}

/// What becomes of a job's requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Supply {
    More,
    /// Waits until nothing is under way, then the next pass begins.
    PassEnd,
    Ended,
}

struct Loop<'w, 'a> {
    worker: &'w mut Worker<'a>,
    queue: Queue,
    free: Vec<usize>,
    under: Vec<Under>,
    /// Slots pushed and not handed over, in order.
    pushed: Vec<usize>,
    held: Option<Next>,
    supply: Supply,
}

/// Runs the job.
pub(crate) fn many_at_a_time(worker: &mut Worker<'_>, queue: Queue) -> Queue {
    let depth = worker.job.depth as usize;
    let nothing = Next { what: What::Read, file: 0, offset: 0, len: 0 };
    let mut run = Loop {
        queue,
        free: (0..depth).rev().collect(),
        under: vec![Under { next: nothing, times: Times::default() }; depth],
        pushed: Vec::with_capacity(depth),
        held: None,
        supply: Supply::More,
        worker,
    };
    for slot in 0..depth {
        run.worker.filler.fill(run.queue.buffer(slot));
    }
    if let Err(e) = run.all() {
        run.worker.failed(&Error::io("cannot use the ring", e));
    }
    let Loop { queue, worker, .. } = run;
    read_back(worker, &queue);
    queue
}

fn read_back(worker: &mut Worker<'_>, queue: &Queue) {
    worker.read_back(|file, offset, bytes| queue.files()[file as usize].read_at(bytes, offset));
}

impl Loop<'_, '_> {
    fn all(&mut self) -> std::io::Result<()> {
        let low = match self.worker.job.depth_low {
            0 => self.free.len().saturating_sub(1),
            low => low as usize,
        };
        loop {
            let wait_until = self.fill()?;
            self.hand_over()?;
            if self.queue.under_way() == 0 {
                match self.supply {
                    Supply::Ended => return Ok(()),
                    Supply::PassEnd => {
                        read_back(self.worker, &self.queue);
                        files::advise(self.worker.job, self.queue.files(), self.worker.parts);
                        self.supply = Supply::More;
                    }
                    Supply::More => {
                        if !self.worker.sleep_until(wait_until) {
                            self.supply = Supply::Ended;
                        }
                    }
                }
                continue;
            }
            let full = self.free.is_empty();
            self.take(full)?;
            while full && self.queue.under_way() > low {
                self.take(true)?;
            }
        }
    }

    /// Makes requests until the queue is full or there are no more; says until when there are none, else 0.
    #[inline]
    fn fill(&mut self) -> std::io::Result<u64> {
        while !self.free.is_empty() && self.supply == Supply::More {
            if self.worker.is_over() {
                self.supply = Supply::Ended;
                break;
            }
            let next = match self.held.take().map_or_else(|| self.worker.order.next(), Step::Do) {
                Step::Do(next) => next,
                Step::PassEnd => {
                    self.supply = Supply::PassEnd;
                    break;
                }
                Step::Finished => {
                    self.supply = Supply::Ended;
                    break;
                }
            };
            let due = self.worker.due_ns(&next);
            if due > 0 && due > now_ns() {
                self.held = Some(next);
                return Ok(due);
            }
            self.push(next);
            if self.queue.queued() >= self.worker.job.batch.max(1) as usize {
                self.hand_over()?;
            }
        }
        Ok(0)
    }

    #[inline]
    fn push(&mut self, next: Next) {
        let slot = self.free.pop().expect("the caller looked");
        self.worker.ready(&next, &mut self.queue.buffer(slot)[..next.len as usize]);
        let (file, offset, len) = (next.file, next.offset, next.len);
        let request = match next.what {
            What::Read => Request::Read { file, offset, len },
            What::Write => Request::Write { file, offset, len },
            What::Flush { data_only } => Request::Flush { file, data_only },
        };
        self.under[slot] = Under { next, times: Times { made_ns: now_ns(), ..Times::default() } };
        self.queue.push(slot, request);
        self.pushed.push(slot);
        self.worker.tally.depths.count(self.queue.under_way() as u32);
    }

    #[inline]
    fn hand_over(&mut self) -> std::io::Result<()> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let count = self.queue.submit()?;
        let now = now_ns();
        for slot in self.pushed.drain(..) {
            self.under[slot].times.handed_ns = now;
        }
        let depths = &mut self.worker.tally.depths;
        depths.submits += 1;
        depths.submit[Depths::batch_class(count)] += 1;
        Ok(())
    }

    /// Takes completions; waits for some when nothing else can be done.
    #[inline]
    fn take(&mut self, full: bool) -> std::io::Result<()> {
        let job = self.worker.job;
        let nothing_else = full || self.supply != Supply::More || self.held.is_some();
        let least = match (job.complete_min as usize, nothing_else) {
            (0, true) => 1,
            (_, false) => 0,
            (min, true) => min.min(self.queue.under_way()),
        };
        let most = match job.complete_max {
            0 => (job.complete_min as usize).max(least).max(1),
            max => (max as usize).max(least),
        };
        let mut now = 0;
        let (worker, under, free) = (&mut *self.worker, &mut self.under, &mut self.free);
        let before = free.len();
        let mut ended = |slot: usize, moved: std::io::Result<usize>| {
            // One look at the clock for all that come together.
            now = if now == 0 { now_ns() } else { now };
            let Under { next, mut times } = under[slot];
            times.done_ns = now;
            let moved = worker.done(&next, moved, times, true);
            under[slot].next.len = moved as u32;
            free.push(slot);
        };
        let count = self.queue.reap(least, most, &mut ended)?;
        let depths = &mut self.worker.tally.depths;
        depths.completes += 1;
        depths.complete[Depths::batch_class(count)] += 1;
        if self.worker.job.verify.is_some() {
            for at in before..self.free.len() {
                let slot = self.free[at];
                let next = self.under[slot].next;
                self.worker.check(&next, &self.queue.buffer(slot)[..next.len as usize]);
            }
        }
        if self.worker.job.think.ns > 0 {
            (0..count).for_each(|_| self.worker.think());
        }
        Ok(())
    }
}
