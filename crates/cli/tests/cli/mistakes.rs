//! Wrong input: each mistake has its kind, its exit status and a hint; closed pipes are no mistake.

use std::io::Read;
use std::process::Stdio;

use crate::bench::{outcome, Bench};

#[test]
fn every_mistake_has_its_exit_status() {
    let bench = Bench::new();
    std::fs::write(bench.file("unknown-key.toml"), "forebay = 1\n[workflow]\nname = \"x\"\nnmae = 1\n")
        .unwrap();
    std::fs::write(bench.file("not-toml.toml"), "this is no TOML [").unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["reprot"], 2, "'report'"),
        (&["ls", "--jsno"], 2, "--json"),
        (&["cat"], 2, "<NAME>"),
        (&["cat", "a b"], 2, "BadName"),
        (&["cat", ".."], 2, "BadName"),
        (&["cat", "heat", "T", "--version", "newest"], 2, "latest"),
        (&["cat", "heat", "T", "--format", "hdf5"], 2, "npy"),
        (&["cat", "heat", "--wait", "soon"], 2, "seconds"),
        (&["cat", "heat"], 7, "PeerMissing"),
        (&["verify", "heat"], 7, "PeerMissing"),
        (&["run", "nowhere.toml"], 2, "nowhere.toml"),
        (&["run", "unknown-key.toml"], 2, "did you mean"),
        (&["run", "not-toml.toml"], 2, "not-toml.toml"),
        (&["report", "nowhere"], 2, "no run"),
        (&["report"], 2, "forebay run"),
        (&["completions", "cmd.exe"], 2, "bash"),
        (&["doctor", "--sysroot", "/nowhere"], 2, "is not a directory"),
        (&["bridge", "sideways"], 2, "bridge is called by the runner"),
        (&["exec-rank"], 2, "exec-rank is called by the runner"),
    ];
    for (words, status, text) in cases {
        let outcome = bench.call(words);
        outcome.wants(*status).complains(text);
        assert!(outcome.stdout.is_empty(), "{outcome}");
    }
}

#[test]
fn folders_of_a_run_that_cannot_be_are_the_users_mistake() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    let workflow =
        "forebay = 1\n[workflow]\nname = \"x\"\n[[component]]\nname = \"a\"\ncommand = [\"true\"]\n";
    std::fs::write(bench.file("x.toml"), workflow).unwrap();
    std::fs::write(bench.file("runs"), "").unwrap();
    bench.call(&["run", "x.toml"]).wants(2).complains("part of the path is a file");
    bench.call(&["run", "x.toml", "--out", "runs/x"]).wants(2).complains("part of the path is a file");
    let unreadable = std::ffi::OsStr::from_bytes(b"bad\xff");
    outcome(bench.command(&["run", "x.toml", "--out"]).arg(unreadable)).wants(2).complains("not UTF-8");
    assert_eq!(bench.work().read_dir().unwrap().count(), 2, "a folder is left");
    bench.call(&["run", "x.toml", "--out", "fine"]).wants(0);
}

#[test]
fn the_same_mistakes_as_documents() {
    let bench = Bench::new();
    for (words, kind, status) in [
        (&["reprot"][..], "Usage", 2),
        (&["cat", "a b"], "BadName", 2),
        (&["cat", "heat"], "PeerMissing", 7),
        (&["report"], "Usage", 2),
    ] {
        let document = bench.json(words, status);
        assert_eq!(document["schema"], "forebay.error/1");
        assert_eq!(document["kind"], kind);
        assert_eq!(document["exit"], status);
        assert!(document["code"].as_u64().is_some_and(|c| c > 0), "{document}");
        assert!(document["message"].as_str().is_some_and(|m| !m.is_empty()), "{document}");
        assert!(document["hint"].is_string(), "{document}");
    }
}

#[test]
fn unknown_variables_are_refused_by_every_verb() {
    let bench = Bench::new();
    for verb in ["ls", "doctor", "clean", "man"] {
        let misspelt = outcome(bench.command(&[verb]).env("FOREBAY_TEIR", "dram"));
        misspelt.wants(2).complains("FOREBAY_TEIR").complains("did you mean FOREBAY_TIER?");
        let unreadable = outcome(bench.command(&[verb]).env("FOREBAY_QUOTA", "lots"));
        unreadable.wants(2).complains("FOREBAY_QUOTA");
    }
}

#[test]
fn variables_of_module_systems_are_said_once_and_refuse_nothing() {
    let bench = Bench::new();
    let mut command = bench.command(&["ls"]);
    let said = outcome(command.env("FOREBAY_ROOT", "/opt/forebay").env("FOREBAY_HOME", "/opt/forebay"));
    said.wants(0).complains("FOREBAY_HOME, FOREBAY_ROOT");
    assert_eq!(said.stderr.matches("is ignored").count(), 1, "{said}");
}

#[test]
fn the_directory_of_an_installation_is_no_root_of_spaces() {
    let bench = Bench::new();
    std::fs::create_dir(bench.file("bin")).unwrap();
    std::fs::write(bench.file("bin/forebay"), "").unwrap();
    let mut command = bench.command(&["ls"]);
    let said =
        outcome(command.env("FOREBAY_DIR", bench.work()).env("FOREBAY_SITE", "x").env("FOREBAY_MODE", "y"));
    said.wants(0).complains("an installation").complains("FOREBAY_MODE, FOREBAY_SITE");
    assert_eq!(said.stderr.matches("an installation").count(), 1, "{said}");
}

#[test]
fn what_only_looks_makes_no_directory() {
    let bench = Bench::new();
    let root = bench.file("not/there");
    let call = |words: &[&str]| outcome(bench.command(words).env("FOREBAY_DIR", &root));
    for words in [&["ls"][..], &["top", "--once"], &["metrics"], &["clean", "--dead"], &["doctor"]] {
        call(words).wants(0);
        assert!(!bench.file("not").exists(), "{words:?} made {}", root.display());
    }
    call(&["ls", "heat"]).wants(7);
    call(&["verify", "heat"]).wants(7);
    assert!(!bench.file("not").exists());
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let bench = Bench::new();
    for words in [&["man"][..], &["completions", "bash"], &["doctor"], &["ls", "--help"]] {
        let mut child = bench.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let bench = Bench::new();
    let Ok(full) = std::fs::File::create("/dev/full") else { return };
    let mut child = bench.command(&["man"]).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6), "{stderr}");
    assert!(stderr.contains("standard output"), "{stderr}");
}

#[test]
fn colour_only_where_it_is_wanted() {
    let bench = Bench::new();
    let plain = bench.call(&["doctor"]);
    assert!(!plain.text().contains('\x1b'), "{plain}");
    let coloured = bench.call(&["doctor", "--colour", "always"]);
    assert!(coloured.text().contains("\x1b["), "{coloured}");
    let document = bench.call(&["doctor", "--color=always", "--json"]);
    assert!(!document.text().contains('\x1b'), "{document}");
}

#[test]
fn init_never_overwrites() {
    let bench = Bench::new();
    bench.call(&["init"]).wants(0).says("workflow.toml");
    let before = std::fs::read(bench.file("workflow.toml")).unwrap();
    bench.call(&["init"]).wants(2).complains("exists");
    assert_eq!(std::fs::read(bench.file("workflow.toml")).unwrap(), before);
    let printed = bench.call(&["init", "-"]);
    assert_eq!(printed.wants(0).stdout, before);
}
