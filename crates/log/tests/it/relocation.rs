//! Moving segments: what was moved reads as before, from either copy, and recovery takes one of the two.

use std::ops::Range;

use forebay_log::format::{RecordKind, SegmentDf};
use forebay_log::reclaim::retire;
use forebay_log::relocate::{copy_segment, used_bytes};
use forebay_log::{recover, Dtype, Lane, Ledger, Piece, Result, SegmentScan, SegmentSource, TakenBack};
use forebay_tier::{Device, Horizon, TierKind};

use crate::lanes::{pool, Pool};
use crate::sample::{owner, GRANULE};

const KINDS: [(TierKind, Horizon); 3] =
    [(TierKind::Dram, Horizon::None), (TierKind::Dram, Horizon::Epoch), (TierKind::File, Horizon::Epoch)];

struct Kept {
    next: u64,
    ledger: Ledger,
}

impl SegmentSource for Kept {
    fn segment(&mut self, bytes_min: u64, version: u64, _: u64) -> Result<Range<u64>> {
        let bytes = bytes_min.max(8 * GRANULE).next_multiple_of(GRANULE);
        let range = self.next..self.next + bytes;
        self.next = range.end;
        self.ledger.push(range.clone(), version);
        Ok(range)
    }

    fn note_version(&mut self, _: u64, version: u64) {
        self.ledger.note_version(version);
    }

    fn release(&mut self, range: Range<u64>) {
        self.ledger.pop_last();
        self.next = range.start;
    }

    fn take_back(&mut self, _: u64, _: Option<&std::ops::Range<u64>>) -> TakenBack {
        TakenBack::Stays
    }
}

fn payloads(device: &dyn Device, segment: &SegmentDf) -> Vec<(u64, Vec<u8>)> {
    SegmentScan::new(device, segment)
        .filter(|(_, header)| header.kind() == RecordKind::Piece)
        .map(|(record, header)| {
            let at = record.offset + header.payload_offset();
            (header.place().version, device.bytes(at..at + header.payload_bytes()).to_vec())
        })
        .collect()
}

fn versions(pool: &Pool, count: u64) -> Kept {
    versions_and_lane(pool, count).0
}

fn begin(lane: &mut Lane, source: &mut Kept, version: u64) {
    lane.begin(version);
    let data = vec![version as u8 + 1; 11_000];
    let piece = Piece { name: "T", dtype: Dtype::U8, shape: &[11_000], start: &[0], count: &[11_000] };
    lane.append(source, &piece, &data).unwrap();
}

fn versions_and_lane(pool: &Pool, count: u64) -> (Kept, Lane) {
    let mut lane = Lane::new(pool.device.clone(), owner(0, 1, 1, 0), pool.superblock.horizon, true);
    let mut source = Kept { next: GRANULE, ledger: Ledger::default() };
    for version in 0..count {
        begin(&mut lane, &mut source, version);
        lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    }
    (source, lane)
}

/// A segment was moved and released at its new place, before its old place was wiped; so were those behind it.
#[test]
fn an_old_place_does_not_bring_back_what_was_released() {
    for (tier, horizon) in KINDS {
        let pool = pool(tier, horizon, 128);
        let device = &*pool.device;
        let (mut source, mut lane) = versions_and_lane(&pool, 12);
        let first = source.ledger.begin_move(12, |s| Some(s.first_version)).expect("a closed segment");
        let to = 110 * GRANULE..118 * GRANULE;
        copy_segment(device, &pool.superblock.uuid, first.range.start, to.clone(), horizon).unwrap();
        source.ledger.end_move(first.range.start, Some(to));
        begin(&mut lane, &mut source, 12);
        source.ledger.reclaim(device, horizon, 12, |_| Ok(())).unwrap();
        let found = recover(device, &pool.superblock).unwrap();
        let places: Vec<u64> = found.segments.iter().map(|s| s.df.offset_bytes).collect();
        assert_eq!(places.len(), 2, "the old place, and what is being written: {places:x?}");
        assert_eq!((found.oldest, found.complete), (12, 12), "nothing that is not all there is claimed");
        lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
        let found = recover(device, &pool.superblock).unwrap();
        assert_eq!((found.oldest, found.complete), (12, 13), "what was acknowledged is there on {tier}");
    }
}

#[test]
fn a_moved_segment_is_the_same_and_counts_once() {
    for (tier, horizon) in KINDS {
        let pool = pool(tier, horizon, 128);
        let mut source = versions(&pool, 12);
        let device = &*pool.device;
        let before = recover(device, &pool.superblock).unwrap();
        assert_eq!((before.oldest, before.complete, before.stale.len()), (0, 12, 0));
        assert_eq!(source.ledger.begin_move(0, |s| Some(s.first_version)), None, "none is committed");
        let first = source.ledger.begin_move(12, |s| Some(s.first_version)).expect("a closed segment");
        assert_eq!((first.range.start, first.first_version), (GRANULE, 0));
        let old = before.segments[0].df;
        let used = used_bytes(device, &old);
        assert!(used < old.length_bytes, "two versions do not fill it: only what is used moves");
        let to = 100 * GRANULE..100 * GRANULE + used;
        let second = source.ledger.begin_move(12, |s| Some(s.first_version)).expect("another");
        assert!(second.first_version > first.first_version, "nothing is moved twice at once");
        source.ledger.end_move(second.range.start, None);
        assert!(!source.ledger.has_reclaimable(u64::MAX), "a segment that is being copied stays");
        let new = copy_segment(
            device,
            &pool.superblock.uuid,
            old.offset_bytes,
            to.clone(),
            pool.superblock.horizon,
        )
        .unwrap();
        assert_eq!(payloads(device, &old), payloads(device, &new));
        let both = recover(device, &pool.superblock).unwrap();
        assert_eq!((both.oldest, both.complete), (0, 12));
        assert_eq!(both.segments.len(), before.segments.len(), "one of the two counts");
        assert_eq!(both.stale.iter().map(|s| s.df.offset_bytes).collect::<Vec<_>>(), [to.start]);
        source.ledger.end_move(first.range.start, Some(to.clone()));
        retire(device, first.range.start, pool.superblock.horizon).unwrap();
        let after = recover(device, &pool.superblock).unwrap();
        assert_eq!((after.oldest, after.complete, after.stale.len()), (0, 12, 0));
        assert_eq!(after.segments[0].df.offset_bytes, to.start);
        assert_eq!(source.ledger.bytes_below(100 * GRANULE) + (to.end - to.start), {
            let lengths = after.segments.iter().map(|s| s.df.length_bytes);
            lengths.sum::<u64>()
        });
        assert!(source.ledger.has_reclaimable(u64::MAX));
        let mut freed = Vec::new();
        source
            .ledger
            .reclaim(device, pool.superblock.horizon, 3, |range| {
                freed.push(range.start);
                Ok(())
            })
            .unwrap();
        assert_eq!(freed.first(), Some(&to.start), "reclaimed where it lies now");
        // On blocks a segment holds one version here, elsewhere two.
        let oldest = if tier == TierKind::File { 3 } else { 2 };
        assert_eq!(recover(device, &pool.superblock).unwrap().oldest, oldest);
    }
}

#[test]
fn what_is_no_segment_is_not_moved() {
    for (tier, horizon) in KINDS {
        let pool = pool(tier, horizon, 16);
        let to = 4 * GRANULE..6 * GRANULE;
        let error = copy_segment(&*pool.device, &pool.superblock.uuid, GRANULE, to, pool.superblock.horizon);
        assert_eq!(error.unwrap_err().kind(), forebay_log::Kind::Damaged);
    }
}
