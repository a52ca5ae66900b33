//! Plans carried out: by the runner in every mode, and as a job of a plain shell. What comes out is compared with a
//! single process that knows no space, bit for bit; where ranks ran and when, with what the kernel and the traces say.

use std::path::{Path, PathBuf};
use std::process::Command;

use gray_scott::analysis::statistics::Recipe;
use gray_scott::reference;
use gray_scott::simulation::deck::Deck;
use serde_json::Value;

use crate::bench::{clean_environment, outcome, Bench};

/// The small demo in a working directory.
pub fn demo() -> Bench {
    let bench = Bench::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gray-scott");
    for file in ["workflow-small.toml", "deck-small.toml"] {
        std::fs::copy(examples.join(file), bench.file(file)).expect("the example");
    }
    bench
}

/// What one process without a space computes.
pub fn expected(bench: &Bench) -> String {
    let deck = Deck::read(&bench.file("deck-small.toml")).unwrap();
    let lines = reference::statistics(&deck, &Recipe::default()).unwrap();
    lines.iter().map(|s| serde_json::to_string(s).unwrap() + "\n").collect()
}

fn statistics(dir: &Path) -> String {
    let file = dir.join("analysis/statistics.jsonl");
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The steps of a rank on the channel, from its trace.
fn steps(run: &Path, start: &str) -> Vec<Value> {
    let mut files = std::fs::read_dir(run.join("trace")).unwrap().flatten().map(|e| e.path());
    let own = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(start);
    let file = files.find(own).unwrap_or_else(|| panic!("no trace {start}"));
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn component<'a>(record: &'a Value, name: &str) -> &'a Value {
    record["components"].as_array().unwrap().iter().find(|c| c["name"] == name).expect("the component")
}

fn run(bench: &Bench, words: &[&str]) -> (Value, PathBuf) {
    let record = bench.json(&[&["run", "workflow-small.toml", "--out", "run"], words].concat(), 0);
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]), "a space of the run is left");
    (record, bench.file("run"))
}

#[test]
fn a_serial_run_reads_when_everything_is_written() {
    let bench = demo();
    let (record, dir) = run(&bench, &["--mode", "serial"]);
    assert_eq!(statistics(&dir), expected(&bench));
    let ends = component(&record, "gray-scott")["ranks"].as_array().unwrap().clone();
    let last = ends.iter().map(|r| r["end_ns"].as_u64().unwrap()).max().unwrap();
    for rank in component(&record, "analysis")["ranks"].as_array().unwrap() {
        assert!(rank["start_ns"].as_u64().unwrap() >= last, "a reader was started before the writers ended");
    }
    assert_eq!(record["plan"]["plan"]["mode"], "serial");
    // What the model takes as its input.
    let sim = &component(&record, "gray-scott")["per_step"];
    assert!(sim["compute_s"].as_f64().unwrap() > 0.0, "{sim}");
    assert_eq!(sim["writes"]["objects"], 2.0, "U and V: {sim}");
    let bytes = sim["writes"]["bytes"].as_f64().unwrap() * sim["ranks"].as_f64().unwrap();
    let put = component(&record, "gray-scott")["bytes_put"].as_f64().unwrap();
    assert!(bytes > 0.0 && bytes <= put, "{sim}");
}

#[test]
fn a_component_can_be_run_alone() {
    let bench = demo();
    let (record, _) = run(&bench, &["--only", "gray-scott"]);
    let names: Vec<&Value> = record["components"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["gray-scott"]);
    let alone = &component(&record, "gray-scott")["per_step"];
    assert!(alone["io_index"].as_f64().unwrap() > 0.0, "{alone}");
    bench.call(&["run", "workflow-small.toml", "--only", "gray-scot"]).wants(2).complains("gray-scott");
}

#[test]
fn in_turns_no_step_is_begun_before_its_predecessor_was_read() {
    let bench = demo();
    let (record, dir) = run(&bench, &["--mode", "serial-per-step"]);
    assert_eq!(statistics(&dir), expected(&bench));
    let channel = &record["channels"].as_array().unwrap().iter().find(|c| c["declared"] == true).unwrap();
    assert_eq!(channel["pace"], "serial-per-step", "as the space says");
    let name = channel["name"].as_str().unwrap();
    let written = steps(&dir, &format!("gray-scott.0.{name}.w."));
    let read = steps(&dir, &format!("analysis.0.{name}.r."));
    assert!(written.len() > 2 && written.len() == read.len());
    for (next, before) in written[1..].iter().zip(&read) {
        // A release is seen a moment before the trace has the time of its end.
        assert!(next["ready_ns"].as_u64() > before["ready_ns"].as_u64(), "{next} after {before}");
    }
}

#[test]
fn a_gated_run_pins_its_ranks_and_says_where_they_and_the_pages_were() {
    let bench = demo();
    let text = std::fs::read_to_string(bench.file("workflow-small.toml")).unwrap();
    let bound = text.replace("[channel.gs]", "[channel.gs]\ntier = \"numa:0\"");
    std::fs::write(bench.file("workflow-small.toml"), bound).unwrap();
    let (record, dir) = run(&bench, &["--mode", "gated:1w1r"]);
    assert_eq!(statistics(&dir), expected(&bench));
    let channel = record["channels"].as_array().unwrap().iter().find(|c| c["name"] == "gs").unwrap();
    assert_eq!(channel["pace"], "gated:1w1r");
    // What came of binding is the kernel's business; that it was asked, and the answer written down, is ours.
    let placement = channel["placement"].as_str().unwrap();
    assert!(["bound", "first touch", "unverified"].contains(&placement), "{channel}");
    let said =
        record["notes"].as_array().unwrap().iter().any(|n| n.as_str().unwrap().contains("touched the pages"));
    assert_eq!(said, placement == "first touch", "{record}");
    let seats = record["plan"]["components"].as_array().unwrap();
    for (seat, component) in seats.iter().zip(record["components"].as_array().unwrap()) {
        assert_eq!(seat["name"], component["name"]);
        for rank in component["ranks"].as_array().unwrap() {
            let cpus = rank["cpus"].as_str().expect("the kernel's answer");
            let wanted = forebay_probe::machine::numbers(seat["cpus"].as_str().unwrap());
            let real = forebay_probe::machine::numbers(cpus);
            assert!(!real.is_empty() && real.iter().all(|cpu| wanted.contains(cpu)), "{cpus} of {seat}");
        }
    }
}

#[test]
fn a_plan_file_is_written_shown_and_carried_out() {
    let bench = demo();
    let plan = ["plan", "workflow-small.toml", "--mode", "parallel", "-o", "plan.json"];
    bench.call(&plan).wants(0).says("plan.json");
    bench.call(&["plan", "workflow-small.toml", "--plan", "plan.json"]).wants(0).says("P-LocW");
    let (record, dir) = run(&bench, &["--plan", "plan.json"]);
    assert_eq!(statistics(&dir), expected(&bench));
    let written: Value = serde_json::from_slice(&std::fs::read(bench.file("plan.json")).unwrap()).unwrap();
    assert_eq!(record["plan"], written);
    // Of another workflow, it is refused before anything starts.
    let text = std::fs::read_to_string(bench.file("plan.json")).unwrap();
    std::fs::write(bench.file("plan.json"), text.replace("\"ranks\": ", "\"ranks\": 1")).unwrap();
    bench.call(&["run", "workflow-small.toml", "--plan", "plan.json"]).wants(2).complains("OptionMismatch");
    bench.call(&["run", "workflow-small.toml", "--mode", "paralel"]).wants(2).complains("parallel");
    bench
        .call(&["run", "workflow-small.toml", "--plan", "none.json"])
        .wants(2)
        .complains("plan file none.json does not exist");
}

#[test]
fn every_plan_is_listed_and_what_is_not_possible_says_why() {
    let bench = demo();
    let found = bench.json(&["plan", "workflow-small.toml"], 0);
    let plans = found["plans"].as_array().unwrap();
    assert!(!plans.is_empty() && plans.len() <= 64);
    assert!(plans.iter().any(|p| p["short"] == "SS-LocW"), "{found}");
    for dropped in found["dropped"].as_array().unwrap() {
        assert!(!dropped["reason"].as_str().unwrap().is_empty(), "{dropped}");
    }
    // With the tiers of a profile, gates have knees to stand at.
    bench.call(&["plan", "workflow-small.toml", "--profile", "optane-gen1"]).wants(0).says("S-LocR");
}

/// Runs a script; the command is not in its path.
fn script(bench: &Bench, text: &str) -> crate::bench::Outcome {
    std::fs::write(bench.file("job.sh"), text).unwrap();
    let mut command = Command::new("bash");
    clean_environment(&mut command);
    command.arg("job.sh").current_dir(bench.work()).env("FOREBAY_DIR", bench.root());
    outcome(command.env("PATH", crate::path()))
}

#[test]
fn the_job_of_a_shell_does_what_the_runner_does() {
    for mode in ["parallel", "serial"] {
        let bench = demo();
        bench.call(&["plan", "workflow-small.toml", "--mode", mode, "-o", "plan.json"]).wants(0);
        let job = bench.call(&["plan", "workflow-small.toml", "--plan", "plan.json", "--emit", "shell"]);
        job.wants(0);
        for _ in 0..2 {
            let ran = script(&bench, &job.text());
            let text = ran.wants(0).text();
            let lines: Vec<&str> = text.lines().collect();
            let [run, report] = lines[..] else { panic!("{ran}") };
            assert_eq!(statistics(&bench.file(run)), expected(&bench), "{mode}");
            assert!(bench.file(report).is_file(), "{ran}");
        }
        assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]), "{mode}: a space is left");
    }
}

#[test]
fn a_job_ends_with_its_first_failure_and_leaves_nothing() {
    let bench = demo();
    // The writer of `u` ends well, no component opens `never`, `kept` is to stay.
    let workflow = "forebay = 1\n[workflow]\nname = \"broken\"\n[channel.never]\n\
                    [channel.kept]\nkeep = true\n[channel.u]\n\
                    [[component]]\nname = \"sim\"\nwrites = [\"u\"]\n\
                    command = [\"gray-scott\", \"--deck\", \"deck-small.toml\", \"--channel\", \"u\"]\n\
                    [[component]]\nname = \"also\"\nwrites = [\"kept\"]\n\
                    command = [\"gray-scott\", \"--deck\", \"deck-small.toml\", \"--channel\", \"kept\"]\n\
                    [[component]]\nname = \"sleeper\"\nwrites = [\"never\"]\n\
                    command = [\"sh\", \"-c\", \"exec sleep 1000\"]\n\
                    [[component]]\nname = \"bad\"\nreads = [\"u\"]\n\
                    command = [\"sh\", \"-c\", \"sleep 2; exit 3\"]\n";
    std::fs::write(bench.file("w.toml"), workflow).unwrap();
    bench.call(&["plan", "w.toml", "--mode", "parallel", "-o", "plan.json"]).wants(0);
    let job = bench.call(&["plan", "w.toml", "--plan", "plan.json", "--emit", "shell"]);
    job.wants(0);
    // The sleeper would keep the script for a quarter of an hour.
    script(&bench, &job.text()).wants(4).complains("bad failed: rank 0 of 1 ended with exit status 3");
    let left = bench.json(&["ls"], 0);
    let names: Vec<&Value> = left["spaces"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["kept"], "what is to be kept stays, and nothing else");
    bench.call(&["clean", "kept"]).wants(0);
}

#[test]
fn the_first_run_teaches_and_the_next_is_run_by_what_it_taught() {
    let bench = demo();
    bench.json(&["probe", "export", "optane-gen1", "node.toml"], 0);
    bench.json(&["probe", "import", "node.toml", "--name", "node"], 0);
    let auto = |words: &[&str]| bench.json(&[&["run", "workflow-small.toml", "--auto"], words].concat(), 0);
    assert_eq!(auto(&[])["plan"], Value::Null, "nothing is known yet");
    let told = bench.json(&["advise", "workflow-small.toml"], 0);
    assert_eq!((&told["profile"], &told["numbers"]), (&"node".into(), &"predicted".into()));
    let best = &told["scores"][0];
    assert!(best["time_s"].as_f64().unwrap() > 0.0 && best["error_s"].as_f64().unwrap() > 0.0, "{best}");
    let dropped = told["dropped"].as_array().unwrap().iter();
    assert!(dropped.clone().any(|d| d["what"] == "pmem"), "the profile names no directory on it: {told}");
    let record = auto(&[]);
    let plan = &record["plan"];
    assert_eq!((&plan["plan"]["mode"], &plan["decision"]["by"]), (&best["plan"]["mode"], &"auto".into()));
    let reason = plan["decision"]["reasons"][0].as_str().unwrap();
    assert!(reason.starts_with("predicted ") && reason.contains("on profile node"), "{reason}");
    let dir = PathBuf::from(record["run_dir"].as_str().unwrap());
    assert_eq!(statistics(&dir), expected(&bench), "whatever the plan, the same results");
}
