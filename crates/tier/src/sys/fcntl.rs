//! Record locks of single bytes (fcntl), locks of open file descriptions (fcntl) and whole-file locks (flock).
//!
//! Record locks belong to the process: the kernel drops them when it dies, and also when the process closes
//! *any* descriptor of the inode. `crate::liveness` is built around that; no other module may use these functions.
//! Locks of an open file description (Linux 3.15) belong to the descriptor and its copies, also those of forked
//! children, and end with the last of them; `crate::pool_lock` is built on them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::counters;

/// Outcome of asking for a lock without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    Yes,
    /// Another process holds it.
    Busy,
}

#[cfg(forebay_simulated)]
impl Locked {
    fn of(taken: bool) -> Locked {
        match taken {
            true => Locked::Yes,
            false => Locked::Busy,
        }
    }
}

fn one_byte(kind: libc::c_int, byte: u64) -> libc::flock {
    // SAFETY: flock is plain integers, for which all-zero bytes are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

fn fcntl_lock(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        counters::add_syscall();
        // SAFETY: the descriptor is open (borrowed from `file`), `lock` is a valid flock that outlives the
        // call.
        let rc = unsafe { libc::fcntl(file.as_raw_fd(), command, lock as *mut libc::flock) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes an exclusive record lock on one byte, without waiting.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn record_lock(file: &File, byte: u64) -> io::Result<Locked> {
    #[cfg(forebay_simulated)]
    if let Some(locked) = crate::simulation::record_lock(file, byte) {
        return locked.map(Locked::of);
    }
    match fcntl_lock(file, libc::F_SETLK, &mut one_byte(libc::F_WRLCK, byte)) {
        Ok(()) => Ok(Locked::Yes),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(Locked::Busy),
        Err(e) => Err(e),
    }
}

/// Releases the lock; nothing happens when it is not held.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn record_unlock(file: &File, byte: u64) -> io::Result<()> {
    #[cfg(forebay_simulated)]
    if let Some(unlocked) = crate::simulation::record_unlock(file, byte) {
        return unlocked;
    }
    fcntl_lock(file, libc::F_SETLK, &mut one_byte(libc::F_UNLCK, byte))
}

/// The pid of another process that holds the byte (0 or -1 when it is in a foreign PID namespace), None when
/// no *other* process does: the kernel never reports the caller's own locks.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn record_lock_holder(file: &File, byte: u64) -> io::Result<Option<i32>> {
    #[cfg(forebay_simulated)]
    if let Some(holder) = crate::simulation::record_lock_holder(file, byte) {
        return holder;
    }
    let mut lock = one_byte(libc::F_WRLCK, byte);
    fcntl_lock(file, libc::F_GETLK, &mut lock)?;
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_pid))
}

/// Whether a record lock of *another* process holds any byte of a range that is not empty.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn is_record_locked(file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    #[cfg(forebay_simulated)]
    if let Some(done) = crate::simulation::is_record_locked(file, bytes) {
        return done;
    }
    is_locked(file, libc::F_GETLK, bytes)
}

fn is_locked(file: &File, command: libc::c_int, bytes: &Range<u64>) -> io::Result<bool> {
    let mut lock = one_byte(libc::F_WRLCK, bytes.start);
    lock.l_len = (bytes.end - bytes.start) as libc::off_t;
    fcntl_lock(file, command, &mut lock)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Takes a lock of this open file description on one byte, without waiting: an exclusive one (the file must be open
/// for writing) or a shared one (for reading).
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn description_lock(file: &File, byte: u64, exclusive: bool) -> io::Result<Locked> {
    #[cfg(forebay_simulated)]
    if let Some(done) = crate::simulation::description_lock(file, byte, exclusive) {
        return done.map(Locked::of);
    }
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    match fcntl_lock(file, libc::F_OFD_SETLK, &mut one_byte(kind, byte)) {
        Ok(()) => Ok(Locked::Yes),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(Locked::Busy),
        Err(e) => Err(e),
    }
}

/// Releases what this open file description holds of one byte.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn description_unlock(file: &File, byte: u64) -> io::Result<()> {
    #[cfg(forebay_simulated)]
    if let Some(done) = crate::simulation::description_unlock(file, &(byte..byte + 1)) {
        return done;
    }
    fcntl_lock(file, libc::F_OFD_SETLK, &mut one_byte(libc::F_UNLCK, byte))
}

/// Releases all that this open file description holds, of every byte.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn description_unlock_all(file: &File) -> io::Result<()> {
    #[cfg(forebay_simulated)]
    if let Some(done) = crate::simulation::description_unlock(file, &(0..u64::MAX)) {
        return done;
    }
    let mut lock = one_byte(libc::F_UNLCK, 0);
    lock.l_len = 0;
    fcntl_lock(file, libc::F_OFD_SETLK, &mut lock)
}

/// Whether another open file description, or a record lock, holds any byte of a range that is not empty.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn is_locked_by_others(file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    #[cfg(forebay_simulated)]
    if let Some(done) = crate::simulation::is_description_locked(file, bytes) {
        return done;
    }
    is_locked(file, libc::F_OFD_GETLK, bytes)
}

/// Takes an exclusive flock (it ends with the open file), polling for at most `patience`.
pub(crate) fn flock_exclusive(file: &File, patience: Duration) -> io::Result<Locked> {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_micros(50);
    loop {
        counters::add_syscall();
        // SAFETY: the descriptor is open (borrowed from `file`); no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Locked::Yes);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EWOULDBLOCK) if Instant::now() >= end => return Ok(Locked::Busy),
            Some(libc::EWOULDBLOCK) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(2));
            }
            _ => return Err(error),
        }
    }
}
