//! A device is one pool file on one tier: bytes go in, are made persistent, and are shown without a copy.
//!
//! All kinds share one contract, which [`conformance`] checks:
//! - A range belongs to one writer until its bytes are published (by the log above, with a commit word);
//!   published bytes are immutable until no lease on them is held. The device does not check this.
//! - Offsets are bytes from the start of the pool. A range outside the pool is `Kind::Internal`, or a panic
//!   where no error can be returned.
//! - No call blocks on another process, except that `prepare` takes turns with other allocations in the
//!   directory (a few seconds at most).
//!
//! What a device does not do: publish, order versions, checksum what it reads, shrink.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::{sys, Access, Durability, Error, Horizon, Kind, Placement, Result, StagedWrite, TierKind};

mod blocks;
#[doc(hidden)]
pub mod conformance;
pub mod devdax;
pub mod direct;
pub mod dram;
pub mod file;
pub mod mapped;
pub mod numa;
pub mod pmem;
pub(crate) mod pool;
mod prepared;
#[doc(hidden)]
pub mod recorder;

/// One pool on a tier. See the module for what all calls have in common.
pub trait Device: Send + Sync {
    /// The kind of tier.
    fn kind(&self) -> TierKind;

    /// Size of the pool in bytes, a whole number of pages.
    fn capacity(&self) -> u64;

    /// The end of the pool that holds `offset`: no range that is read or written crosses it. It is the capacity, except
    /// where several pools form one device.
    fn pool_end(&self, offset: u64) -> u64 {
        let _ = offset;
        self.capacity()
    }

    /// The pool file.
    fn path(&self) -> &Path;

    /// Whether stores through the mapping are the write path (`dram`, `pmem`). On `file` and `direct` system calls are,
    /// and the mapping is for reading only.
    fn byte_addressable(&self) -> bool;

    /// What a write survives once it was acknowledged under `horizon`.
    fn durability(&self, horizon: Horizon) -> Durability;

    /// Allocates space for a range and faults it in for writing by this process. Bytes that are there stay.
    ///
    /// Pages that are not allocated yet are checked first against everything that limits the tier (see
    /// [`crate::capacity`]); when they do not fit, nothing is touched. Calling it again
    /// counts nothing twice; on the same handle it costs next to nothing, on another it walks the pages
    /// (some 0.2 ms per MiB).
    ///
    /// # Errors
    /// `TierFull` (what limits, how much is wanted and free); `PermissionDenied` on a pool opened for
    /// reading; `Poisoned`; `Io`.
    fn prepare(&self, range: Range<u64>) -> Result<()>;

    /// Maps the pages of a published range for reading by this process, so that reading takes no page fault.
    /// Best effort. (On a range never prepared it may allocate pages.)
    fn populate_read(&self, range: Range<u64>);

    /// Copies `src` in. When it returns, the bytes are ordered before every later store of this thread, but
    /// not persistent: call [`Device::persist`] or [`Device::persist_written`]. The range must be prepared.
    ///
    /// # Errors
    /// `PermissionDenied` on a pool opened for reading; `Poisoned`; on `file` also `TierFull`, `Io`.
    fn write(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// As [`Device::write`], and appends the CRC-32C of each `chunk_bytes` of `src` (the last may be shorter)
    /// to `crcs`, computed while the bytes are in the cache.
    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()>;

    /// As [`Device::write`], with checksums as in [`Device::write_checksummed`] where `chunk_bytes` is given, but
    /// ordered before later stores, and on the way to the medium, only after the next [`Device::fence`]. Many
    /// small writes of one version share that fence: waiting for each would cost as much as its copy. `soon`: another
    /// process will want these bytes at once; where nothing is lost by it they stay in the cache.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        soon: bool,
    ) -> Result<()> {
        let _ = soon;
        match chunk_bytes {
            Some(chunk_bytes) => self.write_checksummed(offset, src, chunk_bytes, crcs),
            None => self.write(offset, src),
        }
    }

    /// Makes a range persistent, however it was written: cache lines are written back and fenced, or the file
    /// is flushed (all of it, one call). On `dram` it only fences.
    ///
    /// # Errors
    /// The first flush that fails poisons the device: from then on every write and persist gives `Poisoned`,
    /// because the kernel may have dropped the pages that it could not write.
    fn persist(&self, range: Range<u64>) -> Result<()>;

    /// As [`Device::persist`] for a range that came in only through [`Device::write`],
    /// [`Device::write_checksummed`] or [`Device::write_unordered`] of this thread: on byte-addressable tiers
    /// those have written it back already and only a fence is left.
    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        self.persist(range)
    }

    /// What [`Device::persist`] of a range makes persistent with it: nothing more where cache lines are written back,
    /// the whole pool where one flush takes all of it.
    fn persisted_with(&self, range: Range<u64>) -> Range<u64> {
        match self.byte_addressable() {
            true => range,
            false => 0..self.capacity(),
        }
    }

    /// Orders earlier stores of this thread before later ones, also those that bypass the cache. Nothing on
    /// `file`.
    fn fence(&self);

    /// Stores one aligned 8-byte word with release order (earlier stores of this thread through the device
    /// are ordered before it, those of [`Device::write_unordered`] if a fence came between). Not persistent until
    /// [`Device::persist`]. On `file` a write of 8 bytes that a concurrent reader may in theory see half: pools of
    /// that kind rely on checksums, not on words.
    ///
    /// # Errors
    /// As [`Device::write`]; `Internal` when `offset` is not a multiple of 8.
    fn store_word(&self, offset: u64, value: u64) -> Result<()>;

    /// Published bytes, without a copy. See the module: only for ranges that are immutable now.
    ///
    /// # Panics
    /// When the range is outside the pool.
    fn bytes(&self, range: Range<u64>) -> &[u8];

    /// Says that this thread is about to read a published range through [`Device::bytes`]: adapters account for
    /// it here, or delay it. Also the place for what a mapping cannot say otherwise: a page that the medium does
    /// not give is an error here and the end of the process (SIGBUS) there. Costs next to nothing.
    ///
    /// # Errors
    /// `Io` on `file`, when reading the range ahead has failed and fails again; on `pmem`, when it holds a page that
    /// the
    /// medium does not give.
    fn will_read(&self, range: Range<u64>) -> Result<()> {
        let _ = range;
        Ok(())
    }

    /// As [`Device::will_read`] for a range of which only some parts, not known yet, will be read: a page that the
    /// medium does not give is an error, and adapters neither account for it nor delay it. (On `pmem` it is none yet:
    /// who
    /// reads within [`crate::watch`] is told of it when it is met.)
    ///
    /// # Errors
    /// As [`Device::will_read`].
    fn can_read(&self, range: Range<u64>) -> Result<()> {
        self.will_read(range)
    }

    /// Copies published or never written bytes out, without a mapping: nothing is faulted in or allocated where
    /// the pool has holes (they read as zeros). Counts as bytes copied.
    ///
    /// # Errors
    /// `Internal` outside the pool; `Io`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// The first offset, from `offset` on, that no hole of the pool covers: what lies before it reads as zeros. The
    /// capacity where there is none; `offset` itself where the tier cannot tell.
    fn after_hole(&self, offset: u64) -> u64 {
        offset
    }

    /// Loads one aligned 8-byte word with acquire order.
    ///
    /// # Panics
    /// When it is outside the pool or not aligned.
    fn load_word(&self, offset: u64) -> u64;

    /// Writable memory for a prepared range that the caller owns: the pool itself where it is
    /// byte-addressable, else heap.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn stage(&self, range: Range<u64>) -> Result<StagedWrite>;

    /// Ends write access to staged memory: heap is written to the pool, CRC-32Cs are appended when
    /// `chunk_bytes` is given. Ordered and persistent as after [`Device::write`]; use [`Device::persist`] for
    /// it.
    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()>;

    /// How the pages came to the memory nodes that the tier names; None on every other tier.
    fn placement(&self) -> Option<Placement> {
        None
    }

    /// Lets the next flush fail with `errno`, for tests of what is above. False where flushes cannot fail.
    #[doc(hidden)]
    fn inject_flush_failure(&self, errno: i32) -> bool {
        let _ = errno;
        false
    }
}

/// Makes a pool of `capacity` bytes (rounded up to whole pages): a sparse file, 0600, that must not exist
/// yet. No page of it is allocated. (On `devdax` the path is a device, which is there already and must begin with
/// a page of zeros; the pool is all of it.) A file that was made and cannot be used is removed again.
///
/// # Errors
/// `NotPossibleHere` when the directory is on no such tier; `Usage` for a capacity of 0; `PermissionDenied`;
/// `Io`, also when the file exists.
pub fn create(kind: TierKind, path: &Path, capacity: u64) -> Result<Arc<dyn Device>> {
    Ok(match kind {
        TierKind::Dram => Arc::new(dram::create(path, capacity)?),
        TierKind::File => Arc::new(file::FilePool::create(path, capacity)?),
        TierKind::Pmem => Arc::new(pmem::create(path, capacity)?),
        TierKind::Direct => Arc::new(direct::Direct::create(path, capacity)?),
        TierKind::Numa(_) | TierKind::Interleaved(_) => Arc::new(numa::create(kind, path, capacity)?),
        TierKind::DevDax => Arc::new(devdax::create(path, capacity)?),
        TierKind::Object => return Err(no_pool_of_objects()),
    })
}

/// Opens a pool.
///
/// # Errors
/// As [`create`]; `Damaged` when the file cannot be a pool (empty, or not whole pages).
pub fn open(kind: TierKind, path: &Path, access: Access) -> Result<Arc<dyn Device>> {
    Ok(match kind {
        TierKind::Dram => Arc::new(dram::open(path, access)?),
        TierKind::File => Arc::new(file::FilePool::open(path, access)?),
        TierKind::Pmem => Arc::new(pmem::open(path, access)?),
        TierKind::Direct => Arc::new(direct::Direct::open(path, access)?),
        TierKind::Numa(_) | TierKind::Interleaved(_) => Arc::new(numa::open(kind, path, access)?),
        TierKind::DevDax => Arc::new(devdax::open(path, access)?),
        TierKind::Object => return Err(no_pool_of_objects()),
    })
}

#[cold]
fn no_pool_of_objects() -> Error {
    Error::new(Kind::NotPossibleHere, "a pool cannot be in an object store")
        .hint("object stores are supported for the last level of a checkpoint only: choose another tier")
}

/// The kind of tier that a directory is on: tmpfs is `Dram`, a DAX file system (a trial mapping with MAP_SYNC
/// succeeds) is `Pmem`, everything else `File`. Makes and removes a nameless file where the first answer is
/// no.
pub fn detect(dir: &Path) -> Result<TierKind> {
    let asking = |e| Error::io(format!("cannot stat {}", dir.display()), e);
    let handle = sys::open_path_only(dir).map_err(asking)?;
    if !handle.metadata().map_err(asking)?.is_dir() {
        return Err(Error::new(Kind::Usage, format!("{} is not a directory", dir.display())));
    }
    if sys::file_system(&handle).map_err(asking)?.is_tmpfs {
        return Ok(TierKind::Dram);
    }
    Ok(if pmem::trial(dir) { TierKind::Pmem } else { TierKind::File })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pool_lies_in_a_store_of_objects() {
        let path = Path::new("/dev/shm/forebay-no-pool");
        let made = create(TierKind::Object, path, 4096).map(drop).unwrap_err();
        let opened = open(TierKind::Object, path, Access::Read).map(drop).unwrap_err();
        assert_eq!((made.kind(), opened.kind()), (Kind::NotPossibleHere, Kind::NotPossibleHere));
        assert!(!path.exists());
    }
}
