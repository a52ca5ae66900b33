//! Trials inside a run: which of a few execution modes is the fastest is found out by keeping each for some steps.
//!
//! Only what can change while programs run is tried: the execution mode of the channels (at once, in turns, gates).
//! Where the channels lie cannot be moved, and a serial run is an order in which programs are started.
//!
//! A *stretch* is a few steps at one execution mode. Its step time is what the slower side took for them: the time in
//! which so many versions were completed, or released, whichever is longer. The steps until both sides have done one at
//! the new execution mode are the switch, and no part of it; what they took longer than a step is its cost. When all
//! execution modes had their stretch, the fastest is kept, the one that was predicted best unless another is faster by
//! more than a tie. After that every stretch is compared with the one it was kept for: when two in succession are
//! slower by a quarter, all are tried again, a few times at most.
//!
//! [`Judge`] is pure; [`Steered`] is the thread that looks and sets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_model::plan::{Mode, Plan};
use forebay_space::{Error, Kind, Progress, Result, Steering};
use serde::{Deserialize, Serialize};

use crate::advise::{Advice, Score, Sure, TIE};
use crate::inputs::Known;
use crate::plan::execution_mode_of;
use crate::record::monotonic_ns;
use crate::workflow::Workflow;

/// A stretch that is slower than the one that an execution mode was kept for by more than this is a drift.
const DRIFT: f64 = 1.25;
/// So many of them in succession.
const DRIFTS: u32 = 2;
/// Most rounds of trials in a run.
const ROUNDS_MAX: u32 = 3;
/// Between two looks: a part of a step, in these bounds.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);
const LOOKS_PER_STEP: f64 = 50.0;

/// What to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    /// The channel whose versions are counted.
    pub channel: String,
    /// Execution modes, the one that is predicted best first: the run begins with it.
    pub modes: Vec<Mode>,
    /// Steps of a stretch, without the switch.
    pub steps: u64,
}

/// Why a stretch was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// To find out.
    Trial,
    /// It was the fastest.
    Kept,
}

/// Some steps at one execution mode, all measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// The execution mode.
    pub mode: Mode,
    /// Why.
    pub why: Why,
    /// First version of it.
    pub from_version: u64,
    /// Steps.
    pub steps: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds that the switch to this execution mode took more than a step; 0 where there was none.
    pub switch_s: f64,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The execution mode that was kept.
    pub mode: Mode,
    /// From this version on.
    pub at_version: u64,
    /// Why, in a sentence.
    pub reason: String,
}

/// What was tried and decided in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Channel whose versions were counted.
    pub channel: String,
    /// Stretches in their order.
    pub stretches: Vec<Stretch>,
    /// Decisions in their order.
    pub decisions: Vec<Kept>,
}

/// Where a stretch stands.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at_ns: u64,
    complete: u64,
    released: u64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Until both sides have done a step since then.
    Switch(Mark),
    /// Steps since then; when each side had done them.
    Measure { from: Mark, switch_ns: u64, written_ns: Option<u64>, read_ns: Option<u64> },
}

/// Decides, from what it is told of the progress.
#[derive(Debug)]
pub struct Judge {
    modes: Vec<Mode>,
    steps: u64,
    /// Execution mode that holds now, and whether it is a trial.
    current: usize,
    why: Why,
    phase: Option<Phase>,
    round: Vec<f64>,
    rounds: u32,
    /// Step time for which the present execution mode was kept.
    kept_s: f64,
    drifts: u32,
    tried: Tried,
}

impl Judge {
    /// For trials; the run is at the execution mode of the first mode.
    pub fn new(trials: &Trials) -> Judge {
        Judge {
            modes: trials.modes.clone(),
            steps: trials.steps.max(1),
            current: 0,
            why: Why::Trial,
            phase: None,
            round: Vec::new(),
            rounds: 1,
            kept_s: f64::INFINITY,
            drifts: 0,
            tried: Tried { channel: trials.channel.clone(), ..Tried::default() },
        }
    }

    /// What was tried so far.
    pub fn tried(&self) -> &Tried {
        &self.tried
    }

    /// Seconds of a step, as far as is known.
    fn step_s(&self) -> Option<f64> {
        self.tried.stretches.last().map(|s| s.step_s)
    }

    /// Takes note of the progress. Returns the mode to be set, if there is another one now.
    pub fn look(&mut self, now_ns: u64, progress: Progress) -> Option<Mode> {
        let now = Mark { at_ns: now_ns, complete: progress.complete, released: progress.released };
        if progress.written {
            // What is left is read at any execution mode.
            return None;
        }
        match self.phase {
            None => {
                self.phase = Some(Phase::Switch(now));
                None
            }
            Some(Phase::Switch(from)) => {
                if now.complete > from.complete && now.released > from.released {
                    let switch_ns = now.at_ns - from.at_ns;
                    self.phase =
                        Some(Phase::Measure { from: now, switch_ns, written_ns: None, read_ns: None });
                }
                None
            }
            Some(Phase::Measure { from, switch_ns, mut written_ns, mut read_ns }) => {
                let done = |seen: u64, begun: u64| seen >= begun + self.steps;
                if written_ns.is_none() && done(now.complete, from.complete) {
                    written_ns = Some(now.at_ns);
                }
                if read_ns.is_none() && done(now.released, from.released) {
                    read_ns = Some(now.at_ns);
                }
                self.phase = Some(Phase::Measure { from, switch_ns, written_ns, read_ns });
                let end_ns = written_ns?.max(read_ns?);
                let step_s = (end_ns - from.at_ns) as f64 / 1e9 / self.steps as f64;
                self.ended(from, switch_ns, step_s, now)
            }
        }
    }

    /// A stretch has ended.
    fn ended(&mut self, from: Mark, switch_ns: u64, step_s: f64, now: Mark) -> Option<Mode> {
        let is_first = self.tried.stretches.is_empty();
        let is_same = self.tried.stretches.last().is_some_and(|s| s.mode == self.modes[self.current]);
        let switch_s = if is_first || is_same { 0.0 } else { (switch_ns as f64 / 1e9 - step_s).max(0.0) };
        self.tried.stretches.push(Stretch {
            mode: self.modes[self.current],
            why: self.why,
            from_version: from.released,
            steps: self.steps,
            step_s,
            switch_s,
        });
        match self.why {
            Why::Trial => {
                self.round.push(step_s);
                if self.round.len() < self.modes.len() {
                    return self.go_to(self.round.len(), Why::Trial, now);
                }
                self.keep(now)
            }
            Why::Kept => self.watch(step_s, now),
        }
    }

    /// All had their stretch: the fastest is kept.
    fn keep(&mut self, now: Mark) -> Option<Mode> {
        let round = std::mem::take(&mut self.round);
        let first = round[0];
        let (best, best_s) =
            round.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).expect("not empty");
        let is_tie = first <= best_s * (1.0 + TIE);
        let (kept, kept_s) = if is_tie { (0, first) } else { (best, best_s) };
        let ms = |s: f64| format!("{:.1} ms", s * 1e3);
        let reason = match (is_tie, best) {
            (_, 0) => format!("measured {} a step, the fastest, as predicted", ms(kept_s)),
            (true, _) => format!("measured {} a step: no other is faster by more than a tie", ms(kept_s)),
            (false, _) => format!(
                "measured {} a step, the predicted mode {} {}: prediction rejected",
                ms(kept_s),
                self.modes[0],
                ms(first)
            ),
        };
        let mode = self.modes[kept];
        self.tried.decisions.push(Kept { mode, at_version: now.released, reason });
        (self.kept_s, self.drifts) = (kept_s, 0);
        self.go_to(kept, Why::Kept, now)
    }

    /// A stretch of the execution mode that is kept: as it was, or drifting.
    fn watch(&mut self, step_s: f64, now: Mark) -> Option<Mode> {
        self.drifts = if step_s > DRIFT * self.kept_s { self.drifts + 1 } else { 0 };
        if self.drifts < DRIFTS || self.rounds >= ROUNDS_MAX {
            return self.go_to(self.current, Why::Kept, now);
        }
        self.rounds += 1;
        self.drifts = 0;
        let reason = format!(
            "{:.1} ms a step, expected {:.1}: the tuning phase is repeated",
            step_s * 1e3,
            self.kept_s * 1e3
        );
        let mode = self.modes[self.current];
        self.tried.decisions.push(Kept { mode, at_version: now.released, reason });
        self.go_to(0, Why::Trial, now)
    }

    fn go_to(&mut self, mode: usize, why: Why, now: Mark) -> Option<Mode> {
        let changes = mode != self.current;
        (self.current, self.why) = (mode, why);
        self.phase = Some(match changes {
            true => Phase::Switch(now),
            // Nothing has to settle.
            false => Phase::Measure { from: now, switch_ns: 0, written_ns: None, read_ns: None },
        });
        changes.then(|| self.modes[mode])
    }
}

/// The thread that steers the channels of a run.
#[derive(Debug)]
pub(crate) struct Steered {
    stop: Arc<AtomicBool>,
    tried: Arc<Mutex<Tried>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Steered {
    /// Starts it: the execution modes of all channels that have readers go together.
    pub(crate) fn start(workflow: &Workflow, trials: Trials) -> Result<Steered> {
        let (stop, tried) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let read = workflow.channels.iter().filter(|c| !c.readers.is_empty());
        let places: Vec<(bool, String)> =
            read.map(|c| (c.name == trials.channel, c.location(&workflow.dir))).collect();
        let (theirs, noted) = (stop.clone(), Arc::clone(&tried));
        let thread = std::thread::Builder::new()
            .name("forebay-trials".to_owned())
            .spawn(move || steer(&places, &trials, &theirs, &noted))
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Steered { stop, tried, thread: Some(thread) })
    }

    /// Ends it; what was tried, and why no more was if steering failed.
    pub(crate) fn finish(mut self) -> (Tried, Option<String>) {
        let failed = self.end().err().map(|e| format!("online tuning stopped: {e}"));
        (self.tried.lock().unwrap_or_else(PoisonError::into_inner).clone(), failed)
    }

    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = || Error::new(Kind::Internal, "the thread that steers panicked");
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(panicked())))
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        // A caller that wants to know calls `finish`.
        let _ = self.end();
    }
}

/// Steers until it is told to stop. What cannot be steered ends it: times of an execution mode that was not set would
/// be remembered as those of another.
fn steer(places: &[(bool, String)], trials: &Trials, stop: &AtomicBool, noted: &Mutex<Tried>) -> Result<()> {
    let mut judge = Judge::new(trials);
    let mut spaces: Vec<Option<Steering>> = places.iter().map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        for (space, (_, place)) in spaces.iter_mut().zip(places) {
            if space.is_none() {
                *space = match Steering::open(place) {
                    Ok(opened) => Some(opened),
                    // Its writers are yet to come.
                    Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::TimedOut) => None,
                    Err(e) => return Err(e),
                };
            }
        }
        let counted = spaces.iter().zip(places).find(|(_, (counts, _))| *counts);
        let set = match counted.and_then(|(space, _)| space.as_ref()) {
            Some(space) => judge.look(monotonic_ns(), space.progress()),
            None => None,
        };
        noted.lock().unwrap_or_else(PoisonError::into_inner).clone_from(judge.tried());
        if let Some(mode) = set {
            let execution_mode = execution_mode_of(mode)?;
            spaces.iter().flatten().try_for_each(|space| space.set_execution_mode(execution_mode))?;
        }
        let pause = judge.step_s().map_or(LOOK_MIN, |s| Duration::from_secs_f64(s / LOOKS_PER_STEP));
        std::thread::sleep(pause.clamp(LOOK_MIN, LOOK_MAX));
    }
    Ok(())
}

/// The fewest steps of a stretch that tell anything, and the most that are worth waiting for.
const STEPS: std::ops::RangeInclusive<u64> = 2..=5;

/// Steps of a stretch, so that trials of so many execution modes take half of a run at most; None where there are too
/// few.
pub fn steps_of(versions: u64, modes: usize) -> Option<u64> {
    // Each has a step for the switch.
    let each = (versions / 2 / modes.max(1) as u64).saturating_sub(1).min(*STEPS.end());
    STEPS.contains(&each).then_some(each)
}

/// Plans that trials compare at most.
const TRIED_MAX: usize = 3;

/// What is worth trying in a run of a workflow on which the advisor is not sure: the first plan, as its place among the
/// scores, and the trials. An error says why nothing is.
pub fn worth_trying(advice: &Advice, known: &Known) -> std::result::Result<(usize, Trials), String> {
    let best = &advice.scores[0];
    if matches!(advice.sure, Sure::Yes | Sure::Only) {
        return Err("the choice is certain".to_owned());
    }
    let near_s = best.expected_s * (1.0 + TIE) + best.expected_error_s;
    let near = advice.scores.iter().enumerate().take_while(|(_, s)| s.expected_s <= near_s);
    let can_switch = |mode: Mode| mode != Mode::Serial;
    let near: Vec<(usize, &Score)> = near.filter(|(_, s)| can_switch(s.forecast.plan.mode)).collect();
    let Some((first, base)) = near.first().copied() else {
        return Err("mode serial cannot be changed inside a run".to_owned());
    };
    let base = &base.forecast.plan;
    let together = near.iter().map(|(_, s)| &s.forecast.plan);
    let together = together.filter(|p| Plan { mode: base.mode, ..(*p).clone() } == *base);
    let mut modes: Vec<Mode> = together.map(|p| p.mode).collect();
    modes.truncate(TRIED_MAX);
    let execution_modes = modes.len();
    let versions = known.load.versions;
    while modes.len() > 1 {
        if let Some(steps) = steps_of(versions, modes.len()) {
            return Ok((first, Trials { channel: known.channel.clone(), modes, steps }));
        }
        modes.pop();
    }
    // Plans as good may all differ in locality, tier or batches.
    Err(match execution_modes {
        0 | 1 => "no plan of equal time differs in its mode only".to_owned(),
        _ => format!("{versions} versions are too few"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATED: Mode = Mode::Gated { writers: 1, readers: 1 };

    fn trials(modes: &[Mode]) -> Trials {
        Trials { channel: "u".into(), modes: modes.to_vec(), steps: 3 }
    }

    /// Runs `steps` steps; a step takes as many ms as `ms` says of the mode and the version.
    fn run(judge: &mut Judge, steps: u64, ms: impl Fn(Mode, u64) -> u64) -> Mode {
        let (mut now, mut mode) = (1_000_000, judge.modes[0]);
        for version in 0..=steps {
            let progress = Progress { complete: version, released: version, written: version == steps };
            if let Some(next) = judge.look(now, progress) {
                mode = next;
            }
            now += ms(mode, version) * 1_000_000;
        }
        mode
    }

    #[test]
    fn a_prediction_that_was_wrong_is_overturned() {
        let mut judge = Judge::new(&trials(&[GATED, Mode::Parallel, Mode::SerialPerStep]));
        let last = run(&mut judge, 40, |mode, _| match mode {
            Mode::Parallel => 10,
            Mode::SerialPerStep => 15,
            _ => 30,
        });
        assert_eq!(last, Mode::Parallel);
        let tried = judge.tried();
        let order: Vec<Mode> = tried.stretches.iter().map(|s| s.mode).take(4).collect();
        assert_eq!(order, [GATED, Mode::Parallel, Mode::SerialPerStep, Mode::Parallel]);
        let seconds: Vec<f64> = tried.stretches.iter().map(|s| s.step_s).take(3).collect();
        assert_eq!(seconds, [0.030, 0.010, 0.015]);
        assert_eq!(tried.decisions.len(), 1, "{tried:?}");
        assert!(tried.decisions[0].reason.contains("prediction rejected"), "{tried:?}");
        assert!(tried.stretches[3..].iter().all(|s| s.why == Why::Kept && s.mode == Mode::Parallel));
    }

    #[test]
    fn a_tie_keeps_what_was_predicted() {
        let mut judge = Judge::new(&trials(&[GATED, Mode::Parallel]));
        assert_eq!(run(&mut judge, 30, |mode, _| if mode == GATED { 100 } else { 99 }), GATED);
        assert!(judge.tried().decisions[0].reason.contains("tie"));
    }

    #[test]
    fn a_drift_is_tried_again_and_a_single_slow_stretch_is_not() {
        // From version 30 on gates are what is fast.
        let mut judge = Judge::new(&trials(&[Mode::Parallel, GATED]));
        let last = run(&mut judge, 80, |mode, version| match (mode == GATED, version >= 30) {
            (false, false) | (true, true) => 10,
            _ => 20,
        });
        assert_eq!(last, GATED, "{:?}", judge.tried());
        assert_eq!(judge.tried().decisions.len(), 3, "kept, tried again, kept: {:?}", judge.tried());
        let mut judge = Judge::new(&trials(&[Mode::Parallel, GATED]));
        run(&mut judge, 80, |_, version| if (30..33).contains(&version) { 40 } else { 10 });
        assert_eq!(judge.tried().decisions.len(), 1, "{:?}", judge.tried());
    }

    #[test]
    fn a_switch_costs_what_it_takes_beyond_a_step() {
        let mut judge = Judge::new(&trials(&[Mode::Parallel, GATED]));
        // The first step after the switch drains what lies in the channel.
        run(&mut judge, 30, |mode, version| if mode == GATED && version == 4 { 50 } else { 10 });
        let second = &judge.tried().stretches[1];
        assert_eq!((second.mode, second.switch_s), (GATED, 0.040), "{:?}", judge.tried());
    }

    #[test]
    fn short_runs_try_less_or_nothing() {
        assert_eq!(
            (steps_of(100, 3), steps_of(20, 3), steps_of(12, 2), steps_of(10, 2)),
            (Some(5), Some(2), Some(2), None)
        );
    }
}
