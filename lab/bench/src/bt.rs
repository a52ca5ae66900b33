//! `forebay bench bt`: the solver whose checkpoints the studies timed, by threads and by ranks, with its norms compared
//! with the published ones.
//!
//! One rank computes in this process; several are processes of their own, started as a workflow.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_flow::record::State as Ended;
use forebay_flow::RunOptions;
use forebay_programs::bt::{Class, Norms, Problem, State, Summary, COMPONENTS, TOLERANCE};
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};

/// Solve the Navier-Stokes equations by alternating directions (NPB's BT), by threads and by ranks.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Classes: S (12 points along each edge, 60 steps), W (24, 200), A (64, 200), B (102, 200). \
                        A run is right when its norms differ from the published ones by at most 1e-8 of them."
)]
pub struct Args {
    /// Problem classes
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "S,W")]
    class: Vec<Class>,
    /// Processes, each with a piece of the grid; 1 computes in this process
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    ranks: Vec<u32>,
    /// Threads of each rank; by default the processors, shared out over ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    plot: PlotArgs,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    tolerance: f64,
    verified: bool,
    rows: Vec<Row>,
}

const CASE: &[&str] = &["class", "ranks", "threads"];
const PICTURES: [Picture; 2] =
    [Picture::seconds("rows", CASE), Picture::of("Speed", "rows", CASE, "flops_per_s", (1e-9, "Gflop/s"))];

#[derive(Serialize)]
struct Row {
    class: Class,
    n: usize,
    steps: u64,
    ranks: usize,
    threads: u32,
    seconds: f64,
    flops_per_s: f64,
    difference: f64,
    residual: [f64; COMPONENTS],
    error: [f64; COMPONENTS],
}

/// Threads of each of so many ranks.
pub(super) fn threads_of(asked: Option<u32>, ranks: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    asked.unwrap_or((cores / ranks.max(1)).max(1))
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if args.ranks.contains(&0) {
        return Err(Error::new(Kind::Usage, "a run has at least one rank"));
    }
    let mut rows = Vec::new();
    for class in &args.class {
        for ranks in &args.ranks {
            let threads = threads_of(args.threads, *ranks);
            let row = match ranks {
                1 => here(*class, threads, out)?,
                _ => match in_processes(*class, *ranks, threads, &[])? {
                    Finished::Done(summary) => row(&summary),
                    Finished::Interrupted(status) => return Ok(status),
                },
            };
            out.progress(&format!("class {class}, ranks {ranks}: {:.2} s", row.seconds));
            check(&row)?;
            rows.push(row);
        }
    }
    let body = Body { provenance: "measured", tolerance: TOLERANCE, verified: true, rows };
    plot::write(&args.plot, "bt", &["norms as published".to_owned()], &body, &PICTURES, out)?;
    out.result(schema::BENCH_BT, &body, || text(&body, out))?;
    Ok(0)
}

fn row(summary: &Summary) -> Row {
    let Problem { n, steps, .. } = summary.problem;
    Row {
        class: summary.class,
        n,
        steps,
        ranks: summary.ranks,
        threads: summary.threads,
        seconds: summary.seconds,
        flops_per_s: summary.problem.flops() * steps as f64 / summary.seconds,
        difference: summary.difference,
        residual: summary.norms.residual,
        error: summary.norms.error,
    }
}

/// One rank, in this process.
fn here(class: Class, threads: u32, out: &Output) -> Result<Row> {
    let problem = Problem::of(class);
    let mut state = State::new(problem, threads as usize)?;
    let began = Instant::now();
    for step in 1..=problem.steps {
        state.advance(threads as usize);
        if step % 20 == 0 {
            out.progress(&format!("class {class}: step {step} of {}", problem.steps));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let norms: Norms = state.norms(threads as usize);
    let difference = norms.difference(class);
    Ok(row(&Summary { class, problem, ranks: 1, threads, seconds, norms, difference, dumps: None }))
}

/// How a group of processes ended.
pub(super) enum Finished {
    /// With this.
    Done(Box<Summary>),
    /// By a signal; the exit status.
    Interrupted(i32),
}

/// Runs the ranks as processes, `words` being further arguments. Nothing of the run is left behind.
pub(super) fn in_processes(class: Class, ranks: u32, threads: u32, words: &[String]) -> Result<Finished> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let failed = |e| Error::io("making a directory for the runs of the benchmark", e);
    let dir = tempfile::Builder::new().prefix("forebay-bt-").tempdir().map_err(failed)?;
    let channel = format!("bt-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let (file, result) = (dir.path().join("workflow.toml"), dir.path().join("result.json"));
    let workflow = workflow(class, ranks, threads, &channel, &result, words);
    std::fs::write(&file, workflow).map_err(failed)?;
    let options = RunOptions { out: Some(dir.path().join("run")), quiet: true, ..RunOptions::default() };
    let record = forebay_flow::run(&file, &options)?;
    if record.state == Ended::Interrupted {
        return Ok(Finished::Interrupted(record.exit_code()));
    }
    let found = std::fs::read(&result).map_err(|e| Error::io("cannot read what the ranks found out", e))?;
    let summary = serde_json::from_slice(&found)
        .map_err(|e| Error::new(Kind::Internal, format!("what the ranks found out cannot be read: {e}")))?;
    Ok(Finished::Done(Box::new(summary)))
}

fn workflow(
    class: Class,
    ranks: u32,
    threads: u32,
    channel: &str,
    result: &Path,
    words: &[String],
) -> String {
    let (class, threads, result) = (class.to_string(), threads.to_string(), result.display().to_string());
    let own = ["--class", &class, "--threads", &threads, "--channel", channel, "--result", &result];
    let command: Vec<&str> =
        ["forebay", "app", "bt"].into_iter().chain(own).chain(words.iter().map(String::as_str)).collect();
    let command = serde_json::Value::from(command);
    format!(
        "forebay = 1\n[workflow]\nname = \"bt\"\n\n[[component]]\nname = \"bt\"\ncommand = {command}\nranks = {ranks}\n"
    )
}

/// That the norms are the published ones.
fn check(row: &Row) -> Result<()> {
    if row.difference <= TOLERANCE {
        return Ok(());
    }
    Err(Error::new(Kind::Damaged, "the norms are not the published ones")
        .with("class", row.class)
        .with("ranks", row.ranks)
        .with("difference", format!("{:e}", row.difference))
        .with("tolerance", TOLERANCE))
}

fn text(body: &Body, out: &Output) -> String {
    let mut table = out.table(&[
        "CLASS",
        "POINTS",
        "STEPS",
        "RANKS",
        "THREADS EACH",
        "SECONDS",
        "ms/STEP",
        "Gflop/s",
        "FROM PUBLISHED",
    ]);
    for row in &body.rows {
        table.add_row(vec![
            comfy_table::Cell::new(row.class),
            number(format!("{}³", row.n)),
            number(row.steps),
            number(row.ranks),
            number(row.threads),
            number(format!("{:.2}", row.seconds)),
            number(format!("{:.2}", row.seconds * 1e3 / row.steps as f64)),
            number(format!("{:.2}", row.flops_per_s / 1e9)),
            number(format!("{:.0e}", row.difference)),
        ]);
    }
    format!(
        "{}\nmeasured; flop as NPB counts them; all norms are the published ones to {:.0e}\n",
        table_text(&table),
        body.tolerance
    )
}
