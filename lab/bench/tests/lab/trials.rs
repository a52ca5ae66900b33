//! Choosing a plan, in earnest: workflows that are run on an emulated platform, and execution modes that are tried
//! inside a run.
//!
//! The platform is made up: a thread gets so much of it, and four get four times as much, so that keeping ranks out
//! costs several times what anything else does. Only what is decided is asserted, never how long it took.

use std::path::PathBuf;

use forebay_flow::history::history;
use forebay_flow::plan::{Home, AS_THE_FILE_SAYS};
use forebay_flow::record::State;
use forebay_flow::trials::{Trials, Why};
use forebay_flow::{PlanFile, RunOptions, Topology, Workflow};
use forebay_model::plan::{Locality, Mode, Plan};

use crate::bench::Bench;

/// A tier `pmem` on which a thread moves so many MB/s and four move four times as many; its file.
pub fn platform(bench: &Bench, megabytes: u32) -> PathBuf {
    let curve = |reads: u32| {
        format!(
            "[[tier.curve]]\nwhen = {{ pattern = \"sequential\", reads_percent = {reads}, bytes = 65536 }}\n\
             over = \"threads\"\nunit = \"MB/s\"\nsource = \"s\"\npoints = [[1, {megabytes}], [4, {}]]\n",
            4 * megabytes
        )
    };
    let text = format!(
        "forebay_profile = 1\nname = \"made-up\"\ndate = \"2026-01-01\"\n[source.s]\nkind = \"published\"\n\
         citation = \"none\"\n[[tier]]\nname = \"pmem\"\nkind = \"pmem\"\n{}{}",
        curve(0),
        curve(100)
    );
    let file = bench.file("made-up.toml");
    std::fs::write(&file, text).expect("a profile");
    file
}

#[test]
fn a_trial_overturns_a_plan_that_was_wrong() {
    let bench = Bench::new();
    // A rank's object takes 32 ms, a step of one rank at a time four times as much: a stall of the machine is shorter.
    let medium = platform(&bench, 2);
    let component = |name: &str, verb: &str, words: &str| {
        format!(
            "[[component]]\nname = \"{name}\"\nranks = 4\n{verb} = [\"u\"]\n\
             command = [\"forebay\", \"app\", \"{name}\", \"--channel\", \"u\"{words}]\n"
        )
    };
    let text = format!(
        "forebay = 1\n[workflow]\nname = \"tried\"\n[channel.u]\npath = {:?}\nemulate = \"{}:pmem/1\"\n\
         segment = \"1MiB\"\nquota = \"64MiB\"\n{}{}",
        bench.root().join("u"),
        medium.display(),
        component("writer", "writes", ", \"--steps\", \"40\", \"--object\", \"64KiB\", \"--count\", \"1\""),
        component("reader", "reads", "")
    );
    let file = bench.file("tried.toml");
    std::fs::write(&file, text).expect("a workflow");
    let workflow = Workflow::read(&file).unwrap();
    // One rank of each at a time: said to be the best, and four times as slow as anything else.
    let gated = Mode::Gated { writers: 1, readers: 1 };
    let plan = Plan::new(gated, Locality::Writer, AS_THE_FILE_SAYS);
    let plan = PlanFile::new(&workflow, &Topology::here().unwrap(), &plan, &Home::AsSaid).unwrap();
    let modes = vec![gated, Mode::Parallel];
    let options = RunOptions {
        out: Some(bench.file("run")),
        quiet: true,
        self_command: vec![crate::forebay().into()],
        plan: Some(plan),
        trials: Some(Trials { channel: "u".into(), modes, steps: 3 }),
        ..RunOptions::default()
    };
    let record = forebay_flow::run(&file, &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(record.state, State::Finished);
    let tried = record.tried.clone().expect("what was tried");
    let order: Vec<(Mode, Why)> = tried.stretches.iter().map(|s| (s.mode, s.why)).take(3).collect();
    assert_eq!(order[..2], [(gated, Why::Trial), (Mode::Parallel, Why::Trial)], "{tried:?}");
    assert_eq!(tried.decisions[0].mode, Mode::Parallel, "{tried:?}");
    assert!(tried.decisions[0].reason.contains("prediction rejected"), "{tried:?}");
    // Every version was read and checked, whatever the execution mode.
    assert!(record.components.iter().all(|c| c.steps == 40), "{:?}", record.components);
    let page = forebay_pages::run::report(&record.run_dir).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Execution modes tried") && page.contains("prediction rejected"));
    // The next run knows both.
    let past = history(&workflow, &[record]);
    let time_s = |mode: Mode| past.iter().find(|p| p.plan.mode == mode).map(|p| (p.time_s, p.runs));
    let (Some((gated_s, 0)), Some((parallel_s, 0))) = (time_s(gated), time_s(Mode::Parallel)) else {
        panic!("{past:?}");
    };
    assert!(past.iter().all(|p| p.plan.tier == "pmem"), "{past:?}");
    assert!(parallel_s < gated_s, "{past:?}");
}

#[test]
fn workflows_are_run_by_every_plan_and_the_bench_goes_on_where_it_stopped() {
    let bench = Bench::new();
    platform(&bench, 2000);
    let words = ["bench", "workflows", "--quick", "--emulate", "made-up.toml:pmem/1", "--keep", "kept"];
    let first = bench.json(&[&words[..], &["--probe-seconds", "3"]].concat(), 0);
    assert_eq!((&first["provenance"], &first["k"]), (&"emulated".into(), &1.0.into()));
    let cases = first["workflows"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let plans = case["plans"].as_array().unwrap();
        let names: Vec<&str> = plans.iter().map(|p| p["plan"].as_str().unwrap()).collect();
        for plan in
            ["S", "SS", "P"].map(|mode| ["W", "R", "I"].map(|side| format!("{mode}-Loc{side}"))).concat()
        {
            assert!(names.contains(&&*plan), "{names:?}");
        }
        assert!(plans.iter().all(|p| p["measured_s"].as_f64().unwrap() > 0.0));
        // The best is the one that took the shortest, the chosen one that of which that was predicted.
        let least = |key: &str| {
            let of = |p: &&serde_json::Value| p[key].as_f64().unwrap();
            plans.iter().min_by(|a, b| of(a).total_cmp(&of(b))).unwrap()["plan"].clone()
        };
        assert_eq!((&case["best"], &case["chosen"]), (&least("measured_s"), &least("predicted_s")));
    }
    let ways = first["ways"].as_array().unwrap();
    assert!(ways.len() >= 6 && ways.iter().all(|w| w["mean_regret"].as_f64().unwrap() >= 0.0), "{ways:?}");
    // Nothing is measured again.
    let second = bench.json(&words, 0);
    assert_eq!(second["workflows"], first["workflows"]);
    let other = ["bench", "workflows", "--quick", "--emulate", "made-up.toml:pmem/2", "--keep", "kept"];
    bench.json(&other, 2);
    let text = bench.call(&words);
    assert!(String::from_utf8_lossy(&text.stdout).contains("emulated"), "every screen says it");
}
