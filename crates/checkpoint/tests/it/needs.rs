//! When to save: all ranks get the same answer, and a signal that one rank gets is a step that all save.

use forebay_checkpoint::Options;

use crate::state::{dirs, options, Program};

#[test]
fn rules_of_one_process() {
    let (base, memory) = dirs();
    let mut options = options(&["file"], memory.path());
    options.when = vec!["steps:3".into()];
    let program = Program::open(base.path(), &options).unwrap();
    let yes: Vec<u64> = (1..=9).filter(|step| program.checkpoint.need(*step).unwrap()).collect();
    assert_eq!(yes, [3, 6, 9]);
    drop(program);
    options.when = vec!["seconds:1e6".into(), "optimum:1e12".into()];
    let program = Program::open(base.path(), &options).unwrap();
    assert!(!program.checkpoint.need(1).unwrap());
    drop(program);
    options.when = vec!["seconds:1e-9".into()];
    let program = Program::open(base.path(), &options).unwrap();
    assert!(program.checkpoint.need(1).unwrap());
}

#[test]
fn a_signal_that_one_rank_gets_is_a_step_that_all_save() {
    let (base, memory) = dirs();
    let plain = options(&["file"], memory.path());
    let open = |rank: u32, when: &[&str]| {
        let when = when.iter().map(|rule| rule.to_string()).collect();
        Program::open(base.path(), &Options { rank, size: 2, when, ..plain.clone() }).unwrap()
    };
    // Both are one process here, so rank 0 asks for nothing that a signal of its own would set.
    let (zero, one) = (open(0, &["seconds:1e6", "steps:100"]), open(1, &["signal", "steps:100"]));
    let ask = |step: u64| (zero.checkpoint.need(step).unwrap(), one.checkpoint.need(step).unwrap());
    assert_eq!(ask(1), (false, false));
    // To this thread, so that it has come when the call returns.
    signal_hook::low_level::raise(signal_hook::consts::SIGUSR1).unwrap();
    let wished = |path: &std::path::Path| {
        crate::state::files(path).iter().any(|f| f.display().to_string().contains("asked-"))
    };
    // Rank 1 sees it at its next question, rank 0 decides at the one after that, and both save the same step.
    assert_eq!(ask(2), (false, false));
    assert!(wished(base.path()));
    assert_eq!(ask(3), (true, true));
    assert_eq!(ask(4), (false, false));
    assert_eq!(ask(100), (true, true));
}

#[test]
fn advice_follows_from_what_was_measured() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    assert!(forebay_checkpoint::advice(base.path(), None).is_err(), "nothing was saved");
    for step in 0..3 {
        program.save(step).unwrap();
    }
    program.checkpoint.close().unwrap();
    let advice = forebay_checkpoint::advice(base.path(), Some(3600.0)).unwrap();
    assert_eq!((advice.costs.saves, advice.failures, advice.mtbf_s), (3, 0, 3600.0));
    assert_eq!(advice.levels.len(), 2);
    assert!(advice.costs.cost_s > 0.0 && advice.costs.carried_s > 0.0);
    assert!(advice.levels[1].1.mtbf_s > advice.levels[0].1.mtbf_s);
    let own = forebay_checkpoint::advice(base.path(), None).unwrap();
    assert!(own.mtbf_s >= 86_400.0 && !own.mtbf_given);
}
