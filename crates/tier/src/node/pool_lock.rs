//! The lock file of a pool: kernel locks on numbered bytes of a file beside it.
//!
//! The locks belong to an open file description ([`crate::sys`]): each [`PoolLock`] holds its own, also two of one
//! process, and closing another descriptor of the file drops none of them. The kernel drops them when the process
//! dies, however it dies. One trap: a forked child inherits the description, so the lock of a process that was killed
//! stays until its forked children have ended too. That errs on the safe side: what is locked is not taken over.
//! What the bytes mean is decided by the caller. Locks say nothing across nodes.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::time::Instant;
use crate::host::{self, thread};
use crate::process::ForkMark;
use crate::sys::{self, Locked};
use crate::{Error, Kind, Result};

/// Bytes that can be locked lie below: the kernel counts them with a signed number.
pub const BYTES_END: u64 = i64::MAX as u64;

/// An open lock file. Dropping it releases its locks.
#[derive(Debug)]
pub struct PoolLock {
    file: File,
    path: PathBuf,
    is_writable: bool,
    mark: ForkMark,
    /// What every lock gives instead of being tried, for fault injection.
    fault: Option<i32>,
}

impl PoolLock {
    /// Opens the file, making it (0600, empty) when it does not exist. On a medium that is read-only it is opened for
    /// reading: shared locks only.
    ///
    /// # Errors
    /// `PermissionDenied`, `Io`.
    pub fn open(path: &Path) -> Result<PoolLock> {
        let flags = libc::O_NOFOLLOW;
        let failed = |e| Error::io(format!("cannot open the lock file {}", path.display()), e);
        host::syscall("open to make").map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let (opened, is_writable) = match sys::open_at_once(&mut options, flags, path) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
                let for_reading = sys::open_at_once(OpenOptions::new().read(true), flags, path);
                // The first error says why the file could not be made.
                (for_reading.map_err(|_| e), false)
            }
            opened => (opened, true),
        };
        let file = opened.map_err(failed)?;
        Ok(PoolLock { file, path: path.to_owned(), is_writable, mark: ForkMark::here(), fault: None })
    }

    /// The same, and every lock fails with ENOLCK, as on a file system that refuses them.
    pub fn refusing(self) -> PoolLock {
        self.with_fault(Some(libc::ENOLCK))
    }

    fn with_fault(mut self, errno: Option<i32>) -> PoolLock {
        self.fault = errno;
        self
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for its content.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether exclusive locks can be taken and the content be written.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether the file system takes such locks at all (some network file systems are mounted without them), tried
    /// with a shared lock on `byte`.
    pub fn works(&self, byte: u64) -> Result<bool> {
        let refusals = [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOTSUP, libc::ENOSYS, libc::EINVAL];
        match self.try_take(byte, false) {
            Ok(_) => {
                self.release(byte);
                Ok(true)
            }
            Err(e) if e.raw_os_error().is_some_and(|errno| refusals.contains(&errno)) => Ok(false),
            Err(e) => Err(self.failed(e)),
        }
    }

    fn try_take(&self, byte: u64, exclusive: bool) -> io::Result<Locked> {
        match self.fault {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => sys::description_lock(&self.file, byte, exclusive),
        }
    }

    /// Takes a byte without waiting, exclusively or shared. False: another holds it.
    pub fn take(&self, byte: u64, exclusive: bool) -> Result<bool> {
        self.mark.check("lock of a pool")?;
        self.try_take(byte, exclusive).map(|locked| locked == Locked::Yes).map_err(|e| self.failed(e))
    }

    /// Releases a byte; nothing happens when it is not held.
    pub fn release(&self, byte: u64) {
        if !self.mark.is_forked() {
            let _ = sys::description_unlock(&self.file, byte);
        }
    }

    /// Whether another open file description, in this process or in another one, holds a byte of the range.
    pub fn is_held(&self, bytes: &Range<u64>) -> Result<bool> {
        self.is_held_by_others(bytes).map_err(|e| self.failed(e))
    }

    fn is_held_by_others(&self, bytes: &Range<u64>) -> io::Result<bool> {
        match self.fault {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None if bytes.is_empty() => Ok(false),
            None => sys::is_locked_by_others(&self.file, bytes),
        }
    }

    /// Runs `f` while this handle alone holds `byte`; for reading only, while no other holds it exclusively.
    ///
    /// # Errors
    /// `TimedOut` when the byte was not free before `deadline`; what `f` returns.
    pub fn with_byte<T>(&self, byte: u64, deadline: Instant, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut pause = Duration::from_micros(20);
        while !self.take(byte, self.is_writable)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.timed_out(byte));
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        let _held = Held { lock: self, byte };
        f()
    }

    #[cold]
    fn timed_out(&self, byte: u64) -> Error {
        Error::new(
            Kind::TimedOut,
            format!("byte {byte} of the lock file {} was not released", self.path.display()),
        )
        .hint("a process that is stopped or swapped out may hold it: `lslocks` names it")
    }

    #[cold]
    fn failed(&self, e: io::Error) -> Error {
        Error::io(format!("cannot lock {}", self.path.display()), e)
    }
}

/// A byte that is held for the length of a call.
struct Held<'a> {
    lock: &'a PoolLock,
    byte: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.release(self.byte);
    }
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        // A forked child that still has the description open does not keep its parent's locks.
        if !self.mark.is_forked() {
            let _ = sys::description_unlock_all(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_child;

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("lock");
        (dir, path)
    }

    #[test]
    fn handles_share_and_exclude_each_other_within_a_process_and_across() {
        let (_dir, path) = file();
        let (a, b) = (PoolLock::open(&path).unwrap(), PoolLock::open(&path).unwrap());
        assert!(a.take(7, false).unwrap() && b.take(7, false).unwrap());
        assert!(!PoolLock::open(&path).unwrap().take(7, true).unwrap());
        assert!(!a.is_held(&(8..BYTES_END)).unwrap() && a.is_held(&(0..8)).unwrap());
        // Closing another descriptor of the file drops none.
        drop(std::fs::File::open(&path).unwrap());
        assert_eq!(in_child(|| i32::from(PoolLock::open(&path).unwrap().take(7, true).unwrap())), 0);
        drop(b);
        assert!(!a.is_held(&(0..BYTES_END)).unwrap(), "its own are not counted");
        drop(a);
        assert!(PoolLock::open(&path).unwrap().take(7, true).unwrap());
    }

    #[test]
    fn a_dead_process_holds_nothing() {
        let (_dir, path) = file();
        let status = in_child(|| {
            let lock = PoolLock::open(&path).unwrap();
            assert!(lock.take(3, true).unwrap());
            std::mem::forget(lock);
            7
        });
        assert_eq!(status, 7);
        assert!(PoolLock::open(&path).unwrap().take(3, true).unwrap());
    }

    #[test]
    fn a_forked_child_neither_drops_nor_keeps_the_locks_of_its_parent() {
        let (_dir, path) = file();
        let lock = PoolLock::open(&path).unwrap();
        assert!(lock.take(3, true).unwrap());
        let status = in_child(|| {
            assert_eq!(lock.take(4, true).unwrap_err().kind(), Kind::ForkedHandle);
            drop(lock);
            i32::from(PoolLock::open(&path).unwrap().take(3, true).unwrap())
        });
        assert_eq!(status, 0, "the child dropped its parent's lock");
    }

    #[test]
    fn one_holds_a_byte_for_a_call() {
        let (_dir, path) = file();
        let (a, b) = (PoolLock::open(&path).unwrap(), PoolLock::open(&path).unwrap());
        let soon = || Instant::now() + Duration::from_millis(10);
        let inside = a.with_byte(0, soon(), || Ok(b.with_byte(0, soon(), || Ok(())).unwrap_err().kind()));
        assert_eq!(inside.unwrap(), Kind::TimedOut);
        b.with_byte(0, soon(), || Ok(())).unwrap();
    }

    #[test]
    fn a_file_system_that_refuses_locks_is_recognised() {
        let (_dir, path) = file();
        assert!(PoolLock::open(&path).unwrap().works(5).unwrap());
        for errno in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS] {
            let lock = PoolLock::open(&path).unwrap().with_fault(Some(errno));
            assert!(!lock.works(5).unwrap());
            assert!(lock.take(5, false).is_err() && lock.is_held(&(0..9)).is_err());
        }
        assert!(PoolLock::open(&path).unwrap().with_fault(Some(libc::EIO)).works(5).is_err());
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(PoolLock::open(&link).is_err());
    }
}
