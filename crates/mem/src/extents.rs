//! Which bytes of a window are given out: live ranges, of whole pages, in whole tiles.
//!
//! Invariants: live ranges do not overlap; a tile is free or touched by a live range or on its way back to free; free
//! ranges are of whole tiles and neither overlap nor touch. First fit from below keeps what is used together.

use std::collections::BTreeMap;
use std::ops::Range;

/// What `munmap` counts in.
pub(crate) const PAGE: u64 = 4096;

/// See the file's head.
#[derive(Clone)]
pub(crate) struct Extents {
    tile: u64,
    free: BTreeMap<u64, u64>,
    live: BTreeMap<u64, u64>,
    placed: u64,
    capacity: u64,
}

impl Extents {
    /// `capacity` bytes, all of them free; a whole number of tiles.
    pub(crate) fn new(capacity: u64, tile: u64) -> Extents {
        let capacity = capacity / tile * tile;
        Extents { tile, free: BTreeMap::from([(0, capacity)]), live: BTreeMap::new(), placed: 0, capacity }
    }

    /// Bytes that are given out.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    /// Behind the last byte that is used.
    pub(crate) fn end(&self) -> u64 {
        match self.free.last_key_value() {
            Some((start, end)) if *end == self.capacity => *start,
            _ => self.capacity,
        }
    }

    /// Live ranges, in order.
    pub(crate) fn live(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.live.iter().map(|(start, end)| *start..*end)
    }

    /// Gives out `bytes` from a multiple of `alignment` on. None: no free range is long enough.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let needed = bytes.max(1).checked_next_multiple_of(self.tile)?;
        let alignment = alignment.max(self.tile);
        let fits = |(from, to): (&u64, &u64)| {
            let start = from.checked_next_multiple_of(alignment)?;
            (start.checked_add(needed)? <= *to).then_some((*from, *to, start))
        };
        let (from, to, start) = self.free.iter().find_map(fits)?;
        self.free.remove(&from);
        if from < start {
            self.free.insert(from, start);
        }
        if start + needed < to {
            self.free.insert(start + needed, to);
        }
        let live = bytes.max(1).next_multiple_of(PAGE);
        self.live.insert(start, start + live);
        self.placed += live;
        Some(start)
    }

    /// The live range that begins here.
    pub(crate) fn at(&self, start: u64) -> Option<Range<u64>> {
        self.live.get(&start).map(|end| start..*end)
    }

    /// Makes the live range that begins at `start` longer or shorter where it is; the tiles that are not wanted any
    /// more. None: what follows is not free.
    pub(crate) fn resize(&mut self, start: u64, bytes: u64) -> Option<Vec<Range<u64>>> {
        let old = *self.live.get(&start)?;
        let new = start + bytes.max(1).next_multiple_of(PAGE);
        if new <= old {
            return Some(self.release(new..old));
        }
        let (has, wants) = (old.next_multiple_of(self.tile), new.next_multiple_of(self.tile));
        // Where another live range lies in the last tile, which a part of the first once was, it cannot grow.
        if self.live.range(old..new.max(has)).next().is_some() {
            return None;
        }
        if wants > has {
            let end = *self.free.get(&has).filter(|end| **end >= wants)?;
            self.free.remove(&has);
            if wants < end {
                self.free.insert(wants, end);
            }
        }
        self.live.insert(start, new);
        self.placed += new - old;
        Some(Vec::new())
    }

    /// Takes a range of pages out of what is live, as far as it is; the whole tiles that nothing live touches any
    /// more, each to be given to [`Extents::give`] when it is empty.
    pub(crate) fn release(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let lie_in = self.live.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        let touched: Vec<(u64, u64)> = lie_in.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in &touched {
            self.live.remove(start);
            if *start < range.start {
                self.live.insert(*start, range.start);
            }
            if *end > range.end {
                self.live.insert(range.end, *end);
            }
            self.placed -= end.min(&range.end) - start.max(&range.start);
        }
        let tile = self.tile;
        let mut empty: Vec<Range<u64>> = Vec::new();
        for (start, end) in touched.iter().rev() {
            let (from, to) = (*start.max(&range.start), *end.min(&range.end));
            let below = self.live.range(..from).next_back().map_or(0, |(_, end)| *end);
            let above = self.live.range(to..).next().map_or(u64::MAX, |(start, _)| *start);
            let (first, last) = (from / tile * tile, to.next_multiple_of(tile));
            let first = if below > first { first + tile } else { first };
            let last = if above < last { last - tile } else { last };
            // Two parts of one tile free it once.
            let first = first.max(empty.last().map_or(0, |before| before.end));
            if first < last {
                empty.push(first..last);
            }
        }
        empty
    }

    /// Tiles are free again.
    pub(crate) fn give(&mut self, tiles: Range<u64>) {
        if tiles.is_empty() {
            return;
        }
        let (mut start, mut end) = (tiles.start, tiles.end);
        if let Some((before, _)) = self.free.range(..start).next_back().filter(|(_, end)| **end == start) {
            start = *before;
        }
        if let Some(after) = self.free.remove(&end) {
            end = after;
        }
        self.free.insert(start, end);
    }

    /// Whether every page of a range is given out.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.live.range(..=at).next_back() {
                Some((_, end)) if *end > at => at = *end,
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    // Lists of ranges are what is meant.
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    const TILE: u64 = 65536;

    #[test]
    fn what_is_given_back_is_given_out_again() {
        let mut all = Extents::new(10 * TILE + 5, TILE);
        let a = all.take(1, 1).unwrap();
        let b = all.take(3 * TILE - 1, 1).unwrap();
        assert_eq!((a, b, all.end()), (0, TILE, 4 * TILE));
        assert_eq!(all.take(7 * TILE, 1), None);
        let tiles = all.release(all.at(a).unwrap());
        assert_eq!(tiles, [0..TILE]);
        assert_eq!(all.take(TILE, 1), Some(4 * TILE), "not before it is empty");
        all.give(0..TILE);
        assert_eq!(all.take(TILE, 1), Some(0));
        assert_eq!(all.take(u64::MAX, 1), None);
    }

    #[test]
    fn alignment_is_kept_and_the_gap_is_free() {
        let mut all = Extents::new(64 * TILE, TILE);
        assert_eq!(all.take(1, 1), Some(0));
        assert_eq!(all.take(TILE, 16 * TILE), Some(16 * TILE));
        assert_eq!(all.take(15 * TILE, 1), Some(TILE));
        assert!(all.covers(&(TILE..17 * TILE)) && !all.covers(&(0..TILE)));
    }

    #[test]
    fn ends_that_are_trimmed_free_whole_tiles_only() {
        let mut all = Extents::new(16 * TILE, TILE);
        let a = all.take(4 * TILE, 1).unwrap();
        assert_eq!(all.release(a..PAGE), [], "the rest of the tile is used");
        assert_eq!(all.release(PAGE..TILE), [0..TILE]);
        assert_eq!(all.release(2 * TILE + PAGE..4 * TILE), [3 * TILE..4 * TILE]);
        assert_eq!(all.placed(), TILE + PAGE);
        assert_eq!(all.release(0..16 * TILE), [TILE..3 * TILE]);
        assert_eq!(all.placed(), 0);
        assert_eq!(all.release(0..TILE), [], "nothing is there");
    }

    #[test]
    fn a_range_grows_where_there_is_room() {
        let mut all = Extents::new(8 * TILE, TILE);
        let a = all.take(TILE, 1).unwrap();
        assert_eq!(all.resize(a, 3 * TILE), Some(vec![]));
        let b = all.take(TILE, 1).unwrap();
        assert_eq!((b, all.resize(a, 4 * TILE)), (3 * TILE, None));
        assert_eq!(all.resize(a, TILE + 1), Some(vec![2 * TILE..3 * TILE]));
        assert_eq!(all.placed(), 2 * TILE + PAGE);
        all.give(2 * TILE..3 * TILE);
        assert_eq!(all.resize(a, 3 * TILE), Some(vec![]));
    }

    /// Random calls against a plain list of pages.
    #[test]
    fn pages_are_live_as_a_list_of_them_says() {
        let (capacity, mut numbers) = (64u64, fastrand::Rng::with_seed(7));
        let mut random = |below: u64| numbers.u64(..below);
        let mut all = Extents::new(capacity * TILE, TILE);
        let mut pages = vec![false; (capacity * TILE / PAGE) as usize];
        for _ in 0..3000 {
            let bytes = 1 + random(6 * TILE);
            match random(3) {
                0 | 1 => {
                    if let Some(start) = all.take(bytes, 1 << random(19)) {
                        for page in start / PAGE..(start + bytes).div_ceil(PAGE) {
                            assert!(!std::mem::replace(&mut pages[page as usize], true), "given twice");
                        }
                    }
                }
                _ => {
                    let start = random(capacity * TILE) / PAGE * PAGE;
                    let end = (start + bytes.next_multiple_of(PAGE)).min(capacity * TILE);
                    pages[(start / PAGE) as usize..(end / PAGE) as usize].fill(false);
                    for tiles in all.release(start..end) {
                        let range = (tiles.start / PAGE) as usize..(tiles.end / PAGE) as usize;
                        assert!(pages[range].iter().all(|live| !live), "a live page was freed");
                        all.give(tiles);
                    }
                }
            }
            assert_eq!(all.placed(), pages.iter().filter(|live| **live).count() as u64 * PAGE);
        }
    }
}
