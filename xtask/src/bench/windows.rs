//! Rows of windows: random dependent loads beside a plain mapping with MADV_RANDOM in a memory-limited cgroup, and a
//! scan beside fio.
//!
//! The window's budget is a quarter of the file, and so is what the cgroup may hold beside the program itself; both
//! begin cold. The cgroup needs root; without it the rows of loads are skipped and counted.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::pager::output;

/// What the measuring program itself needs beside data: its code, stacks of threads, page tables.
const PROGRAM_BYTES: u64 = 32 << 20;

/// Threads, and the share of the mapping's speed that has to be reached by the engine that is chosen and by userfault.
pub const LOADS: [(u32, Option<(f64, f64)>); 3] =
    [(1, Some((0.95, 0.9))), (8, None), (32, Some((0.95, 0.9)))];

/// A cgroup that may hold so many bytes; it goes with the value.
pub struct Limited(PathBuf);

impl Limited {
    /// For data of a quarter of `bytes`.
    pub fn new(bytes: u64) -> Result<Limited, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (above, file) = match root.join("memory/memory.limit_in_bytes").exists() {
            true => (root.join("memory"), "memory.limit_in_bytes"),
            false => (root.to_owned(), "memory.max"),
        };
        let folder = above.join(format!("forebay-bench-{}", std::process::id()));
        let failed = |e: std::io::Error| format!("no memory-limited cgroup: {}: {e}", folder.display());
        std::fs::create_dir(&folder).map_err(failed)?;
        let made = Limited(folder.clone());
        std::fs::write(folder.join(file), (bytes / 4 + PROGRAM_BYTES).to_string()).map_err(failed)?;
        Ok(made)
    }

    /// A command that runs `program` in it.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        command.args(["-c", script]).arg(&self.0).arg(program);
        command
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its program has ended: it is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// One run of the example `window`: nanoseconds for `block` bytes.
pub fn run(
    program: &Path,
    file: &Path,
    limited: Option<&Limited>,
    (engine, what, threads): (&str, &str, u32),
    seconds: f64,
    block: u64,
) -> Result<f64, String> {
    let mut command = limited.map_or_else(|| Command::new(program), |limited| limited.command(program));
    command.arg(file).args([engine, what, &threads.to_string(), &seconds.to_string()]);
    let said = output(&mut command)?;
    let per_second: f64 = said.trim().parse().map_err(|e| format!("window: {e}: {said}"))?;
    Ok(block as f64 * 1e9 / per_second)
}
