//! Arrays larger than memory over a variable of a version: the bytes of `get`, the version held, and what goes wrong.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::support::{options, ranked, writer, Root};
use forebay_pager::{Array, ArrayOptions, Backing, Mode, Pool, PoolOptions};
use forebay_space::{
    inspect, Dtype, Horizon, Kind, Mechanism, NdBox, OpenOptions, Reader, Retention, SpillTier, TierKind,
    Verify, VersionBacking, Writer,
};
use proptest::prelude::*;

const TILE: usize = 4096;

fn element(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The elements of a box of an array whose element `i` in C order is `element(i)`.
fn values(shape: &[u64], region: &NdBox) -> Vec<u64> {
    let mut out = vec![0];
    for (i, extent) in shape.iter().enumerate() {
        let inside = |at: &u64| {
            let (from, to) = (region.start[i], region.start[i] + region.count[i]);
            (from..to).map(|index| at * extent + index).collect::<Vec<u64>>()
        };
        out = out.iter().flat_map(inside).collect();
    }
    out.into_iter().map(element).collect()
}

fn put(w: &mut Writer, shape: &[u64], region: &NdBox) {
    w.put_array("u", shape, &region.start, &region.count, &values(shape, region)).unwrap();
}

/// One version with the whole variable in one piece.
fn one_piece(w: &mut Writer, shape: &[u64]) -> u64 {
    let version = w.begin_step().unwrap();
    put(w, shape, &NdBox::whole(shape));
    w.end_step().unwrap();
    version
}

fn open(name: &str, version: Option<u64>) -> forebay_space::Result<VersionBacking> {
    VersionBacking::open(name, "u", version, &options())
}

fn array(backing: VersionBacking, mode: Mode) -> Array {
    let pool = Pool::new(PoolOptions::new(16 * TILE as u64)).unwrap();
    let options = ArrayOptions { mode, ..ArrayOptions::new(TILE) };
    Array::open(&pool, Arc::new(backing), &options).unwrap()
}

/// Compares everything, in an order that makes tiles leave and come again.
fn check(a: &Array, elements: u64) {
    let mut out = vec![0u8; 24 << 10];
    for pass in 0..2 {
        for start in (pass * 8..elements * 8).step_by(out.len()) {
            let part = ((elements * 8 - start) as usize).min(out.len());
            a.read(start, &mut out[..part]).unwrap();
            for (at, bytes) in out[..part].chunks_exact(8).enumerate() {
                let found = u64::from_ne_bytes(bytes.try_into().unwrap());
                assert_eq!(found, element(start / 8 + at as u64), "element {} + {at}", start / 8);
            }
        }
    }
}

/// Cuts every box in two along a dimension, at a place that `seed` says, until there are `count`.
fn split(shape: &[u64], count: usize, mut seed: u64) -> Vec<NdBox> {
    let mut all = vec![NdBox::whole(shape)];
    for _ in 0..count * 4 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = all.remove((seed >> 33) as usize % all.len());
        let i = (seed >> 20) as usize % shape.len();
        if from.count[i] < 2 || all.len() + 2 > count {
            all.push(from);
            continue;
        }
        let cut = 1 + (seed >> 40) % (from.count[i] - 1);
        let (mut left, mut right) = (from.clone(), from);
        left.count[i] = cut;
        right.start[i] += cut;
        right.count[i] -= cut;
        all.extend([left, right]);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_split_by_several_ranks_reads_as_get(
        shape in prop::collection::vec(1..40u64, 1..4), pieces in 1..12usize, seed in any::<u64>(),
        reads in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64), 12),
    ) {
        let root = Root::new();
        let name = root.name("split");
        let mut writers: Vec<Writer> = (0..3).map(|rank| writer(&name, rank, 3).unwrap()).collect();
        for w in &mut writers {
            w.begin_step().unwrap();
        }
        for (i, region) in split(&shape, pieces, seed).iter().enumerate() {
            put(&mut writers[i % 3], &shape, region);
        }
        writers.iter_mut().for_each(|w| w.end_step().unwrap());
        let elements: u64 = shape.iter().product();
        let wanted: Vec<u8> = (0..elements).flat_map(|i| element(i).to_ne_bytes()).collect();
        let mut r = Reader::open(&name, &OpenOptions { observer: true, ..options() }).unwrap();
        let mut got = vec![0; wanted.len()];
        r.open_version(0).unwrap().get("u", None, &mut got).unwrap();
        prop_assert!(got == wanted);
        let backing = open(&name, Some(0)).unwrap();
        prop_assert_eq!((backing.dtype(), backing.shape()), (Dtype::U64, &shape[..]));
        for (from, to) in reads {
            // Also in the middle of elements.
            let at = |part: f64| (part * wanted.len() as f64) as usize;
            let range = at(from.min(to))..at(from.max(to));
            let mut out = vec![0; range.len()];
            backing.read(range.start as u64, &mut out).unwrap();
            prop_assert!(out == wanted[range]);
        }
        check(&array(backing, Mode::ReadOnly), elements);
    }
}

#[test]
fn versions_on_disk_are_read_from_there() {
    let (root, disk) = (Root::new(), tempfile::tempdir().unwrap());
    for tier in [TierKind::File, TierKind::Direct] {
        let probe = forebay_tier::create(tier, &disk.path().join("probe"), 1 << 20);
        if let Err(e) = probe {
            crate::skips::skipped(&format!("versions on tier {tier}"), e.message());
            continue;
        }
        std::fs::remove_file(disk.path().join("probe")).unwrap();
        let name = root.name(&format!("spilled-{tier}"));
        let spill = vec![SpillTier { path: disk.path().into(), quota: Some(64 << 20), tier: Some(tier) }];
        let spilling = OpenOptions {
            quota_bytes: Some(8 << 20),
            segment_bytes: Some(1 << 20),
            spill,
            rank: Some(0),
            size: Some(1),
            ..options()
        };
        let mut w = Writer::open(&name, &spilling).unwrap();
        let shape = [300, 500];
        for _ in 0..24 {
            one_piece(&mut w, &shape);
        }
        assert!(inspect(&name).unwrap().moved.spilled_bytes > 8 << 20, "the first versions lie below");
        let below = if tier == TierKind::Direct { "direct" } else { "cached" };
        let mut spilled = 0;
        for version in 0..24 {
            let backing = open(&name, Some(version)).unwrap();
            spilled += usize::from(backing.method() == below);
            check(&array(backing, Mode::ReadOnly), 300 * 500);
        }
        assert!(spilled > 4, "{spilled} of 24 are read from below");
    }
}

#[test]
fn a_space_on_blocks_is_read_block_by_block() {
    let disk = tempfile::tempdir().unwrap();
    let name = disk.path().join("space").display().to_string();
    let file = OpenOptions { tier: Some(TierKind::File), horizon: Some(Horizon::None), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &file).unwrap();
    one_piece(&mut w, &[1000, 300]);
    for verify in [Verify::First, Verify::Always, Verify::Never] {
        let backing = VersionBacking::open(&name, "u", None, &OpenOptions { verify, ..options() }).unwrap();
        check(&array(backing, Mode::ReadOnly), 300_000);
    }
    w.close().unwrap();
    forebay_space::destroy(&name).unwrap();
}

#[test]
fn an_array_outlives_the_writers_and_their_space() {
    let root = Root::new();
    let name = root.name("ended");
    let mut w = writer(&name, 0, 1).unwrap();
    one_piece(&mut w, &[4000]);
    let a = array(open(&name, None).unwrap(), Mode::ReadOnly);
    w.close().unwrap();
    check(&a, 4000);
    forebay_space::destroy(&name).unwrap();
    check(&a, 4000);
    drop(a);
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn the_version_stays_as_long_as_the_array_and_no_longer() {
    // Each version fills most of a segment; segments go as a whole.
    const ELEMENTS: u64 = 90_000;
    let root = Root::new();
    for held in [false, true] {
        let name = root.name(&format!("held-{held}"));
        let last =
            OpenOptions { retention: Some(Retention::Last(1)), segment_bytes: Some(1 << 20), ..ranked(0, 1) };
        let mut w = Writer::open(&name, &last).unwrap();
        assert_eq!(one_piece(&mut w, &[ELEMENTS]), 0);
        let a = held.then(|| array(open(&name, None).unwrap(), Mode::ReadOnly));
        for _ in 0..6 {
            one_piece(&mut w, &[ELEMENTS]);
        }
        let is_there = || inspect(&name).unwrap().versions.iter().any(|v| v.version == 0);
        assert_eq!(is_there(), held);
        if let Some(a) = a {
            check(&a, ELEMENTS);
            drop(a);
            for _ in 0..3 {
                one_piece(&mut w, &[ELEMENTS]);
            }
            assert!(!is_there(), "no process holds it");
        }
        assert_eq!(open(&name, Some(0)).err().unwrap().kind(), Kind::VersionGone);
    }
}

/// The place of the first of these bytes in a file.
fn find(path: &Path, wanted: &[u8]) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(wanted.len()).position(|part| part == wanted).expect("it is there") as u64
}

#[test]
fn a_damaged_payload_is_an_error_where_it_is_touched() {
    let disk = tempfile::tempdir().unwrap();
    let memory = Root::in_memory();
    for (tier, name) in [
        (TierKind::Dram, memory.name("damaged")),
        (TierKind::File, disk.path().join("damaged").display().to_string()),
    ] {
        let on = OpenOptions { tier: Some(tier), horizon: Some(Horizon::None), ..ranked(0, 1) };
        let mut w = Writer::open(&name, &on).unwrap();
        one_piece(&mut w, &[64 << 10]);
        let pool = Path::new(&name).join("pool");
        let at = find(&pool, &element(40_000).to_ne_bytes());
        let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
        file.write_all_at(&[0xAA, 0x55], at).unwrap();
        let a = array(open(&name, None).unwrap(), Mode::ReadOnly);
        let mut out = [0; 8];
        let error = a.read(40_000 * 8, &mut out).expect_err("damage is noticed");
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains("checksum"), "{error}");
        a.read(20_000 * 8, &mut out).unwrap();
        assert_eq!(u64::from_ne_bytes(out), element(20_000), "the rest is as before");
        let never = OpenOptions { verify: Verify::Never, ..options() };
        let a = array(VersionBacking::open(&name, "u", None, &never).unwrap(), Mode::ReadOnly);
        a.read(40_000 * 8, &mut out).unwrap();
        drop((a, w));
        // Its shared state lies in memory, not beside a pool on disk.
        forebay_space::destroy(&name).unwrap();
    }
}

#[test]
fn what_was_never_put_is_an_error_where_it_is_touched() {
    let root = Root::new();
    let name = root.name("gap");
    let mut w = writer(&name, 0, 1).unwrap();
    w.begin_step().unwrap();
    put(&mut w, &[100, 1000], &NdBox::new(&[0, 0], &[40, 1000]).unwrap());
    put(&mut w, &[100, 1000], &NdBox::new(&[60, 0], &[40, 1000]).unwrap());
    w.end_step().unwrap();
    let a = array(open(&name, None).unwrap(), Mode::ReadOnly);
    let mut out = [0; 8];
    let error = a.read(50 * 8000, &mut out).expect_err("a gap is noticed");
    assert_eq!(error.kind(), Kind::BoxNotCovered, "{error}");
    for row in [10, 70] {
        a.read(row * 8000, &mut out).unwrap();
        assert_eq!(u64::from_ne_bytes(out), element(row * 1000));
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let root = Root::new();
    let name = root.name("wrong");
    assert_eq!(open(&name, None).err().unwrap().kind(), Kind::PeerMissing);
    let mut w = writer(&name, 0, 1).unwrap();
    assert_eq!(open(&name, None).err().unwrap().kind(), Kind::TimedOut);
    w.begin_step().unwrap();
    put(&mut w, &[10], &NdBox::whole(&[10]));
    w.put_array::<f64>("temperature", &[1], &[0], &[1], &[1.0]).unwrap();
    w.put_array::<f64>("empty", &[3, 0], &[0, 0], &[3, 0], &[]).unwrap();
    w.end_step().unwrap();
    assert_eq!(open(&name, Some(1)).err().unwrap().kind(), Kind::TimedOut);
    let error = VersionBacking::open(&name, "temprature", None, &options()).err().unwrap();
    assert_eq!(error.kind(), Kind::UnknownVariable);
    assert!(error.to_string().contains("temperature"), "{error}");
    let files = OpenOptions { channel: Mechanism::Files, ..options() };
    let error = VersionBacking::open(&name, "u", None, &files).err().unwrap();
    assert_eq!(error.kind(), Kind::NotPossibleHere);
    let empty = VersionBacking::open(&name, "empty", None, &options()).unwrap();
    assert_eq!(array(empty, Mode::ReadOnly).bytes(), 0);
}

#[test]
fn writes_stay_with_the_array_or_are_refused() {
    let root = Root::new();
    let name = root.name("writes");
    let mut w = writer(&name, 0, 1).unwrap();
    one_piece(&mut w, &[50_000]);
    let mut r = Reader::open(&name, &OpenOptions { observer: true, ..options() }).unwrap();
    let read_only = array(r.open_version(0).unwrap().backing("u").unwrap(), Mode::ReadOnly);
    r.close().unwrap();
    assert_eq!(read_only.write(0, &[1; 8]).err().unwrap().kind(), Kind::PermissionDenied);
    let own = array(open(&name, None).unwrap(), Mode::CopyOnWrite);
    for at in (0..50_000u64).step_by(100) {
        own.write(at * 8, &at.to_ne_bytes()).unwrap();
    }
    let mut out = [0; 8];
    for at in (0..50_000u64).step_by(50) {
        own.read(at * 8, &mut out).unwrap();
        assert_eq!(u64::from_ne_bytes(out), if at % 100 == 0 { at } else { element(at) });
    }
    check(&read_only, 50_000);
}
