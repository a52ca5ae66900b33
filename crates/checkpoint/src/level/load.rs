//! Loading the bytes of variables from the pieces of a step, comparing checksums while they come in.
//!
//! Guarantees: no byte is handed out whose chunk did not match its checksum, except as part of a load that returns an
//! error. A piece that is exactly what is wanted is read to where it belongs, without a copy; of others only the rows
//! that are needed are read. Comparing runs beside reading, in a second thread, so that a device is not kept waiting.

use std::sync::mpsc::sync_channel;

use forebay_log::gather::{copy_overlap, coverage_gap};
use forebay_log::NdBox;
use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};

use super::unpack::PieceFile;
use super::Level;
use crate::format::{damaged, Commit, Manifest, Stored, Variable, CHUNK_BYTES};
use crate::place::Blob;

/// What is read at once. The requests of one block are under way together and end together: it holds several times as
/// many as fit, so that the device is seldom left with a few.
const BLOCK_BYTES: usize = 512 * CHUNK_BYTES;

/// Variables and where their bytes go.
pub(crate) struct Wanted<'a, 't> {
    pub(crate) variables: &'a [Variable],
    pub(crate) targets: &'a mut [&'t mut [u8]],
}

/// Reads every wanted variable of a committed step. What a failed call leaves in the targets is undefined.
///
/// # Errors
/// `Damaged`, `UnknownFormat`, `Io`: of this step in this level. `UnknownVariable`, `VariableMismatch`: the program
/// asks for something else than was saved.
pub(crate) fn load(level: &Level, commit: &Commit, rank: u32, wanted: &mut Wanted<'_, '_>) -> Result<()> {
    let mut pieces = Pieces { level, commit, manifests: Vec::new(), own: rank, files: Vec::new() };
    pieces.manifests.resize_with(commit.ranks.len(), || None);
    for (variable, target) in wanted.variables.iter().zip(wanted.targets.iter_mut()) {
        pieces.load(variable, target)?;
    }
    Ok(())
}

/// Reads every byte of every piece of a committed step and compares it; how many bytes that were.
pub(crate) fn verify(level: &Level, commit: &Commit) -> Result<u64> {
    (0..commit.ranks.len() as u32).try_fold(0, |read, rank| Ok(read + verify_piece(level, commit, rank)?))
}

/// As [`verify`] for one rank's piece.
pub(crate) fn verify_piece(level: &Level, commit: &Commit, rank: u32) -> Result<u64> {
    let mut read = 0;
    let mut block = vec![0; BLOCK_BYTES];
    let manifest = level.manifest(commit, rank)?;
    let file = PieceFile::open(level, &manifest)?;
    for stored in &manifest.variables {
        for at in (0..stored.bytes as usize).step_by(BLOCK_BYTES) {
            let out = &mut block[..BLOCK_BYTES.min(stored.bytes as usize - at)];
            file.read(stored, at as u64, out).map_err(|e| about(e, stored, rank))?;
            read += out.len() as u64;
        }
    }
    Ok(read)
}

/// The bytes of all variables of one piece, compared.
pub(crate) fn read_piece(level: &Level, manifest: &Manifest) -> Result<Vec<Vec<u8>>> {
    let file = PieceFile::open(level, manifest)?;
    let mut all = Vec::new();
    for stored in &manifest.variables {
        let mut bytes = zeros(stored.bytes as usize)?;
        file.read(stored, 0, &mut bytes)?;
        all.push(bytes);
    }
    Ok(all)
}

/// Memory for so many bytes, as a record says; an error where there is not as much.
pub(crate) fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|e| {
        Error::new(Kind::TierFull, "an array does not fit in memory").with("bytes", bytes).caused_by(e)
    })?;
    out.resize(bytes, 0);
    Ok(out)
}

/// The pieces of a step, read as they are needed.
struct Pieces<'a> {
    level: &'a Level,
    commit: &'a Commit,
    manifests: Vec<Option<Manifest>>,
    /// The rank that asks: of variables that every rank holds whole, it gets its own.
    own: u32,
    files: Vec<(u32, PieceFile)>,
}

impl Pieces<'_> {
    fn manifest(&mut self, rank: u32) -> Result<&Manifest> {
        let slot = &mut self.manifests[rank as usize];
        if slot.is_none() {
            *slot = Some(self.level.manifest(self.commit, rank)?);
        }
        Ok(slot.as_ref().expect("read above"))
    }

    fn file(&mut self, rank: u32) -> Result<usize> {
        if let Some(at) = self.files.iter().position(|(of, _)| *of == rank) {
            return Ok(at);
        }
        let level = self.level;
        let file = PieceFile::open(level, self.manifest(rank)?)?;
        self.files.push((rank, file));
        Ok(self.files.len() - 1)
    }

    /// The piece of `variable` that `rank` holds; an error when it is another array of that name.
    fn piece(&mut self, variable: &Variable, rank: u32) -> Result<Option<Stored>> {
        let found =
            self.manifest(rank)?.variables.iter().find(|stored| stored.variable.name == variable.name);
        let Some(stored) = found.cloned() else { return Ok(None) };
        let Variable { dtype, shape, .. } = &stored.variable;
        if *dtype != variable.dtype || *shape != variable.shape {
            let error = Error::new(
                Kind::VariableMismatch,
                format!("{} was saved with another shape or dtype", variable.name),
            );
            return Err(error
                .with("saved", format!("{dtype} {:?}", shape.as_slice()))
                .with("protected", format!("{} {:?}", variable.dtype, variable.shape.as_slice()))
                .hint("restart with the program and the problem size that saved it"));
        }
        Ok(Some(stored))
    }

    fn load(&mut self, variable: &Variable, target: &mut [u8]) -> Result<()> {
        let size = self.commit.ranks.len() as u32;
        // The own piece first: mostly it is all that is needed, and then no other manifest is read.
        let own = self.own % size;
        let order = [own].into_iter().chain((0..size).filter(|rank| *rank != own));
        let mut parts: Vec<(u32, Stored)> = Vec::new();
        let mut exists = false;
        for rank in order {
            let Some(stored) = self.piece(variable, rank)? else { continue };
            exists = true;
            if stored.variable.part.contains(&variable.part) {
                parts = vec![(rank, stored)];
                break;
            }
            if stored.variable.part.intersect(&variable.part).is_some() {
                parts.push((rank, stored));
            }
        }
        if !exists {
            let error = Error::new(Kind::UnknownVariable, format!("{} was not saved", variable.name));
            return Err(error.hint("`forebay ckpt list PATH --step N` lists the saved arrays"));
        }
        if let Some(gap) = coverage_gap(&variable.part, parts.iter().map(|(_, s)| &s.variable.part)) {
            let error = Error::new(Kind::BoxNotCovered, format!("no rank saved a part of {}", variable.name));
            return Err(error.with("box", gap));
        }
        for (rank, stored) in &parts {
            let at = self.file(*rank)?;
            read_overlap(&self.files[at].1, stored, variable, target).map_err(|e| about(e, stored, *rank))?;
        }
        Ok(())
    }
}

fn about(error: Error, stored: &Stored, rank: u32) -> Error {
    error.with("variable", &stored.variable.name).with("rank", rank)
}

/// Reads what a piece and the wanted box have in common.
fn read_overlap(file: &PieceFile, stored: &Stored, wanted: &Variable, target: &mut [u8]) -> Result<()> {
    let piece = &stored.variable.part;
    if *piece == wanted.part {
        return file.read(stored, 0, target);
    }
    let Some(common) = piece.intersect(&wanted.part) else { return Ok(()) };
    let (rows, first_byte) = rows_of(piece, &common, wanted.dtype.size());
    let row_bytes = rows.bytes(wanted.dtype.size())?;
    // Whole chunks around the rows, because only whole chunks can be compared.
    let chunk = CHUNK_BYTES as u64;
    let start = first_byte / chunk * chunk;
    let end = (first_byte + row_bytes as u64).next_multiple_of(chunk).min(stored.bytes);
    let mut bytes = vec![0; (end - start) as usize];
    file.read(stored, start, &mut bytes)?;
    let skip = (first_byte - start) as usize;
    copy_overlap(&rows, &bytes[skip..skip + row_bytes], &wanted.part, target, wanted.dtype.size()).map(drop)
}

/// The rows (indices of the first dimension) of a piece that hold `common`, as a box, and where they begin.
fn rows_of(piece: &NdBox, common: &NdBox, element_bytes: usize) -> (NdBox, u64) {
    let mut rows = piece.clone();
    if piece.dimensions() == 0 {
        return (rows, 0);
    }
    (rows.start[0], rows.count[0]) = (common.start[0], common.count[0]);
    let row: u64 = piece.count[1..].iter().product::<u64>() * element_bytes as u64;
    (rows, (common.start[0] - piece.start[0]) * row)
}

/// Reads bytes of a variable from `start` on (a whole number of chunks) and compares them, in a second thread where
/// there is more than one block of them.
pub(crate) fn read_checked(blob: &dyn Blob, stored: &Stored, start: u64, out: &mut [u8]) -> Result<()> {
    let crcs = &stored.crcs[(start / CHUNK_BYTES as u64) as usize..];
    let offset = stored.offset + start;
    if out.len() <= BLOCK_BYTES {
        blob.read(offset, out)?;
        return compare(out, crcs);
    }
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel::<(&[u8], &[u32])>(2);
        let check = move || receive.into_iter().try_for_each(|(block, crcs)| compare(block, crcs));
        let checking = std::thread::Builder::new().spawn_scoped(scope, check);
        let mut here = Ok(());
        for (nth, (block, crcs)) in
            out.chunks_mut(BLOCK_BYTES).zip(crcs.chunks(BLOCK_BYTES / CHUNK_BYTES)).enumerate()
        {
            here = blob.read(offset + (nth * BLOCK_BYTES) as u64, block);
            if here.is_ok() && checking.is_err() {
                here = compare(block, crcs);
            } else if here.is_ok() && send.send((block, crcs)).is_err() {
                // The second thread is gone: it has found damage, and says so below.
                break;
            }
            if here.is_err() {
                break;
            }
        }
        drop(send);
        let there = checking.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a comparing thread panicked")))
        });
        here.and(there)
    })
}

/// Compares whole chunks (the last may be shorter) with their checksums.
pub(crate) fn compare(bytes: &[u8], crcs: &[u32]) -> Result<()> {
    for (nth, (chunk, crc)) in bytes.chunks(CHUNK_BYTES).zip(crcs).enumerate() {
        if crc32c(chunk) != *crc {
            return Err(damaged("data", "it does not match its checksum").with("chunk", nth));
        }
    }
    Ok(())
}
