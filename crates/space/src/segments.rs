//! Segments for a producer's lane: quota, room, waiting, and the next one faulted in ahead.
//!
//! The quota is shared by the ranks: a rank may always use its equal part, and more than that only for the
//! lowest version that is not complete, so that a fast rank cannot fill the pool with versions that a slow one
//! has not begun. Room comes back when readers release versions: each producer gives back its own segments, and,
//! when it finds no room, also those of producers that are gone. What else a full pool leads to is the space's
//! policy ([`WhenFull`]); moving segments to lower pools is the mover's work ([`crate::mover`]).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_log::reclaim::retire;
use forebay_log::{LaneId, Ledger, SegmentSource};
use forebay_tier::{clock, Error, Kind, Result};

use crate::attach::{Attachment, LOCK_ADOPT, LOCK_ALLOCATE};
use crate::control::{head, GranuleState, ProducerState, Waiting};
use crate::membership::{
    drop_released, free_run, holders, lowest_lease, producer_died, release_floor, settle_producers,
    wipe_unpublished, Membership,
};
use crate::mover::{free_left_places, is_orphan, Mover, Owner};
use crate::options::WhenFull;
use crate::protocol;

/// A waiter looks again at least this often: who died says nothing.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(50);
/// The allocation lock is held for microseconds; a holder that is stopped for longer is worth an error.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Segments of one lane.
pub(crate) struct LaneSpace {
    member: Arc<Membership>,
    lane: LaneId,
    /// Shared with the mover; held for a look, never while something is copied.
    ledger: Arc<Mutex<Ledger>>,
    spare: Arc<Spare>,
    helper: Option<JoinHandle<()>>,
    /// Where the space has lower tiers.
    mover: Option<Mover>,
    /// A segment was begun since room was last given back.
    grown: bool,
    /// How long a call may wait for room.
    pub deadline_in: Duration,
    /// Time spent waiting for room, in all.
    pub wait_ns: u64,
}

/// The next segment, prepared by a helper thread while this one is filled.
#[derive(Default)]
struct Spare {
    state: Mutex<SpareState>,
    changed: Condvar,
}

#[derive(Default)]
enum SpareState {
    #[default]
    Empty,
    /// Of so many bytes.
    Wanted(u64),
    Working,
    Ready(Range<u64>),
    Stopped,
}

impl Spare {
    fn lock(&self) -> std::sync::MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: SpareState) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// Takes the spare, waiting for one that is being prepared.
    fn take(&self) -> Option<Range<u64>> {
        let mut state = self.lock();
        while matches!(*state, SpareState::Wanted(_) | SpareState::Working) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let SpareState::Ready(range) = &*state {
            let range = range.clone();
            *state = SpareState::Empty;
            return Some(range);
        }
        None
    }
}

impl LaneSpace {
    /// For a producer that has just joined. Prepares the first two segments before it returns, so that the first
    /// step meets no page that was never touched. Errors: [`Kind::TierFull`].
    pub(crate) fn new(member: Arc<Membership>, deadline_in: Duration) -> Result<LaneSpace> {
        let lane = LaneId { incarnation: member.incarnation, rank: member.rank };
        let spare = Arc::new(Spare::default());
        let mut this = LaneSpace {
            member: member.clone(),
            lane,
            ledger: Arc::default(),
            spare: spare.clone(),
            helper: None,
            mover: None,
            grown: false,
            deadline_in,
            wait_ns: 0,
        };
        let segment = member.space.superblock.segment_bytes;
        if let Some(first) = this.allocate(segment, Place::Aligned)? {
            prepare_or_free(&member.space, first.clone())?;
            spare.set(SpareState::Ready(first));
        }
        let helper = std::thread::Builder::new()
            .name("forebay-ahead".into())
            .spawn(move || run_helper(&member, lane, &spare))
            .map_err(|e| Error::io("starting the helper thread", e))?;
        this.helper = Some(helper);
        if this.space().pools.len() > 1 {
            this.mover = Some(Mover::start(this.member.clone(), lane, this.ledger.clone())?);
        }
        Ok(this)
    }

    fn space(&self) -> &Arc<Attachment> {
        &self.member.space
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what was released, if this lane has something to give back.
    pub(crate) fn reclaim(&mut self) -> Result<()> {
        let space = self.member.space.clone();
        if !self.ledger().has_reclaimable(u64::MAX) {
            return Ok(());
        }
        let floor = release_floor(&space);
        if !self.ledger().has_reclaimable(floor) {
            return Ok(());
        }
        let floor = drop_released(&space);
        let granule = space.superblock.granule_bytes;
        let mut freed = false;
        self.ledger().reclaim(&*space.device, space.superblock.horizon, floor, |range| {
            free_run(&space, (range.start / granule) as usize);
            freed = true;
            Ok(())
        })?;
        if freed {
            space.control.announce_room();
            if let Some(mover) = &self.mover {
                mover.kick();
            }
        }
        Ok(())
    }

    /// Gives back what was released, if the lane has begun a segment since: the one before may go now, and another
    /// rank may be waiting for it while this one waits for that rank. What fails here fails again, and is reported,
    /// when a put needs the room.
    #[inline]
    pub(crate) fn reclaim_if_grown(&mut self) {
        if std::mem::take(&mut self.grown) {
            let _ = self.reclaim();
        }
    }

    /// Takes free granules for a segment, or None if there are not enough for now.
    fn allocate(&self, bytes_min: u64, place: Place) -> Result<Option<Range<u64>>> {
        let owner = Owner { lane: self.lane, slot: Some(self.member.slot) };
        allocate(self.space(), owner, 0, bytes_min, place)
    }

    /// Granules of the first pool that the lane has.
    fn used_granules(&self) -> u64 {
        let space = self.space();
        self.ledger().bytes_below(space.first.capacity()) / space.superblock.granule_bytes
    }

    /// Whether the quota lets this rank take `granules` more for `version`.
    fn is_admitted(&self, granules: u64, version: u64) -> bool {
        let control = &self.space().control;
        let share = self.space().pools[0].len() as u64 / u64::from(self.member.size);
        self.used_granules() + granules <= share || version <= control.complete()
    }

    /// A version that alone fills the quota will never find room: says so at once.
    fn check_possible(&self, granules: u64, version: u64) -> Result<()> {
        let space = self.space();
        let control = &space.control;
        let total = space.pools[0].len() as u64;
        let alone = control.oldest().max(control.base()) >= version
            && control.complete() == version
            && space.pools[0].clone().all(|i| match control.granule_state(i) {
                GranuleState::Segment { .. } => control.granule_last(i) >= version,
                _ => true,
            });
        if granules <= total && !(alone && self.used_granules() + granules > total) {
            return Ok(());
        }
        let quota = total * space.superblock.granule_bytes;
        Err(Error::new(
            Kind::VersionTooLarge,
            format!("version {version} of space {} exceeds the quota", space.name),
        )
        .with("quota", crate::format_bytes(quota))
        .with(
            "wanted",
            crate::format_bytes((self.used_granules() + granules) * space.superblock.granule_bytes),
        )
        .with("rank", self.member.rank)
        .hint("make the space with a larger quota, or put less per version"))
    }

    /// One attempt at a segment.
    fn try_take(&mut self, bytes: u64, version: u64) -> Result<Option<Range<u64>>> {
        let granule = self.space().superblock.granule_bytes;
        if let Some(spare) = self.spare.take() {
            if spare.end - spare.start >= bytes {
                return Ok(Some(spare));
            }
            // The pool holds larger objects than the ordinary segment: the spare only takes their room.
            free_run(self.space(), (spare.start / granule) as usize);
        }
        self.reclaim()?;
        let granules = bytes.div_ceil(granule);
        if !self.is_admitted(granules, version) {
            return Ok(None);
        }
        let place = if version <= self.space().control.complete() { Place::Anywhere } else { Place::Aligned };
        if let Some(range) = self.allocate(bytes, place)? {
            return Ok(Some(range));
        }
        if reclaim_orphans(&self.member)? {
            return self.allocate(bytes, place);
        }
        Ok(None)
    }

    /// Waits for room until the deadline.
    fn take(&mut self, bytes: u64, version: u64) -> Result<Range<u64>> {
        let space = self.space().clone();
        let control = &space.control;
        let granules = bytes.div_ceil(space.superblock.granule_bytes);
        self.check_possible(granules, version)?;
        let deadline = Instant::now() + self.deadline_in;
        let mut began = None;
        let result = loop {
            let seen = control.room().load(Acquire);
            match self.try_take(bytes, version) {
                Ok(None) => {}
                Ok(Some(range)) => break Ok(range),
                Err(e) => break Err(e),
            }
            if began.is_none() {
                began = Some(clock::now_ns());
                self.member.set_waiting(Waiting::Room(version));
            }
            let possible = self.check_possible(granules, version).and_then(|()| check_group(&self.member));
            match possible.and_then(|()| self.make_room(granules, version)) {
                Err(e) => break Err(e),
                Ok(true) => continue,
                Ok(false) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(quota_full(&space, version));
            }
            control.wait_room(seen, left.min(WAIT_SLICE));
        };
        if let Some(began) = began {
            self.wait_ns += clock::now_ns() - began;
            self.member.set_waiting(Waiting::No);
            if let Some(mover) = &self.mover {
                mover.set_blocked(false)?;
            }
        }
        result
    }

    /// What the space's policy does about a full first pool. True: look again at once.
    fn make_room(&mut self, granules: u64, version: u64) -> Result<bool> {
        let space = self.space().clone();
        match space.tiers.when_full {
            WhenFull::Block => Ok(false),
            WhenFull::Error => Err(quota_full(&space, version)),
            WhenFull::DropOldest => {
                // While a slower rank holds this one up, dropping what is complete would free nothing.
                let helps = self.is_admitted(granules, version)
                    || self.ledger().has_reclaimable(space.control.complete());
                Ok(helps && drop_oldest(&space, version))
            }
            WhenFull::Spill => match &self.mover {
                Some(mover) => mover.set_blocked(true).map(|()| false),
                None => Ok(false),
            },
        }
    }

    /// Lets the helper prepare another segment as long as the last one: one that is shorter would only be in the way
    /// of a lane of large objects.
    fn want_spare(&self, version: u64, bytes: u64) {
        let granules = bytes / self.space().superblock.granule_bytes;
        let ahead = version.max(self.space().control.complete() + 1);
        if self.is_admitted(granules, ahead) && matches!(*self.spare.lock(), SpareState::Empty) {
            self.spare.set(SpareState::Wanted(bytes));
        }
    }

    /// Ends mover and helper and gives the spare back. Errors: a move that failed and that no put has told of.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let moved = self.mover.as_mut().map_or(Ok(()), Mover::stop);
        let left = self.spare.take();
        self.spare.set(SpareState::Stopped);
        if let Some(helper) = self.helper.take() {
            // A panic of the helper has been printed; there is nothing to add here.
            let _ = helper.join();
        }
        if let Some(range) = left {
            let space = self.space();
            free_run(space, (range.start / space.superblock.granule_bytes) as usize);
            space.control.announce_room();
        }
        moved
    }
}

impl SegmentSource for LaneSpace {
    fn segment(&mut self, bytes_min: u64, version: u64, sequence: u64) -> Result<Range<u64>> {
        let space = self.member.space.clone();
        let granule = space.superblock.granule_bytes;
        let bytes = bytes_min.max(space.superblock.segment_bytes);
        let range = self.take(bytes, version)?;
        prepare_or_free(&space, range.clone())?;
        let first = (range.start / granule) as usize;
        let length = ((range.end - range.start) / granule) as usize;
        let control = &space.control;
        control.set_granule_segment(first, sequence, length);
        control.set_granule_last(first, version);
        let slot = Some(self.member.slot);
        control.set_granule_state(first, GranuleState::Segment { lane: self.lane, slot });
        self.ledger().push(range.clone(), version);
        self.grown = true;
        if let Some(mover) = &self.mover {
            mover.kick();
        }
        self.want_spare(version, range.end - range.start);
        Ok(range)
    }

    fn note_version(&mut self, offset: u64, version: u64) {
        let space = &self.member.space;
        let index = (offset / space.superblock.granule_bytes) as usize;
        space.control.set_granule_last(index, version);
        self.ledger().note_version(version);
    }

    fn give_back(&mut self, range: Range<u64>) {
        let last = self.ledger().pop_last();
        assert!(last.is_some_and(|s| s.range == range), "only the last segment can come back");
        let space = self.space();
        free_run(space, (range.start / space.superblock.granule_bytes) as usize);
        space.control.announce_room();
    }
}

fn run_helper(member: &Arc<Membership>, lane: LaneId, spare: &Spare) {
    loop {
        let bytes = {
            let mut state = spare.lock();
            let bytes = loop {
                match *state {
                    SpareState::Wanted(bytes) => break bytes,
                    SpareState::Stopped => return,
                    _ => state = spare.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            *state = SpareState::Working;
            bytes
        };
        let space = &member.space;
        // Whatever fails here fails again, and is reported, when the segment is really needed.
        let owner = Owner { lane, slot: Some(member.slot) };
        let ready = allocate(space, owner, 0, bytes, Place::Spare)
            .ok()
            .flatten()
            .filter(|range| prepare_or_free(space, range.clone()).is_ok());
        spare.set(ready.map_or(SpareState::Empty, SpareState::Ready));
    }
}

/// Faults a range in; if that is refused the range is free again.
fn prepare_or_free(space: &Attachment, range: Range<u64>) -> Result<()> {
    space.device.prepare(range.clone()).inspect_err(|_| {
        free_run(space, (range.start / space.superblock.granule_bytes) as usize);
    })
}

/// Where a run of granules may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a multiple of its own length, so that runs of one length leave no gaps that are too short for another.
    Aligned,
    /// As aligned, and not the last room.
    Spare,
    /// Aligned where that is possible, else anywhere: without it nobody could go on.
    Anywhere,
}

/// A run of free granules of pool `pool`, or None if there is none so long. First fit from the start of the pool:
/// what was used before comes first, because its pages are there.
pub(crate) fn allocate(
    space: &Attachment,
    owner: Owner,
    pool: usize,
    bytes: u64,
    place: Place,
) -> Result<Option<Range<u64>>> {
    let control = &space.control;
    let granule = space.superblock.granule_bytes;
    let wanted = bytes.div_ceil(granule) as usize;
    space.members.with_lock(LOCK_ALLOCATE, LOCK_TIMEOUT, || {
        let pool = space.pools[pool].clone();
        let Some(first) = find_free(space, pool.clone(), wanted, wanted)
            .or_else(|| (place == Place::Anywhere).then(|| find_free(space, pool, wanted, 1)).flatten())
            .filter(|_| place != Place::Spare || leaves_room(space, wanted))
        else {
            return Ok(None);
        };
        let Owner { lane, slot } = owner;
        control.set_granule_segment(first, 0, wanted);
        control.set_granule_state(first, GranuleState::Spare { lane, slot });
        for inside in first + 1..first + wanted {
            control.set_granule_state(inside, GranuleState::Inside);
        }
        Ok(Some(first as u64 * granule..(first + wanted) as u64 * granule))
    })
}

/// The first of `wanted` free granules that begin at a multiple of `step` from the start of the pool.
fn find_free(space: &Attachment, pool: Range<usize>, wanted: usize, step: usize) -> Option<usize> {
    let control = &space.control;
    let mut free = 0;
    for index in pool.clone() {
        let is_free = control.granule_state(index) == GranuleState::Free;
        // A run may begin here, or go on.
        free = match is_free {
            true if free > 0 || (index - pool.start) % step == 0 => free + 1,
            _ => 0,
        };
        if free == wanted {
            return Some(index + 1 - wanted);
        }
    }
    None
}

/// A spare is a convenience: it must not take the last room from a rank that has real data.
fn leaves_room(space: &Attachment, wanted: usize) -> bool {
    let control = &space.control;
    let free = space.pools[0].clone().filter(|i| control.granule_state(*i) == GranuleState::Free).count();
    free >= wanted * 2
}

/// Drops the oldest complete version that nobody holds, and with it what was released. True if there was one.
fn drop_oldest(space: &Attachment, version: u64) -> bool {
    let control = &space.control;
    let oldest = control.oldest();
    let floor = || (oldest + 1).min(control.complete()).min(lowest_lease(space));
    if oldest >= version || floor() <= oldest {
        return false;
    }
    let unread = floor() > release_floor(space);
    protocol::drop_below(control.oldest_word(), floor);
    if unread {
        control.word(head::DROPPED).fetch_add(1, Relaxed);
    }
    true
}

/// Gives back released segments of producers that are gone. True if there were some.
fn reclaim_orphans(member: &Membership) -> Result<bool> {
    let space = &member.space;
    let floor = drop_released(space);
    // Nobody adopts a segment while it is freed here.
    let freed = space.members.with_lock(LOCK_ADOPT, LOCK_TIMEOUT, || {
        let left = free_left_places(space)?;
        let released =
            space.members.with_lock(LOCK_ALLOCATE, LOCK_TIMEOUT, || free_orphans(member, floor))?;
        Ok(left || released)
    })?;
    if freed {
        space.control.announce_room();
    }
    Ok(freed)
}

fn free_orphans(member: &Membership, floor: u64) -> Result<bool> {
    let space = &member.space;
    let control = &space.control;
    let mut freed = false;
    for index in 1..control.granules() {
        let (lane, slot, is_segment) = match control.granule_state(index) {
            GranuleState::Segment { lane, slot } => (lane, slot, true),
            GranuleState::Spare { lane, slot } => (lane, slot, false),
            _ => continue,
        };
        if lane.incarnation >= member.incarnation || !is_orphan(space, lane, slot) {
            continue;
        }
        // What an earlier incarnation wrote from the current one's first version on never became complete.
        let last = control.granule_last(index).min(control.base().saturating_sub(1));
        let is_released = last < floor || control.base() == 0;
        if is_segment && !is_released {
            continue;
        }
        if is_segment {
            let at = index as u64 * space.superblock.granule_bytes;
            retire(&*space.device, at, space.superblock.horizon)?;
        } else {
            wipe_unpublished(space, index)?;
        }
        free_run(space, index);
        freed = true;
    }
    Ok(freed)
}

/// [`Kind::Fenced`] or [`Kind::ProducerDied`] when this producer's group is over.
pub(crate) fn check_group(member: &Membership) -> Result<()> {
    let space = &member.space;
    let (incarnation, _) = space.control.producers();
    if incarnation != member.incarnation {
        return Err(Error::new(
            Kind::Fenced,
            format!("a newer group of writers has taken over space {}", space.name),
        )
        .with("rank", member.rank)
        .with("incarnation", member.incarnation)
        .with("current", incarnation)
        .hint("this process belongs to an earlier start of the program; end it"));
    }
    match settle_producers(space) {
        ProducerState::Died(slot) => Err(producer_died(space, slot)),
        _ => Ok(()),
    }
}

fn quota_full(space: &Attachment, version: u64) -> Error {
    let control = &space.control;
    let oldest = control.oldest();
    let when = match space.tiers.when_full {
        WhenFull::Error => "",
        _ => " before the deadline",
    };
    let error =
        Error::new(Kind::QuotaFull, format!("space {} had no room for version {version}{when}", space.name))
            .with("quota", crate::format_bytes(space.first_bytes()))
            .with("when_full", space.tiers.when_full)
            .with("oldest_version", oldest)
            .with("complete_versions", control.complete())
            .with("held_by", holders(space, oldest).join("; "));
    let lower: Vec<String> = (1..space.pools.len())
        .map(|pool| {
            let (used, quota) = space.fill_of(pool);
            format!(
                "{}: {} of {}",
                space.tiers.path_of(pool, space.first.path()).display(),
                crate::format_bytes(used),
                crate::format_bytes(quota)
            )
        })
        .collect();
    if lower.is_empty() {
        return error.hint(
            "start or speed up the readers, release views, make the space with a larger quota, or give it a lower \
             tier: spill = \"DIRECTORY\"",
        );
    }
    error
        .with("lower_tiers", lower.join("; "))
        .hint("start or speed up the readers, release views, or make the space with larger quotas")
}
