//! Reader groups that keep a cursor: reopened, away while versions are written, resized, after a reboot, left for good.

use crate::support::{is_elsewhere, ranked, shared_state, soon, Root};
use forebay_space::{
    Absent, Horizon, Kind, Mechanism, Mode, OpenOptions, Reader, Result, Retention, TierKind, WhenFull,
    Writer,
};

/// A writer that declares the group `viz`, of so many ranks.
fn declares(ranks: u32) -> OpenOptions {
    OpenOptions {
        readers: vec![("viz".into(), ranks)],
        timeout: soon(),
        quota_bytes: Some(4 << 20),
        ..ranked(0, 1)
    }
}

fn put(w: &mut Writer, version: u64) -> Result<()> {
    w.begin_step()?;
    let put =
        w.put_array("v", &[40_000], &[0], &[40_000], &vec![version; 40_000]).and_then(|()| w.end_step());
    put.inspect_err(|_| w.abort_step().unwrap())
}

fn put_all(w: &mut Writer, versions: std::ops::Range<u64>) {
    versions.for_each(|version| put(w, version).unwrap());
}

/// Writes until the space is full; the error of that.
fn fill(w: &mut Writer, from: u64) -> (u64, forebay_space::Error) {
    (from..from + 10_000).find_map(|version| put(w, version).err().map(|e| (version, e))).expect("it is full")
}

fn viz(name: &str, rank: u32, size: u32) -> Reader {
    let options = OpenOptions { component: Some("viz".into()), timeout: soon(), ..ranked(rank, size) };
    Reader::open(name, &options).unwrap()
}

fn read(r: &mut Reader, versions: std::ops::Range<u64>) {
    for version in versions {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        assert_eq!(r.get_array::<u64>("v", None).unwrap()[39_999], version);
        assert_eq!(r.missed(), 0);
        r.end_step().unwrap();
    }
}

#[test]
fn a_declared_group_that_is_reopened_misses_nothing_and_gets_nothing_twice() {
    let root = Root::new();
    let name = root.name("reopened");
    let mut w = Writer::open(&name, &declares(1)).unwrap();
    put_all(&mut w, 0..5);
    let mut r = viz(&name, 0, 1);
    read(&mut r, 0..3);
    r.close().unwrap();
    // No reader reads: what the group has not read stays, until the quota is full.
    let (full, error) = fill(&mut w, 5);
    assert_eq!(error.kind(), Kind::QuotaFull);
    let text = error.to_string();
    assert!(text.contains("reader group viz: rank 0 is absent and goes on at version 3"), "{text}");
    assert!(text.contains("forebay clean --readers viz"), "{text}");
    let mut r = viz(&name, 0, 1);
    assert_eq!(r.begin_step(None).unwrap(), Some(3));
    // Not ended: it is given again.
    drop(r);
    let mut r = viz(&name, 0, 1);
    read(&mut r, 3..full);
    put(&mut w, full).unwrap();
    w.close().unwrap();
    read(&mut r, full..full + 1);
    assert_eq!(r.begin_step(None).unwrap(), None);
    r.close().unwrap();
    if !is_elsewhere() {
        assert!(root.left().is_empty(), "it was read to its end: {:?}", root.left());
    }
}

#[test]
fn a_group_that_was_not_declared_begins_again() {
    let root = Root::new();
    let name = root.name("ad-hoc");
    let forever = OpenOptions { retention: Some(Retention::Forever), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &forever).unwrap();
    put_all(&mut w, 0..3);
    for _ in 0..2 {
        let mut r = viz(&name, 0, 1);
        read(&mut r, 0..3);
        r.close().unwrap();
    }
    // With a name of its own it keeps a cursor.
    let named = OpenOptions { group: Some("named".into()), ..ranked(0, 1) };
    read(&mut Reader::open(&name, &named).unwrap(), 0..2);
    read(&mut Reader::open(&name, &named).unwrap(), 2..3);
}

#[test]
fn versions_that_went_without_a_group_are_counted() {
    let root = Root::new();
    for (space, options) in [
        ("drop", OpenOptions { absent: Some(Absent::Drop), ..declares(1) }),
        ("last", OpenOptions { retention: Some(Retention::Last(2)), ..declares(1) }),
        ("oldest", OpenOptions { when_full: Some(WhenFull::DropOldest), ..declares(1) }),
    ] {
        let name = root.name(space);
        let mut w = Writer::open(&name, &options).unwrap();
        put_all(&mut w, 0..2);
        let mut r = viz(&name, 0, 1);
        read(&mut r, 0..2);
        r.close().unwrap();
        put_all(&mut w, 2..100);
        w.close().unwrap();
        let mut r = viz(&name, 0, 1);
        let retained = r.versions().unwrap();
        assert!(retained.start > 2 && retained.end == 100, "{space}: {retained:?}");
        assert_eq!(r.begin_step(None).unwrap(), Some(retained.start), "{space}");
        assert_eq!(r.missed(), retained.start - 2, "{space}");
        r.end_step().unwrap();
        read(&mut r, retained.start + 1..100);
        assert_eq!(r.begin_step(None).unwrap(), None);
        assert_eq!((r.missed(), r.stats().dropped), (0, retained.start - 2), "{space}");
    }
}

#[test]
fn the_policy_error_tells_the_writer() {
    let root = Root::new();
    let name = root.name("strict");
    let mut w = Writer::open(&name, &OpenOptions { absent: Some(Absent::Error), ..declares(1) }).unwrap();
    put_all(&mut w, 0..2);
    let mut r = viz(&name, 0, 1);
    read(&mut r, 0..1);
    put_all(&mut w, 2..3);
    drop(r);
    let error = w.begin_step().unwrap_err();
    assert_eq!(error.kind(), Kind::PeerMissing, "{error}");
    assert!(error.to_string().contains("reader group viz"), "{error}");
    let mut r = viz(&name, 0, 1);
    read(&mut r, 1..3);
    put_all(&mut w, 3..4);
    w.close().unwrap();
    read(&mut r, 3..4);
}

/// A rank that has seen the end of a stream that goes on is missed when it dies, with its old handle and a new one.
#[test]
fn the_policy_error_tells_of_a_rank_that_saw_an_earlier_end() {
    let root = Root::new();
    let name = root.name("strict-again");
    let options = OpenOptions { absent: Some(Absent::Error), ..declares(1) };
    let mut w = Writer::open(&name, &options).unwrap();
    put_all(&mut w, 0..1);
    let mut r = viz(&name, 0, 1);
    read(&mut r, 0..1);
    w.close().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
    let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options.clone() }).unwrap();
    put_all(&mut w, 1..2);
    read(&mut r, 1..2);
    drop(r);
    assert_eq!(w.begin_step().unwrap_err().kind(), Kind::PeerMissing);
    let mut r = viz(&name, 0, 1);
    w.close().unwrap();
    assert_eq!(r.begin_step(None).unwrap(), None);
    let observer = Reader::open(&name, &OpenOptions { observer: true, ..ranked(0, 1) }).unwrap();
    r.close().unwrap();
    let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options }).unwrap();
    put_all(&mut w, 2..3);
    drop(observer);
    let mut r = viz(&name, 0, 1);
    read(&mut r, 2..3);
    drop(r);
    assert_eq!(w.begin_step().unwrap_err().kind(), Kind::PeerMissing);
}

#[test]
fn a_group_that_left_for_good_holds_nothing() {
    let root = Root::new();
    let name = root.name("left");
    let mut w = Writer::open(&name, &declares(2)).unwrap();
    put_all(&mut w, 0..3);
    let (mut a, mut b) = (viz(&name, 0, 2), viz(&name, 1, 2));
    read(&mut a, 0..2);
    read(&mut b, 0..1);
    a.leave().unwrap();
    let (full, error) = fill(&mut w, 3);
    assert!(error.to_string().contains("has not released version 1"), "the other rank holds: {error}");
    read(&mut b, 1..3);
    b.leave().unwrap();
    // Versions go without it.
    put_all(&mut w, full..full + 100);
    let mut a = viz(&name, 0, 2);
    let oldest = a.versions().unwrap().start;
    assert!(oldest > 3);
    assert_eq!((a.begin_step(None).unwrap(), a.missed()), (Some(oldest), 0), "it begins anew");
}

#[test]
fn a_group_that_has_left_keeps_nothing_of_a_space_that_the_others_have_read() {
    for waits in [false, true] {
        let root = Root::new();
        let name = root.name("left");
        let readers = vec![("viz".into(), 1), ("stats".into(), 1)];
        let mut w = Writer::open(&name, &OpenOptions { readers, ..declares(1) }).unwrap();
        put_all(&mut w, 0..2);
        let mut r = viz(&name, 0, 1);
        if waits {
            w.close().unwrap();
            read(&mut r, 0..2);
            assert_eq!(r.begin_step(None).unwrap(), None);
            drop(r);
            // It has read all of it, and waits for writers that go on.
            r = viz(&name, 0, 1);
            r.leave().unwrap();
            w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..declares(1) }).unwrap();
            put_all(&mut w, 2..4);
        } else {
            r.leave().unwrap();
        }
        let lag = |group: &str| {
            let found = forebay_space::inspect(&name).unwrap().readers;
            found.iter().find(|g| g.name == group).unwrap().lag_versions
        };
        assert_eq!(lag("viz"), 0, "waits: {waits}");
        w.close().unwrap();
        let group = Some("stats".into());
        let mut stats = Reader::open(&name, &OpenOptions { group, finished: true, ..ranked(0, 1) }).unwrap();
        let mut count = 0;
        while stats.begin_step(None).unwrap().is_some() {
            stats.end_step().unwrap();
            count += 1;
        }
        assert_eq!(count, if waits { 4 } else { 2 });
        stats.close().unwrap();
        assert!(!std::path::Path::new(&name).exists(), "waits: {waits}");
    }
}

/// The ranks of a small analysis may not overlap.
#[test]
fn ranks_of_a_group_that_come_one_after_the_other_go_on_behind_what_each_read() {
    let root = Root::new();
    let name = root.name("turns");
    for from in [0, 3] {
        let keeps = OpenOptions { retention: Some(Retention::Forever), mode: Mode::Append, ..declares(2) };
        let mut w = Writer::open(&name, &keeps).unwrap();
        assert_eq!(w.resume().unwrap(), from);
        put_all(&mut w, from..from + 3);
        w.close().unwrap();
        for rank in 0..2 {
            let group = Some("viz".into());
            let mut r =
                Reader::open(&name, &OpenOptions { group, finished: true, ..ranked(rank, 2) }).unwrap();
            read(&mut r, from..from + 3);
            assert_eq!(r.begin_step(None).unwrap(), None);
        }
        let found = forebay_space::inspect(&name).unwrap();
        assert_eq!((found.readers[0].lag_versions, found.oldest_unread), (0, None), "from {from}");
    }
}

#[test]
fn a_rank_that_has_read_to_the_end_gets_nothing_twice_when_the_stream_goes_on() {
    let root = Root::new();
    let name = root.name("on");
    let mut w = Writer::open(&name, &declares(2)).unwrap();
    put_all(&mut w, 0..3);
    w.close().unwrap();
    let of = |rank| {
        let group = Some("viz".into());
        Reader::open(&name, &OpenOptions { group, finished: true, ..ranked(rank, 2) }).unwrap()
    };
    let mut ranks = [of(0), of(1)];
    read(&mut ranks[0], 0..3);
    assert_eq!(ranks[0].begin_step(None).unwrap(), None);
    let [first, second] = ranks;
    first.close().unwrap();
    second.close().unwrap();
    // Alone its group comes again as a whole, at its own place.
    let mut second = of(1);
    read(&mut second, 0..3);
    assert_eq!(second.begin_step(None).unwrap(), None);
    let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..declares(2) }).unwrap();
    // More than the quota holds: what both have read goes.
    put_all(&mut w, 3..8);
    read(&mut second, 3..8);
    let mut first = of(0);
    read(&mut first, 3..8);
    put_all(&mut w, 8..14);
}

/// A group that its writers did not declare, and of which a rank never comes.
#[test]
fn a_rank_of_a_group_that_was_not_declared_can_leave() {
    let root = Root::new();
    let name = root.name("undeclared");
    let mut w = Writer::open(&name, &OpenOptions { quota_bytes: Some(4 << 20), ..ranked(0, 1) }).unwrap();
    put_all(&mut w, 0..1);
    let component = Some("stats".into());
    let mut r = Reader::open(&name, &OpenOptions { component, ..ranked(0, 2) }).unwrap();
    read(&mut r, 0..1);
    let lag = || forebay_space::inspect(&name).unwrap().readers[0].lag_versions;
    assert_eq!(lag(), 1, "rank 1 is still to come");
    assert!(forebay_space::leave_reader_group(&name, "stats", 1, soon()).unwrap());
    assert_eq!(lag(), 0);
}

/// Which it had read, and which were dropped since.
#[test]
fn a_rank_that_had_read_to_the_end_is_not_told_of_dropped_versions() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("dropped");
        let mut w = Writer::open(&name, &OpenOptions { channel, ..declares(2) }).unwrap();
        put_all(&mut w, 0..5);
        w.close().unwrap();
        let of = |rank| {
            let component = Some("viz".into());
            let options = OpenOptions { component, channel, finished: true, ..ranked(rank, 2) };
            Reader::open(&name, &options).unwrap()
        };
        let mut first = of(0);
        read(&mut first, 0..5);
        assert_eq!(first.begin_step(None).unwrap(), None);
        first.close().unwrap();
        let mut second = of(1);
        read(&mut second, 0..3);
        let mut first = of(0);
        // As the other rank, which has still to read them; `read` fails where versions count as missed.
        read(&mut first, 3..5);
        assert_eq!(first.begin_step(None).unwrap(), None);
    }
}

/// A rank that comes late sees what the others see, whatever its group means to the writers while it is away.
#[test]
fn a_rank_that_saw_an_end_is_awaited_when_its_group_comes_again() {
    let root = Root::new();
    for absent in [Absent::Hold, Absent::Drop, Absent::Error] {
        let name = root.name(&format!("late-{absent}"));
        let options = OpenOptions { absent: Some(absent), ..declares(2) };
        let mut w = Writer::open(&name, &options).unwrap();
        put_all(&mut w, 0..3);
        w.close().unwrap();
        let of = |rank| {
            let component = Some("viz".into());
            Reader::open(&name, &OpenOptions { component, finished: true, ..ranked(rank, 2) }).unwrap()
        };
        let mut ended = of(0);
        read(&mut ended, 0..3);
        assert_eq!(ended.begin_step(None).unwrap(), None);
        ended.close().unwrap();
        let mut first = of(1);
        let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options }).unwrap();
        read(&mut first, 0..3);
        put_all(&mut w, 3..6);
        read(&mut first, 3..6);
        let (full, error) = fill(&mut w, 6);
        assert_eq!(error.kind(), Kind::QuotaFull, "{absent}");
        assert!(error.to_string().contains("reader group viz: rank 0 never joined"), "{error}");
        read(&mut of(0), 3..full);
    }
}

/// A rank that came back alone and closed makes its group no less absent than one that was killed.
#[test]
fn a_group_with_the_policy_drop_that_came_back_in_part_is_absent() {
    let root = Root::new();
    let name = root.name("part");
    let mut w = Writer::open(&name, &OpenOptions { absent: Some(Absent::Drop), ..declares(2) }).unwrap();
    put_all(&mut w, 0..1);
    let mut ranks = [viz(&name, 0, 2), viz(&name, 1, 2)];
    ranks.iter_mut().for_each(|rank| read(rank, 0..1));
    drop(ranks);
    drop(viz(&name, 0, 2));
    // More than the quota.
    put_all(&mut w, 1..50);
}

#[test]
fn a_group_comes_with_another_number_of_ranks_after_a_reboot() {
    let disk = tempfile::tempdir().unwrap();
    let name = disk.path().join("resized").display().to_string();
    let mut w = Writer::open(&name, &OpenOptions { tier: Some(TierKind::File), ..declares(2) }).unwrap();
    put_all(&mut w, 0..3);
    let mut ranks = [viz(&name, 0, 2), viz(&name, 1, 2)];
    ranks.iter_mut().for_each(|rank| read(rank, 0..2));
    drop(ranks);
    w.close().unwrap();
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    for rank in 0..3 {
        read(&mut viz(&name, rank, 3), 2..3);
    }
    forebay_space::destroy(&name).unwrap();
}

#[test]
fn what_a_rank_had_read_it_has_not_missed() {
    let root = Root::new();
    for channel in [Mechanism::Space, Mechanism::Files] {
        let name = root.name(&format!("read-{channel}"));
        let options = OpenOptions { channel, retention: Some(Retention::Last(2)), ..declares(2) };
        let mut w = Writer::open(&name, &options).unwrap();
        let of = |rank| {
            let component = Some("viz".into());
            Reader::open(&name, &OpenOptions { component, channel, timeout: soon(), ..ranked(rank, 2) })
                .unwrap()
        };
        let mut ranks = [of(0), of(1)];
        for version in 0..4 {
            put(&mut w, version).unwrap();
            read(&mut ranks[0], version..version + 1);
            if version < 2 {
                read(&mut ranks[1], version..version + 1);
            }
        }
        ranks.into_iter().for_each(|rank| rank.close().unwrap());
        put_all(&mut w, 4..8);
        // Both begin where the group is, at version 2; rank 0 had read two of the four that went.
        let mut ranks = [of(1), of(0)];
        for (rank, missed) in ranks.iter_mut().zip([4, 2]) {
            assert_eq!(rank.begin_step(None).unwrap(), Some(6), "{channel}");
            assert_eq!((rank.missed(), rank.stats().dropped), (missed, missed), "{channel}");
            rank.end_step().unwrap();
        }
    }
}

/// While another process has the space open, which keeps it from going at once.
#[test]
fn what_was_added_after_all_readers_had_gone_stays() {
    for (declared, leaves) in [(true, true), (true, false), (false, true), (false, false)] {
        let root = Root::new();
        let name = root.name("later");
        let options =
            if declared { declares(1) } else { OpenOptions { quota_bytes: Some(4 << 20), ..ranked(0, 1) } };
        let mut w = Writer::open(&name, &options).unwrap();
        put_all(&mut w, 0..2);
        let mut r = viz(&name, 0, 1);
        read(&mut r, 0..2);
        w.close().unwrap();
        assert_eq!(r.begin_step(None).unwrap(), None);
        let observer = Reader::open(&name, &OpenOptions { observer: true, ..ranked(0, 1) }).unwrap();
        if leaves {
            r.leave().unwrap();
        } else {
            r.close().unwrap();
        }
        let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options }).unwrap();
        put_all(&mut w, 2..4);
        w.close().unwrap();
        drop(observer);
        let left = forebay_space::inspect(&name).map(|space| space.versions_complete);
        assert_eq!(left.unwrap(), 4, "declared: {declared}, leaves: {leaves}");
    }
}

#[test]
fn what_was_added_behind_the_end_that_a_rank_saw_stays_when_it_leaves() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        for leaves_before in [false, true] {
            let root = Root::new();
            let name = root.name("added");
            let options = OpenOptions { channel, ..declares(1) };
            let mut w = Writer::open(&name, &options).unwrap();
            put_all(&mut w, 0..2);
            let component = Some("viz".into());
            let mut r = Reader::open(&name, &OpenOptions { component, channel, ..ranked(0, 1) }).unwrap();
            read(&mut r, 0..2);
            w.close().unwrap();
            assert_eq!(r.begin_step(None).unwrap(), None);
            let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options }).unwrap();
            if leaves_before {
                r.leave().unwrap();
                put_all(&mut w, 2..4);
                w.close().unwrap();
            } else {
                put_all(&mut w, 2..4);
                w.close().unwrap();
                r.leave().unwrap();
            }
            let left = forebay_space::inspect(&name).map(|space| space.versions_complete);
            assert_eq!(left.unwrap(), 4, "{channel}, before the first commit: {leaves_before}");
        }
    }
}

/// Nothing is kept for it; the declared group has read everything.
#[test]
fn an_undeclared_group_that_has_seen_an_earlier_end_does_not_keep_the_space() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("earlier");
        let options = OpenOptions { channel, ..declares(1) };
        let of = |group: &str| {
            let component = Some(group.to_string());
            let options = OpenOptions { component, channel, finished: true, ..ranked(0, 1) };
            Reader::open(&name, &options).unwrap()
        };
        let mut w = Writer::open(&name, &options).unwrap();
        put_all(&mut w, 0..2);
        w.close().unwrap();
        let mut other = of("other");
        read(&mut other, 0..2);
        assert_eq!(other.begin_step(None).unwrap(), None);
        other.close().unwrap();
        let mut w = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..options }).unwrap();
        put_all(&mut w, 2..4);
        w.close().unwrap();
        let mut viz = of("viz");
        read(&mut viz, 0..4);
        assert_eq!(viz.begin_step(None).unwrap(), None);
        viz.close().unwrap();
        assert!(!std::path::Path::new(&name).exists(), "{channel}");
    }
}

/// As a runner does for a rank that has ended before it had read everything.
#[test]
fn a_rank_that_is_not_there_can_leave_its_group() {
    for files in [false, true] {
        let root = Root::new();
        let name = root.name("gone");
        let mut options = declares(2);
        if files {
            options = OpenOptions { channel: Mechanism::Files, ..options };
        }
        let mut w = Writer::open(&name, &options).unwrap();
        put_all(&mut w, 0..2);
        let of = |rank| {
            let component = Some("viz".into());
            Reader::open(&name, &OpenOptions { component, channel: options.channel, ..ranked(rank, 2) })
                .unwrap()
        };
        let mut r = of(0);
        // Rank 1 has never come; rank 0 lives.
        (0..2)
            .for_each(|rank| assert!(forebay_space::leave_reader_group(&name, "viz", rank, soon()).unwrap()));
        assert!(!forebay_space::leave_reader_group(&name, "other", 0, soon()).unwrap());
        read(&mut r, 0..2);
        put_all(&mut w, 2..3);
        let lag = || forebay_space::inspect(&name).unwrap().readers[0].lag_versions;
        assert_eq!(lag(), 1, "files: {files}");
        read(&mut r, 2..3);
        assert_eq!(lag(), 0, "files: {files}");
        drop(r);
        put_all(&mut w, 3..4);
        assert_eq!(lag(), 1, "rank 0 keeps its cursor, files: {files}");
        assert!(forebay_space::leave_reader_group(&name, "viz", 0, soon()).unwrap());
        assert_eq!(lag(), 0, "files: {files}");
    }
}

/// More groups than the table has places, one after the other.
#[test]
fn undeclared_groups_that_have_gone_make_way_for_others() {
    const GROUPS: u64 = 150;
    let root = Root::new();
    let name = root.name("many");
    let mut w = Writer::open(&name, &OpenOptions { readers: Vec::new(), ..declares(1) }).unwrap();
    put_all(&mut w, 0..1);
    let mut stays = viz(&name, 0, 1);
    for version in 0..GROUPS {
        // It goes before it has seen the end, and does not leave its group.
        let component = Some(format!("look-{version}"));
        let options = OpenOptions { component, timeout: soon(), ..ranked(0, 1) };
        let mut r = Reader::open(&name, &options).unwrap();
        assert!(r.begin_step(None).unwrap().is_some());
        drop(r);
        put_all(&mut w, version + 1..version + 2);
        read(&mut stays, version..version + 1);
    }
}

/// The remedy that `QuotaFull` names.
#[test]
fn a_group_that_is_removed_holds_nothing() {
    let root = Root::new();
    let name = root.name("removed");
    let mut w = Writer::open(&name, &declares(1)).unwrap();
    let (full, error) = fill(&mut w, 0);
    assert!(error.to_string().contains("clean --readers viz"), "{error}");
    forebay_space::remove_reader_group(&name, "viz").unwrap();
    put_all(&mut w, full..full + 100);
    // One that comes now holds what is there, as the first of all.
    let mut late = viz(&name, 0, 1);
    assert!(late.versions().unwrap().start > full);
    let (_, error) = fill(&mut w, full + 100);
    assert!(error.to_string().contains("has not released"), "{error}");
    assert!(late.begin_step(None).unwrap().is_some());
}

#[test]
fn a_group_that_comes_again_as_a_whole_begins_where_all_its_ranks_ended() {
    let root = Root::new();
    let name = root.name("whole");
    let mut w = Writer::open(&name, &declares(2)).unwrap();
    put_all(&mut w, 0..6);
    let (mut a, mut b) = (viz(&name, 0, 2), viz(&name, 1, 2));
    read(&mut a, 0..4);
    read(&mut b, 0..2);
    drop(a);
    // One that comes again while the other is there goes on by itself.
    let mut a = viz(&name, 0, 2);
    read(&mut a, 4..5);
    drop((a, b));
    let mut b = viz(&name, 1, 2);
    read(&mut b, 2..6);
    let mut a = viz(&name, 0, 2);
    read(&mut a, 2..3);
    drop((a, b));
    let mut one = viz(&name, 0, 1);
    read(&mut one, 3..6);
    w.close().unwrap();
    assert_eq!(one.begin_step(None).unwrap(), None);
    // It has seen the end, and the space goes with it.
    one.leave().unwrap();
    assert!(!std::path::Path::new(&name).exists());
}

/// A reboot leaves the files of a pool on a disk, and no shared state.
#[test]
fn cursors_outlive_the_shared_state_on_a_disk() {
    let disk = tempfile::tempdir().unwrap();
    for horizon in [Horizon::None, Horizon::Epoch] {
        let name = disk.path().join(format!("{horizon}")).display().to_string();
        let on = |options| OpenOptions { tier: Some(TierKind::File), horizon: Some(horizon), ..options };
        let mut w = Writer::open(&name, &on(declares(1))).unwrap();
        put_all(&mut w, 0..6);
        let mut r = viz(&name, 0, 1);
        read(&mut r, 0..4);
        r.close().unwrap();
        let mut gone =
            Reader::open(&name, &OpenOptions { group: Some("gone".into()), ..ranked(0, 1) }).unwrap();
        read(&mut gone, 0..1);
        gone.leave().unwrap();
        w.close().unwrap();
        std::fs::remove_file(shared_state(&name, "control")).unwrap();
        let groups = forebay_space::inspect(&name).unwrap().readers;
        assert_eq!(groups.iter().map(|group| &group.name).collect::<Vec<_>>(), ["viz", "gone"]);
        forebay_space::remove_reader_group(&name, "gone").unwrap();
        let mut r = viz(&name, 0, 1);
        read(&mut r, 4..6);
        assert_eq!(r.begin_step(None).unwrap(), None);
        drop(r);
        // It has read everything, and with the last process the space goes.
        assert!(!std::path::Path::new(&name).exists());
    }
}

#[test]
fn a_group_with_the_policy_drop_holds_nothing_after_a_reboot() {
    let disk = tempfile::tempdir().unwrap();
    let name = disk.path().join("dropped").display().to_string();
    let options = OpenOptions { tier: Some(TierKind::File), absent: Some(Absent::Drop), ..declares(1) };
    let mut w = Writer::open(&name, &options).unwrap();
    let mut r = viz(&name, 0, 1);
    // More than the quota: the first versions are not in the pool any more.
    for version in 0..40 {
        put_all(&mut w, version..version + 1);
        read(&mut r, version..version + 1);
    }
    r.close().unwrap();
    put_all(&mut w, 40..41);
    w.close().unwrap();
    let reboot = || std::fs::remove_file(shared_state(&name, "control")).unwrap();
    reboot();
    // Declared behind versions that have gone; until it comes it holds what is to come, also after a reboot.
    let readers = vec![("viz".into(), 1), ("late".into(), 1)];
    let appends = OpenOptions { mode: Mode::Append, readers, ..options };
    let mut w = Writer::open(&name, &appends).unwrap();
    put_all(&mut w, 41..42);
    w.close().unwrap();
    reboot();
    let mut w = Writer::open(&name, &appends).unwrap();
    let (full, error) = fill(&mut w, 42);
    assert!(error.to_string().contains("reader group late: rank 0 never joined"), "{error}");
    let component = Some("late".into());
    let mut late = Reader::open(&name, &OpenOptions { component, ..ranked(0, 1) }).unwrap();
    assert!(late.begin_step(None).unwrap().unwrap() <= 41);
    assert_eq!(late.missed(), 0);
    late.close().unwrap();
    // More than the quota.
    put_all(&mut w, full..full + 50);
    let mut r = viz(&name, 0, 1);
    let oldest = r.versions().unwrap().start;
    assert_eq!(r.begin_step(None).unwrap(), Some(oldest));
    assert_eq!(r.missed(), oldest - 40);
    drop((r, w));
    forebay_space::destroy(&name).unwrap();
}

#[test]
fn a_damaged_file_of_cursors_is_an_error_that_names_it() {
    let disk = tempfile::tempdir().unwrap();
    let name = disk.path().join("damaged").display().to_string();
    let mut w = Writer::open(&name, &OpenOptions { tier: Some(TierKind::File), ..declares(1) }).unwrap();
    put_all(&mut w, 0..2);
    w.close().unwrap();
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    let file = disk.path().join("damaged").join("cursors");
    let good = std::fs::read(&file).unwrap();
    let mut bad = good.clone();
    bad[3] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let error = Reader::open(&name, &ranked(0, 1)).err().unwrap();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains("cursors"), "{error}");
    let mut bad = good;
    // The cursor of the first rank of the first group.
    bad[4096 + 2 * 64 * 128] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let viz = OpenOptions { component: Some("viz".into()), ..ranked(0, 1) };
    let error = Reader::open(&name, &viz).err().unwrap();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains("viz"), "{error}");
    forebay_space::remove_reader_group(&name, "viz").unwrap();
    read(&mut Reader::open(&name, &viz).unwrap(), 0..2);
    forebay_space::destroy(&name).unwrap();
}

#[test]
fn a_channel_of_files_refuses_a_cursor() {
    let root = Root::new();
    let files = OpenOptions { channel: Mechanism::Files, ..ranked(0, 1) };
    let named = OpenOptions { group: Some("viz".into()), ..files.clone() };
    let error = Reader::open(&root.name("files"), &named).err().unwrap();
    assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
    let policy = OpenOptions { absent: Some(Absent::Hold), ..files };
    assert_eq!(Writer::open(&root.name("files"), &policy).err().unwrap().kind(), Kind::NotPossibleHere);
}
