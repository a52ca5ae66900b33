//! `forebay bench polybench`: kernels of that suite in memory and on tiles, with arrays that outgrow their memory.
//!
//! The question is that of study C (memory expansion): what becomes of a kernel's speed when its arrays are larger than
//! the memory it may use. Guarantees: the results of both ways are compared bit for bit; files have no name.

use std::path::PathBuf;

use forebay_pager::Pool;
use forebay_programs::polybench::{self, Case, Kernel, Outcome};
use forebay_space::format_bytes;
use forebay_tier::{device, Error, Kind, Result, TierKind};
use serde::Serialize;

use super::outgrown::Place;
use super::placing::usual_tile;
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// Run PolyBench kernels in memory and on tiles, with arrays below and past the memory they may use.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Kernels: atax, gemver, jacobi-2d, fdtd-2d, adi, covariance, gemm. A size is that of all arrays \
                        of a kernel together."
)]
pub struct Args {
    /// Kernels to run
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "atax,gemver,jacobi-2d,fdtd-2d,adi"
    )]
    kernel: Vec<Kernel>,
    /// Memory that a kernel on tiles may use
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    budget: u64,
    /// Bytes of a kernel's arrays; by default a half, once, twice and four times the budget
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    size: Vec<u64>,
    /// Steps of the stencils
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,
    /// Directory of the arrays on tiles
    #[arg(long, value_name = "DIR", default_value = ".")]
    tier: PathBuf,
    /// What moves together, a power of two from 4 KiB to 2 MiB; by default as long as the budget allows, to 1 MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    tile: Option<u64>,
    /// Where the arrays lie
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "dram,tiles")]
    place: Vec<Place>,
    /// Run in memory, too, what does not fit: it swaps, or is killed
    #[arg(long)]
    swap: bool,
    #[command(flatten)]
    plot: PlotArgs,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    budget_bytes: u64,
    tile_bytes: u64,
    steps: usize,
    same: bool,
    rows: Vec<Row>,
}

const CASE: &[&str] = &["kernel", "arrays_bytes", "place"];
const PICTURES: [Picture; 2] = [
    Picture::of("Speed", "rows", CASE, "flops_per_s", (1e-9, "Gflop/s")),
    Picture::of("Read from the tier", "rows", CASE, "tier_read_bytes", (1.0 / 1_048_576.0, "MiB")),
];

#[derive(Serialize)]
struct Row {
    kernel: &'static str,
    n: usize,
    arrays_bytes: u64,
    place: Place,
    seconds: f64,
    flops_per_s: f64,
    read_bytes: u64,
    written_bytes: u64,
    tier_read_bytes: u64,
    tier_written_bytes: u64,
    fingerprint: String,
}

impl Args {
    fn tile(&self) -> u64 {
        self.tile.unwrap_or_else(|| usual_tile(self.budget))
    }
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let halves = [1, 2, 4, 8].map(|times| times * args.budget / 2);
    let sizes = if args.size.is_empty() { &halves[..] } else { &args.size };
    let tier = device::detect(&args.tier)?;
    let mut rows: Vec<Row> = Vec::new();
    for kernel in &args.kernel {
        for size in sizes {
            let case = Case { n: edge(*kernel, *size)?, steps: args.steps };
            let first = rows.len();
            for place in &args.place {
                rows.push(measure(args, tier, *kernel, &case, *place)?);
                out.progress(&format!("{} of {} MiB, {}: done", kernel.name(), size >> 20, place.name()));
            }
            same(&rows[first..])?;
        }
    }
    let body = Body {
        provenance: "measured",
        place: args.tier.display().to_string(),
        tier,
        budget_bytes: args.budget,
        tile_bytes: args.tile(),
        steps: args.steps,
        same: true,
        rows,
    };
    let facts =
        [format!("budget {}", format_bytes(body.budget_bytes)), format!("{} ({})", body.tier, body.place)];
    plot::write(&args.plot, "polybench", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_POLYBENCH, &body, || text(args, &body, out))?;
    Ok(0)
}

/// Rows and columns of arrays that take so many bytes together.
fn edge(kernel: Kernel, bytes: u64) -> Result<usize> {
    let n = (bytes as f64 / kernel.arrays() as f64 / size_of::<f64>() as f64).sqrt() as usize;
    match n {
        0..8 => Err(Error::new(
            Kind::Usage,
            format!("{bytes} bytes are too few for the arrays of {}", kernel.name()),
        )
        .hint("at least some KiB")),
        n => Ok(n),
    }
}

fn measure(args: &Args, tier: TierKind, kernel: Kernel, case: &Case, place: Place) -> Result<Row> {
    let bytes = case.array_bytes() * kernel.arrays() as u64;
    if !(args.swap && place == Place::Dram) {
        place.require_space(&args.tier, tier, kernel.name(), bytes, "smaller --size, or --swap")?;
    }
    let (placement, pool) = place.placement(&args.tier, args.budget, args.tile())?;
    let Outcome { fingerprint, moved, seconds } = polybench::compute(kernel, case, &placement)?;
    let seen = pool.as_ref().map(Pool::statistics).unwrap_or_default();
    Ok(Row {
        kernel: kernel.name(),
        n: case.n,
        arrays_bytes: bytes,
        place,
        seconds,
        flops_per_s: kernel.flops(case) / seconds,
        read_bytes: moved.dram_read + moved.tier_read,
        written_bytes: moved.dram_written + moved.tier_written,
        tier_read_bytes: seen.loaded * args.tile(),
        tier_written_bytes: seen.written * args.tile(),
        fingerprint: fingerprint.to_string(),
    })
}

fn same(rows: &[Row]) -> Result<()> {
    match rows.iter().find(|row| row.fingerprint != rows[0].fingerprint) {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::Damaged,
            format!("{} gave another result ({})", row.kernel, row.place.name()),
        )
        .with("n", row.n)
        .hint("this is a bug in Forebay, or memory or the tier lost bits: run it again, then report it")),
    }
}

fn text(args: &Args, body: &Body, out: &Output) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut text = format!(
        "budget {} MiB, tiles of {} KiB, tier {} ({}); measured\n\n",
        mib(body.budget_bytes),
        body.tile_bytes >> 10,
        body.tier,
        body.place
    );
    let heading =
        ["KERNEL", "N", "ARRAYS MiB", "PLACE", "s", "Gflop/s", "BY DRAM", "FROM TIER MiB", "TO TIER MiB"];
    let mut table = out.table(&heading);
    for rows in body.rows.chunks(args.place.len()) {
        let dram = rows.iter().find(|row| row.place == Place::Dram).map(|row| row.seconds);
        for row in rows {
            let ratio = dram.map_or("-".into(), |dram| format!("{:.2}", row.seconds / dram));
            table.add_row(vec![
                comfy_table::Cell::new(row.kernel),
                number(row.n),
                number(mib(row.arrays_bytes)),
                comfy_table::Cell::new(row.place.name()),
                number(format!("{:.3}", row.seconds)),
                number(format!("{:.2}", row.flops_per_s / 1e9)),
                number(ratio),
                number(mib(row.tier_read_bytes)),
                number(mib(row.tier_written_bytes)),
            ]);
        }
    }
    text += &table_text(&table);
    if args.place.len() > 1 {
        text += "\nthe results are the same, bit for bit\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_that_of_all_arrays() {
        assert_eq!(edge(Kernel::Atax, 8 * 100 * 100).unwrap(), 100);
        assert_eq!(edge(Kernel::Gemm, 3 * 8 * 100 * 100 + 7).unwrap(), 100);
        assert_eq!(edge(Kernel::Gemm, 100).unwrap_err().kind(), Kind::Usage);
    }
}
