//! What is durable of a checkpoint: the manifest of one rank's piece and the commit record of a whole step; beside them
//! the value of a step (`metric.rs`), what parity is of (`parity.rs`, `stripes.rs`), and names of files (`names.rs`).
//!
//! Described in docs/src/formats/checkpoint.md; `cargo xtask formats` compares the fixed parts. All numbers are
//! little-endian. Records end with the CRC-32C of everything before it.
//!
//! Invariants, checked by every reader:
//! - a manifest names step, incarnation, rank and size, and has one checksum per chunk of each variable's bytes;
//! - a packed one says how many bytes each chunk takes in the data file, and their checksum; none means that the chunk
//!   lies in the base, which it names by step, length and checksum of the manifest;
//! - a commit record names length and checksum of each rank's manifest, so that pieces of different steps never meet;
//! - a feature bit that this build does not know is `UnknownFormat`, any other nonsense is `Damaged`.

use forebay_log::format::Layout;
use forebay_log::nd_box::DIMENSIONS_MAX;
use forebay_log::{Dims, Dtype, NdBox};
use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};

mod bytes;
mod metric;
mod names;
mod parity;
mod stripes;

pub(crate) use bytes::{In, Out};
pub(crate) use metric::{decode_metric, encode_metric, METRIC_BYTES};
pub(crate) use names::{
    check_node, commit_name, data_name, directory_of, is_manifest, keeper_of, kept_file, manifest_file,
    manifest_name, metric_name, rank_of_manifest, step_of, COMMIT, DATA, PARITY, RECORD,
};
pub use parity::{Member, ParityRecord};
pub(crate) use stripes::{data_slots, first_holder, stripes, GROUP_NODES_MAX};

/// The version of both records.
pub const FORMAT: u32 = 1;

/// Bytes that one checksum covers: those of the log, so that one number is known everywhere.
pub const CHUNK_BYTES: usize = forebay_log::CHUNK_BYTES;

/// Longest name of a variable.
pub const NAME_BYTES_MAX: usize = 1024;

/// Where a variable begins in a data file: a multiple of this, so that it can go past the page cache as it lies.
pub const DATA_ALIGN: u64 = 4096;

/// Most ranks of one checkpoint: a commit record is read as a whole.
pub const SIZE_MAX: u32 = 1 << 20;

/// Longest manifest that is read: the checksums of 64 TiB. Keeps a damaged length from taking all memory.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 << 30;

const MANIFEST_MAGIC: &[u8; 8] = b"FBCKPTMF";
const COMMIT_MAGIC: &[u8; 8] = b"FBCKPTCM";
const MANIFEST_HEADER: [(&str, usize); 17] = [
    ("magic", 8),
    ("format", 4),
    ("features", 4),
    ("manifest_bytes", 8),
    ("data_bytes", 8),
    ("step", 8),
    ("incarnation", 8),
    ("saved_unix_ns", 8),
    ("rank", 4),
    ("size", 4),
    ("variables", 4),
    ("chunk_bytes", 4),
    ("program_bytes", 8),
    ("base_step", 8),
    ("base_manifest_bytes", 8),
    ("base_manifest_crc", 4),
    ("packing", 4),
];
const VARIABLE_ENTRY: [(&str, usize); 6] =
    [("offset", 8), ("bytes", 8), ("dtype", 4), ("dimensions", 4), ("name_bytes", 4), ("reserved", 4)];
const COMMIT_HEADER: [(&str, usize); 9] = [
    ("magic", 8),
    ("format", 4),
    ("features", 4),
    ("step", 8),
    ("incarnation", 8),
    ("saved_unix_ns", 8),
    ("data_bytes", 8),
    ("size", 4),
    ("reserved", 4),
];
const RANK_ENTRY: [(&str, usize); 5] =
    [("manifest_bytes", 8), ("data_bytes", 8), ("base_step", 8), ("manifest_crc", 4), ("has_base", 4)];

/// Bytes of a commit record before its entries, of an entry, and behind them.
const COMMIT_BYTES: (usize, usize, usize) = (56, 32, 8);

/// In `packing`: a table says what lies where in the data file.
const PACKED: u32 = 1;
/// In `packing`: chunks may lie in the base.
const ON_BASE: u32 = 2;

/// The fixed parts, for the format document.
pub fn layouts() -> Vec<Layout> {
    let mut layouts = vec![
        layout_of("CheckpointManifest", &MANIFEST_HEADER),
        layout_of("CheckpointVariable", &VARIABLE_ENTRY),
        layout_of("CheckpointCommit", &COMMIT_HEADER),
        layout_of("CheckpointRank", &RANK_ENTRY),
    ];
    layouts.push(layout_of("CheckpointMetric", &metric::METRIC));
    layouts.extend(parity::layouts());
    layouts
}

/// A fixed part: its fields one behind the other.
fn layout_of(name: &'static str, list: &[(&'static str, usize)]) -> Layout {
    let mut end = 0;
    let mut fields = Vec::new();
    for (field, bytes) in list {
        fields.push((*field, end, *bytes));
        end += bytes;
    }
    Layout { name, size: end, fields }
}

/// A variable, or the piece of one that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its global shape.
    pub shape: Dims,
    /// The part of it that these bytes are, in C order.
    pub part: NdBox,
}

impl Variable {
    /// Bytes of the piece.
    pub fn bytes(&self) -> Result<usize> {
        self.part.bytes(self.dtype.size())
    }
}

/// Where a variable's bytes lie, and what they must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it is.
    pub variable: Variable,
    /// Its first byte in the data file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
    /// CRC-32C of each chunk of [`CHUNK_BYTES`].
    pub crcs: Vec<u32>,
    /// How each chunk lies in the data file, one behind the other; nothing: each as it is.
    pub packed: Vec<Packed>,
}

/// How a chunk lies in a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Bytes that it takes: 0 where it lies in the base, its own length where it lies there as it is, less where it is
    /// compressed.
    pub bytes: u32,
    /// CRC-32C of these bytes.
    pub crc: u32,
}

/// The full step that an incremental one stands on: of the same run and rank, in the same level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Its number.
    pub step: u64,
    /// Length of its manifest.
    pub manifest_bytes: u64,
    /// The checksum at the end of its manifest.
    pub manifest_crc: u32,
}

impl Stored {
    /// Bytes of a chunk.
    pub(crate) fn chunk_bytes(&self, nth: usize) -> usize {
        CHUNK_BYTES.min(self.bytes as usize - nth * CHUNK_BYTES)
    }

    /// Bytes that it takes in the data file.
    pub fn stored_bytes(&self) -> u64 {
        match self.packed.is_empty() {
            true => self.bytes,
            false => self.packed.iter().map(|packed| u64::from(packed.bytes)).sum(),
        }
    }

    /// Whether it can be what a data file of so many bytes holds of it.
    fn lies_in(&self, data_bytes: u64, on_base: bool) -> bool {
        let possible = |(nth, packed): (usize, &Packed)| match packed.bytes {
            0 => on_base,
            bytes => bytes as usize <= self.chunk_bytes(nth),
        };
        self.offset.checked_add(self.stored_bytes()).is_some_and(|end| end <= data_bytes)
            && self.packed.iter().enumerate().all(possible)
    }
}

/// Whose piece of which step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId {
    /// The group of processes that saved it: grows with every restart.
    pub incarnation: u64,
    /// The program's number of the step.
    pub step: u64,
}

impl std::fmt::Display for StepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {} of run {}", self.step, self.incarnation)
    }
}

/// One rank's piece of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The step.
    pub id: StepId,
    /// Whose piece it is.
    pub rank: u32,
    /// How many pieces make the step.
    pub size: u32,
    /// When `save` was called, in ns since 1970.
    pub saved_unix_ns: u64,
    /// Bytes of the data file.
    pub data_bytes: u64,
    /// The program's name, or nothing.
    pub program: String,
    /// What chunks that the data file lacks are taken from; None: it lacks none.
    pub base: Option<Base>,
    /// What the data file holds.
    pub variables: Vec<Stored>,
}

impl Manifest {
    /// The variables of the piece, without where they are stored.
    pub(crate) fn described(&self) -> Vec<Variable> {
        self.variables.iter().map(|stored| stored.variable.clone()).collect()
    }

    /// The record as it stands in its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.bytes(MANIFEST_MAGIC);
        out.u32(FORMAT);
        out.u32(0);
        let length_at = out.0.len();
        for number in [0, self.data_bytes, self.id.step, self.id.incarnation, self.saved_unix_ns] {
            out.u64(number);
        }
        for number in [self.rank, self.size, self.variables.len() as u32, CHUNK_BYTES as u32] {
            out.u32(number);
        }
        out.u64(self.program.len() as u64);
        let packing = self.packing();
        let base = self.base.unwrap_or(Base { step: 0, manifest_bytes: 0, manifest_crc: 0 });
        out.u64(base.step);
        out.u64(base.manifest_bytes);
        out.u32(base.manifest_crc);
        out.u32(packing);
        out.bytes(self.program.as_bytes());
        out.pad();
        for stored in &self.variables {
            let Variable { name, dtype, shape, part } = &stored.variable;
            out.u64(stored.offset);
            out.u64(stored.bytes);
            for number in [*dtype as u32, shape.len() as u32, name.len() as u32, 0] {
                out.u32(number);
            }
            shape.iter().chain(&part.start).chain(&part.count).for_each(|n| out.u64(*n));
            out.bytes(name.as_bytes());
            out.pad();
            stored.crcs.iter().for_each(|crc| out.u32(*crc));
            out.pad();
            for packed in &stored.packed {
                out.u32(packed.bytes);
                out.u32(packed.crc);
            }
        }
        out.u32(0);
        let length = out.0.len() as u64 + 4;
        out.set_u64(length_at, length);
        sealed(out)
    }

    fn packing(&self) -> u32 {
        let packed = self.base.is_some() || self.variables.iter().any(|stored| !stored.packed.is_empty());
        u32::from(packed) * PACKED + u32::from(self.base.is_some()) * ON_BASE
    }

    /// The step that this one stands on.
    pub fn base_id(&self) -> Option<StepId> {
        self.base.map(|base| StepId { step: base.step, ..self.id })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        let what = "a manifest";
        let mut from = opened(what, MANIFEST_MAGIC, bytes)?;
        let manifest = Manifest::fields(&mut from, bytes.len()).ok_or_else(|| damaged(what, "its fields"))?;
        manifest.check()?;
        Ok(manifest)
    }

    fn fields(from: &mut In<'_>, length: usize) -> Option<Manifest> {
        if from.u64()? != length as u64 {
            return None;
        }
        let (data_bytes, step, incarnation, saved_unix_ns) =
            (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        let (rank, size, count, chunk) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        if chunk as usize != CHUNK_BYTES {
            return None;
        }
        let program_bytes = usize::try_from(from.u64()?).ok()?;
        let base = Base { step: from.u64()?, manifest_bytes: from.u64()?, manifest_crc: from.u32()? };
        let packing = from.u32()?;
        let program = text(from, program_bytes)?;
        let mut variables = Vec::new();
        for _ in 0..count {
            variables.push(Manifest::variable(from, packing & PACKED != 0)?);
        }
        from.u32()?;
        let id = StepId { incarnation, step };
        (from.left() == 0)
            .then_some(Manifest {
                id,
                rank,
                size,
                saved_unix_ns,
                data_bytes,
                program,
                base: (packing & ON_BASE != 0).then_some(base),
                variables,
            })
            // A bit that nothing here stands for, or one without what it stands for.
            .filter(|manifest| manifest.packing() == packing)
    }

    fn variable(from: &mut In<'_>, packed: bool) -> Option<Stored> {
        let (offset, bytes) = (from.u64()?, from.u64()?);
        let dtype = Dtype::from_code(u8::try_from(from.u32()?).ok()?)?;
        let (dimensions, name_bytes) = (from.u32()? as usize, from.u32()? as usize);
        from.u32()?;
        if dimensions > DIMENSIONS_MAX || name_bytes > NAME_BYTES_MAX {
            return None;
        }
        let mut list = || -> Option<Dims> { (0..dimensions).map(|_| from.u64()).collect() };
        let (shape, start, count) = (list()?, list()?, list()?);
        let name = text(from, name_bytes)?;
        let chunks = usize::try_from(bytes.div_ceil(CHUNK_BYTES as u64)).ok()?;
        let table = from.take(chunks.checked_mul(4)?)?;
        let crcs = table.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four"))).collect();
        from.pad()?;
        let table = from.take(if packed { chunks.checked_mul(8)? } else { 0 })?;
        let mut table = In::of(table);
        let packed =
            (0..table.left() / 8).map_while(|_| Some(Packed { bytes: table.u32()?, crc: table.u32()? }));
        let packed = packed.collect();
        let variable = Variable { name, dtype, shape, part: NdBox { start, count } };
        Some(Stored { variable, offset, bytes, crcs, packed })
    }

    /// What a checksum cannot say: that the numbers fit each other.
    fn check(&self) -> Result<()> {
        let fits = |stored: &Stored| {
            let Variable { part, shape, .. } = &stored.variable;
            part.is_inside(shape)
                && stored.variable.bytes().is_ok_and(|bytes| bytes as u64 == stored.bytes)
                && stored.lies_in(self.data_bytes, self.base.is_some())
        };
        let earlier = self.base.is_none_or(|base| base.step < self.id.step);
        if !earlier || self.rank >= self.size || self.size > SIZE_MAX || !self.variables.iter().all(fits) {
            return Err(damaged("a manifest", "its numbers do not fit each other"));
        }
        Ok(())
    }
}

/// What a commit record says of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankEntry {
    /// Length of its manifest.
    pub manifest_bytes: u64,
    /// Length of its data file.
    pub data_bytes: u64,
    /// The checksum at the end of its manifest.
    pub manifest_crc: u32,
    /// The number of the full step that its piece stands on; None: it stands alone.
    pub base: Option<u64>,
}

/// The record that makes a step count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The step.
    pub id: StepId,
    /// When the last rank called `save`, in ns since 1970.
    pub saved_unix_ns: u64,
    /// The pieces, by rank.
    pub ranks: Vec<RankEntry>,
}

impl Commit {
    /// Reads the manifest of a rank, which must be the one that was committed.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`.
    pub(crate) fn check_manifest(&self, rank: u32, bytes: &[u8]) -> Result<Manifest> {
        let entry = self.ranks.get(rank as usize);
        let entry = entry.ok_or_else(|| damaged("a commit record", "a rank is missing"))?;
        if bytes.len() as u64 != entry.manifest_bytes || seal_of(bytes) != Some(entry.manifest_crc) {
            return Err(damaged(&format!("rank {rank}"), "its manifest is not the one that was committed"));
        }
        let manifest = Manifest::decode(bytes)?;
        let right = manifest.id == self.id
            && manifest.base.map(|base| base.step) == entry.base
            && manifest.rank == rank
            && manifest.size as usize == self.ranks.len()
            && manifest.data_bytes == entry.data_bytes;
        match right {
            true => Ok(manifest),
            false => Err(damaged(&format!("rank {rank}"), "its manifest is of another piece")),
        }
    }

    /// Bytes of all data files.
    pub fn data_bytes(&self) -> u64 {
        self.ranks.iter().fold(0, |sum, rank| sum.saturating_add(rank.data_bytes))
    }

    /// The full steps that pieces of this one stand on, each once; mostly one or none.
    pub fn bases(&self) -> Vec<StepId> {
        let mut steps: Vec<u64> = self.ranks.iter().filter_map(|rank| rank.base).collect();
        steps.sort_unstable();
        steps.dedup();
        steps.into_iter().map(|step| StepId { step, ..self.id }).collect()
    }

    /// The record as it stands in its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.bytes(COMMIT_MAGIC);
        out.u32(FORMAT);
        out.u32(0);
        for number in [self.id.step, self.id.incarnation, self.saved_unix_ns, self.data_bytes()] {
            out.u64(number);
        }
        out.u32(self.ranks.len() as u32);
        out.u32(0);
        for rank in &self.ranks {
            out.u64(rank.manifest_bytes);
            out.u64(rank.data_bytes);
            out.u64(rank.base.unwrap_or(0));
            out.u32(rank.manifest_crc);
            out.u32(u32::from(rank.base.is_some()));
        }
        out.u32(0);
        sealed(out)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`.
    pub fn decode(bytes: &[u8]) -> Result<Commit> {
        let what = "a commit record";
        let mut from = opened(what, COMMIT_MAGIC, bytes)?;
        Commit::fields(&mut from, bytes.len()).ok_or_else(|| damaged(what, "its fields"))
    }

    fn fields(from: &mut In<'_>, length: usize) -> Option<Commit> {
        let (step, incarnation, saved_unix_ns, data_bytes) =
            (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        let size = from.u32()?;
        from.u32()?;
        let (header, entry, end) = COMMIT_BYTES;
        if size == 0 || size > SIZE_MAX || length != header + entry * size as usize + end {
            return None;
        }
        let mut ranks = Vec::new();
        for _ in 0..size {
            let (manifest_bytes, data_bytes, base) = (from.u64()?, from.u64()?, from.u64()?);
            let manifest_crc = from.u32()?;
            let base = match from.u32()? {
                0 => None,
                1 if base < step => Some(base),
                _ => return None,
            };
            ranks.push(RankEntry { manifest_bytes, data_bytes, manifest_crc, base });
        }
        let commit = Commit { id: StepId { incarnation, step }, saved_unix_ns, ranks };
        (commit.data_bytes() == data_bytes).then_some(commit)
    }
}

/// Bytes of the commit record of so many ranks.
pub(crate) fn commit_bytes(size: u32) -> u64 {
    let (header, entry, end) = COMMIT_BYTES;
    (header + entry * size as usize + end) as u64
}

/// A text of so many bytes, and what fills its last eight.
fn text(from: &mut In<'_>, bytes: usize) -> Option<String> {
    let text = std::str::from_utf8(from.take(bytes)?).ok()?.to_string();
    from.pad()?;
    Some(text)
}

/// The bytes with their checksum behind them.
fn sealed(mut out: Out) -> Vec<u8> {
    let crc = crc32c(&out.0);
    out.u32(crc);
    out.0
}

/// The checksum that ends a record.
pub(crate) fn seal_of(record: &[u8]) -> Option<u32> {
    let at = record.len().checked_sub(4)?;
    Some(u32::from_le_bytes(record[at..].try_into().ok()?))
}

/// Checks magic, version, checksum and features, in this order; what is left to read begins behind them.
fn opened<'a>(what: &str, magic: &[u8; 8], bytes: &'a [u8]) -> Result<In<'a>> {
    let mut from = In::of(bytes);
    if from.take(8) != Some(magic) {
        return Err(damaged(what, "it does not begin with the magic word"));
    }
    let format = from.u32().ok_or_else(|| damaged(what, "it is cut off"))?;
    if format != FORMAT {
        let error = Error::new(Kind::UnknownFormat, format!("{what} has format version {format}"));
        return Err(error
            .with("known", FORMAT)
            .hint("written by a newer release of Forebay: use that release or a newer one"));
    }
    let sealed = bytes.len().checked_sub(4).filter(|at| *at >= 16);
    let sealed = sealed.filter(|at| Some(crc32c(&bytes[..*at])) == seal_of(bytes));
    let sealed = sealed.ok_or_else(|| damaged(what, "it does not match its checksum"))?;
    let features = from.u32().unwrap_or(0);
    if features != 0 {
        let error = Error::new(Kind::UnknownFormat, format!("{what} uses features {features:#x}"));
        return Err(error.hint("written by a newer release of Forebay: use that release or a newer one"));
    }
    let mut rest = In::of(&bytes[..sealed]);
    rest.take(16);
    Ok(rest)
}

#[cold]
pub(crate) fn damaged(what: &str, fault: &str) -> Error {
    Error::new(Kind::Damaged, format!("{what} is damaged: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn stored(name: &str, dtype: Dtype, shape: &[u64], start: &[u64], count: &[u64], offset: u64) -> Stored {
        let part = NdBox::new(start, count).unwrap();
        let variable = Variable { name: name.into(), dtype, shape: Dims::from_slice(shape), part };
        let bytes = variable.bytes().unwrap() as u64;
        let crcs = (0..bytes.div_ceil(CHUNK_BYTES as u64)).map(|n| 0x1234_5678 + n as u32).collect();
        Stored { variable, offset, bytes, crcs, packed: Vec::new() }
    }

    /// The first chunk as it is, the second in the base, the third compressed.
    fn incremental() -> Manifest {
        let mut manifest = manifest();
        let base = Base { step: 9, manifest_bytes: 312, manifest_crc: 0xBEEF };
        let packed = |bytes, crc| Packed { bytes, crc };
        manifest.base = Some(base);
        manifest.variables[0].packed = vec![packed(65_536, 0x1234_5678), packed(0, 0), packed(777, 0xFEED)];
        manifest.variables[1].packed = vec![packed(0, 0)];
        manifest.data_bytes = 69_632;
        manifest.variables[1].offset = 69_632;
        manifest.variables[2].offset = 69_632;
        manifest
    }

    fn manifest() -> Manifest {
        Manifest {
            id: StepId { incarnation: 3, step: 12 },
            rank: 1,
            size: 2,
            saved_unix_ns: 1_700_000_000_000_000_007,
            data_bytes: 172_032,
            program: "bt".into(),
            base: None,
            variables: vec![
                stored("u é", Dtype::F64, &[40, 1000], &[20, 0], &[20, 1000], 0),
                stored("dt", Dtype::F32, &[], &[], &[], 163_840),
                stored("none", Dtype::I8, &[0], &[0], &[0], 167_936),
            ],
        }
    }

    fn commit() -> Commit {
        let entry = |n: u64| RankEntry {
            manifest_bytes: 300 + n,
            data_bytes: 4096 * n,
            manifest_crc: 0xABCD,
            base: (n == 2).then_some(9),
        };
        Commit { id: manifest().id, saved_unix_ns: 17, ranks: vec![entry(1), entry(2)] }
    }

    /// A record with another word in it and a checksum that fits.
    fn changed(record: &[u8], at: usize, value: u32) -> Vec<u8> {
        let mut bytes = record[..record.len() - 4].to_vec();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        sealed(Out(bytes))
    }

    type Read = fn(&[u8]) -> Result<()>;

    /// The fixtures: name, content, reader, and the kind of error that reading must give.
    fn fixtures() -> Vec<(&'static str, Vec<u8>, Read, Option<Kind>)> {
        let (m, c, i) = (manifest().encode(), commit().encode(), incremental().encode());
        let lone = Manifest { base: None, ..incremental() }.encode();
        let manifest: Read = |bytes| Manifest::decode(bytes).map(drop);
        let commit: Read = |bytes| Commit::decode(bytes).map(drop);
        let mut flipped = m.clone();
        flipped[100] ^= 1;
        vec![
            ("good.manifest", m.clone(), manifest, None),
            ("good.commit", c.clone(), commit, None),
            ("incremental.manifest", i.clone(), manifest, None),
            // A chunk that lies nowhere; a base that is not earlier; an unknown way of packing.
            ("damaged-chunk.manifest", lone, manifest, Some(Kind::Damaged)),
            ("damaged-base.manifest", changed(&i, 80, 12), manifest, Some(Kind::Damaged)),
            ("damaged-packing.manifest", changed(&i, 100, 7), manifest, Some(Kind::Damaged)),
            ("damaged.manifest", flipped, manifest, Some(Kind::Damaged)),
            ("damaged-rank.manifest", changed(&m, 56, 2), manifest, Some(Kind::Damaged)),
            ("damaged-cut.commit", c[..c.len() - 8].to_vec(), commit, Some(Kind::Damaged)),
            ("damaged-size.commit", changed(&c, 48, 3), commit, Some(Kind::Damaged)),
            ("unknown-format.manifest", changed(&m, 8, 2), manifest, Some(Kind::UnknownFormat)),
            ("unknown-feature.manifest", changed(&m, 12, 1 << 30), manifest, Some(Kind::UnknownFormat)),
            ("unknown-feature.commit", changed(&c, 12, 1 << 30), commit, Some(Kind::UnknownFormat)),
        ]
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/checkpoint/1").join(name)
    }

    /// Writes the fixtures of this format version, once: `cargo test -p forebay-checkpoint write_fixtures --
    /// --ignored`. Released ones are never written again.
    #[test]
    #[ignore = "writes fixtures"]
    fn write_fixtures() {
        for (name, bytes, _, _) in fixtures() {
            assert!(!fixture(name).exists(), "{name} is there");
            std::fs::create_dir_all(fixture("")).unwrap();
            std::fs::write(fixture(name), bytes).unwrap();
        }
    }

    #[test]
    fn fixtures_are_read_as_ever_and_written_bit_for_bit_the_same() {
        for (name, bytes, read, kind) in fixtures() {
            let found = std::fs::read(fixture(name)).unwrap();
            assert!(found == bytes, "{name}");
            assert_eq!(read(&found).err().map(|e| e.kind()), kind, "{name}");
        }
    }

    #[test]
    fn records_come_back() {
        assert_eq!(Manifest::decode(&manifest().encode()).unwrap(), manifest());
        assert_eq!(Manifest::decode(&incremental().encode()).unwrap(), incremental());
        assert_eq!(Commit::decode(&commit().encode()).unwrap(), commit());
        assert_eq!(commit().encode().len() as u64, commit_bytes(2));
        let ends: Vec<usize> = layouts().iter().map(|layout| layout.size).collect();
        assert_eq!(ends, [104, 32, COMMIT_BYTES.0, COMMIT_BYTES.1, 24, 88, 24]);
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        for (record, read) in [
            (manifest().encode(), (|b| Manifest::decode(b).map(drop)) as Read),
            (incremental().encode(), |b| Manifest::decode(b).map(drop)),
            (commit().encode(), |b| Commit::decode(b).map(drop)),
        ] {
            for at in 0..record.len() {
                let mut bad = record.clone();
                bad[at] ^= 0x10;
                let kind = if (8..12).contains(&at) { Kind::UnknownFormat } else { Kind::Damaged };
                assert_eq!(read(&bad).unwrap_err().kind(), kind, "byte {at}");
                assert!(read(&record[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn wild_lengths_take_no_memory_and_no_panic() {
        for record in [manifest().encode(), incremental().encode()] {
            for at in (16..record.len() - 4).step_by(4) {
                for value in [u32::MAX, 1 << 31, 0x7FFF_FFFF] {
                    // Whatever comes of it, it comes as a result.
                    let _ = Manifest::decode(&changed(&record, at, value));
                }
            }
        }
    }
}
