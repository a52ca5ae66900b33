//! What a workflow file says of nodes: which there are, and on which of them a component runs.
//!
//! Not here: which rank is on which node (`nodes/placement.rs`).

use std::collections::BTreeSet;

use serde::Deserialize;

/// The table `[nodes]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Names, or lists as Slurm writes them: `n[0-3]`. Empty: those of the batch job.
    #[serde(default)]
    pub names: Vec<String>,
    /// The command that runs a program on a node, as in `ssh {node}`. None: `srun`, in a Slurm job.
    pub launch: Option<String>,
    /// Address on which agents listen. None: that of the host name.
    pub listen: Option<String>,
    /// Plain TCP between agents.
    #[serde(default)]
    pub trusted_fabric: bool,
    /// Seconds after which a silent agent counts as lost.
    pub lease: Option<f64>,
}

/// On which nodes a component runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On all nodes that no component has for itself.
    Shared,
    /// On the nodes at these positions of the list.
    At(Vec<usize>),
    /// On the nodes of another component.
    With(String),
    /// On so many nodes of its own.
    Dedicated(usize),
}

/// Positions of a list at most.
const POSITIONS_MAX: usize = 65_536;

/// `0-3,6` as positions, each once. None: it is no such list.
pub(crate) fn positions(text: &str) -> Option<Vec<usize>> {
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n < POSITIONS_MAX);
    let mut all = BTreeSet::new();
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_positions_are_read() {
        assert_eq!(positions("0-2,5, 5"), Some(vec![0, 1, 2, 5]));
        for wrong in ["", "a", "3-1", "-1", "1-", "0-99999999", "1.5"] {
            assert_eq!(positions(wrong), None, "{wrong}");
        }
    }
}
