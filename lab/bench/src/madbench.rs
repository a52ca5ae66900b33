//! `forebay bench madbench`: the out-of-memory matrix work of MADBench2 through system calls, mapped memory and tiles.
//!
//! The question is that of study D: what small blocks cost through each interface. Guarantees: every matrix that is
//! read is checked; files have no name.

use std::path::PathBuf;

use forebay_pager::{Pool, PoolOptions};
use forebay_programs::madbench::{self, Calls, Case, Mapped, Outcome, Tiles, Transfers};
use forebay_space::format_bytes;
use forebay_tier::{capacity, device, Error, Kind, Result, TierKind};
use serde::Serialize;

use super::placing::usual_tile;
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// Write, read, overwrite and read again matrices that do not fit memory, in blocks of many sizes, through system
/// calls, mapped memory and tiles.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Phases: S writes each matrix, W reads and overwrites it, C reads it (and with the algebra all \
                        later ones for each). Written bytes are on the medium at the end of a phase."
)]
pub struct Args {
    /// Pixels: rows and columns of a matrix
    #[arg(long, value_name = "N", default_value_t = 512)]
    pixels: usize,
    /// Bins: matrices
    #[arg(long, value_name = "N", default_value_t = 16)]
    bins: usize,
    /// Move bytes only: a loop of pixels to this power steps stands for the algebra of a matrix
    #[arg(long, value_name = "POWER", num_args = 0..=1, default_missing_value = "0")]
    io: Option<u32>,
    /// Sizes of a transfer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64,4KiB,64KiB,1MiB", value_parser = size)]
    block: Vec<u64>,
    /// Interfaces
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "file,memory,tiles")]
    interface: Vec<Interface>,
    /// Directory of the matrices
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Memory for tiles; by default that of three matrices
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,
    /// Where the pixels lie
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    plot: PlotArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Interface {
    /// pwrite and pread, through the page cache.
    File,
    /// Copies into a mapping.
    Memory,
    /// Tiles of an array under a budget, past the page cache.
    Tiles,
}

impl Interface {
    fn name(self) -> &'static str {
        match self {
            Interface::File => "file",
            Interface::Memory => "memory",
            Interface::Tiles => "tiles",
        }
    }
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    pixels: usize,
    bins: usize,
    matrix_bytes: u64,
    budget_bytes: u64,
    algebra: bool,
    rows: Vec<Row>,
}

const CASE: &[&str] = &["interface", "block_bytes", "phase"];
const PICTURES: [Picture; 3] = [
    Picture::seconds("rows", &["interface", "block_bytes"]),
    Picture { inner: Some("phases"), ..Picture::of("Reading", "rows", CASE, "read_s", (1.0, "s")) },
    Picture { inner: Some("phases"), ..Picture::of("Writing", "rows", CASE, "write_s", (1.0, "s")) },
];

#[derive(Serialize)]
struct Row {
    interface: Interface,
    block_bytes: u64,
    seconds: f64,
    phases: Vec<Phase>,
    residual: Option<f64>,
}

#[derive(Serialize)]
struct Phase {
    phase: &'static str,
    read_bytes: u64,
    read_s: f64,
    written_bytes: u64,
    write_s: f64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let case = |block: u64| Case {
        pixels: args.pixels,
        bins: args.bins,
        block: usize::try_from(block).unwrap_or(usize::MAX),
        busy: args.io,
        seed: args.seed,
    };
    args.block.iter().try_for_each(|block| case(*block).check())?;
    let tier = device::detect(&args.dir)?;
    let whole = case(1);
    require_space(args, tier, &whole)?;
    let budget = args.budget.unwrap_or(3 * whole.matrix_bytes()).max(1 << 20);
    let mut rows = Vec::new();
    for block in &args.block {
        for interface in &args.interface {
            let case = case(*block);
            let progress =
                |what: &str| out.progress(&format!("{}, blocks of {block} B, {what}", interface.name()));
            rows.push(row(*interface, *block, &measure(args, *interface, &case, budget, progress)?));
        }
    }
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        tier,
        pixels: args.pixels,
        bins: args.bins,
        matrix_bytes: whole.matrix_bytes(),
        budget_bytes: budget,
        algebra: args.io.is_none(),
        rows,
    };
    let facts = [
        format!("{} matrices of {}", body.bins, format_bytes(body.matrix_bytes)),
        format!("{} ({})", body.tier, body.place),
    ];
    plot::write(&args.plot, "madbench", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_MADBENCH, &body, || text(&body, out))?;
    Ok(0)
}

fn require_space(args: &Args, tier: TierKind, case: &Case) -> Result<()> {
    let free = capacity::headroom(&args.dir, tier)?;
    let wanted = case.bytes();
    if wanted <= free.bytes / 2 {
        return Ok(());
    }
    Err(Error::new(Kind::TierFull, "the matrices would take more than half of what is free")
        .with("wanted_bytes", wanted)
        .with("free_bytes", free.bytes)
        .with("limited_by", free.limited_by)
        .hint("fewer --bins or --pixels, or another --dir"))
}

fn measure(
    args: &Args,
    interface: Interface,
    case: &Case,
    budget: u64,
    progress: impl FnMut(&str),
) -> Result<Outcome> {
    let (dir, bytes) = (&args.dir, case.bytes());
    match interface {
        Interface::File => madbench::compute(case, &mut Calls::new(dir, bytes)?, progress),
        Interface::Memory => madbench::compute(case, &mut Mapped::new(dir, bytes)?, progress),
        Interface::Tiles => {
            let tile = usual_tile(budget) as usize;
            let pool = Pool::new(PoolOptions { tile_max: tile, ..PoolOptions::new(budget) })?;
            madbench::compute(case, &mut Tiles::new(&pool, dir, bytes, tile)?, progress)
        }
    }
}

fn row(interface: Interface, block_bytes: u64, outcome: &Outcome) -> Row {
    let phase = |(phase, of): (&'static str, &Transfers)| Phase {
        phase,
        read_bytes: of.read,
        read_s: of.reading.as_secs_f64(),
        written_bytes: of.written,
        write_s: of.writing.as_secs_f64(),
    };
    Row {
        interface,
        block_bytes,
        seconds: outcome.elapsed.as_secs_f64(),
        phases: ["S", "W", "C"].into_iter().zip(&outcome.phases).map(phase).collect(),
        residual: (!outcome.fisher.is_empty()).then_some(outcome.residual),
    }
}

fn text(body: &Body, out: &Output) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut text = format!(
        "{} matrices of {} MiB on tier {} ({}), {}; budget of tiles {} MiB; measured\n\n",
        body.bins,
        mib(body.matrix_bytes),
        body.tier,
        body.place,
        if body.algebra { "with the algebra" } else { "bytes only" },
        mib(body.budget_bytes)
    );
    let heading = ["BLOCK B", "INTERFACE", "S write GB/s", "W read", "W write", "C read", "ALL s"];
    let mut table = out.table(&heading);
    let rate = |bytes: u64, seconds: f64| number(format!("{:.3}", bytes as f64 / seconds / 1e9));
    for row in &body.rows {
        let [s, w, c] = &row.phases[..] else { continue };
        table.add_row(vec![
            number(row.block_bytes),
            comfy_table::Cell::new(row.interface.name()),
            rate(s.written_bytes, s.write_s),
            rate(w.read_bytes, w.read_s),
            rate(w.written_bytes, w.write_s),
            rate(c.read_bytes, c.read_s),
            number(format!("{:.2}", row.seconds)),
        ]);
    }
    text += &table_text(&table);
    text += "\nfile and memory read from the page cache what it still holds; tiles read the medium past their budget";
    text += match body.algebra {
        true => "\nD times W is S: every matrix came back as it was written\n",
        false => "\nevery element came back as it was written\n",
    };
    text
}
