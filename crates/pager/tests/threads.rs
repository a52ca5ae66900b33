//! Threads that share arrays in a budget of few tiles: every read sees whole, right tiles, no thread waits for ever,
//! and no increment is lost.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use fastrand::Rng;
use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool, PoolOptions};

const TILE: usize = 4096;
const TILES: u64 = 24;
const THREADS: u64 = 4;

fn engines() -> Vec<bool> {
    match forebay_tier::engine::Engine::io_uring() {
        Ok(_) => vec![true, false],
        Err(e) => {
            skips::skipped("threads on io_uring", &e.to_string());
            vec![false]
        }
    }
}

fn open(ring: bool, policy: Policy, budget: u64) -> (tempfile::TempDir, Pool, Array) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap();
    let pool = Pool::new(PoolOptions { budget, tile_max: TILE, ring: Some(ring) }).unwrap();
    let backing = FileBacking::create(&dir.path().join("data"), TILES * TILE as u64).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, policy, ..ArrayOptions::new(TILE) };
    let array = Array::open(&pool, Arc::new(backing), &options).unwrap();
    (dir, pool, array)
}

#[test]
fn no_increment_is_lost() {
    const ROUNDS: u64 = 800;
    for ring in engines() {
        for policy in [Policy::S3Fifo, Policy::Clock, Policy::None] {
            // Frames for six tiles, of which each thread may pin one.
            let (dir, _pool, array) = open(ring, policy, 40 << 10);
            let totals: Vec<AtomicU64> = (0..TILES).map(|_| AtomicU64::new(0)).collect();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (array, totals) = (&array, &totals);
                    scope.spawn(move || {
                        let mut numbers = Rng::with_seed(thread);
                        for _ in 0..ROUNDS {
                            let number = numbers.u64(..TILES);
                            match numbers.u32(..3) {
                                0 => {
                                    let mut tile = array.pin_mut(number).unwrap();
                                    tile.values::<u64>().unwrap().iter_mut().for_each(|value| *value += 1);
                                    totals[number as usize].fetch_add(1, Relaxed);
                                }
                                1 => {
                                    let tile = array.pin(number).unwrap();
                                    let values = tile.values::<u64>().unwrap();
                                    assert!(values.iter().all(|value| *value == values[0]), "torn");
                                }
                                _ if numbers.u32(..100) == 0 => array.flush().unwrap(),
                                _ => array.prefetch(number * TILE as u64..(number + 2) * TILE as u64),
                            }
                        }
                    });
                }
            });
            array.close().unwrap();
            let bytes = std::fs::read(dir.path().join("data")).unwrap();
            for (tile, total) in bytes.chunks(TILE).zip(&totals) {
                let wanted = total.load(Relaxed).to_ne_bytes();
                assert!(tile.chunks(8).all(|value| value == wanted), "ring {ring}, {policy:?}");
            }
        }
    }
}

#[test]
fn readers_ahead_share_a_budget_that_is_too_small_for_all() {
    for ring in engines() {
        let (_dir, pool, array) = open(ring, Policy::default(), 32 << 10);
        for mut tile in array.tiles_mut().map(Result::unwrap) {
            let number = tile.number();
            tile.values::<u64>().unwrap().fill(number);
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let array = &array;
                scope.spawn(move || {
                    let order = (0..200).map(move |n| (n * (thread + 3) + thread) % TILES);
                    for (tile, wanted) in array.tiles_in(order.clone()).zip(order) {
                        let tile = tile.unwrap();
                        assert!(tile.values::<u64>().unwrap().iter().all(|value| *value == wanted));
                    }
                });
            }
        });
        assert!(pool.statistics().evicted > 0);
    }
}

#[test]
fn a_thread_may_end_with_requests_under_way() {
    for ring in engines() {
        let (_dir, _pool, array) = open(ring, Policy::default(), 128 << 10);
        for round in 0..50 {
            let first = round % TILES;
            std::thread::scope(|scope| {
                scope.spawn(|| array.prefetch(first * TILE as u64..TILES * TILE as u64));
            });
            assert!(array.pin(first).unwrap().iter().all(|byte| *byte == 0));
        }
    }
}
