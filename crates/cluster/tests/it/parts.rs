//! Writers of one space on several nodes: what readers see is what they see of writers on one node.

use std::time::Duration;

use serde_json::{json, Value};

use crate::bed::{until, Bed, Process, DEADLINE};

/// Five ranks on three nodes, as a launcher that deals them out in turn does: their ranks.
const ON_NODE: [&[u32]; 3] = [&[0, 3], &[1, 4], &[2]];
const RANKS: u32 = 5;

/// Starts the writers of some nodes.
fn writers(bed: &Bed, nodes: &[usize], arguments: &Value) -> Vec<Process> {
    let mut all = Vec::new();
    for node in nodes {
        let here = ON_NODE[*node];
        for (local, rank) in here.iter().enumerate() {
            let mut arguments = arguments.clone();
            arguments["ranks"] = json!(RANKS);
            arguments["only"] = json!(rank);
            let local = (local as u32, here.len() as u32);
            all.push(bed.nodes[*node].run_rank("write", arguments, *rank, RANKS, local));
        }
    }
    all
}

fn reader(bed: &Bed, node: usize, arguments: Value) -> Process {
    bed.nodes[node].run("read", arguments)
}

/// Removes what writers that were killed have left.
fn remove_parts(bed: &Bed, nodes: &[usize]) {
    for node in nodes {
        let path = format!("{}/heat.part", bed.nodes[*node].dir.path().display());
        until("the dead part can be removed", || forebay_space::destroy(&path).is_ok());
    }
}

#[test]
fn versions_of_writers_on_three_nodes_are_those_of_writers_on_one() {
    // Larger than one part of a transfer, and no multiple of anything.
    let large = (5 << 20) + 13;
    // The writers live until the processes of all readers have begun.
    let with = json!({
        "steps": 4, "large": large, "quota": 256 << 20, "readers": [["a", 2], ["b", 1]], "pause_ms": 400
    });
    let bed = Bed::new(3);
    let all = writers(&bed, &[0, 1, 2], &with);
    // One of them on a node without other readers, and both of a group on different nodes.
    let rank = |node, rank| reader(&bed, node, json!({ "component": "a", "rank": rank, "size": 2 }));
    let (one, other, alone) = (rank(0, 0), rank(2, 1), reader(&bed, 1, json!({ "component": "b" })));
    let seen = [one.lines("version"), other.lines("version"), alone.lines("version")];
    all.into_iter().for_each(|writer| assert_eq!(writer.lines("put").len(), 4));
    for node in &bed.nodes {
        until("parts and mirrors are gone", || {
            crate::bed::left_in(node.dir.path()).iter().all(|name| name.starts_with('.'))
        });
    }
    bed.stop();

    let bed = Bed::new(1);
    let mut with = with;
    with["ranks"] = json!(RANKS);
    let writer = bed.nodes[0].run("write", with);
    let rank = |rank| reader(&bed, 0, json!({ "component": "a", "rank": rank, "size": 2 }));
    let (one, other, alone) = (rank(0), rank(1), reader(&bed, 0, json!({ "component": "b" })));
    let expected = one.lines("version");
    assert_eq!((other.lines("version"), alone.lines("version")), (expected.clone(), expected.clone()));
    assert_eq!(writer.lines("put").len(), 4);
    bed.stop();
    assert_eq!(expected.len(), 4);
    seen.iter().for_each(|seen| assert_eq!(*seen, expected));
}

#[test]
fn a_reader_waits_until_the_writers_of_all_nodes_have_come() {
    let bed = Bed::new(3);
    // Those that come first still run when the last ones come, as in a job.
    let with = json!({ "steps": 3, "end": "wait" });
    let mut all = writers(&bed, &[0, 1], &with);
    all.iter_mut().for_each(|writer| drop(writer.line("open")));
    let error = reader(&bed, 1, json!({ "timeout_s": 5 })).line("error");
    assert!(error.contains("PeerMissing") && error.contains("missing of 5: 2"), "{error}");
    let patient = reader(&bed, 1, json!({ "stop_at": 2 }));
    all.extend(writers(&bed, &[2], &with));
    assert_eq!(patient.lines("version").len(), 3);
    drop(all);
    remove_parts(&bed, &[0, 1, 2]);
    bed.stop();
}

#[test]
fn attributes_of_all_nodes_are_seen_as_they_were_changed_last() {
    let bed = Bed::new(3);
    let mut reading = reader(&bed, 1, json!({}));
    // The writers of the first node say last that they begin, and close long before the others.
    let with = |pause_ms: u64| json!({ "steps": 3, "says": true, "pause_ms": pause_ms });
    let mut all = writers(&bed, &[1, 2], &with(1500));
    all.iter_mut().for_each(|writer| drop(writer.line("open")));
    all.extend(writers(&bed, &[0], &with(400)));
    let attributes: Value = serde_json::from_str(&reading.line("attributes")).unwrap();
    let mut expected = json!({ "status": "step 2", "title": "ä heat" });
    (0..RANKS).for_each(|rank| expected[format!("end of {rank}")] = json!(3));
    assert_eq!(attributes, expected);
    all.into_iter().for_each(|writer| drop(writer.lines("put")));
    bed.stop();
}

#[test]
fn a_writer_that_dies_while_others_are_waited_for_is_told() {
    let bed = Bed::new(3);
    let mut reading = reader(&bed, 2, json!({}));
    let mut all = writers(&bed, &[0], &json!({ "steps": 1, "end": "wait" }));
    let mut late = writers(&bed, &[1, 2], &json!({ "steps": 0, "end": "wait" }));
    all.iter_mut().chain(&mut late).for_each(|writer| drop(writer.line("waiting")));
    reading.line("open");
    // Version 0 is there on the first node, and never on the others.
    all[0].kill();
    let error = reading.line_within("error", std::time::Duration::from_secs(20)).expect("the reader is told");
    assert!(error.contains("ProducerDied") && error.contains("node n0"), "{error}");
    drop((all, late));
    remove_parts(&bed, &[0, 1, 2]);
    bed.stop();
}

#[test]
fn a_slow_reader_holds_the_writers_of_all_nodes() {
    let bed = Bed::new(3);
    let mut slow = reader(&bed, 0, json!({ "component": "slow", "hold_at": 0 }));
    let with = json!({ "steps": 1000, "quota": 2 << 20, "large": 100_000, "timeout_s": 10 });
    let mut all = writers(&bed, &[0, 1, 2], &with);
    slow.line("holding");
    std::thread::sleep(Duration::from_secs(2));
    for writer in &mut all {
        let put = writer.so_far("put");
        assert!(
            (1..100).contains(&put),
            "{put} versions were put, all but 20 of them behind one that is held"
        );
    }
    // The first one that gives up says why; a rank of its node finds it dead, and those of other nodes are free then.
    let errors: Vec<String> =
        all.iter_mut().filter_map(|writer| writer.line_within("error", DEADLINE)).collect();
    assert!(errors.iter().any(|error| error.contains("slow@n0")), "{errors:?}");
    for error in &errors {
        assert!(error.contains("slow@n0") || error.contains("ProducerDied"), "{error}");
    }
    slow.kill();
    drop(all);
    remove_parts(&bed, &[0, 1, 2]);
    bed.stop();
}

#[test]
fn a_killed_writer_is_told_with_its_node() {
    let bed = Bed::new(3);
    let mut reading = reader(&bed, 0, json!({}));
    let mut all = writers(&bed, &[0, 1, 2], &json!({ "steps": 3, "end": "wait" }));
    all.iter_mut().for_each(|writer| drop(writer.line("waiting")));
    for version in 0..3 {
        assert!(reading.line("version").starts_with(&format!("{version} ")));
    }
    all.last_mut().unwrap().kill();
    let error = reading.line("error");
    assert!(error.contains("ProducerDied") && error.contains("node n2"), "{error}");
    drop(all);
    remove_parts(&bed, &[0, 1, 2]);
    bed.stop();
}

#[test]
fn a_killed_agent_of_one_part_is_told_with_its_node() {
    let mut bed = Bed::new(3);
    let mut reading = reader(&bed, 0, json!({}));
    let mut all = writers(&bed, &[0, 1, 2], &json!({ "steps": 2, "end": "wait" }));
    assert!(reading.line("version").starts_with("0 "));
    assert!(reading.line("version").starts_with("1 "));
    bed.nodes[1].agent().kill();
    let error = reading.line("error");
    assert!(error.contains("ProducerDied") && error.contains("n1"), "{error}");
    all.iter_mut().for_each(Process::kill);
}

#[test]
fn a_run_is_not_mixed_with_what_an_earlier_one_left() {
    let bed = Bed::new(3);
    let first = writers(&bed, &[0, 1, 2], &json!({ "steps": 2 }));
    first.into_iter().for_each(|writer| drop(writer.lines("put")));
    // One that comes after a run waits for the next.
    let next = reader(&bed, 2, json!({}));
    let mut second = writers(&bed, &[0], &json!({ "steps": 5, "replace": true, "pause_ms": 1500 }));
    second.iter_mut().for_each(|writer| drop(writer.line("put 1")));
    // Writers without a launcher are of one run if they are at work at the same time.
    second.extend(writers(&bed, &[1, 2], &json!({ "steps": 5, "replace": true, "pause_ms": 500 })));
    let seen = next.lines("version");
    assert_eq!(seen.len(), 5, "{seen:?}");
    second.into_iter().for_each(|writer| drop(writer.lines("put")));
    bed.stop();
}

#[test]
fn writers_of_one_rank_on_two_nodes_are_refused() {
    let bed = Bed::new(2);
    let with = json!({ "ranks": 2, "only": 0, "end": "wait" });
    let mut all: Vec<_> =
        (0..2).map(|node| bed.nodes[node].run_rank("write", with.clone(), 0, 2, (0, 1))).collect();
    all.iter_mut().for_each(|writer| drop(writer.line("waiting")));
    let error = reader(&bed, 0, json!({})).line("error");
    assert!(error.contains("rank 0") && error.contains("n0, n1"), "{error}");
    all.iter_mut().for_each(Process::kill);
}

#[test]
fn what_needs_agreement_between_nodes_is_refused() {
    let bed = Bed::new(2);
    let open = |with: Value, local| bed.nodes[0].run_rank("write", with, 0, 2, local);
    let error = open(json!({ "ranks": 2, "only": 0, "mode": "a" }), (0, 1)).line("error");
    assert!(error.contains("NotPossibleHere") && error.contains("several nodes"), "{error}");
    let error = open(json!({ "ranks": 2, "only": 0, "name": "./heat" }), (0, 1)).line("error");
    assert!(error.contains("SeveralNodes"), "{error}");
    bed.stop();
    // Without an agent.
    let bed = Bed::bare(1);
    let with = json!({ "ranks": 2, "only": 0 });
    let error = bed.nodes[0].run_rank("write", with, 0, 2, (0, 1)).line("error");
    assert!(error.contains("SeveralNodes") && error.contains("forebay agent start"), "{error}");
    let error = bed.nodes[0].run_rank("read", json!({ "size": 2 }), 0, 2, (0, 1)).line("error");
    assert!(error.contains("SeveralNodes"), "{error}");
}

#[test]
fn a_restarted_run_is_not_mixed_with_writers_that_died() {
    let bed = Bed::new(3);
    let mut first = writers(&bed, &[0, 1, 2], &json!({ "steps": 2, "end": "wait" }));
    first.iter_mut().for_each(|writer| drop(writer.line("waiting")));
    first.iter_mut().for_each(Process::kill);
    let mut reading = reader(&bed, 2, json!({}));
    reading.line("waiting");
    let with = json!({ "steps": 5, "replace": true, "pause_ms": 1500 });
    let mut second = writers(&bed, &[0], &with);
    second.iter_mut().for_each(|writer| drop(writer.line("put 1")));
    second.extend(writers(&bed, &[1, 2], &with));
    let seen = reading.lines("version");
    assert_eq!(seen.len(), 5, "{seen:?}");
    second.into_iter().for_each(|writer| drop(writer.lines("put")));
    bed.stop();
}
