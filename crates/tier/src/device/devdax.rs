//! `devdax`: persistent or CXL memory as a character device (`/dev/dax0.0`), mapped without a file system.
//!
//! Guarantees: what `persist` returned for survives a power failure where sysfs says that the device lies on a
//! non-volatile region; on volatile memory (CXL, set aside by firmware) it survives processes only. Device DAX has no
//! page cache and no file metadata, so no MAP_SYNC is needed. The pool is the whole device and the path is the device
//! itself: nothing is made or removed. A device whose first page is not zero is not taken for a new pool.
//! Not here: a place for the files that stand beside a pool. A space needs a directory, so it is made on a file system.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::mapped::{Mapped, Traits};
use super::pool::{self, PoolFile};
use super::{pmem, Device};
use crate::capacity::HugePages;
use crate::persist::{self, CopyPolicy};
use crate::{Access, Durability, Error, Kind, Result, TierKind};

/// How much of a device must be zero for a new pool: where a pool says that it is one.
const FIRST_BYTES: u64 = 4096;

/// What sysfs says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Description {
    size_bytes: u64,
    /// Mappings begin and end at multiples of this.
    align_bytes: u64,
    /// Its region is non-volatile.
    persistent: bool,
    /// The platform flushes its caches on power loss (eADR).
    caches_persist: bool,
}

/// See [`super::create`]. `capacity` is the least that the device must hold; the pool has the device's size.
pub fn create(path: &Path, capacity: u64) -> Result<Mapped> {
    let (pool, described) = open_device(path, Access::Write)?;
    fresh(pool, described, capacity)
}

/// See [`super::open`].
pub fn open(path: &Path, access: Access) -> Result<Mapped> {
    let (pool, described) = open_device(path, access)?;
    on(pool, described)
}

fn fresh(pool: PoolFile, described: Description, capacity: u64) -> Result<Mapped> {
    if capacity == 0 {
        return Err(Error::new(Kind::Usage, "a pool has at least one byte"));
    }
    if capacity > pool.capacity {
        return Err(Error::new(Kind::TierFull, "the device is smaller than the pool")
            .with("device", pool.path.display())
            .with("wanted_bytes", capacity)
            .with("free_bytes", pool.capacity)
            .hint("lower the quota, or name a larger device"));
    }
    let device = on(pool, described)?;
    if device.bytes(0..FIRST_BYTES).iter().any(|byte| *byte != 0) {
        return Err(Error::new(Kind::Io, "the device is not empty (it may contain a pool)")
            .with("device", device.path().display())
            .hint("if the data are not needed, zero the first 4096 bytes and try again"));
    }
    Ok(device)
}

fn on(pool: PoolFile, described: Description) -> Result<Mapped> {
    let persistent = described.persistent && persist::flush_instruction() != "none";
    let eadr = persistent && described.caches_persist;
    let traits = Traits {
        kind: TierKind::DevDax,
        persisted: if persistent { Durability::Power } else { Durability::Process },
        policy: match (persistent, eadr) {
            (true, false) => CopyPolicy::PMEM,
            (true, true) => CopyPolicy::PMEM_EADR,
            (false, _) => CopyPolicy::DRAM,
        },
        write_back: persistent && !eadr,
        sync: false,
        huge: HugePages::Never,
        align: described.align_bytes as usize,
    };
    let path = pool.path.clone();
    Mapped::new(pool, traits).map_err(|e| Error::io(format!("cannot map {}", path.display()), e))
}

/// The open device and what sysfs says of it; any other file is refused before anything is read.
fn open_device(path: &Path, access: Access) -> Result<(PoolFile, Description)> {
    let meta = std::fs::symlink_metadata(path);
    let meta = meta.map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
    if !meta.file_type().is_char_device() {
        return Err(not_dax(path, "it is no character device"));
    }
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let described = describe(Path::new("/sys"), major, minor).map_err(|why| not_dax(path, &why))?;
    let file = pool::open_file(path, access)?;
    let now = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
    if now.rdev() != meta.rdev() || !now.file_type().is_char_device() {
        return Err(not_dax(path, "another file took its name"));
    }
    let capacity = described.size_bytes / described.align_bytes * described.align_bytes;
    Ok((PoolFile { file, path: path.to_owned(), capacity, access }, described))
}

#[cold]
fn not_dax(path: &Path, why: &str) -> Error {
    Error::new(Kind::NotPossibleHere, format!("{} is not a device-DAX device", path.display()))
        .with("tier", TierKind::DevDax)
        .with("reason", why)
        .hint("name a device as /dev/dax0.0 (ndctl list -D, daxctl list), or use another tier")
}

/// Reads what sysfs (mounted at `sys`) says of a character device; else why it is no device-DAX device.
fn describe(sys: &Path, major: u32, minor: u32) -> std::result::Result<Description, String> {
    let link = sys.join(format!("dev/char/{major}:{minor}"));
    let device = link.canonicalize().map_err(|_| "sysfs does not know it".to_string())?;
    let subsystem = device.join("subsystem").canonicalize().unwrap_or_default();
    if subsystem.file_name().is_none_or(|name| name != "dax") {
        return Err("its driver is another one".to_string());
    }
    // Kernels before 5.1 say the alignment only of the region.
    let align_bytes = number(&device.join("align")).or_else(|| region_file(&device, "dax_region/align"));
    let (Some(size_bytes), Some(align_bytes)) = (number(&device.join("size")), align_bytes) else {
        return Err("sysfs does not say its size and alignment".to_string());
    };
    if !align_bytes.is_power_of_two() || size_bytes < align_bytes {
        return Err(format!("sysfs says a size of {size_bytes} and an alignment of {align_bytes} bytes"));
    }
    let is_nvdimm = |part: &std::ffi::OsStr| part.to_string_lossy().starts_with("ndbus");
    let domain = pmem::persistence_domain(&device);
    Ok(Description {
        size_bytes,
        align_bytes,
        persistent: device.iter().any(is_nvdimm),
        caches_persist: domain.is_some_and(|domain| domain.trim() == "cpu_cache"),
    })
}

fn number(path: &PathBuf) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn region_file(device: &Path, name: &str) -> Option<u64> {
    device.ancestors().find_map(|dir| number(&dir.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Horizon;

    /// A tree as sysfs has it: char devices 250:1 (persistent), 250:2 (volatile), 1:3 (no DAX), 250:4 (no numbers).
    fn sysfs() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        let device = |number: &str, dir: &str, bus: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(at(dir)).unwrap();
            std::fs::create_dir_all(at(bus)).unwrap();
            std::os::unix::fs::symlink(at(bus), at(dir).join("subsystem")).unwrap();
            std::os::unix::fs::symlink(at(dir), at("dev/char").join(number)).unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(at(dir).join(name), text).unwrap());
        };
        std::fs::create_dir_all(at("dev/char")).unwrap();
        let sizes = [("size", "8388608\n"), ("align", "2097152\n")];
        device("250:1", "devices/ndbus0/region1/dax1.0/dax1.0", "bus/dax", &sizes);
        std::fs::write(at("devices/ndbus0/region1/persistence_domain"), "cpu_cache\n").unwrap();
        device("250:2", "devices/platform/hmem.0/dax2.0", "bus/dax", &sizes);
        device("1:3", "devices/virtual/mem/null", "class/mem", &sizes);
        device("250:4", "devices/platform/hmem.0/dax4.0", "bus/dax", &[("size", "8388608\n")]);
        device("250:5", "devices/ndbus0/region5/dax5.0/dax/dax5.0", "class/dax", &[("size", "4194304\n")]);
        std::fs::create_dir_all(at("devices/ndbus0/region5/dax5.0/dax_region")).unwrap();
        std::fs::write(at("devices/ndbus0/region5/dax5.0/dax_region/align"), "4096\n").unwrap();
        sys
    }

    #[test]
    fn sysfs_says_what_a_device_is() {
        let sys = sysfs();
        let pmem = describe(sys.path(), 250, 1).unwrap();
        let sized =
            Description { size_bytes: 8 << 20, align_bytes: 2 << 20, persistent: true, caches_persist: true };
        assert_eq!(pmem, sized);
        let volatile = describe(sys.path(), 250, 2).unwrap();
        assert_eq!((volatile.persistent, volatile.caches_persist), (false, false));
        assert_eq!(describe(sys.path(), 250, 5).unwrap().align_bytes, 4096, "as older kernels say it");
        for (major, minor, why) in [(1, 3, "driver"), (250, 4, "alignment"), (9, 9, "does not know")] {
            let said = describe(sys.path(), major, minor).unwrap_err();
            assert!(said.contains(why), "{major}:{minor}: {said}");
        }
    }

    #[test]
    fn other_files_are_refused_untouched() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"mine").unwrap();
        for path in [&*file, dir.path(), Path::new("/dev/null"), Path::new("/dev/zero")] {
            let error = create(path, 4096).unwrap_err();
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
            assert!(error.hint_text().is_some());
            let error = crate::open(TierKind::DevDax, path, Access::Read).err().expect("refused");
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
        assert!(open(&dir.path().join("none"), Access::Read).is_err());
    }

    /// The device's code on a file of memory, which takes the same mappings.
    fn emulated(dir: &Path, access: Access) -> (PoolFile, Description) {
        let path = dir.join("device");
        if !path.exists() {
            pool::create_file(&path, 8 << 20).unwrap();
        }
        let file = pool::open_file(&path, access).unwrap();
        let described = Description {
            size_bytes: 8 << 20,
            align_bytes: 4 << 20,
            persistent: true,
            caches_persist: false,
        };
        (PoolFile { file, path, capacity: 8 << 20, access }, described)
    }

    #[test]
    fn a_whole_device_is_the_pool_and_is_not_taken_twice() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let fresh = |capacity| {
            let (pool, described) = emulated(dir.path(), Access::Write);
            super::fresh(pool, described, capacity)
        };
        assert_eq!(fresh(0).unwrap_err().kind(), Kind::Usage);
        assert_eq!(fresh((8 << 20) + 1).unwrap_err().kind(), Kind::TierFull);
        let device = fresh(1 << 20).unwrap();
        // Without an instruction that writes lines back nothing more than the process can be promised.
        let flushes = crate::persist::flush_instruction() != "none";
        let durability = if flushes { Durability::Power } else { Durability::Process };
        assert_eq!((device.capacity(), device.durability(Horizon::Epoch)), (8 << 20, durability));
        assert_eq!(device.bytes(0..8).as_ptr() as usize % (4 << 20), 0, "mapped as the device asks");
        device.prepare(0..8 << 20).unwrap();
        let data: Vec<u8> = (0..100_000u32).map(|i| (i >> 3) as u8 | 1).collect();
        let mut crcs = Vec::new();
        device.write_checksummed(0, &data, 65_536, &mut crcs).unwrap();
        device.store_word(1 << 20, 77).unwrap();
        device.persist(0..1 << 20 | 8).unwrap();
        let (pool, described) = emulated(dir.path(), Access::Read);
        let reader = on(pool, described).unwrap();
        let mut out = vec![0; data.len()];
        reader.read(0, &mut out).unwrap();
        assert!(out == data && reader.bytes(0..100_000) == data && reader.load_word(1 << 20) == 77);
        assert_eq!(reader.read((8 << 20) - 1, &mut out).unwrap_err().kind(), Kind::Internal);
        assert_eq!(reader.write(0, b"x").unwrap_err().kind(), Kind::PermissionDenied);
        let error = fresh(1 << 20).unwrap_err();
        assert!(error.message().contains("is not empty"), "{error}");
        assert!(reader.bytes(0..100_000) == data, "a refused create changed the device");
    }
}
