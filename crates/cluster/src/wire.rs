//! A direct connection between two agents: messages in order, and bytes of versions between memory and socket.
//!
//! | frame | contents |
//! |---|---|
//! | [`MESSAGE`], u32 | a message of so many bytes |
//! | [`PART`], u32, u32 | a part of a payload: so many bytes, with their CRC-32C |
//!
//! Numbers are little-endian. Threads that use a connection block in it, so that an answer costs no change of threads,
//! and bytes go into the memory that they are for.
//!
//! Guarantees: both sides show a certificate of the job's authority, unless the fabric is trusted; a frame that is
//! longer than it may be is refused before it is read; what is handed out of a part has its checksum. A wait looks
//! every [`TICK`] whether it is still wanted. Not here: what is said (`message.rs`), who says it (`serve.rs`, `pull.rs`).

use std::fmt::{self, Debug, Formatter};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use forebay_tier::checksum::crc32c;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::message::malformed;
use crate::tls::{Secured, Tls};

const MESSAGE: u8 = 1;
const PART: u8 = 2;
/// A part is at most this long: it stays in the cache between checksum and socket.
pub const PART_BYTES_MAX: usize = 512 << 10;
/// A wait looks so often whether it is still wanted.
pub const TICK: Duration = Duration::from_millis(100);

/// Whether a wait goes on: the error with which it ends.
pub type Check<'a> = &'a dyn Fn() -> Result<()>;

/// What a frame is.
#[derive(Debug)]
pub enum Frame {
    /// A message of so many bytes.
    Message(usize),
    /// A part of a payload.
    Part {
        /// Its bytes.
        bytes: usize,
        /// Their checksum.
        crc: u32,
    },
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
    socket.set_read_timeout(Some(TICK))?;
    socket.set_write_timeout(Some(TICK))
}

impl Wire {
    /// Connects to the agent of `node`, within that time.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: no agent listens there, or it is of another job; [`Kind::TimedOut`].
    pub fn connect(at: SocketAddr, tls: Option<&Tls>, node: &str, within: Duration) -> Result<Wire> {
        let peer = format!("node {node}");
        let deadline = Instant::now() + within;
        let lost = |e: io::Error| lost(&peer, &e);
        let socket = TcpStream::connect_timeout(&at, within).map_err(lost)?;
        settle(&socket).map_err(lost)?;
        let Some(tls) = tls else { return Ok(Wire { socket: Socket::Plain(socket), peer }) };
        let secured = tls.client(socket).map_err(lost)?;
        let mut wire = Wire { socket: Socket::Client(Box::new(secured)), peer };
        wire.shake_hands(deadline)?;
        Ok(wire)
    }

    /// Takes a connection that was accepted, within that time.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: who connected is not of the job, or is gone; [`Kind::TimedOut`].
    pub fn accept(socket: TcpStream, tls: Option<&Tls>, within: Duration) -> Result<Wire> {
        let deadline = Instant::now() + within;
        let peer = socket.peer_addr().map_or_else(|_| "another host".to_string(), |at| at.to_string());
        let lost = |e: io::Error| lost(&peer, &e);
        // One that was accepted from a listener that does not block need not block either.
        socket.set_nonblocking(false).map_err(lost)?;
        settle(&socket).map_err(lost)?;
        let Some(tls) = tls else { return Ok(Wire { socket: Socket::Plain(socket), peer }) };
        let secured = tls.server(socket).map_err(lost)?;
        let mut wire = Wire { socket: Socket::Server(Box::new(secured)), peer };
        wire.shake_hands(deadline)?;
        Ok(wire)
    }

    /// Until both sides have shown their certificates.
    fn shake_hands(&mut self, deadline: Instant) -> Result<()> {
        loop {
            let step = match &mut self.socket {
                Socket::Plain(_) => Ok(()),
                Socket::Client(secured) => secured.shake_hands(),
                Socket::Server(secured) => secured.shake_hands(),
            };
            match step {
                Err(e) if is_tick(&e) => until(deadline, &self.peer)()?,
                step => return step.map_err(|e| lost(&self.peer, &e)),
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]; that of `check`.
    pub fn send_message(&mut self, message: &[u8], check: Check<'_>) -> Result<()> {
        let mut head = [MESSAGE; 5];
        head[1..].copy_from_slice(&(message.len() as u32).to_le_bytes());
        self.send(&head, message, check)
    }

    /// Sends a part of a payload, of at most [`PART_BYTES_MAX`].
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]; that of `check`.
    pub fn send_part(&mut self, part: &[u8], check: Check<'_>) -> Result<()> {
        let mut head = [PART; 9];
        head[1..5].copy_from_slice(&(part.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&crc32c(part).to_le_bytes());
        self.send(&head, part, check)
    }

    /// One behind the other, with one system call where the socket takes them.
    fn send(&mut self, head: &[u8], body: &[u8], check: Check<'_>) -> Result<()> {
        let (mut sent, all) = (0, head.len() + body.len());
        while sent < all {
            let slices = [
                IoSlice::new(&head[sent.min(head.len())..]),
                IoSlice::new(&body[sent.saturating_sub(head.len())..]),
            ];
            match self.socket.write_vectored(&slices) {
                Ok(0) => return Err(lost(&self.peer, &ErrorKind::WriteZero.into())),
                Ok(bytes) => sent += bytes,
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
        let mut head = [0; 9];
        self.read(&mut head[..5], check)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let bytes = number(1) as usize;
        match head[0] {
            MESSAGE if bytes <= message_bytes_max => Ok(Frame::Message(bytes)),
            PART if (1..=PART_BYTES_MAX).contains(&bytes) => {
                self.read(&mut head[5..], check)?;
                let crc = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
                Ok(Frame::Part { bytes, crc })
            }
            MESSAGE | PART => Err(malformed("it is too long").with("from", &self.peer).with("bytes", bytes)),
            other => Err(malformed("it is no frame").with("from", &self.peer).with("kind", other)),
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// Those of [`Wire::frame`]; [`Kind::UnknownFormat`]: there is a part.
    pub fn message(&mut self, bytes_max: usize, check: Check<'_>) -> Result<Vec<u8>> {
        match self.frame(bytes_max, check)? {
            Frame::Message(bytes) => self.rest_of_message(bytes, check),
            Frame::Part { .. } => Err(malformed("bytes in place of a message").with("from", &self.peer)),
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
        while !out.is_empty() {
            match self.socket.read(out) {
                Ok(0) => return Err(lost(&self.peer, &ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => out = &mut out[bytes..],
                Err(e) if is_tick(&e) => check()?,
                Err(e) => return Err(lost(&self.peer, &e)),
            }
        }
        Ok(())
    }
}

/// Nothing has come, or was taken, within [`TICK`].
fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn lost(peer: &str, error: &io::Error) -> Error {
    let kind = if error.kind() == ErrorKind::TimedOut { Kind::TimedOut } else { Kind::PeerMissing };
    Error::new(kind, format!("lost the connection to {peer}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::identity;
    use crate::rendezvous::{Job, Rendezvous};
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(60);

    fn always() -> Result<()> {
        Ok(())
    }

    fn tls(job: &str) -> (tempfile::TempDir, Tls) {
        let above = tempfile::tempdir().unwrap();
        let at = Rendezvous::make(&above.path().join("job"), &Job::new(job, &["n0".to_string()])).unwrap();
        let tls = Tls::new(&identity(&at, "n0", "127.0.0.1").unwrap()).unwrap();
        (above, tls)
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
        std::thread::scope(|threads| {
            let accepting = threads.spawn(|| Wire::accept(listener.accept().unwrap().0, server, within));
            (Wire::connect(at, client, "n0", within), accepting.join().unwrap())
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
                    client.send_message(b"", &always).unwrap();
                    client.send_message(b"hello", &always).unwrap();
                    for _ in 0..20 {
                        client.send_part(&part, &always).unwrap();
                    }
                    client.send_part(b"x", &always).unwrap();
                });
                assert_eq!(server.message(0, &always).unwrap(), b"");
                assert_eq!(server.message(5, &always).unwrap(), b"hello");
                let mut out = vec![0; PART_BYTES_MAX];
                for expected in [&part[..]; 20].into_iter().chain([&b"x"[..]]) {
                    let Frame::Part { bytes, crc } = server.frame(0, &always).unwrap() else { panic!() };
                    server.part(&mut out[..bytes], crc, &always).unwrap();
                    assert!(out[..bytes] == *expected);
                }
            });
            drop(client);
            assert_eq!(server.message(9, &always).unwrap_err().kind(), Kind::PeerMissing);
        }
    }

    #[test]
    fn who_is_not_of_the_job_is_refused_by_either_side() {
        let ((_files, ours), (_others, theirs)) = (tls("a"), tls("a"));
        for (client, server) in
            [(Some(&theirs), Some(&ours)), (Some(&ours), Some(&theirs)), (None, Some(&ours))]
        {
            // One without TLS is waited for in vain.
            let within = if client.is_some() { LONG } else { 5 * TICK };
            let (client, server) = pair_within(client, server, within);
            let refused = match (client, server) {
                // A client learns that its certificate was refused when it reads.
                (Ok(mut client), Err(_)) => client
                    .send_message(b"x", &always)
                    .and_then(|()| client.message(9, &until(Instant::now() + LONG, "n0")).map(drop)),
                (client, _) => client.map(drop),
            };
            assert_eq!(refused.unwrap_err().kind(), Kind::PeerMissing);
        }
    }

    #[test]
    fn other_bytes_than_were_sent_and_what_is_no_frame_are_refused() {
        let raw = |bytes: &[u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(bytes).unwrap();
            Wire::accept(listener.accept().unwrap().0, None, LONG).unwrap()
        };
        let head =
            |kind: u8, bytes: u32, crc: u32| [&[kind][..], &bytes.to_le_bytes(), &crc.to_le_bytes()].concat();
        let sent = [head(PART, 4, crc32c(b"abcd")), b"abce".to_vec()].concat();
        let mut wire = raw(&sent);
        let Frame::Part { bytes, crc } = wire.frame(9, &always).unwrap() else { panic!() };
        assert_eq!(wire.part(&mut vec![0; bytes], crc, &always).unwrap_err().kind(), Kind::Damaged);
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
        let short = raw(&head(MESSAGE, 9, 0)).message(9, &always);
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
            match client.send_part(&part, &until(deadline, "n1")) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.message()), (Kind::TimedOut, "n1 did not answer in time"));
    }
}
