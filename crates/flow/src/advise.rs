//! The advisor: scores every plan by the model, ranks them by what is wanted, and says why, how sure it is and what
//! would flip the choice.
//!
//! Pure. Nothing is guessed: a plan that the model cannot score is listed with the reason, and a margin that lies
//! inside the error bars is shown as such, a tie as a tie.

use std::collections::BTreeMap;

use forebay_model::device::{Device, OURS};
use forebay_model::forecast::{Forecast, Inputs};
use forebay_model::workflow::{Component, Workflow as Flow};
use forebay_profile::Profile;
use forebay_space::{Error, Kind, Result, TierKind};
use serde::Serialize;

use crate::choices::{Choice, Choices, Dropped};
use crate::history::Past;
use crate::inputs::Known;

/// Margins below this share are a tie, whatever the error bars say: no two runs of one plan agree better.
pub const TIE: f64 = 0.02;
/// How far one input is changed at most in the search for what would flip the choice.
const FACTOR_MAX: f64 = 16.0;
/// Steps towards that, in each direction.
const FACTOR_STEPS: i32 = 16;
/// Halvings of the last step.
const HALVINGS: usize = 6;
/// Most versions that a search looks at; beyond that time grows in proportion.
const VERSIONS_SEARCHED: u32 = 60;

/// What plans are ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Time from begin to end.
    #[default]
    Makespan,
    /// Time from a version's completion to the end of its reading.
    Freshness,
    /// Main memory, then time.
    Dram,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Wish {
    /// What plans are ranked by.
    pub objective: Objective,
    /// By how much the writers may take longer than in the plan that is best for them, as a factor.
    pub slowdown_max: Option<f64>,
}

/// How sure the choice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// There is one plan only.
    Only,
    /// The margin is larger than the error bars of both.
    Yes,
    /// The margin lies inside the error bars: trials would tell.
    No,
    /// The margin is below [`TIE`].
    Tie,
}

/// A plan with what the model says of it.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The plan and where its channels lie.
    #[serde(skip)]
    pub choice: Choice,
    /// What the model says.
    #[serde(flatten)]
    pub forecast: Forecast,
    /// What it is ranked by, relative to the best.
    pub against_best: f64,
    /// How much longer the writers take than in the plan that is best for them.
    pub slowdown: f64,
    /// Bytes written to media that wear.
    pub worn_bytes: f64,
    /// What the plan took when it was run before.
    pub measured: Option<Past>,
    /// Seconds: measured where it was run; else predicted, times what those that were run took over their prediction.
    pub expected_s: f64,
    /// Half of the error bar.
    pub expected_error_s: f64,
}

/// A change of one input after which another plan is best.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    /// The input.
    pub what: String,
    /// By how much it has to be multiplied.
    pub factor: f64,
    /// The plan that is best then.
    pub plan: String,
}

/// The advice.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// What was wanted.
    pub wish: Wish,
    /// Plans, the best first.
    pub scores: Vec<Score>,
    /// Plans that were left out, and why.
    pub dropped: Vec<Dropped>,
    /// By how much the second is worse than the best, as a share; absent when there is one only.
    pub margin: Option<f64>,
    /// How sure that is.
    pub sure: Sure,
    /// Why the best is best, in sentences.
    pub why: Vec<String>,
    /// What would flip the choice, the smallest change first.
    pub flips: Vec<Flip>,
    /// What the profile does not say, and what of the workflow was left out.
    pub remarks: Vec<String>,
}

/// The devices of a profile, made once.
type Devices = BTreeMap<String, (Device, TierKind)>;

/// Scores the plans of a workflow on a profile.
///
/// # Errors
/// [`Kind::NotPossibleHere`] when no plan can be scored, or none keeps within the wish.
pub fn advise(known: &Known, found: &Choices, profile: &Profile, wish: Wish) -> Result<Advice> {
    let mut dropped = found.dropped.clone();
    let (devices, mut remarks) = devices(found, profile, &mut dropped);
    let scored = |choice: &&Choice| devices.contains_key(&choice.plan.tier);
    let choices: Vec<&Choice> = found.choices.iter().filter(scored).collect();
    let mut scores = scores(&known.inputs, &choices, &devices, wish);
    let predicted_best = scores.first().map(|s| s.forecast.plan.clone());
    if let Some(remark) = learn(&mut scores, &known.history, wish) {
        remarks.push(remark);
    }
    if let Some(most) = wish.slowdown_max {
        let (kept, left): (Vec<Score>, Vec<Score>) = scores.into_iter().partition(|s| s.slowdown <= most);
        scores = kept;
        dropped.extend(left.into_iter().map(|s| Dropped {
            what: s.forecast.plan.to_string(),
            reason: format!("the writers take {:.2} x as long, more than {most:.2}", s.slowdown),
        }));
    }
    let Some(best) = scores.first() else {
        return Err(Error::new(Kind::NotPossibleHere, "no plan can be recommended")
            .with(
                "dropped",
                dropped.iter().map(|d| format!("{} ({})", d.what, d.reason)).collect::<Vec<_>>().join("; "),
            )
            .hint("use a larger --slowdown-max, or measure this node: forebay probe"));
    };
    if best.forecast.extrapolated {
        remarks.push("more ranks are inside the tier than it was ever measured with".to_owned());
    }
    let (margin, sure) = sureness(&scores);
    let why = why(known, &scores);
    // Predictions that history has overruled cannot say what would flip them.
    let flips = match predicted_best.as_ref() == Some(&best.forecast.plan) {
        true => flips(known, &choices, &devices, wish, &best.forecast.plan.to_string()),
        false => Vec::new(),
    };
    remarks.extend(known.remarks.iter().cloned());
    Ok(Advice { wish, margin, sure, why, flips, dropped, remarks, scores })
}

fn devices(found: &Choices, profile: &Profile, dropped: &mut Vec<Dropped>) -> (Devices, Vec<String>) {
    let (mut devices, mut remarks) = (Devices::new(), Vec::new());
    let mut seen: Vec<&str> = Vec::new();
    for choice in &found.choices {
        let name = choice.plan.tier.as_str();
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match (Device::of(profile, name, &OURS), profile.tier(name)) {
            (Ok(device), Some(tier)) => {
                remarks.extend(device.gaps.iter().map(|gap| format!("{name}: {gap}")));
                devices.insert(name.to_owned(), (device, tier.kind));
            }
            (Err(e), _) => dropped.push(Dropped { what: name.to_owned(), reason: e.message().to_owned() }),
            (Ok(_), None) => {}
        }
    }
    (devices, remarks)
}

fn is_worn(kind: TierKind) -> bool {
    !kind.is_memory()
}

/// All plans, the best first; of equals the one that was listed first.
fn scores(inputs: &Inputs, choices: &[&Choice], devices: &Devices, wish: Wish) -> Vec<Score> {
    let mut scores: Vec<Score> = choices
        .iter()
        .map(|choice| {
            let (device, kind) = &devices[&choice.plan.tier];
            let forecast = inputs.forecast(&choice.plan, device, !is_worn(*kind));
            let worn_bytes = if is_worn(*kind) { forecast.written_bytes } else { 0.0 };
            let (expected_s, expected_error_s) = (forecast.time_s, forecast.error_s);
            Score {
                choice: (*choice).clone(),
                forecast,
                against_best: 1.0,
                slowdown: 1.0,
                worn_bytes,
                measured: None,
                expected_s,
                expected_error_s,
            }
        })
        .collect();
    let writers_s =
        |s: &Score| s.forecast.writer.compute_s + s.forecast.writer.io_s + s.forecast.writer.wait_s;
    let quickest = scores.iter().map(writers_s).fold(f64::INFINITY, f64::min);
    scores.iter_mut().for_each(|s| s.slowdown = writers_s(s) / quickest);
    order(&mut scores, wish);
    scores
}

/// Lets what plans took before count. Says how many there are.
fn learn(scores: &mut [Score], history: &[Past], wish: Wish) -> Option<String> {
    for score in scores.iter_mut() {
        score.measured = history.iter().find(|past| past.plan == score.forecast.plan).cloned();
    }
    let mut ratios: Vec<f64> =
        scores.iter().filter_map(|s| Some(s.measured.as_ref()?.time_s / s.forecast.time_s)).collect();
    if ratios.is_empty() {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let common = ratios[ratios.len() / 2];
    for score in scores.iter_mut() {
        (score.expected_s, score.expected_error_s) = match &score.measured {
            Some(past) => (past.time_s, past.error_s),
            None => (score.forecast.time_s * common, score.forecast.error_s * common),
        };
    }
    order(scores, wish);
    let count = ratios.len();
    let were = if count == 1 { "was" } else { "were" };
    Some(format!(
        "{count} of the plans {were} run before and count with what they took; predictions of the others are taken x \
         {common:.2}"
    ))
}

/// Sorts them, and says how far each is from the best.
fn order(scores: &mut [Score], wish: Wish) {
    scores.sort_by(|a, b| {
        value(a, wish).total_cmp(&value(b, wish)).then(a.expected_s.total_cmp(&b.expected_s))
    });
    let best = scores.first().map_or(1.0, |s| value(s, wish));
    scores.iter_mut().for_each(|s| {
        // Against nothing at all, anything is infinitely more.
        s.against_best = match value(s, wish) {
            v if v == best => 1.0,
            v => v / best,
        };
    });
}

fn value(score: &Score, wish: Wish) -> f64 {
    match wish.objective {
        Objective::Makespan => score.expected_s,
        Objective::Freshness => score.forecast.freshness_s,
        Objective::Dram => score.forecast.dram_bytes,
    }
}

fn sureness(scores: &[Score]) -> (Option<f64>, Sure) {
    let [best, second, ..] = scores else { return (None, Sure::Only) };
    let margin = second.against_best - 1.0;
    // Both lie on the same node and come from the same inputs: their errors mostly go the same way.
    let error = (best.expected_error_s / best.expected_s).max(second.expected_error_s / second.expected_s);
    let sure = match () {
        () if margin < TIE => Sure::Tie,
        () if margin < error => Sure::No,
        () => Sure::Yes,
    };
    (Some(margin), sure)
}

/// A predicted time for people: three digits say more than a model knows.
pub fn seconds(s: f64) -> String {
    match s.abs() {
        t if t >= 100.0 => format!("{s:.0} s"),
        t if t >= 1.0 => format!("{s:.2} s"),
        t if t >= 1e-3 => format!("{:.1} ms", s * 1e3),
        _ => format!("{:.0} µs", s * 1e6),
    }
}

/// What the best plan spends its time on, and what the next one would spend more on.
fn why(known: &Known, scores: &[Score]) -> Vec<String> {
    let best = &scores[0].forecast;
    let sides = [(&known.writer, "writes", &best.writer), (&known.reader, "reads", &best.reader)];
    let mut why: Vec<String> = sides
        .iter()
        .map(|(name, verb, parts)| {
            let [compute, io, wait] = [parts.compute_s, parts.io_s, parts.wait_s].map(seconds);
            format!("{name} computes {compute}, {verb} {io}, waits {wait}")
        })
        .collect();
    why.push(format!("bottleneck: {}", best.binding.text()));
    if let Some(second) = scores.get(1).map(|s| &s.forecast) {
        let parts = [
            (format!("{} writing", known.writer), second.writer.io_s - best.writer.io_s),
            (format!("{} waiting", known.writer), second.writer.wait_s - best.writer.wait_s),
            (format!("{} reading", known.reader), second.reader.io_s - best.reader.io_s),
            (format!("{} waiting", known.reader), second.reader.wait_s - best.reader.wait_s),
        ];
        if let Some((what, more)) =
            parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, more)| *more > 0.0)
        {
            why.push(format!("{} would spend {} more in {what}", second.plan.short(), seconds(*more)));
        }
    }
    why
}

/// An input that may change, and how.
type Knob = (&'static str, fn(&mut Flow, f64));

fn both(flow: &mut Flow, change: impl Fn(&mut Component)) {
    change(&mut flow.writer);
    change(&mut flow.reader);
}

const KNOBS: [Knob; 5] = [
    ("computing of the writers", |flow, by| flow.writer.compute_s *= by),
    ("computing of the readers", |flow, by| flow.reader.compute_s *= by),
    ("ranks of both", |flow, by| both(flow, |c| c.ranks = (c.ranks * by).max(1.0))),
    ("size of objects", |flow, by| {
        both(flow, |c| {
            let all = c.objects * c.object_bytes;
            c.object_bytes = (c.object_bytes * by).min(all);
            c.objects = all / c.object_bytes;
        });
    }),
    ("software time of an object", |flow, by| both(flow, |c| c.software_s *= by)),
];

/// For each input the smallest change after which another plan is best by more than a tie.
fn flips(known: &Known, choices: &[&Choice], devices: &Devices, wish: Wish, best: &str) -> Vec<Flip> {
    let winner = |knob: &Knob, factor: f64| -> Option<String> {
        let mut inputs = known.inputs;
        inputs.flow.versions = inputs.flow.versions.min(VERSIONS_SEARCHED);
        knob.1(&mut inputs.flow, factor);
        let mut scores = scores(&inputs, choices, devices, wish);
        if let Some(most) = wish.slowdown_max {
            scores.retain(|s| s.slowdown <= most);
        }
        let first = scores.first()?;
        let was = scores.iter().find(|s| s.forecast.plan.to_string() == best)?;
        (was.against_best / first.against_best >= 1.0 + TIE).then(|| first.forecast.plan.to_string())
    };
    let mut flips = Vec::new();
    for knob in &KNOBS {
        for direction in [1.0, -1.0] {
            let at = |step: i32| FACTOR_MAX.powf(direction * f64::from(step) / f64::from(FACTOR_STEPS));
            let Some((step, _)) = (1..=FACTOR_STEPS).find_map(|s| winner(knob, at(s)).map(|plan| (s, plan)))
            else {
                continue;
            };
            let (mut inside, mut outside) = (at(step - 1), at(step));
            for _ in 0..HALVINGS {
                let middle = (inside * outside).sqrt();
                match winner(knob, middle) {
                    Some(_) => outside = middle,
                    None => inside = middle,
                }
            }
            if let Some(plan) = winner(knob, outside) {
                flips.push(Flip { what: knob.0.to_owned(), factor: outside, plan });
            }
        }
    }
    flips.sort_by(|a, b| a.factor.ln().abs().total_cmp(&b.factor.ln().abs()));
    flips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::choices;
    use crate::topology::Topology;
    use crate::workflow::Workflow;
    use forebay_model::plan::Mode;
    use forebay_profile::platforms::platform;
    use std::path::Path;

    fn workflow() -> Workflow {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = 24\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = 24\nreads = [\"u\"]\n";
        Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap()
    }

    /// 24 + 24 ranks with so many objects of so many bytes, computing so long.
    fn asked(objects: f64, bytes: f64, compute_s: f64) -> Known {
        let component = Component {
            ranks: 24.0,
            compute_s,
            interleaved: false,
            spread_s: 0.0,
            in_step: true,
            objects,
            object_bytes: bytes,
            software_s: 2e-6,
            software_remote_s: 0.0,
            shared: 0.0,
            polling: 0.0,
        };
        let flow = Flow { versions: 10, writer: component, reader: component, ahead: None };
        let load = crate::choices::Load {
            version_bytes: (24.0 * objects * bytes) as u64,
            object_bytes: bytes as u64,
            versions: 10,
            quota_bytes: None,
            spills: false,
        };
        Known {
            inputs: Inputs::new(flow),
            load,
            channel: "u".into(),
            writer: "sim".into(),
            reader: "ana".into(),
            history: Vec::new(),
            remarks: vec!["left out".into()],
        }
    }

    fn advice(known: &Known, wish: Wish) -> Result<Advice> {
        let profile = platform("optane-gen1").unwrap();
        let topology = Topology::of_profile(&profile);
        let mut found = choices(&workflow(), &topology, Some(&profile), Some(known.load));
        found.choices.retain(|c| c.plan.tier == "pmem");
        advise(known, &found, &profile, wish)
    }

    #[test]
    fn many_ranks_with_large_objects_take_turns_beside_the_writers() {
        let told = advice(&asked(16.0, 64e6, 0.0), Wish::default()).unwrap();
        let best = &told.scores[0];
        assert!(best.forecast.plan.mode.is_serial(), "{}", best.forecast.plan);
        assert_eq!(best.forecast.plan.short().rsplit('-').next(), Some("LocW"));
        assert_eq!(best.against_best, 1.0);
        assert!(told.scores.windows(2).all(|w| w[0].against_best <= w[1].against_best), "the best first");
        assert_eq!(best.worn_bytes, 10.0 * 24.0 * 16.0 * 64e6, "persistent memory wears");
        assert!(told.why.iter().any(|line| line.starts_with("sim computes")), "{:?}", told.why);
        assert!(told.remarks.iter().any(|line| line == "left out"), "{:?}", told.remarks);
    }

    #[test]
    fn what_was_run_before_counts_with_what_it_took() {
        let mut known = asked(16.0, 64e6, 0.0);
        let before = advice(&known, Wish::default()).unwrap();
        let (first, second) = (&before.scores[0], &before.scores[1]);
        let past = |score: &Score, by: f64| Past {
            plan: score.forecast.plan.clone(),
            time_s: score.forecast.time_s * by,
            error_s: 0.02 * score.forecast.time_s * by,
            runs: 1,
        };
        // The predicted best takes twice as long as predicted: all predictions are taken twice, nothing changes.
        known.history = vec![past(first, 2.0)];
        let told = advice(&known, Wish::default()).unwrap();
        assert_eq!(told.scores[0].forecast.plan, first.forecast.plan);
        assert!((told.scores[1].expected_s / second.forecast.time_s - 2.0).abs() < 1e-9);
        // The second was run too, and was as quick as predicted.
        known.history.push(past(second, 1.0));
        let told = advice(&known, Wish::default()).unwrap();
        assert_eq!(told.scores[0].forecast.plan, second.forecast.plan, "history overrules the model");
        assert!(told.flips.is_empty());
        assert!(
            told.remarks.iter().any(|r| r.contains("2 of the plans were run before")),
            "{:?}",
            told.remarks
        );
    }

    #[test]
    fn what_flips_the_choice_really_flips_it() {
        // With more and more computing on both sides it becomes better to be at work at once: somewhere between, a
        // little more or less of something decides.
        let cases = [1.0, 2.0, 5.0, 10.0, 20.0, 80.0, 160.0].map(|compute_s| asked(16.0, 64e6, compute_s));
        let advised = cases.iter().map(|known| (known.clone(), advice(known, Wish::default()).unwrap()));
        let (known, told) = advised.max_by_key(|(_, told)| told.flips.len()).unwrap();
        let best = told.scores[0].forecast.plan.to_string();
        assert!(!told.flips.is_empty(), "{best}");
        for flip in &told.flips {
            let mut changed = known.clone();
            let knob = KNOBS.iter().find(|(what, _)| *what == flip.what).unwrap();
            knob.1(&mut changed.inputs.flow, flip.factor);
            let then = advice(&changed, Wish::default()).unwrap();
            assert_eq!(then.scores[0].forecast.plan.to_string(), flip.plan, "{flip:?}");
            assert_ne!(flip.plan, best);
        }
        let distances: Vec<f64> = told.flips.iter().map(|f| f.factor.ln().abs()).collect();
        assert!(distances.is_sorted(), "{distances:?}");
    }

    #[test]
    fn a_wish_changes_the_order_or_leaves_plans_out() {
        let known = asked(16.0, 64e6, 0.5);
        let fresh = advice(&known, Wish { objective: Objective::Freshness, slowdown_max: None }).unwrap();
        let serial = fresh.scores.iter().position(|s| s.forecast.plan.mode == crate::advise::tests::SERIAL);
        assert!(serial.unwrap() > 0, "a version waits for all others in a serial run");
        let strict =
            advice(&known, Wish { objective: Objective::Makespan, slowdown_max: Some(1.01) }).unwrap();
        assert!(strict.scores.iter().all(|s| s.slowdown <= 1.01));
        assert!(strict.scores.len() < fresh.scores.len());
        assert!(strict.dropped.iter().any(|d| d.reason.contains("as long, more than 1.01")));
    }

    const SERIAL: Mode = Mode::Serial;

    #[test]
    fn plans_that_do_not_differ_are_a_tie() {
        // All computing, next to no bytes: nothing that a plan says matters but the order.
        let known = asked(1.0, 64.0, 1.0);
        let told = advice(&known, Wish::default()).unwrap();
        assert_eq!(told.sure, Sure::Tie);
        assert!(told.margin.unwrap() < TIE);
    }

    #[test]
    fn times_read_well() {
        for (s, text) in
            [(123.4, "123 s"), (1.234, "1.23 s"), (0.0123, "12.3 ms"), (4.2e-5, "42 µs"), (0.0, "0 µs")]
        {
            assert_eq!(seconds(s), text);
        }
    }

    #[test]
    fn plans_that_differ_in_their_place_only_are_no_matter_of_versions() {
        let known = asked(16.0, 64e6, 1.0);
        let mut told = advice(&known, Wish::default()).unwrap();
        told.scores.retain(|s| s.forecast.plan.mode == Mode::Parallel);
        assert_eq!(told.scores.len(), 2, "one beside the writers, one beside the readers");
        let best_s = told.scores[0].expected_s;
        told.scores.iter_mut().for_each(|s| s.expected_s = best_s);
        told.sure = Sure::Tie;
        let why = crate::trials::worth_trying(&told, &known).unwrap_err();
        assert_eq!(why, "no plan of equal time differs in its mode only");
    }
}
