//! Compute phases of programs that have no computation of their own: a sleep of a given time, or arithmetic that
//! takes this time on a processor of its own.
//!
//! A sleep needs no processor, so that many ranks can stand in for a larger machine; arithmetic competes for it as
//! a real program does, and then takes longer.

use std::time::{Duration, Instant};

/// How a compute phase passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Compute {
    /// A sleep.
    #[default]
    Sleep,
    /// Multiplications and additions, as many as fill the time when the process has a processor for itself.
    Kernel,
}

/// Compute time of every step, on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub struct ComputeArgs {
    /// Compute time of a step, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub compute_ms: f64,
    /// How this time passes
    #[arg(long, value_enum, default_value_t = Compute::Sleep)]
    pub compute: Compute,
}

/// Rounds between two looks at the clock, when the kernel is timed.
const ROUNDS_TIMED: u64 = 1 << 16;
/// How long it is timed.
const CALIBRATION: Duration = Duration::from_millis(10);

/// The compute phases of one rank.
pub(crate) struct Computing {
    time: Duration,
    compute: Compute,
    /// Time by which earlier sleeps were too long.
    overslept: Duration,
    rounds: u64,
    /// What the kernel works on; kept, so that no round can be left out.
    state: [f64; 8],
}

impl Computing {
    pub fn new(args: &ComputeArgs) -> Computing {
        let time = Duration::try_from_secs_f64(args.compute_ms / 1e3).unwrap_or_default();
        let mut computing =
            Computing { time, compute: args.compute, overslept: Duration::ZERO, rounds: 0, state: [1.0; 8] };
        if args.compute == Compute::Kernel && !time.is_zero() {
            let (began, mut rounds) = (Instant::now(), 0);
            while began.elapsed() < CALIBRATION {
                computing.work(ROUNDS_TIMED);
                rounds += ROUNDS_TIMED;
            }
            computing.rounds = (rounds as f64 * time.as_secs_f64() / began.elapsed().as_secs_f64()) as u64;
        }
        computing
    }

    /// One compute phase.
    pub fn step(&mut self) {
        match self.compute {
            Compute::Kernel => self.work(self.rounds),
            Compute::Sleep => {
                // What a sleep takes too long, the next one makes good.
                let due = self.time.saturating_sub(self.overslept);
                let began = Instant::now();
                std::thread::sleep(due);
                self.overslept = (self.overslept + began.elapsed()).saturating_sub(self.time);
            }
        }
    }

    fn work(&mut self, rounds: u64) {
        for _ in 0..rounds {
            // Converges to 2, so that it never overflows.
            self.state.iter_mut().for_each(|x| *x = x.mul_add(0.5, 1.0));
        }
        std::hint::black_box(&self.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_done_and_its_amount_follows_the_time() {
        let kernel = |compute_ms| Computing::new(&ComputeArgs { compute_ms, compute: Compute::Kernel });
        let mut computing = kernel(0.5);
        assert!(computing.rounds > 0);
        computing.step();
        assert!(computing.state.iter().all(|x| (x - 2.0).abs() < 1e-9));
        assert_eq!(kernel(0.0).rounds, 0);
    }

    #[test]
    fn a_sleep_makes_good_what_the_last_one_took_too_long() {
        let mut computing = Computing::new(&ComputeArgs { compute_ms: 1.0, compute: Compute::Sleep });
        computing.overslept = Duration::from_secs(5);
        computing.step();
        assert!(computing.overslept >= Duration::from_millis(4999), "nothing was slept, 1 ms was made good");
    }
}
