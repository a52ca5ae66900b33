//! Every system call of a save fails in turn: before it is made, after it, and with all that follow, as after a kill.
//! What the program does then, and a restart, must find every acknowledged step with its bytes.
//!
//! The calls are those that directories make (place/call.rs), of the save itself and of the drain behind it. Of several
//! ranks only every so many calls fail, unless CHECKPOINT_EVERY_CALL is set (minutes).

use std::panic::RefUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_log::{Dtype, NdBox};
use forebay_tier::{Kind, Result};

use crate::place::{How, Plan};
use crate::{Checkpoint, Options, State};

/// Bytes of a rank's part of `u`: three chunks, of which one changes with every step.
const BYTES: usize = 150_000;

/// What the program does after a call of `save` that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Saves the step again, as it was.
    Same,
    /// Saves the step again with other bytes.
    Other,
    /// Goes on with the next step.
    Next,
    /// Tries the next step, whose first call fails, and then saves this one again, as it was.
    Back,
    /// Is started again.
    Restart,
}

struct Program {
    checkpoint: Checkpoint,
    u: Vec<u8>,
}

fn content(step: u64, rank: u32, salt: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8 ^ rank as u8).collect();
    bytes[..8].copy_from_slice(&step.to_le_bytes());
    bytes[8] = salt;
    bytes
}

impl Program {
    fn open(dir: &Path, levels: &[&str], (rank, size): (u32, u32)) -> Result<Program> {
        let options = Options {
            levels: levels.iter().map(|level| level.replace("DIR", &dir.display().to_string())).collect(),
            memory_root: Some(dir.join("memory")),
            memory_bytes_max: levels.contains(&"dram").then_some(450 << 10),
            // Of several ranks one may wait in vain for a step that another one could not carry down.
            timeout: Duration::from_millis(if size > 1 { 1000 } else { 5000 }),
            rank,
            size,
            ..Options::default()
        };
        let mut checkpoint = Checkpoint::open(&dir.join("base"), &options)?;
        let part = NdBox::new(&[u64::from(rank) * BYTES as u64], &[BYTES as u64])?;
        checkpoint.protect("u", Dtype::U8, &[u64::from(size) * BYTES as u64], &part)?;
        Ok(Program { checkpoint, u: Vec::new() })
    }

    fn save(&mut self, step: u64, rank: u32, salt: u8) -> Result<()> {
        self.u = content(step, rank, salt);
        self.checkpoint.save(step, &[&self.u])
    }

    /// The step that comes back, and which of its contents.
    fn restore(&mut self, rank: u32) -> Option<(u64, u8)> {
        let mut out = vec![0xA5; BYTES];
        let restored = self.checkpoint.restore_latest(&mut [&mut out]).unwrap()?;
        assert_eq!(restored.lost, None, "{restored}");
        let salt = out[8];
        assert!(out == content(restored.step, rank, salt), "not the bytes of {restored}");
        Some((restored.step, salt))
    }
}

/// Calls until it works: the failures of the calls before are told first, then it must.
fn until_done<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    for _ in 0..3 {
        match call() {
            Err(e) if e.kind() == Kind::VersionExists => return Err(e),
            Err(e) => last = Some(e),
            done => return done,
        }
    }
    panic!("{what}: {}", last.expect("it failed"))
}

/// One failure, and what comes after it; false when the calls of a save are fewer.
fn one(levels: &[&str], then: Then, nth: u64, how: How) -> bool {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let plan = Plan::below(dir.path());
    let open = || Program::open(dir.path(), levels, (0, 1)).unwrap();
    let mut program = open();
    for step in 1..=2 {
        program.save(step, 0, 0).unwrap();
        program.checkpoint.wait().unwrap();
    }
    plan.fail(nth, how);
    let saved = program.save(3, 0, 0);
    let carried = program.checkpoint.wait();
    let mut program = Some(program).filter(|_| then != Then::Restart);
    if !plan.end() {
        saved.unwrap();
        carried.unwrap();
        return false;
    }
    let mut acknowledged = if saved.is_ok() { (3, 0) } else { (2, 0) };
    let mut program = program.take().unwrap_or_else(open);
    match then {
        Then::Same if saved.is_err() => {
            until_done("save again", || program.save(3, 0, 0)).unwrap();
            acknowledged = (3, 0);
        }
        Then::Back if saved.is_err() => {
            plan.fail(1, How::Before);
            program.save(4, 0, 0).unwrap_err();
            assert!(plan.end(), "the next step made no call");
            until_done("save again", || program.save(3, 0, 0)).unwrap();
            acknowledged = (3, 0);
        }
        Then::Other if saved.is_err() => match until_done("save others", || program.save(3, 0, 1)) {
            Ok(()) => acknowledged = (3, 1),
            // It is there already, as it was saved first.
            Err(e) => assert_eq!(e.kind(), Kind::VersionExists, "{e}"),
        },
        Then::Restart => {
            let found = program.restore(0).expect("two steps were saved");
            assert!(found >= acknowledged, "{found:?} came back, {acknowledged:?} was acknowledged");
        }
        _ => {}
    }
    if then != Then::Restart {
        let found = program.restore(0).expect("two steps were saved");
        assert!(
            found.0 > 2 || found == acknowledged,
            "{found:?} came back, {acknowledged:?} was acknowledged"
        );
        assert!(acknowledged.0 < 3 || found == acknowledged, "{found:?}, {acknowledged:?} was acknowledged");
    }
    until_done("save the next", || program.save(4, 0, 0)).unwrap();
    until_done("wait for the next", || program.checkpoint.wait()).unwrap();
    assert_eq!(program.restore(0), Some((4, 0)));
    drop(program);
    assert_eq!(open().restore(0), Some((4, 0)));
    judge(&dir.path().join("base"), 4);
    true
}

/// Every level has the step, and whatever is committed there is whole.
fn judge(base: &Path, step: u64) {
    for level in crate::list(base).unwrap().levels {
        let newest = &level.steps[0];
        assert!(newest.committed && newest.step == step, "{:?}", level.steps);
    }
    let faults: Vec<_> =
        crate::verify(base, None).unwrap().into_iter().filter(|r| r.fault.is_some()).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

/// Lets every call fail, or every so many.
fn every_call(
    what: &str,
    hows: &[How],
    (least, stride): (u64, u64),
    one: impl Fn(u64, How) -> bool + RefUnwindSafe,
) {
    let stride = if std::env::var_os("CHECKPOINT_EVERY_CALL").is_some() { 1 } else { stride };
    for how in hows.iter().copied() {
        let mut nth = 1;
        let failed = |nth| panic!("{what}, call {nth}, {how:?}");
        while std::panic::catch_unwind(|| one(nth, how)).unwrap_or_else(|_| failed(nth)) {
            nth += stride;
        }
        assert!(nth > least, "{what}: only {nth} calls of a save");
    }
}

fn every_call_of(levels: &[&str], least: u64) {
    for then in [Then::Same, Then::Other, Then::Next, Then::Back, Then::Restart] {
        let hows = [How::Before, How::After, How::FromHere];
        every_call(&format!("{levels:?}, {then:?}"), &hows, (least, 1), |nth, how| {
            one(levels, then, nth, how)
        });
    }
}

/// Waits for the other ranks, as long as they may still come.
fn meet(count: &AtomicU32, size: u32) -> bool {
    let nth = count.fetch_add(1, Ordering::SeqCst);
    let (all, begin) = ((nth / size + 1) * size, Instant::now());
    while count.load(Ordering::SeqCst) < all {
        assert!(begin.elapsed() < Duration::from_secs(30), "another rank does not come");
        std::thread::sleep(Duration::from_micros(200));
    }
    nth % size == 0
}

/// One failure in one of several ranks: each saves the step again until it is saved.
fn one_of_group(levels: &[&str], size: u32, nth: u64, how: How) -> bool {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let plan = Plan::below(dir.path());
    let count = AtomicU32::new(0);
    let failed = AtomicBool::new(false);
    let rank_of = |rank: u32| {
        let mut program = Program::open(dir.path(), levels, (rank, size)).unwrap();
        meet(&count, size);
        for step in 1..=2 {
            program.save(step, rank, 0).unwrap();
            program.checkpoint.wait().unwrap();
        }
        if meet(&count, size) {
            plan.fail(nth, how);
        }
        meet(&count, size);
        until_done("save", || program.save(3, rank, 0)).unwrap();
        // Of a failure on the way down only the first one is told; the step may stay above.
        let _ = program.checkpoint.wait();
        if meet(&count, size) {
            failed.store(plan.end(), Ordering::SeqCst);
        }
        meet(&count, size);
        assert_eq!(program.restore(rank), Some((3, 0)), "rank {rank}");
        until_done("save the next", || program.save(4, rank, 0)).unwrap();
        until_done("wait for the next", || program.checkpoint.wait()).unwrap();
        meet(&count, size);
        assert_eq!(program.restore(rank), Some((4, 0)), "rank {rank}");
        meet(&count, size);
        program.checkpoint.close().unwrap();
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || rank_of(rank))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
    judge(&dir.path().join("base"), 4);
    let levels = crate::list(&dir.path().join("base")).unwrap().levels;
    let redundancy = levels.iter().filter_map(|level| level.steps[0].redundancy.as_ref());
    redundancy.for_each(|found| assert_eq!(found.state, State::Complete, "{found:?}"));
    failed.into_inner()
}

fn every_call_of_group(levels: &[&str], size: u32, calls: (u64, u64)) {
    let one = |nth, how| one_of_group(levels, size, nth, how);
    every_call(&format!("{levels:?}, {size} ranks"), &[How::Before, How::After], calls, one);
}

#[test]
fn one_level_that_keeps_one_step() {
    every_call_of(&["file,keep=1"], 15);
}

#[test]
fn one_level_that_keeps_two_steps() {
    every_call_of(&["file"], 15);
}

#[test]
fn memory_for_two_pieces_and_a_disk() {
    every_call_of(&["dram", "file,keep=1"], 30);
}

#[test]
fn incremental_and_compressed_steps() {
    every_call_of(&["file,keep=1,incremental=2"], 15);
    every_call_of(&["file,incremental=3,compress=zstd:1"], 15);
}

#[test]
fn two_ranks() {
    every_call_of_group(&["file,keep=1"], 2, (30, 1));
    every_call_of_group(&["file,keep=1,incremental=2"], 2, (30, 2));
}

#[test]
fn two_ranks_with_memory_and_a_disk() {
    every_call_of_group(&["dram", "file,keep=1"], 2, (60, 5));
}

#[test]
fn ranks_with_redundancy() {
    every_call_of_group(&["file+partner,keep=1"], 2, (60, 9));
    every_call_of_group(&["file+xor:3"], 3, (90, 19));
    every_call_of_group(&["file+rs:1+1"], 2, (60, 19));
}

/// Lets one call of a save fail after the other, until it fails after its manifest has its name.
fn save_up_to_the_manifest(dir: &Path, plan: &Plan, program: &mut Program, step: u64) {
    let manifest = dir.join(format!("base/file/s{step:010}-r000001/00000.manifest"));
    for nth in 1.. {
        plan.fail(nth, How::Before);
        let saved = program.save(step, 0, 0);
        assert!(plan.end() && saved.is_err(), "no call failed after {}", manifest.display());
        if manifest.exists() {
            return;
        }
    }
}

#[test]
fn a_step_that_another_rank_committed_is_not_written_again_after_a_later_one_was_tried() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let plan = Plan::below(dir.path());
    let open = |rank| Program::open(dir.path(), &["file,keep=1"], (rank, 2)).unwrap();
    let (mut first, mut second) = (open(0), open(1));
    save_up_to_the_manifest(dir.path(), &plan, &mut first, 5);
    second.save(5, 1, 0).unwrap();
    assert_eq!(second.checkpoint.wait().unwrap(), Some(5));
    plan.fail(1, How::Before);
    first.save(6, 0, 0).unwrap_err();
    assert!(plan.end());
    first.save(5, 0, 0).unwrap();
    judge(&dir.path().join("base"), 5);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || assert_eq!(second.restore(1), Some((5, 0))));
        assert_eq!(first.restore(0), Some((5, 0)));
        other.join().unwrap();
    });
}

#[test]
fn a_step_that_was_not_written_is_refused_once_a_later_one_was() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let plan = Plan::below(dir.path());
    let open = |rank| Program::open(dir.path(), &["file,incremental=4"], (rank, 2)).unwrap();
    let (mut first, mut second) = (open(0), open(1));
    plan.fail(1, How::Before);
    first.save(5, 0, 0).unwrap_err();
    assert!(plan.end());
    save_up_to_the_manifest(dir.path(), &plan, &mut first, 6);
    // It would stand on step 6, and other ranks may take it for one that no rank will complete.
    assert_eq!(first.save(5, 0, 0).unwrap_err().kind(), Kind::VersionOutOfOrder);
    first.save(6, 0, 0).unwrap();
    second.save(6, 1, 0).unwrap();
    assert_eq!(first.checkpoint.wait().unwrap(), Some(6));
    judge(&dir.path().join("base"), 6);
}
