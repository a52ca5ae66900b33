//! Where threads sleep until a locked tile opens.
//!
//! A waiter announces itself in the tile's word (state.rs) while it holds the tile's place, then sleeps; the thread
//! that opens the tile finds the announcement and wakes the place under the same lock. So the wake-up cannot fall
//! between the look and the sleep.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_tier::{clock, Error, Kind, Result};

/// Places; tiles that share one wake each other for nothing.
const PLACES: usize = 64;

/// The longest sleep, after which a waiter looks again whatever happened.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// How long a wait may last where none is set.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long one wait goes on: by the clock, from its first look on, however often it is woken.
pub(crate) struct Patience {
    limit: Duration,
    begun_ns: Option<u64>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience { limit, begun_ns: None }
    }

    /// Asked before each sleep, with what is waited for.
    ///
    /// # Errors
    /// `TimedOut` once the limit has passed since it was first asked.
    pub(crate) fn check(&mut self, what: &str) -> Result<()> {
        let now_ns = clock::now_ns();
        let waited_ns = now_ns - *self.begun_ns.get_or_insert(now_ns);
        if Duration::from_nanos(waited_ns) < self.limit {
            return Ok(());
        }
        Err(Error::new(Kind::TimedOut, what)
            .with("waited_s", self.limit.as_secs_f64())
            .hint("another pin, possibly of this thread, is held too long: release pins and tiles after use"))
    }
}

/// See the file's head.
pub(crate) struct Parking {
    places: Vec<(Mutex<()>, Condvar)>,
}

impl Parking {
    pub(crate) fn new() -> Parking {
        Parking { places: (0..PLACES).map(|_| Default::default()).collect() }
    }

    /// Sleeps for a slice at most, unless `announce` says that there is nothing to wait for any more.
    pub(crate) fn wait(&self, key: u64, announce: impl FnOnce() -> bool) {
        let (lock, woken) = &self.places[key as usize % PLACES];
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if announce() {
            drop(woken.wait_timeout(guard, SLICE));
        }
    }

    /// Wakes all threads that wait for this tile.
    pub(crate) fn wake(&self, key: u64) {
        let (lock, woken) = &self.places[key as usize % PLACES];
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        woken.notify_all();
    }
}
