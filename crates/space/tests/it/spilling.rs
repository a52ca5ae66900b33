//! Full spaces: spilling to a lower tier and back, dropping, refusing, and many ranks in a small quota.

use crate::support::{options, ranked, reader, shared_state, soon, writer, Root};
use forebay_space::{
    drain, inspect, Dtype, Horizon, Kind, OpenOptions, Reader, SpillTier, TierKind, WhenFull, Writer,
};
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn spilling(dir: &Path, first: u64, lower: u64) -> OpenOptions {
    let tier = SpillTier { path: dir.into(), quota: Some(lower), tier: None };
    OpenOptions {
        quota_bytes: Some(first),
        segment_bytes: Some(MIB),
        spill: vec![tier],
        rank: Some(0),
        size: Some(1),
        ..options()
    }
}

/// Element `i` of what rank `rank` puts in version `version`.
fn element(version: u64, rank: u64, i: u64) -> u64 {
    (version << 40 | rank << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn put(w: &mut Writer, version: u64, elements: u64) -> forebay_space::Result<()> {
    let (rank, size) = (u64::from(w.rank()), u64::from(w.size()));
    let data: Vec<u64> = (0..elements).map(|i| element(version, rank, i)).collect();
    w.put_array("a", &[size * elements], &[rank * elements], &[elements], &data)?;
    w.put_array("small", &[size], &[rank], &[1], &[version])
}

fn step(w: &mut Writer, elements: u64) -> forebay_space::Result<u64> {
    let version = w.begin_step()?;
    put(w, version, elements)?;
    w.end_step()?;
    Ok(version)
}

fn check(r: &mut Reader, version: u64, size: u64, elements: u64) {
    let a = r.get_array::<u64>("a", None).unwrap();
    assert_eq!(a.len() as u64, size * elements);
    for (at, x) in (0..).zip(&a) {
        assert_eq!(*x, element(version, at / elements, at % elements), "element {at} of version {version}");
    }
    assert_eq!(r.get_array::<u64>("small", None).unwrap(), vec![version; size as usize]);
}

/// Half a MiB per version: two versions fill a segment.
const ELEMENTS: u64 = 60_000;

fn read_all(r: &mut Reader, count: u64) {
    for version in 0..count {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(r, version, 1, ELEMENTS);
        r.end_step().unwrap();
    }
    assert_eq!(r.begin_step(None).unwrap(), None);
}

#[test]
fn eight_times_the_quota_waits_on_the_lower_tier() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("deep");
    let mut w = Writer::open(&name, &spilling(disk.path(), 8 * MIB, 256 * MIB)).unwrap();
    for _ in 0..128 {
        step(&mut w, ELEMENTS).unwrap();
    }
    let info = inspect(&name).unwrap();
    assert_eq!(info.tiers.len(), 2, "{:?}", info.tiers);
    assert!(info.tiers[0].used_bytes <= 8 * MIB && info.tiers[1].used_bytes > 40 * MIB, "{:?}", info.tiers);
    assert!(info.moved.spilled_bytes > 40 * MIB && info.moved.failed == 0, "{:?}", info.moved);
    assert_eq!(info.versions.len(), 128, "every version is there");
    w.close().unwrap();
    assert_eq!(forebay_space::verify(&name).unwrap().damaged.len(), 0);
    let mut r = reader(&name, 0, 1).unwrap();
    read_all(&mut r, 128);
    r.close().unwrap();
    assert_eq!(root.left(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "the lower pool went with the space");
}

#[test]
fn views_hold_through_moves_and_a_slow_reader_loses_nothing() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("views");
    let mut w = Writer::open(&name, &spilling(disk.path(), 8 * MIB, 256 * MIB)).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    step(&mut w, ELEMENTS).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    let held = r.view("a", None).unwrap();
    let before = held.bytes().to_vec();
    let produced = std::thread::spawn(move || {
        for _ in 1..100 {
            step(&mut w, ELEMENTS).unwrap();
        }
        w
    });
    let mut w = produced.join().unwrap();
    assert!(held.bytes() == before, "a view shows the same while everything around it moves");
    check(&mut r, 0, 1, ELEMENTS);
    drop(held);
    r.end_step().unwrap();
    // Interleaved from here on: what comes up again and what goes down meet.
    for version in 1..150 {
        if version < 51 {
            step(&mut w, ELEMENTS).unwrap();
        }
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(&mut r, version, 1, ELEMENTS);
        r.end_step().unwrap();
    }
    w.close().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
}

#[test]
fn lost_shared_state_is_rebuilt_over_all_pools() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("rebuilt");
    let mut w = Writer::open(&name, &spilling(disk.path(), 8 * MIB, 64 * MIB)).unwrap();
    for _ in 0..40 {
        step(&mut w, ELEMENTS).unwrap();
    }
    w.close().unwrap();
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    read_all(&mut r, 40);
}

/// The first pool of tier `tier`, on a file system, above a lower pool: its writer ends without a word, the shared
/// state goes as with a reboot, and everyone who comes then finds what was committed.
fn recovers_with_a_first_pool_on_blocks(tier: TierKind) {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let first = tempfile::tempdir().unwrap();
    let name = first.path().join("blocks").display().to_string();
    if let Err(e) = forebay_tier::create(tier, &first.path().join("probe"), 4096) {
        return crate::skips::skipped(&format!("recovery with a first pool on tier {tier}"), e.message());
    }
    let options = OpenOptions {
        tier: Some(tier),
        horizon: Some(Horizon::Epoch),
        ..spilling(disk.path(), 8 * MIB, 64 * MIB)
    };
    let reboot = || std::fs::remove_file(shared_state(&name, "control")).unwrap();
    let look = |count: u64| {
        assert_eq!(inspect(&name).unwrap().versions.len() as u64, count, "versions after a reboot");
        assert_eq!(forebay_space::verify(&name).unwrap().damaged.len(), 0);
    };
    let mut w = Writer::open(&name, &options).unwrap();
    for _ in 0..20 {
        step(&mut w, ELEMENTS).unwrap();
    }
    w.begin_step().unwrap();
    put(&mut w, 20, 10).unwrap();
    drop(w);
    assert!(inspect(&name).unwrap().moved.spilled_bytes > 0, "nothing lies in the lower pool");
    reboot();
    look(20);
    reboot();
    let mut w = Writer::open(&name, &options).unwrap();
    assert_eq!(w.resume().unwrap(), 20, "the writers begin where they stopped");
    for _ in 20..24 {
        step(&mut w, ELEMENTS).unwrap();
    }
    w.close().unwrap();
    reboot();
    look(24);
    let mut r = reader(&name, 0, 1).unwrap();
    read_all(&mut r, 24);
    drop(r);
    let clean = forebay_space::CleanOptions { names: vec![name.clone()], ..Default::default() };
    if Path::new(&name).exists() {
        assert_eq!(forebay_space::clean(&clean).unwrap().removed.len(), 1);
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "the lower pool went with the space");
    drop(root);
}

#[test]
fn a_first_pool_in_a_file_above_a_lower_one_is_recovered() {
    recovers_with_a_first_pool_on_blocks(TierKind::File);
}

#[test]
fn a_first_pool_past_the_page_cache_above_a_lower_one_is_recovered() {
    recovers_with_a_first_pool_on_blocks(TierKind::Direct);
}

#[test]
fn a_missing_lower_pool_is_an_error_and_no_shorter_stream() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("missing");
    let mut w = Writer::open(&name, &spilling(disk.path(), 4 * MIB, 64 * MIB)).unwrap();
    for _ in 0..20 {
        step(&mut w, ELEMENTS).unwrap();
    }
    w.close().unwrap();
    let pool = std::fs::read_dir(disk.path()).unwrap().next().unwrap().unwrap().path();
    let aside = pool.with_extension("aside");
    std::fs::rename(&pool, &aside).unwrap();
    let error = reader(&name, 0, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains(&*pool.to_string_lossy()), "{error}");
    std::fs::rename(&aside, &pool).unwrap();
    read_all(&mut reader(&name, 0, 1).unwrap(), 20);
}

#[test]
fn when_the_lower_tier_is_full_too_the_writer_waits_and_says_for_whom() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("full");
    let quick = OpenOptions {
        timeout: soon(),
        horizon: Some(Horizon::Epoch),
        ..spilling(disk.path(), 4 * MIB, 8 * MIB)
    };
    let mut w = Writer::open(&name, &quick).unwrap();
    // What the mover does not bring down within the deadline is no more than late: then the step is begun again.
    let late = Instant::now() + Duration::from_secs(60);
    let complete = loop {
        let Err(error) = step(&mut w, ELEMENTS) else { continue };
        assert_eq!(error.kind(), Kind::QuotaFull, "{error}");
        let text = error.to_string();
        assert!(text.contains("lower_tiers") && text.contains("no reader has come yet"), "{text}");
        w.abort_step().unwrap();
        if w.next_version() > 16 || Instant::now() > late {
            break w.next_version();
        }
    };
    assert!(complete > 16, "both tiers were used: {complete}");
    // Everything acknowledged is there, and the stream goes on when space is freed.
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..complete {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(&mut r, version, 1, ELEMENTS);
        r.end_step().unwrap();
    }
    assert_eq!(step(&mut w, ELEMENTS).unwrap(), complete);
}

#[test]
fn the_oldest_versions_are_dropped_when_that_is_the_policy() {
    let root = Root::new();
    let name = root.name("drop");
    let open =
        OpenOptions { when_full: Some(WhenFull::DropOldest), quota_bytes: Some(8 * MIB), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &open).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    step(&mut w, ELEMENTS).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    let held = r.view("a", None).unwrap();
    // While a version is held, neither it nor what came after it goes.
    let mut blocked = None;
    w.set_timeout(soon());
    for _ in 0..40 {
        if let Err(e) = step(&mut w, ELEMENTS) {
            blocked = Some(e.kind());
            w.abort_step().unwrap();
            break;
        }
    }
    assert_eq!(blocked, Some(Kind::QuotaFull));
    check(&mut r, 0, 1, ELEMENTS);
    drop(held);
    r.end_step().unwrap();
    w.set_timeout(Duration::from_secs(20));
    for _ in 0..100 {
        step(&mut w, ELEMENTS).unwrap();
    }
    let info = inspect(&name).unwrap();
    assert!(info.moved.dropped_versions > 50 && info.versions_oldest > 50, "{:?}", info.moved);
    let mut next = 0;
    let last = w.next_version() - 1;
    while next <= last {
        let version = r.begin_step(None).unwrap().expect("the writer lives");
        assert!(version >= next);
        check(&mut r, version, 1, ELEMENTS);
        r.end_step().unwrap();
        next = version + 1;
    }
}

/// A reader asks when every complete version was dropped for the one that is being written.
#[test]
fn a_reader_waits_for_what_comes_when_all_that_was_complete_is_dropped() {
    let root = Root::new();
    let name = root.name("none");
    let open = OpenOptions {
        when_full: Some(WhenFull::DropOldest),
        quota_bytes: Some(8 * MIB),
        segment_bytes: Some(256 << 10),
        ..ranked(0, 1)
    };
    let mut w = Writer::open(&name, &open).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    // A version takes more than half of the quota, in many segments.
    let put = |w: &mut Writer, version: u64| {
        for piece in 0..22 {
            let data: Vec<u64> = (0..30_000).map(|i| element(version, piece, i)).collect();
            w.put_array(&piece.to_string(), &[30_000], &[0], &[30_000], &data).unwrap();
        }
    };
    let step = |w: &mut Writer| {
        let version = w.begin_step().unwrap();
        put(w, version);
        w.end_step().unwrap();
    };
    let check = |r: &mut Reader, version: u64| {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        for piece in 0..22 {
            let data = r.get_array::<u64>(&piece.to_string(), None).unwrap();
            assert!((0..).zip(&data).all(|(i, x)| *x == element(version, piece, i)), "{version}");
        }
        r.end_step().unwrap();
    };
    step(&mut w);
    step(&mut w);
    check(&mut r, 1); // version 0 was dropped for it
    step(&mut w);
    // Its pieces need what version 2 takes.
    assert_eq!(w.begin_step().unwrap(), 3);
    put(&mut w, 3);
    let (oldest, complete) = inspect(&name).map(|i| (i.versions_oldest, i.versions_complete)).unwrap();
    assert_eq!((oldest, complete), (3, 3));
    let early = r.begin_step(Some(Duration::from_millis(20))).unwrap_err();
    assert_eq!(early.kind(), Kind::TimedOut, "{early}");
    w.end_step().unwrap();
    check(&mut r, 3);
    assert_eq!((r.stats().dropped, r.stats().skipped), (2, 2), "versions 0 and 2");
    w.close().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
}

#[test]
fn a_full_space_refuses_at_once_when_that_is_the_policy() {
    let root = Root::new();
    let name = root.name("error");
    let open = OpenOptions { when_full: Some(WhenFull::Error), quota_bytes: Some(4 * MIB), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &open).unwrap();
    let error = (0..100).find_map(|_| step(&mut w, ELEMENTS).err()).expect("it is full some time");
    assert_eq!(error.kind(), Kind::QuotaFull);
    assert!(w.stats().wait_ns < 5_000_000_000, "it did not wait for its 20 s");
    assert!(!error.to_string().contains("deadline"), "{error}");
}

#[test]
fn policies_and_tiers_that_do_not_fit_are_refused() {
    let root = Root::new();
    let open = |options: OpenOptions| Writer::open(&root.name("no"), &options).map(drop).unwrap_err().kind();
    assert_eq!(open(OpenOptions { when_full: Some(WhenFull::Spill), ..ranked(0, 1) }), Kind::Usage);
    let nowhere = SpillTier { path: "/nowhere/at/all".into(), quota: None, tier: None };
    assert_eq!(open(OpenOptions { spill: vec![nowhere], ..ranked(0, 1) }), Kind::Io);
    let here = SpillTier { path: "/tmp".into(), quota: Some(u64::MAX >> 1), tier: None };
    assert_eq!(open(OpenOptions { spill: vec![here.clone()], ..ranked(0, 1) }), Kind::TierFull);
    let dropping = OpenOptions { spill: vec![here], when_full: Some(WhenFull::DropOldest), ..ranked(0, 1) };
    assert_eq!(open(dropping), Kind::Usage);
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn drain_frees_the_memory_of_producers_that_have_gone() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("drained");
    let mut w = Writer::open(&name, &spilling(disk.path(), 16 * MIB, 64 * MIB)).unwrap();
    for _ in 0..20 {
        step(&mut w, ELEMENTS).unwrap();
    }
    let living = drain(&name, Duration::from_secs(5)).unwrap();
    assert_eq!((living.moved_bytes, living.remaining_bytes), (0, 0), "a living producer's lane is its own");
    w.close().unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    let view = r.view("a", None).unwrap();
    assert_eq!(drain(&name, Duration::from_millis(100)).unwrap_err().kind(), Kind::TimedOut);
    drop(view);
    r.end_step().unwrap();
    let done = drain(&name, Duration::from_secs(20)).unwrap();
    assert_eq!(done.remaining_bytes, 0);
    assert_eq!(inspect(&name).unwrap().tiers[0].reserved_bytes, 0);
    for version in 1..20 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(&mut r, version, 1, ELEMENTS);
        r.end_step().unwrap();
    }
    let plain = root.name("plain");
    let _w = writer(&plain, 0, 1).unwrap();
    assert_eq!(drain(&plain, Duration::ZERO).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn drain_says_when_the_lower_tier_is_full_and_keeps_what_it_moved() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("drained-full");
    let mut w = Writer::open(&name, &spilling(disk.path(), 16 * MIB, 4 * MIB)).unwrap();
    for _ in 0..20 {
        step(&mut w, ELEMENTS).unwrap();
    }
    w.close().unwrap();
    let used = inspect(&name).unwrap().tiers[0].used_bytes;
    let full = drain(&name, Duration::from_secs(20)).unwrap_err();
    assert_eq!(full.kind(), Kind::TierFull, "{full}");
    assert!(full.to_string().contains("data that were moved stay moved"), "{full}");
    let left = inspect(&name).unwrap().tiers[0].used_bytes;
    assert!(0 < left && left < used, "{used} bytes before, {left} after");
    assert_eq!(drain(&name, Duration::from_secs(20)).unwrap_err().kind(), Kind::TierFull);
    assert_eq!(inspect(&name).unwrap().tiers[0].used_bytes, left, "nothing more can go");
    read_all(&mut reader(&name, 0, 1).unwrap(), 20);
}

/// A rank that has ended frees nothing itself any more; what was read of its lane goes to the rank that needs the
/// space.
#[test]
fn what_a_rank_that_has_ended_held_is_released() {
    // Two granules per rank and version, in a quota of six.
    const PIECE: u64 = 50_000;
    let root = Root::new();
    let name = root.name("ended");
    let open = |rank| {
        let options = OpenOptions { quota_bytes: Some(6 * (256 << 10)), ..ranked(rank, 2) };
        Writer::open(&name, &options).unwrap()
    };
    let put = |w: &mut Writer| {
        w.begin_step().unwrap();
        let at = u64::from(w.rank()) * PIECE;
        w.put_array("a", &[2 * PIECE], &[at], &[PIECE], &vec![1u64; PIECE as usize]).unwrap();
        w.end_step().unwrap();
    };
    let (mut early, mut late) = (open(0), open(1));
    let mut r = reader(&name, 0, 1).unwrap();
    put(&mut early);
    put(&mut late);
    put(&mut early);
    early.close().unwrap();
    for version in 0..2 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
        if version == 0 {
            put(&mut late);
        }
    }
    late.close().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
}

/// Four ranks, one of them ten times slower, in a quota of one and a half versions, a thousand versions.
#[test]
fn fast_ranks_in_a_small_quota_do_not_lock_each_other_out() {
    const VERSIONS: u64 = 1000;
    const RANKS: u32 = 4;
    // Two granules per rank and version; the quota holds twelve.
    const PIECE: u64 = 50_000;
    let root = Root::new();
    let name = root.name("tight");
    let open = |rank| OpenOptions { quota_bytes: Some(12 * (256 << 10)), ..ranked(rank, RANKS) };
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let (name, options) = (name.clone(), open(rank));
            std::thread::spawn(move || {
                let mut w = Writer::open(&name, &options).unwrap();
                let data = vec![rank as u64; PIECE as usize];
                for _ in 0..VERSIONS {
                    w.begin_step().unwrap();
                    let at = u64::from(rank) * PIECE;
                    w.put_array("a", &[u64::from(RANKS) * PIECE], &[at], &[PIECE], &data).unwrap();
                    std::thread::sleep(Duration::from_micros(if rank == 2 { 1000 } else { 100 }));
                    w.end_step().unwrap();
                }
                w.close().unwrap();
            })
        })
        .collect();
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..VERSIONS {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
    }
    for rank in ranks {
        rank.join().unwrap();
    }
    assert_eq!(r.begin_step(None).unwrap(), None);
}

/// A rank that has put and waits for the others makes no call that could free space, and what it holds of a version
/// that every reader has read is all that the last rank lacks.
#[test]
fn space_is_freed_by_a_rank_that_waits_for_the_others() {
    const PIECE: u64 = 50_000;
    let root = Root::new();
    let disk = tempfile::tempdir().unwrap();
    let on_disk = OpenOptions { tier: Some(TierKind::File), horizon: Some(Horizon::Epoch), ..options() };
    let on_disk_name = disk.path().join("space").display().to_string();
    for (name, options) in [(root.name("memory"), options()), (on_disk_name, on_disk)] {
        // Two granules per rank and version; the quota holds seven.
        let open = |rank| OpenOptions {
            quota_bytes: Some(7 * (256 << 10)),
            rank: Some(rank),
            size: Some(2),
            ..options.clone()
        };
        let mut ranks = [0, 1].map(|rank| Writer::open(&name, &open(rank)).unwrap());
        let put = |w: &mut Writer, in_place: bool| {
            let (shape, start) = ([2 * PIECE], [u64::from(w.rank()) * PIECE]);
            w.begin_step().unwrap();
            if in_place {
                let mut memory = w.reserve("a", Dtype::U64, &shape, &start, &[PIECE]).unwrap();
                memory.as_mut_slice().fill(1);
                w.commit(memory).unwrap();
            } else {
                w.put_array("a", &shape, &start, &[PIECE], &vec![1u64; PIECE as usize]).unwrap();
            }
        };
        let mut r = reader(&name, 0, 1).unwrap();
        for version in 0..6 {
            for w in &mut ranks {
                put(w, version % 2 == 1);
                if version == 0 || w.rank() == 1 {
                    continue;
                }
                assert_eq!(r.begin_step(None).unwrap(), Some(version - 1));
                r.end_step().unwrap();
            }
            ranks.iter_mut().for_each(|w| w.end_step().unwrap());
        }
        for w in ranks {
            w.close().unwrap();
        }
        assert_eq!(r.begin_step(None).unwrap(), Some(5));
        r.end_step().unwrap();
        assert_eq!(r.begin_step(None).unwrap(), None);
        r.close().unwrap();
        assert!(!Path::new(&name).exists(), "a space that was read to its end goes");
    }
}

/// Ranks that come one after the other, each with time to prepare its next segment: what they prepare must not lie
/// between the segments so that no free run is long enough for the next version.
#[test]
fn segments_prepared_ahead_do_not_fragment_the_pool() {
    const PIECE: u64 = 50_000;
    let root = Root::new();
    let name = root.name("pieces");
    let open = |rank| OpenOptions { quota_bytes: Some(12 * (256 << 10)), ..ranked(rank, 4) };
    let put = |w: &mut Writer| {
        let at = u64::from(w.rank()) * PIECE;
        let data = vec![1u64; PIECE as usize];
        w.begin_step().and_then(|_| w.put_array("a", &[4 * PIECE], &[at], &[PIECE], &data))
    };
    let mut ranks: Vec<Writer> = (0..4)
        .map(|rank| {
            let mut w = Writer::open(&name, &open(rank)).unwrap();
            put(&mut w).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            w
        })
        .collect();
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..4 {
        for w in &mut ranks {
            w.end_step().unwrap();
        }
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
        // Two of them find space at once; the others when those have freed what was read.
        for pair in [[0, 1], [2, 3]] {
            for rank in pair {
                put(&mut ranks[rank]).unwrap();
            }
        }
    }
}

/// A process that is killed while it removes a space has marked it as removed and not yet renamed it away: the next
/// process goes on with it.
#[test]
fn a_removal_that_was_cut_short_is_finished_by_the_next() {
    use std::os::unix::fs::FileExt;
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    let name = root.name("cut");
    let leave_cut = || {
        let mut w = Writer::open(&name, &spilling(disk.path(), 4 * MIB, 16 * MIB)).unwrap();
        assert_eq!(step(&mut w, ELEMENTS).unwrap(), 0, "nothing is left of the one before");
        w.close().unwrap();
        let control = std::fs::File::options().write(true).open(shared_state(&name, "control")).unwrap();
        // The word `removed` of the control segment's head; nothing but this mark there removes anything.
        control.write_all_at(&1u64.to_le_bytes(), 56).unwrap();
        assert_eq!(inspect(&name).unwrap().versions.len(), 1);
        control.write_all_at(b"REMOVED!", 56).unwrap();
    };
    leave_cut();
    leave_cut();
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 1, "the first one's lower pool went");
    assert_eq!(inspect(&name).unwrap_err().kind(), Kind::PeerMissing);
    assert_eq!(root.left(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}
