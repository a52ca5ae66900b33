//! The lab as a user meets it: `forebay bench` and `forebay app`, which start `forebay-lab` beside `forebay`; own
//! processes, own root of spaces, both streams and the exit status.
//!
//! One test program for all files, so that it is linked once. What it stands on is that of the tests of `forebay`.
//! Nothing here looks at a clock.
#![forbid(unsafe_code)]

// The lab's tests use a part of them.
#[allow(dead_code)]
#[path = "../../../../crates/cli/tests/cli/bench.rs"]
mod bench;
mod devices;
mod documents;
#[path = "../../../../crates/cli/tests/cli/interrupted.rs"]
mod interrupted;
mod mem;
mod mistakes;
mod out_of_core;
#[path = "../../../../crates/cli/tests/cli/page.rs"]
mod page;
mod placing;
#[path = "../../../../crates/cli/tests/cli/programs.rs"]
mod programs;
#[path = "../../../../crates/tier/tests/skips/mod.rs"]
mod skips;
mod snapshots;
mod solver;
mod stopping;
mod suite;
mod trials;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The command of the product, with `forebay-lab` beside it.
fn forebay() -> &'static Path {
    static FOREBAY: OnceLock<PathBuf> = OnceLock::new();
    FOREBAY.get_or_init(|| {
        programs::built(Path::new(env!("CARGO_BIN_EXE_forebay-lab")), "forebay-cli", "forebay")
    })
}

/// Where it looks for programs.
fn path() -> &'static OsStr {
    static PATH: OnceLock<OsString> = OnceLock::new();
    PATH.get_or_init(|| std::env::var_os("PATH").unwrap_or_default())
}
