//! The agent's folder beside the spaces of its node, and what readers want that is not there.
//!
//! Guarantees: one agent at a time has the folder, which a kernel lock says; what an agent that was killed has left is
//! removed by the next one, its mirrors included. The folder goes with the agent. Not here: the reader's side
//! (`forebay-space`, `place/demand.rs`), where a space is found (`agent.rs`).

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_space::{check_short, destroy, glance, make_root, Error, Kind, Result};
use forebay_space::{AGENT_FOLDER, REFUSED_FOLDER, RENEWED_EVERY, WANTED_FOLDER};
use rustix::fs::{flock, FlockOperation};

const LOCK_FILE: &str = "lock";
/// Names of the mirrors, for the agent that follows one that was killed.
const MIRRORS_FOLDER: &str = "mirrors";
/// A demand that was not renewed for so many times as it should be is over.
const MISSED_MAX: u32 = 3;
/// Demands that are looked after at a time.
const DEMANDS_MAX: usize = 256;

/// The folder of a node's agent.
pub struct AgentFolder {
    path: PathBuf,
    /// Its lock is ours as long as this lives.
    _lock: File,
}

impl AgentFolder {
    /// Takes the folder, below the root of short names.
    ///
    /// # Errors
    /// [`Kind::NameInUse`]: another agent has it; those of making it.
    pub fn take() -> Result<AgentFolder> {
        let path = make_root()?.join(AGENT_FOLDER);
        let failed = |e| Error::io(format!("cannot make the agent's folder {}", path.display()), e);
        make_folder(&path).map_err(failed)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path.join(LOCK_FILE));
        let lock = lock.map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(Kind::NameInUse, "another agent serves the spaces of this node")
                .with("folder", path.display())
                .hint("one agent serves a directory of spaces: end the other one, or set FOREBAY_DIR for this job")
        })?;
        let folder = AgentFolder { path: path.clone(), _lock: lock };
        folder.remove_left_behind();
        for name in [REFUSED_FOLDER, MIRRORS_FOLDER, WANTED_FOLDER] {
            make_folder(&folder.path.join(name)).map_err(failed)?;
        }
        Ok(folder)
    }

    /// What an agent that was killed has left.
    fn remove_left_behind(&self) {
        let mirrors = self.path.join(MIRRORS_FOLDER);
        for name in names_in(&mirrors) {
            // Another space may have the name by now.
            let uuid = fs::read_to_string(mirrors.join(&name)).unwrap_or_default();
            if glance(&name).map_or(true, |found| found.uuid != uuid) {
                continue;
            }
            match destroy(&name) {
                Err(e) if e.kind() != Kind::PeerMissing => {
                    eprintln!("forebay-agent: space {name}, which a former agent has left, stays: {e}");
                }
                _ => {}
            }
        }
        for folder in [WANTED_FOLDER, REFUSED_FOLDER, MIRRORS_FOLDER] {
            let _ = fs::remove_dir_all(self.path.join(folder));
        }
    }

    /// Names of spaces that are wanted now; each is told once.
    pub fn take_wanted(&self) -> Vec<String> {
        let folder = self.path.join(WANTED_FOLDER);
        let names = names_in(&folder);
        names.iter().for_each(|name| drop(fs::remove_file(folder.join(name))));
        names
    }

    /// Says why a space cannot be brought here; None: that holds no more.
    pub fn refuse(&self, name: &str, why: Option<&str>) {
        let path = self.path.join(REFUSED_FOLDER).join(name);
        match why {
            None => drop(fs::remove_file(path)),
            Some(why) => {
                let new = self.path.join(REFUSED_FOLDER).join(format!(".{name}.new"));
                // A reader that does not learn it waits until its deadline.
                drop(fs::write(&new, why).and_then(|()| fs::rename(&new, path)));
            }
        }
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
    renewed: BTreeMap<String, Instant>,
}

impl Demands {
    /// Notes demands that were left or renewed just now.
    pub fn note(&mut self, names: Vec<String>) {
        for name in names {
            if self.renewed.len() < DEMANDS_MAX || self.renewed.contains_key(&name) {
                self.renewed.insert(name, Instant::now());
            }
        }
    }

    /// Those that are not over; of the others the names are given to `over`.
    pub fn current(&mut self, mut over: impl FnMut(&str)) -> Vec<String> {
        self.renewed.retain(|name, renewed| {
            let lasts = renewed.elapsed() < RENEWED_EVERY * MISSED_MAX;
            if !lasts {
                over(name);
            }
            lasts
        });
        self.renewed.keys().cloned().collect()
    }

    /// One was met.
    pub fn met(&mut self, name: &str) {
        self.renewed.remove(name);
    }
}
