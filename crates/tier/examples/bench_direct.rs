//! What tier `direct` moves, in the same shape as a job of fio: for comparing the two in turn.
//!
//! usage: bench_direct FILE WRITE-BYTES POOL-BYTES SKEW-BYTES yes|no
//!
//! Makes a pool of POOL-BYTES, writes all of it once so that its blocks exist, then times writing it again in writes of
//! WRITE-BYTES that each begin SKEW-BYTES behind a block (as records do), with checksums or without, with one persist
//! after each; then bringing all of it in by `populate_read` and by `read`, from a cold page cache. Prints one JSON
//! object of bytes per second and the engine. The file is removed at the end.

use forebay_tier::device::direct::Direct;
use forebay_tier::{Device, Result};
use std::time::Instant;

struct Shape {
    path: std::path::PathBuf,
    write_bytes: usize,
    pool_bytes: u64,
    skew: u64,
    checksum: bool,
}

fn shape() -> Option<Shape> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, write, pool, skew, checksum] = words.as_slice() else { return None };
    Some(Shape {
        path: path.into(),
        write_bytes: write.parse().ok()?,
        pool_bytes: pool.parse().ok()?,
        skew: skew.parse().ok()?,
        checksum: checksum == "yes",
    })
}

/// Writes the whole pool once; returns bytes per second.
fn pass(pool: &Direct, shape: &Shape, source: &[u8]) -> Result<f64> {
    let (mut at, mut from, mut written, mut crcs) = (shape.skew, 0, 0u64, Vec::new());
    let begin = Instant::now();
    while at + shape.write_bytes as u64 <= shape.pool_bytes {
        let data = &source[from..from + shape.write_bytes];
        crcs.clear();
        match shape.checksum {
            true => pool.write_checksummed(at, data, 64 << 10, &mut crcs)?,
            false => pool.write(at, data)?,
        }
        pool.persist(at..at + shape.write_bytes as u64)?;
        written += shape.write_bytes as u64;
        at += (shape.write_bytes as u64 + 4096).next_multiple_of(4096);
        from = (from + shape.write_bytes) % (source.len() - shape.write_bytes);
    }
    Ok(written as f64 / begin.elapsed().as_secs_f64())
}

fn drop_cache(pool: &Direct) -> Result<()> {
    forebay_tier::device::direct::drop_cached(pool)
}

fn main() -> Result<()> {
    let Some(shape) = shape() else {
        eprintln!("usage: bench_direct FILE WRITE-BYTES POOL-BYTES SKEW-BYTES yes|no");
        std::process::exit(2);
    };
    let pool = Direct::create(&shape.path, shape.pool_bytes)?;
    pool.prepare(0..shape.pool_bytes)?;
    // As large as the pool: larger than the processor's caches when the pool is.
    let source: Vec<u8> =
        (0..shape.pool_bytes / 8).flat_map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    let fresh = pass(&pool, &shape, &source)?;
    let write = pass(&pool, &shape, &source)?;
    let rate = |begin: Instant| shape.pool_bytes as f64 / begin.elapsed().as_secs_f64();
    drop_cache(&pool)?;
    let begin = Instant::now();
    pool.populate_read(0..shape.pool_bytes);
    let populate = rate(begin);
    drop_cache(&pool)?;
    let mut out = source;
    let begin = Instant::now();
    pool.read(0, &mut out)?;
    let read = rate(begin);
    let engine = pool.engine().name();
    drop(pool);
    let _ = std::fs::remove_file(&shape.path);
    let rates = [("write", write), ("first_write", fresh), ("populate_read", populate), ("read", read)];
    let rates: Vec<String> = rates.iter().map(|(name, rate)| format!("\"{name}\":{rate:.0}")).collect();
    println!("{{\"engine\":\"{engine}\",{}}}", rates.join(","));
    Ok(())
}
