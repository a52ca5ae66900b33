//! Devices that are full or fail: the error has its kind, older steps stay, and the next save may work again.

use forebay_checkpoint::{Kind, Options};
use forebay_tier::adapter::fault::FaultPlan;

use crate::state::{disk, options, Program};

fn with_faults(options: &Options, plan: &str) -> Options {
    Options { faults: Some(FaultPlan::parse(plan).unwrap()), ..options.clone() }
}

#[test]
fn a_failed_save_leaves_the_older_steps() {
    for (plan, kind) in [
        // Two arrays are two writes, so the second save begins at the third.
        ("write:enospc@3+", Kind::TierFull),
        ("write:eio@4+", Kind::Io),
        ("write:torn@3", Kind::Io),
        ("persist:eio@2", Kind::Poisoned),
        ("prepare:enospc@2", Kind::TierFull),
    ] {
        let (base, memory) = disk();
        let plain = options(&["file"], memory.path());
        let mut program = Program::open(base.path(), &with_faults(&plain, plan)).unwrap();
        program.save(1).unwrap();
        let saved = program.save(2);
        assert_eq!(saved.err().map(|e| e.kind()), Some(kind), "{plan}");
        assert_eq!(program.restore().unwrap().unwrap().step, 1, "{plan}");
        drop(program);
        let mut again = Program::open(base.path(), &plain).unwrap();
        assert_eq!(again.restore().unwrap().unwrap().step, 1, "{plan}");
        again.save(2).unwrap();
        assert_eq!(again.restore().unwrap().unwrap().step, 2, "{plan}");
    }
}

#[test]
fn a_failure_on_the_way_down_is_told_once_and_by_name() {
    let (base, memory) = disk();
    let plain = options(&["dram", "file"], memory.path());
    // The first level's writes count too: four of them, then those of the second step's way down.
    let mut program = Program::open(base.path(), &with_faults(&plain, "persist:eio@2")).unwrap();
    program.save(1).unwrap();
    program.checkpoint.wait().unwrap();
    program.save(2).unwrap();
    let error = program.checkpoint.wait().unwrap_err();
    assert_eq!(error.kind(), Kind::Poisoned, "{error}");
    assert!(error.context().contains(&("step", "2".into())), "{error}");
    program.save(3).unwrap();
    program.checkpoint.wait().unwrap();
    assert_eq!(program.restore().unwrap().unwrap().step, 3);
}
