//! `forebay bench staging`: how long writing and reading a version takes, over numbers of writers and readers and over
//! tiers.
//!
//! The questions are those of study A (DataSpaces on Optane and NVMe): strong scaling (the data of a version stay the
//! same), weak scaling (the data of a rank stay the same), tiers beside each other. That study's servers take data in
//! and bring them to the drive; here the mover threads do that, one in each writer, so that its axis of servers is a
//! number of writers whose data do not fit the first tier. Every rank is a process; the times are those of the
//! channel's own traces. Sizes are scaled to the machine unless given, and every screen says how.

mod cells;
mod limit;
mod measure;
mod place;

use forebay_probe::kernels::together;
use forebay_space::format_bytes;
use forebay_tier::{capacity, Error, Kind, Result, TierKind};
use serde::Serialize;

use crate::schema;
use cells::{cells, checks, Cell};
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;
use limit::Limits;
use measure::{Measured, Response};
use place::Place;

/// Data of a version of the study, strong scaling.
const TOTAL_BYTES: u64 = 4_000_000_000;
/// Ranks and processors that the study's largest run has on each side.
const RANKS_MAX: usize = 64;
/// Default largest number of ranks on each side, for each processor.
const RANKS_PER_PROCESSOR: usize = 4;
/// Copies of a version that have to fit a tier: those under way, one ahead, and space for the system.
pub(crate) const VERSIONS_FIT: u64 = 6;

/// Measure response times of writers and readers over ranks, sizes and tiers.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Places are TIER or TIER:DIR (dram, file:/scratch, direct:/scratch, pmem:/mnt/pmem0), or \
                        files:DIR for a file per object. A process is started for every rank."
)]
pub struct Args {
    /// What to measure.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "strong,weak,movers")]
    parts: Vec<Part>,
    /// Where versions lie, beside each other.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "dram,file:.")]
    places: Vec<Place>,
    /// Numbers of ranks on one side; the largest is that of the other side [default: 1,2,4,… to 4 for each processor,
    /// at most 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Numbers of movers, each in a writer of its own.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,3,4")]
    movers: Vec<usize>,
    /// Directory that the movers bring data to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    lower: std::path::PathBuf,
    /// Data of a version under strong scaling, and for the movers [default: 4 GB, scaled by the processors out of 64].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    total: Option<u64>,
    /// Data of a rank under weak scaling.
    #[arg(long, value_name = "SIZE", default_value = "8MB", value_parser = size)]
    per_rank: u64,
    /// Versions.
    #[arg(long, value_name = "N", default_value_t = 10)]
    steps: u64,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// The data of a version stay the same.
    Strong,
    /// The data of a rank stay the same; as many readers as writers.
    Weak,
    /// Data that do not fit go down, by one mover in each writer; there are no readers.
    Movers,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    processors: usize,
    steps: u64,
    total_bytes: u64,
    /// The default was made smaller to fit the machine.
    scaled_down: bool,
    per_rank_bytes: u64,
    servers: &'static str,
    /// Every byte of a run on each place was compared before the measurements.
    checked: bool,
    limits: Vec<PlaceLimits>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct PlaceLimits {
    place: String,
    #[serde(flatten)]
    limits: Limits,
}

#[derive(Serialize)]
struct Row {
    part: Part,
    place: String,
    writers: usize,
    readers: usize,
    version_bytes: u64,
    write: Response,
    read: Option<Response>,
    write_share: f64,
    read_share: Option<f64>,
    moved_bytes_min: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let processors = together::processors().len();
    let ranks = ranks(args, processors)?;
    check(args)?;
    let total = total(args, processors, &ranks)?;
    let mut limits = Vec::new();
    for place in &args.places {
        limits.push(PlaceLimits { place: place.to_string(), limits: limit::of(place)? });
    }
    let lower = match args.parts.contains(&Part::Movers) {
        true => Some(PlaceLimits { place: lower_name(args), limits: limit::of_lower(&args.lower)? }),
        false => None,
    };
    limits.extend(lower);
    for cell in checks(args, &ranks) {
        out.progress(&format!("every byte on {}", cell.limit_of()));
        if let Measured::Interrupted(code) = measure::measure(&cell)? {
            return Ok(code);
        }
    }
    let mut rows = Vec::new();
    for cell in cells(args, &ranks, total) {
        out.progress(&cell.to_string());
        let measured = match measure::measure(&cell)? {
            Measured::Done { write, read } => (write, read),
            Measured::Interrupted(code) => return Ok(code),
        };
        let limit = limits.iter().find(|l| l.place == cell.limit_of()).map(|l| l.limits);
        rows.push(row(&cell, measured, limit));
    }
    let body = Body {
        provenance: "measured",
        processors,
        steps: args.steps,
        total_bytes: total,
        scaled_down: args.total.is_none() && total < TOTAL_BYTES,
        per_rank_bytes: args.per_rank,
        servers: "mover threads, one in each writer",
        checked: true,
        limits,
        rows,
    };
    out.result(schema::BENCH_STAGING, &body, || text(&body, out))?;
    Ok(0)
}

fn lower_name(args: &Args) -> String {
    format!("dram, then {}", args.lower.display())
}

fn row(cell: &Cell, (write, read): (Response, Option<Response>), limits: Option<Limits>) -> Row {
    let share = |rate: f64, limit: Option<f64>| limit.filter(|l| *l > 0.0).map_or(0.0, |l| rate / l);
    Row {
        part: cell.part,
        place: cell.limit_of(),
        writers: cell.writers,
        readers: cell.readers,
        version_bytes: cell.version_bytes(),
        write_share: share(write.bytes_per_s, limits.map(|l| l.write_bytes_per_s)),
        read_share: read.as_ref().map(|r| share(r.bytes_per_s, limits.map(|l| l.read_bytes_per_s))),
        write,
        read,
        moved_bytes_min: cell.moved_bytes_min(),
    }
}

fn ranks(args: &Args, processors: usize) -> Result<Vec<usize>> {
    let mut ranks = args.ranks.clone();
    if ranks.is_empty() {
        let end = (processors * RANKS_PER_PROCESSOR).min(RANKS_MAX);
        ranks = (0..).map(|i| 1 << i).take_while(|n| *n <= end).collect();
    }
    if let Some(wrong) = ranks.iter().chain(&args.movers).find(|n| **n == 0 || **n > 4096) {
        return Err(Error::new(Kind::Usage, format!("{wrong} ranks")).hint("1 to 4096"));
    }
    Ok(ranks)
}

fn check(args: &Args) -> Result<()> {
    if args.steps == 0 || args.per_rank < 64 || args.total.is_some_and(|t| t < 1 << 12) {
        return Err(Error::new(
            Kind::Usage,
            "there is to be a version, 64 B of each rank and 4 KiB of each version",
        ));
    }
    if args.parts.contains(&Part::Movers) && args.steps <= cells::SEGMENTS_PER_WRITER {
        return Err(Error::new(
            Kind::Usage,
            "so few versions fit the first tier: the movers have nothing to do",
        )
        .with("steps", args.steps)
        .hint(format!("more than {} --steps, or --parts strong,weak", cells::SEGMENTS_PER_WRITER)));
    }
    Ok(())
}

/// What a version holds under strong scaling, so that it fits everywhere.
fn total(args: &Args, processors: usize, ranks: &[usize]) -> Result<u64> {
    let widest = ranks.iter().copied().max().unwrap_or(1) as u64;
    let mut places = Vec::new();
    for place in &args.places {
        places.push(Capacity {
            place: place.to_string(),
            bytes: place.free_bytes()?,
            versions: VERSIONS_FIT,
        });
    }
    let least = |places: &[Capacity]| places.iter().min_by_key(|place| place.fits()).cloned();
    let weak = args.per_rank * widest;
    if let Some(least) = least(&places).filter(|r| args.parts.contains(&Part::Weak) && weak > r.fits()) {
        return Err(out_of_space(weak, &least).hint("fewer --ranks, a smaller --per-rank, or --parts strong"));
    }
    if args.parts.contains(&Part::Movers) {
        places.extend(of_movers(args)?);
    }
    let capacity = least(&places);
    let fits = capacity.as_ref().map_or(u64::MAX, Capacity::fits);
    match (args.total, capacity) {
        (Some(total), Some(least)) if total > fits => {
            Err(out_of_space(total, &least).hint("a smaller --total"))
        }
        (Some(total), _) => Ok(total),
        (None, _) => {
            let scaled = TOTAL_BYTES / RANKS_MAX as u64 * (processors.min(RANKS_MAX) as u64);
            Ok(scaled.min(fits).max(1 << 20))
        }
    }
}

/// Free bytes somewhere, and how many versions have to fit there.
#[derive(Clone)]
struct Capacity {
    place: String,
    bytes: u64,
    versions: u64,
}

impl Capacity {
    fn fits(&self) -> u64 {
        self.bytes / self.versions
    }
}

/// What the movers need: main memory above, and below it every version of the run.
fn of_movers(args: &Args) -> Result<[Capacity; 2]> {
    let above = Place::Tier(TierKind::Dram, None);
    let below = capacity::headroom(&args.lower, TierKind::File)?;
    Ok([
        Capacity { place: above.to_string(), bytes: above.free_bytes()?, versions: VERSIONS_FIT },
        Capacity {
            place: args.lower.display().to_string(),
            bytes: below.bytes,
            versions: args.steps + VERSIONS_FIT,
        },
    ])
}

fn out_of_space(version: u64, at: &Capacity) -> Error {
    Error::new(Kind::TierFull, "so large versions do not fit")
        .with("place", &at.place)
        .with("version_bytes", version)
        .with("versions", at.versions)
        .with("free_bytes", at.bytes)
}

fn text(body: &Body, out: &Output) -> String {
    let mut text = format!("{} versions, {} processors; measured\n", body.steps, body.processors);
    let scaled = match body.scaled_down {
        true => {
            format!(" (scaled down from 4 GB to {} processors; --total 4GB for all of it)", body.processors)
        }
        false => String::new(),
    };
    text += &format!("strong scaling: {} in each version{scaled}\n", format_bytes(body.total_bytes));
    text += &format!(
        "weak scaling: {} of each rank, as many readers as writers\n",
        format_bytes(body.per_rank_bytes)
    );
    text += "movers: one in each writer; data that do not fit the first tier go down; no readers\n\n";
    let mut table = out.table(&[
        "PART", "PLACE", "WRITERS", "READERS", "VERSION", "WRITE ms", "10..90 %", "GB/s", "OF LIMIT",
        "READ ms", "10..90 %", "GB/s", "OF LIMIT",
    ]);
    for row in &body.rows {
        let part = match row.part {
            Part::Strong => "strong",
            Part::Weak => "weak",
            Part::Movers => "movers",
        };
        let mut line = vec![part.into(), row.place.clone().into()];
        line.extend([number(row.writers), number(row.readers), number(format_bytes(row.version_bytes))]);
        line.extend(response(Some(&row.write), Some(row.write_share)));
        line.extend(response(row.read.as_ref(), row.read_share));
        table.add_row(line);
    }
    text += &table_text(&table);
    text +=
        "\na response is what one rank's part of one version takes, waiting for free space included, for a \
             version not\n";
    text += "every byte of a short run on each place is what was written\n";
    for PlaceLimits { place, limits } in &body.limits {
        let (write, read) = (limits.write_bytes_per_s / 1e9, limits.read_bytes_per_s / 1e9);
        text += &format!("limit of {place}: {write:.2} GB/s writing, {read:.2} reading ({})\n", limits.of);
    }
    text
}

fn response(response: Option<&Response>, share: Option<f64>) -> Vec<comfy_table::Cell> {
    let (Some(r), Some(share)) = (response, share) else { return (0..4).map(|_| number("-")).collect() };
    let ms = |s: f64| format!("{:.2}", s * 1e3);
    vec![
        number(ms(r.median_s)),
        number(format!("{}..{}", ms(r.low_s), ms(r.high_s))),
        number(format!("{:.2}", r.bytes_per_s / 1e9)),
        number(format!("{:.0} %", share * 100.0)),
    ]
}

#[cfg(test)]
mod tests;
