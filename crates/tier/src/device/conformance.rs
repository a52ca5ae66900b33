//! The suite that every kind of device passes: the contract of [`Device`], checked on fresh pools.
//!
//! It is part of the library so that devices defined elsewhere (adapters, new tiers) run the same checks.
//! Each check panics with what differs. It needs some 20 MiB of free space and leaves nothing allocated in other
//! pools.

use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;

use super::Device;
use crate::checksum::crc32c;
use crate::{capacity, Access, Horizon, Kind, Result};

/// Makes a fresh pool of at least that many bytes.
pub type Make<'a> = &'a dyn Fn(u64) -> Arc<dyn Device>;
/// Opens an existing pool again.
pub type Open<'a> = &'a dyn Fn(&Path, Access) -> Result<Arc<dyn Device>>;

const MIB: u64 = 1 << 20;

/// Runs every check that needs fresh pools only.
pub fn check(make: Make) {
    a_fresh_pool_is_sparse_and_private(make);
    preparing_allocates_and_keeps_content(make);
    what_does_not_fit_is_refused_untouched(make);
    writes_land_where_they_belong(make);
    checksums_are_those_of_the_chunks(make);
    words_are_stored_whole(make);
    staged_memory_becomes_the_range(make);
    ranges_outside_are_refused(make);
    empty_ranges_do_nothing(make);
    holes_are_passed_over(make);
    threads_write_side_by_side(make);
    flushes_that_fail_poison(make);
}

/// The part of [`check`] that holds also where the pool is a device and no file: `make` gives the same one again, with
/// whatever it holds.
pub fn check_bytes(make: Make) {
    writes_land_where_they_belong(make);
    checksums_are_those_of_the_chunks(make);
    words_are_stored_whole(make);
    staged_memory_becomes_the_range(make);
    ranges_outside_are_refused(make);
    threads_write_side_by_side(make);
}

/// Runs the checks that open a pool a second time.
pub fn check_reopening(make: Make, open: Open) {
    another_handle_sees_what_was_written(make, open);
    a_reader_cannot_write(make, open);
    a_cut_off_pool_is_damaged(make, open);
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8 ^ seed).collect()
}

fn allocated(device: &dyn Device) -> u64 {
    std::fs::metadata(device.path()).expect("the pool file is there").blocks() * 512
}

#[track_caller]
fn expect_kind<T>(result: Result<T>, kind: Kind) {
    match result {
        Ok(_) => panic!("expected {kind}, got success"),
        Err(e) => assert_eq!(e.kind(), kind, "{e}"),
    }
}

fn a_fresh_pool_is_sparse_and_private(make: Make) {
    let pool = make(MIB + 1);
    assert!(pool.capacity() > MIB && pool.capacity() % 4096 == 0, "capacity {}", pool.capacity());
    let meta = std::fs::metadata(pool.path()).expect("the pool file is there");
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(meta.len(), pool.capacity());
    assert_eq!(allocated(&*pool), 0, "a fresh pool has pages");
    assert!(pool.durability(Horizon::None) <= pool.durability(Horizon::Epoch));
    assert_eq!(pool.durability(Horizon::Epoch), pool.durability(Horizon::Write));
    drop(make(1));
}

fn preparing_allocates_and_keeps_content(make: Make) {
    let pool = make(4 * MIB);
    pool.prepare(0..MIB).expect("space for 1 MiB");
    assert!(allocated(&*pool) >= MIB && allocated(&*pool) < 4 * MIB, "allocated {}", allocated(&*pool));
    let data = pattern(5000, 1);
    pool.write(4000, &data).expect("write");
    for range in [0..MIB, 100..4097, MIB - 1..2 * MIB + 1, 0..4 * MIB, 0..4 * MIB] {
        pool.prepare(range).expect("space for 4 MiB");
        assert!(pool.bytes(4000..9000) == data, "preparing changed bytes");
    }
    assert!(allocated(&*pool) >= 4 * MIB);
    pool.populate_read(0..4 * MIB);
    assert!(pool.bytes(9000..4 * MIB).iter().all(|b| *b == 0), "prepared bytes are not zero");
}

fn what_does_not_fit_is_refused_untouched(make: Make) {
    let probe = make(MIB);
    let free = capacity::headroom(capacity::parent(probe.path()), probe.kind()).expect("headroom");
    let too_much = free.bytes.saturating_add(1 << 30).next_multiple_of(MIB);
    if too_much > 8 << 40 {
        return; // More free space than a sparse file can pretend everywhere.
    }
    let pool = make(too_much);
    let error = pool.prepare(0..too_much).expect_err("more than there is");
    assert_eq!(error.kind(), Kind::TierFull, "{error}");
    for key in ["limited_by", "wanted_bytes", "free_bytes"] {
        assert!(error.context().iter().any(|(k, _)| *k == key), "{key} is missing: {error}");
    }
    assert!(error.hint_text().is_some(), "no hint: {error}");
    assert_eq!(allocated(&*pool), 0, "a refused prepare left pages");
    pool.prepare(too_much - MIB..too_much).expect("1 MiB fits");
}

fn writes_land_where_they_belong(make: Make) {
    let pool = make(2 * MIB);
    pool.prepare(0..2 * MIB).expect("free space");
    let mut model = vec![0u8; 2 << 20];
    let mut seed = 0u8;
    for offset in [0usize, 1, 8, 63, 64, 4095, 65_536, 65_537, 1 << 20] {
        for len in [1usize, 7, 63, 64, 65, 255, 256, 257, 2048, 16_384, 16_385, 70_001] {
            seed = seed.wrapping_add(1);
            let data = pattern(len, seed);
            pool.write(offset as u64, &data).expect("write");
            model[offset..offset + len].copy_from_slice(&data);
            pool.persist_written(offset as u64..(offset + len) as u64).expect("persist");
        }
    }
    pool.persist(0..2 * MIB).expect("persist");
    pool.fence();
    assert!(pool.bytes(0..2 * MIB) == model, "the pool differs from the model");
}

fn checksums_are_those_of_the_chunks(make: Make) {
    let pool = make(2 * MIB);
    pool.prepare(0..2 * MIB).expect("free space");
    for (offset, len, chunk) in [
        (0u64, 100usize, 65_536usize),
        (64, 65_536, 65_536),
        (3, 200_001, 65_536),
        (7, 9000, 4096),
        (0, 1_000_000, 65_536),
    ] {
        let data = pattern(len, chunk as u8);
        let mut crcs = vec![42];
        pool.write_checksummed(offset, &data, chunk, &mut crcs).expect("write");
        let expected: Vec<u32> = std::iter::once(42).chain(data.chunks(chunk).map(crc32c)).collect();
        assert_eq!(crcs, expected, "{len} bytes at {offset} in chunks of {chunk}");
        assert!(pool.bytes(offset..offset + len as u64) == data, "the bytes differ");
        let data = pattern(len, len as u8);
        for (chunk, soon) in [(None, false), (None, true), (Some(chunk), false), (Some(chunk), true)] {
            crcs.clear();
            pool.write_unordered(offset, &data, chunk, &mut crcs, soon).expect("write");
            pool.fence();
            let expected = chunk.map_or(Vec::new(), |chunk| data.chunks(chunk).map(crc32c).collect());
            assert_eq!(crcs, expected, "{len} bytes at {offset} in no order");
            assert!(pool.bytes(offset..offset + len as u64) == data, "the bytes in no order differ");
        }
    }
}

fn words_are_stored_whole(make: Make) {
    let pool = make(MIB);
    pool.prepare(0..MIB).expect("free space");
    assert_eq!(pool.load_word(8), 0);
    pool.store_word(8, 0x0123_4567_89AB_CDEF).expect("store");
    pool.persist(8..16).expect("persist");
    assert_eq!(pool.load_word(8), 0x0123_4567_89AB_CDEF);
    assert_eq!((pool.load_word(0), pool.load_word(16)), (0, 0), "neighbours changed");
    assert_eq!(pool.bytes(8..16), 0x0123_4567_89AB_CDEFu64.to_ne_bytes());
    let last = pool.capacity() - 8;
    pool.store_word(last, 1).expect("the last word");
    assert_eq!(pool.load_word(last), 1);
    expect_kind(pool.store_word(4, 1), Kind::Internal);
    expect_kind(pool.store_word(pool.capacity(), 1), Kind::Internal);
}

fn staged_memory_becomes_the_range(make: Make) {
    let pool = make(2 * MIB);
    pool.prepare(0..2 * MIB).expect("free space");
    let data = pattern(100_000, 9);
    for chunk_bytes in [None, Some(65_536)] {
        let mut staged = pool.stage(64..100_064).expect("stage");
        assert_eq!(staged.len(), 100_000);
        assert_eq!(staged.as_ptr() as usize % 64, 0, "staged memory is not aligned");
        assert_eq!(staged.is_in_pool(), pool.byte_addressable());
        staged.as_mut_slice().copy_from_slice(&data);
        assert!(staged.as_slice() == data);
        // Staged memory is filled by other threads, too.
        let staged = std::thread::spawn(move || staged).join().expect("it is Send");
        let mut crcs = Vec::new();
        pool.unstage(staged, chunk_bytes, &mut crcs).expect("unstage");
        pool.persist(64..100_064).expect("persist");
        assert!(pool.bytes(64..100_064) == data, "the bytes differ");
        let expected: Vec<u32> = chunk_bytes.map_or_else(Vec::new, |n| data.chunks(n).map(crc32c).collect());
        assert_eq!(crcs, expected);
    }
    let mut orphan = pool.stage(MIB..MIB + 10).expect("stage");
    drop(pool);
    orphan.as_mut_slice().fill(7);
    assert_eq!(orphan.as_slice(), [7; 10]);
    let other = make(2 * MIB);
    if other.byte_addressable() {
        expect_kind(other.unstage(orphan, None, &mut Vec::new()), Kind::Internal);
    }
}

fn ranges_outside_are_refused(make: Make) {
    let pool = make(MIB);
    let end = pool.capacity();
    pool.prepare(0..end).expect("free space");
    let outside: [Range<u64>; 3] = [end - 1..end + 1, end + 1..end + 2, u64::MAX - 1..u64::MAX];
    for range in outside {
        expect_kind(pool.prepare(range.clone()), Kind::Internal);
        expect_kind(pool.persist(range.clone()), Kind::Internal);
        expect_kind(pool.stage(range.clone()), Kind::Internal);
        expect_kind(pool.write(range.start, &vec![1; (range.end - range.start) as usize]), Kind::Internal);
        expect_kind(pool.write_checksummed(range.start, &[1, 2], 1, &mut Vec::new()), Kind::Internal);
        pool.populate_read(range.clone());
        let read = catch_unwind(AssertUnwindSafe(|| pool.bytes(range.clone()).len()));
        assert!(read.is_err(), "bytes {range:?} of {end} were handed out");
    }
    #[allow(clippy::reversed_empty_ranges)] // the mistake that is tested
    let reversed = 8192..4096;
    expect_kind(pool.prepare(reversed.clone()), Kind::Internal);
    expect_kind(pool.persist(reversed.clone()), Kind::Internal);
    expect_kind(pool.stage(reversed), Kind::Internal);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.load_word(end))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| pool.load_word(4))).is_err());
}

fn empty_ranges_do_nothing(make: Make) {
    let pool = make(MIB);
    for at in [0, 5, pool.capacity()] {
        pool.prepare(at..at).expect("nothing");
        pool.write(at, &[]).expect("nothing");
        pool.write_checksummed(at, &[], 64, &mut Vec::new()).expect("nothing");
        pool.persist(at..at).expect("nothing");
        pool.populate_read(at..at);
        assert!(pool.bytes(at..at).is_empty());
        let staged = pool.stage(at..at).expect("nothing");
        assert!(staged.is_empty() && staged.as_slice().is_empty());
        pool.unstage(staged, Some(64), &mut Vec::new()).expect("nothing");
    }
    assert_eq!(allocated(&*pool), 0, "empty ranges took pages");
}

/// What is passed over as a hole is never what was written, and past the end there is nothing.
fn holes_are_passed_over(make: Make) {
    let pool = make(8 * MIB);
    assert!(pool.after_hole(0) <= pool.capacity());
    pool.prepare(5 * MIB..6 * MIB).expect("prepare");
    pool.write(5 * MIB + 8192, b"data").expect("write");
    for from in [0, 4 * MIB + 1, 5 * MIB, 5 * MIB + 8192, 5 * MIB + 8195] {
        let found = pool.after_hole(from);
        assert!((from..=from.max(5 * MIB + 8192)).contains(&found), "{found} from {from}");
    }
    assert_eq!(pool.after_hole(pool.capacity()), pool.capacity());
}

fn threads_write_side_by_side(make: Make) {
    let pool = make(4 * MIB);
    std::thread::scope(|scope| {
        for lane in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                let start = lane * MIB;
                pool.prepare(start..start + MIB).expect("free space");
                for piece in 0..16 {
                    let at = start + piece * 65_536;
                    pool.write(at, &pattern(65_536, lane as u8)).expect("write");
                    pool.persist_written(at..at + 65_536).expect("persist");
                }
            });
        }
    });
    for lane in 0..4u64 {
        for piece in 0..16 {
            let at = lane * MIB + piece * 65_536;
            assert!(pool.bytes(at..at + 65_536) == pattern(65_536, lane as u8), "lane {lane}, piece {piece}");
        }
    }
}

fn flushes_that_fail_poison(make: Make) {
    let pool = make(MIB);
    pool.prepare(0..MIB).expect("free space");
    pool.write(0, b"before").expect("write");
    let staged = pool.stage(64..128).expect("stage");
    if !pool.inject_flush_failure(libc::EIO) {
        return; // Flushes of this kind cannot fail.
    }
    let first = pool.persist(0..6).expect_err("the flush fails");
    assert_eq!(first.kind(), Kind::Poisoned, "{first}");
    assert!(first.message().contains("Input/output error"), "{first}");
    for _ in 0..2 {
        let again = pool.persist(0..6).expect_err("poisoned");
        assert_eq!((again.kind(), again.message()), (Kind::Poisoned, first.message()));
        expect_kind(pool.write(0, b"after"), Kind::Poisoned);
        expect_kind(pool.write_checksummed(0, b"after", 8, &mut Vec::new()), Kind::Poisoned);
        expect_kind(pool.write_unordered(0, b"after", None, &mut Vec::new(), false), Kind::Poisoned);
        expect_kind(pool.store_word(0, 1), Kind::Poisoned);
        expect_kind(pool.stage(0..8), Kind::Poisoned);
        expect_kind(pool.prepare(0..8), Kind::Poisoned);
    }
    expect_kind(pool.unstage(staged, None, &mut Vec::new()), Kind::Poisoned);
    assert_eq!(pool.bytes(0..6), b"before", "reading goes on");
    make(MIB).persist(0..0).expect("other pools are not poisoned");
}

fn another_handle_sees_what_was_written(make: Make, open: Open) {
    let pool = make(2 * MIB);
    pool.prepare(0..2 * MIB).expect("free space");
    let writer = open(pool.path(), Access::Write).expect("open for writing");
    let reader = open(pool.path(), Access::Read).expect("open for reading");
    assert_eq!((reader.capacity(), reader.kind()), (pool.capacity(), pool.kind()));
    let data = pattern(50_000, 3);
    pool.write(10, &data).expect("write");
    writer.prepare(0..2 * MIB).expect("nothing is allocated, everything kept");
    writer.store_word(MIB, 77).expect("store");
    assert!(reader.bytes(10..50_010) == data && writer.bytes(10..50_010) == data, "the bytes differ");
    assert_eq!((reader.load_word(MIB), pool.load_word(MIB)), (77, 77));
    let path = pool.path().to_owned();
    drop((pool, writer, reader));
    let later = open(&path, Access::Read).expect("open later");
    later.populate_read(0..2 * MIB);
    assert!(later.bytes(10..50_010) == data, "the bytes are gone");
    assert!(open(&path.with_extension("missing"), Access::Read).is_err());
}

fn a_reader_cannot_write(make: Make, open: Open) {
    let pool = make(MIB);
    pool.prepare(0..MIB).expect("free space");
    let reader = open(pool.path(), Access::Read).expect("open for reading");
    expect_kind(reader.prepare(0..MIB), Kind::PermissionDenied);
    expect_kind(reader.write(0, b"x"), Kind::PermissionDenied);
    expect_kind(reader.write_checksummed(0, b"x", 8, &mut Vec::new()), Kind::PermissionDenied);
    expect_kind(reader.write_unordered(0, b"x", None, &mut Vec::new(), true), Kind::PermissionDenied);
    expect_kind(reader.store_word(0, 1), Kind::PermissionDenied);
    expect_kind(reader.stage(0..8), Kind::PermissionDenied);
    expect_kind(reader.persist(0..8), Kind::PermissionDenied);
    assert!(pool.bytes(0..8).iter().all(|b| *b == 0));
}

fn a_cut_off_pool_is_damaged(make: Make, open: Open) {
    let pool = make(MIB);
    let path = pool.path().to_owned();
    drop(pool);
    for len in [0, 4095, 4097] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(len).expect("cut");
        expect_kind(open(&path, Access::Read), Kind::Damaged);
    }
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).expect("symlink");
    assert!(open(&link, Access::Read).is_err(), "a symbolic link was followed");
    std::fs::remove_file(&link).expect("remove");
    expect_kind(open(Path::new("/dev/null"), Access::Read), Kind::Damaged);
}
