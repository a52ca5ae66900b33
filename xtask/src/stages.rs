//! Running one command of a stage: its output is shown as it comes and kept, and it has a time limit. Or several, one
//! after the other, beside the stages.

use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What came of a command.
#[derive(Debug)]
pub struct Ran {
    /// Everything it printed on stdout.
    pub output: String,
    /// `None` when it ended with status 0, else why not.
    pub failure: Option<String>,
}

/// Prints the title of a stage, and how long the program has run.
pub fn title(text: &str) {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = BEGIN.elapsed().as_secs();
    println!("\n== {text} [{}:{:02}]", seconds / 60, seconds % 60);
}

/// Runs a command, shows and keeps its stdout; kills it and its children after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Ran {
    run_with(command, limit, true)
}

/// Runs commands one after the other, at the lowest priority, beside what follows: tests mostly wait. What they print,
/// on stderr, too, is kept alone.
pub fn run_beside(commands: Vec<Command>, limit: Duration) -> JoinHandle<Vec<Ran>> {
    std::thread::spawn(move || {
        commands.iter().map(|one| run_with(&mut at_low_priority(one), limit, false)).collect()
    })
}

/// The same command at the lowest priority, with one output.
fn at_low_priority(command: &Command) -> Command {
    let mut low = Command::new("sh");
    low.args(["-c", "exec nice -n 19 \"$0\" \"$@\" 2>&1"]).arg(command.get_program());
    low.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => low.env(name, value),
            None => low.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        low.current_dir(folder);
    }
    low
}

fn run_with(command: &mut Command, limit: Duration, is_shown: bool) -> Ran {
    let begin = Instant::now();
    // A group of its own can be killed as one; at a terminal it would miss Ctrl-C.
    let group = !std::io::stdin().is_terminal();
    if group {
        command.process_group(0);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            let what = format!("cannot start {}: {e}", command.get_program().to_string_lossy());
            return Ran { output: String::new(), failure: Some(what) };
        }
    };
    let (output, in_time) = watch(&mut child, limit, group, is_shown);
    let status = child.wait();
    let failure = match status {
        _ if !in_time => Some(format!("not done after {} s, killed", limit.as_secs())),
        Ok(status) if status.success() => None,
        Ok(status) => Some(status.to_string()),
        Err(e) => Some(e.to_string()),
    };
    if is_shown {
        println!("   {:.1} s", begin.elapsed().as_secs_f64());
    }
    Ran { output, failure }
}

/// Reads until the output ends; false when the limit passed first.
fn watch(child: &mut Child, limit: Duration, group: bool, is_shown: bool) -> (String, bool) {
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let id = child.id();
    let (done, wait) = channel::<()>();
    let killer = std::thread::spawn(move || match wait.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => {
            let target = if group { format!("-{id}") } else { id.to_string() };
            let _ = Command::new("kill").args(["-KILL", "--", &target]).status();
            false
        }
        _ => true,
    });
    let mut output = String::new();
    let mut line = Vec::new();
    while matches!(lines.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        let text = String::from_utf8_lossy(&line);
        if is_shown {
            print!("{text}");
        }
        output.push_str(&text);
        line.clear();
    }
    drop(done);
    (output, killer.join().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ran {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn output_and_status_are_kept() {
        let ran = shell("echo a; echo b; exit 3", Duration::from_secs(60));
        assert_eq!(ran.output, "a\nb\n");
        assert!(ran.failure.is_some_and(|why| why.contains('3')));
        assert_eq!(shell("true", Duration::from_secs(60)).failure, None);
    }

    #[test]
    fn commands_beside_run_in_order_with_all_they_print_and_what_they_were_given() {
        let command = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("OF_THIS_TEST", "x y").current_dir("/");
            command
        };
        let all = ["echo a; echo \"$OF_THIS_TEST\" >&2; pwd; nice; exit 3", "echo b", "exec sleep 1000"]
            .map(command);
        let ran = run_beside(all.into(), Duration::from_secs(2)).join().unwrap();
        assert_eq!(ran[0].output, "a\nx y\n/\n19\n");
        assert!(ran[0].failure.as_ref().is_some_and(|why| why.contains('3')));
        assert_eq!((ran[1].output.as_str(), &ran[1].failure), ("b\n", &None));
        assert!(ran[2].failure.as_ref().is_some_and(|why| why.contains("killed")));
    }

    #[test]
    fn a_command_that_hangs_is_killed() {
        let ran = shell("echo a; exec sleep 1000", Duration::from_millis(300));
        assert!(ran.failure.is_some_and(|why| why.contains("killed")));
    }

    #[test]
    fn a_missing_program_is_a_failure() {
        let ran = run(&mut Command::new("forebay-no-such-program"), Duration::from_secs(1));
        assert!(ran.failure.is_some_and(|why| why.contains("cannot start")));
    }
}
