//! Whether a directory is this user's alone, so that no other user can replace what it holds.
//!
//! Guarantees: a directory of another user, or one that others may write to, is refused before anything in it is read
//! or written; so is a symbolic link that another user made where others may write. Not here: the directories above
//! it, and access control lists beyond the mode.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::host::fs;
use crate::{Error, Kind, Result};

/// Checks that a directory is this user's alone, if it is there: in a shared directory another user can be the first
/// to make one of this name, or a symbolic link. `what` says in the error what the directory is not used for, `hint`
/// what to do.
///
/// # Errors
/// [`Kind::PermissionDenied`]: it is another user's, or writable by others, or a symbolic link that another user made
/// where others may write. [`Kind::Io`] when it cannot be looked at.
pub fn check_own(dir: &Path, what: &str, hint: &str) -> Result<()> {
    let looking = |e| Error::io(format!("cannot stat {}", dir.display()), e);
    let meta = match fs::symlink_metadata(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(looking)?,
    };
    let meta = match meta.file_type().is_symlink() {
        false => meta,
        true => {
            let parent = dir.parent().map(fs::metadata).transpose().map_err(looking)?;
            let is_shared = parent.is_some_and(|parent| parent.mode() & 0o022 != 0);
            if is_shared && meta.uid() != 0 && meta.uid() != effective_uid()? {
                return Err(refused(dir, what, "it is a symbolic link of another user", &meta).hint(hint));
            }
            match fs::metadata(dir) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                target => target.map_err(looking)?,
            }
        }
    };
    match fault_of(&meta)? {
        Some(fault) if meta.is_dir() => Err(refused(dir, what, fault, &meta).hint(hint)),
        _ => Ok(()),
    }
}

/// Why what a directory holds may be another user's; None: it is this user's alone.
///
/// # Errors
/// Those of [`effective_uid`].
pub fn fault_of(meta: &fs::Metadata) -> Result<Option<&'static str>> {
    if meta.uid() != effective_uid()? {
        return Ok(Some("it belongs to another user"));
    }
    Ok((meta.mode() & 0o022 != 0).then_some("other users may write to it"))
}

/// The error for a directory that is not used, with its owner and mode.
pub fn refused(path: &Path, what: &str, fault: &str, meta: &fs::Metadata) -> Error {
    Error::new(Kind::PermissionDenied, format!("{} {what}: {fault}", path.display()))
        .with("owner", meta.uid())
        .with("mode", format!("{:o}", meta.mode() & 0o7777))
}

/// The uid that the files this process makes will have.
///
/// # Errors
/// [`Kind::Io`] when /proc is not there.
pub fn effective_uid() -> Result<u32> {
    let status = fs::read("/proc/self/status").map_err(|e| Error::io("read /proc/self/status", e))?;
    status
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"Uid:"))
        .and_then(|line| std::str::from_utf8(line).ok())
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|uid| uid.parse().ok())
        .ok_or_else(|| Error::new(Kind::Io, "/proc/self/status does not say the uid"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_also_behind_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (dir, link) = (root.path().join("dir"), root.path().join("link"));
        let kind = |path: &Path| check_own(path, "is not used", "chmod go-w it").err().map(|e| e.kind());
        assert_eq!(kind(&dir), None, "it is not there");
        fs::create_dir(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        for (mode, refused) in [(0o700, false), (0o755, false), (0o720, true), (0o702, true), (0o1777, true)]
        {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            for path in [&dir, &link] {
                let expected = refused.then_some(Kind::PermissionDenied);
                assert_eq!(kind(path), expected, "{} {mode:o}", path.display());
            }
        }
    }
}
