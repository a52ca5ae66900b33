//! Readers: several at different speeds, late, early, random access, damage, M×N redistribution.

use crate::support::{options, ranked, reader, shared_state, soon, writer, Root};
use forebay_space::{Attribute, Kind, Mechanism, NdBox, OpenOptions, Reader, Retention, Writer};
use proptest::prelude::*;
use std::time::Duration;

fn put_versions(w: &mut Writer, versions: std::ops::Range<u64>) {
    for version in versions {
        w.begin_step().unwrap();
        w.put_array("v", &[1], &[0], &[1], &[version]).unwrap();
        w.end_step().unwrap();
    }
}

fn value(r: &mut Reader) -> u64 {
    r.get_array::<u64>("v", None).unwrap()[0]
}

#[test]
fn groups_read_at_their_own_speed_and_hold_what_they_need() {
    let root = Root::new();
    let name = root.name("speeds");
    let mut w = writer(&name, 0, 1).unwrap();
    put_versions(&mut w, 0..3);
    let open = |group: &str| {
        Reader::open(&name, &OpenOptions { component: Some(group.into()), ..ranked(0, 1) }).unwrap()
    };
    let mut slow = open("slow");
    let mut fast = open("fast");
    for version in 0..3 {
        assert_eq!(fast.begin_step(None).unwrap(), Some(version));
        fast.end_step().unwrap();
    }
    put_versions(&mut w, 3..6);
    // Late: sees what is retained. Early: leaves, and holds nothing any more.
    let mut late = open("late");
    assert_eq!(late.begin_step(None).unwrap(), Some(0));
    late.close().unwrap();
    for version in 0..6 {
        assert_eq!(slow.begin_step(None).unwrap(), Some(version));
        assert_eq!(value(&mut slow), version);
        slow.end_step().unwrap();
    }
    w.close().unwrap();
    assert_eq!(slow.begin_step(None).unwrap(), None);
    for version in 3..6 {
        assert_eq!(fast.begin_step(None).unwrap(), Some(version));
        fast.end_step().unwrap();
    }
    assert_eq!(fast.begin_step(None).unwrap(), None);
}

#[test]
fn ranks_of_a_group_see_the_same_versions_though_one_joins_late() {
    let root = Root::new();
    let name = root.name("ranks");
    let mut w = writer(&name, 0, 1).unwrap();
    let mut first = reader(&name, 0, 2).unwrap();
    for version in 0..40 {
        put_versions(&mut w, version..version + 1);
        first.begin_step(None).unwrap();
        first.end_step().unwrap();
    }
    let mut second = reader(&name, 1, 2).unwrap();
    assert_eq!(second.begin_step(None).unwrap(), Some(0));
    assert_eq!(reader(&name, 1, 2).map(drop).unwrap_err().kind(), Kind::NameInUse);
    assert_eq!(reader(&name, 1, 3).map(drop).unwrap_err().kind(), Kind::GroupMismatch);
}

#[test]
fn last_k_drops_and_says_so() {
    let root = Root::new();
    let name = root.name("last");
    let mut w =
        Writer::open(&name, &OpenOptions { retention: Some(Retention::Last(3)), ..ranked(0, 1) }).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    let big = vec![0u8; 1 << 20];
    for _ in 0..60 {
        w.begin_step().unwrap();
        w.put_array("b", &[1 << 20], &[0], &[1 << 20], &big).unwrap();
        w.end_step().unwrap();
    }
    let retained = r.versions().unwrap();
    assert_eq!(retained, 57..60);
    assert_eq!(r.wait(0, None).unwrap_err().kind(), Kind::VersionGone);
    assert_eq!(r.open_version(0).err().unwrap().kind(), Kind::VersionGone);
    assert_eq!(r.begin_step(None).unwrap(), Some(retained.start));
    r.end_step().unwrap();
    assert_eq!(r.open_version(59).unwrap().version(), Some(59));
    assert_eq!(r.open_version(60).err().unwrap().kind(), Kind::TimedOut);
}

/// Also where many versions share a segment, which is freed as a whole, and after the shared state was made anew.
#[test]
fn last_k_keeps_k_versions_and_what_is_held() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("exactly");
        let last = OpenOptions { retention: Some(Retention::Last(3)), channel, ..ranked(0, 1) };
        let mut w = Writer::open(&name, &last).unwrap();
        let mut r = Reader::open(&name, &OpenOptions { channel, ..ranked(0, 1) }).unwrap();
        put_versions(&mut w, 0..2);
        assert_eq!(r.versions().unwrap(), 0..2);
        put_versions(&mut w, 2..10);
        assert_eq!(r.versions().unwrap(), 7..10, "{channel}");
        let held = r.open_version(8).unwrap();
        put_versions(&mut w, 10..14);
        assert_eq!(r.versions().unwrap(), 8..14, "{channel}");
        held.close().unwrap();
        put_versions(&mut w, 14..15);
        assert_eq!(r.versions().unwrap(), 12..15, "{channel}");
        r.close().unwrap();
        w.close().unwrap();
        if channel == Mechanism::Space {
            std::fs::remove_file(shared_state(&name, "control")).unwrap();
            let looks = OpenOptions { observer: true, ..options() };
            assert_eq!(Reader::open(&name, &looks).unwrap().versions().unwrap(), 12..15);
        }
    }
}

#[test]
fn latest_skips_and_subscribe_follows_one_variable() {
    let root = Root::new();
    let name = root.name("latest");
    let mut w = writer(&name, 0, 1).unwrap();
    put_versions(&mut w, 0..5);
    let mut r = Reader::open(&name, &OpenOptions { latest: true, ..ranked(0, 1) }).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(4));
    r.end_step().unwrap();
    w.begin_step().unwrap();
    w.put_array("other", &[1], &[0], &[1], &[1u8]).unwrap();
    w.end_step().unwrap();
    let mut all = Reader::open(&name, &OpenOptions { component: Some("s".into()), ..ranked(0, 1) }).unwrap();
    put_versions(&mut w, 6..7);
    w.close().unwrap();
    let mut seen = Vec::new();
    let mut follow = all.subscribe("v", None).unwrap();
    while let Some((version, bytes)) = follow.next(Some(Duration::from_secs(5))).unwrap() {
        seen.push((version, u64::from_le_bytes(bytes.try_into().unwrap())));
    }
    assert_eq!(seen.first(), Some(&(0, 0)));
    assert_eq!(seen.last(), Some(&(6, 6)));
    assert_eq!(seen.len(), 6);
}

/// Versions that are opened out of order neither move the stream nor end each other, on both carriers.
#[test]
fn versions_are_handles_of_their_own() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("handles");
        let mut w = Writer::open(&name, &OpenOptions { channel, ..options() }).unwrap();
        let mut r = Reader::open(&name, &OpenOptions { channel, ..options() }).unwrap();
        put_versions(&mut w, 0..6);
        assert_eq!(r.begin_step(None).unwrap(), Some(0));
        let mut four = r.open_version(4).unwrap();
        let mut two = r.open_version(2).unwrap();
        let mut two_again = two.open_version(2).unwrap();
        for _ in 0..2 {
            assert_eq!([&mut r, &mut four, &mut two, &mut two_again].map(value), [0, 4, 2, 2]);
        }
        r.end_step().unwrap();
        for version in 1..6 {
            assert_eq!(r.begin_step(None).unwrap(), Some(version), "the stream stays where it was");
            assert_eq!([&mut r, &mut four, &mut two].map(value), [version, 4, 2]);
            r.end_step().unwrap();
        }
        assert_eq!(two.begin_step(None).unwrap_err().kind(), Kind::StepState, "its one step is open");
        two.end_step().unwrap();
        assert_eq!(two.begin_step(None).unwrap(), None, "a stream of one version");
        assert_eq!(two.version(), None);
        two.close().unwrap();
        assert_eq!(value(&mut two_again), 2, "the other handle of it");
        r.close().unwrap();
        assert_eq!([&mut four, &mut two_again].map(value), [4, 2], "their reader is gone");
        w.close().unwrap();
    }
}

/// What the handles of one reader hold is what is kept: from the oldest of them on.
#[test]
fn each_opened_version_holds_its_own() {
    let root = Root::new();
    let name = root.name("held");
    let mut w = writer(&name, 0, 1).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    put_versions(&mut w, 0..6);
    let (four, two) = (r.open_version(4).unwrap(), r.open_version(2).unwrap());
    let big = vec![0u8; 1 << 20];
    w.set_timeout(soon());
    let mut fill = |r: &mut Reader| {
        for _ in 0..60 {
            w.begin_step()?;
            if let Err(full) = w.put_array("b", &[1 << 20], &[0], &[1 << 20], &big) {
                w.abort_step()?;
                return Err(full);
            }
            w.end_step()?;
            while r.versions()?.end > r.stats().steps {
                r.begin_step(None)?;
                r.end_step()?;
            }
        }
        Ok(())
    };
    for (handle, oldest) in [(two, 2), (four, 4)] {
        assert_eq!(fill(&mut r).unwrap_err().kind(), Kind::QuotaFull, "version {oldest} is held");
        assert_eq!(r.versions().unwrap().start, oldest);
        handle.close().unwrap();
    }
    fill(&mut r).unwrap();
    assert!(r.versions().unwrap().start > 20);
}

#[test]
fn an_observer_holds_no_writer_back() {
    let root = Root::new();
    let name = root.name("observed");
    let mut w = writer(&name, 0, 1).unwrap();
    put_versions(&mut w, 0..2);
    let mut o = Reader::open(&name, &OpenOptions { observer: true, ..options() }).unwrap();
    assert_eq!(value(&mut o.open_version(1).unwrap()), 1);
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..2 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
    }
    let info = forebay_space::inspect(&name).unwrap();
    assert_eq!(info.readers.len(), 1);
    assert_eq!(info.members.len(), 3);
    assert_eq!(info.versions_complete, 2);
    assert!(info.members.iter().all(|m| m.alive));
}

#[test]
fn wrong_questions_get_helpful_errors() {
    let root = Root::new();
    let name = root.name("wrong");
    let mut w = writer(&name, 0, 1).unwrap();
    w.begin_step().unwrap();
    w.put_array("pressure", &[10], &[0], &[4], &[1u8, 2, 3, 4]).unwrap();
    w.put_array("pressure", &[10], &[6], &[4], &[7u8, 8, 9, 10]).unwrap();
    w.end_step().unwrap();
    w.set_attribute("dt", &Attribute::Float(0.5)).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    assert_eq!(r.array("pressure").unwrap_err().kind(), Kind::StepState);
    r.begin_step(None).unwrap();
    let unknown = r.array("presure").unwrap_err();
    assert_eq!(unknown.kind(), Kind::UnknownVariable);
    assert!(unknown.to_string().contains("did you mean `pressure`"), "{unknown}");
    let gap = r.get_array::<u8>("pressure", None).unwrap_err();
    assert_eq!(gap.kind(), Kind::BoxNotCovered);
    assert!(gap.to_string().contains("4:6"), "{gap}");
    let outside = NdBox::new(&[5], &[6]).unwrap();
    assert_eq!(r.get_array::<u8>("pressure", Some(&outside)).unwrap_err().kind(), Kind::BoxOutsideShape);
    assert_eq!(r.get_array::<f64>("pressure", None).unwrap_err().kind(), Kind::BufferMismatch);
    let covered = NdBox::new(&[6], &[3]).unwrap();
    assert_eq!(r.get_array::<u8>("pressure", Some(&covered)).unwrap(), [7, 8, 9]);
    assert_eq!(r.view("pressure", None).map(drop).unwrap_err().kind(), Kind::NotContiguous);
    assert_eq!(r.attributes().unwrap()["dt"], Attribute::Float(0.5));
    let impatient = OpenOptions { timeout: Duration::from_millis(20), ..options() };
    assert_eq!(Reader::open(&root.name("none"), &impatient).map(drop).unwrap_err().kind(), Kind::PeerMissing);
}

#[test]
fn damage_is_found_at_the_first_read_and_by_verify() {
    let root = Root::new();
    let name = root.name("damage");
    let mut w = writer(&name, 0, 1).unwrap();
    for version in 0..3u64 {
        w.begin_step().unwrap();
        w.put_array("a", &[300_000], &[0], &[300_000], &vec![version as u8 + 1; 300_000]).unwrap();
        w.end_step().unwrap();
    }
    assert!(forebay_space::verify(&name).unwrap().damaged.is_empty());
    // One bit in the middle of version 1, by another program.
    let pool = std::path::Path::new(&name).join("pool");
    let bytes = std::fs::read(&pool).unwrap();
    let at = bytes.windows(300_000).position(|s| s.iter().all(|b| *b == 2)).unwrap() + 200_000;
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
    file.write_all_at(&[3], at as u64).unwrap();
    let report = forebay_space::verify(&name).unwrap();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0].version, Some(1));
    let mut r = reader(&name, 0, 1).unwrap();
    let mut one = r.open_version(1).unwrap();
    let untouched = NdBox::new(&[0], &[1000]).unwrap();
    assert_eq!(one.get_array::<u8>("a", Some(&untouched)).unwrap(), [2; 1000]);
    let damaged = one.get_array::<u8>("a", None).unwrap_err();
    assert_eq!(damaged.kind(), Kind::Damaged);
    assert_eq!(one.view("a", None).map(drop).unwrap_err().kind(), Kind::Damaged);
    assert_eq!(r.open_version(2).unwrap().get_array::<u8>("a", None).unwrap(), vec![3; 300_000]);
}

/// A random cut of `0..extent` into `parts` consecutive parts.
fn cuts(extent: u64, parts: u64, seed: u64) -> Vec<u64> {
    let mut edges: Vec<u64> =
        (1..parts).map(|i| (seed.wrapping_mul(i * 2654435761 + 1) >> 7) % (extent + 1)).collect();
    edges.extend([0, extent]);
    edges.sort_unstable();
    edges
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// M writers cut the array in every dimension, N readers ask for boxes that fit none of the cuts.
    #[test]
    fn any_box_is_gathered_from_any_split(
        shape in prop::collection::vec(1u64..9, 1..5),
        parts in prop::collection::vec(1u64..4, 4),
        seed in any::<u64>(),
        boxes in prop::collection::vec((any::<u64>(), any::<u64>()), 1..4),
    ) {
        let root = Root::new();
        let name = root.name("mxn");
        let cells: u64 = shape.iter().product();
        let plain: Vec<u32> = (0..cells as u32).map(|i| i.wrapping_mul(2654435761)).collect();
        let at = |point: &[u64]| {
            plain[point.iter().zip(&shape).fold(0, |i, (p, n)| i * n + p) as usize]
        };
        let points = |b: &NdBox| -> Vec<Vec<u64>> {
            b.start.iter().zip(&b.count).fold(vec![vec![]], |all, (s, c)| {
                all.iter().flat_map(|p| (*s..s + c).map(move |x| [p.as_slice(), &[x]].concat())).collect()
            })
        };
        let mut pieces = vec![(vec![], vec![])];
        for (d, n) in shape.iter().enumerate() {
            let edges = cuts(*n, parts[d], seed.rotate_left(d as u32 * 11));
            pieces = pieces.iter().flat_map(|(s, c): &(Vec<u64>, Vec<u64>)| {
                edges.windows(2).map(move |w| {
                    ([s.as_slice(), &[w[0]]].concat(), [c.as_slice(), &[w[1] - w[0]]].concat())
                }).collect::<Vec<_>>()
            }).collect();
        }
        let size = pieces.len().min(3) as u32;
        let mut ranks: Vec<Writer> = (0..size).map(|r| writer(&name, r, size).unwrap()).collect();
        for (r, w) in ranks.iter_mut().enumerate() {
            w.begin_step().unwrap();
            for (start, count) in pieces.iter().skip(r).step_by(size as usize) {
                let part = NdBox::new(start, count).unwrap();
                let data: Vec<u32> = points(&part).iter().map(|p| at(p)).collect();
                w.put_array("f", &shape, start, count, &data).unwrap();
            }
            w.end_step().unwrap();
        }
        for (rank, (a, b)) in boxes.iter().enumerate() {
            let mut r = reader(&name, rank as u32, boxes.len() as u32).unwrap();
            prop_assert_eq!(r.begin_step(None).unwrap(), Some(0));
            prop_assert_eq!(r.get_array::<u32>("f", None).unwrap(), plain.clone());
            let start: Vec<u64> = shape.iter().enumerate().map(|(d, n)| (a >> (d * 8)) % n).collect();
            let count: Vec<u64> =
                shape.iter().enumerate().map(|(d, n)| 1 + (b >> (d * 8)) % (n - start[d])).collect();
            let wanted = NdBox::new(&start, &count).unwrap();
            let expected: Vec<u32> = points(&wanted).iter().map(|p| at(p)).collect();
            prop_assert_eq!(r.get_array::<u32>("f", Some(&wanted)).unwrap(), expected);
        }
    }
}

#[test]
fn what_is_unread_is_told_for_groups_and_for_the_space() {
    for mechanism in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("lagging");
        let with = |rank, size| OpenOptions { channel: mechanism, ..ranked(rank, size) };
        let mut w = Writer::open(&name, &with(0, 1)).unwrap();
        put_versions(&mut w, 0..3);
        let look = || forebay_space::glance(&name).unwrap();
        assert_eq!(look().oldest_unread, Some(0), "before any reader came");

        let group = OpenOptions { component: Some("pair".into()), ..with(0, 2) };
        let mut r = Reader::open(&name, &group).unwrap();
        for _ in 0..2 {
            r.begin_step(None).unwrap();
            r.end_step().unwrap();
        }
        // Its other rank has not come: it will want everything.
        let lag = |info: &forebay_space::SpaceInfo| {
            (info.readers[0].version_min, info.readers[0].oldest_unread, info.readers[0].lag_versions)
        };
        let half = look();
        assert_eq!((lag(&half), half.oldest_unread), ((Some(2), Some(0), 3), Some(0)), "{mechanism:?}");

        let mut other = Reader::open(&name, &OpenOptions { rank: Some(1), ..group }).unwrap();
        for _ in 0..3 {
            other.begin_step(None).unwrap();
            other.end_step().unwrap();
        }
        let both = look();
        assert_eq!((lag(&both), both.oldest_unread), ((Some(2), Some(2), 1), Some(2)), "{mechanism:?}");
        r.begin_step(None).unwrap();
        r.end_step().unwrap();
        let done = look();
        assert_eq!((lag(&done), done.oldest_unread), ((Some(3), None, 0), None), "{mechanism:?}");
        assert_eq!(done.tiers.len(), 1, "{mechanism:?}");
        assert!(done.versions.is_empty() && !forebay_space::inspect(&name).unwrap().name.is_empty());
        w.close().unwrap();
    }
}

/// Where boxes of ranks overlap, the highest rank is seen, by every way to read.
#[test]
fn get_and_view_see_the_same_of_boxes_that_overlap() {
    let root = Root::new();
    let name = root.name("overlap");
    let mut ranks = [writer(&name, 0, 2).unwrap(), writer(&name, 1, 2).unwrap()];
    for (w, value) in ranks.iter_mut().zip([1u8, 2]) {
        w.begin_step().unwrap();
        w.put_array("same", &[4], &[0], &[4], &[value; 4]).unwrap();
        let start = [u64::from(value - 1)];
        w.put_array("halo", &[4], &start, &[3], &[value; 3]).unwrap();
        w.end_step().unwrap();
    }
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    assert_eq!(r.get_array::<u8>("same", None).unwrap(), [2; 4]);
    assert_eq!(r.view("same", None).unwrap().bytes(), [2; 4]);
    assert_eq!(r.get_array::<u8>("halo", None).unwrap(), [1, 2, 2, 2]);
    let part = NdBox::new(&[1], &[2]).unwrap();
    assert_eq!(r.view("halo", Some(&part)).unwrap().bytes(), [2; 2]);
    // Rank 0's piece holds it, but rank 1 has the later half of it.
    let mixed = NdBox::new(&[0], &[2]).unwrap();
    assert_eq!(r.view("halo", Some(&mixed)).map(drop).unwrap_err().kind(), Kind::NotContiguous);
    assert_eq!(r.view("halo", Some(&NdBox::new(&[0], &[1]).unwrap())).unwrap().bytes(), [1]);
}
