//! The results in fio's JSON: its structure, its names, its units, in its order.
//!
//! Numbers that fio derives from requests are derived in the same way; the classes `latency_ns`, `latency_us` and
//! `latency_ms` come from the histograms, so that a latency at the border of two classes may count to the other one.

use forebay_perf::load::{Flow, Latency, Report, Samples, DEPTHS};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::job_file::Word;
use super::settings::Settings;
use super::{Entry, Results};

/// A value whose objects keep the order of their keys.
pub enum Json {
    Whole(u64),
    Real(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Json::Whole(number) => to.serialize_u64(*number),
            Json::Real(number) => to.serialize_f64(*number),
            Json::Text(text) => to.serialize_str(text),
            Json::List(values) => to.collect_seq(values),
            Json::Object(pairs) => {
                let mut map = to.serialize_map(Some(pairs.len()))?;
                pairs.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

fn object<const N: usize>(pairs: [(&str, Json); N]) -> Json {
    Json::Object(pairs.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

fn text(value: impl Into<String>) -> Json {
    Json::Text(value.into())
}

/// The whole document; `classes` adds every class of every latency (fio's json+).
pub fn document(results: &Results<'_>, classes: bool) -> Json {
    let ms = results.ended_ns / 1_000_000;
    let mut pairs = vec![
        ("fio version".to_string(), text(concat!("forebay-", env!("CARGO_PKG_VERSION")))),
        ("timestamp".to_string(), Json::Whole(ms / 1000)),
        ("timestamp_ms".to_string(), Json::Whole(ms)),
        ("time".to_string(), text(super::text::date(ms / 1000))),
    ];
    if !results.global_words.is_empty() {
        pairs.push(("global options".to_string(), said(None, results.global_words)));
    }
    let jobs = results.entries.iter().map(|entry| job(entry, results, classes)).collect();
    pairs.push(("jobs".to_string(), Json::List(jobs)));
    if results.entries.iter().all(|entry| entry.settings.shown.devices) {
        pairs.push(("disk_util".to_string(), Json::List(results.devices.iter().map(device).collect())));
    }
    Json::Object(pairs)
}

/// The options as they were written.
fn said(name: Option<&str>, words: &[Word]) -> Json {
    let mut pairs: Vec<(String, Json)> = Vec::new();
    pairs.extend(name.map(|name| ("name".to_string(), text(name))));
    for word in words {
        let value = text(word.value.clone().unwrap_or_else(|| "1".to_string()));
        match pairs.iter_mut().find(|(key, _)| *key == word.name) {
            Some(earlier) => earlier.1 = value,
            None => pairs.push((word.name.clone(), value)),
        }
    }
    Json::Object(pairs)
}

fn job(entry: &Entry<'_>, results: &Results<'_>, classes: bool) -> Json {
    let (report, settings) = (&entry.report, entry.settings);
    let group = |flow: fn(&Report) -> &Flow| {
        let members = results.entries.iter().filter(|other| other.group == entry.group);
        members.map(|other| flow(&other.report).bytes_per_s()).sum::<f64>()
    };
    let mut pairs = vec![("jobname", text(entry.name)), ("groupid", Json::Whole(entry.group as u64))];
    pairs.push(("error", Json::Whole(report.failure.as_ref().map_or(0, |failure| failure.errno as u64))));
    pairs.push(("eta", Json::Whole(0)));
    pairs.push(("elapsed", Json::Whole(report.elapsed_ns.div_ceil(1_000_000_000).max(1))));
    pairs.push(("job options", said(Some(entry.name), entry.words)));
    if let Some(description) = &settings.description {
        pairs.push(("desc", text(description.as_str())));
    }
    pairs.push(("read", flow(&report.read, group(|r| &r.read), settings, classes)));
    pairs.push(("write", flow(&report.write, group(|r| &r.write), settings, classes)));
    pairs.push(("trim", flow(&Flow::default(), 0.0, settings, classes)));
    let flushes = latency(&report.flushes.latency, settings, settings.shown.of_completion, classes);
    pairs.push(("sync", object([("total_ios", Json::Whole(report.flushes.ios)), ("lat_ns", flushes)])));
    pairs.push(("job_runtime", Json::Whole(report.runtime_ns * u64::from(report.jobs.max(1)) / 1_000_000)));
    pairs.extend(usage(report));
    pairs.extend(depths(report));
    pairs.extend(latency_classes(report));
    pairs.push(("latency_depth", Json::Whole(u64::from(settings.job.depth))));
    pairs.push(("latency_target", Json::Whole(0)));
    pairs.push(("latency_percentile", Json::Real(100.0)));
    pairs.push(("latency_window", Json::Whole(0)));
    Json::Object(pairs.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

fn flow(flow: &Flow, group_bytes_per_s: f64, settings: &Settings, classes: bool) -> Json {
    let (bandwidth, iops) = (&flow.bandwidth, &flow.iops);
    let share = if group_bytes_per_s > 0.0 { bandwidth.mean() / group_bytes_per_s * 100.0 } else { 0.0 };
    let kib = |rate: f64| Json::Whole((rate / 1024.0) as u64);
    let count = |samples: &Samples| Json::Whole(samples.count() as u64);
    object([
        ("io_bytes", Json::Whole(flow.bytes)),
        ("io_kbytes", Json::Whole(flow.bytes >> 10)),
        ("bw_bytes", Json::Whole(flow.bytes_per_s() as u64)),
        ("bw", kib(flow.bytes_per_s())),
        ("iops", Json::Real(flow.ios_per_s())),
        ("runtime", Json::Whole(flow.runtime_ns / 1_000_000)),
        ("total_ios", Json::Whole(flow.ios)),
        ("short_ios", Json::Whole(flow.short_ios)),
        ("drop_ios", Json::Whole(0)),
        ("slat_ns", latency(&flow.submission, settings, settings.shown.of_submission, classes)),
        ("clat_ns", latency(&flow.completion, settings, settings.shown.of_completion, classes)),
        ("lat_ns", latency(&flow.total, settings, settings.shown.of_total, classes)),
        ("bw_min", kib(bandwidth.min())),
        ("bw_max", kib(bandwidth.max())),
        ("bw_agg", Json::Real(share.min(100.0))),
        ("bw_mean", Json::Real(bandwidth.mean() / 1024.0)),
        ("bw_dev", Json::Real(bandwidth.deviation() / 1024.0)),
        ("bw_samples", count(bandwidth)),
        ("iops_min", Json::Whole(iops.min() as u64)),
        ("iops_max", Json::Whole(iops.max() as u64)),
        ("iops_mean", Json::Real(iops.mean())),
        ("iops_stddev", Json::Real(iops.deviation())),
        ("iops_samples", count(iops)),
    ])
}

fn latency(latency: &Latency, settings: &Settings, percentiles: bool, classes: bool) -> Json {
    let mut pairs = vec![
        ("min".to_string(), Json::Whole(latency.min_ns())),
        ("max".to_string(), Json::Whole(latency.max_ns())),
        ("mean".to_string(), Json::Real(latency.mean_ns())),
        ("stddev".to_string(), Json::Real(latency.deviation_ns())),
        ("N".to_string(), Json::Whole(latency.count())),
    ];
    if percentiles && latency.count() > 0 {
        let one = |percent: &f64| (format!("{percent:.6}"), Json::Whole(latency.percentile_ns(*percent)));
        pairs.push((
            "percentile".to_string(),
            Json::Object(settings.shown.percentiles.iter().map(one).collect()),
        ));
        if classes {
            let bins = latency.classes().map(|(ns, count)| (ns.to_string(), Json::Whole(count)));
            pairs.push(("bins".to_string(), Json::Object(bins.collect())));
        }
    }
    Json::Object(pairs)
}

/// Processor time as a share of the runtime of all its jobs together.
fn usage(report: &Report) -> [(&'static str, Json); 5] {
    let [user, system] = super::text::processor_percent(report);
    let usage = report.usage;
    [
        ("usr_cpu", Json::Real(user)),
        ("sys_cpu", Json::Real(system)),
        ("ctx", Json::Whole(usage.waits + usage.preemptions)),
        ("majf", Json::Whole(usage.major_faults)),
        ("minf", Json::Whole(usage.minor_faults)),
    ]
}

fn depths(report: &Report) -> [(&'static str, Json); 3] {
    let share =
        |count: u64, of: u64| Json::Real(if of == 0 { 0.0 } else { count as f64 * 100.0 / of as f64 });
    let names = |name: usize| if name < 6 { DEPTHS[name].to_string() } else { ">=64".to_string() };
    let depths = &report.depths;
    let ios = report.read.ios + report.write.ios;
    let level = (0..7).map(|at| (names(at), share(depths.under_way[at], ios))).collect();
    let batches = |counts: &[u64; 7], of: u64| {
        let keys = ["0", "4", "8", "16", "32", "64", ">=64"];
        Json::Object(
            keys.iter().zip(counts).map(|(key, count)| (key.to_string(), share(*count, of))).collect(),
        )
    };
    [
        ("iodepth_level", Json::Object(level)),
        ("iodepth_submit", batches(&depths.submit, depths.submits)),
        ("iodepth_complete", batches(&depths.complete, depths.completes)),
    ]
}

/// Bounds of the classes, in each of the three units.
const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Shares of requests by completion latency: below 1 us, below 1 ms, and above.
pub fn latency_shares(report: &Report) -> [Vec<(String, f64)>; 3] {
    let flows = [&report.read.completion, &report.write.completion];
    let all: u64 = flows.iter().map(|latency| latency.count()).sum();
    let share = |from: u64, to: u64| {
        let inside =
            flows.iter().flat_map(|latency| latency.classes()).filter(|(ns, _)| (from..to).contains(ns));
        let count: u64 = inside.map(|(_, count)| count).sum();
        if all == 0 {
            0.0
        } else {
            count as f64 * 100.0 / all as f64
        }
    };
    let mut from = 0;
    [1, 1_000, 1_000_000].map(|unit| {
        let mut shares: Vec<(String, f64)> = Vec::new();
        for bound in BOUNDS {
            shares.push((bound.to_string(), share(from, bound * unit)));
            from = bound * unit;
        }
        if unit == 1_000_000 {
            shares.push(("2000".into(), share(from, 2 * from)));
            shares.push((">=2000".into(), share(2 * from, u64::MAX)));
        }
        shares
    })
}

fn latency_classes(report: &Report) -> Vec<(&'static str, Json)> {
    let names = ["latency_ns", "latency_us", "latency_ms"];
    let value = |shares: Vec<(String, f64)>| {
        Json::Object(shares.into_iter().map(|(key, share)| (key, Json::Real(share))).collect())
    };
    names.into_iter().zip(latency_shares(report).map(value)).collect()
}

fn device(device: &forebay_perf::load::DeviceUse) -> Json {
    object([
        ("name", text(device.name.as_str())),
        ("read_ios", Json::Whole(device.ios[0])),
        ("write_ios", Json::Whole(device.ios[1])),
        ("read_merges", Json::Whole(device.merges[0])),
        ("write_merges", Json::Whole(device.merges[1])),
        ("read_ticks", Json::Whole(device.ticks_ms[0])),
        ("write_ticks", Json::Whole(device.ticks_ms[1])),
        ("in_queue", Json::Whole(device.in_queue_ms)),
        ("util", Json::Real(super::text::device_percent(device))),
    ])
}
