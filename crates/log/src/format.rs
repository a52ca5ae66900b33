//! The durable structs of a pool and how to read and write them. No I/O here.
//!
//! The document is docs/src/formats/log.md; `cargo xtask formats` holds it against [`layouts`]. Names end in `Df`
//! (durable format). All numbers are little-endian with explicit widths; structs have no padding. A change of any
//! of them needs a new version number and new fixtures.

use std::mem::{offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use forebay_tier::checksum::{crc32c, crc32c_append};
use forebay_tier::{Error, Kind, Nodes, Result, TierKind};

use crate::dtype::Dtype;

/// Version of the whole pool format; a pool with another one is refused.
pub const FORMAT_VERSION: u32 = 1;
/// "FOREBAYP", the first bytes of a pool.
pub const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"FOREBAYP");
/// "FBIN", the first bytes of the note on an incarnation.
pub const INCARNATION_MAGIC: u32 = u32::from_le_bytes(*b"FBIN");
/// Where the notes on incarnations of even and odd numbers lie: two, so that a torn one leaves the other, in sectors
/// of their own.
pub const INCARNATION_OFFSETS: [u64; 2] = [1024, 2048];
/// "FBLO", the first bytes of the note on whose a lower pool is.
pub const LOWER_MAGIC: u32 = u32::from_le_bytes(*b"FBLO");
/// Where that note lies in the first page of a lower pool.
pub const LOWER_OFFSET: u64 = 1024;
/// "FBSG", the first bytes of a segment.
pub const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"FBSG");
/// "FBRC", the first bytes of a record.
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"FBRC");
/// "CMIT", the low half of a commit word; the high half is the record's header checksum.
pub const COMMIT_MAGIC: u32 = u32::from_le_bytes(*b"CMIT");

/// Bytes kept free for the superblock and for each segment header: a page, so that no lane shares one.
pub const HEADER_BYTES: u64 = 4096;
/// A payload checksum covers this many bytes: small enough to verify a box cheaply, large enough that the
/// checksums stay under 0.01 % of the payload.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Records and payloads begin at multiples of this: a cache line, and enough for any vector type.
pub const RECORD_ALIGN: u64 = 64;
/// On block devices a lane begins a new block after each commit, so that a committed block is never rewritten.
pub const BLOCK_BYTES: u64 = 4096;
/// Most ranks of a group of producers: more than a node can run, few enough to keep a number for each.
pub const GROUP_SIZE_MAX: u32 = 1 << 20;
/// Incarnations are numbers below this: what says who a segment belongs to keeps 24 bits of them.
pub const INCARNATION_END: u32 = 1 << 24;
/// Versions are numbers below this: the words that count them keep 40 bits.
pub const VERSION_END: u64 = 1 << 40;
/// Sequence numbers of segments in their lane are below this.
pub const SEGMENT_SEQUENCE_END: u64 = 1 << 32;
/// Sequence numbers of records in their lane are below this, so that counting on from one never overflows.
pub const RECORD_SEQUENCE_END: u64 = 1 << 56;
/// Longest variable name.
pub const NAME_BYTES_MAX: usize = 1024;
/// Most dimensions of a variable.
pub const DIMS_MAX: usize = 16;
/// Bytes of a host name kept in the superblock.
const HOST_BYTES: usize = 64;
/// Bytes of a run directory's path kept in the superblock.
const RUN_BYTES: usize = 512;

/// First page of a pool: what it is and whose it is.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SuperblockDf {
    /// [`SUPERBLOCK_MAGIC`].
    pub magic: u64,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Features a reader has to know; any unknown bit refuses the pool.
    pub incompatible: u32,
    /// Features a reader may ignore.
    pub compatible: u32,
    /// Tier kind: 1 dram, 2 file, 3 pmem.
    pub tier: u8,
    /// Horizon: 0 none, 1 epoch, 2 write.
    pub horizon: u8,
    /// 1 if payloads carry checksums.
    pub checksum: u8,
    /// Retention: 0 released, 1 last K, 2 forever.
    pub retention: u8,
    /// Identity of this pool.
    pub uuid: [u8; 16],
    /// Boot id of the machine at creation, as 16 bytes.
    pub boot_id: [u8; 16],
    /// Bytes of the pool file.
    pub capacity_bytes: u64,
    /// Bytes of a granule, the unit of allocation.
    pub granule_bytes: u64,
    /// Bytes of an ordinary segment.
    pub segment_bytes: u64,
    /// K of retention "last K".
    pub retention_last: u64,
    /// Creation time, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Host name, UTF-8, zero-padded.
    pub host: [u8; HOST_BYTES],
    /// Directory of the run that made it, UTF-8, zero-padded, or empty.
    pub run: [u8; RUN_BYTES],
    /// Number of the memory node on tier `numa`; on a tier of several nodes bit N for node N; zero on every other.
    pub node: u16,
    /// Zero.
    pub reserved: [u8; 10],
    /// CRC-32C of all bytes before this field.
    pub crc: u32,
}

/// The newest incarnation, in the superblock's page behind the superblock: it counts also while none of its lanes
/// has a segment, and after those of all earlier ones were released.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IncarnationDf {
    /// [`INCARNATION_MAGIC`].
    pub magic: u32,
    /// Its number.
    pub number: u32,
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// Its first version: all versions below were complete.
    pub base_version: u64,
    /// Its ranks.
    pub group_size: u32,
    /// CRC-32C of all bytes before this field.
    pub crc: u32,
}

/// Which files a lower pool and the first pool of its space are, in the superblock's page of the lower pool: a copy of
/// either has another inode.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LowerDf {
    /// [`LOWER_MAGIC`].
    pub magic: u32,
    /// Zero.
    pub reserved: u32,
    /// The space's identity.
    pub uuid: [u8; 16],
    /// Inode of the first pool's file.
    pub first_inode: u64,
    /// Inode of this file.
    pub own_inode: u64,
    /// Zero.
    pub reserved2: u32,
    /// CRC-32C of all bytes before this field.
    pub crc: u32,
}

/// First bytes of a segment: which part of which lane it is.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentDf {
    /// [`SEGMENT_MAGIC`].
    pub magic: u32,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// The pool's identity, so that a stale segment of another pool is not taken for one of this.
    pub uuid: [u8; 16],
    /// Where in the pool this segment lies.
    pub offset_bytes: u64,
    /// Its length, a multiple of the granule.
    pub length_bytes: u64,
    /// Place of the segment in its lane, from 0.
    pub sequence: u64,
    /// Least sequence number of its first record.
    pub first_record: u64,
    /// First version of the incarnation.
    pub base_version: u64,
    /// The lane's rank.
    pub rank: u32,
    /// The lane's incarnation.
    pub incarnation: u32,
    /// Ranks in the incarnation.
    pub group_size: u32,
    /// CRC-32C of all bytes before this field.
    pub crc: u32,
}

/// Fixed part of a record; dimensions, name and checksums follow, then the payload at the next multiple of 64.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RecordDf {
    /// [`RECORD_MAGIC`].
    pub magic: u32,
    /// CRC-32C of the bytes from `sequence` to the end of the meta part.
    pub header_crc: u32,
    /// Commit records: [`commit_word`] once committed; 0 else.
    pub commit: u64,
    /// Place in the lane; rises from record to record, gaps are allowed.
    pub sequence: u64,
    /// The version.
    pub version: u64,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Bytes from the start of the record to the end of the checksums.
    pub meta_bytes: u32,
    /// The lane's rank.
    pub rank: u32,
    /// The lane's incarnation.
    pub incarnation: u32,
    /// Number of payload checksums: one per started 64 KiB, or 0 where payloads are not checked.
    pub crc_count: u32,
    /// Bytes of the name.
    pub name_bytes: u16,
    /// 1 piece, 2 commit, 3 void (space that is skipped), 4 end of the lane.
    pub kind: u8,
    /// Element type (docs/src/formats/log.md has the numbers).
    pub dtype: u8,
    /// Number of dimensions.
    pub dims: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// What a commit record holds after its fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommitDf {
    /// Sequence number from which on the lane's records belong to this version.
    pub first_record: u64,
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
}

const _: () = assert!(size_of::<SuperblockDf>() == 688 && size_of::<SuperblockDf>() <= HEADER_BYTES as usize);
const _: () = assert!(size_of::<IncarnationDf>() == 40 && size_of::<SuperblockDf>() <= 1024);
const _: () = assert!(size_of::<LowerDf>() == 48);
const _: () = assert!(size_of::<SegmentDf>() == 80);
const _: () = assert!(size_of::<RecordDf>() == 64 && offset_of!(RecordDf, commit) == 8);
const _: () = assert!(size_of::<CommitDf>() == 24);

/// Offset of the aligned word in a segment's header that holds its checksum.
pub const SEGMENT_CRC_WORD: u64 = offset_of!(SegmentDf, crc) as u64 / 8 * 8;
/// Offset of the commit word in a record.
pub const COMMIT_OFFSET: u64 = offset_of!(RecordDf, commit) as u64;
/// Bytes of a record's fixed part.
pub const RECORD_BYTES: usize = size_of::<RecordDf>();

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A piece of a variable.
    Piece = 1,
    /// The end of a version in this lane.
    Commit = 2,
    /// Reserved space that was given up; skipped.
    Void = 3,
    /// The clean end of the lane; laid out and committed like a commit record.
    End = 4,
}

/// The word that commits a record with this header checksum. It differs for every record, so that what an earlier
/// life of the same bytes left behind cannot pass for it.
pub fn commit_word(header_crc: u32) -> u64 {
    u64::from(header_crc) << 32 | u64::from(COMMIT_MAGIC)
}

/// Rounds up to a multiple of `to`, a power of two.
pub fn round_up(value: u64, to: u64) -> u64 {
    debug_assert!(to.is_power_of_two());
    value.next_multiple_of(to)
}

/// Number of payload checksums for that many bytes.
pub fn crc_count(payload_bytes: u64) -> usize {
    payload_bytes.div_ceil(CHUNK_BYTES as u64) as usize
}

/// Bytes of the meta part of a piece.
pub fn piece_meta_bytes(dims: usize, name_bytes: usize, crcs: usize) -> usize {
    // Checksums are words of four bytes, so the name is padded to that.
    RECORD_BYTES + dims * 24 + name_bytes.next_multiple_of(4) + crcs * 4
}

/// Bytes a piece takes in its segment: meta part and payload, each padded to a cache line.
pub fn piece_bytes(dims: usize, name_bytes: usize, payload_bytes: u64, checksum: bool) -> u64 {
    let crcs = if checksum { crc_count(payload_bytes) } else { 0 };
    round_up(piece_meta_bytes(dims, name_bytes, crcs) as u64, RECORD_ALIGN)
        + round_up(payload_bytes, RECORD_ALIGN)
}

/// Bytes a commit record takes.
pub const COMMIT_RECORD_BYTES: u64 = (RECORD_BYTES + size_of::<CommitDf>()).next_multiple_of(64) as u64;

/// Feature bits of a pool, in the word `incompatible`.
const FEATURE_FIRST: u32 = 1;
const FEATURE_LOWER: u32 = 2;

/// A pool's part in its space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolPart {
    /// The space has no other pool.
    #[default]
    Only,
    /// Lanes are written here; segments may move to lower pools.
    First,
    /// Holds segments that were moved down.
    Lower,
}

/// Everything a superblock says, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Its part in the space.
    pub part: PoolPart,
    /// Tier kind.
    pub tier: TierKind,
    /// Horizon.
    pub horizon: forebay_tier::Horizon,
    /// Whether payloads carry checksums.
    pub checksum: bool,
    /// Retention: 0 released, 1 last K, 2 forever; with K.
    pub retention: (u8, u64),
    /// Identity.
    pub uuid: [u8; 16],
    /// Boot id at creation.
    pub boot_id: [u8; 16],
    /// Bytes of the pool file.
    pub capacity_bytes: u64,
    /// Bytes of a granule.
    pub granule_bytes: u64,
    /// Bytes of an ordinary segment.
    pub segment_bytes: u64,
    /// Creation time.
    pub created_unix_ns: u64,
    /// Host name.
    pub host: String,
    /// Run directory or empty.
    pub run: String,
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out[..end].copy_from_slice(&text.as_bytes()[..end]);
    out
}

fn unpadded(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok().map(str::to_string)
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Damaged, what.to_string())
}

/// A tier as the superblock writes it: its byte, and the number of the memory node, the bits of several, or 0.
fn tier_bytes(tier: TierKind) -> (u8, u16) {
    match tier {
        TierKind::Dram => (1, 0),
        TierKind::File => (2, 0),
        TierKind::Pmem => (3, 0),
        TierKind::Direct => (4, 0),
        TierKind::DevDax => (5, 0),
        TierKind::Numa(node) => (6, node),
        TierKind::Interleaved(nodes) => (7, nodes.bits()),
        // Never written: no pool lies there.
        TierKind::Object => (0, 0),
    }
}

/// The tier that these bytes say; a node number beside a tier without nodes is none, nor is a set of one node.
fn tier_of(tier: u8, node: u16) -> Option<TierKind> {
    let kinds = [
        TierKind::Dram,
        TierKind::File,
        TierKind::Pmem,
        TierKind::Direct,
        TierKind::DevDax,
        TierKind::Numa(node),
    ];
    let several = Nodes::from_bits(node).map(TierKind::Interleaved);
    kinds.into_iter().chain(several).find(|kind| tier_bytes(*kind) == (tier, node))
}

impl Superblock {
    /// As a page of bytes, checksummed.
    pub fn encode(&self) -> Vec<u8> {
        use forebay_tier::Horizon;
        let (tier, node) = tier_bytes(self.tier);
        let mut df = SuperblockDf {
            magic: SUPERBLOCK_MAGIC,
            version: FORMAT_VERSION,
            incompatible: match self.part {
                PoolPart::Only => 0,
                PoolPart::First => FEATURE_FIRST,
                PoolPart::Lower => FEATURE_LOWER,
            },
            compatible: 0,
            tier,
            horizon: match self.horizon {
                Horizon::None => 0,
                Horizon::Epoch => 1,
                Horizon::Write => 2,
            },
            checksum: u8::from(self.checksum),
            retention: self.retention.0,
            uuid: self.uuid,
            boot_id: self.boot_id,
            capacity_bytes: self.capacity_bytes,
            granule_bytes: self.granule_bytes,
            segment_bytes: self.segment_bytes,
            retention_last: self.retention.1,
            created_unix_ns: self.created_unix_ns,
            host: padded(&self.host),
            run: padded(&self.run),
            node,
            reserved: [0; 10],
            crc: 0,
        };
        df.crc = crc32c(&bytemuck::bytes_of(&df)[..offset_of!(SuperblockDf, crc)]);
        let mut page = vec![0; HEADER_BYTES as usize];
        page[..size_of::<SuperblockDf>()].copy_from_slice(bytemuck::bytes_of(&df));
        page
    }

    /// Reads the first page of a pool. Errors: [`Kind::Damaged`], [`Kind::UnknownFormat`].
    pub fn decode(page: &[u8]) -> Result<Superblock> {
        use forebay_tier::Horizon;
        if page.len() < size_of::<SuperblockDf>() {
            return Err(damaged("the pool is shorter than its superblock"));
        }
        let df: SuperblockDf = bytemuck::pod_read_unaligned(&page[..size_of::<SuperblockDf>()]);
        if df.magic != SUPERBLOCK_MAGIC {
            return Err(damaged("this is no Forebay pool: the first eight bytes are not FOREBAYP"));
        }
        let part = match df.incompatible {
            0 => Some(PoolPart::Only),
            FEATURE_FIRST => Some(PoolPart::First),
            FEATURE_LOWER => Some(PoolPart::Lower),
            _ => None,
        };
        let (FORMAT_VERSION, Some(part)) = (df.version, part) else {
            return Err(Error::new(Kind::UnknownFormat, "unknown format of the pool")
                .with("format", df.version)
                .with("known", FORMAT_VERSION)
                .with("features", format!("{:#x}", df.incompatible))
                .hint("open it with the release of Forebay that wrote it, or a newer one"));
        };
        if df.crc != crc32c(&bytemuck::bytes_of(&df)[..offset_of!(SuperblockDf, crc)]) {
            return Err(damaged("the pool's superblock does not match its checksum"));
        }
        let granules_ok = df.granule_bytes.is_power_of_two()
            && df.granule_bytes >= HEADER_BYTES
            && df.segment_bytes >= df.granule_bytes
            && df.segment_bytes % df.granule_bytes == 0
            && df.capacity_bytes % df.granule_bytes == 0
            && df.capacity_bytes >= 2 * df.granule_bytes;
        let tier = tier_of(df.tier, df.node);
        let horizon = [Horizon::None, Horizon::Epoch, Horizon::Write].get(usize::from(df.horizon)).copied();
        let (Some(tier), Some(horizon), true, true) = (tier, horizon, granules_ok, df.retention <= 2) else {
            return Err(damaged("the pool's superblock holds values out of range"));
        };
        let (Some(host), Some(run)) = (unpadded(&df.host), unpadded(&df.run)) else {
            return Err(damaged("the pool's superblock holds names that are no text"));
        };
        Ok(Superblock {
            part,
            tier,
            horizon,
            checksum: df.checksum != 0,
            retention: (df.retention, df.retention_last),
            uuid: df.uuid,
            boot_id: df.boot_id,
            capacity_bytes: df.capacity_bytes,
            granule_bytes: df.granule_bytes,
            segment_bytes: df.segment_bytes,
            created_unix_ns: df.created_unix_ns,
            host,
            run,
        })
    }
}

impl IncarnationDf {
    /// Fills in magic and checksum.
    pub fn sealed(mut self) -> IncarnationDf {
        self.magic = INCARNATION_MAGIC;
        self.crc = crc32c(&bytemuck::bytes_of(&self)[..offset_of!(IncarnationDf, crc)]);
        self
    }

    /// The note in `bytes`, or None if there is none of the pool with this uuid.
    pub fn decode(bytes: &[u8], uuid: &[u8; 16]) -> Option<IncarnationDf> {
        let df: IncarnationDf = bytemuck::pod_read_unaligned(bytes.get(..size_of::<IncarnationDf>())?);
        let valid = df.magic == INCARNATION_MAGIC
            && df.uuid == *uuid
            && df.number < INCARNATION_END
            && df.group_size <= GROUP_SIZE_MAX
            && df.base_version < VERSION_END
            && df.crc == crc32c(&bytemuck::bytes_of(&df)[..offset_of!(IncarnationDf, crc)]);
        valid.then_some(df)
    }
}

impl LowerDf {
    /// Fills in magic and checksum.
    pub fn sealed(mut self) -> LowerDf {
        self.magic = LOWER_MAGIC;
        self.crc = crc32c(&bytemuck::bytes_of(&self)[..offset_of!(LowerDf, crc)]);
        self
    }

    /// The note in the first page of a lower pool, or None if there is none for the space with this uuid.
    pub fn decode(page: &[u8], uuid: &[u8; 16]) -> Option<LowerDf> {
        let at = LOWER_OFFSET as usize;
        let df: LowerDf = bytemuck::pod_read_unaligned(page.get(at..at + size_of::<LowerDf>())?);
        let valid = df.magic == LOWER_MAGIC
            && df.uuid == *uuid
            && df.crc == crc32c(&bytemuck::bytes_of(&df)[..offset_of!(LowerDf, crc)]);
        valid.then_some(df)
    }
}

impl SegmentDf {
    /// Fills in magic, version and checksum.
    pub fn sealed(mut self) -> SegmentDf {
        self.magic = SEGMENT_MAGIC;
        self.version = FORMAT_VERSION;
        self.crc = crc32c(&bytemuck::bytes_of(&self)[..offset_of!(SegmentDf, crc)]);
        self
    }

    /// The header at `offset` of the pool with this uuid, or None if there is none (free or never used space).
    pub fn decode(bytes: &[u8], uuid: &[u8; 16], offset: u64) -> Option<SegmentDf> {
        let df: SegmentDf = bytemuck::pod_read_unaligned(bytes.get(..size_of::<SegmentDf>())?);
        let valid = df.magic == SEGMENT_MAGIC
            && df.version == FORMAT_VERSION
            && df.uuid == *uuid
            && df.offset_bytes == offset
            && df.group_size <= GROUP_SIZE_MAX
            && df.rank < df.group_size
            && df.incarnation < INCARNATION_END
            && df.base_version < VERSION_END
            && df.sequence < SEGMENT_SEQUENCE_END
            && df.first_record < RECORD_SEQUENCE_END
            && df.crc == crc32c(&bytemuck::bytes_of(&df)[..offset_of!(SegmentDf, crc)]);
        valid.then_some(df)
    }
}

/// What a piece's header says besides its place in the lane.
pub struct PieceHeader<'a> {
    /// Variable name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Global shape.
    pub shape: &'a [u64],
    /// First element of the box.
    pub start: &'a [u64],
    /// Extents of the box.
    pub count: &'a [u64],
}

/// A record's place in its lane.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Sequence number.
    pub sequence: u64,
    /// Version.
    pub version: u64,
    /// Rank.
    pub rank: u32,
    /// Incarnation.
    pub incarnation: u32,
}

/// Writes the meta part of a piece (or of a void of the same size) to `out`, cleared first, padded to
/// [`RECORD_ALIGN`].
pub fn encode_piece(
    out: &mut Vec<u8>,
    place: Place,
    kind: RecordKind,
    piece: &PieceHeader<'_>,
    payload_bytes: u64,
    crcs: &[u32],
) {
    let dims = piece.shape.len();
    assert!(dims <= DIMS_MAX && piece.start.len() == dims && piece.count.len() == dims);
    assert!(!piece.name.is_empty() && piece.name.len() <= NAME_BYTES_MAX);
    let meta_bytes = piece_meta_bytes(dims, piece.name.len(), crcs.len());
    let mut df = RecordDf {
        magic: RECORD_MAGIC,
        header_crc: 0,
        commit: 0,
        sequence: place.sequence,
        version: place.version,
        payload_bytes,
        meta_bytes: meta_bytes as u32,
        rank: place.rank,
        incarnation: place.incarnation,
        crc_count: crcs.len() as u32,
        name_bytes: piece.name.len() as u16,
        kind: kind as u8,
        dtype: piece.dtype as u8,
        dims: dims as u8,
        reserved: [0; 3],
    };
    out.clear();
    out.extend_from_slice(bytemuck::bytes_of(&df));
    out.extend_from_slice(bytemuck::cast_slice(piece.shape));
    out.extend_from_slice(bytemuck::cast_slice(piece.start));
    out.extend_from_slice(bytemuck::cast_slice(piece.count));
    out.extend_from_slice(piece.name.as_bytes());
    out.resize(meta_bytes - crcs.len() * 4, 0);
    out.extend_from_slice(bytemuck::cast_slice(crcs));
    seal_header(out, &mut df);
    out.resize(out.len().next_multiple_of(RECORD_ALIGN as usize), 0);
}

/// Writes a commit or end record to `out`, cleared first, padded, its commit word still 0. Returns the commit word.
pub fn encode_commit(out: &mut Vec<u8>, place: Place, kind: RecordKind, commit: &CommitDf) -> u64 {
    assert!(kind == RecordKind::Commit || kind == RecordKind::End);
    let mut df = RecordDf {
        magic: RECORD_MAGIC,
        sequence: place.sequence,
        version: place.version,
        meta_bytes: (RECORD_BYTES + size_of::<CommitDf>()) as u32,
        rank: place.rank,
        incarnation: place.incarnation,
        kind: kind as u8,
        dtype: Dtype::U8 as u8,
        ..Zeroable::zeroed()
    };
    out.clear();
    out.extend_from_slice(bytemuck::bytes_of(&df));
    out.extend_from_slice(bytemuck::bytes_of(commit));
    seal_header(out, &mut df);
    out.resize(COMMIT_RECORD_BYTES as usize, 0);
    commit_word(df.header_crc)
}

/// The checksummed part of a header begins behind magic, checksum and commit word.
const CRC_FROM: usize = offset_of!(RecordDf, sequence);

fn seal_header(out: &mut [u8], df: &mut RecordDf) {
    df.header_crc = crc32c(&out[CRC_FROM..]);
    out[4..8].copy_from_slice(&df.header_crc.to_le_bytes());
}

/// A record's header in place: checked, borrowed from the pool.
#[derive(Clone, Copy)]
pub struct RecordHeader<'a> {
    df: RecordDf,
    meta: &'a [u8],
}

impl<'a> RecordHeader<'a> {
    /// Reads the header at the start of `bytes`, which reaches to the end of the segment. None if there is no
    /// valid header: free space, an older life of the bytes, or damage; which of these it is only the caller knows.
    pub fn decode(bytes: &'a [u8]) -> Option<RecordHeader<'a>> {
        let df: RecordDf = bytemuck::pod_read_unaligned(bytes.get(..RECORD_BYTES)?);
        if df.magic != RECORD_MAGIC {
            return None;
        }
        let meta = bytes.get(..df.meta_bytes as usize)?;
        let header = RecordHeader { df, meta };
        // Consistent first: then the header is short, and a search through hostile bytes sums no long ones.
        let valid = header.is_consistent(bytes.len() as u64) && crc32c(&meta[CRC_FROM..]) == df.header_crc;
        valid.then_some(header)
    }

    /// The header of a record that [`RecordHeader::decode`] accepted before; its checksum is not computed again.
    /// None if it can no longer be a header.
    #[inline]
    pub fn reread(bytes: &'a [u8]) -> Option<RecordHeader<'a>> {
        let df: RecordDf = bytemuck::pod_read_unaligned(bytes.get(..RECORD_BYTES)?);
        let meta = bytes.get(..df.meta_bytes as usize)?;
        let header = RecordHeader { df, meta };
        let expected =
            piece_meta_bytes(usize::from(df.dims), usize::from(df.name_bytes), df.crc_count as usize);
        let available = (bytes.len() as u64).checked_sub(round_up(u64::from(df.meta_bytes), RECORD_ALIGN));
        (df.magic == RECORD_MAGIC
            && df.kind == RecordKind::Piece as u8
            && meta.len() == expected
            && available.is_some_and(|available| df.payload_bytes <= available)
            && (df.crc_count == 0 || df.crc_count as usize == crc_count(df.payload_bytes))
            && Dtype::from_code(df.dtype).is_some())
        .then_some(header)
    }

    /// A correct checksum says that the bytes are what was written; this says that what was written makes sense. Asked
    /// before the checksum is: no byte of the header is believed but the lengths that it has compared.
    fn is_consistent(&self, available: u64) -> bool {
        let df = &self.df;
        let Some(total) = round_up(u64::from(df.meta_bytes), RECORD_ALIGN).checked_add(df.payload_bytes)
        else {
            return false;
        };
        let expected = match df.kind {
            k if k == RecordKind::Commit as u8 || k == RecordKind::End as u8 => {
                RECORD_BYTES + size_of::<CommitDf>()
            }
            k if k == RecordKind::Piece as u8 || k == RecordKind::Void as u8 => {
                piece_meta_bytes(usize::from(df.dims), usize::from(df.name_bytes), df.crc_count as usize)
            }
            _ => return false,
        };
        let Some(dtype) = Dtype::from_code(df.dtype) else { return false };
        total <= available
            && df.version < VERSION_END
            && df.sequence < RECORD_SEQUENCE_END
            && expected == df.meta_bytes as usize
            && usize::from(df.dims) <= DIMS_MAX
            && if self.is_end_of_version() { self.is_bare() } else { self.is_box_of_payload(dtype) }
            && (df.crc_count == 0 || df.crc_count as usize == crc_count(df.payload_bytes))
            && std::str::from_utf8(self.name_bytes()).is_ok()
    }

    /// Whether it has nothing of what only pieces have.
    fn is_bare(&self) -> bool {
        let df = &self.df;
        (df.payload_bytes, df.crc_count, df.name_bytes, df.dims) == (0, 0, 0, 0)
    }

    /// Whether the box lies inside the shape and its elements are just the payload: readers count on both.
    fn is_box_of_payload(&self, dtype: Dtype) -> bool {
        let elements = self.count().try_fold(1u64, |product, count| product.checked_mul(count));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size() as u64));
        let ends = self.start().zip(self.count()).map(|(start, count)| start.checked_add(count));
        bytes == Some(self.df.payload_bytes)
            && self.shape().zip(ends).all(|(extent, end)| end.is_some_and(|end| end <= extent))
    }

    /// Its place in the lane.
    pub fn place(&self) -> Place {
        Place {
            sequence: self.df.sequence,
            version: self.df.version,
            rank: self.df.rank,
            incarnation: self.df.incarnation,
        }
    }

    /// What it is.
    pub fn kind(&self) -> RecordKind {
        match self.df.kind {
            1 => RecordKind::Piece,
            2 => RecordKind::Commit,
            4 => RecordKind::End,
            _ => RecordKind::Void,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        Dtype::from_code(self.df.dtype).expect("checked by decode")
    }

    /// Number of dimensions.
    pub fn dims(&self) -> usize {
        usize::from(self.df.dims)
    }

    fn dims_at(&self, which: usize) -> impl Iterator<Item = u64> + 'a {
        let n = self.dims();
        let from = RECORD_BYTES + which * n * 8;
        self.meta[from..from + n * 8]
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")))
    }

    /// Global shape.
    pub fn shape(&self) -> impl Iterator<Item = u64> + 'a {
        self.dims_at(0)
    }

    /// First element of the box.
    pub fn start(&self) -> impl Iterator<Item = u64> + 'a {
        self.dims_at(1)
    }

    /// Extents of the box.
    pub fn count(&self) -> impl Iterator<Item = u64> + 'a {
        self.dims_at(2)
    }

    /// Name as bytes, which are UTF-8.
    pub fn name_bytes(&self) -> &'a [u8] {
        if self.is_end_of_version() {
            return &[];
        }
        let from = RECORD_BYTES + self.dims() * 24;
        &self.meta[from..from + usize::from(self.df.name_bytes)]
    }

    /// Name.
    pub fn name(&self) -> &'a str {
        // Checked by `decode`; what was changed since is no name of a variable.
        std::str::from_utf8(self.name_bytes()).unwrap_or("\u{fffd}")
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.df.payload_bytes
    }

    /// Where the payload begins, from the start of the record.
    pub fn payload_offset(&self) -> u64 {
        round_up(u64::from(self.df.meta_bytes), RECORD_ALIGN)
    }

    /// Bytes to the next record.
    pub fn total_bytes(&self) -> u64 {
        self.payload_offset() + round_up(self.df.payload_bytes, RECORD_ALIGN)
    }

    /// Whether the payload carries checksums.
    pub fn is_checked(&self) -> bool {
        self.df.crc_count > 0
    }

    /// Checksum of chunk `i`.
    pub fn crc(&self, i: usize) -> u32 {
        let from = self.meta.len() - (self.df.crc_count as usize - i) * 4;
        u32::from_le_bytes(self.meta[from..from + 4].try_into().expect("four bytes"))
    }

    fn is_end_of_version(&self) -> bool {
        matches!(self.kind(), RecordKind::Commit | RecordKind::End)
    }

    /// What a commit or end record says; None for another kind.
    pub fn commit(&self) -> Option<CommitDf> {
        self.is_end_of_version().then(|| bytemuck::pod_read_unaligned(&self.meta[RECORD_BYTES..]))
    }

    /// Whether the commit word is the one that belongs to this header.
    pub fn is_committed(&self) -> bool {
        self.df.commit == commit_word(self.df.header_crc)
    }
}

/// CRC-32C over several parts; for documents and fixtures.
pub fn crc_of(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |crc, part| crc32c_append(crc, part))
}

/// One durable struct as the code lays it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Fields: name, offset, bytes.
    pub fields: Vec<(&'static str, usize, usize)>,
}

macro_rules! layout {
    ($name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$((stringify!($field), offset_of!($name, $field), size_of::<$ty>()),)*],
        }
    };
}

/// Every durable struct of a pool, for `cargo xtask formats`.
pub fn layouts() -> Vec<Layout> {
    let mut all = first_page_layouts();
    all.extend(lane_layouts());
    all.iter().for_each(assert_no_gaps);
    all
}

/// What the first page of a pool holds.
fn first_page_layouts() -> Vec<Layout> {
    vec![
        layout!(SuperblockDf {
            magic: u64,
            version: u32,
            incompatible: u32,
            compatible: u32,
            tier: u8,
            horizon: u8,
            checksum: u8,
            retention: u8,
            uuid: [u8; 16],
            boot_id: [u8; 16],
            capacity_bytes: u64,
            granule_bytes: u64,
            segment_bytes: u64,
            retention_last: u64,
            created_unix_ns: u64,
            host: [u8; HOST_BYTES],
            run: [u8; RUN_BYTES],
            node: u16,
            reserved: [u8; 10],
            crc: u32,
        }),
        layout!(IncarnationDf {
            magic: u32,
            number: u32,
            uuid: [u8; 16],
            base_version: u64,
            group_size: u32,
            crc: u32,
        }),
        layout!(LowerDf {
            magic: u32,
            reserved: u32,
            uuid: [u8; 16],
            first_inode: u64,
            own_inode: u64,
            reserved2: u32,
            crc: u32,
        }),
    ]
}

/// What segments hold.
fn lane_layouts() -> Vec<Layout> {
    vec![
        layout!(SegmentDf {
            magic: u32,
            version: u32,
            uuid: [u8; 16],
            offset_bytes: u64,
            length_bytes: u64,
            sequence: u64,
            first_record: u64,
            base_version: u64,
            rank: u32,
            incarnation: u32,
            group_size: u32,
            crc: u32,
        }),
        layout!(RecordDf {
            magic: u32,
            header_crc: u32,
            commit: u64,
            sequence: u64,
            version: u64,
            payload_bytes: u64,
            meta_bytes: u32,
            rank: u32,
            incarnation: u32,
            crc_count: u32,
            name_bytes: u16,
            kind: u8,
            dtype: u8,
            dims: u8,
            reserved: [u8; 3],
        }),
        layout!(CommitDf { first_record: u64, pieces: u64, payload_bytes: u64 }),
    ]
}

/// Fields follow each other without a gap: nothing undefined is ever written.
fn assert_no_gaps(layout: &Layout) {
    let mut at = 0;
    for (field, offset, bytes) in &layout.fields {
        assert_eq!(at, *offset, "{}.{field}", layout.name);
        at += bytes;
    }
    assert_eq!(at, layout.size, "{}", layout.name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        Superblock {
            part: PoolPart::First,
            tier: TierKind::File,
            horizon: forebay_tier::Horizon::Epoch,
            checksum: true,
            retention: (1, 3),
            uuid: [7; 16],
            boot_id: [9; 16],
            capacity_bytes: 64 << 20,
            granule_bytes: 256 << 10,
            segment_bytes: 1 << 20,
            created_unix_ns: 12345,
            host: "node-7".into(),
            run: String::new(),
        }
    }

    #[test]
    fn superblock_round_trips_and_any_flipped_byte_is_found() {
        let page = superblock().encode();
        assert_eq!(Superblock::decode(&page).unwrap(), superblock());
        for at in 0..size_of::<SuperblockDf>() {
            let mut bad = page.clone();
            bad[at] ^= 1;
            let kind = Superblock::decode(&bad).unwrap_err().kind();
            // The lowest bit of byte 12 is a known feature: only the checksum tells.
            let version_field = (8..16).contains(&at) && at != 12;
            assert_eq!(kind, if version_field { Kind::UnknownFormat } else { Kind::Damaged }, "byte {at}");
        }
        assert_eq!(Superblock::decode(&page[..100]).unwrap_err().kind(), Kind::Damaged);
    }

    #[test]
    fn every_tier_is_read_back_and_a_node_belongs_to_numa_only() {
        use TierKind::{DevDax, Direct, Dram, File, Interleaved, Numa, Pmem};
        let several = [0b11, 0b110, 1 << 15 | 1].map(|bits| Interleaved(Nodes::from_bits(bits).unwrap()));
        let others = [Dram, File, Pmem, Direct, DevDax, Numa(0), Numa(1), Numa(513)];
        for tier in others.into_iter().chain(several) {
            let page = Superblock { tier, ..superblock() }.encode();
            assert_eq!(Superblock::decode(&page).unwrap().tier, tier);
        }
        assert_eq!(tier_of(2, 0), Some(File));
        assert_eq!((tier_of(2, 1), tier_of(0, 0), tier_of(7, 0)), (None, None, None));
        assert_eq!((tier_of(7, 4), tier_of(8, 0)), (None, None));
    }

    #[test]
    fn layouts_have_no_gaps() {
        assert_eq!(layouts().len(), 6);
    }

    proptest! {
        #[test]
        fn pieces_round_trip(
            name in "[a-zA-Zäé0-9/._-]{1,80}",
            dims in prop::collection::vec((0u64..1000, 0u64..1000), 0..DIMS_MAX),
            elements in 0u64..75_000,
            checked: bool,
            sequence in 0..RECORD_SEQUENCE_END,
            version in 0..VERSION_END,
        ) {
            // The last dimension has all elements.
            let start: Vec<u64> = dims.iter().map(|d| d.0).chain([7]).collect();
            let count: Vec<u64> = dims.iter().map(|_| 1).chain([elements]).collect();
            let ends = start.iter().zip(&count).map(|(start, count)| start + count);
            let shape: Vec<u64> = ends.zip(dims.iter().map(|d| d.1).chain([0])).map(|(end, more)| end + more).collect();
            let dims = shape.len();
            let payload = 4 * elements;
            let crcs: Vec<u32> = if checked { (0..crc_count(payload) as u32).collect() } else { vec![] };
            let place = Place { sequence, version, rank: 3, incarnation: 2 };
            let piece = PieceHeader { name: &name, dtype: Dtype::F32, shape: &shape, start: &start, count: &count };
            let mut out = Vec::new();
            encode_piece(&mut out, place, RecordKind::Piece, &piece, payload, &crcs);
            let meta = out.len();
            prop_assert_eq!(
                piece_bytes(dims, name.len(), payload, checked),
                meta as u64 + round_up(payload, RECORD_ALIGN)
            );
            out.resize(meta + payload as usize, 0);
            let h = RecordHeader::decode(&out).expect("valid");
            prop_assert_eq!(h.name(), name.as_str());
            prop_assert_eq!(h.shape().collect::<Vec<_>>(), shape);
            prop_assert_eq!(h.start().collect::<Vec<_>>(), start);
            prop_assert_eq!(h.count().collect::<Vec<_>>(), count);
            prop_assert_eq!(h.place().sequence, sequence);
            prop_assert_eq!(h.payload_offset(), meta as u64);
            for (i, crc) in crcs.iter().enumerate() {
                prop_assert_eq!(h.crc(i), *crc);
            }
            // One flipped bit anywhere in the meta part makes the record invalid.
            let at = (sequence as usize) % (h.meta.len());
            let in_commit_word = (8..16).contains(&at);
            out[at] ^= 0x10;
            prop_assert_eq!(RecordHeader::decode(&out).is_none(), !in_commit_word);
        }
    }

    #[test]
    fn a_box_that_is_not_the_payload_is_no_header() {
        let accepted = |dtype, shape: &[u64], start: &[u64], count: &[u64], payload: u64| {
            let place = Place { sequence: 5, version: 1, rank: 0, incarnation: 1 };
            let piece = PieceHeader { name: "x", dtype, shape, start, count };
            let mut out = Vec::new();
            encode_piece(&mut out, place, RecordKind::Piece, &piece, payload, &[]);
            out.resize(out.len() + 4096, 0);
            RecordHeader::decode(&out).is_some()
        };
        assert!(accepted(Dtype::F64, &[4, 9], &[1, 3], &[3, 6], 144));
        assert!(accepted(Dtype::F64, &[], &[], &[], 8), "a scalar is one element");
        assert!(accepted(Dtype::U8, &[9], &[9], &[0], 0), "an empty box at the end");
        assert!(!accepted(Dtype::F64, &[4, 9], &[1, 3], &[3, 6], 136), "an element more than the payload");
        assert!(!accepted(Dtype::F64, &[4, 9], &[1, 3], &[3, 6], 152));
        assert!(!accepted(Dtype::F32, &[4, 9], &[1, 3], &[3, 6], 144));
        assert!(!accepted(Dtype::F64, &[4, 9], &[2, 3], &[3, 6], 144), "behind the end of the variable");
        assert!(!accepted(Dtype::U8, &[u64::MAX; 2], &[0; 2], &[1 << 32; 2], 0), "the product wraps to 0");
        assert!(!accepted(Dtype::U8, &[u64::MAX], &[u64::MAX], &[2], 2), "the sum wraps to 1");
    }

    #[test]
    fn a_commit_counts_only_with_its_own_word() {
        let mut out = Vec::new();
        let place = Place { sequence: 5, version: 1, rank: 0, incarnation: 1 };
        let commit = CommitDf { first_record: 2, pieces: 3, payload_bytes: 4 };
        let word = encode_commit(&mut out, place, RecordKind::Commit, &commit);
        let header = RecordHeader::decode(&out).expect("valid");
        assert_eq!(header.commit(), Some(commit));
        assert!(!header.is_committed());
        out[8..16].copy_from_slice(&word.to_le_bytes());
        assert!(RecordHeader::decode(&out).expect("valid").is_committed());
        let other =
            encode_commit(&mut Vec::new(), Place { sequence: 6, ..place }, RecordKind::Commit, &commit);
        out[8..16].copy_from_slice(&other.to_le_bytes());
        assert!(!RecordHeader::decode(&out).expect("valid").is_committed());
    }
}
