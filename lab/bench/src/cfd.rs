//! `forebay bench cfd`: flow through a box with its arrays in memory and on a tier.

use forebay_programs::cfd::{self, Case, Field};
use forebay_tier::Result;

use super::placing::{self, Computed, PlacingArgs, Program};
use crate::schema;
use forebay_cli::output::Output;

/// Compute the flow through a box with its arrays in memory, then with some and with all of them on a tier.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Arrays: psi, zeta, psi_next, zeta_next. With horizons none and partial psi and zeta lie on the \
                        tier, which is never persisted or after each step; with full all arrays do, each write \
                        persisted."
)]
pub struct Args {
    /// Size of the box: 32 times as many cells along each edge
    #[arg(long, value_name = "N", default_value_t = 64)]
    scale: usize,
    /// Sweeps
    #[arg(long, value_name = "N", default_value_t = 10)]
    steps: usize,
    /// Reynolds number; 0 for a flow without vorticity, which has half the arrays
    #[arg(long, value_name = "R", default_value_t = 2.0)]
    reynolds: f64,
    #[command(flatten)]
    placing: PlacingArgs,
}

/// The study's times (its Table 5) by its 7.95 s with all arrays in memory.
const STUDY: [Option<f64>; 3] = [Some(9.64 / 7.95), Some(10.67 / 7.95), Some(41.84 / 7.95)];

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let reynolds = (args.reynolds != 0.0).then_some(args.reynolds);
    let case = Case { scale: args.scale, steps: args.steps, reynolds };
    case.check()?;
    let fields = case.fields().map(|field| (field, field.name(), case.field_bytes())).collect();
    let program = Program { fields, moved: &[Field::Psi, Field::Zeta], study: STUDY };
    let body = placing::run(&args.placing, &program, out, |place, name| {
        let progress = |step| out.progress(&format!("{name}: step {step} of {}", case.steps));
        let outcome = cfd::compute(&case, place, progress)?;
        let figure = ("LAST CHANGE", outcome.change);
        Ok(Computed { fingerprint: outcome.fingerprint, moved: outcome.moved, figure })
    })?;
    let edge = case.edge() - 2;
    let kind = if reynolds.is_some() { "with" } else { "without" };
    let head = format!("{} steps over {edge} x {edge} cells {kind} vorticity", case.steps);
    placing::plot(&args.placing, "cfd", &head, &body, out)?;
    out.result(schema::BENCH_PLACING, &body, || placing::text(&body, &head, out))?;
    Ok(0)
}
