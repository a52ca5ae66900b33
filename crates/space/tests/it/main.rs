//! Tests of the promises of a space, through the public API only: threads here, processes in `processes`.

mod backing;
mod damage;
mod emulated;
mod faults;
mod large;
mod many;
mod paces;
mod processes;
mod reading;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
mod spilling;
mod support;
mod writing;
