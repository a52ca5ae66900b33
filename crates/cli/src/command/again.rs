//! How this very command is started again: by the runner of workflows for its ranks and helpers, and in jobs.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

/// The words that start this very command again, when the caller knows them better than the kernel.
static SELF_COMMAND: OnceLock<Vec<OsString>> = OnceLock::new();

/// Notes how this command can be started again. The first call counts.
pub fn set_self_command(words: Vec<OsString>) {
    let _ = SELF_COMMAND.set(words);
}

/// How this command can be started again, if its caller has said so.
pub fn self_command() -> Option<&'static [OsString]> {
    SELF_COMMAND.get().map(Vec::as_slice)
}

/// How to start this command again inside an interpreter that carries it: by the script it was called by.
pub fn script_of_interpreter(program: Option<&OsString>) -> Option<Vec<OsString>> {
    let exe = std::env::current_exe().ok()?;
    let name = exe.file_name()?.to_str()?;
    let script = Path::new(program?);
    let interpreted = name.starts_with("python") || name.starts_with("pypy");
    (interpreted && script.is_absolute()).then(|| vec![script.as_os_str().to_owned()])
}
