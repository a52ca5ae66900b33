//! Removing a directory with what is in it.
//!
//! Guarantees: it is gone afterwards, also where other processes wrote into it meanwhile.
//! Not here: whether it may go, and what belongs to it elsewhere.

use forebay_tier::host::fs;
use forebay_tier::{Error, Result};
use std::path::Path;

/// How often the removal of a directory is tried into which other processes write.
const REMOVALS: u32 = 100;

/// Removes a directory with what is in it, also where processes that ask who is alive make their files anew meanwhile;
/// none is as good.
pub(crate) fn remove_all(directory: &Path) -> Result<()> {
    for tries in (0..REMOVALS).rev() {
        match fs::remove_dir_all(directory) {
            Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty && tries > 0 => {}
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("removing {}", directory.display()), e));
            }
            _ => break,
        }
    }
    Ok(())
}
