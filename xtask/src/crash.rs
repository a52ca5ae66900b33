//! `cargo xtask crash`: crash simulation of the log, and of the simulation itself.
//!
//! First the harness (`crates/log/examples/crash`) runs on the log as it is. Then it runs on logs that are wrong on
//! purpose, and has to fail on each: once for every call in `crates/log/src` that flushes or fences, with that call
//! left out, and once for every way in which the simulated device can break its contract. The calls are found in the
//! source by their names, so that a new one is tested without anybody thinking of it: a copy of the crate is built
//! under target/crash, in which each asks a number from the environment whether it shall do nothing.
//!
//! It does not judge what recovery should do: that is the harness's model.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::packages::{cargo, example, target_folder};
use crate::stages::run;
use crate::{Outcome, Stop};

/// Distinct images of an ordinary run, and of a long one.
const IMAGES: u64 = 100_000;
const IMAGES_LONG: u64 = 10_000_000;

/// Seconds, with a margin: the ordinary run takes some 15 on two cores, the long one minutes.
const LIMIT: Duration = Duration::from_secs(600);
const LIMIT_LONG: Duration = Duration::from_secs(7200);

/// What tells a mutated log which of its calls does nothing.
const MUTANT: &str = "FOREBAY_CRASH_MUTANT";

/// The calls, and what they become: the same, unless their number is the one in the environment.
const CALLS: [(&str, &str); 3] = [
    (".fence()", ".fence_unless(SITE)"),
    (".persist(", ".persist_unless(SITE, "),
    (".persist_written(", ".persist_written_unless(SITE, "),
];

const MODULE: &str = r#"
/// Flushes and fences that can be left out one by one.
pub mod mutant {
    use std::ops::Range;
    use forebay_tier::{Device, Result};

    fn is_left_out(site: usize) -> bool {
        use std::sync::OnceLock;
        static SITE: OnceLock<Option<usize>> = OnceLock::new();
        let chosen = || std::env::var("FOREBAY_CRASH_MUTANT").ok().and_then(|text| text.parse().ok());
        *SITE.get_or_init(chosen) == Some(site)
    }

    /// Calls with their numbers.
    pub trait Unless: Device {
        /// `fence`.
        fn fence_unless(&self, site: usize) {
            if !is_left_out(site) {
                self.fence();
            }
        }
        /// `persist`.
        fn persist_unless(&self, site: usize, range: Range<u64>) -> Result<()> {
            if is_left_out(site) { Ok(()) } else { self.persist(range) }
        }
        /// `persist_written`.
        fn persist_written_unless(&self, site: usize, range: Range<u64>) -> Result<()> {
            if is_left_out(site) { Ok(()) } else { self.persist_written(range) }
        }
    }
    impl<D: Device + ?Sized> Unless for D {}
}
"#;

/// One call in the source.
#[derive(Clone, Debug, PartialEq)]
struct Site {
    file: String,
    line: usize,
    call: &'static str,
}

/// The task: `[--long | --replay PATH]`.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    match arguments {
        [] => check(root, false),
        ["--long"] => check(root, true),
        ["--replay", path] => {
            let harness = example(root, "crash").map_err(Stop::Failed)?;
            judge(&mut harness_command(&harness, &["--replay", path], None), LIMIT)
        }
        _ => Err(Stop::Usage("usage: cargo xtask crash [--long | --replay PATH]".to_string())),
    }
}

/// The harness on the log as it is, then on wrong ones.
pub fn check(root: &Path, long: bool) -> Outcome {
    let harness = example(root, "crash").map_err(Stop::Failed)?;
    let (images, limit) = if long { (IMAGES_LONG, LIMIT_LONG) } else { (IMAGES, LIMIT) };
    judge(&mut harness_command(&harness, &["--images", &images.to_string()], None), limit)?;
    let survivors = mutants(root, &harness)?;
    crate::no_findings(survivors)
}

fn judge(command: &mut Command, limit: Duration) -> Outcome {
    match run(command, limit).failure {
        None => Ok(()),
        Some(why) => Err(Stop::Failed(format!("crash simulation: {why}"))),
    }
}

fn harness_command(harness: &Path, arguments: &[&str], mutant: Option<usize>) -> Command {
    let mut command = Command::new(harness);
    command.args(arguments).env_remove(MUTANT);
    if let Some(site) = mutant {
        command.env(MUTANT, site.to_string());
    }
    command
}

/// Builds the harness of a copied workspace; returns the program.
fn build(workspace: &Path, target: &Path) -> Result<PathBuf, Stop> {
    let mut command = Command::new(cargo());
    command.args(["build", "--release", "--quiet", "--package", "forebay-log", "--example", "crash"]);
    command.current_dir(workspace).env("CARGO_TARGET_DIR", target);
    match run(&mut command, LIMIT).failure {
        None => Ok(target.join("release/examples/crash")),
        Some(why) => Err(Stop::Failed(format!("building the crash harness: {why}"))),
    }
}

/// Runs the harness on every mutant and every flawed device; those that it does not notice are the findings.
fn mutants(root: &Path, harness: &Path) -> Result<Vec<String>, Stop> {
    let folder = target_folder(root).join("crash");
    let sites = copy(root, &folder).map_err(|e| Stop::Failed(format!("{}: {e}", folder.display())))?;
    let mutated = build(&folder.join("source"), &folder.join("build"))?;
    let few = ["--images", "1"];
    // What is wrong must be the call that is left out, not the copy.
    judge(&mut harness_command(&mutated, &few, None), LIMIT)?;
    let mut survivors = Vec::new();
    for (number, site) in sites.iter().enumerate() {
        let caught = first_failure(&mut harness_command(&mutated, &few, Some(number)))?;
        let name = format!("crates/log/src/{}:{} without {}", site.file, site.line, site.call);
        tell(&name, caught, &mut survivors);
    }
    let flaws = Command::new(harness).args(["--flaw", "list"]).output();
    let flaws = flaws.map_err(|e| Stop::Failed(format!("the crash harness: {e}")))?.stdout;
    let flaws = String::from_utf8_lossy(&flaws).into_owned();
    for flaw in flaws.lines() {
        let caught = first_failure(&mut harness_command(harness, &["--images", "1", "--flaw", flaw], None))?;
        tell(&format!("a device with {flaw}"), caught, &mut survivors);
    }
    let total = sites.len() + flaws.lines().count();
    println!(
        "{}/{total} mutants caught, {} of them calls in the source",
        total - survivors.len(),
        sites.len()
    );
    Ok(survivors)
}

fn tell(name: &str, caught: Option<String>, survivors: &mut Vec<String>) {
    match caught {
        Some(failure) => println!("   caught: {name}: {failure}"),
        None => {
            println!("   NOT caught: {name}");
            survivors.push(format!("{name}: nothing fails"));
        }
    }
}

/// The line with which the harness says what is wrong; None when it found nothing.
fn first_failure(command: &mut Command) -> Result<Option<String>, Stop> {
    let output = command.output().map_err(|e| Stop::Failed(format!("the crash harness: {e}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match (output.status.code(), text.lines().find_map(|line| line.strip_prefix("FAILED "))) {
        (Some(0), _) => Ok(None),
        (Some(1), Some(failure)) => Ok(Some(failure.to_string())),
        _ => Err(Stop::Failed(format!(
            "the crash harness broke off: {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Copies the log, with its calls rewritten, into a workspace of its own. What did not change is not touched, so
/// that it is not built again.
fn copy(root: &Path, folder: &Path) -> std::io::Result<Vec<Site>> {
    let source = folder.join("source");
    let log = source.join("crates/log");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    // Of the workspace's members only the log.
    let line = |line: &str| match line.starts_with("members = ") {
        true => "members = [\"crates/log\"]\n".to_owned(),
        false => format!("{line}\n"),
    };
    let manifest = manifest
        .lines()
        .map(line)
        .collect::<String>()
        .replace(r#"path = "crates/tier""#, &format!("path = {:?}", root.join("crates/tier")));
    write(&source.join("Cargo.toml"), &manifest)?;
    write(&source.join("Cargo.lock"), &std::fs::read_to_string(root.join("Cargo.lock"))?)?;
    let own = std::fs::read_to_string(root.join("crates/log/Cargo.toml"))?;
    // The harness needs none of what the tests need.
    let own = own.split("[dev-dependencies]").next().unwrap_or_default();
    write(&log.join("Cargo.toml"), own)?;
    let mut sites = Vec::new();
    for path in rust_files(&root.join("crates/log/src"))? {
        let name = path.strip_prefix(root.join("crates/log/src")).expect("found there").display().to_string();
        let text = rewrite(&name, &std::fs::read_to_string(&path)?, &mut sites);
        write(&log.join("src").join(&name), &text)?;
    }
    for path in rust_files(&root.join("crates/log/examples/crash"))? {
        let name = path.file_name().expect("a file has a name");
        write(&log.join("examples/crash").join(name), &std::fs::read_to_string(&path)?)?;
    }
    Ok(sites)
}

/// Writes a file unless it holds just that.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::create_dir_all(path.parent().expect("it lies in a folder"))?;
    std::fs::write(path, text)
}

fn rust_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// One file with its calls rewritten; their places are added to `sites`.
fn rewrite(name: &str, text: &str, sites: &mut Vec<Site>) -> String {
    let before = sites.len();
    let mut out = String::new();
    for (number, line) in text.lines().enumerate() {
        let mut line = line.to_string();
        if !line.trim_start().starts_with("//") {
            for (call, replacement) in CALLS {
                while let Some(at) = line.find(call) {
                    let replacement = replacement.replace("SITE", &sites.len().to_string());
                    line.replace_range(at..at + call.len(), &replacement);
                    sites.push(Site { file: name.to_string(), line: number + 1, call });
                }
            }
        }
        out.push_str(&line);
        out.push('\n');
    }
    if sites.len() > before {
        out = out.replacen("\nuse ", "\nuse crate::mutant::Unless as _;\nuse ", 1);
    }
    if name == "lib.rs" {
        out.push_str(MODULE);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_rewritten_and_counted_comments_are_not() {
        let text =
            "//! A `.fence()`.\n\nuse a::b;\n\nfn f() {\n    // then .persist(x)\n    d.fence();\n    \
                    return lane.device.persist(a..b);\n    d.persist_at_write(c)\n}\n";
        let mut sites = vec![Site { file: "other.rs".to_string(), line: 1, call: ".fence()" }];
        let out = rewrite("append.rs", text, &mut sites);
        assert!(
            out.contains("    d.fence_unless(1);\n    return lane.device.persist_unless(2, a..b);\n"),
            "{out}"
        );
        assert!(out.contains("d.persist_at_write(c)") && out.contains("// then .persist(x)"), "{out}");
        assert!(out.contains("\nuse crate::mutant::Unless as _;\nuse a::b;\n"), "{out}");
        assert_eq!(
            sites[1..].iter().map(|s| (s.line, s.call)).collect::<Vec<_>>(),
            [(7, ".fence()"), (8, ".persist(")]
        );
    }

    #[test]
    fn a_file_without_such_calls_stays_as_it_is() {
        let text = "use a;\nfn f() {}\n";
        assert_eq!(rewrite("scan.rs", text, &mut Vec::new()), text);
        assert!(rewrite("lib.rs", text, &mut Vec::new()).contains(MUTANT));
    }

    #[test]
    fn the_log_has_calls_to_leave_out() {
        let root = crate::tree::root();
        let mut sites = Vec::new();
        for path in rust_files(&root.join("crates/log/src")).unwrap() {
            rewrite("x.rs", &std::fs::read_to_string(path).unwrap(), &mut sites);
        }
        assert!(sites.len() >= 10, "{sites:?}");
    }
}
