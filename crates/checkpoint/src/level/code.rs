//! The kind of redundancy of a level, and how it is written: `partner`, `xor:N`, `rs:K+M`.
//!
//! What each of them is, and what may be lost under it: `redundancy`.

use std::fmt;
use std::str::FromStr;

use forebay_terms::spelling::did_you_mean;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::format::GROUP_NODES_MAX;

/// Nodes of a group of `xor` where no number is given: as large as SCR's sets.
const XOR_NODES: u32 = 8;

/// The kind of redundancy, as it is written in a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Code {
    /// A copy on the next node.
    Partner,
    /// Groups of so many nodes, of which one may be lost.
    Xor {
        /// Nodes of a group.
        nodes: u32,
    },
    /// Groups of nodes of which some may be lost.
    ReedSolomon {
        /// Nodes that must be left.
        data: u32,
        /// Nodes that may be lost.
        parity: u32,
    },
}

impl Code {
    /// Nodes of a group that may be lost.
    pub fn lost_max(self) -> u32 {
        match self {
            Code::Partner | Code::Xor { .. } => 1,
            Code::ReedSolomon { parity, .. } => parity,
        }
    }

    /// Nodes of a group, where there are as many.
    pub(super) fn group_nodes(self) -> usize {
        match self {
            Code::Partner => 2,
            Code::Xor { nodes } => nodes as usize,
            Code::ReedSolomon { data, parity } => (data + parity) as usize,
        }
    }

    /// The number that stands for it in a record.
    pub(crate) fn tag(self) -> u32 {
        match self {
            Code::Partner => 1,
            Code::Xor { .. } => 2,
            Code::ReedSolomon { .. } => 3,
        }
    }

    /// What is wrong when a run has so many nodes.
    pub(crate) fn check_nodes(self, nodes: usize) -> Result<()> {
        if nodes > self.lost_max() as usize {
            return Ok(());
        }
        Err(Error::new(
            Kind::NotPossibleHere,
            format!("{self} needs pieces on {} nodes or more", self.lost_max() + 1),
        )
        .with("nodes", nodes)
        .hint("start ranks on more nodes (ranks_per_node=, FOREBAY_NODE), or save to a second level instead"))
    }

    /// The redundancy at the end of a level's place, as in `file+xor:4`, and the place without it.
    ///
    /// # Errors
    /// `Usage` for what looks like redundancy and is none.
    pub(crate) fn split(place: &str) -> Result<(&str, Option<Code>)> {
        for (at, _) in place.match_indices('+') {
            let (before, word) = (&place[..at], &place[at + 1..]);
            let name = word.split(':').next().unwrap_or(word);
            if ["partner", "xor", "rs"].contains(&name) {
                return Ok((before, Some(word.parse()?)));
            }
            if !word.contains('/') && did_you_mean(name, ["partner", "xor", "rs"]).is_some() {
                return word.parse::<Code>().map(|code| (before, Some(code)));
            }
        }
        Ok((place, None))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Partner => f.pad("partner"),
            Code::Xor { nodes } => f.pad(&format!("xor:{nodes}")),
            Code::ReedSolomon { data, parity } => f.pad(&format!("rs:{data}+{parity}")),
        }
    }
}

impl FromStr for Code {
    type Err = Error;

    fn from_str(text: &str) -> Result<Code> {
        let (name, numbers) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=GROUP_NODES_MAX).contains(n));
        let code = match (name, numbers) {
            ("partner", None) => Some(Code::Partner),
            ("xor", None) => Some(Code::Xor { nodes: XOR_NODES }),
            ("xor", Some(nodes)) => {
                number(nodes).filter(|nodes| *nodes >= 2).map(|nodes| Code::Xor { nodes })
            }
            ("rs", Some(numbers)) => numbers.split_once('+').and_then(|(data, parity)| {
                let (data, parity) = (number(data)?, number(parity)?);
                (data + parity <= GROUP_NODES_MAX).then_some(Code::ReedSolomon { data, parity })
            }),
            _ => None,
        };
        code.ok_or_else(|| {
            let near = did_you_mean(name, ["partner", "xor", "rs"]).filter(|near| *near != name);
            let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
            Error::new(Kind::Usage, format!("`{text}` is no redundancy")).hint(format!(
                "{near}partner, xor:N (groups of N nodes, one may be lost), or rs:K+M (groups of K+M, any M may be \
                 lost); at most {GROUP_NODES_MAX} nodes"
            ))
        })
    }
}

impl TryFrom<String> for Code {
    type Error = Error;

    fn try_from(text: String) -> Result<Code> {
        text.parse()
    }
}

impl From<Code> for String {
    fn from(code: Code) -> String {
        code.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundancy_reads_as_it_is_written() {
        for text in ["partner", "xor:2", "xor:256", "rs:4+2", "rs:1+1"] {
            assert_eq!(text.parse::<Code>().unwrap().to_string(), text);
        }
        assert_eq!("xor".parse::<Code>().unwrap(), Code::Xor { nodes: 8 });
        for text in ["", "xor:1", "xor:0", "xor:x", "rs", "rs:4", "rs:0+1", "rs:1+0", "rs:255+2", "partner:2"]
        {
            assert_eq!(text.parse::<Code>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn redundancy_is_told_from_directories() {
        let split = |text| Code::split(text).unwrap();
        assert_eq!(split("file+rs:4+2"), ("file", Some(Code::ReedSolomon { data: 4, parity: 2 })));
        assert_eq!(split("/mnt/c++/{node}+partner"), ("/mnt/c++/{node}", Some(Code::Partner)));
        assert_eq!(split("/mnt/a+b/ck"), ("/mnt/a+b/ck", None));
        assert_eq!(split("/mnt/+xor:2"), ("/mnt/", Some(Code::Xor { nodes: 2 })));
        let error = Code::split("file+parnter").unwrap_err().to_string();
        assert!(error.contains("did you mean partner?"), "{error}");
        assert_eq!(Code::split("file+xor:one").unwrap_err().kind(), Kind::Usage);
    }
}
