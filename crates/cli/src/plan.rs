//! `forebay plan`: the ways to run a workflow on this node, one of them as a plan file, and jobs that carry it out.
//!
//! Guarantees: nothing is started; a plan that this node cannot carry out is listed with its reason, never dropped in
//! silence. Which plan is best is not said here.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use forebay_flow::choices::{choices, without_capacity, Choice, Dropped};
use forebay_flow::emit::{emit, For, Job};
use forebay_flow::inputs::known_load;
use forebay_flow::plan::{Home, AS_THE_FILE_SAYS};
use forebay_flow::{PlanFile, Topology, Workflow};
use forebay_model::plan::{Locality, Mode, Plan};
use forebay_profile::{platforms, saved::Saved, Tier};
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::command::again::self_command;
use crate::command::paths::relative;
use crate::command::profiles;
use crate::output::{schema, Output};

/// Show the ways to run a workflow here, write one down, or turn it into a job.
///
/// Without --mode it lists every plan, and the impossible ones with their reason. With --mode and -o it writes that
/// plan to a file that forebay run --plan and forebay exec execute.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  forebay plan workflow.toml\n  forebay plan workflow.toml --mode gated:4w8r -o \
                        plan.json\n  forebay plan workflow.toml --plan plan.json --emit slurm > job.sh"
)]
pub struct Args {
    /// Workflow file.
    #[arg(default_value = "workflow.toml")]
    workflow: PathBuf,
    /// Execution mode: serial, serial-per-step, parallel, gated:NwMr.
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Memory placement of the channels: at the writer, at the reader, or interleaved; needs --mode.
    #[arg(long, value_name = "SIDE", default_value = "writer", hide_default_value = true, requires = "mode")]
    locality: Locality,
    /// Batch size for small objects, as in 1MiB; needs --mode.
    #[arg(long, value_name = "SIZE", value_parser = crate::sizes::size, requires = "mode")]
    batch: Option<u64>,
    /// Tier of the profile that holds the channels [default: where the workflow file says].
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
    /// Saved profile whose tiers to use [default: the newest]; or a platform, for a list only.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// A plan that was written before.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mode", "tier", "profile"])]
    plan: Option<PathBuf>,
    /// Write the plan to this file.
    #[arg(long, short, value_name = "FILE", requires = "mode")]
    out: Option<PathBuf>,
    /// Print a job that carries the plan out; needs --plan.
    #[arg(long, value_enum, value_name = "FOR", requires = "plan", conflicts_with = "mode")]
    emit: Option<Emit>,
}

/// Who is to run the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    #[value(alias = "sbatch")]
    Slurm,
    Flux,
    Pbs,
    Shell,
}

#[derive(Serialize)]
struct Plans<'a> {
    workflow: &'a str,
    plans: Vec<Listed<'a>>,
    dropped: &'a [Dropped],
}

#[derive(Serialize)]
struct Listed<'a> {
    short: String,
    plan: &'a Plan,
}

#[derive(Serialize)]
struct Script {
    r#for: &'static str,
    script: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let workflow = Workflow::read_for_plan(&args.workflow)?;
    match (&args.plan, args.mode) {
        (Some(file), _) => existing(args, &workflow, file, out)?,
        (None, Some(mode)) => one(args, &workflow, mode, out)?,
        (None, None) => all(args, &workflow, out)?,
    }
    Ok(0)
}

/// A plan for what the command line says; its tier is one of the profile, or [`AS_THE_FILE_SAYS`].
pub fn requested(workflow: &Workflow, plan: &Plan, profile: Option<&str>) -> Result<PlanFile> {
    let topology = Topology::here()?;
    if plan.tier == AS_THE_FILE_SAYS {
        return warned(PlanFile::new(workflow, &topology, plan, &Home::AsSaid)?, workflow, None);
    }
    let profile = profiles::chosen(&Saved::of_user()?, profile)?;
    let tier = profile.tier(&plan.tier).ok_or_else(|| {
        let names: Vec<&str> = profile.tiers.iter().map(|t| t.name.as_str()).collect();
        Error::new(Kind::UnknownComponent, format!("the profile {} has no tier {}", profile.name, plan.tier))
            .hint(format!("available: {}", names.join(", ")))
    })?;
    let home = Home::of_tier(tier)?;
    warned(PlanFile::new(workflow, &topology, plan, &home)?, workflow, Some(tier))
}

/// A plan that was asked for, with why earlier runs exclude it from the list, if they do. They may have had other
/// versions than the next one, so it is carried out all the same.
fn warned(mut plan: PlanFile, workflow: &Workflow, tier: Option<&Tier>) -> Result<PlanFile> {
    if plan.plan.mode == Mode::Serial {
        plan.decision.reasons.extend(without_capacity(tier, known_load(workflow)));
    }
    Ok(plan)
}

fn one(args: &Args, workflow: &Workflow, mode: Mode, out: &Output) -> Result<()> {
    let tier = args.tier.as_deref().unwrap_or(AS_THE_FILE_SAYS);
    let plan = Plan { batching: args.batch, ..Plan::new(mode, args.locality, tier) };
    let made = requested(workflow, &plan, args.profile.as_deref())?;
    if let Some(file) = &args.out {
        made.write(file)?;
    }
    match (&args.out, out.json()) {
        (_, true) => out.record(&made)?,
        (Some(file), false) => out.text(&format!("{}\n", relative(file)))?,
        (None, false) => out.text(&text_of(&made))?,
    }
    if let Some(file) = &args.out {
        out.next(&format!("forebay run {} --plan {}", args.workflow.display(), relative(file)));
    }
    Ok(())
}

fn existing(args: &Args, workflow: &Workflow, file: &Path, out: &Output) -> Result<()> {
    let plan = PlanFile::read(file)?;
    plan.check(workflow)?;
    let Some(format) = args.emit else {
        return if out.json() { out.record(&plan) } else { out.text(&text_of(&plan)) };
    };
    let (r#for, name) = match format {
        Emit::Slurm => (For::Slurm, "slurm"),
        Emit::Flux => (For::Flux, "flux"),
        Emit::Pbs => (For::Pbs, "pbs"),
        Emit::Shell => (For::Shell, "shell"),
    };
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| Error::io("cannot determine the current directory", e))
    };
    let (workflow_file, plan_file) = (absolute(&args.workflow)?, absolute(file)?);
    let forebay = own_command()?;
    let script = emit(
        r#for,
        &Job {
            workflow,
            workflow_file: &workflow_file,
            plan: &plan,
            plan_file: &plan_file,
            forebay: &forebay,
        },
    )?;
    let body = Script { r#for: name, script };
    out.result(schema::JOB, &body, || body.script.clone())
}

/// The words that start this very command on another node of the same file system.
fn own_command() -> Result<Vec<String>> {
    if let Some(words) = self_command() {
        return Ok(words.iter().map(|word| word.to_string_lossy().into_owned()).collect());
    }
    let me = std::env::current_exe().map_err(|e| Error::io("finding the forebay command", e))?;
    Ok(vec![me.to_string_lossy().into_owned()])
}

fn all(args: &Args, workflow: &Workflow, out: &Output) -> Result<()> {
    let saved = Saved::of_user()?;
    let profile = match &args.profile {
        Some(word) => Some(saved.find(word)?),
        None => saved.newest()?,
    };
    let platform = profile.as_ref().filter(|p| platforms::is_platform(&p.name));
    let topology = match platform {
        Some(platform) => Topology::of_profile(platform),
        None => Topology::here()?,
    };
    let found = choices(workflow, &topology, profile.as_ref(), known_load(workflow));
    let only = |choice: &&Choice| args.tier.as_ref().is_none_or(|tier| choice.plan.tier == *tier);
    let chosen: Vec<&Choice> = found.choices.iter().filter(only).collect();
    let listed = chosen.iter().map(|c| Listed { short: c.plan.short(), plan: &c.plan });
    let body = Plans { workflow: &workflow.name, plans: listed.collect(), dropped: &found.dropped };
    out.result(schema::PLANS, &body, || {
        let mut table = out.table(&["plan", "mode", "channel local to", "tier"]);
        for choice in &chosen {
            let plan = &choice.plan;
            table.add_row([
                plan.short(),
                plan.mode.to_string(),
                plan.locality.to_string(),
                plan.tier.clone(),
            ]);
        }
        let mut text = crate::output::table_text(&table);
        for dropped in &found.dropped {
            text += &format!("excluded: {} – {}\n", dropped.what, dropped.reason);
        }
        if let Some(platform) = platform {
            text += &format!(
                "{} is a platform: these plans are for a node like it, not for this one\n",
                platform.name
            );
        }
        text
    })?;
    if let (Some(choice), None) = (chosen.first(), platform) {
        let mode = choice.plan.mode;
        let (locality, tier) = (choice.plan.locality, &choice.plan.tier);
        let tier = if choice.home == Some(Home::AsSaid) { String::new() } else { format!(" --tier {tier}") };
        let batch = choice.plan.batching.map(|bytes| format!(" --batch {bytes}")).unwrap_or_default();
        out.next(&format!(
            "forebay plan {} --mode {mode} --locality {locality}{batch}{tier} -o plan.json",
            args.workflow.display()
        ));
    }
    Ok(())
}

/// A plan in words.
fn text_of(plan: &PlanFile) -> String {
    let mut text = format!("{} on {}\n", plan.plan.short(), plan.plan.tier);
    for seat in &plan.components {
        let node = seat.memory_node.map(|n| format!(" on node {n}")).unwrap_or_default();
        text += &format!("{}: ranks {}, processors {}{node}\n", seat.name, seat.ranks, seat.cpus);
    }
    for (name, table) in &plan.channels {
        let tier = table.tier.map_or("default".to_owned(), |tier| tier.to_string());
        let execution_mode = table.execution_mode.unwrap_or_default();
        let place = table.path.as_ref().map(|p| format!(" at {}", p.display())).unwrap_or_default();
        text += &format!("{name}: tier {tier}{place}, mode {execution_mode}\n");
    }
    plan.decision.reasons.iter().for_each(|reason| text += &format!("note: {reason}\n"));
    text
}
