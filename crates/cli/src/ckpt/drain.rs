//! `forebay ckpt drain`: carries the newest step that a killed program left in its upper levels down to the others.

use std::path::{Path, PathBuf};

use forebay_checkpoint::Carried;
use forebay_space::format_bytes;
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{schema, Output, Tone};

/// Carry the newest step of a program that does not run any more down to every level that lacks it.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "After a kill the newest step may lie in memory only; this makes it survive the node.\n\n\
                  Exit status: 0 done, 3 the program is running, 7 this is not a checkpoint directory."
)]
pub struct Args {
    /// The directory that the program gave to Checkpoint.
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

#[derive(Serialize)]
struct Body<'a> {
    path: &'a Path,
    #[serde(flatten)]
    carried: &'a Carried,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let carried = forebay_checkpoint::drain(&args.path)?;
    out.result(schema::CKPT_DRAIN, &Body { path: &args.path, carried: &carried }, || {
        let what = match carried.step {
            None => "every level has the newest step".to_string(),
            Some(step) => {
                let to: Vec<String> = carried.to.iter().map(|dir| dir.display().to_string()).collect();
                format!("copied step {step} to {} ({})", to.join(" and "), format_bytes(carried.bytes))
            }
        };
        let before = super::rejects(&carried.rejected) + &super::repairs(&carried.repaired);
        format!("{before}{}\n", out.paint(Tone::Good, &what))
    })?;
    Ok(0)
}
