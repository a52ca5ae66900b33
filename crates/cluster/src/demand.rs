//! The agent's folder beside the spaces of its node, and what readers want that is not there.
//!
//! Guarantees: one agent at a time has the folder, which a kernel lock says; what an agent that was killed has left is
//! removed by the next one, its mirrors included. The folder goes with the agent. Not here: the reader's side
//! (`forebay-space`, `place/demand.rs`), where a space is found (`agent.rs`).

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use forebay_space::{check_short, destroy, glance, make_root, Error, Kind, Result, Wanted};
use forebay_space::{
    try_lock, NodeAgent, AGENT_FILE, AGENT_FOLDER, AGENT_STATUS_FILE, INCOMPLETE_FOLDER, MIRRORS_FOLDER,
    REFUSED_FOLDER, RENEWED_EVERY, WANTED_FOLDER,
};

use crate::message::CLAIMS_MAX;
use crate::rendezvous::read_text;

/// A demand that was not renewed for so many times as it should be is over.
const MISSED_MAX: u32 = 3;
/// Another agent has the lock for longer.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Demands that are looked after at a time.
const DEMANDS_MAX: usize = 256;

/// The folder of a node's agent.
pub struct AgentFolder {
    path: PathBuf,
    /// Its lock is ours as long as this lives.
    _lock: File,
}

impl AgentFolder {
    /// Takes the folder, below the root of short names, and says there which agent has it.
    ///
    /// # Errors
    /// [`Kind::NameInUse`]: another agent has it; those of making it.
    pub fn take(agent: &NodeAgent) -> Result<AgentFolder> {
        let path = make_root()?.join(AGENT_FOLDER);
        let failed = |e| Error::io(format!("cannot make the agent's folder {}", path.display()), e);
        make_folder(&path).map_err(failed)?;
        let lock = take_lock(&path).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => Error::new(
                Kind::NameInUse,
                "another agent already serves the spaces of this node",
            )
            .with("folder", path.display())
            .hint(
                "a directory of spaces has one agent: stop the other agent, or set FOREBAY_DIR for this job",
            ),
            _ => failed(e),
        })?;
        let folder = AgentFolder { path: path.clone(), _lock: lock };
        folder.remove_left_behind();
        for name in [REFUSED_FOLDER, INCOMPLETE_FOLDER, MIRRORS_FOLDER, WANTED_FOLDER] {
            make_folder(&folder.path.join(name)).map_err(failed)?;
        }
        let text = serde_json::to_vec(agent).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
        fs::write(folder.path.join(AGENT_FILE), text).map_err(failed)?;
        Ok(folder)
    }

    /// What an agent that was killed has left.
    fn remove_left_behind(&self) {
        let mirrors = self.path.join(MIRRORS_FOLDER);
        for name in names_in(&mirrors) {
            // Another space may have the name by now.
            let uuid = read_text(&mirrors.join(&name)).unwrap_or_default();
            if glance(&name).map_or(true, |found| found.uuid != uuid) {
                continue;
            }
            match destroy(&name) {
                Err(e) if e.kind() != Kind::PeerMissing => {
                    say!("forebay-agent: cannot remove space {name}, left by an agent that was killed: {e}");
                }
                _ => {}
            }
        }
        for name in [AGENT_FILE, AGENT_STATUS_FILE] {
            let _ = fs::remove_file(self.path.join(name));
        }
        for folder in [WANTED_FOLDER, REFUSED_FOLDER, INCOMPLETE_FOLDER, MIRRORS_FOLDER] {
            let _ = fs::remove_dir_all(self.path.join(folder));
        }
    }

    /// What is wanted now, by the names of spaces; each is told once.
    pub fn take_wanted(&self) -> Vec<(String, Vec<Wanted>)> {
        let folder = self.path.join(WANTED_FOLDER);
        let take = |name: String| {
            let path = folder.join(&name);
            // What is added between the two comes again within a second.
            let text = read_text(&path).unwrap_or_default();
            let _ = fs::remove_file(&path);
            (name, text.lines().filter_map(Wanted::read).collect())
        };
        names_in(&folder).into_iter().map(take).collect()
    }

    /// Says why a space cannot be brought here; None: that holds no more. Whether that is new.
    pub fn refuse(&self, name: &str, why: Option<&str>) -> bool {
        self.say(REFUSED_FOLDER, name, why)
    }

    /// Says which ranks of the writers of a space are missing; None: none. Whether that is new.
    pub fn note_incomplete(&self, name: &str, what: Option<&str>) -> bool {
        self.say(INCOMPLETE_FOLDER, name, what)
    }

    fn say(&self, folder: &str, name: &str, why: Option<&str>) -> bool {
        let path = self.path.join(folder).join(name);
        let Some(why) = why else { return fs::remove_file(path).is_ok() };
        let is_new = read_text(&path).map_or(true, |before| before != why);
        let new = self.path.join(folder).join(format!(".{name}.new"));
        // Said again, so that a reader that comes later learns it too. One that does not learn it waits until its
        // deadline.
        drop(fs::write(&new, why).and_then(|()| fs::rename(&new, path)));
        is_new
    }

    /// Notes that the agent is in use.
    pub fn note_used(&self) {
        // `forebay doctor` alone looks at it.
        let file = OpenOptions::new().write(true).open(self.path.join(AGENT_FILE));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Notes what the agent does, for programs of this node: the folder of the job may be on a slow file system.
    pub fn note_status(&self, text: &[u8]) {
        let new = self.path.join(".status.new");
        drop(fs::write(&new, text).and_then(|()| fs::rename(&new, self.path.join(AGENT_STATUS_FILE))));
    }

    /// Notes which space of this node is a mirror; None: it is there no more.
    pub fn note_mirror(&self, name: &str, uuid: Option<&str>) {
        let path = self.path.join(MIRRORS_FOLDER).join(name);
        match uuid {
            Some(uuid) => drop(fs::write(path, uuid)),
            None => drop(fs::remove_file(path)),
        }
    }
}

impl Drop for AgentFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        // The root of short names, if nothing else is in it.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// Takes the lock of a folder. That of a program that looks whether there is an agent is there for microseconds.
fn take_lock(folder: &Path) -> std::io::Result<File> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        make_folder(folder)?;
        let has_time = Instant::now() < deadline;
        match try_lock(folder) {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) if !has_time => return Err(ErrorKind::WouldBlock.into()),
            Err(e) if !has_time || e.kind() != ErrorKind::NotFound => return Err(e),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn make_folder(path: &Path) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Names of spaces for which there is a file in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| check_short(name).is_ok()).take(DEMANDS_MAX).collect()
}

/// The spaces that readers wait for.
#[derive(Default)]
pub struct Demands {
    /// What readers take, and when each said so last.
    spaces: BTreeMap<String, Vec<(Wanted, Instant)>>,
}

impl Demands {
    /// Notes demands that were left or renewed just now.
    pub fn note(&mut self, all: Vec<(String, Vec<Wanted>)>) {
        for (name, lines) in all {
            if lines.is_empty() || self.spaces.len() >= DEMANDS_MAX && !self.spaces.contains_key(&name) {
                continue;
            }
            let readers = self.spaces.entry(name).or_default();
            for wanted in lines {
                readers.retain(|(known, _)| *known != wanted);
                if readers.len() < CLAIMS_MAX {
                    readers.push((wanted, Instant::now()));
                }
            }
        }
    }

    /// Those that are not over, and what their readers take; of the others the names are given to `over`.
    pub fn current(&mut self, mut over: impl FnMut(&str)) -> Vec<(String, Vec<Wanted>)> {
        self.spaces.retain(|name, readers| {
            readers.retain(|(_, renewed)| renewed.elapsed() < RENEWED_EVERY * MISSED_MAX);
            if readers.is_empty() {
                over(name);
            }
            !readers.is_empty()
        });
        let wanted =
            |readers: &[(Wanted, Instant)]| readers.iter().map(|(wanted, _)| wanted.clone()).collect();
        self.spaces.iter().map(|(name, readers)| (name.clone(), wanted(readers))).collect()
    }

    /// One was met.
    pub fn met(&mut self, name: &str) {
        self.spaces.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_lock_of_an_agent_that_ends_is_not_taken_on_a_file_that_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(AGENT_FOLDER);
        let before = take_lock(&path).unwrap();
        assert_eq!(take_lock(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        let after = std::thread::scope(|threads| {
            let next = threads.spawn(|| loop {
                match take_lock(&path) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    lock => return lock.unwrap(),
                }
            });
            std::thread::sleep(LOCK_TIMEOUT / 4);
            // In this order, as an agent ends.
            fs::remove_dir_all(&path).unwrap();
            drop(before);
            next.join().unwrap()
        });
        let there = fs::metadata(path.join("lock")).unwrap();
        assert_eq!(after.metadata().unwrap().ino(), there.ino());
    }
}
