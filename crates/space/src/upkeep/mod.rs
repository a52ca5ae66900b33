//! What looks at whole spaces and channels, or removes them: lists, verification, cleaning, draining, steering.
//!
//! Guarantees: nothing here takes part: no process waits for it.
//! Not here: a space that goes because it was read to its end (`open/read_to_end.rs`).

pub(crate) mod agent;
pub(crate) mod channels;
pub(crate) mod clean;
pub(crate) mod drain;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod ranks;
pub(crate) mod reader_groups;
pub(crate) mod removed;
pub(crate) mod steer;
pub(crate) mod verify;
