//! What `doctor` and `clean` say of the agent of a node. The agent itself is tested where it is built.

use std::fs::File;
use std::time::{Duration, SystemTime};

use rustix::fs::{flock, FlockOperation};
use serde_json::{json, Value};

use crate::bench::Bench;

fn finding(bench: &Bench) -> Value {
    let report = bench.json(&["doctor"], 0);
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["check"] == "agent").expect("a finding of the agent").clone()
}

#[test]
fn an_agent_that_was_left_behind_is_found() {
    let bench = Bench::new();
    assert_eq!(finding(&bench)["status"], "ok");
    let folder = bench.root().join(".agent");
    std::fs::create_dir_all(folder.join("mirrors")).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let agent = json!({ "job": "j7", "node": "n1", "pid": 4130, "rendezvous": "/scratch/j7" });
    let file = folder.join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();

    let found = finding(&bench);
    assert_eq!(found["status"], "ok");
    assert_eq!(found["found"], "job j7, node n1, pid 4130");
    let kept = &bench.json(&["clean"], 0)["kept"][0];
    assert!(kept["reason"].as_str().unwrap().contains("--rendezvous /scratch/j7"), "{kept}");

    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    let found = finding(&bench);
    assert_eq!(found["status"], "note");
    assert!(found["found"].as_str().unwrap().ends_with("idle for 120 min"), "{found}");
    assert!(found["without_root"].as_str().unwrap().contains("stop --rendezvous /scratch/j7"), "{found}");

    drop(lock);
    assert_eq!(finding(&bench)["found"], "an agent was killed here");
    bench.call(&["clean", "-n"]).wants(0).says("would remove .agent");
    bench.call(&["clean"]).wants(0).says("removed .agent");
    assert!(!folder.exists());
}
