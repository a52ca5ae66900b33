//! The start and the end of agents.

use rustix::process::Signal;

use crate::bed::{agent_command, left_in, until, Bed, Process};

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
