//! `forebay-lab`: the programs and benchmarks of the studies, as `forebay bench` and `forebay app` run them.
//!
//! Guarantees: those of the command `forebay` (`forebay_cli`): data goes to stdout, everything else to stderr, and the
//! result is the exit status. One file per benchmark, its command line in it. `forebay` hands these two verbs over with
//! all words unchanged; runs of workflows inside a benchmark start this command again as the runner's helper.
#![forbid(unsafe_code)]

mod app;
mod beside;
mod bfs;
mod bt;
mod btio;
mod cfd;
mod checkpoint;
mod ior;
mod limited;
mod lriot;
mod madbench;
mod npb;
mod outgrown;
mod peak;
mod placing;
mod plot;
mod polybench;
pub mod schema;
mod sharpen;
mod sort;
mod staging;
mod stream;
mod verbs;
mod workflows;

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser, Subcommand};
use forebay_cli::command::{
    environment_help, guarded, parsed, Global, EXIT_STATUS, HELP_COLUMNS_MAX, VERSION,
};
use forebay_cli::output::Output;
use forebay_tier::Result;

/// The programs and benchmarks of the studies.
///
/// `forebay bench` and `forebay app` start this command where it is installed.
#[derive(Parser, Debug)]
#[command(
    name = "forebay-lab",
    bin_name = "forebay",
    version,
    max_term_width = HELP_COLUMNS_MAX,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = EXIT_STATUS,
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

impl AsRef<Global> for Cli {
    fn as_ref(&self) -> &Global {
        &self.global
    }
}

#[derive(Subcommand, Debug)]
enum Verb {
    Bench(verbs::Args),
    App(app::Args),
}

fn command() -> Command {
    Cli::command().version(VERSION.as_str()).after_long_help(environment_help())
}

/// Runs the command. `args` begins with the program's name; the result is the exit status.
///
/// Blocks until the verb is done. Never ends the process itself, but for the ranks of a workflow, which become their
/// program, and never panics.
pub fn main_with(args: Vec<OsString>) -> i32 {
    guarded(&args.clone(), |json| {
        if let Some(status) = forebay_cli::runner_verb(&args) {
            return status;
        }
        parsed::<Cli>(args, json, command(), |cli, out| dispatch(&cli.verb, out))
    })
}

fn dispatch(verb: &Verb, out: &Output) -> Result<i32> {
    match verb {
        Verb::Bench(args) => verbs::run(args, out),
        Verb::App(args) => app::run(args, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }
}
