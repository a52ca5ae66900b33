//! The first pool of a space, as a file: its superblock, whose it is, and whether it has another name.

use forebay_config::Retention;
use forebay_tier::host::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use forebay_log::format::{Superblock, HEADER_BYTES};
use forebay_tier::{process, Error, Kind, Result};

/// Name of the first pool of a space.
pub(crate) const POOL_FILE: &str = "pool";

/// The granule table has at most so many entries.
pub(crate) const GRANULES_MAX: u64 = 1 << 16;

/// A boot id or uuid in text as 16 bytes; zeros where it is not one.
pub(crate) fn uuid_bytes(text: &str) -> [u8; 16] {
    uuid::Uuid::parse_str(text.trim()).map_or([0; 16], |u| u.into_bytes())
}

/// Retention as the superblock stores it.
pub(crate) fn retention_code(retention: Retention) -> (u8, u64) {
    match retention {
        Retention::Released => (0, 0),
        Retention::Last(k) => (1, k),
        Retention::Forever => (2, 0),
    }
}

/// Retention as the superblock stores it, back.
pub(crate) fn retention_of(code: (u8, u64)) -> Retention {
    match code {
        (1, k) => Retention::Last(k),
        (2, _) => Retention::Forever,
        _ => Retention::Released,
    }
}

/// Reads and checks the first page of a pool.
pub(crate) fn read_superblock(file: &std::fs::File, path: &Path) -> Result<Superblock> {
    let mut page = vec![0; HEADER_BYTES as usize];
    let length = file.metadata().map_err(|e| Error::io("cannot stat the pool file", e))?.len();
    if length < HEADER_BYTES {
        return Err(
            Error::new(Kind::Damaged, "the pool is shorter than its superblock").with("pool", path.display())
        );
    }
    file.read_exact_at(&mut page, 0).map_err(|e| Error::io(format!("reading {}", path.display()), e))?;
    let superblock = Superblock::decode(&page).map_err(|e| e.with("pool", path.display()))?;
    if length < superblock.capacity_bytes {
        return Err(Error::new(Kind::Damaged, "the pool file was truncated")
            .with("pool", path.display())
            .with("bytes", length)
            .with("wanted", superblock.capacity_bytes));
    }
    Ok(superblock)
}

/// Everything that goes through the granules takes their number for small, as it is in every space that was made.
pub(crate) fn check_granules(superblock: &Superblock, pool: &Path) -> Result<()> {
    let granules = superblock.capacity_bytes / superblock.granule_bytes;
    if granules <= 2 * GRANULES_MAX {
        return Ok(());
    }
    Err(Error::new(Kind::Damaged, "the pools of the space have too many granules")
        .with("pool", pool.display())
        .with("granules", granules)
        .with("most", 2 * GRANULES_MAX))
}

/// A pool may be used by the kernel that made it, in whatever container, and after a reboot by the same host.
pub(crate) fn check_owner(superblock: &Superblock, dir: &Path) -> Result<()> {
    let same_boot = superblock.boot_id == uuid_bytes(process::boot_id());
    if same_boot || superblock.host == process::host_name() {
        return Ok(());
    }
    Err(Error::new(Kind::PoolOwnedElsewhere, "the pool belongs to another host")
        .with("pool", dir.display())
        .with("owner", &superblock.host)
        .with("here", process::host_name())
        .hint("a space can be used on one host only: open it there, or copy the data with `forebay cat`"))
}

/// Whether the pool in a directory has another name, as `cp -al` gives it one: the space stays under that name, with
/// its shared state and its lower pools.
pub(crate) fn has_other_name(dir: &Path) -> std::io::Result<bool> {
    match fs::metadata(dir.join(POOL_FILE)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        meta => Ok(meta?.nlink() > 1),
    }
}
