//! `forebay probe report`: a profile as one HTML file.

use std::path::{Path, PathBuf};

use forebay_profile::saved::{write_whole, Saved};
use forebay_tier::Result;
use serde::Serialize;

use crate::command::paths::{open_in_browser, relative};
use crate::command::profiles::chosen;
use crate::output::{schema, Output};

/// Write a report of a profile, one self-contained HTML file; a second profile is overlaid.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A saved profile, a platform or a file; without one the newest saved profile.
    profile: Option<String>,
    /// Another one, to lay over it.
    other: Option<String>,
    /// The file to write [default: NAME.html].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Open the report in a browser, on a terminal with a display.
    #[arg(long)]
    open: bool,
}

#[derive(Serialize)]
struct Body {
    profiles: Vec<String>,
    file: String,
}

/// Runs the verb. A file of this name is replaced: it is an output.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let saved = Saved::of_user()?;
    let profile = chosen(&saved, args.profile.as_deref())?;
    let other = args.other.as_deref().map(|word| saved.find(word)).transpose()?;
    let names = std::iter::once(&profile).chain(&other).map(|p| p.name.clone());
    let names: Vec<String> = names.collect();
    let file = args.output.clone().unwrap_or_else(|| format!("{}.html", names.join("-")).into());
    write_whole(Path::new(&file), forebay_pages::profile::report(&profile, other.as_ref()).as_bytes())?;
    let body = Body { profiles: names, file: relative(&file) };
    out.result(schema::PROFILE_REPORT, &body, || body.file.clone() + "\n")?;
    if args.open {
        open_in_browser(&file, out);
    }
    Ok(0)
}
