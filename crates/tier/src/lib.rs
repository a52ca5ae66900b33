//! Tiers: places where bytes live, and the primitives to use them.
//!
//! A [`Device`] is one pool file on a tier of memory or storage: [`TierKind::Dram`] (tmpfs),
//! [`TierKind::File`] (page cache of a block file system) or [`TierKind::Pmem`] (DAX). It moves bytes in,
//! makes them persistent, and shows published bytes without a copy. Free space is checked before a page is touched,
//! so that a full tier is an error and never a SIGBUS or an out-of-memory kill. Around it: checksums,
//! waiting, liveness and clocks.
//!
//! This crate knows nothing of lanes, records or versions, and decides no policy. It is the only crate with
//! unsafe code, in the folders `sys` (system calls and mappings) and `persist` (processor instructions).
#![deny(unsafe_code)]

pub mod adapter;
pub mod capacity;
pub mod checksum;
pub mod clock;
pub mod counters;
pub mod device;
pub mod engine;
pub mod host;
pub mod liveness;
pub mod nameless;
pub mod own_directory;
#[allow(unsafe_code)]
pub mod persist;
pub mod plain;
pub mod pool_lock;
pub mod process;
mod region;
mod shared_words;
#[cfg(forebay_simulated)]
pub mod simulation;
#[cfg(test)]
#[path = "../tests/skips/mod.rs"]
mod skips;
#[allow(unsafe_code)]
mod sys;
pub mod wait;
pub mod window;

pub use device::{create, detect, open, Device};
pub use forebay_terms::{Access, Durability, Horizon, Nodes, Placement, Shares, TierKind, NODES_MAX};
pub use forebay_terms::{Error, Kind, Result};
pub use region::{MapMode, Region, SharedRegion};
pub use shared_words::SharedWords;
pub use sys::{watch, watched, LostPage, StagedWrite};
