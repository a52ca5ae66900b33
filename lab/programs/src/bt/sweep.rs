//! The two halves of a step, each over a part of the grid and by some threads: planes, in which the right-hand side is
//! computed and lines along x and y are solved while the plane is in the cache; and columns, sheets of lines along z
//! which are solved and added to the field.
//!
//! Guarantees: what comes out is the same bit for bit for every number of threads and every part.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::lanes::{Lanes, LANES};
use super::lines::{lanes, order, Factors, Lines};
use super::operator::{derive, Planes, DAMPING};
use super::{Problem, COMPONENTS};

/// How far the first half of a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// The right-hand side alone.
    Side,
    /// And lines along x and y.
    Solved,
}

impl Problem {
    fn factors(&self, axis: usize) -> Factors {
        let inverse = (self.n - 1) as f64;
        Factors {
            first: self.dt * 0.5 * inverse,
            second: self.dt * inverse * inverse,
            damping: DAMPING[axis],
        }
    }

    fn inner(&self) -> usize {
        self.n - 2
    }

    fn row_values(&self) -> usize {
        self.n * COMPONENTS
    }

    pub(super) fn plane_values(&self) -> usize {
        self.n * self.row_values()
    }
}

/// The first half of a step for the inner planes `own`, whose forcing and right-hand side `forcing` and `rhs` hold.
pub(super) fn planes(
    field: &Planes<'_>,
    own: Range<usize>,
    forcing: &[f64],
    rhs: &mut [f64],
    half: Half,
    threads: usize,
) {
    let problem = field.problem;
    let values = problem.plane_values();
    let each = own.zip(forcing.chunks_exact(values)).zip(rhs.chunks_exact_mut(values));
    share_out(&problem, each, threads, |((k, forcing), rhs), lines| {
        rhs.copy_from_slice(forcing);
        field.add_to(k, rhs);
        rhs.iter_mut().for_each(|x| *x *= problem.dt);
        if half == Half::Solved {
            let at = (k - field.first) * values;
            let u = &field.u[at..at + values];
            solve_plane(&problem, u, rhs, 0, lines);
            solve_plane(&problem, u, rhs, 1, lines);
        }
    });
}

/// Works on all pieces by some threads. Each takes the next one when it is done with its last, so that none waits long
/// for one that shares its processor with something else.
fn share_out<T: Send>(
    problem: &Problem,
    pieces: impl ExactSizeIterator<Item = T> + Send,
    threads: usize,
    work: impl Fn(T, &mut Lines) + Sync,
) {
    let helpers = threads.min(pieces.len()).saturating_sub(1);
    let pieces = Mutex::new(pieces);
    let take = || {
        let mut lines = Lines::new(problem.inner());
        // Not in the loop's head, where the lock would be held during the work.
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(piece) = next() {
            work(piece, &mut lines);
        }
    };
    std::thread::scope(|scope| {
        (0..helpers).for_each(|_| drop(scope.spawn(take)));
        take();
    });
}

/// Solves the lines of a plane along x (0) or y (1).
fn solve_plane(problem: &Problem, u: &[f64], rhs: &mut [f64], axis: usize, lines: &mut Lines) {
    let (inner, row) = (problem.inner(), problem.row_values());
    let (along, across) = if axis == 0 { (COMPONENTS, row) } else { (row, COMPONENTS) };
    let (order, factors) = (order(axis), problem.factors(axis));
    for first in (1..=inner).step_by(LANES) {
        let count = LANES.min(inner + 1 - first);
        let bases = lanes(first, count).map(|line| line * across + along);
        for point in 0..inner {
            let at = bases.map(|base| base + point * along);
            for (to, m) in order.into_iter().enumerate() {
                lines.u[point][to] = Lanes(at.map(|at| u[at + m]));
                lines.r[point][to] = Lanes(at.map(|at| rhs[at + m]));
            }
        }
        lines.solve(&factors);
        for point in 0..inner {
            for (lane, base) in bases[..count].iter().enumerate() {
                for (from, m) in order.into_iter().enumerate() {
                    rhs[base + point * along + m] = lines.r[point][from].0[lane];
                }
            }
        }
    }
}

/// A sheet of lines along z: the rows of one j, of all inner k.
pub(super) struct Sheet<'a> {
    /// Components; the solution is added.
    pub u: Vec<&'a mut [f64]>,
    /// The right-hand side, which becomes the solution.
    pub rhs: Vec<&'a mut [f64]>,
    /// What follows from the components, if they are wanted: 1 by density and half the squares of the momenta by it.
    pub derived: Vec<(&'a mut [f64], &'a mut [f64])>,
}

/// The second half of a step.
pub(super) fn sheets(problem: &Problem, sheets: &mut [Sheet<'_>], threads: usize) {
    share_out(problem, sheets.iter_mut(), threads, |sheet, lines| solve_sheet(problem, sheet, lines));
}

fn solve_sheet(problem: &Problem, sheet: &mut Sheet<'_>, lines: &mut Lines) {
    let (inner, order, factors) = (problem.inner(), order(2), problem.factors(2));
    for first in (1..=inner).step_by(LANES) {
        let count = LANES.min(inner + 1 - first);
        let at = lanes(first, count).map(|i| i * COMPONENTS);
        for (point, (u, rhs)) in sheet.u.iter().zip(&sheet.rhs).enumerate() {
            for (to, m) in order.into_iter().enumerate() {
                lines.u[point][to] = Lanes(at.map(|at| u[at + m]));
                lines.r[point][to] = Lanes(at.map(|at| rhs[at + m]));
            }
        }
        lines.solve(&factors);
        for (point, rhs) in sheet.rhs.iter_mut().enumerate() {
            for (lane, at) in at[..count].iter().enumerate() {
                for (from, m) in order.into_iter().enumerate() {
                    rhs[at + m] = lines.r[point][from].0[lane];
                }
            }
        }
    }
    for (u, rhs) in sheet.u.iter_mut().zip(&sheet.rhs) {
        u.iter_mut().zip(rhs.iter()).for_each(|(u, x)| *u += x);
    }
    for (u, (rho_i, square)) in sheet.u.iter().zip(&mut sheet.derived) {
        derive(u, rho_i, square);
    }
}
