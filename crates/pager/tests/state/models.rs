//! What must hold in every execution, each a small cast of threads over the production protocol.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread::spawn;

use crate::state::{self, Pin, DIRTY, FAILED, RESIDENT, WAITED, WRITER};
use crate::words::Tile;

/// Every model with its name.
pub const MODELS: &[(&str, fn())] = &[
    ("a tile that was loaded is seen whole", loaded_is_whole),
    ("a frame that left is read by no thread", evicted_is_not_read),
    ("writers take turns, and readers see all of a write", writers_take_turns),
    ("a load that failed is seen by who asked, and tried again", failed_is_seen),
    ("who waits for a pin is woken", waiter_is_woken),
];

/// What a frame holds of the tile.
const DATA: u64 = 42;

/// Pins to read, loading the tile if it is absent; what the frame holds, None where the load failed.
fn read(tile: &Tile, load_fails: bool) -> Option<u64> {
    loop {
        let found = match state::pin(&tile.word) {
            Pin::Frame(_) => Some(tile.read()),
            Pin::Failed => None,
            Pin::Locked(seen) => {
                tile.wait(seen);
                continue;
            }
            Pin::Absent => {
                if !state::begin_load(&tile.word) {
                    continue;
                }
                state::set_ring(&tile.word, 1);
                if load_fails {
                    tile.wake_if(state::finish(&tile.word, FAILED | 1, 0));
                    None
                } else {
                    tile.write(DATA);
                    tile.wake_if(state::finish(&tile.word, RESIDENT | 1, 7));
                    Some(tile.read())
                }
            }
        };
        tile.wake_if(state::unpin(&tile.word, false));
        return found;
    }
}

/// Adds one to the frame.
fn add(tile: &Tile) {
    loop {
        match state::pin_to_write(&tile.word) {
            Pin::Frame(_) => {
                tile.write(tile.read() + 1);
                tile.wake_if(state::unpin(&tile.word, true));
                return;
            }
            Pin::Locked(seen) => tile.wait(seen),
            other => panic!("a resident tile is {other:?}"),
        }
    }
}

fn loaded_is_whole() {
    let tile = Rc::new(Tile::new(0, 0));
    let other = tile.clone();
    let thread = spawn(move || assert_eq!(read(&other, false), Some(DATA)));
    assert_eq!(read(&tile, false), Some(DATA));
    thread.join().unwrap();
    assert_eq!(tile.word.load(Relaxed) & (state::LOCK | WAITED), 0);
}

fn evicted_is_not_read() {
    let tile = Rc::new(Tile::new(RESIDENT, DATA));
    let other = tile.clone();
    let thread = spawn(move || assert_eq!(read(&other, false), Some(DATA)));
    if let Some(seen) = state::begin_move(&tile.word) {
        assert_eq!(state::lock_of(seen), 0);
        // The frame is another tile's now.
        tile.write(0);
        tile.wake_if(state::finish(&tile.word, 0, 0));
    }
    thread.join().unwrap();
}

fn writers_take_turns() {
    let tile = Rc::new(Tile::new(RESIDENT, 0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let tile = tile.clone();
            spawn(move || add(&tile))
        })
        .collect();
    let seen = match state::pin(&tile.word) {
        Pin::Frame(_) => {
            let seen = tile.read();
            tile.wake_if(state::unpin(&tile.word, false));
            seen
        }
        _ => 0,
    };
    assert!(seen <= 2);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(tile.word.load(Relaxed) & (DIRTY | state::LOCK), DIRTY);
    let moved = state::begin_move(&tile.word).expect("no thread pins it");
    assert_ne!(moved & DIRTY, 0);
    assert_eq!(tile.read(), 2);
}

fn failed_is_seen() {
    let tile = Rc::new(Tile::new(0, 0));
    let other = tile.clone();
    let thread = spawn(move || assert_eq!(read(&other, true), None));
    assert_eq!(read(&tile, true), None);
    thread.join().unwrap();
    assert_eq!(tile.word.load(Relaxed) & !WAITED, 0, "the next one tries again");
    assert_eq!(read(&tile, false), Some(DATA));
}

fn waiter_is_woken() {
    let tile = Rc::new(Tile::new(RESIDENT | WRITER, 1));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let tile = tile.clone();
            spawn(move || add(&tile))
        })
        .collect();
    tile.write(5);
    tile.wake_if(state::unpin(&tile.word, true));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Wrong: the waiter marks the word in a step of its own, whatever it has become meanwhile.
pub fn announces_too_late() {
    let tile = Rc::new(Tile::new(RESIDENT | WRITER, 1));
    let other = tile.clone();
    let thread = spawn(move || {
        if state::lock_of(other.word.load(Relaxed)) == WRITER {
            other.sleep(|| {
                other.word.fetch_or(WAITED, Relaxed);
                true
            });
        }
    });
    tile.wake_if(state::unpin(&tile.word, true));
    thread.join().unwrap();
}
