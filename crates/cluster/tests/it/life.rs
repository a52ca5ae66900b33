//! The start and the end of agents.

use std::net::SocketAddr;
use std::process::{Command, Output};

use rustix::net::{self, AddressFamily, SocketType};
use rustix::process::Signal;
use serde_json::json;

use crate::bed::{agent_command, left_in, until, Bed, Process};

/// `start` for all nodes of a bed, by a command in place of ssh that runs `before` on node n1 first.
fn launch(bed: &Bed, before: &str) -> Command {
    let script = bed.rendezvous().with_file_name("on-node");
    let dirs: String =
        bed.nodes.iter().map(|n| format!("{}) dir={};;\n", n.name, n.dir.path().display())).collect();
    let text = format!(
        "case $1 in\n{dirs}esac\n[ $1 = n1 ] && {{ {before}; }}\nFOREBAY_DIR=$dir exec sh -c \"$2\"\n"
    );
    std::fs::write(&script, text).unwrap();
    let mut command = agent_command();
    command.args(["start", "--nodes", &bed.names(), "--listen", "tls/127.0.0.1:0", "--timeout", "100"]);
    command.arg("--launch").arg(format!("sh {} {{node}} {{command}}", script.display()));
    command.arg("--rendezvous").arg(bed.rendezvous());
    command
}

fn said(output: &Output) -> String {
    format!("{} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn wait_for_all(bed: &Bed, timeout: &str) -> Output {
    let mut command = agent_command();
    command.args(["wait", "--timeout", timeout, "--rendezvous"]).arg(bed.rendezvous()).output().unwrap()
}

#[test]
fn agents_start_are_shown_and_stop() {
    let bed = Bed::bare(2);
    let start = |index: usize| {
        let node = &bed.nodes[index];
        let mut command = agent_command();
        command
            .env("FOREBAY_DIR", node.dir.path())
            .args(["start", "--job", "test", "--node", &node.name, "--nodes", "n0,n1", "--timeout", "100"])
            .args(["--listen", "tls/127.0.0.1:0"])
            .arg("--rendezvous")
            .arg(bed.rendezvous());
        Process::start(&mut command)
    };
    let mut starting = [start(0), start(1)];
    starting
        .iter_mut()
        .for_each(|process| assert!(process.line("tls/127.0.0.1:").parse::<u16>().unwrap() > 0));
    starting.iter_mut().for_each(|process| assert!(process.wait().success()));
    let show =
        agent_command().args(["status", "--json", "--rendezvous"]).arg(bed.rendezvous()).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&show.stdout).unwrap();
    assert_eq!(shown["nodes"][1]["status"]["state"], "ready", "{shown}");
    let pids: Vec<i32> =
        (0..2).map(|i| shown["nodes"][i]["status"]["pid"].as_i64().unwrap() as i32).collect();
    // A second agent of a node is refused.
    let again = start(0).wait();
    assert_eq!(again.code(), Some(3));
    let rendezvous = bed.rendezvous();
    let dirs: Vec<_> = bed.nodes.iter().map(|node| node.dir.path().to_path_buf()).collect();
    bed.stop();
    assert!(!rendezvous.exists());
    until("the processes are gone", || {
        pids.iter().all(|pid| {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // One that waits for its parent is gone, too.
            state.is_empty() || state.contains(") Z ")
        })
    });
    dirs.iter().for_each(|dir| assert_eq!(left_in(dir), Vec::<String>::new()));
}

#[test]
fn an_agent_without_the_others_says_who_is_missing() {
    let bed = Bed::bare(2);
    let output = bed.serve(0, &["--timeout", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("missing=n1"), "{said}");
    assert_eq!(left_in(bed.nodes[0].dir.path()), Vec::<String>::new());
}

/// Between the choice of a port and the first connection lies the start of all other agents.
#[test]
fn the_port_of_an_agent_that_waits_for_others_is_not_given_to_another_program() {
    let bed = Bed::bare(2);
    let _agent = Process::start(&mut bed.serve(0, &[]));
    let card = || std::fs::read(bed.rendezvous().join("n0.json")).ok();
    until("it has its card", || card().is_some());
    let card: serde_json::Value = serde_json::from_slice(&card().unwrap()).unwrap();
    let endpoint: SocketAddr = card["endpoint"].as_str().unwrap().trim_start_matches("tls/").parse().unwrap();
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    assert!(net::bind(&socket, &endpoint).is_err(), "{endpoint} is free");
}

#[test]
fn an_agent_ends_with_its_folder_by_a_signal_and_when_it_is_not_used() {
    let bed = Bed::bare(1);
    let mut by_signal = Process::start(&mut bed.serve(0, &[]));
    bed.wait_ready();
    by_signal.signal(Signal::TERM);
    assert!(by_signal.wait().success());
    assert_eq!(left_in(bed.nodes[0].dir.path()), Vec::<String>::new());

    let mut idle = Process::start(&mut bed.serve(0, &["--idle-timeout", "0.5"]));
    assert!(idle.wait().success());

    let mut without_folder = Process::start(&mut bed.serve(0, &[]));
    bed.wait_ready();
    std::fs::remove_dir_all(bed.rendezvous()).unwrap();
    assert!(without_folder.wait().success());
    assert_eq!(left_in(bed.nodes[0].dir.path()), Vec::<String>::new());
}

#[test]
fn one_command_starts_the_agents_of_all_nodes() {
    let bed = Bed::bare(3);
    let output = launch(&bed, "true").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    for (line, node) in lines.lines().zip(&bed.nodes) {
        assert!(line.starts_with(&format!("{}  tls/127.0.0.1:", node.name)), "{line}");
        assert_eq!(bed.status(&node.name).unwrap()["missing"], json!([]));
    }
    assert_eq!(lines.lines().count(), 3);
    assert!(wait_for_all(&bed, "0").status.success());
    // Each is an agent of its own node.
    let writer = bed.nodes[0].run("write", json!({ "pause_ms": 500, "readers": [["analysis", 1]] }));
    assert_eq!(bed.nodes[2].run("read", json!({})).lines("version").len(), 3);
    writer.lines("put");
    bed.stop();
}

#[test]
fn a_node_that_cannot_be_reached_is_named_and_the_others_end() {
    let bed = Bed::bare(3);
    let output = launch(&bed, "echo n1: no such host >&2; exit 255").output().unwrap();
    let text = said(&output);
    assert!(!output.status.success());
    assert!(text.contains("node n1") && text.contains("255") && text.contains("no such host"), "{text}");
    assert!(!bed.rendezvous().exists(), "the folder of the job is left");
    for node in &bed.nodes {
        assert_eq!(left_in(node.dir.path()), Vec::<String>::new(), "on {}", node.name);
    }
}

#[test]
fn a_job_is_launched_once() {
    let bed = Bed::bare(2);
    let mut both = [Process::start(&mut launch(&bed, "true")), Process::start(&mut launch(&bed, "true"))];
    let mut codes: Vec<Option<i32>> = both.iter_mut().map(|process| process.wait().code()).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(3)], "one of them is refused, and ends nothing");
    let again = launch(&bed, "true").output().unwrap();
    assert_eq!(again.status.code(), Some(3), "{}", said(&again));
    assert!(wait_for_all(&bed, "0").status.success());
    bed.stop();
}

#[test]
fn a_launch_that_is_interrupted_leaves_nothing() {
    let bed = Bed::bare(2);
    // One node is far away.
    let mut start = Process::start(&mut launch(&bed, "sleep 100"));
    until("the other is there", || bed.rendezvous().join("n0.json").exists());
    start.signal(Signal::INT);
    assert_eq!(start.wait().code(), Some(7));
    assert!(!bed.rendezvous().exists());
    for node in &bed.nodes {
        assert_eq!(left_in(node.dir.path()), Vec::<String>::new(), "on {}", node.name);
    }
}

#[test]
fn an_agent_that_cannot_write_what_it_says_ends_in_order() {
    let bed = Bed::bare(1);
    let agent = bed.serve(0, &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2> /dev/full", "-"]).arg(agent.get_program()).args(agent.get_args());
    for (name, value) in agent.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut agent = Process::start(&mut command);
    bed.wait_ready();
    agent.signal(Signal::TERM);
    assert!(agent.wait().success());
    assert_eq!(left_in(bed.nodes[0].dir.path()), Vec::<String>::new());
    assert!(!bed.rendezvous().join("n0.json").exists(), "its card is left");
}

#[test]
fn an_agent_in_the_foreground_ends_with_its_command() {
    for signal in [Signal::TERM, Signal::KILL] {
        let bed = Bed::bare(1);
        let mut command = agent_command();
        command.env("FOREBAY_DIR", bed.nodes[0].dir.path()).args(["start", "--foreground", "--node", "n0"]);
        command.args(["--nodes", "n0", "--listen", "tls/127.0.0.1:0", "--rendezvous"]);
        let mut start = Process::start(command.arg(bed.rendezvous()));
        start.line("tls/127.0.0.1:");
        start.signal(signal);
        assert_eq!(start.wait().success(), signal == Signal::TERM);
        until("the agent has ended", || left_in(bed.nodes[0].dir.path()).is_empty());
        until("its card is gone", || !bed.rendezvous().join("n0.json").exists());
    }
}

#[test]
fn an_agent_in_the_foreground_ends_with_the_job() {
    let bed = Bed::bare(2);
    let start = |index: usize| {
        let node = &bed.nodes[index];
        let mut command = agent_command();
        command.env("FOREBAY_DIR", node.dir.path()).env("FOREBAY_QUOTA", "not a size");
        command.args(["start", "--foreground", "--node", &node.name, "--nodes", "n0,n1"]);
        command.args(["--listen", "tls/127.0.0.1:0", "--timeout", "100", "--rendezvous"]);
        Process::start(command.arg(bed.rendezvous()))
    };
    let missing = wait_for_all(&bed, "0.1");
    assert_eq!(missing.status.code(), Some(7), "{}", said(&missing));
    let mut first = start(0);
    until("the first has its card", || bed.rendezvous().join("n0.json").exists());
    let missing = wait_for_all(&bed, "0.1");
    assert!(!missing.status.success() && said(&missing).contains("n1"), "{}", said(&missing));
    let mut second = start(1);
    assert!(wait_for_all(&bed, "100").status.success());
    first.line("tls/127.0.0.1:");
    second.line("tls/127.0.0.1:");
    // Variables of the user's programs are none of the agent's, which makes a space, too.
    let writer = bed.nodes[0].run("write", json!({ "pause_ms": 500, "readers": [["analysis", 1]] }));
    assert_eq!(bed.nodes[1].run("read", json!({})).lines("version").len(), 3);
    writer.lines("put");
    let mut stop = agent_command();
    assert!(stop.args(["stop", "--rendezvous"]).arg(bed.rendezvous()).status().unwrap().success());
    assert!(first.wait().success() && second.wait().success());
    for node in &bed.nodes {
        assert_eq!(left_in(node.dir.path()), Vec::<String>::new(), "on {}", node.name);
    }
}
