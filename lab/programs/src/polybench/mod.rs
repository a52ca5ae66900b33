//! Kernels of the PolyBench suite over arrays in memory or on a tier: a few that stream, a few that come back.
//!
//! | kernel | what it computes | arrays, passes over them |
//! |---|---|---|
//! | `atax` | y = Aᵀ(A x) | one, once |
//! | `gemver` | A + u₁v₁ᵀ + u₂v₂ᵀ, x = βAᵀy + z, w = αA x | one, twice |
//! | `jacobi-2d` | a cell and its four neighbours by 5, there and back | two, twice a step |
//! | `fdtd-2d` | Maxwell's equations in two dimensions | three, twice a step |
//! | `adi` | heat by alternating directions: Thomas' algorithm by column, then by row | three, three times a step |
//! | `covariance` | of all pairs of columns | two; the data as often as bands of the result ask |
//! | `gemm` | C = αA B + βC | three; B as often as bands of C ask |
//!
//! Initial values and formulas are PolyBench's; the order of the loops is not, where another one goes along the rows:
//! each element is computed by the same operations in the same order, except that sums over a row have eight lanes.
//!
//! Guarantees: every value is the same bit for bit, wherever the arrays lie.

mod products;
mod stencils;
mod streams;

use std::ops::Range;
use std::str::FromStr;
use std::time::Instant;

use forebay_space::{Error, Kind, Result};

use crate::placed::{band_values, bands, Buffer, Fingerprint, Moved, Placed, Placement};

/// Values that are worked on in one go.
const BAND_VALUES: usize = 1 << 17;
/// Values that are asked for ahead, if the budget allows: many requests under way keep a tier busy.
const AHEAD_VALUES: usize = 1 << 21;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Matrix transposed times matrix times vector.
    Atax,
    /// Vectors and rank-one updates.
    Gemver,
    /// Five-point stencil.
    Jacobi2d,
    /// Finite differences in the time domain.
    Fdtd2d,
    /// Alternating directions implicit.
    Adi,
    /// Covariance.
    Covariance,
    /// Matrix times matrix.
    Gemm,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 7] = [
        Kernel::Atax,
        Kernel::Gemver,
        Kernel::Jacobi2d,
        Kernel::Fdtd2d,
        Kernel::Adi,
        Kernel::Covariance,
        Kernel::Gemm,
    ];

    /// As PolyBench calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Atax => "atax",
            Kernel::Gemver => "gemver",
            Kernel::Jacobi2d => "jacobi-2d",
            Kernel::Fdtd2d => "fdtd-2d",
            Kernel::Adi => "adi",
            Kernel::Covariance => "covariance",
            Kernel::Gemm => "gemm",
        }
    }

    /// Arrays of n x n values.
    pub fn arrays(self) -> usize {
        match self {
            Kernel::Atax | Kernel::Gemver => 1,
            Kernel::Jacobi2d | Kernel::Covariance => 2,
            Kernel::Fdtd2d | Kernel::Adi | Kernel::Gemm => 3,
        }
    }

    /// Whether it goes over its arrays step by step.
    pub fn has_steps(self) -> bool {
        matches!(self, Kernel::Jacobi2d | Kernel::Fdtd2d | Kernel::Adi)
    }

    /// Operations on values, as counted in the formulas.
    pub fn flops(self, case: &Case) -> f64 {
        let (n, steps) = (case.n as f64, case.steps as f64);
        match self {
            Kernel::Atax => 4.0 * n * n,
            Kernel::Gemver => 10.0 * n * n,
            Kernel::Jacobi2d => 10.0 * steps * n * n,
            Kernel::Fdtd2d => 11.0 * steps * n * n,
            Kernel::Adi => 30.0 * steps * n * n,
            Kernel::Covariance => 2.0 * n * n * n + 3.0 * n * n,
            Kernel::Gemm => 3.0 * n * n * n,
        }
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(word: &str) -> Result<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.name() == word).ok_or_else(|| {
            let names: Vec<&str> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
            Error::new(Kind::Usage, format!("there is no kernel `{word}`"))
                .hint(format!("the kernels are {}", names.join(", ")))
        })
    }
}

/// How much to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Rows and columns of every array.
    pub n: usize,
    /// Steps of those kernels that have some.
    pub steps: usize,
}

impl Case {
    /// Bytes of one array.
    pub fn array_bytes(&self) -> u64 {
        (self.n * self.n * size_of::<f64>()) as u64
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Of the bits of the results.
    pub fingerprint: Fingerprint,
    /// What the kernel read from and wrote to its arrays, without their first values.
    pub moved: Moved,
    /// Time of the kernel, without that.
    pub seconds: f64,
}

/// Arrays of a case, the first one is number 0; how they are gone over.
struct Work {
    n: usize,
    steps: usize,
    band: usize,
    /// Rows that are asked for ahead.
    ahead: usize,
    arrays: Vec<Placed>,
    began: Instant,
    before: Moved,
}

impl Work {
    fn bands(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        bands(0..self.n, self.n, self.band)
    }

    /// The rows that the bands after this one want.
    fn after(&self, band: &Range<usize>) -> Range<usize> {
        band.end..(band.end + self.ahead.max(band.len())).min(self.n)
    }

    /// Gives an array its first values.
    fn fill(&mut self, array: usize, value: impl Fn(usize, usize) -> f64) -> Result<()> {
        let n = self.n;
        for band in self.bands() {
            let first = band.start;
            self.arrays[array].write(band, |rows| {
                for (i, row) in (first..).zip(rows.chunks_exact_mut(n)) {
                    row.iter_mut().enumerate().for_each(|(j, v)| *v = value(i, j));
                }
            })?;
        }
        Ok(())
    }

    /// The kernel begins now.
    fn begin(&mut self) {
        (self.before, self.began) = (self.moved(), Instant::now());
    }

    fn moved(&self) -> Moved {
        self.arrays.iter().map(Placed::moved).sum()
    }

    /// The kernel has ended; its results are these arrays, and these vectors.
    fn end(self, results: &[usize], vectors: &[&[f64]]) -> Result<Outcome> {
        let seconds = self.began.elapsed().as_secs_f64();
        let moved = self.moved() - self.before;
        let (mut fingerprint, mut place, mut buffer) = (Fingerprint::default(), 0, Buffer::default());
        for array in results {
            for band in self.bands() {
                let values = self.arrays[*array].read(band.clone(), self.after(&band), &mut buffer)?;
                fingerprint.add(place, values);
                place += values.len() as u64;
            }
        }
        for vector in vectors {
            fingerprint.add(place, vector);
            place += vector.len() as u64;
        }
        Ok(Outcome { fingerprint, moved, seconds })
    }
}

/// Computes a kernel with all arrays placed so.
///
/// # Errors
/// `Usage` for a case without values or steps; those of [`Placed`].
pub fn compute(kernel: Kernel, case: &Case, placement: &Placement) -> Result<Outcome> {
    if !(3..=1 << 26).contains(&case.n) || case.steps == 0 {
        return Err(Error::new(Kind::Usage, "a kernel has at least 3 rows and columns and one step")
            .with("n", case.n)
            .with("steps", case.steps));
    }
    // All before any is touched: their page tables have to fit the budget beside the data.
    let one = |_| Placed::new(case.n, case.n, placement);
    let arrays = (0..kernel.arrays()).map(one).collect::<Result<Vec<_>>>()?;
    let [band, ahead] = [BAND_VALUES, AHEAD_VALUES].map(|most| band_values(&arrays, most));
    let (n, steps) = (case.n, case.steps);
    let work =
        Work { n, steps, band, ahead: ahead / n, arrays, began: Instant::now(), before: Moved::default() };
    match kernel {
        Kernel::Atax => streams::atax(work),
        Kernel::Gemver => streams::gemver(work),
        Kernel::Jacobi2d => stencils::jacobi(work),
        Kernel::Fdtd2d => stencils::fdtd(work),
        Kernel::Adi => stencils::adi(work),
        Kernel::Covariance => products::covariance(work),
        Kernel::Gemm => products::gemm(work),
    }
}

/// The arrays of a kernel that has three.
fn three(arrays: &mut [Placed]) -> &mut [Placed; 3] {
    arrays.try_into().expect("this kernel has three arrays")
}

/// Sum of products, in eight lanes.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut lanes, whole) = ([0.0; 8], a.len() / 8 * 8);
    for (a, b) in a[..whole].chunks_exact(8).zip(b[..whole].chunks_exact(8)) {
        for lane in 0..8 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f64 = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Adds a multiple of one row to another.
fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pager::{Pool, PoolOptions};
    use forebay_tier::Horizon;

    #[test]
    fn the_same_bits_wherever_arrays_lie() {
        let dir = tempfile::tempdir().expect("a folder");
        let case = Case { n: 201, steps: 3 };
        for kernel in Kernel::ALL {
            let dram = compute(kernel, &case, &Placement::Dram).expect("dram");
            assert!(dram.moved.dram_read > 0 && dram.seconds > 0.0);
            let pool =
                Pool::new(PoolOptions { tile_max: 4096, ..PoolOptions::new(150 << 10) }).expect("a pool");
            let tier = Placement::Tier {
                pool: pool.clone(),
                dir: dir.path().into(),
                tile_bytes: 4096,
                horizon: Horizon::None,
            };
            let paged = compute(kernel, &case, &tier).expect("paged");
            assert_eq!(paged.fingerprint, dram.fingerprint, "{}", kernel.name());
            assert!(pool.statistics().loaded > 0, "{}", kernel.name());
            assert!(paged.moved.tier_read >= dram.moved.dram_read, "{}", kernel.name());
            let mapped = compute(kernel, &case, &Placement::Mmap { dir: dir.path().into() }).expect("mapped");
            assert_eq!(mapped.fingerprint, dram.fingerprint, "{}", kernel.name());
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0);
    }

    #[test]
    fn kernels_have_names() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.name().parse::<Kernel>().expect("its name"), kernel);
        }
        assert!("lu".parse::<Kernel>().expect_err("none").hint_text().is_some_and(|h| h.contains("gemm")));
        let none = compute(Kernel::Atax, &Case { n: 2, steps: 1 }, &Placement::Dram).expect_err("too small");
        assert_eq!(none.kind(), Kind::Usage);
    }
}
