//! What is known of a workflow: the inputs of the model, from what earlier runs of it recorded.
//!
//! The model knows one component that writes and one that reads. Of several channels the one that carries most bytes is
//! taken, of several readers the one that reads most; what is left out is said. The software time of an object is what
//! its calls took, less what the tier of that run takes to move its bytes by one rank; where no profile of the node is
//! there, all of it counts as software, and that is said too.
//!
//! Pure, but for [`runs_of`], which reads the records of the runs beside a workflow file.

use forebay_model::device::{Device, OURS};
use forebay_model::forecast::Inputs;
use forebay_model::workflow as model;
use forebay_profile::Profile;
use forebay_space::{Error, Kind, Result, TierKind};

use crate::characterise::{Moved, PerStep};
use crate::choices::Load;
use crate::history::{history, Past};
use crate::record::{ComponentRecord, RunRecord, State};
use crate::workflow::{Channel, Workflow};

/// Least half of an error bar of computing, as a share: two runs differ by that at least.
const COMPUTE_ERROR_MIN: f64 = 0.02;
/// Most of it: beyond that the mean says nothing.
const COMPUTE_ERROR_MAX: f64 = 0.5;

/// Seconds of putting one small object into memory at most, by one rank: put of 2 KiB in `cargo xtask bench put --only
/// put`.
const GATHER_OBJECT_S: f64 = 1e-6;

/// What is known of a workflow.
#[derive(Clone, Debug)]
pub struct Known {
    /// As the model wants it.
    pub inputs: Inputs,
    /// How much goes through the channel.
    pub load: Load,
    /// The channel.
    pub channel: String,
    /// The component that writes it.
    pub writer: String,
    /// The component that reads most of it.
    pub reader: String,
    /// What plans took that were run before.
    pub history: Vec<Past>,
    /// What was left out or taken for something else, in sentences.
    pub remarks: Vec<String>,
}

impl Known {
    /// The same with another number of versions. What plans took for others says nothing of it.
    pub fn with_steps(mut self, steps: u32) -> Known {
        if steps != self.inputs.flow.versions {
            self.history.clear();
        }
        self.inputs.flow.versions = steps;
        self.load.versions = u64::from(steps);
        self
    }
}

/// The runs of a workflow that came to their end, whose records lie beside its file (`runs/`), the newest first.
pub fn runs_of(workflow: &Workflow) -> Vec<RunRecord> {
    let entries = workflow.dir.join("runs").read_dir().into_iter().flatten().flatten();
    let mut runs: Vec<RunRecord> = entries.filter_map(|entry| RunRecord::read(&entry.path()).ok()).collect();
    runs.retain(|run| run.name == workflow.name && run.state == State::Finished);
    runs.sort_by_key(|run| std::cmp::Reverse(run.start_unix_ns));
    runs
}

/// A component as the newest run saw it that could tell, with that run.
#[derive(Clone, Copy)]
struct Seen<'a> {
    run: &'a RunRecord,
    record: &'a ComponentRecord,
    step: &'a PerStep,
}

fn seen<'a>(runs: &'a [RunRecord], component: &str) -> Option<Seen<'a>> {
    // What objects take is that of putting each by itself.
    let gathers = |run: &&RunRecord| run.plan.as_ref().is_some_and(|plan| plan.plan.batching.is_some());
    let (batched, each): (Vec<&RunRecord>, Vec<&RunRecord>) = runs.iter().partition(gathers);
    each.into_iter().chain(batched).find_map(|run| {
        let record = run.components.iter().find(|c| c.name == component)?;
        Some(Seen { run, record, step: record.per_step.as_ref()? })
    })
}

/// The inputs of the model. `runs` are records of the workflow, the newest first; `measured` is the profile of the node
/// that they ran on.
///
/// # Errors
/// [`Kind::NotPossibleHere`] when the workflow has no channel with a reader, or no run knows its components.
pub fn known(workflow: &Workflow, runs: &[RunRecord], measured: Option<&Profile>) -> Result<Known> {
    let read: Vec<&Channel> = workflow.channels.iter().filter(|c| !c.readers.is_empty()).collect();
    if read.is_empty() {
        return Err(Error::new(Kind::NotPossibleHere, "no channel of the workflow has a reader").hint(
            "a plan describes how writers and readers share a channel; without a reader there is nothing to choose",
        ));
    }
    let unknown = |component: &str| {
        Error::new(Kind::NotPossibleHere, format!("no run of component {component} is recorded"))
            .with("runs", runs.len())
            .hint("run the workflow once with at least three steps: forebay run WORKFLOW")
    };
    let bytes =
        |c: &&Channel| seen(runs, &c.writer).map_or(0.0, |s| s.step.writes.bytes * f64::from(s.step.ranks));
    let channel = read.iter().copied().max_by(|a, b| bytes(a).total_cmp(&bytes(b))).expect("not empty");
    let writer = seen(runs, &channel.writer).ok_or_else(|| unknown(&channel.writer))?;
    let most =
        |name: &&String| seen(runs, name).map_or(0.0, |s| s.step.reads.bytes * f64::from(s.step.ranks));
    let reader_name = channel.readers.iter().max_by(|a, b| most(a).total_cmp(&most(b))).expect("not empty");
    let reader = seen(runs, reader_name).ok_or_else(|| unknown(reader_name))?;
    let mut remarks = Vec::new();
    if read.len() > 1 {
        remarks.push(format!(
            "of {} channels only {} is modelled, which carries most",
            read.len(),
            channel.name
        ));
    }
    if channel.readers.len() > 1 {
        let count = channel.readers.len();
        remarks.push(format!("of {count} readers only {reader_name} is modelled, which reads most"));
    }
    let version_bytes = writer.step.writes.bytes * f64::from(writer.step.ranks);
    let quota = channel.options.quota.map(|quota| quota as f64);
    let ahead = quota.filter(|_| version_bytes > 0.0).map(|quota| (quota / version_bytes).max(1.0) as u32);
    let flow = model::Workflow {
        versions: u32::try_from(writer.step.steps.max(1)).unwrap_or(u32::MAX),
        writer: component(workflow, &writer, &writer.step.writes, false, channel, measured, &mut remarks),
        reader: component(workflow, &reader, &reader.step.reads, true, channel, measured, &mut remarks),
        ahead,
    };
    let mut inputs = Inputs::new(flow);
    inputs.compute_error = compute_error(writer.step).max(compute_error(reader.step));
    if !is_memory(writer.run, channel) {
        // There a put is a system call, which gathering is not.
        inputs.gather_object_s = inputs.gather_object_s.min(GATHER_OBJECT_S);
    }
    inputs.start_s = [writer.step.start_s, reader.step.start_s];
    Ok(Known {
        inputs,
        load: Load {
            version_bytes: version_bytes as u64,
            object_bytes: flow.writer.object_bytes as u64,
            versions: u64::from(flow.versions),
            quota_bytes: channel.options.quota,
            spills: channel.options.spill.is_some(),
        },
        channel: channel.name.clone(),
        writer: writer.record.name.clone(),
        reader: reader.record.name.clone(),
        history: history(workflow, runs),
        remarks,
    })
}

/// What the finished runs beside the workflow file say of its largest channel; None before the first of them.
pub fn known_load(workflow: &Workflow) -> Option<Load> {
    known(workflow, &runs_of(workflow), None).ok().map(|known| known.load)
}

/// Whether a run had a channel in memory.
fn is_memory(run: &RunRecord, channel: &Channel) -> bool {
    let of = run.channels.iter().find(|c| c.name == channel.name);
    of.and_then(|c| c.tier.parse::<TierKind>().ok()).is_some_and(|tier| tier.is_memory())
}

/// The standard error of the mean computing time of a step, as a share of it.
fn compute_error(step: &PerStep) -> f64 {
    let samples = (step.steps.max(1) * u64::from(step.ranks.max(1))) as f64;
    let share =
        if step.compute_s > 0.0 { step.compute_deviation_s / step.compute_s / samples.sqrt() } else { 0.0 };
    share.clamp(COMPUTE_ERROR_MIN, COMPUTE_ERROR_MAX)
}

fn component(
    workflow: &Workflow,
    of: &Seen<'_>,
    moved: &Moved,
    reads: bool,
    channel: &Channel,
    measured: Option<&Profile>,
    remarks: &mut Vec<String>,
) -> model::Component {
    let object_bytes = if moved.objects > 0.0 { moved.bytes / moved.objects } else { 0.0 };
    let transfer_s = transfer_s(of.run, channel, object_bytes, reads, measured);
    if transfer_s.is_none() {
        let name = &of.record.name;
        remarks.push(format!(
            "{name}: moving bytes counts as software, for no profile of that run's tier is there"
        ));
    }
    model::Component {
        ranks: f64::from(of.step.ranks.max(1)),
        compute_s: of.step.compute_s,
        interleaved: false,
        spread_s: of.step.compute_deviation_s,
        in_step: workflow.components.iter().find(|c| c.name == of.record.name).is_none_or(|c| c.in_step),
        objects: moved.objects.max(1.0),
        object_bytes: object_bytes.max(1.0),
        software_s: (moved.call_s_per_object - transfer_s.unwrap_or(0.0)).max(0.0),
        software_remote_s: 0.0,
        shared: 0.0,
        polling: 0.0,
    }
}

/// What one rank alone takes to move an object on the tier that the run had its channel on.
fn transfer_s(
    run: &RunRecord,
    channel: &Channel,
    bytes: f64,
    reads: bool,
    measured: Option<&Profile>,
) -> Option<f64> {
    let kind = &run.channels.iter().find(|c| c.name == channel.name)?.tier;
    let profile = measured?;
    let tier = profile.tiers.iter().find(|t| t.kind.to_string() == *kind)?;
    let station = Device::of(profile, &tier.name, &OURS).ok()?.station;
    let way = if reads { &station.read } else { &station.write };
    Some(way.alone_s(bytes, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{run, workflow};
    use forebay_model::plan::Mode;

    /// A run in which putting an object took so long.
    fn run_with(call_s_per_object: f64, tier: &str, batching: Option<u64>) -> RunRecord {
        let mut run = run(Mode::Parallel, 1.0, 10, None);
        let moved = Moved { objects: 1000.0, bytes: 2e6, call_s: 0.0, call_s_per_object };
        for component in &mut run.components {
            component.per_step = Some(PerStep {
                ranks: 2,
                steps: 10,
                compute_s: 0.1,
                compute_deviation_s: 0.0,
                wait_s: 0.0,
                writes: moved,
                reads: moved,
                io_index: 0.0,
                start_s: 0.0,
            });
        }
        run.channels[0].name = "u".into();
        run.channels[0].tier = tier.into();
        run.plan.as_mut().unwrap().plan.batching = batching;
        run
    }

    #[test]
    fn what_objects_take_is_known_from_runs_that_put_each_by_itself() {
        let runs = [run_with(2e-7, "file", Some(1 << 20)), run_with(5e-6, "file", None)];
        let both = known(&workflow(), &runs, None).unwrap();
        assert_eq!(both.inputs.flow.writer.software_s, 5e-6);
        assert_eq!(both.load.object_bytes, 2000);
        let batched = known(&workflow(), &runs[..1], None).unwrap();
        assert_eq!(batched.inputs.flow.writer.software_s, 2e-7, "better than nothing");
    }

    #[test]
    fn ranks_are_in_step_unless_the_file_says_that_they_are_not() {
        let runs = [run_with(5e-6, "file", None)];
        let mut workflow = workflow();
        let in_step = |workflow: &Workflow| {
            let flow = known(workflow, &runs, None).unwrap().inputs.flow;
            (flow.writer.in_step, flow.reader.in_step)
        };
        assert_eq!(in_step(&workflow), (true, true));
        workflow.components[1].in_step = false;
        assert_eq!(in_step(&workflow), (true, false));
    }

    #[test]
    fn to_gather_is_no_system_call() {
        let gather = |tier| {
            let runs = [run_with(5e-6, tier, None)];
            known(&workflow(), &runs, None).unwrap().inputs.gather_object_s
        };
        assert_eq!((gather("file"), gather("dram"), gather("numa:0+1")), (GATHER_OBJECT_S, 5e-6, 5e-6));
    }
}
