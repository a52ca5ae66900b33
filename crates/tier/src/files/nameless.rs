//! Memory of a tier without a name, for measuring and for scratch data: it is gone with its handle.
//!
//! Guarantees: free space is checked before a page is touched, and pages are there when it is handed out (not on
//! `file`, where they come with the first store, as with every region); however the process ends, also by SIGKILL, no
//! file is left. Where the file system knows no nameless files there is a name, for the moment of mapping only.
//!
//! Does not: appear to anybody else, or go past the page cache (`direct` has no memory to map). On `devdax` the memory
//! is the device itself, which keeps what was stored: the caller stays away from its first page.

use std::path::Path;

use super::region::{backing, making, Unnamed};
use crate::device::devdax;
use crate::device::mapped::Mapped;
use crate::device::pool::PoolFile;
use crate::{Access, Device, Error, Kind, Placement, Region, Result, TierKind};

/// Memory of a tier that no other process can find.
#[derive(Debug)]
pub struct Nameless {
    /// The memory, writable. Its path is the directory (or the device) that it lies on.
    pub region: Region,
    /// How the pages came to the memory nodes that the tier names; None on every other tier.
    pub placement: Option<Placement>,
}

/// Takes `bytes` of memory on `tier`, in directory `place` (on `devdax` the device, all of which is mapped).
///
/// Blocks while pages are allocated and faulted in (some 0.2 ms per MiB, more where the machine is virtual).
///
/// # Errors
/// `TierFull` (what limits, how much is wanted and free); `NotPossibleHere` when `place` is not on `tier` or the tier
/// cannot be mapped; `Usage` for no bytes; `PermissionDenied`; `Io`.
pub fn memory(tier: TierKind, place: &Path, bytes: u64) -> Result<Nameless> {
    if bytes == 0 {
        return Err(Error::new(Kind::Usage, "memory has at least one byte"));
    }
    if tier == TierKind::DevDax {
        return devdax::create(place, bytes).and_then(prepared);
    }
    let unnamed = Unnamed::make(&place.join("nameless"))?;
    let file = unnamed.file.try_clone().map_err(|e| making(place, e))?;
    file.set_len(bytes).map_err(|e| making(place, e))?;
    let pool = PoolFile { file, path: place.join("(nameless)"), capacity: bytes, access: Access::Write };
    backing(pool, tier).and_then(prepared)
}

fn prepared(mapped: Mapped) -> Result<Nameless> {
    mapped.prepare(0..mapped.capacity())?;
    let placement = mapped.placement();
    Ok(Nameless { region: Region::over(mapped), placement })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_its_bytes_and_no_name() {
        for (tier, on) in
            [(TierKind::Dram, "/dev/shm"), (TierKind::Numa(0), "/dev/shm"), (TierKind::File, "")]
        {
            let dir = match on {
                "" => tempfile::tempdir(),
                on => tempfile::tempdir_in(on),
            };
            let dir = dir.unwrap();
            let mut taken = memory(tier, dir.path(), 1 << 20).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{tier}");
            taken.region.as_mut_slice().unwrap().fill(3);
            taken.region.persist_all().unwrap();
            assert_eq!(taken.region.as_slice(), vec![3u8; 1 << 20]);
            assert_eq!(taken.placement.is_some(), tier == TierKind::Numa(0));
            assert_eq!(taken.region.tier(), tier);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(memory(TierKind::Dram, dir.path(), 0).unwrap_err().kind(), Kind::Usage);
        assert_eq!(memory(TierKind::Dram, dir.path(), 1 << 50).unwrap_err().kind(), Kind::TierFull);
        assert_eq!(memory(TierKind::Direct, dir.path(), 4096).unwrap_err().kind(), Kind::NotPossibleHere);
        assert_eq!(memory(TierKind::DevDax, dir.path(), 4096).unwrap_err().kind(), Kind::NotPossibleHere);
        assert_eq!(memory(TierKind::Numa(999), dir.path(), 4096).unwrap_err().kind(), Kind::NotPossibleHere);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
