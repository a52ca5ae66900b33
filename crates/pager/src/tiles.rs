//! Going over the tiles of an array, in any order that is known ahead.

use std::ops::Range;

use forebay_tier::Result;

use crate::ahead::{Ahead, AheadOfWrites};
use crate::array::Array;
use crate::pin::{Tile, TileMut};

/// Tiles to read, with many requests under way; made by [`Array::tiles`].
pub struct Tiles<'a, I: Iterator<Item = u64> = Range<u64>>(Ahead<'a, I>);

impl<'a, I: Iterator<Item = u64>> Iterator for Tiles<'a, I> {
    type Item = Result<Tile<'a>>;

    fn next(&mut self) -> Option<Result<Tile<'a>>> {
        self.0.next()
    }
}

/// Tiles to read and write; made by [`Array::tiles_mut`].
pub struct TilesMut<'a> {
    array: &'a Array,
    order: Range<u64>,
    ahead: AheadOfWrites<'a, Range<u64>>,
}

impl<'a> Iterator for TilesMut<'a> {
    type Item = Result<TileMut<'a>>;

    fn next(&mut self) -> Option<Result<TileMut<'a>>> {
        let tile = self.order.next()?;
        self.ahead.advance();
        Some(self.array.pin_mut(tile))
    }
}

impl Array {
    /// All tiles, in order. Tiles are read ahead while earlier ones are used.
    pub fn tiles(&self) -> Tiles<'_> {
        self.tiles_in(0..self.tiles_total())
    }

    /// Tiles in this order; one may come several times.
    pub fn tiles_in<I: Iterator<Item = u64>>(&self, order: I) -> Tiles<'_, I> {
        Tiles(Ahead::new(self, order))
    }

    /// All tiles in order, to be changed: what was changed is written behind.
    pub fn tiles_mut(&self) -> TilesMut<'_> {
        let order = 0..self.tiles_total();
        TilesMut { array: self, order: order.clone(), ahead: AheadOfWrites::new(self, order) }
    }

    /// The tiles that hold these bytes, all pinned; each with the part of its data that is meant.
    ///
    /// # Errors
    /// As [`Array::pin`]; more than the budget holds cannot be pinned at once.
    pub fn pinned(&self, range: Range<u64>) -> Result<Vec<(Tile<'_>, Range<usize>)>> {
        self.check_range(&range)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let tiles = self.tile_of(range.start).0..self.tile_of(range.end - 1).0 + 1;
        let mut parts = Vec::new();
        for tile in self.tiles_in(tiles) {
            let tile = tile?;
            let has = tile.range();
            let from = range.start.max(has.start) - has.start;
            let to = range.end.min(has.end) - has.start;
            parts.push((tile, from as usize..to as usize));
        }
        Ok(parts)
    }
}
