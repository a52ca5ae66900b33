//! What a benchmark stands on: programs that cargo built, and a folder for its files that goes away with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::cargo;

/// See the file's head.
pub struct Ground {
    /// Where cargo puts what it builds for release.
    pub built: PathBuf,
    /// For files: in TMPDIR, else in target/.
    pub folder: PathBuf,
}

impl Ground {
    /// Builds what these words of `cargo build` say; `name` is that of the benchmark.
    ///
    /// # Errors
    /// What failed, in words.
    pub fn new(root: &Path, name: &str, words: &[&str]) -> Result<Ground, String> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let mut command = Command::new(cargo());
        command.args(["build", "--release", "--quiet"]).args(words).current_dir(root);
        if !command.status().map_err(|e| e.to_string())?.success() {
            return Err(format!("cargo did not build {}", words.join(" ")));
        }
        let above = std::env::var_os("TMPDIR").map_or_else(|| target.clone(), PathBuf::from);
        let folder = above.join(format!("forebay-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Ground { built: target.join("release"), folder })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
