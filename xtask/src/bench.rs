//! `cargo xtask bench put`: put and the coupled stream beside other systems, as ratios within one run.
use crate::Outcome;
use std::path::Path;
/// Runs the comparison.
pub fn run(_root: &Path, _arguments: &[&str]) -> Outcome {
    Ok(())
}
