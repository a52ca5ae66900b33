//! `forebay ckpt`: looking into checkpoint directories, checking them, taking arrays out, saying how often to save,
//! carrying steps down. One file per verb.

mod advise;
mod drain;
mod list;
mod restore;
mod verify;

use clap::Subcommand;
use forebay_tier::Result;

use crate::output::Output;

/// Look into checkpoints: list their steps, check every byte, take arrays out, say how often to save, carry steps down
/// to lower levels.
#[derive(clap::Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    List(list::Args),
    Verify(verify::Args),
    Restore(restore::Args),
    Advise(advise::Args),
    Drain(drain::Args),
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    match &args.verb {
        Verb::List(args) => list::run(args, out),
        Verb::Verify(args) => verify::run(args, out),
        Verb::Restore(args) => restore::run(args, out),
        Verb::Advise(args) => advise::run(args, out),
        Verb::Drain(args) => drain::run(args, out),
    }
}

/// What was not taken, a line each.
fn rejects(list: &[forebay_checkpoint::Reject]) -> String {
    list.iter().map(|reject| format!("{reject}\n")).collect()
}
