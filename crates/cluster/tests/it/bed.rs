//! The nodes of a test: agents and programs as processes, and what they say.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

/// No wait of a test is longer. The machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// Long enough for an agent that waits for a processor.
const LEASE: &str = "20";

/// Nodes with a folder that all see.
pub struct Bed {
    folder: tempfile::TempDir,
    pub nodes: Vec<Node>,
}

/// A node: its spaces, and its agent.
pub struct Node {
    pub name: String,
    pub dir: tempfile::TempDir,
    pub agent: Option<Process>,
}

/// A process whose lines are read; killed when it is dropped.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: VecDeque<String>,
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (out, (line_of, lines)) = (child.stdout.take().unwrap(), channel());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if std::env::var_os("RUST_LOG").is_some() {
                    eprintln!("{line}");
                }
                if line_of.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, lines, seen: VecDeque::new() }
    }

    /// The next line that begins with a word, without it; lines before it are passed over.
    pub fn line(&mut self, word: &str) -> String {
        self.line_within(word, DEADLINE)
            .unwrap_or_else(|| panic!("no line `{word}` came; the last: {:?}", self.seen))
    }

    /// As [`Process::line`], within a time.
    pub fn line_within(&mut self, word: &str, within: Duration) -> Option<String> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if self.seen.len() == 20 {
                        self.seen.pop_front();
                    }
                    self.seen.push_back(line.clone());
                    if line.starts_with("error ") && word != "error" {
                        eprintln!("a program says: {line}");
                    }
                    if let Some(rest) = line.strip_prefix(word) {
                        return Some(rest.trim().to_string());
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// How many lines that begin with a word have come and were not asked for.
    pub fn so_far(&mut self, word: &str) -> usize {
        self.lines.try_iter().filter(|line| line.starts_with(word)).count()
    }

    /// All lines that begin with a word, to the end of the process, which must succeed.
    pub fn lines(mut self, word: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.line_within(word, DEADLINE) {
            lines.push(line);
        }
        assert!(self.wait().success(), "it failed; the last: {:?}", self.seen);
        lines
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the process does not end; the last: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that was stopped is killed all the same.
        self.kill();
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The agent's command.
pub fn agent_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-agent"));
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FOREBAY_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    command
}

impl Bed {
    /// Nodes `n0`, `n1`, … without agents.
    pub fn bare(count: usize) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let nodes = (0..count).map(|i| Node {
            name: format!("n{i}"),
            dir: tempfile::Builder::new().prefix("forebay-cluster-").tempdir_in("/dev/shm").unwrap(),
            agent: None,
        });
        Bed { folder, nodes: nodes.collect() }
    }

    /// Nodes with agents that are connected.
    pub fn new(count: usize) -> Bed {
        Bed::with(count, &[])
    }

    /// As [`Bed::new`], with more words for the agents.
    pub fn with(count: usize, more: &[&str]) -> Bed {
        let mut bed = Bed::bare(count);
        for index in 0..count {
            let agent = Process::start(&mut bed.serve(index, more));
            bed.nodes[index].agent = Some(agent);
        }
        bed.wait_ready();
        bed
    }

    pub fn rendezvous(&self) -> PathBuf {
        self.folder.path().join("job")
    }

    pub fn names(&self) -> String {
        self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The command of a node's agent in the foreground.
    pub fn serve(&self, index: usize, more: &[&str]) -> Command {
        let node = &self.nodes[index];
        let mut command = agent_command();
        command
            .env("FOREBAY_DIR", node.dir.path())
            .args(["serve", "--job", "test", "--node", &node.name, "--nodes", &self.names()])
            .arg("--rendezvous")
            .arg(self.rendezvous())
            .args(more);
        let settings = [("--listen", "tls/127.0.0.1:0"), ("--lease", LEASE), ("--timeout", "100")];
        for (option, value) in settings {
            if !more.contains(&option) {
                command.args([option, value]);
            }
        }
        command
    }

    pub fn wait_ready(&self) {
        for node in &self.nodes {
            until("the agent is ready", || self.status(&node.name).is_some());
        }
    }

    /// What an agent says of itself.
    pub fn status(&self, node: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.rendezvous().join(format!("{node}.status"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Ends all agents in order, and checks that nothing is left.
    pub fn stop(mut self) {
        let mut command = agent_command();
        let status = command.arg("stop").arg("--rendezvous").arg(self.rendezvous()).status().unwrap();
        assert!(status.success());
        for node in &mut self.nodes {
            if let Some(mut agent) = node.agent.take() {
                assert!(agent.wait().success());
            }
        }
        assert!(!self.rendezvous().exists(), "the folder of the job is left");
        for node in &self.nodes {
            assert_eq!(left_in(node.dir.path()), Vec::<String>::new(), "on {}", node.name);
        }
    }
}

/// Names of what is left in a directory of spaces, which may be gone itself.
pub fn left_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

impl Node {
    /// Starts a program of `program.rs` on this node.
    pub fn run(&self, what: &str, arguments: Value) -> Process {
        self.run_with(what, arguments, &[])
    }

    /// The same, as rank `rank` of `ranks`, of which `local` (rank and size) are on this node.
    pub fn run_rank(
        &self,
        what: &str,
        arguments: Value,
        rank: u32,
        ranks: u32,
        local: (u32, u32),
    ) -> Process {
        let numbers = [
            ("FOREBAY_RANK", rank),
            ("FOREBAY_SIZE", ranks),
            ("FOREBAY_LOCAL_RANK", local.0),
            ("FOREBAY_LOCAL_SIZE", local.1),
        ];
        self.run_with(what, arguments, &numbers)
    }

    fn run_with(&self, what: &str, arguments: Value, numbers: &[(&str, u32)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "program::one_of_a_test", "--nocapture", "--test-threads=1"])
            .env("CLUSTER_TEST_PROGRAM", json!({ "what": what, "with": arguments }).to_string())
            .env("FOREBAY_DIR", self.dir.path())
            .envs(numbers.iter().map(|(name, number)| (name, number.to_string())));
        Process::start(&mut command)
    }

    pub fn agent(&mut self) -> &mut Process {
        self.agent.as_mut().unwrap()
    }
}
