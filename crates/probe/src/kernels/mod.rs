//! What memory delivers: streams, accesses of a size and pattern, and the time of one load.
//!
//! Guarantees: each thread runs on a processor of its own where there are enough, all start together, and every thread
//! owns the bytes that it writes; what is counted is what was touched. Memory of any tier will do: whatever gives a
//! slice of bytes. Does not: find tiers, caches or what to measure (`probe`).

pub mod access;
pub mod chase;
pub mod placed;
pub mod stream;
pub mod together;

/// Times the last-level cache that memory must have, so that the cache hardly matters.
pub const CACHES: u64 = 4;
