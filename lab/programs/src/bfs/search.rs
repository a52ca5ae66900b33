//! The search: level by level, all vertices of a level by all threads, in the order of their rows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_space::{Error, Kind, Result};

use super::edges::Edges;
use super::state::State;
use super::{Task, UNREACHED};

/// Vertices that a thread takes at once: enough rows to read many tiles ahead.
const CHUNK: u64 = 1 << 16;

/// Threads for each that computes: while some wait for tiles others go on.
const THREADS_EACH: usize = 2;

/// Searches from `root`; the last level that has vertices, and how many entries of rows were looked at.
pub(super) fn search<E: Edges, S: State>(edges: &E, state: &S, root: u32, task: &Task) -> Result<(u8, u64)> {
    let mut own = Vec::new();
    state.reach(&[root], 0, &mut own)?;
    state.settle(0, &mut own)?;
    let mut scanned = 0;
    for level in 0..UNREACHED - 1 {
        let (new, seen) = step(edges, state, level, task)?;
        scanned += seen;
        if new == 0 {
            return Ok((level, scanned));
        }
    }
    Err(Error::new(Kind::Usage, "the graph has paths of more than 254 steps"))
}

/// Looks at all rows of a level: how many vertices got the next one, and entries that were looked at.
fn step<E: Edges, S: State>(edges: &E, state: &S, level: u8, task: &Task) -> Result<(u64, u64)> {
    let (vertices, next) = (task.graph.vertices, AtomicU64::new(0));
    let thread = || -> Result<(u64, u64)> {
        let (mut new, mut scanned) = (0, 0);
        let mut pending = Vec::new();
        loop {
            let first = next.fetch_add(CHUNK, Relaxed);
            if first >= vertices {
                new += state.settle(level + 1, &mut pending)?;
                return Ok((new, scanned));
            }
            let rows = state.frontier(first..(first + CHUNK).min(vertices), level)?;
            edges.visit(&rows, &mut |neighbours| {
                scanned += neighbours.len() as u64;
                new += state.reach(neighbours, level + 1, &mut pending)?;
                Ok(())
            })?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..task.threads * THREADS_EACH).map(|_| scope.spawn(thread)).collect();
        let mut all = Ok((0, 0));
        for thread in threads {
            let one = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all = all.and_then(|(new, scanned)| one.map(|one| (new + one.0, scanned + one.1)));
        }
        all
    })
}
