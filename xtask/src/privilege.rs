//! The tests of the crates that talk to the kernel, run again with less privilege.
//!
//! Most of the suite runs as the user who started it. Here the built test binaries of the kernel-facing crates run
//! twice more: as uid 65534 with a RLIMIT_MEMLOCK of 8 MiB (what an unprivileged user has), and under a filter that
//! refuses io_uring, userfaultfd and mbind (what containers refuse). Those of the agent run as uid 65534, too: it
//! locks files, makes folders and listens. Tests of simulated media and of calls that fail on purpose are left out:
//! they take longest, and ask nothing of the kernel that others do not. Where a setting is not available it is skipped
//! and counted. The binaries are copied to a folder that every user may read.

use crate::ci::Run;
use crate::packages::cargo;
use crate::stages::title;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Crates whose behaviour depends on what the kernel allows.
const KERNEL_FACING: &[&str] = &["tier", "log", "pager", "probe", "space", "checkpoint"];

/// Modules of tests that no setting changes.
const SIMULATED: &[&str] = &["crash_tests::", "retry_tests::"];

/// The agent, which is built alone.
const AGENT: &str = "forebay-cluster";

/// The setting that is also the agent's.
const UNPRIVILEGED: &str = "tests as uid 65534";

/// What an unprivileged user may lock on current distributions.
const MEMLOCK_BYTES: u64 = 8 << 20;

/// Seconds for one test binary: the whole suite of a crate takes far less.
const BINARY_LIMIT: Duration = Duration::from_secs(300);

/// One setting: its name and the arguments of the launcher.
struct Setting {
    name: &'static str,
    arguments: Vec<String>,
}

/// A built test binary and the folder of its crate.
pub struct Binary {
    /// The program.
    pub path: PathBuf,
    /// Where the crate's manifest lies.
    pub folder: PathBuf,
}

/// Runs the kernel-facing tests under every other setting.
pub fn stage(ci: &mut Run) {
    let unprivileged = ["--uid", "65534", "--memlock", &MEMLOCK_BYTES.to_string()].map(str::to_string);
    let settings = [
        Setting { name: UNPRIVILEGED, arguments: unprivileged.to_vec() },
        Setting {
            name: "tests without io_uring, userfaultfd, mbind",
            arguments: vec!["--refuse-calls".to_string()],
        },
    ];
    let of_agent = ["test", "--release", "--package", AGENT];
    let found = binaries(ci.root).and_then(|all| Ok((all, built(ci.root, &of_agent)?)));
    let (all, of_agent) = match found {
        Ok(found) => found,
        Err(why) => return ci.summary.fail(format!("test binaries: {why}")),
    };
    for setting in &settings {
        title(setting.name);
        if let Some(why) = impossible(ci.root, setting) {
            println!("   skipped: {why}");
            ci.summary.skip(setting.name, &why);
            continue;
        }
        let more = if setting.name == UNPRIVILEGED { &of_agent[..] } else { &[] };
        for binary in all.iter().filter(|binary| faces_the_kernel(ci.root, binary)).chain(more) {
            one(ci, setting, binary);
        }
    }
}

fn launcher(root: &Path, setting: &Setting) -> Command {
    let mut command = Command::new("python3");
    command.arg(root.join("xtask/privilege/launch.py")).args(&setting.arguments);
    command
}

/// Why this setting cannot be had here, if so. The crates' own files must be readable under it.
fn impossible(root: &Path, setting: &Setting) -> Option<String> {
    let output = launcher(root, setting).arg("--probe").arg("--").arg(root.join("crates")).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(e) => Some(format!("python3: {e}")),
    }
}

fn one(ci: &mut Run, setting: &Setting, binary: &Binary) {
    let name = binary.path.file_name().unwrap_or_default().to_owned();
    let copy = ci.scratch.join("bin").join(&name);
    let label = format!("{}, {}", setting.name, name.to_string_lossy().split('-').next().unwrap_or_default());
    if let Err(e) = copy_executable(&binary.path, &copy) {
        return ci.summary.fail(format!("{label}: {e}"));
    }
    let mut command = launcher(ci.root, setting);
    command.arg("--").arg(&copy).args(SIMULATED.iter().flat_map(|name| ["--skip", name]));
    command.current_dir(&binary.folder);
    command.env("CARGO_MANIFEST_DIR", &binary.folder);
    // Of the rounds of killed processes, which are many, enough to see that they are possible here.
    command.env("SPACE_TEST_ROUNDS", "50");
    ci.test_binary(&label, command, BINARY_LIMIT);
    let _ = std::fs::remove_file(&copy);
}

fn copy_executable(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = to.parent().expect("a file in a folder");
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    std::fs::copy(from, to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))
}

/// The test binaries, as cargo built them for the whole workspace.
pub fn binaries(root: &Path) -> Result<Vec<Binary>, String> {
    built(root, &crate::ci::test_build())
}

/// The test binaries that a call of cargo builds.
fn built(root: &Path, arguments: &[&str]) -> Result<Vec<Binary>, String> {
    let mut command = Command::new(cargo());
    command.args(arguments).args(["--no-run", "--message-format=json", "--quiet"]).current_dir(root);
    let output = command.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let found = read(&String::from_utf8_lossy(&output.stdout));
    (!found.is_empty()).then_some(found).ok_or_else(|| "cargo built no tests".to_string())
}

fn faces_the_kernel(root: &Path, binary: &Binary) -> bool {
    KERNEL_FACING.iter().any(|name| binary.folder == root.join("crates").join(name))
}

/// The executables in cargo's messages.
fn read(messages: &str) -> Vec<Binary> {
    let binary = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = value["profile"]["test"].as_bool()?;
        let path = PathBuf::from(value["executable"].as_str().filter(|_| is_test)?);
        let folder = Path::new(value["manifest_path"].as_str()?).parent()?.to_path_buf();
        Some(Binary { path, folder })
    };
    messages.lines().filter_map(binary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_in_the_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/a/crates/tier/Cargo.toml\",\
            \"profile\":{\"test\":true},\"executable\":\"/a/target/tier-1\"}\n\
            {\"reason\":\"compiler-artifact\",\"manifest_path\":\"/a/crates/cli/Cargo.toml\",\
            \"profile\":{\"test\":false},\"executable\":\"/a/target/forebay\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        let found = read(messages);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, Path::new("/a/target/tier-1"));
        assert_eq!(found[0].folder, Path::new("/a/crates/tier"));
    }

    #[test]
    fn the_launcher_says_what_is_not_possible() {
        let root = crate::tree::root();
        let refused = Setting { name: "a negative user", arguments: vec!["--uid".into(), "-2".into()] };
        assert!(impossible(&root, &refused).is_some());
    }
}
