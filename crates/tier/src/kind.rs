//! The words for tiers and promises: which kind of tier, when stores are made persistent, what a write
//! survives.
//!
//! Plain values without behaviour; text forms are the lower-case words that files, variables and screens use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind};

/// A kind of place where bytes live.
///
/// In files, variables and on screens it is one word: `dram`, `file`, `pmem`, `direct`, `devdax`, or `numa:1` with
/// the number of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TierKind {
    /// Main memory: a file on tmpfs, mapped by every process that uses it.
    Dram,
    /// The page cache of a block file system: written by system calls, read through a mapping.
    File,
    /// Persistent memory: a file on a DAX file system, mapped with MAP_SYNC.
    Pmem,
    /// A block file system past its page cache: written with O_DIRECT, many requests in flight.
    Direct,
    /// Persistent or CXL memory as a character device (`/dev/dax0.0`), mapped without a file system.
    DevDax,
    /// Main memory of one node of the machine, also memory behind CXL: as `dram`, bound to that node.
    Numa(u16),
    /// A store of whole objects behind a network (S3 and its like). No pool of bytes can lie there.
    Object,
}

impl TierKind {
    /// Whether it is main memory: its bytes end with the boot, and filling it takes memory from programs.
    pub fn is_memory(self) -> bool {
        matches!(self, TierKind::Dram | TierKind::Numa(_))
    }
}

/// How the pages of a pool on a memory node got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The kernel was told (mbind), and a sample of the pages says that they lie there.
    Bound,
    /// Binding was refused; a thread pinned to the node touched them first, and a sample says that they lie there.
    FirstTouch,
    /// Nothing was prepared yet, or the kernel does not tell where pages lie.
    Unverified,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Bound => "bound",
            Placement::FirstTouch => "first touch",
            Placement::Unverified => "unverified",
        })
    }
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
            TierKind::Direct => "direct",
            TierKind::DevDax => "devdax",
            TierKind::Object => "object",
            TierKind::Numa(node) => return f.pad(&format!("{NUMA_PREFIX}{node}")),
        })
    }
}

/// What stands before the number of a memory node.
const NUMA_PREFIX: &str = "numa:";

/// The words for tiers that bytes can be put on, for messages.
const TIER_WORDS: &str = "dram, numa:N, pmem, devdax, file, direct";

impl FromStr for TierKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "dram" => Ok(TierKind::Dram),
            "file" => Ok(TierKind::File),
            "pmem" => Ok(TierKind::Pmem),
            "direct" => Ok(TierKind::Direct),
            "devdax" => Ok(TierKind::DevDax),
            "object" => Ok(TierKind::Object),
            _ => node_number(text).map(TierKind::Numa).ok_or_else(|| unknown_word("tier", text, TIER_WORDS)),
        }
    }
}

/// The node in `numa:N`: digits only, so that a tier has one text form.
fn node_number(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(NUMA_PREFIX)?;
    let plain = digits == "0" || !digits.starts_with('0');
    (plain && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

impl TryFrom<String> for TierKind {
    /// One line, which the reader of a file puts after its name and line.
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|e: Error| format!("{}; {}", e.message(), e.hint_text().unwrap_or_default()))
    }
}

impl From<TierKind> for String {
    fn from(kind: TierKind) -> String {
        kind.to_string()
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
        let nodes = [0, 1, u16::MAX].map(TierKind::Numa);
        use TierKind::{DevDax, Direct, Dram, File, Object, Pmem};
        let others = [Dram, File, Pmem, Direct, DevDax, Object];
        for kind in nodes.into_iter().chain(others) {
            assert_eq!(kind.to_string().parse::<TierKind>().unwrap(), kind);
            assert_eq!(TierKind::try_from(String::from(kind)).unwrap(), kind);
        }
        for wrong in ["numa", "numa:", "numa:x", "numa:+1", "numa:01", "numa:65536", "numa:-1", "Dram"] {
            assert_eq!(wrong.parse::<TierKind>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
        let said = TierKind::try_from("ram".to_string()).unwrap_err();
        assert_eq!(said, "`ram` is not a tier; one of: dram, numa:N, pmem, devdax, file, direct");
        assert_eq!(format!("{:>7}|", TierKind::Numa(3)), " numa:3|");
        for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
            assert_eq!(horizon.to_string().parse::<Horizon>().unwrap(), horizon);
        }
        assert_eq!("ram".parse::<TierKind>().unwrap_err().kind(), Kind::Usage);
        assert!(Durability::Process < Durability::Os && Durability::Os < Durability::Power);
    }
}
