//! The compressible Navier–Stokes operator H on a grid: what the solution changes by, in space.
//!
//! For each direction, with velocity v along it, q = |v|²/2, pressure p = 0.4 (E - rho q) and h the distance of
//! points:
//!
//! ```text
//! - 1/2h  first difference of   m,  m v + p,  m' v (the other momenta),  (E + p) v
//! + 1/h²  second difference of  d u, and of the viscous terms 0.1 (4/3 v, v', (1 - 1.96) q + v²/6 + 1.96 E/rho)
//! - 1/4   fourth difference of  u
//! ```
//!
//! Fourth differences are one-sided beside the boundary. The operator knows planes only, so that a part of the grid
//! with two planes on either side is enough.

// Indices are those of the equations, several arrays long.
#![allow(clippy::needless_range_loop)]

use super::{Problem, COMPONENTS};

/// Gas constants: c1 = gamma, c2 = gamma - 1, c3 c4 the viscosity, c5 with c1 the heat that flows.
pub(super) const C1: f64 = 1.4;
pub(super) const C2: f64 = 0.4;
pub(super) const C3C4: f64 = 0.1;
pub(super) const C1C5: f64 = 1.4 * 1.4;
/// Second differences that damp, for x, y and z.
pub(super) const DAMPING: [f64; 3] = [0.75, 0.75, 1.0];
/// Fourth differences that damp.
const DAMPING_FOURTH: f64 = 0.25;

/// Planes of the field that the operator looks at.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a> {
    pub problem: Problem,
    /// Number of the first plane that is there.
    pub first: usize,
    /// The five components of each point.
    pub u: &'a [f64],
    /// 1 by density.
    pub rho_i: &'a [f64],
    /// Half the squares of the momenta by density.
    pub square: &'a [f64],
}

/// 1 by density, and half the squares of the momenta by it.
#[inline(always)]
pub(super) fn derived(u: &[f64]) -> (f64, f64) {
    let rho_i = 1.0 / u[0];
    (rho_i, 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * rho_i)
}

/// Both for many points.
pub(super) fn derive(u: &[f64], rho_i: &mut [f64], square: &mut [f64]) {
    for ((u, rho_i), square) in u.chunks_exact(COMPONENTS).zip(rho_i).zip(square) {
        (*rho_i, *square) = derived(u);
    }
}

/// A point with what follows from its components.
#[derive(Clone, Copy)]
struct Point {
    u: [f64; COMPONENTS],
    v: [f64; 3],
    square: f64,
    q: f64,
    e: f64,
}

impl Planes<'_> {
    #[inline(always)]
    fn u(&self, at: usize) -> &[f64; COMPONENTS] {
        self.u[COMPONENTS * at..COMPONENTS * (at + 1)].try_into().expect("five components")
    }

    #[inline(always)]
    fn point(&self, at: usize) -> Point {
        let (u, rho_i, square) = (*self.u(at), self.rho_i[at], self.square[at]);
        let v = [u[1] * rho_i, u[2] * rho_i, u[3] * rho_i];
        Point { u, v, square, q: square * rho_i, e: u[4] * rho_i }
    }

    /// H of the inner points of plane `k`, added to `sums`, the plane's values; those of the boundary stay.
    pub fn add_to(&self, k: usize, sums: &mut [f64]) {
        let n = self.problem.n;
        let base = (k - self.first) * n * n;
        let strides = [1, n, n * n];
        for j in 1..n - 1 {
            for i in 1..n - 1 {
                let here = j * n + i;
                let at = base + here;
                let point = self.point(at);
                let mut sum = [0.0; COMPONENTS];
                self.along::<0>(at, strides[0], i, &point, &mut sum);
                self.along::<1>(at, strides[1], j, &point, &mut sum);
                self.along::<2>(at, strides[2], k, &point, &mut sum);
                let sums = &mut sums[COMPONENTS * here..COMPONENTS * (here + 1)];
                sums.iter_mut().zip(sum).for_each(|(to, x)| *to += x);
            }
        }
    }

    /// The part of one direction, at the `position`-th point along it.
    #[inline(always)]
    fn along<const AXIS: usize>(
        &self,
        at: usize,
        stride: usize,
        position: usize,
        here: &Point,
        sum: &mut [f64; COMPONENTS],
    ) {
        let (low, high) = (self.point(at - stride), self.point(at + stride));
        let inverse = (self.problem.n - 1) as f64;
        let (first, second) = (0.5 * inverse, inverse * inverse);
        let (damped, viscous) = (DAMPING[AXIS] * second, C3C4 * second);
        let twice = |low: f64, here: f64, high: f64| high - 2.0 * here + low;
        let normal = 1 + AXIS;
        let (vl, v, vh) = (low.v[AXIS], here.v[AXIS], high.v[AXIS]);
        for (m, sum) in sum.iter_mut().enumerate() {
            *sum += damped * twice(low.u[m], here.u[m], high.u[m]);
        }
        sum[0] -= first * (high.u[normal] - low.u[normal]);
        for m in 1..4 {
            let factor = if m == normal { 4.0 / 3.0 * viscous } else { viscous };
            let pressure = match m == normal {
                true => C2 * (high.u[4] - high.square - low.u[4] + low.square),
                false => 0.0,
            };
            sum[m] += factor * twice(low.v[m - 1], here.v[m - 1], high.v[m - 1])
                - first * (high.u[m] * vh - low.u[m] * vl + pressure);
        }
        let heat = (1.0 - C1C5) * twice(low.q, here.q, high.q)
            + 1.0 / 6.0 * twice(vl * vl, v * v, vh * vh)
            + C1C5 * twice(low.e, here.e, high.e);
        let carried = |point: &Point, v: f64| (C1 * point.u[4] - C2 * point.square) * v;
        sum[4] += viscous * heat - first * (carried(&high, vh) - carried(&low, vl));
        self.damp_fourth(at, stride, position, [&low.u, &here.u, &high.u], sum);
    }

    #[inline(always)]
    fn damp_fourth(
        &self,
        at: usize,
        stride: usize,
        position: usize,
        [low, here, high]: [&[f64; COMPONENTS]; 3],
        sum: &mut [f64; COMPONENTS],
    ) {
        let last = self.problem.n - 2;
        for (m, sum) in sum.iter_mut().enumerate() {
            let lower = || self.u[COMPONENTS * (at - 2 * stride) + m];
            let higher = || self.u[COMPONENTS * (at + 2 * stride) + m];
            let difference = if position == 1 {
                5.0 * here[m] - 4.0 * high[m] + higher()
            } else if position == last {
                lower() - 4.0 * low[m] + 5.0 * here[m]
            } else if position == 2 {
                -4.0 * low[m] + 6.0 * here[m] - 4.0 * high[m] + higher()
            } else if position == last - 1 {
                lower() - 4.0 * low[m] + 6.0 * here[m] - 4.0 * high[m]
            } else {
                lower() - 4.0 * low[m] + 6.0 * here[m] - 4.0 * high[m] + higher()
            };
            *sum -= DAMPING_FOURTH * difference;
        }
    }
}
