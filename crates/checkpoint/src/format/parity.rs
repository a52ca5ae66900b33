//! The durable record beside a parity file: of which pieces of which step it is the parity, and their checksums.
//!
//! Described in docs/src/formats/checkpoint.md. It holds the manifests of the group and the commit record byte by
//! byte, so that these can be brought back from any record that is left.

use forebay_log::format::Layout;
use forebay_tier::Result;

use super::{
    check_node, damaged, data_slots, layout_of, opened, sealed, stripes, text, In, Out, StepId, CHUNK_BYTES,
    FORMAT, GROUP_NODES_MAX,
};

const MAGIC: &[u8; 8] = b"FBCKPTRD";
/// In place of a rank: the node has none in this row.
const NO_RANK: u32 = u32::MAX;

const HEADER: [(&str, usize); 15] = [
    ("magic", 8),
    ("format", 4),
    ("features", 4),
    ("record_bytes", 8),
    ("step", 8),
    ("incarnation", 8),
    ("slice_bytes", 8),
    ("commit_bytes", 8),
    ("code", 4),
    ("lost_max", 4),
    ("row", 4),
    ("position", 4),
    ("members", 4),
    ("chunk_bytes", 4),
    ("reserved", 8),
];
const MEMBER: [(&str, usize); 4] = [("manifest_bytes", 8), ("data_bytes", 8), ("rank", 4), ("node_bytes", 4)];

/// The fixed parts, for the format document.
pub(super) fn layouts() -> Vec<Layout> {
    vec![layout_of("CheckpointParity", &HEADER), layout_of("CheckpointMember", &MEMBER)]
}

/// A node of a group, and its rank's piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node's name.
    pub node: String,
    /// The rank; None: the node has none in this row, which counts as an empty piece.
    pub rank: Option<u32>,
    /// Bytes of its data file that mean something.
    pub data_bytes: u64,
    /// Its manifest, as it stands in its file.
    pub manifest: Vec<u8>,
}

/// See the file's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityRecord {
    /// The step.
    pub id: StepId,
    /// The kind of code: 1 a copy, 2 XOR, 3 Reed–Solomon.
    pub code: u32,
    /// Members that may be lost.
    pub lost_max: u32,
    /// The row of pieces: the first of each node, the second, and so on.
    pub row: u32,
    /// Which of the group's parity files this is.
    pub position: u32,
    /// Bytes of a slice: whole chunks.
    pub slice_bytes: u64,
    /// The group.
    pub members: Vec<Member>,
    /// The commit record, as it stands in its file.
    pub commit: Vec<u8>,
    /// CRC-32C of each chunk of the parity file.
    pub parity_crcs: Vec<u32>,
    /// For each chunk of the parity file, the CRC-32C of each chunk that it is made of.
    pub source_crcs: Vec<u32>,
}

impl ParityRecord {
    /// Chunks of a slice.
    pub(crate) fn rows(&self) -> usize {
        (self.slice_bytes / CHUNK_BYTES as u64) as usize
    }

    /// Bytes of the parity file that mean something.
    pub fn parity_bytes(&self) -> u64 {
        self.parity_crcs.len() as u64 * CHUNK_BYTES as u64
    }

    /// Pieces of which one codeword has a slice each.
    pub(crate) fn sources(&self) -> usize {
        data_slots(self.members.len(), self.lost_max as usize)
    }

    /// The checksums of the chunks of which the parity chunk in this row of a stripe is made.
    pub(crate) fn source_table(&self, symbol: usize, row: usize) -> &[u32] {
        let at = (symbol * self.rows() + row) * self.sources();
        &self.source_crcs[at..at + self.sources()]
    }

    /// The record as it stands in its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.bytes(MAGIC);
        out.u32(FORMAT);
        out.u32(0);
        let length_at = out.0.len();
        let commit_bytes = self.commit.len() as u64;
        for number in [0, self.id.step, self.id.incarnation, self.slice_bytes, commit_bytes] {
            out.u64(number);
        }
        let (members, chunk) = (self.members.len() as u32, CHUNK_BYTES as u32);
        for number in [self.code, self.lost_max, self.row, self.position, members, chunk, 0, 0] {
            out.u32(number);
        }
        for member in &self.members {
            out.u64(member.manifest.len() as u64);
            out.u64(member.data_bytes);
            out.u32(member.rank.unwrap_or(NO_RANK));
            out.u32(member.node.len() as u32);
            out.bytes(member.node.as_bytes());
            out.pad();
            out.bytes(&member.manifest);
            out.pad();
        }
        out.bytes(&self.commit);
        out.pad();
        self.parity_crcs.iter().chain(&self.source_crcs).for_each(|crc| out.u32(*crc));
        out.pad();
        out.u32(0);
        let length = out.0.len() as u64 + 4;
        out.set_u64(length_at, length);
        sealed(out)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`.
    pub fn decode(bytes: &[u8]) -> Result<ParityRecord> {
        let what = "a record of redundancy";
        let mut from = opened(what, MAGIC, bytes)?;
        let record =
            ParityRecord::fields(&mut from, bytes.len()).ok_or_else(|| damaged(what, "its fields"))?;
        match record.fits() {
            true => Ok(record),
            false => Err(damaged(what, "its numbers do not fit each other")),
        }
    }

    fn fields(from: &mut In<'_>, length: usize) -> Option<ParityRecord> {
        if from.u64()? != length as u64 {
            return None;
        }
        let (step, incarnation, slice_bytes) = (from.u64()?, from.u64()?, from.u64()?);
        let commit_bytes = usize::try_from(from.u64()?).ok()?;
        let (code, lost_max, row, position) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let (count, chunk) = (from.u32()?, from.u32()?);
        from.u64()?;
        if chunk as usize != CHUNK_BYTES {
            return None;
        }
        let mut members = Vec::new();
        for _ in 0..count {
            members.push(ParityRecord::member(from)?);
        }
        let commit = from.take(commit_bytes)?.to_vec();
        from.pad()?;
        let numbers = (members.len(), lost_max as usize);
        if numbers.0 == 0
            || numbers.0 > GROUP_NODES_MAX as usize * 2
            || numbers.1 == 0
            || (numbers.0 > 1 && numbers.1 >= numbers.0)
            || slice_bytes % chunk as u64 != 0
        {
            return None;
        }
        let kept = stripes(numbers.0, numbers.1, (position as usize).min(numbers.0.saturating_sub(1))).len();
        let chunks = usize::try_from(slice_bytes / u64::from(chunk)).ok()?.checked_mul(kept)?;
        let mut table = |count: usize| -> Option<Vec<u32>> {
            let bytes = from.take(count.checked_mul(4)?)?;
            Some(bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four"))).collect())
        };
        let parity_crcs = table(chunks)?;
        let source_crcs = table(chunks.checked_mul(data_slots(numbers.0, numbers.1))?)?;
        from.pad()?;
        from.u32()?;
        let id = StepId { incarnation, step };
        (from.left() == 0).then_some(ParityRecord {
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

    fn member(from: &mut In<'_>) -> Option<Member> {
        let manifest_bytes = usize::try_from(from.u64()?).ok()?;
        let data_bytes = from.u64()?;
        let (rank, node_bytes) = (from.u32()?, from.u32()? as usize);
        let node = text(from, node_bytes)?;
        let manifest = from.take(manifest_bytes)?.to_vec();
        from.pad()?;
        Some(Member { node, rank: (rank != NO_RANK).then_some(rank), data_bytes, manifest })
    }

    /// What a checksum cannot say: that the numbers fit each other.
    fn fits(&self) -> bool {
        let members = self.members.len();
        let code = match self.code {
            1 => members == 1 && self.lost_max == 1,
            2 => members >= 2 && self.lost_max == 1,
            3 => members >= 2,
            _ => false,
        };
        let capacity = self.slice_bytes.checked_mul(self.sources() as u64);
        // Pieces are written back to the nodes that are named.
        let nodes = self.members.iter().all(|member| check_node(&member.node).is_ok());
        code && nodes
            && (self.position as usize) < members
            && self.slice_bytes > 0
            && capacity
                .is_some_and(|capacity| self.members.iter().all(|member| member.data_bytes <= capacity))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use forebay_tier::Kind;

    use super::*;

    fn record(code: u32, members: u32, lost_max: u32) -> ParityRecord {
        let member = |n: u32| Member {
            node: format!("{n:05}"),
            rank: (n != 1).then_some(n * 2),
            data_bytes: 70_000 * u64::from(n),
            manifest: vec![n as u8; 11],
        };
        let mut record = ParityRecord {
            id: StepId { incarnation: 3, step: 12 },
            code,
            lost_max,
            row: 1,
            position: members - 1,
            slice_bytes: 6 * CHUNK_BYTES as u64,
            members: (0..members).map(member).collect(),
            commit: vec![9; 57],
            parity_crcs: Vec::new(),
            source_crcs: Vec::new(),
        };
        let chunks = 6 * stripes(members as usize, lost_max as usize, 0).len();
        record.parity_crcs = (0..chunks as u32).collect();
        record.source_crcs = (0..(chunks * record.sources()) as u32).map(|n| n ^ 0xFFFF).collect();
        record
    }

    /// A record with another word in it and a checksum that fits.
    fn changed(record: &[u8], at: usize, value: u32) -> Vec<u8> {
        let mut bytes = record[..record.len() - 4].to_vec();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        sealed(Out(bytes))
    }

    fn fixtures() -> Vec<(&'static str, Vec<u8>, Option<Kind>)> {
        let good = record(3, 6, 2).encode();
        let mut flipped = good.clone();
        flipped[300] ^= 1;
        vec![
            ("good.redundancy", good.clone(), None),
            ("good-partner.redundancy", record(1, 1, 1).encode(), None),
            ("damaged.redundancy", flipped, Some(Kind::Damaged)),
            ("damaged-cut.redundancy", good[..good.len() - 8].to_vec(), Some(Kind::Damaged)),
            ("damaged-position.redundancy", changed(&good, 68, 6), Some(Kind::Damaged)),
            ("unknown-format.redundancy", changed(&good, 8, 2), Some(Kind::UnknownFormat)),
            ("unknown-feature.redundancy", changed(&good, 12, 1 << 30), Some(Kind::UnknownFormat)),
        ]
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/checkpoint/1").join(name)
    }

    /// Writes the fixtures of this format version, once; released ones are never written again.
    #[test]
    #[ignore = "writes fixtures"]
    fn write_redundancy_fixtures() {
        for (name, bytes, _) in fixtures() {
            assert!(!fixture(name).exists(), "{name} is there");
            std::fs::write(fixture(name), bytes).unwrap();
        }
    }

    #[test]
    fn fixtures_are_read_as_ever_and_written_bit_for_bit_the_same() {
        for (name, bytes, kind) in fixtures() {
            let found = std::fs::read(fixture(name)).unwrap();
            assert!(found == bytes, "{name}");
            assert_eq!(ParityRecord::decode(&found).err().map(|e| e.kind()), kind, "{name}");
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        for record in [record(1, 1, 1), record(2, 4, 1), record(3, 6, 2)] {
            let bytes = record.encode();
            assert_eq!(ParityRecord::decode(&bytes).unwrap(), record);
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 0x10;
                let kind = if (8..12).contains(&at) { Kind::UnknownFormat } else { Kind::Damaged };
                assert_eq!(ParityRecord::decode(&bad).unwrap_err().kind(), kind, "byte {at}");
                assert!(ParityRecord::decode(&bytes[..at]).is_err(), "cut at {at}");
            }
        }
    }

    /// A piece is written back to the node that the record names.
    #[test]
    fn a_node_outside_of_the_level_is_damage() {
        for node in ["..", "../other", "/etc", "a/b", ""] {
            let mut record = record(3, 6, 2);
            record.members[2].node = node.into();
            assert_eq!(ParityRecord::decode(&record.encode()).unwrap_err().kind(), Kind::Damaged, "{node}");
        }
    }

    #[test]
    fn wild_numbers_take_no_memory_and_no_panic() {
        let bytes = record(3, 6, 2).encode();
        for at in (16..bytes.len() - 4).step_by(4) {
            for value in [u32::MAX, 1 << 31, 0x7FFF_FFFF, 0, 1] {
                // Whatever comes of it, it comes as a result.
                let _ = ParityRecord::decode(&changed(&bytes, at, value));
            }
        }
    }
}
