//! Memory nodes: which there are, binding a mapping to one, asking where pages lie, pinning a thread.
//!
//! The calls may be refused (containers refuse mbind): each says so by its error and changes nothing then. What a node
//! is good for, and what to do when a call is refused, is decided elsewhere.

use std::io;
use std::path::Path;

use super::Mapping;
use crate::counters;

/// Where the kernel describes its nodes.
pub(crate) const NODES_DIR: &str = "/sys/devices/system/node";

/// Words of a node mask: 1024 nodes, the most that a kernel is built for.
const MASK_WORDS: usize = 16;

/// Where the kernel is to take pages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Only from the nodes that are named.
    Bind,
    /// From the nodes that are named, in turn by the page's place in the file. Where one is full, from another.
    Interleave,
}

impl Policy {
    /// As linux/mempolicy.h numbers them.
    fn number(self) -> libc::c_int {
        match self {
            Policy::Bind => 2,
            Policy::Interleave => 3,
        }
    }
}

/// The nodes that have memory, by the directory [`NODES_DIR`] or one like it; a kernel without nodes has node 0.
pub(crate) fn nodes_with_memory(dir: &Path) -> Vec<u16> {
    let list = ["has_memory", "online"].iter().find_map(|name| std::fs::read_to_string(dir.join(name)).ok());
    list.map_or_else(
        || vec![0],
        |list| numbers(&list).into_iter().filter_map(|n| n.try_into().ok()).collect(),
    )
}

/// The processors of a node.
pub(crate) fn processors_of(dir: &Path, node: u16) -> Vec<usize> {
    let list = std::fs::read_to_string(dir.join(format!("node{node}/cpulist")));
    list.map_or_else(|_| Vec::new(), |list| numbers(&list))
}

/// The numbers of a list as the kernel writes it: "0-3,8".
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Tells the kernel from which nodes to take pages of the mapped file, no matter which process touches them first. For
/// a file on tmpfs this belongs to the file and holds for every process. Pages that are there already stay where they
/// are.
pub(crate) fn bind(mapping: &Mapping, policy: Policy, nodes: &[u16]) -> io::Result<()> {
    let mut mask = [0u64; MASK_WORDS];
    for node in nodes {
        let word = mask.get_mut(usize::from(*node) / 64);
        *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
    }
    let start = mapping.at(0, mapping.len());
    counters::add_syscall();
    // SAFETY: the range is the whole mapping (`at` asserts); the mask has as many bits as said, minus one
    // that the kernel counts off itself; no content changes.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.as_ptr(),
            mapping.len(),
            policy.number(),
            mask.as_ptr(),
            MASK_WORDS * 64 + 1,
            0,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The node of the page at each offset; None for a page that this process has not mapped.
pub(crate) fn nodes_of(mapping: &Mapping, offsets: &[u64]) -> io::Result<Vec<Option<u16>>> {
    let pages: Vec<*const libc::c_void> =
        offsets.iter().map(|at| mapping.at(*at, 1).as_ptr().cast_const().cast()).collect();
    let mut status = vec![0 as libc::c_int; pages.len()];
    counters::add_syscall();
    // SAFETY: both arrays have `pages.len()` entries and outlive the call; without target nodes it only asks.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.into_iter().map(|node| u16::try_from(node).ok()).collect())
}

/// Lets the calling thread run on these processors only (those of them that it may use at all).
pub(crate) fn pin_to(processors: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain integers, for which all-zero bytes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors.iter().filter(|p| **p < libc::CPU_SETSIZE as usize) {
        // SAFETY: below the size of the set.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    counters::add_syscall();
    // SAFETY: `set` outlives the call and has the size that is said; 0 is the calling thread.
    let rc = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("7\n"), [7]);
        assert_eq!(numbers("\n"), [0usize; 0]);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nodes_with_memory(dir.path()), [0], "a kernel without nodes");
        std::fs::write(dir.path().join("online"), "0-2\n").unwrap();
        assert_eq!(nodes_with_memory(dir.path()), [0, 1, 2]);
        std::fs::write(dir.path().join("has_memory"), "0,2\n").unwrap();
        assert_eq!(nodes_with_memory(dir.path()), [0, 2]);
        std::fs::create_dir(dir.path().join("node2")).unwrap();
        std::fs::write(dir.path().join("node2/cpulist"), "\n").unwrap();
        assert_eq!(processors_of(dir.path(), 2), [0usize; 0], "memory only");
        assert_eq!(processors_of(dir.path(), 3), [0usize; 0]);
    }
}
