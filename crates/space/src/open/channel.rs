//! What the directory of a channel of files holds: which files are its own, and whether it is such a directory at all.
//!
//! Guarantees: as of `contents.rs`: a directory that holds other files too is never removed.
//! Not here: what is in the files (`files/`).

use forebay_tier::host::fs;
use forebay_tier::Error;
use std::path::{Path, PathBuf};

use super::contents;
use crate::attributes::ATTRIBUTES_FILE;
use crate::control::ownership::LOCK_FILE;
use crate::place::whole_file;

pub(crate) const STREAM_FILE: &str = "stream.json";

pub(crate) const MEMBERS_FILE: &str = "members";

/// True when the directory holds a file-per-object channel.
pub(crate) fn is_stream(dir: &Path) -> bool {
    dir.join(STREAM_FILE).exists()
}

/// Whether a file of this name may be one of a channel; its versions are directories.
fn is_own(name: &str) -> bool {
    let known = [MEMBERS_FILE, STREAM_FILE, "dropped.json", ATTRIBUTES_FILE, LOCK_FILE].contains(&name);
    let of_reader =
        ["reader-", "latest-"].iter().any(|begin| name.starts_with(begin)) && name.ends_with(".json");
    known || is_of_rank(name) || of_reader
}

/// Whether a file of this name is one of a writer rank.
fn is_of_rank(name: &str) -> bool {
    let end = name.strip_suffix(".open").or_else(|| name.strip_suffix(".closed"));
    let rank = end.and_then(|begin| begin.strip_prefix('r'));
    rank.is_some_and(|rank| rank.len() >= 4 && rank.bytes().all(|b| b.is_ascii_digit()))
}

/// None: the directory cannot be listed, so that nothing is known of what it holds.
fn names_in(dir: &Path) -> Option<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).ok()
    };
    fs::read_dir(dir).ok()?.map(name).collect()
}

/// Whether a directory holds nothing but what a channel makes, whatever state that is in.
pub(crate) fn is_of_a_stream(dir: &Path) -> bool {
    names_in(dir).is_some_and(|names| names.iter().any(|name| name == MEMBERS_FILE)) && holds_only_own(dir)
}

/// Whether a directory holds nothing that is not of a channel.
pub(crate) fn holds_only_own(dir: &Path) -> bool {
    // Of some files there is a new one for a moment; a version goes under a hidden name.
    let temporary =
        |name: &str| name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")).is_some_and(is_own);
    let is_version = |name: &str| version_of(name.strip_prefix(".gone-").unwrap_or(name)).is_some();
    let is_own = |name: &String| is_own(name) || temporary(name) || is_version(name);
    names_in(dir).is_some_and(|names| names.iter().all(is_own))
}

/// Whether a directory is that of a channel whose `stream.json` is gone.
pub(crate) fn lacks_stream_file(dir: &Path) -> bool {
    let has_rank = || names_in(dir).is_some_and(|names| names.iter().any(|name| is_of_rank(name)));
    !is_stream(dir) && is_of_a_stream(dir) && has_rank()
}

/// Whether a directory is what a process left that was killed before it had made a channel.
pub(crate) fn is_unfinished(dir: &Path) -> bool {
    let Some(names) = names_in(dir) else { return false };
    let temporary = whole_file::temporary_beside(&dir.join(STREAM_FILE));
    let temporary = temporary.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_empty = |name: &str| {
        let meta = fs::symlink_metadata(dir.join(name));
        meta.is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    };
    let is_own = |name: &String| name == MEMBERS_FILE && is_empty(name) || Some(name) == temporary.as_ref();
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()) && names.iter().all(is_own)
}

/// What has the name of a file of the channel and is not a regular file.
pub(crate) fn misplaced(dir: &Path) -> Option<PathBuf> {
    let own = names_in(dir).into_iter().flatten().filter(|name| is_own(name)).map(|name| dir.join(name));
    own.into_iter().find(|path| fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()))
}

/// An error of a channel in words that say what is damaged, and what to do next.
pub(crate) fn explained(name: &str, dir: &Path, error: Error) -> Error {
    contents::explained_by(name, dir, error, || misplaced(dir))
}

/// The version that a directory of this name holds.
pub(crate) fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('v')?;
    if digits.len() < 10 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
