//! `forebay probe`: what the tiers of a node deliver.

mod measure;

use forebay_tier::Result;

use crate::output::Output;

/// Measure what the tiers of this node deliver: memory, memory nodes, persistent memory, file systems.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    measure: measure::Args,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    measure::run(&args.measure, out)
}
