//! How often to save: Young's and Daly's intervals, by level, from costs and failure rates.
//!
//! All times are in seconds. `cost` is how long the program is kept from going on by a save; `mtbf` is the mean time
//! between failures that need this level (a crash of the program needs the first, loss of the node the next, …).
//!
//! - Young (1974): τ = √(2 δ M).
//! - Daly (2006), for δ < 2 M: τ = √(2 δ M) · (1 + ⅓ √(δ / 2M) + ⅑ δ / 2M) − δ, else τ = M.
//! - A level that is reached in the background takes no time of the program's, but no step arrives sooner than the one
//!   before it: its interval is never shorter than the time to carry one down.
//!
//! The waste is the exact expectation for failures without memory (Daly's complete model): a simulation in the tests
//! agrees with it, and the intervals here are within 2 % of its optimum.

use serde::Serialize;

/// Young's interval between the ends of two saves.
pub fn young(cost: f64, mtbf: f64) -> f64 {
    (2.0 * cost * mtbf).sqrt()
}

/// Daly's interval: computing time between two saves.
pub fn daly(cost: f64, mtbf: f64) -> f64 {
    if cost >= 2.0 * mtbf {
        return mtbf;
    }
    let x = cost / (2.0 * mtbf);
    (2.0 * cost * mtbf).sqrt() * (1.0 + x.sqrt() / 3.0 + x / 9.0) - cost
}

/// How much longer a program takes than without failures and without saves, as a factor: computing for `interval`
/// between saves, `restart` to come back. Infinite for an interval of 0.
pub fn slowdown(interval: f64, cost: f64, mtbf: f64, restart: f64) -> f64 {
    mtbf * (restart / mtbf).exp() * ((interval + cost) / mtbf).exp_m1() / interval
}

/// What is known of a level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelCost {
    /// Seconds for which a save to it keeps the program from going on.
    pub blocked_s: f64,
    /// Seconds until a step has arrived in it, in the background.
    pub carried_s: f64,
    /// Seconds to load a step from it and to start again.
    pub restart_s: f64,
    /// Mean seconds between failures that need it.
    pub mtbf_s: f64,
}

/// What is best for a level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelAdvice {
    /// Computing time between two saves that go there.
    pub interval_s: f64,
    /// The same as a multiple of the first level's interval.
    pub every: u64,
    /// Time lost by saves, repeated work and restarts, as a share of the computing time.
    pub waste: f64,
    /// Whether the time to carry a step down sets the interval.
    pub bound_by_drain: bool,
}

/// The best interval of each level. Outer intervals are whole multiples of the first one.
pub fn advise(levels: &[LevelCost]) -> Vec<LevelAdvice> {
    let mut first = 0.0;
    let mut advice = Vec::new();
    for level in levels {
        // A save that blocks no rank still has a price: a save of no cost would be made all the time.
        let cost = level.blocked_s.max(1e-6);
        let wanted = daly(cost, level.mtbf_s);
        let bound_by_drain = level.carried_s > wanted;
        let wanted = wanted.max(level.carried_s);
        if advice.is_empty() {
            first = wanted;
        }
        let every = (wanted / first).round().max(1.0);
        let interval_s = every * first;
        // A step is safe here only once it has arrived: on average half an interval and the way down are lost.
        let waste =
            slowdown(interval_s, cost, level.mtbf_s, level.restart_s) - 1.0 + level.carried_s / level.mtbf_s;
        advice.push(LevelAdvice { interval_s, every: every as u64, waste, bound_by_drain });
    }
    advice
}

/// Mean time between failures, from what was seen and what was believed before: a Gamma prior of one failure in
/// `prior_s`, updated by `failures` in `seen_s`.
pub fn mtbf(prior_s: f64, seen_s: f64, failures: u64) -> f64 {
    (prior_s + seen_s) / (1.0 + failures as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform numbers in (0, 1], always the same ones.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
        }

        fn exponential(&mut self, mean: f64) -> f64 {
            -mean * self.next().ln()
        }
    }

    /// Runs a program of `segments` intervals, event by event; its time per computing time.
    fn simulate(
        interval: f64,
        cost: f64,
        mtbf: f64,
        restart: f64,
        segments: u32,
        random: &mut Random,
    ) -> f64 {
        let (mut clock, mut done) = (0.0, 0);
        let mut failure = random.exponential(mtbf);
        while done < segments {
            let end = clock + interval + cost;
            if end <= failure {
                (clock, done) = (end, done + 1);
                continue;
            }
            clock = failure;
            failure = clock + random.exponential(mtbf);
            // A restart may fail too.
            while clock + restart > failure {
                clock = failure;
                failure = clock + random.exponential(mtbf);
            }
            clock += restart;
        }
        clock / (interval * f64::from(segments))
    }

    const CASES: [(f64, f64, f64); 5] = [
        (0.27, 86_400.0, 5.0),
        (13.26, 86_400.0, 30.0),
        (30.0, 3600.0, 60.0),
        (60.0, 1800.0, 10.0),
        (5.0, 600.0, 0.0),
    ];

    #[test]
    fn the_exact_model_is_what_a_simulation_shows() {
        for (cost, mtbf, restart) in CASES {
            let mut random = Random(0x5eed_0007);
            for factor in [0.5, 1.0, 2.0] {
                let interval = daly(cost, mtbf) * factor;
                // So many failures that their chance is below the bar.
                let segments = (40_000.0 * mtbf / (interval + cost)) as u32;
                let seen = simulate(interval, cost, mtbf, restart, segments.min(4_000_000), &mut random);
                let said = slowdown(interval, cost, mtbf, restart);
                // Of what is lost, not of all: that is a few thousandths in the first case.
                let off = (seen - said) / (said - 1.0);
                assert!(off.abs() < 0.06, "{cost} {mtbf} {factor}: {seen} simulated, {said} said");
            }
        }
    }

    #[test]
    fn the_intervals_are_within_two_percent_of_the_simulated_optimum() {
        for (cost, mtbf, restart) in CASES {
            let time = |interval: f64| {
                // The same failures for every interval, so that they are compared and not their luck.
                let segments = (20_000.0 * mtbf / (interval + cost)).min(1_000_000.0) as u32;
                simulate(interval, cost, mtbf, restart, segments, &mut Random(0x5eed_0008))
            };
            let base = young(cost, mtbf);
            let best =
                (-12..=12).map(|n| time(base * 2f64.powf(f64::from(n) / 6.0))).fold(f64::INFINITY, f64::min);
            assert!(time(daly(cost, mtbf)) <= 1.02 * best, "{cost} {mtbf}");
        }
    }

    #[test]
    fn known_values() {
        // M = 24 h: 13.26 s gives 1514 s by Young, 0.27 s gives 216 s.
        assert!((young(13.26, 86_400.0) - 1513.7).abs() < 0.1);
        assert!((young(0.27, 86_400.0) - 216.0).abs() < 0.1);
        assert_eq!(daly(200.0, 100.0), 100.0);
        assert!(daly(1.0, 1e6) < young(1.0, 1e6));
        assert_eq!(mtbf(86_400.0, 0.0, 0), 86_400.0);
        assert_eq!(mtbf(86_400.0, 86_400.0, 1), 86_400.0);
        assert!(slowdown(1e-12, 1.0, 100.0, 0.0) > 1e9);
    }

    #[test]
    fn outer_levels_follow_the_first_and_their_drain() {
        let level = |blocked_s, carried_s, mtbf_s| LevelCost { blocked_s, carried_s, restart_s: 1.0, mtbf_s };
        let advice =
            advise(&[level(0.2, 0.0, 3600.0), level(0.0, 500.0, 86_400.0), level(20.0, 0.0, 604_800.0)]);
        assert_eq!(advice[0].every, 1);
        assert!(advice[1].bound_by_drain && advice[1].interval_s >= 490.0, "{advice:?}");
        assert!(!advice[2].bound_by_drain && advice[2].every > advice[1].every, "{advice:?}");
        for one in &advice {
            assert_eq!(one.interval_s, one.every as f64 * advice[0].interval_s);
            assert!(one.waste > 0.0 && one.waste < 0.2, "{advice:?}");
        }
    }
}
