//! Damage of the medium: a changed byte anywhere in what was committed, and pages that cannot be read.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{options, reader, shared_state, tier_of_roots, Root};
use forebay_log::format::{
    CommitDf, RecordDf, RecordHeader, RecordKind, SegmentDf, SuperblockDf, HEADER_BYTES,
};
use forebay_log::SegmentScan;
use forebay_space::{Error, Horizon, Kind, OpenOptions, Reader, TierKind, Verify, Writer};
use forebay_tier::Access;

const LARGE: usize = 200_000;

fn small() -> Vec<u8> {
    (0..150).map(|i| i as u8 ^ 0x5A).collect()
}

fn large() -> Vec<u32> {
    (0..LARGE as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect()
}

/// A space with one version: a small and a large array. The writer keeps it alive.
fn filled(name: &str, tier: TierKind) -> Writer {
    let horizon = if tier == TierKind::Dram { Horizon::None } else { Horizon::Epoch };
    let mut w =
        Writer::open(name, &OpenOptions { tier: Some(tier), horizon: Some(horizon), ..options() }).unwrap();
    w.begin_step().unwrap();
    w.put_array("small", &[150], &[0], &[150], &small()).unwrap();
    w.put_array("large", &[LARGE as u64], &[0], &[LARGE as u64], &large()).unwrap();
    w.end_step().unwrap();
    w
}

/// What a reader that has seen nothing of the space yet makes of it: everything right, or the error.
fn look(name: &str) -> Result<(), Error> {
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut r = Reader::open(name, &observer)?;
    r.open_version(0)?;
    let names: Vec<String> = r.variables()?.into_iter().map(|v| v.name).collect();
    assert_eq!(names, ["small", "large"], "wrong names were told");
    assert!(r.get_array::<u8>("small", None)? == small(), "wrong bytes were handed out");
    assert!(r.get_array::<u32>("large", None)? == large(), "wrong bytes were handed out");
    assert!(r.view("large", None)?.bytes().len() == 4 * LARGE, "a wrong view");
    Ok(())
}

/// What a byte of the pool is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Superblock,
    Segment,
    Header,
    Payload,
    CommitWord,
    Commit,
    /// Between structs, never read: a change there changes nothing.
    Padding,
}

/// Every byte of the pool that the committed version consists of, and the padding around it.
fn parts(pool: &Path, tier: TierKind) -> Vec<(u64, Part)> {
    let device = forebay_tier::open(tier, pool, Access::Read).unwrap();
    let mut page = vec![0; HEADER_BYTES as usize];
    device.read(0, &mut page).unwrap();
    let superblock = forebay_log::format::Superblock::decode(&page).unwrap();
    let found = forebay_log::recover(&*device, &superblock).unwrap();
    let mut out = Vec::new();
    let mut add = |from: u64, to: u64, part: Part| out.extend((from..to).map(|at| (at, part)));
    let superblock_bytes = std::mem::size_of::<SuperblockDf>() as u64;
    add(0, superblock_bytes, Part::Superblock);
    add(superblock_bytes, HEADER_BYTES, Part::Padding);
    for segment in &found.segments {
        let at = segment.df.offset_bytes;
        let df = std::mem::size_of::<SegmentDf>() as u64;
        add(at, at + df, Part::Segment);
        add(at + df, at + HEADER_BYTES, Part::Padding);
        let mut records = 0;
        for (record, header) in SegmentScan::new(&*device, &segment.df) {
            let at = record.offset;
            let is_commit = header.kind() == RecordKind::Commit;
            let meta = at + meta_bytes(&header);
            let payload = at + header.payload_offset();
            let end = payload + header.payload_bytes();
            // Behind magic and checksum stands the commit word, which pieces do not use.
            add(at, at + 8, if is_commit { Part::Commit } else { Part::Header });
            add(at + 8, at + 16, if is_commit { Part::CommitWord } else { Part::Padding });
            add(at + 16, meta, if is_commit { Part::Commit } else { Part::Header });
            add(meta, payload, Part::Padding);
            add(payload, end, Part::Payload);
            add(end, at + header.total_bytes(), Part::Padding);
            records += 1;
        }
        assert_eq!(records, 3, "two pieces and a commit");
    }
    out
}

/// Bytes of a header that its checksum covers, counted from the start of the record.
fn meta_bytes(header: &RecordHeader<'_>) -> u64 {
    if header.commit().is_some() {
        return (std::mem::size_of::<RecordDf>() + std::mem::size_of::<CommitDf>()) as u64;
    }
    let chunks = (header.payload_bytes() as usize).div_ceil(forebay_log::format::CHUNK_BYTES);
    forebay_log::format::piece_meta_bytes(header.dims(), header.name_bytes().len(), chunks) as u64
}

fn every_flipped_byte_is_found(tier: TierKind) {
    let root = Root::new();
    every_flipped_byte_is_found_below(tier, Path::new(&root.name("")));
}

fn every_flipped_byte_is_found_below(tier: TierKind, dir: &Path) {
    let name = format!("{}/flipped", dir.display());
    let _writer = filled(&name, tier);
    let pool = Path::new(&name).join("pool");
    look(&name).expect("undamaged");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&pool).unwrap();
    let mut tried = [0usize; 7];
    for (at, part) in parts(&pool, tier) {
        // Every byte of the structs and of the small payload; of the large one and of whole pages of padding a
        // sample that touches each checksum chunk and is not aligned to anything.
        let dense = !matches!(part, Part::Payload | Part::Padding) || tried[part as usize] < 150;
        tried[part as usize] += 1;
        if !dense && at % 4099 != 0 {
            continue;
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << (at % 8))], at).unwrap();
        let seen = look(&name).map_err(|e| e.kind());
        file.write_all_at(&byte, at).unwrap();
        match (part, seen) {
            (Part::Padding, Ok(())) => {}
            // A pool that says it is of another format is refused as that.
            (Part::Superblock, Err(Kind::Damaged | Kind::UnknownFormat)) => {}
            (Part::Padding | Part::Superblock, other) => panic!("byte {at} of {part:?}: {other:?}"),
            (_, Err(Kind::Damaged)) => {}
            (_, other) => panic!("byte {at} of {part:?}: {other:?}"),
        }
    }
    look(&name).expect("all put back");
    let in_use =
        [Part::Superblock, Part::Segment, Part::Header, Part::Payload, Part::Commit, Part::CommitWord];
    assert!(in_use.iter().all(|part| tried[*part as usize] > 0), "{tried:?}");
    forebay_space::destroy(&name).unwrap();
}

#[test]
fn every_flipped_byte_is_found_in_memory_or_where_roots_lie() {
    every_flipped_byte_is_found(tier_of_roots().0);
}

#[test]
fn every_flipped_byte_is_found_in_a_file() {
    every_flipped_byte_is_found(TierKind::File);
}

/// Tier direct reads through the page cache, which the flips go to as well; on tmpfs there is no way past it.
#[test]
fn every_flipped_byte_is_found_in_a_file_that_was_written_past_the_page_cache() {
    let disk = tempfile::tempdir().unwrap();
    let probe = disk.path().join("probe");
    match forebay_tier::create(TierKind::Direct, &probe, 4096) {
        Ok(_) => every_flipped_byte_is_found_below(TierKind::Direct, disk.path()),
        Err(e) => crate::skips::skipped("flipped bytes on tier direct", e.message()),
    }
}

/// A reader in the middle of a version, and one that reads it for the second time, see damage at the chunk they
/// had not looked at yet; with `always` also where they had.
#[test]
fn damage_that_comes_later_is_found_by_who_looks_again() {
    let root = Root::new();
    let name = root.name("later");
    let (tier, _) = tier_of_roots();
    let _writer = filled(&name, tier);
    let pool = Path::new(&name).join("pool");
    let payload = parts(&pool, tier).iter().rposition(|(_, p)| *p == Part::Payload).unwrap();
    let at = parts(&pool, tier)[payload].0;
    let mut once = reader(&name, 0, 1).unwrap();
    let always = OpenOptions { verify: Verify::Always, observer: true, ..options() };
    let mut always = Reader::open(&name, &always).unwrap();
    once.begin_step(None).unwrap();
    always.open_version(0).unwrap();
    assert!(always.get_array::<u32>("large", None).unwrap() == large());
    let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
    file.write_all_at(&[0xEE], at).unwrap();
    assert_eq!(always.get_array::<u32>("large", None).unwrap_err().kind(), Kind::Damaged);
    assert_eq!(once.get_array::<u32>("large", None).unwrap_err().kind(), Kind::Damaged);
    assert_eq!(once.view("large", None).map(drop).unwrap_err().kind(), Kind::Damaged);
    assert_eq!(once.get_array::<u8>("small", None).unwrap(), small(), "the rest is readable");
}

/// A pool whose last blocks cannot be read (here: cut off under a living writer) ends no reader by a signal.
#[test]
fn pages_that_cannot_be_read_are_an_error() {
    let root = Root::new();
    let name = root.name("cut");
    let _writer = filled(&name, TierKind::File);
    let mut r = reader(&name, 0, 1).unwrap();
    let pool = Path::new(&name).join("pool");
    let (last, _) = *parts(&pool, TierKind::File).last().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
    let whole = file.metadata().unwrap().len();
    file.set_len(last / 4096 * 4096).unwrap();
    match r.begin_step(None) {
        // Damaged where the writer prepared another segment meanwhile, which makes the file long again: with a hole.
        Err(e) => assert!([Kind::Io, Kind::Damaged].contains(&e.kind()), "{e}"),
        Ok(_) => panic!("the end of the version is not there"),
    }
    assert_eq!(look(&name).unwrap_err().kind(), Kind::Damaged, "who opens it now sees that it is cut off");
    file.set_len(whole).unwrap();
    forebay_space::destroy(&name).unwrap();
}

/// A header whose checksum is right and whose box is not what its payload holds: nothing of it is believed.
#[test]
fn a_box_that_does_not_fit_its_payload_is_damage() {
    let root = Root::new();
    let name = root.name("box");
    let _writer = filled(&name, tier_of_roots().0);
    let pool = Path::new(&name).join("pool");
    let header =
        parts(&pool, tier_of_roots().0).into_iter().find(|(_, part)| *part == Part::Header).unwrap().0;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&pool).unwrap();
    let mut record = vec![0; 4096];
    file.read_exact_at(&mut record, header).unwrap();
    let meta = meta_bytes(&RecordHeader::decode(&record).expect("small")) as usize;
    let record_bytes = std::mem::size_of::<RecordDf>();
    // Shape, start, count of its one dimension.
    for (place, value) in [(2, 149u64), (2, 151), (2, u64::MAX), (1, 1), (1, u64::MAX), (0, 149)] {
        let mut changed = record[..meta].to_vec();
        changed[record_bytes + place * 8..][..8].copy_from_slice(&value.to_le_bytes());
        let crc = forebay_log::format::crc_of(&[&changed[16..]]);
        changed[4..8].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&changed, header).unwrap();
        let seen = look(&name).map_err(|e| e.kind());
        assert_eq!(seen.unwrap_err(), Kind::Damaged, "word {place} of the box is {value}");
    }
    file.write_all_at(&record[..meta], header).unwrap();
    look(&name).expect("put back");
}

/// The control segment has no checksum. Whoever asks a damaged one for versions gets no more than there can be.
#[test]
fn a_damaged_count_of_versions_ends_nobody_in_a_loop() {
    let root = Root::new();
    let name = root.name("count");
    let _writer = filled(&name, tier_of_roots().0);
    let control = std::fs::OpenOptions::new().write(true).open(shared_state(&name, "control")).unwrap();
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut reader = Reader::open(&name, &observer).unwrap();
    // Behind the head stands the progress of rank 0: incarnation 1, and how many versions it has committed.
    for committed in [1u64 << 39, (1 << 40) - 1, 1 << 20] {
        control.write_all_at(&(1u64 << 40 | committed).to_le_bytes(), 4096).unwrap();
        assert_eq!(reader.versions().unwrap(), 0..1, "{committed} are claimed");
        let found = forebay_space::inspect(&name).unwrap();
        assert_eq!(found.versions.iter().map(|v| v.version).collect::<Vec<_>>(), [0]);
    }
    reader.open_version(0).unwrap();
    assert_eq!(reader.get_array::<u8>("small", None).unwrap(), small());
    reader.end_step().unwrap();
    assert_eq!(reader.open_version(1 << 19).map(drop).unwrap_err().kind(), Kind::Damaged);
    control.write_all_at(&(1u64 << 40 | 1).to_le_bytes(), 4096).unwrap();
    assert_eq!(reader.versions().unwrap(), 0..1);
}
