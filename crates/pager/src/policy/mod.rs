//! Policies: which frame goes when space is needed. Pure: they see numbers of frames and hashes of tiles, no memory.
//!
//! A pin does not call its policy: it only makes the frame warmer ([`Heat`]), and the policy looks at that when it has
//! to choose. So a hit costs no lock.

mod clock;
mod list;
mod none;
mod s3fifo;

use std::str::FromStr;

use forebay_tier::{Error, Kind, Result};

/// How often a frame was pinned since it came, capped.
pub(crate) trait Heat {
    /// Of this frame.
    fn get(&self, frame: u32) -> u8;
    /// Sets it.
    fn set(&self, frame: u32, heat: u8);
}

/// A pin raises the heat up to this.
pub(crate) const HEAT_MAX: u8 = 3;

/// What a policy has to do. Frames are numbers below the count that it was made for.
pub(crate) trait Evict: Send {
    /// `frame` now holds the tile with this hash.
    fn admit(&mut self, frame: u32, tile: u64);
    /// The frame that goes next; the policy forgets it. None when it holds none.
    fn victim(&mut self, heat: &dyn Heat) -> Option<u32>;
    /// The frame cannot go: its tile is pinned. It comes last again.
    fn keep(&mut self, frame: u32, tile: u64);
    /// Forgets a frame, if it has it.
    fn remove(&mut self, frame: u32);
    /// How many frames it holds.
    fn len(&self) -> usize;
    /// Bytes that it really takes.
    #[cfg(test)]
    fn bytes(&self) -> usize;
}

/// Which policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// S3-FIFO: what is touched once leaves soon, what comes back stays. Good for most things, scans included.
    #[default]
    S3Fifo,
    /// Clock: what was touched since the hand passed gets another round.
    Clock,
    /// None: first come, first gone. For data that streams through once.
    None,
}

impl Policy {
    /// `s3fifo`, `clock` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            Policy::S3Fifo => "s3fifo",
            Policy::Clock => "clock",
            Policy::None => "none",
        }
    }

    pub(crate) fn build(self, frames: usize) -> Box<dyn Evict> {
        match self {
            Policy::S3Fifo => Box::new(s3fifo::S3Fifo::new(frames)),
            Policy::Clock => Box::new(clock::Clock::new(frames)),
            Policy::None => Box::new(none::None::new(frames)),
        }
    }

    /// Most bytes that any of them needs for each frame: links, a name, and two to four places of the ghost.
    pub(crate) const FRAME_BYTES_MAX: u64 = (list::FRAME_BYTES + 8 + 4 * s3fifo::GHOST_BYTES) as u64;

    /// Bytes that it takes for so many frames.
    pub(crate) fn bytes(self, frames: usize) -> u64 {
        let bytes = match self {
            Policy::S3Fifo => s3fifo::S3Fifo::bytes_of(frames),
            Policy::Clock | Policy::None => frames * list::FRAME_BYTES,
        };
        bytes as u64
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        let all = [Policy::S3Fifo, Policy::Clock, Policy::None];
        all.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{text}` is not a policy")).hint("one of: s3fifo, clock, none")
        })
    }
}

#[cfg(test)]
mod tests;
