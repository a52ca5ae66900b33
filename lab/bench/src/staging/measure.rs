//! One measurement: a run of real processes, and the response times in its traces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_flow::record::State;
use forebay_flow::trace::{Side, Step, Trace, Traces};
use forebay_flow::RunOptions;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use super::cells::Cell;

/// Response times of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Response {
    /// Parts of versions that were timed: ranks times versions.
    pub samples: usize,
    pub median_s: f64,
    /// A tenth is below.
    pub low_s: f64,
    /// A tenth is above.
    pub high_s: f64,
    /// Median of the time spent waiting: of a writer for free space, which is in its response; of a reader for the
    /// version, which is before it.
    pub waiting_median_s: f64,
    /// Median over versions: all its bytes over the time from the first rank's beginning to the last one's end.
    pub bytes_per_s: f64,
}

/// How the run ended.
pub(crate) enum Measured {
    /// With these times.
    Done { write: Response, read: Option<Response> },
    /// By a signal; the exit status.
    Interrupted(i32),
}

/// Runs the cell. Nothing of it is left behind.
pub(crate) fn measure(cell: &Cell) -> Result<Measured> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let failed = |e| Error::io("making a directory for the runs of the benchmark", e);
    let dir = tempfile::Builder::new().prefix("forebay-staging-").tempdir().map_err(failed)?;
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let channel = format!("staging-{}-{number}", std::process::id());
    let file = dir.path().join("workflow.toml");
    std::fs::write(&file, cell.workflow(&channel)).map_err(failed)?;
    let options = RunOptions { out: Some(dir.path().join("run")), quiet: true, ..RunOptions::default() };
    let record = forebay_flow::run(&file, &options)?;
    if record.state == State::Interrupted {
        return Ok(Measured::Interrupted(record.exit_code()));
    }
    let traces = Traces::read(&record.run_dir.join("trace"))?;
    let side = |side: Side, ranks: usize| {
        let of_side: Vec<&Trace> = traces
            .all
            .iter()
            .filter(|t| t.header.side == side && t.header.channel.ends_with(&channel))
            .collect();
        response(&of_side, ranks, cell, side)
    };
    let write = side(Side::Write, cell.writers)?;
    let read = if cell.readers > 0 { Some(side(Side::Read, cell.readers)?) } else { None };
    Ok(Measured::Done { write, read })
}

/// When a rank's part of a version began: when it was asked to write, or when the wait for the version was over.
fn began(step: &Step, side: Side) -> u64 {
    match side {
        Side::Write => step.begin_ns,
        Side::Read => step.begin_ns + step.wait_ns,
    }
}

fn response(traces: &[&Trace], ranks: usize, cell: &Cell, side: Side) -> Result<Response> {
    let steps: Vec<&Step> = traces.iter().flat_map(|t| &t.steps).collect();
    let payload: u64 = steps.iter().map(|s| s.bytes).sum();
    if steps.len() != ranks * cell.steps as usize || payload < cell.version_bytes() * cell.steps {
        return Err(Error::new(Kind::Internal, "the traces of a run are not whole")
            .with("steps", steps.len())
            .with("ranks", ranks)
            .with("payload_bytes", payload));
    }
    let times = sorted(steps.iter().map(|s| s.end_ns.saturating_sub(began(s, side)) as f64 / 1e9));
    let waits = sorted(steps.iter().map(|s| s.wait_ns as f64 / 1e9));
    let mut versions: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for step in &steps {
        let (first, last) = versions.entry(step.version).or_insert((u64::MAX, 0));
        (*first, *last) = ((*first).min(began(step, side)), (*last).max(step.end_ns));
    }
    let rate = |(first, last): &(u64, u64)| {
        cell.version_bytes() as f64 * 1e9 / last.saturating_sub(*first).max(1) as f64
    };
    let rates = sorted(versions.values().map(rate));
    Ok(Response {
        samples: times.len(),
        median_s: part(&times, 0.5),
        low_s: part(&times, 0.1),
        high_s: part(&times, 0.9),
        waiting_median_s: part(&waits, 0.5),
        bytes_per_s: part(&rates, 0.5),
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The value that this part of all are below.
pub(crate) fn part(sorted: &[f64], below: f64) -> f64 {
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * below).round() as usize).copied().unwrap_or(0.0)
}
