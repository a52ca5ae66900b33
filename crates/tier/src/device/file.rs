//! `file`: the page cache of a block file system. Written by system calls, read through a mapping.
//!
//! Guarantees those of `blocks`: space is reserved by `prepare`, `persist` is one fdatasync, a failed one poisons. A
//! write is one copy into the page cache, made by the kernel.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::blocks::Blocks;
use super::pool::PoolFile;
use super::Device;
use crate::{host, persist, Access, Durability, Horizon, Result, StagedWrite, TierKind};

/// How much is summed before it is written, so that the system call finds it in the cache.
const CHECKSUM_WRITE_BYTES: usize = 256 << 10;

/// A pool on a block file system.
#[derive(Debug)]
pub struct FilePool(Blocks);

impl FilePool {
    /// See [`super::create`].
    pub fn create(path: &Path, capacity: u64) -> Result<FilePool> {
        PoolFile::create(path, capacity, |pool| {
            let blocks = Blocks::on(pool, TierKind::File)?;
            blocks.pool.sync_name()?;
            Ok(FilePool(blocks))
        })
    }

    /// See [`super::open`].
    pub fn open(path: &Path, access: Access) -> Result<FilePool> {
        Ok(FilePool(Blocks::on(PoolFile::open(path, access)?, TierKind::File)?))
    }

    fn write_summing(&self, offset: u64, src: &[u8], chunk_bytes: usize, crcs: &mut Vec<u32>) -> Result<()> {
        assert!(chunk_bytes > 0, "chunks of no bytes");
        // Whole chunks, as many as fit the cache, then the write that finds them there.
        let piece_bytes = (CHECKSUM_WRITE_BYTES / chunk_bytes).max(1).saturating_mul(chunk_bytes);
        let mut at = offset;
        for piece in src.chunks(piece_bytes) {
            persist::checksum_chunks(piece, chunk_bytes, crcs);
            self.0.pool.write(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl Device for FilePool {
    fn kind(&self) -> TierKind {
        TierKind::File
    }

    fn capacity(&self) -> u64 {
        self.0.pool.capacity
    }

    fn path(&self) -> &Path {
        &self.0.pool.path
    }

    fn byte_addressable(&self) -> bool {
        false
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        self.0.durability(horizon)
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        self.0.prepare(range)
    }

    fn populate_read(&self, range: Range<u64>) {
        self.0.populate_read(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        self.0.will_read(range)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.0.check_write(offset, src.len() as u64)?;
        self.0.pool.write(offset, src)
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.0.check_write(offset, src.len() as u64)?;
        self.write_summing(offset, src, chunk_bytes, crcs)
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.0.persist(range)
    }

    fn fence(&self) {}

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.0.pool.check_word(offset)?;
        self.0.check_write(offset, 8)?;
        self.0.pool.write(offset, &value.to_ne_bytes())
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.0.mapping.bytes(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        host::syscall("read").map_err(|e| self.0.pool.failed("read", e))?;
        self.0.pool.read(offset, out)
    }

    fn after_hole(&self, offset: u64) -> u64 {
        self.0.pool.after_hole(offset)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.0.mapping.word(offset).load(Ordering::Acquire)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.0.check_write(range.start, range.end.wrapping_sub(range.start))?;
        Ok(StagedWrite::on_heap(range))
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        let (bytes, offset) = (self.0.unstaged(&staged)?, staged.range().start);
        match chunk_bytes {
            Some(chunk_bytes) => self.write_summing(offset, bytes, chunk_bytes, crcs),
            None => self.0.pool.write(offset, bytes),
        }
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.0.inject_flush_failure(errno)
    }
}
