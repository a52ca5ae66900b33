//! Direct writes against a model: any offset, length and alignment of memory, read back in every way there is.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::checksum::crc32c;
use crate::skips::skipped;

const POOL_BYTES: usize = 4 << 20;

/// A pool in the temporary directory, which goes with the first value; None (said) where that takes no direct writes.
fn pool(what: &str, engine: Engine) -> Option<(tempfile::TempDir, Direct)> {
    let dir = tempfile::tempdir().unwrap();
    match Direct::create(&dir.path().join("pool"), POOL_BYTES as u64) {
        Ok(pool) => {
            pool.prepare(0..POOL_BYTES as u64).unwrap();
            Some((dir, Direct { engine, ..pool }))
        }
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            skipped(what, e.message());
            None
        }
    }
}

fn engines() -> Vec<Engine> {
    Engine::io_uring().into_iter().chain([Engine::threads()]).collect()
}

/// One write: where, how much, how far the memory is from a page, the chunk of its checksums or 0.
type Step = (usize, usize, usize, usize);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let small = (0..3 * EDGE_BYTES, 1..3 * EDGE_BYTES);
    let aligned = (0..64usize, 1..300usize).prop_map(|(at, blocks)| (at * EDGE_BYTES, blocks * EDGE_BYTES));
    let large = (0..POOL_BYTES, STRAIGHT_BYTES_MIN..3 * REQUEST_BYTES);
    let place = prop_oneof![small, aligned, large];
    let skew = prop_oneof![Just(0usize), 0..EDGE_BYTES, Just(usize::MAX)];
    let chunk = prop_oneof![Just(0usize), Just(65_536), 1000..100_000usize];
    proptest::collection::vec(
        (place, skew, chunk).prop_map(|((at, len), skew, chunk)| (at, len, skew, chunk)),
        1..12,
    )
}

fn source(len: usize, skew: usize, seed: u8) -> (Aligned, usize) {
    let mut memory = Aligned::new(len + skew);
    for (i, byte) in memory.as_mut_slice()[skew..].iter_mut().enumerate() {
        *byte = (i as u8).wrapping_mul(17) ^ (i >> 12) as u8 ^ seed;
    }
    (memory, skew)
}

/// Runs the steps and compares after each: mapping, direct reads, page cache, the cache of edges.
fn run(pool: &Direct, steps: &[Step]) {
    let mut model = vec![0u8; POOL_BYTES];
    pool.write(0, &model).unwrap();
    for (seed, (at, len, skew, chunk)) in steps.iter().copied().enumerate() {
        let len = len.min(POOL_BYTES - at);
        // usize::MAX: memory that leaves the same remainder as the offset, as staged memory does.
        let skew = if skew == usize::MAX { at % EDGE_BYTES } else { skew };
        let (memory, skew) = source(len, skew, seed as u8 + 1);
        let data = &memory.as_slice()[skew..];
        let mut crcs = Vec::new();
        match chunk {
            0 => pool.write(at as u64, data).unwrap(),
            _ => pool.write_checksummed(at as u64, data, chunk, &mut crcs).unwrap(),
        }
        if chunk > 0 {
            assert_eq!(crcs, data.chunks(chunk).map(crc32c).collect::<Vec<u32>>(), "sums of step {seed}");
        }
        model[at..at + len].copy_from_slice(data);
        assert!(pool.bytes(0..POOL_BYTES as u64) == model, "the mapping differs after step {seed}");
        for edge in pool.edges.lock().iter() {
            let at = edge.at as usize;
            assert!(edge.bytes.as_slice() == &model[at..at + EDGE_BYTES], "block {at} is remembered wrongly");
        }
        // What was just written with some of its surroundings, into memory of the same alignment.
        let (from, to) = (at.saturating_sub(5000), (at + len + 5000).min(POOL_BYTES));
        let mut out = Aligned::new(to - from + skew);
        pool.read(from as u64, &mut out.as_mut_slice()[skew..]).unwrap();
        assert!(out.as_slice()[skew..] == model[from..to], "read differs after step {seed}");
    }
    let mut whole = Aligned::new(POOL_BYTES);
    pool.read(0, whole.as_mut_slice()).unwrap();
    assert!(whole.as_slice() == model, "the medium differs");
    assert!(pool.edges.lock().len() <= EDGES_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_write_lands_and_is_seen_in_every_way(steps in steps()) {
        for engine in engines() {
            if let Some((_dir, pool)) = pool("direct writes against a model", engine) {
                run(&pool, &steps);
            }
        }
    }
}

#[test]
fn edges_beyond_the_cache_are_read_back() {
    let Some((_dir, pool)) = pool("edges beyond the cache", Engine::threads()) else { return };
    let mut model = vec![0u8; POOL_BYTES];
    for round in 0..3usize {
        for block in 0..3 * EDGES_MAX {
            let at = block * EDGE_BYTES + 100 * round;
            pool.write(at as u64, &[round as u8 + 1; 150]).unwrap();
            model[at..at + 150].fill(round as u8 + 1);
        }
        assert!(pool.bytes(0..POOL_BYTES as u64) == model, "round {round}");
    }
    assert_eq!(pool.edges.lock().len(), EDGES_MAX);
}

#[test]
fn aligned_memory_is_not_copied() {
    let Some((_dir, pool)) = pool("writes without a copy", Engine::threads()) else { return };
    let mut staged = pool.stage(64..64 + (1 << 20)).unwrap();
    staged.as_mut_slice().fill(5);
    let memory = Aligned::new(1 << 20);
    // Other tests count in the same process: at least one quiet round is asked for.
    let copies = |least: u64, write: &dyn Fn()| {
        (0..50).any(|_| {
            let before = counters::snapshot().bytes_copied;
            write();
            counters::snapshot().bytes_copied - before == least
        })
    };
    assert!(copies(0, &|| pool.write(0, memory.as_slice()).unwrap()), "whole blocks were copied");
    let edges = (1 << 20) % EDGE_BYTES as u64 + EDGE_BYTES as u64;
    let bytes = staged.as_slice();
    assert!(
        copies(edges, &|| pool.write(64, bytes).unwrap()),
        "more than the edges of staged memory was copied"
    );
    assert!(pool.bytes(64..64 + (1 << 20)).iter().all(|byte| *byte == 5));
}

#[test]
fn memory_is_no_direct_tier() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let error = Direct::create(&dir.path().join("pool"), 4096).unwrap_err();
    assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
    assert!(error.hint_text().is_some());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a refused create left its file");
}

#[test]
fn lanes_write_side_by_side_while_a_reader_maps_the_same_pages() {
    let Some((_dir, pool)) = pool("lanes beside a reader", engines()[0]) else { return };
    let pool = Arc::new(pool);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, done) = (&pool, &done);
        // Keeps every page of the pool cached and mapped, also those that are being written.
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                pool.populate_read(0..POOL_BYTES as u64);
                std::thread::yield_now();
            }
        });
        let lanes: Vec<_> = (0..4u64).map(|lane| scope.spawn(move || append(pool, lane))).collect();
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

/// Appends records of odd lengths to a quarter of the pool; each must be seen through the mapping at once.
fn append(pool: &Direct, lane: u64) {
    let start = lane * (POOL_BYTES as u64 / 4);
    let mut at = start;
    for record in 0..40u64 {
        let data = vec![(lane * 50 + record) as u8 + 1; 7777 + 333 * record as usize];
        pool.write(at, &data).unwrap();
        assert!(pool.bytes(at..at + data.len() as u64) == data, "lane {lane}, record {record}");
        at += data.len() as u64;
    }
    let mut from = start;
    for record in 0..40u64 {
        let len = 7777 + 333 * record;
        let seen = pool.bytes(from..from + len);
        assert!(
            seen.iter().all(|b| *b == (lane * 50 + record) as u8 + 1),
            "lane {lane}, record {record} changed"
        );
        from += len;
    }
}
