//! `forebay probe`: measures the tiers of this node, prints one table and saves the profile.
//!
//! Nothing is left behind however it ends: files to measure with have no name, memory goes with the process. So no
//! signal is handled here; Ctrl-C ends the process and that is all.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use comfy_table::Cell;
use forebay_probe::find::Running;
use forebay_probe::machine::Machine;
use forebay_probe::medium::Wanted;
use forebay_probe::run::{probe, Options};
use forebay_probe::table::{row, Best, Row};
use forebay_profile::saved::{write_whole, Saved};
use forebay_profile::{Axis, Estimate, Profile, Tier, Unit};
use forebay_tier::{Error, Kind, Result};

use super::emulated::Facts;
use super::watched::Watched;
use crate::output::{schema, table_text, wrapped, Output};

/// Columns of notes.
const WIDTH: usize = 110;

/// Options of the measurement.
#[derive(clap::Args, Debug, Default)]
#[group(skip)]
pub struct Args {
    /// Measure the whole grid, each point longer: tens of minutes instead of one.
    #[arg(long)]
    full: bool,
    /// Measure only tiers of this name or kind (dram, numa:1, pmem, file, direct, file:/scratch, devdax:/dev/dax0.0).
    #[arg(long = "tier", value_name = "TIER")]
    tiers: Vec<String>,
    /// Measure the file system of this directory too, also across a network.
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Write the profile to FILE instead of saving it under its name.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take at most this much memory or file of any tier (never more than half of what is free).
    #[arg(long, value_name = "SIZE", value_parser = crate::sizes::size)]
    take: Option<u64>,
    /// Name of the profile; by default that of the node, with a number where that is taken.
    #[arg(long)]
    name: Option<String>,
    /// Seconds for all measurements, instead of what a first profile takes; preparing comes on top.
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Emulate a platform (or one of its tiers) K times slower, and measure that: optane-gen1:pmem/64. Without K this
    /// machine chooses.
    #[arg(
        long,
        value_name = "PLATFORM[:TIER][/K]",
        conflicts_with_all = ["full", "tiers", "dirs", "take"],
        value_parser = |text: &str| text.parse::<Wanted>()
    )]
    emulate: Option<Wanted>,
}

/// Runs the measurement.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(wanted) = &args.emulate {
        return super::emulated::run(args, wanted, out);
    }
    let machine = Machine::here();
    let options = Options {
        full: args.full,
        tiers: args.tiers.clone(),
        dirs: args.dirs.iter().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone())).collect(),
        budget_ns: args.seconds.map(|s| s.saturating_mul(1_000_000_000)),
        name: profile_name(args, &node_name(&machine))?,
        take_bytes_max: args.take,
        cache_bytes: None,
    };
    let mut watched = Watched::new(out);
    let stop = Arc::new(AtomicBool::new(false));
    let profile = probe(&machine, &Running, &options, &stop, &mut |progress| watched.show(progress));
    watched.end();
    // Nothing sets `stop` here, so there is one.
    let profile = profile?.ok_or_else(|| Error::new(Kind::Internal, "the probe ended without a profile"))?;
    let (file, word) = kept(args, &profile)?;
    out.result(schema::PROBE, &Body { profile: &profile, file, emulated: None }, || text(&profile, out))?;
    out.next(&format!("forebay probe show {word}; forebay probe report {word}"));
    Ok(0)
}

/// Saves a profile, or writes it to the file that was named; the file, and the word that finds it.
pub fn kept(args: &Args, profile: &Profile) -> Result<(PathBuf, String)> {
    match &args.output {
        Some(file) => {
            write_whole(file, profile.text()?.as_bytes())?;
            Ok((file.clone(), file.display().to_string()))
        }
        None => Ok((Saved::of_user()?.save(profile, false)?, profile.name.clone())),
    }
}

/// The name that the profile gets; one that is taken, and a file that is there, are refused before anything is
/// measured.
pub fn profile_name(args: &Args, node: &str) -> Result<String> {
    if let Some(file) = &args.output {
        if file.exists() {
            return Err(Error::new(Kind::Usage, format!("{} already exists", file.display()))
                .hint("choose another file, or remove it: measured profiles are not overwritten"));
        }
        return Ok(args.name.clone().unwrap_or_else(|| node.to_string()));
    }
    let saved = Saved::of_user()?;
    let is_free = |name: &str| !saved.file(name).exists();
    match &args.name {
        Some(name) if is_free(name) => Ok(name.clone()),
        Some(name) => Err(Error::new(Kind::Usage, format!("a profile is already saved as {name}"))
            .with("file", saved.file(name).display())
            .hint("choose another name: measured profiles are not overwritten")),
        None => {
            let numbered = (2..).map(|n| format!("{node}-{n}"));
            Ok(std::iter::once(node.to_string()).chain(numbered).find(|name| is_free(name)).expect("endless"))
        }
    }
}

/// The document of `forebay probe`.
#[derive(serde::Serialize)]
pub struct Body<'a> {
    pub profile: &'a Profile,
    /// Where it was written.
    pub file: PathBuf,
    /// None for the tiers of this node.
    pub emulated: Option<Facts<'a>>,
}

/// The node's name, as far as it can name a profile.
fn node_name(machine: &Machine) -> String {
    let host = machine.read("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = host.chars().map(|c| if fits(c) { c } else { '-' }).take(48).collect();
    let name = name.trim_start_matches(['.', '_', '-']).to_string();
    if name.is_empty() {
        "node".into()
    } else {
        name
    }
}

fn text(profile: &Profile, out: &Output) -> String {
    let host = &profile.host;
    let mut text = format!(
        "{}, {}; measured {}\n\n",
        profile.name,
        host.processor.as_deref().unwrap_or("?"),
        profile.date
    );
    let heading =
        ["TIER", "READ", "WRITE", "RANDOM READ", "RANDOM WRITE", "1:1", "IDLE", "LOADED", "PERSIST", ""];
    let mut table = out.table(&heading);
    let mut marks: Vec<String> = Vec::new();
    for tier in &profile.tiers {
        table.add_row(cells(tier, &row(tier), &mut marks));
    }
    text += &table_text(&table);
    text += "\nbandwidths in GB/s or thousand operations/s (k), @ the fewest threads (t) or requests in flight (q)\n\
             that reach 95 % of them; ± how far a round of the probe is from them; idle, loaded, persist: median /\n\
             99 % of a time\n";
    let notes =
        profile.tiers.iter().flat_map(|t| t.notes.iter().map(move |note| format!("{}: {note}", t.name)));
    let all = marks.into_iter().chain(notes).chain(profile.notes.iter().cloned());
    all.for_each(|line| text += &format!("  {}\n", wrapped(&line, WIDTH, 4)));
    text
}

fn cells(tier: &Tier, row: &Row, marks: &mut Vec<String>) -> Vec<Cell> {
    let bests = [&row.read, &row.write, &row.random_read, &row.random_write];
    let mut cells = vec![Cell::new(&tier.name)];
    let caveat = |b: &&Option<Best>| b.as_ref().and_then(|b| b.caveat.clone());
    let first = bests.iter().find_map(caveat);
    let any = first.or_else(|| tier.curves.iter().find_map(|c| c.caveat.clone()));
    cells.extend(bests.map(|best| Cell::new(best.as_ref().map_or("-".into(), knee))));
    cells.push(Cell::new(row.mixed.map_or("-".into(), |(value, unit)| speed(value, unit))));
    cells.extend([row.idle, row.loaded, row.persist].map(|t| Cell::new(t.map_or("-".into(), times))));
    cells.push(Cell::new(if any.is_some() { "!" } else { "" }));
    marks.extend(any.map(|why| format!("! {}: {why}", tier.name)));
    cells
}

/// `21.3 ±4% @8t`.
fn knee(best: &Best) -> String {
    let letter = if best.over == Axis::Depth { "q" } else { "t" };
    let mark = if best.caveat.is_some() { "!" } else { "" };
    format!("{}{mark} @{}{letter}", speed(best.value, best.unit), best.reached_at)
}

fn speed(value: Estimate, unit: Unit) -> String {
    let (number, suffix) = match unit.bytes() {
        Some(bytes) => (value.value * bytes / 1e9, ""),
        None => (value.value / 1e3, "k"),
    };
    let percent = match (value.error, value.value > 0.0) {
        (Some(error), true) => format!(" ±{:.0}%", (error / value.value * 100.0).min(999.0)),
        _ => String::new(),
    };
    format!("{}{suffix}{percent}", digits(number))
}

fn times((median, late): (Estimate, Estimate)) -> String {
    let time = |ns: f64| match ns {
        ns if ns >= 1e6 => format!("{} ms", digits(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} us", digits(ns / 1e3)),
        ns => format!("{ns:.0} ns"),
    };
    format!("{} / {}", time(median.value), time(late.value))
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_say_how_sure_they_are() {
        let best = Best {
            value: Estimate::new(21.34, 0.8),
            unit: Unit::Gigabytes,
            reached_at: 8,
            over: Axis::Threads,
            caveat: None,
        };
        assert_eq!(knee(&best), "21.3 ±4% @8t");
        let counted = Best {
            value: Estimate::new(61_870.0, 0.0),
            unit: Unit::Operations,
            over: Axis::Depth,
            caveat: Some("a cache answered".into()),
            ..best
        };
        assert_eq!(knee(&counted), "61.9k ±0%! @8q");
        let pair = (Estimate::new(80.4, 1.0), Estimate::new(12_345.0, 1.0));
        assert_eq!(times(pair), "80 ns / 12.3 us");
        assert_eq!(speed(Estimate::bare(0.0), Unit::Bytes), "0.00");
    }
}
