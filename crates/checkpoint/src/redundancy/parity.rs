//! Parity: made of the pieces of a committed step, and turned back into what is missing of them.
//!
//! Pieces are cut into slices of whole chunks, and each chunk of a slice makes a codeword with those at the same place
//! in the other slices of its stripe: XOR, or Reed–Solomon as `reed-solomon-simd` has it (Leopard, GF(2^16)) over
//! shards of one chunk. Behind its end a piece counts as zeros.

use std::ops::Range;

use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::hidden;
use crate::format::{
    damaged, data_name, data_slots, directory_of, kept_file, manifest_name, stripes, Commit, Member,
    ParityRecord, CHUNK_BYTES, MANIFEST_BYTES_MAX, PARITY, RECORD,
};
use crate::level::{plan, Group, Guard, Level, Slot};
use crate::place::{Blob, Place};

/// Makes parity and undoes losses, chunk by chunk.
pub(super) struct Codec {
    sources: usize,
    /// None: XOR.
    reed_solomon: Option<(ReedSolomonEncoder, ReedSolomonDecoder)>,
}

impl Codec {
    /// For `sources` chunks with `parity` chunks, by the number of the code in a record.
    pub(super) fn new(code: u32, sources: usize, parity: usize) -> Result<Codec> {
        let reed_solomon = match code {
            3 => {
                let encoder = ReedSolomonEncoder::new(sources, parity, CHUNK_BYTES).map_err(failed)?;
                let decoder = ReedSolomonDecoder::new(sources, parity, CHUNK_BYTES).map_err(failed)?;
                Some((encoder, decoder))
            }
            _ => None,
        };
        Ok(Codec { sources, reed_solomon })
    }

    /// The parity chunk of this number.
    pub(super) fn encode(&mut self, sources: &[&[u8]], symbol: usize, out: &mut [u8]) -> Result<()> {
        let Some((encoder, _)) = &mut self.reed_solomon else {
            out.fill(0);
            sources.iter().for_each(|source| xor(out, source));
            return Ok(());
        };
        for source in sources {
            encoder.add_original_shard(source).map_err(failed)?;
        }
        let encoded = encoder.encode().map_err(failed)?;
        let parity = encoded.recovery(symbol).ok_or_else(|| failed("no such parity"))?;
        out.copy_from_slice(parity);
        Ok(())
    }

    /// The source chunk `lost`, from the others and from parity chunks with their numbers; None where they are too few.
    pub(super) fn rebuild(
        &mut self,
        sources: &[Option<Vec<u8>>],
        parity: &[(usize, Vec<u8>)],
        lost: usize,
    ) -> Option<Vec<u8>> {
        let left = sources.iter().flatten().count();
        if left + parity.len() < self.sources || sources[lost].is_some() {
            return None;
        }
        let Some((_, decoder)) = &mut self.reed_solomon else {
            let mut out = parity.first()?.1.clone();
            sources.iter().flatten().for_each(|source| xor(&mut out, source));
            return Some(out);
        };
        for (nth, source) in sources.iter().enumerate() {
            if let Some(source) = source {
                decoder.add_original_shard(nth, source).ok()?;
            }
        }
        for (symbol, chunk) in parity {
            decoder.add_recovery_shard(*symbol, chunk).ok()?;
        }
        decoder.decode().ok()?.restored_original(lost).map(<[u8]>::to_vec)
    }
}

fn xor(out: &mut [u8], source: &[u8]) {
    out.iter_mut().zip(source).for_each(|(byte, other)| *byte ^= other);
}

#[cold]
fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Internal, format!("parity cannot be computed: {e}"))
}

/// Reads from a data file, with zeros behind the end of what means something there.
pub(super) fn read_padded(
    blob: Option<&dyn Blob>,
    data_bytes: u64,
    offset: u64,
    out: &mut [u8],
) -> Result<()> {
    let there = data_bytes.saturating_sub(offset).min(out.len() as u64) as usize;
    out[there..].fill(0);
    match (there, blob) {
        (0, _) => Ok(()),
        (_, Some(blob)) => blob.read(offset, &mut out[..there]),
        (_, None) => Err(damaged("a piece", "its data file is missing")),
    }
}

/// How far the redundancy of a step is, as far as one rank is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything that the rank keeps is there.
    Done,
    /// The step was dropped meanwhile.
    Gone,
}

/// Writes what `rank` keeps of a committed step, as far as it is not there.
///
/// # Errors
/// `NotPossibleHere` on too few nodes; `Damaged` when a piece is not whole; those of the places.
pub(super) fn protect(level: &Level, guard: &Guard, commit: &Commit, rank: u32) -> Result<Progress> {
    let written = || -> Result<()> {
        let groups = plan(guard, commit)?.ok_or_else(|| damaged("the step", "a manifest is missing"))?;
        for group in &groups {
            for position in 0..group.holders.len() {
                let (node, holder) = &group.holders[position];
                if *holder == rank && !is_kept(guard, commit, node, rank, group.row)? {
                    write(level, guard, commit, group, position)?;
                }
            }
        }
        Ok(())
    };
    let result = written();
    // The record goes first when a step is dropped: what was read while it was there is the step's.
    match level.commit_record(commit.id) {
        Ok(None) => Ok(Progress::Gone),
        _ => result.map(|()| Progress::Done),
    }
}

fn is_kept(guard: &Guard, commit: &Commit, node: &str, rank: u32, row: u32) -> Result<bool> {
    let names = guard.nodes.node(node)?.list(&directory_of(commit.id))?;
    Ok([PARITY, RECORD].iter().all(|end| names.contains(&kept_file(rank, row, end))))
}

/// Writes one parity file and its record: parity under a hidden name, then both names, the record's last.
pub(super) fn write(
    level: &Level,
    guard: &Guard,
    commit: &Commit,
    group: &Group,
    position: usize,
) -> Result<()> {
    let (node, rank) = &group.holders[position];
    let place = guard.nodes.node(node)?;
    let dir = directory_of(commit.id);
    place.make_dir(&dir)?;
    let name = |end: &str| format!("{dir}/{}", kept_file(*rank, group.row, end));
    let hidden_of = |end: &str| hidden(&dir, &kept_file(*rank, group.row, end));
    let (parity, record_name) = (hidden_of(PARITY), hidden_of(RECORD));
    let written = parity_file(level, guard, commit, group, position, &*place, &parity);
    let written = written.and_then(|record| {
        if level.commit_record(commit.id)?.is_none() {
            return Err(damaged("the step", "it was dropped"));
        }
        // Of an older content of that name nothing is believed any more from here on.
        place.remove(&name(RECORD))?;
        place.rename(&parity, &name(PARITY))?;
        place.store(&record_name, &record.encode())?;
        place.rename(&record_name, &name(RECORD))?;
        place.sync(&dir)
    });
    written.inspect_err(|_| {
        let _ = place.remove(&parity);
        let _ = place.remove(&record_name);
    })
}

/// Writes the parity file under a hidden name and gives the record that belongs to it.
fn parity_file(
    level: &Level,
    guard: &Guard,
    commit: &Commit,
    group: &Group,
    position: usize,
    place: &dyn Place,
    hidden: &str,
) -> Result<ParityRecord> {
    let members = members(level, commit, group)?;
    let mut blobs = Vec::new();
    for member in &members {
        blobs.push(match member.rank {
            Some(rank) => level.place.open(&data_name(commit.id, rank))?,
            None => None,
        });
    }
    let (slots, lost_max) = (members.len(), guard.code.lost_max() as usize);
    let sources = data_slots(slots, lost_max);
    let slice_bytes = slice_bytes(members.iter().map(|member| member.data_bytes), sources);
    let stripes = stripes(slots, lost_max, position);
    let mut codec = Codec::new(guard.code.tag(), sources, lost_max)?;
    let mut source_crcs = Vec::new();
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); sources];
    let bytes = slice_bytes * stripes.len() as u64;
    let parity_crcs = place.store_blocks(hidden, bytes, &mut |offset, out| {
        for (stripe, within, part) in parts(offset, out.len(), slice_bytes) {
            let stripe = &stripes[stripe];
            for (slice, slot) in stripe.sources.iter().enumerate() {
                let from = slice as u64 * slice_bytes + within;
                blocks[slice].resize(part.len(), 0);
                let blob = blobs[*slot].as_deref();
                read_padded(blob, members[*slot].data_bytes, from, &mut blocks[slice])?;
            }
            for at in part.clone().step_by(CHUNK_BYTES) {
                let chunk = at - part.start..at - part.start + CHUNK_BYTES;
                let all: Vec<&[u8]> = blocks.iter().map(|block| &block[chunk.clone()]).collect();
                source_crcs.extend(all.iter().map(|source| crc32c(source)));
                codec.encode(&all, stripe.symbol, &mut out[at..at + CHUNK_BYTES])?;
            }
        }
        Ok(())
    })?;
    let (code, row, position) = (guard.code.tag(), group.row, position as u32);
    let (commit, id) = (commit.encode(), commit.id);
    let lost_max = lost_max as u32;
    Ok(ParityRecord {
        id,
        code,
        lost_max,
        row,
        position,
        slice_bytes,
        members,
        commit,
        parity_crcs,
        source_crcs,
    })
}

/// The members of a group, with their manifests.
fn members(level: &Level, commit: &Commit, group: &Group) -> Result<Vec<Member>> {
    let member = |slot: &Slot| {
        let (mut data_bytes, mut manifest) = (0, Vec::new());
        if let Some(rank) = slot.rank {
            let missing = || damaged(&format!("rank {rank}"), "its manifest is missing");
            let read = level.place.load(&manifest_name(commit.id, rank), MANIFEST_BYTES_MAX)?;
            manifest = read.ok_or_else(missing)?;
            commit.check_manifest(rank, &manifest)?;
            data_bytes = commit.ranks[rank as usize].data_bytes;
        }
        Ok(Member { node: slot.node.clone(), rank: slot.rank, data_bytes, manifest })
    };
    group.slots.iter().map(member).collect()
}

/// Bytes of a slice: so many that the longest piece is covered, in whole chunks, at least one.
fn slice_bytes(data_bytes: impl Iterator<Item = u64>, sources: usize) -> u64 {
    let longest = data_bytes.max().unwrap_or(0);
    longest.div_ceil(sources as u64).max(1).next_multiple_of(CHUNK_BYTES as u64)
}

/// Cuts a block of a parity file where stripes end: the stripe, where the part begins in its slices, and where it is
/// in the block.
fn parts(offset: u64, bytes: usize, slice_bytes: u64) -> Vec<(usize, u64, Range<usize>)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes {
        let from = offset + at as u64;
        let (stripe, within) = ((from / slice_bytes) as usize, from % slice_bytes);
        let end = bytes.min(at + (slice_bytes - within) as usize);
        found.push((stripe, within, at..end));
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// The parity of four pieces, as the format's fixtures have it.
    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/checkpoint/1/rs-4+2.parity")
    }

    /// Chunks of four pieces, as a generator of numbers gives them, and their two parity chunks.
    fn codeword() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let sources: Vec<Vec<u8>> = (0..4).map(|_| (0..CHUNK_BYTES).map(|_| byte()).collect()).collect();
        let all: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let mut codec = Codec::new(3, 4, 2).unwrap();
        let parity = (0..2).map(|symbol| {
            let mut out = vec![0; CHUNK_BYTES];
            codec.encode(&all, symbol, &mut out).unwrap();
            out
        });
        let parity = parity.collect();
        (sources, parity)
    }

    /// Writes the fixture of this format version, once; a released one is never written again.
    #[test]
    #[ignore = "writes fixtures"]
    fn write_parity_fixture() {
        assert!(!fixture().exists());
        std::fs::write(fixture(), codeword().1.concat()).unwrap();
    }

    #[test]
    fn the_parity_of_reed_solomon_stays_what_it_was() {
        let (sources, parity) = codeword();
        let kept = std::fs::read(fixture()).unwrap();
        assert!(kept == parity.concat(), "the code has changed: kept parity would rebuild something else");
        let mut codec = Codec::new(3, 4, 2).unwrap();
        let left: Vec<Option<Vec<u8>>> =
            sources.iter().enumerate().map(|(n, s)| (n % 2 == 0).then(|| s.clone())).collect();
        let both: Vec<(usize, Vec<u8>)> = parity.into_iter().enumerate().collect();
        for lost in [1, 3] {
            assert!(codec.rebuild(&left, &both, lost).unwrap() == sources[lost]);
        }
    }
}
