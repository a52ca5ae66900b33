//! Kernels that go over one matrix once or twice: atax and gemver.

use forebay_space::Result;

use super::{add, dot, Outcome, Work};
use crate::placed::Buffer;

/// y = Aᵀ(A x) in one pass: a row gives its product with x, and that times the row belongs to y.
pub(super) fn atax(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    let scale = n as f64;
    work.fill(0, |i, j| ((i + j) % n) as f64 / (5.0 * scale))?;
    let x: Vec<f64> = (0..n).map(|i| 1.0 + i as f64 / scale).collect();
    let (mut y, mut buffer) = (vec![0.0; n], Buffer::default());
    work.begin();
    for band in work.bands() {
        let after = work.after(&band);
        for row in work.arrays[0].read(band, after, &mut buffer)?.chunks_exact(n) {
            add(&mut y, dot(row, &x), row);
        }
    }
    work.end(&[], &[&y])
}

const ALPHA: f64 = 1.5;
const BETA: f64 = 1.2;

/// A += u1 v1ᵀ + u2 v2ᵀ; x = β Aᵀ y + z; w = α A x.
pub(super) fn gemver(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    let scale = n as f64;
    work.fill(0, |i, j| ((i * j) % n) as f64 / scale)?;
    let vector = |by: f64| -> Vec<f64> { (0..n).map(|i| (i + 1) as f64 / scale / by).collect() };
    let u1: Vec<f64> = (0..n).map(|i| i as f64).collect();
    let [u2, v1, v2, y, z] = [2.0, 4.0, 6.0, 8.0, 9.0].map(vector);
    let (mut x, mut w, mut buffer) = (vec![0.0; n], Vec::with_capacity(n), Buffer::default());
    work.begin();
    for band in work.bands() {
        let (after, first) = (work.after(&band), band.start);
        work.arrays[0].update(band, after, |rows| {
            for (i, row) in (first..).zip(rows.chunks_exact_mut(n)) {
                for j in 0..n {
                    row[j] = row[j] + u1[i] * v1[j] + u2[i] * v2[j];
                }
                add(&mut x, BETA * y[i], row);
            }
        })?;
    }
    add(&mut x, 1.0, &z);
    for band in work.bands() {
        let after = work.after(&band);
        let rows = work.arrays[0].read(band, after, &mut buffer)?;
        w.extend(rows.chunks_exact(n).map(|row| ALPHA * dot(row, &x)));
    }
    work.end(&[0], &[&x, &w])
}

#[cfg(test)]
mod tests {
    use crate::placed::{Fingerprint, Placement};
    use crate::polybench::{compute, dot, Case, Kernel};

    fn got(kernel: Kernel, n: usize) -> Fingerprint {
        compute(kernel, &Case { n, steps: 1 }, &Placement::Dram).expect("computed").fingerprint
    }

    #[test]
    fn atax_is_the_formula() {
        let n = 61;
        let a = |i: usize, j: usize| ((i + j) % n) as f64 / (5.0 * n as f64);
        let x: Vec<f64> = (0..n).map(|i| 1.0 + i as f64 / n as f64).collect();
        let mut y = vec![0.0; n];
        for i in 0..n {
            let row: Vec<f64> = (0..n).map(|j| a(i, j)).collect();
            let product = dot(&row, &x);
            (0..n).for_each(|j| y[j] += product * row[j]);
        }
        let mut wanted = Fingerprint::default();
        wanted.add(0, &y);
        assert_eq!(got(Kernel::Atax, n), wanted);
    }

    #[test]
    fn gemver_is_the_formula() {
        let n = 37;
        let f = n as f64;
        let at = |i: usize, by: f64| (i + 1) as f64 / f / by;
        let mut a: Vec<f64> = (0..n * n).map(|k| (k / n * (k % n) % n) as f64 / f).collect();
        for (k, value) in a.iter_mut().enumerate() {
            let (i, j) = (k / n, k % n);
            *value = *value + i as f64 * at(j, 4.0) + at(i, 2.0) * at(j, 6.0);
        }
        let mut x = vec![0.0; n];
        for i in 0..n {
            (0..n).for_each(|j| x[j] += 1.2 * at(i, 8.0) * a[i * n + j]);
        }
        (0..n).for_each(|i| x[i] += at(i, 9.0));
        let w: Vec<f64> = (0..n).map(|i| 1.5 * dot(&a[i * n..(i + 1) * n], &x)).collect();
        let mut wanted = Fingerprint::default();
        wanted.add(0, &a);
        wanted.add((n * n) as u64, &x);
        wanted.add((n * n + n) as u64, &w);
        assert_eq!(got(Kernel::Gemver, n), wanted);
    }

    #[test]
    fn a_dot_product_is_a_sum() {
        let a: Vec<f64> = (0..19).map(f64::from).collect();
        assert_eq!(dot(&a, &a), (0..19).map(|i| f64::from(i * i)).sum::<f64>());
    }
}
