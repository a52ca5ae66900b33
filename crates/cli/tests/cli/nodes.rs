//! `run` on several nodes: two or three directories of spaces of this host act as nodes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forebay_probe::machine::numbers;
use forebay_space::{Dtype, OpenOptions, Piece, Reader, Writer};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

use crate::bench::{outcome, Bench, Outcome};
use crate::plans::{demo, expected};
use crate::programs::built;

/// What one of the programs below is to do.
const PROGRAM: &str = "TEST_NODES_PROGRAM";
/// Versions that are put.
const VERSIONS: u64 = 12;
/// As many as the quota of no test holds.
const FLOOD: u64 = 600;
/// Elements of each rank.
const EACH: u64 = 1000;
/// A process that has to end, does.
const ENDED: Duration = Duration::from_secs(60);

/// A bench with a directory of spaces for each node.
fn bench() -> Bench {
    built(crate::forebay(), "forebay-cluster", "forebay-agent");
    Bench::new()
}

/// The begin of a workflow on these nodes.
fn head(bench: &Bench, nodes: &str) -> String {
    let root = bench.root().display();
    format!(
        "forebay = 1\n[workflow]\nname = \"several\"\n[nodes]\nnames = {nodes}\n\
         launch = \"env FOREBAY_DIR={root}/{{node}}\"\nlisten = \"tls/127.0.0.1:0\"\n[channel.u]\nquota = \"8MiB\"\n"
    )
}

fn component(name: &str, ranks: u32, command: &[&str], more: &str) -> String {
    format!("[[component]]\nname = \"{name}\"\nranks = {ranks}\ncommand = {command:?}\n{more}\n")
}

/// A component of this test program.
fn program(what: &str, name: &str, ranks: u32, more: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let command = [own.to_str().unwrap(), "--exact", "nodes::one_of_a_test", "--ignored", "--nocapture"];
    component(name, ranks, &command, &format!("env = {{ {PROGRAM} = \"{what}\" }}\n{more}"))
}

fn shell(text: &str) -> [&str; 3] {
    ["sh", "-c", text]
}

fn write(bench: &Bench, text: &str) {
    std::fs::write(bench.file("workflow.toml"), text).unwrap();
}

/// Nothing of the run is left on the nodes, and no agent.
#[track_caller]
fn nothing_is_left(bench: &Bench) {
    nothing_is_left_but(bench, "nothing");
}

/// But a file of this name.
#[track_caller]
fn nothing_is_left_but(bench: &Bench, name: &str) {
    let runs = || bench.file("runs").read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    // What a killed runner leaves ends a moment later.
    until("the end of all that was on the nodes", || {
        left(bench.root()).iter().all(|path| path.ends_with(name))
    });
    assert!(runs().all(|run| !run.join("agents").exists()), "the folder of the agents is left");
}

fn left(root: &Path) -> Vec<PathBuf> {
    let entries =
        |folder: PathBuf| folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    entries(root.to_path_buf()).flat_map(entries).collect()
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < ENDED, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Without the variable of a test it does nothing.
#[test]
#[ignore = "a program for other tests"]
fn one_of_a_test() {
    let program = std::env::var(PROGRAM).unwrap_or_default();
    match program.as_str() {
        "write" | "hold" | "flood" => {
            let mut writer = Writer::open("u", &OpenOptions::default()).unwrap();
            let (rank, size) = (u64::from(writer.rank()), u64::from(writer.size()));
            let shape = [size * EACH];
            for version in 0..if program == "flood" { FLOOD } else { VERSIONS } {
                writer.begin_step().unwrap();
                let (start, count) = ([rank * EACH], [EACH]);
                let piece =
                    Piece { name: "x", dtype: Dtype::F64, shape: &shape, start: &start, count: &count };
                let mut reservation = writer.reserve_record(&piece).unwrap();
                for (at, bytes) in reservation.as_mut_slice().chunks_exact_mut(8).enumerate() {
                    bytes.copy_from_slice(&value(version, start[0] + at as u64).to_le_bytes());
                }
                writer.commit(reservation).unwrap();
                writer.end_step().unwrap();
                if program == "hold" {
                    std::fs::write(format!("held-{rank}"), "").unwrap();
                    std::thread::sleep(Duration::from_secs(1000));
                }
            }
            writer.close().unwrap();
        }
        "read" => {
            let mut reader = Reader::open("u", &OpenOptions::default()).unwrap();
            let (mut versions, mut elements) = (0, 0);
            let mut all = vec![0; 3 * EACH as usize * 8];
            while let Some(version) = reader.begin_step(None).unwrap() {
                reader.get("x", None, &mut all).unwrap();
                for (at, bytes) in all.chunks_exact(8).enumerate() {
                    let found = f64::from_le_bytes(bytes.try_into().unwrap());
                    assert_eq!(found, value(version, at as u64), "element {at} of version {version}");
                    elements += 1;
                }
                versions += 1;
                reader.end_step().unwrap();
            }
            let (folder, rank) = (std::env::var("FOREBAY_RUN").unwrap(), reader.rank());
            let mut file = std::fs::File::create(format!("{folder}/read-{rank}")).unwrap();
            writeln!(file, "{versions} {elements}").unwrap();
        }
        _ => {}
    }
}

fn value(version: u64, at: u64) -> f64 {
    (version * 1_000_000 + at) as f64
}

fn only_run(bench: &Bench) -> PathBuf {
    let mut runs = bench.file("runs").read_dir().unwrap().flatten().map(|entry| entry.path());
    let run = runs.next().expect("a run directory");
    assert_eq!(runs.next(), None);
    run
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn ranks_on_all_nodes_are_one_group_and_one_record() {
    let bench = bench();
    let sim = program("write", "sim", 3, "writes = [\"u\"]\nnodes = \"0-1\"");
    let ana = program("read", "ana", 2, "reads = [\"u\"]\nnodes = \"1-2\"");
    write(&bench, &(head(&bench, "[\"n[0-2]\"]") + &sim + &ana));
    let ran = bench.call(&["run", "--report"]);
    ran.wants(0);
    let run = only_run(&bench);
    for rank in 0..2 {
        let read = std::fs::read_to_string(run.join(format!("read-{rank}"))).unwrap();
        assert_eq!(read.trim(), format!("{VERSIONS} {}", VERSIONS * 3 * EACH), "{ran}");
    }
    nothing_is_left(&bench);
    let record: Value = serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    let nodes: Vec<&str> =
        record["nodes"].as_array().unwrap().iter().map(|n| n["name"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["n0", "n1", "n2"]);
    let ranks = |component: usize| {
        let ranks = record["components"][component]["ranks"].as_array().unwrap();
        ranks
            .iter()
            .map(|r| (r["rank"].clone(), r["node"].clone(), r["unopened"].clone()))
            .collect::<Vec<_>>()
    };
    let rank = |rank: u32, node: &str| (json!(rank), json!(node), json!([]));
    assert_eq!(ranks(0), [rank(0, "n0"), rank(1, "n0"), rank(2, "n1")]);
    assert_eq!(ranks(1), [rank(0, "n1"), rank(1, "n2")]);
    let (sim, ana) = (&record["components"][0], &record["components"][1]);
    let bytes = VERSIONS * 3 * EACH * 8;
    assert_eq!((&sim["steps"], &sim["bytes_put"]), (&json!(VERSIONS), &json!(bytes)), "{record}");
    assert_eq!((&ana["steps"], &ana["bytes_got"]), (&json!(VERSIONS), &json!(2 * bytes)), "{record}");
    let channels = record["channels"].as_array().unwrap();
    assert_eq!(channels.len(), 1, "parts and mirrors are no channels: {record}");
    let channel = &channels[0];
    assert_eq!((&channel["name"], &channel["versions_complete"]), (&json!("u"), &json!(VERSIONS)));
    assert_eq!(record["notes"], json!([]), "{record}");
    assert!(std::fs::read_to_string(run.join("report.html")).unwrap().contains("ana"));
}

/// Each runner divides the processors of its node; those of a launcher are left to it.
#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn ranks_are_pinned_on_each_node() {
    let bench = bench();
    let look = "grep Cpus_allowed_list: /proc/self/status > cpus-$FOREBAY_COMPONENT-${FOREBAY_RANK:-0}";
    let sim = component("sim", 3, &shell(look), "writes = [\"u\"]\nnodes = \"0-1\"");
    let free = component("free", 1, &shell(look), "launcher = [\"env\"]\ndedicated = 1");
    write(&bench, &(head(&bench, "[\"a\", \"b\", \"c\"]") + &sim + &free));
    let ran = bench.call(&["run", "--mode", "parallel", "--json", "--quiet"]);
    ran.wants(0);
    let processors = |status: &str| {
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap().to_owned();
        numbers(line.split_once(':').unwrap().1.trim())
    };
    let all = processors(&std::fs::read_to_string("/proc/self/status").unwrap());
    let record: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let seen = |name: &str, rank: u32| {
        processors(&std::fs::read_to_string(bench.file(&format!("cpus-{name}-{rank}"))).unwrap())
    };
    // Which ones is decided by the memory nodes and cores of this machine.
    let (first, second) = (seen("sim", 0), seen("sim", 1));
    let mut both = [first.clone(), second.clone()].concat();
    both.sort_unstable();
    both.dedup();
    assert_eq!(both, all, "{first:?} {second:?}");
    let half = if all.len() > 1 { all.len() / 2 } else { 1 };
    assert_eq!((first.len(), second.len()), (half, all.len() - half % all.len()), "{first:?} {second:?}");
    assert_eq!((seen("sim", 2), seen("free", 0)), (all.clone(), all.clone()));
    let recorded = |component: usize, rank: usize| &record["components"][component]["ranks"][rank]["cpus"];
    for rank in 0..3 {
        assert_eq!(numbers(recorded(0, rank).as_str().unwrap()), seen("sim", rank as u32), "{record}");
    }
    assert_eq!(recorded(1, 0), &Value::Null, "{record}");
    let mut notes = vec![json!("c: ranks are not pinned: those of free are placed by its launcher")];
    if all.len() == 1 {
        notes.insert(0, json!(format!("a: sim has more ranks (2) than processors ({})", all[0])));
    }
    let is_of_channel = |note: &&Value| note.as_str().unwrap().ends_with("ended without opening u");
    let told = record["notes"].as_array().unwrap().iter().filter(|note| !is_of_channel(note));
    assert_eq!(told.cloned().collect::<Vec<_>>(), notes, "{record}");
    nothing_is_left(&bench);
}

/// The demo: what is analysed on another node is what is analysed on the same one.
#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn an_analysis_on_another_node_computes_the_same() {
    let bench = demo();
    built(crate::forebay(), "forebay-cluster", "forebay-agent");
    let small = std::fs::read_to_string(bench.file("workflow-small.toml")).unwrap();
    let small = small.split_once("[channel.gs]").unwrap().1;
    let small = small.replace("writes = [\"gs\"]", "writes = [\"gs\"]\nnodes = 0");
    let head = head(&bench, "[\"a\", \"b\"]");
    let head = head.split_once("[channel.u]").unwrap().0;
    write(&bench, &format!("{head}[channel.gs]{small}\ndedicated = 1\n"));
    let ran = bench.call(&["run"]);
    ran.wants(0);
    let statistics = std::fs::read_to_string(only_run(&bench).join("analysis/statistics.jsonl")).unwrap();
    assert_eq!(statistics, expected(&bench));
    nothing_is_left(&bench);
}

/// Two components of two ranks that note their process ids, then do as the text says.
fn sleepers(bench: &Bench, text: &str) {
    let text = format!("echo $$ > pid-$FOREBAY_COMPONENT-$FOREBAY_RANK; {text}");
    let sim = component("sim", 2, &shell(&text), "writes = [\"u\"]\nnodes = \"0-1\"");
    let ana = component("ana", 2, &shell(&text), "reads = [\"u\"]\nnodes = 1");
    write(bench, &(head(bench, "[\"a\", \"b\"]") + &sim + &ana));
}

/// Process ids of all four, once they are noted.
fn pids(bench: &Bench, run: &mut Child) -> Vec<String> {
    let names = ["sim-0", "sim-1", "ana-0", "ana-1"];
    let read = |name: &&str| {
        let text = std::fs::read_to_string(bench.file(&format!("pid-{name}"))).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    };
    until("four ranks", || {
        assert!(run.try_wait().unwrap().is_none(), "the run ended early");
        names.iter().all(|name| read(name).is_some())
    });
    names.iter().filter_map(read).collect()
}

fn started(bench: &Bench) -> Child {
    let mut run = bench.command(&["run", "--json", "--quiet", "--grace", "2"]);
    run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Its exit status, its record and what it said; it has to end.
fn ended(mut run: Child) -> (Option<i32>, Value, String) {
    let begin = Instant::now();
    while run.try_wait().unwrap().is_none() {
        if begin.elapsed() > ENDED {
            run.kill().unwrap();
            panic!("the run does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), text)
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_rank_that_fails_ends_those_of_all_nodes() {
    let bench = bench();
    sleepers(
        &bench,
        "until [ -e go ]; do sleep 0.02; done; [ $FOREBAY_COMPONENT$FOREBAY_RANK = ana1 ] && \
         { echo went wrong >&2; exit 3; }; exec sleep 1000",
    );
    let mut run = started(&bench);
    let pids = pids(&bench, &mut run);
    std::fs::write(bench.file("go"), "").unwrap();
    let (status, record, said) = ended(run);
    assert_eq!(status, Some(4), "{said}");
    let failure = &record["failure"];
    assert_eq!((&failure["component"], &failure["rank"]), (&json!("ana"), &json!(1)), "{record}");
    assert_eq!((&failure["node"], &failure["code"]), (&json!("b"), &json!(3)), "{record}");
    assert!(failure["log_tail"].as_str().unwrap().contains("went wrong"), "{record}");
    assert!(pids.iter().all(|pid| !is_alive(pid)), "ranks live on");
    nothing_is_left(&bench);
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_signal_ends_the_ranks_of_all_nodes() {
    let bench = bench();
    // One does not end by itself: the second signal ends it.
    sleepers(
        &bench,
        "[ $FOREBAY_COMPONENT$FOREBAY_RANK = sim1 ] && trap '' TERM; while :; do sleep 0.1; done",
    );
    let mut run = bench.command(&["run", "--json", "--quiet", "--grace", "1000"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pids = pids(&bench, &mut run);
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    until("three ends", || pids.iter().filter(|pid| is_alive(pid)).count() == 1);
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let (status, record, said) = ended(run);
    assert_eq!((status, &record["state"]), (Some(143), &json!("interrupted")), "{said}");
    assert!(pids.iter().all(|pid| !is_alive(pid)), "ranks live on");
    nothing_is_left(&bench);
}

/// The runners of the nodes of this bench.
fn runners(bench: &Bench) -> Vec<u32> {
    processes(bench, "run-on-node")
}

/// The processes on the nodes of this bench with this word, by their numbers.
fn processes(bench: &Bench, word: &str) -> Vec<u32> {
    let root = bench.root().to_str().unwrap().to_owned();
    let is_one = |pid: &u32| {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let (words, environment) = (read("cmdline"), read("environ"));
        let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        has(&words, word) && has(&environment, &format!("FOREBAY_DIR={root}/"))
    };
    let entries = Path::new("/proc").read_dir().unwrap().flatten();
    let mut all: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect();
    all.sort_unstable();
    all
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn an_agent_that_is_killed_ends_the_run_and_is_named() {
    let bench = bench();
    sleepers(&bench, "exec sleep 1000");
    let mut run = started(&bench);
    let pids = pids(&bench, &mut run);
    let agents = processes(&bench, "serve");
    assert_eq!(agents.len(), 2);
    kill_process(Pid::from_raw(agents[0] as i32).unwrap(), Signal::KILL).unwrap();
    let (status, _, said) = ended(run);
    assert!(status.is_some_and(|status| status != 0 && status != 4), "{status:?} {said}");
    assert!(said.contains("the agent of node") && said.contains("node="), "{said}");
    assert!(pids.iter().all(|pid| !is_alive(pid)), "ranks live on");
    // Of an agent that was killed, until the next one comes.
    nothing_is_left_but(&bench, ".agent");
}

/// It never opens its channel, so there is no copy of it on its node.
#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_reader_that_ends_at_once_on_another_node_holds_no_writer() {
    for ranks in ["nodes = 0", "nodes = \"0-1\""] {
        let bench = bench();
        let sim = program("flood", "sim", 2, &format!("writes = [\"u\"]\n{ranks}"));
        let ana = component("ana", 1, &["true"], "reads = [\"u\"]\nnodes = 2");
        write(&bench, &(head(&bench, "[\"n[0-2]\"]") + &sim + &ana).replace("8MiB", "2MiB"));
        bench.call(&["run", "--quiet"]).wants(0);
        nothing_is_left(&bench);
    }
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn what_a_killed_run_has_left_is_removed_by_the_next() {
    let bench = bench();
    let two = "writes = [\"u\"]\nnodes = \"0-1\"";
    let with = |what: &str, ana: &str| head(&bench, "[\"a\", \"b\"]") + &program(what, "sim", 3, two) + ana;
    // What is not read is not dropped.
    let sleeps = component("ana", 1, &shell("exec sleep 1000"), "reads = [\"u\"]\nnodes = 1");
    write(&bench, &with("hold", &sleeps));
    let run = started(&bench);
    until("a version on each node", || (0..3).all(|rank| bench.file(&format!("held-{rank}")).exists()));
    let all = [runners(&bench), vec![run.id()]].concat();
    all.iter().for_each(|pid| kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap());
    drop(ended(run));
    until("the end of the agents", || processes(&bench, "serve").is_empty());
    assert!(left(bench.root()).iter().any(|path| path.ends_with("u.part")), "nothing is left to be removed");
    std::fs::remove_dir_all(
        bench.file("runs").read_dir().unwrap().next().unwrap().unwrap().path().join("agents"),
    )
    .unwrap_or_default();
    write(&bench, &with("write", &program("read", "ana", 1, "reads = [\"u\"]\nnodes = 1")));
    bench.call(&["run", "--quiet"]).wants(0);
    nothing_is_left(&bench);
}

/// By hand, as a launcher does it: a rank on each node, started from the first.
#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_kept_channel_stays_on_all_nodes_where_a_launcher_has_started_writers() {
    let bench = bench();
    let root = bench.root().display();
    let script = format!(
        "for rank in 0 1; do\n  node=$(echo a b | cut -d ' ' -f $((rank + 1)))\n  \
         OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
         OMPI_COMM_WORLD_LOCAL_SIZE=1 FOREBAY_DIR={root}/$node \"$@\" || touch failed &\ndone\nwait\n\
         [ ! -e failed ]\n"
    );
    std::fs::write(bench.file("launch.sh"), script).unwrap();
    let more = "writes = [\"u\"]\nnodes = \"0-1\"\nlauncher = [\"sh\", \"launch.sh\"]";
    let sim = program("write", "sim", 2, more);
    let ana = component("ana", 1, &["true"], "reads = [\"u\"]\nnodes = 1");
    let head = head(&bench, "[\"a\", \"b\"]");
    write(&bench, &(head + "keep = true\n" + &sim + &ana));
    let ran = bench.call(&["run", "--quiet"]);
    ran.wants(0);
    for node in ["a", "b"] {
        let part = bench.root().join(node).join("u.part");
        let info = forebay_space::inspect(part.to_str().unwrap()).unwrap();
        assert_eq!(info.versions_complete, VERSIONS, "{ran}");
    }
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_runner_that_is_killed_ends_the_run() {
    for is_lead in [false, true] {
        let bench = bench();
        sleepers(&bench, "exec sleep 1000");
        let mut run = started(&bench);
        let pids = pids(&bench, &mut run);
        let followers = runners(&bench);
        assert_eq!(followers.len(), 2);
        let killed = if is_lead { run.id() } else { followers[1] };
        kill_process(Pid::from_raw(killed as i32).unwrap(), Signal::KILL).unwrap();
        let (status, record, said) = ended(run);
        match is_lead {
            true => assert_eq!(status, None),
            false => {
                assert_eq!(status, Some(7), "{said}");
                assert!(said.contains("SIGKILL") && said.contains("node="), "{said}");
                assert_eq!(record["state"], "failed", "{record}");
            }
        }
        until("the end of all ranks and runners", || {
            pids.iter().all(|pid| !is_alive(pid)) && followers.iter().all(|pid| !is_alive(&pid.to_string()))
        });
        // As after a run on one node that was killed.
        nothing_is_left_but(&bench, ".runs");
    }
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn what_is_missing_on_a_node_is_said_before_anything_runs() {
    let bench = bench();
    let refused = |text: &str, status: i32| -> Outcome {
        write(&bench, text);
        let ran = bench.call(&["run", "--quiet"]);
        ran.wants(status);
        assert!(!bench.file("begun").exists(), "a rank was started: {ran}");
        nothing_is_left(&bench);
        ran
    };
    let sim = component("sim", 1, &shell("echo > begun"), "writes = [\"u\"]\nnodes = 0");
    let ana = component("ana", 1, &shell("echo > begun"), "reads = [\"u\"]\nnodes = 1");
    let good = head(&bench, "[\"a\", \"b\"]") + &sim + &ana;
    refused(&good.replace("names = [\"a\", \"b\"]", "names = [\"a\"]"), 2).complains("too few nodes");
    refused(&good.replace("names = [\"a\", \"b\"]", ""), 2).complains("names = [");
    let launch = format!("launch = \"env FOREBAY_DIR={}/{{node}}\"", bench.root().display());
    assert!(good.contains(&launch));
    let with_launch = |words: &str| good.replace(&launch, words);
    refused(&with_launch(""), 2).complains("launch = \"ssh {node}\"");
    refused(&with_launch("launch = \"true {node}\""), 7).complains("cannot start the run on a node");
    let words = "launch = \"sh -c 'echo no such host {node} >&2; exit 255'\"";
    refused(&with_launch(words), 7).complains("no such host").complains("node=");
    // A shell that prints without an end of line is heard all the same.
    let loud = format!(
        "launch = \"sh -c 'printf junk; FOREBAY_DIR={}/{{node}} exec {{command}}'\"",
        bench.root().display()
    );
    write(&bench, &with_launch(&loud));
    bench.call(&["run", "--quiet"]).wants(0);
    std::fs::remove_file(bench.file("begun")).unwrap();
    // Neither input nor output: it is no channel for orders.
    let silent = format!(
        "launch = \"sh -c 'FOREBAY_DIR={}/{{node}} {{command}} < /dev/null'\"",
        bench.root().display()
    );
    refused(&with_launch(&silent), 2).complains("standard input");
    refused(&(good.clone() + "colocated_with = \"sim\"\n"), 2).complains("more than one of nodes");
    write(&bench, &good);
    let in_mode = |mode| ["run", "--mode", mode, "--locality", "writer"];
    for words in [
        &in_mode("serial")[..3],
        &in_mode("parallel"),
        &["plan", "workflow.toml"],
        &["advise", "workflow.toml"],
    ] {
        bench.call(words).wants(3).complains("[nodes]");
    }
    // A space of that name on the node of a reader would be taken for the channel.
    let space = bench.root().join("b/u");
    std::fs::create_dir_all(space.parent().unwrap()).unwrap();
    std::fs::set_permissions(space.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let options = OpenOptions { quota_bytes: Some(2 << 20), ..OpenOptions::default() };
    let mut writer = Writer::open(space.to_str().unwrap(), &options).unwrap();
    writer.begin_step().unwrap();
    writer.end_step().unwrap();
    let is_refused = || {
        let ran = outcome(&mut bench.command(&["run", "--quiet"]));
        ran.wants(3).complains("node=b").complains("space u already exists");
        assert!(space.exists(), "it was removed");
    };
    is_refused();
    // Nor may the writers of the other node replace it.
    writer.close().unwrap();
    write(&bench, &good.replace("[channel.u]\n", "[channel.u]\nreplace = true\n"));
    is_refused();
}
