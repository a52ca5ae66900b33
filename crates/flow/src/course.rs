//! The order in which a run's components are started: all at once, or one when those that it reads from have ended.
//!
//! Not here: how a run ends.

use std::path::PathBuf;

use forebay_model::plan::Mode;
use forebay_space::{Error, Result};

use crate::commands::{helper_command, rank_commands};
use crate::launch::{Ranks, Role};
use crate::record::RunDir;
use crate::supervise::RunOptions;
use crate::watch;
use crate::workflow::Workflow;

/// Which components have been started; a serial plan starts one when those that it reads from have ended.
pub(crate) struct Course {
    pub(crate) started: Vec<bool>,
    in_turn: bool,
}

impl Course {
    pub(crate) fn new(workflow: &Workflow, options: &RunOptions) -> Course {
        let in_turn = options.plan.as_ref().is_some_and(|plan| plan.plan.mode == Mode::Serial);
        Course { started: vec![false; workflow.components.len()], in_turn }
    }

    pub(crate) fn all_started(&self) -> bool {
        self.started.iter().all(|started| *started)
    }

    /// Whether every process of a component has ended.
    fn has_ended(&self, ranks: &Ranks, component: usize) -> bool {
        let mut own = ranks.all.iter().filter(|r| r.started_as.component == component);
        self.started[component] && own.all(|r| r.exit.is_some())
    }

    fn is_ready(&self, workflow: &Workflow, ranks: &Ranks, component: usize) -> bool {
        let reads = &workflow.components[component].reads;
        let channels = workflow.channels.iter().filter(|c| reads.contains(&c.name));
        let mut writers =
            channels.filter_map(|c| workflow.components.iter().position(|w| w.name == c.writer));
        !self.in_turn || writers.all(|writer| self.has_ended(ranks, writer))
    }

    /// Starts what can be started: the helpers that carry files, then every rank.
    pub(crate) fn start_ready(
        &mut self,
        workflow: &Workflow,
        dir: &RunDir,
        options: &RunOptions,
        ranks: &mut Ranks,
    ) -> Result<()> {
        let indices = 0..workflow.components.len();
        let ready: Vec<usize> =
            indices.filter(|i| !self.started[*i] && self.is_ready(workflow, ranks, *i)).collect();
        if ready.is_empty() {
            return Ok(());
        }
        let known = ranks.all.len();
        for index in &ready {
            start_helpers(workflow, dir, *index, options, ranks)?;
        }
        // A file that is written before its directory is watched would be lost.
        let helpers: Vec<PathBuf> = ranks.all[known..].iter().map(|r| r.started_as.out.clone()).collect();
        watch::wait_until_ready(&helpers, || {
            ranks.sweep();
            ranks.all[known..].iter().any(|r| r.exit.is_some())
        })?;
        for index in ready {
            for command in rank_commands(workflow, dir, index, options) {
                ranks.start(command, &options.self_command)?;
            }
            self.started[index] = true;
        }
        Ok(())
    }
}

fn start_helpers(
    workflow: &Workflow,
    dir: &RunDir,
    index: usize,
    options: &RunOptions,
    ranks: &mut Ranks,
) -> Result<()> {
    let component = &workflow.components[index];
    if component.here.is_empty() {
        return Ok(());
    }
    let sides = [(Role::FilesOut, &component.files.out), (Role::FilesIn, &component.files.input)];
    for (role, files) in sides {
        let Some(files) = files else { continue };
        std::fs::create_dir_all(files)
            .map_err(|e| Error::io(format!("cannot create {}", files.display()), e))?;
        let command = helper_command(workflow, dir, index, role, files, options);
        ranks.start(command, &options.self_command)?;
    }
    Ok(())
}
