//! `forebay exec`: becomes a rank's program on the processors that a plan gives it.
//!
//! The one mechanism by which plans are carried out, by the runner and in jobs of any job manager: it comes after the
//! launcher, whatever that is, and needs to know nothing of it but the rank's number on this node. Memory policy is
//! left alone: it is the channel that is bound to a memory node, by the space, not the process.
//!
//! Guarantees: never outside the granted processors; what is said afterwards is what the kernel says, not the plan;
//! a plan that cannot be carried out is said in one sentence on standard error, and the program runs all the same.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_config::environment::{self, channel_variable, Lookup};
use forebay_space::{Error, Kind, Result};
use rustix::thread::{sched_setaffinity, CpuSet};
use serde::{Deserialize, Serialize};

use crate::plan::PlanFile;
use crate::record::replace_file;
use crate::topology::{granted, list};

/// Verb of the command that calls [`exec_planned`].
pub const EXEC_VERB: &str = "exec";

/// Folder of a run directory with a note of each rank.
pub const NOTES: &str = "placement";

/// Where launchers say a rank's number among those on its node, the innermost launcher first.
const LOCAL_RANKS: &[&str] = &[
    "FOREBAY_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
];

/// Where a rank runs, as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Component.
    pub component: String,
    /// The rank's number among those of its component on this node; of a runner's own ranks, among all.
    pub local_rank: u32,
    /// Process.
    pub pid: u32,
    /// Processors that it may use: `0-3,8`.
    pub cpus: String,
    /// Why these are not the plan's, if so.
    pub said: Option<String>,
}

impl Placement {
    /// The notes of a run; what cannot be read is left out.
    pub fn read_all(run_dir: &Path) -> Vec<Placement> {
        let entries = run_dir.join(NOTES).read_dir().into_iter().flatten().flatten();
        let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
        let mut all: Vec<Placement> = entries.filter_map(|entry| read(entry.path())).collect();
        all.sort_by(|a, b| (&a.component, a.local_rank).cmp(&(&b.component, b.local_rank)));
        all
    }

    fn write(&self, run_dir: &Path) -> Result<()> {
        let dir = run_dir.join(NOTES);
        std::fs::create_dir_all(&dir)
            .map_err(|e| Error::io(format!("cannot create {}", dir.display()), e))?;
        let text = serde_json::to_string(self).expect("plain data");
        replace_file(&dir.join(format!("{}.{}.json", self.component, self.local_rank)), text.as_bytes())
    }
}

/// The rank's number among those on its node; 0 where it is not given.
///
/// # Errors
/// [`Kind::UnknownEnvironment`] when the first variable that is set is no number.
pub fn local_rank(lookup: Lookup<'_>) -> Result<u32> {
    match LOCAL_RANKS.iter().find_map(|name| environment::value(name, lookup).map(|text| (name, text))) {
        None => Ok(0),
        Some((name, text)) => number(name, &text),
    }
}

/// By which number the rank has its processors: that among those on its node, also of a runner's own ranks.
///
/// # Errors
/// Those of [`local_rank`].
pub fn seat_number(lookup: Lookup<'_>) -> Result<u32> {
    let is_of_runner = environment::value("FOREBAY_RANK", lookup).is_some();
    match environment::value("FOREBAY_LOCAL_RANK", lookup).filter(|_| is_of_runner) {
        Some(text) => number("FOREBAY_LOCAL_RANK", &text),
        None => local_rank(lookup),
    }
}

fn number(name: &str, text: &str) -> Result<u32> {
    text.trim()
        .parse()
        .map_err(|_| Error::new(Kind::UnknownEnvironment, format!("{name}=`{text}` is not a whole number")))
}

/// Moves the calling thread, and with it what it executes, to the wanted processors, as far as they were granted.
/// Returns the processors it may use after that, and why they are others, if so.
pub fn pin(wanted: &[usize]) -> Result<(Vec<usize>, Option<String>)> {
    let before = granted()?;
    let mut set = CpuSet::new();
    wanted.iter().filter(|cpu| before.contains(cpu)).for_each(|cpu| set.set(*cpu));
    if set.count() == 0 {
        let said =
            format!("none of the processors {} was granted; it runs on {}", list(wanted), list(&before));
        return Ok((before, Some(said)));
    }
    if let Err(e) = sched_setaffinity(None, &set) {
        let said =
            format!("the kernel refuses to pin it to {} ({e}); it runs on {}", list(wanted), list(&before));
        return Ok((before, Some(said)));
    }
    let after = granted()?;
    let said = (after != wanted)
        .then(|| format!("only {} of the processors {} were granted", list(&after), list(wanted)));
    Ok((after, said))
}

/// Becomes the program of a rank of `component`. Returns only on failure.
///
/// # Errors
/// Those of [`PlanFile::read`]; [`Kind::UnknownComponent`] for a component that the plan lacks, or a program that
/// cannot be executed.
pub fn exec_planned(plan: &Path, component: &str, command: &[OsString]) -> Result<Infallible> {
    let plan = PlanFile::read(plan)?;
    let seat = plan.seat(component)?;
    let [program, arguments @ ..] = command else {
        return Err(
            Error::new(Kind::Usage, "no program to execute").hint("forebay exec … -- PROGRAM ARGUMENTS")
        );
    };
    let local_rank = local_rank(&environment::process)?;
    let (cpus, mut said) = pin(&seat.cpus_of(seat_number(&environment::process)?))?;
    let here = forebay_tier::process::host_name();
    if said.is_none() && plan.host != here {
        said = Some(format!(
            "the plan was made on {}: {here} is taken to number its processors alike",
            plan.host
        ));
    }
    if let Some(said) = &said {
        eprintln!("forebay: {component} rank {local_rank}: {said}");
    }
    let pid = std::process::id();
    let placement = Placement { component: component.to_owned(), local_rank, pid, cpus: list(&cpus), said };
    let run = std::env::var_os("FOREBAY_RUN").map(PathBuf::from).filter(|run| run.is_absolute());
    if let Some(run) = run {
        placement.write(&run)?;
    }
    let mut process = Command::new(program);
    process.args(arguments);
    // The runner has said all this already; a job manager has not.
    let mut tell = |name: String, value: String| {
        if std::env::var_os(&name).is_none() {
            process.env(name, value);
        }
    };
    tell("FOREBAY_COMPONENT".to_owned(), component.to_owned());
    for channel in plan.channels.keys() {
        tell(channel_variable(channel), plan.table(channel).expect("its own channel"));
    }
    let error = process.exec();
    Err(Error::new(Kind::UnknownComponent, format!("cannot start {}: {error}", program.to_string_lossy()))
        .caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launchers_local_rank_is_known() {
        let rank = |pairs: &[(&str, &str)]| {
            local_rank(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(rank(&[]).unwrap(), 0);
        for name in LOCAL_RANKS {
            assert_eq!(rank(&[(name, "3")]).unwrap(), 3, "{name}");
        }
        // mpirun starts its own processes through srun: the inner one counts.
        assert_eq!(rank(&[("SLURM_LOCALID", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "5")]).unwrap(), 5);
        assert_eq!(rank(&[("SLURM_LOCALID", "x")]).unwrap_err().kind(), Kind::UnknownEnvironment);
    }

    #[test]
    fn a_runners_rank_sits_by_its_number_on_the_node() {
        let seat = |pairs: &[(&str, &str)]| {
            seat_number(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(seat(&[("FOREBAY_RANK", "4"), ("FOREBAY_LOCAL_RANK", "1")]).unwrap(), 1);
        assert_eq!(seat(&[("FOREBAY_RANK", "4")]).unwrap(), 4);
        // Of another launcher than the runner, its own.
        assert_eq!(seat(&[("FOREBAY_LOCAL_RANK", "1"), ("SLURM_LOCALID", "2")]).unwrap(), 2);
        let wrong = seat(&[("FOREBAY_RANK", "4"), ("FOREBAY_LOCAL_RANK", "x")]);
        assert_eq!(wrong.unwrap_err().kind(), Kind::UnknownEnvironment);
    }

    #[test]
    fn what_was_not_granted_is_not_used_and_said() {
        // In a thread of its own: the affinity ends with it.
        std::thread::spawn(|| {
            let all = granted().unwrap();
            let far = CpuSet::MAX_CPU - 1;
            let (cpus, said) = pin(&[far]).unwrap();
            assert_eq!(cpus, all);
            assert!(said.unwrap().contains("none of the processors"));
            let (cpus, said) = pin(&[all[0], far]).unwrap();
            assert_eq!((cpus, granted().unwrap()), (vec![all[0]], vec![all[0]]), "read back from the kernel");
            assert!(said.unwrap().contains("only"));
            assert_eq!(pin(&all[..1]).unwrap(), (vec![all[0]], None));
        })
        .join()
        .unwrap();
    }
}
