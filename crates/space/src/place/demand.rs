//! A demand: a reader waits for writers that are not on this node, and an agent that joins the nodes of a job may bring
//! their space.
//!
//! While an agent lives on the node, the folder `.agent` is below the root of short names. A reader that waits for the
//! writers of a short name adds a line to `.agent/wanted/NAME`, again every second: the agent removes what it has read.
//! What keeps the agent from bringing the space stands in `.agent/refused/NAME`, and ends the wait.
//!
//! Guarantees: nothing is made where no agent has made its folders. A demand that cannot be left is none: the reader
//! waits as without an agent. Not here: whether an agent lives (`agent.rs`); what a reader takes of writers that have
//! ended.

use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_tier::host::time::Instant;
use forebay_tier::{process, Error, Kind, Result};

use crate::place::agent::AGENT_FOLDER;
use crate::place::name::is_path;

/// In the agent's folder: files named as spaces of which some nodes have writers, but not all of their ranks: which
/// ones are missing.
pub const INCOMPLETE_FOLDER: &str = "incomplete";
/// In it: files named as the spaces whose writers readers wait for, with a [`Wanted`] a line.
pub const WANTED_FOLDER: &str = "wanted";
/// In it: why a space cannot be brought.
pub const REFUSED_FOLDER: &str = "refused";
/// A demand that is not renewed for some of these is over.
pub const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// No more lines than these bytes hold, where an agent does not read them.
const LINES_BYTES_MAX: u64 = 16 << 10;
/// A refusal is looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Times of files are those of the last tick of the kernel's clock, which may be this long ago.
const TICK_MAX: Duration = Duration::from_millis(20);

/// What a waiting reader takes of writers that have ended.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// All that is there.
    pub finished: bool,
    /// What writers of this launch have put; 0: of none.
    pub run: u64,
    /// What writers have put that were started together with this process, which began at one of these moments,
    /// nanoseconds since 1970.
    pub began: Range<u64>,
}

impl Wanted {
    /// By this process; `run` is the token of its launch.
    pub(crate) fn of(finished: bool, run: u64) -> Wanted {
        Wanted { finished, run, began: process::began_unix_ns().unwrap_or(u64::MAX..u64::MAX) }
    }

    fn line(&self) -> String {
        let Wanted { finished, run, began } = self;
        format!("{} {run} {} {}\n", u8::from(*finished), began.start, began.end)
    }

    /// From a line; None: it is torn, or of another version.
    pub fn read(line: &str) -> Option<Wanted> {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [finished, run, start, end] = numbers[..] else { return None };
        Some(Wanted { finished: finished == 1, run, began: start..end })
    }
}

/// One wait.
pub(crate) struct Demand {
    /// None of a space that is named by its path: paths of another node mean nothing here.
    name: Option<String>,
    wanted: Wanted,
    left: Option<Instant>,
    looked: Option<Instant>,
    since: Instant,
}

impl Demand {
    /// For writers of the space of this name.
    pub(crate) fn of(name: &str, wanted: Wanted) -> Demand {
        let name = (!is_path(name)).then(|| name.to_string());
        Demand { name, wanted, left: None, looked: None, since: Instant::now() }
    }

    /// Leaves the demand for the space in `dir`, if it was not left just now.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: the agent says why it cannot bring the space.
    pub(crate) fn renew(&mut self, dir: &Path) -> Result<()> {
        if self.name.is_none() || self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let Some((name, agent)) = self.name.as_ref().zip(agent_folder(dir)) else { return Ok(()) };
        if self.left.is_some_and(|left| left.elapsed() < RENEWED_EVERY) {
            return self.check_refused(&agent, name);
        }
        self.left = Some(Instant::now());
        let path = agent.join(WANTED_FOLDER).join(name);
        if fs::metadata(&path).map_or(0, |meta| meta.len()) < LINES_BYTES_MAX {
            // The agent may end just now, or the node be out of memory: the wait goes on.
            let file = fs::OpenOptions::new().append(true).create(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(self.wanted.line().as_bytes()));
        }
        Ok(())
    }

    fn check_refused(&self, agent: &Path, name: &str) -> Result<()> {
        let path = agent.join(REFUSED_FOLDER).join(name);
        let Ok(meta) = fs::metadata(&path) else { return Ok(()) };
        // One from before this wait is answered anew.
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        if age > self.since.elapsed() + TICK_MAX {
            return Ok(());
        }
        let why = fs::read_to_string(&path).unwrap_or_default();
        Err(Error::new(
            Kind::NotPossibleHere,
            format!("space {name} cannot be read on this node: {}", why.trim()),
        ))
    }

    /// An error of a wait that ended without the space; says that other nodes were asked.
    /// `dir` is the directory of the space.
    pub(crate) fn explained(&self, dir: &Path, error: Error) -> Error {
        if self.left.is_none() {
            return error;
        }
        let incomplete =
            || fs::read_to_string(agent_folder(dir)?.join(INCOMPLETE_FOLDER).join(self.name.as_ref()?)).ok();
        let error = error.with("asked", "all nodes of the job, through the agent of this node");
        match incomplete() {
            Some(found) => error
                .with("found", found.trim())
                .hint("start the missing writers; all ranks must belong to one launch of one program"),
            None => error.hint(
                "check that the writer runs on a node of the job; `forebay agent status` lists the nodes",
            ),
        }
    }
}

/// The agent's folder beside the space in `dir`, where there is one.
fn agent_folder(dir: &Path) -> Option<PathBuf> {
    let folder = dir.parent()?.join(AGENT_FOLDER);
    fs::metadata(&folder).is_ok_and(|meta| meta.is_dir()).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_read_as_they_were_written() {
        let wanted = Wanted { finished: true, run: 7, began: 10..20 };
        assert_eq!(Wanted::read(wanted.line().trim_end()), Some(wanted));
        for torn in ["", "1 7", "1 7 10", "x 7 10 20", "1 7 10 20 30"] {
            assert_eq!(Wanted::read(torn), None, "{torn}");
        }
    }

    #[test]
    fn a_demand_is_left_where_an_agent_is_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let of = |finished| Demand::of("heat", Wanted::of(finished, 0));
        let mut demand = of(false);
        demand.renew(&root.path().join("heat")).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        for folder in [WANTED_FOLDER, REFUSED_FOLDER] {
            fs::create_dir_all(root.path().join(AGENT_FOLDER).join(folder)).unwrap();
        }
        let mut demand = of(true);
        demand.renew(&root.path().join("heat")).unwrap();
        let text = fs::read_to_string(root.path().join(".agent/wanted/heat")).unwrap();
        assert!(Wanted::read(text.lines().next().unwrap()).unwrap().finished);
        let refused = root.path().join(".agent/refused/heat");
        fs::write(&refused, "no").unwrap();
        // One from before this wait, and one that the file system says is a little older than it is.
        let set_age = |age| {
            let at = std::time::SystemTime::now() - age;
            fs::File::options().write(true).open(&refused).unwrap().set_modified(at).unwrap();
            std::thread::sleep(LOOK_EVERY);
        };
        set_age(Duration::from_secs(60));
        demand.renew(&root.path().join("heat")).unwrap();
        set_age(demand.since.elapsed() + TICK_MAX / 2);
        // A renewal in between, on a busy machine, looks at nothing.
        let looks = std::iter::repeat_with(|| demand.renew(&root.path().join("heat")));
        let error = looks.take(100).inspect(|_| std::thread::sleep(LOOK_EVERY)).find_map(Result::err);
        assert_eq!(error.unwrap().kind(), Kind::NotPossibleHere);
    }
}
