//! What one job of a job file says, as far as it is said: the values of the options, before any file was looked at.

use forebay_perf::load::{
    Allocate, Blocks, Content, Distribution, Engine, FileOrder, Method, Rate, Think, Uring, WriteThrough,
};

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
    pub units: Units,
    pub description: Option<String>,
    pub filename: Vec<String>,
    pub directory: Vec<String>,
    pub filename_format: Option<String>,
    pub files: u32,
    pub file_order: FileOrder,
    pub engine: Engine,
    pub uring: Uring,
    pub reads: bool,
    pub writes: bool,
    pub random: bool,
    pub random_percent: u32,
    pub read_percent: u32,
    pub blocks: [Blocks; 2],
    pub align: u64,
    pub size: Option<Amount>,
    pub file_bytes: u64,
    pub io_bytes: Option<Amount>,
    pub ios_max: u64,
    pub offset: Amount,
    pub offset_increment: Amount,
    pub depth: u32,
    pub depth_low: Option<u32>,
    pub batch: u32,
    pub complete_min: u32,
    pub complete_max: u32,
    pub jobs: u32,
    pub after_previous: bool,
    pub new_group: bool,
    pub group_reporting: bool,
    pub ends_all: bool,
    pub direct: bool,
    pub write_through: WriteThrough,
    pub fsync: u32,
    pub fdatasync: u32,
    pub end_fsync: bool,
    pub fsync_on_close: bool,
    pub limit_ns: u64,
    pub time_based: bool,
    pub ramp_ns: u64,
    pub delay_ns: u64,
    pub loops: u32,
    pub rate: [Rate; 2],
    pub think: Think,
    pub seed: Option<u64>,
    pub repeat: bool,
    pub random_map: bool,
    pub distribution: Distribution,
    pub content: Content,
    pub checks: Checks,
    pub allocate: Allocate,
    pub overwrite: bool,
    pub create: bool,
    pub create_only: bool,
    pub invalidate: bool,
    pub advise: bool,
    pub pre_read: bool,
    pub unlink: bool,
    pub cpus: Vec<usize>,
    pub cpus_split: bool,
    pub measure: forebay_perf::load::Measure,
    pub shown: Shown,
    /// File that gets every request.
    pub iolog: Option<std::path::PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        let job = forebay_perf::load::Job::new("", Vec::new());
        Settings {
            units: Units::default(),
            description: None,
            filename: Vec::new(),
            directory: Vec::new(),
            filename_format: None,
            files: 1,
            file_order: FileOrder::RoundRobin,
            engine: Engine::Sync,
            uring: Uring::default(),
            reads: true,
            writes: false,
            random: false,
            random_percent: 100,
            read_percent: 50,
            blocks: job.blocks,
            align: 0,
            size: None,
            file_bytes: 0,
            io_bytes: None,
            ios_max: 0,
            offset: Amount::Bytes(0),
            offset_increment: Amount::Bytes(0),
            depth: 1,
            depth_low: None,
            batch: 1,
            complete_min: 1,
            complete_max: 0,
            jobs: 1,
            after_previous: false,
            new_group: false,
            group_reporting: false,
            ends_all: false,
            direct: false,
            write_through: WriteThrough::No,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            fsync_on_close: false,
            limit_ns: 0,
            time_based: false,
            ramp_ns: 0,
            delay_ns: 0,
            loops: 1,
            rate: [Rate::default(); 2],
            think: Think::default(),
            seed: None,
            repeat: true,
            random_map: true,
            distribution: Distribution::Even,
            content: Content::default(),
            checks: Checks::default(),
            allocate: Allocate::Native,
            overwrite: false,
            create: true,
            create_only: false,
            invalidate: true,
            advise: true,
            pre_read: false,
            unlink: false,
            cpus: Vec::new(),
            cpus_split: false,
            measure: job.measure,
            shown: Shown::default(),
            iolog: None,
        }
    }
}
