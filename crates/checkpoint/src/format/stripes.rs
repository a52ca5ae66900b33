//! Which slices of which pieces a parity file is made of: the stripes of a group, and who keeps their parity.
//!
//! Described in docs/src/formats/checkpoint.md. Who is in a group is not said here.

/// Most nodes of a group: every one of them is read to rebuild a piece.
pub(crate) const GROUP_NODES_MAX: u32 = 256;

/// A stripe as one keeper sees it: which of its parity symbols is kept, and of which pieces' slices it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) symbol: usize,
    /// The slots, in order; the n-th gives its slice n.
    pub(crate) sources: Vec<usize>,
}

/// The stripes of which the keeper at `position` of a group of `slots` has a symbol each.
///
/// Stripe t has its parity at the positions t, t + 1, … (as many as may be lost), and data at all others: so each
/// position has parity of exactly those stripes in which it has no data.
pub(crate) fn stripes(slots: usize, lost_max: usize, position: usize) -> Vec<Stripe> {
    if slots == 1 {
        return vec![Stripe { symbol: 0, sources: vec![0] }];
    }
    let stripe = |symbol: usize| {
        let first = (slots + position - symbol) % slots;
        let sources = (0..slots - lost_max).map(|nth| (first + lost_max + nth) % slots).collect();
        Stripe { symbol, sources }
    };
    (0..lost_max).map(stripe).collect()
}

/// Of the slice `slice` of the piece in `slot`: the position of the keeper of symbol 0 of its stripe.
pub(crate) fn first_holder(slots: usize, lost_max: usize, slot: usize, slice: usize) -> usize {
    match slots {
        1 => 0,
        _ => (2 * slots + slot - lost_max - slice) % slots,
    }
}

/// Pieces that a slice of each makes one codeword.
pub(crate) fn data_slots(slots: usize, lost_max: usize) -> usize {
    if slots == 1 {
        1
    } else {
        slots - lost_max
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_stripe_has_each_node_once() {
        for (slots, lost_max) in [(2, 1), (4, 1), (6, 2), (7, 3), (3, 2)] {
            // By first position: the positions of its parity and of its data.
            let mut seen = vec![Vec::new(); slots];
            let mut slices = HashSet::new();
            for position in 0..slots {
                for stripe in stripes(slots, lost_max, position) {
                    let first = (slots + position - stripe.symbol) % slots;
                    seen[first].push(position);
                    assert_eq!(stripe.sources.len(), data_slots(slots, lost_max));
                    if stripe.symbol == 0 {
                        seen[first].extend(&stripe.sources);
                    }
                    for (slice, slot) in stripe.sources.iter().enumerate() {
                        assert_eq!(first_holder(slots, lost_max, *slot, slice), first);
                        slices.insert((*slot, slice));
                    }
                }
            }
            for mut all in seen {
                all.sort_unstable();
                assert_eq!(all, (0..slots).collect::<Vec<_>>(), "{slots} {lost_max}");
            }
            assert_eq!(slices.len(), slots * (slots - lost_max), "every slice of every piece is in a stripe");
        }
    }
}
