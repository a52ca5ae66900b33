//! What the device itself does, measured in the same run: the limit that response times are compared with.

use std::path::Path;

use forebay_probe::kernels::placed::{self, Request};
use forebay_probe::kernels::stream::{Kernel, Layout};
use forebay_probe::kernels::together;
use forebay_probe::load::{Blocks, Engine, Job};
use forebay_probe::machine::Machine;
use forebay_probe::nodes::cache_to_exceed;
use forebay_probe::scratch::Scratch;
use forebay_tier::{Horizon, Kind, Result, TierKind};
use serde::Serialize;

use super::place::Place;
use crate::lriot::one;

/// Threads and bytes of each that show a drive's bandwidth.
const THREADS: usize = 4;
const BYTES: u64 = 32 << 20;
const BLOCK_BYTES: u32 = 1 << 20;
const ROUNDS: usize = 4;

/// The limit of a place.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    /// What was measured.
    pub of: &'static str,
    pub write_bytes_per_s: f64,
    pub read_bytes_per_s: f64,
}

/// The limit of a place: copies of memory, which is what the page cache is too; past it the drive.
pub(crate) fn of(place: &Place) -> Result<Limits> {
    match place {
        Place::Tier(TierKind::Direct, Some(dir)) => drive(dir),
        Place::Tier(TierKind::Pmem, Some(dir)) => copy(&format!("pmem:{}", dir.display())),
        Place::Tier(..) | Place::Files(_) => copy("dram"),
    }
}

/// The limit of what movers bring down: the drive's, or of memory where the directory is no drive's.
pub(crate) fn of_lower(dir: &Path) -> Result<Limits> {
    drive(dir).or_else(|e| match e.kind() {
        Kind::NotPossibleHere => copy("dram"),
        _ => Err(e),
    })
}

/// Bytes that all processors copy together: STREAM's copy moves each twice.
fn copy(place: &str) -> Result<Limits> {
    let place: placed::Place = place.parse()?;
    let request = Request {
        places: [place.clone(), place.clone(), place],
        layout: Layout::Arrays,
        horizon: Horizon::None,
        elements: placed::usual_elements(cache_to_exceed(&Machine::here())),
        rounds: ROUNDS,
        processors: together::processors(),
    };
    let outcome = placed::run(&request)?;
    let best =
        outcome.timings.iter().filter(|t| t.kernel == Kernel::Copy).map(|t| t.best()).fold(0.0, f64::max);
    Ok(Limits {
        of: "copy of memory by all processors",
        write_bytes_per_s: best / 2.0,
        read_bytes_per_s: best / 2.0,
    })
}

/// What large requests of a few threads past the page cache get.
fn drive(dir: &Path) -> Result<Limits> {
    let files: Vec<Scratch> = (0..THREADS).map(|_| Scratch::make(dir)).collect::<Result<_>>()?;
    let job = |file: &Scratch, writes: bool| Job {
        engine: Engine::Sync,
        direct: true,
        reads: !writes,
        writes,
        blocks: [Blocks::One(BLOCK_BYTES), Blocks::One(BLOCK_BYTES)],
        size: BYTES,
        ..Job::new("limit", vec![file.path()])
    };
    let jobs = |writes: bool| files.iter().map(|file| job(file, writes)).collect::<Vec<_>>();
    let (written, _) = one(&jobs(true))?;
    let (read, _) = one(&jobs(false))?;
    let rate = |bytes: u64, ns: u64| bytes as f64 * 1e9 / ns.max(1) as f64;
    Ok(Limits {
        of: "requests of 1 MiB past the page cache, 4 threads",
        write_bytes_per_s: rate(written.write.bytes, written.runtime_ns),
        read_bytes_per_s: rate(read.read.bytes, read.runtime_ns),
    })
}
