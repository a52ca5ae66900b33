//! `cargo xtask ci`: the stages of `make test`, and with `--all` those of `make test-all`, in the order of what fails
//! soonest. CI runs both.
//!
//! `make test` is a newcomer's: it builds the product, and runs every test of it once. `make test-all` has what takes
//! longer: lints, licences, the lab, the agent, crash images, simulated processes, other privileges, the emulated
//! machine, the package as it ships.
//! `--long`, by hand, is `--all` with many more rounds, and sanitizers.
//!
//! What only compiles, lints and the package as it ships, goes on beside the other stages, at the lowest priority.
//! A stage that fails does not stop the others, except that nothing is run that was not built. The last line is
//! the count, alone: `N passed, M failed, K skipped`; before it every skip stands with its reason. Nothing outside
//! the clone is changed, except that a machine on which this runs as root gets the optional Debian packages that
//! some tests can use (announced first; `NO_INSTALL=1` prevents it).

use crate::packages::{cargo, target_folder, TOGETHER};
use crate::stages::{run, run_beside, title, Ran};
use crate::summary::Summary;
use crate::{
    arch, bench, crash, dax_machine, formats, fuzz, mem_matrix, miri, nodes, privilege, python, readme,
    sanitize, simulate, tidy, Outcome, Stop,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

/// How the workspace is tested: with one profile for everything, so that nothing is compiled twice.
pub fn test_build() -> Vec<&'static str> {
    [&["test", "--release"][..], &TOGETHER].concat()
}

/// Programs, libraries and tests in one call: a build without the tests has other features of the dependencies, and
/// would compile everything once more.
fn build() -> Vec<&'static str> {
    let targets = ["--lib", "--bins", "--tests", "--examples", "--quiet"];
    [&["build", "--release"][..], &TOGETHER, &targets].concat()
}

/// The crates that are no part of the product: what takes longer has their build and their tests. Without them the
/// dependencies have the same features.
const NOT_SHIPPED: &[&str] = &["forebay-lab", "forebay-programs", "forebay-suite", "forebay-simulation"];

/// The version of cargo-deny that reads deny.toml.
const DENY_VERSION: &str = "0.20.2";

/// Seconds for a build from nothing on two cores, with a margin.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Seconds for all tests of the workspace on two cores, with a margin.
const TEST_LIMIT: Duration = Duration::from_secs(1800);
/// Seconds for a stage that only reads.
const SHORT_LIMIT: Duration = Duration::from_secs(600);

/// Cases of each property test in a long run; otherwise each test has its own number.
const LONG_CASES: &str = "4096";

/// Rounds of processes that are killed, in a long run; the tests have 200 of them in any case.
const LONG_ROUNDS: &str = "10000";
/// The same of checkpoints, each of which is three processes that restore before they save.
const LONG_CHECKPOINT_ROUNDS: &str = "200";
/// Kills of readers that keep a cursor; the tests have 48 in any case.
const LONG_READER_KILLS: &str = "500";
/// Seconds for that many rounds: ten a second, with a margin.
const LONG_ROUNDS_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Debian packages that some tests use where they are there: the package and a file or program it brings.
const OPTIONAL: &[(&str, &str)] = &[
    ("chromium", "/usr/bin/chromium"),
    ("fio", "/usr/bin/fio"),
    ("gfortran", "/usr/bin/gfortran"),
    ("iproute2", "/usr/sbin/ip"),
    ("libjemalloc2", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
    ("libpmem-dev", "/usr/include/libpmem.h"),
    ("mpich", "/usr/bin/mpiexec.hydra"),
    ("slurm-client", "/usr/bin/sbatch"),
    ("slurmctld", "/usr/sbin/slurmctld"),
    ("slurmd", "/usr/sbin/slurmd"),
];

/// Minutes of new seeds of simulated processes, and in a long run.
const SIMULATION_MINUTES: u64 = 2;
const SIMULATION_LONG_MINUTES: u64 = 60;

/// Losses of power in the emulated machine; `make test-dax` has more of them.
const CUTS: u32 = 10;

/// One run of all stages.
pub struct Run<'a> {
    /// Root of the project.
    pub root: &'a Path,
    /// A folder of this run, gone at its end.
    pub scratch: PathBuf,
    /// What was counted so far.
    pub summary: Summary,
    extent: Extent,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    /// Every test once.
    Newcomer,
    /// What takes longer.
    All,
    /// The same with many more rounds, and sanitizers: hours.
    Long,
}

/// What is compiled beside the stages.
struct Beside {
    steps: Vec<Step>,
    running: JoinHandle<Vec<Ran>>,
}

/// A command of [`Beside`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Deny,
    Clippy,
    Wheel,
}

/// Runs the stages of that extent.
fn run_all(root: &Path, extent: Extent) -> Result<Summary, String> {
    let scratch = std::env::temp_dir().join(format!("forebay-ci-{}", std::process::id()));
    open_folder(&scratch).and_then(|()| open_folder(&scratch.join("tmp"))).map_err(|e| e.to_string())?;
    let before = shared_memory();
    let mut ci = Run { root, scratch, summary: Summary::default(), extent };
    ci.stages();
    ci.leftovers(&before);
    let _ = std::fs::remove_dir_all(&ci.scratch);
    Ok(ci.summary)
}

/// The stages of `cargo xtask ci`, to the extent that the arguments name.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    let extent = match arguments {
        [] => Extent::Newcomer,
        ["--all"] => Extent::All,
        ["--long"] => Extent::Long,
        _ => return Err(Stop::Usage("usage: cargo xtask ci [--all | --long]".to_string())),
    };
    let summary = run_all(root, extent).map_err(Stop::Failed)?;
    print!("\n{}", summary.print());
    if summary.failed == 0 {
        Ok(())
    } else {
        Err(Stop::Findings(Vec::new()))
    }
}

/// The same call for the product and its examples alone.
fn of_product(mut arguments: Vec<&'static str>) -> Vec<&'static str> {
    arguments.extend(NOT_SHIPPED.iter().flat_map(|name| ["--exclude", name]));
    arguments
}

impl Run<'_> {
    fn stages(&mut self) {
        self.optional_packages();
        self.checks();
        let build = match self.extent {
            Extent::Newcomer => of_product(build()),
            Extent::All | Extent::Long => build(),
        };
        if !self.cargo_stage("build", &build) {
            self.summary.skip("tests, python, demo", "the build failed");
            return;
        }
        match self.extent {
            Extent::Newcomer => self.every_test_once(),
            Extent::All | Extent::Long => self.what_takes_longer(),
        }
    }

    fn every_test_once(&mut self) {
        // Before the tests: those of the C library read with Python what Fortran wrote.
        let wheel = python::wheel_stage(self, python::Wheel::OfThisMachine);
        self.tests();
        python::tests(self, wheel);
        self.check("programs of the README", readme::programs);
        self.check("commands of the five-minute page", readme::five_minutes);
        self.demo();
    }

    fn what_takes_longer(&mut self) {
        let long = self.extent == Extent::Long;
        let beside = self.begin_beside();
        self.check("formats", formats::run);
        self.tests_of_the_lab();
        self.tests_of_the_agent();
        self.check("crash simulation", |root| crash::check(root, long));
        let minutes = if long { SIMULATION_LONG_MINUTES } else { SIMULATION_MINUTES };
        self.check("simulated processes", |root| simulate::check(root, minutes));
        self.check("no simulator in what ships", simulate::ships_nothing);
        privilege::stage(self);
        mem_matrix::stage(self);
        self.check("nodes of a test bed", nodes::trial);
        let wanted = dax_machine::tests::Wanted { cuts: CUTS, only: None, whole: long };
        dax_machine::tests::stage(self.root, wanted, &mut self.summary);
        if long {
            self.torture();
            self.soak();
            self.check("address sanitizer", sanitize::address);
            self.check("thread sanitizer", sanitize::thread);
            self.check("miri", miri::run_task);
            self.check("libFuzzer", |root| fuzz::run_task(root, &[]));
        }
        self.end_beside(beside);
        let wheel = python::wheel_stage(self, python::Wheel::Shipped);
        python::wheel_tests(self, wheel.clone());
        python::newest_zarr(self, wheel.clone());
        if long {
            python::kills(self, wheel, "1000");
        }
        self.check("programs on mapped memory", readme::mapped_memory);
        self.check("writers on several nodes, by MPICH", nodes::mpi);
        // At toy size, so that it cannot rot; its figures mean nothing there.
        self.check("bench put --quick", |root| bench::run(root, &["--quick"]));
        self.check("bench stream --quick", |root| bench::stream::run(root, &["--quick"]));
    }

    /// Installs what some tests can use, when that is allowed; otherwise those tests skip themselves.
    fn optional_packages(&mut self) {
        let missing = OPTIONAL.iter().filter(|(_, file)| !Path::new(file).exists());
        let emulator = if self.extent == Extent::Newcomer { Vec::new() } else { dax_machine::missing() };
        let missing: Vec<&str> = missing.map(|(package, _)| *package).chain(emulator).collect();
        if missing.is_empty() {
            return;
        }
        title(&format!("optional Debian packages: {}", missing.join(", ")));
        let refused = std::env::var_os("NO_INSTALL").is_some();
        if refused || !is_root() || !Path::new("/usr/bin/apt-get").exists() {
            return self
                .summary
                .skip(&missing.join(", "), "not installed, and only root with apt-get can install it here");
        }
        println!("   installing them with apt-get; set NO_INSTALL=1 to do without");
        let mut command = Command::new("sh");
        let script = format!(
            "apt-get update -qq && apt-get install -y -qq --no-install-recommends {}",
            missing.join(" ")
        );
        command.args(["-c", &format!("({script}) >/dev/null 2>&1")]).env("DEBIAN_FRONTEND", "noninteractive");
        if let Some(why) = run(&mut command, SHORT_LIMIT).failure {
            self.summary.skip(&missing.join(", "), &format!("apt-get could not install it ({why})"));
        }
    }

    /// The stages that only read the tree.
    fn checks(&mut self) {
        self.cargo_stage("fmt", &["fmt", "--all", "--check"]);
        self.cargo_stage(
            "Cargo.lock is up to date",
            &["metadata", "--locked", "--format-version", "1", "--quiet"],
        );
        self.check("tidy", |root| tidy::run(root, &[]));
        self.check("arch", arch::run);
    }

    /// One task that counts as one test.
    fn check(&mut self, name: &str, task: impl Fn(&Path) -> Outcome) {
        title(name);
        let failure = match task(self.root) {
            Ok(()) => None,
            Err(Stop::Findings(findings)) => {
                println!("{}", findings.join("\n"));
                Some(format!("{} finding(s)", findings.len()))
            }
            Err(Stop::Skipped(why)) => {
                println!("   skipped: {why}");
                return self.summary.skip(name, &why);
            }
            Err(Stop::Failed(why) | Stop::Usage(why)) => {
                println!("{why}");
                Some(why.lines().next().unwrap_or_default().to_string())
            }
        };
        self.summary.stage(name, failure);
    }

    /// Starts what only compiles.
    fn begin_beside(&self) -> Beside {
        let tools = self.root.join("target/tools");
        let deny = (!has_deny() && !tools.join("bin/cargo-deny").exists()).then(|| self.build_deny(&tools));
        let lints = has_component("clippy").then(|| {
            let mut command = Command::new(cargo());
            command.args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
            // A folder of its own: cargo lets one call at a time use one.
            command.env("CARGO_TARGET_DIR", target_folder(self.root).join("lints")).current_dir(self.root);
            command
        });
        let steps = [(Step::Deny, deny), (Step::Clippy, lints)];
        let (mut steps, mut commands): (Vec<_>, Vec<_>) =
            steps.into_iter().filter_map(|(step, command)| Some((step, command?))).unzip();
        // Why it cannot be compiled is said by its own stage.
        for command in python::compile_shipped(self.root).into_iter().flatten() {
            steps.push(Step::Wheel);
            commands.push(command);
        }
        Beside { steps, running: run_beside(commands, BUILD_LIMIT) }
    }

    /// Waits for what was started, and counts it.
    fn end_beside(&mut self, beside: Beside) {
        title("what was compiled beside the other stages");
        let ran = beside.running.join().unwrap_or_default();
        let ran: Vec<(Step, Ran)> = beside.steps.into_iter().zip(ran).collect();
        let of = |wanted| ran.iter().find(|(step, _)| *step == wanted).map(|(_, ran)| ran);
        self.deny(of(Step::Deny));
        match of(Step::Clippy) {
            Some(ran) => {
                title("clippy");
                print!("{}", ran.output);
                self.summary.stage("clippy", ran.failure.clone());
            }
            None => self.summary.skip("clippy", "this Rust has no such component"),
        }
    }

    /// Licences, banned crates and sources. Where cargo-deny is not installed it is built once, into target/tools.
    fn deny(&mut self, built: Option<&Ran>) {
        title("deny: licences, bans, sources");
        let tools = self.root.join("target/tools");
        let _ = std::fs::remove_dir_all(tools.join("build"));
        if let Some(why) = built.and_then(|built| built.failure.as_ref()) {
            print!("{}", built.map_or("", |built| &built.output));
            return self.summary.skip("deny", &format!("cargo-deny could not be installed ({why})"));
        }
        let own = tools.join("bin/cargo-deny");
        let mut command = Command::new(if has_deny() { PathBuf::from("cargo-deny") } else { own });
        command.args(["--log-level", "warn", "check", "bans", "licenses", "sources"]).current_dir(self.root);
        let failure = run(&mut command, SHORT_LIMIT).failure;
        self.summary.stage("deny", failure);
    }

    fn build_deny(&self, tools: &Path) -> Command {
        let mut install = Command::new(cargo());
        // Without optimisation and line tables: the build takes longer than all that it checks.
        let arguments =
            ["install", "--locked", "--debug", "--quiet", "cargo-deny", "--version", DENY_VERSION];
        install.args(arguments).arg("--root").arg(tools).env("CARGO_PROFILE_DEV_DEBUG", "false");
        install.env("CARGO_TARGET_DIR", tools.join("build")).current_dir(self.root);
        install
    }

    /// One call of cargo that counts as one test; true when it succeeded.
    fn cargo_stage(&mut self, name: &str, arguments: &[&str]) -> bool {
        title(name);
        if arguments[0] == "fmt" && !has_component("fmt") {
            println!("   skipped: this Rust has no {name}");
            self.summary.skip(name, "this Rust has no such component");
            return true;
        }
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(self.root);
        if arguments[0] == "metadata" {
            let quiet = command.stdout(std::process::Stdio::null()).status();
            let failure =
                quiet.map_or_else(|e| Some(e.to_string()), |s| (!s.success()).then(|| s.to_string()));
            self.summary.stage(name, failure.clone());
            return failure.is_none();
        }
        let failure = run(&mut command, BUILD_LIMIT).failure;
        self.summary.stage(name, failure.clone());
        failure.is_none()
    }

    fn tests(&mut self) {
        title("tests");
        let mut command = self.command(&cargo());
        command.args(of_product(test_build())).arg("--no-fail-fast").current_dir(self.root);
        self.test_binary("tests", command, TEST_LIMIT);
    }

    fn tests_of_the_lab(&mut self) {
        title("tests of the lab");
        self.built_tests("tests of the lab", "lab", &[]);
    }

    /// Those below a folder as they were built for the whole workspace: cargo called for a package alone would build
    /// dependencies again.
    fn built_tests(&mut self, name: &str, folder: &str, arguments: &[&str]) {
        let binaries = match privilege::binaries(self.root) {
            Ok(binaries) => binaries,
            Err(why) => return self.summary.fail(format!("{name}: {why}")),
        };
        for binary in binaries.iter().filter(|binary| binary.folder.starts_with(self.root.join(folder))) {
            let mut command = self.command(&binary.path.to_string_lossy());
            command.args(arguments);
            command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
            self.test_binary(name, command, TEST_LIMIT);
        }
    }

    fn tests_of_the_agent(&mut self) {
        title("tests of the agent");
        let mut command = self.command(&cargo());
        command.args(["test", "--release", "--package", "forebay-cluster", "--no-fail-fast"]);
        command.current_dir(self.root);
        self.test_binary("tests of the agent", command, TEST_LIMIT);
        // Those of the command that need the agent.
        let wanted = ["--ignored", "slurm::", "nodes::"];
        self.built_tests("tests of the command with the agent", "crates/cli", &wanted);
    }

    /// Runs a test binary, or cargo with several, and counts what it tested.
    pub fn test_binary(&mut self, name: &str, mut command: Command, limit: Duration) {
        self.environment(&mut command);
        self.clear_noted();
        let ran = run(&mut command, limit);
        let noted = self.noted();
        let before = self.summary.failed;
        self.summary.libtest(name, &ran.output, &noted);
        if let Some(why) = ran.failure.filter(|_| self.summary.failed == before) {
            self.summary.fail(format!("{name}: {why}"));
        }
    }

    /// Processes that are killed at any moment, round after round.
    fn torture(&mut self) {
        self.killed("forebay-space", "torture", "SPACE_TEST_ROUNDS", LONG_ROUNDS);
        self.killed("forebay-space", "cursors", "SPACE_TEST_KILLS", LONG_READER_KILLS);
        self.killed("forebay-checkpoint", "it", "CHECKPOINT_ROUNDS", LONG_CHECKPOINT_ROUNDS);
    }

    fn killed(&mut self, package: &str, test: &str, variable: &str, rounds: &str) {
        title(&format!("killed processes of {package}, test {test}, {variable}={rounds}"));
        let mut command = self.command(&cargo());
        command.args(["test", "--release", "-p", package, "--test", test, "--", "--nocapture"]);
        self.environment(command.current_dir(self.root));
        let failure = run(command.env(variable, rounds), LONG_ROUNDS_LIMIT).failure;
        self.summary.stage(&format!("killed processes of {package}, {test}, long"), failure);
    }

    /// A window of two tiles, touched by threads that come and go.
    fn soak(&mut self) {
        title("ten million faults of a window");
        let mut command = self.command(&cargo());
        command.args(["test", "--release", "-p", "forebay-pager", "--test", "window", "--", "--ignored"]);
        self.environment(command.current_dir(self.root));
        let failure = run(&mut command, LONG_ROUNDS_LIMIT).failure;
        self.summary.stage("faults of a window, long", failure);
    }

    /// The demo as `make demo` runs it; small.
    fn demo(&mut self) {
        title("demo");
        let mut command = self.command("make");
        command.args(["--no-print-directory", "demo"]).current_dir(self.root);
        command.args(["SMALL=1", "BUILT=1"]);
        self.environment(&mut command);
        // Spaces of its own, so that a demo that a user runs meanwhile is not in the way.
        let spaces = PathBuf::from(format!("/dev/shm/forebay-ci-{}", std::process::id()));
        let _ = std::fs::create_dir_all(&spaces);
        let ran = run(command.env("FOREBAY_DIR", &spaces), SHORT_LIMIT);
        // Only an empty folder goes: what the demo left in it is found by the last stage.
        let _ = std::fs::remove_dir(&spaces);
        let report = ran.output.lines().last().unwrap_or_default().trim().to_string();
        let size = std::fs::metadata(self.root.join(&report)).map_or(0, |m| m.len());
        let failure =
            ran.failure.or_else(|| (size == 0).then(|| format!("no report at its last line, `{report}`")));
        self.summary.stage("demo", failure);
    }

    /// Nothing may stay behind in shared memory or in the temporary folder.
    fn leftovers(&mut self, before: &[String]) {
        let mut left: Vec<String> =
            shared_memory().into_iter().filter(|path| !before.contains(path)).collect();
        let temporary = std::fs::read_dir(self.scratch.join("tmp")).into_iter().flatten().flatten();
        left.extend(temporary.map(|entry| entry.path().display().to_string()));
        let failure = (!left.is_empty()).then(|| left.join(", "));
        self.summary.stage("nothing left behind", failure);
    }

    /// A program that is started with default signals, whatever this one was started with.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("python3");
        command.arg(self.root.join("xtask/privilege/launch.py")).args(["--", program]);
        command
    }

    /// Environment of everything that is tested: own temporary folder, own list of skips, no settings of the caller.
    pub fn environment(&self, command: &mut Command) {
        let kept = ["FOREBAY_REFERENCE"];
        for (name, _) in
            std::env::vars().filter(|(n, _)| n.starts_with("FOREBAY_") && !kept.contains(&n.as_str()))
        {
            command.env_remove(name);
        }
        if self.extent == Extent::Long {
            command.env("PROPTEST_CASES", LONG_CASES);
        }
        // Everything was built before anything is tested.
        command.env("PROGRAMS", "built");
        command.env("TMPDIR", self.scratch.join("tmp")).env("FOREBAY_SKIPS", self.scratch.join("skips"));
    }

    /// Empties the file in which tests note that they skipped, and opens it to every user.
    pub fn clear_noted(&self) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.scratch.join("skips");
        let _ = std::fs::write(&path, "");
        let _ = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666));
    }

    /// What tests noted since.
    pub fn noted(&self) -> String {
        std::fs::read_to_string(self.scratch.join("skips")).unwrap_or_default()
    }
}

/// Whether the version of cargo-deny that is wanted is installed.
fn has_deny() -> bool {
    let installed = Command::new("cargo-deny").arg("--version").output();
    installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(DENY_VERSION))
}

/// Whether cargo has that component.
fn has_component(name: &str) -> bool {
    let version = Command::new(cargo()).args([name, "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}

pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// A folder that every user may write to.
fn open_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
}

/// Everything in shared memory; of the folders that hold a user's spaces, what is in them.
fn shared_memory() -> Vec<String> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let mut found = Vec::new();
    for path in list(Path::new("/dev/shm")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let user_folder = name.strip_prefix("forebay-").is_some_and(|rest| rest.parse::<u32>().is_ok());
        if user_folder {
            found.extend(list(&path));
        } else {
            found.push(path);
        }
    }
    found.into_iter().map(|path| path.display().to_string()).collect()
}
