//! Files on a tier other than pools: regions, unnamed files, shared words, plain files, backings of windows.

pub mod nameless;
pub mod plain;
pub(crate) mod region;
pub(crate) mod shared_words;
pub mod window;
