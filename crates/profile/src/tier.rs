//! One tier of a profile: capacity, curves, latencies, knees.

use forebay_terms::{Durability, TierKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Axis, Citation, Conditions, Estimate, Load, Operation, Point, Quantity, Unit};

/// A place where bytes live, and what it delivers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Name, unique in the profile: its kind where there is one of it, else the kind and the place:
    /// `dram`, `numa:1`, `direct:/scratch`.
    pub name: String,
    /// Kind: `dram`, `numa:N`, `pmem`, `devdax`, `file` or `direct`.
    #[schemars(with = "String")]
    pub kind: TierKind,
    /// One line that says what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Name of the memory node that it lies on or beside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<String>,
    /// Directory or device file where it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Model of the device, named as hwloc does: `Block nvme0n1 (INTEL SSDPE21K375GA)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Type of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// Its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Smallest access that wastes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Quantity>,
    /// From where on stores are safe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<PersistenceDomain>,
    /// What a write survives once it was made persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurabilityWord>")]
    pub survives: Option<Durability>,
    /// What a reader must know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Bandwidths and rates over concurrency, granularity or mix.
    #[serde(rename = "curve", default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// Highest bandwidths and rates that the source states by themselves, and with how many threads. Those of curves
    /// are not written down: they follow from the points.
    #[serde(rename = "knee", default, skip_serializing_if = "Vec::is_empty")]
    pub knees: Vec<StatedKnee>,
    /// Latencies, of persisting too.
    #[serde(rename = "latency", default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<Latency>,
    /// Other numbers that a source states.
    #[serde(rename = "figure", default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

/// From where on stores are safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PersistenceDomain {
    /// Nowhere: the bytes end with the power.
    None,
    /// Once they left the processor's caches (ADR).
    MemoryController,
    /// Once they are in the processor's caches (eADR).
    CpuCache,
    /// Once the device has acknowledged a flush.
    Device,
}

/// For the published schema only; the words of [`Durability`].
#[derive(JsonSchema)]
#[schemars(rename = "Durability", rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
enum DurabilityWord {
    /// The end of the writing process.
    Process,
    /// A crash of the operating system.
    Os,
    /// Loss of power.
    Power,
}

/// Bandwidths or rates along an axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// What is the same at every point.
    pub when: Conditions,
    /// What the points' x is.
    pub over: Axis,
    /// What the points' value is.
    pub unit: Unit,
    /// Where the numbers come from.
    pub source: Citation,
    /// Why the numbers are not to be believed, if so: a cache that answered, data that was compressed.
    #[serde(rename = "doubt", default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
    /// The points, by rising x.
    pub points: Vec<Point>,
}

/// A highest bandwidth or rate that a source states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatedKnee {
    /// The conditions; threads and depth are the fewest that reach it, where the source says so.
    pub when: Conditions,
    /// Unit of the number.
    pub unit: Unit,
    /// The highest value.
    pub highest: Estimate,
    /// Where the number comes from.
    pub source: Citation,
    /// What the source adds: `up to`, `around`, `specification`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Times of single operations, ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Of what.
    pub operation: Operation,
    /// What else went on.
    pub load: Load,
    /// The conditions.
    pub when: Conditions,
    /// Where the numbers come from.
    pub source: Citation,
    /// What the source adds, or how the operation was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why the numbers are not to be believed, if so.
    #[serde(rename = "doubt", default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
    /// Operations that were timed, in all repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<Estimate>,
    /// Standard deviation of single operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation_ns: Option<Estimate>,
    /// Median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<Estimate>,
    /// 90 % took no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_ns: Option<Estimate>,
    /// 99 % took no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<Estimate>,
    /// 99.9 % took no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<Estimate>,
    /// The longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    /// The sparse histogram: (longest time of a bucket in ns, operations in it), rising, without empty buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<(u64, u64)>,
}

/// A number that fits nowhere else, as the source states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The number.
    pub value: Estimate,
    /// Its unit; `x` for a factor.
    pub unit: String,
    /// Where it comes from.
    pub source: Citation,
}

/// One point of a curve with all its conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// All conditions, the axis of the curve among them.
    pub when: Conditions,
    /// The number, in `unit`.
    pub value: Estimate,
    /// Its unit.
    pub unit: Unit,
    /// Where it comes from.
    pub source: &'a Citation,
    /// Why it is not to be believed, if so.
    pub caveat: Option<&'a str>,
}

impl Tier {
    /// A tier of which nothing is known yet.
    pub fn new(name: impl Into<String>, kind: TierKind) -> Tier {
        Tier {
            name: name.into(),
            kind,
            title: None,
            memory_node: None,
            place: None,
            device: None,
            file_system: None,
            capacity: None,
            granularity: None,
            persistence: None,
            survives: None,
            notes: Vec::new(),
            curves: Vec::new(),
            knees: Vec::new(),
            latencies: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// Every point of every curve.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.curves.iter().flat_map(Curve::samples)
    }
}

impl Curve {
    /// Its points with all their conditions.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.points.iter().map(|point| Sample {
            when: self.when.at(self.over, point.x),
            value: point.y,
            unit: self.unit,
            source: &self.source,
            caveat: self.caveat.as_deref(),
        })
    }
}

impl Sample<'_> {
    /// Bytes per second; `None` for a rate of operations of unknown size.
    pub fn bandwidth(&self) -> Option<Estimate> {
        let factor = self.unit.bytes().or_else(|| self.when.bytes.map(|b| b as f64))?;
        Some(self.value.scaled(factor))
    }

    /// Operations per second; `None` for a bandwidth of operations of unknown size.
    pub fn rate(&self) -> Option<Estimate> {
        let Some(factor) = self.unit.bytes() else { return Some(self.value) };
        self.when.bytes.map(|bytes| self.value.scaled(factor / bytes as f64))
    }
}

impl Latency {
    /// A latency without numbers yet.
    pub fn new(operation: Operation, load: Load, when: Conditions, source: Citation) -> Latency {
        Latency {
            operation,
            load,
            when,
            source,
            note: None,
            caveat: None,
            samples: None,
            mean_ns: None,
            deviation_ns: None,
            p50_ns: None,
            p90_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns: None,
            histogram: Vec::new(),
        }
    }
}
