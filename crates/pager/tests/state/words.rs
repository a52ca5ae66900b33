//! The model checker's word behind the trait of state.rs, the places where waiters sleep, and a frame whose races it
//! sees.
//!
//! Every operation knows the line of state.rs that asked for it, so that one of them can be weakened to relaxed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::{Mutex, OnceLock};

use loom::sync::{atomic, Condvar, Mutex as LoomMutex};

use crate::state::{self, Word};

/// A place in state.rs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    line: u32,
    column: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

static SITES: Mutex<BTreeSet<Site>> = Mutex::new(BTreeSet::new());
static WEAKENED: OnceLock<String> = OnceLock::new();

/// From here on the operation at `site` has no ordering.
pub fn weaken(site: &str) {
    WEAKENED.set(site.to_string()).expect("once a process");
}

/// Every place that asked for more than a relaxed access so far.
pub fn sites() -> BTreeSet<Site> {
    SITES.lock().expect("not poisoned").clone()
}

fn ordering(order: Ordering, at: &Location<'_>) -> Ordering {
    let site = Site { line: at.line(), column: at.column() };
    if order == Relaxed || !at.file().ends_with("state.rs") {
        return order;
    }
    SITES.lock().expect("not poisoned").insert(site);
    if WEAKENED.get() == Some(&site.to_string()) {
        return Relaxed;
    }
    order
}

pub type ModelWord = atomic::AtomicU64;

impl Word for ModelWord {
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        self.load(ordering(order, Location::caller()))
    }

    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, ordering(order, Location::caller()))
    }

    #[track_caller]
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.compare_exchange(from, to, ordering(order, Location::caller()), Relaxed).is_ok()
    }
}

/// A tile: its word, its frame, and where its waiters sleep. Never by time: a lost wake-up is a deadlock here.
pub struct Tile {
    pub word: ModelWord,
    access: loom::cell::UnsafeCell<()>,
    value: Cell<u64>,
    place: LoomMutex<()>,
    woken: Condvar,
}

impl Tile {
    pub fn new(word: u64, value: u64) -> Tile {
        Tile {
            word: ModelWord::new(word),
            access: loom::cell::UnsafeCell::new(()),
            value: Cell::new(value),
            place: LoomMutex::new(()),
            woken: Condvar::new(),
        }
    }

    #[track_caller]
    pub fn write(&self, value: u64) {
        self.access.with_mut(|_| self.value.set(value));
    }

    #[track_caller]
    pub fn read(&self) -> u64 {
        self.access.with(|_| self.value.get())
    }

    /// As the pager's parking does.
    pub fn sleep(&self, announce: impl FnOnce() -> bool) {
        let guard = self.place.lock().expect("not poisoned");
        if announce() {
            drop(self.woken.wait(guard).expect("not poisoned"));
        }
    }

    pub fn wake_if(&self, wake: bool) {
        if wake {
            let _guard = self.place.lock().expect("not poisoned");
            self.woken.notify_all();
        }
    }

    pub fn wait(&self, seen: u64) {
        self.sleep(|| state::announce(&self.word, seen));
    }
}
