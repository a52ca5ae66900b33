//! Removing spaces: when they were read to their end, on request, or because whoever used them is dead.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::attach::{remove_directory, remove_unfinished, soft_name, Attachment, POOL_FILE};
use crate::control::{group, member, ProducerState, GROUPS_MAX};
use crate::files;
use crate::inspect::{attach, names};
use crate::membership::{describe, settle_producers};
use crate::name;
use crate::options::Retention;

/// What to remove.
#[derive(Clone, Debug, Default)]
pub struct CleanOptions {
    /// Names or paths; empty: every space under the root of short names.
    pub names: Vec<String>,
    /// Only what dead processes left behind: also keep spaces that ended cleanly and were not read yet.
    pub dead_only: bool,
    /// Say what would go, remove nothing.
    pub dry_run: bool,
}

/// What was removed and what was kept.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CleanReport {
    /// Removed, or to be removed in a dry run.
    pub removed: Vec<Removed>,
    /// Kept, with the reason.
    pub kept: Vec<Kept>,
}

/// A space that was removed.
#[derive(Clone, Debug, Serialize)]
pub struct Removed {
    /// Its name.
    pub name: String,
    /// Bytes it had allocated.
    pub bytes: u64,
    /// Why it could go.
    pub reason: String,
}

/// A space that was kept.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Why it stays.
    pub reason: String,
}

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the files of a directory have allocated.
fn allocated_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|f| f.metadata().ok()).map(|m| m.blocks() * 512).sum()
}

/// A member that lives, in words.
fn live_member(space: &Attachment) -> Option<String> {
    let control = &space.control;
    (0..control.members_high())
        .find(|slot| control.member(*slot, member::STATE).load(Acquire) != 0 && space.is_alive(*slot))
        .map(|slot| describe(space, slot))
}

/// Whether every version of a finished stream was seen by every rank of at least one reader group.
fn is_read_to_its_end(space: &Attachment) -> bool {
    let control = &space.control;
    let mut groups =
        (0..GROUPS_MAX).filter(|i| control.group(*i, group::STATE).load(Acquire) != 0).peekable();
    groups.peek().is_some() && groups.all(|i| control.group_count(i, group::ENDED) == control.group_size(i))
}

/// Called whenever a member has gone: the last one takes a space away that was read to its end.
pub(crate) fn remove_if_read(space: &Attachment) {
    let may_go = || {
        space.retention() == Retention::Released
            && space.control.producer_state() == ProducerState::Finished
            && is_read_to_its_end(space)
            && live_member(space).is_none()
    };
    if !may_go() {
        return;
    }
    // A space that cannot be removed now stays for `forebay clean`; the program that ends here did its work.
    let removed = space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || {
        if may_go() {
            space.remove_files()?;
        }
        Ok(())
    });
    if let Err(e) = removed {
        if e.kind() != Kind::PeerMissing {
            eprintln!("forebay: removing space {}: {e}", space.name);
        }
    }
}

/// Removes spaces that no live process has open. Never touches one in use.
///
/// # Errors
/// Those of the root directory, or of a named space that does not exist (`PeerMissing`).
pub fn clean(options: &CleanOptions) -> Result<CleanReport> {
    let mut report = CleanReport::default();
    let all = options.names.is_empty();
    let wanted = if all { names()? } else { options.names.clone() };
    for name in wanted {
        match clean_one(&name, options) {
            Ok(Ok(removed)) => report.removed.push(removed),
            Ok(Err(reason)) => report.kept.push(Kept { name, reason }),
            Err(e) if all && e.kind() == Kind::PeerMissing => {}
            Err(e) if all => report.kept.push(Kept { name, reason: e.to_string() }),
            Err(e) => return Err(e),
        }
    }
    if all {
        clean_leftovers(options, &mut report)?;
    }
    Ok(report)
}

fn clean_one(name: &str, options: &CleanOptions) -> Result<std::result::Result<Removed, String>> {
    let dir = name::directory(name)?;
    if files::is_stream(&dir) {
        return files::clean(name, &dir, options);
    }
    let space = match attach(name) {
        Ok(space) => space,
        Err(e) if e.kind() == Kind::Damaged && !options.dead_only && dir.join(POOL_FILE).exists() => {
            // What cannot be opened has no live members either: they would hold a readable superblock.
            let bytes = allocated_bytes(&dir);
            if !options.dry_run {
                remove_directory(&dir)?;
            }
            return Ok(Ok(Removed { name: name.into(), bytes, reason: "its pool is damaged".into() }));
        }
        Err(e) => return Err(e),
    };
    space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || {
        if let Some(member) = live_member(&space) {
            return Ok(Err(format!("in use by {member}")));
        }
        let reason = match settle_producers(&space) {
            ProducerState::Finished if options.dead_only => {
                return Ok(Err("it ended cleanly; without --dead it goes too".into()));
            }
            ProducerState::Finished => "it ended and nobody has it open",
            _ => "its processes are dead",
        };
        let bytes = allocated_bytes(&space.dir);
        if !options.dry_run {
            space.remove_files()?;
        }
        Ok(Ok(Removed { name: name.into(), bytes, reason: reason.into() }))
    })
}

/// Directories that a process left while it made or removed a space, and soft state without a pool.
fn clean_leftovers(options: &CleanOptions, report: &mut CleanReport) -> Result<()> {
    let root = name::root()?;
    let entries = fs::read_dir(&root).map_err(|e| Error::io("listing spaces", e))?;
    for entry in entries.flatten() {
        let Ok(file) = entry.file_name().into_string() else { continue };
        let maker = [".new-", ".gone-"]
            .iter()
            .find_map(|mark| file.rsplit_once(mark))
            .and_then(|(_, rest)| rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()));
        let Some(pid) = maker.filter(|_| file.starts_with('.')) else { continue };
        if forebay_tier::process::start_time_ticks(pid).is_some() {
            continue;
        }
        let bytes = allocated_bytes(&entry.path());
        if !options.dry_run {
            remove_unfinished(&entry.path())?;
        }
        report.removed.push(Removed {
            name: file,
            bytes,
            reason: "left by a process that was killed".into(),
        });
    }
    Ok(())
}

/// Removes a space, whoever uses it: members that are still there get an error at their next call.
///
/// # Errors
/// `PeerMissing` when there is none.
pub fn destroy(name: &str) -> Result<()> {
    let dir = name::directory(name)?;
    if files::is_stream(&dir) {
        return files::destroy(name, &dir);
    }
    let space = attach(name)?;
    space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || space.remove_files())?;
    // Nobody may find soft state of a pool that is gone.
    let soft = name::root()?.join(soft_name(&space.superblock));
    if soft.exists() {
        remove_directory(&soft)?;
    }
    Ok(())
}
