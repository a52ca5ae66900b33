//! What real processes see of each other: death, restart, lost shared state, two runs with one name.
//!
//! Children are this test binary again: the test `child` plays the role that `SPACE_TEST_ROLE` names.

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    is_elsewhere, options, ranked, reader, shared_state, soon, tier_of_roots, writer, Root,
};
use forebay_space::{Horizon, Kind, Mechanism, Mode, OpenOptions, Reader, Retention, TierKind, Writer};

/// Starts a child in a role; `arguments` are words.
fn start(role: &str, name: &str, arguments: &[u64]) -> Child {
    command(role, name, arguments).spawn().expect("a child")
}

/// As [`start`], as a process of that run: however late it begins, it is no new launch.
fn start_in(run: &str, role: &str, name: &str, arguments: &[u64]) -> Child {
    command(role, name, arguments).env("FOREBAY_RUN", run).spawn().expect("a child")
}

fn command(role: &str, name: &str, arguments: &[u64]) -> Command {
    let words: Vec<String> = arguments.iter().map(u64::to_string).collect();
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .env("SPACE_TEST_ROLE", role)
        .env("SPACE_TEST_NAME", name)
        .env("SPACE_TEST_ARGUMENTS", words.join(" "))
        // Some of them are meant to fail; the message is enough.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null());
    command
}

/// Every element of version `version` as rank `rank` puts it.
fn value(version: u64, rank: u64) -> u64 {
    version << 16 | rank
}

const ELEMENTS: u64 = 5000;

fn put(w: &mut Writer, version: u64) -> forebay_space::Result<()> {
    let (rank, size) = (u64::from(w.rank()), u64::from(w.size()));
    let data = vec![value(version, rank); ELEMENTS as usize];
    w.put_array("a", &[size * ELEMENTS], &[rank * ELEMENTS], &[ELEMENTS], &data)?;
    w.put_array("b", &[size], &[rank], &[1], &[version])
}

/// Asserts that the open version is whole and of one step.
fn check(r: &mut Reader, version: u64, ranks: u64) {
    let a = r.get_array::<u64>("a", None).unwrap();
    assert_eq!(a.len() as u64, ranks * ELEMENTS);
    for (i, x) in a.iter().enumerate() {
        assert_eq!(*x, value(version, i as u64 / ELEMENTS), "element {i} of version {version}");
    }
    assert_eq!(r.get_array::<u64>("b", None).unwrap(), vec![version; ranks as usize]);
}

#[test]
fn child() {
    let Ok(role) = std::env::var("SPACE_TEST_ROLE") else { return };
    let name = std::env::var("SPACE_TEST_NAME").unwrap();
    let words = std::env::var("SPACE_TEST_ARGUMENTS").unwrap();
    let argument: Vec<u64> = words.split_whitespace().map(|w| w.parse().unwrap()).collect();
    match role.as_str() {
        // rank, size, first version, end, version at which it stops for ever (u64::MAX: never)
        "writer" => {
            let skip = OpenOptions { mode: Mode::Append, ..ranked(argument[0] as u32, argument[1] as u32) };
            let mut w = Writer::open(&name, &skip).unwrap();
            for version in argument[2]..argument[3] {
                w.begin_version(version).unwrap();
                put(&mut w, version).unwrap();
                if version == argument[4] {
                    // Between two puts of a step; the process that started this kills it now.
                    std::thread::sleep(Duration::from_secs(60));
                }
                w.end_step().unwrap();
            }
            w.close().unwrap();
        }
        // rank, size: reads to the end, then checks that it ended
        "reader" => {
            let mut r = reader(&name, argument[0] as u32, argument[1] as u32).unwrap();
            let mut next = 0;
            while let Some(version) = r.begin_step(None).unwrap() {
                assert_eq!(version, next);
                check(&mut r, version, argument[2]);
                r.end_step().unwrap();
                next += 1;
            }
            assert_eq!(next, argument[3]);
        }
        // holds one version and sleeps
        "holder" => {
            let mut r = reader(&name, 0, 1).unwrap();
            r.begin_step(None).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        // rank, size: joins the readers and sleeps; with a third word, of a channel of files
        "joiner" => {
            let channel = if argument.len() > 2 { Mechanism::Files } else { Mechanism::Space };
            let ranked = ranked(argument[0] as u32, argument[1] as u32);
            let options = OpenOptions { component: Some("reader".into()), channel, ..ranked };
            let _r = Reader::open(&name, &options).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        other => panic!("no role {other}"),
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn succeeded(mut child: Child) {
    let status = child.wait().unwrap();
    assert!(status.success(), "{status:?}");
}

#[test]
fn many_processes_exchange_whole_versions_and_leave_nothing() {
    let root = Root::new();
    let name = root.name("many");
    let readers: Vec<Child> = (0..2).map(|r| start("reader", &name, &[r, 2, 3, 200])).collect();
    let writers: Vec<Child> = (0..3).map(|r| start("writer", &name, &[r, 3, 0, 200, u64::MAX])).collect();
    writers.into_iter().chain(readers).for_each(succeeded);
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn rank_2_of_4_is_killed_between_two_puts_and_all_four_restart_three_steps_back() {
    let root = Root::new();
    let name = root.name("killed");
    let mut ranks: Vec<Child> = (0..4)
        .map(|r| (r, if r == 2 { 6 } else { u64::MAX }))
        .map(|(r, stops)| start_in("/run/first", "writer", &name, &[r, 4, 0, 1 << 30, stops]))
        .collect();
    let mut r = reader(&name, 0, 1).unwrap();
    for version in 0..6 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(&mut r, version, 4);
        r.end_step().unwrap();
    }
    let pid = ranks[2].id();
    let waiting = std::thread::spawn(move || {
        let died = r.begin_step(None).unwrap_err();
        (r, died, Instant::now())
    });
    std::thread::sleep(Duration::from_millis(50));
    ranks[2].kill().unwrap();
    let killed = Instant::now();
    assert_eq!(ranks.remove(2).wait().unwrap().signal(), Some(9));
    let (mut r, died, told) = waiting.join().unwrap();
    assert_eq!(died.kind(), Kind::ProducerDied);
    assert!(
        died.to_string().contains("rank=2") && died.to_string().contains(&format!("pid={pid}")),
        "{died}"
    );
    assert!(told.saturating_duration_since(killed) < Duration::from_secs(60));
    // The survivors fail by themselves: their next step gives the same error.
    for mut survivor in ranks {
        assert!(!survivor.wait().unwrap().success());
    }
    assert_eq!(r.versions().unwrap().end, 6);
    let again = |rank| start_in("/run/second", "writer", &name, &[rank, 4, 3, 12, u64::MAX]);
    let new: Vec<Child> = (0..4).map(again).collect();
    // However long the machine takes to start four processes: the deadlines of the reader are short.
    let has_come = |info: forebay_space::SpaceInfo| {
        let have_joined = info.producer.is_some_and(|group| group.joined == 4);
        info.state == "finished" || (info.state != "producer died" && have_joined)
    };
    wait_until("the new group", || forebay_space::inspect(&name).is_ok_and(has_come));
    for version in 6..12 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        check(&mut r, version, 4);
        r.end_step().unwrap();
    }
    new.into_iter().for_each(succeeded);
    assert_eq!(r.begin_step(None).unwrap(), None);
    drop(r);
    assert_eq!(root.left(), Vec::<String>::new());
}

#[test]
fn a_killed_writer_leaves_only_whole_versions() {
    for round in 0..8u64 {
        let root = Root::new();
        let name = root.name("torn");
        let mut ranks: Vec<Child> =
            (0..2).map(|r| start("writer", &name, &[r, 2, 0, 1 << 30, u64::MAX])).collect();
        let mut r = reader(&name, 0, 1).unwrap();
        let mut version = 0;
        let stop = Instant::now() + Duration::from_millis(20 + round * 7);
        let died = loop {
            // One that has not come yet would be waited for.
            if version > 0 && Instant::now() > stop {
                ranks[(round % 2) as usize].kill().unwrap();
            }
            match r.begin_step(None) {
                Ok(Some(found)) => {
                    assert_eq!(found, version);
                    check(&mut r, version, 2);
                    r.end_step().unwrap();
                    version += 1;
                }
                Ok(None) => panic!("an end that was never declared"),
                Err(e) => break e,
            }
        };
        assert_eq!(died.kind(), Kind::ProducerDied, "{died}");
        for mut rank in ranks {
            rank.kill().unwrap();
            rank.wait().unwrap();
        }
        assert!(forebay_space::verify(&name).unwrap().damaged.is_empty());
        drop(r);
        let report = forebay_space::clean(&forebay_space::CleanOptions {
            names: vec![name.clone()],
            dead_only: true,
            dry_run: false,
        });
        assert_eq!(report.unwrap().removed.len(), 1);
        assert_eq!(root.left(), Vec::<String>::new());
    }
}

#[test]
fn a_killed_reader_holds_nothing_back() {
    let root = Root::new();
    let name = root.name("held");
    let quick = OpenOptions { timeout: Duration::from_secs(10), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &quick).unwrap();
    let mut holder = start("holder", &name, &[]);
    w.begin_step().unwrap();
    put(&mut w, 0).unwrap();
    w.end_step().unwrap();
    wait_until("the holder", || {
        forebay_space::inspect(&name)
            .unwrap()
            .members
            .iter()
            .any(|m| m.lease == Some(0) && m.pid == holder.id())
    });
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
    // Three times the quota: impossible while version 0 is held.
    for version in 1..1000 {
        w.begin_step().unwrap();
        put(&mut w, version).unwrap();
        w.end_step().unwrap();
    }
    killer.join().unwrap();
}

#[test]
fn a_reader_that_comes_first_after_a_reboot_waits_for_the_writers_that_come_again() {
    let root = Root::in_memory();
    let name = root.name("again");
    let keep = OpenOptions {
        tier: Some(TierKind::Dram),
        horizon: Some(Horizon::None),
        retention: Some(Retention::Forever),
        ..ranked(0, 1)
    };
    let write = |version: u64| {
        let mut w = Writer::open(&name, &keep).unwrap();
        assert_eq!(w.resume().unwrap(), version);
        w.begin_step().unwrap();
        put(&mut w, version).unwrap();
        w.end_step().unwrap();
        w
    };
    // Not closed, as a power failure leaves it.
    let died = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let _held = write(0);
                panic!("as planned");
            })
            .join()
    });
    assert!(died.is_err());
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    let patient = |timeout| Reader::open(&name, &OpenOptions { timeout, ..ranked(0, 1) }).unwrap();
    let mut r = patient(Duration::from_millis(50));
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    r.end_step().unwrap();
    // No process comes: what is said in the end is why.
    assert_eq!(r.begin_step(None).unwrap_err().kind(), Kind::ProducerDied);
    drop(r);
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    let mut r = patient(Duration::from_secs(20));
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    r.end_step().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            write(1).close().unwrap();
        });
        assert_eq!(r.begin_step(None).unwrap(), Some(1));
    });
}

#[test]
fn what_was_not_closed_is_found_again_without_the_shared_state() {
    let (memory_root, root) = (Root::in_memory(), Root::new());
    let memory = [TierKind::Dram, TierKind::Numa(0)].map(|tier| (tier, Horizon::None));
    let disk = [TierKind::File, TierKind::Direct].map(|tier| (tier, Horizon::Epoch));
    let of_roots = is_elsewhere().then(tier_of_roots);
    for (tier, horizon) in memory.into_iter().chain(disk).chain(of_roots) {
        let disk = tempfile::tempdir().unwrap();
        let is_disk = matches!(tier, TierKind::File | TierKind::Direct);
        let name = match tier {
            _ if tier.is_memory() => memory_root.name("lost"),
            _ if is_disk => format!("{}/lost", disk.path().display()),
            _ => root.name("lost"),
        };
        let tried = is_disk.then(|| forebay_tier::create(tier, &disk.path().join("try"), 4096));
        if let Some(Err(e)) = tried {
            crate::skips::skipped(&format!("a lost space on {tier}"), e.message());
            continue;
        }
        let keep = OpenOptions {
            tier: Some(tier),
            horizon: Some(horizon),
            retention: Some(Retention::Forever),
            ..ranked(0, 1)
        };
        let write = |from: u64, end: u64| {
            let mut w = Writer::open(&name, &keep).unwrap();
            assert_eq!(w.resume().unwrap(), from);
            for version in from..end {
                assert_eq!(w.begin_step().unwrap(), version);
                put(&mut w, version).unwrap();
                w.end_step().unwrap();
            }
            w.close().unwrap();
        };
        // As a reboot does. The durable part alone has to do.
        let forget = || std::fs::remove_file(shared_state(&name, "control")).unwrap();
        write(0, 5);
        forget();
        write(5, 9);
        forget();
        let mut r = reader(&name, 0, 1).unwrap();
        for version in 0..9 {
            assert_eq!(r.begin_step(None).unwrap(), Some(version));
            check(&mut r, version, 1);
            r.end_step().unwrap();
        }
        assert_eq!(r.begin_step(None).unwrap(), None, "{tier}: the clean end is durable too");
        drop(r);
        forebay_space::destroy(&name).unwrap();
        assert!(!Path::new(&name).exists());
    }
}

#[test]
fn pools_of_other_hosts_and_damaged_or_foreign_files_are_refused_by_kind() {
    let root = Root::new();
    let name = root.name("elsewhere");
    let mut w =
        Writer::open(&name, &OpenOptions { retention: Some(Retention::Forever), ..options() }).unwrap();
    w.begin_step().unwrap();
    put(&mut w, 0).unwrap();
    w.end_step().unwrap();
    w.close().unwrap();
    let pool = Path::new(&name).join("pool");
    let mut page = vec![0u8; 4096];
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&pool).unwrap();
    file.read_exact_at(&mut page, 0).unwrap();
    let original = page.clone();
    let kind_with = |page: &[u8]| {
        file.write_all_at(page, 0).unwrap();
        let quick = OpenOptions { timeout: Duration::from_millis(50), ..options() };
        Reader::open(&name, &quick).map(drop).unwrap_err().kind()
    };
    let mut other = forebay_log::Superblock::decode(&page).unwrap();
    other.host = "another-node".into();
    other.boot_id = [9; 16];
    assert_eq!(kind_with(&other.encode()), Kind::PoolOwnedElsewhere);
    page[8] = 99;
    assert_eq!(kind_with(&page), Kind::UnknownFormat);
    page[8] = 1;
    page[100] ^= 1;
    assert_eq!(kind_with(&page), Kind::Damaged);
    file.write_all_at(&original, 0).unwrap();
    assert_eq!(reader(&name, 0, 1).unwrap().versions().unwrap(), 0..1);
    file.set_len(8192).unwrap();
    let cut = Reader::open(&name, &options()).map(drop).unwrap_err();
    assert_eq!(cut.kind(), Kind::Damaged);
    let nothing = root.name("nothing");
    std::fs::create_dir(&nothing).unwrap();
    assert_eq!(writer(&nothing, 0, 1).map(drop).unwrap_err().kind(), Kind::Damaged);
}

#[test]
fn a_full_tier_is_refused_before_a_page_is_touched() {
    let root = Root::new();
    let huge = OpenOptions { quota_bytes: Some(1 << 50), ..options() };
    let refused = Writer::open(&root.name("huge"), &huge).map(drop).unwrap_err();
    assert_eq!(refused.kind(), Kind::TierFull);
    assert!(refused.to_string().contains("limited_by"), "{refused}");
    assert_eq!(root.left(), Vec::<String>::new());
    let (memory, no_pmem) = (Root::in_memory(), OpenOptions { tier: Some(TierKind::Pmem), ..options() });
    assert_eq!(
        Writer::open(&memory.name("pmem"), &no_pmem).map(drop).unwrap_err().kind(),
        Kind::NotPossibleHere
    );
    assert_eq!(memory.left(), Vec::<String>::new());
}

#[test]
fn two_runs_with_one_name_do_not_mix() {
    let root = Root::new();
    let name = root.name("one");
    let mut first = writer(&name, 0, 2).unwrap();
    let mut second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env("SPACE_TEST_ROLE", "writer")
        .env("SPACE_TEST_NAME", &name)
        .env("SPACE_TEST_ARGUMENTS", format!("1 2 0 1 {}", u64::MAX))
        .env("FOREBAY_RUN", "/another/run")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = {
        let status = second.wait().unwrap();
        assert!(!status.success());
        std::io::read_to_string(second.stderr.take().unwrap()).unwrap()
    };
    assert!(output.contains("NameInUse"), "{output}");
    let mut rest = writer(&name, 1, 2).unwrap();
    for w in [&mut first, &mut rest] {
        w.begin_step().unwrap();
        put(w, 0).unwrap();
        w.end_step().unwrap();
    }
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    check(&mut r, 0, 2);
}

/// Versions `from..end`, one step each.
fn steps(w: &mut Writer, from: u64, end: u64) -> forebay_space::Result<()> {
    for version in from..end {
        w.begin_version(version)?;
        put(w, version)?;
        w.end_step()?;
    }
    Ok(())
}

fn reads_all(r: &mut Reader, end: u64) {
    while let Some(version) = r.begin_step(None).unwrap() {
        check(r, version, 1);
        r.end_step().unwrap();
        assert!(version < end);
    }
    assert_eq!(r.versions().unwrap().end, end);
}

#[test]
fn a_restart_that_is_refused_or_killed_leaves_a_finished_space_as_it_was() {
    let root = Root::new();
    let name = root.name("refused");
    let keep = OpenOptions { retention: Some(Retention::Forever), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &keep).unwrap();
    steps(&mut w, 0, 2).unwrap();
    w.close().unwrap();
    let mut again = Writer::open(&name, &keep).unwrap();
    assert!(!again.begin_version(0).unwrap(), "it is complete");
    again.abandon();
    reads_all(&mut reader(&name, 0, 1).unwrap(), 2);
    assert_eq!(forebay_space::inspect(&name).unwrap().state, "finished");
    // One that skips what is there and is killed before it comes to what is not.
    let mut killed = start("writer", &name, &[0, 1, 0, 2, 1]);
    wait_until("the restart", || forebay_space::inspect(&name).is_ok_and(|i| i.state == "open"));
    killed.kill().unwrap();
    killed.wait().unwrap();
    reads_all(&mut reader(&name, 0, 1).unwrap(), 2);
    // Neither is there a trace in the pool.
    std::fs::remove_file(shared_state(&name, "control")).unwrap();
    reads_all(&mut reader(&name, 0, 1).unwrap(), 2);
    // One that goes on does so, and its death is one.
    let mut w = Writer::open(&name, &keep).unwrap();
    assert_eq!(w.resume().unwrap(), 2);
    steps(&mut w, 2, 3).unwrap();
    w.abandon();
    let mut r = reader(&name, 0, 1).unwrap();
    let died = loop {
        match r.begin_step(None) {
            Ok(version) => check(&mut r, version.expect("it died"), 1),
            Err(e) => break e,
        }
        r.end_step().unwrap();
    };
    assert_eq!((died.kind(), r.versions().unwrap().end), (Kind::ProducerDied, 3));
    // The reader has the slot that the writer had: it is the writer who is named.
    assert!(died.to_string().contains("component=test"), "{died}");
}

#[test]
fn a_writer_that_fails_to_open_leaves_its_lane_to_the_next_try() {
    let root = Root::new();
    let name = root.name("try");
    // Told when it has joined: the group is there with one rank.
    let refused = OpenOptions { readers: [("reader".to_string(), 2)].into(), ..ranked(0, 1) };
    let refused = || Writer::open(&name, &refused).err().map(|e| e.kind());
    let mut w = writer(&name, 0, 1).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    steps(&mut w, 0, 1).unwrap();
    w.close().unwrap();
    assert_eq!(refused(), Some(Kind::GroupMismatch));
    let mut w = writer(&name, 0, 1).unwrap();
    steps(&mut w, 0, 2).unwrap();
    w.close().unwrap();
    assert_eq!(refused(), Some(Kind::GroupMismatch));
    reads_all(&mut r, 2);
    drop(r);
    assert_eq!(root.left(), Vec::<String>::new());

    // One of two ranks is refused; the other waits for it.
    let with_mode =
        |execution_mode, rank| OpenOptions { execution_mode: Some(execution_mode), ..ranked(rank, 2) };
    let mut first = Writer::open(&name, &with_mode(forebay_space::ExecutionMode::Parallel, 0)).unwrap();
    let refused = Writer::open(&name, &with_mode(forebay_space::ExecutionMode::SerialPerStep, 1));
    assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::OptionMismatch));
    let mut r = reader(&name, 0, 1).unwrap();
    let mut second = Writer::open(&name, &with_mode(forebay_space::ExecutionMode::Parallel, 1)).unwrap();
    assert_eq!((first.incarnation(), second.incarnation()), (1, 1));
    steps(&mut first, 0, 1).unwrap();
    steps(&mut second, 0, 1).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    check(&mut r, 0, 2);
}

#[test]
fn a_group_of_which_a_rank_ended_and_another_failed_to_open_is_over() {
    let root = Root::new();
    let name = root.name("half-ended");
    let with_mode =
        |execution_mode, rank| OpenOptions { execution_mode: Some(execution_mode), ..ranked(rank, 2) };
    let first = Writer::open(&name, &with_mode(forebay_space::ExecutionMode::Parallel, 0)).unwrap();
    first.close().unwrap();
    let refused = Writer::open(&name, &with_mode(forebay_space::ExecutionMode::SerialPerStep, 1));
    assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::OptionMismatch));
    // The next run writes the space, although the first one never ended whole.
    let mut r = reader(&name, 0, 1).unwrap();
    let mut writers = [0, 1].map(|rank| writer(&name, rank, 2).unwrap());
    assert_eq!(writers.each_ref().map(Writer::incarnation), [2, 2]);
    writers.iter_mut().for_each(|w| steps(w, 0, 1).unwrap());
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    check(&mut r, 0, 2);
}

#[test]
fn a_reader_group_that_is_killed_before_all_its_ranks_joined_holds_nothing() {
    let root = Root::new();
    let name = root.name("half");
    let quick = OpenOptions { timeout: Duration::from_secs(10), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &quick).unwrap();
    let mut half = start("joiner", &name, &[0, 2]);
    wait_until("rank 0 of 2", || {
        forebay_space::inspect(&name).unwrap().readers.iter().any(|g| g.joined == 1)
    });
    steps(&mut w, 0, 10).unwrap();
    half.kill().unwrap();
    half.wait().unwrap();
    // Several times the quota.
    steps(&mut w, 10, 1000).unwrap();
    // It comes again with another number of ranks.
    let mut r = reader(&name, 0, 1).unwrap();
    let version = r.begin_step(None).unwrap().expect("the writer lives");
    check(&mut r, version, 1);
}

/// In a channel of files the next reader takes the place of one that was killed. A group that the writers declared
/// would hold.
#[test]
fn a_reader_group_of_files_that_is_killed_before_all_its_ranks_joined_holds_nothing() {
    let root = Root::new();
    let name = root.name("half-files");
    let options = OpenOptions { channel: Mechanism::Files, quota_bytes: Some(1 << 20), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &options).unwrap();
    let mut half = start("joiner", &name, &[0, 2, 1]);
    wait_until("rank 0 of 2", || {
        forebay_space::inspect(&name).unwrap().readers.iter().any(|g| g.joined == 1)
    });
    steps(&mut w, 0, 3).unwrap();
    half.kill().unwrap();
    half.wait().unwrap();
    let other = OpenOptions { component: Some("other".into()), ..options.clone() };
    let mut other = Reader::open(&name, &other).unwrap();
    // Several times the quota.
    for version in 3..100 {
        steps(&mut w, version, version + 1).unwrap();
        let read = other.begin_step(None).unwrap().expect("the writer lives");
        assert_eq!(read, version - 3);
        other.end_step().unwrap();
    }
    // The rank that was still to come comes.
    let late = OpenOptions { component: Some("reader".into()), ..ranked(1, 2) };
    let mut late = Reader::open(&name, &OpenOptions { channel: Mechanism::Files, ..late }).unwrap();
    let version = late.begin_step(None).unwrap().expect("the writer lives");
    check(&mut late, version, 1);
}

#[test]
fn a_reader_group_that_never_comes_can_be_removed() {
    remove_one_that_never_comes(Mechanism::Space);
}

#[test]
fn a_reader_group_of_files_that_never_comes_can_be_removed() {
    remove_one_that_never_comes(Mechanism::Files);
}

fn remove_one_that_never_comes(channel: Mechanism) {
    let root = Root::new();
    let name = root.name("never");
    let readers = [("never".to_string(), 2)].into();
    let options = OpenOptions { timeout: soon(), readers, channel, ..ranked(0, 1) };
    let mut w = Writer::open(&name, &options).unwrap();
    let mut r = Reader::open(&name, &OpenOptions { component: Some("reader".into()), ..options }).unwrap();
    let mut version = 0;
    let full = loop {
        if let Err(e) = steps(&mut w, version, version + 1) {
            break e;
        }
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
        version += 1;
    };
    assert_eq!(full.kind(), Kind::QuotaFull);
    assert!(full.to_string().contains("reader group never: rank 0, 1 never joined"), "{full}");
    assert!(full.hint_text().is_some_and(|hint| hint.contains("clean --readers never")), "{full}");
    w.abort_step().unwrap();
    let in_use = forebay_space::remove_reader_group(&name, "reader").unwrap_err();
    assert_eq!(in_use.kind(), Kind::NameInUse, "{in_use}");
    let unknown = forebay_space::remove_reader_group(&name, "none").unwrap_err();
    assert_eq!(unknown.kind(), Kind::UnknownComponent, "{unknown}");
    forebay_space::remove_reader_group(&name, "never").unwrap();
    steps(&mut w, version, version + 1).unwrap();
    let gone = forebay_space::remove_reader_group(&name, "never").unwrap_err();
    assert_eq!(gone.kind(), Kind::UnknownComponent, "{gone}");
    // Without any group nothing is kept.
    drop(r);
    forebay_space::remove_reader_group(&name, "reader").unwrap();
    steps(&mut w, version + 1, version + 200).unwrap();
}

#[test]
fn a_writer_that_gives_up_says_why() {
    let root = Root::new();
    let name = root.name("why");
    let quick = OpenOptions { timeout: soon(), ..ranked(0, 1) };
    let mut w = Writer::open(&name, &quick).unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    steps(&mut w, 0, 1).unwrap();
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    let held = r.view("a", None).unwrap();
    r.end_step().unwrap();
    let full = (1..1000).find_map(|version| steps(&mut w, version, version + 1).err()).expect("it is full");
    assert_eq!(full.kind(), Kind::QuotaFull);
    w.abandon();
    drop(held);
    let died = loop {
        match r.begin_step(None) {
            Ok(_) => r.end_step().unwrap(),
            Err(e) => break e,
        }
    };
    assert_eq!(died.kind(), Kind::ProducerDied);
    let text = died.to_string();
    assert!(text.contains("left") && text.contains("QuotaFull") && text.contains("held_by"), "{text}");
}
