//! Readers that hold, writers and agents that die or stand still.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::bed::{until, Bed};

#[test]
fn a_slow_reader_of_another_node_holds_the_writers() {
    let bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({ "component": "slow", "hold_at": 0 }));
    let mut writer = bed.nodes[0]
        .run("write", json!({ "steps": 1000, "quota": 2 << 20, "large": 200_000, "timeout_s": 4 }));
    reader.line("holding");
    let error = writer.line("error");
    assert!(error.contains("QuotaFull") && error.contains("slow@n1"), "{error}");
    reader.kill();
    let path = format!("{}/heat", bed.nodes[0].dir.path().display());
    until("the dead space can be removed", || forebay_space::destroy(&path).is_ok());
    bed.stop();
}

#[test]
fn a_killed_writer_is_told_with_its_node_after_what_is_complete() {
    let bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({}));
    let _writer = bed.nodes[0].run("write", json!({ "steps": 3, "pause_ms": 500, "end": "die" }));
    for version in 0..3 {
        assert!(reader.line("version").starts_with(&format!("{version} ")));
    }
    let error = reader.line("error");
    assert!(error.contains("ProducerDied") && error.contains("node n0"), "{error}");
    drop(reader);
    // Its own space stays for who restarts it.
    let destroyed = || forebay_space::destroy(&format!("{}/heat", bed.nodes[0].dir.path().display())).is_ok();
    until("the dead space can be removed", destroyed);
    bed.stop();
}

#[test]
fn a_killed_agent_of_the_writers_is_told_with_its_node() {
    let mut bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({}));
    let mut writer = bed.nodes[0].run("write", json!({ "steps": 2, "end": "wait" }));
    assert!(reader.line("version").starts_with("0 "));
    assert!(reader.line("version").starts_with("1 "));
    bed.nodes[0].agent().kill();
    let error = reader.line("error");
    assert!(error.contains("ProducerDied") && error.contains("n0"), "{error}");
    writer.kill();
}

#[test]
fn a_killed_agent_of_the_readers_frees_the_writers() {
    let mut bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({ "hold_at": 0 }));
    let writer = bed.nodes[0].run("write", json!({ "steps": 60, "quota": 2 << 20, "large": 100_000 }));
    reader.line("holding");
    // Before the kill: without any reader that lives the writer would put all, and drop it.
    let mut here = bed.nodes[0].run("read", json!({ "component": "here" }));
    here.line("version");
    bed.nodes[1].agent().kill();
    assert_eq!(writer.lines("put").len(), 60);
    reader.kill();
    let left = forebay_space::destroy(&format!("{}/heat", bed.nodes[1].dir.path().display()));
    drop(left);
}

#[test]
fn an_agent_that_stands_still_for_longer_than_the_lease_is_lost_and_comes_back() {
    let mut bed = Bed::with(2, &["--lease", "3"]);
    let mut reader = bed.nodes[1].run("read", json!({}));
    let mut writer = bed.nodes[0].run("write", json!({ "steps": 2, "end": "wait" }));
    assert!(reader.line("version").starts_with("0 "));
    bed.nodes[0].agent().signal(Signal::STOP);
    let error = reader.line("error");
    assert!(error.contains("ProducerDied") && error.contains("n0"), "{error}");
    assert!(reader.wait().success());
    bed.nodes[0].agent().signal(Signal::CONT);
    until("both see each other again", || {
        let sees = |node: &str| bed.status(node).is_some_and(|status| status["missing"] == json!([]));
        sees("n0") && sees("n1")
    });
    let other = bed.nodes[1].run("read", json!({ "name": "other" }));
    let writer_of_other = bed.nodes[0].run("write", json!({ "name": "other", "pause_ms": 300 }));
    assert_eq!(other.lines("version").len(), 3);
    writer_of_other.lines("put");
    writer.kill();
}

#[test]
fn an_agent_that_stands_still_for_less_than_its_lease_is_waited_for_while_payload_is_sent() {
    let mut bed = Bed::with(2, &["--lease", "60"]);
    // What was asked for of three is more than the buffers of a connection hold.
    let names = ["heat", "wind", "rain"];
    let mut readers = names.map(|name| bed.nodes[1].run("read", json!({ "name": name })));
    let writers = names.map(|name| {
        let with = json!({ "name": name, "steps": 8, "quota": 128 << 20, "large": 20 << 20 });
        bed.nodes[0].run("write", with)
    });
    readers.iter_mut().for_each(|reader| drop(reader.line("version")));
    bed.nodes[1].agent().signal(Signal::STOP);
    // Longer than a sender of the network library waits.
    std::thread::sleep(Duration::from_secs(7));
    bed.nodes[1].agent().signal(Signal::CONT);
    readers.into_iter().for_each(|reader| assert_eq!(reader.lines("version").len(), 7));
    writers.into_iter().for_each(|writer| assert_eq!(writer.lines("put").len(), 8));
    bed.stop();
}
