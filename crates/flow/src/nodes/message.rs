//! What the lead of a run and its followers tell each other: JSON documents, one per line.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::placement::PlacedNode;
use crate::record::{Failure, Machine, RunRecord};

/// Bytes of a line at most: a record of a run with many ranks.
pub(crate) const LINE_BYTES_MAX: u64 = 256 << 20;

/// A lead that is silent for so long is gone: its host has, and the connection does not tell. One that was stopped at a
/// terminal may go on before.
const LEAD_SILENT_MAX: Duration = Duration::from_secs(300);

/// What a follower has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Its node.
    pub(crate) node: PlacedNode,
    /// Names of all nodes of the run.
    pub(crate) nodes: Vec<String>,
    /// The workflow file: its path, the folder that its paths start from, its text.
    pub(crate) file: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) text: String,
    /// The run directory.
    pub(crate) run_dir: PathBuf,
    /// Variables of the lead that ranks get.
    pub(crate) env: BTreeMap<String, String>,
    /// See [`RunOptions::grace`](crate::RunOptions::grace).
    pub(crate) grace: Duration,
    /// No progress.
    pub(crate) quiet: bool,
    /// Ranks are pinned.
    pub(crate) pin: bool,
    /// Options of the agent.
    pub(crate) agent: Vec<String>,
}

/// What the lead tells a follower.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first: with the version of the lead.
    Setup { version: String, setup: serde_json::Value },
    /// All are ready: start the ranks.
    Go,
    /// End all ranks.
    Stop,
    /// End all ranks at once.
    Hurry,
    /// All ranks of all nodes have ended: remove the spaces and end.
    Finish,
    /// A reader rank of another node has ended well.
    Departed {
        /// The channel that it was to read.
        channel: String,
        /// Its component.
        component: String,
        /// Its rank.
        rank: u32,
    },
    /// The lead is there.
    Alive,
}

/// What a follower tells the lead.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The follower is there.
    Alive,
    /// A reader rank has ended well; writers of other nodes are not to wait for it.
    Departed { channel: String, component: String, rank: u32 },
    /// The names of its channels are held, and the agents of all nodes are connected.
    Ready {
        /// The node's machine.
        machine: Machine,
        /// Wall clock minus the clock of the traces, ns.
        clock_ns: i64,
    },
    /// A rank failed.
    Failed {
        /// The first failure on this node.
        failure: Failure,
        /// It looks like one that a failure elsewhere has caused.
        is_consequence: bool,
    },
    /// No rank of this node runs.
    Ended,
    /// It cannot start or go on.
    Error { kind: u16, message: String, hint: Option<String> },
    /// Its last words: what happened on its node.
    Done { record: Box<RunRecord> },
}

impl Report {
    pub(crate) fn error(error: &Error) -> Report {
        let facts: Vec<String> = error.context().iter().map(|(key, fact)| format!("{key}={fact}")).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        Report::Error {
            kind: error.kind().code(),
            message: format!("{}{facts}", error.message()),
            hint: error.hint_text().map(str::to_owned),
        }
    }
}

/// Each side says so often that it is there.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Writes a message on a line of its own, whatever a shell has begun there; empty lines are no messages.
pub(crate) fn send<M: Serialize>(to: &mut impl Write, message: &M) -> Result<()> {
    let failed = |e| Error::io("writing to another runner of this run", e);
    let mut line = vec![b'\n'];
    serde_json::to_writer(&mut line, message)
        .map_err(|e| Error::new(Kind::Internal, format!("a message of a run: {e}")))?;
    line.push(b'\n');
    to.write_all(&line).and_then(|()| to.flush()).map_err(failed)
}

/// The next line that is not empty; `None` at the end, or where it cannot be read.
pub(crate) fn next_line(from: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = Vec::new();
        let read = std::io::Read::take(&mut *from, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if matches!(read, Ok(0) | Err(_)) {
            return None;
        }
        let text = String::from_utf8_lossy(&line);
        if !text.trim_end().is_empty() {
            return Some(text.trim_end().to_owned());
        }
    }
}

/// Orders as they come from the lead.
pub(crate) struct Orders {
    incoming: Receiver<Order>,
    heard_at: Instant,
    /// Reader ranks of other nodes that have ended: channel, component, rank.
    departed: Vec<(String, String, u32)>,
    /// The lead has gone.
    is_alone: bool,
    is_stopped: bool,
    is_hurried: bool,
    is_going: bool,
    is_finished: bool,
}

impl Orders {
    /// Reads them on a thread of its own.
    ///
    /// # Errors
    /// That there can be no thread.
    pub(crate) fn read(mut from: impl BufRead + Send + 'static) -> Result<Orders> {
        let (send, incoming) = channel();
        std::thread::Builder::new()
            .name("forebay-orders".to_owned())
            .spawn(move || {
                while let Some(line) = next_line(&mut from) {
                    // What is no order comes from no lead of this version.
                    let Ok(order) = serde_json::from_str(&line) else { return };
                    if send.send(order).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("starting the thread that reads orders", e))?;
        let (is_alone, is_stopped, is_hurried) = (false, false, false);
        let (is_going, is_finished) = (false, false);
        let (heard_at, departed) = (Instant::now(), Vec::new());
        Ok(Orders { incoming, heard_at, departed, is_alone, is_stopped, is_hurried, is_going, is_finished })
    }

    /// The setup; `None` where nothing of the kind comes.
    pub(crate) fn setup(&mut self, within: Duration) -> Option<(String, serde_json::Value)> {
        match self.incoming.recv_timeout(within) {
            Ok(Order::Setup { version, setup }) => Some((version, setup)),
            _ => None,
        }
    }

    /// Takes what has come, waiting for it so long.
    pub(crate) fn look(&mut self, mut within: Duration) {
        loop {
            let order = self.incoming.recv_timeout(within);
            match &order {
                Ok(_) => self.heard_at = Instant::now(),
                Err(_) => self.is_alone |= self.heard_at.elapsed() > LEAD_SILENT_MAX,
            }
            match order {
                Ok(Order::Alive) => {}
                Ok(Order::Departed { channel, component, rank }) => {
                    self.departed.push((channel, component, rank));
                }
                Ok(Order::Go) => self.is_going = true,
                Ok(Order::Stop) => self.is_stopped = true,
                Ok(Order::Hurry) => (self.is_stopped, self.is_hurried) = (true, true),
                Ok(Order::Finish) => self.is_finished = true,
                Ok(Order::Setup { .. }) => {}
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_alone = true;
                    return;
                }
            }
            within = Duration::ZERO;
        }
    }

    /// Reader ranks of other nodes that have ended since the last call.
    pub(crate) fn departed(&mut self) -> Vec<(String, String, u32)> {
        std::mem::take(&mut self.departed)
    }

    /// The lead has gone.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The ranks may start.
    pub(crate) fn is_going(&self) -> bool {
        self.is_going
    }

    /// Everything has to end.
    pub(crate) fn is_to_end(&self) -> bool {
        self.is_stopped || self.is_alone
    }

    /// Without waiting.
    pub(crate) fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// The ranks of all nodes have ended, or the lead has.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished || self.is_alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_in_order_and_their_end_is_an_order_to_end() {
        let (mut lead, follower) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut orders = Orders::read(std::io::BufReader::new(follower)).unwrap();
        let (version, setup) = ("1".to_owned(), serde_json::Value::Null);
        send(&mut lead, &Order::Setup { version, setup }).unwrap();
        assert!(orders.setup(Duration::from_secs(60)).is_some());
        orders.look(Duration::ZERO);
        assert!(!orders.is_going() && !orders.is_to_end() && !orders.is_finished());
        send(&mut lead, &Order::Go).unwrap();
        orders.look(Duration::from_secs(60));
        assert!(orders.is_going() && !orders.is_to_end());
        send(&mut lead, &Order::Hurry).unwrap();
        orders.look(Duration::from_secs(60));
        assert!(orders.is_to_end() && orders.is_hurried() && !orders.is_finished());
        drop(lead);
        orders.look(Duration::from_secs(60));
        assert!(orders.is_finished());
    }

    #[test]
    fn a_message_behind_a_line_without_an_end_is_heard() {
        let mut said = b"junk".to_vec();
        send(&mut said, &Report::Ended).unwrap();
        let mut said = &said[..];
        assert_eq!(next_line(&mut said).as_deref(), Some("junk"));
        assert_eq!(next_line(&mut said).as_deref(), Some("\"Ended\""));
        assert_eq!(next_line(&mut said), None);
    }

    #[test]
    fn what_is_no_order_ends_the_connection() {
        let mut orders = Orders::read(&b"Welcome to n1\n{}\n"[..]).unwrap();
        assert!(orders.setup(Duration::from_secs(60)).is_none());
        orders.look(Duration::ZERO);
        assert!(orders.is_to_end());
    }

    #[test]
    fn an_error_goes_over_with_its_facts() {
        let error = Error::new(Kind::NameInUse, "it is there").with("pid", 7).hint("end it");
        let Report::Error { kind, message, hint } = Report::error(&error) else { unreachable!() };
        assert_eq!(Kind::from_code(kind), Some(Kind::NameInUse));
        assert_eq!((message.as_str(), hint.as_deref()), ("it is there (pid=7)", Some("end it")));
    }
}
