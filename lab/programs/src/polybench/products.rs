//! Kernels that come back to their arrays: covariance and gemm, a band of the result at a time.

use forebay_space::Result;

use super::{add, three, Outcome, Work};
use crate::placed::Buffer;

/// Centres the columns of the data (array 0), then sums the products of every pair of them (array 1).
pub(super) fn covariance(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    work.fill(0, |i, j| (i as f64 * j as f64) / n as f64)?;
    let (mut mean, mut buffer) = (vec![0.0; n], Buffer::default());
    work.begin();
    for band in work.bands() {
        let after = work.after(&band);
        let rows = work.arrays[0].read(band, after, &mut buffer)?;
        rows.chunks_exact(n).for_each(|row| add(&mut mean, 1.0, row));
    }
    mean.iter_mut().for_each(|sum| *sum /= n as f64);
    for band in work.bands() {
        let after = work.after(&band);
        let centre = |row: &mut [f64]| row.iter_mut().zip(&mean).for_each(|(value, mean)| *value -= mean);
        work.arrays[0].update(band, after, |rows| rows.chunks_exact_mut(n).for_each(centre))?;
    }
    for wanted in work.bands() {
        let mut sums = vec![0.0; wanted.len() * n];
        for band in work.bands() {
            let after = work.after(&band);
            for row in work.arrays[0].read(band, after, &mut buffer)?.chunks_exact(n) {
                for (sums, value) in sums.chunks_exact_mut(n).zip(&row[wanted.clone()]) {
                    add(sums, *value, row);
                }
            }
        }
        work.arrays[1].write(wanted, |rows| {
            rows.iter_mut().zip(&sums).for_each(|(to, sum)| *to = sum / (n as f64 - 1.0));
        })?;
    }
    work.end(&[1], &[])
}

const ALPHA: f64 = 1.5;
const BETA: f64 = 1.2;

/// C (array 2) = α A (0) B (1) + β C.
pub(super) fn gemm(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    let scale = n as f64;
    work.fill(0, |i, j| (i * (j + 1) % n) as f64 / scale)?;
    work.fill(1, |i, j| (i * (j + 2) % n) as f64 / scale)?;
    work.fill(2, |i, j| ((i * j + 1) % n) as f64 / scale)?;
    let (mut left, mut right) = (Buffer::default(), Buffer::default());
    work.begin();
    for wanted in work.bands() {
        let bands: Vec<_> = work.bands().map(|band| (band.clone(), work.after(&band))).collect();
        let after = work.after(&wanted);
        let [a, b, c] = three(&mut work.arrays);
        let factors = a.read(wanted.clone(), after.clone(), &mut left)?;
        let mut failed = None;
        c.update(wanted, after, |rows| {
            rows.iter_mut().for_each(|value| *value *= BETA);
            for (band, after) in bands {
                let first = band.start;
                let values = match b.read(band, after, &mut right) {
                    Ok(values) => values,
                    Err(e) => return failed = Some(e),
                };
                for (to, factors) in rows.chunks_exact_mut(n).zip(factors.chunks_exact(n)) {
                    for (row, factor) in values.chunks_exact(n).zip(&factors[first..]) {
                        add(to, ALPHA * factor, row);
                    }
                }
            }
        })?;
        if let Some(e) = failed {
            return Err(e);
        }
    }
    work.end(&[2], &[])
}

#[cfg(test)]
mod tests {
    use crate::placed::{Fingerprint, Placement};
    use crate::polybench::{compute, Case, Kernel};

    fn same(kernel: Kernel, n: usize, wanted: &[f64]) {
        let mut sum = Fingerprint::default();
        sum.add(0, wanted);
        let got = compute(kernel, &Case { n, steps: 1 }, &Placement::Dram).expect("computed");
        assert_eq!(got.fingerprint, sum, "{}", kernel.name());
    }

    #[test]
    fn covariance_is_the_formula() {
        let n = 19;
        let mut data: Vec<f64> = (0..n * n).map(|k| ((k / n) as f64 * (k % n) as f64) / n as f64).collect();
        for j in 0..n {
            let mean = (0..n).map(|i| data[i * n + j]).sum::<f64>() / n as f64;
            (0..n).for_each(|i| data[i * n + j] -= mean);
        }
        let product = |k: usize| (0..n).fold(0.0, |sum, i| sum + data[i * n + k / n] * data[i * n + k % n]);
        let wanted: Vec<f64> = (0..n * n).map(|k| product(k) / (n as f64 - 1.0)).collect();
        same(Kernel::Covariance, n, &wanted);
    }

    #[test]
    fn gemm_is_the_formula() {
        let n = 21;
        let f = n as f64;
        let of = |k: usize, shift: usize| (k / n * (k % n + shift) % n) as f64 / f;
        let value = |k: usize| {
            let (i, j) = (k / n, k % n);
            let first = 1.2 * (((i * j + 1) % n) as f64 / f);
            (0..n).fold(first, |sum, l| sum + 1.5 * of(i * n + l, 1) * of(l * n + j, 2))
        };
        let wanted: Vec<f64> = (0..n * n).map(value).collect();
        same(Kernel::Gemm, n, &wanted);
    }
}
