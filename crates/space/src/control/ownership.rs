//! Which shared state a pool is used through: one at a time, decided by a kernel lock that belongs to the pool.
//!
//! Each control segment has a random number, its instance. Each attachment holds a shared lock on the byte of that
//! number in the file `lock` beside the pool, so that the byte is locked exactly while a process uses that control
//! segment. Guarantees: a control segment is made only while no byte of another one is locked, so that processes with
//! another FOREBAY_DIR, another /dev/shm or another version of the control segment are refused while a process lives;
//! one that was superseded in the meantime is not used again, because the content of `lock` names the current one.
//! Each side locks its own byte before it looks at the others', so of two that come at once at most one goes on.
//!
//! Where the file system refuses locks, the file `owner-BOOT` names the soft directory that may be used until the next
//! boot. Whether its owner lives is not known then, so every other soft directory is refused.
//! Not here: who is alive within one soft directory (the members file).

use forebay_tier::host::fs;
use forebay_tier::host::time::Instant;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_tier::liveness::MembersFile;
use forebay_tier::pool_lock::PoolLock;
use forebay_tier::{process, Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::layout::CONTROL_VERSION;
use crate::place::name::{hidden, Hidden};
use crate::place::{trial, whole_file};

/// Name of the lock file in the directory of a space.
pub(crate) const LOCK_FILE: &str = "lock";
const SCHEMA: &str = "forebay.owner/1";

/// Bytes of the lock file: held while it is decided which control segment is current, and while that is made.
const TURN: u64 = 0;
/// Tried once, to see whether the file system takes locks.
pub(crate) const PROBE: u64 = 1;
/// Held by the process that makes the directory, until it is in place.
pub(crate) const MAKER: u64 = 2;
/// Instances of control segments.
pub(crate) const INSTANCES: Range<u64> = 1 << 32..1 << 62;

/// A file as the kernel knows it, whatever its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl FileId {
    pub(crate) fn of(meta: &fs::Metadata) -> FileId {
        FileId { device: meta.dev(), inode: meta.ino() }
    }
}

/// What `lock` or `owner-BOOT` says: who made the current control segment, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Owner {
    schema: String,
    instance: u64,
    control_version: u64,
    host: String,
    boot: String,
    pid: u32,
    soft_directory: String,
    soft: FileId,
    pool: FileId,
}

/// Why a control segment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// There is none.
    Missing,
    /// It has another version.
    Version(u64),
    /// It belongs to another boot or pool, or is damaged.
    Foreign,
    /// It belongs to another pool file of the same UUID.
    PoolFile,
    /// The pool file does not know of the writers that it names.
    OlderPool,
}

/// What a process wants to use a pool through.
pub(crate) struct Claim<'a> {
    pub soft_dir: &'a Path,
    pub pool: FileId,
    pub members: &'a MembersFile,
    /// The instance of the control segment that is there.
    pub control: std::result::Result<u64, Misfit>,
}

/// The hold of an attachment on its pool; it ends when this is dropped.
pub(crate) struct Ownership {
    lock: PoolLock,
    has_locks: bool,
    space: String,
    dir: PathBuf,
}

impl Ownership {
    /// Opens the lock file of the space in `dir`.
    ///
    /// # Errors
    /// Those of making or opening the file.
    pub(crate) fn open(space: &str, dir: &Path) -> Result<Ownership> {
        let lock = PoolLock::open(&dir.join(LOCK_FILE))?;
        let lock = if trial::refuses_locks()? { lock.refusing() } else { lock };
        let has_locks = lock.works(PROBE)?;
        Ok(Ownership { lock, has_locks, space: space.to_string(), dir: dir.to_path_buf() })
    }

    /// Whether the file system takes locks.
    pub(crate) fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// Whether any process, perhaps this one by another attachment, has the space open; where the file system refuses
    /// locks, whether one had it open in this boot.
    pub(crate) fn is_live(&self) -> Result<bool> {
        match self.has_locks {
            true => self.lock.is_held(&INSTANCES),
            false => Ok(self.owner()?.is_some()),
        }
    }

    /// Refuses a soft directory that does not exist yet while the space is used through another one.
    pub(crate) fn refuse_new_directory(&self, soft_dir: &Path, pool: FileId) -> Result<()> {
        match self.is_live()? {
            true => Err(self.refusal(soft_dir, FileId::default(), pool, Misfit::Missing)),
            false => Ok(()),
        }
    }

    /// Takes part in the pool's current control segment, which then is the claim's (None), or makes the next one by
    /// `make`, which is given its instance. The caller holds the setup lock of the soft directory.
    ///
    /// The turn is held until the new one is in place. Of a killed process the kernel releases the setup lock first and
    /// all bytes of `lock` at once: the next process would find the instance held and no control segment of it.
    ///
    /// # Errors
    /// `NameInUse` and `Damaged` while a process uses the pool through another control segment or another pool file;
    /// `TimedOut`; those of `make`.
    pub(crate) fn claim<T>(
        &self,
        claim: &Claim<'_>,
        deadline: Instant,
        make: impl FnOnce(u64) -> Result<T>,
    ) -> Result<Option<T>> {
        let soft = fs::metadata(claim.soft_dir)
            .map_err(|e| Error::io(format!("cannot stat {}", claim.soft_dir.display()), e))?;
        let soft = FileId::of(&soft);
        if self.has_locks {
            self.lock.with_byte(TURN, deadline, || {
                let Some(instance) = self.claim_by_lock(claim, soft)? else { return Ok(None) };
                // What could not be made has no user.
                make(instance).map(Some).inspect_err(|_| self.lock.release(instance))
            })
        } else {
            self.claim_by_record(claim, soft)?.map(make).transpose()
        }
    }

    fn claim_by_lock(&self, claim: &Claim<'_>, soft: FileId) -> Result<Option<u64>> {
        let misfit = match claim.control {
            Ok(instance) => {
                // In the directory of the pool no other control segment can have superseded it, whatever became of
                // the lock file.
                let is_beside_pool = claim.soft_dir == self.dir;
                let is_named =
                    is_beside_pool || self.owner()?.is_some_and(|owner| owner.instance == instance);
                if is_named || self.lock.is_held(&(instance..instance + 1))? {
                    return match self.hold(instance)? {
                        true => Ok(None),
                        false => Err(self.refusal(claim.soft_dir, soft, claim.pool, Misfit::Foreign)),
                    };
                }
                Misfit::Foreign
            }
            Err(misfit) => misfit,
        };
        let instance = new_instance();
        // Members alive without a lock: a release that knows no lock file has the space open.
        if !self.hold(instance)? || claim.members.is_any_alive() {
            self.lock.release(instance);
            return Err(self.refusal(claim.soft_dir, soft, claim.pool, misfit));
        }
        if self.lock.is_writable() {
            let text = record(instance, claim, soft);
            let write = |file: &File| {
                file.write_all_at(text.as_bytes(), 0)?;
                file.set_len(text.len() as u64)
            };
            write(self.lock.file())
                .map_err(|e| Error::io(format!("writing {}", self.lock.path().display()), e))?;
        }
        Ok(Some(instance))
    }

    /// Holds the byte of an instance. False, and nothing is held, when a process holds that of another one.
    fn hold(&self, instance: u64) -> Result<bool> {
        if !self.lock.take(instance, false)? {
            return Ok(false);
        }
        let others = [INSTANCES.start..instance, instance + 1..INSTANCES.end];
        for range in others {
            if self.lock.is_held(&range)? {
                self.lock.release(instance);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn claim_by_record(&self, claim: &Claim<'_>, soft: FileId) -> Result<Option<u64>> {
        let path = self.record_path();
        let instance = new_instance();
        let text = record(instance, claim, soft);
        let cannot = |e| Error::io(format!("writing {}", path.display()), e);
        // A link appears whole, and fails when the name is taken.
        let new = path.with_file_name(format!(".{LOCK_FILE}-{instance:x}"));
        let linked =
            whole_file::write_new(&new, &[text.as_bytes()], false).and_then(|()| fs::hard_link(&new, &path));
        let _ = fs::remove_file(&new);
        match linked {
            Ok(()) => return Ok(Some(instance)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(cannot(e)),
        }
        let owner = self.owner()?;
        let is_own = owner.as_ref().is_some_and(|owner| owner.soft == soft);
        if let (true, Some(owner), Ok(instance)) = (is_own, &owner, claim.control) {
            if owner.instance == instance {
                return Ok(None);
            }
        }
        if is_own && !claim.members.is_any_alive() {
            // Only processes with this soft directory write the file, under the setup lock.
            whole_file::replace(&path, text.as_bytes(), false)?;
            return Ok(Some(instance));
        }
        let misfit = claim.control.err().unwrap_or(Misfit::Foreign);
        Err(self.refusal(claim.soft_dir, soft, claim.pool, misfit))
    }

    /// The file that says whose the pool is where locks are refused. One for each boot: no process outlives it.
    fn record_path(&self) -> PathBuf {
        self.dir.join(format!("owner-{}", process::boot_id()))
    }

    /// What is written of the current control segment; None where there is nothing, or not all of it. What cannot be
    /// read is an error: the control segment would be made anew, and with it the cursors of memory lost.
    fn owner(&self) -> Result<Option<Owner>> {
        let path = if self.has_locks { self.lock.path().to_path_buf() } else { self.record_path() };
        let text = match whole_file::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|e| Error::io(format!("reading {}", path.display()), e))?,
        };
        let owner = serde_json::from_slice::<Owner>(&text).ok();
        Ok(owner.filter(|owner| owner.schema == SCHEMA))
    }

    #[cold]
    fn refusal(&self, soft_dir: &Path, soft: FileId, pool: FileId, misfit: Misfit) -> Error {
        let space = &self.space;
        let owner = self.owner().ok().flatten();
        let is_elsewhere = owner.as_ref().is_some_and(|owner| owner.soft != soft);
        let pool_path = self.dir.join(crate::place::pool::POOL_FILE);
        let other_file = owner.as_ref().is_some_and(|owner| owner.pool != pool) || misfit == Misfit::PoolFile;
        let error = if other_file || (misfit == Misfit::OlderPool && !is_elsewhere) {
            let text = "was replaced, perhaps by an older copy, while processes have the space open";
            Error::new(Kind::Damaged, format!("the pool file of space {space} {text}"))
                .with("pool", pool_path.display())
                .hint("end these processes; the next process recovers the space from the pool file")
        } else if is_elsewhere {
            let error =
                Error::new(Kind::NameInUse, format!("space {space} is in use through another FOREBAY_DIR"))
                    .with("pool", pool_path.display())
                    .with("shared_state", soft_dir.display());
            error.hint(self.remedy(owner.as_ref()))
        } else if let Misfit::Version(version) = misfit {
            Error::new(Kind::NameInUse, format!("space {space} is in use by another release of Forebay"))
                .with("pool", pool_path.display())
                .with("control_version", version)
                .with("known_version", CONTROL_VERSION)
                .hint("use one release for all processes of a space, or wait until the others have ended")
        } else {
            let text = "was removed or damaged while processes have the space open";
            Error::new(Kind::Damaged, format!("the control segment of space {space} {text}"))
                .with("pool", pool_path.display())
                .with("shared_state", soft_dir.display())
                .hint("end these processes; the next process rebuilds it from the pool")
        };
        match owner {
            Some(owner) => error
                .with("owner_host", &owner.host)
                .with("owner_pid", owner.pid)
                .with("owner_shared_state", &owner.soft_directory),
            None => error,
        }
    }

    /// What to do when the space is in use through another soft directory.
    fn remedy(&self, owner: Option<&Owner>) -> String {
        let root = owner.and_then(|owner| Path::new(&owner.soft_directory).parent());
        let root = root.map_or_else(String::new, |root| root.display().to_string());
        if self.has_locks {
            return format!(
                "all processes of a space share one FOREBAY_DIR: set FOREBAY_DIR={root}, in containers mounted from \
                 the same directory of the host, or wait until the others have ended"
            );
        }
        format!(
            "the file system refuses locks, so that the liveness of the owner is unknown: set FOREBAY_DIR={root}, or, \
             if no process has the space open, remove {}",
            self.record_path().display()
        )
    }
}

/// Whether a file name is that of an owner record, or of a new one.
pub(crate) fn is_record(name: &str) -> bool {
    name.starts_with("owner-") || name.starts_with(&format!(".{LOCK_FILE}-"))
}

/// Whether the lock file in a directory, or an owner record, was written by Forebay.
pub(crate) fn is_in(dir: &Path) -> bool {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name == LOCK_FILE || is_record(name))
        .any(|name| {
            let owner = whole_file::read(&dir.join(name))
                .ok()
                .and_then(|text| serde_json::from_slice::<Owner>(&text).ok());
            owner.is_some_and(|owner| owner.schema == SCHEMA)
        })
}

fn new_instance() -> u64 {
    let random = forebay_tier::host::random_uuid(|| uuid::Uuid::new_v4().into_bytes());
    let random = uuid::Uuid::from_bytes(random).as_u64_pair();
    INSTANCES.start + (random.0 ^ random.1.rotate_left(32)) % (INSTANCES.end - INSTANCES.start)
}

/// The name that a directory has once it is in place.
fn place_to_be(dir: &Path) -> PathBuf {
    let file = dir.file_name().and_then(|file| file.to_str());
    match file.and_then(hidden) {
        Some((Hidden::New, name)) => dir.with_file_name(name),
        _ => dir.to_path_buf(),
    }
}

fn record(instance: u64, claim: &Claim<'_>, soft: FileId) -> String {
    let owner = Owner {
        schema: SCHEMA.into(),
        instance,
        control_version: CONTROL_VERSION,
        host: process::host_name().into(),
        boot: process::boot_id().into(),
        pid: process::pid(),
        soft_directory: place_to_be(claim.soft_dir).display().to_string(),
        soft,
        pool: claim.pool,
    };
    serde_json::to_string_pretty(&owner).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The next process would be told that a process uses a control segment that is missing.
    #[test]
    fn a_control_segment_that_could_not_be_made_has_no_user() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let members = MembersFile::create(&dir.path().join("members")).unwrap();
        let pool = FileId::default();
        let claim = Claim { soft_dir: dir.path(), pool, members: &members, control: Err(Misfit::Missing) };
        let (own, other) =
            (Ownership::open("heat", dir.path()).unwrap(), Ownership::open("heat", dir.path()).unwrap());
        let refused = own.claim::<()>(&claim, Instant::now() + Duration::from_secs(5), |_| {
            assert!(other.is_live().unwrap(), "it is being made");
            Err(Error::new(Kind::TierFull, "no space"))
        });
        assert_eq!(refused.map(drop).unwrap_err().kind(), Kind::TierFull);
        assert!(!other.is_live().unwrap());
        drop(own);
    }
}
