//! The agent of this node, as its programs see it: a folder below the root of short names.
//!
//! Guarantees: whether an agent lives is said by a kernel lock, which ends with its process. Not here: the agent
//! (`forebay-cluster`); what readers leave in the folder (`demand.rs`); what an agent that was killed has left
//! (`upkeep/agent.rs`).

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_config::environment;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::place::name::root_path;

/// The agent's folder below the root of short names.
pub const AGENT_FOLDER: &str = ".agent";
/// In it: the file whose lock (flock) the agent holds as long as it lives.
pub const AGENT_LOCK_FILE: &str = "lock";
/// In it: which agent it is ([`NodeAgent`]); the file's time is that of the agent's last use.
pub const AGENT_FILE: &str = "agent.json";
/// In it: what the agent does ([`AgentStatus`]).
pub const AGENT_STATUS_FILE: &str = "status.json";
/// In it: files named as the spaces of this node that are mirrors, with their identities.
pub const MIRRORS_FOLDER: &str = "mirrors";

/// A status that is longer is none.
const STATUS_BYTES_MAX: u64 = 16 << 20;

/// An agent, as it says in its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAgent {
    /// Name of its job.
    pub job: String,
    /// Name of its node.
    pub node: String,
    /// Process id.
    pub pid: u32,
    /// Folder of the job.
    pub rendezvous: PathBuf,
}

/// What the agent of the spaces below `root` said last of itself, as long as it lives; None if that cannot be read.
pub fn agent_status(root: &Path) -> Option<AgentStatus> {
    let agent = find_agent(root).filter(|found| found.lives)?.agent?;
    let mut text = Vec::new();
    let file = File::open(root.join(AGENT_FOLDER).join(AGENT_STATUS_FILE)).ok()?;
    file.take(STATUS_BYTES_MAX).read_to_end(&mut text).ok()?;
    // Another one may have left it.
    serde_json::from_slice(&text).ok().filter(|status: &AgentStatus| status.pid == agent.pid)
}

/// What an agent says of itself every second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its node.
    pub node: String,
    /// Which agent of the node.
    pub incarnation: u64,
    /// `ready` or `ending`.
    pub state: String,
    /// Process id on its host.
    pub pid: u32,
    /// Nodes whose agents are not there.
    pub missing: Vec<String>,
    /// Spaces of other nodes that it copies.
    pub mirrors: Vec<MirrorStatus>,
    /// Spaces of its node that others copy.
    pub served: Vec<ServedStatus>,
    /// Bytes of payload that it has sent.
    pub bytes_sent: u64,
}

/// A copy of a space of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorStatus {
    /// Name of the space.
    pub space: String,
    /// Nodes of its writers, with `, ` between them.
    pub from: String,
    /// `copying`, `finished`, `failed`, `stopping` or `gone`.
    pub state: String,
    /// Versions that were copied.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A space that another node copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedStatus {
    /// Name of the space.
    pub space: String,
    /// The other node.
    pub to: String,
}

/// What is found of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundAgent {
    /// Whether it lives; else it was killed.
    pub lives: bool,
    /// Which one it is; None: it does not say so yet.
    pub agent: Option<NodeAgent>,
    /// How long ago it was last used: a space of this node, or of another for this one.
    pub idle: Duration,
}

/// The agent of the spaces below `root`; None: there is none.
pub fn find_agent(root: &Path) -> Option<FoundAgent> {
    let folder = root.join(AGENT_FOLDER);
    if !fs::metadata(&folder).is_ok_and(|meta| meta.is_dir()) {
        return None;
    }
    let file = folder.join(AGENT_FILE);
    let used = fs::metadata(&file).and_then(|meta| meta.modified());
    Some(FoundAgent {
        lives: lives(&folder),
        agent: serde_json::from_str(&fs::read_to_string(&file).unwrap_or_default()).ok(),
        idle: used.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default(),
    })
}

/// Whether an agent serves the spaces of this node.
pub(crate) fn agent_serves() -> bool {
    root_path(&environment::process).is_ok_and(|root| lives(&root.join(AGENT_FOLDER)))
}

fn lives(folder: &Path) -> bool {
    let lock = File::open(folder.join(AGENT_LOCK_FILE));
    // A file system without such locks says something else.
    let taken = lock.map(|lock| flock(lock, FlockOperation::NonBlockingLockShared));
    taken.is_ok_and(|taken| taken == Err(Errno::WOULDBLOCK))
}

/// Takes the lock of an agent's folder. None: it is taken, or the file was removed meanwhile: an agent that ends does
/// so before its lock goes.
///
/// # Errors
/// Those of making the file, also where there is no folder.
pub fn try_lock(folder: &Path) -> std::io::Result<Option<File>> {
    let path = folder.join(AGENT_LOCK_FILE);
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        taken => taken?,
    }
    let is_same = |there: fs::Metadata| Ok((lock.metadata()?.ino() == there.ino()).then_some(()));
    match fs::metadata(&path).and_then(is_same) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        is_same => Ok(is_same?.map(|()| lock)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_lives_as_long_as_it_has_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let found = || find_agent(root.path()).map(|found| (found.lives, found.agent));
        assert_eq!(found(), None);
        let folder = root.path().join(AGENT_FOLDER);
        fs::create_dir(&folder).unwrap();
        let lock = try_lock(&folder).unwrap().unwrap();
        assert_eq!(found(), Some((true, None)));
        let said =
            NodeAgent { job: "j".into(), node: "n".into(), pid: 7, rendezvous: PathBuf::from("/scratch/j") };
        fs::write(folder.join(AGENT_FILE), serde_json::to_vec(&said).unwrap()).unwrap();
        assert_eq!(found(), Some((true, Some(said.clone()))));
        assert!(agent_status(root.path()).is_none());
        drop(lock);
        assert_eq!(found(), Some((false, Some(said))));
    }

    #[test]
    fn a_status_is_that_of_the_agent_that_lives() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(AGENT_FOLDER);
        fs::create_dir(&folder).unwrap();
        let lock = try_lock(&folder).unwrap().unwrap();
        let agent = NodeAgent { job: "j".into(), node: "n0".into(), pid: 7, rendezvous: "/scratch/j".into() };
        fs::write(folder.join(AGENT_FILE), serde_json::to_vec(&agent).unwrap()).unwrap();
        let mirror = MirrorStatus {
            space: "heat".into(),
            from: "n1, n2".into(),
            state: "copying".into(),
            versions: 3,
            bytes: 1 << 40,
        };
        let status = AgentStatus {
            node: "n0".into(),
            incarnation: 2,
            state: "ready".into(),
            pid: 7,
            missing: vec!["n3".into()],
            mirrors: vec![mirror.clone()],
            served: vec![ServedStatus { space: "out".into(), to: "n1".into() }],
            bytes_sent: 5,
        };
        let path = folder.join(AGENT_STATUS_FILE);
        let write =
            |status: &AgentStatus| fs::write(&path, serde_json::to_vec_pretty(status).unwrap()).unwrap();
        write(&status);
        let read = agent_status(root.path()).unwrap();
        assert_eq!((read.mirrors, read.bytes_sent, read.missing), (vec![mirror], 5, vec!["n3".to_string()]));
        write(&AgentStatus { pid: 8, ..status.clone() });
        assert!(agent_status(root.path()).is_none(), "it is that of another agent");
        for wrong in ["", "{}", "[1]", "{\"node\": 7}"] {
            fs::write(&path, wrong).unwrap();
            assert!(agent_status(root.path()).is_none(), "{wrong}");
        }
        write(&status);
        drop(lock);
        assert!(agent_status(root.path()).is_none(), "it lives no more");
    }

    #[test]
    fn the_lock_of_a_file_that_is_gone_is_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(try_lock(&root.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        let path = root.path().join(AGENT_LOCK_FILE);
        let locked = std::sync::atomic::AtomicU32::new(0);
        // The holder removes the file before the lock goes, as an agent does, while others open it.
        let take = || {
            for _ in 0..3000 {
                let Some(lock) = try_lock(root.path()).unwrap() else { continue };
                let there = fs::metadata(&path).map(|meta| meta.ino()).ok();
                assert_eq!(there, Some(lock.metadata().unwrap().ino()), "its file is another one");
                locked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                fs::remove_file(&path).unwrap();
            }
        };
        std::thread::scope(|threads| (0..4).for_each(|_| drop(threads.spawn(take))));
        assert!(locked.into_inner() > 0);
    }
}
