//! The fit of the values: what is asked of them, and the search that finds them.
//!
//! Asked is that the study's winner wins by [`AIM`] and that each stated percentage is met; a lost winner costs 1 and
//! more the further it lies behind, a percentage that is missed some 0.2 to 0.6. The search starts many times, by
//! turns from the best of some random points and near the best end so far, and descends (see
//! [`search`](crate::search)).

use crate::claims::{self, claims, Claim, WITHIN};
use crate::judge::margin;
use crate::search::{descend, Found, Random};
use crate::{interfere, station, times, Interference, Times, Values, COUNT, STUDIED, UNPRINTED, VALUES};
use forebay_model::device::Device;

/// By how much winners are to win: half as much again as what counts as sure.
pub const AIM: f64 = 0.015;
/// Random points of which each start takes the best.
const SAMPLES: usize = 100;
/// First steps of a descent from a random point, of one from a known point, and of the one that refines either.
const STEPS: [f64; 3] = [0.25, 0.12, 0.05];
/// How far a hop goes from the best point, by turns.
const HOPS: [f64; 2] = [0.12, 0.3];
/// Only what is not further than this from the best is refined.
const PROMISING: f64 = 2.0;
/// Ranks of the workflows that each claim is about; 0 for several.
const CLAIM_RANKS: [u32; claims::COUNT] = [16, 24, 8, 16, 24, 8, 16, 24, 8, 24, 16, 24, 8, 0, 16];

/// What values are fitted to.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The configuration that is to win in each workflow.
    pub fastest: [usize; COUNT],
    /// Ranks whose workflows and claims are left out; 0 for none.
    pub without_ranks: u32,
    /// Whether stated percentages count.
    pub percentages: bool,
    /// Cost of a value at a distance from the middle of its range, over the square of that distance in ranges.
    /// Without it a value that the workflows say little of ends anywhere.
    pub prior: f64,
}

impl Goal {
    /// The study as it is.
    pub fn study() -> Goal {
        Goal { fastest: STUDIED.map(|s| s.fastest), without_ranks: 0, percentages: true, prior: 0.0 }
    }

    /// Winners only, exchanged among the workflows at random.
    pub fn shuffled(random: &mut Random) -> Goal {
        let mut goal = Goal { percentages: false, ..Goal::study() };
        for i in (1..COUNT).rev() {
            let j = (random.unit() * (i + 1) as f64) as usize;
            goal.fastest.swap(i, j.min(i));
        }
        goal
    }

    /// How far times are from it.
    pub fn cost(&self, times: &Times) -> f64 {
        let mut cost = 0.0;
        for (i, studied) in STUDIED.iter().enumerate() {
            if studied.ranks != self.without_ranks {
                cost += lost(margin(&times[i], self.fastest[i]));
            }
        }
        if self.percentages {
            let all = claims(times);
            let counted = all.iter().zip(CLAIM_RANKS).filter(|(_, ranks)| {
                self.without_ranks == 0 || (*ranks != 0 && *ranks != self.without_ranks)
            });
            cost += counted.map(|(claim, _)| missed(claim)).sum::<f64>();
        }
        cost
    }

    /// How many of the counted workflows have the winner that is asked for.
    pub fn winners(&self, times: &Times) -> usize {
        let counted = STUDIED.iter().enumerate().filter(|(_, s)| s.ranks != self.without_ranks);
        counted.filter(|(i, _)| margin(&times[*i], self.fastest[*i]) > 0.0).count()
    }
}

fn lost(margin: f64) -> f64 {
    if margin < 0.0 {
        1.0 + 10.0 * (-margin).min(0.4)
    } else if margin < AIM {
        0.6 * (AIM - margin) / AIM
    } else {
        0.0
    }
}

fn missed(claim: &Claim) -> f64 {
    let distance = claim.distance();
    let step = if distance > WITHIN { 0.2 } else { 0.0 };
    step + 0.12 * ((distance - WITHIN / 2.0).max(0.0) / WITHIN).min(3.0)
}

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Starts.
    pub starts: usize,
    /// Generations of a descent.
    pub generations: usize,
    /// Points of a generation.
    pub points: usize,
    /// Of the random numbers.
    pub seed: u64,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The values.
    pub values: Values,
    /// Their cost, that of the prior counted.
    pub cost: f64,
}

/// A point of the search, of as many numbers as are free, made whole with those that are not.
fn whole(point: &[f64], rest: &[f64; VALUES]) -> [f64; VALUES] {
    let mut all = *rest;
    all[..point.len()].copy_from_slice(point);
    all
}

/// Every second start hops away from the best end so far; the others begin anywhere.
fn hop(ends: &[Fitted], start: usize, free: usize, random: &mut Random) -> Option<Vec<f64>> {
    let best = ends.first().filter(|_| start % 2 == 1)?.values.point();
    let far = HOPS[start / 2 % 2];
    Some(best[..free].iter().map(|x| (x + far * random.normal()).clamp(0.02, 0.98)).collect())
}

/// Searches for values; `from`, where given, is refined first. `log` hears of every start: its number, cost and best so
/// far. Returned are the ends of all starts, the best first.
pub fn fit(
    (device, interference): (&Device, Interference),
    goal: &Goal,
    budget: &Budget,
    from: Option<&Values>,
    log: &mut dyn FnMut(usize, f64, &Fitted),
) -> Vec<Fitted> {
    let free = if interference == Interference::Frozen { UNPRINTED } else { VALUES };
    let middle = [0.5; VALUES];
    let mut now = station(device, interference, &Values::at(&middle));
    let mut cost = |point: &[f64]| {
        let values = Values::at(&whole(point, &middle));
        if interference == Interference::Free {
            interfere(&mut now, &values);
        }
        let off: f64 = point.iter().map(|x| (x - 0.5).powi(2)).sum();
        goal.cost(&times(&now, &values)) + goal.prior * off
    };
    let mut random = Random::new(budget.seed);
    let mut ends: Vec<Fitted> = Vec::new();
    for start in 0..budget.starts {
        let known = if start == 0 {
            from.map(|values| values.point()[..free].to_vec())
        } else {
            hop(&ends, start, free, &mut random)
        };
        let (at, step) = match known {
            Some(at) => (at, STEPS[1]),
            None => {
                let mut best = Found { at: Vec::new(), cost: f64::INFINITY };
                for _ in 0..SAMPLES {
                    let at: Vec<f64> = (0..free).map(|_| random.unit()).collect();
                    let found = Found { cost: cost(&at), at };
                    best = if found.cost < best.cost { found } else { best };
                }
                (best.at, STEPS[0])
            }
        };
        let size = (budget.generations, budget.points);
        let mut best = descend(&mut cost, &at, step, size, &mut random);
        if ends.first().is_none_or(|e| best.cost < e.cost + PROMISING) {
            let refined = descend(&mut cost, &best.at, STEPS[2], size, &mut random);
            best = if refined.cost < best.cost { refined } else { best };
        }
        let fitted = Fitted { values: Values::at(&whole(&best.at, &middle)), cost: best.cost };
        ends.push(fitted);
        ends.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        log(start, best.cost, &ends[0]);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PLATFORM, TIER};
    use forebay_model::device::OURS;
    use forebay_profile::platforms::platform;

    #[test]
    fn a_search_gets_better_and_the_same_seed_finds_the_same() {
        let device = Device::of(&platform(PLATFORM).unwrap(), TIER, &OURS).unwrap();
        let budget = Budget { starts: 1, generations: 15, points: 10, seed: 3 };
        let run = || {
            let goal = Goal::study();
            let mut heard = 0;
            let ends = fit((&device, Interference::Free), &goal, &budget, None, &mut |_, _, _| heard += 1);
            (ends[0].clone(), heard)
        };
        let ((one, heard), (two, _)) = (run(), run());
        assert_eq!((one.cost, one.values, heard), (two.cost, two.values, 1));
        let middle = Values::at(&[0.5; VALUES]);
        let plain = Goal::study().cost(&times(&station(&device, Interference::Free, &middle), &middle));
        assert!(one.cost < plain, "{} {plain}", one.cost);
    }

    #[test]
    fn a_prior_keeps_values_in_the_middle_of_their_ranges() {
        let device = Device::of(&platform(PLATFORM).unwrap(), TIER, &OURS).unwrap();
        let budget = Budget { starts: 1, generations: 60, points: 12, seed: 3 };
        let furthest = |prior: f64| {
            let goal = Goal { prior, ..Goal::study() };
            let ends = fit((&device, Interference::Free), &goal, &budget, None, &mut |_, _, _| ());
            ends[0].values.point().iter().map(|x| (x - 0.5).abs()).fold(0.0, f64::max)
        };
        let (free, held) = (furthest(0.0), furthest(1e4));
        assert!(held < 0.1 && free > 2.0 * held, "{held} {free}");
    }

    #[test]
    fn shuffling_keeps_how_often_each_wins() {
        let counts = |goal: &Goal| [0, 1, 2, 3].map(|p| goal.fastest.iter().filter(|f| **f == p).count());
        let shuffled = Goal::shuffled(&mut Random::new(1));
        assert_eq!(counts(&shuffled), counts(&Goal::study()));
        assert_ne!(shuffled.fastest, Goal::study().fastest);
    }
}
