//! Where versions lie: a tier and a directory on it, or files of their own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_tier::{capacity, device, Error, Result, TierKind};

/// See the file's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A space on this tier; main memory is where spaces of short names are.
    Tier(TierKind, Option<PathBuf>),
    /// A file per object.
    Files(PathBuf),
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place> {
        if let Some(rest) = text.strip_prefix("files").filter(|r| r.is_empty() || r.starts_with(':')) {
            return Ok(Place::Files(rest.get(1..).filter(|dir| !dir.is_empty()).unwrap_or(".").into()));
        }
        let place: forebay_probe::kernels::placed::Place = text.parse()?;
        let has_default = place.tier.is_memory() && !text.contains(":/");
        Ok(Place::Tier(place.tier, (!has_default).then_some(place.dir)))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tier(tier, None) => write!(f, "{tier}"),
            Place::Tier(tier, Some(dir)) => write!(f, "{tier}:{}", dir.display()),
            Place::Files(dir) => write!(f, "files:{}", dir.display()),
        }
    }
}

impl Place {
    /// The directory whose free space counts, and its tier.
    fn asked(&self) -> Result<(PathBuf, TierKind)> {
        match self {
            Place::Tier(tier, Some(dir)) => Ok((dir.clone(), *tier)),
            Place::Tier(tier, None) => Ok((capacity::folder_of(&forebay_space::make_root()?), *tier)),
            Place::Files(dir) => Ok((dir.clone(), device::detect(dir)?)),
        }
    }

    /// Free bytes.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let (dir, tier) = self.asked()?;
        capacity::headroom(&dir, tier).map(|free| free.bytes)
    }

    /// Lines of the channel's table; the space lies in a directory of this name.
    pub(crate) fn table(&self, name: &str) -> String {
        let path = |dir: &Path| {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
            // JSON's strings are TOML's.
            format!("path = {}\n", serde_json::Value::from(dir.join(name).to_string_lossy().into_owned()))
        };
        match self {
            Place::Tier(tier, None) => format!("tier = \"{tier}\"\n"),
            Place::Tier(tier, Some(dir)) => format!("tier = \"{tier}\"\n{}", path(dir)),
            Place::Files(dir) => format!("kind = \"files\"\n{}", path(dir)),
        }
    }
}
