//! Where the agents of other nodes connect for the versions of this node: one thread for each connection.
//!
//! Guarantees: a request is answered before the next one is read; a connection ends with the agent, with the other
//! agent, and with the mirror whose bytes it sends. Who connects has a limited time to say what it wants, and those who
//! have not yet are few. Not here: what is answered (`owner.rs`).

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::link::{gone, Answering, Peers};
use crate::message::{bytes_of, read_request, Answer, Failure, REQUEST_BYTES_MAX};
use crate::owner::Reply;
use crate::tls::Tls;
use crate::wire::{until, Wire, TICK};

/// More connections are closed at once, and more than this part of all descriptors; the other agent tries again.
const CONNECTIONS_MAX: usize = 4096;
const PART_OF_DESCRIPTORS: u64 = 2;
/// More connections of which it is not known who they are from are closed, the oldest one first: those that had this
/// long, or all but half of what there may be.
const GREETINGS_MAX: usize = 64;
const GREETING: Duration = Duration::from_secs(1);
/// So many descriptors are enough, where there may be more.
const DESCRIPTORS: u64 = 1 << 16;
/// Who connects shows a certificate and sends its first request within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// No descriptors are left: it is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A port at which no thread answers yet.
pub struct Listener {
    socket: TcpListener,
    /// Where it is.
    pub address: SocketAddr,
}

impl Listener {
    /// Beside that of the agent's session: any port, or the one behind a chosen one.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: the port is in use.
    pub fn bind(at: SocketAddr) -> Result<Listener> {
        let bound = TcpListener::bind(at).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, address })
        });
        bound.map_err(|e| {
            Error::new(Kind::NotPossibleHere, format!("cannot listen at {at}: {e}"))
                .hint("an agent uses two ports, PORT and PORT + 1 of --listen tls/ADDRESS:PORT")
        })
    }

    /// Begins to answer.
    ///
    /// # Errors
    /// [`Kind::Io`]: no thread can be started.
    pub fn serve(
        self,
        tls: Option<Tls>,
        answering: Arc<dyn Answering>,
        peers: Arc<Peers>,
    ) -> Result<Serving> {
        let (is_over, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
        if limit.current.is_some_and(|current| current < wanted) {
            // The limit of a shell is low, for programs that know no better. Without it there are less connections.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let serving = Connections {
            tls,
            answering,
            peers,
            is_over: is_over.clone(),
            count: count.clone(),
            count_max: CONNECTIONS_MAX.min((descriptors / PART_OF_DESCRIPTORS) as usize),
            greetings: Arc::default(),
        };
        let socket = self.socket;
        let accepting = std::thread::Builder::new().name("accepting".to_string());
        let thread = accepting.spawn(move || serving.accept(&socket));
        let thread = thread.map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Serving { is_over, count, thread: Some(thread) })
    }
}

/// Answers until it is dropped.
pub struct Serving {
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Ends all connections; waits a little for those that wait for a version.
    pub fn end(&mut self) {
        self.is_over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let deadline = Instant::now() + 10 * TICK;
        while self.count.load(SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(TICK / 20);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone)]
struct Connections {
    tls: Option<Tls>,
    answering: Arc<dyn Answering>,
    peers: Arc<Peers>,
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    count_max: usize,
    greetings: Arc<Greetings>,
}

/// The connections of which it is not known yet who they are from, the oldest one first.
#[derive(Default)]
struct Greetings {
    all: Mutex<VecDeque<(u64, Instant, TcpStream)>>,
    begun: AtomicU64,
}

/// One of them; dropped when it is known.
struct Greeting {
    of: Arc<Greetings>,
    number: u64,
}

impl Greetings {
    fn all(&self) -> MutexGuard<'_, VecDeque<(u64, Instant, TcpStream)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends old ones where there are many: others must not use up what the agents of the job need. Those come many at a
    /// time, when a space appears, and need a moment.
    fn begin(self: &Arc<Self>, stream: &TcpStream, count_max: usize) -> io::Result<Greeting> {
        let number = self.begun.fetch_add(1, SeqCst);
        let stream = stream.try_clone()?;
        let mut all = self.all();
        all.push_back((number, Instant::now(), stream));
        while all.len() > GREETINGS_MAX
            && all.front().is_some_and(|(_, begun, _)| begun.elapsed() > GREETING || all.len() > count_max)
        {
            if let Some((_, _, oldest)) = all.pop_front() {
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        Ok(Greeting { of: self.clone(), number })
    }
}

impl Greeting {
    /// It is known who it is from; whether it was not ended before.
    fn end(&self) -> bool {
        let mut all = self.of.all();
        let before = all.len();
        all.retain(|(number, _, _)| *number != self.number);
        all.len() < before
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.end();
    }
}

/// One of the connections that are counted.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Connections {
    fn accept(&self, socket: &TcpListener) {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let mut is_said = false;
        while !self.is_over.load(SeqCst) {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&tick));
            match socket.accept() {
                Ok((stream, _)) => {
                    let counted = Counted(self.count.clone());
                    if self.count.fetch_add(1, SeqCst) < self.count_max {
                        self.begin(stream, counted);
                    } else if !std::mem::replace(&mut is_said, true) {
                        say!("forebay-agent: more than {} connections; more are closed", self.count_max);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(ACCEPT_AGAIN),
            }
        }
    }

    fn begin(&self, stream: TcpStream, counted: Counted) {
        // Without descriptors for it, it closes, and the other agent tries again.
        let Ok(greeting) = self.greetings.begin(&stream, self.count_max / 2) else { return };
        let connections = self.clone();
        let thread = std::thread::Builder::new().name("serving".to_string());
        // Without a thread the connection closes, and the other agent tries again.
        let _ = thread.spawn(move || {
            // Who is gone learns nothing any more.
            let _ = connections.serve(stream, greeting);
            drop(counted);
        });
    }

    /// Until the other agent closes.
    fn serve(&self, stream: TcpStream, greeting: Greeting) -> Result<()> {
        let begun = Instant::now();
        // Who asks, and how often it had been lost then.
        let peer = OnceLock::<(String, u64)>::new();
        let check = || match peer.get() {
            _ if self.is_over.load(SeqCst) => Err(Error::new(Kind::PeerMissing, "the agent ends")),
            None => until(begun + HELLO_TIMEOUT, "another agent")(),
            Some((node, losses)) if self.peers.losses(node) != *losses => Err(gone(node)),
            Some(_) => Ok(()),
        };
        let mut wire = Wire::accept(stream, self.tls.as_ref(), &check)?;
        let mut greeting = Some(greeting);
        loop {
            let (number, request) = wire.message(REQUEST_BYTES_MAX, &check)?;
            let request = match read_request(&request) {
                Ok(request) => request,
                Err(e) => return wire.send_message(number, &failure(&e), &check),
            };
            let _ = peer.set((request.node.clone(), self.peers.losses(&request.node)));
            if greeting.take().is_some_and(|greeting| !greeting.end()) {
                return Err(Error::new(Kind::TooMany, "it was closed meanwhile"));
            }
            let Reply { answer, mut payload } = self.answering.reply(request);
            if let Some(answer) = answer {
                let answer = answer.and_then(|answer| bytes_of(&answer)).unwrap_or_else(|e| {
                    // Bytes follow an answer alone.
                    payload = None;
                    failure(&e)
                });
                wire.send_message(number, &answer, &check)?;
            }
            let Some(mut payload) = payload else { continue };
            let is_wanted = payload.is_wanted();
            let check = || match is_wanted() {
                true => check(),
                false => Err(Error::new(Kind::PeerMissing, "the mirror has ended")),
            };
            let mut offset = payload.at;
            while let Some(part) = payload.next_part() {
                check()?;
                wire.send_part(number, offset, part, &check)?;
                offset += part.len() as u64;
            }
        }
    }
}

fn failure(error: &Error) -> Vec<u8> {
    bytes_of(&Answer::Failed(Failure::from(error))).unwrap_or_default()
}
