//! The redundancy of a level: its code, the directories of its nodes, and whether all files of a step exist.
//!
//! Not here: writing it, reading it, and repair (`redundancy`).

use std::collections::HashSet;
use std::sync::Arc;

use forebay_tier::{Kind, Result};

use super::{plan, Code, Group, Level};
use crate::format::{directory_of, kept_file, rank_of_manifest, StepId, COMMIT, PARITY, RECORD};
use crate::place::Nodes;

/// What a level with redundancy has beside its place.
pub struct Guard {
    /// The kind.
    pub(crate) code: Code,
    /// The directories of the nodes.
    pub(crate) nodes: Arc<Nodes>,
}

/// The node of each rank of a step, as far as its piece is there; also every node that has something of the step.
pub(crate) fn homes(guard: &Guard, id: StepId, size: u32) -> Result<Vec<Option<String>>> {
    let mut homes = vec![None; size as usize];
    for (node, place) in guard.nodes.all()? {
        for file in place.list(&directory_of(id))? {
            if let Some(home) = rank_of_manifest(&file).and_then(|rank| homes.get_mut(rank as usize)) {
                *home = Some(node.clone());
            }
        }
    }
    Ok(homes)
}

/// Keepers that lack parity or its record, and nodes that lack the commit record, by names.
pub(crate) fn missing(guard: &Guard, id: StepId, groups: &[Group]) -> Result<(usize, usize)> {
    let dir = directory_of(id);
    let mut names = HashSet::new();
    for (node, place) in guard.nodes.all()? {
        names.extend(place.list(&dir)?.into_iter().map(|file| (node.clone(), file)));
    }
    let has = |node: &String, file: String| names.contains(&(node.clone(), file));
    let lacks = |group: &Group| {
        let kept = |(node, rank): &&(String, u32)| {
            [PARITY, RECORD].iter().all(|end| has(node, kept_file(*rank, group.row, end)))
        };
        group.holders.iter().filter(|holder| !kept(holder)).count()
    };
    let nodes: HashSet<&String> = groups.iter().flat_map(|g| &g.slots).map(|slot| &slot.node).collect();
    let uncommitted = nodes.into_iter().filter(|node| !has(node, COMMIT.to_string())).count();
    Ok((groups.iter().map(lacks).sum(), uncommitted))
}

impl Level {
    /// Whether a committed step has everything that protects it on every node, as far as names say. True without
    /// redundancy; false where its commit record is damaged, which must not keep newer steps from being saved.
    pub(crate) fn is_protected(&self, id: StepId) -> Result<bool> {
        let Some(guard) = &self.guard else { return Ok(true) };
        let commit = match self.commit_record(id) {
            Ok(Some(commit)) => commit,
            Ok(None) => return Ok(false),
            Err(e) if e.kind() == Kind::Damaged => return Ok(false),
            Err(e) => return Err(e),
        };
        match plan(guard, &commit)? {
            Some(groups) => missing(guard, id, &groups).map(|missing| missing == (0, 0)),
            None => Ok(false),
        }
    }
}
