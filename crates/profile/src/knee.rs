//! The knee of a curve: the highest value, and the fewest threads or the least depth that nearly reach it.
//!
//! Pure: from points to numbers.

use super::{Axis, Citation, Conditions, Curve, Estimate, Point, Tier, Unit};

/// Share of the highest value that counts as reached.
pub const REACHED: f64 = 0.95;

/// Where a curve stops to rise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// The highest value.
    pub highest: Estimate,
    /// Where it is.
    pub highest_at: f64,
    /// The smallest x whose value is at least [`REACHED`] of the highest. Between points nothing is assumed.
    pub reached_at: f64,
    /// The value there.
    pub reached: Estimate,
}

/// A knee of a tier, computed from a curve or stated by a source.
#[derive(Clone, Debug, PartialEq)]
pub struct TierKnee<'a> {
    /// The conditions; threads or depth are those of the knee, where they are known.
    pub when: Conditions,
    /// Unit.
    pub unit: Unit,
    /// The highest value.
    pub highest: Estimate,
    /// Where it comes from.
    pub source: &'a Citation,
    /// What the source adds.
    pub note: Option<&'a str>,
    /// Why it is not to be believed, if so.
    pub caveat: Option<&'a str>,
    /// Stated by the source itself, not computed from points.
    pub stated: bool,
}

/// The knee of points by rising x; `None` without a value above 0.
pub fn knee(points: &[Point]) -> Option<Knee> {
    let above = points.iter().filter(|p| p.y.value > 0.0);
    // The first of equals: fewer threads.
    let top = above.reduce(|best, p| if p.y.value > best.y.value { p } else { best })?;
    let first = points.iter().find(|p| p.y.value >= REACHED * top.y.value)?;
    Some(Knee { highest: top.y, highest_at: top.x, reached_at: first.x, reached: first.y })
}

impl Curve {
    /// Its knee; `None` for a curve over something else than threads or depth.
    pub fn knee(&self) -> Option<Knee> {
        matches!(self.over, Axis::Threads | Axis::Depth).then(|| knee(&self.points))?
    }
}

impl Tier {
    /// Knees of its curves over threads or depth, then those that sources state.
    pub fn all_knees(&self) -> Vec<TierKnee<'_>> {
        let computed = self.curves.iter().filter_map(|curve| {
            let knee = curve.knee()?;
            Some(TierKnee {
                when: curve.when.at(curve.over, knee.reached_at),
                unit: curve.unit,
                highest: knee.highest,
                source: &curve.source,
                note: None,
                caveat: curve.caveat.as_deref(),
                stated: false,
            })
        });
        let stated = self.knees.iter().map(|knee| TierKnee {
            when: knee.when.clone(),
            unit: knee.unit,
            highest: knee.highest,
            source: &knee.source,
            note: knee.note.as_deref(),
            caveat: None,
            stated: true,
        });
        computed.chain(stated).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(f64, f64)]) -> Vec<Point> {
        values.iter().map(|(x, y)| Point::new(*x, Estimate::bare(*y))).collect()
    }

    #[test]
    fn the_fewest_that_nearly_reach_the_highest() {
        let rising = points(&[(1.0, 10.0), (2.0, 19.0), (4.0, 38.0), (8.0, 39.4), (16.0, 39.0)]);
        let knee = knee(&rising).unwrap();
        assert_eq!((knee.highest.value, knee.highest_at, knee.reached_at), (39.4, 8.0, 4.0));
        assert_eq!(knee.reached.value, 38.0);
    }

    #[test]
    fn exactly_95_percent_counts_and_a_falling_curve_has_its_knee_at_its_begin() {
        assert_eq!(knee(&points(&[(1.0, 95.0), (2.0, 100.0)])).unwrap().reached_at, 1.0);
        assert_eq!(knee(&points(&[(1.0, 94.9), (2.0, 100.0)])).unwrap().reached_at, 2.0);
        let falling = knee(&points(&[(1.0, 9.0), (2.0, 5.0)])).unwrap();
        assert_eq!((falling.highest_at, falling.reached_at), (1.0, 1.0));
        let flat = knee(&points(&[(1.0, 5.0), (2.0, 5.0), (4.0, 5.0)])).unwrap();
        assert_eq!((flat.highest_at, flat.reached_at), (1.0, 1.0));
    }

    #[test]
    fn nothing_has_no_knee() {
        assert_eq!(knee(&[]), None);
        assert_eq!(knee(&points(&[(1.0, 0.0), (2.0, 0.0)])), None);
        assert_eq!(knee(&points(&[(1.0, f64::NAN)])), None);
        assert_eq!(knee(&points(&[(1.0, f64::NAN), (2.0, 3.0)])).unwrap().highest.value, 3.0);
    }
}
