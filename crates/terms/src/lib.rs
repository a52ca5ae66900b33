//! What all crates name alike: the error, kinds of tiers, horizons, durability, and which word was meant.
//!
//! Guarantees: it computes only; nothing here reads the environment, the machine or a file. So what uses no other crate
//! than this one cannot measure anything.
#![forbid(unsafe_code)]

mod error;
mod kind;
pub mod spelling;

pub use error::{Error, Kind, Result};
pub use kind::{Access, Durability, Horizon, Nodes, Placement, Shares, TierKind, NODES_MAX};
