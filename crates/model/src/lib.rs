//! The model: predicts how long a workflow takes by a plan on a tier of a profile. Pure functions, no I/O.
//!
//! [`device`] makes a [`station`] of a tier, [`workflow`] runs a workflow through it, [`forecast`] says it of a plan,
//! with an error bar. The workflows of a study, by which all this is judged, are in `lab/suite`.
//! Not here: measuring, choosing (`flow`), carrying out.
#![forbid(unsafe_code)]

pub mod beside;
pub mod device;
pub mod forecast;
pub mod plan;
pub mod station;
pub mod table;
pub mod workflow;
