//! The solution that the right-hand side is made for, and the field that a run begins with.

use super::{Problem, COMPONENTS};

/// Coefficients of the exact solution, for each component: the constant, then of x, y, z, of their squares, cubes and
/// fourth powers (NPB report, Table 3.1).
const COEFFICIENTS: [[f64; 13]; COMPONENTS] = [
    [2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3],
    [1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3],
    [5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2],
];

/// The exact solution at a place of the unit cube, (x, y, z).
pub(super) fn exact(place: [f64; 3]) -> [f64; COMPONENTS] {
    COEFFICIENTS.map(|c| {
        let along = |axis: usize| {
            let x = place[axis];
            x * (c[1 + axis] + x * (c[4 + axis] + x * (c[7 + axis] + x * c[10 + axis])))
        };
        c[0] + along(0) + along(1) + along(2)
    })
}

/// What a run begins with: exact on the boundary; inside, what is linear between opposite faces, blended.
pub(super) fn initial(place: [f64; 3], on_boundary: bool) -> [f64; COMPONENTS] {
    if on_boundary {
        return exact(place);
    }
    let between = |axis: usize| {
        let at = |end: f64| {
            let mut there = place;
            there[axis] = end;
            exact(there)
        };
        let (low, high, x) = (at(0.0), at(1.0), place[axis]);
        std::array::from_fn::<f64, COMPONENTS, _>(|m| x * high[m] + (1.0 - x) * low[m])
    };
    let (x, y, z) = (between(0), between(1), between(2));
    std::array::from_fn(|m| {
        let (x, y, z) = (x[m], y[m], z[m]);
        x + y + z - x * y - x * z - y * z + x * y * z
    })
}

impl Problem {
    /// Where a point lies in the unit cube.
    pub(super) fn place(&self, i: usize, j: usize, k: usize) -> [f64; 3] {
        [i, j, k].map(|at| at as f64 / (self.n - 1) as f64)
    }

    /// Whether it lies on the boundary.
    pub(super) fn is_boundary(&self, at: [usize; 3]) -> bool {
        at.iter().any(|at| *at == 0 || *at == self.n - 1)
    }

    /// Fills planes, the first of which is plane `first`, point by point.
    pub(super) fn fill(
        &self,
        first: usize,
        planes: &mut [f64],
        of: impl Fn([f64; 3], bool) -> [f64; COMPONENTS],
    ) {
        let n = self.n;
        for (at, point) in planes.chunks_exact_mut(COMPONENTS).enumerate() {
            let (i, j, k) = (at % n, at / n % n, first + at / (n * n));
            point.copy_from_slice(&of(self.place(i, j, k), self.is_boundary([i, j, k])));
        }
    }
}
