//! The run directory and `run.json`: what ran, on what, how it ended, what it spent its time on.
//!
//! Guarantees: `run.json` (schema `forebay.run/1`) is replaced whole, never half written; while the runner lives
//! it holds a kernel lock on the run directory, so that a dead run can be told from a running one.
//! Not here: how the numbers are drawn (`report`), how they are gathered (`trace`, `progress`).
//!
//! Layout: `workflow.toml` (copy), `run.json`, `trace/`, `logs/<component>.<rank>.{out,err}` (without a rank where a
//! launcher started them), `fill.jsonl`,
//! `report.html` once made. Times named `_unix_ns` are wall clock; others count from the same monotonic clock
//! as the traces.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_profile::date;
use forebay_space::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::characterise::PerStep;
use crate::plan::PlanFile;
use crate::trials::Tried;
use crate::workflow::Workflow;

/// Schema name of `run.json`.
pub const SCHEMA: &str = "forebay.run/1";

/// State of a channel that no writer has opened.
pub(crate) const NEVER_OPENED: &str = "never opened";

/// Held by the runner while it lives.
const LOCK_FILE: &str = "runner.lock";

/// A run directory is visible on other nodes within this time.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Ranks run, or the runner died before it could say otherwise.
    Running,
    /// All ranks ended with 0.
    Finished,
    /// A component failed; all others were ended.
    Failed,
    /// Ended by a signal to the runner.
    Interrupted,
}

/// What `run.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`SCHEMA`].
    pub schema: String,
    /// The workflow's name.
    pub name: String,
    /// How the run stands.
    pub state: State,
    /// Run directory (absolute).
    pub run_dir: PathBuf,
    /// The workflow file that was run (absolute).
    pub workflow_file: PathBuf,
    /// The machine; of a run on several nodes that of the leading runner.
    pub machine: Machine,
    /// The nodes of a run on several nodes.
    #[serde(default)]
    pub nodes: Vec<NodeRecord>,
    /// Version of Forebay.
    pub forebay_version: String,
    /// Wall clock at the start, ns since 1970.
    pub start_unix_ns: u64,
    /// Wall clock at the end; 0 while it runs.
    pub end_unix_ns: u64,
    /// Monotonic clock at the start, ns.
    pub start_ns: u64,
    /// Monotonic clock at the end; 0 while it runs.
    pub end_ns: u64,
    /// Seconds from the start of the first rank to the end of the last.
    pub wall_s: f64,
    /// Signal that ended the run, when one did.
    pub signal: Option<i32>,
    /// The first failure, when there was one.
    pub failure: Option<Failure>,
    /// Components in the order of the file.
    pub components: Vec<ComponentRecord>,
    /// Channels by name, then helper spaces that programs opened by themselves.
    pub channels: Vec<ChannelRecord>,
    /// The plan that it was run by, when there was one.
    #[serde(default)]
    pub plan: Option<PlanFile>,
    /// What was tried inside the run, and what was decided on it.
    #[serde(default)]
    pub tried: Option<Tried>,
    /// What is worth knowing but no failure: ranks that opened no channel, files that were not counted.
    pub notes: Vec<String>,
}

/// A node of a run on several nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// Its machine.
    pub machine: Machine,
    /// What was added to the times of its traces to get times of the leading runner, ns; by the wall clocks of both.
    pub clock_ns: i64,
}

/// The machine that ran it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Kernel name and release.
    pub kernel: String,
    /// Architecture.
    pub arch: String,
    /// Processor, as the kernel names it.
    pub processor: String,
    /// Cores this process may use (affinity, not the machine's count).
    pub cores: usize,
    /// Main memory, bytes.
    pub memory_bytes: u64,
}

/// The first failure of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Component that failed.
    pub component: String,
    /// Its rank; `None` for the helper that carries its files.
    pub rank: Option<u32>,
    /// Its node, in a run on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One sentence.
    pub message: String,
    /// Exit status, when it ended by itself.
    pub code: Option<i32>,
    /// Signal, when one ended it.
    pub signal: Option<i32>,
    /// Its standard error, relative to the run directory.
    pub log: PathBuf,
    /// The last lines of it.
    pub log_tail: String,
}

/// One component.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ComponentRecord {
    /// Name.
    pub name: String,
    /// Command as in the file.
    pub command: Vec<String>,
    /// Channels it reads.
    pub reads: Vec<String>,
    /// Channels it writes.
    pub writes: Vec<String>,
    /// Each rank's process, then the helpers that carry its files.
    pub ranks: Vec<RankRecord>,
    /// Rank seconds outside of Forebay, all ranks together.
    pub compute_s: f64,
    /// Rank seconds inside put, get, commit and end of step, without waiting.
    pub io_s: f64,
    /// Rank seconds blocked: for data, or for free space.
    pub wait_s: f64,
    /// Steps it ended on the channels it was declared for (largest of its ranks).
    pub steps: u64,
    /// Payload bytes put.
    pub bytes_put: u64,
    /// Payload bytes got or viewed.
    pub bytes_got: u64,
    /// One step of one of its ranks; absent where too few steps were ended to tell.
    #[serde(default)]
    pub per_step: Option<PerStep>,
}

/// One process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankRecord {
    /// Rank; `None` for a helper that carries files.
    pub rank: Option<u32>,
    /// Its node, in a run on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Process id.
    pub pid: u32,
    /// Start, monotonic ns.
    pub start_ns: u64,
    /// End, monotonic ns; 0 while it runs.
    pub end_ns: u64,
    /// Exit status.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// The runner ended it (after a failure elsewhere, a signal or a timeout).
    pub ended_by_runner: bool,
    /// Channels it was declared for and never opened.
    pub unopened: Vec<String>,
    /// Processors that it was pinned to, as the kernel said afterwards: `0-3,8`. Absent without a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Standard output, relative to the run directory.
    pub out: PathBuf,
    /// Standard error, relative to the run directory.
    pub err: PathBuf,
}

/// A channel or helper space in its last known state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChannelRecord {
    /// Name.
    pub name: String,
    /// Where it was.
    pub path: String,
    /// The nodes of its writers, in a run on several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Declared in the workflow (false: a helper that a program opened by itself).
    pub declared: bool,
    /// Stays after the run.
    pub keep: bool,
    /// Mechanism: `space` or `files`.
    pub kind: String,
    /// Tier of its pools; empty when it never came to be.
    pub tier: String,
    /// When stores were made persistent.
    pub horizon: String,
    /// What an acknowledged write survived.
    pub durability: String,
    /// How long versions stay.
    pub retention: String,
    /// Hard limit, bytes.
    pub quota_bytes: u64,
    /// Most bytes seen in use, sampled.
    pub used_bytes_max: u64,
    /// Versions that were complete.
    pub versions_complete: u64,
    /// Last seen state: `open`, `finished`, `producer died`, `dead`, or `never opened`.
    pub state: String,
    /// Writing component.
    pub writer: String,
    /// Reading components.
    pub readers: Vec<String>,
    /// Who was to be at work when, as the space said.
    #[serde(rename = "pace", default)]
    pub execution_mode: String,
    /// How its pages came to their memory node, as its writers found out from the kernel: `bound`, `first touch`,
    /// `unverified`. Empty for a channel on no node of its own.
    #[serde(default)]
    pub placement: String,
}

/// Longest record that is read.
const BYTES_MAX: u64 = 256 << 20;

/// What is read of a record before its schema is known.
#[derive(Deserialize)]
struct Versioned {
    schema: Option<String>,
}

impl RunRecord {
    /// Reads `run.json` of a run directory.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`] when this is no run directory, [`Kind::UnknownFormat`] for another schema,
    /// [`Kind::Damaged`] when the file makes no sense.
    pub fn read(run_dir: &Path) -> Result<RunRecord> {
        let file = run_dir.join("run.json");
        let text = forebay_tier::plain::read_regular(&file, BYTES_MAX).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(Kind::UnknownComponent, format!("no run directory: {}", run_dir.display()))
                    .hint("give a directory below runs/, the one that `forebay run` named")
            }
            _ => Error::io(format!("reading {}", file.display()), e),
        })?;
        let Versioned { schema } = serde_json::from_slice(&text)
            .map_err(|e| Error::new(Kind::Damaged, format!("{} is not a run record: {e}", file.display())))?;
        if schema.as_deref() != Some(SCHEMA) {
            return Err(Error::new(Kind::UnknownFormat, format!("{} has another schema", file.display()))
                .with("schema", schema.as_deref().unwrap_or("none"))
                .hint(format!("this build reads {SCHEMA}")));
        }
        serde_json::from_slice(&text)
            .map_err(|e| Error::new(Kind::Damaged, format!("{} is inconsistent: {e}", file.display())))
    }

    /// Replaces `run.json` whole.
    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(Kind::Internal, format!("writing the run record: {e}")))?;
        replace_file(&self.run_dir.join("run.json"), (text + "\n").as_bytes())
    }

    /// Exit status of the command that made this run: 0, 4 when a component failed, 128+n after a signal.
    pub fn exit_code(&self) -> i32 {
        match (self.state, self.signal) {
            (State::Interrupted, Some(signal)) => 128 + signal,
            (State::Failed, _) => Kind::ComponentFailed.exit_code(),
            _ => 0,
        }
    }
}

/// Writes a temporary file beside, then renames it: a reader sees the old file or the new one. After an error the old
/// file is untouched and the temporary one is gone.
///
/// # Errors
/// Those of the file system.
pub fn replace_file(file: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |e| Error::io(format!("writing {}", file.display()), e);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = std::fs::Permissions::from_mode(0o666);
    let mut beside = tempfile::Builder::new().permissions(readable).tempfile_in(folder).map_err(failed)?;
    beside.write_all(bytes).map_err(failed)?;
    beside.persist(file).map_err(|e| failed(e.error)).map(drop)
}

/// A run directory of a living runner: the lock goes with this value.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// None: another runner of this run has it.
    _lock: Option<File>,
    /// Number of nodes of the run, where it has several.
    nodes: Option<usize>,
    plan_file: PathBuf,
}

impl RunDir {
    /// Makes the run directory: `out`, or `runs/<name>-<UTC time>` beside the workflow file, with `-job<id>` behind it
    /// in a batch job. Spaces note this directory, and so the job.
    ///
    /// # Errors
    /// [`Kind::Usage`] when `out` exists and is not empty; all of [`check_path`] and [`make_dir`].
    pub fn create(workflow: &Workflow, out: Option<&Path>) -> Result<RunDir> {
        check_path(&workflow.dir)?;
        let path = match out {
            Some(out) => {
                let path = std::path::absolute(out)
                    .map_err(|e| Error::io("cannot determine the current directory", e))?;
                check_path(&path.canonicalize().unwrap_or_else(|_| path.clone()))?;
                if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
                    return Err(Error::new(Kind::Usage, format!("{} is not empty", path.display()))
                        .hint("a run needs a new directory, so that no earlier run is overwritten"));
                }
                make_dir(&path)?;
                path
            }
            None => fresh_dir(&workflow.dir.join("runs"), &workflow.name, job_id().as_deref())?,
        };
        let path = path.canonicalize().map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        make_dir(&path.join("trace"))?;
        make_dir(&path.join("logs"))?;
        let lock_file = path.join(LOCK_FILE);
        let lock =
            File::create(&lock_file).map_err(|e| Error::io(format!("writing {}", lock_file.display()), e))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| Error::io(format!("locking {}", lock_file.display()), e.into()))?;
        let copy = path.join("workflow.toml");
        std::fs::write(&copy, &workflow.text)
            .map_err(|e| Error::io(format!("writing {}", copy.display()), e))?;
        let plan_file = path.join("plan.json");
        Ok(RunDir { path, _lock: Some(lock), nodes: None, plan_file })
    }

    /// The run directory of a run on several nodes, which its leading runner has made, for the runner of `node`.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`] where this node does not see it.
    pub(crate) fn join(path: &Path, node: &str, nodes: usize) -> Result<RunDir> {
        // Made a moment ago on another node: a network file system may need a while to show it.
        let deadline = Instant::now() + SEEN_WITHIN;
        while !path.join("run.json").is_file() {
            if Instant::now() >= deadline {
                return Err(Error::new(
                    Kind::PeerMissing,
                    format!("this node does not see the run directory {}", path.display()),
                )
                .hint("use --out with a directory on a file system that all nodes share"));
            }
            // A listing makes a network file system look again.
            let _ = path.read_dir().map(Iterator::count);
            std::thread::sleep(Duration::from_millis(50));
        }
        let plan_file = path.join(format!("plan.{node}.json"));
        Ok(RunDir { path: path.to_path_buf(), _lock: None, nodes: Some(nodes), plan_file })
    }

    /// Number of nodes of a run on several nodes.
    pub(crate) fn nodes(&self) -> Option<usize> {
        self.nodes
    }

    /// Where the plan of this runner is.
    pub(crate) fn plan_file(&self) -> &Path {
        &self.plan_file
    }

    /// The directory (absolute, no links).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the environment and the spaces' notes carry as the run's name.
    pub fn id(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

/// Whether a runner lives that owns this run directory.
pub fn is_running(run_dir: &Path) -> bool {
    let Ok(file) = File::open(run_dir.join(LOCK_FILE)) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
}

/// The run directory below `dir/runs` (or `dir` itself, when it is one) that was started last.
pub fn latest_run(dir: &Path) -> Option<PathBuf> {
    if dir.join("run.json").is_file() {
        return Some(dir.to_path_buf());
    }
    let runs = if dir.join("runs").is_dir() { dir.join("runs") } else { dir.to_path_buf() };
    let started = |path: &Path| RunRecord::read(path).ok().map(|record| record.start_unix_ns);
    let entries = runs.read_dir().ok()?.flatten().map(|entry| entry.path());
    entries.filter_map(|path| started(&path).map(|at| (at, path))).max().map(|(_, path)| path)
}

/// A path that the record of a run can hold.
///
/// # Errors
/// [`Kind::Usage`] where it is not UTF-8.
pub fn check_path(path: &Path) -> Result<()> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(Error::new(Kind::Usage, format!("{} is not UTF-8", path.display()))
            .hint("the record of a run is JSON: name another folder")),
    }
}

/// Makes a folder that the user has named, with those above it.
///
/// # Errors
/// [`Kind::Usage`] where a file is in its way, `PermissionDenied`, others of the file system.
pub fn make_dir(path: &Path) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, InvalidFilename, NotADirectory};
    std::fs::create_dir_all(path).map_err(|e| match e.kind() {
        AlreadyExists | NotADirectory => Error::new(
            Kind::Usage,
            format!("cannot create the directory {}: part of the path is a file", path.display()),
        )
        .hint("choose another directory, or move the file"),
        InvalidFilename => {
            Error::new(Kind::Usage, format!("cannot create the directory {}: {e}", path.display()))
        }
        _ => Error::io(format!("cannot create the directory {}", path.display()), e),
    })
}

/// The number of the batch job that this process is in, as far as it can stand in a file's name.
fn job_id() -> Option<String> {
    let found = forebay_config::batch_job(&forebay_config::environment::process)?;
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    Some(found.chars().filter(plain).collect()).filter(|id: &String| !id.is_empty())
}

/// Two runs within one second get different directories: creating is what decides.
fn fresh_dir(runs: &Path, name: &str, job: Option<&str>) -> Result<PathBuf> {
    make_dir(runs)?;
    let job = job.map_or(String::new(), |id| format!("-job{id}"));
    let stamp = timestamp(unix_ns() / 1_000_000_000) + &job;
    for attempt in 1..1000 {
        let tail = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let path = runs.join(format!("{name}-{stamp}{tail}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(Error::io(format!("cannot create {}", path.display()), e)),
        }
    }
    Err(Error::new(Kind::TooMany, format!("no free run directory in {}", runs.display())))
}

/// `20261121-113000` in UTC.
pub fn timestamp(unix_s: u64) -> String {
    date::formatted(unix_s, "%Y%m%d-%H%M%S")
}

/// Wall clock, ns since 1970.
pub(crate) fn unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_nanos() as u64)
}

/// The clock of the traces.
pub(crate) fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Machine {
    /// This machine, as far as it tells.
    pub fn here() -> Machine {
        let uname = rustix::system::uname();
        let text = |c: &std::ffi::CStr| c.to_string_lossy().into_owned();
        let line = |file: &str, key: &str| -> Option<String> {
            let content = std::fs::read_to_string(file).ok()?;
            let found = content.lines().find(|l| l.starts_with(key))?;
            found.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let memory = line("/proc/meminfo", "MemTotal").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
        Machine {
            host: text(uname.nodename()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            arch: text(uname.machine()),
            processor: line("/proc/cpuinfo", "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.unwrap_or(0) * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_too_long_or_no_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.json");
        std::fs::File::create(&file).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let error = RunRecord::read(dir.path()).unwrap_err();
        assert!(error.kind() == Kind::Io && error.to_string().contains("too large"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = RunRecord::read(dir.path()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.json");
        replace_file(&file, b"old").unwrap();
        replace_file(&file, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(replace_file(&folder, b"new").unwrap_err().kind(), Kind::Io);
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    }
}
