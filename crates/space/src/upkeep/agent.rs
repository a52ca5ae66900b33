//! Removes what an agent of this node has left that was killed.
//!
//! Guarantees: the folder of an agent that lives, or has just begun, stays; so does one of which mirrors are left: the
//! next agent learns from it which spaces are its.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::place::agent::{try_lock, AGENT_FOLDER, MIRRORS_FOLDER};
use crate::upkeep::inspect::glance;

/// Whether the folder below `root` was removed.
pub(crate) fn remove_gone(root: &Path) -> std::io::Result<bool> {
    let folder = root.join(AGENT_FOLDER);
    let _lock = match try_lock(&folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Ok(None) => return Ok(false),
        lock => lock?,
    };
    let mirrors = fs::read_dir(folder.join(MIRRORS_FOLDER)).into_iter().flatten().flatten();
    let is_left = |mirror: fs::DirEntry| {
        let uuid = fs::read_to_string(mirror.path()).unwrap_or_default();
        let name = root.join(mirror.file_name());
        name.exists() && glance(&name.to_string_lossy()).is_ok_and(|space| space.uuid == uuid)
    };
    if mirrors.into_iter().any(is_left) {
        return Ok(false);
    }
    match fs::remove_dir_all(&folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{destroy, OpenOptions, Writer};

    #[test]
    fn only_what_an_agent_has_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(AGENT_FOLDER);
        assert!(!remove_gone(root.path()).unwrap());
        fs::create_dir_all(folder.join(MIRRORS_FOLDER)).unwrap();
        let lock = try_lock(&folder).unwrap();
        assert!(!remove_gone(root.path()).unwrap() && folder.exists(), "it lives");
        drop(lock);
        let name = root.path().join("heat").to_string_lossy().into_owned();
        let options = OpenOptions { rank: Some(0), size: Some(1), ..OpenOptions::default() };
        Writer::open(&name, &options).unwrap().close().unwrap();
        let mirror = folder.join(MIRRORS_FOLDER).join("heat");
        fs::write(&mirror, glance(&name).unwrap().uuid).unwrap();
        assert!(!remove_gone(root.path()).unwrap() && folder.exists(), "a mirror is left");
        // A space that has the name of a mirror that is gone is another one.
        fs::write(&mirror, "of another").unwrap();
        assert!(remove_gone(root.path()).unwrap() && !folder.exists());
        destroy(&name).unwrap();
    }
}
