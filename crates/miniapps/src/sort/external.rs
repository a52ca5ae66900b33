//! External merge sort on tiles: runs as long as memory allows are sorted and written over the keys, then all of them
//! are merged at once into a second file.
//!
//! Two passes over the data, whatever its size. Of each sorted run the first key of every tile is kept: so the merge
//! knows in which order tiles will be needed, and declares it to the pager.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool, PoolOptions};
use forebay_space::{Horizon, Result};

use super::merge::{self, Run};
use super::plan::Plan;
use super::{sorted_name, Sorted, Task};

/// Sorts the keys in the file `path` into [`sorted_name`]; `path` holds the runs afterwards.
///
/// # Errors
/// As [`Plan::of`], `NameInUse`, `TierFull`, or what reading and writing fails with.
pub fn external(path: &Path, task: &Task) -> Result<Sorted> {
    let plan = Plan::of(task)?;
    let target = sorted_name(path);
    let output = Arc::new(FileBacking::create(&target, task.keys * 8)?);
    let begun = Instant::now();
    let (runs, first) = make_runs(path, task, &plan)?;
    let middle = begun.elapsed();
    let pool = pool(plan.merge_pool, task)?;
    let method;
    {
        let input =
            open(&pool, Arc::new(FileBacking::open(path, false)?), Mode::ReadOnly, Horizon::None, task)?;
        let output = open(&pool, output, Mode::ReadWrite, Horizon::Epoch, task)?;
        merge::merge(&input, &output, &runs, task.threads)?;
        method = output.method();
        output.close()?;
    }
    let (whole, second) = (begun.elapsed(), pool.statistics());
    let tile = task.tile_bytes as u64;
    let moved = [first.loaded + second.loaded, first.written + second.written].map(|tiles| tiles * tile);
    Ok(Sorted {
        seconds: whole.as_secs_f64(),
        phases: Some([middle.as_secs_f64(), (whole - middle).as_secs_f64()]),
        runs: Some(runs.len()),
        moved_bytes: Some(moved),
        method: method.into(),
    })
}

fn pool(budget: u64, task: &Task) -> Result<Pool> {
    Pool::new(PoolOptions { tile_max: task.tile_bytes, ..PoolOptions::new(budget) })
}

fn open(pool: &Pool, backing: Arc<FileBacking>, mode: Mode, horizon: Horizon, task: &Task) -> Result<Array> {
    // What is used once and never again leaves in the order it came.
    let options = ArrayOptions { mode, horizon, policy: Policy::None, ..ArrayOptions::new(task.tile_bytes) };
    Array::open(pool, backing, &options)
}

/// Sorts the file run by run, in place. The runs, and what the pool did.
fn make_runs(path: &Path, task: &Task, plan: &Plan) -> Result<(Vec<Run>, forebay_pager::Statistics)> {
    let pool = pool(plan.run_pool, task)?;
    // Nobody needs runs after a crash.
    let array = open(&pool, Arc::new(FileBacking::open(path, true)?), Mode::ReadWrite, Horizon::None, task)?;
    let next = AtomicUsize::new(0);
    let made = std::thread::scope(|scope| {
        let sorter = || {
            let mut keys = vec![0u64; plan.run_keys.min(task.keys) as usize];
            let mut runs = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= plan.runs {
                    return Ok(runs);
                }
                let first = number as u64 * plan.run_keys;
                let keys = &mut keys[..plan.run_keys.min(task.keys - first) as usize];
                array.read_values(first, keys)?;
                keys.sort_unstable();
                array.write_values(first, keys)?;
                let firsts = keys.iter().step_by(task.tile_bytes / 8).copied().collect();
                runs.push(Run { first, keys: keys.len() as u64, firsts });
            }
        };
        let sorters: Vec<_> = (0..plan.sorters.min(plan.runs)).map(|_| scope.spawn(sorter)).collect();
        sorters
            .into_iter()
            .map(|sorter| sorter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<Vec<Run>>>>()
    })?;
    array.close()?;
    let mut runs = made.concat();
    runs.sort_unstable_by_key(|run| run.first);
    Ok((runs, pool.statistics()))
}
