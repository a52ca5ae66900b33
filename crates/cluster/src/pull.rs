//! Versions read from the agent that has them: requests, answers, and bytes into the memory that they are for.
//!
//! Guarantees: what is handed out has the checksum that the owner's agent computed; bytes that were damaged or did not
//! come in time are asked for again; what cannot be had [`TRIES`] times in a row is an error, never other bytes. A wait
//! ends when the other agent is lost, or when it is not wanted any more.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};

use crate::link::{gone, Link};
use crate::message::{bytes_of, malformed, read_answer, Answer, Ask, ANSWER_BYTES_MAX};
use crate::owner::Reply;
use crate::wire::{until, Frame, Part, Wire};

/// How often bytes are asked for that do not come.
const TRIES: u32 = 3;
/// What came after so many bytes is another failure, and not the same one again.
const PROGRESS_BYTES: u64 = 64 << 20;
/// That an agent is lost is known so much later than that its connection has ended.
const KNOWN_LATER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// An agent that is asked for versions: that of another node, over a connection of its own, or this one.
pub struct Source {
    link: Arc<Link>,
    node: String,
    /// How often the node's agent had been lost when this began.
    losses: u64,
    /// None: not connected.
    wire: Option<Wire>,
    /// Number of the last request, and where the next part of its payload begins.
    request: u32,
    expected: u64,
    /// Of this agent.
    own: Option<Reply>,
    /// Bytes of a part, and how many of them were taken.
    part: (Vec<u8>, usize),
    is_over: Arc<AtomicBool>,
}

impl Source {
    /// The agent of `node`, which had been lost so many times. Waits end when `is_over` is set.
    pub fn new(link: &Arc<Link>, node: &str, losses: u64, is_over: &Arc<AtomicBool>) -> Source {
        let (link, node, is_over) = (link.clone(), node.to_string(), is_over.clone());
        let (wire, own, part) = (None, None, (Vec::new(), 0));
        Source { link, node, losses, wire, request: 0, expected: 0, own, part, is_over }
    }

    /// Whether the agent was lost meanwhile.
    pub fn is_lost(&self) -> bool {
        self.link.peers.losses(&self.node) != self.losses
    }

    fn check(&self) -> Result<()> {
        match () {
            () if self.is_over.load(Relaxed) => Err(Error::new(Kind::TimedOut, "it is not wanted any more")),
            () if self.is_lost() => Err(gone(&self.node)),
            () => Ok(()),
        }
    }

    /// Does something with the connection; where it fails the connection is not used any further.
    fn with_wire<T>(
        &mut self,
        within: Duration,
        act: impl FnOnce(&mut Wire, &dyn Fn() -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => {
                return Err(Error::new(Kind::PeerMissing, format!("not connected to node {}", self.node)))
            }
        };
        let peer = format!("node {}", self.node);
        let deadline = until(Instant::now() + within, &peer);
        let done = act(&mut wire, &|| self.check().and_then(|()| deadline()))?;
        self.wire = Some(wire);
        Ok(done)
    }

    /// Sends a request; connects where it has to. This agent answers before it returns.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`], [`Kind::TimedOut`].
    pub fn send(&mut self, ask: Ask, within: Duration) -> Result<()> {
        self.part = (Vec::new(), 0);
        self.check()?;
        if self.link.is_own(&self.node) {
            // What is held for the reply before must not be kept while this one waits.
            self.own = None;
            self.own = Some(self.link.reply_here(ask));
            return Ok(());
        }
        if self.wire.is_none() {
            let peer = format!("node {}", self.node);
            let deadline = until(Instant::now() + within, &peer);
            let wire = self.link.connect(&self.node, &|| self.check().and_then(|()| deadline()))?;
            self.wire = Some(wire);
        }
        self.request = self.request.wrapping_add(1);
        self.expected = if let Ask::Read { offset, .. } = ask { offset } else { 0 };
        let (number, request) = (self.request, bytes_of(&self.link.request(ask))?);
        self.with_wire(within, |wire, check| wire.send_message(number, &request, check))
    }

    /// The error for a frame that is not the one that was waited for. The connection is not used any further.
    fn other_frame(&mut self) -> Error {
        self.wire = None;
        Error::new(Kind::Damaged, format!("node {} sent what was not asked for", self.node))
    }

    /// The answer in words.
    ///
    /// # Errors
    /// What the other agent failed with; those of [`Source::send`].
    pub fn answer(&mut self, within: Duration) -> Result<Answer> {
        if self.link.is_own(&self.node) {
            let answer = self.own.as_mut().and_then(|reply| reply.answer.take());
            return answer.unwrap_or_else(|| Err(malformed("bytes in place of a message")));
        }
        let (number, answer) = self.with_wire(within, |wire, check| wire.message(ANSWER_BYTES_MAX, check))?;
        match number == self.request {
            true => read_answer(&self.node, &answer),
            false => Err(self.other_frame()),
        }
    }

    /// Some of the bytes that follow, at least one; how many.
    ///
    /// # Errors
    /// [`Kind::Damaged`]; what the other agent failed with; those of [`Source::send`].
    pub fn take(&mut self, out: &mut [u8], within: Duration) -> Result<usize> {
        if self.part.1 == self.part.0.len() {
            if let Some(bytes) = self.take_part(out, within)? {
                return Ok(bytes);
            }
        }
        let (part, taken) = &mut self.part;
        let bytes = out.len().min(part.len() - *taken);
        out[..bytes].copy_from_slice(&part[*taken..*taken + bytes]);
        *taken += bytes;
        Ok(bytes)
    }

    /// The next part: its bytes, if `out` has space for all of it, else it is kept.
    fn take_part(&mut self, out: &mut [u8], within: Duration) -> Result<Option<usize>> {
        // Also while one comes after the other.
        self.check()?;
        let (mut kept, _) = std::mem::take(&mut self.part);
        let mut place = |bytes: usize| -> Option<usize> {
            if bytes <= out.len() {
                return Some(bytes);
            }
            kept.resize(bytes, 0);
            None
        };
        if self.link.is_own(&self.node) {
            let reply = self.own.as_mut();
            if let Some(answer) = reply.as_ref().and_then(|reply| reply.answer.as_ref()) {
                return Err(match answer {
                    Ok(answer) => malformed(&format!("bytes were asked for, and not {answer:?}")),
                    Err(_) => self.own.take().and_then(|reply| reply.answer?.err()).expect("it is one"),
                });
            }
            let payload = reply.and_then(|reply| reply.payload.as_mut());
            let part = payload.and_then(|payload| payload.next_part());
            let part = part.ok_or_else(|| malformed("there are less bytes than were asked for"))?;
            let direct = place(part.len());
            if direct.is_some() { &mut out[..part.len()] } else { &mut kept[..] }.copy_from_slice(part);
            self.part = (kept, 0);
            if direct.is_some() {
                self.part.0.clear();
            }
            return Ok(direct);
        }
        let frame = self.with_wire(within, |wire, check| wire.frame(ANSWER_BYTES_MAX, check))?;
        let Frame { request, bytes, part } = frame;
        if request != self.request || part.is_some_and(|part| part.offset != self.expected) {
            return Err(self.other_frame());
        }
        let Some(Part { crc, .. }) = part else {
            let answer = self.with_wire(within, |wire, check| wire.rest_of_message(bytes, check))?;
            self.wire = None;
            let answer = read_answer(&self.node, &answer)?;
            return Err(
                malformed(&format!("bytes were asked for, and not {answer:?}")).with("node", &self.node)
            );
        };
        let direct = place(bytes);
        let to = if direct.is_some() { &mut out[..bytes] } else { &mut kept[..] };
        self.with_wire(within, |wire, check| wire.part(to, crc, check))?;
        self.expected += bytes as u64;
        if direct.is_some() {
            kept.clear();
        }
        self.part = (kept, 0);
        Ok(direct)
    }
}

/// The payload of a version that is read.
pub struct Pull<'a> {
    source: &'a mut Source,
    mirror: &'a str,
    version: u64,
    bytes: u64,
    /// So many were handed out.
    at: u64,
    /// They are asked for.
    is_asked: bool,
    /// They came with the answer.
    inline: Option<&'a [u8]>,
    within: Duration,
}

impl Display for Pull<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of node {}", self.version, self.source.node)
    }
}

impl<'a> Pull<'a> {
    /// So many bytes of a version, which came with the answer or are to be asked for. Each part has to come `within`
    /// this time.
    pub fn new(
        source: &'a mut Source,
        (mirror, version): (&'a str, u64),
        bytes: u64,
        inline: Option<&'a [u8]>,
        within: Duration,
    ) -> Pull<'a> {
        Pull { source, mirror, version, bytes, at: 0, is_asked: false, inline, within }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: the other agent is gone; [`Kind::Damaged`] and [`Kind::TimedOut`] after some tries;
    /// [`Kind::VersionGone`].
    pub fn fill(&mut self, mut out: &mut [u8]) -> Result<()> {
        if let Some(inline) = self.inline {
            let bytes = inline.get(self.at as usize..self.at as usize + out.len());
            out.copy_from_slice(bytes.ok_or_else(|| malformed("there are less bytes than a version has"))?);
            self.at += out.len() as u64;
            return Ok(());
        }
        let (mut tries, mut failed_at) = (1, self.at);
        while !out.is_empty() {
            match self.take(out) {
                Ok(bytes) => {
                    self.at += bytes as u64;
                    out = &mut out[bytes..];
                }
                Err(e) => {
                    let is_another = self.at - failed_at >= PROGRESS_BYTES;
                    tries = if is_another { 1 } else { tries };
                    if tries == TRIES || !self.may_try_again(&e) {
                        return Err(e);
                    }
                    say!("forebay-agent: {self}: asking again: {e}");
                    self.is_asked = false;
                    (tries, failed_at) = (tries + 1, self.at);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, out: &mut [u8]) -> Result<usize> {
        if !self.is_asked {
            let (mirror, version) = (self.mirror.to_string(), self.version);
            let ask = Ask::Read { mirror, version, offset: self.at, bytes: self.bytes - self.at };
            self.source.send(ask, self.within)?;
            self.is_asked = true;
        }
        self.source.take(out, self.within)
    }

    /// Whether another try may be better; a moment later where the connection has ended.
    fn may_try_again(&self, error: &Error) -> bool {
        let is_over = || self.source.is_over.load(Relaxed) || self.source.is_lost();
        match error.kind() {
            Kind::Damaged | Kind::TimedOut | Kind::TooMany => {}
            Kind::PeerMissing => {
                let known = Instant::now() + KNOWN_LATER;
                while Instant::now() < known && !is_over() {
                    std::thread::sleep(POLL);
                }
            }
            _ => return false,
        }
        !is_over()
    }
}
