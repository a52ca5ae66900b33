//! Tests of the log on real devices: what is appended is found again, what is damaged is found out.

mod aborts;
mod faults;
mod fixtures;
mod lanes;
mod relocation;
#[path = "../sample/mod.rs"]
mod sample;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
