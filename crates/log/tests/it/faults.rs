//! Lanes on devices that are full, fail or tear.
//!
//! The contract: a failed operation is a typed error; everything acknowledged comes back unchanged, whatever failed
//! and whatever the device kept of the rest; at most the version in flight comes back beside it, whole.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_log::format::RecordKind;
use forebay_log::{recover, Dtype, Kind, Lane, Piece, Result, SegmentScan, Superblock};
use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::adapter::OpKind;
use forebay_tier::{Access, Device, Horizon, TierKind};

use crate::sample::{owner, superblock, Bump, GRANULE};

const CAPACITY: u64 = 128 * GRANULE;
const VERSIONS: u64 = 5;
/// Bytes of the records of each version; the last is larger than a segment.
const RECORDS: [u64; 3] = [100, 9000, 40_000];

/// Kinds of tiers that are written by system calls and that this build and this directory have.
fn block_tiers(dir: &Path) -> Vec<TierKind> {
    let known = ["file", "direct"].into_iter().filter_map(|name| name.parse::<TierKind>().ok());
    known
        .filter(|tier| match forebay_tier::create(*tier, &dir.join(format!("probe-{tier}")), GRANULE) {
            Ok(_) => true,
            Err(e) => {
                crate::skips::skipped(&format!("lanes on {tier} with faults"), &e.to_string());
                false
            }
        })
        .collect()
}

fn create(tier: TierKind, path: &Path) -> (Arc<dyn Device>, Superblock) {
    let device = forebay_tier::create(tier, path, CAPACITY).unwrap();
    device.prepare(0..CAPACITY).unwrap();
    let superblock = superblock(tier, Horizon::Epoch, CAPACITY);
    device.write(0, &superblock.encode()).unwrap();
    device.persist(0..CAPACITY).unwrap();
    (device, superblock)
}

fn payload(version: u64, record: usize) -> Vec<u8> {
    (0..RECORDS[record]).map(|i| (i * 31 + version * 101 + record as u64) as u8 ^ (i >> 8) as u8).collect()
}

fn append(lane: &mut Lane, source: &mut Bump, version: u64, record: usize) -> Result<()> {
    let (name, shape) = (format!("v{record}"), [RECORDS[record]]);
    let piece = Piece { name: &name, dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
    lane.append(source, &piece, &payload(version, record))
}

fn commit(lane: &mut Lane, source: &mut Bump) -> Result<()> {
    lane.seal(source)?.flush()?.commit()
}

/// Reads the pool as a new process would: versions `acknowledged` of them are there, at most one more beside them,
/// and each is what was put.
fn check(device: &dyn Device, superblock: &Superblock, acknowledged: u64) -> u64 {
    let found = recover(device, superblock).unwrap();
    assert!(
        (acknowledged..=acknowledged + 1).contains(&found.complete) && found.oldest == 0,
        "{} to {} came back, {acknowledged} were acknowledged",
        found.oldest,
        found.complete
    );
    let mut committed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pieces: BTreeMap<(u64, String), (u64, Vec<u8>)> = BTreeMap::new();
    for segment in &found.segments {
        for (record, header) in SegmentScan::new(device, &segment.df) {
            let place = header.place();
            if header.kind() == RecordKind::Commit && header.is_committed() {
                committed.insert(place.version, header.commit().unwrap().first_record);
            } else if header.kind() == RecordKind::Piece {
                let at = record.offset + header.payload_offset();
                let bytes = device.bytes(at..at + header.payload_bytes()).to_vec();
                // A later record of the same name is the one of the attempt that was committed.
                pieces.insert((place.version, header.name().to_string()), (place.sequence, bytes));
            }
        }
    }
    for version in 0..found.complete {
        for record in 0..RECORDS.len() {
            let (sequence, bytes) = &pieces[&(version, format!("v{record}"))];
            assert!(
                *sequence >= committed[&version],
                "v{record} of version {version} is of an aborted attempt"
            );
            assert!(*bytes == payload(version, record), "v{record} of version {version} changed");
        }
    }
    found.complete
}

/// What the producer does after an error.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// It tries what failed once more, or first a larger record, which goes into another segment.
    Again,
    /// It gives the step up and puts it anew, in another order.
    Abort,
}

/// Puts a record, the middle one in place when `reserving`.
fn put(lane: &mut Lane, source: &mut Bump, version: u64, record: usize, reserving: bool) -> Result<()> {
    if !(reserving && record == 1) {
        return append(lane, source, version, record);
    }
    let shape = [RECORDS[record]];
    let piece = Piece { name: "v1", dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
    let mut reserved = lane.reserve(source, &piece)?;
    reserved.as_mut_slice().copy_from_slice(&payload(version, record));
    lane.fill(reserved)
}

/// Bytes of a batch that takes the first two records of a version, which with those of one more do not fit.
const BATCH: usize = 16 << 10;

/// A lane that gathers small records, or does not.
fn lane(device: Arc<dyn Device>, batched: bool) -> Lane {
    let lane = Lane::new(device, owner(0, 1, 1, 0), Horizon::Epoch, true);
    if batched {
        lane.in_batches(BATCH)
    } else {
        lane
    }
}

/// Runs the workload with one fault; says whether it met it.
fn get_over(tier: TierKind, dir: &Path, plan: &str, kind: Kind, (after, batched): (After, bool)) -> bool {
    let path = dir.join("pool");
    let (device, superblock) = create(tier, &path);
    let fault = Arc::new(Fault::new(device, FaultPlan::parse(plan).unwrap()));
    let mut source = Bump { next: GRANULE, bytes: 6 * GRANULE };
    let mut lane = lane(fault.clone(), batched);
    let failed = |result: Result<()>, acknowledged: u64| {
        result.is_err_and(|e| {
            assert_eq!(e.kind(), kind, "{plan} on {tier}: {e}");
            check(&*fault, &superblock, acknowledged);
            true
        })
    };
    for version in 0..VERSIONS {
        lane.begin(version);
        let mut give_up = false;
        for record in 0..RECORDS.len() {
            if !failed(put(&mut lane, &mut source, version, record, after == After::Abort), version) {
                continue;
            }
            if after == After::Abort {
                give_up = true;
                break;
            }
            if record == 0 {
                append(&mut lane, &mut source, version, 2).unwrap();
            }
            append(&mut lane, &mut source, version, record).unwrap();
        }
        if give_up || failed(commit(&mut lane, &mut source), version) {
            if after == After::Abort {
                lane.abort(&mut source);
                lane.begin(version);
                for record in [2, 0, 1] {
                    put(&mut lane, &mut source, version, record, true).unwrap();
                }
            }
            commit(&mut lane, &mut source).unwrap();
        }
        assert_eq!(check(&*fault, &superblock, version + 1), version + 1, "{plan} on {tier}");
    }
    let report = forebay_log::verify::verify(&*fault, &superblock).unwrap();
    assert_eq!(report.versions, VERSIONS);
    std::fs::remove_file(&path).unwrap();
    fault.injected() > 0
}

#[test]
fn every_write_may_fail_or_tear_once() {
    let dir = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    // A file is written in the same way in memory, and flushed faster.
    let place = |tier| if tier == TierKind::File { memory.path() } else { dir.path() };
    let mut tiers: Vec<(TierKind, &Path)> =
        block_tiers(dir.path()).into_iter().map(|tier| (tier, place(tier))).collect();
    tiers.push((TierKind::Dram, memory.path()));
    for (tier, dir) in tiers {
        for how in [After::Again, After::Abort].into_iter().flat_map(|after| [(after, false), (after, true)])
        {
            for (fault, kind) in
                [("write:enospc", Kind::TierFull), ("write:torn", Kind::Io), ("word:eio", Kind::Io)]
            {
                let met = (1..)
                    .take_while(|n| get_over(tier, dir, &format!("{fault}@{n}"), kind, how))
                    .count() as u64;
                let least = match fault {
                    "word:eio" if tier != TierKind::Dram => 0,
                    "word:eio" => VERSIONS,
                    // A batch, the large record, headers of segments, the commit.
                    _ if how.1 => VERSIONS * 4,
                    _ => VERSIONS * 5,
                };
                assert!(met >= least, "only {met} of {fault} were tried on {tier}");
            }
        }
        for batched in [false, true] {
            let met = get_over(tier, dir, "write:short,read:short", Kind::Io, (After::Again, batched));
            assert!(met, "short writes go on");
        }
    }
}

/// A batch that was torn leaves some of its records. The step is given up and put again, shorter: what is acknowledged
/// then comes back, whether the shorter step goes over the torn records or into another segment.
#[test]
fn a_step_that_is_shorter_than_the_torn_batch_before_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut tiers = block_tiers(dir.path());
    tiers.push(TierKind::Dram);
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    for (tier, repeated) in tiers.into_iter().flat_map(|tier| [(tier, 0), (tier, 1), (tier, 2)]) {
        let path = if tier == TierKind::Dram { memory.path() } else { dir.path() }.join("pool");
        let mut torn = 0;
        // Which write the batch is depends on the tier.
        for n in 1..12 {
            let (device, superblock) = create(tier, &path);
            let fault = FaultPlan::parse(&format!("write:torn@{n}")).unwrap();
            let fault = Arc::new(Fault::new(device, fault));
            let mut source = Bump { next: GRANULE, bytes: 6 * GRANULE };
            let mut lane = lane(fault.clone(), true);
            for version in 0..2 {
                // Small records of both attempts have the same length, so that what is left lies where others end.
                let put = |lane: &mut Lane, source: &mut Bump, count: usize| -> Result<()> {
                    lane.begin(version);
                    (0..count).try_for_each(|_| append(lane, source, version, 0))?;
                    commit(lane, source)
                };
                if put(&mut lane, &mut source, 40).is_err() {
                    torn += 1;
                    lane.abort(&mut source);
                    match repeated {
                        2 => {
                            lane.begin(version);
                            append(&mut lane, &mut source, version, 2).unwrap();
                            commit(&mut lane, &mut source).unwrap();
                        }
                        count => put(&mut lane, &mut source, count).unwrap(),
                    }
                }
                let found = recover(&*fault, &superblock).unwrap();
                assert_eq!(found.complete, version + 1, "{tier}, torn write {n}, shape {repeated}");
                let report = forebay_log::verify::verify(&*fault, &superblock).unwrap();
                assert!(report.damaged.is_empty(), "{tier}, torn write {n}, shape {repeated}: {report:?}");
            }
            std::fs::remove_file(&path).unwrap();
        }
        assert!(torn >= 4, "only {torn} writes were torn on {tier}");
    }
}

#[test]
fn a_failed_flush_poisons_and_a_new_handle_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    for tier in block_tiers(dir.path()) {
        for failing in 1..=VERSIONS {
            let path = dir.path().join("pool");
            let (device, superblock) = create(tier, &path);
            let fault =
                Arc::new(Fault::new(device, FaultPlan::parse(&format!("persist:eio@{failing}")).unwrap()));
            let mut source = Bump { next: GRANULE, bytes: 6 * GRANULE };
            let mut lane = Lane::new(fault.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
            let mut acknowledged = 0;
            let error = loop {
                lane.begin(acknowledged);
                (0..RECORDS.len())
                    .for_each(|record| append(&mut lane, &mut source, acknowledged, record).unwrap());
                match commit(&mut lane, &mut source) {
                    Ok(()) => acknowledged += 1,
                    Err(e) => break e,
                }
            };
            assert_eq!((error.kind(), acknowledged), (Kind::Poisoned, failing - 1));
            assert!(error.message().contains("flush failed"), "{error}");
            lane.abort(&mut source);
            lane.begin(acknowledged);
            assert_eq!(append(&mut lane, &mut source, acknowledged, 0).unwrap_err().kind(), Kind::Poisoned);
            check(&*fault, &superblock, acknowledged);
            drop((lane, fault));
            let fresh = forebay_tier::open(tier, &path, Access::Write).unwrap();
            let complete = check(&*fresh, &superblock, acknowledged);
            let mut lane = Lane::new(fresh.clone(), owner(0, 2, 1, complete), Horizon::Epoch, true);
            source.next = CAPACITY - 20 * GRANULE;
            lane.begin(complete);
            (0..RECORDS.len()).for_each(|record| append(&mut lane, &mut source, complete, record).unwrap());
            commit(&mut lane, &mut source).unwrap();
            assert_eq!(check(&*fresh, &superblock, complete + 1), complete + 1);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_read_that_fails_ends_recovery_by_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for tier in block_tiers(dir.path()) {
        let path = dir.path().join("pool");
        let (device, superblock) = create(tier, &path);
        let mut source = Bump { next: GRANULE, bytes: 6 * GRANULE };
        let mut lane = Lane::new(device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
        lane.begin(0);
        (0..RECORDS.len()).for_each(|record| append(&mut lane, &mut source, 0, record).unwrap());
        commit(&mut lane, &mut source).unwrap();
        let counting = Fault::new(device.clone(), FaultPlan::default());
        check(&counting, &superblock, 1);
        let reads = counting.seen(OpKind::Read);
        assert!(reads > 2, "recovery reads {reads} times");
        for n in 1..=reads {
            let fault = Fault::new(device.clone(), FaultPlan::parse(&format!("read:eio@{n}")).unwrap());
            assert_eq!(recover(&fault, &superblock).err().map(|e| e.kind()), Some(Kind::Io), "read {n}");
            check(&fault, &superblock, 1);
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// What the medium certainly holds of a pool, beside what readers see: the image at the last flush.
struct Medium {
    device: Arc<dyn Device>,
    flushed: Mutex<Vec<u8>>,
}

impl Medium {
    fn new(device: Arc<dyn Device>) -> Medium {
        let flushed = Mutex::new(device.bytes(0..CAPACITY).to_vec());
        Medium { device, flushed }
    }

    fn note_flush(&self) {
        *self.flushed.lock().unwrap() = self.device.bytes(0..CAPACITY).to_vec();
    }

    /// What may be left after a crash: of each block of `block` bytes that changed since the flush, the old or the
    /// new content, as `keep` says.
    fn image(&self, block: usize, mut keep: impl FnMut(u64) -> bool) -> (Vec<u8>, usize) {
        let mut image = self.flushed.lock().unwrap().clone();
        let now = self.device.bytes(0..CAPACITY);
        let mut changed = 0;
        for (i, (old, new)) in image.chunks_mut(block).zip(now.chunks(block)).enumerate() {
            if old != new {
                changed += 1;
                if keep(i as u64) {
                    old.copy_from_slice(new);
                }
            }
        }
        (image, changed)
    }
}

/// The finisher of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Puts an image of the medium into a file, opens it and checks it; `acknowledged` versions must be there.
fn crash(tier: TierKind, medium: &Medium, superblock: &Superblock, path: &Path, acknowledged: u64) -> usize {
    let mut most = 0;
    for block in [512usize, 4096] {
        for seed in 0..6u64 {
            let (image, changed) = medium.image(block, |i| match seed {
                0 => false,
                1 => true,
                _ => mix(seed << 32 ^ i) & 1 == 1,
            });
            std::fs::write(path, &image).unwrap();
            let device = forebay_tier::open(tier, path, Access::Read).unwrap();
            check(&*device, superblock, acknowledged);
            most = most.max(changed);
        }
    }
    most
}

/// The power fails after every operation of the lane: what was written since the last flush is lost, kept, or torn
/// at the block sizes of disks.
#[test]
fn what_was_not_flushed_may_be_lost_or_torn() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = tempfile::tempdir().unwrap();
    for tier in block_tiers(disk.path()) {
        let dir = if tier == TierKind::File { dir.path() } else { disk.path() };
        let (device, superblock) = create(tier, &dir.join("pool"));
        let medium = Medium::new(device.clone());
        let image = dir.join("image");
        let mut source = Bump { next: GRANULE, bytes: 6 * GRANULE };
        let mut lane = Lane::new(device.clone(), owner(0, 1, 1, 0), Horizon::Epoch, true);
        let mut most = 0;
        let mut lose = |acknowledged: u64| {
            most = most.max(crash(tier, &medium, &superblock, &image, acknowledged));
        };
        let wiped: Range<u64> = GRANULE..2 * GRANULE;
        assert!(device.bytes(wiped).iter().all(|b| *b == 0));
        for version in 0..VERSIONS {
            lane.begin(version);
            for record in 0..RECORDS.len() {
                append(&mut lane, &mut source, version, record).unwrap();
                lose(version);
            }
            if version == 2 {
                // Given up and put again.
                lane.abort(&mut source);
                lose(version);
                lane.begin(version);
                for record in 0..RECORDS.len() {
                    append(&mut lane, &mut source, version, record).unwrap();
                    lose(version);
                }
            }
            commit(&mut lane, &mut source).unwrap();
            // The commit was written and not yet flushed, or it was.
            lose(version);
            medium.note_flush();
            lose(version + 1);
        }
        assert!(most > 50, "at most {most} blocks were uncertain");
    }
}
