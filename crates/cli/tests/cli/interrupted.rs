//! Verbs that a signal ends in the middle: how they end, and that nothing is left behind.
//!
//! The middle is when the process has its file or memory open: a file without a name, or what its jobs made. No clock
//! is looked at.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{kill_process, Pid, Signal};

use crate::bench::{clean_environment, Bench};

/// Names in main memory's directory by which Forebay could be recognised, without the roots of tests.
fn in_memory(pid: u32) -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let own = |name: &String| {
        name.contains("nameless") || name.contains("probe") || name.contains(&pid.to_string())
    };
    names.filter(own).collect()
}

/// Waits until a process has a file open that has no name (its memory, or the file it measures with).
#[track_caller]
fn wait_for_the_middle(child: &mut Child, words: &[&str]) {
    let proc = Path::new("/proc").join(child.id().to_string());
    let is_nameless = |target: &str| target.ends_with("(deleted)") && !target.contains("/dev/zero");
    loop {
        let maps = std::fs::read_to_string(proc.join("maps")).unwrap_or_default();
        let files = std::fs::read_dir(proc.join("fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        if maps.lines().any(is_nameless) || targets.any(|target| is_nameless(&target.to_string_lossy())) {
            return;
        }
        assert!(child.try_wait().expect("our own child").is_none(), "{words:?} ended early");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts")
}

#[track_caller]
fn nothing_is_left(bench: &Bench, pid: u32, words: &[&str]) {
    let left: Vec<_> = std::fs::read_dir(bench.work()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{words:?} left {left:?}");
    assert_eq!(in_memory(pid), BTreeSet::new(), "{words:?}");
    assert_eq!(std::fs::read_dir(bench.root()).unwrap().count(), 0, "{words:?}");
}

/// Each of the verbs, which would go on for minutes, ends as the signal says.
pub fn leave_nothing_behind(verbs: &[&[&str]]) {
    for signal in [Signal::INT, Signal::TERM] {
        for words in verbs {
            let bench = Bench::new();
            let mut child = quiet(&mut bench.command(words));
            wait_for_the_middle(&mut child, words);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{words:?}: {status:?}");
            nothing_is_left(&bench, child.id(), words);
        }
    }
}

/// The command as `nohup` and background jobs of a script start it: SIGHUP and SIGINT are ignored.
fn nohup(bench: &Bench, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    clean_environment(&mut command);
    command.args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\""]).arg(crate::forebay()).args(words);
    command.env("FOREBAY_DIR", bench.root()).env("XDG_DATA_HOME", bench.file("data"));
    command.current_dir(bench.work()).stdin(Stdio::null());
    command
}

/// The same where SIGINT and SIGHUP are ignored: SIGTERM ends them.
pub fn only_sigterm_ends_under_nohup(verbs: &[&[&str]]) {
    for words in verbs {
        let bench = Bench::new();
        let mut child = quiet(&mut nohup(&bench, words));
        wait_for_the_middle(&mut child, words);
        // Were one of the first two not ignored, it would be the one that ended the process.
        for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
            kill_process(Pid::from_child(&child), signal).unwrap();
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{words:?}: {status:?}");
        nothing_is_left(&bench, child.id(), words);
    }
}
