//! The description of a level in `checkpoint.json`: its location and how steps are kept.

use std::path::PathBuf;

use forebay_tier::{Result, TierKind};
use serde::{Deserialize, Serialize};

use super::{Code, Keep, Packing};
use crate::place::{is_pattern, of_node, Directories, Family, NODE};

/// What `checkpoint.json` says of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelInfo {
    /// Its directory.
    pub dir: PathBuf,
    /// The kind of tier.
    pub tier: TierKind,
    /// Which committed steps stay.
    #[serde(flatten)]
    pub keep: Keep,
    /// What else is kept of each step, on other nodes; the directory has `{node}` in it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Code>,
    /// How many ranks share a node where ranks do not name theirs; None: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u32>,
    /// How they are stored.
    #[serde(default)]
    pub packing: Packing,
}

impl LevelInfo {
    /// The directory that holds all of the level: its own, or the one that the directories of its nodes lie in.
    pub fn root(&self) -> PathBuf {
        let is_of_nodes = |part: &std::path::Component<'_>| part.as_os_str().to_string_lossy().contains(NODE);
        self.dir.components().take_while(|part| !is_of_nodes(part)).collect()
    }

    /// The directories that are there: the level's own, or one for each node.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn directories(&self) -> Result<Vec<PathBuf>> {
        if !is_pattern(&self.dir)? {
            return Ok(if self.dir.is_dir() { vec![self.dir.clone()] } else { Vec::new() });
        }
        let nodes = Directories::new(&self.dir, self.tier, None).names()?;
        Ok(nodes.iter().map(|node| of_node(&self.dir, node)).collect())
    }
}
