//! The device of `dram`, `numa:N`, `numa:N+M`, `pmem` and `devdax`, and the memory of regions: stores through a
//! writable mapping are the write path.
//!
//! The kinds only make it (each in its own file) and say by [`Traits`] in what it differs.
//! Of tier `file` only regions are mapped so; its pools are written by system calls (`file.rs`).

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::numa::Placer;
use super::pool::{self, PoolFile};
use super::prepared::Prepared;
use super::Device;
use crate::capacity::HugePages;
use crate::persist::{self, CopyPolicy};
use crate::sys::{self, watched, MapOptions, Mapping};
use crate::{
    capacity, counters, Access, Durability, Horizon, Kind, Placement, Result, StagedWrite, TierKind,
};

/// A pool that is written through its mapping.
#[derive(Debug)]
pub struct Mapped {
    pub(crate) pool: PoolFile,
    mapping: Arc<Mapping>,
    kind: TierKind,
    persisted: Durability,
    policy: CopyPolicy,
    /// Whether lines stored through the cache must be written back to persist.
    write_back: bool,
    /// Whether huge pages come only to faults of this mapping, not to fallocate.
    huge_by_fault: bool,
    prepared: Prepared,
    /// Brings pages to the memory nodes of tier `numa:N` or `numa:N+M`.
    placer: Option<Placer>,
}

/// How the kinds differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) kind: TierKind,
    /// What survives that was persisted.
    pub(crate) persisted: Durability,
    pub(crate) policy: CopyPolicy,
    pub(crate) write_back: bool,
    pub(crate) sync: bool,
    pub(crate) huge: HugePages,
    /// The mapping begins at a multiple of this power of two; 0: anywhere.
    pub(crate) align: usize,
}

impl Mapped {
    pub(crate) fn new(pool: PoolFile, traits: Traits) -> std::io::Result<Mapped> {
        let Traits { kind, persisted, policy, write_back, sync, huge, align } = traits;
        let options = MapOptions {
            writable: pool.access == Access::Write,
            sync: sync && pool.access == Access::Write,
            huge: huge != HugePages::Never,
            align,
        };
        let mut mapping = Mapping::new(&pool.file, pool.capacity, options)?;
        mapping.tell_lost_pages(&pool.file, &pool.path);
        let mapping = Arc::new(mapping);
        let huge_by_fault = huge == HugePages::OnRequest && mapping.can_populate();
        let (prepared, placer) = (Prepared::default(), None);
        Ok(Mapped { pool, mapping, kind, persisted, policy, write_back, huge_by_fault, prepared, placer })
    }

    /// The same with every page on the memory nodes of its tier.
    pub(super) fn placed_by(self, placer: Placer) -> Mapped {
        Mapped { placer: Some(placer), ..self }
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Does what allocates pages where it makes them come from the right memory node.
    fn placed(&self, allocate: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        match &self.placer {
            Some(placer) => placer.place(allocate),
            None => allocate(),
        }
    }

    /// Faults whole pages that were reserved in.
    fn fault_in(&self, pages: &Range<u64>) -> Result<()> {
        match self.kind {
            // Pages of a file's cache are not faulted in for writing: each would count as changed, and opening a
            // region would write all of it to the disk again.
            TierKind::File => {}
            // The kernel populates no mappings of devices; touching them cannot fail for lack of space.
            TierKind::DevDax => self.mapping.touch_write(pages),
            _ => self.mapping.populate_write(pages).map_err(|e| self.pool.failed("fault in", e))?,
        }
        Ok(())
    }

    /// Allocates space for whole pages, without mapping them.
    pub(crate) fn reserve(&self, pages: &Range<u64>) -> Result<()> {
        self.placed(|| self.allocate(pages))
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
        if self.missing(pages)? == 0 {
            return Ok(());
        }
        let _turn = capacity::Turn::take(&self.pool.path);
        // Again, now that no other process allocates here.
        let wanted = self.missing(pages)?;
        if wanted == 0 {
            return Ok(());
        }
        capacity::require(&self.pool.path, self.kind, wanted)?;
        let in_turn = self.placer.as_ref().filter(|placer| placer.takes_turns());
        if self.huge_by_fault && in_turn.is_none() {
            // A failure is told better by the call below, which finds the pages that came.
            let _ = self.mapping.populate_write(pages);
        }
        let allocate = |pages: &Range<u64>| sys::allocate(&self.pool.file, pages);
        let allocated = match in_turn {
            Some(placer) => placer.allocate(pages, allocate)?,
            None => allocate(pages),
        };
        match allocated {
            Ok(()) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT) => {
                    let free = capacity::headroom(capacity::parent(&self.pool.path), self.kind)?;
                    Err(capacity::full(&self.pool.path, self.kind, wanted, &free).caused_by(e))
                }
                Some(libc::EOPNOTSUPP | libc::ENOSYS) if self.kind == TierKind::File => {
                    pool::fill_holes(&self.pool.file, &self.pool.path, pages)
                }
                _ => Err(self.pool.failed("allocate pages of", e)),
            },
        }
    }

    #[inline]
    fn check_write(&self, offset: u64, len: usize) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check(offset, len as u64)
    }

    /// As [`crate::persist::copy_persist`] into a range that only the caller writes: one fence at the end.
    #[inline]
    pub(crate) fn copy_persist(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len())?;
        watched(|| {
            self.mapping.copy_in_fenced(offset, src, self.policy);
            Ok(())
        })
    }

    /// Copies `src` in, with the checksums of its chunks where they are asked for; says whether a fence is needed.
    #[inline]
    fn copy_in(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        policy: CopyPolicy,
    ) -> Result<bool> {
        let before = crcs.len();
        watched(|| match chunk_bytes {
            None => Ok(self.mapping.copy_in_unfenced(offset, src, policy)),
            Some(chunk) => {
                crcs.truncate(before);
                Ok(self.mapping.copy_in_checksummed_unfenced(offset, src, policy, chunk, crcs))
            }
        })
    }
}

impl Device for Mapped {
    fn kind(&self) -> TierKind {
        self.kind
    }

    fn capacity(&self) -> u64 {
        self.pool.capacity
    }

    fn path(&self) -> &Path {
        &self.pool.path
    }

    fn byte_addressable(&self) -> bool {
        true
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        match horizon {
            Horizon::None => Durability::Process,
            Horizon::Epoch | Horizon::Write => self.persisted,
        }
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        let pages = self.pool.pages(&range)?;
        if pages.is_empty() || self.prepared.covers(&pages) {
            return Ok(());
        }
        self.placed(|| {
            self.allocate(&pages)?;
            self.fault_in(&pages)
        })?;
        if let Some(placer) = &self.placer {
            placer.verify(self, &pages)?;
        }
        self.prepared.add(&pages);
        Ok(())
    }

    fn populate_read(&self, range: Range<u64>) {
        if self.pool.check(range.start, range.end.wrapping_sub(range.start)).is_ok() {
            self.mapping.populate_read(&range);
        }
    }

    #[inline]
    fn will_read(&self, range: Range<u64>) -> Result<()> {
        match self.kind {
            TierKind::Pmem => self.mapping.touch_read(&range),
            _ => Ok(()),
        }
    }

    /// One lost page loses nothing but what lies on it: who reads here does so within [`crate::watch`].
    #[inline]
    fn can_read(&self, _range: Range<u64>) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len())?;
        if self.copy_in(offset, src, None, &mut Vec::new(), self.policy)? {
            persist::fence();
        }
        Ok(())
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.check_write(offset, src.len())?;
        if self.copy_in(offset, src, Some(chunk_bytes), crcs, self.policy)? {
            persist::fence();
        }
        Ok(())
    }

    #[inline]
    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        soon: bool,
    ) -> Result<()> {
        self.check_write(offset, src.len())?;
        let policy = if soon { self.policy.staying_near() } else { self.policy };
        // Whether it needs a fence is left to the caller, who has to fence in any case.
        self.copy_in(offset, src, chunk_bytes, crcs, policy).map(|_| ())
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        if self.write_back {
            watched(|| {
                self.mapping.write_back(&range);
                Ok(())
            })?;
        }
        persist::fence();
        Ok(())
    }

    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        persist::fence();
        Ok(())
    }

    #[inline]
    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.pool.check_writable()?;
        self.pool.check_word(offset)?;
        // `write` has fenced its own stores that bypass the cache, `write_unordered`'s caller the others; so a
        // release store orders all of them.
        let word = self.mapping.word_mut(offset);
        watched(|| {
            word.store(value, Ordering::Release);
            Ok(())
        })
    }

    #[inline]
    fn load_word(&self, offset: u64) -> u64 {
        self.mapping.word(offset).load(Ordering::Acquire)
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.mapping.bytes(range)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.check_write(range.start, range.end.wrapping_sub(range.start) as usize)?;
        Ok(StagedWrite::in_pool(self.mapping.clone(), range))
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        if !staged.is_of(&self.mapping) {
            return Err(foreign());
        }
        if let Some(chunk_bytes) = chunk_bytes {
            let before = crcs.len();
            watched(|| {
                crcs.truncate(before);
                persist::checksum_chunks(staged.as_slice(), chunk_bytes, crcs);
                Ok(())
            })?;
        }
        // The caller may have filled it with stores that bypass the cache.
        persist::fence();
        Ok(())
    }

    fn fence(&self) {
        persist::fence()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.kind != TierKind::DevDax {
            return self.pool.read(offset, out);
        }
        // The device takes no read calls; its mapping has no holes.
        let len = out.len() as u64;
        self.pool.check(offset, len)?;
        watched(|| {
            out.copy_from_slice(self.mapping.bytes(offset..offset + len));
            Ok(())
        })?;
        counters::add_bytes_copied(len);
        Ok(())
    }

    fn after_hole(&self, offset: u64) -> u64 {
        match self.kind {
            TierKind::DevDax => offset,
            _ => self.pool.after_hole(offset),
        }
    }

    fn placement(&self) -> Option<Placement> {
        self.placer.as_ref().map(Placer::placement)
    }
}

/// The error for staged memory that another device handed out.
#[cold]
pub(super) fn foreign() -> crate::Error {
    crate::Error::new(Kind::Internal, "staged memory came back to another device than it came from")
}
