//! A simulation and its analysis, coupled by a space: the demo, on Forebay's public API only.
//!
//! * [`simulation`]: a 3-D Gray–Scott reaction–diffusion simulation on R ranks, each a process of its own,
//!   that exchange ghost planes through a space (no MPI) and put U and V into a channel;
//! * [`analysis`]: Q ranks that read that channel by other boxes than it was written in, and compute
//!   statistics, an isosurface area and pictures.
//!
//! What they guarantee: the field is the same bit for bit for every R and every split, the statistics for
//! every Q. [`mod@reference`] computes the same numbers in one process without any space, for tests to
//! compare with. [`exchange`] and [`in_place`] are useful in other programs as well.
//!
//! The library starts no processes and parses no command line: the programs `gray-scott` and `analysis` do.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod exchange;
pub mod in_place;
pub mod reference;
pub mod simulation;

pub use analysis::AnalysisArgs;
pub use simulation::GrayScottArgs;

/// "1 rank", "4 ranks".
fn ranks(n: usize) -> String {
    format!("{n} rank{}", if n == 1 { "" } else { "s" })
}

/// What the main of a program does with its result: says an error on standard error, and gives the exit status.
#[must_use]
pub fn exit_status(result: forebay_space::Result<()>) -> std::process::ExitCode {
    let Err(error) = result else { return std::process::ExitCode::SUCCESS };
    eprintln!("error: {error}");
    std::process::ExitCode::from(u8::try_from(error.kind().exit_code()).unwrap_or(1))
}
