//! What is asked of a tier: curves and latencies, the more important ones first.
//!
//! Pure: from the kind of tier and the processors to a list. The first profile asks for what the advisor reads (how
//! bandwidth follows concurrency, what small and random accesses cost, what mixing does, latencies, persistence);
//! `--full` for the grid of all of them.

use forebay_tier::{Horizon, TierKind};

use super::find::Found;
use forebay_profile::{Access, Axis, Conditions, Load, Operation, Pattern};

/// Concurrency goes up to this, or to what the node has.
pub const CONCURRENCY_MAX: u32 = 64;

/// Sizes that mean something to memory: a line, the unit of persistent memory, a page, and up.
const MEMORY_BYTES: &[u64] = &[64, 256, 4096, 64 << 10, 1 << 20, 16 << 20];
/// Sizes that mean something to a block device.
const BLOCK_BYTES: &[u64] = &[4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];
/// Below a page: what programs without buffers of their own ask of the page cache.
const CACHED_BYTES: &[u64] = &[512, 1024, 2048];
/// Shares of reads.
const MIXES: &[f64] = &[0.0, 25.0, 50.0, 75.0, 100.0];
/// Requests under way where the question is another one: enough for most drives, few enough for their latency.
const DEPTH: u32 = 16;
/// A small request.
const SMALL: u64 = 4096;
/// A large one.
const LARGE: u64 = 1 << 20;
/// Threads of the curves of a file with a flush for every write: they wait, so more than there are processors.
const FLUSHING_THREADS: &[f64] = &[1.0, 2.0, 4.0, 8.0];

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Bandwidth along an axis.
    Curve {
        /// What is the same at every point.
        when: Conditions,
        /// What runs.
        over: Axis,
        /// Its values, rising.
        xs: Vec<f64>,
    },
    /// The time of an operation.
    Latency {
        /// Which.
        operation: Operation,
        /// What else goes on.
        load: Load,
        /// The rest.
        when: Conditions,
    },
}

impl Ask {
    /// How many measurements it takes, once.
    pub fn points(&self) -> usize {
        match self {
            Ask::Curve { xs, .. } => xs.len(),
            Ask::Latency { .. } => 1,
        }
    }
}

/// 1, 2, 4, … and the largest itself.
pub fn doubling(max: u32) -> Vec<f64> {
    let max = max.clamp(1, CONCURRENCY_MAX);
    let mut all: Vec<f64> = (0..).map(|i| 1u32 << i).take_while(|n| *n < max).map(f64::from).collect();
    all.push(f64::from(max));
    all
}

/// The questions for a tier, the most important first.
pub fn questions(tier: &Found, full: bool) -> Vec<Ask> {
    one_of_each(match tier.kind {
        TierKind::File => file(tier, full),
        TierKind::Direct => direct(tier, full),
        _ => memory(tier, full),
    })
}

/// A grid meets curves that were asked for before it: they stay where they stand, with the points of both.
fn one_of_each(asks: Vec<Ask>) -> Vec<Ask> {
    let mut kept: Vec<Ask> = Vec::new();
    for ask in asks {
        let Ask::Curve { when, over, xs } = &ask else {
            if !kept.contains(&ask) {
                kept.push(ask);
            }
            continue;
        };
        let same =
            |other: &&mut Ask| matches!(other, Ask::Curve { when: w, over: o, .. } if w == when && o == over);
        match kept.iter_mut().find(same) {
            Some(Ask::Curve { xs: points, .. }) => {
                points.extend(xs);
                points.sort_by(f64::total_cmp);
                points.dedup();
            }
            _ => kept.push(ask),
        }
    }
    kept
}

fn curve(when: &Conditions, over: Axis, xs: impl IntoIterator<Item = f64>) -> Ask {
    Ask::Curve { when: when.clone(), over, xs: xs.into_iter().collect() }
}

fn sizes(bytes: &[u64]) -> Vec<f64> {
    bytes.iter().map(|b| *b as f64).collect()
}

/// The instructions or calls behind a share of reads.
fn by_direction(reads_percent: f64, read: Access, write: Access, both: Access) -> Access {
    match reads_percent {
        100.0 => read,
        0.0 => write,
        _ => both,
    }
}

fn memory_when(pattern: Pattern, reads: f64, bytes: Option<u64>, threads: Option<u32>) -> Conditions {
    Conditions {
        pattern: Some(pattern),
        reads_percent: Some(reads),
        access: Some(by_direction(reads, Access::Load, Access::NtStore, Access::LoadNtStore)),
        bytes,
        threads,
        ..Conditions::default()
    }
}

fn memory(tier: &Found, full: bool) -> Vec<Ask> {
    use Pattern::{Random, Sequential};
    let cores = |seat: usize| tier.seats.get(seat).map_or(1, |s| s.processors.len() as u32);
    let most = cores(0).clamp(1, CONCURRENCY_MAX);
    let named = |when: Conditions, seat: usize| from_seat(tier, when, seat);
    let mut asks = Vec::new();
    for reads in [100.0, 0.0] {
        let when = named(memory_when(Sequential, reads, Some(LARGE), None), 0);
        asks.push(curve(&when, Axis::Threads, doubling(cores(0))));
    }
    asks.push(time_of(Operation::Read, Load::Idle, named(chase(1), 0)));
    for (pattern, reads) in [(Random, 100.0), (Random, 0.0), (Sequential, 100.0), (Sequential, 0.0)] {
        let when = named(memory_when(pattern, reads, None, Some(most)), 0);
        asks.push(curve(&when, Axis::Bytes, sizes(MEMORY_BYTES)));
    }
    if most > 1 {
        asks.push(time_of(Operation::Read, Load::Loaded, named(chase(most), 0)));
    }
    let mix = Conditions {
        reads_percent: None,
        access: Some(Access::LoadNtStore),
        ..memory_when(Sequential, 50.0, Some(SMALL), Some(most))
    };
    asks.push(curve(&named(mix, 0), Axis::ReadsPercent, MIXES.iter().copied()));
    persisting_memory(tier, &mut asks);
    if tier.seats.len() > 1 {
        // The farthest: what lies between is asked by --full.
        let far = if full { 1..tier.seats.len() } else { tier.seats.len() - 1..tier.seats.len() };
        for seat in far {
            for reads in [100.0, 0.0] {
                let when = named(memory_when(Sequential, reads, Some(LARGE), None), seat);
                asks.push(curve(&when, Axis::Threads, doubling(cores(seat))));
            }
            asks.push(time_of(Operation::Read, Load::Idle, named(chase(1), seat)));
        }
    }
    if full {
        for pattern in [Sequential, Random] {
            for bytes in MEMORY_BYTES {
                for reads in [100.0, 75.0, 50.0, 25.0, 0.0] {
                    let when = named(memory_when(pattern, reads, Some(*bytes), None), 0);
                    asks.push(curve(&when, Axis::Threads, doubling(cores(0))));
                }
            }
        }
        for threads in doubling(most).into_iter().filter(|t| *t > 1.0 && *t < f64::from(most)) {
            asks.push(time_of(Operation::Read, Load::Loaded, named(chase(threads as u32), 0)));
        }
    }
    asks
}

/// What persisting costs: with each store, and once at the end.
fn persisting_memory(tier: &Found, asks: &mut Vec<Ask>) {
    if tier.kind.is_memory() {
        return; // nothing to persist to
    }
    for horizon in [Horizon::Epoch, Horizon::Write] {
        let when = Conditions {
            access: Some(if horizon == Horizon::Write { Access::StoreFlush } else { Access::NtStore }),
            horizon,
            ..memory_when(Pattern::Sequential, 0.0, None, Some(1))
        };
        asks.push(curve(&from_seat(tier, when, 0), Axis::Bytes, sizes(MEMORY_BYTES)));
    }
    for bytes in [64, SMALL] {
        let when = Conditions {
            access: Some(Access::StoreFlush),
            horizon: Horizon::Write,
            ..memory_when(Pattern::Random, 0.0, Some(bytes), Some(1))
        };
        asks.push(time_of(Operation::Persist, Load::Idle, from_seat(tier, when, 0)));
    }
}

fn from_seat(tier: &Found, when: Conditions, seat: usize) -> Conditions {
    let Some(seat) = tier.seats.get(seat) else { return when };
    let from = (!seat.node.is_empty()).then(|| seat.node.clone());
    Conditions { from, locality: seat.locality, ..when }
}

/// One dependent load after the other.
fn chase(threads: u32) -> Conditions {
    Conditions {
        pattern: Some(Pattern::Random),
        reads_percent: Some(100.0),
        access: Some(Access::Load),
        bytes: Some(64),
        threads: Some(threads),
        ..Conditions::default()
    }
}

fn time_of(operation: Operation, load: Load, when: Conditions) -> Ask {
    Ask::Latency { operation, load, when }
}

fn block_when(access: Access, pattern: Pattern, reads: f64, bytes: Option<u64>) -> Conditions {
    Conditions {
        pattern: Some(pattern),
        reads_percent: Some(reads),
        access: Some(access),
        bytes,
        ..Conditions::default()
    }
}

/// The page cache and its way to the device: cold reads, writes that are on the device at the end, durable writes.
fn file(tier: &Found, full: bool) -> Vec<Ask> {
    use Pattern::{Random, Sequential};
    let cores = tier.seats.first().map_or(1, |s| s.processors.len() as u32);
    let sync = |pattern, reads, bytes| block_when(Access::Sync, pattern, reads, Some(bytes));
    let durable = |when: Conditions, horizon| Conditions { horizon, ..when };
    let mut asks = vec![
        curve(&sync(Sequential, 100.0, LARGE), Axis::Threads, doubling(cores.min(8))),
        curve(&durable(sync(Sequential, 0.0, LARGE), Horizon::Epoch), Axis::Threads, doubling(cores.min(8))),
        curve(
            &durable(sync(Random, 0.0, 8192), Horizon::Write),
            Axis::Threads,
            FLUSHING_THREADS.iter().copied(),
        ),
        curve(&sync(Random, 100.0, SMALL), Axis::Threads, FLUSHING_THREADS.iter().copied()),
        time_of(Operation::Persist, Load::Idle, one(durable(sync(Random, 0.0, 8192), Horizon::Write))),
        time_of(Operation::Read, Load::Idle, one(sync(Random, 100.0, SMALL))),
        curve(&sync(Sequential, 0.0, LARGE), Axis::Threads, [1.0]),
    ];
    if full {
        for pattern in [Sequential, Random] {
            for reads in [100.0, 50.0, 0.0] {
                let horizon = if reads == 100.0 { Horizon::None } else { Horizon::Epoch };
                let when =
                    Conditions { bytes: None, threads: Some(1), ..durable(sync(pattern, reads, 0), horizon) };
                asks.push(curve(&when, Axis::Bytes, sizes(&[CACHED_BYTES, BLOCK_BYTES].concat())));
            }
        }
        for threads in [16.0, 32.0, 64.0] {
            asks.push(curve(&durable(sync(Random, 0.0, 8192), Horizon::Write), Axis::Threads, [threads]));
        }
    }
    asks
}

/// The same questions for a node that refuses io_uring: as many threads as there were to be requests under way, each
/// with one system call at a time.
pub fn without_ring(asks: Vec<Ask>) -> Vec<Ask> {
    let by_threads = |mut when: Conditions| {
        if when.access == Some(Access::IoUring) {
            when.access = Some(Access::Sync);
            when.threads = when.depth.or(when.threads);
            when.depth = Some(1);
        }
        when
    };
    let change = |ask| match ask {
        Ask::Curve { when, over: Axis::Depth, xs } => {
            Ask::Curve { when: Conditions { threads: None, ..by_threads(when) }, over: Axis::Threads, xs }
        }
        Ask::Curve { when, over, xs } => Ask::Curve { when: by_threads(when), over, xs },
        Ask::Latency { operation, load, when } => Ask::Latency { operation, load, when: by_threads(when) },
    };
    // What was asked of single system calls anyway is not asked twice.
    one_of_each(asks.into_iter().map(change).collect())
}

fn one(when: Conditions) -> Conditions {
    Conditions { threads: Some(1), depth: Some(1), ..when }
}

/// Past the page cache, with requests under way.
fn direct(tier: &Found, full: bool) -> Vec<Ask> {
    use Pattern::{Random, Sequential};
    let uring = |pattern, reads, bytes| Conditions {
        threads: Some(1),
        ..block_when(Access::IoUring, pattern, reads, bytes)
    };
    let deep = |when: Conditions| Conditions { depth: Some(DEPTH), ..when };
    let mut asks = Vec::new();
    for reads in [100.0, 0.0] {
        asks.push(curve(&uring(Random, reads, Some(SMALL)), Axis::Depth, doubling(CONCURRENCY_MAX)));
        asks.push(curve(&uring(Sequential, reads, Some(LARGE)), Axis::Depth, [1.0, 2.0, 4.0, 8.0, 16.0]));
    }
    for (operation, reads) in [(Operation::Read, 100.0), (Operation::Write, 0.0)] {
        let when = uring(Random, reads, Some(SMALL));
        asks.push(time_of(operation, Load::Idle, one(when.clone())));
        asks.push(time_of(operation, Load::Loaded, deep(when)));
    }
    for reads in [100.0, 0.0] {
        asks.push(curve(&deep(uring(Sequential, reads, None)), Axis::Bytes, sizes(BLOCK_BYTES)));
    }
    let mix = Conditions { reads_percent: None, ..deep(uring(Random, 50.0, Some(SMALL))) };
    asks.push(curve(&mix, Axis::ReadsPercent, MIXES.iter().copied()));
    let durable = Conditions { horizon: Horizon::Write, ..one(uring(Random, 0.0, Some(SMALL))) };
    asks.push(time_of(Operation::Persist, Load::Idle, durable));
    if full {
        let cores = tier.seats.first().map_or(1, |s| s.processors.len() as u32);
        for bytes in BLOCK_BYTES {
            for pattern in [Sequential, Random] {
                for reads in [100.0, 75.0, 50.0, 25.0, 0.0] {
                    asks.push(curve(
                        &uring(pattern, reads, Some(*bytes)),
                        Axis::Depth,
                        doubling(CONCURRENCY_MAX),
                    ));
                }
            }
        }
        for reads in [100.0, 0.0] {
            let sync = Conditions { depth: Some(1), ..block_when(Access::Sync, Random, reads, Some(SMALL)) };
            asks.push(curve(&sync, Axis::Threads, doubling(CONCURRENCY_MAX.max(cores))));
        }
    }
    asks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::find;
    use crate::sample::{two_sockets_and_cxl, TOLD};

    #[test]
    fn concurrency_doubles_up_to_what_there_is() {
        assert_eq!(doubling(1), [1.0]);
        assert_eq!(doubling(6), [1.0, 2.0, 4.0, 6.0]);
        assert_eq!(doubling(500).last(), Some(&64.0));
    }

    #[test]
    fn every_kind_is_asked_for_what_the_issue_names() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        for tier in &tiers.found {
            let (first, all) = (questions(tier, false), questions(tier, true));
            assert!(first.len() < all.len() && all.starts_with(&first[..1]), "{}", tier.name);
            let over = |axis| first.iter().any(|a| matches!(a, Ask::Curve { over, .. } if *over == axis));
            let concurrency = over(Axis::Threads) || over(Axis::Depth);
            assert!(concurrency, "{}", tier.name);
            if tier.kind != TierKind::File {
                assert!(over(Axis::Bytes) && over(Axis::ReadsPercent), "{}", tier.name);
            }
            let idle = |a: &Ask| matches!(a, Ask::Latency { load: Load::Idle, .. });
            assert!(first.iter().any(idle), "{}", tier.name);
            let persists =
                first.iter().any(|a| matches!(a, Ask::Latency { operation: Operation::Persist, .. }));
            assert_eq!(persists, !tier.kind.is_memory(), "{}", tier.name);
            let whole = all.iter().all(|a| match a {
                Ask::Curve { xs, .. } => !xs.is_empty() && xs.windows(2).all(|w| w[0] < w[1]),
                Ask::Latency { .. } => a.points() == 1,
            });
            assert!(whole, "{}", tier.name);
            let curves = |asks: &[Ask]| -> Vec<(Conditions, Axis)> {
                let curve = |ask: &Ask| match ask {
                    Ask::Curve { when, over, .. } => Some((when.clone(), *over)),
                    Ask::Latency { .. } => None,
                };
                asks.iter().filter_map(curve).collect()
            };
            let all = curves(&all);
            let twice = all.iter().enumerate().find(|(i, one)| all[..*i].contains(one));
            assert_eq!(twice, None, "{}: what is measured twice is in the profile twice", tier.name);
            assert!(curves(&first).iter().all(|one| all.contains(one)), "{}", tier.name);
        }
        let remote = questions(tiers.found.iter().find(|t| t.name == "numa:1").unwrap(), false);
        let far = |a: &Ask| matches!(a, Ask::Curve { when, .. } if when.locality == forebay_profile::Locality::Remote);
        assert_eq!(remote.iter().filter(|a| far(a)).count(), 2, "reads and writes from the other socket");
    }

    #[test]
    fn without_a_ring_threads_stand_for_depth() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let direct = tiers.found.iter().find(|t| t.kind == TierKind::Direct).unwrap();
        let changed = without_ring(questions(direct, true));
        let when = |ask: &Ask| match ask {
            Ask::Curve { when, over, .. } => {
                assert_ne!(*over, Axis::Depth);
                when.clone()
            }
            Ask::Latency { when, .. } => when.clone(),
        };
        assert!(changed.iter().map(when).all(|w| w.depth == Some(1) && w.access == Some(Access::Sync)));
        let most = changed.iter().map(when).filter_map(|w| w.threads).max();
        assert_eq!(most, Some(DEPTH), "the deepest questions keep as much under way");
        assert_eq!(one_of_each(changed.clone()), changed, "nothing is asked twice");
    }
}
