//! Adapters: devices that stand in front of another device, or in the place of one, to emulate, to count or to
//! let fail.
//!
//! Each is a [`Device`](crate::Device) and keeps its contract, except where its own page says what it breaks on
//! purpose. None of them decides a policy, and none is chosen unless asked for by name.

mod around;
pub mod fault;
pub mod sim;
pub mod stats;
pub mod throttle;

pub use around::OpKind;
