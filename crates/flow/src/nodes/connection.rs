//! A follower as its lead has it: the command that started it, and the threads that carry orders, reports and standard
//! error.
//!
//! Guarantees: whatever comes on either output is read, so that no follower waits for a pipe; the command is killed,
//! with what it has started, when the value goes out of scope. Not here: what is said (`message.rs`), and what follows
//! from it (`lead.rs`).

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rustix::process::{kill_process_group, Pid, Signal};

use super::message::{next_line, send, Order, Report};
use crate::progress::say;
use crate::record::{Machine, NodeRecord, RunRecord};

/// Lines of a runner's standard error that are kept for an error.
const LINES_MAX: usize = 12;

/// What comes from a follower.
pub(super) enum Event {
    Said(Report),
    Closed,
}

/// A runner on a node, by the command that started it.
pub(super) struct Follower {
    child: Child,
    /// None: it gets no more.
    pub(super) orders: Option<Sender<Order>>,
    /// The last lines of its standard error.
    lines: Arc<Mutex<VecDeque<String>>>,
    pub(super) node: NodeRecord,
    pub(super) heard_at: Instant,
    /// It has said something.
    pub(super) has_begun: bool,
    pub(super) is_ready: bool,
    pub(super) has_ended: bool,
    pub(super) is_closed: bool,
    /// It does not answer.
    pub(super) is_lost: bool,
    pub(super) record: Option<RunRecord>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Follower {
    /// Starts the command, and the threads that carry its orders, reports and standard error.
    pub(super) fn start(
        index: usize,
        name: &str,
        mut command: Command,
        events: Sender<(usize, Event)>,
    ) -> Result<Follower> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::new(Kind::Usage, format!("cannot run {program}: {e}")).hint("check `launch` in [nodes]")
        })?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (orders, given) = channel();
        let lines: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let follower = Follower {
            child,
            orders: Some(orders),
            lines: lines.clone(),
            node: NodeRecord { name: name.to_owned(), machine: Machine::default(), clock_ns: 0 },
            heard_at: Instant::now(),
            has_begun: false,
            is_ready: false,
            has_ended: false,
            is_closed: false,
            is_lost: false,
            record: None,
        };
        let mut stdin = stdin.expect("it is piped");
        spawn("orders", move || {
            for order in given {
                if send(&mut stdin, &order).is_err() {
                    return;
                }
            }
        })?;
        let mut stdout = BufReader::new(stdout.expect("it is piped"));
        spawn("reports", move || {
            while let Some(line) = next_line(&mut stdout) {
                match serde_json::from_str(&line) {
                    Ok(report) => drop(events.send((index, Event::Said(report)))),
                    // What a shell prints at its start.
                    Err(_) => say(&line),
                }
            }
            let _ = events.send((index, Event::Closed));
        })?;
        let (stderr, name) = (stderr.expect("it is piped"), name.to_owned());
        spawn("said", move || pass_on(BufReader::new(stderr), Some(&name), &lines))?;
        Ok(follower)
    }

    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Nothing more is to come. What the command has started may keep its output open.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed || self.is_lost || self.record.is_some()
    }

    pub(super) fn order(&self, order: Order) {
        // Where the thread that writes orders has ended the connection has, too.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// The error of a runner whose connection has ended.
    pub(super) fn lost(&mut self) -> Error {
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.try_wait().ok().flatten();
        let how = status.map_or("its connection ended".to_owned(), |status: ExitStatus| status.to_string());
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let said: String = lines.iter().map(|line| format!("\n  | {line}")).collect();
        let what =
            if self.is_ready { "the runner of a node has ended" } else { "cannot start the run on a node" };
        Error::new(Kind::PeerMissing, format!("{what}: {how}{said}")).with("node", &self.node.name)
    }

    pub(super) fn kill(&mut self) {
        // Not one that has been waited for: its number may be another's.
        if self.runs() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn spawn(what: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(format!("forebay-{what}"));
    thread.spawn(run).map(drop).map_err(|e| Error::io("starting a thread of the run", e))
}

/// Reads what a program prints on a node, up to its end, and keeps the last lines. With a `node`, each line goes to the
/// standard error of this process, too, behind that name.
pub fn pass_on(mut from: impl BufRead, node: Option<&str>, lines: &Mutex<VecDeque<String>>) {
    while let Some(line) = next_line(&mut from) {
        if let Some(node) = node {
            say(&format!("{node}: {line}"));
        }
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_back(line);
        if lines.len() > LINES_MAX {
            lines.pop_front();
        }
    }
}
