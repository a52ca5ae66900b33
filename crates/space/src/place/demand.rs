//! A demand: a reader waits for a space that is not on this node, and an agent that joins the nodes of a job may bring
//! it.
//!
//! While an agent lives on the node, the folder `.agent` is below the root of short names. A reader that waits for a
//! short name makes the empty file `.agent/wanted/NAME`, again every second: the agent removes those that it has
//! seen. What keeps the agent from bringing the space stands in `.agent/refused/NAME`, and ends the wait.
//!
//! Guarantees: nothing is made where no agent has made its folders. A demand that cannot be left is none: the reader
//! waits as without an agent. Not here: the agent (`forebay-cluster`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_tier::host::fs;
use forebay_tier::host::time::Instant;
use forebay_tier::{Error, Kind, Result};

use crate::place::name::is_path;

/// The agent's folder below the root of short names.
pub const AGENT_FOLDER: &str = ".agent";
/// In it: files named as the spaces that readers wait for.
pub const WANTED_FOLDER: &str = "wanted";
/// In it: why a space cannot be brought.
pub const REFUSED_FOLDER: &str = "refused";
/// A demand that is not renewed for some of these is over.
pub const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// One wait.
pub(crate) struct Demand {
    /// None of a space that is named by its path: paths of another node mean nothing here.
    name: Option<String>,
    left: Option<Instant>,
    since: Instant,
}

impl Demand {
    pub(crate) fn of(name: &str) -> Demand {
        let name = (!is_path(name)).then(|| name.to_string());
        Demand { name, left: None, since: Instant::now() }
    }

    /// Leaves the demand for the space in `dir`, if it was not left just now.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: the agent says why it cannot bring the space.
    pub(crate) fn renew(&mut self, dir: &Path) -> Result<()> {
        let Some((name, agent)) = self.name.as_ref().zip(agent_folder(dir)) else { return Ok(()) };
        if self.left.is_some_and(|left| left.elapsed() < RENEWED_EVERY) {
            return self.check_refused(&agent, name);
        }
        self.left = Some(Instant::now());
        // It may be there still, the agent may end just now, or the node be out of memory: the wait goes on.
        let _ =
            fs::OpenOptions::new().write(true).create_new(true).open(agent.join(WANTED_FOLDER).join(name));
        Ok(())
    }

    fn check_refused(&self, agent: &Path, name: &str) -> Result<()> {
        let path = agent.join(REFUSED_FOLDER).join(name);
        let Ok(meta) = fs::metadata(&path) else { return Ok(()) };
        // One from before this wait is answered anew.
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        if age > self.since.elapsed() {
            return Ok(());
        }
        let why = std::fs::read_to_string(&path).unwrap_or_default();
        Err(Error::new(
            Kind::NotPossibleHere,
            format!("space {name} cannot be read on this node: {}", why.trim()),
        ))
    }

    /// An error of a wait that ended without the space; says that other nodes were asked.
    pub(crate) fn explained(&self, error: Error) -> Error {
        match self.left {
            None => error,
            Some(_) => error.with("asked", "the agent of this node, and by it all nodes of the job").hint(
                "check that its writer runs, on whatever node of the job; `forebay agent status` shows the nodes",
            ),
        }
    }
}

/// The agent's folder beside the space in `dir`, where there is one.
fn agent_folder(dir: &Path) -> Option<PathBuf> {
    let folder = dir.parent()?.join(AGENT_FOLDER);
    fs::metadata(&folder).is_ok_and(|meta| meta.is_dir()).then_some(folder)
}
