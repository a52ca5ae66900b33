//! The time of one load: a chain through memory in which each place says where the next one is.
//!
//! Guarantees: every line of the memory is on the chain exactly once, in an order that no prefetcher knows, so that
//! each hop waits for the memory (and, on small pages, for the walk to its translation, as any random access does).
//! Does not: tell what the caches did; the memory has to be larger than they are.

use forebay_tier::clock::now_ns;

use crate::load::random::Rng;
use crate::load::Latency;

/// Bytes of a hop: the line that a processor loads.
pub const LINE_BYTES: usize = 64;
const WORDS: usize = LINE_BYTES / 8;

/// Hops between two looks at the clock: a look costs as much as a third of a hop.
pub const HOPS_PER_SAMPLE: usize = 16;

/// Turns memory into a chain. Its length is a whole number of lines (what is left over stays as it is).
pub fn link(memory: &mut [u64]) {
    let lines = memory.len() / WORDS;
    for line in 0..lines {
        memory[line * WORDS] = line as u64;
    }
    // Sattolo's shuffle: one cycle through all.
    let mut numbers = Rng::new(1);
    for line in (1..lines).rev() {
        let other = numbers.below(line as u64) as usize;
        memory.swap(line * WORDS, other * WORDS);
    }
}

/// Follows the chain from `at` for a number of hops; where it ended. The compiler cannot leave it out.
#[inline]
pub fn follow(chain: &[u64], at: u64, hops: usize) -> u64 {
    let mut at = at;
    for _ in 0..hops {
        at = chain[at as usize * WORDS];
    }
    std::hint::black_box(at)
}

/// Follows the chain until the clock says `until_ns`, or until `hops_max` hops were made: nanoseconds of a hop, means
/// over [`HOPS_PER_SAMPLE`] hops each.
pub fn time(chain: &[u64], until_ns: u64, hops_max: u64) -> Latency {
    let mut hops = Latency::new();
    let (mut at, mut before, mut made) = (0, now_ns(), 0);
    while before < until_ns && made < hops_max {
        at = follow(chain, at, HOPS_PER_SAMPLE);
        let now = now_ns();
        hops.record((now - before) / HOPS_PER_SAMPLE as u64);
        made += HOPS_PER_SAMPLE as u64;
        before = now;
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line_once() {
        for lines in [1usize, 2, 3, 1000] {
            let mut memory = vec![77u64; lines * WORDS + 3];
            link(&mut memory);
            let (mut at, mut seen) = (0, vec![false; lines]);
            for _ in 0..lines {
                at = follow(&memory, at, 1);
                assert!(!std::mem::replace(&mut seen[at as usize], true), "{lines} lines: {at} twice");
            }
            assert_eq!(at, 0, "it is a cycle");
            assert_eq!(memory[lines * WORDS..], [77; 3]);
        }
    }

    #[test]
    fn hops_are_counted_and_bounded() {
        let mut memory = vec![0u64; 64 * WORDS];
        link(&mut memory);
        let hops = time(&memory, u64::MAX, 1600);
        assert_eq!(hops.count(), 100);
        assert_eq!(time(&memory, 0, 1600).count(), 0);
    }
}
