//! The sparse latency histogram of a profile: (longest time of a bucket, operations in it), rising.
//!
//! Pure: from buckets to numbers. Filling one is the work of the measuring code.

/// The time that a share of the operations did not exceed: the longest of its bucket. `None` when there are none.
pub fn quantile(buckets: &[(u64, u64)], share: f64) -> Option<u64> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    // The rank of the operation that is asked for, from 1.
    let rank = ((share * all as f64).ceil() as u64).clamp(1, all.max(1));
    let mut seen = 0;
    buckets
        .iter()
        .find(|(_, count)| {
            seen += count;
            seen >= rank
        })
        .map(|(ns, _)| *ns)
}

/// Share of the operations that took no longer, bucket by bucket: the distribution as a curve.
pub fn cumulative(buckets: &[(u64, u64)]) -> Vec<(u64, f64)> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut seen = 0;
    let step = |(ns, count): &(u64, u64)| {
        seen += count;
        (*ns, seen as f64 / all.max(1) as f64)
    };
    buckets.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
        let buckets = [(100, 90), (200, 9), (5000, 1)];
        for (share, ns) in
            [(0.0, 100), (0.5, 100), (0.9, 100), (0.91, 200), (0.99, 200), (0.999, 5000), (1.0, 5000)]
        {
            assert_eq!(quantile(&buckets, share), Some(ns), "{share}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_distribution_ends_at_all() {
        assert_eq!(cumulative(&[(1, 1), (3, 3)]), [(1, 0.25), (3, 1.0)]);
        assert!(cumulative(&[]).is_empty());
    }
}
