//! `cargo xtask bench put`: put, get, view, waking and the coupled stream beside other systems, as ratios.
//!
//! Times of one machine say little about another, so every figure is a ratio: ours and the other system's, measured
//! in turn, at least five times each; the median of the ratios is printed with their spread, and beside it the same
//! against a plain copy of memory on this machine. What the other systems need is skipped and counted where it is
//! missing; `--install` fetches it (the Python package into target/peers, the Debian package when root).
//! `--quick` runs everything once at toy size, so that the benchmark cannot rot; its figures mean nothing. `--only`
//! takes the name of one group of rows.

pub mod cage;
pub mod checkpoint;
mod disk;
pub mod expansion;
mod fio;
mod ground;
mod measures;
pub mod pager;
mod peers;
mod rows;
pub mod stream;
mod windows;

use crate::{Outcome, Stop};
use peers::Setup;
use rows::{Row, Table};
use std::path::Path;

/// Repetitions of every pair; fewer give no spread worth printing.
const REPETITIONS: usize = 5;

/// What was asked for.
#[derive(Clone, Copy, Default)]
pub struct Options {
    json: bool,
    quick: bool,
    install: bool,
}

/// Measures the rows of one question.
type Measure = fn(&Setup, bool, &mut Table) -> Result<(), String>;

/// The groups of rows, in the order of the table.
const GROUPS: [(&str, Measure); 8] = [
    ("put", measures::puts),
    ("batch", measures::batch),
    ("gathered", measures::gathered),
    ("between", measures::between),
    ("published", measures::published),
    ("small-stream", measures::small_stream),
    ("large-stream", measures::large_stream),
    ("disk", disk::all),
];

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let mut options = Options::default();
    let mut groups = GROUPS.to_vec();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--json" => options.json = true,
            "--quick" => options.quick = true,
            "--install" => options.install = true,
            "--only" => {
                let only = arguments.next().unwrap_or(&"");
                groups.retain(|(name, _)| name == only);
                if groups.is_empty() {
                    let names = GROUPS.map(|(name, _)| name).join(", ");
                    return Err(Stop::Usage(format!("bench put --only: one of {names}, not '{only}'")));
                }
            }
            other => {
                return Err(Stop::Usage(format!(
                    "bench put: unknown {other} (--json, --quick, --install, --only GROUP)"
                )))
            }
        }
    }
    let setup = Setup::new(root, options.install).map_err(Stop::Failed)?;
    let mut table = Table::new(if options.quick { 1 } else { REPETITIONS }, setup.skipped.clone());
    for (_, measure) in groups {
        measure(&setup, options.quick, &mut table).map_err(Stop::Failed)?;
    }
    if options.json {
        println!("{}", table.json("put"));
    } else {
        print!("{}", table.text());
    }
    let missed = table.rows.iter().filter(|row| !options.quick && row.misses());
    crate::no_findings(missed.map(Row::line).collect())
}
