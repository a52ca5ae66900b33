//! `forebay advise`: which plan of a workflow is best on a node, why, how sure that is, and what changes the choice.
//!
//! Guarantees: nothing is started. The inputs come from runs that were recorded, the tiers from a profile; every time
//! on the screen is *predicted*, with its error bar. Not here: the scoring (`flow::advise`), the model (`model`).

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use forebay_flow::advise::{advise, seconds, Advice, Objective, Score, Sure, Wish};
use forebay_flow::choices::choices;
use forebay_flow::inputs::{known, runs_of, Known};
use forebay_flow::trials::{worth_trying, Trials};
use forebay_flow::{PlanFile, RunRecord, Topology, Workflow};
use forebay_profile::platforms;
use forebay_profile::saved::Saved;
use forebay_profile::Profile;
use forebay_space::{format_bytes, Error, Kind, Result};
use serde::Serialize;

use crate::command::paths::relative;
use crate::command::profiles::chosen;
use crate::output::{schema, Output};

/// Plans that the table shows without --all.
const SHOWN: usize = 8;
/// Flips that are shown.
const FLIPS: usize = 3;

/// Find the best plan for a workflow: which, why, how sure, and what changes the choice.
///
/// What the components do is taken from earlier runs of the workflow, what the tiers deliver from the newest saved
/// profile, or a shipped platform for a node one does not have. Everything shown is predicted.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  forebay advise workflow.toml\n  forebay advise workflow.toml --platform optane-gen1\n  \
                        forebay advise workflow.toml --slowdown-max 1.1 -o plan.json"
)]
pub struct Args {
    /// Workflow file.
    #[arg(default_value = "workflow.toml")]
    workflow: PathBuf,
    /// Run directory to learn from [default: all runs beside the workflow file, the newest first].
    #[arg(long, value_name = "RUN")]
    from: Option<PathBuf>,
    /// Profile whose tiers to use: a saved one, a file, or a platform [default: the newest saved].
    #[arg(long, visible_alias = "platform", value_name = "PROFILE")]
    profile: Option<String>,
    /// What plans are ranked by.
    #[arg(long, value_enum, default_value_t = For::Makespan)]
    objective: For,
    /// Largest slow-down of the writers against the plan that is best for them, as a factor.
    #[arg(long, value_name = "FACTOR")]
    slowdown_max: Option<f64>,
    /// Versions of the run that is asked about [default: as many as the earlier runs had].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Write the best plan to this file.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show all plans, and those that were left out.
    #[arg(long)]
    all: bool,
}

/// What plans are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum For {
    /// Time from begin to end.
    Makespan,
    /// Time from a version's completion to the end of its reading.
    Freshness,
    /// Main memory, then time.
    Dram,
}

#[derive(Serialize)]
struct Body<'a> {
    workflow: &'a str,
    profile: &'a str,
    channel: &'a str,
    versions: u64,
    version_bytes: u64,
    numbers: &'static str,
    #[serde(flatten)]
    advice: &'a Advice,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if args.slowdown_max.is_some_and(|most| !most.is_finite() || most < 1.0) {
        return Err(Error::new(Kind::Usage, "--slowdown-max is a factor of 1 or more")
            .hint("1.1 allows the writers to take a tenth longer"));
    }
    let objective = match args.objective {
        For::Makespan => Objective::Makespan,
        For::Freshness => Objective::Freshness,
        For::Dram => Objective::Dram,
    };
    let workflow = Workflow::read_for_plan(&args.workflow)?;
    let runs = match &args.from {
        Some(dir) => vec![RunRecord::read(dir)?],
        None => runs_of(&workflow),
    };
    let asked = Asked::new(workflow, &runs, args.profile.as_deref(), args.steps)?;
    let advice = asked.advice(Wish { objective, slowdown_max: args.slowdown_max })?;
    let Asked { workflow, profile, known, is_platform, .. } = &asked;
    if let Some(file) = &args.out {
        asked.plan(&advice, 0, "advice")?.write(file)?;
    }
    let body = Body {
        workflow: &workflow.name,
        profile: &profile.name,
        channel: &known.channel,
        versions: known.load.versions,
        version_bytes: known.load.version_bytes,
        numbers: "predicted",
        advice: &advice,
    };
    out.result(schema::ADVICE, &body, || text(&body, args.all, *is_platform, out))?;
    next(args, *is_platform, out);
    Ok(0)
}

/// A workflow, what is known of it, and the node that it is to run on.
struct Asked {
    workflow: Workflow,
    known: Known,
    profile: Profile,
    is_platform: bool,
    topology: Topology,
}

impl Asked {
    fn new(
        workflow: Workflow,
        runs: &[RunRecord],
        profile: Option<&str>,
        steps: Option<u32>,
    ) -> Result<Asked> {
        let saved = Saved::of_user()?;
        let profile = chosen(&saved, profile)?;
        let is_platform = platforms::is_platform(&profile.name);
        let measured = if is_platform { saved.newest()? } else { Some(profile.clone()) };
        let mut known = known(&workflow, runs, measured.as_ref())?;
        if is_platform {
            // What was measured here says nothing of another node.
            known.history.clear();
        }
        if let Some(steps) = steps {
            known = known.with_steps(steps);
        }
        let topology = if is_platform { Topology::of_profile(&profile) } else { Topology::here()? };
        Ok(Asked { workflow, known, profile, is_platform, topology })
    }

    fn advice(&self, wish: Wish) -> Result<Advice> {
        let found = choices(&self.workflow, &self.topology, Some(&self.profile), Some(self.known.load));
        advise(&self.known, &found, &self.profile, wish)
    }

    /// The plan at a place among the scores as a file, with what was decided on.
    fn plan(&self, advice: &Advice, place: usize, by: &str) -> Result<PlanFile> {
        let best = &advice.scores[place];
        let home = best.choice.home.as_ref().filter(|_| !self.is_platform);
        let Some(home) = home else {
            let message = format!("{} is a platform, not this node", self.profile.name);
            return Err(Error::new(Kind::NotPossibleHere, message)
                .hint("a plan file is for the node that carries it out: probe that node and ask there"));
        };
        let mut file = PlanFile::new(&self.workflow, &self.topology, &best.choice.plan, home)?;
        file.decision.by = by.to_owned();
        let mut reasons = vec![format!(
            "predicted {} ± {} on profile {}; {}",
            seconds(best.forecast.time_s),
            seconds(best.forecast.error_s),
            self.profile.name,
            sure(advice)
        )];
        reasons.extend(advice.why.iter().cloned());
        reasons.append(&mut file.decision.reasons);
        file.decision.reasons = reasons;
        Ok(file)
    }
}

/// What `run --auto` does: the plan, execution modes to try inside the run where the advisor is not sure, and what
/// speaks for it in one line; no plan, and why, where too little is known of workflow or node to tell.
pub struct Chosen {
    pub plan: Option<PlanFile>,
    pub trials: Option<Trials>,
    pub line: String,
}

impl Chosen {
    fn nothing(line: String) -> Chosen {
        Chosen { plan: None, trials: None, line }
    }
}

/// Chooses for this node.
pub fn choose(workflow: &Path, profile: Option<&str>, steps: Option<u32>) -> Result<Chosen> {
    let workflow = Workflow::read_for_plan(workflow)?;
    let runs = runs_of(&workflow);
    if !runs.iter().any(|run| run.components.iter().any(|c| c.per_step.is_some())) {
        let line =
            "no run of this workflow is recorded: it runs as configured and is recorded for the next time";
        return Ok(Chosen::nothing(line.to_owned()));
    }
    let chosen = Asked::new(workflow, &runs, profile, steps).and_then(|asked| {
        let advice = asked.advice(Wish::default())?;
        let (place, trials, tried) = match worth_trying(&advice, &asked.known) {
            Ok((place, trials)) => {
                let modes: Vec<String> = trials.modes.iter().map(ToString::to_string).collect();
                let tried = format!("online tuning, {} steps each: {}", trials.steps, modes.join(", "));
                (place, Some(trials), tried)
            }
            Err(why) => (0, None, format!("no tuning: {why}")),
        };
        let mut plan = asked.plan(&advice, place, "auto")?;
        plan.decision.reasons.insert(1, tried);
        Ok((plan, trials))
    });
    match chosen {
        Ok((plan, trials)) => {
            let line = format!("{}: {}; {}", plan.plan, plan.decision.reasons[0], plan.decision.reasons[1]);
            Ok(Chosen { plan: Some(plan), trials, line })
        }
        // A profile that was named and is not there is the user's mistake.
        Err(e) if matches!(e.kind(), Kind::NotPossibleHere | Kind::UnknownComponent) && profile.is_none() => {
            Ok(Chosen::nothing(format!("it runs as configured: {e}")))
        }
        Err(e) => Err(e),
    }
}

fn next(args: &Args, is_platform: bool, out: &Output) {
    let file = args.workflow.display();
    match (&args.out, is_platform) {
        (Some(plan), _) => out.next(&format!("forebay run {file} --plan {}", relative(plan))),
        (None, true) => {}
        (None, false) => out.next(&format!("forebay advise {file} -o plan.json")),
    }
}

fn text(body: &Body<'_>, all: bool, is_platform: bool, out: &Output) -> String {
    let advice = body.advice;
    let mut text = format!(
        "{}: {} versions of {} through {}, on {}; predicted\n\n",
        body.workflow,
        body.versions,
        format_bytes(body.version_bytes),
        body.channel,
        body.profile
    );
    let heading =
        ["plan", "tier", "time", "±", "measured", "against best", "freshness", "DRAM", "worn", "bottleneck"];
    let mut table = out.table(&heading);
    let shown = if all { advice.scores.len() } else { SHOWN };
    for score in advice.scores.iter().take(shown) {
        table.add_row(row(score));
    }
    text += &crate::output::table_text(&table);
    if advice.scores.len() > shown {
        text += &format!("and {} more (--all)\n", advice.scores.len() - shown);
    }
    text += "\n";
    advice.why.iter().for_each(|line| text += &format!("why   {line}\n"));
    text += &format!("sure  {}\n", sure(advice));
    if advice.flips.is_empty() {
        text += "flip  no factor up to 16 on one input changes the choice\n";
    }
    for flip in advice.flips.iter().take(FLIPS) {
        text += &format!("flip  {} x {} makes {} best\n", rounded(flip.factor), flip.what, flip.plan);
    }
    advice.remarks.iter().for_each(|line| text += &format!("note  {line}\n"));
    // Plans that the workflow itself rules out are said at once; the rest is about tiers and places.
    let shown = advice.dropped.iter().filter(|d| all || d.what.starts_with("S "));
    shown.for_each(|d| text += &format!("excluded: {} – {}\n", d.what, d.reason));
    let hidden = advice.dropped.iter().filter(|d| !all && !d.what.starts_with("S ")).count();
    if hidden > 0 {
        text += &format!("and {hidden} more excluded (--all)\n");
    }
    if is_platform {
        text +=
            &format!("note  {} is a platform: this is for a node like it, not for this one\n", body.profile);
    }
    text
}

fn row(score: &Score) -> [String; 10] {
    let f = &score.forecast;
    [
        f.plan.short(),
        f.plan.tier.clone(),
        seconds(f.time_s),
        seconds(f.error_s),
        score.measured.as_ref().map_or("-".to_owned(), |past| seconds(past.time_s)),
        format!("{:.2}", score.against_best),
        seconds(f.freshness_s),
        format_bytes(f.dram_bytes as u64),
        format_bytes(score.worn_bytes as u64),
        f.binding.text().to_owned(),
    ]
}

fn sure(advice: &Advice) -> String {
    let percent = advice.margin.unwrap_or(0.0) * 100.0;
    match advice.sure {
        Sure::Only => "there is no other plan".to_owned(),
        Sure::Yes => format!("yes: the next is {percent:.0} % worse, more than the error bar"),
        Sure::No => {
            format!("no: the next is {percent:.0} % worse, less than the error bar; forebay run --auto compares them")
        }
        Sure::Tie => format!("a tie: the next is {percent:.1} % worse"),
    }
}

fn rounded(factor: f64) -> String {
    if factor >= 10.0 {
        format!("{factor:.0}")
    } else {
        format!("{factor:.2}")
    }
}
