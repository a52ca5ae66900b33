//! Tiers: places where bytes live, and the primitives to use them.
pub mod error;
pub use error::{Error, Kind, Result};
