//! The solver by threads and by ranks, its dumps, and the two problems beside it: right figures, and nothing left.

use serde_json::Value;

use crate::bench::Bench;

fn left(bench: &Bench) -> usize {
    std::fs::read_dir(bench.work()).expect("the folder").count()
}

fn is_right(row: &Value, tolerance: f64) -> bool {
    row["difference"].as_f64().is_some_and(|difference| difference <= tolerance)
}

#[test]
fn ranks_and_threads_give_the_same_norms() {
    let bench = Bench::new();
    let document = bench.json(&["bench", "bt", "--class", "S", "--ranks", "1,3", "--threads", "2"], 0);
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), &rows[1]["ranks"]), (2, &Value::from(3)));
    assert!(rows.iter().all(|row| is_right(row, 1e-8)), "{document}");
    assert_eq!((&rows[0]["residual"], &rows[0]["error"]), (&rows[1]["residual"], &rows[1]["error"]));
    bench.call(&["bench", "bt", "--ranks", "0"]).wants(2).complains("at least one rank");
    let many = bench.call(&["bench", "bt", "--class", "S", "--ranks", "11"]);
    many.wants(4);
    assert_eq!(left(&bench), 0, "nothing is left");
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]));
}

#[test]
fn dumps_are_written_by_every_mode_and_go() {
    let bench = Bench::new();
    let document = bench.json(&["bench", "btio", "--class", "S", "--ranks", "2"], 0);
    let rows = document["rows"].as_array().expect("rows");
    let modes: Vec<&str> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(modes, ["full", "simple", "epio"]);
    // A request for each rank, or for each of 12 x 12 rows, in each of 12 dumps.
    let requests: Vec<u64> = rows.iter().filter_map(|row| row["requests"].as_u64()).collect();
    assert_eq!(requests, [2 * 12, 144 * 12, 2 * 12]);
    assert!(rows.iter().all(|row| is_right(row, 1e-8)), "{document}");
    assert_eq!(document["published"].as_array().map(Vec::len), Some(8));
    let seldom = bench.json(&["bench", "btio", "--class", "S", "--mode", "full", "--every", "30"], 0);
    assert_eq!((&seldom["dumps"], &seldom["rows"][0]["difference"]), (&Value::from(2), &Value::Null));
    bench.call(&["bench", "btio", "--class", "S", "--every", "61"]).wants(2).complains("no dump");
    assert_eq!(left(&bench), 0, "nothing is left");
}

#[test]
fn multigrid_and_transforms_outgrow_their_memory() {
    let bench = Bench::new();
    let document = bench.json(&["bench", "npb", "--class", "S", "--place", "dram,tiles,mmap"], 0);
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6);
    for of_kernel in rows.chunks(3) {
        assert!(is_right(&of_kernel[0], if of_kernel[0]["kernel"] == "mg" { 1e-8 } else { 1e-12 }));
        assert!(of_kernel.iter().all(|row| row["figures"] == of_kernel[0]["figures"]));
        assert_eq!(of_kernel[0]["tier_read_bytes"], 0);
        assert!(of_kernel[1]["tier_read_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    }
    bench.call(&["bench", "npb", "--kernel", "ep"]).wants(2).complains("the kernels are mg, ft");
    assert_eq!(left(&bench), 0, "nothing is left");
}

#[test]
fn a_killed_solver_goes_on_where_it_was() {
    let bench = Bench::new();
    let memory = bench.root().display().to_string();
    let before = std::fs::read_dir(bench.root()).expect("the root").count();
    let document = bench.json(&["bench", "checkpoint", "--class", "S", "--memory", &memory], 0);
    let rows = document["rows"].as_array().expect("rows");
    let seen: Vec<(&Value, &Value)> = rows.iter().map(|row| (&row["state"], &row["manner"])).collect();
    let text = |words: &str| Value::from(words);
    let (u, all) = (text("u"), text("all"));
    let (later, now) = (text("async"), text("sync"));
    assert_eq!(seen, [(&Value::Null, &Value::Null), (&u, &later), (&u, &now), (&all, &later), (&all, &now)]);
    for row in &rows[1..] {
        assert_eq!(
            (&row["crash"]["killed_after_step"], &row["crash"]["restored_step"]),
            (&30.into(), &30.into())
        );
        let points = 12 * 12 * 12 * 8;
        assert_eq!(row["checkpoint_bytes"], if row["state"] == "u" { 5 * points } else { 17 * points });
    }
    assert_eq!(document["published"].as_array().map(Vec::len), Some(24));
    assert_eq!(left(&bench), 0, "nothing is left");
    assert_eq!(std::fs::read_dir(bench.root()).expect("the root").count(), before, "nor in memory");
}

/// Every verb that takes `--plot`, small.
const PLOTTED: [(&str, usize); 9] = [
    ("bench checkpoint --class S --crash-free --state u --manner sync", 28),
    ("bench bt --class S", 2),
    ("bench btio --class S --ranks 1 --mode full,epio", 20),
    ("bench npb --class S --kernel mg", 4),
    ("bench polybench --kernel atax --budget 256KiB --size 512KiB", 4),
    ("bench cfd --scale 4 --steps 1 --horizon dram,none", 9),
    ("bench sharpen --rows 64 --columns 80 --horizon dram", 3),
    ("bench madbench --pixels 24 --bins 3 --block 4KiB --interface file", 7),
    ("bench sort --size 4MiB --budget 2MiB --ways external", 3),
];

#[test]
fn what_comes_out_is_drawn() {
    let bench = Bench::new();
    for (words, least) in PLOTTED {
        let words: Vec<&str> = words.split(' ').chain(["--plot", "plot.html"]).collect();
        bench.json(&words, 0);
        let page = std::fs::read_to_string(bench.file("plot.html")).expect("the plot");
        let bars = page.matches("<rect").count();
        assert!(bars >= least, "{words:?}: {bars} bars");
        assert!(page.contains(&format!("forebay bench {}", words[1])) && page.contains("kind measured"));
        assert!(!page.contains("<script") && !page.contains("http"), "{words:?}");
        std::fs::remove_file(bench.file("plot.html")).expect("removed");
    }
    bench.call(&["bench", "bt", "--class", "S", "--plot", "no/such/folder.html"]).wants(70);
}
