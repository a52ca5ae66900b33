//! What choosing by the model is worth: its plan beside the best one that was run, and beside other ways to choose.
//!
//! Pure. The *regret* of a choice is its measured time over the best measured one, less 1. A plan that was ended counts
//! with the time at which it was: at least that.

use forebay_flow::advise::{Advice, Score, Sure};
use forebay_model::plan::Plan;
use forebay_suite::rules::{by_ranks, by_rules, Kind};
use serde::Serialize;

use super::cases::Case;
use super::emulated::{Found, Platform};
use super::optuna::{self, Trials};
use super::Args;

/// A machine that is busier carries no emulated medium.
pub(crate) const BUSY_MAX: f64 = 0.5;
/// Plans that trials compare at most.
const TRIED: usize = 3;

/// The parameters of a workflow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Told {
    pub workflow: String,
    pub writers: u32,
    pub readers: u32,
    pub object_bytes: u64,
    /// Of each writer in a version.
    pub objects: u32,
    pub steps: u32,
    /// Microseconds of a step, before k.
    pub compute_us: [u32; 2],
}

impl Told {
    pub(crate) fn of(case: &Case) -> Told {
        Told {
            workflow: case.name.to_string(),
            writers: case.writers,
            readers: case.readers,
            object_bytes: case.object,
            objects: case.count,
            steps: case.steps,
            compute_us: [case.write_compute_us, case.read_compute_us],
        }
    }

    pub(crate) fn line(&self) -> String {
        let (w, r) = (self.writers, self.readers);
        format!("{} ({w} + {r} ranks, {} x {} B)", self.workflow, self.objects, self.object_bytes)
    }
}

/// One plan of one workflow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlanBody {
    pub plan: String,
    pub predicted_s: f64,
    /// Half of the error bar.
    pub error_s: f64,
    pub measured_s: f64,
    /// It was ended there, because it took several times as long as another plan.
    pub ended: bool,
    pub busy: f64,
}

impl PlanBody {
    fn is_compared(&self) -> bool {
        !self.ended
    }

    /// Predicted over measured, less 1.
    pub(crate) fn error(&self) -> f64 {
        self.predicted_s / self.measured_s - 1.0
    }

    fn is_inside(&self) -> bool {
        (self.predicted_s - self.measured_s).abs() <= self.error_s
    }
}

/// One workflow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseBody {
    #[serde(flatten)]
    pub told: Told,
    /// Computing of a step as it was run, milliseconds.
    pub compute_ms: [f64; 2],
    /// Software of an object, measured alone, microseconds.
    pub software_us: [f64; 2],
    /// The best prediction first.
    pub plans: Vec<PlanBody>,
    pub chosen: String,
    pub best: String,
    pub sure: Sure,
    /// Of each way to choose, in the order of [`ways`].
    pub regrets: Vec<f64>,
}

/// One way to choose, over all workflows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Way {
    pub name: String,
    /// Runs of a plan that it takes to choose.
    pub trials: usize,
    pub mean_regret: f64,
    pub max_regret: f64,
    /// Workflows whose best plan it finds.
    pub found: usize,
}

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Body {
    pub provenance: &'static str,
    pub medium: String,
    pub k: f64,
    pub processors: usize,
    pub quick: bool,
    /// What the model was not told.
    pub gaps: Vec<String>,
    /// By which the workflows were drawn; null for those that are kept.
    pub seed: Option<u64>,
    pub workflows: Vec<CaseBody>,
    pub ways: Vec<Way>,
    /// Why there is no Optuna among them.
    pub without_optuna: Option<String>,
    /// Plans whose prediction is compared: those that came to their end.
    pub compared: usize,
    pub median_error: f64,
    pub inside_bar: f64,
    /// Runs while the machine was too busy.
    pub invalid: usize,
    pub runs: usize,
    pub busy_max: f64,
    /// Workflows in which a gated plan was the fastest, by more than a tie.
    pub gated_wins: Vec<String>,
}

/// The ways to choose that need nothing but what is known before: name and trials.
const WAYS: [(&str, usize); 6] = [
    ("the model", 0),
    ("the model, trials of its best 3 where it is not sure", TRIED),
    ("always S-LocW", 0),
    ("the study's commonest winner by ranks", 0),
    ("the study's ten rules", 0),
    ("random (mean of all plans)", 0),
];

impl CaseBody {
    pub(crate) fn of(told: Told, advice: &Advice, found: &Found, platform: &Platform) -> CaseBody {
        let plans: Vec<PlanBody> = advice
            .scores
            .iter()
            .filter_map(|score| {
                let plan = score.forecast.plan.short();
                let run = found.runs.get(&plan)?;
                Some(PlanBody {
                    plan,
                    predicted_s: score.forecast.time_s,
                    error_s: score.forecast.error_s,
                    measured_s: run.time_s,
                    ended: run.ended,
                    busy: run.busy,
                })
            })
            .collect();
        let regrets = regrets(&told, &plans, advice);
        let k_ms = platform.k / 1e3;
        CaseBody {
            compute_ms: told.compute_us.map(|us| f64::from(us) * k_ms),
            software_us: found.software_s.map(|s| s * 1e6),
            chosen: plans.first().map(|p| p.plan.clone()).unwrap_or_default(),
            best: best(&plans).map(|p| p.plan.clone()).unwrap_or_default(),
            sure: advice.sure,
            told,
            plans,
            regrets,
        }
    }

    /// The measured time of a plan relative to the best.
    pub(crate) fn against_best(&self, plan: &PlanBody) -> f64 {
        best(&self.plans).map_or(1.0, |best| plan.measured_s / best.measured_s)
    }
}

fn best(plans: &[PlanBody]) -> Option<&PlanBody> {
    plans.iter().min_by(|a, b| a.measured_s.total_cmp(&b.measured_s))
}

/// Of each of [`WAYS`].
fn regrets(told: &Told, plans: &[PlanBody], advice: &Advice) -> Vec<f64> {
    let Some(best) = best(plans).map(|p| p.measured_s) else { return Vec::new() };
    let of = |plan: &PlanBody| plan.measured_s / best - 1.0;
    let named = |name: &str| plans.iter().find(|p| p.plan == name).map_or(f64::NAN, of);
    let study = |which: usize| named(&Plan::of_the_study("")[which].short());
    let tried = match advice.sure {
        Sure::Yes | Sure::Only => 1,
        Sure::No | Sure::Tie => TRIED,
    };
    let after_trials = plans.iter().take(tried).map(of).fold(f64::INFINITY, f64::min);
    let random = plans.iter().map(of).sum::<f64>() / plans.len() as f64;
    let ranks = told.writers.max(told.readers);
    let rules = advice.scores.iter().find(|s| s.forecast.plan.short() == "S-LocW");
    vec![
        plans.first().map_or(f64::NAN, of),
        after_trials,
        study(0),
        study(by_ranks(ranks)),
        study(rules.map_or(0, |score| by_rules(&kind(told, score, ranks)))),
        random,
    ]
}

/// What the rules look at, with the times of a serial run that the model predicts.
fn kind(told: &Told, serial: &Score, ranks: u32) -> Kind {
    let (w, r) = (&serial.forecast.writer, &serial.forecast.reader);
    Kind::of((w.compute_s, w.io_s), (r.compute_s, r.io_s), told.object_bytes as f64, ranks)
}

impl Body {
    pub(crate) fn of(platform: &Platform, workflows: Vec<CaseBody>, args: &Args) -> Body {
        let mut ways: Vec<Way> = WAYS
            .iter()
            .enumerate()
            .map(|(i, (name, trials))| way(name, *trials, workflows.iter().map(|w| w.regrets[i]).collect()))
            .collect();
        let times: Vec<Vec<f64>> =
            workflows.iter().map(|w| w.plans.iter().map(|p| w.against_best(p)).collect()).collect();
        let without_optuna = match optuna::choose(&times, TRIED) {
            Trials::Done(chosen) => {
                let regrets = chosen.iter().map(|time| time - 1.0).collect();
                ways.push(way("Optuna (TPE, mean of 20 seeds)", TRIED, regrets));
                None
            }
            Trials::Skipped(why) => Some(why),
        };
        let plans = || workflows.iter().flat_map(|w| &w.plans);
        let compared: Vec<&PlanBody> = plans().filter(|p| p.is_compared()).collect();
        let inside = compared.iter().filter(|p| p.is_inside()).count();
        Body {
            provenance: "emulated",
            medium: platform.medium.clone(),
            k: platform.k,
            processors: forebay_probe::kernels::together::processors().len(),
            quick: args.quick,
            gaps: platform.gaps(),
            seed: args.seed,
            ways,
            without_optuna,
            compared: compared.len(),
            median_error: median(compared.iter().map(|p| p.error().abs()).collect()),
            inside_bar: inside as f64 / compared.len().max(1) as f64,
            invalid: plans().filter(|p| p.busy > BUSY_MAX).count(),
            runs: plans().count(),
            busy_max: plans().map(|p| p.busy).fold(0.0, f64::max),
            gated_wins: gated_wins(&workflows),
            workflows,
        }
    }
}

fn way(name: &str, trials: usize, regrets: Vec<f64>) -> Way {
    Way {
        name: name.to_owned(),
        trials,
        mean_regret: regrets.iter().sum::<f64>() / regrets.len().max(1) as f64,
        max_regret: regrets.iter().copied().fold(0.0, f64::max),
        found: regrets.iter().filter(|r| **r <= 0.0).count(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Workflows whose fastest plan is gated, with no other one within a tie.
fn gated_wins(workflows: &[CaseBody]) -> Vec<String> {
    let is_gated = |plan: &&PlanBody| plan.plan.starts_with('G');
    let wins = |w: &&CaseBody| {
        let of = |gated: bool| {
            let own = w.plans.iter().filter(|p| is_gated(p) == gated);
            own.map(|p| p.measured_s).fold(f64::INFINITY, f64::min)
        };
        of(true) * (1.0 + forebay_flow::advise::TIE) < of(false)
    };
    workflows.iter().filter(wins).map(|w| w.told.workflow.clone()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::workflows::cases::CASES;

    pub fn plan(plan: &str, predicted_s: f64, measured_s: f64) -> PlanBody {
        PlanBody { plan: plan.into(), predicted_s, error_s: 0.2, measured_s, ended: false, busy: 0.1 }
    }

    pub fn case(plans: Vec<PlanBody>) -> CaseBody {
        CaseBody {
            told: Told::of(&CASES[0]),
            compute_ms: [0.0; 2],
            software_us: [0.0; 2],
            plans,
            chosen: "S-LocW".into(),
            best: String::new(),
            sure: Sure::Yes,
            regrets: vec![],
        }
    }

    #[test]
    fn gates_win_where_nothing_else_is_as_fast() {
        let gated = |seconds| case(vec![plan("S-LocW", 1.0, 1.0), plan("G4w4r-LocW", 1.0, seconds)]);
        assert_eq!(gated_wins(&[gated(0.9)]), [CASES[0].name.as_ref()]);
        assert_eq!(gated_wins(&[gated(0.99), gated(1.5)]), [""; 0]);
    }

    #[test]
    fn ways_are_summed_up() {
        let found = way("x", 0, vec![0.0, 0.1, 0.2]);
        assert!((found.mean_regret - 0.1).abs() < 1e-12 && found.max_regret == 0.2 && found.found == 1);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0]), median(vec![])), (2.0, 2.5, 0.0));
        let one = plan("S-LocW", 1.1, 1.0);
        assert!((one.error() - 0.1).abs() < 1e-12 && one.is_inside());
        assert!(!plan("S-LocW", 1.3, 1.0).is_inside());
    }
}
