//! One record of what the runners of all nodes have recorded.
//!
//! Guarantees: times are in the clock of the lead, by the wall clocks of both nodes; what a runner that was lost would
//! have said is missing, and noted by who leads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_space::part_name;

use super::placement::PlacedNode;
use crate::conclude::{add_traces, add_versions};
use crate::progress::{read_fill, Fill};
use crate::record::{monotonic_ns, unix_ns, ChannelRecord, NodeRecord, RunRecord, NEVER_OPENED};
use crate::trace::Traces;
use crate::workflow::Workflow;

/// Where the runner of a node notes how full spaces are.
pub(super) fn fill_file(run_dir: &Path, node: &str) -> PathBuf {
    run_dir.join(format!("fill.{node}.jsonl"))
}

/// Of a node: its name and machine, and what its runner has recorded.
pub(super) struct Recorded<'a> {
    pub(super) placed: &'a PlacedNode,
    pub(super) node: NodeRecord,
    pub(super) record: Option<RunRecord>,
}

/// Completes the record of the lead; returns the traces of all ranks.
pub(super) fn merge(record: &mut RunRecord, workflow: &Workflow, nodes: &[Recorded<'_>]) -> Traces {
    record.end_unix_ns = unix_ns();
    record.end_ns = monotonic_ns();
    record.nodes = nodes.iter().map(|recorded| recorded.node.clone()).collect();
    for recorded in nodes {
        let Some(of_node) = &recorded.record else { continue };
        add_ranks(record, workflow, of_node, &recorded.node);
        for note in &of_node.notes {
            let note = format!("{}: {note}", recorded.node.name);
            if !record.notes.contains(&note) {
                record.notes.push(note);
            }
        }
    }
    let ranks = || record.components.iter().flat_map(|component| &component.ranks);
    if let (Some(start), Some(end)) = (ranks().map(|r| r.start_ns).min(), ranks().map(|r| r.end_ns).max()) {
        record.wall_s = end.saturating_sub(start) as f64 / 1e9;
    }
    let traces = Traces::of_run(&record.run_dir, record).unwrap_or_else(|e| {
        record.notes.push(format!("the traces could not be read: {e}"));
        Traces::default()
    });
    for (of_component, component) in record.components.iter_mut().zip(&workflow.components) {
        of_component.ranks.sort_by_key(|rank| (rank.rank.is_none(), rank.rank));
        add_traces(of_component, component, &traces);
    }
    for channel in &workflow.channels {
        add_channel(record, workflow, &channel.name, nodes);
    }
    add_helpers(record, workflow, nodes);
    add_versions(record, &traces);
    join_fill(record, workflow, nodes);
    traces
}

/// Of ranks that a launcher has started it is not known where they ran.
fn add_ranks(record: &mut RunRecord, workflow: &Workflow, of_node: &RunRecord, node: &NodeRecord) {
    let components = record.components.iter_mut().zip(&workflow.components);
    for ((component, declared), of_node) in components.zip(&of_node.components) {
        let is_known = declared.launcher.is_empty();
        component.ranks.extend(of_node.ranks.iter().cloned().map(|mut rank| {
            rank.node = is_known.then(|| node.name.clone());
            rank.start_ns = rank.start_ns.saturating_add_signed(node.clock_ns);
            rank.end_ns = rank.end_ns.saturating_add_signed(node.clock_ns);
            rank
        }));
    }
}

/// The nodes with writers of a channel, and the name that its space has there.
fn written_at<'a>(
    workflow: &Workflow,
    channel: &str,
    nodes: &'a [Recorded<'a>],
) -> (Vec<&'a Recorded<'a>>, String) {
    let writer = workflow.channels.iter().find(|c| c.name == channel).map(|c| c.writer.as_str());
    let writer = workflow.components.iter().position(|c| Some(c.name.as_str()) == writer);
    let Some(writer) = writer else { return (Vec::new(), channel.to_owned()) };
    let has_space = |name: &str| {
        let has = |recorded: &&Recorded<'_>| {
            let channels = recorded.record.iter().flat_map(|record| &record.channels);
            channels.into_iter().any(|c| c.name == name && c.state != NEVER_OPENED)
        };
        nodes.iter().filter(has).collect::<Vec<_>>()
    };
    let parts = has_space(&part_name(channel));
    match parts.is_empty() {
        false => (parts, part_name(channel)),
        true => {
            let starts = |recorded: &&Recorded<'_>| recorded.placed.has(writer);
            (has_space(channel).into_iter().filter(starts).take(1).collect(), channel.to_owned())
        }
    }
}

/// What the nodes of its writers say of a channel: mirrors on others are copies.
fn add_channel(record: &mut RunRecord, workflow: &Workflow, name: &str, nodes: &[Recorded<'_>]) {
    let (written, local_name) = written_at(workflow, name, nodes);
    let Some(channel) = record.channels.iter_mut().find(|channel| channel.name == name) else { return };
    for recorded in written {
        let channels = recorded.record.iter().flat_map(|record| &record.channels);
        let Some(found) = channels.into_iter().find(|c| c.name == local_name) else { continue };
        let before = std::mem::take(channel);
        *channel = ChannelRecord {
            name: before.name,
            nodes: before.nodes,
            declared: true,
            keep: before.keep,
            kind: before.kind,
            writer: before.writer,
            readers: before.readers,
            quota_bytes: before.quota_bytes + found.quota_bytes,
            used_bytes_max: before.used_bytes_max + found.used_bytes_max,
            ..found.clone()
        };
        channel.nodes.push(recorded.node.name.clone());
    }
}

/// Spaces that programs opened by themselves, each once.
fn add_helpers(record: &mut RunRecord, workflow: &Workflow, nodes: &[Recorded<'_>]) {
    for recorded in nodes {
        for found in recorded.record.iter().flat_map(|record| &record.channels).filter(|c| !c.declared) {
            let is_part = workflow.channels.iter().any(|c| part_name(&c.name) == found.name);
            if !is_part && !record.channels.iter().any(|channel| channel.name == found.name) {
                let nodes = vec![recorded.node.name.clone()];
                record.channels.push(ChannelRecord { nodes, ..found.clone() });
            }
        }
    }
}

/// Joins the samples of all nodes to one file: of a channel with writers on several, the sums.
fn join_fill(record: &mut RunRecord, workflow: &Workflow, nodes: &[Recorded<'_>]) {
    let mut all: Vec<Fill> = Vec::new();
    for channel in &workflow.channels {
        let (written, local_name) = written_at(workflow, &channel.name, nodes);
        let mut samples: Vec<(usize, Fill)> = Vec::new();
        for (index, recorded) in written.iter().enumerate() {
            let of_node = read_fill(&fill_file(&record.run_dir, &recorded.node.name));
            let own = of_node.into_iter().filter(|sample| sample.channel == local_name);
            samples.extend(own.map(|sample| {
                let t_ns = sample.t_ns.saturating_add_signed(recorded.node.clock_ns);
                (index, Fill { t_ns, ..sample })
            }));
        }
        samples.sort_by_key(|(_, sample)| sample.t_ns);
        let mut last: BTreeMap<usize, Fill> = BTreeMap::new();
        for (index, sample) in samples {
            let t_ns = sample.t_ns;
            last.insert(index, sample);
            all.push(Fill {
                t_ns,
                channel: channel.name.clone(),
                used_bytes: last.values().map(|s| s.used_bytes).sum(),
                quota_bytes: last.values().map(|s| s.quota_bytes).sum(),
                versions_complete: last.values().map(|s| s.versions_complete).min().unwrap_or(0),
                versions_oldest: last.values().map(|s| s.versions_oldest).max().unwrap_or(0),
            });
        }
    }
    all.sort_by_key(|sample| sample.t_ns);
    let lines: String =
        all.iter().filter_map(|sample| Some(serde_json::to_string(sample).ok()? + "\n")).collect();
    let written = std::fs::write(record.run_dir.join("fill.jsonl"), lines);
    match written {
        Ok(()) => nodes.iter().for_each(|recorded| {
            let _ = std::fs::remove_file(fill_file(&record.run_dir, &recorded.node.name));
        }),
        Err(e) => record.notes.push(format!("the samples of all nodes could not be joined: {e}")),
    }
}
