//! Memory cgroups above this process, versions 1 and 2, and what each still leaves.
//!
//! tmpfs pages count against the cgroup of the process that touches them first, so the smallest headroom on the way up
//! is the real size of `/dev/shm`, whatever the file system says.

use super::machine::Machine;
use forebay_probe::machine::Mount;

/// Limits above this are how version 1 says "none" (the largest multiple of a page below 2^63).
const UNLIMITED_FROM: u64 = 1 << 60;

/// A memory limit above this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Path in the hierarchy.
    pub path: String,
    /// Most bytes the group may use.
    pub limit: u64,
    /// Bytes it uses and could not free by dropping clean file pages.
    pub used: u64,
}

impl Group {
    /// Bytes that can still be taken before a process is killed.
    pub fn headroom(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Names of the files that differ between the two versions.
struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

const V1: Files =
    Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", inactive: "total_inactive_file" };
const V2: Files = Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file" };

/// Every limit above this process, the tightest first.
pub fn groups(machine: &Machine) -> Vec<Group> {
    let mounts = machine.mounts();
    let membership = machine.read("/proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, files) = if controllers.is_empty() {
            (mounts.iter().find(|m| m.kind == "cgroup2"), V2)
        } else if controllers.split(',').any(|c| c == "memory") {
            (mounts.iter().find(|m| m.kind == "cgroup" && m.has("memory")), V1)
        } else {
            continue;
        };
        if let Some(mount) = mount {
            climb(machine, mount, path, &files, &mut found);
        }
    }
    found.sort_by_key(Group::headroom);
    found
}

/// Reads the group and all its parents up to the mount.
fn climb(machine: &Machine, mount: &Mount, path: &str, files: &Files, found: &mut Vec<Group>) {
    // In a container the mount shows only the part of the hierarchy below its root.
    let inside = path.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or(path);
    let mut parts: Vec<&str> = inside.split('/').filter(|p| !p.is_empty() && *p != "..").collect();
    loop {
        let below = parts.iter().map(|p| format!("/{p}")).collect::<String>();
        if let Some(group) = group(machine, &format!("{}{below}", mount.point.display()), &below, files) {
            found.push(group);
        }
        if parts.pop().is_none() {
            break;
        }
    }
}

fn group(machine: &Machine, folder: &str, path: &str, files: &Files) -> Option<Group> {
    let limit = machine.number(&format!("{folder}/{}", files.limit)).filter(|&l| l < UNLIMITED_FROM)?;
    let usage = machine.number(&format!("{folder}/{}", files.usage))?;
    let stat = machine.read(&format!("{folder}/memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|l| l.strip_prefix(files.inactive)?.trim().parse::<u64>().ok());
    let path = if path.is_empty() { "/".to_string() } else { path.to_string() };
    Some(Group { path, limit, used: usage.saturating_sub(inactive.unwrap_or(0)) })
}
