//! `cargo xtask nodes`: a command on nodes that are namespaces of this machine (`xtask/nodes/bed.py`).
//!
//! What is real is the kernel's: networks, host names, separate memory and processes. Processors, memory and disks are
//! shared by all nodes, so that nothing there says how fast several machines are.

use crate::ci::is_root;
use crate::packages::target_folder;
use crate::python::python;
use crate::stages::run;
use crate::{Outcome, Stop};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask nodes N [--delay TIME] [--loss PERCENT] [--rate BITS] [--veth] [--keep] -- COMMAND [ARGUMENTS]
       cargo xtask nodes --tests | --mpi

  N            nodes, named n0, n1, …; COMMAND runs on n0, and reaches the others by `bed run NODE COMMAND`
  --delay      of every frame, one way: 50us, 1ms
  --loss       of all frames: 0.1%
  --rate       at which each node sends: 10gbit
  --veth       the kernel's bridge in place of the test bed's switch: fast, without delay, loss and cuts
  --keep       keep the directory with the nodes' disks
  --tests      run the tests of the test bed, on three nodes
  --mpi        run one program on three nodes by MPICH's launcher, with agents";

/// Where the test bed lies.
const BED: &str = "xtask/nodes/bed.py";
const TRIAL: &str = "xtask/nodes/trial.py";
const MPI_TRIAL: &str = "xtask/nodes/mpi.py";
/// The tests wait some seconds for datagrams that must not arrive.
const TRIAL_LIMIT: Duration = Duration::from_secs(120);
/// Programs that it needs, with their Debian packages.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("ps", "procps"),
];

/// Runs the command; its status is ours.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    match arguments {
        ["--tests"] => return trial(root),
        ["--mpi"] => return mpi(root),
        [count, ..] if count.parse::<u32>().is_ok() => {}
        _ => return Err(Stop::Usage(USAGE.to_string())),
    }
    possible()?;
    let status = Command::new("python3").arg(root.join(BED)).args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Stop::Failed(format!("the command ended with {status}"))),
        Err(e) => Err(Stop::Failed(format!("python3: {e}"))),
    }
}

/// The tests of the test bed.
pub fn trial(root: &Path) -> Outcome {
    possible()?;
    let mut command = Command::new("python3");
    command.arg(root.join(BED)).args(["3", "--", "python3"]).arg(root.join(TRIAL));
    run(&mut command, TRIAL_LIMIT).failure.map_or(Ok(()), |why| Err(Stop::Failed(why)))
}

/// A program of several nodes as users run it; needs the agent and the Python package, which it does not build.
pub fn mpi(root: &Path) -> Outcome {
    possible()?;
    if !Path::new("/usr/bin/mpiexec.hydra").exists() {
        return Err(Stop::Skipped("mpiexec.hydra is not installed (Debian: mpich)".to_string()));
    }
    let built = target_folder(root).join("release");
    let python = python(root);
    for program in ["forebay", "forebay-agent"] {
        if !built.join(program).exists() {
            return Err(Stop::Failed(format!("{program} was not built")));
        }
    }
    let mut command = Command::new("python3");
    command.arg(root.join(BED)).args(["3", "--"]).arg(python).arg(root.join(MPI_TRIAL)).arg(built);
    run(&mut command, TRIAL_LIMIT).failure.map_or(Ok(()), |why| Err(Stop::Failed(why)))
}

/// Whether nodes can be made here.
fn possible() -> Result<(), Stop> {
    if !is_root() {
        return Err(Stop::Skipped("only root can make nodes: /dev/net/tun is root's".to_string()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Stop::Skipped("there is no /dev/net/tun".to_string()));
    }
    let is_there = |name: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(name).exists())
    };
    match PROGRAMS.iter().find(|(program, _)| !is_there(program)) {
        Some((program, package)) => {
            Err(Stop::Skipped(format!("{program} is not installed (Debian: {package})")))
        }
        None => Ok(()),
    }
}
