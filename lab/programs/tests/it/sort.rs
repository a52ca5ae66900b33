//! Sorts of files larger than their budget: every key is there, in order, by any number of ranks, threads and runs.

use std::path::Path;

use forebay_programs::sort::{self, keys, sorted_name, Sorted, Task, Way};
use forebay_space::{Kind, Result};

fn task(keys: u64, ranks: usize, threads: usize) -> Task {
    Task { keys, seed: 5, budget: 2 << 20, tile_bytes: 8192, ranks, threads }
}

/// All ranks of a sort, side by side in this process.
fn sorted(path: &Path, task: &Task, way: Way) -> Result<Sorted> {
    sort::begin(path, task, way)?;
    let mut phases = Vec::new();
    for phase in way.phases(task.ranks) {
        phases.push(std::thread::scope(|scope| {
            let part = |rank| scope.spawn(move || sort::take_part(path, task, way, *phase, rank));
            let ranks: Vec<_> = (0..task.ranks).map(part).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>>>()
        })?);
    }
    Ok(Sorted::of(&phases))
}

#[test]
fn all_sorts_leave_a_sorted_permutation() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // One key, one run, many runs, and lengths that are no multiple of anything.
    for count in [1, 1000, 50_000, (4 << 20) / 8, (4 << 20) / 8 + 777] {
        for (ranks, threads) in [(1, 1), (1, 3), (3, 1), (2, 2)] {
            for way in [Way::External, Way::Mmap, Way::Window] {
                let what = format!("{way:?} of {count} keys by {ranks} ranks of {threads} threads");
                let path = dir.path().join(&what);
                let made = keys::make(&path, count, 5).unwrap();
                let sorted = sorted(&path, &task(count, ranks, threads), way).unwrap();
                let wanted = keys::Checked { permutation: made, ordered: true };
                let result = sorted_name(&path, way, ranks);
                assert_eq!(keys::check(&result).unwrap(), wanted, "{what}");
                assert_eq!(sorted.phases.is_some(), way == Way::External || ranks > 1, "{what}");
                if way == Way::External {
                    two_passes(&sorted, count, ranks * threads);
                }
            }
        }
    }
}

/// An external sort reads and writes all keys twice, and a little more where runs are split among threads.
fn two_passes(sorted: &Sorted, count: u64, threads: usize) {
    let runs = sorted.runs.unwrap();
    assert!(if count <= 1000 { runs == 1 } else { count < 500_000 || runs > 4 }, "{count} keys, {runs} runs");
    let [read, written] = sorted.moved_bytes.unwrap();
    assert!(read <= 2 * (count * 8 + 8192) + (4 * runs * threads * 8192) as u64, "{read} bytes read");
    assert!(written <= 2 * (count * 8 + 8192), "{written} bytes written: each tile once in a pass");
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_anything_is_done() {
    let small = Task { budget: 64 << 10, ..task(100_000, 1, 2) };
    assert_eq!(sort::check_budget(&small, Way::External).unwrap_err().kind(), Kind::Usage);
    // Enough for one, but not for each of many.
    assert!(sort::check_budget(&task(500_000, 1, 1), Way::External).is_ok());
    assert_eq!(sort::check_budget(&task(500_000, 16, 1), Way::External).unwrap_err().kind(), Kind::Usage);
}
