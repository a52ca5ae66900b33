//! Which ranges of a pool this handle has prepared already, so that preparing a recycled segment costs
//! nothing.
//!
//! Sound because pools never release pages while they are open: what was allocated and mapped once stays
//! so.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Disjoint ranges, none touching the next: start to end.
#[derive(Debug, Default)]
pub(super) struct Prepared(Mutex<BTreeMap<u64, u64>>);

impl Prepared {
    /// Whether all of a range was added.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Adds a range, merging it with those it overlaps or touches.
    pub(super) fn add(&self, range: &Range<u64>) {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&before, &before_end)) = ranges.range(..=end).next_back() {
            if before_end < start {
                break;
            }
            ranges.remove(&before);
            start = start.min(before);
            end = end.max(before_end);
        }
        ranges.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn covers_what_a_plain_set_covers(
            added in proptest::collection::vec((0u64..60, 1u64..12), 0..12),
            asked in proptest::collection::vec((0u64..60, 1u64..12), 20),
        ) {
            let prepared = Prepared::default();
            let mut model = [false; 80];
            for (start, len) in added {
                prepared.add(&(start..start + len));
                model[start as usize..(start + len) as usize].fill(true);
            }
            for (start, len) in asked {
                let all = model[start as usize..(start + len) as usize].iter().all(|known| *known);
                prop_assert_eq!(prepared.covers(&(start..start + len)), all);
            }
            let ranges: Vec<(u64, u64)> = prepared.0.lock().unwrap().clone().into_iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?} touch", ranges);
        }
    }
}
