//! Under which conditions a number holds: words for patterns, accesses, loads and units.

use std::fmt;

use forebay_terms::Horizon;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::estimate;

/// Under which conditions numbers were taken. What a source does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Beside the tier, or across a link.
    #[serde(default, skip_serializing_if = "is_local")]
    pub locality: Locality,
    /// The memory node whose processors made the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Sequential or random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// Share of reads in percent: 100 reads only, 0 writes only. Absent when that is what the curve runs over.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "estimate::whole_or_not")]
    pub reads_percent: Option<f64>,
    /// By which instructions or calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// File system or software in between, as the source names it: `xfs`, `NOVA`, `PMDK`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// Bytes of one operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Threads or processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Operations in flight per thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// So many more threads do the opposite meanwhile, from the other side of the link; they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<u32>,
    /// When stores were made persistent.
    #[serde(default, skip_serializing_if = "is_none_horizon")]
    #[schemars(with = "HorizonWord")]
    pub horizon: Horizon,
}

fn is_local(locality: &Locality) -> bool {
    *locality == Locality::Local
}

pub(super) fn is_none_horizon(horizon: &Horizon) -> bool {
    *horizon == Horizon::None
}

/// Where the processors are that made a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Locality {
    /// Beside the tier.
    #[default]
    Local,
    /// Across a link.
    Remote,
}

/// For the published schema only; the words of [`Horizon`].
#[derive(JsonSchema)]
#[schemars(rename = "Horizon", rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) enum HorizonWord {
    /// Never.
    None,
    /// Once per version, or once at the end.
    Epoch,
    /// With every store.
    Write,
}

/// Order of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// Anywhere.
    Random,
}

/// By which instructions or calls bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Loads.
    Load,
    /// Cached stores, never flushed.
    Store,
    /// Cached stores, each line written back (`clwb`).
    StoreFlush,
    /// Non-temporal stores.
    NtStore,
    /// Reads by loads, writes by non-temporal stores.
    LoadNtStore,
    /// Copies between the tier and memory of the program, by the device of the tier.
    Copy,
    /// Loads and stores through a mapping of a file.
    Mmap,
    /// System calls, one at a time per thread (`pread`, `pwrite`).
    Sync,
    /// `io_uring`.
    IoUring,
    /// Requests handed to helper threads.
    Threads,
    /// Linux asynchronous I/O.
    Libaio,
}

/// What a curve runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Threads or processes.
    Threads,
    /// Operations in flight per thread.
    Depth,
    /// Bytes of one operation.
    Bytes,
    /// Share of reads in percent.
    ReadsPercent,
}

/// What the tier was doing while a latency was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Nothing else.
    Idle,
    /// As many operations as the conditions say (threads, depth) were in flight.
    Loaded,
}

/// Of what a latency is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// Making earlier stores persistent, as the horizon of the conditions says.
    Persist,
}

/// Unit of a bandwidth or rate, as the source prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    /// Bytes per second.
    #[serde(rename = "B/s")]
    Bytes,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// 2^20 bytes per second.
    #[serde(rename = "MiB/s")]
    Mebibytes,
    /// 10^9 bytes per second.
    #[serde(rename = "GB/s")]
    Gigabytes,
    /// 2^30 bytes per second.
    #[serde(rename = "GiB/s")]
    Gibibytes,
    /// Operations per second.
    #[serde(rename = "IOPS")]
    Operations,
}

impl Unit {
    /// The word in files and on screens.
    pub fn word(self) -> &'static str {
        match self {
            Unit::Bytes => "B/s",
            Unit::Megabytes => "MB/s",
            Unit::Mebibytes => "MiB/s",
            Unit::Gigabytes => "GB/s",
            Unit::Gibibytes => "GiB/s",
            Unit::Operations => "IOPS",
        }
    }

    /// Bytes per second of one unit; `None` for operations.
    pub fn bytes(self) -> Option<f64> {
        match self {
            Unit::Bytes => Some(1.0),
            Unit::Megabytes => Some(1e6),
            Unit::Mebibytes => Some(f64::from(1 << 20)),
            Unit::Gigabytes => Some(1e9),
            Unit::Gibibytes => Some(f64::from(1 << 30)),
            Unit::Operations => None,
        }
    }
}

macro_rules! words {
    ($($name:ident: $($variant:ident = $word:literal),*;)*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($name::$variant => $word,)* })
            }
        })*
    };
}

words! {
    Pattern: Sequential = "sequential", Random = "random";
    Access: Load = "load", Store = "store", StoreFlush = "store + clwb", NtStore = "nt-store",
        LoadNtStore = "load, nt-store", Copy = "copy", Mmap = "mmap", Sync = "sync", IoUring = "io_uring",
        Threads = "threads", Libaio = "libaio";
    Axis: Threads = "threads", Depth = "depth", Bytes = "bytes", ReadsPercent = "share of reads, %";
    Load: Idle = "idle", Loaded = "loaded";
    Operation: Read = "read", Write = "write", Persist = "persist";
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Conditions {
    /// Operations in flight of all threads together, as far as it is known.
    pub fn concurrency(&self) -> Option<u32> {
        match (self.threads, self.depth) {
            (None, None) => None,
            (threads, depth) => Some(threads.unwrap_or(1).saturating_mul(depth.unwrap_or(1))),
        }
    }

    /// The same conditions at a point of an axis.
    pub fn at(&self, axis: Axis, x: f64) -> Conditions {
        let mut here = self.clone();
        match axis {
            Axis::Threads => here.threads = Some(x as u32),
            Axis::Depth => here.depth = Some(x as u32),
            Axis::Bytes => here.bytes = Some(x as u64),
            Axis::ReadsPercent => here.reads_percent = Some(x),
        }
        here
    }
}
