//! What Prometheus is told about spaces: families of samples, computed from one look.
//!
//! Guarantees: no look, no output here; within a family no two samples have the same labels; counters only grow
//! while the process or space they count lives. A process that leaves takes its counters along, as Prometheus
//! expects of a target's children.

use std::collections::BTreeMap;

use forebay_space::{AgentStatus, MemberInfo, MirrorStatus, Result, SpaceInfo};
use serde::Serialize;

use crate::command::looks::NodeLook;

/// States of a space, as `ls` has them; any other is "unreadable".
const STATES: [&str; 6] = ["new", "open", "finished", "producer died", "dead", "unreadable"];
/// Roles of members.
const ROLES: [&str; 3] = ["writer", "reader", "observer"];

/// Names and values of labels, in the order in which they are printed.
pub type Labels = Vec<(&'static str, String)>;

/// Gauge or counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows.
    Counter,
}

/// A sample's value; bytes stay whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Bytes, versions, processes.
    Whole(u64),
    /// Seconds.
    Real(f64),
}

/// Samples of one name.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name without unit and without `_total`.
    pub stem: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// "bytes", "seconds", or none.
    pub unit: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
    /// Value per set of labels.
    pub samples: BTreeMap<Labels, Value>,
}

impl Family {
    fn new(stem: &'static str, kind: Kind, unit: Option<&'static str>, help: &'static str) -> Family {
        Family { stem, kind, unit, help, samples: BTreeMap::new() }
    }

    fn gauge(stem: &'static str, help: &'static str) -> Family {
        Family::new(stem, Kind::Gauge, None, help)
    }

    fn counter(stem: &'static str, help: &'static str) -> Family {
        Family::new(stem, Kind::Counter, None, help)
    }

    fn in_bytes(self) -> Family {
        Family { unit: Some("bytes"), ..self }
    }

    fn in_seconds(self) -> Family {
        Family { unit: Some("seconds"), ..self }
    }

    /// The name as Prometheus knows the samples.
    pub fn name(&self) -> String {
        let unit = self.unit.map_or(String::new(), |unit| format!("_{unit}"));
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{suffix}", self.stem)
    }

    /// Adds a sample. Of two with the same labels (a rank that died and its successor) counters add up, and of
    /// gauges the larger stays.
    fn add(&mut self, labels: Labels, value: Value) {
        let kind = self.kind;
        let both = |a: Value, b: Value| match (kind, a, b) {
            (Kind::Counter, Value::Whole(a), Value::Whole(b)) => Value::Whole(a.saturating_add(b)),
            (Kind::Counter, a, b) => Value::Real(a.as_f64() + b.as_f64()),
            (Kind::Gauge, a, b) if b.as_f64() > a.as_f64() => b,
            (Kind::Gauge, a, _) => a,
        };
        self.samples.entry(labels).and_modify(|old| *old = both(*old, value)).or_insert(value);
    }

    fn whole(&mut self, labels: Labels, value: u64) {
        self.add(labels, Value::Whole(value));
    }

    fn nanoseconds(&mut self, labels: Labels, ns: u64) {
        self.add(labels, Value::Real(ns as f64 / 1e9));
    }
}

impl Value {
    fn as_f64(self) -> f64 {
        match self {
            Value::Whole(n) => n as f64,
            Value::Real(x) => x,
        }
    }
}

/// Everything that was seen of the spaces of this node. Families without a sample are left out.
pub fn families(look: &NodeLook) -> Vec<Family> {
    let mut all = vec![build_info()];
    all.extend(of_node(look));
    all.retain(|family| !family.samples.is_empty());
    all
}

/// The same of several nodes, by name: the first label of each sample is its node.
pub fn families_of_nodes<'a>(nodes: impl Iterator<Item = (&'a str, &'a Result<NodeLook>)>) -> Vec<Family> {
    let mut up = Family::gauge("forebay_node_up", "1 for a node that has answered, else 0.");
    let mut all: Vec<Family> = Vec::new();
    for (node, look) in nodes {
        up.whole(vec![("node", node.to_string())], u64::from(look.is_ok()));
        for family in look.iter().flat_map(of_node) {
            let samples = family.samples.into_iter().map(|(labels, value)| {
                let with_node = std::iter::once(("node", node.to_string())).chain(labels);
                (with_node.collect(), value)
            });
            match all.iter_mut().find(|known| known.stem == family.stem) {
                Some(known) => known.samples.extend(samples),
                None => all.push(Family { samples: samples.collect(), ..family }),
            }
        }
    }
    all.splice(0..0, [build_info(), up]);
    all.retain(|family| !family.samples.is_empty());
    all
}

fn build_info() -> Family {
    let mut build =
        Family::gauge("forebay_build_info", "Version of the command that wrote this, as a label.");
    build.whole(vec![("version", env!("CARGO_PKG_VERSION").into())], 1);
    build
}

fn of_node(look: &NodeLook) -> Vec<Family> {
    let NodeLook { root, unix_ns, spaces, agent, .. } = look;
    let mut count = Family::gauge("forebay_spaces", "Spaces of this user that were looked at.");
    count.whole(vec![("root", root.clone())], spaces.len() as u64);
    let mut all = vec![count];
    all.extend(about_spaces(spaces));
    all.extend(about_tiers(spaces));
    all.extend(about_versions(spaces));
    all.extend(about_groups(spaces));
    all.extend(about_members(spaces));
    all.extend(about_work(spaces, *unix_ns));
    all.extend(about_moves(spaces));
    all.extend(agent.iter().flat_map(about_agent));
    all
}

fn about_agent(agent: &AgentStatus) -> [Family; 4] {
    let mut sent =
        Family::counter("forebay_agent_sent", "Payload bytes that the agent has sent to other nodes.")
            .in_bytes();
    let mut missing =
        Family::gauge("forebay_agent_missing_nodes", "Nodes of the job whose agents are not connected.");
    let mut copied =
        Family::counter("forebay_copied", "Payload bytes of a space of other nodes that were copied here.")
            .in_bytes();
    let mut versions = Family::counter(
        "forebay_copied_versions",
        "Versions of a space of other nodes that were copied here.",
    );
    sent.whole(Vec::new(), agent.bytes_sent);
    missing.whole(Vec::new(), agent.missing.len() as u64);
    for MirrorStatus { space, from, versions: number, bytes, .. } in &agent.mirrors {
        let labels = vec![("space", space.clone()), ("from", from.clone())];
        copied.whole(labels.clone(), *bytes);
        versions.whole(labels, *number);
    }
    [sent, missing, copied, versions]
}

fn of(space: &SpaceInfo) -> Labels {
    vec![("space", space.name.clone())]
}

fn with(mut labels: Labels, more: &[(&'static str, &str)]) -> Labels {
    labels.extend(more.iter().map(|(key, value)| (*key, (*value).to_string())));
    labels
}

fn is_readable(space: &&SpaceInfo) -> bool {
    !space.state.starts_with("unreadable")
}

fn about_spaces(spaces: &[SpaceInfo]) -> [Family; 3] {
    let mut info = Family::gauge("forebay_space_info", "What does not change about a space, as labels.");
    let mut state = Family::gauge("forebay_space_state", "1 for the state a space is in, 0 for the others.");
    let mut start =
        Family::gauge("forebay_space_start_time", "When the space was made, since 1970.").in_seconds();
    for space in spaces {
        let now = if is_readable(&space) { space.state.as_str() } else { "unreadable" };
        for name in STATES {
            state.whole(with(of(space), &[("state", name)]), u64::from(name == now));
        }
    }
    for space in spaces.iter().filter(is_readable) {
        let facts = [
            ("uuid", space.uuid.as_str()),
            ("host", &space.host),
            ("tier", &space.tier),
            ("horizon", &space.horizon),
            ("survives", &space.durability),
            ("retention", &space.retention),
            ("run", space.run.as_deref().unwrap_or("")),
        ];
        info.whole(with(of(space), &facts), 1);
        start.nanoseconds(of(space), space.created_unix_ns);
    }
    [info, state, start]
}

fn about_tiers(spaces: &[SpaceInfo]) -> [Family; 3] {
    let mut used =
        Family::gauge("forebay_tier_used", "Bytes of records, per pool; level 0 is the fastest.").in_bytes();
    let mut reserved =
        Family::gauge("forebay_tier_reserved", "Bytes of segments, used or not, per pool.").in_bytes();
    let mut quota =
        Family::gauge("forebay_tier_quota", "Most bytes that a pool may hold; absent without a limit.")
            .in_bytes();
    for space in spaces {
        for (level, pool) in space.tiers.iter().enumerate() {
            let labels = with(of(space), &[("level", &level.to_string()), ("tier", &pool.tier)]);
            used.whole(labels.clone(), pool.used_bytes);
            reserved.whole(labels.clone(), pool.reserved_bytes);
            if pool.quota_bytes > 0 {
                quota.whole(labels, pool.quota_bytes);
            }
        }
    }
    [used, reserved, quota]
}

fn about_versions(spaces: &[SpaceInfo]) -> [Family; 4] {
    let mut complete = Family::counter("forebay_versions_completed", "Versions that every rank committed.");
    let mut oldest = Family::gauge("forebay_version_oldest", "Number of the oldest version not dropped.");
    let mut retained = Family::gauge("forebay_versions_retained", "Complete versions that were not dropped.");
    let mut unread =
        Family::gauge("forebay_versions_unread", "Complete versions that some reader has not released.");
    for space in spaces.iter().filter(is_readable) {
        let end = space.versions_complete;
        complete.whole(of(space), end);
        oldest.whole(of(space), space.versions_oldest);
        retained.whole(of(space), end.saturating_sub(space.versions_oldest));
        unread.whole(of(space), space.oldest_unread.map_or(0, |first| end.saturating_sub(first)));
    }
    [complete, oldest, retained, unread]
}

fn about_groups(spaces: &[SpaceInfo]) -> [Family; 3] {
    let mut lag = Family::gauge(
        "forebay_reader_lag_versions",
        "Complete versions that the slowest rank of a reader group has not released.",
    );
    let mut readers =
        Family::gauge("forebay_reader_ranks", "Ranks of a reader group: declared, joined, ended.");
    let mut producers = Family::gauge(
        "forebay_producer_ranks",
        "Ranks of the producers: declared, joined, closed (ended cleanly).",
    );
    for space in spaces {
        for group in &space.readers {
            let labels = with(of(space), &[("group", &group.name)]);
            lag.whole(labels.clone(), group.lag_versions);
            let counts = [("declared", group.size), ("joined", group.joined), ("ended", group.ended)];
            for (state, count) in counts {
                readers.whole(with(labels.clone(), &[("state", state)]), u64::from(count));
            }
        }
        for group in space.producer.iter() {
            let counts = [("declared", group.size), ("joined", group.joined), ("closed", group.closed)];
            for (state, count) in counts {
                let labels = with(of(space), &[("component", &group.component), ("state", state)]);
                producers.whole(labels, u64::from(count));
            }
        }
    }
    [lag, readers, producers]
}

fn about_members(spaces: &[SpaceInfo]) -> [Family; 1] {
    let mut members =
        Family::gauge("forebay_members", "Processes that have a space open, or died while they had.");
    for space in spaces.iter().filter(is_readable) {
        for (role, alive) in ROLES.into_iter().flat_map(|role| [(role, true), (role, false)]) {
            let count = space.members.iter().filter(|m| m.role == role && m.alive == alive).count();
            let alive = if alive { "true" } else { "false" };
            members.whole(with(of(space), &[("role", role), ("alive", alive)]), count as u64);
        }
    }
    [members]
}

fn about_work(spaces: &[SpaceInfo], now_unix_ns: u64) -> [Family; 6] {
    let mut put = Family::counter("forebay_put", "Payload bytes put, up to the last step ended.").in_bytes();
    let mut got =
        Family::counter("forebay_got", "Payload bytes got or viewed, up to the last step ended.").in_bytes();
    let mut steps = Family::counter("forebay_steps", "Steps ended.");
    let mut inside =
        Family::counter("forebay_operation", "Time inside put, get, view and commit, without waiting.")
            .in_seconds();
    let mut waited =
        Family::counter("forebay_wait", "Time spent waiting for a version or for free space.").in_seconds();
    let mut waiting =
        Family::gauge("forebay_waiting", "How long a process has been waiting now; 0 when it is not.")
            .in_seconds();
    for (space, member) in spaces.iter().flat_map(|s| s.members.iter().map(move |m| (s, m))) {
        let labels = labels_of(space, member);
        let bytes = if member.role == "writer" { &mut put } else { &mut got };
        bytes.whole(labels.clone(), member.bytes);
        steps.whole(labels.clone(), member.steps);
        inside.nanoseconds(labels.clone(), member.op_ns);
        waited.nanoseconds(labels.clone(), member.wait_ns);
        let since = member.waiting_since_unix_ns.filter(|_| member.alive);
        waiting.nanoseconds(labels, since.map_or(0, |since| now_unix_ns.saturating_sub(since)));
    }
    [put, got, steps, inside, waited, waiting]
}

fn labels_of(space: &SpaceInfo, member: &MemberInfo) -> Labels {
    let rank = member.rank.to_string();
    with(of(space), &[("role", &member.role), ("component", &member.component), ("rank", &rank)])
}

fn about_moves(spaces: &[SpaceInfo]) -> [Family; 4] {
    let mut spilled = Family::counter("forebay_spilled", "Bytes moved down a tier.").in_bytes();
    let mut promoted = Family::counter("forebay_promoted", "Bytes moved up a tier.").in_bytes();
    let mut failed = Family::counter("forebay_failed_moves", "Moves between tiers that failed.");
    let mut dropped = Family::counter(
        "forebay_dropped_versions",
        "Versions dropped, unread by some reader, because the space was full.",
    );
    for space in spaces.iter().filter(is_readable) {
        spilled.whole(of(space), space.moved.spilled_bytes);
        promoted.whole(of(space), space.moved.promoted_bytes);
        failed.whole(of(space), space.moved.failed);
        dropped.whole(of(space), space.moved.dropped_versions);
    }
    [spilled, promoted, failed, dropped]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text::{render, Form};
    use crate::top::tests::busy;

    fn look(spaces: Vec<SpaceInfo>, unix_ns: u64) -> NodeLook {
        NodeLook { root: "/root".into(), unix_ns, spaces, ..NodeLook::default() }
    }

    #[test]
    fn samples_of_several_nodes_have_their_node_first() {
        let mirror = MirrorStatus {
            space: "heat".into(),
            from: "n0".into(),
            state: "copying".into(),
            versions: 4,
            bytes: 1 << 20,
        };
        let agent = AgentStatus {
            node: "n1".into(),
            incarnation: 1,
            state: "ready".into(),
            pid: 7,
            missing: vec!["n2".into()],
            mirrors: vec![mirror],
            served: Vec::new(),
            bytes_sent: 77,
        };
        let with_agent = NodeLook { agent: Some(agent), ..look(vec![busy("heat")], 0) };
        let failed = Err(forebay_tier::Error::new(forebay_tier::Kind::PeerMissing, "it is gone"));
        let seen = [("n0", Ok(look(vec![busy("heat")], 0))), ("n1", Ok(with_agent)), ("n2", failed)];
        let all = families_of_nodes(seen.iter().map(|(node, look)| (*node, look)));
        let text = render(all, Form::Prometheus);
        for line in [
            "forebay_node_up{node=\"n1\"} 1",
            "forebay_node_up{node=\"n2\"} 0",
            "forebay_spaces{node=\"n0\",root=\"/root\"} 1",
            "forebay_spilled_bytes_total{node=\"n0\",space=\"heat\"} 3221225472",
            "forebay_spilled_bytes_total{node=\"n1\",space=\"heat\"} 3221225472",
            "forebay_agent_sent_bytes_total{node=\"n1\"} 77",
            "forebay_agent_missing_nodes{node=\"n1\"} 1",
            "forebay_copied_bytes_total{node=\"n1\",space=\"heat\",from=\"n0\"} 1048576",
            "forebay_copied_versions_total{node=\"n1\",space=\"heat\",from=\"n0\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
        // A family is told once, however many nodes have it.
        let told = text.lines().filter(|line| line.starts_with("# TYPE forebay_spaces "));
        assert_eq!(told.count(), 1, "{text}");
        assert!(!text.contains("node=\"n2\",") && text.matches("forebay_build_info{").count() == 1, "{text}");
    }

    #[test]
    fn tiers_moves_groups_and_waits_have_their_samples() {
        let space = busy("heat");
        let now = space.members[2].waiting_since_unix_ns.unwrap() + 3_000_000_000;
        let text = render(families(&look(vec![space], now)), Form::Prometheus);
        for line in [
            "forebay_tier_used_bytes{space=\"heat\",level=\"0\",tier=\"dram\"} 1006632960",
            "forebay_tier_reserved_bytes{space=\"heat\",level=\"0\",tier=\"dram\"} 1006632960",
            "forebay_tier_quota_bytes{space=\"heat\",level=\"1\",tier=\"file\"} 17179869184",
            "forebay_spilled_bytes_total{space=\"heat\"} 3221225472",
            "forebay_promoted_bytes_total{space=\"heat\"} 536870912",
            "forebay_failed_moves_total{space=\"heat\"} 1",
            "forebay_reader_lag_versions{space=\"heat\",group=\"analysis\"} 6",
            "forebay_versions_unread{space=\"heat\"} 6",
            "forebay_members{space=\"heat\",role=\"reader\",alive=\"false\"} 1",
            "forebay_waiting_seconds{space=\"heat\",role=\"writer\",component=\"gray-scott\",rank=\"2\"} 3.0",
            "# TYPE forebay_wait_seconds_total counter",
            "# UNIT forebay_wait_seconds_total seconds",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn a_rank_and_its_successor_are_one_series() {
        let mut space = busy("heat");
        space.members[1] = MemberInfo { rank: 0, alive: false, bytes: 5, ..space.members[0].clone() };
        space.members[0].bytes = 7;
        let all = families(&look(vec![space], 0));
        let put = all.iter().find(|f| f.name() == "forebay_put_bytes_total").unwrap();
        let rank_0 = put.samples.iter().find(|(labels, _)| labels.contains(&("rank", "0".into()))).unwrap();
        assert_eq!(*rank_0.1, Value::Whole(12));
    }

    #[test]
    fn an_unreadable_space_has_a_state_and_nothing_made_up() {
        let space = SpaceInfo {
            state: "unreadable: Damaged".into(),
            members: Vec::new(),
            readers: Vec::new(),
            tiers: Vec::new(),
            producer: None,
            ..busy("heat")
        };
        let text = render(families(&look(vec![space], 0)), Form::OpenMetrics);
        assert!(text.contains("forebay_space_state{space=\"heat\",state=\"unreadable\"} 1\n"), "{text}");
        assert!(!text.contains("versions_completed") && text.ends_with("# EOF\n"), "{text}");
    }
}
