//! The profile: what the tiers of one node deliver, as a versioned file.
//!
//! Guarantees: a [`Profile`] that was read is whole: names are unique, every number has a source that the file
//! declares, every measured number has an error bar, points rise, quantiles do not fall. A key it does not know is
//! an error. What is written is read back unchanged.
//! Not here: measuring (`probe`), predicting (`model`). Nothing below this crate could measure.
//!
//! The file is TOML with `forebay_profile = 1` at its top (JSON of the same shape is read too). `docs/` has the list
//! of fields, [`schema::json_schema`] the machine-readable one.
//!
//! ```toml
//! forebay_profile = 1
//! name = "example"
//! date = "2026-03-01"
//!
//! [source.probe]
//! kind = "measured"
//! method = "forebay probe"
//! repetitions = 3
//! spread = "range"
//!
//! [[tier]]
//! name = "dram"
//! kind = "dram"
//!
//! [[tier.curve]]
//! when = { pattern = "sequential", reads_percent = 100, access = "copy", bytes = 1048576 }
//! over = "threads"
//! unit = "GB/s"
//! source = "probe"
//! points = [[1, 11.5, 0.2], [2, 19, 0.4]]
//! ```
#![forbid(unsafe_code)]

pub mod check;
pub mod compare;
mod conditions;
pub mod date;
mod estimate;
pub mod from_fio;
pub mod histogram;
mod host;
pub mod knee;
mod layout;
pub mod platforms;
mod read;
pub mod saved;
pub mod schema;
mod tier;
pub mod words;

use std::collections::BTreeMap;

use forebay_terms::{Horizon, TierKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conditions::{Access, Axis, Conditions, Load, Locality, Operation, Pattern, Unit};
pub use estimate::{Citation, Estimate, Point, Provenance, Quantity, Source, Spread};
pub use host::{Host, MemoryNode};
pub use knee::{Knee, TierKnee};
pub use tier::{Curve, Figure, Latency, PersistenceDomain, Sample, StatedKnee, Tier};

/// Version of the profile that this build writes and reads.
pub const FORMAT: u32 = 1;

/// What was measured, published or emulated of the tiers of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the format: 1.
    pub forebay_profile: u32,
    /// Name: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// One line that says what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// When it was measured or published: `2026-03-01T10:20:30Z`, or as much of it as is known.
    pub date: String,
    /// What a reader must know to use it well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The node.
    #[serde(default, skip_serializing_if = "Host::is_empty")]
    pub host: Host,
    /// Where numbers come from, by the key that they cite.
    #[serde(rename = "source")]
    pub sources: BTreeMap<String, Source>,
    /// The node's memory nodes.
    #[serde(rename = "memory_node", default, skip_serializing_if = "Vec::is_empty")]
    pub memory_nodes: Vec<MemoryNode>,
    /// The tiers, the fastest first.
    #[serde(rename = "tier", default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    /// The STREAM kernels with their arrays in tiers of choice.
    #[serde(rename = "stream", default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<Stream>,
}

/// One row of a STREAM table: bandwidth of the four kernels with the arrays that are read in one tier and the array
/// that is written in another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Name of the tier that holds the arrays that are read.
    pub read: String,
    /// Name of the tier that holds the array that is written.
    pub write: String,
    /// When stores are made persistent: `epoch` is once at the end, `write` after each operation.
    #[serde(default, skip_serializing_if = "conditions::is_none_horizon")]
    #[schemars(with = "conditions::HorizonWord")]
    pub horizon: Horizon,
    /// Threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Unit of the four numbers.
    pub unit: Unit,
    /// a = b
    pub copy: Estimate,
    /// a = s b
    pub scale: Estimate,
    /// a = b + c
    pub add: Estimate,
    /// a = b + s c
    pub triad: Estimate,
    /// Where the numbers come from.
    pub source: Citation,
    /// Why the numbers are not to be believed, if so.
    #[serde(rename = "doubt", default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
}

impl Profile {
    /// A profile with nothing in it yet.
    pub fn new(name: impl Into<String>, date: impl Into<String>) -> Profile {
        Profile {
            forebay_profile: FORMAT,
            name: name.into(),
            title: None,
            date: date.into(),
            notes: Vec::new(),
            host: Host::default(),
            sources: BTreeMap::new(),
            memory_nodes: Vec::new(),
            tiers: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// The tier of this name.
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.iter().find(|t| t.name == name)
    }

    /// The STREAM row with the arrays that are read and the one that is written on tiers of these kinds. Persistent
    /// memory is the same through a file system and as a device.
    pub fn stream(&self, read: TierKind, write: TierKind, horizon: Horizon) -> Option<&Stream> {
        let same = |kind: TierKind| if kind == TierKind::DevDax { TierKind::Pmem } else { kind };
        let on = |name: &str, kind| self.tier(name).is_some_and(|tier| same(tier.kind) == same(kind));
        self.streams.iter().find(|row| row.horizon == horizon && on(&row.read, read) && on(&row.write, write))
    }

    /// Where a number comes from; `None` only for a citation of another profile.
    pub fn source_of(&self, citation: &Citation) -> Option<&Source> {
        self.sources.get(&citation.key)
    }

    /// Whether a number is measured, published or emulated; `None` only for a citation of another profile.
    pub fn provenance(&self, citation: &Citation) -> Option<Provenance> {
        self.source_of(citation).map(|s| s.kind)
    }
}
