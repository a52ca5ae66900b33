//! Checkpoints: a program's arrays, saved step by step so that a restart goes on from the newest step that is whole.
//!
//! Each step goes to the first level (memory, persistent memory, a directory) and is carried down to the others by a
//! thread. It counts once its commit record is there, which names the checksum of every rank's manifest, which names
//! those of every 64 KiB of data: what is restored is one committed step, verified while it is loaded, or an error.
//!
//! ```
//! use forebay_checkpoint::{Checkpoint, Dtype, NdBox, Options};
//! # fn main() -> forebay_checkpoint::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let mut state = vec![0u8; 800];
//! let mut checkpoint = Checkpoint::open(dir.path(), &Options::default())?;
//! checkpoint.protect("u", Dtype::F64, &[100], &NdBox::whole(&[100]))?;
//! let first = match checkpoint.restore_latest(&mut [&mut state])? {
//!     Some(restored) => restored.step + 1,
//!     None => 0,
//! };
//! for step in first..3 {
//!     state.fill(step as u8);
//!     checkpoint.save(step, &[&state])?;
//! }
//! # assert_eq!(checkpoint.restore_latest(&mut [&mut state])?.map(|r| r.step), Some(2));
//! checkpoint.close()
//! # }
//! ```
#![forbid(unsafe_code)]
// Extension traits of the standard library's files, whose methods the simulator's files have themselves.
#![cfg_attr(forebay_simulated, allow(unused_imports))]

mod checkpoint;
#[cfg(test)]
mod crash_tests;
mod drain;
pub mod format;
pub mod level;
mod options;
pub mod place;
pub mod redundancy;
mod restore;
#[cfg(test)]
mod retry_tests;
mod run;
mod upkeep;
mod when;

pub use checkpoint::Checkpoint;
pub use forebay_config::CheckpointOptions as Options;
pub use forebay_log::{Dims, Dtype, NdBox};
pub use forebay_tier::{Durability, Error, Kind, Result, TierKind};
pub use level::keep::{Best, Better, Keep, Reason};
pub use level::{LevelInfo, Packing};
pub use options::check;
pub use redundancy::{Code, Protection, Repair, State};
pub use restore::{Reject, Restored};
pub use run::{control, is_alive, memory, Control};
pub use upkeep::inspect::{list, pieces, verify, Inspection, LevelReport, StepReport, VerifyReport};
pub use upkeep::salvage::{drain, extract, Carried, Extracted};
pub use when::advice::{advice, Advice, Costs};
pub use when::statistics::Statistics;
pub use when::{interval, When, MTBF_DEFAULT_S};
