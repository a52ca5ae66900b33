//! Files without a name, which get theirs when they are complete: no process ever sees them half made, and nothing is
//! left of them when their maker is killed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A nameless file, 0600, on the file system of `dir`. Unsupported on NFS, Lustre and FUSE (`EOPNOTSUPP`).
pub(crate) fn open_nameless(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(dir)
}

/// Names it. Fails with `EEXIST` when `path` exists, also as a symbolic link. Needs /proc.
pub(crate) fn link_nameless(file: &File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both texts end with NUL and outlive the call; the descriptor is open.
    let rc = unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
