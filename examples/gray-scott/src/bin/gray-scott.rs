//! `gray-scott`: one rank of the simulation.

use clap::Parser;
use gray_scott::{exit_status, simulation, GrayScottArgs};

#[derive(Parser)]
#[command(name = "gray-scott", version, max_term_width = 100)]
struct Line {
    #[command(flatten)]
    args: GrayScottArgs,
}

fn main() -> std::process::ExitCode {
    exit_status(simulation::run(Line::parse().args))
}
