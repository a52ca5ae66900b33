//! `forebay bench bfs`: breadth-first search of a graph larger than memory, its edges on tiles or in a mapped file
//! within the same memory.
//!
//! Guarantees: every search begins with nothing cached, in a process of its own; its levels are checked by what only
//! the right ones have; all ways and tiles reach the same vertices; nothing is left behind.

use std::path::PathBuf;

use forebay_flow::Signals;
use forebay_programs::bfs::{self, csr::Graph, Searched, Task};
use forebay_space::format_bytes;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use super::limited::{self, Found, Group};
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

const SCALE: u32 = 22;
const SCALE_QUICK: u32 = 16;

/// The rows of a graph are so many times the budget where its size is not given.
const ROWS_OF_BUDGET: u64 = 4;

/// Search a graph larger than memory, on tiles and through a mapping.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory for the graph.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Ways to search: semi (edges on tiles, what is known of vertices in memory), external (all on tiles), mmap (edges
    /// in a mapped file), mmap-random (the same, the kernel told that accesses are random).
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        default_value = "semi,external,mmap,mmap-random"
    )]
    ways: Vec<Way>,
    /// Lengths of tiles, each a power of two.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4KiB,16KiB,64KiB", value_parser = size)]
    tile: Vec<u64>,
    /// The graph has 2^N vertices [default: 22; 16 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..32))]
    scale: Option<u32>,
    /// Edges for each vertex.
    #[arg(long, value_name = "N", default_value_t = 16)]
    edge_factor: u64,
    /// A small graph, unless said otherwise.
    #[arg(long)]
    quick: bool,
    /// Most memory for the graph and what is known of it [default: a quarter of its rows].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,
    /// Memory of the cgroup that each search runs in [default: the budget and a fifth, 64 MiB more at least].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: Option<u64>,
    /// Threads that compute; by default one for each processor.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seed of the graph.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    plot: PlotArgs,
    /// What a child of this verb does.
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// See [`Args::ways`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    /// Edges on tiles.
    Semi,
    /// All on tiles.
    External,
    /// A mapped file.
    Mmap,
    /// A mapped file, for random accesses.
    MmapRandom,
}

impl Way {
    fn of_program(self) -> bfs::Way {
        match self {
            Way::Semi => bfs::Way::Semi,
            Way::External => bfs::Way::External,
            Way::Mmap => bfs::Way::Mmap,
            Way::MmapRandom => bfs::Way::MmapRandom,
        }
    }

    fn is_mapped(self) -> bool {
        matches!(self, Way::Mmap | Way::MmapRandom)
    }

    fn name(self) -> &'static str {
        match self {
            Way::Semi => "semi",
            Way::External => "external",
            Way::Mmap => "mmap",
            Way::MmapRandom => "mmap-random",
        }
    }
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    scale: u32,
    edge_factor: u64,
    seed: u64,
    vertices: u64,
    /// Entries of all rows: two for each edge that is no loop.
    entries: u64,
    graph_bytes: u64,
    budget: u64,
    threads: usize,
    limit_bytes: Option<u64>,
    /// Every level of every search is right.
    verified: bool,
    searches: Vec<Row>,
    skipped: Vec<Skipped>,
    /// Seconds of the fastest mapped search over those of the fastest one on tiles.
    speedup: Option<f64>,
}

const CASE: &[&str] = &["way", "tile_bytes"];
const PICTURES: [Picture; 3] = [
    Picture::seconds("searches", CASE),
    Picture::of("Speed", "searches", CASE, "entries_per_s", (1e-6, "10^6 entries/s")),
    Picture::of("Peak memory", "searches", CASE, "peak_rss_bytes", (1.0 / 1_048_576.0, "MiB")),
];

#[derive(Serialize)]
struct Row {
    way: &'static str,
    /// None for a mapped file.
    tile_bytes: Option<u64>,
    entries_per_s: f64,
    peak_rss_bytes: u64,
    #[serde(flatten)]
    searched: Searched,
}

#[derive(Serialize)]
struct Skipped {
    way: &'static str,
    why: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(told) = &args.part {
        return limited::serve(told, |(way, task): (bfs::Way, Task)| bfs::search(way, &task));
    }
    limited::until_signal(|signals| search_all(args, signals, out))
}

fn search_all(args: &Args, signals: &Signals, out: &Output) -> Result<i32> {
    let scale = args.scale.unwrap_or(if args.quick { SCALE_QUICK } else { SCALE });
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if threads == 0 || threads > 1024 || args.edge_factor == 0 || args.tile.is_empty() {
        return Err(Error::new(
            Kind::Usage,
            "at least one thread, one edge for each vertex, one tile length",
        ));
    }
    let failed = |e| Error::io(format!("cannot create a directory in {}", args.dir.display()), e);
    let dir = tempfile::Builder::new().prefix("forebay-bfs-").tempdir_in(&args.dir).map_err(failed)?;
    let at = std::path::absolute(dir.path()).map_err(failed)?;
    out.progress(&format!("making a graph of 2^{scale} vertices"));
    let graph = Graph::make(&at, scale, args.edge_factor, args.seed)?;
    let budget = args.budget.unwrap_or_else(|| (graph.entries * 4 / ROWS_OF_BUDGET).max(1 << 20));
    let limit = args.limit.unwrap_or_else(|| limited::limit_for(budget));
    let group = Group::make(limit);
    let (mut searches, mut skipped) = (Vec::new(), Vec::new());
    for way in &args.ways {
        if let (Err(why), true) = (&group, way.is_mapped()) {
            skipped.push(Skipped { way: way.name(), why: why.clone() });
            continue;
        }
        let tiles = if way.is_mapped() { vec![None] } else { args.tile.iter().copied().map(Some).collect() };
        for tile in tiles {
            let tile_bytes = tile.unwrap_or(4096) as usize;
            let task = Task { graph: graph.clone(), budget, tile_bytes, threads, dir: at.clone() };
            searches.push(measure(*way, tile, &task, (group.as_ref().ok(), signals), out)?);
        }
    }
    same(&searches)?;
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        scale,
        edge_factor: args.edge_factor,
        seed: args.seed,
        vertices: graph.vertices,
        entries: graph.entries,
        graph_bytes: graph.entries * 4 + (graph.vertices + 1) * 8,
        budget,
        threads,
        limit_bytes: group.is_ok().then_some(limit),
        verified: true,
        speedup: speedup(&searches),
        searches,
        skipped,
    };
    let facts = [format!("{} vertices, budget {}", body.vertices, format_bytes(budget)), body.place.clone()];
    plot::write(&args.plot, "bfs", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_BFS, &body, || text(&body, out))?;
    Ok(0)
}

fn measure(
    way: Way,
    tile: Option<u64>,
    task: &Task,
    (group, signals): (Option<&Group>, &Signals),
    out: &Output,
) -> Result<Row> {
    out.progress(&format!(
        "searching, {}{}",
        way.name(),
        tile.map_or(String::new(), |t| format!(", tiles of {t}"))
    ));
    // What the search before left in the page cache would be found there.
    task.graph.drop_cached()?;
    let Found { result: searched, peak_rss_bytes }: Found<Searched> =
        limited::run(&["bench", "bfs"], &(way.of_program(), task), group, signals)?;
    let entries_per_s = searched.scanned as f64 / searched.seconds;
    Ok(Row { way: way.name(), tile_bytes: tile, entries_per_s, peak_rss_bytes, searched })
}

/// All searches found the same.
fn same(searches: &[Row]) -> Result<()> {
    let found =
        |row: &Row| (row.searched.root, row.searched.reached, row.searched.levels, row.searched.scanned);
    match searches.windows(2).find(|pair| found(&pair[0]) != found(&pair[1])) {
        None => Ok(()),
        Some(pair) => Err(Error::new(Kind::Damaged, "two searches found different levels")
            .with("one", pair[0].way)
            .with("other", pair[1].way)),
    }
}

fn speedup(searches: &[Row]) -> Option<f64> {
    let fastest = |mapped: bool| {
        let seconds = searches.iter().filter(|row| row.tile_bytes.is_none() == mapped);
        seconds.map(|row| row.searched.seconds).reduce(f64::min)
    };
    fastest(true).zip(fastest(false)).map(|(theirs, ours)| theirs / ours)
}

fn text(body: &Body, out: &Output) -> String {
    let mut text = format!(
        "R-MAT graph of 2^{} vertices, {} entries ({}), in a budget of {}, {} threads, on {}; measured\n",
        body.scale,
        body.entries,
        format_bytes(body.graph_bytes),
        format_bytes(body.budget),
        body.threads,
        body.place
    );
    let mut table = out.table(&["WAY", "TILE", "SECONDS", "10^6 ENTRIES/s", "READ", "PEAK RSS", "FILE"]);
    for row in &body.searches {
        let bytes = |bytes: Option<u64>| number(bytes.map_or_else(|| "-".into(), format_bytes));
        table.add_row(vec![
            row.way.into(),
            bytes(row.tile_bytes),
            number(format!("{:.2}", row.searched.seconds)),
            number(format!("{:.1}", row.entries_per_s / 1e6)),
            bytes(row.searched.read_bytes),
            number(format_bytes(row.peak_rss_bytes)),
            row.searched.method.clone().into(),
        ]);
    }
    text += &table_text(&table);
    if let Some(first) = body.searches.first() {
        let Searched { root, reached, levels, .. } = &first.searched;
        text += &format!(
            "\nfrom vertex {root} each search reached {reached} vertices in {levels} steps; \
             every level is right\n"
        );
    }
    if let Some(limit) = body.limit_bytes {
        text += &format!("each in a memory cgroup of {}, page cache counted\n", format_bytes(limit));
    }
    if let Some(speedup) = body.speedup {
        text += &format!("the fastest on tiles is {speedup:.2} times as fast as the fastest mapped one\n");
    }
    for Skipped { way, why } in &body.skipped {
        text += &format!("{way} skipped: {why}\n");
    }
    text
}
