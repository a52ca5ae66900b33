//! Tests of the promises of a space, through the public API only: threads here, processes in `processes`.

mod backing;
mod cleaning;
mod damage;
mod describing;
mod emulated;
mod execution_modes;
mod faults;
mod groups;
mod hostile;
mod large;
mod many;
mod mistakes;
mod opening;
mod ownership;
mod processes;
mod reading;
mod restarts;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
mod spilling;
mod support;
#[path = "../../../tier/tests/tmpfs/mod.rs"]
mod tmpfs;
mod writing;
