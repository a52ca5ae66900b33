//! Traces: one line per step of every writer and reader, for reports. On when `FOREBAY_TRACE` names a
//! directory.
//!
//! File: `<component>.<rank>.<channel>.<w|r>.<pid>.jsonl`; its first line is the head with the schema
//! `forebay.trace/1`, then one JSON object per step. Times are CLOCK_MONOTONIC in ns, comparable on one node;
//! those of several nodes by `clock_ns` of the head.
//!
//! Guarantees: tracing never fails the program; what goes wrong is said once on stderr, and the trace ends
//! there. Lines are written at least once per second of steps and when the trace is dropped; a killed process
//! loses at most the last second, and at most its last line is cut off. Not here: what the times mean (see
//! [`TraceStep`]) beyond their names, and reading traces.

use crate::place::name::sanitised;
use forebay_config::{
    environment::{self, Lookup},
    ExecutionMode, OpenOptions,
};
use forebay_tier::clock;
use forebay_tier::host::fs::{DirBuilder, File};
use forebay_tier::process::{self, ForkMark};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Schema of the files.
pub const SCHEMA: &str = "forebay.trace/1";

/// Longest time of steps that is not yet in the file.
const FLUSH_NS: u64 = 1_000_000_000;

/// Most bytes that wait in memory.
const BUFFER_BYTES: usize = 64 << 10;

/// Most traces of the same process, channel and side; one more is not traced.
const SAME_NAME_MAX: u32 = 1000;

/// Which side of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    /// Puts.
    #[serde(rename = "w")]
    Writer,
    /// Gets and views.
    #[serde(rename = "r")]
    Reader,
}

/// Whose trace it is.
#[derive(Clone, Debug, Serialize)]
pub struct TraceHead<'a> {
    /// Component.
    pub component: &'a str,
    /// Rank in it.
    pub rank: u32,
    /// Number of its ranks.
    pub size: u32,
    /// Name of the space.
    pub channel: &'a str,
    /// Side.
    pub side: Side,
    /// How the pages of a writer's first segment came to their memory node, as the kernel says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Who may be at work when, as the space, or the process that told this rank, says.
    #[serde(rename = "pace", skip_serializing_if = "Option::is_none")]
    pub execution_mode: Option<ExecutionMode>,
}

impl<'a> TraceHead<'a> {
    /// Of a rank with these options, which are resolved.
    pub(crate) fn new(side: Side, channel: &'a str, options: &'a OpenOptions) -> TraceHead<'a> {
        TraceHead {
            component: options.component.as_deref().unwrap_or_default(),
            rank: options.rank.unwrap_or(0),
            size: options.size.unwrap_or(1),
            channel,
            side,
            placement: None,
            execution_mode: None,
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TraceStep {
    /// Version.
    pub version: u64,
    /// When `begin_step` was called.
    pub begin_ns: u64,
    /// When `begin_step` returned.
    pub ready_ns: u64,
    /// When `end_step` returned.
    pub end_ns: u64,
    /// Time blocked in this step's calls, for data or for free space.
    pub wait_ns: u64,
    /// Time inside put, get, commit and `end_step`, without the time blocked.
    pub op_ns: u64,
    /// Payload bytes put or got.
    pub bytes: u64,
    /// Number of puts, commits, gets and views.
    pub calls: u64,
    /// Objects put, got or viewed: one call may move many.
    pub objects: u64,
}

/// The trace of one writer or reader. Dropping it writes what is left.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    /// None after the first error.
    file: Option<File>,
    lines: Vec<u8>,
    flushed_ns: u64,
    /// A forked child must not write the lines of its parent again.
    mark: ForkMark,
}

impl Trace {
    /// A trace in the directory that `FOREBAY_TRACE` names; `None` when there is none, or after saying on
    /// stderr what is wrong with it.
    pub fn from_environment(head: &TraceHead<'_>, lookup: Lookup<'_>) -> Option<Trace> {
        let directory = environment::value("FOREBAY_TRACE", lookup)?;
        Trace::create(Path::new(&directory), head)
    }

    /// A trace in this directory, which is made (0700) when it is missing.
    pub fn create(directory: &Path, head: &TraceHead<'_>) -> Option<Trace> {
        match Trace::try_create(directory, head) {
            Ok(trace) => Some(trace),
            Err(e) => {
                say_once(directory, &e);
                None
            }
        }
    }

    fn try_create(directory: &Path, head: &TraceHead<'_>) -> std::io::Result<Trace> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let pid = process::pid();
        let side = if head.side == Side::Writer { "w" } else { "r" };
        let (component, channel) = (sanitised(head.component, 60), sanitised(last_part(head.channel), 100));
        let stem = format!("{component}.{}.{channel}.{side}.{pid}", head.rank);
        let (path, file) = create_new(directory, &stem)?;
        #[derive(Serialize)]
        struct Line<'a> {
            schema: &'a str,
            #[serde(flatten)]
            head: &'a TraceHead<'a>,
            pid: u32,
            /// Wall clock minus the clock of the steps, ns.
            clock_ns: i64,
        }
        let clock_ns = clock::realtime_ns() as i64 - clock::now_ns() as i64;
        let mut lines = serde_json::to_vec(&Line { schema: SCHEMA, head, pid, clock_ns })?;
        lines.push(b'\n');
        Ok(Trace { path, file: Some(file), lines, flushed_ns: 0, mark: ForkMark::here() })
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a step. Costs about a microsecond, and a write to the page cache about once a second.
    pub fn step(&mut self, step: &TraceStep) {
        if self.file.is_none() || self.mark.is_forked() {
            return;
        }
        // Writing to memory cannot fail, and a step has no value that JSON lacks.
        let _ = serde_json::to_writer(&mut self.lines, step);
        self.lines.push(b'\n');
        if self.lines.len() >= BUFFER_BYTES || step.end_ns.saturating_sub(self.flushed_ns) >= FLUSH_NS {
            self.flushed_ns = step.end_ns;
            self.flush();
        }
    }

    /// Writes what waits in memory.
    pub fn flush(&mut self) {
        if self.mark.is_forked() || self.lines.is_empty() {
            return;
        }
        if let Some(file) = &mut self.file {
            if let Err(e) = file.write_all(&self.lines) {
                say_once(&self.path, &e);
                self.file = None;
            }
        }
        self.lines.clear();
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The last part of a path, the whole of a short name.
fn last_part(channel: &str) -> &str {
    crate::place::name::display_name(channel)
}

/// A file that did not exist: a process that opens the same channel again gets a second one.
fn create_new(directory: &Path, stem: &str) -> std::io::Result<(PathBuf, File)> {
    for again in 0..SAME_NAME_MAX {
        let name = if again == 0 { format!("{stem}.jsonl") } else { format!("{stem}-{again}.jsonl") };
        let path = directory.join(name);
        match File::options().append(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Says once per process that traces are incomplete.
fn say_once(path: &Path, error: &std::io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("forebay: cannot write the trace {}: {error}; tracing is disabled", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: TraceHead<'static> = TraceHead {
        component: "sim a",
        rank: 2,
        size: 4,
        channel: "/x/heat",
        side: Side::Writer,
        placement: None,
        execution_mode: None,
    };

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_head_and_a_line_per_step() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/trace");
        let lookup = |name: &str| (name == "FOREBAY_TRACE").then(|| place.to_str().unwrap().to_string());
        let mut trace = Trace::from_environment(&HEAD, &lookup).unwrap();
        let path = trace.path().to_path_buf();
        let pid = std::process::id();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("sim_a.2.heat.w.{pid}.jsonl"));
        let step = |version: u64, end_ns: u64| TraceStep { version, end_ns, bytes: 8, ..Default::default() };
        trace.step(&step(0, 2_000_000_000));
        assert_eq!(lines(&path).len(), 2, "the first step is there at once");
        trace.step(&step(1, 2_000_000_001));
        assert_eq!(lines(&path).len(), 2, "the next one waits");
        trace.step(&step(2, 3_000_000_000));
        assert_eq!(lines(&path).len(), 4, "but no longer than a second of steps");
        trace.step(&step(3, 3_000_000_001));
        drop(trace);
        let got = lines(&path);
        assert_eq!(got[0]["schema"], SCHEMA);
        assert_eq!(got[0]["component"], "sim a");
        assert_eq!((&got[0]["rank"], &got[0]["size"], &got[0]["side"]), (&2.into(), &4.into(), &"w".into()));
        assert_eq!(got.len(), 5);
        for key in
            ["version", "begin_ns", "ready_ns", "end_ns", "wait_ns", "op_ns", "bytes", "calls", "objects"]
        {
            assert!(got[4][key].is_u64(), "{key}");
        }
    }

    #[test]
    fn the_same_channel_again_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let first = Trace::create(dir.path(), &HEAD).unwrap();
        let second = Trace::create(dir.path(), &HEAD).unwrap();
        assert_ne!(first.path(), second.path());
    }

    #[test]
    fn nothing_to_trace_and_nowhere_to_trace_to() {
        assert!(Trace::from_environment(&HEAD, &|_| None).is_none());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Trace::create(&file, &HEAD).is_none());
    }

    #[test]
    fn a_full_device_ends_the_trace_not_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let mut trace = Trace::create(dir.path(), &HEAD).unwrap();
        trace.file = File::options().write(true).open("/dev/full").ok();
        assert!(trace.file.is_some());
        for version in 0..3 {
            trace.step(&TraceStep { version, end_ns: (version + 1) * FLUSH_NS, ..Default::default() });
        }
        assert!(trace.file.is_none() && trace.lines.is_empty());
    }
}
