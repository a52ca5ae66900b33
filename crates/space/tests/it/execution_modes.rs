//! Who may be at work when: what each execution mode keeps apart, and that no rank waits for the dead.
//!
//! Children are this test binary again: the test `child` plays the role that `SPACE_TEST_PACE` names.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::{options, ranked, reader, Root};
use forebay_space::{
    inspect, Dtype, ExecutionMode, Kind, Mechanism, OpenOptions, Progress, Reader, Steering, Writer,
};

fn with_mode(rank: u32, size: u32, execution_mode: ExecutionMode) -> OpenOptions {
    OpenOptions {
        execution_mode: Some(execution_mode),
        readers: vec![("reader".into(), 1)],
        ..ranked(rank, size)
    }
}

fn put_step(writer: &mut Writer) {
    writer.begin_step().unwrap();
    writer.put_array("a", &[1000], &[0], &[1000], &vec![1u64; 1000]).unwrap();
    writer.end_step().unwrap();
}

/// Short, for waits that are meant to fail.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn serial_readers_begin_when_the_writers_have_ended() {
    for kind in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("serial");
        let told = OpenOptions { channel: kind, ..with_mode(0, 1, ExecutionMode::Serial) };
        let mut writer = Writer::open(&name, &told).unwrap();
        let reading = OpenOptions { component: Some("reader".into()), readers: Vec::new(), ..told };
        let mut reader = Reader::open(&name, &reading).unwrap();
        for _ in 0..3 {
            put_step(&mut writer);
        }
        let early = reader.begin_step(Some(SHORT)).unwrap_err();
        assert_eq!(early.kind(), Kind::TimedOut, "{early}");
        writer.close().unwrap();
        for version in 0..3 {
            assert_eq!(reader.begin_step(None).unwrap(), Some(version));
            reader.end_step().unwrap();
        }
        assert_eq!(reader.begin_step(None).unwrap(), None);
    }
}

#[test]
fn serial_readers_learn_that_a_writer_died() {
    let root = Root::new();
    let name = root.name("dead");
    let mut writer = Writer::open(&name, &with_mode(0, 1, ExecutionMode::Serial)).unwrap();
    let mut reader = reader(&name, 0, 1).unwrap();
    put_step(&mut writer);
    writer.abandon();
    assert_eq!(reader.begin_step(None).unwrap(), Some(0), "what is complete is read");
    reader.end_step().unwrap();
    assert_eq!(reader.begin_step(None).unwrap_err().kind(), Kind::ProducerDied);
}

#[test]
fn in_turns_no_version_is_begun_before_the_last_one_was_released() {
    for kind in [Mechanism::Space, Mechanism::Files] {
        let root = Root::new();
        let name = root.name("turns");
        let told = OpenOptions { channel: kind, ..with_mode(0, 1, ExecutionMode::SerialPerStep) };
        let mut writer = Writer::open(&name, &told).unwrap();
        let reading = OpenOptions { component: Some("reader".into()), readers: Vec::new(), ..told };
        // Written by the reader before it releases, looked at by the writer once it may begin.
        let released = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut reader = Reader::open(&name, &reading).unwrap();
                while let Some(version) = reader.begin_step(None).unwrap() {
                    assert_eq!(released.swap(version as u32 + 1, SeqCst), version as u32);
                    reader.end_step().unwrap();
                }
            });
            for version in 0..20 {
                writer.begin_step().unwrap();
                assert_eq!(released.load(SeqCst), version, "{kind}: version {version} was begun too early");
                writer.put_array("a", &[1], &[0], &[1], &[version]).unwrap();
                writer.end_step().unwrap();
            }
            writer.close().unwrap();
        });
    }
}

#[test]
fn a_turn_that_does_not_come_names_the_reader() {
    let root = Root::new();
    let name = root.name("late");
    let mut writer = Writer::open(&name, &with_mode(0, 1, ExecutionMode::SerialPerStep)).unwrap();
    let reader = reader(&name, 0, 1).unwrap();
    writer.set_timeout(SHORT);
    put_step(&mut writer);
    let late = writer.begin_step().unwrap_err();
    assert_eq!(late.kind(), Kind::TimedOut, "{late}");
    assert!(late.to_string().contains("rank 0 of reader"), "{late}");
    // A reader that goes holds nothing, and the same step can be begun again.
    reader.close().unwrap();
    assert_eq!(writer.begin_step().unwrap(), 1);
    writer.end_step().unwrap();
}

#[test]
fn ranks_agree_on_the_mode_and_inspection_shows_it() {
    let root = Root::new();
    let name = root.name("agree");
    let gated = ExecutionMode::Gated { writers: 2, readers: 1 };
    let first = Writer::open(&name, &with_mode(0, 3, gated)).unwrap();
    let other =
        Writer::open(&name, &with_mode(1, 3, ExecutionMode::Serial)).err().expect("another one is refused");
    assert_eq!(other.kind(), Kind::OptionMismatch, "{other}");
    assert_eq!(inspect(&name).unwrap().execution_mode, "gated:2w1r");
    first.abandon();
    // The next start of the program may choose again.
    let _again = Writer::open(&name, &with_mode(0, 1, ExecutionMode::SerialPerStep)).unwrap();
    assert_eq!(inspect(&name).unwrap().execution_mode, "serial-per-step");
    let files = OpenOptions { channel: Mechanism::Files, ..with_mode(0, 1, gated) };
    let refused = Writer::open(&root.name("files"), &files).err().expect("no gate without a space");
    assert_eq!(refused.kind(), Kind::NotPossibleHere, "{refused}");
}

#[test]
fn who_gathers_passes_the_gate_once_a_batch() {
    let root = Root::new();
    let name = root.name("gathers");
    let execution_mode = ExecutionMode::Gated { writers: 1, readers: 1 };
    let gathering = OpenOptions { batch_bytes: Some(4096), ..with_mode(1, 2, execution_mode) };
    let mut first = Writer::open(&name, &with_mode(0, 2, execution_mode)).unwrap();
    let mut second = Writer::open(&name, &gathering).unwrap();
    second.set_timeout(SHORT);
    first.begin_step().unwrap();
    second.begin_step().unwrap();
    let mut put = |i: u64| second.put("a", Dtype::U8, &[1 << 20], &[i * 64], &[64], &[2; 64]);
    put(0).unwrap();
    let reserved = first.reserve("b", Dtype::U8, &[64], &[0], &[64]).unwrap();
    let outside =
        (1..).find_map(|i| put(i).err().map(|e| (i, e.kind()))).expect("a batch is full at some time");
    assert!(outside.0 > 5 && outside.1 == Kind::TimedOut, "{outside:?}");
    first.commit(reserved).unwrap();
    put(outside.0).unwrap();
}

#[test]
fn a_full_gate_keeps_others_out_until_a_rank_leaves() {
    let root = Root::new();
    let name = root.name("gate");
    let execution_mode = ExecutionMode::Gated { writers: 1, readers: 1 };
    let open = |rank| Writer::open(&name, &with_mode(rank, 2, execution_mode)).unwrap();
    let (mut first, mut second) = (open(0), open(1));
    second.set_timeout(SHORT);
    first.begin_step().unwrap();
    second.begin_step().unwrap();
    // From reserve to commit the program writes where the data lie: inside.
    let mut reserved = first.reserve("a", Dtype::U8, &[64], &[0], &[32]).unwrap();
    first.put("b", Dtype::U8, &[1], &[0], &[1], &[1]).unwrap();
    let full = second.put("a", Dtype::U8, &[64], &[32], &[32], &[2; 32]).unwrap_err();
    assert_eq!(full.kind(), Kind::TimedOut, "{full}");
    assert!(full.to_string().contains("writer rank 0 of test"), "{full}");
    reserved.as_mut_slice().fill(1);
    first.commit(reserved).unwrap();
    second.put("a", Dtype::U8, &[64], &[32], &[32], &[2; 32]).unwrap();
    // A reservation that is given up with its step keeps no rank out.
    let kept = first.reserve("c", Dtype::U8, &[1], &[0], &[1]).unwrap();
    assert!(second.put("d", Dtype::U8, &[1], &[0], &[1], &[1]).is_err());
    drop(kept);
    first.abort_step().unwrap();
    second.put("d", Dtype::U8, &[1], &[0], &[1], &[1]).unwrap();
    second.end_step().unwrap();
    assert_eq!(first.begin_step().unwrap(), 0);
    first.put("a", Dtype::U8, &[64], &[0], &[32], &[1; 32]).unwrap();
    first.put("b", Dtype::U8, &[1], &[0], &[1], &[1]).unwrap();
    first.end_step().unwrap();
    // Readers have places of their own.
    first.begin_step().unwrap();
    let _held = first.reserve("a", Dtype::U8, &[64], &[0], &[32]).unwrap();
    let mut reader = reader(&name, 0, 1).unwrap();
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    let a: Vec<u8> = reader.get_array("a", None).unwrap();
    assert_eq!((a[0], a[63]), (1, 2));
    assert_eq!(reader.view("b", None).unwrap().bytes(), [1]);
}

#[test]
fn no_more_than_the_gate_lets_in_are_inside_at_once() {
    const RANKS: u32 = 6;
    let root = Root::new();
    let name = root.name("many");
    let execution_mode = ExecutionMode::Gated { writers: 2, readers: 1 };
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (name, inside, most) = (&name, &inside, &most);
            scope.spawn(move || {
                let mut writer = Writer::open(name, &with_mode(rank, RANKS, execution_mode)).unwrap();
                for _ in 0..20 {
                    writer.begin_step().unwrap();
                    let mut reserved =
                        writer.reserve("a", Dtype::U8, &[RANKS.into()], &[rank.into()], &[1]).unwrap();
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    // The first one stays until another has come in, however few processors there are.
                    let late = Instant::now() + Duration::from_secs(20);
                    while most.load(SeqCst) < 2 && Instant::now() < late {
                        std::thread::yield_now();
                    }
                    reserved.as_mut_slice().fill(rank as u8);
                    inside.fetch_sub(1, SeqCst);
                    writer.commit(reserved).unwrap();
                    writer.end_step().unwrap();
                }
                writer.close().unwrap();
            });
        }
        let mut reader = reader(&name, 0, 1).unwrap();
        let mut versions = 0;
        while reader.begin_step(None).unwrap().is_some() {
            assert_eq!(reader.get_array::<u8>("a", None).unwrap(), (0..RANKS as u8).collect::<Vec<_>>());
            reader.end_step().unwrap();
            versions += 1;
        }
        assert_eq!(versions, 20);
    });
    assert_eq!(most.load(SeqCst), 2, "as many as the gate lets in, and no more");
}

/// The rank that waits for space steps aside for the one whose commit frees it.
#[test]
fn a_rank_that_waits_for_space_keeps_no_other_out() {
    let root = Root::new();
    let name = root.name("full");
    let execution_mode = ExecutionMode::Gated { writers: 1, readers: 1 };
    let small = |rank| OpenOptions { quota_bytes: Some(4 << 20), ..with_mode(rank, 2, execution_mode) };
    let mut fast = Writer::open(&name, &small(0)).unwrap();
    let mut slow = Writer::open(&name, &small(1)).unwrap();
    let data = vec![7u8; 1200 << 10];
    std::thread::scope(|scope| {
        let ahead = scope.spawn(|| {
            for _ in 0..6 {
                fast.begin_step().unwrap();
                fast.put("a", Dtype::U8, &[data.len() as u64], &[0], &[data.len() as u64], &data).unwrap();
                fast.end_step().unwrap();
            }
            fast.close().unwrap();
        });
        // Until the fast rank waits for space.
        let begin = Instant::now();
        let waits = || inspect(&name).unwrap().members.iter().any(|m| m.waiting_for.is_some());
        while !waits() {
            assert!(begin.elapsed() < Duration::from_secs(10), "no rank ever waited");
            std::thread::sleep(Duration::from_millis(5));
        }
        scope.spawn(|| {
            let mut reader = reader(&name, 0, 1).unwrap();
            while reader.begin_step(None).unwrap().is_some() {
                reader.end_step().unwrap();
            }
        });
        for _ in 0..6 {
            slow.begin_step().unwrap();
            slow.put("b", Dtype::U8, &[1], &[0], &[1], &[1]).unwrap();
            slow.end_step().unwrap();
        }
        slow.close().unwrap();
        ahead.join().unwrap();
    });
}

/// A writer that was killed with a reservation, inside, leaves its place to the next rank.
#[test]
fn the_place_of_the_dead_is_taken_over() {
    let root = Root::new();
    let name = root.name("dead");
    let execution_mode = ExecutionMode::Gated { writers: 1, readers: 1 };
    let one = OpenOptions { readers: Vec::new(), ..with_mode(0, 1, execution_mode) };
    let mut child = start("inside", &name);
    let begin = Instant::now();
    let inside = Path::new(&name).with_extension("inside");
    while !inside.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the child never went inside");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(inside).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The next start of the writers meets the place that the dead one still has.
    let mut writer = Writer::open(&name, &one).unwrap();
    put_step_from(&mut writer, 1);
    writer.close().unwrap();
}

fn put_step_from(writer: &mut Writer, version: u64) {
    assert_eq!(writer.resume().unwrap(), version);
    put_step(writer);
}

fn start(role: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "execution_modes::child", "--nocapture", "--test-threads=1"])
        .env("SPACE_TEST_PACE", role)
        .env("SPACE_TEST_NAME", name)
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
}

#[test]
fn child() {
    let Ok(role) = std::env::var("SPACE_TEST_PACE") else { return };
    let name = std::env::var("SPACE_TEST_NAME").unwrap();
    assert_eq!(role, "inside");
    let gated = ExecutionMode::Gated { writers: 1, readers: 1 };
    let told = OpenOptions { execution_mode: Some(gated), ..options() };
    let mut writer = Writer::open(&name, &OpenOptions { rank: Some(0), size: Some(1), ..told }).unwrap();
    put_step(&mut writer);
    writer.begin_step().unwrap();
    // From here on it is inside, until it is killed.
    let _reserved = writer.reserve("a", Dtype::U8, &[64], &[0], &[64]).unwrap();
    std::fs::write(Path::new(&name).with_extension("inside"), "").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_mode_that_is_steered_frees_who_waits_by_the_old_one() {
    let root = Root::new();
    let name = root.name("steered");
    let told = with_mode(0, 1, ExecutionMode::SerialPerStep);
    let mut writer = Writer::open(&name, &told).unwrap();
    let mut reader = reader(&name, 0, 1).unwrap();
    let steering = Steering::open(&name).unwrap();
    assert_eq!(
        (steering.execution_mode(), steering.progress()),
        (ExecutionMode::SerialPerStep, Progress::default())
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // No reader releases version 0 before the execution mode changes: by the old one this waits for ever.
            put_step(&mut writer);
            put_step(&mut writer);
        });
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        let seen = steering.progress();
        assert_eq!((seen.complete, seen.released, seen.written), (1, 0, false));
        steering.set_execution_mode(ExecutionMode::Parallel).unwrap();
    });
    reader.end_step().unwrap();
    assert_eq!((steering.execution_mode(), steering.progress().released), (ExecutionMode::Parallel, 1));
    // A rank that comes late with the execution mode of the plan is no mismatch; by another incarnation its own holds.
    writer.close().unwrap();
    let again = Writer::open(&name, &told).unwrap();
    assert_eq!(steering.execution_mode(), ExecutionMode::SerialPerStep);
    again.close().unwrap();
    let serial = steering.set_execution_mode(ExecutionMode::Serial).unwrap_err();
    assert_eq!(serial.kind(), Kind::NotPossibleHere);
}

#[test]
fn ranks_that_come_late_join_at_the_steered_mode() {
    let root = Root::new();
    let name = root.name("late-rank");
    let told = |rank| with_mode(rank, 2, ExecutionMode::SerialPerStep);
    let first = Writer::open(&name, &told(0)).unwrap();
    let gated = ExecutionMode::Gated { writers: 64, readers: 64 };
    Steering::open(&name).unwrap().set_execution_mode(gated).unwrap();
    let second = Writer::open(&name, &told(1)).unwrap();
    assert_eq!(Steering::open(&name).unwrap().execution_mode(), gated);
    drop((first, second));
}
