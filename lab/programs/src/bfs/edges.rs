//! Where rows of neighbours are read: on tiles, in the order of the vertices, many ahead; or in a mapped file.

use std::ops::Range;

use forebay_pager::Array;
use forebay_space::{Error, Kind, Result};
use forebay_tier::Region;

/// See the file's head. Rows are ranges of entries.
pub(super) trait Edges: Sync {
    /// Shows all entries of these rows, which are in ascending order; a row may come in pieces.
    fn visit(&self, rows: &[Range<u64>], see: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()>;

    fn method(&self) -> &'static str;
}

pub(super) struct Tiled(pub(super) Array);

impl Edges for Tiled {
    fn visit(&self, rows: &[Range<u64>], see: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let per_tile = self.0.tile_bytes() as u64 / 4;
        let tiles_of = |row: &Range<u64>| row.start / per_tile..(row.end - 1) / per_tile + 1;
        let mut order: Vec<u64> = rows.iter().flat_map(tiles_of).collect();
        order.dedup();
        let mut tiles = self.0.tiles_in(order.into_iter());
        let mut tile: Option<forebay_pager::Tile<'_>> = None;
        for row in rows {
            for number in tiles_of(row) {
                if tile.as_ref().is_none_or(|tile| tile.number() != number) {
                    drop(tile.take());
                    tile = tiles.next().transpose()?;
                }
                let held = tile.as_ref().expect("a tile for each that was declared");
                let first = number * per_tile;
                let part = row.start.max(first) - first..row.end.min(first + per_tile) - first;
                see(&held.values::<u32>()?[part.start as usize..part.end as usize])?;
            }
        }
        Ok(())
    }

    fn method(&self) -> &'static str {
        self.0.method()
    }
}

pub(super) struct Mapped(pub(super) Region);

impl Edges for Mapped {
    fn visit(&self, rows: &[Range<u64>], see: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let entries: &[u32] = bytemuck::try_cast_slice(self.0.as_slice())
            .map_err(|e| Error::new(Kind::Internal, format!("a mapped file is no row of vertices: {e}")))?;
        rows.iter().try_for_each(|row| see(&entries[row.start as usize..row.end as usize]))
    }

    fn method(&self) -> &'static str {
        "mmap"
    }
}
