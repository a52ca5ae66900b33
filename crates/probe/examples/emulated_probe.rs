//! The check of the probe: the throttle is set to a platform, divided by a k that this machine can carry, and probed as
//! if it were hardware. Prints what was set beside what came back; the last line is JSON. Ends with status 1 when a
//! point is more than 5 % off.
//!
//! `cargo run --release -p forebay-probe --example emulated_probe [PLATFORM[:TIER][/K]] [SECONDS]`
//!
//! What is printed is emulated, and of this machine.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use forebay_probe::emulated::{probe, Options};
use forebay_probe::find::Running;
use forebay_probe::machine::Machine;
use forebay_probe::medium::Wanted;
use forebay_profile::platforms::platform;
use forebay_profile::words::direction;
use forebay_profile::Locality;
use forebay_tier::{Error, Kind, Result};

/// By how much a point may be off.
const BAR: f64 = 0.05;

fn main() -> ExitCode {
    match check() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn check() -> Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let wanted: Wanted = arguments.next().as_deref().unwrap_or("optane-gen1:pmem").parse()?;
    let seconds = match arguments.next().map(|text| text.parse::<f64>()) {
        None => 90.0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => return Err(Error::new(Kind::Usage, "seconds for all of it, as a number")),
    };
    let profile = platform(&wanted.profile)?;
    let options = Options {
        name: "emulated".into(),
        of: profile.name.clone(),
        media: wanted.media(&profile)?,
        k: wanted.k,
        budget_ns: Some((seconds * 1e9) as u64),
    };
    let go = AtomicBool::new(false);
    let made = probe(&Machine::here(), &Running, &options, &go, &mut |_| ())?;
    let made = made.ok_or_else(|| Error::new(Kind::Internal, "stopped without a request"))?;
    println!("{} divided by k = {}; emulated\n", profile.name, made.k);
    println!(
        "{:<8}{:>14}{:>8}{:>9}{:>10}{:>14}{:>14}{:>8}",
        "tier", "", "", "threads", "bytes", "set MB/s", "back MB/s", "ratio"
    );
    for point in &made.compared {
        println!(
            "{:<8}{:>14}{:>8}{:>9}{:>10}{:>14.2}{:>14.2}{:>8.3}{}",
            point.tier,
            direction(&point.when),
            if point.when.locality == Locality::Remote { "remote" } else { "local" },
            point.when.threads.unwrap_or(1),
            point.when.bytes.unwrap_or(0),
            point.set_bytes_per_s / 1e6,
            point.back_bytes_per_s / 1e6,
            point.ratio,
            if (point.ratio - 1.0).abs() > BAR { "  off" } else { "" },
        );
    }
    let worst = made.worst().unwrap_or(f64::NAN);
    println!("{{\"k\": {}, \"points\": {}, \"worst_ratio\": {worst:.4}}}", made.k, made.compared.len());
    Ok((worst - 1.0).abs() <= BAR)
}
