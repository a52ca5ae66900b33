//! `stats`: counts what a device is asked to do, by kind of operation: how often, how many bytes, how long.
//!
//! Guarantees: counts are exact in total under any number of threads, unordered with the data; an operation
//! costs two looks at the clock and a few relaxed additions more. They are of this handle only: each process
//! counts its own. Not counted: what [`super::OpKind`] does not list.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use serde::Serialize;

use super::around::{Around, Op, Run};
use super::OpKind;
use crate::{clock, Device, Result};

/// Buckets of a histogram: bucket `i` counts operations of 2^i to 2^(i+1) ns, the first also shorter ones, the
/// last also longer ones.
pub const BUCKETS: usize = 40;

/// A device that counts.
pub struct Stats {
    inner: Arc<dyn Device>,
    counts: [Counts; OpKind::ALL.len()],
}

/// What is counted of one kind of operation; on cache lines of its own.
#[repr(align(64))]
struct Counts {
    operations: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

/// What one kind of operation did until now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpCounts {
    /// Calls, those that failed included.
    pub operations: u64,
    /// Calls that gave an error.
    pub errors: u64,
    /// Bytes of the ranges of the calls that succeeded.
    pub bytes: u64,
    /// Nanoseconds inside the calls, added up over threads.
    pub busy_ns: u64,
    /// How many calls took 2^i to 2^(i+1) ns; up to the last bucket that is not empty.
    pub latency_log2_ns: Vec<u64>,
}

/// What a device did until now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Allocating space.
    pub prepare: OpCounts,
    /// Bytes in.
    pub write: OpCounts,
    /// Bytes out.
    pub read: OpCounts,
    /// Making persistent.
    pub persist: OpCounts,
    /// Words in.
    pub word: OpCounts,
}

impl OpCounts {
    /// A bound in nanoseconds that the given share (0 to 1) of the calls stayed below: the end of the bucket in
    /// which that call lies, so at most twice what it took. None without calls.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let wanted = ((self.operations as f64 * share.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        self.latency_log2_ns
            .iter()
            .position(|n| {
                seen += n;
                seen >= wanted
            })
            .map(|bucket| 2 << bucket)
    }
}

fn bucket(ns: u64) -> usize {
    (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
}

impl Counts {
    fn new() -> Counts {
        Counts {
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            latency: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    fn note(&self, bytes: Option<u64>, ns: u64) {
        self.operations.fetch_add(1, Relaxed);
        match bytes {
            Some(bytes) => self.bytes.fetch_add(bytes, Relaxed),
            None => self.errors.fetch_add(1, Relaxed),
        };
        self.busy_ns.fetch_add(ns, Relaxed);
        self.latency[bucket(ns)].fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> OpCounts {
        let mut latency: Vec<u64> = self.latency.iter().map(|n| n.load(Relaxed)).collect();
        let used = latency.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        latency.truncate(used);
        OpCounts {
            operations: self.operations.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            latency_log2_ns: latency,
        }
    }
}

impl Stats {
    /// Counts what goes to `inner` through this value from now on.
    pub fn new(inner: Arc<dyn Device>) -> Stats {
        Stats { inner, counts: std::array::from_fn(|_| Counts::new()) }
    }

    /// The counts until now. Calls that run meanwhile may be in some of the numbers and not in others.
    pub fn snapshot(&self) -> Snapshot {
        let of = |kind: OpKind| self.counts[kind as usize].snapshot();
        Snapshot {
            prepare: of(OpKind::Prepare),
            write: of(OpKind::Write),
            read: of(OpKind::Read),
            persist: of(OpKind::Persist),
            word: of(OpKind::Word),
        }
    }
}

impl Around for Stats {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn around(&self, op: Op, run: Run<'_>) -> Result<()> {
        let began = clock::now_ns();
        let result = run(0..op.bytes);
        let ns = clock::now_ns().saturating_sub(began);
        self.counts[op.kind as usize].note(result.is_ok().then_some(op.bytes), ns);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierKind;

    #[test]
    fn every_kind_is_counted_with_its_bytes_and_errors() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = crate::create(TierKind::Dram, &dir.path().join("pool"), 1 << 20).unwrap();
        let stats = Stats::new(pool);
        stats.prepare(0..8192).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let stats = &stats;
                scope.spawn(move || (0..100).for_each(|_| stats.write(thread * 64, &[1; 64]).unwrap()));
            }
        });
        stats.write_checksummed(4096, &[2; 1000], 256, &mut Vec::new()).unwrap();
        let staged = stats.stage(0..64).unwrap();
        stats.unstage(staged, None, &mut Vec::new()).unwrap();
        stats.write(1 << 20, &[0; 8]).unwrap_err();
        stats.store_word(0, 1).unwrap();
        stats.persist(0..64).unwrap();
        stats.persist_written(0..64).unwrap();
        stats.read(0, &mut [0; 10]).unwrap();
        stats.will_read(0..90).unwrap();
        let seen = stats.snapshot();
        let numbers = |c: &OpCounts| (c.operations, c.errors, c.bytes);
        assert_eq!(numbers(&seen.prepare), (1, 0, 8192));
        assert_eq!(numbers(&seen.write), (403, 1, 400 * 64 + 1000 + 64));
        assert_eq!(numbers(&seen.word), (1, 0, 8));
        assert_eq!(numbers(&seen.persist), (2, 0, 128));
        assert_eq!(numbers(&seen.read), (2, 0, 100));
        for counts in [&seen.prepare, &seen.write, &seen.read, &seen.persist, &seen.word] {
            assert_eq!(counts.latency_log2_ns.iter().sum::<u64>(), counts.operations);
            assert_ne!(counts.latency_log2_ns.last(), Some(&0));
        }
    }

    #[test]
    fn buckets_and_quantiles() {
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024, u64::MAX].map(bucket), [0, 0, 1, 1, 2, 9, 10, BUCKETS - 1]);
        let counts = OpCounts { operations: 10, latency_log2_ns: vec![0, 9, 0, 1], ..OpCounts::default() };
        assert_eq!(counts.quantile_ns(0.5), Some(4));
        assert_eq!(counts.quantile_ns(0.9), Some(4));
        assert_eq!(counts.quantile_ns(0.91), Some(16));
        assert_eq!(counts.quantile_ns(1.0), Some(16));
        assert_eq!(OpCounts::default().quantile_ns(0.5), None);
    }
}
