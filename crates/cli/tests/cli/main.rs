//! The command as a user meets it: own processes, own root of spaces, both streams and the exit status.
//!
//! One test program for all files, so that it is linked once. Nothing here looks at a clock.
#![forbid(unsafe_code)]

mod agents;
mod bench;
mod ckpt;
mod demo;
mod doctor;
mod documents;
mod interrupted;
mod lab;
mod mem;
mod metrics;
mod mistakes;
mod nodes;
mod on_nodes;
mod page;
mod plans;
mod programs;
mod running;
#[path = "../../../tier/tests/skips/mod.rs"]
mod skips;
mod slurm;
mod snapshots;
mod spaces;
mod stopping;
mod writing;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::OnceLock;

/// The command.
fn forebay() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_forebay"))
}

/// Where it looks for programs: those of the demo first, in a folder without the command.
fn path() -> &'static OsStr {
    static PATH: OnceLock<OsString> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
        std::fs::create_dir_all(&folder).expect("a folder for the demo's programs");
        for name in ["gray-scott", "analysis"] {
            let program = programs::built(forebay(), "gray-scott", name);
            let link = folder.join(name);
            if !std::fs::read_link(&link).is_ok_and(|target| target == program) {
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(&program, &link).expect("a link to a program");
            }
        }
        let before = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(folder).chain(std::env::split_paths(&before));
        std::env::join_paths(all).expect("folders without a colon")
    })
}
