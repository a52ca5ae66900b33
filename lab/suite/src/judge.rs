//! How well a set of values does: winners, margins, regret, and how that holds when every value is off.

use crate::claims::{claims, Claim};
use crate::search::Random;
use crate::{station, times, Interference, Times, Values, COUNT, STUDIED, UNPRINTED, VALUES};
use forebay_model::device::Device;

/// Two configurations this close are a tie.
pub const TIE: f64 = 0.02;
/// A winner by more than this is one for sure.
pub const SURE: f64 = 0.01;

/// The verdict on the 18 workflows.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Seconds.
    pub times: Times,
    /// By how much the study's winner is before the next, as a share; below 0 where another one wins.
    pub margins: [f64; COUNT],
    /// The stated percentages.
    pub claims: [Claim; crate::claims::COUNT],
}

/// What came of perturbed values.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Perturbed {
    /// Draws.
    pub draws: u32,
    /// Half width of the equal distribution of each value, as a share.
    pub by: f64,
    /// Mean over draws and workflows of the model's time of the study's winner over the model's best, less 1.
    pub mean_regret: f64,
    /// Mean number of winners.
    pub mean_winners: f64,
    /// Share of draws with 16 winners or more.
    pub share_16: f64,
}

/// By how much a configuration is before the best of the others.
pub fn margin(times: &[f64; 4], fastest: usize) -> f64 {
    let others = (0..4).filter(|i| *i != fastest).map(|i| times[i]);
    others.fold(f64::INFINITY, f64::min) / times[fastest] - 1.0
}

/// Model time of a configuration over the model's best, less 1.
pub fn regret(times: &[f64; 4], chosen: usize) -> f64 {
    times[chosen] / times.iter().fold(f64::INFINITY, |a, b| a.min(*b)) - 1.0
}

impl Verdict {
    /// Of times.
    pub fn of(times: Times) -> Verdict {
        let mut margins = [0.0; COUNT];
        for (i, studied) in STUDIED.iter().enumerate() {
            margins[i] = margin(&times[i], studied.fastest);
        }
        let claims = claims(&times);
        Verdict { times, margins, claims }
    }

    /// Of values on the device of the study's platform.
    pub fn on(device: &Device, interference: Interference, values: &Values) -> Verdict {
        Verdict::of(times(&station(device, interference, values), values))
    }

    /// Workflows whose winner the model finds.
    pub fn winners(&self) -> usize {
        self.margins.iter().filter(|m| **m > 0.0).count()
    }

    /// Of them those by more than [`SURE`].
    pub fn sure(&self) -> usize {
        self.margins.iter().filter(|m| **m > SURE).count()
    }

    /// Claims that are met.
    pub fn met(&self) -> usize {
        self.claims.iter().filter(|c| c.met()).count()
    }

    /// Mean over the workflows of the regret of the study's winner.
    pub fn mean_regret(&self) -> f64 {
        let all = STUDIED.iter().zip(&self.times).map(|(s, t)| regret(t, s.fastest));
        all.sum::<f64>() / COUNT as f64
    }
}

/// The same with every free value off by up to a share, `draws` times.
pub fn perturbed(
    device: &Device,
    interference: Interference,
    values: &Values,
    (by, draws, seed): (f64, u32, u64),
) -> Perturbed {
    let mut random = Random::new(seed);
    let free = if interference == Interference::Frozen { UNPRINTED } else { VALUES };
    let (mut regret, mut winners, mut enough) = (0.0, 0, 0);
    for _ in 0..draws {
        let mut numbers = values.numbers();
        for number in numbers.iter_mut().take(free) {
            *number *= 1.0 + by * (2.0 * random.unit() - 1.0);
        }
        let verdict = Verdict::on(device, interference, &Values::of(&numbers));
        regret += verdict.mean_regret();
        winners += verdict.winners();
        enough += u32::from(verdict.winners() >= 16);
    }
    let draws_f = f64::from(draws.max(1));
    Perturbed {
        draws,
        by,
        mean_regret: regret / draws_f,
        mean_winners: winners as f64 / draws_f,
        share_16: f64::from(enough) / draws_f,
    }
}

/// Winners that rules without a model find: always S-LocW, and the commonest winner of each number of ranks.
pub fn baselines() -> (usize, usize) {
    let always = STUDIED.iter().filter(|s| s.fastest == 0).count();
    let by_ranks = [8, 16, 24].iter().map(|ranks| {
        let of = |plan: usize| STUDIED.iter().filter(|s| s.ranks == *ranks && s.fastest == plan).count();
        (0..4).map(of).max().unwrap_or(0)
    });
    (always, by_ranks.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_without_a_model() {
        assert_eq!(baselines(), (8, 11));
    }

    #[test]
    fn margins_and_regrets() {
        let times = [1.0, 1.1, 1.02, 3.0];
        assert!((margin(&times, 0) - 0.02).abs() < 1e-12);
        assert!((margin(&times, 1) - (1.0 / 1.1 - 1.0)).abs() < 1e-12);
        assert!(regret(&times, 0).abs() < 1e-12 && (regret(&times, 3) - 2.0).abs() < 1e-12);
    }
}
