//! `forebay bench checkpoint`: a solver that saves its state after every step, against the same without; and what a
//! crash costs.
//!
//! The question is that of study C (checkpoint and restart). Guarantees: every run ends with the norms of the run
//! without checkpoints, bit for bit, also the one that was killed and went on; times end when the last step is on
//! the medium; nothing is left behind.

mod published;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use forebay_checkpoint::{Checkpoint, Durability, Options};
use forebay_flow::Signals;
use forebay_programs::bt::{Class, Norms, Problem, Saved, State, TOLERANCE};
use forebay_tier::{device, Error, Kind, Result, TierKind};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::bt::threads_of;
use super::limited::{self, LOOK};
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};

/// Checkpoints that the medium's own speed is measured with.
const PLAIN: u64 = 10;
/// The medium is measured with whole pages.
const MEDIUM_ALIGN: u64 = 4096;
/// How long a run that is to be killed may take.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Save the state of a solver after every step, and go on after a crash, against the same without checkpoints.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "States: u (what a restart needs: 5 values for each point), all (every array: 17). Manners: async \
                        (into memory, carried to the directory beside the computation), sync (into the directory, \
                        durable before the next step)."
)]
pub struct Args {
    /// Problem classes of the solver (see bench bt)
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "W")]
    class: Vec<Class>,
    /// What is saved
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "u,all")]
    state: Vec<Saved>,
    /// How
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "async,sync")]
    manner: Vec<Manner>,
    /// Threads; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Directory of the checkpoints
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How they are written there: file (through the page cache), direct (past it), pmem
    #[arg(long, value_name = "TIER", default_value = "file", value_parser = ["file", "direct", "pmem"])]
    tier: String,
    /// Directory in memory that async saves go to first
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Write a full step every N-th time and incremental ones between; 0: full ones always
    #[arg(long, value_name = "N", default_value_t = 0)]
    incremental: u32,
    /// Compress what is written to the directory: none, zstd or zstd:LEVEL
    #[arg(long, value_name = "HOW", default_value = "none")]
    compress: String,
    /// Without the runs that are killed halfway and go on
    #[arg(long)]
    crash_free: bool,
    #[command(flatten)]
    plot: PlotArgs,
    /// What a child of this verb does.
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// See [`Args::manner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Manner {
    /// Memory first.
    Async,
    /// The directory alone.
    Sync,
}

impl Manner {
    fn name(self) -> &'static str {
        match self {
            Manner::Async => "async",
            Manner::Sync => "sync",
        }
    }

    /// The least ratio where the medium is busy for `medium` times the time without checkpoints.
    fn bound(self, medium: f64) -> f64 {
        match self {
            Manner::Async => medium.max(1.0),
            Manner::Sync => 1.0 + medium,
        }
    }
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: String,
    threads: u32,
    incremental: u32,
    compress: String,
    verified: bool,
    rows: Vec<Row>,
    published: Vec<published::Row>,
}

#[derive(Serialize)]
struct Row {
    class: Class,
    steps: u64,
    /// None: without checkpoints.
    state: Option<Saved>,
    manner: Option<Manner>,
    checkpoint_bytes: u64,
    /// What the last checkpoint takes in the directory.
    stored_bytes: u64,
    /// Until the last step was on the medium.
    seconds: f64,
    /// Against the run without checkpoints.
    ratio: f64,
    /// The least ratio that the medium allows, as fast as one process writes the same bytes at once: beside the
    /// computation (async) or after each step (sync).
    bound: f64,
    /// How long the solver stood still for a checkpoint.
    blocked_seconds: f64,
    durability: Option<Durability>,
    crash: Option<Crash>,
}

const CASE: &[&str] = &["class", "state", "manner"];
const PICTURES: [Picture; 3] = [
    Picture::of("Time by that without checkpoints", "rows", CASE, "ratio", (1.0, "1")),
    Picture::of("Time by that without checkpoints", "published", &["method", "ranks"], "ratio", (1.0, "1"))
        .but("ratio", "published"),
    Picture::of("Standing still for a checkpoint", "rows", CASE, "blocked_seconds", (1e3, "ms")),
];

/// A run that was killed, and the one that went on.
#[derive(Serialize)]
struct Crash {
    killed_after_step: u64,
    restored_step: u64,
    recovery_seconds: f64,
    /// Of both, without what was between them.
    seconds: f64,
    ratio: f64,
}

/// A way to run: what is saved, how and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Way {
    class: Class,
    state: Saved,
    manner: Manner,
    threads: usize,
    tier: String,
    dir: PathBuf,
    memory: PathBuf,
    incremental: u32,
    compress: String,
    /// After this step the process kills itself.
    killed_after: Option<u64>,
}

impl Way {
    fn open(&self, state: &State) -> Result<Checkpoint> {
        let levels = match self.manner {
            Manner::Async => vec!["dram".to_owned(), self.tier.clone()],
            Manner::Sync => vec![self.tier.clone()],
        };
        let memory_root = Some(self.memory.clone());
        let program = "forebay bench checkpoint".to_owned();
        let options = Options {
            levels,
            memory_root,
            program,
            timeout: DEADLINE,
            incremental: self.incremental,
            compress: self.compress.clone(),
            ..Options::default()
        };
        let mut checkpoint = Checkpoint::open(&self.dir, &options)?;
        self.state.protect(&mut checkpoint, state)?;
        checkpoint.prepare()?;
        Ok(checkpoint)
    }

    /// Computes to the last step and saves each, until the last is on the medium.
    fn run(&self, state: &mut State, checkpoint: &mut Checkpoint, signals: Option<&Signals>) -> Result<()> {
        while state.step() < state.problem().steps {
            interrupted(signals)?;
            state.advance(self.threads);
            self.state.save(checkpoint, state)?;
            if self.killed_after == Some(state.step()) {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL)
                    .map_err(|e| Error::io("cannot kill this process", e.into()))?;
            }
        }
        checkpoint.wait().map(drop)
    }
}

fn interrupted(signals: Option<&Signals>) -> Result<()> {
    match signals.and_then(Signals::caught) {
        // The caller turns it into the exit status of the signal.
        Some(signal) => Err(Error::new(Kind::Io, format!("ended by signal {signal}"))),
        None => Ok(()),
    }
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(told) = &args.part {
        let way: Way = serde_json::from_str(told).map_err(limited::internal)?;
        let mut state = State::new(Problem::of(way.class), way.threads)?;
        let mut checkpoint = way.open(&state)?;
        way.run(&mut state, &mut checkpoint, None)?;
        return Err(Error::new(Kind::Internal, "a process that should have been killed came to its end"));
    }
    limited::until_signal(|signals| measure_all(args, signals, out))
}

fn measure_all(args: &Args, signals: &Signals, out: &Output) -> Result<i32> {
    let threads = threads_of(args.threads, 1);
    let mut rows = Vec::new();
    for class in &args.class {
        let base = Base::measure(*class, threads as usize, signals)?;
        out.progress(&format!("class {class}, none: {:.2} s", base.seconds));
        rows.push(base.row());
        for state in &args.state {
            let medium = base.medium(args, *state)?;
            for manner in &args.manner {
                let row = base.with_checkpoints(args, (*state, *manner), medium, signals)?;
                out.progress(&format!(
                    "class {class}, {} {}: {:.2} s",
                    state.name(),
                    manner.name(),
                    row.seconds
                ));
                rows.push(row);
            }
        }
    }
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        tier: args.tier.clone(),
        threads,
        incremental: args.incremental,
        compress: args.compress.clone(),
        verified: true,
        rows,
        published: published::rows(),
    };
    let facts = [format!("{threads} threads"), format!("{} ({})", body.tier, body.place)];
    plot::write(&args.plot, "checkpoint", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_CHECKPOINT, &body, || text(&body, out))?;
    Ok(0)
}

/// The run without checkpoints.
struct Base {
    class: Class,
    threads: usize,
    seconds: f64,
    norms: Norms,
}

impl Base {
    fn measure(class: Class, threads: usize, signals: &Signals) -> Result<Base> {
        let problem = Problem::of(class);
        let mut state = State::new(problem, threads)?;
        let began = Instant::now();
        while state.step() < problem.steps {
            interrupted(Some(signals))?;
            state.advance(threads);
        }
        let seconds = began.elapsed().as_secs_f64();
        let norms = state.norms(threads);
        match norms.difference(class) {
            difference if difference <= TOLERANCE => Ok(Base { class, threads, seconds, norms }),
            difference => Err(Error::new(Kind::Damaged, "the norms are not the published ones")
                .with("class", class)
                .with("difference", format!("{difference:e}"))),
        }
    }

    fn row(&self) -> Row {
        Row {
            class: self.class,
            steps: Problem::of(self.class).steps,
            state: None,
            manner: None,
            checkpoint_bytes: 0,
            stored_bytes: 0,
            seconds: self.seconds,
            ratio: 1.0,
            bound: 1.0,
            blocked_seconds: 0.0,
            durability: None,
            crash: None,
        }
    }

    /// How long the medium takes for the checkpoints of all steps, against the time without them: the better of writing
    /// through the page cache and past it.
    fn medium(&self, args: &Args, saved: Saved) -> Result<f64> {
        let problem = Problem::of(self.class);
        let buffer = vec![0x5a; saved.bytes(&problem).next_multiple_of(MEDIUM_ALIGN) as usize];
        let (whole, dir) = (0..buffer.len() as u64, folder(&args.dir)?);
        let mut best = f64::INFINITY;
        for tier in [TierKind::File, TierKind::Direct] {
            let device = match device::create(tier, &dir.path().join(tier.to_string()), whole.end) {
                Err(e) if tier == TierKind::Direct && e.kind() == Kind::NotPossibleHere => continue,
                device => device?,
            };
            let write = || device.write(0, &buffer).and_then(|()| device.persist_written(whole.clone()));
            // Blocks are there before: checkpoints are written over older ones.
            device.prepare(whole.clone())?;
            write()?;
            let began = Instant::now();
            (0..PLAIN).try_for_each(|_| write())?;
            best = best.min(began.elapsed().as_secs_f64() / PLAIN as f64);
        }
        Ok(best * problem.steps as f64 / self.seconds)
    }

    fn with_checkpoints(
        &self,
        args: &Args,
        (saved, manner): (Saved, Manner),
        medium: f64,
        signals: &Signals,
    ) -> Result<Row> {
        let problem = Problem::of(self.class);
        let (dir, memory) = (folder(&args.dir)?, folder(&args.memory)?);
        let way = Way {
            class: self.class,
            state: saved,
            manner,
            threads: self.threads,
            tier: args.tier.clone(),
            dir: dir.path().join("run"),
            memory: memory.path().into(),
            incremental: args.incremental,
            compress: args.compress.clone(),
            killed_after: None,
        };
        let mut state = State::new(problem, self.threads)?;
        let mut checkpoint = way.open(&state)?;
        let began = Instant::now();
        way.run(&mut state, &mut checkpoint, Some(signals))?;
        let seconds = began.elapsed().as_secs_f64();
        let blocked = checkpoint.statistics().blocked.as_secs_f64();
        let durability = Some(checkpoint.durability(checkpoint.levels().len() - 1));
        checkpoint.close()?;
        self.check(&mut state)?;
        let stored_bytes = stored_bytes(&way.dir)?;
        let crash = match args.crash_free {
            true => None,
            false => Some(self.crash(way, dir.path(), signals)?),
        };
        Ok(Row {
            class: self.class,
            steps: problem.steps,
            state: Some(saved),
            manner: Some(manner),
            checkpoint_bytes: saved.bytes(&problem),
            stored_bytes,
            seconds,
            ratio: seconds / self.seconds,
            bound: manner.bound(medium),
            blocked_seconds: blocked / problem.steps as f64,
            durability,
            crash,
        })
    }

    /// That the run came to the bits of that without checkpoints.
    fn check(&self, state: &mut State) -> Result<()> {
        if state.norms(self.threads) == self.norms {
            return Ok(());
        }
        Err(Error::new(Kind::Damaged, "a run with checkpoints has other norms than one without")
            .with("class", self.class)
            .hint("this is a bug in Forebay, or memory or the tier lost bits: run it again, then report it"))
    }

    /// A process is killed halfway; this one goes on.
    fn crash(&self, way: Way, dir: &Path, signals: &Signals) -> Result<Crash> {
        let killed_after = Problem::of(self.class).steps / 2;
        let way = Way { dir: dir.join("crash"), killed_after: Some(killed_after), ..way };
        let first = die(&way, signals)?;
        let way = Way { killed_after: None, ..way };
        let began = Instant::now();
        let mut state = State::new(Problem::of(self.class), self.threads)?;
        let mut checkpoint = way.open(&state)?;
        let loading = Instant::now();
        let restored = way.state.restore(&mut checkpoint, &mut state)?;
        let recovery_seconds = loading.elapsed().as_secs_f64();
        let restored_step = restored.map_or(0, |restored| restored.step);
        if restored_step != killed_after {
            return Err(Error::new(Kind::Damaged, "a step that had been saved was not restored")
                .with("saved", killed_after)
                .with("restored", restored_step));
        }
        way.run(&mut state, &mut checkpoint, Some(signals))?;
        let seconds = first + began.elapsed().as_secs_f64();
        checkpoint.close()?;
        self.check(&mut state)?;
        let ratio = seconds / self.seconds;
        Ok(Crash { killed_after_step: killed_after, restored_step, recovery_seconds, seconds, ratio })
    }
}

/// Bytes of the newest step in the last level.
fn stored_bytes(dir: &Path) -> Result<u64> {
    let levels = forebay_checkpoint::list(dir)?.levels;
    Ok(levels.last().and_then(|level| level.steps.first()).map_or(0, |step| step.bytes))
}

/// Runs the way in a process that kills itself; how long it lived.
fn die(way: &Way, signals: &Signals) -> Result<f64> {
    let told = serde_json::to_string(way).map_err(limited::internal)?;
    let failed = |e| Error::io("cannot run a process that is to be killed", e);
    let mut command = limited::command(&["bench", "checkpoint"], &told)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    while child.try_wait().map_err(failed)?.is_none() {
        if signals.caught().is_some() || began.elapsed() > DEADLINE {
            let _ = child.kill();
        }
        signals.pause(LOOK);
    }
    let seconds = began.elapsed().as_secs_f64();
    let output = child.wait_with_output().map_err(failed)?;
    interrupted(Some(signals))?;
    match output.status.signal() {
        Some(9) => Ok(seconds),
        _ => Err(Error::new(Kind::Io, "a process that was to be killed ended by itself")
            .with("said", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn folder(dir: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("forebay-checkpoint-").tempdir_in(dir);
    made.map_err(|e| Error::io(format!("cannot create a directory in {}", dir.display()), e))
}

fn text(body: &Body, out: &Output) -> String {
    let mut table = out.table(&[
        "CLASS",
        "STATE",
        "MANNER",
        "MiB EACH",
        "MiB STORED",
        "s",
        "BY NONE",
        "BOUND",
        "STILL ms",
        "RECOVERY ms",
        "WITH CRASH",
        "SURVIVES",
    ]);
    for row in &body.rows {
        let crash = |value: fn(&Crash) -> String| number(row.crash.as_ref().map_or("-".into(), value));
        table.add_row(vec![
            comfy_table::Cell::new(row.class),
            comfy_table::Cell::new(row.state.map_or("none", Saved::name)),
            comfy_table::Cell::new(row.manner.map_or("-", Manner::name)),
            number(format!("{:.2}", row.checkpoint_bytes as f64 / f64::from(1 << 20))),
            number(format!("{:.2}", row.stored_bytes as f64 / f64::from(1 << 20))),
            number(format!("{:.2}", row.seconds)),
            number(format!("{:.2}", row.ratio)),
            number(format!("{:.2}", row.bound)),
            number(format!("{:.2}", row.blocked_seconds * 1e3)),
            crash(|crash| format!("{:.1}", crash.recovery_seconds * 1e3)),
            crash(|crash| format!("{:.2}", crash.ratio)),
            comfy_table::Cell::new(row.durability.map_or("-".into(), |d| d.to_string())),
        ]);
    }
    let mut text = format!(
        "a checkpoint after each step on {} ({}), {} threads; measured\n\n",
        body.tier, body.place, body.threads
    );
    text += &table_text(&table);
    text +=
        "\nbound: as if nothing but the medium took time, written at once by one process and made durable; beside the\n\
             computation (async), or after each step (sync)\n\
             every run came to the norms of the one without checkpoints, bit for bit\n\n";
    text + &published::text(&body.published, out)
}
