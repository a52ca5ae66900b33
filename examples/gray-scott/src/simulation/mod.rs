//! A 3-D Gray–Scott reaction–diffusion simulation on R ranks, without MPI.
//!
//! The field's usual in-situ example. Ranks exchange ghost planes through a space ([`halo`]) and put U and V
//! into a channel every few steps ([`mod@simulate`]). The arithmetic ([`kernel`]), the cut into boxes
//! ([`split`]) and the input deck ([`deck`]) know nothing of spaces.

pub mod deck;
pub mod field;
pub mod halo;
pub mod kernel;
pub mod noise;
pub mod patterns;
pub mod simulate;
pub mod solver;
pub mod split;

use deck::{parse_decomposition, Deck};
use forebay_space::{OpenOptions, Result};
use std::path::PathBuf;

pub use simulate::{simulate, Summary};

/// 3-D Gray-Scott reaction-diffusion simulation, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux
/// and mpiexec); without them one process computes everything.
#[derive(Clone, Debug, clap::Args)]
pub struct GrayScottArgs {
    /// Input deck (TOML)
    #[arg(long, value_name = "FILE")]
    pub deck: PathBuf,
    /// Channel that U and V go to; the ghost planes go through a space of this name with `-halo`
    #[arg(long, value_name = "NAME", default_value = "gs")]
    pub channel: String,
    /// Time steps, instead of the deck's
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Steps from one output to the next, instead of the deck's
    #[arg(long, value_name = "N")]
    pub output_every: Option<u64>,
    /// Parts along z, y and x, such as 2x2x1, or auto; instead of the deck's
    #[arg(long, value_name = "PARTS")]
    pub decomposition: Option<String>,
}

/// Runs one rank of the simulation. Rank 0 says on standard error what was done.
pub fn run(args: GrayScottArgs) -> Result<()> {
    let mut deck = Deck::read(&args.deck)?;
    deck.steps = args.steps.unwrap_or(deck.steps);
    deck.output_every = args.output_every.unwrap_or(deck.output_every);
    if let Some(text) = &args.decomposition {
        deck.decomposition = parse_decomposition(text)?;
    }
    let done = simulate(&deck, &args.channel, &OpenOptions::default())?;
    if done.rank == 0 {
        let [nz, ny, nx] = deck.shape;
        let [pz, py, px] = done.parts;
        let skipped = match done.versions_skipped {
            0 => String::new(),
            n => format!(", {n} were there"),
        };
        eprintln!(
            "gray-scott: {} steps of {nz} x {ny} x {nx} cells on {} ({pz} x {py} x {px}), \
             {} versions of {}{skipped}",
            done.steps,
            crate::ranks(done.ranks),
            done.versions_put,
            args.channel,
        );
    }
    Ok(())
}
