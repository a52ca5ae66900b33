//! `forebay probe schema`: the JSON Schema of profiles.

use forebay_profile::schema;
use forebay_tier::Result;

use crate::output::Output;

/// Print the JSON Schema of profiles, for editors and other programs.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the verb. The schema is a document of its own kind: `--json` changes nothing.
pub fn run(_: &Args, out: &Output) -> Result<i32> {
    out.text(&schema::json_schema()).map(|()| 0)
}
