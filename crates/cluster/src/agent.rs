//! The agent: its start, what it does again and again, its end.
//!
//! Guarantees: an agent ends by request, with a signal, when the folder of its job has gone, or when no reader has
//! wanted anything of other nodes for a time that is set; then its mirrors, its folder, its card and its key are gone.
//! Not here: the process around it (`command.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_config::allocation;
use forebay_space::{AgentStatus, Error, Kind, MirrorStatus, NodeAgent, Result, ServedStatus, Wanted};
use forebay_tier::process;

use crate::authority::{files_of_node, identity};
use crate::demand::{AgentFolder, Demands};
use crate::endpoint::Listen;
use crate::find::{find, Outcome};
use crate::link::{Answering, Connecting, Link};
use crate::links::Measuring;
use crate::message::{Claim, Request, PROTOCOL};
use crate::mirror::{identities, Mirror};
use crate::owner::{Owner, Reply};
use crate::rendezvous::{card_file, links_file, status_file, Absence, Card, Job, Rendezvous};
use crate::serve::Listener;

/// The agent looks so often what is wanted.
const TICK: Duration = Duration::from_millis(20);
/// It asks other nodes for a space so often.
const FIND_EVERY: Duration = Duration::from_millis(100);
/// A search that takes longer is begun again.
const SEARCH_MAX: Duration = Duration::from_secs(10);
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// The folder of the job was removed if it is missing in checks so far apart: network file systems have gaps.
const FOLDER_GONE: Duration = Duration::from_secs(5);
/// A mirror of another node that lives says so more often: it waits for no agent for longer than a lease.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// The mirrors of other nodes have so long to report what was read there, when this agent ends.
const LAST_REPORTS: Duration = Duration::from_secs(1);
/// Answers that were under way have so long.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// Mirrors have so long to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// And so long to be removed, once no agent is connected any more.
const LAST_REMOVALS: Duration = Duration::from_secs(3);

/// How an agent is to be.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Its job.
    pub job: String,
    /// Its node.
    pub node: String,
    /// All nodes of the job.
    pub nodes: Vec<String>,
    /// The folder that all nodes see.
    pub rendezvous: PathBuf,
    /// The folder has been made for this agent; it is not made again where it is gone.
    pub is_made: bool,
    /// Where it listens.
    pub listen: Listen,
    /// After so long without a word an agent is lost.
    pub lease: Duration,
    /// How long to wait for the other agents.
    pub timeout: Duration,
    /// It ends when it was not used for so long.
    pub idle_timeout: Option<Duration>,
}

impl AgentOptions {
    /// Checks the names.
    ///
    /// # Errors
    /// [`Kind::Usage`].
    pub fn check(&self) -> Result<()> {
        allocation::check_name("job", &self.job)?;
        allocation::check_name("node", &self.node)?;
        allocation::check_names(&self.nodes)?;
        if !self.nodes.contains(&self.node) {
            return Err(Error::new(
                Kind::Usage,
                format!("node {} is not among the nodes of the job", self.node),
            )
            .with("nodes", self.nodes.join(","))
            .hint("give the same --nodes on each node, and one of them as --node"));
        }
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().filter(|node| **node != self.node)
    }
}

/// Answers other agents.
struct Answers(Arc<Owner>);

impl Answering for Answers {
    fn reply(&self, request: Request) -> Reply {
        self.0.reply(request)
    }

    fn lost(&self, node: &str) {
        self.0.lost(node);
    }
}

/// A space that was found on other nodes, or why not.
struct Search {
    name: String,
    found: Result<Option<Mirror>>,
    /// Which ranks are missing where some were found.
    incomplete: Option<String>,
}

/// A running agent.
pub struct Agent {
    options: AgentOptions,
    at: Rendezvous,
    incarnation: u64,
    link: Arc<Link>,
    owner: Arc<Owner>,
    folder: AgentFolder,
    mirrors: BTreeMap<String, Mirror>,
    demands: Demands,
    /// When each space that is wanted may be searched again.
    searching: BTreeMap<String, Instant>,
    searches: (Sender<Search>, Receiver<Search>),
    measuring: Measuring,
    used_at: Instant,
}

impl Agent {
    /// Starts, and waits until all agents of the job are connected, or `is_over`.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`] at the deadline, naming the nodes; [`Kind::NameInUse`]: the node has an agent;
    /// [`Kind::Usage`]; those of the folder and of the network.
    pub fn start(options: AgentOptions, is_over: &AtomicBool) -> Result<Agent> {
        options.check()?;
        let deadline = Instant::now() + options.timeout;
        let job = Job::new(&options.job, &options.nodes);
        let at = match options.is_made {
            true => Rendezvous::open_for(&options.rendezvous, &job)?,
            false => Rendezvous::make(&options.rendezvous, &job)?,
        };
        let is_over = || is_over.load(Relaxed) || at.is_stopping() || !at.is_there();
        if at.is_stopping() {
            return Err(Error::new(Kind::NotPossibleHere, "the agents of this job are stopping")
                .with("folder", at.path().display())
                .hint("use a new folder for a new job"));
        }
        let folder = AgentFolder::take(&NodeAgent {
            job: options.job.clone(),
            node: options.node.clone(),
            pid: std::process::id(),
            rendezvous: at.path().to_path_buf(),
        })?;
        let incarnation = at.begin(&options.node)?;
        let (listen, reserved) = options.listen.chosen()?;
        let listener = Listener::bind(listen.data_address(&options.listen)?)?;
        let identity = match listen.is_plain() {
            true => None,
            false => Some(identity(&at, &options.node, &listen.host())?),
        };
        let card = Card {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_string(),
            job: options.job.clone(),
            node: options.node.clone(),
            incarnation,
            endpoint: listen.endpoint(),
            data: listener.address,
            host: process::host_name().to_string(),
            pid: std::process::id(),
        };
        let text = serde_json::to_vec_pretty(&card).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
        at.write(&card_file(&options.node), &text)?;
        let started = Self::connect(&options, &at, identity.as_ref(), &card, listener, deadline, is_over);
        drop(reserved);
        let (link, owner) = match started {
            Ok(started) => started,
            Err(e) => {
                // Last its card: `stop` waits for that.
                drop(folder);
                remove_own(&at, &options.node);
                return Err(e);
            }
        };
        Ok(Agent {
            options,
            at,
            incarnation,
            link: Arc::new(link),
            owner,
            folder,
            mirrors: BTreeMap::new(),
            demands: Demands::default(),
            searching: BTreeMap::new(),
            searches: channel(),
            measuring: Measuring::default(),
            used_at: Instant::now(),
        })
    }

    fn connect(
        options: &AgentOptions,
        at: &Rendezvous,
        identity: Option<&crate::authority::Identity>,
        card: &Card,
        listener: Listener,
        deadline: Instant,
        is_over: impl Fn() -> bool + Copy,
    ) -> Result<(Link, Arc<Owner>)> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let cards = at.wait_for(&options.nodes, left(), is_over)?;
        // One side of each pair connects; who comes again connects to all.
        let is_asked = |node: &String| *node < options.node || card.incarnation > 1;
        let others =
            options.others().filter(|node| is_asked(node)).map(|node| cards[node].endpoint.clone()).collect();
        let owner = Arc::new(Owner::new(&options.node));
        let connecting = Connecting {
            job: &options.job,
            node: &options.node,
            incarnation: card.incarnation,
            endpoint: &card.endpoint,
            others,
            identity,
            lease: options.lease,
            at,
        };
        let link = Link::open(&connecting, listener, Arc::new(Answers(owner.clone())))?;
        let nodes: Vec<String> = options.others().cloned().collect();
        let missing = link.peers.wait_for(&nodes, left(), is_over);
        if missing.is_empty() {
            return Ok((link, owner));
        }
        link.close();
        let endpoints: Vec<&str> = missing.iter().map(|node| cards[node].endpoint.as_str()).collect();
        Err(Error::new(Kind::PeerMissing, format!("cannot connect to the agents of nodes {}", missing.join(", ")))
            .with("node", &options.node)
            .with("endpoints", endpoints.join(", "))
            .hint("see NODE.log in the folder of the job; if this node cannot reach the address, set another one with \
                   --listen tls/ADDRESS:PORT"))
    }

    /// Serves until `is_over` or another reason to end, and ends in order.
    ///
    /// # Errors
    /// [`Kind::Io`]: the folder of the job cannot be written.
    pub fn serve(mut self, is_over: &AtomicBool) -> Result<()> {
        let (mut said_at, mut absence) = (None::<Instant>, Absence::default());
        let why = loop {
            self.tick();
            if said_at.is_none_or(|at| at.elapsed() >= STATUS_EVERY) {
                self.owner.end_silent(SILENT_MAX + 2 * self.options.lease);
                if self.used_at.elapsed() <= STATUS_EVERY {
                    self.folder.note_used();
                }
                let is_there = self.at.is_there();
                if is_there {
                    // What cannot be written now is written the next time.
                    let _ = self.write_status("ready");
                }
                let options = &self.options;
                self.measuring.look(&self.at, &self.link, &options.node, &options.nodes);
                if self.measuring.is_running() {
                    self.used_at = Instant::now();
                }
                if absence.note(is_there, Instant::now()) > FOLDER_GONE {
                    break "the folder of the job was removed";
                }
                said_at = Some(Instant::now());
                if self.at.is_stopping() {
                    break "stop was requested";
                }
            }
            if is_over.load(Relaxed) {
                break "received a signal";
            }
            if self.options.idle_timeout.is_some_and(|idle| self.used_at.elapsed() > idle) {
                break "it was idle";
            }
            std::thread::sleep(TICK);
        };
        say!("forebay-agent: node {} exits: {why}", self.options.node);
        self.end();
        Ok(())
    }

    /// Looks once what is wanted, what was found and what has ended.
    fn tick(&mut self) {
        self.demands.note(self.folder.take_wanted());
        let folder = &self.folder;
        let wanted = self.demands.current(|name| {
            folder.refuse(name, None);
            folder.note_incomplete(name, None);
        });
        while let Ok(Search { name, found, incomplete }) = self.searches.1.try_recv() {
            let is_new = self.folder.note_incomplete(&name, incomplete.as_deref());
            if let Some(what) = incomplete.filter(|_| is_new) {
                say!("forebay-agent: space {name}: {what}");
            }
            self.take_found(name, found);
        }
        let is_wanted = |name: &String| wanted.iter().any(|(wanted, _)| wanted == name);
        self.searching.retain(|name, due| *due > Instant::now() || is_wanted(name));
        for (name, readers) in wanted {
            let is_due = self.searching.get(&name).is_none_or(|due| *due <= Instant::now());
            if is_due && self.mirrors.get(&name).is_none_or(Mirror::is_over) {
                self.search(name, &readers);
            }
        }
        let folder = &self.folder;
        self.mirrors.retain(|name, mirror| {
            let stays = !mirror.is_gone();
            if !stays {
                folder.note_mirror(name, None);
            }
            stays
        });
        if !self.mirrors.is_empty() || !self.searching.is_empty() || !self.owner.served().is_empty() {
            self.used_at = Instant::now();
        }
    }

    fn take_found(&mut self, name: String, found: Result<Option<Mirror>>) {
        // Asked again after a while, as long as it is wanted.
        self.searching.insert(name.clone(), Instant::now() + FIND_EVERY);
        match found {
            Ok(None) => {}
            Ok(Some(mirror)) => {
                self.folder.refuse(&name, None);
                self.folder.note_mirror(&name, Some(mirror.uuid()));
                self.demands.met(&name);
                self.searching.remove(&name);
                self.mirrors.insert(name, mirror);
            }
            // It may be there a moment later; or a reader reads the mirror that is to be replaced.
            Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::TimedOut | Kind::TooMany) => {}
            Err(e) if e.kind() == Kind::NameInUse && self.mirrors.contains_key(&name) => {}
            Err(e) => {
                if self.folder.refuse(&name, Some(&e.to_string())) {
                    say!("forebay-agent: space {name}: {e}");
                }
            }
        }
    }

    /// Asks all nodes for a space, on a thread of its own. A mirror that is over is replaced by one of another run.
    fn search(&mut self, name: String, readers: &[Wanted]) {
        // Until it is answered; answers come within the time limit.
        self.searching.insert(name.clone(), Instant::now() + SEARCH_MAX);
        let others: Vec<String> = self.options.others().cloned().collect();
        let before = self.mirrors.get(&name);
        let ended = before.and_then(Mirror::sources_at_end);
        let before = before.map(|mirror| mirror.uuid().to_string());
        let wanted: Vec<Claim> = readers.iter().map(Claim::of).collect();
        let (link, owner, done) = (self.link.clone(), self.owner.clone(), self.searches.0.clone());
        std::thread::spawn(move || {
            let (found, incomplete) = match find(&link, &owner, &others, &name, &wanted) {
                Ok(Outcome::At(sources)) if ended != Some(identities(&sources)) => {
                    (Mirror::begin(&link, &owner, &name, &sources, before.as_deref()).map(Some), None)
                }
                Ok(Outcome::Incomplete(what)) => (Ok(None), Some(what)),
                Ok(_) => (Ok(None), None),
                Err(e) => (Err(e), None),
            };
            let _ = done.send(Search { name, found, incomplete });
        });
    }

    fn write_status(&self, state: &str) -> Result<()> {
        let mirrors = self.mirrors.values().map(|mirror| {
            let (state, versions, bytes) = mirror.progress();
            MirrorStatus {
                space: mirror.name.clone(),
                from: mirror.nodes.clone(),
                state: state.into(),
                versions,
                bytes,
            }
        });
        let served = self.owner.served().into_iter().map(|(space, to)| ServedStatus { space, to });
        let status = AgentStatus {
            node: self.options.node.clone(),
            incarnation: self.incarnation,
            state: state.to_string(),
            pid: std::process::id(),
            missing: self.link.peers.missing(&self.options.others().cloned().collect::<Vec<_>>()),
            mirrors: mirrors.collect(),
            served: served.collect(),
            bytes_sent: self.owner.bytes.load(Relaxed),
        };
        let text =
            serde_json::to_vec_pretty(&status).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
        self.folder.note_status(&text);
        self.at.write(&status_file(&self.options.node), &text)
    }

    fn end(self) {
        let served = self.owner.served();
        self.measuring.end();
        let _ = self.write_status("ending");
        self.mirrors.values().for_each(Mirror::stop);
        let deadline = Instant::now() + END_TIMEOUT;
        while self.mirrors.values().any(|mirror| !mirror.is_gone()) && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        self.owner.begin_end();
        // The mirrors of other nodes end too, and say last what was read there: by that a space goes.
        let deadline = Instant::now() + LAST_REPORTS;
        while !self.owner.served().is_empty() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        self.owner.end();
        if !served.is_empty() {
            // What they wait for is on its way.
            std::thread::sleep(LAST_ANSWERS);
        }
        self.link.close();
        // Those that waited for an agent that stands still end now.
        let deadline = Instant::now() + LAST_REMOVALS;
        let is_at_work =
            || self.measuring.is_running() || self.mirrors.values().any(|mirror| !mirror.is_gone());
        while is_at_work() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        match self.mirrors.values().all(Mirror::is_gone) {
            true => drop(self.folder),
            // As one that was killed: the next agent removes what is left.
            false => std::mem::forget(self.folder),
        }
        // Last: `stop` waits for it.
        remove_own(&self.at, &self.options.node);
    }
}

fn remove_own(at: &Rendezvous, node: &str) {
    let [certificate, key] = files_of_node(node);
    for file in [card_file(node), status_file(node), links_file(node), certificate, key] {
        at.remove(&file);
    }
}
