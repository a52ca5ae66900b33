//! `bench fio` as fio's users meet it: its output, its document, its exit status, its files.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::bench::Bench;

const SMALL: &[&str] = &["bench", "fio", "--output-format=json", "--size=256k"];

/// The document of a run with these further words.
fn document(bench: &Bench, words: &[&str]) -> Value {
    let outcome = bench.call(&[SMALL, words].concat());
    outcome.wants(0);
    serde_json::from_slice(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome}"))
}

/// Paths of all keys; what is inside maps with numbers for keys is one path.
fn keys(value: &Value, path: &str, to: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let numbered = key.parse::<f64>().is_ok() && path.ends_with("percentile");
            let key = if numbered { "*" } else { key };
            let path = format!("{path}/{key}");
            keys(value, &path, to);
            to.insert(path);
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, path, to)),
        _ => {}
    }
}

#[test]
fn the_document_has_every_field_of_fios() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fio/fio-3.33.json");
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(recorded).unwrap()).unwrap();
    let bench = Bench::new();
    let words = ["--name=a", "--rw=randrw", "--ioengine=io_uring", "--iodepth=4", "--fsync=100", "--size=4m"];
    let outcome = bench.call(&[SMALL, &words].concat());
    let ours = match outcome.status {
        Some(3) => document(&bench, &["--name=a", "--rw=randrw", "--fsync=10"]),
        _ => serde_json::from_slice(&outcome.stdout).unwrap(),
    };
    let (mut wanted, mut seen) = (BTreeSet::new(), BTreeSet::new());
    keys(&recorded, "", &mut wanted);
    keys(&ours, "", &mut seen);
    wanted.retain(|path| !path.starts_with("/jobs/job options"));
    // Below a file system without a device there is none to show.
    wanted.retain(|path| !path.starts_with("/disk_util/") || ours["disk_util"] != Value::Array(Vec::new()));
    let missing: Vec<&String> = wanted.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (path, value) in [("/jobs/0", &ours["jobs"][0]), ("", &ours)] {
        let recorded = recorded.pointer(path).expect("it was recorded");
        for (key, value) in value.as_object().expect("an object") {
            let same = recorded.get(key).is_none_or(|theirs| kind(theirs) == kind(value));
            assert!(same, "{path}/{key} is {value}");
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
        _ => "other",
    }
}

#[test]
fn counts_are_those_of_the_job() {
    let bench = Bench::new();
    let all = document(&bench, &["--name=a", "--rw=randrw", "--bs=4k", "--io_size=128k", "--fsync=4"]);
    let job = &all["jobs"][0];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(number(&job["read"]["total_ios"]) + number(&job["write"]["total_ios"]), 32);
    assert_eq!(number(&job["read"]["io_bytes"]) + number(&job["write"]["io_bytes"]), 128 << 10);
    assert_eq!(number(&job["sync"]["total_ios"]), number(&job["write"]["total_ios"]) / 4);
    for flow in ["read", "write"] {
        assert_eq!(job[flow]["clat_ns"]["N"], job[flow]["total_ios"]);
        assert_eq!(job[flow]["lat_ns"]["N"], job[flow]["total_ios"]);
        assert!(job[flow]["clat_ns"]["percentile"]["99.000000"].is_u64());
    }
    assert_eq!(job["job options"]["io_size"], "128k");
    assert_eq!(all["global options"]["size"], "256k");
    assert_eq!(bench.file("a.0.0").metadata().unwrap().len(), 256 << 10);
    let classes = document(&bench, &["--output-format=json+", "--name=a", "--rw=read"]);
    let bins = classes["jobs"][0]["read"]["clat_ns"]["bins"].as_object().expect("classes");
    assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), 64);
}

#[test]
fn groups_are_reported_together_and_stonewalls_wait() {
    let bench = Bench::new();
    let file = "[global]\nsize=64k\nfilename=shared\n[w]\nrw=write\nverify=crc32c\ndo_verify=0\n\
                [r]\nstonewall\nrw=randread\nverify=crc32c\nnumjobs=3\ngroup_reporting\n";
    std::fs::write(bench.file("jobs.fio"), file).unwrap();
    let outcome = bench.call(&["bench", "fio", "--output-format=json", "jobs.fio"]);
    outcome.wants(0);
    let all: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let jobs = all["jobs"].as_array().unwrap();
    let seen: Vec<(&str, u64, u64)> = jobs
        .iter()
        .map(|job| {
            let total = |flow: &str| job[flow]["total_ios"].as_u64().unwrap();
            (job["jobname"].as_str().unwrap(), total("read"), total("write"))
        })
        .collect();
    assert_eq!(seen, [("w", 0, 16), ("r", 48, 0)]);
    assert_eq!((&jobs[0]["groupid"], &jobs[1]["groupid"]), (&Value::from(0), &Value::from(1)));
}

#[test]
fn text_goes_where_it_shall() {
    let bench = Bench::new();
    let outcome =
        bench.call(&["bench", "fio", "--name=a", "--size=64k", "--rw=write", "--output=result.txt"]);
    outcome.wants(0);
    assert!(outcome.stdout.is_empty(), "{outcome}");
    let text = std::fs::read_to_string(bench.file("result.txt")).unwrap();
    for part in ["measured", "write: IOPS=", "99.00th=[", "issued rwts: total=0,16,0,0", "WRITE: bw=", "usr="]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let list = bench.call(&["bench", "fio", "--cmdhelp"]);
    list.wants(0);
    assert!(String::from_utf8_lossy(&list.stdout).contains("rwmixread"));
    let parsed = bench.call(&["bench", "fio", "--parse-only", "--name=b", "--size=64k", "--rw=write"]);
    parsed.wants(0);
    assert!(!bench.file("b.0.0").exists());
}

#[test]
fn mistakes_have_their_status_and_touch_nothing() {
    let bench = Bench::new();
    for (words, status, text) in [
        (&["--name=a", "--size=64k", "--iodept=4"][..], 2, "iodepth"),
        (&["--name=a", "--size=64k", "--rw=trim"], 2, "trims"),
        (&["--name=a"], 2, "needs a size"),
        (&["nowhere.fio"], 2, "nowhere.fio"),
        (&[], 2, "no job"),
        (&["--name=a", "--size=64k", "--rw=write", "--readonly"], 2, "--readonly"),
        (&["--name=a", "--size=64k", "--directory=nowhere"], 70, "nowhere"),
    ] {
        let outcome = bench.call(&[&["bench", "fio"][..], words].concat());
        outcome.wants(status).complains(text);
        assert!(outcome.stdout.is_empty(), "{outcome}");
    }
    assert_eq!(std::fs::read_dir(bench.work()).unwrap().count(), 0);
}

#[test]
fn another_engine_is_said_once() {
    let bench = Bench::new();
    let words = ["bench", "fio", "--ioengine=posixaio", "--size=64k", "--name=a", "--numjobs=2"];
    let outcome = bench.call(&words);
    let notes = outcome.stderr.matches("note: a: io_uring takes the place of posixaio").count();
    assert_eq!(notes, 1, "{outcome}");
    // io_uring may be refused here; then that is what it says.
    assert!(matches!(outcome.status, Some(0 | 3)), "{outcome}");
}

#[test]
fn wrong_bytes_end_with_their_own_status() {
    let bench = Bench::new();
    std::fs::write(bench.file("f"), vec![0; 64 << 10]).unwrap();
    let words = ["bench", "fio", "--name=a", "--filename=f", "--size=64k", "--rw=read", "--verify=crc32c"];
    let outcome = bench.call(&[&words[..], &["--output-format=json"]].concat());
    outcome.wants(8).complains("Damaged");
    let all: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(all["jobs"][0]["error"], 84);
}

#[test]
fn a_signal_ends_the_jobs_and_the_results_are_printed() {
    let bench = Bench::new();
    let words = [
        "bench",
        "fio",
        "--name=a",
        "--size=64k",
        "--rw=read",
        "--time_based",
        "--runtime=1h",
        "--output-format=json",
    ];
    let mut command = bench.command(&words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let file = bench.file("a.0.0");
    while !file.metadata().is_ok_and(|meta| meta.len() == 64 << 10) {
        std::thread::yield_now();
    }
    // Its file is complete: handlers were installed before it was begun.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(130), None), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["jobs"][0]["error"], 0);
    assert!(file.exists(), "files are kept, as fio keeps them");
}

#[test]
fn a_terse_line_has_fios_fields() {
    let bench = Bench::new();
    let words = ["bench", "fio", "--name=a", "--size=64k", "--rw=write", "--minimal", "--disk_util=0"];
    let outcome = bench.call(&[&words[..], &["--write_iolog=log", "--description=why"]].concat());
    outcome.wants(0);
    let line = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let fields: Vec<&str> = line.trim_end().split(';').collect();
    // Five of the job, 41 of each direction, five of the processor, seven depths, 22 classes; then the description.
    assert_eq!((fields.len(), fields[0], fields[2], fields[121]), (122, "3", "a", "why"), "{line}");
    assert_eq!((fields[5], fields[46]), ("0", "64"), "KiB read and written");
    let percent = |field: &&str| field.trim_end_matches('%').parse::<f64>().unwrap();
    let classes: f64 = fields[99..121].iter().map(percent).sum();
    assert!((classes - 100.0).abs() < 0.5, "{classes}");
    assert_eq!(std::fs::read_to_string(bench.file("log")).unwrap().lines().count(), 1 + 2 + 16 + 1);
}
