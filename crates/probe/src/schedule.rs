//! How long each measurement may take, so that all of them fit a time budget.
//!
//! Pure: from questions and a budget to a list and a time for each. Every point is to be measured [`Timing::rounds`]
//! times, and a round visits all points before the next one begins. Where the budget is too small for [`REPETITIONS`]
//! of all, the last questions go first, and are named.

use super::ask::Ask;

/// How often each number is taken at least: the fewest that have a middle.
pub const REPETITIONS: u32 = 3;
/// How often a first profile takes it where there is time. On a shared host a tier may be half as fast again for some
/// seconds; of seven rounds two may fall into such seconds and the middle one still is the usual one.
pub const ROUNDS: u32 = 7;

/// What a kind of subject needs for a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Least time of one measurement that means something.
    pub span_ns_min: u64,
    /// More is not needed for a first profile.
    pub span_ns_max: u64,
    /// What a measurement costs besides: threads, caches to drop, a file to open.
    pub overhead_ns: u64,
    /// How often each number is taken where there is time; at least [`REPETITIONS`].
    pub rounds: u32,
}

/// Memory settles within milliseconds; a span has to hold many turns of the scheduler.
pub const MEMORY_TIMING: Timing =
    Timing { span_ns_min: 20_000_000, span_ns_max: 100_000_000, overhead_ns: 1_000_000, rounds: ROUNDS };
/// Drives have caches and queues of their own: with all rounds, half a second at each point.
pub const BLOCK_TIMING: Timing =
    Timing { span_ns_min: 80_000_000, span_ns_max: 400_000_000, overhead_ns: 15_000_000, rounds: ROUNDS };
/// `--full` gives every point longer.
pub const FULL_TIMES: u64 = 4;

/// A measurement: which question, which of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Index of the question.
    pub ask: usize,
    /// Index of the point on its curve; 0 for a latency.
    pub point: usize,
}

/// What is measured, and for how long each time.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The questions that fit.
    pub asks: Vec<Ask>,
    /// Those that did not.
    pub left_out: Vec<Ask>,
    /// Nanoseconds of each measurement.
    pub span_ns: u64,
}

impl Schedule {
    /// Fits questions into `budget_ns`. The first question stays, whatever the budget.
    pub fn fit(mut asks: Vec<Ask>, timing: Timing, budget_ns: u64) -> Schedule {
        let mut left_out = Vec::new();
        let least = timing.span_ns_min + timing.overhead_ns;
        while asks.len() > 1 && points(&asks) * u64::from(REPETITIONS) * least > budget_ns {
            left_out.extend(asks.pop());
        }
        left_out.reverse();
        let each = budget_ns / (points(&asks) * u64::from(timing.rounds)).max(1);
        let span_ns = each.saturating_sub(timing.overhead_ns).clamp(timing.span_ns_min, timing.span_ns_max);
        Schedule { asks, left_out, span_ns }
    }

    /// Every measurement once.
    pub fn round(&self) -> impl Iterator<Item = Turn> + '_ {
        let points =
            |(ask, question): (usize, &Ask)| (0..question.points()).map(move |point| Turn { ask, point });
        self.asks.iter().enumerate().flat_map(points)
    }

    /// How many measurements a round has.
    pub fn len(&self) -> u64 {
        points(&self.asks)
    }

    /// Whether nothing is measured.
    pub fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    /// What the fewest rounds take, about.
    pub fn expected_ns(&self, timing: Timing) -> u64 {
        self.len() * u64::from(REPETITIONS) * (self.span_ns + timing.overhead_ns)
    }
}

fn points(asks: &[Ask]) -> u64 {
    asks.iter().map(Ask::points).sum::<usize>() as u64
}

/// Shares a budget among tiers by what their questions take at least, so that none is starved; no tier gets more than
/// it can take: (points, timing) each.
pub fn shares(tiers: &[(usize, Timing)], budget_ns: u64) -> Vec<u64> {
    let need = |points: usize, span_ns: u64, timing: &Timing| {
        points as u64 * u64::from(timing.rounds) * (span_ns + timing.overhead_ns)
    };
    let all: u64 = tiers.iter().map(|(points, timing)| need(*points, timing.span_ns_min, timing)).sum();
    let share = |(points, timing): &(usize, Timing)| {
        let (least, most) =
            (need(*points, timing.span_ns_min, timing), need(*points, timing.span_ns_max, timing));
        let part = u128::from(least) * u128::from(budget_ns) / u128::from(all.max(1));
        (part.min(u128::from(most))) as u64
    };
    tiers.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_profile::{Axis, Conditions};

    fn curve(points: usize) -> Ask {
        Ask::Curve {
            when: Conditions::default(),
            over: Axis::Threads,
            xs: (1..=points).map(|x| x as f64).collect(),
        }
    }

    const TIMING: Timing = Timing { span_ns_min: 10, span_ns_max: 100, overhead_ns: 5, rounds: 5 };

    #[test]
    fn all_that_fits_is_measured_as_long_as_the_budget_allows() {
        let asks = vec![curve(4), curve(6)];
        let relaxed = Schedule::fit(asks.clone(), TIMING, 1_000_000);
        assert_eq!((relaxed.span_ns, relaxed.len(), relaxed.left_out.len()), (100, 10, 0));
        let tight = Schedule::fit(asks.clone(), TIMING, 50 * 45);
        assert_eq!((tight.span_ns, tight.expected_ns(TIMING)), (40, 30 * 45));
        let tighter = Schedule::fit(asks.clone(), TIMING, 30 * 15);
        assert_eq!((tighter.span_ns, tighter.len()), (10, 10), "fewer rounds come before fewer questions");
        let small = Schedule::fit(asks.clone(), TIMING, 30 * 14);
        assert_eq!((&small.asks, &small.left_out), (&vec![curve(4)], &vec![curve(6)]), "the last goes first");
        assert!(small.expected_ns(TIMING) <= 30 * 14);
        let nothing = Schedule::fit(asks, TIMING, 0);
        assert_eq!((nothing.asks.len(), nothing.span_ns), (1, 10), "the first question stays");
    }

    #[test]
    fn a_round_visits_every_point() {
        let schedule = Schedule::fit(vec![curve(2), curve(1)], TIMING, 1_000_000);
        let turns: Vec<(usize, usize)> = schedule.round().map(|t| (t.ask, t.point)).collect();
        assert_eq!(turns, [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(turns.len() as u64, schedule.len());
    }

    #[test]
    fn a_budget_is_shared_by_need_and_never_exceeded() {
        let slow = Timing { span_ns_min: 30, ..TIMING };
        // At least 10 points of 5 times 15 and 35.
        assert_eq!(shares(&[(10, TIMING), (10, slow)], 2500), [750, 1750]);
        assert_eq!(shares(&[(1, TIMING)], u64::MAX), [5 * 105], "no more than it can take");
        assert_eq!(shares(&[(0, TIMING)], 100), [0]);
    }
}
