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
use std::fmt::Write;
use std::path::{Path, PathBuf};

use forebay_space::{format_bytes, Result};
use hdrhistogram::Histogram;

use self::plots::{latencies, row, share_bar, timeline, Chart, Doing, Quantiles, Row, Series, COLOURS};
use crate::drawing::escape;
use crate::page::{head, legend, section, table_row, whole};
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
    let traces = Traces::read(&run_dir.join("trace"))?;
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
        let mut out = String::with_capacity(1 << 16);
        self.heading(&mut out);
        self.failure(&mut out);
        self.components(&mut out);
        pictures::pictures(&mut out, self.dir);
        self.timeline(&mut out);
        let flows = self.flows();
        self.traffic(&mut out, &flows);
        self.bandwidth(&mut out, &flows);
        self.latency(&mut out, &flows);
        self.pool_fill(&mut out);
        self.channels(&mut out);
        if let Some(tried) = &self.record.tried {
            trials::trials(&mut out, tried);
        }
        self.notes(&mut out);
        self.footer(&mut out);
        let title = format!("{} · Forebay run", self.record.name);
        whole(&title, include_str!("run.css"), &out, Some(include_str!("run.js")))
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

    fn heading(&self, out: &mut String) {
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
        let _ = write!(
            out,
            "<header>\n<h1>{}</h1><span class=\"badge {state}\">{}</span>\n<p class=\"flow\">{}</p>\n",
            escape(&record.name),
            escape(&word),
            self.flow_sentence()
        );
        let machine = &record.machine;
        let start = record.start_unix_ns / 1_000_000_000;
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
        let facts: Vec<String> = facts.iter().filter(|f| !f.is_empty()).map(|f| escape(f)).collect();
        let _ = writeln!(out, "<p class=\"machine\">{}</p>", facts.join(" · "));
        self.tiles(out);
        out.push_str("</header>\n");
    }

    /// `simulation (4 ranks) → field → analysis (3 ranks)`, one line per channel.
    fn flow_sentence(&self) -> String {
        let named = |name: &str| {
            let component = self.record.components.iter().find(|c| c.name == name);
            let ranks = component.map_or(0, |c| c.ranks.iter().filter(|r| r.rank.is_some()).count());
            let unit = if ranks == 1 { "rank" } else { "ranks" };
            format!("<b>{}</b> ({ranks} {unit})", escape(name))
        };
        let declared: Vec<&ChannelRecord> = self.record.channels.iter().filter(|c| c.declared).collect();
        if declared.is_empty() {
            return self.record.components.iter().map(|c| named(&c.name)).collect::<Vec<_>>().join(", ");
        }
        let line = |channel: &&ChannelRecord| {
            let readers: Vec<String> = channel.readers.iter().map(|r| named(r)).collect();
            let readers = if readers.is_empty() { "none".to_owned() } else { readers.join(", ") };
            format!(
                "{} → <span class=\"channel\">{}</span> → {readers}",
                named(&channel.writer),
                escape(&channel.name)
            )
        };
        declared.iter().map(line).collect::<Vec<_>>().join("<br>")
    }

    fn tiles(&self, out: &mut String) {
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
        out.push_str("<div class=\"tiles\">\n");
        for (value, label) in tiles {
            let _ = writeln!(
                out,
                "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                escape(&value),
                escape(&label)
            );
        }
        out.push_str("</div>\n");
    }

    fn failure(&self, out: &mut String) {
        let Some(failure) = &self.record.failure else { return };
        let _ = writeln!(
            out,
            "<section id=\"failure\" class=\"failure\">\n<p>{}</p>\n{}<div class=\"what\">{}</div>\n</section>",
            escape(&failure.message),
            preformatted(&failure.log_tail, "its standard error is empty"),
            escape(&failure.log.display().to_string())
        );
    }

    fn components(&self, out: &mut String) {
        section(
            out,
            "components",
            "Where the time went",
            "Time of all ranks of a component together, measured: compute is what lies outside of \
             Forebay; put/get is inside its calls; wait is blocked, for data or for free space.",
        );
        legend(out, &Doing::ALL.map(|d| (d.word(), d.word())));
        head(
            out,
            &["component", "#ranks", "#steps", "#run time", "#compute", "#put / get", "#wait", "share"],
        );
        for component in &self.record.components {
            let ranks: Vec<_> = component.ranks.iter().filter(|r| r.rank.is_some()).collect();
            let start = ranks.iter().map(|r| r.start_ns).min().unwrap_or(0);
            let end = ranks.iter().map(|r| r.end_ns).max().unwrap_or(0);
            let (put_s, get_s, wait_s) = self.sides(component);
            let cells = [
                escape(&component.name),
                ranks.len().to_string(),
                component.steps.to_string(),
                in_ms(end.saturating_sub(start) as f64 / 1e6),
                in_ms(component.compute_s * 1e3),
                in_ms(component.io_s * 1e3),
                in_ms(component.wait_s * 1e3),
                share_bar([component.compute_s, put_s, get_s, wait_s]),
            ];
            table_row(out, &cells, "lnnnnnnl");
        }
        out.push_str("</table></div>\n</section>\n");
    }

    /// Seconds in put, in get, and waiting.
    fn sides(&self, component: &ComponentRecord) -> (f64, f64, f64) {
        let sum = |side: Side| {
            let mine = self.traces.of(&component.name).filter(move |t| t.header.side == side);
            mine.map(|t| t.totals().op_ns).sum::<u64>() as f64 / 1e9
        };
        (sum(Side::Write), sum(Side::Read), component.wait_s)
    }

    fn timeline(&self, out: &mut String) {
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
        let Some(begin_ns) = rows.iter().map(|r| r.lived_ns.0).min() else { return };
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
        section(out, "timeline", "Timeline", &text);
        legend(out, &Doing::ALL.map(|d| (d.word(), d.word())));
        out.push_str(&timeline(&rows, begin_ns, end_ns));
        out.push_str("\n</section>\n");
    }

    fn traffic(&self, out: &mut String, flows: &[Flow<'_>]) {
        if flows.is_empty() {
            section(
                out,
                "traffic",
                "Traffic",
                "No component traced a step: none opened a channel, or none ended a step.",
            );
            out.push_str("</section>\n");
            return;
        }
        section(
            out,
            "traffic",
            "Traffic",
            "Per component and channel. Bandwidth of a step: bytes of all ranks over the time in \
             which at least one of them was in its calls. An acknowledged write survives what the \
             last column says.",
        );
        head(
            out,
            &[
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
            ],
        );
        for flow in flows {
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
                median(longest.into_values().map(|ns| ns as f64))
            };
            let rate = median(bandwidths(flow.traces.iter().copied()).into_iter().map(|p| p.1));
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
            let measured =
                |text: String| format!("{} <span class=\"measured\">measured</span>", escape(&text));
            let durability =
                self.channel(flow.channel).map(|c| c.durability.clone()).filter(|d| !d.is_empty());
            let cells = [
                escape(flow.component),
                flow.verb().word().to_owned(),
                escape(flow.channel),
                ranks.len().to_string(),
                steps.to_string(),
                format_bytes(bytes),
                or_dash(slowest(|s| s.op_ns).map(|ns| in_ms(ns / 1e6))),
                or_dash(slowest(|s| s.wait_ns).map(|ns| in_ms(ns / 1e6))),
                or_dash(rate.map(|r| measured(in_rate(r)))),
                or_dash(durability.map(|d| escape(&d))),
            ];
            table_row(out, &cells, "lllnnnnnnl");
        }
        out.push_str("</table></div>\n</section>\n");
    }

    fn bandwidth(&self, out: &mut String, flows: &[Flow<'_>]) {
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
            return;
        }
        section(
            out,
            "bandwidth",
            "Bandwidth over time",
            "Each point is one step, where its last rank ended it; measured while calls were running, \
             waiting not counted. Of many steps the line is the mean and the band the range.",
        );
        // Helper spaces move far less: a chart of their own, or they would be a line on the axis.
        let of_declared = |s: &Series| {
            flows.iter().any(|f| f.label() == s.name && self.channel(f.channel).is_some_and(|c| c.declared))
        };
        let (declared, helpers): (Vec<Series>, Vec<Series>) = series.into_iter().partition(of_declared);
        let mut colour = 0;
        for (label, group) in
            [("Bandwidth of channels over time", declared), ("Bandwidth of helper spaces over time", helpers)]
        {
            if group.is_empty() {
                continue;
            }
            let mut group = group;
            group.truncate(COLOURS);
            let names: Vec<(String, String)> = group
                .iter()
                .enumerate()
                .map(|(i, s)| (format!("c{}", (colour + i) % COLOURS), s.name.clone()))
                .collect();
            legend(out, &names.iter().map(|(c, n)| (c.as_str(), n.as_str())).collect::<Vec<_>>());
            let count = group.len();
            out.push_str(
                &Chart { label, unit: "GB/s", series: group, span_s, stepped: false, limit: None, colour }
                    .svg(),
            );
            colour += count;
        }
        out.push_str("\n</section>\n");
    }

    fn latency(&self, out: &mut String, flows: &[Flow<'_>]) {
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
            return;
        }
        section(
            out,
            "latency",
            "Latency",
            "Per step and rank, measured: time in calls, and time blocked. The circle is the median; \
             thick to p90, thinner to p99, thin to the longest. Both directions of one space have \
             their own rows.",
        );
        out.push_str(&latencies(&rows));
        head(out, &["", "#p50", "#p90", "#p99", "#max"]);
        for row in &rows {
            let cell = |ns: u64| in_ms(ns as f64 / 1e6);
            let cells =
                [escape(&row.label), cell(row.ns[0]), cell(row.ns[1]), cell(row.ns[2]), cell(row.ns[3])];
            table_row(out, &cells, "lnnnn");
        }
        out.push_str("</table></div>\n</section>\n");
    }

    fn pool_fill(&self, out: &mut String) {
        let mut spaces: BTreeMap<&str, Vec<&Fill>> = BTreeMap::new();
        for sample in self.fill {
            spaces.entry(&sample.channel).or_default().push(sample);
        }
        let declared = |name: &str| self.channel(name).is_some_and(|c| c.declared);
        let mut order: Vec<(&str, Vec<&Fill>)> = spaces.into_iter().filter(|(_, s)| s.len() > 1).collect();
        order.sort_by_key(|(name, _)| (!declared(name), name.to_string()));
        if order.is_empty() {
            return;
        }
        section(
            out,
            "fill",
            "Pool fill over time",
            "Bytes in use, sampled five times a second. A pool that stays at its quota means that \
             readers are the slower side.",
        );
        for (index, (name, samples)) in order.iter().take(FILL_CHARTS_MAX).enumerate() {
            let quota = samples.last().map_or(0, |s| s.quota_bytes);
            let held = samples
                .iter()
                .map(|s| s.versions_complete.saturating_sub(s.versions_oldest))
                .max()
                .unwrap_or(0);
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
            let _ = writeln!(out, "<h3>{}</h3><div class=\"what\">{}</div>", escape(name), escape(&facts));
            let limit = (quota > 0).then(|| (quota as f64 / unit.0, "quota".to_owned()));
            let series = vec![Series { name: name.to_string(), points }];
            let label = format!("Pool fill of {name}");
            out.push_str(
                &Chart {
                    label: &label,
                    unit: unit.1,
                    series,
                    span_s: self.span_s(),
                    stepped: true,
                    limit,
                    colour: index,
                }
                .svg(),
            );
        }
        out.push_str("\n</section>\n");
    }

    fn channels(&self, out: &mut String) {
        if self.record.channels.is_empty() {
            return;
        }
        section(
            out,
            "channels",
            "Channels",
            "Last known state. Spaces without a mark in the workflow were opened by the programs themselves.",
        );
        head(
            out,
            &[
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
            ],
        );
        for channel in &self.record.channels {
            let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { escape(text) };
            let name = match channel.declared {
                true => escape(&channel.name),
                false => format!("{} <span class=\"unit\">helper</span>", escape(&channel.name)),
            };
            let kind = if channel.kind == "files" { "files" } else { channel.tier.as_str() };
            let cells = [
                name,
                or_dash(&channel.state),
                channel.versions_complete.to_string(),
                or_dash(kind),
                or_dash(&channel.horizon),
                or_dash(&channel.durability),
                format_bytes(channel.used_bytes_max),
                if channel.quota_bytes > 0 { format_bytes(channel.quota_bytes) } else { "–".to_owned() },
                or_dash(&channel.retention),
                if channel.keep { "kept".to_owned() } else { "removed".to_owned() },
            ];
            table_row(out, &cells, "llnlllnnll");
        }
        out.push_str("</table></div>\n</section>\n");
    }

    fn notes(&self, out: &mut String) {
        section(out, "processes", "Processes and notes", "");
        if !self.record.notes.is_empty() {
            out.push_str("<ul class=\"notes\">\n");
            for note in &self.record.notes {
                let _ = writeln!(out, "<li>{}</li>", escape(note));
            }
            out.push_str("</ul>\n");
        }
        for component in &self.record.components {
            let command = component.command.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                out,
                "<details><summary>{}: {} processes</summary>\n<pre>{}</pre>",
                escape(&component.name),
                component.ranks.len(),
                escape(&command)
            );
            head(out, &["rank", "#pid", "#started", "#ran", "end", "output"]);
            for rank in &component.ranks {
                let end = match (rank.code, rank.signal, rank.ended_by_runner) {
                    (_, _, true) => "ended by the runner".to_owned(),
                    (Some(code), _, _) => format!("exit status {code}"),
                    (None, Some(signal), _) => forebay_flow::launch::signal_name(signal),
                    (None, None, _) => "not recorded".to_owned(),
                };
                let cells = [
                    rank.rank.map_or("files".to_owned(), |r| r.to_string()),
                    rank.pid.to_string(),
                    in_ms(self.since_start_s(rank.start_ns) * 1e3),
                    in_ms(rank.end_ns.saturating_sub(rank.start_ns) as f64 / 1e6),
                    escape(&end),
                    escape(&format!("{}, {}", rank.out.display(), rank.err.display())),
                ];
                table_row(out, &cells, "lnnnll");
            }
            out.push_str("</table></div>\n</details>\n");
        }
        out.push_str("</section>\n");
    }

    fn footer(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<footer>Forebay {} · {} · {} · every number is measured in this run on this machine</footer>",
            escape(&self.record.forebay_version),
            escape(&self.record.workflow_file.display().to_string()),
            escape(&self.record.run_dir.display().to_string())
        );
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

fn preformatted(text: &str, instead: &str) -> String {
    match text.trim().is_empty() {
        true => format!("<div class=\"what\">{}</div>\n", escape(instead)),
        false => format!("<pre>{}</pre>\n", escape(text)),
    }
}

/// A word of a command as a shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
