//! Runs a workflow: on this node, or on the nodes that its file names.
//!
//! Guarantees: when [`run`] returns, no process of the run lives and none of its spaces is left but those that
//! the workflow keeps.
//! By a plan it pins ranks through `forebay exec`, and where the plan is serial it starts readers when their writers
//! have ended; without one it starts all components at once, unpinned. On several nodes a runner starts the ranks of
//! each (`nodes`).
//! Not here: watching ranks, and which failure is the first (`supervise`).

use std::path::Path;
use std::sync::Arc;

use forebay_space::Result;

use crate::alone::alone;
use crate::clean_up::{remove_spaces, take_names};
use crate::conclude::complete_record;
use crate::emulate;
use crate::names::hold_names;
use crate::nodes::run_on_nodes;
use crate::progress::{closing_lines, say, Sampler, Show};
use crate::record::{Failure, RunDir, RunRecord};
use crate::signals::Signals;
use crate::supervise::RunOptions;
use crate::supervise::{carry_out, needs_self_command, new_record, settle_end, Carried, Leader};
use crate::tee::Tee;
use crate::trials::Steered;
use crate::workflow::Workflow;

/// Runs a workflow to its end. Blocks until every rank has ended. Call it from a thread that lives on (see
/// `launch`).
///
/// Returns the record when all ranks ended with 0, and also when a signal ended the run
/// ([`RunRecord::exit_code`] is then 128+n).
///
/// # Errors
/// All of [`Workflow::read`] and [`PlanFile::check`](crate::PlanFile::check); `NameInUse` when a channel's name
/// is taken (nothing was started then); `ComponentFailed` naming component, rank, status and the log;
/// `NotPossibleHere` when the workflow needs `self_command` and there is none. Of a workflow on several nodes
/// also: `Usage` where nodes or the way to them are missing, `TimedOut` and `PeerMissing` naming nodes.
pub fn run(file: &Path, options: &RunOptions) -> Result<RunRecord> {
    let mut workflow = Workflow::read(file)?;
    if workflow.nodes.is_some() {
        return run_on_nodes(&workflow, options);
    }
    if let Some(component) = &options.only {
        workflow = alone(&workflow, component)?;
    }
    needs_self_command(&workflow, options)?;
    for component in &mut workflow.components {
        match options.launcher {
            Some(launcher) if component.launcher.is_empty() => {
                component.launcher = launcher.words(component.ranks)
            }
            _ => {}
        }
    }
    if let Some(plan) = &options.plan {
        plan.check(&workflow)?;
        // A job runs on a node like the one that the plan was made on.
        if options.launcher.is_none() {
            plan.check_host()?;
        }
        plan.place_channels(&mut workflow);
    }
    let emulated = emulate::settle(&mut workflow)?;
    let names = hold_names(&workflow)?;
    take_names(&workflow)?;
    let signals = Signals::catch()?;
    let dir = Arc::new(RunDir::create(&workflow, options.out.as_deref())?);
    let mut record = new_record(&workflow, &dir)?;
    if let Some(plan) = &options.plan {
        plan.write(dir.plan_file())?;
        record.plan = Some(plan.clone());
    }
    record.notes.extend(emulated);
    record.write()?;
    let show = Show::choose(options.quiet, options.tee);
    let tee = options.tee.then(|| Tee::start(&dir.path().join("logs"))).transpose()?;
    if show != Show::Quiet {
        record.notes.iter().for_each(|line| say(line));
    }
    let sampler = Sampler::start(&workflow, dir.clone(), &dir.path().join("fill.jsonl"), show)?;
    let steered = options.trials.clone().map(|trials| Steered::start(&workflow, trials)).transpose()?;
    let Carried { ranks, seen, ended } = carry_out(&workflow, &dir, options, sampler, &signals, &mut OneNode);
    drop(tee);
    if let Some((tried, failed)) = steered.map(Steered::finish) {
        record.tried = Some(tried);
        record.notes.extend(failed);
    }
    record.notes.extend(remove_spaces(&workflow, &dir));
    drop(names);
    let traces = complete_record(&mut record, &workflow, &ranks, &seen);
    if show != Show::Quiet {
        closing_lines(&record, &traces).iter().for_each(|line| say(line));
    }
    settle_end(record, ended, options)
}

/// A run on one node is led by its runner alone.
struct OneNode;

impl Leader for OneNode {
    fn look(&mut self) {}

    fn is_to_end(&self) -> bool {
        false
    }

    fn is_hurried(&self) -> bool {
        false
    }

    fn is_over(&mut self) -> bool {
        true
    }

    fn failed(&mut self, _: &Failure, _: bool) {}

    fn departed(&mut self, _: &str, _: &str, _: u32) {}

    fn departed_elsewhere(&mut self) -> Vec<(String, String, u32)> {
        Vec::new()
    }
}
