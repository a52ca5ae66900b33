//! The words of a plan: one way to run a workflow of a component that writes and one that reads.
//!
//! Guarantees: the texts of plans are read back as the plans they came from; in files they are the same words.
//! Not here: which plans are possible on a node, what they cost, how they are carried out.

use std::fmt;
use std::str::FromStr;

use forebay_terms::spelling::did_you_mean;
use forebay_terms::{Error, Kind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When writers and readers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The readers start when the writers have written everything.
    Serial,
    /// The writers wait after each step until the readers have read it.
    SerialPerStep,
    /// Both at once: readers read a version as soon as it is complete.
    Parallel,
    /// Both at once, with at most so many inside the tier at a time.
    Gated {
        /// Most writing ranks inside the tier.
        writers: u32,
        /// Most reading ranks inside the tier.
        readers: u32,
    },
}

/// Whose processors the channel lies beside, where writers and readers run on different sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// Beside the writers: reads are remote.
    Writer,
    /// Beside the readers: writes are remote.
    Reader,
    /// Spread over the sockets in turn: half of all accesses are remote.
    Interleaved,
}

/// One way to run a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// When writers and readers run.
    pub mode: Mode,
    /// Whose processors the channel lies beside.
    pub locality: Locality,
    /// Name of the tier of the profile that holds the channel.
    pub tier: String,
    /// Objects are gathered to batches of about so many bytes; absent where each is written by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batching: Option<u64>,
}

impl Mode {
    /// Whether writers and readers are never inside the tier at the same time.
    pub fn is_serial(self) -> bool {
        matches!(self, Mode::Serial | Mode::SerialPerStep)
    }
}

impl Plan {
    /// A plan that gathers nothing.
    pub fn new(mode: Mode, locality: Locality, tier: impl Into<String>) -> Plan {
        Plan { mode, locality, tier: tier.into(), batching: None }
    }

    /// Mode and locality in the names of Venkatesh and others, Table I: `S-LocW`, `S-LocR`, `P-LocW`, `P-LocR`. They
    /// are continued for what that table lacks: `SS` serial per step, `G4w8r` gated, `LocI` interleaved, `+b` in
    /// batches.
    pub fn short(&self) -> String {
        let locality = match self.locality {
            Locality::Writer => "LocW",
            Locality::Reader => "LocR",
            Locality::Interleaved => "LocI",
        };
        let mode = match self.mode {
            Mode::Serial => "S".to_owned(),
            Mode::SerialPerStep => "SS".to_owned(),
            Mode::Parallel => "P".to_owned(),
            Mode::Gated { writers, readers } => format!("G{writers}w{readers}r"),
        };
        let batches = if self.batching.is_some() { "+b" } else { "" };
        format!("{mode}-{locality}{batches}")
    }

    /// The four plans of Table I on a tier, in its order.
    pub fn of_the_study(tier: &str) -> [Plan; 4] {
        let of = |mode, locality| Plan::new(mode, locality, tier);
        [
            of(Mode::Serial, Locality::Writer),
            of(Mode::Serial, Locality::Reader),
            of(Mode::Parallel, Locality::Writer),
            of(Mode::Parallel, Locality::Reader),
        ]
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Serial => f.pad("serial"),
            Mode::SerialPerStep => f.pad("serial-per-step"),
            Mode::Parallel => f.pad("parallel"),
            Mode::Gated { writers, readers } => f.pad(&format!("gated:{writers}w{readers}r")),
        }
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Locality::Writer => "writer",
            Locality::Reader => "reader",
            Locality::Interleaved => "interleaved",
        })
    }
}

/// `S-LocW on pmem`, and `, batches of 8388608 B` where it gathers.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{} on {}", self.short(), self.tier);
        if let Some(bytes) = self.batching {
            text += &format!(", batches of {bytes} B");
        }
        f.pad(&text)
    }
}

/// Begin and what lies between the numbers of `gated:4w8r`.
fn gates(text: &str) -> Option<(u32, u32)> {
    let (writers, readers) = text.strip_prefix("gated:")?.strip_suffix('r')?.split_once('w')?;
    let count = |t: &str| t.parse().ok().filter(|n| *n > 0);
    Some((count(writers)?, count(readers)?))
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mode> {
        match text {
            "serial" => return Ok(Mode::Serial),
            "serial-per-step" => return Ok(Mode::SerialPerStep),
            "parallel" => return Ok(Mode::Parallel),
            _ => {}
        }
        if let Some((writers, readers)) = gates(text) {
            return Ok(Mode::Gated { writers, readers });
        }
        Err(unknown("mode", text, &["serial", "serial-per-step", "parallel", "gated:4w8r"]))
    }
}

impl FromStr for Locality {
    type Err = Error;

    fn from_str(text: &str) -> Result<Locality> {
        match text {
            "writer" => Ok(Locality::Writer),
            "reader" => Ok(Locality::Reader),
            "interleaved" => Ok(Locality::Interleaved),
            _ => Err(unknown("locality", text, &["writer", "reader", "interleaved"])),
        }
    }
}

fn unknown(what: &str, text: &str, known: &[&str]) -> Error {
    let error = Error::new(Kind::Usage, format!("`{text}` is not a valid {what}"));
    match did_you_mean(text, known.iter().copied()) {
        Some(close) => error.hint(format!("did you mean {close}?")),
        None => error.hint(format!("one of {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 4] =
        [Mode::Serial, Mode::SerialPerStep, Mode::Parallel, Mode::Gated { writers: 4, readers: 8 }];
    const LOCALITIES: [Locality; 3] = [Locality::Writer, Locality::Reader, Locality::Interleaved];

    #[test]
    fn the_words_are_read_back() {
        for mode in MODES {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
        }
        for locality in LOCALITIES {
            assert_eq!(locality.to_string().parse::<Locality>().unwrap(), locality);
            let json = serde_json::to_string(&locality).unwrap();
            assert_eq!(json, format!("\"{locality}\""));
        }
        let plan = Plan { batching: Some(1 << 20), ..Plan::new(MODES[3], Locality::Interleaved, "numa:1") };
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"mode":{"gated":{"writers":4,"readers":8}},"#,
                r#""locality":"interleaved","tier":"numa:1","batching":1048576}"#
            )
        );
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }

    #[test]
    fn names_of_the_study_and_beyond() {
        let names: Vec<String> = Plan::of_the_study("pmem").iter().map(Plan::short).collect();
        assert_eq!(names, ["S-LocW", "S-LocR", "P-LocW", "P-LocR"]);
        assert_eq!(Plan::new(MODES[1], Locality::Interleaved, "pmem").to_string(), "SS-LocI on pmem");
        assert_eq!(Plan::new(MODES[3], Locality::Reader, "pmem").short(), "G4w8r-LocR");
    }

    #[test]
    fn other_words_name_the_nearest() {
        assert_eq!("paralel".parse::<Mode>().unwrap_err().hint_text(), Some("did you mean parallel?"));
        for wrong in ["gated", "gated:0w1r", "gated:1w", "gated:w1r", "Serial"] {
            assert_eq!(wrong.parse::<Mode>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
        assert_eq!("readers".parse::<Locality>().unwrap_err().hint_text(), Some("did you mean reader?"));
    }
}
