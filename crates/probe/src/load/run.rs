//! Runs jobs: prepares their files, starts their threads, takes samples, and puts the reports together.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use forebay_tier::clock::now_ns;
use forebay_tier::{Error, Kind, Result};

use super::files::{self, Prepared};
use super::job::{Engine, Job, Remove};
use super::report::{Failure, Outcome, Report, Samples};
use super::tally::{Shared, COUNTING, ENDED, WAITING};
use super::transfer::{self, Mapped, Plain, Transfer};
use super::worker::{one_at_a_time, Worker};
use super::{kernel, queued};

/// How often bandwidth and requests are sampled.
const SAMPLE: Duration = Duration::from_millis(500);

/// How far a run is; given to the watcher every half second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since the start of the run.
    pub elapsed_ns: u64,
    /// Jobs whose threads run now.
    pub running: u32,
    /// Jobs that have ended.
    pub ended: u32,
    /// Bytes of all jobs so far: read and written.
    pub bytes: [u64; 2],
    /// Requests of all jobs so far: reads and writes.
    pub ios: [u64; 2],
}

/// Runs the jobs, each on a thread of its own: together, except those that come [`Job::after_previous`]. Blocks until
/// all have ended; `stop` ends them early (requests under way are waited for), and what they did until then is
/// reported. A job that fails is a report with a [`Failure`](super::Failure) and stops no other.
///
/// # Errors
/// `Usage` for a job that makes no sense; what making or preparing a file gives. Then no job has run. An engine that is
/// not available, or a file that cannot be opened as the job wants it, is the job's failure.
pub fn run(jobs: &[Job], stop: &AtomicBool, watch: &mut dyn FnMut(&Progress)) -> Result<Outcome> {
    jobs.iter().try_for_each(Job::check)?;
    let begin_ns = now_ns();
    let prepared = prepare(jobs, stop)?;
    let names = device_names(jobs);
    let devices = kernel::devices(&names);
    let moved = kernel::process_moved();
    let run_ns = now_ns();
    let shared: Vec<Shared> = jobs.iter().map(|_| Shared::default()).collect();
    let mut run =
        Run { jobs, prepared: &prepared, shared: &shared, stop, halt: AtomicBool::new(false), begin_ns };
    let mut reports: Vec<Option<Report>> = jobs.iter().map(|_| None).collect();
    for phase in phases(jobs) {
        if stop.load(Relaxed) {
            break;
        }
        run.halt = AtomicBool::new(false);
        run.phase(phase, &mut reports, watch)?;
    }
    let over_ns = now_ns() - run_ns;
    jobs.iter().zip(&prepared).for_each(|(job, prepared)| files::remove(job, &prepared.made));
    let nothing = |job: &Job| Report { name: job.name.clone(), jobs: 1, ..Report::default() };
    Ok(Outcome {
        reports: jobs
            .iter()
            .zip(reports)
            .map(|(job, report)| report.unwrap_or_else(|| nothing(job)))
            .collect(),
        devices: kernel::devices_since(kernel::devices(&names), &devices, over_ns),
        moved: kernel::since(kernel::process_moved(), moved),
        stopped: stop.load(Relaxed),
    })
}

/// Makes all files, or none when one cannot be made.
fn prepare(jobs: &[Job], stop: &AtomicBool) -> Result<Vec<Prepared>> {
    let mut prepared: Vec<Prepared> = Vec::new();
    for job in jobs {
        match files::prepare(job, stop) {
            Ok(files) => prepared.push(files),
            Err(e) => {
                let before = jobs.iter().zip(&prepared).filter(|(job, _)| job.remove != Remove::Never);
                before.for_each(|(job, prepared)| files::remove(job, &prepared.made));
                return Err(e);
            }
        }
    }
    Ok(prepared)
}

fn device_names(jobs: &[Job]) -> Vec<String> {
    let mut names: Vec<String> =
        jobs.iter().flat_map(|job| &job.files).filter_map(|path| kernel::device_of(path)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Jobs that run together.
fn phases(jobs: &[Job]) -> Vec<std::ops::Range<usize>> {
    let mut phases: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        match phases.last_mut() {
            Some(last) if !job.after_previous => last.end = index + 1,
            _ => phases.push(index..index + 1),
        }
    }
    phases
}

struct Run<'a> {
    jobs: &'a [Job],
    prepared: &'a [Prepared],
    shared: &'a [Shared],
    stop: &'a AtomicBool,
    /// A job that ends all others has ended.
    halt: AtomicBool,
    begin_ns: u64,
}

/// Opens when every worker of a phase is ready.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().expect("no holder panics") = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let held = self.0.lock().expect("no holder panics");
        drop(self.1.wait_while(held, |open| !*open).expect("no holder panics"));
    }
}

/// What a worker tells.
enum Word {
    Ready,
    Ended(usize, Box<Report>),
}

impl Run<'_> {
    fn phase(
        &self,
        phase: std::ops::Range<usize>,
        reports: &mut [Option<Report>],
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        let (gate, (tell, hear)) = (Gate::default(), channel());
        std::thread::scope(|scope| {
            let mut started = 0;
            for index in phase.clone() {
                let (gate, tell) = (&gate, tell.clone());
                let spawned = std::thread::Builder::new()
                    .name(format!("load {index}"))
                    .spawn_scoped(scope, move || self.thread(index, gate, &tell));
                if let Err(e) = spawned {
                    self.halt.store(true, Relaxed);
                    gate.open();
                    return Err(Error::new(Kind::TierFull, format!("cannot start thread {index}: {e}"))
                        .hint("use fewer jobs, or raise the limit of processes (ulimit -u)"));
                }
                started += 1;
            }
            drop(tell);
            self.listen(started, &gate, &hear, reports, watch);
            Ok(())
        })
    }

    /// Lets the workers go when all are ready, takes samples and collects their reports.
    fn listen(
        &self,
        workers: usize,
        gate: &Gate,
        hear: &Receiver<Word>,
        reports: &mut [Option<Report>],
        watch: &mut dyn FnMut(&Progress),
    ) {
        let (mut ready, mut tick) = (0, now_ns());
        let mut sampler = Sampler::new(self.shared.len());
        loop {
            let left = tick.saturating_sub(now_ns());
            match hear.recv_timeout(Duration::from_nanos(left)) {
                Ok(Word::Ready) => {
                    ready += 1;
                    if ready == workers {
                        gate.open();
                        tick = now_ns() + SAMPLE.as_nanos() as u64;
                    }
                }
                Ok(Word::Ended(index, mut report)) => {
                    sampler.conclude(index, &mut report);
                    report.made.clone_from(&self.prepared[index].made);
                    let devices = self.jobs[index].files.iter().filter_map(|path| kernel::device_of(path));
                    report.devices = devices.collect();
                    report.devices.dedup();
                    report.elapsed_ns = now_ns() - self.begin_ns;
                    reports[index] = Some(*report);
                }
                Err(RecvTimeoutError::Timeout) => {
                    sampler.sample(self.shared);
                    watch(&self.progress());
                    tick += SAMPLE.as_nanos() as u64;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn progress(&self) -> Progress {
        let mut progress = Progress { elapsed_ns: now_ns() - self.begin_ns, ..Progress::default() };
        for shared in self.shared {
            match shared.state.load(Relaxed) {
                WAITING => {}
                ENDED => progress.ended += 1,
                _ => progress.running += 1,
            }
            for direction in 0..2 {
                progress.bytes[direction] += shared.bytes[direction].load(Relaxed);
                progress.ios[direction] += shared.ios[direction].load(Relaxed);
            }
        }
        progress
    }

    /// A worker's whole life.
    fn thread(&self, index: usize, gate: &Gate, tell: &Sender<Word>) {
        let (job, shared) = (&self.jobs[index], &self.shared[index]);
        let ready = || {
            // The receiver is gone only when the run has failed.
            let _ = tell.send(Word::Ready);
            gate.pass();
        };
        let report = self.work(job, index, &ready);
        shared.state.store(ENDED, Relaxed);
        if job.ends_all {
            self.halt.store(true, Relaxed);
        }
        let _ = tell.send(Word::Ended(index, Box::new(report)));
    }

    fn work(&self, job: &Job, index: usize, ready: &dyn Fn()) -> Report {
        let parts = &self.prepared[index].parts;
        let mut worker = Worker::new(job, parts, &self.shared[index], [self.stop, &self.halt]);
        if job.create_only || parts.is_empty() {
            ready();
            return worker.finish(false);
        }
        let set_up = pin(job).and_then(|()| files::open(job)).and_then(|files| {
            if job.pre_read {
                files::pre_read(job, parts, self.stop).map_err(|e| Error::io("cannot read ahead", e))?;
            }
            Ok(files)
        });
        let files = match set_up {
            Ok(files) => files,
            Err(e) => return refused(worker, &e, ready),
        };
        match job.engine {
            Engine::Sync => simple(worker, Plain(files), ready),
            Engine::Mmap | Engine::Dax => simple(worker, Mapped::new(job, files), ready),
            Engine::IoUring(uring) => {
                files::advise(job, &files, parts);
                let queue = match queued::queue(job, files, uring) {
                    Ok(queue) => queue,
                    Err(e) => return refused(worker, &e, ready),
                };
                ready();
                if worker.start() {
                    let queue = queued::many_at_a_time(&mut worker, queue);
                    end_flush(&mut worker, |file| transfer::flush(&queue.files()[file], false));
                    close(&mut worker, |file| transfer::flush(&queue.files()[file], false));
                }
                worker.finish(true)
            }
        }
    }
}

fn simple(mut worker: Worker<'_>, mut engine: impl Transfer, ready: &dyn Fn()) -> Report {
    if let Err(e) = engine.begin_pass(worker.job, worker.parts) {
        return refused(worker, &e, ready);
    }
    ready();
    if worker.start() {
        one_at_a_time(&mut worker, &mut engine);
        end_flush(&mut worker, |file| engine.flush(file, false));
        close(&mut worker, |file| engine.flush(file, false));
    }
    worker.finish(false)
}

/// The job's own flush at its end: part of its time and of its flushes.
fn end_flush(worker: &mut Worker<'_>, mut flush: impl FnMut(usize) -> std::io::Result<()>) {
    if !worker.job.fsync_at_end || !worker.job.writes {
        return;
    }
    for file in 0..worker.job.files.len() {
        let begin = now_ns();
        match flush(file) {
            Ok(()) => {
                let now = now_ns();
                worker.tally.flush(now - begin);
                worker.ended_at(now);
            }
            Err(e) => worker.failed(&Error::io("cannot flush at the end", e)),
        }
    }
}

/// A flush before files are closed, which is not counted.
fn close(worker: &mut Worker<'_>, mut flush: impl FnMut(usize) -> std::io::Result<()>) {
    if !worker.job.fsync_on_close || !worker.job.writes {
        return;
    }
    for file in 0..worker.job.files.len() {
        if let Err(e) = flush(file) {
            worker.failed(&Error::io("cannot flush before closing", e));
        }
    }
}

#[cold]
fn refused(worker: Worker<'_>, e: &Error, ready: &dyn Fn()) -> Report {
    ready();
    let mut report = worker.finish(false);
    report.failure = Some(Failure::of(e));
    report
}

/// Keeps the thread on its processors.
fn pin(job: &Job) -> Result<()> {
    if job.cpus.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    for cpu in &job.cpus {
        if *cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(
                Error::new(Kind::Usage, format!("invalid processor number {cpu}")).with("job", &job.name)
            );
        }
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| {
        Error::new(Kind::Usage, format!("cannot run on processors {:?}: {e}", job.cpus))
            .with("job", &job.name)
    })
}

/// Rates of every worker, window by window.
struct Sampler {
    /// Of each worker: when it was looked at last, its bytes and requests then.
    last: Vec<Option<(u64, [u64; 4])>>,
    /// Bytes a second read and written, requests a second read and written.
    values: Vec<[Vec<f64>; 4]>,
}

impl Sampler {
    fn new(workers: usize) -> Sampler {
        Sampler { last: vec![None; workers], values: vec![Default::default(); workers] }
    }

    fn sample(&mut self, workers: &[Shared]) {
        for (index, shared) in workers.iter().enumerate() {
            if shared.state.load(Relaxed) != COUNTING {
                continue;
            }
            let seen =
                [&shared.bytes[0], &shared.bytes[1], &shared.ios[0], &shared.ios[1]].map(|n| n.load(Relaxed));
            let now = now_ns();
            // The first window is not whole: it only says where the next begins.
            if let Some((then, before)) = self.last[index].replace((now, seen)) {
                let seconds = (now - then) as f64 / 1e9;
                for (which, values) in self.values[index].iter_mut().enumerate() {
                    values.push(seen[which].saturating_sub(before[which]) as f64 / seconds);
                }
            }
        }
    }

    /// Gives a worker's samples to its report; one that was too short for any has its mean as the only one.
    fn conclude(&mut self, index: usize, report: &mut Report) {
        let values = std::mem::take(&mut self.values[index]);
        let whole = [
            report.read.bytes_per_s(),
            report.write.bytes_per_s(),
            report.read.ios_per_s(),
            report.write.ios_per_s(),
        ];
        let [read_bytes, write_bytes, read_ios, write_ios] = std::array::from_fn(|which| {
            let mut values = values[which].clone();
            if values.is_empty() && whole[which] > 0.0 {
                values.push(whole[which]);
            }
            // A direction without a request has no rate either.
            values.retain(|_| whole[which] > 0.0);
            Samples { values }
        });
        (report.read.bandwidth, report.read.iops) = (read_bytes, read_ios);
        (report.write.bandwidth, report.write.iops) = (write_bytes, write_ios);
    }
}
