//! Where a process of a round dies: at a place in its own code, or at one that its threads pass in the pools and
//! directories, which a thread of its own watches from outside. Then it waits for a few nanoseconds to milliseconds and
//! kills itself with SIGKILL.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_log::format::{RecordDf, SegmentDf, Superblock, HEADER_BYTES};
use forebay_tier::{Access, Device, TierKind};

use crate::cast::{Cast, GRANULE_BYTES};

/// A place where a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Never,
    // In the code of the role.
    Open,
    BeginStep,
    Inside,
    EndStep,
    Close,
    // A segment that moves to a lower pool.
    /// Its records are being copied; the copy has no header.
    Copying,
    /// The copy has its header; the control segment is about to name it.
    Copied,
    /// The header of the old place is wiped; its granules are about to be freed.
    Left,
    // The removal of a space.
    /// Its directory has another name.
    Renamed,
    /// A lower pool is gone.
    Unlinked,
}

use Place::*;

const ALL: [Place; 11] =
    [Never, Open, BeginStep, Inside, EndStep, Close, Copying, Copied, Left, Renamed, Unlinked];
/// Places of writers, readers, observers, drains and cleaners, and those of the mover of a writer.
pub const STEPS: [Place; 5] = [Open, BeginStep, Inside, EndStep, Close];
pub const MOVES: [Place; 3] = [Copying, Copied, Left];
pub const LOOKS: [Place; 2] = [Open, Inside];
pub const DRAINS: [Place; 4] = [Open, Copying, Copied, Left];
pub const CLEANS: [Place; 3] = [Open, Renamed, Unlinked];

/// The death of one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub place: Place,
    /// Step of this life at which it counts.
    pub step: u64,
    pub delay_ns: u64,
}

impl Death {
    pub const NEVER: Death = Death { place: Never, step: 0, delay_ns: 0 };

    /// As three numbers for a child's environment.
    pub fn words(self) -> [u64; 3] {
        let index = ALL.iter().position(|place| *place == self.place).expect("every place is listed");
        [index as u64, self.step, self.delay_ns]
    }

    pub fn of_words(words: &[u64]) -> Death {
        Death { place: ALL[words[0] as usize], step: words[1], delay_ns: words[2] }
    }

    /// Called at every place of a role's code; at the right one the end begins.
    pub fn at(self, place: Place, step: u64) {
        if self.place != place || (step != self.step && !matches!(place, Open | Close)) {
            return;
        }
        let end = Instant::now() + Duration::from_nanos(self.delay_ns);
        std::thread::spawn(move || kill_at(end));
    }

    /// Watches for a death at a place of moving; `rank`: of the lane whose segments count, None: any.
    pub fn watch_moves(self, cast: &Cast, rank: Option<u64>) {
        if MOVES.contains(&self.place) {
            let (name, lower) = (cast.name(), cast.lower_dirs());
            std::thread::spawn(move || {
                if let Some(pools) = Watched::open(Path::new(&name), &lower) {
                    pools.wait(self.place, rank.map(|rank| rank as u32));
                    kill_at(Instant::now() + Duration::from_nanos(self.delay_ns));
                }
            });
        }
    }

    /// Watches for a death at a place of removing.
    pub fn watch_removal(self, cast: &Cast) {
        let dir = PathBuf::from(cast.name());
        let pools: Vec<PathBuf> = cast.lower_dirs().iter().flat_map(|dir| pools_in(dir)).collect();
        if ![Renamed, Unlinked].contains(&self.place) || !dir.exists() {
            return;
        }
        std::thread::spawn(move || {
            let comes = || match self.place {
                Renamed => !dir.exists(),
                _ => pools.iter().any(|pool| !pool.exists()),
            };
            while !comes() {
                std::thread::yield_now();
            }
            kill_at(Instant::now() + Duration::from_nanos(self.delay_ns));
        });
    }
}

fn kill_at(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// The pool files of a directory.
pub fn pools_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "pool")).collect()
}

/// The pools of a space, looked at past it: through mappings of their files.
struct Watched {
    first: Pool,
    lower: Vec<Pool>,
}

struct Pool {
    device: Arc<dyn Device>,
    granules: u64,
}

impl Pool {
    fn open(path: &Path) -> Option<Pool> {
        let device = forebay_tier::open(TierKind::File, path, Access::Read).ok()?;
        let superblock = Superblock::decode(device.bytes(0..HEADER_BYTES)).ok()?;
        Some(Pool { device, granules: superblock.capacity_bytes / GRANULE_BYTES })
    }

    fn word(&self, granule: u64, offset: usize) -> u64 {
        self.device.load_word(granule * GRANULE_BYTES + offset as u64)
    }

    /// Whether a segment header stands at the granule.
    fn is_segment(&self, granule: u64) -> bool {
        self.word(granule, 0) != 0
    }

    /// The rank of the first record at the granule: the upper half of the word with the length of its meta part.
    fn record_rank(&self, granule: u64) -> u32 {
        (self.word(granule, HEADER_BYTES as usize + offset_of!(RecordDf, meta_bytes)) >> 32) as u32
    }

    /// Lane and number of the segment at the granule. The rank stands in the lower half of the first word.
    fn segment(&self, granule: u64) -> (u64, u64) {
        (self.word(granule, offset_of!(SegmentDf, rank)), self.word(granule, offset_of!(SegmentDf, sequence)))
    }
}

impl Watched {
    /// Of the space in `dir`, if it is there.
    fn open(dir: &Path, lower: &[PathBuf]) -> Option<Watched> {
        let lower: Vec<PathBuf> = lower.iter().flat_map(|dir| pools_in(dir)).collect();
        let lower = lower.iter().map(|path| Pool::open(path)).collect::<Option<_>>()?;
        Some(Watched { first: Pool::open(&dir.join("pool"))?, lower })
    }

    /// Returns when a move comes to the place.
    fn wait(&self, place: Place, rank: Option<u32>) {
        let granules: Vec<(&Pool, u64)> = self
            .lower
            .iter()
            .flat_map(|pool| (1..pool.granules).map(move |granule| (pool, granule)))
            .collect();
        // Word of the header, word of the first record.
        let look = |(pool, granule): (&Pool, u64)| {
            (pool.word(granule, 0), pool.word(granule, HEADER_BYTES as usize))
        };
        let mut seen: Vec<(u64, u64)> = granules.iter().map(|granule| look(*granule)).collect();
        loop {
            for (at, before) in granules.iter().zip(&mut seen) {
                let now = look(*at);
                let was = std::mem::replace(before, now);
                let (copying, copied) =
                    (now.0 == 0 && was.0 == 0 && now.1 != was.1, now.0 != 0 && was.0 == 0);
                let found = match place {
                    Copying => copying.then(|| at.0.record_rank(at.1)),
                    _ => copied.then(|| at.0.segment(at.1).0 as u32),
                };
                let is_its = found.is_some_and(|found| rank.is_none_or(|rank| rank == found));
                if is_its && (place != Left || self.wait_left(at.0.segment(at.1))) {
                    return;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Waits until the old place of a segment is wiped. False: it has none.
    fn wait_left(&self, segment: (u64, u64)) -> bool {
        let first = &self.first;
        let is_it = |granule: &u64| first.is_segment(*granule) && first.segment(*granule) == segment;
        let Some(old) = (1..first.granules).find(is_it) else { return false };
        while is_it(&old) {
            std::thread::yield_now();
        }
        true
    }
}
