//! Who protects whom: the groups of a step, from the nodes on which its pieces lie.
//!
//! Invariants: every rank is in exactly one group; the members of a group lie on different nodes, and so does what
//! protects them; the same nodes give the same groups to every caller.
//!
//! Nodes are taken in the order of their names. The first ranks of all nodes form row 0, the second ones row 1, and so
//! on; a node with fewer ranks than others takes part in the rows that it lacks without a piece, so that the groups are
//! as large there. Groups are as many as there are whole ones, of nearly equal size: seven nodes under `xor:4` are one
//! group of seven, three are one of three.

use std::collections::BTreeMap;

use forebay_tier::Result;

use super::{homes, Code, Guard};
use crate::format::Commit;

/// A member of a group: a node, and its rank of that row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) node: String,
    /// None: the node has no rank in this row.
    pub(crate) rank: Option<u32>,
}

/// A group, and who keeps what protects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) row: u32,
    pub(crate) slots: Vec<Slot>,
    /// Node and rank of the keeper of each position: those of the slots, or of the one partner.
    pub(crate) holders: Vec<(String, u32)>,
}

/// The groups of a committed step; None while a piece is missing, so that its node is not known.
pub(crate) fn plan(guard: &Guard, commit: &Commit) -> Result<Option<Vec<Group>>> {
    let homes = homes(guard, commit.id, commit.ranks.len() as u32)?;
    match homes.into_iter().collect::<Option<Vec<String>>>() {
        Some(homes) => groups(guard.code, &homes).map(Some),
        None => Ok(None),
    }
}

/// The groups of ranks that lie on these nodes.
///
/// # Errors
/// `NotPossibleHere` where they are too few.
fn groups(code: Code, homes: &[String]) -> Result<Vec<Group>> {
    let mut nodes: BTreeMap<&String, Vec<u32>> = BTreeMap::new();
    for (rank, node) in homes.iter().enumerate() {
        nodes.entry(node).or_default().push(rank as u32);
    }
    code.check_nodes(nodes.len())?;
    let nodes: Vec<(&String, Vec<u32>)> = nodes.into_iter().collect();
    let mut found = Vec::new();
    if code == Code::Partner {
        for (at, (node, ranks)) in nodes.iter().enumerate() {
            let (next, keepers) = &nodes[(at + 1) % nodes.len()];
            for (row, rank) in ranks.iter().enumerate() {
                let slots = vec![Slot { node: node.to_string(), rank: Some(*rank) }];
                let holders = vec![(next.to_string(), keepers[row % keepers.len()])];
                found.push(Group { row: row as u32, slots, holders });
            }
        }
        return Ok(found);
    }
    let count = (nodes.len() / code.group_nodes()).max(1);
    for nth in 0..count {
        let members = &nodes[nodes.len() * nth / count..nodes.len() * (nth + 1) / count];
        let rows = members.iter().map(|(_, ranks)| ranks.len()).max().unwrap_or(0);
        for row in 0..rows {
            let slot = |(node, ranks): &(&String, Vec<u32>)| Slot {
                node: node.to_string(),
                rank: ranks.get(row).copied(),
            };
            let holder = |(node, ranks): &(&String, Vec<u32>)| (node.to_string(), ranks[row % ranks.len()]);
            found.push(Group {
                row: row as u32,
                slots: members.iter().map(slot).collect(),
                holders: members.iter().map(holder).collect(),
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn homes(ranks_per_node: &[u32]) -> Vec<String> {
        let node = |(node, ranks): (usize, &u32)| vec![format!("{node:05}"); *ranks as usize];
        ranks_per_node.iter().enumerate().flat_map(node).collect()
    }

    #[test]
    fn every_rank_is_in_one_group_and_its_keepers_are_on_other_nodes() {
        let nodes: [&[u32]; 6] = [&[1, 1], &[1; 3], &[2, 1, 3], &[1; 7], &[4; 8], &[3, 1, 1, 1, 2, 2, 5]];
        for ranks_per_node in nodes {
            for code in ["partner", "xor:2", "xor:4", "rs:1+1", "rs:4+2", "rs:1+2"] {
                let (code, homes) = (code.parse::<Code>().unwrap(), homes(ranks_per_node));
                let Ok(groups) = groups(code, &homes) else {
                    assert!(ranks_per_node.len() <= code.lost_max() as usize);
                    continue;
                };
                let mut seen: Vec<u32> =
                    groups.iter().flat_map(|g| &g.slots).filter_map(|s| s.rank).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..homes.len() as u32).collect::<Vec<_>>(), "{code} {ranks_per_node:?}");
                let mut files = HashSet::new();
                for group in &groups {
                    let nodes: HashSet<&String> = group.slots.iter().map(|slot| &slot.node).collect();
                    assert_eq!(nodes.len(), group.slots.len());
                    for (node, rank) in &group.holders {
                        assert_eq!(homes[*rank as usize], *node);
                        assert!(files.insert((*rank, group.row)), "two files of one name");
                        assert!(code != Code::Partner || *node != group.slots[0].node);
                    }
                }
            }
        }
    }

    #[test]
    fn groups_of_few_nodes_are_smaller_and_none_is_too_small() {
        let sizes = |code: &str, nodes: u32| {
            let groups = groups(code.parse().unwrap(), &homes(&vec![1; nodes as usize])).unwrap();
            groups.iter().map(|group| group.slots.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes("xor:4", 3), [3]);
        assert_eq!(sizes("xor:4", 7), [7]);
        assert_eq!(sizes("xor:4", 9), [4, 5]);
        assert_eq!(sizes("rs:4+2", 12), [6, 6]);
        assert!(groups("rs:4+2".parse().unwrap(), &homes(&[3, 3])).is_err());
    }
}
