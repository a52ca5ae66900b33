//! What is told of a space or channel: plain values, as `forebay ls --json` prints them.
//!
//! Not here: looking them up (`inspect.rs`, `channels.rs`).

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A space as it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpaceInfo {
    /// Short name, or path.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Identity of the pool.
    pub uuid: String,
    /// Tier of the pool.
    pub tier: String,
    /// When stores are made persistent.
    pub horizon: String,
    /// What an acknowledged version survives.
    pub durability: String,
    /// When versions go.
    pub retention: String,
    /// Who may be at work when.
    #[serde(rename = "pace")]
    pub execution_mode: String,
    /// Whether payloads carry checksums.
    pub checksum: bool,
    /// Most bytes it may hold, in all its pools.
    pub quota_bytes: u64,
    /// Bytes of records, in all its pools.
    pub used_bytes: u64,
    /// Bytes of segments, in all its pools: what is used, what is left in the segments that are being written, and
    /// those that are prepared.
    pub reserved_bytes: u64,
    /// Bytes of an ordinary segment.
    pub segment_bytes: u64,
    /// First version that was not dropped.
    pub versions_oldest: u64,
    /// Number of complete versions; the retained ones are oldest..complete.
    pub versions_complete: u64,
    /// "new", "open", "finished", "producer died", or "dead" when no live process has it open.
    pub state: String,
    /// Directory of the run that made it.
    pub run: Option<String>,
    /// Host that owns it.
    pub host: String,
    /// Creation time, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// The producers.
    pub producer: Option<GroupInfo>,
    /// Registered reader groups.
    pub readers: Vec<ReaderGroupInfo>,
    /// Oldest complete version that some reader has not released; without readers, the oldest. None: all are.
    pub oldest_unread: Option<u64>,
    /// Processes that have it open.
    pub members: Vec<MemberInfo>,
    /// Its pools, the fastest first; what does not fit into one may spill to the next.
    pub tiers: Vec<TierInfo>,
    /// What was moved between its pools.
    pub moved: MovedInfo,
    /// Retained versions, only from [`crate::inspect`].
    pub versions: Vec<VersionInfo>,
}

/// One pool of a space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TierInfo {
    /// Tier.
    pub tier: String,
    /// Pool file.
    pub path: PathBuf,
    /// Most bytes it may hold.
    pub quota_bytes: u64,
    /// Bytes of records.
    pub used_bytes: u64,
    /// Bytes of segments.
    pub reserved_bytes: u64,
}

/// Totals of moves between the pools of a space, since its control segment was made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MovedInfo {
    /// Bytes moved down a tier.
    pub spilled_bytes: u64,
    /// Bytes moved up a tier.
    pub promoted_bytes: u64,
    /// Moves that failed; each was also an error of a producer.
    pub failed: u64,
    /// Versions dropped, unread by some reader, because the space was full.
    pub dropped_versions: u64,
}

/// The producer group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupInfo {
    /// Component.
    pub component: String,
    /// Ranks.
    pub size: u32,
    /// Which start of the program.
    pub incarnation: u32,
    /// Ranks that joined.
    pub joined: u32,
    /// Ranks that ended cleanly.
    pub closed: u32,
}

/// A reader group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderGroupInfo {
    /// Its name.
    pub name: String,
    /// Ranks.
    pub size: u32,
    /// Ranks that joined, ever.
    pub joined: u32,
    /// Ranks that saw the end of the stream.
    pub ended: u32,
    /// Lowest version that a live rank has not released; None if none is alive.
    pub version_min: Option<u64>,
    /// Oldest complete version that a live rank, or one still to join, has not released; None when all are.
    pub oldest_unread: Option<u64>,
    /// Complete versions from that one on: how far the group's slowest rank is behind.
    pub lag_versions: u64,
    /// Of a group that keeps a cursor: what it means to the writers while it is absent, `hold`, `drop` or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<crate::Absent>,
}

impl ReaderGroupInfo {
    /// `needed` is the lowest version that some rank still wants, complete or not; None when no rank wants any.
    pub(crate) fn new(
        name: String,
        size: u32,
        (joined, ended): (u32, u32),
        (version_min, needed): (Option<u64>, Option<u64>),
        complete: u64,
    ) -> ReaderGroupInfo {
        let oldest_unread = needed.filter(|v| *v < complete);
        let lag_versions = oldest_unread.map_or(0, |v| complete - v);
        ReaderGroupInfo { name, size, joined, ended, version_min, oldest_unread, lag_versions, absent: None }
    }
}

/// Oldest retained version that some reader still has to read; before any reader came, the oldest of all.
pub(crate) fn oldest_unread(readers: &[ReaderGroupInfo], oldest: u64, complete: u64) -> Option<u64> {
    match readers.is_empty() {
        true => Some(oldest).filter(|v| *v < complete),
        false => readers.iter().filter_map(|g| g.oldest_unread).min(),
    }
}

/// A process that has the space open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberInfo {
    /// "writer", "reader" or "observer".
    pub role: String,
    /// Component or group.
    pub component: String,
    /// Rank.
    pub rank: u32,
    /// Ranks of its group.
    pub size: u32,
    /// Process id, in its own namespace.
    pub pid: u32,
    /// Host; the owner's, a space has one.
    pub host: String,
    /// Whether the kernel says that it lives.
    pub alive: bool,
    /// Since when, nanoseconds since 1970.
    pub since_unix_ns: u64,
    /// Next version it will put or wants.
    pub version: u64,
    /// Steps ended.
    pub steps: u64,
    /// Payload bytes moved.
    pub bytes: u64,
    /// Time inside put or get.
    pub op_ns: u64,
    /// Time waiting.
    pub wait_ns: u64,
    /// What it waits for and who is missing, if it waits.
    pub waiting_for: Option<String>,
    /// Since when it waits, nanoseconds since 1970.
    pub waiting_since_unix_ns: Option<u64>,
    /// Oldest version its views hold.
    pub lease: Option<u64>,
}

/// A retained version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VersionInfo {
    /// Number.
    pub version: u64,
    /// Whether every rank has committed it.
    pub complete: bool,
    /// Payload bytes.
    pub bytes: u64,
    /// Pieces.
    pub records: u64,
    /// Names of its variables.
    pub variables: Vec<String>,
}
