//! A program of the studies run once with all of its arrays in memory, then with some and with all of them on a tier:
//! time, peak memory, and that what comes out is the same.
//!
//! The question is that of study D (sharpen, cfd): how much memory can be saved for how much time. Beside what is
//! measured stands what a model of published nodes says of the same bytes, marked *predicted*.

use std::path::PathBuf;
use std::time::Instant;

use forebay_pager::{Pool, PoolOptions};
use forebay_programs::placed::{Fingerprint, Moved, Placement};
use forebay_suite::stream::{self, Traffic};
use forebay_tier::{capacity, device, Error, Horizon, Kind, Result, TierKind};
use serde::Serialize;

use super::peak;
use super::plot::{self, Picture, PlotArgs};
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// Part of all arrays that is in memory when they lie on the tier.
const SHARE: u64 = 20;
/// Tiles that a budget should hold at least, for each array to read ahead and write behind.
const TILES: u64 = 128;
const TILE_MIN: u64 = 4 << 10;
const TILE_MAX: u64 = 1 << 20;

/// Where arrays lie, and when they are made persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// All of them in memory.
    Dram,
    /// Some on the tier, never persisted.
    None,
    /// Some on the tier, persisted after every sweep.
    Partial,
    /// All on the tier, each write persisted.
    Full,
}

impl Variant {
    fn horizon(self) -> Horizon {
        match self {
            Variant::Dram | Variant::None => Horizon::None,
            Variant::Partial => Horizon::Epoch,
            Variant::Full => Horizon::Write,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Variant::Dram => "dram",
            Variant::None => "none",
            Variant::Partial => "partial",
            Variant::Full => "full",
        }
    }
}

/// What the verbs share on the command line.
#[derive(clap::Args, Debug)]
pub struct PlacingArgs {
    /// Directory of the arrays that do not lie in memory
    #[arg(long, value_name = "DIR", default_value = ".")]
    tier: PathBuf,
    /// What to run
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "dram,none,partial,full")]
    horizon: Vec<Variant>,
    /// Arrays that lie on the tier with horizons none and partial
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    place: Vec<String>,
    /// Most memory for arrays on the tier; by default a twentieth of all arrays
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,
    /// What moves together, a power of two from 4 KiB to 2 MiB; by default as long as the budget allows, to 1 MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    tile: Option<u64>,
    #[command(flatten)]
    plot: PlotArgs,
}

/// A program to run: its arrays, which of them the study moved, and how to compute.
pub struct Program<'a, F> {
    /// Its arrays with their bytes.
    pub fields: Vec<(F, &'static str, u64)>,
    /// Those that lie on the tier unless the user says otherwise.
    pub moved: &'a [F],
    /// The study's times by that with all arrays in memory (none, partial, full), where it has them, with their source.
    pub study: [Option<f64>; 3],
}

/// What a run says of itself.
pub struct Computed {
    /// Of the bits of what came out.
    pub fingerprint: Fingerprint,
    /// What was moved.
    pub moved: Moved,
    /// A figure of the result, for people.
    pub figure: (&'static str, f64),
}

/// A run.
#[derive(Debug, Serialize)]
pub struct Row {
    horizon: Variant,
    on_tier: Vec<&'static str>,
    seconds: f64,
    /// Against the run with all arrays in memory, where there was one.
    ratio: Option<f64>,
    /// Growth of the resident set at its highest; None where the kernel does not say.
    peak_memory_bytes: Option<u64>,
    memory_arrays_bytes: u64,
    budget_bytes: u64,
    /// What the program read from and wrote to arrays, and what moved between tier and frames.
    moved: Bytes,
    tier_read_bytes: u64,
    tier_written_bytes: u64,
    fingerprint: String,
    figure: f64,
    /// Ratio that the study measured.
    study: Option<f64>,
    /// Ratios that the model has for nodes with persistent memory.
    predicted: Vec<Predicted>,
}

#[derive(Debug, Serialize)]
struct Bytes {
    dram_read: u64,
    dram_written: u64,
    tier_read: u64,
    tier_written: u64,
}

#[derive(Debug, Serialize)]
struct Predicted {
    platform: &'static str,
    ratio: f64,
}

const PICTURES: [Picture; 5] = [
    Picture::seconds("rows", &["horizon"]),
    Picture::of("Peak memory", "rows", &["horizon"], "peak_memory_bytes", (1.0 / 1_048_576.0, "MiB")),
    Picture::of("Time by that in memory", "rows", &["horizon"], "ratio", (1.0, "1")),
    Picture::of("Time by that in memory", "rows", &["horizon"], "study", (1.0, "1"))
        .but("study", "published"),
    Picture {
        inner: Some("predicted"),
        kind: "predicted",
        ..Picture::of("Time by that in memory", "rows", &["horizon", "platform"], "ratio", (1.0, "1"))
    },
];

/// Writes the pictures, if they are asked for.
///
/// # Errors
/// What writing the file says.
pub fn plot(args: &PlacingArgs, title: &str, head: &str, body: &Body, out: &Output) -> Result<()> {
    let facts = [head.to_owned(), format!("{} ({})", body.tier, body.place)];
    plot::write(&args.plot, title, &facts, body, &PICTURES, out)
}

/// What all rows have in common.
#[derive(Debug, Serialize)]
pub struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    arrays: Vec<ArrayBytes>,
    tile_bytes: u64,
    figure: &'static str,
    same: bool,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct ArrayBytes {
    name: &'static str,
    bytes: u64,
}

/// Runs the program as the arguments say.
///
/// # Errors
/// `Usage` for an array that there is not, `TierFull` without enough space, `Damaged` when two runs differ, and what a
/// run says.
pub fn run<F: Copy + PartialEq>(
    args: &PlacingArgs,
    program: &Program<'_, F>,
    out: &Output,
    compute: impl Fn(&dyn Fn(F) -> Placement, &'static str) -> Result<Computed>,
) -> Result<Body> {
    let moved = named(args, program)?;
    let all: u64 = program.fields.iter().map(|(.., bytes)| bytes).sum();
    let budget = args.budget.unwrap_or(all / SHARE).max(32 * TILE_MIN);
    let tile = args.tile.unwrap_or_else(|| usual_tile(budget));
    let mut body = Body {
        provenance: "measured",
        place: args.tier.display().to_string(),
        tier: device::detect(&args.tier)?,
        arrays: program.fields.iter().map(|(_, name, bytes)| ArrayBytes { name, bytes: *bytes }).collect(),
        tile_bytes: tile,
        figure: "",
        same: true,
        rows: Vec::new(),
    };
    let mut base: Option<(f64, Moved)> = None;
    for variant in &args.horizon {
        let on_tier: Vec<F> = match variant {
            Variant::Dram => Vec::new(),
            Variant::Full => program.fields.iter().map(|(field, ..)| *field).collect(),
            Variant::None | Variant::Partial => moved.clone(),
        };
        require_space(args, program, &on_tier, budget)?;
        let shape = Shape { variant: *variant, on_tier: &on_tier, budget, tile };
        let (row, computed) = shape.run(args, program, base, &compute)?;
        if *variant == Variant::Dram {
            base = Some((row.seconds, computed.moved));
        }
        out.progress(&format!("{}: {:.2} s", variant.name(), row.seconds));
        body.figure = computed.figure.0;
        body.rows.push(row);
    }
    same(&body)?;
    Ok(body)
}

/// How arrays lie in one run.
struct Shape<'a, F> {
    variant: Variant,
    on_tier: &'a [F],
    budget: u64,
    tile: u64,
}

impl<F: Copy + PartialEq> Shape<'_, F> {
    /// Runs the program so. `base`: seconds and bytes of the run with all arrays in memory.
    fn run(
        &self,
        args: &PlacingArgs,
        program: &Program<'_, F>,
        base: Option<(f64, Moved)>,
        compute: &impl Fn(&dyn Fn(F) -> Placement, &'static str) -> Result<Computed>,
    ) -> Result<(Row, Computed)> {
        let Shape { variant, on_tier, budget, tile } = *self;
        let options = PoolOptions { tile_max: tile as usize, ..PoolOptions::new(budget) };
        let pool = if on_tier.is_empty() { None } else { Some(Pool::new(options)?) };
        let place = |field: F| match &pool {
            Some(pool) if on_tier.contains(&field) => Placement::Tier {
                pool: pool.clone(),
                dir: args.tier.clone(),
                tile_bytes: tile as usize,
                horizon: variant.horizon(),
            },
            _ => Placement::Dram,
        };
        let before = peak::begin();
        let began = Instant::now();
        let computed = compute(&place, variant.name())?;
        let seconds = began.elapsed().as_secs_f64();
        let peak_memory_bytes = before.and_then(peak::since);
        let seen = pool.as_ref().map(Pool::statistics).unwrap_or_default();
        let (there, here): (Vec<_>, Vec<_>) =
            program.fields.iter().partition(|(field, ..)| on_tier.contains(field));
        let base = match variant {
            Variant::Dram => Some((seconds, computed.moved)),
            _ => base,
        };
        let row = Row {
            horizon: variant,
            on_tier: there.iter().map(|(_, name, _)| *name).collect(),
            seconds,
            ratio: base.map(|(base, _)| seconds / base),
            peak_memory_bytes,
            memory_arrays_bytes: here.iter().map(|(.., bytes)| bytes).sum(),
            budget_bytes: if pool.is_some() { budget } else { 0 },
            moved: bytes(&computed.moved),
            tier_read_bytes: seen.loaded * tile,
            tier_written_bytes: seen.written * tile,
            fingerprint: computed.fingerprint.to_string(),
            figure: computed.figure.1,
            study: study(program, variant),
            predicted: base.map(|(_, all)| predicted(&all, &computed.moved, variant)).unwrap_or_default(),
        };
        Ok((row, computed))
    }
}

/// What moves together where it is not given: a budget holds many of them, for each array to read ahead and write
/// behind.
pub fn usual_tile(budget: u64) -> u64 {
    1 << (budget / TILES).clamp(TILE_MIN, TILE_MAX).ilog2()
}

/// The arrays that the user names, or those that the study moved.
fn named<F: Copy + PartialEq>(args: &PlacingArgs, program: &Program<'_, F>) -> Result<Vec<F>> {
    let known = || program.fields.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    let there: Vec<F> = program.fields.iter().map(|(field, ..)| *field).collect();
    if args.place.is_empty() {
        return Ok(program.moved.iter().copied().filter(|field| there.contains(field)).collect());
    }
    let find = |wanted: &String| {
        let found = program.fields.iter().find(|(_, name, _)| name == wanted);
        found.map(|(field, ..)| *field).ok_or_else(|| {
            Error::new(Kind::Usage, format!("there is no array `{wanted}`"))
                .hint(format!("the arrays are {}", known()))
        })
    };
    args.place.iter().map(find).collect()
}

/// Refuses before a page is touched.
fn require_space<F: PartialEq>(
    args: &PlacingArgs,
    program: &Program<'_, F>,
    on_tier: &[F],
    budget: u64,
) -> Result<()> {
    let bytes = |there: bool| -> u64 {
        let of = program.fields.iter().filter(|(field, ..)| on_tier.contains(field) == there);
        of.map(|(.., bytes)| bytes).sum()
    };
    let refuse = |what: &str, wanted: u64, free: capacity::Headroom| {
        Err(Error::new(Kind::TierFull, format!("{what} would take more than is free"))
            .with("wanted_bytes", wanted)
            .with("free_bytes", free.bytes)
            .with("limited_by", free.limited_by)
            .hint("a smaller problem, or other --horizon: full has all arrays on the tier"))
    };
    let wanted = bytes(false) + if on_tier.is_empty() { 0 } else { budget };
    let memory = capacity::memory();
    if wanted > memory.bytes {
        return refuse("the arrays in memory", wanted, memory);
    }
    let free = capacity::headroom(&args.tier, device::detect(&args.tier)?)?;
    match bytes(true) {
        wanted if wanted > free.bytes / 2 => refuse("the arrays on the tier", wanted, free),
        _ => Ok(()),
    }
}

fn study<F>(program: &Program<'_, F>, variant: Variant) -> Option<f64> {
    match variant {
        Variant::Dram => None,
        Variant::None => program.study[0],
        Variant::Partial => program.study[1],
        Variant::Full => program.study[2],
    }
}

/// The ratio by the model of STREAM: as if the bytes of the arrays were all that takes time.
fn predicted(all: &Moved, placed: &Moved, variant: Variant) -> Vec<Predicted> {
    if placed.tier_read + placed.tier_written == 0 {
        return Vec::new();
    }
    let traffic = |moved: &Moved| Traffic {
        dram_read: moved.dram_read as f64,
        dram_written: moved.dram_written as f64,
        pmem_read: moved.tier_read as f64,
        pmem_written: moved.tier_written as f64,
    };
    let of = |platform| {
        let node = stream::constants(platform)?;
        let ratio =
            node.seconds(&traffic(placed), variant.horizon()) / node.seconds(&traffic(all), Horizon::None);
        Some(Predicted { platform, ratio })
    };
    ["optane-gen1", "optane-gen3"].into_iter().filter_map(of).collect()
}

fn bytes(moved: &Moved) -> Bytes {
    let Moved { dram_read, dram_written, tier_read, tier_written } = *moved;
    Bytes { dram_read, dram_written, tier_read, tier_written }
}

/// All runs gave the same bits.
fn same(body: &Body) -> Result<()> {
    let first = body.rows.first().map(|row| &row.fingerprint);
    match body.rows.iter().find(|row| Some(&row.fingerprint) != first) {
        None => Ok(()),
        Some(other) => Err(Error::new(Kind::Damaged, "two placements gave different results")
            .with("first", body.rows[0].horizon.name())
            .with("other", other.horizon.name())
            .hint("this is a bug in Forebay, or memory or the tier lost bits: run it again, then report it")),
    }
}

/// What people see.
pub fn text(body: &Body, head: &str, out: &Output) -> String {
    let total: u64 = body.arrays.iter().map(|array| array.bytes).sum();
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut text = format!(
        "{head}; {} arrays, {} MiB; tier {} ({}), tiles of {} KiB; measured\n\n",
        body.arrays.len(),
        mib(total),
        body.tier,
        body.place,
        body.tile_bytes >> 10
    );
    let heading =
        ["HORIZON", "ON THE TIER", "s", "RATIO", "PEAK MiB", "FROM TIER MiB", "TO TIER MiB", body.figure];
    let mut table = out.table(&heading);
    let or_none = |text: Option<String>| number(text.unwrap_or_else(|| "-".into()));
    for row in &body.rows {
        let on_tier = if row.on_tier.is_empty() { "-".into() } else { row.on_tier.join(" ") };
        table.add_row(vec![
            comfy_table::Cell::new(row.horizon.name()),
            comfy_table::Cell::new(on_tier),
            number(format!("{:.2}", row.seconds)),
            or_none(row.ratio.map(|ratio| format!("{ratio:.2}"))),
            or_none(row.peak_memory_bytes.map(mib)),
            number(mib(row.tier_read_bytes)),
            number(mib(row.tier_written_bytes)),
            number(format!("{:.6}", row.figure)),
        ]);
    }
    text += &table_text(&table);
    text += "\nthe results are the same, bit for bit\n";
    text + &beside(body)
}

/// Ratios of the study, and of the model.
fn beside(body: &Body) -> String {
    let mut text = String::new();
    let ratio = |value: f64| format!("{value:.2}");
    let study: Vec<String> = body
        .rows
        .iter()
        .filter_map(|row| Some(format!("{} {}", row.horizon.name(), ratio(row.study?))))
        .collect();
    if !study.is_empty() {
        text += &format!("published for a node with persistent memory (study D): {}\n", study.join(", "));
    }
    for platform in ["optane-gen1", "optane-gen3"] {
        let of = |row: &Row| {
            let found = row.predicted.iter().find(|p| p.platform == platform)?;
            Some(format!("{} {}", row.horizon.name(), ratio(found.ratio)))
        };
        let ratios: Vec<String> = body.rows.iter().filter_map(of).collect();
        if !ratios.is_empty() {
            text += &format!(
                "predicted for {platform}, if the arrays' bytes were all that takes time: {}\n",
                ratios.join(", ")
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_further_away_takes_longer() {
        let all = Moved { dram_read: 5 << 30, dram_written: 4 << 30, ..Moved::default() };
        let half =
            Moved { dram_read: 2 << 30, dram_written: 2 << 30, tier_read: 3 << 30, tier_written: 2 << 30 };
        let far = Moved { tier_read: 5 << 30, tier_written: 4 << 30, ..Moved::default() };
        let on = |moved, variant| predicted(&all, moved, variant)[0].ratio;
        let [none, partial, full] =
            [on(&half, Variant::None), on(&half, Variant::Partial), on(&far, Variant::Full)];
        assert!(1.0 < none && none < partial && partial < full, "{none} {partial} {full}");
        assert!(predicted(&all, &all, Variant::None).is_empty());
    }
}
