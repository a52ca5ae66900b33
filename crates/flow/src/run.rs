//! Carries out a workflow: starts every rank, watches, ends everything together, writes the record.
//!
//! Guarantees: when [`run`] returns, no process of the run lives and none of its spaces is left but those that
//! the workflow keeps. The *first* failure is the one reported: a rank that fails because its peer died does not
//! mask it. SIGINT, SIGTERM and SIGHUP end the run in the same orderly way (a second one without grace); signals
//! that were ignored at the start (nohup) stay ignored.
//! By a plan it pins ranks through `forebay exec`, and where the plan is serial it starts readers when their writers
//! have ended; without one it starts all components at once, unpinned.
//! Not here: restarting what failed; choosing a plan.

use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};

use crate::alone::alone;
use crate::clean_up::{remove_spaces, take_names, taken};
use crate::conclude::complete_record;
use crate::course::Course;
use crate::emulate;
use crate::launch::{Exit, Launcher, Rank, RankCommand, Ranks, Role};
use crate::names::hold_names;
use crate::plan::PlanFile;
use crate::progress::{closing_lines, Sampler, Show};
use crate::record::{self, monotonic_ns, unix_ns, ChannelRecord, ComponentRecord, Failure, Machine};
use crate::record::{RunDir, RunRecord, State};
use crate::signals::Signals;
use crate::tee::Tee;
use crate::trials::{Steered, Trials};
use crate::workflow::{Component, Workflow};

/// How to run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Run directory; default `runs/<name>-<time>` beside the workflow file. Must be new or empty.
    pub out: Option<PathBuf>,
    /// No progress on stderr.
    pub quiet: bool,
    /// Print `run.json` on stdout at the end, also when a component failed.
    pub json: bool,
    /// The words that start this very command again (for `forebay` in a workflow and for helpers). Default: the
    /// running executable. Empty: ranks are started directly, without the kernel's promise to end them with the
    /// runner, and `files` and `forebay` in a workflow are refused.
    pub self_command: Vec<OsString>,
    /// Time between SIGTERM and SIGKILL when the run must end.
    pub grace: Duration,
    /// How to run it. Needs `self_command`.
    pub plan: Option<PlanFile>,
    /// Run only this component and those that it reads from; a plan must be one of that workflow.
    pub only: Option<String>,
    /// Execution modes to try inside the run; the plan is the first of them.
    pub trials: Option<Trials>,
    /// What starts the ranks of components that name no launcher themselves.
    pub launcher: Option<Launcher>,
    /// Print what the ranks print on standard error as well, each line with its log's name before it.
    pub tee: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        let me = std::env::current_exe().ok().map(PathBuf::into_os_string);
        RunOptions {
            out: None,
            quiet: false,
            json: false,
            self_command: me.into_iter().collect(),
            grace: Duration::from_secs(5),
            plan: None,
            only: None,
            trials: None,
            launcher: None,
            tee: false,
        }
    }
}

/// The plan, in the run directory.
pub(crate) const PLAN_FILE: &str = "plan.json";

/// A failure that looks like a peer's (exit status 7, or an error that names a dead peer) waits this long for
/// the cause to show up.
const SETTLE_SECONDARY: Duration = Duration::from_millis(400);

/// Any failure waits this long, so that what ended at the same moment is seen together.
const SETTLE: Duration = Duration::from_millis(60);

/// Lines and bytes of a failed rank's standard error that are shown.
const TAIL_LINES_MAX: usize = 12;
const TAIL_BYTES_MAX: u64 = 16 * 1024;

/// How the run came to its end.
enum End {
    Finished,
    Failed(Failure),
    Interrupted(i32),
}

/// Runs a workflow to its end. Blocks until every rank has ended. Call it from a thread that lives on (see
/// `launch`).
///
/// Returns the record when all ranks ended with 0, and also when a signal ended the run
/// ([`RunRecord::exit_code`] is then 128+n).
///
/// # Errors
/// All of [`Workflow::read`] and [`PlanFile::check`]; [`Kind::NameInUse`] when a channel's name is taken (nothing was
/// started then); [`Kind::ComponentFailed`] naming component, rank, status and the log; [`Kind::NotPossibleHere`] when
/// the workflow needs `self_command` and there is none.
pub fn run(file: &Path, options: &RunOptions) -> Result<RunRecord> {
    let mut workflow = Workflow::read(file)?;
    if let Some(component) = &options.only {
        workflow = alone(&workflow, component)?;
    }
    needs_self_command(&workflow, options)?;
    for component in &mut workflow.components {
        match options.launcher {
            Some(launcher) if component.launcher.is_empty() => {
                component.launcher = launcher.words(component.ranks)
            }
            _ => {}
        }
    }
    if let Some(plan) = &options.plan {
        plan.check(&workflow)?;
        // A job runs on a node like the one that the plan was made on.
        if options.launcher.is_none() {
            plan.check_host()?;
        }
        plan.place_channels(&mut workflow);
    }
    let emulated = emulate::settle(&mut workflow)?;
    let names = hold_names(&workflow)?;
    take_names(&workflow)?;
    let signals = Signals::catch()?;
    let dir = Arc::new(RunDir::create(&workflow, options.out.as_deref())?);
    let mut record = new_record(&workflow, &dir)?;
    if let Some(plan) = &options.plan {
        plan.write(&dir.path().join(PLAN_FILE))?;
        record.plan = Some(plan.clone());
    }
    record.notes.extend(emulated);
    record.write()?;
    let show = Show::choose(options.quiet, options.tee);
    let tee = options.tee.then(|| Tee::start(&dir.path().join("logs"))).transpose()?;
    if show != Show::Quiet {
        record.notes.iter().for_each(|line| eprintln!("{line}"));
    }
    let sampler = Sampler::start(&workflow, dir.clone(), &dir.path().join("fill.jsonl"), show)?;
    let steered = options.trials.clone().map(|trials| Steered::start(&workflow, trials)).transpose()?;
    let mut ranks = Ranks::default();
    let mut course = Course::new(&workflow, options);
    let ended = course
        .start_ready(&workflow, &dir, options, &mut ranks)
        .and_then(|()| supervise(&workflow, &dir, options, &mut course, &mut ranks, &sampler, &signals));
    let hurry_at = signals.count() + 1;
    ranks.stop_all(options.grace, &|| signals.count() >= hurry_at, &|time| signals.pause(time));
    let seen = sampler.finish();
    drop(tee);
    if let Some((tried, failed)) = steered.map(Steered::finish) {
        record.tried = Some(tried);
        record.notes.extend(failed);
    }
    record.notes.extend(remove_spaces(&workflow, &dir));
    drop(names);
    let traces = complete_record(&mut record, &workflow, &ranks, &seen);
    if show != Show::Quiet {
        closing_lines(&record, &traces).iter().for_each(|line| eprintln!("{line}"));
    }
    settle_end(record, ended, options)
}

fn needs_self_command(workflow: &Workflow, options: &RunOptions) -> Result<()> {
    let by_plan = options.plan.is_some();
    let needs =
        |c: &&Component| by_plan || c.program.is_none() || c.files.out.is_some() || c.files.input.is_some();
    match workflow.components.iter().find(needs) {
        Some(component) if options.self_command.is_empty() => {
            Err(Error::new(Kind::NotPossibleHere, "this workflow needs the forebay command")
                .with("component", &component.name)
                .hint("run it with: forebay run"))
        }
        _ => Ok(()),
    }
}

/// Writes the record's last form and turns the end into the result.
fn settle_end(mut record: RunRecord, ended: Result<End>, options: &RunOptions) -> Result<RunRecord> {
    let failure = match ended {
        Ok(End::Finished) => {
            record.state = State::Finished;
            None
        }
        Ok(End::Interrupted(signal)) => {
            record.state = State::Interrupted;
            record.signal = Some(signal);
            None
        }
        Ok(End::Failed(failure)) => {
            record.state = State::Failed;
            let error = failure_error(&failure, &record.run_dir);
            record.failure = Some(failure);
            Some(error)
        }
        Err(error) => {
            record.state = State::Failed;
            record.notes.push(error.to_string());
            Some(error)
        }
    };
    record.write()?;
    if options.json {
        let text = serde_json::to_string_pretty(&record)
            .map_err(|e| Error::new(Kind::Internal, format!("writing the run record: {e}")))?;
        println!("{text}");
    }
    failure.map_or(Ok(record), Err)
}

fn failure_error(failure: &Failure, run_dir: &Path) -> Error {
    let mut message = failure.message.clone();
    for line in failure.log_tail.lines() {
        message.push_str("\n  | ");
        message.push_str(line);
    }
    let mut error = Error::new(Kind::ComponentFailed, message).with("component", &failure.component);
    if let Some(rank) = failure.rank {
        error = error.with("rank", rank);
    }
    if let Some(code) = failure.code {
        error = error.with("exit_status", code);
    }
    if let Some(signal) = failure.signal {
        error = error.with("signal", signal);
    }
    let log = run_dir.join(&failure.log);
    let other = log.with_extension("out");
    let both = other != log && std::fs::metadata(&other).is_ok_and(|meta| meta.len() > 0);
    let more = if both { format!(" and {}", other.display()) } else { String::new() };
    error.hint(format!("its whole output: {}{more}", log.display()))
}

fn new_record(workflow: &Workflow, dir: &RunDir) -> Result<RunRecord> {
    let channels = workflow.channels.iter().map(|channel| ChannelRecord {
        name: channel.name.clone(),
        path: channel.location(&workflow.dir),
        declared: true,
        keep: channel.keep,
        kind: channel.options.kind.unwrap_or_default().to_string(),
        state: "never opened".to_owned(),
        writer: channel.writer.clone(),
        readers: channel.readers.clone(),
        ..ChannelRecord::default()
    });
    let components = workflow.components.iter().map(|component| ComponentRecord {
        name: component.name.clone(),
        command: component.command.clone(),
        reads: component.reads.clone(),
        writes: component.writes.clone(),
        ..ComponentRecord::default()
    });
    Ok(RunRecord {
        schema: record::SCHEMA.to_owned(),
        name: workflow.name.clone(),
        state: State::Running,
        run_dir: dir.path().to_path_buf(),
        workflow_file: std::path::absolute(&workflow.file)
            .map_err(|e| Error::io("cannot determine the current directory", e))?,
        machine: Machine::here(),
        forebay_version: env!("CARGO_PKG_VERSION").to_owned(),
        start_unix_ns: unix_ns(),
        end_unix_ns: 0,
        start_ns: monotonic_ns(),
        end_ns: 0,
        wall_s: 0.0,
        signal: None,
        failure: None,
        components: components.collect(),
        channels: channels.collect(),
        plan: None,
        tried: None,
        notes: Vec::new(),
    })
}

/// Watches until all ranks have ended, or there is a reason to end them.
fn supervise(
    workflow: &Workflow,
    dir: &RunDir,
    options: &RunOptions,
    course: &mut Course,
    ranks: &mut Ranks,
    sampler: &Sampler,
    signals: &Signals,
) -> Result<End> {
    let mut told: Vec<bool> = vec![false; workflow.components.len()];
    let mut counted: Vec<bool> = Vec::new();
    let mut departed: Vec<DepartedReader> = Vec::new();
    loop {
        ranks.sweep();
        if let Some(signal) = signals.caught() {
            return Ok(End::Interrupted(signal));
        }
        if ranks.all.iter().any(has_failed) {
            return Ok(first_failure(workflow, dir, ranks, signals));
        }
        counted.resize(ranks.all.len(), false);
        for (index, rank) in ranks.all.iter().enumerate() {
            if rank.exit.is_some() && !std::mem::replace(&mut counted[index], true) {
                let component = rank.started_as.component;
                let ended = match rank.started_as.role {
                    Role::Rank(number) => number..number + 1,
                    Role::Launcher => 0..workflow.components[component].ranks,
                    Role::FilesOut | Role::FilesIn => 0..0,
                };
                for number in ended {
                    sampler.rank_ended(component);
                    departed.extend(departed_readers(workflow, component, number));
                }
            }
        }
        if let Some(space) = sampler.foreign() {
            return Err(taken(&space));
        }
        departed.retain(|reader| !reader.leave(workflow, sampler));
        for (component, told) in told.iter_mut().enumerate() {
            if !*told && course.started[component] && component_ended(ranks, component) {
                ranks.release_helpers(component);
                *told = true;
            }
        }
        course.start_ready(workflow, dir, options, ranks)?;
        if course.all_started() && ranks.all_ended() {
            return Ok(End::Finished);
        }
        if let Some(failure) = overdue(workflow, dir, ranks) {
            return Ok(End::Failed(failure));
        }
        signals.pause(Duration::from_millis(250));
    }
}

/// How long the runner waits for the lock of a space to leave a group; it does not watch its ranks meanwhile.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(200);

/// A reader rank that ended well. Its group is declared, so versions that it has not read would wait for it; it does
/// not come again in this run, so the runner leaves the group in its place, once there is a space.
struct DepartedReader {
    channel: String,
    component: String,
    rank: u32,
}

fn departed_readers(workflow: &Workflow, component: usize, rank: u32) -> Vec<DepartedReader> {
    let component = &workflow.components[component];
    if component.files.input.is_some() {
        // The helper reads in its place.
        return Vec::new();
    }
    let channels = component.reads.iter();
    channels
        .map(|channel| DepartedReader { channel: channel.clone(), component: component.name.clone(), rank })
        .collect()
}

impl DepartedReader {
    /// True when nothing is left to do for it.
    fn leave(&self, workflow: &Workflow, sampler: &Sampler) -> bool {
        if sampler.seen().channel(&self.channel).is_none() {
            return false;
        }
        let Some(channel) = workflow.channels.iter().find(|c| c.name == self.channel) else { return true };
        // Looked at now: the last sample may be from before its end, and who leaves has no cursor to come back to.
        let space = match forebay_space::glance_within(&channel.location(&workflow.dir), LEAVE_TIMEOUT) {
            Ok(space) => space,
            Err(e) => return e.kind() == Kind::PeerMissing,
        };
        // No writer waits for it any more; where the workflow is run again it goes on behind what it has read.
        if space.state == "finished" {
            return true;
        }
        let location = channel.location(&workflow.dir);
        match forebay_space::leave_reader_group(&location, &self.component, self.rank, LEAVE_TIMEOUT) {
            // A writer that is still to open declares its group.
            Ok(is_known) => is_known,
            Err(e) => e.kind() != Kind::TimedOut,
        }
    }
}

fn has_failed(rank: &Rank) -> bool {
    rank.exit.is_some_and(|exit| !exit.is_success() && !exit.asked)
}

fn component_ended(ranks: &Ranks, component: usize) -> bool {
    let own = ranks.all.iter().filter(|r| r.started_as.component == component);
    let ranks = own.filter(|r| matches!(r.started_as.role, Role::Rank(_) | Role::Launcher));
    ranks.map(|r| r.exit).all(|exit| exit.is_some())
}

fn overdue(workflow: &Workflow, dir: &RunDir, ranks: &Ranks) -> Option<Failure> {
    let now = monotonic_ns();
    let late = |rank: &&Rank| {
        let timeout = workflow.components[rank.started_as.component].timeout;
        let elapsed = Duration::from_nanos(now.saturating_sub(rank.start_ns));
        rank.exit.is_none() && timeout.is_some_and(|limit| elapsed > limit)
    };
    let rank = ranks.all.iter().find(late)?;
    let component = &workflow.components[rank.started_as.component];
    let limit = component.timeout.unwrap_or_default().as_secs_f64();
    let message = format!(
        "{} failed: {} ran longer than its timeout of {limit} s",
        component.name,
        who(component, rank)
    );
    Some(failure(component, dir, rank, message))
}

/// Waits a moment for what failed at the same time, then picks the failure that looks least like a consequence.
fn first_failure(workflow: &Workflow, dir: &RunDir, ranks: &mut Ranks, signals: &Signals) -> End {
    let begin = Instant::now();
    loop {
        let failed = ranks.all.iter().filter(|rank| has_failed(rank));
        let first = failed
            .filter_map(|r| r.exit.map(|exit| (consequence(r, &exit), exit.at_ns, r)))
            .min_by_key(|f| (f.0, f.1));
        let settle = if first.is_some_and(|f| f.0) { SETTLE_SECONDARY } else { SETTLE };
        if let Some(signal) = signals.caught() {
            // A job manager's SIGTERM reaches ranks and runner alike.
            return End::Interrupted(signal);
        }
        if let Some((_, _, rank)) = first.filter(|_| begin.elapsed() >= settle) {
            let component = &workflow.components[rank.started_as.component];
            let exit = rank.exit.map(|exit| exit.in_words()).unwrap_or_default();
            let verb =
                if rank.exit.is_some_and(|e| e.signal.is_some()) { "was ended by" } else { "ended with" };
            let message = format!("{} failed: {} {verb} {exit}", component.name, who(component, rank));
            return End::Failed(failure(component, dir, rank, message));
        }
        signals.pause(Duration::from_millis(20));
        ranks.sweep();
    }
}

/// Whether a failure looks like one that a peer's death caused. A signal never does.
fn consequence(rank: &Rank, exit: &Exit) -> bool {
    if exit.signal.is_some() {
        return false;
    }
    let tail = tail_of(&rank.started_as.err);
    let peer_kinds = [Kind::ProducerDied, Kind::PeerMissing, Kind::Fenced];
    exit.code == Some(Kind::PeerMissing.exit_code())
        || peer_kinds.iter().any(|kind| tail.contains(kind.name()))
}

fn who(component: &Component, rank: &Rank) -> String {
    match rank.started_as.role {
        Role::Rank(rank) => format!("rank {rank} of {}", component.ranks),
        Role::Launcher => format!("{}, which starts its {} ranks,", component.launcher[0], component.ranks),
        Role::FilesOut => "the helper that reads its files".to_owned(),
        Role::FilesIn => "the helper that writes its files".to_owned(),
    }
}

fn failure(component: &Component, dir: &RunDir, rank: &Rank, message: String) -> Failure {
    // Some programs say on standard output why they end, and their launcher on standard error that they did.
    let RankCommand { out, err, .. } = &rank.started_as;
    let tails = [out, err].map(|log| (log, tail_of(log)));
    let log = tails.iter().rev().find(|(_, tail)| !tail.is_empty()).map_or(err, |(log, _)| log);
    let said: Vec<&str> =
        tails.iter().map(|(_, tail)| tail.as_str()).filter(|tail| !tail.is_empty()).collect();
    let log_tail = said.join("\n");
    Failure {
        component: component.name.clone(),
        rank: if let Role::Rank(number) = rank.started_as.role { Some(number) } else { None },
        message,
        code: rank.exit.and_then(|exit| exit.code),
        signal: rank.exit.and_then(|exit| exit.signal),
        log: log.strip_prefix(dir.path()).unwrap_or(log).to_path_buf(),
        log_tail,
    }
}

/// The last lines of a log; what is not UTF-8 is replaced.
fn tail_of(log: &Path) -> String {
    let Ok(mut file) = std::fs::File::open(log) else { return String::new() };
    let length = file.metadata().map_or(0, |meta| meta.len());
    let skipped = length.saturating_sub(TAIL_BYTES_MAX);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(skipped)).is_err() || file.read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().skip(usize::from(skipped > 0)).collect();
    lines[lines.len().saturating_sub(TAIL_LINES_MAX)..].join("\n")
}
