//! Levels of memory after their programs: whose they are, who uses them, and removing those that no process can need.
//!
//! A level of memory lies apart from its checkpoint directory, and outlives it. So it says whose it is (`level.json`),
//! and each rank that has it open holds a kernel record lock on a byte of its `members`, as in that directory.
//!
//! Guarantees: [`clean`] never takes a level away from a live process, nor one whose checkpoint directory may come
//! back: it goes when that directory is gone from a file system that is there, or when it is named. Not here: memory
//! of other nodes.

use forebay_tier::host::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_tier::liveness::{MembersFile, SlotGuard};
use forebay_tier::{Error, Kind, Result, TierKind};
use serde::{Deserialize, Serialize};

use super::{control, is_alive};
use crate::format::SIZE_MAX;
use crate::place::{make_own, Directory, Place};

/// The directory of all levels of memory, below the root of spaces.
pub(crate) const FOLDER: &str = ".checkpoints";
const RECORD: &str = "level.json";
const MEMBERS: &str = "members";
const SCHEMA: &str = "forebay.checkpoint-level/1";
/// The lock under which ranks come and the level goes.
const COME_AND_GO: u64 = 0;
/// Prefix of a level that is being removed; the process number follows.
const GONE: &str = ".gone-";
/// How long `clean` waits for ranks that are just coming.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest `level.json`.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// What `level.json` says.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    schema: String,
    /// The checkpoint directory.
    base: PathBuf,
    /// Where the file system is mounted that held it.
    mount: PathBuf,
    /// Ranks of the run that came last.
    size: u32,
}

/// Which levels of memory to remove.
#[derive(Clone, Debug, Default)]
pub struct CleanOptions {
    /// Those of this checkpoint directory, which may be there or not. None: those whose directory is gone.
    pub checkpoint: Option<PathBuf>,
    /// Say what would go, remove nothing.
    pub dry_run: bool,
}

/// A level that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes of memory it had.
    pub bytes: u64,
    /// Why it could go.
    pub reason: String,
}

/// What was removed, or would be, and what was kept with the reason.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// Removed.
    pub removed: Vec<Removed>,
    /// Kept.
    pub kept: Vec<(PathBuf, String)>,
    /// Kept because of an error.
    pub failed: Vec<(PathBuf, Error)>,
}

/// Joins a level of memory as one rank: it stays as long as this process holds what is returned.
///
/// # Errors
/// `NameInUse` when a live process holds the rank there; `TimedOut`; those of the operating system.
pub(crate) fn attend(dir: &Path, base: &Path, rank: u32, size: u32, timeout: Duration) -> Result<SlotGuard> {
    let file = dir.join(MEMBERS);
    let inode = || fs::metadata(&file).map(|found| found.ino()).ok();
    // It may go while this rank comes; then it is made again.
    for _ in 0..100 {
        make_own(dir)?;
        let before = inode();
        let members = match MembersFile::create(&file) {
            Err(_) if !dir.is_dir() => continue,
            members => members?,
        };
        let slot = members.with_lock(COME_AND_GO, timeout, || {
            if before.is_none() || inode() != before {
                return Ok(None);
            }
            let slot = members.lock_slot(rank)?.ok_or_else(|| in_use(dir, rank, &members))?;
            write_owner(dir, base, size)?;
            Ok(Some(slot))
        })?;
        if let Some(slot) = slot {
            return Ok(slot);
        }
    }
    Err(Error::new(Kind::TimedOut, format!("another process keeps removing {}", dir.display()))
        .hint("stop the process that runs `forebay clean` in a loop"))
}

#[cold]
fn in_use(dir: &Path, rank: u32, members: &MembersFile) -> Error {
    Error::new(Kind::NameInUse, format!("rank {rank} of {} is held by a live process", dir.display()))
        .with("pid", members.holder(rank).unwrap_or(0))
        .hint("a process of an earlier run is still running: end it")
}

fn write_owner(dir: &Path, base: &Path, size: u32) -> Result<()> {
    let owner = Owner { schema: SCHEMA.into(), base: base.to_path_buf(), mount: mount_of(base)?, size };
    let text = serde_json::to_vec_pretty(&owner)
        .map_err(|e| Error::new(Kind::BadName, format!("{} is not UTF-8", base.display())).caused_by(e))?;
    let level = Directory::existing(dir, TierKind::File, "level")?;
    level.store(&format!(".{RECORD}"), &text)?;
    level.rename(&format!(".{RECORD}"), RECORD)
}

/// Where the file system of a directory is mounted.
fn mount_of(path: &Path) -> Result<PathBuf> {
    let looking = |e| Error::io(format!("cannot stat {}", path.display()), e);
    let device = fs::metadata(path).map_err(looking)?.dev();
    let same = |above: &&Path| fs::metadata(above).is_ok_and(|found| found.dev() == device);
    Ok(path.ancestors().take_while(same).last().unwrap_or(path).to_path_buf())
}

/// Whether something is mounted at a path; the root always is.
fn is_mounted(mount: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    match mount.parent() {
        None => true,
        Some(above) => device(mount).is_some_and(|here| device(above) != Some(here)),
    }
}

/// Removes levels of memory below `root` (the root of spaces) that no process can need; see the file's head.
///
/// # Errors
/// Those of the operating system.
pub fn clean(root: &Path, options: &CleanOptions) -> Result<Cleaned> {
    let folder = root.join(FOLDER);
    let wanted = options.checkpoint.as_deref().map(resolved).transpose()?;
    let mut cleaned = Cleaned::default();
    for name in Directory::for_looking(&folder, TierKind::File)?.list("")? {
        let dir = folder.join(&name);
        if let Err(e) = clean_level(&dir, &name, wanted.as_deref(), options, &mut cleaned) {
            cleaned.failed.push((dir, e));
        }
    }
    Ok(cleaned)
}

fn clean_level(
    dir: &Path,
    name: &str,
    wanted: Option<&Path>,
    options: &CleanOptions,
    cleaned: &mut Cleaned,
) -> Result<()> {
    if let Some(maker) = name.strip_prefix(GONE) {
        let pid = maker.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        return match pid.is_some_and(|pid| forebay_tier::process::start_time_ticks(pid).is_none()) {
            true => remove(dir, "left by a process that was killed".into(), options, cleaned),
            false => Ok(()),
        };
    }
    let owner = match owner_of(dir) {
        // Nothing says that it is of this checkpoint.
        Err(_) if wanted.is_some() => return Ok(()),
        owner => owner?,
    };
    if wanted.is_some() && owner.as_ref().map(|owner| owner.base.as_path()) != wanted {
        return Ok(());
    }
    match why_removable(owner.as_ref(), wanted.is_some())? {
        Ok(reason) => remove_unused(dir, owner.as_ref(), reason, options, cleaned),
        Err(reason) => {
            cleaned.kept.push((dir.to_path_buf(), reason));
            Ok(())
        }
    }
}

/// A path as `level.json` names it, whether it is there or not.
fn resolved(path: &Path) -> Result<PathBuf> {
    let wrong = |e| Error::io(format!("cannot resolve the path {}", path.display()), e);
    path.canonicalize().or_else(|_| std::path::absolute(path)).map_err(wrong)
}

fn owner_of(dir: &Path) -> Result<Option<Owner>> {
    let text = Directory::for_looking(dir, TierKind::File)?.load(RECORD, RECORD_BYTES_MAX)?;
    let owner: Option<Owner> = text.and_then(|text| serde_json::from_slice(&text).ok());
    Ok(owner.filter(|owner| owner.schema == SCHEMA))
}

/// Why a level may go, or why it stays, as far as its checkpoint directory says.
fn why_removable(owner: Option<&Owner>, named: bool) -> Result<std::result::Result<String, String>> {
    let Some(owner) = owner else { return Ok(Err("it does not say whose it is".into())) };
    let base = owner.base.display();
    match fs::metadata(&owner.base) {
        Ok(_) => {
            let running = control(&owner.base)?.map_or(Ok(false), |found| is_alive(&found, &owner.base))?;
            Ok(match (running, named) {
                (true, _) => Err(format!("the program of {base} is running")),
                (false, true) => Ok(format!("memory of the checkpoint {base}")),
                (false, false) => Err(format!("a restart with {base} may need it")),
            })
        }
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(match named || is_mounted(&owner.mount) {
                true => Ok(format!("memory of the checkpoint {base}, which is gone")),
                false => Err(format!("nothing is mounted at {}, where {base} was", owner.mount.display())),
            })
        }
        Err(e) => Ok(Err(format!("{base} cannot be looked at: {e}"))),
    }
}

/// Removes a level unless a live process has it open.
fn remove_unused(
    dir: &Path,
    owner: Option<&Owner>,
    reason: String,
    options: &CleanOptions,
    cleaned: &mut Cleaned,
) -> Result<()> {
    let members = match MembersFile::open(&dir.join(MEMBERS)) {
        Ok(members) => members,
        // Another process removes it, or made it a moment ago.
        Err(e) => {
            cleaned.kept.push((dir.to_path_buf(), e.message().to_string()));
            return Ok(());
        }
    };
    members.with_lock(COME_AND_GO, CLEAN_TIMEOUT, || {
        let size = owner.map_or(1, |owner| owner.size.min(SIZE_MAX));
        if let Some(rank) = (0..size).find(|rank| members.is_alive(*rank)) {
            let pid = members.holder(rank).unwrap_or(0);
            cleaned.kept.push((dir.to_path_buf(), format!("in use by rank {rank}, pid {pid}")));
            return Ok(());
        }
        remove(dir, reason, options, cleaned)
    })
}

/// Takes the name away first, so that no process finds half a level.
fn remove(dir: &Path, reason: String, options: &CleanOptions, cleaned: &mut Cleaned) -> Result<()> {
    let removing = |e| Error::io(format!("cannot remove {}", dir.display()), e);
    let bytes = allocated_bytes(dir);
    if !options.dry_run {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let gone = match name.starts_with(GONE) {
            true => dir.to_path_buf(),
            false => dir.with_file_name(format!("{GONE}{}-{name}", std::process::id())),
        };
        fs::rename(dir, &gone).and_then(|()| fs::remove_dir_all(&gone)).map_err(removing)?;
    }
    cleaned.removed.push(Removed { dir: dir.to_path_buf(), bytes, reason });
    Ok(())
}

/// Bytes that a directory and all below it have allocated.
fn allocated_bytes(dir: &Path) -> u64 {
    let below = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated_bytes(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    };
    fs::read_dir(dir).into_iter().flatten().flatten().map(below).sum()
}
