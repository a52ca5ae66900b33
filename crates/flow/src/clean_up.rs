//! Whose spaces are whose: a run must not touch those of another, and takes its own away at its end.
//!
//! Guarantees: a space that a living process holds, that belongs to a running run, or that was kept on purpose is
//! never removed by the runner; a run fails before it starts anything where its writers would be refused by the mode
//! of the channel's table, or while another process is at work on the channel. A space belongs to the run whose
//! directory it notes (`SpaceInfo::run`), also when a program opened it by itself.
//! Not here: removing spaces that no run made (`forebay clean`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_space::{part_name, CleanOptions, Error, Kind, MemberInfo, Mode, OpenOptions, Result, SpaceInfo};

use crate::record::{is_running, RunDir, RunRecord};
use crate::workflow::{Channel, Workflow};

/// Ranks of a runner that was killed are killed by the kernel, and for a moment their locks stay.
const DYING_RANKS: Duration = Duration::from_secs(5);

/// Checks that no channel's name is taken; removes what a run that died left behind under these names. Waits a
/// few seconds at most for the ranks of a killed runner to be gone.
///
/// # Errors
/// [`Kind::NameInUse`] naming the holder.
pub fn take_names(workflow: &Workflow) -> Result<()> {
    for channel in &workflow.channels {
        let location = channel.location(&workflow.dir);
        take_files_channel(channel, &location)?;
        if let Some(part) = part_of_dead_run(channel)? {
            forebay_space::destroy(&part)?;
        }
        let Some(space) = settled(channel, &location)? else { continue };
        if (!continues(channel) || !channel.is_written_here) && left_by_dead_run(&space) {
            forebay_space::destroy(&location)?;
            continue;
        }
        // Of a channel whose writers are on other nodes readers would take it for the channel.
        if !is_at_rest(&space) || !channel.is_written_here {
            return Err(taken(&space));
        }
        check_mode(channel, &location)?;
    }
    Ok(())
}

/// The part of this node that a run on several nodes has left, whose runner died.
fn part_of_dead_run(channel: &Channel) -> Result<Option<String>> {
    let name = part_name(&channel.name);
    if channel.options.path.is_some() {
        return Ok(None);
    }
    let found = forebay_space::list()?.into_iter().find(|space| space.name == name);
    Ok(found.filter(|space| left_by_dead_run_of(space, &channel.name)).map(|_| name))
}

/// Whether the channel's writers will be let in, by what is there now.
fn check_mode(channel: &Channel, location: &str) -> Result<()> {
    let mode = channel.options.mode.unwrap_or_default();
    let replace = channel.options.replace.unwrap_or_default();
    let options = OpenOptions { mode, replace, ..OpenOptions::default() };
    forebay_space::check_writable(location, &options).map_err(|e| {
        e.with("channel", &channel.name).hint(format!(
            "in the table of channel {}: mode = \"w\" replaces it (with replace = true also unread versions), mode = \
             \"a\" continues after the complete versions. Or remove it: forebay clean {location}",
            channel.name
        ))
    })
}

/// The space of a channel, if there is one, as it stands when no rank of it is just dying with its runner.
fn settled(channel: &Channel, location: &str) -> Result<Option<SpaceInfo>> {
    let deadline = Instant::now() + DYING_RANKS;
    // A process that was killed while it made a channel of files left something that is no space.
    forebay_space::remove_leftovers(Some(location))?;
    loop {
        let found = match channel.options.path {
            None => forebay_space::list()?.into_iter().find(|space| space.name == channel.name),
            Some(_) => inspect_if_there(location)?,
        };
        let is_dying = found.as_ref().is_some_and(|space| {
            let runner_is_gone = space.run.as_deref().is_some_and(|run| {
                let dir = Path::new(run);
                dir.exists() && !is_running(dir)
            });
            runner_is_gone && space.members.iter().any(|member| member.alive)
        });
        if !is_dying || Instant::now() >= deadline {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the directory of a channel of files says about itself.
struct FilesChannel {
    dir: PathBuf,
    /// The run of the latest start of its writers, empty where they said none; `None`: they have not started.
    run: Option<String>,
}

/// The file-per-object channel is a plain directory that inspection does not list: its `stream.json` notes the
/// run of each start of the writers.
fn files_channel(location: &str) -> Result<Option<FilesChannel>> {
    let dir = match location.contains('/') {
        true => PathBuf::from(location),
        false => forebay_space::root()?.join(location),
    };
    let Ok(text) = std::fs::read_to_string(dir.join("stream.json")) else { return Ok(None) };
    let stream: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let latest = stream["incarnations"].as_array().and_then(|all| all.last());
    let run = latest.map(|start| start["run"].as_str().unwrap_or_default().to_owned());
    Ok(Some(FilesChannel { dir, run }))
}

fn take_files_channel(channel: &Channel, location: &str) -> Result<()> {
    let name = &channel.name;
    let Some(FilesChannel { dir, run }) = files_channel(location)? else { return Ok(()) };
    let run = run.unwrap_or_default();
    let run_dir = Path::new(&run);
    if !is_running(run_dir) && (!run_dir.is_absolute() || keeps(run_dir, name)) {
        return check_mode(channel, &dir.to_string_lossy());
    }
    let taken = Error::new(Kind::NameInUse, format!("channel {name} already exists"))
        .with("path", dir.display())
        .with("run", &run)
        .hint("wait for the other run to end; if it has ended, remove the directory");
    if is_running(run_dir) {
        return Err(taken);
    }
    let deadline = Instant::now() + DYING_RANKS;
    let location = dir.to_string_lossy().into_owned();
    let options = CleanOptions { names: vec![location], ..CleanOptions::default() };
    loop {
        let report = forebay_space::clean(&options)?;
        match report.kept.first() {
            None => return Ok(()),
            Some(kept) if Instant::now() >= deadline => return Err(taken.with("held_by", &kept.reason)),
            Some(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a run that ended keeps this channel; true also when it cannot be told.
fn keeps(run_dir: &Path, name: &str) -> bool {
    let Ok(record) = RunRecord::read(run_dir) else { return true };
    record.channels.iter().any(|channel| channel.name == name && channel.keep)
}

fn inspect_if_there(location: &str) -> Result<Option<SpaceInfo>> {
    // An empty directory is no space.
    let is_empty = std::fs::read_dir(location).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty || !Path::new(location).exists() {
        return Ok(None);
    }
    forebay_space::inspect(location).map(Some)
}

/// The runner would have removed the space at its end, had it lived. A space whose run directory is gone, or
/// whose record says "keep", is the user's data.
fn left_by_dead_run(space: &SpaceInfo) -> bool {
    left_by_dead_run_of(space, &space.name)
}

/// The same of a space of this channel.
fn left_by_dead_run_of(space: &SpaceInfo, channel: &str) -> bool {
    let Some(run_dir) = space.run.as_deref().map(Path::new) else { return false };
    if space.members.iter().any(|member| member.alive) || is_running(run_dir) {
        return false;
    }
    !keeps(run_dir, channel)
}

/// No process is at work on the space, and no run that may begin to be. Who only looks on does not count.
fn is_at_rest(space: &SpaceInfo) -> bool {
    let is_running = |run: &str| is_running(Path::new(run));
    let is_at_work = |member: &MemberInfo| member.alive && member.role != "observer";
    !space.members.iter().any(is_at_work) && !space.run.as_deref().is_some_and(is_running)
}

/// Whether a run goes on with what the channel holds.
fn continues(channel: &Channel) -> bool {
    channel.options.mode == Some(Mode::Append)
}

/// The error for a name that is in use.
pub fn taken(space: &SpaceInfo) -> Error {
    let error = Error::new(Kind::NameInUse, format!("space {} already exists", space.name))
        .with("path", space.path.display());
    let error = match &space.run {
        Some(run) => error.with("run", run),
        None => error,
    };
    let alive: Vec<String> = space
        .members
        .iter()
        .filter(|member| member.alive)
        .map(|m| format!("{} {} rank {} (pid {})", m.component, m.role, m.rank, m.pid))
        .collect();
    if alive.is_empty() {
        return error
            .with("state", &space.state)
            .hint("a running workflow uses this name: wait for it to end, or rename the channel");
    }
    let others = alive.len() - 1;
    let more = if others > 0 { format!(" and {others} more") } else { String::new() };
    error
        .with("held_by", format!("{}{more}", alive[0]))
        .hint("another run uses this name: wait for it to end, or rename the channel")
}

/// Spaces that belong to the run: those of `all` below the root of short names that note its directory, its channels
/// with a path of their own, and channels of an earlier run that it goes on with.
pub fn spaces_of(workflow: &Workflow, run: &RunDir, all: &[SpaceInfo]) -> Vec<SpaceInfo> {
    let id = run.id();
    let mut spaces = all.to_vec();
    spaces.retain(|space| is_of_run(workflow, &id, space));
    for channel in workflow.channels.iter().filter(|c| c.options.path.is_some()) {
        // A channel outside the root that is being made, or gone, is simply not there.
        if let Ok(Some(mut space)) = inspect_if_there(&channel.location(&workflow.dir)) {
            // It was looked for by its path, and is known to the run by its name.
            space.name.clone_from(&channel.name);
            if continues(channel) || space.run.as_deref() == Some(&id) {
                spaces.push(space);
            }
        }
    }
    spaces
}

/// Whether a space below the root of short names belongs to the run `id`.
pub fn is_of_run(workflow: &Workflow, id: &str, space: &SpaceInfo) -> bool {
    let is_continued = |c: &Channel| c.options.path.is_none() && continues(c) && c.name == space.name;
    space.run.as_deref() == Some(id) || workflow.channels.iter().any(is_continued)
}

/// Removes the run's spaces except kept channels. All its processes must have ended. Returns what could not be
/// removed, in words.
pub fn remove_spaces(workflow: &Workflow, run: &RunDir) -> Vec<String> {
    let (spaces, unreadable) = match forebay_space::list() {
        Ok(all) => (spaces_of(workflow, run, &all), unreadable_channels(workflow, &all)),
        Err(e) => return vec![format!("the spaces of the run could not be listed: {e}")],
    };
    let is_of = |channel: &Channel, name: &str| channel.name == name || part_name(&channel.name) == name;
    let kept = |space: &SpaceInfo| {
        workflow.channels.iter().any(|channel| channel.keep && is_of(channel, &space.name))
    };
    let mut left = unreadable;
    for space in spaces.iter().filter(|space| !kept(space)) {
        if let Err(e) = forebay_space::destroy(&space.path.to_string_lossy()) {
            left.push(format!("the space {} could not be removed: {e}", space.name));
        }
    }
    for channel in workflow.channels.iter().filter(|channel| !channel.keep) {
        if let Err(e) = remove_files_channel(&channel.location(&workflow.dir), run) {
            left.push(format!("the channel {} could not be removed: {e}", channel.name));
        }
    }
    // A process that was killed while it made a space has left it under a hidden name: the space of a channel, or one
    // that a program opened by itself.
    let locations = workflow.channels.iter().map(|channel| Some(channel.location(&workflow.dir)));
    for location in locations.chain([None]) {
        if let Err(e) = forebay_space::remove_leftovers(location.as_deref()) {
            let of = location.as_deref().unwrap_or("the run");
            left.push(format!("what killed processes left of {of} could not be removed: {e}"));
        }
    }
    left
}

/// What has the name of a channel and cannot be read, so that it is not known whose it is, in words.
fn unreadable_channels(workflow: &Workflow, all: &[SpaceInfo]) -> Vec<String> {
    let is_channel =
        |name: &str| workflow.channels.iter().any(|c| c.options.path.is_none() && c.name == name);
    let found = all.iter().filter(|space| space.state.starts_with("unreadable") && is_channel(&space.name));
    found.map(|space| format!("the space {} is {}; it was not removed", space.name, space.state)).collect()
}

/// Removes a channel of files that is the run's.
fn remove_files_channel(location: &str, run: &RunDir) -> Result<()> {
    match files_channel(location)? {
        Some(FilesChannel { dir, run: Some(of) }) if of == run.id() => {
            forebay_space::destroy(&dir.to_string_lossy())
        }
        // One that no writer has started in goes with the other leftovers.
        _ => Ok(()),
    }
}
