//! Problems of the NAS Parallel Benchmarks (Bailey et al., RNR-94-007; NPB 3.4) whose arrays lie in memory or on a
//! tier:
//!
//! | kernel | what it computes | arrays, passes over them |
//! |---|---|---|
//! | `mg` | ∇²u = v on a periodic cube by multigrid | three and coarser ones, five times an iteration |
//! | `ft` | heat in a box, by Fourier transforms | two; one read, the other written and read, each step |
//!
//! Guarantees: every value is the same bit for bit, wherever the arrays lie and by however many threads, and is
//! compared with the published one. BT, which has more to say, is [`crate::bt`].

mod class;
mod fourier;
pub mod ft;
pub mod mg;
mod random;

use std::str::FromStr;

use forebay_space::{Error, Kind, Result};

use crate::placed::{Moved, Placement};

pub use class::Class;

/// Which problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Multigrid.
    Mg,
    /// Fourier transforms.
    Ft,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The figures that are compared with published ones.
    pub figures: Vec<f64>,
    /// The largest relative difference to them.
    pub difference: f64,
    /// Bytes that the program read from and wrote to its arrays.
    pub moved: Moved,
    /// Time of the iterations.
    pub seconds: f64,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 2] = [Kernel::Mg, Kernel::Ft];

    /// As the benchmarks call it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Mg => "mg",
            Kernel::Ft => "ft",
        }
    }

    /// Bytes of all arrays of a class.
    pub fn bytes(self, class: Class) -> u64 {
        match self {
            Kernel::Mg => mg::Problem::of(class).bytes(),
            Kernel::Ft => ft::Problem::of(class).bytes(),
        }
    }

    /// Relative difference to the published figures up to which a run is right.
    pub fn tolerance(self) -> f64 {
        match self {
            Kernel::Mg => 1e-8,
            Kernel::Ft => 1e-12,
        }
    }

    /// Computes a class with arrays that lie there. `progress` hears of each iteration.
    ///
    /// # Errors
    /// `TierFull` without enough space; what reading and writing arrays says.
    pub fn compute(
        self,
        class: Class,
        place: &Placement,
        threads: usize,
        progress: impl FnMut(u64),
    ) -> Result<Outcome> {
        match self {
            Kernel::Mg => mg::compute(class, place, threads, progress),
            Kernel::Ft => ft::compute(class, place, threads, progress),
        }
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(word: &str) -> Result<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.name() == word).ok_or_else(|| {
            Error::new(Kind::Usage, format!("there is no kernel `{word}`")).hint("the kernels are mg, ft")
        })
    }
}

/// Lets threads work on chunks of `out`, each of `each` values and with its number; the calling thread is one of them.
fn by_chunks(threads: usize, out: &mut [f64], each: usize, work: impl Fn(usize, &mut [f64]) + Sync) {
    let chunks = out.len() / each;
    let threads = threads.min(chunks).max(1);
    std::thread::scope(|scope| {
        let (mut rest, work) = (out, &work);
        for thread in 0..threads {
            let mine = gray_scott::simulation::split::part(chunks, threads, thread);
            let (here, others) = rest.split_at_mut(mine.len() * each);
            rest = others;
            let all = move || {
                mine.zip(here.chunks_exact_mut(each)).for_each(|(at, chunk)| work(at, chunk));
            };
            match thread + 1 == threads {
                true => all(),
                false => drop(scope.spawn(all)),
            }
        }
    });
}
