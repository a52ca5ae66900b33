//! `dram`: main memory, as a file on tmpfs that every process maps.
//!
//! Guarantees: what is written survives the writing process; after a successful `prepare`, stores into the
//! range neither fault on a full file system nor take memory that is not there. Does not survive a reboot.
//! Huge pages are asked for where the administrator allows them for this tmpfs, silently not otherwise.

use std::path::Path;

use super::mapped::{Mapped, Traits};
use super::pool::PoolFile;
use crate::persist::CopyPolicy;
use crate::{capacity, Access, Durability, Error, Kind, Result, TierKind};

/// See [`super::create`].
pub fn create(path: &Path, capacity: u64) -> Result<Mapped> {
    PoolFile::create(path, capacity, |pool| on(pool, TierKind::Dram))
}

/// See [`super::open`].
pub fn open(path: &Path, access: Access) -> Result<Mapped> {
    on(PoolFile::open(path, access)?, TierKind::Dram)
}

/// Maps a pool on tmpfs as `kind`; any other file system is `NotPossibleHere`.
pub(crate) fn on(pool: PoolFile, kind: TierKind) -> Result<Mapped> {
    let path = pool.path.clone();
    if !pool.on_tmpfs()? {
        let dir = capacity::parent(&path).display().to_string();
        return Err(Error::new(Kind::NotPossibleHere, format!("{dir} is not main memory"))
            .with("tier", kind)
            .hint("use a directory on tmpfs such as /dev/shm, or tier file"));
    }
    let traits = Traits {
        kind,
        persisted: Durability::Process,
        policy: CopyPolicy::DRAM,
        write_back: false,
        sync: false,
        huge: capacity::huge_pages(capacity::parent(&path)),
        align: 0,
    };
    Mapped::new(pool, traits).map_err(|e| Error::io(format!("cannot map {}", path.display()), e))
}
