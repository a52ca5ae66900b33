//! `forebay bench workflows`: real workflows on an emulated platform, every plan of each, and what choosing by the
//! model is worth against the best plan and against other ways to choose.
//!
//! The platform is a throttled channel: bandwidths divided by k, delays k times as long, computing a timed sleep, the
//! sides of the channel virtual sockets. It shares no code with the model, which gets the profile that the probe of the
//! emulation measured, the parameters of the workflow, and the software time of an object from a run of it alone.
//!
//! Guarantees: all plans that are possible are run, or ended when they take several times as long as one that was;
//! runs while the machine was busy are counted as invalid, and said; with `--keep` a bench that was ended goes on where
//! it stopped. Not here: what the numbers are worth ([`super::judge`]), how they are shown ([`super::show`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use forebay_flow::advise::{advise, Advice, Wish};
use forebay_flow::choices::{choices, Choice, Load};
use forebay_flow::inputs::Known;
use forebay_flow::{PlanFile, Topology, Workflow};
use forebay_model::device::{Device, OURS};
use forebay_model::forecast::Inputs;
use forebay_model::workflow as model;
use forebay_probe::emulated::{probe, Options, BUDGET_NS};
use forebay_probe::find::Running;
use forebay_probe::machine::Machine;
use forebay_profile::saved::{write_whole, Saved};
use forebay_profile::{Profile, Tier};
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::cases::{drawn, Case, CASES, QUICK};
use super::judge::{self, Body};
use super::measure::{self, Outcome};
use super::Args;
use crate::schema;
use forebay_cli::output::Output;

/// A run is ended when it has taken so many times as long as the best one of its workflow.
const LIMIT: f64 = 3.0;
/// Half of the error bar of computing, which is a timed sleep.
const SLEEP_ERROR: f64 = 0.02;

/// The medium that is emulated, and what was measured of it.
pub(crate) struct Platform {
    /// `optane-gen1:pmem`.
    pub medium: String,
    pub k: f64,
    pub profile: Profile,
}

impl Platform {
    /// What the model was not told: gaps of the profile, and what the probe says of itself, such as questions for which
    /// it had no time.
    pub(crate) fn gaps(&self) -> Vec<String> {
        let tiers = self.profile.tiers.iter();
        let gaps = |tier: &Tier| {
            let device = Device::of(&self.profile, &tier.name, &OURS);
            device.map_or(Vec::new(), |device| device.gaps).into_iter().chain(tier.notes.clone())
        };
        tiers.flat_map(gaps).collect()
    }
}

/// What of a bench stands in its directory beside the profile.
#[derive(Serialize, Deserialize)]
struct Kept {
    medium: String,
    k: f64,
}

/// What was measured of a workflow: all that is kept of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Its parameters, so that nothing is taken for another workflow's.
    pub case: String,
    /// Seconds of software of one object, written and read.
    pub software_s: [f64; 2],
    /// Seconds until the writers, and the readers, are under way.
    pub start_s: [f64; 2],
    /// By the plan's short name.
    pub runs: BTreeMap<String, Run>,
}

/// A plan that was run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Seconds; those at which it was ended, where it was.
    pub time_s: f64,
    /// Whether it was ended, because it took so long.
    pub ended: bool,
    /// Share of processor time that was busy on the machine.
    pub busy: f64,
}

/// Runs the bench.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let scratch = tempfile::Builder::new()
        .prefix("forebay-bench-")
        .tempdir()
        .map_err(|e| Error::io("making a directory for the runs of the bench", e))?;
    if let Some(dir) = &args.keep {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(format!("making {}", dir.display()), e))?;
    }
    let platform = platform(args, out)?;
    let mut all = match args.seed {
        Some(seed) => drawn(seed, args.count.unwrap_or(CASES.len())),
        None => CASES.to_vec(),
    };
    all.truncate(if args.quick { QUICK } else { all.len() });
    let mut cases = Vec::new();
    for (number, case) in all.iter().enumerate() {
        let told = judge::Told::of(case);
        out.progress(&format!("{}/{} {}: emulated", number + 1, all.len(), told.line()));
        let file = args.keep.as_ref().map(|dir| dir.join(format!("{}.json", case.name)));
        let known = file.as_deref().and_then(|file| found(file, case));
        let mut found = match known {
            Some(found) => found,
            None => match beforehand(case, scratch.path())? {
                Ok(found) => found,
                Err(status) => return Ok(status),
            },
        };
        let advised = Advised::of(case, &platform, &found)?;
        for choice in &advised.order() {
            if found.runs.contains_key(&choice.plan.short()) {
                continue;
            }
            match run_plan(case, &platform, choice, &found, scratch.path())? {
                Ok(run) => found.runs.insert(choice.plan.short(), run),
                Err(status) => return Ok(status),
            };
            if let Some(file) = &file {
                let text = serde_json::to_string_pretty(&found).expect("plain data") + "\n";
                write_whole(file, text.as_bytes())?;
            }
        }
        cases.push(judge::CaseBody::of(told, &advised.advice, &found, &platform));
    }
    let body = Body::of(&platform, cases, args);
    out.result(schema::BENCH_WORKFLOWS_RUN, &body, || super::show::text(&body, out))?;
    Ok(0)
}

/// The emulated platform: as it was kept, or probed now.
fn platform(args: &Args, out: &Output) -> Result<Platform> {
    let wanted = &args.emulate;
    let tier = wanted.tier.clone().ok_or_else(|| {
        Error::new(Kind::Usage, "one tier is to be emulated").hint("--emulate PLATFORM:TIER[/K]")
    })?;
    // Workflow files lie elsewhere.
    let profile = match Path::new(&wanted.profile).is_file() {
        true => std::path::absolute(&wanted.profile)
            .map_err(|e| Error::io("cannot determine the current directory", e))?
            .display()
            .to_string(),
        false => wanted.profile.clone(),
    };
    let medium = format!("{profile}:{tier}");
    let files = args.keep.as_ref().map(|dir| (dir.join("bench.json"), dir.join("profile.toml")));
    if let Some((facts, profile)) = files.as_ref().filter(|(facts, _)| facts.exists()) {
        return kept(facts, profile, &medium, wanted.k);
    }
    let of = Saved::of_user()?.find(&wanted.profile)?;
    let options = Options {
        name: "emulated".into(),
        of: medium.clone(),
        media: wanted.media(&of)?,
        k: wanted.k,
        budget_ns: Some(args.probe_seconds.map_or(BUDGET_NS, |s| s.saturating_mul(1_000_000_000))),
    };
    out.progress(&format!("probing {medium}: emulated"));
    let stop = AtomicBool::new(false);
    let made = probe(&Machine::here(), &Running, &options, &stop, &mut |_| ())?
        // Nothing sets `stop`.
        .ok_or_else(|| Error::new(Kind::Internal, "the probe ended without a profile"))?;
    if let Some((facts, profile)) = &files {
        write_whole(profile, made.profile.text()?.as_bytes())?;
        let text =
            serde_json::to_string_pretty(&Kept { medium: medium.clone(), k: made.k }).expect("plain data");
        write_whole(facts, (text + "\n").as_bytes())?;
    }
    Ok(Platform { medium, k: made.k, profile: made.profile })
}

fn kept(facts: &Path, profile: &Path, medium: &str, k: Option<f64>) -> Result<Platform> {
    let text =
        std::fs::read_to_string(facts).map_err(|e| Error::io(format!("reading {}", facts.display()), e))?;
    let kept: Kept = serde_json::from_str(&text)
        .map_err(|e| Error::new(Kind::Damaged, format!("{} is inconsistent: {e}", facts.display())))?;
    if kept.medium != medium || k.is_some_and(|k| k != kept.k) {
        return Err(Error::new(Kind::OptionMismatch, "the directory holds a bench of another platform")
            .with("kept", format!("{}/{}", kept.medium, kept.k))
            .hint("give another directory with --keep"));
    }
    let profile = Saved::of_user()?.find(&profile.display().to_string())?;
    Ok(Platform { medium: kept.medium, k: kept.k, profile })
}

/// What is kept of a workflow, if it is of these parameters.
fn found(file: &Path, case: &Case) -> Option<Found> {
    let found: Found = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    (found.case == format!("{case:?}")).then_some(found)
}

/// What is measured before any plan is run, on plain memory: software of an object, and the start of the ranks.
fn beforehand(case: &Case, dir: &Path) -> Result<std::result::Result<Found, i32>> {
    let (software_s, start_s) = match (measure::software_s(case, dir)?, measure::start_s(case, dir)?) {
        (Ok(software_s), Ok(start_s)) => (software_s, start_s),
        (Err(status), _) | (_, Err(status)) => return Ok(Err(status)),
    };
    Ok(Ok(Found { case: format!("{case:?}"), software_s, start_s, runs: BTreeMap::new() }))
}

/// A workflow with what the advisor says of it.
struct Advised {
    advice: Advice,
}

impl Advised {
    fn of(case: &Case, platform: &Platform, measured: &Found) -> Result<Advised> {
        let text = case.workflow("bench", Some((&platform.medium, platform.k)), None);
        let workflow = Workflow::parse(&PathBuf::from("workflow.toml"), Path::new("/"), &text)?;
        let known = known(case, platform, measured);
        let found = choices(&workflow, &Topology::here()?, Some(&platform.profile), Some(known.load));
        let advice = advise(&known, &found, &platform.profile, Wish::default())?;
        Ok(Advised { advice })
    }

    /// The plans, the best first: what is found early limits the time of the others.
    fn order(&self) -> Vec<Choice> {
        self.advice.scores.iter().map(|score| score.choice.clone()).collect()
    }
}

/// The inputs of the model: parameters of the workflow, and the measured software time of an object.
fn known(case: &Case, platform: &Platform, measured: &Found) -> Known {
    let software_s = measured.software_s;
    let (writing_ms, reading_ms) = case.compute_ms(platform.k);
    let bytes = case.object as f64;
    let all = f64::from(case.writers) * f64::from(case.count);
    let component = |ranks: u32, compute_ms: f64, objects: f64, software_s: f64| model::Component {
        ranks: f64::from(ranks),
        compute_s: compute_ms / 1e3,
        interleaved: false,
        spread_s: 0.0,
        // They sleep, each for itself.
        in_step: false,
        objects,
        object_bytes: bytes,
        software_s,
        software_remote_s: 0.0,
        shared: 0.0,
        polling: 0.0,
    };
    let flow = model::Workflow {
        versions: case.steps,
        writer: component(case.writers, writing_ms, f64::from(case.count), software_s[0]),
        // The reader with most of them is the last.
        reader: component(case.readers, reading_ms, (all / f64::from(case.readers)).ceil(), software_s[1]),
        ahead: None,
    };
    let mut inputs = Inputs::new(flow);
    inputs.compute_error = SLEEP_ERROR;
    inputs.start_s = measured.start_s;
    Known {
        inputs,
        load: Load {
            version_bytes: case.version_bytes(),
            object_bytes: case.object,
            versions: u64::from(case.steps),
            quota_bytes: Some(case.quota_bytes()),
            spills: false,
        },
        channel: "bench".into(),
        writer: "writer".into(),
        reader: "reader".into(),
        history: Vec::new(),
        remarks: Vec::new(),
    }
}

/// Runs one plan, or ends it where it takes much longer than the best one so far.
fn run_plan(
    case: &Case,
    platform: &Platform,
    choice: &Choice,
    found: &Found,
    dir: &Path,
) -> Result<std::result::Result<Run, i32>> {
    let best = found.runs.values().filter(|r| !r.ended).map(|r| r.time_s).reduce(f64::min);
    let limit = best.map(|best| LIMIT * best);
    let text = case.workflow(&measure::channel(), Some((&platform.medium, platform.k)), limit);
    let workflow = Workflow::parse(&dir.join("workflow.toml"), dir, &text)?;
    let home = choice.home.as_ref().ok_or_else(|| {
        Error::new(Kind::Internal, "a plan for an emulated channel says no place").with("plan", &choice.plan)
    })?;
    let plan = PlanFile::new(&workflow, &Topology::here()?, &choice.plan, home)?;
    let before = measure::processors();
    Ok(match measure::run(dir, &text, Some(plan))? {
        Outcome::Done(measured) => Ok(Run { time_s: measured.time_s, ended: false, busy: measured.busy }),
        Outcome::TooLong => Ok(Run {
            time_s: limit.unwrap_or(f64::MAX),
            ended: true,
            busy: measure::busy(before, measure::processors()),
        }),
        Outcome::Interrupted(status) => Err(status),
    })
}
