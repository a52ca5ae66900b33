//! The versioned object log: durable format, append, commit, recover, reclaim, verify.
//!
//! A pool is cut into granules; a *segment* is a run of granules that belongs to one *lane*, the append-only
//! sequence of one producer rank in one incarnation. A lane holds *records*: pieces of variables, and one commit
//! record per version that makes the pieces before it count. Lanes never lock each other.
//!
//! What holds at every moment, also after a crash at any store:
//! - a record is valid if its header checksum, rank, incarnation and rising sequence number fit its lane;
//! - a version of a lane is committed if its commit record is valid and its commit word matches the header;
//! - every record that belongs to a committed version was made persistent, as the horizon says, before its
//!   commit word was.
//!
//! Where bytes lie and how they become persistent is `forebay_tier`'s business; which segments a lane gets, who
//! waits for whom and when a version is visible is `forebay_space`'s.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the durable formats are little-endian and are mapped, not decoded");

pub mod append;
mod batch;
pub mod dtype;
pub mod format;
pub mod gather;
pub mod nd_box;
pub mod reclaim;
pub mod recover;
pub mod relocate;
pub mod scan;
pub mod verify;

pub use append::{Flushed, Lane, LaneOwner, Piece, Reserved, Sealed, SegmentSource, TakenBack, Unflushed};
pub use dtype::{Dims, Dtype};
pub use forebay_tier::{Error, Kind, Result};
pub use format::{Superblock, CHUNK_BYTES, DIMS_MAX, NAME_BYTES_MAX};
pub use nd_box::{NdBox, CONCAT};
pub use reclaim::{Ledger, Segment};
pub use recover::{recover, Recovered, SegmentInfo};
pub use scan::{LaneId, RecordRef, SegmentScan};
