//! A machine made by hand for tests: two sockets of four processors, a memory node each, a third node that is CXL
//! memory, persistent memory mounted with DAX, an NVMe drive under /scratch and a network file system at /users.

use std::path::{Path, PathBuf};

use forebay_tier::{capacity, Result, TierKind};

use super::find::Asks;
use super::machine::Machine;

/// Answers as the sample machine would.
pub struct Told {
    /// The home directory.
    pub home: &'static str,
    /// Free main memory.
    pub shm_free: u64,
}

impl Asks for Told {
    fn writable(&self, dir: &Path) -> bool {
        dir != Path::new("/root-only") && dir != Path::new("/dev/dax1.0")
    }
    fn kind(&self, dir: &Path) -> Result<TierKind> {
        Ok(match dir.to_str() {
            Some("/dev/shm" | "/run/user/1000") => TierKind::Dram,
            Some("/pmem0") => TierKind::Pmem,
            _ => TierKind::File,
        })
    }
    fn direct(&self, dir: &Path) -> bool {
        dir.starts_with("/scratch")
    }
    fn free(&self, _: &Path, kind: TierKind) -> Result<capacity::Headroom> {
        let bytes = if kind.is_memory() { self.shm_free } else { 1 << 40 };
        Ok(capacity::Headroom { bytes, limited_by: "a limit".into() })
    }
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "SCRATCH" => Some("/scratch/me".into()),
            "HOME" => Some(self.home.into()),
            _ => None,
        }
    }
    fn here(&self) -> Option<PathBuf> {
        Some("/scratch/me/run".into())
    }
}

/// A user with a home across the network and 8 GiB of memory.
pub const TOLD: Told = Told { home: "/users/me", shm_free: 8 << 30 };

const MOUNTS: &str = "\
24 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw
25 24 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=131072k
26 24 0:41 / /users rw,relatime - nfs4 server:/users rw,vers=4.2
27 24 259:4 / /scratch rw,noatime - xfs /dev/nvme1n1 rw
28 24 259:0 / /pmem0 rw,relatime - ext4 /dev/pmem0 rw,dax=always
29 24 0:50 / /run/user/1000 rw,nosuid - tmpfs tmpfs rw,size=1024k
";

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn link(root: &Path, from: &str, to: &str) {
    let from = root.join(from);
    std::fs::create_dir_all(from.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(to, from).unwrap();
}

/// The machine below `root`.
pub fn two_sockets_and_cxl(root: &Path) -> Machine {
    let nodes = "sys/devices/system/node";
    put(root, &format!("{nodes}/online"), "0-2\n");
    put(root, &format!("{nodes}/has_memory"), "0-2\n");
    let each = [("0-3", "10 21 14", 64), ("4-7", "21 10 24", 64), ("", "14 24 10", 128)];
    for (number, (cpus, distance, gib)) in each.into_iter().enumerate() {
        let node = format!("{nodes}/node{number}");
        put(root, &format!("{node}/cpulist"), &format!("{cpus}\n"));
        put(root, &format!("{node}/distance"), &format!("{distance}\n"));
        let total = format!("Node {number} MemTotal:       {} kB\nNode {number} MemFree: 1 kB\n", gib << 20);
        put(root, &format!("{node}/meminfo"), &total);
    }
    put(root, "sys/devices/system/cpu/online", "0-7\n");
    for cpu in 0..8 {
        let socket = if cpu < 4 { "0-3" } else { "4-7" };
        let caches = [
            ("0", "1", "Data", "48K", &*cpu.to_string()),
            ("1", "1", "Instruction", "64K", &*cpu.to_string()),
        ];
        for (index, level, kind, size, shared) in
            caches.into_iter().chain([("2", "3", "Unified", "24M", socket)])
        {
            let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
            let fields = [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)];
            fields
                .into_iter()
                .for_each(|(name, text)| put(root, &format!("{cache}/{name}"), &format!("{text}\n")));
        }
    }
    let cxl = "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax1.0";
    put(root, &format!("{cxl}/target_node"), "2\n");
    link(root, "sys/bus/dax/devices/dax1.0", &format!("../../../../{cxl}"));
    put(root, "proc/self/mountinfo", MOUNTS);
    put(root, "proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor 9000\n");
    put(root, "proc/meminfo", "MemTotal: 268435456 kB\n");
    put(root, "proc/sys/kernel/osrelease", "6.1.0-test\n");
    for (number, name, partition, model) in [
        ("259:2", "nvme0n1", Some("nvme0n1p2"), "SMALL SYSTEM DRIVE"),
        ("259:4", "nvme1n1", None, "INTEL SSDPE21K375GA"),
    ] {
        let device = format!("sys/devices/pci0000:00/nvme/{name}");
        put(root, &format!("{device}/device/model"), &format!("{model}   \n"));
        put(root, &format!("{device}/queue/rotational"), "0\n");
        let target = partition.map_or(device.clone(), |p| format!("{device}/{p}"));
        std::fs::create_dir_all(root.join(&target)).unwrap();
        link(root, &format!("sys/dev/block/{number}"), &format!("../../../{target}"));
    }
    machine(root)
}

fn machine(root: &Path) -> Machine {
    Machine::at(root)
}

#[test]
fn nodes_are_named_as_hwloc_names_them() {
    use super::nodes::{cache_to_exceed, last_level_cache, nodes, seats};
    use forebay_profile::Locality::{Local, Remote};
    let dir = tempfile::tempdir().unwrap();
    let machine = two_sockets_and_cxl(dir.path());
    let found = nodes(&machine);
    let seen: Vec<_> =
        found.iter().map(|n| (n.name(), n.subtype, n.processors.len(), n.bytes >> 30)).collect();
    let wanted = [("DRAM", 4, 64), ("DRAM", 4, 64), ("CXL-DRAM", 0, 128)];
    for (number, (node, (subtype, processors, gib))) in seen.iter().zip(wanted).enumerate() {
        assert_eq!(*node, (format!("NUMANode P#{number}"), Some(subtype), processors, gib));
    }
    let of_cxl: Vec<_> = seats(&found, &found[2]).into_iter().map(|s| (s.processors, s.locality)).collect();
    assert_eq!(of_cxl, [(vec![0, 1, 2, 3], Local), (vec![4, 5, 6, 7], Remote)]);
    let of_second: Vec<_> = seats(&found, &found[1]).into_iter().map(|s| (s.node, s.locality)).collect();
    assert_eq!(of_second, [("NUMANode P#1".into(), Local), ("NUMANode P#0".into(), Remote)]);
    assert_eq!(last_level_cache(&machine), 48 << 20, "one cache per socket");
    assert_eq!(cache_to_exceed(&machine), 48 << 20);
    put(dir.path(), "proc/cpuinfo", "flags\t\t: fpu hypervisor sse2\n");
    assert_eq!(cache_to_exceed(&machine), 256 << 20, "a guest does not know");
}

#[test]
fn fast_memory_without_processors_is_hbm_and_unknown_memory_stays_unknown() {
    use super::nodes::nodes;
    let dir = tempfile::tempdir().unwrap();
    let machine = two_sockets_and_cxl(dir.path());
    std::fs::remove_file(dir.path().join("sys/bus/dax/devices/dax1.0")).unwrap();
    assert_eq!(nodes(&machine)[2].subtype, None);
    for (node, bandwidth) in [(0, 200_000), (1, 200_000), (2, 390_000)] {
        let file = format!("sys/devices/system/node/node{node}/access0/initiators/read_bandwidth");
        put(dir.path(), &file, &format!("{bandwidth}\n"));
    }
    assert_eq!(nodes(&machine)[2].subtype, None);
    put(dir.path(), "sys/devices/system/node/node2/access0/initiators/read_bandwidth", "800000\n");
    assert_eq!(nodes(&machine)[2].subtype, Some("HBM"));
}

#[test]
fn a_kernel_without_nodes_has_one() {
    use super::nodes::{nodes, seats};
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "sys/devices/system/cpu/online", "0-1\n");
    put(dir.path(), "proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
    let found = nodes(&machine(dir.path()));
    assert_eq!((found.len(), found[0].bytes, &found[0].processors[..]), (1, 2 << 20, &[0, 1][..]));
    assert_eq!(seats(&found, &found[0]).len(), 1);
}
