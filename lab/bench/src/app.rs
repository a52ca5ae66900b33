//! `forebay app`: the programs of the studies, one rank of one program per process.

use clap::Subcommand;
use forebay_programs::objects::{read, write};
use forebay_programs::{amr, analytics, bt, particles};
use forebay_programs::{AmrArgs, BtArgs, MultiplyArgs, ParticlesArgs, ReadOnlyArgs, ReaderArgs, WriterArgs};
use forebay_tier::Result;
use gray_scott::{analysis, simulation, AnalysisArgs, GrayScottArgs};
use serde::Serialize;

use crate::schema;
use forebay_cli::output::Output;

/// Run one rank of a program of the studies.
#[derive(clap::Args, Debug)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "A workflow starts all ranks of every component: see examples/ in the source.")]
pub struct Args {
    #[command(subcommand)]
    program: Program,
}

#[derive(Subcommand, Debug)]
enum Program {
    GrayScott(GrayScottArgs),
    Analysis(AnalysisArgs),
    Writer(WriterArgs),
    Reader(ReaderArgs),
    Particles(ParticlesArgs),
    Amr(AmrArgs),
    ReadOnly(ReadOnlyArgs),
    MatrixMultiply(MultiplyArgs),
    Bt(BtArgs),
}

/// Runs the verb. The program itself says on stderr what it did; results are in files and spaces.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body {
        program: &'static str,
    }
    let program = match &args.program {
        Program::GrayScott(args) => simulation::run(args.clone()).map(|()| "gray-scott")?,
        Program::Analysis(args) => analysis::run(args.clone()).map(|()| "analysis")?,
        Program::Writer(args) => write::run(args.clone()).map(|()| "writer")?,
        Program::Reader(args) => read::run(args.clone()).map(|()| "reader")?,
        Program::Particles(args) => particles::run(args.clone()).map(|()| "particles")?,
        Program::Amr(args) => amr::run(args.clone()).map(|()| "amr")?,
        Program::ReadOnly(args) => analytics::run_read_only(args.clone()).map(|()| "read-only")?,
        Program::MatrixMultiply(args) => analytics::run_multiply(args.clone()).map(|()| "matrix-multiply")?,
        Program::Bt(args) => bt::run(args.clone()).map(|()| "bt")?,
    };
    if out.json() {
        out.document(schema::APP, &Body { program })?;
    }
    Ok(0)
}
