//! `cargo xtask bench expansion`: kernels whose arrays outgrow their memory, on tiles beside swap and beside mmap.
//!
//! Each kernel of `forebay bench polybench` runs with arrays of four times the memory it may use: on tiles with that
//! budget; unchanged under `forebay mem` with that budget; unchanged in a memory cgroup with a swap file; and over
//! mapped files in such a cgroup. Needs root for cgroup and swap file; without, the row is skipped and counted.
//! `--only KERNEL`; `--quick` runs everything once at toy size.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::cage::Cage;
use super::ground::Ground;
use super::rows::{Row, Table};
use crate::{Outcome, Stop};

const REPETITIONS: usize = 3;
/// Kernels, and how many times as fast as with swap those are to be that stream.
const KERNELS: [(&str, Option<f64>); 6] = [
    ("atax", Some(5.0)),
    ("gemver", Some(5.0)),
    ("jacobi-2d", Some(5.0)),
    ("fdtd-2d", Some(5.0)),
    ("adi", None),
    ("gemm", None),
];
/// How many times as fast as with swap those that stream are to be under `forebay mem`.
const MEM_BAR: f64 = 1.5;
/// What a process has beside its arrays.
const BESIDE: u64 = 32 << 20;

struct Bench {
    ground: Ground,
    ours: PathBuf,
    budget: u64,
}

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut as_json, mut quick, mut only) = (false, false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--json" => as_json = true,
            "--quick" => quick = true,
            "--only" => only = arguments.next().copied(),
            other => {
                let known = "--json, --quick, --only KERNEL";
                return Err(Stop::Usage(format!("bench expansion: unknown {other} ({known})")));
            }
        }
    }
    let kernels: Vec<_> = KERNELS.into_iter().filter(|(name, _)| only.is_none_or(|o| o == *name)).collect();
    if kernels.is_empty() {
        return Err(Stop::Usage(format!(
            "bench expansion --only: one of {}",
            KERNELS.map(|k| k.0).join(", ")
        )));
    }
    let bench = Bench::new(root, quick).map_err(Stop::Failed)?;
    let skipped = bench.skipped();
    let possible = skipped.is_empty();
    let mut table = Table::new(if quick { 1 } else { REPETITIONS }, skipped);
    if possible {
        for (kernel, bar) in kernels {
            bench.rows(&mut table, kernel, bar.filter(|_| !quick)).map_err(Stop::Failed)?;
        }
    }
    match as_json {
        true => println!("{}", table.json("expansion")),
        false => print!("{}", table.text()),
    }
    let missed = table.rows.iter().filter(|row| !quick && row.misses());
    crate::no_findings(missed.map(Row::line).collect())
}

impl Bench {
    fn new(root: &Path, quick: bool) -> Result<Bench, String> {
        let ground = Ground::new(root, "expansion", &["--lib", "--bins"])?;
        let budget = if quick { 64 << 20 } else { 512 << 20 };
        Ok(Bench { ours: ground.built.join("forebay"), ground, budget })
    }

    /// Why nothing can be compared here, if so.
    fn skipped(&self) -> Vec<String> {
        let tried = Cage::with_swap(64 << 20, 64 << 20, &self.ground.folder);
        tried.err().map(|why| format!("everything: {why}")).into_iter().collect()
    }

    /// `forebay mem`, before the program.
    fn under_mem(&self) -> Command {
        let mut command = Command::new(&self.ours);
        command.args(["mem", "--dram", &self.budget.to_string(), "--tier"]).arg(&self.ground.folder);
        command.arg("--").arg(&self.ours);
        command
    }

    /// Nanoseconds of a kernel.
    fn kernel(&self, command: &mut Command, kernel: &str, place: &str) -> Result<f64, String> {
        let (budget, size) = (self.budget.to_string(), (4 * self.budget).to_string());
        command.args([
            "bench",
            "polybench",
            "--json",
            "--swap",
            "--steps",
            "2",
            "--kernel",
            kernel,
            "--place",
            place,
        ]);
        command.args(["--budget", &budget, "--size", &size, "--tier"]).arg(&self.ground.folder);
        let output = command.output().map_err(|e| format!("forebay: {e}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let document: Value = serde_json::from_str(&said)
            .map_err(|e| format!("{kernel}: {e}: {said}{}", String::from_utf8_lossy(&output.stderr)))?;
        let seconds = document["rows"][0]["seconds"].as_f64();
        seconds.map(|s| s * 1e9).ok_or_else(|| format!("{kernel} {place}: {said}"))
    }

    fn rows(&self, table: &mut Table, kernel: &str, bar: Option<f64>) -> Result<(), String> {
        let (memory, size) = (self.budget + BESIDE, 4 * self.budget);
        let mut swapped = Row::new(kernel, size, false, "in memory, with swap");
        if let Some(bar) = bar {
            swapped = swapped.with_bar(bar);
        }
        let mut unchanged =
            Row::new(&format!("{kernel} under forebay mem"), size, false, "in memory, with swap");
        if bar.is_some() {
            unchanged = unchanged.with_bar(MEM_BAR);
        }
        let mut mapped = Row::new(kernel, size, false, "mmap");
        for _ in table.turns(kernel) {
            let ours = self.kernel(&mut Command::new(&self.ours), kernel, "tiles")?;
            let cage = Cage::with_swap(memory, size + memory, &self.ground.folder)?;
            let with_swap = self.kernel(&mut cage.command(&self.ours), kernel, "dram")?;
            swapped.add(ours, with_swap);
            drop(cage);
            unchanged.add(self.kernel(&mut self.under_mem(), kernel, "dram")?, with_swap);
            let cage = Cage::new(memory)?;
            mapped.add(ours, self.kernel(&mut cage.command(&self.ours), kernel, "mmap")?);
        }
        table.push(swapped);
        table.push(unchanged);
        table.push(mapped);
        Ok(())
    }
}
