//! `forebay probe import`: takes a profile file, or what fio printed, into the user's saved profiles.

use std::path::{Path, PathBuf};

use forebay_profile::{from_fio, saved::Saved, Profile};
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{schema, Output};

/// Save a profile from a file, so that its name can be used.
///
/// The file is a profile (TOML or JSON), or what `fio --output-format=json` printed: each of its jobs becomes a point.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The profile.
    file: PathBuf,
    /// Save it under another name.
    #[arg(long)]
    name: Option<String>,
    /// Take the place of a profile that is saved under this name.
    #[arg(long)]
    replace: bool,
}

#[derive(Serialize)]
struct Body {
    name: String,
    file: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let mut profile = read(&args.file)?;
    if let Some(name) = &args.name {
        profile.name = name.clone();
    }
    let file = Saved::of_user()?.save(&profile, args.replace)?;
    let body = Body { name: profile.name.clone(), file: file.display().to_string() };
    out.result(schema::PROFILE_FILE, &body, || format!("{}\n", body.file))?;
    out.next(&format!("forebay probe show {}", profile.name));
    Ok(0)
}

fn read(file: &Path) -> Result<Profile> {
    // What cannot be read here is told by the reader of profiles.
    let text = std::fs::read_to_string(file).unwrap_or_default();
    if !from_fio::is_fio(&text) {
        return Profile::read(file);
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    from_fio::profile(&name, &text).map_err(|e| e.with("file", file.display()))
}
