//! A small pool with everything in it that the format knows, always the same bytes: the golden fixture.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_log::format::{PoolPart, Superblock, HEADER_BYTES};
use forebay_log::{Dtype, Lane, LaneOwner, Piece, SegmentSource, TakenBack, CONCAT};
use forebay_tier::{Device, Horizon, Result, TierKind};

/// Gives segments one behind the other.
pub struct Bump {
    pub next: u64,
    pub bytes: u64,
}

impl SegmentSource for Bump {
    fn segment(&mut self, bytes_min: u64, _version: u64, _sequence: u64) -> Result<Range<u64>> {
        let bytes = bytes_min.max(self.bytes).next_multiple_of(HEADER_BYTES);
        let range = self.next..self.next + bytes;
        self.next = range.end;
        Ok(range)
    }

    fn note_version(&mut self, _offset: u64, _version: u64) {}

    fn release(&mut self, range: Range<u64>) {
        assert_eq!(range.end, self.next, "only the last segment comes back");
        self.next = range.start;
    }

    fn take_back(&mut self, _: u64, _: Option<&std::ops::Range<u64>>) -> TakenBack {
        TakenBack::Stays
    }
}

pub const GRANULE: u64 = 4096;

pub fn superblock(tier: TierKind, horizon: Horizon, capacity_bytes: u64) -> Superblock {
    Superblock {
        part: PoolPart::Only,
        tier,
        horizon,
        checksum: true,
        retention: (0, 0),
        uuid: *b"forebay-fixture!",
        boot_id: [1; 16],
        capacity_bytes,
        granule_bytes: GRANULE,
        segment_bytes: 4 * GRANULE,
        created_unix_ns: 1_700_000_000_000_000_000,
        host: "fixture-host".into(),
        run: String::new(),
    }
}

pub fn owner(rank: u32, incarnation: u32, group_size: u32, base_version: u64) -> LaneOwner {
    LaneOwner { uuid: *b"forebay-fixture!", rank, incarnation, group_size, base_version }
}

/// Makes the pool at `path`: two lanes; versions 0 to 2 complete; version 3 committed by rank 0 only; an aborted
/// step, a void-free reservation, an object of two checksum chunks, scalars, 16 dimensions and a 1 KiB name.
pub fn write_pool(path: &Path, tier: TierKind) -> Result<Arc<dyn Device>> {
    let capacity = 96 * GRANULE;
    let horizon = if tier == TierKind::File { Horizon::Epoch } else { Horizon::None };
    let device = forebay_tier::create(tier, path, capacity)?;
    device.prepare(0..capacity)?;
    device.write(0, &superblock(tier, horizon, capacity).encode())?;
    let mut source = Bump { next: GRANULE, bytes: 4 * GRANULE };
    let mut lanes: Vec<Lane> =
        (0..2).map(|rank| Lane::new(device.clone(), owner(rank, 1, 2, 0), horizon, true)).collect();
    for version in 0..4u64 {
        for (rank, lane) in lanes.iter_mut().enumerate() {
            if version == 3 && rank == 1 {
                continue;
            }
            lane.begin(version);
            put_all(lane, &mut source, version, rank as u64)?;
            if version == 1 {
                // Given up and begun again.
                lane.abort(&mut source);
                lane.begin(version);
                put_all(lane, &mut source, version, rank as u64)?;
            }
            lane.seal(&mut source)?.flush()?.commit()?;
        }
    }
    lanes[0].finish(&mut source, 4)?;
    Ok(device)
}

/// Makes the pool at `path`: two lanes, one version, in which each rank puts another number of rows of a concatenated
/// variable and describes it.
pub fn write_described_pool(path: &Path) -> Result<Arc<dyn Device>> {
    let capacity = 16 * GRANULE;
    let device = forebay_tier::create(TierKind::Dram, path, capacity)?;
    device.prepare(0..capacity)?;
    device.write(0, &superblock(TierKind::Dram, Horizon::None, capacity).encode())?;
    let mut source = Bump { next: GRANULE, bytes: 4 * GRANULE };
    for rank in 0..2u32 {
        let mut lane = Lane::new(device.clone(), owner(rank, 1, 2, 0), Horizon::None, true);
        lane.begin(0);
        let rows = u64::from(rank) + 1;
        let x = Piece { name: "x", dtype: Dtype::U8, shape: &[CONCAT, 3], start: &[0, 0], count: &[rows, 3] };
        lane.append(&mut source, &x, &[rank as u8; 6][..3 * rows as usize])?;
        let lines = DESCRIPTION_OF_RANK[rank as usize].as_bytes();
        let name = ".forebay/descriptions/1";
        let count = [lines.len() as u64];
        let said = Piece { name, dtype: Dtype::U8, shape: &[CONCAT], start: &[0], count: &count };
        lane.append(&mut source, &said, lines)?;
        lane.seal(&mut source)?.flush()?.commit()?;
        lane.finish(&mut source, 1)?;
    }
    Ok(device)
}

/// What each rank of [`write_described_pool`] says.
const DESCRIPTION_OF_RANK: [&str; 2] = [
    "{\"attributes\":{\"time\":0.5}}\n{\"variable\":\"x\",\"dims\":[\"row\",\"column\"]}\n",
    "{\"variable\":\"x\",\"attributes\":{\"units\":\"m\",\"fill\":{\"float\":\"NaN\"}}}\n",
];

/// What rank `rank` puts in `version`.
fn put_all(lane: &mut Lane, source: &mut Bump, version: u64, rank: u64) -> Result<()> {
    let small: Vec<u8> = (0..24u8).map(|i| i + version as u8 * 10).collect();
    let t = Piece { name: "T", dtype: Dtype::F64, shape: &[6], start: &[3 * rank], count: &[3] };
    lane.append(source, &t, &small)?;
    let scalar = Piece { name: "time", dtype: Dtype::U8, shape: &[], start: &[], count: &[] };
    lane.append(source, &scalar, &[version as u8])?;
    if version == 0 {
        let name = "n".repeat(1024);
        let deep =
            Piece { name: &name, dtype: Dtype::I16, shape: &[1; 16], start: &[0; 16], count: &[1; 16] };
        lane.append(source, &deep, &[1, 2])?;
        let empty = Piece { name: "empty", dtype: Dtype::I32, shape: &[4], start: &[4], count: &[0] };
        lane.append(source, &empty, &[])?;
    }
    if version == 2 {
        let shape = [70_000];
        let big = Piece { name: "big", dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
        let mut reserved = lane.reserve(source, &big)?;
        for (i, byte) in reserved.as_mut_slice().iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        lane.fill(reserved)?;
    }
    Ok(())
}
