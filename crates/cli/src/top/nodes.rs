//! Looks at all nodes of a job, in a thread of their own: a launcher takes longer than a key may wait.
//!
//! Guarantees: one look at a time; when this is dropped the thread and the commands that it has started have ended. Not
//! here: how nodes are asked (`command/nodes.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_tier::{Error, Kind, Result};

use super::look::{Asked, Look};
use crate::command::looks::Looks;

/// The thread, and what it is asked for.
pub struct NodeLooks {
    count: usize,
    /// None once it is to end.
    asks: Option<Sender<()>>,
    answers: Receiver<Result<Look>>,
    /// Whether an answer is awaited.
    is_asked: bool,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NodeLooks {
    /// Starts the thread; it asks no node yet.
    ///
    /// # Errors
    /// `Io`: there can be no thread.
    pub fn of(looks: Looks) -> Result<NodeLooks> {
        let count = looks.nodes().len();
        let (asks, asked) = channel();
        let (answer, answers) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let work = move || {
            let mut known = BTreeMap::new();
            while asked.recv().is_ok() {
                let seen = looks.take(&|| over.load(Relaxed));
                if answer.send(seen.map(|seen| Look::of_nodes(looks.nodes(), seen, &mut known))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("forebay-nodes".into()).spawn(work);
        let thread = thread.map_err(|e| Error::io("starting the thread that asks nodes", e))?;
        Ok(NodeLooks { count, asks: Some(asks), answers, is_asked: false, is_over, thread: Some(thread) })
    }

    /// What is there before the first answers.
    pub fn first(&self) -> Look {
        let asked = Asked { count: self.count, is_first: true, ..Asked::default() };
        Look { nodes: Some(asked), ..Look::default() }
    }

    /// Lets a look be taken, unless one is under way.
    pub fn ask(&mut self) {
        self.is_asked = self.is_asked || self.asks.as_ref().is_some_and(|asks| asks.send(()).is_ok());
    }

    /// The look that was asked for, once it is there.
    ///
    /// # Errors
    /// [`Kind::Internal`]: the thread has ended.
    pub fn come(&mut self) -> Result<Option<Result<Look>>> {
        match self.answers.try_recv() {
            Ok(look) => {
                self.is_asked = false;
                Ok(Some(look))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Error::new(Kind::Internal, "the thread that asks nodes has ended"))
            }
        }
    }
}

impl Drop for NodeLooks {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.asks = None;
        // A panic of it was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
