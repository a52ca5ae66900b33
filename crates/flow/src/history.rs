//! What is known of the plans of a workflow from earlier runs: how long each took, and the execution modes that were
//! tried in them.
//!
//! Pure. Only runs of the same amounts on the same host count: as many ranks and steps of every component as the newest
//! one. A run that was by one plan from begin to end says how long that takes; of a run in which execution modes were
//! tried each stretch says how long its steps take, which times all steps stands for a run, less sure.

use forebay_model::plan::Plan;
use serde::Serialize;

use crate::plan::AS_THE_FILE_SAYS;
use crate::record::RunRecord;
use crate::workflow::Workflow;

/// Half of the error bar of one run by a plan, as a share: two runs differ by that.
const RUN_ERROR: f64 = 0.02;
/// Of a time that was made of a stretch of steps.
const STRETCH_ERROR: f64 = 0.05;

/// How long a plan took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Past {
    /// The plan.
    #[serde(skip)]
    pub plan: Plan,
    /// Seconds, the median.
    pub time_s: f64,
    /// Half of the error bar.
    pub error_s: f64,
    /// Whole runs that it is from; 0 where it is from steps inside others.
    pub runs: usize,
}

/// A time of a plan.
struct Sample {
    plan: Plan,
    time_s: f64,
    whole: bool,
}

/// What finished runs of the workflow say of plans; the newest run first.
pub fn history(workflow: &Workflow, runs: &[RunRecord]) -> Vec<Past> {
    let Some(newest) = runs.first() else { return Vec::new() };
    let alike = runs.iter().filter(|run| run.machine.host == newest.machine.host && is_alike(run, newest));
    let samples: Vec<Sample> = alike.flat_map(|run| samples(workflow, run)).collect();
    let mut plans: Vec<&Plan> = samples.iter().map(|s| &s.plan).collect();
    plans.sort();
    plans.dedup();
    plans.into_iter().map(|plan| past(plan, &samples)).collect()
}

/// Whether two runs moved the same amounts.
fn is_alike(run: &RunRecord, other: &RunRecord) -> bool {
    let amounts = |run: &RunRecord| -> Vec<(String, usize, u64)> {
        run.components.iter().map(|c| (c.name.clone(), c.ranks.len(), c.steps)).collect()
    };
    amounts(run) == amounts(other)
}

fn samples(workflow: &Workflow, run: &RunRecord) -> Vec<Sample> {
    let Some(file) = &run.plan else { return Vec::new() };
    let mut plan = file.plan.clone();
    if plan.tier == AS_THE_FILE_SAYS {
        plan.tier = tier_of(workflow, run).unwrap_or(plan.tier);
    }
    let stretches = run.tried.iter().flat_map(|tried| &tried.stretches);
    if stretches.clone().all(|s| s.mode == plan.mode) {
        return vec![Sample { plan, time_s: run.wall_s, whole: true }];
    }
    let steps = run.components.iter().map(|c| c.steps).max().unwrap_or(0) as f64;
    let of = |s: &crate::trials::Stretch| Sample {
        plan: Plan { mode: s.mode, ..plan.clone() },
        time_s: s.step_s * steps,
        whole: false,
    };
    stretches.map(of).collect()
}

/// The tier that the file said: what it emulates, or where the channel was.
fn tier_of(workflow: &Workflow, run: &RunRecord) -> Option<String> {
    crate::choices::emulated_tier(workflow).or_else(|| {
        let read = run.channels.iter().find(|c| c.declared && !c.readers.is_empty())?;
        (!read.tier.is_empty()).then(|| read.tier.clone())
    })
}

fn past(plan: &Plan, samples: &[Sample]) -> Past {
    let times = |whole: bool| -> Vec<f64> {
        let own = samples.iter().filter(|s| s.plan == *plan && s.whole == whole);
        let mut times: Vec<f64> = own.map(|s| s.time_s).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (whole, parts) = (times(true), times(false));
    let (times, least) = if whole.is_empty() { (parts, STRETCH_ERROR) } else { (whole.clone(), RUN_ERROR) };
    let time_s = times[times.len() / 2];
    let spread_s = (times[times.len() - 1] - times[0]) / 2.0;
    Past { plan: plan.clone(), time_s, error_s: spread_s.max(least * time_s), runs: whole.len() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Home, PlanFile};
    use crate::record::{ChannelRecord, ComponentRecord, Machine, RankRecord, State, SCHEMA};
    use crate::topology::{Node, Topology};
    use crate::trials::{Stretch, Tried, Why};
    use forebay_model::plan::{Locality, Mode};
    use std::path::{Path, PathBuf};

    pub fn workflow() -> Workflow {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nreads = [\"u\"]\n";
        Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap()
    }

    pub fn run(mode: Mode, wall_s: f64, steps: u64, tried: Option<Vec<(Mode, f64)>>) -> RunRecord {
        let topology = Topology { nodes: vec![Node { number: 0, cpus: vec![0], bytes: 0 }] };
        let plan = Plan::new(mode, Locality::Writer, AS_THE_FILE_SAYS);
        let plan = PlanFile::new(&workflow(), &topology, &plan, &Home::AsSaid).unwrap();
        let component = |name: &str| ComponentRecord {
            name: name.into(),
            steps,
            ranks: vec![RankRecord::default()],
            ..ComponentRecord::default()
        };
        let stretch = |(mode, step_s): (Mode, f64)| Stretch {
            mode,
            why: Why::Trial,
            from_version: 0,
            steps: 3,
            step_s,
            switch_s: 0.0,
        };
        RunRecord {
            schema: SCHEMA.into(),
            name: "w".into(),
            state: State::Finished,
            run_dir: PathBuf::new(),
            workflow_file: PathBuf::new(),
            machine: Machine { host: "here".into(), ..Machine::default() },
            nodes: Vec::new(),
            forebay_version: String::new(),
            start_unix_ns: 0,
            end_unix_ns: 0,
            start_ns: 0,
            end_ns: 0,
            wall_s,
            signal: None,
            failure: None,
            components: vec![component("sim"), component("ana")],
            channels: vec![ChannelRecord {
                declared: true,
                tier: "dram".into(),
                readers: vec!["ana".into()],
                ..ChannelRecord::default()
            }],
            plan: Some(plan),
            tried: tried
                .map(|all| Tried { stretches: all.into_iter().map(stretch).collect(), ..Tried::default() }),
            notes: Vec::new(),
        }
    }

    #[test]
    fn whole_runs_count_before_steps_inside_others() {
        let runs = [
            run(Mode::Parallel, 2.0, 10, None),
            run(Mode::Serial, 3.0, 10, None),
            run(Mode::Parallel, 2.2, 10, None),
            run(Mode::Parallel, 9.0, 20, None),
            run(Mode::Parallel, 4.0, 10, Some(vec![(Mode::Parallel, 0.5), (Mode::SerialPerStep, 0.3)])),
        ];
        let found = history(&workflow(), &runs);
        let of = |mode: Mode| found.iter().find(|p| p.plan.mode == mode).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|p| p.plan.tier == "dram"));
        assert_eq!((of(Mode::Parallel).time_s, of(Mode::Parallel).runs), (2.2, 2));
        assert!((of(Mode::Parallel).error_s - 0.1).abs() < 1e-9);
        assert_eq!((of(Mode::Serial).time_s, of(Mode::Serial).error_s), (3.0, RUN_ERROR * 3.0));
        assert_eq!((of(Mode::SerialPerStep).time_s, of(Mode::SerialPerStep).runs), (3.0, 0));
        assert_eq!(history(&workflow(), &[]), []);
    }
}
