//! The keys: a mixed counter, so that any part of them can be made by itself, and what can be said of all of them
//! without keeping any.

use std::path::Path;
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool, PoolOptions};
use forebay_space::{Error, Horizon, Kind, Result};

use crate::numbers::{mix, number};

/// Keys that are made and written at once.
const CHUNK: usize = 1 << 18;
const TILE_BYTES: usize = 1 << 20;
/// Memory for making and checking files.
const BUDGET: u64 = 64 << 20;

/// The key of this number; all are different.
pub fn key(seed: u64, place: u64) -> u64 {
    number(seed, place)
}

/// What every permutation of some keys shares: how many, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permutation {
    count: u64,
    sum: u64,
}

impl Permutation {
    /// Of these keys.
    pub fn of(keys: &[u64]) -> Permutation {
        let sum = keys.iter().fold(0u64, |sum, key| sum.wrapping_add(mix(*key ^ 0x5851_F42D_4C95_7F2D)));
        Permutation { count: keys.len() as u64, sum }
    }

    fn and(self, other: Permutation) -> Permutation {
        Permutation { count: self.count + other.count, sum: self.sum.wrapping_add(other.sum) }
    }
}

/// What was found in a file of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Which keys they are.
    pub permutation: Permutation,
    /// No key is smaller than the one before.
    pub ordered: bool,
}

/// An array of keys over a file, in a pool of its own.
fn open(backing: FileBacking, mode: Mode) -> Result<Array> {
    let pool = Pool::new(PoolOptions { tile_max: TILE_BYTES, ..PoolOptions::new(BUDGET) })?;
    let options =
        ArrayOptions { mode, policy: Policy::None, horizon: Horizon::Epoch, ..ArrayOptions::new(TILE_BYTES) };
    Array::open(&pool, Arc::new(backing), &options)
}

/// Makes a file of `keys` keys, durable; what every permutation of them shares.
///
/// # Errors
/// `NameInUse`, `TierFull`, or what the system says.
pub fn make(path: &Path, keys: u64, seed: u64) -> Result<Permutation> {
    let array = open(FileBacking::create(path, keys * 8)?, Mode::ReadWrite)?;
    let mut all = Permutation::default();
    let mut chunk = Vec::with_capacity(CHUNK);
    for first in (0..keys).step_by(CHUNK) {
        chunk.clear();
        chunk.extend((first..(first + CHUNK as u64).min(keys)).map(|number| key(seed, number)));
        all = all.and(Permutation::of(&chunk));
        array.write_values(first, &chunk)?;
    }
    array.close()?;
    Ok(all)
}

/// Reads a file of keys once.
///
/// # Errors
/// What reading fails with, and `Damaged` for a file that is no row of keys.
pub fn check(path: &Path) -> Result<Checked> {
    let array = open(FileBacking::open(path, false)?, Mode::ReadOnly)?;
    if array.bytes() % 8 != 0 {
        return Err(Error::new(Kind::Damaged, "a file of keys has a part of a key at its end"));
    }
    let mut found = Checked { ordered: true, ..Checked::default() };
    let mut last = 0;
    for tile in array.tiles() {
        let tile = tile?;
        let keys: &[u64] = tile.values()?;
        found.permutation = found.permutation.and(Permutation::of(keys));
        found.ordered &= last <= keys[0] && keys.is_sorted();
        last = keys[keys.len() - 1];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_permutation_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let keys = 3 * CHUNK as u64 / 2 + 5;
        let made = make(&path, keys, 7).unwrap();
        let mut all: Vec<u64> = (0..keys).map(|number| key(7, number)).collect();
        assert_eq!(check(&path).unwrap(), Checked { permutation: made, ordered: false });
        assert_eq!(made, Permutation::of(&all));
        all.sort_unstable();
        let put = |keys: &[u64]| std::fs::write(&path, bytemuck::cast_slice(keys)).unwrap();
        put(&all);
        assert_eq!(check(&path).unwrap(), Checked { permutation: made, ordered: true });
        // Across the tiles, too.
        all.swap(131_071, 131_072);
        put(&all);
        assert_eq!(check(&path).unwrap(), Checked { permutation: made, ordered: false });
        all.sort_unstable();
        all[100] = all[101];
        put(&all);
        let seen = check(&path).unwrap();
        assert!(seen.ordered && seen.permutation != made);
    }
}
