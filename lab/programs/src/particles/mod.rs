//! A particle-in-cell code like GTC: few large arrays in each version, and much computing for each byte.
//!
//! The physics ([`plasma`], [`grid`]) knows nothing of processes; [`mod@simulate`] is one rank of a group. A version
//! holds `ions` (ranks × 6 × particles, each rank its own part), with `--full-state` also `ions_before`, the
//! particles at the beginning of the step, and `phi`, the potential (planes × y × x), put by rank 0.

pub mod grid;
pub mod plasma;
pub mod simulate;

use forebay_space::{OpenOptions, Result};
use std::path::PathBuf;

pub use simulate::simulate;

/// A gyrokinetic particle-in-cell simulation with few large arrays, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec). Every rank has particles of its own; all share the field, through a space of the channel's name with
/// `-density`.
#[derive(Clone, Debug, clap::Args)]
pub struct ParticlesArgs {
    /// Channel to write
    #[arg(long, value_name = "NAME", default_value = "particles")]
    pub channel: String,
    /// Size: 1 is an array of 229 MB on each rank and a grid of 2 x 180 x 180; particles per cell stay the same
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01)]
    pub scale: f64,
    /// Versions
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: u64,
    /// Time steps from one version to the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub output_every: u64,
    /// Put also the particles at the beginning of the step: twice the bytes
    #[arg(long)]
    pub full_state: bool,
    /// Time step
    #[arg(long, value_name = "TIME", default_value_t = 0.1)]
    pub dt: f64,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Directory of account-RANK.json [default: a directory called like the component, in the run directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs one rank of the simulation. Rank 0 says on standard error what was done.
pub fn run(args: ParticlesArgs) -> Result<()> {
    let (account, totals) = simulate(&args, &OpenOptions::default())?;
    if let (0, Some([first, last])) = (account.rank, totals) {
        eprintln!(
            "particles: {} particles, charge {:.6e} and their number kept, energy drift {:.1e}",
            last.particles,
            last.charge,
            (last.energy() - first.energy()) / first.energy()
        );
    }
    account.report(args.out)
}
