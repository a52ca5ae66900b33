//! How much free space a tier really has, and refusing what does not fit before a page is touched.
//!
//! A file system's own number is not enough for memory: tmpfs may say 23 GiB free inside a memory cgroup of
//! 64 MiB, and the kernel then kills. So for `dram` the smallest of these counts: free space of the file
//! system, MemAvailable, and the headroom of every memory cgroup above this process (v1 and v2, found through
//! /proc/self, not at fixed paths); for `numa:N` also what that node has left, for `numa:N+M` what the
//! fullest of its nodes has left, as often as there are nodes, because each gets as many pages. For
//! `file`, `direct` and `pmem` only the file system counts: page cache is reclaimed.
//!
//! The answer is a moment's: another program may take the space. Forebay's own processes take turns (a lock on
//! the pool's directory while they check and allocate).

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::sys;
use crate::{Error, Kind, Nodes, Result, TierKind};

/// Memory is never filled to the last byte: at least this much stays free at each limit ...
const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// ... and at least this part of the limit: page tables of the pool alone are 0.2 % of it.
const RESERVE_DIVISOR: u64 = 100;

/// The free space of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes that can still be allocated (a small reserve of memory is already taken off).
    pub bytes: u64,
    /// What sets the limit: "tmpfs /dev/shm", "MemAvailable", "memory cgroup /a/b".
    pub limited_by: String,
}

/// The space available to pools of `kind` in directory `dir`: the smallest of everything that limits it.
///
/// # Errors
/// `Io` or `PermissionDenied` when the directory cannot be asked. Unreadable cgroup files count as no limit.
pub fn headroom(dir: &Path, kind: TierKind) -> Result<Headroom> {
    if cfg!(forebay_simulated) {
        // The simulated machine has capacity for every pool; that it lacks some is a fault of `fallocate`.
        return Ok(Headroom { bytes: 1 << 40, limited_by: "the simulated machine".into() });
    }
    let limits = limits(dir, kind)?;
    let least = limits.into_iter().min_by_key(|limit| limit.bytes);
    Ok(least.unwrap_or(Headroom { bytes: u64::MAX, limited_by: "nothing known".into() }))
}

/// The memory available to this process itself: the smaller of what is available and what its memory cgroups leave.
pub fn memory() -> Headroom {
    let limits = mem_available().into_iter().chain(memory_cgroups());
    limits
        .min_by_key(|limit| limit.bytes)
        .unwrap_or(Headroom { bytes: u64::MAX, limited_by: "nothing known".into() })
}

/// Every limit that applies, the file system first.
pub fn limits(dir: &Path, kind: TierKind) -> Result<Vec<Headroom>> {
    let mut limits = Vec::new();
    if kind == TierKind::DevDax {
        // The pool is the device: nothing is allocated in any directory.
        return Ok(limits);
    }
    if let Some(bytes) = file_system_free(dir)? {
        limits.push(Headroom { bytes, limited_by: mount_name(dir) });
    }
    if kind.is_memory() {
        let nodes_dir = Path::new(sys::numa::NODES_DIR);
        match kind {
            TierKind::Numa(node) => limits.extend(node_free(nodes_dir, node)),
            TierKind::Interleaved(nodes) => limits.extend(nodes_free(nodes_dir, nodes)),
            _ => {}
        }
        limits.extend(mem_available());
        limits.extend(memory_cgroups());
    }
    Ok(limits)
}

/// `Kind::TierFull`, naming what limits, when `wanted` more bytes do not fit beside the pool `path`.
pub(crate) fn require(path: &Path, kind: TierKind, wanted: u64) -> Result<()> {
    let free = headroom(parent(path), kind)?;
    if wanted <= free.bytes {
        return Ok(());
    }
    Err(full(path, kind, wanted, &free))
}

/// The error for a full tier.
#[cold]
pub(crate) fn full(path: &Path, kind: TierKind, wanted: u64, free: &Headroom) -> Error {
    let hint = if free.limited_by.starts_with("memory node") {
        "free memory there, lower the quota, or name another node (numa:N)"
    } else if free.limited_by == "MemAvailable" {
        "free memory on this node, lower the quota, or put the space on another tier"
    } else if free.limited_by.starts_with("memory cgroup") {
        "ask the scheduler for more memory for this job, lower the quota, or put the space on tier file"
    } else {
        "free space (forebay clean removes unused spaces), lower the quota, or choose another directory"
    };
    Error::new(Kind::TierFull, format!("insufficient capacity on tier {kind} for {wanted} more bytes"))
        .with("limited_by", &free.limited_by)
        .with("wanted_bytes", wanted)
        .with("free_bytes", free.bytes)
        .with("pool", path.display())
        .hint(hint)
}

/// The directory in which a file lies, also for the path of a file without a name that this process has open
/// (`/proc/self/fd/N`).
pub fn folder_of(path: &Path) -> PathBuf {
    own_descriptor(path).unwrap_or_else(|| parent(path).to_path_buf())
}

/// The directory of the file behind `/proc/self/fd/N`: a file that this process has open, perhaps one without a name.
pub(crate) fn own_descriptor(path: &Path) -> Option<PathBuf> {
    let number = path.strip_prefix("/proc/self/fd").ok()?.to_str()?;
    number.parse::<u32>().ok()?;
    let target = std::fs::read_link(path).ok()?;
    target.parent().filter(|dir| dir.is_absolute()).map(Path::to_path_buf)
}

/// The directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn file_system_free(dir: &Path) -> Result<Option<u64>> {
    let asking = || format!("cannot ask for the free space of {}", dir.display());
    let handle = sys::open_path_only(dir).map_err(|e| Error::io(asking(), e))?;
    let file_system = sys::file_system(&handle).map_err(|e| Error::io(asking(), e))?;
    Ok(file_system.free_bytes)
}

fn after_reserve(free: u64, limit: u64) -> u64 {
    free.saturating_sub(RESERVE_BYTES_MIN.max(limit / RESERVE_DIVISOR))
}

fn mem_available() -> Option<Headroom> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = meminfo_bytes(&text, "MemAvailable:")?;
    let total = meminfo_bytes(&text, "MemTotal:").unwrap_or(available);
    Some(Headroom { bytes: after_reserve(available, total), limited_by: "MemAvailable".into() })
}

/// Free memory of a memory node: what is free there, and the page cache that the kernel gives up first.
fn node_free(nodes_dir: &Path, node: u16) -> Option<Headroom> {
    let text = std::fs::read_to_string(nodes_dir.join(format!("node{node}/meminfo"))).ok()?;
    // Each line begins with "Node N ", else it is as in /proc/meminfo.
    let prefix = format!("Node {node} ");
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&*prefix)?.strip_prefix(key));
        line?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let cache = ["Active(file):", "Inactive(file):", "SReclaimable:"]
        .iter()
        .filter_map(|key| bytes(key))
        .sum::<u64>();
    let total = bytes("MemTotal:")?;
    let free = after_reserve(bytes("MemFree:")?.saturating_add(cache), total);
    Some(Headroom { bytes: free, limited_by: format!("memory node {node}") })
}

/// Free memory of nodes that get the same number of pages each.
fn nodes_free(nodes_dir: &Path, nodes: Nodes) -> Option<Headroom> {
    let numbers = nodes.numbers();
    let least = numbers.iter().filter_map(|node| node_free(nodes_dir, *node)).map(|free| free.bytes).min()?;
    let bytes = least.saturating_mul(numbers.len() as u64);
    Some(Headroom { bytes, limited_by: format!("memory nodes {nodes}") })
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// One line of /proc/self/mountinfo, as far as we need it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// The directory of the file system that is mounted here.
    root: PathBuf,
    point: PathBuf,
    fs_type: String,
    super_options: String,
}

fn mounts() -> Vec<Mount> {
    std::fs::read_to_string("/proc/self/mountinfo").map_or_else(|_| Vec::new(), |text| parse_mounts(&text))
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount {
        root: unescape(left.next()?),
        point: unescape(left.next()?),
        fs_type: right.next()?.to_owned(),
        super_options: right.nth(1).unwrap_or("").to_owned(),
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match (first, digits.and_then(|d| u8::from_str_radix(d, 8).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// "tmpfs /dev/shm" for a directory on it.
fn mount_name(dir: &Path) -> String {
    match mount_of(dir) {
        Some(mount) => format!("{} {}", mount.fs_type, mount.point.display()),
        None => format!("file system of {}", dir.display()),
    }
}

/// The mount with the longest matching path, the last one mounted there.
fn mount_of(dir: &Path) -> Option<Mount> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let over = mounts().into_iter().filter(|mount| dir.starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.components().count())
}

/// When files of a tmpfs get huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePages {
    Never,
    /// In mappings that ask for them, when they fault (not when blocks are allocated).
    OnRequest,
    /// Whenever they fit.
    Always,
}

/// What the administrator set for the tmpfs that holds `dir`: the mount option `huge=`, unless the switch for
/// all shared memory is at "deny" or "force".
pub(crate) fn huge_pages(dir: &Path) -> HugePages {
    let switch = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let options = mount_of(dir).map_or_else(String::new, |mount| mount.super_options);
    huge_pages_by(&switch.unwrap_or_default(), &options)
}

fn huge_pages_by(switch: &str, mount_options: &str) -> HugePages {
    if switch.contains("[deny]") {
        return HugePages::Never;
    }
    if switch.contains("[force]") {
        return HugePages::Always;
    }
    match mount_options.split(',').find_map(|option| option.strip_prefix("huge=")) {
        Some("always" | "within_size") => HugePages::Always,
        Some("advise") => HugePages::OnRequest,
        _ => HugePages::Never,
    }
}

/// The directories that have a DAX mount option, for tests that need real persistent memory.
#[doc(hidden)]
pub fn dax_mounts() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dax =
        |line: &&str| line.split([' ', ',']).any(|word| matches!(word, "dax" | "dax=always" | "dax=inode"));
    text.lines().filter(dax).filter_map(parse_mount).map(|mount| mount.point).collect()
}

/// A memory cgroup of this process: its name and the directory of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    v2: bool,
    name: String,
    dir: PathBuf,
}

fn memory_cgroups() -> Vec<Headroom> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups_of(&mounts(), &membership);
    let mut found = Vec::new();
    for group in &groups {
        if !group.v2 && found.is_empty() && group != &groups[0] && !is_hierarchical(&group.dir) {
            // Old v1 trees may charge a child's memory to the child alone.
            continue;
        }
        let free = if group.v2 { v2_free(&group.dir) } else { v1_free(&group.dir) };
        if let Some(bytes) = free {
            found.push(Headroom { bytes, limited_by: format!("memory cgroup {}", group.name) });
        }
    }
    found
}

/// This process's memory cgroup and all above it that can be seen, per hierarchy from the inside out.
fn groups_of(mounts: &[Mount], membership: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let is_ours = |mount: &&Mount| match v2 {
            true => mount.fs_type == "cgroup2",
            false => mount.fs_type == "cgroup" && mount.super_options.split(',').any(|o| o == "memory"),
        };
        for mount in mounts.iter().filter(is_ours) {
            groups.extend(groups_under(mount, Path::new(path), v2));
        }
    }
    groups
}

/// The chain from `path` up to the root of one mount of the hierarchy.
fn groups_under(mount: &Mount, path: &Path, v2: bool) -> Vec<Group> {
    // A container may mount only a part of the hierarchy; a path outside that part (it then begins with /..)
    // cannot be seen, but the mounted root is still above us or is us.
    let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let hidden = inside.components().any(|c| matches!(c, std::path::Component::ParentDir));
    let inside = if hidden { Path::new("") } else { inside };
    let name = |part: &Path| Path::new("/").join(part).display().to_string();
    inside.ancestors().map(|part| Group { v2, name: name(part), dir: mount.point.join(part) }).collect()
}

fn is_hierarchical(dir: &Path) -> bool {
    read_number(dir, "memory.use_hierarchy") != Some(0)
}

/// Free memory of a v1 group. Page cache in it is reclaimed before the kernel kills, so it counts as free.
fn v1_free(dir: &Path) -> Option<u64> {
    let limit = read_number(dir, "memory.limit_in_bytes").filter(|limit| *limit < 1 << 60)?;
    let used = read_number(dir, "memory.usage_in_bytes")?;
    let cache = stat_sum(dir, &["total_inactive_file", "total_active_file"]);
    Some(after_reserve(limit.saturating_sub(used.saturating_sub(cache)), limit))
}

/// Free memory of a v2 group: up to `memory.high` the kernel does not throttle, up to `memory.max` it does not kill.
fn v2_free(dir: &Path) -> Option<u64> {
    let limits = [read_number(dir, "memory.max"), read_number(dir, "memory.high")];
    let limit = limits.into_iter().flatten().min()?;
    let used = read_number(dir, "memory.current")?;
    let cache = stat_sum(dir, &["inactive_file", "active_file", "slab_reclaimable"]);
    Some(after_reserve(limit.saturating_sub(used.saturating_sub(cache)), limit))
}

/// None when the file is missing, unreadable or says "max".
fn read_number(dir: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
}

fn stat_sum(dir: &Path, keys: &[&str]) -> u64 {
    let text = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let value = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        keys.contains(&key).then(|| value.trim().parse::<u64>().ok())?
    };
    text.lines().filter_map(value).sum()
}

/// Holds the right to check and allocate in a directory. Without it (a peer is stopped, or the directory
/// cannot be opened) we go on after a while: the check is then only as good as the moment.
pub(crate) struct Turn {
    _directory: Option<File>,
}

/// How long to wait for a peer that is allocating: faulting in a large segment takes well below a second.
const TURN_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

impl Turn {
    pub(crate) fn take(path: &Path) -> Turn {
        let directory = File::open(parent(path)).ok();
        if let Some(directory) = directory.as_ref().filter(|_| !cfg!(forebay_simulated)) {
            let _ = sys::flock_exclusive(directory, TURN_PATIENCE);
        }
        Turn { _directory: directory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 /jobs /cg/with\\040space/memory rw,relatime shared:5 master:1 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn cgroups_are_found_through_their_mounts() {
        let mounts = parse_mounts(MOUNTINFO);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[2].point, Path::new("/cg/with space/memory"));
        let groups = groups_of(&mounts, "4:memory:/jobs/1/step\n3:cpu:/x\n0::/user.slice/a\n");
        let seen: Vec<(bool, &str, &Path)> = groups.iter().map(|g| (g.v2, &*g.name, &*g.dir)).collect();
        assert_eq!(
            seen,
            vec![
                (false, "/1/step", Path::new("/cg/with space/memory/1/step")),
                (false, "/1", Path::new("/cg/with space/memory/1")),
                (false, "/", Path::new("/cg/with space/memory/")),
                (true, "/user.slice/a", Path::new("/sys/fs/cgroup/unified/user.slice/a")),
                (true, "/user.slice", Path::new("/sys/fs/cgroup/unified/user.slice")),
                (true, "/", Path::new("/sys/fs/cgroup/unified/")),
            ]
        );
    }

    #[test]
    fn a_cgroup_outside_the_mount_counts_the_mounted_root() {
        let mounts = parse_mounts(MOUNTINFO);
        let groups = groups_of(&mounts, "0::/../../other\n");
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].dir, Path::new("/sys/fs/cgroup/unified/"));
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(v1_free(dir.path()), None);
        assert_eq!(v2_free(dir.path()), None);
        put("memory.limit_in_bytes", "9223372036854771712\n");
        put("memory.usage_in_bytes", "50331648\n");
        assert_eq!(v1_free(dir.path()), None, "unlimited");
        put("memory.limit_in_bytes", "134217728\n");
        put("memory.stat", "cache 9\ntotal_inactive_file 1048576\ntotal_active_file 1048576\n");
        assert_eq!(v1_free(dir.path()), Some(128 - 48 + 2 - 16).map(|m: u64| m << 20));
        put("memory.max", "max\n");
        put("memory.high", "max\n");
        put("memory.current", "50331648\n");
        assert_eq!(v2_free(dir.path()), None, "unlimited");
        put("memory.high", "100663296\n");
        put("memory.stat", "inactive_file 1048576\nactive_file 0\nslab_reclaimable 1048576\n");
        assert_eq!(v2_free(dir.path()), Some(96 - 48 + 2 - 16).map(|m: u64| m << 20));
        put("memory.current", "99999999999\n");
        assert_eq!(v2_free(dir.path()), Some(0), "over the limit");
    }

    #[test]
    fn a_memory_node_has_its_own_limit() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(node_free(dir.path(), 3), None);
        std::fs::create_dir(dir.path().join("node3")).unwrap();
        let text = "Node 3 MemTotal:  1048576 kB\nNode 3 MemFree: 524288 kB\nNode 3 Active(file):  1024 kB\n\
                    Node 3 Inactive(file): 1024 kB\nNode 3 KReclaimable: 7 kB\nNode 3 SReclaimable: 2048 kB\n";
        std::fs::write(dir.path().join("node3/meminfo"), text).unwrap();
        let free = node_free(dir.path(), 3).unwrap();
        assert_eq!(free.bytes, (512 + 4 - 16) << 20);
        assert_eq!(free.limited_by, "memory node 3");
        std::fs::create_dir(dir.path().join("node5")).unwrap();
        let fuller = text.replace("Node 3", "Node 5").replace("524288", "262144");
        std::fs::write(dir.path().join("node5/meminfo"), fuller).unwrap();
        let free = nodes_free(dir.path(), Nodes::of(&[3, 5]).unwrap()).unwrap();
        assert_eq!((free.bytes, &*free.limited_by), ((2 * (256 + 4 - 16)) << 20, "memory nodes 3+5"));
        let hint = full(dir.path(), TierKind::Numa(3), 1, &free).hint_text().unwrap().to_owned();
        assert!(hint.contains("numa:N"), "{hint}");
        let shm = limits(Path::new("/dev/shm"), TierKind::Numa(0)).unwrap();
        assert!(shm.iter().any(|l| l.limited_by == "MemAvailable"), "{shm:?}");
    }

    #[test]
    fn huge_pages_follow_the_mount_and_the_switch() {
        let normal = "always within_size advise [never] deny force";
        assert_eq!(huge_pages_by(normal, "rw,size=1k"), HugePages::Never);
        assert_eq!(huge_pages_by(normal, "rw,huge=advise"), HugePages::OnRequest);
        assert_eq!(huge_pages_by(normal, "rw,huge=within_size,size=1k"), HugePages::Always);
        assert_eq!(huge_pages_by("always never [deny] force", "rw,huge=always"), HugePages::Never);
        assert_eq!(huge_pages_by("always never deny [force]", "rw"), HugePages::Always);
        assert_eq!(huge_pages_by("", "rw"), HugePages::Never);
    }

    #[test]
    fn this_machine_has_limits() {
        let shm = limits(Path::new("/dev/shm"), TierKind::Dram).unwrap();
        assert!(shm.iter().any(|l| l.limited_by.starts_with("tmpfs /dev/shm")), "{shm:?}");
        assert!(shm.iter().any(|l| l.limited_by == "MemAvailable"), "{shm:?}");
        let least = headroom(Path::new("/dev/shm"), TierKind::Dram).unwrap();
        assert!(shm.iter().all(|l| l.bytes >= least.bytes || l.limited_by == "MemAvailable"));
        let file = limits(&std::env::temp_dir(), TierKind::File).unwrap();
        assert_eq!(file.len(), 1, "page cache is reclaimed, memory does not count: {file:?}");
        assert!(headroom(Path::new("/no/such/dir"), TierKind::File).is_err());
    }

    #[test]
    fn a_refusal_names_what_limits() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let error = require(&dir.path().join("p"), TierKind::Dram, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), Kind::TierFull);
        assert!(error.context().iter().any(|(key, _)| *key == "limited_by"));
        assert!(error.hint_text().is_some());
    }
}
