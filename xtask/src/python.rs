//! The Python stage: a virtual environment, the wheel, and the package's tests against the installed wheel.

use crate::ci::Run;
use crate::packages::target_folder;
use crate::stages::{run, title};
use crate::{Outcome, Stop};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const REQUIREMENTS: &str = "crates/python/requirements-dev.txt";
const PRELOADED: &str = "libforebay_mem.so";
/// What the tests of the stores need beside the newest zarr, which needs a newer Python than the package; pinned.
const NEWEST: &str = "crates/python/requirements-newest-zarr.txt";
/// Pythons that it can be tried with, the newest first.
const NEWER_PYTHONS: &[&str] = &["3.14", "3.13", "3.12"];
const WHEEL_TESTS: &str = "crates/python/tests/test_wheel.py";
const LIMIT: Duration = Duration::from_secs(900);
/// Of a stage with many kills.
const LONG_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// What a wheel is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wheel {
    /// Tests on this machine: linked against its own glibc, from what the build of the workspace has compiled.
    OfThisMachine,
    /// Users: linked against glibc 2.28, everything compiled for that.
    Shipped,
}

impl Wheel {
    /// The words of maturin.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Wheel::OfThisMachine => &["--compatibility", "linux"],
            Wheel::Shipped => &["--zig", "--compatibility", "manylinux_2_28"],
        }
    }

    /// What the compiler makes. What ships has a folder of its own: it is compiled while other builds go on.
    fn target(self, root: &Path) -> PathBuf {
        match self {
            Wheel::OfThisMachine => target_folder(root),
            Wheel::Shipped => target_folder(root).join("shipped"),
        }
    }
}

/// Builds the wheel and installs it from its file; its path, if that worked.
pub fn wheel_stage(ci: &mut Run, kind: Wheel) -> Option<PathBuf> {
    title(match kind {
        Wheel::OfThisMachine => "python: environment and package",
        Wheel::Shipped => "python: wheel as it ships",
    });
    let built = wheel(ci.root, kind);
    ci.summary.stage("wheel", built.as_ref().err().cloned());
    built.ok()
}

/// Runs the package's tests against the installed package.
pub fn tests(ci: &mut Run, wheel: Option<PathBuf>) {
    pytest(ci, "python: tests", wheel, &["crates/python/tests", "--ignore", WHEEL_TESTS]);
}

/// Runs the tests of a wheel that ships.
pub fn wheel_tests(ci: &mut Run, wheel: Option<PathBuf>) {
    pytest(ci, "python: tests of the wheel", wheel, &[WHEEL_TESTS]);
}

/// Kills writers of stores, members of ensembles and their trainers so many times.
pub fn kills(ci: &mut Run, wheel: Option<PathBuf>, rounds: &str) {
    let arguments = ["crates/python/tests", "-k", "killed", "--ignore", WHEEL_TESTS];
    let python = python(ci.root);
    pytest_with(ci, "python: kills, long", &python, wheel, &arguments, Some(rounds));
}

/// Runs the tests of the stores with the newest zarr, where there is a Python for it.
pub fn newest_zarr(ci: &mut Run, wheel: Option<PathBuf>) {
    let name = "python: the newest zarr";
    let Some(newer) = NEWER_PYTHONS.iter().find_map(|version| newer_python(version)) else {
        return ci.summary.skip(name, "there is no Python 3.12 or newer");
    };
    let Some(path) = &wheel else { return ci.summary.skip(name, "there is no wheel") };
    match newest_environment(ci.root, newer, path) {
        Ok(python) => {
            let tests =
                ["store", "cache", "view"].map(|what| format!("crates/python/tests/test_zarr_{what}.py"));
            let mut arguments = vec!["-c", "crates/python/pyproject.toml"];
            arguments.extend(tests.iter().map(String::as_str));
            pytest_with(ci, name, &python, wheel, &arguments, None);
        }
        Err(e) => ci.summary.fail(format!("{name}: {e}")),
    }
}

/// The command of a Python of that version, if it runs.
fn newer_python(version: &str) -> Option<Command> {
    let command = || {
        let mut command = Command::new(format!("python{version}"));
        // Where pyenv has it: the commands that it puts on the search path ask for the version.
        command.env("PYENV_VERSION", version);
        command
    };
    let runs = command().args(["-c", "import venv"]).output().is_ok_and(|out| out.status.success());
    runs.then(command)
}

/// An environment of that Python with the newest zarr and the wheel; returns its Python.
fn newest_environment(root: &Path, mut newer: Command, wheel: &Path) -> Result<PathBuf, String> {
    let folder = root.join("target/newest-zarr");
    let python = folder.join("bin/python");
    step(newer.args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    step(Command::new(&python).args(install).args(["--requirement", NEWEST]).current_dir(root))?;
    step(Command::new(&python).args(install).args(["--no-index", "--no-deps"]).arg(wheel))?;
    Ok(python)
}

fn pytest(ci: &mut Run, name: &str, wheel: Option<PathBuf>, arguments: &[&str]) {
    let python = python(ci.root);
    pytest_with(ci, name, &python, wheel, arguments, None);
}

/// Runs tests by that Python; with `kills` so many rounds of those that kill processes.
fn pytest_with(
    ci: &mut Run,
    name: &str,
    python: &Path,
    wheel: Option<PathBuf>,
    arguments: &[&str],
    kills: Option<&str>,
) {
    title(name);
    let Some(wheel) = wheel else { return ci.summary.skip(name, "there is no wheel") };
    let mut command = ci.command(&python.to_string_lossy());
    command
        .args(["-m", "pytest", "-rs", "-q", "-p", "no:cacheprovider"])
        .args(arguments)
        .current_dir(ci.root);
    ci.environment(&mut command);
    command.arg("--basetemp").arg(ci.scratch.join("pytest")).env("PATH", path_with(ci.root));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("TEST_WHEEL", wheel);
    command.envs(kills.map(|rounds| ("TEST_KILLS", rounds)));
    ci.clear_noted();
    let limit = if kills.is_some() { LONG_LIMIT } else { LIMIT };
    let ran = run(&mut command, limit);
    let before = ci.summary.failed;
    let counted = ci.summary.pytest(&ran.output);
    match ran.failure {
        Some(why) if ci.summary.failed == before => ci.summary.fail(format!("pytest: {why}")),
        None if !counted => ci.summary.fail("pytest ran no test".to_string()),
        _ => {}
    }
}

/// `cargo xtask wheel`: builds the wheel and says where it is.
pub fn wheel_task(root: &Path) -> Outcome {
    let wheel = wheel(root, Wheel::Shipped).map_err(Stop::Failed)?;
    println!("{}", wheel.strip_prefix(root).unwrap_or(&wheel).display());
    Ok(())
}

/// The search path with the environment's programs first.
fn path_with(root: &Path) -> String {
    format!("{}:{}", root.join(".venv/bin").display(), std::env::var("PATH").unwrap_or_default())
}

/// The Python of the virtual environment.
pub fn python(root: &Path) -> PathBuf {
    root.join(".venv/bin/python")
}

/// Makes the virtual environment if it is not there or its requirements changed.
pub fn environment(root: &Path) -> Result<(), String> {
    let wanted =
        std::fs::read_to_string(root.join(REQUIREMENTS)).map_err(|e| format!("{REQUIREMENTS}: {e}"))?;
    let mark = root.join(".venv/requirements-installed.txt");
    if std::fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if !python(root).exists() {
        step(Command::new("python3").args(["-m", "venv", ".venv"]).current_dir(root))?;
    }
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", REQUIREMENTS];
    step(Command::new(python(root)).args(install).current_dir(root))?;
    std::fs::write(mark, wanted).map_err(|e| e.to_string())
}

/// Builds the wheel and installs it, from its file alone. Returns the path of the wheel: in target/wheels when it
/// ships.
pub fn wheel(root: &Path, kind: Wheel) -> Result<PathBuf, String> {
    environment(root)?;
    let wheels = root.join(match kind {
        Wheel::OfThisMachine => "target/wheels-of-this-machine",
        Wheel::Shipped => "target/wheels",
    });
    let _ = std::fs::remove_dir_all(&wheels);
    preloaded_library(root, kind)?;
    step(&mut maturin(root, kind, &wheels))?;
    let entries = std::fs::read_dir(&wheels).map_err(|e| e.to_string())?;
    let wheel =
        entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or("maturin built no wheel")?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--force-reinstall",
    ];
    step(Command::new(python(root)).args(install).arg(&wheel).current_dir(root))?;
    Ok(wheel)
}

/// The calls that compile what the wheel of users needs: afterwards [`wheel`] compiles nothing.
pub fn compile_shipped(root: &Path) -> Result<[Command; 2], String> {
    environment(root)?;
    let aside = Wheel::Shipped.target(root).join("wheels");
    Ok([zigbuild(root), maturin(root, Wheel::Shipped, &aside)])
}

fn maturin(root: &Path, kind: Wheel, wheels: &Path) -> Command {
    let mut command = Command::new(root.join(".venv/bin/maturin"));
    command.args(["build", "--release", "--manifest-path", "crates/python/Cargo.toml"]);
    command.args(kind.arguments()).arg("--out").arg(wheels);
    // The linker comes with the environment (the package ziglang) and is found by its Python.
    inside(root, &kind.target(root), &mut command);
    command
}

/// Puts what `forebay mem` loads before the libraries of a program into the package: for this machine as it was built
/// with the other packages.
fn preloaded_library(root: &Path, kind: Wheel) -> Result<(), String> {
    let folder = match kind {
        Wheel::OfThisMachine => target_folder(root),
        Wheel::Shipped => {
            step(&mut zigbuild(root))?;
            library_target(root).join(platform())
        }
    };
    let built = folder.join("release").join(PRELOADED);
    let placed = root.join("crates/python/python/forebay").join(PRELOADED);
    // Hidden from version control, which maturin is told in pyproject.toml; without its symbols a tenth as long.
    step(Command::new("strip").arg("-o").arg(&placed).arg(&built))
}

fn platform() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// What the compiler makes for the preloaded library for users: maturin calls cargo with other settings, and one would
/// compile again what the other has compiled.
fn library_target(root: &Path) -> PathBuf {
    target_folder(root).join("shipped-library")
}

/// Builds the preloaded library for users.
fn zigbuild(root: &Path) -> Command {
    let mut command = Command::new(root.join(".venv/bin/cargo-zigbuild"));
    command.args(["zigbuild", "--target", &format!("{}.2.28", platform())]);
    command.args(["--release", "--quiet", "--package", "forebay-mem"]);
    inside(root, &library_target(root), &mut command);
    command
}

/// Makes it a command of the environment that keeps what it caches inside the clone, and not in the user's home.
fn inside(root: &Path, target: &Path, command: &mut Command) {
    let cache = target_folder(root).join("cache");
    command.current_dir(root).env("PATH", path_with(root)).env("CARGO_TARGET_DIR", target);
    command
        .env("ZIG_GLOBAL_CACHE_DIR", cache.join("zig"))
        .env("CARGO_ZIGBUILD_CACHE_DIR", cache.join("zigbuild"));
}

fn step(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let words = format!("{program} {}", arguments.join(" "));
    println!("   {words}");
    run(command, LIMIT).failure.map_or(Ok(()), |why| Err(format!("{words}: {why}")))
}
