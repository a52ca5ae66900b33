//! The shared space: named variables, versions and boxes that coupled programs exchange on one node.
//!
//! Writers and readers are ordinary processes of one user. A [`Writer`] puts pieces of n-dimensional arrays,
//! version after version; a [`Reader`] gets any box of a version once every writer rank has committed it. Data
//! goes through pools of memory or files that all processes map: one copy for a `put`, none for `reserve` and
//! `view`. There is no server; the processes that are alive keep the shared state in order.
//!
//! ```
//! use forebay_space::{OpenOptions, Reader, Writer};
//! # fn main() -> forebay_space::Result<()> {
//! # let dir = tempfile::tempdir_in("/dev/shm").unwrap();
//! # let name = format!("{}/heat", dir.path().display());
//! # let options = OpenOptions { quota_bytes: Some(4 << 20), ..OpenOptions::default() };
//! let mut writer = Writer::open(&name, &options)?;
//! writer.begin_step()?;
//! writer.put_array("T", &[2, 3], &[0, 0], &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! writer.end_step()?;
//!
//! let mut reader = Reader::open(&name, &options)?;
//! assert_eq!(reader.begin_step(None)?, Some(0));
//! let t: Vec<f64> = reader.get_array("T", None)?;
//! assert_eq!(t[5], 6.0);
//! # reader.end_step()?;
//! # writer.close()?;
//! # reader.close()
//! # }
//! ```
#![forbid(unsafe_code)]
// Extension traits of the standard library's files, whose methods the simulator's files have themselves.
#![cfg_attr(forebay_simulated, allow(unused_imports))]

mod attributes;
mod control;
mod declared;
mod description;
mod element;
mod files;
mod lane;
mod many;
#[cfg(test)]
mod one_mapping;
mod open;
mod part;
mod place;
mod reader;
mod stats;
mod step;
mod trace;
mod upkeep;
mod version_range;
mod writer;

pub use attributes::Attribute;
pub use control::control_layouts;
pub use control::cursors::cursor_layouts;
pub use description::Description;
pub use element::Element;
pub use files::object_layout;
pub use forebay_config::{
    did_you_mean, environment, format_bytes, launch_id, parse_bytes, Absent, ChannelOptions, Emulation,
    ExecutionMode, Mechanism, Mode, OpenOptions, Retention, Scope, SpillTier, Verify, WhenFull, BATCH_BYTES,
    GATE_PLACES_MAX,
};
pub use forebay_log::{Dims, Dtype, NdBox, Piece, CONCAT};
pub use forebay_tier::adapter::throttle::{Curves, Locality};
pub use forebay_tier::{Durability, Error, Horizon, Kind, Result, TierKind};
pub use lane::index::{PieceInfo, VariableInfo};
pub use lane::view::View;
pub use open::existing::mechanism_of;
#[doc(hidden)]
pub use part::{part_name, without_part, Part};
pub use place::agent::{
    agent_status, find_agent, AgentStatus, FoundAgent, MirrorStatus, NodeAgent, ServedStatus,
};
#[doc(hidden)]
pub use place::agent::{try_lock, AGENT_FILE, AGENT_FOLDER, AGENT_STATUS_FILE, MIRRORS_FOLDER};
#[doc(hidden)]
pub use place::demand::{Wanted, INCOMPLETE_FOLDER, REFUSED_FOLDER, RENEWED_EVERY, WANTED_FOLDER};
pub use place::name::{check_short, make_root, root, root_path};
pub use reader::backing::VersionBacking;
#[doc(hidden)]
pub use reader::records::Record;
#[doc(hidden)]
pub use reader::Hold;
pub use reader::{Reader, Subscription};
pub use stats::Stats;
pub use upkeep::clean::{clean, destroy, remove_leftovers};
pub use upkeep::drain::{drain, DrainReport};
pub use upkeep::info::{GroupInfo, MemberInfo, MovedInfo, ReaderGroupInfo, SpaceInfo, TierInfo, VersionInfo};
pub use upkeep::inspect::{glance, glance_within, inspect, list, verify, VerifyReport};
#[doc(hidden)]
pub use upkeep::ranks::{ReaderRank, ReaderRanks};
pub use upkeep::reader_groups::{leave_reader_group, remove_reader_group};
pub use upkeep::removed::{CleanOptions, CleanReport, Kept, Removed};
pub use upkeep::steer::{Progress, Steering};
pub use version_range::format_versions;
pub use writer::{check_writable, Reservation, Writer};
