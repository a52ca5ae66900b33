//! A part: what the writers of one node put into a space whose writers are on several nodes.
//!
//! A part is an ordinary space of its node, `NAME.part`, whose writers are numbered 0 to L-1 as the processes of the
//! node are. Which ranks of the whole group they are stands in its attributes, one for each writer. The agents of the
//! job make one space of all parts, wherever it is read.
//!
//! Guarantees: parts are made only where an agent serves the node and the launcher says which processes are on it.
//! Parts of one run are known by the launch, where its launcher says it, and by how often their writers had opened the
//! space before. What would need agreement between nodes is refused: a part is not continued (mode `a`). Not here: how
//! parts are joined (`forebay-cluster`).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use forebay_config::{environment, launch_across_nodes, Mechanism, Mode, OpenOptions, Spread};
use forebay_tier::{Error, Kind, Result};
use rustc_hash::FxHasher;

use crate::attributes::Attribute;
use crate::place::agent::agent_serves;
use crate::place::name::{check_short, is_path};

/// What the name of a part ends with.
const SUFFIX: &str = ".part";
/// What the keys of its own attributes begin with.
const KEY_PREFIX: &str = "forebay.part.";
/// Ranks of a group on several nodes. On the node of a reader one process is the writer for all of them, which a space
/// has places for beside its readers.
const RANKS_MAX: u32 = 1024;

/// The name of the part of the space `name` on each node.
#[doc(hidden)]
pub fn part_name(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// A writer of a part, as its program knows it.
pub(crate) struct WriterOfPart {
    /// Name of the whole space.
    pub name: String,
    /// Rank in the whole group.
    pub rank: u32,
    /// Ranks of the whole group.
    pub size: u32,
    /// Rank among the writers of the part.
    local: u32,
    /// Writers of the part.
    here: u32,
}

impl WriterOfPart {
    /// Of a group with processes on these nodes; None: all are on this one. `options` are resolved.
    ///
    /// # Errors
    /// [`Kind::SeveralNodes`]: no agent serves this node, or the processes on it are not known;
    /// [`Kind::NotPossibleHere`]: the mode is `a`; [`Kind::TooMany`].
    pub fn of(name: &str, options: &OpenOptions, spread: Spread) -> Result<Option<WriterOfPart>> {
        let Spread::SeveralNodes { local } = spread else { return Ok(None) };
        check_agent(name, options, spread)?;
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        if size == 1 {
            return Ok(None);
        }
        let Some((local, here)) = local else {
            return Err(Error::new(
                Kind::SeveralNodes,
                format!("cannot determine which writers of space {name} run on this node"),
            )
            .hint(
                "set FOREBAY_RANK, FOREBAY_SIZE, FOREBAY_LOCAL_RANK and FOREBAY_LOCAL_SIZE for each rank; required \
                 with a communicator other than MPI_COMM_WORLD",
            ));
        };
        if options.mode == Mode::Append {
            return Err(not_continued(name));
        }
        if size > RANKS_MAX {
            return Err(Error::new(
                Kind::TooMany,
                format!("space {name} has too many writers on several nodes"),
            )
            .with("size", size)
            .with("size_max", RANKS_MAX)
            .hint("let one rank of each node, or of some nodes, write for the others"));
        }
        check_short(&part_name(name))?;
        Ok(Some(WriterOfPart { name: name.to_string(), rank, size, local, here }))
    }

    /// The options with which its part is opened.
    pub fn options(&self, options: OpenOptions) -> OpenOptions {
        OpenOptions { rank: Some(self.local), size: Some(self.here), ..options }
    }

    /// Its attribute of the part that it has just opened: which rank it is, and of which run.
    pub fn attribute(&self) -> (String, Attribute) {
        self.attribute_of(launch_token(), count_open(&self.name))
    }

    fn attribute_of(&self, launch: u64, opened: u64) -> (String, Attribute) {
        let numbers = [self.rank, self.size, self.here].map(i64::from);
        // Bit for bit: an attribute has no unsigned numbers.
        let run = [launch, opened].map(|number| number as i64);
        (format!("{KEY_PREFIX}{}", self.local), Attribute::Ints([&numbers[..], &run].concat()))
    }
}

/// Tells launches of one program apart, the same on all of its nodes.
fn launch_token() -> u64 {
    launch_across_nodes(&environment::process).map_or(0, |launch| {
        let mut hasher = FxHasher::default();
        launch.hash(&mut hasher);
        hasher.finish() | 1
    })
}

/// How often this process has opened the part of this name, this time included. A program that opens the space for each
/// of several runs does so on all nodes.
fn count_open(name: &str) -> u64 {
    static OPENED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let count = opened.entry(name.to_string()).or_default();
    *count += 1;
    *count
}

/// The error for a writer that would continue what others of its node put.
pub(crate) fn not_continued(name: &str) -> Error {
    Error::new(
        Kind::NotPossibleHere,
        format!("space {name} has writers on several nodes and cannot be continued"),
    )
    .hint("open it with mode=\"w\" and replace, and continue the program from a checkpoint")
}

/// Refuses a group of several nodes where no agent serves this one. `options` are resolved.
///
/// # Errors
/// [`Kind::SeveralNodes`].
pub(crate) fn check_agent(name: &str, options: &OpenOptions, spread: Spread) -> Result<()> {
    let is_short = options.channel == Mechanism::Space && !is_path(&options.place(name));
    match spread {
        Spread::SeveralNodes { .. } if is_short && agent_serves() => Ok(()),
        spread => spread.check_one_node().map_err(|e| {
            e.hint(match is_short {
                true => {
                    "start an agent on each node (`forebay agent start`), or open with scope=\"node\" \
                     (FOREBAY_SCOPE=node) to couple the processes of each node by themselves"
                }
                false => {
                    "agents serve spaces with a short name: use one, without channel=\"files\", or open with \
                     scope=\"node\" (FOREBAY_SCOPE=node) to couple the processes of each node by themselves"
                }
            })
        }),
    }
}

/// Which ranks of the whole group the writers of a part are.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ranks of the whole group.
    pub size: u32,
    /// The rank of each writer of the part.
    pub ranks: Vec<u32>,
    /// The launch; 0: its launcher does not say it.
    pub launch: u64,
    /// How often its writers had opened the space, this time included.
    pub opened: u64,
}

impl Part {
    /// From the attributes of a space; None: it is no part, or some of its writers have not opened it yet.
    pub fn of(attributes: &BTreeMap<String, Attribute>) -> Option<Part> {
        let said = |local: u32| match attributes.get(&format!("{KEY_PREFIX}{local}"))? {
            Attribute::Ints(numbers) => {
                let [rank, of_all @ ..] = numbers.as_slice() else { return None };
                Some((u32::try_from(*rank).ok()?, <[i64; 4]>::try_from(of_all).ok()?))
            }
            _ => None,
        };
        let (_, of_all) = said(0)?;
        let [size, here, launch, opened] = of_all;
        let (size, here) = (u32::try_from(size).ok()?, u32::try_from(here).ok()?);
        let same =
            |local| said(local).filter(|(rank, own)| *own == of_all && *rank < size).map(|(rank, _)| rank);
        let ranks = (0..here).map(same).collect::<Option<Vec<u32>>>()?;
        Some(Part { size, ranks, launch: launch as u64, opened: opened as u64 })
    }
}

/// The attributes without those of a part.
#[doc(hidden)]
pub fn without_part(mut attributes: BTreeMap<String, Attribute>) -> BTreeMap<String, Attribute> {
    attributes.retain(|key, _| !key.starts_with(KEY_PREFIX));
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_known_once_all_of_its_writers_have_said_who_they_are() {
        let attribute = |local, rank, opened| {
            WriterOfPart { name: "heat".into(), rank, size: 4, local, here: 2 }.attribute_of(u64::MAX, opened)
        };
        let mut attributes = BTreeMap::from([("units".to_string(), Attribute::Text("K".into()))]);
        assert_eq!(Part::of(&attributes), None);
        attributes.extend([attribute(0, 1, 2)]);
        assert_eq!(Part::of(&attributes), None);
        attributes.extend([attribute(1, 3, 2)]);
        assert_eq!(
            Part::of(&attributes),
            Some(Part { size: 4, ranks: vec![1, 3], launch: u64::MAX, opened: 2 })
        );
        assert_eq!(without_part(attributes.clone()).len(), 1);
        attributes.extend([attribute(1, 4, 2)]);
        assert_eq!(Part::of(&attributes), None, "no rank of the group");
        attributes.extend([attribute(1, 3, 1)]);
        assert_eq!(Part::of(&attributes), None, "of another run");
        for wrong in [vec![], vec![3], vec![3, 4, 2], vec![-1, 4, 2, -1, 2]] {
            attributes.insert("forebay.part.1".into(), Attribute::Ints(wrong));
            assert_eq!(Part::of(&attributes), None);
        }
    }
}
