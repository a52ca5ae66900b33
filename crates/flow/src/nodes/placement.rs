//! Which ranks of which component run on which node.
//!
//! Pure. Ranks are in blocks: the first nodes of a component have one more where they cannot have the same number.
//! Components with nodes of their own take them from the end of the list.

use std::collections::BTreeSet;
use std::ops::Range;

use forebay_config::Mode;
use forebay_space::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::place::Place;
use crate::workflow::{Component, Workflow};

/// A node with something of the run on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlacedNode {
    /// Its name.
    pub(crate) name: String,
    /// Of each component, the ranks that its runner starts.
    pub(crate) here: Vec<Range<u32>>,
    /// Of each component, the number of ranks on it: a launcher is taken to start them in blocks, too.
    pub(crate) ranks: Vec<u32>,
}

impl PlacedNode {
    /// Whether a component runs on it.
    pub(crate) fn has(&self, component: usize) -> bool {
        self.ranks[component] > 0
    }
}

/// Places all components on the nodes `names`; those that get nothing are left out.
///
/// # Errors
/// [`Kind::Usage`]: too few nodes; [`Kind::NotPossibleHere`]: a channel that cannot lead to another node, or a
/// component with files on several.
pub(crate) fn place(workflow: &Workflow, names: &[String]) -> Result<Vec<PlacedNode>> {
    let nodes_of = nodes_of(workflow, names)?;
    for (component, nodes) in workflow.components.iter().zip(&nodes_of) {
        let has_files = component.files.out.is_some() || component.files.input.is_some();
        if has_files && component.launcher.is_empty() && used(component, nodes).len() > 1 {
            return Err(Error::new(
                Kind::NotPossibleHere,
                format!("component {} exchanges files and runs on several nodes", component.name),
            )
            .hint("give it one node: nodes = \"0\""));
        }
    }
    for channel in &workflow.channels {
        check_channel(workflow, channel, &nodes_of)?;
    }
    let placed = names.iter().enumerate().filter_map(|(at, name)| {
        let components = || workflow.components.iter().zip(&nodes_of);
        let here = components().map(|(component, nodes)| started_at(component, nodes, at));
        let ranks: Vec<u32> = components().map(|(c, nodes)| block(c, nodes, at).len() as u32).collect();
        let is_used = ranks.iter().any(|ranks| *ranks > 0);
        is_used.then(|| PlacedNode { name: name.clone(), here: here.collect(), ranks })
    });
    Ok(placed.collect())
}

/// The positions of each component.
fn nodes_of(workflow: &Workflow, names: &[String]) -> Result<Vec<Vec<usize>>> {
    let too_few = |component: &Component, wanted: String| {
        Error::new(Kind::Usage, format!("there are too few nodes for component {}", component.name))
            .with("nodes", names.len())
            .with("wanted", wanted)
    };
    let mut shared = names.len();
    let mut of_its_own = vec![None; names.len()];
    let mut nodes: Vec<Vec<usize>> = vec![Vec::new(); workflow.components.len()];
    for (component, nodes) in workflow.components.iter().zip(&mut nodes) {
        match &component.place {
            Place::Dedicated(count) if *count <= shared => {
                *nodes = (shared - count..shared).collect();
                nodes.iter().for_each(|at| of_its_own[*at] = Some(&component.name));
                shared -= count;
            }
            Place::Dedicated(count) => return Err(too_few(component, format!("{count} of its own"))),
            Place::At(positions) => match positions.iter().find(|at| **at >= names.len()) {
                Some(at) => return Err(too_few(component, format!("position {at}"))),
                None => nodes.clone_from(positions),
            },
            Place::Shared | Place::With(_) => {}
        }
    }
    for (component, nodes) in workflow.components.iter().zip(&nodes) {
        let is_said = matches!(component.place, Place::At(_));
        if let Some((at, other)) =
            nodes.iter().filter(|_| is_said).find_map(|at| Some((at, of_its_own[*at]?)))
        {
            return Err(Error::new(
                Kind::Usage,
                format!("component {} is on a node that is dedicated to {other}", component.name),
            )
            .with("node", &names[*at])
            .hint("choose another position, or colocated_with"));
        }
    }
    for (component, nodes) in workflow.components.iter().zip(&mut nodes) {
        if component.place == Place::Shared {
            if shared == 0 {
                return Err(too_few(component, "one that is not dedicated to another".to_owned()));
            }
            *nodes = (0..shared).collect();
        }
    }
    for index in 0..nodes.len() {
        if let Place::With(other) = &workflow.components[index].place {
            let other = workflow.components.iter().position(|c| c.name == *other).expect("it was checked");
            nodes[index] = nodes[other].clone();
        }
    }
    // Ranks that are fewer than the nodes leave the last ones.
    for (component, nodes) in workflow.components.iter().zip(&mut nodes) {
        nodes.truncate(used(component, nodes).len());
    }
    Ok(nodes)
}

/// The nodes that have ranks.
fn used<'a>(component: &Component, nodes: &'a [usize]) -> &'a [usize] {
    &nodes[..nodes.len().min(component.ranks as usize)]
}

/// The ranks that the runner of the node at this position starts: those of its block; of a component with a launcher
/// all on its first node.
fn started_at(component: &Component, nodes: &[usize], at: usize) -> Range<u32> {
    match component.launcher.is_empty() {
        true => block(component, nodes, at),
        false if nodes.first() == Some(&at) => 0..component.ranks,
        false => 0..0,
    }
}

/// The ranks on the node at this position.
fn block(component: &Component, nodes: &[usize], at: usize) -> Range<u32> {
    let Some(index) = nodes.iter().position(|node| *node == at) else { return 0..0 };
    let (index, count) = (index as u32, nodes.len() as u32);
    let (each, more) = (component.ranks / count, component.ranks % count);
    let begin = |index: u32| index * each + index.min(more);
    begin(index)..begin(index + 1)
}

/// A channel between nodes is a space with a short name.
fn check_channel(workflow: &Workflow, channel: &Channel, nodes_of: &[Vec<usize>]) -> Result<()> {
    let nodes = |name: &String| {
        let index = workflow.components.iter().position(|c| c.name == *name);
        index.map(|index| nodes_of[index].clone()).unwrap_or_default()
    };
    let writers: BTreeSet<usize> = nodes(&channel.writer).into_iter().collect();
    let mut all = writers.clone();
    all.extend(channel.readers.iter().flat_map(nodes));
    if all.len() <= 1 {
        return Ok(());
    }
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(Kind::NotPossibleHere, format!("channel {} {what}", channel.name)).hint(hint))
    };
    let same_node = "run its writer and its readers on one node, or omit that option";
    match () {
        () if channel.options.path.is_some() => {
            refuse("has a path, and its components run on several nodes", same_node)
        }
        () if channel.is_files() => {
            refuse("is a channel of files, and its components run on several nodes", same_node)
        }
        () if channel.emulate.is_some() => {
            refuse("is emulated, and its components run on several nodes", same_node)
        }
        () if writers.len() > 1 && channel.options.mode == Some(Mode::Append) => refuse(
            "has writers on several nodes and cannot be continued",
            "use mode = \"w\" and replace = true, and continue the program from a checkpoint",
        ),
        () => Ok(()),
    }
}

/// The workflow as the runner of a node sees it. Channels that no component of the node uses are left out; one whose
/// writers are elsewhere does not stay.
pub(crate) fn on_node(mut workflow: Workflow, node: &PlacedNode) -> Workflow {
    for (component, here) in workflow.components.iter_mut().zip(&node.here) {
        component.here = here.clone();
    }
    let is_here = |name: &String| {
        let index = workflow.components.iter().position(|component| component.name == *name);
        index.is_some_and(|index| node.has(index))
    };
    for channel in &mut workflow.channels {
        channel.is_written_here = is_here(&channel.writer);
        channel.keep &= channel.is_written_here;
    }
    workflow.channels.retain(|channel| channel.is_written_here || channel.readers.iter().any(is_here));
    workflow
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn workflow(sim: &str, ana: &str, channel: &str) -> Workflow {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[nodes]\n[channel.u]\n{channel}\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = 5\nwrites = [\"u\"]\n{sim}\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = 2\nreads = [\"u\"]\n{ana}\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap()
    }

    fn placed(sim: &str, ana: &str, nodes: usize) -> Vec<(String, Vec<Range<u32>>)> {
        let names: Vec<String> = (0..nodes).map(|i| format!("n{i}")).collect();
        let placed = place(&workflow(sim, ana, ""), &names).unwrap();
        placed.into_iter().map(|node| (node.name, node.here)).collect()
    }

    fn node(name: &str, sim: Range<u32>, ana: Range<u32>) -> (String, Vec<Range<u32>>) {
        (name.to_owned(), vec![sim, ana])
    }

    #[test]
    fn ranks_are_in_blocks_on_the_nodes_that_are_said() {
        assert_eq!(placed("", "", 1), [node("n0", 0..5, 0..2)]);
        let all = [node("n0", 0..2, 0..1), node("n1", 2..4, 1..2), node("n2", 4..5, 0..0)];
        assert_eq!(placed("", "", 3), all);
        assert_eq!(
            placed("nodes = 1", "nodes = \"0,2\"", 4)[..2],
            [node("n0", 0..0, 0..1), node("n1", 0..5, 0..0)]
        );
        let transit =
            [node("n0", 0..3, 0..0), node("n1", 3..5, 0..0), node("n2", 0..0, 0..1), node("n3", 0..0, 1..2)];
        assert_eq!(placed("", "dedicated = 2", 4), transit);
        let situ = [node("n1", 0..3, 0..1), node("n2", 3..5, 1..2)];
        assert_eq!(placed("nodes = \"1-2\"", "colocated_with = \"sim\"", 4), situ);
        // A launcher starts all from the first node; there is an agent on the others.
        let launched = [node("n0", 0..5, 0..0), node("n1", 0..0, 0..0), node("n2", 0..0, 0..2)];
        let with = ["launcher = [\"mpiexec\"]", "dedicated = 1\nlauncher = [\"x\"]"];
        assert_eq!(placed(with[0], with[1], 3), launched);
        let names = ["n0", "n1", "n2"].map(str::to_owned);
        let counts = place(&workflow(with[0], with[1], ""), &names).unwrap();
        assert_eq!(counts.into_iter().map(|node| node.ranks).collect::<Vec<_>>(), [[3, 0], [2, 0], [0, 2]]);
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        let names = |count: usize| (0..count).map(|i| format!("n{i}")).collect::<Vec<_>>();
        let refused = |sim: &str, ana: &str, channel: &str, count: usize| {
            let error = place(&workflow(sim, ana, channel), &names(count)).unwrap_err();
            (error.kind(), error.to_string())
        };
        assert_eq!(refused("", "dedicated = 2", "", 1).0, Kind::Usage);
        assert_eq!(refused("", "dedicated = 2", "", 2).0, Kind::Usage);
        assert_eq!(refused("nodes = 1", "dedicated = 1", "", 2).0, Kind::Usage);
        let (kind, text) = refused("nodes = \"0-2\"", "", "", 2);
        assert!(kind == Kind::Usage && text.contains("wanted=position 2"), "{text}");
        let files = refused("", "files = { in = \"f\" }", "", 2);
        assert_eq!(files.0, Kind::NotPossibleHere, "{}", files.1);
        for channel in ["path = \"x\"", "kind = \"files\"", "mode = \"a\"\nkeep = true"] {
            assert_eq!(refused("", "", channel, 2).0, Kind::NotPossibleHere, "{channel}");
            // On one node it is a channel like any other.
            place(&workflow("nodes = 1", "nodes = 1", channel), &names(2)).unwrap();
        }
    }

    #[test]
    fn a_node_sees_its_own_ranks_and_the_channels_that_they_use() {
        let whole = workflow("nodes = 0", "nodes = 1", "keep = true");
        let seen = |here: [Range<u32>; 2]| {
            let ranks = here.iter().map(|ranks| ranks.len() as u32).collect();
            on_node(whole.clone(), &PlacedNode { name: "n".into(), here: here.to_vec(), ranks })
        };
        let writer = seen([0..5, 0..0]);
        assert!(writer.channels[0].is_written_here && writer.channels[0].keep);
        let reader = seen([0..0, 0..2]);
        assert!(!reader.channels[0].is_written_here && !reader.channels[0].keep);
        assert_eq!((reader.components[0].here.clone(), reader.components[1].here.clone()), (0..0, 0..2));
        assert!(seen([0..0, 0..0]).channels.is_empty());
        // A launcher on another node has started writers here.
        let launched = PlacedNode { name: "n".into(), here: vec![0..0, 0..0], ranks: vec![2, 0] };
        assert!(on_node(whole.clone(), &launched).channels[0].keep);
    }
}
