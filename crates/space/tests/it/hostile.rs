//! Hostile bytes in the files of a space: the fuzz targets of whole spaces over seeded changes, the same on every
//! machine and in every run. `SPACE_TEST_SEED` gives others, `SPACE_TEST_CASES` more of them.

#[path = "../../../../fuzz/whole_spaces.rs"]
#[allow(dead_code)]
mod whole_spaces;

use std::panic::{catch_unwind, AssertUnwindSafe};

type Target = fn(&[u8]);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number as it is found at the edges of what code expects.
    fn edge(&mut self) -> u64 {
        let value = 1u64 << self.below(64);
        let small = self.next() % 70;
        [
            0,
            1,
            value,
            value - 1,
            u64::MAX,
            u64::MAX - value,
            small,
            (small << 32) | (self.next() % 9),
            self.next(),
        ][self.below(9)]
    }
}

/// One to four words, near those that a sample changes.
fn words(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![random.below(16) as u8];
    for _ in 0..1 + random.below(4) {
        let near = &samples[random.below(samples.len())];
        let near = u32::from_le_bytes(near[1..5].try_into().expect("four"));
        out.extend_from_slice(&(near + random.below(4) as u32).to_le_bytes());
        out.extend_from_slice(&random.edge().to_le_bytes());
    }
    out
}

/// A sample with a few bytes changed, removed or doubled.
fn text(random: &mut Random, sample: &[u8]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let length = random.below(12).min(bytes.len() - at);
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 if at > 1 => bytes.truncate(at),
            2 if length < bytes.len() => drop(bytes.drain(at..at + length)),
            3 => {
                let part = bytes[at..at + length].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes[at] = b"0123456789-{}[],\":/."[random.below(20)],
        }
    }
    bytes
}

#[test]
fn hostile_bytes_in_the_files_of_a_space_end_no_process() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (seed, cases) = (number("SPACE_TEST_SEED", 1), number("SPACE_TEST_CASES", 250));
    let targets: [(&str, Target); 5] = [
        ("space_pool", whole_spaces::space_pool),
        ("space_lower", whole_spaces::space_lower),
        ("space_control", whole_spaces::space_control),
        ("space_tiers", whole_spaces::space_tiers),
        ("space_cursors", whole_spaces::space_cursors),
    ];
    let regressions = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
    let mut failed = Vec::new();
    for (name, target) in targets {
        let samples = whole_spaces::samples(name);
        let known = std::fs::read_dir(regressions.join(name)).into_iter().flatten().flatten();
        let known = known.map(|entry| std::fs::read(entry.path()).expect("read"));
        let mut random = Random(seed);
        let inputs = (0..cases).map(|_| match name {
            "space_tiers" => text(&mut random, &samples[0]),
            _ => words(&mut random, &samples),
        });
        for (i, data) in known.chain(inputs).enumerate() {
            if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
                failed.push(format!("{name}, input {i} of seed {seed}: {}", hex(&data)));
                if failed.len() > 20 {
                    break;
                }
            }
        }
    }
    whole_spaces::clean_up();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
