//! What a benchmark stands on: programs that cargo built, and a folder for its files that goes away with it.

use std::path::{Path, PathBuf};

use crate::packages::{build, target_folder};

/// See the file's head.
pub struct Ground {
    /// Where cargo puts what it builds for release.
    pub built: PathBuf,
    /// For files: in TMPDIR, else in target/.
    pub folder: PathBuf,
}

impl Ground {
    /// Builds the examples, and the targets that these words of `cargo build` name; `name` is that of the benchmark.
    ///
    /// # Errors
    /// What failed, in words.
    pub fn new(root: &Path, name: &str, targets: &[&str]) -> Result<Ground, String> {
        let built = build(root, targets)?;
        let above = std::env::var_os("TMPDIR").map_or_else(|| target_folder(root), PathBuf::from);
        let folder = above.join(format!("forebay-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Ground { built, folder })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
