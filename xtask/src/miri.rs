//! `cargo xtask miri`: the pure parts of the crates under Miri, which finds undefined behaviour as it interprets them.
//!
//! Miri knows no shared file mappings, no io_uring and no processor instructions of our own, so what runs there is what
//! computes only. It is part of nightly toolchains; where there is none, that is said and counted as skipped.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::packages::{cargo, target_folder};
use crate::stages::{run, title};
use crate::{Outcome, Stop};

/// What runs: the package, and the modules of its library whose tests compute only.
const PURE: [(&str, &[&str]); 2] =
    [("forebay-log", &["format::", "reclaim::"]), ("forebay-config", &["size::"])];

/// Cases of each property test: each takes a thousand times as long as elsewhere.
const CASES: &str = "8";

/// Seconds, with a margin.
const LIMIT: Duration = Duration::from_secs(1800);

/// The task.
pub fn run_task(root: &Path) -> Outcome {
    let Some(toolchain) = toolchain() else {
        return Err(Stop::Skipped(
            "no toolchain here has Miri (rustup toolchain install nightly --component miri rust-src)"
                .to_string(),
        ));
    };
    for (package, modules) in PURE {
        title(&format!("{package} under Miri: {}", modules.join(" ")));
        let mut command = Command::new("cargo");
        // The cargo that runs this names its own toolchain to every cargo below it.
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
        command.args(toolchain).args(["miri", "test", "--lib", "-p", package, "--"]).args(modules);
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("RUSTFLAGS", "--cfg forebay_portable");
        command.env("PROPTEST_CASES", CASES).env("CARGO_TARGET_DIR", target_folder(root).join("miri"));
        if let Some(why) = run(command.current_dir(root), LIMIT).failure {
            return Err(Stop::Failed(format!("{package} under Miri: {why}")));
        }
    }
    Ok(())
}

/// How cargo is told to use a toolchain that has Miri: this one, or the nightly one.
fn toolchain() -> Option<&'static [&'static str]> {
    let works = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).args(["miri", "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    if works(&cargo(), &[]) {
        return Some(&[]);
    }
    works("cargo", &["+nightly"]).then_some(&["+nightly"])
}
