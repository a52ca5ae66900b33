//! A tier of a profile in one row: what a person wants to see of it first.
//!
//! Pure. Every number comes with the share of it that repetitions differed by.

use forebay_profile::{Access, Axis, Curve, Estimate, Load, Locality, Operation, Pattern, Tier, Unit};

/// The highest value of a curve, and the fewest that nearly reach it.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The highest value, in `unit`.
    pub value: Estimate,
    /// Its unit.
    pub unit: Unit,
    /// The fewest threads, or the least depth, that reach 95 % of it.
    pub reached_at: u32,
    /// What runs along the curve.
    pub over: Axis,
    /// Why it is not to be believed, if so.
    pub caveat: Option<String>,
}

/// See the file's head. What the profile does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Sequential reads.
    pub read: Option<Best>,
    /// Sequential writes: those that are on the medium at the end, where there are such.
    pub write: Option<Best>,
    /// Small random reads.
    pub random_read: Option<Best>,
    /// Small random writes, or durable ones where that is what was asked.
    pub random_write: Option<Best>,
    /// Half reads, half writes.
    pub mixed: Option<(Estimate, Unit)>,
    /// Median and 99th percentile of a read when nothing else goes on, ns.
    pub idle: Option<(Estimate, Estimate)>,
    /// The same under load.
    pub loaded: Option<(Estimate, Estimate)>,
    /// The same of making a small write persistent.
    pub persist: Option<(Estimate, Estimate)>,
}

/// The row of a tier.
pub fn row(tier: &Tier) -> Row {
    let sequential = |reads| knee(tier, reads, Pattern::Sequential);
    let random = |reads| knee(tier, reads, Pattern::Random);
    Row {
        read: sequential(100.0),
        write: sequential(0.0),
        random_read: random(100.0).or_else(|| sized(tier, 100.0)),
        random_write: random(0.0).or_else(|| sized(tier, 0.0)),
        mixed: mixed(tier),
        idle: time(tier, Operation::Read, Load::Idle),
        loaded: time(tier, Operation::Read, Load::Loaded),
        persist: time(tier, Operation::Persist, Load::Idle),
    }
}

fn local(curve: &&Curve) -> bool {
    curve.when.locality == Locality::Local && curve.when.beside.is_none()
}

/// The knee of the curve over threads or depth that reaches farthest; of random accesses among the smallest, which a
/// full profile has beside larger ones.
fn knee(tier: &Tier, reads: f64, pattern: Pattern) -> Option<Best> {
    let fits = |c: &&Curve| {
        matches!(c.over, Axis::Threads | Axis::Depth)
            && c.when.reads_percent == Some(reads)
            && c.when.pattern == Some(pattern)
            // What only went into a cache is no answer to how fast the tier is.
            && !(c.when.access == Some(Access::Sync) && reads == 0.0 && c.when.horizon == forebay_tier::Horizon::None)
    };
    let found: Vec<&Curve> = tier.curves.iter().filter(local).filter(fits).collect();
    let least = found.iter().filter_map(|c| c.when.bytes).min().filter(|_| pattern == Pattern::Random);
    let wanted = found.into_iter().filter(|c| least.is_none() || c.when.bytes == least);
    wanted.filter_map(best).reduce(|a, b| if in_bytes(&b) > in_bytes(&a) { b } else { a })
}

fn in_bytes(best: &Best) -> f64 {
    best.value.value * best.unit.bytes().unwrap_or(1.0)
}

/// Highest value and knee of a curve.
fn best(curve: &Curve) -> Option<Best> {
    let knee = curve.knee()?;
    Some(Best {
        value: knee.highest,
        unit: curve.unit,
        reached_at: knee.reached_at as u32,
        over: curve.over,
        caveat: curve.caveat.clone(),
    })
}

/// Random accesses of a line, from a curve over sizes.
fn sized(tier: &Tier, reads: f64) -> Option<Best> {
    let fits = |c: &&Curve| {
        c.over == Axis::Bytes
            && c.when.reads_percent == Some(reads)
            && c.when.pattern == Some(Pattern::Random)
    };
    let curve = tier.curves.iter().filter(local).find(fits)?;
    let small = curve.points.first()?;
    let threads = curve.when.threads.unwrap_or(1);
    let caveat = curve.caveat.clone();
    Some(Best { value: small.y, unit: curve.unit, reached_at: threads, over: Axis::Threads, caveat })
}

fn mixed(tier: &Tier) -> Option<(Estimate, Unit)> {
    let curve = tier.curves.iter().filter(local).find(|c| c.over == Axis::ReadsPercent)?;
    let half = curve.points.iter().find(|p| p.x == 50.0)?;
    Some((half.y, curve.unit))
}

fn time(tier: &Tier, operation: Operation, load: Load) -> Option<(Estimate, Estimate)> {
    let fits = |l: &&forebay_profile::Latency| {
        l.operation == operation && l.load == load && l.when.locality == Locality::Local
    };
    let latency = tier.latencies.iter().find(fits)?;
    latency.p50_ns.zip(latency.p99_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_profile::{Citation, Conditions, Point};

    fn curve(over: Axis, reads: Option<f64>, pattern: Pattern, points: &[(f64, f64)]) -> Curve {
        Curve {
            when: Conditions { reads_percent: reads, pattern: Some(pattern), ..Conditions::default() },
            over,
            unit: Unit::Gigabytes,
            source: Citation::of("x"),
            caveat: None,
            points: points.iter().map(|(x, y)| Point::new(*x, Estimate::new(*y, 0.1))).collect(),
        }
    }

    #[test]
    fn a_row_says_the_highest_and_the_fewest_that_reach_it() {
        let mut tier = Tier::new("dram", forebay_tier::TierKind::Dram);
        let sequential = [(1.0, 5.0), (2.0, 9.6), (4.0, 10.0), (8.0, 7.0)];
        tier.curves.push(curve(Axis::Threads, Some(100.0), Pattern::Sequential, &sequential));
        tier.curves.push(curve(Axis::Bytes, Some(100.0), Pattern::Random, &[(64.0, 1.5), (4096.0, 8.0)]));
        tier.curves.push(curve(Axis::ReadsPercent, None, Pattern::Sequential, &[(0.0, 4.0), (50.0, 6.0)]));
        let mut far = curve(Axis::Threads, Some(100.0), Pattern::Sequential, &[(1.0, 99.0)]);
        far.when.locality = Locality::Remote;
        tier.curves.push(far);
        let row = row(&tier);
        let read = row.read.unwrap();
        assert_eq!((read.value.value, read.reached_at), (10.0, 2), "the remote curve does not count");
        assert_eq!(row.random_read.unwrap().value.value, 1.5);
        assert_eq!(row.mixed.unwrap().0.value, 6.0);
        assert_eq!((row.write, row.idle), (None, None));
    }

    #[test]
    fn of_random_accesses_the_smallest_stand_in_the_row() {
        let mut tier = Tier::new("direct", forebay_tier::TierKind::Direct);
        for (bytes, highest) in [(16 << 20, 9.0), (4096, 2.0), (65536, 5.0)] {
            for pattern in [Pattern::Random, Pattern::Sequential] {
                let mut one = curve(Axis::Depth, Some(100.0), pattern, &[(1.0, highest)]);
                one.when.bytes = Some(bytes);
                tier.curves.push(one);
            }
        }
        let row = row(&tier);
        assert_eq!((row.random_read.unwrap().value.value, row.read.unwrap().value.value), (2.0, 9.0));
    }
}
