//! A region: a named file on a tier, mapped for writing, that a program persists where and when it says.
//!
//! Guarantees: a file of exactly the bytes asked for, 0600, that appears under its name only when it is complete; free
//! space is checked before a page is touched, so that a full tier is an error and neither a SIGBUS nor an out-of-memory
//! kill; what [`Region::persist`] returned for survives what [`Region::durability`] says; the first flush that fails
//! poisons the handle; no symbolic link is followed in the last part of the path.
//!
//! Does not: arrange who writes what. Processes (and handles in one process) that map the same file see each other's
//! stores at once, in no order but that of the processor; two that write the same range at the same time leave any
//! mixture. No checksums, no versions, no atomic update of more than an aligned word: that is what spaces are for.
//!
//! Stores that were not persisted survive the end of the process all the same, on every tier. They may reach the
//! medium at any time and in any order; only `persist` says when they have.
//!
//! On tier `file` blocks are reserved when the region is opened, but pages are not faulted in (that alone would
//! write the whole file anew). A page that the disk cannot read any more is a SIGBUS at the load that needs it, as
//! with every mapping of a file.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::capacity::{self, HugePages};
use crate::device::mapped::{Mapped, Traits};
use crate::device::pool::{self, PoolFile};
use crate::device::{dram, numa, pmem};
use crate::persist::CopyPolicy;
use crate::process::{self, ForkMark};
use crate::{
    device, sys, Access, Device, Durability, Error, Horizon, Kind, Placement, Result, StagedWrite, TierKind,
};

/// What to do with a file that is there, or is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MapMode {
    /// `r`: it must be there; for reading only.
    Read,
    /// `r+`: it must be there.
    Write,
    /// `x+`: it must not be there.
    Create,
    /// `w+`: what is there is removed first. Processes that have it mapped keep the old bytes.
    Replace,
    /// `a+`: opened when it is there, else made. Of several processes that come at once, one makes it.
    #[default]
    OpenOrCreate,
}

impl FromStr for MapMode {
    type Err = Error;
    fn from_str(text: &str) -> Result<MapMode> {
        match text {
            "r" => Ok(MapMode::Read),
            "r+" => Ok(MapMode::Write),
            "x+" => Ok(MapMode::Create),
            "w+" => Ok(MapMode::Replace),
            "a+" => Ok(MapMode::OpenOrCreate),
            _ => Err(Error::new(Kind::Usage, format!("invalid mode: `{text}`"))
                .hint("one of: a+ (open or create), r+ (open), r (read only), x+ (create), w+ (replace)")),
        }
    }
}

/// A mapped file as this program's own memory: slices, and persistence on request. See the file's head.
pub struct Region {
    shared: SharedRegion,
    /// The whole memory, when it may be written.
    writable: Option<StagedWrite>,
}

impl Region {
    /// Maps `path`, of exactly `bytes` bytes; None is the size of the file that is there. Without `tier` it is that
    /// of the directory; with it, the directory must be on it (`file` is possible everywhere, also on tmpfs, and
    /// `numa:N` wherever `dram` is). The node of a region is not written down: a process that opens it without a tier
    /// gets the same memory as `dram`.
    ///
    /// Blocks while pages are allocated and faulted in (some 0.2 ms per MiB in memory), and up to a few
    /// seconds for others that allocate in the same directory. A new file on `file` or `pmem` is durable, with its
    /// name, when this returns.
    ///
    /// # Errors
    /// `TierFull` (what limits, how much is wanted and free); `NotPossibleHere` when the directory is not on `tier`
    /// or the tier cannot be mapped; `OptionMismatch` when the file has another size; `Usage` for a size of 0, no
    /// size for a new file, or something that is no regular file; `PermissionDenied`; `Io`, also when there is no
    /// such file, or one too many.
    pub fn map(path: &Path, bytes: Option<usize>, tier: Option<TierKind>, mode: MapMode) -> Result<Region> {
        SharedRegion::map(path, bytes, tier, mode).map(Region::own)
    }

    /// Makes a region of `bytes` zero bytes; `path` must not exist. See [`Region::map`].
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn create(path: &Path, bytes: usize, tier: Option<TierKind>) -> Result<Region> {
        Region::map(path, Some(bytes), tier, MapMode::Create)
    }

    /// Opens a region of exactly `bytes` bytes for reading and writing. See [`Region::map`].
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn open(path: &Path, bytes: usize, tier: Option<TierKind>) -> Result<Region> {
        Region::map(path, Some(bytes), tier, MapMode::Write)
    }

    /// Opens a region of exactly `bytes` bytes, or makes it. See [`Region::map`].
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn open_or_create(path: &Path, bytes: usize, tier: Option<TierKind>) -> Result<Region> {
        Region::map(path, Some(bytes), tier, MapMode::OpenOrCreate)
    }

    /// The code path of persistent memory on any file system that can be mapped, for tests and emulation. It does
    /// everything but promise: `durability` stays `Process`.
    #[doc(hidden)]
    pub fn create_emulated(path: &Path, bytes: usize) -> Result<Region> {
        create(path, bytes, TierKind::Pmem, |pool| pmem::on(pool, false)).map(Region::own)
    }

    /// Mapped memory that is writable already.
    pub(crate) fn over(mapped: Mapped) -> Region {
        Region::own(SharedRegion::over(mapped))
    }

    fn own(shared: SharedRegion) -> Region {
        let mapped = &shared.inner.mapped;
        let whole = 0..mapped.pool.capacity;
        let writable = (mapped.pool.access == Access::Write)
            .then(|| StagedWrite::in_pool(mapped.mapping().clone(), whole));
        Region { shared, writable }
    }

    /// The bytes. What another process stores into them meanwhile may show at any time.
    pub fn as_slice(&self) -> &[u8] {
        let mapped = &self.shared.inner.mapped;
        mapped.mapping().bytes(0..mapped.pool.capacity)
    }

    /// The bytes, for writing. The first byte lies at a multiple of 2 MiB in memory.
    ///
    /// # Errors
    /// `PermissionDenied` when it was opened for reading only.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let read_only = self.shared.inner.mapped.pool.check_writable();
        match &mut self.writable {
            Some(whole) => Ok(whole.as_mut_slice()),
            None => Err(read_only.err().unwrap_or_else(|| Error::new(Kind::Internal, "no writable memory"))),
        }
    }

    /// See [`SharedRegion::persist`].
    ///
    /// # Errors
    /// As there.
    pub fn persist(&self, range: Range<usize>) -> Result<()> {
        self.shared.persist(range)
    }

    /// Persists all of it. See [`SharedRegion::persist`].
    ///
    /// # Errors
    /// As there.
    pub fn persist_all(&self) -> Result<()> {
        self.shared.persist(0..self.len())
    }

    /// See [`SharedRegion::copy_persist`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_persist(&mut self, offset: usize, src: &[u8]) -> Result<()> {
        self.shared.copy_persist(offset, src)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether it has no byte (it never has none).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tier that it lies on.
    pub fn tier(&self) -> TierKind {
        self.shared.tier()
    }

    /// The file, as it was given.
    pub fn path(&self) -> &Path {
        self.shared.path()
    }

    /// What a persisted range survives.
    pub fn durability(&self) -> Durability {
        self.shared.durability()
    }

    /// See [`SharedRegion::placement`].
    pub fn placement(&self) -> Option<Placement> {
        self.shared.placement()
    }

    /// See [`SharedRegion::sync_name`].
    ///
    /// # Errors
    /// As there.
    pub fn sync_name(&self) -> Result<()> {
        self.shared.sync_name()
    }

    /// A handle of the same region for [`SharedRegion::persist`], while slices of this one are out.
    pub fn shared(&self) -> SharedRegion {
        self.shared.clone()
    }

    /// Gives up the slices, for a border (C, Python) that hands out addresses to several threads.
    pub fn into_shared(self) -> SharedRegion {
        self.shared
    }

    /// Lets the next flush fail with `errno`, for tests. False where flushes cannot fail.
    #[doc(hidden)]
    pub fn inject_flush_failure(&self, errno: i32) -> bool {
        let inner = &self.shared.inner;
        inner.injected_errno.store(errno, Ordering::Relaxed);
        inner.tier() == TierKind::File
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// A region behind a border: threads share it, and get its address instead of slices. Copies of the handle are the
/// same region; the memory stays mapped until the last one is dropped.
///
/// Each range belongs to the thread that writes it: two that copy into the same one at the same time leave any
/// mixture.
#[derive(Clone)]
pub struct SharedRegion {
    inner: Arc<Inner>,
}

struct Inner {
    mapped: Mapped,
    mark: ForkMark,
    /// What the first failed flush said.
    poison: OnceLock<String>,
    /// For tests: the error that the next flush shall give; 0 for none.
    injected_errno: AtomicI32,
}

impl SharedRegion {
    /// See [`Region::map`].
    ///
    /// # Errors
    /// As there.
    pub fn map(
        path: &Path,
        bytes: Option<usize>,
        tier: Option<TierKind>,
        mode: MapMode,
    ) -> Result<SharedRegion> {
        if bytes == Some(0) {
            return Err(Error::new(Kind::Usage, "the size of a region must be at least one byte")
                .with("path", path.display())
                .hint("omit the size to map an existing file whole"));
        }
        let tier = match tier {
            Some(tier) => tier,
            None => match capacity::own_descriptor(path) {
                Some(dir) => device::detect(&dir)?,
                None => device::detect(capacity::parent(path))?,
            },
        };
        let on = |pool| backing(pool, tier);
        match mode {
            MapMode::Read => open(path, bytes, Access::Read, on),
            MapMode::Write => open(path, bytes, Access::Write, on),
            MapMode::Create => create(path, needed(path, bytes)?, tier, on),
            MapMode::Replace => {
                let bytes = needed(path, bytes)?;
                remove(path)?;
                create(path, bytes, tier, on)
            }
            MapMode::OpenOrCreate => open_or_create(path, bytes, tier),
        }
    }

    /// The address of the first byte, a multiple of 2 MiB; valid until the last copy of the handle is dropped, also
    /// in a forked child. Storing through it needs [`SharedRegion::is_writable`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.mapped.mapping().at(0, 0).as_ptr()
    }

    /// Whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.inner.mapped.pool.access == Access::Write
    }

    /// Makes a range (bytes from the start) persistent, however it was stored: when this returns it survives what
    /// [`SharedRegion::durability`] says. Stores that other threads make meanwhile may be in or not.
    ///
    /// On `pmem` the cache lines of the range are written back and fenced. On `file` the pages that it touches are
    /// written to the disk (one msync), which may take milliseconds and blocks. On `dram` and `numa:N` there is
    /// nothing to persist to: one fence. An empty range does nothing.
    ///
    /// # Errors
    /// `Usage` for a range outside; `PermissionDenied` when opened for reading only; `ForkedHandle`. The first flush
    /// that fails poisons the handle: from then on every persist gives `Poisoned`, because the kernel may have
    /// dropped the pages that it could not write.
    pub fn persist(&self, range: Range<usize>) -> Result<()> {
        self.inner.check(range.start, range.end.wrapping_sub(range.start))?;
        self.inner.flush(range.start as u64..range.end as u64)
    }

    /// Copies `src` to `offset` (bytes from the start) and makes it persistent, in one pass: as
    /// [`SharedRegion::persist`] of the range, but cheaper where stores can bypass the cache (on `pmem` from 256
    /// bytes on; below, ordinary stores and write-back of their lines). One fence. On `dram` and `numa:N` the cache is
    /// bypassed from 16 KiB on; on `file` it is one write and one msync.
    ///
    /// # Errors
    /// As [`SharedRegion::persist`]; `Usage` also when `src` is itself a part of the range. On `file` also
    /// `TierFull`, `Io`: the range may then hold a part of `src`.
    pub fn copy_persist(&self, offset: usize, src: &[u8]) -> Result<()> {
        let inner = &*self.inner;
        inner.check(offset, src.len())?;
        self.check_apart(offset, src)?;
        if src.is_empty() {
            return Ok(());
        }
        if inner.tier() != TierKind::File {
            return inner.mapped.copy_persist(offset as u64, src);
        }
        inner.mapped.pool.write(offset as u64, src)?;
        inner.flush(offset as u64..(offset + src.len()) as u64)
    }

    /// Copies bytes out to `out`, from `offset` on. Pages that are not in memory are read first, which blocks. What
    /// another thread stores there meanwhile may show in any mixture.
    ///
    /// # Errors
    /// `Usage` for a range outside; on tier `pmem` `Io` for a page that the medium does not give.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let mapped = &self.inner.mapped;
        let end = offset.checked_add(out.len()).filter(|end| *end as u64 <= mapped.pool.capacity);
        let Some(end) = end else { return Err(self.inner.outside(offset, out.len())) };
        crate::watched(|| {
            out.copy_from_slice(mapped.mapping().bytes(offset as u64..end as u64));
            Ok(())
        })
    }

    /// Copies `src` to `offset`, without making it persistent. Each range belongs to the thread that writes it.
    ///
    /// # Errors
    /// As [`SharedRegion::persist`]; `Usage` also when `src` is itself a part of the range.
    #[inline]
    pub fn copy_in(&self, offset: usize, src: &[u8]) -> Result<()> {
        self.inner.check(offset, src.len())?;
        self.check_apart(offset, src)?;
        self.inner.mapped.mapping().copy_in(offset as u64, src, CopyPolicy::DRAM);
        Ok(())
    }

    /// Tells the kernel that pages will be asked for in no order: it then reads no more than each one that is. Best
    /// effort.
    pub fn expect_random(&self) {
        self.inner.mapped.mapping().expect_random();
    }

    fn check_apart(&self, offset: usize, src: &[u8]) -> Result<()> {
        // As numbers: the two may belong to different objects.
        let (to, from) = (self.as_ptr() as usize + offset, src.as_ptr() as usize);
        if from < to + src.len() && to < from + src.len() {
            return Err(Error::new(
                Kind::Usage,
                "the bytes to copy overlap the range that they are copied to",
            )
            .with("offset", offset)
            .with("bytes", src.len())
            .with("region", self.path().display())
            .hint("use persist(range) for bytes that are already in the region"));
        }
        Ok(())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.mapped.pool.capacity as usize
    }

    /// Whether it has no byte (it never has none).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tier that it lies on.
    pub fn tier(&self) -> TierKind {
        self.inner.tier()
    }

    /// The file, as it was given.
    pub fn path(&self) -> &Path {
        self.inner.mapped.path()
    }

    /// What a persisted range survives: `Power` on `pmem` and `file`, `Process` on `dram` and `numa:N` (and on
    /// `file` when the file lies on tmpfs).
    pub fn durability(&self) -> Durability {
        self.inner.mapped.durability(Horizon::Epoch)
    }

    /// How the pages came to the memory node that the tier names; None on every other tier. Pages that were there on
    /// another node are refused when the region is opened for writing.
    pub fn placement(&self) -> Option<Placement> {
        self.inner.mapped.placement()
    }

    /// Makes size and name of the file durable. Regions are made so; this is for a file that was renamed since,
    /// or that another program made. Blocks for the disk.
    ///
    /// # Errors
    /// `Io`, `PermissionDenied`; when the file is gone, that of opening its directory.
    pub fn sync_name(&self) -> Result<()> {
        self.inner.mapped.pool.sync_name()
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("path", &self.path())
            .field("len", &self.len())
            .field("tier", &self.tier())
            .field("durability", &self.durability())
            .finish()
    }
}

impl Inner {
    fn tier(&self) -> TierKind {
        self.mapped.kind()
    }

    /// Whether `len` bytes at `offset` may be written and persisted by this process.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<()> {
        let inside = offset.checked_add(len).is_some_and(|end| end as u64 <= self.mapped.pool.capacity);
        if !inside {
            return Err(self.outside(offset, len));
        }
        if self.mark.is_forked() {
            self.mark.check(&format!("region {}", self.mapped.path().display()))?;
        }
        self.mapped.pool.check_writable()?;
        match self.poison.get() {
            None => Ok(()),
            Some(first) => Err(self.poisoned(first)),
        }
    }

    #[cold]
    fn outside(&self, offset: usize, len: usize) -> Error {
        Error::new(Kind::Usage, "range out of bounds of the region")
            .with("offset", offset)
            .with("bytes", len as isize)
            .with("region_bytes", self.mapped.pool.capacity)
            .with("region", self.mapped.path().display())
    }

    #[cold]
    fn poisoned(&self, first: &str) -> Error {
        Error::new(
            Kind::Poisoned,
            format!("the region persists nothing more, because a flush failed: {first}"),
        )
        .with("region", self.mapped.path().display())
        .hint("data persisted before are intact; check the disk (kernel log), then map the file again")
    }

    /// Persists a range that was checked.
    fn flush(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.tier() != TierKind::File {
            return self.mapped.persist(range);
        }
        // Of pages behind the end of the file msync says nothing.
        self.mapped.pool.check_length()?;
        let flushed = match self.injected_errno.swap(0, Ordering::Relaxed) {
            0 => self.mapped.mapping().sync(&range),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
        flushed.map_err(|e| self.poisoned(self.poison.get_or_init(|| e.to_string())).caused_by(e))
    }
}

/// Turns a file into memory of a tier. New kinds of tiers are added here.
pub(crate) fn backing(pool: PoolFile, tier: TierKind) -> Result<Mapped> {
    match tier {
        TierKind::Dram => dram::on(pool, tier),
        TierKind::Numa(_) | TierKind::Interleaved(_) => numa::on(pool, tier),
        TierKind::Pmem => pmem::on(pool, true),
        TierKind::File => page_cache(pool),
        other => Err(not_mappable(other)),
    }
}

#[cold]
fn not_mappable(tier: TierKind) -> Error {
    let error = Error::new(Kind::NotPossibleHere, format!("tier {tier} cannot be mapped as a region"))
        .hint("use tier dram, numa:N, numa:N+M, pmem or file");
    match tier {
        TierKind::DevDax => error.with("reason", "it is a whole device, and a region is a file"),
        TierKind::Object => error.with("reason", "it is behind a network"),
        _ => error.with("reason", "it bypasses the page cache and cannot be mapped"),
    }
}

/// The page cache of a file, mapped for writing.
fn page_cache(pool: PoolFile) -> Result<Mapped> {
    let path = pool.path.clone();
    let traits = Traits {
        kind: TierKind::File,
        persisted: if pool.on_tmpfs()? { Durability::Process } else { Durability::Power },
        policy: CopyPolicy::DRAM,
        write_back: false,
        sync: false,
        huge: HugePages::Never,
        align: 0,
    };
    Mapped::new(pool, traits).map_err(|e| Error::io(format!("cannot map {}", path.display()), e))
}

/// Makes the file, and names it when it has all its pages; then it is opened by its name, as every other process
/// does, because the kernel would show a mapping made before as one of a deleted file.
fn create(
    path: &Path,
    bytes: usize,
    tier: TierKind,
    backing: impl Fn(PoolFile) -> Result<Mapped>,
) -> Result<SharedRegion> {
    let capacity = bytes as u64;
    if path.symlink_metadata().is_ok() {
        return Err(exists(path, None));
    }
    let unnamed = Unnamed::make(path)?;
    let file = unnamed.file.try_clone().map_err(|e| making(path, e))?;
    file.set_len(capacity).map_err(|e| making(path, e))?;
    let pool = PoolFile { file, path: path.to_owned(), capacity, access: Access::Write };
    let mapped = backing(pool)?;
    mapped.reserve(&(0..capacity))?;
    unnamed.name(path).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(path, Some(e)),
        _ => making(path, e),
    })?;
    let named = open(path, Some(bytes), Access::Write, backing).and_then(|region| {
        if !tier.is_memory() {
            region.sync_name()?;
        }
        Ok(region)
    });
    named.inspect_err(|_| {
        if unnamed.is_at(path) {
            let _ = std::fs::remove_file(path);
        }
    })
}

fn open(
    path: &Path,
    bytes: Option<usize>,
    access: Access,
    backing: impl Fn(PoolFile) -> Result<Mapped>,
) -> Result<SharedRegion> {
    let file = pool::open_file(path, access).map_err(|e| match is_link(path) {
        true => e.hint("it is a symbolic link, and those are not followed; give the file itself"),
        false => e,
    })?;
    let meta = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
    if !meta.is_file() {
        return Err(Error::new(Kind::Usage, format!("{} is not a regular file", path.display())));
    }
    if meta.len() != bytes.map_or(meta.len().max(1), |wanted| wanted as u64) {
        return Err(other_size(path, meta.len(), bytes));
    }
    let capacity = meta.len();
    // Free space is determined where the file lies, not where descriptors are listed.
    let lies_at =
        capacity::own_descriptor(path).map_or_else(|| path.to_owned(), |dir| dir.join("(nameless)"));
    let pool = PoolFile { file, path: lies_at, capacity, access };
    let mapped = backing(pool)?;
    if access == Access::Write {
        mapped.prepare(0..capacity)?;
    }
    Ok(SharedRegion::over(mapped))
}

fn open_or_create(path: &Path, bytes: Option<usize>, tier: TierKind) -> Result<SharedRegion> {
    // Between the two questions another process may make or remove the file; three turns are enough for any that
    // do not do it all the time.
    let on = |pool| backing(pool, tier);
    for _ in 0..3 {
        match open(path, bytes, Access::Write, on) {
            Err(e) if is_errno(&e, libc::ENOENT) => {}
            other => return other,
        }
        match create(path, needed(path, bytes)?, tier, on) {
            Err(e) if is_errno(&e, libc::EEXIST) => {}
            other => return other,
        }
    }
    Err(Error::new(Kind::Io, format!("{} keeps changing", path.display()))
        .hint("another process creates and removes it repeatedly"))
}

/// Removes what a new region replaces.
fn remove(path: &Path) -> Result<()> {
    let removing = |e| Error::io(format!("cannot replace {}", path.display()), e);
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(removing(e)),
        Ok(meta) if meta.is_file() => match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(removing(e)),
            _ => Ok(()),
        },
        Ok(_) => Err(Error::new(Kind::Usage, format!("{} is not a regular file", path.display()))
            .hint("mode w+ replaces regular files only")),
    }
}

impl SharedRegion {
    fn over(mapped: Mapped) -> SharedRegion {
        let (poison, injected_errno) = (OnceLock::new(), AtomicI32::new(0));
        let inner = Inner { mapped, mark: ForkMark::here(), poison, injected_errno };
        SharedRegion { inner: Arc::new(inner) }
    }
}

/// A file that has no name yet, or where that is not available, a name of its own that goes away.
pub(crate) struct Unnamed {
    pub(crate) file: File,
    stand_in: Option<PathBuf>,
}

impl Unnamed {
    pub(crate) fn make(path: &Path) -> Result<Unnamed> {
        match sys::open_nameless(capacity::parent(path)) {
            Ok(file) => return Ok(Unnamed { file, stand_in: None }),
            // What file systems say that cannot do it.
            Err(e) => match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL) => {}
                _ => return Err(making(path, e)),
            },
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stand_in = path.with_file_name(format!(".{name}.{}-{count}.new", process::pid()));
        let file = pool::create_file(&stand_in, 0)?;
        Ok(Unnamed { file, stand_in: Some(stand_in) })
    }

    fn name(&self, path: &Path) -> io::Result<()> {
        match &self.stand_in {
            None => sys::link_nameless(&self.file, path),
            Some(stand_in) => std::fs::hard_link(stand_in, path),
        }
    }
}

impl Unnamed {
    /// Whether it is the file of this name.
    fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), path.symlink_metadata()) else {
            return false;
        };
        (own.dev(), own.ino()) == (there.dev(), there.ino())
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let Some(stand_in) = &self.stand_in {
            let _ = std::fs::remove_file(stand_in);
        }
    }
}

fn needed(path: &Path, bytes: Option<usize>) -> Result<usize> {
    bytes.ok_or_else(|| {
        Error::new(Kind::Usage, format!("the size of the new file {} is missing", path.display()))
            .hint("pass a size: it can be omitted only for an existing file")
    })
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_symlink())
}

fn is_errno(error: &Error, errno: i32) -> bool {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<io::Error>());
    source.is_some_and(|e| e.raw_os_error() == Some(errno))
}

#[cold]
pub(crate) fn making(path: &Path, e: io::Error) -> Error {
    Error::io(format!("cannot create {}", path.display()), e)
}

#[cold]
fn exists(path: &Path, e: Option<io::Error>) -> Error {
    making(path, e.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EEXIST)))
        .hint("open it (mode r+ or a+), or replace it (mode w+)")
}

#[cold]
fn other_size(path: &Path, len: u64, wanted: Option<usize>) -> Error {
    let Some(wanted) = wanted else {
        return Error::new(Kind::Usage, format!("{} is empty and cannot be mapped", path.display()));
    };
    Error::new(Kind::OptionMismatch, format!("{} has {len} bytes, not {wanted}", path.display()))
        .with("file_bytes", len)
        .with("wanted_bytes", wanted)
        .hint("map it with the size that it has, or leave the size out; a region never changes its size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_copies_within_itself_unless_the_ranges_overlap() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for tier in [TierKind::Dram, TierKind::File] {
            let mut region = Region::create(&dir.path().join(tier.to_string()), 5000, Some(tier)).unwrap();
            region.as_mut_slice().unwrap()[..100].fill(7);
            let hundred = &region.as_slice()[..100];
            for overlapping in [0, 1, 99] {
                let error = region.shared.copy_persist(overlapping, hundred).unwrap_err();
                assert_eq!(error.kind(), Kind::Usage, "{error}");
            }
            let error = region.shared.copy_persist(50, &region.as_slice()[90..150]).unwrap_err();
            assert!(error.message().contains("overlap"), "{error}");
            region.shared.copy_persist(100, hundred).unwrap();
            region.shared.copy_persist(4900, hundred).unwrap();
            assert_eq!(region.as_slice()[..200], [7; 200]);
            assert_eq!(region.as_slice()[4899..], [&[0][..], &[7; 100]].concat());
        }
    }

    #[test]
    fn a_file_without_a_name_is_mapped_through_its_descriptor() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;
        let (shm, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        for (dir, tier) in [(shm.path(), TierKind::Dram), (disk.path(), device::detect(disk.path()).unwrap())]
        {
            let file = tempfile::tempfile_in(dir).unwrap();
            file.write_all_at(&[5; 8192], 0).unwrap();
            // A hole, which needs free space where the file lies.
            file.set_len(16384).unwrap();
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let mut region = Region::map(&path, None, None, MapMode::Write).unwrap();
            assert_eq!((region.tier(), &region.as_slice()[..8192]), (tier, &[5; 8192][..]));
            region.copy_persist(0, b"new").unwrap();
            let mut seen = [0; 3];
            file.read_exact_at(&mut seen, 0).unwrap();
            assert_eq!(&seen, b"new");
        }
        // A link of one's own is none of those.
        std::os::unix::fs::symlink("/proc/self/fd/0", shm.path().join("0")).unwrap();
        assert!(Region::map(&shm.path().join("0"), None, None, MapMode::Write).is_err());
    }

    #[test]
    fn a_forked_child_may_read_but_not_persist() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut region = Region::create(&dir.path().join("r"), 4096, None).unwrap();
        region.copy_persist(0, b"parent").unwrap();
        let forked = |result: Result<()>| result.is_err_and(|e| e.kind() == Kind::ForkedHandle);
        let code = sys::in_child(|| {
            let refused = forked(region.persist_all()) && forked(region.copy_persist(0, b"child"));
            i32::from(!refused || &region.as_slice()[..6] != b"parent")
        });
        assert_eq!(code, 0);
        region.persist_all().unwrap();
    }
}
