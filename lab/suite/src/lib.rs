//! The 18 workflows that Venkatesh and others measured, as the model takes them. Pure functions, no I/O.
//!
//! Printed by the study, and typed in: ranks, object sizes, objects per snapshot, iterations of the microbenchmarks,
//! and which of four configurations was the fastest (its Table II and Figures 4 to 9). Not printed: compute times, the
//! skew of the ranks, GTC's iterations, software time per object. Those are [`Values`]: *fitted* to the fastest
//! configurations and the stated percentages ([`claims`]), within ranges that are listed with them.
//!
//! Two sets of values are kept beside this file. `frozen.toml`: locality and interference are those of the public
//! microbenchmarks in the platform `optane-gen1`, only what the study does not print is free. `free.toml`: remote
//! penalties and interference are free too, 20 values in all. Neither is a measurement of anything.
//!
//! Beside the workflows: [`rules`] and [`judge`], by which predictions are compared with the study; [`fit`] and
//! [`search`], which find what the study does not print; [`stream`] and [`expansion`], models for kernels by location
//! and for programs larger than main memory.
#![forbid(unsafe_code)]

pub mod claims;
pub mod expansion;
pub mod fit;
pub mod judge;
pub mod rules;
pub mod search;
pub mod stream;

use forebay_model::device::Device;
use forebay_model::plan::Plan;
use forebay_model::station::{Mix, Penalty, Station};
use forebay_model::table::{Row, Table};
use forebay_model::workflow::{predict, Component, Workflow};
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// The platform of the study.
pub const PLATFORM: &str = "optane-gen1";
/// The tier of its channel.
pub const TIER: &str = "pmem";
/// Workflows.
pub const COUNT: usize = 18;
/// Iterations of those whose number the study prints (section IV-B); taken for miniAMR too.
const VERSIONS: u32 = 10;
/// Remote reads with 24 threads (section II-B of the study).
const REMOTE_READS_24: f64 = 1.3;

/// What a workflow is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The microbenchmark with objects of 64 MB.
    Large,
    /// The microbenchmark with objects of 2 KiB.
    Small,
    /// GTC and an analytics that only reads.
    GtcRead,
    /// GTC and matrix multiplications.
    GtcMultiply,
    /// miniAMR and an analytics that only reads.
    AmrRead,
    /// miniAMR and matrix multiplications.
    AmrMultiply,
}

/// One of the 18.
#[derive(Clone, Copy, Debug)]
pub struct Studied {
    /// What it is made of.
    pub family: Family,
    /// Its name.
    pub name: &'static str,
    /// Ranks of each component.
    pub ranks: u32,
    /// Which of [`Plan::of_the_study`] was the fastest.
    pub fastest: usize,
}

const fn of(family: Family, name: &'static str, ranks: u32, fastest: usize) -> Studied {
    Studied { family, name, ranks, fastest }
}

/// All of them, in the order of its figures. The last number: 0 S-LocW, 1 S-LocR, 2 P-LocW, 3 P-LocR.
pub const STUDIED: [Studied; COUNT] = [
    of(Family::Large, "64MB", 8, 0),
    of(Family::Large, "64MB", 16, 0),
    of(Family::Large, "64MB", 24, 0),
    of(Family::Small, "2K", 8, 3),
    of(Family::Small, "2K", 16, 3),
    of(Family::Small, "2K", 24, 1),
    of(Family::GtcRead, "GTC + Read-Only", 8, 3),
    of(Family::GtcRead, "GTC + Read-Only", 16, 1),
    of(Family::GtcRead, "GTC + Read-Only", 24, 0),
    of(Family::GtcMultiply, "GTC + MatrixMult", 8, 3),
    of(Family::GtcMultiply, "GTC + MatrixMult", 16, 3),
    of(Family::GtcMultiply, "GTC + MatrixMult", 24, 0),
    of(Family::AmrRead, "miniAMR + Read-Only", 8, 3),
    of(Family::AmrRead, "miniAMR + Read-Only", 16, 1),
    of(Family::AmrRead, "miniAMR + Read-Only", 24, 0),
    of(Family::AmrMultiply, "miniAMR + MatrixMult", 8, 2),
    of(Family::AmrMultiply, "miniAMR + MatrixMult", 16, 0),
    of(Family::AmrMultiply, "miniAMR + MatrixMult", 24, 0),
];

/// What the study does not print, and what the public data leave open. Fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// Seconds of GTC per version.
    pub gtc_compute_s: f64,
    /// Skew of its ranks in seconds.
    pub gtc_spread_s: f64,
    /// Seconds of miniAMR per version.
    pub amr_compute_s: f64,
    /// Versions of GTC.
    pub gtc_versions: f64,
    /// Seconds of its matrix multiplications per version.
    pub gtc_multiply_s: f64,
    /// Microseconds of miniAMR's matrix multiplications per object.
    pub amr_multiply_us: f64,
    /// Microseconds of software per object written.
    pub write_software_us: f64,
    /// Microseconds of software per object read.
    pub read_software_us: f64,
    /// Microseconds that remote metadata add to a read.
    pub read_remote_us: f64,
    /// Share by which software takes longer while both components are in the tier.
    pub shared_software: f64,
    /// How much of a rank is inside while it polls for a version.
    pub polling: f64,
    /// Remote over local writes at low load.
    pub remote_write_low: f64,
    /// The same at high load.
    pub remote_write_high: f64,
    /// Ranks inside at half of the rise, of reads too.
    pub remote_middle: f64,
    /// Remote over local reads at low load.
    pub remote_read_low: f64,
    /// The same at high load.
    pub remote_read_high: f64,
    /// k of [`Mix`].
    pub mix_strength: f64,
    /// μ of [`Mix`].
    pub mix_middle: f64,
    /// ω of [`Mix`].
    pub mix_remote: f64,
    /// p of [`Mix`].
    pub mix_evenness: f64,
}

/// How many values there are.
pub const VALUES: usize = 20;
/// The first so many are what the study does not print; the others are locality and interference.
pub const UNPRINTED: usize = 11;

/// Name, least and most of each value, in the order of the fields.
pub const RANGES: [(&str, f64, f64); VALUES] = [
    ("gtc_compute_s", 0.5, 20.0),
    ("gtc_spread_s", 0.01, 5.0),
    ("amr_compute_s", 0.05, 6.0),
    ("gtc_versions", 2.0, 20.0),
    ("gtc_multiply_s", 0.02, 10.0),
    ("amr_multiply_us", 0.5, 60.0),
    ("write_software_us", 0.3, 20.0),
    ("read_software_us", 0.3, 20.0),
    ("read_remote_us", 0.01, 4.0),
    ("shared_software", 0.01, 1.5),
    ("polling", 0.01, 1.0),
    ("remote_write_low", 1.0, 2.5),
    ("remote_write_high", 1.1, 15.0),
    ("remote_middle", 1.0, 40.0),
    ("remote_read_low", 1.0, 1.3),
    ("remote_read_high", 1.0, 1.6),
    ("mix_strength", 0.05, 4.0),
    ("mix_middle", 1.0, 48.0),
    ("mix_remote", 0.5, 8.0),
    ("mix_evenness", 0.1, 8.0),
];

impl Values {
    /// From numbers in the order of [`RANGES`].
    pub fn of(v: &[f64; VALUES]) -> Values {
        Values {
            gtc_compute_s: v[0],
            gtc_spread_s: v[1],
            amr_compute_s: v[2],
            gtc_versions: v[3],
            gtc_multiply_s: v[4],
            amr_multiply_us: v[5],
            write_software_us: v[6],
            read_software_us: v[7],
            read_remote_us: v[8],
            shared_software: v[9],
            polling: v[10],
            remote_write_low: v[11],
            remote_write_high: v[12],
            remote_middle: v[13],
            remote_read_low: v[14],
            remote_read_high: v[15],
            mix_strength: v[16],
            mix_middle: v[17],
            mix_remote: v[18],
            mix_evenness: v[19],
        }
    }

    /// In the order of [`RANGES`].
    pub fn numbers(&self) -> [f64; VALUES] {
        [
            self.gtc_compute_s,
            self.gtc_spread_s,
            self.amr_compute_s,
            self.gtc_versions,
            self.gtc_multiply_s,
            self.amr_multiply_us,
            self.write_software_us,
            self.read_software_us,
            self.read_remote_us,
            self.shared_software,
            self.polling,
            self.remote_write_low,
            self.remote_write_high,
            self.remote_middle,
            self.remote_read_low,
            self.remote_read_high,
            self.mix_strength,
            self.mix_middle,
            self.mix_remote,
            self.mix_evenness,
        ]
    }

    /// From a point of the unit cube, on a logarithmic scale over each range.
    pub fn at(point: &[f64]) -> Values {
        let mut numbers = [0.0; VALUES];
        for (i, (_, least, most)) in RANGES.iter().enumerate() {
            numbers[i] = least * (most / least).powf(point[i]);
        }
        Values::of(&numbers)
    }

    /// The point of the unit cube.
    pub fn point(&self) -> [f64; VALUES] {
        let mut point = self.numbers();
        for (x, (_, least, most)) in point.iter_mut().zip(RANGES) {
            *x = ((*x / least).ln() / (most / least).ln()).clamp(0.0, 1.0);
        }
        point
    }
}

/// Where locality and interference come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interference {
    /// The public microbenchmarks of the platform.
    Frozen,
    /// The values.
    Free,
}

/// Values with where they come from, as the files beside this one hold them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// What was free.
    pub interference: Interference,
    /// By which command they were found.
    pub command: String,
    /// The values.
    pub values: Values,
}

impl Set {
    /// One of the two that are kept.
    ///
    /// # Errors
    /// [`Kind::Internal`]: the file that was built in is damaged.
    pub fn kept(interference: Interference) -> Result<Set> {
        let text = match interference {
            Interference::Frozen => include_str!("frozen.toml"),
            Interference::Free => include_str!("free.toml"),
        };
        toml::from_str(text).map_err(|e| Error::new(Kind::Internal, format!("a kept set of values: {e}")))
    }

    /// How many values were free.
    pub fn free(&self) -> usize {
        match self.interference {
            Interference::Frozen => UNPRINTED,
            Interference::Free => VALUES,
        }
    }

    /// Names of values on a bound of their range, to a hundredth of it.
    pub fn on_a_bound(&self) -> Vec<&'static str> {
        let point = self.values.point();
        let free = RANGES.iter().zip(point).take(self.free());
        free.filter(|(_, x)| !(0.01..=0.99).contains(x)).map(|((name, ..), _)| *name).collect()
    }
}

/// The station of the study by a set of values; `device` is that of its platform.
pub fn station(device: &Device, interference: Interference, values: &Values) -> Station {
    let mut station = device.station.clone();
    match interference {
        Interference::Frozen => {
            // The platform has remote reads with 4 threads only; the study itself prints what 24 of them do.
            let low = station.read.remote.low();
            let row = |x, y| Row { x, y, error: 0.0 };
            let rows = vec![row(4.0, 1.0 / low), row(24.0, 1.0 / REMOTE_READS_24)];
            station.read.remote = Penalty::Share(Table::new(rows));
        }
        Interference::Free => interfere(&mut station, values),
    }
    station
}

/// Sets locality and interference of a station to the values.
pub fn interfere(station: &mut Station, values: &Values) {
    let rising = |low: f64, high: f64| Penalty::Rising {
        low,
        high: high.max(low),
        middle: values.remote_middle,
        steepness: 4,
    };
    station.write.remote = rising(values.remote_write_low, values.remote_write_high);
    station.read.remote = rising(values.remote_read_low, values.remote_read_high);
    station.mix = Mix {
        strength: values.mix_strength,
        strength_remote: values.mix_strength,
        middle: values.mix_middle,
        steepness: 4,
        evenness: values.mix_evenness,
        remote_weight: values.mix_remote,
        alone: 0.0,
    };
}

/// A workflow of the study as the model takes it.
pub fn workflow(studied: &Studied, values: &Values) -> Workflow {
    let side = Component {
        ranks: f64::from(studied.ranks),
        compute_s: 0.0,
        interleaved: false,
        spread_s: 0.0,
        in_step: true,
        objects: 1.0,
        object_bytes: 1.0,
        software_s: values.write_software_us * 1e-6,
        software_remote_s: 0.0,
        shared: values.shared_software,
        polling: values.polling,
    };
    let reader = Component {
        software_s: values.read_software_us * 1e-6,
        software_remote_s: values.read_remote_us * 1e-6,
        interleaved: true,
        ..side
    };
    let of = |objects: f64, object_bytes: f64, compute_s: f64, spread_s: f64, reading_s: f64| {
        (
            Component { objects, object_bytes, compute_s, spread_s, ..side },
            Component { objects, object_bytes, compute_s: reading_s, ..reader },
        )
    };
    // Section IV-B: snapshots of 1 GB per rank in the microbenchmarks; sections IV-B and VI-A: 229 MB in GTC, 528
    // thousand objects of 4.5 KB in miniAMR.
    let gtc = |reading_s| of(1.0, 229e6, values.gtc_compute_s, values.gtc_spread_s, reading_s);
    let amr = |reading_s| of(528_000.0, 4500.0, values.amr_compute_s, 0.0, reading_s);
    let (writer, reader) = match studied.family {
        Family::Large => of(16.0, 64e6, 0.0, 0.0, 0.0),
        Family::Small => of(524_288.0, 2048.0, 0.0, 0.0, 0.0),
        Family::GtcRead => gtc(0.0),
        Family::GtcMultiply => gtc(values.gtc_multiply_s),
        Family::AmrRead => amr(0.0),
        Family::AmrMultiply => amr(values.amr_multiply_us * 1e-6 * 528_000.0),
    };
    let versions = match studied.family {
        Family::GtcRead | Family::GtcMultiply => values.gtc_versions.round().max(1.0) as u32,
        _ => VERSIONS,
    };
    Workflow { versions, writer, reader, ahead: None }
}

/// Seconds of each workflow by each of the four configurations, in the order of [`Plan::of_the_study`].
pub type Times = [[f64; 4]; COUNT];

/// What the model says of all of them.
pub fn times(station: &Station, values: &Values) -> Times {
    let plans = Plan::of_the_study(TIER);
    STUDIED.map(|studied| {
        let flow = workflow(&studied, values);
        plans.each_ref().map(|plan| predict(&flow, station, plan.mode, plan.locality).time_s)
    })
}

/// Names of the four configurations.
pub fn configurations() -> [String; 4] {
    Plan::of_the_study(TIER).map(|plan| plan.short())
}
