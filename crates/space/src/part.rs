//! A part: what the writers of one node put into a space whose writers are on several nodes.
//!
//! A part is an ordinary space of its node, `NAME.part`, whose writers are numbered 0 to L-1 as the processes of the
//! node are. Which ranks of the whole group they are stands in its attributes, one for each writer. The agents of the
//! job make one space of all parts, wherever it is read.
//!
//! Guarantees: parts are made only where an agent serves the node and the launcher says which processes are on it. What
//! would need agreement between nodes is refused: a part is not continued (mode `a`). Not here: how parts are joined
//! (`forebay-cluster`).

use std::collections::BTreeMap;

use forebay_config::{Mechanism, Mode, OpenOptions, Spread};
use forebay_tier::{Error, Kind, Result};

use crate::attributes::Attribute;
use crate::place::demand::agent_serves;
use crate::place::name::{check_short, is_path};

/// What the name of a part ends with.
const SUFFIX: &str = ".part";
/// What the keys of its own attributes begin with.
const KEY_PREFIX: &str = "forebay.part.";

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
    /// [`Kind::NotPossibleHere`]: the mode is `a`.
    pub fn of(name: &str, options: &OpenOptions, spread: Spread) -> Result<Option<WriterOfPart>> {
        let Spread::SeveralNodes { local } = spread else { return Ok(None) };
        check_agent(name, options, spread)?;
        let Some((local, here)) = local else {
            return Err(Error::new(
                Kind::SeveralNodes,
                format!("which writers of space {name} are on this node is not known"),
            )
            .hint(
                "set FOREBAY_RANK, FOREBAY_SIZE, FOREBAY_LOCAL_RANK and FOREBAY_LOCAL_SIZE; ranks of a communicator \
                 other than MPI_COMM_WORLD need it",
            ));
        };
        if options.mode == Mode::Append {
            return Err(not_continued(name));
        }
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        check_short(&part_name(name))?;
        Ok(Some(WriterOfPart { name: name.to_string(), rank, size, local, here }))
    }

    /// The options with which its part is opened.
    pub fn options(&self, options: OpenOptions) -> OpenOptions {
        OpenOptions { rank: Some(self.local), size: Some(self.here), ..options }
    }

    /// What is to be said of it in the attributes of the part.
    pub fn attribute(&self) -> (String, Attribute) {
        let numbers = [self.rank, self.size, self.here].map(i64::from);
        (format!("{KEY_PREFIX}{}", self.local), Attribute::Ints(numbers.to_vec()))
    }
}

/// The error for a writer that would continue what others of its node put.
pub(crate) fn not_continued(name: &str) -> Error {
    Error::new(
        Kind::NotPossibleHere,
        format!("space {name} has writers on several nodes and cannot be continued"),
    )
    .hint("open it with mode=\"w\" and read what was put before the restart from a checkpoint")
}

/// Refuses a group of several nodes where no agent serves this one. `options` are resolved.
///
/// # Errors
/// [`Kind::SeveralNodes`].
pub(crate) fn check_agent(name: &str, options: &OpenOptions, spread: Spread) -> Result<()> {
    let is_short = options.channel == Mechanism::Space && !is_path(&options.place(name));
    match is_short && agent_serves() {
        true => Ok(()),
        false => spread.check_one_node(),
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
}

impl Part {
    /// From the attributes of a space; None: it is no part, or some of its writers have not opened it yet.
    pub fn of(attributes: &BTreeMap<String, Attribute>) -> Option<Part> {
        let numbers = |local: u32| match attributes.get(&format!("{KEY_PREFIX}{local}"))? {
            Attribute::Ints(numbers) => {
                let [rank, size, here] = numbers[..] else { return None };
                Some((u32::try_from(rank).ok()?, u32::try_from(size).ok()?, u32::try_from(here).ok()?))
            }
            _ => None,
        };
        let (_, size, here) = numbers(0)?;
        let same = |local| numbers(local).filter(|of| (of.1, of.2) == (size, here)).map(|of| of.0);
        let ranks = (0..here).map(same).collect::<Option<Vec<u32>>>()?;
        ranks.iter().all(|rank| *rank < size).then_some(Part { size, ranks })
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
        let writer = |local, rank| WriterOfPart { name: "heat".into(), rank, size: 4, local, here: 2 };
        let mut attributes = BTreeMap::from([("units".to_string(), Attribute::Text("K".into()))]);
        assert_eq!(Part::of(&attributes), None);
        attributes.extend([writer(0, 1).attribute()]);
        assert_eq!(Part::of(&attributes), None);
        attributes.extend([writer(1, 3).attribute()]);
        assert_eq!(Part::of(&attributes), Some(Part { size: 4, ranks: vec![1, 3] }));
        assert_eq!(without_part(attributes.clone()).len(), 1);
        attributes.insert("forebay.part.1".into(), Attribute::Ints(vec![4, 4, 2]));
        assert_eq!(Part::of(&attributes), None, "no rank of the group");
        attributes.insert("forebay.part.1".into(), Attribute::Ints(vec![3, 5, 2]));
        assert_eq!(Part::of(&attributes), None, "of another group");
    }
}
