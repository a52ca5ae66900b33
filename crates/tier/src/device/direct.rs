//! `direct`: a block file system past its page cache: written with O_DIRECT, many requests in flight.
//!
//! Guarantees those of `blocks`: space is reserved by `prepare`, `persist` is one fdatasync, a failed one poisons. A
//! write of any offset and length goes to the medium's queue before it returns, past the page cache: whole blocks
//! straight from the caller's memory where that is aligned as the file system asks, else through aligned frames, summed
//! in the same copy. The first and last block of a write are completed from what they held before, which a small cache
//! remembers; so two writers at a time never share a block of [`EDGE_BYTES`] (the log gives each lane blocks of its
//! own), and a block written again repeats the bytes that were there, also those already committed.
//!
//! Reading without a copy goes through an ordinary mapping. The kernel keeps it coherent: it drops the cached pages of
//! a range before and after each direct write, and the write returns only then; a page that a reader faults in
//! meanwhile is clean (no process writes through the page cache here), so dropping it cannot fail. While a write is
//! under way its range may read as old or new bytes: hand out published ranges only.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::blocks::Blocks;
use super::pool::PoolFile;
use super::Device;
use crate::checksum::crc32c_append;
use crate::engine::aligned::Aligned;
use crate::engine::{Engine, REQUEST_BYTES};
use crate::sys::{self, DirectAlignment};
use crate::{
    capacity, counters, host, Access, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind,
};

/// Blocks that writes are widened to. The log's lanes share none of this size; file systems ask for 512 or 4096.
pub const EDGE_BYTES: usize = 4096;

/// Edge blocks that a device remembers: one or two for each of the lanes that a process writes.
const EDGES_MAX: usize = 64;

/// From this length on it pays to make several requests of a write whose memory is aligned: two edges and the middle.
const STRAIGHT_BYTES_MIN: usize = 256 << 10;

/// Up to this length an unaligned read goes through the page cache: one call, and neighbours are read ahead.
const CACHED_READ_BYTES_MAX: usize = 64 << 10;

/// How much one request to read ahead asks for.
const AHEAD_BYTES: u64 = REQUEST_BYTES as u64;

/// The part of a checksummed copy that is summed, then copied while it is in the cache.
const SUM_BYTES: usize = 8 << 10;

/// A pool written past the page cache.
#[derive(Debug)]
pub struct Direct {
    blocks: Blocks,
    /// The same file, opened with O_DIRECT.
    file: File,
    alignment: DirectAlignment,
    engine: Engine,
    edges: Edges,
}

/// Whether a pool in this directory could be written past the page cache. Tried with a file that has no name, so that
/// nothing is left whatever happens; where there are none, the answer is no.
pub fn is_possible(dir: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | libc::O_DIRECT);
    let Ok(file) = options.open(dir) else { return false };
    let alignment = file.set_len(EDGE_BYTES as u64).ok().and_then(|()| sys::direct_alignment(&file));
    alignment.is_some_and(|alignment| alignment.offset <= EDGE_BYTES)
}

impl Direct {
    /// See [`super::create`].
    pub fn create(path: &Path, capacity: u64) -> Result<Direct> {
        PoolFile::create(path, capacity, |pool| {
            let device = Direct::on(pool)?;
            device.blocks.pool.sync_name()?;
            Ok(device)
        })
    }

    /// See [`super::open`].
    pub fn open(path: &Path, access: Access) -> Result<Direct> {
        Direct::on(PoolFile::open(path, access)?)
    }

    fn on(pool: PoolFile) -> Result<Direct> {
        let engine = Engine::of_process()?;
        if !cfg!(forebay_simulated) && pool.on_tmpfs()? {
            return Err(not_here(&pool.path).with("reason", "tmpfs is main memory"));
        }
        let file = open_direct(&pool)?;
        let alignment = sys::direct_alignment(&file).filter(|alignment| alignment.offset <= EDGE_BYTES);
        let alignment = alignment.ok_or_else(|| {
            not_here(&pool.path).with("reason", "the file system does not support direct I/O of 4 KiB")
        })?;
        Ok(Direct {
            blocks: Blocks::on(pool, TierKind::Direct)?,
            file,
            alignment,
            engine,
            edges: Edges::default(),
        })
    }

    /// The engine that moves the bytes.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    fn failed(&self, doing: &str, e: std::io::Error) -> Error {
        self.blocks.pool.failed(doing, e)
    }

    /// Writes `src`, feeding `sums` with all of it in order.
    fn write_summing(&self, offset: u64, src: &[u8], sums: &mut Sums<'_>) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        let cover = Cover::of(offset, src.len());
        let first = self.edge(cover.first_block())?;
        let last = self.edge(cover.last_block())?;
        let straight = src.len() >= STRAIGHT_BYTES_MIN
            && src[cover.head_gap()..].as_ptr() as usize % self.alignment.memory == 0;
        let (first, last) = cover.completed(src, first, last);
        let written = match straight {
            true => self.write_straight(&cover, src, &first, &last, sums),
            false => self.write_through_frames(&cover, src, &first, &last, sums),
        };
        self.edges.forget(&cover.range());
        written.map_err(|e| self.failed("write to", e))?;
        self.edges.remember(first.into_iter().chain(last));
        Ok(())
    }

    /// Whole blocks from the caller's memory, edges from their own.
    fn write_straight(
        &self,
        cover: &Cover,
        src: &[u8],
        first: &Option<Edge>,
        last: &Option<Edge>,
        sums: &mut Sums<'_>,
    ) -> std::io::Result<()> {
        let middle = &src[cover.head_gap()..src.len() - cover.tail_gap()];
        let mut parts: Vec<(u64, &[u8])> = vec![(cover.middle_start(), middle)];
        parts.extend(first.iter().chain(last).map(|edge| (edge.at, edge.bytes.as_slice())));
        counters::add_bytes_copied((src.len() - middle.len()) as u64);
        if !sums.wanted() {
            return self.engine.write_all(&self.file, &parts, None);
        }
        // Whatever is under way, the next part of the source is summed: in order, and while the device works.
        let mut rest = src;
        let meanwhile = &mut |_: &[u8]| {
            let (now, later) = rest.split_at(REQUEST_BYTES.min(rest.len()));
            sums.add(now);
            rest = later;
        };
        self.engine.write_all(&self.file, &parts, Some(meanwhile))?;
        sums.add(rest);
        Ok(())
    }

    /// Everything through frames, copied and summed there.
    fn write_through_frames(
        &self,
        cover: &Cover,
        src: &[u8],
        first: &Option<Edge>,
        last: &Option<Edge>,
        sums: &mut Sums<'_>,
    ) -> std::io::Result<()> {
        counters::add_bytes_copied(src.len() as u64);
        let mut rest = src;
        let fill = &mut |at: usize, frame: &mut [u8]| {
            let mut to = frame;
            if at == 0 {
                let skip = cover.head_bytes();
                if let Some(edge) = first.as_ref().filter(|_| skip > 0) {
                    to[..skip].copy_from_slice(&edge.bytes.as_slice()[..skip]);
                }
                to = &mut to[skip..];
            }
            let (now, later) = rest.split_at(to.len().min(rest.len()));
            sums.copy(&mut to[..now.len()], now);
            rest = later;
            let tail = &mut to[now.len()..];
            if let Some(edge) = last.as_ref().or(first.as_ref()).filter(|_| !tail.is_empty()) {
                tail.copy_from_slice(&edge.bytes.as_slice()[EDGE_BYTES - tail.len()..]);
            }
        };
        let range = cover.range();
        self.engine.write_stream(&self.file, range.start, (range.end - range.start) as usize, fill)
    }

    /// What a block that a write covers in part holds now.
    fn edge(&self, at: Option<u64>) -> Result<Option<Edge>> {
        let Some(at) = at else { return Ok(None) };
        if let Some(edge) = self.edges.take(at) {
            return Ok(Some(edge));
        }
        let mut bytes = Aligned::new(EDGE_BYTES);
        let read = self.engine.read_exact(&self.file, at, bytes.as_mut_slice());
        read.map_err(|e| self.failed("read", e))?;
        Ok(Some(Edge { at, bytes }))
    }

    fn is_aligned(&self, offset: u64, memory: &[u8]) -> bool {
        let asked = self.alignment;
        offset % asked.offset as u64 == 0
            && memory.len() % asked.offset == 0
            && memory.as_ptr() as usize % asked.memory == 0
    }

    fn read_past_cache(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        if self.is_aligned(offset, out) {
            return self.engine.read_exact(&self.file, offset, out);
        }
        let cover = Cover::of(offset, out.len());
        let range = cover.range();
        let skip = cover.head_bytes();
        let take = &mut |at: usize, frame: &mut [u8]| {
            let (from, to) = (at.max(skip), (at + frame.len()).min(skip + out.len()));
            if from < to {
                out[from - skip..to - skip].copy_from_slice(&frame[from - at..to - at]);
            }
        };
        self.engine.read_stream(&self.file, range.start, (range.end - range.start) as usize, take)
    }
}

/// Drops the pages of the pool that the kernel has cached, for measurements that begin cold.
#[doc(hidden)]
pub fn drop_cached(pool: &Direct) -> Result<()> {
    sys::drop_cached(&pool.file).map_err(|e| pool.failed("drop cached pages of", e))
}

/// The pool's file once more, for direct transfers.
fn open_direct(pool: &PoolFile) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(pool.access == Access::Write);
    // The files of the simulated machine lie on tmpfs.
    let direct = if cfg!(forebay_simulated) { 0 } else { libc::O_DIRECT };
    let opened = sys::open_at_once(&mut options, direct | libc::O_NOFOLLOW, &pool.path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => not_here(&pool.path).caused_by(e),
        _ => pool.failed("open for direct transfers", e),
    })?;
    let ids = [&file, &pool.file].map(|file| file.metadata().map(|meta| (meta.dev(), meta.ino())));
    match ids {
        [Ok(one), Ok(other)] if one == other => Ok(file),
        [Err(e), _] | [_, Err(e)] => Err(pool.failed("stat", e)),
        _ => Err(Error::new(Kind::Io, "the pool file was replaced while it was being opened")
            .with("pool", pool.path.display())),
    }
}

#[cold]
fn not_here(path: &Path) -> Error {
    let dir = capacity::parent(path).display().to_string();
    Error::new(Kind::NotPossibleHere, format!("{dir} does not support direct I/O"))
        .with("tier", TierKind::Direct)
        .hint("use a directory on a file system with O_DIRECT (ext4, xfs, btrfs), or tier file")
}

/// A write and the blocks that it touches.
///
/// `head_bytes` of the first block lie before it, `tail_bytes` of the last one behind it.
#[derive(Clone, Copy, Debug)]
struct Cover {
    offset: u64,
    len: usize,
}

const EDGE: u64 = EDGE_BYTES as u64;

impl Cover {
    fn of(offset: u64, len: usize) -> Cover {
        Cover { offset, len }
    }

    /// All blocks.
    fn range(&self) -> Range<u64> {
        self.offset / EDGE * EDGE..(self.offset + self.len as u64).next_multiple_of(EDGE)
    }

    /// Bytes of the first block that are not written.
    fn head_bytes(&self) -> usize {
        (self.offset % EDGE) as usize
    }

    /// Bytes of the last block that are not written.
    fn tail_bytes(&self) -> usize {
        (self.range().end - self.offset - self.len as u64) as usize
    }

    fn is_one_block(&self) -> bool {
        self.range().end - self.range().start == EDGE
    }

    /// The first block, if it is written in part.
    fn first_block(&self) -> Option<u64> {
        let partly = self.head_bytes() > 0 || (self.is_one_block() && self.tail_bytes() > 0);
        partly.then_some(self.range().start)
    }

    /// The last block, if it is written in part and not the first.
    fn last_block(&self) -> Option<u64> {
        (self.tail_bytes() > 0 && !self.is_one_block()).then_some(self.range().end - EDGE)
    }

    /// Bytes of the source that go into the first block, when that is written in part.
    fn head_gap(&self) -> usize {
        match self.head_bytes() {
            0 => 0,
            head => (EDGE_BYTES - head).min(self.len),
        }
    }

    /// Bytes of the source that go into the last block, when that is written in part.
    fn tail_gap(&self) -> usize {
        match self.tail_bytes() {
            0 => 0,
            tail => (EDGE_BYTES - tail).min(self.len),
        }
    }

    /// The first whole block.
    fn middle_start(&self) -> u64 {
        self.offset.next_multiple_of(EDGE)
    }

    /// The edge blocks with the source's bytes in them.
    fn completed(&self, src: &[u8], first: Option<Edge>, last: Option<Edge>) -> (Option<Edge>, Option<Edge>) {
        let first = first.map(|mut edge| {
            let from = self.head_bytes();
            let len = (EDGE_BYTES - from).min(src.len());
            edge.bytes.as_mut_slice()[from..from + len].copy_from_slice(&src[..len]);
            edge
        });
        let last = last.map(|mut edge| {
            let len = self.tail_gap();
            edge.bytes.as_mut_slice()[..len].copy_from_slice(&src[src.len() - len..]);
            edge
        });
        (first, last)
    }
}

/// A block that was written in part.
#[derive(Debug)]
struct Edge {
    at: u64,
    bytes: Aligned,
}

/// The blocks written in part last, oldest first. An entry always equals what the file holds, as far as this device
/// wrote it; it is taken out while its block is being written.
#[derive(Debug, Default)]
struct Edges(Mutex<Vec<Edge>>);

impl Edges {
    fn lock(&self) -> MutexGuard<'_, Vec<Edge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, at: u64) -> Option<Edge> {
        let mut edges = self.lock();
        let found = edges.iter().rposition(|edge| edge.at == at)?;
        Some(edges.remove(found))
    }

    fn forget(&self, range: &Range<u64>) {
        self.lock().retain(|edge| !range.contains(&edge.at));
    }

    fn remember(&self, new: impl Iterator<Item = Edge>) {
        let mut edges = self.lock();
        edges.extend(new);
        let surplus = edges.len().saturating_sub(EDGES_MAX);
        edges.drain(..surplus);
    }
}

/// CRC-32Cs of the chunks of a source that comes in parts; none where none are requested.
struct Sums<'a> {
    /// Chunk length, where the sums go, the sum of the open chunk and how much of it there is.
    chunks: Option<(usize, &'a mut Vec<u32>)>,
    crc: u32,
    summed: usize,
}

impl<'a> Sums<'a> {
    fn none() -> Sums<'a> {
        Sums { chunks: None, crc: 0, summed: 0 }
    }

    fn of_chunks(chunk_bytes: usize, crcs: &'a mut Vec<u32>) -> Sums<'a> {
        assert!(chunk_bytes > 0, "chunks of no bytes");
        Sums { chunks: Some((chunk_bytes, crcs)), crc: 0, summed: 0 }
    }

    fn wanted(&self) -> bool {
        self.chunks.is_some()
    }

    fn add(&mut self, mut bytes: &[u8]) {
        let Some((chunk_bytes, crcs)) = &mut self.chunks else { return };
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at((*chunk_bytes - self.summed).min(bytes.len()));
            self.crc = crc32c_append(self.crc, now);
            self.summed += now.len();
            if self.summed == *chunk_bytes {
                crcs.push(self.crc);
                (self.crc, self.summed) = (0, 0);
            }
            bytes = later;
        }
    }

    /// Sums `src` and copies it, each part while it is in the cache.
    fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if !self.wanted() {
            return dst.copy_from_slice(src);
        }
        for (to, from) in dst.chunks_mut(SUM_BYTES).zip(src.chunks(SUM_BYTES)) {
            self.add(from);
            to.copy_from_slice(from);
        }
    }

    /// The last chunk may be short.
    fn finish(self) {
        if let Some((_, crcs)) = self.chunks.filter(|_| self.summed > 0) {
            crcs.push(self.crc);
        }
    }
}

impl Device for Direct {
    fn kind(&self) -> TierKind {
        TierKind::Direct
    }

    fn capacity(&self) -> u64 {
        self.blocks.pool.capacity
    }

    fn path(&self) -> &Path {
        &self.blocks.pool.path
    }

    fn byte_addressable(&self) -> bool {
        false
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        self.blocks.durability(horizon)
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        self.blocks.prepare(range)
    }

    fn populate_read(&self, range: Range<u64>) {
        if self.blocks.pool.check(range.start, range.end.wrapping_sub(range.start)).is_ok() {
            sys::read_ahead(&self.blocks.pool.file, &range, AHEAD_BYTES);
        }
        self.blocks.populate_read(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        self.blocks.will_read(range)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.blocks.check_write(offset, src.len() as u64)?;
        self.write_summing(offset, src, &mut Sums::none())
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.blocks.check_write(offset, src.len() as u64)?;
        let mut sums = Sums::of_chunks(chunk_bytes, crcs);
        self.write_summing(offset, src, &mut sums)?;
        sums.finish();
        Ok(())
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.blocks.persist(range)
    }

    fn fence(&self) {}

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.blocks.pool.check_word(offset)?;
        self.write(offset, &value.to_ne_bytes())
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.blocks.mapping.bytes(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.len() <= CACHED_READ_BYTES_MAX && !self.is_aligned(offset, out) {
            host::syscall("read").map_err(|e| self.failed("read", e))?;
            return self.blocks.pool.read(offset, out);
        }
        self.blocks.pool.check(offset, out.len() as u64)?;
        self.read_past_cache(offset, out).map_err(|e| self.failed("read", e))?;
        counters::add_bytes_copied(out.len() as u64);
        Ok(())
    }

    fn after_hole(&self, offset: u64) -> u64 {
        self.blocks.pool.after_hole(offset)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.blocks.mapping.word(offset).load(Ordering::Acquire)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.blocks.check_write(range.start, range.end.wrapping_sub(range.start))?;
        Ok(StagedWrite::on_heap_like(range, EDGE_BYTES.max(self.alignment.memory)))
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        let (bytes, offset) = (self.blocks.unstaged(&staged)?, staged.range().start);
        match chunk_bytes {
            Some(chunk_bytes) => self.write_checksummed(offset, bytes, chunk_bytes, crcs),
            None => self.write(offset, bytes),
        }
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.blocks.inject_flush_failure(errno)
    }
}

#[cfg(test)]
mod tests;
