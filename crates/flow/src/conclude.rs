//! Fills in the run record once all processes have ended: times from the traces, the channels' last state.
//!
//! Guarantees: what could not be found out is left at its default and noted, never guessed.
//! Not here: ending the run, writing the file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::characterise::{characterise, start_s};
use crate::launch::{Rank, Ranks, Role};
use crate::pin::Placement;
use crate::progress::Seen;
use crate::record::{monotonic_ns, unix_ns, ChannelRecord, ComponentRecord, RankRecord, RunRecord};
use crate::trace::{Side, Traces};
use crate::workflow::{Component, Workflow};

/// Fills in what is known only at the end.
pub(crate) fn complete_record(
    record: &mut RunRecord,
    workflow: &Workflow,
    ranks: &Ranks,
    seen: &Seen,
) -> Traces {
    record.end_unix_ns = unix_ns();
    record.end_ns = monotonic_ns();
    let starts = ranks.all.iter().map(|r| r.start_ns).min();
    let ends = ranks.all.iter().filter_map(|r| r.exit.map(|e| e.at_ns)).max();
    if let (Some(start), Some(end)) = (starts, ends) {
        record.wall_s = end.saturating_sub(start) as f64 / 1e9;
    }
    let traces = Traces::read(&record.run_dir.join("trace")).unwrap_or_else(|e| {
        record.notes.push(format!("the traces could not be read: {e}"));
        Traces::default()
    });
    record.notes.extend(traces.skipped.iter().map(|why| format!("trace skipped: {why}")));
    for (index, component) in workflow.components.iter().enumerate() {
        let mine: Vec<&Rank> = ranks.all.iter().filter(|r| r.started_as.component == index).collect();
        complete_component(&mut record.components[index], component, &mine, &traces, seen, &record.run_dir);
    }
    for component in &record.components {
        for rank in component.ranks.iter().filter(|r| r.code == Some(0) && !r.unopened.is_empty()) {
            let rank_text = rank.rank.map_or(String::new(), |r| format!(" rank {r}"));
            let channels = rank.unopened.join(", ");
            record.notes.push(format!("{}{rank_text} ended without opening {channels}", component.name));
        }
    }
    complete_channels(record, &traces, seen);
    complete_placement(record, workflow, &traces);
    traces
}

/// Where ranks and pages were, as the kernel said, and why that is not where the plan wanted them.
fn complete_placement(record: &mut RunRecord, workflow: &Workflow, traces: &Traces) {
    for placement in Placement::read_all(&record.run_dir) {
        let component = record.components.iter_mut().find(|c| c.name == placement.component);
        let rank = component.and_then(|c| c.ranks.iter_mut().find(|r| r.rank == Some(placement.local_rank)));
        if rank.is_none() && workflow.nodes.is_some() {
            // It is on another node.
            continue;
        }
        if let Some(said) = &placement.said {
            record.notes.push(format!("{} rank {}: {said}", placement.component, placement.local_rank));
        }
        if let Some(rank) = rank {
            rank.cpus = Some(placement.cpus);
        }
    }
    for channel in &mut record.channels {
        let own = traces.all.iter().filter(|t| t.header.channel == channel.name);
        let mut found: Vec<&str> = own.filter_map(|t| t.header.placement.as_deref()).collect();
        found.sort_unstable();
        found.dedup();
        channel.placement = found.join(", ");
        // A space of a short run may be gone before anybody looks.
        let own = traces.all.iter().filter(|t| t.header.channel == channel.name);
        if let Some(execution_mode) = own.rev().find_map(|t| t.header.execution_mode.clone()) {
            channel.execution_mode = execution_mode;
        }
        if found.iter().any(|found| found.starts_with("first touch")) {
            record.notes.push(format!(
                "{}: mbind is refused; a thread on the node touched the pages first, and a sample of them is on that \
                 node",
                channel.name
            ));
        }
    }
}

fn complete_component(
    record: &mut ComponentRecord,
    component: &Component,
    ranks: &[&Rank],
    traces: &Traces,
    seen: &Seen,
    run_dir: &Path,
) {
    let relative = |path: &Path| path.strip_prefix(run_dir).unwrap_or(path).to_path_buf();
    for (rank, number) in ranks.iter().flat_map(|rank| numbers(component, rank)) {
        let exit = rank.exit;
        record.ranks.push(RankRecord {
            rank: number,
            node: None,
            pid: rank.pid,
            start_ns: rank.start_ns,
            end_ns: exit.map_or(0, |e| e.at_ns),
            code: exit.and_then(|e| e.code),
            signal: exit.and_then(|e| e.signal),
            ended_by_runner: exit.is_some_and(|e| e.asked),
            unopened: unopened(component, rank.started_as.role, number.unwrap_or(0), traces, seen),
            cpus: None,
            out: relative(&rank.started_as.out),
            err: relative(&rank.started_as.err),
        });
    }
    add_traces(record, component, traces);
}

/// What the traces of all ranks say of a component.
pub(crate) fn add_traces(record: &mut ComponentRecord, component: &Component, traces: &Traces) {
    let (mut op_ns, mut wait_ns) = (0u64, 0u64);
    (record.steps, record.bytes_put, record.bytes_got) = (0, 0, 0);
    for trace in traces.of(&component.name) {
        let totals = trace.totals();
        op_ns += totals.op_ns;
        wait_ns += totals.wait_ns;
        let declared = match trace.header.side {
            Side::Write => &component.writes,
            Side::Read => &component.reads,
        };
        if declared.contains(&trace.header.channel) {
            record.steps = record.steps.max(totals.steps);
        }
        match trace.header.side {
            Side::Write => record.bytes_put += totals.bytes,
            Side::Read => record.bytes_got += totals.bytes,
        }
    }
    let lived = |rank: &RankRecord| rank.rank.map_or(0, |_| rank.end_ns.saturating_sub(rank.start_ns));
    let lived_ns: u64 = record.ranks.iter().map(lived).sum();
    record.per_step = characterise(component, traces);
    let starts: Vec<(u32, u64)> =
        record.ranks.iter().filter_map(|rank| Some((rank.rank?, rank.start_ns))).collect();
    if let Some(step) = &mut record.per_step {
        step.start_s = start_s(component, traces, step, &starts);
    }
    record.io_s = op_ns as f64 / 1e9;
    record.wait_s = wait_ns as f64 / 1e9;
    // Times of a helper that carries files overlap with the program's own: nothing to take off then.
    let bridged = component.files.out.is_some() || component.files.input.is_some();
    let inside = if bridged { 0 } else { op_ns + wait_ns };
    record.compute_s = lived_ns.saturating_sub(inside) as f64 / 1e9;
}

/// The ranks that a process is: one, none of a helper, all of a launcher.
fn numbers<'a>(component: &Component, process: &'a Rank) -> Vec<(&'a Rank, Option<u32>)> {
    match process.started_as.role {
        Role::Rank(number) => vec![(process, Some(number))],
        Role::Launcher => (0..component.ranks).map(|number| (process, Some(number))).collect(),
        Role::FilesOut | Role::FilesIn | Role::Agent => vec![(process, None)],
    }
}

/// Channels a process was there for and has not opened. A rank whose files are carried by a helper need not.
fn unopened(component: &Component, role: Role, number: u32, traces: &Traces, seen: &Seen) -> Vec<String> {
    let (reads, writes) = match role {
        Role::Rank(_) | Role::Launcher => (component.files.input.is_none(), component.files.out.is_none()),
        Role::FilesOut => (false, true),
        Role::FilesIn => (true, false),
        Role::Agent => (false, false),
    };
    let sides = [(reads, &component.reads, Side::Read), (writes, &component.writes, Side::Write)];
    let declared = sides
        .into_iter()
        .filter(|side| side.0)
        .flat_map(|(_, list, side)| list.iter().map(move |c| (c, side)));
    declared
        .filter(|(channel, side)| {
            let member = (component.name.clone(), number, (*channel).clone());
            !traces.opened(&component.name, number, channel, *side) && !seen.members.contains(&member)
        })
        .map(|(channel, _)| channel.clone())
        .collect()
}

/// Versions of a channel that all its writer ranks ended, by their traces.
fn versions_traced(traces: &Traces, channel: &str) -> Option<u64> {
    let writers = traces.all.iter().filter(|t| t.header.channel == channel && t.header.side == Side::Write);
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    for trace in writers {
        let end = trace.steps.iter().map(|s| s.version + 1).max().unwrap_or(0);
        let most = ends.entry(trace.header.rank).or_default();
        *most = end.max(*most);
    }
    ends.into_values().min()
}

fn complete_channels(record: &mut RunRecord, traces: &Traces, seen: &Seen) {
    for (path, space) in &seen.spaces {
        let found = record.channels.iter().position(|c| c.name == space.name);
        let index = found.unwrap_or_else(|| {
            let kind = "space".to_owned();
            record.channels.push(ChannelRecord {
                name: space.name.clone(),
                kind,
                ..ChannelRecord::default()
            });
            record.channels.len() - 1
        });
        let channel = &mut record.channels[index];
        channel.path = path.clone();
        channel.tier = space.tier.to_string();
        channel.horizon = space.horizon.to_string();
        channel.durability = space.durability.to_string();
        channel.retention = space.retention.to_string();
        channel.quota_bytes = space.quota_bytes;
        channel.used_bytes_max = seen.used_bytes_max.get(path).copied().unwrap_or(space.used_bytes);
        channel.versions_complete = space.versions_complete;
        channel.state = space.state.to_string();
        channel.execution_mode = space.execution_mode.clone();
        if found.is_none() {
            channel.writer = space.producer.as_ref().map(|p| p.component.clone()).unwrap_or_default();
            channel.readers = space.readers.iter().map(|r| r.name.clone()).collect();
        }
    }
    add_versions(record, traces);
    for channel in &mut record.channels {
        if versions_traced(traces, &channel.name).is_some() && !seen.still_there.contains(&channel.path) {
            channel.state = "finished".to_owned();
        }
    }
}

/// A space goes when it was read to its end: then the last look at it was a moment too early.
pub(crate) fn add_versions(record: &mut RunRecord, traces: &Traces) {
    for channel in &mut record.channels {
        let Some(versions) = versions_traced(traces, &channel.name) else { continue };
        channel.versions_complete = channel.versions_complete.max(versions);
    }
}
