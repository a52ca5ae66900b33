//! Reading beside writing: how much either side of a workflow counts for the other, from what one side got while the
//! other one was busy.
//!
//! A profile may hold curves over threads of one direction with so many threads beside that do the opposite from the
//! other side of the link ([`Conditions::beside`](forebay_profile::Conditions::beside)): what a workflow does. The
//! three values of [`Together`] are those of a grid with which the station comes nearest to all of them, as a mean
//! square of logarithms; the mixture is taken anew from its own curves for each.
//!
//! Pure. Not here: what the values mean ([`super::station`]).

use super::station::{Class, Mix, Polling, Station, Together};
use forebay_profile::{Axis, Locality, Tier};

/// Values that are tried of each.
const TRIED: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// One point: so many threads beside others, and what the former got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    own: Class,
    other: Class,
    bytes_per_s: f64,
}

impl Beside {
    /// What the station gives, over what was measured.
    fn ratio(&self, station: &Station) -> f64 {
        let (write, read) = match self.own.reads {
            true => (&self.other, &self.own),
            false => (&self.own, &self.other),
        };
        let solution = station.solve(Some(write), Some(read), Polling::default());
        let share = if self.own.reads { solution.read } else { solution.write };
        share.objects_per_s * self.own.bytes / self.bytes_per_s
    }
}

/// All points of a tier.
pub fn measured(tier: &Tier) -> Vec<Beside> {
    let curves = tier.curves.iter().filter(|c| c.over == Axis::Threads && c.caveat.is_none());
    let points = curves.flat_map(|curve| curve.samples()).filter_map(|sample| {
        let when = &sample.when;
        let (threads, beside, bytes) = (when.threads?, when.beside?, when.bytes?);
        let (reads, far) = (when.reads_percent? > 50.0, when.locality == Locality::Remote);
        let class = |reads: bool, ranks: u32, far: bool| Class {
            reads,
            ranks: f64::from(ranks),
            think_s: 0.0,
            bytes: bytes as f64,
            remote: f64::from(u8::from(far)),
            gate: f64::INFINITY,
        };
        Some(Beside {
            own: class(reads, threads, far),
            other: class(!reads, beside, !far),
            bytes_per_s: sample.bandwidth()?.value,
        })
    });
    points.filter(|p| p.bytes_per_s > 0.0).collect()
}

/// Sets how much either side counts for the other, and the mixture that `mix` finds with it. Returns by how much the
/// station then misses the points, as a mean.
pub fn fit(station: &mut Station, points: &[Beside], mix: &dyn Fn(&Station) -> Mix) -> f64 {
    let mut best = (f64::INFINITY, station.clone());
    for capacity in TRIED {
        let mut tried = station.clone();
        tried.together = Together { capacity, ..Together::default() };
        tried.mix = mix(&tried);
        for remote in TRIED {
            for turns in TRIED {
                tried.together = Together { capacity, remote, turns };
                let miss: f64 = points.iter().map(|p| p.ratio(&tried).ln().powi(2)).sum();
                if miss < best.0 {
                    best = (miss, tried.clone());
                }
            }
        }
    }
    let (miss, found) = best;
    *station = found;
    (miss / points.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::device::{Device, OURS};
    use super::*;
    use forebay_profile::platforms::platform;

    #[test]
    fn what_a_station_gives_is_found_again() {
        let known = Device::of(&platform("optane-gen1").unwrap(), "pmem", &OURS).unwrap().station;
        assert_eq!(known.together, Together::default(), "no publication measured one side beside the other");
        let class = |reads: bool, ranks: f64, far: bool| Class {
            reads,
            ranks,
            think_s: 0.0,
            bytes: 262144.0,
            remote: f64::from(u8::from(far)),
            gate: f64::INFINITY,
        };
        let pairs = [(true, true), (true, false), (false, true), (false, false)];
        for wanted in [
            Together { capacity: 1.0, remote: 0.5, turns: 0.0 },
            Together { capacity: 0.25, remote: 1.0, turns: 1.0 },
        ] {
            let mut station = known.clone();
            // A penalty that rises, so that who is inside matters.
            station.write.remote =
                super::super::station::Penalty::Rising { low: 1.3, high: 12.0, middle: 8.0, steepness: 4 };
            let made = Station { together: wanted, ..station.clone() };
            let point = |(reads, far): (bool, bool), ranks: f64| {
                let empty = Beside {
                    own: class(reads, ranks, far),
                    other: class(!reads, 8.0, !far),
                    bytes_per_s: 1.0,
                };
                Beside { bytes_per_s: empty.ratio(&made), ..empty }
            };
            let points: Vec<Beside> =
                pairs.iter().flat_map(|pair| [1.0, 3.0, 6.0, 12.0].map(|n| point(*pair, n))).collect();
            let mix = station.mix;
            let miss = fit(&mut station, &points, &|_| mix);
            assert_eq!(station.together, wanted);
            assert!(miss < 1e-6, "{miss}");
        }
    }
}
