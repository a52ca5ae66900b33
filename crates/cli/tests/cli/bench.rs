//! The bench that tests stand on: a private root of spaces, a working directory, and a way to call the
//! command.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A root of spaces and a working directory that go away with the test.
pub struct Bench {
    root: TempDir,
    work: TempDir,
}

/// What a call of the command gave.
pub struct Outcome {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    said: String,
}

impl Bench {
    pub fn new() -> Bench {
        // Shared memory where there is some: that is where users have their spaces.
        let shm = Path::new("/dev/shm");
        let mut root = tempfile::Builder::new();
        root.prefix("forebay-test-");
        let root = if shm.is_dir() { root.tempdir_in(shm) } else { root.tempdir() };
        Bench { root: root.expect("a root of spaces"), work: TempDir::new().expect("a working directory") }
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn work(&self) -> &Path {
        self.work.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// The command with these words, in a clean environment.
    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(crate::forebay());
        clean_environment(&mut command);
        command.args(words).env("FOREBAY_DIR", self.root()).current_dir(self.work()).stdin(Stdio::null());
        // Where profiles are saved.
        command.env("XDG_DATA_HOME", self.work().join("data")).env("PATH", crate::path());
        command
    }

    pub fn call<S: AsRef<OsStr>>(&self, words: &[S]) -> Outcome {
        outcome(&mut self.command(words))
    }

    /// Calls the command with `--json`, wants this exit status, and reads the document.
    #[track_caller]
    pub fn json(&self, words: &[&str], status: i32) -> Value {
        let outcome = self.call(&[words, &["--json"]].concat());
        outcome.wants(status);
        outcome.document()
    }
}

/// Takes away what the developer's shell or an outer run says to Forebay.
pub fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "SHELL", "DISPLAY", "WAYLAND_DISPLAY"] {
        command.env_remove(name);
    }
}

pub fn outcome(command: &mut Command) -> Outcome {
    let said = format!("{command:?}");
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    Outcome { status: status.code(), stdout, stderr: String::from_utf8_lossy(&stderr).into_owned(), said }
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts the exit status; a failure shows everything.
    #[track_caller]
    pub fn wants(&self, status: i32) -> &Outcome {
        assert_eq!(self.status, Some(status), "{self}");
        self
    }

    /// Asserts that stderr holds a text.
    #[track_caller]
    pub fn complains(&self, text: &str) -> &Outcome {
        assert!(self.stderr.contains(text), "no `{text}` in stderr of {self}");
        self
    }

    /// Asserts that stdout holds a text.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Outcome {
        assert!(self.text().contains(text), "no `{text}` in stdout of {self}");
        self
    }

    /// Asserts that both streams are empty.
    #[track_caller]
    pub fn says_nothing(&self) -> &Outcome {
        assert_eq!((self.text().as_str(), self.stderr.as_str()), ("", ""), "{self}");
        self
    }

    /// The one document on stdout.
    #[track_caller]
    pub fn document(&self) -> Value {
        let value: Value =
            serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {self}"));
        assert!(value["schema"].is_string(), "no schema: {self}");
        value
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { status, stderr, said, .. } = self;
        write!(f, "{said}\nexit status {status:?}\n--- stdout\n{}\n--- stderr\n{stderr}\n---", self.text())
    }
}
