//! The probe: finds the tiers of this node and measures what they deliver.

pub mod ask;
pub mod collect;
pub mod emulate;
pub mod emulated;
pub mod files;
pub mod find;
pub mod host;
pub mod judge;
pub mod machine;
pub mod memory;
pub mod nodes;
pub mod rounds;
pub mod run;
#[cfg(test)]
mod sample;
pub mod schedule;
pub mod scratch;
pub mod streams;
pub mod subject;
pub mod table;
