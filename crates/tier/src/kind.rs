//! The words for tiers and promises: which kind of tier, when stores are made persistent, what a write
//! survives.
//!
//! Plain values without behaviour; text forms are the lower-case words that files, variables and screens use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind};

/// A kind of place where bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// Main memory: a file on tmpfs, mapped by every process that uses it.
    Dram,
    /// The page cache of a block file system: written by system calls, read through a mapping.
    File,
    /// Persistent memory: a file on a DAX file system, mapped with MAP_SYNC.
    Pmem,
}

/// When stores are made persistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Horizon {
    /// Never by us: a write is acknowledged once other processes can see it.
    #[default]
    None,
    /// Once per version, before the version is acknowledged.
    Epoch,
    /// With every store, before the call returns.
    Write,
}

/// What an acknowledged write survives. Each value includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The end of the writing process, however it came.
    Process,
    /// A crash or reboot of the operating system.
    Os,
    /// Loss of power.
    Power,
}

/// How a pool is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Published bytes can be read; every write is refused.
    Read,
    /// Bytes can be read and written.
    Write,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TierKind::Dram => "dram",
            TierKind::File => "file",
            TierKind::Pmem => "pmem",
        })
    }
}

impl FromStr for TierKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "dram" => Ok(TierKind::Dram),
            "file" => Ok(TierKind::File),
            "pmem" => Ok(TierKind::Pmem),
            _ => Err(unknown_word("tier", text, "dram, file, pmem")),
        }
    }
}

impl fmt::Display for Horizon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Horizon::None => "none",
            Horizon::Epoch => "epoch",
            Horizon::Write => "write",
        })
    }
}

impl FromStr for Horizon {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Horizon::None),
            "epoch" => Ok(Horizon::Epoch),
            "write" => Ok(Horizon::Write),
            _ => Err(unknown_word("horizon", text, "none, epoch, write")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Durability::Process => "process crash",
            Durability::Os => "OS crash",
            Durability::Power => "power failure",
        })
    }
}

fn unknown_word(what: &str, text: &str, words: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a {what}")).hint(format!("one of: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_read_back() {
        for kind in [TierKind::Dram, TierKind::File, TierKind::Pmem] {
            assert_eq!(kind.to_string().parse::<TierKind>().unwrap(), kind);
        }
        for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
            assert_eq!(horizon.to_string().parse::<Horizon>().unwrap(), horizon);
        }
        assert_eq!("ram".parse::<TierKind>().unwrap_err().kind(), Kind::Usage);
        assert!(Durability::Process < Durability::Os && Durability::Os < Durability::Power);
    }
}
