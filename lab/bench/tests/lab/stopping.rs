//! Signals in the middle of a measurement: the verb ends as the signal says, and nothing is left behind.

use crate::interrupted::{leave_nothing_behind, only_sigterm_ends_under_nohup};

/// Verbs that would go on for minutes.
const VERBS: &[&[&str]] = &[
    &["bench", "stream", "--elements", "100000", "--rounds", "1000000"],
    &["bench", "stream", "--place", "file", "--elements", "100000", "--rounds", "1000000"],
    &["bench", "lriot", "--size", "8MiB", "--seconds", "3600"],
    &["bench", "ior", "--size", "64MiB", "--transfer", "1", "--interface", "file"],
];

#[test]
fn a_signal_in_the_middle_leaves_nothing_behind() {
    leave_nothing_behind(VERBS);
}

#[test]
fn under_nohup_only_sigterm_ends_a_measurement() {
    only_sigterm_ends_under_nohup(VERBS);
}
