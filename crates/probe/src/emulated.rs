//! The probe of an emulated platform: a throttled device is asked for the very curves that it was set to, as if it were
//! hardware.
//!
//! Guarantees: the numbers are what came back through the device's own calls, never those that were set; the divisor k
//! stands in the profile; k and the sizes of operations are such that this machine carries the medium; nothing is left
//! behind. It shares no code with what predicts: a reader of the profile knows what was measured of the medium.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use forebay_tier::adapter::throttle::{self, Curve, Curves, Throttle};
use forebay_tier::{process, Device, Error, Kind, Result, TierKind};

use super::ask::{doubling, Ask};
use super::collect::Reads;
use super::emulate::Through;
use super::find::{find, Asks};
use super::machine::Machine;
use super::rounds::ask;
use super::schedule::{shares, Schedule, Timing, REPETITIONS};
use super::subject::Subject;
use super::{host, run::Progress};
use crate::kernels::together::processors;
use crate::medium::Medium;
use forebay_profile::{
    Axis, Citation, Conditions, Locality, Pattern, Profile, Provenance, Source, Spread, Tier,
};

/// Of what memory moves, the emulated medium at its fastest takes this part, and a thread alone makes this part of the
/// calls that it could make through the throttle: beside what is owed, neither the memory nor the calls count.
const SHARE_OF_BYTES: f64 = 0.02;
const SHARE_OF_CALLS: f64 = 0.1;
/// What several threads do at once takes the medium this long at least: debts are paid by the millisecond, and a thread
/// that does shorter operations has several turns while the others sleep.
const TURN_SECONDS: f64 = 1e-3;
const POOL_BYTES: u64 = 64 << 20;
const TRIAL_NS: u64 = 200_000_000;
/// Concurrency of a direction of which only one bandwidth is known.
const LEVEL_THREADS: u32 = 16;
/// Readers and writers of a mix: thirds and quarters of so many are whole. Few of them show whether a mixture disturbs
/// only where there are many.
const MIX_THREADS: [u32; 2] = [24, 2];
/// Threads of one side beside so many of the other: more than a few, so that what a remote side loses by the other
/// one's being there shows beside what it loses by itself.
const BESIDE: u32 = 8;
const BESIDE_THREADS: [f64; 4] = [1.0, 3.0, 6.0, 12.0];
/// What a person may wait.
pub const BUDGET_NS: u64 = 90_000_000_000;
/// A debt of a millisecond is what a thread may be off: a span holds hundreds.
const TIMING: Timing = Timing {
    span_ns_min: 200_000_000,
    span_ns_max: 2_000_000_000,
    overhead_ns: 20_000_000,
    rounds: REPETITIONS,
};

/// What this machine can do for a medium that is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Bytes a second that memory moves with every processor, the slower direction.
    pub bytes_per_s: f64,
    /// Small operations a second of one thread through the throttle.
    pub calls_per_s: f64,
}

impl Carried {
    /// Measures it in a directory of main memory, for less than a second.
    ///
    /// # Errors
    /// Those of the tier.
    pub fn here(dir: &Path) -> Result<Carried> {
        // So fast that nothing is ever owed.
        let level = |rate| Curve(vec![(1.0, rate)]);
        let curves =
            Curves { read_bandwidth: level(1e15), write_bandwidth: level(1e15), ..Curves::default() };
        let mut subject = throttled(dir, &curves)?;
        let all = processors().len() as u32;
        let mut trial = |reads, bytes, threads| {
            let (reads_percent, threads) = (Some(reads), Some(threads));
            let when = Conditions { threads, reads_percent, bytes: Some(bytes), ..Conditions::default() };
            subject.bandwidth(&when, TRIAL_NS)
        };
        let large = 1 << 20;
        let bytes_per_s = trial(100.0, large, all)?.bytes_per_s().min(trial(0.0, large, all)?.bytes_per_s());
        let calls_per_s = trial(100.0, 64, 1)?.operations_per_s().min(trial(0.0, 64, 1)?.operations_per_s());
        Ok(Carried { bytes_per_s, calls_per_s })
    }

    /// The k that makes media slow enough for this machine, in two digits, at least 1.
    pub fn k<'a>(&self, media: impl IntoIterator<Item = &'a Medium>) -> f64 {
        let of = |medium: &Medium| {
            let bytes = medium.fastest() / (SHARE_OF_BYTES * self.bytes_per_s);
            let calls = (0..2).map(|way| {
                let reads_percent = Some([100.0, 0.0][way]);
                let one = Conditions { reads_percent, threads: Some(1), ..Conditions::default() };
                medium.rate(&one).unwrap_or(0.0) / medium.base_bytes[way] as f64
            });
            bytes.max(calls.fold(0.0, f64::max) / (SHARE_OF_CALLS * self.calls_per_s))
        };
        let k = media.into_iter().map(of).fold(1.0, f64::max);
        let unit = 10f64.powi(k.log10().floor() as i32 - 1);
        if k > 1.0 {
            (k / unit).ceil() * unit
        } else {
            1.0
        }
    }

    /// Whether one thread can make operations of this size as fast as a medium of `rate` bytes a second takes them.
    fn carries(&self, rate: f64, bytes: u64) -> bool {
        rate / bytes as f64 <= 2.0 * SHARE_OF_CALLS * self.calls_per_s
    }
}

/// Two handles of one throttled device, nameless, in a directory of main memory.
fn throttled(dir: &Path, curves: &Curves) -> Result<Through> {
    let path = dir.join(format!(".forebay-emulated-{}", process::pid()));
    let state = Throttle::state_beside(&path);
    let made = (|| {
        let pool = forebay_tier::create(TierKind::Dram, &path, POOL_BYTES)?;
        let handle = |locality| -> Result<Arc<dyn Device>> {
            Ok(Arc::new(Throttle::new(pool.clone(), curves.clone(), locality, &state)?))
        };
        Ok((handle(throttle::Locality::Local)?, handle(throttle::Locality::Remote)?))
    })();
    // Both stay as long as they are mapped.
    for file in [&path, &state] {
        let _ = std::fs::remove_file(file);
    }
    let (near, far) = made?;
    Through::new(near, far)
}

/// What is asked of a medium: the curves that it was made of.
pub fn questions(medium: &Medium, k: f64, carried: &Carried) -> Vec<Ask> {
    let c = &medium.curves;
    let ways = [
        (100.0, &c.read_bandwidth, &c.read_granularity, &c.read_remote),
        (0.0, &c.write_bandwidth, &c.write_granularity, &c.write_remote),
    ];
    let rate = |when: &Conditions| medium.rate(when).unwrap_or(0.0) / k;
    // A curve over threads or shares, with operations that are long enough.
    let curve = |when: Conditions, over: Axis, xs: Vec<f64>, base: u64| {
        let alone = Conditions { beside: None, ..when.clone() };
        let fastest = xs.iter().map(|x| rate(&alone.at(over, *x))).fold(0.0, f64::max);
        let long = (fastest * TURN_SECONDS).ceil() as u64;
        let bytes = base.max(long.next_power_of_two()).clamp(64, 1 << 20);
        Ask::Curve { when: Conditions { bytes: Some(bytes), ..when }, over, xs }
    };
    let mut asks = Vec::new();
    for (way, (reads, bandwidth, sizes, remote)) in ways.into_iter().enumerate() {
        if bandwidth.0.is_empty() {
            continue;
        }
        let (base, access) = (medium.base_bytes[way], medium.access[way]);
        let (pattern, reads_percent) = (Some(Pattern::Sequential), Some(reads));
        let when = Conditions { pattern, reads_percent, access, ..Conditions::default() };
        asks.push(curve(when.clone(), Axis::Threads, threads(bandwidth), base));
        if !remote.0.is_empty() {
            let when = Conditions { locality: Locality::Remote, ..when.clone() };
            asks.push(curve(when, Axis::Threads, threads(remote), base));
        }
        // One thread alone has no turns to wait for: every size that it can make fast enough.
        let when = Conditions { threads: Some(1), ..when };
        let carried = |x: &f64| carried.carries(rate(&when.at(Axis::Bytes, *x)), *x as u64);
        let xs: Vec<f64> = sizes.0.iter().map(|(x, _)| *x).filter(carried).collect();
        if !xs.is_empty() {
            asks.push(Ask::Curve { when: when.clone(), over: Axis::Bytes, xs });
        }
    }
    if !medium.mixes.is_empty() {
        let base = medium.base_bytes[0].max(medium.base_bytes[1]);
        for threads in MIX_THREADS {
            let when = Conditions {
                pattern: Some(Pattern::Sequential),
                threads: Some(threads),
                ..Conditions::default()
            };
            let readers = |percent: &f64| f64::from(threads) * percent / 100.0;
            // Shares of percent are rounded to a digit.
            let is_whole = |percent: &&f64| (readers(percent) - readers(percent).round()).abs() < 0.02;
            let shares: Vec<f64> = match threads == MIX_THREADS[0] {
                true => medium.mixes.clone(),
                false => medium.mixes.iter().filter(is_whole).copied().collect(),
            };
            if shares.len() > 2 {
                asks.push(curve(when, Axis::ReadsPercent, shares, base));
            }
        }
    }
    if ways.iter().all(|(_, bandwidth, _, _)| !bandwidth.0.is_empty()) {
        asks.extend(either_side(medium, &curve));
    }
    asks
}

/// Either side of a workflow while the other is busy, with the medium near the one and near the other.
fn either_side(medium: &Medium, curve: &dyn Fn(Conditions, Axis, Vec<f64>, u64) -> Ask) -> Vec<Ask> {
    let base = medium.base_bytes[0].max(medium.base_bytes[1]);
    let sides = [Locality::Remote, Locality::Local].into_iter().flat_map(|l| [(l, 100.0), (l, 0.0)]);
    let ask = |(locality, reads): (Locality, f64)| {
        let when = Conditions {
            locality,
            pattern: Some(Pattern::Sequential),
            reads_percent: Some(reads),
            access: medium.access[if reads > 50.0 { 0 } else { 1 }],
            beside: Some(BESIDE),
            ..Conditions::default()
        };
        curve(when, Axis::Threads, BESIDE_THREADS.to_vec(), base)
    };
    sides.map(ask).collect()
}

/// The numbers of threads of a curve, and those half-way between two that lie apart; of a level one some.
fn threads(curve: &Curve) -> Vec<f64> {
    if curve.0.len() < 2 {
        return doubling(LEVEL_THREADS);
    }
    let set: Vec<f64> = curve.0.iter().map(|(x, _)| x.round()).filter(|x| *x >= 1.0).collect();
    let half_way = set.windows(2).filter(|w| w[1] - w[0] >= 4.0).map(|w| ((w[0] + w[1]) / 2.0).round());
    let mut all: Vec<f64> = set.iter().copied().chain(half_way).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// One point: what was set and what came back, bytes a second.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Compared {
    /// The tier.
    pub tier: String,
    /// All conditions.
    pub when: Conditions,
    /// What the point lies on.
    pub over: Axis,
    /// What the throttle was set to.
    pub set_bytes_per_s: f64,
    /// What came back.
    pub back_bytes_per_s: f64,
    /// Back over set.
    pub ratio: f64,
}

/// A profile of an emulated platform, and how well it is the platform.
#[derive(Clone, Debug, PartialEq)]
pub struct Emulated {
    /// What came back.
    pub profile: Profile,
    /// By how much everything is slower than the platform.
    pub k: f64,
    /// Point by point.
    pub compared: Vec<Compared>,
}

impl Emulated {
    /// The ratio that is farthest from 1; None when nothing was measured.
    pub fn worst(&self) -> Option<f64> {
        let off = |r: &f64| (r.ln()).abs();
        self.compared.iter().map(|c| c.ratio).max_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

/// What is asked for.
pub struct Options<'a> {
    /// Name of the profile.
    pub name: String,
    /// Name of the profile that is emulated.
    pub of: String,
    /// Its tiers.
    pub media: Vec<(&'a Tier, Medium)>,
    /// Divisor; chosen for this machine when absent.
    pub k: Option<f64>,
    /// Nanoseconds for the measurements; None is [`BUDGET_NS`].
    pub budget_ns: Option<u64>,
}

/// Probes the media one after the other; `None` when told to stop.
///
/// # Errors
/// `NotPossibleHere` without a directory in main memory; those of the tier.
pub fn probe(
    machine: &Machine,
    asks: &dyn Asks,
    options: &Options<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Option<Emulated>> {
    let tiers = find(machine, asks, &[]);
    let dir =
        tiers.found.iter().find(|t| t.kind == TierKind::Dram).map(|t| t.place.clone()).ok_or_else(|| {
            Error::new(Kind::NotPossibleHere, "no directory in main memory to emulate a tier in")
        })?;
    let carried = Carried::here(&dir)?;
    let k = options.k.unwrap_or_else(|| carried.k(options.media.iter().map(|(_, medium)| medium)));
    let mut profile = Profile::new(&options.name, host::now());
    profile.title = Some(format!("{} divided by k = {k}, emulated here", options.of));
    profile.host = host::describe(machine, &tiers);
    let citation = Citation::of("emulated");
    profile.sources.insert(citation.key.clone(), source(options, k));
    let mut compared = Vec::new();
    let needs: Vec<(usize, Timing)> = options
        .media
        .iter()
        .map(|(_, medium)| (questions(medium, k, &carried).iter().map(Ask::points).sum(), TIMING))
        .collect();
    let budgets = shares(&needs, options.budget_ns.unwrap_or(BUDGET_NS));
    for (number, (tier, medium)) in options.media.iter().enumerate() {
        let mut progress = Progress {
            tier: tier.name.clone(),
            number: number + 1,
            tiers: options.media.len(),
            ..Progress::default()
        };
        watch(&progress);
        let mut subject = throttled(&dir, &medium.slowed(k))?;
        let schedule = Schedule::fit(questions(medium, k, &carried), TIMING, budgets[number]);
        let answers = ask(&mut subject, &schedule, TIMING, stop, &mut |done, left_ns| {
            let all = schedule.len() * u64::from(REPETITIONS);
            (progress.done, progress.all, progress.left_ns) = (Some(done), all, left_ns);
            watch(&progress);
        })?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(None);
        }
        let mut out = Tier::new(&tier.name, tier.kind);
        out.title = tier.title.as_ref().map(|title| format!("{title}, emulated"));
        out.persistence = tier.persistence;
        answers.write(&mut out, &citation, &Reads::default(), None);
        out.notes.extend(medium.notes.iter().cloned());
        if !schedule.left_out.is_empty() {
            out.notes.push(format!("{} questions were left out for lack of time", schedule.left_out.len()));
        }
        compared.extend(beside(&out, medium, k));
        profile.tiers.push(out);
    }
    Ok(Some(Emulated { profile, k, compared }))
}

fn source(options: &Options<'_>, k: f64) -> Source {
    Source {
        kind: Provenance::Emulated,
        citation: None,
        method: Some(format!(
            "forebay probe of devices in main memory that the throttle makes as slow as {} divided by k = {k}; threads \
             never pause; of a mix some read and the others write",
            options.of
        )),
        repetitions: Some(REPETITIONS),
        spread: Spread::Range,
        note: None,
    }
}

/// Every point of a tier beside what the medium was set to.
fn beside(tier: &Tier, medium: &Medium, k: f64) -> Vec<Compared> {
    let of = |curve: &forebay_profile::Curve| {
        let one = |sample: forebay_profile::Sample<'_>| {
            let (set, back) = (medium.rate(&sample.when)? / k, sample.bandwidth()?.value);
            Some(Compared {
                tier: tier.name.clone(),
                when: sample.when,
                over: curve.over,
                set_bytes_per_s: set,
                back_bytes_per_s: back,
                ratio: back / set,
            })
        };
        curve.samples().filter_map(one).collect::<Vec<_>>()
    };
    tier.curves.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::Running;
    use forebay_profile::platforms::platform;

    const CARRIED: Carried = Carried { bytes_per_s: 10e9, calls_per_s: 2e6 };

    #[test]
    fn k_is_what_this_machine_carries() {
        let optane = platform("optane-gen1").unwrap();
        let medium = Medium::of(optane.tier("pmem").unwrap()).unwrap();
        let k = CARRIED.k([&medium]);
        // 42.3 GB/s in the largest operations; of memory's 10 GB/s two per cent are taken.
        assert_eq!(k, 220.0);
        assert_eq!(CARRIED.k([]), 1.0);
        let slow = Carried { calls_per_s: 1e5, ..CARRIED };
        // 4.13 GB/s of one thread in writes of 256 B are 16 million a second; a tenth of a hundred thousand is made.
        assert_eq!(slow.k([&medium]), 1700.0);
        assert!(slow.carries(4.13e9 / 1700.0, 256) && !slow.carries(4.13e9, 256));
        let over = |asks: &[Ask], axis| {
            asks.iter().filter(|a| matches!(a, Ask::Curve { over, .. } if *over == axis)).count()
        };
        let asks = questions(&medium, k, &CARRIED);
        assert_eq!([Axis::Threads, Axis::Bytes, Axis::ReadsPercent].map(|axis| over(&asks, axis)), [8, 2, 2]);
        let Ask::Curve { when, xs, .. } = &asks[0] else { panic!("a curve first") };
        // 192 MB/s for a millisecond; nine published numbers of threads, and four half-way between two of them.
        assert_eq!((when.bytes, xs.len(), xs.last()), (Some(262_144), 13, Some(&24.0)));
        let Ask::Curve { when, xs, .. } = &asks[2] else { panic!("then sizes") };
        assert_eq!((when.threads, when.bytes, xs[0]), (Some(1), None, 64.0));
    }

    #[test]
    fn an_emulated_platform_becomes_a_profile_that_says_so() {
        let optane = platform("optane-gen3").unwrap();
        let media = vec![(optane.tier("pmem").unwrap(), Medium::of(optane.tier("pmem").unwrap()).unwrap())];
        let options = Options {
            name: "emulated".into(),
            of: "optane-gen3".into(),
            media,
            k: Some(2000.0),
            // One question, for as short as it can be.
            budget_ns: Some(1),
        };
        let go = AtomicBool::new(false);
        let made = probe(&Machine::here(), &Running, &options, &go, &mut |_| ()).unwrap().unwrap();
        made.profile.check().unwrap();
        assert_eq!(made.k, 2000.0);
        let curve = &made.profile.tiers[0].curves[0];
        assert_eq!(made.profile.provenance(&curve.source), Some(Provenance::Emulated));
        assert_eq!((curve.over, curve.points.len(), made.compared.len()), (Axis::Threads, 5, 5));
        // Its highest bandwidth is all that is published.
        let highest = optane.tier("pmem").unwrap().knees.iter().map(|knee| knee.highest.value * 1e9);
        assert!(highest.into_iter().any(|rate| rate / 2000.0 == made.compared[4].set_bytes_per_s));
        assert!(made.compared.iter().all(|c| c.back_bytes_per_s > 0.0 && c.ratio > 0.0));
        assert!(made.worst().is_some());
        let stop = AtomicBool::new(true);
        assert_eq!(probe(&Machine::here(), &Running, &options, &stop, &mut |_| ()).unwrap(), None);
        let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let own = format!(".forebay-emulated-{}", process::pid());
        assert!(left.into_iter().all(|e| !e.file_name().to_string_lossy().starts_with(&own)));
    }
}
