//! What analytics do with one object: read all of it, or multiply the matrices in it. Pure functions.

use serde::{Deserialize, Serialize};

/// Which analytics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads everything and adds it up.
    ReadOnly,
    /// Multiplies matrices.
    Multiply {
        /// Times that a product is multiplied by its right factor again.
        again: usize,
    },
}

impl Work {
    /// Name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Work::ReadOnly => "read-only",
            Work::Multiply { .. } => "matrix-multiply",
        }
    }
}

/// What came out of a part of a version.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Objects, or stretches of an array.
    pub objects: u64,
    /// Values that were added up: cells or numbers of particles, or results of products.
    pub values: u64,
    /// Products of two matrices.
    pub products: u64,
    /// Their sum, least and greatest.
    pub sum: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// Of every bit that was read or computed, and its place; the same in any order of the parts.
    pub checksum: u64,
}

impl Default for Findings {
    fn default() -> Findings {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Findings { objects: 0, values: 0, products: 0, sum: 0.0, min, max, checksum: 0 }
    }
}

impl Findings {
    /// Numbers of [`Findings::to_words`].
    pub const WORDS: usize = 7;

    /// For transport.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let [sum, min, max] = [self.sum, self.min, self.max].map(f64::to_bits);
        [self.objects, self.values, self.products, sum, min, max, self.checksum]
    }

    /// The reverse.
    pub fn from_words(words: [u64; Self::WORDS]) -> Findings {
        let [objects, values, products, sum, min, max, checksum] = words;
        let [sum, min, max] = [sum, min, max].map(f64::from_bits);
        Findings { objects, values, products, sum, min, max, checksum }
    }

    /// Adds the findings of another part.
    pub fn add(&mut self, other: &Findings) {
        self.objects += other.objects;
        self.values += other.values;
        self.products += other.products;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }

    fn value(&mut self, value: f64) {
        self.values += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// `place` is the number of the first of these among all of the version.
    fn check_in(&mut self, values: &[f64], place: u64) {
        for (i, value) in values.iter().enumerate() {
            let factor = (place + i as u64).wrapping_mul(2).wrapping_add(1);
            self.checksum = self.checksum.wrapping_add(value.to_bits().wrapping_mul(factor));
        }
    }
}

/// Edge of the block of a stencil object, if this is one: its head says it, and its length agrees.
fn edge_of(object: &[f64]) -> Option<usize> {
    let edge = *object.get(6)? as usize;
    let padded = edge.checked_add(2)?;
    ((6..1 << 16).contains(&edge) && object.len() == padded + padded.pow(2) + padded.pow(3)).then_some(edge)
}

/// The rows of cells of a stencil object without ghost cells, plane by plane.
fn rows(object: &[f64], edge: usize) -> impl Iterator<Item = &[f64]> {
    let padded = edge + 2;
    let cells = &object[padded + padded * padded..];
    (0..edge * edge).map(move |row| {
        let first = ((row / edge + 1) * padded + row % edge + 1) * padded + 1;
        &cells[first..first + edge]
    })
}

/// Works on one object of the stencil code; `place` is its number among all of the version. None: it is no such
/// object, or its rows do not add up to what it says of them.
pub fn of_block(work: Work, object: &[f64], place: u64) -> Option<Findings> {
    let edge = edge_of(object)?;
    let mut findings = Findings { objects: 1, ..Findings::default() };
    match work {
        Work::ReadOnly => {
            let padded = edge + 2;
            let (sums, cells) = object[padded..].split_at(padded * padded);
            let agree =
                sums.iter().zip(cells.chunks_exact(padded)).all(|(sum, row)| *sum == row.iter().sum::<f64>());
            if !agree {
                return None;
            }
            rows(object, edge).flatten().for_each(|&cell| findings.value(cell));
            findings.check_in(object, place * object.len() as u64);
        }
        Work::Multiply { again } => {
            let planes: Vec<f64> = rows(object, edge).flatten().copied().collect();
            let plane = edge * edge;
            for (i, pair) in planes.windows(2 * plane).step_by(plane).enumerate() {
                let result = product(&pair[..plane], &pair[plane..], edge, again);
                findings.products += 1 + again as u64;
                findings.value(result);
                findings.check_in(&[result], place * edge as u64 + i as u64);
            }
        }
    }
    Some(findings)
}

/// A stretch of a two-dimensional array that one rank put: `rows` rows of as many columns.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// Its values, row by row.
    pub values: &'a [f64],
    /// Rows.
    pub rows: usize,
    /// First column, and number of columns of the whole array.
    pub first: usize,
    /// Columns of the whole array.
    pub columns: usize,
    /// Number of the array among all of the version.
    pub array: u64,
}

/// Columns that a stretch is a multiple of.
pub fn columns_together(work: Work, rows: usize) -> usize {
    match work {
        Work::ReadOnly => 1,
        Work::Multiply { .. } => 2 * rows,
    }
}

/// Works on a stretch of an array.
pub fn of_stretch(work: Work, stretch: &Stretch<'_>) -> Findings {
    let Stretch { values, rows, first, columns, array } = *stretch;
    let width = values.len() / rows.max(1);
    let mut findings = Findings { objects: 1, ..Findings::default() };
    match work {
        Work::ReadOnly => {
            for (row, values) in values.chunks_exact(width).enumerate() {
                values.iter().for_each(|&value| findings.value(value));
                findings.check_in(values, (array * rows as u64 + row as u64) * columns as u64 + first as u64);
            }
        }
        Work::Multiply { again } => {
            let together = columns_together(work, rows);
            let (mut left, mut right) = (vec![0.0; rows * rows], vec![0.0; rows * rows]);
            for pair in 0..width / together {
                for row in 0..rows {
                    let from = row * width + pair * together;
                    left[row * rows..(row + 1) * rows].copy_from_slice(&values[from..from + rows]);
                    right[row * rows..(row + 1) * rows]
                        .copy_from_slice(&values[from + rows..from + 2 * rows]);
                }
                let result = product(&left, &right, rows, again);
                findings.products += 1 + again as u64;
                findings.value(result);
                let place = array * (columns / together) as u64 + (first / together + pair) as u64;
                findings.check_in(&[result], place);
            }
        }
    }
    findings
}

/// The sum of the elements of `left * right`, multiplied by `right` again so many times. The right factor is scaled
/// so that this never overflows.
pub fn product(left: &[f64], right: &[f64], n: usize, again: usize) -> f64 {
    let largest = right.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let scale = if largest > 0.0 { 1.0 / (largest * n as f64) } else { 1.0 };
    let (mut from, mut to) = (left.to_vec(), vec![0.0; n * n]);
    for _ in 0..=again {
        for (row, out) in from.chunks_exact(n).zip(to.chunks_exact_mut(n)) {
            out.fill(0.0);
            for (factor, right) in row.iter().zip(right.chunks_exact(n)) {
                out.iter_mut().zip(right).for_each(|(out, right)| *out += factor * scale * right);
            }
        }
        std::mem::swap(&mut from, &mut to);
    }
    from.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_textbook() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        // a b = [19 22; 43 50]; scaled by 1 / (8 * 2).
        assert!((product(&a, &b, 2, 0) - (19.0 + 22.0 + 43.0 + 50.0) / 16.0).abs() < 1e-12);
        // a b b = [249 290; 565 658].
        assert!((product(&a, &b, 2, 1) - (249.0 + 290.0 + 565.0 + 658.0) / 256.0).abs() < 1e-12);
        assert_eq!(product(&a, &[0.0; 4], 2, 3), 0.0);
    }

    #[test]
    fn stretches_add_up_to_the_whole_for_both_kinds_of_work() {
        let (rows, columns) = (3, 24);
        let whole: Vec<f64> = (0..rows * columns).map(|i| (i * 7 % 23) as f64 - 4.0).collect();
        for work in [Work::ReadOnly, Work::Multiply { again: 2 }] {
            let of = |first: usize, width: usize| {
                let values: Vec<f64> = (0..rows)
                    .flat_map(|r| whole[r * columns + first..r * columns + first + width].to_vec())
                    .collect();
                of_stretch(work, &Stretch { values: &values, rows, first, columns, array: 2 })
            };
            let all = of(0, columns);
            let mut parts = Findings::default();
            [(0, 6), (6, 12), (18, 6)].iter().for_each(|&(first, width)| parts.add(&of(first, width)));
            assert_eq!(
                (parts.values, parts.products, parts.checksum),
                (all.values, all.products, all.checksum)
            );
            assert_eq!((parts.min, parts.max), (all.min, all.max));
            assert!((parts.sum - all.sum).abs() < 1e-9);
            assert_eq!(Findings::from_words(all.to_words()), all);
        }
    }

    #[test]
    fn a_block_whose_rows_do_not_add_up_is_found() {
        let mut object = vec![0.0; 584];
        object[6] = 6.0;
        object[72 + 75] = 2.5;
        assert!(of_block(Work::ReadOnly, &object, 0).is_none());
        object[8 + 9] = 2.5;
        let findings = of_block(Work::ReadOnly, &object, 0).unwrap();
        assert_eq!((findings.values, findings.sum, findings.max), (216, 2.5, 2.5));
        assert_eq!(of_block(Work::Multiply { again: 0 }, &object, 0).unwrap().products, 5);
        object[6] = 8.0;
        assert!(of_block(Work::ReadOnly, &object, 0).is_none(), "its length is not that of such a block");
    }
}
