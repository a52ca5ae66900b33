//! Every option of `open` and of a checkpoint, once: name, type, default, range, help, and where it can be said.
//!
//! An option of `open` is one entry of the table in `table.rs`. From it come the structs [`OpenOptions`] and
//! [`ChannelOptions`], the variables of the environment, the keys of a workflow's channel table, the options of C, the
//! keywords of Python, and the reference page. Those of a checkpoint stand in `checkpoint.rs`. Beside the options:
//! sizes as text, which rank of how many this process is, and the nodes of a job: their names, the command that runs a
//! program on one of them.
//!
//! Not here: what an option does. No variable is read but through the look-up that a caller gives.
#![forbid(unsafe_code)]

pub mod allocation;
mod checkpoint;
pub mod environment;
mod execution_mode;
mod form;
mod identity;
mod open;
mod row;
mod size;
mod table;
mod template;
mod value;

pub use checkpoint::{CheckpointOptions, CHECKPOINT_OPTIONS};
pub use environment::did_you_mean;
pub use execution_mode::{ExecutionMode, GATE_PLACES_MAX};
pub use form::Form;
pub use identity::{batch_job, identify, launch, launch_across_nodes, launch_id, Identity, Source, Spread};
pub use open::{component_name, durable_one_by_one, said_elsewhere};
pub use row::{Role, Row};
pub use size::{format_bytes, parse_bytes};
pub use table::{ChannelOptions, OpenOptions, OPTIONS};
pub use template::Template;
pub use value::{
    format_readers, parse_flag, parse_horizon, parse_locality, parse_number, parse_readers, parse_seconds,
    parse_spill, parse_tier, Absent, Emulation, Mechanism, Mode, Retention, Scope, SpillTier, Verify,
    WhenFull, BATCH_BYTES, NAME_BYTES, TIMEOUT_DEFAULT, TIMEOUT_SECONDS_MAX,
};
