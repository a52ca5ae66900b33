//! What the processes of a run are started with: words, environment, the channels' tables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::channel::json;
use crate::launch::{RankCommand, Role};
use crate::pin::EXEC_VERB;
use crate::record::RunDir;
use crate::supervise::RunOptions;
use crate::watch::BRIDGE_VERB;
use crate::workflow::{Component, Workflow};

fn log_name(component: &str, role: Role) -> String {
    match role {
        Role::Rank(rank) => format!("logs/{component}.{rank}"),
        Role::Launcher => format!("logs/{component}"),
        Role::FilesOut => format!("logs/{component}.files-out"),
        Role::FilesIn => format!("logs/{component}.files-in"),
        Role::Agent => unreachable!("an agent is no process of a component"),
    }
}

/// What starts the ranks of a component: a process for each, or a launcher for all.
pub(crate) fn rank_commands(
    workflow: &Workflow,
    dir: &RunDir,
    index: usize,
    options: &RunOptions,
) -> Vec<RankCommand> {
    let component = &workflow.components[index];
    let roles: Vec<Role> = match component.launcher.is_empty() {
        _ if component.here.is_empty() => Vec::new(),
        true => component.here.clone().map(Role::Rank).collect(),
        false => vec![Role::Launcher],
    };
    let command = rank_words(component, dir, options);
    let start = |role| process(workflow, dir, index, role, command.clone(), component.ranks);
    roles.into_iter().map(start).collect()
}

fn rank_words(component: &Component, dir: &RunDir, options: &RunOptions) -> Vec<OsString> {
    let arguments = component.command[1..].iter().map(OsString::from);
    let mut command: Vec<OsString> = component.launcher.iter().map(OsString::from).collect();
    if options.plan.is_some() {
        command.extend(options.self_command.iter().cloned());
        command.extend([EXEC_VERB.into(), "--plan".into(), dir.plan_file().into()]);
        command.extend(["--role".into(), component.name.clone().into(), "--".into()]);
    }
    match &component.program {
        Some(program) => command.push(program.clone().into_os_string()),
        None => command.extend(options.self_command.iter().cloned()),
    }
    command.extend(arguments);
    command
}

pub(crate) fn helper_command(
    workflow: &Workflow,
    dir: &RunDir,
    index: usize,
    role: Role,
    files: &Path,
    options: &RunOptions,
) -> RankCommand {
    let component = &workflow.components[index];
    let (side, channels) = match role {
        Role::FilesIn => ("in", &component.reads),
        _ => ("out", &component.writes),
    };
    let mut command = options.self_command.clone();
    command.extend([BRIDGE_VERB.into(), side.into()]);
    // The workflow was refused unless there is exactly one.
    command.extend(channels.first().map(OsString::from));
    command.push(files.into());
    process(workflow, dir, index, role, command, 1)
}

fn process(
    workflow: &Workflow,
    dir: &RunDir,
    index: usize,
    role: Role,
    command: Vec<OsString>,
    size: u32,
) -> RankCommand {
    let component = &workflow.components[index];
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for (key, value) in workflow.env.iter().chain(&component.env) {
        env.push((key.into(), value.into()));
    }
    let mut set = |key: &str, value: OsString| env.push((key.into(), value));
    // A launcher numbers its ranks itself.
    if role != Role::Launcher {
        let rank = if let Role::Rank(rank) = role { rank } else { 0 };
        set("FOREBAY_RANK", rank.to_string().into());
        set("FOREBAY_SIZE", size.to_string().into());
        let here = &component.here;
        if matches!(role, Role::Rank(_)) && here.len() < component.ranks as usize {
            set("FOREBAY_LOCAL_RANK", (rank - here.start).to_string().into());
            set("FOREBAY_LOCAL_SIZE", here.len().to_string().into());
        }
    }
    if let Some(nodes) = dir.nodes() {
        set("FOREBAY_RUN_NODES", nodes.to_string().into());
    }
    set("FOREBAY_COMPONENT", component.name.clone().into());
    set("FOREBAY_RUN", dir.path().into());
    set("FOREBAY_TRACE", dir.path().join("trace").into());
    for channel in &workflow.channels {
        set(&channel.variable(), json(&channel.told(workflow, Some(&component.name))).into());
    }
    let log = dir.path().join(log_name(&component.name, role));
    let with_suffix = |suffix: &str| {
        let mut name = log.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    RankCommand {
        component: index,
        role,
        command,
        env,
        cwd: component.cwd.clone(),
        out: with_suffix(".out"),
        err: with_suffix(".err"),
    }
}
