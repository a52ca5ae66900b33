//! What an agent says of itself every second, in `NODE.status` of the job's folder.

use serde::{Deserialize, Serialize};

/// One agent as it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its node.
    pub node: String,
    /// Which agent of the node.
    pub incarnation: u64,
    /// `ready` or `ending`.
    pub state: String,
    /// Process id on its host.
    pub pid: u32,
    /// Nodes whose agents are not there.
    pub missing: Vec<String>,
    /// Spaces of other nodes that it copies.
    pub mirrors: Vec<MirrorStatus>,
    /// Spaces of its node that others copy.
    pub served: Vec<ServedStatus>,
    /// Bytes of payload that it has sent.
    pub bytes_sent: u64,
}

/// A copy of a space of another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MirrorStatus {
    /// Name of the space.
    pub space: String,
    /// Node of its writers.
    pub from: String,
    /// `copying`, `finished`, `failed`, `stopping` or `gone`.
    pub state: String,
    /// Versions that were copied.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A space that another node copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedStatus {
    /// Name of the space.
    pub space: String,
    /// The other node.
    pub to: String,
}
