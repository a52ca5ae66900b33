//! A verb on all nodes of a job: the command starts itself on each node, and joins what all of them print.
//!
//! Guarantees: each node has its answer or its error, whatever the others do; a node that does not answer is given up
//! at its deadline, and the command that was started for it is killed. Not here: the way to a node
//! (`forebay_flow::nodes`), what a verb does there.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::Template;
use forebay_flow::nodes::{names, pass_on, template, variables};
use forebay_flow::place::Nodes;
use forebay_flow::Signals;
use forebay_tier::{Error, Kind, Result};
use rustix::process::{kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions};
use serde::Serialize;
use serde_json::Value;

use super::again::self_command;
use super::looks::unread;
use super::output::{error_body, schema, ErrorBody, Output, Tone};
use super::spaces;

/// Nodes that are asked at the same time.
const AT_ONCE: usize = 32;
/// Bytes that a node may print.
const OUTPUT_MAX: usize = 64 << 20;
/// What a program that has ended may still have in its pipes comes within this.
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// The same of its standard error, which a process in the background, as of ssh, may keep open.
const LAST_ERRORS: Duration = Duration::from_secs(1);
/// A launcher ends what it has started on the node within this.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Nodes on which a verb runs.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Several nodes")]
pub struct OnNodes {
    /// Run on each of these nodes: n0,n1 or n[0-3]; without LIST, on the nodes of the Slurm or PBS job.
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true)]
    nodes: Option<Option<String>>,
    /// Command that runs a program on the node {node}: 'ssh {node}'; default in a Slurm job: srun.
    #[arg(long, value_name = "COMMAND", requires = "nodes")]
    launch: Option<String>,
    /// Maximum time to wait for each node, in seconds.
    #[arg(long, value_name = "S", requires = "nodes", default_value = "60", value_parser = spaces::seconds)]
    node_timeout: Duration,
}

/// What a node has answered.
struct Answer {
    exit: i32,
    output: Vec<u8>,
}

#[derive(Serialize)]
struct NodeBody<'a> {
    node: &'a str,
    exit: i32,
    /// What the node has printed with `--json`.
    document: Option<&'a Value>,
    /// Why it has not.
    error: Option<ErrorBody<'a>>,
}

impl OnNodes {
    /// Whether nodes are named; else the verb runs here.
    pub fn is_asked(&self) -> bool {
        self.nodes.is_some()
    }

    /// The same where each node needs some time before it answers.
    pub fn longer_by(&self, time: Duration) -> OnNodes {
        OnNodes { node_timeout: self.node_timeout.saturating_add(time), ..self.clone() }
    }

    /// Runs the verb of the command line `args`, which begin with the program's name, on all nodes. The result is the
    /// highest exit status of all. `paths` are those that the verb is told, which must be absolute: programs begin
    /// elsewhere on other nodes. Blocks until each node has answered or was given up.
    ///
    /// # Errors
    /// [`Kind::Usage`]: the nodes or the way to them are not known, or a path is relative. What a node fails with is
    /// printed.
    pub fn run(&self, args: &[OsString], paths: &[PathBuf], out: &Output) -> Result<i32> {
        // The node has one option for both of its outputs.
        let is_coloured = out.stdout_is_coloured() && out.stderr_is_coloured();
        let colour = if is_coloured { "--colour=always" } else { "--colour=never" };
        let words = std::iter::once(colour.into()).chain(without_nodes(args)).collect();
        let asking = self.asking(words, paths)?;
        let signals = Signals::catch()?;
        let answers = asking.answers(Said::AtOnce, &|| signals.caught().is_some())?;
        if let Some(signal) = signals.caught() {
            return Ok(128 + signal);
        }
        // From here on a signal ends this as it does any verb that prints.
        drop(signals);
        match out.json() {
            true => documents(&asking.nodes, answers, out),
            false => texts(&asking.nodes, &answers, out),
        }
    }

    /// For running the command with these words, those behind the program's name, on all nodes, once or repeatedly.
    ///
    /// # Errors
    /// As [`OnNodes::run`].
    pub fn asking(&self, words: Vec<OsString>, paths: &[PathBuf]) -> Result<Asking> {
        if let Some(path) = paths.iter().find(|path| path.is_relative()) {
            return Err(Error::new(Kind::Usage, format!("{} is a relative path", path.display()))
                .hint("with --nodes, use short names or absolute paths"));
        }
        let listed = self.nodes.clone().flatten();
        let table =
            Nodes { names: listed.into_iter().collect(), launch: self.launch.clone(), ..Nodes::default() };
        let (nodes, template) = (names(&table)?, template(&table)?);
        let own = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        let mut all = self_command().map_or(vec![own.into_os_string()], <[OsString]>::to_vec);
        all.extend(words);
        Ok(Asking { nodes, template, variables: variables()?, words: all, timeout: self.node_timeout })
    }
}

/// How the standard error of the commands of nodes is handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// It goes to that of this command, line by line, behind the node's name.
    AtOnce,
    /// It is kept for the error of a node that has no answer.
    Kept,
}

/// A command for all nodes.
pub struct Asking {
    /// Their names.
    pub nodes: Vec<String>,
    template: Template,
    variables: Vec<(&'static str, OsString)>,
    /// Of the command, with its program.
    words: Vec<OsString>,
    timeout: Duration,
}

impl Asking {
    /// Runs the command, which was told to print JSON, on all nodes. In the order of the nodes, the document that each
    /// has printed, or why there is none, which may be an error that it has printed as one. Blocks until each node has
    /// answered or was given up, or `is_over`.
    ///
    /// # Errors
    /// [`Kind::Usage`]: there is no command to reach a node. What a node fails with is in its place of the list.
    pub fn documents(&self, is_over: &dyn Fn() -> bool) -> Result<Vec<Result<Value>>> {
        let answers = self.answers(Said::Kept, is_over)?;
        let read = |(node, answer): (&String, Result<Answer>)| {
            let (exit, document) = read(node, answer)?;
            match exit {
                0 => Ok(document),
                _ => Err(failed_there(node, &document)),
            }
        };
        Ok(self.nodes.iter().zip(answers).map(read).collect())
    }

    /// In the order of the nodes.
    fn answers(&self, said: Said, caught: &dyn Fn() -> bool) -> Result<Vec<Result<Answer>>> {
        let Asking { nodes, template, variables, words, timeout } = self;
        let (program, words) = (Path::new(&words[0]), &words[1..]);
        let commands = nodes.iter().map(|node| template.on_node(node, variables, program, words));
        let commands: Vec<Command> = commands.collect::<Result<_>>()?;
        let is_over = AtomicBool::new(false);
        let left = Mutex::new(commands.into_iter().enumerate());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let (to_answers, come) = channel();
        let mut answers: Vec<Option<Result<Answer>>> = nodes.iter().map(|_| None).collect();
        std::thread::scope(|scope| {
            for _ in 0..nodes.len().min(AT_ONCE) {
                let (to_answers, next, is_over) = (to_answers.clone(), &next, &is_over);
                let work = move || {
                    while let Some((at, command)) = next().filter(|_| !is_over.load(Relaxed)) {
                        let answer = ask(&nodes[at], command, said, *timeout, is_over);
                        let _ = to_answers.send((at, answer));
                    }
                };
                // Where there can be no more threads those that there are do the work.
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            drop(to_answers);
            loop {
                match come.recv_timeout(LOOK_EVERY) {
                    Ok((at, answer)) => answers[at] = Some(answer),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                is_over.store(caught(), Relaxed);
            }
        });
        let lost = || {
            Err(Error::new(Kind::NotPossibleHere, "a node was not asked: there can be no more threads")
                .hint("check the limits of processes and memory (ulimit -u, ulimit -v)"))
        };
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }
}

/// The words of a command line after the program's name, but those of [`OnNodes`] and of colours.
fn without_nodes(args: &[OsString]) -> Vec<OsString> {
    const WITH_VALUE: [&str; 4] = ["--launch", "--node-timeout", "--colour", "--color"];
    let mut kept = Vec::new();
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            kept.push(word.clone());
            kept.extend(words.by_ref().cloned());
        } else if WITH_VALUE.contains(&&*text) {
            words.next();
        } else if !["--nodes"].iter().chain(&WITH_VALUE).any(|name| text.split('=').next() == Some(name)) {
            kept.push(word.clone());
        }
    }
    kept
}

/// Whether the name of a space is a path.
pub(crate) fn is_path(name: &&String) -> bool {
    name.contains('/')
}

/// Whether it is the exit status of a verb. Others are those of a launcher.
fn is_of_verb(status: i32) -> bool {
    matches!(status, 0 | 2..=8) || status == Kind::Internal.exit_code()
}

/// Runs the command of one node.
fn ask(
    node: &str,
    mut command: Command,
    said: Said,
    timeout: Duration,
    is_over: &AtomicBool,
) -> Result<Answer> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| {
        Error::new(Kind::Usage, format!("cannot run {}: {e}", command.get_program().to_string_lossy()))
            .with("node", node)
            .hint("check --launch")
    })?;
    let (stdout, stderr) =
        (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
    let read_output = move || {
        let mut all = Vec::new();
        stdout.take(OUTPUT_MAX as u64 + 1).read_to_end(&mut all).map(|_| all)
    };
    let lines: Arc<Mutex<VecDeque<String>>> = Arc::default();
    let (name, kept) = (node.to_owned(), lines.clone());
    let read_errors = move || {
        let heading = (said == Said::AtOnce).then_some(&*name);
        pass_on(BufReader::new(stderr), heading, &kept);
    };
    let output = std::thread::Builder::new().spawn(read_output);
    let errors = output.and_then(|output| Ok((output, std::thread::Builder::new().spawn(read_errors)?)));
    let (output, errors) = match errors {
        Ok(threads) => threads,
        Err(e) => {
            let _ = wait(&mut child, Duration::ZERO, is_over);
            return Err(Error::io("starting a thread that reads what a node prints", e).with("node", node));
        }
    };
    let ended = wait(&mut child, timeout, is_over).map_err(|e| e.with("node", node))?;
    let since = Instant::now();
    while since.elapsed() < LAST_OUTPUT && !is_over.load(Relaxed) {
        let has_answer = output.is_finished() && (errors.is_finished() || since.elapsed() > LAST_ERRORS);
        if has_answer {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let output = if output.is_finished() { output.join().ok().and_then(std::io::Result::ok) } else { None };
    let wrong =
        |what: &str| Err(Error::new(Kind::PeerMissing, what).with("node", node).hint("check --launch"));
    match (ended.code().filter(|code| is_of_verb(*code)), output) {
        (_, Some(output)) if output.len() > OUTPUT_MAX => wrong("the output of a node is too long"),
        (Some(exit), Some(output)) => Ok(Answer { exit, output }),
        (Some(_), None) => {
            wrong("the command of a node has ended, but a process that it started keeps its output open")
        }
        (None, _) => {
            let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let said: String = lines.iter().map(|line| format!("\n  | {line}")).collect();
            Err(Error::new(Kind::PeerMissing, format!("cannot run forebay on a node: {ended}{said}"))
                .with("node", node)
                .hint("check --launch; forebay must be installed under the same path on all nodes"))
        }
    }
}

/// Waits for the end of a command. At its deadline, or when all is over, it is ended with all that it has started here.
fn wait(child: &mut Child, timeout: Duration, is_over: &AtomicBool) -> Result<ExitStatus> {
    let failed = |e| Error::io("waiting for the command of a node", e);
    if let Some(status) = ended_within(child, timeout, is_over).map_err(failed)? {
        return Ok(status);
    }
    // A launcher ends what it has started on the node when it is asked to. Until it has been waited for its number is
    // that of its group and of no other.
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let deadline = Instant::now() + END_TIMEOUT;
    while !has_ended(group) && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
    let _ = kill_process_group(group, Signal::KILL);
    // One that cannot be killed is left.
    let _ = ended_within(child, END_TIMEOUT, &AtomicBool::new(false));
    Err(Error::new(Kind::TimedOut, "timeout while waiting for a node")
        .with("waited_s", format!("{:.1}", timeout.as_secs_f64()))
        .hint("--node-timeout sets the maximum time to wait"))
}

/// Whether a child has ended; it is not waited for.
fn has_ended(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(child), options), Ok(None))
}

fn ended_within(
    child: &mut Child,
    time: Duration,
    is_over: &AtomicBool,
) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + time;
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || is_over.load(Relaxed) || Instant::now() >= deadline {
            return Ok(ended);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What each node has printed, below its name; nothing of one that has printed nothing.
fn texts(nodes: &[String], answers: &[Result<Answer>], out: &Output) -> Result<i32> {
    let (mut text, mut exit) = (String::new(), 0);
    for (node, answer) in nodes.iter().zip(answers) {
        let Ok(answer) = answer else { continue };
        exit = exit.max(answer.exit);
        if !answer.output.is_empty() {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}\n", out.paint(Tone::Strong, node));
            text += &String::from_utf8_lossy(&answer.output);
            text += if text.ends_with('\n') { "" } else { "\n" };
        }
    }
    let printed = out.text(&text);
    let errors = answers.iter().filter_map(|answer| answer.as_ref().err());
    let exit = errors.map(|e| out.error(e)).fold(exit, i32::max);
    printed.map(|()| exit)
}

fn documents(nodes: &[String], answers: Vec<Result<Answer>>, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        nodes: Vec<NodeBody<'a>>,
    }
    let read: Vec<Result<(i32, Value)>> =
        nodes.iter().zip(answers).map(|(node, answer)| read(node, answer)).collect();
    let bodies = nodes.iter().zip(&read).map(|(node, read)| match read {
        Ok((exit, document)) => NodeBody { node, exit: *exit, document: Some(document), error: None },
        Err(e) => NodeBody { node, exit: e.kind().exit_code(), document: None, error: Some(error_body(e)) },
    });
    let nodes: Vec<NodeBody> = bodies.collect();
    let exit = nodes.iter().map(|node| node.exit).max().unwrap_or(0);
    out.document(schema::NODES, &Body { nodes })?;
    Ok(exit)
}

/// Exit status and document of a node.
fn read(node: &str, answer: Result<Answer>) -> Result<(i32, Value)> {
    let Answer { exit, output } = answer?;
    let unread = Error::new(Kind::PeerMissing, "a node has printed no document").with("node", node);
    document_of(&output).map(|document| (exit, document)).ok_or(unread.hint("check --launch"))
}

/// The error that a node has printed as a document. A command line that it does not know is that of another version.
fn failed_there(node: &str, document: &Value) -> Error {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    let kind = Kind::ALL.iter().find(|kind| kind.name() == text("kind") && **kind != Kind::Usage);
    let Some(kind) = kind else { return unread(node, text("message")) };
    let error = Error::new(*kind, text("message")).with("node", node);
    match text("hint") {
        "" => error,
        hint => error.hint(hint),
    }
}

/// The last document in what a node has printed: a shell may print lines of its own before it, and a terminal between
/// here and there has it in several lines.
fn document_of(output: &[u8]) -> Option<Value> {
    let is_start = |at: &usize| output[*at] == b'{' && (*at == 0 || output[at - 1] == b'\n');
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let is_ours = |value: &Value| value["schema"].as_str().is_some_and(|name| name.starts_with("forebay."));
    (0..output.len()).rev().filter(is_start).find_map(|at| {
        let rest = &output[at..];
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        read(line).or_else(|| read(rest)).filter(is_ours)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_nodes_alone_are_taken_out() {
        let kept = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let kept: Vec<String> =
                without_nodes(&words).iter().map(|word| word.to_string_lossy().into_owned()).collect();
            kept.join(" ")
        };
        assert_eq!(kept("forebay --json ls --nodes=a,b --launch X heat --node-timeout=3"), "--json ls heat");
        assert_eq!(kept("forebay --colour always clean --dead --nodes --launch=ssh"), "clean --dead");
        assert_eq!(kept("forebay clean --readers=--nodes -- --nodes"), "clean --readers=--nodes -- --nodes");
    }

    #[test]
    fn the_document_is_found_between_other_lines() {
        let found = |text: &str| document_of(text.as_bytes()).map(|document| document["n"].clone());
        assert_eq!(found("{\"schema\":\"forebay.ls/1\",\"n\":1}\n"), Some(1.into()));
        assert_eq!(found("hi\n{\"n\":7}\n{\"schema\":\"forebay.ls/1\",\"n\":1}\nbye\n"), Some(1.into()));
        assert_eq!(found("{\r\n  \"schema\": \"forebay.ls/1\",\r\n  \"n\": 2\r\n}\r\n"), Some(2.into()));
        for none in ["", "{\"level\":\"info\"}\n", "{\"schema\":\"other\"}\n", "[1]\n"] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn only_exit_statuses_of_verbs_are_answers() {
        let all: Vec<i32> = (0..256).filter(|status| is_of_verb(*status)).collect();
        assert_eq!(all, [0, 2, 3, 4, 5, 6, 7, 8, 70]);
    }
}
