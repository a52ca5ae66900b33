//! `pmem`: persistent memory, as a file on a DAX file system mapped with MAP_SYNC.
//!
//! Guarantees: what `persist` returned for survives a power failure. MAP_SYNC is the proof: the kernel grants
//! it only where stores reach the medium without its help, and makes file metadata durable before a page is
//! writable. Where it is refused, this tier is `NotPossibleHere`. With eADR (the platform flushes its caches
//! on power loss) cache lines need no write-back; fences stay.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::mapped::{Mapped, Traits};
use super::pool::PoolFile;
use crate::capacity::HugePages;
use crate::persist::{self, CopyPolicy};
use crate::sys::{MapOptions, Mapping};
use crate::{capacity, Access, Durability, Error, Kind, Result, TierKind};

/// See [`super::create`].
pub fn create(path: &Path, capacity: u64) -> Result<Mapped> {
    let pmem = PoolFile::create(path, capacity, |pool| on(pool, true))?;
    pmem.pool.sync_name()?;
    Ok(pmem)
}

/// See [`super::open`].
pub fn open(path: &Path, access: Access) -> Result<Mapped> {
    on(PoolFile::open(path, access)?, true)
}

/// Maps a pool; without `real` as an emulation: the same instructions, no promise.
pub(crate) fn on(pool: PoolFile, real: bool) -> Result<Mapped> {
    if real && persist::flush_instruction() == "none" {
        return Err(not_here(&pool.path).with("reason", "no instruction to write cache lines back"));
    }
    let path = pool.path.clone();
    let eadr = real && caches_are_persistent(&pool);
    let traits = Traits {
        kind: TierKind::Pmem,
        persisted: if real { Durability::Power } else { Durability::Process },
        policy: if eadr { CopyPolicy::PMEM_EADR } else { CopyPolicy::PMEM },
        write_back: !eadr,
        sync: real,
        huge: HugePages::Never,
        align: 0,
    };
    Mapped::new(pool, traits).map_err(|e| match is_refusal(&e) {
        true => not_here(&path).caused_by(e),
        false => Error::io(format!("cannot map {}", path.display()), e),
    })
}

/// The code path of persistent memory on any file system that can be mapped, for tests and emulation. It does
/// everything but promise: `durability` stays `Process`.
#[doc(hidden)]
pub fn create_emulated(path: &Path, capacity: u64) -> Result<Mapped> {
    PoolFile::create(path, capacity, |pool| on(pool, false))
}

/// Opens what [`create_emulated`] made.
#[doc(hidden)]
pub fn open_emulated(path: &Path, access: Access) -> Result<Mapped> {
    on(PoolFile::open(path, access)?, false)
}

#[cold]
fn not_here(path: &Path) -> Error {
    let dir = capacity::parent(path).display().to_string();
    Error::new(Kind::NotPossibleHere, format!("{dir} is not on persistent memory"))
        .with("tier", TierKind::Pmem)
        .hint(
            "it needs a file system mounted with -o dax on an fsdax namespace; use tier dram or file instead",
        )
}

/// What kernels and file systems say to MAP_SYNC where there is no DAX; EINVAL before 4.15.
fn is_refusal(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV))
}

/// Whether a nameless file in `dir` can be mapped with MAP_SYNC.
pub(super) fn trial(dir: &Path) -> bool {
    let len = crate::sys::page_bytes() as u64;
    let nameless =
        OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(dir);
    let Ok(file) = nameless else {
        return false;
    };
    let options = MapOptions { writable: true, sync: true, ..MapOptions::default() };
    file.set_len(len).is_ok() && Mapping::new(&file, len, options).is_ok()
}

/// Whether the platform says that its caches are inside the persistence domain (eADR) for the device under
/// the pool. No where it is unknown (stacked block devices, no such file), which costs only time.
fn caches_are_persistent(pool: &PoolFile) -> bool {
    let Ok(meta) = pool.file.metadata() else {
        return false;
    };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let Ok(device) = link.canonicalize() else {
        return false;
    };
    persistence_domain(&device).is_some_and(|domain| domain.trim() == "cpu_cache")
}

/// What the region above a block device says. The device lies below it:
/// …/ndbus0/region0/namespace0.0/block/pmem0.
pub(super) fn persistence_domain(device: &Path) -> Option<String> {
    device.ancestors().find_map(|dir| std::fs::read_to_string(dir.join("persistence_domain")).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_persistence_domain_is_that_of_the_region() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("ndbus0/region0/namespace0.0/block/pmem0/pmem0p1");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(persistence_domain(&device), None);
        std::fs::write(sys.path().join("ndbus0/region0/persistence_domain"), "cpu_cache\n").unwrap();
        assert_eq!(persistence_domain(&device).as_deref(), Some("cpu_cache\n"));
    }
}
