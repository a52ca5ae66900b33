//! libFuzzer on the target `space_pool` of targets.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::whole_spaces::space_pool(data));
