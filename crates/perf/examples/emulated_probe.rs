//! The check of the probe: the throttle is set to a medium, divided by a k that this machine can carry, and probed as
//! if it were hardware. Prints what was set beside what came back; the last line is JSON.
//!
//! `cargo run --release -p forebay-perf --example emulated_probe [SECONDS]`
//!
//! The curves are the sequential bandwidths over threads that were published of six interleaved modules of the first
//! generation of persistent memory ("An Empirical Guide to the Behavior and Use of Scalable Persistent Memory", Yang et
//! al., FAST 2020, its figure 4). What is printed is emulated, and of this machine; a span is two seconds by default,
//! and there are 36 of them.

use std::sync::atomic::AtomicBool;

use forebay_perf::memory::together::processors;
use forebay_perf::probe::ask::Ask;
use forebay_perf::probe::collect::{Answers, Reads};
use forebay_perf::probe::emulate::{compared, Through};
use forebay_perf::probe::run::ask;
use forebay_perf::probe::schedule::{Pace, Schedule};
use forebay_perf::probe::subject::Subject;
use forebay_perf::profile::{Axis, Citation, Conditions, Pattern, Tier};
use forebay_tier::adapter::throttle::{Curve, Curves, Locality, Throttle};
use forebay_tier::{Error, Kind, Result, TierKind};

/// Bytes per second by threads: reads, and writes by non-temporal stores.
const READ: [(f64, f64); 4] = [(1.0, 2.88e9), (8.0, 21.1e9), (16.0, 34.9e9), (24.0, 37.6e9)];
const WRITE: [(f64, f64); 4] = [(1.0, 4.13e9), (8.0, 12.0e9), (16.0, 10.0e9), (24.0, 7.5e9)];
/// The emulated medium at its fastest takes this part of what the memory below can do: its operations of a MiB then
/// take tens of milliseconds, beside which neither the memory nor a sleep that is too long counts.
const SHARE: f64 = 0.01;
const POOL_BYTES: u64 = 256 << 20;

fn when(reads: f64) -> Conditions {
    Conditions {
        pattern: Some(Pattern::Sequential),
        reads_percent: Some(reads),
        bytes: Some(1 << 20),
        ..Conditions::default()
    }
}

/// Bytes per second that the pool itself moves with every processor, the slower direction.
fn carried(subject: &mut dyn Subject) -> Result<f64> {
    let threads = Some(processors().len() as u32);
    let mut rate = |reads| {
        let when = Conditions { threads, ..when(reads) };
        subject.bandwidth(&when, 300_000_000).map(|r| r.bytes_per_s())
    };
    Ok(rate(100.0)?.min(rate(0.0)?))
}

fn probed(dir: &std::path::Path, curves: &Curves, seconds: f64) -> Result<Tier> {
    let path = dir.join("throttled");
    let pool = forebay_tier::create(TierKind::Dram, &path, POOL_BYTES)?;
    pool.prepare(0..POOL_BYTES)?;
    let state = Throttle::state_beside(&path);
    let throttle = Throttle::new(pool, curves.clone(), Locality::Local, &state)?;
    let mut subject = Through::new(std::sync::Arc::new(throttle))?;
    let span = (seconds * 1e9) as u64;
    let pace = Pace { span_ns_min: span, span_ns_max: span, overhead_ns: 0 };
    let over = |reads| Ask::Curve {
        when: when(reads),
        over: Axis::Threads,
        xs: vec![1.0, 2.0, 4.0, 8.0, 16.0, 24.0],
    };
    let schedule = Schedule::fit(vec![over(100.0), over(0.0)], pace, u64::MAX / 2);
    let answers: Answers = ask(&mut subject, &schedule, pace, &AtomicBool::new(false), &mut |_, _| ())?;
    let mut tier = Tier::new("emulated", TierKind::Dram);
    answers.write(&mut tier, &Citation::of("emulated"), &Reads::default(), None);
    Ok(tier)
}

fn main() -> Result<()> {
    let seconds: f64 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 2.0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => return Err(Error::new(Kind::Usage, "seconds of a span, as a number")),
    };
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|e| Error::io("cannot make a directory", e))?;
    let plain = forebay_tier::create(TierKind::Dram, &dir.path().join("plain"), POOL_BYTES)?;
    let carries = carried(&mut Through::new(plain)?)?;
    let most = READ.iter().chain(&WRITE).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let k = (most / (SHARE * carries)).max(1.0);
    let scaled = |points: &[(f64, f64)]| Curve(points.iter().map(|(x, y)| (*x, y / k)).collect());
    let curves =
        Curves { read_bandwidth: scaled(&READ), write_bandwidth: scaled(&WRITE), ..Curves::default() };
    println!("memory carries {:.1} GB/s; the platform is divided by k = {k:.1}; emulated\n", carries / 1e9);
    let tier = probed(dir.path(), &curves, seconds)?;
    println!("{:<8}{:>8}{:>14}{:>14}{:>9}", "", "threads", "set MB/s", "back MB/s", "ratio");
    let mut ratios = Vec::new();
    for (name, asked, got) in [
        ("read", &curves.read_bandwidth, &tier.curves[0]),
        ("write", &curves.write_bandwidth, &tier.curves[1]),
    ] {
        for (threads, set, back, ratio) in compared(asked, got) {
            println!("{name:<8}{threads:>8}{:>14.1}{:>14.1}{ratio:>9.3}", set / 1e6, back / 1e6);
            ratios.push(ratio);
        }
    }
    let worst =
        ratios.iter().copied().max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs())).unwrap_or(f64::NAN);
    println!("{{\"k\": {k:.3}, \"points\": {}, \"worst_ratio\": {worst:.4}}}", ratios.len());
    Ok(())
}
