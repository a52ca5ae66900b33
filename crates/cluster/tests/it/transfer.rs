//! What readers of another node see is what readers of the writers' node see.

use forebay_space::{Dtype, OpenOptions, SpillTier, Writer};
use serde_json::json;

use crate::bed::{left_in, Bed, DEADLINE};

#[test]
fn versions_are_the_same_byte_for_byte() {
    let bed = Bed::new(2);
    let readers = json!([["here", 1], ["there", 1]]);
    // Larger than one part of a transfer, and no multiple of anything.
    let large = (5 << 20) + 13;
    let writer = bed.nodes[0].run(
        "write",
        json!({ "ranks": 3, "steps": 4, "large": large, "quota": 256 << 20, "readers": readers, "pause_ms": 400 }),
    );
    let here = bed.nodes[0].run("read", json!({ "component": "here" }));
    let mut there = bed.nodes[1].run("read", json!({ "component": "there" }));
    assert_eq!(there.line("open"), "");
    let (here, there) = (here.lines("version"), there.lines("version"));
    assert_eq!(here.len(), 4);
    assert_eq!(here, there);
    writer.lines("put");
    bed.stop();
}

#[test]
fn groups_of_several_ranks_see_every_version() {
    let bed = Bed::new(2);
    let readers = json!([["a", 2], ["b", 1]]);
    let steps = 12;
    // The writer lives until the processes of all readers have begun.
    let with = json!({ "ranks": 3, "steps": steps, "quota": 8 << 20, "readers": readers, "pause_ms": 150 });
    let writer = bed.nodes[0].run("write", with);
    let read = |component: &str, rank: u32, size: u32, pause_ms: u64| {
        let with = json!({ "component": component, "rank": rank, "size": size, "pause_ms": pause_ms });
        bed.nodes[1].run("read", with)
    };
    let all = [read("a", 0, 2, 0), read("a", 1, 2, 30), read("b", 0, 1, 5)];
    let all: Vec<Vec<String>> = all.into_iter().map(|reader| reader.lines("version")).collect();
    assert_eq!(all[0].len(), steps);
    assert!(all.iter().all(|versions| *versions == all[0]), "{all:?}");
    writer.lines("put");
    bed.stop();
}

#[test]
fn ranks_of_a_group_may_be_on_several_nodes() {
    let bed = Bed::new(3);
    let writer = bed.nodes[0]
        .run("write", json!({ "steps": 20, "quota": 4 << 20, "large": 1 << 18, "readers": [["a", 3]] }));
    let ranks: Vec<_> = (0..3u32)
        .map(|rank| {
            bed.nodes[rank as usize].run("read", json!({ "component": "a", "rank": rank, "size": 3 }))
        })
        .collect();
    let seen: Vec<Vec<String>> = ranks.into_iter().map(|rank| rank.lines("version")).collect();
    assert_eq!(seen[0].len(), 20);
    assert!(seen.iter().all(|versions| *versions == seen[0]), "{seen:?}");
    writer.lines("put");
    bed.stop();
}

#[test]
fn a_reader_that_comes_late_begins_at_the_versions_that_are_there() {
    let bed = Bed::new(2);
    let mut writer = bed.nodes[0].run("write", json!({ "steps": 9, "retention": "last:2", "end": "wait" }));
    writer.line("waiting");
    let mut reader = bed.nodes[1].run("read", json!({ "step_timeout_s": 3 }));
    assert!(reader.line("version").starts_with("7 "));
    assert!(reader.line("version").starts_with("8 "));
    let error = reader.line("error");
    assert!(error.contains("TimedOut"), "{error}");
    writer.kill();
    forebay_space::destroy(&format!("{}/heat", bed.nodes[0].dir.path().display())).unwrap();
    bed.stop();
}

#[test]
fn a_space_goes_when_it_was_read_to_its_end() {
    let bed = Bed::new(2);
    let reader = bed.nodes[1].run("read", json!({}));
    let writer = bed.nodes[0].run("write", json!({ "steps": 5, "pause_ms": 300 }));
    let mut reader = reader;
    assert_eq!(reader.line("end"), "0");
    assert!(reader.wait().success());
    writer.lines("put");
    for node in &bed.nodes {
        crate::bed::until("the space is gone", || !left_in(node.dir.path()).contains(&"heat".to_string()));
    }
    bed.stop();
}

#[test]
fn a_name_can_be_used_again() {
    let bed = Bed::new(2);
    for _ in 0..2 {
        let reader = bed.nodes[1].run("read", json!({}));
        let writer = bed.nodes[0].run("write", json!({ "steps": 3, "pause_ms": 300 }));
        assert_eq!(reader.lines("version").len(), 3);
        writer.lines("put");
        let is_gone = || bed.nodes.iter().all(|node| !left_in(node.dir.path()).contains(&"heat".to_string()));
        crate::bed::until("the space is gone", is_gone);
    }
    bed.stop();
}

#[test]
fn a_version_that_has_no_space_in_the_copy_is_an_error() {
    let bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({}));
    reader.line("waiting");
    let name = format!("{}/heat", bed.nodes[0].dir.path().display());
    let mut writers = [0, 1].map(|rank| {
        let options = OpenOptions {
            rank: Some(rank),
            size: Some(2),
            component: Some("sim".into()),
            quota_bytes: Some(48 << 20),
            timeout: DEADLINE,
            ..OpenOptions::default()
        };
        Writer::open(&name, &options).unwrap()
    });
    let put = |writer: &mut Writer, variable: &str, bytes: u64| {
        writer.begin_step().unwrap();
        writer.put(variable, Dtype::U8, &[bytes], &[0], &[bytes], &vec![7; bytes as usize]).unwrap();
        writer.end_step().unwrap();
    };
    writers.iter_mut().for_each(|writer| put(writer, &format!("of {}", writer.rank()), 20 << 20));
    reader.line("version");
    // Of rank 1 there is space for this, and what it put before goes; the copy has the pieces of rank 0 first.
    put(&mut writers[1], "of 1", 1 << 20);
    put(&mut writers[0], "of 0", 17 << 20);
    let error = reader.line("error");
    assert!(error.contains("ProducerDied") && error.contains("VersionTooLarge"), "{error}");
    drop(writers);
    let _ = forebay_space::destroy(&name);
}

#[test]
fn the_copy_of_a_space_with_a_lower_tier_has_the_quota_of_its_memory() {
    let bed = Bed::new(2);
    let lower = tempfile::tempdir().unwrap();
    let mut reader = bed.nodes[1].run("read", json!({ "hold_at": 7 }));
    reader.line("waiting");
    let options = OpenOptions {
        rank: Some(0),
        size: Some(1),
        component: Some("sim".into()),
        quota_bytes: Some(16 << 20),
        spill: vec![SpillTier { path: lower.path().into(), quota: Some(256 << 20), tier: None }],
        timeout: DEADLINE,
        ..OpenOptions::default()
    };
    let path = |node: usize| format!("{}/heat", bed.nodes[node].dir.path().display());
    let mut writer = Writer::open(&path(0), &options).unwrap();
    for step in 0..8 {
        writer.begin_step().unwrap();
        writer.put("large", Dtype::U8, &[4 << 20], &[0], &[4 << 20], &vec![step; 4 << 20]).unwrap();
        writer.end_step().unwrap();
    }
    writer.close().unwrap();
    reader.line("holding");
    assert_eq!(forebay_space::glance(&path(1)).unwrap().quota_bytes, 16 << 20);
    reader.kill();
}
