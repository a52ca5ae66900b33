//! The shared state of a space, control segment and members file: where it stands, how it is opened, rebuilt from the
//! lanes, and removed.
//!
//! On a memory tier it stands beside the pool. For pools on other tiers it stands in shared memory, in
//! `.soft-<uuid>-<inode of the pool>` beside the short names, because a page cache would write it to the disk over and
//! over; one such soft directory at a time is in use ([`crate::control::ownership`]). The link `pool` in it says whose
//! it is, so that it goes with `clean` once its pool was removed by hand.

use forebay_config::Retention;
use forebay_tier::host::fs::{self, File};
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{self, Relaxed};
use std::time::Duration;

use forebay_log::format::{IncarnationDf, Superblock, HEADER_BYTES, INCARNATION_OFFSETS};
use forebay_log::recover;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{process, Device, Error, Kind, Result};

use crate::control::cursors::{Cursor, CursorsFile, Found};
use crate::control::ownership::{Claim, FileId, Ownership};
use crate::control::{group, head, Control, GranuleState, LANES_MAX};
use crate::place::name::{behind_links, hidden};
use crate::place::pool::{has_other_name, read_superblock, retention_of, uuid_bytes, POOL_FILE};
use crate::place::removal::remove_all;
use crate::place::{name, tiers};

/// Names of its files.
pub(crate) const CONTROL_FILE: &str = "control";
pub(crate) const MEMBERS_FILE: &str = "members";
const CONTROL_NEW_FILE: &str = "control.new";
/// Name of the link to the pool.
const POOL_LINK: &str = "pool";
/// Names of soft directories begin with this.
pub(crate) const SOFT_PREFIX: &str = ".soft-";

/// Kernel locks on bytes of the members file beyond the slots.
pub(crate) const LOCK_SETUP: u64 = 1 << 20;
pub(crate) const LOCK_ALLOCATE: u64 = (1 << 20) + 1;
pub(crate) const LOCK_ATTRIBUTES: u64 = (1 << 20) + 2;
pub(crate) const LOCK_ADOPT: u64 = (1 << 20) + 3;

/// How often a process checks again before a space counts as in use through another soft directory.
const REFUSALS: u32 = 5;
/// A soft directory without a control segment is in use only while that is made, under the setup lock.
const UNUSED_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// The directory of the shared state of a pool; None: that of the pool.
pub(crate) fn soft_dir_of(superblock: &Superblock, inode: u64) -> Result<Option<PathBuf>> {
    if superblock.tier.is_memory() {
        return Ok(None);
    }
    // The inode too: a copy of a pool has the same uuid.
    let uuid = uuid::Uuid::from_bytes(superblock.uuid);
    Ok(Some(name::make_root()?.join(format!("{SOFT_PREFIX}{uuid}-{inode:x}"))))
}

/// Where control segment and members file stand; made where it is missing and no process uses another one.
pub(crate) fn make_soft_dir(
    dir: &Path,
    superblock: &Superblock,
    pool: FileId,
    ownership: &Ownership,
) -> Result<PathBuf> {
    let Some(soft) = soft_dir_of(superblock, pool.inode)? else { return Ok(dir.to_path_buf()) };
    // A process that makes it, or that gives up because it could not, holds the pool for a moment.
    let mut tries = REFUSALS;
    while !soft.exists() {
        match ownership.refuse_new_directory(&soft, pool) {
            Err(_) if tries > 0 => forebay_tier::host::thread::sleep(Duration::from_millis(1)),
            refused => {
                refused?;
                break;
            }
        }
        tries -= 1;
    }
    match fs::DirBuilder::new().mode(0o700).create(&soft) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::io(format!("cannot create {}", soft.display()), e));
        }
        _ => {}
    }
    // Where locks are refused another soft directory would be refused as well: this one stays until the next boot.
    if ownership.has_locks() {
        note_pool(&soft, dir);
    }
    Ok(soft)
}

/// Says in a soft directory which pool it is of. A space opens without it: then the soft directory stays where the pool
/// is removed by hand.
fn note_pool(soft: &Path, dir: &Path) {
    if dir.file_name().is_some_and(|name| hidden(&name.to_string_lossy()).is_some()) {
        return; // its name is to come
    }
    let link = soft.join(POOL_LINK);
    let noted = fs::read_link(&link).ok();
    // A pool with two names stays under the other one.
    let pool = pool_path(dir).filter(|_| !has_other_name(dir).unwrap_or(true));
    if noted == pool {
        return;
    }
    // The space was moved.
    let _ = fs::remove_file(&link);
    if let Some(pool) = pool {
        let _ = std::os::unix::fs::symlink(pool, link);
    }
}

/// Where the pool in a directory is, whatever links lead to it.
fn pool_path(dir: &Path) -> Option<PathBuf> {
    let dir = behind_links(dir);
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(parent).ok()?.join(dir.file_name()?).join(POOL_FILE))
}

/// Whether the pool of a soft directory is not, or no longer, where it was opened last.
fn pool_has_gone(soft: &Path) -> bool {
    if fs::read_link(soft.join(POOL_LINK)).is_err() {
        return false;
    }
    match fs::metadata(soft.join(POOL_LINK)) {
        Ok(meta) => !names_inode(soft, FileId::of(&meta).inode),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

fn names_inode(soft: &Path, inode: u64) -> bool {
    soft.to_string_lossy().ends_with(&format!("-{inode:x}"))
}

/// The soft directories whose pool was opened last by this path.
pub(crate) fn soft_dirs_of_path(dir: &Path) -> Vec<PathBuf> {
    let Some(pool) = pool_path(dir) else { return Vec::new() };
    let is_of_it = |soft: &PathBuf| fs::read_link(soft.join(POOL_LINK)).is_ok_and(|link| link == pool);
    soft_dirs().filter(is_of_it).collect()
}

/// All soft directories below the root of short names.
pub(crate) fn soft_dirs() -> impl Iterator<Item = PathBuf> {
    let entries = name::root().ok().and_then(|root| fs::read_dir(root).ok());
    let named = entries.into_iter().flatten().flatten();
    let named = named.filter(|entry| entry.file_name().to_string_lossy().starts_with(SOFT_PREFIX));
    named.map(|entry| entry.path())
}

/// The members file of a space. A control segment has one for as long as it is there: where it is missing and processes
/// have the space open, one that is made anew would say that all of them are dead.
pub(crate) fn members_of(soft_dir: &Path, ownership: &Ownership) -> Result<MembersFile> {
    // Asked in this order: the members file is made first.
    let has_control = soft_dir.join(CONTROL_FILE).exists();
    let path = soft_dir.join(MEMBERS_FILE);
    if has_control && !path.exists() && ownership.is_live()? {
        let text = "the members file of the space was removed while processes have it open";
        return Err(Error::new(Kind::Damaged, text)
            .with("file", path.display())
            .hint("end these processes; the next process rebuilds it"));
    }
    MembersFile::create(&path)
}

/// Removes a soft directory that a process made for a pool which has gone: another process may have removed that one
/// before. One with a control segment was used.
pub(crate) fn remove_unused_soft_dir(soft: &Path) {
    if !soft.join(CONTROL_FILE).exists() {
        let _ = fs::remove_file(soft.join(MEMBERS_FILE));
        let _ = fs::remove_file(soft.join(POOL_LINK));
        // Fails where another process has made more.
        let _ = fs::remove_dir(soft);
    }
}

/// Why a soft directory is not used any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused {
    /// The process that made it was killed before it had made the control segment.
    Unfinished,
    /// Its pool was removed by hand.
    PoolRemoved,
}

/// Removes a soft directory that no process uses any more, and says why; in a dry run it stays.
///
/// # Errors
/// `Io`.
pub(crate) fn remove_abandoned_soft_dir(soft: &Path, dry_run: bool) -> Result<Option<Unused>> {
    let path = soft.join(MEMBERS_FILE);
    let why = || match soft.join(CONTROL_FILE).exists() {
        _ if pool_has_gone(soft) => Some(Unused::PoolRemoved),
        false => Some(Unused::Unfinished),
        true => None,
    };
    if why().is_none() || !soft.is_dir() {
        return Ok(None);
    }
    if !path.exists() {
        // A process that has just made it makes another one. With a control segment it stays: it may be in use.
        let has_control = soft.join(CONTROL_FILE).exists();
        let removes = || fs::remove_file(soft.join(POOL_LINK)).and_then(|()| fs::remove_dir(soft));
        let goes = || dry_run || fs::remove_dir(soft).is_ok() || removes().is_ok();
        return Ok(why().filter(|_| !has_control && goes()));
    }
    let members = match MembersFile::open(&path) {
        Err(_) if !path.exists() => return Ok(None),
        members => members?,
    };
    let removed = members.with_lock(LOCK_SETUP, UNUSED_LOCK_TIMEOUT, || {
        let Some(why) = why().filter(|_| members.is_there() && !members.is_any_alive()) else {
            return Ok(None);
        };
        if !dry_run {
            // An opener that waits for the lock finds the members file gone and makes it all anew.
            let _ = fs::remove_file(soft.join(CONTROL_NEW_FILE));
            if why == Unused::PoolRemoved {
                let _ = fs::remove_file(soft.join(CONTROL_FILE));
            }
            remove_unused_soft_dir(soft);
        }
        Ok(Some(why).filter(|_| dry_run || !soft.exists()))
    });
    match removed {
        Err(e) if e.kind() == Kind::TimedOut => Ok(None),
        removed => removed,
    }
}

/// Removes the directory of the shared state of the pool in `dir`, where it is another one.
pub(crate) fn remove_soft_dir(dir: &Path) -> Result<()> {
    let looking = |e| Error::io(format!("cannot stat the pool file in {}", dir.display()), e);
    if has_other_name(dir).map_err(looking)? {
        return Ok(());
    }
    let pool = dir.join(POOL_FILE);
    // The next clean tries again: without the pool its shared state would not be found any more.
    let file = match forebay_tier::plain::open_regular(&pool) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || tiers::is_other(&e) => return Ok(()),
        file => file.map_err(looking)?,
    };
    let meta = file.metadata().map_err(looking)?;
    let soft = match read_superblock(&file, &pool) {
        Ok(superblock) => soft_dir_of(&superblock, FileId::of(&meta).inode)?,
        // Its name has the uuid of the pool in it, which nothing says any more.
        Err(_) => soft_dir_of_damaged(FileId::of(&meta)),
    };
    let Some(soft) = soft else { return Ok(()) };
    remove_all(&soft)
}

/// The directory whose control segment says that it is of this pool file.
fn soft_dir_of_damaged(pool: FileId) -> Option<PathBuf> {
    let is_of_pool = |soft: &PathBuf| {
        let word = |file: &File, at: usize| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at as u64).map(|()| u64::from_ne_bytes(bytes)).ok()
        };
        let control = forebay_tier::plain::open_regular(&soft.join(CONTROL_FILE)).ok();
        control.is_some_and(|file| {
            let found = (word(&file, head::POOL_DEVICE), word(&file, head::POOL_INODE));
            found == (Some(pool.device), Some(pool.inode))
        })
    };
    soft_dirs().filter(|soft| names_inode(soft, pool.inode)).find(is_of_pool)
}

/// What a control segment is opened or made with.
pub(crate) struct Soft<'a> {
    pub dir: &'a Path,
    pub pool_dir: &'a Path,
    pub ownership: &'a Ownership,
    pub members: &'a MembersFile,
    pub deadline: Instant,
}

impl Soft<'_> {
    /// Under the setup lock: removes the directory, unless it is the pool's or a process uses it. Its control segment
    /// could not be made.
    pub(crate) fn remove_unused(&self) {
        let has_user = || self.members.is_any_alive() || self.ownership.is_live().unwrap_or(true);
        if self.dir != self.pool_dir && !has_user() {
            remove_unused_soft_dir(self.dir);
        }
    }
}

/// Under the setup lock: the control segment as it is, or rebuilt, where no process uses the pool through another one.
pub(crate) fn open_or_rebuild_control(
    soft: &Soft<'_>,
    pool: &File,
    superblock: &Superblock,
    device: &dyn Device,
    pools: &[Range<usize>],
) -> Result<Control> {
    let path = soft.dir.join(CONTROL_FILE);
    let boot = uuid_bytes(process::boot_id());
    let identity = FileId::of(&pool.metadata().map_err(|e| Error::io("cannot stat the pool file", e))?);
    let noted = noted_incarnation(pool, superblock)?;
    let found = Control::open(&path, superblock, &boot, identity, noted)?;
    let claim = Claim {
        soft_dir: soft.dir,
        pool: identity,
        members: soft.members,
        control: found.as_ref().map(Control::instance).map_err(|misfit| *misfit),
    };
    let make = |instance| {
        let new = soft.dir.join(CONTROL_NEW_FILE);
        let _ = fs::remove_file(&new); // left by a process that was killed here: who makes one holds the setup lock
        let made = Control::create(&new, superblock, &boot, instance, identity).and_then(|control| {
            for lower in &pools[1..] {
                control.set_granule_state(lower.start - 1, GranuleState::Superblock);
            }
            rebuild(&control, superblock, device)?;
            if !superblock.tier.is_memory() {
                if let Some(found) = CursorsFile::read(soft.pool_dir, &superblock.uuid)? {
                    restore_groups(&control, &found)?;
                }
            }
            fs::rename(&new, &path)
                .map_err(|e| Error::io("cannot rename the control segment to its final name", e))?;
            Ok(control)
        });
        made.inspect_err(|_| drop(fs::remove_file(&new)))
    };
    match (soft.ownership.claim(&claim, soft.deadline, make)?, found) {
        (Some(control), _) | (None, Ok(control)) => Ok(control),
        (None, Err(_)) => {
            Err(Error::new(Kind::Internal, "a control segment that cannot be used was claimed"))
        }
    }
}

/// The newest incarnation that the pool file has noted. Read past the device, as the superblock is: no operation of it
/// is meant.
fn noted_incarnation(pool: &File, superblock: &Superblock) -> Result<Option<u32>> {
    let mut page = vec![0; HEADER_BYTES as usize];
    pool.read_exact_at(&mut page, 0).map_err(|e| Error::io("reading the first page of the pool", e))?;
    let notes = INCARNATION_OFFSETS.map(|at| IncarnationDf::decode(&page[at as usize..], &superblock.uuid));
    Ok(notes.into_iter().flatten().map(|df| df.number).max())
}

/// Fills an empty control segment from what the lanes hold.
fn rebuild(control: &Control, superblock: &Superblock, device: &dyn Device) -> Result<()> {
    let found = recover(device, superblock)?;
    for segment in &found.segments {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.describe_run(first, segment.df.sequence, length, segment.last_version);
        control.set_filled(first, segment.filled_bytes);
        control.set_granule_state(first, GranuleState::Segment { lane: segment.lane(), slot: None });
    }
    for segment in &found.stale {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.describe_run(first, segment.df.sequence, length, 0);
        control.set_granule_state(first, GranuleState::Leaving { lane: segment.lane(), slot: None });
    }
    for incarnation in &found.incarnations {
        control.remember(incarnation.number, incarnation.size, incarnation.base);
    }
    let oldest = match retention_of(superblock.retention) {
        Retention::Last(k) => found.oldest.max(found.complete.saturating_sub(k)),
        _ => found.oldest,
    };
    control.set_oldest(oldest);
    let Some(last) = found.incarnations.last() else { return Ok(()) };
    // A group that wrote nothing left the stream as it was: it may have been refused.
    let has_begun = |number: u32| found.segments.iter().any(|segment| segment.lane().incarnation == number);
    let newest_begun = found.incarnations.iter().rev().find(|group| has_begun(group.number)).unwrap_or(last);
    let ranks = (last.size as usize).min(LANES_MAX);
    for rank in 0..ranks as u32 {
        control.set_progress(rank, last.number, last.committed[rank as usize]);
    }
    control.word(head::BASE).store(last.base, Ordering::Release);
    control.set_producers(last.number, ranks as u32);
    let has_finished = newest_begun.ended.iter().all(|ended| *ended);
    control.close_producers(last.number, has_finished);
    Ok(())
}

/// Fills the table of groups of a control segment that no other process knows yet from what the file says. Versions
/// that the pool has lost, as it may at horizon `none`, are not counted as read.
fn restore_groups(control: &Control, found: &Found) -> Result<()> {
    let (oldest, complete) = (control.oldest(), control.complete());
    for (index, record) in &found.groups {
        // The file gives no record without them.
        let Some(places) = record.places() else { continue };
        let mut start = complete;
        for place in places.clone() {
            let cursor = match found.cursor(place) {
                Cursor::Free => Cursor::At(oldest),
                Cursor::At(version) => Cursor::At(version.min(complete)),
                cursor => cursor,
            };
            if let Cursor::At(version) = cursor {
                start = version.min(start);
            }
            // A damaged one stays damaged, for who needs it to say so.
            control.set_cursor_as_found(place, cursor);
        }
        control.group(*index, group::SIZE).store(u64::from(record.size), Relaxed);
        control.set_group_name(*index, &record.name);
        control.group(*index, group::POLICY).store(u64::from(record.policy), Relaxed);
        control.set_group_cursors(*index, &places);
        control.group(*index, group::START).store(start, Relaxed);
        control.group(*index, group::CAME).store(u64::from(record.came), Relaxed);
        control.sum_group(*index);
        control.register_group(*index);
    }
    Ok(())
}
