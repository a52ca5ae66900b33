//! The out-of-memory matrix work of a cosmic-microwave-background analysis: correlation matrices of sky pixels, one
//! for each bin of multipoles, that are written, read, written over and read again because memory holds only a few.
//!
//! With N pixels at random places of the sphere and B bins of ten multipoles, χ the angle between two pixels and P_l
//! the Legendre polynomials:
//!
//! ```text
//! S   S_b(i,j) = Σ_l (2l+1)/(4π) P_l(cos χ_ij)        computed and written
//! D   D = 1 + Σ_b S_b, inverted                        in memory
//! W   W_b = D⁻¹ S_b                                    S_b read, W_b written over it
//! C   F(b,b') = tr(W_b W_b'),  t_b = tr W_b            W_b read, and the others again for each
//! ```
//!
//! In the mode that only moves bytes every element is a pattern instead, and a busy loop stands for the algebra: then
//! S, W and C write, read, write and read each matrix once.
//!
//! Guarantees: what is read is what was written, checked by D W_b = S_b (S_b is computed again), or by the pattern.

mod interfaces;

use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};

use crate::numbers::{number, unit};

pub use interfaces::{Calls, Mapped, Tiles};

/// Multipoles of a bin.
const MULTIPOLES: usize = 10;
/// How far D W_b may be from S_b, by the largest element of S_b.
const TOLERANCE: f64 = 1e-9;

/// Where matrices lie: a range of bytes that is written and read in blocks.
pub trait Storage {
    /// Writes a block.
    ///
    /// # Errors
    /// What the medium says.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads a block.
    ///
    /// # Errors
    /// What the medium says.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Says that a range will be read soon.
    fn ahead(&mut self, offset: u64, bytes: u64);

    /// What was written is on the medium.
    ///
    /// # Errors
    /// When it is not.
    fn flush(&mut self) -> Result<()>;
}

/// How much to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Pixels: rows and columns of a matrix.
    pub pixels: usize,
    /// Bins: matrices.
    pub bins: usize,
    /// Bytes of a transfer; the last one of a matrix may be shorter.
    pub block: usize,
    /// Moves bytes only: a loop of this power of the number of elements stands for the algebra of a matrix.
    pub busy: Option<u32>,
    /// Where the pixels lie.
    pub seed: u64,
}

impl Case {
    /// Bytes of a matrix.
    pub fn matrix_bytes(&self) -> u64 {
        (self.pixels * self.pixels * size_of::<f64>()) as u64
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.matrix_bytes() * self.bins as u64
    }

    /// Whether it can be computed.
    ///
    /// # Errors
    /// `Usage` without pixels, bins or blocks.
    pub fn check(&self) -> Result<()> {
        if (1..=1 << 16).contains(&self.pixels) && (1..=1 << 16).contains(&self.bins) && self.block > 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "pixels and bins are 1 to 65536, a block has at least a byte")
            .with("pixels", self.pixels)
            .with("bins", self.bins)
            .with("block", self.block))
    }
}

/// A phase: its letter, and the time and bytes of its transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Time of reading.
    pub reading: Duration,
    /// Bytes read.
    pub read: u64,
    /// Time of writing, with the flush at the end of the phase.
    pub writing: Duration,
    /// Bytes written.
    pub written: u64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Of the phases S, W and C.
    pub phases: [Transfers; 3],
    /// Time of all of it, the algebra included.
    pub elapsed: Duration,
    /// F, bin by bin; empty in the mode that only moves bytes.
    pub fisher: Vec<f64>,
    /// Traces of W_b; empty in that mode.
    pub traces: Vec<f64>,
    /// Largest difference between D W_b and S_b, by the largest element of S_b.
    pub residual: f64,
}

struct Run<'a, S> {
    case: &'a Case,
    storage: &'a mut S,
    phases: [Transfers; 3],
    pixels: Vec<[f64; 3]>,
}

/// Computes a case.
///
/// # Errors
/// Those of [`Case::check`] and of the storage; `Damaged` when something else was read than written.
pub fn compute<S: Storage>(case: &Case, storage: &mut S, mut progress: impl FnMut(&str)) -> Result<Outcome> {
    case.check()?;
    let began = Instant::now();
    let pixels = places(case.pixels, case.seed);
    let mut run = Run { case, storage, phases: Default::default(), pixels };
    let mut outcome = match case.busy {
        None => run.algebra(&mut progress)?,
        Some(power) => run.bytes_only(power, &mut progress)?,
    };
    (outcome.phases, outcome.elapsed) = (run.phases, began.elapsed());
    Ok(outcome)
}

impl<S: Storage> Run<'_, S> {
    fn algebra(&mut self, progress: &mut impl FnMut(&str)) -> Result<Outcome> {
        let (n, bins) = (self.case.pixels, self.case.bins);
        let mut matrix = vec![0.0; n * n];
        // D is summed while the S_b are there; it is symmetric, as they are.
        let mut data = identity(n);
        for bin in 0..bins {
            self.signal(bin, &mut matrix);
            add(&mut data, &matrix);
            self.write(0, bin, &matrix)?;
            progress(&format!("S: bin {} of {bins}", bin + 1));
        }
        self.flush(0)?;
        let inverse = inverse(&data, n)?;
        progress("D: inverted");
        let (mut product, mut again) = (vec![0.0; n * n], vec![0.0; n * n]);
        let mut residual: f64 = 0.0;
        for bin in 0..bins {
            self.read(1, bin, &mut matrix)?;
            multiply(&inverse, &matrix, &mut product, n);
            self.signal(bin, &mut again);
            residual = residual.max(distance(&data, &product, &again, n));
            self.write(1, bin, &product)?;
            progress(&format!("W: bin {} of {bins}", bin + 1));
        }
        self.flush(1)?;
        if residual.is_nan() || residual > TOLERANCE {
            return Err(Error::new(Kind::Damaged, "D times W is not S: a matrix came back another one")
                .with("residual", residual)
                .hint("memory or the tier lost bits: run it again"));
        }
        let (mut fisher, mut traces) = (vec![0.0; bins * bins], vec![0.0; bins]);
        for bin in 0..bins {
            self.read(2, bin, &mut matrix)?;
            traces[bin] = (0..n).map(|i| matrix[i * n + i]).sum();
            fisher[bin * bins + bin] = trace_of_product(&matrix, &matrix, n);
            for other in bin + 1..bins {
                self.read(2, other, &mut product)?;
                let value = trace_of_product(&matrix, &product, n);
                (fisher[bin * bins + other], fisher[other * bins + bin]) = (value, value);
            }
            progress(&format!("C: bin {} of {bins}", bin + 1));
        }
        Ok(Outcome { phases: Default::default(), elapsed: Duration::ZERO, fisher, traces, residual })
    }

    fn bytes_only(&mut self, power: u32, progress: &mut impl FnMut(&str)) -> Result<Outcome> {
        let (n, bins) = (self.case.pixels, self.case.bins);
        let mut matrix = vec![0.0; n * n];
        let pattern =
            |bin: usize, round: usize, i: usize| (bin * 7 + round * 3 + 1) as f64 * (i as f64 + 0.5);
        for (phase, name) in ["S", "W", "C"].into_iter().enumerate() {
            for bin in 0..bins {
                if phase > 0 {
                    self.read(phase, bin, &mut matrix)?;
                    if matrix.iter().enumerate().any(|(i, v)| *v != pattern(bin, phase - 1, i)) {
                        return Err(Error::new(Kind::Damaged, "a matrix came back another one")
                            .with("bin", bin)
                            .hint("memory or the tier lost bits: run it again"));
                    }
                }
                busy(n, power);
                if phase < 2 {
                    matrix.iter_mut().enumerate().for_each(|(i, v)| *v = pattern(bin, phase, i));
                    self.write(phase, bin, &matrix)?;
                }
                progress(&format!("{name}: bin {} of {bins}", bin + 1));
            }
            if phase < 2 {
                self.flush(phase)?;
            }
        }
        let (fisher, traces) = (Vec::new(), Vec::new());
        Ok(Outcome { phases: Default::default(), elapsed: Duration::ZERO, fisher, traces, residual: 0.0 })
    }

    /// S_b: recurrence of the Legendre polynomials, element by element.
    fn signal(&self, bin: usize, matrix: &mut [f64]) {
        let n = self.case.pixels;
        let (first, last) = (2 + bin * MULTIPOLES, 2 + (bin + 1) * MULTIPOLES);
        for i in 0..n {
            for j in i..n {
                let x: f64 = self.pixels[i].iter().zip(&self.pixels[j]).map(|(a, b)| a * b).sum();
                let (mut before, mut now, mut sum) = (1.0, x, 0.0);
                for l in 2..last {
                    let next = ((2 * l - 1) as f64 * x * now - (l - 1) as f64 * before) / l as f64;
                    (before, now) = (now, next);
                    if l >= first {
                        sum += (2 * l + 1) as f64 * now;
                    }
                }
                let value = sum / (4.0 * std::f64::consts::PI);
                (matrix[i * n + j], matrix[j * n + i]) = (value, value);
            }
        }
    }

    fn write(&mut self, phase: usize, bin: usize, matrix: &[f64]) -> Result<()> {
        let (began, start) = (Instant::now(), self.case.matrix_bytes() * bin as u64);
        let bytes: &[u8] = bytemuck::cast_slice(matrix);
        for (number, block) in bytes.chunks(self.case.block).enumerate() {
            self.storage.write(start + (number * self.case.block) as u64, block)?;
        }
        self.phases[phase].writing += began.elapsed();
        self.phases[phase].written += bytes.len() as u64;
        Ok(())
    }

    fn read(&mut self, phase: usize, bin: usize, matrix: &mut [f64]) -> Result<()> {
        let (began, start) = (Instant::now(), self.case.matrix_bytes() * bin as u64);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(matrix);
        for (number, block) in bytes.chunks_mut(self.case.block).enumerate() {
            self.storage.read(start + (number * self.case.block) as u64, block)?;
        }
        self.phases[phase].reading += began.elapsed();
        self.phases[phase].read += bytes.len() as u64;
        if bin + 1 < self.case.bins {
            // The next one comes while this one is worked on.
            self.storage.ahead(start + self.case.matrix_bytes(), self.case.matrix_bytes());
        }
        Ok(())
    }

    fn flush(&mut self, phase: usize) -> Result<()> {
        let began = Instant::now();
        self.storage.flush()?;
        self.phases[phase].writing += began.elapsed();
        Ok(())
    }
}

/// Points on the unit sphere, evenly at random.
fn places(pixels: usize, seed: u64) -> Vec<[f64; 3]> {
    let random = |place: usize| unit(number(seed, place as u64));
    let point = |pixel: usize| {
        let z = 2.0 * random(2 * pixel) - 1.0;
        let angle = 2.0 * std::f64::consts::PI * random(2 * pixel + 1);
        let radius = (1.0 - z * z).sqrt();
        [radius * angle.cos(), radius * angle.sin(), z]
    };
    (0..pixels).map(point).collect()
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|k| if k / n == k % n { 1.0 } else { 0.0 }).collect()
}

fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// a += factor b.
fn add_times(a: &mut [f64], factor: f64, b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += factor * b);
}

/// The inverse by Gauss and Jordan; the matrix is 1 plus something positive, so its diagonal serves as pivots.
fn inverse(matrix: &[f64], n: usize) -> Result<Vec<f64>> {
    let (mut left, mut right) = (matrix.to_vec(), identity(n));
    let mut pivot_rows = (vec![0.0; n], vec![0.0; n]);
    for pivot in 0..n {
        let value = left[pivot * n + pivot];
        if value.is_nan() || value <= 0.0 {
            return Err(Error::new(Kind::Damaged, "the sum of the matrices is not positive")
                .with("pivot", pivot)
                .hint("fewer bins, or another --seed"));
        }
        for matrix in [&mut left, &mut right] {
            matrix[pivot * n..(pivot + 1) * n].iter_mut().for_each(|v| *v /= value);
        }
        pivot_rows.0.copy_from_slice(&left[pivot * n..(pivot + 1) * n]);
        pivot_rows.1.copy_from_slice(&right[pivot * n..(pivot + 1) * n]);
        for (row, (l, r)) in left.chunks_exact_mut(n).zip(right.chunks_exact_mut(n)).enumerate() {
            let factor = l[pivot];
            if row != pivot && factor != 0.0 {
                add_times(l, -factor, &pivot_rows.0);
                add_times(r, -factor, &pivot_rows.1);
            }
        }
    }
    Ok(right)
}

fn multiply(a: &[f64], b: &[f64], out: &mut [f64], n: usize) {
    out.fill(0.0);
    for (out, a) in out.chunks_exact_mut(n).zip(a.chunks_exact(n)) {
        for (factor, b) in a.iter().zip(b.chunks_exact(n)) {
            add_times(out, *factor, b);
        }
    }
}

/// Largest difference between d w and s, by the largest element of s.
fn distance(d: &[f64], w: &[f64], s: &[f64], n: usize) -> f64 {
    let mut row = vec![0.0; n];
    let (mut largest, mut difference): (f64, f64) = (0.0, 0.0);
    for (d, s) in d.chunks_exact(n).zip(s.chunks_exact(n)) {
        row.fill(0.0);
        d.iter().zip(w.chunks_exact(n)).for_each(|(factor, w)| add_times(&mut row, *factor, w));
        for (got, wanted) in row.iter().zip(s) {
            largest = largest.max(wanted.abs());
            // A NaN must not be lost: max() would drop it.
            difference = if got.is_nan() { f64::NAN } else { difference.max((got - wanted).abs()) };
        }
        if difference.is_nan() {
            break;
        }
    }
    difference / largest
}

/// tr(a b) = Σ_ij a_ij b_ji, in squares that stay in the cache.
fn trace_of_product(a: &[f64], b: &[f64], n: usize) -> f64 {
    const EDGE: usize = 32;
    let mut sum = 0.0;
    for i in (0..n).step_by(EDGE) {
        for j in (0..n).step_by(EDGE) {
            for row in i..(i + EDGE).min(n) {
                for column in j..(j + EDGE).min(n) {
                    sum += a[row * n + column] * b[column * n + row];
                }
            }
        }
    }
    sum
}

/// A loop of n to this power operations.
fn busy(n: usize, power: u32) {
    let mut value = 1.0f64;
    for _ in 0..(n as u64).saturating_pow(power) {
        value = std::hint::black_box(value * 0.999_999 + 1e-6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Vec<u8>, [u64; 2]);

    impl Storage for Memory {
        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            self.1[1] += 1;
            Ok(())
        }
        fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
            self.1[0] += 1;
            Ok(())
        }
        fn ahead(&mut self, offset: u64, bytes: u64) {
            assert!(offset + bytes <= self.0.len() as u64);
        }
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn memory(case: &Case) -> Memory {
        Memory(vec![0; case.bytes() as usize], [0; 2])
    }

    const CASE: Case = Case { pixels: 40, bins: 3, block: 1000, busy: None, seed: 7 };

    #[test]
    fn the_algebra_holds() {
        let mut storage = memory(&CASE);
        let outcome = compute(&CASE, &mut storage, |_| ()).expect("computed");
        assert!(outcome.residual < 1e-12, "{}", outcome.residual);
        // Σ_b W_b = D⁻¹ (D - 1) = 1 - D⁻¹: its trace lies between 0 and N.
        let trace: f64 = outcome.traces.iter().sum();
        assert!(trace > 0.0 && trace < 40.0, "{trace}");
        // The sum of F over all pairs is tr((1 - D⁻¹)²), which is less.
        let fisher: f64 = outcome.fisher.iter().sum();
        assert!(fisher > 0.0 && fisher < trace, "{fisher} {trace}");
        // 12 800 bytes a matrix are 13 blocks: S and W write 3, W reads 3, C reads 3 + 2 + 1.
        assert_eq!(storage.1, [9 * 13, 6 * 13]);
        let [s, w, c] = outcome.phases;
        assert_eq!((s.read, s.written), (0, 3 * 12_800));
        assert_eq!((w.read, w.written, c.read, c.written), (3 * 12_800, 3 * 12_800, 6 * 12_800, 0));
    }

    #[test]
    fn the_block_changes_nothing() {
        let of =
            |block| compute(&Case { block, ..CASE }, &mut memory(&CASE), |_| ()).expect("computed").fisher;
        assert_eq!(of(8), of(1 << 20));
    }

    #[test]
    fn what_comes_back_wrong_is_an_error() {
        struct Wrong(Memory);
        impl Storage for Wrong {
            fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
                self.0.write(offset, bytes)
            }
            fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
                self.0.read(offset, out)?;
                out[0] ^= if offset == 12_800 { 0x10 } else { 0 };
                out[6] ^= if offset == 12_800 { 0x10 } else { 0 };
                Ok(())
            }
            fn ahead(&mut self, _: u64, _: u64) {}
            fn flush(&mut self) -> Result<()> {
                Ok(())
            }
        }
        for busy in [None, Some(1)] {
            let case = Case { busy, ..CASE };
            let error = compute(&case, &mut Wrong(memory(&case)), |_| ()).expect_err("wrong");
            assert_eq!(error.kind(), Kind::Damaged);
        }
    }

    #[test]
    fn bytes_alone_are_moved_once_a_phase() {
        let case = Case { busy: Some(2), block: 4096, ..CASE };
        let outcome = compute(&case, &mut memory(&case), |_| ()).expect("moved");
        let bytes = outcome.phases.map(|phase| (phase.read / 12_800, phase.written / 12_800));
        assert_eq!(bytes, [(0, 3), (3, 3), (3, 0)]);
        assert_eq!(
            compute(&Case { block: 0, ..CASE }, &mut memory(&CASE), |_| ()).expect_err("no block").kind(),
            Kind::Usage
        );
    }
}
