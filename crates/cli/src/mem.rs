//! `forebay mem`: runs a program whose big allocations live in windows, all its processes in one budget.
//!
//! Guarantees: nothing is left behind however it ends: the words that the processes share are memory of this one, and
//! the files of the windows have no names. The exit status is the program's. What windows are is the pager's business,
//! and how allocations come to lie in them that of the library that is loaded before the program.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_pager::job::{self, Counter, Job, JobOptions};
use forebay_pager::{Window, WindowEngine, WindowOptions};
use forebay_space::format_bytes;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use self::coverage::Coverage;
use self::full::Full;
use self::thrash::{Seen, Thrash};
use crate::output::{schema, Output};
use crate::sizes::size;

mod coverage;
mod full;
mod thrash;

/// The library's file, wherever it is.
const LIBRARY: &str = "libforebay_mem.so";

/// The variables by which loader and library know what to do.
const PRELOAD: &str = "LD_PRELOAD";
const VARIABLE: &str = "FOREBAY_MEM";

/// Budgets' worths that one process may have in windows, unless asked otherwise or the tier has less.
const BUDGETS: u64 = 64;

/// Least tiles of a budget: a process needs some that are used and some on their way.
const TILES_MIN: u64 = 16;

/// How often the program is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// Each so many of these looks are at its memory, after as many at the beginning.
const LOOKS_EACH: u64 = 10;

/// Run a program whose large allocations are stored on a tier, within a memory budget.
///
/// Allocations of --threshold and more (malloc, calloc, realloc, aligned ones, anonymous mmap) of the program and of
/// all that it starts are stored in unnamed files on the tier; about --dram of all of them together is in memory. The
/// program must be dynamically linked and needs no change. Smaller allocations stay in ordinary memory, in addition.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: forebay mem --dram 1GiB --tier /scratch --stats -- ./solver input.dat\n\n\
    Exit status: the program's; 128+n when signal n ended it.")]
pub struct Args {
    /// Limit of resident memory for the large allocations of all processes together, as in 1GiB; engine kernel may
    /// exceed it for a moment.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    dram: u64,
    /// Directory on the tier [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    tier: Option<PathBuf>,
    /// Minimum size of allocations that are stored on the tier.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    threshold: u64,
    /// Unit to which allocations are rounded up, a power of two from 4KiB to 2MiB; with engine userfault also the unit
    /// of transfer.
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = size)]
    tile: u64,
    /// Limit of one process on the tier [default: 64 times the budget, or the free space].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    capacity: Option<u64>,
    /// kernel (budget kept by sampling) or userfault (exact budget, not for all system calls) [default: kernel].
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Print at the end what was placed, how much was read and written, and the peak. With --json as one document, and
    /// what the program prints goes to standard error.
    #[arg(long)]
    stats: bool,
    /// Program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What came of it.
#[derive(Serialize)]
struct Stats {
    exit_status: i32,
    engine: String,
    budget: u64,
    threshold: u64,
    tile: u64,
    processes: u64,
    allocations: u64,
    placed_bytes: u64,
    placed_peak: u64,
    faults: u64,
    read_bytes: u64,
    written_bytes: u64,
    evicted_bytes: u64,
    helped_calls: u64,
    resident_peak: u64,
    largest_rss_peak: u64,
    covered_bytes: u64,
    outside_bytes: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let options = options(args)?;
    let library = library()?;
    try_window(&options)?;
    let words = words()?;
    let job = Job::begin(&words, &options)?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let place = format!("{}:/proc/{}/fd/{}", options.threshold, std::process::id(), words.as_raw_fd());
    command.env(VARIABLE, place).env(PRELOAD, preloads(&library)?);
    if out.json() {
        command.stdout(Stdio::from(standard_error()?));
    }
    let (mut coverage, mut thrash) = (Coverage::default(), Thrash::default());
    let mut full = Full::new(&options.folder);
    let status = guarded(&mut command, |program| {
        coverage.look(&job, program);
        full.look(&options.folder);
        eprint!("{}", thrash.look(seen(&job, &coverage), &job.engines()).unwrap_or_default());
    })?;
    coverage.ended(&job);
    let exit = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let stats = stats(&job, exit, coverage);
    let is_bus = exit == 128 + signal_hook::consts::SIGBUS;
    eprint!("{}", full.text(&options.folder, stats.placed_peak, is_bus));
    eprint!("{}{}", coverage.text(stats.budget), thrash.end(seen(&job, &coverage), &job.engines()));
    if args.stats || out.json() {
        match out.json() {
            true => out.document(schema::MEM, &stats)?,
            false => eprint!("{}", text(&stats)),
        }
    }
    Ok(exit)
}

/// What was read until now.
fn seen(job: &Job, coverage: &Coverage) -> Seen {
    let placed = coverage.placed.max(job.sum(Counter::PlacedPeak));
    Seen { read: job.sum(Counter::Read), placed, budget: job.options().budget }
}

/// Standard error once more.
fn standard_error() -> Result<File> {
    use std::os::fd::AsFd;
    let again = std::io::stderr().as_fd().try_clone_to_owned();
    again.map(File::from).map_err(|e| Error::io("cannot duplicate standard error", e))
}

fn options(args: &Args) -> Result<JobOptions> {
    let folder = args.tier.clone().unwrap_or_else(std::env::temp_dir);
    let folder = folder.canonicalize().map_err(|e| {
        let message = format!("cannot access the tier {}: {e}", folder.display());
        Error::new(Kind::Usage, message).hint("--tier must be a directory").caused_by(e)
    })?;
    let tile = args.tile;
    if !tile.is_power_of_two() || !(4096..=2 << 20).contains(&tile) {
        return Err(Error::new(Kind::Usage, format!("invalid tile size: {tile} bytes"))
            .hint("a power of two from 4KiB to 2MiB"));
    }
    if args.dram < TILES_MIN * tile {
        return Err(Error::new(Kind::Usage, format!("a budget of {} is too small", format_bytes(args.dram)))
            .hint("the minimum is 16 tiles: use a larger --dram or a smaller --tile"));
    }
    if args.threshold < tile {
        return Err(Error::new(Kind::Usage, "--threshold is below --tile")
            .hint("use a larger --threshold or a smaller --tile"));
    }
    let engine = args.engine.as_deref().map(str::parse::<WindowEngine>).transpose()?;
    let most = args.capacity.unwrap_or_else(|| (args.dram.saturating_mul(BUDGETS)).min(free(&folder)));
    let most = (most / tile * tile).max(args.dram / tile * tile);
    Ok(JobOptions {
        budget: args.dram,
        tile_bytes: tile as usize,
        threshold: args.threshold,
        capacity: most,
        engine,
        folder,
    })
}

/// Bytes that a user may still write on the file system of a folder.
fn free(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(u64::MAX, |seen| seen.f_bavail.saturating_mul(seen.f_frsize))
}

/// Fails before the program begins where it could have no window.
fn try_window(options: &JobOptions) -> Result<()> {
    let mut tried = WindowOptions::new(options.budget);
    (tried.tile_bytes, tried.engine) = (options.tile_bytes, options.engine);
    Window::scratch(&options.folder, TILES_MIN * options.tile_bytes as u64, &tried).map(drop)
}

/// The folder of the libraries of this installation, when the caller knows it better than the kernel.
static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();

/// Notes where the libraries of this installation are. The first call counts.
pub fn set_libraries(folder: PathBuf) {
    let _ = LIBRARIES.set(folder);
}

/// The library: beside the command, or where libraries of its installation are.
fn library() -> Result<PathBuf> {
    let beside =
        std::env::current_exe().ok().and_then(|exe| Some(exe.canonicalize().ok()?.parent()?.to_owned()));
    let around = beside.into_iter().flat_map(|b| [b.clone(), b.join("../lib"), b.join("../lib64")]);
    let mut candidates =
        LIBRARIES.get().cloned().into_iter().chain(around).map(|folder| folder.join(LIBRARY));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        Error::new(
            Kind::NotPossibleHere,
            format!("{LIBRARY} is neither in the directory of this command nor in ../lib"),
        )
        .hint("cargo build --release -p forebay-mem, or make install")
    })
}

/// The library before whatever else shall be loaded first.
fn preloads(library: &Path) -> Result<OsString> {
    let library = library.canonicalize().unwrap_or_else(|_| library.to_owned());
    if library.to_string_lossy().contains([':', ' ']) {
        return Err(Error::new(
            Kind::NotPossibleHere,
            format!("the path {} contains a blank or a colon", library.display()),
        )
        .hint("LD_PRELOAD does not support such paths: install Forebay in another directory"));
    }
    let mut all = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}

/// Memory without a name for the words of the job: the processes open it as a descriptor of this one.
fn words() -> Result<File> {
    let failed = |e: rustix::io::Errno| Error::io("cannot create the shared memory of the job", e.into());
    let made = rustix::fs::memfd_create("forebay-mem", rustix::fs::MemfdFlags::CLOEXEC).map_err(failed)?;
    let file = File::from(made);
    file.set_len(job::BYTES).map_err(|e| Error::io("cannot create the shared memory of the job", e))?;
    Ok(file)
}

/// Runs the program to its end, calling `look` now and then; signals that end this command go on to it.
fn guarded(command: &mut Command, mut look: impl FnMut(u32)) -> Result<ExitStatus> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let last = Arc::new(AtomicUsize::new(0));
    let failed = |e| Error::io("installing signal handlers", e);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, last.clone(), signal as usize).map_err(failed)?;
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .map_err(|e| Error::new(Kind::Usage, format!("cannot start {program}: {e}")).caused_by(e))?;
    let mut round = 0_u64;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::io("cannot wait for the program", e))? {
            return Ok(status);
        }
        pass_on(&child, last.swap(0, Ordering::SeqCst));
        if round < LOOKS_EACH || round % LOOKS_EACH == 0 {
            look(child.id());
        }
        std::thread::sleep(LOOK);
        round += 1;
    }
}

/// Sends a signal on; a terminal sends its own to the program, too.
fn pass_on(child: &Child, signal: usize) {
    if signal as i32 == signal_hook::consts::SIGINT && std::io::stdin().is_terminal() {
        return;
    }
    let named = rustix::process::Signal::from_named_raw(signal as i32);
    let pid = rustix::process::Pid::from_raw(child.id() as i32);
    if let (Some(signal), Some(pid)) = (named, pid) {
        // It may have ended just now.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn engines_of(job: &Job) -> String {
    let names: Vec<&str> = job.engines().into_iter().map(WindowEngine::name).collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join(" and ")
    }
}

fn stats(job: &Job, exit_status: i32, coverage: Coverage) -> Stats {
    let options = job.options();
    Stats {
        exit_status,
        engine: engines_of(job),
        budget: options.budget,
        threshold: options.threshold,
        tile: options.tile_bytes as u64,
        processes: job.sum(Counter::Processes),
        allocations: job.sum(Counter::Allocations),
        placed_bytes: job.sum(Counter::Placed),
        placed_peak: job.sum(Counter::PlacedPeak),
        faults: job.sum(Counter::Faults),
        read_bytes: job.sum(Counter::Read),
        written_bytes: job.sum(Counter::Written),
        evicted_bytes: job.sum(Counter::Evicted),
        helped_calls: job.sum(Counter::Calls),
        resident_peak: job.resident_peak(),
        largest_rss_peak: forebay_tier::process::children_peak_bytes(),
        covered_bytes: coverage.placed,
        outside_bytes: coverage.outside,
    }
}

fn text(stats: &Stats) -> String {
    let line = |name: &str, value: String| format!("  {name:<24}{value}\n");
    let bytes = format_bytes;
    let mut text = format!(
        "forebay mem: {} in windows of {} process{} (measured)\n",
        bytes(stats.placed_bytes),
        stats.processes,
        if stats.processes == 1 { "" } else { "es" }
    );
    text += &line("engine", stats.engine.clone());
    text += &line("allocations", stats.allocations.to_string());
    text += &line("most at once", format!("{} in one process", bytes(stats.placed_peak)));
    text += &line("in memory, at most", format!("{} of {}", bytes(stats.resident_peak), bytes(stats.budget)));
    text += &line("faults", stats.faults.to_string());
    text += &line("read", bytes(stats.read_bytes));
    text += &line("written", bytes(stats.written_bytes));
    text += &line("left memory", bytes(stats.evicted_bytes));
    text += &line("calls that were helped", stats.helped_calls.to_string());
    text += &line("largest process", format!("{} of memory at its peak", bytes(stats.largest_rss_peak)));
    text
}
