//! Versions that are given up: which segments are free again, and that the lane has space for its end.

use std::ops::Range;
use std::sync::Arc;

use forebay_log::reclaim::{self, Segment};
use forebay_log::{recover, Dtype, Error, Kind, Lane, Ledger, Piece, Result, SegmentSource, TakenBack};
use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::{Device, Horizon, TierKind};

use crate::lanes::{pool, Pool};
use crate::sample::{owner, GRANULE};

const HORIZON: Horizon = Horizon::Epoch;

/// Segments of eight granules, one behind the other, as long as there are some `left`.
struct Counted {
    device: Arc<dyn Device>,
    ledger: Ledger,
    next: u64,
    left: u64,
}

impl SegmentSource for Counted {
    fn segment(&mut self, _: u64, version: u64, _: u64) -> Result<Range<u64>> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Error::new(Kind::QuotaFull, "none is left"))?;
        let range = self.next..self.next + 8 * GRANULE;
        self.next = range.end;
        self.ledger.push(range.clone(), version);
        Ok(range)
    }

    fn note_version(&mut self, _: u64, version: u64) {
        self.ledger.note_version(version);
    }

    fn release(&mut self, _: Range<u64>) {
        self.ledger.pop_last();
        self.left += 1;
    }

    fn take_back(&mut self, version: u64, before: Option<&Range<u64>>) -> TakenBack {
        let taken = self.ledger.take_back(&*self.device, HORIZON, version, before);
        self.left += u64::from(matches!(taken, TakenBack::Retired(_)));
        taken
    }
}

fn lane_in(pool: &Pool) -> (Counted, Lane) {
    let source =
        Counted { device: pool.device.clone(), ledger: Ledger::default(), next: GRANULE, left: u64::MAX };
    (source, Lane::new(pool.device.clone(), owner(0, 1, 1, 0), HORIZON, true))
}

/// Puts as many pieces; a segment holds some six.
fn try_put(lane: &mut Lane, source: &mut Counted, pieces: u64) -> Result<()> {
    let piece = Piece { name: "T", dtype: Dtype::U8, shape: &[4000], start: &[0], count: &[4000] };
    (0..pieces).try_for_each(|_| lane.append(source, &piece, &[7; 4000]))
}

fn put(lane: &mut Lane, source: &mut Counted, pieces: u64) {
    try_put(lane, source, pieces).unwrap();
}

fn try_commit(lane: &mut Lane, source: &mut Counted) -> Result<()> {
    lane.seal(source)?.flush()?.commit()
}

fn commit(lane: &mut Lane, source: &mut Counted) {
    try_commit(lane, source).unwrap();
}

fn starts(source: &Counted) -> Vec<u64> {
    source.ledger.segments().map(|s| s.range.start / GRANULE).collect()
}

/// The lane ends, and goes on, although no segment is left; what was committed is there.
fn check_end(pool: &Pool, source: &mut Counted, lane: &mut Lane, committed: u64) {
    source.left = 0;
    lane.finish(source, committed).unwrap();
    let found = recover(&*pool.device, &pool.superblock).unwrap();
    assert_eq!((found.complete, &found.incarnations[0].ended[..]), (committed, &[true][..]));
    assert_eq!(forebay_log::verify::verify(&*pool.device, &pool.superblock).unwrap().damaged.len(), 0);
}

#[test]
fn all_segments_that_were_begun_go_and_the_lane_ends_in_the_one_before() {
    for tier in [TierKind::Dram, TierKind::File] {
        let pool = pool(tier, HORIZON, 256);
        let (mut source, mut lane) = lane_in(&pool);
        // The first version of all.
        lane.begin(0);
        put(&mut lane, &mut source, 20);
        lane.abort(&mut source);
        assert_eq!(starts(&source), []);
        lane.begin(0);
        put(&mut lane, &mut source, 1);
        commit(&mut lane, &mut source);
        let before = starts(&source);
        for pieces in [1, 20, 40] {
            lane.begin(1);
            put(&mut lane, &mut source, pieces);
            lane.abort(&mut source);
            assert_eq!(starts(&source), before, "{pieces} on {tier}");
        }
        check_end(&pool, &mut source, &mut lane, 1);
    }
}

#[test]
fn a_segment_by_which_the_progress_is_known_stays_and_the_lane_ends_in_it() {
    let pool = pool(TierKind::File, HORIZON, 256);
    let (mut source, mut lane) = lane_in(&pool);
    lane.begin(0);
    put(&mut lane, &mut source, 6);
    commit(&mut lane, &mut source);
    lane.begin(1);
    put(&mut lane, &mut source, 30);
    let all = starts(&source);
    source.ledger.reclaim(&*pool.device, HORIZON, 1, |_| Ok(())).unwrap();
    let kept = starts(&source);
    assert!(kept.len() < all.len() && kept.len() > 2, "{all:?}, then {kept:?}");
    lane.abort(&mut source);
    assert_eq!(starts(&source), kept[..1], "it tells that version 0 was committed");
    check_end(&pool, &mut source, &mut lane, 1);
}

/// The first of two segments of version 0 was retired because version 1 had begun; the second was about to be moved.
#[test]
fn a_segment_stays_because_of_which_another_one_was_retired() {
    let pool = pool(TierKind::File, HORIZON, 256);
    let (mut source, mut lane) = lane_in(&pool);
    lane.begin(0);
    put(&mut lane, &mut source, 8);
    commit(&mut lane, &mut source);
    lane.begin(1);
    put(&mut lane, &mut source, 20);
    let all = starts(&source);
    let second = |s: &Segment| (s.range.start == all[1] * GRANULE).then_some(0);
    let moved = source.ledger.begin_move(1, second).expect("it is closed and committed");
    source.ledger.reclaim(&*pool.device, HORIZON, 1, |_| Ok(())).unwrap();
    source.ledger.end_move(moved.range.start, None);
    assert_eq!(starts(&source), all[1..]);
    lane.abort(&mut source);
    assert_eq!(starts(&source), all[1..3]);
    check_end(&pool, &mut source, &mut lane, 1);
}

#[test]
fn a_segment_holds_none_below_a_version_if_none_of_its_records_is_nor_ends_the_lane() {
    let pool = pool(TierKind::Dram, HORIZON, 256);
    let (mut source, mut lane) = lane_in(&pool);
    lane.begin(3);
    put(&mut lane, &mut source, 6);
    commit(&mut lane, &mut source);
    lane.begin(4);
    put(&mut lane, &mut source, 6);
    let holds_none_below = |source: &Counted, nth: usize, version| {
        let at = starts(source)[nth] * GRANULE;
        reclaim::holds_none_below(&*pool.device, &pool.superblock.uuid, at, version)
    };
    assert!(holds_none_below(&source, 0, 3) && !holds_none_below(&source, 0, 4));
    assert!(holds_none_below(&source, 1, 4) && !holds_none_below(&source, 1, 5));
    commit(&mut lane, &mut source);
    lane.finish(&mut source, 5).unwrap();
    let last = starts(&source).len() - 1;
    assert!(!holds_none_below(&source, last, 0), "the end of the lane lies there");
    assert!(!reclaim::holds_none_below(&*pool.device, &[9; 16], GRANULE, 0), "of another pool");
}

/// A write, or a store of a word, fails at one place after the other, also while headers of segments are wiped.
#[test]
fn what_is_committed_behind_an_abort_that_failed_in_part_is_there() {
    for (tier, what) in
        [TierKind::Dram, TierKind::File].map(|tier| [(tier, "write"), (tier, "word")]).concat()
    {
        (1..70).for_each(|n| check_with_a_failure(tier, &format!("{what}:eio@{n}")));
    }
}

/// Two versions, each aborted and written again; a call that fails is made again.
fn check_with_a_failure(tier: TierKind, plan: &str) {
    let mut pool = pool(tier, HORIZON, 256);
    pool.device = Arc::new(Fault::new(pool.device.clone(), FaultPlan::parse(plan).unwrap()));
    let (mut source, mut lane) = lane_in(&pool);
    for version in 0..2 {
        for (pieces, aborts) in [(20, true), (9, false)] {
            let mut attempt = || -> Result<()> {
                lane.begin(version);
                let put = try_put(&mut lane, &mut source, pieces);
                let done = if aborts { put } else { put.and_then(|()| try_commit(&mut lane, &mut source)) };
                if aborts || done.is_err() {
                    lane.abort(&mut source);
                }
                done
            };
            attempt().or_else(|_| attempt()).expect("one call fails");
        }
    }
    let found = recover(&*pool.device, &pool.superblock).unwrap();
    assert_eq!((found.oldest, found.complete), (0, 2), "{plan} on {tier}");
    let sequences: Vec<u64> = found.segments.iter().map(|s| s.df.sequence).collect();
    assert!(sequences.iter().zip(0..).all(|(found, wanted)| *found == wanted), "{sequences:?}, {plan}");
    let report = forebay_log::verify::verify(&*pool.device, &pool.superblock).unwrap();
    assert_eq!((report.versions, report.damaged.len()), (2, 0), "{plan} on {tier}");
}

/// A segment was moved down and up again, to the place where it was, as long as what is used of it.
#[test]
fn a_lane_does_not_go_on_in_a_segment_that_was_moved_meanwhile() {
    let pool = pool(TierKind::Dram, HORIZON, 256);
    for is_under_way in [false, true] {
        let (mut source, mut lane) = lane_in(&pool);
        lane.begin(0);
        put(&mut lane, &mut source, 6);
        commit(&mut lane, &mut source);
        lane.begin(1);
        put(&mut lane, &mut source, 20);
        let all = starts(&source);
        let moved = source.ledger.begin_move(1, |s| (s.last_version == 0).then_some(0));
        let moved = moved.expect("the first segment is closed and committed");
        if !is_under_way {
            let shorter = moved.range.start..moved.range.start + 2 * GRANULE;
            source.ledger.end_move(moved.range.start, Some(shorter));
        }
        lane.abort(&mut source);
        assert_eq!(starts(&source), all[..2], "the one behind it stays, and the lane in it");
        source.left = 0;
        lane.finish(&mut source, 1).unwrap();
    }
}
