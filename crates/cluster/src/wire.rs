//! A direct connection between two agents: messages in order, and bytes of versions between memory and socket.
//!
//! | frame | contents |
//! |---|---|
//! | [`MESSAGE`], u32, u32 | of which request, bytes; the message |
//! | [`PART`], u32, u32, u32, u64 | of which request, bytes, their CRC-32C, where they begin; bytes of a payload |
//!
//! Numbers are little-endian. Each side sees by the number of the request, and by where a part begins, that no frame is
//! missing and none came twice. Threads that use a connection block in it, so that an answer costs no change of
//! threads, and bytes go into the memory that they are for.
//!
//! Guarantees: both sides show a certificate of the job's authority, unless the fabric is trusted; a frame that is
//! longer than it may be is refused before it is read; what is handed out of a part has its checksum. A wait looks
//! every [`TICK`] whether it is still wanted. Not here: what is said (`message.rs`), who says it (`serve.rs`,
//! `pull.rs`).

use std::fmt::{self, Debug, Formatter};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use forebay_tier::checksum::crc32c;
use rustix::net::sockopt;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::message::malformed;
use crate::tls::{is_tick, Secured, Tls};

const MESSAGE: u8 = 1;
const PART: u8 = 2;
const HEAD_BYTES: usize = 9;
/// More of the head of a part.
const PART_HEAD_BYTES: usize = 12;
/// The kernel of a node that lives takes a connection within this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel asks so often whether the other side of a connection is there on which nothing is said, and ends it after
/// that many times without an answer: also that of a node which was never seen.
const SILENT_ASK: Duration = Duration::from_secs(10);
const SILENT_ASKS: u32 = 6;
/// A part is at most this long: it stays in the cache between checksum and socket.
pub const PART_BYTES_MAX: usize = 512 << 10;
/// A wait looks so often whether it is still wanted.
pub const TICK: Duration = Duration::from_millis(100);

/// Whether a wait goes on: the error with which it ends.
pub type Check<'a> = &'a dyn Fn() -> Result<()>;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Number of the request that it belongs to.
    pub request: u32,
    /// Bytes behind it.
    pub bytes: usize,
    /// Of a part; None: a message.
    pub part: Option<Part>,
}

/// What a part of a payload is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Checksum of its bytes.
    pub crc: u32,
    /// Where it begins in what was asked for.
    pub offset: u64,
}

enum Socket {
    Plain(TcpStream),
    Client(Box<Secured<UnbufferedClientConnection>>),
    Server(Box<Secured<UnbufferedServerConnection>>),
}

impl Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.read(out),
            Socket::Client(secured) => secured.read(out),
            Socket::Server(secured) => secured.read(out),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.write_vectored(slices),
            Socket::Client(secured) => secured.write_vectored(slices),
            Socket::Server(secured) => secured.write_vectored(slices),
        }
    }

    /// Sends what was encrypted and is not sent yet.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(_) => Ok(()),
            Socket::Client(secured) => secured.flush(),
            Socket::Server(secured) => secured.flush(),
        }
    }
}

/// A connection.
pub struct Wire {
    socket: Socket,
    /// Who is on its other side, for errors.
    peer: String,
}

impl Debug for Wire {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Wire to {}", self.peer)
    }
}

/// A check that ends a wait at a time.
pub fn until(deadline: Instant, peer: &str) -> impl Fn() -> Result<()> + '_ {
    move || match Instant::now() < deadline {
        true => Ok(()),
        false => Err(Error::new(Kind::TimedOut, format!("{peer} did not answer in time"))),
    }
}

fn settle(socket: &TcpStream) -> io::Result<()> {
    // Each message is waited for.
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT_ASK)?;
    sockopt::set_tcp_keepintvl(socket, SILENT_ASK)?;
    sockopt::set_tcp_keepcnt(socket, SILENT_ASKS)?;
    socket.set_read_timeout(Some(TICK))?;
    socket.set_write_timeout(Some(TICK))
}

impl Wire {
    /// Connects to the agent of `node`.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: no agent listens there, or it is of another job; [`Kind::TimedOut`]; that of `check`.
    pub fn connect(at: SocketAddr, tls: Option<&Tls>, node: &str, check: Check<'_>) -> Result<Wire> {
        let peer = format!("node {node}");
        let lost = |e: io::Error| lost(&peer, &e);
        let socket = TcpStream::connect_timeout(&at, CONNECT_TIMEOUT).map_err(lost)?;
        settle(&socket).map_err(lost)?;
        let Some(tls) = tls else { return Ok(Wire { socket: Socket::Plain(socket), peer }) };
        let secured = tls.client(socket).map_err(lost)?;
        let mut wire = Wire { socket: Socket::Client(Box::new(secured)), peer };
        wire.shake_hands(check)?;
        Ok(wire)
    }

    /// Takes a connection that was accepted.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: who connected is not of the job, or is gone; that of `check`.
    pub fn accept(socket: TcpStream, tls: Option<&Tls>, check: Check<'_>) -> Result<Wire> {
        let peer = socket.peer_addr().map_or_else(|_| "another host".to_string(), |at| at.to_string());
        let lost = |e: io::Error| lost(&peer, &e);
        // One that was accepted from a listener that does not block need not block either.
        socket.set_nonblocking(false).map_err(lost)?;
        settle(&socket).map_err(lost)?;
        let Some(tls) = tls else { return Ok(Wire { socket: Socket::Plain(socket), peer }) };
        let secured = tls.server(socket).map_err(lost)?;
        let mut wire = Wire { socket: Socket::Server(Box::new(secured)), peer };
        wire.shake_hands(check)?;
        Ok(wire)
    }

    /// Until both sides have shown their certificates.
    fn shake_hands(&mut self, check: Check<'_>) -> Result<()> {
        loop {
            // Also of one that sends a little again and again.
            check()?;
            let step = match &mut self.socket {
                Socket::Plain(_) => Ok(true),
                Socket::Client(secured) => secured.shake_hands(),
                Socket::Server(secured) => secured.shake_hands(),
            };
            match step {
                Ok(true) => return Ok(()),
                Err(e) if !is_tick(&e) => return Err(lost(&self.peer, &e)),
                _ => {}
            }
        }
    }

    /// Sends a message of the request with this number.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]; that of `check`.
    pub fn send_message(&mut self, request: u32, message: &[u8], check: Check<'_>) -> Result<()> {
        let mut head = [MESSAGE; HEAD_BYTES];
        head[1..5].copy_from_slice(&request.to_le_bytes());
        head[5..].copy_from_slice(&(message.len() as u32).to_le_bytes());
        self.send(&head, message, check)
    }

    /// Sends a part of a payload, of at most [`PART_BYTES_MAX`], that begins at `offset` of what was asked for.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]; that of `check`.
    pub fn send_part(&mut self, request: u32, offset: u64, part: &[u8], check: Check<'_>) -> Result<()> {
        let mut head = [PART; HEAD_BYTES + PART_HEAD_BYTES];
        head[1..5].copy_from_slice(&request.to_le_bytes());
        head[5..9].copy_from_slice(&(part.len() as u32).to_le_bytes());
        head[9..13].copy_from_slice(&crc32c(part).to_le_bytes());
        head[13..].copy_from_slice(&offset.to_le_bytes());
        self.send(&head, part, check)
    }

    /// One behind the other, with one system call where the socket takes them.
    fn send(&mut self, head: &[u8], body: &[u8], check: Check<'_>) -> Result<()> {
        let (mut sent, all) = (0, head.len() + body.len());
        let mut looking = Looking::new(check);
        while sent < all {
            let slices = [
                IoSlice::new(&head[sent.min(head.len())..]),
                IoSlice::new(&body[sent.saturating_sub(head.len())..]),
            ];
            match self.socket.write_vectored(&slices) {
                Ok(0) => return Err(lost(&self.peer, &ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    sent += bytes;
                    looking.look()?;
                }
                Err(e) if is_tick(&e) => check()?,
                Err(e) => return Err(lost(&self.peer, &e)),
            }
        }
        loop {
            match self.socket.flush() {
                Ok(()) => return Ok(()),
                Err(e) if is_tick(&e) => check()?,
                Err(e) => return Err(lost(&self.peer, &e)),
            }
        }
    }

    /// What comes next.
    ///
    /// # Errors
    /// [`Kind::UnknownFormat`]: it is no frame, or longer than it may be; those of [`Wire::read`].
    pub fn frame(&mut self, message_bytes_max: usize, check: Check<'_>) -> Result<Frame> {
        let mut head = [0; HEAD_BYTES];
        self.read(&mut head, check)?;
        let (request, bytes) = (number(&head, 1), number(&head, 5) as usize);
        match head[0] {
            MESSAGE if bytes <= message_bytes_max => Ok(Frame { request, bytes, part: None }),
            PART if (1..=PART_BYTES_MAX).contains(&bytes) => {
                let mut head = [0; PART_HEAD_BYTES];
                self.read(&mut head, check)?;
                let (low, high) = (number(&head, 4), number(&head, 8));
                let offset = u64::from(low) | u64::from(high) << 32;
                Ok(Frame { request, bytes, part: Some(Part { crc: number(&head, 0), offset }) })
            }
            MESSAGE | PART => Err(malformed("it is too long").with("from", &self.peer).with("bytes", bytes)),
            other => Err(malformed("it is no frame").with("from", &self.peer).with("kind", other)),
        }
    }

    /// The next message, and the number of its request.
    ///
    /// # Errors
    /// Those of [`Wire::frame`]; [`Kind::UnknownFormat`]: there is a part.
    pub fn message(&mut self, bytes_max: usize, check: Check<'_>) -> Result<(u32, Vec<u8>)> {
        match self.frame(bytes_max, check)? {
            Frame { request, bytes, part: None } => Ok((request, self.rest_of_message(bytes, check)?)),
            Frame { part: Some(_), .. } => {
                Err(malformed("bytes in place of a message").with("from", &self.peer))
            }
        }
    }

    /// A message of which the frame was read.
    ///
    /// # Errors
    /// Those of [`Wire::read`].
    pub fn rest_of_message(&mut self, bytes: usize, check: Check<'_>) -> Result<Vec<u8>> {
        let mut message = vec![0; bytes];
        self.read(&mut message, check)?;
        Ok(message)
    }

    /// The bytes of a part of which the frame was read.
    ///
    /// # Errors
    /// [`Kind::Damaged`]: they do not match the checksum; those of [`Wire::read`].
    pub fn part(&mut self, out: &mut [u8], crc: u32, check: Check<'_>) -> Result<()> {
        self.read(out, check)?;
        match crc32c(out) == crc {
            true => Ok(()),
            false => Err(Error::new(Kind::Damaged, format!("data from {} failed the checksum", self.peer))
                .with("bytes", out.len())),
        }
    }

    /// # Errors
    /// [`Kind::PeerMissing`]: the connection has ended; that of `check`.
    fn read(&mut self, mut out: &mut [u8], check: Check<'_>) -> Result<()> {
        let mut looking = Looking::new(check);
        while !out.is_empty() {
            match self.socket.read(out) {
                Ok(0) => return Err(lost(&self.peer, &ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => {
                    out = &mut out[bytes..];
                    looking.look()?;
                }
                Err(e) if is_tick(&e) => check()?,
                Err(e) => return Err(lost(&self.peer, &e)),
            }
        }
        Ok(())
    }
}

/// The number at a place of a head.
fn number(head: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// Looks every [`TICK`] whether a wait goes on, also where something comes all the time.
struct Looking<'a> {
    check: Check<'a>,
    looked: Instant,
}

impl<'a> Looking<'a> {
    fn new(check: Check<'a>) -> Looking<'a> {
        Looking { check, looked: Instant::now() }
    }

    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() >= TICK {
            (self.check)()?;
            self.looked = Instant::now();
        }
        Ok(())
    }
}

fn lost(peer: &str, error: &io::Error) -> Error {
    let kind = if error.kind() == ErrorKind::TimedOut { Kind::TimedOut } else { Kind::PeerMissing };
    Error::new(kind, format!("lost the connection to {peer}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{identity, Identity};
    use crate::rendezvous::{Job, Rendezvous};
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(60);

    fn always() -> Result<()> {
        Ok(())
    }

    fn identity_of(job: &str) -> (tempfile::TempDir, Identity) {
        let above = tempfile::tempdir().unwrap();
        let at = Rendezvous::make(&above.path().join("job"), &Job::new(job, &["n0".to_string()])).unwrap();
        let identity = identity(&at, "n0", "127.0.0.1").unwrap();
        (above, identity)
    }

    fn tls(job: &str) -> (tempfile::TempDir, Tls) {
        let (files, identity) = identity_of(job);
        (files, Tls::new(&identity).unwrap())
    }

    /// Both sides of a connection.
    fn pair(client: Option<&Tls>, server: Option<&Tls>) -> (Result<Wire>, Result<Wire>) {
        pair_within(client, server, LONG)
    }

    fn pair_within(
        client: Option<&Tls>,
        server: Option<&Tls>,
        within: Duration,
    ) -> (Result<Wire>, Result<Wire>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let check = || until(Instant::now() + within, "n0");
        std::thread::scope(|threads| {
            let accepting = threads.spawn(|| {
                let check = check();
                Wire::accept(listener.accept().unwrap().0, server, &check)
            });
            (Wire::connect(at, client, "n0", &check()), accepting.join().unwrap())
        })
    }

    #[test]
    fn messages_and_parts_come_as_they_were_sent() {
        let (_files, tls) = tls("a");
        for tls in [None, Some(&tls)] {
            let (client, server) = pair(tls, tls);
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            let part: Vec<u8> = (0..PART_BYTES_MAX).map(|at| (at * 31) as u8).collect();
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    client.send_message(7, b"", &always).unwrap();
                    client.send_message(u32::MAX, b"hello", &always).unwrap();
                    for count in 0..20 {
                        client.send_part(8, count << 40, &part, &always).unwrap();
                    }
                    client.send_part(8, 20 << 40, b"x", &always).unwrap();
                });
                assert_eq!(server.message(0, &always).unwrap(), (7, b"".to_vec()));
                assert_eq!(server.message(5, &always).unwrap(), (u32::MAX, b"hello".to_vec()));
                let mut out = vec![0; PART_BYTES_MAX];
                for (count, expected) in [&part[..]; 20].into_iter().chain([&b"x"[..]]).enumerate() {
                    let frame = server.frame(0, &always).unwrap();
                    let part = frame.part.unwrap();
                    assert_eq!((frame.request, part.offset), (8, (count as u64) << 40));
                    server.part(&mut out[..frame.bytes], part.crc, &always).unwrap();
                    assert!(out[..frame.bytes] == *expected);
                }
            });
            drop(client);
            assert_eq!(server.message(9, &always).unwrap_err().kind(), Kind::PeerMissing);
        }
    }

    #[test]
    fn who_is_not_of_the_job_is_refused_by_either_side() {
        let ((_files, ours), (_others, theirs)) = (identity_of("a"), identity_of("a"));
        // With their certificate, but with our authority: only the other side can refuse it.
        let mixed = Tls::new(&Identity { authority: ours.authority.clone(), ..theirs.clone() }).unwrap();
        let (ours, theirs) = (Tls::new(&ours).unwrap(), Tls::new(&theirs).unwrap());
        for (client, server) in [
            (Some(&theirs), Some(&ours)),
            (Some(&ours), Some(&theirs)),
            (Some(&mixed), Some(&ours)),
            (Some(&ours), Some(&mixed)),
            (None, Some(&ours)),
        ] {
            // One without TLS is waited for in vain.
            let within = if client.is_some() { LONG } else { 5 * TICK };
            let (client, server) = pair_within(client, server, within);
            let refused = match (client, server) {
                // A client learns that its certificate was refused when it reads.
                (Ok(mut client), Err(_)) => client
                    .send_message(1, b"x", &always)
                    .and_then(|()| client.message(9, &until(Instant::now() + LONG, "n0")).map(drop)),
                (client, _) => client.map(drop),
            };
            assert_eq!(refused.unwrap_err().kind(), Kind::PeerMissing);
        }
    }

    #[test]
    fn who_sends_a_little_again_and_again_has_no_more_time_than_who_says_nothing() {
        let (_files, tls) = tls("a");
        // A record that is never whole, and a message.
        for (tls, head) in [(Some(&tls), [22, 3, 1, 64, 0]), (None, [MESSAGE, 0, 0, 0, 0])] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let trickling = std::thread::spawn(move || {
                client.write_all(&head).unwrap();
                while client.write_all(&[0]).is_ok() {
                    std::thread::sleep(TICK / 5);
                }
            });
            let deadline = until(Instant::now() + 3 * TICK, "n1");
            let socket = listener.accept().unwrap().0;
            let served = Wire::accept(socket, tls, &deadline).and_then(|mut wire| {
                wire.frame(9, &deadline)?;
                wire.read(&mut vec![0; 1 << 20], &deadline)
            });
            assert_eq!(served.unwrap_err().kind(), Kind::TimedOut);
            trickling.join().unwrap();
        }
    }

    #[test]
    fn other_bytes_than_were_sent_and_what_is_no_frame_are_refused() {
        let raw = |bytes: &[u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(bytes).unwrap();
            Wire::accept(listener.accept().unwrap().0, None, &always).unwrap()
        };
        let head = |kind: u8, bytes: u32, crc: u32| {
            [&[kind, 1, 0, 0, 0][..], &bytes.to_le_bytes(), &crc.to_le_bytes(), &[0; 8]].concat()
        };
        let sent = [head(PART, 4, crc32c(b"abcd")), b"abce".to_vec()].concat();
        let mut wire = raw(&sent);
        let frame = wire.frame(9, &always).unwrap();
        let read = wire.part(&mut vec![0; frame.bytes], frame.part.unwrap().crc, &always);
        assert_eq!(read.unwrap_err().kind(), Kind::Damaged);
        for wrong in [
            head(0, 1, 0),
            head(3, 1, 0),
            head(PART, 0, 0),
            head(PART, PART_BYTES_MAX as u32 + 1, 0),
            head(MESSAGE, 10, 0),
            head(MESSAGE, u32::MAX, 0),
        ] {
            assert_eq!(raw(&wrong).frame(9, &always).unwrap_err().kind(), Kind::UnknownFormat, "{wrong:?}");
        }
        let short = raw(&head(MESSAGE, 13, 0)).message(13, &always);
        assert_eq!(short.unwrap_err().kind(), Kind::PeerMissing);
    }

    #[test]
    fn a_wait_ends_when_it_is_not_wanted_any_more() {
        let (client, server) = pair(None, None);
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let soon = || Instant::now() + 2 * TICK;
        assert_eq!(server.message(9, &until(soon(), "n0")).unwrap_err().kind(), Kind::TimedOut);
        // The other side does not read, until no buffer takes more.
        let part = vec![0; PART_BYTES_MAX];
        let deadline = soon();
        let error = loop {
            match client.send_part(1, 0, &part, &until(deadline, "n1")) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.message()), (Kind::TimedOut, "n1 did not answer in time"));
    }
}
