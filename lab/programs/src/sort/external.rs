//! External merge sort on tiles: runs as long as memory allows are sorted and written over the keys, then all of them
//! are merged at once into a second file.
//!
//! Two passes over the data, whatever its size. Of each sorted run the first key of every tile is kept, in a file
//! beside the keys: so the merge knows in which order tiles will be needed, and declares it to the pager.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool, PoolOptions, Statistics};
use forebay_space::{Error, Horizon, Kind, Result};

use super::merge::{self, Run};
use super::plan::Plan;
use super::{beside, sorted_name, Did, Task, Way};

/// Makes a rank's runs, in place of its keys, and says beside them where they are.
pub(super) fn runs(path: &Path, task: &Task, rank: usize) -> Result<Did> {
    let plan = Plan::of(task)?;
    let pool = pool(plan.run_pool, task)?;
    // Runs are not needed after a crash.
    let array = open(&pool, FileBacking::open(path, true)?, Mode::ReadWrite, Horizon::None, task)?;
    let runs = make_runs(&array, task, &plan, rank)?;
    let method = array.method();
    array.close()?;
    keep(&runs, &runs_name(path, rank))?;
    Ok(did(runs.len(), &pool.statistics(), task, method))
}

/// Merges a rank's part of the result from the runs of all, durable.
pub(super) fn merge(path: &Path, task: &Task, rank: usize) -> Result<Did> {
    let plan = Plan::of(task)?;
    let mut runs = Vec::new();
    for rank in 0..task.ranks {
        runs.extend(kept(&runs_name(path, rank))?);
    }
    let pool = pool(plan.merge_pool, task)?;
    let input = open(&pool, FileBacking::open(path, false)?, Mode::ReadOnly, Horizon::None, task)?;
    let target = sorted_name(path, Way::External, task.ranks);
    let output = open(&pool, FileBacking::open(&target, true)?, Mode::ReadWrite, Horizon::Epoch, task)?;
    merge::merge(&input, &output, &runs, task.part(rank), task.threads)?;
    let method = output.method();
    output.close()?;
    drop(input);
    Ok(did(0, &pool.statistics(), task, method))
}

fn did(runs: usize, seen: &Statistics, task: &Task, method: &str) -> Did {
    let moved = [seen.loaded, seen.written].map(|tiles| tiles * task.tile_bytes as u64);
    Did { span_s: [0.0; 2], runs, moved_bytes: Some(moved), method: method.into() }
}

/// Where a rank says which runs it made.
fn runs_name(keys: &Path, rank: usize) -> PathBuf {
    beside(keys, &format!(".runs-{rank}"))
}

fn keep(runs: &[Run], path: &Path) -> Result<()> {
    let failed = |e| Error::io(format!("writing {}", path.display()), e);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    serde_json::to_writer(&mut file, runs).map_err(|e| failed(e.into()))?;
    file.flush().map_err(failed)
}

fn kept(path: &Path) -> Result<Vec<Run>> {
    let file = File::open(path).map_err(|e| Error::io(format!("reading {}", path.display()), e))?;
    serde_json::from_reader(BufReader::new(file))
        .map_err(|e| Error::new(Kind::Damaged, format!("{} says no runs", path.display())).caused_by(e))
}

fn pool(budget: u64, task: &Task) -> Result<Pool> {
    Pool::new(PoolOptions { tile_max: task.tile_bytes, ..PoolOptions::new(budget) })
}

fn open(pool: &Pool, backing: FileBacking, mode: Mode, horizon: Horizon, task: &Task) -> Result<Array> {
    // What is used once and never again leaves in the order it came.
    let options = ArrayOptions { mode, horizon, policy: Policy::None, ..ArrayOptions::new(task.tile_bytes) };
    Array::open(pool, Arc::new(backing), &options)
}

/// Sorts a rank's part of the file run by run, in place.
fn make_runs(array: &Array, task: &Task, plan: &Plan, rank: usize) -> Result<Vec<Run>> {
    let part = task.part(rank);
    let total = Plan::runs_of(&part, plan.run_keys);
    let next = AtomicUsize::new(0);
    let made = std::thread::scope(|scope| {
        let sorter = || {
            let mut keys = vec![0u64; plan.run_keys.min(part.end - part.start) as usize];
            let mut runs = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= total {
                    return Ok(runs);
                }
                let first = part.start + number as u64 * plan.run_keys;
                let keys = &mut keys[..plan.run_keys.min(part.end - first) as usize];
                array.read_values(first, keys)?;
                keys.sort_unstable();
                array.write_values(first, keys)?;
                let firsts = keys.iter().step_by(task.tile_bytes / 8).copied().collect();
                runs.push(Run { first, keys: keys.len() as u64, firsts });
            }
        };
        let sorters: Vec<_> = (0..plan.sorters.min(total)).map(|_| scope.spawn(sorter)).collect();
        sorters
            .into_iter()
            .map(|sorter| sorter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<Vec<Run>>>>()
    })?;
    let mut runs = made.concat();
    runs.sort_unstable_by_key(|run| run.first);
    Ok(runs)
}
