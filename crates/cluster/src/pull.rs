//! The payload of one version, read from the owner's agent: a few requests ahead, in order, each part checked.
//!
//! Guarantees: what is handed out has the checksum that the owner's agent computed; a part that was damaged or did not
//! come in time is asked for again, [`TRIES`] times in all, and what cannot be had is an error, never other bytes.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_space::{Kind, Result};
use zenoh::bytes::ZBytes;

use crate::link::{Link, Pending};
use crate::message::{Ask, PART_BYTES_MAX};

/// Requests under way.
const AHEAD: usize = 4;
/// How often a part is asked for.
const TRIES: u32 = 3;

/// A version that is read.
pub struct Pull<'a> {
    link: &'a Link,
    node: &'a str,
    mirror: &'a str,
    version: u64,
    bytes: u64,
    /// What was asked for: first byte, bytes.
    asked: VecDeque<(u64, u64, Result<Pending>)>,
    /// First byte that was not asked for.
    next: u64,
    within: Duration,
}

impl<'a> Pull<'a> {
    /// Of a version with so many bytes of payload. Each part has to come `within` this time.
    pub fn new(
        link: &'a Link,
        (node, mirror): (&'a str, &'a str),
        version: u64,
        bytes: u64,
        within: Duration,
    ) -> Pull<'a> {
        Pull { link, node, mirror, version, bytes, asked: VecDeque::with_capacity(AHEAD), next: 0, within }
    }

    fn ask(&self, offset: u64, bytes: u64) -> Result<Pending> {
        let ask = Ask::Read { mirror: self.mirror.to_string(), version: self.version, offset, bytes };
        self.link.ask_bytes(self.node, ask, self.within)
    }

    fn ask_ahead(&mut self) {
        while self.asked.len() < AHEAD && self.next < self.bytes {
            let bytes = PART_BYTES_MAX.min(self.bytes - self.next);
            let pending = self.ask(self.next, bytes);
            self.asked.push_back((self.next, bytes, pending));
            self.next += bytes;
        }
    }

    /// The next part of the payload, which is not empty. There must be one.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`]: the other agent is gone; [`Kind::Damaged`] and [`Kind::TimedOut`] after some tries;
    /// [`Kind::VersionGone`].
    pub fn next_part(&mut self) -> Result<ZBytes> {
        self.ask_ahead();
        let (offset, bytes, mut pending) =
            self.asked.pop_front().expect("not more than all bytes is asked for");
        for tries in 1.. {
            let part = pending.and_then(|pending| pending.bytes(self.node, bytes, self.within));
            match part {
                Err(e)
                    if tries < TRIES
                        && matches!(e.kind(), Kind::Damaged | Kind::TimedOut | Kind::TooMany) =>
                {
                    say!("forebay-agent: version {}: asking again: {e}", self.version);
                    pending = self.ask(offset, bytes);
                }
                part => {
                    self.ask_ahead();
                    return part;
                }
            }
        }
        unreachable!("the last try returns")
    }
}
