//! Reading ahead: while a reader looks at one version, the parts of the next one that lie on a lower tier are
//! brought into memory.
//!
//! A hint and nothing more: what it brings in may be moved or dropped meanwhile, and what it fails to bring in is
//! read when it is needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use forebay_log::LaneId;
use forebay_tier::host::sync::{Condvar, Mutex, MutexGuard};
use forebay_tier::host::thread::{Builder, JoinHandle};
use forebay_tier::process::ForkMark;

use crate::control::GranuleState;
use crate::lane::index::producers_of;
use crate::open::attach::Attachment;

/// Versions that may wait to be brought in; a reader that is faster than the tier is not helped by more.
const AHEAD: usize = 2;

/// The thread of one reader.
pub(crate) struct Prefetch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    mark: ForkMark,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    versions: VecDeque<u64>,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next version to bring in; None when the reader has gone.
    fn next(&self) -> Option<u64> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(version) = queue.versions.pop_front() {
                return Some(version);
            }
            // Its own process wakes it, and the two end together: no deadline is needed.
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Prefetch {
    /// For a reader of a space with lower tiers; None for others, and where there can be no thread.
    pub(crate) fn start(space: &Arc<Attachment>) -> Option<Prefetch> {
        if space.pools.len() < 2 {
            return None;
        }
        let (shared, space) = (Arc::<Shared>::default(), space.clone());
        let thread = Builder::new().name("forebay-prefetch".into()).spawn({
            let shared = shared.clone();
            move || {
                while let Some(version) = shared.next() {
                    for range in lower_ranges(&space, version) {
                        space.device.populate_read(range);
                    }
                }
            }
        });
        Some(Prefetch { shared, thread: Some(thread.ok()?), mark: ForkMark::here() })
    }

    /// Brings `version` in, unless the thread is behind already.
    pub(crate) fn want(&self, version: u64) {
        let mut queue = self.shared.lock();
        if queue.versions.len() < AHEAD {
            queue.versions.push_back(version);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            // The thread is the parent's, and may hold the lock for ever here.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// Where in the lower pools the pieces of a version lie; empty while it is not complete.
fn lower_ranges(space: &Attachment, version: u64) -> Vec<Range<u64>> {
    let control = &space.control;
    let Ok(Some((incarnation, size))) = producers_of(space, version) else { return Vec::new() };
    if version >= control.complete() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for rank in 0..size {
        let lane = LaneId { incarnation, rank };
        let mut found: Vec<(u64, u64, usize)> = (1..control.granules())
            .filter(|index| matches!(control.granule_state(*index), GranuleState::Segment { lane: l, .. } if l == lane))
            .map(|index| (control.granule_segment(index).0, control.granule_last(index), index))
            .filter(|(_, last, _)| *last >= version)
            .collect();
        found.sort_unstable();
        // The version ends in the first segment that also holds a newer one.
        let ends = found.iter().position(|(_, last, _)| *last > version).map_or(found.len(), |i| i + 1);
        let granule = space.superblock.granule_bytes;
        out.extend(found[..ends].iter().filter_map(|(_, _, index)| {
            let from = *index as u64 * granule;
            let length = control.granule_segment(*index).1 as u64 * granule;
            (!space.is_first(from)).then_some(from..from + length)
        }));
    }
    out
}
