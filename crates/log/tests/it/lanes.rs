//! Lanes on every tier kind that this machine has: append, recover, reclaim.

use std::sync::Arc;

use forebay_log::format::{RecordKind, HEADER_BYTES};
use forebay_log::{recover, Dtype, Kind, Lane, Ledger, Piece, SegmentScan};
use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::adapter::OpKind;
use forebay_tier::{Device, Horizon, TierKind};

use crate::sample::{owner, superblock, Bump, GRANULE};
use crate::skips;

pub struct Pool {
    pub device: Arc<dyn Device>,
    pub superblock: forebay_log::Superblock,
    pub _dir: tempfile::TempDir,
}

pub fn pool(tier: TierKind, horizon: Horizon, granules: u64) -> Pool {
    let dir = match tier {
        memory if memory.is_memory() => tempfile::tempdir_in("/dev/shm").unwrap(),
        _ => tempfile::tempdir().unwrap(),
    };
    let capacity = granules * GRANULE;
    let device = forebay_tier::create(tier, &dir.path().join("pool"), capacity).unwrap();
    device.prepare(0..capacity).unwrap();
    let superblock = superblock(tier, horizon, capacity);
    device.write(0, &superblock.encode()).unwrap();
    Pool { device, superblock, _dir: dir }
}

/// Why the temporary directory has no such tier, if so.
fn impossible(tier: TierKind) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let tried = (!tier.is_memory()).then(|| forebay_tier::create(tier, &dir.path().join("pool"), 4096));
    Some(tried?.err()?.message().to_string())
}

fn piece<'a>(name: &'a str, shape: &'a [u64]) -> Piece<'a> {
    const ZERO: [u64; 4] = [0; 4];
    Piece { name, dtype: Dtype::U8, shape, start: &ZERO[..shape.len()], count: shape }
}

#[test]
fn every_committed_version_comes_back_on_every_tier_and_horizon() {
    for tier in [TierKind::Dram, TierKind::Numa(0), TierKind::File, TierKind::Direct] {
        if let Some(why) = impossible(tier) {
            skips::skipped(&format!("lanes on {tier}"), &why);
            continue;
        }
        for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
            let p = pool(tier, horizon, 256);
            let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
            let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), horizon, true);
            for version in 0..20u64 {
                lane.begin(version);
                for i in 0..5u64 {
                    let data = vec![(version * 5 + i) as u8; 1000 + i as usize];
                    lane.append(&mut source, &piece(&format!("v{i}"), &[1000 + i]), &data).unwrap();
                }
                let found = recover(&*p.device, &p.superblock).unwrap();
                assert_eq!(found.complete, version, "an open version does not count");
                lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
                let found = recover(&*p.device, &p.superblock).unwrap();
                assert_eq!((found.oldest, found.complete), (0, version + 1));
            }
            let report = forebay_log::verify::verify(&*p.device, &p.superblock).unwrap();
            assert_eq!((report.versions, report.damaged.len()), (20, 0));
            assert_eq!(report.bytes, 20 * (5 * 1000 + 10));
        }
    }
}

/// A source that keeps its lane's ledger.
struct Kept {
    bump: Bump,
    ledger: Ledger,
}
impl forebay_log::SegmentSource for Kept {
    fn segment(
        &mut self,
        bytes: u64,
        version: u64,
        sequence: u64,
    ) -> forebay_log::Result<std::ops::Range<u64>> {
        let range = self.bump.segment(bytes, version, sequence)?;
        self.ledger.push(range.clone(), version);
        Ok(range)
    }
    fn note_version(&mut self, _: u64, version: u64) {
        self.ledger.note_version(version);
    }
    fn release(&mut self, range: std::ops::Range<u64>) {
        self.ledger.pop_last();
        self.bump.release(range);
    }
    fn take_back(&mut self, _: u64, _: Option<&std::ops::Range<u64>>) -> forebay_log::TakenBack {
        forebay_log::TakenBack::Stays
    }
}

#[test]
fn reclaimed_versions_do_not_come_back_and_the_rest_does() {
    let p = pool(TierKind::Dram, Horizon::Epoch, 256);
    let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
    let mut source = Kept { bump: Bump { next: GRANULE, bytes: 4 * GRANULE }, ledger: Ledger::default() };
    for version in 0..12u64 {
        lane.begin(version);
        lane.append(&mut source, &piece("a", &[5000]), &[version as u8; 5000]).unwrap();
        lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    }
    let mut freed = 0;
    source
        .ledger
        .reclaim(&*p.device, Horizon::Epoch, 7, |range| {
            freed += range.end - range.start;
            Ok(())
        })
        .unwrap();
    assert!(freed > 0);
    let found = recover(&*p.device, &p.superblock).unwrap();
    assert_eq!(found.complete, 12);
    assert!(found.oldest > 0 && found.oldest <= 7, "{}", found.oldest);
}

/// The last segment is being written; what another thread may rely on in it is what the writer has told.
#[test]
fn another_thread_gives_back_what_the_writer_has_told() {
    let p = pool(TierKind::Dram, Horizon::Epoch, 256);
    let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
    let mut source = Kept { bump: Bump { next: GRANULE, bytes: 4 * GRANULE }, ledger: Ledger::default() };
    let bytes = 3 * GRANULE;
    let data = vec![7; bytes as usize];
    let released = |ledger: &mut Ledger, aside: bool| {
        let mut freed = 0;
        let free = |range: std::ops::Range<u64>| {
            freed += range.end - range.start;
            Ok(())
        };
        match aside {
            true => ledger.reclaim_aside(&*p.device, Horizon::Epoch, 1, free).unwrap(),
            false => ledger.reclaim(&*p.device, Horizon::Epoch, 1, free).unwrap(),
        }
        freed
    };
    lane.begin(0);
    lane.append(&mut source, &piece("a", &[bytes]), &data).unwrap();
    lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    source.ledger.note_begun(&*p.device);
    assert!(!source.ledger.is_untold(), "one segment alone stays");
    lane.begin(1);
    let reserved = lane.reserve(&mut source, &piece("a", &[bytes])).unwrap();
    source.ledger.note_begun(&*p.device);
    assert!(source.ledger.is_untold(), "a place that is being filled tells nothing");
    assert_eq!([true, false].map(|aside| released(&mut source.ledger, aside)), [0, 0]);
    lane.fill(reserved).unwrap();
    assert_eq!(released(&mut source.ledger, true), 0, "no reader has told of the record");
    source.ledger.note_begun(&*p.device);
    assert!(!source.ledger.is_untold());
    let first = source.ledger.segments().next().map(|s| s.range.end - s.range.start);
    assert_eq!(Some(released(&mut source.ledger, true)), first);
    let found = recover(&*p.device, &p.superblock).unwrap();
    assert_eq!((found.oldest, found.complete), (1, 1), "the lane has committed version 0");
}

#[test]
fn records_span_the_sizes_and_limits_that_are_promised() {
    let p = pool(TierKind::Dram, Horizon::None, 1024);
    let mut source = Bump { next: GRANULE, bytes: 4 * GRANULE };
    let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::None, true);
    lane.begin(0);
    for bytes in [1u64, 63, 64, 65, 255, 256, 4096, 65_535, 65_536, 65_537, 1_000_000] {
        let data: Vec<u8> = (0..bytes).map(|i| (i % 253) as u8).collect();
        lane.append(&mut source, &piece("x", &[bytes]), &data).unwrap();
    }
    let long = "n".repeat(1025);
    assert_eq!(lane.append(&mut source, &piece(&long, &[1]), &[1]).unwrap_err().kind(), Kind::BadName);
    let deep = [1u64; 17];
    let zeros = [0u64; 17];
    let too_deep = Piece { name: "x", dtype: Dtype::U8, shape: &deep, start: &zeros, count: &deep };
    assert_eq!(lane.append(&mut source, &too_deep, &[1]).unwrap_err().kind(), Kind::Usage);
    lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    assert_eq!(forebay_log::verify::verify(&*p.device, &p.superblock).unwrap().records, 12);
}

#[test]
fn a_scan_follows_reservations_and_voids() {
    let p = pool(TierKind::File, Horizon::Epoch, 64);
    let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
    let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
    lane.begin(0);
    let mut a = lane.reserve(&mut source, &piece("a", &[300])).unwrap();
    lane.append(&mut source, &piece("b", &[10]), &[2; 10]).unwrap();
    a.as_mut_slice().fill(1);
    assert_eq!(lane.seal(&mut source).map(drop).unwrap_err().kind(), Kind::StepState);
    lane.fill(a).unwrap();
    lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    let found = recover(&*p.device, &p.superblock).unwrap();
    let kinds: Vec<RecordKind> =
        SegmentScan::new(&*p.device, &found.segments[0].df).map(|(_, h)| h.kind()).collect();
    assert_eq!(kinds, [RecordKind::Piece, RecordKind::Piece, RecordKind::Commit]);
    assert_eq!(found.segments[0].df.offset_bytes % HEADER_BYTES, 0);
}

#[test]
fn a_failed_flush_acknowledges_nothing_and_poisons_the_pool() {
    let p = pool(TierKind::File, Horizon::Epoch, 64);
    let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
    let mut lane = Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
    lane.begin(0);
    lane.append(&mut source, &piece("a", &[10]), &[2; 10]).unwrap();
    assert!(p.device.inject_flush_failure(5));
    assert!(lane.seal(&mut source).unwrap().flush().is_err());
    lane.abort(&mut source);
    lane.begin(0);
    let again = lane.append(&mut source, &piece("a", &[10]), &[2; 10]).unwrap_err();
    assert_eq!(again.kind(), Kind::Poisoned);
}

/// Versions of records of all sizes, some of them filled in place; the bytes of the pool and the writes that it took.
fn written(tier: TierKind, batch: Option<usize>) -> (Vec<u8>, u64) {
    let p = pool(tier, Horizon::Epoch, 2048);
    let counting = Arc::new(Fault::new(p.device.clone(), FaultPlan::default()));
    let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
    let lane = Lane::new(counting.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
    let mut lane = batch.into_iter().fold(lane, Lane::in_batches);
    for version in 0..12u64 {
        lane.begin(version);
        for i in 0..40u64 {
            let bytes = match (version + i) % 13 {
                0 => 0,
                1 => 20_000,
                small => 61 * small + i,
            };
            let (name, shape, data) =
                (format!("v{i}"), [bytes], vec![(version * 7 + i) as u8; bytes as usize]);
            let piece = piece(&name, &shape);
            let alone = lane.keeps_back(&piece, bytes).then(|| counting.seen(OpKind::Write));
            if i % 17 == 16 {
                let mut reserved = lane.reserve(&mut source, &piece).unwrap();
                reserved.as_mut_slice().copy_from_slice(&data);
                lane.fill(reserved).unwrap();
                continue;
            }
            lane.append(&mut source, &piece, &data).unwrap();
            assert!(alone.is_none_or(|before| counting.seen(OpKind::Write) == before), "it was kept back");
        }
        lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
    }
    lane.finish(&mut source, 12).unwrap();
    let report = forebay_log::verify::verify(&*p.device, &p.superblock).unwrap();
    assert_eq!((report.versions, report.damaged.len()), (12, 0));
    (p.device.bytes(0..2048 * GRANULE).to_vec(), counting.seen(OpKind::Write))
}

#[test]
fn in_batches_the_pool_is_the_same_with_fewer_writes() {
    for tier in [TierKind::Dram, TierKind::File, TierKind::Direct] {
        if let Some(why) = impossible(tier) {
            skips::skipped(&format!("batches on {tier}"), &why);
            continue;
        }
        let (plain, writes) = written(tier, None);
        for batch in [4096, 16 << 10, 1 << 20] {
            let (bytes, fewer) = written(tier, Some(batch));
            let differs = bytes.iter().zip(&plain).position(|(a, b)| a != b);
            assert_eq!((bytes.len(), differs), (plain.len(), None), "{tier} in batches of {batch}");
            let most = if batch > 4096 { writes / 2 } else { writes * 2 / 3 };
            assert!(fewer < most, "{tier} in batches of {batch}: {fewer} writes instead of {writes}");
        }
    }
}

#[test]
fn a_batch_that_is_given_up_leaves_no_hole() {
    for next_bytes in [100, 3000, 60_000] {
        let p = pool(TierKind::Dram, Horizon::Epoch, 256);
        let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
        let mut lane =
            Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true).in_batches(16 << 10);
        for version in 0..8u64 {
            lane.begin(version);
            (0..3).for_each(|_| lane.append(&mut source, &piece("lost", &[500]), &[9; 500]).unwrap());
            lane.abort(&mut source);
            lane.begin(version);
            let data = vec![version as u8; next_bytes as usize];
            lane.append(&mut source, &piece("kept", &[next_bytes]), &data).unwrap();
            lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
        }
        assert_eq!(recover(&*p.device, &p.superblock).unwrap().complete, 8);
        let report = forebay_log::verify::verify(&*p.device, &p.superblock).unwrap();
        assert_eq!((report.versions, report.damaged.len()), (8, 0));
        assert!(report.bytes >= 8 * next_bytes, "records that were given up may be there, too");
    }
}

#[test]
#[should_panic(expected = "persistent one by one")]
fn what_is_persistent_at_once_cannot_wait_in_a_batch() {
    let p = pool(TierKind::Dram, Horizon::Write, 16);
    Lane::new(p.device.clone(), owner(0, 1, 1, 0), Horizon::Write, true).in_batches(4096);
}

/// Rank 0 commits version 3 in several segments, rank 1 does not; the writers restart at version 3.
#[test]
fn verify_ignores_what_an_earlier_incarnation_left_of_later_versions() {
    let p = pool(TierKind::Dram, Horizon::None, 256);
    let mut source = Bump { next: GRANULE, bytes: 8 * GRANULE };
    let lane = |rank, incarnation, base| {
        Lane::new(p.device.clone(), owner(rank, incarnation, 2, base), Horizon::None, true)
    };
    let mut write = |lane: &mut Lane, versions: std::ops::Range<u64>, bytes: u64| {
        for version in versions {
            lane.begin(version);
            let data = vec![version as u8; bytes as usize];
            (0..4).for_each(|_| lane.append(&mut source, &piece("a", &[bytes]), &data).unwrap());
            lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap();
        }
    };
    let mut ahead = lane(0, 1, 0);
    write(&mut ahead, 0..3, 100);
    write(&mut ahead, 3..4, 6 * GRANULE);
    write(&mut lane(1, 1, 0), 0..3, 100);
    // Segments that hold only version 3 are freed one by one.
    let segments = recover(&*p.device, &p.superblock).unwrap().segments;
    let freed = segments[1];
    assert_eq!((freed.df.rank, freed.df.sequence), (0, 1));
    p.device.write(freed.df.offset_bytes, &[0; 64]).unwrap();
    let damaged = || forebay_log::verify::verify(&*p.device, &p.superblock).unwrap().damaged;
    assert!(damaged()[0].what.contains("pieces are readable"), "{:?}", damaged());
    write(&mut lane(0, 2, 3), 3..5, 100);
    write(&mut lane(1, 2, 3), 3..5, 100);
    assert_eq!(damaged(), []);
}
