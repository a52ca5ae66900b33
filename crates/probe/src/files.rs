//! A file system as a subject: through its page cache (`file`) or past it (`direct`).
//!
//! Guarantees: one file without a name, filled with random bytes, at most half of what is free; before every
//! measurement what was written is on the device, before those that read cached pages are dropped, and the device's own
//! counters say afterwards whether the bytes really came from it.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use forebay_tier::{Error, Horizon, Kind, Result, TierKind};

use super::find::Found;
use super::judge;
use super::scratch::Scratch;
use super::subject::{Reading, Subject};
use crate::load::{self, Blocks, Bytes, Content, Engine, Job, Latency, Report, Uring};
use forebay_profile::{Access, Conditions, Load, Operation, Pattern};

/// The file of a first profile: larger than the caches that drives have.
const FILE_BYTES: u64 = 1 << 30;
/// The file of a full one.
const FILE_BYTES_FULL: u64 = 4 << 30;
/// Filling the file is cut short after this time; what there is by then is used.
const FILL_NS_MAX: u64 = 4_000_000_000;
/// Blocks are written so while filling.
const FILL_BLOCK: u32 = 1 << 20;
/// Writes into the page cache that are never flushed: more only measures how much of them is held back.
const CACHED_WRITE_BYTES: u64 = 256 << 20;
/// Bytes of each trial that looks for compression.
const TRIAL_BYTES: u64 = 64 << 20;

/// A file that is being measured.
pub struct Files {
    scratch: Scratch,
    tier: Found,
    bytes: u64,
    stop: Arc<AtomicBool>,
    seed: u64,
    dirty: bool,
    notes: Vec<String>,
}

impl Files {
    /// Makes the file and fills it.
    ///
    /// # Errors
    /// Those of the file system; `TierFull` when it has no free space; those of the load.
    pub fn new(tier: &Found, full: bool, stop: Arc<AtomicBool>) -> Result<Files> {
        let wanted = if full { FILE_BYTES_FULL } else { FILE_BYTES };
        let bytes = wanted.min(tier.free.bytes / 2) / u64::from(FILL_BLOCK) * u64::from(FILL_BLOCK);
        if bytes == 0 {
            return Err(Error::new(
                Kind::TierFull,
                format!("not enough free space to measure tier {}", tier.name),
            )
            .with("free_bytes", tier.free.bytes)
            .with("limited_by", &tier.free.limited_by));
        }
        let mut files = Files {
            scratch: Scratch::make(&tier.place)?,
            tier: tier.clone(),
            bytes,
            stop,
            seed: 1,
            dirty: false,
            notes: Vec::new(),
        };
        files.fill()?;
        if tier.kind == TierKind::Direct || tier.file_system.as_deref().is_some_and(judge::may_squeeze) {
            let times = files.zeros_against_random()?;
            files.notes.extend(judge::squeezing(times));
        }
        if tier.device.is_none() {
            files.notes.push("no block device below: which bytes a cache delivered is not counted".into());
        }
        Ok(files)
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn fill(&mut self) -> Result<()> {
        let job = Job {
            reads: false,
            writes: true,
            blocks: [Blocks::One(FILL_BLOCK), Blocks::One(FILL_BLOCK)],
            size: self.bytes,
            limit_ns: FILL_NS_MAX,
            fsync_at_end: true,
            // The file is there, with no bytes.
            create: true,
            ..self.job("fill")
        };
        let (report, _) = self.run(&[job])?;
        // On a slow disk only a part was written in time.
        self.bytes = self.bytes.min(report.write.bytes) / u64::from(FILL_BLOCK) * u64::from(FILL_BLOCK);
        self.scratch.settle()
    }

    fn job(&self, name: &str) -> Job {
        Job {
            direct: self.tier.kind == TierKind::Direct,
            size: self.bytes,
            seed: self.seed,
            create: false,
            ..Job::new(name, vec![self.scratch.path()])
        }
    }

    fn run(&mut self, jobs: &[Job]) -> Result<(Report, Option<[u64; 2]>)> {
        self.seed += 1;
        let outcome = load::run(jobs, &self.stop, &mut |_| ())?;
        let sum = Report::merge(&outcome.reports);
        if let Some(failure) = &sum.failure {
            return Err(Error::io(
                format!("measuring tier {}: {}", self.tier.name, failure.what),
                std::io::Error::from_raw_os_error(failure.errno),
            ));
        }
        let mut moved = [0, 0];
        outcome.devices.iter().for_each(|d| (0..2).for_each(|way| moved[way] += d.bytes[way]));
        Ok((sum, (!outcome.devices.is_empty()).then_some(moved)))
    }

    /// The jobs that make a load of these conditions.
    fn jobs(&mut self, when: &Conditions, span_ns: u64) -> Result<Vec<Job>> {
        self.rest()?;
        self.dirty = when.reads_percent.unwrap_or(100.0) < 100.0;
        let threads = when.threads.unwrap_or(1).max(1);
        let job = job_of(self.job("probe"), when, span_ns);
        // What one thread has read comes from the cache for another: where the cache is not passed, each has a part of
        // the file for itself, as it has for requests in order.
        let may_meet = job.is_random() && (job.direct || !job.reads);
        if may_meet || threads == 1 {
            return Ok(job.clones(threads));
        }
        let part =
            self.bytes / u64::from(threads) / job.block_max().max(1) as u64 * job.block_max().max(1) as u64;
        let place = |(i, job): (usize, Job)| Job {
            offset: i as u64 * part,
            size: part.max(u64::from(job.block_max())),
            ..job
        };
        Ok(job.clones(threads).into_iter().enumerate().map(place).collect())
    }

    /// How many times as fast zeros are written as random bytes: above 1 the device (or the file system) squeezes what
    /// it can.
    ///
    /// # Errors
    /// Those of the load.
    pub fn zeros_against_random(&mut self) -> Result<f64> {
        let trial = |files: &mut Files, bytes: Bytes| -> Result<f64> {
            // Strewn in, so that no two blocks are the same; zeros stay zeros.
            let scramble = bytes == Bytes::Random;
            let content = Content { bytes, scramble, ..Content::default() };
            let job = Job {
                reads: false,
                writes: true,
                content,
                blocks: [Blocks::One(FILL_BLOCK), Blocks::One(FILL_BLOCK)],
                size: TRIAL_BYTES.min(files.bytes),
                limit_ns: FILL_NS_MAX / 4,
                fsync_at_end: true,
                ..files.job("trial")
            };
            let (report, _) = files.run(&[job])?;
            let ns = report.runtime_ns.max(1);
            Ok(report.write.bytes as f64 / ns as f64)
        };
        let before = trial(self, Bytes::Random)?;
        let zeros = trial(self, Bytes::Zero)?;
        // What a reader finds is random again; and a device that only grew warm shows the same on both sides.
        let random = trial(self, Bytes::Random)?.max(before);
        Ok(if random > 0.0 { zeros / random } else { 1.0 })
    }
}

/// A job as the conditions say.
fn job_of(job: Job, when: &Conditions, span_ns: u64) -> Job {
    let reads = when.reads_percent.unwrap_or(100.0);
    let bytes = when.bytes.unwrap_or(4096).min(u64::from(u32::MAX)) as u32;
    let depth = when.depth.unwrap_or(1).max(1);
    let cached_only = !job.direct && reads == 0.0 && when.horizon == Horizon::None;
    Job {
        engine: match when.access {
            Some(Access::IoUring) => Engine::IoUring(Uring::default()),
            Some(Access::Mmap) => Engine::Mmap,
            _ => Engine::Sync,
        },
        reads: reads > 0.0,
        writes: reads < 100.0,
        read_percent: reads as u32,
        random_percent: if when.pattern == Some(Pattern::Random) { 100 } else { 0 },
        blocks: [Blocks::One(bytes), Blocks::One(bytes)],
        depth,
        fdatasync_every: u32::from(when.horizon == Horizon::Write && reads < 100.0),
        fsync_at_end: when.horizon == Horizon::Epoch,
        limit_ns: span_ns,
        time_based: !cached_only,
        io_bytes: if cached_only { CACHED_WRITE_BYTES } else { 0 },
        invalidate: true,
        ..job
    }
}

impl Subject for Files {
    fn bandwidth(&mut self, when: &Conditions, span_ns: u64) -> Result<Reading> {
        let jobs = self.jobs(when, span_ns)?;
        let (report, device_bytes) = self.run(&jobs)?;
        // When time is up, the last write of each thread still waits for its flush: it is not durable, and not counted.
        let written = match when.horizon {
            Horizon::Write => report.write.ios.min(report.flushes.ios),
            _ => report.write.ios,
        };
        let each = report.write.bytes / report.write.ios.max(1);
        Ok(Reading {
            operations: [report.read.ios, written],
            bytes: [report.read.bytes, each * written],
            ns: report.runtime_ns,
            device_bytes,
        })
    }

    fn latency(&mut self, of: Operation, _load: Load, when: &Conditions, span_ns: u64) -> Result<Latency> {
        let jobs = self.jobs(when, span_ns)?;
        let (report, _) = self.run(&jobs)?;
        Ok(match of {
            Operation::Read => report.read.total,
            Operation::Write => report.write.total,
            Operation::Persist => report.flushes.latency,
        })
    }

    fn rest(&mut self) -> Result<()> {
        match std::mem::take(&mut self.dirty) {
            true => self.scratch.settle(),
            false => Ok(()),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn method(&self) -> String {
        let way = match self.tier.kind {
            TierKind::Direct => "O_DIRECT, io_uring or one system call at a time as each curve says",
            _ => "system calls through the page cache, cached pages dropped before each reading",
        };
        format!(
            "a nameless file of {} MiB of random bytes; {way}; bytes checked against /proc/diskstats",
            self.bytes >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::find::{find, Running};
    use crate::machine::Machine;
    use crate::sample::{two_sockets_and_cxl, TOLD};

    fn when(reads: f64, horizon: Horizon) -> Conditions {
        Conditions {
            reads_percent: Some(reads),
            bytes: Some(8192),
            pattern: Some(Pattern::Random),
            access: Some(Access::IoUring),
            depth: Some(16),
            horizon,
            ..Conditions::default()
        }
    }

    /// Longer requests take too long for a test.
    const REQUESTED_BYTES_MAX: f64 = 4e6;
    const SPAN_NS: u64 = 2_000_000;

    /// One point of a curve: the last that is not too much to have under way at once.
    fn point(ask: &Ask) -> Conditions {
        let Ask::Curve { when, over, xs } = ask else {
            let Ask::Latency { when, .. } = ask else { unreachable!() };
            return when.clone();
        };
        let at = |x: &f64| when.at(*over, *x);
        let size = |w: &Conditions| {
            f64::from(w.threads.unwrap_or(1) * w.depth.unwrap_or(1)) * w.bytes.unwrap_or(4096) as f64
        };
        xs.iter().rev().map(at).find(|w| size(w) <= REQUESTED_BYTES_MAX).unwrap_or_else(|| at(&xs[0]))
    }

    /// Whether a device below says that it moved what was asked for; the device counts the bytes of all processes, so
    /// it may have moved more.
    fn agrees(kind: TierKind, when: &Conditions, reading: &Reading, device: [u64; 2]) -> bool {
        let direct = kind == TierKind::Direct;
        // What only went into the page cache goes to the device when the kernel likes.
        let flushed = direct || when.horizon != Horizon::None;
        // Two threads may have written one block before either flushed it: then it is written once.
        let last = match when.horizon {
            Horizon::Write => u64::from(when.threads.unwrap_or(1)) * when.bytes.unwrap_or(4096),
            _ => 0,
        };
        let writes = !flushed || device[1] + last >= reading.bytes[1];
        match direct {
            true => writes && device[0] >= reading.bytes[0],
            false => writes && judge::caveat(reading, true, &judge::Bounds::default()).is_none(),
        }
    }

    #[test]
    fn every_question_to_a_file_system_is_answered_by_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&Machine::here(), &Running, &[dir.path().into()]);
        let mut compared = 0;
        for mut tier in tiers.found.into_iter().filter(|t| t.place == dir.path() && t.device.is_some()) {
            tier.free.bytes = tier.free.bytes.min(64 << 20);
            let mut files = Files::new(&tier, true, Arc::default()).unwrap();
            for ask in super::super::run::asked(&tier, true) {
                let when = point(&ask);
                let reading = files.bandwidth(&when, SPAN_NS).unwrap();
                let device = reading.device_bytes.expect("a device was found");
                // In so short a time not every flush comes to its end, and what waits for one does not count.
                let moved = reading.bytes[0] + reading.bytes[1] > 0;
                assert!(moved || when.horizon == Horizon::Write, "{when:?}");
                assert!(agrees(tier.kind, &when, &reading, device), "{}: {when:?}: {reading:?}", tier.name);
                compared += 1;
            }
        }
        if compared == 0 {
            crate::skips::skipped("the bytes of a probe", "no block device lies below the temporary files");
        }
    }

    #[test]
    fn threads_that_read_through_the_cache_never_meet() {
        let (sample, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tiers = find(&two_sockets_and_cxl(sample.path()), &TOLD, &[]);
        let mut tier = tiers.found.into_iter().find(|t| t.kind == TierKind::File).unwrap();
        (tier.place, tier.free.bytes) = (dir.path().into(), 8 << 20);
        let mut files = Files::new(&tier, false, Arc::default()).unwrap();
        let cached =
            Conditions { threads: Some(4), access: Some(Access::Sync), ..when(100.0, Horizon::None) };
        let jobs = files.jobs(&cached, SPAN_NS).unwrap();
        let parts: Vec<(u64, u64)> = jobs.iter().map(|job| (job.offset, job.size)).collect();
        assert_eq!(parts, [0, 1, 2, 3].map(|i| (i << 20, 1 << 20)));
        let writes = files.jobs(&Conditions { reads_percent: Some(0.0), ..cached }, SPAN_NS).unwrap();
        assert!(writes.iter().all(|job| (job.offset, job.size) == (0, 4 << 20)));
    }

    #[test]
    fn what_no_device_moved_does_not_agree() {
        let reading =
            |bytes| Reading { operations: [1, 1], bytes, ns: 1_000_000, device_bytes: Some([4096, 4096]) };
        let (cold, durable) = (when(100.0, Horizon::None), when(0.0, Horizon::Write));
        assert!(agrees(TierKind::Direct, &cold, &reading([4096, 0]), [4096, 0]));
        assert!(!agrees(TierKind::Direct, &cold, &reading([8192, 0]), [4096, 9999]));
        assert!(!agrees(TierKind::Direct, &when(50.0, Horizon::None), &reading([0, 8192]), [9999, 4096]));
        assert!(!agrees(TierKind::File, &cold, &reading([8192, 0]), [4096, 4096]));
        assert!(agrees(TierKind::File, &durable, &reading([0, 16384]), [9999, 8192]));
        assert!(!agrees(TierKind::File, &durable, &reading([0, 16384]), [9999, 4096]));
        let at_once = when(0.0, Horizon::Epoch);
        assert!(!agrees(TierKind::File, &at_once, &reading([0, 8192]), [9999, 4096]));
        assert!(agrees(TierKind::File, &when(0.0, Horizon::None), &reading([0, 8192]), [0, 0]));
    }

    #[test]
    fn conditions_become_the_job_that_they_say() {
        let base = Job { direct: true, ..Job::new("x", vec!["f".into()]) };
        let job = job_of(base.clone(), &when(75.0, Horizon::None), 7);
        assert_eq!((job.reads, job.writes, job.read_percent, job.random_percent), (true, true, 75, 100));
        assert_eq!((job.depth, job.blocks[0].max(), job.limit_ns, job.time_based), (16, 8192, 7, true));
        assert!(matches!(job.engine, Engine::IoUring(_)));
        assert_eq!((job.fdatasync_every, job.fsync_at_end), (0, false));
        let durable = job_of(base.clone(), &when(0.0, Horizon::Write), 7);
        assert_eq!((durable.reads, durable.fdatasync_every), (false, 1));
        assert!(job_of(base.clone(), &when(0.0, Horizon::Epoch), 7).fsync_at_end);
        let cached = Job { direct: false, ..base };
        let cached = job_of(cached, &when(0.0, Horizon::None), 7);
        assert_eq!((cached.time_based, cached.io_bytes), (false, CACHED_WRITE_BYTES));
    }
}
