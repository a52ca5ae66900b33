//! Damage of the medium: a changed byte anywhere in what was committed, and pages that cannot be read.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{options, reader, shared_state, tier_of_roots, Root};
use forebay_log::format::{
    CommitDf, RecordDf, RecordHeader, RecordKind, SegmentDf, SuperblockDf, HEADER_BYTES,
};
use forebay_log::SegmentScan;
use forebay_space::{Error, Horizon, Kind, OpenOptions, Reader, SpillTier, TierKind, Verify, Writer};
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
    let mut w = Writer::open(
        name,
        &OpenOptions { tier: Some(tier), horizon: Some(horizon), segment_bytes: Some(1 << 20), ..options() },
    )
    .unwrap();
    w.begin_step().unwrap();
    w.put_array("small", &[150], &[0], &[150], &small()).unwrap();
    w.put_array("large", &[LARGE as u64], &[0], &[LARGE as u64], &large()).unwrap();
    w.end_step().unwrap();
    w
}

/// What a reader that has seen nothing of the space yet makes of it: everything right, or the error.
fn look(name: &str) -> Result<(), Error> {
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut r = Reader::open(name, &observer)?.open_version(0)?;
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
        assert_eq!(records, 3, "two pieces and a commit in one segment");
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
    let mut always = Reader::open(&name, &always).unwrap().open_version(0).unwrap();
    once.begin_step(None).unwrap();
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

/// The control segment has no checksum. A process that asks a damaged one for versions gets no more than there can be.
#[test]
fn a_damaged_count_of_versions_ends_no_reader_in_a_loop() {
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
    assert_eq!(reader.open_version(0).unwrap().get_array::<u8>("small", None).unwrap(), small());
    assert_eq!(reader.open_version(1 << 19).map(drop).unwrap_err().kind(), Kind::Damaged);
    control.write_all_at(&(1u64 << 40 | 1).to_le_bytes(), 4096).unwrap();
    assert_eq!(reader.versions().unwrap(), 0..1);
}

/// Versions with all that is in them.
type Versions = Vec<(u64, Vec<u64>)>;

/// What a newcomer makes of a space: the versions that an observer is told of, and those that a registered group of
/// readers is given, each with all that is in it; and the error that ended it, if one did.
fn seen_by_a_newcomer(name: &str) -> (Versions, Versions, Option<Kind>) {
    let quick = || OpenOptions { timeout: Duration::from_millis(30), ..options() };
    let (mut told, mut given) = (Vec::new(), Vec::new());
    let mut look = || -> Result<(), Error> {
        let observer = OpenOptions { observer: true, component: Some("look".into()), ..quick() };
        let mut r = Reader::open(name, &observer)?;
        for version in r.versions()? {
            let mut opened = r.open_version(version)?;
            told.push((version, opened.get_array("x", None)?));
            opened.end_step()?;
        }
        let mut r = Reader::open(name, &OpenOptions { component: Some("again".into()), ..quick() })?;
        while let Some(version) = r.begin_step(None)? {
            given.push((version, r.get_array("x", None)?));
            r.end_step()?;
        }
        r.close()
    };
    let error = look().err().map(|e| e.kind());
    (told, given, error)
}

/// Flips single bits of a file; whatever makes newcomers see something else, or an error, must be found by `verify`.
/// Returns how many were tried, and how many of them newcomers noticed.
fn what_newcomers_notice_is_verified(
    name: &str,
    path: &Path,
    flips: impl Iterator<Item = (usize, u32)>,
) -> (usize, usize) {
    let control = shared_state(name, "control");
    let write = |path: &Path, bytes: &[u8], at: usize| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
    };
    let (original, state) = (std::fs::read(path).unwrap(), std::fs::read(&control).unwrap());
    // Who finds the control segment damaged makes another one, and says so in the lock file.
    let lock = Path::new(name).join("lock");
    let locked = std::fs::read(&lock).unwrap();
    let restore_state = || {
        write(&control, &state, 0);
        std::fs::write(&lock, &locked).unwrap();
    };
    let undamaged = seen_by_a_newcomer(name);
    restore_state();
    assert!(undamaged.0.len() > 2 && undamaged.1.len() > 2, "{undamaged:?}");
    let report = forebay_space::verify(name).unwrap();
    assert!(report.damaged.is_empty(), "undamaged: {:?}", report.damaged);
    let (mut tried, mut noticed, mut missed) = (0, 0, Vec::new());
    for (at, bit) in flips {
        let flipped = [original[at] ^ 1 << bit];
        write(path, &flipped, at);
        let found = forebay_space::verify(name).map_or(true, |report| !report.damaged.is_empty());
        restore_state();
        write(path, &flipped, at);
        let seen = seen_by_a_newcomer(name);
        write(path, &original[at..at + 1], at);
        restore_state();
        tried += 1;
        if seen != undamaged {
            noticed += 1;
            if !found {
                missed.push(format!("byte {at} bit {bit}: {:?} {:?}", seen.2, (seen.0.len(), seen.1.len())));
            }
        }
    }
    assert!(missed.is_empty(), "{} of {noticed} were not found by verify: {missed:#?}", missed.len());
    (tried, noticed)
}

/// Writers look no further than the count: a group beyond it would hold nothing.
#[test]
fn verify_finds_a_reader_group_that_is_not_counted() {
    let root = Root::in_memory();
    let name = root.name("count");
    let writers = several_versions(&name);
    assert_eq!(forebay_space::verify(&name).unwrap().damaged, []);
    let control = std::fs::OpenOptions::new().write(true).open(shared_state(&name, "control")).unwrap();
    // `groups_high`.
    control.write_all_at(&0u64.to_le_bytes(), 552).unwrap();
    let damaged = forebay_space::verify(&name).unwrap().damaged;
    let is_it = |what: &str| what.contains("reader group 0") && what.contains("below 0");
    assert!(damaged.iter().any(|damage| is_it(&damage.what)), "{damaged:?}");
    control.write_all_at(&1u64.to_le_bytes(), 552).unwrap();
    drop(writers);
}

/// Two ranks, three versions in several segments, one group of readers that has come.
fn several_versions(name: &str) -> Vec<Writer> {
    let options = |rank| OpenOptions {
        retention: Some(forebay_space::Retention::Forever),
        segment_bytes: Some(256 << 10),
        ..crate::support::ranked(rank, 2)
    };
    let mut writers: Vec<Writer> = (0..2).map(|rank| Writer::open(name, &options(rank)).unwrap()).collect();
    for version in 0..4u64 {
        for (rank, w) in (0..).zip(&mut writers) {
            w.begin_step().unwrap();
            let data = vec![version << 8 | rank; 12_000];
            w.put_array("x", &[24_000], &[12_000 * rank], &[12_000], &data).unwrap();
            w.end_step().unwrap();
        }
    }
    drop(Reader::open(name, &OpenOptions { component: Some("again".into()), ..crate::support::options() }));
    writers
}

/// Every bit of each byte that is not 0, and one bit of those beside it in a word.
fn used_bits(bytes: &[u8]) -> Vec<(usize, u32)> {
    let words = bytes.chunks(8).enumerate().filter(|(_, word)| word.iter().any(|byte| *byte != 0));
    let bits = words.flat_map(|(i, word)| {
        word.iter().enumerate().flat_map(move |(j, byte)| {
            let bits = if *byte == 0 { (j as u32 % 8)..(j as u32 % 8 + 1) } else { 0..8 };
            bits.map(move |bit| (i * 8 + j, bit))
        })
    });
    bits.collect()
}

#[test]
fn verify_finds_every_flipped_bit_of_the_shared_state_that_a_reader_notices() {
    let root = Root::in_memory();
    let name = root.name("bits");
    several_versions(&name).into_iter().for_each(|w| w.close().unwrap());
    let control = shared_state(&name, "control");
    let flips = used_bits(&std::fs::read(&control).unwrap());
    let (tried, noticed) = what_newcomers_notice_is_verified(&name, &control, flips.into_iter());
    assert!(tried > 1000 && noticed > 50, "{noticed} of {tried} were noticed");
}

#[test]
fn verify_finds_flipped_bits_of_the_shared_state_beside_live_writers() {
    let root = Root::in_memory();
    let name = root.name("live");
    let writers = several_versions(&name);
    let control = shared_state(&name, "control");
    let flips = used_bits(&std::fs::read(&control).unwrap());
    // Without the first words, by which the segment is known: it is rebuilt when they are damaged.
    let flips = flips.into_iter().filter(|(at, _)| *at >= 56).step_by(5);
    let (tried, noticed) = what_newcomers_notice_is_verified(&name, &control, flips);
    assert!(tried > 200 && noticed > 10, "{noticed} of {tried} were noticed");
    drop(writers);
}

#[test]
fn verify_finds_every_flipped_byte_of_the_pool_that_a_reader_notices() {
    let root = Root::in_memory();
    let name = root.name("bytes");
    several_versions(&name).into_iter().for_each(|w| w.close().unwrap());
    let pool = Path::new(&name).join("pool");
    let bytes = std::fs::read(&pool).unwrap();
    let starts = |at: usize, magic: &[u8; 4]| bytes[at..at + 4] == *magic;
    // Superblock, headers of segments and records; of payloads one byte in a few thousand.
    let headers = (0..bytes.len() - 256)
        .step_by(64)
        .filter(|at| *at == 0 || starts(*at, b"FBSG") || starts(*at, b"FBRC"))
        .flat_map(|at| at..at + if at == 0 { 200 } else { 128 });
    let payloads = (0..bytes.len()).step_by(4099).filter(|at| bytes[*at] != 0);
    let flips = headers.chain(payloads).map(|at| (at, (at % 8) as u32));
    let (tried, noticed) = what_newcomers_notice_is_verified(&name, &pool, flips);
    assert!(tried > 1000 && noticed > 500, "{noticed} of {tried} were noticed");
}

fn cut(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// Waits until the writer has prepared its second segment, which would make a pool longer that was cut off.
fn wait_for_spare(name: &str) {
    let begin = Instant::now();
    while forebay_space::inspect(name).unwrap().reserved_bytes < 2 << 20 {
        assert!(begin.elapsed() < Duration::from_secs(30), "no segment was prepared");
        std::thread::sleep(Duration::from_millis(5));
    }
    // It is counted before its pages are there.
    std::thread::sleep(Duration::from_millis(200));
}

/// A pool that is cut off below its mappings is an error for those who read it, and in memory for those who write it:
/// no process ends by a signal, and no wrong byte is handed out.
fn a_pool_that_is_cut_off_is_an_error(tier: TierKind, dir: &Path) {
    let name = format!("{}/cut-off", dir.display());
    let mut w = filled(&name, tier);
    wait_for_spare(&name);
    let never = OpenOptions { verify: Verify::Never, observer: true, ..options() };
    let mut readers = [reader(&name, 0, 1).unwrap(), Reader::open(&name, &never).unwrap()];
    let mut readers: Vec<Reader> = readers.iter_mut().map(|r| r.open_version(0).unwrap()).collect();
    let state = shared_state(&name, "control");
    cut(&Path::new(&name).join("pool"), 4096);
    for r in &mut readers {
        for name in ["small", "large"] {
            let shown = r.with_object(name, 1 << 30, |_, _, bytes| bytes.len());
            let got = r.array(name).and_then(|(dtype, shape)| {
                let mut out = vec![0; shape.iter().product::<u64>() as usize * dtype.size()];
                r.get(name, None, &mut out)
            });
            for result in [shown.map(drop), got, r.view(name, None).map(drop), r.variable(name).map(drop)] {
                let kind = result.expect_err("nothing of it is there").kind();
                assert!([Kind::Io, Kind::Damaged, Kind::UnknownVariable].contains(&kind), "{name}: {kind:?}");
            }
        }
    }
    let put = w.begin_step().and_then(|_| w.put_array("small", &[150], &[0], &[150], &small()));
    let ended = put.and_then(|()| w.end_step());
    if tier == TierKind::Dram {
        assert_eq!(ended.unwrap_err().kind(), Kind::Io);
    }
    drop(w);
    readers.into_iter().for_each(|r| r.close().unwrap());
    assert!(look(&name).is_err());
    std::fs::remove_dir_all(&name).unwrap();
    // Of a pool on blocks the shared state lies elsewhere.
    let _ = std::fs::remove_dir_all(state.parent().unwrap());
}

#[test]
fn a_pool_that_is_cut_off_is_an_error_in_memory() {
    let root = Root::in_memory();
    a_pool_that_is_cut_off_is_an_error(TierKind::Dram, Path::new(&root.name("")));
}

#[test]
fn a_pool_that_is_cut_off_is_an_error_in_a_file() {
    let root = Root::in_memory();
    a_pool_that_is_cut_off_is_an_error(TierKind::File, Path::new(&root.name("")));
}

#[test]
fn a_pool_that_is_cut_off_is_an_error_past_the_page_cache() {
    let disk = tempfile::tempdir().unwrap();
    match forebay_tier::create(TierKind::Direct, &disk.path().join("probe"), 4096) {
        Ok(_) => a_pool_that_is_cut_off_is_an_error(TierKind::Direct, disk.path()),
        Err(e) => crate::skips::skipped("a pool on tier direct that is cut off", e.message()),
    }
}

/// The shared state is cut off: its words are no longer shared, which is the error of every call that needs them.
#[test]
fn shared_state_that_is_cut_off_is_an_error() {
    let root = Root::in_memory();
    let name = root.name("state");
    let mut w = filled(&name, TierKind::Dram);
    let mut r = reader(&name, 0, 1).unwrap();
    let mut other = reader(&name, 0, 1).map(drop).map_err(|e| e.kind());
    assert_eq!(other, Err(Kind::NameInUse));
    cut(&shared_state(&name, "control"), 0);
    assert_eq!(r.begin_step(None).unwrap_err().kind(), Kind::Io);
    assert_eq!(r.open_version(0).map(drop).unwrap_err().kind(), Kind::Io);
    assert_eq!(w.begin_step().unwrap_err().kind(), Kind::Io);
    drop(w);
    drop(r);
    // The next process that opens it rebuilds it from the lanes.
    look(&name).unwrap();
    other = reader(&name, 0, 1).map(drop).map_err(|e| e.kind());
    assert_eq!(other, Ok(()));
}

/// Segments are begun, moved, released and used again while `verify` walks from one to the next.
#[test]
fn a_space_that_is_being_written_is_not_damaged() {
    let (root, disk) = (Root::new(), Root::in_memory());
    let name = root.name("heat");
    let spill = SpillTier { path: disk.name("").into(), quota: Some(4 << 20), tier: Some(TierKind::Dram) };
    let small = OpenOptions {
        quota_bytes: Some(3 << 20),
        segment_bytes: Some(256 << 10),
        spill: vec![spill],
        readers: vec![("test".into(), 1)],
        ..options()
    };
    let mut w = Writer::open(&name, &small).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 0..4000u64 {
                w.begin_step().unwrap();
                w.put_array("a", &[5000], &[0], &[5000], &[version; 5000]).unwrap();
                w.end_step().unwrap();
            }
            w.close().unwrap();
        });
        scope.spawn(|| {
            let mut r = Reader::open(&name, &small).unwrap();
            while r.begin_step(None).unwrap().is_some() {
                r.end_step().unwrap();
            }
            done.store(true, Relaxed);
            drop(r);
        });
        while !done.load(Relaxed) {
            match forebay_space::verify(&name) {
                Ok(report) => assert!(report.damaged.is_empty(), "{:?}", report.damaged),
                Err(e) => assert_eq!(e.kind(), Kind::PeerMissing),
            }
        }
    });
}

/// On blocks the header of a piece may be there before its payload is.
#[test]
fn the_payload_of_a_version_that_was_never_committed_is_not_damaged() {
    let root = Root::in_memory();
    let name = root.name("heat");
    let mut w = Writer::open(&name, &OpenOptions { tier: Some(TierKind::Dram), ..options() }).unwrap();
    let pattern = 0x0123_4567_89ab_cdef_u64;
    let half_put = |w: &mut Writer| {
        w.begin_step().unwrap();
        w.put_array("a", &[5000], &[0], &[5000], &[pattern; 5000]).unwrap();
    };
    half_put(&mut w);
    let pool =
        std::fs::OpenOptions::new().read(true).write(true).open(Path::new(&name).join("pool")).unwrap();
    let bytes = std::fs::read(Path::new(&name).join("pool")).unwrap();
    let at = bytes.windows(16).position(|x| x == [pattern.to_le_bytes(); 2].concat()).expect("the payload");
    pool.write_all_at(&[0], at as u64).unwrap();
    let damaged = || forebay_space::verify(&name).unwrap().damaged;
    assert_eq!(damaged(), [], "the version is open");
    // Aborted, and begun again.
    w.abort_step().unwrap();
    half_put(&mut w);
    w.end_step().unwrap();
    assert_eq!(damaged(), [], "the first try does not count");
    let bytes = std::fs::read(Path::new(&name).join("pool")).unwrap();
    let whole = (at + 8..bytes.len() - 16).filter(|i| i % 64 == at % 64);
    let again = whole.clone().find(|i| *i > at + 5000 * 8 && bytes[*i..*i + 8] == pattern.to_le_bytes());
    pool.write_all_at(&[0], again.expect("the second payload") as u64).unwrap();
    assert_eq!(damaged().len(), 1, "of the committed version it does");
}
