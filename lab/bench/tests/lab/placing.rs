//! Programs with their arrays in memory and on a tier: what they print, what is there, and that nothing is left.

use serde_json::Value;

use crate::bench::Bench;

fn rows(document: &Value) -> Vec<&Value> {
    document["rows"].as_array().expect("rows").iter().collect()
}

#[test]
fn less_memory_for_the_same_result() {
    let bench = Bench::new();
    for words in [
        &["bench", "cfd", "--scale", "16", "--steps", "2"][..],
        &["bench", "sharpen", "--rows", "500", "--columns", "500"],
    ] {
        let document = bench.json(words, 0);
        assert_eq!(document["same"], true, "{document}");
        let all: u64 =
            document["arrays"].as_array().expect("arrays").iter().filter_map(|a| a["bytes"].as_u64()).sum();
        let rows = rows(&document);
        let names: Vec<&str> = rows.iter().filter_map(|row| row["horizon"].as_str()).collect();
        assert_eq!(names, ["dram", "none", "partial", "full"]);
        for row in &rows {
            assert_eq!(row["fingerprint"], rows[0]["fingerprint"]);
            let written = row["tier_written_bytes"].as_u64().expect("bytes");
            assert_eq!(written > 0, row["horizon"] != "dram", "{row}");
        }
        let full = rows[3];
        assert_eq!(full["memory_arrays_bytes"], 0);
        // What was written lies on the tier, all but what the budget holds of it.
        assert!(full["tier_written_bytes"].as_u64() >= full["moved"]["tier_written"].as_u64().map(|b| b / 2));
        assert!(full["budget_bytes"].as_u64().is_some_and(|budget| budget <= all / 20), "{full}");
        assert!(rows[0]["memory_arrays_bytes"].as_u64() == Some(all));
        assert!(rows[1]["memory_arrays_bytes"].as_u64().is_some_and(|bytes| bytes < all * 2 / 3));
    }
    assert_eq!(std::fs::read_dir(bench.work()).expect("the folder").count(), 0, "nothing is left");
}

#[test]
fn arrays_are_placed_by_name() {
    let bench = Bench::new();
    let words =
        ["bench", "cfd", "--scale", "4", "--steps", "1", "--horizon", "none", "--place", "zeta,psi_next"];
    let document = bench.json(&words, 0);
    assert_eq!(document["rows"][0]["on_tier"], serde_json::json!(["zeta", "psi_next"]));
    assert_eq!(document["rows"][0]["ratio"], Value::Null);
    bench.call(&["bench", "cfd", "--place", "psi,chi"]).wants(2).complains("the arrays are psi, zeta");
    bench.call(&["bench", "cfd", "--reynolds=-1"]).wants(2).complains("Reynolds");
    bench.call(&["bench", "sharpen", "--rows", "16"]).wants(2).complains("at least 17");
    bench.call(&["bench", "cfd", "--scale", "1000000"]).wants(6).complains("TierFull");
    bench.call(&["bench", "cfd", "--tile", "3000"]).wants(2).complains("power of two");
}

#[test]
fn kernels_outgrow_their_memory() {
    let bench = Bench::new();
    let words =
        ["bench", "polybench", "--budget", "512KiB", "--tile", "4KiB", "--steps", "1", "--size", "1MiB"];
    let kernels = ["--kernel", "atax,gemver,jacobi-2d,fdtd-2d,adi,covariance,gemm"];
    let document = bench.json(&[&words[..], &kernels].concat(), 0);
    let rows = rows(&document);
    assert_eq!(rows.len(), 14);
    for pair in rows.chunks(2) {
        assert_eq!((&pair[0]["place"], &pair[1]["place"]), (&Value::from("dram"), &Value::from("tiles")));
        assert_eq!(pair[0]["fingerprint"], pair[1]["fingerprint"]);
        assert_eq!(pair[0]["tier_read_bytes"], 0);
        assert!(pair[1]["tier_read_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{}", pair[1]);
    }
    bench.call(&["bench", "polybench", "--kernel", "lu"]).wants(2).complains("the kernels are atax");
    bench.call(&["bench", "polybench", "--size", "1000TiB"]).wants(6).complains("TierFull");
    assert_eq!(std::fs::read_dir(bench.work()).expect("the folder").count(), 0, "nothing is left");
}

#[test]
fn matrices_come_back_through_every_interface() {
    let bench = Bench::new();
    let base =
        ["bench", "madbench", "--pixels", "100", "--bins", "4", "--block", "100,4KiB", "--budget", "1MiB"];
    for io in [&[][..], &["--io"], &["--io", "1"]] {
        let document = bench.json(&[&base[..], io].concat(), 0);
        let rows = rows(&document);
        assert_eq!(rows.len(), 6);
        for row in rows {
            let moved =
                |phase: usize, what: &str| row["phases"][phase][what].as_u64().expect("bytes") / 80_000;
            let again = if io.is_empty() { 10 } else { 4 };
            assert_eq!(
                [moved(0, "written_bytes"), moved(1, "read_bytes"), moved(1, "written_bytes")],
                [4; 3]
            );
            assert_eq!([moved(2, "read_bytes"), moved(2, "written_bytes")], [again, 0]);
        }
    }
    bench.call(&["bench", "madbench", "--block", "0"]).wants(2).complains("at least a byte");
    bench.call(&["bench", "madbench", "--pixels", "65536", "--bins", "60000"]).wants(6).complains("TierFull");
    assert_eq!(std::fs::read_dir(bench.work()).expect("the folder").count(), 0, "nothing is left");
}
