//! Checkpoints under simulated processes: a program of some ranks restores, saves step by step, dies and starts again.
//!
//! What the seed decides is in [`cast`], what the processes do in [`roles`], who starts again in [`play`], what must
//! hold in [`oracle`]. After each life of the program processes may list, verify, drain and clean; ranks of an earlier
//! life may still be there.

mod cast;
mod oracle;
mod play;
mod roles;

pub use cast::{Cast, SMALLER};
pub use play::play;
