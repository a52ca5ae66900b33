//! Analytics on the channels of the simulations: one that only reads, one that multiplies matrices.
//!
//! What is done with a block of the stencil code or a stretch of particles ([`work`]) is a pure function of it; the
//! coupling is in [`mod@follow`]. Counts, extremes and the checksum do not depend on the number of ranks; the sum does,
//! in its last bits.

pub mod follow;
pub mod work;

use forebay_space::{OpenOptions, Result};
use gray_scott::analysis::output::Existing;
use std::path::PathBuf;

pub use follow::{follow, FILE_NAME};
pub use work::Work;

/// Reads everything that a simulation writes, once, and adds it up, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec). Each rank reads the objects of the simulation's rank of its number, or its part of all of them. Rank 0
/// writes results.jsonl: for each version counts, sum, extremes and a checksum.
#[derive(Clone, Debug, clap::Args)]
pub struct ReadOnlyArgs {
    /// Channel to read: one that `forebay app amr` or `forebay app particles` writes
    #[arg(long, value_name = "NAME")]
    pub channel: String,
    /// Objects that one call gets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Look at objects where they lie, instead of copying them
    #[arg(long)]
    pub in_place: bool,
    /// Directory of the results [default: a directory called like the component, in the run directory or here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What to do when there are results already
    #[arg(long, value_enum, default_value_t = Existing::Error)]
    pub existing: Existing,
}

/// Multiplies the matrices in what a simulation writes, one rank of it.
///
/// Of a stencil block: each plane of cells with the next, 5 products of 6 x 6. Of particles: each square tile of 6
/// particles with the next, one product for every 12 particles. Otherwise as `forebay app read-only`.
#[derive(Clone, Debug, clap::Args)]
pub struct MultiplyArgs {
    /// What is read
    #[command(flatten)]
    pub reading: ReadOnlyArgs,
    /// Times that each product is multiplied by its right factor again, to compute more for each byte
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub again: usize,
}

/// Runs one rank of the analytics that only reads.
pub fn run_read_only(args: ReadOnlyArgs) -> Result<()> {
    run(args, Work::ReadOnly)
}

/// Runs one rank of the analytics that multiplies matrices.
pub fn run_multiply(args: MultiplyArgs) -> Result<()> {
    run(args.reading, Work::Multiply { again: args.again })
}

fn run(mut args: ReadOnlyArgs, work: Work) -> Result<()> {
    let out = args.out.clone();
    let out = out.or_else(|| crate::account::place_of_run(work.name())).unwrap_or_else(|| work.name().into());
    args.out = Some(out.clone());
    follow(&args, work, &OpenOptions::default())?.report(Some(out))
}
