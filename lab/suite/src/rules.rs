//! The ten rules of the study (its Table II): which configuration suits which kind of workflow. A baseline to compare
//! choices with, not a part of the model.
//!
//! The study says in words what a component does (`nil`, `low`, `high`); the limits between them are ours. A workflow
//! that no rule describes gets the rule that it differs from in the fewest columns, of equals the first.

use crate::STUDIED;

/// How much of something there is, in the study's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// None.
    Nil,
    /// Some, or little.
    Low,
    /// Between the two.
    Medium,
    /// Much.
    High,
}

use Level::{High, Low, Medium, Nil};

/// What the rules look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Computing of the writers.
    pub writers_compute: Level,
    /// How much they write.
    pub write: Level,
    /// Computing of the readers.
    pub readers_compute: Level,
    /// How much they read.
    pub read: Level,
    /// Whether objects are large.
    pub large: bool,
    /// How many ranks there are.
    pub ranks: Level,
}

/// One row of the table; each column lists what fits.
struct Rule {
    columns: [&'static [Level]; 4],
    large: bool,
    ranks: &'static [Level],
    fastest: usize,
}

const fn rule(columns: [&'static [Level]; 4], large: bool, ranks: &'static [Level], fastest: usize) -> Rule {
    Rule { columns, large, ranks, fastest }
}

/// Writers compute, write, readers compute, read; large objects; ranks; 0 S-LocW, 1 S-LocR, 2 P-LocW, 3 P-LocR.
const RULES: [Rule; 10] = [
    rule([&[Nil], &[High], &[Nil], &[High]], true, &[Low, Medium, High], 0),
    rule([&[High], &[Low], &[Low, Medium, High], &[Medium, High]], true, &[High], 0),
    rule([&[Low], &[High], &[Low], &[High]], false, &[High], 0),
    rule([&[Low], &[High], &[High], &[Low]], false, &[Medium, High], 0),
    rule([&[Low], &[High], &[Nil], &[High]], false, &[High], 1),
    rule([&[High], &[Low], &[Low], &[High]], true, &[Medium], 1),
    rule([&[Low], &[High], &[Low], &[High]], false, &[Medium], 1),
    rule([&[Low], &[High], &[High], &[Low]], false, &[Low], 2),
    rule([&[Nil, Low], &[High], &[Nil], &[Medium, High]], false, &[Low, Medium], 3),
    rule([&[High], &[Low], &[Low, Medium, High], &[High]], true, &[Low, Medium], 3),
];

/// Below this share of a component's time something is nil, below the second low, below the third medium.
const LIMITS: [f64; 3] = [0.02, 0.4, 0.6];
/// Between the study's small objects (2 KiB, 4672 B) and its large ones (64 MB, 229 MB).
const LARGE_BYTES: f64 = 550e3;

impl Kind {
    /// From seconds of computing and of moving data of one version, without contention, bytes of an object,
    /// and ranks of the larger component.
    pub fn of(writers: (f64, f64), readers: (f64, f64), object_bytes: f64, ranks: u32) -> Kind {
        let level = |share: f64| [Nil, Low, Medium, High][LIMITS.iter().filter(|l| share >= **l).count()];
        let sides = |(compute, io): (f64, f64)| {
            let all = (compute + io).max(f64::MIN_POSITIVE);
            (level(compute / all), level(io / all))
        };
        let ((writers_compute, write), (readers_compute, read)) = (sides(writers), sides(readers));
        let ranks = match nearest_ranks(ranks) {
            8 => Low,
            16 => Medium,
            _ => High,
        };
        Kind { writers_compute, write, readers_compute, read, large: object_bytes >= LARGE_BYTES, ranks }
    }
}

fn nearest_ranks(ranks: u32) -> u32 {
    [8u32, 16, 24].into_iter().min_by_key(|studied| studied.abs_diff(ranks)).expect("three of them")
}

/// The configuration (of [`forebay_model::plan::Plan::of_the_study`]) that the rules name.
pub fn by_rules(kind: &Kind) -> usize {
    let found = [kind.writers_compute, kind.write, kind.readers_compute, kind.read];
    let misses = |rule: &Rule| {
        let columns = rule.columns.iter().zip(found).filter(|(fits, is)| !fits.contains(is)).count();
        columns + usize::from(rule.large != kind.large) + usize::from(!rule.ranks.contains(&kind.ranks))
    };
    RULES.iter().min_by_key(|rule| misses(rule)).map_or(0, |rule| rule.fastest)
}

/// The configuration that the study found fastest most often with about so many ranks, of equals the first.
pub fn by_ranks(ranks: u32) -> usize {
    let near = nearest_ranks(ranks);
    let wins = |plan: &usize| STUDIED.iter().filter(|s| s.ranks == near && s.fastest == *plan).count();
    (0..4).rev().max_by_key(wins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Family;

    /// The study's own words for its workflows (Table II and Section VI).
    fn studied(family: Family, ranks: u32) -> Kind {
        let [writers_compute, write, readers_compute, read] = match family {
            Family::Large => [Nil, High, Nil, High],
            Family::Small => [Low, High, Nil, High],
            Family::GtcRead => [High, Low, Low, High],
            Family::GtcMultiply => [High, Low, High, High],
            Family::AmrRead => [Low, High, Low, High],
            Family::AmrMultiply => [Low, High, High, Low],
        };
        let large = matches!(family, Family::Large | Family::GtcRead | Family::GtcMultiply);
        let ranks = [Low, Medium, High][(ranks / 8 - 1) as usize];
        Kind { writers_compute, write, readers_compute, read, large, ranks }
    }

    #[test]
    fn the_rules_name_the_winners_that_they_were_made_from() {
        let wrong: Vec<String> = STUDIED
            .iter()
            .filter(|s| by_rules(&studied(s.family, s.ranks)) != s.fastest)
            .map(|s| format!("{} {}", s.name, s.ranks))
            .collect();
        // miniAMR + Read-Only with 8 ranks stands in a row that wants readers without computing.
        assert!(wrong.len() <= 1, "{wrong:?}");
    }

    #[test]
    fn words_come_from_shares() {
        let kind = Kind::of((0.0, 1.0), (3.0, 1.0), 1e6, 20);
        assert_eq!((kind.writers_compute, kind.write), (Nil, High));
        assert_eq!((kind.readers_compute, kind.read), (High, Low));
        assert!(kind.large);
        assert_eq!((nearest_ranks(1), nearest_ranks(13), nearest_ranks(99)), (8, 16, 24));
        assert_eq!((by_ranks(8), by_ranks(24)), (3, 0));
    }
}
