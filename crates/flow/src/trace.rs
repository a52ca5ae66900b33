//! Reads what spaces trace (`forebay.trace/1`) and adds it up.
//!
//! Guarantees: a trace whose last line was cut off by a killed process is read up to there and marked; a file
//! that is no trace is skipped with a note, never an error, because a report of what is left is worth more.
//! Not here: writing traces (the space does), drawing them (`pages`).

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use forebay_space::{Error, Result};
use serde::Deserialize;

use crate::record::RunRecord;

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
    /// Wall clock minus the clock of the steps, ns.
    #[serde(default)]
    pub clock_ns: Option<i64>,
    /// How the pages of a writer's first segment came to their memory node, as the kernel said.
    #[serde(default)]
    pub placement: Option<String>,
    /// Who was to be at work when, as a writer found it in the space.
    #[serde(rename = "pace", default)]
    pub execution_mode: Option<String>,
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
    /// Time blocked in this step: for data or for free space.
    pub wait_ns: u64,
    /// Time inside put, get, commit and end of step, without waiting.
    pub op_ns: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Calls of put, get, view, commit.
    #[serde(default)]
    pub calls: u64,
    /// Objects put, got or viewed.
    #[serde(default)]
    pub objects: u64,
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
    fn shift(&mut self, by_ns: i64) {
        for step in &mut self.steps {
            for at in [&mut step.begin_ns, &mut step.ready_ns, &mut step.end_ns] {
                *at = at.saturating_add_signed(by_ns);
            }
        }
    }

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
    /// Those of a run, their times in the clock of its record. `run_dir`: where it is now.
    pub fn of_run(run_dir: &Path, record: &RunRecord) -> Result<Traces> {
        let mut traces = Traces::read(&run_dir.join("trace"))?;
        let own_ns = record.start_unix_ns as i64 - record.start_ns as i64;
        for trace in traces.all.iter_mut().filter(|_| !record.nodes.is_empty()) {
            let Some(clock_ns) = trace.header.clock_ns else { continue };
            trace.shift(clock_ns - own_ns);
        }
        Ok(traces)
    }

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

/// Longest trace that is read.
const BYTES_MAX: u64 = 1 << 30;

fn read_trace(path: &Path) -> std::result::Result<Trace, String> {
    let file = forebay_tier::plain::open_regular(path).map_err(|e| e.to_string())?;
    let bytes = file.metadata().map_err(|e| e.to_string())?.len();
    if bytes > BYTES_MAX {
        return Err(format!("{bytes} bytes, more than {BYTES_MAX} are not read"));
    }
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

impl Step {
    /// When the rank was inside its calls, as far as a trace tells: it says how long, not when. Puts are taken to
    /// lie at the end of the step, gets at its begin; both are cut at the step. In ns.
    pub fn in_calls_ns(&self, side: Side) -> (u64, u64) {
        match side {
            Side::Write => (self.end_ns.saturating_sub(self.op_ns).max(self.begin_ns), self.end_ns),
            Side::Read => (self.ready_ns, (self.ready_ns + self.op_ns).min(self.end_ns)),
        }
    }
}

/// Gigabytes per second of each version of one side of one channel: all ranks' bytes over the time in which at
/// least one of them was inside its calls. (Over the longest time of a rank would be too good where ranks share
/// cores and take turns.) Versions that moved nothing, or faster than the clock, are left out.
/// Returns (end time of the last rank in ns, GB/s), in the order of versions.
pub fn bandwidths<'a>(traces: impl Iterator<Item = &'a Trace>) -> Vec<(u64, f64)> {
    #[derive(Default)]
    struct Moved {
        bytes: u64,
        end_ns: u64,
        spans: Vec<(u64, u64)>,
    }
    let mut versions: BTreeMap<u64, Moved> = BTreeMap::new();
    for (side, step) in traces.flat_map(|t| t.steps.iter().map(|s| (t.header.side, s))) {
        let sum = versions.entry(step.version).or_default();
        sum.bytes += step.bytes;
        sum.end_ns = sum.end_ns.max(step.end_ns);
        sum.spans.push(step.in_calls_ns(side));
    }
    let rates = versions.into_values().map(|m| (m.end_ns, m.bytes, covered_ns(m.spans)));
    let moved = rates.filter(|(_, bytes, ns)| *bytes > 0 && *ns > 0);
    moved.map(|(end_ns, bytes, ns)| (end_ns, bytes as f64 / ns as f64)).collect()
}

/// Length of the union of spans.
fn covered_ns(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for (from, to) in spans {
        sum += to.saturating_sub(from.max(reached));
        reached = reached.max(to);
    }
    sum
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(rank: u32, side: Side, steps: &[(u64, u64, u64)]) -> Trace {
        let header = Header {
            schema: SCHEMA.into(),
            component: "sim".into(),
            rank,
            size: 2,
            channel: "u".into(),
            side,
            pid: rank,
            clock_ns: None,
            placement: None,
            execution_mode: None,
        };
        // (version, end, time in calls) of 1000 bytes each.
        let step = |(version, end_ns, op_ns): &(u64, u64, u64)| Step {
            version: *version,
            begin_ns: end_ns - 500,
            ready_ns: end_ns - 400,
            end_ns: *end_ns,
            wait_ns: 0,
            op_ns: *op_ns,
            bytes: 1000,
            calls: 1,
            objects: 1,
        };
        Trace { header, steps: steps.iter().map(step).collect(), truncated: false }
    }

    #[test]
    fn bandwidth_counts_the_time_in_which_anyone_moves() {
        let together = [trace(0, Side::Write, &[(0, 1000, 100)]), trace(1, Side::Write, &[(0, 1000, 100)])];
        assert_eq!(bandwidths(together.iter()), [(1000, 20.0)]);
        let in_turns = [trace(0, Side::Write, &[(0, 1000, 100)]), trace(1, Side::Write, &[(0, 1100, 100)])];
        assert_eq!(bandwidths(in_turns.iter()), [(1100, 10.0)]);
        let overlapping = [trace(0, Side::Read, &[(0, 1000, 100)]), trace(1, Side::Read, &[(0, 1050, 100)])];
        assert_eq!(bandwidths(overlapping.iter()), [(1050, 2000.0 / 150.0)]);
        let nothing = [trace(0, Side::Write, &[(0, 1000, 0)])];
        assert!(bandwidths(nothing.iter()).is_empty());
    }

    #[test]
    fn the_middle_of_values() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
    }

    #[test]
    fn damaged_traces_are_read_as_far_as_they_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let who = r#""component":"sim","rank":1,"size":2,"channel":"u","side":"w","pid":9"#;
        let head = format!("{{\"schema\":\"forebay.trace/1\",{who}}}");
        let step =
            r#"{"version":0,"begin_ns":1,"ready_ns":2,"end_ns":9,"wait_ns":1,"op_ns":3,"bytes":8,"calls":1}"#;
        let backwards = step.replace("\"ready_ns\":2", "\"ready_ns\":20");
        for (name, text) in [
            ("whole.jsonl", format!("{head}\n{step}\n")),
            ("cut.jsonl", format!("{head}\n{step}\n{{\"version\":1,")),
            ("backwards.jsonl", format!("{head}\n{backwards}\n")),
            ("other.jsonl", head.replace("trace/1", "trace/9")),
            ("empty.jsonl", String::new()),
            ("notes.txt", "no trace".to_owned()),
        ] {
            std::fs::write(dir.path().join(name), text).expect("writing");
        }
        let long = std::fs::File::create(dir.path().join("long.jsonl")).expect("a file");
        long.set_len(BYTES_MAX + 1).expect("a file with a hole");
        let traces = Traces::read(dir.path()).expect("a directory of traces");
        let mut found: Vec<(usize, bool)> = traces.all.iter().map(|t| (t.steps.len(), t.truncated)).collect();
        found.sort();
        assert_eq!(found, [(0, true), (1, false), (1, true)]);
        assert_eq!(traces.skipped.len(), 3, "{:?}", traces.skipped);
        assert!(traces.skipped.iter().any(|why| why.contains("are not read")), "{:?}", traces.skipped);
        assert!(traces.opened("sim", 1, "u", Side::Write) && !traces.opened("sim", 1, "u", Side::Read));
        assert!(Traces::read(&dir.path().join("nowhere")).expect("no traces").all.is_empty());
    }
}
