//! What came of a job: bytes, requests, times, and what the kernel did for it.
//!
//! Guarantees: counts are exact; latencies are exact in minimum, maximum, mean and deviation, and within one part in
//! 64 in their histogram. Reports of jobs that ran together can be added up ([`Report::merge`]).

use std::path::PathBuf;

use super::histogram::Latency;
use forebay_tier::process::Usage;
use forebay_tier::{Error, Kind};

/// Upper bounds of the classes of queue depth that are counted (the last one has none).
pub const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// One direction of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Bytes moved.
    pub bytes: u64,
    /// Requests done.
    pub ios: u64,
    /// Of these, ones that moved less than was asked for.
    pub short_ios: u64,
    /// Time over which this was measured.
    pub runtime_ns: u64,
    /// From making a request to handing it over (engine io_uring only; empty for the others).
    pub submission: Latency,
    /// From handing over to completion.
    pub completion: Latency,
    /// Both together.
    pub total: Latency,
    /// Bytes a second, in windows of half a second.
    pub bandwidth: Samples,
    /// Requests a second, in the same windows.
    pub iops: Samples,
}

impl Flow {
    /// Bytes a second over all of it.
    pub fn bytes_per_s(&self) -> f64 {
        per_s(self.bytes, self.runtime_ns)
    }

    /// Requests a second over all of it.
    pub fn ios_per_s(&self) -> f64 {
        per_s(self.ios, self.runtime_ns)
    }

    fn add(&mut self, other: &Flow) {
        self.bytes += other.bytes;
        self.ios += other.ios;
        self.short_ios += other.short_ios;
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.submission.add(&other.submission);
        self.completion.add(&other.completion);
        self.total.add(&other.total);
        self.bandwidth.add(&other.bandwidth);
        self.iops.add(&other.iops);
    }
}

fn per_s(count: u64, ns: u64) -> f64 {
    if ns == 0 {
        0.0
    } else {
        count as f64 * 1e9 / ns as f64
    }
}

/// A rate over time, one value for each window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The values, a second each, in the order of time.
    pub values: Vec<f64>,
}

impl Samples {
    /// Number of values.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Smallest, 0 without values.
    pub fn min(&self) -> f64 {
        self.values.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    /// Largest, 0 without values.
    pub fn max(&self) -> f64 {
        self.values.iter().copied().reduce(f64::max).unwrap_or(0.0)
    }

    /// Mean, 0 without values.
    pub fn mean(&self) -> f64 {
        if self.values.is_empty() {
            return 0.0;
        }
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Standard deviation of the sample, 0 below two values.
    pub fn deviation(&self) -> f64 {
        if self.values.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.values.iter().map(|v| (v - mean).powi(2)).sum();
        (squares / (self.values.len() - 1) as f64).sqrt()
    }

    /// Windows of jobs that ran at the same time add up.
    fn add(&mut self, other: &Samples) {
        self.values.resize(self.values.len().max(other.values.len()), 0.0);
        self.values.iter_mut().zip(&other.values).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Flushes of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flushes {
    /// How many.
    pub ios: u64,
    /// How long each took.
    pub latency: Latency,
}

/// How many requests were in each class of [`DEPTHS`] (0 in the first one of `submit` and `complete`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Requests under way when one was handed over, by class: 1, 2 to 3, 4 to 7, … 64 and more.
    pub under_way: [u64; 7],
    /// Requests handed over by one call: 0, 1 to 4, 5 to 8, 9 to 16, 17 to 32, 33 to 64, more.
    pub submit: [u64; 7],
    /// Requests completed by one call, in the same classes.
    pub complete: [u64; 7],
    /// Calls that handed over.
    pub submits: u64,
    /// Calls that took completions.
    pub completes: u64,
}

impl Depths {
    /// Counts a request that was handed over as the `under_way`th.
    #[inline]
    pub(crate) fn count(&mut self, under_way: u32) {
        let class = (31 - under_way.max(1).leading_zeros()).min(6);
        self.under_way[class as usize] += 1;
    }

    /// The class of a batch.
    #[inline]
    pub(crate) fn batch_class(requests: usize) -> usize {
        match requests {
            0 => 0,
            1..=4 => 1,
            5..=8 => 2,
            9..=16 => 3,
            17..=32 => 4,
            33..=64 => 5,
            _ => 6,
        }
    }

    fn add(&mut self, other: &Depths) {
        let pairs = [
            (&mut self.under_way, &other.under_way),
            (&mut self.submit, &other.submit),
            (&mut self.complete, &other.complete),
        ];
        for (mine, theirs) in pairs {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
        self.submits += other.submits;
        self.completes += other.completes;
    }
}

/// Bytes that the kernel really moved to and from devices for the job's thread, as it accounts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Read from a device.
    pub read_bytes: u64,
    /// Caused to be written to a device (at the latest by write-back).
    pub written_bytes: u64,
}

/// What a block device did while the jobs ran, from all processes together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUse {
    /// As in /proc/diskstats.
    pub name: String,
    /// Requests: reads, writes.
    pub ios: [u64; 2],
    /// Requests that were merged with a neighbour.
    pub merges: [u64; 2],
    /// Bytes.
    pub bytes: [u64; 2],
    /// Time of all requests together, in ms.
    pub ticks_ms: [u64; 2],
    /// Requests under way times ms.
    pub in_queue_ms: u64,
    /// Time with at least one request under way, in ms.
    pub busy_ms: u64,
    /// Time over which this was measured.
    pub over_ns: u64,
}

/// What went wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it is in Forebay's words; it decides the exit status.
    pub kind: Kind,
    /// The number of the operating system's error; EILSEQ (84) for bytes that did not verify.
    pub errno: i32,
    /// The sentence.
    pub what: String,
}

impl Failure {
    /// As the error says; the number is that of the operating system's error below it, else EIO (5).
    pub(crate) fn of(e: &Error) -> Failure {
        let below = std::error::Error::source(e).and_then(|e| e.downcast_ref::<std::io::Error>());
        let errno = below.and_then(std::io::Error::raw_os_error);
        let mut what = e.message().to_string();
        e.context().iter().for_each(|(key, value)| what += &format!(" ({key}={value})"));
        if let Some(hint) = e.hint_text() {
            what += &format!("; {hint}");
        }
        Failure { kind: e.kind(), errno: errno.unwrap_or(rustix::io::Errno::IO.raw_os_error()), what }
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The job's name.
    pub name: String,
    /// The first thing that went wrong; counts then end there.
    pub failure: Option<Failure>,
    /// Reads.
    pub read: Flow,
    /// Writes.
    pub write: Flow,
    /// fsync and fdatasync that the job was told to make.
    pub flushes: Flushes,
    /// From the first request to the last, with everything between.
    pub runtime_ns: u64,
    /// From the start of `run` to this job's end.
    pub elapsed_ns: u64,
    /// Processor time and more of the job's thread, over `runtime_ns`.
    pub usage: Usage,
    /// See [`Depths`].
    pub depths: Depths,
    /// None where the kernel does not tell.
    pub moved: Option<Moved>,
    /// Bytes that were read back and compared.
    pub verified_bytes: u64,
    /// Blocks that were not as they had been written.
    pub verify_errors: u64,
    /// The devices below the job's files.
    pub devices: Vec<String>,
    /// Files that were made for the job.
    pub made: Vec<PathBuf>,
    /// How many jobs are in this report.
    pub jobs: u32,
    /// Its requests in the order in which they were made, where the job says `record`. Of one job only.
    pub requests: Vec<Request>,
}

/// A request of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it was.
    pub made: Made,
    /// Which of the job's files.
    pub file: u32,
    /// Where in it; 0 for a flush.
    pub offset: u64,
    /// How many bytes; 0 for a flush.
    pub len: u32,
}

/// See [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An fsync.
    Sync,
    /// An fdatasync.
    DataSync,
}

impl Report {
    /// The sum of jobs that ran together. Runtimes are the longest.
    pub fn merge(reports: &[Report]) -> Report {
        let mut sum = reports.first().cloned().unwrap_or_default();
        for other in reports.iter().skip(1) {
            sum.failure = sum.failure.take().or_else(|| other.failure.clone());
            sum.read.add(&other.read);
            sum.write.add(&other.write);
            sum.flushes.ios += other.flushes.ios;
            sum.flushes.latency.add(&other.flushes.latency);
            sum.runtime_ns = sum.runtime_ns.max(other.runtime_ns);
            sum.elapsed_ns = sum.elapsed_ns.max(other.elapsed_ns);
            sum.usage += other.usage;
            sum.depths.add(&other.depths);
            sum.moved = match (sum.moved, other.moved) {
                (Some(a), Some(b)) => Some(Moved {
                    read_bytes: a.read_bytes + b.read_bytes,
                    written_bytes: a.written_bytes + b.written_bytes,
                }),
                _ => None,
            };
            sum.verified_bytes += other.verified_bytes;
            sum.verify_errors += other.verify_errors;
            for device in &other.devices {
                if !sum.devices.contains(device) {
                    sum.devices.push(device.clone());
                }
            }
            sum.made.extend(other.made.iter().cloned());
            sum.jobs += other.jobs;
        }
        sum
    }

    /// Whether reads were answered by a cache: the share of the bytes read that no device delivered. None where that
    /// is not known, or nothing was read.
    pub fn cached_share(&self) -> Option<f64> {
        let moved = self.moved?;
        (self.read.bytes > 0).then(|| {
            1.0 - (moved.read_bytes as f64 / (self.read.bytes + self.verified_bytes) as f64).min(1.0)
        })
    }
}

/// All that came of one `run`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// One for each job, in their order.
    pub reports: Vec<Report>,
    /// What the devices below the files did, all processes together.
    pub devices: Vec<DeviceUse>,
    /// What the kernel moved for this process meanwhile, all jobs and its own threads for them together.
    pub moved: Option<Moved>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}
