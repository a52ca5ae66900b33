//! Releasing segments, oldest first, once no reader needs their versions.
//!
//! A segment's header is wiped, and the wipe made persistent as the horizon says, *before* its space may be used
//! again: recovery then never sees a segment that overlaps a newer one. Which versions are no longer needed is the
//! space's decision.

use std::collections::VecDeque;
use std::mem::size_of;
use std::ops::Range;

use forebay_tier::{watch, Device, Horizon, Result};

use crate::append::TakenBack;
use crate::format::{RecordHeader, RecordKind, SegmentDf, SEGMENT_CRC_WORD};
use crate::recover::segment_in;
use crate::scan::SegmentScan;

/// A segment of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it lies.
    pub range: Range<u64>,
    /// Oldest version that may have records in it.
    pub first_version: u64,
    /// Newest version that has records in it.
    pub last_version: u64,
    /// It is being copied to another place: it stays until that has ended.
    moving: bool,
    /// While it is the last one: a record of a later version than the segments before it hold.
    told: Option<Telling>,
    /// Segments before it were retired because of what it tells.
    is_needed: bool,
}

/// A whole record that tells how far its lane has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Telling {
    version: u64,
    /// Offset in the pool behind its header.
    end: u64,
}

/// The segments of one lane, oldest first; the last one is being written.
#[derive(Debug, Default)]
pub struct Ledger {
    segments: VecDeque<Segment>,
}

impl Ledger {
    /// A new last segment.
    pub fn push(&mut self, range: Range<u64>, version: u64) {
        self.segments.push_back(Segment {
            range,
            first_version: version,
            last_version: version,
            moving: false,
            told: None,
            is_needed: false,
        });
    }

    /// The last segment was never opened and is taken back.
    pub fn pop_last(&mut self) -> Option<Segment> {
        self.segments.pop_back()
    }

    /// Retires the last segment and takes it away, if all its records are of `version`, which its lane has given up. It
    /// stays where it has older ones, where recovery learns from it how far the lane has got, and where the lane cannot
    /// go on in the one `before` (None: it is the only one): that was or is being moved, or has gone.
    pub fn take_back(
        &mut self,
        device: &dyn Device,
        horizon: Horizon,
        version: u64,
        before: Option<&Range<u64>>,
    ) -> TakenBack {
        let can_go_on = match (before, self.last_two()) {
            // A place is taken again with another length.
            (Some(range), Some((segment, _))) => segment.range == *range && !segment.moving,
            (None, None) => true,
            _ => false,
        };
        let may_go = |s: &&Segment| can_go_on && s.first_version == version && !s.is_needed;
        let Some(last) = self.segments.back().filter(may_go) else { return TakenBack::Stays };
        let range = last.range.clone();
        // What failed may have wiped it all the same.
        if retire(device, range.start, horizon).is_err() {
            return TakenBack::Unopened(range);
        }
        self.segments.pop_back();
        TakenBack::Retired(range)
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Of the segments that are not written any more and hold only versions below `committed`, the one with the least
    /// `key` (None: not this one). It stays where it is until [`Ledger::end_move`]. To look and to begin is one step:
    /// between two, the segment could be released, and its place be taken by the one being written.
    pub fn begin_move<K: Ord>(
        &mut self,
        committed: u64,
        key: impl Fn(&Segment) -> Option<K>,
    ) -> Option<Segment> {
        let closed = self.segments.len().saturating_sub(1);
        let movable = self.segments.iter_mut().take(closed);
        let movable = movable.filter(|s| s.last_version < committed && !s.moving);
        let (_, chosen) = movable.filter_map(|s| key(s).map(|k| (k, s))).min_by(|a, b| a.0.cmp(&b.0))?;
        chosen.moving = true;
        Some(chosen.clone())
    }

    /// The segment now lies at `to`, or stayed where it was.
    pub fn end_move(&mut self, from: u64, to: Option<Range<u64>>) {
        let segment = self.find(from);
        segment.moving = false;
        if let Some(to) = to {
            segment.range = to;
        }
    }

    fn find(&mut self, from: u64) -> &mut Segment {
        self.segments.iter_mut().find(|s| s.range.start == from).expect("a segment of this lane")
    }

    /// The last segment now also holds records of `version`.
    pub fn note_version(&mut self, version: u64) {
        let last = self.segments.back_mut().expect("a record lies in a segment");
        assert!(last.last_version <= version, "versions of a lane rise");
        last.last_version = version;
    }

    /// Whether [`Ledger::note_begun`] could tell more once another record is written.
    pub fn is_untold(&self) -> bool {
        let Some((before, last)) = self.last_two() else { return false };
        last.told.is_none_or(|told| told.version <= before.last_version)
    }

    /// Finds a record in the last segment that tells how far the lane has got, for [`Ledger::reclaim_aside`]. Called
    /// by the lane's writer, between two records.
    pub fn note_begun(&mut self, device: &dyn Device) {
        let found = match self.last_two() {
            Some((before, last)) if self.is_untold() => {
                telling(device, last.range.start, before.last_version)
            }
            _ => return,
        };
        self.segments.back_mut().expect("there are two").told = found;
    }

    fn last_two(&self) -> Option<(&Segment, &Segment)> {
        let before = self.segments.len().checked_sub(2)?;
        Some((&self.segments[before], &self.segments[before + 1]))
    }

    /// Bytes of the segments that lie below `end`.
    pub fn bytes_below(&self, end: u64) -> u64 {
        let below = self.segments.iter().filter(|s| s.range.start < end);
        below.map(|s| s.range.end - s.range.start).sum()
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes_below(u64::MAX)
    }

    /// Where the last segment begins, which stays until another one is begun.
    pub fn last_offset(&self) -> Option<u64> {
        self.segments.back().map(|s| s.range.start)
    }

    /// Whether a segment other than the last holds only versions below `floor`.
    pub fn has_reclaimable(&self, floor: u64) -> bool {
        self.segments.len() > 1 && self.segments[0].last_version < floor && !self.segments[0].moving
    }

    /// Retires every segment whose versions are all below `floor`, except the last, and hands their ranges to
    /// `free` one by one. `floor` is at most one more than the last version that the lane committed. A segment stays
    /// while nothing behind it tells how far the lane has got. Errors: those of the device and of `free`; what was
    /// retired before stays retired.
    pub fn reclaim(
        &mut self,
        device: &dyn Device,
        horizon: Horizon,
        floor: u64,
        free: impl FnMut(Range<u64>) -> Result<()>,
    ) -> Result<()> {
        self.reclaim_looking(true, device, horizon, floor, free)
    }

    /// As [`Ledger::reclaim`], for another thread than the lane's writer, which may be writing: looks at nothing of the
    /// last segment but what [`Ledger::note_begun`] found. Errors: as there.
    pub fn reclaim_aside(
        &mut self,
        device: &dyn Device,
        horizon: Horizon,
        floor: u64,
        free: impl FnMut(Range<u64>) -> Result<()>,
    ) -> Result<()> {
        self.reclaim_looking(false, device, horizon, floor, free)
    }

    fn reclaim_looking(
        &mut self,
        at_last: bool,
        device: &dyn Device,
        horizon: Horizon,
        floor: u64,
        mut free: impl FnMut(Range<u64>) -> Result<()>,
    ) -> Result<()> {
        while self.has_reclaimable(floor) && self.progress_is_kept(at_last, device, horizon, floor)? {
            retire(device, self.segments[0].range.start, horizon)?;
            free(self.segments.pop_front().expect("longer than one").range)?;
        }
        Ok(())
    }

    /// Whether recovery learns from the segments behind the first one what the lane has committed, although the
    /// newest commit may lie in the first, or belong to pieces there, without which a block device's recovery leaves
    /// it out. A record of a later version tells as much, once it is persistent.
    fn progress_is_kept(
        &mut self,
        look_at_last: bool,
        device: &dyn Device,
        horizon: Horizon,
        floor: u64,
    ) -> Result<bool> {
        let gone = &self.segments[0];
        if device.byte_addressable() && self.segments[1].first_version < floor {
            // That version's commit lies behind the first segment.
            return Ok(true);
        }
        let mut later =
            (1..self.segments.len()).filter(|i| self.segments[*i].last_version > gone.last_version);
        let Some(index) = later.next() else { return Ok(false) };
        let (next, is_last) = (&self.segments[index], index + 1 == self.segments.len());
        let told = match is_last && !look_at_last {
            true => next.told.filter(|told| told.version > gone.last_version),
            false => telling(device, next.range.start, gone.last_version),
        };
        let Some(told) = told else { return Ok(false) };
        if horizon != Horizon::None && told.version >= floor {
            device.persist(next.range.start..told.end)?;
        }
        self.segments[index].is_needed = true;
        Ok(true)
    }
}

/// The segment that begins at `start`, of whichever pool it says that it is.
fn segment_at(device: &dyn Device, start: u64) -> Option<SegmentDf> {
    let head = device.bytes(start..start + size_of::<SegmentDf>() as u64);
    let (head, lost): (SegmentDf, _) = watch(|| bytemuck::pod_read_unaligned(head));
    segment_in(device, bytemuck::bytes_of(&head), &head.uuid, start).filter(|_| lost.is_none())
}

/// The first record of a version above `version` in the segment at `start`.
fn telling(device: &dyn Device, start: u64, version: u64) -> Option<Telling> {
    let df = segment_at(device, start)?;
    // A void may become a piece at any time, and is neither while its header is being written.
    let tells =
        |header: &RecordHeader<'_>| header.kind() != RecordKind::Void && header.place().version > version;
    let (record, header) = SegmentScan::new(device, &df).find(|(_, header)| tells(header))?;
    Some(Telling { version: header.place().version, end: record.offset + header.payload_offset() })
}

/// Whether the segment at `offset` holds nothing below `version`, nor says that its lane ended.
pub fn holds_none_below(device: &dyn Device, uuid: &[u8; 16], offset: u64, version: u64) -> bool {
    let Some(df) = segment_at(device, offset).filter(|df| df.uuid == *uuid) else { return false };
    let mut scan = SegmentScan::new(device, &df);
    let fits =
        |header: &RecordHeader<'_>| header.place().version >= version && header.kind() != RecordKind::End;
    // Behind a damaged place something else may stand.
    scan.by_ref().all(|(_, header)| fits(&header)) && scan.resync().is_none() && !scan.met_lost_page()
}

/// Wipes the header of the segment at `offset`; afterwards its space may be used again.
pub fn retire(device: &dyn Device, offset: u64, horizon: Horizon) -> Result<()> {
    device.store_word(offset, 0)?;
    // The checksum too: the next header here begins with the same words, and one that reaches the medium only in
    // part must not bring this one back.
    device.store_word(offset + SEGMENT_CRC_WORD, 0)?;
    if horizon != Horizon::None {
        device.persist(offset..offset + size_of::<SegmentDf>() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three segments, of versions 0..=1, 1..=2, and 3.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for (place, first, last) in [(0, 0, 1), (10, 1, 2), (20, 3, 3)] {
            ledger.push(place..place + 10, first);
            ledger.note_version(last);
        }
        ledger
    }

    fn starts(ledger: &Ledger) -> Vec<u64> {
        ledger.segments().map(|s| s.range.start).collect()
    }

    #[test]
    fn only_what_is_closed_and_committed_moves_and_nothing_twice_at_once() {
        let mut ledger = ledger();
        let newest = |s: &Segment| Some(std::cmp::Reverse(s.last_version));
        assert_eq!(ledger.begin_move(1, newest), None, "version 1 is not committed");
        assert_eq!(ledger.begin_move(4, newest).map(|s| s.range), Some(10..20), "the last is being written");
        assert_eq!(ledger.begin_move(4, |s| (s.range.start == 10).then_some(0)), None, "it moves already");
        assert_eq!(ledger.begin_move(4, newest).map(|s| s.range), Some(0..10));
        assert!(!ledger.has_reclaimable(u64::MAX), "what is being copied stays");
        ledger.end_move(0, Some(70..75));
        ledger.end_move(10, None);
        assert_eq!(starts(&ledger), [70, 10, 20], "in the order of versions, wherever they lie");
        assert!(ledger.has_reclaimable(2) && !ledger.has_reclaimable(1));
        assert_eq!((ledger.bytes_below(70), ledger.bytes_below(u64::MAX)), (20, 25));
        assert_eq!(ledger.pop_last().map(|s| s.first_version), Some(3));
    }
}
