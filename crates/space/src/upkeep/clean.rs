//! Removing spaces: when they were read to their end, on request, or because the processes that used them are dead.

use forebay_config::Retention;
use forebay_tier::host::fs;
use forebay_tier::host::time::Instant;
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::control::member;
use crate::control::shared_state::{
    remove_abandoned_soft_dir, soft_dirs, soft_dirs_of_path, Unused, MEMBERS_FILE,
};
use crate::files;
use crate::open::attach::{is_open_anywhere, Attachment};
use crate::open::contents;
use crate::open::directory::{
    self, hidden_directories, remove_directory, remove_unfinished, HiddenDirectory,
};
use crate::open::groups::{has_read_all, registered_groups, was_read_by};
use crate::open::membership::{describe, settle_left_behind, settle_producers};
use crate::open::new_directory::{abandoned, Hidden};
use crate::place::name;
use crate::place::name::{behind_links, place_of};
use crate::upkeep::inspect::{attach, names, names_of};

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
    /// It could not be removed; else it is in use, or is not to be removed by this call.
    pub failed: bool,
    /// The kind of the error; `NameInUse` where nothing failed.
    #[serde(skip)]
    pub kind: Kind,
}

impl Kept {
    /// It is in use, or this call does not remove it.
    pub fn in_use(name: String, reason: String) -> Kept {
        Kept { name, reason, failed: false, kind: Kind::NameInUse }
    }

    /// It could not be removed.
    pub fn failed(name: String, error: &Error) -> Kept {
        Kept { name, reason: error.to_string(), failed: true, kind: error.kind() }
    }
}

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const BY_A_KILL: &str = "left by a process that was killed";

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

/// Whether every reader group of a finished stream has read all that it was to read, and a rank all there is.
fn is_read_to_its_end(space: &Attachment) -> bool {
    let control = &space.control;
    let groups = || registered_groups(control);
    // What no rank has read to its end stays where all have left, too.
    groups().any(|i| was_read_by(space, i)) && groups().all(|i| has_read_all(space, i))
}

/// Called whenever a member has gone: the last one takes a space away that was read to its end.
pub(crate) fn remove_if_read(space: &Attachment) {
    let may_go = || {
        space.retention() == Retention::Released
            && space.control.producer_state().is_finished()
            && is_read_to_its_end(space)
            && live_member(space).is_none()
    };
    if !may_go() {
        return;
    }
    // A space that cannot be removed now stays for `forebay clean`; the program that ends here did its work.
    let removed = space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || {
        if may_go() {
            say_kept(space, &space.remove_files()?);
        }
        Ok(())
    });
    if let Err(e) = removed {
        if e.kind() != Kind::PeerMissing {
            eprintln!("forebay: removing space {}: {e}", space.name);
        }
    }
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
        let unfinished = names_of(files::is_unfinished)?;
        for name in names()?.into_iter().chain(unfinished) {
            match clean_one(&name, options) {
                Ok(outcome) => report.add(&name, outcome),
                Err(e) if e.kind() == Kind::PeerMissing => {}
                Err(e) => report.fail(&name, &e),
            }
        }
        clean_leftovers(None, options, &mut report)?;
    }
    Ok(report)
}

/// What became of a space, or why it stays.
type Outcome = std::result::Result<Removed, String>;

impl CleanReport {
    fn add(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(removed) => self.removed.push(removed),
            Err(reason) => self.kept.push(Kept::in_use(name.into(), reason)),
        }
    }

    fn fail(&mut self, name: &str, error: &Error) {
        self.kept.push(Kept::failed(name.into(), error));
    }
}

fn clean_one(name: &str, options: &CleanOptions) -> Result<Outcome> {
    let dir = name::directory(name)?;
    if files::is_unfinished(&dir) && is_made_here(name, &dir) {
        if let Some(removed) = files::clean_unfinished(name, &dir, options)? {
            return Ok(Ok(removed));
        }
    }
    if !options.dead_only && files::lacks_stream_file(&dir) {
        return files::clean_damaged(name, &dir, options);
    }
    if files::is_stream(&dir) {
        return match files::clean(name, &dir, options).map_err(|e| files::explained(name, &dir, e)) {
            Err(e) if e.kind() == Kind::Damaged && !options.dead_only && files::is_of_a_stream(&dir) => {
                files::clean_damaged(name, &dir, options)
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
                Kind::TierFull => "no process has it open, and there is no capacity to open it",
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

/// Why a space could go, and which files stay.
fn reason(why: &str, kept: &[String]) -> String {
    match kept {
        [] => why.into(),
        kept => format!("{why}; lower pools that stay: {}", kept.join("; ")),
    }
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
        () if files::is_unfinished(&dir) && is_made_here(name, &dir) => {
            files::clean_unfinished(name, &dir, &CleanOptions::default()).map(drop)
        }
        () if files::is_stream(&dir) => files::remove_unstarted(name, &dir),
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
    if files::is_stream(&dir) {
        return files::destroy(name, &dir);
    }
    let space = attach(name)?;
    let kept = space.with_setup_lock(Instant::now() + LOCK_TIMEOUT, || space.remove_files())?;
    say_kept(&space, &kept);
    Ok(())
}

/// What stays of a space that is removed without a report.
fn say_kept(space: &Attachment, kept: &[String]) {
    if !kept.is_empty() {
        eprintln!("forebay: {}", reason(&format!("space {} was removed", space.name), kept));
    }
}
