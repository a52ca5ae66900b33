//! The runner with real processes: environment, output, failures, signals, and that nothing is left behind.
//!
//! The runner under test runs in a process of its own: this test binary, started again with the words after `--`
//! (see [`helper_process`]). Every wait has a deadline; nothing asserts how long something took.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_flow::record::State;
use forebay_flow::{RunOptions, RunRecord};
use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

/// Not a test by itself: acts as the `forebay` command when this binary is started with words after `--`.
#[test]
fn helper_process() {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(dashes) = words.iter().position(|w| w == "--") else { return };
    let (verb, rest) = (&words[dashes + 1], &words[dashes + 2..]);
    let result = match verb.to_str() {
        Some("exec-rank") => forebay_flow::exec_rank(rest).map(|never| match never {}),
        Some("bridge") => forebay_flow::bridge(rest).map(|()| 0),
        Some("hello") => {
            println!("hello from the command itself");
            Ok(0)
        }
        Some("run") => {
            let options = RunOptions {
                out: Some(PathBuf::from(&rest[1])),
                self_command: self_command(),
                grace: Duration::from_millis(if rest.len() > 2 { 60_000 } else { 1500 }),
                tee: std::env::var_os("TEST_TEE").is_some(),
                ..RunOptions::default()
            };
            forebay_flow::run(Path::new(&rest[0]), &options).map(|record| record.exit_code())
        }
        other => panic!("unknown verb {other:?}"),
    };
    std::process::exit(result.unwrap_or_else(|error| {
        eprintln!("{error}");
        error.kind().exit_code()
    }));
}

fn self_command() -> Vec<OsString> {
    let me = std::env::current_exe().expect("the test binary");
    vec![me.into(), "helper_process".into(), "--exact".into(), "--nocapture".into(), "--".into()]
}

/// A workflow in a directory of its own, with its own root of spaces.
struct Bench {
    dir: TempDir,
    /// Variables of the runner.
    env: Vec<(&'static str, &'static str)>,
}

/// What a finished runner left.
struct Outcome {
    code: i32,
    stderr: String,
    record: RunRecord,
}

impl Bench {
    fn new(workflow: &str) -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("spaces")).expect("making");
        let text = format!("forebay = 1\n[workflow]\nname = \"test\"\n{workflow}");
        std::fs::write(dir.path().join("w.toml"), text).expect("writing");
        Bench { dir, env: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn start(&self, patient: bool) -> Child {
        let words = self_command();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("run").arg(self.path("w.toml")).arg(self.path("run"));
        if patient {
            command.arg("patient");
        }
        command.env("FOREBAY_DIR", self.path("spaces")).env("FOREBAY_RANK", "77");
        // As where the runner itself is the third rank of a job.
        command.env("OMPI_COMM_WORLD_RANK", "2").env("OMPI_COMM_WORLD_SIZE", "4").env("PMI_RANK", "2");
        command.envs(self.env.iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starting the runner")
    }

    fn run(&self) -> Outcome {
        self.finish(self.start(false))
    }

    fn finish(&self, mut child: Child) -> Outcome {
        let begin = Instant::now();
        while child.try_wait().expect("waiting").is_none() {
            if begin.elapsed() > Duration::from_secs(60) {
                let _ = child.kill();
                panic!("the runner did not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().expect("its output");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let record = RunRecord::read(&self.path("run")).unwrap_or_else(|e| panic!("{e}\n{stderr}"));
        for rank in record.components.iter().flat_map(|c| &c.ranks) {
            assert!(!lives(rank.pid), "process {} is left", rank.pid);
        }
        let code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
        Outcome { code, stderr, record }
    }
}

/// Whether a process runs; a zombie (of an init that does not reap) does not.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pid_in(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("sending a signal");
}

#[test]
fn every_rank_knows_who_it_is() {
    let bench = Bench::new(
        r#"
        [env]
        SHARED = "both"
        [channel.u-v]
        quota = "1MiB"
        retention = "last:2"
        [[component]]
        name = "sim"
        command = ["sh", "-c", """
        echo $FOREBAY_RANK/$FOREBAY_SIZE $FOREBAY_COMPONENT $SHARED $OWN
        echo $FOREBAY_CHANNEL_U_V; echo to-err >&2; test -d $FOREBAY_RUN -a -d $FOREBAY_TRACE
        """]
        ranks = 3
        writes = ["u-v"]
        env = { OWN = 5 }
        [[component]]
        name = "ana"
        command = ["forebay", "hello"]
        ranks = 2
        reads = ["u-v"]
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(outcome.record.state, State::Finished);
    for rank in 0..3 {
        let out = bench.read(&format!("run/logs/sim.{rank}.out"));
        assert!(out.contains(&format!("{rank}/3 sim both 5\n")), "{out}");
        let json =
            out.lines().find(|l| l.starts_with('{')).unwrap_or_else(|| panic!("no channel table: {out}"));
        let table: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(table["quota"], 1 << 20);
        assert_eq!(table["retention"], "last:2");
        assert_eq!(table["readers"], "ana:2", "readers are declared ahead");
        assert_eq!(bench.read(&format!("run/logs/sim.{rank}.err")), "to-err\n");
    }
    assert!(bench.read("run/logs/ana.1.out").contains("hello from the command itself"));
    assert!(bench.read("run/workflow.toml").contains("forebay = 1"));
    let sim = &outcome.record.components[0];
    assert_eq!(
        sim.ranks.iter().map(|r| (r.rank, r.code)).collect::<Vec<_>>(),
        [0, 1, 2].map(|r| (Some(r), Some(0)))
    );
    assert!(
        outcome.record.notes.iter().any(|n| n == "sim rank 1 ended without opening u-v"),
        "{:?}",
        outcome.record.notes
    );
    assert_eq!(outcome.record.channels[0].state, "never opened");
}

#[test]
fn an_emulated_channel_is_one_medium_and_each_component_stands_somewhere() {
    let bench = Bench::new(
        r#"
        [channel.c]
        emulate = "optane-gen1:pmem/64"
        near = "reader"
        [[component]]
        name = "sim"
        command = ["sh", "-c", "echo $FOREBAY_CHANNEL_C"]
        writes = ["c"]
        [[component]]
        name = "ana"
        command = ["sh", "-c", "echo $FOREBAY_CHANNEL_C"]
        reads = ["c"]
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let line = "channel c is emulated: optane-gen1:pmem divided by k = 64, near its reader";
    assert!(outcome.record.notes.iter().any(|note| note == line), "{:?}", outcome.record.notes);
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    let table = |component: &str| -> serde_json::Value {
        let out = bench.read(&format!("run/logs/{component}.0.out"));
        let json = out.lines().find(|l| l.starts_with('{')).unwrap_or_else(|| panic!("no table: {out}"));
        serde_json::from_str(json).expect("JSON")
    };
    let (sim, ana) = (table("sim"), table("ana"));
    assert_eq!((&sim["locality"], &ana["locality"]), (&"remote".into(), &"local".into()));
    assert_eq!(sim["emulate"], ana["emulate"]);
    assert_eq!(sim["emulate"]["k"], 64.0);
}

#[test]
fn a_failed_rank_ends_everything_and_is_named() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "good"
        command = ["sleep", "600"]
        ranks = 2
        [[component]]
        name = "bad"
        command = ["sh", "-c", "echo first >&2; echo the reason >&2; [ $FOREBAY_RANK = 0 ] && exec sleep 600; exit 3"]
        ranks = 2
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 4);
    for part in
        ["ComponentFailed", "bad failed: rank 1 of 2", "exit status 3", "the reason", "logs/bad.1.err"]
    {
        assert!(outcome.stderr.contains(part), "{part} is missing in: {}", outcome.stderr);
    }
    let failure = outcome.record.failure.as_ref().expect("a failure in the record");
    assert_eq!((failure.component.as_str(), failure.rank, failure.code), ("bad", Some(1), Some(3)));
    assert!(failure.log_tail.ends_with("first\nthe reason"), "{}", failure.log_tail);
    assert_eq!(outcome.record.state, State::Failed);
    let good = &outcome.record.components[0].ranks[0];
    assert!(good.ended_by_runner && good.signal == Some(15), "{good:?}");
}

#[test]
fn a_signal_is_named() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "bad"
        command = ["sh", "-c", "kill -SEGV $$"]
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 4);
    assert!(outcome.stderr.contains("was ended by signal 11 (SIGSEGV)"), "{}", outcome.stderr);
    assert_eq!(outcome.record.failure.and_then(|f| f.signal), Some(11));
}

#[test]
fn the_first_failure_is_not_masked_by_its_consequences() {
    // The victim's failure is seen before the culprit's own.
    let bench = Bench::new(
        r#"
        [[component]]
        name = "victim"
        command = ["sh", "-c", """
        until [ -e died ]; do sleep 0.01; done
        echo 'ProducerDied: rank 0 of culprit' >&2; exit 7
        """]
        [[component]]
        name = "culprit"
        command = ["sh", "-c", "touch died; sleep 0.15; echo boom >&2; exit 9"]
        "#,
    );
    let outcome = bench.run();
    let failure = outcome.record.failure.expect("a failure");
    assert_eq!((failure.component.as_str(), failure.code), ("culprit", Some(9)), "{}", outcome.stderr);
}

#[test]
fn a_lone_consequence_is_still_reported() {
    let bench = Bench::new("[[component]]\nname = \"victim\"\ncommand = [\"sh\", \"-c\", \"exit 7\"]\n");
    let outcome = bench.run();
    assert_eq!((outcome.code, outcome.record.failure.and_then(|f| f.code)), (4, Some(7)));
}

#[test]
fn what_a_rank_leaves_in_the_background_ends_with_it() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "parent"
        command = ["sh", "-c", "sleep 600 & echo $! > child; exit 0"]
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let child = pid_in(&bench.path("child")).expect("the child's pid");
    until("the child is gone", || !lives(child));
}

#[test]
fn control_c_ends_all_cleanly() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "tidy"
        command = ["sh", "-c", "trap 'echo bye; exit 0' TERM; touch up.$FOREBAY_RANK; while :; do sleep 0.02; done"]
        ranks = 2
        "#,
    );
    let child = bench.start(true);
    until("both ranks are up", || bench.path("up.0").exists() && bench.path("up.1").exists());
    signal(child.id(), Signal::INT);
    let outcome = bench.finish(child);
    assert_eq!(outcome.code, 130, "{}", outcome.stderr);
    assert_eq!((outcome.record.state, outcome.record.signal), (State::Interrupted, Some(2)));
    assert!(bench.read("run/logs/tidy.0.out").ends_with("bye\n"), "the rank could clean up");
    assert!(outcome.record.components[0].ranks.iter().all(|r| r.ended_by_runner && r.code == Some(0)));
}

#[test]
fn sigterm_kills_what_does_not_end() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "stubborn"
        command = ["sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.02; done"]
        "#,
    );
    let child = bench.start(false);
    until("the rank is up", || bench.path("up").exists());
    signal(child.id(), Signal::TERM);
    let outcome = bench.finish(child);
    assert_eq!(outcome.code, 143);
    assert_eq!(outcome.record.components[0].ranks[0].signal, Some(9));
}

#[test]
fn a_second_control_c_does_not_wait_for_the_grace() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "stubborn"
        command = ["sh", "-c", "trap 'touch asked' TERM; touch up; while :; do sleep 0.02; done"]
        "#,
    );
    // The grace is a minute here, which is also when `finish` gives up.
    let child = bench.start(true);
    until("the rank is up", || bench.path("up").exists());
    signal(child.id(), Signal::INT);
    until("the rank was asked", || bench.path("asked").exists());
    signal(child.id(), Signal::INT);
    let outcome = bench.finish(child);
    assert_eq!((outcome.code, outcome.record.components[0].ranks[0].signal), (130, Some(9)));
}

#[test]
fn ranks_die_with_a_killed_runner() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "rank"
        command = ["sh", "-c", "echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.02; done"]
        "#,
    );
    let mut child = bench.start(false);
    until("the rank is up", || bench.path("pid").exists());
    let rank = pid_in(&bench.path("pid")).expect("its pid");
    assert!(lives(rank));
    child.kill().expect("killing the runner");
    child.wait().expect("waiting");
    until("the rank is gone", || !lives(rank));
    let record = RunRecord::read(&bench.path("run")).expect("the record of its start");
    assert_eq!(record.state, State::Running, "it could not say more");
    assert!(!forebay_flow::record::is_running(&bench.path("run")), "the lock is gone with it");
}

#[test]
fn a_timeout_is_a_failure() {
    let bench = Bench::new(
        r#"
        [[component]]
        name = "slow"
        command = ["sleep", "600"]
        timeout = 0.2
        "#,
    );
    let outcome = bench.run();
    assert_eq!(outcome.code, 4);
    assert!(
        outcome.stderr.contains("slow failed: rank 0 of 1 ran longer than its timeout of 0.2 s"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_program_that_cannot_be_executed_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new("[[component]]\nname = \"odd\"\ncommand = [\"./odd\"]\n");
    std::fs::write(bench.path("odd"), "#!/no/such/interpreter\n").expect("writing");
    std::fs::set_permissions(bench.path("odd"), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let outcome = bench.run();
    assert_eq!(outcome.code, 4);
    assert!(outcome.stderr.contains("cannot start") && outcome.stderr.contains("odd"), "{}", outcome.stderr);
}

#[test]
fn an_earlier_run_is_never_overwritten() {
    let bench = Bench::new("[[component]]\nname = \"one\"\ncommand = [\"true\"]\n");
    assert_eq!(bench.run().code, 0);
    let before = bench.read("run/run.json");
    let again = bench.run();
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
    assert_eq!(bench.read("run/run.json"), before);
}

#[test]
fn run_directories_are_found_again() {
    let bench = Bench::new("[[component]]\nname = \"one\"\ncommand = [\"true\"]\n");
    assert_eq!(forebay_flow::latest_run(bench.dir.path()), None);
    let options = RunOptions { quiet: true, self_command: Vec::new(), ..RunOptions::default() };
    let first = forebay_flow::run(&bench.path("w.toml"), &options).expect("a run");
    let second = forebay_flow::run(&bench.path("w.toml"), &options).expect("another in the same second");
    assert_ne!(first.run_dir, second.run_dir);
    let latest = forebay_flow::latest_run(bench.dir.path()).expect("a run");
    assert_eq!(latest.canonicalize().ok(), Some(second.run_dir));
}

/// A stand-in for mpirun: starts the ranks at once and numbers them in its own variables.
const LAUNCHER: &str = r#"launcher = ["sh", "-c", """
ranks=$1; shift; rank=0
while [ $rank -lt $ranks ]; do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$ranks "$@" & pids="$pids $!"; rank=$((rank + 1))
done
for pid in $pids; do wait $pid || exit $?; done
""", "launcher", "3"]"#;

#[test]
fn a_launcher_starts_all_ranks_and_numbers_them() {
    let bench = Bench::new(&format!(
        r#"
        [[component]]
        name = "sim"
        {LAUNCHER}
        command = ["sh", "-c", "echo ours ${{FOREBAY_RANK-none}} theirs $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE"]
        ranks = 3
        [[component]]
        name = "alone"
        command = ["sh", "-c", "echo ours $FOREBAY_RANK theirs ${{OMPI_COMM_WORLD_RANK-none}} ${{PMI_RANK-none}}"]
        "#
    ));
    let outcome = bench.run();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let out = bench.read("run/logs/sim.out");
    for rank in 0..3 {
        assert!(out.contains(&format!("ours none theirs {rank}/3\n")), "{out}");
    }
    let ranks: Vec<Option<u32>> = outcome.record.components[0].ranks.iter().map(|r| r.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2)], "the record has a row for each");
    // What numbers the runner does not number its ranks.
    assert!(bench.read("run/logs/alone.0.out").ends_with("ours 0 theirs none none\n"));
}

#[test]
fn a_rank_that_a_signal_ended_below_a_launcher_is_told_with_the_signal_and_the_last_lines() {
    let bench = Bench::new(&format!(
        r#"
        [[component]]
        name = "sim"
        {LAUNCHER}
        command = ["sh", "-c", "echo the last words of $OMPI_COMM_WORLD_RANK; echo Killed >&2; kill -9 $$"]
        ranks = 3
        "#
    ));
    let outcome = bench.run();
    assert_eq!(outcome.code, 4, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("exit status 137 (128 + 9, SIGKILL)"), "{}", outcome.stderr);
    // Standard error says no more than that; why is on standard output.
    assert!(outcome.stderr.contains("  | the last words of 0"), "{}", outcome.stderr);
    // Both logs have lines, and both are named.
    let named = outcome.stderr.lines().find(|line| line.contains("its whole output: ")).unwrap_or_default();
    assert!(named.contains("logs/sim.err and ") && named.ends_with("logs/sim.out"), "{}", outcome.stderr);
}

#[test]
fn with_tee_every_line_comes_behind_the_name_of_its_log() {
    let mut bench = Bench::new(
        r#"
        [[component]]
        name = "sim"
        command = ["sh", "-c", "echo out $FOREBAY_RANK; echo err $FOREBAY_RANK >&2; printf unfinished"]
        ranks = 2
        "#,
    );
    bench.env.push(("TEST_TEE", "1"));
    let outcome = bench.run();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    for rank in 0..2 {
        for line in [format!("sim.{rank} | out {rank}"), format!("sim.{rank}! | err {rank}")] {
            assert_eq!(
                outcome.stderr.lines().filter(|l| **l == line).count(),
                1,
                "{line}: {}",
                outcome.stderr
            );
        }
        assert!(outcome.stderr.contains(&format!("sim.{rank} | unfinished\n")), "{}", outcome.stderr);
        assert!(bench
            .read(&format!("run/logs/sim.{rank}.out"))
            .ends_with(&format!("out {rank}\nunfinished")));
    }
}
