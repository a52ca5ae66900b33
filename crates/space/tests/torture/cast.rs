//! Who takes part in a round and where it happens: everything that follows from the seed and the round's number, so
//! that each process works it out for itself.

use std::path::{Path, PathBuf};

use fastrand::Rng;
use forebay_space::{Horizon, TierKind};

/// The smallest there is; a segment is one of them.
pub const GRANULE_BYTES: u64 = 256 << 10;
/// Granules that a rank leaves when it fills its part of the quota: for the segment it wrote to before, and for one
/// that is prepared ahead.
pub const LEFT: u64 = 2;

/// The numbers of a seed and a stream of it: the same on every machine.
pub fn numbers(seed: u64, stream: u64) -> Rng {
    Rng::with_seed(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// True so many times of a hundred.
pub fn percent(random: &mut Rng, percent: u64) -> bool {
    random.u64(..100) < percent
}

fn pick<T: Clone>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())].clone()
}

/// The cast of one round.
#[derive(Debug)]
pub struct Cast {
    pub seed: u64,
    pub round: u64,
    /// Folder in memory: spaces, shared state, lower pools.
    pub memory: PathBuf,
    /// Folder on a disk: lower pools, a first pool in a file, what the round notes.
    pub scratch: PathBuf,
    pub writers: u64,
    /// Sizes of the reader groups.
    groups: Vec<u64>,
    /// Ordinary versions, before the one that fills the pool.
    pub versions: u64,
    /// Granules of the quota: few, so that all of them are used again and again.
    pub granules: u64,
    /// Tier of the first pool.
    pub first: TierKind,
    /// Tiers of the lower pools, None: by detection, and the granules of each.
    pub lower: Vec<(Option<TierKind>, u64)>,
    pub horizon: Horizon,
    /// Whether writers gather small objects.
    pub gathers: bool,
    /// Readers take up to so long for a step, so that segments are moved before they are released.
    pub pause_us: u64,
    /// Observers that come and go.
    pub observers: u64,
    /// Whether an observer stays from the first version to the end, so that no cleaner may remove the space.
    pub has_keeper: bool,
}

impl Cast {
    pub fn new(seed: u64, round: u64, memory: &Path, scratch: &Path) -> Cast {
        let random = &mut numbers(seed, round);
        let pools = pick(random, &[0, 0, 1, 1, 2]);
        let horizon =
            pick(random, &[Horizon::None, Horizon::None, Horizon::None, Horizon::Epoch, Horizon::Write]);
        let writers = random.u64(1..=3);
        Cast {
            seed,
            round,
            memory: memory.to_path_buf(),
            scratch: scratch.to_path_buf(),
            writers,
            groups: pick(random, &[vec![1], vec![2], vec![1, 1]]),
            versions: random.u64(6..26),
            granules: if pools > 0 { writers * pick(random, &[3, 4, 5, 8]) } else { 32 },
            first: if percent(random, 20) { TierKind::File } else { TierKind::Dram },
            lower: (0..pools)
                .map(|_| {
                    (
                        pick(random, &[None, Some(TierKind::File), Some(TierKind::Dram)]),
                        pick(random, &[6, 12, 32]),
                    )
                })
                .collect(),
            horizon,
            gathers: percent(random, 20) && horizon != Horizon::Write,
            pause_us: if pools > 0 && percent(random, 60) { 2000 } else { 0 },
            observers: pick(random, &[0, 0, 0, 1, 2]),
            has_keeper: percent(random, 35),
        }
    }

    /// The space, by its path.
    pub fn name(&self) -> String {
        self.space_dir().join("tortured").display().to_string()
    }

    /// Folder of short names and of shared state.
    pub fn root(&self) -> PathBuf {
        self.memory.join("root")
    }

    /// Folder of the space.
    pub fn space_dir(&self) -> PathBuf {
        if self.first.is_memory() {
            self.root()
        } else {
            self.scratch.join("first")
        }
    }

    /// Folders of the lower pools.
    pub fn lower_dirs(&self) -> Vec<PathBuf> {
        let dirs = self.lower.iter().zip(["lower-1", "lower-2"]);
        dirs.map(|((tier, _), name)| {
            let is_memory = tier.is_some_and(TierKind::is_memory);
            if is_memory {
                self.memory.join(name)
            } else {
                self.scratch.join(name)
            }
        })
        .collect()
    }

    /// Whether the space has a lower tier.
    pub fn spills(&self) -> bool {
        !self.lower.is_empty()
    }

    /// Reader groups by name, with their sizes.
    pub fn groups(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.groups.iter().enumerate().map(|(i, size)| (format!("readers-{i}"), *size))
    }

    /// Reader ranks of all groups.
    pub fn readers(&self) -> u64 {
        self.groups.iter().sum()
    }

    /// Group, rank and size of the group of a reader, counted over all groups.
    pub fn reader(&self, reader: u64) -> (String, u64, u64) {
        let mut rank = reader;
        for (name, size) in self.groups() {
            if rank < size {
                return (name, rank, size);
            }
            rank -= size;
        }
        panic!("there is no reader {reader}");
    }

    /// Elements that each rank puts in a version: from one to half a segment.
    pub fn elements(&self, version: u64) -> u64 {
        let random = &mut numbers(self.seed ^ version << 20, self.round);
        let bits = random.u64(..15);
        1 + random.u64(..1 << bits)
    }
}
