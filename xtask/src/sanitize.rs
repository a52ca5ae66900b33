//! `cargo xtask sanitize [address|thread]`: the tests of tier, log and space under a sanitizer of the compiler.
//!
//! Address: every test, with the standard library built anew so that what it does to memory is watched too.
//! Thread: the tests inside the crates, where threads share memory under one address; above all `one_mapping` of the
//! space, whose writers and readers share one attachment. Both run in target folders of their own, so that ordinary
//! builds stay warm, with the compiler's unstable flags switched on (`RUSTC_BOOTSTRAP`), and with plain copies instead
//! of non-temporal stores under the second, which would not see those. Where the sources of the standard library or the
//! sanitizer's runtime are missing, that is said and counted as skipped.
//!
//! ThreadSanitizer knows no fences. The protocols that rest on one (`protocol.rs`) exclude an access altogether, so
//! nothing false is reported for them; whether they do exclude it is shown by the model checker, not here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::packages::{cargo, target_folder};
use crate::stages::{run, title};
use crate::{Outcome, Stop};

/// Seconds for building the standard library and the crates on two cores, and for tests that are ten times slower.
const LIMIT: Duration = Duration::from_secs(3600);

/// The crates whose tests run.
const PACKAGES: [&str; 6] = ["-p", "forebay-tier", "-p", "forebay-log", "-p", "forebay-space"];

/// One sanitizer.
#[derive(Clone, Copy)]
struct Sanitizer {
    name: &'static str,
    /// Its runtime, as the compiler's files are called.
    runtime: &'static str,
    flags: &'static str,
    /// The variable of its options.
    variable: &'static str,
    options: &'static str,
    /// Which tests, as cargo is told.
    tests: &'static [&'static str],
}

const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    runtime: "asan",
    flags: "-Zsanitizer=address",
    variable: "ASAN_OPTIONS",
    options: "detect_stack_use_after_return=1",
    tests: &["--lib", "--tests"],
};

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    runtime: "tsan",
    flags: "-Zsanitizer=thread --cfg forebay_portable",
    variable: "TSAN_OPTIONS",
    // A forked child of a test starts threads; it does so in a copy of the memory, which no other process sees.
    options: "second_deadlock_stack=1 die_after_fork=0",
    // The other tests open handles one by one, or are processes: there it would see nothing.
    tests: &["--lib"],
};

/// The task.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    match arguments {
        ["address"] => check(root, ADDRESS),
        ["thread"] => check(root, THREAD),
        [] => address(root).and_then(|()| thread(root)),
        _ => Err(Stop::Usage("usage: cargo xtask sanitize [address|thread]".to_string())),
    }
}

/// AddressSanitizer.
pub fn address(root: &Path) -> Outcome {
    check(root, ADDRESS)
}

/// ThreadSanitizer.
pub fn thread(root: &Path) -> Outcome {
    check(root, THREAD)
}

fn check(root: &Path, sanitizer: Sanitizer) -> Outcome {
    let toolchain = Toolchain::of_this().map_err(Stop::Failed)?;
    if let Some(missing) = toolchain.missing(sanitizer.runtime) {
        return Err(Stop::Skipped(missing));
    }
    title(&format!("tests under the {} sanitizer (the first build takes minutes)", sanitizer.name));
    let mut command = Command::new(cargo());
    command.args(["test", "--release", "-Zbuild-std", "--no-fail-fast", "--target", &toolchain.host]);
    command.arg("--target-dir").arg(target_folder(root).join("sanitize").join(sanitizer.name));
    command.args(PACKAGES).args(sanitizer.tests);
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", sanitizer.flags);
    command.env(sanitizer.variable, sanitizer.options).current_dir(root);
    match run(&mut command, LIMIT).failure {
        None => Ok(()),
        Some(why) => Err(Stop::Failed(format!("tests under the {} sanitizer: {why}", sanitizer.name))),
    }
}

/// The compiler that is used here.
pub struct Toolchain {
    /// The triple of this machine.
    pub host: String,
    sysroot: PathBuf,
}

impl Toolchain {
    /// Asks the compiler.
    pub fn of_this() -> Result<Toolchain, String> {
        let said = |arguments: &[&str]| {
            let output = Command::new("rustc").args(arguments).output();
            let output = output.map_err(|e| format!("cannot run rustc: {e}"))?;
            Ok::<String, String>(String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let version = said(&["-vV"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or("rustc -vV names no host")?.to_string();
        Ok(Toolchain { host, sysroot: said(&["--print", "sysroot"])?.into() })
    }

    /// What of it a sanitizer with this runtime lacks.
    fn missing(&self, runtime: &str) -> Option<String> {
        self.missing_runtime(runtime).or_else(|| {
            let sources = self.sysroot.join("lib/rustlib/src/rust/library/Cargo.lock");
            (!sources.exists())
                .then(|| "this Rust lacks its library's sources (rustup component add rust-src)".to_string())
        })
    }

    /// The same for one that does without the sources of the standard library.
    pub fn missing_runtime(&self, runtime: &str) -> Option<String> {
        let folder = self.sysroot.join("lib/rustlib").join(&self.host).join("lib");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let ending = format!("_rt.{runtime}.a");
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        (!names.any(|name| name.ends_with(&ending)))
            .then(|| format!("this Rust has no {runtime} runtime for {}", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let nowhere = Toolchain { host: "none".to_string(), sysroot: "/nonexistent".into() };
        assert!(nowhere.missing("asan").is_some_and(|why| why.contains("asan runtime for none")));
        let here = Toolchain::of_this().expect("a compiler runs the tests");
        assert!(here.host.contains('-') && here.sysroot.is_dir());
        assert!(here.missing("no-such").is_some_and(|why| why.contains(&here.host)));
    }
}
