//! The control segment that the processes of a space share: its words, the protocols over them, the file of cursors
//! beside it, whose it is, and how it is opened, rebuilt and removed.
//!
//! Guarantees: nothing here knows a member, a lane or a channel; it works on words and files.
//! Not here: joining (`open/`), what lies in the segments (`lane/`).

pub(crate) mod cursors;
mod layout;
pub(crate) mod ownership;
pub(crate) mod protocol;
pub(crate) mod shared_state;
mod words;

pub use layout::control_layouts;
pub(crate) use layout::{
    group, head, member, CONTROL_MAGIC, CURSORS_MAX, GROUPS_MAX, GROUP_RANKS_MAX, LANES_MAX, MEMBERS_MAX,
    NAME_BYTES, READERS_REMOVED_MARK, REMOVED_MARK,
};
pub(crate) use protocol::HOLDS_NOTHING;
#[cfg(test)]
pub(crate) use words::kills;
pub(crate) use words::{
    too_many, Control, FoundSegment, GranuleState, ProducerState, Waiting, FREE_SPACE_ASKED,
};
