//! Writers: steps, quota, bad input, incarnations.

use crate::support::{has_direct, options, ranked, reader, soon, writer, Root};
use forebay_space::{
    Dtype, Horizon, Kind, Mechanism, Mode, NdBox, OpenOptions, Reader, Retention, TierKind, WhenFull, Writer,
};
use std::time::Duration;

#[test]
fn a_stream_arrives_whole_and_leaves_nothing() {
    let root = Root::new();
    let name = root.name("heat");
    let producer = {
        let name = name.clone();
        std::thread::spawn(move || {
            let mut w = writer(&name, 0, 1).unwrap();
            for step in 0..20u64 {
                assert_eq!(w.begin_step().unwrap(), step);
                let data: Vec<f64> = (0..1000).map(|i| (step * 1000 + i) as f64).collect();
                w.put_array("T", &[10, 100], &[0, 0], &[10, 100], &data).unwrap();
                w.end_step().unwrap();
            }
            w.close().unwrap();
        })
    };
    let mut r = reader(&name, 0, 1).unwrap();
    let mut step = 0;
    while let Some(version) = r.begin_step(None).unwrap() {
        assert_eq!(version, step);
        let all: Vec<f64> = r.get_array("T", None).unwrap();
        assert_eq!(all[999], (step * 1000 + 999) as f64);
        let part = NdBox::new(&[3, 7], &[2, 5]).unwrap();
        let part: Vec<f64> = r.get_array("T", Some(&part)).unwrap();
        assert_eq!(part[5], (step * 1000 + 407) as f64);
        r.end_step().unwrap();
        step += 1;
    }
    assert_eq!(step, 20);
    producer.join().unwrap();
    r.close().unwrap();
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn a_version_is_visible_only_when_every_rank_has_committed() {
    let root = Root::new();
    let name = root.name("x");
    let mut ranks: Vec<Writer> = (0..3).map(|r| writer(&name, r, 3).unwrap()).collect();
    let mut r = reader(&name, 0, 1).unwrap();
    for (i, w) in ranks.iter_mut().enumerate() {
        w.begin_step().unwrap();
        w.put_array("a", &[3], &[i as u64], &[1], &[i as i32]).unwrap();
        assert_eq!(r.latest().unwrap(), None);
        assert_eq!(r.begin_step(Some(Duration::from_millis(1))).unwrap_err().kind(), Kind::TimedOut);
    }
    ranks[2].end_step().unwrap();
    ranks[0].end_step().unwrap();
    let missing = r.begin_step(Some(Duration::from_millis(1))).unwrap_err();
    assert!(missing.to_string().contains("writer rank 1 of test"), "{missing}");
    assert!(!missing.to_string().contains("rank 0"), "{missing}");
    ranks[1].end_step().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    assert_eq!(r.get_array::<i32>("a", None).unwrap(), [0, 1, 2]);
}

#[test]
fn space_is_freed_when_readers_release() {
    let root = Root::new();
    let name = root.name("ring");
    let mut w = writer(&name, 0, 1).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    let data = vec![7u8; 3 << 20];
    // Twenty times the quota goes through.
    for step in 0..100u64 {
        w.begin_step().unwrap();
        w.put_array("a", &[3 << 20], &[0], &[3 << 20], &data).unwrap();
        w.end_step().unwrap();
        assert_eq!(r.begin_step(None).unwrap(), Some(step));
        assert_eq!(r.get_array::<u8>("a", None).unwrap(), data);
        r.end_step().unwrap();
    }
}

#[test]
fn a_full_space_blocks_until_the_deadline_and_names_the_holder() {
    let root = Root::new();
    let name = root.name("full");
    let quick = OpenOptions { timeout: soon(), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &quick).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    let put = |w: &mut Writer| -> forebay_space::Result<()> {
        w.begin_step()?;
        let put = w.put_array("a", &[4 << 20], &[0], &[4 << 20], &vec![1u8; 4 << 20]);
        if put.is_err() {
            w.abort_step()?;
            return put;
        }
        w.end_step()
    };
    let full = loop {
        if let Err(e) = put(&mut w) {
            break e;
        }
    };
    assert_eq!(full.kind(), Kind::QuotaFull);
    assert!(full.to_string().contains("reader rank 0 of reader"), "{full}");
    assert!(full.to_string().contains("has not released version 0"), "{full}");
    r.begin_step(None).unwrap();
    let view = r.view("a", None).unwrap();
    r.end_step().unwrap();
    let held = put(&mut w).unwrap_err();
    assert!(held.to_string().contains("holds a view of version 0"), "{held}");
    assert!(view.bytes().iter().all(|b| *b == 1));
    drop(view);
    put(&mut w).unwrap();
    let large = {
        w.begin_step().unwrap();
        w.put_array("a", &[40 << 20], &[0], &[40 << 20], &vec![1u8; 40 << 20]).unwrap_err()
    };
    assert_eq!(large.kind(), Kind::VersionTooLarge);
}

/// The last segment of a lane stays until the next one is begun, so that recovery knows how far the lane has got.
#[test]
fn a_version_that_does_not_fit_beside_the_one_before_is_told_so_and_drops_nothing() {
    let root = Root::new();
    let policies = [(WhenFull::Block, "block"), (WhenFull::Error, "error"), (WhenFull::DropOldest, "drop")];
    for (when_full, word) in policies {
        let name = root.name(word);
        let options = OpenOptions { when_full: Some(when_full), ..ranked(0, 1) };
        let mut w = Writer::open(&name, &options).unwrap();
        w.set_timeout(Duration::from_secs(60));
        let mut r = reader(&name, 0, 1).unwrap();
        let bytes = vec![1u8; 10 << 20];
        let mut put = || {
            w.begin_step()?;
            w.put_array("a", &[10 << 20], &[0], &[10 << 20], &bytes)?;
            w.end_step()
        };
        put().unwrap();
        if when_full != WhenFull::DropOldest {
            assert_eq!(r.begin_step(None).unwrap(), Some(0));
            r.end_step().unwrap();
        }
        let error = put().unwrap_err();
        assert_eq!(error.kind(), Kind::VersionTooLarge, "{word}: {error}");
        assert!(error.to_string().contains("two versions"), "{error}");
        if when_full == WhenFull::DropOldest {
            assert_eq!(r.begin_step(None).unwrap(), Some(0));
            assert_eq!(r.get_array::<u8>("a", None).unwrap(), bytes);
        }
    }
}

#[test]
fn ranks_that_fill_the_quota_with_one_version_are_told_at_once() {
    let root = Root::new();
    let name = root.name("together");
    let small = |rank| OpenOptions { segment_bytes: Some(1 << 20), ..ranked(rank, 2) };
    let mut ranks: Vec<Writer> = (0..2).map(|rank| Writer::open(&name, &small(rank)).unwrap()).collect();
    let mut reader = reader(&name, 0, 1).unwrap();
    let put = |writer: &mut Writer, object: u64| {
        writer.put_array(&object.to_string(), &[1 << 20], &[0], &[1 << 20], &vec![1u8; 1 << 20])
    };
    // Neither alone has more than the quota of 16 MiB. The deadline is longer than the test may take.
    ranks.iter_mut().for_each(|writer| writer.set_timeout(Duration::from_secs(60)));
    for writer in &mut ranks {
        writer.begin_step().unwrap();
    }
    let (mib, full) = (0..).find_map(|i| put(&mut ranks[i as usize % 2], i).err().map(|e| (i, e))).unwrap();
    assert!(mib > 8, "{mib} of 16 MiB fit");
    assert_eq!(full.kind(), Kind::VersionTooLarge, "{full}");
    assert!(full.to_string().contains("ranks=2") && full.to_string().contains("quota=16.0 MiB"), "{full}");
    // What fit is complete, and space is freed as ever.
    ranks.iter_mut().for_each(|writer| writer.end_step().unwrap());
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    reader.end_step().unwrap();
    for writer in &mut ranks {
        writer.begin_step().unwrap();
        let object = u64::from(writer.rank());
        put(writer, object).unwrap();
        writer.end_step().unwrap();
    }
    assert_eq!(reader.begin_step(None).unwrap(), Some(1));
}

#[test]
fn a_reserved_piece_is_written_in_place() {
    let root = Root::new();
    let name = root.name("reserve");
    let mut w = writer(&name, 0, 1).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    w.begin_step().unwrap();
    let mut a = w.reserve("a", Dtype::U8, &[100_000], &[0], &[100_000]).unwrap();
    let mut b = w.reserve("b", Dtype::U8, &[10], &[0], &[10]).unwrap();
    a.as_mut_slice().fill(3);
    b.as_mut_slice().fill(4);
    w.commit(b).unwrap();
    assert_eq!(w.end_step().unwrap_err().kind(), Kind::StepState);
    w.commit(a).unwrap();
    w.end_step().unwrap();
    assert_eq!(w.stats().bytes_copied, 0);
    r.begin_step(None).unwrap();
    let a = r.view("a", None).unwrap();
    assert!(a.bytes().iter().all(|x| *x == 3) && a.bytes().len() == 100_000);
    assert_eq!(r.get_array::<u8>("b", None).unwrap(), [4; 10]);
    assert_eq!(r.stats().bytes_copied, 10);
}

#[test]
fn an_aborted_step_leaves_no_trace() {
    let root = Root::new();
    let name = root.name("abort");
    let mut w = writer(&name, 0, 1).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    w.begin_step().unwrap();
    w.put_array("a", &[2], &[0], &[2], &[1u8, 2]).unwrap();
    w.abort_step().unwrap();
    assert_eq!(w.begin_step().unwrap(), 0);
    w.put_array("b", &[1], &[0], &[1], &[9u8]).unwrap();
    w.end_step().unwrap();
    r.begin_step(None).unwrap();
    let names: Vec<String> = r.variables().unwrap().into_iter().map(|v| v.name).collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn bad_input_has_its_own_kind() {
    let root = Root::new();
    let name = root.name("bad");
    let mut a = writer(&name, 0, 2).unwrap();
    assert_eq!(writer(&name, 0, 2).map(drop).unwrap_err().kind(), Kind::NameInUse);
    assert_eq!(writer(&name, 1, 3).map(drop).unwrap_err().kind(), Kind::GroupMismatch);
    let is_epoch = forebay_space::inspect(&name).unwrap().horizon == Horizon::Epoch.to_string();
    let other = if is_epoch { Horizon::Write } else { Horizon::Epoch };
    let horizon = OpenOptions { horizon: Some(other), ..ranked(1, 2) };
    assert_eq!(Writer::open(&name, &horizon).map(drop).unwrap_err().kind(), Kind::OptionMismatch);
    let mut b = writer(&name, 1, 2).unwrap();
    assert_eq!(a.put_array("x", &[1], &[0], &[1], &[1u8]).unwrap_err().kind(), Kind::StepState);
    assert_eq!(a.end_step().unwrap_err().kind(), Kind::StepState);
    assert_eq!(a.begin_version(3).unwrap_err().kind(), Kind::VersionOutOfOrder);
    a.begin_step().unwrap();
    assert_eq!(a.begin_step().unwrap_err().kind(), Kind::StepState);
    let outside = a.put_array("x", &[4], &[3], &[2], &[1u8, 2]).unwrap_err();
    assert_eq!(outside.kind(), Kind::BoxOutsideShape);
    assert_eq!(
        a.put_array("x", &[4], &[u64::MAX], &[2], &[1u8, 2]).unwrap_err().kind(),
        Kind::BoxOutsideShape
    );
    assert_eq!(a.put_array("x", &[4], &[0], &[2], &[1u8]).unwrap_err().kind(), Kind::BufferMismatch);
    assert_eq!(a.put_array("", &[1], &[0], &[1], &[1u8]).unwrap_err().kind(), Kind::BadName);
    a.put_array("x", &[4], &[0], &[2], &[1u8, 2]).unwrap();
    b.begin_step().unwrap();
    assert_eq!(b.put_array("x", &[5], &[2], &[2], &[1u8, 2]).unwrap_err().kind(), Kind::VariableMismatch);
    assert_eq!(b.put_array("x", &[4], &[2], &[2], &[1i8, 2]).unwrap_err().kind(), Kind::VariableMismatch);
    b.put_array("x", &[4], &[2], &[2], &[3u8, 4]).unwrap();
    let long = "n".repeat(1024);
    b.put_array(&long, &[1; 16], &[0; 16], &[1; 16], &[5u8]).unwrap();
    a.end_step().unwrap();
    b.end_step().unwrap();
    assert!(!a.begin_version(0).unwrap(), "it is complete, and a restart may come with it once more");
    a.end_step().unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    assert_eq!(r.get_array::<u8>(&long, None).unwrap(), [5]);
    assert_eq!(Writer::open("../x/..", &options()).map(drop).unwrap_err().kind(), Kind::BadName);
}

#[test]
fn a_name_has_one_type_and_shape_in_a_step_of_a_rank() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        one_type_and_shape(channel);
    }
}

fn one_type_and_shape(channel: Mechanism) {
    let root = Root::new();
    let name = root.name("twice");
    let ranked = OpenOptions { channel, ..ranked(0, 1) };
    let mut w = Writer::open(&name, &ranked).unwrap();
    w.begin_step().unwrap();
    // A put that fails says nothing of the name.
    assert_eq!(w.put_array("x", &[9], &[9], &[1], &[1u8]).unwrap_err().kind(), Kind::BoxOutsideShape);
    w.put_array("x", &[4], &[0], &[2], &[1u8, 2]).unwrap();
    let other_shape = w.put_array("x", &[5], &[2], &[2], &[3u8, 4]).unwrap_err();
    assert_eq!(other_shape.kind(), Kind::VariableMismatch, "{other_shape}");
    assert!(other_shape.to_string().contains("this rank"), "{other_shape}");
    assert_eq!(w.put_array("x", &[4], &[2], &[2], &[3i8, 4]).unwrap_err().kind(), Kind::VariableMismatch);
    let reserved = w.reserve("x", Dtype::U8, &[2, 2], &[0, 0], &[1, 1]);
    assert_eq!(reserved.err().map(|e| e.kind()), Some(Kind::VariableMismatch));
    w.put_array("x", &[4], &[2], &[2], &[3u8, 4]).unwrap();
    w.end_step().unwrap();
    // The next step begins anew.
    w.begin_step().unwrap();
    w.put_array("x", &[1], &[0], &[1], &[5u8]).unwrap();
    w.end_step().unwrap();
    let mut r = Reader::open(&name, &ranked).unwrap();
    for expected in [&[1u8, 2, 3, 4][..], &[5]] {
        r.begin_step(None).unwrap();
        assert_eq!(r.variables().unwrap().len(), 1);
        assert_eq!(r.get_array::<u8>("x", None).unwrap(), expected);
        r.end_step().unwrap();
    }
}

#[test]
fn a_restarted_group_goes_on_behind_what_is_complete() {
    let root = Root::new();
    let name = root.name("restart");
    let put = |w: &mut Writer, value: u64| {
        let rank = u64::from(w.rank());
        w.put_array("a", &[2], &[rank], &[1], &[value]).unwrap();
        w.end_step().unwrap();
    };
    let mut old: Vec<Writer> = (0..2).map(|r| writer(&name, r, 2).unwrap()).collect();
    for version in 0..5u64 {
        for w in &mut old {
            w.begin_step().unwrap();
            put(w, version);
        }
    }
    // Rank 0 is one version ahead when rank 1 is lost.
    old[0].begin_step().unwrap();
    put(&mut old[0], 99);
    let mut late = old.remove(0);
    old.remove(0).abandon();
    assert_eq!(late.begin_step().unwrap_err().kind(), Kind::ProducerDied);
    let skip = |rank| OpenOptions { mode: Mode::Append, ..ranked(rank, 2) };
    let mut new = vec![Writer::open(&name, &skip(0)).unwrap()];
    assert_eq!(late.begin_step().unwrap_err().kind(), Kind::Fenced);
    new.push(Writer::open(&name, &skip(1)).unwrap());
    assert_eq!(new[0].incarnation(), 2);
    // Three steps back: what is complete is dropped, the rest is new.
    for version in 2..8u64 {
        for w in &mut new {
            assert_eq!(w.begin_version(version).unwrap(), version >= 5);
            put(w, version * 10);
        }
    }
    assert_eq!(new[1].resume().unwrap(), 8);
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..8u64 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        let value = if version < 5 { version } else { version * 10 };
        assert_eq!(r.get_array::<u64>("a", None).unwrap(), [value, value]);
        r.end_step().unwrap();
    }
    drop(late);
    for w in new {
        w.close().unwrap();
    }
    assert_eq!(r.begin_step(None).unwrap(), None);
    Reader::close(r).unwrap();
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn a_short_name_can_stand_for_a_directory_elsewhere() {
    let root = Root::new();
    let disk = tempfile::tempdir().unwrap();
    let placed = OpenOptions {
        path: Some(disk.path().join("placed")),
        tier: Some(forebay_space::TierKind::File),
        horizon: Some(forebay_space::Horizon::Epoch),
        ..options()
    };
    let mut w = Writer::open("placed", &placed).unwrap();
    assert_eq!(w.path(), disk.path().join("placed"));
    w.begin_step().unwrap();
    w.put_array("a", &[3], &[0], &[3], &[1u16, 2, 3]).unwrap();
    w.end_step().unwrap();
    w.close().unwrap();
    let mut r = Reader::open("placed", &OpenOptions { path: placed.path.clone(), ..options() }).unwrap();
    r.begin_step(None).unwrap();
    assert_eq!(r.get_array::<u16>("a", None).unwrap(), [1, 2, 3]);
    r.end_step().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
    r.close().unwrap();
    assert!(!disk.path().join("placed").exists());
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn small_objects_arrive_whole_from_batches() {
    let root = Root::new();
    let batched = |rank| OpenOptions { batch_bytes: Some(16 << 10), ..ranked(rank, 2) };
    let name = root.name("many");
    let mut ranks: Vec<Writer> = (0..2).map(|rank| Writer::open(&name, &batched(rank)).unwrap()).collect();
    let mut reader = reader(&name, 0, 1).unwrap();
    for version in 0..4u64 {
        for (rank, writer) in ranks.iter_mut().enumerate() {
            writer.begin_step().unwrap();
            if version == 2 {
                // Given up with objects in memory, and put anew.
                writer.put_array("given up", &[100], &[0], &[100], &[0u64; 100]).unwrap();
                writer.abort_step().unwrap();
                writer.begin_step().unwrap();
            }
            for object in 0..50u64 {
                let length = if object == 20 { 5000 } else { 3 * object };
                let data = vec![version * 1000 + rank as u64 * 100 + object; length as usize];
                let object = format!("{rank}-{object}");
                writer.put_array(&object, &[length], &[0], &[length], &data).unwrap();
            }
            writer.end_step().unwrap();
        }
        assert_eq!(reader.begin_step(None).unwrap(), Some(version));
        assert_eq!(reader.variables().unwrap().len(), 100, "what was given up is not there");
        for rank in 0..2 {
            for object in 0..50u64 {
                let length = if object == 20 { 5000 } else { 3 * object };
                let found: Vec<u64> = reader.get_array(&format!("{rank}-{object}"), None).unwrap();
                assert_eq!(found, vec![version * 1000 + rank * 100 + object; length as usize]);
            }
        }
        reader.end_step().unwrap();
    }
    // Gathered objects were copied twice, the large one once.
    let small: u64 = (0..50).filter(|object| *object != 20).map(|object| 3 * object * 8).sum();
    let stats = ranks[0].stats();
    assert_eq!(stats.bytes_copied - stats.bytes_put, 4 * small + 800, "{stats:?}");
}

#[test]
fn batches_are_refused_where_nothing_could_be_gathered() {
    let root = Root::new();
    let open = |more: OpenOptions| {
        let options = OpenOptions { batch_bytes: more.batch_bytes.or(Some(1 << 20)), ..more };
        Writer::open(&root.name("x"), &options).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(open(OpenOptions { batch_bytes: Some(100), ..options() }).contains("4KiB"));
    assert!(open(OpenOptions { batch_bytes: Some(1 << 40), ..options() }).contains("64MiB"));
    assert!(open(OpenOptions { channel: Mechanism::Files, ..options() }).contains("each object is a file"));
    let durable = open(OpenOptions { horizon: Some(Horizon::Write), ..options() });
    assert!(durable.contains("durable by itself"), "{durable}");
    assert_eq!(open(options()), "");
}

#[test]
fn a_space_of_a_few_kib_takes_little_memory_and_says_what_of_it_is_used() {
    let root = Root::in_memory();
    let name = root.name("small");
    for quota_bytes in [None, Some(16 << 20)] {
        let kept = OpenOptions { retention: Some(Retention::Forever), quota_bytes, ..options() };
        let mut w = Writer::open(&name, &kept).unwrap();
        for version in 0..3u64 {
            w.begin_step().unwrap();
            w.put_array("x", &[128], &[0], &[128], &[version; 128]).unwrap();
            w.end_step().unwrap();
        }
        let little = || {
            let info = forebay_space::inspect(&name).unwrap();
            assert!(info.used_bytes >= 3 * 1024, "{info:?}");
            assert!(info.used_bytes < info.reserved_bytes, "{info:?}");
            assert!(info.reserved_bytes <= 512 << 10, "{info:?}");
            assert_eq!(info.tiers[0].used_bytes, info.used_bytes);
            assert_eq!(info.tiers[0].reserved_bytes, info.reserved_bytes);
        };
        little();
        w.close().unwrap();
        little();
        forebay_space::destroy(&name).unwrap();
    }
}

/// As a function leaves it that returns the error of a put: a clean end would cut the stream short.
#[test]
fn a_writer_that_is_dropped_in_the_middle_of_a_step_is_dead() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("dropped");
        let options = OpenOptions { channel, ..ranked(0, 1) };
        let mut w = Writer::open(&name, &options).unwrap();
        w.begin_step().unwrap();
        w.put_array("x", &[4], &[0], &[4], &[1u64; 4]).unwrap();
        w.end_step().unwrap();
        w.begin_step().unwrap();
        w.put_array("x", &[4], &[0], &[4], &[2u64; 4]).unwrap();
        drop(w);
        let mut r = Reader::open(&name, &options).unwrap();
        assert_eq!(r.begin_step(None).unwrap(), Some(0));
        r.end_step().unwrap();
        assert_eq!(r.begin_step(None).unwrap_err().kind(), Kind::ProducerDied, "{channel:?}");
        drop(r);
        // Between steps it is an end.
        let mut w = Writer::open(&name, &options).unwrap();
        w.begin_step().unwrap();
        w.put_array("x", &[4], &[0], &[4], &[1u64; 4]).unwrap();
        w.end_step().unwrap();
        drop(w);
        let mut r = Reader::open(&name, &options).unwrap();
        while r.begin_step(None).unwrap().is_some() {
            r.end_step().unwrap();
        }
    }
}

/// The rank that died sits where one sat that had ended.
#[test]
fn the_rank_that_died_is_named_not_one_that_had_ended() {
    let root = Root::new();
    let name = root.name("culprit");
    writer(&name, 0, 2).unwrap().close().unwrap();
    writer(&name, 1, 2).unwrap().abandon();
    let died = reader(&name, 0, 1).unwrap().begin_step(None).unwrap_err();
    assert_eq!(died.kind(), Kind::ProducerDied);
    assert!(died.to_string().contains("rank=1"), "{died}");
}

/// What was put in a step that was aborted is not there, for the other ranks neither.
#[test]
fn a_step_that_was_aborted_sets_no_shape() {
    let root = Root::new();
    let name = root.name("again");
    let mut ranks = [writer(&name, 0, 2).unwrap(), writer(&name, 1, 2).unwrap()];
    ranks.iter_mut().for_each(|w| assert_eq!(w.begin_step().unwrap(), 0));
    ranks[0].put_array("x", &[8], &[0], &[4], &[1u8; 4]).unwrap();
    ranks[0].abort_step().unwrap();
    assert_eq!(ranks[0].begin_step().unwrap(), 0);
    ranks[0].put_array("x", &[4], &[0], &[2], &[1u8; 2]).unwrap();
    ranks[1].put_array("x", &[4], &[2], &[2], &[2u8; 2]).unwrap();
    ranks.iter_mut().for_each(|w| w.end_step().unwrap());
    let mut r = reader(&name, 0, 1).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    assert_eq!(r.get_array::<u8>("x", None).unwrap(), [1, 1, 2, 2]);
    r.end_step().unwrap();
    // What is put then is compared.
    ranks.iter_mut().for_each(|w| assert_eq!(w.begin_step().unwrap(), 1));
    ranks[0].put_array("x", &[8], &[0], &[4], &[1u8; 4]).unwrap();
    let error = ranks[1].put_array("x", &[4], &[2], &[2], &[2u8; 2]).unwrap_err();
    assert_eq!(error.kind(), Kind::VariableMismatch, "{error}");
    // Where the other rank had put it before, a reader finds what differs.
    ranks[1].put_array("x", &[8], &[4], &[4], &[2u8; 4]).unwrap();
    ranks[0].abort_step().unwrap();
    assert_eq!(ranks[0].begin_step().unwrap(), 1);
    ranks[0].put_array("x", &[4], &[0], &[2], &[1u8; 2]).unwrap();
    ranks.iter_mut().for_each(|w| w.end_step().unwrap());
    assert_eq!(r.begin_step(None).unwrap(), Some(1));
    let error = r.get_array::<u8>("x", None).unwrap_err();
    assert_eq!(error.kind(), Kind::VariableMismatch, "{error}");
}

#[test]
fn a_full_space_names_the_retention_that_fills_it() {
    let root = Root::new();
    for (retention, says) in
        [(Retention::Last(3), "last:3 keeps the 3 newest"), (Retention::Forever, "forever")]
    {
        let opening = OpenOptions {
            quota_bytes: Some(1 << 20),
            retention: Some(retention),
            when_full: Some(WhenFull::Error),
            mode: Mode::Write,
            ..options()
        };
        let mut w = Writer::open(&root.name(&retention.to_string().replace(':', "-")), &opening).unwrap();
        let full = (0..10u64).find_map(|_| {
            w.begin_step().unwrap();
            let put = w.put_array("T", &[50_000], &[0], &[50_000], &[1f64; 50_000]);
            put.and_then(|()| w.end_step()).err()
        });
        let full = full.expect("a quota for two versions");
        assert!(full.kind() == Kind::QuotaFull && full.to_string().contains(says), "{full}");
    }
}

#[test]
fn a_version_that_is_aborted_again_and_again_fills_nothing() {
    for tier in [TierKind::Dram, TierKind::File, TierKind::Direct] {
        let root = if tier == TierKind::Dram { Root::in_memory() } else { Root::on_disk() };
        if tier == TierKind::Direct && !has_direct(std::path::Path::new(&root.name(""))) {
            continue;
        }
        for (before, spills) in [(0, false), (1, false), (3, true)] {
            let name = root.name(&format!("retried-{before}"));
            let lower = root.name(&format!("lower-{before}"));
            std::fs::create_dir(&lower).unwrap();
            let lower = format!("{lower},quota=8MiB,tier=file").parse().unwrap();
            let options = OpenOptions {
                tier: Some(tier),
                quota_bytes: Some(8 << 20),
                retention: Some(Retention::Last(2)),
                spill: if spills { vec![lower] } else { Vec::new() },
                ..options()
            };
            check_aborts(&name, &options, before);
        }
    }
}

/// Aborts version `before` thirty times, and writes and reads it then.
fn check_aborts(name: &str, options: &OpenOptions, before: u64) {
    let mut w = Writer::open(name, options).unwrap();
    let put = |w: &mut Writer, value: u8| {
        w.begin_step().unwrap();
        // Large objects have segments of their own, small ones share one.
        for (variable, count) in [("small", 1000), ("large", 2 << 20), ("also small", 50_000)] {
            w.put_array(variable, &[count], &[0], &[count], &vec![value; count as usize]).unwrap();
        }
    };
    for version in 0..before {
        put(&mut w, version as u8);
        w.end_step().unwrap();
    }
    for _ in 0..30 {
        put(&mut w, 99);
        w.abort_step().unwrap();
    }
    put(&mut w, before as u8);
    w.end_step().unwrap();
    let mut r = reader(name, 0, 1).unwrap();
    while r.begin_step(None).unwrap() != Some(before) {
        r.end_step().unwrap();
    }
    let read: Vec<u8> = r.get_array("large", None).unwrap();
    assert!(read.iter().all(|value| *value == before as u8), "{name}");
    drop(r);
    assert_eq!(forebay_space::verify(name).unwrap().damaged, [], "{name}");
    w.close().unwrap();
}

#[test]
fn memory_that_was_reserved_is_not_given_away_when_the_step_is_aborted() {
    let root = Root::in_memory();
    let name = root.name("reserved");
    let options = OpenOptions { tier: Some(TierKind::Dram), quota_bytes: Some(16 << 20), ..options() };
    let mut w = Writer::open(&name, &options).unwrap();
    w.begin_step().unwrap();
    let count = 3 << 20;
    let mut reserved = w.reserve("a", Dtype::U8, &[count], &[0], &[count]).unwrap();
    w.abort_step().unwrap();
    w.begin_step().unwrap();
    w.put_array("a", &[count], &[0], &[count], &vec![7u8; count as usize]).unwrap();
    // A program that fills what it was lent, although the step is over.
    reserved.as_mut_slice().fill(1);
    w.end_step().unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    assert!(r.get_array::<u8>("a", None).unwrap().iter().all(|value| *value == 7));
}
