//! What a search knows of vertices: where their rows begin, and their levels; in memory, or on tiles.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use forebay_pager::{Array, FileBacking};
use forebay_space::{Error, Kind, Result};

use super::csr::Graph;
use super::UNREACHED;

/// Neighbours that are collected before their tiles are touched: each tile then once for many.
const PENDING: usize = 1 << 20;

/// See the file's head. Threads share it.
pub(super) trait State: Sync {
    /// The vertices of a range that are at this level, and their rows where these are not empty.
    fn frontier(&self, vertices: Range<u64>, level: u8) -> Result<Vec<Range<u64>>>;

    /// Gives these vertices a level if they have none; how many had none. What is `pending` gets its level later.
    fn reach(&self, vertices: &[u32], level: u8, pending: &mut Vec<u32>) -> Result<u64>;

    /// Gives what is pending its level.
    fn settle(&self, level: u8, pending: &mut Vec<u32>) -> Result<u64>;

    /// The first vertex with a row that is not empty.
    fn first_with_edges(&self) -> Result<u32>;

    /// All levels.
    fn levels(&self) -> Result<Vec<u8>>;
}

fn no_edges() -> Error {
    Error::new(Kind::Usage, "the graph has no edges").hint("a larger scale, or a larger edge factor")
}

pub(super) struct InMemory {
    starts: Vec<u64>,
    levels: Vec<AtomicU8>,
}

impl InMemory {
    pub(super) fn read(graph: &Graph) -> Result<InMemory> {
        let mut starts = vec![0u64; graph.vertices as usize + 1];
        let file = FileBacking::open(&graph.rows, false)?;
        forebay_pager::Backing::read(&file, 0, bytemuck::cast_slice_mut(&mut starts))?;
        Ok(InMemory { starts, levels: (0..graph.vertices).map(|_| AtomicU8::new(UNREACHED)).collect() })
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.starts.len() * 8 + self.levels.len()) as u64
    }
}

impl State for InMemory {
    fn frontier(&self, vertices: Range<u64>, level: u8) -> Result<Vec<Range<u64>>> {
        let (first, end) = (vertices.start as usize, vertices.end as usize);
        let levels = self.levels[first..end].iter().enumerate();
        let at_level = levels.filter(|(_, held)| held.load(Relaxed) == level).map(|(at, _)| first + at);
        let rows = at_level.map(|vertex| self.starts[vertex]..self.starts[vertex + 1]);
        Ok(rows.filter(|row| !row.is_empty()).collect())
    }

    fn reach(&self, vertices: &[u32], level: u8, _pending: &mut Vec<u32>) -> Result<u64> {
        let mut new = 0;
        for vertex in vertices {
            let held = &self.levels[*vertex as usize];
            // Looked at first: most have one, and a load does not take the line from other threads.
            if held.load(Relaxed) == UNREACHED
                && held.compare_exchange(UNREACHED, level, Relaxed, Relaxed).is_ok()
            {
                new += 1;
            }
        }
        Ok(new)
    }

    fn settle(&self, _level: u8, _pending: &mut Vec<u32>) -> Result<u64> {
        Ok(0)
    }

    fn first_with_edges(&self) -> Result<u32> {
        let found = self.starts.windows(2).position(|ends| ends[0] < ends[1]);
        found.map(|vertex| vertex as u32).ok_or_else(no_edges)
    }

    fn levels(&self) -> Result<Vec<u8>> {
        Ok(self.levels.iter().map(|level| level.load(Relaxed)).collect())
    }
}

pub(super) struct OnTiles {
    rows: Array,
    levels: Array,
}

impl OnTiles {
    /// Over the file of rows, and a new one of levels.
    pub(super) fn new(rows: Array, levels: Array) -> Result<OnTiles> {
        let blank = vec![UNREACHED; 1 << 20];
        for first in (0..levels.bytes()).step_by(blank.len()) {
            let len = (levels.bytes() - first).min(blank.len() as u64);
            levels.write(first, &blank[..len as usize])?;
        }
        Ok(OnTiles { rows, levels })
    }
}

impl State for OnTiles {
    fn frontier(&self, vertices: Range<u64>, level: u8) -> Result<Vec<Range<u64>>> {
        let mut held = vec![0; (vertices.end - vertices.start) as usize];
        self.levels.read(vertices.start, &mut held)?;
        let at_level = held.iter().enumerate().filter(|(_, held)| **held == level);
        let offsets: Vec<u64> = at_level.map(|(at, _)| (vertices.start + at as u64) * 8).collect();
        let mut ends = vec![[0u64; 2]; offsets.len()];
        self.rows.read_runs(&offsets, 16, bytemuck::cast_slice_mut(&mut ends))?;
        Ok(ends.into_iter().map(|[start, end]| start..end).filter(|row| !row.is_empty()).collect())
    }

    fn reach(&self, vertices: &[u32], level: u8, pending: &mut Vec<u32>) -> Result<u64> {
        pending.extend_from_slice(vertices);
        match pending.len() < PENDING {
            true => Ok(0),
            false => self.settle(level, pending),
        }
    }

    fn settle(&self, level: u8, pending: &mut Vec<u32>) -> Result<u64> {
        pending.sort_unstable();
        pending.dedup();
        let tile_bytes = self.levels.tile_bytes() as u64;
        let mut new = 0;
        for of_tile in pending.chunk_by(|a, b| u64::from(*a) / tile_bytes == u64::from(*b) / tile_bytes) {
            let number = u64::from(of_tile[0]) / tile_bytes;
            let at = |vertex: &u32| (u64::from(*vertex) % tile_bytes) as usize;
            let seen = self.levels.pin(number)?;
            let unreached: Vec<u32> =
                of_tile.iter().filter(|vertex| seen[at(vertex)] == UNREACHED).copied().collect();
            drop(seen);
            if unreached.is_empty() {
                continue;
            }
            let mut tile = self.levels.pin_mut(number)?;
            for vertex in &unreached {
                let held = &mut tile[at(vertex)];
                if *held == UNREACHED {
                    (*held, new) = (level, new + 1);
                }
            }
        }
        pending.clear();
        Ok(new)
    }

    fn first_with_edges(&self) -> Result<u32> {
        let mut before = 0;
        for tile in self.rows.tiles() {
            let tile = tile?;
            let starts: &[u64] = tile.values()?;
            if let Some(at) = starts.iter().position(|start| *start > before) {
                return Ok((tile.range().start / 8 + at as u64 - 1) as u32);
            }
            before = starts[starts.len() - 1];
        }
        Err(no_edges())
    }

    fn levels(&self) -> Result<Vec<u8>> {
        let mut levels = vec![0; self.levels.bytes() as usize];
        self.levels.read(0, &mut levels)?;
        Ok(levels)
    }
}
