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
pub mod checksum;
pub mod counters;
pub mod device;
pub mod engine;
mod files;
pub mod host;
mod node;
#[allow(unsafe_code)]
pub mod persist;
#[cfg(forebay_simulated)]
pub mod simulation;
#[cfg(test)]
#[path = "../tests/skips/mod.rs"]
mod skips;
#[allow(unsafe_code)]
mod sys;

pub use device::{create, detect, open, Device};
pub use files::region::{MapMode, Region, SharedRegion};
pub use files::shared_words::SharedWords;
pub use files::{nameless, plain, window};
pub use forebay_terms::{Access, Durability, Horizon, Nodes, Placement, Shares, TierKind, NODES_MAX};
pub use forebay_terms::{Error, Kind, Result};
pub use node::{capacity, clock, liveness, own_directory, pool_lock, process, wait};
pub use sys::{watch, watched, LostPage, StagedWrite};
