//! What `forebay mem` puts in front of a program: allocations of a threshold and more live in a window, under one
//! budget that all processes of the job share.
//!
//! Loaded before the C library (LD_PRELOAD), it takes the place of the functions that give and take memory
//! (`heap`, `maps`), and, where the window's engine asks for it, of those calls of the system that are given addresses
//! (`calls`, `streams`); those that close descriptors leave its own alone (`descriptors`). What is shorter than the
//! threshold goes at once to the allocator that the program links (`linked`).
//!
//! Guarantees: this library's own memory comes from the C library and never from a window, so that nothing here calls
//! itself; a process without big allocations opens nothing and starts no thread; a program that was not started by
//! `forebay mem` sees no difference. A child of `fork` has a copy of its parent's big
//! allocations (`fork`).

// Exported functions carry the names and the contracts of the C library's, which say what pointers must be.
#![allow(clippy::missing_safety_doc)]
// In the tests of these files nothing is exported: a test program is not its own C library.
#![cfg_attr(test, allow(dead_code))]

mod calls;
mod copy;
mod descriptors;
mod ends;
mod extents;
mod fork;
mod heap;
mod inside;
mod linked;
mod maps;
mod next;
mod place;
mod signals;
mod steward;
mod streams;

/// Memory of this library itself: the C library's, past what is exported here.
#[global_allocator]
static OWN: heap::Own = heap::Own;

/// Run by the loader, before the program.
#[cfg(not(test))]
#[used]
#[link_section = ".init_array"]
static BEGIN: extern "C" fn() = begin;

/// Run at the program's regular end.
#[cfg(not(test))]
#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;

#[cfg(not(test))]
extern "C" fn begin() {
    place::begin();
    ends::begin();
}

#[cfg(not(test))]
extern "C" fn end() {
    place::say_last();
}
