//! `forebay ckpt`: looking into checkpoint directories, checking them, taking arrays out, saying how often to save,
//! carrying steps down. One file per verb.

mod advise;
mod drain;
mod list;
mod restore;
mod verify;

use clap::Subcommand;
use comfy_table::Cell;
use forebay_checkpoint::{Protection, Repair, State};
use forebay_tier::Result;

use crate::output::{toned, Output, Tone};

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

/// What was brought back, a line each.
fn repairs(list: &[Repair]) -> String {
    list.iter().map(|repair| format!("{repair}\n")).collect()
}

/// The redundancy of a step, in a table.
fn protection(found: Option<&Protection>) -> Cell {
    let Some(found) = found else { return Cell::new("-") };
    let Protection { kind, state, files, missing, fault } = found;
    match (state, fault) {
        (State::Complete, _) => toned(format!("{kind} complete"), Tone::Good),
        (State::Damaged, Some(fault)) => toned(format!("{kind} damaged: {fault}"), Tone::Bad),
        (State::Damaged, None) => toned(format!("{kind} damaged"), Tone::Bad),
        (State::Incomplete, Some(fault)) => toned(format!("{kind} incomplete: {fault}"), Tone::Notable),
        (State::Incomplete, None) if *missing > 0 => {
            toned(format!("{kind} incomplete: {missing} of {files} files missing"), Tone::Notable)
        }
        (State::Incomplete, None) => toned(format!("{kind} incomplete"), Tone::Notable),
    }
}
