//! `analysis`: one rank of the analysis.

use clap::Parser;
use gray_scott::{analysis, exit_status, AnalysisArgs};

#[derive(Parser)]
#[command(name = "analysis", version, max_term_width = 100)]
struct Line {
    #[command(flatten)]
    args: AnalysisArgs,
}

fn main() -> std::process::ExitCode {
    exit_status(analysis::run(Line::parse().args))
}
