//! Programs larger than memory: the measuring verbs check what they compute, say what they measured, and leave nothing.

use std::process::Stdio;

use serde_json::Value;

use crate::bench::Bench;
use crate::skips::skipped;

/// Whether mapped ways could run; where no memory cgroup is available they say why they did not.
fn mapped_ran(document: &Value, what: &str) -> bool {
    match document["skipped"].as_array().and_then(|all| all.first()) {
        None => true,
        Some(why) => {
            skipped(what, why["why"].as_str().expect("why"));
            assert_eq!(document["limit_bytes"], Value::Null);
            false
        }
    }
}

#[test]
fn all_sorts_sort_within_a_limit_and_leave_nothing() {
    let bench = Bench::new();
    let words = "bench sort --size 16MiB --budget 4MiB --threads 2 --tile 8KiB --dir .";
    let document = bench.json(&words.split(' ').collect::<Vec<_>>(), 0);
    assert_eq!((&document["provenance"], &document["keys"]), (&"measured".into(), &(2 << 20).into()));
    let ways = document["ways"].as_array().expect("ways");
    assert_eq!(ways[0]["way"], "external");
    assert!(ways[0]["runs"].as_u64().is_some_and(|runs| runs > 10), "{document}");
    let moved = ways[0]["moved_bytes"].as_array().expect("moved");
    // Two passes: every byte is read and written twice, and a little more where threads meet.
    for bytes in moved {
        let bytes = bytes.as_u64().unwrap();
        assert!((32 << 20..36 << 20).contains(&bytes), "{document}");
    }
    assert_eq!(ways[1]["way"], "window");
    // Four budgets' worth in place: most of it comes more than once.
    let read = ways[1]["moved_bytes"][0].as_u64().expect("read");
    assert!(ways[1]["method"] == "kernel" || read > 16 << 20, "{document}");
    if mapped_ran(&document, "sorting in a mapped file") {
        assert_eq!((ways.len(), &ways[2]["way"]), (3, &"mmap".into()));
        for ratio in ["ratio", "window_ratio"] {
            assert!(document[ratio].as_f64().is_some_and(|ratio| ratio > 0.0), "{document}");
        }
    }
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0, "nothing is left");
    let text = bench.call(&["bench", "sort", "--size", "1MiB", "--budget", "2MiB", "--ways", "external"]);
    text.wants(0).says("measured").says("every way left every key, in order");
    bench.call(&["bench", "sort", "--size", "64MiB", "--budget", "1MiB"]).wants(2).complains("budget");
    bench.call(&["bench", "sort", "--size", "0"]).wants(2);
}

#[test]
fn several_ranks_sort_together_within_one_limit() {
    let bench = Bench::new();
    let words = "bench sort --size 16MiB --budget 4MiB --ranks 3 --threads 1 --tile 8KiB --dir .";
    let document = bench.json(&words.split(' ').collect::<Vec<_>>(), 0);
    assert_eq!((&document["ranks"], &document["threads"]), (&3.into(), &1.into()));
    let ways = document["ways"].as_array().expect("ways");
    mapped_ran(&document, "several ranks that sort in mapped files");
    for way in ways {
        // Their parts are merged, whichever way they were sorted.
        assert!(way["phases"].is_array(), "{document}");
        let runs = way["runs"].as_u64().expect("runs");
        assert!(if way["way"] == "external" { runs > 10 } else { runs == 3 }, "{document}");
    }
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0, "nothing is left");
    bench.call(&["bench", "sort", "--ranks", "0"]).wants(2);
    bench
        .call(&["bench", "sort", "--size", "64MiB", "--budget", "8MiB", "--ranks", "64"])
        .wants(2)
        .complains("ranks");
}

#[test]
fn every_search_finds_the_same_within_a_limit_and_leaves_nothing() {
    let bench = Bench::new();
    let words = "bench bfs --scale 12 --edge-factor 8 --tile 4KiB,64KiB --budget 1MiB --threads 2";
    let document = bench.json(&words.split(' ').collect::<Vec<_>>(), 0);
    let searches = document["searches"].as_array().expect("searches");
    let of = |way: &str| searches.iter().filter(|row| row["way"] == way).count();
    assert_eq!((of("semi"), of("external")), (2, 2), "{document}");
    if mapped_ran(&document, "searching in a mapped file") {
        assert_eq!((of("mmap"), of("mmap-random")), (1, 1));
        assert!(document["speedup"].as_f64().is_some_and(|speedup| speedup > 0.0));
    }
    for row in searches {
        assert!(row["reached"].as_u64().is_some_and(|reached| reached > 1000), "{row}");
        assert_eq!(row["read_bytes"].is_null(), row["tile_bytes"].is_null(), "{row}");
    }
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0, "nothing is left");
    let text = bench.call(&["bench", "bfs", "--scale", "8", "--tile", "4KiB", "--ways", "semi"]);
    text.wants(0).says("measured").says("every level is right");
    bench.call(&["bench", "bfs", "--scale", "40"]).wants(2);
}

#[test]
fn a_signal_ends_the_part_that_runs_and_leaves_nothing() {
    let bench = Bench::new();
    let words = ["bench", "sort", "--size", "64MiB", "--budget", "4MiB", "--ways", "external"];
    let mut child = bench.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        let all = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        all.is_ok_and(|text| !text.trim().is_empty())
    };
    while !parts() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0, "nothing is left");
}
