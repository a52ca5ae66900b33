//! Reads and writes of one size, in order or anywhere, by threads that own a part of the memory each.
//!
//! Guarantees: a thread touches its own part only, whole operations at multiples of their size; bytes are counted when
//! they were moved. Writes go as the tier writes: past the cache from 256 bytes on, through it below, and on persistent
//! memory what went through it is written back. Reads add up every word, so that nothing can be left out.

use forebay_tier::clock::now_ns;
use forebay_tier::persist::{copy_persist, copy_streaming_to};
use forebay_tier::{Horizon, Result, SharedRegion};

use crate::load::random::Rng;
use crate::load::Latency;
use forebay_profile::Pattern;

/// Bytes that writes come from, again and again: they stay in the second-level cache, so that only the writing counts.
const SOURCE_BYTES: usize = 256 << 10;

/// Bytes between two looks at the clock: a look costs as much as moving a few hundred.
const LOOK_BYTES: usize = 64 << 10;

/// What the operations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations {
    /// Share of reads; the rest are writes.
    pub reads_percent: u32,
    /// Order of the addresses.
    pub pattern: Pattern,
    /// Bytes of each, a multiple of 64.
    pub bytes: usize,
    /// When writes are made persistent. `None` and `Epoch` write as the tier does (`Epoch` persists the part at its
    /// end); `Write` stores and persists each by itself, as a program with mapped memory does.
    pub horizon: Horizon,
}

/// The memory of one thread.
pub struct Part<'a> {
    /// Its bytes, at least one operation.
    pub bytes: &'a mut [u8],
    /// What persists them.
    pub region: &'a SharedRegion,
    /// Where they begin in the region.
    pub offset: usize,
    /// Whether the memory is persistent, so that writes go as to persistent memory.
    pub persistent: bool,
}

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At this time of the monotonic clock.
    Time(u64),
    /// After so many operations.
    Operations(u64),
}

/// What a thread did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Operations: reads, writes.
    pub operations: [u64; 2],
    /// Bytes: read, written.
    pub bytes: [u64; 2],
    /// From when to when, on the monotonic clock.
    pub begun_ns: u64,
    /// See `begun_ns`.
    pub ended_ns: u64,
}

impl Done {
    /// Bytes in both directions.
    pub fn total_bytes(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }
}

/// Does operations until the end. `seed` makes threads differ.
///
/// # Errors
/// Those of persisting.
pub fn run(part: &mut Part<'_>, what: &Operations, until: Until, seed: u64) -> Result<Done> {
    let mut walk = Walk::new(part.bytes.len(), what, seed);
    let source = source(what);
    let batch = (LOOK_BYTES / what.bytes).max(1) as u64;
    let mut done = Done { begun_ns: now_ns(), ..Done::default() };
    let mut sum = 0u64;
    loop {
        let left = match until {
            Until::Time(end) => {
                if now_ns() < end {
                    batch
                } else {
                    0
                }
            }
            Until::Operations(all) => batch.min(all - done.operations[0] - done.operations[1]),
        };
        if left == 0 {
            break;
        }
        for _ in 0..left {
            let (at, write) = walk.next();
            if write {
                store(part, at, what, &source)?;
            } else {
                sum = sum.wrapping_add(load(&part.bytes[at..at + what.bytes]));
            }
            done.operations[usize::from(write)] += 1;
        }
    }
    if what.horizon == Horizon::Epoch {
        part.region.persist(part.offset..part.offset + part.bytes.len())?;
    }
    std::hint::black_box(sum);
    done.ended_ns = now_ns();
    done.bytes = done.operations.map(|n| n * what.bytes as u64);
    Ok(done)
}

/// As [`run`], with every operation timed: for latencies, not for bandwidth.
///
/// # Errors
/// As [`run`].
pub fn time(part: &mut Part<'_>, what: &Operations, until: Until, seed: u64) -> Result<[Latency; 2]> {
    let mut walk = Walk::new(part.bytes.len(), what, seed);
    let source = source(what);
    let mut latencies = [Latency::new(), Latency::new()];
    let (mut before, mut count) = (now_ns(), 0);
    loop {
        match until {
            Until::Time(end) if before >= end => break,
            Until::Operations(all) if count >= all => break,
            _ => count += 1,
        }
        let (at, write) = walk.next();
        if write {
            store(part, at, what, &source)?;
        } else {
            std::hint::black_box(load(&part.bytes[at..at + what.bytes]));
        }
        let now = now_ns();
        latencies[usize::from(write)].record(now - before);
        before = now;
    }
    Ok(latencies)
}

fn source(what: &Operations) -> Vec<u8> {
    // Not constant: a memory that compresses or finds equal pages has nothing to gain.
    let mut bytes = vec![0; what.bytes.min(SOURCE_BYTES)];
    Rng::new(what.bytes as u64).fill(&mut bytes);
    bytes
}

/// The sum of all words.
#[inline]
fn load(bytes: &[u8]) -> u64 {
    let words: &[u64] = bytemuck::cast_slice(bytes);
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

#[inline]
fn store(part: &mut Part<'_>, at: usize, what: &Operations, source: &[u8]) -> Result<()> {
    let to = &mut part.bytes[at..at + what.bytes];
    for piece in to.chunks_mut(source.len()) {
        let from = &source[..piece.len()];
        match (what.horizon, part.persistent) {
            (Horizon::Write, _) => piece.copy_from_slice(from),
            (_, true) => copy_persist(piece, from),
            (_, false) => copy_streaming_to(piece, from),
        }
    }
    match what.horizon {
        Horizon::Write => part.region.persist(part.offset + at..part.offset + at + what.bytes),
        _ => Ok(()),
    }
}

/// Where operations go, and which way.
struct Walk {
    places: u64,
    bytes: usize,
    random: bool,
    next: u64,
    numbers: Rng,
    reads_percent: u32,
    /// Hundredths of an operation that reads are owed.
    owed: u32,
}

impl Walk {
    fn new(len: usize, what: &Operations, seed: u64) -> Walk {
        assert!(
            what.bytes > 0 && what.bytes % 64 == 0 && what.bytes <= len,
            "an operation of {}",
            what.bytes
        );
        Walk {
            places: (len / what.bytes) as u64,
            bytes: what.bytes,
            random: what.pattern == Pattern::Random,
            next: 0,
            numbers: Rng::new(seed),
            reads_percent: what.reads_percent,
            owed: 0,
        }
    }

    /// Where the next one is, and whether it is a write. Directions are spread evenly, not thrown.
    #[inline]
    fn next(&mut self) -> (usize, bool) {
        let place = if self.random {
            self.numbers.below(self.places)
        } else {
            let place = self.next;
            self.next = if place + 1 == self.places { 0 } else { place + 1 };
            place
        };
        self.owed += self.reads_percent;
        let read = self.owed >= 100;
        self.owed -= if read { 100 } else { 0 };
        (place as usize * self.bytes, !read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tier::{nameless, TierKind};
    use std::path::Path;

    fn with_memory(bytes: usize, work: impl FnOnce(&mut Part<'_>)) {
        let mut taken = nameless::memory(TierKind::Dram, Path::new("/dev/shm"), bytes as u64).unwrap();
        let region = taken.region.shared();
        let bytes = taken.region.as_mut_slice().unwrap();
        work(&mut Part { bytes, region: &region, offset: 0, persistent: false });
    }

    fn operations(reads_percent: u32, pattern: Pattern, bytes: usize) -> Operations {
        Operations { reads_percent, pattern, bytes, horizon: Horizon::None }
    }

    #[test]
    fn what_is_asked_is_done() {
        with_memory(1 << 20, |part| {
            let mix = operations(75, Pattern::Sequential, 4096);
            let done = run(part, &mix, Until::Operations(1000), 1).unwrap();
            assert_eq!((done.operations, done.bytes), ([750, 250], [750 * 4096, 250 * 4096]));
            assert!(done.ended_ns >= done.begun_ns);
            let read = run(part, &operations(100, Pattern::Random, 64), Until::Operations(9), 1).unwrap();
            assert_eq!((read.operations, read.total_bytes()), ([9, 0], 576));
            let timed = time(part, &mix, Until::Operations(100), 1).unwrap();
            assert_eq!(timed.map(|l| l.count()), [75, 25]);
            assert_eq!(run(part, &mix, Until::Time(0), 1).unwrap().operations, [0, 0]);
        });
    }

    #[test]
    fn sequential_writes_reach_every_byte_and_random_ones_whole_blocks() {
        with_memory(1 << 20, |part| {
            let all = operations(0, Pattern::Sequential, 64 << 10);
            run(part, &all, Until::Operations(16), 1).unwrap();
            // The source is random bytes: of 64, all zero has a chance of nought.
            assert!(part.bytes.chunks(64).all(|line| line.iter().any(|b| *b != 0)));
            part.bytes.fill(0);
            run(part, &operations(0, Pattern::Random, 4096), Until::Operations(50), 3).unwrap();
            let written = part.bytes.chunks(4096).filter(|block| block.iter().any(|b| *b != 0)).count();
            assert!((30..=50).contains(&written), "{written} of 50 blocks, some twice");
            let source = source(&operations(0, Pattern::Random, 4096));
            assert!(part.bytes.chunks(4096).all(|block| block == source || block.iter().all(|b| *b == 0)));
        });
    }

    #[test]
    fn an_operation_larger_than_the_source_is_whole_too() {
        with_memory(1 << 20, |part| {
            let done =
                run(part, &operations(0, Pattern::Sequential, 1 << 20), Until::Operations(1), 1).unwrap();
            assert_eq!(done.total_bytes(), 1 << 20);
            assert_eq!(part.bytes[..SOURCE_BYTES], part.bytes[(1 << 20) - SOURCE_BYTES..]);
        });
    }
}
