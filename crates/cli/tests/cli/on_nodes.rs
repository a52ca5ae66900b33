//! Verbs with `--nodes`: two directories of spaces of this host act as nodes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::json;

use crate::bench::{outcome, Bench};
use crate::documents::documented;
use crate::page::check;
use crate::writing::WriterProcess;

/// Spaces `heat` on n0 and `wind` on n1, that are closed.
fn bench() -> Bench {
    let bench = Bench::new();
    for (node, space) in [("n0", "heat"), ("n1", "wind")] {
        let folder = bench.root().join(node);
        let variables = [("FOREBAY_DIR", folder.to_str().unwrap())];
        WriterProcess::start_with(&bench, space, &variables).finish();
    }
    bench
}

/// `forebay VERB … --nodes=n0,n1`, where each node has its directory.
fn words<'a>(verb: &[&'a str], launch: &'a str) -> Vec<&'a str> {
    [verb, &["--nodes=n[0-1]", "--launch", launch]].concat()
}

fn launch(bench: &Bench) -> String {
    format!("env FOREBAY_DIR={}/{{node}}", bench.root().display())
}

/// A launcher that does this instead on node n1.
fn launch_but(bench: &Bench, what: &str) -> String {
    let script = format!("[ $1 = n1 ] && {{ {what}; }}\nexport \"$2\"\neval \"$3\"\n");
    std::fs::write(bench.file("on.sh"), script).unwrap();
    let (script, root) = (bench.file("on.sh"), bench.root());
    format!("sh {} {{node}} FOREBAY_DIR={}/{{node}} {{command}}", script.display(), root.display())
}

#[test]
fn each_node_answers_below_its_name() {
    let bench = bench();
    let outcome = bench.call(&words(&["ls"], &launch(&bench)));
    outcome.wants(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[3], lines[4]), ("n0", "", "n1"), "{text}");
    assert!(lines[1].starts_with("NAME") && lines[2].starts_with("heat"), "{text}");
    assert!(lines[5].starts_with("NAME") && lines[6].starts_with("wind") && lines.len() == 7, "{text}");
    bench.call(&words(&["verify"], &launch(&bench))).wants(0).says("wind   ok");
    // On all nodes that have it; the others say that they do not.
    let outcome = bench.call(&words(&["ls", "heat"], &launch(&bench)));
    outcome.wants(7).says("uuid").complains("n1: error: PeerMissing");
    bench.call(&words(&["clean"], &launch(&bench))).wants(0).says("removed heat").says("removed wind");
    // Nothing was left to do, and nothing is said.
    bench.call(&words(&["clean"], &launch(&bench))).wants(0).says_nothing();
    bench.call(&words(&["doctor", "--quiet"], &launch(&bench))).wants(0).says("n0\n").says("\nn1\n");
}

#[test]
fn documents_of_all_nodes_are_one() {
    let bench = bench();
    // What a shell prints at its start is no document.
    let launch = launch_but(&bench, "echo welcome; echo 7");
    let document = bench.json(&words(&["ls"], &launch), 0);
    check(&document, &documented()["forebay.nodes/1"], &["ls"]);
    let nodes = document["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (node, name, space) in [(&nodes[0], "n0", "heat"), (&nodes[1], "n1", "wind")] {
        assert_eq!((&node["node"], &node["exit"], &node["error"]), (&json!(name), &json!(0), &json!(null)));
        assert_eq!(node["document"]["schema"], "forebay.ls/1");
        assert_eq!(node["document"]["spaces"][0]["name"], space);
    }
    let document = bench.json(&words(&["ls", "heat"], &launch), 7);
    assert_eq!(document["nodes"][0]["document"]["schema"], "forebay.space/1");
    assert_eq!((&document["nodes"][1]["exit"], &document["nodes"][1]["error"]), (&json!(7), &json!(null)));
    assert_eq!(document["nodes"][1]["document"]["kind"], "PeerMissing");
}

#[test]
fn a_node_that_cannot_be_reached_is_named_and_the_others_answer() {
    let bench = bench();
    let launch = launch_but(&bench, "echo no route >&2; exit 255");
    let outcome = bench.call(&words(&["ls"], &launch));
    outcome.wants(7).says("heat").complains("n1: no route").complains("node=n1").complains("  | no route");
    let document = bench.json(&words(&["ls"], &launch), 7);
    assert_eq!(document["nodes"][0]["document"]["spaces"][0]["name"], "heat");
    assert_eq!(document["nodes"][1]["document"], json!(null));
    assert_eq!(document["nodes"][1]["error"]["kind"], "PeerMissing");
    // Without the program.
    let missing = launch_but(&bench, "exec /no/such/forebay");
    bench.call(&words(&["ls"], &missing)).wants(7).says("heat").complains("exit status: 127");
    bench.call(&words(&["ls"], "no-such-launcher {node}")).wants(2).complains("check --launch");
    // What a launcher fails with is no status of a verb.
    bench.call(&words(&["clean"], "false {node}")).wants(7).complains("node=n0").complains("node=n1");
    bench.call(&words(&["verify", "--json"], "true {node}")).wants(7).says("a node has printed no document");
}

#[test]
fn whatever_a_node_prints_the_others_answer() {
    let bench = bench();
    // No UTF-8, on a standard error that is read to its end.
    let launch = launch_but(&bench, "printf 'a\\377b\\nafter\\n' >&2; sleep 0.1; echo more >&2");
    let outcome = bench.call(&words(&["ls"], &launch));
    outcome.wants(0).says("heat").says("wind").complains("n1: a\u{fffd}b").complains("n1: more");
    let launch = launch_but(&bench, "head -c 70000000 /dev/zero; exit 0");
    bench.call(&words(&["ls"], &launch)).wants(7).says("heat").complains("the output of a node is too long");
    let launch = launch_but(&bench, "seq 500000 >&2; exit 255");
    let outcome = bench.call(&words(&["ls"], &launch));
    outcome.wants(7).says("heat").complains("  | 499989\n").complains("  | 500000 (node=n1)");
    assert_eq!(outcome.stderr.matches("\n  | ").count(), 12);
}

#[test]
fn paths_must_be_absolute() {
    let bench = bench();
    let launch = launch(&bench);
    let absolute = bench.root().join("n0/heat");
    bench.call(&words(&["ls", absolute.to_str().unwrap()], &launch)).wants(0).says("uuid");
    for verb in [
        &["ls", "./heat"][..],
        &["verify", "n0/heat"],
        &["clean", "../heat"],
        &["clean", "--checkpoint", "x"],
    ] {
        bench.call(&words(verb, &launch)).wants(2).complains("relative path").complains(verb.last().unwrap());
    }
}

#[test]
fn a_node_that_does_not_answer_is_given_up_and_nothing_of_it_is_left() {
    let bench = bench();
    let pids = bench.file("pids");
    let timeout = |launch: &str| {
        let all = [&words(&["ls"], launch)[..], &["--node-timeout", "5"]].concat();
        all.into_iter().map(String::from).collect::<Vec<_>>()
    };
    // A launcher is asked to end what it has started on the node.
    let asked = bench.file("asked");
    let ends = format!("trap 'touch {}; exit 1' TERM; sleep 1000 & wait", asked.display());
    let launch = launch_but(&bench, &ends);
    bench.call(&timeout(&launch)).wants(7).says("heat").complains("node=n1");
    assert!(asked.exists());
    let hangs = format!("trap '' TERM; echo $$ >> {0}; sleep 1000", pids.display());
    let launch = launch_but(&bench, &hangs);
    bench.call(&timeout(&launch)).wants(7).says("heat").complains("TimedOut").complains("node=n1");
    // What is asked for on a node is over with its asker.
    let mut asking = bench.command(&words(&["ls"], &launch));
    let mut asking = asking.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = || std::fs::read_to_string(&pids).unwrap_or_default().lines().count();
    let deadline = Instant::now() + Duration::from_secs(60);
    while started() < 2 {
        assert!(Instant::now() < deadline, "{} of 2 were started", started());
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&asking), Signal::INT).unwrap();
    assert_eq!(asking.wait().unwrap().code(), Some(130));
    for pid in std::fs::read_to_string(&pids).unwrap().lines() {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        assert!(stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")), "process {pid} lives");
    }
}

#[test]
fn what_has_started_processes_that_keep_its_output_is_not_waited_for() {
    let bench = bench();
    let launch = launch_but(&bench, "sleep 1000 & echo $! > pid; exit 0");
    let outcome = bench.call(&words(&["ls"], &launch));
    let pid = std::fs::read_to_string(bench.file("pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    outcome.wants(7).says("heat").complains("node=n1");
}

#[test]
fn nodes_and_the_way_to_them_are_given_or_known_from_the_job() {
    let bench = bench();
    let call = |words: &[&str]| bench.call(words);
    call(&["ls", "--nodes"]).wants(2).complains("--nodes=n0,n1");
    call(&["ls", "--nodes=n0"]).wants(2).complains("--launch 'ssh {node}'");
    call(&["ls", "--nodes=n0,n0", "--launch", "ssh {node}"]).wants(2);
    call(&["ls", "--nodes=n0", "--launch", "ssh"]).wants(2).complains("{node}");
    call(&["ls", "--launch", "ssh {node}"]).wants(2).complains("--nodes");
    // In a job of Slurm.
    let mut command = bench.command(&["ls", "--nodes", "--launch", &launch(&bench)]);
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "n[0-1]");
    outcome(&mut command).wants(0).says("heat").says("wind");
}

#[test]
fn what_runs_on_all_nodes_is_watched() {
    let bench = bench();
    let outcome = bench.call(&words(&["top", "--once"], &launch(&bench)));
    let text = outcome.wants(0).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[3], lines[4]), ("n0", "", "n1"), "{text}");
    assert!(lines[2].starts_with("heat") && lines[6].starts_with("wind"), "{text}");
    let document = bench.json(&words(&["top"], &launch(&bench)), 0);
    check(&document, &documented()["forebay.nodes/1"], &["top"]);
    assert_eq!(document["nodes"][1]["document"]["spaces"][0]["space"]["name"], "wind");

    // One text for Prometheus, in which each sample has its node.
    let outcome = bench.call(&words(&["metrics"], &launch(&bench)));
    let text = outcome.wants(0).text();
    for line in [
        "forebay_node_up{node=\"n1\"} 1",
        "forebay_versions_completed_total{node=\"n0\",space=\"heat\"} 3",
        "forebay_space_state{node=\"n1\",space=\"wind\",state=\"finished\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    assert_eq!(text.matches("# TYPE forebay_spaces gauge").count(), 1, "{text}");
    let outcome = bench.call(&words(&["metrics", "heat"], &launch(&bench)));
    outcome.wants(0).says("forebay_spaces{node=\"n1\"").says("space=\"heat\"");
    assert!(!outcome.text().contains("wind"));
    let document = bench.json(&words(&["metrics"], &launch(&bench)), 0);
    assert_eq!(document["nodes"][0]["document"]["schema"], "forebay.metrics/1");
    let file = bench.file("forebay.prom");
    let to_file = ["metrics", "--textfile", file.to_str().unwrap()];
    bench.call(&words(&to_file, &launch(&bench))).wants(0);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("forebay_node_up{node=\"n0\"} 1"), "{written}");
}

#[test]
fn metrics_tell_which_node_does_not_answer() {
    let bench = bench();
    let silent = launch_but(&bench, "echo no route >&2; exit 255");
    let outcome = bench.call(&words(&["metrics"], &silent));
    outcome.wants(7).says("forebay_node_up{node=\"n0\"} 1").says("forebay_node_up{node=\"n1\"} 0");
    outcome.says("space=\"heat\"").complains("node=n1").complains("  | no route");
    // A document of another program, and one that is no look at all.
    for what in [
        "echo '{\"schema\":\"forebay.top/1\"}'; exit 0",
        "echo '{\"schema\":\"forebay.ls/1\",\"n\":1}'; exit 0",
    ] {
        let outcome = bench.call(&words(&["metrics"], &launch_but(&bench, what)));
        outcome
            .wants(7)
            .says("forebay_node_up{node=\"n1\"} 0")
            .complains("the answer of a node cannot be read");
    }
    let to_file = ["metrics", "--textfile", "/no/such/folder/forebay.prom"];
    bench.call(&words(&to_file, &launch(&bench))).wants(70).complains("/no/such/folder/forebay.prom");
    bench.call(&words(&["metrics", "./heat"], &launch(&bench))).wants(2).complains("relative path");
}

#[test]
fn a_name_that_no_node_has_is_an_error_and_one_that_some_have_is_not() {
    let bench = bench();
    let outcome = bench.call(&words(&["metrics", "wnid"], &launch(&bench)));
    outcome.wants(7).says("forebay_node_up").complains("space wnid does not exist on any node");
    bench.call(&words(&["metrics", "heat", "wind"], &launch(&bench))).wants(0);
    // The time between two samples is not that of a node that does not answer.
    let slow = ["top", "--once", "--interval", "1.5", "--node-timeout", "1"];
    let silent = launch_but(&bench, "exec sleep 1000");
    bench.call(&words(&slow, &silent)).wants(7).complains("waited_s=2.5");
}

/// A launcher that is asked to end and does not want to, and a process that it has started.
const STUBBORN: &str =
    "trap '' TERM; echo $$ >> \"$0.pids\"; sleep 1000 & echo $! >> \"$0.pids\"; wait; sleep 1000";

/// Processes of [`STUBBORN`] that are there.
fn stubborn(bench: &Bench) -> Vec<String> {
    let pids = std::fs::read_to_string(bench.file("on.sh.pids")).unwrap_or_default();
    let is_there = |pid: &&str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that was not waited for yet has ended.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    pids.lines().filter(is_there).map(str::to_owned).collect()
}

/// A server of metrics of both nodes, and a client that has asked it.
fn scraped(bench: &Bench, launch: &str) -> (Child, TcpStream) {
    let listen = ["metrics", "--listen", "127.0.0.1:0"];
    let mut command = bench.command(&words(&listen, launch));
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().trim_start_matches("http://").trim_end_matches("/metrics");
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    (server, client)
}

#[test]
fn what_was_started_for_a_scrape_ends_with_the_server() {
    let bench = bench();
    let launch = launch_but(&bench, STUBBORN);
    let (mut server, _client) = scraped(&bench, &launch);
    let deadline = Instant::now() + Duration::from_secs(60);
    while stubborn(&bench).len() < 2 {
        assert!(Instant::now() < deadline, "no node was asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(143));
    assert_eq!(stubborn(&bench), Vec::<String>::new(), "they go on");
}

#[test]
fn a_node_that_answers_late_is_scraped_whole() {
    let bench = bench();
    // Longer than a client may take for its request.
    let launch = launch_but(&bench, "sleep 6; exit 255");
    let (mut server, mut client) = scraped(&bench, &launch);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("forebay_node_up{node=\"n1\"} 0"), "{text}");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(143));
}
