//! The percentages that the study states of its workflows, and how far the model is from each.
//!
//! Fifteen: a margin for each of 13 workflows (two of them share `up to 2.5 x`), and two statements over several. The
//! section is that of the study.

use crate::Times;

/// A percentage of the study, as a share over 1: 0.06 is 6 %.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Claim {
    /// What it says.
    pub what: &'static str,
    /// Where.
    pub section: &'static str,
    /// Least that it states.
    pub least: f64,
    /// Most.
    pub most: f64,
    /// What the model says.
    pub model: f64,
}

/// Points, as a share, within which a claim counts as met.
pub const WITHIN: f64 = 0.03;
/// How many there are.
pub const COUNT: usize = 15;

impl Claim {
    /// How far the model is from what is stated, as a share.
    pub fn distance(&self) -> f64 {
        (self.least - self.model).max(self.model - self.most).max(0.0)
    }

    /// Whether the model is within [`WITHIN`].
    pub fn met(&self) -> bool {
        self.distance() <= WITHIN
    }
}

const S_LOCW: usize = 0;
const S_LOCR: usize = 1;
const P_LOCW: usize = 2;
const P_LOCR: usize = 3;

/// All claims with what the model says.
pub fn claims(times: &Times) -> [Claim; COUNT] {
    let over = |i: usize, other: usize, best: usize| times[i][other] / times[i][best] - 1.0;
    let parallel = |i: usize, best: usize| times[i][P_LOCW].min(times[i][P_LOCR]) / times[i][best] - 1.0;
    let serial = |i: usize, best: usize| times[i][S_LOCW].min(times[i][S_LOCR]) / times[i][best] - 1.0;
    let worst = |i: usize| {
        let most = times[i].iter().fold(0.0f64, |a, b| a.max(*b));
        most / times[i].iter().fold(f64::INFINITY, |a, b| a.min(*b)) - 1.0
    };
    let amr = (12..18).map(worst).fold(0.0, f64::max);
    // `Up to 2.5 x with 16 and 24 threads`: neither more, and one of them so much.
    let (at_16, at_24) = (worst(1), worst(2));
    let least = |this: f64, other: f64| if this >= other { 1.5 } else { 0.0 };
    let swapped = over(7, P_LOCW, S_LOCR).max(over(10, S_LOCR, P_LOCW));
    let of = |what, section, least, most, model| Claim { what, section, least, most, model };
    [
        of("64MB 16: S-LocW over others, up to 2.5 x", "VI-A", least(at_16, at_24), 1.5, at_16),
        of("64MB 24: S-LocW over others, up to 2.5 x", "VI-A", least(at_24, at_16), 1.5, at_24),
        of("2K 8: P-LocR over S-LocR", "VI-D", 0.10, 0.14, over(3, S_LOCR, P_LOCR)),
        of("2K 16: P-LocR over S-LocR", "VI-D", 0.10, 0.14, over(4, S_LOCR, P_LOCR)),
        of("2K 24: S-LocR over parallel", "VI-B", 0.115, 0.115, parallel(5, S_LOCR)),
        of("GTC + Read-Only 8: P-LocR over serial", "VI-D", 0.03, 0.09, serial(6, P_LOCR)),
        of("GTC + Read-Only 16: S-LocR over parallel", "VI-B", 0.06, 0.07, parallel(7, S_LOCR)),
        of("GTC + Read-Only 24: S-LocW over S-LocR", "VI-A", 0.06, 0.06, over(8, S_LOCR, S_LOCW)),
        of("GTC + MatrixMult 8: P-LocR over serial", "VI-D", 0.03, 0.09, serial(9, P_LOCR)),
        of("GTC + MatrixMult 24: S-LocW over S-LocR", "VI-A", 0.06, 0.06, over(11, S_LOCR, S_LOCW)),
        of("miniAMR + Read-Only 16: S-LocR over P-LocR", "VI-B", 0.06, 0.06, over(13, P_LOCR, S_LOCR)),
        of("miniAMR + Read-Only 24: S-LocW over S-LocR", "VI-A", 0.25, 0.25, over(14, S_LOCR, S_LOCW)),
        of("miniAMR + MatrixMult 8: P-LocW over P-LocR", "VI-C", 0.07, 0.07, over(15, P_LOCR, P_LOCW)),
        of("miniAMR: worst over best, up to 70 %", "VII", 0.70, 0.70, amr),
        of("GTC 16: S-LocR and P-LocW exchanged, at most 24 %", "VII", 0.0, 0.24, swapped),
    ]
}
