//! `forebay report`: turns the record of a run into one HTML file.
//!
//! Guarantees: prints the path of the file, relative to the working directory where it lies below it; opens a
//! browser only when asked, on a terminal with a display.

use std::path::{Path, PathBuf};

use forebay_flow::record::latest_run;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::command::paths::{open_in_browser, relative};
use crate::output::{schema, Output};

/// Write a report of a run, one self-contained HTML file.
///
/// It shows who computed and who waited, bandwidth over time, latencies, how full the channels were, and
/// pictures of the field. Nothing in it is loaded from elsewhere.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Run directory; without one, the newest below ./runs.
    run: Option<PathBuf>,
    /// Open the report in a browser, on a terminal with a display.
    #[arg(long)]
    open: bool,
}

#[derive(Serialize)]
struct Body {
    run: String,
    file: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let place = args.run.as_deref().unwrap_or(Path::new("."));
    let run = latest_run(place).ok_or_else(|| no_run(place))?;
    let file = forebay_pages::run::report(&run)?;
    let body = Body { run: relative(&run), file: relative(&file) };
    out.result(schema::REPORT, &body, || body.file.clone() + "\n")?;
    if args.open {
        open_in_browser(&file, out);
    }
    Ok(0)
}

/// An error for a run directory that is none.
fn no_run(place: &Path) -> Error {
    Error::new(Kind::Usage, format!("no run record below {}", place.display()))
        .hint("`forebay run` creates one; or give a run directory: forebay report runs/NAME-TIME")
}
