//! libFuzzer on the target `checkpoint_manifest` of targets.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::checkpoints::manifest(data));
