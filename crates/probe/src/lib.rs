//! The probe: finds the tiers of this node and measures what they deliver.
//!
//! [`load`] generates loads on files, [`kernels`] are loops over memory; from both come the curves of a profile. The
//! probe of an emulated tier asks a throttled device for what was set ([`medium`] has it from a profile).
//! Guarantees: whatever is measured says how, and what the kernel really moved for it. Does not: know of lanes, records
//! or versions; everything below is a file, a mapping or memory.
#![forbid(unsafe_code)]

pub mod ask;
pub mod collect;
pub mod emulate;
pub mod emulated;
pub mod files;
pub mod find;
pub mod host;
pub mod judge;
pub mod kernels;
pub mod load;
pub mod machine;
pub mod medium;
pub mod memory;
pub mod nodes;
pub mod rounds;
pub mod run;
#[cfg(test)]
mod sample;
pub mod schedule;
pub mod scratch;
#[cfg(test)]
#[path = "../../tier/tests/skips/mod.rs"]
mod skips;
pub mod streams;
pub mod subject;
pub mod table;
