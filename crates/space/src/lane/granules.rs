//! Granules of the pools as lanes take and free them: a run for a segment, and what was released.
//!
//! Guarantees: a run is taken under the allocation lock, by one store; what a killed process had taken is known as its.
//! Not here: how much a lane may have, and waiting (`segments.rs`).

use forebay_tier::host::sync::Mutex;
use std::ops::Range;
use std::sync::PoisonError;
use std::time::Duration;

use forebay_log::{LaneId, Ledger};
use forebay_tier::Result;

use crate::control::shared_state::LOCK_ALLOCATE;
use crate::control::GranuleState;
use crate::open::attach::Attachment;
use crate::open::released::{drop_released, release_floor};
use crate::open::runs::free_run;

/// A waiter looks again at least this often: who died says nothing.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(50);

/// The allocation lock is held for microseconds; a holder that is stopped for longer is worth an error.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Behind the first place that fits so many runs and free granules are compared with it: more would take longer than
/// the copy of a short segment, and a pool that has them is not short of space.
const RUNS_COMPARED: usize = 512;

/// Who a run of granules belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub lane: LaneId,
    /// Member slot, or none for a lane whose producer is gone.
    pub slot: Option<u32>,
}

/// Who frees segments of a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The thread that writes the lane.
    Writer,
    /// Its helper, while that thread may be writing.
    Helper,
}

/// Frees what was released of a lane. True if there was something.
pub(crate) fn free_released(space: &Attachment, ledger: &Mutex<Ledger>, by: By) -> Result<bool> {
    let lock = || ledger.lock().unwrap_or_else(PoisonError::into_inner);
    if !lock().has_reclaimable(u64::MAX) || !lock().has_reclaimable(release_floor(space)) {
        return Ok(false);
    }
    let floor = drop_released(space);
    let (granule, horizon) = (space.superblock.granule_bytes, space.superblock.horizon);
    let mut freed = false;
    let free = |range: Range<u64>| {
        free_run(space, (range.start / granule) as usize);
        freed = true;
        Ok(())
    };
    match by {
        By::Writer => lock().reclaim(&*space.device, horizon, floor, free)?,
        By::Helper => lock().reclaim_aside(&*space.device, horizon, floor, free)?,
    }
    if freed {
        space.control.announce_space();
    }
    Ok(freed)
}

/// Faults a range in; if that is refused the range is free again.
pub(crate) fn prepare_or_free(space: &Attachment, range: Range<u64>) -> Result<()> {
    space.device.prepare(range.clone()).inspect_err(|_| {
        free_run(space, (range.start / space.superblock.granule_bytes) as usize);
    })
}

/// Where a run of granules may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a multiple of its own length, so that runs of one length leave no gaps that are too short for another.
    Aligned,
    /// As aligned, and not the last free space.
    Spare,
    /// Aligned where that is possible, else anywhere: without it no rank could go on.
    Anywhere,
}

/// A run of free granules of pool `pool`, or None if there is none so long. Of the shortest free stretch that it fits
/// in, so that short runs leave the long stretches whole, and of the first of those: what was used before comes first,
/// because its pages are there. In a large pool only stretches near the first one are compared. Waits `timeout` for the
/// lock of the granule table.
pub(crate) fn allocate(
    space: &Attachment,
    owner: Owner,
    pool: usize,
    bytes: u64,
    place: Place,
    timeout: Duration,
) -> Result<Option<Range<u64>>> {
    let control = &space.control;
    let granule = space.superblock.granule_bytes;
    let wanted = bytes.div_ceil(granule) as usize;
    space.members.with_lock(LOCK_ALLOCATE, timeout, || {
        let pool = space.pools[pool].clone();
        let Some(first) = find_free(space, pool.clone(), wanted, wanted)
            .or_else(|| (place == Place::Anywhere).then(|| find_free(space, pool, wanted, 1)).flatten())
            .filter(|_| place != Place::Spare || leaves_free_space(space, wanted))
        else {
            return Ok(None);
        };
        let Owner { lane, slot } = owner;
        control.describe_run(first, 0, wanted, 0);
        control.set_granule_state(first, GranuleState::Spare { lane, slot });
        Ok(Some(first as u64 * granule..(first + wanted) as u64 * granule))
    })
}

/// The first of `wanted` free granules that begin at a multiple of `step` from the start of the pool, in the shortest
/// stretch of free granules that has them, among those that are near the first one.
fn find_free(space: &Attachment, pool: Range<usize>, wanted: usize, step: usize) -> Option<usize> {
    let fits = |stretch: Range<usize>| {
        let first = pool.start + (stretch.start - pool.start).next_multiple_of(step);
        (first + wanted <= stretch.end).then_some((stretch.len(), first))
    };
    let shorter = |one: Option<(usize, usize)>, other| one.into_iter().chain(other).min();
    let (mut best, mut free, mut end, mut passed) = (None, 0, pool.start, 0);
    let mut is_cut = false;
    for run in space.control.runs(pool.clone()) {
        end = run.first + run.granules;
        if run.state == GranuleState::Free {
            free += 1;
        } else {
            best = shorter(best, fits(run.first - free..run.first));
            free = 0;
        }
        // A stretch of twice the length has a place, wherever it begins.
        let is_found = best.is_some() || free >= 2 * wanted;
        passed += usize::from(is_found);
        is_cut = passed > RUNS_COMPARED;
        if is_cut || best.is_some_and(|(length, _)| length == wanted) {
            break;
        }
    }
    // Where the last stretch ends is not known if it was cut: it counts as long.
    let last = || fits(end - free..end);
    let found = if is_cut { best.or_else(last) } else { shorter(best, last()) };
    found.map(|(_, first)| first)
}

/// A spare is a convenience: it must not take the last free space from a rank that has real data.
fn leaves_free_space(space: &Attachment, wanted: usize) -> bool {
    let runs = space.control.runs(space.pools[0].clone());
    let free = runs.filter(|run| run.state == GranuleState::Free).count();
    free >= wanted * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::create::attached;
    use crate::{OpenOptions, Writer};
    use forebay_tier::TierKind;
    use std::sync::Arc;

    /// The shortest.
    const GRANULE: u64 = 256 << 10;

    /// A pool of so many granules, and what takes runs of it.
    fn pool(granules: u64) -> (tempfile::TempDir, Writer, Arc<Attachment>) {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/space", root.path().display());
        let options = OpenOptions {
            tier: Some(TierKind::Dram),
            quota_bytes: Some(granules * GRANULE),
            segment_bytes: Some(GRANULE),
            ..OpenOptions::default()
        };
        let writer = Writer::open(&name, &options).unwrap();
        let space = attached(&name);
        assert_eq!(space.superblock.granule_bytes, GRANULE);
        (root, writer, space)
    }

    /// The first granule of a run that was taken.
    fn take(space: &Attachment, granules: u64, place: Place) -> Option<usize> {
        let owner = Owner { lane: LaneId { incarnation: 9, rank: 0 }, slot: None };
        let range = allocate(space, owner, 0, granules * GRANULE, place, LOCK_TIMEOUT).unwrap()?;
        Some((range.start / GRANULE) as usize)
    }

    /// A stretch that is looked at in part only is not known to be short.
    #[test]
    fn in_a_large_pool_a_run_does_not_break_the_stretch_at_which_the_search_ends() {
        let (_root, _writer, space) = pool(600);
        let all: Vec<usize> = std::iter::from_fn(|| take(&space, 1, Place::Anywhere)).collect();
        let tail = RUNS_COMPARED + 2;
        assert!(all.len() > tail + 40, "{}", all.len());
        // Behind a gap of five the search comes to four granules of the stretch at the end.
        all[..5].iter().chain(&all[tail..]).for_each(|index| free_run(&space, *index));
        let first = take(&space, 3, Place::Anywhere).unwrap();
        assert!(all[..3].contains(&first), "{first}");
        // Nothing else is free: the stretch has it.
        let next = take(&space, 3, Place::Anywhere).unwrap();
        assert!(all[tail..].contains(&next), "{next}");
    }

    /// Runs of two lengths in one pool: one granule goes where only one is free, and leaves place for two elsewhere.
    #[test]
    fn a_short_run_fills_a_gap_before_it_breaks_a_longer_stretch() {
        let (_root, _writer, space) = pool(16);
        let take = |granules, place| take(&space, granules, place);
        let all: Vec<usize> = std::iter::from_fn(|| take(1, Place::Aligned)).collect();
        let [a, b, c, ..] = all[..] else { panic!("{all:?}") };
        assert_eq!((b, c), (a + 1, a + 2), "the first is taken first");
        let last = *all.last().unwrap();
        // A stretch of three, a gap of one behind it, and one of two at the end of the pool.
        let gap = all[all.len() / 2];
        for index in [a, b, c, gap, last - 1, last] {
            free_run(&space, index);
        }
        assert_eq!(take(1, Place::Aligned), Some(gap), "the shortest stretch, though others come before it");
        let two = take(2, Place::Anywhere).unwrap();
        assert_eq!(two, last - 1, "and so for two");
        assert_eq!(take(2, Place::Anywhere).map(|first| [a, b].contains(&first)), Some(true));
        assert_eq!(take(2, Place::Anywhere), None, "one is left");
        assert_eq!(take(1, Place::Spare), None, "which is no spare");
        assert!(take(1, Place::Aligned).is_some());
        assert_eq!(take(1, Place::Anywhere), None);
    }
}
