//! The file-per-object channel: the interface of a space over plain files, as the baseline of comparisons.
//!
//! Every piece is a file of its own ([`object`]), written under another name and renamed; a version is
//! complete when every writer rank has written its `done` file; readers find out by looking again and again
//! ([`stream`], [`readers`]). That is how coupled programs exchange data without a staging system, and what a
//! space is measured against.
//!
//! Guarantees: the same semantics and error kinds as a space, as far as files allow: versions visible whole
//! or not at all, incarnations and fencing, reader groups, retention, deadlines, errors that name who is
//! missing. What differs: a view is a copy in memory; there is no wake-up, so a waiting reader looks 200 to
//! 5000 times a second; ranks that disagree on a variable's dtype or shape are found out by the reader; the
//! quota is checked before a version begins, so that one version may go beyond it. Not here: pools, lanes and
//! anything shared in memory.

mod object;
mod read;
mod readers;
mod stream;
mod write;

#[cfg(test)]
mod tests;

pub use object::object_layout;
pub(crate) use read::{FilesReader, VersionFiles};
pub(crate) use readers::ReaderDf;
pub(crate) use stream::{Producers, Stream, LOCK_STREAM};
pub(crate) use write::{check_writable, FilesMemory, FilesWriter};

/// Name of the file of an object: rank, index, and as much of the variable's name as a file name can show.
fn object_file(rank: u32, index: u32, variable: &str) -> String {
    format!("r{rank:04}-{index:06}-{}.obj", shown(variable))
}

/// What a file name shows of a variable's name. Not unique: the header has the name itself.
fn shown(variable: &str) -> String {
    crate::place::name::sanitised(variable, 120)
}

/// Rank, index and shown name of an object's file.
fn parse_object_file(name: &str) -> Option<(u32, u32, &str)> {
    let (rank, rest) = name.strip_prefix('r')?.strip_suffix(".obj")?.split_once('-')?;
    let (index, shown) = rest.split_once('-')?;
    Some((rank.parse().ok()?, index.parse().ok()?, shown))
}
