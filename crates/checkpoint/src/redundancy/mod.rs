//! Redundancy of a level: what else is kept of each step, on other nodes, so that a lost node or a damaged file costs
//! nothing.
//!
//! A level with redundancy has one directory for each node; what lies in one of them is lost together. Each rank's
//! piece lies on the rank's own node. What protects it lies on others:
//! - `partner`: a copy on the next node. Any nodes may be lost of which no two are neighbours.
//! - `xor:N`: groups of N nodes, each with parity of the others'. One node of each group may be lost.
//! - `rs:K+M`: groups of K + M nodes, Reed–Solomon. Any M nodes of each group may be lost.
//!
//! Guarantees: parity is written for committed steps only, by the rank that keeps it, and never touches a step's own
//! files: what was committed before is as good as it was, whenever the writing ends. Rebuilt bytes are compared twice,
//! with checksums that were taken when parity was written and with those of the manifest that was committed, before a
//! step counts as whole.
//!
//! Not here: who asks for it and when (the drain, the search for a step to restore), and how bytes get to other
//! nodes: every rank sees the directories of all nodes.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use forebay_terms::spelling::did_you_mean;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::format::StepId;
use crate::level::{directory_of, Level};
use crate::place::Nodes;

#[cfg(test)]
mod crash_tests;
mod group;
mod owed;
mod parity;
mod record;
mod repair;
mod state;

pub(crate) use owed::Owed;
pub(crate) use record::layouts;
pub use record::{Member, ParityRecord};
pub(crate) use repair::repair;
pub use repair::Repair;
pub(crate) use state::look;
pub use state::{Protection, State};

/// Nodes of a group of `xor` where no number is given: as large as SCR's sets.
const XOR_NODES: u32 = 8;

/// Most nodes of a group: every one of them is read to rebuild a piece.
const GROUP_NODES_MAX: u32 = 256;

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
    fn group_nodes(self) -> usize {
        match self {
            Code::Partner => 2,
            Code::Xor { nodes } => nodes as usize,
            Code::ReedSolomon { data, parity } => (data + parity) as usize,
        }
    }

    /// The number that stands for it in a record.
    fn tag(self) -> u32 {
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

/// What a level with redundancy has beside its place.
pub struct Guard {
    /// The kind.
    pub(crate) code: Code,
    /// The directories of the nodes.
    pub(crate) nodes: Arc<Nodes>,
}

/// What the names of parity and of the records about it end with.
const PARITY: &str = ".parity";
const RECORD: &str = ".redundancy";

/// The file of a step that a rank keeps for a row of pieces.
fn file_name(holder: u32, row: u32, end: &str) -> String {
    format!("{holder:05}.{row}{end}")
}

/// A hidden name for a file in the making, of no other writer.
fn hidden(dir: &str, file: &str) -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{dir}/.{file}.{random:016x}")
}

/// Rank and row of a record's file.
fn record_of(file: &str) -> Option<(u32, u32)> {
    let (holder, row) = file.strip_suffix(RECORD)?.split_once('.')?;
    Some((holder.parse().ok()?, row.parse().ok()?))
}

/// The node of each rank of a step, as far as its piece is there; also every node that has something of the step.
fn homes(guard: &Guard, id: StepId, size: u32) -> Result<Vec<Option<String>>> {
    let mut homes = vec![None; size as usize];
    for (node, place) in guard.nodes.all()? {
        for file in place.list(&directory_of(id))? {
            let rank = file.strip_suffix(".manifest").and_then(|rank| rank.parse::<usize>().ok());
            if let Some(home) = rank.and_then(|rank| homes.get_mut(rank)) {
                *home = Some(node.clone());
            }
        }
    }
    Ok(homes)
}

/// Writes what every rank of a committed step would keep, as far as it is missing.
///
/// # Errors
/// `NotPossibleHere` on too few nodes; `Damaged` when the step is not whole; those of the places.
pub(crate) fn protect_all(level: &Level, id: StepId) -> Result<()> {
    let Some(guard) = &level.guard else { return Ok(()) };
    let Some(commit) = level.commit_record(id)? else { return Ok(()) };
    for rank in 0..commit.ranks.len() as u32 {
        parity::protect(level, guard, &commit, rank)?;
    }
    Ok(())
}

/// Whether a committed step has everything that protects it on every node, as far as names say. True without
/// redundancy.
pub(crate) fn is_protected(level: &Level, id: StepId) -> Result<bool> {
    let Some(guard) = &level.guard else { return Ok(true) };
    let Some(commit) = level.commit_record(id)? else { return Ok(false) };
    match group::plan(guard, &commit)? {
        Some(groups) => state::missing(guard, id, &groups).map(|missing| missing == (0, 0)),
        None => Ok(false),
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
