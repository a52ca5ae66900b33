//! `forebay ckpt advise`: how often a program should save, level by level, and from which numbers that follows.

use std::path::{Path, PathBuf};

use comfy_table::Cell;
use forebay_checkpoint::{Advice, Costs};
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{number, schema, table_text, Output};

/// Say how often to save: Daly's interval for each level, from measured costs and the rate of failures.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Without --mtbf failures are runs that ended without closing, with a prior of one a day. \
                  Failures that need the next lower level are taken to be 6.7 times rarer (85 % of failures \
                  were recovered one level above in the published study of SCR).\n\n\
                  Exit status: 0 done, 7 nothing was saved there."
)]
pub struct Args {
    /// The directory that the program gave to Checkpoint.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Mean seconds between failures of the program.
    #[arg(long, value_name = "S", value_parser = seconds)]
    mtbf: Option<f64>,
}

#[derive(Serialize)]
struct Body<'a> {
    path: &'a Path,
    costs: &'a Costs,
    failures: u64,
    seen_s: f64,
    mtbf_s: f64,
    mtbf_given: bool,
    levels: Vec<Level<'a>>,
}

#[derive(Serialize)]
struct Level<'a> {
    dir: &'a Path,
    tier: String,
    mtbf_s: f64,
    interval_s: f64,
    every: u64,
    waste: f64,
    bound_by_drain: bool,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let read = text.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0);
    read.ok_or_else(|| "expected seconds, above 0".into())
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let advice = forebay_checkpoint::advice(&args.path, args.mtbf)?;
    let body = Body {
        path: &args.path,
        costs: &advice.costs,
        failures: advice.failures,
        seen_s: advice.seen_s,
        mtbf_s: advice.mtbf_s,
        mtbf_given: advice.mtbf_given,
        levels: advice.levels.iter().map(|(info, cost, best)| level(info, cost, best)).collect(),
    };
    out.result(schema::CKPT_ADVISE, &body, || text(&advice, &body.levels, out))?;
    Ok(0)
}

fn level<'a>(
    info: &'a forebay_checkpoint::LevelInfo,
    cost: &forebay_checkpoint::interval::LevelCost,
    best: &forebay_checkpoint::interval::LevelAdvice,
) -> Level<'a> {
    Level {
        dir: &info.dir,
        tier: info.tier.to_string(),
        mtbf_s: cost.mtbf_s,
        interval_s: best.interval_s,
        every: best.every,
        waste: best.waste,
        bound_by_drain: best.bound_by_drain,
    }
}

fn text(advice: &Advice, levels: &[Level<'_>], out: &Output) -> String {
    let Costs { saves, cost_s, carried_s, restore_s, .. } = &advice.costs;
    let mut text = format!(
        "measured   a save blocks {cost_s:.4} s, its way down takes {carried_s:.4} s, a restore {restore_s:.4} s \
         ({saves} saves)\n"
    );
    text += &match advice.mtbf_given {
        true => format!("given      {:.0} s between failures\n", advice.mtbf_s),
        false => format!(
            "measured   {} failure(s) in {:.0} s; with a prior of one a day {:.0} s between failures\n",
            advice.failures, advice.seen_s, advice.mtbf_s
        ),
    };
    text += "predicted\n\n";
    let mut table = out.table(&["LEVEL", "TIER", "MTBF", "SAVE EVERY", "TIMES", "TIME LOST", "BOUND BY"]);
    for level in levels {
        table.add_row(vec![
            Cell::new(level.dir.display()),
            Cell::new(&level.tier),
            number(format!("{:.0} s", level.mtbf_s)),
            number(format!("{:.1} s", level.interval_s)),
            number(level.every),
            number(format!("{:.2} %", level.waste * 100.0)),
            Cell::new(if level.bound_by_drain { "the way down" } else { "failures" }),
        ]);
    }
    text + &table_text(&table)
}
