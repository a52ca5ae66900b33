//! The C ABI of Forebay: what `forebay.h` declares, for C, C++ and (through `fortran/forebay.f90`) Fortran.
//!
//! Guarantees: nothing unwinds over the border (a panic is `FB_INTERNAL`), a NULL where memory is needed is
//! `FB_USAGE` and not a crash, every kind of error has a code of its own, and only names that begin with
//! `fb_` are exported. Calls on one handle from several threads are carried out one after another.
//!
//! It does not check what it cannot know: that a pointer is alive and that the memory behind it is as large
//! as the caller says. That is the contract written at the top of the header ([`PREAMBLE`]).
//!
//! The header is generated from these files (`src/header.rs`), committed, and compared by a test.

// The exported types and functions carry C names; what each pointer must be is said once, in the preamble of
// the header, instead of in a "Safety" section of fifty functions.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod array;
mod attribute;
mod checkpoint;
mod describe;
mod dtype;
mod memory;
mod options;
mod reader;
mod region;
mod status;
mod version;
mod view;
mod window;
mod writer;

pub use array::*;
pub use attribute::*;
pub use checkpoint::*;
pub use describe::*;
pub use dtype::*;
pub use options::*;
pub use reader::*;
pub use region::*;
pub use status::*;
pub use version::*;
pub use view::*;
pub use window::*;
pub use writer::*;

/// The text at the top of `forebay.h`: the rules that hold for every call.
pub const PREAMBLE: &str = include_str!("preamble.txt");
