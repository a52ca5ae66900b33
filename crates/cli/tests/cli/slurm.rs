//! Jobs of Slurm, really run: a controller and one or two nodes on loopback, in a folder of the test, as this user.
//!
//! Where Slurm is not installed or does not start, the test says that it was skipped.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

use crate::bench::{clean_environment, outcome, Bench, Outcome};
use crate::plans::{demo, expected};
use crate::programs::built;
use crate::skips::skipped;

/// Seconds for daemons to come up, and for a job of a second to end on a busy machine.
const UP: Duration = Duration::from_secs(20);
const ENDED: Duration = Duration::from_secs(120);

/// A controller and a node that end with the test.
struct Slurm {
    daemons: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
            let begin = Instant::now();
            while matches!(daemon.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn program(name: &str) -> Option<String> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    places.iter().map(|dir| format!("{dir}/{name}")).find(|path| Path::new(path).exists())
}

/// A port that no process had a moment ago.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("its address").port()
}

fn configuration(dir: &Path, nodes: &[&str]) -> String {
    let user = Command::new("id").arg("-un").output().expect("id").stdout;
    let (user, dir) = (String::from_utf8_lossy(&user).trim().to_owned(), dir.display());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let node = |name: &&str| {
        let port = port();
        format!("NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN\n")
    };
    let all: String = nodes.iter().map(node).collect();
    format!(
        "ClusterName=loopback\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\nCredType=cred/none\n\
         MpiDefault=none\nSlurmUser={user}\nSlurmdUser={user}\nSlurmctldPort={}\n\
         SlurmctldPidFile={dir}/slurmctld.pid\nSlurmdPidFile={dir}/%n.pid\nStateSaveLocation={dir}\n\
         SlurmdSpoolDir={dir}/spool-%n\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/%n.log\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\nSwitchType=switch/none\nReturnToService=2\nInactiveLimit=0\nKillWait=5\n\
         {all}PartitionName=all Nodes={} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE\n",
        port(),
        nodes.join(",")
    )
}

impl Slurm {
    /// Starts it in a folder; why not, where it cannot be.
    fn start(dir: &Path, nodes: &[&str]) -> Result<Slurm, String> {
        let missing = |name: &str| format!("{name} is not installed");
        let find = |name: &str| program(name).ok_or_else(|| missing(name));
        let (controller, node) = (find("slurmctld")?, find("slurmd")?);
        find("sbatch")?;
        for name in nodes {
            std::fs::create_dir_all(dir.join(format!("spool-{name}"))).map_err(|e| e.to_string())?;
        }
        let file = dir.join("slurm.conf");
        std::fs::write(&file, configuration(dir, nodes)).map_err(|e| e.to_string())?;
        let mut slurm = Slurm { daemons: Vec::new() };
        let of_node = |name: &&str| vec![node.clone(), "-D".into(), "-N".into(), (*name).to_string()];
        let controller = vec![controller, "-D".into(), "-i".into()];
        for words in [controller].into_iter().chain(nodes.iter().map(of_node)) {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).env("SLURM_CONF", &file).current_dir(dir);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            slurm.daemons.push(child.map_err(|e| e.to_string())?);
        }
        let begin = Instant::now();
        loop {
            let state =
                Command::new("sinfo").args(["-h", "-N", "-o", "%T"]).env("SLURM_CONF", &file).output();
            let state = state.map_err(|e| e.to_string())?;
            let state = String::from_utf8_lossy(&state.stdout).into_owned();
            if state.lines().filter(|line| *line == "idle").count() == nodes.len() {
                return Ok(slurm);
            }
            let ended = slurm.daemons.iter_mut().any(|d| !matches!(d.try_wait(), Ok(None)));
            if ended || begin.elapsed() > UP {
                return Err("its daemons do not start here".to_owned());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// `sbatch` or `scancel` in the folder of the bench. `forebay` is not in the path: the job has to know where it is.
fn client(bench: &Bench, slurm: &Path, words: &[&str]) -> Outcome {
    let mut command = Command::new("timeout");
    clean_environment(&mut command);
    command.arg(ENDED.as_secs().to_string()).args(words).current_dir(bench.work());
    command.env("PATH", crate::path());
    outcome(command.env("FOREBAY_DIR", bench.root()).env("SLURM_CONF", slurm.join("slurm.conf")))
}

/// A job for Slurm of the workflow `file`, and what tells of it when a test fails.
fn job(bench: &Bench, file: &str, mode: &str) {
    bench.call(&["plan", file, "--mode", mode, "-o", "plan.json"]).wants(0);
    let job = bench.call(&["plan", file, "--plan", "plan.json", "--emit", "slurm"]);
    job.wants(0).says("#SBATCH --nodes=1").says(" --launcher srun --report");
    let same = bench.call(&["plan", file, "--plan", "plan.json", "--emit", "sbatch"]);
    assert_eq!(same.text(), job.text(), "sbatch is another word for slurm");
    std::fs::write(bench.file("job.sh"), job.text()).unwrap();
}

fn printed(bench: &Bench) -> String {
    std::fs::read_to_string(bench.file("job.out")).unwrap_or_default()
}

/// Run directories below `runs/`, sorted.
fn runs(bench: &Bench) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(bench.file("runs")).into_iter().flatten().flatten();
    let mut runs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    runs.sort();
    runs
}

fn record(run: &Path) -> Value {
    let text = std::fs::read_to_string(run.join("run.json")).unwrap_or_else(|e| panic!("{run:?}: {e}"));
    serde_json::from_str(&text).unwrap()
}

/// Nothing of a job but its run directories.
#[track_caller]
fn nothing_is_left(bench: &Bench) {
    assert_eq!(bench.json(&["ls"], 0)["spaces"], json!([]), "a space is left: {}", printed(bench));
    let left: Vec<_> = std::fs::read_dir(bench.root()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_job_for_slurm_does_what_the_runner_does_as_often_as_it_is_submitted() {
    let bench = demo();
    let dir = bench.file("slurm");
    let _slurm = match Slurm::start(&dir, &["here"]) {
        Ok(slurm) => slurm,
        Err(why) => return skipped("the job for Slurm", &why),
    };
    for (mode, known) in [("parallel", 0), ("serial", 2)] {
        job(&bench, "workflow-small.toml", mode);
        for submission in 1..=2 {
            let ran = client(&bench, &dir, &["sbatch", "--wait", "--output=job.out", "job.sh"]);
            assert_eq!(ran.status, Some(0), "{mode} {submission}: {ran}\n{}", printed(&bench));
            let runs = runs(&bench);
            assert_eq!(runs.len(), known + submission, "each submission is a run of its own");
            nothing_is_left(&bench);
        }
        for run in &runs(&bench)[known..] {
            let name = run.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.contains("-job"), "{name} has no number of a job");
            let record = record(run);
            assert_eq!(
                (&record["state"], &record["plan"]["plan"]["mode"]),
                (&json!("finished"), &json!(mode))
            );
            for component in record["components"].as_array().unwrap() {
                let ranks = component["ranks"].as_array().unwrap();
                assert!(ranks.len() == 2 && component["steps"].as_u64() > Some(0), "{component}");
                assert!(
                    ranks.iter().all(|r| r["cpus"].is_string() && r["unopened"] == json!([])),
                    "{component}"
                );
            }
            assert!(run.join("report.html").is_file(), "{run:?} has no report");
            let file = run.join("analysis/statistics.jsonl");
            let statistics = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{mode}: {e}"));
            assert_eq!(statistics, expected(&bench), "{mode}");
        }
    }
}

#[test]
fn a_cancelled_job_leaves_its_record_and_no_space() {
    let bench = demo();
    let dir = bench.file("slurm");
    let _slurm = match Slurm::start(&dir, &["here"]) {
        Ok(slurm) => slurm,
        Err(why) => return skipped("the job for Slurm that is cancelled", &why),
    };
    // Three channels, each with a writer that would go on for hours.
    let mut workflow = String::from("forebay = 1\n[workflow]\nname = \"long\"\n");
    for name in ["a", "b", "c"] {
        workflow +=
            &format!("[channel.{name}]\nquota = \"16MiB\"\nsegment = \"1MiB\"\nretention = \"last:1\"\n");
    }
    for name in ["a", "b", "c"] {
        workflow += &format!(
            "[[component]]\nname = \"sim-{name}\"\nwrites = [\"{name}\"]\ncommand = [\"gray-scott\", \
             \"--deck\", \"deck-small.toml\", \"--channel\", \"{name}\", \"--steps\", \"1000000000\"]\n"
        );
    }
    std::fs::write(bench.file("long.toml"), workflow).unwrap();
    job(&bench, "long.toml", "parallel");
    for submission in 1..=2 {
        let said = client(&bench, &dir, &["sbatch", "--parsable", "--output=job.out", "job.sh"]);
        let id = said.text().trim().to_owned();
        assert_eq!(said.status, Some(0), "{said}");
        until(&format!("three channels: {}", printed(&bench)), || {
            let spaces = bench.json(&["ls"], 0)["spaces"].clone();
            let begun = |s: &&Value| s["versions_complete"].as_u64() > Some(0);
            let all = spaces.as_array().unwrap();
            let of_job = |s: &Value| s["run"].as_str().is_some_and(|run| run.ends_with(&format!("-job{id}")));
            all.iter().filter(begun).count() == 3 && all.iter().all(of_job)
        });
        let said = client(&bench, &dir, &["scancel", &id]);
        assert_eq!(said.status, Some(0), "{said}");
        until("the job's end", || {
            let queue = client(&bench, &dir, &["squeue", "-h", "-o", "%i"]);
            queue.status == Some(0) && queue.text().trim().is_empty()
        });
        let runs = runs(&bench);
        assert_eq!(runs.len(), submission);
        // The job has left the queue before its last process ends.
        let run = &runs[submission - 1];
        until("the report", || run.join("report.html").is_file());
        let record = record(run);
        assert_eq!((&record["state"], &record["signal"]), (&json!("interrupted"), &json!(15)), "{record}");
        nothing_is_left(&bench);
    }
}

/// As the guide has it, but that nodes of this host need their own directories of spaces and addresses of loopback.
const TWO_NODES: &str = r#"#!/bin/sh
set -e
export JOB=$PWD/rendezvous FOREBAY_READERS=analysis:2
on_node='mkdir -p $ROOT/$SLURMD_NODENAME; FOREBAY_DIR=$ROOT/$SLURMD_NODENAME exec "$@"'
srun --overlap -N $SLURM_NNODES -n $SLURM_NNODES --ntasks-per-node=1 sh -c "$on_node" - \
    "$FOREBAY" agent start --foreground --listen tls/127.0.0.1:0 --rendezvous $JOB &
"$FOREBAY" agent wait --rendezvous $JOB
srun --overlap -N 1 -w n1 -n 2 sh -c "$on_node" - gray-scott --deck deck-small.toml --channel gs &
writers=$!
srun --overlap -N 1 -w n2 -n 2 sh -c "$on_node" - analysis --channel gs
wait $writers
"$FOREBAY" agent status --rendezvous $JOB
"$FOREBAY" ls --nodes --json > nodes.json
"$FOREBAY" agent stop --rendezvous $JOB
wait
"#;

/// The demo, and a Slurm of two nodes; None: it cannot be had here.
fn two_nodes(what: &str) -> Option<(Bench, PathBuf, Slurm)> {
    let bench = demo();
    let dir = bench.file("slurm");
    match Slurm::start(&dir, &["n1", "n2"]) {
        Ok(slurm) => {
            built(crate::forebay(), "forebay-cluster", "forebay-agent");
            Some((bench, dir, slurm))
        }
        Err(why) => {
            skipped(what, &why);
            None
        }
    }
}

#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_job_on_two_nodes_is_coupled_through_its_agents() {
    let Some((bench, dir, _slurm)) = two_nodes("a job of Slurm on two nodes") else { return };
    let environment =
        format!("export ROOT={} FOREBAY={}\n", bench.root().display(), crate::forebay().display());
    let script = TWO_NODES.replacen("set -e\n", &format!("set -e\n{environment}"), 1);
    std::fs::write(bench.file("job.sh"), script).unwrap();
    let words = ["sbatch", "--wait", "--nodes=2", "--ntasks=4", "--output=job.out", "job.sh"];
    let ran = client(&bench, &dir, &words);
    assert_eq!(ran.status, Some(0), "{ran}\n{}", printed(&bench));
    let statistics = std::fs::read_to_string(bench.file("analysis/statistics.jsonl"));
    assert_eq!(statistics.unwrap_or_default(), expected(&bench), "{}", printed(&bench));
    assert!(!bench.file("rendezvous").exists());
    // By the launcher of Slurm, on the nodes of the job.
    let nodes: Value = serde_json::from_slice(&std::fs::read(bench.file("nodes.json")).unwrap()).unwrap();
    for (node, name) in nodes["nodes"].as_array().unwrap().iter().zip(["n1", "n2"]) {
        let schema = &node["document"]["schema"];
        assert_eq!((&node["node"], &node["exit"], schema), (&json!(name), &json!(0), &json!("forebay.ls/1")));
    }
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(2), "{nodes}");
    for node in ["n1", "n2"] {
        let left: Vec<_> =
            std::fs::read_dir(bench.root().join(node)).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "on {node}: {left:?}");
    }
}

/// By the launcher of Slurm where both components are on one node, which needs no directory of its own; and on two.
#[test]
#[ignore = "needs forebay-agent, which make test does not build"]
fn a_workflow_runs_on_the_nodes_of_its_job() {
    let Some((bench, dir, _slurm)) = two_nodes("a workflow on the nodes of a job of Slurm") else { return };
    let small = std::fs::read_to_string(bench.file("workflow-small.toml")).unwrap();
    let on = |node: u32| format!("nodes = {node}\nwrites = [\"gs\"]");
    let root = bench.root().display();
    let launch = format!("launch = \"srun --overlap -N1 -n1 -w {{node}} env FOREBAY_DIR={root}/{{node}}\"\n");
    let here = format!("export FOREBAY_DIR={root}/one\n");
    let one = (small.replace("writes = [\"gs\"]", &on(1)) + "nodes = 1\n", String::new(), here);
    let two = (small.replace("writes = [\"gs\"]", &on(0)) + "nodes = 1\n", launch, String::new());
    for (workflow, launch, variables) in [one, two] {
        let nodes = format!("[nodes]\n{launch}listen = \"tls/127.0.0.1:0\"\n[channel.gs]");
        std::fs::write(bench.file("on-nodes.toml"), workflow.replace("[channel.gs]", &nodes)).unwrap();
        let command = format!("{variables}exec {} run --out run on-nodes.toml\n", crate::forebay().display());
        std::fs::write(bench.file("job.sh"), format!("#!/bin/sh\n{command}")).unwrap();
        let words = ["sbatch", "--wait", "--nodes=2", "--ntasks=4", "--output=job.out", "job.sh"];
        let ran = client(&bench, &dir, &words);
        assert_eq!(ran.status, Some(0), "{ran}\n{}", printed(&bench));
        let statistics = std::fs::read_to_string(bench.file("run/analysis/statistics.jsonl"));
        assert_eq!(statistics.unwrap_or_default(), expected(&bench), "{}", printed(&bench));
        std::fs::remove_dir_all(bench.file("run")).unwrap();
        for folder in std::fs::read_dir(bench.root()).unwrap().flatten().map(|entry| entry.path()) {
            let left: Vec<_> = std::fs::read_dir(&folder).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "in {}: {left:?}", folder.display());
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < ENDED, "never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
