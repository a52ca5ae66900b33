//! Errors of the medium: each surfaces where the data was touched, the rest of the data stays as it was, and the array
//! goes on. Faults come at every call in turn, by the adapter of tier, and from a file that was cut off.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, DeviceBacking, FileBacking, Mode, Pool, PoolOptions};
use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::{device, Device, Kind, TierKind};

const TILE: usize = 4096;
const TILES: u64 = 16;

/// A pool file with byte `n` in every byte of tile `n`, and `plan` around it. Direct reads would pass the adapter by.
fn device(dir: &std::path::Path, plan: &str) -> (Arc<dyn Device>, Arc<dyn Device>) {
    let path = dir.join("pool");
    let made = device::create(TierKind::File, &path, TILES * TILE as u64).unwrap();
    for tile in 0..TILES {
        made.prepare(tile * TILE as u64..(tile + 1) * TILE as u64).unwrap();
        made.write(tile * TILE as u64, &[tile as u8; TILE]).unwrap();
    }
    (made.clone(), Arc::new(Fault::new(made, FaultPlan::parse(plan).unwrap())))
}

fn array(device: &Arc<dyn Device>, mode: Mode) -> (Pool, Array) {
    let pool = Pool::new(PoolOptions { budget: 64 << 10, tile_max: TILE, ring: Some(false) }).unwrap();
    let options = ArrayOptions { mode, ..ArrayOptions::new(TILE) };
    let array = Array::open(&pool, Arc::new(DeviceBacking::new(device.clone())), &options).unwrap();
    (pool, array)
}

#[test]
fn a_read_that_fails_is_an_error_of_its_tile_alone() {
    for effect in ["eio", "torn"] {
        for nth in 1..=TILES {
            let dir = tempfile::tempdir().unwrap();
            let (_, faulty) = device(dir.path(), &format!("read:{effect}@{nth}"));
            let (_pool, array) = array(&faulty, Mode::ReadOnly);
            let failed: Vec<u64> = (0..TILES)
                .filter(|tile| match array.pin(*tile) {
                    Ok(found) => {
                        assert!(found.iter().all(|byte| u64::from(*byte) == *tile), "tile {tile}");
                        false
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::Io, "{e}");
                        assert!(e.to_string().contains(&format!("tile={tile}")), "{e}");
                        true
                    }
                })
                .collect();
            assert_eq!(failed, [nth - 1], "{effect}: the n-th read is that of tile n - 1");
            // Nothing sticks: the medium gives the tile now.
            assert!(array.pin(nth - 1).unwrap().iter().all(|byte| u64::from(*byte) == nth - 1));
        }
    }
}

#[test]
fn a_read_ahead_that_fails_is_an_error_when_its_turn_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (_, faulty) = device(dir.path(), "read:eio@3,read:short@5");
    let (_pool, array) = array(&faulty, Mode::ReadOnly);
    let results: Vec<bool> = array
        .tiles()
        .enumerate()
        .map(|(number, tile)| {
            tile.map(|tile| assert!(tile.iter().all(|byte| usize::from(*byte) == number))).is_ok()
        })
        .collect();
    assert_eq!(results.iter().filter(|ok| !**ok).count(), 1, "{results:?}");
    let mut out = vec![0; TILES as usize * TILE];
    array.read(0, &mut out).unwrap();
}

#[test]
fn a_write_that_fails_loses_nothing() {
    for effect in ["eio", "enospc", "torn"] {
        for nth in 1..=12 {
            let dir = tempfile::tempdir().unwrap();
            let (plain, faulty) = device(dir.path(), &format!("write:{effect}@{nth}"));
            let (_pool, array) = array(&faulty, Mode::ReadWrite);
            for tile in 0..TILES {
                // Whole tiles: evictions write while later ones come. An eviction that fails leaves its tile dirty.
                array.write(tile * TILE as u64, &[0x80 | tile as u8; TILE]).unwrap();
            }
            let first = array.flush();
            let seen = if first.is_err() { array.flush() } else { first };
            seen.unwrap();
            for tile in 0..TILES {
                let mut there = [0; TILE];
                plain.read(tile * TILE as u64, &mut there).unwrap();
                assert!(there.iter().all(|byte| *byte == 0x80 | tile as u8), "{effect}@{nth}, tile {tile}");
            }
        }
    }
}

#[test]
fn a_medium_that_takes_nothing_says_so_and_keeps_the_array_alive() {
    let dir = tempfile::tempdir().unwrap();
    let (_, faulty) = device(dir.path(), "write:enospc");
    let (_pool, array) = array(&faulty, Mode::ReadWrite);
    let mut written = Vec::new();
    let mut refused = None;
    for tile in 0..TILES {
        match array.write(tile * TILE as u64, &[0xff; TILE]) {
            Ok(()) => written.push(tile),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    let refused = refused.expect("more is changed than fits");
    assert_eq!(refused.kind(), Kind::TierFull, "{refused}");
    assert!(refused.to_string().contains("evicting a tile"), "{refused}");
    for tile in written {
        assert!(array.pin(tile).unwrap().iter().all(|byte| *byte == 0xff), "what was written is still there");
    }
    assert_eq!(array.flush().unwrap_err().kind(), Kind::TierFull);
    assert_eq!(array.close().unwrap_err().kind(), Kind::TierFull);
}

#[test]
fn a_flush_that_fails_poisons() {
    let dir = tempfile::tempdir().unwrap();
    let (_, faulty) = device(dir.path(), "persist:eio@1");
    let (_pool, array) = array(&faulty, Mode::ReadWrite);
    array.write(0, &[1]).unwrap();
    assert_eq!(array.flush().unwrap_err().kind(), Kind::Poisoned);
    assert_eq!(array.write(0, &[2]).unwrap_err().kind(), Kind::Poisoned);
    assert_eq!(array.pin(0).unwrap()[0], 1, "it can be read");
    assert_eq!(array.flush().unwrap_err().kind(), Kind::Poisoned);
}

#[test]
fn a_file_that_was_cut_off_gives_errors_and_no_stale_bytes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap();
    let path = dir.path().join("data");
    for ring in [true, false] {
        if ring && forebay_tier::engine::Engine::io_uring().is_err() {
            skips::skipped("a cut file on io_uring", "io_uring is refused");
            continue;
        }
        std::fs::write(&path, vec![7; 8 * TILE + 100]).unwrap();
        let pool = Pool::new(PoolOptions { budget: 64 << 10, tile_max: TILE, ring: Some(ring) }).unwrap();
        let backing = Arc::new(FileBacking::open(&path, false).unwrap());
        let array = Array::open(&pool, backing, &ArrayOptions::new(TILE)).unwrap();
        assert!(array.pin(8).unwrap().iter().all(|byte| *byte == 7), "the short tail is no error");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * TILE as u64 + 50).unwrap();
        let kinds: Vec<Option<Kind>> =
            (0..8).map(|tile| array.pin(tile).map(drop).err().map(|e| e.kind())).collect();
        assert_eq!(kinds[..3], [None; 3]);
        assert!(kinds[3..].iter().all(|kind| *kind == Some(Kind::Damaged)), "{kinds:?}");
    }
}
