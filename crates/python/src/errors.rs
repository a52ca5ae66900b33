//! Errors across the border: a Forebay error becomes the Python class of its kind, a wait becomes interruptible.
//!
//! Guarantees: no call waits longer than [`SLICE`] without asking Python whether a signal (Ctrl-C) came in, and no
//! wait holds the GIL. The classes themselves are plain Python (`forebay/errors.py`).

use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::detach::detached;

/// Longest time between two looks at pending signals.
pub const SLICE: Duration = Duration::from_millis(100);

/// Turns an error into the Python exception of its kind.
#[cold]
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    exception(py, &error).unwrap_or_else(|broken| broken)
}

/// An exception for a mistake found in this crate.
#[cold]
pub fn usage(py: Python<'_>, kind: Kind, message: impl Into<String>, hint: &str) -> PyErr {
    let mut error = Error::new(kind, message);
    if !hint.is_empty() {
        error = error.hint(hint);
    }
    raise(py, error)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let classes = CLASSES.get_or_try_init(py, || {
        let found = py.import("forebay.errors")?.getattr("BY_KIND")?;
        found.cast_into::<PyDict>().map(Bound::unbind).map_err(PyErr::from)
    })?;
    let class = match classes.bind(py).get_item(error.kind().name())? {
        Some(class) => class,
        None => py.import("forebay.errors")?.getattr("Error")?,
    };
    let context = PyDict::new(py);
    for (key, value) in error.context() {
        context.set_item(key, value)?;
    }
    let value = class.call1((sentence(error), context, error.hint_text().map(in_python)))?;
    Ok(PyErr::from_value(value))
}

/// Settings that hints of the library below write in the manner of workflow files and Rust, and as Python has them.
const PYTHON_NAMES: [(&str, &str); 3] = [
    ("kind = \"space\"", "channel=\"space\""),
    ("replace=true", "replace=True"),
    ("finished=true", "finished=True"),
];

/// A hint in the words of Python.
fn in_python(hint: &str) -> String {
    PYTHON_NAMES.iter().fold(hint.to_owned(), |text, (below, python)| text.replace(below, python))
}

/// The message, with causes that it does not already quote.
fn sentence(error: &Error) -> String {
    let mut text = error.message().to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(below) = cause {
        let words = below.to_string();
        if !text.contains(&words) {
            text.push_str("; caused by: ");
            text.push_str(&words);
        }
        cause = below.source();
    }
    text
}

/// `?` for Forebay results inside Python methods.
pub trait OrRaise<T> {
    /// The value, or the Python exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T> {
    #[inline]
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, error))
    }
}

/// Calls `attempt` with slices of the time left until it gives something else than a time-out.
///
/// Without the GIL inside `attempt`; between two slices Python may run its signal handlers, and what they raise
/// ends the wait.
pub fn wait_in_slices<T: Send>(
    py: Python<'_>,
    total: Duration,
    attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<T> {
    repeat(py, total, may_come_yet, attempt)
}

/// As [`wait_in_slices`] for `open`, where a space that is not there yet may still come.
pub fn open_in_slices<T: Send>(
    py: Python<'_>,
    total: Duration,
    attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<T> {
    repeat(py, total, |error| may_come_yet(error) || error.kind() == Kind::PeerMissing, attempt)
}

fn repeat<T: Send>(
    py: Python<'_>,
    total: Duration,
    may_repeat: impl Fn(&Error) -> bool,
    mut attempt: impl FnMut(Duration) -> Result<T> + Send,
) -> PyResult<T> {
    let deadline = Instant::now().checked_add(total);
    loop {
        let left = deadline.map_or(SLICE, |d| d.saturating_duration_since(Instant::now()));
        match detached(py, || attempt(left.min(SLICE))) {
            Err(error) if may_repeat(&error) => {
                py.check_signals()?;
                if left <= SLICE {
                    let error = error.with("waited_s", format!("{:.1}", total.as_secs_f64()));
                    return Err(raise(py, error));
                }
            }
            other => return other.or_raise(py),
        }
    }
}

/// Errors that mean "not yet": a call that fails with one may be repeated as it was. A full space is one, but where it
/// was made to fail at once.
pub fn may_come_yet(error: &Error) -> bool {
    let fails_at_once = || error.context().iter().any(|(key, value)| *key == "when_full" && value == "error");
    match error.kind() {
        Kind::TimedOut => true,
        Kind::QuotaFull => !fails_at_once(),
        _ => false,
    }
}
