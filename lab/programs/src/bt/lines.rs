//! Lines of the implicit step: block tridiagonal systems of 5 x 5 blocks, a few lines at a time, by Thomas'
//! algorithm.
//!
//! The row of point i is
//!
//! ```text
//! [-a A(i-1) - b (N(i-1) + d)] x(i-1) + [1 + 2b (N(i) + d)] x(i) + [a A(i+1) - b (N(i+1) + d)] x(i+1) = r(i)
//! ```
//!
//! with a = dt/2h, b = dt/h², A and N the derivatives of the convective and the viscous terms along the line by the
//! components, whose order is: density, momentum along the line, the other two, energy. Boundary points have x = 0.
//! Many entries are always zero: they are neither kept nor multiplied.

// Indices are those of the equations, several arrays long.
#![allow(clippy::needless_range_loop)]

use super::lanes::{Lanes, LANES};
use super::operator::{C1, C1C5, C2, C3C4};
use super::COMPONENTS;

type Column = [Lanes; COMPONENTS];
type Block = [Column; COMPONENTS];

/// What multiplies the derivatives.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    /// dt/2h.
    pub first: f64,
    /// dt/h².
    pub second: f64,
    /// The damping of this direction.
    pub damping: f64,
}

/// Memory for a few lines and their solution.
pub(super) struct Lines {
    /// Components of the inner points.
    pub u: Vec<Column>,
    /// The right-hand side; after [`Lines::solve`] the solution.
    pub r: Vec<Column>,
    /// What is left of the block to the right of the diagonal.
    right: Vec<Block>,
}

/// Derivatives at a point, times their factors.
#[derive(Clone, Copy)]
struct Derivatives {
    /// A without its first row, which is 0 1 0 0 0.
    convective: [Column; COMPONENTS - 1],
    /// First column of N, and its diagonal, from the second row on; the rest of its last row.
    viscous_first: [Lanes; COMPONENTS - 1],
    viscous_diagonal: [Lanes; COMPONENTS - 1],
    viscous_last: [Lanes; 3],
}

impl Derivatives {
    #[inline(always)]
    fn of(u: &Column, factors: &Factors) -> Derivatives {
        let zero = Lanes::all(0.0);
        let rho_i = u[0].inverse();
        let (v1, v2, v3, e) = (u[1] * rho_i, u[2] * rho_i, u[3] * rho_i, u[4] * rho_i);
        let (v11, v22, v33) = (v1 * v1, v2 * v2, v3 * v3);
        let q = 0.5 * (v11 + v22 + v33);
        // The factor first: what follows is linear in it.
        let f = factors.first;
        let (w1, w2, w3) = (f * v1, f * v2, f * v3);
        let convective = [
            [f * (C2 * q - v11), (2.0 - C2) * w1, -C2 * w2, -C2 * w3, Lanes::all(f * C2)],
            [-(v1 * w2), w2, w1, zero, zero],
            [-(v1 * w3), w3, zero, w1, zero],
            [
                (2.0 * C2 * q - C1 * e) * w1,
                f * (C1 * e - C2 * (v11 + q)),
                -C2 * (v2 * w1),
                -C2 * (v3 * w1),
                C1 * w1,
            ],
        ];
        let s = factors.second * rho_i;
        let (along, across, heat) = (4.0 / 3.0 * C3C4, C3C4, C1C5 * C3C4);
        let energy = (along - heat) * v11 + (across - heat) * (v22 + v33) + heat * e;
        Derivatives {
            convective,
            viscous_first: [-along * (s * v1), -across * (s * v2), -across * (s * v3), -(s * energy)],
            viscous_diagonal: [along * s, across * s, across * s, heat * s],
            viscous_last: [(along - heat) * (s * v1), (across - heat) * (s * v2), (across - heat) * (s * v3)],
        }
    }

    /// `sign` A - N - d: the block beside the diagonal.
    #[inline(always)]
    fn beside(&self, sign: f64, factors: &Factors) -> Block {
        let zero = Lanes::all(0.0);
        let damped = Lanes::all(factors.second * factors.damping);
        let first = [-damped, Lanes::all(sign * factors.first), zero, zero, zero];
        let mut rows = self.convective.map(|row| row.map(|x| sign * x));
        for (at, row) in rows.iter_mut().enumerate() {
            row[0] -= self.viscous_first[at];
            row[at + 1] -= self.viscous_diagonal[at] + damped;
        }
        (0..3).for_each(|at| rows[3][at + 1] -= self.viscous_last[at]);
        [first, rows[0], rows[1], rows[2], rows[3]]
    }

    /// 1 + 2 (N + d): the block on the diagonal.
    #[inline(always)]
    fn on(&self, factors: &Factors) -> Block {
        let damped = Lanes::all(1.0 + 2.0 * factors.second * factors.damping);
        let mut block = [[Lanes::all(0.0); COMPONENTS]; COMPONENTS];
        block[0][0] = damped;
        for at in 0..COMPONENTS - 1 {
            block[at + 1][0] = 2.0 * self.viscous_first[at];
            block[at + 1][at + 1] = damped + 2.0 * self.viscous_diagonal[at];
        }
        (0..3).for_each(|at| block[4][at + 1] = 2.0 * self.viscous_last[at]);
        block
    }
}

/// Takes from one row of the diagonal block, and of the right-hand side, what the row of `left` with these entries has
/// to do with the point before.
#[inline(always)]
fn take<const FILLED: usize>(
    left: &Column,
    filled: [usize; FILLED],
    (before, solved): (&Block, &Column),
    (diagonal, r): (&mut Column, &mut Lanes),
) {
    for at in filled {
        for column in 0..COMPONENTS {
            diagonal[column] -= left[at] * before[at][column];
        }
        *r -= left[at] * solved[at];
    }
}

/// Solves with the diagonal block for the block to its right and the right-hand side: Gauss, without exchanges, since
/// the diagonal dominates.
#[inline(always)]
fn eliminate(diagonal: &mut Block, right: &mut Block, r: &mut Column) {
    for pivot in 0..COMPONENTS {
        let inverse = diagonal[pivot][pivot].inverse();
        for column in pivot + 1..COMPONENTS {
            diagonal[pivot][column] *= inverse;
        }
        right[pivot].iter_mut().for_each(|x| *x *= inverse);
        r[pivot] *= inverse;
        for row in pivot + 1..COMPONENTS {
            let factor = diagonal[row][pivot];
            for column in pivot + 1..COMPONENTS {
                let x = diagonal[pivot][column];
                diagonal[row][column] -= factor * x;
            }
            for column in 0..COMPONENTS {
                let x = right[pivot][column];
                right[row][column] -= factor * x;
            }
            let x = r[pivot];
            r[row] -= factor * x;
        }
    }
    for row in (0..COMPONENTS - 1).rev() {
        for from in row + 1..COMPONENTS {
            let factor = diagonal[row][from];
            for column in 0..COMPONENTS {
                let x = right[from][column];
                right[row][column] -= factor * x;
            }
            let x = r[from];
            r[row] -= factor * x;
        }
    }
}

impl Lines {
    /// For lines of so many inner points.
    pub fn new(points: usize) -> Lines {
        let column = [Lanes::all(0.0); COMPONENTS];
        Lines { u: vec![column; points], r: vec![column; points], right: vec![[column; COMPONENTS]; points] }
    }

    /// Solves the lines.
    pub fn solve(&mut self, factors: &Factors) {
        let points = self.u.len();
        let mut here = Derivatives::of(&self.u[0], factors);
        // To the left of the first point is the boundary, where nothing changes.
        let mut left = [[Lanes::all(0.0); COMPONENTS]; COMPONENTS];
        let (mut before, mut solved) = (left, [Lanes::all(0.0); COMPONENTS]);
        for at in 0..points {
            let next = (at + 1 < points).then(|| Derivatives::of(&self.u[at + 1], factors));
            let mut diagonal = here.on(factors);
            let mut r = self.r[at];
            let past = (&before, &solved);
            take(&left[0], [0, 1], past, (&mut diagonal[0], &mut r[0]));
            take(&left[1], [0, 1, 2, 3, 4], past, (&mut diagonal[1], &mut r[1]));
            take(&left[2], [0, 1, 2], past, (&mut diagonal[2], &mut r[2]));
            take(&left[3], [0, 1, 3], past, (&mut diagonal[3], &mut r[3]));
            take(&left[4], [0, 1, 2, 3, 4], past, (&mut diagonal[4], &mut r[4]));
            // To the right of the last point as well.
            let mut right =
                next.map_or([[Lanes::all(0.0); COMPONENTS]; COMPONENTS], |next| next.beside(1.0, factors));
            eliminate(&mut diagonal, &mut right, &mut r);
            left = here.beside(-1.0, factors);
            (self.right[at], self.r[at]) = (right, r);
            (before, solved) = (right, r);
            here = next.unwrap_or(here);
        }
        for at in (0..points - 1).rev() {
            let (below, above) = self.r.split_at_mut(at + 1);
            let (x, known) = (&mut below[at], &above[0]);
            for (row, x) in x.iter_mut().enumerate() {
                for column in 0..COMPONENTS {
                    *x -= self.right[at][row][column] * known[column];
                }
            }
        }
    }
}

/// The order of the components for lines along an axis: see the file's head.
pub(super) fn order(axis: usize) -> [usize; COMPONENTS] {
    let (second, third) = ((axis + 1) % 3, (axis + 2) % 3);
    [0, 1 + axis, 1 + second, 1 + third, 4]
}

/// The lanes' points: `first`, and so many more, `count` in all; where there are fewer than lanes, the last again.
pub(super) fn lanes(first: usize, count: usize) -> [usize; LANES] {
    std::array::from_fn(|lane| first + lane.min(count - 1))
}
