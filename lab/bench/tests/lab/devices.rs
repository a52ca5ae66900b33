//! What the measuring verbs say against what the kernel says: bytes that were to come from the device, or go to it,
//! did.
//!
//! The counters of a device (/proc/diskstats) count the bytes of all processes, so that they may show more than was
//! asked for, never less. Without a device that can be named there is nothing to compare with; that is skipped and
//! said.

use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::bench::Bench;
use crate::skips::skipped;

/// Of cold reads through the page cache the device may owe this share: pages that another process had in use.
const COLD_MIN: f64 = 0.9;

/// Bytes that the device below a directory has read and written since the machine began.
fn device_bytes(bench: &Bench) -> Option<[u64; 2]> {
    let device = bench.work().metadata().ok()?.dev();
    let number = [rustix::fs::major(device).to_string(), rustix::fs::minor(device).to_string()];
    let table = std::fs::read_to_string("/proc/diskstats").ok()?;
    let words = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let own = words.into_iter().find(|words| words.len() > 9 && words[..2] == number)?;
    let sectors = |at: usize| own[at].parse::<u64>().ok();
    Some([sectors(5)? * 512, sectors(9)? * 512])
}

/// What the device moved while a verb ran, and its document; None, said, where there is none to ask.
fn moved(bench: &Bench, what: &str, words: &[&str]) -> Option<([u64; 2], Value)> {
    let Some(before) = device_bytes(bench) else {
        skipped(what, "no device of /proc/diskstats lies below the temporary files");
        return None;
    };
    let outcome = bench.call(words);
    outcome.wants(0);
    let document = serde_json::from_slice(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome}"));
    let after = device_bytes(bench).expect("it was there before");
    Some(([after[0] - before[0], after[1] - before[1]], document))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn what_lriot_reads_and_writes_the_device_moves() {
    for reads in ["100", "0"] {
        let bench = Bench::new();
        let base = ["bench", "lriot", "--json", "--size", "32MiB", "--threads", "1,2", "--seconds", "0.02"];
        // Stores into a mapping reach the device when the kernel likes: only reads are compared there.
        let ways = if reads == "100" { "mmap,direct" } else { "direct" };
        let words = [&base[..], &["--ways", ways, "--reads", reads]].concat();
        let Some((device, document)) = moved(&bench, "bench lriot", &words) else { return };
        let (mut said, mut seen) = ([0, 0], [0, 0]);
        for point in document["points"].as_array().expect("points") {
            for way in 0..2 {
                let (bytes, below) = (number(&point["bytes"][way]), number(&point["device_bytes"][way]));
                let share = if point["way"] == "mmap" { COLD_MIN } else { 1.0 };
                assert!(below as f64 >= bytes as f64 * share, "{point}");
                said[way] += bytes;
                seen[way] += below;
            }
            assert_eq!(point["caveat"], Value::Null, "{point}");
        }
        assert!(said[0] + said[1] > 0, "{document}");
        assert!(device[0] >= seen[0] && device[1] >= seen[1], "{seen:?} of {device:?}");
    }
}

#[test]
fn what_ior_writes_and_reads_the_device_moves() {
    let bench = Bench::new();
    let words = ["bench", "ior", "--json", "--size", "4MiB", "--transfer", "4KiB,1MiB", "--persist-at-end"];
    let Some((device, document)) = moved(&bench, "bench ior", &words) else { return };
    let bytes = number(&document["threads"]) * number(&document["bytes_per_thread"]);
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{document}");
    let mut seen = [0, 0];
    for row in rows {
        assert_eq!(number(&row["verified_bytes"]), bytes, "{row}");
        let (read, written) = (number(&row["read_device_bytes"]), number(&row["write_device_bytes"]));
        assert!(read as f64 >= bytes as f64 * COLD_MIN && written >= bytes, "{row}");
        assert_eq!(row["caveat"], Value::Null, "{row}");
        seen = [seen[0] + read, seen[1] + written];
    }
    assert!(device[0] >= seen[0] && device[1] >= seen[1], "{seen:?} of {device:?}");
}
