//! The whole grid in one process: its arrays, a step, and what is left of the state when it is saved.
//!
//! What a run needs to go on is `u` and the number of the step: everything else follows from them, bit for bit. The
//! other arrays are kept for speed; programs that save all of them save 17 numbers for each point instead of 5.

use super::exact::{exact, initial};
use super::operator::{derive, Planes};
use super::sweep::{planes, sheets, Half, Sheet};
use super::{Norms, Problem, COMPONENTS};
use forebay_space::{Error, Kind, Result};

/// See the file's head.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    problem: Problem,
    step: u64,
    u: Vec<f64>,
    rhs: Vec<f64>,
    forcing: Vec<f64>,
    rho_i: Vec<f64>,
    square: Vec<f64>,
}

impl State {
    /// The field that a run begins with.
    ///
    /// # Errors
    /// `TierFull` without memory.
    pub fn new(problem: Problem, threads: usize) -> Result<State> {
        let points = problem.n.pow(3);
        let array = |values: usize| -> Result<Vec<f64>> {
            let mut array = Vec::new();
            array.try_reserve_exact(values).map_err(|_| {
                Error::new(Kind::TierFull, "there is no memory for the grid").with("bytes", values * 8)
            })?;
            array.resize(values, 0.0);
            Ok(array)
        };
        let five = || array(points * COMPONENTS);
        let mut state = State {
            problem,
            step: 0,
            u: five()?,
            rhs: five()?,
            forcing: five()?,
            rho_i: array(points)?,
            square: array(points)?,
        };
        state.force(threads);
        problem.fill(0, &mut state.u, initial);
        derive(&state.u, &mut state.rho_i, &mut state.square);
        Ok(state)
    }

    /// Makes the forcing: minus the operator of the exact solution, so that this is where a run would come to rest.
    fn force(&mut self, threads: usize) {
        let n = self.problem.n;
        self.problem.fill(0, &mut self.u, |place, _| exact(place));
        derive(&self.u, &mut self.rho_i, &mut self.square);
        // Without a factor for the time.
        let problem = Problem { dt: -1.0, ..self.problem };
        let field = Planes { problem, first: 0, u: &self.u, rho_i: &self.rho_i, square: &self.square };
        let own = problem.plane_values()..(n - 1) * problem.plane_values();
        planes(&field, 1..n - 1, &self.rhs[own.clone()], &mut self.forcing[own], Half::Side, threads);
    }

    /// What is computed.
    pub fn problem(&self) -> Problem {
        self.problem
    }

    /// Steps that were done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The five components of each point, x first, then y, then z.
    pub fn u(&self) -> &[f64] {
        &self.u
    }

    /// Goes on from a field that was saved after a step.
    ///
    /// # Errors
    /// `Usage` when it is that of another grid.
    pub fn restore(&mut self, step: u64, u: &[f64]) -> Result<()> {
        if u.len() != self.u.len() {
            return Err(Error::new(Kind::Usage, "a saved field is that of another grid")
                .with("values", u.len())
                .with("wanted", self.u.len()));
        }
        self.u.copy_from_slice(u);
        self.step = step;
        derive(&self.u, &mut self.rho_i, &mut self.square);
        Ok(())
    }

    /// All arrays by name, 17 values for each point: what a program saves that does not know which it needs.
    pub fn arrays(&self) -> [(&'static str, &[f64]); 5] {
        [
            ("u", &self.u),
            ("rhs", &self.rhs),
            ("forcing", &self.forcing),
            ("rho_i", &self.rho_i),
            ("square", &self.square),
        ]
    }

    /// The same to be restored; the number of the step beside.
    pub fn arrays_mut(&mut self) -> ([(&'static str, &mut [f64]); 5], &mut u64) {
        let arrays = [
            ("u", &mut self.u[..]),
            ("rhs", &mut self.rhs),
            ("forcing", &mut self.forcing),
            ("rho_i", &mut self.rho_i),
            ("square", &mut self.square),
        ];
        (arrays, &mut self.step)
    }

    fn first_half(&mut self, half: Half, threads: usize) {
        let problem = self.problem;
        let field = Planes { problem, first: 0, u: &self.u, rho_i: &self.rho_i, square: &self.square };
        let own = problem.plane_values()..(problem.n - 1) * problem.plane_values();
        planes(&field, 1..problem.n - 1, &self.forcing[own.clone()], &mut self.rhs[own], half, threads);
    }

    /// One step.
    pub fn advance(&mut self, threads: usize) {
        self.first_half(Half::Solved, threads);
        let n = self.problem.n;
        let mut all: Vec<Sheet<'_>> = (0..n)
            .map(|_| Sheet { u: Vec::with_capacity(n), rhs: Vec::with_capacity(n), derived: Vec::new() })
            .collect();
        let row = n * COMPONENTS;
        let rows = self.u.chunks_exact_mut(row).zip(self.rhs.chunks_exact_mut(row));
        let rows = rows.zip(self.rho_i.chunks_exact_mut(n).zip(self.square.chunks_exact_mut(n)));
        for (at, ((u, rhs), derived)) in rows.enumerate() {
            let (j, k) = (at % n, at / n);
            if (1..n - 1).contains(&k) {
                all[j].u.push(u);
                all[j].rhs.push(rhs);
                all[j].derived.push(derived);
            }
        }
        sheets(&self.problem, &mut all[1..n - 1], threads);
        self.step += 1;
    }

    /// How far the field is from rest, and from the exact solution. Computes the right-hand side anew.
    pub fn norms(&mut self, threads: usize) -> Norms {
        self.first_half(Half::Side, threads);
        let mut sums = Norms::default();
        let values = self.problem.plane_values();
        for (k, (u, rhs)) in self.u.chunks_exact(values).zip(self.rhs.chunks_exact(values)).enumerate() {
            sums.add(&self.problem.sums(k, u, rhs));
        }
        self.problem.norms(&sums)
    }
}

impl Problem {
    /// Sums of squares of one plane: of its right-hand side, and of what its components differ by from the exact ones.
    pub(super) fn sums(&self, k: usize, u: &[f64], rhs: &[f64]) -> Norms {
        let mut residual = [0.0; COMPONENTS];
        for rhs in rhs.chunks_exact(COMPONENTS) {
            residual.iter_mut().zip(rhs).for_each(|(sum, x)| *sum += x * x);
        }
        Norms { residual, error: self.error_sums(k, u) }
    }

    /// Sums of the squares of what the components of a plane differ by from the exact solution.
    pub(super) fn error_sums(&self, k: usize, u: &[f64]) -> [f64; COMPONENTS] {
        let mut sums = [0.0; COMPONENTS];
        for (at, u) in u.chunks_exact(COMPONENTS).enumerate() {
            let exact = exact(self.place(at % self.n, at / self.n, k));
            sums.iter_mut().zip(u.iter().zip(exact)).for_each(|(sum, (u, x))| *sum += (u - x) * (u - x));
        }
        sums
    }

    /// The norms that these sums of all planes make.
    pub(super) fn norms(&self, sums: &Norms) -> Norms {
        let inner = ((self.n - 2) as f64).powi(3);
        Norms {
            residual: sums.residual.map(|sum| (sum / inner).sqrt() / self.dt),
            error: sums.error.map(|sum| (sum / inner).sqrt()),
        }
    }
}
