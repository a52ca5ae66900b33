//! Bytes read from the agent of another node: a few requests ahead, in order, each part checked. They are the payload
//! of a version, or those of a measurement.
//!
//! Guarantees: what is handed out has the checksum that the owner's agent computed; a part that was damaged or did not
//! come in time is asked for again, [`TRIES`] times in all, and what cannot be had is an error, never other bytes.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use forebay_space::{Kind, Result};
use zenoh::bytes::ZBytes;

use crate::link::{Link, Pending};
use crate::message::{Ask, PART_BYTES_MAX};

/// Requests under way.
const AHEAD: usize = 4;
/// How often a part is asked for.
const TRIES: u32 = 3;

/// What is read.
#[derive(Clone, Copy)]
pub enum What<'a> {
    /// A version, of a mirror.
    Version(&'a str, u64),
    /// Bytes without a meaning, which the other agent has at hand.
    Probe,
}

impl What<'_> {
    fn ask(self, offset: u64, bytes: u64) -> Ask {
        match self {
            What::Version(mirror, version) => {
                Ask::Read { mirror: mirror.to_string(), version, offset, bytes }
            }
            What::Probe => Ask::Probe { bytes },
        }
    }
}

impl Display for What<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            What::Version(_, version) => write!(f, "version {version}"),
            What::Probe => f.write_str("measurement"),
        }
    }
}

/// Bytes that are read.
pub struct Pull<'a> {
    link: &'a Link,
    node: &'a str,
    what: What<'a>,
    bytes: u64,
    /// What was asked for: first byte, bytes.
    asked: VecDeque<(u64, u64, Result<Pending>)>,
    /// First byte that was not asked for.
    next: u64,
    within: Duration,
}

impl<'a> Pull<'a> {
    /// So many bytes of `what` from `node`. Each part has to come `within` this time.
    pub fn new(link: &'a Link, node: &'a str, what: What<'a>, bytes: u64, within: Duration) -> Pull<'a> {
        Pull { link, node, what, bytes, asked: VecDeque::with_capacity(AHEAD), next: 0, within }
    }

    fn ask(&self, offset: u64, bytes: u64) -> Result<Pending> {
        self.link.ask_bytes(self.node, self.what.ask(offset, bytes), self.within)
    }

    fn ask_ahead(&mut self) {
        while self.asked.len() < AHEAD && self.next < self.bytes {
            let bytes = PART_BYTES_MAX.min(self.bytes - self.next);
            let pending = self.ask(self.next, bytes);
            self.asked.push_back((self.next, bytes, pending));
            self.next += bytes;
        }
    }

    /// Waits for what was asked for, and drops it.
    pub fn drain(&mut self) {
        for (_, bytes, pending) in self.asked.drain(..) {
            let _ = pending.and_then(|pending| pending.bytes(self.node, bytes, self.within));
        }
    }

    /// The next part, which is not empty. There must be one.
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
                    say!("forebay-agent: {}: asking again: {e}", self.what);
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
