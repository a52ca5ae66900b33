//! What one job of a job file says, as far as it is said: the values of the options, before any file was looked at.

use std::path::PathBuf;

use forebay_perf::load::{Job, Method, Uring};

use super::values::{Amount, Units};

/// The latencies whose percentiles are printed.
pub const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// What is checked of the bytes.
#[derive(Clone, Debug)]
pub struct Checks {
    pub method: Option<Method>,
    pub pattern: Option<Vec<u8>>,
    pub after: bool,
    pub fatal: bool,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks { method: None, pattern: None, after: true, fatal: false }
    }
}

/// What is printed of the results.
#[derive(Clone, Debug)]
pub struct Shown {
    pub percentiles: Vec<f64>,
    /// Whether they are shown of the three latencies.
    pub of_submission: bool,
    pub of_completion: bool,
    pub of_total: bool,
    pub devices: bool,
}

impl Default for Shown {
    fn default() -> Shown {
        let percentiles = PERCENTILES.to_vec();
        Shown { percentiles, of_submission: false, of_completion: true, of_total: false, devices: true }
    }
}

/// See the file's head. The defaults are fio's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is said of each job itself. Its name, its files, its part of them and its seed are not known yet, and
    /// `random_percent` counts only when `random`.
    pub job: Job,
    pub units: Units,
    pub description: Option<String>,
    pub filename: Vec<String>,
    pub directory: Vec<String>,
    pub filename_format: Option<String>,
    pub files: u32,
    pub uring: Uring,
    pub random: bool,
    pub size: Option<Amount>,
    pub io_bytes: Option<Amount>,
    pub offset: Amount,
    pub offset_increment: Amount,
    pub depth_low: Option<u32>,
    pub jobs: u32,
    pub new_group: bool,
    pub group_reporting: bool,
    pub seed: Option<u64>,
    pub checks: Checks,
    pub unlink: bool,
    pub cpus_split: bool,
    pub shown: Shown,
    /// File that gets every request.
    pub iolog: Option<PathBuf>,
    /// File whose requests are done again.
    pub replay: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            job: Job { random_percent: 100, ..Job::new("", Vec::new()) },
            units: Units::default(),
            description: None,
            filename: Vec::new(),
            directory: Vec::new(),
            filename_format: None,
            files: 1,
            uring: Uring::default(),
            random: false,
            size: None,
            io_bytes: None,
            offset: Amount::Bytes(0),
            offset_increment: Amount::Bytes(0),
            depth_low: None,
            jobs: 1,
            new_group: false,
            group_reporting: false,
            seed: None,
            checks: Checks::default(),
            unlink: false,
            cpus_split: false,
            shown: Shown::default(),
            iolog: None,
            replay: None,
        }
    }
}
