//! The names of channels that a running run holds, from before it looks at what is there until all is removed: of two
//! runs that start at the same moment the second is refused before it starts anything.
//!
//! A held name is a record lock on a byte of the file `.runs` in the root of spaces: it is gone with the process,
//! however that ends. The last run removes the file; what a killed one leaves is used by the next, or removed by
//! `clean`.
//!
//! Guarantees: one holder at a time below one root. Not here: processes that open a channel without a runner, runs on
//! other nodes or with another root; what they have made is seen in the spaces themselves.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use forebay_tier::checksum::crc32c;
use forebay_tier::liveness::{MembersFile, SlotGuard};

use crate::workflow::{Channel, Workflow};

/// The file, hidden from lists of spaces.
const FILE: &str = ".runs";

/// The lock under which names are taken and the file is removed.
const TURN: u64 = 0;

/// How long to wait for the turn: the holder looks at a few locks.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the error looks for the run in the channel.
const GLANCE: Duration = Duration::from_secs(1);

/// Names that this process holds; they are free again when it goes.
#[derive(Debug)]
pub struct HeldNames {
    /// None: a workflow without channels.
    members: Option<MembersFile>,
    slots: Vec<SlotGuard>,
}

impl Drop for HeldNames {
    fn drop(&mut self) {
        self.slots.clear();
        // What stays is used by the next run.
        let _ = self.members.as_ref().map(remove);
    }
}

/// Takes the names of all channels, or none.
///
/// # Errors
/// [`Kind::NameInUse`] with the process that holds one; [`Kind::Usage`] where two channels are one; those of the root
/// of spaces.
pub fn hold_names(workflow: &Workflow) -> Result<HeldNames> {
    let mut wanted: BTreeMap<u32, (&Channel, PathBuf)> = BTreeMap::new();
    for channel in &workflow.channels {
        let path = path(channel, workflow)?;
        let slot = slot(&path);
        match wanted.get(&slot) {
            Some((other, same)) if *same == path => {
                let what =
                    format!("the channels {} and {} have the same directory", other.name, channel.name);
                return Err(Error::new(Kind::Usage, what).hint("set a different path for each"));
            }
            _ => wanted.insert(slot, (channel, path)),
        };
    }
    if wanted.is_empty() {
        return Ok(HeldNames { members: None, slots: Vec::new() });
    }
    let file = forebay_space::make_root()?.join(FILE);
    let deadline = Instant::now() + TURN_TIMEOUT;
    loop {
        let members = MembersFile::create(&file).map_err(|e| not_usable(e, &file))?;
        let slots = members.with_lock(TURN, TURN_TIMEOUT, || {
            // Another run may have removed it since it was opened.
            if !members.is_there() {
                return Ok(None);
            }
            let hold = |(slot, (channel, path)): (&u32, &(&Channel, PathBuf))| {
                members.lock_slot(*slot)?.ok_or_else(|| in_use(channel, path, members.holder(*slot)))
            };
            wanted.iter().map(hold).collect::<Result<Vec<_>>>().map(Some)
        })?;
        if let Some(slots) = slots {
            return Ok(HeldNames { members: Some(members), slots });
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                Kind::TimedOut,
                format!("another process keeps removing {}", file.display()),
            )
            .hint("start the run again when other runs have ended"));
        }
    }
}

/// Removes what a killed run has left, unless another run uses it.
///
/// # Errors
/// Those of the root of spaces; `TimedOut`.
pub fn remove_unheld() -> Result<()> {
    let file = forebay_space::root()?.join(FILE);
    match MembersFile::open(&file) {
        Ok(members) => remove(&members),
        Err(e) if is_not_found(&e) => Ok(()),
        Err(e) => Err(not_usable(e, &file)),
    }
}

fn is_not_found(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

fn not_usable(error: Error, file: &Path) -> Error {
    error.hint(format!("remove {} when no run is active: it contains no data", file.display()))
}

fn remove(members: &MembersFile) -> Result<()> {
    members.with_lock(TURN, TURN_TIMEOUT, || match members.is_there() && !members.is_any_alive() {
        true => std::fs::remove_file(members.path())
            .map_err(|e| Error::io(format!("removing {}", members.path().display()), e)),
        false => Ok(()),
    })
}

/// Where the channel is, the same for all runs that mean it: without links, as far as it is there.
fn path(channel: &Channel, workflow: &Workflow) -> Result<PathBuf> {
    let path = match channel.options.path {
        Some(_) => PathBuf::from(channel.location(&workflow.dir)),
        None => forebay_space::root()?.join(&channel.name),
    };
    let path =
        std::path::absolute(&path).map_err(|e| Error::io("cannot determine the current directory", e))?;
    Ok(behind_links(&path, LINKS_MAX))
}

/// Follows at most so many symbolic links, as the kernel does.
const LINKS_MAX: u32 = 40;

fn behind_links(path: &Path, links: u32) -> PathBuf {
    let (parent, name) = match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => return path,
        (Err(_), Some(parent), Some(name)) => (parent, name),
        (Err(_), _, _) => return path.to_owned(),
    };
    match path.read_link() {
        // To what is not there yet.
        Ok(target) if links > 0 => behind_links(&parent.join(target), links - 1),
        _ => behind_links(parent, links).join(name),
    }
}

/// The byte of a place, from its path and its file system: two that are mounted in one place do not meet.
fn slot(path: &Path) -> u32 {
    let device = path.ancestors().find_map(|folder| folder.metadata().ok()).map_or(0, |folder| folder.dev());
    crc32c(&[path.as_os_str().as_bytes(), &device.to_le_bytes()].concat())
}

fn in_use(channel: &Channel, path: &Path, pid: Option<u32>) -> Error {
    let error = Error::new(Kind::NameInUse, format!("another run uses the channel {}", channel.name))
        .with("path", path.display())
        .hint("wait for it to end, or rename the channel");
    // Where it has made the channel already, the channel names its run.
    let made = forebay_space::glance_within(&path.to_string_lossy(), GLANCE);
    let error = match made.ok().and_then(|space| space.run) {
        Some(run) => error.with("run", run),
        None => error,
    };
    match pid {
        Some(pid) => error.with("pid", pid),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_holder_and_is_free_afterwards() {
        let text = "forebay = 1\n[workflow]\nname = \"x\"\n[channel.c]\npath = \"here/it\"\n\
                    [[component]]\nname = \"a\"\ncommand = [\"true\"]\nwrites = [\"c\"]\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("workflow.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        std::os::unix::fs::symlink("there", dir.path().join("here")).unwrap();
        let workflow = Workflow::read(&file).unwrap();
        let held = hold_names(&workflow).unwrap();
        std::fs::write(&file, text.replace("here/it", "there/it")).unwrap();
        let other = Workflow::read(&file).unwrap();
        let error = hold_names(&other).unwrap_err();
        assert_eq!(error.kind(), Kind::NameInUse);
        assert!(error.to_string().contains(&format!("pid={}", std::process::id())), "{error}");
        drop(held);
        hold_names(&other).unwrap();
        // Both lead to what is not there yet.
        std::os::unix::fs::symlink("there/new", dir.path().join("link")).unwrap();
        std::fs::write(&file, text.replace("here/it", "link")).unwrap();
        let held = hold_names(&Workflow::read(&file).unwrap()).unwrap();
        std::fs::write(&file, text.replace("here/it", "there/new")).unwrap();
        assert_eq!(hold_names(&Workflow::read(&file).unwrap()).unwrap_err().kind(), Kind::NameInUse);
        drop(held);
        let text = text.replace("[[component]]", "[channel.d]\npath = \"there/it\"\n[[component]]");
        std::fs::write(&file, text.replace("[\"c\"]", "[\"c\", \"d\"]")).unwrap();
        let twice = Workflow::read(&file).and_then(|workflow| hold_names(&workflow)).unwrap_err();
        assert!(twice.kind() == Kind::Usage && twice.to_string().contains("c and d"), "{twice}");
    }
}
