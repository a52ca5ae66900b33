//! The session between the agents of a job: who lives, requests and answers. Versions have connections of their own
//! (`wire.rs`).
//!
//! Guarantees: agents connect to the endpoints in the job's folder and to nothing else; both sides show a certificate
//! of the job's authority, unless the fabric is trusted. Each request has a time limit, and ends at once when the
//! agent it is for is gone. An agent that says nothing for the lease counts as lost, also when it goes on later: what
//! depended on it sees it by the count of losses ([`Peers::losses`]).
//! Not here: what is asked (`message.rs`), and what an answer means.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use serde_json::json;
use zenoh::handlers::{FifoChannel, FifoChannelHandler};
use zenoh::liveliness::LivelinessToken;
use zenoh::qos::CongestionControl;
use zenoh::query::{ConsolidationMode, Query, QueryTarget, Reply};
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

use crate::authority::Identity;
use crate::message::{
    bytes_of, malformed, read_answer, read_request, Answer, Ask, Failure, Request, ANSWER_BYTES_MAX, PROTOCOL,
};
use crate::owner::Reply as Answered;
use crate::rendezvous::Rendezvous;
use crate::serve::{Listener, Serving};
use crate::tls::Tls;
use crate::wire::{Check, Wire};

/// Replies of one query that may wait to be taken: each query has one.
const REPLIES: usize = 2;
/// A connection stays for at least this long while the other agent receives nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Closing a session waits for its peers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How an agent is to be connected.
#[derive(Clone, Debug)]
pub struct Connecting<'a> {
    /// Its job.
    pub job: &'a str,
    /// Its node.
    pub node: &'a str,
    /// Which agent of the node it is.
    pub incarnation: u64,
    /// Where it listens.
    pub endpoint: &'a str,
    /// Where the agents listen that it connects to; the others connect to it.
    pub others: Vec<String>,
    /// Its certificate; None on a trusted fabric.
    pub identity: Option<&'a Identity>,
    /// After so long without a word an agent is lost.
    pub lease: Duration,
    /// The folder of the job, which says where the others are.
    pub at: &'a Rendezvous,
}

/// Which agents are there.
#[derive(Default)]
pub struct Peers {
    known: Mutex<BTreeMap<String, Peer>>,
}

#[derive(Clone, Copy, Default)]
struct Peer {
    /// The start of the agent that lives.
    lives: Option<u64>,
    losses: u64,
}

impl Peers {
    fn note(&self, node: &str, incarnation: u64, lives: bool) -> bool {
        let mut known = lock(&self.known);
        let peer = known.entry(node.to_string()).or_default();
        let is_loss = match lives {
            true => peer.lives.replace(incarnation).is_some_and(|before| before != incarnation),
            // Of an older start: the newer one lives.
            false if peer.lives != Some(incarnation) => return false,
            false => peer.lives.take().is_some(),
        };
        peer.losses += u64::from(is_loss);
        is_loss
    }

    /// Whether the agent of a node is there.
    pub fn is_there(&self, node: &str) -> bool {
        let known = lock(&self.known);
        known.get(node).is_some_and(|peer| peer.lives.is_some())
    }

    /// How often the agent of a node was lost. Once it has risen, nothing that was agreed on with it before holds.
    pub fn losses(&self, node: &str) -> u64 {
        let known = lock(&self.known);
        known.get(node).map_or(0, |peer| peer.losses)
    }

    /// Those of `nodes` whose agents are not there.
    pub fn missing(&self, nodes: &[String]) -> Vec<String> {
        nodes.iter().filter(|node| !self.is_there(node)).cloned().collect()
    }

    /// Waits until the agents of all `nodes` are there, or `is_over`; which are missing.
    pub fn wait_for(&self, nodes: &[String], timeout: Duration, is_over: impl Fn() -> bool) -> Vec<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let missing = self.missing(nodes);
            if missing.is_empty() || Instant::now() >= deadline || is_over() {
                return missing;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session of an agent.
pub struct Link {
    session: Session,
    /// That this agent lives.
    _token: LivelinessToken,
    job: String,
    node: String,
    incarnation: u64,
    /// What this node is asked, without the network.
    own: Arc<dyn Answering>,
    /// An agent that is silent for this long is lost. One that is not yet may leave a request unanswered for as long.
    pub lease: Duration,
    /// Who is there.
    pub peers: Arc<Peers>,
    at: Rendezvous,
    /// None on a trusted fabric.
    tls: Option<Tls>,
    /// Sends versions.
    serving: Mutex<Serving>,
}

/// What this agent answers.
pub trait Answering: Send + Sync + 'static {
    /// The answer to a request, which may wait; called on a thread of its own.
    fn reply(&self, request: Request) -> Answered;

    /// The agent of a node was lost.
    fn lost(&self, node: &str);
}

/// The text of an error without the places in the source of a library, ` at FILE.rs:LINE.`.
fn without_places(text: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        if !word.contains(".rs:") {
            words.push(word);
        } else if words.last() == Some(&"at") {
            words.pop();
        }
    }
    words.join(" ")
}

/// At most so many requests are worked on at a time; one more is refused, and asked again by its sender.
const REQUESTS_MAX: usize = 512;

impl Link {
    /// Opens the session and begins to answer. Does not wait for others.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: the endpoint cannot be listened at.
    pub fn open(
        connecting: &Connecting<'_>,
        listener: Listener,
        answering: Arc<dyn Answering>,
    ) -> Result<Link> {
        let tls = connecting.identity.map(Tls::new).transpose()?;
        let failed = |e: zenoh::Error| {
            let reason = without_places(&e.to_string());
            Error::new(Kind::NotPossibleHere, format!("the agent cannot listen or connect: {reason}"))
                .with("node", connecting.node)
                .with("endpoint", connecting.endpoint)
                .hint("set another address or port with --listen tls/ADDRESS:PORT")
        };
        let config = zenoh::Config::from_json5(&configuration(connecting).to_string()).map_err(failed)?;
        let session = zenoh::open(config).wait().map_err(failed)?;
        let peers = Arc::new(Peers::default());
        let (job, node) = (connecting.job, connecting.node);
        watch(&session, job, &peers, answering.clone()).map_err(failed)?;
        serve(&session, &key_of(job, node), answering.clone()).map_err(failed)?;
        let serving = Mutex::new(listener.serve(tls.clone(), answering.clone(), peers.clone())?);
        // Last: who sees the token may ask.
        let token = session.liveliness().declare_token(token_of(job, node, connecting.incarnation)).wait();
        let token = token.map_err(failed)?;
        let (job, node, incarnation) = (job.to_string(), node.to_string(), connecting.incarnation);
        let (lease, at) = (connecting.lease, connecting.at.clone());
        Ok(Link {
            session,
            _token: token,
            job,
            node,
            incarnation,
            own: answering,
            lease,
            peers,
            at,
            tls,
            serving,
        })
    }

    /// Asks the agent of `node`, at most for `within`.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: it is gone; [`Kind::TimedOut`]; what it failed with.
    pub fn ask(&self, node: &str, ask: Ask, within: Duration) -> Result<Answer> {
        self.begin(node, ask, within)?.answer(node, within)
    }

    /// Sends a question to the agent of `node`; [`Pending::answer`] takes the answer. This node answers before it
    /// returns.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub fn begin(&self, node: &str, ask: Ask, within: Duration) -> Result<Pending> {
        let request = self.request(ask);
        if self.is_own(node) {
            return Ok(Pending::Here(words(self.own.reply(request))));
        }
        if !self.peers.is_there(node) {
            return Err(gone(node));
        }
        let handler = self
            .session
            .get(key_of(&self.job, node))
            .payload(bytes_of(&request)?)
            .target(QueryTarget::All)
            .consolidation(ConsolidationMode::None)
            .congestion_control(CongestionControl::Block)
            .timeout(within)
            .with(FifoChannel::new(REPLIES))
            .wait()
            .map_err(|e| {
                Error::new(Kind::PeerMissing, format!("cannot send a request to node {node}: {e}"))
            })?;
        Ok(Pending::Sent(handler))
    }

    /// Whether this is the node of the agent.
    pub fn is_own(&self, node: &str) -> bool {
        self.node == node
    }

    /// A request of this agent.
    pub fn request(&self, ask: Ask) -> Request {
        Request { protocol: PROTOCOL, node: self.node.clone(), incarnation: self.incarnation, ask }
    }

    /// What this agent itself answers, which may wait.
    pub fn reply_here(&self, ask: Ask) -> Answered {
        self.own.reply(self.request(ask))
    }

    /// A connection to the agent of `node`, by which it sends versions.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`], [`Kind::TimedOut`]; that of `check`.
    pub fn connect(&self, node: &str, check: Check<'_>) -> Result<Wire> {
        // As it is there now: it may have been started again. Network file systems have gaps.
        let card = self.at.card(node).map_err(|e| Error::new(Kind::PeerMissing, e.message()))?;
        Wire::connect(card.ok_or_else(|| gone(node))?.data, self.tls.as_ref(), node, check)
    }

    /// Ends the session; waits a little for its peers.
    pub fn close(&self) {
        lock(&self.serving).end();
        let session = self.session.clone();
        let closing = std::thread::spawn(move || {
            let _ = session.close().wait();
        });
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !closing.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A question that was sent.
pub enum Pending {
    /// To another node.
    Sent(FifoChannelHandler<Reply>),
    /// To this one, with its answer.
    Here(Result<Answer>),
}

impl Pending {
    /// The answer.
    ///
    /// # Errors
    /// Those of [`Link::ask`].
    pub fn answer(self, node: &str, within: Duration) -> Result<Answer> {
        let handler = match self {
            Pending::Sent(handler) => handler,
            Pending::Here(answer) => return answer,
        };
        let late =
            |text: &str| Err(Error::new(Kind::TimedOut, format!("node {node} did not answer in time{text}")));
        // Its end is told by the session, also when the other agent is gone; a little later at most.
        match handler.recv_timeout(within + Duration::from_millis(500)) {
            Ok(Some(reply)) => match reply.into_result() {
                Ok(sample) => read_answer(node, &sample.payload().to_bytes()),
                Err(e) => {
                    late(&e.payload().try_to_string().map_or(String::new(), |text| format!(": {text}")))
                }
            },
            Ok(None) => late(""),
            Err(_) => Err(gone(node)),
        }
    }
}

/// What is said of an answer here: bytes have connections of their own.
fn words(reply: Answered) -> Result<Answer> {
    reply.answer.unwrap_or_else(|| Err(malformed("it is no request in words")))
}

/// The error for an agent that is not there.
pub fn gone(node: &str) -> Error {
    Error::new(Kind::PeerMissing, format!("lost the connection to the agent of node {node}"))
        .with("node", node)
        .hint("the node or its agent failed, or the agent was silent for longer than --lease")
}

fn key_of(job: &str, node: &str) -> String {
    format!("forebay/{job}/agent/{node}")
}

fn token_of(job: &str, node: &str, incarnation: u64) -> String {
    format!("forebay/{job}/lives/{node}/{incarnation}")
}

/// Node and start of a token.
fn read_token(key: &str) -> Option<(&str, u64)> {
    let mut words = key.rsplit('/');
    let incarnation = words.next()?.parse().ok()?;
    Some((words.next()?, incarnation))
}

/// Notes who comes and goes, as long as the session is open.
fn watch(
    session: &Session,
    job: &str,
    peers: &Arc<Peers>,
    answering: Arc<dyn Answering>,
) -> zenoh::Result<()> {
    let peers = peers.clone();
    session
        .liveliness()
        .declare_subscriber(format!("forebay/{job}/lives/**"))
        .history(true)
        .callback(move |sample| {
            let lives = sample.kind() == SampleKind::Put;
            let Some((node, incarnation)) = read_token(sample.key_expr().as_str()) else { return };
            if peers.note(node, incarnation, lives) {
                let (answering, node) = (answering.clone(), node.to_string());
                // What follows of it takes locks of spaces.
                std::thread::spawn(move || answering.lost(&node));
            }
        })
        .background()
        .wait()
}

/// Answers requests, each on a thread of its own, as long as the session is open.
///
/// Who lets go of a query last tells its sender that it is over, and waits for space to send. That must not be the
/// network's only thread, which sends what others wait for, and which has the query, too, until the callback has
/// returned. So an answered query is let go of when the next one has come: they come one after the other.
fn serve(session: &Session, key: &str, answering: Arc<dyn Answering>) -> zenoh::Result<()> {
    let (busy, answered) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Vec<Query>>>::default());
    let (refuse, refused) = channel::<Query>();
    let refusing = answered.clone();
    std::thread::spawn(move || {
        for query in refused {
            let error = Error::new(Kind::TooMany, "the agent has too many requests");
            reply(&query, Err(error));
            lock(&refusing).push(query);
        }
    });
    session
        .declare_queryable(key.to_string())
        .complete(true)
        .callback(move |query| {
            let before = std::mem::take(&mut *lock(&answered));
            if busy.fetch_add(1, SeqCst) >= REQUESTS_MAX {
                busy.fetch_sub(1, SeqCst);
                lock(&answered).extend(before);
                let _ = refuse.send(query);
                return;
            }
            let (busy, answering, answered) = (busy.clone(), answering.clone(), answered.clone());
            std::thread::spawn(move || {
                let request = query.payload().map(|payload| read_request(&payload.to_bytes()));
                let request = request.unwrap_or_else(|| Err(malformed("it is empty")));
                reply(&query, request.and_then(|request| words(answering.reply(request))));
                drop(before);
                lock(&answered).push(query);
                busy.fetch_sub(1, SeqCst);
            });
        })
        .background()
        .wait()
}

fn reply(query: &Query, answer: Result<Answer>) {
    let answer = answer.unwrap_or_else(|e| Answer::Failed(Failure::from(&e)));
    let bytes =
        bytes_of(&answer).or_else(|e| bytes_of(&Answer::Failed(Failure::from(&e)))).unwrap_or_default();
    // Who asked may be gone.
    let _ = query.reply(query.key_expr().clone(), bytes).wait();
}

/// The session's configuration.
fn configuration(connecting: &Connecting<'_>) -> serde_json::Value {
    // An agent that receives nothing is lost after the lease, as one that is silent; the default would be sooner.
    let wait = connecting.lease.max(SEND_TIMEOUT);
    let tls = connecting.identity.map(|identity| {
        json!({
            "root_ca_certificate": identity.authority,
            "listen_certificate": identity.certificate,
            "listen_private_key": identity.key,
            "connect_certificate": identity.certificate,
            "connect_private_key": identity.key,
            "enable_mtls": true,
            "verify_name_on_connect": true,
        })
    });
    json!({
        "mode": "peer",
        "listen": { "endpoints": [connecting.endpoint], "timeout_ms": 0, "exit_on_failure": true },
        "connect": {
            "endpoints": connecting.others,
            "timeout_ms": -1,
            "exit_on_failure": false,
            "retry": { "period_init_ms": 50, "period_max_ms": 1000, "period_increase_factor": 2 },
        },
        // Agents find each other in the folder of the job, and in no other way.
        "scouting": { "multicast": { "enabled": false }, "gossip": { "enabled": false } },
        "open": { "return_conditions": { "connect_scouted": false, "declares": false } },
        "transport": {
            "unicast": { "open_timeout": 5000, "accept_timeout": 5000, "max_sessions": 4096 },
            "link": {
                "protocols": [if connecting.identity.is_some() { "tls" } else { "tcp" }],
                "tx": {
                    "lease": connecting.lease.as_millis() as u64,
                    "keep_alive": 4,
                    "queue": {
                        "congestion_control": { "block": { "wait_before_close": wait.as_micros() as u64 } },
                    },
                },
                "rx": { "max_message_size": ANSWER_BYTES_MAX + (1 << 16) },
                "tls": tls.unwrap_or_else(|| json!({})),
            },
            "shared_memory": { "enabled": false },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_no_source_of_a_library() {
        let text = "no listener [Address in use (os error 98)] at /x/z-1.2/src/tcp.rs:321. - Caused by it";
        assert_eq!(without_places(text), "no listener [Address in use (os error 98)] - Caused by it");
        assert_eq!(without_places("as at first"), "as at first");
    }

    #[test]
    fn a_loss_is_counted_once_and_one_of_an_older_start_is_none() {
        let peers = Peers::default();
        assert!(!peers.note("n0", 1, true) && peers.is_there("n0"));
        assert!(peers.note("n0", 1, false) && !peers.is_there("n0"));
        assert!(!peers.note("n0", 1, false));
        assert!(!peers.note("n0", 2, true));
        assert!(!peers.note("n0", 1, false) && peers.is_there("n0"), "the newer one lives");
        assert!(peers.note("n0", 3, true), "another start: what was agreed on with the one before is over");
        assert_eq!(peers.losses("n0"), 2);
    }
}
