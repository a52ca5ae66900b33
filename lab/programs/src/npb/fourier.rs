//! Fourier transforms of many lines at once, side by side: the same steps for each, over memory that lies together.
//!
//! Stockham's way, radix 2: no reordering, two buffers in turn. A transform is not divided by its length.

/// A complex number as it lies in arrays.
pub(super) type Complex = [f64; 2];

#[inline(always)]
pub(super) fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// For lines of one length.
pub(super) struct Transform {
    length: usize,
    /// exp(i pi j / (length / 2)) for the first half.
    roots: Vec<Complex>,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Forth,
    Back,
}

impl Transform {
    /// For lines of so many numbers, a power of two.
    pub fn new(length: usize) -> Transform {
        let angle = |j: usize| std::f64::consts::TAU * j as f64 / length as f64;
        let roots = (0..length / 2).map(|j| [angle(j).cos(), angle(j).sin()]).collect();
        Transform { length, roots }
    }

    /// Transforms `width` lines, whose n-th numbers lie together. `other` is as large and holds anything afterwards.
    pub fn run(&self, way: Way, width: usize, data: &mut [Complex], other: &mut [Complex]) {
        let (mut from, mut to) = (data, other);
        let (mut left, mut done) = (self.length / 2, width);
        let mut swapped = false;
        while left >= 1 {
            let apart = left * done;
            for j in 0..left {
                let [re, im] = self.roots[j * (self.roots.len() / left)];
                let root = if way == Way::Forth { [re, im] } else { [re, -im] };
                let (a, b) = (&from[j * done..][..done], &from[j * done + apart..][..done]);
                let (sum, difference) = to[2 * j * done..][..2 * done].split_at_mut(done);
                for at in 0..done {
                    let (a, b) = (a[at], b[at]);
                    sum[at] = [a[0] + b[0], a[1] + b[1]];
                    difference[at] = times(root, [a[0] - b[0], a[1] - b[1]]);
                }
            }
            std::mem::swap(&mut from, &mut to);
            swapped = !swapped;
            left /= 2;
            done *= 2;
        }
        if swapped {
            to.copy_from_slice(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transform_is_the_sum_that_defines_it() {
        let (length, width) = (8, 3);
        let transform = Transform::new(length);
        let input: Vec<Complex> =
            (0..length * width).map(|at| [(at as f64).sin(), (3.0 * at as f64).cos()]).collect();
        let (mut data, mut other) = (input.clone(), vec![[0.0; 2]; length * width]);
        transform.run(Way::Forth, width, &mut data, &mut other);
        for k in 0..length {
            for line in 0..width {
                let mut sum = [0.0; 2];
                for j in 0..length {
                    let angle = std::f64::consts::TAU * (j * k) as f64 / length as f64;
                    let one = times([angle.cos(), angle.sin()], input[j * width + line]);
                    sum = [sum[0] + one[0], sum[1] + one[1]];
                }
                let found = data[k * width + line];
                assert!((found[0] - sum[0]).abs() + (found[1] - sum[1]).abs() < 1e-12, "{k} {line}");
            }
        }
        transform.run(Way::Back, width, &mut data, &mut other);
        for (found, wanted) in data.iter().zip(&input) {
            assert!((found[0] / 8.0 - wanted[0]).abs() + (found[1] / 8.0 - wanted[1]).abs() < 1e-12);
        }
    }
}
