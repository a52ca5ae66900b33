//! The sort that programs have today, in place by threads: of a mapped file, and unchanged of a window over the file.

use std::path::Path;
use std::time::Instant;

use forebay_pager::{Mode, Window, WindowOptions};
use forebay_space::{Error, Kind, Result};
use forebay_tier::plain::PlainFile;
use forebay_tier::{MapMode, Region, TierKind};

use super::{Sorted, Task};

/// Keys below which a part is sorted by one thread.
const PART: usize = 1 << 14;

/// Sorts the keys in the file `path`, in place, and makes them durable.
///
/// # Errors
/// What mapping and flushing fail with.
pub fn mapped(path: &Path, task: &Task) -> Result<Sorted> {
    let bytes = task.keys as usize * 8;
    let begun = Instant::now();
    let mut region = Region::map(path, Some(bytes), Some(TierKind::File), MapMode::Write)?;
    let keys = bytemuck::try_cast_slice_mut::<u8, u64>(region.as_mut_slice()?)
        .map_err(|e| Error::new(Kind::Internal, format!("a mapped file is no row of keys: {e}")))?;
    sort(keys, task.threads);
    region.persist_all()?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Sorted { seconds, method: "mmap".into(), ..Sorted::default() })
}

/// As [`mapped`] through a window, of whose tiles no more are in memory than the budget has room for.
///
/// # Errors
/// Those of the window; what could not be read or written.
pub fn windowed(path: &Path, task: &Task) -> Result<Sorted> {
    let begun = Instant::now();
    let options = WindowOptions {
        mode: Mode::ReadWrite,
        tile_bytes: task.tile_bytes,
        bytes: Some(task.keys * 8),
        ..WindowOptions::new(task.budget)
    };
    let mut window = Window::new(PlainFile::open(path, true)?, &options)?;
    sort(window.values_mut()?, task.threads);
    window.flush()?;
    window.check()?;
    let seconds = begun.elapsed().as_secs_f64();
    let seen = window.statistics();
    window.close()?;
    Ok(Sorted {
        seconds,
        moved_bytes: Some([seen.read_bytes, seen.written_bytes]),
        method: seen.engine.name().into(),
        ..Sorted::default()
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
