//! `run` and `report`: a workflow from its first line to its report, and one that fails.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{kill_process, Pid, Signal};

use crate::bench::Bench;

#[test]
fn what_init_writes_runs_and_is_reported() {
    let bench = Bench::new();
    bench.call(&["init"]).wants(0);
    let run = bench.call(&["run", "--report"]);
    run.wants(0);
    let text = run.text();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.last().expect("a last line");
    assert!(last.starts_with("runs/example-") && last.ends_with(".html"), "{run}");
    let report = std::fs::read_to_string(bench.file(last)).expect("the report is where the last line says");
    assert!(report.contains("<html") || report.contains("<!DOCTYPE html"), "no page: {last}");
    let leftover = bench.json(&["ls"], 0)["spaces"].clone();
    assert_eq!(leftover, serde_json::json!([]), "a space of the run is left");
    // Without an argument, the newest run.
    let again = bench.call(&["report"]);
    assert_eq!(again.wants(0).text().trim_end(), *last);
}

#[test]
fn a_failed_component_gives_status_4_and_is_named() {
    let bench = Bench::new();
    let workflow = "forebay = 1\n[workflow]\nname = \"broken\"\n[[component]]\nname = \"bad\"\n\
                    command = [\"sh\", \"-c\", \"echo went wrong >&2; exit 3\"]\n";
    std::fs::write(bench.file("workflow.toml"), workflow).unwrap();
    bench.call(&["run"]).wants(4).complains("ComponentFailed").complains("bad").complains("went wrong");
    let document = bench.json(&["run"], 4);
    assert_eq!(document["schema"], "forebay.run/1");
    assert_eq!(document["state"], "failed");
    assert_eq!(document["failure"]["component"], "bad");
    assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]));
}

/// Before either has made its channel.
#[test]
fn of_two_runs_that_start_together_one_is_refused() {
    let bench = Bench::new();
    let workflow = "forebay = 1\n[workflow]\nname = \"twice\"\n[channel.c]\n[[component]]\nname = \"a\"\n\
                    command = [\"sh\", \"-c\", \"echo > begun; while [ ! -e end ]; do sleep 0.01; done\"]\n\
                    writes = [\"c\"]\ntimeout = \"20s\"\n";
    std::fs::write(bench.file("workflow.toml"), workflow).unwrap();
    let mut first = bench.command(&["run", "--quiet"]).spawn().unwrap();
    while !bench.file("begun").exists() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let second = bench.call(&["run"]);
    second.wants(3).complains("another run uses the channel c").complains(&format!("pid={}", first.id()));
    std::fs::write(bench.file("end"), "").unwrap();
    first.wait().unwrap();
    assert_eq!(bench.file("runs").read_dir().unwrap().count(), 1, "the second one made a folder");
    let left = || bench.root().read_dir().unwrap().count();
    assert_eq!(left(), 0, "the file of held names is left");
    // As a run that was killed leaves it.
    std::fs::write(bench.root().join(".runs"), "").unwrap();
    bench.call(&["clean"]).wants(0);
    assert_eq!(left(), 0);
}

#[test]
fn a_component_that_does_not_exist_is_named_before_anything_starts() {
    let bench = Bench::new();
    let workflow = "forebay = 1\n[workflow]\nname = \"broken\"\n[[component]]\nname = \"bad\"\n\
                    command = [\"no-such-program-anywhere\"]\n";
    std::fs::write(bench.file("workflow.toml"), workflow).unwrap();
    bench.call(&["run"]).wants(2).complains("no-such-program-anywhere");
    assert_eq!(bench.json(&["run"], 2)["kind"], "UnknownComponent");
}

#[test]
fn a_signal_ends_everything_and_shows_in_the_status() {
    let bench = Bench::new();
    let workflow = "forebay = 1\n[workflow]\nname = \"long\"\n[[component]]\nname = \"sleeper\"\n\
                    command = [\"sh\", \"-c\", \"echo $$ > pid; sleep 1000\"]\n";
    std::fs::write(bench.file("workflow.toml"), workflow).unwrap();
    let mut run = bench.command(&["run", "--json", "--progress"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let drain = BufReader::new(run.stderr.take().unwrap());
    let drained = std::thread::spawn(move || drain.lines().map_while(Result::ok).collect::<Vec<_>>());
    let sleeper = loop {
        match std::fs::read_to_string(bench.file("pid")).ok().filter(|text| text.ends_with('\n')) {
            Some(text) => break text.trim().to_string(),
            None => assert!(run.try_wait().unwrap().is_none(), "the run ended early"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = drained.join().unwrap();
    assert_eq!(output.status.code(), Some(130), "{said:?}");
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&record["state"], &record["signal"]), (&"interrupted".into(), &2.into()));
    assert!(!std::path::Path::new("/proc").join(sleeper).exists(), "the component lives on");
}
