//! `cargo xtask fuzz [--seconds N] [TARGET ...]`: libFuzzer on the targets in fuzz/, under AddressSanitizer.
//!
//! Each target runs for N seconds (60 unless told) on one core. It begins with the samples of that format and with
//! every input that once made it fail (fuzz/regressions), and goes on with what earlier runs found worth keeping
//! (target/fuzz/corpus). An input that makes it fail is left in target/fuzz/failed and belongs into
//! fuzz/regressions/TARGET with the repair: the tests run those too. Needs a C++ compiler, for libFuzzer itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::packages::{cargo, target_folder};
use crate::sanitize::Toolchain;
use crate::stages::{run, title};
use crate::{Outcome, Stop};

/// Seconds for each target.
const SECONDS: u64 = 60;

/// Seconds for building it from nothing on two cores, with a margin.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// What the compiler is told: as cargo-fuzz does it. One unit per crate, so that the counters are in order.
const FLAGS: &str =
    "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// Seconds in which a target must be done with one input: more is a hang.
const INPUT_SECONDS_MAX: u64 = 20;

/// MiB that it may take: more is an allocation by a number out of the input.
const MEMORY_MIB_MAX: u64 = 2048;

/// The task.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    let (seconds, wanted) = match arguments {
        ["--seconds", seconds, wanted @ ..] => (seconds.parse().ok(), wanted),
        wanted => (Some(SECONDS), wanted),
    };
    let usage = || Stop::Usage("usage: cargo xtask fuzz [--seconds N] [TARGET ...]".to_string());
    let seconds: u64 = seconds.ok_or_else(usage)?;
    let known = targets(root)?;
    if wanted.iter().any(|name| !known.iter().any(|known| known == name)) {
        return Err(Stop::Usage(format!("there is no such target; known are {}", known.join(", "))));
    }
    let chosen: Vec<&String> =
        known.iter().filter(|name| wanted.is_empty() || wanted.contains(&name.as_str())).collect();
    let folder = target_folder(root).join("fuzz");
    let programs = build(root, &folder)?;
    let samples = folder.join("samples");
    let wrote = run(Command::new(programs.join("samples")).arg(&samples), BUILD_LIMIT).failure;
    wrote.map_or(Ok(()), |why| Err(Stop::Failed(format!("writing the samples: {why}"))))?;
    let findings = chosen.into_iter().filter_map(|name| fuzz(root, &folder, &programs, name, seconds));
    crate::no_findings(findings.collect())
}

/// Every target there is: the programs of fuzz/.
fn targets(root: &Path) -> Result<Vec<String>, Stop> {
    let entries = std::fs::read_dir(root.join("fuzz/fuzz_targets"));
    let entries = entries.map_err(|e| Stop::Failed(format!("fuzz/fuzz_targets: {e}")))?;
    let stem = |path: PathBuf| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| stem(entry.path())).collect();
    names.sort();
    Ok(names)
}

/// Builds the programs; returns where they are.
fn build(root: &Path, folder: &Path) -> Result<PathBuf, Stop> {
    let toolchain = Toolchain::of_this().map_err(Stop::Failed)?;
    let compiler = Command::new("c++").arg("--version").output().is_ok_and(|o| o.status.success());
    let missing = toolchain.missing_runtime("asan");
    if let Some(why) = missing.or_else(|| (!compiler).then(|| "there is no C++ compiler".to_string())) {
        return Err(Stop::Skipped(why));
    }
    title("build of the fuzz targets");
    let mut command = Command::new(cargo());
    command.args(["build", "--release", "--quiet", "--bins", "--target", &toolchain.host]);
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", folder);
    match run(command.current_dir(root.join("fuzz")), BUILD_LIMIT).failure {
        None => Ok(folder.join(&toolchain.host).join("release")),
        Some(why) => Err(Stop::Failed(format!("building the fuzz targets: {why}"))),
    }
}

/// Runs one target; returns what is wrong.
fn fuzz(root: &Path, folder: &Path, programs: &Path, name: &str, seconds: u64) -> Option<String> {
    title(&format!("fuzz target {name}, {seconds} s"));
    let of = |kind: &str| folder.join(kind).join(name);
    let (corpus, failed) = (of("corpus"), of("failed"));
    for made in [&corpus, &failed] {
        if let Err(e) = std::fs::create_dir_all(made) {
            return Some(format!("{}: {e}", made.display()));
        }
    }
    let mut command = Command::new(programs.join(name));
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}")).args(["-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-artifact_prefix={}/", failed.display())).arg(&corpus);
    let more = [of("samples"), root.join("fuzz/regressions").join(name)];
    command.args(more.iter().filter(|folder| folder.is_dir())).current_dir(root);
    // What it makes in shared memory goes with it, however it ends.
    let memory = PathBuf::from(format!("/dev/shm/forebay-fuzz-{}", std::process::id()));
    if let Err(e) = std::fs::create_dir(&memory) {
        return Some(format!("{}: {e}", memory.display()));
    }
    let limit = Duration::from_secs(seconds) + BUILD_LIMIT;
    let ran = run(command.env("FUZZ_FOLDER", &memory), limit);
    let _ = std::fs::remove_dir_all(&memory);
    let why = ran.failure?;
    Some(format!("fuzz target {name}: {why}; the input is in {}", failed.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_program() {
        let root = crate::tree::root();
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let names = targets(&root).unwrap();
        assert!(names.len() >= 6, "{names:?}");
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        }
    }

    #[test]
    fn an_unknown_target_is_refused_before_anything_is_built() {
        let outcome = run_task(&crate::tree::root(), &["--seconds", "1", "no-such-target"]);
        assert!(matches!(outcome, Err(Stop::Usage(why)) if why.contains("record")));
        assert!(matches!(run_task(&crate::tree::root(), &["--seconds", "soon"]), Err(Stop::Usage(_))));
    }
}
