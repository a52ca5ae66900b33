//! Where a space lies: names and their directories, the files of its pools, the list of its lower tiers, and files that
//! are replaced whole.
//!
//! Guarantees: nothing here is shared with another process but by files.
//! Not here: what the processes of a space share (`control/`), and opening it (`open/`).

pub(crate) mod agent;
pub(crate) mod demand;
pub(crate) mod emulated;
pub(crate) mod name;
pub(crate) mod pool;
pub(crate) mod removal;
pub(crate) mod tiers;
pub(crate) mod trial;
pub(crate) mod whole_file;
