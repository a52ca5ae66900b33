//! The golden pools in fixtures/log/1 are read as ever, are written bit for bit the same, and every way of
//! damaging them is found out, with the right kind.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_log::format::{RecordHeader, Superblock, COMMIT_OFFSET, RECORD_MAGIC};
use forebay_log::verify::verify;
use forebay_log::{recover, Kind};
use forebay_tier::{Access, Device, TierKind};

use crate::sample;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/log/1").join(name)
}

const POOLS: [(&str, TierKind); 2] = [("mapped.pool", TierKind::Dram), ("blocks.pool", TierKind::File)];

/// A copy of a fixture that may be damaged, opened.
struct Copy {
    path: PathBuf,
    superblock: Superblock,
    device: Arc<dyn Device>,
    _dir: tempfile::TempDir,
}

fn copy(name: &str, tier: TierKind, damage: impl FnOnce(&mut Vec<u8>)) -> Copy {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join(name);
    let mut bytes = std::fs::read(fixture(name)).unwrap();
    let superblock = Superblock::decode(&bytes).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let device = forebay_tier::open(tier, &path, Access::Read).unwrap();
    Copy { path, superblock, device, _dir: dir }
}

#[test]
fn they_are_read() {
    for (name, tier) in POOLS {
        let pool = copy(name, tier, |_| {});
        let found = recover(&*pool.device, &pool.superblock).unwrap();
        assert_eq!((found.oldest, found.complete), (0, 3), "{name}");
        assert_eq!(found.incarnations.len(), 1);
        assert_eq!(found.incarnations[0].committed, [4, 3]);
        assert_eq!(found.incarnations[0].ended, [true, false]);
        let report = verify(&*pool.device, &pool.superblock).unwrap();
        assert!(report.damaged.is_empty(), "{name}: {:?}", report.damaged);
        assert_eq!(report.versions, 4);
        assert!(report.bytes > 140_000);
    }
}

#[test]
fn they_are_written_bit_for_bit() {
    for (name, tier) in POOLS {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join(name);
        drop(sample::write_pool(&path, tier).unwrap());
        let (new, old) = (std::fs::read(&path).unwrap(), std::fs::read(fixture(name)).unwrap());
        let differs = new.iter().zip(&old).position(|(a, b)| a != b);
        assert_eq!(
            (new.len(), differs),
            (old.len(), None),
            "{name}: the format changed without a new version"
        );
    }
}

#[test]
fn a_described_pool_is_read_and_written_bit_for_bit() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("described.pool");
    drop(sample::write_described_pool(&path).unwrap());
    assert!(std::fs::read(&path).unwrap() == std::fs::read(fixture("described.pool")).unwrap());
    let pool = copy("described.pool", TierKind::Dram, |_| {});
    assert_eq!(recover(&*pool.device, &pool.superblock).unwrap().complete, 1);
    let report = verify(&*pool.device, &pool.superblock).unwrap();
    assert_eq!((report.damaged.len(), report.versions), (0, 1), "{:?}", report.damaged);
}

/// Offsets of all record headers in a pool.
fn headers(bytes: &[u8]) -> Vec<usize> {
    let magic = RECORD_MAGIC.to_le_bytes();
    (0..bytes.len()).step_by(64).filter(|at| bytes[*at..].starts_with(&magic)).collect()
}

#[test]
fn a_flipped_bit_anywhere_in_a_committed_record_is_found() {
    for (name, tier) in POOLS {
        let whole = std::fs::read(fixture(name)).unwrap();
        let mut checked = 0;
        for at in headers(&whole) {
            let header = RecordHeader::decode(&whole[at..]).unwrap();
            let place = header.place();
            let first_record = 2 * u64::from(place.version >= 1);
            // Records of the aborted step count for nothing, and may be damaged unseen.
            // A lane whose newest commit record is gone looks like one that never wrote it.
            let newest = header.commit().is_some() && place.version == 2 && place.rank == 1;
            let aborted =
                place.version == 1 && place.sequence < header_first_of_commit(&whole, place.rank, 1);
            if aborted
                || newest
                || place.version == 3
                || header.kind() as u8 == 4
                || first_record > place.sequence
            {
                continue;
            }
            let end = at + (header.payload_offset() + header.payload_bytes()) as usize;
            let meta_end = at + 64;
            for target in (at..meta_end).step_by(5).chain((meta_end..end).step_by(997)) {
                if (at + 8..at + 16).contains(&target) && header.commit().is_none() {
                    continue; // a piece has no commit word
                }
                if target >= at + header_meta_bytes(&whole, at)
                    && target < at + header.payload_offset() as usize
                {
                    continue; // padding
                }
                let pool = copy(name, tier, |bytes| bytes[target] ^= 4);
                let report = verify(&*pool.device, &pool.superblock).unwrap();
                assert!(!report.damaged.is_empty(), "{name}: byte {target} of record at {at}");
                checked += 1;
            }
        }
        assert!(checked > 200, "{name}: only {checked} places");
    }
}

fn header_meta_bytes(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at + 40..at + 44].try_into().unwrap()) as usize
}

fn header_first_of_commit(bytes: &[u8], rank: u32, version: u64) -> u64 {
    let commits = headers(bytes).into_iter().filter_map(|at| RecordHeader::decode(&bytes[at..]));
    commits
        .filter(|h| h.place().rank == rank && h.place().version == version)
        .find_map(|h| h.commit())
        .unwrap()
        .first_record
}

#[test]
fn without_its_commit_word_a_version_does_not_count() {
    let whole = std::fs::read(fixture("mapped.pool")).unwrap();
    let commit = headers(&whole)
        .into_iter()
        .find(|at| {
            let h = RecordHeader::decode(&whole[*at..]).unwrap();
            h.commit().is_some() && h.place().version == 2 && h.place().rank == 1
        })
        .unwrap();
    let pool = copy("mapped.pool", TierKind::Dram, |bytes| {
        bytes[commit + COMMIT_OFFSET as usize..][..8].fill(0);
    });
    let found = recover(&*pool.device, &pool.superblock).unwrap();
    assert_eq!((found.oldest, found.complete), (0, 2));
}

#[test]
fn on_blocks_a_newest_version_that_is_not_whole_was_never_acknowledged() {
    let whole = std::fs::read(fixture("blocks.pool")).unwrap();
    let find = |rank: u32, name: &str| {
        headers(&whole)
            .into_iter()
            .find(|at| {
                let h = RecordHeader::decode(&whole[*at..]).unwrap();
                h.place().version == 2 && h.place().rank == rank && h.name_bytes() == name.as_bytes()
            })
            .unwrap()
    };
    let at = find(1, "big");
    let payload = at + RecordHeader::decode(&whole[at..]).unwrap().payload_offset() as usize;
    // Rank 1 ends with version 2: a block of it that never arrived, in the payload or in a header.
    for target in [payload + 4096, find(1, "T")] {
        let pool = copy("blocks.pool", TierKind::File, |bytes| bytes[target..target + 512].fill(0));
        let found = recover(&*pool.device, &pool.superblock).unwrap();
        assert_eq!(found.complete, 2, "byte {target}");
    }
    // In rank 0 version 3 came after it, so version 2 was acknowledged: the damage is reported, not hidden.
    let at = find(0, "big");
    let pool = copy("blocks.pool", TierKind::File, |bytes| bytes[at + 4096] ^= 1);
    assert_eq!(recover(&*pool.device, &pool.superblock).unwrap().complete, 3);
    assert_eq!(verify(&*pool.device, &pool.superblock).unwrap().damaged.len(), 1);
}

#[test]
fn recovery_changes_nothing_and_gives_the_same_again() {
    for (name, tier) in POOLS {
        let pool = copy(name, tier, |_| {});
        let first = format!("{:?}", recover(&*pool.device, &pool.superblock).unwrap());
        assert_eq!(first, format!("{:?}", recover(&*pool.device, &pool.superblock).unwrap()));
        assert_eq!(std::fs::read(&pool.path).unwrap(), std::fs::read(fixture(name)).unwrap());
    }
}

#[test]
fn other_formats_and_cut_pools_are_refused_by_kind() {
    let whole = std::fs::read(fixture("mapped.pool")).unwrap();
    let kind = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        Superblock::decode(&bytes).unwrap_err().kind()
    };
    assert_eq!(kind(&|b| b[8] = 2), Kind::UnknownFormat);
    assert_eq!(kind(&|b| b[12] = 4), Kind::UnknownFormat);
    assert_eq!(kind(&|b| b[0] = b'f'), Kind::Damaged);
    assert_eq!(kind(&|b| b[57] = 1), Kind::Damaged);
    assert_eq!(kind(&|b| b.truncate(100)), Kind::Damaged);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &whole[..whole.len() - 4096 * 40]).unwrap();
    // A pool that was cut is refused where it is opened as a space; here only: nothing outside it is read.
    let file = std::fs::File::open(&cut).unwrap();
    let mut page = [0u8; 4096];
    file.read_exact_at(&mut page, 0).unwrap();
    let superblock = Superblock::decode(&page).unwrap();
    let device = forebay_tier::open(TierKind::Dram, &cut, Access::Read).unwrap();
    assert!(recover(&*device, &superblock).is_err());
}
