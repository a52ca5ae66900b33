//! Agents, writers and readers as processes: nodes are directories of spaces of their own (FOREBAY_DIR) on this
//! machine.
//!
//! Every wait has a deadline. Whatever a test makes is gone after it: processes, folders, shared memory.
#![forbid(unsafe_code)]

mod bed;
mod faults;
mod life;
mod links;
mod parts;
mod program;
mod refusals;
mod runs;
mod transfer;
mod wire;
