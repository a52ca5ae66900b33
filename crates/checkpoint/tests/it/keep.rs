//! What stays in a level: every n-th step, the best ones, the newest always; by one rank and by several.

use std::path::Path;

use forebay_checkpoint::{list, verify, Kind, Options, Reason};

use crate::state::{dirs, options, Program};

/// The committed steps of a level that stay when the next step comes, and why.
fn kept(base: &Path, level: usize) -> Vec<(u64, Vec<Reason>)> {
    let found = list(base).unwrap();
    let steps = found.levels[level].steps.iter().filter(|step| step.committed && !step.stays.is_empty());
    steps.map(|step| (step.step, step.stays.clone())).collect()
}

fn steps_of(base: &Path, level: usize) -> Vec<u64> {
    kept(base, level).iter().map(|(step, _)| *step).collect()
}

/// Falls to its least at step 12.
fn residual(step: u64) -> f64 {
    (step as f64 - 12.2).abs()
}

#[test]
fn every_nth_and_the_best_stay_below_memory() {
    use Reason::{Best, Every, Last};
    let (base, memory) = dirs();
    let options = options(&["dram", "file,keep=1,every=5,best=2"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    for step in 1..=30 {
        program.save_with(step, Some(residual(step))).unwrap();
    }
    assert_eq!(program.checkpoint.wait().unwrap(), Some(30));
    program.checkpoint.close().unwrap();
    let wanted = [
        (30, vec![Last, Every]),
        (25, vec![Every]),
        (20, vec![Every]),
        (15, vec![Every]),
        (13, vec![Best]),
        (12, vec![Best]),
        (10, vec![Every]),
        (5, vec![Every]),
    ];
    assert_eq!(kept(base.path(), 1), wanted);
    let metrics = &list(base.path()).unwrap().levels[1].steps;
    assert_eq!(metrics.iter().find(|step| step.step == 12).unwrap().metric, Some(residual(12)));
    assert!(verify(base.path(), None).unwrap().iter().all(|step| step.fault.is_none()));

    // A later run keeps what the first one left, and each of them can be gone back to.
    let mut again = Program::open(base.path(), &options).unwrap();
    let (mut u, mut count) = (again.u.clone(), again.count.clone());
    for step in [5, 12, 25] {
        let restored = again.checkpoint.restore(step, &mut [&mut u, &mut count]).unwrap();
        assert_eq!((restored.step, count.as_slice()), (step, &step.to_le_bytes()[..]));
    }
    for step in 31..=36 {
        again.save_with(step, (step == 33).then_some(0.01)).unwrap();
    }
    again.checkpoint.wait().unwrap();
    again.checkpoint.close().unwrap();
    assert_eq!(steps_of(base.path(), 1), [36, 35, 33, 30, 25, 20, 15, 12, 10, 5]);
}

#[test]
fn the_first_level_keeps_as_well_and_never_waits_for_space() {
    let (base, memory) = dirs();
    let mut options = options(&["file,keep=1,every=1,best=3:largest"], memory.path());
    options.timeout = std::time::Duration::from_secs(2);
    let mut program = Program::open(base.path(), &options).unwrap();
    for step in 1..=8 {
        program.save_with(step, Some(-residual(step))).unwrap();
    }
    program.checkpoint.close().unwrap();
    assert_eq!(steps_of(base.path(), 0), [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn ranks_drop_the_same_steps() {
    let (base, memory) = dirs();
    let of =
        |rank| Options { rank, size: 2, ..options(&["dram", "file,keep=1,every=4,best=1"], memory.path()) };
    let mut pair = [0, 1].map(|rank| Program::open(base.path(), &of(rank)).unwrap());
    for step in 1..=9 {
        // The value of another rank than 0 does not count.
        pair[0].save_with(step, Some(residual(step))).unwrap();
        pair[1].save_with(step, Some(-residual(step))).unwrap();
    }
    for program in pair {
        let mut program = program;
        assert_eq!(program.checkpoint.wait().unwrap(), Some(9));
        program.checkpoint.close().unwrap();
    }
    assert_eq!(steps_of(base.path(), 1), [9, 8, 4]);
    let report = verify(base.path(), None).unwrap();
    assert!(report.iter().all(|step| step.fault.is_none()), "{report:?}");
}

#[test]
fn a_value_is_carried_down_after_a_kill_and_its_damage_is_seen() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file,best=1"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save_with(1, Some(0.5)).unwrap();
    program.checkpoint.wait().unwrap();
    program.checkpoint.close().unwrap();
    std::fs::remove_dir_all(base.path().join("file")).unwrap();
    assert_eq!(forebay_checkpoint::drain(base.path()).unwrap().step, Some(1));
    let lower = |at: usize| list(base.path()).unwrap().levels[1].steps[at].clone();
    assert_eq!(lower(0).metric, Some(0.5));
    let file = crate::state::file_of(&base.path().join("file"), 1, "00000.metric");
    crate::state::flip(&file, 10);
    assert!(lower(0).fault.unwrap().contains("metric"));
    assert!(verify(base.path(), None).unwrap().iter().any(|step| step.kind == Some("Damaged")));
    // The arrays are whole all the same.
    std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(again.restore().unwrap().unwrap().step, 1);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let (base, memory) = dirs();
    for (level, hint) in [
        ("dram,every=3", "a lower level"),
        ("dram,best=3", "a lower level"),
        ("file,every=0", "a number of steps"),
        ("file,best=2:max", "best=3:largest"),
        ("file,best=0", "1 or more"),
    ] {
        let error = Program::open(base.path(), &options(&[level], memory.path())).err().unwrap();
        assert_eq!(error.kind(), Kind::Usage, "{level}");
        assert!(error.hint_text().unwrap().contains(hint), "{level}: {error}");
    }
    let error = Program::open(base.path(), &options(&["file,bets=2"], memory.path())).err().unwrap();
    assert!(error.hint_text().unwrap().contains("did you mean best?"), "{error}");
    let mut program = Program::open(base.path(), &options(&["file,best=2"], memory.path())).unwrap();
    assert_eq!(program.save_with(1, Some(f64::NAN)).unwrap_err().kind(), Kind::Usage);
    program.save_with(1, None).unwrap();
}
