//! Draws the live view: a head, a table of spaces, the selected one in detail, and the keys.
//!
//! Guarantees: pure but for the scroll position, which it keeps in range; fits any terminal, a narrow one shows
//! fewer columns. Without colour the same is said in words, bold and reverse.

use forebay_space::format_bytes;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};
use ratatui::Frame;

use super::details;
use super::look::{Asked, Seen, LONG_WAIT_NS};
use super::view::View;
use crate::output::Tone;

/// Columns of names before another column goes.
const NAME_MIN: u16 = 10;
/// Columns of names of nodes.
const NODE_MIN: u16 = 4;
const NODE_MAX: u16 = 16;
/// Rows of the table before the details have most of the screen.
const TABLE_ROWS_MIN: u16 = 4;
/// A terminal this high shows tables, keys and details; a lower one leaves the details out.
const DETAILS_HEIGHT_MIN: u16 = 6;

/// A colour with a meaning, as the rest of the command uses it.
pub fn style(tone: Tone, colour: bool) -> Style {
    let coloured = |c: Color| if colour { Style::new().fg(c) } else { Style::new() };
    match tone {
        Tone::Good => coloured(Color::Green),
        Tone::Notable => coloured(Color::Yellow),
        Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Quiet => Style::new().add_modifier(Modifier::DIM),
        Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame, view: &mut View) {
    let area = frame.area();
    let rows = u16::try_from(view.look.spaces.len()).unwrap_or(u16::MAX).saturating_add(1);
    let table_height = rows.clamp(2, (area.height / 3).max(TABLE_ROWS_MIN));
    let parts = [
        Constraint::Length(1),
        Constraint::Length(if view.look.spaces.is_empty() { 0 } else { table_height }),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, table, details, keys] = Layout::vertical(parts).areas(area);
    frame.render_widget(head_line(view, head.width), head);
    if view.look.spaces.is_empty() {
        frame.render_widget(empty(view), details);
    } else {
        spaces_table(frame, view, table);
        if details.height >= DETAILS_HEIGHT_MIN {
            space_details(frame, view, details);
        }
    }
    frame.render_widget(key_line(view, keys.width), keys);
}

fn head_line(view: &View, width: u16) -> Line<'static> {
    let count = view.look.spaces.len();
    let waits = || view.look.spaces.iter().flat_map(|s| &s.waits);
    let is_long = waits().any(|w| w.waited_ns >= LONG_WAIT_NS);
    let strong = style(Tone::Strong, view.colour);
    let mut spans = vec![
        Span::styled("forebay top", strong),
        Span::raw(format!("  {count} space{}{}, ", if count == 1 { "" } else { "s" }, on_nodes(view))),
        match waits().count() {
            0 => Span::raw("none waiting"),
            n if is_long => Span::styled(format!("{n} waiting"), style(Tone::Notable, view.colour)),
            n => Span::raw(format!("{n} waiting")),
        },
    ];
    if view.paused {
        spans.push(Span::styled("  paused", style(Tone::Notable, view.colour).add_modifier(Modifier::BOLD)));
    } else {
        spans.push(Span::raw(format!("  every {} s", view.interval.as_secs_f64())));
    }
    if let Some(trouble) = &view.trouble {
        spans.push(Span::styled(format!("  {trouble}"), style(Tone::Bad, view.colour)));
    } else if let Some(failed) = view.look.nodes.as_ref().and_then(without_answer) {
        spans.push(Span::styled(failed, style(Tone::Bad, view.colour)));
    } else if !view.look.gone.is_empty() {
        let gone = format!("  not there: {}", view.look.gone.join(", "));
        spans.push(Span::styled(gone, style(Tone::Quiet, view.colour)));
    } else {
        let used: usize = spans.iter().map(Span::width).sum();
        let root = format!("  {}", view.look.root);
        if used + root.chars().count() <= usize::from(width) {
            spans.push(Span::styled(root, style(Tone::Quiet, view.colour)));
        }
    }
    Line::from(spans)
}

/// ` on 4 nodes`; nothing of this node alone.
fn on_nodes(view: &View) -> String {
    view.look.nodes.as_ref().map_or(String::new(), |asked| match asked.count {
        1 => " on 1 node".to_string(),
        count => format!(" on {count} nodes"),
    })
}

/// Which nodes have not answered, and why the first one has not.
fn without_answer(asked: &Asked) -> Option<String> {
    let (node, why) = asked.failed.first()?;
    let more = match asked.failed.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!("  no answer from {node}{more}: {}", why.lines().next().unwrap_or_default()))
}

fn key_line(view: &View, width: u16) -> Line<'static> {
    let pause = if view.paused { "go on" } else { "pause" };
    let keys = [
        ("q", "quit".to_string()),
        ("↑↓", "space".to_string()),
        ("s", format!("sort: {}", view.sort.name())),
        ("p", pause.to_string()),
        ("PgUp PgDn", "scroll".to_string()),
        ("r", "look now".to_string()),
    ];
    let mut spans = Vec::new();
    let mut used = 0;
    for (key, what) in keys {
        let own = key.chars().count() + 1 + what.chars().count() + 3;
        if used + own > usize::from(width) + 3 {
            break;
        }
        used += own;
        spans.push(Span::styled(key, style(Tone::Strong, view.colour)));
        spans.push(Span::styled(format!(" {what}   "), style(Tone::Quiet, view.colour)));
    }
    Line::from(spans)
}

/// What to do when there is nothing to see.
fn empty(view: &View) -> Paragraph<'static> {
    let nothing = match (&view.look.nodes, view.names.is_empty()) {
        (Some(asked), _) if asked.is_first => "Waiting for the answers of the nodes.".to_string(),
        (Some(asked), _) if asked.failed.len() == asked.count => return unanswered(asked, view.colour),
        (Some(asked), true) if !asked.failed.is_empty() => {
            "No spaces on the nodes that answered.".to_string()
        }
        (Some(_), true) => "No spaces on these nodes.".to_string(),
        (None, true) => format!("No spaces in {}.", view.look.root),
        (_, false) => format!("Not there: {}.", view.names.join(", ")),
    };
    let hint = |key: &'static str, what: &'static str| {
        Line::from(vec![
            Span::styled(format!("{key:<20}"), style(Tone::Strong, view.colour)),
            Span::raw(what),
        ])
    };
    Paragraph::new(vec![
        Line::raw(""),
        Line::styled(nothing, style(Tone::Strong, view.colour)),
        Line::raw(""),
        hint("  forebay run", "starts the workflow of workflow.toml"),
        hint("  forebay init", "writes one to start from"),
        Line::raw(""),
        Line::raw("A program that opens a space shows up here by itself."),
    ])
    .wrap(Wrap { trim: false })
}

/// Why no node has answered.
fn unanswered(asked: &Asked, colour: bool) -> Paragraph<'static> {
    let mut lines = vec![
        Line::raw(""),
        Line::styled("No node has answered.", style(Tone::Strong, colour)),
        Line::raw(""),
    ];
    for (node, why) in &asked.failed {
        lines.extend(format!("{node}: {why}").lines().map(|line| Line::raw(format!("  {line}"))));
    }
    Paragraph::new(lines).wrap(Wrap { trim: false })
}

/// A column: heading, width, alignment, and what stands in it.
struct Column {
    heading: &'static str,
    width: u16,
    right: bool,
    cell: fn(&Seen, bool) -> (String, Option<Tone>),
}

/// In the order in which they are shown. NAME has what is left.
fn columns(width: u16, node: Option<u16>) -> Vec<Column> {
    let column = |heading, width, right, cell| Column { heading, width, right, cell };
    let node = node.map(|width| {
        column(
            "NODE",
            width,
            false,
            (|s, _| (s.node.clone().unwrap_or_default(), None)) as fn(&Seen, bool) -> _,
        )
    });
    let mut all = vec![
        column("STATE", 10, false, state_cell as fn(&Seen, bool) -> _),
        column("VERSION", 8, true, |s, _| (versions_cell(s), None)),
        column("UNREAD", 6, true, |s, _| (s.lag_versions().to_string(), None)),
        column("IN/s", 10, true, |s, _| (rate(s.in_bytes_per_s), None)),
        column("OUT/s", 10, true, |s, _| (rate(s.out_bytes_per_s), None)),
        column("FILL", if width >= 100 { 17 } else { 6 }, true, used_cell),
        column("WAITING", 11, true, waiting_cell),
    ];
    all.splice(0..0, node);
    // What can be done without first, while the name would not fit.
    for dispensable in ["VERSION", "OUT/s", "IN/s", "STATE", "UNREAD", "FILL"] {
        let needed: u16 = all.iter().map(|c| c.width + 1).sum();
        if needed + NAME_MIN > width {
            all.retain(|c| c.heading != dispensable);
        }
    }
    all
}

fn spaces_table(frame: &mut Frame, view: &View, area: Rect) {
    let nodes = view.look.spaces.iter().filter_map(|s| Some(s.node.as_ref()?.chars().count() as u16));
    let columns = columns(area.width, nodes.max().map(|width| width.clamp(NODE_MIN, NODE_MAX)));
    let aligned = |text: String, right: bool| {
        Line::from(text).alignment(if right { Alignment::Right } else { Alignment::Left })
    };
    let wide = area.width >= 100;
    let rows = view.look.spaces.iter().map(|seen| {
        let cells = columns.iter().map(|column| {
            let (text, tone) = (column.cell)(seen, wide);
            let look = tone.map_or(Style::new(), |tone| style(tone, view.colour));
            Cell::from(aligned(text, column.right)).style(look)
        });
        Row::new(std::iter::once(Cell::from(seen.space.name.clone())).chain(cells))
    });
    let headings = columns.iter().map(|c| Cell::from(aligned(c.heading.to_string(), c.right)));
    let head = Row::new(std::iter::once(Cell::from("NAME")).chain(headings));
    let others: u16 = columns.iter().map(|c| c.width + 1).sum();
    let longest = view.look.spaces.iter().map(|s| s.space.name.chars().count()).max().unwrap_or(0);
    // Columns far from the names they belong to are hard to read.
    let name = (longest.max(NAME_MIN.into()) as u16).min(area.width.saturating_sub(others));
    let widths = columns.iter().map(|c| Constraint::Length(c.width));
    let table = Table::new(rows, std::iter::once(Constraint::Length(name)).chain(widths))
        .header(head.style(style(Tone::Strong, view.colour)))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(view.selected));
}

/// Bytes per second as in a column whose heading says "per second".
pub fn rate(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or("-".into(), |rate| format_bytes(rate.round() as u64))
}

fn state_cell(seen: &Seen, _: bool) -> (String, Option<Tone>) {
    match seen.space.state.as_str() {
        state @ ("open" | "new") => (state.into(), Some(Tone::Good)),
        "finished" => ("finished".into(), Some(Tone::Quiet)),
        "producer died" => ("died".into(), Some(Tone::Bad)),
        state => (state.split(':').next().unwrap_or(state).into(), Some(Tone::Bad)),
    }
}

fn versions_cell(seen: &Seen) -> String {
    match seen.space.versions_complete {
        0 => "-".into(),
        complete => (complete - 1).to_string(),
    }
}

fn used_cell(seen: &Seen, wide: bool) -> (String, Option<Tone>) {
    let Some(fill) = seen.fill() else {
        return (format_bytes(seen.space.used_bytes).replace(".0 ", " "), None);
    };
    // Full is what makes producers wait.
    let tone = (fill >= 0.9).then_some(Tone::Notable);
    match wide {
        true => (format!("{} {:>4}", bar(fill, 12), percent(fill)), tone),
        false => (percent(fill), tone),
    }
}

fn waiting_cell(seen: &Seen, _: bool) -> (String, Option<Tone>) {
    match seen.waits.first() {
        None => ("-".into(), None),
        Some(longest) => {
            let text = format!("{} ({})", duration(longest.waited_ns), seen.waits.len());
            (text, (longest.waited_ns >= LONG_WAIT_NS).then_some(Tone::Notable))
        }
    }
}

/// `42 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A bar of this many characters; the last one filled as far as eighths tell.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let filled = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut text = "█".repeat(filled / 8) + EIGHTHS[filled % 8];
    let used = text.chars().count();
    text.extend(std::iter::repeat_n('░', width - used));
    text
}

/// `12 ms`, `3.4 s`, `2 min 5 s`, `3 h 4 min`: what a person compares at a glance.
pub fn duration(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{}.{} s", s, ns / 100_000_000 % 10),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

fn space_details(frame: &mut Frame, view: &mut View, area: Rect) {
    let Some(seen) = view.current() else { return };
    let (space, colour) = (&seen.space, view.colour);
    let on_node = seen.node.as_ref().map_or(String::new(), |node| format!("on {node} "));
    let title = format!(" {} {on_node}", space.name);
    let about = match space.tier.as_str() {
        "?" => String::new(),
        tier => format!(" {tier}, survives {} ", space.durability),
    };
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(style(Tone::Quiet, colour))
        .title(Line::styled(title, style(Tone::Strong, colour)))
        .title(Line::styled(about, style(Tone::Quiet, colour)).right_aligned());
    let inner = block.inner(area);
    let lines = details::lines(seen, usize::from(inner.width), colour);
    let hidden = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(inner.height);
    view.scroll = view.scroll.min(hidden);
    let below = hidden - view.scroll;
    let block = match below {
        0 => block,
        n => block.title_bottom(Line::raw(format!("… {n} more lines below (PgDn)"))),
    };
    frame.render_widget(Paragraph::new(lines).scroll((view.scroll, 0)).block(block), area);
}
