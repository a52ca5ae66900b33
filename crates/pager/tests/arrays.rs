//! Arrays over files: what is written is read back, by every way, with every engine, policy and mode, from a budget of
//! two tiles on.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool, PoolOptions};
use forebay_tier::{Horizon, Kind};

const TILE: usize = 4096;

/// A folder on a block file system: direct transfers where they can be had.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Space for `tiles` frames and what has to be known of them.
fn pool_of(tiles: usize, tile: usize, ring: bool) -> Pool {
    let known = (tile / 4096) * 200 + tile;
    let budget = (tiles * known) as u64 * 64 / 63 + (1 << 16);
    let pool = Pool::new(PoolOptions { budget, tile_max: tile, ring: Some(ring) }).unwrap();
    assert!(pool.statistics().frame_bytes + pool.statistics().table_bytes <= budget);
    pool
}

/// Byte `at` of every test's data.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn data(bytes: u64) -> Vec<u8> {
    (0..bytes).map(byte).collect()
}

fn file_of(dir: &Path, bytes: u64) -> PathBuf {
    let path = dir.join("data");
    std::fs::write(&path, data(bytes)).unwrap();
    path
}

fn open(pool: &Pool, path: &Path, options: &ArrayOptions) -> Array {
    let backing = FileBacking::open(path, options.mode == Mode::ReadWrite).unwrap();
    Array::open(pool, Arc::new(backing), options).unwrap()
}

/// Both engines; where io_uring is refused threads take its place, and that is said.
fn engines() -> Vec<bool> {
    static SAID: std::sync::Once = std::sync::Once::new();
    match forebay_tier::engine::Engine::io_uring() {
        Ok(_) => vec![true, false],
        Err(e) => {
            SAID.call_once(|| skips::skipped("pager on io_uring", &e.to_string()));
            vec![false]
        }
    }
}

/// Numbers that look random, the same each time.
fn scrambled(count: u64, below: u64) -> Vec<u64> {
    (0..count).map(|n| (n.wrapping_add(7).wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20) % below).collect()
}

#[test]
fn every_way_of_reading_gives_the_bytes_of_the_file() {
    let dir = folder();
    // A length that is no multiple of anything.
    let bytes = 100 * TILE as u64 + 1234;
    let path = file_of(dir.path(), bytes);
    let all = data(bytes);
    for ring in engines() {
        for policy in [Policy::S3Fifo, Policy::Clock, Policy::None] {
            let pool = pool_of(8, TILE, ring);
            let array = open(&pool, &path, &ArrayOptions { policy, ..ArrayOptions::new(TILE) });
            let seen: Vec<u8> = array.tiles().flat_map(|tile| tile.unwrap().to_vec()).collect();
            assert!(seen == all, "tiles");
            let backwards = (0..array.tiles_total()).rev();
            for tile in array.tiles_in(backwards) {
                let tile = tile.unwrap();
                assert!(tile[..] == all[tile.range().start as usize..tile.range().end as usize]);
            }
            let mut part = vec![0; 3 * TILE];
            array.read(4000, &mut part).unwrap();
            assert!(part == all[4000..4000 + 3 * TILE]);
            let indices = scrambled(1000, bytes / 24);
            let mut items = vec![0; 24 * indices.len()];
            array.gather(&indices, 24, &mut items).unwrap();
            for (item, index) in items.chunks(24).zip(&indices) {
                assert!(item == &all[*index as usize * 24..][..24]);
            }
            let pinned = array.pinned(100..TILE as u64 + 100).unwrap();
            let joined: Vec<u8> =
                pinned.iter().flat_map(|(tile, part)| tile[part.clone()].to_vec()).collect();
            assert!(joined == all[100..TILE + 100]);
            drop(pinned);
            let statistics = pool.statistics();
            assert!(statistics.loaded >= array.tiles_total() && statistics.evicted > 0, "{statistics:?}");
        }
    }
}

#[test]
fn what_was_written_is_in_the_file_after_a_flush() {
    let dir = folder();
    for ring in engines() {
        let bytes = 64 * TILE as u64 + 100;
        let path = file_of(dir.path(), bytes);
        let pool = pool_of(8, TILE, ring);
        let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(TILE) };
        let array = open(&pool, &path, &options);
        let mut model = data(bytes);
        for (n, at) in scrambled(200, bytes - 5000).into_iter().enumerate() {
            let piece = vec![n as u8; 1 + n * 23 % 5000];
            array.write(at, &piece).unwrap();
            model[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
        }
        let indices = scrambled(300, bytes / 16);
        let items: Vec<u8> = (0..300 * 16).map(|at| at as u8).collect();
        array.scatter(&indices, 16, &items).unwrap();
        for (item, index) in items.chunks(16).zip(&indices) {
            model[*index as usize * 16..][..16].copy_from_slice(item);
        }
        let mut seen = vec![0; bytes as usize];
        array.read(0, &mut seen).unwrap();
        assert!(seen == model);
        array.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "and no longer than before");
        // Items that share tiles with items far behind them in the order.
        let far: Vec<u64> =
            (0..64).flat_map(|n| [n * 256, n * 256 + 255]).chain((0..64).map(|n| n * 256)).collect();
        array.scatter(&far, 16, &vec![9; 16 * far.len()]).unwrap();
        far.iter().for_each(|index| model[*index as usize * 16..][..16].fill(9));
        for tile in array.tiles_mut() {
            tile.unwrap().iter_mut().for_each(|byte| *byte ^= 255);
        }
        array.close().unwrap();
        model.iter_mut().for_each(|byte| *byte ^= 255);
        assert!(std::fs::read(&path).unwrap() == model);
    }
}

#[test]
fn what_was_copied_on_write_stays_with_the_array() {
    let dir = folder();
    let bytes = 64 * TILE as u64 + 100;
    let path = file_of(dir.path(), bytes);
    for ring in engines() {
        let pool = pool_of(4, TILE, ring);
        let mode = Mode::CopyOnWrite;
        let options = ArrayOptions { mode, overlay: dir.path().into(), ..ArrayOptions::new(TILE) };
        let array = open(&pool, &path, &options);
        let mut model = data(bytes);
        for round in 0..3u8 {
            for at in scrambled(100, bytes - 10) {
                array.write(at, &[round; 10]).unwrap();
                model[at as usize..at as usize + 10].fill(round);
            }
            let seen: Vec<u8> = array.tiles().flat_map(|tile| tile.unwrap().to_vec()).collect();
            assert!(seen == model, "round {round}");
        }
        assert!(pool.statistics().written > 0, "more was changed than fits");
        array.flush().unwrap();
        array.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == data(bytes));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }
}

#[test]
fn data_may_begin_anywhere_in_the_file() {
    let dir = folder();
    let path = file_of(dir.path(), 10 * TILE as u64);
    let pool = pool_of(4, TILE, engines()[0]);
    let options = ArrayOptions {
        origin: 128,
        bytes: Some(5 * TILE as u64),
        mode: Mode::ReadWrite,
        ..ArrayOptions::new(TILE)
    };
    let array = open(&pool, &path, &options);
    assert_eq!((array.bytes(), array.tiles_total()), (5 * TILE as u64, 6));
    let seen: Vec<u8> = array.tiles().flat_map(|tile| tile.unwrap().to_vec()).collect();
    assert!(seen == data(10 * TILE as u64)[128..][..5 * TILE]);
    array.write(0, &vec![1; 5 * TILE]).unwrap();
    array.close().unwrap();
    let after = std::fs::read(&path).unwrap();
    assert!(after[..128] == data(128) && after[128..][..5 * TILE].iter().all(|byte| *byte == 1));
    assert!(after[128 + 5 * TILE..] == data(10 * TILE as u64)[128 + 5 * TILE..]);
}

#[test]
fn arrays_of_different_tiles_share_one_budget() {
    let dir = folder();
    let bytes = 128 * TILE as u64;
    let path = file_of(dir.path(), bytes);
    let all = data(bytes);
    let pool = pool_of(4, 16 * TILE, engines()[0]);
    let arrays = [1, 4, 16].map(|tiles| open(&pool, &path, &ArrayOptions::new(tiles * TILE)));
    for round in 0..3 {
        for array in &arrays {
            let seen: Vec<u8> = array.tiles().flat_map(|tile| tile.unwrap().to_vec()).collect();
            assert!(seen == all, "round {round}, tiles of {}", array.tile_bytes());
        }
    }
    let statistics = pool.statistics();
    assert!(statistics.frame_bytes + statistics.table_bytes <= statistics.budget);
}

#[test]
fn values_are_read_and_written() {
    let dir = folder();
    let path = dir.path().join("new");
    let pool = pool_of(4, TILE, engines()[0]);
    let backing = FileBacking::create(&path, 8 * 10_000).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, horizon: Horizon::Write, ..ArrayOptions::new(TILE) };
    let array = Array::open(&pool, Arc::new(backing), &options).unwrap();
    let values: Vec<u64> = (0..10_000).map(|n| n * n).collect();
    array.write_values(0, &values).unwrap();
    let there: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert!(std::fs::read(&path).unwrap() == there, "with this horizon it is there at once");
    let mut some = [0u64; 600];
    array.read_values(500, &mut some).unwrap();
    assert_eq!(some[..], values[500..1100]);
    let tile = array.pin(2).unwrap();
    assert_eq!(tile.values::<u64>().unwrap(), &values[1024..1536]);
    assert_eq!(tile.values::<[u64; 3]>().unwrap_err().kind(), Kind::BufferMismatch);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = folder();
    let path = file_of(dir.path(), 4 * TILE as u64);
    let pool = pool_of(4, TILE, false);
    let array = open(&pool, &path, &ArrayOptions::new(TILE));
    let kind = |result: forebay_tier::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(array.read(4 * TILE as u64 - 1, &mut [0; 2])), Kind::BoxOutsideShape);
    assert_eq!(kind(array.read(u64::MAX, &mut [0; 2])), Kind::BoxOutsideShape);
    assert_eq!(kind(array.write(0, &[0])), Kind::PermissionDenied);
    assert_eq!(kind(array.gather(&[0, 4], TILE, &mut [0; 2 * TILE])), Kind::BoxOutsideShape);
    assert_eq!(kind(array.gather(&[0], 3, &mut [0; 2])), Kind::BufferMismatch);
    assert_eq!(kind(array.pin(4).map(drop)), Kind::BoxOutsideShape);
    let opened = |options: &ArrayOptions| {
        let backing = FileBacking::open(&path, false).unwrap();
        Array::open(&pool, Arc::new(backing), options).map(drop)
    };
    assert_eq!(kind(opened(&ArrayOptions::new(2 * TILE))), Kind::Usage);
    assert_eq!(kind(opened(&ArrayOptions::new(5000))), Kind::Usage);
    let longer = ArrayOptions { bytes: Some(4 * TILE as u64 + 1), ..ArrayOptions::new(TILE) };
    assert_eq!(kind(opened(&longer)), Kind::Damaged);
    assert_eq!(kind(Pool::new(PoolOptions::new(4096)).map(drop)), Kind::Usage);
}
