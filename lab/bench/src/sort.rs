//! `forebay bench sort`: sorting more keys than memory holds, by an external merge sort on tiles and by an in-place
//! sort of a window and of a mapped file within the same memory; by one process or by several.
//!
//! Guarantees: all ways begin with the same keys, cold, and end when the result is durable; what each of them left is
//! read again and checked, by order and by a hash of permutations; nothing is left behind.

use std::path::PathBuf;

use forebay_flow::Signals;
use forebay_programs::sort::{self, keys, Checked, Did, Phase, Sorted, Task, Way};
use forebay_space::format_bytes;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::limited::{self, Found, Group};
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// Data of a whole measurement, and of a quick one: four times the budget.
const BUDGET: u64 = 1 << 30;
const BUDGET_QUICK: u64 = 64 << 20;
const DATA_OF_BUDGET: u64 = 4;

/// Tiles that a budget holds where their length is not given.
const TILES: u64 = 1024;

/// Sort more keys than memory holds, on tiles, in a window and in a mapped file.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory for the files: twice --size.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Ways to sort: external (merge sort on tiles), window and mmap (in place in a window, in a mapped file).
    #[arg(long, value_name = "WAYS", value_delimiter = ',', default_value = "external,window,mmap")]
    ways: Vec<Way>,
    /// Bytes of keys [default: four times the budget].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Most memory for keys and what is known of them [default: 1GiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,
    /// A quarter of a gigabyte in 64 MiB, unless said otherwise.
    #[arg(long)]
    quick: bool,
    /// Memory of the cgroup that each way runs in [default: the budget and a fifth, 64 MiB at least].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: Option<u64>,
    /// Length of a tile, a power of two [default: a 1024th of the budget, 8 KiB to 1 MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    tile: Option<u64>,
    /// Processes that sort together, each with its part of the keys and of the budget.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// Threads of each rank; by default the processors, shared out over ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Seed of the keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    plot: PlotArgs,
    /// What a child of this verb does.
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// What a child does.
#[derive(Serialize, Deserialize)]
struct Part {
    way: Way,
    phase: Phase,
    rank: usize,
    keys: PathBuf,
    task: Task,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    #[serde(flatten)]
    task: Task,
    data_bytes: u64,
    /// Of the cgroup; None where there is none.
    limit_bytes: Option<u64>,
    /// Every way left every key, in order.
    verified: bool,
    ways: Vec<Row>,
    skipped: Vec<Skipped>,
    /// Time of the external sort over that of the mapped one.
    ratio: Option<f64>,
    /// The same of the sort in a window.
    window_ratio: Option<f64>,
}

const PICTURES: [Picture; 3] = [
    Picture::seconds("ways", &["way"]),
    Picture::of("Speed", "ways", &["way"], "keys_per_s", (1e-6, "10^6 keys/s")),
    Picture::of("Peak memory", "ways", &["way"], "peak_rss_bytes", (1.0 / 1_048_576.0, "MiB")),
];

#[derive(Serialize)]
struct Row {
    way: Way,
    keys_per_s: f64,
    peak_rss_bytes: u64,
    #[serde(flatten)]
    sorted: Sorted,
}

#[derive(Serialize)]
struct Skipped {
    way: Way,
    why: String,
}

fn task(args: &Args) -> Result<Task> {
    let budget = args.budget.unwrap_or(if args.quick { BUDGET_QUICK } else { BUDGET });
    let bytes = args.size.unwrap_or(DATA_OF_BUDGET * budget);
    let tile = args.tile.unwrap_or(1 << (budget / TILES).clamp(8 << 10, 1 << 20).ilog2());
    let task = Task {
        keys: bytes / 8,
        seed: args.seed,
        budget,
        tile_bytes: tile as usize,
        ranks: args.ranks as usize,
        threads: super::bt::threads_of(args.threads, args.ranks) as usize,
    };
    if task.keys == 0 || !tile.is_power_of_two() {
        return Err(Error::new(Kind::Usage, "at least one key, and tiles of a power of two"));
    }
    Ok(task)
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(told) = &args.part {
        return limited::serve(told, |Part { way, phase, rank, keys, task }: Part| {
            sort::take_part(&keys, &task, way, phase, rank)
        });
    }
    limited::until_signal(|signals| sort_all(args, signals, out))
}

fn sort_all(args: &Args, signals: &Signals, out: &Output) -> Result<i32> {
    let task = task(args)?;
    for way in &args.ways {
        sort::check_budget(&task, *way)?;
    }
    let limit = args.limit.unwrap_or_else(|| limited::limit_for(task.budget));
    let group = Group::make(limit);
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for way in &args.ways {
        match (&group, way) {
            // Without a limit the whole file would be cached: that measures nothing.
            (Err(why), Way::Mmap) => skipped.push(Skipped { way: *way, why: why.clone() }),
            _ => rows.push(measure(args, *way, task, (group.as_ref().ok(), signals), out)?),
        }
    }
    let seconds = |way: Way| rows.iter().find(|row: &&Row| row.way == way).map(|row| row.sorted.seconds);
    let ratio = |way| seconds(way).zip(seconds(Way::Mmap)).map(|(ours, theirs)| ours / theirs);
    let (ratio, window_ratio) = (ratio(Way::External), ratio(Way::Window));
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        task,
        data_bytes: task.keys * 8,
        limit_bytes: group.is_ok().then_some(limit),
        verified: true,
        ways: rows,
        skipped,
        ratio,
        window_ratio,
    };
    let facts = [
        format!("{} in a budget of {}", format_bytes(body.data_bytes), format_bytes(task.budget)),
        body.place.clone(),
    ];
    plot::write(&args.plot, "sort", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_SORT, &body, || text(&body, out))?;
    Ok(0)
}

/// Makes the keys, sorts them in a child, and looks at what it left.
fn measure(
    args: &Args,
    way: Way,
    task: Task,
    (group, signals): (Option<&Group>, &Signals),
    out: &Output,
) -> Result<Row> {
    let failed = |e| Error::io(format!("cannot create a directory in {}", args.dir.display()), e);
    let dir = tempfile::Builder::new().prefix("forebay-sort-").tempdir_in(&args.dir).map_err(failed)?;
    let file = std::path::absolute(dir.path()).map_err(failed)?.join("keys");
    out.progress(&format!("making {} of keys", format_bytes(task.keys * 8)));
    let made = keys::make(&file, task.keys, task.seed)?;
    sort::begin(&file, &task, way)?;
    let (mut phases, mut peak_rss_bytes) = (Vec::new(), 0);
    for phase in way.phases(task.ranks) {
        out.progress(match phase {
            Phase::Runs => "sorting",
            Phase::Merge => "merging",
        });
        let part = |rank| Part { way, phase: *phase, rank, keys: file.clone(), task };
        let parts: Vec<Part> = (0..task.ranks).map(part).collect();
        let found: Vec<Found<Did>> = limited::run_together(&["bench", "sort"], &parts, group, signals)?;
        peak_rss_bytes = found.iter().map(|rank| rank.peak_rss_bytes).sum::<u64>().max(peak_rss_bytes);
        phases.push(found.into_iter().map(|rank| rank.result).collect());
    }
    out.progress("checking");
    let found = keys::check(&sort::sorted_name(&file, way, task.ranks))?;
    if found != (Checked { permutation: made, ordered: true }) {
        return Err(Error::new(Kind::Damaged, format!("{} did not sort the keys", way.name()))
            .with("ordered", found.ordered)
            .with("same_keys", found.permutation == made));
    }
    let sorted = Sorted::of(&phases);
    Ok(Row { way, keys_per_s: task.keys as f64 / sorted.seconds, peak_rss_bytes, sorted })
}

fn text(body: &Body, out: &Output) -> String {
    let mut text = format!(
        "{} of keys in a budget of {}, tiles of {}, ranks: {}, threads of each: {}, on {}; measured\n",
        format_bytes(body.data_bytes),
        format_bytes(body.task.budget),
        format_bytes(body.task.tile_bytes as u64),
        body.task.ranks,
        body.task.threads,
        body.place
    );
    let mut table = out.table(&[
        "WAY",
        "SECONDS",
        "10^6 KEYS/s",
        "RUNS s",
        "MERGE s",
        "RUNS",
        "READ",
        "WRITTEN",
        "PEAK RSS",
        "FILE",
    ]);
    for Row { way, keys_per_s, peak_rss_bytes, sorted } in &body.ways {
        let or = |value: Option<String>| number(value.unwrap_or_else(|| "-".into()));
        let moved = |at: usize| or(sorted.moved_bytes.map(|moved| format_bytes(moved[at])));
        table.add_row(vec![
            way.name().into(),
            number(format!("{:.2}", sorted.seconds)),
            number(format!("{:.1}", keys_per_s / 1e6)),
            or(sorted.phases.map(|phases| format!("{:.2}", phases[0]))),
            or(sorted.phases.map(|phases| format!("{:.2}", phases[1]))),
            or(sorted.runs.map(|runs| runs.to_string())),
            moved(0),
            moved(1),
            number(format_bytes(*peak_rss_bytes)),
            sorted.method.clone().into(),
        ]);
    }
    text += &table_text(&table);
    text += "\nevery way left every key, in order, durable\n";
    if let Some(limit) = body.limit_bytes {
        text += &format!("each in a memory cgroup of {}, page cache counted\n", format_bytes(limit));
    }
    for (way, ratio) in [(Way::External, body.ratio), (Way::Window, body.window_ratio)] {
        if let Some(ratio) = ratio {
            text += &format!("{} takes {ratio:.3} of the time of mmap\n", way.name());
        }
    }
    for Skipped { way, why } in &body.skipped {
        text += &format!("{} skipped: {why}\n", way.name());
    }
    text
}
