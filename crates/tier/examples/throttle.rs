//! Prints what a throttled pool in memory does beside what its curves ask for: bandwidth over the number of
//! threads and over the size of an operation, and the time of a small operation. Asserts nothing: the figures are
//! of this machine, and only right where the memory below is faster than what is emulated.
//!
//! `cargo run --release -p forebay-tier --example throttle`

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tier::adapter::throttle::{Curve, Curves, Locality, Throttle};
use forebay_tier::{Device, Result, TierKind};

const MIB: u64 = 1 << 20;
/// Each figure is measured for this long.
const MEASURED: Duration = Duration::from_millis(400);

fn throttled(dir: &Path, name: &str, curves: &Curves) -> Result<Throttle> {
    let path = dir.join(name);
    let pool = forebay_tier::create(TierKind::Dram, &path, 128 * MIB)?;
    pool.prepare(0..128 * MIB)?;
    Throttle::new(pool, curves.clone(), Locality::Local, &Throttle::state_beside(&path))
}

/// Bytes per second that `threads` threads write together in operations of `bytes`.
fn measure(pool: &Throttle, threads: u64, bytes: u64) -> f64 {
    let data = vec![1u8; bytes as usize];
    let began = Instant::now();
    let moved: u64 = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let data = &data;
                scope.spawn(move || {
                    let mut moved = 0;
                    while began.elapsed() < MEASURED {
                        let at =
                            thread * 16 * MIB + moved % (16 * MIB).saturating_sub(bytes).max(1) / 64 * 64;
                        pool.write(at, data).expect("inside the pool");
                        moved += bytes;
                    }
                    moved
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().expect("a thread")).sum()
    });
    moved as f64 / began.elapsed().as_secs_f64()
}

fn row(what: &str, asked: f64, measured: f64, unit: &str) {
    println!("{what:<34} {asked:>10.3} {measured:>10.3} {unit:<5} {:>8.3}", measured / asked);
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    println!("{:<34} {:>10} {:>10} {:<5} {:>8}", "write", "asked", "emulated", "", "ratio");
    let rates = [(1.0, 0.5e9), (2.0, 0.9e9), (4.0, 1.2e9), (8.0, 0.8e9)];
    let curves = Curves { write_bandwidth: Curve(rates.to_vec()), ..Curves::default() };
    let pool = throttled(dir.path(), "concurrency", &curves)?;
    for (threads, rate) in rates {
        let measured = measure(&pool, threads as u64, MIB);
        row(&format!("1 MiB, {threads} threads"), rate / 1e9, measured / 1e9, "GB/s");
    }
    let granularity = Curve(vec![(64.0, 0.1), (4096.0, 0.6), (1_048_576.0, 1.0)]);
    let curves = Curves {
        write_bandwidth: Curve(vec![(1.0, 1e9)]),
        write_granularity: granularity.clone(),
        ..Curves::default()
    };
    let pool = throttled(dir.path(), "granularity", &curves)?;
    for (bytes, factor) in granularity.0 {
        let measured = measure(&pool, 1, bytes as u64);
        row(&format!("{bytes} B, 1 thread"), factor, measured / 1e9, "GB/s");
    }
    let curves = Curves { write_latency_ns: 5000, ..Curves::default() };
    for spinning in [false, true] {
        let name = if spinning { "spinning" } else { "sleeping" };
        let pool = throttled(dir.path(), name, &curves)?.spinning(spinning);
        let us = 64.0 / measure(&pool, 1, 64) * 1e6;
        row(&format!("64 B, latency, {name}"), 5.0, us, "us");
    }
    Ok(())
}
