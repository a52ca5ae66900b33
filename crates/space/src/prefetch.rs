//! Reading ahead: while a reader looks at one version, the parts of the next one that lie on a lower tier are
//! brought into memory.
//!
//! A hint and nothing more: what it brings in may be moved or dropped meanwhile, and what it fails to bring in is
//! read when it is needed.

use std::ops::Range;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_log::LaneId;

use crate::attach::Attachment;
use crate::control::GranuleState;

/// Versions that may wait to be brought in; a reader that is faster than the tier is not helped by more.
const AHEAD: usize = 2;

/// The thread of one reader.
pub(crate) struct Prefetch {
    wanted: Option<SyncSender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// For a reader of a space with lower tiers; None for others, and where there can be no thread.
    pub(crate) fn start(space: &Arc<Attachment>) -> Option<Prefetch> {
        if space.pools.len() < 2 {
            return None;
        }
        let (wanted, versions) = sync_channel::<u64>(AHEAD);
        let space = space.clone();
        let thread = std::thread::Builder::new().name("forebay-prefetch".into()).spawn(move || {
            for version in versions {
                for range in lower_ranges(&space, version) {
                    space.device.populate_read(range);
                }
            }
        });
        Some(Prefetch { wanted: Some(wanted), thread: Some(thread.ok()?) })
    }

    /// Brings `version` in, when nothing else is being brought in.
    pub(crate) fn want(&self, version: u64) {
        if let Some(wanted) = &self.wanted {
            // Full: it is behind already. Gone: it panicked, and said so.
            let _ = wanted.try_send(version);
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where in the lower pools the pieces of a version lie; empty while it is not complete.
fn lower_ranges(space: &Attachment, version: u64) -> Vec<Range<u64>> {
    let control = &space.control;
    let Some((incarnation, size)) = control.producers_of(version) else { return Vec::new() };
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
