//! Calls without the GIL, also of threads that the interpreter leaves behind when it ends.
//!
//! Guarantee: a daemon thread that waits in Forebay when the interpreter ends does not take the GIL again: it would be
//! ended by unwinding through Rust, which ends the process with SIGABRT. [`end`] is called by `atexit`.

use crate::handles;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The thread that ends the interpreter, from then on.
static ENDING: OnceLock<ThreadId> = OnceLock::new();
/// Threads that are inside [`detached`].
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// For threads that have just left their wait and are about to take the GIL.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `work` with the GIL released. Does not return in a thread that the interpreter has left behind.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        INSIDE.fetch_add(1, SeqCst);
        let done = work();
        while ENDING.get().is_some_and(|ending| *ending != thread::current().id()) {
            thread::park();
        }
        INSIDE.fetch_sub(1, SeqCst);
        done
    })
}

/// Called when the interpreter ends, after it has waited for all threads but daemons.
#[pyfunction]
pub fn end(py: Python<'_>) {
    handles::end(py);
    let _ = ENDING.set(thread::current().id());
    if INSIDE.load(SeqCst) > 0 {
        py.detach(|| thread::sleep(PAUSE));
    }
}
