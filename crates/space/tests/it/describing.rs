//! Concatenated variables, names of dimensions, attributes of variables and of versions, through both kinds of channel.

use crate::support::{options, ranked, soon, Root};
use forebay_space::{
    Attribute, Description, Dtype, Kind, Mechanism, NdBox, OpenOptions, Reader, VersionBacking, Writer,
    CONCAT,
};
use std::collections::BTreeMap;

const CHANNELS: [Mechanism; 2] = [Mechanism::Space, Mechanism::Files];

fn writers(name: &str, channel: Mechanism, size: u32) -> Vec<Writer> {
    let open = |rank| Writer::open(name, &OpenOptions { channel, ..ranked(rank, size) }).unwrap();
    (0..size).map(open).collect()
}

fn reader(name: &str, channel: Mechanism) -> Reader {
    Reader::open(name, &OpenOptions { channel, observer: true, ..options() }).unwrap()
}

/// Rows of two numbers, which say where they come from.
fn rows(rank: u64, count: u64) -> Vec<u64> {
    (0..count).flat_map(|row| [rank, row]).collect()
}

#[test]
fn ranks_put_as_many_rows_as_they_have_and_readers_see_all_of_them() {
    for channel in CHANNELS {
        let root = Root::new();
        let name = root.name("particles");
        let mut ranks = writers(&name, channel, 4);
        for step in 0..3 {
            // The last rank ends first: the order is that of ranks, not of time. One has none, one puts twice.
            for (rank, w) in ranks.iter_mut().enumerate().rev() {
                w.begin_step().unwrap();
                let count = rank as u64 * 100 + step;
                w.put_array("x", &[CONCAT, 2], &[0, 0], &[count, 2], &rows(rank as u64, count)).unwrap();
                if rank == 1 {
                    w.put_array("x", &[CONCAT, 2], &[0, 0], &[1, 2], &[77, 77u64]).unwrap();
                }
                w.end_step().unwrap();
            }
        }
        let mut r = reader(&name, channel);
        for version in 0..3 {
            let mut at = r.open_version(version).unwrap();
            let counts = [version, 100 + version, 1, 200 + version, 300 + version];
            let info = at.variable("x").unwrap();
            assert_eq!(info.shape, [601 + 4 * version, 2]);
            let pieces: Vec<_> = info.pieces.iter().map(|p| (p.rank, p.start.clone(), p.count[0])).collect();
            let mut begin = 0;
            for ((rank, start, count), (of, expected)) in
                pieces.into_iter().zip([0, 1, 1, 2, 3].iter().zip(counts))
            {
                assert_eq!((rank, start, count), (*of, vec![begin, 0], expected));
                begin += expected;
            }
            assert_eq!(at.array("x").unwrap(), (Dtype::U64, info.shape.as_slice().into()));
            let all: Vec<u64> = at.get_array("x", None).unwrap();
            let one = [vec![77, 77]];
            let parts = [
                rows(0, counts[0]),
                rows(1, counts[1]),
                one.concat(),
                rows(2, counts[3]),
                rows(3, counts[4]),
            ];
            assert_eq!(all, parts.concat());
            let across = NdBox::new(&[counts[0] + counts[1] - 1, 1], &[3, 1]).unwrap();
            assert_eq!(at.get_array::<u64>("x", Some(&across)).unwrap(), [counts[1] - 1, 77, 0]);
            let of_three = NdBox::new(&info.pieces[4].start, &info.pieces[4].count).unwrap();
            let view = at.view("x", Some(&of_three)).unwrap();
            assert_eq!(view.bytes(), bytemuck::cast_slice::<u64, u8>(&rows(3, counts[4])));
            let beyond = NdBox::new(&[601 + 4 * version, 0], &[1, 2]).unwrap();
            assert_eq!(at.view("x", Some(&beyond)).err().map(|e| e.kind()), Some(Kind::BoxOutsideShape));
        }
    }
}

#[test]
fn a_concatenated_variable_of_one_piece_is_got_viewed_and_paged_as_any_other() {
    let root = Root::new();
    let name = root.name("one");
    let mut w = Writer::open(&name, &options()).unwrap();
    w.begin_step().unwrap();
    w.put_array("x", &[CONCAT], &[0], &[5], &[1u32, 2, 3, 4, 5]).unwrap();
    let mut reserved = w.reserve("y", Dtype::U8, &[CONCAT, 2], &[0, 0], &[3, 2]).unwrap();
    reserved.as_mut_slice().copy_from_slice(b"abcdef");
    w.commit(reserved).unwrap();
    w.end_step().unwrap();
    let mut r = reader(&name, Mechanism::Space).open_version(0).unwrap();
    let shown =
        r.with_object("y", 100, |dtype, shape, bytes| (dtype, shape.to_vec(), bytes.to_vec())).unwrap();
    assert_eq!(shown, Some((Dtype::U8, vec![3, 2], b"abcdef".to_vec())));
    assert_eq!(r.view("x", None).unwrap().shape(), [5]);
    assert_eq!(r.get_array::<u32>("x", None).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(VersionBacking::open(&name, "x", None, &options()).unwrap().shape(), [5]);
}

#[test]
fn a_place_in_a_concatenated_variable_cannot_be_said_and_ranks_must_agree() {
    for channel in CHANNELS {
        let root = Root::new();
        let name = root.name("x");
        let mut ranks = writers(&name, channel, 2);
        for w in &mut ranks {
            w.begin_step().unwrap();
        }
        let refused = ranks[0].put_array("x", &[CONCAT, 2], &[1, 0], &[1, 2], &[1u8, 2]).unwrap_err();
        assert_eq!(refused.kind(), Kind::BoxOutsideShape);
        ranks[0].put_array("x", &[CONCAT, 2], &[0, 0], &[1, 2], &[1u8, 2]).unwrap();
        let others: [(&[u64], &[u64]); 3] = [(&[CONCAT, 3], &[1, 3]), (&[9, 2], &[1, 2]), (&[CONCAT], &[2])];
        for (shape, count) in others {
            let start = vec![0; shape.len()];
            let data = vec![0u8; count.iter().product::<u64>() as usize];
            let own = ranks[0].put_array("x", shape, &start, count, &data).unwrap_err();
            assert_eq!(own.kind(), Kind::VariableMismatch, "{shape:?}");
            // Ranks of a channel of files do not know of each other: a reader finds it.
            if channel == Mechanism::Space {
                let other = ranks[1].put_array("x", shape, &start, count, &data).unwrap_err();
                assert_eq!(other.kind(), Kind::VariableMismatch, "{shape:?}");
            }
        }
    }
}

fn units(text: &str) -> Description {
    Description { dims: None, attributes: [("units".to_string(), Attribute::Text(text.into()))].into() }
}

#[test]
fn descriptions_belong_to_their_version_and_are_seen_with_it() {
    for channel in CHANNELS {
        let root = Root::new();
        let name = root.name("x");
        let mut ranks = writers(&name, channel, 2);
        let mut r = reader(&name, channel);
        for (rank, w) in ranks.iter_mut().enumerate() {
            w.begin_step().unwrap();
            w.put_array("T", &[2, 2], &[rank as u64, 0], &[1, 2], &[0.5f32, 1.5]).unwrap();
            w.describe("T", Description::of_dims(&["y", "x"])).unwrap();
            w.describe("T", units(["K", "°C"][rank])).unwrap();
            w.set_version_attribute("time", &Attribute::Float(0.25)).unwrap();
            assert_eq!(r.latest().unwrap(), None);
            w.end_step().unwrap();
        }
        for w in &mut ranks {
            w.begin_step().unwrap();
            w.end_step().unwrap();
        }
        let mut first = r.open_version(0).unwrap();
        let info = first.variable("T").unwrap();
        assert_eq!(info.description.dims, Some(vec!["y".to_string(), "x".to_string()]));
        assert_eq!(info.description.attributes, units("°C").attributes, "the highest rank counts");
        let names: Vec<String> = first.variables().unwrap().into_iter().map(|v| v.name).collect();
        assert_eq!(names, ["T"], "what holds the descriptions is not shown");
        let hint = first.variable("t").unwrap_err().to_string();
        assert!(!hint.contains(".forebay"), "{hint}");
        let time = BTreeMap::from([("time".to_string(), Attribute::Float(0.25))]);
        assert_eq!(first.version_attributes().unwrap(), time);
        let mut second = r.open_version(1).unwrap();
        assert!(second.version_attributes().unwrap().is_empty() && second.variables().unwrap().is_empty());
        assert!(first.attributes().unwrap().is_empty(), "those of the channel are others");
    }
}

#[test]
fn an_aborted_step_says_nothing_and_one_without_a_step_is_refused() {
    let root = Root::new();
    let name = root.name("x");
    let mut w = Writer::open(&name, &options()).unwrap();
    assert_eq!(w.describe("T", units("K")).unwrap_err().kind(), Kind::StepState);
    assert_eq!(w.set_version_attribute("a", &Attribute::Int(1)).unwrap_err().kind(), Kind::StepState);
    w.begin_step().unwrap();
    w.describe("T", units("K")).unwrap();
    w.set_version_attribute("a", &Attribute::Int(1)).unwrap();
    w.abort_step().unwrap();
    w.begin_step().unwrap();
    w.put_array("T", &[1], &[0], &[1], &[1u8]).unwrap();
    for name in [".forebay/x", ".forebay/descriptions/1"] {
        assert_eq!(w.put_array(name, &[1], &[0], &[1], &[1u8]).unwrap_err().kind(), Kind::BadName);
        assert_eq!(w.put(name, Dtype::U8, &[CONCAT], &[0], &[1], &[1]).unwrap_err().kind(), Kind::BadName);
        let many = w.put_many(&[name], Dtype::U8, &[1], &[1]).unwrap_err();
        assert_eq!(many.kind(), Kind::BadName);
        assert_eq!(w.reserve(name, Dtype::U8, &[1], &[0], &[1]).err().map(|e| e.kind()), Some(Kind::BadName));
        assert_eq!(w.describe(name, units("K")).unwrap_err().kind(), Kind::BadName);
    }
    w.end_step().unwrap();
    let mut r = reader(&name, Mechanism::Space).open_version(0).unwrap();
    assert!(r.version_attributes().unwrap().is_empty());
    assert_eq!(r.variable("T").unwrap().description, Description::default());
}

#[test]
fn dimensions_that_do_not_fit_are_an_error_of_their_reader() {
    let root = Root::new();
    let name = root.name("x");
    let mut ranks = writers(&name, Mechanism::Space, 2);
    for (rank, w) in ranks.iter_mut().enumerate() {
        w.begin_step().unwrap();
        w.put_array("T", &[2], &[rank as u64], &[1], &[1u8]).unwrap();
        w.describe("T", Description::of_dims(&["y", "x"])).unwrap();
        let other = w.describe("T", Description::of_dims(&["x"])).unwrap_err();
        assert_eq!(other.kind(), Kind::VariableMismatch);
        w.end_step().unwrap();
    }
    for (rank, w) in ranks.iter_mut().enumerate() {
        w.begin_step().unwrap();
        w.put_array("T", &[2], &[rank as u64], &[1], &[1u8]).unwrap();
        w.put_array("U", &[2], &[rank as u64], &[1], &[1u8]).unwrap();
        w.describe("T", Description::of_dims(&[["x", "y"][rank]])).unwrap();
        w.describe("U", units("K")).unwrap();
        w.set_version_attribute("time", &Attribute::Float(0.5)).unwrap();
        w.end_step().unwrap();
    }
    let mut r = reader(&name, Mechanism::Space);
    for version in 0..2 {
        let mut at = r.open_version(version).unwrap();
        assert_eq!(at.variable("T").unwrap_err().kind(), Kind::VariableMismatch);
        assert_eq!(at.variables().unwrap_err().kind(), Kind::VariableMismatch);
        assert_eq!(at.names().unwrap()[0], "T");
        assert_eq!(at.get_array::<u8>("T", None).unwrap(), [1, 1], "the data can be read all the same");
    }
    let mut second = r.open_version(1).unwrap();
    assert_eq!(second.variable("U").unwrap().description, units("K"), "and so can all others");
    assert_eq!(second.version_attributes().unwrap().len(), 1);
}

/// A step that could not be ended for want of space is ended later, with all that was said in it.
#[test]
fn an_end_that_is_tried_again_says_everything() {
    let root = Root::new();
    let name = root.name("x");
    let mut w = Writer::open(
        &name,
        &OpenOptions {
            quota_bytes: Some(16 << 20),
            timeout: soon(),
            readers: vec![("r".into(), 1)],
            ..options()
        },
    )
    .unwrap();
    let mut r = Reader::open(&name, &OpenOptions { component: Some("r".into()), ..options() }).unwrap();
    let large = 6 << 20;
    for _ in 0..2 {
        w.begin_step().unwrap();
        w.put_array("T", &[large], &[0], &[large], &vec![1u8; large as usize]).unwrap();
        w.end_step().unwrap();
    }
    w.begin_step().unwrap();
    for i in 0..10 {
        let value = Attribute::Text(format!("{i}").repeat(500 << 10));
        w.set_version_attribute(&format!("large {i}"), &value).unwrap();
    }
    assert_eq!(w.end_step().unwrap_err().kind(), Kind::QuotaFull, "the reader holds both versions");
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    r.end_step().unwrap();
    w.end_step().unwrap();
    let mut at = reader(&name, Mechanism::Space).open_version(2).unwrap();
    assert_eq!(at.version_attributes().unwrap().len(), 10);
}

#[test]
fn descriptions_larger_than_the_quota_are_too_large() {
    let root = Root::new();
    let name = root.name("x");
    let mut w = Writer::open(&name, &OpenOptions { quota_bytes: Some(8 << 20), ..options() }).unwrap();
    w.begin_step().unwrap();
    for i in 0..40 {
        let value = Attribute::Text("x".repeat(500 << 10));
        w.set_version_attribute(&format!("large {i}"), &value).unwrap();
    }
    assert_eq!(w.end_step().unwrap_err().kind(), Kind::VersionTooLarge);
    w.abort_step().unwrap();
    w.begin_step().unwrap();
    w.end_step().unwrap();
}

#[test]
fn each_step_of_a_stream_has_its_own_descriptions() {
    for channel in CHANNELS {
        let root = Root::new();
        let name = root.name("x");
        let mut w = writers(&name, channel, 1).remove(0);
        let mut r =
            Reader::open(&name, &OpenOptions { channel, component: Some("r".into()), ..options() }).unwrap();
        for time in 0..3 {
            w.begin_step().unwrap();
            w.put_array("T", &[1], &[0], &[1], &[1u8]).unwrap();
            w.set_version_attribute("time", &Attribute::Int(time)).unwrap();
            w.end_step().unwrap();
            assert!(r.begin_step(None).unwrap().is_some());
            for _ in 0..2 {
                assert_eq!(r.version_attributes().unwrap()["time"], Attribute::Int(time));
            }
            r.end_step().unwrap();
            assert_eq!(r.version_attributes().unwrap_err().kind(), Kind::StepState);
        }
    }
}
