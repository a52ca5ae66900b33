//! Arrays larger than memory: their tiles live in a fixed pool of frames and move past the page cache.
//!
//! A [`Pool`] is a hard budget of memory for the data of any number of [`Array`]s and for what is known of them.
//! An array is a range of bytes in a [`Backing`] (a file, a device), cut into tiles; a tile that is touched gets a
//! frame, and another one leaves, as the [`Policy`] says. Access is explicit: [`Array::pin`], [`Array::tiles`] with
//! many requests in flight, [`Array::gather`], [`Array::read`], [`Array::write`]. Threads may share everything here.
//!
//! Guarantees: never more memory than the budget; an error of the backing surfaces where the data was touched, and
//! damages nothing else; [`Array::flush`] returns when what was written is durable.
//!
//! This crate knows nothing of spaces, versions or shapes.
#![forbid(unsafe_code)]

mod ahead;
mod array;
mod backing;
mod engine;
mod evict;
mod gather;
pub mod job;
mod parking;
mod pin;
mod policy;
mod pool;
mod shelf;
mod state;
mod striped;
mod table;
mod tiles;
mod window;
mod write_back;

pub use array::{Array, ArrayOptions, Mode};
pub use backing::{Backing, DeviceBacking, FileBacking};
pub use pin::{Tile, TileMut};
pub use policy::Policy;
pub use pool::{Pool, PoolOptions, Statistics};
pub use striped::{lengths as stripe_lengths, StripedBacking};
pub use tiles::{Tiles, TilesMut};
pub use window::{Advice, OnError, Pinned, Window, WindowEngine, WindowOptions, WindowStatistics};

#[cfg(test)]
#[path = "../../tier/tests/skips/mod.rs"]
mod skips;
#[cfg(test)]
mod tests;
