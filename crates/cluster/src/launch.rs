//! Runs commands that start agents on other nodes, and tells what they said.
//!
//! Guarantees: when [`run`] returns, the commands that it has started on this host have ended, or are killed. Not here:
//! what is started (`command.rs`), how a node is reached (`forebay_config::Template`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rustix::process::{kill_process_group, Pid, Signal};

/// Variables of Forebay that an agent keeps.
pub const KEPT: [&str; 2] = ["FOREBAY_DIR", "FOREBAY_RUN"];
const POLL: Duration = Duration::from_millis(20);
/// So many commands run at once.
const AT_ONCE_MAX: usize = 64;
/// After a failure the others have so long to end by themselves.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of what a program said that are shown.
const LINES_MAX: usize = 4;

/// The variables of Forebay that an agent keeps, as the command has them.
///
/// # Errors
/// Those of the directory of spaces.
pub fn kept_variables() -> Result<Vec<(&'static str, OsString)>> {
    let value = |name: &'static str| {
        let value = std::env::var_os(name)?;
        Some(match name {
            // The same place, from any directory.
            "FOREBAY_DIR" => forebay_space::root().map(|root| (name, root.into_os_string())),
            _ => Ok((name, value)),
        })
    };
    KEPT.into_iter().filter_map(value).collect()
}

/// Runs a command for each node. When one has failed, at the deadline, or when `is_over`, no more are started, and
/// those that run have a few seconds to end.
///
/// # Errors
/// The error of the first program that failed, with its node; [`Kind::TimedOut`] at the deadline, naming nodes, and
/// when `is_over`; [`Kind::Io`].
pub fn run(commands: Vec<(String, Command)>, deadline: Instant, is_over: impl Fn() -> bool) -> Result<()> {
    let mut waiting = commands.into_iter();
    let mut running: Vec<Program> = Vec::new();
    let mut failure: Option<(Error, Instant)> = None;
    let fail = |failure: &mut Option<(Error, Instant)>, error| {
        failure.get_or_insert_with(|| (error, Instant::now() + GIVE_UP_TIMEOUT));
    };
    loop {
        let free = if failure.is_none() { AT_ONCE_MAX - running.len() } else { 0 };
        for (node, command) in waiting.by_ref().take(free) {
            match Program::start(node, command) {
                Ok(program) => running.push(program),
                Err(e) => fail(&mut failure, e),
            }
        }
        running.retain_mut(|program| match program.ended() {
            Ok(has_ended) => !has_ended,
            Err(e) => {
                fail(&mut failure, e);
                false
            }
        });
        match failure {
            Some((error, until)) if running.is_empty() || Instant::now() >= until => return Err(error),
            None if running.is_empty() && waiting.len() == 0 => return Ok(()),
            _ => {}
        }
        if is_over() {
            fail(&mut failure, interrupted());
        }
        if Instant::now() >= deadline {
            let nodes: Vec<&str> = running.iter().map(|program| program.node.as_str()).collect();
            let error = Error::new(Kind::TimedOut, "the command of --launch did not end in time")
                .with("nodes", nodes.join(", "))
                .hint(
                    "it has to return when the program that it runs has ended, and cannot ask for a password",
                );
            fail(&mut failure, error);
        }
        std::thread::sleep(POLL);
    }
}

/// The error of a wait that a signal has ended.
pub fn interrupted() -> Error {
    Error::new(Kind::TimedOut, "interrupted before the agents of all nodes were connected")
}

/// A command that runs, and what it has started on this host; killed when it is dropped.
struct Program {
    node: String,
    child: Child,
    err: File,
}

impl Program {
    fn start(node: String, mut command: Command) -> Result<Program> {
        let err = tempfile::tempfile().map_err(|e| Error::io("cannot make a temporary file", e))?;
        let given = err.try_clone().map_err(|e| Error::io("cannot open a file again", e))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(given).process_group(0);
        let child = command.spawn().map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::new(Kind::Usage, format!("cannot run {program}: {e}"))
                .hint("check the command of --launch")
        })?;
        Ok(Program { node, child, err })
    }

    /// Whether it has ended well.
    fn ended(&mut self) -> Result<bool> {
        let status = self.child.try_wait().map_err(|e| Error::io("cannot wait for a command", e))?;
        match status {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => {
                let said = text_of(&mut self.err);
                Err(failed(
                    &format!("the command that starts the agent of node {}", self.node),
                    status,
                    &said,
                )
                .with("node", &self.node))
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Not one that has been waited for: its number may be another's.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map_or(String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
}

/// The error of a program that has failed: its own, if that is what it said last.
pub fn failed(what: &str, status: ExitStatus, said: &str) -> Error {
    Error::last_printed(said).unwrap_or_else(|| {
        let lines: Vec<&str> = said.lines().collect();
        let last: String =
            lines[lines.len().saturating_sub(LINES_MAX)..].iter().map(|line| format!("\n  {line}")).collect();
        Error::new(Kind::Internal, format!("{what} failed: {status}{last}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn shell(node: &str, text: &str) -> (String, Command) {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        (node.to_string(), command)
    }

    #[test]
    fn the_first_that_fails_ends_all_others() {
        let deadline = Instant::now() + Duration::from_secs(100);
        let folder = tempfile::tempdir().unwrap();
        let never = || false;
        let many = (0..AT_ONCE_MAX + 10).map(|i| i.to_string());
        let many = many.map(|i| shell(&i, &format!("echo > {}/of-{i}", folder.path().display())));
        run(many.collect(), deadline, never).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), AT_ONCE_MAX + 10);

        // The others have time to end.
        let ended = folder.path().join("ended");
        let text = format!("sleep 0.3; echo > {}", ended.display());
        let one = shell("b", "echo 'error: NameInUse: it is there' >&2; exit 3");
        let error = run(vec![shell("a", &text), one], deadline, never).unwrap_err();
        assert_eq!(error.kind(), Kind::NameInUse);
        assert!(error.to_string().contains("node=b"), "{error}");
        assert!(ended.exists());

        let error = run(vec![shell("c", "echo no such host >&2; exit 255")], deadline, never).unwrap_err();
        assert!(error.to_string().contains("255") && error.to_string().contains("no such host"), "{error}");
        let missing = ("d".to_string(), Command::new("/no/such/program"));
        assert_eq!(run(vec![missing], deadline, never).unwrap_err().kind(), Kind::Usage);
        // One that does not end is killed.
        let pid_file = folder.path().join("pid");
        // Also what it has started itself.
        let text = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
        let is_over = || pid_file.exists();
        let error = run(vec![shell("e", &text)], deadline, is_over).unwrap_err();
        assert_eq!(error.kind(), Kind::TimedOut);
        assert!(error.to_string().contains("interrupted"), "{error}");
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        // A kill takes effect a moment later; one that waits for its parent has ended.
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        while runs() {
            assert!(Instant::now() < deadline, "it still runs");
            std::thread::sleep(POLL);
        }
        let error = run(vec![shell("f", "sleep 100")], Instant::now(), never).unwrap_err();
        assert!(error.to_string().contains("nodes=f"), "{error}");
    }
}
