//! Memory expansion: how much slower a program runs once it needs more than main memory.
//!
//! With the footprint F swept again and again, the share x of accesses that miss main memory of size M is
//!
//! ```text
//! Memory Mode (a direct-mapped cache):   x = 0 for F <= M,  2 (F - M) / F up to 2 M,  1 beyond
//! swap (the least recently used goes):   x = 0 for F <= M', 1 beyond: what comes next has just gone
//! slow-down = 1 + (S - 1) x
//! ```
//!
//! S, the slow-down when everything misses, belongs to the program: one that computes more per byte has a smaller one.
//! [`plateau`] reads it off runs beyond 2.2 M; so what is predicted is where the program begins to be slow and how it
//! gets there, and what is measured is how slow it gets. M' is less than M by what the system itself keeps
//! ([`RESIDENT`]).

/// How memory is expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    /// Main memory as the hardware's cache of a larger one.
    MemoryMode,
    /// Pages that the kernel moves to a drive.
    Swap,
}

/// Part of main memory that a program can fill before the kernel swaps. Picked by eye: of the programs of the study of
/// the StoringStorage repository
/// on a node of 96 GB all but one run undisturbed at 83 GB, and all that were tried at 94 to 98 GB swap.
pub const RESIDENT: f64 = 0.9;
/// From this many main memories on a footprint counts as far beyond: everything misses.
pub const FAR: f64 = 2.2;

impl Expansion {
    /// Footprint from which on a program slows down.
    pub fn knee(self, memory: f64) -> f64 {
        match self {
            Expansion::MemoryMode => memory,
            Expansion::Swap => RESIDENT * memory,
        }
    }

    /// Share of accesses that miss; footprint and memory in the same unit.
    pub fn miss_share(self, footprint: f64, memory: f64) -> f64 {
        if footprint <= self.knee(memory) {
            return 0.0;
        }
        match self {
            Expansion::MemoryMode => (2.0 * (footprint - memory) / footprint).min(1.0),
            Expansion::Swap => 1.0,
        }
    }

    /// How many times longer it takes; `slowest` is S.
    pub fn slow_down(self, footprint: f64, memory: f64, slowest: f64) -> f64 {
        1.0 + (slowest - 1.0) * self.miss_share(footprint, memory)
    }
}

/// S of a program from runs of (footprint, rate): the mean rate of those that fit over the mean of those far beyond;
/// `None` without a run on either side.
pub fn plateau(runs: &[(f64, f64)], fits: impl Fn(f64) -> bool, far: impl Fn(f64) -> bool) -> Option<f64> {
    let mean = |of: &dyn Fn(f64) -> bool| {
        let rates: Vec<f64> = runs.iter().filter(|(f, _)| of(*f)).map(|(_, rate)| *rate).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    };
    Some(mean(&fits)? / mean(&far)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_misses_until_memory_is_full_and_everything_from_twice_that_on() {
        let mode = Expansion::MemoryMode;
        assert_eq!((mode.miss_share(96.0, 96.0), mode.miss_share(192.0, 96.0)), (0.0, 1.0));
        assert!((mode.miss_share(128.0, 96.0) - 0.5).abs() < 1e-12);
        assert_eq!(mode.slow_down(1000.0, 96.0, 2.5), 2.5);
        assert_eq!(Expansion::Swap.miss_share(86.0, 96.0), 0.0);
        assert_eq!(Expansion::Swap.slow_down(97.0, 96.0, 100.0), 100.0);
        let mut last = 0.0;
        for footprint in 1..400 {
            let now = mode.miss_share(f64::from(footprint), 96.0);
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn the_plateau_is_of_rates() {
        let runs = [(10.0, 4.0), (20.0, 4.0), (100.0, 3.0), (300.0, 1.0)];
        assert_eq!(plateau(&runs, |f| f < 50.0, |f| f > 200.0), Some(4.0));
        assert_eq!(plateau(&runs, |f| f < 5.0, |f| f > 200.0), None);
    }
}
