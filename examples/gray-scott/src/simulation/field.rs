//! One rank's box of U and V, with one layer of ghost cells all around.
//!
//! Layout: C order, each axis padded by one cell on both sides, so that the kernel reads neighbours without
//! asking where it is. Edges and corners of the padding are never read (the stencil has 7 points) and never
//! written. The initial condition depends only on global cell indices.

use super::deck::Deck;
use forebay_space::{Element, Error, Kind, Result};
use std::ops::{Add, Mul, Range, Sub};

/// The number type of the field: `f64` or `f32`.
pub trait Cell:
    Element
    + Copy
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
{
    /// Rounds to this type.
    fn of(value: f64) -> Self;
    /// Exact.
    fn wide(self) -> f64;
}

impl Cell for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
}

impl Cell for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

/// Low or high end of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards index 0.
    Low,
    /// Towards the last index.
    High,
}

/// U and V of one box, padded.
pub struct Fields<T> {
    /// First cell of the box in the grid.
    pub start: [usize; 3],
    /// Cells of the box, without padding.
    pub count: [usize; 3],
    /// Concentration of U, padded.
    pub u: Vec<T>,
    /// Concentration of V, padded.
    pub v: Vec<T>,
}

impl<T: Cell> Fields<T> {
    /// A box full of zeros; `Kind::TierFull` when the memory cannot be had.
    pub fn zeroed(start: [usize; 3], count: [usize; 3]) -> Result<Fields<T>> {
        let cells: usize = count.iter().map(|n| n + 2).product();
        let array = || -> Result<Vec<T>> {
            let mut array = Vec::new();
            array.try_reserve_exact(cells).map_err(|e| {
                Error::new(Kind::TierFull, "not enough memory for this rank's part of the grid")
                    .with("cells", cells)
                    .caused_by(e)
                    .hint("more ranks on more nodes, or a smaller shape")
            })?;
            array.resize(cells, T::of(0.0));
            Ok(array)
        };
        Ok(Fields { start, count, u: array()?, v: array()? })
    }

    /// The deck's initial condition in this box. Ghost cells stay 0 until they are wrapped or received.
    pub fn initial(deck: &Deck, start: [usize; 3], count: [usize; 3]) -> Result<Fields<T>> {
        let mut fields = Fields::zeroed(start, count)?;
        let generator = deck.noise.generator();
        for z in 0..count[0] {
            for y in 0..count[1] {
                let row = fields.row(z, y);
                for x in 0..count[2] {
                    let cell = [start[0] + z, start[1] + y, start[2] + x];
                    let (mut u, mut v) = seeded(deck, cell);
                    if deck.noise.initial > 0.0 {
                        let (ru, rv) = generator.initial(global_index(deck.shape, cell));
                        u *= 1.0 + deck.noise.initial * ru;
                        v *= 1.0 + deck.noise.initial * rv;
                    }
                    fields.u[row.start + x] = T::of(u);
                    fields.v[row.start + x] = T::of(v);
                }
            }
        }
        Ok(fields)
    }

    /// Distance in the arrays between neighbours along z and along y.
    pub fn strides(&self) -> [usize; 2] {
        padded_strides(self.count)
    }

    /// Where the inner cells of row (z, y) of the box lie in the arrays.
    pub fn row(&self, z: usize, y: usize) -> Range<usize> {
        let [plane, row] = self.strides();
        let first = (z + 1) * plane + (y + 1) * row + 1;
        first..first + self.count[2]
    }

    /// Copies the inner cells of U or V, without padding, to `out` in C order.
    pub fn copy_inner(&self, array: &[T], out: &mut [T]) {
        let rows = (0..self.count[0]).flat_map(|z| (0..self.count[1]).map(move |y| (z, y)));
        for ((z, y), out) in rows.zip(out.chunks_exact_mut(self.count[2])) {
            out.copy_from_slice(&array[self.row(z, y)]);
        }
    }

    /// Whether every inner cell of U and V is a finite number.
    pub fn is_finite(&self) -> bool {
        let sound = |array: &[T]| {
            (0..self.count[0]).all(|z| {
                (0..self.count[1]).all(|y| {
                    // 0 x is 0 for finite numbers and NaN for all others; summing keeps the loop branch-free.
                    array[self.row(z, y)].iter().fold(T::of(0.0), |sum, &x| sum + x * T::of(0.0))
                        == T::of(0.0)
                })
            })
        };
        sound(&self.u) && sound(&self.v)
    }

    /// Cells of one face across `axis`.
    pub fn face_cells(&self, axis: usize) -> usize {
        self.count.iter().product::<usize>() / self.count[axis]
    }

    /// Writes the outermost inner layer at `side` of `axis` to `out`: all of U, then all of V, in C order.
    pub fn pack_face(&self, axis: usize, side: Side, out: &mut [T]) {
        let layer = match side {
            Side::Low => 1,
            Side::High => self.count[axis],
        };
        let (out_u, out_v) = out.split_at_mut(self.face_cells(axis));
        for (array, out) in [(&self.u, out_u), (&self.v, out_v)] {
            let mut at = 0;
            for_runs(self.count, axis, layer, |first, len| {
                out[at..at + len].copy_from_slice(&array[first..first + len]);
                at += len;
            });
        }
    }

    /// Fills the ghost layer at `side` of `axis` from what the neighbour there packed.
    pub fn unpack_face(&mut self, axis: usize, side: Side, from: &[T]) {
        let layer = match side {
            Side::Low => 0,
            Side::High => self.count[axis] + 1,
        };
        let (from_u, from_v) = from.split_at(self.face_cells(axis));
        for (array, from) in [(&mut self.u, from_u), (&mut self.v, from_v)] {
            let mut at = 0;
            for_runs(self.count, axis, layer, |first, len| {
                array[first..first + len].copy_from_slice(&from[at..at + len]);
                at += len;
            });
        }
    }

    /// Fills the ghost layers of `axis` from the other end of this box: the periodic wrap of an axis that is
    /// not cut.
    pub fn wrap(&mut self, axis: usize) {
        let n = self.count[axis];
        let stride = if axis == 2 { 1 } else { self.strides()[axis] };
        for (from, to) in [(n, 0), (1, n + 1)] {
            for_runs(self.count, axis, from, |first, len| {
                let target = first - from * stride + to * stride;
                self.u.copy_within(first..first + len, target);
                self.v.copy_within(first..first + len, target);
            });
        }
    }
}

/// Calls `visit(first, len)` for the contiguous runs of layer `layer` (padded index) across `axis`, in C
/// order, without the padding of the other axes.
fn for_runs(count: [usize; 3], axis: usize, layer: usize, mut visit: impl FnMut(usize, usize)) {
    let [nz, ny, nx] = count;
    let [plane, row] = padded_strides(count);
    match axis {
        0 => (1..=ny).for_each(|y| visit(layer * plane + y * row + 1, nx)),
        1 => (1..=nz).for_each(|z| visit(z * plane + layer * row + 1, nx)),
        _ => (1..=nz).for_each(|z| (1..=ny).for_each(|y| visit(z * plane + y * row + layer, 1))),
    }
}

fn padded_strides([_, ny, nx]: [usize; 3]) -> [usize; 2] {
    [(ny + 2) * (nx + 2), nx + 2]
}

/// Index of a cell in the whole grid, in C order.
pub fn global_index(shape: [usize; 3], cell: [usize; 3]) -> u64 {
    ((cell[0] as u64) * shape[1] as u64 + cell[1] as u64) * shape[2] as u64 + cell[2] as u64
}

/// Initial U and V of one cell, without noise.
fn seeded(deck: &Deck, cell: [usize; 3]) -> (f64, f64) {
    let inside =
        |s: &&super::deck::Seed| (0..3).all(|a| cell[a] >= s.start[a] && cell[a] - s.start[a] < s.count[a]);
    deck.seeds.iter().rev().find(inside).map_or((1.0, 0.0), |s| (s.u, s.v))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: [usize; 3]) -> Fields<f64> {
        let mut fields = Fields::zeroed([0; 3], count).unwrap();
        let mut n = 0.0;
        for z in 0..count[0] {
            for y in 0..count[1] {
                for i in fields.row(z, y) {
                    n += 1.0;
                    fields.u[i] = n;
                    fields.v[i] = -n;
                }
            }
        }
        fields
    }

    #[test]
    fn wrap_equals_sending_the_face_to_oneself() {
        for axis in 0..3 {
            let mut wrapped = numbered([3, 4, 5]);
            wrapped.wrap(axis);
            let mut sent = numbered([3, 4, 5]);
            let mut face = vec![0.0; 2 * sent.face_cells(axis)];
            for (from, to) in [(Side::High, Side::Low), (Side::Low, Side::High)] {
                sent.pack_face(axis, from, &mut face);
                sent.unpack_face(axis, to, &face);
            }
            assert_eq!(wrapped.u, sent.u);
            assert_eq!(wrapped.v, sent.v);
            let ghosts = wrapped.u.iter().filter(|x| **x != 0.0).count() - 60;
            assert_eq!(ghosts, 2 * sent.face_cells(axis), "every ghost of the axis, and only those");
        }
    }

    #[test]
    fn initial_condition_does_not_depend_on_the_box() {
        let deck = Deck::parse("pattern = \"mu\"\nshape = [6, 7, 8]\n[noise]\ninitial = 0.01").unwrap();
        let whole = Fields::<f64>::initial(&deck, [0; 3], [6, 7, 8]).unwrap();
        let part = Fields::<f64>::initial(&deck, [1, 2, 3], [4, 3, 2]).unwrap();
        for z in 0..4 {
            for y in 0..3 {
                let from = whole.row(z + 1, y + 2).start + 3;
                assert_eq!(part.u[part.row(z, y)], whole.u[from..from + 2]);
                assert_eq!(part.v[part.row(z, y)], whole.v[from..from + 2]);
            }
        }
        assert!(whole.v.iter().any(|v| *v > 0.3), "the seed is there");
    }

    #[test]
    fn infinite_values_are_noticed_and_ghosts_ignored() {
        let mut fields = numbered([3, 3, 3]);
        fields.u[0] = f64::NAN;
        assert!(fields.is_finite());
        let inner = fields.row(2, 1).start;
        fields.v[inner] = f64::INFINITY;
        assert!(!fields.is_finite());
    }
}
