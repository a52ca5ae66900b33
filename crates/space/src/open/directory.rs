//! The directory of a space or a channel of files: found behind links, taken away under a hidden name, and removed with
//! all that belongs to it.

use forebay_tier::host::fs;
use std::path::{Path, PathBuf};

use forebay_tier::{clock, process, Error, Horizon, Kind, Result};

use crate::control::shared_state::{remove_abandoned_soft_dir, remove_soft_dir, soft_dirs_of_path};
use crate::open::contents;
use crate::open::new_directory::abandoned;
use crate::place::name::{behind_links, hidden, Hidden};
use crate::place::removal::remove_all;
use crate::place::tiers::Tiers;
use crate::place::whole_file;

/// Gives a new space or channel its name, unless another one has it: then the new one goes. Whether it has the name.
/// The name is not durable before [`settle_name`].
pub(crate) fn put_in_place(name: &str, new: &Path, dir: &Path) -> Result<bool> {
    match fs::rename(new, dir) {
        Ok(()) => Ok(true),
        // Another process was first.
        Err(e) if matches!(e.raw_os_error(), Some(17 | 39)) => remove_unfinished(new).map(|_| false),
        Err(e) => {
            let _ = remove_unfinished(new);
            Err(Error::io(format!("cannot rename space {name} to its final name"), e))
        }
    }
}

/// Makes the name of a space or channel durable, as its horizon says. Every writer does so before it joins: versions
/// that are acknowledged below a name that is lost are lost with it, and who gave the name may have been killed.
pub(crate) fn settle_name(dir: &Path, horizon: Horizon) -> Result<()> {
    if horizon == Horizon::None {
        return Ok(());
    }
    let dir = behind_links(dir);
    whole_file::sync_directory_of(&dir)
        .map_err(|e| Error::io(format!("cannot sync the directory entry {}", dir.display()), e))
}

/// Takes a directory away under another name first, so that no process sees it half empty; then its shared state and
/// the lower pools that it names, and at last what is in it, so that a process that finds it later can go on. Returns
/// the lower pools that stay, with the reason.
pub(crate) fn remove_directory(dir: &Path) -> Result<Vec<String>> {
    let dir = &behind_links(dir);
    let (Some(parent), Some(file)) = (dir.parent(), dir.file_name()) else {
        return Err(
            Error::new(Kind::BadName, "this directory cannot be removed").with("directory", dir.display())
        );
    };
    match take_away(dir, parent, &file.to_string_lossy())? {
        Some(gone) => remove_unfinished(&gone),
        None => Ok(Vec::new()),
    }
}

/// Renames a directory to a hidden name, by which it is known that it is on its way out. None: it is not there.
pub(crate) fn take_away(dir: &Path, parent: &Path, file: &str) -> Result<Option<PathBuf>> {
    let gone = parent.join(format!(".{file}.gone-{}-{}", process::pid(), clock::now_ns()));
    match fs::rename(dir, &gone) {
        Ok(()) => Ok(Some(gone)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("removing {}", dir.display()), e)),
    }
}

/// A directory on its way in or out.
pub(crate) struct HiddenDirectory {
    pub path: PathBuf,
    pub kind: Hidden,
    /// The name that it is to have, or had.
    pub of: String,
}

/// Those in a directory. What has such a name and is a link, or holds anything else than what a space or a channel of
/// files holds, was not made here.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn hidden_directories(parent: &Path) -> std::io::Result<Vec<HiddenDirectory>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some((kind, of)) = hidden(&file) else { continue };
        let path = entry.path();
        let is_own = || contents::check_own(&path).is_ok() || crate::open::channel::holds_only_own(&path);
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_own() {
            found.push(HiddenDirectory { path, kind, of: of.into() });
        }
    }
    Ok(found)
}

/// Removes what killed processes left while they made, replaced or removed the space `file`, or else any space in
/// `parent`, as far as it can.
pub(crate) fn remove_leftovers(parent: &Path, file: Option<&str>) {
    let soft_dirs = file.map(|file| soft_dirs_of_path(&parent.join(file)));
    for soft in soft_dirs.into_iter().flatten() {
        let _ = remove_abandoned_soft_dir(&soft, false);
    }
    for HiddenDirectory { path, kind, of } in hidden_directories(parent).unwrap_or_default() {
        if file.is_some_and(|file| file != of) {
            continue;
        }
        // Held while it is removed: the process that made it cannot go on in it.
        let abandoned = match kind {
            Hidden::New => match abandoned(&path, false) {
                Ok(Ok(abandoned)) => Some(abandoned),
                _ => continue,
            },
            Hidden::Gone => None,
        };
        let _ = remove_unfinished(&path);
        drop(abandoned);
    }
}

/// Removes a directory that is not, or no longer, in place, with its shared state and the lower pools that it names, if
/// it can be read and they are its own. Returns those that stay, with the reason. Another process may do the same.
pub(crate) fn remove_unfinished(new: &Path) -> Result<Vec<String>> {
    remove_soft_dir(new)?;
    let kept = match Tiers::read(new) {
        Ok(tiers) => tiers.remove(new)?,
        // The next clean tries again: without the list its pools would not be found any more.
        Err(e) if e.kind() == Kind::Io => return Err(e),
        Err(_) => Vec::new(),
    };
    remove_all(new).map(|()| kept)
}
