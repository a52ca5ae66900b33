//! The grid of the field: periodic planes of square cells, bilinear weights, and the field equation.
//!
//! Lengths are in cells. The weights by which a particle gives its charge to the grid and those by which it takes
//! the field from there are the same, and the force is the derivative of them: that is what keeps the energy
//! ([`super::plasma`]).

/// Planes along the magnetic field.
pub const PLANES: usize = 2;
/// Most iterations of the field solver; it needs some 30.
const ITERATIONS_MAX: usize = 400;
/// Residual at which the field is solved, relative to the right-hand side.
const TOLERANCE: f64 = 1e-13;

/// Shape of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Cells along x and along y.
    pub side: usize,
}

/// Two neighbouring grid points along one axis, and how much of the second.
#[derive(Clone, Copy)]
struct Pair {
    low: usize,
    high: usize,
    part: f64,
}

fn pair(at: f64, cells: usize) -> Pair {
    let low = (at as usize).min(cells - 1);
    let high = if low + 1 == cells { 0 } else { low + 1 };
    Pair { low, high, part: at - low as f64 }
}

/// `x` in `[0, length)`.
#[inline]
pub fn wrapped(x: f64, length: f64) -> f64 {
    let inside = x - length * (x / length).floor();
    // A tiny negative number and the length are the length.
    if inside >= length {
        0.0
    } else {
        inside
    }
}

impl Grid {
    /// Cells in all planes.
    pub fn cells(&self) -> usize {
        PLANES * self.side * self.side
    }

    /// The four places on a particle's gyration over which charge and field are averaged.
    #[inline]
    fn ring(&self, at: [f64; 2], radius: f64) -> [[f64; 2]; 4] {
        let length = self.side as f64;
        let [x, y] = at;
        [
            [wrapped(x - radius, length), y],
            [wrapped(x + radius, length), y],
            [x, wrapped(y - radius, length)],
            [x, wrapped(y + radius, length)],
        ]
    }

    /// Adds a particle of this charge to the density.
    #[inline]
    pub fn deposit(&self, density: &mut [f64], at: [f64; 3], radius: f64, charge: f64) {
        let z = pair(at[2], PLANES);
        let quarter = charge * 0.25;
        for place in self.ring([at[0], at[1]], radius) {
            let (x, y) = (pair(place[0], self.side), pair(place[1], self.side));
            for (plane, of_plane) in [(z.low, 1.0 - z.part), (z.high, z.part)] {
                let (low, high) = (self.row(plane, y.low), self.row(plane, y.high));
                let (lower, upper) = (quarter * of_plane * (1.0 - y.part), quarter * of_plane * y.part);
                density[low + x.low] += lower * (1.0 - x.part);
                density[low + x.high] += lower * x.part;
                density[high + x.low] += upper * (1.0 - x.part);
                density[high + x.high] += upper * x.part;
            }
        }
    }

    /// The gradient of the potential that a particle feels: x, y, z.
    #[inline]
    pub fn gradient(&self, potential: &[f64], at: [f64; 3], radius: f64) -> [f64; 3] {
        let z = pair(at[2], PLANES);
        let mut sum = [0.0; 3];
        for place in self.ring([at[0], at[1]], radius) {
            let (x, y) = (pair(place[0], self.side), pair(place[1], self.side));
            for (plane, of_plane, slope) in [(z.low, 1.0 - z.part, -1.0), (z.high, z.part, 1.0)] {
                let (low, high) = (self.row(plane, y.low), self.row(plane, y.high));
                let [a, b] = [potential[low + x.low], potential[low + x.high]];
                let [c, d] = [potential[high + x.low], potential[high + x.high]];
                let (lower, upper) = (a + (b - a) * x.part, c + (d - c) * x.part);
                sum[0] += of_plane * ((b - a) * (1.0 - y.part) + (d - c) * y.part);
                sum[1] += of_plane * (upper - lower);
                sum[2] += slope * (lower + (upper - lower) * y.part);
            }
        }
        sum.map(|s| s * 0.25)
    }

    #[inline]
    fn row(&self, plane: usize, y: usize) -> usize {
        (plane * self.side + y) * self.side
    }

    /// Solves `potential - laplacian(potential) = source` on every plane by conjugate gradients, beginning at what
    /// `potential` holds. False: it did not converge.
    pub fn solve(&self, potential: &mut [f64], source: &[f64]) -> bool {
        let mut image = vec![0.0; potential.len()];
        self.apply(potential, &mut image);
        let mut residual: Vec<f64> = source.iter().zip(&image).map(|(s, i)| s - i).collect();
        let mut direction = residual.clone();
        let wanted = TOLERANCE * TOLERANCE * dot(source, source);
        let mut error = dot(&residual, &residual);
        for _ in 0..ITERATIONS_MAX {
            if error <= wanted {
                return true;
            }
            self.apply(&direction, &mut image);
            let step = error / dot(&direction, &image);
            potential.iter_mut().zip(&direction).for_each(|(p, d)| *p += step * d);
            residual.iter_mut().zip(&image).for_each(|(r, i)| *r -= step * i);
            let next = dot(&residual, &residual);
            let grown = next / error;
            direction.iter_mut().zip(&residual).for_each(|(d, r)| *d = r + grown * *d);
            error = next;
        }
        error <= wanted
    }

    /// One application of the operator: 1 minus the five-point Laplacian, in units of the ion sound radius, which
    /// is one cell.
    fn apply(&self, field: &[f64], out: &mut [f64]) {
        let n = self.side;
        for plane in 0..PLANES {
            for y in 0..n {
                let row = self.row(plane, y);
                let (above, below) = (self.row(plane, (y + 1) % n), self.row(plane, (y + n - 1) % n));
                for x in 0..n {
                    let (left, right) =
                        (if x == 0 { n - 1 } else { x - 1 }, if x + 1 == n { 0 } else { x + 1 });
                    let neighbours =
                        field[row + left] + field[row + right] + field[above + x] + field[below + x];
                    out[row + x] = 5.0 * field[row + x] - neighbours;
                }
            }
        }
    }
}

/// Sum of products.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Potential energy of a particle, by the weights of its deposit.
    fn felt(grid: &Grid, potential: &[f64], at: [f64; 3], radius: f64) -> f64 {
        let mut weights = vec![0.0; grid.cells()];
        grid.deposit(&mut weights, at, radius, 1.0);
        dot(&weights, potential)
    }

    fn bumpy(grid: &Grid) -> Vec<f64> {
        (0..grid.cells()).map(|i| ((i * i) % 17) as f64 * 0.1 - 0.8).collect()
    }

    #[test]
    fn the_force_is_the_derivative_of_what_is_deposited() {
        let grid = Grid { side: 9 };
        let potential = bumpy(&grid);
        let (h, radius) = (1e-6, 0.63);
        for at in [[1.3, 2.6, 0.4], [8.55, 0.1, 1.5], [4.45, 8.9, 0.9]] {
            let gradient = grid.gradient(&potential, at, radius);
            for axis in 0..3 {
                let (mut up, mut down) = (at, at);
                (up[axis], down[axis]) = (at[axis] + h, at[axis] - h);
                let slope =
                    (felt(&grid, &potential, up, radius) - felt(&grid, &potential, down, radius)) / (2.0 * h);
                assert!((slope - gradient[axis]).abs() < 1e-8, "axis {axis} at {at:?}");
            }
        }
    }

    #[test]
    fn the_field_equation_is_solved() {
        let grid = Grid { side: 12 };
        let source = bumpy(&grid);
        let mut potential = vec![0.0; grid.cells()];
        assert!(grid.solve(&mut potential, &source));
        let mut image = vec![0.0; grid.cells()];
        grid.apply(&potential, &mut image);
        let worst = image.iter().zip(&source).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-11, "{worst}");
    }

    #[test]
    fn places_stay_inside() {
        for x in [-1e-18, -0.5, 0.0, 7.999, 8.0, 23.0, -17.0] {
            assert!((0.0..8.0).contains(&wrapped(x, 8.0)), "{x}");
        }
    }
}
