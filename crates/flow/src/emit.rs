//! Job scripts that carry a plan out: Slurm, Flux, PBS, or a plain shell.
//!
//! One ordinary job on one node that becomes `forebay run`, which starts the ranks of each component through the job
//! manager's launcher. So a job makes the record and the report of a run, ends with its first failure, and leaves
//! nothing behind when it is cancelled, by the same code as a run without a job manager. The plan's processors stand in
//! comments, so that an expert can check them. (A heterogeneous job is the wrong shape: schedulers put its parts on
//! different nodes.)
//!
//! Guarantees: every path in the script is absolute; nothing in it is used up by being submitted.
//! Not here: submitting it.

use std::fmt::Write;
use std::path::Path;

use forebay_model::plan::Mode;
use forebay_probe::machine::numbers;
use forebay_space::{Error, Kind, Result};

use crate::plan::PlanFile;
use crate::seats::{depths, Seat};
use crate::workflow::Workflow;

/// Who runs the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Slurm: `sbatch`, steps by `srun`.
    Slurm,
    /// Flux: `flux batch`, steps by `flux run`.
    Flux,
    /// PBS Pro: `qsub`, steps by PALS's `mpiexec`.
    Pbs,
    /// A shell: each rank a process of its own.
    Shell,
}

/// What a script is made from.
#[derive(Debug)]
pub struct Job<'a> {
    /// The workflow.
    pub workflow: &'a Workflow,
    /// Its file, absolute.
    pub workflow_file: &'a Path,
    /// Its plan.
    pub plan: &'a PlanFile,
    /// Where the plan's file lies, absolute.
    pub plan_file: &'a Path,
    /// The words that start the command on the node of the job, the first an absolute path.
    pub forebay: &'a [String],
}

/// The script.
///
/// # Errors
/// [`Kind::NotPossibleHere`] for what a job manager would silently run one after the other.
pub fn emit(r#for: For, job: &Job<'_>) -> Result<String> {
    refuse(r#for, job)?;
    let mut script = String::from("#!/bin/bash\n");
    script += &header(r#for, job);
    let plan = &job.plan.plan;
    let _ = writeln!(script, "# {} on {}", plan.short(), plan.tier);
    for seat in &job.plan.components {
        let cpus = numbers(&seat.cpus);
        let _ = writeln!(
            script,
            "# {}: ranks {}, processors {}, mask {}",
            seat.name,
            seat.ranks,
            seat.cpus,
            mask(&cpus)
        );
    }
    job.plan.decision.reasons.iter().for_each(|reason| script += &format!("# {reason}\n"));
    let launcher = match r#for {
        For::Slurm => " --launcher srun",
        For::Flux => " --launcher flux",
        For::Pbs => " --launcher mpiexec",
        For::Shell => "",
    };
    let forebay: Vec<String> = job.forebay.iter().map(|word| quoted(word)).collect();
    let path = |path: &Path| quoted(&path.to_string_lossy());
    // The job manager's signals reach the run itself.
    let _ = writeln!(
        script,
        "exec {} run {} --plan {}{launcher} --report",
        forebay.join(" "),
        path(job.workflow_file),
        path(job.plan_file)
    );
    Ok(script)
}

fn refuse(r#for: For, job: &Job<'_>) -> Result<()> {
    let crowded = |s: &&Seat| numbers(&s.cpus).len() < s.ranks as usize;
    match (r#for, job.plan.components.iter().find(crowded)) {
        (For::Flux, Some(seat)) => Err(Error::new(
            Kind::NotPossibleHere,
            "Flux binds one processor per rank, and the plan has too few",
        )
        .with("component", &seat.name)
        .with("ranks", seat.ranks)
        .with("processors", &seat.cpus)
        .hint("use fewer ranks, or create the plan in a larger allocation")),
        _ => Ok(()),
    }
}

/// Ranks at work at once, and processors that any of them uses.
fn amounts(job: &Job<'_>) -> (u32, usize) {
    let depths = depths(job.workflow).unwrap_or_default();
    let stage_of = |name: &str| match job.plan.plan.mode {
        Mode::Serial => depths.get(name).copied(),
        _ => None,
    };
    let seats = &job.plan.components;
    let together = |stage| seats.iter().filter(|s| stage_of(&s.name) == stage).map(|s| s.ranks).sum();
    let ranks: Option<u32> = seats.iter().map(|seat| together(stage_of(&seat.name))).max();
    let mut cpus: Vec<usize> = seats.iter().flat_map(|s| numbers(&s.cpus)).collect();
    cpus.sort_unstable();
    cpus.dedup();
    (ranks.unwrap_or(1), cpus.len())
}

fn header(r#for: For, job: &Job<'_>) -> String {
    let name = &job.workflow.name;
    let (ranks, cpus) = amounts(job);
    match r#for {
        For::Slurm => {
            format!("#SBATCH --job-name={name}\n#SBATCH --nodes=1\n#SBATCH --exclusive\n#SBATCH --mem=0\n")
        }
        For::Flux => format!("#FLUX: --job-name={name}\n#FLUX: --nodes=1\n#FLUX: --exclusive\n"),
        For::Pbs => format!(
            "#PBS -N {}\n#PBS -l select=1:ncpus={cpus}:mpiprocs={ranks}\n#PBS -l place=excl\n",
            name.chars().take(15).collect::<String>()
        ),
        For::Shell => String::new(),
    }
}

/// Processors as a mask, as launchers and `taskset` write it.
fn mask(cpus: &[usize]) -> String {
    let mut digits = vec![0u8; cpus.iter().max().map_or(1, |most| most / 4 + 1)];
    cpus.iter().for_each(|cpu| digits[cpu / 4] |= 1 << (cpu % 4));
    let hex: String =
        digits.iter().rev().map(|d| char::from_digit(u32::from(*d), 16).expect("four bits")).collect();
    format!("0x{hex}")
}

/// A word that the shell takes as it stands.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Launcher;
    use crate::plan::{Home, AS_THE_FILE_SAYS};
    use crate::topology::{Node, Topology};
    use forebay_model::plan::{Locality, Plan};

    fn script(r#for: For, mode: Mode, ranks: u32) -> Result<String> {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"its\"\n[channel.u]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = {ranks}\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"forebay\", \"ls\"]\nreads = [\"u\"]\n"
        );
        let workflow = Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap();
        let topology = Topology { nodes: vec![Node { number: 0, cpus: (0..6).collect(), bytes: 0 }] };
        let plan = Plan::new(mode, Locality::Writer, AS_THE_FILE_SAYS);
        let plan = PlanFile::new(&workflow, &topology, &plan, &Home::AsSaid).unwrap();
        let job = Job {
            workflow: &workflow,
            workflow_file: Path::new("/p/it's.toml"),
            plan: &plan,
            plan_file: Path::new("/p/plan.json"),
            forebay: &["/opt/bin/forebay".to_owned()],
        };
        emit(r#for, &job)
    }

    #[test]
    fn one_ordinary_job_that_becomes_the_run() {
        let slurm = script(For::Slurm, Mode::Parallel, 3).unwrap();
        assert!(slurm.starts_with("#!/bin/bash\n#SBATCH --job-name=its\n#SBATCH --nodes=1\n"), "{slurm}");
        let run = r"exec /opt/bin/forebay run '/p/it'\''s.toml' --plan /p/plan.json --launcher srun --report";
        assert_eq!(slurm.lines().last(), Some(run));
        assert!(!slurm.contains("het"), "{slurm}");
        let flux = script(For::Flux, Mode::Parallel, 3).unwrap();
        assert!(flux.contains("#FLUX: --nodes=1\n") && flux.contains("--launcher flux"), "{flux}");
        let pbs = script(For::Pbs, Mode::Parallel, 3).unwrap();
        assert!(pbs.contains("select=1:ncpus=6:mpiprocs=4\n") && pbs.contains("--launcher mpiexec"), "{pbs}");
        assert!(!script(For::Shell, Mode::Parallel, 3).unwrap().contains("--launcher"));
        assert!(script(For::Pbs, Mode::Serial, 3).unwrap().contains(":mpiprocs=3\n"), "not all at once");
    }

    #[test]
    fn launchers_bind_nothing_by_themselves() {
        let words = |launcher: Launcher| launcher.words(3).join(" ");
        assert!(words(Launcher::Srun)
            .starts_with("srun --ntasks=3 --overlap --overcommit --cpu-bind=none --mem-bind=none"),);
        assert!(words(Launcher::Flux).starts_with("flux run --nodes=1 --ntasks=3 -o cpu-affinity=off"));
        assert_eq!(words(Launcher::Mpiexec), "mpiexec -n 3 --cpu-bind none");
    }

    #[test]
    fn masks_are_as_launchers_read_them() {
        assert_eq!([mask(&[0, 1, 2]), mask(&[4, 8]), mask(&[])], ["0x7", "0x110", "0x0"]);
        assert_eq!(script(For::Flux, Mode::Serial, 9).unwrap_err().kind(), Kind::NotPossibleHere);
    }
}
