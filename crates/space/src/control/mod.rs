//! The control segment that the processes of a space share: its words, the protocols over them, the file of cursors
//! beside it, whose it is, and how it is opened, rebuilt and removed.
//!
//! Guarantees: nothing here knows a member, a lane or a channel; it works on words and files.
//! Not here: joining (`open/`), what lies in the segments (`lane/`).

pub(crate) mod cursors;
pub(crate) mod ownership;
pub(crate) mod protocol;
pub(crate) mod shared_state;
mod words;

pub use words::*;
