//! Analytics on Q ranks that follow a channel of 3-D fields: statistics, isosurface area, pictures.
//!
//! The numbers ([`statistics`], [`isosurface`]) are pure functions of the field and do not depend on Q; the
//! coupling is in [`mod@follow`], the files in [`output`] and [`slices`]. A field that lies in memory needs
//! no space: [`statistics::of_field`].

pub mod colour;
pub mod follow;
pub mod isosurface;
pub mod output;
pub mod slices;
pub mod statistics;

use forebay_space::{OpenOptions, Result};
use output::Existing;
use statistics::Recipe;
use std::path::PathBuf;

pub use follow::{follow, Settings, Summary};

/// Statistics, isosurface area and pictures of a 3-D field, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux
/// and mpiexec). Rank 0 writes statistics.jsonl, slice-AXIS-VERSION.png and index.json.
#[derive(Clone, Debug, clap::Args)]
pub struct AnalysisArgs {
    /// Channel to read
    #[arg(long, value_name = "NAME", default_value = "gs")]
    pub channel: String,
    /// Variable to analyse: three-dimensional, float32 or float64
    #[arg(long, value_name = "NAME", default_value = "V")]
    pub variable: String,
    /// Value of the isosurface
    #[arg(
        long, value_name = "VALUE", default_value_t = Recipe::default().threshold,
        allow_negative_numbers = true
    )]
    pub threshold: f64,
    /// Bins of the histogram
    #[arg(long, value_name = "N", default_value_t = Recipe::default().bins)]
    pub bins: usize,
    /// Range of the histogram
    #[arg(
        long, num_args = 2, value_names = ["LOW", "HIGH"], default_values_t = Recipe::default().range,
        allow_negative_numbers = true
    )]
    pub histogram_range: Vec<f64>,
    /// Directory of the results [default: a directory called like the component, in the run directory or
    /// here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What to do when there are results already
    #[arg(long, value_enum, default_value_t = Existing::Error)]
    pub existing: Existing,
    /// Pictures of every N-th version; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub slices_every: u64,
    /// Values at the two ends of the colour map
    #[arg(
        long, num_args = 2, value_names = ["LOW", "HIGH"], default_values_t = [0.0, 0.4],
        allow_negative_numbers = true
    )]
    pub colour_range: Vec<f64>,
}

/// Runs one rank of the analysis. Rank 0 says on standard error what was done.
pub fn run(args: AnalysisArgs) -> Result<()> {
    let out = args.out.unwrap_or_else(|| {
        let component = std::env::var_os("FOREBAY_COMPONENT").unwrap_or_else(|| "analysis".into());
        std::env::var_os("FOREBAY_RUN").map(PathBuf::from).unwrap_or_default().join(component)
    });
    let settings = Settings {
        channel: args.channel,
        variable: args.variable,
        recipe: Recipe {
            threshold: args.threshold,
            bins: args.bins,
            range: [args.histogram_range[0], args.histogram_range[1]],
        },
        out,
        existing: args.existing,
        slices_every: args.slices_every,
        colour_range: [args.colour_range[0], args.colour_range[1]],
    };
    let done = follow(&settings, &OpenOptions::default())?;
    if done.rank == 0 {
        eprintln!(
            "analysis: {} versions of {} on {}, results in {}",
            done.versions,
            settings.channel,
            crate::ranks(done.ranks),
            settings.out.display()
        );
    }
    Ok(())
}
