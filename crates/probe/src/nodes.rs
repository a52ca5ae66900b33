//! Memory nodes, their processors and distances, and the caches: read from sysfs, named as hwloc names them.
//!
//! Guarantees: a kernel without nodes has one, with all processors. What a node is made of is said only where the
//! kernel lets one know: the device behind it (a DAX device handed to the kernel as memory), or its bandwidth as the
//! firmware tells it. A node without processors whose kind is unknown stays without a subtype.

use super::machine::{cache_size, numbers, Machine};
use forebay_profile::Locality;

const NODES: &str = "/sys/devices/system/node";
const CPUS: &str = "/sys/devices/system/cpu";

/// How much faster than the nodes with processors a node must be to be high-bandwidth memory: HBM2e has some four
/// times the bandwidth of the DDR5 beside it, the fastest mixed populations of DDR less than two.
const HBM_TIMES: u64 = 2;

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub number: u16,
    /// What it is made of, in hwloc's words: `DRAM`, `HBM`, `NVM`, `CXL-DRAM`.
    pub subtype: Option<&'static str>,
    /// Its processors; none for a node that is memory only.
    pub processors: Vec<usize>,
    /// Its memory.
    pub bytes: u64,
    /// Distance to each node, as the firmware tells it: 10 is the node itself.
    pub distances: Vec<(u16, u32)>,
}

impl Node {
    /// hwloc's name, with the operating system's number.
    pub fn name(&self) -> String {
        format!("NUMANode P#{}", self.number)
    }

    fn distance_to(&self, other: u16) -> u32 {
        let known = self.distances.iter().find(|(node, _)| *node == other);
        known.map_or(u32::MAX, |(_, distance)| *distance)
    }
}

/// A group of processors from which a tier is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Name of their memory node.
    pub node: String,
    /// The processors.
    pub processors: Vec<usize>,
    /// Whether they are beside the tier.
    pub locality: Locality,
}

/// Every node that has memory.
pub fn nodes(machine: &Machine) -> Vec<Node> {
    let online = ["has_memory", "online"].iter().find_map(|name| machine.read(&format!("{NODES}/{name}")));
    let Some(online) = online else { return vec![only_node(machine)] };
    let all: Vec<u16> = machine
        .read(&format!("{NODES}/online"))
        .map_or_else(Vec::new, |list| numbers(&list).into_iter().filter_map(|n| n.try_into().ok()).collect());
    let having = numbers(&online).into_iter().filter_map(|n| u16::try_from(n).ok());
    let mut nodes: Vec<Node> = having.map(|number| node(machine, number, &all)).collect();
    name_materials(machine, &mut nodes);
    nodes
}

fn only_node(machine: &Machine) -> Node {
    let online = machine.read(&format!("{CPUS}/online")).unwrap_or_else(|| "0".into());
    let total = machine.value("/proc/meminfo", "MemTotal").and_then(|text| kilobytes(&text));
    Node {
        number: 0,
        subtype: Some("DRAM"),
        processors: numbers(&online),
        bytes: total.unwrap_or(0),
        distances: vec![(0, 10)],
    }
}

fn node(machine: &Machine, number: u16, all: &[u16]) -> Node {
    let file = |name: &str| format!("{NODES}/node{number}/{name}");
    let distances = machine.read(&file("distance")).unwrap_or_default();
    let distances = distances.split_whitespace().filter_map(|d| d.parse().ok());
    let total = machine.value(&file("meminfo"), &format!("Node {number} MemTotal"));
    Node {
        number,
        subtype: None,
        processors: machine.read(&file("cpulist")).map_or_else(Vec::new, |list| numbers(&list)),
        bytes: total.and_then(|text| kilobytes(&text)).unwrap_or(0),
        // One distance for each node that is online, in order.
        distances: all.iter().copied().zip(distances).collect(),
    }
}

fn kilobytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Says what each node is made of, as far as it is known.
fn name_materials(machine: &Machine, nodes: &mut [Node]) {
    let devices = dax_nodes(machine);
    let bandwidth = |node: &Node| {
        let path = format!("{NODES}/node{}/access0/initiators/read_bandwidth", node.number);
        machine.number(&path).filter(|b| *b > 0)
    };
    let beside = nodes.iter().filter(|n| !n.processors.is_empty()).filter_map(bandwidth).max();
    for node in nodes {
        let device = devices.iter().find(|(number, _)| *number == node.number).map(|(_, material)| *material);
        let is_fast = bandwidth(node).zip(beside).is_some_and(|(own, theirs)| own >= HBM_TIMES * theirs);
        node.subtype = match (device, node.processors.is_empty()) {
            (Some(material), _) => Some(material),
            (None, true) => is_fast.then_some("HBM"),
            (None, false) => Some("DRAM"),
        };
    }
}

/// The node that the memory of each DAX device is or would be, and what the device says that it is.
fn dax_nodes(machine: &Machine) -> Vec<(u16, &'static str)> {
    const DEVICES: &str = "/sys/bus/dax/devices";
    let of = |name: String| {
        let node = machine.number(&format!("{DEVICES}/{name}/target_node"))?;
        let path = machine.resolved(&format!("{DEVICES}/{name}"))?;
        let has = |start: &str| path.iter().any(|part| part.to_string_lossy().starts_with(start));
        let material = match (has("ndbus"), has("cxl") || has("decoder") || has("ACPI0017")) {
            (true, _) => Some("NVM"),
            (_, true) => Some("CXL-DRAM"),
            _ => None,
        };
        Some((u16::try_from(node).ok()?, material?))
    };
    machine.names(DEVICES).into_iter().filter_map(of).collect()
}

/// From where the memory of a node is used: the nearest processors first. Those at the least distance are beside it.
pub fn seats(nodes: &[Node], of: &Node) -> Vec<Seat> {
    let mut with: Vec<&Node> = nodes.iter().filter(|n| !n.processors.is_empty()).collect();
    with.sort_by_key(|n| (of.distance_to(n.number), n.number));
    let least = with.first().map_or(0, |n| of.distance_to(n.number));
    with.into_iter()
        .map(|n| Seat {
            node: n.name(),
            processors: n.processors.clone(),
            locality: match of.distance_to(n.number) == least {
                true => Locality::Local,
                false => Locality::Remote,
            },
        })
        .collect()
}

/// What a guest's last-level cache is taken for at least: a hypervisor tells it a part, or anything, and the cache of
/// the host (some hundred MiB in all on large processors) works for a guest that is alone on it.
const GUEST_CACHE_BYTES_MIN: u64 = 256 << 20;

/// Bytes of last-level cache to be reckoned with: of all processors together, more in a guest. 0 where the kernel does
/// not say.
pub fn cache_to_exceed(machine: &Machine) -> u64 {
    let flags = machine.value("/proc/cpuinfo", "flags").unwrap_or_default();
    let told = last_level_cache(machine);
    match flags.split_whitespace().any(|flag| flag == "hypervisor") {
        true => told.max(GUEST_CACHE_BYTES_MIN),
        false => told,
    }
}

/// Bytes of last-level cache of all processors together, as the kernel says; 0 where it does not.
pub fn last_level_cache(machine: &Machine) -> u64 {
    let online = machine.read(&format!("{CPUS}/online")).map_or_else(Vec::new, |list| numbers(&list));
    let mut seen: Vec<String> = Vec::new();
    let mut total = 0;
    for cpu in online {
        let Some((bytes, shared_by)) = last_cache_of(machine, cpu) else { continue };
        if !seen.contains(&shared_by) {
            seen.push(shared_by);
            total += bytes;
        }
    }
    total
}

/// Size of the highest cache of a processor, and the list of those that share it.
fn last_cache_of(machine: &Machine, cpu: usize) -> Option<(u64, String)> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let indices = machine.names(&folder).into_iter().filter(|name| name.starts_with("index"));
    let caches = indices.filter_map(|index| {
        let file = |name: &str| machine.read(&format!("{folder}/{index}/{name}"));
        let bytes = cache_size(&file("size")?)?;
        let data = file("type").is_none_or(|kind| kind != "Instruction");
        // A cache of one processor is told from its neighbour's by who shares it.
        let shared = file("shared_cpu_list").unwrap_or_else(|| cpu.to_string());
        data.then_some((file("level")?.parse::<u32>().ok()?, bytes, format!("{index} {shared}")))
    });
    caches.max_by_key(|(level, ..)| *level).map(|(_, bytes, shared)| (bytes, shared))
}
