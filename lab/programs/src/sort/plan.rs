//! How the memory of an external sort is cut, that of each rank alike.

use std::ops::Range;

use forebay_space::{Error, Kind, Result};

use super::Task;

/// Runs that are made at once, for each thread: while some are read or written others are sorted.
const SORTERS_PER_THREAD: usize = 2;

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Threads that make runs.
    pub sorters: usize,
    /// Keys of a run, a multiple of what a tile holds.
    pub run_keys: u64,
    /// Of all ranks.
    pub runs: usize,
    /// The pool while runs are made; each sorter has memory for a run beside it.
    pub run_pool: u64,
    /// The pool while they are merged.
    pub merge_pool: u64,
}

impl Plan {
    /// # Errors
    /// `Usage` where the budget is too small to merge all runs at once.
    pub(super) fn of(task: &Task) -> Result<Plan> {
        let sorters = SORTERS_PER_THREAD * task.threads;
        let tile = task.tile_bytes as u64;
        // A quarter for reading ahead and writing behind.
        let budget = task.budget_each();
        let run_pool = budget / 4;
        let run_tiles = ((budget - run_pool) / sorters as u64 / tile).max(1);
        let run_keys = run_tiles * tile / 8;
        let runs = (0..task.ranks).map(|rank| Plan::runs_of(&task.part(rank), run_keys)).sum();
        // The merge writes by way of a tile's length for each thread.
        let merge_pool = budget.saturating_sub(task.threads as u64 * tile);
        // Each thread holds a tile of each run, reads as many ahead, and needs some to write.
        let needed = (task.threads * (2 * runs + 8)) as u64 * (tile + tile / 16);
        if needed > merge_pool || run_pool < 8 * tile {
            return Err(Error::new(Kind::Usage, "the budget is too small to merge all runs at once")
                .with("budget", task.budget)
                .with("ranks", task.ranks)
                .with("runs", runs)
                .with("tile", tile)
                .hint("a larger budget, shorter tiles, or fewer ranks and threads"));
        }
        Ok(Plan { sorters, run_keys, runs, run_pool, merge_pool })
    }

    /// How many runs such a part of the keys makes.
    pub(super) fn runs_of(part: &Range<u64>, run_keys: u64) -> usize {
        (part.end - part.start).div_ceil(run_keys) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fit_the_budget() {
        let task =
            Task { keys: 1 << 29, seed: 1, budget: 1 << 30, tile_bytes: 1 << 20, ranks: 1, threads: 2 };
        let plan = Plan::of(&task).unwrap();
        assert!(plan.run_pool + plan.sorters as u64 * plan.run_keys * 8 <= task.budget);
        assert!(plan.merge_pool + task.threads as u64 * task.tile_bytes as u64 <= task.budget);
        assert_eq!((plan.sorters, plan.run_keys, plan.runs), (4, 192 << 17, 22));
        let by_two = Plan::of(&Task { ranks: 2, threads: 1, ..task }).unwrap();
        assert_eq!((by_two.sorters, by_two.run_keys, by_two.runs), (2, 192 << 17, 22), "two halves of it");
        let small = Task { budget: 16 << 20, ..task };
        assert_eq!(Plan::of(&small).unwrap_err().kind(), Kind::Usage);
    }
}
