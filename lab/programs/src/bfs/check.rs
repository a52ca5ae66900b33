//! Whether levels are those of a breadth-first search, by one pass over the edges.
//!
//! They are when only the root has level 0, every edge joins levels that differ by one at most (or vertices that were
//! both not reached), and every other vertex that was reached has a neighbour one level below: the first two say that
//! no level is too high, the last that none is too low.

use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Policy, Pool, PoolOptions};
use forebay_space::{Error, Kind, Result};

use super::csr::Graph;
use super::UNREACHED;

/// Memory and tiles for reading the edges once.
const BUDGET: u64 = 16 << 20;
const TILE_BYTES: usize = 256 << 10;

/// Checks levels; how many vertices were reached.
///
/// # Errors
/// `Damaged`, with the first vertex whose level is wrong.
pub fn check(graph: &Graph, root: u32, levels: &[u8]) -> Result<u64> {
    let pool = Pool::new(PoolOptions { tile_max: TILE_BYTES, ..PoolOptions::new(BUDGET) })?;
    let open = |path| {
        let options = ArrayOptions { policy: Policy::None, ..ArrayOptions::new(TILE_BYTES) };
        Array::open(&pool, Arc::new(FileBacking::open(path, false)?), &options)
    };
    let (rows, edges) = (open(&graph.rows)?, open(&graph.edges)?);
    let wrong = |vertex: usize, why: &str| {
        Err(Error::new(Kind::Damaged, format!("the level of a vertex is wrong: {why}"))
            .with("vertex", vertex)
            .with("level", levels[vertex]))
    };
    let ends = rows.tiles().map(|tile| Ok(tile?.values::<u64>()?.to_vec()));
    let mut ends = ends.flat_map(|part: Result<Vec<u64>>| match part {
        Ok(ends) => ends.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(e) => vec![Err(e)],
    });
    let mut next_end =
        move || ends.next().unwrap_or_else(|| Err(Error::new(Kind::Damaged, "rows are missing")));
    // The first number is where the first row begins: at 0.
    next_end()?;
    let (mut vertex, mut end, mut at, mut has_below) = (0, next_end()?, 0u64, false);
    let mut reached = 0;
    let mut close = |vertex: usize, has_below: bool| {
        reached += u64::from(levels[vertex] != UNREACHED);
        match levels[vertex] {
            UNREACHED if vertex == root as usize => wrong(vertex, "the root was not reached"),
            0 if vertex != root as usize => wrong(vertex, "only the root has level 0"),
            0 | UNREACHED => Ok(()),
            _ if !has_below => wrong(vertex, "no neighbour is one level below"),
            _ => Ok(()),
        }
    };
    for tile in edges.tiles() {
        let tile = tile?;
        for neighbour in tile.values::<u32>()? {
            while at == end {
                close(vertex, has_below)?;
                (vertex, end, has_below) = (vertex + 1, next_end()?, false);
            }
            let (own, other) = (levels[vertex], levels[*neighbour as usize]);
            if (own == UNREACHED) != (other == UNREACHED) || own.abs_diff(other) > 1 {
                wrong(vertex, "a neighbour is more than one level away")?;
            }
            has_below |= own != UNREACHED && own > 0 && other == own - 1;
            at += 1;
        }
    }
    close(vertex, has_below)?;
    for rest in vertex + 1..levels.len() {
        close(rest, false)?;
    }
    Ok(reached)
}
