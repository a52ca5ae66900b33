//! The results as text, in the order and the words of fio's own report, so that eyes and scripts find what they know.
//! Everything in it was measured.

use std::fmt::Write;

use forebay_perf::load::{DeviceUse, Flow, Latency, Report};

use super::json::latency_shares;
use super::{Entry, Results};

/// The whole report.
pub fn text(results: &Results<'_>) -> String {
    let mut text = format!("forebay-{}, measured\n", env!("CARGO_PKG_VERSION"));
    let date = date(results.ended_ns / 1_000_000_000);
    for entry in &results.entries {
        job(&mut text, entry, &date).expect("text takes all");
    }
    groups(&mut text, results).expect("text takes all");
    if !results.devices.is_empty() {
        text += "\nDisk stats (read/write):\n";
    }
    for device in &results.devices {
        let [(read, write), (merged, written), (ticks, write_ticks)] =
            [device.ios, device.merges, device.ticks_ms].map(|[a, b]| (a, b));
        let (name, queue, busy) = (&device.name, device.in_queue_ms, device_percent(device));
        let _ = writeln!(
            text,
            "  {name}: ios={read}/{write}, merge={merged}/{written}, ticks={ticks}/{write_ticks}, in_queue={queue}, \
             util={busy:.2}%"
        );
    }
    text
}

fn job(to: &mut String, entry: &Entry<'_>, date: &str) -> std::fmt::Result {
    let report = &entry.report;
    let error = report.failure.as_ref().map_or(0, |failure| failure.errno);
    let (name, group, jobs) = (entry.name, entry.group, report.jobs);
    writeln!(
        to,
        "\n{name}: (groupid={group}, jobs={jobs}): err={error:2}: pid={}: {date}",
        std::process::id()
    )?;
    if let Some(description) = &entry.settings.description {
        writeln!(to, "  Description  : [{description}]")?;
    }
    flow(to, "read", &report.read, entry)?;
    flow(to, "write", &report.write, entry)?;
    for (unit, shares) in ["nsec", "usec", "msec"].iter().zip(latency_shares(report)) {
        let seen: Vec<String> = shares
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(bound, share)| format!("{bound}={:.2}%", share.max(0.01)))
            .collect();
        for part in seen.chunks(5) {
            writeln!(to, "  lat ({unit})   : {}", part.join(", "))?;
        }
    }
    if report.flushes.ios > 0 {
        writeln!(to, "  fsync/fdatasync/sync_file_range:")?;
        latency(to, "sync", &report.flushes.latency)?;
        percentiles(to, "sync", &report.flushes.latency, &entry.settings.shown.percentiles)?;
    }
    counts(to, report, entry)
}

fn flow(to: &mut String, name: &str, flow: &Flow, entry: &Entry<'_>) -> std::fmt::Result {
    if flow.ios == 0 {
        return Ok(());
    }
    let (iops, rate) = (plain(flow.ios_per_s()), flow.bytes_per_s());
    let (bytes, ms) = (bytes(flow.bytes), flow.runtime_ns / 1_000_000);
    writeln!(to, "  {name}: IOPS={iops}, BW={}/s ({}/s)({bytes}/{ms}msec)", binary(rate), decimal(rate))?;
    let settings = entry.settings;
    for (name, values, wanted) in [
        ("slat", &flow.submission, settings.shown.of_submission),
        ("clat", &flow.completion, settings.shown.of_completion),
        ("lat", &flow.total, settings.shown.of_total),
    ] {
        latency(to, name, values)?;
        if wanted {
            percentiles(to, name, values, &settings.shown.percentiles)?;
        }
    }
    let (bw, ops) = (&flow.bandwidth, &flow.iops);
    let kib = |rate: f64| rate / 1024.0;
    writeln!(
        to,
        "   bw (  KiB/s): min={:5.0}, max={:5.0}, avg={:.2}, stdev={:.2}, samples={}",
        kib(bw.min()),
        kib(bw.max()),
        kib(bw.mean()),
        kib(bw.deviation()),
        bw.count()
    )?;
    writeln!(
        to,
        "   iops        : min={:5.0}, max={:5.0}, avg={:.2}, stdev={:.2}, samples={}",
        ops.min(),
        ops.max(),
        ops.mean(),
        ops.deviation(),
        ops.count()
    )
}

/// The unit that shows latencies best, and its nanoseconds.
fn unit(latency: &Latency) -> (&'static str, f64) {
    let above = |least: f64| {
        latency.min_ns() as f64 > 2.0 * least
            && latency.max_ns() as f64 > 99.999 * least
            && latency.deviation_ns() > least
    };
    match (above(1e6), above(1e3)) {
        (true, _) => ("msec", 1e6),
        (false, true) => ("usec", 1e3),
        (false, false) => ("nsec", 1.0),
    }
}

fn latency(to: &mut String, name: &str, latency: &Latency) -> std::fmt::Result {
    if latency.count() == 0 {
        return Ok(());
    }
    let (unit, ns) = unit(latency);
    let (min, max) = (latency.min_ns() as f64 / ns, latency.max_ns() as f64 / ns);
    let (mean, deviation) = (latency.mean_ns() / ns, latency.deviation_ns() / ns);
    writeln!(to, "    {name:>4} ({unit}): min={min:.0}, max={max:.0}, avg={mean:.2}, stdev={deviation:.2}")
}

fn percentiles(to: &mut String, name: &str, latency: &Latency, list: &[f64]) -> std::fmt::Result {
    if latency.count() == 0 {
        return Ok(());
    }
    let (unit, ns) = unit(latency);
    writeln!(to, "    {name} percentiles ({unit}):")?;
    let one =
        |percent: &f64| format!("{percent:5.2}th=[{:5.0}]", latency.percentile_ns(*percent) as f64 / ns);
    let all: Vec<String> = list.iter().map(one).collect();
    let lines: Vec<String> = all.chunks(4).map(|part| format!("     | {}", part.join(", "))).collect();
    writeln!(to, "{}", lines.join(",\n"))
}

fn counts(to: &mut String, report: &Report, entry: &Entry<'_>) -> std::fmt::Result {
    let ([user, system], usage) = (processor_percent(report), report.usage);
    let ctx = usage.waits + usage.preemptions;
    let (majf, minf) = (usage.major_faults, usage.minor_faults);
    writeln!(to, "  cpu          : usr={user:.2}%, sys={system:.2}%, ctx={ctx}, majf={majf}, minf={minf}")?;
    let ios = (report.read.ios + report.write.ios).max(1) as f64;
    let depths = ["1", "2", "4", "8", "16", "32", ">=64"].iter().zip(report.depths.under_way);
    let depths: Vec<String> =
        depths.map(|(name, count)| format!("{name}={:.1}%", count as f64 * 100.0 / ios)).collect();
    writeln!(to, "  IO depths    : {}", depths.join(", "))?;
    let (read, write, flushes) = (&report.read, &report.write, report.flushes.ios);
    writeln!(
        to,
        "     issued rwts: total={},{},0,{flushes} short={},{},0,0 dropped=0,0,0,0",
        read.ios, write.ios, read.short_ios, write.short_ios
    )?;
    if let Some(moved) = report.moved {
        let (read, written) = (bytes(moved.read_bytes), bytes(moved.written_bytes));
        writeln!(
            to,
            "     device     : read={read}, written={written} (the kernel's account of the jobs' threads)"
        )?;
    }
    if entry.settings.checks.method.is_some() || report.verified_bytes > 0 {
        let (verified, wrong) = (bytes(report.verified_bytes), report.verify_errors);
        writeln!(to, "     verified   : {verified}, {wrong} blocks wrong")?;
    }
    Ok(())
}

fn groups(to: &mut String, results: &Results<'_>) -> std::fmt::Result {
    let last = results.entries.iter().map(|entry| entry.group).max().unwrap_or(0);
    for group in 0..=last {
        writeln!(to, "\nRun status group {group} (all jobs):")?;
        for (name, flow) in [("READ", (|r| &r.read) as fn(&Report) -> &Flow), ("WRITE", |r| &r.write)] {
            let members = results.entries.iter().filter(|entry| entry.group == group);
            let flows: Vec<&Flow> =
                members.map(|entry| flow(&entry.report)).filter(|flow| flow.ios > 0).collect();
            if flows.is_empty() {
                continue;
            }
            let (min, max) = extremes(flows.iter().map(|flow| flow.bytes_per_s()));
            let (first, last) = extremes(flows.iter().map(|flow| flow.runtime_ns as f64 / 1e6));
            let total: u64 = flows.iter().map(|flow| flow.bytes).sum();
            let rate = if last > 0.0 { total as f64 * 1e3 / last } else { 0.0 };
            writeln!(
                to,
                "{name:>7}: bw={}/s ({}/s), {}/s-{}/s, io={} ({}), run={first:.0}-{last:.0}msec",
                binary(rate),
                decimal(rate),
                binary(min),
                binary(max),
                bytes(total),
                decimal(total as f64)
            )?;
        }
    }
    Ok(())
}

fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, 0.0), |(min, max), value| (value.min(min), value.max(max)))
}

/// User and system time as shares of the runtime of all jobs of the report.
pub fn processor_percent(report: &Report) -> [f64; 2] {
    let over_ns = report.runtime_ns as f64 * f64::from(report.jobs.max(1));
    [report.usage.user_ns, report.usage.system_ns].map(|ns| {
        if over_ns > 0.0 {
            ns as f64 * 100.0 / over_ns
        } else {
            0.0
        }
    })
}

/// How much of the time a device was busy.
pub fn device_percent(device: &DeviceUse) -> f64 {
    let over_ms = device.over_ns as f64 / 1e6;
    if over_ms > 0.0 {
        (device.busy_ms as f64 * 100.0 / over_ms).min(100.0)
    } else {
        0.0
    }
}

/// Three digits and a unit.
fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let (mut value, mut at) = (value, 0);
    while value >= 999.5 && at + 1 < units.len() {
        value /= base;
        at += 1;
    }
    let digits = if at == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{}", units[at])
}

fn binary(value: f64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

fn decimal(value: f64) -> String {
    scaled(value, 1000.0, &["B", "kB", "MB", "GB", "TB"])
}

fn plain(value: f64) -> String {
    if value < 10_000.0 {
        format!("{value:.0}")
    } else {
        scaled(value, 1000.0, &["", "k", "M"])
    }
}

/// Bytes with a binary unit.
pub fn bytes(value: u64) -> String {
    binary(value as f64)
}

/// A time as `Sat Nov 21 18:15:10 2026`, in UTC.
pub fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut left) = (1970, days);
    let length = |year: u64| if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 };
    while left >= length(year) {
        left -= length(year);
        year += 1;
    }
    let february = if length(year) == 366 { 29 } else { 28 };
    let mut month = 0;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    let (day, week) = (left + 1, DAYS[(days % 7) as usize]);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{week} {} {day:2} {h:02}:{m:02}:{s:02} {year}", MONTHS[month])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_numbers() {
        assert_eq!(date(1_795_284_910), "Sat Nov 21 18:15:10 2026");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(binary(31.5 * 1048576.0), "31.5MiB");
        assert_eq!([decimal(33.1e6), decimal(512.0), decimal(1.2e9)], ["33.1MB", "512B", "1.20GB"]);
        assert_eq!([plain(8076.4), plain(123_456.0)], ["8076", "123k"]);
    }
}
