//! A look at spaces, and what two looks together tell: bandwidth, and who waits for whom.
//!
//! Guarantees: looks without joining; a space or process that went between two looks is no error and counts no
//! negative bytes. Bytes are counted at the end of steps, so a rate is that of the steps that ended.

use std::collections::{BTreeMap, HashMap};

use forebay_space::{format_bytes, AgentStatus, MemberInfo, MirrorStatus, Result, SpaceInfo};
use forebay_tier::clock;
use serde::Serialize;

use crate::command::looks::{gone_everywhere, NodeLook};

/// Waits below it are how coupled programs take turns; longer ones are worth a look.
pub const LONG_WAIT_NS: u64 = 1_000_000_000;
/// Names of who keeps a process waiting that are shown; there may be thousands of ranks.
const NAMES_MAX: usize = 3;

/// All spaces that were asked for, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Directory of short names.
    pub root: String,
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// When, on a clock that is never set.
    pub at_ns: u64,
    /// What was there, in the order of names.
    pub spaces: Vec<Seen>,
    /// What was asked for by name and is not there.
    pub gone: Vec<String>,
    /// What the agent of the node says of itself.
    pub agent: Option<AgentStatus>,
    /// Of a look at several nodes.
    pub nodes: Option<Asked>,
}

/// The nodes of a look.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// How many.
    pub count: usize,
    /// Whether none of them has been waited for yet.
    pub is_first: bool,
    /// Those without an answer, and why.
    pub failed: Vec<(String, String)>,
}

/// A space in a look.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// The space.
    pub space: SpaceInfo,
    /// Payload bytes that came in per second since the look before; None in a first look.
    pub in_bytes_per_s: Option<f64>,
    /// Payload bytes that went out.
    pub out_bytes_per_s: Option<f64>,
    /// Who waits, the longest first.
    pub waits: Vec<Wait>,
    /// Bytes per second of each member, in their order.
    #[serde(skip)]
    pub member_bytes_per_s: Vec<Option<f64>>,
    /// Its node, of a look at several.
    #[serde(skip)]
    pub node: Option<String>,
    /// When, by the clock of its node, nanoseconds since 1970.
    #[serde(skip)]
    pub unix_ns: u64,
    /// What the agent says of it, if it is a copy of a space of another node.
    #[serde(skip)]
    pub mirror: Option<MirrorStatus>,
}

/// A process that waits.
#[derive(Clone, Debug, Serialize)]
pub struct Wait {
    /// "writer", "reader" or "observer".
    pub role: String,
    /// Component or group.
    pub component: String,
    /// Rank.
    pub rank: u32,
    /// Process id.
    pub pid: u32,
    /// For how long.
    pub waited_ns: u64,
    /// For what, and who keeps it back.
    pub waiting_for: String,
}

impl Seen {
    /// Complete versions that some reader has not released; without readers, all that are there.
    pub fn lag_versions(&self) -> u64 {
        let first = self.space.oldest_unread.unwrap_or(self.space.versions_complete);
        self.space.versions_complete.saturating_sub(first)
    }

    /// How much of the fullest tier segments take, 0 to 1; None without a quota.
    pub fn fill(&self) -> Option<f64> {
        self.space.tiers.iter().filter_map(|t| share(t.reserved_bytes, t.quota_bytes)).reduce(f64::max)
    }
}

/// `part` of `whole`; None when there is no whole.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Look {
    /// Looks at the spaces of these names, or at all. Rates need the look `before`.
    ///
    /// # Errors
    /// Those of the root directory, and what is wrong with a space that was named, but not that it is gone.
    pub fn take(names: &[String], before: Option<&Look>) -> Result<Look> {
        Ok(Look::of_node(NodeLook::here(names)?, before, clock::now_ns()))
    }

    fn of_node(look: NodeLook, before: Option<&Look>, at_ns: u64) -> Look {
        let NodeLook { root, unix_ns, gone, agent, spaces } = look;
        Look::of(spaces, before, Look { root, gone, unix_ns, at_ns, agent, ..Look::default() })
    }

    /// What was seen on several nodes, as one look. `known` has the last look at each node, for rates.
    pub fn of_nodes(
        nodes: &[String],
        seen: Vec<Result<NodeLook>>,
        known: &mut BTreeMap<String, Look>,
    ) -> Look {
        let (mut spaces, mut asked) = (Vec::new(), Asked { count: nodes.len(), ..Asked::default() });
        let gone = gone_everywhere(seen.iter().flatten());
        for (node, seen) in nodes.iter().zip(seen) {
            let seen = match seen {
                Ok(seen) => seen,
                Err(e) => {
                    asked.failed.push((node.clone(), e.to_string()));
                    continue;
                }
            };
            // Between two looks at a node counts what its own clock says: a launcher takes its time.
            let at_ns = seen.unix_ns;
            let look = Look::of_node(seen, known.get(node), at_ns);
            let on_node = look.spaces.iter().map(|seen| Seen { node: Some(node.clone()), ..seen.clone() });
            spaces.extend(on_node);
            known.insert(node.clone(), look);
        }
        Look { unix_ns: clock::realtime_ns(), gone, nodes: Some(asked), spaces, ..Look::default() }
    }

    /// These spaces as a look; `empty` says when and where it was taken.
    pub(super) fn of(found: Vec<SpaceInfo>, before: Option<&Look>, empty: Look) -> Look {
        let seconds = before.map(|b| empty.at_ns.saturating_sub(b.at_ns) as f64 / 1e9).filter(|s| *s > 0.0);
        let known: HashMap<Id<'_>, u64> = before.map(bytes_of_members).unwrap_or_default();
        let see = |space: SpaceInfo| {
            let rate = |member: &MemberInfo| {
                let earlier = known.get(&Id::of(&space, member)).copied().unwrap_or(0);
                Some(member.bytes.saturating_sub(earlier) as f64 / seconds?)
            };
            let rates: Vec<Option<f64>> = space.members.iter().map(rate).collect();
            let sum = |writers: bool| {
                let own = space.members.iter().zip(&rates).filter(|(m, _)| (m.role == "writer") == writers);
                seconds.map(|_| own.filter_map(|(_, rate)| *rate).sum())
            };
            let (in_bytes_per_s, out_bytes_per_s) = (sum(true), sum(false));
            let waits = waits(&space, empty.unix_ns);
            let mut mirrors = empty.agent.iter().flat_map(|agent| &agent.mirrors);
            Seen {
                in_bytes_per_s,
                out_bytes_per_s,
                waits,
                member_bytes_per_s: rates,
                node: None,
                unix_ns: empty.unix_ns,
                mirror: mirrors.find(|mirror| mirror.space == space.name).cloned(),
                space,
            }
        };
        Look { spaces: found.into_iter().map(see).collect(), ..empty }
    }
}

/// What the agent says of a copy: `from n0, 12 versions, 3.0 GiB (copying)`.
pub fn copied(mirror: &MirrorStatus) -> String {
    let MirrorStatus { from, state, versions, bytes, .. } = mirror;
    format!("from {from}, {versions} versions, {} ({state})", format_bytes(*bytes))
}

/// Whom a wait is for, shortened to what a person reads: the first few, and how many more.
pub fn shortened(waiting_for: &str) -> String {
    let all: Vec<&str> = waiting_for.split("; ").collect();
    match all.len().checked_sub(NAMES_MAX) {
        None | Some(0) => waiting_for.to_string(),
        Some(more) => format!("{} and {more} more", all[..NAMES_MAX].join("; ")),
    }
}

/// What tells one start of a process in a space from every other.
#[derive(PartialEq, Eq, Hash)]
struct Id<'a> {
    uuid: &'a str,
    role: &'a str,
    component: &'a str,
    rank: u32,
    pid: u32,
    since_unix_ns: u64,
}

impl<'a> Id<'a> {
    fn of(space: &'a SpaceInfo, member: &'a MemberInfo) -> Id<'a> {
        Id {
            uuid: &space.uuid,
            role: &member.role,
            component: &member.component,
            rank: member.rank,
            pid: member.pid,
            since_unix_ns: member.since_unix_ns,
        }
    }
}

fn bytes_of_members(look: &Look) -> HashMap<Id<'_>, u64> {
    let members = look.spaces.iter().flat_map(|s| s.space.members.iter().map(move |m| (&s.space, m)));
    members.map(|(space, member)| (Id::of(space, member), member.bytes)).collect()
}

fn waits(space: &SpaceInfo, now_unix_ns: u64) -> Vec<Wait> {
    let wait = |member: &MemberInfo| {
        Some(Wait {
            role: member.role.clone(),
            component: member.component.clone(),
            rank: member.rank,
            pid: member.pid,
            waited_ns: now_unix_ns.saturating_sub(member.waiting_since_unix_ns.unwrap_or(now_unix_ns)),
            waiting_for: member.waiting_for.clone()?,
        })
    };
    // What a dead process waited for is not shown.
    let mut waits: Vec<Wait> = space.members.iter().filter(|m| m.alive).filter_map(wait).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.waited_ns));
    waits
}
