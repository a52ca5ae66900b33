//! `file`: the page cache of a block file system. Written by system calls, read through a mapping.
//!
//! Guarantees: room is reserved by `prepare`, so that running out of disk space is an error there; `persist`
//! is one fdatasync; the first one that fails poisons the device, because the kernel may have dropped the
//! pages and says so only once. Writing through the mapping is not offered: a store fault on a broken disk
//! would be a SIGBUS.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::OnceLock;

use super::mapped::foreign;
use super::pool::{self, PoolFile};
use super::prepared::Prepared;
use super::Device;
use crate::sys::{self, MapOptions, Mapping};
use crate::{capacity, persist, Access, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind};

/// How much is summed before it is written, so that the system call finds it in the cache.
const CHECKSUM_WRITE_BYTES: usize = 256 << 10;

/// A pool on a block file system.
#[derive(Debug)]
pub struct FilePool {
    pool: PoolFile,
    mapping: Mapping,
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

impl FilePool {
    /// See [`super::create`].
    pub fn create(path: &Path, capacity: u64) -> Result<FilePool> {
        PoolFile::create(path, capacity, |pool| {
            let device = FilePool::on(pool)?;
            device.pool.sync_name()?;
            Ok(device)
        })
    }

    /// See [`super::open`].
    pub fn open(path: &Path, access: Access) -> Result<FilePool> {
        FilePool::on(PoolFile::open(path, access)?)
    }

    fn on(pool: PoolFile) -> Result<FilePool> {
        let mapping = Mapping::new(&pool.file, pool.capacity, MapOptions::default());
        let mapping = mapping.map_err(|e| pool.failed("map", e))?;
        let on_tmpfs = pool.on_tmpfs()?;
        Ok(FilePool {
            pool,
            mapping,
            on_tmpfs,
            poison: OnceLock::new(),
            prepared: Prepared::default(),
            injected_errno: AtomicI32::new(0),
            read_failed: AtomicBool::new(false),
        })
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check(offset, len)?;
        match self.poison.get() {
            None => Ok(()),
            Some(first) => Err(self.poisoned(first)),
        }
    }

    #[cold]
    fn poisoned(&self, first: &str) -> Error {
        Error::new(Kind::Poisoned, format!("the pool takes no more writes, because a flush failed: {first}"))
            .with("pool", self.pool.path.display())
            .hint("what was persisted before is intact; look at the disk, then open the space again")
    }

    fn write_summing(&self, offset: u64, src: &[u8], chunk_bytes: usize, crcs: &mut Vec<u32>) -> Result<()> {
        assert!(chunk_bytes > 0, "chunks of no bytes");
        // Whole chunks, as many as fit the cache, then the write that finds them there.
        let piece_bytes = (CHECKSUM_WRITE_BYTES / chunk_bytes).max(1).saturating_mul(chunk_bytes);
        let mut at = offset;
        for piece in src.chunks(piece_bytes) {
            persist::checksum_chunks(piece, chunk_bytes, crcs);
            self.pool.write(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
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
                    let room = capacity::headroom(capacity::parent(&self.pool.path), TierKind::File)?;
                    Err(capacity::full(&self.pool.path, TierKind::File, wanted, &room).caused_by(e))
                }
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    pool::fill_holes(&self.pool.file, &self.pool.path, pages)
                }
                _ => Err(self.pool.failed("allocate blocks of", e)),
            },
        }
    }
}

impl Device for FilePool {
    fn kind(&self) -> TierKind {
        TierKind::File
    }

    fn capacity(&self) -> u64 {
        self.pool.capacity
    }

    fn path(&self) -> &Path {
        &self.pool.path
    }

    fn byte_addressable(&self) -> bool {
        false
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        match horizon {
            Horizon::Epoch | Horizon::Write if !self.on_tmpfs => Durability::Power,
            _ => Durability::Process,
        }
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
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
            capacity::require(&self.pool.path, TierKind::File, wanted)?;
            self.allocate(&pages, wanted)?;
        }
        self.prepared.add(&pages);
        Ok(())
    }

    fn populate_read(&self, range: Range<u64>) {
        if self.pool.check(range.start, range.end.wrapping_sub(range.start)).is_ok() {
            if let Err(e) = self.mapping.try_populate_read(&range) {
                // Touching the pages would be a SIGBUS. Anything else is a kernel without this call.
                if matches!(e.raw_os_error(), Some(libc::EFAULT | libc::EHWPOISON)) {
                    self.read_failed.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        if !self.read_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.pool.check(range.start, range.end.wrapping_sub(range.start))?;
        self.mapping.try_populate_read(&range).map_err(|e| {
            self.pool
                .failed("read", e)
                .with("pool_offset", range.start)
                .with("bytes", range.end - range.start)
                .hint("the file was cut off below its size, or the disk does not give these blocks")
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len() as u64)?;
        self.pool.write(offset, src)
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.check_write(offset, src.len() as u64)?;
        self.write_summing(offset, src, chunk_bytes, crcs)
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start))?;
        let Err(e) = self.flush() else {
            return Ok(());
        };
        let first = self.poison.get_or_init(|| e.to_string());
        Err(self.poisoned(first).caused_by(e))
    }

    fn fence(&self) {}

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.pool.check_word(offset)?;
        self.check_write(offset, 8)?;
        self.pool.write(offset, &value.to_ne_bytes())
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.mapping.bytes(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.pool.read(offset, out)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.mapping.word(offset).load(Ordering::Acquire)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.check_write(range.start, range.end.wrapping_sub(range.start))?;
        Ok(StagedWrite::on_heap(range))
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        if staged.is_in_pool() {
            return Err(foreign());
        }
        let range = staged.range();
        self.check_write(range.start, range.end - range.start)?;
        match chunk_bytes {
            Some(chunk_bytes) => self.write_summing(range.start, staged.as_slice(), chunk_bytes, crcs),
            None => self.pool.write(range.start, staged.as_slice()),
        }
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.injected_errno.store(errno, Ordering::Relaxed);
        true
    }
}
