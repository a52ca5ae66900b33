//! Job scripts that carry a plan out: Slurm, Flux, PBS, or a plain shell.
//!
//! One ordinary job on one node, whose steps run `forebay exec`: the launcher starts the ranks and binds nothing,
//! because no launcher knows of the channel between two programs; the plan's processors stand in comments, so that an
//! expert can check them. (A heterogeneous job is the wrong shape: schedulers put its parts on different nodes.)
//!
//! Guarantees: the script ends when all components have ended; when one fails it ends the others (by SIGKILL what does
//! not end by itself), and has that one's exit status. What is left of channels is removed either way, but never one
//! that the workflow keeps. A serial plan's steps come one after the other.
//! Not here: submitting it.

use std::fmt::Write;
use std::path::Path;

use forebay_perf::model::plan::Mode;
use forebay_perf::probe::machine::numbers;
use forebay_space::{Error, Kind, Result};

use crate::plan::PlanFile;
use crate::seats::{depths, Seat};
use crate::workflow::{Component, Workflow};

/// Who runs the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Slurm: `sbatch`, steps by `srun`.
    Sbatch,
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
    /// The workflow, its channels where the plan has them ([`PlanFile::place_channels`]).
    pub workflow: &'a Workflow,
    /// Its plan.
    pub plan: &'a PlanFile,
    /// Where the plan's file lies, absolute.
    pub plan_file: &'a Path,
    /// The command on the nodes of the job: `forebay`, or its path.
    pub forebay: &'a str,
}

/// Starting, waiting for, and ending the steps; the same in every script.
const COURSE: &str = r#"
steps=()
step() { # DIRECTORY COMMAND...: in the background
  ( cd "$1" && shift && exec "$@" ) &
  steps+=($!)
}
tidy() { # removes what is left of the channels; most have gone by themselves
  for channel in "${channels[@]}"; do
    "$forebay" clean "$channel" >/dev/null 2>&1 || true
  done
}
stop() { # STATUS: ends the steps that still run, after a grace by force
  trap - TERM INT
  kill "${steps[@]}" 2>/dev/null
  local tenths=100
  while [ "$tenths" -gt 0 ] && kill -0 "${steps[@]}" 2>/dev/null; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  kill -KILL "${steps[@]}" 2>/dev/null
  wait
  tidy
  exit "$1"
}
finish() { # waits for all steps; the first that fails ends the job
  local left=${#steps[@]}
  while [ "$left" -gt 0 ]; do
    wait -n || stop $?
    left=$((left - 1))
  done
  steps=()
}
trap 'stop 143' TERM
trap 'stop 130' INT
"#;

/// The script.
///
/// # Errors
/// [`Kind::NotPossibleHere`] for programs that know only files, whose helpers the runner alone starts, and for what a
/// job manager would silently run one after the other.
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
            "# {}: {} ranks on processors {} ({})",
            seat.name,
            seat.ranks,
            seat.cpus,
            mask(&cpus)
        );
    }
    job.plan.decision.reasons.iter().for_each(|reason| script += &format!("# {reason}\n"));
    let _ = writeln!(script, "forebay={}", quoted(job.forebay));
    let _ = writeln!(script, "plan={}", quoted(&job.plan_file.to_string_lossy()));
    let passing = job.workflow.channels.iter().filter(|c| !c.options.keep);
    let channels: Vec<String> = passing.map(|c| quoted(&c.location(&job.workflow.dir))).collect();
    let _ = writeln!(script, "channels=({})", channels.join(" "));
    script += COURSE;
    for stage in stages(job) {
        script.push('\n');
        for component in stage {
            script += &steps(r#for, job, component)?;
        }
        script += "finish\n";
    }
    script += "tidy\n";
    Ok(script)
}

fn refuse(r#for: For, job: &Job<'_>) -> Result<()> {
    let bridged = |c: &&Component| c.files.input.is_some() || c.files.out.is_some();
    if let Some(component) = job.workflow.components.iter().find(bridged) {
        return Err(Error::new(Kind::NotPossibleHere, "only the runner carries the files of a program")
            .with("component", &component.name)
            .hint("let the job run: forebay run --plan plan.json"));
    }
    if let Some(channel) = job.workflow.channels.iter().find(|c| c.options.emulate.is_some()) {
        return Err(Error::new(
            Kind::NotPossibleHere,
            "only the runner settles what a channel is emulated as",
        )
        .with("channel", &channel.name)
        .hint("let the job run: forebay run --plan plan.json"));
    }
    let crowded = |s: &&Seat| numbers(&s.cpus).len() < s.ranks as usize;
    match (r#for, job.plan.components.iter().find(crowded)) {
        (For::Flux, Some(seat)) => {
            Err(Error::new(Kind::NotPossibleHere, "Flux gives each rank a processor, and there are too few")
                .with("component", &seat.name)
                .with("ranks", seat.ranks)
                .with("processors", &seat.cpus)
                .hint("fewer ranks, or a larger allocation to make the plan in"))
        }
        _ => Ok(()),
    }
}

/// Components that run together, in their order.
fn stages<'a>(job: &Job<'a>) -> Vec<Vec<&'a Component>> {
    let all: Vec<&Component> = job.workflow.components.iter().collect();
    let depths = depths(job.workflow).unwrap_or_default();
    if job.plan.plan.mode != Mode::Serial {
        return vec![all];
    }
    let of = |depth| {
        all.iter().copied().filter(|c| depths.get(c.name.as_str()) == Some(&depth)).collect::<Vec<_>>()
    };
    (0..).map(of).take_while(|stage| !stage.is_empty()).collect()
}

/// Ranks at work at once, and processors that any of them uses.
fn amounts(job: &Job<'_>) -> (u32, usize) {
    let seat_of = |c: &&Component| job.plan.seat(&c.name).map_or(0, |seat| seat.ranks);
    let together = stages(job).iter().map(|stage| stage.iter().map(seat_of).sum()).max().unwrap_or(1);
    let mut cpus: Vec<usize> = job.plan.components.iter().flat_map(|s| numbers(&s.cpus)).collect();
    cpus.sort_unstable();
    cpus.dedup();
    (together, cpus.len())
}

fn header(r#for: For, job: &Job<'_>) -> String {
    let name = &job.workflow.name;
    let (ranks, cpus) = amounts(job);
    match r#for {
        For::Sbatch => {
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

/// The lines that start a component.
fn steps(r#for: For, job: &Job<'_>, component: &Component) -> Result<String> {
    let seat = job.plan.seat(&component.name)?;
    let ranks = seat.ranks;
    let launch = match r#for {
        For::Sbatch => format!(
            "srun --ntasks={ranks} --overlap --overcommit --cpu-bind=none --mem-bind=none --kill-on-bad-exit=1 "
        ),
        For::Flux => format!("flux run --nodes=1 --ntasks={ranks} -o cpu-affinity=off "),
        For::Pbs => format!("mpiexec -n {ranks} --cpu-bind none "),
        For::Shell => String::new(),
    };
    let env = job.workflow.env.iter().chain(&component.env);
    let mut assigned: Vec<String> = env.map(|(k, v)| quoted(&format!("{k}={v}"))).collect();
    let program = match &component.program {
        Some(program) => quoted(&program.to_string_lossy()),
        None => "\"$forebay\"".to_owned(),
    };
    let mut words = vec![program];
    words.extend(component.command[1..].iter().map(|word| quoted(word)));
    if r#for == For::Shell {
        assigned.push("FOREBAY_RANK=\"$rank\"".to_owned());
        assigned.push(format!("FOREBAY_SIZE={ranks}"));
    }
    let env = if assigned.is_empty() { String::new() } else { format!("env {} ", assigned.join(" ")) };
    let line = format!(
        "step {} {env}{launch}\"$forebay\" exec --plan \"$plan\" --role {} -- {}\n",
        quoted(&component.cwd.to_string_lossy()),
        quoted(&component.name),
        words.join(" ")
    );
    Ok(match r#for {
        For::Shell => format!("for ((rank = 0; rank < {ranks}; rank++)); do\n  {line}done\n"),
        _ => line,
    })
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
    use crate::plan::{Home, AS_THE_FILE_SAYS};
    use crate::topology::{Node, Topology};
    use forebay_perf::model::plan::{Locality, Plan};

    fn script(r#for: For, mode: Mode, ranks: u32) -> Result<String> {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"it's\"\n[env]\nA = \"b c\"\n[channel.u]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\", \"it's\"]\nranks = {ranks}\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"forebay\", \"ls\"]\nreads = [\"u\"]\n"
        )
        .replace("it's\"\n[env]", "its\"\n[env]");
        let workflow = Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap();
        let topology = Topology { nodes: vec![Node { number: 0, cpus: (0..6).collect(), bytes: 0 }] };
        let plan = Plan::new(mode, Locality::Writer, AS_THE_FILE_SAYS);
        let plan = PlanFile::new(&workflow, &topology, &plan, &Home::AsSaid).unwrap();
        let job = Job {
            workflow: &workflow,
            plan: &plan,
            plan_file: Path::new("/p/plan.json"),
            forebay: "forebay",
        };
        emit(r#for, &job)
    }

    #[test]
    fn one_ordinary_job_that_binds_nothing_by_itself() {
        let slurm = script(For::Sbatch, Mode::Parallel, 3).unwrap();
        assert!(slurm.starts_with("#!/bin/bash\n#SBATCH --job-name=its\n#SBATCH --nodes=1\n"), "{slurm}");
        assert!(
            slurm.contains("srun --ntasks=3 --overlap --overcommit --cpu-bind=none --mem-bind=none"),
            "{slurm}"
        );
        assert!(!slurm.contains("het"), "{slurm}");
        let flux = script(For::Flux, Mode::Parallel, 3).unwrap();
        assert!(flux.contains("flux run --nodes=1 --ntasks=3 -o cpu-affinity=off"), "{flux}");
        let pbs = script(For::Pbs, Mode::Parallel, 3).unwrap();
        assert!(pbs.contains("select=1:ncpus=6:mpiprocs=4\n"), "{pbs}");
        assert!(
            pbs.contains("mpiexec -n 3 --cpu-bind none \"$forebay\" exec --plan \"$plan\" --role sim --"),
            "{pbs}"
        );
    }

    #[test]
    fn serial_plans_wait_between_their_steps() {
        let finishes = |mode| script(For::Shell, mode, 2).unwrap().matches("\nfinish\n").count();
        assert_eq!(
            (finishes(Mode::Parallel), finishes(Mode::SerialPerStep), finishes(Mode::Serial)),
            (1, 1, 2)
        );
        assert!(script(For::Pbs, Mode::Serial, 3).unwrap().contains(":mpiprocs=3\n"), "not all at once");
    }

    #[test]
    fn words_and_masks_are_as_the_shell_and_launchers_read_them() {
        let shell = script(For::Shell, Mode::Parallel, 1).unwrap();
        assert!(shell.contains(r"-- /") && shell.contains(r"'it'\''s'"), "{shell}");
        assert!(shell.contains("env 'A=b c' FOREBAY_RANK=\"$rank\" FOREBAY_SIZE=1"), "{shell}");
        assert_eq!([mask(&[0, 1, 2]), mask(&[4, 8]), mask(&[])], ["0x7", "0x110", "0x0"]);
        assert_eq!(script(For::Flux, Mode::Serial, 9).unwrap_err().kind(), Kind::NotPossibleHere);
    }
}
