//! The page table of an array: a state word a tile, in two levels, so that what was never touched costs nothing.

use std::sync::atomic::AtomicU64;
use std::sync::OnceLock;

/// Words of one leaf: a page.
const LEAF_WORDS: usize = 512;

/// See the file's head.
pub(crate) struct Table {
    leaves: Vec<OnceLock<Box<[AtomicU64]>>>,
    tiles: u64,
}

impl Table {
    pub(crate) fn new(tiles: u64) -> Table {
        let leaves = tiles.div_ceil(LEAF_WORDS as u64);
        Table { leaves: (0..leaves).map(|_| OnceLock::new()).collect(), tiles }
    }

    /// Most bytes that a table for so many tiles ever takes.
    pub(crate) fn bytes_max(tiles: u64) -> u64 {
        let leaves = tiles.div_ceil(LEAF_WORDS as u64);
        leaves.saturating_mul((LEAF_WORDS * 8 + std::mem::size_of::<OnceLock<Box<[AtomicU64]>>>()) as u64)
    }

    pub(crate) fn tiles(&self) -> u64 {
        self.tiles
    }

    #[inline]
    pub(crate) fn word(&self, tile: u64) -> &AtomicU64 {
        assert!(tile < self.tiles, "tile {tile} of {}", self.tiles);
        let leaf = self.leaves[tile as usize / LEAF_WORDS]
            .get_or_init(|| (0..LEAF_WORDS).map(|_| AtomicU64::new(0)).collect());
        &leaf[tile as usize % LEAF_WORDS]
    }

    /// The tiles of a range whose leaf is there: all others were never touched.
    pub(crate) fn touched(&self, tiles: std::ops::Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let leaves = tiles.start / LEAF_WORDS as u64..tiles.end.div_ceil(LEAF_WORDS as u64);
        leaves
            .filter(|leaf| self.leaves[*leaf as usize].get().is_some())
            .flat_map(|leaf| leaf * LEAF_WORDS as u64..(leaf + 1) * LEAF_WORDS as u64)
            .filter(move |tile| tiles.contains(tile))
    }
}
