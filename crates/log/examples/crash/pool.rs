//! The space's part in miniature: which granules are taken, whose segments they are, when they are released.
//!
//! First fit from the start of the pool, own segments first, then those of earlier incarnations: as
//! `forebay-space` does it, without its waiting, quotas and shared memory. Where there is a lower pool, it lies behind
//! the first one, which is where lanes are written; whole segments move between the two.

use std::ops::Range;
use std::sync::Arc;

use forebay_log::format::{SegmentDf, Superblock, HEADER_BYTES};
use forebay_log::reclaim::{holds_none_below, retire, Segment};
use forebay_log::relocate::{copy_segment, used_bytes};
use forebay_log::{Error, Kind, LaneId, Ledger, Recovered, Result, SegmentSource, TakenBack};
use forebay_tier::Device;

/// A segment of an incarnation that is over.
struct Orphan {
    range: Range<u64>,
    /// Its lane, and its number there.
    place: (LaneId, u64),
    last_version: u64,
}

/// The segments of one pool, or of two.
pub struct Pool {
    device: Arc<dyn Device>,
    superblock: Superblock,
    /// Granules of the first pool.
    first: usize,
    /// By granule: taken.
    taken: Vec<bool>,
    ledgers: Vec<Ledger>,
    orphans: Vec<Orphan>,
    /// Old places of segments that were moved, which a reader may still use.
    left: Vec<Range<u64>>,
    /// First version of the incarnation that writes now.
    base: u64,
    /// Versions below are released.
    pub floor: u64,
    /// Segments that are still given out before one is refused; None: all.
    pub refuses_in: Option<u64>,
}

impl Pool {
    /// As recovery found it, for `ranks` lanes of a new incarnation. The first pool has `first` granules.
    pub fn new(
        device: Arc<dyn Device>,
        superblock: Superblock,
        first: usize,
        found: &Recovered,
        ranks: usize,
    ) -> Pool {
        let granules = (superblock.capacity_bytes / superblock.granule_bytes) as usize;
        let mut pool = Pool {
            device,
            superblock,
            first,
            taken: vec![false; granules],
            ledgers: (0..ranks).map(|_| Ledger::default()).collect(),
            orphans: Vec::new(),
            left: Vec::new(),
            base: found.complete,
            floor: found.oldest,
            refuses_in: None,
        };
        // Superblocks.
        pool.taken[0] = true;
        if let Some(lower) = pool.taken.get_mut(first) {
            *lower = true;
        }
        for segment in &found.segments {
            let range = segment.df.offset_bytes..segment.df.offset_bytes + segment.df.length_bytes;
            pool.mark(&range, true);
            let place = (segment.lane(), segment.df.sequence);
            pool.orphans.push(Orphan { range, place, last_version: segment.last_version });
        }
        pool
    }

    fn granules(&self, range: &Range<u64>) -> Range<usize> {
        let bytes = self.superblock.granule_bytes;
        (range.start / bytes) as usize..range.end.div_ceil(bytes) as usize
    }

    fn mark(&mut self, range: &Range<u64>, taken: bool) {
        let granules = self.granules(range);
        self.taken[granules].fill(taken);
    }

    fn first_fit(&mut self, pool: Range<usize>, bytes: u64) -> Option<Range<u64>> {
        let granule = self.superblock.granule_bytes;
        let wanted = bytes.div_ceil(granule) as usize;
        let free = |run: &[bool]| run.iter().all(|taken| !taken);
        let first = pool.start + self.taken[pool].windows(wanted).position(free)?;
        let range = first as u64 * granule..(first + wanted) as u64 * granule;
        self.mark(&range, true);
        Some(range)
    }

    /// Releases what rank `rank` no longer needs.
    pub fn reclaim(&mut self, rank: usize) -> Result<()> {
        let mut free = Vec::new();
        let (device, horizon) = (self.device.clone(), self.superblock.horizon);
        let reclaimed = self.ledgers[rank].reclaim(&*device, horizon, self.floor, |range| {
            free.push(range);
            Ok(())
        });
        for range in free {
            self.mark(&range, false);
        }
        reclaimed
    }

    /// Frees released segments of earlier incarnations.
    pub fn reclaim_orphans(&mut self) -> Result<()> {
        let mut kept: Vec<Orphan> = Vec::new();
        let mut orphans = std::mem::take(&mut self.orphans);
        // The newest of each lane first.
        orphans.sort_by_key(|orphan| std::cmp::Reverse(orphan.place));
        for orphan in orphans {
            // What an earlier incarnation wrote from the current one's first version on never became complete.
            let last = orphan.last_version.min(self.base.saturating_sub(1));
            let is_newest = kept.iter().all(|later| later.place.0 != orphan.place.0);
            let (uuid, at) = (&self.superblock.uuid, orphan.range.start);
            let is_never_complete =
                is_newest && self.left.is_empty() && holds_none_below(&*self.device, uuid, at, self.base);
            if last >= self.floor && self.base > 0 && !is_never_complete {
                kept.push(orphan);
                continue;
            }
            retire(&*self.device, orphan.range.start, self.superblock.horizon)?;
            self.mark(&orphan.range, false);
        }
        self.orphans = kept;
        Ok(())
    }

    /// Whether a rank has a segment.
    pub fn has_segments(&self, rank: usize) -> bool {
        self.ledgers[rank].segments().next().is_some()
    }

    /// Whether there is a lower pool.
    pub fn has_lower(&self) -> bool {
        self.first < self.taken.len()
    }

    fn is_first(&self, at: u64) -> bool {
        at < self.first as u64 * self.superblock.granule_bytes
    }

    /// Granules that a segment at `at` may move to: those of the other pool, where there is one.
    fn target(&self, at: u64) -> Range<usize> {
        if self.has_lower() && self.is_first(at) {
            self.first..self.taken.len()
        } else {
            0..self.first
        }
    }

    /// Copies a closed segment of rank `rank`, whose versions below `committed` are committed, to the first place
    /// where it fits: what a mover does. With two pools: down, or up again.
    pub fn relocate(&mut self, rank: usize, committed: u64, down: bool) -> Result<()> {
        let end = self.first as u64 * self.superblock.granule_bytes;
        let either = !self.has_lower();
        let wanted = |s: &Segment| (either || (s.range.start < end) == down).then_some(s.first_version);
        let Some(Segment { range: from, .. }) = self.ledgers[rank].begin_move(committed, wanted) else {
            return Ok(());
        };
        let to = self.copy(from.start);
        self.ledgers[rank].end_move(from.start, to.clone());
        if to.is_some() {
            self.left.push(from);
        }
        Ok(())
    }

    /// Moves a segment of an earlier incarnation down: what a process that adopts a lane does.
    pub fn adopt(&mut self) {
        let Some(i) = self.orphans.iter().position(|orphan| self.is_first(orphan.range.start)) else {
            return;
        };
        if let Some(to) = self.copy(self.orphans[i].range.start) {
            self.left.push(std::mem::replace(&mut self.orphans[i].range, to));
        }
    }

    /// Copies the segment at `from`; returns its new place. None: there is no free space, or the device there failed.
    fn copy(&mut self, from: u64) -> Option<Range<u64>> {
        let (device, horizon) = (self.device.clone(), self.superblock.horizon);
        let head = device.bytes(from..from + HEADER_BYTES);
        let df = SegmentDf::decode(head, &self.superblock.uuid, from).expect("a segment that is known");
        let to = self.first_fit(self.target(from), used_bytes(&*device, &df))?;
        match copy_segment(&*device, &self.superblock.uuid, from, to.clone(), horizon) {
            Ok(_) => Some(to),
            Err(e) => {
                assert!(e.kind() == Kind::Poisoned, "a segment could not be copied: {e}");
                // Space where a header may stand is not given away.
                if retire(&*device, to.start, horizon).is_ok() {
                    self.mark(&to, false);
                }
                None
            }
        }
    }

    /// Wipes and frees the old places of moved segments: no reader uses them any more.
    pub fn leave(&mut self) -> Result<()> {
        while let Some(old) = self.left.last().cloned() {
            retire(&*self.device, old.start, self.superblock.horizon)?;
            self.mark(&old, false);
            self.left.pop();
        }
        Ok(())
    }

    fn segment(&mut self, rank: usize, bytes_min: u64, version: u64) -> Result<Range<u64>> {
        if let Some(left) = self.refuses_in {
            self.refuses_in = left.checked_sub(1);
            if left == 0 {
                return Err(Error::new(Kind::TierFull, "out of space, as the test wants it"));
            }
        }
        self.reclaim(rank)?;
        let bytes = bytes_min.max(self.superblock.segment_bytes);
        let mut range = self.first_fit(0..self.first, bytes);
        if range.is_none() {
            self.leave()?;
            self.reclaim_orphans()?;
            range = self.first_fit(0..self.first, bytes);
        }
        let range = range.ok_or_else(|| Error::new(Kind::QuotaFull, "the pool is full"))?;
        self.ledgers[rank].push(range.clone(), version);
        Ok(range)
    }
}

/// The pool as one lane sees it.
pub struct Source<'a> {
    pub pool: &'a mut Pool,
    pub rank: usize,
}

impl SegmentSource for Source<'_> {
    fn segment(&mut self, bytes_min: u64, version: u64, _sequence: u64) -> Result<Range<u64>> {
        self.pool.segment(self.rank, bytes_min, version)
    }

    fn note_version(&mut self, _offset: u64, version: u64) {
        self.pool.ledgers[self.rank].note_version(version);
    }

    fn release(&mut self, range: Range<u64>) {
        let last = self.pool.ledgers[self.rank].pop_last();
        assert!(last.is_some_and(|s| s.range == range), "only the last segment can come back");
        self.pool.mark(&range, false);
    }

    fn take_back(&mut self, version: u64, before: Option<&Range<u64>>) -> TakenBack {
        let Pool { ledgers, device, superblock, .. } = &mut *self.pool;
        let taken = ledgers[self.rank].take_back(&**device, superblock.horizon, version, before);
        if let TakenBack::Retired(range) = &taken {
            self.pool.mark(range, false);
        }
        taken
    }
}
