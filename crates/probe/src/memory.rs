//! Memory as a subject: main memory, a memory node, persistent memory.
//!
//! Guarantees: the memory has no name and is gone with the subject; it is at least [`CACHES`] times the last-level
//! cache, or [`Subject::caveat`] says so; never more than half of what is free. Threads run on the processors that the
//! conditions name, each with a part of the memory for itself.

use forebay_tier::{capacity, clock, nameless, Error, Kind, Region, Result, TierKind};

use super::find::Found;
use super::subject::{Reading, Subject};
use crate::kernels::access::{self, Operations, Part, Until};
use crate::kernels::{chase, together, CACHES};
use crate::load::Latency;
use forebay_profile::{Conditions, Load, Operation, Pattern};

/// Less is not worth it, also where caches are tiny.
const WORK_BYTES_MIN: u64 = 64 << 20;
/// One operation of each thread has to fit its part; parts are multiples of this.
const PART_BYTES: usize = 64;
/// Never more than this part of what is free is used.
const MEMORY_DIVISOR: u64 = 2;

/// Memory that is being measured.
pub struct Memory {
    region: Region,
    tier: Found,
    /// Bytes at the front that hold the chain of loads.
    chain_bytes: usize,
    cache_bytes: u64,
}

/// Bytes for the chain and for the work: [`CACHES`] times the cache each, at most half of what is free.
pub fn sizes(cache_bytes: u64, free_bytes: u64) -> (u64, u64) {
    let each = (CACHES * cache_bytes).max(WORK_BYTES_MIN);
    let most = free_bytes / MEMORY_DIVISOR;
    // The work is spread over threads and goes further when it is short; the chain must not fit a cache.
    let chain = each.min(most / 2);
    let work = each.min(most - chain);
    (chain / 4096 * 4096, work / 4096 * 4096)
}

impl Memory {
    /// Takes the memory and makes its pages present.
    ///
    /// # Errors
    /// As [`nameless::memory`].
    pub fn new(tier: &Found, cache_bytes: u64) -> Result<Memory> {
        let free = match tier.kind {
            TierKind::DevDax => tier.free.bytes,
            kind => capacity::headroom(&tier.place, kind)?.bytes.min(tier.free.bytes),
        };
        let (chain, work) = sizes(cache_bytes, free);
        if chain == 0 || work == 0 {
            return Err(Error::new(
                Kind::TierFull,
                format!("not enough free memory to measure tier {}", tier.name),
            )
            .with("free_bytes", free)
            .with("limited_by", &tier.free.limited_by));
        }
        let mut region = nameless::memory(tier.kind, &tier.place, chain + work)?.region;
        let memory = region.as_mut_slice()?;
        chase::link(bytemuck::cast_slice_mut(&mut memory[..chain as usize]));
        Ok(Memory { region, tier: tier.clone(), chain_bytes: chain as usize, cache_bytes })
    }

    fn processors(&self, when: &Conditions) -> Vec<usize> {
        let seat = self.tier.seats.iter().find(|seat| Some(&seat.node) == when.from.as_ref());
        let wanted = seat.or(self.tier.seats.first()).map_or_else(Vec::new, |seat| seat.processors.clone());
        let allowed = together::processors();
        let usable: Vec<usize> = wanted.into_iter().filter(|p| allowed.contains(p)).collect();
        if usable.is_empty() {
            allowed
        } else {
            usable
        }
    }

    /// The chain, and the work cut into a part for each thread.
    fn parts(&mut self, threads: usize) -> Result<(&[u64], Vec<&mut [u8]>)> {
        let (chain, work) = self.region.as_mut_slice()?.split_at_mut(self.chain_bytes);
        let each = work.len() / threads / PART_BYTES * PART_BYTES;
        Ok((bytemuck::cast_slice(chain), work.chunks_exact_mut(each).take(threads).collect()))
    }
}

fn threads_of(when: &Conditions) -> usize {
    when.threads.unwrap_or(1).max(1) as usize
}

fn operations(when: &Conditions) -> Operations {
    Operations {
        reads_percent: when.reads_percent.unwrap_or(100.0) as u32,
        pattern: when.pattern.unwrap_or(Pattern::Sequential),
        bytes: when.bytes.unwrap_or(64) as usize,
        horizon: when.horizon,
    }
}

impl Subject for Memory {
    fn bandwidth(&mut self, when: &Conditions, span_ns: u64) -> Result<Reading> {
        let (processors, threads, what) = (self.processors(when), threads_of(when), operations(when));
        let (shared, persistent) = (self.region.shared(), !self.tier.kind.is_memory());
        let chain = self.chain_bytes;
        let (_, parts) = self.parts(threads)?;
        let each = parts.first().map_or(0, |part| part.len());
        let done = together::run(&processors, parts, |index, bytes, meeting| {
            let offset = chain + index * each;
            let mut part = Part { bytes, region: &shared, offset, persistent };
            meeting.wait()?;
            access::run(&mut part, &what, Until::Time(clock::now_ns() + span_ns), index as u64)
        })?;
        let begun = done.iter().map(|d| d.begun_ns).min().unwrap_or(0);
        let ended = done.iter().map(|d| d.ended_ns).max().unwrap_or(0);
        let mut reading = Reading { ns: ended - begun, ..Reading::default() };
        for thread in &done {
            for way in 0..2 {
                reading.operations[way] += thread.operations[way];
                reading.bytes[way] += thread.bytes[way];
            }
        }
        Ok(reading)
    }

    fn latency(&mut self, of: Operation, load: Load, when: &Conditions, span_ns: u64) -> Result<Latency> {
        let processors = self.processors(when);
        let what = operations(when);
        if of != Operation::Read {
            let (shared, persistent, offset) =
                (self.region.shared(), !self.tier.kind.is_memory(), self.chain_bytes);
            let (_, mut parts) = self.parts(1)?;
            let bytes = parts.pop().unwrap_or_default();
            let mut part = Part { bytes, region: &shared, offset, persistent };
            let [_, writes] = access::time(&mut part, &what, Until::Time(clock::now_ns() + span_ns), 1)?;
            return Ok(writes);
        }
        let loaders = if load == Load::Loaded { threads_of(when) - 1 } else { 0 };
        let shared = self.region.shared();
        let stream = Operations { pattern: Pattern::Sequential, bytes: 1 << 20, ..what };
        let offset = self.chain_bytes;
        let (chain, parts) = self.parts(loaders.max(1))?;
        // The first thread follows the chain, the others stream reads past it.
        let each = parts.first().map_or(0, |part| part.len());
        let mut roles: Vec<Option<&mut [u8]>> = vec![None];
        roles.extend(parts.into_iter().take(loaders).map(Some));
        let histograms = together::run(&processors, roles, |index, role, meeting| {
            meeting.wait()?;
            let until = clock::now_ns() + span_ns;
            let Some(bytes) = role else { return Ok(chase::time(chain, until, u64::MAX)) };
            let offset = offset + (index - 1) * each;
            let mut part = Part { bytes, region: &shared, offset, persistent: false };
            access::run(&mut part, &stream, Until::Time(until), index as u64)?;
            Ok(Latency::default())
        })?;
        Ok(histograms.into_iter().next().unwrap_or_default())
    }

    fn method(&self) -> String {
        format!(
            "threads pinned to processors, {} MiB touched first ({} x the last-level cache), parts of their own; reads \
             add up every word, writes go past the cache from 256 B on; a load is a hop of a random chain through {} \
             MiB, mean of {} hops",
            self.region.len() >> 20,
            (self.region.len() as u64).checked_div(self.cache_bytes).unwrap_or(0),
            self.chain_bytes >> 20,
            chase::HOPS_PER_SAMPLE,
        )
    }

    fn caveat(&self) -> Option<String> {
        let work = self.region.len() as u64 - self.chain_bytes as u64;
        let short = work.min(self.chain_bytes as u64) < CACHES * self.cache_bytes;
        short.then(|| {
            format!(
                "cache: only {} MiB were free, less than {CACHES} x the last-level cache of {} MiB",
                work >> 20,
                self.cache_bytes >> 20
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::{find, Running};
    use crate::machine::Machine;

    #[test]
    fn memory_is_four_caches_and_never_more_than_half_of_what_is_free() {
        assert_eq!(sizes(256 << 20, 64 << 30), (1 << 30, 1 << 30));
        assert_eq!(sizes(0, 64 << 30), (64 << 20, 64 << 20));
        for free in [0u64, 8192, 100 << 20, 3 << 30] {
            let (chain, work) = sizes(256 << 20, free);
            assert!(chain + work <= free / 2, "{free}");
        }
    }

    fn small() -> Memory {
        let tiers = find(&Machine::here(), &Running, &[]);
        let mut dram = tiers.found.into_iter().find(|t| t.kind == TierKind::Dram).expect("main memory");
        dram.free.bytes = 256 << 20;
        Memory::new(&dram, 16 << 20).expect("128 MiB")
    }

    #[test]
    fn a_memory_does_what_the_conditions_say() {
        let mut memory = small();
        assert_eq!(memory.region.len(), 128 << 20);
        assert_eq!(memory.caveat(), None);
        for (reads, threads) in [(100.0, 1), (50.0, 3), (0.0, 2)] {
            let when = Conditions {
                reads_percent: Some(reads),
                threads: Some(threads),
                bytes: Some(4096),
                ..Conditions::default()
            };
            let reading = memory.bandwidth(&when, 1_000_000).unwrap();
            assert_eq!(reading.bytes, reading.operations.map(|n| n * 4096));
            assert_eq!(reading.bytes[0] > 0, reads > 0.0);
            assert_eq!(reading.bytes[1] > 0, reads < 100.0);
            assert!(reading.bytes_per_s() > 0.0);
        }
        for load in [Load::Idle, Load::Loaded] {
            let when = Conditions { threads: Some(2), ..Conditions::default() };
            assert!(memory.latency(Operation::Read, load, &when, 1_000_000).unwrap().count() > 0);
        }
        let write = memory.latency(Operation::Write, Load::Idle, &Conditions::default(), 1_000_000).unwrap();
        assert_eq!(write.count(), 0, "conditions without writes have none");
    }

    #[test]
    fn too_little_memory_has_a_caveat() {
        let mut memory = small();
        memory.cache_bytes = 1 << 30;
        assert!(memory.caveat().unwrap().starts_with("cache"));
        assert!(memory.method().contains("128 MiB touched first"));
    }
}
