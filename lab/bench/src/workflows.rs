//! `forebay bench workflows`: workflows that are run on an emulated platform, or, with `--model`, the 18 workflows of a
//! study, predicted by the model on a platform.
//!
//! What is run is in [`emulated`]. Of the model:
//!
//! Prints, for two sets of fitted values, the time of each workflow by each of the study's four configurations relative
//! to the best, and beside it the configuration that the study found the fastest. On the study's own platform winners
//! are counted; on another one there is nothing to count. Everything is predicted; what was fitted to what is said.

mod cases;
mod emulated;
mod judge;
mod measure;
mod optuna;
mod show;

use std::path::PathBuf;

use comfy_table::Cell;
use forebay_model::device::{Device, OURS};
use forebay_probe::medium::Wanted;
use forebay_profile::saved::Saved;
use forebay_profile::Profile;
use forebay_suite::claims::{Claim, WITHIN};
use forebay_suite::judge::{baselines, perturbed, Perturbed, Verdict, TIE};
use forebay_suite::{configurations, times, Interference, Set, COUNT, PLATFORM, STUDIED, TIER};
use forebay_tier::Result;
use serde::Serialize;

use crate::schema;
use forebay_cli::output::{number, table_text, toned, Output, Tone};

/// Draws of the judgement with perturbed values.
const DRAWS: u32 = 200;
/// By how much each value is off in it.
const OFF: f64 = 0.1;
/// Of its random numbers.
const SEED: u64 = 1;

/// Run workflows on an emulated platform by every plan; or predict those of a study by the model.
///
/// Real processes write and read through a channel that is as slow as the platform divided by k; the model, which knows
/// no more of it than what a probe measured, chooses a plan for each workflow, and its choice is compared with the best
/// of all plans. Takes minutes.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The study: R. S. Venkatesh and others, Scheduling HPC Workflows with Intel Optane Persistent Memory. \
                  Compute times and software times are not printed there: they were fitted to which configuration won, \
                  so that on its own platform --model shows how well the model can be made to agree, not that it \
                  predicts."
)]
pub struct Args {
    /// Predict the study's 18 workflows, by the model; nothing is run.
    #[arg(long)]
    model: bool,
    /// Profile whose tier holds the channel of --model: a platform, a saved profile or a file.
    #[arg(long, value_name = "PROFILE", default_value = PLATFORM, requires = "model")]
    platform: String,
    /// Tier of the channel of --model.
    #[arg(long, value_name = "TIER", default_value = TIER, requires = "model")]
    tier: String,
    /// Judge the fit of --model too: stated percentages, values on a bound, and every value off by 10 %.
    #[arg(long, requires = "model")]
    judge: bool,
    /// The platform that workflows are run on, K times slower. Without K this machine chooses.
    #[arg(
        long,
        value_name = "PLATFORM:TIER[/K]",
        default_value = "optane-gen1:pmem/250",
        value_parser = |text: &str| text.parse::<Wanted>(),
        conflicts_with = "model"
    )]
    emulate: Wanted,
    /// Keep what is measured in this directory; run again with it, the bench goes on where it stopped.
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    keep: Option<PathBuf>,
    /// Seconds for probing the emulated platform [default: 90].
    #[arg(long, value_name = "S", conflicts_with = "model")]
    probe_seconds: Option<u64>,
    /// Draw the workflows by this seed, instead of those that are kept: a set not used to fit the model.
    #[arg(long, value_name = "N", conflicts_with = "model")]
    seed: Option<u64>,
    /// How many are drawn [default: 14].
    #[arg(long, value_name = "N", requires = "seed")]
    count: Option<usize>,
    /// Only the first two workflows.
    #[arg(long, conflicts_with = "model")]
    quick: bool,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    platform: String,
    tier: String,
    configurations: [String; 4],
    /// What the profile lacks.
    gaps: Vec<String>,
    sets: Vec<SetBody>,
    baselines: Option<Baselines>,
}

#[derive(Serialize)]
struct Baselines {
    always_s_locw: usize,
    constant_by_ranks: usize,
}

#[derive(Serialize)]
struct SetBody {
    name: Interference,
    fitted_values: usize,
    command: String,
    workflows: Vec<WorkflowBody>,
    winners: Option<usize>,
    winners_by_1_percent: Option<usize>,
    ties: usize,
    claims_met: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    judgement: Option<Judgement>,
}

#[derive(Serialize)]
struct WorkflowBody {
    workflow: &'static str,
    ranks: u32,
    study: String,
    predicted: String,
    seconds: [f64; 4],
    /// By how much the study's winner is before the next, percent; below 0 where another one wins.
    margin_percent: Option<f64>,
    tie: bool,
}

#[derive(Serialize)]
struct Judgement {
    on_a_bound: Vec<&'static str>,
    claims: Vec<Claim>,
    perturbed: Perturbed,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if !args.model {
        return emulated::run(args, out);
    }
    let profile = Saved::of_user()?.find(&args.platform)?;
    let device = Device::of(&profile, &args.tier, &OURS)?;
    let studied = profile.name == PLATFORM && args.tier == TIER;
    let sets = [Interference::Frozen, Interference::Free];
    // Fitted interference is that of the study's platform; elsewhere the profile's own is all there is.
    let used = if studied { &sets[..] } else { &sets[..1] };
    let sets = used.iter().map(|which| set(&device, *which, studied, args.judge)).collect::<Result<_>>()?;
    let baselines = studied.then(baselines);
    let body = Body {
        provenance: "predicted",
        platform: profile.name.clone(),
        tier: args.tier.clone(),
        configurations: configurations(),
        gaps: device.gaps.clone(),
        sets,
        baselines: baselines
            .map(|(always, by_ranks)| Baselines { always_s_locw: always, constant_by_ranks: by_ranks }),
    };
    out.result(schema::BENCH_WORKFLOWS, &body, || text(&body, &profile, out))?;
    Ok(0)
}

fn set(device: &Device, which: Interference, studied: bool, judged: bool) -> Result<SetBody> {
    let kept = Set::kept(which)?;
    let verdict = match studied {
        true => Verdict::on(device, which, &kept.values),
        false => Verdict::of(times(&device.station, &kept.values)),
    };
    let judgement = (studied && judged).then(|| Judgement {
        on_a_bound: kept.on_a_bound(),
        claims: verdict.claims.to_vec(),
        perturbed: perturbed(device, which, &kept.values, (OFF, DRAWS, SEED)),
    });
    let workflows: Vec<WorkflowBody> = (0..COUNT).map(|i| workflow(&verdict, i, studied)).collect();
    Ok(SetBody {
        name: which,
        fitted_values: kept.free(),
        command: kept.command.clone(),
        winners: studied.then(|| verdict.winners()),
        winners_by_1_percent: studied.then(|| verdict.sure()),
        ties: workflows.iter().filter(|w| w.tie).count(),
        claims_met: studied.then(|| verdict.met()),
        workflows,
        judgement,
    })
}

fn workflow(verdict: &Verdict, i: usize, studied: bool) -> WorkflowBody {
    let times = verdict.times[i];
    let mut order = [0, 1, 2, 3];
    order.sort_by(|a, b| times[*a].total_cmp(&times[*b]));
    let names = configurations();
    WorkflowBody {
        workflow: STUDIED[i].name,
        ranks: STUDIED[i].ranks,
        study: names[STUDIED[i].fastest].clone(),
        predicted: names[order[0]].clone(),
        seconds: times,
        margin_percent: studied.then_some(100.0 * verdict.margins[i]),
        tie: times[order[1]] / times[order[0]] - 1.0 < TIE,
    }
}

fn text(body: &Body, profile: &Profile, out: &Output) -> String {
    let mut text = format!(
        "18 workflows of Venkatesh and others on {}, tier {}; predicted\n",
        profile.title.as_deref().unwrap_or(&body.platform),
        body.tier
    );
    body.gaps.iter().for_each(|gap| text += &format!("the profile has {gap}\n"));
    for set in &body.sets {
        text += &set_text(set, body, out);
    }
    if let Some(baselines) = &body.baselines {
        text += &format!(
            "without a model: always S-LocW {}/{COUNT}, the commonest winner of each number of ranks {}/{COUNT}\n",
            baselines.always_s_locw, baselines.constant_by_ranks
        );
    }
    text
}

fn set_text(set: &SetBody, body: &Body, out: &Output) -> String {
    let mut text = match (set.name, set.winners.is_some()) {
        (Interference::Frozen, true) => format!(
            "\nfrozen: locality and interference as public microbenchmarks measured them; {} values that the study \
             does not print are fitted to its winners and percentages\n",
            set.fitted_values
        ),
        (Interference::Free, _) => format!(
            "\nfree interference: remote penalties and interference are fitted too, {} values in all\n",
            set.fitted_values
        ),
        (Interference::Frozen, false) => format!(
            "\nlocality and interference of this profile; {} values of the workflows as fitted on {PLATFORM}\n",
            set.fitted_values
        ),
    };
    let mut heading = vec!["WORKFLOW", "RANKS", "STUDY", "MODEL", "MARGIN %"];
    heading.extend(body.configurations.iter().map(String::as_str));
    let mut table = out.table(&heading);
    set.workflows.iter().for_each(|workflow| {
        table.add_row(cells(workflow));
    });
    text += &table_text(&table);
    if let (Some(winners), Some(sure), Some(met)) = (set.winners, set.winners_by_1_percent, set.claims_met) {
        text += &format!(
            "{winners}/{COUNT} winners, {sure} of them by more than 1 %; {} ties (~: two within {:.0} %); {met} of 15 \
             stated percentages within {:.0} points\n",
            set.ties,
            100.0 * TIE,
            100.0 * WITHIN
        );
    }
    if let Some(judgement) = &set.judgement {
        text += &judgement_text(judgement, out);
    }
    text
}

fn cells(workflow: &WorkflowBody) -> Vec<Cell> {
    let best = workflow.seconds.iter().fold(f64::INFINITY, |a, b| a.min(*b));
    let tie = if workflow.tie { "~" } else { "" };
    let lost = workflow.margin_percent.is_some_and(|m| m <= 0.0);
    let predicted = format!("{}{tie}", workflow.predicted);
    let mut row = vec![
        Cell::new(workflow.workflow),
        number(workflow.ranks),
        Cell::new(&workflow.study),
        if lost { toned(predicted, Tone::Notable) } else { Cell::new(predicted) },
        number(workflow.margin_percent.map_or(String::new(), |m| format!("{m:.1}"))),
    ];
    row.extend(workflow.seconds.iter().map(|s| number(format!("{:.2}", s / best))));
    row
}

fn judgement_text(judgement: &Judgement, out: &Output) -> String {
    let mut table = out.table(&["STATED", "SECTION", "STATED %", "MODEL %", "MET"]);
    for claim in &judgement.claims {
        let stated = match claim.least < claim.most {
            true => format!("{:.0}-{:.0}", 100.0 * claim.least, 100.0 * claim.most),
            false => format!("{:.1}", 100.0 * claim.most),
        };
        table.add_row(vec![
            Cell::new(claim.what),
            Cell::new(claim.section),
            number(stated),
            number(format!("{:.1}", 100.0 * claim.model)),
            Cell::new(if claim.met() { "yes" } else { "no" }),
        ]);
    }
    let bound = match judgement.on_a_bound.is_empty() {
        true => "none".to_string(),
        false => judgement.on_a_bound.join(", "),
    };
    let p = &judgement.perturbed;
    format!(
        "{}values on a bound of their range: {bound}\nevery value off by up to {:.0} %, {} draws: mean regret of the \
         study's winners {:.1} %, {:.1} winners on average, {:.0} % of the draws have 16 or more\n",
        table_text(&table),
        100.0 * p.by,
        p.draws,
        100.0 * p.mean_regret,
        p.mean_winners,
        100.0 * p.share_16
    )
}
