//! Parts of a benchmark in processes of their own, within a memory cgroup: so the page cache that a mapped file uses
//! has a limit, as memory has on a smaller node.
//!
//! A part is a value that the child finds as a hidden argument; what it found out it prints. Guarantees: a group is
//! removed with its handle; a child that is killed for memory is an error that says so.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use forebay_flow::Signals;
use forebay_tier::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::peak;

/// Where groups are, of version 1 and 2, and the file that takes the limit.
const PLACES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// Least memory beside the budget: the program itself, its stacks and tables.
const BESIDE_BYTES_MIN: u64 = 64 << 20;

/// What a group for this budget may use: a fifth more.
pub(super) fn limit_for(budget: u64) -> u64 {
    budget + (budget / 5).max(BESIDE_BYTES_MIN)
}

/// A memory cgroup for children; removed when dropped.
pub(super) struct Group {
    dir: PathBuf,
}

impl Group {
    /// Makes one.
    ///
    /// # Errors
    /// In words, where it is not available: mostly it needs root.
    pub(super) fn make(limit_bytes: u64) -> std::result::Result<Group, String> {
        let known = PLACES.iter().find(|(place, _)| {
            let controls = Path::new(place).join("cgroup.controllers");
            let with_memory = std::fs::read_to_string(controls).map(|words| words.contains("memory"));
            with_memory.unwrap_or(place.ends_with("/memory")) && Path::new(place).is_dir()
        });
        let (place, limit) = known.ok_or("there is no memory cgroup")?;
        let dir = Path::new(place).join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| format!("no cgroup can be made in {place}: {e}"))?;
        let group = Group { dir };
        std::fs::write(group.dir.join(limit), limit_bytes.to_string())
            .map_err(|e| format!("the cgroup takes no limit: {e}"))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended, but the kernel may still be about to notice.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.dir) {
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// What a child is told.
#[derive(Serialize, Deserialize)]
struct Told<P> {
    group: Option<PathBuf>,
    part: P,
}

/// What a child found out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found<R> {
    pub(super) result: R,
    /// Most memory that it had at once, pages of mapped files among it.
    pub(super) peak_rss_bytes: u64,
}

/// How often is looked whether a child has ended.
pub(super) const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

/// Does work that leaves folders and groups if it is ended: a signal ends its children, then it, then the program.
pub(super) fn until_signal(work: impl FnOnce(&Signals) -> Result<i32>) -> Result<i32> {
    let signals = Signals::catch()?;
    let outcome = work(&signals);
    signals.caught().map_or(outcome, |signal| Ok(128 + signal))
}

/// This program once more, with these words and `told` behind `--part`.
pub(super) fn command(words: &[&str], told: &str) -> Result<Command> {
    let own = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    let mut command = Command::new(own);
    command.args(words).arg("--part").arg(told);
    Ok(command)
}

/// Runs a part in a child, in the group if there is one. `words` lead to the verb, whose hidden argument `--part` hands
/// the last word to [`serve`].
pub(super) fn run<P: Serialize, R: DeserializeOwned>(
    words: &[&str],
    part: &P,
    group: Option<&Group>,
    signals: &Signals,
) -> Result<Found<R>> {
    let mut found = run_together(words, std::slice::from_ref(part), group, signals)?;
    Ok(found.remove(0))
}

/// As [`run`], each part in a child of its own at the same time; where one fails the others are ended.
pub(super) fn run_together<P: Serialize, R: DeserializeOwned>(
    words: &[&str],
    parts: &[P],
    group: Option<&Group>,
    signals: &Signals,
) -> Result<Vec<Found<R>>> {
    let failed = |e| Error::io("cannot run a part of the benchmark", e);
    let mut children = Children(Vec::new());
    for part in parts {
        let told = Told { group: group.map(|group| group.dir.clone()), part };
        let told = serde_json::to_string(&told).map_err(internal)?;
        let mut command = command(words, &told)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        children.0.push(command.spawn().map_err(failed)?);
    }
    loop {
        let mut running = false;
        let mut broken = signals.caught().is_some();
        for child in &mut children.0 {
            match child.try_wait().map_err(failed)? {
                None => running = true,
                Some(status) => broken |= !status.success(),
            }
        }
        if !running {
            break;
        }
        if broken {
            children.end();
        }
        signals.pause(LOOK);
    }
    // What was ended for another one's sake failed, too: the first reason is that of who failed by itself.
    let outputs =
        std::mem::take(&mut children.0).into_iter().map(|child| child.wait_with_output().map_err(failed));
    let outputs = outputs.collect::<Result<Vec<Output>>>()?;
    let by_itself = |output: &&Output| !output.status.success() && !is_killed(output);
    if let Some(output) = outputs.iter().find(by_itself).or_else(|| outputs.iter().find(|o| is_killed(o))) {
        return Err(failure(output));
    }
    outputs.iter().map(|output| serde_json::from_slice(&output.stdout).map_err(internal)).collect()
}

/// Children that do not outlive their measurement. Their files have no names, or lie in a folder that goes.
struct Children(Vec<Child>);

impl Children {
    fn end(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn is_killed(output: &Output) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9)
}

/// Why a child failed.
fn failure(output: &Output) -> Error {
    if is_killed(output) {
        let killed = "a part of the benchmark was killed, as it is for want of memory";
        return Error::new(Kind::TierFull, killed).hint("a larger --limit");
    }
    let kind = match output.status.code() {
        Some(2) => Kind::Usage,
        Some(6) => Kind::TierFull,
        Some(8) => Kind::Damaged,
        _ => Kind::Io,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    Error::new(kind, format!("a part of the benchmark failed: {}", said.trim()))
}

/// In the child: joins the group, does the part, prints what came of it.
pub(super) fn serve<P: DeserializeOwned, R: Serialize>(
    told: &str,
    work: impl FnOnce(P) -> Result<R>,
) -> Result<i32> {
    let told: Told<P> = serde_json::from_str(told).map_err(internal)?;
    if let Some(group) = told.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
            .map_err(|e| Error::io(format!("cannot join {}", group.display()), e))?;
    }
    let result = work(told.part)?;
    let found = Found { result, peak_rss_bytes: peak::most().unwrap_or(0) };
    println!("{}", serde_json::to_string(&found).map_err(internal)?);
    Ok(0)
}

pub(super) fn internal(e: serde_json::Error) -> Error {
    Error::new(Kind::Internal, "a part of a benchmark and its parent do not understand each other")
        .caused_by(e)
}
