//! A directory that appears whole: made under a hidden name, `.NAME.new-PID-TIME`, and renamed when it is complete.
//!
//! Guarantees: while its maker lives it holds a kernel lock in the directory, so that what a killed process left is
//! told from what is being made, also across PID namespaces. Directories on their way out, `.NAME.gone-PID-TIME`, need
//! no lock: any process may finish their removal.
//! Not here: what is in it ([`crate::open::create`]).

use forebay_tier::host::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use forebay_tier::pool_lock::PoolLock;
use forebay_tier::{clock, process, Error, Kind, Result};

use crate::control::ownership::{FileId, LOCK_FILE, MAKER, PROBE};

/// A cleaner can remove the directory before it is locked; then another one is made.
const ATTEMPTS: u32 = 100;

/// A directory that is being made; its lock ends when this is dropped.
pub(crate) struct NewDirectory {
    /// Where it is until it is renamed.
    pub path: PathBuf,
    _lock: PoolLock,
}

impl NewDirectory {
    /// Makes one that is to become `name` in `parent`.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn make(parent: &Path, name: &str) -> Result<NewDirectory> {
        let failed = |e| Error::io(format!("cannot create a directory in {}", parent.display()), e);
        for _ in 0..ATTEMPTS {
            let path = parent.join(format!(".{name}.new-{}-{}", process::pid(), clock::now_ns()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                // A process with this pid in another namespace.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(failed)?,
            }
            match lock(&path) {
                Ok(Some(lock)) => return Ok(NewDirectory { path, _lock: lock }),
                Ok(None) => {}
                Err(_) if !path.exists() => {}
                Err(e) => {
                    let _ = fs::remove_dir_all(&path);
                    return Err(e);
                }
            }
        }
        Err(Error::new(
            Kind::TimedOut,
            format!("another process keeps removing new directories in {}", parent.display()),
        )
        .hint("stop the process that runs `forebay clean` in a loop"))
    }
}

/// The lock of a directory made just now; None where a cleaner was first.
fn lock(dir: &Path) -> Result<Option<PoolLock>> {
    let path = dir.join(LOCK_FILE);
    let lock = PoolLock::open(&path)?;
    if !lock.works(PROBE)? {
        return Ok(Some(lock));
    }
    let held = lock.file().metadata().map_err(|e| Error::io("cannot stat the lock file", e))?;
    let is_there = || fs::metadata(&path).is_ok_and(|found| FileId::of(&found) == FileId::of(&held));
    Ok((lock.take(MAKER, true)? && is_there()).then_some(lock))
}

/// The right to remove a directory on its way in: its maker cannot go on in it while this lives.
pub(crate) struct Abandoned {
    _lock: Option<PoolLock>,
}

/// Whether a directory on its way in may be removed, or why it has to stay: its maker lives, or may.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn abandoned(dir: &Path, dry_run: bool) -> Result<std::result::Result<Abandoned, String>> {
    let path = dir.join(LOCK_FILE);
    // Empty: its maker is about to make the lock file. This fails when it has done so, and takes the directory away
    // from it otherwise; it then makes another one.
    if !path.exists() && (dry_run || fs::remove_dir(dir).is_ok()) {
        return Ok(Ok(Abandoned { _lock: None }));
    }
    if !path.exists() {
        // Made by a release that had no lock file, or gone meanwhile.
        return Ok(Ok(Abandoned { _lock: None }));
    }
    let lock = match PoolLock::open(&path) {
        Err(_) if !dir.exists() => return Ok(Ok(Abandoned { _lock: None })),
        lock => lock?,
    };
    Ok(match lock.works(PROBE)? {
        false => Err("the file system refuses locks, so that the liveness of its creator is unknown".into()),
        true if lock.take(MAKER, true)? => Ok(Abandoned { _lock: Some(lock) }),
        true => Err("a live process makes it".into()),
    })
}
