//! Moving segments between the pools of a space: down when the first pool is full (spill), up again before
//! they are read (promotion).
//!
//! Each producer has a thread that moves segments of its own lane; a lane whose producer is gone is adopted, under
//! a lock of the kernel, by a producer that needs space or by a drain. A move is copy, publish, and, after the last
//! reader that may look at the old place has let go, reclaim: a read during a move always finds the data at one of
//! the two places. What a killed mover leaves is a run of granules that the next producer, or a rebuild, finds
//! and frees.
//!
//! Invariants: only segments that are closed and committed move; a segment's old place is wiped before its space
//! is used again; a failed move leaves the segment where it was.

use forebay_tier::host::sync::{Condvar, Mutex, MutexGuard};
use forebay_tier::host::thread::JoinHandle;
use forebay_tier::host::time::Instant;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_log::format::{SegmentDf, HEADER_BYTES};
use forebay_log::reclaim::{retire, Segment};
use forebay_log::recover::segment_in;
use forebay_log::relocate::{copy_segment, used_bytes};
use forebay_log::{LaneId, Ledger};
use forebay_tier::{watched, Error, Kind, Result};

use crate::control::shared_state::LOCK_ADOPT;
use crate::control::{head, Control, GranuleState};
use crate::lane::granules::{allocate, Owner, Place, LOCK_TIMEOUT, WAIT_SLICE};
use crate::open::attach::Attachment;
use crate::open::read_to_end::Member;
use crate::open::released::{is_deserted, is_leased, reading_positions};
use crate::open::runs::{free_run, is_orphan};

/// The old place of a moved segment.
struct Left {
    at: u64,
    first_version: u64,
    last_version: u64,
}

/// The mover of one lane.
pub(crate) struct Mover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    member: Arc<Member>,
    owner: Owner,
    ledger: Arc<Mutex<Ledger>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There may be something to do.
    kicked: bool,
    /// The producer waits for free space.
    blocked: bool,
    stop: bool,
    /// The thread is at its end.
    ended: bool,
    failed: Option<Error>,
}

/// Says that the thread has ended, also by a panic.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Mover {
    /// Starts the thread. Errors: [`Kind::Io`] when there can be none.
    pub(crate) fn start(member: Arc<Member>, lane: LaneId, ledger: Arc<Mutex<Ledger>>) -> Result<Mover> {
        let owner = Owner { lane, slot: Some(member.slot) };
        let shared =
            Arc::new(Shared { member, owner, ledger, state: Mutex::default(), changed: Condvar::new() });
        let thread = forebay_tier::host::thread::Builder::new()
            .name("forebay-mover".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run()
            })
            .map_err(|e| Error::io("starting the mover thread", e))?;
        Ok(Mover { shared, thread: Some(thread) })
    }

    /// Says that a segment was closed, or that space was freed.
    pub(crate) fn kick(&self) {
        self.shared.lock().kicked = true;
        self.shared.changed.notify_all();
    }

    /// Says whether the producer waits for free space. Returns why the last move failed, once.
    ///
    /// # Errors
    /// What the move met.
    pub(crate) fn set_blocked(&self, blocked: bool) -> Result<()> {
        let mut state = self.shared.lock();
        state.blocked = blocked;
        state.kicked = true;
        self.shared.changed.notify_all();
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Waits for a move that is under way and ends the thread. One that is at work past the deadline ends by itself
    /// when its segment is moved. A failed move that was not reported is returned.
    pub(crate) fn stop(&mut self, deadline: Instant) -> Result<()> {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|_| self.shared.has_ended(deadline)) {
            // A panic of the mover has been printed; there is nothing to add here.
            let _ = thread.join();
        }
        let failed = self.shared.lock().failed.take();
        failed.map_or(Ok(()), Err)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> &Attachment {
        &self.member.space
    }

    /// Waits until the thread has ended; false at the deadline.
    fn has_ended(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    fn run(&self) {
        let _ending = Ending(self);
        let mut left = Vec::new();
        while self.wait(!left.is_empty()) {
            self.leave(&mut left);
            if let Err(e) = self.work(&mut left) {
                self.space().control.word(head::MOVES_FAILED).fetch_add(1, Relaxed);
                self.lock().failed = Some(e);
                // The producer may be waiting for space that is not freed.
                self.space().control.announce_space();
            }
        }
        self.leave(&mut left);
    }

    /// Waits until there may be something to do, in slices while old places wait for their readers or what was
    /// spilled may come up again. False: stop.
    fn wait(&self, is_leaving: bool) -> bool {
        let mut state = self.lock();
        while !state.kicked && !state.stop {
            let sleeps = is_leaving || self.has_lower();
            if sleeps {
                let (next, _) =
                    self.changed.wait_timeout(state, WAIT_SLICE).unwrap_or_else(PoisonError::into_inner);
                state = next;
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.kicked = false;
        !state.stop
    }

    fn has_lower(&self) -> bool {
        let end = self.space().first_end();
        self.ledger().segments().any(|s| s.range.start >= end)
    }

    /// Frees the old places that no process reads any more.
    fn leave(&self, left: &mut Vec<Left>) {
        left.retain(|old| {
            let free = || free_old_place(self.space(), old.at, old.first_version, old.last_version);
            // A header that cannot be wiped keeps its space: a poisoned pool says so at the next put.
            !free().unwrap_or(false)
        });
    }

    fn work(&self, left: &mut Vec<Left>) -> Result<()> {
        while !self.lock().stop && self.needs_free_space() {
            if self.move_one(self.begin_down(), true, left)? {
                self.leave(left);
                continue;
            }
            if !self.lock().blocked {
                break;
            }
            match adopt_one(self.space(), WAIT_SLICE)? {
                Adopted::Moved(_) => {}
                Adopted::Busy => {
                    // Another process moves a segment now: look again, and whether to stop.
                    self.lock().kicked = true;
                    break;
                }
                Adopted::Nothing | Adopted::NoCapacity(_) => break,
            }
        }
        while !self.lock().stop && self.has_free_space_above() {
            if !self.move_one(self.begin_up(), false, left)? {
                break;
            }
            self.leave(left);
        }
        Ok(())
    }

    /// Bytes of this lane in the first pool, those of its newest segment, and what the lane may have there.
    fn fill(&self) -> (u64, u64, u64) {
        let space = self.space();
        let ledger = self.ledger();
        let used = ledger.bytes_below(space.first_end());
        let newest = ledger.segments().next_back().map_or(0, |s| s.range.end - s.range.start);
        let share = space.first_bytes() / u64::from(self.member.size);
        (used, newest.max(space.superblock.segment_bytes), share)
    }

    /// Whether the next segment, of the size of the last, would not fit.
    fn needs_free_space(&self) -> bool {
        let (used, next, share) = self.fill();
        self.lock().blocked || used + next > share
    }

    /// Whether there is so much free space that what comes up now will not have to go down for the next two segments.
    fn has_free_space_above(&self) -> bool {
        let (used, next, share) = self.fill();
        !self.lock().blocked && used + 3 * next <= share
    }

    /// Begins to move the segment of the first pool that will be read last.
    fn begin_down(&self) -> Option<Segment> {
        let space = self.space();
        let positions = reading_positions(space);
        self.ledger().begin_move(self.committed(), |s| {
            let may_go = space.is_first(s.range.start) && !is_leased(space, s.first_version, s.last_version);
            may_go.then(|| Reverse(next_use(s, &positions)))
        })
    }

    /// Begins to move the segment of a lower pool that will be read first.
    fn begin_up(&self) -> Option<Segment> {
        let space = self.space();
        let positions = reading_positions(space);
        self.ledger().begin_move(self.committed(), |s| {
            Some(next_use(s, &positions)).filter(|next| !space.is_first(s.range.start) && *next < u64::MAX)
        })
    }

    fn committed(&self) -> u64 {
        let (incarnation, committed) = self.space().control.progress(self.owner.lane.rank);
        if incarnation == self.owner.lane.incarnation {
            committed
        } else {
            0
        }
    }

    /// Moves a segment down or up. False: there is none, or it does not fit.
    fn move_one(&self, segment: Option<Segment>, down: bool, left: &mut Vec<Left>) -> Result<bool> {
        let Some(segment) = segment else { return Ok(false) };
        let from = segment.range.start;
        let space = self.space();
        let pools = if down { 1..space.pools.len() } else { 0..1 };
        let moved = relocate(space, self.owner, from, segment.last_version, pools);
        let to = moved.as_ref().ok().cloned().flatten();
        self.ledger().end_move(from, to.clone());
        moved?;
        let Some(to) = to else { return Ok(false) };
        note_moved(&space.control, down, to.end - to.start);
        left.push(Left {
            at: from,
            first_version: segment.first_version,
            last_version: segment.last_version,
        });
        Ok(true)
    }
}

/// How many versions lie between a segment and the nearest reader that will come to it; the largest number when
/// none will.
fn next_use(segment: &Segment, positions: &[u64]) -> u64 {
    let ahead = positions.iter().filter(|at| **at <= segment.last_version);
    ahead.map(|at| segment.first_version.saturating_sub(*at)).min().unwrap_or(u64::MAX)
}

fn note_moved(control: &Control, down: bool, bytes: u64) {
    let word = if down { head::SPILLED } else { head::PROMOTED };
    control.word(word).fetch_add(bytes, Relaxed);
}

/// Copies the closed segment at `from` into the first of `pools` with enough free space, and publishes it there. The
/// old place is then `Leaving`. None: no pool has enough.
fn relocate(
    space: &Attachment,
    owner: Owner,
    from: u64,
    last_version: u64,
    pools: Range<usize>,
) -> Result<Option<Range<u64>>> {
    let granule = space.superblock.granule_bytes;
    let head = space.device.bytes(from..from + HEADER_BYTES);
    let found = watched(|| Ok(segment_in(&*space.device, head, &space.superblock.uuid, from)))?;
    let Some(df) = found else {
        return Err(Error::new(Kind::Damaged, "a segment that was to be moved has no valid header")
            .with("pool_offset", from));
    };
    if !space.is_first(from) {
        // Reading it in with many requests at once; page by page it would take several times as long.
        space.device.populate_read(from..from + df.length_bytes);
    }
    let bytes = used_bytes(&*space.device, &df);
    for pool in pools {
        let Some(to) = allocate(space, owner, pool, bytes, Place::Anywhere, LOCK_TIMEOUT)? else { continue };
        let first = (to.start / granule) as usize;
        let copied = space.device.prepare(to.clone()).and_then(|()| {
            copy_segment(&*space.device, &space.superblock.uuid, from, to.clone(), space.superblock.horizon)
        });
        if let Err(e) = copied {
            // No valid header may stay in free space. If even that fails, the space is not given away again.
            if retire(&*space.device, to.start, space.superblock.horizon).is_ok() {
                free_run(space, first);
            }
            return Err(e.with("pool", space.tiers.path_of(pool, space.first.path()).display()));
        }
        let control = &space.control;
        let (_, length) = control.granule_segment(first);
        control.describe_run(first, df.sequence, length, last_version);
        control.set_filled(first, bytes);
        let Owner { lane, slot } = owner;
        control.publish_move((from / granule) as usize, first, lane, slot);
        return Ok(Some(to));
    }
    Ok(None)
}

/// Wipes and frees the old place of a moved segment, unless a reader may still use it there (false).
fn free_old_place(space: &Attachment, at: u64, first_version: u64, last_version: u64) -> Result<bool> {
    // A reader that took a lease before the old place was left stands in its slot now; one that comes later looks the
    // segment up and finds the new place.
    if !is_deserted(space, first_version, last_version) {
        return Ok(false);
    }
    retire(&*space.device, at, space.superblock.horizon)?;
    free_run(space, (at / space.superblock.granule_bytes) as usize);
    space.control.announce_space();
    Ok(true)
}

/// The state of a run of granules whose owner is gone; None for any other one. Once the owner is gone only the holder
/// of the adoption lock changes the run, but until then it may have become another rank's: hence the second look.
/// The caller holds that lock.
fn orphan(space: &Attachment, index: usize) -> Option<GranuleState> {
    let state = space.control.granule_state(index);
    let (GranuleState::Segment { lane, slot } | GranuleState::Leaving { lane, slot }) = state else {
        return None;
    };
    (is_orphan(space, lane, slot) && space.control.granule_state(index) == state).then_some(state)
}

/// Frees old places whose mover is gone and that no process reads. The caller holds the adoption lock.
pub(crate) fn free_left_places(space: &Attachment) -> Result<bool> {
    let control = &space.control;
    let mut freed = false;
    for index in 1..control.granules() {
        let Some(GranuleState::Leaving { .. }) = orphan(space, index) else { continue };
        let at = index as u64 * space.superblock.granule_bytes;
        freed |= free_old_place(space, at, 0, control.granule_last(index))?;
    }
    Ok(freed)
}

/// What became of a look for a segment of a lane whose producer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// One of so many bytes was moved.
    Moved(u64),
    /// There is none, or readers hold all of them.
    Nothing,
    /// One of so many bytes fits no lower pool.
    NoCapacity(u64),
    /// Another process held the adoption lock.
    Busy,
}

/// Runs `f` under the adoption lock, which a process holds while it copies one segment. None: it was held for all of
/// `wait`.
pub(crate) fn try_adopting<T>(
    space: &Attachment,
    wait: Duration,
    f: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    let mut is_held = false;
    let done = space.members.with_lock(LOCK_ADOPT, wait, || {
        is_held = true;
        f()
    });
    match done {
        Err(e) if e.kind() == Kind::TimedOut && !is_held => Ok(None),
        done => done.map(Some),
    }
}

/// Moves one segment of a lane whose producer is gone, and that has no lease, out of the first pool. Waits for another
/// process that adopts, at most so long.
pub(crate) fn adopt_one(space: &Attachment, wait: Duration) -> Result<Adopted> {
    let adopted = try_adopting(space, wait, || {
        free_left_places(space)?;
        let control = &space.control;
        for index in space.pools[0].clone() {
            let Some(GranuleState::Segment { lane, .. }) = orphan(space, index) else { continue };
            let last = control.granule_last(index);
            if is_leased(space, 0, last) {
                continue;
            }
            let owner = Owner { lane, slot: None };
            let from = index as u64 * space.superblock.granule_bytes;
            if is_empty(space, lane, from, last)? {
                retire(&*space.device, from, space.superblock.horizon)?;
                free_run(space, index);
                control.announce_space();
                continue;
            }
            let Some(to) = relocate(space, owner, from, last, 1..space.pools.len())? else {
                let granules = control.granule_segment(index).1 as u64;
                return Ok(Adopted::NoCapacity(granules * space.superblock.granule_bytes));
            };
            note_moved(control, true, to.end - to.start);
            free_old_place(space, from, 0, last)?;
            return Ok(Adopted::Moved(to.end - to.start));
        }
        Ok(Adopted::Nothing)
    })?;
    Ok(adopted.unwrap_or(Adopted::Busy))
}

/// Whether nothing lies in an orphaned segment: its producer died before the header was whole, or after it wiped the
/// header because all versions in it were dropped. A segment without a valid header that may hold a version which is
/// retained, and which the lane's own group completed, is damaged instead.
fn is_empty(space: &Attachment, lane: LaneId, from: u64, last_version: u64) -> Result<bool> {
    let control = &space.control;
    let is_earlier = lane.incarnation < control.producers().0;
    let complete = if is_earlier { control.base() } else { control.complete() };
    let mut head = [0; std::mem::size_of::<SegmentDf>()];
    space.device.read(from, &mut head)?;
    let is_of_group = || {
        let producers = control.remembered_producers_of(last_version);
        producers.is_none_or(|(incarnation, _)| incarnation == lane.incarnation)
    };
    let is_retained = (control.oldest()..complete).contains(&last_version) && is_of_group();
    Ok(!is_retained && SegmentDf::decode(&head, &space.superblock.uuid, from).is_none())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::open::create::attached;
    use crate::open::membership::Membership;
    use crate::{OpenOptions, Reader, Retention, SpillTier, Writer};

    /// A space with a lower tier in which two versions were written and the writer has ended.
    pub(crate) fn written(root: &tempfile::TempDir, disk: &tempfile::TempDir) -> (String, OpenOptions) {
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions {
            quota_bytes: Some(8 << 20),
            retention: Some(Retention::Forever),
            spill: vec![SpillTier { path: disk.path().into(), quota: Some(8 << 20), tier: None }],
            component: Some("test".into()),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        for version in 0..2u64 {
            writer.begin_step().unwrap();
            writer.put_array("x", &[5000], &[0], &[5000], &[version; 5000]).unwrap();
            writer.end_step().unwrap();
        }
        writer.close().unwrap();
        (name, options)
    }

    pub(crate) const LANE: LaneId = LaneId { incarnation: 1, rank: 0 };

    /// What a killed producer leaves when its moved segment was reclaimed before the old place was freed.
    #[test]
    fn the_old_place_of_a_segment_that_was_reclaimed_is_no_damage() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, _) = written(&root, &disk);
        let space = attached(&name);
        let granule = space.superblock.granule_bytes;
        let from = space.control.find_segment(LANE, |_, _| true).unwrap().granule as u64 * granule;
        let to = relocate(&space, Owner { lane: LANE, slot: None }, from, 1, 1..2).unwrap().expect("it fits");
        space.control.drop_below(|| 2);
        retire(&*space.device, to.start, space.superblock.horizon).unwrap();
        free_run(&space, (to.start / granule) as usize);
        let damaged = crate::verify(&name).unwrap().damaged;
        assert!(damaged.is_empty(), "{damaged:?}");
        // A segment that nothing in the control segment speaks of is told.
        free_run(&space, (from / granule) as usize);
        assert!(crate::verify(&name).unwrap().damaged[0].what.contains("not listed"));
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// A disk below does not answer while a segment is moved.
    #[test]
    fn a_producer_waits_for_its_mover_until_the_deadline() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, _) = written(&root, &disk);
        let space = attached(&name);
        let deadline = Instant::now() + Duration::from_secs(60);
        let member = Membership::join_readers(&space, 0, 1, "test", None, deadline).unwrap();
        let ledger = Arc::<Mutex<Ledger>>::default();
        let mut mover = Mover::start(Member::of(member), LANE, ledger.clone()).unwrap();
        // The mover is at work as long as it waits for this.
        let at_work = ledger.lock().unwrap();
        mover.set_blocked(true).unwrap();
        let (told, tells) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let stopped = mover.stop(Instant::now() + Duration::from_millis(20));
            told.send(stopped.is_ok()).expect("it is waited for");
        });
        assert!(tells.recv_timeout(Duration::from_secs(60)).expect("a wait without an end"));
        drop(at_work);
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// A reader that knows from the version before where the next one lies begins it between the mover's look at the
    /// leases and the moment in which the old place is written anew.
    #[test]
    fn a_reader_does_not_go_on_in_a_place_that_is_being_left() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, options) = written(&root, &disk);
        let mut reader = Reader::open(&name, &options).unwrap();
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        reader.end_step().unwrap();

        let space = attached(&name);
        let owner = Owner { lane: LANE, slot: None };
        let granule = space.control.find_segment(owner.lane, |_, _| true).unwrap().granule;
        let from = granule as u64 * space.superblock.granule_bytes;
        let to = relocate(&space, owner, from, 1, 1..2).unwrap().expect("free space below");
        assert!(!is_leased(&space, 0, 1));
        assert_eq!(reader.begin_step(None).unwrap(), Some(1));
        // The mover goes on, and another process takes the place.
        retire(&*space.device, from, space.superblock.horizon).unwrap();
        free_run(&space, granule);
        space.device.write(from + HEADER_BYTES, &vec![0xAA; 90_000]).unwrap();
        assert_eq!(reader.get_array::<u64>("x", None).unwrap(), [1; 5000], "it lies at {to:?} now");
        reader.end_step().unwrap();
        drop((reader, space));
        crate::destroy(&name).unwrap();
    }
}
