//! Reading and replacing a small file as a whole.
//!
//! Guarantees: a process that opens the file sees the old content or the new one, never a part and never none; with
//! `durable` the new content also survives a crash of the operating system once the call has returned.
//! Not here: keeping two writers apart. Callers hold a lock, or no other process writes the file.

use forebay_tier::host::fs::{self, File};
use forebay_tier::{plain, Error, Result};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes `content` to a temporary file beside `path` and renames it there. Mode 0600.
///
/// # Errors
/// Those of the operating system; the old content is then untouched and the temporary file is gone.
pub(crate) fn replace(path: &Path, content: &[u8], durable: bool) -> Result<()> {
    let temporary = temporary_beside(path);
    let done = write_new(&temporary, &[content], durable)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| if durable { sync_directory_of(path) } else { Ok(()) });
    done.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io(format!("write {}", path.display()), e)
    })
}

/// Most bytes of a small file: far above what any of them holds.
const BYTES_MAX: u64 = 256 << 20;

/// The content of such a file. Does not block, and follows no link: what is not a regular file is an error.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    plain::read_regular(path, BYTES_MAX)
}

/// Writes a file of these parts, over an old one of that name; with `durable` its content is on the medium
/// then.
pub(crate) fn write_new(path: &Path, parts: &[&[u8]], durable: bool) -> std::io::Result<()> {
    let mut file: File = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    if durable {
        file.sync_data()?;
    }
    Ok(())
}

/// The name of the file that becomes `path`: hidden, and the same for every try, so that a crash leaves one
/// at most.
pub(crate) fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Makes the names in the directory of `path` persistent.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        replace(&path, b"old", false).unwrap();
        replace(&path, b"new", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let blocked = dir.path().join("missing/file");
        assert!(replace(&blocked, b"x", false).is_err());
        fs::create_dir(dir.path().join("taken")).unwrap();
        assert!(replace(&dir.path().join("taken"), b"x", false).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the temporary file is gone");
    }

    #[test]
    fn reads_regular_files_only_and_waits_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), b"text").unwrap();
        assert_eq!(read(&path("file")).unwrap(), b"text");
        assert!(std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", path("endless")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        for name in ["fifo", "endless", "directory"] {
            assert!(read(&path(name)).is_err(), "{name}");
        }
        assert_eq!(read(&path("missing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
}
