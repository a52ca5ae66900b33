//! Two profiles side by side: ratios, and whether a difference is larger than the error bars.
//!
//! Pure. Guarantees: only numbers of the same thing are compared: same tier, operation, conditions; a difference inside
//! the error bars is *same*; without error bars on both sides the ratio stands there and nothing is concluded.

use super::knee::TierKnee;
use super::{Conditions, Estimate, Latency, Profile, Sample, Tier, Unit};

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The error bars overlap.
    Same,
    /// The second is higher, by more than the error bars.
    Higher,
    /// The second is lower, by more than the error bars.
    Lower,
    /// At least one has no error bar: the ratio is all there is.
    Open,
}

/// Of what two numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// The highest value of a curve, or one that a source states.
    Knee,
    /// A point of a curve.
    Point,
    /// A latency.
    Latency,
    /// A STREAM kernel.
    Stream,
    /// Capacity.
    Capacity,
}

/// Two numbers of the same thing.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Pair {
    /// Name of the tier in the first profile; for STREAM where is read and written.
    pub tier: String,
    /// Of what the numbers are.
    pub measure: Measure,
    /// What exactly: an operation, a quantile, a kernel; empty for bandwidths.
    pub what: String,
    /// The conditions of both.
    pub when: Conditions,
    /// Unit of both: of bandwidths B/s, of rates IOPS, of latencies ns, of capacities B.
    pub unit: &'static str,
    /// The first.
    pub a: Estimate,
    /// The second, in the first's unit.
    pub b: Estimate,
    /// Second over first, with the error of both.
    pub ratio: Estimate,
    /// With how many threads times how deep each knee is reached, where both are those of curves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached_at: Option<[u32; 2]>,
    /// What it says.
    pub verdict: Verdict,
}

/// A bandwidth or rate that is off by no more is close: what two probes of one idle node are to agree in.
const CLOSE: f64 = 0.1;
/// Curves double their threads or depth from point to point, so that a step is a factor.
const STEP: u32 = 2;

/// How well two profiles agree, in numbers of pairs: what to look at when one node was probed twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Agreement {
    /// Points of curves that both have.
    pub points: usize,
    /// Of them those that are the same within their error bars.
    pub points_same: usize,
    /// Of them those that are off by a tenth at most.
    pub points_close: usize,
    /// Knees that both have, with the threads or depth that they are reached at.
    pub knees: usize,
    /// Of them those that are reached within one step of a curve: half or twice as many.
    pub knees_within_step: usize,
    /// Of them those whose highest value is the same within the error bars.
    pub knees_same: usize,
    /// Of them those whose highest value is off by a tenth at most.
    pub knees_close: usize,
}

/// Two profiles compared.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// What both have.
    pub pairs: Vec<Pair>,
    /// Tiers of the first that the second lacks.
    pub only_a: Vec<String>,
    /// Tiers of the second that the first lacks.
    pub only_b: Vec<String>,
}

/// Whether `b` differs from `a` by more than both error bars.
pub fn verdict(a: Estimate, b: Estimate) -> Verdict {
    let (Some(error_a), Some(error_b)) = (a.error, b.error) else { return Verdict::Open };
    let difference = b.value - a.value;
    match difference.abs() <= error_a + error_b {
        true => Verdict::Same,
        false if difference > 0.0 => Verdict::Higher,
        false => Verdict::Lower,
    }
}

/// `b / a`; the relative errors add up, as the worst case. Infinite or not a number when `a` is 0.
pub fn ratio(a: Estimate, b: Estimate) -> Estimate {
    let value = b.value / a.value;
    let relative = |e: Estimate| e.error.map(|error| error / e.value.abs());
    let error = relative(a).zip(relative(b)).map(|(x, y)| value.abs() * (x + y)).filter(|e| e.is_finite());
    Estimate { value, error }
}

/// Compares everything that both profiles have.
pub fn compare(a: &Profile, b: &Profile) -> Comparison {
    let partners = partners(a, b);
    let mut out = Comparison::default();
    for (left, right) in &partners {
        capacities(&mut out, left, right);
        knees(&mut out, left, right);
        points(&mut out, left, right);
        latencies(&mut out, left, right);
    }
    streams(&mut out, a, b, &partners);
    let lacks = |tiers: &[Tier], has: &dyn Fn(&str) -> bool| -> Vec<String> {
        tiers.iter().map(|t| t.name.clone()).filter(|name| !has(name)).collect()
    };
    out.only_a = lacks(&a.tiers, &|name| partners.iter().any(|(l, _)| l.name == name));
    out.only_b = lacks(&b.tiers, &|name| partners.iter().any(|(_, r)| r.name == name));
    out
}

/// Tiers of the same name, then those that are alone of their kind in both profiles.
pub fn partners<'a>(a: &'a Profile, b: &'a Profile) -> Vec<(&'a Tier, &'a Tier)> {
    let alone = |profile: &'a Profile, tier: &Tier| {
        let mut same = profile.tiers.iter().filter(|t| t.kind == tier.kind);
        same.next().filter(|_| same.next().is_none())
    };
    let partner = |left: &'a Tier| {
        let by_kind = || alone(b, left).filter(|right| alone(a, right).is_some());
        b.tier(&left.name).or_else(by_kind).map(|right| (left, right))
    };
    a.tiers.iter().filter_map(partner).collect()
}

impl Comparison {
    /// How well they agree.
    pub fn agreement(&self) -> Agreement {
        let mut out = Agreement::default();
        let close = |pair: &Pair| usize::from((pair.ratio.value - 1.0).abs() <= CLOSE);
        let same = |pair: &Pair| usize::from(pair.verdict == Verdict::Same);
        for pair in &self.pairs {
            match (pair.measure, pair.reached_at) {
                (Measure::Point, _) => {
                    out.points += 1;
                    out.points_same += same(pair);
                    out.points_close += close(pair);
                }
                (Measure::Knee, Some([a, b])) => {
                    out.knees += 1;
                    out.knees_within_step += usize::from(a.max(b) <= STEP * a.min(b));
                    out.knees_same += same(pair);
                    out.knees_close += close(pair);
                }
                _ => {}
            }
        }
        out
    }

    fn add(
        &mut self,
        place: (&str, Measure, &str),
        when: &Conditions,
        unit: &'static str,
        (a, b): (Estimate, Estimate),
    ) {
        if a.value <= 0.0 {
            return;
        }
        self.pairs.push(Pair {
            tier: place.0.to_owned(),
            measure: place.1,
            what: place.2.to_owned(),
            when: when.clone(),
            unit,
            a,
            b,
            ratio: ratio(a, b),
            reached_at: None,
            verdict: verdict(a, b),
        });
    }
}

/// In B/s where the unit is a bandwidth, else in IOPS.
fn plain(value: Estimate, unit: Unit) -> (Estimate, &'static str) {
    match unit.bytes() {
        Some(factor) => (value.scaled(factor), "B/s"),
        None => (value, "IOPS"),
    }
}

/// Several sources may say something of the same: the one that differs least, the first of equals.
fn nearest<'a, T>(
    candidates: impl Iterator<Item = &'a T>,
    differs: impl Fn(&T) -> (bool, bool),
) -> Option<&'a T> {
    candidates.min_by_key(|candidate| differs(candidate))
}

fn capacities(out: &mut Comparison, left: &Tier, right: &Tier) {
    if let (Some(a), Some(b)) = (&left.capacity, &right.capacity) {
        // Capacities are exact.
        let exact = |bytes: u64| Estimate::new(bytes as f64, 0.0);
        let place = (left.name.as_str(), Measure::Capacity, "");
        out.add(place, &Conditions::default(), "B", (exact(a.bytes), exact(b.bytes)));
    }
}

/// Knees under the same conditions; with how many threads they are reached may differ, that is part of the result.
fn knees(out: &mut Comparison, left: &Tier, right: &Tier) {
    let theirs = right.all_knees();
    for mine in left.all_knees().iter().filter(|k| k.caveat.is_none()) {
        let mut wanted = mine.when.clone();
        let same = |k: &&TierKnee<'_>| {
            (wanted.threads, wanted.depth) = (k.when.threads, k.when.depth);
            k.caveat.is_none() && k.when == wanted && k.unit.bytes().is_some() == mine.unit.bytes().is_some()
        };
        let Some(partner) =
            nearest(theirs.iter().filter(same), |k| (k.source != mine.source, k.stated != mine.stated))
        else {
            continue;
        };
        let ((a, unit), (b, _)) = (plain(mine.highest, mine.unit), plain(partner.highest, partner.unit));
        let place = (left.name.as_str(), Measure::Knee, "");
        let known = out.pairs.len();
        out.add(place, &mine.when, unit, (a, b));
        // What a source states was taken where it liked, which need not be the least.
        let at =
            |knee: &TierKnee<'_>| (!knee.stated).then_some(knee.when.threads? * knee.when.depth.unwrap_or(1));
        let reached = at(mine).zip(at(partner)).map(|(a, b)| [a, b]);
        out.pairs[known..].iter_mut().for_each(|pair| pair.reached_at = reached);
    }
}

fn points(out: &mut Comparison, left: &Tier, right: &Tier) {
    let theirs: Vec<Sample<'_>> = right.samples().filter(|s| s.caveat.is_none()).collect();
    for mine in left.samples().filter(|s| s.caveat.is_none()) {
        let is_bandwidth = |unit: Unit| unit.bytes().is_some();
        let same = |s: &&Sample<'_>| s.when == mine.when && is_bandwidth(s.unit) == is_bandwidth(mine.unit);
        let Some(partner) = nearest(theirs.iter().filter(same), |s| (s.source != mine.source, false)) else {
            continue;
        };
        let ((a, unit), (b, _)) = (plain(mine.value, mine.unit), plain(partner.value, partner.unit));
        out.add((&left.name, Measure::Point, ""), &mine.when, unit, (a, b));
    }
}

fn latencies(out: &mut Comparison, left: &Tier, right: &Tier) {
    for mine in left.latencies.iter().filter(|l| l.caveat.is_none()) {
        let same = |l: &&Latency| {
            l.caveat.is_none() && l.operation == mine.operation && l.load == mine.load && l.when == mine.when
        };
        let candidates = right.latencies.iter().filter(same);
        let Some(partner) = nearest(candidates, |l| (l.source != mine.source, false)) else { continue };
        let fields = [
            ("mean", mine.mean_ns, partner.mean_ns),
            ("p50", mine.p50_ns, partner.p50_ns),
            ("p90", mine.p90_ns, partner.p90_ns),
            ("p99", mine.p99_ns, partner.p99_ns),
            ("p99.9", mine.p999_ns, partner.p999_ns),
        ];
        for (word, a, b) in fields {
            let Some(both) = a.zip(b) else { continue };
            let what = format!("{} {} {word}", mine.load, mine.operation);
            out.add((&left.name, Measure::Latency, &what), &mine.when, "ns", both);
        }
    }
}

fn streams(out: &mut Comparison, a: &Profile, b: &Profile, partners: &[(&Tier, &Tier)]) {
    let theirs = |name: &str| partners.iter().find(|(l, _)| l.name == name).map(|(_, r)| r.name.as_str());
    for mine in a.streams.iter().filter(|s| s.caveat.is_none()) {
        let same = b.streams.iter().find(|s| {
            let places = theirs(&mine.read) == Some(&s.read) && theirs(&mine.write) == Some(&s.write);
            places && s.caveat.is_none() && s.horizon == mine.horizon
        });
        let Some(partner) = same else { continue };
        let place = format!("{} to {}", mine.read, mine.write);
        let when = Conditions { horizon: mine.horizon, threads: mine.threads, ..Conditions::default() };
        let kernels = [
            ("copy", mine.copy, partner.copy),
            ("scale", mine.scale, partner.scale),
            ("add", mine.add, partner.add),
            ("triad", mine.triad, partner.triad),
        ];
        for (kernel, x, y) in kernels {
            let both = (plain(x, mine.unit).0, plain(y, partner.unit).0);
            out.add((&place, Measure::Stream, kernel), &when, "B/s", both);
        }
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
