//! The command `forebay-agent`: `start`, `wait`, `status`, `links`, `stop`, and `serve`, which is the agent itself.
//!
//! Guarantees: `start` returns when the agents of all nodes are connected, or with the reason why this one is not
//! there; the agent that it leaves behind is a process of its own session, which reads nothing from its environment but
//! FOREBAY_DIR and the launcher's names of the job. What an option does not say the batch system may say. Data go to
//! standard output, everything else to standard error. Not here: agents of other nodes (`launch.rs`).

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use forebay_config::{allocation, environment, parse_bytes, parse_seconds, Template};
use forebay_space::{AgentStatus, Error, Kind, Result};
use forebay_tier::process;
use rustix::process::{getppid, kill_process, set_parent_process_death_signal, setsid, Pid, Signal};

use crate::agent::{Agent, AgentOptions};
use crate::endpoint::Listen;
use crate::launch::{self, KEPT};
use crate::links;
use crate::rendezvous::{log_file, status_file, Card, Job, Rendezvous};

/// A program that waits looks so often.
const POLL: Duration = Duration::from_millis(20);
/// A lease of less is lost by an agent that waits for a processor.
const LEASE_MIN: Duration = Duration::from_millis(200);
/// All tasks of the network on one thread. A TLS connection is read and written by two tasks that share its state
/// without a lock (zenoh#2557): on two threads the connection breaks, or worse.
const ONE_THREAD: &str =
    "(tx: (worker_threads: 1), rx: (handover: tx), net: (handover: tx), acc: (handover: tx), app: (handover: tx))";
/// An agent says by its own deadline who is missing; it has so long beyond that.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// And a command that starts one on another node has so long to get there.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Make the spaces of a job accessible on all of its nodes: one agent per node.
///
/// A reader opens a space by its short name; the node of the writers does not matter.
#[derive(Parser, Debug)]
#[command(name = "forebay-agent", version, max_term_width = 100, subcommand_required = true)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Start the agent of this node, and wait until the agents of all nodes are connected.
    Start(Start),
    /// Wait until the agents of all nodes are connected.
    Wait(Wait),
    /// Show the agents of a job.
    Status(At),
    /// Measure latency and bandwidth of the connections between all nodes.
    ///
    /// Each node reads from all others, one after the other, in the way in which versions travel. All nodes measure at
    /// the same time, and beside the traffic of the job.
    Links(Links),
    /// Stop all agents of a job, and remove its folder.
    Stop(Stop),
    #[command(hide = true)]
    Serve(Start),
}

#[derive(Args, Debug, Clone)]
struct Start {
    /// Name of the job [default: the name of the folder].
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Name of this node; one of --nodes [default: that of the batch system, or the host name].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Names of all nodes of the job, comma-separated; the same on every node [default: those of the Slurm or PBS job].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Start the agents of all nodes from here: COMMAND runs a program on the node {node}, for example 'ssh {node}'.
    /// The program and its words are appended; {command}, if present, stands for them, quoted for a shell.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["node", "foreground"])]
    launch: Option<Template>,
    /// Folder of the job, on a file system that all nodes share; created with mode 0700. It holds the certificates and
    /// keys of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Address to listen on, for example tls/10.0.0.1:0; port 0 means any free ports, another one itself and the next
    /// one [default: the address of this host's name, any free ports].
    #[arg(long, value_name = "ENDPOINT")]
    listen: Option<Listen>,
    /// Use plain TCP, without encryption and authentication: only on a network that no other user can reach.
    #[arg(long)]
    trusted_fabric: bool,
    /// An agent that is silent for this long counts as lost; at least 0.2.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    lease: Duration,
    /// Maximum time to wait for the agents of the other nodes.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    timeout: Duration,
    /// Exit when the agent has been idle for this long [default: never; it exits with `stop`, or when the folder is
    /// removed].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    idle_timeout: Option<Duration>,
    /// Return as soon as this agent runs, without waiting for the others.
    #[arg(long)]
    no_wait: bool,
    /// Run in the foreground: for launchers that end what a command leaves behind, such as srun.
    #[arg(long, conflicts_with = "no_wait")]
    foreground: bool,
    /// The folder was made for this agent.
    #[arg(long, hide = true)]
    existing: bool,
    /// The process that stays in the foreground for this agent.
    #[arg(long, hide = true)]
    parent: Option<i32>,
}

#[derive(Args, Debug)]
struct Wait {
    /// Folder of the job; agents that start later may create it.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Maximum time to wait.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    timeout: Duration,
}

#[derive(Args, Debug)]
struct At {
    /// Folder of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Links {
    /// Folder of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Data to read over each connection; at most 5 seconds of it.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    bytes: u64,
    /// Maximum time to wait for the measurements.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = parse_seconds)]
    timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Stop {
    /// Folder of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Maximum time to wait for the agents to exit.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    timeout: Duration,
}

impl Start {
    /// For the node `node`; None: this one.
    fn options(&self, node: Option<&str>, lookup: environment::Lookup<'_>) -> Result<AgentOptions> {
        let listen = self.listen.clone().unwrap_or_else(Listen::anywhere);
        let listen = match (self.trusted_fabric, &self.listen) {
            (true, None) => listen.plain(),
            (false, Some(given)) if given.is_plain() => {
                return Err(Error::new(Kind::Usage, "plain TCP requires --trusted-fabric")
                    .with("listen", given.endpoint())
                    .hint(
                        "use tls/ADDRESS:PORT, or --trusted-fabric on a network that no other user can reach",
                    ));
            }
            _ => listen,
        };
        if self.lease < LEASE_MIN {
            return Err(Error::new(Kind::Usage, "the lease is too short")
                .with("lease_ms", self.lease.as_millis())
                .with("minimum_ms", LEASE_MIN.as_millis()));
        }
        let nodes = self.all_nodes(lookup)?;
        let own = || allocation::own_node(&nodes, process::host_name(), lookup);
        let named = node.map(str::to_string).or_else(|| self.node.clone());
        Ok(AgentOptions {
            job: self.job_name()?,
            node: named.map_or_else(own, Ok)?,
            nodes,
            rendezvous: self.rendezvous.clone(),
            is_made: self.existing,
            listen,
            lease: self.lease,
            timeout: self.timeout,
            idle_timeout: self.idle_timeout,
        })
    }

    fn all_nodes(&self, lookup: environment::Lookup<'_>) -> Result<Vec<String>> {
        if !self.nodes.is_empty() {
            return Ok(self.nodes.clone());
        }
        allocation::nodes(lookup)?.ok_or_else(|| {
            Error::new(Kind::Usage, "the nodes of the job are not known")
                .hint("list them with --nodes; it can be omitted only in a Slurm or PBS job")
        })
    }

    /// The same on every node, also where one of them is reached by ssh and knows nothing of the batch job.
    fn job_name(&self) -> Result<String> {
        if let Some(job) = &self.job {
            return Ok(job.clone());
        }
        if let Ok(at) = Rendezvous::open(&self.rendezvous) {
            return Ok(at.job().to_string());
        }
        let name = self.rendezvous.file_name().map(|name| name.to_string_lossy().into_owned());
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
        let name: String = name.unwrap_or_default().chars().filter(is_plain).collect();
        match allocation::check_name("job", &name) {
            Ok(()) => Ok(name),
            Err(_) => Err(Error::new(Kind::Usage, "the job has no name").hint("name it with --job")),
        }
    }

    /// The words of `verb` for an agent with these options, in the folder `folder`.
    fn words(&self, verb: &str, options: &AgentOptions, folder: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![verb.into()];
        let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
        add("--job", (&options.job).into());
        add("--node", (&options.node).into());
        add("--nodes", options.nodes.join(",").into());
        add("--rendezvous", folder.into());
        add("--lease", options.lease.as_secs_f64().to_string().into());
        add("--timeout", options.timeout.as_secs_f64().to_string().into());
        if let Some(listen) = &self.listen {
            add("--listen", listen.endpoint().into());
        }
        if let Some(idle) = options.idle_timeout {
            add("--idle-timeout", idle.as_secs_f64().to_string().into());
        }
        words.extend(self.trusted_fabric.then(|| "--trusted-fabric".into()));
        words.push("--existing".into());
        words
    }
}

/// Runs the command; `args` begin with the program's name. The result is the exit status.
pub fn main_with(args: Vec<OsString>) -> i32 {
    let line = match Line::try_parse_from(&args) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { Kind::Usage.exit_code() } else { 0 };
        }
    };
    let outcome = match &line.verb {
        Verb::Start(start) => signals().and_then(|is_over| match &start.launch {
            Some(template) => run_launch(start, template, &is_over),
            None => run_start(start, &is_over),
        }),
        Verb::Wait(wait) => wait_for(&wait.rendezvous, Instant::now() + wait.timeout, || false),
        Verb::Serve(start) => serve(start),
        Verb::Status(at) => run_status(at),
        Verb::Links(links) => signals().and_then(|is_over| {
            let Links { rendezvous, bytes, timeout, json } = links;
            links::run(rendezvous, *bytes, *json, *timeout, || is_over.load(Relaxed))
        }),
        Verb::Stop(stop) => run_stop(stop),
    };
    match outcome {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("error: {e}");
            e.kind().exit_code()
        }
    }
}

/// Starts the agent of this node as a process of its own. `is_over`: a signal came.
fn run_start(start: &Start, is_over: &AtomicBool) -> Result<()> {
    let options = start.options(None, &environment::process)?;
    say_what_is_plain(&options);
    options.check()?;
    let job = Job::new(&options.job, &options.nodes);
    let at = match start.existing {
        true => Rendezvous::open_for(&options.rendezvous, &job)?,
        false => Rendezvous::make(&options.rendezvous, &job)?,
    };
    let log_path = at.path().join(log_file(&options.node));
    // What an agent before this one has said would be taken for an error of this one.
    if !at.may_live(&options.node) {
        at.remove(&log_file(&options.node));
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.map_err(|e| Error::io(format!("cannot make {}", log_path.display()), e))?;
    let mut command = Command::new(own_program()?);
    command.args(start.words("serve", &options, at.path())).stdin(Stdio::null()).stdout(Stdio::null());
    if start.foreground {
        command.arg("--parent").arg(std::process::id().to_string());
    }
    // Paths of the caller's own directory mean other ones there; that of the folder is absolute.
    command.stderr(log).current_dir("/");
    if std::env::var_os("FOREBAY_DIR").is_some() {
        command.env("FOREBAY_DIR", forebay_space::root()?);
    }
    let mut child = command.spawn().map_err(|e| Error::io("cannot start the agent", e))?;
    wait_until_up(start, &options, &at, &mut child, is_over).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
    crate::print(&format!("{}\n", at.card(&options.node)?.map(|card| card.endpoint).unwrap_or_default()))?;
    if !start.foreground {
        return Ok(());
    }
    let mut is_told = false;
    loop {
        let status = child.try_wait().map_err(|e| Error::io("cannot wait for the agent", e))?;
        match status {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(error_of(&at, &options.node, status)),
            None => std::thread::sleep(POLL),
        }
        if is_over.load(Relaxed) && !is_told {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            is_told = true;
        }
    }
}

fn say_what_is_plain(options: &AgentOptions) {
    if options.listen.is_plain() {
        say!("forebay-agent: node {}: --trusted-fabric: traffic is not encrypted", options.node);
    }
}

/// Waits until the agent runs, or, unless that is not asked for, is connected to those of all nodes.
fn wait_until_up(
    start: &Start,
    options: &AgentOptions,
    at: &Rendezvous,
    child: &mut Child,
    is_over: &AtomicBool,
) -> Result<()> {
    let deadline = Instant::now() + options.timeout + START_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::io("cannot wait for the agent", e))? {
            return Err(error_of(at, &options.node, status));
        }
        // Those of an agent before this one may still be there.
        let is_own = |pid: u32| pid == child.id();
        let is_up = match start.no_wait {
            true => at.card(&options.node)?.is_some_and(|card| is_own(card.pid)),
            false => status_of(at, &options.node).is_some_and(|status| is_own(status.pid)),
        };
        if is_up {
            return Ok(());
        }
        if is_over.load(Relaxed) {
            // It ends in order, and is waited for.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let ended = Instant::now() + START_TIMEOUT;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < ended {
                std::thread::sleep(POLL);
            }
            return Err(launch::interrupted());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(Kind::TimedOut, "the agent did not start in time")
                .with("log", at.path().join(log_file(&options.node)).display()));
        }
        std::thread::sleep(POLL);
    }
}

/// The error of an agent that has ended.
fn error_of(at: &Rendezvous, node: &str, status: ExitStatus) -> Error {
    launch::failed(&format!("the agent of node {node}"), status, &at.log_end(node))
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::io("cannot find the program's own file", e))
}

/// Starts the agents of all nodes, and prints where they listen. One that fails ends all.
fn run_launch(start: &Start, template: &Template, is_over: &AtomicBool) -> Result<()> {
    if start.listen.as_ref().is_some_and(Listen::is_of_one_host) {
        return Err(Error::new(Kind::Usage, "only one node can listen at this address and port")
            .hint("omit --listen, or start each agent on its node with an address of its own"));
    }
    let nodes = start.all_nodes(&environment::process)?;
    let folder = std::path::absolute(&start.rendezvous)
        .map_err(|e| Error::io(format!("cannot resolve the path {}", start.rendezvous.display()), e))?;
    let (program, variables) = (own_program()?, launch::kept_variables()?);
    let mut commands = Vec::new();
    for node in &nodes {
        let options = start.options(Some(node), &environment::process)?;
        options.check()?;
        let mut words = start.words("start", &options, &folder);
        words.push("--no-wait".into());
        commands.push((node.clone(), template.on_node(node, &variables, &program, &words)?));
    }
    // It is new: what a failure ends has been started here.
    let at = Rendezvous::make_new(&folder, &Job::new(&start.job_name()?, &nodes))?;
    let deadline = Instant::now() + start.timeout + LAUNCH_TIMEOUT;
    let is_over = || is_over.load(Relaxed);
    let started = launch::run(commands, deadline, is_over).and_then(|()| {
        let deadline = Instant::now() + start.timeout + START_TIMEOUT;
        if start.no_wait {
            Ok(())
        } else {
            wait_for(&folder, deadline, is_over)
        }
    });
    if let Err(error) = started {
        return Err(match stop_all(&at, START_TIMEOUT) {
            Ok(()) => error,
            Err(left) => error.with("left", left.message()).hint("`forebay agent stop` stops the others"),
        });
    }
    let mut cards: Vec<Card> = nodes.iter().filter_map(|node| at.card(node).ok()?).collect();
    cards.sort_by(|a, b| a.node.cmp(&b.node));
    let lines = cards.iter().map(|card| format!("{}  {}\n", card.node, card.endpoint));
    crate::print(&lines.collect::<String>())
}

/// Waits until the agents of all nodes are connected.
fn wait_for(folder: &Path, deadline: Instant, is_over: impl Fn() -> bool) -> Result<()> {
    let mut at = None;
    let mut missing: Vec<String> = Vec::new();
    loop {
        let is_late = Instant::now() >= deadline;
        at = match Rendezvous::open(folder) {
            Ok(new) if at.is_none() => {
                missing = new.all_nodes().to_vec();
                Some(new)
            }
            // It is made by the first agent, and removed with the last one.
            Err(e) if e.kind() == Kind::PeerMissing && at.is_none() && !is_late => None,
            Err(e) => return Err(e),
            Ok(_) => at,
        };
        if let Some(at) = &at {
            missing.retain(|node| !is_connected(at, node));
            if missing.is_empty() {
                return Ok(());
            }
            let ended = |node: &String| {
                let has_card = at.card(node).is_ok_and(|card| card.is_some());
                if has_card {
                    None
                } else {
                    Error::last_printed(&at.log_end(node))
                }
            };
            if let Some(error) = missing.iter().find_map(ended) {
                return Err(error.with("not_connected", missing.join(", ")));
            }
        }
        if is_over() {
            return Err(launch::interrupted());
        }
        if is_late {
            return Err(Error::new(Kind::TimedOut, "agents of some nodes are not connected")
                .with("not_connected", missing.join(", "))
                .with("folder", folder.display())
                .hint(
                    "start an agent on every node; NODE.log in the folder of the job shows what each says",
                ));
        }
        std::thread::sleep(POLL);
    }
}

/// Whether the agent of a node is connected to all others.
fn is_connected(at: &Rendezvous, node: &str) -> bool {
    status_of(at, node).is_some_and(|status| status.state == "ready" && status.missing.is_empty())
}

/// Is the agent, until its end.
fn serve(start: &Start) -> Result<()> {
    if let Some(parent) = start.parent {
        // It ends with the process that stays in its place.
        set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|e| Error::io("asking to end with the parent process", e.into()))?;
        if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
            return Err(Error::new(Kind::PeerMissing, "the parent process has ended").with("pid", parent));
        }
    }
    // Not with the shell or the launcher's step that started it; it may be a leader already.
    let _ = setsid();
    // Before there are threads. Options of the user's programs are none of an agent's.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FOREBAY_") && !KEPT.contains(&text.as_ref()) {
            std::env::remove_var(&name);
        }
    }
    // The runtime reads it once.
    std::env::set_var("ZENOH_RUNTIME", ONE_THREAD);
    // What happens on the network: RUST_LOG=zenoh=debug.
    zenoh::try_init_log_from_env();
    let is_over = signals()?;
    let agent = Agent::start(start.options(None, &environment::process)?, &is_over)?;
    agent.serve(&is_over)
}

/// What a signal that ends the program sets.
fn signals() -> Result<Arc<AtomicBool>> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, is_over.clone())
            .map_err(|e| Error::io("cannot handle signals", e))?;
    }
    Ok(is_over)
}

/// What the agent of a node said last.
fn status_of(at: &Rendezvous, node: &str) -> Option<AgentStatus> {
    serde_json::from_str(&at.read(&status_file(node)).ok()?).ok()
}

fn run_status(arguments: &At) -> Result<()> {
    let at = Rendezvous::open(&arguments.rendezvous)?;
    let mut all = Vec::new();
    for node in at.nodes() {
        let status = status_of(&at, &node);
        all.push((node.clone(), status, at.status_age(&node)));
    }
    if arguments.json {
        let nodes = all.iter().map(|(node, status, age)| {
            serde_json::json!({ "node": node, "status": status, "age_s": age.map(|age| age.as_secs_f64()) })
        });
        let nodes: Vec<_> = nodes.collect();
        let document = serde_json::json!({ "schema": "forebay.agents/1", "job": at.job(), "nodes": nodes });
        return crate::print(&format!("{document}\n"));
    }
    let mut text = String::new();
    for (node, status, age) in all {
        let Some(status) = status else {
            text += &format!("{node}  waiting for the other agents\n");
            continue;
        };
        let late = age.filter(|age| *age > Duration::from_secs(5));
        let late = late.map_or(String::new(), |age| format!("  silent for {} s", age.as_secs()));
        let missing = match status.missing.is_empty() {
            true => String::new(),
            false => format!("  lost: {}", status.missing.join(", ")),
        };
        text += &format!("{node}  {}  pid {}{late}{missing}\n", status.state, status.pid);
        for mirror in &status.mirrors {
            let bytes = forebay_space::format_bytes(mirror.bytes);
            text += &format!(
                "  {} from {}: {}, {} versions, {bytes}\n",
                mirror.space, mirror.from, mirror.state, mirror.versions
            );
        }
        let served = status.served.iter().map(|served| format!("  {} to {}\n", served.space, served.to));
        text.extend(served);
    }
    crate::print(&text)
}

fn run_stop(stop: &Stop) -> Result<()> {
    stop_all(&Rendezvous::open(&stop.rendezvous)?, stop.timeout)
}

fn stop_all(at: &Rendezvous, timeout: Duration) -> Result<()> {
    at.ask_to_stop()?;
    let deadline = Instant::now() + timeout;
    loop {
        let left: Vec<String> = at.nodes().into_iter().filter(|node| at.may_live(node)).collect();
        if left.is_empty() {
            at.remove_all();
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(Kind::TimedOut, "not all agents exited in time")
                .with("nodes", left.join(", "))
                .with("folder", at.path().display())
                .hint("see NODE.log in the folder; kill them on their nodes (process ids: `forebay agent status`)"));
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Line::command().debug_assert();
    }

    fn start(words: &[&str]) -> Start {
        let line = Line::try_parse_from(["forebay-agent", "start"].iter().chain(words)).unwrap();
        let Verb::Start(start) = line.verb else { panic!("start was parsed") };
        start
    }

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn plain_text_has_to_be_permitted() {
        let parse = |more: &[&str]| {
            let words = ["--job", "j", "--node", "a", "--nodes", "a,b", "--rendezvous", "/r"];
            start(&[&words, more].concat()).options(None, &nothing)
        };
        assert_eq!(parse(&["--listen", "tcp/10.0.0.1:0"]).unwrap_err().kind(), Kind::Usage);
        assert!(parse(&["--listen", "tcp/10.0.0.1:0", "--trusted-fabric"]).unwrap().listen.is_plain());
        assert!(!parse(&[]).unwrap().listen.is_plain());
        assert_eq!(parse(&["--lease", "0.001"]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn what_is_not_given_is_that_of_the_batch_job() {
        let slurm = |name: &str| {
            let known =
                [("SLURM_JOB_ID", "4711"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURMD_NODENAME", "n2")];
            known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        let options = start(&["--rendezvous", "/x/r"]).options(None, &slurm).unwrap();
        assert_eq!((options.job.as_str(), options.node.as_str()), ("r", "n2"));
        assert_eq!(options.nodes, ["n1", "n2"]);
        let given = ["--nodes", "a,b", "--node", "a", "--rendezvous", "/x/job 7"];
        let options = start(&given).options(Some("b"), &slurm).unwrap();
        assert_eq!((options.job.as_str(), options.node.as_str()), ("job7", "b"));
        assert_eq!(start(&given).options(None, &nothing).unwrap().node, "a");
        // The name that the job has.
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("r");
        Rendezvous::make(&folder, &Job::new("its-name", &["a".into(), "b".into()])).unwrap();
        let folder = folder.to_str().unwrap();
        let options = start(&["--nodes", "a,b", "--node", "a", "--rendezvous", folder]).options(None, &slurm);
        assert_eq!(options.unwrap().job, "its-name");
        assert_eq!(start(&["--rendezvous", "/r"]).options(None, &nothing).unwrap_err().kind(), Kind::Usage);
        let host = start(&["--rendezvous", "/r", "--nodes", "no-such-host,other"]);
        assert_eq!(host.options(None, &nothing).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn agents_that_end_or_have_ended_are_not_connected() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("r");
        let at = Rendezvous::make(&folder, &Job::new("j", &["a".into()])).unwrap();
        let say = |state: &str, missing: &[&str]| {
            let status = serde_json::json!({ "node": "a", "incarnation": 1, "state": state, "pid": 1,
                "missing": missing, "mirrors": [], "served": [], "bytes_sent": 0 });
            at.write(&status_file("a"), status.to_string().as_bytes()).unwrap();
        };
        let wait = |seconds| wait_for(&folder, Instant::now() + Duration::from_secs(seconds), || false);
        for (state, missing) in [("ending", &[][..]), ("ready", &["b"])] {
            say(state, missing);
            assert_eq!(wait(0).unwrap_err().kind(), Kind::TimedOut, "{state} {missing:?}");
        }
        say("ready", &[]);
        wait(0).unwrap();
        // One that has failed is told at once.
        at.remove(&status_file("a"));
        at.write(&log_file("a"), b"error: NotPossibleHere: cannot listen\n").unwrap();
        assert_eq!(wait(100).unwrap_err().kind(), Kind::NotPossibleHere);
        at.remove(&log_file("a"));
        let interrupted = wait_for(&folder, Instant::now() + Duration::from_secs(100), || true).unwrap_err();
        assert!(interrupted.to_string().contains("interrupted"), "{interrupted}");
    }

    #[test]
    fn an_agent_is_given_what_its_start_was() {
        let given = [
            &["--job", "j", "--node", "a", "--nodes", "a,b", "--rendezvous", "r", "--listen", "tcp/[::1]:7"]
                [..],
            &["--trusted-fabric", "--lease", "0.5", "--timeout", "7", "--idle-timeout", "1.5"],
        ]
        .concat();
        let given = start(&given);
        let options = given.options(None, &nothing).unwrap();
        let words = given.words("start", &options, Path::new("/r"));
        let words: Vec<&str> = words[1..].iter().map(|word| word.to_str().unwrap()).collect();
        let again = start(&words).options(None, &nothing).unwrap();
        let expected = format!("{options:?}").replace("\"r\"", "\"/r\"");
        assert_eq!(format!("{again:?}"), expected.replace("is_made: false", "is_made: true"));
    }
}
