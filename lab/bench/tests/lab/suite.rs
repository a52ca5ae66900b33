//! The workflow suite and its measurements through the command: real processes, both mechanisms.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::bench::Bench;

const NAMES: [&str; 6] = ["64mb", "2k", "gtc-read", "gtc-multiply", "amr-read", "amr-multiply"];

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite/workflows")
}

/// What the script prints for these words.
fn workflow(words: &[&str]) -> String {
    let output = Command::new("sh").arg(suite().join("workflow.sh")).args(words).output().expect("a shell");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_files_of_the_suite_are_those_that_the_script_makes() {
    for name in NAMES {
        for ranks in ["8", "16", "24"] {
            let file = suite().join(format!("{name}-{ranks}.toml"));
            let text = std::fs::read_to_string(&file).expect("a file of the suite");
            assert_eq!(text, workflow(&[name, ranks]), "{}: make it again", file.display());
            let read = forebay_flow::Workflow::parse(&file, &suite(), &text).expect("a workflow");
            assert!(read.components.iter().all(|c| c.ranks.to_string() == ranks));
        }
    }
}

/// Runs a workflow on 2 + 2 ranks; the accounts of all ranks, and the results of the analytics if they have some.
fn run(bench: &Bench, name: &str, kind: &str) -> (Vec<Value>, Option<String>) {
    std::fs::write(bench.file("workflow.toml"), workflow(&[name, "2", "0.0004", kind, "8"])).unwrap();
    let out = bench.file(&format!("{name}-{kind}"));
    let run = bench.json(&["run", "--out", out.to_str().expect("text")], 0);
    assert_eq!(run["state"], "finished");
    let accounts = ["simulation", "analytics"]
        .into_iter()
        .flat_map(|component| (0..2).map(move |rank| format!("{component}/account-{rank}.json")));
    let account = |file: String| {
        let text =
            std::fs::read_to_string(out.join(&file)).unwrap_or_else(|e| panic!("{name} {kind} {file}: {e}"));
        serde_json::from_str(&text).expect("JSON")
    };
    (accounts.map(account).collect(), std::fs::read_to_string(out.join("analytics/results.jsonl")).ok())
}

#[test]
fn every_workflow_runs_through_both_mechanisms_with_the_same_results() {
    let bench = Bench::new();
    for name in NAMES {
        let both = ["space", "files"].map(|kind| {
            let (accounts, results) = run(&bench, name, kind);
            for account in &accounts {
                assert_eq!(
                    (&account["versions"], &account["mechanism"]),
                    (&10.into(), &kind.into()),
                    "{name}"
                );
                assert_eq!(
                    (&account["schema"], &account["provenance"]),
                    (&"forebay.app-account/1".into(), &"measured".into())
                );
                assert!(account["op_ns_per_object"].as_f64().is_some_and(|ns| ns > 0.0), "{name} {account}");
            }
            let sum =
                |accounts: &[Value], key: &str| accounts.iter().filter_map(|a| a[key].as_u64()).sum::<u64>();
            let (written, read) = (sum(&accounts[..2], "objects"), sum(&accounts[2..], "objects"));
            // Of the particles the potential is not read.
            let unread = if name.starts_with("gtc") { 10 } else { 0 };
            assert_eq!(written, read + unread, "{name} through {kind}: every object is read once");
            (written, sum(&accounts[..2], "bytes"), results)
        });
        assert_eq!(both[0], both[1], "{name}");
        assert_eq!(both[0].2.is_some(), name.contains('-'), "{name} has results");
    }
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]), "a space of a run is left");
}

/// The quota of the suite's files holds what each mode keeps at once, so that none ends in `QuotaFull`.
#[test]
fn every_workflow_runs_in_every_mode() {
    let bench = Bench::new();
    for name in NAMES {
        std::fs::write(bench.file("workflow.toml"), workflow(&[name, "2", "0.002", "space", "8"])).unwrap();
        for mode in ["serial", "serial-per-step", "parallel", "gated:1w1r"] {
            let out = bench.file(&format!("{name}-{mode}"));
            let words = ["run", "--mode", mode, "--out", out.to_str().expect("text")];
            assert_eq!(bench.json(&words, 0)["state"], "finished", "{name} in mode {mode}");
        }
    }
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]), "a space of a run is left");
}

/// A quota that mode serial cannot keep to is said by `plan`, `run` and `advise` with the same reason.
#[test]
fn a_quota_that_is_too_small_for_mode_serial_is_said_by_plan_run_and_advise() {
    let bench = Bench::new();
    let text = workflow(&["64mb", "2", "0.002"]);
    let quota = text.lines().find(|line| line.starts_with("quota")).expect("a quota");
    std::fs::write(bench.file("workflow.toml"), text.replace(quota, "quota = 16777216")).unwrap();
    bench.call(&["plan"]).wants(0).says("\nS-LocW ");
    bench.call(&["run"]).wants(0);
    let reason =
        "mode serial keeps all versions until the writers have ended: 10 versions take 39.1 MiB, and the \
                  quota of the channel has 16.0 MiB";
    let listed = bench.call(&["plan"]);
    listed.wants(0).says(reason);
    assert!(!listed.text().contains("\nS-LocW "), "{}", listed.text());
    bench.call(&["plan", "--mode", "serial"]).wants(0).says(reason);
    bench.call(&["advise", "--platform", "optane-gen1"]).wants(0).says(reason);
    // The ranks' own error says so as well, and does not wait here until the usual deadline.
    let mut run = bench.command(&["run", "--mode", "serial"]);
    let failed = crate::bench::outcome(run.env("FOREBAY_TIMEOUT", "1"));
    failed.wants(4).complains(reason).complains("QuotaFull: ");
}

#[test]
fn staging_measures_every_cell_on_every_place_and_leaves_nothing() {
    let bench = Bench::new();
    let words =
        "bench staging --places dram,files:. --ranks 1,2 --movers 2 --total 2MiB --per-rank 256KiB --steps 6";
    let document = bench.json(&words.split(' ').collect::<Vec<_>>(), 0);
    let rows = document["rows"].as_array().expect("rows");
    let of = |part: &str| rows.iter().filter(|r| r["part"] == part).collect::<Vec<_>>();
    assert_eq!((of("strong").len(), of("weak").len(), of("movers").len()), (6, 4, 1));
    for row in rows {
        let (writers, readers) = (row["writers"].as_u64().unwrap(), row["readers"].as_u64().unwrap());
        assert_eq!(row["write"]["samples"].as_u64(), Some(writers * 6), "{row}");
        assert_eq!(row["read"]["samples"].as_u64(), (readers > 0).then_some(readers * 6), "{row}");
        let [low, median, high] =
            ["low_s", "median_s", "high_s"].map(|key| row["write"][key].as_f64().unwrap());
        assert!(0.0 < low && low <= median && median <= high, "{row}");
        assert!(row["write_share"].as_f64().unwrap() > 0.0);
        assert_eq!(row["moved_bytes_min"].as_u64().unwrap() > 0, row["part"] == "movers", "{row}");
    }
    assert_eq!(document["scaled_down"], false);
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0, "nothing is left");
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]));
}

#[test]
fn staging_says_what_does_not_fit_and_that_it_scaled() {
    let bench = Bench::new();
    bench.call(&["bench", "staging", "--total", "900TB"]).wants(6).complains("do not fit");
    bench.call(&["bench", "staging", "--steps", "3"]).wants(2).complains("movers");
    let words = "bench staging --parts weak --places dram --ranks 1 --per-rank 64KiB --steps 2";
    let text = bench.call(&words.split(' ').collect::<Vec<_>>());
    text.wants(0).says("measured").says("weak").says("limit of dram").says("every byte");
}
