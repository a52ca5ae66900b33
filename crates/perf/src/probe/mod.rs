//! The probe: finds the tiers of this node and measures what they deliver.

pub mod find;
pub mod machine;
pub mod nodes;
#[cfg(test)]
mod sample;
