//! The command `forebay-agent`: `start`, `status`, `stop`, and `serve`, which is the agent itself.
//!
//! Guarantees: `start` returns when the agents of all nodes are connected, or with the reason why this one is not
//! there; the agent that it leaves behind is a process of its own session, which reads nothing from its environment but
//! FOREBAY_DIR and the launcher's names of the job. Data go to standard output, everything else to standard error.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use forebay_config::parse_seconds;
use forebay_space::{Error, Kind, Result};

use crate::agent::{Agent, AgentOptions};
use crate::endpoint::Listen;
use crate::rendezvous::{log_file, status_file, Job, Rendezvous};
use crate::status::Status;

const POLL: Duration = Duration::from_millis(20);
/// A lease of less is lost by an agent that waits for a processor.
const LEASE_MIN: Duration = Duration::from_millis(200);
/// Variables of Forebay that an agent keeps.
const KEPT: [&str; 2] = ["FOREBAY_DIR", "FOREBAY_RUN"];
/// All tasks of the network on one thread. A TLS connection is read and written by two tasks that share its state
/// without a lock (zenoh#2557): on two threads the connection breaks, or worse.
const ONE_THREAD: &str =
    "(tx: (worker_threads: 1), rx: (handover: tx), net: (handover: tx), acc: (handover: tx), app: (handover: tx))";
/// Lines of a log in an error.
const LOG_LINES: usize = 4;

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
    /// Show the agents of a job.
    Status(At),
    /// Stop all agents of a job, and remove its folder.
    Stop(Stop),
    #[command(hide = true)]
    Serve(Start),
}

#[derive(Args, Debug, Clone)]
struct Start {
    /// Name of the job.
    #[arg(long, value_name = "NAME")]
    job: String,
    /// Name of this node; one of --nodes.
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Names of all nodes of the job, comma-separated; the same on every node.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// Folder of the job, on a file system that all nodes share; created with mode 0700. It holds the certificates and
    /// keys of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Address to listen on, for example tls/10.0.0.1:0; port 0 means any free port [default: the address of this
    /// host's name, any free port].
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
struct Stop {
    /// Folder of the job.
    #[arg(long, value_name = "FOLDER")]
    rendezvous: PathBuf,
    /// Maximum time to wait for the agents to exit.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    timeout: Duration,
}

impl Start {
    fn options(&self) -> Result<AgentOptions> {
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
        Ok(AgentOptions {
            job: self.job.clone(),
            node: self.node.clone(),
            nodes: self.nodes.clone(),
            rendezvous: self.rendezvous.clone(),
            listen,
            lease: self.lease,
            timeout: self.timeout,
            idle_timeout: self.idle_timeout,
        })
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
        Verb::Start(start) => run_start(start, &args),
        Verb::Serve(start) => run_serve(start),
        Verb::Status(at) => run_status(at),
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

fn run_start(start: &Start, args: &[OsString]) -> Result<()> {
    let options = start.options()?;
    if options.listen.is_plain() {
        eprintln!("forebay-agent: node {}: --trusted-fabric: traffic is not encrypted", options.node);
    }
    options.check()?;
    let at = Rendezvous::make(&options.rendezvous, &Job::new(&options.job, &options.nodes))?;
    let log_path = at.path().join(log_file(&options.node));
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.map_err(|e| Error::io(format!("cannot make {}", log_path.display()), e))?;
    let own = std::env::current_exe().map_err(|e| Error::io("cannot find the program's own file", e))?;
    let mut command = Command::new(own);
    command.arg("serve").args(words_after("start", args)).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(log).current_dir("/");
    // Paths of the caller's own directory mean other ones there.
    command.arg("--rendezvous").arg(at.path());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FOREBAY_") && !KEPT.contains(&text.as_ref()) {
            command.env_remove(&name);
        }
    }
    if std::env::var_os("FOREBAY_DIR").is_some() {
        command.env("FOREBAY_DIR", forebay_space::root()?);
    }
    let mut child = command.spawn().map_err(|e| Error::io("cannot start the agent", e))?;
    // Its own deadline comes first, and says who is missing.
    let deadline = Instant::now() + options.timeout + Duration::from_secs(10);
    loop {
        if let Some(text) = ended(&mut child, &at, &options.node)? {
            return Err(text);
        }
        // Those of an agent before this one may still be there.
        let is_own = |pid: u32| pid == child.id();
        let is_up = match start.no_wait {
            true => at.card(&options.node)?.is_some_and(|card| is_own(card.pid)),
            false => status_of(&at, &options.node).is_some_and(|status| is_own(status.pid)),
        };
        if is_up {
            println!("{}", at.card(&options.node)?.map(|card| card.endpoint).unwrap_or_default());
            return Ok(());
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            return Err(
                Error::new(Kind::TimedOut, "the agent did not start in time").with("log", log_path.display())
            );
        }
        std::thread::sleep(POLL);
    }
}

/// The error of an agent that has ended: its own, which it printed last.
fn ended(child: &mut Child, at: &Rendezvous, node: &str) -> Result<Option<Error>> {
    let status = child.try_wait().map_err(|e| Error::io("cannot wait for the agent", e))?;
    let Some(status) = status else { return Ok(None) };
    let log = at.read(&log_file(node)).unwrap_or_default();
    Ok(Some(said_last(&log).unwrap_or_else(|| {
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        Error::new(Kind::Internal, format!("the agent of node {node} ended with {status}\n  {last}"))
    })))
}

/// The last error of a log, `error: KIND: TEXT`, and its hint, `hint: TEXT`, as [`main_with`] prints them.
fn said_last(log: &str) -> Option<Error> {
    let at = log.rfind("error: ")?;
    let (text, hint) = match log[at..].split_once("\n  hint: ") {
        Some((text, hint)) => (text, Some(hint)),
        None => (&log[at..], None),
    };
    let (kind, text) = text.strip_prefix("error: ")?.split_once(": ")?;
    let kind = Kind::ALL.iter().find(|known| known.name() == kind)?;
    let error = Error::new(*kind, text.trim());
    Some(match hint {
        Some(hint) => error.hint(hint.trim()),
        None => error,
    })
}

/// The words of a verb, without the folder, which is given again.
fn words_after<'a>(verb: &str, args: &'a [OsString]) -> Vec<&'a OsString> {
    let begin = args.iter().position(|word| word == verb).map_or(args.len(), |at| at + 1);
    let mut words = Vec::new();
    let mut left = args[begin..].iter();
    while let Some(word) = left.next() {
        if word == "--rendezvous" {
            left.next();
        } else if !word.to_string_lossy().starts_with("--rendezvous=") {
            words.push(word);
        }
    }
    words
}

fn run_serve(start: &Start) -> Result<()> {
    // Not with the shell or the launcher's step that started it; it may be a leader already.
    let _ = rustix::process::setsid();
    // Before there are threads: the runtime reads it once.
    std::env::set_var("ZENOH_RUNTIME", ONE_THREAD);
    // What happens on the network: RUST_LOG=zenoh=debug.
    zenoh::try_init_log_from_env();
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, is_over.clone())
            .map_err(|e| Error::io("cannot handle signals", e))?;
    }
    let agent = Agent::start(start.options()?, &is_over)?;
    agent.serve(&is_over)
}

/// What the agent of a node said last.
fn status_of(at: &Rendezvous, node: &str) -> Option<Status> {
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
        println!("{document}");
        return Ok(());
    }
    for (node, status, age) in all {
        let Some(status) = status else {
            println!("{node}  waiting for the other agents");
            continue;
        };
        let late = age.filter(|age| *age > Duration::from_secs(5));
        let late = late.map_or(String::new(), |age| format!("  silent for {} s", age.as_secs()));
        let missing = match status.missing.is_empty() {
            true => String::new(),
            false => format!("  lost: {}", status.missing.join(", ")),
        };
        println!("{node}  {}  pid {}{late}{missing}", status.state, status.pid);
        for mirror in &status.mirrors {
            let bytes = forebay_space::format_bytes(mirror.bytes);
            println!(
                "  {} from {}: {}, {} versions, {bytes}",
                mirror.space, mirror.from, mirror.state, mirror.versions
            );
        }
        status.served.iter().for_each(|served| println!("  {} to {}", served.space, served.to));
    }
    Ok(())
}

fn run_stop(stop: &Stop) -> Result<()> {
    let at = Rendezvous::open(&stop.rendezvous)?;
    at.ask_to_stop()?;
    let deadline = Instant::now() + stop.timeout;
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

    #[test]
    fn an_error_is_read_as_it_was_printed() {
        let error = Error::new(Kind::NameInUse, "there is one").with("pid", 7).hint("end it");
        let read = said_last(&format!("earlier: 1\nerror: {error}\n")).unwrap();
        assert_eq!((read.kind(), read.to_string()), (error.kind(), error.to_string()));
        let without = Error::new(Kind::Usage, "no: such node");
        assert_eq!(said_last(&format!("error: {without}")).unwrap().to_string(), without.to_string());
        assert!(said_last("it was killed").is_none());
    }

    #[test]
    fn plain_text_has_to_be_permitted() {
        let words =
            ["forebay-agent", "start", "--job", "j", "--node", "a", "--nodes", "a,b", "--rendezvous", "/r"];
        let parse = |more: &[&str]| {
            let line = Line::try_parse_from(words.iter().chain(more)).unwrap();
            let Verb::Start(start) = line.verb else { panic!("start was parsed") };
            start.options()
        };
        assert_eq!(parse(&["--listen", "tcp/10.0.0.1:0"]).unwrap_err().kind(), Kind::Usage);
        assert!(parse(&["--listen", "tcp/10.0.0.1:0", "--trusted-fabric"]).unwrap().listen.is_plain());
        assert!(!parse(&[]).unwrap().listen.is_plain());
        assert_eq!(parse(&["--lease", "0.001"]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn the_folder_is_given_once() {
        let args: Vec<OsString> =
            ["x", "start", "--rendezvous", "r", "--job", "j", "--rendezvous=s"].map(OsString::from).into();
        assert_eq!(words_after("start", &args), ["--job", "j"]);
    }
}
