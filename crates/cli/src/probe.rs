//! `forebay probe`: what the tiers of a node deliver. Without a verb it measures; one file per verb.

mod compare;
mod emulated;
mod export;
mod import;
mod list;
mod measure;
mod report;
mod schema_text;
mod show;
mod watched;

use clap::Subcommand;
use forebay_tier::Result;

use crate::output::Output;

/// Measure what the tiers of this node deliver: memory, memory nodes, persistent memory, file systems. Or show,
/// compare, report, import and export what was measured before and what was published.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(flatten)]
    measure: measure::Args,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Ls(list::Args),
    Show(show::Args),
    Compare(compare::Args),
    Report(report::Args),
    Import(import::Args),
    Export(export::Args),
    Schema(schema_text::Args),
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    match &args.verb {
        None => measure::run(&args.measure, out),
        Some(Verb::Ls(args)) => list::run(args, out),
        Some(Verb::Show(args)) => show::run(args, out),
        Some(Verb::Compare(args)) => compare::run(args, out),
        Some(Verb::Report(args)) => report::run(args, out),
        Some(Verb::Import(args)) => import::run(args, out),
        Some(Verb::Export(args)) => export::run(args, out),
        Some(Verb::Schema(args)) => schema_text::run(args, out),
    }
}
