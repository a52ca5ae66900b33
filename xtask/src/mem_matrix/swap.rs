//! The same programs under `forebay mem` and with a swap file, in turn, each in a memory cgroup of the same size.
//!
//! Needs root. Guarantees: cgroup and swap file go with each run. The cgroup may hold as much as the budget, what the
//! program has outside it, and what may be above the budget. It counts the page cache of the tier's files, too.

use std::time::Duration;

use super::rows::{Row, ROWS};
use super::watch::how;
use super::{Matrix, User, ABOVE_MAX, MIB};
use crate::bench::cage::Cage;
use crate::summary::Summary;

/// Rows that are compared.
const NAMES: [&str; 6] = [
    "pyarrow-groups",
    "polars-256",
    "sort-149",
    "kernel-mvt-200",
    "kernel-gemver-200",
    "kernel-jacobi-2d-200",
];

/// Pairs of runs of each.
const PAIRS: usize = 3;

/// The swap file.
const SWAP: u64 = 3 << 30;

/// Compares, and prints a line for each program.
pub fn run(matrix: &Matrix, only: &[String], summary: &mut Summary) {
    println!("{:<20}{:>8}{:>9}{:>20}{:>10}{:>10}", "", "budget", "ratio", "spread", "ours", "swap");
    let wanted = |row: &&Row| {
        NAMES.contains(&row.name) && (only.is_empty() || only.iter().any(|name| row.name.starts_with(name)))
    };
    for row in ROWS.iter().filter(wanted) {
        let words = match (row.command)(&matrix.ground) {
            Ok(words) => words,
            Err(why) => {
                summary.skip(row.name, &why);
                continue;
            }
        };
        match pairs(matrix, row, &words) {
            Ok(pairs) => {
                println!("{}", line(row, pairs));
                summary.passed += 1;
            }
            Err(why) => summary.fail(format!("{}: {why}", row.name)),
        }
    }
}

/// Seconds under `forebay mem` and with swap.
fn pairs(matrix: &Matrix, row: &Row, words: &[String]) -> Result<Vec<(f64, f64)>, String> {
    let (budget, limit) = (row.budget_mib * MIB, Duration::from_secs(2 * row.limit_s));
    let mem = [matrix.mem(budget), vec!["--".to_string()], words.to_vec()].concat();
    let succeeded = |words: &[String]| {
        let (ended, _) = matrix.one(words, User::Own, limit)?;
        match ended.status.is_some_and(|status| status.success()) {
            true => Ok(ended),
            false => Err(how(ended.status)),
        }
    };
    // How much it has outside.
    let bytes = budget + succeeded(&mem)?.peak.outside + ABOVE_MAX;
    let in_cage = |cage: &Cage, words: &[String]| {
        let script = "echo $$ >\"$0\" && exec \"$@\"";
        let caged = ["sh", "-c", script, &cage.processes().display().to_string()].map(str::to_string);
        succeeded(&[caged.to_vec(), words.to_vec()].concat()).map(|ended| ended.seconds)
    };
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let ours = in_cage(&Cage::new(bytes)?, &mem).map_err(|e| format!("under forebay mem: {e}"))?;
        let cage = Cage::with_swap(bytes, SWAP, &matrix.ground.folder)?;
        let theirs = in_cage(&cage, words).map_err(|e| format!("with swap: {e}"))?;
        pairs.push((ours, theirs));
    }
    Ok(pairs)
}

/// How many times as fast as with swap: median, least and most.
fn line(row: &Row, mut pairs: Vec<(f64, f64)>) -> String {
    pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| theirs / ours).collect();
    let middle = pairs.len() / 2;
    let spread = format!("{:.2}..{:.2}", ratios[0], ratios[ratios.len() - 1]);
    format!(
        "{:<20}{:>4} MiB{:>9.2}{spread:>20}{:>8.1} s{:>8.1} s",
        row.name, row.budget_mib, ratios[middle], pairs[middle].0, pairs[middle].1
    )
}
