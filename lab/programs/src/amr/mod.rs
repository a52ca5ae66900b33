//! An adaptive stencil code like miniAMR: very many small objects in each version, and little computing.
//!
//! The mesh ([`mesh`]) and the arithmetic ([`blocks`]) know nothing of processes; `halo` passes cells between
//! ranks, [`mod@simulate`] is one rank of a group. A version holds one object for each variable of each block: 4672
//! bytes with blocks of 6 x 6 x 6 cells.

pub mod blocks;
mod halo;
pub mod mesh;
pub mod simulate;

use forebay_space::{OpenOptions, Result};
use std::path::PathBuf;

pub use simulate::simulate;

/// An adaptive stencil simulation with many small objects, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec). Ranks pass each other ghost cells through a space of the channel's name with `-halo`.
#[derive(Clone, Debug, clap::Args)]
pub struct AmrArgs {
    /// Channel to write
    #[arg(long, value_name = "NAME", default_value = "amr")]
    pub channel: String,
    /// Size: 1 is 528 000 objects on each rank (13 200 blocks of 40 variables)
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01)]
    pub scale: f64,
    /// Versions: one for each time step
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: u64,
    /// Stages of a time step: in each, every cell becomes the mean of itself and its neighbours
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub stages: u64,
    /// Time steps from one regridding to the next
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub refine_every: u64,
    /// Finest level
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub levels: u32,
    /// Cells along each edge of a block: even, at least 6; 6 gives objects of 4672 bytes
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub edge: usize,
    /// Variables of each cell
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub variables: usize,
    /// Objects that one call puts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Directory of account-RANK.json [default: a directory called like the component, in the run directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs one rank of the simulation. Rank 0 says on standard error what was done.
pub fn run(args: AmrArgs) -> Result<()> {
    let (account, mesh) = simulate(&args, &OpenOptions::default())?;
    if account.rank == 0 {
        eprintln!(
            "amr: {} to {} blocks, {} regriddings, sums kept to {:.1e}, levels balanced",
            mesh.blocks_min, mesh.blocks_max, mesh.regriddings, mesh.drift
        );
    }
    account.report(args.out)
}
