//! TLS on a socket between two agents: both sides show a certificate of the job's authority.
//!
//! What was received is decrypted where it lies, and copied once more into the memory that it is for.
//!
//! Guarantees: no byte is handed out or taken before both certificates have been checked. A read or a write that cannot
//! go on ([`is_tick`]) loses nothing and takes nothing twice. Not here: frames, deadlines (`wire.rs`).

use std::fmt::Display;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use forebay_space::{Error, Kind, Result};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, CommonState, RootCertStore, ServerConfig};

use crate::authority::Identity;

/// Space for what is received. Also a handshake fits in.
const INCOMING_BYTES: usize = 256 << 10;
/// A record is not longer.
const RECORD_BYTES_MAX: usize = 18 << 10;
/// So much is encrypted before it is sent.
const OUTGOING_BYTES: usize = 128 << 10;

/// What proves that an agent is of its job, for both sides of a connection.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// By the files of an agent.
    ///
    /// # Errors
    /// [`Kind::Internal`]: they are no certificates and keys.
    pub fn new(identity: &Identity) -> Result<Tls> {
        let failed = |e: &dyn Display| {
            Error::new(Kind::Internal, format!("the certificates of the job cannot be used: {e}"))
        };
        let mut provider = ring::default_provider();
        // The fastest one first.
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        let provider: Arc<CryptoProvider> = Arc::new(provider);
        let certificate = |file| CertificateDer::from_pem_file(file).map_err(|e| failed(&e));
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&identity.authority)?).map_err(|e| failed(&e))?;
        let roots = Arc::new(roots);
        let chain = vec![certificate(&identity.certificate)?];
        let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(|e| failed(&e))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| failed(&e))?
            .with_client_cert_verifier(verifier.map_err(|e| failed(&e))?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|e| failed(&e))?;
        // Connections are not resumed.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| failed(&e))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|e| failed(&e))?;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that connects, to who has a certificate for that address.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`].
    pub fn client(&self, socket: TcpStream) -> io::Result<Secured<UnbufferedClientConnection>> {
        let name = ServerName::IpAddress(socket.peer_addr()?.ip().into());
        let connection = UnbufferedClientConnection::new(self.client.clone(), name);
        Ok(Secured::new(socket, connection.map_err(invalid)?))
    }

    /// The side that is connected to.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`].
    pub fn server(&self, socket: TcpStream) -> io::Result<Secured<UnbufferedServerConnection>> {
        let connection = UnbufferedServerConnection::new(self.server.clone());
        Ok(Secured::new(socket, connection.map_err(invalid)?))
    }
}

/// The socket has nothing, or takes nothing, for now; or a signal came.
pub fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// One side of a connection, as the library has it.
pub trait Side: DerefMut + Deref<Target = UnbufferedConnectionCommon<Self::Data>> {
    /// Its data.
    type Data;

    /// Looks at what was received.
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// A socket with TLS.
pub struct Secured<S> {
    socket: TcpStream,
    side: S,
    incoming: Box<[u8]>,
    /// What of it was received and is not decrypted yet.
    from: usize,
    to: usize,
    /// Encrypted, and how much of it was sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Decrypted, and how much of it was taken.
    plain: Vec<u8>,
    taken: usize,
}

/// What is to be done with a connection.
enum Next {
    /// Something was decrypted: so many bytes went to their place, and the rest is kept.
    Data(usize),
    /// The data are encrypted.
    Encrypted,
    /// Nothing more can be said of what was received.
    Idle,
    /// The other side has ended it.
    Closed,
    /// Again.
    Again,
}

impl<S: Side> Secured<S> {
    fn new(socket: TcpStream, side: S) -> Secured<S> {
        Secured {
            socket,
            side,
            incoming: vec![0; INCOMING_BYTES].into(),
            from: 0,
            to: 0,
            outgoing: Vec::with_capacity(OUTGOING_BYTES + RECORD_BYTES_MAX),
            sent: 0,
            plain: Vec::new(),
            taken: 0,
        }
    }

    fn common(&self) -> &CommonState {
        &self.side
    }

    /// One step towards both certificates; whether they have been checked.
    ///
    /// # Errors
    /// [`is_tick`]: to be called again; [`ErrorKind::InvalidData`]: the other side is not of the job.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        while self.common().is_handshaking() {
            match self.step(&mut [], &[])? {
                Next::Idle => {
                    self.flush()?;
                    self.receive()?;
                    return Ok(false);
                }
                Next::Closed => return Err(ErrorKind::UnexpectedEof.into()),
                Next::Data(_) | Next::Encrypted | Next::Again => {}
            }
        }
        // The other side may wait for what was said last.
        self.flush().map(|()| true)
    }

    /// One step: data that came go to `out`, as far as it has space; `data` are encrypted when that is possible.
    fn step(&mut self, out: &mut [u8], data: &[u8]) -> io::Result<Next> {
        let incoming = &mut self.incoming[self.from..self.to];
        let UnbufferedStatus { mut discard, state, .. } = self.side.process(incoming);
        let outgoing = &mut self.outgoing;
        let next = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut bytes = 0;
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(invalid)?;
                    discard += record.discard;
                    let direct = record.payload.len().min(out.len() - bytes);
                    out[bytes..bytes + direct].copy_from_slice(&record.payload[..direct]);
                    bytes += direct;
                    self.plain.extend_from_slice(&record.payload[direct..]);
                }
                Ok(Next::Data(bytes))
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(outgoing, |space| match data.encode(space) {
                    Ok(bytes) => Ok(Ok(bytes)),
                    Err(EncodeError::InsufficientSize(e)) => Ok(Err(e.required_size)),
                    Err(e) => Err(invalid(e)),
                })?;
                Ok(Next::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is sent before anything else is done.
                data.done();
                Ok(Next::Again)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) if !data.is_empty() => {
                encode(outgoing, |space| match traffic.encrypt(data, space) {
                    Ok(bytes) => Ok(Ok(bytes)),
                    Err(EncryptError::InsufficientSize(e)) => Ok(Err(e.required_size)),
                    Err(e) => Err(invalid(e)),
                })?;
                Ok(Next::Encrypted)
            }
            Ok(ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake) => Ok(Next::Idle),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Next::Closed),
            Ok(_) => return Err(io::Error::new(ErrorKind::InvalidData, "unexpected data of TLS")),
            Err(e) => Err(e),
        };
        self.from += discard;
        next.map_err(|e| {
            // Why it is refused is told if it can be.
            let _ = self.tell();
            invalid(e)
        })
    }

    /// Sends an alert that waits to be sent.
    fn tell(&mut self) -> io::Result<()> {
        let incoming = &mut self.incoming[self.from..self.to];
        while let Ok(ConnectionState::EncodeTlsData(mut data)) = self.side.process(incoming).state {
            encode(&mut self.outgoing, |space| match data.encode(space) {
                Ok(bytes) => Ok(Ok(bytes)),
                Err(EncodeError::InsufficientSize(e)) => Ok(Err(e.required_size)),
                Err(e) => Err(invalid(e)),
            })?;
        }
        self.flush()
    }

    /// Receives something.
    fn receive(&mut self) -> io::Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.incoming.len() - self.to < RECORD_BYTES_MAX {
            self.incoming.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        match self.socket.read(&mut self.incoming[self.to..])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.to += bytes;
                Ok(())
            }
        }
    }

    /// Some bytes; none: the other side has ended the connection.
    ///
    /// # Errors
    /// [`is_tick`]: to be called again; [`ErrorKind::UnexpectedEof`], [`ErrorKind::InvalidData`].
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut has_received = false;
        loop {
            if self.taken < self.plain.len() {
                let bytes = out.len().min(self.plain.len() - self.taken);
                out[..bytes].copy_from_slice(&self.plain[self.taken..self.taken + bytes]);
                self.taken += bytes;
                return Ok(bytes);
            }
            self.plain.clear();
            self.taken = 0;
            match self.step(out, &[])? {
                Next::Data(0) | Next::Encrypted | Next::Again => {}
                Next::Data(bytes) => return Ok(bytes),
                // A record comes little by little: who waits looks whether to go on.
                Next::Idle if has_received => return Err(ErrorKind::WouldBlock.into()),
                Next::Idle => {
                    self.flush()?;
                    self.receive()?;
                    has_received = true;
                }
                Next::Closed => return Ok(0),
            }
        }
    }

    /// Takes some bytes to send them.
    ///
    /// # Errors
    /// [`is_tick`]: none were taken; those of the socket.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let mut taken = 0;
        'slices: for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                if self.outgoing.len() >= OUTGOING_BYTES {
                    break 'slices;
                }
                let (now, later) = rest.split_at(rest.len().min(OUTGOING_BYTES - self.outgoing.len()));
                self.encrypt(now)?;
                taken += now.len();
                rest = later;
            }
        }
        match self.flush() {
            Err(e) if !is_tick(&e) => Err(e),
            // What was taken is sent later: it must not be taken again.
            _ => Ok(taken),
        }
    }

    /// Data that come meanwhile are kept.
    fn encrypt(&mut self, data: &[u8]) -> io::Result<()> {
        loop {
            match self.step(&mut [], data)? {
                Next::Encrypted => return Ok(()),
                Next::Idle | Next::Closed => return Err(ErrorKind::BrokenPipe.into()),
                Next::Data(_) | Next::Again => {}
            }
        }
    }

    /// Sends what is encrypted.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                bytes => self.sent += bytes,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Appends what `fill` writes; it says how many bytes it wrote, or how many it needs.
fn encode(
    out: &mut Vec<u8>,
    mut fill: impl FnMut(&mut [u8]) -> io::Result<std::result::Result<usize, usize>>,
) -> io::Result<()> {
    let before = out.len();
    let mut space = 0;
    loop {
        out.resize(before + space, 0);
        match fill(&mut out[before..])? {
            Ok(bytes) => {
                out.truncate(before + bytes);
                return Ok(());
            }
            Err(needed) => space = needed,
        }
    }
}
