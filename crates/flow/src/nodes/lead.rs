//! The runner that was called: it starts one on each node, and decides when the run ends.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use forebay_config::Template;
use forebay_space::{Error, Kind, Result};

use super::connection::{Event, Follower};
use super::merge::{merge, Recorded};
use super::message::{Order, Report, Setup, ALIVE_EVERY};
use super::placement::{place, PlacedNode};
use super::reach::{names, passed, template, variables};
use super::FOLLOW_VERB;
use crate::place::Nodes;
use crate::progress::{closing_lines, say, Show};
use crate::record::{monotonic_ns, unix_ns, Failure, NodeRecord, RunDir, RunRecord};
use crate::signals::Signals;
use crate::supervise::{needs_self_command, new_record, settle_end, End, RunOptions};
use crate::tee::Tee;
use crate::workflow::Workflow;

/// Folder of the agents, in the run directory.
pub(super) const AGENTS: &str = "agents";
/// Runners and agents of all nodes are ready within this time.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Beyond the time that ranks have to end, a runner has so long to say that they have.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// A runner stops its agent and removes its spaces within this time.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// A command has so long to end when the program that it runs has, or when its connection has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// After a second signal all is to end within this.
const HURRY_TIMEOUT: Duration = Duration::from_secs(2);
/// A follower that is silent for so long is lost.
const SILENT_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where the command that keeps the agent of a node prints.
pub(super) fn agent_file(run_dir: &Path, node: &str, suffix: &str) -> PathBuf {
    run_dir.join(format!("agent.{node}.{suffix}"))
}

/// Runs a workflow on its nodes. See [`crate::run`], whose results and errors it has.
///
/// # Errors
/// Beside them: [`Kind::Usage`] and [`Kind::NotPossibleHere`] where nodes, the way to them or places for all components
/// are missing; [`Kind::TimedOut`] and [`Kind::PeerMissing`] naming nodes that cannot be reached.
pub(crate) fn run_on_nodes(workflow: &Workflow, options: &RunOptions) -> Result<RunRecord> {
    check_options(options)?;
    needs_self_command(workflow, options)?;
    let table = workflow.nodes.clone().unwrap_or_default();
    let placed = place(workflow, &names(&table)?)?;
    let template = template(&table)?;
    let signals = Signals::catch()?;
    let dir = RunDir::create(workflow, options.out.as_deref())?;
    let mut record = new_record(workflow, &dir)?;
    record.write()?;
    let show = Show::choose(options.quiet, true);
    let tee = options.tee.then(|| Tee::start(&dir.path().join("logs"))).transpose()?;
    let mut lead = Lead::new(workflow, options, &dir, &table, &placed);
    let ended = lead.start(&template).and_then(|()| lead.conduct(&signals));
    let left = lead.reap();
    drop(tee);
    record.notes.extend(left.into_iter().chain(remove_agents(&dir, &placed)));
    let traces = merge(&mut record, workflow, &lead.recorded());
    if show != Show::Quiet {
        closing_lines(&record, &traces).iter().for_each(|line| say(line));
    }
    settle_end(record, ended, options)
}

fn check_options(options: &RunOptions) -> Result<()> {
    let refused = [
        (options.plan.is_some() || options.trials.is_some(), "by a plan or in an execution mode"),
        (options.only.is_some(), "with one component alone"),
        (options.launcher.is_some(), "with --launcher"),
    ];
    match refused.iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, how)) => {
            Err(Error::new(Kind::NotPossibleHere, format!("a workflow on several nodes cannot be run {how}"))
                .hint("omit that option, or remove the table [nodes] to run it on this node"))
        }
    }
}

/// Keeps what agents said among the logs, and removes their folder.
fn remove_agents(dir: &RunDir, placed: &[PlacedNode]) -> Option<String> {
    let folder = dir.path().join(AGENTS);
    for PlacedNode { name, .. } in placed {
        // No component has a rank of that name.
        let log = |suffix: &str| dir.path().join("logs").join(format!("{name}.agent.{suffix}"));
        let err = agent_file(dir.path(), name, "err");
        for (path, kept) in [(folder.join(format!("{name}.log")), log("log")), (err, log("err"))] {
            let _ = match path.metadata().is_ok_and(|meta| meta.len() > 0) {
                true => std::fs::rename(&path, kept),
                false => std::fs::remove_file(&path),
            };
        }
        let _ = std::fs::remove_file(agent_file(dir.path(), name, "out"));
    }
    match std::fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Some(format!("{} could not be removed: {e}", folder.display()))
        }
        _ => None,
    }
}

/// Why the run has to end.
enum Cause {
    Failed { failure: Failure, is_consequence: bool },
    Error(Error),
    Interrupted(i32),
}

fn is_consequence(cause: &Cause) -> bool {
    matches!(cause, Cause::Failed { is_consequence: true, .. })
}

struct Lead<'a> {
    workflow: &'a Workflow,
    options: &'a RunOptions,
    dir: &'a RunDir,
    table: &'a Nodes,
    placed: &'a [PlacedNode],
    followers: Vec<Follower>,
    /// For the threads of each follower.
    to_events: Sender<(usize, Event)>,
    events: Receiver<(usize, Event)>,
    cause: Option<Cause>,
}

impl<'a> Lead<'a> {
    fn new(
        workflow: &'a Workflow,
        options: &'a RunOptions,
        dir: &'a RunDir,
        table: &'a Nodes,
        placed: &'a [PlacedNode],
    ) -> Lead<'a> {
        let (to_events, events) = channel();
        let followers = Vec::new();
        Lead { workflow, options, dir, table, placed, followers, to_events, events, cause: None }
    }

    /// Starts the runners of all nodes.
    fn start(&mut self, template: &Template) -> Result<()> {
        let [program, arguments @ ..] = &self.options.self_command[..] else {
            return Err(Error::new(
                Kind::NotPossibleHere,
                "a run on several nodes needs the forebay command",
            )
            .hint("run it with: forebay run"));
        };
        let mut words = arguments.to_vec();
        words.push(FOLLOW_VERB.into());
        let variables = variables()?;
        for (index, placed) in self.placed.iter().enumerate() {
            let command = template.on_node(&placed.name, &variables, Path::new(program), &words)?;
            let setup = serde_json::to_value(self.setup(placed)).map_err(|e| {
                Error::new(Kind::Internal, format!("the orders of a run cannot be written: {e}"))
            })?;
            let follower = Follower::start(index, &placed.name, command, self.to_events.clone())?;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            follower.order(Order::Setup { version, setup });
            self.followers.push(follower);
        }
        Ok(())
    }

    fn setup(&self, placed: &PlacedNode) -> Setup {
        let mut agent = Vec::new();
        let mut add = |option: &str, value: String| agent.extend([option.to_owned(), value]);
        if let Some(listen) = &self.table.listen {
            add("--listen", listen.clone());
        }
        if let Some(lease) = self.table.lease {
            add("--lease", lease.to_string());
        }
        agent.extend(self.table.trusted_fabric.then(|| "--trusted-fabric".to_owned()));
        Setup {
            node: placed.clone(),
            nodes: self.placed.iter().map(|node| node.name.clone()).collect(),
            file: self.workflow.file.clone(),
            dir: self.workflow.dir.clone(),
            text: self.workflow.text.clone(),
            run_dir: self.dir.path().to_path_buf(),
            env: passed(std::env::vars_os()),
            grace: self.options.grace,
            quiet: self.options.quiet,
            pin: self.options.pin,
            agent,
        }
    }

    /// Leads the run to its end. Afterwards every follower has said what happened, has gone, or is lost.
    fn conduct(&mut self, signals: &Signals) -> Result<End> {
        let (mut is_going, mut is_stopping, mut is_finishing, mut is_hurried) = (false, false, false, false);
        let mut deadline = Some(Instant::now() + START_TIMEOUT);
        let (mut said_at, mut looked_at) = (Instant::now(), Instant::now());
        while !self.followers.iter().all(Follower::is_over) {
            self.look(LOOK_EVERY);
            if looked_at.elapsed() > SILENT_MAX / 4 {
                // This runner was stopped itself, and what was said meanwhile has not been heard.
                self.followers.iter_mut().for_each(|follower| follower.heard_at = Instant::now());
            }
            looked_at = Instant::now();
            if said_at.elapsed() >= ALIVE_EVERY {
                said_at = Instant::now();
                self.order(&Order::Alive);
            }
            if let Some(signal) = signals.caught() {
                self.cause.get_or_insert(Cause::Interrupted(signal));
                if signals.count() > 1 && !is_hurried {
                    is_hurried = true;
                    self.order(&Order::Hurry);
                    let soon = Instant::now() + HURRY_TIMEOUT;
                    deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
                }
            }
            self.write_off_silent();
            if self.cause.is_some() && !is_stopping {
                is_stopping = true;
                self.order(&Order::Stop);
                // What has said nothing may be anything: it has no ranks.
                self.write_off(|follower| !follower.has_begun);
                let wait = if is_hurried { HURRY_TIMEOUT } else { self.options.grace + STOP_TIMEOUT };
                deadline = Some(Instant::now() + wait);
            }
            if !is_going && !is_stopping && self.followers.iter().all(|follower| follower.is_ready) {
                (is_going, deadline) = (true, None);
                self.order(&Order::Go);
            }
            let has_ended = |follower: &Follower| follower.has_ended || follower.is_over();
            if (is_going || is_stopping) && !is_finishing && self.followers.iter().all(has_ended) {
                is_finishing = true;
                self.order(&Order::Finish);
                deadline = Some(Instant::now() + FINISH_TIMEOUT);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                deadline = None;
                match (is_finishing, is_stopping) {
                    (true, _) => self.write_off(|_| true),
                    (false, true) => self.write_off(|follower| !follower.has_ended),
                    (false, false) => self.cause = Some(Cause::Error(self.not_ready())),
                }
            }
        }
        match self.cause.take() {
            None => Ok(End::Finished),
            Some(Cause::Interrupted(signal)) => Ok(End::Interrupted(signal)),
            Some(Cause::Failed { failure, is_consequence }) => Ok(End::Failed { failure, is_consequence }),
            Some(Cause::Error(error)) => Err(error),
        }
    }

    fn not_ready(&self) -> Error {
        let missing = self.followers.iter().filter(|follower| !follower.is_ready);
        let missing: Vec<&str> = missing.map(|follower| follower.node.name.as_str()).collect();
        Error::new(Kind::TimedOut, "the run could not be started on all nodes in time")
            .with("not_ready", missing.join(", "))
            .hint(
                "the command of `launch` must run a program on the node, connect its standard input and output, and \
                 not ask for a password",
            )
    }

    fn order(&self, order: &Order) {
        self.followers.iter().for_each(|follower| follower.order(order.clone()));
    }

    /// Takes what has come, waiting for it so long.
    fn look(&mut self, mut within: Duration) {
        loop {
            match self.events.recv_timeout(within) {
                Ok((index, event)) => self.take(index, event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
            within = Duration::ZERO;
        }
    }

    fn take(&mut self, index: usize, event: Event) {
        let follower = &mut self.followers[index];
        let name = follower.node.name.clone();
        (follower.heard_at, follower.has_begun) =
            (Instant::now(), follower.has_begun || matches!(event, Event::Said(_)));
        match event {
            Event::Said(Report::Alive) => {}
            Event::Said(Report::Departed { channel, component, rank }) => {
                let others = self.followers.iter().enumerate().filter(|(other, _)| *other != index);
                let (channel, component) = (&channel, &component);
                others.for_each(|(_, follower)| {
                    let (channel, component) = (channel.clone(), component.clone());
                    follower.order(Order::Departed { channel, component, rank });
                });
            }
            Event::Said(Report::Ready { machine, clock_ns }) => {
                let own_ns = unix_ns() as i64 - monotonic_ns() as i64;
                follower.node = NodeRecord { name, machine, clock_ns: clock_ns - own_ns };
                follower.is_ready = true;
            }
            Event::Said(Report::Failed { mut failure, is_consequence }) => {
                failure.node = Some(name);
                self.add_cause(Cause::Failed { failure, is_consequence });
            }
            Event::Said(Report::Error { kind, message, hint }) => {
                let kind = Kind::from_code(kind).unwrap_or(Kind::Internal);
                let error = Error::new(kind, message).with("node", name);
                self.add_cause(Cause::Error(match hint {
                    Some(hint) => error.hint(hint),
                    None => error,
                }));
            }
            Event::Said(Report::Ended) => follower.has_ended = true,
            Event::Said(Report::Done { record }) => follower.record = Some(*record),
            Event::Closed => {
                follower.is_closed = true;
                let is_first = self.cause.as_ref().is_none_or(is_consequence);
                if follower.record.is_none() && !follower.is_lost && is_first {
                    let error = follower.lost();
                    self.add_cause(Cause::Error(error));
                }
            }
        }
    }

    /// The first cause counts, unless it looks like a consequence of one that comes later.
    fn add_cause(&mut self, cause: Cause) {
        match &self.cause {
            Some(before) if !is_consequence(before) || is_consequence(&cause) => {}
            _ => self.cause = Some(cause),
        }
    }

    /// Followers that were there and say nothing any more are lost, and the run with them.
    fn write_off_silent(&mut self) {
        let is_silent = |follower: &Follower| follower.has_begun && follower.heard_at.elapsed() > SILENT_MAX;
        let silent = self.followers.iter().find(|follower| !follower.is_over() && is_silent(follower));
        if let Some(name) = silent.map(|follower| follower.node.name.clone()) {
            let text = format!("the runner of a node was silent for {} s", SILENT_MAX.as_secs());
            self.add_cause(Cause::Error(
                Error::new(Kind::PeerMissing, text)
                    .with("node", name)
                    .hint("the node or the connection to it has failed, or its processes were stopped"),
            ));
            self.write_off(is_silent);
        }
    }

    /// Nothing more is expected of these.
    fn write_off(&mut self, is: impl Fn(&Follower) -> bool) {
        for follower in self.followers.iter_mut().filter(|follower| !follower.is_over() && is(follower)) {
            follower.is_lost = true;
            follower.kill();
        }
    }

    /// Ends the connections, waits for the commands of all followers, then kills those that are left; says which
    /// runners said nothing of their end.
    fn reap(&mut self) -> Vec<String> {
        self.followers.iter_mut().for_each(|follower| follower.orders = None);
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < deadline && self.followers.iter_mut().any(|follower| follower.runs()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut left = Vec::new();
        for follower in &mut self.followers {
            follower.kill();
            let name = &follower.node.name;
            if follower.is_lost && follower.has_begun {
                left.push(format!(
                    "node {name} did not answer: what the run has left there is removed by the next run, or by \
                     forebay clean"
                ));
            } else if follower.is_ready && follower.record.is_none() {
                left.push(format!("the runner of node {name} ended before it said what happened"));
            }
        }
        left
    }

    fn recorded(&self) -> Vec<Recorded<'_>> {
        let of = |(placed, follower): (&'a PlacedNode, &Follower)| Recorded {
            placed,
            node: follower.node.clone(),
            record: follower.record.clone(),
        };
        self.placed.iter().zip(&self.followers).map(of).collect()
    }
}
