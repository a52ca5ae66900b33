//! Who takes part in a round and where it happens: everything that follows from the seed and the round's number, so
//! that each process works it out for itself.

use std::path::{Path, PathBuf};

/// Quota of a round's space: few granules, so that all of them are used again and again.
pub const QUOTA_BYTES: u64 = 8 << 20;
/// The smallest there is; a segment is one of them.
pub const GRANULE_BYTES: u64 = 256 << 10;

/// A small generator (splitmix64): the same numbers for the same seed, whatever the machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The cast of one round.
pub struct Cast {
    pub seed: u64,
    pub round: u64,
    /// Folder of the round's space: nothing else is in it.
    pub root: PathBuf,
    pub writers: u64,
    /// Sizes of the reader groups.
    groups: Vec<u64>,
    /// Ordinary versions, before the one that fills the pool.
    pub versions: u64,
    /// Whether the space has a lower tier.
    pub spills: bool,
}

impl Cast {
    pub fn new(seed: u64, round: u64, root: &Path) -> Cast {
        let mut random = Random::new(seed, round);
        Cast {
            seed,
            round,
            root: root.to_path_buf(),
            writers: 1 + random.below(3),
            groups: [vec![1], vec![2], vec![1, 1]][random.below(3) as usize].clone(),
            versions: 6 + random.below(20),
            spills: random.percent(50),
        }
    }

    /// The space, by its path.
    pub fn name(&self) -> String {
        self.root.join("tortured").display().to_string()
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
        let mut random = Random::new(self.seed ^ version << 20, self.round);
        let bits = random.below(15);
        1 + random.below(1 << bits)
    }
}
