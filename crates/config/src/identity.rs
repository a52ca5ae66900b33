//! Rank and size of this process in its group.
//!
//! Order: what the program says; `FOREBAY_RANK` and `FOREBAY_SIZE`; Open MPI; MPICH, Intel MPI and PALS;
//! Flux; srun; else 0 of 1. The innermost launcher comes first: `mpirun` inside a Slurm allocation starts its
//! own processes through srun, so that they see a `SLURM_PROCID` that numbers nodes rather than ranks.
//!
//! Guarantees: half a pair is an error, never a guess; a Slurm batch script itself, or the shell of an
//! interactive step, is 0 of 1 although its environment holds a `SLURM_PROCID`. Of a group on several
//! nodes it is known ([`Spread`]); with the scope `node` rank and size count this node's processes.
//! Inside `forebay run` on one node (`FOREBAY_RUN`) no launcher is asked for it; a run on several nodes says so
//! (`FOREBAY_RUN_NODES`). There
//! `FOREBAY_RANK` numbers the processes of a component, and a launcher that numbers this process otherwise was
//! started by one of them: an error, because nothing says which of the two the program means. Not here: MPI
//! itself; a communicator's rank and size come as explicit arguments.

use forebay_tier::{Error, Kind, Result};

use crate::environment::{self, Lookup};
use crate::value::Scope;

/// Who this process is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Rank, below `size`.
    pub rank: u32,
    /// Number of processes, at least 1.
    pub size: u32,
    /// Who said so.
    pub source: Source,
}

/// Where rank and size came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Arguments of `open`.
    Arguments,
    /// `FOREBAY_RANK` and `FOREBAY_SIZE`.
    Environment,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's or Intel MPI's `mpiexec`, or PALS.
    Mpich,
    /// `flux run`.
    Flux,
    /// `srun`.
    Srun,
    /// No launcher: a single process.
    Alone,
}

impl Source {
    /// The variables that hold rank and size.
    fn variables(self) -> (&'static str, &'static str) {
        match self {
            Source::OpenMpi => ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            Source::Mpich => ("PMI_RANK or PALS_RANKID", "PMI_SIZE"),
            Source::Flux => ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
            Source::Srun => ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
            Source::Arguments | Source::Environment | Source::Alone => ("FOREBAY_RANK", "FOREBAY_SIZE"),
        }
    }
}

/// What a launcher says about this process.
struct Launch {
    source: Source,
    rank: u32,
    size: u32,
    /// Rank and size among the processes of this node, where the launcher says them.
    local: Option<(u32, u32)>,
    several_nodes: bool,
}

/// Slurm's step numbers above this are no steps of ranks: batch script, interactive shell, extern.
const SLURM_STEP_FIRST_SPECIAL: u64 = 0xffff_fff0;

/// On which nodes the processes of a group run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All on this one.
    OneNode,
    /// On others as well.
    SeveralNodes {
        /// Rank and size among the processes of this node, where they are known.
        local: Option<(u32, u32)>,
    },
}

impl Spread {
    /// Refuses a group of several nodes.
    ///
    /// # Errors
    /// [`Kind::SeveralNodes`].
    pub fn check_one_node(self) -> Result<()> {
        match self {
            Spread::OneNode => Ok(()),
            Spread::SeveralNodes { .. } => {
                Err(several_nodes("this is a job of several nodes, and a space serves one node"))
            }
        }
    }
}

/// Rank and size, from the arguments or from what `lookup` shows of the environment, and the nodes of the group.
///
/// # Errors
/// [`Kind::Usage`]: only one of the arguments, or a rank that is not below the size;
/// [`Kind::UnknownEnvironment`]: the same of variables, or one that is no number;
/// [`Kind::SeveralNodes`]: the scope is `node`, and the launcher does not say which processes are on this node.
pub fn identify(
    rank: Option<u32>,
    size: Option<u32>,
    scope: Scope,
    lookup: Lookup<'_>,
) -> Result<(Identity, Spread)> {
    let launch = launched(lookup)?;
    let given = match (rank, size) {
        (Some(rank), Some(size)) => Some((rank, size, Source::Arguments)),
        (None, None) => {
            pair("FOREBAY_RANK", "FOREBAY_SIZE", lookup)?.map(|(r, s)| (r, s, Source::Environment))
        }
        _ => {
            let error = Error::new(Kind::Usage, "rank and size must be given together");
            return Err(error.hint("pass both, or neither (then they come from the environment)"));
        }
    };
    let run = environment::value("FOREBAY_RUN", lookup).is_some();
    if let (Some((rank, size, Source::Environment)), true) = (given, run) {
        check_component(rank, size, launch.as_ref(), lookup)?;
    }
    let on_one_node = run && run_on_nodes(lookup)?.is_none();
    let several = launch.as_ref().is_some_and(|l| l.several_nodes) && !on_one_node;
    let spread = |me: Identity| match scope == Scope::Node {
        true => Ok(Spread::OneNode),
        false => spread_of(me.rank, me.size, launch.as_ref().filter(|_| !on_one_node), lookup),
    };
    let (rank, size, source) = match (given, &launch) {
        // Said by hand: with scope `node` the numbers are the caller's business.
        (Some(given), _) => given,
        (None, None) => (0, 1, Source::Alone),
        (None, Some(launch)) if scope == Scope::Node => match (launch.local, several) {
            (Some((rank, size)), _) => (rank, size, launch.source),
            (None, false) => (launch.rank, launch.size, launch.source),
            (None, true) => {
                return Err(several_nodes("the launcher does not provide rank and size on this node")
                    .hint("set FOREBAY_RANK and FOREBAY_SIZE for this node, or pass rank and size"));
            }
        },
        (None, Some(launch)) => (launch.rank, launch.size, launch.source),
    };
    let me = checked(rank, size, source)?;
    Ok((me, spread(me)?))
}

/// By `FOREBAY_LOCAL_RANK` and `FOREBAY_LOCAL_SIZE`, which belong to `FOREBAY_RANK` and `FOREBAY_SIZE`, or without
/// these to rank and size of the program; else by the launcher.
fn spread_of(rank: u32, size: u32, launch: Option<&Launch>, lookup: Lookup<'_>) -> Result<Spread> {
    let own = pair("FOREBAY_RANK", "FOREBAY_SIZE", lookup)?;
    if let Some((local, here)) = pair("FOREBAY_LOCAL_RANK", "FOREBAY_LOCAL_SIZE", lookup)? {
        checked(local, here, Source::Environment)?;
        let is_of_group = own.is_none_or(|own| own == (rank, size));
        return Ok(match here < own.map_or(size, |(_, size)| size) {
            true => Spread::SeveralNodes { local: is_of_group.then_some((local, here)) },
            false => Spread::OneNode,
        });
    }
    Ok(match launch.filter(|launch| launch.several_nodes) {
        None => Spread::OneNode,
        Some(launch) => {
            let is_of_group = (launch.rank, launch.size) == (rank, size);
            Spread::SeveralNodes { local: launch.local.filter(|(rank, here)| is_of_group && rank < here) }
        }
    })
}

/// The runner takes the variables of launchers around it away: what is there was set inside a component.
fn check_component(rank: u32, size: u32, launch: Option<&Launch>, lookup: Lookup<'_>) -> Result<()> {
    let other = match launch {
        Some(launch) if (launch.rank, launch.size) == (rank, size) || launch.local == Some((rank, size)) => {
            None
        }
        Some(launch) => {
            let (rank_name, size_name) = launch.source.variables();
            Some(format!("{rank_name}={}, {size_name}={}", launch.rank, launch.size))
        }
        None => number("PMIX_RANK", lookup)?.filter(|other| *other != rank).map(|r| format!("PMIX_RANK={r}")),
    };
    let Some(other) = other else { return Ok(()) };
    Err(Error::new(Kind::UnknownEnvironment, "two launchers number this process differently")
        .with("forebay_run", format!("FOREBAY_RANK={rank}, FOREBAY_SIZE={size}"))
        .with("launcher", other)
        .hint(
            "ranks of one MPI program: name its launcher in the component's table of the workflow file, as in \
             launcher = [\"mpirun\", \"-n\", \"4\"] with ranks = 4; or pass rank and size of the communicator to open",
        ))
}

/// What tells launches of a program apart, by the environment of this process: the directory of its run, or the number
/// of its batch job; empty where neither is said.
pub fn launch_id() -> String {
    launch(&environment::process).unwrap_or_default()
}

/// What tells launches apart that use one name: the directory of the run, or the number of the batch job. None: neither
/// is said.
pub fn launch(lookup: Lookup<'_>) -> Option<String> {
    environment::value("FOREBAY_RUN", lookup).or_else(|| batch_job(lookup))
}

/// The number of the batch job, as its batch system writes it. None: there is none.
pub fn batch_job(lookup: Lookup<'_>) -> Option<String> {
    let names = ["SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID"];
    names.iter().find_map(|name| environment::value(name, lookup))
}

/// What tells the launches of a parallel program apart that has processes on several nodes, the same on each of them.
/// None: neither a run nor its launcher says anything of the kind.
pub fn launch_across_nodes(lookup: Lookup<'_>) -> Option<String> {
    let value = |name| environment::value(name, lookup);
    let step = || Some(format!("{}.{}", value("SLURM_JOB_ID")?, value("SLURM_STEP_ID")?));
    let launched = value("PMIX_NAMESPACE").or_else(step);
    match run_on_nodes(lookup).ok().flatten() {
        // The runner takes away what numbers itself; what is there was set by a launcher that a component calls, which
        // may do so more than once. The job of Flux may be that of the runner of one node.
        Some(run) => {
            let launched = launched.or_else(|| value("FLUX_TASK_RANK").and(value("FLUX_JOB_ID")));
            Some(launched.map_or(run.clone(), |launched| format!("{run} {launched}")))
        }
        None => launched.or_else(|| value("FLUX_JOB_ID")),
    }
}

/// The directory of the run that this process belongs to, if the run has several nodes.
fn run_on_nodes(lookup: Lookup<'_>) -> Result<Option<String>> {
    let nodes = number("FOREBAY_RUN_NODES", lookup)?;
    Ok(environment::value("FOREBAY_RUN", lookup).filter(|_| nodes.is_some_and(|nodes| nodes > 1)))
}

fn several_nodes(message: &str) -> Error {
    Error::new(Kind::SeveralNodes, message).hint(
        "open with scope=\"node\" (or FOREBAY_SCOPE=node) to couple the processes of each node by themselves",
    )
}

fn checked(rank: u32, size: u32, source: Source) -> Result<Identity> {
    if rank < size {
        return Ok(Identity { rank, size, source });
    }
    let kind = if source == Source::Arguments { Kind::Usage } else { Kind::UnknownEnvironment };
    Err(Error::new(kind, "the rank is not below the size").with("rank", rank).with("size", size))
}

/// The launcher that started this process, if one did.
fn launched(lookup: Lookup<'_>) -> Result<Option<Launch>> {
    for launcher in [open_mpi, mpich, flux, srun] {
        if let Some(launch) = launcher(lookup)? {
            return Ok(Some(launch));
        }
    }
    Ok(None)
}

fn open_mpi(lookup: Lookup<'_>) -> Result<Option<Launch>> {
    let Some((rank, size)) = pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", lookup)? else {
        return Ok(None);
    };
    let local =
        both(number("OMPI_COMM_WORLD_LOCAL_RANK", lookup)?, number("OMPI_COMM_WORLD_LOCAL_SIZE", lookup)?);
    Ok(Some(Launch { source: Source::OpenMpi, rank, size, local, several_nodes: fewer_here(local, size) }))
}

fn mpich(lookup: Lookup<'_>) -> Result<Option<Launch>> {
    let rank_name = if environment::value("PMI_RANK", lookup).is_some() { "PMI_RANK" } else { "PALS_RANKID" };
    // PMI_SIZE alone is left behind by some job prologues and means nothing.
    if environment::value(rank_name, lookup).is_none() {
        return Ok(None);
    }
    let Some((rank, size)) = pair(rank_name, "PMI_SIZE", lookup)? else { return Ok(None) };
    let local_rank = first(&["PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"], lookup)?;
    let local_size = first(&["PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"], lookup)?;
    let several_nodes = local_size.is_some_and(|here| here < size);
    Ok(Some(Launch { source: Source::Mpich, rank, size, local: both(local_rank, local_size), several_nodes }))
}

fn flux(lookup: Lookup<'_>) -> Result<Option<Launch>> {
    if environment::value("FLUX_TASK_RANK", lookup).is_none() {
        return Ok(None);
    }
    let Some((rank, size)) = pair("FLUX_TASK_RANK", "FLUX_JOB_SIZE", lookup)? else { return Ok(None) };
    let nodes = number("FLUX_JOB_NNODES", lookup)?.unwrap_or(1).max(1);
    // Flux says the local rank but not how many there are; even shares are its default.
    let share = (size % nodes == 0).then_some(size / nodes);
    let local = both(number("FLUX_TASK_LOCAL_ID", lookup)?, share).filter(|(rank, size)| rank < size);
    Ok(Some(Launch { source: Source::Flux, rank, size, local, several_nodes: nodes > 1 }))
}

fn srun(lookup: Lookup<'_>) -> Result<Option<Launch>> {
    let Some(step) = environment::value("SLURM_STEP_ID", lookup) else { return Ok(None) };
    let step: u64 = step.trim().parse().map_err(|_| unreadable("SLURM_STEP_ID", &step))?;
    if step >= SLURM_STEP_FIRST_SPECIAL {
        return Ok(None);
    }
    let Some((rank, size)) = pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", lookup)? else { return Ok(None) };
    let nodes = first(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"], lookup)?.unwrap_or(1);
    let node = number("SLURM_NODEID", lookup)?.unwrap_or(0);
    let here =
        environment::value("SLURM_STEP_TASKS_PER_NODE", lookup).and_then(|text| tasks_on_node(&text, node));
    let local = both(number("SLURM_LOCALID", lookup)?, here);
    Ok(Some(Launch { source: Source::Srun, rank, size, local, several_nodes: nodes > 1 }))
}

/// Tasks on the node with this index, from Slurm's `2(x3),1`.
fn tasks_on_node(text: &str, node: u32) -> Option<u32> {
    let mut first_node = 0u32;
    for part in text.split(',') {
        let (tasks, repeat) = match part.trim().split_once("(x") {
            Some((tasks, repeat)) => (tasks, repeat.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (part.trim(), 1),
        };
        first_node = first_node.checked_add(repeat)?;
        if node < first_node {
            return tasks.parse().ok();
        }
    }
    None
}

/// True when fewer processes run on this node than in the job.
fn fewer_here(local: Option<(u32, u32)>, size: u32) -> bool {
    local.is_some_and(|(_, here)| here < size)
}

fn both(rank: Option<u32>, size: Option<u32>) -> Option<(u32, u32)> {
    rank.zip(size)
}

/// Two variables that only make sense together.
fn pair(rank: &'static str, size: &'static str, lookup: Lookup<'_>) -> Result<Option<(u32, u32)>> {
    match (number(rank, lookup)?, number(size, lookup)?) {
        (Some(r), Some(s)) => Ok(Some((r, s))),
        (None, None) => Ok(None),
        (r, _) => {
            let (there, missing) = if r.is_some() { (rank, size) } else { (size, rank) };
            Err(Error::new(Kind::UnknownEnvironment, format!("{there} is set but {missing} is not")))
        }
    }
}

/// The first of several variables that is set.
fn first(names: &[&'static str], lookup: Lookup<'_>) -> Result<Option<u32>> {
    for name in names {
        if let Some(value) = number(name, lookup)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn number(name: &str, lookup: Lookup<'_>) -> Result<Option<u32>> {
    environment::value(name, lookup).map(|t| t.trim().parse().map_err(|_| unreadable(name, &t))).transpose()
}

fn unreadable(name: &str, text: &str) -> Error {
    Error::new(Kind::UnknownEnvironment, format!("{name}=`{text}` is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn who(scope: Scope, variables: &str) -> Result<Identity> {
        ask(None, None, scope, variables)
    }

    /// `variables` as `NAME=value NAME=value`.
    fn ask(rank: Option<u32>, size: Option<u32>, scope: Scope, variables: &str) -> Result<Identity> {
        let map: HashMap<&str, &str> =
            variables.split_whitespace().map(|v| v.split_once('=').unwrap()).collect();
        let (me, spread) = identify(rank, size, scope, &|name| map.get(name).map(|v| v.to_string()))?;
        spread.check_one_node().map(|()| me)
    }

    fn is(rank: u32, size: u32, source: Source) -> Identity {
        Identity { rank, size, source }
    }

    const SRUN: &str = "SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1";

    #[test]
    fn no_environment_names_a_rank() {
        assert_eq!(who(Scope::Job, "").unwrap(), is(0, 1, Source::Alone));
        assert_eq!(who(Scope::Node, "").unwrap(), is(0, 1, Source::Alone));
    }

    #[test]
    fn arguments_come_first_then_our_own_variables() {
        let both = format!("{SRUN} FOREBAY_RANK=1 FOREBAY_SIZE=2");
        assert_eq!(ask(Some(5), Some(6), Scope::Job, &both).unwrap(), is(5, 6, Source::Arguments));
        assert_eq!(who(Scope::Job, &both).unwrap(), is(1, 2, Source::Environment));
    }

    #[test]
    fn halves_are_errors() {
        assert_eq!(ask(Some(0), None, Scope::Job, "").unwrap_err().kind(), Kind::Usage);
        assert_eq!(ask(None, Some(2), Scope::Job, "").unwrap_err().kind(), Kind::Usage);
        for variables in [
            "FOREBAY_RANK=0",
            "FOREBAY_SIZE=2",
            "OMPI_COMM_WORLD_RANK=0",
            "OMPI_COMM_WORLD_SIZE=1",
            "PMI_RANK=0",
            "PALS_RANKID=0",
            "FLUX_TASK_RANK=0",
            "SLURM_STEP_ID=0 SLURM_PROCID=0",
        ] {
            assert_eq!(
                who(Scope::Job, variables).unwrap_err().kind(),
                Kind::UnknownEnvironment,
                "{variables}"
            );
        }
    }

    #[test]
    fn rank_must_be_below_size() {
        assert_eq!(ask(Some(2), Some(2), Scope::Job, "").unwrap_err().kind(), Kind::Usage);
        assert_eq!(ask(Some(0), Some(0), Scope::Job, "").unwrap_err().kind(), Kind::Usage);
        let error = who(Scope::Job, "FOREBAY_RANK=4 FOREBAY_SIZE=4").unwrap_err();
        assert_eq!(error.kind(), Kind::UnknownEnvironment);
        assert_eq!(
            who(Scope::Job, "FOREBAY_RANK=x FOREBAY_SIZE=4").unwrap_err().kind(),
            Kind::UnknownEnvironment
        );
    }

    #[test]
    fn srun_on_one_node() {
        let one = format!("{SRUN} SLURM_STEP_NUM_NODES=1 SLURM_NNODES=2 SLURM_STEP_TASKS_PER_NODE=4");
        assert_eq!(who(Scope::Job, &one).unwrap(), is(3, 4, Source::Srun));
    }

    #[test]
    fn srun_on_several_nodes() {
        let two = format!("{SRUN} SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2)");
        assert_eq!(who(Scope::Job, &two).unwrap_err().kind(), Kind::SeveralNodes);
        assert_eq!(who(Scope::Node, &two).unwrap(), is(1, 2, Source::Srun));
        assert_eq!(ask(Some(0), Some(1), Scope::Job, &two).unwrap_err().kind(), Kind::SeveralNodes);
        assert_eq!(ask(Some(0), Some(1), Scope::Node, &two).unwrap(), is(0, 1, Source::Arguments));
        let ours = format!("{two} FOREBAY_RUN=/tmp/run");
        assert_eq!(who(Scope::Job, &ours).unwrap(), is(3, 4, Source::Srun), "started by forebay run");
        let older = format!("{SRUN} SLURM_NNODES=2");
        let error = who(Scope::Node, &older).unwrap_err();
        assert_eq!(error.kind(), Kind::SeveralNodes, "no local size: no guess");
    }

    #[test]
    fn a_batch_script_is_no_step() {
        let batch = "SLURM_PROCID=0 SLURM_NNODES=4 SLURM_NTASKS=16 SLURM_JOB_ID=1";
        assert_eq!(who(Scope::Job, batch).unwrap(), is(0, 1, Source::Alone));
        let shell = format!("{batch} SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1");
        assert_eq!(who(Scope::Job, &shell).unwrap(), is(0, 1, Source::Alone));
    }

    #[test]
    fn flux_on_one_node_and_on_two() {
        let one = "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=1";
        assert_eq!(who(Scope::Job, one).unwrap(), is(1, 4, Source::Flux));
        let two = "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_LOCAL_ID=1";
        assert_eq!(who(Scope::Job, two).unwrap_err().kind(), Kind::SeveralNodes);
        assert_eq!(who(Scope::Node, two).unwrap(), is(1, 2, Source::Flux));
        let odd = "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=2 FLUX_TASK_LOCAL_ID=1";
        assert_eq!(who(Scope::Node, odd).unwrap_err().kind(), Kind::SeveralNodes);
    }

    #[test]
    fn open_mpi_wins_over_the_srun_that_started_its_daemons() {
        let one = format!(
            "{SRUN} OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=7 \
             OMPI_COMM_WORLD_LOCAL_SIZE=8"
        );
        assert_eq!(who(Scope::Job, &one).unwrap(), is(7, 8, Source::OpenMpi));
        let two = one.replace("LOCAL_RANK=7", "LOCAL_RANK=3").replace("LOCAL_SIZE=8", "LOCAL_SIZE=4");
        assert_eq!(who(Scope::Job, &two).unwrap_err().kind(), Kind::SeveralNodes);
        assert_eq!(who(Scope::Node, &two).unwrap(), is(3, 4, Source::OpenMpi));
    }

    #[test]
    fn a_group_knows_which_of_its_processes_are_on_this_node() {
        let spread = |rank, size, scope, variables: &str| {
            let map: HashMap<&str, &str> =
                variables.split_whitespace().map(|v| v.split_once('=').unwrap()).collect();
            let lookup = |name: &str| map.get(name).map(|v| v.to_string());
            identify(rank, size, scope, &lookup).map(|(_, spread)| spread)
        };
        let several = |local| Spread::SeveralNodes { local };
        let mpi = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                   OMPI_COMM_WORLD_LOCAL_SIZE=4";
        assert_eq!(spread(None, None, Scope::Job, mpi).unwrap(), several(Some((1, 4))));
        assert_eq!(spread(Some(5), Some(8), Scope::Job, mpi).unwrap(), several(Some((1, 4))));
        assert_eq!(spread(Some(1), Some(2), Scope::Job, mpi).unwrap(), several(None), "a part of the job");
        assert_eq!(spread(None, None, Scope::Node, mpi).unwrap(), Spread::OneNode);
        assert_eq!(
            spread(None, None, Scope::Job, &format!("{mpi} FOREBAY_RUN=/r")).unwrap(),
            Spread::OneNode
        );
        let on_two = format!("{mpi} FOREBAY_RUN=/r FOREBAY_RUN_NODES=2");
        assert_eq!(spread(None, None, Scope::Job, &on_two).unwrap(), several(Some((1, 4))));
        let launch = |variables: &str| {
            let map: HashMap<&str, &str> =
                variables.split_whitespace().map(|v| v.split_once('=').unwrap()).collect();
            launch_across_nodes(&|name: &str| map.get(name).map(|v| v.to_string()))
        };
        assert_eq!(launch(&on_two).as_deref(), Some("/r"));
        assert_eq!(launch(&format!("{on_two} FLUX_JOB_ID=f1")).as_deref(), Some("/r"));
        assert_ne!(
            launch(&format!("{on_two} PMIX_NAMESPACE=p1")),
            launch(&format!("{on_two} PMIX_NAMESPACE=p2"))
        );
        assert_eq!(launch(&format!("{mpi} FOREBAY_RUN=/r FOREBAY_RUN_NODES=1")), None);
        let ours = "FOREBAY_RANK=3 FOREBAY_SIZE=4 FOREBAY_LOCAL_RANK=1 FOREBAY_LOCAL_SIZE=2";
        assert_eq!(spread(None, None, Scope::Job, ours).unwrap(), several(Some((1, 2))));
        let whole = ours.replace("LOCAL_RANK=1", "LOCAL_RANK=3").replace("LOCAL_SIZE=2", "LOCAL_SIZE=4");
        assert_eq!(spread(None, None, Scope::Job, &whole).unwrap(), Spread::OneNode);
        let wrong = ours.replace("LOCAL_RANK=1", "LOCAL_RANK=2");
        assert_eq!(spread(None, None, Scope::Job, &wrong).unwrap_err().kind(), Kind::UnknownEnvironment);
        assert_eq!(spread(None, None, Scope::Job, "").unwrap(), Spread::OneNode);
        let local = "FOREBAY_LOCAL_RANK=1 FOREBAY_LOCAL_SIZE=2";
        assert_eq!(spread(Some(3), Some(4), Scope::Job, local).unwrap(), several(Some((1, 2))));
        assert_eq!(spread(Some(0), Some(3), Scope::Job, ours).unwrap(), several(None), "of another group");
        let in_a_run = format!("{ours} FOREBAY_RUN=/r");
        assert_eq!(spread(None, None, Scope::Job, &in_a_run).unwrap(), several(Some((1, 2))), "it was said");
    }

    #[test]
    fn mpich_intel_and_pals() {
        assert_eq!(who(Scope::Job, "PMI_RANK=1 PMI_SIZE=2").unwrap(), is(1, 2, Source::Mpich));
        assert_eq!(who(Scope::Job, "PALS_RANKID=1 PMI_SIZE=2").unwrap(), is(1, 2, Source::Mpich));
        let two = "PMI_RANK=5 PMI_SIZE=8 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=1";
        assert_eq!(who(Scope::Job, two).unwrap_err().kind(), Kind::SeveralNodes);
        assert_eq!(who(Scope::Node, two).unwrap(), is(1, 4, Source::Mpich));
        let pals = "PALS_RANKID=5 PMI_SIZE=8 PMI_LOCAL_SIZE=4 PALS_LOCAL_RANKID=1";
        assert_eq!(who(Scope::Node, pals).unwrap(), is(1, 4, Source::Mpich));
    }

    #[test]
    fn a_communicator_inside_a_component_of_another_size_is_an_error_that_names_both() {
        let component = "FOREBAY_RUN=/tmp/run FOREBAY_RANK=0 FOREBAY_SIZE=1";
        for (launcher, named) in [
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=4"),
            ("PMI_RANK=2 PMI_SIZE=4", "PMI_SIZE=4"),
            ("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2", "FLUX_JOB_SIZE=2"),
            (SRUN, "SLURM_PROCID=3"),
            ("PMIX_RANK=3", "PMIX_RANK=3"),
        ] {
            let error = who(Scope::Job, &format!("{component} {launcher}")).unwrap_err();
            assert_eq!(error.kind(), Kind::UnknownEnvironment, "{launcher}");
            let text = error.to_string();
            assert!(text.contains("FOREBAY_RANK=0, FOREBAY_SIZE=1") && text.contains(named), "{text}");
            assert!(error.hint_text().unwrap().contains("launcher ="), "{text}");
            // What the program says itself counts, and so does what a user sets outside of `forebay run`.
            let said = ask(Some(0), Some(4), Scope::Job, &format!("{component} {launcher}"));
            assert_eq!(said.unwrap(), is(0, 4, Source::Arguments));
            let by_hand = format!("FOREBAY_RANK=0 FOREBAY_SIZE=1 {launcher}");
            assert_eq!(who(Scope::Job, &by_hand).unwrap(), is(0, 1, Source::Environment));
        }
        let same =
            "FOREBAY_RUN=/r FOREBAY_RANK=1 FOREBAY_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4";
        assert_eq!(who(Scope::Job, same).unwrap(), is(1, 4, Source::Environment));
    }

    #[test]
    fn slurm_lists_of_tasks() {
        for (text, node, tasks) in [
            ("4", 0, Some(4)),
            ("2(x3),1", 2, Some(2)),
            ("2(x3),1", 3, Some(1)),
            ("2(x3),1", 4, None),
            ("?", 0, None),
            ("2(x", 0, None),
        ] {
            assert_eq!(tasks_on_node(text, node), tasks, "{text} {node}");
        }
    }
}
