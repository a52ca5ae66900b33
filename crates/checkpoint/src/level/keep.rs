//! Which committed steps stay in a level: the last ones, every n-th for good, and the best by a value given at a save.
//!
//! Guarantees: the newest committed step always stays. What is let go of now would not stay later either, so that ranks
//! that look at different moments drop the same steps. Of several runs' copies of an every n-th step the newest run's
//! stays. Steps without a value take no part in who is best; of equal values the older step stays.

use std::cmp::Ordering;
use std::fmt;

use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::format::StepId;

/// Which committed steps stay in a level, beside those that are still being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// So many of the newest; at least 1.
    #[serde(rename = "keep")]
    pub last: usize,
    /// Every step whose number is a multiple of this one, for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The best by the value that was given when they were saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

/// How many of the best steps stay, and which are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Best {
    /// How many.
    pub count: usize,
    /// What is better.
    pub by: Better,
}

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The smaller one: a loss, a residual.
    Smallest,
    /// The larger one: a score.
    Largest,
}

/// Why a step stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// It is one of the last.
    Last,
    /// Its number is a multiple of `every`.
    Every,
    /// It is one of the best.
    Best,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Reason::Last => "last",
            Reason::Every => "every",
            Reason::Best => "best",
        })
    }
}

impl Keep {
    /// Only the last ones.
    pub fn last(last: usize) -> Keep {
        Keep { last, every: None, best: None }
    }

    /// Whether steps may stay beyond the last ones.
    pub fn is_selective(&self) -> bool {
        self.every.is_some() || self.best.is_some()
    }

    /// Why each committed step stays, of all that are there, the newest first; no reason: it may go.
    pub fn reasons(&self, committed: &[(StepId, Option<f64>)]) -> Vec<Vec<Reason>> {
        let best = self.best.map_or(Vec::new(), |best| best.of(committed));
        let newest_copy = |at: usize, step: u64| committed[..at].iter().all(|(id, _)| id.step != step);
        let of = |(at, (id, _)): (usize, &(StepId, Option<f64>))| {
            let every = self.every.is_some_and(|every| id.step % every == 0) && newest_copy(at, id.step);
            let found =
                [(at < self.last, Reason::Last), (every, Reason::Every), (best.contains(&at), Reason::Best)];
            found.into_iter().filter(|(yes, _)| *yes).map(|(_, reason)| reason).collect()
        };
        committed.iter().enumerate().map(of).collect()
    }
}

impl Best {
    /// The places of the best in a list that has the newest first.
    fn of(&self, committed: &[(StepId, Option<f64>)]) -> Vec<usize> {
        let mut valued: Vec<(usize, f64)> =
            committed.iter().enumerate().filter_map(|(at, (_, value))| Some((at, (*value)?))).collect();
        valued.sort_by(|a, b| {
            let order = a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal);
            let order = if self.by == Better::Largest { order.reverse() } else { order };
            // The older one of two, which comes later in the list: a newer one that is as good displaces nothing.
            order.then(b.0.cmp(&a.0))
        });
        valued.into_iter().take(self.count).map(|(at, _)| at).collect()
    }
}

/// Reads `N` or `N:smallest` or `N:largest`.
pub(crate) fn parse_best(text: &str) -> Result<Best> {
    let (count, by) = text.split_once(':').unwrap_or((text, "smallest"));
    let by = match by {
        "smallest" => Some(Better::Smallest),
        "largest" => Some(Better::Largest),
        _ => None,
    };
    let count = count.parse().ok().filter(|count| *count > 0);
    count.zip(by).map(|(count, by)| Best { count, by }).ok_or_else(|| {
        Error::new(Kind::Usage, format!("best=`{text}`"))
            .hint("the number of retained steps, 1 or more, and the order: best=3:smallest, best=3:largest")
    })
}

/// Refuses a value that cannot be compared.
pub(crate) fn check_metric(value: f64) -> Result<()> {
    match value.is_nan() {
        true => Err(Error::new(Kind::Usage, "the metric of a step is not a number")
            .hint("leave it out for a step that has none: such a step is not among the best")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(step: u64, incarnation: u64) -> StepId {
        StepId { step, incarnation }
    }

    #[test]
    fn steps_stay_for_a_reason() {
        use Reason::{Best as B, Every as E, Last as L};
        let best = Some(Best { count: 2, by: Better::Smallest });
        let keep = Keep { last: 2, every: Some(10), best };
        let steps = [
            (id(24, 2), None),
            (id(23, 2), Some(0.7)),
            (id(20, 2), Some(0.5)),
            (id(20, 1), Some(0.4)),
            (id(19, 1), Some(0.4)),
            (id(11, 1), Some(0.4)),
            (id(10, 1), None),
            (id(9, 1), None),
        ];
        let reasons = keep.reasons(&steps);
        let wanted: [&[Reason]; 8] = [&[L], &[L], &[E], &[], &[B], &[B], &[E], &[]];
        assert_eq!(reasons, wanted);
        let largest = Keep { best: Some(Best { count: 1, by: Better::Largest }), ..keep };
        assert_eq!(largest.reasons(&steps)[1], [L, B]);
        assert_eq!(Keep::last(1).reasons(&steps)[1], []);
    }

    #[test]
    fn a_metric_that_is_no_number_is_refused() {
        assert!(check_metric(f64::NAN).is_err() && check_metric(f64::INFINITY).is_ok());
    }

    #[test]
    fn words_are_read() {
        assert_eq!(parse_best("3").unwrap(), Best { count: 3, by: Better::Smallest });
        assert_eq!(parse_best("1:largest").unwrap(), Best { count: 1, by: Better::Largest });
        for wrong in ["", "0", "-1", "3:max", "3:", "all"] {
            assert_eq!(parse_best(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    proptest! {
        /// A rank that sees more steps than another never keeps what that one has dropped, and the newest always stays.
        #[test]
        fn what_was_let_go_of_stays_gone(
            values in prop::collection::vec(prop::option::of(0..6u8), 1..40),
            last in 1..4usize,
            every in prop::option::of(1..9u64),
            count in prop::option::of(1..4usize),
        ) {
            let best = count.map(|count| Best { count, by: Better::Smallest });
            let keep = Keep { last, every, best };
            let all: Vec<(StepId, Option<f64>)> = values
                .iter()
                .enumerate()
                .map(|(step, value)| (id(step as u64, 1 + step as u64 / 17), value.map(f64::from)))
                .collect();
            // One looks after each step, the other only at the end.
            let mut there: Vec<(StepId, Option<f64>)> = Vec::new();
            for step in &all {
                there.insert(0, *step);
                let reasons = keep.reasons(&there);
                prop_assert!(reasons[0].contains(&Reason::Last));
                let mut stays = reasons.iter().map(|reasons| !reasons.is_empty());
                there.retain(|_| stays.next().unwrap());
            }
            let newest_first: Vec<_> = all.iter().rev().copied().collect();
            let reasons = keep.reasons(&newest_first);
            let at_once: Vec<_> =
                newest_first.iter().zip(&reasons).filter(|(_, r)| !r.is_empty()).map(|(s, _)| *s).collect();
            prop_assert_eq!(there, at_once);
        }
    }
}
