//! What the directory of a space holds: which files are its own, and whether it is the directory of a space at all.
//!
//! Guarantees: [`check_own`] and [`is_of_a_space`] decide what `clean` may remove. A directory in which no file was
//! made by Forebay, or which holds other files too, is never removed.
//! [`explained`] says of an error of opening what it means for the space, and what to do next.
//! Not here: removing ([`crate::open::directory`]), lower pools and whether they belong to the space
//! ([`crate::place::tiers`]).

use forebay_tier::host::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_log::format::SUPERBLOCK_MAGIC;
use forebay_tier::{plain, Error, Kind, Result};

use crate::attributes::ATTRIBUTES_FILE;
use crate::control::cursors::CURSORS_FILE;
use crate::control::ownership::{self, LOCK_FILE};
use crate::control::shared_state::{CONTROL_FILE, MEMBERS_FILE};
use crate::control::CONTROL_MAGIC;
use crate::place::pool::POOL_FILE;
use crate::place::{emulated, tiers};

/// Files of a space. Of some there is a new one for a moment.
const OWN: [&str; 9] = [
    POOL_FILE,
    CONTROL_FILE,
    MEMBERS_FILE,
    LOCK_FILE,
    CURSORS_FILE,
    ATTRIBUTES_FILE,
    tiers::FILE,
    emulated::FILE,
    emulated::STATE_FILE,
];

/// Whether a file of this name may be one of a space: its name, or that of a new one on its way in.
fn is_own(name: &str) -> bool {
    let plain = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    let plain = plain.or_else(|| name.strip_suffix(".new")).unwrap_or(name);
    OWN.contains(&plain) || ownership::is_record(name)
}

/// Whether something that is no regular file has this path. A pool may be a device, or a link to one.
fn is_no_file(path: &Path) -> bool {
    let kind = fs::symlink_metadata(path).map(|meta| meta.file_type());
    let is_pool = path.file_name().is_some_and(|name| name == POOL_FILE);
    kind.is_ok_and(|kind| !kind.is_file() && !(is_pool && (kind.is_symlink() || kind.is_char_device())))
}

/// Fails where the directory holds anything that is not of a space: removing it would remove that, too.
///
/// # Errors
/// `NameInUse` with the names; `Io`.
pub(crate) fn check_own(dir: &Path) -> Result<()> {
    let failed = |e| Error::io(format!("listing {}", dir.display()), e);
    let mut foreign = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_own(&name) || is_no_file(&entry.path()) {
            foreign.push(name);
        }
    }
    if foreign.is_empty() {
        return Ok(());
    }
    foreign.sort();
    Err(Error::new(
        Kind::NameInUse,
        format!("{} contains files that do not belong to a space", dir.display()),
    )
    .with("files", foreign.join(", "))
    .hint("move them to another directory first"))
}

/// An error of opening the space in `dir`: a file of it that is not a regular file is damage, and damage has a hint.
pub(crate) fn explained(name: &str, dir: &Path, error: Error) -> Error {
    explained_by(name, dir, error, || OWN.iter().map(|file| dir.join(file)).find(|path| is_no_file(path)))
}

/// As [`explained`], of a directory in which `misplaced` finds what is not a regular file and should be one.
pub(crate) fn explained_by(
    name: &str,
    dir: &Path,
    error: Error,
    misplaced: impl FnOnce() -> Option<PathBuf>,
) -> Error {
    let error = match (error.kind() == Kind::Io).then(misplaced).flatten() {
        Some(path) => {
            let text = format!("{} is not a regular file", path.display());
            let hint = format!(
                "move it to another directory; then restore the file from a copy, or remove the space with its data: \
                 `forebay clean {name}`"
            );
            Error::new(Kind::Damaged, text).caused_by(error).hint(hint)
        }
        None => error,
    };
    match (error.kind(), error.hint_text()) {
        (Kind::Damaged, None) => error.hint(format!(
            "restore {} from a copy, or remove the space with its data: `forebay clean {name}`",
            dir.display()
        )),
        _ => error,
    }
}

/// Whether some file in the directory was made by Forebay: a pool, a control segment, a list of tiers or a lock file.
pub(crate) fn is_of_a_space(dir: &Path) -> bool {
    let begins_with = |name: &str, magic: u64| {
        let mut bytes = [0; 8];
        let file = plain::open_regular(&dir.join(name));
        file.is_ok_and(|mut file| file.read_exact(&mut bytes).is_ok() && u64::from_le_bytes(bytes) == magic)
    };
    begins_with(POOL_FILE, SUPERBLOCK_MAGIC)
        || begins_with(CONTROL_FILE, CONTROL_MAGIC)
        || tiers::is_in(dir)
        || ownership::is_in(dir)
}
