//! The throttle's arithmetic under a clock that only moves when it is told to: debts are asserted to the
//! nanosecond. Each handle has a clock of its own and stands for a process; what they share is the file.

use std::sync::Mutex;

use super::*;
use crate::sys::in_child;
use crate::TierKind;

/// Virtual nanoseconds; a sleep takes what was asked and `overshoot` more.
struct Virtual {
    now: AtomicU64,
    overshoot: u64,
    slept: Mutex<Vec<u64>>,
    spun: AtomicU64,
}

impl Clock for Virtual {
    fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn sleep(&self, ns: u64) -> u64 {
        self.slept.lock().unwrap().push(ns);
        self.now.fetch_add(ns + self.overshoot, Ordering::Relaxed);
        ns + self.overshoot
    }

    fn spin(&self, ns: u64) -> u64 {
        self.spun.fetch_add(ns, Ordering::Relaxed);
        self.now.fetch_add(ns, Ordering::Relaxed);
        ns
    }
}

/// When all tests begin.
const T0: u64 = 5_000_000_000;
const MIB: u64 = 1 << 20;
/// Bytes per second, so that a byte takes a nanosecond.
const GB: f64 = 1e9;

struct Process {
    throttle: Throttle,
    clock: Arc<Virtual>,
}

impl Process {
    fn on(dir: &Path, curves: &Curves, locality: Locality, overshoot: u64) -> Process {
        let path = dir.join("pool");
        let device = match crate::create(TierKind::Dram, &path, 16 * MIB) {
            Ok(device) => device,
            Err(_) => crate::open(TierKind::Dram, &path, crate::Access::Write).unwrap(),
        };
        let clock = Arc::new(Virtual {
            now: AtomicU64::new(T0),
            overshoot,
            slept: Mutex::default(),
            spun: AtomicU64::new(0),
        });
        let state = Throttle::state_beside(&path);
        let throttle = Throttle::with_clock(device, curves.clone(), locality, &state, clock.clone()).unwrap();
        Process { throttle, clock }
    }

    fn new(dir: &Path, curves: &Curves) -> Process {
        Process::on(dir, curves, Locality::Local, 0)
    }

    fn write(&self, bytes: u64) {
        self.throttle.write(0, &vec![1; bytes as usize]).unwrap();
    }

    fn read(&self, bytes: u64) {
        self.throttle.will_read(0..bytes).unwrap();
    }

    /// Emulated nanoseconds since the beginning: what passed, and what is owed.
    fn elapsed(&self) -> i64 {
        (self.clock.now_ns() - T0) as i64 + self.throttle.owed_ns()
    }

    fn set(&self, since: u64) {
        self.clock.now.store(T0 + since, Ordering::Relaxed);
    }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn points(points: &[(f64, f64)]) -> Curve {
    Curve(points.to_vec())
}

fn flat(write: f64, read: f64) -> Curves {
    Curves {
        write_bandwidth: points(&[(1.0, write)]),
        read_bandwidth: points(&[(1.0, read)]),
        ..Curves::default()
    }
}

#[test]
fn curves_are_straight_between_points_and_level_outside() {
    let curve = points(&[(1.0, 10.0), (3.0, 30.0), (5.0, 0.5)]);
    let at = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 99.0].map(|x| curve.at(x).unwrap());
    assert_eq!(at, [10.0, 10.0, 20.0, 30.0, 15.25, 0.5, 0.5]);
    assert_eq!(Curve::default().at(1.0), None);
    let sizes = points(&[(64.0, 0.25), (1024.0, 0.75), (16_777_216.0, 1.0)]);
    assert_eq!([8, 64, 256, 1024, 1 << 30].map(|b| sizes.at_size(b).unwrap()), [0.25, 0.25, 0.5, 0.75, 1.0]);
    for wrong in [&[(1.0, 0.0)][..], &[(2.0, 1.0), (1.0, 1.0)], &[(1.0, f64::NAN)], &[(-1.0, 1.0)]] {
        let curves = Curves { mix: points(wrong), ..Curves::default() };
        let error = curves.check().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.message().contains("mix"), "{error}");
    }
}

#[test]
fn one_process_pays_what_it_owes_in_sleeps_of_a_millisecond_or_more() {
    let dir = dir();
    let p = Process::new(dir.path(), &flat(GB, 2.0 * GB));
    p.write(999_999);
    assert_eq!((p.throttle.owed_ns(), p.clock.slept.lock().unwrap().len()), (999_999, 0));
    p.write(1);
    assert_eq!(*p.clock.slept.lock().unwrap(), [1_000_000]);
    assert_eq!((p.throttle.owed_ns(), p.elapsed()), (0, 1_000_000));
    p.read(600_000);
    assert_eq!((p.throttle.owed_ns(), p.elapsed()), (300_000, 1_300_000));
    // Time spent elsewhere is not time spent on the medium: the debt stays.
    p.set(50_000_000);
    assert_eq!(p.throttle.owed_ns(), 300_000);
    p.write(800_000);
    assert_eq!(p.elapsed(), 50_000_000 + 1_100_000);
    p.write(10 * MIB + 5);
    assert_eq!(p.elapsed(), (51_100_000 + 10 * MIB + 5) as i64);
    assert!(p.clock.slept.lock().unwrap().iter().all(|ns| *ns >= PAY_NS));
}

#[test]
fn a_sleep_that_was_too_long_is_made_up_for() {
    let dir = dir();
    let p = Process::on(dir.path(), &flat(GB, GB), Locality::Local, 60_000);
    for n in 1..=40 {
        p.write(500_000);
        assert_eq!(p.elapsed(), n * 500_000, "operation {n}");
    }
    let slept = p.clock.slept.lock().unwrap().len() as u64;
    assert!(slept > 10 && p.clock.now_ns() - T0 <= 40 * 500_000 + 60_000);
    // But no more than a millisecond of it.
    let q = Process::on(dir.path(), &flat(GB, GB), Locality::Local, 30_000_000);
    q.set(1_000_000_000);
    q.write(1_000_000);
    assert_eq!(q.throttle.owed_ns(), -(PAY_NS as i64));
}

#[test]
fn a_device_below_that_is_too_slow_leaves_no_debt() {
    let dir = dir();
    let p = Process::new(dir.path(), &flat(GB, GB));
    let turn = Turn { direction: Direction::Write, bytes: 100_000, latency_ns: 0, locality: Locality::Local };
    p.set(40_000);
    p.throttle.charge(&turn, T0);
    assert_eq!(p.throttle.owed_ns(), 60_000, "what the device below took is part of it");
    p.set(1_000_000);
    p.throttle.charge(&turn, T0 + 500_000);
    assert_eq!(p.throttle.owed_ns(), 0);
}

#[test]
fn processes_share_the_medium_and_its_concurrency_curve() {
    let dir = dir();
    let curves = Curves {
        write_bandwidth: points(&[(1.0, GB), (2.0, 2.0 * GB), (4.0, 4.0 * GB), (8.0, GB)]),
        ..flat(GB, GB)
    };
    let ps: Vec<Process> = (0..5).map(|_| Process::new(dir.path(), &curves)).collect();
    // All at the same moment: the first four take their own time beside each other, which is all that the medium does;
    // the fifth finds it slower, and waits until the turns of the others are over.
    for (n, p) in ps.iter().enumerate() {
        p.write(4_000);
        let end = if n < 4 { 4_000 } else { 4_000 + 1_231 };
        assert_eq!(p.elapsed(), end, "process {n}");
    }
    // Two that never pause get half of bandwidth(2) each. (The others' entries have passed by then.)
    let (a, b) = (&ps[0], &ps[1]);
    for p in [a, b] {
        p.set(100_000_000);
    }
    let before = a.elapsed();
    a.write(1_000_000); // no other process inside: at the bandwidth of one
    b.write(1_000_000);
    for _ in 0..50 {
        a.write(1_000_000);
        b.write(1_000_000);
    }
    let of_a = a.elapsed() - before;
    // Half of two bytes per nanosecond, but for the first wait for who was a millisecond ahead.
    let wanted = 51 * 1_000_000;
    assert!((wanted..wanted + PAY_NS as i64).contains(&of_a), "{of_a}");
    assert!((b.elapsed() - a.elapsed()).unsigned_abs() < PAY_NS, "beside each other");
}

#[test]
fn a_process_that_died_inside_is_not_counted_for_ever() {
    let dir = dir();
    let curves = Curves { write_bandwidth: points(&[(1.0, GB), (2.0, GB / 4.0)]), ..flat(GB, GB) };
    let p = Process::new(dir.path(), &curves);
    let status = in_child(|| {
        let child = Process::new(dir.path(), &curves);
        child.write(700_000);
        assert_eq!(child.throttle.owed_ns(), 700_000);
        0 // It never comes back.
    });
    assert_eq!(status, 0);
    p.write(70_000);
    assert_eq!(p.elapsed(), 700_000 + 280_000, "behind the child's turns, at the bandwidth of two");
    let later = Process::new(dir.path(), &curves);
    later.set(2_000_000);
    later.write(100_000);
    assert_eq!(later.throttle.owed_ns(), 100_000, "all have passed");
}

#[test]
fn reads_and_writes_disturb_each_other() {
    let dir = dir();
    let curves = Curves { mix: points(&[(0.0, 1.0), (0.5, 0.5), (1.0, 0.25)]), ..flat(GB, 2.0 * GB) };
    let ps: Vec<Process> = (0..4).map(|_| Process::new(dir.path(), &curves)).collect();
    ps[0].write(4_000);
    assert_eq!(ps[0].elapsed(), 4_000, "alone");
    ps[1].write(4_000);
    assert_eq!(ps[1].elapsed(), 8_000, "no contention with the other direction");
    ps[2].read(4_000);
    // Two of three go the other way: a third of the way from 0.5 to 0.25.
    let factor = 0.5 - 0.25 * (2.0 / 3.0 - 0.5) / 0.5;
    assert_eq!(ps[2].elapsed(), 8_000 + (2_000.0f64 / factor).ceil() as i64);
    let before = ps[2].elapsed();
    ps[3].write(4_000);
    assert_eq!(ps[3].elapsed(), before + (4_000.0f64 / 0.75).ceil() as i64, "one of four");
}

/// Up to four beside each other do a byte in a nanosecond each.
fn rising() -> Curve {
    points(&[(1.0, GB), (4.0, 4.0 * GB)])
}

#[test]
fn who_leaves_is_noticed_by_who_stays() {
    let dir = dir();
    let curves = Curves {
        write_bandwidth: rising(),
        read_bandwidth: rising(),
        mix: points(&[(0.0, 1.0), (0.5, 0.5)]),
        write_latency_ns: 5_000_000,
        ..Curves::default()
    };
    let (short, long) = (Process::new(dir.path(), &curves), Process::new(dir.path(), &curves));
    short.write(4_000);
    assert_eq!(short.elapsed(), 5_004_000);
    long.read(16 * MIB);
    // Pages that begin beside the writer take twice as long as those that follow.
    let beside = (5_004_000 + LATE_NS).div_ceil(2 * TURN_BYTES) * TURN_BYTES;
    assert_eq!(long.elapsed(), (16 * MIB + beside) as i64);
}

#[test]
fn the_medium_neither_waits_for_who_comes_late_nor_holds_up_for_who_is_ahead() {
    let dir = dir();
    let curves = Curves { write_bandwidth: rising(), write_latency_ns: 9_000_000, ..Curves::default() };
    let state = Throttle::state_beside(&dir.path().join("pool"));
    let busy = || Throttle::busy_until_ns(&state).unwrap() - T0;
    let [first, second, late] = [(); 3].map(|()| Process::new(dir.path(), &curves));
    first.write(40_000);
    assert_eq!((first.elapsed(), busy()), (9_040_000, 10_000), "a quarter, though it is ahead by forty");
    second.write(4_000);
    assert_eq!(busy(), 11_000);
    late.set(3_000_000);
    late.write(4_000);
    assert_eq!(busy(), 2_001_000, "from when it may have wanted to come");
    let mut alone = Process::new(dir.path(), &curves);
    alone.set(30_000_000);
    alone.write(4_000);
    assert_eq!(busy(), 30_001_000, "no operation was inside meanwhile");
    alone.throttle = alone.throttle.spinning(true);
    let beside = Process::new(dir.path(), &curves);
    beside.set(31_000_000);
    beside.write(4_000);
    assert_eq!(alone.clock.now_ns() - T0, 39_004_000);
    alone.write(4_000);
    assert_eq!(busy(), 39_005_000, "who spins is never late");
}

#[test]
fn small_operations_are_slower_and_each_has_its_latency() {
    let dir = dir();
    let curves = Curves {
        write_granularity: points(&[(64.0, 0.125), (4096.0, 0.5), (1_048_576.0, 1.0)]),
        read_granularity: points(&[(64.0, 0.5)]),
        write_latency_ns: 90,
        read_latency_ns: 300,
        persist_latency_ns: 2000,
        ..flat(GB, GB)
    };
    let p = Process::new(dir.path(), &curves);
    let mut expected = 0;
    let mut step = |does: &dyn Fn(), ns: i64, what: &str| {
        does();
        expected += ns;
        assert_eq!(p.elapsed(), expected, "{what}");
    };
    step(&|| p.write(64), 512 + 90, "64 B");
    step(&|| p.write(4096), 8192 + 90, "4 KiB");
    step(&|| p.write(MIB), MIB as i64 + 90, "1 MiB");
    step(&|| p.write(3 * MIB), 3 * MIB as i64 + 90, "many turns, one latency, the size of the whole");
    step(&|| p.read(100), 200 + 300, "a read");
    step(&|| p.throttle.store_word(0, 1).unwrap(), 512 + 90, "a word is a line");
    step(&|| p.throttle.persist(0..4096).unwrap(), 2000, "persist");
    step(&|| p.throttle.prepare(0..4096).unwrap(), 0, "prepare");
    step(&|| drop(p.throttle.write(16 * MIB, &[1]).unwrap_err()), 0, "what fails is free");
    let staged = p.throttle.stage(0..4096).unwrap();
    p.throttle.unstage(staged, None, &mut Vec::new()).unwrap();
    assert_eq!(p.elapsed(), expected + 8192 + 90, "staged memory");
}

#[test]
fn a_remote_handle_is_slower_the_more_there_is_to_do() {
    let dir = dir();
    let curves = Curves {
        write_remote: points(&[(1.0, 0.5), (3.0, 0.25)]),
        read_remote: points(&[(1.0, 0.8)]),
        remote_latency_ns: 1000,
        ..flat(GB, GB)
    };
    let near = Process::new(dir.path(), &curves);
    let far: Vec<Process> = (0..2).map(|_| Process::on(dir.path(), &curves, Locality::Remote, 0)).collect();
    far[0].write(100_000);
    assert_eq!(far[0].elapsed(), 200_000 + 1000, "alone");
    near.write(100_000);
    assert_eq!(near.elapsed(), 200_000 + 100_000, "nearby nothing changes but the queue");
    far[1].write(60_000);
    assert_eq!(far[1].elapsed(), 300_000 + 240_000 + 1000, "the third inside");
    let before = far[1].elapsed();
    far[1].read(80_000);
    assert_eq!(far[1].elapsed(), before + 100_000 + 1000, "reads have a factor of their own");
}

#[test]
fn an_interleaved_handle_has_half_of_its_bytes_on_either_side() {
    let curves =
        Curves { write_remote: points(&[(1.0, 0.5), (2.0, 0.25)]), remote_latency_ns: 1000, ..flat(GB, GB) };
    let both = |dir: &Path| Process::on(dir, &curves, Locality::Interleaved, 0);
    let one = dir();
    let first = both(one.path());
    first.write(4_000);
    assert_eq!(first.elapsed(), (4_000 + 8_000) / 2 + 500, "alone: the mean of both ways");
    // Another one is at the other medium all the while, of which each keeps half busy with half of its bytes.
    let second = both(one.path());
    second.write(4_000);
    assert_eq!(second.elapsed(), 6_000 + 500, "two have a medium each");
    let (third, fourth) = (both(one.path()), both(one.path()));
    third.write(4_000);
    // Half of it, after as much of the others; three inside are one and a half at each, with a factor of 0.375.
    assert_eq!(third.elapsed(), 2 * 3_000 + (4_000 + 10_667) / 4 + 1 + 500);
    fourth.write(1_000);
    assert_eq!(
        fourth.elapsed(),
        2 * (1_000 + 4_000) / 2 + 500,
        "a short one: as if two at each were served in turn"
    );
}

#[test]
fn interleaved_threads_that_never_pause_share_two_media() {
    // Rising to two inside, falling behind: as local ones on a medium each, with half as many inside.
    let curves =
        Curves { write_bandwidth: points(&[(1.0, GB), (2.0, 2.0 * GB), (4.0, GB)]), ..Curves::default() };
    let turn = |locality| Turn { direction: Direction::Write, bytes: 100_000, latency_ns: 0, locality };
    for (inside, at_each) in [(1, 1), (2, 1), (4, 2), (8, 4)] {
        let spread = curves.cost(&turn(Locality::Interleaved), 100_000, inside, 0);
        let alone = curves.cost(&turn(Locality::Local), 100_000, at_each, 0);
        assert_eq!((spread.own_ns, spread.busy_ns), (alone.own_ns, alone.busy_ns.div_ceil(2)), "{inside}");
    }
}

#[test]
fn spinning_pays_small_debts_at_once() {
    let dir = dir();
    let mut p = Process::new(dir.path(), &Curves { read_latency_ns: 250, ..flat(GB, GB) });
    p.throttle = p.throttle.spinning(true);
    p.read(64);
    assert_eq!((p.throttle.owed_ns(), p.clock.spun.load(Ordering::Relaxed)), (0, 64 + 250));
    p.write(2_000_000);
    assert_eq!((p.throttle.owed_ns(), p.elapsed()), (0, 2_000_314));
    assert_eq!(*p.clock.slept.lock().unwrap(), [0; 0], "no turn is so long");
}

#[test]
fn the_shared_file_holds_one_set_of_curves_and_one_boot() {
    let dir = dir();
    let p = Process::new(dir.path(), &flat(GB, GB));
    p.write(900_000);
    let path = Throttle::state_beside(&dir.path().join("pool"));
    let inner = crate::open(TierKind::Dram, &dir.path().join("pool"), crate::Access::Write).unwrap();
    let other = Throttle::new(inner, flat(GB, 2.0 * GB), Locality::Local, &path);
    assert_eq!(other.err().expect("other curves").kind(), Kind::OptionMismatch);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else was left");
    // As it would stand on a disk after a reboot: times far ahead.
    let shared = SharedWords::open(&path, STATE_BYTES).unwrap();
    shared.u64(DEVICE_TIME).store(u64::MAX / 4, Ordering::Relaxed);
    shared.u64(FIRST_SLOT).store(u64::MAX, Ordering::Relaxed);
    shared.u64(BOOT).store(77, Ordering::Relaxed);
    let q = Process::new(dir.path(), &flat(GB, GB));
    q.write(900_000);
    assert_eq!(q.elapsed(), 900_000);
}

#[test]
fn more_operations_than_slots_go_on() {
    let dir = dir();
    let curves = Curves { write_bandwidth: points(&[(1.0, GB), (1000.0, GB)]), ..flat(GB, GB) };
    let ps: Vec<Process> = (0..SLOTS + 3).map(|_| Process::new(dir.path(), &curves)).collect();
    for (n, p) in ps.iter().enumerate() {
        p.write(10_000);
        assert_eq!(p.elapsed(), (n as i64 + 1) * 10_000);
    }
    let (inside, _) = ps[0].throttle.others(&Debt::default(), Direction::Write, T0);
    assert_eq!(inside, SLOTS as u64);
}

#[test]
fn threads_make_the_file_together_and_own_their_debts() {
    let dir = dir();
    let curves = flat(GB, GB);
    crate::create(TierKind::Dram, &dir.path().join("pool"), 16 * MIB).unwrap();
    let shared = Process::new(dir.path(), &curves);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (dir, curves, shared) = (&dir, &curves, &shared);
            scope.spawn(move || {
                let own = Process::new(dir.path(), curves);
                (0..100).for_each(|_| own.write(1000));
                // A place of its own: who writes is the only one there.
                shared.throttle.write(thread * 4096, &[1; 1000]).unwrap();
                assert!(shared.throttle.owed_ns() > 0);
            });
        }
    });
    assert_eq!(shared.throttle.owed_ns(), 0, "this thread did nothing");
    let busy = shared.throttle.shared.u64(DEVICE_TIME).load(Ordering::Relaxed);
    assert!(busy >= T0 + 4 * 101 * 1000, "turns were lost");
}
