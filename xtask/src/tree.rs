//! The files of the project, as text: what git tracks or would track, or every file when there is no git.
//!
//! Reading is all that happens here. Files that are not UTF-8 (pictures, fixtures) are left out.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One file of the project.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root of the project, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl File {
    /// What stands after the last dot of the name, or the empty string.
    pub fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(self.path.as_str(), |(_, name)| name)
    }

    /// The folder, or the empty string for a file in the root.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

/// The root of the project: the folder above this crate.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_path_buf()
}

/// Every text file of the project, sorted by path.
pub fn files(root: &Path) -> Vec<File> {
    let mut paths = tracked(root).unwrap_or_else(|| walked(root));
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(root.join(&path)).ok().map(|text| File { path, text }))
        .collect()
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text.split('\0').filter(|path| !path.is_empty()).map(str::to_string).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                let skipped = ["target", "out", "runs", "dist", "__pycache__"].iter().any(|s| name == *s);
                if !skipped && (name == ".cargo" || name == ".ci" || !name.to_string_lossy().starts_with('.'))
                {
                    folders.push(path);
                }
            } else if let Ok(relative) = path.strip_prefix(root) {
                found.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_itself_with_and_without_git() {
        let root = root();
        assert!(files(&root).iter().any(|f| f.path == "xtask/src/tree.rs" && f.extension() == "rs"));
        assert!(walked(&root).iter().any(|path| path == "xtask/src/tree.rs"));
        assert!(!walked(&root).iter().any(|path| path.starts_with("target/")));
    }
}
