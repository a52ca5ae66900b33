//! BT: the compressible Navier–Stokes equations on a cube by alternating directions, block-tridiagonal systems of 5
//! x 5 blocks along each; after the problem of that name in the NAS Parallel Benchmarks (Bailey et al.,
//! RNR-94-007).
//!
//! A step computes the right-hand side, solves along x, y and z, and adds the result. [`State`] is the grid in one
//! process, by some threads; [`Piece`] is a rank's part of it, in a group of processes. After the steps of a class
//! its norms are compared with the published ones.
//!
//! Guarantees: every value is the same bit for bit for every number of threads and ranks, and after going on from a
//! saved field. Not here: where a field is saved.

mod dump;
mod exact;
mod lanes;
mod lines;
mod operator;
mod piece;
mod published;
mod ranks;
mod save;
mod state;
mod sweep;

pub use crate::npb::Class;
pub use dump::Mode;
pub use piece::Piece;
pub use ranks::{run, simulate, BtArgs, Dumped, Summary};
pub use save::Saved;
pub use state::State;

/// Density, three momenta, energy.
pub const COMPONENTS: usize = 5;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Problem {
    /// Points along each edge of the cube.
    pub n: usize,
    /// Steps.
    pub steps: u64,
    /// Time of a step.
    pub dt: f64,
}

impl Problem {
    /// That of a class.
    pub fn of(class: Class) -> Problem {
        let (n, steps, dt) = match class {
            Class::S => (12, 60, 0.01),
            Class::W => (24, 200, 0.0008),
            Class::A => (64, 200, 0.0008),
            Class::B => (102, 200, 0.0003),
        };
        Problem { n, steps, dt }
    }

    /// Points of the grid.
    pub fn points(&self) -> u64 {
        (self.n as u64).pow(3)
    }

    /// Bytes of the components of all points.
    pub fn field_bytes(&self) -> u64 {
        self.points() * (COMPONENTS * size_of::<f64>()) as u64
    }

    /// Operations of a step, as the published figures of speed count them.
    pub fn flops(&self) -> f64 {
        let n = self.n as f64;
        3478.8 * n.powi(3) - 17655.7 * n.powi(2) + 28023.7 * n
    }
}

/// How far a field is from rest and from the exact solution, for each component.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Norms {
    /// Of the right-hand side, by the time of a step.
    pub residual: [f64; COMPONENTS],
    /// Of what differs from the exact solution.
    pub error: [f64; COMPONENTS],
}

impl Norms {
    fn add(&mut self, other: &Norms) {
        for m in 0..COMPONENTS {
            self.residual[m] += other.residual[m];
            self.error[m] += other.error[m];
        }
    }

    /// The largest relative difference to the published norms of the class.
    pub fn difference(&self, class: Class) -> f64 {
        let published = published::norms(class);
        let residual = self.residual.into_iter().zip(published.residual);
        largest(residual.chain(self.error.into_iter().zip(published.error)))
    }
}

/// The largest relative difference of pairs; a number that is none is as far away as can be.
fn largest(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    pairs.map(|(x, wanted)| ((x - wanted) / wanted).abs()).fold(0.0, |most, x| match x {
        x if x.is_nan() => f64::INFINITY,
        x => x.max(most),
    })
}

/// Relative difference to the published norms up to which a run is right.
pub const TOLERANCE: f64 = 1e-8;
