//! `forebay init`: writes a commented workflow file to start from.
//!
//! Guarantees: never overwrites a file.

use std::path::PathBuf;

use forebay_flow::init::{DEFAULT_FILE, TEMPLATE};
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{schema, Output};

/// Write a commented workflow file to start from.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File to write, or the directory to write workflow.toml in; `-` prints it.
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
}

#[derive(Serialize)]
struct Body<'a> {
    file: Option<&'a str>,
    text: &'a str,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if args.file.as_os_str() == "-" {
        out.result(schema::INIT, &Body { file: None, text: TEMPLATE }, || TEMPLATE.to_string())?;
        return Ok(0);
    }
    let file = forebay_flow::init(&args.file)?;
    let name = file.display().to_string();
    out.result(schema::INIT, &Body { file: Some(&name), text: TEMPLATE }, || format!("{name}\n"))?;
    match name == DEFAULT_FILE {
        true => out.next("forebay run"),
        false => out.next(&format!("forebay run {name}")),
    }
    Ok(0)
}
