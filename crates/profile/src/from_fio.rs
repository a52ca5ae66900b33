//! A profile from what `fio --output-format=json` printed.
//!
//! Guarantees: each job is a point of a curve and a latency, with the job's own conditions; what cannot be told from
//! the file is an error and not a guess. Error bars are fio's: of bandwidths the standard deviation over time, of
//! quantiles the width of its buckets.

use std::collections::BTreeMap;

use forebay_terms::{Error, Horizon, Kind, Result, TierKind};
use serde::Deserialize;

use super::{
    date, Access, Axis, Citation, Conditions, Curve, Estimate, Latency, Load, Operation, Pattern, Point,
    Profile, Provenance, Source, Spread, Tier, Unit,
};

/// Key of the one source.
const KEY: &str = "fio";

/// Half of the widest bucket of fio's histograms, which have 64 to a power of two.
const BUCKET: f64 = 1.0 / 128.0;

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default)]
    timestamp: u64,
    #[serde(rename = "global options", default)]
    global: BTreeMap<String, String>,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    error: i64,
    #[serde(rename = "job options", default)]
    options: BTreeMap<String, String>,
    read: Side,
    write: Side,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Side {
    total_ios: u64,
    bw_bytes: f64,
    bw_dev: f64,
    bw_samples: u64,
    clat_ns: Times,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Times {
    max: f64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    percentile: BTreeMap<String, f64>,
}

/// One job with its conditions.
struct Taken {
    tier: String,
    kind: TierKind,
    when: Conditions,
    bandwidth: Estimate,
    caveat: Option<String>,
    latencies: Vec<Latency>,
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(Kind::Damaged, message)
}

/// Whether a text looks like fio's document.
pub fn is_fio(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"fio version\"")
}

/// Makes a profile of this name.
///
/// # Errors
/// [`Kind::Damaged`]: not fio's document, a job that failed or whose conditions it does not say; the message names the
/// job.
pub fn profile(name: &str, text: &str) -> Result<Profile> {
    let document: Document = serde_json::from_str(text)
        .map_err(|e| refused(format!("not what fio --output-format=json prints: {e}")))?;
    let mut out = Profile::new(name, date::of_unix(document.timestamp));
    out.title = Some(format!("jobs of {}", document.version));
    let source = Source {
        kind: Provenance::Measured,
        citation: None,
        method: Some(document.version.clone()),
        repetitions: Some(1),
        spread: Spread::OverTime,
        note: Some("of quantiles the bar is the width of fio's buckets".into()),
    };
    out.sources.insert(KEY.into(), source);
    for (index, job) in document.jobs.iter().enumerate() {
        if document.jobs[..index].iter().any(|other| other.jobname == job.jobname) {
            return Err(refused(format!("two results are of the job {}", job.jobname))
                .hint("run fio with --group_reporting"));
        }
        let taken = taken(job, &document.global).map_err(|e| e.with("job", &job.jobname))?;
        add(&mut out, taken);
    }
    if out.tiers.is_empty() {
        return Err(refused("no job moved a byte"));
    }
    order(&mut out);
    out.check()?;
    Ok(out)
}

fn taken(job: &Job, global: &BTreeMap<String, String>) -> Result<Taken> {
    if job.error != 0 {
        return Err(refused("the job failed").with("error", job.error));
    }
    let option = |key: &str| job.options.get(key).or_else(|| global.get(key)).map(String::as_str);
    let flag = |key: &str| option(key).is_some_and(|v| v != "0" && v != "false");
    let number = |key: &str| {
        let text = option(key).unwrap_or("1");
        text.parse::<u32>()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| refused(format!("{key} = {text} is no number")))
    };
    let rw = option("rw").or_else(|| option("readwrite")).unwrap_or("read");
    let engine = option("ioengine").unwrap_or("psync");
    let access = match engine {
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Some(Access::Sync),
        "io_uring" => Some(Access::IoUring),
        "libaio" => Some(Access::Libaio),
        "posixaio" => Some(Access::Threads),
        "mmap" => Some(Access::Mmap),
        _ => None,
    };
    let kind = if flag("direct") { TierKind::Direct } else { TierKind::File };
    let place = option("filename").or_else(|| option("directory")).unwrap_or("fio");
    let word: String = place.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
    let (read, write) = (&job.read, &job.write);
    let all = (read.total_ios + write.total_ios) as f64;
    if all == 0.0 {
        return Err(refused("the job moved nothing"));
    }
    let horizon = match (flag("fsync") || flag("fdatasync") || flag("sync"), flag("end_fsync")) {
        (true, _) => Horizon::Write,
        (false, true) => Horizon::Epoch,
        _ => Horizon::None,
    };
    // Mixes are named by what was asked for; what was done differs by chance.
    let reads_percent = match (read.total_ios, write.total_ios) {
        (_, 0) => 100.0,
        (0, _) => 0.0,
        _ => option("rwmixread").and_then(|t| t.parse().ok()).unwrap_or(50.0),
    };
    let when = Conditions {
        pattern: Some(if rw.starts_with("rand") { Pattern::Random } else { Pattern::Sequential }),
        reads_percent: Some(reads_percent),
        access,
        through: access.is_none().then(|| format!("fio {engine}")),
        bytes: Some(block(option("bs").or_else(|| option("blocksize")).unwrap_or("4k"))?),
        threads: Some(number("numjobs")?),
        depth: Some(if access == Some(Access::Sync) { 1 } else { number("iodepth")? }),
        horizon,
        ..Conditions::default()
    };
    // fio's deviation is in KiB/s.
    let busy = [read, write].into_iter().filter(|side| side.total_ios > 0);
    let deviation = busy.map(|side| side.bw_dev).sum::<f64>() * 1024.0;
    let few = read.bw_samples.max(write.bw_samples) < 2;
    let latencies = [(Operation::Read, read), (Operation::Write, write)];
    Ok(Taken {
        tier: format!("{kind}:{word}"),
        kind,
        bandwidth: Estimate::new(read.bw_bytes + write.bw_bytes, deviation),
        caveat: few.then(|| "too short for an error bar: fio sampled its bandwidth once".into()),
        latencies: latencies.into_iter().filter_map(|(op, side)| latency(op, side, &when)).collect(),
        when,
    })
}

fn latency(operation: Operation, side: &Side, when: &Conditions) -> Option<Latency> {
    let times = &side.clat_ns;
    if times.count == 0 {
        return None;
    }
    let load = if when.concurrency() == Some(1) { Load::Idle } else { Load::Loaded };
    let mut out = Latency::new(operation, load, when.clone(), Citation::of(KEY));
    out.note = Some("completion latency".into());
    let root = (times.count as f64).sqrt();
    out.samples = Some(times.count);
    out.mean_ns = Some(Estimate::new(times.mean, times.stddev / root));
    out.deviation_ns = Some(Estimate::new(times.stddev, times.stddev / (2.0 * times.count as f64).sqrt()));
    let at = |key: &str| times.percentile.get(key).map(|ns| Estimate::new(*ns, ns * BUCKET));
    (out.p50_ns, out.p90_ns) = (at("50.000000"), at("90.000000"));
    (out.p99_ns, out.p999_ns) = (at("99.000000"), at("99.900000"));
    // A quantile is the end of its bucket, which may lie behind the longest time.
    let longest = [out.p50_ns, out.p90_ns, out.p99_ns, out.p999_ns].into_iter().flatten();
    out.max_ns = Some(longest.map(|e| e.value).fold(times.max, f64::max).ceil() as u64);
    Some(out)
}

/// fio's sizes: `4k`, `1m`, `4096`; its units are powers of two.
fn block(text: &str) -> Result<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let factor = match lower[digits..].trim_end_matches('b').trim_end_matches('i') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 0,
    };
    let bytes = lower[..digits].parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    bytes.filter(|n| *n > 0).ok_or_else(|| {
        refused(format!("bs = {text} is not one size")).hint("each job needs one size for reads and writes")
    })
}

/// Puts a job onto the curve of its conditions.
fn add(out: &mut Profile, taken: Taken) {
    let index = out.tiers.iter().position(|t| t.name == taken.tier).unwrap_or_else(|| {
        out.tiers.push(Tier::new(&taken.tier, taken.kind));
        out.tiers.len() - 1
    });
    let tier = &mut out.tiers[index];
    tier.latencies.extend(taken.latencies);
    let point = |x: u32| Point::new(f64::from(x), taken.bandwidth);
    let (threads, depth) = (taken.when.threads.unwrap_or(1), taken.when.depth.unwrap_or(1));
    let over_threads = Conditions { threads: None, ..taken.when.clone() };
    let over_depth = Conditions { depth: None, ..taken.when };
    // A curve of one point may still become one over the other axis.
    for curve in &mut tier.curves {
        let alone = curve.points.len() == 1 && curve.caveat == taken.caveat;
        if curve.over == Axis::Threads && curve.when == over_threads && curve.caveat == taken.caveat {
            return curve.points.push(point(threads));
        }
        if curve.over == Axis::Depth && curve.when == over_depth && curve.caveat == taken.caveat {
            return curve.points.push(point(depth));
        }
        let first = curve.points.first().map_or(0, |p| p.x as u32);
        let as_depth = Conditions { threads: Some(first), depth: None, ..curve.when.clone() };
        if alone && curve.over == Axis::Threads && as_depth == over_depth {
            let before = curve.when.depth.unwrap_or(1);
            (curve.over, curve.when) = (Axis::Depth, over_depth);
            curve.points[0].x = f64::from(before);
            return curve.points.push(point(depth));
        }
    }
    tier.curves.push(Curve {
        when: over_threads,
        over: Axis::Threads,
        unit: Unit::Bytes,
        source: Citation::of(KEY),
        caveat: taken.caveat.clone(),
        points: vec![point(threads)],
    });
}

/// Points rise; of two jobs with the same conditions both stay, on curves of their own.
fn order(profile: &mut Profile) {
    for tier in &mut profile.tiers {
        let mut twins = Vec::new();
        for curve in &mut tier.curves {
            curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
            while let Some(at) = curve.points.windows(2).position(|w| w[0].x == w[1].x) {
                let point = curve.points.remove(at + 1);
                twins.push(Curve { points: vec![point], ..curve.clone() });
            }
        }
        tier.curves.extend(twins);
    }
}

#[cfg(test)]
#[path = "from_fio_tests.rs"]
mod tests;
