//! Names under power cuts: what processes made, renamed and removed in directories, and what a cut takes back of it.
//!
//! Each folder of [`lose_names_below`] is a file system of its own. A file system keeps the order of changes of names.
//! Those of a directory are certain when it was flushed, and all that came before them in its file system. A cut takes
//! back the newest of the others, from any one on, in each file system for itself. Until its removal is certain a file
//! stays in a folder beside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::random::Random;
use super::scheduler::{self, with_kernel};

/// A change that is not certain, and what it takes to undo it.
#[derive(Debug)]
enum Change {
    Made(PathBuf),
    Removed { path: PathBuf, kept: PathBuf },
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
}

impl Change {
    fn is_in(&self, folder: &Path) -> bool {
        let is_there = |path: &Path| path.parent() == Some(folder);
        match self {
            Change::Made(path) | Change::Removed { path, .. } => is_there(path),
            Change::Renamed { from, to, .. } => is_there(from) || is_there(to),
        }
    }

    /// It is certain: what was removed goes.
    fn settle(&self) {
        let kept = match self {
            Change::Removed { kept, .. } => Some(kept),
            Change::Renamed { replaced, .. } => replaced.as_ref(),
            Change::Made(_) => None,
        };
        let _ = kept.map(|kept| if kept.is_dir() { fs::remove_dir(kept) } else { fs::remove_file(kept) });
    }

    fn undo(&self) -> io::Result<()> {
        match self {
            Change::Made(path) if path.is_dir() => fs::remove_dir_all(path),
            Change::Made(path) => fs::remove_file(path),
            Change::Removed { path, kept } => fs::rename(kept, path),
            Change::Renamed { from, to, replaced } => {
                fs::rename(to, from)?;
                replaced.as_ref().map_or(Ok(()), |kept| fs::rename(kept, to))
            }
        }
    }
}

/// The changes of one file system.
#[derive(Debug)]
struct Journal {
    /// Changes below this folder count.
    root: PathBuf,
    /// The oldest first.
    changes: Vec<Change>,
}

impl Journal {
    fn is_unflushed(&self, folder: &Path) -> bool {
        self.changes.iter().any(|change| change.is_in(folder))
    }

    fn flushed(&mut self, folder: &Path) {
        let certain = self.changes.iter().rposition(|change| change.is_in(folder)).map_or(0, |at| at + 1);
        self.changes.drain(..certain).for_each(|change| change.settle());
    }

    /// The power fails.
    fn cut(&mut self, random: &mut Random) -> io::Result<()> {
        let count = self.changes.len() as u64;
        let stay = match random.below(4) {
            0 => 0,
            1 => count,
            _ => random.below(count + 1),
        };
        for change in self.changes.drain(stay as usize..).rev() {
            change.undo()?;
        }
        self.changes.drain(..).for_each(|change| change.settle());
        Ok(())
    }
}

/// See the file's head.
#[derive(Default)]
pub(super) struct Names {
    journals: Vec<Journal>,
    /// Where removed files stay.
    beside: PathBuf,
    made: u64,
}

impl Names {
    /// The changes of the file system that a path is in.
    fn journal(&mut self, path: &Path) -> Option<&mut Journal> {
        self.journals.iter_mut().find(|journal| path.starts_with(&journal.root))
    }

    fn counts(&self, path: &Path) -> bool {
        self.journals.iter().any(|journal| path.starts_with(&journal.root) && path != journal.root)
    }

    /// A name at `path` has changed.
    fn note(&mut self, path: &Path, change: Change) {
        if let Some(journal) = self.journal(path) {
            journal.changes.push(change);
        }
    }

    /// A new name in the folder beside.
    fn beside(&mut self) -> PathBuf {
        self.made += 1;
        self.beside.join(self.made.to_string())
    }

    fn keep(&mut self, path: &Path) -> Option<PathBuf> {
        let kept = self.beside();
        fs::hard_link(path, &kept).ok().map(|()| kept)
    }
}

/// Does something with the names, where the caller is simulated and the power may be cut.
fn with_names<T>(work: impl FnOnce(&mut Names) -> T) -> Option<T> {
    scheduler::me()?;
    with_kernel(|kernel| kernel.names.as_mut().map(work))
}

/// From now on a power cut takes back changes of names below these folders, each of which is a file system.
pub fn lose_names_below(folders: Vec<PathBuf>, beside: PathBuf) {
    with_kernel(|kernel| {
        if let Some(names) = &mut kernel.names {
            let journals = folders.into_iter().map(|root| Journal { root, changes: Vec::new() }).collect();
            *names = Names { journals, beside, made: 0 };
        }
    });
}

/// The power fails: changes of names that are not certain may be lost.
pub fn cut_names(random: &mut Random) -> io::Result<()> {
    with_kernel(|kernel| {
        let mut journals = kernel.names.iter_mut().flat_map(|names| &mut names.journals);
        journals.try_for_each(|journal| journal.cut(random))
    })
}

/// Whether a change in a directory is not certain.
pub(super) fn is_unflushed(folder: &Path) -> bool {
    let is_unflushed = |names: &mut Names| names.journal(folder).is_some_and(|j| j.is_unflushed(folder));
    with_names(is_unflushed).unwrap_or(false)
}

/// A directory was flushed.
pub(super) fn flushed(folder: &Path) {
    with_names(|names| names.journal(folder).map(|journal| journal.flushed(folder)));
}

/// Makes a file or directory at `path`, or opens it.
pub(super) fn making<T>(path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let is_new = path.symlink_metadata().is_err();
    let made = make()?;
    if is_new {
        let change = || Change::Made(path.to_path_buf());
        with_names(|names| names.counts(path).then(|| names.note(path, change())));
    }
    Ok(made)
}

/// Removes a file.
pub(super) fn removing(path: &Path) -> io::Result<()> {
    let kept = with_names(|names| names.counts(path).then(|| names.keep(path))).flatten().flatten();
    let removed = fs::remove_file(path);
    if let Some(kept) = kept {
        match removed.is_ok() {
            true => drop(with_names(|names| {
                names.note(path, Change::Removed { path: path.to_path_buf(), kept });
            })),
            false => drop(fs::remove_file(kept)),
        }
    }
    removed
}

/// Removes an empty directory.
pub(super) fn removing_directory(path: &Path) -> io::Result<()> {
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let kept = with_names(|names| (names.counts(path) && is_empty()).then(|| names.beside())).flatten();
    let Some(kept) = kept else { return fs::remove_dir(path) };
    fs::rename(path, &kept)?;
    with_names(|names| names.note(path, Change::Removed { path: path.to_path_buf(), kept }));
    Ok(())
}

/// Renames a file or directory.
pub(super) fn renaming(from: &Path, to: &Path) -> io::Result<()> {
    let replaced = with_names(|names| names.counts(to).then(|| names.keep(to))).flatten().flatten();
    let renamed = fs::rename(from, to);
    match renamed.is_ok() {
        true => drop(with_names(|names| {
            let change = Change::Renamed { from: from.to_path_buf(), to: to.to_path_buf(), replaced };
            names.counts(to).then(|| names.note(to, change))
        })),
        false => drop(replaced.map(fs::remove_file)),
    }
    renamed
}
