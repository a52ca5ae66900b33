//! Whether fio, which several benchmarks measure beside ours, is installed.

use std::process::{Command, Stdio};

/// fio's version, where it is installed.
pub fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
