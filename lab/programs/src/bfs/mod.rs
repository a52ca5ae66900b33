//! Breadth-first search of a graph larger than memory: its edges lie in a file, and are read through the pager or
//! through a mapping.
//!
//! The graph is an R-MAT graph of a seed ([`rmat`]), undirected, as rows of neighbours in two files ([`csr`]). The
//! search goes level by level over all vertices. What it found is checked by what only the right levels have
//! ([`check`]), whatever the size.

pub mod check;
pub mod csr;
mod edges;
pub mod rmat;
mod search;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Pool, PoolOptions};
use forebay_space::{Error, Horizon, Kind, Result};
use forebay_tier::plain::PlainFile;
use forebay_tier::{MapMode, Region, TierKind};
use serde::{Deserialize, Serialize};

use edges::{Edges, Mapped, Tiled};
use state::{InMemory, OnTiles, State};

/// A vertex that was not reached.
pub const UNREACHED: u8 = u8::MAX;

/// How edges and what is known of vertices are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Edges on tiles; where rows begin, and levels, in memory.
    Semi,
    /// All on tiles.
    External,
    /// Edges in a mapped file, where rows begin and levels in memory.
    Mmap,
    /// As before, and the kernel told that accesses are random.
    MmapRandom,
}

/// What is searched, and within what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The graph's files.
    pub graph: csr::Graph,
    /// Most memory for edges, rows, levels and what is known of tiles.
    pub budget: u64,
    /// Length of a tile; a power of two.
    pub tile_bytes: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Folder for what the search itself keeps in files.
    pub dir: PathBuf,
}

/// How a search went; times are measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Searched {
    /// Of the search, without the check.
    pub seconds: f64,
    /// Where it began.
    pub root: u32,
    /// Vertices that were reached.
    pub reached: u64,
    /// How many steps the farthest is away.
    pub levels: u8,
    /// Entries of rows that were looked at: every edge of the component twice.
    pub scanned: u64,
    /// Bytes that the pager read.
    pub read_bytes: Option<u64>,
    /// How the file of edges was reached: `direct`, `cached`, `mmap`.
    pub method: String,
}

/// Searches from the first vertex that has an edge, then checks the levels.
///
/// # Errors
/// `Usage` where the budget does not hold what is kept in memory; `Damaged` where a level is wrong; or what reading
/// fails with.
pub fn search(way: Way, task: &Task) -> Result<Searched> {
    let graph = &task.graph;
    if way == Way::External {
        let pool = pool(task, task.budget)?;
        let edges = Tiled(open(&pool, FileBacking::open(&graph.edges, false)?, Mode::ReadOnly, task)?);
        let rows = open(&pool, FileBacking::open(&graph.rows, false)?, Mode::ReadOnly, task)?;
        let file = PlainFile::nameless(&task.dir, graph.vertices)?;
        let levels = open(&pool, FileBacking::new(file)?, Mode::ReadWrite, task)?;
        return measured(task, &edges, &OnTiles::new(rows, levels)?, Some(&pool));
    }
    let state = InMemory::read(graph)?;
    match way {
        Way::Mmap | Way::MmapRandom => {
            let region = Region::map(&graph.edges, None, Some(TierKind::File), MapMode::Read)?;
            if way == Way::MmapRandom {
                region.shared().expect_random();
            }
            measured(task, &Mapped(region), &state, None)
        }
        _ => {
            let left = task.budget.checked_sub(state.bytes()).ok_or_else(|| {
                Error::new(Kind::Usage, "the budget does not hold what is known of the vertices")
                    .with("budget", task.budget)
                    .with("state_bytes", state.bytes())
                    .hint("a larger budget, or the way `external`")
            })?;
            let pool = pool(task, left)?;
            let edges = Tiled(open(&pool, FileBacking::open(&graph.edges, false)?, Mode::ReadOnly, task)?);
            measured(task, &edges, &state, Some(&pool))
        }
    }
}

fn measured<E: Edges, S: State>(task: &Task, edges: &E, state: &S, pool: Option<&Pool>) -> Result<Searched> {
    let root = state.first_with_edges()?;
    let begun = Instant::now();
    let (levels, scanned) = search::search(edges, state, root, task)?;
    let seconds = begun.elapsed().as_secs_f64();
    let loaded = pool.map(|pool| pool.statistics().loaded * task.tile_bytes as u64);
    let reached = check::check(&task.graph, root, &state.levels()?)?;
    let method = edges.method().into();
    Ok(Searched { seconds, root, reached, levels, scanned, read_bytes: loaded, method })
}

fn pool(task: &Task, budget: u64) -> Result<Pool> {
    let tile_max = task.tile_bytes.max(64 << 10);
    Pool::new(PoolOptions { tile_max, ..PoolOptions::new(budget) })
}

fn open(pool: &Pool, backing: FileBacking, mode: Mode, task: &Task) -> Result<Array> {
    let options = ArrayOptions { mode, horizon: Horizon::None, ..ArrayOptions::new(task.tile_bytes) };
    Array::open(pool, Arc::new(backing), &options)
}
