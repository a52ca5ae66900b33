//! Merging sorted runs, by threads that each have a range of keys of their own.
//!
//! A thread declares to the pager in which order it needs the tiles of its part of all runs: by their first keys. Its
//! current tiles stay pinned, and the keys go from there straight to the output.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use forebay_pager::{Array, Tile, Tiles};
use forebay_space::Result;
use serde::{Deserialize, Serialize};

use super::split::{self, places, split};

/// A sorted run of keys on tiles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// Its first key's number; it begins with a tile.
    pub first: u64,
    pub keys: u64,
    /// The first key of each of its tiles.
    pub firsts: Vec<u64>,
}

/// A run in its array.
struct OnTiles<'a> {
    input: &'a Array,
    run: &'a Run,
}

impl OnTiles<'_> {
    fn per_tile(&self) -> u64 {
        self.input.tile_bytes() as u64 / 8
    }

    /// How many of its tiles begin with a key that is less.
    fn begun(&self, key: u64) -> u64 {
        self.run.firsts.partition_point(|first| *first < key) as u64
    }
}

impl split::Run for OnTiles<'_> {
    fn keys(&self) -> u64 {
        self.run.keys
    }

    fn below_about(&self, key: u64) -> RangeInclusive<u64> {
        let tiles = self.begun(key);
        tiles.saturating_sub(1) * self.per_tile()..=(tiles * self.per_tile()).min(self.run.keys)
    }

    fn below(&self, key: u64) -> Result<u64> {
        let Some(tile) = self.begun(key).checked_sub(1) else { return Ok(0) };
        let pinned = self.input.pin(self.run.first / self.per_tile() + tile)?;
        // The file's last tile, and so the run's, may be short; a tile holds no key of another run.
        let inside = pinned.values::<u64>()?.partition_point(|own| *own < key);
        Ok(tile * self.per_tile() + inside as u64)
    }
}

/// Merges all runs of `input` to these places of `output`, which are whole tiles.
pub(super) fn merge(
    input: &Array,
    output: &Array,
    runs: &[Run],
    whole: Range<u64>,
    threads: usize,
) -> Result<()> {
    let on_tiles: Vec<OnTiles<'_>> = runs.iter().map(|run| OnTiles { input, run }).collect();
    let per_tile = output.tile_bytes() as u64 / 8;
    let parts: Vec<Range<u64>> =
        (0..threads).map(|part| places(whole.clone(), per_tile, threads, part)).collect();
    let mut cuts = vec![split(&on_tiles, whole.start)?];
    for part in &parts {
        cuts.push(split(&on_tiles, part.end)?);
    }
    std::thread::scope(|scope| {
        let parts: Vec<_> = cuts
            .windows(2)
            .zip(&parts)
            .map(|(ends, part)| {
                let ranges: Vec<Range<u64>> = (0..runs.len()).map(|run| ends[0][run]..ends[1][run]).collect();
                scope.spawn(move || Part::new(input, output, runs, &ranges, part.start).merge())
            })
            .collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().map(join).fold(Ok(()), Result::and)
    })
}

/// Fills `out` with what sorted slices have, which are as many keys.
pub(super) fn merge_slices(mut rests: Vec<&[u64]>, mut out: &mut [u64]) {
    rests.retain(|rest| !rest.is_empty());
    while !out.is_empty() {
        let (wrote, ended) = take_smallest(&mut rests, out);
        out = &mut out[wrote..];
        if let Some(ended) = ended {
            rests.swap_remove(ended);
        }
    }
}

/// What a tile of a part is for.
#[derive(Clone, Copy, Debug)]
struct Needed {
    tile: u64,
    /// Which run, counted from 0.
    run: usize,
    /// Its keys that belong to the part.
    from: usize,
    to: usize,
}

/// A range of keys, merged by one thread.
struct Part<'a> {
    output: &'a Array,
    /// Number of the key that comes next in the output, the first of a tile.
    at: u64,
    order: VecDeque<Needed>,
    tiles: Tiles<'a, std::vec::IntoIter<u64>>,
    /// Tiles that came before their turn, by run.
    waiting: Vec<VecDeque<(Needed, Tile<'a>)>>,
    /// Tiles of each run that are still to come.
    left: Vec<usize>,
}

impl<'a> Part<'a> {
    fn new(input: &'a Array, output: &'a Array, runs: &[Run], ranges: &[Range<u64>], at: u64) -> Part<'a> {
        let per_tile = input.tile_bytes() as u64 / 8;
        let mut order = Vec::new();
        let mut left = Vec::new();
        for (number, (run, range)) in runs.iter().zip(ranges).enumerate() {
            let tiles = range.start / per_tile..range.end.div_ceil(per_tile);
            let tiles = if range.is_empty() { 0..0 } else { tiles };
            left.push(tiles.clone().count());
            for tile in tiles {
                let needed = Needed {
                    tile: run.first / per_tile + tile,
                    run: number,
                    from: range.start.saturating_sub(tile * per_tile) as usize,
                    to: (range.end - tile * per_tile).min(per_tile) as usize,
                };
                order.push((run.firsts[tile as usize], tile, needed));
            }
        }
        // Of equal keys first what comes first in its run, so that no run is far ahead of the others.
        order.sort_unstable_by_key(|(first, tile, needed)| (*first, *tile, needed.run));
        let order: VecDeque<Needed> = order.into_iter().map(|(_, _, needed)| needed).collect();
        let numbers: Vec<u64> = order.iter().map(|needed| needed.tile).collect();
        let tiles = input.tiles_in(numbers.into_iter());
        Part { output, at, order, tiles, waiting: runs.iter().map(|_| VecDeque::new()).collect(), left }
    }

    /// The next tile of a run; None after its last one.
    fn next_of(&mut self, run: usize) -> Result<Option<(Needed, Tile<'a>)>> {
        if self.left[run] == 0 {
            return Ok(None);
        }
        while self.waiting[run].is_empty() {
            let needed = self.order.pop_front().expect("a tile for each that is left");
            let tile = self.tiles.next().expect("a tile for each that was declared")?;
            self.waiting[needed.run].push_back((needed, tile));
        }
        self.left[run] -= 1;
        Ok(self.waiting[run].pop_front())
    }

    fn merge(mut self) -> Result<()> {
        let mut current = Vec::new();
        for run in 0..self.left.len() {
            current.extend(self.next_of(run)?);
        }
        let per_tile = self.output.tile_bytes() / 8;
        let mut buffer = vec![0; per_tile];
        let mut filled = 0;
        while !current.is_empty() {
            let mut rests = Vec::with_capacity(current.len());
            for (needed, tile) in &current {
                rests.push(&tile.values::<u64>()?[needed.from..needed.to]);
            }
            let ended = loop {
                let (wrote, ended) = take_smallest(&mut rests, &mut buffer[filled..]);
                filled += wrote;
                if filled == per_tile {
                    // A whole tile: it need not be read before it is written.
                    self.output.write_values(self.at, &buffer)?;
                    self.at += filled as u64;
                    filled = 0;
                }
                if let Some(ended) = ended {
                    break ended;
                }
            };
            // Where the others have got to, as far as it is not in their slices any more.
            let lens: Vec<usize> = rests.iter().map(|rest| rest.len()).collect();
            for ((needed, _), len) in current.iter_mut().zip(lens) {
                needed.from = needed.to - len;
            }
            let run = current[ended].0.run;
            // Before the next one comes: the frame may be wanted for it.
            drop(current.swap_remove(ended));
            current.extend(self.next_of(run)?);
        }
        self.output.write_values(self.at, &buffer[..filled])
    }
}

/// Moves the smallest keys of the sorted slices, none of them empty, to `out` until it is full or a slice is empty: how
/// many, and which slice.
///
/// A tree of losers over any number of leaves: leaf `i` of `k` is node `k + i`, the parent of node `n` is `n / 2`.
fn take_smallest(rests: &mut [&[u64]], out: &mut [u64]) -> (usize, Option<usize>) {
    let leaves = rests.len();
    // Of each inner node the key and slice that lost there; at 0 the winner of all.
    let mut losers = vec![(u64::MAX, 0usize); leaves];
    let mut winners = vec![(0, 0); 2 * leaves];
    for (at, rest) in rests.iter().enumerate() {
        winners[leaves + at] = (rest[0], at);
    }
    for node in (1..leaves).rev() {
        let (a, b) = (winners[2 * node], winners[2 * node + 1]);
        (winners[node], losers[node]) = if b.0 < a.0 { (b, a) } else { (a, b) };
    }
    let (mut key, mut slice) = winners[1];
    for (wrote, place) in out.iter_mut().enumerate() {
        *place = key;
        rests[slice] = &rests[slice][1..];
        let Some(next) = rests[slice].first() else { return (wrote + 1, Some(slice)) };
        key = *next;
        let mut node = (leaves + slice) / 2;
        while node > 0 {
            let other = losers[node];
            let loses = other.0 < key;
            losers[node] = if loses { (key, slice) } else { other };
            (key, slice) = if loses { other } else { (key, slice) };
            node /= 2;
        }
    }
    (out.len(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sort::keys::key;

    #[test]
    fn slices_are_merged_until_one_ends() {
        for slices in 1..20 {
            let mut all: Vec<Vec<u64>> = (0..slices)
                .map(|slice| {
                    let mut keys: Vec<u64> =
                        (0..1 + key(slice, 0) % 50).map(|n| key(slice, n + 1) % 64).collect();
                    keys.sort_unstable();
                    keys
                })
                .collect();
            let mut wanted: Vec<u64> = all.concat();
            wanted.sort_unstable();
            let mut merged = Vec::new();
            while !all.is_empty() {
                let mut rests: Vec<&[u64]> = all.iter().map(Vec::as_slice).collect();
                // A place more than fits at first.
                let mut out = [0; 7];
                let (wrote, ended) = take_smallest(&mut rests, &mut out);
                merged.extend_from_slice(&out[..wrote]);
                assert!(ended.is_some() || wrote == out.len());
                all = rests.into_iter().filter(|rest| !rest.is_empty()).map(<[u64]>::to_vec).collect();
            }
            assert_eq!(merged, wanted, "{slices} slices");
        }
    }
}
