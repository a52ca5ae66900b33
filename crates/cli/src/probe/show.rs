//! `forebay probe show`: a profile as tables: per tier the knees and latencies, then STREAM, then the sources.
//!
//! Guarantees: every number has its unit and says whether it was measured, published or emulated; of many curves that
//! differ in the size of operations only, the highest is shown (`--all` has every point); what has a caveat shows it.

use comfy_table::Cell;
use forebay_profile::knee::TierKnee;
use forebay_profile::{saved::Saved, Latency, Profile, Tier};
use forebay_tier::Result;
use serde::Serialize;

use crate::command::profiles::chosen;
use crate::output::{number, schema, table_text, toned, wrapped, Output, Tone};
use forebay_profile::words::{capacity, concurrency, direction, kinds, manner, mark, size, speed, time};

/// Width of the text around tables.
const COLUMNS: usize = 100;

/// Show a profile: what each tier delivers, with how many threads, and who says so.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A saved profile, a platform or a file; without one the newest saved profile.
    profile: Option<String>,
    /// Every point of every curve, and every other figure.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    profile: &'a Profile,
    knees: Vec<KneeBody<'a>>,
}

#[derive(Serialize)]
struct KneeBody<'a> {
    tier: &'a str,
    when: forebay_profile::Conditions,
    unit: forebay_profile::Unit,
    highest: forebay_profile::Estimate,
    stated: bool,
    source: &'a forebay_profile::Citation,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let profile = chosen(&Saved::of_user()?, args.profile.as_deref())?;
    let knees = profile.tiers.iter().flat_map(|tier| {
        tier.all_knees().into_iter().map(|k| KneeBody {
            tier: &tier.name,
            when: k.when,
            unit: k.unit,
            highest: k.highest,
            stated: k.stated,
            source: k.source,
        })
    });
    let body = Body { profile: &profile, knees: knees.collect() };
    out.result(schema::PROFILE, &body, || text(&profile, args.all, out))?;
    out.next(&format!("forebay probe report {} -o {0}.html", profile.name));
    Ok(0)
}

fn text(profile: &Profile, all: bool, out: &Output) -> String {
    let mut text = heading(profile, out);
    for tier in &profile.tiers {
        text += &format!("\n{}\n", out.paint(Tone::Strong, &title(tier)));
        for note in &tier.notes {
            text += &format!("  {}\n", wrapped(note, COLUMNS - 2, 2));
        }
        for part in [knees(profile, tier, all, out), latencies(profile, tier, out)] {
            if !part.is_empty() {
                text += &format!("\n{part}");
            }
        }
        if all {
            text += &points(profile, tier, out);
            text += &figures(profile, tier, out);
        }
    }
    text += &streams(profile, out);
    text + &sources(profile, out)
}

/// `measured, emulated`.
pub fn kind_words(profile: &Profile) -> String {
    let words: Vec<String> = kinds(profile).iter().map(ToString::to_string).collect();
    words.join(", ")
}

fn heading(profile: &Profile, out: &Output) -> String {
    let mut text = out.paint(Tone::Strong, &profile.name);
    if let Some(title) = &profile.title {
        text += &format!("  {title}");
    }
    let host = &profile.host;
    let facts = [
        Some(format!("{} {}", kind_words(profile), profile.date)),
        host.name.clone(),
        host.processor.clone(),
        host.cores.map(|n| format!("{n} cores")),
        host.memory_bytes.map(capacity),
        host.kernel.clone(),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    text += &format!("\n{}\n", facts.join(" · "));
    for note in &profile.notes {
        text += &format!("- {}\n", wrapped(note, COLUMNS - 2, 2));
    }
    text
}

/// Name of a tier with what is known of it.
fn title(tier: &Tier) -> String {
    let domain = tier.survives.map(|d| format!("survives {d}"));
    let facts = [
        tier.title.clone(),
        tier.place.clone(),
        tier.device.clone(),
        tier.file_system.clone(),
        tier.memory_node.clone(),
        tier.capacity.as_ref().map(|c| capacity(c.bytes)),
        tier.granularity.as_ref().map(|g| format!("granularity {}", size(g.bytes))),
        domain,
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    match facts.is_empty() {
        true => tier.name.clone(),
        false => format!("{}: {}", tier.name, facts.join(", ")),
    }
}

/// Of knees that differ in the size of operations only, the highest.
fn best(knees: Vec<TierKnee<'_>>) -> Vec<TierKnee<'_>> {
    let mut kept: Vec<TierKnee<'_>> = Vec::new();
    for knee in knees {
        let same = |other: &&mut TierKnee<'_>| {
            let mut when = other.when.clone();
            (when.bytes, when.threads, when.depth) = (knee.when.bytes, knee.when.threads, knee.when.depth);
            !knee.stated && !other.stated && when == knee.when && other.unit == knee.unit
        };
        match kept.iter_mut().find(same) {
            Some(other) if knee.highest.value > other.highest.value => *other = knee,
            Some(_) => {}
            None => kept.push(knee),
        }
    }
    kept
}

fn knees(profile: &Profile, tier: &Tier, all: bool, out: &Output) -> String {
    let knees = tier.all_knees();
    let knees = if all { knees } else { best(knees) };
    if knees.is_empty() {
        return String::new();
    }
    let mut table =
        out.table(&["  HIGHEST OF", "PATTERN", "SIZE", "HIGHEST", "KNEE AT", "ACCESS", "NUMBERS"]);
    for knee in &knees {
        let says = match (knee.note, knee.caveat) {
            (_, Some(caveat)) => {
                toned(format!("{}; caveat: {caveat}", mark(profile, knee.source)), Tone::Notable)
            }
            (Some(note), _) => Cell::new(format!("{}; {note}", mark(profile, knee.source))),
            _ => Cell::new(mark(profile, knee.source)),
        };
        table.add_row(vec![
            Cell::new(format!("  {}", direction(&knee.when))),
            Cell::new(knee.when.pattern.map_or(String::new(), |p| p.to_string())),
            number(knee.when.bytes.map_or(String::new(), size)),
            number(speed(knee.highest, knee.unit)),
            number(concurrency(&knee.when)),
            Cell::new(manner(&knee.when)),
            says,
        ]);
    }
    table_text(&table)
}

fn latencies(profile: &Profile, tier: &Tier, out: &Output) -> String {
    if tier.latencies.is_empty() {
        return String::new();
    }
    let heading = [
        "  LATENCY OF",
        "LOAD",
        "SIZE",
        "MEAN",
        "DEVIATION",
        "P50",
        "P90",
        "P99",
        "P99.9",
        "ACCESS",
        "NUMBERS",
    ];
    let any = |field: fn(&Latency) -> bool| tier.latencies.iter().any(field);
    // Columns without a number would only push the others aside.
    let shown = [
        true,
        true,
        any(|l| l.when.bytes.is_some()),
        any(|l| l.mean_ns.is_some()),
        any(|l| l.deviation_ns.is_some()),
        any(|l| l.p50_ns.is_some()),
        any(|l| l.p90_ns.is_some()),
        any(|l| l.p99_ns.is_some()),
        any(|l| l.p999_ns.is_some()),
        true,
        true,
    ];
    fn keep<T>(items: impl IntoIterator<Item = T>, shown: &[bool]) -> Vec<T> {
        items.into_iter().zip(shown).filter(|(_, shown)| **shown).map(|(item, _)| item).collect()
    }
    let mut table = out.table(&keep(heading, &shown));
    for latency in &tier.latencies {
        let in_ns = |value: Option<_>| number(value.map_or(String::new(), time));
        let load = [latency.load.to_string(), concurrency(&latency.when)];
        let load: Vec<String> = load.into_iter().filter(|t| !t.is_empty()).collect();
        let says = match (&latency.note, &latency.caveat) {
            (_, Some(caveat)) => {
                toned(format!("{}; caveat: {caveat}", mark(profile, &latency.source)), Tone::Notable)
            }
            (Some(note), _) => Cell::new(format!("{}; {note}", mark(profile, &latency.source))),
            _ => Cell::new(mark(profile, &latency.source)),
        };
        let pattern = latency.when.pattern.map_or(String::new(), |p| format!("{p} "));
        let remote = if latency.when.locality == forebay_profile::Locality::Remote { "remote " } else { "" };
        table.add_row(keep(
            [
                Cell::new(format!("  {remote}{pattern}{}", latency.operation)),
                Cell::new(load.join(", ")),
                number(latency.when.bytes.map_or(String::new(), size)),
                in_ns(latency.mean_ns),
                in_ns(latency.deviation_ns),
                in_ns(latency.p50_ns),
                in_ns(latency.p90_ns),
                in_ns(latency.p99_ns),
                in_ns(latency.p999_ns),
                Cell::new(manner(&latency.when)),
                says,
            ],
            &shown,
        ));
    }
    table_text(&table)
}

/// Every point of every curve.
fn points(profile: &Profile, tier: &Tier, out: &Output) -> String {
    if tier.curves.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["  POINT", "PATTERN", "SIZE", "WITH", "DELIVERS", "ACCESS", "NUMBERS"]);
    for sample in tier.samples() {
        table.add_row(vec![
            Cell::new(format!("  {}", direction(&sample.when))),
            Cell::new(sample.when.pattern.map_or(String::new(), |p| p.to_string())),
            number(sample.when.bytes.map_or(String::new(), size)),
            number(concurrency(&sample.when)),
            number(speed(sample.value, sample.unit)),
            Cell::new(manner(&sample.when)),
            Cell::new(mark(profile, sample.source)),
        ]);
    }
    format!("\n{}", table_text(&table))
}

fn figures(profile: &Profile, tier: &Tier, out: &Output) -> String {
    if tier.figures.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["  FIGURE", "VALUE", "NUMBERS"]);
    for figure in &tier.figures {
        let error = figure.value.error.map_or(String::new(), |e| format!(" ± {e}"));
        table.add_row(vec![
            Cell::new(format!("  {}", figure.name)),
            number(format!("{}{error} {}", figure.value.value, figure.unit)),
            Cell::new(mark(profile, &figure.source)),
        ]);
    }
    format!("\n{}", table_text(&table))
}

fn streams(profile: &Profile, out: &Output) -> String {
    if profile.streams.is_empty() {
        return String::new();
    }
    let mut table =
        out.table(&["STREAM READS", "WRITES", "HORIZON", "COPY", "SCALE", "ADD", "TRIAD", "NUMBERS"]);
    for row in &profile.streams {
        let cell = |value| number(speed(value, row.unit));
        let says = mark(profile, &row.source);
        table.add_row(vec![
            Cell::new(&row.read),
            Cell::new(&row.write),
            Cell::new(row.horizon),
            cell(row.copy),
            cell(row.scale),
            cell(row.add),
            cell(row.triad),
            match &row.caveat {
                Some(caveat) => toned(format!("{says}; caveat: {caveat}"), Tone::Notable),
                None => Cell::new(says),
            },
        ]);
    }
    format!("\n{}", table_text(&table))
}

fn sources(profile: &Profile, out: &Output) -> String {
    let mut text = String::from("\n");
    for (key, source) in &profile.sources {
        let said = [&source.citation, &source.method, &source.note];
        let repeated = source.repetitions.map(|n| format!("{n} repetitions"));
        let parts: Vec<String> = said.into_iter().flatten().cloned().chain(repeated).collect();
        let line = format!("{key} ({}): {}", source.kind, parts.join("; "));
        text += &format!("{}\n", out.paint(Tone::Quiet, &wrapped(&line, COLUMNS, 2)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colour;
    use forebay_profile::platforms;

    #[test]
    fn every_platform_can_be_shown() {
        let out = Output::new(false, Colour::Never);
        for name in platforms::names() {
            let profile = platforms::platform(name).unwrap();
            let (short, long) = (text(&profile, false, &out), text(&profile, true, &out));
            assert!(short.starts_with(name) && short.contains("published"), "{short}");
            assert!(long.len() >= short.len());
        }
    }

    #[test]
    fn of_many_sizes_the_highest_is_shown() {
        let profile = platforms::platform("optane-gen1").unwrap();
        let pmem = profile.tier("pmem").unwrap();
        let all = pmem.all_knees();
        let kept = best(pmem.all_knees());
        assert!(kept.len() < all.len());
        for knee in all {
            assert!(
                kept.iter().any(|k| direction(&k.when) == direction(&knee.when)
                    && k.highest.scaled(k.unit.bytes().unwrap()).value
                        >= knee.highest.scaled(knee.unit.bytes().unwrap()).value),
                "{knee:?}"
            );
        }
    }
}
