//! What the saves of a process have cost so far: what the interval between them follows from.

use std::time::Duration;

/// What a checkpoint did so far in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Calls of `save` that returned a step.
    pub saves: u64,
    /// How long they kept the program from going on.
    pub blocked: Duration,
    /// Seconds that a save blocks, of late: a mean in which each save counts twice as much as the one before it did.
    pub cost_s: f64,
    /// The same for the way down to the last level.
    pub carried_s: f64,
    /// Seconds that the last restore took.
    pub restore_s: f64,
}

/// A mean that follows what changes.
pub(crate) fn follow(mean: f64, seen: f64) -> f64 {
    if mean == 0.0 {
        seen
    } else {
        (mean + seen) / 2.0
    }
}
