//! `forebay probe --emulate`: a platform that is not there, throttled out of main memory, is probed as if it were
//! hardware; prints what it was set to beside what came back.

use std::sync::atomic::AtomicBool;

use comfy_table::Cell;
use forebay_probe::emulated::{probe, Compared, Emulated, Options};
use forebay_probe::find::Running;
use forebay_probe::machine::Machine;
use forebay_probe::medium::Wanted;
use forebay_profile::saved::Saved;
use forebay_profile::words::{direction, size};
use forebay_profile::Axis;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use super::measure;
use super::watched::Watched;
use crate::output::{schema, table_text, wrapped, Output};

/// Columns of notes.
const WIDTH: usize = 110;
/// What came back counts as what was set within this.
const NEAR: f64 = 0.05;

/// What was emulated, and what came back.
#[derive(Serialize)]
pub struct Facts<'a> {
    of: &'a str,
    k: f64,
    worst_ratio: Option<f64>,
    points: &'a [Compared],
}

/// Emulates and measures.
pub fn run(args: &measure::Args, wanted: &Wanted, out: &Output) -> Result<i32> {
    let of = Saved::of_user()?.find(&wanted.profile)?;
    let media = wanted.media(&of)?;
    let name = measure::profile_name(args, &format!("{}-emulated", of.name))?;
    let options = Options {
        name,
        of: of.name.clone(),
        media,
        k: wanted.k,
        budget_ns: args.seconds.map(|s| s.saturating_mul(1_000_000_000)),
    };
    let mut watched = Watched::new(out);
    let go = AtomicBool::new(false);
    let made = probe(&Machine::here(), &Running, &options, &go, &mut |progress| {
        watched.show(progress);
    });
    watched.end();
    let made = made?.ok_or_else(|| Error::new(Kind::Internal, "the probe ended without a profile"))?;
    let (file, word) = measure::kept(args, &made.profile)?;
    let facts = Facts { of: &of.name, k: made.k, worst_ratio: made.worst(), points: &made.compared };
    let body = measure::Body { profile: &made.profile, file, emulated: Some(facts) };
    out.result(schema::PROBE, &body, || text(&of.name, &made, out))?;
    out.next(&format!("forebay probe show {word}; forebay probe compare {} {word}", of.name));
    Ok(0)
}

fn text(of: &str, made: &Emulated, out: &Output) -> String {
    let mut text = format!(
        "{of} divided by k = {}; emulated in main memory, and measured through the throttled devices\n\n",
        made.k
    );
    let mut table = out.table(&["TIER", "", "OVER", "AT", "OPERATION", "SET MB/s", "BACK MB/s", "RATIO", ""]);
    for point in &made.compared {
        table.add_row(row(point).map(Cell::new));
    }
    text += &table_text(&table);
    if let Some(worst) = made.worst() {
        text += &format!("\nfarthest from what was set: {worst:.3} of it\n");
    }
    let notes =
        made.profile.tiers.iter().flat_map(|t| t.notes.iter().map(move |note| format!("{}: {note}", t.name)));
    notes.for_each(|line| text += &format!("  {}\n", wrapped(&line, WIDTH, 4)));
    text
}

fn row(point: &Compared) -> [String; 9] {
    let when = &point.when;
    let at = match point.over {
        Axis::Threads => when.threads.unwrap_or(1).to_string(),
        Axis::Depth => when.depth.unwrap_or(1).to_string(),
        Axis::Bytes => format!("{} threads", when.threads.unwrap_or(1)),
        Axis::ReadsPercent => format!("{} threads", when.threads.unwrap_or(1)),
    };
    [
        point.tier.clone(),
        direction(when),
        point.over.to_string(),
        at,
        when.bytes.map_or(String::new(), size),
        format!("{:.2}", point.set_bytes_per_s / 1e6),
        format!("{:.2}", point.back_bytes_per_s / 1e6),
        format!("{:.3}", point.ratio),
        if (point.ratio - 1.0).abs() > NEAR { "!".into() } else { String::new() },
    ]
}
