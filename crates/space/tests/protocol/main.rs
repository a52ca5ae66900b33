//! The lock-free protocols of a space under the model checker: every order of every step that memory may show.
//!
//! `protocol` is the production file itself, included by path; only the words are loom's. Each model states what must
//! hold for every execution with at most two preemptions. That the models can fail is tested too: every
//! ordering and barrier in protocol.rs is weakened in turn, one child process each, and some model must fail.

#[allow(dead_code)]
#[path = "../../src/control/protocol.rs"]
mod protocol;

mod models;
mod moving;
mod words;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use words::Site;

/// Names the site that a child weakens, `line:column`.
const MUTANT: &str = "PROTOCOL_TEST_MUTANT";
/// Names the wrong model that a child runs.
const WRONG: &str = "PROTOCOL_TEST_WRONG";

/// Explores one model.
fn explore(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn every_model_holds() {
    for (name, model) in models::MODELS {
        println!("{name}");
        explore(*model);
    }
}

#[test]
fn every_wrong_model_fails() {
    for (name, _) in models::WRONG {
        assert!(fails(WRONG, name), "nothing fails although {name}");
    }
}

/// In a child: runs a wrong model, or weakens one site, and fails as soon as a model does.
#[test]
fn child() {
    if let Ok(wrong) = std::env::var(WRONG) {
        let (_, model) = models::WRONG.iter().find(|(name, _)| *name == wrong).expect("a model");
        return explore(*model);
    }
    let Ok(site) = std::env::var(MUTANT) else { return };
    words::weaken(&site);
    for (name, model) in models::MODELS {
        // Which model it was is worth knowing when a mutant survives.
        println!("{name}");
        explore(*model);
    }
}

/// The places in protocol.rs that ask for more than a relaxed access.
fn sites_in_source() -> usize {
    let source = include_str!("../../src/control/protocol.rs");
    // The traits for the standard atomics hand orderings on; what comes after them asks for some.
    let (_, protocols) = source.split_once("// ---- commit").expect("the part with the protocols");
    let code = protocols.lines().filter(|line| !line.trim_start().starts_with("//"));
    let asks = ["Acquire)", "Release)", "AcqRel)", "SeqCst)", "barrier()"];
    code.map(|line| asks.iter().map(|word| line.matches(word).count()).sum::<usize>()).sum()
}

#[test]
fn every_weakened_ordering_is_caught() {
    for (_, model) in models::MODELS {
        explore(*model);
    }
    let sites: BTreeSet<Site> = words::sites();
    assert_eq!(sites.len(), sites_in_source(), "a model must reach every ordering: {sites:?}");
    let survived: Vec<String> =
        sites.iter().map(Site::to_string).filter(|site| !fails(MUTANT, site)).collect();
    println!("{}/{} weakened orderings caught", sites.len() - survived.len(), sites.len());
    assert!(survived.is_empty(), "no model fails without {survived:?} of protocol.rs");
}

/// Whether a child fails that gets this value of this variable.
fn fails(variable: &str, value: &str) -> bool {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(variable, value)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !child.expect("a child").success()
}
