//! Who is alive, decided by the kernel: every member holds a record lock on its own byte of a members file.
//!
//! The kernel drops the locks of a process when it dies, however it dies, and no other process can take them while
//! it lives; asking costs a fraction of a microsecond. Two traps of such locks are handled here:
//! - A process loses *all* its locks on a file when it closes *any* descriptor of it. So a file is opened
//!   once per process (a registry by device and inode) and stays open until the last handle goes. No code may open or
//!   copy a members file by other means in a process that holds a slot.
//! - Locks belong to the process: a forked child holds none. Its inherited handles refuse to lock.
//!
//! Locks say nothing across nodes.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::host::sync::{Condvar, Mutex, MutexGuard};
use crate::host::time::Instant;
use crate::host::{self, thread};
use crate::process::ForkMark;
use crate::sys::{self, Locked};
use crate::{Error, Kind, Result};

/// Named locks lie behind all slots (a slot is a u32), far beyond the end of the file, where locks are legal.
const LOCKS_FROM: u64 = 1 << 40;

/// One more than the highest slot.
const SLOTS_END: u64 = 1 << 32;

/// The members file of a space. Clones and further opens in this process share one descriptor.
#[derive(Clone, Debug)]
pub struct MembersFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Taken out only by `drop`.
    file: Option<File>,
    path: PathBuf,
    key: (u64, u64),
    mark: ForkMark,
    own: Mutex<Own>,
    lock_freed: Condvar,
}

/// What this process holds; the kernel does not report a process's own locks to it.
#[derive(Debug, Default)]
struct Own {
    slots: HashSet<u32>,
    locks: HashSet<u64>,
}

/// A slot held by this process; dropping it releases the slot.
#[derive(Debug)]
pub struct SlotGuard {
    shared: Arc<Shared>,
    slot: u32,
}

type Files = HashMap<(u64, u64), Weak<Shared>>;

/// The open members files of one process. A forked child makes its own, so that neither entries nor a lock
/// that another thread held at the fork come along.
struct Registry {
    mark: ForkMark,
    files: Mutex<Files>,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

fn registry() -> &'static Registry {
    sys::process_local(
        &REGISTRY,
        |known: &Registry| !known.mark.is_forked(),
        || Registry { mark: ForkMark::here(), files: Mutex::new(HashMap::new()) },
    )
}

/// Nothing here panics while it holds a lock, so a poisoned one is as good as any.
#[cfg_attr(forebay_simulated, track_caller)]
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MembersFile {
    /// Opens the file, making it (0600, empty) when it does not exist.
    pub fn create(path: &Path) -> Result<MembersFile> {
        MembersFile::find_or_open(path, true)
    }

    /// Opens an existing file. `Kind::Io` when there is none.
    pub fn open(path: &Path) -> Result<MembersFile> {
        MembersFile::find_or_open(path, false)
    }

    /// An open file that has no name of its own (`path` is for messages) as a members file. It must not be open by
    /// any other descriptor of this process.
    ///
    /// # Errors
    /// `Usage` when this process has it already; `Io`.
    pub fn of_file(file: File, path: &Path) -> Result<MembersFile> {
        let meta = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
        let key = (meta.dev(), meta.ino());
        let mut files = hold(&registry().files);
        if files.contains_key(&key) {
            // Closing it would drop the locks of the other.
            std::mem::forget(file);
            return Err(Error::new(Kind::Usage, format!("{} is a members file already", path.display())));
        }
        let shared = Arc::new(Shared::new(Some(file), path, key));
        files.insert(key, Arc::downgrade(&shared));
        Ok(MembersFile(shared))
    }

    fn find_or_open(path: &Path, create: bool) -> Result<MembersFile> {
        loop {
            // None: the last handle of this file is just being dropped in another thread. Its entry stays
            // until the descriptor is closed, so that the close cannot take locks of a new one along.
            if let Some(shared) = MembersFile::try_find_or_open(path, create)? {
                return Ok(MembersFile(shared));
            }
            thread::yield_now();
        }
    }

    fn try_find_or_open(path: &Path, create: bool) -> Result<Option<Arc<Shared>>> {
        let mut files = hold(&registry().files);
        // Looked up by name first, because opening a file that is open already and closing it again would
        // drop the locks. (Asking for metadata opens nothing.)
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if let Some(shared) = files.get(&(meta.dev(), meta.ino())) {
                return Ok(shared.upgrade());
            }
        }
        let opening = |e| Error::io(format!("cannot open members file {}", path.display()), e);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(0o600);
        // O_NONBLOCK: opening a FIFO by mistake does not wait for ever.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        host::syscall("open").map_err(opening)?;
        let file = options.open(path).map_err(opening)?;
        let meta = file.metadata().map_err(opening)?;
        let key = (meta.dev(), meta.ino());
        if let Some(shared) = files.get(&key) {
            // The name came to mean a file that is open already, just now: keep the second descriptor open
            // for ever rather than close it.
            std::mem::forget(file);
            return Ok(shared.upgrade());
        }
        let shared = Arc::new(Shared::new(Some(file), path, key));
        files.insert(key, Arc::downgrade(&shared));
        Ok(Some(shared))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the file has its name still: it was neither removed nor replaced.
    pub fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.0.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.0.key)
    }

    /// Takes a slot without waiting. None: it is held, by another process or by this one.
    ///
    /// # Errors
    /// `ForkedHandle` in a forked child; `Io`.
    pub fn lock_slot(&self, slot: u32) -> Result<Option<SlotGuard>> {
        self.0.mark.check("members file")?;
        let mut own = hold(&self.0.own);
        if own.slots.contains(&slot) {
            return Ok(None);
        }
        let locked =
            sys::record_lock(self.0.file(), u64::from(slot)).map_err(|e| self.failed("lock a slot of", e))?;
        if locked == Locked::Busy {
            return Ok(None);
        }
        own.slots.insert(slot);
        Ok(Some(SlotGuard { shared: self.0.clone(), slot }))
    }

    /// Whether a live process (this one included) holds the slot. A kernel error counts as alive: no process is
    /// declared dead without certainty.
    pub fn is_alive(&self, slot: u32) -> bool {
        if !self.0.mark.is_forked() && hold(&self.0.own).slots.contains(&slot) {
            return true;
        }
        !matches!(sys::record_lock_holder(self.0.file(), u64::from(slot)), Ok(None))
    }

    /// Whether a live process (this one included) holds any slot. A kernel error counts as yes.
    pub fn is_any_alive(&self) -> bool {
        if !self.0.mark.is_forked() && !hold(&self.0.own).slots.is_empty() {
            return true;
        }
        !matches!(sys::is_record_locked(self.0.file(), &(0..SLOTS_END)), Ok(false))
    }

    /// The pid of the process that holds the slot, for messages; 0 when it is in a foreign PID namespace.
    pub fn holder(&self, slot: u32) -> Option<u32> {
        if !self.0.mark.is_forked() && hold(&self.0.own).slots.contains(&slot) {
            return Some(crate::process::pid());
        }
        let holder = sys::record_lock_holder(self.0.file(), u64::from(slot)).ok()??;
        Some(u32::try_from(holder).unwrap_or(0))
    }

    /// Runs `f` while this thread alone, of all threads of all processes, holds the named lock `byte`. A
    /// holder's death frees it. Not reentrant: taking the same lock inside `f` times out.
    ///
    /// # Errors
    /// `TimedOut` when the lock was not free within `timeout`; `ForkedHandle`; what `f` returns.
    #[cfg_attr(forebay_simulated, track_caller)]
    pub fn with_lock<T>(&self, byte: u64, timeout: Duration, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.0.mark.check("members file")?;
        let deadline = Instant::now() + timeout;
        let _within_process = self.take_own(byte, deadline)?;
        let _between_processes = self.take_record(byte, deadline)?;
        f()
    }

    /// Waits until no thread of this process holds the lock.
    fn take_own(&self, byte: u64, deadline: Instant) -> Result<OwnLock<'_>> {
        let mut own = hold(&self.0.own);
        while own.locks.contains(&byte) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.lock_timed_out(byte, crate::process::pid()));
            }
            own = self.0.lock_freed.wait_timeout(own, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        own.locks.insert(byte);
        Ok(OwnLock { shared: &self.0, byte })
    }

    /// Polls for the kernel's lock: the blocking call knows no deadline.
    #[cfg_attr(forebay_simulated, track_caller)]
    fn take_record(&self, byte: u64, deadline: Instant) -> Result<RecordLock<'_>> {
        let mut pause = Duration::from_micros(20);
        loop {
            match sys::record_lock(self.0.file(), LOCKS_FROM + byte) {
                Ok(Locked::Yes) => return Ok(RecordLock { shared: &self.0, byte }),
                Ok(Locked::Busy) if Instant::now() >= deadline => {
                    let holder = sys::record_lock_holder(self.0.file(), LOCKS_FROM + byte).ok().flatten();
                    return Err(
                        self.lock_timed_out(byte, holder.and_then(|p| u32::try_from(p).ok()).unwrap_or(0))
                    );
                }
                Ok(Locked::Busy) => {
                    thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
                    pause = (pause * 2).min(Duration::from_millis(1));
                }
                Err(e) => return Err(self.failed("take a lock of", e)),
            }
        }
    }

    #[cold]
    fn lock_timed_out(&self, byte: u64, pid: u32) -> Error {
        Error::new(
            Kind::TimedOut,
            format!("lock {byte} of {} was not released in time", self.0.path.display()),
        )
        .with("held_by_pid", pid)
        .hint("a process that is stopped or swapped out may hold it")
    }

    #[cold]
    fn failed(&self, doing: &str, e: std::io::Error) -> Error {
        Error::io(format!("cannot {doing} {}", self.0.path.display()), e)
    }
}

/// The part of a named lock that keeps other threads of this process out.
struct OwnLock<'a> {
    shared: &'a Shared,
    byte: u64,
}

impl Drop for OwnLock<'_> {
    fn drop(&mut self) {
        hold(&self.shared.own).locks.remove(&self.byte);
        self.shared.lock_freed.notify_all();
    }
}

/// The part that keeps other processes out.
struct RecordLock<'a> {
    shared: &'a Shared,
    byte: u64,
}

impl Drop for RecordLock<'_> {
    fn drop(&mut self) {
        let _ = sys::record_unlock(self.shared.file(), LOCKS_FROM + self.byte);
    }
}

impl SlotGuard {
    /// The slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if self.shared.mark.is_forked() {
            return;
        }
        let mut own = hold(&self.shared.own);
        let _ = sys::record_unlock(self.shared.file(), u64::from(self.slot));
        own.slots.remove(&self.slot);
    }
}

impl Shared {
    fn new(file: Option<File>, path: &Path, key: (u64, u64)) -> Shared {
        Shared {
            file,
            path: path.to_owned(),
            key,
            mark: ForkMark::here(),
            own: Mutex::default(),
            lock_freed: Condvar::new(),
        }
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("taken out only by drop")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let file = self.file.take();
        if self.mark.is_forked() {
            // Closing would drop the locks that this child took through a handle of its own.
            std::mem::forget(file);
            return;
        }
        let mut files = hold(&registry().files);
        drop(file);
        files.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_child;
    use std::sync::atomic::Ordering;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn members() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("members");
        (dir, path)
    }

    /// How often this process has the file open.
    fn descriptors_of(path: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
    }

    #[test]
    fn own_slots_are_alive_and_taken_once() {
        let (_dir, path) = members();
        assert!(MembersFile::open(&path).is_err(), "it does not exist yet");
        let a = MembersFile::create(&path).unwrap();
        let b = MembersFile::open(&path).unwrap();
        let guard = a.lock_slot(3).unwrap().unwrap();
        assert_eq!(guard.slot(), 3);
        assert!(b.is_alive(3) && !b.is_alive(2));
        assert_eq!(b.holder(3), Some(crate::process::pid()));
        assert!(b.lock_slot(3).unwrap().is_none());
        drop(a);
        assert!(in_child(|| i32::from(!MembersFile::open(&path).unwrap().is_alive(3))) == 0);
        drop(guard);
        assert!(!b.is_alive(3));
        assert!(b.lock_slot(3).unwrap().is_some());
    }

    #[test]
    fn handles_that_come_and_go_do_not_lose_the_locks() {
        let (_dir, path) = members();
        let guard = MembersFile::create(&path).unwrap().lock_slot(u32::MAX).unwrap().unwrap();
        for _ in 0..3 {
            drop(MembersFile::open(&path).unwrap());
        }
        assert_eq!(descriptors_of(&path), 1, "the file is open more than once");
        let seen = in_child(|| {
            let file = MembersFile::open(&path).unwrap();
            assert_eq!(file.holder(u32::MAX), Some(std::os::unix::process::parent_id()));
            i32::from(!file.is_alive(u32::MAX) || file.lock_slot(u32::MAX).unwrap().is_some())
        });
        assert_eq!(seen, 0);
        drop(guard);
    }

    #[test]
    fn a_dead_process_frees_its_slots() {
        let (_dir, path) = members();
        let file = MembersFile::create(&path).unwrap();
        let status = in_child(|| {
            let mine = MembersFile::open(&path).unwrap();
            let guard = mine.lock_slot(1).unwrap();
            std::mem::forget(guard);
            7
        });
        assert_eq!(status, 7);
        assert!(!file.is_alive(1));
        assert!(file.lock_slot(1).unwrap().is_some());
    }

    #[test]
    fn a_forked_child_holds_nothing_and_its_old_handles_refuse() {
        let (_dir, path) = members();
        let file = MembersFile::create(&path).unwrap();
        let guard = file.lock_slot(0).unwrap().unwrap();
        let status = in_child(|| {
            assert_eq!(file.lock_slot(1).unwrap_err().kind(), Kind::ForkedHandle);
            assert_eq!(file.with_lock(1, SHORT, || Ok(())).unwrap_err().kind(), Kind::ForkedHandle);
            assert!(file.is_alive(0), "the parent's");
            let fresh = MembersFile::open(&path).unwrap();
            let mine = fresh.lock_slot(5).unwrap().unwrap();
            // The parent's handles go away in the child: neither lock may suffer.
            drop((guard, file));
            assert!(fresh.is_alive(0), "the parent's lock was dropped");
            in_child(|| i32::from(!MembersFile::open(&path).unwrap().is_alive(mine.slot())))
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn named_locks_exclude_threads_and_time_out() {
        let (_dir, path) = members();
        let file = MembersFile::create(&path).unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        file.with_lock(9, LONG, || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                            inside.fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        file.with_lock(9, LONG, || {
            assert_eq!(file.with_lock(9, SHORT, || Ok(())).unwrap_err().kind(), Kind::TimedOut);
            file.with_lock(8, SHORT, || Ok(()))
        })
        .unwrap();
    }

    #[test]
    fn named_locks_exclude_processes() {
        let (_dir, path) = members();
        let file = MembersFile::create(&path).unwrap();
        let refused = file.with_lock(0, LONG, || {
            Ok(in_child(|| {
                let mine = MembersFile::open(&path).unwrap();
                let error = mine.with_lock(0, SHORT, || Ok(())).unwrap_err();
                assert_eq!(error.kind(), Kind::TimedOut);
                assert!(!mine.is_alive(0), "lock 0 is not slot 0");
                0
            }))
        });
        assert_eq!(refused.unwrap(), 0);
        assert_eq!(
            in_child(|| i32::from(MembersFile::open(&path).unwrap().with_lock(0, LONG, || Ok(())).is_err())),
            0
        );
        let failed: Result<()> = file.with_lock(0, LONG, || Err(Error::new(Kind::Internal, "inside")));
        assert_eq!(failed.unwrap_err().kind(), Kind::Internal);
        file.with_lock(0, SHORT, || Ok(())).unwrap();
    }

    #[test]
    fn threads_opening_and_dropping_do_not_lose_a_lock() {
        let (_dir, path) = members();
        std::thread::scope(|scope| {
            for slot in 0..4u32 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let file = MembersFile::create(path).unwrap();
                        let guard = file.lock_slot(slot).unwrap().expect("no other thread takes this slot");
                        assert!(file.is_alive(slot));
                        drop((file, guard));
                    }
                });
            }
        });
        assert_eq!(descriptors_of(&path), 0, "descriptors were left open");
    }
}
