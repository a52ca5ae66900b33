//! `forebay probe export`: writes a profile to a file.

use std::path::{Path, PathBuf};

use forebay_profile::saved::{write_whole, Saved};
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::command::profiles::chosen;
use crate::output::{schema, Output};

/// Write a profile to a file: JSON when the name ends in .json, else TOML; `-` is standard output.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Saved profile, platform or file, then the file to write; with the file alone the newest saved profile.
    #[arg(required = true, num_args = 1..=2, value_names = ["PROFILE", "FILE"])]
    words: Vec<String>,
    /// Overwrite the file.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Body {
    name: String,
    file: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let (profile, file) = match &args.words[..] {
        [profile, file] => (Some(profile.as_str()), file),
        [file] => (None, file),
        _ => return Err(Error::new(Kind::Usage, "expected a profile and a file")),
    };
    let profile = chosen(&Saved::of_user()?, profile)?;
    if file == "-" {
        return out.text(&profile.text()?).map(|()| 0);
    }
    let path = Path::new(file);
    if path.exists() && !args.force {
        return Err(Error::new(Kind::Usage, format!("{file} exists")).hint("--force overwrites it"));
    }
    let text = match path.extension().is_some_and(|e| e == "json") {
        true => profile.json()?,
        false => profile.text()?,
    };
    write_whole(&PathBuf::from(file), text.as_bytes())?;
    let body = Body { name: profile.name, file: file.clone() };
    out.result(schema::PROFILE_FILE, &body, || format!("{}\n", body.file))?;
    Ok(0)
}
