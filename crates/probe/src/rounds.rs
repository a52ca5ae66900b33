//! Rounds: every point of every tier once, then all of them again, until the time is up.
//!
//! Guarantees: the readings of one point are spread over the whole probe, so that what drifts on a machine within that
//! time (a neighbour on the host, a drive that grows warm) is in its error bar; a tier that fails is asked nothing more
//! and the others are; when told to stop, nothing more is begun.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tier::{clock, Error, Result};

use super::ask::Ask;
use super::collect::{Answer, Answers};
use super::schedule::{Schedule, Timing, Turn, REPETITIONS};
use super::subject::Subject;

/// Measurements after which their own time is believed.
const MADE_MIN: u64 = 20;

/// A tier that is ready to be asked.
pub struct Prepared<'a> {
    /// Who answers.
    pub subject: &'a mut dyn Subject,
    /// What is asked.
    pub schedule: Schedule,
    /// What a measurement costs.
    pub timing: Timing,
    /// What was answered.
    pub answers: Answers,
    /// Why it is asked nothing more, if so.
    pub failed: Option<Error>,
}

impl Prepared<'_> {
    /// Nothing asked yet.
    pub fn new(subject: &mut dyn Subject, schedule: Schedule, timing: Timing) -> Prepared<'_> {
        let answers = Answers::new(&schedule);
        Prepared { subject, schedule, timing, answers, failed: None }
    }

    /// Measurements of a round.
    fn points(&self) -> u64 {
        if self.failed.is_some() {
            return 0;
        }
        self.schedule.round().count() as u64
    }

    /// Nanoseconds of a measurement.
    fn each_ns(&self) -> u64 {
        self.schedule.span_ns + self.timing.overhead_ns
    }

    /// One round; false: it was stopped. `watch` gets the number of answers of this round, and what one will take.
    fn round(&mut self, stop: &AtomicBool, watch: &mut dyn FnMut(u64, u64)) -> bool {
        let turns: Vec<Turn> = self.schedule.round().collect();
        for (made, turn) in (0..).zip(turns) {
            if self.failed.is_some() {
                return true;
            }
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            watch(made, self.each_ns());
            match answer(self.subject, &self.schedule.asks[turn.ask], turn, self.schedule.span_ns) {
                Ok(answer) => self.answers.add(turn, answer),
                Err(e) => self.failed = Some(e),
            }
        }
        self.failed = self.failed.take().or(self.subject.rest().err());
        true
    }
}

/// How far the rounds are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Far {
    /// Which of the tiers is asked.
    pub tier: usize,
    /// Measurements made.
    pub done: u64,
    /// Of how many, as far as can be told.
    pub all: u64,
    /// Nanoseconds that the rest will take.
    pub left_ns: u64,
}

/// Asks all of them round by round: at least [`REPETITIONS`] times, and as often as fits `budget_ns` by what rounds
/// take, up to [`Timing::rounds`]. Gives the number of whole rounds.
pub fn ask_all(
    tiers: &mut [Prepared<'_>],
    budget_ns: u64,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Far),
) -> u32 {
    let begun = clock::now_ns();
    let most = tiers.iter().map(|tier| tier.timing.rounds).max().unwrap_or(0).max(REPETITIONS);
    let mut done = 0;
    for round in 0..most {
        let one_ns = match round {
            0 => expected_ns(tiers),
            _ => (clock::now_ns() - begun) / u64::from(round),
        };
        let rounds = (budget_ns / one_ns.max(1)).clamp(u64::from(REPETITIONS), u64::from(most));
        if u64::from(round) >= rounds {
            return round;
        }
        let to_come = tiers.iter().map(Prepared::points).sum::<u64>() * (rounds - u64::from(round));
        let all = done + to_come;
        for (index, tier) in tiers.iter_mut().enumerate() {
            let done_before = done;
            let goes_on = tier.round(stop, &mut |of_tier, expected_ns| {
                done = done_before + of_tier;
                // What a measurement costs besides its span is a guess until some have been made.
                let each = if done < MADE_MIN { expected_ns } else { (clock::now_ns() - begun) / done };
                watch(Far { tier: index, done, all, left_ns: all.saturating_sub(done) * each });
            });
            if !goes_on {
                return round;
            }
            done = done_before + tier.points();
        }
    }
    most
}

/// Asks one subject everything as often as its timing says; `watch` gets the number of answers and the time left.
///
/// # Errors
/// The first error of the subject.
pub fn ask(
    subject: &mut dyn Subject,
    schedule: &Schedule,
    timing: Timing,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answers> {
    let mut one = [Prepared::new(subject, schedule.clone(), timing)];
    ask_all(&mut one, u64::MAX, stop, &mut |far| watch(far.done, far.left_ns));
    let [one] = one;
    one.failed.map_or(Ok(one.answers), Err)
}

fn expected_ns(tiers: &[Prepared<'_>]) -> u64 {
    tiers.iter().map(|tier| tier.points() * tier.each_ns()).sum()
}

fn answer(subject: &mut dyn Subject, ask: &Ask, turn: Turn, span_ns: u64) -> Result<Answer> {
    Ok(match ask {
        Ask::Curve { when, over, xs } => {
            Answer::Bandwidth(subject.bandwidth(&when.at(*over, xs[turn.point]), span_ns)?)
        }
        Ask::Latency { operation, load, when } => {
            Answer::Time(subject.latency(*operation, *load, when, span_ns)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Reads;
    use crate::load::Latency;
    use crate::subject::Reading;
    use forebay_profile::{Axis, Citation, Conditions, Load, Operation, Tier};
    use forebay_tier::{Kind, TierKind};
    use std::cell::RefCell;

    /// Takes down what it is asked; its bandwidth is the number of threads.
    struct Paper<'a> {
        name: &'static str,
        asked: &'a RefCell<Vec<String>>,
        /// Says stop, or fails, with so many on the sheet.
        stop_at: Option<(usize, &'a AtomicBool)>,
        fail_at: Option<usize>,
    }

    impl Paper<'_> {
        fn note(&self, what: String) -> Result<()> {
            let mut asked = self.asked.borrow_mut();
            asked.push(format!("{} {what}", self.name));
            if let Some((at, stop)) = &self.stop_at {
                stop.store(asked.len() >= *at, Ordering::Relaxed);
            }
            match self.fail_at.is_some_and(|at| asked.len() >= at) {
                true => Err(Error::new(Kind::Io, "torn")),
                false => Ok(()),
            }
        }
    }

    impl Subject for Paper<'_> {
        fn bandwidth(&mut self, when: &Conditions, _: u64) -> Result<Reading> {
            let threads = when.threads.unwrap_or(1);
            self.note(threads.to_string())?;
            let bytes = u64::from(threads) * 1_000_000_000;
            Ok(Reading { operations: [1, 0], bytes: [bytes, 0], ns: 1_000_000_000, device_bytes: None })
        }
        fn latency(&mut self, _: Operation, _: Load, _: &Conditions, _: u64) -> Result<Latency> {
            self.note("time".into())?;
            let mut one = Latency::new();
            one.record(80);
            Ok(one)
        }
        fn rest(&mut self) -> Result<()> {
            self.note("rests".into())
        }
        fn method(&self) -> String {
            "by heart".into()
        }
    }

    const TIMING: Timing = Timing { span_ns_min: 1, span_ns_max: 1, overhead_ns: 0, rounds: 4 };

    fn schedule() -> Schedule {
        let when = Conditions::default();
        let curve = Ask::Curve { when: when.clone(), over: Axis::Threads, xs: vec![1.0, 2.0] };
        let time = Ask::Latency { operation: Operation::Read, load: Load::Idle, when };
        Schedule::fit(vec![curve, time], TIMING, u64::MAX)
    }

    fn paper<'a>(name: &'static str, asked: &'a RefCell<Vec<String>>) -> Paper<'a> {
        Paper { name, asked, stop_at: None, fail_at: None }
    }

    #[test]
    fn every_tier_has_its_turn_in_every_round() {
        let sheet = RefCell::default();
        let (mut a, mut b) = (paper("a", &sheet), paper("b", &sheet));
        let mut both = [Prepared::new(&mut a, schedule(), TIMING), Prepared::new(&mut b, schedule(), TIMING)];
        let mut seen = Vec::new();
        let go = AtomicBool::new(false);
        assert_eq!(ask_all(&mut both, u64::MAX, &go, &mut |far| seen.push((far.tier, far.done, far.all))), 4);
        let round = ["a 1", "a 2", "a time", "a rests", "b 1", "b 2", "b time", "b rests"];
        assert_eq!(*sheet.borrow(), round.repeat(4));
        let tier = |done| usize::from(done % 6 >= 3);
        assert_eq!(seen, (0..24).map(|done| (tier(done), done, 24)).collect::<Vec<_>>());
        let mut tier = Tier::new("dram", TierKind::Dram);
        both[0].answers.write(&mut tier, &Citation::of("x"), &Reads::default(), None);
        let values: Vec<(f64, f64)> = tier.curves[0].points.iter().map(|p| (p.x, p.y.value)).collect();
        assert_eq!(values, [(1.0, 1.0), (2.0, 2.0)]);
        assert_eq!(tier.latencies[0].samples, Some(4));
    }

    #[test]
    fn without_time_there_are_as_few_rounds_as_have_a_middle() {
        let sheet = RefCell::default();
        let mut a = paper("a", &sheet);
        let mut one = [Prepared::new(&mut a, schedule(), TIMING)];
        assert_eq!(ask_all(&mut one, 0, &AtomicBool::new(false), &mut |_| ()), REPETITIONS);
        assert_eq!(sheet.borrow().len(), 12);
    }

    #[test]
    fn a_tier_that_fails_is_left_and_a_stop_ends_between_two_measurements() {
        let (sheet, go) = (RefCell::default(), AtomicBool::new(false));
        let (mut a, mut b) = (Paper { fail_at: Some(2), ..paper("a", &sheet) }, paper("b", &sheet));
        let mut both = [Prepared::new(&mut a, schedule(), TIMING), Prepared::new(&mut b, schedule(), TIMING)];
        ask_all(&mut both, 0, &go, &mut |_| ());
        assert!(both[0].failed.as_ref().is_some_and(|e| e.message() == "torn") && both[1].failed.is_none());
        let round = ["b 1", "b 2", "b time", "b rests"].repeat(3);
        assert_eq!(*sheet.borrow(), [vec!["a 1", "a 2"], round].concat());
        sheet.borrow_mut().clear();
        let mut a = Paper { stop_at: Some((2, &go)), ..paper("a", &sheet) };
        let answers = ask(&mut a, &schedule(), TIMING, &go, &mut |_, _| ());
        assert!(answers.is_ok() && sheet.borrow().len() == 2);
    }
}
