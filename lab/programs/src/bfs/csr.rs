//! A graph in files: where each vertex's row of neighbours begins (64-bit numbers of entries, one more than vertices),
//! and all rows behind each other (32-bit vertices, each row in order).
//!
//! Made in bounded memory: the edges are generated once to count, and once for each part of the rows that fits.

use std::path::{Path, PathBuf};

use forebay_space::{Error, Result};
use forebay_tier::plain::PlainFile;
use serde::{Deserialize, Serialize};

use super::rmat::Rmat;

/// Entries of the rows that are made at once: 1 GiB.
const ENTRIES_AT_ONCE: u64 = 1 << 28;

/// See the file's head.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Graph {
    /// File of where rows begin.
    pub rows: PathBuf,
    /// File of all rows.
    pub edges: PathBuf,
    /// Vertices.
    pub vertices: u64,
    /// Of all rows: two for each edge.
    pub entries: u64,
}

impl Graph {
    /// Makes the R-MAT graph of 2^scale vertices and `edge_factor` times as many edges (loops aside) in `dir`.
    ///
    /// # Errors
    /// `NameInUse`, `TierFull`, or what the system says.
    pub fn make(dir: &Path, scale: u32, edge_factor: u64, seed: u64) -> Result<Graph> {
        Graph::make_by(dir, scale, edge_factor, seed, ENTRIES_AT_ONCE)
    }

    fn make_by(dir: &Path, scale: u32, edge_factor: u64, seed: u64, at_once: u64) -> Result<Graph> {
        let (rmat, vertices) = (Rmat::new(scale, seed), 1u64 << scale);
        let ends = || (0..vertices * edge_factor).map(|number| rmat.edge(number)).filter(|(a, b)| a != b);
        let mut starts = vec![0u64; vertices as usize + 1];
        for (a, b) in ends() {
            starts[a as usize + 1] += 1;
            starts[b as usize + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let entries = starts[vertices as usize];
        let graph = Graph { rows: dir.join("rows"), edges: dir.join("edges"), vertices, entries };
        write(&PlainFile::create(&graph.rows, starts.len() as u64 * 8)?, 0, bytemuck::cast_slice(&starts))?;
        let file = PlainFile::create(&graph.edges, entries * 4)?;
        let mut first = 0;
        while first < vertices as usize {
            let fits = starts.partition_point(|start| *start <= starts[first] + at_once);
            let end = (fits - 1).clamp(first + 1, vertices as usize);
            let mut part = vec![0u32; (starts[end] - starts[first]) as usize];
            let mut filled: Vec<u64> = starts[first..end].iter().map(|start| start - starts[first]).collect();
            let mut put = |from: u32, to: u32| {
                if let Some(at) = filled.get_mut((from as usize).wrapping_sub(first)) {
                    part[*at as usize] = to;
                    *at += 1;
                }
            };
            for (a, b) in ends() {
                put(a, b);
                put(b, a);
            }
            for ends in starts[first..=end].windows(2) {
                part[(ends[0] - starts[first]) as usize..(ends[1] - starts[first]) as usize].sort_unstable();
            }
            write(&file, starts[first] * 4, bytemuck::cast_slice(&part))?;
            first = end;
        }
        graph.drop_cached()?;
        Ok(graph)
    }

    /// Writes what is cached of the files, and drops it: what a search reads then comes from the medium.
    ///
    /// # Errors
    /// What the system says.
    pub fn drop_cached(&self) -> Result<()> {
        for path in [&self.rows, &self.edges] {
            let file = PlainFile::open(path, true)?;
            file.flush().map_err(|e| Error::io(format!("cannot flush {}", path.display()), e))?;
            file.drop_cached().map_err(|e| Error::io(format!("cannot uncache {}", path.display()), e))?;
        }
        Ok(())
    }
}

fn write(file: &PlainFile, offset: u64, bytes: &[u8]) -> Result<()> {
    file.write(offset, bytes).map_err(|e| Error::io(format!("cannot write {}", file.path().display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_made_in_parts_is_the_graph_made_at_once() {
        let read = |at_once| {
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::make_by(dir.path(), 8, 4, 3, at_once).unwrap();
            assert_eq!(graph.vertices, 256);
            [std::fs::read(graph.rows).unwrap(), std::fs::read(graph.edges).unwrap()]
        };
        let whole = read(ENTRIES_AT_ONCE);
        assert!(whole[1].len() > 1000);
        for at_once in [1, 100, 999] {
            assert!(read(at_once) == whole, "{at_once} entries at once");
        }
    }
}
