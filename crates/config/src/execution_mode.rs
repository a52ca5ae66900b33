//! Who may be at work on a channel when: both sides at once, in turns, or a few at a time.
//!
//! The writers say the execution mode when they open a space; it stands in the control segment, and every rank of
//! either side obeys it from its next step on. What it is good for is decided elsewhere: on some tiers readers and
//! writers that come at once, or too many of them, slow each other down by more than waiting costs.
//!
//! Not here: the gates that count who is inside (`space`).

use std::fmt;
use std::str::FromStr;

use forebay_tier::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::value::{as_text, refuse};

/// Most ranks of one side that a gate can count; the places stand in one page of the control segment.
pub const GATE_PLACES_MAX: u32 = 64;

/// Who may be at work on a channel when. Text: `parallel`, `serial-per-step`, `serial`, `gated:4w8r`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ExecutionMode {
    /// Both sides at once: a version is read as soon as it is complete.
    #[default]
    Parallel,
    /// In turns: a writer goes on behind a version when every reader has released it.
    SerialPerStep,
    /// One after the other: readers begin when all writers have ended.
    Serial,
    /// Both sides at once, but only so many ranks inside a call that moves data.
    Gated {
        /// Most writing ranks, 1 to [`GATE_PLACES_MAX`].
        writers: u32,
        /// Most reading ranks, 1 to [`GATE_PLACES_MAX`].
        readers: u32,
    },
}

impl fmt::Display for ExecutionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecutionMode::Parallel => f.pad("parallel"),
            ExecutionMode::SerialPerStep => f.pad("serial-per-step"),
            ExecutionMode::Serial => f.pad("serial"),
            ExecutionMode::Gated { writers, readers } => f.pad(&format!("gated:{writers}w{readers}r")),
        }
    }
}

/// Writers and readers of `gated:4w8r`.
fn places(text: &str) -> Option<(u32, u32)> {
    let (writers, readers) = text.strip_prefix("gated:")?.strip_suffix('r')?.split_once('w')?;
    let count = |t: &str| t.parse().ok().filter(|n| (1..=GATE_PLACES_MAX).contains(n));
    Some((count(writers)?, count(readers)?))
}

impl FromStr for ExecutionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<ExecutionMode> {
        match text {
            "parallel" => Ok(ExecutionMode::Parallel),
            "serial-per-step" => Ok(ExecutionMode::SerialPerStep),
            "serial" => Ok(ExecutionMode::Serial),
            _ => places(text).map(|(writers, readers)| ExecutionMode::Gated { writers, readers }).ok_or_else(
                || {
                    let gated = format!("gated:4w8r with 1 to {GATE_PLACES_MAX} of each");
                    refuse("execution_mode", text, &format!("parallel | serial-per-step | serial | {gated}"))
                },
            ),
        }
    }
}

as_text!(ExecutionMode);

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tier::Kind;

    #[test]
    fn modes_are_read_as_written() {
        let gated = ExecutionMode::Gated { writers: 4, readers: 64 };
        for execution_mode in
            [ExecutionMode::Parallel, ExecutionMode::SerialPerStep, ExecutionMode::Serial, gated]
        {
            assert_eq!(execution_mode.to_string().parse::<ExecutionMode>().unwrap(), execution_mode);
        }
        for wrong in ["gated", "gated:0w1r", "gated:1w65r", "gated:1r1w", "Serial", ""] {
            assert_eq!(wrong.parse::<ExecutionMode>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }
}
