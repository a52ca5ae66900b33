//! `forebay bench`: the measuring programs of the studies, one file per verb beside this one.

use clap::Subcommand;
use forebay_tier::Result;

use forebay_cli::output::Output;

use crate::{
    bfs, bt, btio, cfd, checkpoint, ior, lriot, madbench, npb, polybench, sharpen, sort, staging, stream,
    workflows,
};

/// Measure as the studies did: STREAM, IOR, LRIOT, staging, sorting, graphs, arrays on a tier.
#[derive(clap::Args, Debug)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Stream(stream::Args),
    Ior(ior::Args),
    Lriot(lriot::Args),
    Staging(staging::Args),
    Sort(sort::Args),
    Bfs(bfs::Args),
    Workflows(workflows::Args),
    Madbench(madbench::Args),
    Sharpen(sharpen::Args),
    Cfd(cfd::Args),
    Polybench(polybench::Args),
    Npb(npb::Args),
    Bt(bt::Args),
    Btio(btio::Args),
    Checkpoint(checkpoint::Args),
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    match &args.verb {
        Verb::Stream(args) => stream::run(args, out),
        Verb::Ior(args) => ior::run(args, out),
        Verb::Lriot(args) => lriot::run(args, out),
        Verb::Staging(args) => staging::run(args, out),
        Verb::Sort(args) => sort::run(args, out),
        Verb::Bfs(args) => bfs::run(args, out),
        Verb::Workflows(args) => workflows::run(args, out),
        Verb::Madbench(args) => madbench::run(args, out),
        Verb::Sharpen(args) => sharpen::run(args, out),
        Verb::Cfd(args) => cfd::run(args, out),
        Verb::Polybench(args) => polybench::run(args, out),
        Verb::Npb(args) => npb::run(args, out),
        Verb::Bt(args) => bt::run(args, out),
        Verb::Btio(args) => btio::run(args, out),
        Verb::Checkpoint(args) => checkpoint::run(args, out),
    }
}
