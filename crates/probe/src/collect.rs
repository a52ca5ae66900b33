//! From readings to a profile: medians, error bars, curves, latencies, marks.

use crate::load;
use forebay_profile::{
    Axis, Citation, Conditions, Curve, Estimate, Latency, Load, Operation, Pattern, Point, Tier, Unit,
};

use super::ask::Ask;
use super::judge::{self, Bounds};
use super::schedule::{Schedule, Turn};
use super::subject::Reading;

/// Up to this size accesses to files are counted, above it they are weighed.
const COUNTED_BYTES_MAX: u64 = 8192;
const GB: f64 = 1e9;

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To a point of a curve.
    Bandwidth(Reading),
    /// To the time of an operation.
    Time(load::Latency),
}

/// All answers to a schedule.
pub struct Answers {
    asks: Vec<Ask>,
    /// For each question and point the repetitions.
    got: Vec<Vec<Vec<Answer>>>,
}

impl Answers {
    /// None yet.
    pub fn new(schedule: &Schedule) -> Answers {
        let got = schedule.asks.iter().map(|ask| vec![Vec::new(); ask.points()]).collect();
        Answers { asks: schedule.asks.clone(), got }
    }

    /// One more.
    pub fn add(&mut self, turn: Turn, answer: Answer) {
        self.got[turn.ask][turn.point].push(answer);
    }

    /// Writes everything into a tier of the profile. `counted` says whether small accesses are a rate (files) or a
    /// bandwidth (memory); `cold` whether no cache was to answer.
    pub fn write(&self, tier: &mut Tier, source: &Citation, kind: &Reads, caveat: Option<&str>) {
        for (ask, got) in self.asks.iter().zip(&self.got) {
            match ask {
                Ask::Curve { when, over, xs } => {
                    tier.curves.extend(curve((when, *over, xs), got, source, kind, caveat));
                }
                Ask::Latency { operation, load, when } => {
                    tier.latencies.extend(latency(*operation, *load, when, &got[0], source, caveat));
                }
            }
        }
    }
}

/// How the numbers of a tier are to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// Small accesses are counted.
    pub counted: bool,
    /// No cache was to answer.
    pub cold: bool,
    /// What bounds it.
    pub bounds: Bounds,
}

fn unit(when: &Conditions, over: Axis, kind: &Reads) -> Unit {
    let small = when.bytes.is_some_and(|bytes| bytes <= COUNTED_BYTES_MAX);
    let counted = kind.counted && over != Axis::Bytes && small && when.pattern == Some(Pattern::Random);
    if counted {
        Unit::Operations
    } else {
        Unit::Gigabytes
    }
}

fn curve(
    (when, over, xs): (&Conditions, Axis, &[f64]),
    got: &[Vec<Answer>],
    source: &Citation,
    kind: &Reads,
    caveat: Option<&str>,
) -> Option<Curve> {
    let unit = unit(when, over, kind);
    let mut reasons: Vec<String> = caveat.map(str::to_string).into_iter().collect();
    let mut points = Vec::new();
    for (x, answers) in xs.iter().zip(got) {
        let readings: Vec<&Reading> = answers.iter().filter_map(reading).collect();
        let value = |r: &&Reading| match unit {
            Unit::Operations => r.operations_per_s(),
            _ => r.bytes_per_s() / GB,
        };
        let values: Vec<f64> = readings.iter().map(value).collect();
        points.extend(Estimate::of_repetitions(&values).map(|estimate| Point::new(*x, rounded(estimate))));
        let why = readings.iter().find_map(|r| judge::caveat(r, kind.cold, &kind.bounds));
        if let Some(why) = why.filter(|_| reasons.is_empty()) {
            reasons.push(format!("at {x}: {why}"));
        }
    }
    let curve = Curve {
        when: when.clone(),
        over,
        unit,
        source: source.clone(),
        caveat: reasons.into_iter().next(),
        points,
    };
    (!curve.points.is_empty()).then_some(curve)
}

fn reading(answer: &Answer) -> Option<&Reading> {
    match answer {
        Answer::Bandwidth(reading) => Some(reading),
        Answer::Time(_) => None,
    }
}

/// Four digits: more than the error bars of any measurement allow.
fn rounded(estimate: Estimate) -> Estimate {
    Estimate { value: digits(estimate.value), error: estimate.error.map(digits) }
}

fn digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

fn latency(
    operation: Operation,
    load: Load,
    when: &Conditions,
    answers: &[Answer],
    source: &Citation,
    caveat: Option<&str>,
) -> Option<Latency> {
    let times: Vec<&load::Latency> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Time(times) if times.count() > 0 => Some(times),
            _ => None,
        })
        .collect();
    let mut all = load::Latency::new();
    times.iter().for_each(|t| all.add(t));
    // The value is that of all repetitions together, the error how far one of them is from it.
    let of = |number: &dyn Fn(&load::Latency) -> f64| {
        let value = number(&all);
        let error = times.iter().map(|t| (number(t) - value).abs()).fold(0.0, f64::max);
        Some(rounded(Estimate::new(value, error)))
    };
    // Rounding must not lift a quantile above the longest of all.
    let below = |e: Estimate| Estimate { value: e.value.min(all.max_ns() as f64), ..e };
    let percentile = |percent: f64| of(&move |l: &load::Latency| l.percentile_ns(percent) as f64).map(below);
    (all.count() > 0).then(|| Latency {
        operation,
        load,
        when: when.clone(),
        source: source.clone(),
        note: None,
        caveat: caveat.map(str::to_string),
        samples: Some(all.count()),
        mean_ns: of(&|l| l.mean_ns()),
        deviation_ns: of(&|l| l.deviation_ns()),
        p50_ns: percentile(50.0),
        p90_ns: percentile(90.0),
        p99_ns: percentile(99.0),
        p999_ns: percentile(99.9),
        max_ns: Some(all.max_ns()),
        histogram: all.classes().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Timing;

    fn reading(bytes: u64, operations: u64) -> Answer {
        let ns = 1_000_000_000;
        Answer::Bandwidth(Reading {
            operations: [operations, 0],
            bytes: [bytes, 0],
            ns,
            device_bytes: Some([0, 0]),
        })
    }

    fn answers(asks: Vec<Ask>) -> Answers {
        let timing = Timing { span_ns_min: 1, span_ns_max: 1, overhead_ns: 0, rounds: 3 };
        Answers::new(&Schedule::fit(asks, timing, u64::MAX))
    }

    #[test]
    fn repetitions_become_points_with_error_bars() {
        let when = Conditions { reads_percent: Some(100.0), bytes: Some(1 << 20), ..Conditions::default() };
        let ask = Ask::Curve { when: when.clone(), over: Axis::Threads, xs: vec![1.0, 2.0] };
        let mut answers = answers(vec![ask]);
        for (point, bytes) in [(0, 2e9), (1, 3.5e9), (0, 2.2e9), (1, 3.4e9), (0, 1.9e9), (1, 4e9)] {
            answers.add(Turn { ask: 0, point }, reading(bytes as u64, 1));
        }
        let mut tier = Tier::new("dram", forebay_tier::TierKind::Dram);
        answers.write(&mut tier, &Citation::of("probe"), &Reads::default(), None);
        let curve = &tier.curves[0];
        assert_eq!(curve.unit, Unit::Gigabytes);
        assert_eq!(
            curve.points,
            [Point::new(1.0, Estimate::new(2.0, 0.2)), Point::new(2.0, Estimate::new(3.5, 0.5))]
        );
        assert_eq!(curve.caveat, None);
        // The same readings from a device that delivered nothing.
        let mut tier = Tier::new("direct", forebay_tier::TierKind::Direct);
        let cold = Reads { cold: true, counted: true, ..Reads::default() };
        answers.write(&mut tier, &Citation::of("probe"), &cold, None);
        assert!(tier.curves[0].caveat.as_deref().unwrap().starts_with("at 1: a cache answered"));
    }

    #[test]
    fn small_random_accesses_to_files_are_counted() {
        let small = Conditions { bytes: Some(4096), pattern: Some(Pattern::Random), ..Conditions::default() };
        let counted = Reads { counted: true, ..Reads::default() };
        assert_eq!(unit(&small, Axis::Depth, &counted), Unit::Operations);
        assert_eq!(unit(&small, Axis::Depth, &Reads::default()), Unit::Gigabytes);
        let sequential = Conditions { pattern: Some(Pattern::Sequential), ..small.clone() };
        assert_eq!(unit(&sequential, Axis::Depth, &counted), Unit::Gigabytes);
        assert_eq!(unit(&small, Axis::Bytes, &counted), Unit::Gigabytes);
    }

    #[test]
    fn times_of_all_repetitions_make_one_histogram() {
        let ask = Ask::Latency { operation: Operation::Read, load: Load::Idle, when: Conditions::default() };
        let mut answers = answers(vec![ask]);
        for ns in [100, 110, 90] {
            let mut times = load::Latency::new();
            (0..10).for_each(|_| times.record(ns));
            answers.add(Turn { ask: 0, point: 0 }, Answer::Time(times));
        }
        answers.add(Turn { ask: 0, point: 0 }, Answer::Time(load::Latency::new()));
        let mut tier = Tier::new("dram", forebay_tier::TierKind::Dram);
        answers.write(&mut tier, &Citation::of("probe"), &Reads::default(), Some("cache"));
        let latency = &tier.latencies[0];
        assert_eq!((latency.samples, latency.max_ns, latency.histogram.len()), (Some(30), Some(110), 3));
        assert_eq!(latency.mean_ns, Some(Estimate::new(100.0, 10.0)));
        assert_eq!(latency.p50_ns.unwrap().value, 100.0);
        assert_eq!(latency.caveat.as_deref(), Some("cache"));
    }

    #[test]
    fn rounding_keeps_quantiles_below_the_longest() {
        let ask = Ask::Latency { operation: Operation::Read, load: Load::Idle, when: Conditions::default() };
        let mut answers = answers(vec![ask]);
        let mut times = load::Latency::new();
        times.record(8_009_630);
        answers.add(Turn { ask: 0, point: 0 }, Answer::Time(times));
        let mut tier = Tier::new("direct", forebay_tier::TierKind::Direct);
        answers.write(&mut tier, &Citation::of("probe"), &Reads::default(), None);
        assert_eq!(tier.latencies[0].p999_ns.unwrap().value, 8_009_630.0, "not 8 010 000");
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([123456.0, 0.00123456, 0.0, 9999.6].map(digits), [123500.0, 0.001235, 0.0, 10000.0]);
    }
}
