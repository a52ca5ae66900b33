//! Starts the ranks of this node, watches them, ends them together: of a run on one node, or of one node of several.
//!
//! Guarantees: when [`carry_out`] returns, none of the ranks lives. The *first* failure is the one reported: a rank
//! that fails because its peer died does not mask it. SIGINT, SIGTERM and SIGHUP end the ranks in the same orderly way
//! (a second one without grace); signals that were ignored at the start (nohup) stay ignored.
//! Not here: what comes before and after (`run`, `nodes`); restarting what failed; choosing a plan.

use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_space::{part_name, Error, Kind, Result};

use crate::clean_up::taken;
use crate::course::Course;
use crate::launch::{Exit, Launcher, Rank, RankCommand, Ranks, Role};
use crate::plan::PlanFile;
use crate::progress::{Sampler, Seen};
use crate::record::{self, monotonic_ns, unix_ns, ChannelRecord, ComponentRecord, Failure, Machine};
use crate::record::{RunDir, RunRecord, State};
use crate::signals::Signals;
use crate::trials::Trials;
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
    /// How to run it. Needs `self_command`; refused for a run on several nodes.
    pub plan: Option<PlanFile>,
    /// Of a run on several nodes: the ranks of each node have processors of their own, except on nodes with ranks of a
    /// launcher. Without effect on a run on one node.
    pub pin: bool,
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
            pin: false,
            only: None,
            trials: None,
            launcher: None,
            tee: false,
        }
    }
}

/// A failure that looks like a peer's (exit status 7, or an error that names a dead peer) waits this long for
/// the cause to show up.
const SETTLE_SECONDARY: Duration = Duration::from_millis(400);

/// Any failure waits this long, so that what ended at the same moment is seen together.
const SETTLE: Duration = Duration::from_millis(60);

/// Lines and bytes of a failed rank's standard error that are shown.
const TAIL_LINES_MAX: usize = 12;
const TAIL_BYTES_MAX: u64 = 16 * 1024;

/// How the run came to its end.
pub(crate) enum End {
    /// All ranks have ended well.
    Finished,
    /// One has failed.
    Failed {
        /// The first.
        failure: Failure,
        /// It looks like one that a peer's death has caused.
        is_consequence: bool,
    },
    /// A signal came.
    Interrupted(i32),
    /// Who leads the run has said so.
    Stopped,
}

/// Who decides, beside the ranks of this node and signals, when they end.
pub(crate) trait Leader {
    /// Takes note of what has been said.
    fn look(&mut self);
    /// All ranks have to end.
    fn is_to_end(&self) -> bool;
    /// Without the time to do so.
    fn is_hurried(&self) -> bool;
    /// All ranks of this node have ended: whether the run has.
    fn is_over(&mut self) -> bool;
    /// A rank has failed; the others are about to be ended.
    fn failed(&mut self, failure: &Failure, is_consequence: bool);
    /// A reader rank of this node has ended well: channel, component, rank.
    fn departed(&mut self, channel: &str, component: &str, rank: u32);
    /// Those of other nodes that have ended since the last call.
    fn departed_elsewhere(&mut self) -> Vec<(String, String, u32)>;
}

/// What the processes of this node did.
pub(crate) struct Carried {
    pub(crate) ranks: Ranks,
    pub(crate) seen: Seen,
    pub(crate) ended: Result<End>,
}

/// Starts the ranks, and returns when all have ended or were ended.
pub(crate) fn carry_out(
    workflow: &Workflow,
    dir: &RunDir,
    options: &RunOptions,
    sampler: Sampler,
    signals: &Signals,
    leader: &mut dyn Leader,
) -> Carried {
    let mut ranks = Ranks::default();
    let mut course = Course::new(workflow, options);
    let ended = course
        .start_ready(workflow, dir, options, &mut ranks)
        .and_then(|()| supervise(workflow, dir, options, &mut course, &mut ranks, &sampler, signals, leader));
    if let Ok(End::Failed { failure, is_consequence }) = &ended {
        leader.failed(failure, *is_consequence);
    }
    let hurry_at = signals.count() + 1;
    let leader = std::cell::RefCell::new(leader);
    let hurry = || {
        let mut leader = leader.borrow_mut();
        leader.look();
        leader.is_hurried() || signals.count() >= hurry_at
    };
    ranks.stop_all(options.grace, &hurry, &|time| signals.pause(time));
    Carried { ranks, seen: sampler.finish(), ended }
}

pub(crate) fn needs_self_command(workflow: &Workflow, options: &RunOptions) -> Result<()> {
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
pub(crate) fn settle_end(
    mut record: RunRecord,
    ended: Result<End>,
    options: &RunOptions,
) -> Result<RunRecord> {
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
        Ok(End::Stopped) => {
            record.state = State::Interrupted;
            None
        }
        Ok(End::Failed { failure, .. }) => {
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
    if let Some(node) = &failure.node {
        error = error.with("node", node);
    }
    let log = run_dir.join(&failure.log);
    let other = log.with_extension("out");
    let both = other != log && std::fs::metadata(&other).is_ok_and(|meta| meta.len() > 0);
    let more = if both { format!(" and {}", other.display()) } else { String::new() };
    error.hint(format!("its whole output: {}{more}", log.display()))
}

pub(crate) fn new_record(workflow: &Workflow, dir: &RunDir) -> Result<RunRecord> {
    let channels = workflow.channels.iter().map(|channel| ChannelRecord {
        name: channel.name.clone(),
        path: channel.location(&workflow.dir),
        declared: true,
        keep: channel.keep,
        kind: channel.options.kind.unwrap_or_default().to_string(),
        state: record::NEVER_OPENED.to_owned(),
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
        nodes: Vec::new(),
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
    leader: &mut dyn Leader,
) -> Result<End> {
    let mut told: Vec<bool> = vec![false; workflow.components.len()];
    let mut counted: Vec<bool> = Vec::new();
    let mut departed: Vec<DepartedReader> = Vec::new();
    loop {
        ranks.sweep();
        if let Some(signal) = signals.caught() {
            return Ok(End::Interrupted(signal));
        }
        leader.look();
        if ranks.all.iter().any(has_failed) {
            return Ok(first_failure(workflow, dir, ranks, signals));
        }
        if leader.is_to_end() {
            return Ok(End::Stopped);
        }
        counted.resize(ranks.all.len(), false);
        for (index, rank) in ranks.all.iter().enumerate() {
            if rank.exit.is_some() && !std::mem::replace(&mut counted[index], true) {
                let component = rank.started_as.component;
                let ended = match rank.started_as.role {
                    Role::Rank(number) => number..number + 1,
                    Role::Launcher => 0..workflow.components[component].ranks,
                    Role::FilesOut | Role::FilesIn => 0..0,
                    Role::Agent => 0..0,
                };
                for number in ended {
                    sampler.rank_ended(component);
                    for reader in departed_readers(workflow, component, number) {
                        leader.departed(&reader.channel, &reader.component, reader.rank);
                        departed.push(reader);
                    }
                }
            }
        }
        if let Some(space) = sampler.foreign() {
            return Err(taken(&space));
        }
        let elsewhere = leader.departed_elsewhere().into_iter();
        departed.extend(elsewhere.map(|(channel, component, rank)| DepartedReader {
            channel,
            component,
            rank,
        }));
        departed.retain(|reader| !reader.leave(workflow, sampler));
        for (component, told) in told.iter_mut().enumerate() {
            if !*told && course.started[component] && component_ended(ranks, component) {
                ranks.release_helpers(component);
                *told = true;
            }
        }
        course.start_ready(workflow, dir, options, ranks)?;
        if course.all_started() && ranks.all_ended() && leader.is_over() {
            return Ok(End::Finished);
        }
        if let Some(failure) = overdue(workflow, dir, ranks) {
            return Ok(End::Failed { failure, is_consequence: false });
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
        let Some(channel) = workflow.channels.iter().find(|c| c.name == self.channel) else { return true };
        let seen = sampler.seen();
        let Some(found) = seen.channel(&self.channel) else { return false };
        let location = match found.name == part_name(&self.channel) {
            true => found.name.clone(),
            false => channel.location(&workflow.dir),
        };
        // Looked at now: the last sample may be from before its end, and who leaves has no cursor to come back to.
        let space = match forebay_space::glance_within(&location, LEAVE_TIMEOUT) {
            Ok(space) => space,
            Err(e) => return e.kind() == Kind::PeerMissing,
        };
        // No writer waits for it any more; where the workflow is run again it goes on behind what it has read.
        if space.state == "finished" {
            return true;
        }
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
        if let Some((is_consequence, _, rank)) = first.filter(|_| begin.elapsed() >= settle) {
            let component = &workflow.components[rank.started_as.component];
            let exit = rank.exit.map(|exit| exit.in_words()).unwrap_or_default();
            let verb =
                if rank.exit.is_some_and(|e| e.signal.is_some()) { "was ended by" } else { "ended with" };
            let message = format!("{} failed: {} {verb} {exit}", component.name, who(component, rank));
            let failure = failure(component, dir, rank, message);
            return End::Failed { failure, is_consequence };
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
        Role::Agent => "the agent of its node".to_owned(),
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
        node: None,
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
