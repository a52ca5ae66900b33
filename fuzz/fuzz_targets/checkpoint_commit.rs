//! libFuzzer on the target `checkpoint_commit` of targets.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::checkpoints::commit(data));
