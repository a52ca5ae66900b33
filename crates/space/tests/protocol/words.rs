//! The model checker's words behind the traits of protocol.rs, a futex, and data whose races it sees.
//!
//! Every operation knows the line of protocol.rs that asked for it, so that one of them can be weakened: an access to
//! relaxed, a barrier to nothing.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::sync::{Mutex, OnceLock};

use loom::sync::{atomic, Condvar, Mutex as LoomMutex};

use crate::protocol::{Barrier, Word32, Word64};

/// A place in protocol.rs.
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

/// The ordering to use for one that is asked for at `at`; None: weakened.
fn ordering(order: Ordering, at: &Location<'_>) -> Option<Ordering> {
    let site = Site { line: at.line(), column: at.column() };
    if order == Relaxed || !at.file().ends_with("protocol.rs") {
        return Some(order);
    }
    SITES.lock().expect("not poisoned").insert(site);
    (WEAKENED.get() != Some(&site.to_string())).then_some(order)
}

pub type Word = atomic::AtomicU64;
pub type Count = atomic::AtomicU32;

impl Barrier for Word {
    #[track_caller]
    fn barrier() {
        if let Some(order) = ordering(SeqCst, Location::caller()) {
            atomic::fence(order);
        }
    }
}

impl Word64 for Word {
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        self.load(ordering(order, Location::caller()).unwrap_or(Relaxed))
    }

    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, ordering(order, Location::caller()).unwrap_or(Relaxed));
    }

    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, ordering(order, Location::caller()).unwrap_or(Relaxed))
    }

    #[track_caller]
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool {
        let order = ordering(order, Location::caller()).unwrap_or(Relaxed);
        self.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, ordering(order, Location::caller()).unwrap_or(Relaxed))
    }
}

impl Barrier for Count {
    #[track_caller]
    fn barrier() {
        if let Some(order) = ordering(SeqCst, Location::caller()) {
            atomic::fence(order);
        }
    }
}

impl Word32 for Count {
    #[track_caller]
    fn load(&self, order: Ordering) -> u32 {
        self.load(ordering(order, Location::caller()).unwrap_or(Relaxed))
    }

    #[track_caller]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, ordering(order, Location::caller()).unwrap_or(Relaxed))
    }

    #[track_caller]
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_sub(value, ordering(order, Location::caller()).unwrap_or(Relaxed))
    }
}

/// What the kernel does for those who sleep on a word: compare and sleep are one step towards a waker. It orders
/// nothing else: the lock is the kernel's own, and neither side may lean on it for what it stored before.
pub struct Futex {
    pub word: Count,
    pub waiters: Count,
    queue: LoomMutex<()>,
    woken: Condvar,
}

impl Futex {
    pub fn new() -> Futex {
        Futex {
            word: Count::new(0),
            waiters: Count::new(0),
            queue: LoomMutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Sleeps while the word is `seen`. Never by time: a wake-up that is lost is a deadlock here.
    pub fn wait(&self, seen: u32) {
        let guard = self.queue.lock().expect("not poisoned");
        if self.word.load(Relaxed) == seen {
            drop(self.woken.wait(guard).expect("not poisoned"));
        }
    }

    pub fn wake(&self) {
        let _guard = self.queue.lock().expect("not poisoned");
        self.woken.notify_all();
    }
}

/// Data that no lock guards: two accesses, one of them a write, must be ordered by the protocol, else the model
/// fails. What it holds is checked by the reader.
pub struct Payload {
    access: loom::cell::UnsafeCell<()>,
    value: Cell<u64>,
}

impl Payload {
    pub fn new(value: u64) -> Payload {
        Payload { access: loom::cell::UnsafeCell::new(()), value: Cell::new(value) }
    }

    #[track_caller]
    pub fn write(&self, value: u64) {
        self.access.with_mut(|_| self.value.set(value));
    }

    #[track_caller]
    pub fn read(&self) -> u64 {
        self.access.with(|_| self.value.get())
    }
}
