//! Area of an isosurface by marching tetrahedra.
//!
//! Each cell of the grid (eight values) is cut into six tetrahedra around its main diagonal (H. Freudenthal,
//! Annals of Mathematics 43 (1942) 580–582; neighbouring cells then share the cuts of their faces, so the
//! surface has no cracks). Inside a tetrahedron the field is taken as linear, so the surface is a triangle or
//! a plane quadrilateral. Only additions, products, quotients and square roots are used, all rounded alike
//! everywhere.
//!
//! Computes areas only; no mesh is kept.

use crate::simulation::field::Cell;

type Point = [f64; 3];

/// Corner `i` of a cell lies at z = bit 2, y = bit 1, x = bit 0 of `i`.
const fn corner(i: usize) -> Point {
    [(i >> 2 & 1) as f64, (i >> 1 & 1) as f64, (i & 1) as f64]
}

/// Each way from corner 0 to corner 7 along three edges gives one tetrahedron.
const TETRAHEDRA: [[usize; 4]; 6] =
    [[0, 1, 3, 7], [0, 1, 5, 7], [0, 2, 3, 7], [0, 2, 6, 7], [0, 4, 5, 7], [0, 4, 6, 7]];

/// Area of the surface `value == threshold` in the layer of cells between two planes of `shape` rows and
/// columns, in units of the grid spacing squared. Summed cell by cell in C order.
pub fn layer_area<T: Cell>(below: &[T], above: &[T], shape: [usize; 2], threshold: f64) -> f64 {
    let [rows, columns] = shape;
    let mut area = 0.0;
    for y in 0..rows.saturating_sub(1) {
        let row = |plane: &'_ [T], y: usize| y * columns..plane.len().min((y + 1) * columns);
        let lines = [
            &below[row(below, y)],
            &below[row(below, y + 1)],
            &above[row(above, y)],
            &above[row(above, y + 1)],
        ];
        area += row_area(lines, threshold);
    }
    area
}

/// The cells between four lines of values: (z, y) = (0,0), (0,1), (1,0), (1,1).
fn row_area<T: Cell>(lines: [&[T]; 4], threshold: f64) -> f64 {
    let column = |x: usize| lines.map(|line| line[x].wide());
    let inside = |values: &[f64; 4]| values.iter().filter(|v| **v >= threshold).count();
    let mut area = 0.0;
    let Some(last) = lines[0].len().checked_sub(1) else { return area };
    let mut left = column(0);
    let mut left_inside = inside(&left);
    for x in 1..=last {
        let right = column(x);
        let right_inside = inside(&right);
        if !matches!(left_inside + right_inside, 0 | 8) {
            let mut values = [0.0; 8];
            for line in 0..4 {
                values[2 * line] = left[line];
                values[2 * line + 1] = right[line];
            }
            area += cell_area(&values, threshold);
        }
        (left, left_inside) = (right, right_inside);
    }
    area
}

/// Area in one cell.
fn cell_area(values: &[f64; 8], threshold: f64) -> f64 {
    TETRAHEDRA.iter().map(|t| tetrahedron_area(t.map(corner), t.map(|i| values[i]), threshold)).sum()
}

/// Area in one tetrahedron.
fn tetrahedron_area(corners: [Point; 4], values: [f64; 4], threshold: f64) -> f64 {
    let (mut inside, mut outside) = ([0; 4], [0; 4]);
    let (mut n_inside, mut n_outside) = (0, 0);
    for (i, value) in values.iter().enumerate() {
        if *value >= threshold {
            inside[n_inside] = i;
            n_inside += 1;
        } else {
            outside[n_outside] = i;
            n_outside += 1;
        }
    }
    // Where the surface cuts the edge from a corner inside to one outside.
    let cut = |i: usize, o: usize| {
        let t = (threshold - values[o]) / (values[i] - values[o]);
        [0, 1, 2].map(|a| corners[o][a] + t * (corners[i][a] - corners[o][a]))
    };
    match n_inside {
        1 => {
            triangle_area(cut(inside[0], outside[0]), cut(inside[0], outside[1]), cut(inside[0], outside[2]))
        }
        3 => {
            triangle_area(cut(inside[0], outside[0]), cut(inside[1], outside[0]), cut(inside[2], outside[0]))
        }
        2 => {
            let (a, b) = (cut(inside[0], outside[0]), cut(inside[0], outside[1]));
            let (c, d) = (cut(inside[1], outside[1]), cut(inside[1], outside[0]));
            triangle_area(a, b, c) + triangle_area(a, c, d)
        }
        _ => 0.0,
    }
}

fn triangle_area(a: Point, b: Point, c: Point) -> f64 {
    let p = [b[0] - a[0], b[1] - a[1], b[2] - a[2]];
    let q = [c[0] - a[0], c[1] - a[1], c[2] - a[2]];
    let normal = [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]];
    0.5 * (normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2]).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(shape: [usize; 3], threshold: f64, f: impl Fn(f64, f64, f64) -> f64) -> f64 {
        let [nz, ny, nx] = shape;
        let plane = |z: usize| -> Vec<f64> {
            (0..ny * nx).map(|i| f(z as f64, (i / nx) as f64, (i % nx) as f64)).collect()
        };
        (1..nz).map(|z| layer_area(&plane(z - 1), &plane(z), [ny, nx], threshold)).sum()
    }

    #[test]
    fn planes_have_their_exact_area() {
        for (name, value, expected) in [
            ("across z", area([6, 5, 4], 2.25, |z, _, _| z), 12.0),
            ("across y", area([6, 5, 4], 2.25, |_, y, _| y), 15.0),
            ("across x", area([6, 5, 4], 2.25, |_, _, x| x), 20.0),
            ("diagonal", area([5, 5, 5], 4.0, |z, y, _| z + y), 16.0 * 2f64.sqrt()),
        ] {
            assert!((value - expected).abs() < 1e-12, "{name}: {value} instead of {expected}");
        }
    }

    #[test]
    fn a_sphere_has_nearly_its_area() {
        // The centre off the grid points. A triangulated sphere inside its cells is flatter: error O(h²/r²).
        let sphere = |z: f64, y: f64, x: f64| {
            let d = [z - 12.3, y - 11.6, x - 12.1];
            10.0 - (d[0] * d[0] + d[1] * d[1] + d[2] * d[2]).sqrt()
        };
        let exact = 4.0 * std::f64::consts::PI * 64.0;
        let found = area([25, 25, 25], 2.0, sphere);
        assert!((found / exact - 1.0).abs() < 0.01, "{found} instead of {exact}");
    }

    #[test]
    fn turning_inside_out_changes_nothing_much_and_nothing_is_no_surface() {
        let bumps = |z: f64, y: f64, x: f64| (z * 0.7).sin() * (y * 0.9).cos() + (x * 0.8).sin();
        let found = area([9, 9, 9], 0.1, bumps);
        let reverse = area([9, 9, 9], -0.1, |z, y, x| -bumps(z, y, x));
        assert!(found > 50.0 && (found - reverse).abs() < 1e-9 * found);
        assert_eq!(area([4, 4, 4], 2.0, |_, _, _| 1.0), 0.0);
        assert_eq!(area([4, 4, 1], 0.5, |z, _, _| z), 0.0, "one column has no cells");
    }
}
