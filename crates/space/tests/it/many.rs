//! Many small objects in one call: they come back as single ones do, and an error says which object it is about.

use crate::support::{options, ranked, reader, writer, Root};
use forebay_space::{Dtype, Kind, Mechanism, Mode, OpenOptions, Piece, Reader, Writer};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("block_{i:06}")).collect()
}

/// Objects of `bytes` bytes, different everywhere.
fn content(count: usize, bytes: usize, version: u64) -> Vec<u8> {
    (0..count * bytes).map(|i| (i as u64 * 31 + i as u64 / 251 + version * 7) as u8).collect()
}

fn context<'a>(error: &'a forebay_space::Error, key: &str) -> &'a str {
    let found = error.context().iter().find(|(k, _)| *k == key);
    &found.unwrap_or_else(|| panic!("no {key} in {error}")).1
}

fn round_trip(channel: Mechanism, count: usize) {
    let root = Root::new();
    let name = root.name("many");
    let with = OpenOptions { channel, quota_bytes: Some(64 << 20), ..options() };
    let mut w = Writer::open(&name, &with).unwrap();
    let labels = names(count);
    for version in 0..2 {
        w.begin_step().unwrap();
        w.put_many(&labels, Dtype::F64, &[9, 8], &content(count, 576, version)).unwrap();
        w.put_array("single", &[2], &[0], &[2], &[version, 5]).unwrap();
        w.end_step().unwrap();
    }
    assert_eq!(w.stats().puts, 2 * count as u64 + 2);
    w.close().unwrap();
    let mut r = Reader::open(&name, &with).unwrap();
    for version in 0..2 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        let expected = content(count, 576, version);
        let mut out = vec![0; count * 576];
        r.get_many(&labels, &mut out).unwrap();
        assert!(out == expected, "version {version} differs");
        // Any order, any subset, and one at a time.
        let some: Vec<usize> = (0..count).rev().step_by(7).collect();
        let chosen: Vec<&str> = some.iter().map(|i| labels[*i].as_str()).collect();
        let mut out = vec![0; some.len() * 576];
        r.get_many(&chosen, &mut out).unwrap();
        for (i, part) in some.iter().zip(out.chunks(576)) {
            assert!(part == &expected[i * 576..][..576], "object {i} differs");
        }
        let (dtype, shape) = r.array(&labels[count / 2]).unwrap();
        assert_eq!((dtype, &shape[..]), (Dtype::F64, &[9, 8][..]));
        assert_eq!(r.get_array::<u64>("single", None).unwrap(), [version, 5]);
        assert_eq!(r.variables().unwrap().len(), count + 1);
        r.end_step().unwrap();
    }
}

#[test]
fn many_objects_go_through_a_space() {
    // Some 25 MiB a version: several segments.
    round_trip(Mechanism::Space, 20_000);
}

#[test]
fn many_objects_go_through_files() {
    round_trip(Mechanism::Files, 50);
}

#[test]
fn an_object_is_shown_where_it_lies() {
    let root = Root::new();
    let name = root.name("shown");
    let mut w = writer(&name, 0, 1).unwrap();
    w.begin_step().unwrap();
    w.put_array("whole", &[3], &[0], &[3], &[1u32, 2, 3]).unwrap();
    w.put_array("halves", &[4], &[0], &[2], &[1u32, 2]).unwrap();
    w.put_array("halves", &[4], &[2], &[2], &[3u32, 4]).unwrap();
    w.end_step().unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    let mut look = |name: &str, most: usize| {
        r.with_object(name, most, |dtype, shape, bytes| (dtype, shape.to_vec(), bytes.to_vec())).unwrap()
    };
    let bytes = [1u8, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0].to_vec();
    assert_eq!(look("whole", 12), Some((Dtype::U32, vec![3], bytes)));
    assert_eq!(look("whole", 11), None, "larger than asked for");
    assert_eq!(look("halves", 100), None, "two pieces");
    assert_eq!(look("missing", 100), None);
    assert_eq!(r.stats().gets, 1);
}

#[test]
fn errors_name_the_object_and_leave_what_came_before() {
    let root = Root::new();
    let name = root.name("errors");
    let mut w = writer(&name, 0, 1).unwrap();
    let labels = ["a", "b", "", "d"];
    let data = content(4, 16, 0);
    assert_eq!(w.put_many(&labels, Dtype::U8, &[16], &data).unwrap_err().kind(), Kind::StepState);
    w.begin_step().unwrap();
    let short = w.put_many(&labels, Dtype::U8, &[16], &data[1..]).unwrap_err();
    assert_eq!((short.kind(), w.stats().puts), (Kind::BufferMismatch, 0), "{short}");
    let error = w.put_many(&labels, Dtype::U8, &[16], &data).unwrap_err();
    assert_eq!((error.kind(), context(&error, "object")), (Kind::BadName, "2"), "{error}");
    // Going on with the rest, of another shape.
    let (start, count) = ([0], [4]);
    let rest = [("c", 8), ("d", 12), ("e", 13)];
    let piece = |name, bytes| Piece { name, dtype: Dtype::U8, shape: &[4], start: &start, count: bytes };
    let mut done = 2;
    let pieces = rest.iter().map(|(name, at)| (piece(name, &count), &data[*at..(*at + 4).min(16)]));
    let error = w.put_each(pieces, &mut done).unwrap_err();
    assert_eq!((error.kind(), done), (Kind::BufferMismatch, 4), "{error}");
    assert_eq!((context(&error, "object"), context(&error, "variable")), ("4", "e"));
    w.end_step().unwrap();

    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    let found: Vec<String> = r.variables().unwrap().into_iter().map(|v| v.name).collect();
    assert_eq!(found, ["a", "b", "c", "d"]);
    let mut out = [0; 32];
    assert_eq!(r.get_many(&["a", "b", "c"], &mut out).unwrap_err().kind(), Kind::BufferMismatch);
    let error = r.get_many(&["a", "c"], &mut out).unwrap_err();
    assert_eq!((error.kind(), context(&error, "object")), (Kind::BufferMismatch, "1"), "{error}");
    assert!(out[..16] == data[..16], "what came before the error was not copied");
    let error = r.get_many(&["b", "x"], &mut out).unwrap_err();
    assert_eq!((error.kind(), context(&error, "variable")), (Kind::UnknownVariable, "x"), "{error}");
    r.get_many::<&str>(&[], &mut []).unwrap();
}

#[test]
fn ranks_that_disagree_are_told_which_object() {
    let root = Root::new();
    let name = root.name("ranks");
    let (mut a, mut b) = (writer(&name, 0, 2).unwrap(), writer(&name, 1, 2).unwrap());
    a.begin_step().unwrap();
    b.begin_step().unwrap();
    a.put_many(&["x", "y"], Dtype::U8, &[4], &[1; 8]).unwrap();
    let error = b.put_many(&["z", "y"], Dtype::U8, &[2], &[1; 4]).unwrap_err();
    assert_eq!((error.kind(), context(&error, "object")), (Kind::VariableMismatch, "1"), "{error}");
}

#[test]
fn a_complete_version_takes_nothing_more() {
    let root = Root::new();
    let name = root.name("skipped");
    let with = OpenOptions { mode: Mode::Append, ..ranked(0, 1) };
    let keep = reader_after_first_version(&name, &with);
    let mut w = Writer::open(&name, &with).unwrap();
    assert!(!w.begin_version(0).unwrap());
    w.put_many(&["x", "y"], Dtype::U8, &[1], &[8, 9]).unwrap();
    w.end_step().unwrap();
    let mut r = keep;
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    let mut out = [0; 2];
    r.get_many(&["x", "y"], &mut out).unwrap();
    assert_eq!(out, [1, 2]);
}

/// Puts version 0 with a writer that goes, under the eyes of a reader that keeps it.
fn reader_after_first_version(name: &str, with: &OpenOptions) -> Reader {
    let mut w = Writer::open(name, with).unwrap();
    let r = reader(name, 0, 1).unwrap();
    w.begin_step().unwrap();
    w.put_many(&["x", "y"], Dtype::U8, &[1], &[1, 2]).unwrap();
    w.end_step().unwrap();
    w.abandon();
    r
}
