//! Rows of windows: random dependent loads beside a plain mapping with MADV_RANDOM in a memory-limited cgroup, and a
//! scan beside fio.
//!
//! The window's budget is a quarter of the file, and so is what the cgroup may hold beside the program itself; both
//! begin cold. The cgroup needs root; without it the rows of loads are skipped and counted.

use std::path::Path;
use std::process::Command;

use super::cage::Cage;
use super::pager::output;

/// What the measuring program itself needs beside data: its code, stacks of threads, page tables.
const PROGRAM_BYTES: u64 = 32 << 20;

/// Threads, and the share of the mapping's speed that has to be reached by the engine that is chosen and by userfault.
pub const LOADS: [(u32, Option<(f64, f64)>); 3] =
    [(1, Some((0.95, 0.9))), (8, None), (32, Some((0.95, 0.9)))];

/// A cgroup for data of a quarter of `bytes`.
///
/// # Errors
/// What is missing for it, in words.
pub fn quarter(bytes: u64) -> Result<Cage, String> {
    Cage::new(bytes / 4 + PROGRAM_BYTES)
}

/// One run of the example `window`: nanoseconds for `block` bytes.
pub fn run(
    program: &Path,
    file: &Path,
    cage: Option<&Cage>,
    (engine, what, threads): (&str, &str, u32),
    seconds: f64,
    block: u64,
) -> Result<f64, String> {
    let mut command = cage.map_or_else(|| Command::new(program), |cage| cage.command(program));
    command.arg(file).args([engine, what, &threads.to_string(), &seconds.to_string()]);
    let said = output(&mut command)?;
    let per_second: f64 = said.trim().parse().map_err(|e| format!("window: {e}: {said}"))?;
    Ok(block as f64 * 1e9 / per_second)
}
