//! What is seen of the spaces of a node, on this one or on each node of a job.
//!
//! Guarantees: looks without joining; what went away meanwhile is no error. A node that does not answer is in the list
//! with its error. Not here: what two looks together tell (`top`), what Prometheus is told (`metrics`).

use forebay_space::{agent_status, AgentStatus, Kind, Result, SpaceInfo};
use forebay_tier::{clock, Error};
use serde::Deserialize;

use super::nodes::{Asking, OnNodes};

/// The spaces of a node at one moment.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeLook {
    /// Directory of short names.
    pub root: String,
    /// When, nanoseconds since 1970 by the clock of the node.
    pub unix_ns: u64,
    /// What was asked for by name and is not there.
    pub gone: Vec<String>,
    /// What the agent of the node says of itself.
    pub agent: Option<AgentStatus>,
    /// What was there, in the order of names.
    #[serde(deserialize_with = "spaces_of_document")]
    pub spaces: Vec<SpaceInfo>,
}

/// Documents of `top` have each space beside what was computed of it.
fn spaces_of_document<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> std::result::Result<Vec<SpaceInfo>, D::Error> {
    #[derive(Deserialize)]
    struct Seen {
        space: SpaceInfo,
    }
    Ok(Vec::<Seen>::deserialize(from)?.into_iter().map(|seen| seen.space).collect())
}

impl NodeLook {
    /// Looks at the spaces of these names, or at all of this node.
    ///
    /// # Errors
    /// Those of the root directory, and what is wrong with a space that was named, but not that it is gone.
    pub fn here(names: &[String]) -> Result<NodeLook> {
        let (mut spaces, mut gone) = (Vec::new(), Vec::new());
        if names.is_empty() {
            spaces = forebay_space::list()?;
        }
        for name in names {
            match forebay_space::glance(name) {
                Ok(space) => spaces.push(space),
                Err(e) if e.kind() == Kind::PeerMissing => gone.push(name.clone()),
                Err(e) => return Err(e),
            }
        }
        let root = forebay_space::root()?;
        let agent = agent_status(&root);
        Ok(NodeLook { root: root.display().to_string(), unix_ns: clock::realtime_ns(), gone, agent, spaces })
    }
}

/// Looks at the spaces of all nodes of a job.
pub struct Looks(Asking);

impl Looks {
    /// At those of these names, or at all.
    ///
    /// # Errors
    /// Those of [`OnNodes::asking`].
    pub fn of(on: &OnNodes, names: &[String]) -> Result<Looks> {
        let paths: Vec<_> = names.iter().filter(super::nodes::is_path).map(Into::into).collect();
        let words = ["--json", "top", "--once", "--may-be-absent", "--"];
        let words = words.iter().map(Into::into).chain(names.iter().map(Into::into));
        on.asking(words.collect(), &paths).map(Looks)
    }

    /// Names of the nodes.
    pub fn nodes(&self) -> &[String] {
        &self.0.nodes
    }

    /// What was seen on each node, in their order. Blocks until each has answered or was given up, or `is_over`.
    ///
    /// # Errors
    /// Those of [`Asking::documents`].
    pub fn take(&self, is_over: &dyn Fn() -> bool) -> Result<Vec<Result<NodeLook>>> {
        let read = |(node, document): (&String, Result<serde_json::Value>)| {
            serde_json::from_value(document?).map_err(|e| unread(node, &e.to_string()))
        };
        let documents = self.0.documents(is_over)?;
        Ok(self.nodes().iter().zip(documents).map(read).collect())
    }
}

/// The error of a node whose answer is not what this version prints.
pub(super) fn unread(node: &str, why: &str) -> Error {
    Error::new(Kind::PeerMissing, format!("the answer of a node cannot be read: {why}"))
        .with("node", node)
        .hint("forebay of the same version must be installed on all nodes")
}

/// The names that no node has that has answered; none where no node has.
pub fn gone_everywhere<'a>(looks: impl Iterator<Item = &'a NodeLook>) -> Vec<String> {
    let common =
        |all: Vec<String>, gone: &[String]| all.into_iter().filter(|name| gone.contains(name)).collect();
    looks
        .map(|look| &look.gone)
        .fold(None, |all: Option<Vec<String>>, gone| Some(all.map_or(gone.clone(), |all| common(all, gone))))
        .unwrap_or_default()
}
