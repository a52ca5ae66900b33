//! Writes the golden fixtures of the log format: `cargo run -p forebay-log --example write_fixtures -- DIR`.
//!
//! Released versions are never written again; this is for a new format version, or to see what changed.

#[path = "../tests/sample/mod.rs"]
mod sample;

use forebay_tier::{Device, TierKind};
use std::path::Path;
use std::sync::Arc;

fn main() {
    let dir = std::env::args().nth(1).expect("usage: write_fixtures DIR");
    type Write = fn(&Path) -> forebay_log::Result<Arc<dyn Device>>;
    let pools: [(&str, Write); 3] = [
        ("mapped.pool", |path| sample::write_pool(path, TierKind::Dram)),
        ("blocks.pool", |path| sample::write_pool(path, TierKind::File)),
        ("described.pool", sample::write_described_pool),
    ];
    for (name, write) in pools {
        // Mapped pools need a memory file system, so both are made in one and copied.
        let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let made = scratch.path().join(name);
        let target = Path::new(&dir).join(name);
        if target.exists() {
            println!("{} exists: released fixtures are not written again", target.display());
            continue;
        }
        drop(write(&made).expect("the pool"));
        std::fs::copy(&made, &target).expect("copied");
        println!("{}", target.display());
    }
}
