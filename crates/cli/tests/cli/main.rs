//! The command as a user meets it: own processes, own root of spaces, both streams and the exit status.
//!
//! One test program for all files, so that it is linked once. Nothing here looks at a clock.
#![forbid(unsafe_code)]

mod bench;
mod ckpt;
mod demo;
mod devices;
mod doctor;
mod documents;
mod mem;
mod metrics;
mod mistakes;
mod out_of_core;
mod placing;
mod plans;
mod running;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
mod slurm;
mod snapshots;
mod solver;
mod spaces;
mod stopping;
mod suite;
mod trials;
mod writing;
