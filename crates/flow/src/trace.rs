//! Reads what spaces trace (`forebay.trace/1`) and adds it up.
//!
//! Guarantees: a trace whose last line was cut off by a killed process is read up to there and marked; a file
//! that is no trace is skipped with a note, never an error, because a report of what is left is worth more.
//! Not here: writing traces (the space does), drawing them (`report_plots`).

use std::io::BufRead;
use std::path::Path;

use forebay_space::{Error, Result};
use serde::Deserialize;

/// Schema of the files read here.
pub const SCHEMA: &str = "forebay.trace/1";

/// First line of a trace.
#[derive(Clone, Debug, Deserialize)]
pub struct Header {
    /// Schema name.
    pub schema: String,
    /// Component.
    pub component: String,
    /// Rank in it.
    pub rank: u32,
    /// Number of its ranks.
    #[serde(default)]
    pub size: u32,
    /// Channel (space) name.
    pub channel: String,
    /// Writing or reading.
    pub side: Side,
    /// Process.
    #[serde(default)]
    pub pid: u32,
}

/// Side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Side {
    /// Puts.
    #[serde(rename = "w")]
    Write,
    /// Gets and views.
    #[serde(rename = "r")]
    Read,
}

/// One step of one rank on one channel. Clock: CLOCK_MONOTONIC, ns.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Step {
    /// Version.
    pub version: u64,
    /// `begin_step` was called.
    pub begin_ns: u64,
    /// `begin_step` returned.
    pub ready_ns: u64,
    /// `end_step` returned.
    pub end_ns: u64,
    /// Time blocked in this step: for data or for room.
    pub wait_ns: u64,
    /// Time inside put, get, commit and end of step, without waiting.
    pub op_ns: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Calls of put, get, view, commit.
    #[serde(default)]
    pub calls: u64,
}

/// One trace file.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Who and what.
    pub header: Header,
    /// Steps in the order they ended.
    pub steps: Vec<Step>,
    /// The last line was cut off.
    pub truncated: bool,
}

/// Sums over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Steps.
    pub steps: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Time in operations, ns.
    pub op_ns: u64,
    /// Time blocked, ns.
    pub wait_ns: u64,
}

impl Trace {
    /// Sums over this trace.
    pub fn totals(&self) -> Totals {
        self.steps.iter().fold(Totals::default(), |t, s| Totals {
            steps: t.steps + 1,
            bytes: t.bytes + s.bytes,
            op_ns: t.op_ns + s.op_ns,
            wait_ns: t.wait_ns + s.wait_ns,
        })
    }
}

/// All traces of a run, ordered by component, channel, side, rank; and what was skipped, in words.
#[derive(Debug, Default)]
pub struct Traces {
    /// The traces.
    pub all: Vec<Trace>,
    /// Files that could not be used.
    pub skipped: Vec<String>,
}

impl Traces {
    /// Reads every `*.jsonl` of a trace directory. A directory that is not there is an empty result.
    pub fn read(dir: &Path) -> Result<Traces> {
        let mut traces = Traces::default();
        let entries = match dir.read_dir() {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(traces),
            Err(e) => return Err(Error::io(format!("reading {}", dir.display()), e)),
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|ext| ext != "jsonl") {
                continue;
            }
            match read_trace(&path) {
                Ok(trace) => traces.all.push(trace),
                Err(why) => traces.skipped.push(format!("{}: {why}", path.display())),
            }
        }
        traces.all.sort_by(|a, b| {
            let key = |t: &Trace| {
                let h = &t.header;
                let first = t.steps.first().map_or(0, |s| s.begin_ns);
                (h.component.clone(), h.channel.clone(), h.side, h.rank, first)
            };
            key(a).cmp(&key(b))
        });
        traces.skipped.sort();
        Ok(traces)
    }

    /// Traces of one component.
    pub fn of<'a>(&'a self, component: &'a str) -> impl Iterator<Item = &'a Trace> {
        self.all.iter().filter(move |t| t.header.component == component)
    }

    /// Whether this rank opened this side of this channel.
    pub fn opened(&self, component: &str, rank: u32, channel: &str, side: Side) -> bool {
        self.of(component)
            .any(|t| t.header.rank == rank && t.header.channel == channel && t.header.side == side)
    }
}

fn read_trace(path: &Path) -> std::result::Result<Trace, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut lines = std::io::BufReader::new(file).lines();
    let first = lines.next().ok_or("empty")?.map_err(|e| e.to_string())?;
    let header: Header = serde_json::from_str(&first).map_err(|e| format!("no trace header: {e}"))?;
    if header.schema != SCHEMA {
        return Err(format!("another schema: {}", header.schema));
    }
    let mut trace = Trace { header, steps: Vec::new(), truncated: false };
    for line in lines {
        let parsed = line.ok().and_then(|l| serde_json::from_str::<Step>(&l).ok());
        match parsed {
            Some(step) if step.begin_ns <= step.ready_ns && step.ready_ns <= step.end_ns => {
                trace.steps.push(step)
            }
            _ => {
                trace.truncated = true;
                break;
            }
        }
    }
    Ok(trace)
}

/// Gigabytes per second of each version of one side of one channel: all ranks' bytes over the longest time any
/// rank spent in operations. Versions that moved nothing, or faster than the clock, are left out.
/// Returns (end time of the last rank in ns, GB/s), in the order of versions.
pub fn bandwidths<'a>(traces: impl Iterator<Item = &'a Trace>) -> Vec<(u64, f64)> {
    let mut versions: std::collections::BTreeMap<u64, (u64, u64, u64)> = Default::default();
    for step in traces.flat_map(|t| &t.steps) {
        let sum = versions.entry(step.version).or_default();
        *sum = (sum.0 + step.bytes, sum.1.max(step.op_ns), sum.2.max(step.end_ns));
    }
    let moved = versions.into_values().filter(|(bytes, op_ns, _)| *bytes > 0 && *op_ns > 0);
    moved.map(|(bytes, op_ns, end_ns)| (end_ns, bytes as f64 / op_ns as f64)).collect()
}

/// The middle value; `None` of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}
