//! What the tiers of a node deliver: the load that measures them, profiles that hold it, reports that show it.
//!
//! Guarantees: whatever is measured says how, and what the kernel really moved for it. Does not: know of lanes,
//! records or versions; everything below is a file, a mapping or memory.
#![forbid(unsafe_code)]

pub mod load;
pub mod memory;
pub mod model;
pub mod probe;
pub mod profile;
pub mod report;
#[cfg(test)]
#[path = "../../tier/tests/skips/mod.rs"]
mod skips;
