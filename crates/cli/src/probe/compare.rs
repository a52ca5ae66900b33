//! `forebay probe compare`: two profiles side by side.

use comfy_table::Cell;
use forebay_profile::compare::{compare, Agreement, Comparison, Measure, Pair, Verdict};
use forebay_profile::{saved::Saved, Estimate, Profile, Unit};
use forebay_tier::Result;
use serde::Serialize;

use super::show::kind_words;
use crate::output::{number, schema, table_text, toned, Output, Tone};
use forebay_profile::words::{capacity, concurrency, direction, manner, ratio, size, speed, time};

/// Compare two profiles: ratios, and which differences are larger than the error bars.
///
/// Only numbers of the same thing are compared: same tier, operation, pattern, size. A difference inside the error bars
/// is shown as `same`; a ratio without error bars on both sides has no verdict.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The first: a saved profile, a platform or a file.
    a: String,
    /// The second.
    b: String,
    /// Every point of every curve too.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    a: &'a str,
    b: &'a str,
    #[serde(flatten)]
    comparison: &'a Comparison,
    agreement: Agreement,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let saved = Saved::of_user()?;
    let (a, b) = (saved.find(&args.a)?, saved.find(&args.b)?);
    let comparison = compare(&a, &b);
    let agreement = comparison.agreement();
    let body = Body { a: &a.name, b: &b.name, comparison: &comparison, agreement };
    out.result(schema::PROFILE_COMPARISON, &body, || text(&a, &b, &comparison, args.all, out))?;
    out.next(&format!("forebay probe report {} {} -o compared.html", args.a, args.b));
    Ok(0)
}

fn text(a: &Profile, b: &Profile, comparison: &Comparison, all: bool, out: &Output) -> String {
    let mut text = String::new();
    for (letter, profile) in [("A", a), ("B", b)] {
        let title = profile.title.as_deref().unwrap_or("");
        let line = format!("{letter}  {} ({}, {})  {title}", profile.name, kind_words(profile), profile.date);
        text += &(line.trim_end().to_owned() + "\n");
    }
    let shown: Vec<&Pair> = comparison.pairs.iter().filter(|p| all || p.measure != Measure::Point).collect();
    if !shown.is_empty() {
        let mut table = out.table(&["TIER", "WHAT", "HOW", "A", "B", "B / A", ""]);
        for pair in shown {
            table.add_row(row(pair));
        }
        text += &format!("\n{}", table_text(&table));
    }
    let points = || comparison.pairs.iter().filter(|p| p.measure == Measure::Point);
    if points().next().is_some() {
        let count = |v: Verdict| points().filter(|p| p.verdict == v).count();
        text += &format!(
            "\n{} points of curves: {} same, {} higher, {} lower, {} without error bars{}\n",
            points().count(),
            count(Verdict::Same),
            count(Verdict::Higher),
            count(Verdict::Lower),
            count(Verdict::Open),
            if all { "" } else { "; --all shows them" },
        );
        text += &agreement(&comparison.agreement());
    }
    if comparison.pairs.is_empty() {
        text += "\nNothing was taken of the same thing under the same conditions.\n";
    }
    for (letter, tiers) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        if !tiers.is_empty() {
            text += &format!("only {letter} has {}\n", tiers.join(", "));
        }
    }
    text
}

/// What to look at when one node was probed twice.
fn agreement(agreement: &Agreement) -> String {
    let Agreement { points, points_close, knees, knees_within_step, knees_close, .. } = agreement;
    let mut text = format!("within a tenth: {points_close} of {points} points");
    if *knees > 0 {
        text += &format!(", {knees_close} of {knees} knees; ");
        text += &format!("{knees_within_step} of the {knees} are reached within one step");
    }
    text + "\n"
}

fn row(pair: &Pair) -> Vec<Cell> {
    let what = match pair.measure {
        Measure::Capacity => "capacity".to_owned(),
        Measure::Latency => format!("{} latency", pair.what),
        Measure::Stream => format!("STREAM {}", pair.what),
        Measure::Knee => format!("highest {}", direction(&pair.when)),
        Measure::Point => format!("{} {}", direction(&pair.when), concurrency(&pair.when)),
    };
    let pattern = pair.when.pattern.map(|p| p.to_string());
    let how: Vec<String> = pattern
        .into_iter()
        .chain(pair.when.bytes.map(size))
        .chain(Some(manner(&pair.when)).filter(|m| !m.is_empty()))
        .collect();
    let verdict = match pair.verdict {
        Verdict::Same => toned("same", Tone::Quiet),
        Verdict::Higher => toned("higher", Tone::Notable),
        Verdict::Lower => toned("lower", Tone::Notable),
        Verdict::Open => toned("no error bars", Tone::Quiet),
    };
    vec![
        Cell::new(&pair.tier),
        Cell::new(what),
        Cell::new(how.join(" ")),
        number(value(pair, pair.a)),
        number(value(pair, pair.b)),
        number(ratio(pair.ratio)),
        verdict,
    ]
}

fn value(pair: &Pair, value: Estimate) -> String {
    match pair.unit {
        "ns" => time(value),
        "B" => capacity(value.value as u64),
        "IOPS" => speed(value, Unit::Operations),
        _ => speed(value, Unit::Bytes),
    }
}
