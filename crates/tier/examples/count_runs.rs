//! The Rust program of the guide's page on mapped memory, word for word: counts its own runs in a file.

use forebay_tier::Region;
use std::path::Path;

fn main() -> forebay_tier::Result<()> {
    let mut region = Region::open_or_create(Path::new("state.map"), 8000, None)?;
    let first: [u8; 8] = region.as_slice()[..8].try_into().expect("it is 8000 bytes long");
    let runs = f64::from_ne_bytes(first) + 1.0;
    region.copy_persist(0, &runs.to_ne_bytes())?;
    println!("run {runs} on {}, survives {}", region.tier(), region.durability());
    Ok(())
}
