//! `forebay bench` and `forebay app`: where `forebay-lab` is looked for, and what it gets.
//!
//! In place of `forebay-lab` stands a script; the command is linked into folders that are the test's own, because the
//! real `forebay-lab` may lie beside it where it was built.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::bench::{clean_environment, outcome, Outcome};

/// A folder on the file system of the command.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// The command in a folder.
fn command_in(folder: &Path) -> PathBuf {
    let file = folder.join("forebay");
    std::fs::hard_link(crate::forebay(), &file).expect("a link to the command");
    file
}

/// A `forebay-lab` in a folder.
fn lab_in(folder: &Path, script: &str) {
    let file = folder.join("forebay-lab");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a script that runs");
}

/// A call of this command with `path` before the folders of the system.
fn call(program: &Path, path: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    clean_environment(&mut command);
    let mut all = OsString::from(path);
    all.push(":/usr/bin:/bin");
    command.args(words).env("PATH", all);
    command
}

fn said(command: &mut Command) -> Outcome {
    let outcome = outcome(command);
    outcome.wants(0);
    outcome
}

#[test]
fn the_lab_is_found_beside_the_command_then_on_path() {
    let (own, path) = (folder(), folder());
    let forebay = command_in(own.path());
    lab_in(path.path(), "echo on path: $*");
    said(&mut call(&forebay, path.path(), &["bench", "x"])).says("on path: bench x");
    lab_in(own.path(), "echo beside: $*");
    said(&mut call(&forebay, path.path(), &["app", "y"])).says("beside: app y");
    // What is no program is passed over.
    std::fs::set_permissions(own.path().join("forebay-lab"), std::fs::Permissions::from_mode(0o644)).unwrap();
    said(&mut call(&forebay, path.path(), &["bench"])).says("on path: bench");
}

#[test]
fn the_lab_is_found_beside_the_script_that_an_interpreter_runs() {
    let (own, scripts, nothing) = (folder(), folder(), folder());
    let forebay = command_in(own.path());
    lab_in(scripts.path(), "echo beside the script");
    let mut command = call(&forebay, nothing.path(), &["bench"]);
    said(command.arg0(scripts.path().join("forebay"))).says("beside the script");
}

#[test]
fn without_the_lab_the_error_says_how_to_get_it() {
    let (own, nothing) = (folder(), folder());
    let forebay = command_in(own.path());
    for words in
        [&["bench"][..], &["app", "gray-scott"], &["bench", "--help"], &["--colour", "never", "bench"]]
    {
        let missing = outcome(&mut call(&forebay, nothing.path(), words));
        missing.wants(3).complains("forebay-lab").complains("make install LAB=1").complains("on PATH");
        assert!(missing.stdout.is_empty(), "{missing}");
    }
    let document = outcome(&mut call(&forebay, nothing.path(), &["bench", "stream", "--json"])).document();
    assert_eq!((&document["schema"], &document["exit"]), (&"forebay.error/1".into(), &3.into()));
}

#[test]
fn all_words_pass_unchanged() {
    let own = folder();
    let forebay = command_in(own.path());
    lab_in(own.path(), "printf '%s\\n' \"$@\"");
    for words in [
        &["--json", "bench", "stream", "--json", "--elements", "3"][..],
        &["--colour=never", "app", "x", "--", "--json", "bench", ""],
        &["--color", "always", "bench", "-h", "a b", "*"],
    ] {
        let lines: String = words.iter().map(|word| format!("{word}\n")).collect();
        assert_eq!(said(&mut call(&forebay, own.path(), words)).text(), lines);
    }
    let mut command = call(&forebay, own.path(), &["bench"]);
    assert_eq!(said(command.arg(OsStr::from_bytes(b"\xff\xfe"))).stdout, b"bench\n\xff\xfe\n");
}

#[test]
fn status_signal_and_process_are_those_of_the_lab() {
    let own = folder();
    let forebay = command_in(own.path());
    lab_in(own.path(), "[ \"$2\" = signal ] && kill -TERM $$; echo $$; exit 7");
    outcome(&mut call(&forebay, own.path(), &["bench"])).wants(7);
    let status = call(&forebay, own.path(), &["bench", "signal"]).status().expect("the command starts");
    assert_eq!(status.signal(), Some(15));
    let mut command = call(&forebay, own.path(), &["bench"]);
    let child = command.stdout(std::process::Stdio::piped()).spawn().expect("the command starts");
    let id = child.id();
    let output = child.wait_with_output().expect("our own child");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), id.to_string());
}
