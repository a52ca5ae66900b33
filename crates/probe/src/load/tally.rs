//! What a worker counts while it runs, and what others may see of it meanwhile.
//!
//! The worker alone writes; the shared part is plain relaxed stores, so that counting costs no locked instruction.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::histogram::Latency;
use super::job::Measure;
use super::report::{Depths, Flow, Flushes};

/// Has not begun.
pub(crate) const WAITING: u32 = 0;
/// Runs, and nothing counts yet.
pub(crate) const RAMPING: u32 = 1;
/// Runs and counts.
pub(crate) const COUNTING: u32 = 2;
/// Has ended.
pub(crate) const ENDED: u32 = 3;

/// What the sampler sees of a worker; on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) state: AtomicU32,
    pub(crate) bytes: [AtomicU64; 2],
    pub(crate) ios: [AtomicU64; 2],
}

/// Times of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) made_ns: u64,
    pub(crate) handed_ns: u64,
    pub(crate) done_ns: u64,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    shared: &'a Shared,
    measure: Measure,
    pub(crate) flows: [Flow; 2],
    pub(crate) flushes: Flushes,
    pub(crate) depths: Depths,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(shared: &'a Shared, measure: Measure) -> Tally<'a> {
        let flow = || Flow {
            submission: Latency::new(),
            completion: Latency::new(),
            total: Latency::new(),
            ..Flow::default()
        };
        let flushes = Flushes { ios: 0, latency: Latency::new() };
        Tally { shared, measure, flows: [flow(), flow()], flushes, depths: Depths::default() }
    }

    /// Forgets what came before: from here on it counts.
    pub(crate) fn clear(&mut self) {
        for flow in &mut self.flows {
            (flow.bytes, flow.ios, flow.short_ios) = (0, 0, 0);
            flow.submission.clear();
            flow.completion.clear();
            flow.total.clear();
        }
        self.flushes.ios = 0;
        self.flushes.latency.clear();
        self.depths = Depths::default();
        for direction in 0..2 {
            self.shared.bytes[direction].store(0, Relaxed);
            self.shared.ios[direction].store(0, Relaxed);
        }
    }

    /// One transfer that moved `moved` of `wanted` bytes, made by an engine that hands requests over (`queued`) or by
    /// one that does not.
    #[inline]
    pub(crate) fn transfer(
        &mut self,
        direction: usize,
        wanted: u32,
        moved: usize,
        times: Times,
        queued: bool,
    ) {
        let flow = &mut self.flows[direction];
        flow.bytes += moved as u64;
        flow.ios += 1;
        flow.short_ios += u64::from(moved < wanted as usize);
        self.shared.bytes[direction].store(flow.bytes, Relaxed);
        self.shared.ios[direction].store(flow.ios, Relaxed);
        if self.measure.completion {
            flow.completion.record(times.done_ns.saturating_sub(times.handed_ns));
        }
        if queued {
            if self.measure.submission {
                flow.submission.record(times.handed_ns.saturating_sub(times.made_ns));
            }
            if self.measure.total {
                flow.total.record(times.done_ns.saturating_sub(times.made_ns));
            }
        }
    }

    /// One flush.
    #[inline]
    pub(crate) fn flush(&mut self, took_ns: u64) {
        self.flushes.ios += 1;
        if self.measure.completion {
            self.flushes.latency.record(took_ns);
        }
    }

    /// The flows at the end. Where requests are not handed over, completion is all there is.
    pub(crate) fn finish(&mut self, runtime_ns: u64, queued: bool) {
        for flow in &mut self.flows {
            if flow.ios > 0 {
                flow.runtime_ns = runtime_ns;
            }
            if !queued && self.measure.total {
                flow.total = flow.completion.clone();
            }
        }
    }
}
