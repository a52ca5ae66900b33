//! `top` without a terminal: one table and who waits, or one JSON document.

use comfy_table::Cell;
use forebay_space::{format_bytes, format_versions, AgentStatus, Result, SpaceInfo};
use serde::Serialize;

use super::draw::{duration, percent, rate};
use super::look::{copied, share, shortened, Look, Seen, Wait};
use crate::output::{number, schema, table_text, toned, Output, Tone};

#[derive(Serialize)]
struct Body<'a> {
    root: &'a str,
    unix_ns: u64,
    seconds_between: Option<f64>,
    gone: &'a [String],
    agent: Option<&'a AgentStatus>,
    spaces: &'a [Seen],
}

/// Prints this look; `before` is the one that its rates come from.
pub fn print(look: &Look, before: Option<&Look>, out: &Output) -> Result<()> {
    let seconds_between = before.map(|b| look.at_ns.saturating_sub(b.at_ns) as f64 / 1e9);
    let Look { root, unix_ns, gone, agent, spaces, .. } = look;
    let body = Body { root, unix_ns: *unix_ns, seconds_between, gone, agent: agent.as_ref(), spaces };
    out.result(schema::TOP, &body, || match spaces.is_empty() {
        true => String::new(),
        false => table(spaces, out) + &copies(spaces) + &waits(spaces, out),
    })
}

fn table(spaces: &[Seen], out: &Output) -> String {
    let heading =
        ["NAME", "STATE", "VERSIONS", "UNREAD", "LAG", "IN/s", "OUT/s", "FILL", "MOVED", "FAILED", "WAITING"];
    let mut table = out.table(&heading);
    for seen in spaces {
        let space = &seen.space;
        let state = match space.state.as_str() {
            state @ ("open" | "new") => toned(state, Tone::Good),
            "finished" => toned("finished", Tone::Quiet),
            state => toned(state, Tone::Bad),
        };
        let moved = format_bytes(space.moved.spilled_bytes.saturating_add(space.moved.promoted_bytes));
        table.add_row(vec![
            Cell::new(&space.name),
            state,
            number(format_versions(space.versions_oldest..space.versions_complete)),
            number(format_versions(space.oldest_unread.unwrap_or(u64::MAX)..space.versions_complete)),
            Cell::new(lag(space)),
            number(rate(seen.in_bytes_per_s)),
            number(rate(seen.out_bytes_per_s)),
            Cell::new(used(space)),
            number(moved),
            number(space.moved.failed),
            number(seen.waits.len()),
        ]);
    }
    table_text(&table)
}

/// `analysis 3, viewer 0`.
fn lag(space: &SpaceInfo) -> String {
    let groups = space.readers.iter().map(|g| format!("{} {}", g.name, g.lag_versions));
    let text = groups.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "-".into()
    } else {
        text
    }
}

/// `dram 512.0 MiB of 1.0 GiB (50 %), file 0 B of 8.0 GiB (0 %)`.
fn used(space: &SpaceInfo) -> String {
    let tiers = space.tiers.iter().map(|t| match share(t.reserved_bytes, t.quota_bytes) {
        None => format!("{} {}", t.tier, format_bytes(t.used_bytes)),
        Some(fill) => {
            let (used, quota) = (format_bytes(t.reserved_bytes), format_bytes(t.quota_bytes));
            format!("{} {used} of {quota} ({})", t.tier, percent(fill))
        }
    });
    let text = tiers.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "-".into()
    } else {
        text
    }
}

/// `heat: copied from n0, 12 versions, 3.0 GiB (copying)`, for each copy of a space of another node.
fn copies(spaces: &[Seen]) -> String {
    let lines: String = spaces
        .iter()
        .filter_map(|seen| Some(format!("{}: copied {}\n", seen.space.name, copied(seen.mirror.as_ref()?))))
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("\n{lines}")
    }
}

fn waits(spaces: &[Seen], out: &Output) -> String {
    let line = |space: &SpaceInfo, wait: &Wait| {
        let Wait { role, component, rank, pid, .. } = wait;
        let since = out.paint(Tone::Notable, &format!("waits {}", duration(wait.waited_ns)));
        let who = format!("{}: {role} rank {rank} of {component} (pid {pid})", space.name);
        format!("{who} {since} for {}\n", shortened(&wait.waiting_for))
    };
    let all = spaces.iter().flat_map(|s| s.waits.iter().map(|w| line(&s.space, w)));
    let text: String = all.collect();
    if text.is_empty() {
        text
    } else {
        format!("\n{text}")
    }
}
