//! One run of a workflow of the bench: by a plan on the emulated platform, or alone on plain memory.
//!
//! Guarantees: nothing of a run is left behind; a run that took too long was ended, and says so. How busy the
//! processors of the whole machine were is measured beside it: an emulated medium is only one while they are idle for
//! the most part.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_flow::characterise::PerStep;
use forebay_flow::plan::{Home, AS_THE_FILE_SAYS};
use forebay_flow::record::State;
use forebay_flow::{PlanFile, RunOptions, RunRecord, Topology, Workflow};
use forebay_model::plan::{Locality, Mode, Plan};
use forebay_tier::{Error, Kind, Result};

use super::cases::Case;

/// What came of a run.
pub(crate) enum Outcome {
    /// It came to its end.
    Done(Box<Measured>),
    /// It was ended at its limit.
    TooLong,
    /// A signal ended it, and with it the bench; the exit status.
    Interrupted(i32),
}

/// A run that came to its end.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Seconds from the start of the first rank to the end of the last.
    pub time_s: f64,
    /// Share of the machine's processor time in which a processor was busy, 0 to 1.
    pub busy: f64,
    /// A step of the writers and of the readers.
    pub steps: [Option<PerStep>; 2],
}

/// A channel of this process that no other process has.
pub(crate) fn channel() -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    format!("bench-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed))
}

/// Runs the workflow `text` in `dir`.
pub(crate) fn run(dir: &Path, text: &str, plan: Option<PlanFile>) -> Result<Outcome> {
    let failed = |e| Error::io("writing a workflow of the bench", e);
    let file = dir.join("workflow.toml");
    std::fs::write(&file, text).map_err(failed)?;
    let out = dir.join("run");
    let options = RunOptions { out: Some(out.clone()), quiet: true, plan, ..RunOptions::default() };
    let before = processors();
    let ended = forebay_flow::run(&file, &options);
    let busy = busy(before, processors());
    let outcome = match ended {
        Ok(record) if record.state == State::Interrupted => Ok(Outcome::Interrupted(record.exit_code())),
        Ok(record) => Ok(Outcome::Done(Box::new(measured(&record, busy)))),
        Err(e) => match RunRecord::read(&out) {
            Ok(record) if was_too_long(&record) => Ok(Outcome::TooLong),
            _ => Err(e),
        },
    };
    std::fs::remove_dir_all(&out).map_err(|e| Error::io("removing a run of the bench", e))?;
    outcome
}

fn measured(record: &RunRecord, busy: f64) -> Measured {
    let step = |i: usize| record.components.get(i).and_then(|c| c.per_step.clone());
    Measured { time_s: record.wall_s, busy, steps: [step(0), step(1)] }
}

/// The runner ends a component at its timeout, and says so.
fn was_too_long(record: &RunRecord) -> bool {
    record.failure.as_ref().is_some_and(|f| f.code.is_none() && f.message.contains("longer than its timeout"))
}

/// A short run on plain memory, a side after the other: a step of each.
fn shortly(case: &Case, dir: &Path) -> Result<std::result::Result<[PerStep; 2], i32>> {
    let text = case.workflow(&channel(), None, None);
    let workflow = Workflow::parse(&dir.join("workflow.toml"), dir, &text)?;
    let plan = Plan::new(Mode::Serial, Locality::Writer, AS_THE_FILE_SAYS);
    let plan = PlanFile::new(&workflow, &Topology::here()?, &plan, &Home::AsSaid)?;
    let steps = match run(dir, &text, Some(plan))? {
        Outcome::Done(done) => done.steps,
        Outcome::TooLong => [None, None],
        Outcome::Interrupted(status) => return Ok(Err(status)),
    };
    match steps {
        [Some(write), Some(read)] => Ok(Ok([write, read])),
        _ => {
            Err(Error::new(Kind::Internal, "a run of the bench left no traces").with("workflow", &case.name))
        }
    }
}

/// Seconds of software of one object, written and read by one rank alone, with its copy.
pub(crate) fn software_s(case: &Case, dir: &Path) -> Result<std::result::Result<[f64; 2], i32>> {
    let found = shortly(&case.alone(), dir)?;
    Ok(found.map(|[write, read]| [write.writes.call_s_per_object, read.reads.call_s_per_object]))
}

/// Seconds until all ranks of the writers, and of the readers, are under way.
pub(crate) fn start_s(case: &Case, dir: &Path) -> Result<std::result::Result<[f64; 2], i32>> {
    Ok(shortly(&case.started(), dir)?.map(|steps| steps.map(|step| step.start_s)))
}

/// Busy and all ticks of the machine's processors since its start; zeros where they are unknown.
pub(crate) fn processors() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    ticks(text.lines().next().unwrap_or_default())
}

/// From the first line: user nice system idle iowait irq softirq steal; guests count with the users.
fn ticks(line: &str) -> (u64, u64) {
    let numbers: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let all: u64 = numbers.iter().sum();
    let idle: u64 = numbers.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// The busy share between two looks.
pub(crate) fn busy(before: (u64, u64), after: (u64, u64)) -> f64 {
    let all = after.1.saturating_sub(before.1);
    if all == 0 {
        return 0.0;
    }
    after.0.saturating_sub(before.0) as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        assert_eq!(ticks("cpu  10 20 30 400 100 5 5 30 7 8"), (100, 600));
        assert_eq!(busy((100, 600), (150, 700)), 0.5);
        assert_eq!(busy((0, 0), (0, 0)), 0.0);
    }
}
