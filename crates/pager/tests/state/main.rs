//! The state word of a tile under the model checker: every order of every step that memory may show.
//!
//! `state` is the production file itself, included by path; only the word is loom's. Each model states what must hold
//! for every execution with at most two preemptions; a wake-up that is lost is a deadlock. That the models can fail is
//! tested too: every ordering in state.rs is weakened in turn, one child process each, and some model must fail.

#[allow(dead_code)]
#[path = "../../src/state.rs"]
mod state;

mod models;
mod words;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use words::Site;

/// Names the site that a child weakens, `line:column`.
const MUTANT: &str = "STATE_TEST_MUTANT";

/// Explores one model.
fn explore(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

fn explore_all() {
    for (name, model) in models::MODELS {
        println!("{name}");
        explore(*model);
    }
}

#[test]
fn every_model_holds() {
    explore_all();
}

/// In a child: looks before it announces itself, as a waiter must not.
#[test]
fn a_waiter_that_announces_too_late_is_caught() {
    assert!(fails("late"), "nothing fails although the announcement is not in the word's own step");
}

/// In a child: weakens one site, and fails as soon as a model does.
#[test]
fn child() {
    match std::env::var(MUTANT).as_deref() {
        Ok("late") => explore(models::announces_too_late),
        Ok(site) => {
            words::weaken(site);
            explore_all();
        }
        Err(_) => {}
    }
}

/// The places in state.rs that ask for more than a relaxed access.
fn sites_in_source() -> usize {
    let source = include_str!("../../src/state.rs");
    let (_, protocol) = source.split_once("// ---- the protocol").expect("the part with the protocol");
    let code = protocol.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| ["Acquire)", "Release)"].iter().map(|word| line.matches(word).count()).sum::<usize>())
        .sum()
}

#[test]
fn every_weakened_ordering_is_caught() {
    explore_all();
    let sites: BTreeSet<Site> = words::sites();
    assert_eq!(sites.len(), sites_in_source(), "a model must reach every ordering: {sites:?}");
    let survived: Vec<String> = sites.iter().map(Site::to_string).filter(|site| !fails(site)).collect();
    println!("{}/{} weakened orderings caught", sites.len() - survived.len(), sites.len());
    assert!(survived.is_empty(), "no model fails without {survived:?} of state.rs");
}

/// Whether a child fails that is told this.
fn fails(told: &str) -> bool {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(MUTANT, told)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !child.expect("a child").success()
}
