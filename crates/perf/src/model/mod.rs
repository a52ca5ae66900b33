//! The model: predicts how long a workflow takes by a plan on a tier of a profile. Pure functions, no I/O.
//!
//! Not here: measuring, choosing (`flow`), carrying out.

pub mod plan;
