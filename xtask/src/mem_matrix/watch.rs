//! Running one program to its end or its limit, with a look at its memory every few milliseconds, from outside.
//!
//! Guarantees: what the program started is gone when this returns: what is left of it is told, and killed by number.
//! What counts as its memory is decided by the example `memory_of` of the tier, which looks.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::packages::example;

/// Time between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long processes that a program leaves behind may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// The variable by which processes of a run are known, the process that their parent is.
const TAG: &str = "MEM_MATRIX_RUN";

/// Memory at its peak, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Of files on the tier, in memory.
    pub window: u64,
    /// Anonymous and shared memory of all processes.
    pub outside: u64,
}

/// What came of a program.
#[derive(Debug)]
pub struct Ended {
    /// None: it was killed at its limit.
    pub status: Option<ExitStatus>,
    pub output: Vec<u8>,
    pub errors: Vec<u8>,
    pub peak: Memory,
    /// Processes that were left.
    pub left: Vec<String>,
    pub seconds: f64,
}

/// Where a run has its files.
pub struct Places<'a> {
    pub tier: &'a Path,
    /// A folder for what the program prints.
    pub printed: &'a Path,
}

/// A program that runs.
pub struct Running {
    child: Child,
    tag: String,
    begin: Instant,
    printed: PathBuf,
}

impl Running {
    /// Starts it, in a group of its own.
    pub fn start(command: &mut Command, places: &Places, number: u64) -> Result<Running, String> {
        let tag = format!("{TAG}={}-{number}", std::process::id());
        let file = |name: &str| {
            let path = places.printed.join(name);
            File::create(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        let (name, value) = tag.split_once('=').unwrap_or_default();
        command.env(name, value).stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
        let child = command.process_group(0).spawn();
        let child =
            child.map_err(|e| format!("cannot start {}: {e}", command.get_program().to_string_lossy()))?;
        Ok(Running { child, tag, begin: Instant::now(), printed: places.printed.to_owned() })
    }

    /// Waits until it ends or the limit is there.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        while self.begin.elapsed() < limit {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// The command's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Processes of this run, the command apart.
    pub fn others(&self) -> Vec<u32> {
        tagged(&self.tag).into_iter().filter(|pid| *pid != self.child.id()).collect()
    }

    /// Waits for its processes to go; those that do not are told, and killed.
    pub fn end(mut self, status: Option<ExitStatus>, peak: Memory) -> Ended {
        let seconds = self.begin.elapsed().as_secs_f64();
        if status.is_none() {
            kill(&tagged(&self.tag));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let begin = Instant::now();
        let mut left = tagged(&self.tag);
        while !left.is_empty() && begin.elapsed() < GRACE {
            std::thread::sleep(LOOK);
            left = tagged(&self.tag);
        }
        let told = left.iter().map(|pid| format!("{pid} ({})", name_of(*pid))).collect();
        kill(&left);
        let read = |name: &str| std::fs::read(self.printed.join(name)).unwrap_or_default();
        Ended { status, output: read("stdout"), errors: read("stderr"), peak, left: told, seconds }
    }
}

/// Starts a program, looks at it, and waits for the end of all its processes.
pub fn run(command: &mut Command, places: &Places, limit: Duration, number: u64) -> Result<Ended, String> {
    let memory_of = example(&crate::tree::root(), "memory_of")?;
    let mut running = Running::start(command, places, number)?;
    let mut looking = Command::new(&memory_of);
    looking.arg(running.id().to_string()).arg(places.tier).stdin(Stdio::piped()).stdout(Stdio::piped());
    let looking = looking.spawn();
    let status = running.wait(limit);
    let peak = looking.map_err(|e| e.to_string()).and_then(|looking| {
        // Its standard input ends here.
        let output = looking.wait_with_output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([window, outside]) => Ok(Memory { window: *window, outside: *outside }),
            _ => Err(format!("it printed: {text}")),
        }
    });
    let ended = running.end(status, *peak.as_ref().unwrap_or(&Memory::default()));
    peak.map_err(|e| format!("{}: {e}", memory_of.display()))?;
    Ok(ended)
}

/// Kills processes by their numbers.
pub fn kill(pids: &[u32]) {
    if !pids.is_empty() {
        let words = pids.iter().map(u32::to_string);
        let _ = Command::new("kill").arg("-KILL").args(words).stderr(Stdio::null()).status();
    }
}

/// Kills a process and all of its group.
pub fn kill_group(leader: u32) {
    let group = format!("-{leader}");
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
}

/// How a program ended, in words.
pub fn how(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        None => "not done at its limit".to_string(),
        Some((Some(code), _)) => format!("status {code}"),
        Some((_, signal)) => format!("signal {}", signal.unwrap_or(0)),
    }
}

/// Processes that have a variable in their environment, as it was when they began; those that ended are not counted.
fn tagged(tag: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == tag.as_bytes())
    };
    pids.filter(has).collect()
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("mem-matrix-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn shell(script: &str, folder: &Folder, limit_ms: u64) -> Ended {
        let places = Places { tier: &folder.0, printed: &folder.0 };
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), &places, Duration::from_millis(limit_ms), limit_ms).unwrap()
    }

    #[test]
    fn output_status_and_a_limit_are_seen() {
        let folder = Folder::new("ends");
        let ended = shell("echo a; echo b >&2; exit 3", &folder, 60_000);
        assert_eq!((&ended.output[..], &ended.errors[..]), (&b"a\n"[..], &b"b\n"[..]));
        assert_eq!((how(ended.status), ended.left), ("status 3".to_string(), vec![]));
        let ended = shell("sleep 600 & sleep 600", &folder, 100);
        assert_eq!((ended.status, ended.left), (None, vec![]), "all of it is killed at the limit");
    }

    #[test]
    fn memory_is_seen_where_it_lies() {
        let folder = Folder::new("memory");
        let path = folder.0.join("file");
        let script = format!("import time; f = open('{}', 'w+b')\nb = bytearray(40 << 20)\n", path.display())
            + "for i in range(0, 40 << 20, 4096): b[i] = 1\nf.write(bytes(8 << 20)); f.flush(); time.sleep(0.5)";
        let ended = shell(&format!("python3 -c \"{script}\" & wait"), &folder, 60_000);
        assert_eq!(how(ended.status), "status 0", "{}", String::from_utf8_lossy(&ended.errors));
        assert!(ended.peak.window >= 8 << 20 && ended.peak.window < 16 << 20, "{:?}", ended.peak);
        assert!(ended.peak.outside >= 40 << 20, "{:?}", ended.peak);
    }
}
