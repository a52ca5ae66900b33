//! A file to measure with, that no other process sees and that is gone with its handle.
//!
//! Guarantees: where the file system knows nameless files there never is a name, so that nothing is left whatever
//! ends the process; elsewhere the name is removed right after it was made. The load opens it through /proc/self/fd.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_tier::{process, Error, Result};
use rustix::fs::OFlags;

/// The file.
#[derive(Debug)]
pub struct Scratch {
    file: File,
}

impl Scratch {
    /// Makes one of no bytes in a directory.
    ///
    /// # Errors
    /// `PermissionDenied`, `Io`.
    pub fn make(dir: &Path) -> Result<Scratch> {
        let making = |e| Error::io(format!("cannot create a test file in {}", dir.display()), e);
        let nameless = options().custom_flags(OFlags::TMPFILE.bits() as i32).open(dir);
        match nameless {
            Ok(file) => return Ok(Scratch { file }),
            // What file systems say that have none.
            Err(e) if matches!(rustix::io::Errno::from_io_error(&e), Some(errno) if NONE_HERE.contains(&errno)) =>
                {}
            Err(e) => return Err(making(e)),
        }
        let path = dir.join(format!(".forebay-probe-{}", process::pid()));
        let file = options().create_new(true).open(&path).map_err(making)?;
        std::fs::remove_file(&path).map_err(making)?;
        Ok(Scratch { file })
    }

    /// How it is opened again.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Waits until everything is on the device, so that cached pages can be dropped.
    ///
    /// # Errors
    /// `Io`.
    pub fn settle(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io("cannot flush the test file", e))
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    /// Whether it holds nothing yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

const NONE_HERE: [rustix::io::Errno; 3] =
    [rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::ISDIR, rustix::io::Errno::INVAL];

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn it_has_no_name_and_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let again = options().open(scratch.path()).unwrap();
        again.write_all_at(b"seen", 0).unwrap();
        scratch.settle().unwrap();
        assert_eq!((scratch.len(), scratch.is_empty()), (4, false));
        assert!(Scratch::make(&dir.path().join("nowhere")).is_err());
    }
}
