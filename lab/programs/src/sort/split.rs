//! Splitting sorted runs exactly: which part of each run makes up a given part of the merged result, so that the rank
//! that merges it writes whole tiles, and all have equally much to do.

use std::ops::{Range, RangeInclusive};

use forebay_space::Result;

/// A sorted run of keys, wherever it lies.
pub(super) trait Run {
    /// How many keys it has.
    fn keys(&self) -> u64;
    /// At least and at most how many of them are less than `key`, without reading any.
    fn below_about(&self, key: u64) -> RangeInclusive<u64>;
    /// How many of them are less than `key`.
    fn below(&self, key: u64) -> Result<u64>;
}

impl Run for &[u64] {
    fn keys(&self) -> u64 {
        self.len() as u64
    }

    fn below_about(&self, _: u64) -> RangeInclusive<u64> {
        0..=self.keys()
    }

    fn below(&self, key: u64) -> Result<u64> {
        Ok(self.partition_point(|own| *own < key) as u64)
    }
}

/// Part number `part` of `parts` nearly equal ones of a range that begins with a tile: whole tiles, of so many keys.
pub(super) fn places(whole: Range<u64>, per_tile: u64, parts: usize, part: usize) -> Range<u64> {
    let tiles = (whole.end - whole.start).div_ceil(per_tile);
    let at = |part: usize| {
        let tile = (u128::from(tiles) * part as u128 / parts as u128) as u64;
        (whole.start + tile * per_tile).min(whole.end)
    };
    at(part)..at(part + 1)
}

/// Of each run how many keys are among the first `at` of all; of equal ones those of the first runs.
pub(super) fn split<R: Run>(runs: &[R], at: u64) -> Result<Vec<u64>> {
    // By what is known without reading first: then few tiles are read.
    let most =
        last(
            0..=u64::MAX,
            |key| Ok(runs.iter().map(|run| *run.below_about(key).start()).sum::<u64>() <= at),
        )?;
    let least =
        last(0..=most, |key| Ok(runs.iter().map(|run| *run.below_about(key).end()).sum::<u64>() <= at))?;
    let below = |key| runs.iter().map(|run| run.below(key)).collect::<Result<Vec<u64>>>();
    let key = last(least..=most, |key| Ok(below(key)?.iter().sum::<u64>() <= at))?;
    let mut split = below(key)?;
    let mut missing = at - split.iter().sum::<u64>();
    for (run, own) in runs.iter().zip(&mut split) {
        let up_to = key.checked_add(1).map_or(Ok(run.keys()), |next| run.below(next))?;
        let more = missing.min(up_to - *own);
        *own += more;
        missing -= more;
    }
    Ok(split)
}

/// The last key of these for which something holds that holds for the first one, and for none after the first for which
/// it does not.
fn last(keys: RangeInclusive<u64>, holds: impl Fn(u64) -> Result<bool>) -> Result<u64> {
    let (mut low, mut high) = keys.into_inner();
    while low < high {
        let middle = high - (high - low) / 2;
        match holds(middle)? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sort::keys::key;

    #[test]
    fn parts_are_whole_tiles_that_cover_everything() {
        for (keys, parts) in [(1, 3), (1000, 4), (1024, 1), (5000, 7)] {
            let all: Vec<_> = (0..parts).map(|part| places(0..keys, 512, parts, part)).collect();
            assert_eq!((all[0].start, all[parts - 1].end), (0, keys));
            assert!(all.windows(2).all(|two| two[0].end == two[1].start));
            assert!(all.iter().all(|part| part.start % 512 == 0 || part.is_empty()), "{all:?}");
        }
        assert_eq!(places(512..2000, 512, 2, 1), 1024..2000);
    }

    #[test]
    fn every_place_is_found_among_equal_and_extreme_keys() {
        for kinds in [1, 3, 1000, u64::MAX] {
            let runs: Vec<Vec<u64>> = (0..4)
                .map(|run| {
                    let of = |n| if n % 7 == 0 { u64::MAX } else { key(run, n) % kinds };
                    let mut keys: Vec<u64> = (0..run * 40).map(of).collect();
                    keys.sort_unstable();
                    keys
                })
                .collect();
            let slices: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            let mut all = runs.concat();
            all.sort_unstable();
            for at in 0..=all.len() {
                let cuts = split(&slices, at as u64).unwrap();
                let mut first: Vec<u64> =
                    slices.iter().zip(&cuts).flat_map(|(run, cut)| run[..*cut as usize].to_vec()).collect();
                first.sort_unstable();
                assert_eq!(first, all[..at], "{kinds} kinds, {at} keys");
            }
        }
    }
}
