//! The node that a profile describes, and its memory nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Citation, Quantity};

/// The node. Everything may be missing: publications rarely say all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// [`Host::fingerprint_of`] the hardware: a profile is of this node when it is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Processor, as the kernel or the publication names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Processor sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Cores of all sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Cores that the probe was allowed to use (affinity, control group).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_usable: Option<u32>,
    /// Bytes of the last-level cache of one socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_level_cache_bytes: Option<u64>,
    /// Main memory, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Kernel name and release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Where these facts come from, when not from the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Citation>,
}

/// One memory node, named as hwloc names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryNode {
    /// hwloc's name with the operating system's number: `NUMANode P#0`.
    pub name: String,
    /// hwloc's subtype: `DRAM`, `HBM`, `NVM`, `CXL-DRAM`, `SPM`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtype: Option<String>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Processors beside it, as a list: `0-23,48-71`; absent for a node without processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<String>,
}

impl Host {
    pub(super) fn is_empty(&self) -> bool {
        *self == Host::default()
    }

    /// A text that is the same as long as the hardware is: made from facts such as the processor, the sizes of memory
    /// nodes and the models of drives, in any order. Host name and kernel should not be among them.
    pub fn fingerprint_of<'a>(facts: impl IntoIterator<Item = &'a str>) -> String {
        let mut facts: Vec<&str> = facts.into_iter().collect();
        facts.sort_unstable();
        // FNV-1a, 64 bits: it tells nodes apart, it protects nothing. The zero byte keeps facts apart.
        let bytes = facts.iter().flat_map(|fact| fact.bytes().chain([0]));
        let hash =
            bytes.fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
        format!("{hash:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_of_the_facts_and_not_of_their_order() {
        let one = Host::fingerprint_of(["Xeon 8260M", "dram 192 GiB"]);
        assert_eq!(one, Host::fingerprint_of(["dram 192 GiB", "Xeon 8260M"]));
        assert_ne!(one, Host::fingerprint_of(["Xeon 8260Mdram 192 GiB"]));
        assert_eq!(one.len(), 16);
    }
}
