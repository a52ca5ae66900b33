//! Tests of checkpoints on real directories: what was saved comes back, what cannot be trusted is refused.

mod damage;
mod failing;
mod incremental;
mod keep;
mod killed;
mod levels;
mod memory;
mod mistakes;
mod needs;
mod objects;
mod ranks;
mod redundancy;
mod s3;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
mod state;
