//! The selected space in lines: its tiers, its readers, its processes and whom they wait for.
//!
//! Guarantees: pure; no line is longer than the width it was asked for, except single words.

use forebay_space::{format_bytes, format_versions, MemberInfo, SpaceInfo};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::draw::{bar, duration, percent, rate, style};
use super::look::{copied, share, shortened, Seen, LONG_WAIT_NS};
use crate::output::{wrapped, Tone};

/// A bar is at most this long: beyond it it is not read more exactly.
const BAR_MAX: usize = 40;
/// Columns of the label before a fact.
const LABEL: usize = 10;

/// Everything about a space, for a screen this wide.
pub fn lines(seen: &Seen, width: usize, colour: bool) -> Vec<Line<'static>> {
    let (space, now_unix_ns) = (&seen.space, seen.unix_ns);
    let mut lines = facts(space, now_unix_ns, width, colour);
    lines.extend(seen.mirror.as_ref().map(|mirror| named("copied", copied(mirror), colour)));
    lines.extend(space.tiers.iter().map(|t| tier(&t.tier, t.reserved_bytes, t.quota_bytes, width, colour)));
    lines.extend(moved(space, colour));
    lines.extend(groups(space, width, colour));
    lines.extend(members(seen, now_unix_ns, width, colour));
    lines
}

fn facts(space: &SpaceInfo, now_unix_ns: u64, width: usize, colour: bool) -> Vec<Line<'static>> {
    if space.state.starts_with("unreadable") {
        let hint = "forebay verify says what is wrong with it".to_string();
        return vec![Line::styled(space.state.clone(), style(Tone::Bad, colour)), Line::raw(hint)];
    }
    let age = duration(now_unix_ns.saturating_sub(space.created_unix_ns));
    let producer = space.producer.as_ref().map_or("no producer yet".to_string(), |p| {
        let closed = if p.closed > 0 { format!(", {} closed", p.closed) } else { String::new() };
        format!("from {}, {} of {} ranks{closed}", p.component, p.joined, p.size)
    });
    let versions = format_versions(space.versions_oldest..space.versions_complete);
    let unread = match space.oldest_unread {
        Some(first) => format!("unread {}", format_versions(first..space.versions_complete)),
        None => "all read".to_string(),
    };
    let state = format!("{}, made {age} ago, {producer}", space.state);
    let versions = format!("{versions}, {unread}, kept: {}", space.retention);
    [("state", state), ("versions", versions)]
        .into_iter()
        .flat_map(|(name, text)| {
            let text = wrapped(&text, width.saturating_sub(LABEL).max(20), 0);
            let names = std::iter::once(name).chain(std::iter::repeat(""));
            let lines = text.lines().zip(names).map(|(line, name)| named(name, line.into(), colour));
            lines.collect::<Vec<_>>()
        })
        .collect()
}

fn named(name: &str, text: String, colour: bool) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:<LABEL$}"), style(Tone::Quiet, colour)), Span::raw(text)])
}

fn tier(name: &str, used: u64, quota: u64, width: usize, colour: bool) -> Line<'static> {
    let label = Span::styled(format!("{name:<LABEL$}"), style(Tone::Quiet, colour));
    let Some(fill) = share(used, quota) else {
        return Line::from(vec![label, Span::raw(format!("{}, no quota", format_bytes(used)))]);
    };
    let text = format!("  {} of {}, {}", format_bytes(used), format_bytes(quota), percent(fill));
    let left = width.saturating_sub(LABEL + text.chars().count());
    let tone = if fill >= 0.9 { Tone::Notable } else { Tone::Good };
    Line::from(vec![label, Span::styled(bar(fill, left.min(BAR_MAX)), style(tone, colour)), Span::raw(text)])
}

/// Only where something moves, or could.
fn moved(space: &SpaceInfo, colour: bool) -> Option<Line<'static>> {
    let m = &space.moved;
    let any = m.spilled_bytes > 0 || m.promoted_bytes > 0 || m.failed > 0 || m.dropped_versions > 0;
    if space.tiers.len() < 2 && !any {
        return None;
    }
    let (down, up) = (format_bytes(m.spilled_bytes), format_bytes(m.promoted_bytes));
    let mut line = named("moved", format!("{down} down, {up} up"), colour);
    let failed = format!(", {} failed", m.failed);
    line.push_span(Span::styled(failed, if m.failed > 0 { style(Tone::Bad, colour) } else { Style::new() }));
    if m.dropped_versions > 0 {
        let dropped = format!(", {} versions dropped unread", m.dropped_versions);
        line.push_span(Span::styled(dropped, style(Tone::Notable, colour)));
    }
    Some(line)
}

fn groups(space: &SpaceInfo, width: usize, colour: bool) -> Vec<Line<'static>> {
    if space.readers.is_empty() {
        return Vec::new();
    }
    let name = name_width(space.readers.iter().map(|g| g.name.as_str()), width, 40);
    let head =
        format!("{:<name$} {:>9} {:>11} {:>7} {:>9}", "READERS", "JOINED", "UNREAD FROM", "LAG", "ENDED");
    let row = |g: &forebay_space::ReaderGroupInfo| {
        let of = |n: u32| format!("{n}/{}", g.size);
        let from = g.oldest_unread.map_or("-".into(), |v| v.to_string());
        let (joined, ended, lag) = (of(g.joined), of(g.ended), g.lag_versions);
        Line::raw(format!("{:<name$} {joined:>9} {from:>11} {lag:>7} {ended:>9}", cut(&g.name, name)))
    };
    let mut lines = vec![Line::raw(""), Line::styled(head, style(Tone::Strong, colour))];
    lines.extend(space.readers.iter().map(row));
    lines
}

/// Columns for names: as wide as the longest, as far as they fit beside `others`.
fn name_width<'a>(names: impl Iterator<Item = &'a str>, width: usize, others: usize) -> usize {
    let longest = names.map(|n| n.chars().count()).max().unwrap_or(0);
    longest.clamp(12, width.saturating_sub(others).max(12))
}

/// A name that is too long ends in `…`.
fn cut(name: &str, width: usize) -> String {
    match name.char_indices().nth(width) {
        None => name.to_string(),
        Some(_) => name.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn members(seen: &Seen, now_unix_ns: u64, width: usize, colour: bool) -> Vec<Line<'static>> {
    let members = &seen.space.members;
    if members.is_empty() {
        return Vec::new();
    }
    let title = |m: &MemberInfo| format!("{} {} {}/{}", m.role, m.component, m.rank, m.size);
    let titles: Vec<String> = members.iter().map(title).collect();
    let name = name_width(titles.iter().map(String::as_str), width, 47);
    let head = format!(
        "{:<name$} {:>7} {:>10} {:>8} {:>7}  NOW",
        "MEMBER", "VERSION", "BYTES/s", "IN CALLS", "WAITED"
    );
    let mut lines = vec![Line::raw(""), Line::styled(head, style(Tone::Strong, colour))];
    for i in order(members, now_unix_ns) {
        let member = &members[i];
        let rate = rate(seen.member_bytes_per_s.get(i).copied().flatten());
        let age_ns = now_unix_ns.saturating_sub(member.since_unix_ns);
        let part = |ns: u64| share(ns, age_ns).map_or("-".into(), |s| percent(s.min(1.0)));
        let (busy, waited) = (part(member.op_ns), part(member.wait_ns));
        let row = format!(
            "{:<name$} {:>7} {rate:>10} {busy:>8} {waited:>7}  ",
            cut(&titles[i], name),
            member.version
        );
        let (now, tone) = now(member, now_unix_ns);
        lines.push(Line::from(vec![Span::raw(row), Span::styled(now, style(tone, colour))]));
        lines.extend(reason(member, width));
    }
    lines
}

/// Who has waited long comes first, the longest wait on top; the others stay where they were, so that rows do not
/// jump while ranks take turns.
fn order(members: &[MemberInfo], now_unix_ns: u64) -> Vec<usize> {
    let place = |m: &MemberInfo| {
        let since = m.waiting_since_unix_ns.filter(|_| m.alive && m.waiting_for.is_some());
        let long = since.filter(|since| now_unix_ns.saturating_sub(*since) >= LONG_WAIT_NS);
        let role = ["writer", "reader"].iter().position(|role| *role == m.role).unwrap_or(2);
        (long.unwrap_or(u64::MAX), role, m.component.clone(), m.rank)
    };
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_cached_key(|i| place(&members[*i]));
    order
}

/// What a member does now.
fn now(member: &MemberInfo, now_unix_ns: u64) -> (String, Tone) {
    if !member.alive {
        return (format!("dead (pid {})", member.pid), Tone::Bad);
    }
    match member.waiting_for {
        None => ("runs".into(), Tone::Quiet),
        Some(_) => {
            let since = member.waiting_since_unix_ns.unwrap_or(now_unix_ns);
            let waited_ns = now_unix_ns.saturating_sub(since);
            let tone = if waited_ns >= LONG_WAIT_NS { Tone::Notable } else { Tone::Quiet };
            (format!("waits {}", duration(waited_ns)), tone)
        }
    }
}

/// For what, and who is to blame: on lines of its own, because it names ranks and processes.
fn reason(member: &MemberInfo, width: usize) -> Vec<Line<'static>> {
    let Some(reason) = member.waiting_for.as_ref().filter(|_| member.alive) else { return Vec::new() };
    let text = wrapped(&format!("└ {}", shortened(reason)), width.saturating_sub(4).max(20), 2);
    text.lines().map(|line| Line::raw(format!("  {line}"))).collect()
}
