//! Turns a run directory into one self-contained HTML file.
//!
//! Guarantees: nothing is loaded from outside; pictures are SVG and embedded PNG; it reads in light, dark and
//! print, and without scripts; whatever is missing in the run directory (no trace, no samples, a failed run)
//! leaves its section out or says so, and the page is written all the same.
//! Not here: comparing runs.
//!
//! Every number is *measured*: taken in this run on the machine that the page names.

mod pictures;
mod plots;
mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_space::{format_bytes, Result};
use hdrhistogram::Histogram;
use maud::{display, html, Markup, Render};

use self::plots::{latencies, row, share_bar, timeline, Chart, Doing, Quantiles, Row, Series, COLOURS};
use crate::page::{legend, section, table, whole};
use forebay_flow::progress::{in_ms, in_rate, read_fill, Fill};
use forebay_flow::record::{replace_file, ChannelRecord, ComponentRecord, RunRecord, State};
use forebay_flow::trace::{bandwidths, median, Side, Trace, Traces};

/// Name of the file in the run directory.
pub const FILE: &str = "report.html";

/// Rows of the timeline; more ranks are left out, evenly.
const ROWS_MAX: usize = 160;

/// Pool fill charts; further spaces are in the table only.
const FILL_CHARTS_MAX: usize = 8;

/// Writes `report.html` of a run directory and returns its path.
///
/// # Errors
/// All of [`RunRecord::read`], and those of reading and writing files.
pub fn report(run_dir: &Path) -> Result<PathBuf> {
    let record = RunRecord::read(run_dir)?;
    let traces = Traces::of_run(run_dir, &record)?;
    let fill = read_fill(&run_dir.join("fill.jsonl"));
    let page = Page { record: &record, traces: &traces, fill: &fill, dir: run_dir };
    let file = run_dir.join(FILE);
    replace_file(&file, page.html().as_bytes())?;
    Ok(file)
}

/// All that the page is made of.
struct Page<'a> {
    record: &'a RunRecord,
    traces: &'a Traces,
    fill: &'a [Fill],
    dir: &'a Path,
}

/// One side of one channel in one component.
struct Flow<'a> {
    component: &'a str,
    channel: &'a str,
    side: Side,
    traces: Vec<&'a Trace>,
}

impl Flow<'_> {
    fn verb(&self) -> Doing {
        match self.side {
            Side::Write => Doing::Put,
            Side::Read => Doing::Get,
        }
    }

    fn label(&self) -> String {
        format!("{} {} {}", self.component, self.verb().word(), self.channel)
    }
}

impl Page<'_> {
    fn html(&self) -> String {
        let flows = self.flows();
        let body = html! {
            (self.heading())
            (self.failure())
            (self.components())
            (pictures::pictures(self.dir))
            (self.timeline())
            (self.traffic(&flows))
            (self.bandwidth(&flows))
            (self.latency(&flows))
            (self.pool_fill())
            (self.channels())
            @if let Some(tried) = &self.record.tried { (trials::trials(tried)) }
            (self.notes())
            (self.footer())
        };
        let title = format!("{} · Forebay run", self.record.name);
        whole(&title, include_str!("run.css"), &body, Some(include_str!("run.js")))
    }

    /// Components that put or got something, by channel and side, declared channels first.
    fn flows(&self) -> Vec<Flow<'_>> {
        let mut groups: BTreeMap<(bool, usize, &str, Side), Vec<&Trace>> = BTreeMap::new();
        for trace in &self.traces.all {
            let header = &trace.header;
            let place = self.record.components.iter().position(|c| c.name == header.component);
            let declared = self.record.channels.iter().any(|c| c.declared && c.name == header.channel);
            let key = (!declared, place.unwrap_or(usize::MAX), header.channel.as_str(), header.side);
            groups.entry(key).or_default().push(trace);
        }
        let named = groups.into_values().filter(|traces| !traces.is_empty());
        named
            .map(|traces| {
                let header = &traces[0].header;
                Flow { component: &header.component, channel: &header.channel, side: header.side, traces }
            })
            .collect()
    }

    fn channel(&self, name: &str) -> Option<&ChannelRecord> {
        self.record.channels.iter().find(|c| c.name == name)
    }

    fn heading(&self) -> Markup {
        let record = self.record;
        let (state, word) = match (record.state, record.signal) {
            (State::Finished, _) => ("finished", "finished".to_owned()),
            (State::Failed, _) => ("failed", "failed".to_owned()),
            (State::Interrupted, Some(n)) => {
                ("failed", format!("ended by {}", forebay_flow::launch::signal_name(n)))
            }
            (State::Interrupted, None) => ("failed", "interrupted".to_owned()),
            (State::Running, _) => ("running", "no end recorded".to_owned()),
        };
        html! {
            header {
                h1 { (record.name) }
                span class={ "badge " (state) } { (word) }
                p.flow { (self.flow_sentence()) }
                p.machine { (self.machine()) }
                (self.tiles())
            }
        }
    }

    /// When and where it ran.
    fn machine(&self) -> String {
        let machine = &self.record.machine;
        let start = self.record.start_unix_ns / 1_000_000_000;
        let memory =
            if machine.memory_bytes > 0 { format_bytes(machine.memory_bytes) } else { String::new() };
        let cores = if machine.cores == 1 { "1 core".to_owned() } else { format!("{} cores", machine.cores) };
        let facts = [
            readable_time(start),
            machine.host.clone(),
            machine.processor.clone(),
            cores,
            memory,
            machine.kernel.clone(),
        ];
        facts.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(" · ")
    }

    /// `simulation (4 ranks) → field → analysis (3 ranks)`, one line per channel.
    fn flow_sentence(&self) -> Markup {
        let named = |name: &str| {
            let component = self.record.components.iter().find(|c| c.name == name);
            let ranks = component.map_or(0, |c| c.ranks.iter().filter(|r| r.rank.is_some()).count());
            html! { b { (name) } " (" (ranks) @if ranks == 1 { " rank)" } @else { " ranks)" } }
        };
        let list = |names: &mut dyn Iterator<Item = &str>| {
            html! { @for (i, name) in names.enumerate() { @if i > 0 { ", " } (named(name)) } }
        };
        let declared: Vec<&ChannelRecord> = self.record.channels.iter().filter(|c| c.declared).collect();
        if declared.is_empty() {
            return list(&mut self.record.components.iter().map(|c| c.name.as_str()));
        }
        html! {
            @for (i, channel) in declared.iter().enumerate() {
                @if i > 0 { br; }
                (named(&channel.writer)) " → " span.channel { (channel.name) } " → "
                @if channel.readers.is_empty() { "none" }
                (list(&mut channel.readers.iter().map(String::as_str)))
            }
        }
    }

    fn tiles(&self) -> Markup {
        let record = self.record;
        let steps = record.components.iter().map(|c| c.steps).max().unwrap_or(0);
        let declared = |trace: &&Trace| self.channel(&trace.header.channel).is_some_and(|c| c.declared);
        let moved: u64 = self.traces.all.iter().filter(declared).map(|t| t.totals().bytes).sum();
        let side = |side: Side| {
            let traces = self.traces.all.iter().filter(declared).filter(move |t| t.header.side == side);
            median(bandwidths(traces).into_iter().map(|p| p.1))
        };
        let (wait, all) = record
            .components
            .iter()
            .fold((0.0, 0.0), |(wait, all), c| (wait + c.wait_s, all + c.wait_s + c.io_s + c.compute_s));
        let mut tiles = vec![(in_ms(record.wall_s * 1e3), "run time".to_owned())];
        if steps > 0 {
            tiles.push((steps.to_string(), "steps".to_owned()));
        }
        if moved > 0 {
            tiles.push((format_bytes(moved), "written and read".to_owned()));
        }
        for (word, rate) in [("put", side(Side::Write)), ("get", side(Side::Read))] {
            if let Some(rate) = rate {
                tiles.push((in_rate(rate), format!("{word}, median of steps")));
            }
        }
        if all > 0.0 {
            tiles.push((format!("{:.1} %", 100.0 * wait / all), "of rank time waiting".to_owned()));
        }
        html! {
            div.tiles { @for (value, label) in tiles { div.tile { b { (value) } span { (label) } } } }
        }
    }

    fn failure(&self) -> Markup {
        let Some(failure) = &self.record.failure else { return Markup::default() };
        html! {
            section id="failure" class="failure" {
                p { (failure.message) }
                @if failure.log_tail.trim().is_empty() {
                    div.what { "its standard error is empty" }
                } @else {
                    pre { (failure.log_tail) }
                }
                div.what { (display(failure.log.display())) }
            }
        }
    }

    fn components(&self) -> Markup {
        let rows = self.record.components.iter().map(|component| {
            let ranks: Vec<_> = component.ranks.iter().filter(|r| r.rank.is_some()).collect();
            let start = ranks.iter().map(|r| r.start_ns).min().unwrap_or(0);
            let end = ranks.iter().map(|r| r.end_ns).max().unwrap_or(0);
            let (put_s, get_s, wait_s) = self.sides(component);
            [
                component.name.render(),
                ranks.len().render(),
                component.steps.render(),
                in_ms(end.saturating_sub(start) as f64 / 1e6).render(),
                in_ms(component.compute_s * 1e3).render(),
                in_ms(component.io_s * 1e3).render(),
                in_ms(component.wait_s * 1e3).render(),
                share_bar([component.compute_s, put_s, get_s, wait_s]),
            ]
        });
        let titles =
            ["component", "#ranks", "#steps", "#run time", "#compute", "#put / get", "#wait", "share"];
        section(
            "components",
            "Where the time went",
            "Time of all ranks of a component together, measured: compute is what lies outside of \
             Forebay; put/get is inside its calls; wait is blocked, for data or for free space.",
            &html! {
                (legend(Doing::ALL.map(|d| (d.word(), d.word()))))
                (table(titles, &rows.collect::<Vec<_>>()))
            },
        )
    }

    /// Seconds in put, in get, and waiting.
    fn sides(&self, component: &ComponentRecord) -> (f64, f64, f64) {
        let sum = |side: Side| {
            let mine = self.traces.of(&component.name).filter(move |t| t.header.side == side);
            mine.map(|t| t.totals().op_ns).sum::<u64>() as f64 / 1e9
        };
        (sum(Side::Write), sum(Side::Read), component.wait_s)
    }

    fn timeline(&self) -> Markup {
        let end_ns =
            self.record.components.iter().flat_map(|c| &c.ranks).map(|r| r.end_ns).max().unwrap_or(0);
        let end_ns = end_ns.max(self.record.end_ns.min(end_ns + 1));
        let mut rows: Vec<Row> = Vec::new();
        for component in &self.record.components {
            for (index, rank) in component.ranks.iter().enumerate() {
                let helper = rank.rank.is_none();
                let mine: Vec<&Trace> = self
                    .traces
                    .of(&component.name)
                    .filter(|t| {
                        if t.header.pid > 0 {
                            t.header.pid == rank.pid
                        } else {
                            !helper && Some(t.header.rank) == rank.rank
                        }
                    })
                    .collect();
                rows.push(row(&component.name, rank, &mine, index == 0, end_ns));
            }
        }
        let Some(begin_ns) = rows.iter().map(|r| r.lived_ns.0).min() else { return Markup::default() };
        let all = rows.len();
        if all > ROWS_MAX {
            let every = all.div_ceil(ROWS_MAX);
            rows = rows
                .into_iter()
                .enumerate()
                .filter(|(i, r)| r.first || i % every == 0)
                .map(|(_, r)| r)
                .collect();
        }
        let shown = if rows.len() < all {
            format!(" {} of {all} ranks are shown.", rows.len())
        } else {
            String::new()
        };
        let text = format!(
            "One row per rank, from the start of its process to its end. In rows of many steps the \
             height of a colour is its share of the time there. A cross marks a process that did not \
             end well.{shown}"
        );
        let body = html! {
            (legend(Doing::ALL.map(|d| (d.word(), d.word()))))
            (timeline(&rows, begin_ns, end_ns))
        };
        section("timeline", "Timeline", &text, &body)
    }

    fn traffic(&self, flows: &[Flow<'_>]) -> Markup {
        if flows.is_empty() {
            let what = "No component traced a step: none opened a channel, or none ended a step.";
            return section("traffic", "Traffic", what, &Markup::default());
        }
        let titles = [
            "component",
            "",
            "channel",
            "#ranks",
            "#steps",
            "#bytes",
            "#per step, slowest rank",
            "#wait per step",
            "#bandwidth, median",
            "survives",
        ];
        let rows: Vec<[Markup; 10]> = flows.iter().map(|flow| self.traffic_of(flow)).collect();
        section(
            "traffic",
            "Traffic",
            "Per component and channel. Bandwidth of a step: bytes of all ranks over the time in \
             which at least one of them was in its calls. An acknowledged write survives what the \
             last column says.",
            &table(titles, &rows),
        )
    }

    /// A row of the table.
    fn traffic_of(&self, flow: &Flow<'_>) -> [Markup; 10] {
        let totals: Vec<_> = flow.traces.iter().map(|t| t.totals()).collect();
        let ranks: BTreeSet<u32> = flow.traces.iter().map(|t| t.header.rank).collect();
        let steps = totals.iter().map(|t| t.steps).max().unwrap_or(0);
        let bytes: u64 = totals.iter().map(|t| t.bytes).sum();
        let slowest = |pick: fn(&forebay_flow::trace::Step) -> u64| {
            let mut longest: BTreeMap<u64, u64> = BTreeMap::new();
            for step in flow.traces.iter().flat_map(|t| &t.steps) {
                let most = longest.entry(step.version).or_default();
                *most = pick(step).max(*most);
            }
            let ns = median(longest.into_values().map(|ns| ns as f64));
            or_dash(&ns.map_or(String::new(), |ns| in_ms(ns / 1e6)))
        };
        let rate = median(bandwidths(flow.traces.iter().copied()).into_iter().map(|p| p.1));
        let measured = |rate| html! { (in_rate(rate)) " " span.measured { "measured" } };
        [
            flow.component.render(),
            flow.verb().word().render(),
            flow.channel.render(),
            ranks.len().render(),
            steps.render(),
            format_bytes(bytes).render(),
            slowest(|s| s.op_ns),
            slowest(|s| s.wait_ns),
            rate.map_or_else(|| or_dash(""), measured),
            or_dash(self.channel(flow.channel).map_or("", |c| &c.durability)),
        ]
    }

    fn bandwidth(&self, flows: &[Flow<'_>]) -> Markup {
        let span_s = self.span_s();
        let mut series = Vec::new();
        for flow in flows {
            let points: Vec<(f64, f64)> = bandwidths(flow.traces.iter().copied())
                .into_iter()
                .map(|(end_ns, rate)| (self.since_start_s(end_ns), rate))
                .collect();
            // One point says nothing over time; the table has it.
            if points.len() > 1 {
                series.push(Series { name: flow.label(), points });
            }
        }
        if series.is_empty() {
            return Markup::default();
        }
        // Helper spaces move far less: a chart of their own, or they would be a line on the axis.
        let of_declared = |s: &Series| {
            flows.iter().any(|f| f.label() == s.name && self.channel(f.channel).is_some_and(|c| c.declared))
        };
        let (mut declared, mut helpers): (Vec<Series>, Vec<Series>) =
            series.into_iter().partition(of_declared);
        declared.truncate(COLOURS);
        helpers.truncate(COLOURS);
        let first = declared.len();
        let chart = |label, series: Vec<Series>, colour: usize| {
            let style = |i: usize| format!("c{}", (colour + i) % COLOURS);
            let names: Vec<(String, &str)> =
                series.iter().enumerate().map(|(i, s)| (style(i), s.name.as_str())).collect();
            let legend = legend(names.iter().map(|(style, name)| (style.as_str(), *name)));
            let unit = "GB/s";
            html! {
                @if !series.is_empty() {
                    (legend)
                    (Chart { label, unit, series, span_s, stepped: false, limit: None, colour }.svg())
                }
            }
        };
        section(
            "bandwidth",
            "Bandwidth over time",
            "Each point is one step, where its last rank ended it; measured while calls were running, \
             waiting not counted. Of many steps the line is the mean and the band the range.",
            &html! {
                (chart("Bandwidth of channels over time", declared, 0))
                (chart("Bandwidth of helper spaces over time", helpers, first))
            },
        )
    }

    fn latency(&self, flows: &[Flow<'_>]) -> Markup {
        let mut rows = Vec::new();
        for flow in flows {
            let steps = || flow.traces.iter().flat_map(|t| &t.steps);
            let verb = flow.verb();
            rows.push(quantiles(flow.label(), verb, steps().map(|s| s.op_ns)));
            let label = format!("{} wait {}", flow.component, flow.channel);
            rows.push(quantiles(label, Doing::Wait, steps().map(|s| s.wait_ns)));
        }
        let rows: Vec<Quantiles> = rows.into_iter().flatten().collect();
        if rows.is_empty() {
            return Markup::default();
        }
        let cells = rows.iter().map(|row| {
            let [p50, p90, p99, max] = row.ns.map(|ns| in_ms(ns as f64 / 1e6).render());
            [row.label.render(), p50, p90, p99, max]
        });
        section(
            "latency",
            "Latency",
            "Per step and rank, measured: time in calls, and time blocked. The circle is the median; \
             thick to p90, thinner to p99, thin to the longest. Both directions of one space have \
             their own rows.",
            &html! {
                (latencies(&rows))
                (table(["", "#p50", "#p90", "#p99", "#max"], &cells.collect::<Vec<_>>()))
            },
        )
    }

    fn pool_fill(&self) -> Markup {
        let mut spaces: BTreeMap<&str, Vec<&Fill>> = BTreeMap::new();
        for sample in self.fill {
            spaces.entry(&sample.channel).or_default().push(sample);
        }
        let declared = |name: &str| self.channel(name).is_some_and(|c| c.declared);
        let mut order: Vec<(&str, Vec<&Fill>)> = spaces.into_iter().filter(|(_, s)| s.len() > 1).collect();
        order.sort_by_key(|(name, _)| (!declared(name), name.to_string()));
        if order.is_empty() {
            return Markup::default();
        }
        section(
            "fill",
            "Pool fill over time",
            "Bytes in use, sampled five times a second. A pool that stays at its quota means that \
             readers are the slower side.",
            &html! {
                @for (index, (name, samples)) in order.iter().take(FILL_CHARTS_MAX).enumerate() {
                    (self.fill_of(name, samples, index))
                }
            },
        )
    }

    /// The chart of one space.
    fn fill_of(&self, name: &str, samples: &[&Fill], colour: usize) -> Markup {
        let quota = samples.last().map_or(0, |s| s.quota_bytes);
        let held = samples.iter().map(|s| s.versions_complete.saturating_sub(s.versions_oldest)).max();
        let held = held.unwrap_or(0);
        let used_max = samples.iter().map(|s| s.used_bytes).max().unwrap_or(0);
        let unit = scale_of(used_max);
        let points =
            samples.iter().map(|s| (self.since_start_s(s.t_ns), s.used_bytes as f64 / unit.0)).collect();
        let facts = format!(
            "most {} of {}, at most {held} {} held",
            format_bytes(used_max),
            if quota > 0 { format!("a quota of {}", format_bytes(quota)) } else { "no quota".to_owned() },
            if held == 1 { "version" } else { "versions" }
        );
        let chart = Chart {
            label: &format!("Pool fill of {name}"),
            unit: unit.1,
            series: vec![Series { name: name.to_string(), points }],
            span_s: self.span_s(),
            stepped: true,
            limit: (quota > 0).then(|| (quota as f64 / unit.0, "quota".to_owned())),
            colour,
        };
        html! { h3 { (name) } div.what { (facts) } (chart.svg()) }
    }

    fn channels(&self) -> Markup {
        if self.record.channels.is_empty() {
            return Markup::default();
        }
        let titles = [
            "name",
            "state",
            "#versions",
            "tier",
            "horizon",
            "survives",
            "#most used",
            "#quota",
            "retention",
            "after the run",
        ];
        let rows = self.record.channels.iter().map(|channel| {
            let quota = channel.quota_bytes;
            [
                html! { (channel.name) @if !channel.declared { " " span.unit { "helper" } } },
                or_dash(&channel.state),
                channel.versions_complete.render(),
                or_dash(if channel.kind == "files" { "files" } else { &channel.tier }),
                or_dash(&channel.horizon),
                or_dash(&channel.durability),
                format_bytes(channel.used_bytes_max).render(),
                or_dash(&if quota > 0 { format_bytes(quota) } else { String::new() }),
                or_dash(&channel.retention),
                if channel.keep { "kept" } else { "removed" }.render(),
            ]
        });
        section(
            "channels",
            "Channels",
            "Last known state. Spaces without a mark in the workflow were opened by the programs themselves.",
            &table(titles, &rows.collect::<Vec<_>>()),
        )
    }

    fn notes(&self) -> Markup {
        let body = html! {
            @if !self.record.notes.is_empty() {
                ul.notes { @for note in &self.record.notes { li { (note) } } }
            }
            @for component in &self.record.components { (self.processes(component)) }
        };
        section("processes", "Processes and notes", "", &body)
    }

    /// Those of a component.
    fn processes(&self, component: &ComponentRecord) -> Markup {
        let command = component.command.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
        let rows = component.ranks.iter().map(|rank| {
            let end = match (rank.code, rank.signal, rank.ended_by_runner) {
                (_, _, true) => "ended by the runner".to_owned(),
                (Some(code), _, _) => format!("exit status {code}"),
                (None, Some(signal), _) => forebay_flow::launch::signal_name(signal),
                (None, None, _) => "not recorded".to_owned(),
            };
            [
                rank.rank.map_or_else(|| "files".render(), |r| r.render()),
                rank.pid.render(),
                in_ms(self.since_start_s(rank.start_ns) * 1e3).render(),
                in_ms(rank.end_ns.saturating_sub(rank.start_ns) as f64 / 1e6).render(),
                end.render(),
                format_args!("{}, {}", rank.out.display(), rank.err.display()).render(),
            ]
        });
        html! {
            details {
                summary { (component.name) ": " (component.ranks.len()) " processes" }
                pre { (command) }
                (table(["rank", "#pid", "#started", "#ran", "end", "output"], &rows.collect::<Vec<_>>()))
            }
        }
    }

    fn footer(&self) -> Markup {
        let record = self.record;
        html! {
            footer {
                "Forebay " (record.forebay_version) " · " (display(record.workflow_file.display())) " · "
                (display(record.run_dir.display())) " · every number is measured in this run on this machine"
            }
        }
    }

    fn span_s(&self) -> f64 {
        let end_ns =
            self.record.components.iter().flat_map(|c| &c.ranks).map(|r| r.end_ns).max().unwrap_or(0);
        self.since_start_s(end_ns.max(self.first_start_ns() + 1))
    }

    fn first_start_ns(&self) -> u64 {
        let starts = self.record.components.iter().flat_map(|c| &c.ranks).map(|r| r.start_ns);
        starts.min().unwrap_or(self.record.start_ns)
    }

    fn since_start_s(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.first_start_ns()) as f64 / 1e9
    }
}

fn quantiles(label: String, doing: Doing, values: impl Iterator<Item = u64>) -> Option<Quantiles> {
    // Three digits are more than clocks and plots can show; the range grows by itself.
    let mut histogram = Histogram::<u64>::new(3).ok()?;
    for value in values {
        histogram.record(value).ok()?;
    }
    let at = |q: f64| histogram.value_at_quantile(q).min(histogram.max());
    (!histogram.is_empty() && histogram.max() > 0).then(|| Quantiles {
        label,
        doing,
        ns: [at(0.5), at(0.9), at(0.99), histogram.max()],
    })
}

/// `2026-11-21 11:30:00 UTC`.
fn readable_time(unix_s: u64) -> String {
    forebay_profile::date::formatted(unix_s, "%Y-%m-%d %H:%M:%S UTC")
}

fn scale_of(bytes: u64) -> (f64, &'static str) {
    match bytes {
        b if b >= 1 << 30 => ((1u64 << 30) as f64, "GiB"),
        b if b >= 1 << 20 => ((1u64 << 20) as f64, "MiB"),
        b if b >= 1 << 10 => ((1u64 << 10) as f64, "KiB"),
        _ => (1.0, "bytes"),
    }
}

/// What a cell without a text says.
fn or_dash(text: &str) -> Markup {
    if text.is_empty() { "–" } else { text }.render()
}

/// A word of a command as a shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
