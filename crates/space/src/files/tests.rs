//! Tests of the file-per-object channel as a whole: ranks as threads, and as processes where one must die.

use super::stream::Stream;
use super::{FilesReader, FilesWriter};
use crate::attributes::Attribute;
use crate::step::reader::VersionSource;
use crate::step::writer::Memory;
use crate::upkeep::removed::CleanOptions;
use forebay_config::{Mode, OpenOptions, Retention, Verify};
use forebay_log::NdBox;
use forebay_log::{Dtype, Piece};
use forebay_tier::{Durability, Horizon, Kind, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Long enough that only a lost wake-up or a dead end reaches it.
const PATIENT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);

fn options(component: &str, rank: u32, size: u32) -> OpenOptions {
    OpenOptions {
        rank: Some(rank),
        size: Some(size),
        component: Some(component.into()),
        timeout: PATIENT,
        finished: true,
        ..OpenOptions::default()
    }
}

struct Place {
    _dir: tempfile::TempDir,
    name: String,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("heat").to_str().unwrap().to_string();
        Place { _dir: dir, name }
    }

    fn writer(&self, options: &OpenOptions) -> FilesWriter {
        FilesWriter::open(&self.name, options).unwrap()
    }

    fn reader(&self, options: &OpenOptions) -> FilesReader {
        FilesReader::open(&self.name, options).unwrap()
    }

    fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    fn version_dirs(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|n| n.starts_with('v'))
            .collect();
        names.sort();
        names
    }

    /// The files of a version with this ending.
    fn files(&self, version: u64, ending: &str) -> Vec<PathBuf> {
        let dir = self.path().join(format!("v{version:010}"));
        let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        all.filter(|p| p.to_str().unwrap().ends_with(ending)).collect()
    }
}

/// The value of one element.
fn value(version: u64, flat: u64) -> f64 {
    (version * 1_000_003 + flat) as f64
}

/// The elements of a box of the plain array of this shape.
fn plain(version: u64, shape: &[u64], part: &NdBox) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..part.volume().unwrap() {
        let (mut rest, mut flat, mut stride) = (i, 0, 1);
        for d in (0..shape.len()).rev() {
            flat += (part.start[d] + rest % part.count[d]) * stride;
            rest /= part.count[d];
            stride *= shape[d];
        }
        out.extend(value(version, flat).to_ne_bytes());
    }
    out
}

fn put(writer: &mut FilesWriter, name: &str, version: u64, shape: &[u64], part: &NdBox) -> Result<()> {
    let piece = Piece { name, dtype: Dtype::F64, shape, start: &part.start, count: &part.count };
    writer.put(&piece, &plain(version, shape, part))
}

/// One step with one scalar.
fn put_step(writer: &mut FilesWriter) -> Result<u64> {
    let version = writer.next_version();
    writer.begin_version(version)?;
    put(writer, "t", version, &[], &NdBox::whole(&[]))?;
    writer.end_step()?;
    Ok(version)
}

fn get(reader: &mut FilesReader, name: &str, part: Option<&NdBox>) -> Result<Vec<u8>> {
    let (dtype, shape) = reader.array(name)?;
    let whole = NdBox::whole(&shape);
    let mut out = vec![0; part.unwrap_or(&whole).bytes(dtype.size()).unwrap()];
    reader.get(name, part, &mut out)?;
    Ok(out)
}

/// Rank `rank` of `size`'s slab of dimension `d`.
fn slab(shape: &[u64], d: usize, rank: u64, size: u64) -> NdBox {
    let (from, to) = (shape[d] * rank / size, shape[d] * (rank + 1) / size);
    let mut part = NdBox::whole(shape);
    part.start[d] = from;
    part.count[d] = to - from;
    part
}

const SHAPE: [u64; 3] = [13, 7, 5];

/// Writes five versions: `T` as slabs of one dimension, `U/x` of another, in two pieces and through
/// reservations.
fn write_split(place: &Place, rank: u64, writers: u64, readers: u32) {
    let mut o = options("sim", rank as u32, writers as u32);
    o.readers = vec![("analysis".into(), readers)];
    let mut writer = place.writer(&o);
    if rank == 0 {
        writer.set_attribute("title", &Attribute::Text("heat".into())).unwrap();
    }
    for version in 0..5 {
        assert!(writer.begin_version(version).unwrap());
        put(&mut writer, "T", version, &SHAPE, &slab(&SHAPE, 0, rank, writers)).unwrap();
        for half in 0..2 {
            let mut part = slab(&SHAPE, 1, rank, writers);
            part.start[2] = half * 3;
            part.count[2] = 3 - half;
            let piece = Piece {
                name: "U/x",
                dtype: Dtype::F64,
                shape: &SHAPE,
                start: &part.start,
                count: &part.count,
            };
            let mut reserved = writer.reserve(&piece).unwrap().unwrap();
            reserved.memory.as_mut_slice().copy_from_slice(&plain(version, &SHAPE, &part));
            writer.commit(reserved).unwrap();
        }
        writer.end_step().unwrap();
    }
    assert_eq!(writer.stats().puts, 5);
    writer.close().unwrap();
}

/// Reads what [`write_split`] writes, split otherwise, to the end.
fn read_split(place: &Place, rank: u64, readers: u64, writers: u64) {
    let mut reader = place.reader(&options("analysis", rank as u32, readers as u32));
    let mut expected = 0;
    while let Some(version) = reader.begin_step(None).unwrap() {
        assert_eq!(version, expected, "every version, in order");
        expected += 1;
        for name in ["T", "U/x"] {
            for d in 0..3 {
                let part = slab(&SHAPE, d, rank, readers);
                assert_eq!(get(&mut reader, name, Some(&part)).unwrap(), plain(version, &SHAPE, &part));
            }
            assert_eq!(get(&mut reader, name, None).unwrap(), plain(version, &SHAPE, &NdBox::whole(&SHAPE)));
        }
        let names: Vec<String> = reader.variables().unwrap().into_iter().map(|v| v.name).collect();
        assert_eq!(names, ["T", "U/x"]);
        assert_eq!(reader.variable("U/x").unwrap().pieces.len(), 2 * writers as usize);
        reader.end_step().unwrap();
    }
    assert_eq!(expected, 5);
    assert_eq!(reader.attributes().unwrap()["title"], Attribute::Text("heat".into()));
    reader.close().unwrap();
}

#[test]
fn boxes_are_redistributed_from_m_to_n() {
    for (writers, readers) in [(1u64, 1u64), (2, 3), (4, 2), (3, 4)] {
        let place = Place::new();
        std::thread::scope(|scope| {
            for rank in 0..writers {
                let place = &place;
                scope.spawn(move || write_split(place, rank, writers, readers as u32));
            }
            for rank in 0..readers {
                let place = &place;
                scope.spawn(move || read_split(place, rank, readers, writers));
            }
        });
        assert!(!place.path().exists(), "read to the end by all, so that nothing is left");
    }
}

#[test]
fn a_version_is_visible_when_the_last_rank_is_done_and_the_error_names_who_is_missing() {
    let place = Place::new();
    let mut first = place.writer(&options("sim", 0, 3));
    let mut second = place.writer(&options("sim", 1, 3));
    put_step(&mut first).unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    let error = reader.begin_step(Some(SHORT)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    let text = error.to_string();
    assert!(text.contains("writer rank 1 of sim (pid "), "{text}");
    assert!(text.contains("writer rank 2 of sim never joined"), "{text}");
    assert!(!text.contains("rank 0"), "{text}");
    let mut third = place.writer(&options("sim", 2, 3));
    put_step(&mut second).unwrap();
    assert_eq!(reader.open_version(0).err().unwrap().kind(), Kind::TimedOut);
    assert_eq!(reader.latest().unwrap(), None);
    put_step(&mut third).unwrap();
    assert_eq!(reader.begin_step(Some(SHORT)).unwrap(), Some(0));
    reader.end_step().unwrap();
    for writer in [&mut first, &mut second, &mut third] {
        writer.close().unwrap();
    }
    assert_eq!(reader.begin_step(Some(SHORT)).unwrap(), None);
    assert_eq!(reader.wait(1, Some(SHORT)).unwrap_err().kind(), Kind::PeerMissing);
}

#[test]
fn a_dead_rank_is_named_and_what_was_complete_stays() {
    let place = Place::new();
    let mut first = place.writer(&options("sim", 0, 2));
    let mut second = place.writer(&options("sim", 1, 2));
    put_step(&mut first).unwrap();
    put_step(&mut second).unwrap();
    put_step(&mut first).unwrap();
    second.abandon();
    assert_eq!(second.begin_version(1).unwrap_err().kind(), Kind::Closed);
    let mut reader = place.reader(&options("analysis", 0, 1));
    assert_eq!(reader.begin_step(None).unwrap(), Some(0), "complete versions first");
    assert_eq!(get(&mut reader, "t", None).unwrap(), value(0, 0).to_ne_bytes());
    reader.end_step().unwrap();
    let error = reader.begin_step(None).unwrap_err();
    assert_eq!(error.kind(), Kind::ProducerDied);
    assert!(error.context().contains(&("rank", "1".into())), "{error}");
    assert!(error.context().contains(&("pid", std::process::id().to_string())), "{error}");
    assert_eq!(put_step(&mut first).unwrap_err().kind(), Kind::ProducerDied);
    assert_eq!(reader.source.versions().unwrap(), 1..1, "released, and nothing half done counts");
}

#[test]
fn a_restarted_group_goes_on_behind_the_last_complete_version_and_fences_the_old_one() {
    let place = Place::new();
    let keep = |rank| OpenOptions { retention: Some(Retention::Forever), ..options("sim", rank, 2) };
    let mut old = [place.writer(&keep(0)), place.writer(&keep(1))];
    for writer in &mut old {
        for _ in 0..4 {
            put_step(writer).unwrap();
        }
    }
    put_step(&mut old[1]).unwrap();
    old[1].begin_version(5).unwrap();
    put(&mut old[1], "late", 5, &[], &NdBox::whole(&[])).unwrap();
    old[0].abandon();
    let again = OpenOptions { mode: Mode::Append, ..keep(0) };
    let mut new = place.writer(&again);
    assert_eq!((new.sink.incarnation(), new.resume().unwrap()), (2, 4));
    assert_eq!(old[1].end_step().unwrap_err().kind(), Kind::Fenced);
    let error = FilesWriter::open(&place.name, &keep(1)).err().unwrap();
    assert_eq!(error.kind(), Kind::NameInUse, "the old rank 1 still lives");
    old[1].abandon();
    let mut other = place.writer(&keep(1));
    assert_eq!((other.sink.incarnation(), other.next_version()), (2, 4));
    assert_eq!(other.begin_version(3).unwrap_err().kind(), Kind::VersionExists);
    // Rank 0 starts three steps back; what it puts there has no effect.
    for version in 1..4 {
        assert!(!new.begin_version(version).unwrap());
        put(&mut new, "t", 999, &[], &NdBox::whole(&[])).unwrap();
        new.end_step().unwrap();
    }
    assert!(new.begin_version(4).unwrap());
    put(&mut new, "t", 4, &[], &NdBox::whole(&[])).unwrap();
    new.end_step().unwrap();
    assert_eq!(other.resume().unwrap(), 4);
    put_step(&mut other).unwrap();
    new.close().unwrap();
    other.close().unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    let mut seen = 0;
    while let Some(version) = reader.begin_step(None).unwrap() {
        assert_eq!(version, seen);
        assert_eq!(get(&mut reader, "t", None).unwrap(), value(version, 0).to_ne_bytes());
        assert_eq!(reader.array("late").unwrap_err().kind(), Kind::UnknownVariable);
        reader.end_step().unwrap();
        seen += 1;
    }
    assert_eq!(seen, 5);
    assert_eq!(reader.stats().steps, 5);
}

#[test]
fn a_group_of_another_size_may_follow_a_finished_one() {
    let place = Place::new();
    let keep = |rank, size| OpenOptions {
        retention: Some(Retention::Forever),
        mode: Mode::Append,
        ..options("sim", rank, size)
    };
    let mut one = place.writer(&keep(0, 1));
    put_step(&mut one).unwrap();
    one.close().unwrap();
    let mut two = [place.writer(&keep(0, 2)), place.writer(&keep(1, 2))];
    for writer in &mut two {
        assert_eq!(writer.resume().unwrap(), 1);
        put_step(writer).unwrap();
    }
    let mut reader = place.reader(&options("analysis", 0, 1));
    assert_eq!(reader.source.versions().unwrap(), 0..2);
    for (version, pieces) in [(0, 1), (1, 2)] {
        let mut opened = reader.open_version(version).unwrap();
        assert_eq!(opened.variable("t").unwrap().pieces.len(), pieces);
    }
}

#[test]
fn a_channel_goes_when_the_last_member_leaves_after_the_end_and_not_before() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    put_step(&mut writer).unwrap();
    writer.close().unwrap();
    assert!(place.path().exists(), "no reader has read it");
    let mut early = place.reader(&options("analysis", 0, 2));
    early.begin_step(None).unwrap();
    early.end_step().unwrap();
    assert_eq!(early.begin_step(None).unwrap(), None);
    early.close().unwrap();
    assert!(place.path().exists(), "rank 1 of the group has not come");
    let mut leaver = place.reader(&options("analysis", 1, 2));
    leaver.begin_step(None).unwrap();
    leaver.close().unwrap();
    assert!(place.path().exists(), "rank 1 did not see the end");
    let observe = OpenOptions { observer: true, ..options("cat", 0, 1) };
    let mut observer = place.reader(&observe);
    let mut again = place.reader(&options("analysis", 1, 2));
    assert_eq!(again.begin_step(None).unwrap(), None);
    again.close().unwrap();
    assert!(place.path().exists(), "a reader looks at it");
    observer.close().unwrap();
    let mut first = place.reader(&options("analysis", 0, 2));
    assert_eq!(first.begin_step(None).unwrap(), None);
    first.close().unwrap();
    assert!(!place.path().exists());
    // And the name is free for the next run.
    let mut next = place.writer(&options("sim", 0, 3));
    assert_eq!((next.sink.incarnation(), put_step(&mut next).unwrap()), (1, 0));
    let forever = Place::new();
    let mut writer =
        forever.writer(&OpenOptions { retention: Some(Retention::Forever), ..options("sim", 0, 1) });
    let mut reader = forever.reader(&options("analysis", 0, 1));
    writer.close().unwrap();
    assert_eq!(reader.begin_step(None).unwrap(), None);
    reader.close().unwrap();
    assert!(forever.path().exists());
}

#[test]
fn channels_are_listed_verified_and_cleaned_like_spaces() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 2));
    let mut reader = place.reader(&options("analysis", 0, 2));
    for _ in 0..2 {
        put_step(&mut writer).unwrap();
    }
    let info = crate::inspect(&place.name).unwrap();
    assert_eq!((info.state.as_str(), info.tier.as_str(), info.versions_complete), ("open", "files", 0));
    assert_eq!(info.producer.as_ref().map(|p| (p.joined, p.size)), Some((1, 2)));
    let mut other = place.writer(&options("sim", 1, 2));
    for _ in 0..2 {
        put_step(&mut other).unwrap();
    }
    reader.begin_step(None).unwrap();
    reader.end_step().unwrap();
    let info = crate::inspect(&place.name).unwrap();
    assert_eq!((info.versions_oldest, info.versions_complete, info.used_bytes), (0, 2, 32));
    assert_eq!(info.versions.iter().map(|v| (v.records, v.bytes)).collect::<Vec<_>>(), [(2, 16), (2, 16)]);
    assert_eq!(info.versions[0].variables, ["t"]);
    let members: Vec<_> = info.members.iter().map(|m| (m.role.as_str(), m.rank, m.steps, m.alive)).collect();
    assert_eq!(members, [("writer", 0, 2, true), ("writer", 1, 2, true), ("reader", 0, 1, true)]);
    assert_eq!(info.readers[0].version_min, Some(1));
    let report = crate::verify(&place.name).unwrap();
    assert_eq!((report.versions, report.records, report.bytes, report.damaged.len()), (2, 4, 32, 0));

    let clean = |dead_only, dry_run| {
        let options = crate::CleanOptions { names: vec![place.name.clone()], dead_only, dry_run };
        crate::clean(&options).unwrap()
    };
    assert!(clean(true, false).kept[0].reason.contains("in use by writer rank 0 of sim"));
    writer.close().unwrap();
    other.abandon();
    assert!(clean(true, false).kept[0].reason.contains("reader rank 0 of analysis"));
    drop(reader);
    assert_eq!(crate::inspect(&place.name).unwrap().state, "dead");
    let mut bytes = fs::read(&place.files(1, ".obj")[0]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&place.files(1, ".obj")[0], bytes).unwrap();
    assert_eq!(crate::verify(&place.name).unwrap().damaged.len(), 1);
    assert_eq!(clean(true, true).removed.len(), 1);
    assert!(place.path().exists(), "a dry run");
    assert_eq!(clean(true, false).removed[0].reason, "its processes are dead");
    assert!(!place.path().exists());
    assert_eq!(
        crate::clean(&crate::CleanOptions { names: vec![place.name.clone()], ..Default::default() })
            .unwrap_err()
            .kind(),
        Kind::PeerMissing
    );

    let mut writer = place.writer(&options("sim", 0, 1));
    crate::destroy(&place.name).unwrap();
    assert_eq!(put_step(&mut writer).unwrap_err().kind(), Kind::PeerMissing);
}

const CHILD: &str = "FILES_CHANNEL_TEST_CHILD";

/// Not a test: what the killed process of the next test runs.
#[test]
fn child_that_is_killed_while_it_writes() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let mut writer = FilesWriter::open(&name, &options("sim", 1, 2)).unwrap();
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    writer.begin_version(3).unwrap();
    put(&mut writer, "t", 3, &[], &NdBox::whole(&[])).unwrap();
    println!("written");
    std::thread::sleep(PATIENT);
}

#[test]
fn a_killed_process_is_a_dead_rank_and_its_place_is_free() {
    let place = Place::new();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::tests::child_that_is_killed_while_it_writes", "--nocapture"])
        .env(CHILD, &place.name)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    // The harness prints the test's name in front, on the same line.
    assert!(lines.any(|line| line.unwrap().ends_with("written")));
    let mut writer = place.writer(&options("sim", 0, 2));
    for _ in 0..4 {
        put_step(&mut writer).unwrap();
    }
    let error = FilesWriter::open(&place.name, &options("sim", 1, 2)).err().unwrap();
    assert_eq!(error.kind(), Kind::NameInUse);
    assert!(error.context().contains(&("pid", pid.to_string())), "{error}");
    let mut reader = place.reader(&options("analysis", 0, 1));
    let waiting = std::thread::spawn(move || {
        let mut seen = Vec::new();
        loop {
            match reader.begin_step(Some(PATIENT)) {
                Ok(version) => seen.extend(version),
                Err(e) => return (seen, e),
            }
            reader.end_step().unwrap();
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (seen, error) = waiting.join().unwrap();
    assert_eq!(seen, [0, 1, 2], "whole versions only");
    assert_eq!(error.kind(), Kind::ProducerDied);
    assert!(error.context().contains(&("pid", pid.to_string())), "{error}");
    let mut again = place.writer(&OpenOptions { mode: Mode::Append, ..options("sim", 1, 2) });
    assert_eq!((again.sink.incarnation(), again.resume().unwrap()), (2, 3));
    assert_eq!(put_step(&mut writer).unwrap_err().kind(), Kind::Fenced);
}

#[test]
fn released_versions_go_and_late_groups_see_what_is_left() {
    let place = Place::new();
    let mut o = options("sim", 0, 1);
    o.readers = vec![("analysis".into(), 2)];
    let mut writer = place.writer(&o);
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    let mut ranks = [place.reader(&options("analysis", 0, 2)), place.reader(&options("analysis", 1, 2))];
    ranks[0].begin_step(None).unwrap();
    ranks[0].end_step().unwrap();
    assert_eq!(place.version_dirs().len(), 3, "rank 1 has not released it");
    ranks[1].begin_step(None).unwrap();
    ranks[1].end_step().unwrap();
    assert_eq!(place.version_dirs(), ["v0000000001", "v0000000002"]);
    let mut viz = place.reader(&options("viz", 0, 1));
    assert_eq!(viz.begin_step(None).unwrap(), Some(1), "a late group");
    assert_eq!(viz.open_version(0).err().unwrap().kind(), Kind::VersionGone, "also within a step");
    viz.end_step().unwrap();
    assert_eq!(viz.wait(0, None).unwrap_err().kind(), Kind::VersionGone);
    viz.close().unwrap();
    for reader in &mut ranks {
        for version in 1..3 {
            assert_eq!(reader.begin_step(None).unwrap(), Some(version));
            reader.end_step().unwrap();
        }
    }
    assert!(place.version_dirs().is_empty(), "a group that left holds nothing");
    put_step(&mut writer).unwrap();
    ranks[0].leave().unwrap();
    assert_eq!(ranks[1].begin_step(None).unwrap(), Some(3));
    ranks[1].end_step().unwrap();
    assert!(place.version_dirs().is_empty(), "nor does a rank that left");
}

/// Reads so many versions, the first of which is `from`.
fn read_steps(reader: &mut FilesReader, from: u64, count: u64) {
    for version in from..from + count {
        assert_eq!(reader.begin_step(None).unwrap(), Some(version));
        assert_eq!(
            (get(reader, "t", None).unwrap(), reader.missed()),
            (value(version, 0).to_ne_bytes().into(), 0)
        );
        reader.end_step().unwrap();
    }
}

/// Those that go before it comes, and those that go while it is there; the end of the stream tells none twice.
#[test]
fn a_declared_group_is_told_once_what_it_missed() {
    for comes_late in [false, true] {
        let place = Place::new();
        let readers = vec![("viz".into(), 1)];
        let retention = Some(Retention::Last(1));
        let mut writer = place.writer(&OpenOptions { readers, retention, ..options("sim", 0, 1) });
        put_step(&mut writer).unwrap();
        let early = (!comes_late).then(|| place.reader(&options("viz", 0, 1)));
        (1..6).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
        writer.close().unwrap();
        let mut reader = early.unwrap_or_else(|| place.reader(&options("viz", 0, 1)));
        assert_eq!((reader.begin_step(None).unwrap(), reader.missed()), (Some(5), 5), "late: {comes_late}");
        reader.end_step().unwrap();
        assert_eq!((reader.begin_step(None).unwrap(), reader.missed()), (None, 0), "late: {comes_late}");
    }
}

#[test]
fn a_declared_group_goes_on_where_it_stopped() {
    let place = Place::new();
    let mut writer = place.writer(&OpenOptions { readers: vec![("viz".into(), 2)], ..options("sim", 0, 1) });
    (0..5).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    let rank = |rank| place.reader(&options("viz", rank, 2));
    let mut ranks = [rank(0), rank(1)];
    read_steps(&mut ranks[0], 0, 3);
    read_steps(&mut ranks[1], 0, 1);
    ranks.iter_mut().for_each(|reader| reader.close().unwrap());
    let mut other = place.reader(&options("other", 0, 1));
    read_steps(&mut other, 1, 4);
    other.close().unwrap();
    assert_eq!(place.version_dirs().len(), 4, "what a rank has not read stays while it is away");

    // The group comes again as a whole, then a rank by itself: after a close, and after a kill.
    let mut ranks = [rank(0), rank(1)];
    read_steps(&mut ranks[0], 1, 2);
    for was_killed in [false, true] {
        let [mut first, second] = ranks;
        first.close().unwrap();
        if was_killed {
            let file = place.path().join("reader-viz-0000.json");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains("\"ended\":true"), "{text}");
            fs::write(&file, text.replace("\"ended\":true", "\"ended\":false")).unwrap();
        }
        ranks = [rank(0), second];
        assert_eq!(ranks[0].begin_step(None).unwrap(), Some(3), "killed: {was_killed}");
    }
    ranks[0].end_step().unwrap();
    read_steps(&mut ranks[1], 1, 4);
    assert_eq!(place.version_dirs(), ["v0000000004"]);
    ranks.iter_mut().for_each(|reader| reader.leave().unwrap());
    assert!(place.version_dirs().is_empty(), "nothing is kept for a group that left for good");
}

#[test]
fn a_rank_that_left_for_good_is_not_awaited_when_its_group_comes_again() {
    let place = Place::new();
    let mut writer = place.writer(&OpenOptions { readers: vec![("viz".into(), 2)], ..options("sim", 0, 1) });
    (0..3).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    let rank = |rank| place.reader(&options("viz", rank, 2));
    let mut ranks = [rank(0), rank(1)];
    ranks.iter_mut().for_each(|reader| read_steps(reader, 0, 1));
    ranks[1].leave().unwrap();
    ranks[0].close().unwrap();
    let mut first = rank(0);
    read_steps(&mut first, 1, 2);
    assert!(place.version_dirs().is_empty());
}

#[test]
fn a_declared_group_that_is_away_is_named_and_can_be_removed() {
    let place = Place::new();
    let quota_bytes = Some(16);
    let readers = vec![("viz".into(), 1)];
    let mut writer =
        place.writer(&OpenOptions { readers, quota_bytes, timeout: SHORT, ..options("sim", 0, 1) });
    (0..2).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    let mut reader = place.reader(&options("viz", 0, 1));
    read_steps(&mut reader, 0, 1);
    reader.close().unwrap();
    assert_eq!(put_step(&mut writer).unwrap(), 2);
    let error = put_step(&mut writer).unwrap_err();
    let said = error.to_string();
    assert_eq!(error.kind(), Kind::QuotaFull);
    for words in ["reader group viz: rank 0 is absent and goes on at version 1", "clean --readers viz"] {
        assert!(said.contains(words), "{said}");
    }
    crate::remove_reader_group(&place.name, "viz").unwrap();
    assert_eq!(put_step(&mut writer).unwrap(), 3);
}

#[test]
fn a_declared_group_that_has_not_come_is_waited_for() {
    let place = Place::new();
    let mut o = options("sim", 0, 1);
    o.readers = vec![("slow".into(), 1)];
    let mut writer = place.writer(&o);
    put_step(&mut writer).unwrap();
    let mut fast = place.reader(&options("fast", 0, 1));
    fast.begin_step(None).unwrap();
    fast.end_step().unwrap();
    assert_eq!(place.version_dirs().len(), 1);
    let error = FilesReader::open(&place.name, &options("slow", 0, 2)).err().unwrap();
    assert_eq!(error.kind(), Kind::GroupMismatch);
    let mut slow = place.reader(&options("slow", 0, 1));
    assert_eq!(slow.begin_step(None).unwrap(), Some(0));
    slow.end_step().unwrap();
    assert!(place.version_dirs().is_empty());
}

#[test]
fn a_reader_group_that_starts_again_waits_for_all_its_ranks_again() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    put_step(&mut writer).unwrap();
    for rank in 0..2 {
        place.reader(&options("analysis", rank, 2)).close().unwrap();
    }
    put_step(&mut writer).unwrap();
    let mut first = place.reader(&options("analysis", 0, 2));
    let oldest = first.source.versions().unwrap().start;
    assert_eq!(first.begin_step(None).unwrap(), Some(oldest));
    first.end_step().unwrap();
    let mut second = place.reader(&options("analysis", 1, 2));
    assert_eq!(second.begin_step(None).unwrap(), Some(oldest));
}

#[test]
fn the_last_k_stay_and_what_is_read_stays_too() {
    let place = Place::new();
    let mut writer =
        place.writer(&OpenOptions { retention: Some(Retention::Last(2)), ..options("sim", 0, 1) });
    put_step(&mut writer).unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    for _ in 0..4 {
        put_step(&mut writer).unwrap();
    }
    assert_eq!(get(&mut reader, "t", None).unwrap(), value(0, 0).to_ne_bytes(), "held by the open step");
    assert_eq!(reader.source.versions().unwrap(), 0..5);
    reader.end_step().unwrap();
    assert_eq!(reader.source.versions().unwrap(), 3..5);
    assert_eq!(reader.begin_step(None).unwrap(), Some(3), "the ones between are gone");
    assert_eq!(reader.stats().skipped, 2);
}

#[test]
fn readers_of_the_latest_version_agree_on_it() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    let latest = |rank| OpenOptions { latest: true, ..options("analysis", rank, 2) };
    let mut first = place.reader(&latest(0));
    assert_eq!(first.begin_step(None).unwrap(), Some(2));
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    let mut second = place.reader(&latest(1));
    assert_eq!(second.begin_step(None).unwrap(), Some(2), "what the first rank chose");
    first.end_step().unwrap();
    second.end_step().unwrap();
    assert_eq!(second.begin_step(None).unwrap(), Some(5));
    put_step(&mut writer).unwrap();
    assert_eq!(first.begin_step(None).unwrap(), Some(5));
}

#[test]
fn observers_hold_what_they_look_at_and_nothing_else() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    let observe = OpenOptions { observer: true, ..options("cat", 0, 1) };
    let (mut first, mut two) = (place.reader(&observe), place.reader(&observe));
    let mut one = first.open_version(1).unwrap();
    first.close().unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    for _ in 0..3 {
        reader.begin_step(None).unwrap();
        reader.end_step().unwrap();
    }
    assert_eq!(place.version_dirs(), ["v0000000001", "v0000000002"], "the lease holds what is newer, too");
    assert_eq!(get(&mut one, "t", None).unwrap(), value(1, 0).to_ne_bytes());
    one.close().unwrap();
    assert!(place.version_dirs().is_empty());
    assert_eq!(two.latest().unwrap(), None);
    two.close().unwrap();
    let left = fs::read_dir(place.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("observer"));
    assert_eq!(left.count(), 0);
    let nowhere = Place::new();
    assert_eq!(FilesReader::open(&nowhere.name, &observe).err().unwrap().kind(), Kind::PeerMissing);
}

#[test]
fn a_full_channel_blocks_names_the_holder_and_goes_on() {
    let place = Place::new();
    let mut o = OpenOptions { quota_bytes: Some(20), ..options("sim", 0, 1) };
    o.timeout = SHORT;
    let mut writer = place.writer(&o);
    let mut reader = place.reader(&options("analysis", 0, 1));
    for _ in 0..3 {
        put_step(&mut writer).unwrap();
    }
    let error = put_step(&mut writer).unwrap_err();
    assert_eq!(error.kind(), Kind::QuotaFull);
    assert!(error.to_string().contains("reader rank 0 of analysis"), "{error}");
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    reader.end_step().unwrap();
    assert_eq!(put_step(&mut writer).unwrap(), 3);
    drop(reader);
    assert_eq!(put_step(&mut writer).unwrap(), 4, "who left holds nothing");
    writer.begin_version(5).unwrap();
    let error = put(&mut writer, "big", 5, &[3], &NdBox::whole(&[3])).unwrap_err();
    assert_eq!(error.kind(), Kind::VersionTooLarge);
}

#[test]
fn two_runs_with_one_name_and_other_mistakes_at_open() {
    let place = Place::new();
    let writer = place.writer(&OpenOptions { retention: Some(Retention::Forever), ..options("sim", 0, 2) });
    let fail = |options: OpenOptions| FilesWriter::open(&place.name, &options).err().unwrap().kind();
    assert_eq!(fail(options("sim", 0, 2)), Kind::NameInUse);
    assert_eq!(fail(options("sim", 1, 3)), Kind::GroupMismatch);
    let other = OpenOptions { retention: Some(Retention::Last(1)), ..options("sim", 1, 2) };
    assert_eq!(fail(other), Kind::OptionMismatch);
    assert_eq!(
        fail(OpenOptions { horizon: Some(Horizon::Epoch), ..options("sim", 1, 2) }),
        Kind::OptionMismatch
    );
    assert_eq!(fail(OpenOptions { checksum: Some(false), ..options("sim", 1, 2) }), Kind::OptionMismatch);
    let reader = place.reader(&options("analysis", 0, 2));
    let refused = |o: OpenOptions| FilesReader::open(&place.name, &o).err().unwrap().kind();
    assert_eq!(refused(options("analysis", 0, 2)), Kind::NameInUse);
    assert_eq!(refused(options("analysis", 1, 3)), Kind::GroupMismatch);
    drop((reader, writer));

    let nowhere = Place::new();
    let brief = OpenOptions { timeout: SHORT, ..options("analysis", 0, 1) };
    assert_eq!(FilesReader::open(&nowhere.name, &brief).err().unwrap().kind(), Kind::PeerMissing);
    let unsafe_options =
        OpenOptions { checksum: Some(false), horizon: Some(Horizon::Epoch), ..options("sim", 0, 1) };
    assert_eq!(FilesWriter::open(&nowhere.name, &unsafe_options).err().unwrap().kind(), Kind::Usage);
    fs::create_dir_all(nowhere.path()).unwrap();
    fs::write(nowhere.path().join("thesis.tex"), "").unwrap();
    let error = FilesWriter::open(&nowhere.name, &options("sim", 0, 1)).err().unwrap();
    assert_eq!(error.kind(), Kind::Damaged, "a foreign directory is left alone");
    fs::rename(nowhere.path().join("thesis.tex"), nowhere.path().join("pool")).unwrap();
    let error = FilesWriter::open(&nowhere.name, &options("sim", 0, 1)).err().unwrap();
    assert_eq!(error.kind(), Kind::OptionMismatch);
    // At once: no channel of files will have this name.
    let error = FilesReader::open(&nowhere.name, &options("analysis", 0, 1)).err().unwrap();
    assert_eq!(error.kind(), Kind::OptionMismatch);
}

#[test]
fn empty_boxes_and_views_of_a_part() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    writer.begin_version(0).unwrap();
    put(&mut writer, "x", 0, &[4], &slab(&[4], 0, 0, 2)).unwrap();
    put(&mut writer, "empty", 0, &[4], &NdBox::new(&[4], &[0]).unwrap()).unwrap();
    writer.end_step().unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    reader.begin_step(None).unwrap();
    let view = reader.view("x", Some(&NdBox::new(&[1], &[1]).unwrap())).unwrap();
    assert_eq!((view.bytes(), view.shape()), (&value(0, 1).to_ne_bytes()[..], &[1u64][..]));
    reader.get("empty", Some(&NdBox::new(&[4], &[0]).unwrap()), &mut []).unwrap();
    reader.close().unwrap();
    assert_eq!(reader.begin_step(None).unwrap_err().kind(), Kind::Closed);
}

#[test]
fn ranks_that_disagree_are_found_out() {
    let place = Place::new();
    let mut ranks = [place.writer(&options("sim", 0, 2)), place.writer(&options("sim", 1, 2))];
    for (rank, writer) in ranks.iter_mut().enumerate() {
        writer.begin_version(0).unwrap();
        let shape = [4 + rank as u64];
        put(writer, "T", 0, &shape, &slab(&shape, 0, rank as u64, 2)).unwrap();
        writer.end_step().unwrap();
    }
    let mut reader = place.reader(&options("analysis", 0, 1));
    reader.begin_step(None).unwrap();
    assert_eq!(get(&mut reader, "T", None).unwrap_err().kind(), Kind::VariableMismatch);
    assert_eq!(reader.variables().unwrap_err().kind(), Kind::VariableMismatch);
}

#[test]
fn names_that_look_alike_as_file_names_are_told_apart() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    let long = "n".repeat(1024);
    let names = ["a/b", "a_b", "a b", "..", ".", "ü", &long, &long[..1000], "a-b.obj"];
    writer.begin_version(0).unwrap();
    for (i, name) in names.iter().enumerate() {
        put(&mut writer, name, i as u64, &[], &NdBox::whole(&[])).unwrap();
    }
    writer.end_step().unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    reader.begin_step(None).unwrap();
    for (i, name) in names.iter().enumerate() {
        assert_eq!(get(&mut reader, name, None).unwrap(), value(i as u64, 0).to_ne_bytes(), "{name}");
    }
    assert_eq!(reader.variables().unwrap().len(), names.len());
}

#[test]
fn damage_is_noticed() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    for _ in 0..4 {
        put_step(&mut writer).unwrap();
    }
    let object = |version| place.files(version, ".obj").remove(0);
    // Version 0: a changed payload. Version 1: cut off. Version 2: an object is missing. Version 3: a foreign
    // one.
    let mut bytes = fs::read(object(0)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(object(0), &bytes).unwrap();
    fs::write(object(1), &bytes[..bytes.len() - 1]).unwrap();
    fs::copy(object(0), object(3)).unwrap();
    fs::remove_file(object(2)).unwrap();
    let trusting = OpenOptions { verify: Verify::Never, ..options("trusting", 0, 1) };
    let mut trusting = place.reader(&trusting);
    let mut reader = place.reader(&options("analysis", 0, 1));
    for version in 0..4u64 {
        if version == 2 {
            assert_eq!(reader.begin_step(None).unwrap_err().kind(), Kind::Damaged);
            break;
        }
        assert_eq!(reader.begin_step(None).unwrap(), Some(version));
        assert_eq!(get(&mut reader, "t", None).unwrap_err().kind(), Kind::Damaged, "version {version}");
        assert_eq!(reader.view("t", None).err().unwrap().kind(), Kind::Damaged, "version {version}");
        reader.end_step().unwrap();
    }
    trusting.begin_step(None).unwrap();
    get(&mut trusting, "t", None).unwrap();
    trusting.end_step().unwrap();
    let mut three = reader.open_version(3).unwrap();
    assert_eq!(get(&mut three, "t", None).unwrap_err().kind(), Kind::Damaged);
}

#[test]
fn damaged_and_unknown_channels_are_refused() {
    let place = Place::new();
    place.writer(&options("sim", 0, 1)).close().unwrap();
    let file = place.path().join("stream.json");
    let good = fs::read_to_string(&file).unwrap();
    for (content, kind) in [
        (good.replace("forebay.files/1", "forebay.files/2"), Kind::UnknownFormat),
        (good.replace("forebay.files/1", "something else"), Kind::Damaged),
        (good[..good.len() / 2].to_string(), Kind::Damaged),
        (good.replace("\"host\":\"", "\"host\":\"not-"), Kind::PoolOwnedElsewhere),
    ] {
        fs::write(&file, content).unwrap();
        let error = FilesWriter::open(&place.name, &options("sim", 0, 1)).err().unwrap();
        assert_eq!(error.kind(), kind);
        assert_eq!(FilesReader::open(&place.name, &options("r", 0, 1)).err().unwrap().kind(), kind);
    }
}

#[test]
fn a_damaged_channel_can_be_cleaned_and_what_is_none_stays() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    put_step(&mut writer).unwrap();
    let file = place.path().join("stream.json");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    let names = vec![place.name.clone()];
    let clean = |dead_only| crate::clean(&CleanOptions { names: names.clone(), dead_only, dry_run: false });
    let kept = clean(false).unwrap().kept;
    assert!(kept[0].reason.contains("in use"), "{kept:?}");
    drop(writer);
    assert_eq!(clean(true).unwrap_err().kind(), Kind::Damaged);
    fs::write(place.path().join("thesis.tex"), "").unwrap();
    assert_eq!(clean(false).unwrap_err().kind(), Kind::Damaged);
    fs::remove_file(place.path().join("thesis.tex")).unwrap();
    assert_eq!(clean(false).unwrap().removed.len(), 1);
    assert!(!place.path().exists());
}

#[test]
fn durable_horizons_work_and_say_what_they_promise() {
    for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
        let place = Place::new();
        let mut writer = place.writer(&OpenOptions { horizon: Some(horizon), ..options("sim", 0, 1) });
        let on_memory = forebay_tier::detect(place.path()).unwrap() == forebay_tier::TierKind::Dram;
        let expected =
            if horizon == Horizon::None || on_memory { Durability::Process } else { Durability::Power };
        assert_eq!(writer.sink.durability(), expected);
        put_step(&mut writer).unwrap();
        let mut reader = place.reader(&options("analysis", 0, 1));
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        assert_eq!(get(&mut reader, "t", None).unwrap(), value(0, 0).to_ne_bytes());
    }
}

#[test]
fn a_removed_channel_is_said_to_be_removed() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    put_step(&mut writer).unwrap();
    let mut reader = place.reader(&options("analysis", 0, 1));
    fs::remove_dir_all(place.path()).unwrap();
    assert_eq!(reader.begin_step(Some(SHORT)).unwrap_err().kind(), Kind::PeerMissing);
    assert_eq!(put_step(&mut writer).unwrap_err().kind(), Kind::PeerMissing);
}

#[test]
fn readers_of_different_speed_see_everything_while_versions_come_and_go() {
    let place = Place::new();
    let mut o = OpenOptions { quota_bytes: Some(64), ..options("sim", 0, 1) };
    o.readers = vec![("a".into(), 1), ("b".into(), 2)];
    std::thread::scope(|scope| {
        let place = &place;
        scope.spawn(move || {
            let mut writer = place.writer(&o);
            for _ in 0..40 {
                put_step(&mut writer).unwrap();
            }
        });
        for (group, rank, size) in [("a", 0, 1), ("b", 0, 2), ("b", 1, 2)] {
            scope.spawn(move || {
                let mut reader = place.reader(&options(group, rank, size));
                let mut expected = 0;
                while let Some(version) = reader.begin_step(None).unwrap() {
                    assert_eq!(version, expected);
                    assert_eq!(get(&mut reader, "t", None).unwrap(), value(version, 0).to_ne_bytes());
                    if group == "a" {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    reader.end_step().unwrap();
                    expected += 1;
                }
                assert_eq!(expected, 40);
            });
        }
    });
    assert!(!place.path().exists());
}

#[test]
fn a_leftover_of_a_crashed_removal_does_not_count() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    put_step(&mut writer).unwrap();
    fs::create_dir(place.path().join(".gone-v0000000000")).unwrap();
    fs::create_dir(place.path().join("vacation")).unwrap();
    let stream = Stream::open(&place.name, place.path(), &options("x", 0, 1), false).unwrap().unwrap();
    assert_eq!(stream.version_dirs().unwrap(), [0]);
    assert_eq!(stream.complete_count().unwrap(), 1);
}

#[test]
fn a_replacement_with_no_time_left_is_made_all_the_same() {
    let place = Place::new();
    let sim = OpenOptions { retention: Some(Retention::Forever), ..options("sim", 0, 1) };
    let mut writer = place.writer(&sim);
    put_step(&mut writer).unwrap();
    writer.close().unwrap();
    // One that cannot be made leaves what is there.
    let impossible = OpenOptions { checksum: Some(false), horizon: Some(Horizon::Epoch), ..sim.clone() };
    assert_eq!(FilesWriter::open(&place.name, &impossible).map(drop).unwrap_err().kind(), Kind::Usage);
    assert_eq!(place.version_dirs().len(), 1);
    let hurried = OpenOptions { timeout: Duration::ZERO, ..sim };
    let mut writer = place.writer(&hurried);
    assert_eq!(place.version_dirs().len(), 0);
    assert_eq!(put_step(&mut writer).unwrap(), 0);
    writer.close().unwrap();
    let beside = fs::read_dir(place.path().parent().unwrap()).unwrap();
    assert_eq!(beside.count(), 1, "nothing under a hidden name");
}

#[test]
fn a_reader_that_only_looked_leaves_everything_to_the_next() {
    for readers in [Vec::new(), vec![("viz".to_string(), 1)]] {
        let place = Place::new();
        let mut writer = place.writer(&OpenOptions { readers, ..options("sim", 0, 1) });
        (0..3).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
        place.reader(&options("viz", 0, 1)).close().unwrap();
        assert_eq!(place.version_dirs().len(), 3);
        let mut reader = place.reader(&options("viz", 0, 1));
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        reader.end_step().unwrap();
        writer.close().unwrap();
        reader.close().unwrap();
    }
}

#[test]
fn a_step_that_could_not_be_ended_is_open_still() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    (0..2).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    let mut reader = place.reader(&OpenOptions { timeout: SHORT, ..options("viz", 0, 1) });
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    let stream = Stream::open(&place.name, place.path(), &options("x", 0, 1), false).unwrap().unwrap();
    let members = stream.members.clone();
    members
        .with_lock(super::stream::LOCK_STREAM, PATIENT, || {
            assert_eq!(reader.end_step().unwrap_err().kind(), Kind::TimedOut);
            Ok(())
        })
        .unwrap();
    assert_eq!((reader.version(), stream.readers().unwrap()[0].cursor), (Some(0), 0));
    reader.end_step().unwrap();
    assert_eq!(stream.readers().unwrap()[0].cursor, 1);
    assert_eq!(reader.begin_step(None).unwrap(), Some(1));
    reader.end_step().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_damaged_channel_is_cleaned_whatever_it_held() {
    for damage in ["damaged", "gone"] {
        let place = Place::new();
        let mut writer = place.writer(&options("sim", 0, 1));
        writer.set_attribute("title", &Attribute::Text("heat".into())).unwrap();
        put_step(&mut writer).unwrap();
        let mut reader = place.reader(&OpenOptions { latest: true, ..options("viz", 0, 1) });
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        reader.end_step().unwrap();
        put_step(&mut writer).unwrap();
        writer.close().unwrap();
        reader.close().unwrap();
        match damage {
            "damaged" => fs::write(place.path().join("stream.json"), "{").unwrap(),
            _ => fs::remove_file(place.path().join("stream.json")).unwrap(),
        }
        let all = CleanOptions { names: vec![place.name.clone()], ..CleanOptions::default() };
        assert_eq!(crate::clean(&all).unwrap().removed.len(), 1, "{damage}");
        assert!(!place.path().exists());
    }
}

#[test]
fn what_a_killed_process_did_not_drop_is_dropped_later() {
    let place = Place::new();
    let mut writer = place.writer(&options("sim", 0, 1));
    let mut reader = place.reader(&options("viz", 0, 1));
    put_step(&mut writer).unwrap();
    let left = place.path().join("left");
    fs::create_dir(&left).unwrap();
    let first = place.path().join(&place.version_dirs()[0]);
    for file in fs::read_dir(&first).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), left.join(file.file_name())).unwrap();
    }
    reader.begin_step(None).unwrap();
    reader.end_step().unwrap();
    fs::rename(left, first).unwrap();
    let stream = Stream::open(&place.name, place.path(), &options("x", 0, 1), false).unwrap().unwrap();
    assert_eq!((stream.bytes_below(u64::MAX).unwrap(), place.version_dirs().len()), (0, 1));
    put_step(&mut writer).unwrap();
    reader.begin_step(None).unwrap();
    reader.end_step().unwrap();
    assert_eq!(place.version_dirs().len(), 0);
    writer.close().unwrap();
}

#[test]
fn an_observer_changes_nothing_of_a_declared_group() {
    let place = Place::new();
    let mut writer = place.writer(&OpenOptions { readers: vec![("viz".into(), 2)], ..options("sim", 0, 1) });
    let latest = |rank| place.reader(&OpenOptions { latest: true, ..options("viz", rank, 2) });
    (0..2).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    let mut ranks = [latest(0), latest(1)];
    assert_eq!(ranks[0].begin_step(None).unwrap(), Some(1));
    drop(place.reader(&OpenOptions { observer: true, ..options("viz", 0, 2) }));
    put_step(&mut writer).unwrap();
    assert_eq!(ranks[1].begin_step(None).unwrap(), Some(1), "what the first of them found");
}

/// Reads so many versions, the first of which is `from`, then the end, and closes.
fn read_to_the_end(mut reader: FilesReader, from: u64, count: u64) {
    read_steps(&mut reader, from, count);
    assert_eq!(reader.begin_step(None).unwrap(), None);
    reader.close().unwrap();
}

#[test]
fn a_process_with_a_replaced_channel_open_writes_nothing_into_the_new_one() {
    let place = Place::new();
    let declared = || OpenOptions { readers: vec![("viz".into(), 1)], ..options("sim", 0, 1) };
    let mut writer = place.writer(&declared());
    put_step(&mut writer).unwrap();
    let mut reader = place.reader(&options("viz", 0, 1));
    read_steps(&mut reader, 0, 1);
    let before = fs::read_dir(place.path()).unwrap().count();
    crate::destroy(&place.name).unwrap();
    let mut second = place.writer(&declared());
    put_step(&mut second).unwrap();
    assert_eq!(reader.source.note_ended(1).unwrap_err().kind(), Kind::PeerMissing);
    writer.close().unwrap();
    reader.close().unwrap();
    let found = fs::read_dir(place.path()).unwrap().count();
    assert_eq!(found, before - 1, "the reader's cursor is not there");
    read_steps(&mut place.reader(&options("viz", 0, 1)), 0, 1);
    assert!(!place.path().join("r0000.closed").exists());
}

#[test]
fn a_group_whose_cursor_is_damaged_can_be_removed() {
    let place = Place::new();
    let readers = vec![("viz".into(), 1), ("viz-2".into(), 1)];
    let mut writer = place.writer(&OpenOptions { readers, ..options("sim", 0, 1) });
    (0..2).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    for group in ["viz", "viz-2"] {
        read_steps(&mut place.reader(&options(group, 0, 1)), 0, 1);
    }
    fs::write(place.path().join("reader-viz-0000.json"), "{").unwrap();
    let error = FilesReader::open(&place.name, &options("viz-2", 0, 1)).err().unwrap();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.hint_text().is_some_and(|hint| hint.contains("clean --readers")), "{error}");
    crate::remove_reader_group(&place.name, "viz").unwrap();
    read_steps(&mut place.reader(&options("viz-2", 0, 1)), 1, 1);
    assert!(place.version_dirs().is_empty());
}

#[test]
fn ranks_of_a_declared_group_that_come_one_after_the_other_read_all_once() {
    let place = Place::new();
    let mut writer = place.writer(&OpenOptions { readers: vec![("viz".into(), 2)], ..options("sim", 0, 1) });
    (0..3).for_each(|version| assert_eq!(put_step(&mut writer).unwrap(), version));
    writer.close().unwrap();
    let finished = |rank| place.reader(&OpenOptions { finished: true, ..options("viz", rank, 2) });
    read_to_the_end(finished(0), 0, 3);
    let mut second = finished(1);
    read_steps(&mut second, 0, 1);
    // As after a kill, and with a rank that had read to the end in between.
    second.close().unwrap();
    read_to_the_end(finished(1), 1, 2);
    assert!(!place.path().exists(), "all of it was read");
}

#[test]
fn a_group_that_has_left_keeps_nothing_of_a_channel_that_the_others_have_read() {
    for waits in [false, true] {
        let place = Place::new();
        let readers = vec![("viz".into(), 1), ("stats".into(), 1)];
        let mut writer = place.writer(&OpenOptions { readers, ..options("sim", 0, 1) });
        put_step(&mut writer).unwrap();
        let mut viz = place.reader(&options("viz", 0, 1));
        if waits {
            writer.close().unwrap();
            read_to_the_end(viz, 0, 1);
            // It has read all of it, and waits for writers that go on.
            viz = place.reader(&options("viz", 0, 1));
        }
        viz.leave().unwrap();
        let left = fs::read_to_string(place.path().join("reader-viz-0000.json")).unwrap();
        assert!(left.contains("\"left\":true"), "{left}");
        writer.close().unwrap();
        assert!(place.path().exists(), "the other group has not read it");
        read_to_the_end(place.reader(&OpenOptions { finished: true, ..options("stats", 0, 1) }), 0, 1);
        assert!(!place.path().exists());
    }
}
