//! Redundancy of a level: what else is kept of each step, on other nodes, so that a lost node or a damaged file costs
//! nothing.
//!
//! A level with redundancy has one directory for each node; what lies in one of them is lost together. Each rank's
//! piece lies on the rank's own node. What protects it lies on others:
//! - `partner`: a copy on the next node. Any nodes may be lost of which no two are neighbours.
//! - `xor:N`: groups of N nodes, each with parity of the others'. One node of each group may be lost.
//! - `rs:K+M`: groups of K + M nodes, Reed–Solomon. Any M nodes of each group may be lost.
//!
//! Guarantees: parity is written for committed steps only, by the rank that keeps it, and never touches a step's own
//! files: what was committed before is as good as it was, whenever the writing ends. Rebuilt bytes are compared twice,
//! with checksums that were taken when parity was written and with those of the manifest that was committed, before a
//! step counts as whole.
//!
//! Not here: who asks for it and when (the drain, the search for a step to restore), and how bytes get to other
//! nodes: every rank sees the directories of all nodes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use forebay_tier::Result;

use crate::format::StepId;
pub use crate::format::{Member, ParityRecord};
use crate::level::Level;
pub use crate::level::{Code, Guard};

#[cfg(test)]
mod crash_tests;
mod owed;
mod parity;
mod repair;
mod state;

pub(crate) use owed::Owed;
pub(crate) use repair::repair;
pub use repair::Repair;
pub(crate) use state::look;
pub use state::{Protection, State};

/// A hidden name for a file in the making, of no other writer.
fn hidden(dir: &str, file: &str) -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{dir}/.{file}.{random:016x}")
}

/// Writes what every rank of a committed step would keep, as far as it is missing.
///
/// # Errors
/// `NotPossibleHere` on too few nodes; `Damaged` when the step is not whole; those of the places.
pub(crate) fn protect_all(level: &Level, id: StepId) -> Result<()> {
    let Some(guard) = &level.guard else { return Ok(()) };
    let Some(commit) = level.commit_record(id)? else { return Ok(()) };
    for rank in 0..commit.ranks.len() as u32 {
        parity::protect(level, guard, &commit, rank)?;
    }
    Ok(())
}
