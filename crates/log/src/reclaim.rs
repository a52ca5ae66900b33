//! Giving segments back, oldest first, once no reader needs their versions.
//!
//! A segment's header is wiped, and the wipe made persistent as the horizon says, *before* its space may be used
//! again: recovery then never sees a segment that overlaps a newer one. Which versions nobody needs is the
//! space's decision.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_tier::{Device, Horizon, Result};

/// A segment of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it lies.
    pub range: Range<u64>,
    /// Newest version that has records in it.
    pub last_version: u64,
}

/// The segments of one lane, oldest first; the last one is being written.
#[derive(Debug, Default)]
pub struct Ledger {
    segments: VecDeque<Segment>,
}

impl Ledger {
    /// A new last segment.
    pub fn push(&mut self, range: Range<u64>, version: u64) {
        self.segments.push_back(Segment { range, last_version: version });
    }

    /// The last segment now also holds records of `version`.
    pub fn note_version(&mut self, version: u64) {
        let last = self.segments.back_mut().expect("a record lies in a segment");
        assert!(last.last_version <= version, "versions of a lane rise");
        last.last_version = version;
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.range.end - s.range.start).sum()
    }

    /// Whether a segment other than the last holds only versions below `floor`.
    pub fn has_reclaimable(&self, floor: u64) -> bool {
        self.segments.len() > 1 && self.segments[0].last_version < floor
    }

    /// Retires every segment whose versions are all below `floor`, except the last, and hands their ranges to
    /// `free` one by one. Errors: those of the device and of `free`; what was retired before stays retired.
    pub fn reclaim(
        &mut self,
        device: &dyn Device,
        horizon: Horizon,
        floor: u64,
        mut free: impl FnMut(Range<u64>) -> Result<()>,
    ) -> Result<()> {
        while self.has_reclaimable(floor) {
            retire(device, self.segments[0].range.start, horizon)?;
            free(self.segments.pop_front().expect("longer than one").range)?;
        }
        Ok(())
    }
}

/// Wipes the header of the segment at `offset`; afterwards its space may be used again.
pub fn retire(device: &dyn Device, offset: u64, horizon: Horizon) -> Result<()> {
    device.store_word(offset, 0)?;
    if horizon != Horizon::None {
        device.persist(offset..offset + 64)?;
    }
    Ok(())
}
