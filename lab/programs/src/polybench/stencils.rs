//! Kernels that go over their arrays in every step: jacobi-2d, fdtd-2d and adi.

use std::ops::Range;

use forebay_space::Result;

use super::{three, Outcome, Work};
use crate::placed::{bands, Buffer, Placed};

impl Work {
    /// Bands of the rows that have a neighbour on each side.
    fn inner(&self) -> Vec<Range<usize>> {
        bands(1..self.n - 1, self.n, self.band).collect()
    }

    /// A band with a row more on each side.
    fn around(&self, band: &Range<usize>) -> Range<usize> {
        band.start - 1..band.end + 1
    }

    /// What is wanted after [`Work::around`].
    fn after_around(&self, band: &Range<usize>) -> Range<usize> {
        let after = self.after(band);
        (after.start + 1).min(self.n)..after.end
    }
}

/// Two arrays of a case, one of them to be written.
fn pair(arrays: &mut [Placed], from: usize, to: usize) -> (&Placed, &mut Placed) {
    let (low, high) = arrays.split_at_mut(from.max(to));
    match from < to {
        true => (&low[from], &mut high[0]),
        false => (&high[0], &mut low[to]),
    }
}

/// Each cell and its neighbours by 5, from A to B and back.
pub(super) fn jacobi(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    work.fill(0, |i, j| (i as f64 * (j + 2) as f64 + 2.0) / n as f64)?;
    work.fill(1, |i, j| (i as f64 * (j + 3) as f64 + 3.0) / n as f64)?;
    let mut buffer = Buffer::default();
    work.begin();
    for _ in 0..work.steps {
        for (from, to) in [(0, 1), (1, 0)] {
            for band in work.inner() {
                let (around, after) = (work.around(&band), work.after_around(&band));
                let (from, to) = pair(&mut work.arrays, from, to);
                let old = from.read(around, after.clone(), &mut buffer)?;
                to.update(band, after, |new| {
                    for (at, new) in new.chunks_exact_mut(n).enumerate() {
                        mean_of_five(&old[at * n..(at + 3) * n], new);
                    }
                })?;
            }
        }
    }
    work.end(&[0, 1], &[])
}

/// The ends of a row stay what they are.
fn mean_of_five(old: &[f64], new: &mut [f64]) {
    let n = new.len();
    let (north, here, south) = (&old[..n], &old[n..2 * n], &old[2 * n..]);
    for j in 1..n - 1 {
        new[j] = 0.2 * (here[j] + here[j - 1] + here[j + 1] + south[j] + north[j]);
    }
}

/// Electric field ex (array 0) and ey (1), magnetic field hz (2).
pub(super) fn fdtd(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    for (array, shift) in [(0, 1), (1, 2), (2, 3)] {
        work.fill(array, |i, j| (i as f64 * (j + shift) as f64) / n as f64)?;
    }
    let (mut first, mut second) = (Buffer::default(), Buffer::default());
    work.begin();
    for step in 0..work.steps {
        for band in work.bands() {
            let after = work.after(&band);
            // The row before the first one is not used.
            let from = band.start.saturating_sub(1);
            let [ex, ey, hz] = three(&mut work.arrays);
            let magnetic = hz.read(from..band.end, after.clone(), &mut first)?;
            let row = |i: usize| &magnetic[(i - from) * n..(i - from + 1) * n];
            ey.update(band.clone(), after.clone(), |rows| {
                for (i, ey) in (band.start..).zip(rows.chunks_exact_mut(n)) {
                    match i {
                        0 => ey.fill(step as f64),
                        _ => (0..n).for_each(|j| ey[j] -= 0.5 * (row(i)[j] - row(i - 1)[j])),
                    }
                }
            })?;
            ex.update(band.clone(), after, |rows| {
                for (i, ex) in (band.start..).zip(rows.chunks_exact_mut(n)) {
                    (1..n).for_each(|j| ex[j] -= 0.5 * (row(i)[j] - row(i)[j - 1]));
                }
            })?;
        }
        for band in bands(0..n - 1, n, work.band) {
            let after = work.after(&band);
            let [ex, ey, hz] = three(&mut work.arrays);
            let ex = ex.read(band.clone(), after.clone(), &mut first)?;
            let ey = ey.read(band.start..band.end + 1, after.clone(), &mut second)?;
            hz.update(band, after, |rows| {
                for (at, hz) in rows.chunks_exact_mut(n).enumerate() {
                    let (ex, here, below) =
                        (&ex[at * n..][..n], &ey[at * n..][..n], &ey[(at + 1) * n..][..n]);
                    (0..n - 1).for_each(|j| hz[j] -= 0.7 * (ex[j + 1] - ex[j] + below[j] - here[j]));
                }
            })?;
        }
    }
    work.end(&[0, 1, 2], &[])
}

/// Coefficients of the two sweeps.
#[derive(Clone, Copy)]
struct Sweeps {
    a: f64,
    b: f64,
    d: f64,
    e: f64,
}

impl Sweeps {
    fn new(n: usize, steps: usize) -> Sweeps {
        let (space, time) = (1.0 / n as f64, 1.0 / steps as f64);
        let (first, second) = (2.0 * time / (space * space), time / (space * space));
        Sweeps { a: -first / 2.0, b: 1.0 + first, d: -second / 2.0, e: 1.0 + second }
    }
}

/// u (array 0) down the columns into v (1), with q (2) between; then v along the rows into u. Down the columns means
/// all columns at once, row after row: the algorithm's p is the same for each of them.
pub(super) fn adi(mut work: Work) -> Result<Outcome> {
    let n = work.n;
    work.fill(0, |i, j| (i + n - j) as f64 / n as f64)?;
    let sweeps = Sweeps::new(n, work.steps);
    // p of a row from that of the row before.
    let mut p = vec![0.0; n];
    for j in 1..n - 1 {
        p[j] = -sweeps.a / (sweeps.a * p[j - 1] + sweeps.b);
    }
    let mut along = vec![0.0; n];
    for j in 1..n - 1 {
        along[j] = -sweeps.d / (sweeps.d * along[j - 1] + sweeps.e);
    }
    work.begin();
    for _ in 0..work.steps {
        down(&mut work, &sweeps, &p)?;
        up(&mut work, &p)?;
        rows(&mut work, &sweeps, &along)?;
    }
    work.end(&[0], &[])
}

/// q of all rows from the first to the last.
fn down(work: &mut Work, sweeps: &Sweeps, p: &[f64]) -> Result<()> {
    let (n, Sweeps { a, b, d, .. }) = (work.n, *sweeps);
    let (mut before, mut buffer) = (vec![1.0; n], Buffer::default());
    for band in work.inner() {
        let after = work.after(&band);
        let (u, q) = pair(&mut work.arrays, 0, 2);
        let values = u.read(band.clone(), after, &mut buffer)?;
        q.write(band.clone(), |rows| {
            for ((j, q), u) in (band.start..).zip(rows.chunks_exact_mut(n)).zip(values.chunks_exact(n)) {
                let divisor = a * p[j - 1] + b;
                (q[0], q[n - 1]) = (0.0, 0.0);
                for i in 1..n - 1 {
                    q[i] = (-d * u[i - 1] + (1.0 + 2.0 * d) * u[i] - d * u[i + 1] - a * before[i]) / divisor;
                }
                before.copy_from_slice(q);
            }
        })?;
    }
    Ok(())
}

/// v of all rows from the last to the first.
fn up(work: &mut Work, p: &[f64]) -> Result<()> {
    let n = work.n;
    let edge = |row: &mut [f64]| {
        // The ends of every row stay zero: they are not computed.
        row.fill(1.0);
        (row[0], row[n - 1]) = (0.0, 0.0);
    };
    let (mut below, mut buffer) = (vec![0.0; n], Buffer::default());
    edge(&mut below);
    work.arrays[1].write(n - 1..n, edge)?;
    for band in work.inner().into_iter().rev() {
        let next = band.start.saturating_sub(work.ahead.max(band.len())).max(1)..band.start;
        let (q, v) = pair(&mut work.arrays, 2, 1);
        let values = q.read(band.clone(), next, &mut buffer)?;
        v.write(band.clone(), |rows| {
            let both = band.clone().zip(rows.chunks_exact_mut(n).zip(values.chunks_exact(n)));
            for (j, (v, q)) in both.rev() {
                (v[0], v[n - 1]) = (0.0, 0.0);
                (1..n - 1).for_each(|i| v[i] = p[j] * below[i] + q[i]);
                below.copy_from_slice(v);
            }
        })?;
    }
    work.arrays[1].write(0..1, edge)
}

/// u of all rows, each by itself.
fn rows(work: &mut Work, sweeps: &Sweeps, p: &[f64]) -> Result<()> {
    let (n, Sweeps { a, d, e, .. }) = (work.n, *sweeps);
    let (mut q, mut buffer) = (vec![0.0; n], Buffer::default());
    for band in work.inner() {
        let (around, after) = (work.around(&band), work.after_around(&band));
        let (v, u) = pair(&mut work.arrays, 1, 0);
        let values = v.read(around, after, &mut buffer)?;
        u.write(band, |rows| {
            for (at, u) in rows.chunks_exact_mut(n).enumerate() {
                let row = |k: usize| &values[(at + k) * n..(at + k + 1) * n];
                let (north, here, south) = (row(0), row(1), row(2));
                q[0] = 1.0;
                for j in 1..n - 1 {
                    q[j] = (-a * north[j] + (1.0 + 2.0 * a) * here[j] - a * south[j] - d * q[j - 1])
                        / (d * p[j - 1] + e);
                }
                (u[0], u[n - 1]) = (1.0, 1.0);
                for j in (1..n - 1).rev() {
                    u[j] = p[j] * u[j + 1] + q[j];
                }
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::placed::{Fingerprint, Placement};
    use crate::polybench::{compute, Case, Kernel};

    const N: usize = 23;
    const STEPS: usize = 4;

    type Matrix = Vec<[f64; N]>;

    fn matrix(value: impl Fn(f64, f64) -> f64) -> Matrix {
        (0..N).map(|i| std::array::from_fn(|j| value(i as f64, j as f64))).collect()
    }

    fn same(kernel: Kernel, results: &[&Matrix]) {
        let mut wanted = Fingerprint::default();
        for (place, row) in results.iter().flat_map(|m| m.iter()).enumerate() {
            wanted.add((place * N) as u64, row);
        }
        let got = compute(kernel, &Case { n: N, steps: STEPS }, &Placement::Dram).expect("computed");
        assert_eq!(got.fingerprint, wanted, "{}", kernel.name());
    }

    #[test]
    fn jacobi_is_the_formula() {
        let n = N as f64;
        let mut a = matrix(|i, j| (i * (j + 2.0) + 2.0) / n);
        let mut b = matrix(|i, j| (i * (j + 3.0) + 3.0) / n);
        for _ in 0..STEPS {
            for back in [false, true] {
                let (from, to) = if back { (&b.clone(), &mut a) } else { (&a.clone(), &mut b) };
                for i in 1..N - 1 {
                    for j in 1..N - 1 {
                        to[i][j] = 0.2
                            * (from[i][j]
                                + from[i][j - 1]
                                + from[i][j + 1]
                                + from[i + 1][j]
                                + from[i - 1][j]);
                    }
                }
            }
        }
        same(Kernel::Jacobi2d, &[&a, &b]);
    }

    #[test]
    fn fdtd_is_the_formula() {
        let n = N as f64;
        let mut ex = matrix(|i, j| i * (j + 1.0) / n);
        let mut ey = matrix(|i, j| i * (j + 2.0) / n);
        let mut hz = matrix(|i, j| i * (j + 3.0) / n);
        for t in 0..STEPS {
            ey[0] = [t as f64; N];
            for i in 1..N {
                (0..N).for_each(|j| ey[i][j] -= 0.5 * (hz[i][j] - hz[i - 1][j]));
            }
            for i in 0..N {
                (1..N).for_each(|j| ex[i][j] -= 0.5 * (hz[i][j] - hz[i][j - 1]));
            }
            for i in 0..N - 1 {
                (0..N - 1)
                    .for_each(|j| hz[i][j] -= 0.7 * (ex[i][j + 1] - ex[i][j] + ey[i + 1][j] - ey[i][j]));
            }
        }
        same(Kernel::Fdtd2d, &[&ex, &ey, &hz]);
    }

    /// As PolyBench has it: a column at a time, then a row at a time.
    #[test]
    fn adi_is_the_formula() {
        let n = N as f64;
        let (dx, dt) = (1.0 / n, 1.0 / STEPS as f64);
        let (mul1, mul2) = (2.0 * dt / (dx * dx), dt / (dx * dx));
        let (a, b, d, e) = (-mul1 / 2.0, 1.0 + mul1, -mul2 / 2.0, 1.0 + mul2);
        let (mut p, mut q) = (matrix(|_, _| 0.0), matrix(|_, _| 0.0));
        let mut u = matrix(|i, j| (i + n - j) / n);
        let mut v = matrix(|_, _| 0.0);
        for _ in 0..STEPS {
            for i in 1..N - 1 {
                (v[0][i], p[i][0], q[i][0]) = (1.0, 0.0, 1.0);
                for j in 1..N - 1 {
                    p[i][j] = -a / (a * p[i][j - 1] + b);
                    q[i][j] =
                        (-d * u[j][i - 1] + (1.0 + 2.0 * d) * u[j][i] - d * u[j][i + 1] - a * q[i][j - 1])
                            / (a * p[i][j - 1] + b);
                }
                v[N - 1][i] = 1.0;
                for j in (1..N - 1).rev() {
                    v[j][i] = p[i][j] * v[j + 1][i] + q[i][j];
                }
            }
            for i in 1..N - 1 {
                (u[i][0], p[i][0], q[i][0]) = (1.0, 0.0, 1.0);
                for j in 1..N - 1 {
                    p[i][j] = -d / (d * p[i][j - 1] + e);
                    q[i][j] =
                        (-a * v[i - 1][j] + (1.0 + 2.0 * a) * v[i][j] - a * v[i + 1][j] - d * q[i][j - 1])
                            / (d * p[i][j - 1] + e);
                }
                u[i][N - 1] = 1.0;
                for j in (1..N - 1).rev() {
                    u[i][j] = p[i][j] * u[i][j + 1] + q[i][j];
                }
            }
        }
        same(Kernel::Adi, &[&u]);
    }
}
