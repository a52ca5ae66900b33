//! The report's pictures, as inline SVG whose colours come from the page's style sheet (light and dark).
//!
//! Guarantees: text stays text; a picture's size does not grow with the length of the run, because long runs are
//! binned; where bins are drawn, the share of each state in a bin is exact.
//! Not here: choosing what to show (the page), reading traces (`trace`).

use std::fmt::Write;

use maud::Markup;

use crate::drawing::{closed, escape, open_svg, text, tick_step, tick_text};

use forebay_flow::record::RankRecord;
use forebay_flow::trace::{Side, Trace};

/// Width of every picture in its own units; the page scales it.
const WIDTH: f64 = 1000.0;

/// More overlays than this in one row are drawn as shares of bins.
const OVERLAYS_EXACT_MAX: usize = 400;

/// Bins of a row that is drawn as shares.
const BINS: usize = 250;

/// More points than this in one line are drawn as mean and range of bins.
const POINTS_EXACT_MAX: usize = 400;

/// What a rank does at a moment. The order is the order of drawing and of legends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Outside of Forebay.
    Compute,
    /// In put, commit, end of step.
    Put,
    /// In get, view.
    Get,
    /// Blocked.
    Wait,
}

impl Doing {
    /// All of them.
    pub const ALL: [Doing; 4] = [Doing::Compute, Doing::Put, Doing::Get, Doing::Wait];

    /// Word in legends and name of the style.
    pub fn word(self) -> &'static str {
        match self {
            Doing::Compute => "compute",
            Doing::Put => "put",
            Doing::Get => "get",
            Doing::Wait => "wait",
        }
    }
}

/// A stretch of time in one state, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// Begin.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// State.
    pub doing: Doing,
}

/// One row of the timeline.
#[derive(Clone, Debug)]
pub struct Row {
    /// Component and rank.
    pub label: String,
    /// First row of its component.
    pub first: bool,
    /// Start and end of the process, ns.
    pub lived_ns: (u64, u64),
    /// What it did beside computing.
    pub overlays: Vec<Stretch>,
    /// How it ended, when not well.
    pub mark: Option<String>,
}

/// The stretches of one step. A trace says how long a rank waited and worked within a step, not when: waiting is
/// drawn up to the return of `begin_step`, puts up to the end of the step, gets from the step's begin on.
pub fn stretches(trace: &Trace) -> Vec<Stretch> {
    let mut out = Vec::new();
    for step in &trace.steps {
        let at_begin = step.wait_ns.min(step.ready_ns - step.begin_ns);
        let later = step.wait_ns - at_begin;
        let mut add = |from_ns: u64, to_ns: u64, doing| {
            let (from_ns, to_ns) = (from_ns.max(step.begin_ns), to_ns.min(step.end_ns));
            if to_ns > from_ns {
                out.push(Stretch { from_ns, to_ns, doing });
            }
        };
        add(step.ready_ns - at_begin, step.ready_ns, Doing::Wait);
        let (from, to) = step.in_calls_ns(trace.header.side);
        match trace.header.side {
            Side::Write => {
                add(from.saturating_sub(later), from, Doing::Wait);
                add(from, to, Doing::Put);
            }
            Side::Read => {
                add(from, to, Doing::Get);
                add(to, to + later, Doing::Wait);
            }
        }
    }
    out.sort_by_key(|s| (s.from_ns, s.to_ns));
    out
}

/// The row of one rank.
pub fn row(component: &str, rank: &RankRecord, traces: &[&Trace], first: bool, run_end_ns: u64) -> Row {
    let mut overlays: Vec<Stretch> = traces.iter().flat_map(|t| stretches(t)).collect();
    overlays.sort_by_key(|s| (s.from_ns, s.to_ns));
    let end_ns = if rank.end_ns > 0 { rank.end_ns } else { run_end_ns.max(rank.start_ns) };
    let mark = match (rank.code, rank.signal) {
        (Some(0), _) => None,
        _ if rank.ended_by_runner => Some("ended by the runner".to_owned()),
        (Some(code), _) => Some(format!("exit status {code}")),
        (None, Some(signal)) => Some(forebay_flow::launch::signal_name(signal)),
        (None, None) => None,
    };
    let label = match rank.rank {
        Some(rank) => format!("{component} {rank}"),
        None => format!("{component} files"),
    };
    Row { label, first, lived_ns: (rank.start_ns, end_ns), overlays, mark }
}

/// Vertical grid lines with seconds below.
fn time_axis(out: &mut String, left: f64, right: f64, top: f64, bottom: f64, span_s: f64) {
    let step = tick_step(span_s, 10.0);
    let ticks = (span_s / step + 1e-9).floor() as usize;
    for i in 0..=ticks {
        let value = i as f64 * step;
        let x = left + (right - left) * value / span_s;
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>"
        );
        let unit = if i == ticks { " s" } else { "" };
        text(out, x, bottom + 15.0, "tick mid", &(tick_text(value, step) + unit));
    }
}

/// What every rank did when: one row per rank.
pub fn timeline(rows: &[Row], begin_ns: u64, end_ns: u64) -> Markup {
    let longest = rows.iter().map(|r| r.label.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * 6.8 + 12.0).clamp(60.0, 220.0);
    let right = WIDTH - 14.0;
    let pitch = if rows.len() > 40 { 9.0 } else { 18.0 };
    let bar = pitch - if rows.len() > 40 { 2.0 } else { 5.0 };
    let gaps = rows.iter().filter(|r| r.first).count() as f64 * 8.0;
    let bottom = 4.0 + rows.len() as f64 * pitch + gaps;
    let span_ns = end_ns.saturating_sub(begin_ns).max(1) as f64;
    let mut out = open_svg(WIDTH, bottom + 22.0, "Timeline of every rank");
    time_axis(&mut out, left, right, 2.0, bottom, span_ns / 1e9);
    let x_of = |ns: u64| left + (right - left) * ns.saturating_sub(begin_ns) as f64 / span_ns;
    let mut y = 4.0;
    let label_every = if rows.len() > 40 { 4 } else { 1 };
    let mut since_first = 0;
    for row in rows {
        if row.first {
            y += 8.0;
            since_first = 0;
        }
        if since_first % label_every == 0 {
            text(&mut out, left - 8.0, y + bar * 0.5 + 4.0, "label end", &row.label);
        }
        since_first += 1;
        draw_row(&mut out, row, &x_of, y, bar);
        if let Some(mark) = &row.mark {
            let x = x_of(row.lived_ns.1);
            let class = if mark.starts_with("ended") { "stopped" } else { "failed" };
            let (a, b, r) = (x - 4.0, x + 4.0, bar * 0.5);
            let (above, below) = (y + r - 4.0, y + r + 4.0);
            let path = format!("M{a:.1} {above:.1}L{b:.1} {below:.1}M{a:.1} {below:.1}L{b:.1} {above:.1}");
            let _ =
                write!(out, "<path class=\"{class}\" d=\"{path}\"><title>{}</title></path>", escape(mark));
        }
        y += pitch;
    }
    closed(out)
}

fn draw_row(out: &mut String, row: &Row, x_of: &dyn Fn(u64) -> f64, y: f64, bar: f64) {
    let (from, to) = (x_of(row.lived_ns.0), x_of(row.lived_ns.1));
    let width = (to - from).max(0.5);
    let _ = write!(
        out,
        "<rect class=\"compute\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{bar:.1}\">\
         <title>{}: {:.2} s</title></rect>",
        escape(&row.label),
        row.lived_ns.1.saturating_sub(row.lived_ns.0) as f64 / 1e9
    );
    let dense = row.overlays.len() > OVERLAYS_EXACT_MAX;
    let shares = if dense { bin_shares(row) } else { Vec::new() };
    for (index, doing) in [Doing::Put, Doing::Get, Doing::Wait].into_iter().enumerate() {
        let mut path = String::new();
        if dense {
            let bin_width = width / BINS as f64;
            for (bin, share) in shares.iter().enumerate().filter(|(_, share)| share[index] > 0.002) {
                let below: f64 = share[..index].iter().sum();
                let (height, top) = (bar * share[index], y + bar * (1.0 - below - share[index]));
                let x = from + bin as f64 * bin_width;
                let _ = write!(path, "M{x:.2} {top:.2}h{bin_width:.2}v{height:.2}h-{bin_width:.2}z");
            }
        } else {
            for stretch in row.overlays.iter().filter(|s| s.doing == doing) {
                let x = x_of(stretch.from_ns);
                // Narrower than this would vanish in print.
                let w = (x_of(stretch.to_ns) - x).max(0.4);
                let _ = write!(path, "M{x:.2} {y:.1}h{w:.2}v{bar:.1}h-{w:.2}z");
            }
        }
        if !path.is_empty() {
            let _ = write!(out, "<path class=\"{}\" d=\"{path}\"/>", doing.word());
        }
    }
}

/// Share of put, get and wait in each bin of the row's life. Overlapping stretches of one rank (threads) count
/// once each, cut at the whole bin.
fn bin_shares(row: &Row) -> Vec<[f64; 3]> {
    let (from, to) = row.lived_ns;
    let bin_ns = (to.saturating_sub(from).max(1) as f64) / BINS as f64;
    let mut shares = vec![[0.0; 3]; BINS];
    for stretch in &row.overlays {
        let index = match stretch.doing {
            Doing::Put => 0,
            Doing::Get => 1,
            Doing::Wait => 2,
            Doing::Compute => continue,
        };
        let begin = stretch.from_ns.saturating_sub(from) as f64 / bin_ns;
        let end = stretch.to_ns.saturating_sub(from) as f64 / bin_ns;
        let mut bin = begin.floor() as usize;
        while bin < BINS && (bin as f64) < end {
            let inside = end.min(bin as f64 + 1.0) - begin.max(bin as f64);
            shares[bin][index] += inside;
            bin += 1;
        }
    }
    for share in &mut shares {
        let sum: f64 = share.iter().sum();
        if sum > 1.0 {
            share.iter_mut().for_each(|s| *s /= sum);
        }
    }
    shares
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// (seconds since the start, value), by time.
    pub points: Vec<(f64, f64)>,
}

/// A chart of values over time.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// What it shows, for those who cannot see it.
    pub label: &'a str,
    /// Unit beside the highest tick.
    pub unit: &'a str,
    /// The lines.
    pub series: Vec<Series>,
    /// Length of the run.
    pub span_s: f64,
    /// Held value until the next point, instead of a line to it.
    pub stepped: bool,
    /// A limit worth seeing, with its name.
    pub limit: Option<(f64, String)>,
    /// Index of the first line's colour.
    pub colour: usize,
}

impl Chart<'_> {
    /// The picture.
    pub fn svg(&self) -> Markup {
        let (left, right, top, bottom) = (64.0, WIDTH - 14.0, 24.0, 210.0);
        let values = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let highest = values.fold(0.0f64, f64::max);
        // A limit far above what was reached would flatten the line: then it is only named in the caption.
        let limit = self.limit.as_ref().filter(|(value, _)| *value > 0.0 && highest > 0.3 * value);
        let wanted = limit.map_or(highest, |(value, _)| highest.max(*value));
        let step = tick_step(if wanted > 0.0 { wanted } else { 1.0 }, 4.0);
        let y_max = (wanted / step * 1.02).ceil().max(1.0) * step;
        let span_s = self.span_s.max(1e-9);
        let x_of = |s: f64| left + (right - left) * (s / span_s).clamp(0.0, 1.0);
        let y_of = |v: f64| bottom - (bottom - top) * (v / y_max).clamp(0.0, 1.0);
        let mut out = open_svg(WIDTH, bottom + 22.0, self.label);
        time_axis(&mut out, left, right, top, bottom, span_s);
        for i in 0..=(y_max / step).round() as usize {
            let value = i as f64 * step;
            let y = y_of(value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            text(&mut out, left - 6.0, y + 4.0, "tick end", &tick_text(value, step));
        }
        text(&mut out, left - 6.0, top - 12.0, "tick end", self.unit);
        if let Some((value, name)) = limit {
            let y = y_of(*value);
            let _ = write!(
                out,
                "<line class=\"limit\" x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            text(&mut out, right - 4.0, y + 14.0, "tick end", name);
        }
        for (index, series) in self.series.iter().enumerate() {
            let colour = format!("c{}", (self.colour + index) % COLOURS);
            draw_series(&mut out, series, &colour, self.stepped, span_s, &x_of, &y_of);
        }
        closed(out)
    }
}

/// Number of line colours in the style sheet.
pub const COLOURS: usize = 7;

fn draw_series(
    out: &mut String,
    series: &Series,
    colour: &str,
    stepped: bool,
    span_s: f64,
    x_of: &dyn Fn(f64) -> f64,
    y_of: &dyn Fn(f64) -> f64,
) {
    let reduced = reduce(&series.points, span_s);
    if series.points.len() > POINTS_EXACT_MAX {
        let there = reduced.iter().map(|p| (p.0, p.3));
        let back = reduced.iter().rev().map(|p| (p.0, p.2));
        let outline: Vec<String> =
            there.chain(back).map(|(x, v)| format!("{:.1},{:.1}", x_of(x), y_of(v))).collect();
        let _ = write!(out, "<polygon class=\"band {colour}\" points=\"{}\"/>", outline.join(" "));
    }
    let mut path = String::new();
    for (index, (x, value, ..)) in reduced.iter().enumerate() {
        let (x, y) = (x_of(*x), y_of(*value));
        let _ = match (index, stepped) {
            (0, _) => write!(path, "M{x:.1} {y:.1}"),
            (_, true) => write!(path, "H{x:.1}V{y:.1}"),
            (_, false) => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    let _ = write!(
        out,
        "<path class=\"line {colour}\" d=\"{path}\"><title>{}</title></path>",
        escape(&series.name)
    );
    if !stepped && reduced.len() <= 80 {
        for (x, value, ..) in &reduced {
            let _ = write!(
                out,
                "<circle class=\"dot {colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\">\
                 <title>{}: {value:.3} at {x:.2} s</title></circle>",
                x_of(*x),
                y_of(*value),
                escape(&series.name)
            );
        }
    }
}

/// (time, mean, lowest, highest) of bins; of each point by itself when there are few.
fn reduce(points: &[(f64, f64)], span_s: f64) -> Vec<(f64, f64, f64, f64)> {
    if points.len() <= POINTS_EXACT_MAX {
        return points.iter().map(|(x, v)| (*x, *v, *v, *v)).collect();
    }
    // Count, sums of time and value, lowest, highest.
    let mut bins = [(0.0, 0.0, 0.0, f64::MAX, 0.0f64); BINS];
    for (x, value) in points {
        let bin = &mut bins[((x / span_s * BINS as f64) as usize).min(BINS - 1)];
        *bin = (bin.0 + 1.0, bin.1 + x, bin.2 + value, bin.3.min(*value), bin.4.max(*value));
    }
    let filled = bins.into_iter().filter(|bin| bin.0 > 0.0);
    filled.map(|(n, x, v, low, high)| (x / n, v / n, low, high)).collect()
}

/// One row of the latency picture: quantiles in ns.
#[derive(Clone, Debug)]
pub struct Quantiles {
    /// What.
    pub label: String,
    /// Style of its marks: `put`, `get` or `wait`.
    pub doing: Doing,
    /// Median, p90, p99 and maximum, ns.
    pub ns: [u64; 4],
}

/// Quantiles on a logarithmic scale: a bar from the median to the maximum, marks at p50, p90, p99, max.
pub fn latencies(rows: &[Quantiles]) -> Markup {
    let shown: Vec<&Quantiles> = rows.iter().filter(|r| r.ns[3] > 0).collect();
    let longest = shown.iter().map(|r| r.label.chars().count()).max().unwrap_or(0);
    let (left, right, pitch) = ((longest as f64 * 6.8 + 16.0).clamp(80.0, 330.0), WIDTH - 20.0, 22.0);
    let bottom = 8.0 + shown.len() as f64 * pitch;
    let lowest = shown.iter().map(|r| r.ns[0].max(100)).min().unwrap_or(1000);
    let highest = shown.iter().map(|r| r.ns[3]).max().unwrap_or(1_000_000).max(lowest * 10);
    let (low, high) = ((lowest as f64).log10().floor(), (highest as f64).log10().ceil());
    let x_of = |ns: u64| left + (right - left) * ((ns.max(1) as f64).log10().max(low) - low) / (high - low);
    let mut out = open_svg(WIDTH, bottom + 22.0, "Latency quantiles");
    for power in low as i32..=high as i32 {
        let ns = 10u64.pow(power.clamp(0, 18) as u32);
        let x = x_of(ns);
        let _ = write!(out, "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"2\" y2=\"{bottom:.1}\"/>");
        text(&mut out, x, bottom + 15.0, "tick mid", &power_text(power));
    }
    for (index, row) in shown.iter().enumerate() {
        let y = 8.0 + (index as f64 + 0.5) * pitch;
        let x: Vec<f64> = row.ns.iter().map(|ns| x_of(*ns)).collect();
        let class = row.doing.word();
        text(&mut out, left - 10.0, y + 4.0, "label end", &row.label);
        for (from, to, height) in [(x[0], x[1], 10.0), (x[1], x[2], 6.0), (x[2], x[3], 2.0)] {
            let width = (to - from).max(0.5);
            let top = y - height / 2.0;
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height}\"/>"
            );
        }
        let _ = write!(out, "<circle class=\"median\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/>", x[0]);
    }
    closed(out)
}

fn power_text(power: i32) -> String {
    let number = 10u64.pow(power.rem_euclid(3) as u32);
    let unit = match power.div_euclid(3) {
        0 => "ns",
        1 => "µs",
        2 => "ms",
        3 => "s",
        _ => return format!("10^{power} ns"),
    };
    format!("{number} {unit}")
}

/// A bar that shows how a component's time is shared out.
pub fn share_bar(shares: [f64; 4]) -> Markup {
    let sum: f64 = shares.iter().sum();
    let mut out = "<svg class=\"share\" viewBox=\"0 0 160 14\" preserveAspectRatio=\"none\" role=\"img\" \
                   aria-label=\"share of time\">"
        .to_owned();
    let mut x = 0.0;
    for (doing, share) in Doing::ALL.into_iter().zip(shares) {
        let width = if sum > 0.0 { 160.0 * share / sum } else { 0.0 };
        let percent = if sum > 0.0 { 100.0 * share / sum } else { 0.0 };
        let word = doing.word();
        let _ = write!(
            out,
            "<rect class=\"{word}\" x=\"{x:.2}\" y=\"0\" width=\"{width:.2}\" height=\"14\">\
             <title>{word} {percent:.1} %</title></rect>"
        );
        x += width;
    }
    closed(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_flow::trace::{Header, Step};

    fn trace(side: Side, steps: Vec<Step>) -> Trace {
        let header = Header {
            schema: forebay_flow::trace::SCHEMA.into(),
            component: "sim".into(),
            rank: 0,
            size: 1,
            channel: "u".into(),
            side,
            pid: 1,
            clock_ns: None,
            placement: None,
            execution_mode: None,
        };
        Trace { header, steps, truncated: false }
    }

    fn step(begin_ns: u64, ready_ns: u64, end_ns: u64, wait_ns: u64, op_ns: u64) -> Step {
        Step { version: 0, begin_ns, ready_ns, end_ns, wait_ns, op_ns, bytes: 1, calls: 1, objects: 1 }
    }

    #[test]
    fn stretches_lie_inside_their_step_and_add_up() {
        let step = step(100, 130, 300, 50, 40);
        for side in [Side::Write, Side::Read] {
            let all = stretches(&trace(side, vec![step]));
            let sum =
                |doing| all.iter().filter(|s| s.doing == doing).map(|s| s.to_ns - s.from_ns).sum::<u64>();
            assert_eq!(sum(Doing::Wait), 50);
            assert_eq!(sum(Doing::Put) + sum(Doing::Get), 40);
            assert!(all.iter().all(|s| s.from_ns >= 100 && s.to_ns <= 300), "{all:?}");
            assert!(all.windows(2).all(|w| w[0].to_ns <= w[1].from_ns), "overlap: {all:?}");
        }
    }

    #[test]
    fn shares_of_bins_add_up_to_the_time() {
        let steps = (0..5000u64).map(|i| step(i * 1000, i * 1000 + 100, i * 1000 + 900, 100, 300)).collect();
        let overlays = stretches(&trace(Side::Write, steps));
        let row = Row { label: "sim 0".into(), first: true, lived_ns: (0, 5_000_000), overlays, mark: None };
        let shares = bin_shares(&row);
        let mean = |i: usize| shares.iter().map(|s| s[i]).sum::<f64>() / BINS as f64;
        assert!((mean(0) - 0.3).abs() < 1e-6 && (mean(2) - 0.1).abs() < 1e-6, "{} {}", mean(0), mean(2));
        let long = timeline(&[row], 0, 5_000_000).0.len();
        assert!(long < 60_000, "a long run must not make a large picture: {long}");
    }

    #[test]
    fn long_series_keep_their_extremes() {
        let points: Vec<(f64, f64)> =
            (0..10_000).map(|i| (i as f64 / 1000.0, f64::from(i == 5000))).collect();
        let reduced = reduce(&points, 10.0);
        assert!(reduced.len() <= BINS);
        assert_eq!(reduced.iter().map(|p| p.3).fold(0.0, f64::max), 1.0);
    }
}
