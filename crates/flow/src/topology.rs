//! The processors that were granted, by the memory node that they are beside.
//!
//! Guarantees: only processors that this process may use are in it, never the machine's count: job managers and
//! containers grant a part. Memory nodes without granted processors are in it too, as places for a channel.
//! Not here: which component runs where (`seats`).

use forebay_probe::machine::{numbers, Machine};
use forebay_probe::nodes;
use forebay_profile::Profile;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, CpuSet};

use forebay_space::{Error, Result};

/// A memory node and its granted processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub number: u16,
    /// Processors that may be used, those of a core one after the other; none for a node that is memory only.
    pub cpus: Vec<usize>,
    /// Its memory, bytes; 0 where unknown.
    pub bytes: u64,
}

/// What a plan has to work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Nodes by rising number.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// This process's.
    ///
    /// # Errors
    /// `Io` when the kernel does not say which processors were granted.
    pub fn here() -> Result<Topology> {
        Ok(Topology::of(&Machine::here(), &granted()?))
    }

    /// A machine's, of which some processors were granted.
    pub fn of(machine: &Machine, granted: &[usize]) -> Topology {
        let all = nodes::nodes(machine).into_iter();
        let node = |node: nodes::Node| Node {
            number: node.number,
            cpus: node.processors.into_iter().filter(|cpu| granted.contains(cpu)).collect(),
            bytes: node.bytes,
        };
        let mut topology = Topology { nodes: all.map(node).collect() };
        let known: Vec<usize> = topology.nodes.iter().flat_map(|n| n.cpus.clone()).collect();
        let homeless = granted.iter().copied().filter(|cpu| !known.contains(cpu));
        // A kernel that hides its nodes still grants processors.
        if let Some(first) = topology.nodes.first_mut() {
            first.cpus.extend(homeless);
        }
        // By the first thread of their core: a rank has whole cores, where it can.
        let siblings =
            |cpu| machine.read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let core =
            |cpu: usize| siblings(cpu).and_then(|list| numbers(&list).into_iter().min()).unwrap_or(cpu);
        for node in &mut topology.nodes {
            node.cpus.sort_by_cached_key(|cpu| (core(*cpu), *cpu));
        }
        topology
    }

    /// The node that a profile describes; two memory nodes with processors where it says nothing of them, because that
    /// is what the machines of publications have.
    pub fn of_profile(profile: &Profile) -> Topology {
        let number = |name: &str| name.rsplit('#').next().and_then(|n| n.parse().ok());
        let node = |(index, node): (usize, &forebay_profile::MemoryNode)| Node {
            number: number(&node.name).unwrap_or(index as u16),
            cpus: node.processors.as_deref().map(numbers).unwrap_or_default(),
            bytes: 0,
        };
        let nodes: Vec<Node> = profile.memory_nodes.iter().enumerate().map(node).collect();
        if nodes.iter().any(|n| !n.cpus.is_empty()) {
            return Topology { nodes };
        }
        let node = |number: u16| Node { number, cpus: vec![number.into()], bytes: 0 };
        Topology { nodes: vec![node(0), node(1)] }
    }

    /// Nodes with granted processors.
    pub fn with_cpus(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.cpus.is_empty())
    }

    /// All granted processors, rising.
    pub fn cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<usize> = self.nodes.iter().flat_map(|node| node.cpus.clone()).collect();
        cpus.sort_unstable();
        cpus
    }
}

/// The processors that the calling thread may use, as the kernel says.
pub fn granted() -> Result<Vec<usize>> {
    affinity_of(None)
}

/// The processors that a process may use, as the kernel says.
pub fn affinity_of(process: Option<Pid>) -> Result<Vec<usize>> {
    let set =
        sched_getaffinity(process).map_err(|e| Error::io("asking for the granted processors", e.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Processors as the kernel writes them: `0-3,8`.
pub fn list(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let part = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_written() {
        for text in ["0", "0-3,8", "1,3,5-6", ""] {
            assert_eq!(list(&numbers(text)), text);
        }
    }

    #[test]
    fn only_granted_processors_count() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = dir.path().join("sys/devices/system/node").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("online", "0-2\n");
        put("has_memory", "0-2\n");
        put("node0/cpulist", "0-3\n");
        put("node1/cpulist", "4-7\n");
        put("node2/cpulist", "\n");
        let topology = Topology::of(&Machine::at(dir.path()), &[1, 2, 5]);
        let cpus: Vec<&[usize]> = topology.nodes.iter().map(|n| n.cpus.as_slice()).collect();
        assert_eq!(cpus, [&[1, 2][..], &[5], &[]]);
        assert_eq!((topology.with_cpus().count(), topology.cpus()), (2, vec![1, 2, 5]));
    }

    #[test]
    fn threads_of_a_core_are_together() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = dir.path().join("sys/devices/system").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("node/online", "0\n");
        put("node/has_memory", "0\n");
        put("node/node0/cpulist", "0-7\n");
        for cpu in 0..7 {
            let file = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            put(&file, &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        }
        let machine = Machine::at(dir.path());
        assert_eq!(Topology::of(&machine, &[0, 1, 2, 3, 4, 5, 6, 7]).nodes[0].cpus, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(
            Topology::of(&machine, &[1, 4, 5, 7]).nodes[0].cpus,
            [4, 1, 5, 7],
            "one is not granted, one unknown"
        );
    }

    #[test]
    fn this_process_was_granted_something() {
        let here = Topology::here().unwrap();
        assert_eq!(here.cpus(), granted().unwrap());
        assert!(!here.cpus().is_empty());
    }
}
