//! Writes the golden fixtures of the log format: `cargo run -p forebay-log --example write_fixtures -- DIR`.
//!
//! Released versions are never written again; this is for a new format version, or to see what changed.

#[path = "../tests/sample/mod.rs"]
mod sample;

use forebay_tier::TierKind;

fn main() {
    let dir = std::env::args().nth(1).expect("usage: write_fixtures DIR");
    for (name, tier) in [("mapped.pool", TierKind::Dram), ("blocks.pool", TierKind::File)] {
        // Mapped pools need a memory file system, so both are made in one and copied.
        let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let made = scratch.path().join(name);
        drop(sample::write_pool(&made, tier).expect("the pool"));
        let target = std::path::Path::new(&dir).join(name);
        assert!(!target.exists(), "{} exists: released fixtures are not written again", target.display());
        std::fs::copy(&made, &target).expect("copied");
        println!("{}", target.display());
    }
}
