//! `forebay drain`: moves what producers left in the first tier of a space to its lower tiers, and waits for it.
//!
//! Guarantees: what living producers hold is left to them; readers go on reading meanwhile. Ends with 0 only when
//! nothing is left to move; what was moved stays moved when it ends otherwise. At a durable horizon a copy is durable
//! before the old place is given up.

use std::time::Duration;

use forebay_space::{format_bytes, Result};
use serde::Serialize;

use crate::command::spaces;
use crate::output::{schema, Output, Tone};

/// Move what dead or finished producers left in memory to the lower tiers of a space.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit status: 0 when nothing is left to move; 2 when the space has no lower tier; 6 when the lower \
                  tiers are full; 7 when readers still hold data at the end of the time, or without such a space."
)]
pub struct Args {
    /// Short name or path of the space.
    name: String,
    /// Seconds to wait for readers that hold what is to be moved.
    #[arg(long, value_name = "S", value_parser = spaces::seconds, default_value = "60")]
    timeout: Duration,
}

#[derive(Serialize)]
struct Body<'a> {
    space: &'a str,
    moved_bytes: u64,
    segments: u64,
    remaining_bytes: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let name = args.name.as_str();
    spaces::glance(name)?;
    out.progress(&format!("draining {name}"));
    let report = forebay_space::drain(name, args.timeout)?;
    let forebay_space::DrainReport { moved_bytes, segments, remaining_bytes } = report;
    let body = Body { space: name, moved_bytes, segments, remaining_bytes };
    out.result(schema::DRAIN, &body, || {
        let what = match segments {
            0 => "nothing was left to move".to_string(),
            1 => format!("moved {} in 1 segment", format_bytes(moved_bytes)),
            n => format!("moved {} in {n} segments", format_bytes(moved_bytes)),
        };
        format!("{name}: {}\n", out.paint(Tone::Good, &what))
    })?;
    out.next(&format!("forebay ls {name} shows its tiers"));
    Ok(0)
}
