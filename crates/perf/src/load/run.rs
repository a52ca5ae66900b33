//! Runs jobs: prepares their files, starts their threads, takes samples, and puts the reports together.

use std::sync::atomic::AtomicBool;

use forebay_tier::{Error, Kind, Result};

use super::job::Job;
use super::report::Outcome;

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
/// `Usage` for a job that makes no sense; what opening, making or preparing a file gives; `NotPossibleHere` for an
/// engine that is not to be had. Then no job has run.
pub fn run(jobs: &[Job], stop: &AtomicBool, watch: &mut dyn FnMut(&Progress)) -> Result<Outcome> {
    jobs.iter().try_for_each(Job::check)?;
    let _ = (stop, watch);
    Err(Error::new(Kind::NotPossibleHere, "no engine of the load generator is built in yet"))
}
