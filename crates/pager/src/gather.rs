//! Copies between an array and memory of the caller: ranges, and items at any indices.

use std::ops::Range;

use bytemuck::{AnyBitPattern, NoUninit};
use forebay_tier::{Error, Kind, Result};

use crate::ahead::{Ahead, AheadOfWrites};
use crate::array::Array;

/// A part of one tile and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    tile: u64,
    /// First byte of the tile's data.
    from: usize,
    /// First byte of the caller's memory.
    to: usize,
    len: usize,
}

impl Array {
    /// The pieces of a range of bytes that goes to `to`.
    fn pieces(&self, range: Range<u64>, to: usize) -> impl Iterator<Item = Piece> + Clone + '_ {
        let (start, end) = (range.start, range.end);
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (tile, _) = self.tile_of(at);
            let has = self.tile_range(tile);
            let len = (end.min(has.end) - at) as usize;
            let from = (at - has.start) as usize;
            let piece = Piece { tile, from, to: to + (at - start) as usize, len };
            at += len as u64;
            Some(piece)
        })
    }

    /// The pieces of runs of `len` bytes each that begin at these bytes.
    fn runs<'a, I>(&'a self, offsets: I, len: usize) -> impl Iterator<Item = Piece> + Clone + 'a
    where
        I: Iterator<Item = u64> + Clone + 'a,
    {
        let numbered = offsets.enumerate();
        numbered.flat_map(move |(number, offset)| self.pieces(offset..offset + len as u64, number * len))
    }

    /// Copies pieces into `out`, reading ahead. What lies in one tile and follows each other costs one pin.
    fn copy_out<'a>(
        &'a self,
        pieces: impl Iterator<Item = Piece> + Clone + 'a,
        out: &mut [u8],
    ) -> Result<()> {
        let mut last = None;
        let order =
            pieces.clone().map(|piece| piece.tile).filter(move |tile| last.replace(*tile) != Some(*tile));
        let mut ahead = Ahead::new(self, order);
        let mut tile = None;
        for piece in pieces {
            if tile.as_ref().is_none_or(|tile: &crate::Tile<'_>| tile.number() != piece.tile) {
                // The pin goes before the next one comes: two could be more than the budget holds.
                drop(tile.take());
                tile = Some(ahead.next().expect("a tile for each piece")?);
            }
            let tile = tile.as_ref().expect("just set");
            out[piece.to..piece.to + piece.len].copy_from_slice(&tile[piece.from..piece.from + piece.len]);
        }
        Ok(())
    }

    /// Whether a piece is all of its tile's data, which then need not be read.
    fn is_whole(&self, piece: &Piece) -> bool {
        piece.from == 0 && piece.len == self.data_of(piece.tile).len()
    }

    /// Copies `data` into pieces, reading ahead those tiles of which a part stays.
    fn copy_in<'a>(&'a self, pieces: impl Iterator<Item = Piece> + Clone + 'a, data: &[u8]) -> Result<()> {
        let mut last = None;
        let in_part = pieces.clone().filter(move |piece| !self.is_whole(piece)).map(|piece| piece.tile);
        let mut ahead =
            AheadOfWrites::new(self, in_part.filter(move |tile| last.replace(*tile) != Some(*tile)));
        let mut read = None;
        for piece in pieces {
            let whole = self.is_whole(&piece);
            if !whole && read.replace(piece.tile) != Some(piece.tile) {
                ahead.advance();
            }
            let mut tile = self.pin_to_write(piece.tile, whole)?;
            tile[piece.from..piece.from + piece.len].copy_from_slice(&data[piece.to..piece.to + piece.len]);
        }
        Ok(())
    }

    /// Copies the bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// `BoxOutsideShape`, or what a load failed with; `out` then holds anything.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = offset..offset.saturating_add(out.len() as u64);
        self.check_range(&range)?;
        self.copy_out(self.pieces(range, 0), out)
    }

    /// Writes `data` at `offset`; where it goes to the backing later, errors are those of [`Array::flush`].
    ///
    /// # Errors
    /// `BoxOutsideShape`, `PermissionDenied`, or what a load failed with: then a part may have been written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let range = offset..offset.saturating_add(data.len() as u64);
        self.check_range(&range)?;
        self.core.check_writable()?;
        self.copy_in(self.pieces(range.clone(), 0), data)?;
        self.wrote(&range)
    }

    /// Copies the items of `item` bytes at these indices into `out`, one after the other, with many requests under way.
    ///
    /// # Errors
    /// As [`Array::read`], and `BufferMismatch` when `out` is not as long as the items.
    pub fn gather(&self, indices: &[u64], item: usize, out: &mut [u8]) -> Result<()> {
        let offsets = self.check_runs(indices, item as u64, item, out.len())?;
        self.copy_out(self.runs(offsets, item), out)
    }

    /// Writes items of `item` bytes to these indices; of an index that is there twice the last one stays.
    ///
    /// # Errors
    /// As [`Array::write`], and `BufferMismatch` when `data` is not as long as the items.
    pub fn scatter(&self, indices: &[u64], item: usize, data: &[u8]) -> Result<()> {
        let offsets = self.check_runs(indices, item as u64, item, data.len())?;
        self.write_at(self.runs(offsets, item), indices, data)
    }

    /// As [`Array::gather`], of runs of `len` bytes that begin at any bytes.
    ///
    /// # Errors
    /// As [`Array::gather`].
    pub fn read_runs(&self, offsets: &[u64], len: usize, out: &mut [u8]) -> Result<()> {
        let offsets = self.check_runs(offsets, 1, len, out.len())?;
        self.copy_out(self.runs(offsets, len), out)
    }

    /// As [`Array::scatter`], of runs of `len` bytes that begin at any bytes.
    ///
    /// # Errors
    /// As [`Array::scatter`].
    pub fn write_runs(&self, offsets: &[u64], len: usize, data: &[u8]) -> Result<()> {
        let checked = self.check_runs(offsets, 1, len, data.len())?;
        self.write_at(self.runs(checked, len), offsets, data)
    }

    fn write_at<'a>(
        &'a self,
        pieces: impl Iterator<Item = Piece> + Clone + 'a,
        places: &[u64],
        data: &[u8],
    ) -> Result<()> {
        self.core.check_writable()?;
        self.copy_in(pieces, data)?;
        // Any tile may have been written: with horizon `write` all of them are looked at.
        self.wrote(&(0..if places.is_empty() { 0 } else { self.bytes }))
    }

    /// The values from the `first`-th on.
    ///
    /// # Errors
    /// As [`Array::read`].
    pub fn read_values<T: AnyBitPattern + NoUninit>(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.read(first.saturating_mul(std::mem::size_of::<T>() as u64), bytemuck::cast_slice_mut(out))
    }

    /// Writes values from the `first`-th on.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub fn write_values<T: NoUninit>(&self, first: u64, data: &[T]) -> Result<()> {
        self.write(first.saturating_mul(std::mem::size_of::<T>() as u64), bytemuck::cast_slice(data))
    }

    /// The bytes where runs of `len` begin, `unit` bytes apart from one place to the next, all checked.
    fn check_runs<'a>(
        &self,
        places: &'a [u64],
        unit: u64,
        len: usize,
        memory: usize,
    ) -> Result<impl Iterator<Item = u64> + Clone + 'a> {
        self.pool.0.check()?;
        if places.len().checked_mul(len) != Some(memory) {
            return Err(Error::new(Kind::BufferMismatch, "the memory is not as long as the items")
                .with("items", places.len())
                .with("item_bytes", len)
                .with("bytes", memory));
        }
        let inside = |place: &u64| {
            place
                .checked_mul(unit)
                .and_then(|at| at.checked_add(len as u64))
                .is_some_and(|end| end <= self.bytes)
        };
        match places.iter().find(|place| !inside(place)) {
            None => Ok(places.iter().map(move |place| place * unit)),
            Some(place) => {
                Err(Error::new(Kind::BoxOutsideShape, format!("item {place} is outside the array"))
                    .with("item_bytes", len)
                    .with("bytes", self.bytes))
            }
        }
    }
}
