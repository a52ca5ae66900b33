//! The same programs under `forebay mem` and in a memory cgroup with a swap file, in turn.
//!
//! Needs root. Guarantees: cgroup and swap file go with each run. The cgroup may hold as much as the budget and what
//! the program has outside it, so that both have the same memory.

use std::time::Duration;

use super::rows::{Row, ROWS};
use super::watch::how;
use super::{Matrix, User, MIB};
use crate::bench::cage::Cage;
use crate::summary::Summary;

/// Rows that are compared.
const NAMES: [&str; 4] = ["pyarrow-groups", "polars-256", "sort-149", "kernel-mvt-200"];

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
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let mem = [matrix.mem(budget), vec!["--".to_string()], words.to_vec()].concat();
        let (ours, _) = matrix.one(&mem, User::Own, limit)?;
        let cage = Cage::with_swap(budget + ours.peak.outside, SWAP, &matrix.ground.folder)?;
        let script = "echo $$ >\"$0\" && exec \"$@\"";
        let caged = ["sh", "-c", script, &cage.processes().display().to_string()].map(str::to_string);
        let (theirs, _) = matrix.one(&[caged.to_vec(), words.to_vec()].concat(), User::Own, limit)?;
        drop(cage);
        for ended in [&ours, &theirs] {
            if !ended.status.is_some_and(|status| status.success()) {
                return Err(how(ended.status));
            }
        }
        pairs.push((ours.seconds, theirs.seconds));
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
