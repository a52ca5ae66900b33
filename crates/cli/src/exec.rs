//! `forebay exec`: one rank of a component, by a plan, under any launcher.
//!
//! Guarantees: everything about it is `forebay_flow`'s; this parses its words. What follows `--` is the program's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use forebay_tier::Result;

use crate::command::not_parsed;

/// Execute a rank's program on the processors that a plan assigns to it.
///
/// For jobs of a job manager, after its launcher: srun, flux run or mpiexec start this command once a rank, and it
/// takes the rank's number on the node from what they say. Variables that tell a program of its channels are set from
/// the plan.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: srun -n4 --cpu-bind=none forebay exec --plan plan.json --role sim -- ./sim")]
pub struct Args {
    /// Plan file (forebay plan -o writes one).
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Component of the plan.
    #[arg(long, value_name = "COMPONENT")]
    role: String,
    /// Program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the verb. Returns only on failure.
pub fn run(args: &Args) -> Result<i32> {
    match forebay_flow::exec_planned(&args.plan, &args.role, &args.command)? {}
}

/// The verb as the first word of another command that runs workflows; `args` begin with the program's name.
pub fn planned(args: &[OsString]) -> Option<Result<i32>> {
    #[derive(Parser)]
    #[command(name = "exec")]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    (args.get(1)? == forebay_flow::pin::EXEC_VERB).then(|| match Line::try_parse_from(&args[1..]) {
        Ok(line) => run(&line.args),
        Err(e) => Ok(not_parsed(&e, false)),
    })
}
