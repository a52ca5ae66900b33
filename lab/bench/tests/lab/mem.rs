//! Benchmarks under `forebay mem`: right figures within a budget of memory.

use crate::bench::Bench;
use crate::skips::skipped;

/// Whether the library lies where the command looks for it.
fn has_library() -> bool {
    let command = crate::forebay();
    let there = command.with_file_name("libforebay_mem.so").is_file();
    if !there {
        skipped("forebay mem", "the library is not built: cargo build --release -p forebay-mem");
    }
    there
}

#[test]
fn solvers_of_several_processes_are_right_within_one_budget() {
    if !has_library() {
        return;
    }
    let bench = Bench::new();
    let tier = tempfile::tempdir().unwrap();
    let place = tier.path().to_str().unwrap();
    let forebay = crate::forebay().to_str().expect("a path of text");
    // Every solver compares its figures with the published ones, and fails where they differ.
    let both = "\"$0\" bench npb --kernel mg --class S --place dram & MG=$!; \
                \"$0\" bench npb --kernel ft --class S --place dram & FT=$!; wait $MG && wait $FT";
    for (budget, words, processes) in [
        ("6MiB", ["sh", "-c", both, forebay].as_slice(), 2),
        ("2MiB", &[forebay, "bench", "bt", "--class", "W", "--ranks", "2", "--threads", "1"], 2),
    ] {
        let mem = format!("mem --dram {budget} --tile 16KiB --threshold 64KiB --json --tier {place} --");
        let all: Vec<&str> = mem.split(' ').chain(words.iter().copied()).collect();
        let seen = bench.call(&all).wants(0).document();
        assert!(seen["processes"].as_u64().unwrap() >= processes, "{seen}");
        let of = |field: &str| seen[field].as_u64().unwrap();
        // The kernel's engine looks often, and may be late both ways.
        let exact = of("evicted_bytes") > 0 && of("resident_peak") <= of("budget");
        assert!(seen["engine"] == "kernel" || exact, "all fit, or there was too much: {seen}");
        assert_eq!(std::fs::read_dir(tier.path()).unwrap().count(), 0, "something is left");
    }
}
