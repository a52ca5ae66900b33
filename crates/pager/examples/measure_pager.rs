//! Measures one way of reading a file through the pager: what `cargo xtask bench pager` compares with fio.
//!
//! Arguments: FILE, `gather` (random tiles of 4 KiB, one thread) or `scan` (all tiles of 1 MiB in order), seconds, and
//! bytes of the budget (else a quarter of the file). Prints bytes per second, measured.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_pager::{Array, ArrayOptions, FileBacking, Policy, Pool, PoolOptions};

/// Items of one call of `gather`.
const ITEMS: usize = 16_384;
const ITEM_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (file, what, seconds, budget) = match words.as_slice() {
        [file, what, seconds] => (file, what, seconds, None),
        [file, what, seconds, budget] => (file, what, seconds, Some(budget.parse()?)),
        _ => return Err("FILE gather|scan SECONDS [BUDGET]".into()),
    };
    let backing = FileBacking::open(Path::new(file), false)?;
    let bytes = std::fs::metadata(file)?.len();
    let (tile, policy) = match what.as_str() {
        "gather" => (ITEM_BYTES, Policy::S3Fifo),
        "scan" => (1 << 20, Policy::None),
        _ => return Err("gather or scan".into()),
    };
    let budget = budget.unwrap_or(bytes / 4);
    let pool = Pool::new(PoolOptions { tile_max: tile.max(64 << 10), ..PoolOptions::new(budget) })?;
    let array = Array::open(&pool, Arc::new(backing), &ArrayOptions { policy, ..ArrayOptions::new(tile) })?;
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let mut numbers = fastrand::Rng::with_seed(1);
    let mut out = vec![0; ITEMS * ITEM_BYTES];
    let mut gather = || -> forebay_tier::Result<()> {
        let indices: Vec<u64> = (0..ITEMS).map(|_| numbers.u64(..bytes / ITEM_BYTES as u64)).collect();
        array.gather(&indices, ITEM_BYTES, &mut out)?;
        black_box(&out);
        Ok(())
    };
    let loaded = || pool.statistics().loaded * tile as u64;
    // What is paid once is not what is compared: a ring, and of `gather`, which keeps what it has read, first touches
    // of frames and of the caller's memory. Half of the file more than fills the budget.
    array.read(0, &mut [0; 4096])?;
    while what == "gather" && loaded() < bytes / 2 {
        gather()?;
    }
    let (before, begun) = (loaded(), Instant::now());
    while begun.elapsed() < limit {
        if what == "gather" {
            gather()?;
            continue;
        }
        for found in array.tiles() {
            black_box(found?[0]);
            if begun.elapsed() >= limit {
                break;
            }
        }
    }
    // What was found in the budget the disk did not give: only what was loaded counts.
    println!("{}", (loaded() - before) as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
