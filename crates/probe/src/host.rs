//! The node in a profile: what it is, and when the profile was taken.

use forebay_tier::clock;

use super::find::{Found, Tiers};
use super::machine::Machine;
use super::nodes::last_level_cache;
use crate::kernels::together;
use forebay_profile::{date, Citation, Host, MemoryNode, Quantity};

/// The node, from what the kernel says of it.
pub fn describe(machine: &Machine, tiers: &Tiers) -> Host {
    let processor =
        ["model name", "Model", "CPU part"].iter().find_map(|key| machine.value("/proc/cpuinfo", key));
    let total = machine.value("/proc/meminfo", "MemTotal");
    let memory =
        total.and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok()).map(|kb| kb << 10);
    let cores = tiers.nodes.iter().map(|n| n.processors.len() as u32).sum::<u32>();
    let sockets = sockets(machine);
    let cache = last_level_cache(machine);
    Host {
        name: machine.read("/proc/sys/kernel/hostname"),
        fingerprint: Some(fingerprint(processor.as_deref(), memory, tiers)),
        processor,
        sockets,
        cores: Some(cores).filter(|n| *n > 0),
        cores_usable: Some(together::processors().len() as u32),
        last_level_cache_bytes: Some(cache / u64::from(sockets.unwrap_or(1).max(1)))
            .filter(|bytes| *bytes > 0),
        memory_bytes: memory,
        kernel: machine.read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")),
        source: None,
    }
}

fn sockets(machine: &Machine) -> Option<u32> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let packages = machine.names(CPUS).into_iter().filter(|name| {
        name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    });
    let mut seen: Vec<u64> = packages
        .filter_map(|cpu| machine.number(&format!("{CPUS}/{cpu}/topology/physical_package_id")))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    u32::try_from(seen.len()).ok().filter(|n| *n > 0)
}

/// The hardware in words, shuffled into a number. Memory in GiB: firmware takes a different part at each boot.
fn fingerprint(processor: Option<&str>, memory: Option<u64>, tiers: &Tiers) -> String {
    let mut facts = vec![
        format!("processor {}", processor.unwrap_or("unknown")),
        format!("memory {} GiB", memory.unwrap_or(0).div_ceil(1 << 30)),
    ];
    let node = |n: &super::nodes::Node| {
        format!("{} {} processors {} GiB", n.name(), n.processors.len(), n.bytes.div_ceil(1 << 30))
    };
    facts.extend(tiers.nodes.iter().map(node));
    let drive = |f: &Found| f.device.as_ref().map(|d| d.title());
    facts.extend(tiers.found.iter().filter_map(drive));
    facts.dedup();
    Host::fingerprint_of(facts.iter().map(String::as_str))
}

/// The memory nodes, each as the profile writes it.
pub fn memory_nodes(tiers: &Tiers, source: &Citation) -> Vec<MemoryNode> {
    let one = |node: &super::nodes::Node| MemoryNode {
        name: node.name(),
        subtype: node.subtype.map(str::to_string),
        capacity: (node.bytes > 0).then(|| Quantity { bytes: node.bytes, source: source.clone() }),
        processors: (!node.processors.is_empty()).then(|| list(&node.processors)),
    };
    tiers.nodes.iter().map(one).collect()
}

/// `0-3,8` as the kernel writes it.
fn list(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let one = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Now, as a profile writes it: `2026-03-01T10:20:30Z`.
pub fn now() -> String {
    date::of_unix(clock::realtime_ns() / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::find;
    use crate::sample::{two_sockets_and_cxl, TOLD};

    #[test]
    fn the_node_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let machine = two_sockets_and_cxl(dir.path());
        let tiers = find(&machine, &TOLD, &[]);
        let host = describe(&machine, &tiers);
        assert_eq!(host.processor.as_deref(), Some("A Processor 9000"));
        assert_eq!((host.cores, host.memory_bytes), (Some(8), Some(256 << 30)));
        assert_eq!(host.kernel.as_deref(), Some("Linux 6.1.0-test"));
        let nodes = memory_nodes(&tiers, &Citation::of("probe"));
        assert_eq!(nodes[1].processors.as_deref(), Some("4-7"));
        assert_eq!((nodes[2].processors.as_deref(), nodes[2].subtype.as_deref()), (None, Some("CXL-DRAM")));
        let again = describe(&machine, &find(&machine, &TOLD, &[]));
        assert_eq!(host.fingerprint, again.fingerprint);
        assert_eq!(list(&[0, 1, 2, 7, 9, 10]), "0-2,7,9-10");
    }
}
