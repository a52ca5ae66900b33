//! One thread of a load: makes the requests of its job in their order, at their rate, and counts.
//!
//! Between two requests it allocates nothing and reads the clock twice for a request done at once, three times for one
//! that is handed over. Requests under way are always waited for, whatever ends the job.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_tier::clock::now_ns;
use forebay_tier::engine::Aligned;
use forebay_tier::process::Usage;
use forebay_tier::{Error, Kind};

use super::content::{self, Filler};
use super::job::{Job, READ, WRITE};
use super::kernel;
use super::order::{Next, Order, Step, What};
use super::report::{Failure, Made, Moved, Report, Request};
use super::tally::{Shared, Tally, Times, COUNTING, RAMPING};
use super::transfer::Transfer;

/// Longest sleep before it looks again whether it shall end.
const NAP: Duration = Duration::from_millis(20);

/// The number that says: bytes are not what they should be (EILSEQ).
const NOT_VERIFIED: i32 = 84;

/// See the file's head.
pub(crate) struct Worker<'a> {
    pub(crate) job: &'a Job,
    /// Begin and end of the job's part of each file.
    pub(crate) parts: &'a [(u64, u64)],
    pub(crate) order: Order,
    pub(crate) filler: Filler,
    pub(crate) tally: Tally<'a>,
    pub(crate) failure: Option<Failure>,
    /// The first block that did not verify, when that ends nothing.
    wrong: Option<Failure>,
    shared: &'a Shared,
    /// Set when it is to end.
    stops: [&'a AtomicBool; 2],
    /// When counting began, and what the thread had used until then.
    begin: (u64, Usage, Option<Moved>),
    counting: bool,
    ramp_end_ns: u64,
    deadline_ns: u64,
    last_done_ns: u64,
    limited: bool,
    rate_from_ns: u64,
    asked_bytes: [u64; 2],
    asked_ios: [u64; 2],
    thought: u64,
    /// What was written in this pass, when it is to be read back.
    written: Vec<(u32, u64, u32)>,
    verified_bytes: u64,
    verify_errors: u64,
    requests: Vec<Request>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        job: &'a Job,
        parts: &'a [(u64, u64)],
        shared: &'a Shared,
        stops: [&'a AtomicBool; 2],
    ) -> Worker<'a> {
        Worker {
            job,
            parts,
            order: Order::new(job, parts),
            filler: Filler::new(job),
            tally: Tally::new(shared, job.measure),
            failure: None,
            wrong: None,
            shared,
            stops,
            begin: (0, Usage::default(), None),
            counting: false,
            ramp_end_ns: 0,
            deadline_ns: u64::MAX,
            last_done_ns: 0,
            limited: job.rate.iter().any(|rate| rate.bytes + rate.ios > 0),
            rate_from_ns: 0,
            asked_bytes: [0; 2],
            asked_ios: [0; 2],
            thought: 0,
            written: Vec::new(),
            verified_bytes: 0,
            verify_errors: 0,
            requests: Vec::new(),
        }
    }

    /// Waits as long as the job says, then starts its clock. False when it shall end before it began.
    pub(crate) fn start(&mut self) -> bool {
        if !self.sleep_until(now_ns().saturating_add(self.job.delay_ns)) {
            return false;
        }
        let now = now_ns();
        self.rate_from_ns = now;
        self.ramp_end_ns = now.saturating_add(self.job.ramp_ns);
        self.last_done_ns = now;
        if self.job.limit_ns > 0 {
            self.deadline_ns = self.ramp_end_ns.saturating_add(self.job.limit_ns);
        }
        match self.job.ramp_ns {
            0 => self.count_from(now),
            _ => self.shared.state.store(RAMPING, Relaxed),
        }
        true
    }

    fn count_from(&mut self, now: u64) {
        self.tally.clear();
        self.begin = (now, Usage::of_thread(), kernel::thread_moved());
        self.counting = true;
        self.shared.state.store(COUNTING, Relaxed);
    }

    /// Whether it shall end, at the time of the last request.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.last_done_ns >= self.deadline_ns
            || self.failure.is_some()
            || self.stops.iter().any(|stop| stop.load(Relaxed))
    }

    /// Sleeps, unless it shall end: then false.
    pub(crate) fn sleep_until(&mut self, until_ns: u64) -> bool {
        loop {
            if self.stops.iter().any(|stop| stop.load(Relaxed)) {
                return false;
            }
            let now = now_ns();
            if now >= self.deadline_ns {
                self.last_done_ns = now;
                return false;
            }
            if now >= until_ns {
                return true;
            }
            let left = Duration::from_nanos(until_ns.min(self.deadline_ns) - now);
            std::thread::sleep(left.min(NAP));
        }
    }

    /// When the next request may be made, for jobs with a rate; 0: now.
    #[inline]
    pub(crate) fn due_ns(&self, next: &Next) -> u64 {
        let direction = match next.what {
            What::Read => READ,
            What::Write => WRITE,
            What::Flush { .. } => return 0,
        };
        let rate = self.job.rate[direction];
        if !self.limited || rate.bytes + rate.ios == 0 {
            return 0;
        }
        let after = |done: u64, per_s: u64| match per_s {
            0 => 0,
            per_s => (u128::from(done) * 1_000_000_000 / u128::from(per_s)) as u64,
        };
        let bytes = after(self.asked_bytes[direction], rate.bytes);
        self.rate_from_ns + bytes.max(after(self.asked_ios[direction], rate.ios))
    }

    /// Makes a buffer ready for a request.
    #[inline]
    pub(crate) fn ready(&mut self, next: &Next, buffer: &mut [u8]) {
        if next.what == What::Write {
            self.filler.renew(buffer, next.offset, self.last_done_ns);
        }
        if self.limited {
            let direction = if next.what == What::Read { READ } else { WRITE };
            self.asked_bytes[direction] += u64::from(next.len);
            self.asked_ios[direction] += u64::from(next.len > 0);
        }
        if self.job.record {
            self.remember(next);
        }
    }

    #[cold]
    fn remember(&mut self, next: &Next) {
        let made = match next.what {
            What::Read => Made::Read,
            What::Write => Made::Write,
            What::Flush { data_only: false } => Made::Sync,
            What::Flush { data_only: true } => Made::DataSync,
        };
        let is_flush = matches!(next.what, What::Flush { .. });
        let offset = if is_flush { 0 } else { next.offset };
        self.requests.push(Request { made, file: next.file, offset, len: next.len });
    }

    /// One request has ended.
    #[inline]
    pub(crate) fn done(
        &mut self,
        next: &Next,
        result: io::Result<usize>,
        times: Times,
        queued: bool,
    ) -> usize {
        self.last_done_ns = times.done_ns;
        let moved = match result {
            Ok(moved) => moved,
            Err(e) => {
                self.fail(next, &e);
                return 0;
            }
        };
        match next.what {
            What::Read => self.tally.transfer(READ, next.len, moved, times, queued),
            What::Write => self.tally.transfer(WRITE, next.len, moved, times, queued),
            What::Flush { .. } => self.tally.flush(times.done_ns - times.handed_ns),
        }
        if moved == 0 && next.len > 0 {
            self.fail(next, &io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        if self.job.verify.is_some() && next.what == What::Write {
            self.written.push((next.file, next.offset, next.len));
        }
        if !self.counting && times.done_ns >= self.ramp_end_ns {
            self.count_from(times.done_ns);
        }
        moved
    }

    /// Checks what a job that only reads has read.
    #[inline]
    pub(crate) fn check(&mut self, next: &Next, bytes: &[u8]) {
        if self.job.verify.is_some() && next.what == What::Read && !self.job.writes {
            self.compare(next.file, next.offset, bytes);
        }
    }

    fn compare(&mut self, file: u32, offset: u64, bytes: &[u8]) {
        let verify = self.job.verify.as_ref().expect("only jobs that verify compare");
        self.verified_bytes += bytes.len() as u64;
        if let Err(what) = content::check(&verify.method, bytes, offset) {
            self.verify_errors += 1;
            let what = format!("verify of {}: {what}", self.job.files[file as usize].display());
            let failure = Failure { kind: Kind::Damaged, errno: NOT_VERIFIED, what };
            match verify.fatal {
                true => self.failure.get_or_insert(failure),
                false => self.wrong.get_or_insert(failure),
            };
        }
    }

    #[cold]
    fn fail(&mut self, next: &Next, e: &io::Error) {
        let path = self.job.files[next.file as usize].display();
        let verb = match next.what {
            What::Read => "read",
            What::Write => "write",
            What::Flush { .. } => "flush",
        };
        let again = e.raw_os_error().map_or_else(|| io::Error::from(e.kind()), io::Error::from_raw_os_error);
        let what = format!("cannot {verb} {} bytes at {} of {path}", next.len, next.offset);
        let mut error = Error::io(what, again);
        if self.job.direct && e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) {
            error = error
                .hint("direct requests begin at and have multiples of the device's block, often 512 or 4096");
        }
        self.failure.get_or_insert(Failure::of(&error));
    }

    /// Pauses after a request, if the job does.
    #[inline]
    pub(crate) fn think(&mut self) {
        let think = self.job.think;
        if think.ns == 0 {
            return;
        }
        self.thought += 1;
        if self.thought % think.every.max(1) != 0 {
            return;
        }
        let (from, spin) = (now_ns(), think.spin_ns.min(think.ns));
        while now_ns() < from + spin {
            std::hint::spin_loop();
        }
        self.sleep_until(from + think.ns);
    }

    /// Reads back what this pass wrote. `read` gives the bytes of (file, offset) as far as they are there.
    pub(crate) fn read_back(&mut self, mut read: impl FnMut(u32, u64, &mut [u8]) -> io::Result<usize>) {
        let written = std::mem::take(&mut self.written);
        let Some(verify) = self.job.verify.as_ref().filter(|verify| verify.after_writes) else { return };
        let mut buffer = Aligned::new(self.job.block_max() as usize);
        for (file, offset, len) in written {
            if verify.fatal && self.verify_errors > 0 || self.stops.iter().any(|stop| stop.load(Relaxed)) {
                return;
            }
            let bytes = buffer.part(len as usize);
            match read(file, offset, bytes) {
                Ok(moved) if moved == bytes.len() => self.compare(file, offset, bytes),
                other => {
                    let e = other.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                    self.fail(&Next { what: What::Read, file, offset, len }, &e);
                    return;
                }
            }
        }
    }

    /// The report, but for what only the run knows.
    pub(crate) fn finish(mut self, queued: bool) -> Report {
        let (begin_ns, usage, moved) = self.begin;
        // A job that never left its ramp has counted nothing.
        let runtime_ns = if self.counting { self.last_done_ns.saturating_sub(begin_ns) } else { 0 };
        if !self.counting {
            self.tally.clear();
        }
        self.tally.finish(runtime_ns, queued);
        let used = if self.counting { Usage::of_thread() - usage } else { Usage::default() };
        let [read, write] = std::mem::take(&mut self.tally.flows);
        Report {
            name: self.job.name.clone(),
            failure: self.failure.or(self.wrong),
            read,
            write,
            flushes: std::mem::take(&mut self.tally.flushes),
            runtime_ns,
            usage: used,
            depths: self.tally.depths,
            moved: kernel::since(kernel::thread_moved(), moved),
            verified_bytes: self.verified_bytes,
            verify_errors: self.verify_errors,
            requests: self.requests,
            jobs: 1,
            ..Report::default()
        }
    }

    /// Counts a flush at the end of the job into its runtime.
    pub(crate) fn ended_at(&mut self, now: u64) {
        self.last_done_ns = now;
    }

    /// Records an error that is none of a request.
    #[cold]
    pub(crate) fn failed(&mut self, e: &forebay_tier::Error) {
        self.failure.get_or_insert(Failure::of(e));
    }
}

/// Runs a job on an engine that does one request at a time.
pub(crate) fn one_at_a_time(worker: &mut Worker<'_>, engine: &mut impl Transfer) {
    let mut buffer = Aligned::new(worker.job.block_max() as usize);
    worker.filler.fill(buffer.as_mut_slice());
    while !worker.is_over() {
        let next = match worker.order.next() {
            Step::Do(next) => next,
            Step::Finished => break,
            Step::PassEnd => {
                read_back(worker, engine);
                if let Err(e) = engine.begin_pass(worker.job, worker.parts) {
                    worker.failed(&e);
                }
                continue;
            }
        };
        let due = worker.due_ns(&next);
        if due > worker.last_done_ns && !worker.sleep_until(due) {
            break;
        }
        let part = buffer.part(next.len as usize);
        worker.ready(&next, part);
        let handed_ns = now_ns();
        let result = match next.what {
            What::Read => engine.read(next.file as usize, next.offset, part),
            What::Write => engine.write(next.file as usize, next.offset, part),
            What::Flush { data_only } => engine.flush(next.file as usize, data_only).map(|()| 0),
        };
        let times = Times { made_ns: handed_ns, handed_ns, done_ns: now_ns() };
        let moved = worker.done(&next, result, times, false);
        worker.check(&next, &part[..moved]);
        worker.think();
    }
    let ios = worker.tally.flows.iter().map(|flow| flow.ios).sum::<u64>() + worker.tally.flushes.ios;
    let depths = &mut worker.tally.depths;
    (depths.under_way[0], depths.submit[1], depths.complete[1]) = (ios, ios, ios);
    (depths.submits, depths.completes) = (ios, ios);
    read_back(worker, engine);
}

fn read_back(worker: &mut Worker<'_>, engine: &mut impl Transfer) {
    worker.read_back(|file, offset, bytes| engine.read(file as usize, offset, bytes));
}
