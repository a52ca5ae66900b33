//! Writers that end or die and come again: readers of another node see what readers of the writers' node see.

use std::time::Duration;

use forebay_space::ReaderRanks;
use forebay_tier::clock::realtime_ns;
use rustix::process::Signal;
use serde_json::json;

use crate::bed::{until, Bed};

/// Removes a space that stays, as the one with a retention of its own does.
fn remove(bed: &Bed, node: usize) {
    let path = format!("{}/heat", bed.nodes[node].dir.path().display());
    until("the space can be removed", || match forebay_space::destroy(&path) {
        Ok(_) => true,
        Err(e) => e.kind() == forebay_space::Kind::PeerMissing,
    });
}

#[test]
fn a_reader_that_comes_after_a_run_reads_the_next_one() {
    let bed = Bed::new(2);
    bed.nodes[0].run("write", json!({ "steps": 8 })).lines("put");
    // What the earlier run has put is not taken for this one's.
    let mut reader = bed.nodes[1].run("read", json!({}));
    assert_eq!(reader.line_within("open", Duration::from_secs(2)), None);
    bed.nodes[0].run("write", json!({ "steps": 3 })).lines("put");
    assert_eq!(reader.lines("version").len(), 3);
    bed.stop();
}

#[test]
fn each_run_is_read_though_the_finished_space_stays() {
    let bed = Bed::new(2);
    for steps in [4, 7, 5] {
        let mut reader = bed.nodes[1].run("read", json!({}));
        reader.line("waiting");
        // The writer lives for a second or two: a reader that has waited for over 10 seconds, as on a busy machine,
        // takes nothing of writers that have ended before the agent looks.
        let with =
            json!({ "steps": steps, "retention": "last:20", "readers": [["analysis", 1]], "pause_ms": 300 });
        let writer = bed.nodes[0].run("write", with);
        assert_eq!(reader.lines("version").len(), steps);
        writer.lines("put");
    }
    remove(&bed, 0);
    // The copy goes as well.
    until("the copy is gone", || !crate::bed::left_in(bed.nodes[1].dir.path()).contains(&"heat".to_string()));
    bed.stop();
}

#[test]
fn a_reader_that_closed_early_does_not_keep_the_next_run_from_beginning() {
    let bed = Bed::new(2);
    let reader = bed.nodes[1].run("read", json!({ "stop_at": 2 }));
    let writer = bed.nodes[0].run("write", json!({ "steps": 10, "pause_ms": 100 }));
    assert_eq!(reader.lines("version").len(), 3);
    writer.lines("put");
    // A reader that comes within milliseconds of the end may be the first to see it.
    until("the copy has ended", || {
        bed.status("n1").is_some_and(|status| status["mirrors"][0]["state"] != "copying")
    });
    let mut reader = bed.nodes[1].run("read", json!({}));
    assert_eq!(reader.line_within("version", Duration::from_secs(1)), None);
    // No reader and no observer of the first run is in its way.
    bed.nodes[0].run("write", json!({ "steps": 4, "pause_ms": 300 })).lines("put");
    assert_eq!(reader.lines("version").len(), 4);
    bed.stop();
}

#[test]
fn a_reader_that_opens_again_at_once_reads_the_writers_that_came_again() {
    let bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({ "again": true }));
    bed.nodes[0].run("write", json!({ "steps": 3, "pause_ms": 500, "end": "die" })).line("dying");
    reader.line("died");
    reader.line("waiting");
    let writer = bed.nodes[0].run("write", json!({ "steps": 6, "replace": true, "pause_ms": 300 }));
    assert_eq!(reader.lines("version").len(), 6);
    writer.lines("put");
    bed.stop();
}

#[test]
fn who_leaves_a_group_for_good_is_waited_for_no_more() {
    let bed = Bed::new(2);
    let reader = bed.nodes[1].run("read", json!({ "group": "viz", "leave_at": 0 }));
    let with = json!({ "steps": 60, "quota": 2 << 20, "large": 100_000, "readers": [["here", 1]] });
    let writer = bed.nodes[0].run("write", with);
    // Before the other one begins, for which all is kept.
    assert_eq!(reader.lines("left").len(), 1);
    let here = bed.nodes[0].run("read", json!({ "component": "here" }));
    assert_eq!(here.lines("version").len(), 60);
    assert_eq!(writer.lines("put").len(), 60);
    bed.stop();
}

#[test]
fn a_copy_ended_when_the_writers_did_and_not_when_that_was_heard() {
    // The agent stands still while versions are to be copied, and while it waits for the answer that there are no more.
    for seen in [1, 3] {
        let mut bed = Bed::with(2, &["--lease", "60"]);
        let mut reader = bed.nodes[1].run("read", json!({ "hold_at": 2 }));
        let mut writer = bed.nodes[0].run("write", json!({ "pause_ms": 1500 }));
        (0..seen).for_each(|_| {
            reader.line("version");
        });
        bed.nodes[1].agent().signal(Signal::STOP);
        assert!(writer.wait().success());
        let ended = realtime_ns();
        std::thread::sleep(Duration::from_secs(2));
        bed.nodes[1].agent().signal(Signal::CONT);
        reader.line("holding");
        let copy = ReaderRanks::open(&format!("{}/heat", bed.nodes[1].dir.path().display())).unwrap();
        until("the writers of the copy have ended", || copy.ended_unix_ns() != 0);
        let told = copy.ended_unix_ns();
        assert!(told <= ended, "the agent stood still after version {}", seen - 1);
        // When it was asked for is no answer either.
        assert!(told + 1_000_000_000 > ended, "the agent stood still after version {}", seen - 1);
        reader.kill();
    }
}
