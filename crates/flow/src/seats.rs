//! Which component, and which of its ranks, runs on which processors.
//!
//! Pure. Components that write and components that read sit on different memory nodes where there are two with
//! processors, because that is what makes a place of a channel near to one of them; on one node they share its
//! processors. A rank's own processors follow from its number on the node, so that every launcher comes to the same.

use std::collections::BTreeMap;

use forebay_model::plan::Mode;
use serde::{Deserialize, Serialize};

use crate::topology::{list, Node, Topology};
use crate::workflow::Workflow;
use forebay_probe::machine::numbers;

/// Where a component runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seat {
    /// The component.
    pub name: String,
    /// Its ranks.
    pub ranks: u32,
    /// Its processors, in the order in which its ranks have them: `0-3,8`.
    pub cpus: String,
    /// The memory node that they are beside; none where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<u16>,
}

impl Seat {
    /// The processors of a rank, rising, by its number among those of the component on this node: an equal part each,
    /// or all where there are fewer processors than ranks.
    pub fn cpus_of(&self, local_rank: u32) -> Vec<usize> {
        let cpus = numbers(&self.cpus);
        let (count, ranks) = (cpus.len(), self.ranks.max(1) as usize);
        let rank = local_rank as usize % ranks;
        let mut own = match count < ranks {
            true => cpus,
            false => cpus[rank * count / ranks..(rank + 1) * count / ranks].to_vec(),
        };
        own.sort_unstable();
        own
    }
}

/// How far a component is from the first writer; `None` where channels lead in a circle.
pub fn depths(workflow: &Workflow) -> Option<BTreeMap<&str, usize>> {
    let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..=workflow.components.len() {
        let before = depths.clone();
        for component in &workflow.components {
            let writers = workflow.channels.iter().filter(|c| component.reads.contains(&c.name));
            let above = writers.filter_map(|c| before.get(c.writer.as_str()).map(|d| d + 1));
            depths.insert(&component.name, above.max().unwrap_or(0));
        }
        if depths == before {
            return Some(depths);
        }
    }
    None
}

/// Seats for all components. `swapped` gives the writers' node to the readers and the other way round, for a channel
/// whose place cannot be chosen.
pub fn seats(workflow: &Workflow, topology: &Topology, mode: Mode, swapped: bool) -> Vec<Seat> {
    let depths = depths(workflow).unwrap_or_default();
    let nodes: Vec<&Node> = topology.with_cpus().collect();
    let side = |name: &str| (depths.get(name).copied().unwrap_or(0) + usize::from(swapped)) % 2;
    let groups: Vec<Vec<usize>> = match nodes.len() {
        0 | 1 => vec![(0..workflow.components.len()).collect()],
        _ => (0..2)
            .map(|which| {
                let indices = 0..workflow.components.len();
                indices.filter(|i| side(&workflow.components[*i].name) == which).collect()
            })
            .collect(),
    };
    let mut out = vec![Seat::default(); workflow.components.len()];
    for (group, members) in groups.iter().enumerate() {
        let node = nodes.get(group);
        let cpus = node.map(|n| n.cpus.clone()).unwrap_or_default();
        let ranks: Vec<u32> = members.iter().map(|i| workflow.components[*i].ranks).collect();
        // Components that take turns have all processors in their turn.
        let parts = match mode.is_serial() {
            true => vec![cpus; members.len()],
            false => shares(&cpus, &ranks),
        };
        for (index, part) in members.iter().zip(parts) {
            let component = &workflow.components[*index];
            out[*index] = Seat {
                name: component.name.clone(),
                ranks: component.ranks,
                cpus: list(&part),
                memory_node: node.filter(|_| nodes.len() > 1).map(|n| n.number),
            };
        }
    }
    out
}

/// Processors in parts that are as near to proportional as whole ones can be: at least one each, and no fewer than
/// its weight where there are as many as all weights; all of them for each where there are fewer than parts.
pub(crate) fn shares(cpus: &[usize], weights: &[u32]) -> Vec<Vec<usize>> {
    if cpus.len() < weights.len() {
        return vec![cpus.to_vec(); weights.len()];
    }
    let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let (mut below, mut begin) = (0, 0);
    let mut parts = Vec::new();
    for (index, weight) in weights.iter().enumerate() {
        below += u64::from(*weight);
        let end = (cpus.len() as u64 * below / total.max(1)) as usize;
        let end = end.max(begin + 1).min(cpus.len() - (weights.len() - 1 - index));
        parts.push(cpus[begin..end].to_vec());
        begin = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    pub(crate) fn workflow(ranks: [u32; 3]) -> Workflow {
        let [sim, ana, viz] = ranks;
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n[channel.v]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = {sim}\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = {ana}\nreads = [\"u\"]\nwrites = [\"v\"]\n\
             [[component]]\nname = \"viz\"\ncommand = [\"true\"]\nranks = {viz}\nreads = [\"v\"]\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap()
    }

    fn nodes(cpus: &[&str]) -> Topology {
        let node =
            |(number, list): (usize, &&str)| Node { number: number as u16, cpus: numbers(list), bytes: 0 };
        Topology { nodes: cpus.iter().enumerate().map(node).collect() }
    }

    fn of(workflow: &Workflow, topology: &Topology, mode: Mode, swapped: bool) -> Vec<(String, Option<u16>)> {
        seats(workflow, topology, mode, swapped).into_iter().map(|s| (s.cpus, s.memory_node)).collect()
    }

    #[test]
    fn writers_and_readers_sit_on_two_nodes() {
        let w = workflow([4, 2, 2]);
        let two = nodes(&["0-7", "", "8-15"]);
        let seat = |cpus: &str, node| (cpus.to_string(), Some(node));
        // The last component reads what the second writes: it sits beside the first.
        assert_eq!(of(&w, &two, Mode::Parallel, false), [seat("0-4", 0), seat("8-15", 2), seat("5-7", 0)]);
        assert_eq!(of(&w, &two, Mode::Parallel, true), [seat("8-12", 2), seat("0-7", 0), seat("13-15", 2)]);
        assert_eq!(of(&w, &two, Mode::Serial, false), [seat("0-7", 0), seat("8-15", 2), seat("0-7", 0)]);
    }

    #[test]
    fn one_node_is_shared_and_fewer_processors_than_components_belong_to_all() {
        let w = workflow([4, 2, 2]);
        let seat = |cpus: &str| (cpus.to_string(), None);
        assert_eq!(of(&w, &nodes(&["0-7"]), Mode::Parallel, false), [seat("0-3"), seat("4-5"), seat("6-7")]);
        assert_eq!(of(&w, &nodes(&["0-1"]), Mode::Parallel, false), [seat("0-1"), seat("0-1"), seat("0-1")]);
    }

    #[test]
    fn ranks_share_their_components_processors() {
        let seat =
            |cpus: &str, ranks| Seat { name: "sim".into(), ranks, cpus: cpus.into(), memory_node: None };
        let all = |seat: &Seat| (0..seat.ranks).map(|r| list(&seat.cpus_of(r))).collect::<Vec<_>>();
        assert_eq!(all(&seat("0-7", 4)), ["0-1", "2-3", "4-5", "6-7"]);
        assert_eq!(all(&seat("0,2,4", 2)), ["0", "2,4"]);
        assert_eq!(all(&seat("0-1", 3)), ["0-1", "0-1", "0-1"], "fewer processors than ranks");
        assert_eq!(all(&seat("8-9,0", 4)), ["0,8-9"; 4], "as the kernel says them");
        assert_eq!(list(&seat("0-1", 2).cpus_of(3)), "1", "a launcher that counts on");
    }

    #[test]
    fn no_component_lacks_processors_while_there_are_enough_for_all_ranks() {
        let sizes = |count: usize, weights: &[u32]| -> Vec<usize> {
            let cpus: Vec<usize> = (0..count).collect();
            let parts = shares(&cpus, weights);
            assert_eq!(parts.concat(), cpus, "each processor once");
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(128, &[96, 32]), [96, 32]);
        assert_eq!(sizes(8, &[3, 1]), [6, 2]);
        assert_eq!(sizes(3, &[1000, 1, 1]), [1, 1, 1]);
        for count in 1..24 {
            for (first, second, third) in (0..8 * 8 * 8).map(|i| (i / 64 + 1, i / 8 % 8 + 1, i % 8 + 1)) {
                let weights = [first, second, third].map(|weight| weight as u32);
                if count >= weights.len() {
                    let has = sizes(count, &weights);
                    let needs = if count >= first + second + third { weights } else { [1; 3] };
                    assert!(
                        has.iter().zip(needs).all(|(has, needs)| *has >= needs as usize),
                        "{count} {weights:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn circles_have_no_order() {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n[channel.v]\n\
             [[component]]\nname = \"a\"\ncommand = [\"true\"]\nwrites = [\"u\"]\nreads = [\"v\"]\n\
             [[component]]\nname = \"b\"\ncommand = [\"true\"]\nreads = [\"u\"]\nwrites = [\"v\"]\n";
        let circle = Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap();
        assert_eq!(depths(&circle), None);
        let order = depths(&workflow([1, 1, 1])).map(|d| d.into_values().collect::<Vec<_>>());
        assert_eq!(order, Some(vec![1, 0, 2]));
    }
}
