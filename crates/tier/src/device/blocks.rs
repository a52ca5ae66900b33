//! What `file` and `direct` have in common: a pool on a block file system, written by system calls and read through
//! a mapping.
//!
//! Guarantees: space is reserved by `prepare`, so that running out of disk space is an error there; `persist` is one
//! fdatasync; the first one that fails poisons the device, because the kernel may have dropped the pages and says so
//! only once. Writing through the mapping is not offered: a store fault on a broken disk would be a SIGBUS.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::OnceLock;

use super::mapped::foreign;
use super::pool::{self, PoolFile};
use super::prepared::Prepared;
use crate::sys::{self, MapOptions, Mapping};
use crate::{capacity, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind};

/// A pool whose blocks are allocated by the file system.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) pool: PoolFile,
    pub(super) mapping: Mapping,
    kind: TierKind,
    /// A file on tmpfs is legal here, but nothing makes it survive a reboot.
    on_tmpfs: bool,
    /// What the first failed flush said.
    poison: OnceLock<String>,
    prepared: Prepared,
    /// For tests: the error that the next flush shall give; 0 for none.
    injected_errno: AtomicI32,
    /// Reading ahead has failed once: from then on every range is tried before it is read.
    read_failed: AtomicBool,
}

impl Blocks {
    pub(super) fn on(pool: PoolFile, kind: TierKind) -> Result<Blocks> {
        let mapping = Mapping::new(&pool.file, pool.capacity, MapOptions::default());
        let mut mapping = mapping.map_err(|e| pool.failed("map", e))?;
        mapping.tell_lost_pages(&pool.file, &pool.path);
        let on_tmpfs = pool.on_tmpfs()?;
        Ok(Blocks {
            pool,
            mapping,
            kind,
            on_tmpfs,
            poison: OnceLock::new(),
            prepared: Prepared::default(),
            injected_errno: AtomicI32::new(0),
            read_failed: AtomicBool::new(false),
        })
    }

    pub(super) fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check(offset, len)?;
        match self.poison.get() {
            None => Ok(()),
            Some(first) => Err(self.poisoned(first)),
        }
    }

    #[cold]
    fn poisoned(&self, first: &str) -> Error {
        Error::new(
            Kind::Poisoned,
            format!("the pool accepts no more writes, because a flush failed: {first}"),
        )
        .with("pool", self.pool.path.display())
        .hint("data persisted before are intact; check the disk (kernel log), then open the space again")
    }

    fn flush(&self) -> std::io::Result<()> {
        match self.injected_errno.swap(0, Ordering::Relaxed) {
            0 => sys::flush_data(&self.pool.file),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }

    fn allocate(&self, pages: &Range<u64>, wanted: u64) -> Result<()> {
        match sys::allocate(&self.pool.file, pages) {
            Ok(()) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => {
                    let free = capacity::headroom(capacity::parent(&self.pool.path), self.kind)?;
                    Err(capacity::full(&self.pool.path, self.kind, wanted, &free).caused_by(e))
                }
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    pool::fill_holes(&self.pool.file, &self.pool.path, pages)?;
                    // Direct writes may not find a changed page in the cache, which could not be dropped.
                    self.flush().map_err(|e| self.pool.failed("allocate blocks of", e))
                }
                _ => Err(self.pool.failed("allocate blocks of", e)),
            },
        }
    }

    pub(super) fn durability(&self, horizon: Horizon) -> Durability {
        match horizon {
            Horizon::Epoch | Horizon::Write if !self.on_tmpfs => Durability::Power,
            _ => Durability::Process,
        }
    }

    pub(super) fn prepare(&self, range: Range<u64>) -> Result<()> {
        let pages = self.pool.pages(&range)?;
        self.check_write(range.start, range.end - range.start)?;
        let look = |pages: &Range<u64>| {
            let allocated = sys::allocated_bytes(&self.pool.file, pages);
            let allocated = allocated.map_err(|e| self.pool.failed("look into", e))?;
            Ok::<u64, Error>(pages.end - pages.start - allocated)
        };
        if pages.is_empty() || self.prepared.covers(&pages) {
            return Ok(());
        }
        if look(&pages)? > 0 {
            let _turn = capacity::Turn::take(&self.pool.path);
            let wanted = look(&pages)?;
            capacity::require(&self.pool.path, self.kind, wanted)?;
            self.allocate(&pages, wanted)?;
        }
        self.prepared.add(&pages);
        Ok(())
    }

    pub(super) fn populate_read(&self, range: Range<u64>) {
        if self.pool.check(range.start, range.end.wrapping_sub(range.start)).is_ok() {
            if let Err(e) = self.mapping.try_populate_read(&range) {
                // Touching the pages would be a SIGBUS. Anything else is a kernel without this call.
                if matches!(e.raw_os_error(), Some(libc::EFAULT | libc::EHWPOISON)) {
                    self.read_failed.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    pub(super) fn will_read(&self, range: Range<u64>) -> Result<()> {
        if !self.read_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.pool.check(range.start, range.end.wrapping_sub(range.start))?;
        self.mapping.try_populate_read(&range).map_err(|e| {
            self.pool
                .failed("read", e)
                .with("pool_offset", range.start)
                .with("bytes", range.end - range.start)
                .hint("the file was truncated, or the disk cannot read these blocks")
        })
    }

    pub(super) fn persist(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start))?;
        let Err(e) = self.flush() else {
            return Ok(());
        };
        let first = self.poison.get_or_init(|| e.to_string());
        Err(self.poisoned(first).caused_by(e))
    }

    /// The staged bytes, if they came from a device of this kind and may be written now.
    pub(super) fn unstaged<'a>(&self, staged: &'a StagedWrite) -> Result<&'a [u8]> {
        if staged.is_in_pool() {
            return Err(foreign());
        }
        let range = staged.range();
        self.check_write(range.start, range.end - range.start)?;
        Ok(staged.as_slice())
    }

    pub(super) fn inject_flush_failure(&self, errno: i32) -> bool {
        self.injected_errno.store(errno, Ordering::Relaxed);
        true
    }
}
