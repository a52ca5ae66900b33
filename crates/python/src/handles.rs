//! Handles that this process has open, so that a notebook cell which opens a name can be run again.
//!
//! Guarantees: a second `open` of one name in one role, as one rank of one component
//! and reader group, closes the handle of the first,
//! unless a step is open there: then the error names it, and nothing changes. The list keeps no handle alive.
//! A forked child begins with an empty list: the handles of its parent are neither closed nor asked anything, because
//! a thread of the parent may hold their locks for ever.
//! Not here: what a space thinks of a handle that is still open.

use std::sync::{Mutex, PoisonError};

use forebay_space::{Kind, OpenOptions};
use forebay_tier::process::ForkMark;
use pyo3::prelude::*;

use crate::errors::usage;

/// What two handles of one process cannot both be.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    role: &'static str,
    place: String,
    component: String,
    group: Option<String>,
    rank: u32,
}

impl Key {
    /// Of a handle that is about to be opened; None for observers, of which there can be any number.
    pub fn of(role: &'static str, name: &str, options: &OpenOptions) -> Option<Key> {
        let path = options.path.as_ref().map(|path| path.display().to_string());
        let place = path.unwrap_or_else(|| name.to_string());
        // The same words mean another place after a change of the directory or of the root.
        let place = match place.contains('/') || options.path.is_some() {
            true => std::path::absolute(&place).ok()?.display().to_string(),
            false => format!("{}:{place}", std::env::var("FOREBAY_DIR").unwrap_or_default()),
        };
        let component = options.component.clone().unwrap_or_default();
        let (group, rank) = (options.group.clone(), options.rank.unwrap_or(0));
        (!options.observer).then_some(Key { role, place, component, group, rank })
    }
}

/// A handle as the list has it.
pub trait Handle: Send + Sync {
    /// Whether it is neither closed nor gone.
    fn is_open(&self, py: Python<'_>) -> bool;
    /// The version of its open step.
    fn open_step(&self, py: Python<'_>) -> Option<u64>;
    /// Closes it.
    fn close(&self, py: Python<'_>) -> PyResult<()>;
    /// Abandons a writer. Readers have nothing to abandon.
    fn abandon(&self, _py: Python<'_>) {}
}

struct Entry {
    key: Key,
    handle: Box<dyn Handle>,
    /// The process that opened it.
    process: ForkMark,
}

static HANDLES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Empties the list, and returns what this process opened; what its parent opened is forgotten.
fn take_all() -> Vec<Entry> {
    let mut all = std::mem::take(&mut *HANDLES.lock().unwrap_or_else(PoisonError::into_inner));
    all.retain(|entry| !entry.process.is_forked());
    all
}

fn put(entries: impl IntoIterator<Item = Entry>) {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner).extend(entries);
}

/// Closes the handle that was opened before with this key.
pub fn close_former(py: Python<'_>, key: Option<&Key>, name: &str) -> PyResult<()> {
    let Some(key) = key else { return Ok(()) };
    let (own, others): (Vec<_>, Vec<_>) = take_all().into_iter().partition(|entry| entry.key == *key);
    put(others);
    for entry in own {
        if !entry.handle.is_open(py) {
            continue;
        }
        if let Some(version) = entry.handle.open_step(py) {
            let Key { role, component, rank, .. } = key;
            put([entry]);
            let what = format!(
                "this process has {name} open already: {role} rank {rank} of {component}, with step {version} open"
            );
            return Err(usage(py, Kind::NameInUse, what, "end that step or close that handle first"));
        }
        entry.handle.close(py)?;
    }
    Ok(())
}

/// Notes a handle that was opened, and forgets those that are closed or gone.
pub fn note(py: Python<'_>, key: Option<Key>, handle: Box<dyn Handle>) {
    let Some(key) = key else { return };
    let mut open = take_all();
    open.retain(|entry| entry.handle.is_open(py));
    open.push(Entry { key, handle, process: ForkMark::here() });
    put(open);
}

/// Called at exit. After an uncaught exception it abandons the writers that are open; otherwise they are closed when
/// the interpreter deletes them.
pub fn end(py: Python<'_>) {
    if has_failed(py).unwrap_or(false) {
        take_all().iter().for_each(|entry| entry.handle.abandon(py));
    }
}

/// Whether an uncaught exception ended the program: the interpreter stores in `sys` the exception that it printed. An
/// interactive session, which continues after one, does not count.
fn has_failed(py: Python<'_>) -> PyResult<bool> {
    let sys = py.import("sys")?;
    let is_printed = sys.hasattr("last_exc")? || sys.hasattr("last_value")?;
    Ok(is_printed && !sys.hasattr("ps1")?)
}
