//! The sort that programs have today, in place by threads: of a mapped file, and unchanged of a window over the file.
//! Several ranks sort a part each and merge them, through the same kind of memory.

use std::ops::Range;
use std::path::Path;

use forebay_pager::{Mode, Window, WindowOptions};
use forebay_space::{Error, Kind, Result};
use forebay_tier::plain::PlainFile;
use forebay_tier::{MapMode, Region, TierKind};

use super::merge::merge_slices;
use super::split::{places, split};
use super::{sorted_name, Did, Task, Way};

/// Keys below which a part is sorted by one thread.
const PART: usize = 1 << 14;

/// Keys of a file as a slice.
enum Keys {
    Mapped(Region, Range<usize>),
    Window(Box<Window>),
}

impl Keys {
    /// These keys of a file; in a window no more of them are in memory than fit into `budget`.
    fn open(path: &Path, keys: Range<u64>, task: &Task, way: Way, mode: Mode, budget: u64) -> Result<Keys> {
        if way == Way::Mmap {
            let mode = if mode == Mode::ReadOnly { MapMode::Read } else { MapMode::Write };
            let region = Region::map(path, Some(task.keys as usize * 8), Some(TierKind::File), mode)?;
            return Ok(Keys::Mapped(region, keys.start as usize..keys.end as usize));
        }
        let options = WindowOptions {
            mode,
            tile_bytes: task.tile_bytes,
            origin: keys.start * 8,
            bytes: Some((keys.end - keys.start) * 8),
            ..WindowOptions::new(budget)
        };
        let file = PlainFile::open(path, mode == Mode::ReadWrite)?;
        Ok(Keys::Window(Box::new(Window::new(file, &options)?)))
    }

    fn values(&self) -> Result<&[u64]> {
        match self {
            Keys::Mapped(region, range) => {
                let all = bytemuck::try_cast_slice(region.as_slice()).map_err(no_keys)?;
                Ok(&all[range.clone()])
            }
            Keys::Window(window) => window.values(),
        }
    }

    fn values_mut(&mut self) -> Result<&mut [u64]> {
        match self {
            Keys::Mapped(region, range) => {
                let all = bytemuck::try_cast_slice_mut(region.as_mut_slice()?).map_err(no_keys)?;
                Ok(&mut all[range.clone()])
            }
            Keys::Window(window) => window.values_mut(),
        }
    }

    /// Makes what was written durable, and says what became of it.
    fn end(self, writable: bool) -> Result<Did> {
        let did =
            |moved_bytes, method: &str| Did { span_s: [0.0; 2], runs: 1, moved_bytes, method: method.into() };
        match self {
            Keys::Mapped(region, range) => {
                if writable {
                    region.persist(range.start * 8..range.end * 8)?;
                }
                Ok(did(None, "mmap"))
            }
            Keys::Window(mut window) => {
                if writable {
                    window.flush()?;
                }
                window.check()?;
                let seen = window.statistics();
                window.close()?;
                Ok(did(Some([seen.read_bytes, seen.written_bytes]), seen.engine.name()))
            }
        }
    }
}

fn no_keys(e: bytemuck::PodCastError) -> Error {
    Error::new(Kind::Internal, format!("a mapped file is no row of keys: {e}"))
}

/// What a rank does that has no keys.
fn nothing(way: Way) -> Did {
    let moved_bytes = (way == Way::Window).then_some([0; 2]);
    Did { span_s: [0.0; 2], runs: 0, moved_bytes, method: String::new() }
}

/// Sorts a rank's part of the keys in the file `path`, in place, and makes it durable.
pub(super) fn sort_part(path: &Path, task: &Task, way: Way, rank: usize) -> Result<Did> {
    let part = task.part(rank);
    if part.is_empty() {
        return Ok(nothing(way));
    }
    let mut keys = Keys::open(path, part, task, way, Mode::ReadWrite, task.budget_each())?;
    sort(keys.values_mut()?, task.threads);
    keys.end(true)
}

/// Merges a rank's part of the result from the sorted parts of all, and makes it durable.
pub(super) fn merge(path: &Path, task: &Task, way: Way, rank: usize) -> Result<Did> {
    let part = task.part(rank);
    if part.is_empty() {
        return Ok(nothing(way));
    }
    let budget = task.budget_each() / 2;
    let input = Keys::open(path, 0..task.keys, task, way, Mode::ReadOnly, budget)?;
    let target = sorted_name(path, way, task.ranks);
    let mut output = Keys::open(&target, part.clone(), task, way, Mode::ReadWrite, budget)?;
    merge_by_threads(input.values()?, output.values_mut()?, part, task)?;
    let [read, wrote] = [input.end(false)?, output.end(true)?];
    let moved = read.moved_bytes.zip(wrote.moved_bytes).map(|(read, wrote)| [read[0] + wrote[0], wrote[1]]);
    Ok(Did { runs: 0, moved_bytes: moved, ..wrote })
}

/// Fills `out`, the places `part` of the result, from the sorted parts of all ranks.
fn merge_by_threads(keys: &[u64], mut out: &mut [u64], part: Range<u64>, task: &Task) -> Result<()> {
    let runs: Vec<&[u64]> = (0..task.ranks)
        .map(|rank| {
            let own = task.part(rank);
            &keys[own.start as usize..own.end as usize]
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..task.threads {
            let own = places(part.clone(), task.tile_bytes as u64 / 8, task.threads, thread);
            let (from, to) = (split(&runs, own.start)?, split(&runs, own.end)?);
            let ends = from.iter().zip(&to);
            let rests =
                runs.iter().zip(ends).map(|(run, (from, to))| &run[*from as usize..*to as usize]).collect();
            let (now, later) = std::mem::take(&mut out).split_at_mut((own.end - own.start) as usize);
            out = later;
            scope.spawn(move || merge_slices(rests, now));
        }
        Ok(())
    })
}

/// Quicksort, by threads as long as there are some: each takes one side of what another one has parted.
pub(super) fn sort(keys: &mut [u64], threads: usize) {
    if threads < 2 || keys.len() < PART {
        return keys.sort_unstable();
    }
    let middle = part(keys);
    let (low, high) = keys.split_at_mut(middle);
    std::thread::scope(|scope| {
        scope.spawn(|| sort(low, threads / 2));
        sort(high, threads - threads / 2);
    });
}

/// Puts what is less than a pivot before what is greater; where the second part begins. The pivot is the middle one of
/// some keys from everywhere.
fn part(keys: &mut [u64]) -> usize {
    let mut sample: Vec<u64> = keys.iter().step_by(keys.len() / 99).copied().collect();
    sample.sort_unstable();
    let pivot = sample[sample.len() / 2];
    let (mut from, mut to) = (0, keys.len());
    loop {
        while from < to && keys[from] < pivot {
            from += 1;
        }
        while from < to && keys[to - 1] > pivot {
            to -= 1;
        }
        if to - from < 2 {
            return from;
        }
        keys.swap(from, to - 1);
        (from, to) = (from + 1, to - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sort::keys::key;

    #[test]
    fn any_keys_are_sorted_by_any_number_of_threads() {
        for kinds in [1, 2, 5, u64::MAX] {
            for threads in 1..5 {
                let mut keys: Vec<u64> = (0..100_000).map(|number| key(3, number) % kinds).collect();
                let mut wanted = keys.clone();
                wanted.sort_unstable();
                sort(&mut keys, threads);
                assert!(keys == wanted, "{kinds} kinds, {threads} threads");
            }
        }
    }
}
