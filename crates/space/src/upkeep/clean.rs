//! Removing spaces on request, or because the processes that used them are dead.
//!
//! Guarantees: a space that a live process has open stays, unless it is destroyed by its name.
//! Not here: a space that goes because it was read to its end (`open/read_to_end.rs`).

use forebay_tier::host::fs;
use forebay_tier::host::time::Instant;
use std::path::Path;
use std::time::Duration;

use forebay_tier::{Error, Kind, Result};

use super::agent::remove_gone;
use super::channels;
use super::removed::{CleanOptions, CleanReport, Outcome, Removed, BY_A_KILL};
use crate::control::shared_state::{
    remove_abandoned_soft_dir, soft_dirs, soft_dirs_of_path, Unused, MEMBERS_FILE,
};
use crate::open::attach::is_open_anywhere;
use crate::open::channel::{explained, is_of_a_stream, is_stream, is_unfinished, lacks_stream_file};
use crate::open::contents;
use crate::open::create::attach;
use crate::open::directory::{
    self, hidden_directories, remove_directory, remove_unfinished, HiddenDirectory,
};
use crate::open::membership::settle_left_behind;
use crate::open::new_directory::abandoned;
use crate::open::producers::settle_producers;
use crate::open::read_to_end::{live_member, reason, say_kept};
use crate::place::agent::{find_agent, FoundAgent, AGENT_FOLDER};
use crate::place::name;
use crate::place::name::{behind_links, place_of, Hidden};
use crate::upkeep::inspect::{names, names_of};

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the files of a directory have allocated.
fn allocated_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|f| f.metadata().ok()).map(|m| m.blocks() * 512).sum()
}

/// Removes spaces that no live process has open, and what killed processes left of them. Never touches one in use.
///
/// # Errors
/// Those of the root directory, or of a named space of which there is nothing (`PeerMissing`).
pub fn clean(options: &CleanOptions) -> Result<CleanReport> {
    let mut report = CleanReport::default();
    for name in &options.names {
        let cleaned = clean_one(name, options);
        let left = clean_leftovers(Some(name), options, &mut report)?;
        match cleaned {
            Ok(outcome) => report.add(name, outcome),
            Err(e) if e.kind() == Kind::PeerMissing && left => {}
            // What the others have become is told.
            Err(e) if options.names.len() > 1 => report.fail(name, &e),
            Err(e) => return Err(e),
        }
    }
    if options.names.is_empty() {
        let unfinished = names_of(is_unfinished)?;
        for name in names()?.into_iter().chain(unfinished) {
            match clean_one(&name, options) {
                Ok(outcome) => report.add(&name, outcome),
                Err(e) if e.kind() == Kind::PeerMissing => {}
                Err(e) => report.fail(&name, &e),
            }
        }
        clean_leftovers(None, options, &mut report)?;
        if let Err(e) = clean_agent(options, &mut report) {
            report.fail(AGENT_FOLDER, &e);
        }
    }
    Ok(report)
}

/// What an agent of several nodes has left that was killed.
fn clean_agent(options: &CleanOptions, report: &mut CleanReport) -> Result<()> {
    let root = name::root()?;
    let folder = root.join(AGENT_FOLDER);
    let bytes = allocated_bytes(&folder);
    let failed = |e| Error::io(format!("removing {}", folder.display()), e);
    match find_agent(&root) {
        None => {}
        Some(FoundAgent { lives: true, agent, .. }) => {
            let which = agent.map_or(String::new(), |agent| {
                let stop = format!("forebay agent stop --rendezvous {}", agent.rendezvous.display());
                format!(" of job {}, pid {}; `{stop}` stops it", agent.job, agent.pid)
            });
            report.add(AGENT_FOLDER, Err(format!("in use by the agent{which}")));
        }
        Some(_) => match options.dry_run || remove_gone(&root).map_err(failed)? {
            true => report.add(
                AGENT_FOLDER,
                Ok(Removed { name: AGENT_FOLDER.into(), bytes, reason: BY_A_KILL.into() }),
            ),
            false => report.add(AGENT_FOLDER, Err("mirrors of its agent are left".into())),
        },
    }
    Ok(())
}

fn clean_one(name: &str, options: &CleanOptions) -> Result<Outcome> {
    let dir = name::directory(name)?;
    if is_unfinished(&dir) && is_made_here(name, &dir) {
        if let Some(removed) = channels::clean_unfinished(name, &dir, options)? {
            return Ok(Ok(removed));
        }
    }
    if !options.dead_only && lacks_stream_file(&dir) {
        return channels::clean_damaged(name, &dir, options);
    }
    if is_stream(&dir) {
        return match channels::clean(name, &dir, options).map_err(|e| explained(name, &dir, e)) {
            Err(e) if e.kind() == Kind::Damaged && !options.dead_only && is_of_a_stream(&dir) => {
                channels::clean_damaged(name, &dir, options)
            }
            cleaned => cleaned,
        };
    }
    let space = match attach(name) {
        Ok(space) => space,
        Err(e) if !options.dead_only && contents::is_of_a_space(&dir) => {
            let why = match e.kind() {
                Kind::Damaged => "it is damaged",
                // Of the shared state, which is made anew where it is missing.
                Kind::TierFull => {
                    "it is not open in any process, and there is insufficient capacity to open it"
                }
                _ => return Err(e),
            };
            contents::check_own(&dir)?;
            if is_open_anywhere(name, &dir)? {
                return Ok(Err(format!("in use by a live process: {}", e.message())));
            }
            let bytes = allocated_bytes(&dir);
            let kept = if options.dry_run { Vec::new() } else { remove_directory(&dir)? };
            return Ok(Ok(Removed { name: name.into(), bytes, reason: reason(why, &kept) }));
        }
        Err(e) => return Err(e),
    };
    space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || {
        if let Some(member) = live_member(&space) {
            return Ok(Err(format!("in use by {member}")));
        }
        settle_left_behind(&space);
        let why = match settle_producers(&space) {
            state if state.is_finished() && options.dead_only => {
                return Ok(Err("it ended cleanly; without --dead it goes too".into()));
            }
            state if state.is_finished() => "it ended and no process has it open",
            _ => "its processes are dead",
        };
        let bytes = allocated_bytes(&space.dir);
        let kept = if options.dry_run { Vec::new() } else { space.remove_files()? };
        Ok(Ok(Removed { name: name.into(), bytes, reason: reason(why, &kept) }))
    })
}

/// Directories that a process left while it made or removed a space: of the space `of`, else of every one below the
/// root of short names. Whether there were some.
fn clean_leftovers(of: Option<&str>, options: &CleanOptions, report: &mut CleanReport) -> Result<bool> {
    let own = of.map(name::directory).transpose()?.map(|dir| behind_links(&dir));
    let before = report.removed.len() + report.kept.len();
    let soft_dirs = own.as_deref().map_or_else(|| soft_dirs().collect(), soft_dirs_of_path);
    for soft in soft_dirs {
        let bytes = allocated_bytes(&soft);
        let name = soft.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let abandoned = remove_abandoned_soft_dir(&soft, options.dry_run);
        let abandoned = abandoned.inspect_err(|e| report.fail(&name, e)).unwrap_or_default();
        if let Some(why) = abandoned {
            let reason = match why {
                Unused::Unfinished => BY_A_KILL,
                Unused::PoolRemoved => "shared state of a pool that was removed",
            };
            report.removed.push(Removed { name, bytes, reason: reason.into() });
        }
    }
    let (parent, own) = match &own {
        Some(dir) => (dir.parent().unwrap_or(Path::new("/")).to_path_buf(), dir.file_name()),
        None => (name::root()?, None),
    };
    let found = match hidden_directories(&parent) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(|e| Error::io("listing spaces", e))?,
    };
    for HiddenDirectory { path, kind, of: name } in found {
        if own.is_some_and(|own| *own != *name) {
            continue;
        }
        // Of a space that has a path the report names the path.
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let shown =
            if of.is_some_and(name::is_path) { path.display().to_string() } else { file.into_owned() };
        match clean_leftover(&path, kind, &shown, options) {
            Ok(outcome) => report.add(&shown, outcome),
            Err(e) => report.fail(&shown, &e),
        }
    }
    Ok(report.removed.len() + report.kept.len() > before)
}

/// Removes what processes that are gone left while they made, replaced or removed the space `name`, or else any space
/// below the root of short names, as far as it can; no space that has its name, but a channel of files that has it and
/// that no writer has started in.
///
/// # Errors
/// `BadName`; those of the root directory; of such a channel `TimedOut`, `Io`.
pub fn remove_leftovers(name: Option<&str>) -> Result<()> {
    match name {
        Some(name) => {
            remove_unstarted_channel(name)?;
            let (parent, file) = place_of(name, &behind_links(&name::directory(name)?))?;
            directory::remove_leftovers(&parent, Some(&file));
        }
        None => directory::remove_leftovers(&name::root()?, None),
    }
    Ok(())
}

/// What a process left that was killed before it had made a channel of files, or before it had started in it.
fn remove_unstarted_channel(name: &str) -> Result<()> {
    let dir = name::directory(name)?;
    let removed = match () {
        () if is_unfinished(&dir) && is_made_here(name, &dir) => {
            channels::clean_unfinished(name, &dir, &CleanOptions::default()).map(drop)
        }
        () if is_stream(&dir) => channels::remove_unstarted(name, &dir),
        () => Ok(()),
    };
    match removed {
        // What is damaged stays: it may hold versions.
        Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::Damaged) || !dir.exists() => Ok(()),
        removed => removed,
    }
}

/// Whether a directory that may be that of an unfinished channel is one: an empty one that has a path might not have
/// been made here.
fn is_made_here(name: &str, dir: &Path) -> bool {
    !name::is_path(name) || dir.join(MEMBERS_FILE).exists()
}

fn clean_leftover(path: &Path, hidden: Hidden, shown: &str, options: &CleanOptions) -> Result<Outcome> {
    let bytes = allocated_bytes(path);
    let mut held = None;
    if hidden == Hidden::New {
        match abandoned(path, options.dry_run)? {
            Ok(abandoned) => held = Some(abandoned),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    let kept = if options.dry_run { Vec::new() } else { remove_unfinished(path)? };
    drop(held);
    Ok(Ok(Removed { name: shown.into(), bytes, reason: reason(BY_A_KILL, &kept) }))
}

/// Removes a space, also one that is in use: members that are still there get an error at their next call.
///
/// # Errors
/// `PeerMissing` when there is none.
pub fn destroy(name: &str) -> Result<()> {
    let dir = name::directory(name)?;
    if is_stream(&dir) {
        return channels::destroy(name, &dir);
    }
    let space = attach(name)?;
    let kept = space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || space.remove_files())?;
    say_kept(&space, &kept);
    Ok(())
}
