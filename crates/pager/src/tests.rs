//! What only shows from inside: who waits for whom, and what is taken and kept.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::{device, Kind, Result, TierKind};

use crate::pool::ENGINES;
use crate::state::{self, Word, BUSY, DIRTY, RESIDENT, WAITED};
use crate::{Array, ArrayOptions, Backing, DeviceBacking, Mode, Policy, Pool, PoolOptions};

const TILE: usize = 4096;
const TILES: u64 = 16;

/// A pool, and an array of 16 tiles on a device with these faults.
fn array(plan: &str) -> (tempfile::TempDir, Pool, Array) {
    let dir = tempfile::tempdir().unwrap();
    let made = device::create(TierKind::File, &dir.path().join("pool"), TILES * TILE as u64).unwrap();
    made.prepare(0..TILES * TILE as u64).unwrap();
    let pool = Pool::new(PoolOptions { budget: 64 << 10, tile_max: TILE, ring: Some(false) }).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(TILE) };
    let faulty = Arc::new(Fault::new(made, FaultPlan::parse(plan).unwrap()));
    let array = Array::open(&pool, Arc::new(DeviceBacking::new(faulty)), &options).unwrap();
    (dir, pool, array)
}

/// Memory whose writes come to an end when the test says so.
struct Gate {
    arrived: Barrier,
    gate: Barrier,
}

impl Backing for Gate {
    fn bytes(&self) -> u64 {
        TILES * TILE as u64
    }

    fn read(&self, _: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        self.arrived.wait();
        self.gate.wait();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn direct(&self, _: u64, _: usize) -> Option<(Arc<std::fs::File>, u64)> {
        None
    }

    fn name(&self) -> String {
        "gate".into()
    }

    fn method(&self) -> &'static str {
        "device"
    }
}

/// A mutex is not fair: who begins an operation in the same engine would wait as long.
#[test]
fn a_thread_that_waits_for_its_write_leaves_the_engine_to_others() {
    let gate = Arc::new(Gate { arrived: Barrier::new(2), gate: Barrier::new(2) });
    let pool = Pool::new(PoolOptions { budget: 64 << 10, tile_max: TILE, ring: Some(false) }).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(TILE) };
    let array = Array::open(&pool, gate.clone(), &options).unwrap();
    array.write(0, &[1]).unwrap();
    std::thread::scope(|scope| {
        let flushes = scope.spawn(|| array.flush());
        gate.arrived.wait();
        let engines = || (0..ENGINES).filter_map(|at| pool.0.engines[at].get());
        let look = |_: &u32| {
            std::thread::sleep(Duration::from_millis(1));
            engines().all(|engine| engine.try_lock().is_ok())
        };
        let free = (0..300).filter(look).count();
        assert!(!flushes.is_finished(), "it waits at the gate");
        gate.gate.wait();
        flushes.join().unwrap().unwrap();
        assert!(free > 150, "the engine was free in {free} of 300 looks");
    });
}

fn load(word: &std::sync::atomic::AtomicU64) -> u64 {
    Word::load(word, std::sync::atomic::Ordering::Acquire)
}

#[test]
fn an_array_that_ends_waits_for_who_evicts_its_tile() {
    let (_dir, pool, array) = array("");
    array.write(0, &[1]).unwrap();
    let (inside, core) = (pool.0.clone(), array.core.clone());
    // By hand what another thread's eviction does whose write will fail.
    let word = core.table.word(0);
    let seen = state::begin_move(word).unwrap();
    let frame = inside.take(state::payload(seen));
    core.shelf.lock().remove(state::payload(seen));
    let (ending, other) = (inside.clone(), core.clone());
    let ends = std::thread::spawn(move || ending.drop_tiles(&other));
    while load(word) & WAITED == 0 {
        assert!(!ends.is_finished(), "it must wait for the tile, which is on its way");
        std::thread::yield_now();
    }
    let number = inside.install(&core, 0, frame);
    inside.admit(&core, 0, number);
    inside.open(&core, 0, RESIDENT | DIRTY, number);
    ends.join().unwrap().unwrap();
    assert_eq!(load(word), 0, "the tile is gone");
    assert_eq!(core.shelf.lock().admitted(), 0, "and its frame is free");
}

#[test]
fn an_array_that_ends_goes_on_being_known_while_a_tile_does_not_come_back() {
    let (_dir, pool, array) = array("");
    array.write(0, &[1]).unwrap();
    pool.set_patience(std::time::Duration::ZERO);
    let (inside, core) = (pool.0.clone(), array.core.clone());
    let word = core.table.word(0);
    let seen = state::begin_move(word).unwrap();
    let frame = inside.take(state::payload(seen));
    core.shelf.lock().remove(state::payload(seen));
    assert_eq!(array.close().unwrap_err().kind(), Kind::TimedOut);
    let number = inside.install(&core, 0, frame);
    inside.admit(&core, 0, number);
    inside.open(&core, 0, RESIDENT, number);
    assert!(inside.owner_of(number).1.is_some_and(|owner| Arc::ptr_eq(&owner, &core)));
    // Its frame can be had again.
    while core.shelf.lock().admitted() > 0 {
        inside.frame(&core).unwrap();
    }
    assert_eq!(load(word), 0);
}

#[test]
fn waking_a_waiter_for_nothing_costs_it_no_patience() {
    let (_dir, pool, array) = array("");
    let tile = array.pin_mut(3).unwrap();
    let word = array.core.table.word(3);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| array.pin(3).map(drop));
        // More often than there are slices of sleep in a minute.
        for _ in 0..1500 {
            loop {
                let seen = load(word);
                if seen & WAITED != 0
                    && word.exchange_if(seen, seen & !WAITED, std::sync::atomic::Ordering::AcqRel)
                {
                    break;
                }
                assert!(!waits.is_finished(), "it gave up");
                std::thread::yield_now();
            }
            pool.0.parking.wake(3);
        }
        drop(tile);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn every_wait_ends_by_the_clock() {
    let (_dir, pool, array) = array("");
    let at_once = std::time::Duration::ZERO;
    let timed_out = |e: forebay_tier::Error| assert_eq!(e.kind(), Kind::TimedOut, "{e}");
    let held = array.pin_mut(0).unwrap();
    pool.set_patience(at_once);
    timed_out(array.pin(0).map(drop).unwrap_err());
    timed_out(array.pin_mut(0).map(drop).unwrap_err());
    timed_out(array.flush().unwrap_err());
    drop(held);
    pool.set_patience(crate::parking::PATIENCE);
    let frames = pool.0.frames_of(&array.core.shelf) as u64;
    let all: Vec<_> = (0..frames).map(|tile| array.pin(tile).unwrap()).collect();
    pool.set_patience(at_once);
    timed_out(array.pin(frames).map(drop).unwrap_err());
    drop(all);
    // A tile on its way: the claim of a thread that gives up is released by the one that completes the load.
    pool.set_patience(crate::parking::PATIENCE);
    array.flush().unwrap();
    let word = array.core.table.word(frames);
    let frame = pool.0.frame(&array.core).unwrap();
    assert!(state::begin_load(word));
    assert_eq!(load(word), BUSY);
    pool.set_patience(at_once);
    timed_out(array.settle(frames).unwrap_err());
    timed_out(array.claimed(frames).map(drop).unwrap_err());
    let at = pool.0.own_engine();
    pool.0.begin(at, array.core.load_op(frames, BUSY, true), frame);
    pool.0.submit(at);
    while pool.0.drive_any() {}
    assert_eq!(state::lock_of(load(word)), 0, "no thread pins it");
    pool.set_patience(crate::parking::PATIENCE);
    assert!(array.pin_mut(frames).is_ok());
}

#[test]
fn errors_are_kept_no_longer_than_they_are_needed() {
    let (_dir, _pool, array) = array("read:eio");
    for tile in 0..TILES {
        assert_eq!(array.pin(tile).map(drop).unwrap_err().kind(), Kind::Io);
    }
    array.tiles().for_each(|tile| assert!(tile.is_err()));
    array.prefetch(0..TILES * TILE as u64);
    assert_eq!(array.core.errors_kept(), (0, 0));
}

#[test]
fn errors_of_writes_are_kept_until_the_tile_is_written() {
    let (_dir, _pool, array) = array("write:eio@1");
    array.write(0, &[1]).unwrap();
    assert_eq!(array.flush().unwrap_err().kind(), Kind::Io);
    assert_eq!(array.core.errors_kept(), (0, 1));
    array.flush().unwrap();
    assert_eq!(array.core.errors_kept(), (0, 0));
}

/// A backing of any length that holds nothing.
struct Zeros(u64);

impl crate::Backing for Zeros {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _offset: u64, out: &mut [u8]) -> forebay_tier::Result<()> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> forebay_tier::Result<()> {
        Ok(())
    }

    fn flush(&self) -> forebay_tier::Result<()> {
        Ok(())
    }

    fn direct(&self, _offset: u64, _len: usize) -> Option<(Arc<std::fs::File>, u64)> {
        None
    }

    fn name(&self) -> String {
        "zeros".into()
    }

    fn method(&self) -> &'static str {
        "device"
    }
}

#[test]
fn what_is_known_of_frames_is_counted_as_it_is() {
    for (budget, tile_max) in [(1 << 20, 4096), (3 << 20, 64 << 10), (100 << 20, 2 << 20)] {
        let pool = Pool::new(PoolOptions { budget, tile_max, ring: Some(false) }).unwrap();
        let mut arrays = Vec::new();
        for tile in [4096, tile_max / 4, tile_max].into_iter().filter(|tile| *tile >= 4096) {
            for policy in [Policy::S3Fifo, Policy::None] {
                let options = ArrayOptions { policy, ..ArrayOptions::new(tile) };
                match Array::open(&pool, Arc::new(Zeros(8 << 20)), &options) {
                    Ok(array) => arrays.push(array),
                    Err(e) => assert_eq!(e.kind(), Kind::TierFull, "{e}"),
                }
            }
        }
        assert!(!arrays.is_empty());
        for array in &arrays {
            array.tiles().for_each(|tile| assert!(tile.is_ok()));
        }
        arrays.pop();
        let tables: u64 =
            arrays.iter().map(|array| crate::table::Table::bytes_max(array.tiles_total())).sum();
        let (seen, real) = (pool.statistics(), pool.0.real_bytes() as u64);
        // Slabs that gave way to tables are counted still; no byte that is taken is not.
        assert!(seen.table_bytes >= real + tables, "{budget}: {seen:?}, really {real} + {tables}");
        assert!(seen.table_bytes <= real + tables + 4096, "{budget}: {seen:?}, really {real} + {tables}");
        assert!(seen.frame_bytes + real + tables <= budget, "{budget}: {seen:?}, really {real} + {tables}");
    }
}

#[test]
fn an_array_that_cannot_be_opened_costs_the_pool_nothing() {
    let pool = Pool::new(PoolOptions { budget: 1 << 20, tile_max: 64 << 10, ring: Some(false) }).unwrap();
    let first = Array::open(&pool, Arc::new(Zeros(1 << 20)), &ArrayOptions::new(4096)).unwrap();
    let state = |pool: &Pool| (pool.statistics(), crate::pool::lock(&pool.0.slabs).len());
    let (before, hopes) = (state(&pool), pool.0.frames_of(&first.core.shelf));
    let huge = ArrayOptions { tile_bytes: 8192, ..ArrayOptions::new(4096) };
    let refused = Array::open(&pool, Arc::new(Zeros(1 << 40)), &huge).map(drop).unwrap_err();
    assert_eq!(refused.kind(), Kind::TierFull, "{refused}");
    assert_eq!((state(&pool), pool.0.frames_of(&first.core.shelf)), (before, hopes));
    pool.0.fill_arrays(&first.core);
    let refused = Array::open(&pool, Arc::new(Zeros(4096)), &huge).map(drop).unwrap_err();
    assert_eq!(refused.kind(), Kind::TooMany, "{refused}");
    assert_eq!((state(&pool), pool.0.frames_of(&first.core.shelf)), (before, hopes));
}
