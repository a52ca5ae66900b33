//! Moving a closed segment to another place: copy, persist, header, persist.
//!
//! Records hold no offsets, so the copy is byte for byte; only the header differs, and it is written last, after
//! the records are persistent as the horizon says. From then on recovery finds two equal segments with one
//! sequence number and takes either. The caller publishes the new place, waits for readers of the old one,
//! and then wipes the old header ([`crate::reclaim::retire`]) before its space is used again.
//! Not here: which segment moves where, and who still reads it.

use std::ops::Range;

use forebay_tier::{watched, Device, Error, Horizon, Kind, Result};

use crate::format::{SegmentDf, HEADER_BYTES};
use crate::recover::segment_in;
use crate::scan::SegmentScan;

/// Bytes of the segment that hold something: its header and records, up to a whole page.
pub fn used_bytes(device: &dyn Device, segment: &SegmentDf) -> u64 {
    let mut scan = SegmentScan::new(device, segment);
    // A closed segment may hold a damaged record; what lies behind it moves as well.
    loop {
        scan.by_ref().for_each(drop);
        if scan.resync().is_none() {
            break;
        }
    }
    scan.at.next_multiple_of(HEADER_BYTES).min(segment.length_bytes)
}

/// Copies the segment `from`, which no process writes any more, to the free and prepared range `to`, which has at
/// least its [`used_bytes`]. Returns its new header. The old place is as before. Blocks for the copy and, unless the
/// horizon is none, two flushes.
///
/// # Errors
/// [`Kind::Damaged`] when there is no such segment; those of the device. Whatever was written to `to` then has no
/// valid header.
pub fn copy_segment(
    device: &dyn Device,
    uuid: &[u8; 16],
    from: u64,
    to: Range<u64>,
    horizon: Horizon,
) -> Result<SegmentDf> {
    let head = device.bytes(from..from + HEADER_BYTES);
    let Some(old) = watched(|| Ok(segment_in(device, head, uuid, from)))? else {
        return Err(Error::new(Kind::Damaged, "a segment that was to be moved has no valid header")
            .with("pool_offset", from));
    };
    let available = to.end - to.start;
    let used = old.length_bytes.min(available);
    debug_assert!(used >= used_bytes(device, &old), "the new place holds what the old one does");
    watched(|| device.write(to.start + HEADER_BYTES, device.bytes(from + HEADER_BYTES..from + used)))?;
    if horizon != Horizon::None {
        device.persist(to.start + HEADER_BYTES..to.start + used)?;
    }
    let new = SegmentDf { offset_bytes: to.start, length_bytes: used, ..old }.sealed();
    device.write(to.start, bytemuck::bytes_of(&new))?;
    if horizon != Horizon::None {
        device.persist(to.start..to.start + HEADER_BYTES)?;
    }
    Ok(new)
}
