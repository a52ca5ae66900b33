//! What `dram`, `numa`, `pmem`, `devdax` and mapped regions have in common: stores through a writable mapping are the
//! write path.
//!
//! Of tier `file` only regions are mapped so; its pools are written by system calls (`file.rs`).

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::pool::{self, PoolFile};
use super::prepared::Prepared;
use crate::capacity::HugePages;
use crate::persist::{self, CopyPolicy};
use crate::sys::{self, MapOptions, Mapping};
use crate::{capacity, Access, Kind, Result, StagedWrite, TierKind};

/// A pool that is written through its mapping.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) pool: PoolFile,
    mapping: Arc<Mapping>,
    kind: TierKind,
    policy: CopyPolicy,
    /// Whether lines stored through the cache must be written back to persist.
    write_back: bool,
    /// Whether huge pages come only to faults of this mapping, not to fallocate.
    huge_by_fault: bool,
    prepared: Prepared,
}

/// How the kinds differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) kind: TierKind,
    pub(crate) policy: CopyPolicy,
    pub(crate) write_back: bool,
    pub(crate) sync: bool,
    pub(crate) huge: HugePages,
}

impl Mapped {
    pub(crate) fn new(pool: PoolFile, traits: Traits) -> std::io::Result<Mapped> {
        Mapped::aligned(pool, traits, 0)
    }

    /// As `new`, at an address that is a multiple of `align` (a power of two).
    pub(super) fn aligned(pool: PoolFile, traits: Traits, align: usize) -> std::io::Result<Mapped> {
        let options = MapOptions {
            writable: pool.access == Access::Write,
            sync: traits.sync && pool.access == Access::Write,
            huge: traits.huge != HugePages::Never,
            align,
        };
        let mapping = Arc::new(Mapping::new(&pool.file, pool.capacity, options)?);
        let huge_by_fault = traits.huge == HugePages::OnRequest && mapping.can_populate();
        Ok(Mapped {
            pool,
            mapping,
            kind: traits.kind,
            policy: traits.policy,
            write_back: traits.write_back,
            huge_by_fault,
            prepared: Prepared::default(),
        })
    }

    pub(crate) fn kind(&self) -> TierKind {
        self.kind
    }

    pub(crate) fn path(&self) -> &Path {
        &self.pool.path
    }

    /// Whether this handle has prepared all of a range of whole pages.
    pub(super) fn is_prepared(&self, pages: &Range<u64>) -> bool {
        self.prepared.covers(pages)
    }

    pub(crate) fn prepare(&self, range: Range<u64>) -> Result<()> {
        let pages = self.pool.pages(&range)?;
        if pages.is_empty() || self.prepared.covers(&pages) {
            return Ok(());
        }
        self.reserve(&pages)?;
        // Pages of a file's cache are not faulted in for writing: each would count as changed, and opening a
        // region would write all of it to the disk again.
        match self.kind {
            TierKind::File => {}
            // The kernel populates no mappings of devices; touching them cannot fail for lack of room.
            TierKind::DevDax => self.mapping.touch_write(&pages),
            _ => self.mapping.populate_write(&pages).map_err(|e| self.pool.failed("fault in", e))?,
        }
        self.prepared.add(&pages);
        Ok(())
    }

    /// Makes room for whole pages, without mapping them.
    pub(crate) fn reserve(&self, pages: &Range<u64>) -> Result<()> {
        match self.missing(pages)? {
            0 => Ok(()),
            _ => self.allocate(pages),
        }
    }

    /// Bytes of a range without a page yet.
    fn missing(&self, pages: &Range<u64>) -> Result<u64> {
        if self.kind == TierKind::DevDax {
            return Ok(0);
        }
        let allocated =
            sys::allocated_bytes(&self.pool.file, pages).map_err(|e| self.pool.failed("look into", e))?;
        Ok(pages.end - pages.start - allocated)
    }

    fn allocate(&self, pages: &Range<u64>) -> Result<()> {
        let _turn = capacity::Turn::take(&self.pool.path);
        // Again, now that nobody else allocates here.
        let wanted = self.missing(pages)?;
        if wanted == 0 {
            return Ok(());
        }
        capacity::require(&self.pool.path, self.kind, wanted)?;
        if self.huge_by_fault {
            // A failure is told better by the call below, which finds the pages that came.
            let _ = self.mapping.populate_write(pages);
        }
        match sys::allocate(&self.pool.file, pages) {
            Ok(()) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT) => {
                    let room = capacity::headroom(capacity::parent(&self.pool.path), self.kind)?;
                    Err(capacity::full(&self.pool.path, self.kind, wanted, &room).caused_by(e))
                }
                Some(libc::EOPNOTSUPP | libc::ENOSYS) if self.kind == TierKind::File => {
                    pool::fill_holes(&self.pool.file, &self.pool.path, pages)
                }
                _ => Err(self.pool.failed("allocate pages of", e)),
            },
        }
    }

    pub(super) fn populate_read(&self, range: Range<u64>) {
        if self.pool.check(range.start, range.end.wrapping_sub(range.start)).is_ok() {
            self.mapping.populate_read(&range);
        }
    }

    #[inline]
    fn check_write(&self, offset: u64, len: usize) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check(offset, len as u64)
    }

    #[inline]
    pub(super) fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len())?;
        self.mapping.copy_in(offset, src, self.policy);
        Ok(())
    }

    pub(super) fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.check_write(offset, src.len())?;
        if self.mapping.copy_in_checksummed_unfenced(offset, src, self.policy, chunk_bytes, crcs) {
            persist::fence();
        }
        Ok(())
    }

    #[inline]
    pub(super) fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.check_write(offset, src.len())?;
        let (mapping, policy) = (&self.mapping, self.policy);
        // Whether it needs a fence is left to the caller, who has to fence in any case.
        let _ = match chunk_bytes {
            Some(chunk) => mapping.copy_in_checksummed_unfenced(offset, src, policy, chunk, crcs),
            None => mapping.copy_in_unfenced(offset, src, policy),
        };
        Ok(())
    }

    pub(crate) fn persist(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        if self.write_back {
            self.mapping.write_back(&range);
        }
        persist::fence();
        Ok(())
    }

    /// As [`crate::persist::copy_persist`] into a range that only the caller writes: one fence at the end.
    #[inline]
    pub(crate) fn copy_persist(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len())?;
        self.mapping.copy_in_fenced(offset, src, self.policy);
        Ok(())
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(super) fn persist_written(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        persist::fence();
        Ok(())
    }

    #[inline]
    pub(super) fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check_word(offset)?;
        // `write` has fenced its own stores that bypass the cache, `write_unordered`'s caller the others; so a
        // release store orders all of them.
        self.mapping.word_mut(offset).store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(super) fn load_word(&self, offset: u64) -> u64 {
        self.mapping.word(offset).load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.mapping.bytes(range)
    }

    pub(super) fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        Ok(StagedWrite::in_pool(self.mapping.clone(), range))
    }

    pub(super) fn unstage(
        &self,
        staged: StagedWrite,
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        if !staged.is_of(&self.mapping) {
            return Err(foreign());
        }
        if let Some(chunk_bytes) = chunk_bytes {
            persist::checksum_chunks(staged.as_slice(), chunk_bytes, crcs);
        }
        // The caller may have filled it with stores that bypass the cache.
        persist::fence();
        Ok(())
    }
}

/// The error for staged memory that another device handed out.
#[cold]
pub(super) fn foreign() -> crate::Error {
    crate::Error::new(Kind::Internal, "staged memory came back to another device than it came from")
}
