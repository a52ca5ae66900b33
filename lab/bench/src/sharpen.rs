//! `forebay bench sharpen`: an image sharpened with its arrays in memory and on a tier.

use std::path::PathBuf;

use forebay_programs::sharpen::{self, Case, Field};
use forebay_tier::Result;

use super::placing::{self, Computed, PlacingArgs, Program};
use crate::schema;
use forebay_cli::output::Output;

/// Sharpen an image with its arrays in memory, then with some and with all of them on a tier.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Arrays: fuzzy, padded, edges, sharp. With horizons none and partial fuzzy and padded, which \
                        are written once, lie on the tier; with full all arrays do, each write persisted."
)]
pub struct Args {
    /// Rows of the image
    #[arg(long, value_name = "N", default_value_t = 2000)]
    rows: usize,
    /// Columns of the image
    #[arg(long, value_name = "N", default_value_t = 2000)]
    columns: usize,
    /// Where the noise in the image begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the sharpened image as a picture (PNG)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    placing: PlacingArgs,
}

/// The study has one figure: 63 s by 56 s (its Table 4), without a word on persisting.
const STUDY: [Option<f64>; 3] = [Some(63.0 / 56.0), None, None];

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let case = Case { rows: args.rows, columns: args.columns, seed: args.seed };
    case.check()?;
    let fields = Field::ALL.map(|field| (field, field.name(), case.field_bytes(field))).to_vec();
    let program = Program { fields, moved: &[Field::Fuzzy, Field::Padded], study: STUDY };
    let body = placing::run(&args.placing, &program, out, |place, name| {
        let progress = |row| out.progress(&format!("{name}: row {row} of {}", case.rows));
        let outcome = sharpen::compute(&case, place, args.picture.as_deref(), progress)?;
        let figure = ("MEAN", outcome.mean);
        Ok(Computed { fingerprint: outcome.fingerprint, moved: outcome.moved, figure })
    })?;
    let head = format!("an image of {} x {}", case.rows, case.columns);
    placing::plot(&args.placing, "sharpen", &head, &body, out)?;
    out.result(schema::BENCH_PLACING, &body, || placing::text(&body, &head, out))?;
    Ok(0)
}
