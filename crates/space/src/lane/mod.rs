//! The memory of lanes: their segments in the pools, who may be inside a call that moves data, the threads that prepare
//! and move segments, and what of them a version has.
//!
//! Guarantees: a segment is of one lane, and is used again only after the last lease on its versions has gone.
//! Not here: joining (`open/`), what a record holds (the crate `log`), steps (`writer/`, `reader/`).

pub(crate) mod gate;
pub(crate) mod granules;
pub(crate) mod helper;
pub(crate) mod index;
pub(crate) mod mover;
pub(crate) mod segments;
pub(crate) mod view;
