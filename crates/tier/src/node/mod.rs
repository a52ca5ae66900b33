//! Resources and processes of the node: capacity, clocks, liveness, pool locks, waiting, ownership of directories.
//!
//! Every module here is part of the public interface, under its own name at the top of the crate.

pub mod capacity;
pub mod clock;
pub mod liveness;
pub mod own_directory;
pub mod pool_lock;
pub mod process;
pub mod wait;
