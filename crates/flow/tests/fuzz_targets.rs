//! The fuzz targets of fuzz/ over seeded inputs: changed fixtures, thousands for each target; and over every input that
//! once made one of them fail.
//!
//! The same on every machine and in every run.
//! SPACE_TEST_SEED gives other inputs.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::panic::{catch_unwind, AssertUnwindSafe};

use fastrand::Rng;

/// A number as it is found at the edges of what code expects.
fn edge(random: &mut Rng) -> u64 {
    let value = 1u64 << random.u32(..64);
    let all = [0, 1, value, value - 1, u64::MAX, u64::MAX - value, random.u64(..5000), random.u64(..)];
    all[random.usize(..8)]
}

/// A sample with a few bytes or words changed, removed or doubled.
fn changed(random: &mut Rng, sample: &[u8]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..1 + random.usize(..6) {
        if bytes.is_empty() {
            break;
        }
        let at = random.usize(..bytes.len());
        let length = random.usize(..12).min(bytes.len() - at);
        match random.usize(..6) {
            0 => bytes[at] ^= 1 << random.usize(..8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let part = bytes[at..at + length].to_vec();
                let to = random.usize(..bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let word = edge(random).to_le_bytes();
                let length = [1, 2, 4, 8][random.usize(..4)].min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&word[..length]);
            }
        }
    }
    bytes
}

/// Places and words: where the sample holds something that is not zero, mostly.
fn places(random: &mut Rng, interesting: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + random.usize(..4) {
        let at = match random.usize(..4) {
            0 => random.usize(..1 << 20) as u32,
            _ => (interesting[random.usize(..interesting.len())] / 8 + random.usize(..3)) as u32,
        };
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&edge(random).to_le_bytes());
    }
    out
}

fn input(random: &mut Rng, target: &str, samples: &[Vec<u8>], words: &[usize]) -> Vec<u8> {
    match target {
        "pool" | "control" => places(random, words),
        "space_pool" | "space_lower" | "space_control" | "space_cursors" => {
            // Places that a sample changes, and others around them.
            let near =
                |sample: &Vec<u8>| u32::from_le_bytes(sample[1..5].try_into().expect("four")) as usize * 8;
            let near: Vec<usize> = samples.iter().map(near).collect();
            [vec![random.usize(..16) as u8], places(random, &near)].concat()
        }
        _ => {
            let sample = &samples[random.usize(..samples.len())];
            changed(random, sample)
        }
    }
}

/// Inputs that once made a target fail.
fn regressions(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions").join(target);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |path: std::path::PathBuf| (path.display().to_string(), std::fs::read(&path).expect("read"));
    entries.map(|entry| read(entry.path())).collect()
}

#[test]
fn no_input_makes_a_target_panic() {
    let seed = std::env::var("SPACE_TEST_SEED").map_or(1, |s| s.parse().expect("a number"));
    let pool_words: Vec<usize> = (4096..targets::fixture().len())
        .step_by(8)
        .filter(|at| targets::fixture()[*at..*at + 8] != [0; 8])
        .collect();
    // The head of the control segment, its first lanes, members and granules.
    let control_words: Vec<usize> = [0..4096, 4096..4160, 266_240..266_752, 823_296..824_320]
        .into_iter()
        .flat_map(|r| r.step_by(8))
        .collect();
    let mut failed = Vec::new();
    for (name, target) in targets::TARGETS {
        let mut random = Rng::with_seed(seed);
        let words = if *name == "pool" { &pool_words } else { &control_words };
        let samples = targets::samples(name);
        for (known, data) in regressions(name) {
            if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
                failed.push(known);
            }
        }
        // Those that work on files are slower, and whole spaces take tens of milliseconds; libFuzzer has the rest.
        let count = match *name {
            "pool" | "control" | "attributes" => 3000,
            whole if whole.starts_with("space_") => 150,
            whole if whole.starts_with("checkpoint_") => 2000,
            _ => 20_000,
        };
        for number in 0..count {
            let data = input(&mut random, name, &samples, words);
            if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
                failed.push(format!("{name}, input {number} of seed {seed}"));
                break;
            }
        }
    }
    targets::clean_up();
    assert!(failed.is_empty(), "{failed:?}");
}
