//! `forebay ls`: the spaces of this user on this node, or one of them in detail.
//!
//! Guarantees: looks without joining; a space that cannot be read is listed as damaged, never left out.

use std::path::PathBuf;

use comfy_table::Cell;
use forebay_space::{format_bytes, format_versions, Result, SpaceInfo};
use serde::Serialize;

use crate::command::nodes::{is_path, OnNodes};
use crate::command::spaces;
use crate::output::{number, schema, table_text, toned, Output, Tone};

/// Members and versions shown of one space; --json has all.
const ROWS_MAX: usize = 40;

/// List spaces, or show one in detail: state, tier, versions, capacity, members.
#[derive(clap::Args, Debug)]
#[command(after_help = "States: new (no producer yet), open (a producer writes), finished (closed by its \
                  producer), producer died (complete versions stay readable), dead (no live process holds \
                  it: forebay clean).")]
pub struct Args {
    /// Short name or path of one space.
    name: Option<String>,
    #[command(flatten)]
    pub(crate) on: OnNodes,
}

impl Args {
    /// What it is told that is a path.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.name.iter().filter(is_path).map(PathBuf::from).collect()
    }
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    match &args.name {
        Some(name) => detail(&spaces::look_up(name)?, out),
        None => table(&forebay_space::list()?, out),
    }
}

fn table(spaces: &[SpaceInfo], out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        root: String,
        spaces: &'a [SpaceInfo],
    }
    let root = forebay_space::root()?.display().to_string();
    out.result(schema::LS, &Body { root: root.clone(), spaces }, || {
        if spaces.is_empty() {
            return String::new();
        }
        let heading = [
            "NAME", "STATE", "TIER", "SURVIVES", "VERSIONS", "USED", "RESERVED", "QUOTA", "WRITERS",
            "READERS",
        ];
        let mut table = out.table(&heading);
        for space in spaces {
            table.add_row(row(space));
        }
        table_text(&table)
    })?;
    match spaces.iter().find(|s| s.state == "dead" || s.state == "producer died") {
        Some(_) => out.next("forebay clean --dead removes what no live process holds"),
        None if spaces.is_empty() => out.next(&format!("no spaces in {root}; forebay run makes some")),
        None => out.next(&format!("forebay ls {0} | forebay cat {0}", spaces[0].name)),
    }
    Ok(0)
}

fn row(space: &SpaceInfo) -> Vec<Cell> {
    vec![
        Cell::new(&space.name),
        state(&space.state),
        Cell::new(&space.tier),
        Cell::new(&space.durability),
        number(versions(space)),
        number(format_bytes(space.used_bytes)),
        number(format_bytes(space.reserved_bytes)),
        number(format_bytes(space.quota_bytes)),
        number(writers(space)),
        number(space.members.iter().filter(|m| m.role == "reader" && m.alive).count()),
    ]
}

fn state(state: &str) -> Cell {
    let tone = match state {
        "open" | "new" => Tone::Good,
        "finished" => Tone::Quiet,
        _ => Tone::Bad,
    };
    toned(state, tone)
}

/// Numbers of the retained complete versions.
fn versions(space: &SpaceInfo) -> String {
    format_versions(space.versions_oldest..space.versions_complete)
}

/// `joined/declared`.
fn writers(space: &SpaceInfo) -> String {
    space.producer.as_ref().map_or("-".into(), |p| format!("{}/{}", p.joined, p.size))
}

fn detail(space: &SpaceInfo, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        space: &'a SpaceInfo,
    }
    out.result(schema::SPACE, &Body { space }, || {
        let mut text = facts(space, out);
        text += &groups(space, out);
        text += &members(space, out);
        text + &version_table(space, out)
    })?;
    out.next(&format!("forebay cat {}", space.name));
    Ok(0)
}

/// One `key value` line per fact.
fn facts(space: &SpaceInfo, out: &Output) -> String {
    let producer = space.producer.as_ref().map_or("none yet".to_string(), |p| {
        format!(
            "{} ({} of {} ranks joined, {} closed, incarnation {})",
            p.component, p.joined, p.size, p.closed, p.incarnation
        )
    });
    let reserved = format!("{} of {}", format_bytes(space.reserved_bytes), format_bytes(space.quota_bytes));
    let lines: [(&str, String); 12] = [
        ("name", space.name.clone()),
        ("path", space.path.display().to_string()),
        ("uuid", space.uuid.clone()),
        ("state", space.state.clone()),
        ("tier", space.tier.clone()),
        ("survives", format!("{} (horizon {})", space.durability, space.horizon)),
        ("retention", space.retention.clone()),
        ("checksums", if space.checksum { "yes" } else { "no" }.to_string()),
        ("used", format_bytes(space.used_bytes)),
        ("reserved", format!("{reserved}, segments of at most {}", format_bytes(space.segment_bytes))),
        ("versions", versions(space)),
        ("producer", producer),
    ];
    let mut text: String = lines
        .iter()
        .map(|(key, value)| format!("{}  {value}\n", out.paint(Tone::Strong, &format!("{key:<9}"))))
        .collect();
    if space.tiers.len() > 1 {
        text += &tiers(space, out);
    }
    text
}

/// Its pools, the fastest first, and what was moved between them.
fn tiers(space: &SpaceInfo, out: &Output) -> String {
    let mut table = out.table(&["TIER", "USED", "RESERVED", "QUOTA", "POOL"]);
    for pool in &space.tiers {
        table.add_row(vec![
            Cell::new(&pool.tier),
            number(format_bytes(pool.used_bytes)),
            number(format_bytes(pool.reserved_bytes)),
            number(format_bytes(pool.quota_bytes)),
            Cell::new(pool.path.display()),
        ]);
    }
    let moved = &space.moved;
    let failed = out.paint(
        if moved.failed > 0 { Tone::Bad } else { Tone::Quiet },
        &format!("{} moves failed", moved.failed),
    );
    let (down, up) = (format_bytes(moved.spilled_bytes), format_bytes(moved.promoted_bytes));
    let dropped = moved.dropped_versions;
    format!(
        "\n{}moved: {down} down, {up} up; {failed}; {dropped} versions dropped unread\n",
        table_text(&table)
    )
}

fn groups(space: &SpaceInfo, out: &Output) -> String {
    if space.readers.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["READERS", "JOINED", "AT VERSION", "ENDED"]);
    for group in &space.readers {
        let of_size = |n: u32| number(format!("{n}/{}", group.size));
        let at = group.version_min.map_or("-".into(), |v| v.to_string());
        table.add_row(vec![Cell::new(&group.name), of_size(group.joined), number(at), of_size(group.ended)]);
    }
    format!("\n{}", table_text(&table))
}

fn members(space: &SpaceInfo, out: &Output) -> String {
    if space.members.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["MEMBER", "RANK", "PID", "STATE", "VERSION", "STEPS", "BYTES", "WAITS FOR"]);
    for member in space.members.iter().take(ROWS_MAX) {
        let alive = if member.alive { toned("alive", Tone::Good) } else { toned("dead", Tone::Bad) };
        table.add_row(vec![
            Cell::new(format!("{} {}", member.role, member.component)),
            number(format!("{}/{}", member.rank, member.size)),
            number(member.pid),
            alive,
            number(member.version),
            number(member.steps),
            number(format_bytes(member.bytes)),
            Cell::new(member.waiting_for.as_deref().unwrap_or("")),
        ]);
    }
    format!("\n{}{}", table_text(&table), more(space.members.len(), out))
}

fn version_table(space: &SpaceInfo, out: &Output) -> String {
    if space.versions.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["VERSION", "RECORDS", "BYTES", "VARIABLES"]);
    // The newest are the ones a person asks about.
    let hidden = space.versions.len().saturating_sub(ROWS_MAX);
    for version in &space.versions[hidden..] {
        table.add_row(vec![
            number(version.version),
            number(version.records),
            number(format_bytes(version.bytes)),
            Cell::new(names(&version.variables)),
        ]);
    }
    format!("\n{}{}", table_text(&table), more(space.versions.len(), out))
}

/// The first few names; a version may hold thousands.
fn names(all: &[String]) -> String {
    const SHOWN_MAX: usize = 6;
    let shown = all.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(SHOWN_MAX) {
        None | Some(0) => shown,
        Some(hidden) => format!("{shown} and {hidden} more"),
    }
}

fn more(rows: usize, out: &Output) -> String {
    match rows.checked_sub(ROWS_MAX) {
        None | Some(0) => String::new(),
        Some(hidden) => out.paint(Tone::Quiet, &format!("… and {hidden} more; --json has all")) + "\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colour;
    use crate::top::tests::busy;

    #[test]
    fn several_tiers_are_shown_with_what_moved() {
        let out = Output::new(false, Colour::Never);
        let text = facts(&busy("heat"), &out);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert!(
            lines.contains(&vec!["dram", "960.0", "MiB", "960.0", "MiB", "1.0", "GiB", "/pool"]),
            "{text}"
        );
        assert!(lines.contains(&vec!["file", "3.0", "GiB", "3.0", "GiB", "16.0", "GiB", "/pool"]), "{text}");
        assert!(
            text.ends_with("moved: 3.0 GiB down, 512.0 MiB up; 1 moves failed; 0 versions dropped unread\n")
        );
        let mut one = busy("heat");
        one.tiers.truncate(1);
        assert!(!facts(&one, &out).contains("POOL"));
    }
}
