//! Writes a commented workflow file to start from.
//!
//! Guarantees: never overwrites; what it writes is valid, and runs as it stands with nothing but a shell.
//! Not here: asking questions, guessing the user's programs.

use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_space::{Error, Kind, Result};

/// File name that `forebay init` and `forebay run` use when none is given.
pub const DEFAULT_FILE: &str = "workflow.toml";

/// The text that [`init`] writes.
pub const TEMPLATE: &str = include_str!("init.toml");

/// Writes the commented workflow file and returns its path. `path` may be a directory: then
/// [`DEFAULT_FILE`] inside it.
///
/// # Errors
/// [`Kind::Usage`] when the file exists; [`Kind::PermissionDenied`], [`Kind::Io`] from the file system.
pub fn init(path: &Path) -> Result<PathBuf> {
    let file = if path.is_dir() { path.join(DEFAULT_FILE) } else { path.to_path_buf() };
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&file);
    let mut out = made.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::new(Kind::Usage, format!("{} exists already", file.display()))
                .hint("give another name, or remove it first")
        }
        _ => Error::io(format!("writing {}", file.display()), e),
    })?;
    out.write_all(TEMPLATE.as_bytes()).map_err(|e| Error::io(format!("writing {}", file.display()), e))?;
    Ok(file)
}
