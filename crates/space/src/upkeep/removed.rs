//! What is to be removed, and what was: plain values.
//!
//! Not here: removing (`clean.rs`, `channels.rs`).

use forebay_tier::{Error, Kind};
use serde::Serialize;

/// What to remove.
#[derive(Clone, Debug, Default)]
pub struct CleanOptions {
    /// Names or paths; empty: every space under the root of short names.
    pub names: Vec<String>,
    /// Only what dead processes left behind: also keep spaces that ended cleanly and were not read yet.
    pub dead_only: bool,
    /// Say what would go, remove nothing.
    pub dry_run: bool,
}

/// What was removed and what was kept.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CleanReport {
    /// Removed, or to be removed in a dry run.
    pub removed: Vec<Removed>,
    /// Kept, with the reason.
    pub kept: Vec<Kept>,
}

/// A space that was removed.
#[derive(Clone, Debug, Serialize)]
pub struct Removed {
    /// Its name.
    pub name: String,
    /// Bytes it had allocated.
    pub bytes: u64,
    /// Why it could go.
    pub reason: String,
}

/// A space that was kept.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Why it stays.
    pub reason: String,
    /// It could not be removed; else it is in use, or is not to be removed by this call.
    pub failed: bool,
    /// The kind of the error; `NameInUse` where nothing failed.
    #[serde(skip)]
    pub kind: Kind,
}

impl Kept {
    /// It is in use, or this call does not remove it.
    pub fn in_use(name: String, reason: String) -> Kept {
        Kept { name, reason, failed: false, kind: Kind::NameInUse }
    }

    /// It could not be removed.
    pub fn failed(name: String, error: &Error) -> Kept {
        Kept { name, reason: error.to_string(), failed: true, kind: error.kind() }
    }
}

pub(crate) const BY_A_KILL: &str = "left by a process that was killed";

/// What became of a space, or why it stays.
pub(crate) type Outcome = std::result::Result<Removed, String>;

impl CleanReport {
    pub(crate) fn add(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(removed) => self.removed.push(removed),
            Err(reason) => self.kept.push(Kept::in_use(name.into(), reason)),
        }
    }

    pub(crate) fn fail(&mut self, name: &str, error: &Error) {
        self.kept.push(Kept::failed(name.into(), error));
    }
}
