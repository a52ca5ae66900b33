//! The particles of one rank and their motion: gyrokinetic ions in a slab, electrons adiabatic.
//!
//! Guiding centres drift across the magnetic field with E×B and stream along it:
//! `dx/dt = -d(phi)/dy`, `dy/dt = d(phi)/dx`, `dz/dt = a v`, `dv/dt = -a d(phi)/dz`, with phi averaged over four
//! places of the gyration, and `phi - laplacian(phi) = n - 1` for the density n. Every rank has particles of its
//! own all over the box and the whole grid; the densities of all ranks are added up, in the order of the ranks, so
//! that all see the same field. Time goes by the midpoint rule: two densities and two fields in a step.
//!
//! Invariants, checked after every step: particles are neither lost nor made and stay in the box; the charge on the
//! grid is that of the particles; the energy `sum w v^2 / 2 + sum phi (n - 1) / 2` drifts by the error of the time
//! step only. Not here: processes.

use super::grid::{dot, wrapped, Grid, PLANES};
use crate::objects::pattern::mixed;
use forebay_space::{Error, Kind, Result};
use std::f64::consts::TAU;

/// Numbers of a particle: x, y, z, velocity along the field, weight, magnetic moment.
pub const ROWS: usize = 6;
/// Numbers behind the cells in what a rank contributes: its charge, its kinetic energy, its particles.
const SUMS: usize = 3;
/// Particles of a rank at scale 1: their array has 229 MB.
const PARTICLES: f64 = 229e6 / (8.0 * ROWS as f64);
/// Cells along one side at scale 1.
const SIDE: f64 = 180.0;
/// Planes that a particle of velocity 1 passes in a unit of time.
const STREAMING: f64 = 0.2;
/// How far the charge on the grid may be from that of the particles, relatively.
const CHARGE_TOLERANCE: f64 = 1e-11;
/// How far the energy may drift, relatively.
pub const ENERGY_TOLERANCE: f64 = 1e-3;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Particles of each rank.
    pub particles: usize,
    /// The grid.
    pub grid: Grid,
    /// Time step.
    pub dt: f64,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Setup {
    /// The size that the scale means: 229 MB of particles on each rank at 1.
    pub fn of_scale(scale: f64, dt: f64, seed: u64) -> Result<Setup> {
        if !(scale.is_finite() && scale > 0.0 && dt.is_finite() && dt > 0.0) {
            return Err(Error::new(Kind::Usage, "the scale and the time step are to be positive"));
        }
        let particles = (PARTICLES * scale).floor().max(64.0) as usize;
        let side = (SIDE * scale.sqrt()).round().max(8.0) as usize;
        Ok(Setup { particles, grid: Grid { side }, dt, seed })
    }

    /// Numbers that a rank contributes to the field.
    pub fn contribution(&self) -> usize {
        self.grid.cells() + SUMS
    }
}

/// What is conserved, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// Particles.
    pub particles: f64,
    /// Sum of the weights.
    pub charge: f64,
    /// Kinetic energy.
    pub kinetic: f64,
    /// Energy of the field.
    pub field: f64,
}

impl Totals {
    /// Sum of both.
    pub fn energy(&self) -> f64 {
        self.kinetic + self.field
    }
}

/// The particles of one rank and the field of all.
pub struct Plasma {
    setup: Setup,
    /// Six rows of numbers.
    state: Vec<f64>,
    /// The same at the beginning of the step.
    before: Vec<f64>,
    potential: Vec<f64>,
    first: Option<Totals>,
    last: Option<Totals>,
}

impl Plasma {
    /// The particles that this rank begins with: spread over the box, denser where a wave is.
    pub fn new(setup: &Setup, rank: usize) -> Plasma {
        let n = setup.particles;
        let mut state = vec![0.0; ROWS * n];
        let unit = |particle: usize, what: u64| {
            let key = mixed(setup.seed ^ mixed(rank as u64 + 1)).wrapping_add(particle as u64 * 8 + what);
            // 53 bits, never 0, so that its logarithm is finite.
            ((mixed(key) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let length = setup.grid.side as f64;
        let waves = (length / 16.0).round().max(1.0);
        for i in 0..n {
            let (x, y) = (unit(i, 0) * length, unit(i, 1) * length);
            let speed = (-2.0 * unit(i, 3).ln()).sqrt();
            // Displaced along both axes, so that there is something to turn.
            state[i] = wrapped(x + 0.6 * (TAU * waves * y / length).sin(), length);
            state[n + i] = wrapped(y + 0.9 * (TAU * waves * y / length).sin(), length);
            state[2 * n + i] = wrapped(unit(i, 2) * PLANES as f64, PLANES as f64);
            state[3 * n + i] = speed * (TAU * unit(i, 4)).cos();
            state[4 * n + i] = 0.9 + 0.2 * unit(i, 5);
            state[5 * n + i] = -unit(i, 6).ln() * 0.25;
        }
        let potential = vec![0.0; setup.grid.cells()];
        Plasma { setup: *setup, before: state.clone(), state, potential, first: None, last: None }
    }

    /// The array of the particles: six rows.
    pub fn state(&self) -> &[f64] {
        &self.state
    }

    /// The particles at the beginning of the step.
    pub fn before(&self) -> &[f64] {
        &self.before
    }

    /// The potential, plane by plane.
    pub fn potential(&self) -> &[f64] {
        &self.potential
    }

    /// What was conserved, at the beginning and now.
    pub fn totals(&self) -> Option<[Totals; 2]> {
        Some([self.first?, self.last?])
    }

    /// This rank's density, charge, kinetic energy and number of particles.
    pub fn contribute(&self, out: &mut [f64]) {
        let n = self.setup.particles;
        let (density, sums) = out.split_at_mut(self.setup.grid.cells());
        density.fill(0.0);
        sums.fill(0.0);
        for i in 0..n {
            let (at, radius) = self.place(i);
            let (v, weight) = (self.state[3 * n + i], self.state[4 * n + i]);
            self.setup.grid.deposit(density, at, radius, weight);
            sums[0] += weight;
            sums[1] += 0.5 * weight * v * v;
            sums[2] += 1.0;
        }
    }

    /// Position and gyration radius.
    #[inline]
    fn place(&self, i: usize) -> ([f64; 3], f64) {
        let n = self.setup.particles;
        let at = [self.state[i], self.state[n + i], self.state[2 * n + i]];
        (at, (2.0 * self.state[5 * n + i]).sqrt().min(self.setup.grid.side as f64))
    }

    /// Computes the field from the sum of what all ranks contributed, and checks the charge.
    pub fn take_field(&mut self, total: &[f64]) -> Result<Totals> {
        let grid = self.setup.grid;
        let (density, sums) = total.split_at(grid.cells());
        let (charge, on_grid) = (sums[0], density.iter().sum::<f64>());
        let apart = (on_grid - charge).abs();
        if apart.is_nan() || apart > CHARGE_TOLERANCE * charge {
            return Err(Error::new(Kind::Internal, "the charge on the grid is not that of the particles")
                .with("grid", on_grid)
                .with("particles", charge));
        }
        let mean = charge / grid.cells() as f64;
        let source: Vec<f64> = density.iter().map(|n| n / mean - 1.0).collect();
        if !grid.solve(&mut self.potential, &source) {
            return Err(Error::new(Kind::Internal, "the field equation was not solved")
                .hint("the particles have left the range of numbers: a smaller time step"));
        }
        let field = 0.5 * dot(&self.potential, &source);
        Ok(Totals { particles: sums[2], charge, kinetic: sums[1] / mean, field })
    }

    /// First half of a step: to the middle of it, with the field at its beginning.
    pub fn advance_to_middle(&mut self) {
        self.before.copy_from_slice(&self.state);
        self.push(0.5 * self.setup.dt);
    }

    /// Second half: from the beginning of the step to its end, with the field and the places of its middle.
    pub fn advance_to_end(&mut self) {
        self.push(self.setup.dt);
    }

    fn push(&mut self, dt: f64) {
        let (n, grid) = (self.setup.particles, self.setup.grid);
        let length = grid.side as f64;
        for i in 0..n {
            let (at, radius) = self.place(i);
            let [dx, dy, dz] = grid.gradient(&self.potential, at, radius);
            let v = self.state[3 * n + i];
            self.state[i] = wrapped(self.before[i] - dt * dy, length);
            self.state[n + i] = wrapped(self.before[n + i] + dt * dx, length);
            self.state[2 * n + i] = wrapped(self.before[2 * n + i] + dt * STREAMING * v, PLANES as f64);
            self.state[3 * n + i] = self.before[3 * n + i] - dt * STREAMING * dz;
        }
    }

    /// Checks what is conserved, at the beginning of a step.
    pub fn check(&mut self, now: Totals) -> Result<()> {
        let first = *self.first.get_or_insert(now);
        self.last = Some(now);
        let n = self.setup.particles;
        let side = self.setup.grid.side as f64;
        let inside =
            |row: usize, end: f64| self.state[row * n..(row + 1) * n].iter().all(|x| (0.0..end).contains(x));
        if now.particles != first.particles
            || !inside(0, side)
            || !inside(1, side)
            || !inside(2, PLANES as f64)
        {
            return Err(Error::new(Kind::Internal, "particles were lost or left the box")
                .with("particles", now.particles)
                .with("at_first", first.particles));
        }
        if now.charge != first.charge {
            return Err(Error::new(Kind::Internal, "the particles' charge has changed")
                .with("charge", now.charge)
                .with("at_first", first.charge));
        }
        let drift = (now.energy() - first.energy()) / first.energy();
        if drift.is_nan() || drift.abs() > ENERGY_TOLERANCE {
            return Err(Error::new(Kind::Usage, "the energy drifts more than the time step explains")
                .with("relative_drift", drift)
                .with("dt", self.setup.dt)
                .hint("a smaller --dt, or a larger --scale (more particles)"));
        }
        Ok(())
    }
}
