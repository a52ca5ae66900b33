//! `forebay bench npb`: two problems of the NAS Parallel Benchmarks with their arrays in memory and on tiles, their
//! figures compared with the published ones.
//!
//! The question is that of study C (memory expansion): what becomes of a program's speed when its arrays are larger
//! than the memory it may use. Guarantees: the figures of all ways are compared bit for bit; files have no name.

use std::path::PathBuf;

use forebay_pager::Pool;
use forebay_programs::npb::{ft, mg, Class, Kernel, Outcome};
use forebay_tier::{device, Error, Kind, Result, TierKind};
use serde::Serialize;

use super::outgrown::Place;
use super::placing::usual_tile;
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// Part of a kernel's arrays that is in memory, where it is not given.
const SHARE: u64 = 4;

/// Run multigrid and Fourier transforms (NPB's MG and FT) in memory and on tiles, with more data than the memory they
/// may use.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Kernels: mg (classes S: 32 points along each edge, W: 128, A and B: 256), ft (S: 64x64x64, \
                        W: 128x128x32, A: 256x256x128, B: 512x256x256). A run is right when its figures differ from \
                        the published ones by at most 1e-8 (mg) or 1e-12 (ft) of them."
)]
pub struct Args {
    /// Kernels to run
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "mg,ft")]
    kernel: Vec<Kernel>,
    /// Problem classes
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "S,W")]
    class: Vec<Class>,
    /// Threads; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Memory for arrays on tiles; by default a quarter of all arrays
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,
    /// Directory of the arrays on tiles
    #[arg(long, value_name = "DIR", default_value = ".")]
    tier: PathBuf,
    /// What moves together, a power of two from 4 KiB to 2 MiB; by default as long as the budget allows, to 1 MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    tile: Option<u64>,
    /// Where the arrays lie
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "dram,tiles")]
    place: Vec<Place>,
    #[command(flatten)]
    plot: PlotArgs,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    threads: u32,
    verified: bool,
    same: bool,
    rows: Vec<Row>,
}

const CASE: &[&str] = &["kernel", "class", "place"];
const PICTURES: [Picture; 2] = [
    Picture::of("Speed", "rows", CASE, "flops_per_s", (1e-9, "Gflop/s")),
    Picture::of("Read from the tier", "rows", CASE, "tier_read_bytes", (1.0 / 1_048_576.0, "MiB")),
];

#[derive(Serialize)]
struct Row {
    kernel: &'static str,
    class: Class,
    arrays_bytes: u64,
    place: Place,
    /// None where all arrays are in memory, or as much as the kernel likes.
    budget_bytes: Option<u64>,
    seconds: f64,
    flops_per_s: f64,
    read_bytes: u64,
    written_bytes: u64,
    tier_read_bytes: u64,
    tier_written_bytes: u64,
    figures: Vec<f64>,
    difference: f64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let tier = device::detect(&args.tier)?;
    let threads = super::bt::threads_of(args.threads, 1);
    let mut rows: Vec<Row> = Vec::new();
    for kernel in &args.kernel {
        for class in &args.class {
            let first = rows.len();
            for place in &args.place {
                let row = measure(args, tier, (*kernel, *class), *place, threads, out)?;
                check(&row, *kernel)?;
                rows.push(row);
            }
            same(&rows[first..])?;
        }
    }
    let place = args.tier.display().to_string();
    let body = Body { provenance: "measured", place, tier, threads, verified: true, same: true, rows };
    let facts = [format!("{threads} threads"), format!("{} ({})", body.tier, body.place)];
    plot::write(&args.plot, "npb", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_NPB, &body, || text(args, &body, out))?;
    Ok(0)
}

fn flops(kernel: Kernel, class: Class) -> f64 {
    match kernel {
        Kernel::Mg => mg::Problem::of(class).flops(),
        Kernel::Ft => ft::Problem::of(class).flops(),
    }
}

fn measure(
    args: &Args,
    tier: TierKind,
    (kernel, class): (Kernel, Class),
    place: Place,
    threads: u32,
    out: &Output,
) -> Result<Row> {
    let bytes = kernel.bytes(class);
    place.require_space(&args.tier, tier, kernel.name(), bytes, "a smaller --class")?;
    let budget = args.budget.unwrap_or(bytes / SHARE);
    let tile = args.tile.unwrap_or_else(|| usual_tile(budget));
    let (placement, pool) = place.placement(&args.tier, budget, tile)?;
    let progress = |step| out.progress(&format!("{} {class}, {}: step {step}", kernel.name(), place.name()));
    let outcome = kernel.compute(class, &placement, threads as usize, progress)?;
    let Outcome { figures, difference, moved, seconds } = outcome;
    let seen = pool.as_ref().map(Pool::statistics).unwrap_or_default();
    Ok(Row {
        kernel: kernel.name(),
        class,
        arrays_bytes: bytes,
        place,
        budget_bytes: pool.is_some().then_some(budget),
        seconds,
        flops_per_s: flops(kernel, class) / seconds,
        read_bytes: moved.dram_read + moved.tier_read,
        written_bytes: moved.dram_written + moved.tier_written,
        tier_read_bytes: seen.loaded * tile,
        tier_written_bytes: seen.written * tile,
        figures,
        difference,
    })
}

/// That the figures are the published ones.
fn check(row: &Row, kernel: Kernel) -> Result<()> {
    if row.difference <= kernel.tolerance() {
        return Ok(());
    }
    Err(Error::new(Kind::Damaged, format!("the figures of {} are not the published ones", row.kernel))
        .with("class", row.class)
        .with("place", row.place.name())
        .with("difference", format!("{:e}", row.difference)))
}

/// That they are the same bits wherever the arrays lie.
fn same(rows: &[Row]) -> Result<()> {
    match rows.iter().find(|row| row.figures != rows[0].figures) {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::Damaged,
            format!("{} gave another result ({})", row.kernel, row.place.name()),
        )
        .with("class", row.class)
        .hint("this is a bug in Forebay, or memory or the tier lost bits: run it again, then report it")),
    }
}

fn text(args: &Args, body: &Body, out: &Output) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = out.table(&[
        "KERNEL",
        "CLASS",
        "ARRAYS MiB",
        "PLACE",
        "BUDGET MiB",
        "s",
        "Gflop/s",
        "BY DRAM",
        "FROM TIER MiB",
        "TO TIER MiB",
        "FROM PUBLISHED",
    ]);
    for rows in body.rows.chunks(args.place.len()) {
        let dram = rows.iter().find(|row| row.place == Place::Dram).map(|row| row.seconds);
        for row in rows {
            table.add_row(vec![
                comfy_table::Cell::new(row.kernel),
                comfy_table::Cell::new(row.class),
                number(mib(row.arrays_bytes)),
                comfy_table::Cell::new(row.place.name()),
                number(row.budget_bytes.map_or("-".into(), mib)),
                number(format!("{:.3}", row.seconds)),
                number(format!("{:.2}", row.flops_per_s / 1e9)),
                number(dram.map_or("-".into(), |dram| format!("{:.2}", row.seconds / dram))),
                number(mib(row.tier_read_bytes)),
                number(mib(row.tier_written_bytes)),
                number(format!("{:.0e}", row.difference)),
            ]);
        }
    }
    let mut text = format!("{} threads, tier {} ({}); measured\n\n", body.threads, body.tier, body.place);
    text += &table_text(&table);
    text += "\nall figures are the published ones, flop as NPB counts them\n";
    if args.place.len() > 1 {
        text += "the results are the same, bit for bit\n";
    }
    text
}
