//! What agents refuse: other jobs, messages that are none, writers on a second node.

use std::process::Stdio;

use serde_json::json;
use zenoh::query::ConsolidationMode;
use zenoh::Wait;

use crate::bed::{until, Bed, Process};

#[test]
fn an_agent_of_another_job_is_refused() {
    let bed = Bed::new(2);
    // A folder of its own with its own certificates, but with the address of an agent of the first job.
    let other = Bed::bare(2);
    let agent = other.serve(1, &["--timeout", "5"]).stderr(Stdio::piped()).spawn().unwrap();
    until("its authority is made", || other.rendezvous().join("n1.json").exists());
    let (card, new) = (other.rendezvous().join("n0.json"), other.rendezvous().join("new"));
    std::fs::copy(bed.rendezvous().join("n0.json"), &new).unwrap();
    std::fs::rename(&new, &card).unwrap();
    let output = agent.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot connect to the agents of nodes n0"), "{said}");
    // The first job goes on.
    let reader = bed.nodes[1].run("read", json!({}));
    let writer = bed.nodes[0].run("write", json!({ "pause_ms": 300 }));
    assert_eq!(reader.lines("version").len(), 3);
    writer.lines("put");
    bed.stop();
}

/// A session with the certificates of a job, which says what no agent says.
fn session(bed: &Bed) -> zenoh::Session {
    let file = |name: &str| bed.rendezvous().join(name);
    let card: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file("n0.json")).unwrap()).unwrap();
    let config = json!({
        "mode": "peer",
        "listen": { "endpoints": [] },
        "connect": { "endpoints": [card["endpoint"]] },
        "scouting": { "multicast": { "enabled": false }, "gossip": { "enabled": false } },
        "transport": { "link": { "tls": {
            "root_ca_certificate": file(".authority.pem"),
            "connect_certificate": file("n1.pem"),
            "connect_private_key": file("n1.key"),
            "enable_mtls": true,
        } } },
    });
    zenoh::open(zenoh::Config::from_json5(&config.to_string()).unwrap()).wait().unwrap()
}

#[test]
fn messages_that_are_none_are_refused_and_the_agent_goes_on() {
    let bed = Bed::new(2);
    let session = session(&bed);
    let find =
        json!({ "protocol": 2, "node": "n1", "incarnation": 1, "ask": { "find": { "name": "heat" } } });
    let other =
        json!({ "protocol": 99, "node": "n1", "incarnation": 1, "ask": { "find": { "name": "heat" } } });
    let read = json!({ "read": { "mirror": "none", "version": 0, "offset": 0, "bytes": 1 } });
    let stranger = json!({ "protocol": 2, "node": "n1", "incarnation": 1, "ask": read });
    let cases: [(Vec<u8>, &str); 6] = [
        (find.to_string().into_bytes(), "found"),
        (b"{".to_vec(), "UnknownFormat"),
        (Vec::new(), "UnknownFormat"),
        (vec![b'x'; 2 << 20], "UnknownFormat"),
        (other.to_string().into_bytes(), "UnknownFormat"),
        (stranger.to_string().into_bytes(), "PeerMissing"),
    ];
    for (bytes, expected) in cases {
        let ask = || {
            // The first reply is taken, as agents do; that there is no other one may be said later.
            let replies = session.get("forebay/test/agent/n0").payload(bytes.clone());
            let replies = replies.consolidation(ConsolidationMode::None).wait().unwrap();
            let reply = replies.recv().ok()?;
            let answer = reply.into_result().ok()?.payload().to_bytes().into_owned();
            Some(String::from_utf8(answer).unwrap())
        };
        let mut answer = None;
        until("it answers", || {
            answer = ask();
            answer.is_some()
        });
        let answer = answer.unwrap();
        let kind = forebay_space::Kind::ALL.iter().find(|kind| kind.name() == expected);
        let wanted = kind.map_or(expected.to_string(), |kind| format!("\"kind\":{}", kind.code()));
        assert!(answer.contains(&wanted), "{answer}");
    }
    session.close().wait().unwrap();
    bed.stop();
}

#[test]
fn writers_on_two_nodes_are_an_error_that_names_both() {
    let bed = Bed::new(3);
    let mut writers: Vec<_> =
        (0..2).map(|node| bed.nodes[node].run("write", json!({ "end": "wait" }))).collect();
    writers.iter_mut().for_each(|writer| drop(writer.line("waiting")));
    let mut reader = bed.nodes[2].run("read", json!({}));
    let error = reader.line("error");
    assert!(error.contains("more than one node: n0, n1"), "{error}");
    writers.iter_mut().for_each(Process::kill);
}

#[test]
fn a_space_that_no_node_has_is_waited_for_until_the_deadline() {
    let bed = Bed::new(2);
    let mut reader = bed.nodes[1].run("read", json!({ "timeout_s": 2 }));
    let error = reader.line("error");
    assert!(error.contains("PeerMissing") && error.contains("all nodes of the job"), "{error}");
    bed.stop();
}
