//! Other programs of the workspace that the tests of a command start.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of another package, built in the profile of `own`, which it lies beside. Where the variable `PROGRAMS` is
/// `built`, as in `cargo xtask ci`, it is there already.
///
/// # Panics
/// Where it cannot be built, or is not there.
pub fn built(own: &Path, package: &str, name: &str) -> PathBuf {
    let folder = own.parent().expect("a program lies in a folder");
    let target = folder.parent().expect("a folder of a profile lies in the target folder");
    if std::env::var_os("PROGRAMS").is_none_or(|programs| programs != "built") {
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--package", package, "--bin", name, "--target-dir"]).arg(target);
        if folder.ends_with("release") {
            command.arg("--release");
        }
        let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
        assert!(status.success(), "cargo did not build {name} of {package}");
    }
    let program = folder.join(name);
    assert!(program.is_file(), "{} is not there", program.display());
    program
}
