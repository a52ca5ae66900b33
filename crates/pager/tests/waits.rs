//! Threads that meet at one tile or one slab: what each of them is told, and that one pin stops no other thread.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use forebay_pager::{Array, ArrayOptions, Backing, Mode, Pool, PoolOptions};
use forebay_tier::{Error, Horizon, Kind, Result};

const TILE: u64 = 4096;
/// Fails to be written while the backing is told so.
const FAILS: u64 = 0;
/// Is written only when the test comes to the gate, too.
const WAITS: u64 = 1;

/// Memory whose writes go wrong or wait where a test wants it.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    fails: AtomicBool,
    gated: AtomicBool,
    arrived: Barrier,
    gate: Barrier,
}

impl Memory {
    fn new(tiles: u64) -> Arc<Memory> {
        Arc::new(Memory {
            bytes: Mutex::new(vec![0; (tiles * TILE) as usize]),
            fails: AtomicBool::new(false),
            gated: AtomicBool::new(false),
            arrived: Barrier::new(2),
            gate: Barrier::new(2),
        })
    }
}

impl Backing for Memory {
    fn bytes(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..out.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match offset / TILE {
            FAILS if self.fails.load(SeqCst) => return Err(Error::new(Kind::Io, "the medium takes nothing")),
            WAITS if self.gated.swap(false, SeqCst) => {
                self.arrived.wait();
                self.gate.wait();
            }
            _ => {}
        }
        self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn direct(&self, _offset: u64, _len: usize) -> Option<(Arc<std::fs::File>, u64)> {
        None
    }

    fn name(&self) -> String {
        "memory".into()
    }

    fn method(&self) -> &'static str {
        "device"
    }
}

fn pool(budget: u64, tile_max: u64) -> Pool {
    Pool::new(PoolOptions { budget, tile_max: tile_max as usize, ring: Some(false) }).unwrap()
}

#[test]
fn a_flush_of_another_thread_takes_no_error_away() {
    let memory = Memory::new(8);
    let pool = pool(128 << 10, TILE);
    let options =
        ArrayOptions { mode: Mode::ReadWrite, horizon: Horizon::Write, ..ArrayOptions::new(TILE as usize) };
    let array = Array::open(&pool, memory.clone(), &options).unwrap();
    // By pins: they wait for a flush whatever the horizon is.
    array.pin_mut(FAILS).unwrap()[0] = 1;
    array.pin_mut(WAITS).unwrap()[0] = 1;
    memory.fails.store(true, SeqCst);
    memory.gated.store(true, SeqCst);
    std::thread::scope(|scope| {
        let flushes = scope.spawn(|| array.flush());
        memory.arrived.wait();
        // Once it can be pinned, its write has failed; the flush is at the second tile.
        drop(array.pin(FAILS).unwrap());
        // With this horizon a whole flush, of this tile alone.
        array.write(5 * TILE, &[1]).unwrap();
        memory.gate.wait();
        assert_eq!(flushes.join().unwrap().unwrap_err().kind(), Kind::Io, "it failed in this flush");
    });
    assert_eq!(array.flush().unwrap_err().kind(), Kind::Io);
    memory.fails.store(false, SeqCst);
    array.flush().unwrap();
    assert_eq!(memory.bytes.lock().unwrap()[(FAILS * TILE) as usize], 1);
}

#[test]
fn a_pin_keeps_its_own_slab_and_no_other() {
    let pool = pool(1 << 20, 64 << 10);
    let long = ArrayOptions::new(64 << 10);
    let short = ArrayOptions::new(TILE as usize);
    let (first, second) = (Memory::new(1024), Memory::new(1024));
    let rich = Array::open(&pool, first, &short).unwrap();
    let poor = Array::open(&pool, second, &long).unwrap();
    // Every slab is the first one's; a tile in the first slab of all is pinned.
    let pinned = rich.pin(0).unwrap();
    rich.tiles().for_each(|tile| drop(tile.unwrap()));
    assert!(pool.statistics().evicted > 0);
    pool.set_patience(std::time::Duration::from_secs(2));
    for tile in poor.tiles() {
        assert!(tile.unwrap().iter().all(|byte| *byte == 0));
    }
    drop(pinned);
}

/// Slabs go to and fro between two shelves while tiles come, go and are written in both.
#[test]
fn slabs_change_hands_under_threads() {
    let pool = pool(512 << 10, 64 << 10);
    let open = |tile: u64| {
        let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(tile as usize) };
        Array::open(&pool, Memory::new(256), &options).unwrap()
    };
    let arrays = [open(TILE), open(64 << 10), open(16 << 10)];
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let arrays = &arrays;
            scope.spawn(move || {
                for round in 0..400usize {
                    let array = &arrays[(round / 20 + thread) % 3];
                    let tile = (round * 7 + thread * 3) as u64 % array.tiles_total();
                    let mut tile = array.pin_mut(tile).unwrap();
                    let values = tile.values::<u64>().unwrap();
                    assert!(values.iter().all(|value| *value == values[0]), "torn");
                    values.iter_mut().for_each(|value| *value += 1);
                }
            });
        }
    });
}

/// One thread asks again and again for a slab that it cannot have, because a tile in each of them is pinned; another
/// one fills and empties the frames beside.
#[test]
fn looking_for_a_slab_disturbs_no_other_thread() {
    let pool = pool(512 << 10, 64 << 10);
    let rich = Array::open(&pool, Memory::new(1024), &ArrayOptions::new(TILE as usize)).unwrap();
    let poor = Array::open(&pool, Memory::new(64), &ArrayOptions::new(64 << 10)).unwrap();
    let pinned: Vec<_> = (0..1024)
        .step_by(8)
        .map_while(|tile| {
            // Every eighth frame, of those that there are.
            (8..16).for_each(|more| drop(rich.pin(tile + more).ok()));
            (pool.statistics().evicted == 0).then(|| rich.pin(tile).unwrap())
        })
        .collect();
    assert!(pinned.len() > 4);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                poor.prefetch(0..TILE);
            }
        });
        let pins = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..1024).cycle().take(6_000).for_each(|tile| drop(rich.pin(tile).unwrap()));
        }));
        done.store(true, SeqCst);
        assert!(pins.is_ok());
    });
}

/// Each of many readers may claim half of the frames ahead; all of them together must leave some for what is written
/// meanwhile.
#[test]
fn readers_ahead_leave_frames_for_writers() {
    let pool = pool(256 << 10, TILE);
    pool.set_patience(std::time::Duration::from_secs(5));
    let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(TILE as usize) };
    let [from, to] = [(), ()].map(|()| Array::open(&pool, Memory::new(64), &options).unwrap());
    let mut readers: Vec<_> = (0..8u64).map(|first| from.tiles_in(first * 8..64)).collect();
    for reader in &mut readers {
        assert!(reader.next().unwrap().unwrap().iter().all(|byte| *byte == 0));
    }
    for tile in 0..8 {
        to.write(tile * TILE, &[1; TILE as usize]).unwrap();
    }
}
