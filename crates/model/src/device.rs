//! A device of the model: the [`Station`] that a tier of a profile makes, and how well it is known.
//!
//! What is taken from where:
//!
//! - *rate of one thread* and *capacity over ranks inside*: the curve over threads of its direction, beside the tier.
//!   The
//!   capacity is the measured rate B(n) with the smoothing of the station undone,
//!   `C(n) = B / (1 - (B / (n b1))^s)^(1/s)`, so that n ranks without thinking get B(n) again; below the highest point
//!   the
//!   capacity is that of the highest point, since there the threads are what limits;
//! - *sharpness s*: the whole number from 2 to 12 with which the station comes nearest to both curves;
//! - *size of objects*: the curve over bytes, relative to the size at which the curve over threads was taken;
//! - *remote penalty*: remote numbers that have a local one under otherwise equal conditions, over threads;
//! - *disturbance by mixing*: the curve over the share of reads, read as use of the station; its strength and evenness
//!   are the least squares of its inner points; its middle follows from two curves with different numbers of threads,
//!   and is half of the threads where there is one only;
//! - *how much either side counts for the other*: curves of one side while the other is busy ([`super::beside`]);
//!   nothing where it was not measured;
//! - *latency*: the idle one, for loads and stores; system calls have it in the rate of one thread already.
//!
//! Where curves of several ways of access exist, that of [`Wanted`] wins, then sequential ones, then the nearest size.
//! Whatever a profile lacks is named in [`Device::gaps`].

use forebay_terms::{Error, Kind, Result};

use super::beside;
use super::station::{Mix, Penalty, Station, Together, Way};
use super::table::{Row, Table};
use forebay_profile::{Access, Axis, Conditions, Curve, Load, Locality, Operation, Pattern, Profile, Tier};

/// Half of the error bar of a number whose source gives none, as a share of it. The repetitions of the published curves
/// that do give one lie within 2 to 8 %; other nodes of the same kind differ by more.
pub const UNKNOWN_ERROR: f64 = 0.1;
/// Half of the error bar of a penalty that was not measured: it was taken as none.
pub const MISSING_ERROR: f64 = 0.3;
/// A thread that gets more of its own rate than this is not limited by the capacity at all.
const LIMITED: f64 = 0.98;

/// Which ways of access to model, the best first.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// For reads.
    pub read: &'a [Access],
    /// For writes.
    pub write: &'a [Access],
    /// Bytes of an operation that matter.
    pub bytes: f64,
}

/// As Forebay moves bytes: non-temporal stores and loads on memory, many requests in flight on drives.
pub const OURS: Wanted<'static> = Wanted {
    read: &[Access::Load, Access::Copy, Access::IoUring, Access::Threads, Access::Sync, Access::Libaio],
    write: &[Access::NtStore, Access::Copy, Access::IoUring, Access::Threads, Access::Sync, Access::Libaio],
    bytes: 1048576.0,
};

/// A tier as a station.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Name of the tier.
    pub tier: String,
    /// The station.
    pub station: Station,
    /// How uncertain it is.
    pub uncertainty: Uncertainty,
    /// What the profile does not say, and what was taken instead.
    pub gaps: Vec<String>,
}

/// Half of the error bars, as shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uncertainty {
    /// Of the disturbance by mixing.
    pub mix: f64,
    /// By how much the station misses the curves that it was made of.
    pub shape: f64,
    /// By how much it misses what was measured of one side beside the other, as a mean; 0 where nothing was.
    pub together: f64,
}

struct Picked<'a> {
    curve: &'a Curve,
    rows: Vec<Row>,
}

impl Device {
    /// The station of a tier.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`]: the profile has no such tier; [`Kind::NotPossibleHere`]: it lacks the curve over
    /// threads of one direction.
    pub fn of(profile: &Profile, tier: &str, wanted: &Wanted) -> Result<Device> {
        let Some(tier) = profile.tier(tier) else {
            let names: Vec<&str> = profile.tiers.iter().map(|t| t.name.as_str()).collect();
            return Err(Error::new(
                Kind::UnknownComponent,
                format!("profile {} has no tier {tier}", profile.name),
            )
            .hint(format!("its tiers: {}", names.join(", "))));
        };
        let read = pick(tier, 100.0, wanted.read, wanted.bytes);
        let write = pick(tier, 0.0, wanted.write, wanted.bytes);
        let (Some(read), Some(write)) = (read, write) else {
            let error = Error::new(
                Kind::NotPossibleHere,
                format!("profile {} has no scaling curve for tier {}", profile.name, tier.name),
            );
            return Err(
                error.hint("curves of reads and writes over threads are required: run `forebay probe`")
            );
        };
        let mut gaps = Vec::new();
        let sharpness = sharpness(&read.rows, &write.rows);
        let read_remote = remote(tier, 100.0, wanted, &mut gaps);
        let write_remote = remote(tier, 0.0, wanted, &mut gaps);
        let mut station = Station {
            read: way(tier, &read, sharpness, 100.0, read_remote),
            write: way(tier, &write, sharpness, 0.0, write_remote),
            mix: Mix::NONE,
            together: Together::default(),
            sharpness,
        };
        let shape = misfit(&station, &read.rows, &write.rows);
        let beside = beside::measured(tier);
        let mixed = |station: &Station| mix(tier, station);
        let together = match beside.is_empty() {
            true => {
                station.mix = mixed(&station).map_or(Mix::NONE, |(mix, _)| mix);
                None
            }
            false => {
                Some(beside::fit(&mut station, &beside, &|s| mixed(s).map_or(Mix::NONE, |(mix, _)| mix)))
            }
        };
        let mix_error = mixed(&station).map(|(_, error)| error);
        if mix_error.is_none() {
            gaps.push("no curve over the share of reads: reading and writing only share the time".into());
        }
        let uncertainty =
            Uncertainty { mix: mix_error.unwrap_or(MISSING_ERROR), shape, together: together.unwrap_or(0.0) };
        Ok(Device { tier: tier.name.clone(), station, uncertainty, gaps })
    }
}

fn is_reads(when: &Conditions, reads: f64) -> bool {
    when.reads_percent.is_some_and(|share| (share - reads).abs() < 0.5)
}

/// How far down a list an access stands; one that is not in it comes last, an unnamed one before that.
fn rank(access: Option<Access>, wanted: &[Access]) -> usize {
    match access {
        Some(access) => wanted.iter().position(|a| *a == access).unwrap_or(wanted.len() + 1),
        None => wanted.len(),
    }
}

/// Bytes per second over x, with relative errors.
fn rows(curve: &Curve) -> Vec<Row> {
    let samples = curve.points.iter().zip(curve.samples());
    let row = |(point, sample): (&forebay_profile::Point, forebay_profile::Sample)| {
        let bandwidth = sample.bandwidth().filter(|b| b.value > 0.0)?;
        let error = bandwidth.error.map_or(UNKNOWN_ERROR, |e| e / bandwidth.value);
        Some(Row { x: point.x, y: bandwidth.value, error })
    };
    samples.filter_map(row).collect()
}

/// The local curve over threads (over depth where there is none) of one direction.
fn pick<'a>(tier: &'a Tier, reads: f64, wanted: &[Access], bytes: f64) -> Option<Picked<'a>> {
    let fits = |c: &&Curve| {
        matches!(c.over, Axis::Threads | Axis::Depth)
            && c.when.locality == Locality::Local
            && c.when.beside.is_none()
            && is_reads(&c.when, reads)
            && c.points.first().is_some_and(|p| p.x <= 1.0)
    };
    let order = |c: &&Curve| {
        let distance = c.when.bytes.map_or(0.0, |b| (b as f64 / bytes).log2().abs());
        (
            c.caveat.is_some(),
            c.over != Axis::Threads,
            c.when.horizon != forebay_terms::Horizon::None,
            rank(c.when.access, wanted),
            c.when.pattern == Some(Pattern::Random),
            (distance * 16.0) as u64,
        )
    };
    let curve = tier.curves.iter().filter(fits).min_by_key(order)?;
    let rows = rows(curve);
    (!rows.is_empty()).then_some(Picked { curve, rows })
}

/// The capacity whose smoothed meeting with the rate of the threads is what was measured.
fn capacity(rows: &[Row], sharpness: i32) -> Table {
    let single = rows[0].y / rows[0].x;
    let mut peak = 0;
    for (i, row) in rows.iter().enumerate() {
        if row.y > rows[peak].y {
            peak = i;
        }
    }
    let root = 1.0 / f64::from(sharpness);
    let undone = |row: &Row| {
        let part = (row.y / (row.x * single)).min(LIMITED);
        row.y / (1.0 - part.powi(sharpness)).powf(root)
    };
    Table::new(rows[peak..].to_vec()).map(undone)
}

/// What the smoothed meeting of threads and capacity gives to n of them.
fn met(rows: &[Row], capacity: &Table, sharpness: i32, n: f64) -> f64 {
    let open = n * rows[0].y / rows[0].x;
    let ratio = open / capacity.at(n);
    open / (1.0 + ratio.powi(sharpness)).powf(1.0 / f64::from(sharpness))
}

fn worst(rows: &[Row], sharpness: i32) -> f64 {
    let capacity = capacity(rows, sharpness);
    rows.iter().map(|row| (met(rows, &capacity, sharpness, row.x) / row.y - 1.0).abs()).fold(0.0, f64::max)
}

fn sharpness(read: &[Row], write: &[Row]) -> i32 {
    let miss = |s: i32| worst(read, s).max(worst(write, s));
    (2..=12).min_by(|a, b| miss(*a).total_cmp(&miss(*b))).unwrap_or(3)
}

/// By how much the station misses the curves, at worst.
fn misfit(station: &Station, read: &[Row], write: &[Row]) -> f64 {
    let miss = |way: &Way, rows: &[Row]| {
        let of = |row: &Row| (met(rows, &way.capacity, station.sharpness, row.x) / row.y - 1.0).abs();
        rows.iter().map(of).fold(0.0, f64::max)
    };
    miss(&station.read, read).max(miss(&station.write, write))
}

fn way(tier: &Tier, picked: &Picked, sharpness: i32, reads: f64, remote: Penalty) -> Way {
    let when = &picked.curve.when;
    let beside = matches!(
        when.access,
        Some(Access::Load | Access::Store | Access::StoreFlush | Access::NtStore | Access::LoadNtStore)
    );
    let latency_s = if beside { latency_s(tier, reads, when.access) } else { 0.0 };
    let (size, of_one) = sizes(tier, reads, when);
    Way {
        single: picked.rows[0].y / picked.rows[0].x,
        latency_s,
        capacity: capacity(&picked.rows, sharpness),
        // What one thread loses with small objects, it loses by itself; what many do, together.
        size_single: if of_one { size.clone() } else { Table::flat(1.0) },
        size,
        remote,
    }
}

/// The idle latency of an access, 0 where it is not known.
fn latency_s(tier: &Tier, reads: f64, access: Option<Access>) -> f64 {
    let operation = if reads > 50.0 { Operation::Read } else { Operation::Write };
    let known = tier.latencies.iter().filter(|l| l.operation == operation && l.load == Load::Idle);
    let same = known.filter(|l| l.when.access == access && l.when.locality == Locality::Local);
    let mean = same.filter_map(|l| l.mean_ns.or(l.p50_ns)).next();
    mean.map_or(0.0, |ns| ns.value * 1e-9)
}

/// Factors over sizes, relative to the size of a curve over threads, and whether they are of one thread.
fn sizes(tier: &Tier, reads: f64, base: &Conditions) -> (Table, bool) {
    let fits = |c: &&Curve| {
        c.over == Axis::Bytes
            && c.when.locality == Locality::Local
            && is_reads(&c.when, reads)
            && c.when.access == base.access
            && c.caveat.is_none()
    };
    let order = |c: &&Curve| (c.when.pattern != base.pattern, c.when.threads == Some(1));
    let Some(curve) = tier.curves.iter().filter(fits).min_by_key(order) else {
        return (Table::flat(1.0), false);
    };
    let table = Table::of_sizes(rows(curve));
    let reference = match base.bytes {
        Some(bytes) => table.at(bytes as f64),
        None => table.rows().last().map_or(1.0, |row| row.y),
    };
    (table.map(|row| row.y / reference), curve.when.threads == Some(1))
}

/// Local over remote, over threads, of the access that stands first in the list.
fn remote(tier: &Tier, reads: f64, wanted: &Wanted, gaps: &mut Vec<String>) -> Penalty {
    let list = if reads > 50.0 { wanted.read } else { wanted.write };
    // What mixes loads with non-temporal stores says as much of either at its ends.
    let of = |access: Option<Access>| match access {
        Some(Access::LoadNtStore) => rank(list.first().copied(), list),
        access => rank(access, list),
    };
    // Kind of access, then sequential before random, then the nearest size: the best of these alone.
    let mut found: Vec<((usize, bool, u64), Row)> = Vec::new();
    let fits = |when: &Conditions| {
        when.locality == Locality::Remote && when.beside.is_none() && is_reads(when, reads)
    };
    for far in tier.samples().filter(|s| fits(&s.when)) {
        let same = Conditions { locality: Locality::Local, from: None, ..far.when.clone() };
        let near = tier.samples().find(|s| Conditions { from: None, ..s.when.clone() } == same);
        let (Some(near), Some(threads)) = (near, far.when.concurrency()) else { continue };
        let (Some(near), Some(there)) = (near.bandwidth(), far.bandwidth()) else { continue };
        if near.value <= 0.0 || there.value <= 0.0 {
            continue;
        }
        let error = |e: forebay_profile::Estimate| e.error.map_or(UNKNOWN_ERROR, |x| x / e.value);
        let share = (there.value / near.value).min(1.0);
        let row = Row { x: f64::from(threads), y: share, error: error(near).hypot(error(there)) };
        let distance = far.when.bytes.map_or(0.0, |b| (b as f64 / wanted.bytes).log2().abs());
        let random = far.when.pattern == Some(Pattern::Random);
        found.push(((of(far.when.access), random, (distance * 16.0) as u64), row));
    }
    let Some(best) = found.iter().map(|(order, _)| *order).min() else {
        let what = if reads > 50.0 { "reads" } else { "writes" };
        gaps.push(format!("no remote {what}: taken as local ones"));
        return Penalty::Share(Table::new(vec![Row { x: 1.0, y: 1.0, error: MISSING_ERROR }]));
    };
    let mut merged: Vec<Row> =
        found.into_iter().filter(|(order, _)| *order == best).map(|(_, row)| row).collect();
    merged.sort_by(|a, b| a.x.total_cmp(&b.x));
    merged.dedup_by(|a, b| a.x == b.x);
    Penalty::Share(Table::new(merged))
}

/// κ that makes the station give what was measured with `threads` of which each reads a share of its bytes.
fn disturbance(station: &Station, threads: f64, reads: f64, measured: f64, pure: (f64, f64)) -> f64 {
    // The pure ends of the same curve stand for what the station gives without mixing: other numbers of the profile may
    // come from another run.
    let alone = |reads: bool| {
        let way = if reads { &station.read } else { &station.write };
        let open = threads * way.single;
        let ratio = open / way.capacity.at(threads);
        open / (1.0 + ratio.powi(station.sharpness)).powf(1.0 / f64::from(station.sharpness))
    };
    let (scale_read, scale_write) = (pure.0 / alone(true), pure.1 / alone(false));
    let per_byte = |way: &Way, scale: f64| 1.0 / (way.single * scale);
    let open =
        reads * per_byte(&station.read, scale_read) + (1.0 - reads) * per_byte(&station.write, scale_write);
    let stretch = (threads / (measured * open)).max(1.0 + 1e-9);
    let used = (1.0 - stretch.powi(-station.sharpness)).powf(1.0 / f64::from(station.sharpness));
    let inside = |own: f64| threads * (own + station.together.capacity * (1.0 - own));
    let plain = measured
        * (reads / (station.read.capacity.at(inside(reads)) * scale_read)
            + (1.0 - reads) / (station.write.capacity.at(inside(1.0 - reads)) * scale_write));
    (used / plain).max(1.0)
}

/// Exponent of the rise of the disturbance over ranks inside.
const STEEPNESS: i32 = 4;
/// Halvings towards the middle of that rise.
const HALVINGS: usize = 50;

/// A mixture of so few threads leaves a tier unsaturated: what is lost is lost by each access.
const FEW_THREADS: f64 = 2.0;
/// From this share on the loss of few threads is that of many.
const SAME: f64 = 0.25;

/// Strength and evenness from the inner points of the curves over the share of reads, local and remote.
fn mix(tier: &Tier, station: &Station) -> Option<(Mix, f64)> {
    let mut local = mixed(tier, station, Locality::Local);
    local.sort_by(|a, b| b.threads.total_cmp(&a.threads));
    let most = local.first()?;
    let few = local.last().filter(|least| least.threads <= FEW_THREADS && most.threads > FEW_THREADS);
    // Few threads, of which the tier could serve many, gain nothing from each other: what they lose, each access loses.
    let alone = few.map_or(0.0, |least| (least.own / most.level.max(f64::MIN_POSITIVE)).min(1.0));
    let alone = if alone < SAME { 0.0 } else { alone };
    let middle = match local.last() {
        _ if alone > 0.0 => FEW_THREADS / 4.0,
        Some(least) if least.threads < most.threads => middle(most, least),
        _ => most.threads / 2.0,
    };
    let strength = |level: f64, threads: f64| level / reached(threads, middle);
    let remote = mixed(tier, station, Locality::Remote);
    let remote = remote.iter().max_by(|a, b| a.threads.total_cmp(&b.threads));
    let here = strength(most.level, most.threads);
    let mix = Mix {
        strength: here,
        strength_remote: remote.map_or(here, |r| strength(r.level, r.threads)),
        middle,
        steepness: STEEPNESS,
        evenness: most.evenness,
        remote_weight: 1.0,
        alone,
    };
    Some((mix, most.error))
}

/// The part of the disturbance that so many ranks inside bring about.
fn reached(threads: f64, middle: f64) -> f64 {
    let r = (threads / middle).powi(STEEPNESS);
    r / (1.0 + r)
}

/// The ranks inside at which half of the disturbance is reached, from what it is with many and with few.
fn middle(most: &Mixed, least: &Mixed) -> f64 {
    let wanted = least.level / most.level.max(f64::MIN_POSITIVE);
    let ratio = |middle: f64| reached(least.threads, middle) / reached(most.threads, middle);
    // The ratio falls while the middle rises. Below a quarter of the few it cannot be told from all of it.
    let (mut low, mut high) = (least.threads / 4.0, most.threads / 2.0);
    for _ in 0..HALVINGS {
        let half = (low + high) / 2.0;
        match ratio(half) > wanted {
            true => low = half,
            false => high = half,
        }
    }
    (low + high) / 2.0
}

struct Mixed {
    /// k H: by how much the even mixture lowers the capacity with these threads.
    level: f64,
    /// By how much threads of an even mixture are slower than the ends of the curve say, less 1.
    own: f64,
    evenness: f64,
    threads: f64,
    error: f64,
}

/// Of each curve over the share of reads that has both ends.
fn mixed(tier: &Tier, station: &Station, locality: Locality) -> Vec<Mixed> {
    let fits = |c: &&Curve| {
        c.over == Axis::ReadsPercent
            && c.when.locality == locality
            && c.caveat.is_none()
            && c.points.len() > 2
    };
    tier.curves.iter().filter(fits).filter_map(|curve| mixed_by(curve, station)).collect()
}

fn mixed_by(curve: &Curve, station: &Station) -> Option<Mixed> {
    let rows = rows(curve);
    let (first, last) = (rows.first()?, rows.last()?);
    if first.x > 0.5 || last.x < 99.5 {
        return None;
    }
    let threads = curve.when.concurrency().map_or(1.0, f64::from);
    let inner: Vec<(f64, f64)> = rows[1..rows.len() - 1]
        .iter()
        .map(|row| {
            let reads = row.x / 100.0;
            (1.0 - reads, disturbance(station, threads, reads, row.y, (last.y, first.y)) - 1.0)
        })
        .collect();
    let even = |w: f64, p: f64| (4.0 * w * (1.0 - w)).powf(p);
    let mut best = (f64::INFINITY, 0.0, 1.0);
    for step in 0..100 {
        let p = 0.1 + 0.1 * f64::from(step);
        let (xy, xx) = inner
            .iter()
            .fold((0.0, 0.0), |(xy, xx), (w, k)| (xy + even(*w, p) * k, xx + even(*w, p) * even(*w, p)));
        let level = (xy / xx).max(0.0);
        let miss: f64 = inner.iter().map(|(w, k)| (level * even(*w, p) - k).powi(2)).sum();
        if miss < best.0 {
            best = (miss, level, p);
        }
    }
    let error = rows.iter().map(|row| row.error).fold(0.0, f64::max);
    let nearest = rows.iter().min_by(|a, b| (a.x - 50.0).abs().total_cmp(&(b.x - 50.0).abs()))?;
    let reads = nearest.x / 100.0;
    let own = (1.0 / (nearest.y * (reads / last.y + (1.0 - reads) / first.y)) - 1.0).max(0.0);
    Some(Mixed { level: best.1, own, evenness: best.2, threads, error })
}

#[cfg(test)]
mod tests {
    use super::super::station::{Class, Polling};
    use super::*;
    use forebay_profile::platforms::platform;

    fn class(reads: bool, ranks: f64) -> Class {
        Class { reads, ranks, think_s: 0.0, bytes: 262144.0, remote: 0.0, gate: f64::INFINITY }
    }

    #[test]
    fn ranks_that_only_move_bytes_get_what_the_curves_say() {
        let profile = platform("optane-gen1").unwrap();
        for (tier, most) in [("pmem", 0.06), ("dram", 0.12)] {
            let device = Device::of(&profile, tier, &OURS).unwrap();
            assert!(device.uncertainty.shape < most, "{tier}: {}", device.uncertainty.shape);
            let curves = profile.tier(tier).unwrap();
            for (reads, percent) in [(true, 100.0), (false, 0.0)] {
                let wanted = if reads { OURS.read } else { OURS.write };
                let picked = pick(curves, percent, wanted, OURS.bytes).unwrap();
                for row in &picked.rows {
                    let mut station = device.station.clone();
                    (station.read.size, station.write.size) = (Table::flat(1.0), Table::flat(1.0));
                    (station.read.latency_s, station.write.latency_s) = (0.0, 0.0);
                    let class = class(reads, row.x);
                    let share = match reads {
                        true => station.solve(None, Some(&class), Polling::default()).read,
                        false => station.solve(Some(&class), None, Polling::default()).write,
                    };
                    let ratio = share.objects_per_s * class.bytes / row.y;
                    assert!((ratio - 1.0).abs() < most, "{tier} {percent} {}: {ratio}", row.x);
                }
            }
        }
    }

    #[test]
    fn the_store_decides_how_far_remote_writes_fall() {
        let profile = platform("optane-gen1").unwrap();
        let ours = Device::of(&profile, "pmem", &OURS).unwrap().station;
        assert!((2.2..2.5).contains(&ours.write.remote.at(24.0)), "non-temporal stores");
        let flushed = Wanted { write: &[Access::StoreFlush], bytes: 4096.0, ..OURS };
        let flushed = Device::of(&profile, "pmem", &flushed).unwrap().station;
        assert!((1.2..1.4).contains(&flushed.write.remote.at(4.0)));
        assert!(flushed.write.remote.at(28.0) > 9.0, "cached stores with write-back");
    }

    #[test]
    fn what_a_profile_lacks_is_said() {
        let drive = platform("sata-ssd-c").unwrap();
        let device = Device::of(&drive, &drive.tiers[0].name, &OURS).unwrap();
        assert!(device.gaps.iter().any(|g| g.contains("remote reads")), "{:?}", device.gaps);
        let gen3 = platform("optane-gen3").unwrap();
        assert_eq!(Device::of(&gen3, "pmem", &OURS).unwrap_err().kind(), Kind::NotPossibleHere);
        assert_eq!(Device::of(&gen3, "floppy", &OURS).unwrap_err().kind(), Kind::UnknownComponent);
    }
}
