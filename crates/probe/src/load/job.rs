//! What one thread of a load does: which files, in which order, how much, how fast, and what it writes.
//!
//! A job is one thread; several that do the same are clones of it ([`Job::clones`]). Everything is public and plain,
//! [`Job::new`] gives sensible values, and [`Job::check`] says what makes no sense before anything is touched.
//! Sizes are bytes, times nanoseconds, both in the name where it is not obvious.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_tier::{Error, Kind, Result};

use super::report::{Made, Request};

/// Directions that bytes go, as indices of the pairs in this module.
pub const READ: usize = 0;
/// See [`READ`].
pub const WRITE: usize = 1;

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One `pread` or `pwrite` at a time.
    Sync,
    /// io_uring with up to [`Job::depth`] requests under way.
    IoUring(Uring),
    /// Copies from and to a mapping of the file; a flush is an msync.
    Mmap,
    /// As `Mmap`, but each write is persistent when it is done: cache lines on persistent memory, msync elsewhere.
    Dax,
}

/// What a ring registers with the kernel once instead of passing it with every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uring {
    /// Buffers are pinned once (needs lockable memory).
    pub fixed_buffers: bool,
    /// Files are looked up once.
    pub fixed_files: bool,
    /// Completions are polled from the device (direct only, where the driver can).
    pub poll: bool,
    /// A kernel thread takes the submissions.
    pub kernel_thread: bool,
}

/// How the size of the next block is chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Blocks {
    /// Always the same.
    One(u32),
    /// Evenly from the smallest to the largest, in multiples of the smallest.
    Range(u32, u32),
    /// Sizes with their weights in per cent; the weights add up to 100.
    Split(Vec<(u32, u32)>),
}

impl Blocks {
    /// The smallest block.
    pub fn min(&self) -> u32 {
        match self {
            Blocks::One(bytes) => *bytes,
            Blocks::Range(min, _) => *min,
            Blocks::Split(parts) => parts.iter().map(|part| part.0).min().unwrap_or(0),
        }
    }

    /// The largest block.
    pub fn max(&self) -> u32 {
        match self {
            Blocks::One(bytes) => *bytes,
            Blocks::Range(_, max) => *max,
            Blocks::Split(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
        }
    }
}

/// Which offsets random blocks prefer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// None.
    Even,
    /// Zipf with this exponent (> 0, not 1): few blocks get most requests.
    Zipf(f64),
    /// A normal distribution around the middle; the deviation in per cent of the range.
    Normal(f64),
}

/// Which file is next when a job has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOrder {
    /// One request each, in turn.
    RoundRobin,
    /// Any.
    Random,
    /// One to its end, then the next.
    Sequential,
}

/// What the bytes are that a job writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// The bytes themselves.
    pub bytes: Bytes,
    /// Per cent of every chunk that a compressing device could squeeze out.
    pub compressible_percent: u32,
    /// Bytes of such a chunk; 0: the block.
    pub compress_chunk: u32,
    /// Per cent of the blocks that are the same as an earlier one.
    pub duplicate_percent: u32,
    /// New bytes for every write.
    pub refill: bool,
    /// Offset and time are strewn into every write, so that no two blocks are the same. Cheaper than `refill`.
    pub scramble: bool,
}

/// See [`Content`].
#[derive(Clone, Debug, PartialEq)]
pub enum Bytes {
    /// Random.
    Random,
    /// Zero.
    Zero,
    /// These, again and again.
    Pattern(Vec<u8>),
}

impl Default for Content {
    fn default() -> Content {
        Content {
            bytes: Bytes::Random,
            compressible_percent: 0,
            compress_chunk: 512,
            duplicate_percent: 0,
            refill: false,
            scramble: true,
        }
    }
}

/// How written bytes are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    /// What is compared.
    pub method: Method,
    /// After a pass of writes its blocks are read back. Off: written so that a later reading job can check.
    pub after_writes: bool,
    /// The first block that is wrong ends the job.
    pub fatal: bool,
}

/// See [`Verify`].
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// A header in each block holds its place and the CRC-32C of the rest.
    Crc32c,
    /// Every block is this pattern, again and again.
    Pattern(Vec<u8>),
}

/// O_SYNC and its relatives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteThrough {
    /// Neither.
    #[default]
    No,
    /// O_DSYNC: data is durable when a write returns.
    Data,
    /// O_SYNC: metadata too.
    All,
}

/// How blocks of a new file are had before it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocate {
    /// When they are written.
    No,
    /// fallocate, as far as the file system can.
    #[default]
    Native,
    /// fallocate without changing the file's size.
    KeepSize,
    /// Only the size is set.
    Truncate,
}

/// Which files go away at the end, also when the job is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remove {
    /// None.
    #[default]
    Never,
    /// Those that this job made.
    Made,
    /// All that it used.
    All,
}

/// A limit on one direction; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// Requests a second.
    pub ios: u64,
}

/// Pauses between requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Think {
    /// How long.
    pub ns: u64,
    /// Of this, how long the processor is kept busy.
    pub spin_ns: u64,
    /// After how many requests; 0 counts as 1.
    pub every: u64,
}

/// Which latencies are taken; each costs a little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// From making a request to handing it over.
    pub submission: bool,
    /// From handing over to completion.
    pub completion: bool,
    /// Both together.
    pub total: bool,
}

/// See the file's head.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// For people.
    pub name: String,
    /// Regular files (made when missing) or block devices.
    pub files: Vec<PathBuf>,
    /// See [`FileOrder`].
    pub file_order: FileOrder,
    /// See [`Engine`].
    pub engine: Engine,
    /// Past the page cache.
    pub direct: bool,
    /// See [`WriteThrough`].
    pub write_through: WriteThrough,
    /// Whether the job reads and whether it writes.
    pub reads: bool,
    /// See `reads`.
    pub writes: bool,
    /// Per cent of the requests that are reads, when it does both.
    pub read_percent: u32,
    /// Per cent of the requests that go anywhere; the others follow the one before. 0: sequential, 100: random.
    pub random_percent: u32,
    /// Of reads and of writes.
    pub blocks: [Blocks; 2],
    /// Random offsets are multiples of this; 0: of the smallest block.
    pub align: u64,
    /// Where the job's part of each file begins.
    pub offset: u64,
    /// Bytes of the job's part of each file; 0: to the end of the file that is there.
    pub size: u64,
    /// A file is made at least this long; 0: as long as the job needs.
    pub file_bytes: u64,
    /// Bytes to move in all; 0: its part of all files once.
    pub io_bytes: u64,
    /// Requests to make at most; 0: no limit.
    pub ios_max: u64,
    /// How often it does all of that.
    pub loops: u32,
    /// Requests under way at once (engine io_uring; the others have one).
    pub depth: u32,
    /// Once full, the queue is refilled when no more than this many are under way; 0: `depth` - 1 (at once).
    pub depth_low: u32,
    /// Requests handed over together.
    pub batch: u32,
    /// Completions waited for at least, when the queue is full; 0: looked for, not waited for.
    pub complete_min: u32,
    /// Completions taken at most at once; 0: `complete_min`.
    pub complete_max: u32,
    /// fsync after that many writes; 0: never.
    pub fsync_every: u32,
    /// fdatasync after that many writes; 0: never.
    pub fdatasync_every: u32,
    /// fsync when the job has done everything; counted in its runtime.
    pub fsync_at_end: bool,
    /// fsync when a file is closed; not counted.
    pub fsync_on_close: bool,
    /// Ends then; 0: no limit.
    pub limit_ns: u64,
    /// Goes on until then, however often it has been through its files.
    pub time_based: bool,
    /// Runs so long before anything is counted.
    pub ramp_ns: u64,
    /// Waits so long before it begins.
    pub delay_ns: u64,
    /// Of reads and of writes.
    pub rate: [Rate; 2],
    /// See [`Think`].
    pub think: Think,
    /// Two jobs with one seed do the same in the same order.
    pub seed: u64,
    /// Every pass over the files repeats the order of the first.
    pub repeat: bool,
    /// A random pass meets every block exactly once.
    pub random_map: bool,
    /// See [`Distribution`]. Other than `Even`, blocks repeat.
    pub distribution: Distribution,
    /// See [`Content`].
    pub content: Content,
    /// See [`Verify`].
    pub verify: Option<Verify>,
    /// See [`Allocate`].
    pub allocate: Allocate,
    /// A missing or short file is written in full before the job starts, also when the job only writes.
    pub overwrite: bool,
    /// Missing files are made.
    pub create: bool,
    /// Files are prepared, then nothing is run.
    pub create_only: bool,
    /// Cached pages of the files are dropped before every pass.
    pub invalidate: bool,
    /// The kernel is told whether reads will be random or sequential.
    pub advise: bool,
    /// The files are read into the cache first.
    pub pre_read: bool,
    /// See [`Remove`].
    pub remove: Remove,
    /// Processors it may run on; empty: any.
    pub cpus: Vec<usize>,
    /// Begins when all jobs before it have ended.
    pub after_previous: bool,
    /// When it ends, all others end.
    pub ends_all: bool,
    /// See [`Measure`].
    pub measure: Measure,
    /// Every request is remembered in the report. Takes memory for each.
    pub record: bool,
    /// These requests in this order, as often as `loops` says or until the time is over, instead of an order of its
    /// own: what `blocks`, `random_percent` and the like say of it counts for nothing then.
    pub replay: Option<Arc<[Request]>>,
}

impl Job {
    /// Sequential reads of 4 KiB through the page cache, one at a time, once over `files`.
    pub fn new(name: impl Into<String>, files: Vec<PathBuf>) -> Job {
        Job {
            name: name.into(),
            files,
            file_order: FileOrder::RoundRobin,
            engine: Engine::Sync,
            direct: false,
            write_through: WriteThrough::No,
            reads: true,
            writes: false,
            read_percent: 50,
            random_percent: 0,
            blocks: [Blocks::One(4096), Blocks::One(4096)],
            align: 0,
            offset: 0,
            size: 0,
            file_bytes: 0,
            io_bytes: 0,
            ios_max: 0,
            loops: 1,
            depth: 1,
            depth_low: 0,
            batch: 1,
            complete_min: 1,
            complete_max: 0,
            fsync_every: 0,
            fdatasync_every: 0,
            fsync_at_end: false,
            fsync_on_close: false,
            limit_ns: 0,
            time_based: false,
            ramp_ns: 0,
            delay_ns: 0,
            rate: [Rate::default(); 2],
            think: Think::default(),
            seed: 1,
            repeat: true,
            random_map: true,
            distribution: Distribution::Even,
            content: Content::default(),
            verify: None,
            allocate: Allocate::default(),
            overwrite: false,
            create: true,
            create_only: false,
            invalidate: true,
            advise: true,
            pre_read: false,
            remove: Remove::Never,
            cpus: Vec::new(),
            after_previous: false,
            ends_all: false,
            measure: Measure { submission: true, completion: true, total: true },
            record: false,
            replay: None,
        }
    }

    /// `count` jobs like this one on the same files, each with its own order; only the first may wait for those before.
    pub fn clones(&self, count: u32) -> Vec<Job> {
        let clone = |number: u32| {
            let seed = self.seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9));
            Job { seed, after_previous: self.after_previous && number == 0, ..self.clone() }
        };
        (0..count).map(clone).collect()
    }

    /// The largest block that it can ask for.
    pub fn block_max(&self) -> u32 {
        let of = |on: bool, which: usize| if on { self.blocks[which].max() } else { 0 };
        of(self.reads, READ).max(of(self.writes, WRITE))
    }

    /// The smallest one.
    pub fn block_min(&self) -> u32 {
        let of = |on: bool, which: usize| if on { self.blocks[which].min() } else { u32::MAX };
        of(self.reads, READ).min(of(self.writes, WRITE))
    }

    /// Whether any request may go anywhere.
    pub fn is_random(&self) -> bool {
        self.random_percent > 0
    }

    /// Says what makes no sense, before a file is touched.
    ///
    /// # Errors
    /// `Usage`.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(Kind::Usage, what).with("job", &self.name));
        if self.files.is_empty() {
            return wrong("a job needs a file".into());
        }
        if !self.reads && !self.writes {
            return wrong("a job reads, writes or does both".into());
        }
        if self.block_min() == 0 {
            return wrong("a block has at least one byte".into());
        }
        for blocks in &self.blocks {
            let total: u32 = match blocks {
                Blocks::Range(min, max) if min > max => return wrong(format!("blocks from {min} to {max}")),
                Blocks::Split(parts) => parts.iter().map(|part| part.1).sum(),
                _ => 100,
            };
            if total != 100 {
                return wrong(format!("the weights of the blocks add up to {total}, not 100"));
            }
        }
        if self.depth == 0 || self.depth > 4096 {
            return wrong(format!("{} requests under way; possible are 1 to 4096", self.depth));
        }
        if self.depth_low > self.depth || self.complete_min > self.depth {
            return wrong(format!("more requests to wait for than are under way ({})", self.depth));
        }
        if self.read_percent > 100 || self.random_percent > 100 || self.content.compressible_percent > 100 {
            return wrong("a share is at most 100 per cent".into());
        }
        if self.time_based && self.limit_ns == 0 {
            return wrong("a job that goes on until its time is over needs a time".into());
        }
        if self.direct && matches!(self.engine, Engine::Mmap | Engine::Dax) {
            return wrong("a mapping cannot be direct: it is the page cache or the medium itself".into());
        }
        self.check_replay()?;
        self.check_verify()
    }

    /// Requests that are given have to fit the job that makes them.
    fn check_replay(&self) -> Result<()> {
        let Some(requests) = &self.replay else { return Ok(()) };
        let wrong = |what: &str| Err(Error::new(Kind::Usage, what.to_string()).with("job", &self.name));
        if requests.is_empty() {
            return wrong("there is nothing to do again");
        }
        if self.verify.is_some() || self.offset != 0 {
            return wrong("requests that are done again have their own places, and are not verified");
        }
        let fits = |request: &Request| {
            let moves = match request.made {
                Made::Read => self.reads && request.len <= self.blocks[READ].max(),
                Made::Write => self.writes && request.len <= self.blocks[WRITE].max(),
                Made::Sync | Made::DataSync => return true,
            };
            moves && request.len > 0 && request.offset + u64::from(request.len) <= self.size
        };
        match requests.iter().find(|r| r.file as usize >= self.files.len() || !fits(r)) {
            Some(request) => wrong(&format!("{request:?} does not fit the job that is to do it again")),
            None => Ok(()),
        }
    }

    fn check_verify(&self) -> Result<()> {
        let Some(verify) = &self.verify else { return Ok(()) };
        let wrong = |what: &str| Err(Error::new(Kind::Usage, what.to_string()).with("job", &self.name));
        let ranges = self.writes && self.blocks[WRITE].min() != self.blocks[WRITE].max();
        let repeats = self.is_random() && (!self.random_map || self.distribution != Distribution::Even);
        if ranges && repeats {
            return wrong("blocks of several sizes that may overlap cannot be verified");
        }
        if verify.method == Method::Crc32c && self.block_min() < 64 {
            return wrong("blocks with a checksum have at least 64 bytes");
        }
        if matches!(&verify.method, Method::Pattern(pattern) if pattern.is_empty()) {
            return wrong("a pattern to verify has at least one byte");
        }
        Ok(())
    }
}
