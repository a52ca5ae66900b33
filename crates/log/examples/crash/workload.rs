//! The workloads: what kind of medium, which operations, and what goes wrong meanwhile.

use forebay_log::format::{PoolPart, Superblock};
use forebay_tier::adapter::sim::Medium;
use forebay_tier::{Horizon, TierKind};

/// One kind of life. Chances are in percent.
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub medium: Medium,
    pub horizon: Horizon,
    pub ranks: usize,
    /// Operations of one life.
    pub operations: u64,
    pub pieces_max: u64,
    pub payload_bytes: (u64, u64),
    pub aborts: u64,
    pub reserves: u64,
    /// A closed segment is copied to another place.
    pub moves: u64,
    /// A lane that ends cleanly.
    pub finishes: u64,
    /// Readers stay at most so many versions behind.
    pub keeps: u64,
    /// A rank runs at most so many versions ahead of the slowest.
    pub ahead: u64,
    /// Granules of the pool where lanes are written, of 4 KiB.
    pub granules: u64,
    /// Granules of the lower pool behind it, 0: there is none. Segments then move between the two.
    pub lower: u64,
    /// Granules of an ordinary segment.
    pub segment_granules: u64,
    /// Incarnations that follow each other while the memory stays as it is.
    pub lives: u64,
    /// Producers are killed at a fence.
    pub kills: bool,
    /// A flush fails.
    pub flushes_fail: bool,
    /// Segments are refused now and then.
    pub refuses: bool,
    /// Small pieces are gathered to so many bytes.
    pub batch: Option<usize>,
}

const GRANULE: u64 = 4096;
const SMALL: Workload = Workload {
    name: "small",
    medium: Medium::Lines,
    horizon: Horizon::Epoch,
    ranks: 3,
    operations: 120,
    pieces_max: 2,
    payload_bytes: (0, 60),
    aborts: 2,
    reserves: 20,
    moves: 0,
    finishes: 50,
    keeps: 2,
    ahead: 2,
    granules: 24,
    lower: 0,
    segment_granules: 2,
    lives: 1,
    kills: false,
    flushes_fail: false,
    refuses: false,
    batch: None,
};
const BLOCKS: Medium = Medium::Blocks { torn_bytes: 512 };
const PAGES: Medium = Medium::Blocks { torn_bytes: 4096 };
/// Granules of the first of two pools.
const FIRST: u64 = 24;
const BOTH: Medium = Medium::Both { lines_bytes: FIRST * GRANULE, torn_bytes: 512 };
const BOTH_PAGES: Medium = Medium::Both { lines_bytes: FIRST * GRANULE, torn_bytes: 4096 };

/// Lanes on devices that are written by blocks.
fn on_blocks(mixed: &Workload) -> Vec<Workload> {
    vec![
        Workload { name: "blocks, small", medium: BLOCKS, ..SMALL },
        Workload { name: "blocks", medium: BLOCKS, granules: 44, ..mixed.clone() },
        Workload { name: "pages", medium: PAGES, granules: 44, ..mixed.clone() },
        Workload {
            name: "blocks, large",
            medium: BLOCKS,
            payload_bytes: (3000, 9000),
            granules: 60,
            aborts: 10,
            ..mixed.clone()
        },
        Workload { name: "blocks, store by store", medium: BLOCKS, horizon: Horizon::Write, ..mixed.clone() },
        Workload {
            name: "blocks, killed",
            medium: BLOCKS,
            lives: 4,
            kills: true,
            operations: 60,
            granules: 34,
            ..mixed.clone()
        },
        Workload {
            name: "pages, failed flush",
            medium: PAGES,
            flushes_fail: true,
            granules: 44,
            ..mixed.clone()
        },
    ]
}

/// Lanes that gather small pieces.
fn gathering(mixed: &Workload) -> [Workload; 3] {
    [
        Workload { name: "batches", batch: Some(4096), aborts: 20, ..mixed.clone() },
        Workload {
            name: "blocks, batches",
            medium: BLOCKS,
            batch: Some(4096),
            granules: 44,
            ..mixed.clone()
        },
        Workload {
            name: "batches, killed",
            batch: Some(4096),
            aborts: 10,
            lives: 4,
            kills: true,
            operations: 60,
            granules: 34,
            ..mixed.clone()
        },
    ]
}

/// All of them.
pub fn workloads() -> Vec<Workload> {
    let mixed = Workload { name: "mixed", pieces_max: 4, payload_bytes: (0, 2500), granules: 40, ..SMALL };
    let spill = Workload {
        name: "spill",
        medium: BOTH,
        moves: 25,
        keeps: 6,
        granules: FIRST,
        lower: 40,
        ..mixed.clone()
    };
    let mut all = vec![
        SMALL,
        mixed.clone(),
        Workload { name: "large", payload_bytes: (3000, 9000), granules: 60, keeps: 1, ..mixed.clone() },
        Workload { name: "aborts", aborts: 20, reserves: 50, ..mixed.clone() },
        Workload { name: "store by store", horizon: Horizon::Write, ..mixed.clone() },
        Workload { name: "reuse", granules: 22, segment_granules: 1, keeps: 1, ahead: 1, ..mixed.clone() },
        Workload { name: "refused", refuses: true, ..mixed.clone() },
        Workload { name: "moves", moves: 15, keeps: 4, granules: 48, ..mixed.clone() },
        Workload {
            name: "blocks, moves",
            medium: BLOCKS,
            moves: 15,
            keeps: 4,
            granules: 52,
            ..mixed.clone()
        },
        Workload {
            name: "moves, killed",
            moves: 15,
            keeps: 4,
            lives: 3,
            kills: true,
            operations: 60,
            granules: 44,
            ..mixed.clone()
        },
        spill.clone(),
        Workload { name: "spill, pages", medium: BOTH_PAGES, ..spill.clone() },
        Workload { name: "spill, killed", lives: 4, kills: true, operations: 60, ..spill.clone() },
        Workload { name: "spill, failed flush", flushes_fail: true, ..spill.clone() },
        Workload { name: "spill, store by store", horizon: Horizon::Write, ..spill },
        Workload { name: "restarts", lives: 3, operations: 60, granules: 30, ..mixed.clone() },
        Workload { name: "killed", lives: 4, kills: true, operations: 60, granules: 30, ..mixed.clone() },
        Workload { name: "killed, small", lives: 4, kills: true, operations: 60, ..SMALL },
    ];
    all.extend(on_blocks(&mixed));
    all.extend(gathering(&mixed));
    all
}

impl Workload {
    /// The superblock of its pools.
    pub fn superblock(&self) -> Superblock {
        Superblock {
            part: if self.lower == 0 { PoolPart::Only } else { PoolPart::First },
            tier: if matches!(self.medium, Medium::Blocks { .. }) { TierKind::File } else { TierKind::Pmem },
            horizon: self.horizon,
            checksum: true,
            retention: (0, 0),
            uuid: *b"crash simulation",
            boot_id: [1; 16],
            capacity_bytes: self.capacity_bytes(),
            granule_bytes: GRANULE,
            segment_bytes: self.segment_granules * GRANULE,
            created_unix_ns: 0,
            host: String::new(),
            run: String::new(),
        }
    }

    /// Of all pools: as a space with lower tiers, recovery sees them behind one another.
    fn capacity_bytes(&self) -> u64 {
        (self.granules + self.lower) * GRANULE
    }

    /// Pools without a segment.
    pub fn empty_pool(&self) -> Vec<u8> {
        let mut bytes = self.superblock().encode();
        if self.lower > 0 {
            bytes.resize((self.granules * GRANULE) as usize, 0);
            let lower = Superblock { part: PoolPart::Lower, tier: TierKind::File, ..self.superblock() };
            bytes.extend(lower.encode());
        }
        bytes.resize(self.capacity_bytes() as usize, 0);
        bytes
    }
}

/// Seeded numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
