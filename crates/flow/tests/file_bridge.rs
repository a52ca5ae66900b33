//! Plain files as a component's interface, end to end: a shell writes files, a shell reads them, no program links to
//! anything; and what becomes of the spaces of a run.
//!
//! As in `runner.rs` the runner is this test binary, started again with the words after `--`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_flow::record::State;
use forebay_flow::{RunOptions, RunRecord};
use forebay_space::{OpenOptions, Reader, Writer};
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
        Some("put") => put(&text(&rest[0]), text(&rest[1]).parse().expect("a number")).map(|()| 0),
        Some("go-on") => go_on(&text(&rest[0]), text(&rest[1]).parse().expect("a number")).map(|()| 0),
        Some("die") => {
            die(&text(&rest[0]), text(&rest[1]).parse().expect("a number")).map(|never| match never {})
        }
        Some("get") => get(&text(&rest[0])).map(|()| 0),
        Some("behind") => behind(&text(&rest[0])).map(|()| 0),
        Some("run") => {
            let options = RunOptions {
                out: Some(PathBuf::from(&rest[1])),
                self_command: self_command(),
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

fn text(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

/// Puts `steps` versions of 1 MiB; beside the channel it opens a helper space of its own.
fn put(channel: &str, steps: u64) -> forebay_space::Result<()> {
    let helper = Writer::open("helper-of-put", &OpenOptions::default())?;
    let mut writer = Writer::open(channel, &OpenOptions::default())?;
    let (rank, size) = (u64::from(writer.rank()), u64::from(writer.size()));
    let count = (1 << 17) / size;
    for step in 0..steps {
        writer.begin_step()?;
        let data = vec![step as f64; count as usize];
        writer.put_array("T", &[count * size], &[rank * count], &[count], &data)?;
        writer.end_step()?;
    }
    writer.close()?;
    helper.close()
}

/// Puts versions until there are `versions`, behind those that are complete.
fn go_on(channel: &str, versions: u64) -> forebay_space::Result<()> {
    let mut writer = Writer::open(channel, &OpenOptions::default())?;
    for version in writer.resume()?..versions {
        writer.begin_version(version)?;
        writer.put_array("T", &[1 << 17], &[0], &[1 << 17], &vec![version as f64; 1 << 17])?;
        writer.end_step()?;
    }
    writer.close()
}

/// Puts versions and ends without closing, as a program that fails.
fn die(channel: &str, versions: u64) -> forebay_space::Result<std::convert::Infallible> {
    let mut writer = Writer::open(channel, &OpenOptions::default())?;
    for _ in 0..versions {
        writer.begin_step()?;
        writer.put_array("T", &[1], &[0], &[1], &[1.0f64])?;
        writer.end_step()?;
    }
    std::process::exit(9)
}

/// Reads all versions and says how many there were.
fn get(channel: &str) -> forebay_space::Result<()> {
    let mut reader = Reader::open(channel, &OpenOptions::default())?;
    let mut versions = 0;
    while let Some(version) = reader.begin_step(None)? {
        let data: Vec<f64> = reader.get_array("T", None)?;
        assert!(
            data.len() == 1 << 17 && data.iter().all(|v| *v == version as f64),
            "version {version} is wrong"
        );
        reader.end_step()?;
        versions += 1;
    }
    println!("{versions} versions");
    reader.close()
}

/// Reads all versions from where its group stopped, and says which there were. Rank 1 comes late.
fn behind(channel: &str) -> forebay_space::Result<()> {
    if std::env::var("FOREBAY_RANK").is_ok_and(|rank| rank == "1") {
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut reader = Reader::open(channel, &OpenOptions::default())?;
    let mut versions = Vec::new();
    while let Some(version) = reader.begin_step(None)? {
        versions.push(version);
        reader.end_step()?;
    }
    println!("{versions:?}");
    reader.close()
}

fn self_command() -> Vec<OsString> {
    let me = std::env::current_exe().expect("the test binary");
    vec![me.into(), "helper_process".into(), "--exact".into(), "--nocapture".into(), "--".into()]
}

/// A directory with a workflow and a root of spaces of its own.
struct Bench {
    dir: TempDir,
    spaces: TempDir,
}

impl Bench {
    fn new(workflow: &str) -> Bench {
        let bench = Bench {
            dir: tempfile::tempdir().expect("a directory"),
            spaces: tempfile::tempdir_in("/dev/shm").expect("a root of spaces"),
        };
        bench.workflow(workflow);
        bench
    }

    fn workflow(&self, text: &str) {
        let text = format!("forebay = 1\n[workflow]\nname = \"test\"\n{text}");
        std::fs::write(self.path("w.toml"), text).expect("writing");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let me = self_command();
        let mut command = Command::new(&me[0]);
        command
            .args(&me[1..])
            .args(words)
            .env("FOREBAY_DIR", self.spaces.path())
            .current_dir(self.dir.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn start(&self, out: &str) -> Child {
        self.command(&["run", "w.toml", out]).spawn().expect("starting the runner")
    }

    /// Waits for its end: exit status and standard error.
    fn end(&self, mut child: Child) -> (i32, String) {
        let begin = Instant::now();
        while child.try_wait().expect("waiting").is_none() {
            if begin.elapsed() > Duration::from_secs(120) {
                let _ = child.kill();
                let output = child.wait_with_output().expect("its output");
                panic!("the runner did not end: {}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().expect("its output");
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn run(&self, out: &str) -> (i32, String) {
        self.end(self.start(out))
    }

    fn record(&self, out: &str) -> RunRecord {
        RunRecord::read(&self.path(out)).expect("a run record")
    }

    /// Names below the root of spaces.
    fn spaces(&self) -> Vec<String> {
        let entries = self.spaces.path().read_dir().expect("the root of spaces").flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A `.npy` file of little-endian float64 with this shape, and values 0, 1, 2, … plus `base`.
fn npy(shape: &[u64], base: f64) -> Vec<u8> {
    let mut bytes = forebay_flow::npy::write_header(forebay_space::Dtype::F64, shape);
    let elements: u64 = shape.iter().product();
    for i in 0..elements {
        bytes.extend((base + i as f64).to_le_bytes());
    }
    bytes
}

#[test]
fn files_travel_from_one_program_to_another() {
    let bench = Bench::new(
        r#"
        [channel.field]
        [[component]]
        name = "sim"
        command = ["sh", "-c", """
        for i in 1 2 3; do cp ../T_$i.npy T.tmp; mv T.tmp T_$i.npy; done
        echo plain > note.txt; : > empty; echo hidden > .hidden; sleep 0.1
        """]
        cwd = "out"
        writes = ["field"]
        files = { out = "." }
        [[component]]
        name = "ana"
        command = ["sh", "-c", "until [ -e in/END ]; do sleep 0.05; done; ls in"]
        reads = ["field"]
        files = { in = "in" }
        "#,
    );
    std::fs::create_dir(bench.path("out")).expect("making");
    std::fs::write(bench.path("out/old.npy"), "of an earlier run").expect("writing");
    for i in 1..=3u64 {
        std::fs::write(bench.path(&format!("T_{i}.npy")), npy(&[2, i], i as f64)).expect("writing");
    }
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    for i in 1..=3u64 {
        let arrived = std::fs::read(bench.path(&format!("in/T_{:06}.npy", i - 1))).expect("a version");
        assert_eq!(arrived, npy(&[2, i], i as f64), "bit for bit");
    }
    let note = std::fs::read(bench.path("in/note_000003.npy")).expect("a plain file");
    let header = forebay_flow::npy::read_header(&note).expect("npy");
    assert_eq!((header.dtype, &header.shape[..]), (forebay_space::Dtype::U8, &[6][..]));
    assert_eq!(&note[header.data_offset..], b"plain\n");
    let listed = bench.read("run/logs/ana.0.out");
    let names: Vec<&str> = listed.lines().filter(|l| l.contains('_') || *l == "END").collect();
    assert_eq!(
        names,
        ["END", "T_000000.npy", "T_000001.npy", "T_000002.npy", "note_000003.npy"],
        "and no others"
    );
    let record = bench.record("run");
    assert_eq!((record.channels[0].versions_complete, record.channels[0].state.as_str()), (4, "finished"));
    assert_eq!(record.components[0].steps, 4);
    assert_eq!(bench.spaces(), Vec::<String>::new(), "nothing is left");
}

#[test]
fn a_file_that_cannot_be_passed_on_fails_the_run() {
    let bench = Bench::new(
        r#"
        [channel.field]
        [[component]]
        name = "sim"
        command = ["sh", "-c", "echo no array > out/T_1.npy; sleep 600"]
        writes = ["field"]
        files = { out = "out" }
        "#,
    );
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 4, "{stderr}");
    for part in ["the helper that reads its files", "not a .npy file", "T_1.npy"] {
        assert!(stderr.contains(part), "{part} is missing: {stderr}");
    }
    assert_eq!(bench.spaces(), Vec::<String>::new(), "nothing is left");
}

#[test]
fn the_template_runs_as_it_stands() {
    let bench = Bench::new("");
    std::fs::write(bench.path("w.toml"), forebay_flow::init::TEMPLATE).expect("writing");
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    assert!(bench.read("run/logs/analysis.0.out").contains("5 steps arrived"));
    // Once more: what the first run left in the directories does not count.
    let (code, stderr) = bench.run("again");
    assert_eq!(code, 0, "{stderr}");
    assert!(bench.read("again/logs/analysis.0.out").contains("5 steps arrived"));
}

const COUPLED: &str = r#"
    [channel.T]
    quota = "64MiB"
    [[component]]
    name = "sim"
    command = ["forebay", "put", "T", "20"]
    ranks = 2
    writes = ["T"]
    [[component]]
    name = "ana"
    command = ["forebay", "get", "T"]
    ranks = 1
    reads = ["T"]
"#;

#[test]
fn a_coupled_run_leaves_a_record_and_no_space() {
    let bench = Bench::new(COUPLED);
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    assert!(bench.read("run/logs/ana.0.out").contains("20 versions"));
    let record = bench.record("run");
    assert_eq!(record.state, State::Finished);
    let (sim, ana) = (&record.components[0], &record.components[1]);
    assert_eq!((sim.steps, sim.bytes_put), (20, 20 << 20));
    assert_eq!((ana.steps, ana.bytes_got), (20, 20 << 20));
    assert!(sim.io_s > 0.0 && sim.compute_s > 0.0, "{sim:?}");
    assert!(record.notes.is_empty(), "{:?}", record.notes);
    assert_eq!((record.channels[0].name.as_str(), record.channels[0].versions_complete), ("T", 20));
    assert_eq!(bench.spaces(), Vec::<String>::new(), "the helper space goes as well");
}

#[test]
fn a_reader_that_never_comes_does_not_hold_up_the_writer() {
    // 20 MiB through a quota of less: without the reader's leave the writer would wait for it.
    let bench = Bench::new(
        &COUPLED
            .replace("[\"forebay\", \"get\", \"T\"]", "[\"true\"]")
            .replace("\"T\", \"20\"", "\"T\", \"200\""),
    );
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    let record = bench.record("run");
    assert!(record.notes.iter().any(|n| n == "ana rank 0 ended without opening T"), "{:?}", record.notes);
    assert_eq!(bench.spaces(), Vec::<String>::new());
}

#[test]
fn a_kept_channel_stays_with_its_versions() {
    let bench = Bench::new(&COUPLED.replace("quota = \"64MiB\"", "keep = true"));
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(bench.spaces(), ["T"], "the channel, not the helper");
    let first = forebay_space::inspect(&bench.spaces.path().join("T").to_string_lossy()).expect("a space");
    // A result that must not be overwritten.
    bench.workflow(&COUPLED.replace("quota = \"64MiB\"", "keep = true\nmode = \"x\""));
    let refused = bench.run("refused");
    assert_eq!(refused.0, 3, "{}", refused.1);
    for said in ["NameInUse", "forebay clean", "mode = \"w\"", "mode = \"a\""] {
        assert!(refused.1.contains(said), "{said}: {}", refused.1);
    }
    assert!(!bench.path("refused").exists(), "the refused run makes nothing");
    // As a program that is run again, a workflow starts over.
    bench.workflow(&COUPLED.replace("quota = \"64MiB\"", "keep = true"));
    let (code, stderr) = bench.run("again");
    assert_eq!(code, 0, "{stderr}");
    let again = forebay_space::inspect(&bench.spaces.path().join("T").to_string_lossy()).expect("a space");
    assert_ne!(first.uuid, again.uuid);
    assert_eq!((first.versions_complete, again.versions_complete), (20, 20));
}

#[test]
fn a_run_goes_on_with_a_channel_that_was_kept() {
    let workflow = |versions: u64| {
        format!(
            "[channel.T]\nkeep = true\nmode = \"a\"\n[[component]]\nname = \"sim\"\nwrites = [\"T\"]\n\
             command = [\"forebay\", \"go-on\", \"T\", \"{versions}\"]\n"
        )
    };
    let bench = Bench::new(&workflow(3));
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    // Who only looks on does not keep a run from it.
    let path = bench.spaces.path().join("T");
    let looking = OpenOptions { path: Some(path), observer: true, ..OpenOptions::default() };
    let reader = Reader::open("T", &looking).expect("the channel is there");
    assert_eq!(reader.versions().expect("readable"), 0..3);
    bench.workflow(&workflow(5));
    let (code, stderr) = bench.run("again");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(reader.versions().expect("readable"), 0..5, "those of both runs");
    assert_eq!(bench.record("again").channels[0].versions_complete, 5);
    assert_eq!(bench.spaces(), ["T"]);
}

#[test]
fn a_kept_channel_whose_writers_died_unread_is_replaced_on_request_only() {
    let workflow = |options: &str, command: &str| {
        format!(
            "[channel.T]\nkeep = true\n{options}\n[[component]]\nname = \"sim\"\nwrites = [\"T\"]\n\
             command = [\"forebay\", {command}]\n"
        )
    };
    let bench = Bench::new(&workflow("", "\"die\", \"T\", \"2\""));
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 4, "{stderr}");
    let name = bench.spaces.path().join("T").to_string_lossy().into_owned();
    let left = forebay_space::inspect(&name).expect("it is kept");
    assert_eq!((left.versions_complete, left.state.as_str()), (2, "dead"));
    // What the run acknowledged, and no reader has read, stays until the workflow file says `replace`.
    bench.workflow(&workflow("", "\"go-on\", \"T\", \"5\""));
    let (code, stderr) = bench.run("refused");
    assert_eq!(code, 3, "{stderr}");
    for said in ["NameInUse", "replace = true", "mode = \"a\"", "versions 0 to 1"] {
        assert!(stderr.contains(said), "{said}: {stderr}");
    }
    assert_eq!(forebay_space::inspect(&name).expect("untouched").uuid, left.uuid);
    bench.workflow(&workflow("replace = true", "\"go-on\", \"T\", \"5\""));
    let (code, stderr) = bench.run("again");
    assert_eq!(code, 0, "{stderr}");
    let again = forebay_space::inspect(&name).expect("a space");
    assert_ne!(again.uuid, left.uuid, "an empty space in place of the old one");
    assert_eq!((again.versions_complete, bench.record("again").channels[0].versions_complete), (5, 5));
    assert_eq!(bench.spaces(), ["T"]);
}

#[test]
fn the_second_run_with_a_name_fails_and_the_first_goes_on() {
    let slow = COUPLED.replace(
        "[\"forebay\", \"get\", \"T\"]",
        "[\"sh\", \"-c\", \"touch up; until [ -e go ]; do sleep 0.05; done\"]",
    );
    let bench = Bench::new(&slow.replace("\"T\", \"20\"", "\"T\", \"1000\""));
    let first = bench.start("first");
    until("the first run has its space", || {
        bench.spaces().contains(&"T".to_owned()) && bench.path("up").exists()
    });
    let (code, stderr) = bench.run("second");
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("NameInUse") && stderr.contains("first"), "{stderr}");
    std::fs::write(bench.path("go"), "").expect("writing");
    let (code, stderr) = bench.end(first);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(bench.spaces(), Vec::<String>::new());
}

#[test]
fn what_a_killed_run_left_does_not_stop_the_next() {
    let bench = Bench::new(
        &COUPLED
            .replace("[\"forebay\", \"get\", \"T\"]", "[\"sleep\", \"600\"]")
            .replace("\"T\", \"20\"", "\"T\", \"1000\""),
    );
    let mut first = bench.start("first");
    until("the first run has its space", || bench.spaces().contains(&"T".to_owned()));
    first.kill().expect("killing the runner");
    first.wait().expect("waiting");
    until("its ranks are dead", || {
        let listed = bench.command(&["run", "nowhere.toml", "x"]).output().expect("a command");
        assert_ne!(listed.status.code(), Some(0));
        !bench.spaces().is_empty() && no_rank_lives(&bench.path("first"))
    });
    bench.workflow(COUPLED);
    let (code, stderr) = bench.run("second");
    assert_eq!(code, 0, "{stderr}");
    assert!(!bench.spaces().contains(&"T".to_owned()));
}

/// No process has this run directory in its environment.
fn no_rank_lives(run_dir: &Path) -> bool {
    let mark = format!("FOREBAY_RUN={}", run_dir.display());
    let processes = Path::new("/proc").read_dir().expect("/proc").flatten();
    !processes
        .filter_map(|p| std::fs::read(p.path().join("environ")).ok())
        .any(|env| String::from_utf8_lossy(&env).contains(&mark))
}

#[test]
fn a_channel_of_files_works_the_same() {
    let bench = Bench::new(&COUPLED.replace("quota = \"64MiB\"", "kind = \"files\""));
    let (code, stderr) = bench.run("run");
    assert_eq!(code, 0, "{stderr}");
    assert!(bench.read("run/logs/ana.0.out").contains("20 versions"));
    let record = bench.record("run");
    assert_eq!((record.channels[0].kind.as_str(), record.channels[0].versions_complete), ("files", 20));
    assert!(record.notes.is_empty(), "{:?}", record.notes);
    assert_eq!(bench.spaces(), Vec::<String>::new());
}

#[test]
fn an_interrupted_run_leaves_no_files() {
    interrupted("kind = \"files\"");
}

#[test]
fn an_interrupted_run_leaves_no_space() {
    interrupted("quota = \"64MiB\"");
}

#[test]
fn what_a_killed_writer_was_making_goes_with_its_run() {
    let steps = [
        "mkdir T",
        "mkdir $HERE/elsewhere; : > $HERE/elsewhere/members",
        "mkdir T; : > T/members",
        "mkdir T && : > T/members && cp $HERE/new.json T/stream.json",
        "mkdir .other-space.new-$$-1; : > .other-space.new-$$-1/pool",
    ];
    for (number, step) in steps.into_iter().enumerate() {
        let bench = Bench::new(&format!(
            "[channel.T]\nkind = \"files\"\n[channel.U]\nkind = \"files\"\npath = \"elsewhere\"\n\
             [[component]]\nname = \"sim\"\nwrites = [\"T\", \"U\"]\n\
             command = [\"sh\", \"-c\", \"HERE=$PWD; cd $FOREBAY_DIR && {step} && kill -9 $$\"]"
        ));
        std::fs::write(bench.path("new.json"), channel_without_a_start()).expect("writing");
        let out = format!("run{number}");
        let (code, stderr) = bench.run(&out);
        assert_ne!(code, 0, "{step}");
        assert!(stderr.contains("SIGKILL"), "{step}: {stderr}");
        assert_eq!(bench.spaces(), Vec::<String>::new(), "{step}");
        assert!(!bench.path("elsewhere").exists(), "{step}");
        assert!(bench.record(&out).notes.is_empty(), "{step}: {:?}", bench.record(&out).notes);
    }
}

#[test]
fn a_run_that_fails_leaves_a_damaged_channel_alone() {
    let bench = Bench::new(
        "[channel.T]\nkind = \"files\"\n[[component]]\nname = \"sim\"\nwrites = [\"T\"]\n\
         command = [\"forebay\", \"put\", \"T\", \"1\"]",
    );
    let dir = bench.spaces.path().join("T");
    for broken in [None, Some("{")] {
        let _ = std::fs::remove_dir_all(&dir);
        let options = OpenOptions { channel: forebay_space::Mechanism::Files, ..OpenOptions::default() };
        let mut writer = Writer::open(&dir.to_string_lossy(), &options).expect("a channel");
        writer.begin_step().expect("a step");
        writer.put_array("T", &[1], &[0], &[1], &[1.0f64]).expect("a put");
        writer.end_step().expect("ending it");
        writer.close().expect("closing");
        match broken {
            None => std::fs::remove_file(dir.join("stream.json")).expect("removing"),
            Some(text) => std::fs::write(dir.join("stream.json"), text).expect("writing"),
        }
        let (code, stderr) = bench.run(&format!("run{}", broken.is_some()));
        assert_ne!(code, 0, "{stderr}");
        assert!(dir.join("v0000000000").exists(), "{broken:?}: {stderr}");
    }
}

/// The name of a channel that no rank of the run opens may be that of another program's data.
#[test]
fn what_another_program_left_under_the_name_of_a_channel_of_files_stays() {
    for mechanism in [forebay_space::Mechanism::Space, forebay_space::Mechanism::Files] {
        let bench = Bench::new(
            "[channel.T]\nkind = \"files\"\n[[component]]\nname = \"sim\"\nwrites = [\"T\"]\n\
             command = [\"sh\", \"-c\", \"touch up; until [ -e go ]; do sleep 0.05; done\"]",
        );
        let run = bench.start("run");
        until("the run has begun", || bench.path("up").exists());
        let name = bench.spaces.path().join("T").to_string_lossy().into_owned();
        let options =
            OpenOptions { channel: mechanism, quota_bytes: Some(4 << 20), ..OpenOptions::default() };
        let mut writer = Writer::open(&name, &options).expect("a channel");
        for _ in 0..2 {
            writer.begin_step().expect("a step");
            writer.put_array("T", &[1], &[0], &[1], &[1.0f64]).expect("a put");
            writer.end_step().expect("ending it");
        }
        writer.begin_step().expect("a step");
        // As one that was killed in its step.
        drop(writer);
        std::fs::write(bench.path("go"), "").expect("writing");
        let (code, stderr) = bench.end(run);
        assert_eq!(code, 0, "{stderr}");
        let left = forebay_space::inspect(&name).expect("it stays");
        assert_eq!((left.versions_complete, left.state.as_str()), (2, "dead"), "{mechanism}");
        forebay_space::destroy(&name).expect("removing it");
    }
}

/// The ranks of the analysis do not overlap: each goes on behind what it has read itself.
#[test]
fn a_kept_channel_that_is_run_again_is_read_where_each_rank_stopped() {
    for kind in ["space", "files"] {
        let bench = Bench::new("");
        for (out, versions) in [("first", 2), ("second", 5)] {
            bench.workflow(&format!(
                "[channel.T]\nkind = \"{kind}\"\nkeep = true\nmode = \"a\"\n[[component]]\nname = \"sim\"\n\
                 writes = [\"T\"]\ncommand = [\"forebay\", \"go-on\", \"T\", \"{versions}\"]\n\
                 [[component]]\nname = \"ana\"\nreads = [\"T\"]\nranks = 2\n\
                 command = [\"forebay\", \"behind\", \"T\"]"
            ));
            let (code, stderr) = bench.run(out);
            assert_eq!(code, 0, "{kind}, {out}: {stderr}");
            let expected = if out == "first" { "[0, 1]" } else { "[2, 3, 4]" };
            for rank in 0..2 {
                let said = bench.read(&format!("{out}/logs/ana.{rank}.out"));
                assert!(said.contains(expected), "{kind}, {out}, rank {rank}: {said}");
            }
        }
    }
}

/// `stream.json` of a channel in which no writer has started yet.
fn channel_without_a_start() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let name = dir.path().join("T").to_string_lossy().into_owned();
    let options = OpenOptions { channel: forebay_space::Mechanism::Files, ..OpenOptions::default() };
    Writer::open(&name, &options).expect("a channel").close().expect("closing");
    let text = std::fs::read(dir.path().join("T/stream.json")).expect("reading");
    let mut stream: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    stream["incarnations"] = serde_json::json!([]);
    stream.to_string().into_bytes()
}

fn interrupted(channel: &str) {
    let bench = Bench::new(
        &COUPLED
            .replace("quota = \"64MiB\"", channel)
            .replace("[\"forebay\", \"get\", \"T\"]", "[\"sleep\", \"600\"]")
            .replace("\"T\", \"20\"", "\"T\", \"1000\""),
    );
    let child = bench.start("run");
    until("the run has its space", || bench.spaces().contains(&"T".to_owned()));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sending a signal");
    let (code, stderr) = bench.end(child);
    assert_eq!(code, 130, "{stderr}");
    assert_eq!(bench.spaces(), Vec::<String>::new(), "nothing is left");
    assert_eq!(bench.record("run").state, State::Interrupted);
}
