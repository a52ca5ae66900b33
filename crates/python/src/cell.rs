//! A channel handle that Python threads share: one lock, never waited for with the GIL held.
//!
//! Guarantees: two threads that use one channel take turns and cannot deadlock with the GIL; work that may take
//! long runs without the GIL. A call that waits for a peer holds the lock for at most one slice at a time.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::detach::detached;

/// Copies of at least this many bytes release the GIL: below, releasing and taking it costs more than the copy.
pub const GIL_BYTES: usize = 64 << 10;

/// See the file's head.
pub struct Cell<T>(Mutex<T>);

impl<T: Send> Cell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        Cell(Mutex::new(value))
    }

    /// Calls `work` with the GIL held; for short work only.
    #[inline]
    pub fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> R) -> R {
        loop {
            match self.0.try_lock() {
                Ok(mut value) => return work(&mut value),
                Err(TryLockError::Poisoned(value)) => return work(&mut value.into_inner()),
                // The holder may need the GIL to let go: wait for the lock without it, then try again.
                Err(TryLockError::WouldBlock) => detached(py, || drop(self.lock())),
            }
        }
    }

    /// Calls `work` with the GIL released.
    pub fn without_gil<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> R + Send) -> R {
        detached(py, || work(&mut self.lock()))
    }

    /// Whether another thread uses the value now.
    pub fn is_in_use(&self) -> bool {
        matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The value, for a caller that already gave up the GIL.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // A panic in an earlier call is reported there; what it left is checked by the space's own states.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
