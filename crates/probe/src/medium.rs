//! From a tier of a profile to the medium that the throttle makes of it, divided by k.
//!
//! Pure. A [`Medium`] holds what the profile says and nothing more: where it says nothing of sizes, mixes, distance or
//! persistence, these have no effect, and a note says so. Bandwidths are divided by k, delays take k times as long: the
//! whole medium is slower, not only its plateau.
//!
//! # Which numbers
//! - *Bandwidth* of a direction: the local curve over threads or depth; of several the one with the accesses that
//!   Forebay makes (loads, non-temporal stores, before others), sequential before random, the one with most points. Its
//!   size of an operation is the *base*. Without such a curve the highest bandwidth that a source states, level.
//! - *Granularity*: the curve over sizes, relative to its own value at the base, because publications take it with
//!   another number of threads.
//! - *Mix*: a factor over the share of operations inside that go the other way, such that readers and writers in the
//!   published proportion, each with one operation after the other, get the published bandwidth. What is known of one
//!   share of reads stands for the same share of writes too; where both are published, their geometric mean.
//! - *Remote*: remote over local of two curves that differ in nothing else; else one published remote number beside
//!   what the local curve has there.
//! - *Latency* only where the bandwidth is level: a curve over threads holds what single operations wait.

use std::str::FromStr;

use forebay_tier::adapter::throttle::{self, Curves};
use forebay_tier::{Error, Horizon, Kind, Result};

use forebay_profile::{Access, Axis, Conditions, Curve, Load, Locality, Operation, Pattern, Profile, Tier};

/// What to emulate, as people write it: `PROFILE`, `PROFILE:TIER`, each with `/K` behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// A platform, a saved profile or a file.
    pub profile: String,
    /// One of its tiers; all when absent.
    pub tier: Option<String>,
    /// By how much it is slower; chosen for this machine when absent.
    pub k: Option<f64>,
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Wanted> {
        let wrong = || {
            Error::new(Kind::Usage, format!("`{text}` is not a medium to emulate"))
                .hint("PLATFORM[:TIER][/K] with K of at least 1, as in optane-gen1:pmem/64")
        };
        let (place, k) = match text.rsplit_once('/').map(|(place, k)| (place, k.parse::<f64>())) {
            Some((place, Ok(k))) => (place, Some(k)),
            _ => (text, None),
        };
        let (profile, tier) = match place.split_once(':') {
            Some((profile, tier)) => (profile, Some(tier)),
            None => (place, None),
        };
        let empty = profile.is_empty() || tier == Some("");
        if empty || k.is_some_and(|k| !k.is_finite() || k < 1.0) {
            return Err(wrong());
        }
        Ok(Wanted { profile: profile.into(), tier: tier.map(str::to_owned), k })
    }
}

impl Wanted {
    /// The tiers that are meant, each with its medium. Of all tiers those that no curve describes are left out.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`]: no such tier; [`Kind::Usage`]: nothing is known of how fast it is.
    pub fn media<'a>(&self, profile: &'a Profile) -> Result<Vec<(&'a Tier, Medium)>> {
        let names = || profile.tiers.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(name) = &self.tier {
            let tier = profile.tier(name).ok_or_else(|| {
                Error::new(Kind::UnknownComponent, format!("{} has no tier {name}", profile.name))
                    .hint(format!("its tiers: {}", names()))
            })?;
            return Ok(vec![(tier, Medium::of(tier)?)]);
        }
        let known = profile.tiers.iter().filter_map(|tier| Some((tier, Medium::of(tier).ok()?)));
        let known: Vec<_> = known.collect();
        match known.is_empty() {
            true => Err(Error::new(
                Kind::Usage,
                format!("profile {} has no bandwidth for any tier", profile.name),
            )),
            false => Ok(known),
        }
    }
}

/// A tier as the throttle can be it.
#[derive(Clone, Debug, PartialEq)]
pub struct Medium {
    /// The curves at k = 1.
    pub curves: Curves,
    /// Bytes of one operation for which the bandwidths hold: of reads, of writes.
    pub base_bytes: [u64; 2],
    /// The shares of reads that are known, percent, rising.
    pub mixes: Vec<f64>,
    /// The accesses that the bandwidths are of: of reads, of writes.
    pub access: [Option<Access>; 2],
    /// What a user must know of it.
    pub notes: Vec<String>,
}

const READ: usize = 0;
const WRITE: usize = 1;
const SHARES: [f64; 2] = [100.0, 0.0];
const WORDS: [&str; 2] = ["reads", "writes"];

/// One direction: bandwidth, granularity, remote.
#[derive(Default)]
struct Way {
    bandwidth: throttle::Curve,
    granularity: throttle::Curve,
    remote: throttle::Curve,
    base: Option<u64>,
    access: Option<Access>,
    level: bool,
}

impl Medium {
    /// The medium that a tier is.
    ///
    /// # Errors
    /// [`Kind::Usage`]: the profile says neither of reads nor of writes how fast they are.
    pub fn of(tier: &Tier) -> Result<Medium> {
        let mut notes = Vec::new();
        let ways = [READ, WRITE].map(|way| way_of(tier, way, &mut notes));
        if ways.iter().all(|way| way.bandwidth.0.is_empty()) {
            return Err(Error::new(
                Kind::Usage,
                format!("the profile has no bandwidth for tier {}", tier.name),
            )
            .hint("a tier to emulate has a curve of bandwidth, or a highest one"));
        }
        let mut medium = Medium {
            base_bytes: [READ, WRITE].map(|way| ways[way].base.unwrap_or(4096)),
            access: [READ, WRITE].map(|way| ways[way].access),
            curves: Curves::default(),
            mixes: Vec::new(),
            notes,
        };
        let [read, write] = ways;
        medium.curves = Curves {
            read_latency_ns: if read.level { idle_ns(tier, Operation::Read) } else { 0 },
            write_latency_ns: if write.level { idle_ns(tier, Operation::Write) } else { 0 },
            persist_latency_ns: idle_ns(tier, Operation::Persist),
            read_bandwidth: read.bandwidth,
            write_bandwidth: write.bandwidth,
            read_granularity: read.granularity,
            write_granularity: write.granularity,
            read_remote: read.remote,
            write_remote: write.remote,
            ..Curves::default()
        };
        medium.set_mix(tier);
        medium.curves.check()?;
        Ok(medium)
    }

    /// The curves of a medium that is k times as slow.
    pub fn slowed(&self, k: f64) -> Curves {
        let divided =
            |curve: &throttle::Curve| throttle::Curve(curve.0.iter().map(|(x, y)| (*x, y / k)).collect());
        let longer = |ns: u64| (ns as f64 * k).round() as u64;
        let c = &self.curves;
        Curves {
            read_bandwidth: divided(&c.read_bandwidth),
            write_bandwidth: divided(&c.write_bandwidth),
            read_latency_ns: longer(c.read_latency_ns),
            write_latency_ns: longer(c.write_latency_ns),
            persist_latency_ns: longer(c.persist_latency_ns),
            remote_latency_ns: longer(c.remote_latency_ns),
            ..c.clone()
        }
    }

    /// Bytes per second of one direction (0 reads, 1 writes) with `inside` operations of `bytes`, none of them of the
    /// other direction, at k = 1.
    fn alone(&self, way: usize, inside: f64, bytes: u64, locality: Locality) -> Option<f64> {
        let c = &self.curves;
        let (bandwidth, granularity, remote) = match way {
            READ => (&c.read_bandwidth, &c.read_granularity, &c.read_remote),
            _ => (&c.write_bandwidth, &c.write_granularity, &c.write_remote),
        };
        let mut rate = bandwidth.at(inside)? * granularity.at_size(bytes).unwrap_or(1.0);
        if locality == Locality::Remote {
            rate *= remote.at(inside).unwrap_or(1.0);
        }
        let wait_ns = if way == READ { c.read_latency_ns } else { c.write_latency_ns };
        let alone_ns = wait_ns as f64 + bytes as f64 * 1e9 / rate;
        Some(rate.min(inside * bytes as f64 * 1e9 / alone_ns))
    }

    /// Bytes per second that the throttle gives under conditions, at k = 1: threads that never pause, of which the
    /// share of reads are readers. None where a direction is not known, and of one side beside another.
    pub fn rate(&self, when: &Conditions) -> Option<f64> {
        if when.beside.is_some() {
            return None;
        }
        let reads = when.reads_percent.unwrap_or(100.0) / 100.0;
        let inside = when.concurrency().unwrap_or(1).max(1);
        let of = |way: usize, share: f64| {
            if share == 0.0 {
                return Some(0.0);
            }
            let bytes = when.bytes.unwrap_or(self.base_bytes[way]);
            let rate = self.alone(way, f64::from(inside), bytes, when.locality)?;
            Some(share / (rate * self.curves.mix.at(1.0 - share).unwrap_or(1.0)))
        };
        Some(1.0 / (of(READ, reads)? + of(WRITE, 1.0 - reads)?))
    }

    /// Sets the mix to what the tier's curve over shares says.
    fn set_mix(&mut self, tier: &Tier) {
        let fits = |c: &&Curve| {
            c.over == Axis::ReadsPercent
                && c.when.locality == Locality::Local
                && c.unit.bytes().or(c.when.bytes.map(|b| b as f64)).is_some()
                && c.caveat.is_none()
        };
        let Some(curve) = tier.curves.iter().filter(fits).max_by_key(|c| c.points.len()) else {
            self.notes.push("no data on mixed reads and writes: they share the time".into());
            return;
        };
        let all = points_of(curve);
        let threads = curve.when.concurrency().unwrap_or_else(|| self.busiest());
        let end = |share: f64, way: usize| {
            let own = all.iter().find(|(x, _)| *x == share).map(|(_, y)| *y);
            own.or_else(|| self.alone(way, f64::from(threads), self.base_bytes[way], Locality::Local))
        };
        let (Some(read), Some(write)) = (end(100.0, READ), end(0.0, WRITE)) else { return };
        let mut factors = vec![(0.0, 1.0)];
        for (share, rate) in all.iter().map(|(x, y)| (x / 100.0, *y)).filter(|(x, _)| *x > 0.0 && *x < 1.0) {
            let factor = rate * (share / read + (1.0 - share) / write);
            for x in [share, 1.0 - share] {
                match factors.iter_mut().find(|(other, _): &&mut (f64, f64)| (*other - x).abs() < 1e-6) {
                    Some((_, known)) => *known = (*known * factor).sqrt(),
                    None => factors.push((x, factor)),
                }
            }
        }
        if factors.len() > 1 {
            factors.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.curves.mix = throttle::Curve(factors);
            self.mixes = all.iter().map(|(x, _)| *x).collect();
        }
    }

    /// The fewest operations inside with which reads (or else writes) are at their fastest.
    pub fn busiest(&self) -> u32 {
        let c = &self.curves;
        let curve = if c.read_bandwidth.0.is_empty() { &c.write_bandwidth } else { &c.read_bandwidth };
        let top = curve.0.iter().copied().reduce(|best, p| if p.1 > best.1 { p } else { best });
        top.map_or(1, |(x, _)| x.max(1.0) as u32)
    }

    /// Bytes per second of the fastest that it does, at k = 1.
    pub fn fastest(&self) -> f64 {
        let c = &self.curves;
        let most = |curve: &throttle::Curve| curve.0.iter().map(|(_, y)| *y).fold(0.0, f64::max);
        let both = [(&c.read_bandwidth, &c.read_granularity), (&c.write_bandwidth, &c.write_granularity)];
        both.into_iter()
            .map(|(b, g)| most(b) * if g.0.is_empty() { 1.0 } else { most(g) })
            .fold(0.0, f64::max)
    }
}

/// How well accesses suit what Forebay does: loads, and non-temporal stores.
fn suits(access: Option<Access>) -> u32 {
    match access {
        Some(Access::Load | Access::NtStore) => 4,
        None | Some(Access::LoadNtStore | Access::Copy | Access::IoUring | Access::Libaio) => 3,
        Some(Access::StoreFlush) => 1,
        Some(_) => 2,
    }
}

fn suitability(when: &Conditions, points: usize) -> (bool, u32, bool, usize, u64) {
    let ordered = when.pattern != Some(Pattern::Random);
    (when.horizon == Horizon::None, suits(when.access), ordered, points, when.bytes.unwrap_or(0))
}

/// x and bytes per second of every point of a curve; those over concurrency by operations inside.
fn points_of(curve: &Curve) -> Vec<(f64, f64)> {
    let one = |sample: forebay_profile::Sample<'_>| {
        let x = match curve.over {
            Axis::Threads | Axis::Depth => f64::from(sample.when.concurrency()?),
            Axis::Bytes => sample.when.bytes? as f64,
            Axis::ReadsPercent => sample.when.reads_percent?,
        };
        Some((x, sample.bandwidth()?.value)).filter(|(_, y)| *y > 0.0)
    };
    curve.samples().filter_map(one).collect()
}

fn way_of(tier: &Tier, way: usize, notes: &mut Vec<String>) -> Way {
    let mine = |c: &&Curve| {
        c.when.reads_percent == Some(SHARES[way]) && c.when.beside.is_none() && c.caveat.is_none()
    };
    let local = |c: &&Curve| mine(c) && c.when.locality == Locality::Local;
    let concurrent = |c: &&Curve| matches!(c.over, Axis::Threads | Axis::Depth);
    let best = |fits: &dyn Fn(&&Curve) -> bool| {
        let all = tier.curves.iter().filter(|c| fits(c) && !points_of(c).is_empty());
        all.max_by_key(|c| suitability(&c.when, c.points.len()))
    };
    let mut out = Way::default();
    let sizes = best(&|c| local(c) && c.over == Axis::Bytes);
    if let Some(curve) = best(&|c| local(c) && concurrent(c)) {
        out.bandwidth = throttle::Curve(points_of(curve));
        (out.base, out.access) = (curve.when.bytes, curve.when.access);
    } else if let Some((rate, when)) = stated(tier, way) {
        out.bandwidth = throttle::Curve(vec![(1.0, rate)]);
        (out.base, out.access, out.level) = (when.bytes, when.access, true);
        notes
            .push(format!("of {} only the highest bandwidth is known, for no number of threads", WORDS[way]));
    } else if let Some(curve) = sizes {
        let top = points_of(curve).into_iter().reduce(|a, b| if b.1 > a.1 { b } else { a });
        out.bandwidth = throttle::Curve(top.iter().map(|(_, y)| (1.0, *y)).collect());
        (out.base, out.access, out.level) = (top.map(|(x, _)| x as u64), curve.when.access, true);
        notes.push(format!("{} are known over sizes only, for no number of threads", WORDS[way]));
    } else {
        notes.push(format!("no data on {}: assumed to take no time", WORDS[way]));
        return out;
    }
    match sizes {
        Some(curve) => {
            let sizes = throttle::Curve(points_of(curve));
            let top = sizes.0.iter().map(|(_, y)| *y).fold(0.0, f64::max);
            let at_base = out.base.and_then(|base| sizes.at_size(base)).unwrap_or(top);
            out.granularity = throttle::Curve(sizes.0.iter().map(|(x, y)| (*x, y / at_base)).collect());
        }
        None => notes.push(format!("no data on the size of {}: assumed to have no effect", WORDS[way])),
    }
    out.remote = remote(tier, way, &out);
    if out.remote.0.is_empty() {
        notes.push(format!("no data on remote {}: assumed equal to local", WORDS[way]));
    }
    out
}

/// The highest bandwidth that a source states.
fn stated(tier: &Tier, way: usize) -> Option<(f64, &Conditions)> {
    let fits = tier
        .knees
        .iter()
        .filter(|k| k.when.reads_percent == Some(SHARES[way]) && k.when.locality == Locality::Local);
    let all = fits.filter_map(|k| {
        let factor = k.unit.bytes().or(k.when.bytes.map(|b| b as f64))?;
        Some((k.highest.value * factor, &k.when))
    });
    all.reduce(|a, b| if b.0 > a.0 { b } else { a })
}

/// Remote over local.
fn remote(tier: &Tier, way: usize, local: &Way) -> throttle::Curve {
    let far = || {
        let fits = |c: &&Curve| {
            c.when.reads_percent == Some(SHARES[way])
                && c.when.locality == Locality::Remote
                && c.when.beside.is_none()
                && c.caveat.is_none()
        };
        tier.curves.iter().filter(fits)
    };
    let near = |c: &Curve| {
        let when = Conditions { locality: Locality::Local, from: None, ..c.when.clone() };
        let same = |o: &&Curve| {
            Conditions { from: None, ..o.when.clone() } == when && o.over == c.over && o.caveat.is_none()
        };
        tier.curves.iter().find(same)
    };
    let pairs = far().filter(|c| matches!(c.over, Axis::Threads | Axis::Depth));
    let pair =
        pairs.filter_map(|c| Some((c, near(c)?))).max_by_key(|(c, _)| suitability(&c.when, c.points.len()));
    if let Some((far, near)) = pair {
        let near = throttle::Curve(points_of(near));
        let factor = |(x, y): (f64, f64)| Some((x, (y / near.at(x)?).min(1.0)));
        return throttle::Curve(points_of(far).into_iter().filter_map(factor).collect());
    }
    // One number, of the largest operations, beside what is known of local ones there.
    let samples = far().flat_map(Curve::samples).filter_map(|sample| {
        let (inside, bytes) = (f64::from(sample.when.concurrency()?), sample.when.bytes?);
        let sizes = local.granularity.at_size(bytes).unwrap_or(1.0);
        let here = local.bandwidth.at(inside)? * sizes;
        let ordered = sample.when.pattern != Some(Pattern::Random);
        Some((ordered, bytes, inside, (sample.bandwidth()?.value / here).min(1.0)))
    });
    let one = samples.max_by_key(|(ordered, bytes, _, _)| (*ordered, *bytes));
    throttle::Curve(one.map(|(_, _, inside, factor)| (inside, factor)).into_iter().collect())
}

/// What a single operation takes when nothing else goes on, ns; 0 where it is not known.
fn idle_ns(tier: &Tier, operation: Operation) -> u64 {
    let fits = |l: &&forebay_profile::Latency| {
        l.operation == operation && l.load == Load::Idle && l.when.locality == Locality::Local
    };
    let known = tier.latencies.iter().filter(fits).filter_map(|l| {
        let time = l.mean_ns.or(l.p50_ns)?.value;
        Some((suitability(&l.when, 0), time))
    });
    known.max_by_key(|(suits, _)| *suits).map_or(0, |(_, ns)| ns.round() as u64)
}

#[cfg(test)]
#[path = "medium_tests.rs"]
mod tests;
