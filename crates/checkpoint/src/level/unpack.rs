//! Reading pieces, packed or not: every chunk from where it lies, compared before it is handed out.
//!
//! Guarantees: a compressed chunk is compared with the checksum of its stored bytes before it is decompressed, and with
//! that of its plain bytes after; one that lies in the base only counts where the base is the very one that was stood
//! on when it was saved. What is wrong with a base is said to be so. Several threads read and decompress.

use forebay_tier::host::sync::Mutex;
use std::ops::Range;
use std::sync::PoisonError;

use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};
use zstd::bulk::Decompressor;

use super::load::{compare, read_checked};
use super::Level;
use crate::format::{
    damaged, data_name, manifest_name, seal_of, Manifest, StepId, Stored, CHUNK_BYTES, MANIFEST_BYTES_MAX,
};
use crate::place::{threads, Blob};

/// What one thread reads at once of a packed piece.
const SEGMENT_CHUNKS: usize = 64;

/// A rank's piece of a step, open for reading.
pub(crate) struct PieceFile {
    blob: Box<dyn Blob>,
    base: Option<Box<FullPiece>>,
}

/// The piece that an incremental one stands on.
struct FullPiece {
    id: StepId,
    manifest: Manifest,
    file: PieceFile,
}

/// Where a chunk lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies {
    InBase,
    AsItIs,
    Compressed,
}

impl PieceFile {
    /// The piece of a manifest that was found good.
    ///
    /// # Errors
    /// `Damaged` when it, or what it stands on, is missing or another one.
    pub(crate) fn open(level: &Level, manifest: &Manifest) -> Result<PieceFile> {
        let missing = || damaged(&format!("rank {}", manifest.rank), "its data file is missing");
        let blob = level.place.open(&data_name(manifest.id, manifest.rank))?.ok_or_else(missing)?;
        if blob.bytes() < manifest.data_bytes {
            let short = damaged(&format!("rank {}", manifest.rank), "its data file is too short");
            return Err(short.with("bytes", blob.bytes()).with("expected", manifest.data_bytes));
        }
        let Some(id) = manifest.base_id() else { return Ok(PieceFile { blob, base: None }) };
        let base = FullPiece::open(level, manifest, id).map_err(|e| of_base(id, &e))?;
        Ok(PieceFile { blob, base: Some(Box::new(base)) })
    }

    /// Reads bytes of a variable from `start` on (a whole number of chunks), and compares them.
    ///
    /// # Errors
    /// `Damaged`; those of reading.
    pub(crate) fn read(&self, stored: &Stored, start: u64, out: &mut [u8]) -> Result<()> {
        if stored.packed.is_empty() {
            return read_checked(&*self.blob, stored, start, out);
        }
        let first = (start / CHUNK_BYTES as u64) as usize;
        let before: u64 = stored.packed[..first].iter().map(|packed| u64::from(packed.bytes)).sum();
        let mut segments = Vec::new();
        let mut at = stored.offset + before;
        for (nth, out) in out.chunks_mut(SEGMENT_CHUNKS * CHUNK_BYTES).enumerate() {
            let first = first + nth * SEGMENT_CHUNKS;
            let chunks = first..first + out.len().div_ceil(CHUNK_BYTES);
            let bytes: u64 = stored.packed[chunks.clone()].iter().map(|packed| u64::from(packed.bytes)).sum();
            segments.push(Segment { at, chunks, out });
            at += bytes;
        }
        let helpers = threads().min(segments.len()).saturating_sub(1);
        let segments = Mutex::new(segments.into_iter());
        let work = || loop {
            let segment = segments.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(segment) = segment else { return Ok(()) };
            self.read_segment(stored, segment)?;
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..helpers)
                .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mut done = work();
            for thread in started {
                let panicked = |_| Err(Error::new(Kind::Internal, "a reading thread panicked"));
                done = done.and(thread.join().unwrap_or_else(panicked));
            }
            done
        })
    }

    /// Reads runs of chunks that lie alike.
    fn read_segment(&self, stored: &Stored, segment: Segment<'_>) -> Result<()> {
        let Segment { mut at, chunks, mut out } = segment;
        let mut first = chunks.start;
        while first < chunks.end {
            let lies = lies(stored, first);
            let mut end = first + 1;
            while end < chunks.end && self::lies(stored, end) == lies {
                end += 1;
            }
            let length = (first..end).map(|nth| stored.chunk_bytes(nth)).sum();
            let (run, rest) = std::mem::take(&mut out).split_at_mut(length);
            let taken: u64 = stored.packed[first..end].iter().map(|packed| u64::from(packed.bytes)).sum();
            match lies {
                Lies::InBase => self.read_base(stored, first..end, run)?,
                Lies::AsItIs => {
                    self.blob.read(at, run)?;
                    compare(run, &stored.crcs[first..end])?;
                }
                Lies::Compressed => self.decompress(stored, at, first..end, run)?,
            }
            (out, at, first) = (rest, at + taken, end);
        }
        Ok(())
    }

    fn read_base(&self, stored: &Stored, chunks: Range<usize>, out: &mut [u8]) -> Result<()> {
        let base = self.base.as_ref().ok_or_else(|| damaged("a manifest", "a chunk has no location"))?;
        let same = |of: &&Stored| of.variable == stored.variable;
        let found = base.manifest.variables.iter().find(same);
        // What is compared below is what was meant when the step was saved.
        let found = found.filter(|of| of.crcs[chunks.clone()] == stored.crcs[chunks.clone()]);
        let other = || of_base(base.id, &damaged("its manifest", "it holds other arrays"));
        let start = (chunks.start * CHUNK_BYTES) as u64;
        base.file.read(found.ok_or_else(other)?, start, out).map_err(|e| of_base(base.id, &e))
    }

    fn decompress(&self, stored: &Stored, at: u64, chunks: Range<usize>, out: &mut [u8]) -> Result<()> {
        let lengths = stored.packed[chunks.clone()].iter().map(|packed| packed.bytes as usize);
        let mut bytes = vec![0; lengths.sum()];
        self.blob.read(at, &mut bytes)?;
        let mut decompressor = Decompressor::new().map_err(|e| Error::io("cannot begin to decompress", e))?;
        let mut bytes = &bytes[..];
        for (nth, out) in chunks.zip(out.chunks_mut(CHUNK_BYTES)) {
            let packed = stored.packed[nth];
            let (chunk, rest) = bytes.split_at(packed.bytes as usize);
            bytes = rest;
            if crc32c(chunk) != packed.crc {
                return Err(
                    damaged("data", "compressed bytes do not match their checksum").with("chunk", nth)
                );
            }
            if !matches!(decompressor.decompress_to_buffer(chunk, &mut *out), Ok(length) if length == out.len())
            {
                return Err(damaged("data", "it cannot be decompressed").with("chunk", nth));
            }
            compare(out, &stored.crcs[nth..nth + 1])?;
        }
        Ok(())
    }
}

/// Chunks that one thread reads.
struct Segment<'a> {
    /// Where the first one that is in the data file begins.
    at: u64,
    chunks: Range<usize>,
    out: &'a mut [u8],
}

fn lies(stored: &Stored, nth: usize) -> Lies {
    match stored.packed[nth].bytes as usize {
        0 => Lies::InBase,
        bytes if bytes == stored.chunk_bytes(nth) => Lies::AsItIs,
        _ => Lies::Compressed,
    }
}

impl FullPiece {
    fn open(level: &Level, of: &Manifest, id: StepId) -> Result<FullPiece> {
        let what = format!("rank {}", of.rank);
        let record = level.place.load(&manifest_name(id, of.rank), MANIFEST_BYTES_MAX)?;
        let record = record.ok_or_else(|| damaged(&what, "its manifest is missing"))?;
        let named = of.base.filter(|base| {
            base.manifest_bytes == record.len() as u64 && Some(base.manifest_crc) == seal_of(&record)
        });
        if named.is_none() {
            return Err(damaged(&what, "its manifest is not the one that was stood on"));
        }
        let manifest = Manifest::decode(&record)?;
        if manifest.id != id || manifest.rank != of.rank || manifest.base.is_some() {
            return Err(damaged(&what, "its manifest is of another piece"));
        }
        let file = PieceFile::open(level, &manifest)?;
        Ok(FullPiece { id, manifest, file })
    }
}

/// What is wrong with the full step that another one stands on.
#[cold]
fn of_base(id: StepId, error: &Error) -> Error {
    let said = Error::new(
        error.kind(),
        format!("the full step {} on which it depends: {}", id.step, error.message()),
    );
    error.context().iter().fold(said, |said, (key, value)| said.with(key, value.clone()))
}
