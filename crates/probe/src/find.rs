//! Which tiers this node has, without root: memory nodes, DAX mounts and devices, main memory, and the file systems
//! that the user can write to.
//!
//! Guarantees: nothing is left anywhere (what only a try can tell is tried with files that have no name); every tier
//! says where it is used and how much free space it has; what was looked at and is no tier says why. Two directories on
//! one file system are one tier, the first one named. Does not measure.

use std::path::{Path, PathBuf};

use forebay_tier::{capacity, device, Result, TierKind};

use super::machine::{mount_of, Machine, Mount};
use super::nodes::{nodes, seats, Node, Seat};
use forebay_profile::PersistenceDomain;

/// Less free space is not worth measuring: a file of half of it would be in every cache.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Variables that name places where jobs may write, by the habits of sites and schedulers.
const SCRATCH_VARIABLES: &[&str] =
    &["SCRATCH", "PSCRATCH", "SCRATCHDIR", "LOCAL_SCRATCH", "JOBFS", "SLURM_TMPDIR", "PBS_JOBFS", "WORK"];

/// File systems across a network: one node's probe loads it for all users.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "orangefs",
    "fuse.sshfs",
];

/// A tier of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Name: its kind where there is one of it, else kind and place.
    pub name: String,
    /// What kind.
    pub kind: TierKind,
    /// Directory (or device) to use it in.
    pub place: PathBuf,
    /// The memory node that it is.
    pub node: Option<String>,
    /// What it is made of, in hwloc's words.
    pub material: Option<&'static str>,
    /// From where it is used: the nearest processors first.
    pub seats: Vec<Seat>,
    /// Type of the file system.
    pub file_system: Option<String>,
    /// The block device below: name and model.
    pub device: Option<Block>,
    /// From where on stores are safe.
    pub persistence: PersistenceDomain,
    /// All of it.
    pub capacity_bytes: Option<u64>,
    /// Free space for this user, and what limits it.
    pub free: capacity::Headroom,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// As in /proc/diskstats.
    pub name: String,
    /// As it calls itself.
    pub model: Option<String>,
    /// Whether it has to wait for a disk to turn. (Virtual devices often say so of flash.)
    pub rotational: bool,
}

impl Block {
    /// As hwloc names it.
    pub fn title(&self) -> String {
        match &self.model {
            Some(model) => format!("Block {} ({model})", self.name),
            None => format!("Block {}", self.name),
        }
    }
}

/// A place that is no tier of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The place.
    pub place: PathBuf,
    /// Why.
    pub reason: String,
}

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiers {
    /// The tiers, memory first.
    pub found: Vec<Found>,
    /// What was looked at and left.
    pub passed: Vec<Passed>,
    /// The memory nodes.
    pub nodes: Vec<Node>,
}

/// What only the running system can say.
pub trait Asks {
    /// Whether files can be made there.
    fn writable(&self, dir: &Path) -> bool;
    /// The kind of tier that a directory is on.
    fn kind(&self, dir: &Path) -> Result<TierKind>;
    /// Whether the page cache can be passed there.
    fn direct(&self, dir: &Path) -> bool;
    /// The free space there.
    fn free(&self, dir: &Path, kind: TierKind) -> Result<capacity::Headroom>;
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;
    /// The current directory.
    fn here(&self) -> Option<PathBuf>;
}

/// The running system.
pub struct Running;

impl Asks for Running {
    fn writable(&self, dir: &Path) -> bool {
        use rustix::fs::{access, Access};
        access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }
    fn kind(&self, dir: &Path) -> Result<TierKind> {
        device::detect(dir)
    }
    fn direct(&self, dir: &Path) -> bool {
        device::direct::is_possible(dir)
    }
    fn free(&self, dir: &Path, kind: TierKind) -> Result<capacity::Headroom> {
        capacity::headroom(dir, kind)
    }
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }
    fn here(&self) -> Option<PathBuf> {
        std::env::current_dir().ok()
    }
}

/// Finds every tier. `dirs` are looked at too, first, and also where they are across a network.
pub fn find(machine: &Machine, asks: &dyn Asks, dirs: &[PathBuf]) -> Tiers {
    let mounts = machine.mounts();
    let mut tiers = Tiers { nodes: nodes(machine), ..Tiers::default() };
    let memory = memory_dir(&mounts, asks);
    memory_tiers(&mut tiers, memory.as_deref(), asks);
    let mut seen: Vec<String> = Vec::new();
    for (dir, asked_for) in candidates(&mounts, asks, dirs) {
        let mount = mount_of(&mounts, &dir);
        let file_system = mount.map_or_else(String::new, |m| m.device.clone());
        // The same file system, whatever directory on it: what was asked for comes first and stands for it.
        if mount.is_some() && seen.contains(&file_system) {
            continue;
        }
        match on_directory(machine, asks, &tiers.nodes, &dir, mount, asked_for) {
            Ok(found) => {
                seen.push(file_system);
                tiers.found.extend(found);
            }
            Err(reason) => tiers.passed.push(Passed { place: dir, reason }),
        }
    }
    devices(machine, asks, &mut tiers);
    name_apart(&mut tiers.found);
    tiers
}

/// A tmpfs that may be written.
fn memory_dir(mounts: &[Mount], asks: &dyn Asks) -> Option<PathBuf> {
    let is_memory =
        |dir: &&Path| asks.writable(dir) && asks.kind(dir).is_ok_and(|kind| kind == TierKind::Dram);
    let shm = Path::new("/dev/shm");
    let others = mounts.iter().filter(|m| m.kind == "tmpfs").map(|m| m.point.as_path());
    std::iter::once(shm).chain(others).find(is_memory).map(Path::to_path_buf)
}

/// `dram`, and each memory node by itself where there are several.
fn memory_tiers(tiers: &mut Tiers, dir: Option<&Path>, asks: &dyn Asks) {
    let Some(dir) = dir else {
        let reason = "no tmpfs that may be written: main memory cannot be measured".to_string();
        tiers.passed.push(Passed { place: "/dev/shm".into(), reason });
        return;
    };
    let all: Vec<usize> = tiers.nodes.iter().flat_map(|n| n.processors.clone()).collect();
    let everywhere =
        Seat { node: String::new(), processors: all, locality: forebay_profile::Locality::Local };
    let tier = |kind, node: Option<&Node>, seats, bytes| {
        let free = asks.free(dir, kind).map_err(|e| e.message().to_string())?;
        if free.bytes < FREE_BYTES_MIN {
            return Err(too_little(&free));
        }
        Ok(Found {
            name: String::new(),
            kind,
            place: dir.to_path_buf(),
            node: node.map(Node::name),
            material: node.and_then(|n| n.subtype),
            seats,
            file_system: Some("tmpfs".into()),
            device: None,
            persistence: PersistenceDomain::None,
            capacity_bytes: Some(bytes),
            free,
        })
    };
    let total = tiers.nodes.iter().map(|n| n.bytes).sum();
    let only = (tiers.nodes.len() == 1).then(|| &tiers.nodes[0]);
    let mut made = vec![tier(TierKind::Dram, only, vec![everywhere], total)];
    if tiers.nodes.len() > 1 {
        made.extend(tiers.nodes.iter().map(|node| {
            tier(TierKind::Numa(node.number), Some(node), seats(&tiers.nodes, node), node.bytes)
        }));
    }
    for outcome in made {
        match outcome {
            Ok(found) => tiers.found.push(found),
            Err(reason) => tiers.passed.push(Passed { place: dir.to_path_buf(), reason }),
        }
    }
}

fn too_little(free: &capacity::Headroom) -> String {
    format!("only {} MiB free ({})", free.bytes >> 20, free.limited_by)
}

/// Directories to look at, and whether the user named them: those first, then DAX mounts, scratch, the current
/// directory, temporary files, home.
fn candidates(mounts: &[Mount], asks: &dyn Asks, dirs: &[PathBuf]) -> Vec<(PathBuf, bool)> {
    let mut list: Vec<(PathBuf, bool)> = dirs.iter().map(|dir| (dir.clone(), true)).collect();
    let mut add = |dir: Option<PathBuf>| list.extend(dir.map(|dir| (dir, false)));
    mounts.iter().filter(|m| m.is_dax()).for_each(|m| add(Some(m.point.clone())));
    SCRATCH_VARIABLES.iter().for_each(|name| add(asks.variable(name).map(PathBuf::from)));
    add(asks.variable("FOREBAY_DIR").map(PathBuf::from));
    add(asks.here());
    add(Some(asks.variable("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)));
    add(asks.variable("HOME").map(PathBuf::from));
    list
}

/// The tiers that a directory gives: `pmem`, or `file` and, where the cache can be passed, `direct`.
fn on_directory(
    machine: &Machine,
    asks: &dyn Asks,
    nodes: &[Node],
    dir: &Path,
    mount: Option<&Mount>,
    asked_for: bool,
) -> std::result::Result<Vec<Found>, String> {
    if mount.is_some_and(|m| NETWORK.contains(&m.kind.as_str())) && !asked_for {
        return Err("across a network, where the probe would load it for all users; --dir measures it".into());
    }
    if !asks.writable(dir) {
        return Err("not writable".into());
    }
    let kind = asks.kind(dir).map_err(|e| e.message().to_string())?;
    if kind == TierKind::Dram {
        return Err("main memory, which tier dram is".into());
    }
    let free = asks.free(dir, kind).map_err(|e| e.message().to_string())?;
    if free.bytes < FREE_BYTES_MIN {
        return Err(too_little(&free));
    }
    let device = mount.and_then(|m| block(machine, &m.device));
    let all: Vec<usize> = nodes.iter().flat_map(|n| n.processors.clone()).collect();
    let tier = |kind, persistence| Found {
        name: String::new(),
        kind,
        place: dir.to_path_buf(),
        node: None,
        material: (kind == TierKind::Pmem).then_some("NVM"),
        seats: seats_beside(machine, nodes, mount, &all),
        file_system: mount.map(|m| m.kind.clone()),
        device: device.clone(),
        persistence,
        capacity_bytes: None,
        free: free.clone(),
    };
    if kind == TierKind::Pmem {
        return Ok(vec![tier(kind, PersistenceDomain::MemoryController)]);
    }
    let mut found = vec![tier(TierKind::File, PersistenceDomain::Device)];
    if asks.direct(dir) {
        found.push(tier(TierKind::Direct, PersistenceDomain::Device));
    }
    Ok(found)
}

/// All processors together, unless sysfs knows which node a device hangs on.
fn seats_beside(machine: &Machine, nodes: &[Node], mount: Option<&Mount>, all: &[usize]) -> Vec<Seat> {
    let node = mount.and_then(|m| {
        let device = machine.resolved(&format!("/sys/dev/block/{}", m.device))?;
        device.ancestors().find_map(|dir| std::fs::read_to_string(dir.join("numa_node")).ok())
    });
    let number = node.and_then(|text| text.trim().parse::<u16>().ok());
    let beside = number.and_then(|number| nodes.iter().find(|n| n.number == number));
    match beside {
        Some(node) if nodes.len() > 1 => seats(nodes, node),
        _ => vec![Seat {
            node: String::new(),
            processors: all.to_vec(),
            locality: forebay_profile::Locality::Local,
        }],
    }
}

/// The block device of a file system; None where there is none (networks, overlays).
fn block(machine: &Machine, number: &str) -> Option<Block> {
    let own = machine.resolved(&format!("/sys/dev/block/{number}"))?;
    // A partition lies in the folder of its drive, which has the queue.
    let drive = own.ancestors().take(2).find(|dir| dir.join("queue").is_dir()).unwrap_or(&own);
    let text = |name: &str| {
        let text = std::fs::read_to_string(drive.join(name)).ok()?;
        Some(text.trim().to_string()).filter(|t| !t.is_empty())
    };
    Some(Block {
        name: drive.file_name()?.to_string_lossy().into_owned(),
        model: text("device/model"),
        rotational: text("queue/rotational").is_some_and(|r| r == "1"),
    })
}

/// DAX devices that this user may open. They are tiers only when asked for: measuring writes to them.
fn devices(machine: &Machine, asks: &dyn Asks, tiers: &mut Tiers) {
    for name in machine.names("/sys/bus/dax/devices") {
        let place = Path::new("/dev").join(&name);
        let reason = match asks.writable(&place) {
            _ if machine
                .number(&format!("/sys/bus/dax/devices/{name}/target_node"))
                .is_some_and(|node| tiers.nodes.iter().any(|n| u64::from(n.number) == node)) =>
            {
                "the kernel uses it as memory: the memory node is measured"
            }
            true => "a DAX device: measuring would overwrite it; --tier devdax:DEVICE does",
            false => "a DAX device that may not be written",
        };
        tiers.passed.push(Passed { place, reason: reason.into() });
    }
}

/// A name for each: its kind, with the place where there are several of a kind.
fn name_apart(found: &mut [Found]) {
    let kinds: Vec<TierKind> = found.iter().map(|f| f.kind).collect();
    for tier in found.iter_mut() {
        let same = kinds.iter().filter(|kind| **kind == tier.kind).count();
        tier.name = match same {
            1 => tier.kind.to_string(),
            _ => format!("{}:{}", tier.kind, tier.place.display()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{two_sockets_and_cxl, Told, TOLD};
    use forebay_profile::Locality;

    fn names(tiers: &Tiers) -> Vec<&str> {
        tiers.found.iter().map(|f| f.name.as_str()).collect()
    }

    #[test]
    fn the_tiers_of_a_large_node() {
        let dir = tempfile::tempdir().unwrap();
        let machine = two_sockets_and_cxl(dir.path());
        let tiers = find(&machine, &TOLD, &[]);
        // /tmp lies on the system drive, /scratch on its own; both are file systems, only one passes the cache.
        let wanted =
            ["dram", "numa:0", "numa:1", "numa:2", "pmem", "file:/scratch/me", "direct", "file:/tmp"];
        assert_eq!(names(&tiers), wanted);
        let cxl = &tiers.found[3];
        assert_eq!((cxl.material, cxl.seats.len()), (Some("CXL-DRAM"), 2));
        assert_eq!(cxl.seats[1].locality, Locality::Remote);
        assert_eq!(tiers.found[0].seats[0].processors.len(), 8);
        let direct = &tiers.found[6];
        assert_eq!(direct.device.as_ref().unwrap().title(), "Block nvme1n1 (INTEL SSDPE21K375GA)");
        assert_eq!(tiers.found[7].device.as_ref().unwrap().title(), "Block nvme0n1 (SMALL SYSTEM DRIVE)");
        let passed: Vec<(&str, bool)> =
            tiers.passed.iter().map(|p| (p.place.to_str().unwrap(), p.reason.contains("network"))).collect();
        assert_eq!(passed, [("/users/me", true), ("/dev/dax1.0", false)]);
        assert!(tiers.passed[1].reason.contains("kernel uses it as memory"));
    }

    #[test]
    fn what_is_asked_for_stands_for_its_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let machine = two_sockets_and_cxl(dir.path());
        let asked = ["/users/me/data", "/scratch/other", "/root-only", "/dev/shm"].map(PathBuf::from);
        let tiers = find(&machine, &TOLD, &asked);
        let places: Vec<&Path> =
            tiers.found.iter().filter(|f| f.kind == TierKind::File).map(|f| f.place.as_path()).collect();
        assert_eq!(places, ["/users/me/data", "/scratch/other", "/tmp"].map(Path::new));
        let reasons: Vec<&str> = tiers.passed.iter().map(|p| p.reason.as_str()).collect();
        assert!(reasons.contains(&"not writable") && reasons.contains(&"main memory, which tier dram is"));
    }

    #[test]
    fn a_full_directory_is_passed_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let machine = two_sockets_and_cxl(dir.path());
        let tiers = find(&machine, &Told { home: "/tmp", shm_free: 1 << 20 }, &[]);
        assert!(tiers.found.iter().all(|f| !f.kind.is_memory()));
        assert!(tiers.passed.iter().any(|p| p.reason == "only 1 MiB free (a limit)"), "{:?}", tiers.passed);
    }

    #[test]
    fn this_machine_has_memory_and_a_disk() {
        let tmp = tempfile::tempdir().unwrap();
        let tiers = find(&Machine::here(), &Running, &[tmp.path().to_path_buf()]);
        assert!(tiers.found.iter().any(|f| f.kind == TierKind::Dram), "{:?}", tiers.passed);
        assert!(tiers.found.iter().all(|f| !f.seats.is_empty() && !f.name.is_empty()));
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "nothing is left");
    }
}
