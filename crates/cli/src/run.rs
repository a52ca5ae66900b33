//! `forebay run`: starts all components of a workflow, shows progress, and says where the record is.
//!
//! Guarantees: when it returns, no process of the run lives. The last line on stdout is the path of what was
//! made last, the report if one was asked for, else the run directory, relative to the working directory
//! where it lies below it. Everything else about running is `forebay_flow`'s.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use forebay_flow::choices::without_capacity;
use forebay_flow::inputs::known_load;
use forebay_flow::launch::Launcher;
use forebay_flow::plan::AS_THE_FILE_SAYS;
use forebay_flow::record::{latest_run, State};
use forebay_flow::trials::Trials;
use forebay_flow::{PlanFile, Workflow};
use forebay_flow::{RunOptions, RunRecord};
use forebay_model::plan::{Locality, Mode, Plan};
use forebay_tier::Result;
use serde::Serialize;

use crate::command::again::self_command;
use crate::command::paths::{open_in_browser, relative};
use crate::output::Output;

/// Run a workflow: start every component, show progress, record the run.
#[derive(clap::Args, Debug, Default)]
#[command(
    after_help = "Exit status: 4 when a component failed; all other components are ended, and the first failure is \
                  the one named. Ctrl-C ends all components in order; a second one at once."
)]
pub struct Args {
    /// Workflow file (forebay init writes one).
    #[arg(default_value = "workflow.toml")]
    workflow: PathBuf,
    /// Run directory, new or empty [default: runs/NAME-TIME beside the workflow file].
    #[arg(long, short, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the HTML report at the end and print its path.
    #[arg(long)]
    report: bool,
    /// Open the report in a browser, on a terminal with a display.
    #[arg(long, requires = "report")]
    open: bool,
    /// No progress.
    #[arg(long, short, conflicts_with = "progress")]
    quiet: bool,
    /// Lines of progress on stderr, also where it is no terminal.
    #[arg(long)]
    progress: bool,
    /// Run it by this plan (forebay plan -o writes one).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mode", "locality", "batch"])]
    plan: Option<PathBuf>,
    /// Execution mode: serial, serial-per-step, parallel, gated:NwMr; ranks are pinned. On several nodes: parallel.
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Placement of channel memory: writer, reader, or interleaved over both.
    #[arg(long, value_name = "SIDE", requires = "mode")]
    locality: Option<Locality>,
    /// Write small objects in batches of this size, as in 1MiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::sizes::size, requires = "mode")]
    batch: Option<u64>,
    /// Execute the plan that forebay advise finds best; where it is not certain, compare execution modes for some steps
    /// inside the run. The first run is executed as configured and recorded.
    #[arg(long, conflicts_with_all = ["plan", "mode", "only"])]
    auto: bool,
    /// Saved profile that --auto decides on [default: the newest].
    #[arg(long, value_name = "PROFILE", requires = "auto")]
    profile: Option<String>,
    /// Versions that --auto expects [default: as many as the earlier runs had].
    #[arg(long, value_name = "N", requires = "auto", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Run only this component, after those that it reads from, to measure its steps alone.
    #[arg(long, value_name = "COMPONENT", conflicts_with_all = ["plan", "mode"])]
    only: Option<String>,
    /// What starts the ranks of components that name no launcher: srun, flux or mpiexec; inside a job of theirs.
    #[arg(long, value_enum, value_name = "LAUNCHER", hide_possible_values = true)]
    launcher: Option<LauncherName>,
    /// Copy standard output and standard error of all ranks to standard error, each line after the name of its log.
    #[arg(long)]
    tee: bool,
    /// Seconds between SIGTERM and SIGKILL for a component that is to end.
    #[arg(long, value_name = "SECONDS", default_value_t = GRACE_S)]
    grace: u64,
}

impl Args {
    /// As the workflow file says, with a report.
    pub fn with_report(workflow: PathBuf, quiet: bool) -> Args {
        Args { workflow, report: true, quiet, grace: GRACE_S, ..Args::default() }
    }
}

/// Seconds between asking a component to end and killing it, where nothing else is asked for.
const GRACE_S: u64 = 5;

/// A launcher, as it is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LauncherName {
    Srun,
    Flux,
    Mpiexec,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    report: Option<String>,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let pin = is_pinned_on_nodes(args)?;
    let (plan, trials) = if pin { (None, None) } else { plan(args, out)? };
    let mut options = RunOptions {
        out: args.out.clone(),
        quiet: args.quiet || (!args.progress && !out.stderr_is_terminal()),
        grace: Duration::from_secs(args.grace),
        plan,
        pin,
        trials,
        only: args.only.clone(),
        launcher: args.launcher.map(|name| match name {
            LauncherName::Srun => Launcher::Srun,
            LauncherName::Flux => Launcher::Flux,
            LauncherName::Mpiexec => Launcher::Mpiexec,
        }),
        tee: args.tee,
        ..RunOptions::default()
    };
    options.self_command = own_command();
    let begin_unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let (record, error) = match forebay_flow::run(&args.workflow, &options) {
        Ok(record) => (record, None),
        Err(error) => match record_of(args, begin_unix_ns) {
            Some(record) => (record, Some(error)),
            None => return Err(error),
        },
    };
    let report = match args.report {
        // A report that cannot be made must not hide why the run failed.
        true => forebay_pages::run::report(&record.run_dir).map(Some).or_else(|e| match &error {
            Some(_) => Ok(None),
            None => Err(e),
        })?,
        false => None,
    };
    print(&record, report.as_deref(), out)?;
    if args.open {
        report.iter().for_each(|report| open_in_browser(report, out));
    }
    if let Some(error) = error {
        out.begin_data();
        return Err(error);
    }
    if record.state == State::Finished && report.is_none() {
        out.next(&format!("forebay report {}", relative(&record.run_dir)));
    }
    Ok(record.exit_code())
}

/// The words that start this command again.
fn own_command() -> Vec<OsString> {
    self_command().map_or_else(|| RunOptions::default().self_command, <[OsString]>::to_vec)
}

/// Whether the runner of each node is to pin its ranks: a workflow on several nodes with the mode `parallel`.
fn is_pinned_on_nodes(args: &Args) -> Result<bool> {
    let is_asked = args.mode == Some(Mode::Parallel) && args.locality.is_none() && args.batch.is_none();
    Ok(is_asked && Workflow::read(&args.workflow)?.nodes.is_some())
}

/// The plan that was asked for, and execution modes to try.
fn plan(args: &Args, out: &Output) -> Result<(Option<PlanFile>, Option<Trials>)> {
    if args.auto {
        let chosen = crate::advise::choose(&args.workflow, args.profile.as_deref(), args.steps)?;
        match chosen.plan {
            Some(_) => out.progress(&chosen.line),
            None => out.aside(&format!("note: {}", chosen.line)),
        }
        return Ok((chosen.plan, chosen.trials));
    }
    let plan = match (&args.only, &args.plan, args.mode) {
        (Some(component), ..) => {
            let workflow = forebay_flow::alone::alone(&Workflow::read_for_plan(&args.workflow)?, component)?;
            let plan = Plan::new(Mode::Serial, Locality::Writer, AS_THE_FILE_SAYS);
            Some(crate::plan::requested(&workflow, &plan, None)?)
        }
        (None, Some(file), _) => Some(PlanFile::read(file)?),
        (None, None, Some(mode)) => {
            let workflow = Workflow::read_for_plan(&args.workflow)?;
            let locality = args.locality.unwrap_or(Locality::Writer);
            let plan = Plan { batching: args.batch, ..Plan::new(mode, locality, AS_THE_FILE_SAYS) };
            let plan = crate::plan::requested(&workflow, &plan, None)?;
            if let Some(reason) =
                without_capacity(None, known_load(&workflow)).filter(|_| mode == Mode::Serial)
            {
                out.aside(&format!("note: {reason}"));
            }
            Some(plan)
        }
        (None, None, None) => None,
    };
    Ok((plan, None))
}

/// The record of the run that just failed; `None` when it failed before there was one.
fn record_of(args: &Args, begin_unix_ns: u64) -> Option<RunRecord> {
    let dir = match &args.out {
        Some(out) => out.clone(),
        None => latest_run(
            args.workflow.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )?,
    };
    RunRecord::read(&dir).ok().filter(|record| record.start_unix_ns >= begin_unix_ns)
}

fn print(record: &RunRecord, report: Option<&Path>, out: &Output) -> Result<()> {
    if out.json() {
        return out.record(&Body { record, report: report.map(relative) });
    }
    let state = match record.state {
        State::Running => "running",
        State::Finished => "finished",
        State::Failed => "failed",
        State::Interrupted => "interrupted",
    };
    out.progress(&format!("{state} after {:.1} s", record.wall_s));
    for kept in record.tried.iter().flat_map(|tried| &tried.decisions) {
        out.progress(&format!("{} from version {}: {}", kept.mode, kept.at_version, kept.reason));
    }
    record.notes.iter().for_each(|note| out.aside(&format!("note: {note}")));
    let mut lines = relative(&record.run_dir) + "\n";
    lines.extend(report.map(|report| relative(report) + "\n"));
    out.text(&lines)
}

/// The hidden verbs with which the runner starts this command again; `args` begin with the program's name. They are
/// not parsed like the others: what follows belongs to a rank's program and is passed on unchanged.
pub fn hidden(args: &[OsString]) -> Option<Result<i32>> {
    let words = args.get(2..).unwrap_or_default();
    match args.get(1)?.to_str()? {
        forebay_flow::launch::EXEC_RANK_VERB => {
            Some(forebay_flow::exec_rank(words).map(|never| match never {}))
        }
        forebay_flow::nodes::FOLLOW_VERB => Some(Ok(forebay_flow::nodes::follow(own_command()))),
        forebay_flow::watch::BRIDGE_VERB => Some(forebay_flow::bridge(words).map(|()| 0)),
        _ => None,
    }
}
