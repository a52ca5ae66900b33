//! `dram`: main memory, as a file on tmpfs that every process maps.
//!
//! Guarantees: what is written survives the writing process; after a successful `prepare`, stores into the
//! range neither fault on a full file system nor take memory that is not there. Does not survive a reboot.
//! Huge pages are asked for where the administrator allows them for this tmpfs, silently not otherwise.

use std::ops::Range;
use std::path::Path;

use super::mapped::{Mapped, Traits};
use super::pool::PoolFile;
use super::Device;
use crate::persist::{self, CopyPolicy};
use crate::{capacity, Access, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind};

/// A pool on tmpfs.
#[derive(Debug)]
pub struct Dram(Mapped);

impl Dram {
    /// See [`super::create`].
    pub fn create(path: &Path, capacity: u64) -> Result<Dram> {
        PoolFile::create(path, capacity, Dram::on)
    }

    /// See [`super::open`].
    pub fn open(path: &Path, access: Access) -> Result<Dram> {
        Dram::on(PoolFile::open(path, access)?)
    }

    pub(crate) fn on(pool: PoolFile) -> Result<Dram> {
        map(pool, TierKind::Dram).map(Dram)
    }
}

/// Maps a pool on tmpfs; any other file system is `NotPossibleHere`.
pub(super) fn map(pool: PoolFile, kind: TierKind) -> Result<Mapped> {
    let path = pool.path.clone();
    if !pool.on_tmpfs()? {
        let dir = capacity::parent(&path).display().to_string();
        return Err(Error::new(Kind::NotPossibleHere, format!("{dir} is not main memory"))
            .with("tier", kind)
            .hint("use a directory on tmpfs such as /dev/shm, or tier file"));
    }
    let traits = Traits {
        kind,
        policy: CopyPolicy::DRAM,
        write_back: false,
        sync: false,
        huge: capacity::huge_pages(capacity::parent(&path)),
    };
    Mapped::new(pool, traits).map_err(|e| Error::io(format!("cannot map {}", path.display()), e))
}

impl From<Dram> for Mapped {
    fn from(dram: Dram) -> Mapped {
        dram.0
    }
}

impl Device for Dram {
    fn kind(&self) -> TierKind {
        TierKind::Dram
    }
    fn capacity(&self) -> u64 {
        self.0.pool.capacity
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn byte_addressable(&self) -> bool {
        true
    }
    fn durability(&self, _horizon: Horizon) -> Durability {
        Durability::Process
    }
    fn prepare(&self, range: Range<u64>) -> Result<()> {
        self.0.prepare(range)
    }
    fn populate_read(&self, range: Range<u64>) {
        self.0.populate_read(range)
    }
    #[inline]
    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.0.write(offset, src)
    }
    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.0.write_checksummed(offset, src, chunk_bytes, crcs)
    }
    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.0.write_unordered(offset, src, chunk_bytes, crcs)
    }
    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.0.persist(range)
    }
    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        self.0.persist_written(range)
    }
    fn fence(&self) {
        persist::fence()
    }
    #[inline]
    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.0.store_word(offset, value)
    }
    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.0.bytes(range)
    }
    #[inline]
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.pool.read(offset, out)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.0.load_word(offset)
    }
    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.0.stage(range)
    }
    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        self.0.unstage(staged, chunk_bytes, crcs)
    }
}
