//! Measurements of the connections between nodes, also beside agents that are gone or stand still.

use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::{json, Value};

use crate::bed::{agent_command, until, Bed, Process};

fn links(bed: &Bed, more: &[&str]) -> Command {
    let mut command = agent_command();
    command.args(["links", "--bytes", "9MiB", "--rendezvous"]).arg(bed.rendezvous()).args(more);
    command
}

fn said(output: &Output) -> String {
    format!("{} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The connections of a document, each as reading node, sending node and the rest.
fn listed(output: &Output) -> Vec<(String, String, Value)> {
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)));
    assert_eq!(document["schema"], "forebay.links/1");
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let links = document["links"].as_array().unwrap();
    links.iter().map(|link| (text(&link["to"]), text(&link["from"]), link.clone())).collect()
}

fn is_anything_left(bed: &Bed) -> bool {
    std::fs::read_dir(bed.rendezvous())
        .unwrap()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".links"))
}

#[test]
fn each_node_measures_what_it_reads_from_each_other() {
    let bed = Bed::new(3);
    let output = links(&bed, &["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let found = listed(&output);
    let pairs: Vec<(&str, &str)> = found.iter().map(|(to, from, _)| (to.as_str(), from.as_str())).collect();
    let expected = [("n0", "n1"), ("n0", "n2"), ("n1", "n0"), ("n1", "n2"), ("n2", "n0"), ("n2", "n1")];
    assert_eq!(pairs, expected);
    for (_, _, link) in &found {
        // All of it, but on a busy machine within 5 seconds.
        let bytes = link["bytes"].as_u64().unwrap();
        assert!(link["error"].is_null() && (1..=9 << 20).contains(&bytes), "{link}");
        let number = |key: &str| link[key].as_f64().unwrap_or_else(|| panic!("{key} of {link}"));
        assert!(number("latency_us") > 0.0 && number("latency_max_us") >= number("latency_us"), "{link}");
        assert!(number("bytes_per_s") > 0.0 && link["slow"].is_boolean(), "{link}");
    }
    assert!(!is_anything_left(&bed));
    // Each time anew.
    let table = links(&bed, &[]).output().unwrap();
    assert!(table.status.success(), "{}", said(&table));
    assert_eq!(String::from_utf8_lossy(&table.stdout).lines().count(), 7, "{}", said(&table));
    assert!(!is_anything_left(&bed));
    bed.stop();
}

#[test]
fn connections_of_an_agent_that_is_gone_or_stands_still_have_an_error_and_the_others_are_measured() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut bed = Bed::with(3, &["--lease", "3"]);
        bed.nodes[2].agent().signal(signal);
        let output = links(&bed, &["--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        for (to, from, link) in listed(&output) {
            let is_lost = to == "n2" || from == "n2";
            assert_eq!(link["error"].is_string(), is_lost, "{link}");
            assert_eq!(link["bytes"] == json!(0), is_lost, "{link}");
        }
        let table = links(&bed, &[]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&table.stdout).lines().count(),
            7,
            "a line for each: {}",
            said(&table)
        );
        assert!(said(&output).contains("4 of 6 connections failed"), "{}", said(&output));
        assert!(!is_anything_left(&bed));
    }
}

#[test]
fn a_newer_measurement_ends_an_older_one() {
    let mut bed = Bed::with(2, &["--lease", "60"]);
    bed.nodes[1].agent().signal(Signal::STOP);
    let mut older = Process::start(&mut links(&bed, &[]));
    let asked = || std::fs::read_to_string(bed.rendezvous().join(".links")).unwrap_or_default();
    until("the first has asked", || !asked().is_empty());
    let first = asked();
    let mut newer = Process::start(&mut links(&bed, &[]));
    until("the second has asked", || asked() != first);
    assert_eq!(older.wait().code(), Some(3));
    bed.nodes[1].agent().signal(Signal::CONT);
    assert!(newer.wait().success());
    assert!(!is_anything_left(&bed));
    bed.stop();
}

#[test]
fn a_measurement_that_is_interrupted_or_late_leaves_nothing_and_a_killed_one_nothing_behind_the_job() {
    let mut bed = Bed::with(2, &["--lease", "60"]);
    bed.nodes[1].agent().signal(Signal::STOP);
    let asks = || bed.rendezvous().join(".links").exists();
    let mut interrupted = Process::start(&mut links(&bed, &[]));
    until("it has asked", asks);
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.wait().code(), Some(7));
    assert!(!is_anything_left(&bed));
    let late = links(&bed, &["--timeout", "0.5"]).output().unwrap();
    assert!(!late.status.success() && said(&late).contains("TimedOut"), "{}", said(&late));
    assert!(said(&late).contains("did not measure it"), "{}", said(&late));
    assert_eq!(String::from_utf8_lossy(&late.stdout).lines().count(), 3, "a line for each: {}", said(&late));
    assert!(!is_anything_left(&bed));
    let mut killed = Process::start(&mut links(&bed, &[]));
    until("it has asked", asks);
    killed.kill();
    assert!(is_anything_left(&bed));
    bed.nodes[1].agent().signal(Signal::CONT);
    bed.stop();
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let bed = Bed::new(1);
    let alone = links(&bed, &[]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "{}", said(&alone));
    bed.stop();
    let bed = Bed::bare(1);
    let none = links(&bed, &[]).output().unwrap();
    assert_eq!(none.status.code(), Some(7), "{}", said(&none));
    let mut command = agent_command();
    command.args(["links", "--bytes", "0", "--rendezvous"]).arg(bed.rendezvous());
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

/// A reader that has gone wants no more; what cannot be written is an error.
#[test]
fn an_output_that_is_closed_or_full_is_no_crash() {
    let bed = Bed::new(2);
    let status = || {
        let mut command = agent_command();
        command.args(["status", "--rendezvous"]).arg(bed.rendezvous());
        command
    };
    let closed = || {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(ours);
        std::os::fd::OwnedFd::from(theirs)
    };
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for mut command in [links(&bed, &[]), links(&bed, &["--json"]), status()] {
        let gone = command.stdout(closed()).output().unwrap();
        assert!(gone.status.success() && gone.stderr.is_empty(), "{}", said(&gone));
        let failed = command.stdout(full()).output().unwrap();
        assert!(said(&failed).contains("could not write to standard output"), "{}", said(&failed));
        assert_eq!(failed.status.code(), Some(6), "{}", said(&failed));
    }
    bed.stop();
}
