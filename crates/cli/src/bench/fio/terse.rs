//! The results in fio's terse format, version 3: a line of fields for each job, separated by `;`, in fio's order.
//!
//! Times of latencies are microseconds, bandwidths KiB a second. Trims have no fields in this version.

use forebay_perf::load::{DeviceUse, Flow, Latency, Report, Samples, DEPTHS};

use super::settings::Settings;
use super::Results;

/// Percentiles that a line has room for; where fewer are asked for the others are `0%=0`.
const PERCENTILES: usize = 20;

/// All lines.
pub fn text(results: &Results<'_>) -> String {
    let mut text = String::new();
    for entry in &results.entries {
        let error = entry.report.failure.as_ref().map_or(0, |failure| failure.errno);
        let version = concat!("forebay-", env!("CARGO_PKG_VERSION"));
        let mut fields: Vec<String> =
            vec!["3".into(), version.into(), entry.name.into(), entry.group.to_string(), error.to_string()];
        let members = || results.entries.iter().filter(|other| other.group == entry.group);
        for of in [(|r| &r.read) as fn(&Report) -> &Flow, |r| &r.write] {
            let group = members().map(|other| of(&other.report).bytes_per_s()).sum();
            flow(&mut fields, of(&entry.report), entry.settings, group);
        }
        usage(&mut fields, &entry.report);
        results.devices.iter().for_each(|one| device(&mut fields, one));
        fields.extend(entry.settings.description.clone());
        text += &fields.join(";");
        text.push('\n');
    }
    text
}

fn flow(fields: &mut Vec<String>, flow: &Flow, settings: &Settings, group_bytes_per_s: f64) {
    let whole = [
        flow.bytes >> 10,
        (flow.bytes_per_s() / 1024.0) as u64,
        flow.ios_per_s() as u64,
        flow.runtime_ns / 1_000_000,
    ];
    fields.extend(whole.iter().map(u64::to_string));
    latency(fields, &flow.submission);
    latency(fields, &flow.completion);
    let asked = &settings.shown.percentiles;
    for index in 0..PERCENTILES {
        let known = asked.get(index).filter(|_| settings.shown.of_completion && flow.completion.count() > 0);
        fields.push(match known {
            Some(percent) => format!("{percent:.6}%={}", flow.completion.percentile_ns(*percent) / 1000),
            None => "0%=0".into(),
        });
    }
    latency(fields, &flow.total);
    let bandwidth: &Samples = &flow.bandwidth;
    let share = if group_bytes_per_s > 0.0 { bandwidth.mean() / group_bytes_per_s * 100.0 } else { 0.0 };
    let kib = |rate: f64| rate / 1024.0;
    fields.push(((kib(bandwidth.min())) as u64).to_string());
    fields.push(((kib(bandwidth.max())) as u64).to_string());
    fields.push(format!("{:.6}%", share.min(100.0)));
    fields.push(format!("{:.6}", kib(bandwidth.mean())));
    fields.push(format!("{:.6}", kib(bandwidth.deviation())));
}

fn latency(fields: &mut Vec<String>, latency: &Latency) {
    fields.push((latency.min_ns() / 1000).to_string());
    fields.push((latency.max_ns() / 1000).to_string());
    fields.push(format!("{:.6}", latency.mean_ns() / 1000.0));
    fields.push(format!("{:.6}", latency.deviation_ns() / 1000.0));
}

fn usage(fields: &mut Vec<String>, report: &Report) {
    let used = report.usage;
    fields.extend(super::text::processor_percent(report).map(|percent| format!("{percent:.6}%")));
    let counts = [used.waits + used.preemptions, used.major_faults, used.minor_faults];
    fields.extend(counts.map(|count| count.to_string()));
    let ios = (report.read.ios + report.write.ios).max(1) as f64;
    let depth = |at: usize| format!("{:.1}%", report.depths.under_way[at] as f64 * 100.0 / ios);
    fields.extend((0..DEPTHS.len()).map(depth));
    let [below_us, us, ms] = super::json::latency_shares(report);
    // What took less than a microsecond counts to the first class.
    let below: f64 = below_us.iter().map(|(_, share)| share).sum();
    let us = us.iter().enumerate().map(|(at, (_, share))| if at == 0 { share + below } else { *share });
    fields.extend(us.chain(ms.iter().map(|(_, share)| *share)).map(|share| format!("{share:.2}%")));
}

fn device(fields: &mut Vec<String>, device: &DeviceUse) {
    fields.push(device.name.clone());
    let pairs = [device.ios, device.merges, device.ticks_ms];
    fields.extend(pairs.iter().flatten().map(|count| count.to_string()));
    fields.push(device.in_queue_ms.to_string());
    fields.push(format!("{:.2}%", super::text::device_percent(device)));
}
