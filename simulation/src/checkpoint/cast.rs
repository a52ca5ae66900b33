//! A program that checkpoints, and what happens to it: everything that the seed decides beforehand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_checkpoint::Options;
use forebay_tier::simulation::Random;

use crate::danger::{Dangers, MEMORY};

/// No call waits longer for other ranks, in virtual time.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Levels, and the fewest ranks that they need.
const LEVELS: [(u32, &[&str]); 12] = [
    (1, &["file"]),
    (1, &["file,keep=1"]),
    (1, &["direct"]),
    (1, &["dram", "file"]),
    (1, &["dram,keep=2", "direct,keep=3"]),
    (1, &["file,incremental=3"]),
    (1, &["dram", "file,incremental=3,compress=zstd:1"]),
    (1, &["file,keep=1", "direct,every=2"]),
    (2, &["file+partner"]),
    (3, &["dram", "file+xor:3"]),
    (2, &["file,incremental=7,keep=1"]),
    (2, &["dram", "file,incremental=7,keep=1"]),
];

/// What a failing run is tried with less of, in this order, and the values that are tried.
pub const SMALLER: [(&str, &[u64]); 14] = [
    ("launch", &[1]),
    ("cuts", &[0, 1]),
    ("interrupts", &[0]),
    ("carers", &[0]),
    ("jumps", &[0]),
    ("faults", &[0]),
    ("stops", &[0, 1]),
    ("zombies", &[0]),
    ("kills", &[0, 1, 2]),
    ("levels", &[0, 1, 3]),
    ("ranks", &[1, 2]),
    ("stays", &[0]),
    ("elements", &[10, 1000]),
    ("steps", &[1, 2, 3, 4]),
];

/// What the seed decides beforehand.
#[derive(Clone, Debug)]
pub struct Cast {
    /// The run's folder.
    pub root: PathBuf,
    /// Processes that save together.
    pub ranks: u32,
    /// Steps that each life of the program goes to.
    pub steps: u64,
    /// Elements of 8 bytes that each rank protects.
    pub elements: u64,
    /// All but the first elements of a rank change every so many steps, and some more in later ranks; 0: in each.
    pub stays: u64,
    /// Which of [`LEVELS`].
    pub levels: usize,
    /// Of a hundred steps a rank waits until so many are carried down.
    pub waits: u32,
    /// Of a hundred ends of a life so many are followed by processes that look, drain and clean.
    pub carers: u32,
    /// Of a hundred deaths so many are followed by a new life while other ranks of the old one are there.
    pub zombies: u32,
    /// Ranks say which launch of the program they are of.
    pub says_launch: bool,
    /// What happens to the processes.
    pub dangers: Dangers,
}

impl Cast {
    /// The cast of a seed.
    pub fn new(seed: u64, root: &Path) -> Cast {
        let mut random = Random::new(seed, 29);
        let calm = random.percent(20);
        let mut cast = Cast {
            root: root.to_path_buf(),
            ranks: *random.pick(&[1, 1, 2, 2, 3, 4]),
            steps: 1 + random.below(7),
            elements: *random.pick(&[3, 100, 1000, 9000, 20_000]),
            stays: 0,
            levels: random.below(LEVELS.len() as u64) as usize,
            waits: *random.pick(&[0, 30, 100]),
            carers: *random.pick(&[0, 30, 70]),
            zombies: *random.pick(&[0, 0, 30]),
            says_launch: Random::new(seed, 37).percent(60),
            dangers: Dangers {
                kills: if calm { 0 } else { random.below(6) as u32 },
                cuts: if calm { 0 } else { *random.pick(&[0, 0, 1, 2]) },
                stops: if calm { 0 } else { *random.pick(&[0, 0, 1, 2]) },
                fault_per_million: if calm { 0 } else { *random.pick(&[0, 0, 0, 500, 5_000, 30_000]) },
                interrupt_per_million: *random.pick(&[0, 0, 10_000, 200_000]),
                switch_per_million: *random.pick(&[5_000, 30_000, 100_000, 300_000, 600_000]),
                jump_per_million: if calm { 0 } else { *random.pick(&[0, 0, 20, 300]) },
            },
        };
        cast.draw_what_stays(seed);
        cast.settle();
        cast
    }

    /// How much of the arrays changes from one step to the next, from numbers of its own: of few changes in many steps
    /// incremental ones come.
    fn draw_what_stays(&mut self, seed: u64) {
        let mut random = Random::new(seed, 43);
        if random.percent(50) {
            self.stays = 1 + random.below(5);
            self.elements = *random.pick(&[9000, 20_000, 40_000]);
            self.steps += random.below(20);
        }
    }

    /// Levels that the ranks are too few for are others.
    fn settle(&mut self) {
        if LEVELS[self.levels].0 > self.ranks {
            self.levels = 0;
        }
    }

    /// Changes what the seed has drawn, for a smaller run that still fails. Text: `KEY=NUMBER`.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let wrong =
            || format!("`{text}` is not KEY=NUMBER with one of the keys {}", SMALLER.map(|s| s.0).join(", "));
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let number: u64 = value.parse().map_err(|_| wrong())?;
        match key {
            "carers" => self.carers = number as u32,
            "elements" => self.elements = number.max(1),
            "launch" => self.says_launch = number > 0,
            "levels" => self.levels = number.min(LEVELS.len() as u64 - 1) as usize,
            "ranks" => self.ranks = number.max(1) as u32,
            "stays" => self.stays = number,
            "steps" => self.steps = number.max(1),
            "zombies" => self.zombies = number as u32,
            key if self.dangers.set(key, number) => {}
            _ => return Err(wrong()),
        }
        self.settle();
        Ok(())
    }

    /// Whether nothing happens to any process: then every call succeeds.
    pub fn is_calm(&self) -> bool {
        self.dangers.are_none()
    }

    /// Whether the first level is lost when the power is cut.
    pub fn is_first_memory(&self) -> bool {
        LEVELS[self.levels].1[0].starts_with("dram")
    }

    /// The checkpoint directory.
    pub fn base(&self) -> PathBuf {
        self.root.join("disk/ck")
    }

    /// Where levels of memory lie.
    pub fn memory_root(&self) -> PathBuf {
        self.root.join(MEMORY)
    }

    /// Options of a rank in a life of the program.
    pub fn options(&self, rank: u32, life: u32) -> Options {
        Options {
            levels: LEVELS[self.levels].1.iter().map(|level| (*level).to_owned()).collect(),
            rank,
            size: self.ranks,
            program: "simulated".into(),
            launch: if self.says_launch { format!("launch {life}") } else { String::new() },
            timeout: TIMEOUT,
            memory_root: Some(self.memory_root()),
            ..Options::default()
        }
    }
}
