//! Where the agents of other nodes connect for the versions of this node: one thread for each connection.
//!
//! Guarantees: a request is answered before the next one is read; a connection ends with the agent, with the other
//! agent, and with the mirror whose bytes it sends. Who connects has a limited time to say what it wants. Not here: what
//! is answered (`owner.rs`).

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::link::{gone, Answering, Peers};
use crate::message::{bytes_of, read_request, Answer, Failure, REQUEST_BYTES_MAX};
use crate::owner::Reply;
use crate::tls::Tls;
use crate::wire::{until, Wire, TICK};

/// More connections are closed at once; the other agent tries again.
const CONNECTIONS_MAX: usize = 4096;
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
        let serving = Connections { tls, answering, peers, is_over: is_over.clone(), count: count.clone() };
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
        while !self.is_over.load(SeqCst) {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&tick));
            match socket.accept() {
                Ok((stream, _)) => {
                    let counted = Counted(self.count.clone());
                    if self.count.fetch_add(1, SeqCst) < CONNECTIONS_MAX {
                        self.begin(stream, counted);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(ACCEPT_AGAIN),
            }
        }
    }

    fn begin(&self, stream: TcpStream, counted: Counted) {
        let connections = self.clone();
        let thread = std::thread::Builder::new().name("serving".to_string());
        // Without a thread the connection closes, and the other agent tries again.
        let _ = thread.spawn(move || {
            // Who is gone learns nothing any more.
            let _ = connections.serve(stream);
            drop(counted);
        });
    }

    /// Until the other agent closes.
    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut wire = Wire::accept(stream, self.tls.as_ref(), HELLO_TIMEOUT)?;
        let begun = Instant::now();
        // Who asks, and how often it had been lost then.
        let peer = OnceLock::<(String, u64)>::new();
        let check = || match peer.get() {
            _ if self.is_over.load(SeqCst) => Err(Error::new(Kind::PeerMissing, "the agent ends")),
            None => until(begun + HELLO_TIMEOUT, "another agent")(),
            Some((node, losses)) if self.peers.losses(node) != *losses => Err(gone(node)),
            Some(_) => Ok(()),
        };
        loop {
            let request = wire.message(REQUEST_BYTES_MAX, &check)?;
            let request = match read_request(&request) {
                Ok(request) => request,
                Err(e) => return wire.send_message(&failure(&e), &check),
            };
            let _ = peer.set((request.node.clone(), self.peers.losses(&request.node)));
            let Reply { answer, payload } = self.answering.reply(request);
            if let Some(answer) = answer {
                let answer = answer.and_then(|answer| bytes_of(&answer));
                wire.send_message(&answer.unwrap_or_else(|e| failure(&e)), &check)?;
            }
            let Some(mut payload) = payload else { continue };
            let is_wanted = payload.is_wanted();
            let check = || match is_wanted() {
                true => check(),
                false => Err(Error::new(Kind::PeerMissing, "the mirror has ended")),
            };
            while let Some(part) = payload.next_part() {
                wire.send_part(part, &check)?;
            }
        }
    }
}

fn failure(error: &Error) -> Vec<u8> {
    bytes_of(&Answer::Failed(Failure::from(error))).unwrap_or_default()
}
