//! Handles that this process has open, so that a notebook cell which opens a name can be run again.
//!
//! Guarantees: a second `open` of one name in one role, as one rank of one component
//! and reader group, closes the handle of the first,
//! unless a step is open there: then the error names it, and nothing changes. The list keeps no handle alive.
//! Not here: what a space thinks of a handle that is still open.

use std::sync::{Mutex, PoisonError};

use forebay_space::{Kind, OpenOptions};
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
}

type Entry = (Key, Box<dyn Handle>);

static HANDLES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

fn take(key: &Key) -> Vec<Entry> {
    let mut all = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let (own, others) = std::mem::take(&mut *all).into_iter().partition(|(other, _)| other == key);
    *all = others;
    own
}

fn put(entry: Entry) {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
}

/// Closes the handle that was opened before with this key.
pub fn close_former(py: Python<'_>, key: Option<&Key>, name: &str) -> PyResult<()> {
    let Some(key) = key else { return Ok(()) };
    for (key, handle) in take(key) {
        if !handle.is_open(py) {
            continue;
        }
        if let Some(version) = handle.open_step(py) {
            let (role, component, rank) = (key.role, key.component.clone(), key.rank);
            put((key, handle));
            let what = format!(
                "this process has {name} open already: {role} rank {rank} of {component}, with step {version} open"
            );
            return Err(usage(py, Kind::NameInUse, what, "end that step or close that handle first"));
        }
        handle.close(py)?;
    }
    Ok(())
}

/// Notes a handle that was opened, and forgets those that are closed or gone.
pub fn note(py: Python<'_>, key: Option<Key>, handle: Box<dyn Handle>) {
    let Some(key) = key else { return };
    let all = std::mem::take(&mut *HANDLES.lock().unwrap_or_else(PoisonError::into_inner));
    let open = all.into_iter().filter(|(_, handle)| handle.is_open(py));
    open.chain([(key, handle)]).for_each(put);
}
