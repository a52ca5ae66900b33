//! Giving segments back, oldest first, once no reader needs their versions.
//!
//! A segment's header is wiped, and the wipe made persistent as the horizon says, *before* its space may be used
//! again: recovery then never sees a segment that overlaps a newer one. Which versions nobody needs is the
//! space's decision.

use std::ops::Range;

use forebay_tier::device::Device;
use forebay_tier::{Horizon, Result};

use crate::append::Lane;

/// Wipes the header of the segment at `offset`; afterwards its space may be used again.
pub fn retire(device: &dyn Device, offset: u64, horizon: Horizon) -> Result<()> {
    device.store_word(offset, 0)?;
    if horizon != Horizon::None {
        device.persist(offset..offset + 64)?;
    }
    Ok(())
}

impl Lane {
    /// Retires every segment whose versions are all below `floor`, except the one being written, and returns
    /// their ranges. Errors: those of the device; segments retired before the error are gone from the lane.
    pub fn reclaim(&mut self, floor: u64) -> Result<Vec<Range<u64>>> {
        let mut free = Vec::new();
        while self.segments.len() > 1 && self.segments[0].last_version < floor {
            retire(&**self.device(), self.segments[0].range.start, self.horizon())?;
            free.push(self.segments.pop_front().expect("longer than one").range);
        }
        Ok(free)
    }
}
