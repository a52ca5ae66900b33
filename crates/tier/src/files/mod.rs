//! Files on a tier that are no pools: regions, memory without a name, words that processes share, plain files, and what
//! windows stand on.

pub mod nameless;
pub mod plain;
pub(crate) mod region;
pub(crate) mod shared_words;
pub mod window;
