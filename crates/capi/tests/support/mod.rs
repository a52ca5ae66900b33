//! What the tests of the C ABI share: a folder that goes away, compilers, programs under a time limit, skips.
//!
//! A program that fails shows its folder, exit status and both streams. A missing tool is a skip, printed and
//! counted in the file named by FOREBAY_SKIPS, never a silent pass.

// Each test binary uses a part of this.
#![allow(dead_code)]

#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use skips::skipped as skip;

/// Far beyond what any of the programs needs; only a hang gets here.
const LIMIT: Duration = Duration::from_secs(120);

/// Warnings are errors in what users will copy.
pub const STRICT_C: [&str; 5] = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// The folder of this crate.
pub fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the examples of all languages.
pub fn examples() -> PathBuf {
    here().join("../../examples").canonicalize().expect("the examples are beside the crates")
}

/// The folder with libforebay.so as cargo built it for this test, wherever the target folder is.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    test.ancestors()
        .skip(1)
        .take(2)
        .find(|folder| folder.join("libforebay.so").is_file())
        .unwrap_or_else(|| panic!("no libforebay.so beside {} or above", test.display()))
        .to_owned()
}

/// True when the tool answers `--version`; else the test is skipped.
pub fn have(tool: &str, test: &str) -> bool {
    let answered = Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !answered {
        skip(test, &format!("there is no {tool}"));
    }
    answered
}

/// A temporary folder in memory with programs built into it; spaces go below it too.
pub struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    /// On tmpfs where there is one, so that spaces are on the tier that is the default.
    pub fn new() -> Workshop {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("forebay-capi-").tempdir_in(base);
        Workshop { folder: folder.expect("a temporary folder") }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles C against the header and the library of this build.
    pub fn cc(&self, source: &Path, program: &str, flags: &[&str]) {
        let mut command = self.command("cc");
        command.args(flags).arg("-I").arg(here().join("include")).arg(source);
        link(&mut command).arg("-o").arg(self.path(program));
        must(command);
    }

    /// Compiles the Fortran module and a program that uses it.
    pub fn fortran(&self, source: &Path, program: &str) {
        let mut command = self.command("gfortran");
        let modules = self.path(&format!("{program}.mod.d"));
        std::fs::create_dir_all(&modules).expect("a folder for module files");
        // Elements are compared with what was written bit for bit, so equality of reals is what is meant.
        command.args(["-std=f2018", "-Wall", "-Wextra", "-Werror", "-Wno-compare-reals", "-fcheck=all"]);
        command.arg("-J").arg(modules).arg(here().join("fortran/forebay.f90")).arg(source);
        link(&mut command).arg("-o").arg(self.path(program));
        must(command);
    }

    /// A program of this folder, not started yet.
    pub fn program<S: AsRef<OsStr>>(&self, program: &str, arguments: &[S]) -> Command {
        let mut command = self.command(self.path(program));
        command.args(arguments);
        command
    }

    /// A command with this folder as its own and as root of short names, and nothing of the caller's
    /// settings: FOREBAY_ variables that a program does not know are errors.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FOREBAY_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.folder.path()).env("FOREBAY_DIR", self.path("spaces"));
        // Cargo names its target folders here, and one may hold a library of an earlier build, which would
        // win over the path that was linked in.
        let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let others = std::env::split_paths(&search).filter(|folder| !folder.join("libforebay.so").exists());
        command.env("LD_LIBRARY_PATH", std::env::join_paths(others).expect("they were split from a path"));
        command
    }
}

fn link(command: &mut Command) -> &mut Command {
    let built = built();
    command.arg("-L").arg(&built).arg("-lforebay").arg(format!("-Wl,-rpath,{}", built.display()))
}

/// A program that was started; killed when the test ends before it does.
pub struct Running {
    child: Option<Child>,
    shown: String,
}

impl Running {
    /// Starts it with both streams caught.
    pub fn start(mut command: Command) -> Running {
        let shown = format!("{command:?}\n  in {:?}", command.get_current_dir());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running { child: Some(child.unwrap_or_else(|e| panic!("{shown}: {e}"))), shown }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits until the program has made this file.
    pub fn wait_for_file(&mut self, path: &Path) {
        let begin = Instant::now();
        while !path.exists() {
            let child = self.child.as_mut().expect("it was not waited for yet");
            if child.try_wait().expect("a child can be asked").is_some() || begin.elapsed() > LIMIT {
                let output = self.output();
                panic!("{} did not make {}:\n{}", self.shown, path.display(), streams(&output));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGKILL, and the corpse is buried.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("an own child can be killed");
            child.wait().expect("an own child can be waited for");
        }
    }

    /// Waits for its end.
    pub fn output(&mut self) -> Output {
        let mut child = self.child.take().expect("it was not waited for yet");
        let begin = Instant::now();
        // The outputs of these programs fit a pipe, so that they need not be read while waiting.
        while child.try_wait().expect("a child can be asked").is_none() {
            if begin.elapsed() > LIMIT {
                child.kill().expect("an own child can be killed");
                let output = child.wait_with_output().expect("an own child can be waited for");
                panic!("{} did not end in {LIMIT:?}:\n{}", self.shown, streams(&output));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait_with_output().expect("an own child can be waited for")
    }

    /// Waits for its end with this exit status and gives its standard output.
    pub fn ends_with(&mut self, status: i32) -> String {
        let output = self.output();
        assert_eq!(output.status.code(), Some(status), "{}\n{}", self.shown, streams(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs it to its end, which must be a success; gives its standard output.
pub fn must(command: Command) -> String {
    Running::start(command).ends_with(0)
}

/// Exit status and both streams, for a person.
pub fn streams(output: &Output) -> String {
    format!(
        "{}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
