//! A load on files: jobs that read and write as they are told, and what came of it.
//!
//! Guarantees: every job says in bytes and requests what it did, and what the kernel did for it; nothing that a job
//! does between two requests allocates memory; files are touched only inside the job's part of them. Does not: know the
//! options of any program; that is the command's business.
//!
//! ```no_run
//! use forebay_probe::load::{run, Engine, Job, Uring};
//! use std::sync::atomic::AtomicBool;
//!
//! let job = Job {
//!     engine: Engine::IoUring(Uring::default()),
//!     direct: true,
//!     random_percent: 100,
//!     depth: 16,
//!     size: 1 << 30,
//!     limit_ns: 2_000_000_000,
//!     time_based: true,
//!     ..Job::new("random", vec!["/scratch/probe".into()])
//! };
//! let outcome = run(&job.clones(4), &AtomicBool::new(false), &mut |_| ())?;
//! let sum = forebay_probe::load::Report::merge(&outcome.reports);
//! println!("measured: {} requests/s, p99 {} ns", sum.read.ios_per_s(), sum.read.total.percentile_ns(99.0));
//! # Ok::<(), forebay_tier::Error>(())
//! ```

mod content;
mod files;
mod histogram;
mod job;
mod kernel;
mod order;
mod queued;
pub(crate) mod random;
mod report;
mod run;
mod tally;
mod transfer;
mod worker;

pub use files::present_bytes;
pub use histogram::Latency;
pub use job::{
    Allocate, Blocks, Bytes, Content, Distribution, Engine, FileOrder, Job, Measure, Method, Rate, Remove,
    Think, Uring, Verify, WriteThrough, READ, WRITE,
};
pub use report::{
    Depths, DeviceUse, Failure, Flow, Flushes, Made, Moved, Outcome, Report, Request, Samples, DEPTHS,
};
pub use run::{run, Progress};
