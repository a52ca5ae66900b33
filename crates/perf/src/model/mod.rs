//! The model: predicts how long a workflow takes by a plan on a tier of a profile. Pure functions, no I/O.
//!
//! [`device`] makes a [`station`] of a tier, [`workflow`] runs a workflow through it, [`forecast`] says it of a plan,
//! with an error bar. [`stream`] and [`expansion`] are models of their own for kernels by location and for programs
//! larger than main memory. [`suite`] holds the 18 workflows of a study, by which all this is judged; [`search`] fits
//! what that study does not print.
//! Not here: measuring, choosing (`flow`), carrying out.

pub mod beside;
pub mod device;
pub mod expansion;
pub mod forecast;
pub mod plan;
pub mod search;
pub mod station;
pub mod stream;
pub mod suite;
pub mod table;
pub mod workflow;
