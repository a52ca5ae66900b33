//! Segments for a producer's lane: quota, free space, waiting.
//!
//! The quota is shared by the ranks: a rank may always use its equal part, and more than that only for the
//! lowest version that is not complete, so that a fast rank cannot fill the pool with versions that a slow one
//! has not begun. Space is freed when readers release versions: each producer frees its own segments in its calls, or
//! in its helper thread when another rank asks for space meanwhile ([`crate::lane::helper`]). When a producer finds no
//! free space, it also frees those of producers that are gone. What else a full pool leads to is the space's policy
//! ([`WhenFull`]); moving segments to lower pools is the mover's work ([`crate::lane::mover`]).

use forebay_config::{ExecutionMode, WhenFull};
use forebay_tier::host::sync::{Mutex, MutexGuard};
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_log::reclaim::{holds_none_below, retire};
use forebay_log::{LaneId, Ledger, SegmentSource, TakenBack};
use forebay_tier::{clock, Error, Kind, Result};

use crate::control::shared_state::LOCK_ALLOCATE;
use crate::control::{head, GranuleState, ProducerState, Waiting};
use crate::lane::gate::Gate;
use crate::lane::granules::{
    allocate, free_released, prepare_or_free, By, Owner, Place, LOCK_TIMEOUT, WAIT_SLICE,
};
use crate::lane::helper::Helper;
use crate::lane::mover::{free_left_places, try_adopting, Mover};
use crate::open::attach::{lock_timeout, Attachment};
use crate::open::groups::{awaited_group, check_present, hint_for_awaited};
use crate::open::membership::Membership;
use crate::open::opening::fenced;
use crate::open::producers::{producer_died, settle_producers};
use crate::open::read_to_end::Member;
use crate::open::released::{drop_released, holders, lowest_lease, release_floor};
use crate::open::runs::{free_run, is_orphan, wipe_unpublished};

/// The first segment of a lane where no size is asked for, so that a small space takes little memory; or a granule.
const SEGMENT_BYTES_FIRST: u64 = 256 << 10;

/// Segments of one lane.
pub(crate) struct LaneSpace {
    member: Arc<Member>,
    lane: LaneId,
    /// Shared with the mover; held for a look, never while something is copied.
    ledger: Arc<Mutex<Ledger>>,
    helper: Option<Helper>,
    /// Where the space has lower tiers.
    mover: Option<Mover>,
    /// A segment was begun since space was last freed, or a version that tells how far the lane has got.
    grown: bool,
    /// Segments become longer with what the lane holds. False: all have the size that was asked for.
    grows: bool,
    /// How long a call may wait for free space.
    pub deadline_in: Duration,
    /// Time spent waiting for free space, in all.
    pub wait_ns: u64,
    /// How many producers may be at work. This one steps aside while it waits for free space.
    pub gate: Gate,
}

/// Granules that are left in the first pool.
#[derive(Clone, Copy, Default)]
struct Left {
    free: u64,
    /// The longest stretch of them.
    longest: u64,
}

impl LaneSpace {
    /// For a producer that has just joined. Prepares the first segment before it returns, so that the first step meets
    /// no page that was never touched. `grows`: see there. Errors: [`Kind::TierFull`].
    pub(crate) fn new(member: Arc<Member>, deadline_in: Duration, grows: bool) -> Result<LaneSpace> {
        let lane = LaneId { incarnation: member.incarnation, rank: member.rank };
        let mut this = LaneSpace {
            member: member.clone(),
            lane,
            ledger: Arc::default(),
            helper: None,
            mover: None,
            grown: false,
            grows,
            deadline_in,
            wait_ns: 0,
            gate: Gate::new(member.clone()),
        };
        let first = this.allocate(this.ordinary_bytes(), Place::Aligned, Instant::now() + deadline_in)?;
        if let Some(first) = &first {
            prepare_or_free(&member.space, first.clone())?;
        }
        this.start_threads(first).inspect_err(|_| {
            // The first error is the one to report. What runs holds the member, and so its lane.
            let _ = this.stop();
        })?;
        Ok(this)
    }

    /// `first` is the segment that is taken first.
    fn start_threads(&mut self, first: Option<Range<u64>>) -> Result<()> {
        let start = Helper::start(self.member.clone(), self.lane, self.ledger.clone(), first.clone());
        self.helper = Some(start.inspect_err(|_| {
            if let Some(range) = first {
                free_run(self.space(), (range.start / self.space().superblock.granule_bytes) as usize);
            }
        })?);
        if self.space().pools.len() > 1 {
            self.mover = Some(Mover::start(self.member.clone(), self.lane, self.ledger.clone())?);
        }
        Ok(())
    }

    fn space(&self) -> &Arc<Attachment> {
        &self.member.space
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Length of the next segment unless a record needs a longer one: as much as the lane holds, in all its tiers. So
    /// a lane whose readers keep up stays small, and one that holds much has few segments.
    fn ordinary_bytes(&self) -> u64 {
        let superblock = &self.space().superblock;
        let most = superblock.segment_bytes;
        match self.grows {
            true => self.ledger().bytes().max(SEGMENT_BYTES_FIRST).max(superblock.granule_bytes).min(most),
            false => most,
        }
    }

    /// Frees what was released, if this lane has something to free.
    pub(crate) fn reclaim(&mut self) -> Result<()> {
        if free_released(self.space(), &self.ledger, By::Writer)? {
            if let Some(mover) = &self.mover {
                mover.kick();
            }
        }
        Ok(())
    }

    /// Frees what was released, also segments of producers that are gone.
    pub(crate) fn reclaim_all(&mut self, deadline: Instant) -> Result<()> {
        self.reclaim()?;
        reclaim_orphans(&self.member, deadline).map(drop)
    }

    /// Frees what was released, if the lane has begun a segment since: the one before may go now, and another
    /// rank may be waiting for it while this one waits for that rank. What fails here fails again, and is reported,
    /// when a put needs the space. Called when a record is written.
    #[inline]
    pub(crate) fn reclaim_if_grown(&mut self) {
        if std::mem::take(&mut self.grown) {
            let space = self.space();
            if space.is_durable() {
                // The helper may have to make the record that it is told of persistent.
                space.device.fence();
            }
            self.ledger().note_begun(&*space.device);
            let _ = self.reclaim();
        }
    }

    /// Takes free granules for a segment, or None if there are not enough for now.
    fn allocate(&self, bytes_min: u64, place: Place, deadline: Instant) -> Result<Option<Range<u64>>> {
        let owner = Owner { lane: self.lane, slot: Some(self.member.slot) };
        allocate(self.space(), owner, 0, bytes_min, place, lock_timeout(deadline))
    }

    /// Granules of the first pool that the lane has.
    fn used_granules(&self) -> u64 {
        let space = self.space();
        self.ledger().bytes_below(space.first_end()) / space.superblock.granule_bytes
    }

    /// Whether this rank may have `granules` more whichever version they are for.
    fn is_within_share(&self, granules: u64) -> bool {
        let share = self.space().pools[0].len() as u64 / u64::from(self.member.size);
        self.used_granules() + granules <= share
    }

    /// Whether the quota lets this rank take `granules` more for `version`.
    fn is_admitted(&self, granules: u64, version: u64) -> bool {
        self.is_within_share(granules) || version <= self.space().control.complete()
    }

    /// A version that fills the quota, with those that were begun after it, will never fit: says so at once.
    fn check_possible(&self, granules: u64, version: u64) -> Result<()> {
        let space = self.space();
        let control = &space.control;
        let total = space.pools[0].len() as u64;
        let is_lowest = self.may_go(version) >= version && control.complete() == version;
        let left = if is_lowest { self.not_held_from(version) } else { None };
        let left = left.filter(|left| left.longest < granules);
        if granules <= total && left.is_none() {
            return Ok(());
        }
        // What a rank holds that died goes when the group starts again.
        check_group(&self.member)?;
        let bytes = |granules: u64| crate::format_bytes(granules * space.superblock.granule_bytes);
        let error = |what: &str| {
            Error::new(Kind::VersionTooLarge, format!("version {version} of space {} {what}", space.name))
                .with("quota", bytes(total))
                .with("has", bytes(self.used_granules()))
                .with("wanted_more", bytes(granules))
                .with("rank", self.member.rank)
                .with("ranks", self.member.size)
        };
        Err(match left.filter(|left| left.free >= granules) {
            Some(left) => error("needs more contiguous space than is free")
                .with("free", bytes(left.free))
                .with("free_contiguous", bytes(left.longest))
                .hint("use a larger quota, or set option segment above the size of the largest object"),
            None => error("exceeds the quota minus the previous version")
                .hint("create the space with a quota of two versions or more, or put less per version"),
        })
    }

    /// The version below which everything has gone or may go as soon as space is wanted.
    fn may_go(&self, version: u64) -> u64 {
        let space = self.space();
        let gone = space.control.oldest().max(space.control.base());
        match space.tiers.when_full {
            // Released or not, lower tiers take it, last segments too.
            WhenFull::Spill => gone,
            WhenFull::DropOldest => gone.max(version.min(space.control.complete())),
            WhenFull::Block | WhenFull::Error => gone.max(release_floor(space)),
        }
    }

    /// The granules of the first pool that no segment of `version` or a later one takes, nor the last one of this lane,
    /// which stays until the next is begun; None where a segment is left that may go: of an earlier version, or of
    /// producers that are gone.
    fn not_held_from(&self, version: u64) -> Option<Left> {
        let control = &self.space().control;
        let granule = self.space().superblock.granule_bytes;
        let own_last = self.ledger().last_offset();
        let (mut left, mut stretch) = (Left::default(), 0);
        for run in control.runs(self.space().pools[0].clone()) {
            stretch = match run.state {
                GranuleState::Segment { lane, .. } => {
                    let stays = lane.incarnation == self.lane.incarnation;
                    let is_own_last = own_last == Some(run.first as u64 * granule);
                    if !stays || (run.last < version && !is_own_last) {
                        return None;
                    }
                    0
                }
                _ => {
                    left.free += run.granules as u64;
                    stretch + run.granules as u64
                }
            };
            left.longest = stretch.max(left.longest);
        }
        Some(left)
    }

    /// One attempt at a segment of at least `bytes_min`; one that is not prepared becomes an ordinary one.
    fn try_take(&mut self, bytes_min: u64, version: u64, deadline: Instant) -> Result<Option<Range<u64>>> {
        let granule = self.space().superblock.granule_bytes;
        let spare = self.helper.as_ref().map_or(Ok(None), |helper| helper.take(deadline))?;
        if let Some(spare) = spare {
            if spare.end - spare.start >= bytes_min {
                return Ok(Some(spare));
            }
            // The pool holds larger objects than the ordinary segment: the spare only takes their space.
            free_run(self.space(), (spare.start / granule) as usize);
        }
        self.reclaim()?;
        let bytes = bytes_min.max(self.ordinary_bytes());
        let granules = bytes.div_ceil(granule);
        if !self.is_admitted(granules, version) {
            return Ok(None);
        }
        let place = if version <= self.space().control.complete() { Place::Anywhere } else { Place::Aligned };
        if let Some(range) = self.allocate(bytes, place, deadline)? {
            return Ok(Some(range));
        }
        if reclaim_orphans(&self.member, deadline)? {
            return self.allocate(bytes, place, deadline);
        }
        Ok(None)
    }

    /// Waits until the deadline for free space for a segment of at least `bytes_min`.
    fn take(&mut self, bytes_min: u64, version: u64) -> Result<Range<u64>> {
        let space = self.space().clone();
        let control = &space.control;
        self.check_possible(self.wanted_granules(bytes_min), version)?;
        let deadline = Instant::now() + self.deadline_in;
        let mut began = None;
        let mut aside = 0;
        let mut result = loop {
            let seen = control.free_space().load(Acquire);
            match self.try_take(bytes_min, version, deadline) {
                Ok(None) => {}
                Ok(Some(range)) => break Ok(range),
                Err(e) => break Err(e),
            }
            ask_for_free_space(&self.member);
            if began.is_none() {
                began = Some(clock::now_ns());
                // The rank whose commit frees the space may be waiting for this place.
                aside = self.gate.step_aside();
                self.member.set_waiting(Waiting::FreeSpace(version));
            }
            let granules = self.wanted_granules(bytes_min);
            let possible = self.check_possible(granules, version).and_then(|()| check_group(&self.member));
            let possible = possible.and_then(|()| check_present(&space));
            match possible.and_then(|()| self.apply_full_policy(granules, version)) {
                Err(e) => break Err(e),
                Ok(true) => continue,
                Ok(false) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(quota_full(&space, version));
            }
            control.wait_free_space(seen, left.min(WAIT_SLICE));
        };
        if let Some(began) = began {
            // Without free space there is nothing to do inside; the caller comes out when it hears of it.
            if let Ok(range) = &result {
                if let Err(e) = self.gate.come_back(aside, self.deadline_in) {
                    free_run(&space, (range.start / space.superblock.granule_bytes) as usize);
                    control.announce_space();
                    result = Err(e);
                }
            }
            self.wait_ns += clock::now_ns() - began;
            self.member.set_waiting(Waiting::No);
            if let Some(mover) = &self.mover {
                mover.set_blocked(false)?;
            }
        }
        result
    }

    /// Granules of a segment of at least `bytes_min`, if it is taken now.
    fn wanted_granules(&self, bytes_min: u64) -> u64 {
        bytes_min.max(self.ordinary_bytes()).div_ceil(self.space().superblock.granule_bytes)
    }

    /// What the space's policy does about a full first pool. True: look again at once.
    fn apply_full_policy(&mut self, granules: u64, version: u64) -> Result<bool> {
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
    /// of a lane of large objects. Within the share only: it may be for a version behind those that others still write.
    fn want_spare(&self, bytes: u64) {
        let granules = bytes / self.space().superblock.granule_bytes;
        if let Some(helper) = self.helper.as_ref().filter(|_| self.is_within_share(granules)) {
            helper.prepare(bytes);
        }
    }

    /// Frees a segment that is in the ledger no more, and tells those who wait.
    fn free(&self, range: &Range<u64>) {
        let space = self.space();
        free_run(space, (range.start / space.superblock.granule_bytes) as usize);
        space.control.announce_space();
    }

    /// Ends mover and helper and frees the spare. Errors: a move that failed and that no put has told of.
    pub(crate) fn stop(&mut self) -> Result<()> {
        // A thread that is at work needs a moment, whatever the deadline of the program's calls.
        let deadline = Instant::now() + self.deadline_in.max(LOCK_TIMEOUT);
        let moved = self.mover.as_mut().map_or(Ok(()), |mover| mover.stop(deadline));
        if let Some(range) = self.helper.as_mut().and_then(|helper| helper.stop(deadline)) {
            let space = self.space();
            free_run(space, (range.start / space.superblock.granule_bytes) as usize);
            space.control.announce_space();
        }
        moved
    }
}

impl SegmentSource for LaneSpace {
    fn segment(&mut self, bytes_min: u64, version: u64, sequence: u64) -> Result<Range<u64>> {
        let space = self.member.space.clone();
        let granule = space.superblock.granule_bytes;
        let range = self.take(bytes_min, version)?;
        prepare_or_free(&space, range.clone())?;
        let first = (range.start / granule) as usize;
        let length = ((range.end - range.start) / granule) as usize;
        let control = &space.control;
        control.describe_run(first, sequence, length, version);
        let slot = Some(self.member.slot);
        control.set_granule_state(first, GranuleState::Segment { lane: self.lane, slot });
        self.ledger().push(range.clone(), version);
        self.grown = true;
        if let Some(mover) = &self.mover {
            mover.kick();
        }
        self.want_spare(self.ordinary_bytes().max(range.end - range.start));
        Ok(range)
    }

    fn note_version(&mut self, offset: u64, version: u64) {
        let space = &self.member.space;
        let index = (offset / space.superblock.granule_bytes) as usize;
        space.control.set_granule_last(index, version);
        let mut ledger = self.ledger();
        ledger.note_version(version);
        let is_untold = ledger.is_untold();
        drop(ledger);
        self.grown |= is_untold;
    }

    fn note_filled(&mut self, offset: u64, bytes: u64) {
        let space = &self.member.space;
        space.control.set_filled((offset / space.superblock.granule_bytes) as usize, bytes);
    }

    fn release(&mut self, range: Range<u64>) {
        let last = self.ledger().pop_last();
        assert!(last.is_some_and(|s| s.range == range), "only the last segment can come back");
        self.free(&range);
    }

    fn take_back(&mut self, version: u64, before: Option<&Range<u64>>) -> TakenBack {
        let space = self.space();
        let taken = self.ledger().take_back(&*space.device, space.superblock.horizon, version, before);
        if let TakenBack::Retired(range) = &taken {
            self.free(range);
        }
        taken
    }
}

/// Asks the ranks that hold what every reader has released, or a segment that they do not need yet, to free it:
/// they may be waiting for this rank.
fn ask_for_free_space(member: &Membership) {
    let space = &member.space;
    let (control, floor) = (&space.control, release_floor(space));
    for index in space.pools[0].clone() {
        let holder = match control.granule_state(index) {
            GranuleState::Segment { slot, .. } if control.granule_last(index) < floor => slot,
            GranuleState::Spare { slot, .. } => slot,
            _ => None,
        };
        if let Some(slot) = holder.filter(|slot| *slot != member.slot) {
            control.ask_for_free_space(slot);
        }
    }
}

/// Drops the oldest complete version that no reader holds, and with it what was released. True if there was one.
fn drop_oldest(space: &Attachment, version: u64) -> bool {
    let control = &space.control;
    let oldest = control.oldest();
    let floor = || oldest.saturating_add(1).min(control.complete()).min(lowest_lease(space));
    if oldest >= version || floor() <= oldest {
        return false;
    }
    let unread = floor() > release_floor(space);
    control.drop_below(floor);
    if unread {
        control.word(head::DROPPED).fetch_add(1, Relaxed);
    }
    true
}

/// Frees released segments of producers that are gone, or have ended. True if there were some.
fn reclaim_orphans(member: &Membership, deadline: Instant) -> Result<bool> {
    let space = &member.space;
    let floor = drop_released(space);
    // No process adopts a segment while it is freed here. Where one does so now, the caller looks again.
    let freed = try_adopting(space, WAIT_SLICE, || {
        let left = free_left_places(space)?;
        let timeout = lock_timeout(deadline);
        let released = space.members.with_lock(LOCK_ALLOCATE, timeout, || {
            let mut freed = false;
            while free_orphans(member, floor)? {
                freed = true;
            }
            Ok(freed)
        })?;
        Ok(left || released)
    })?
    .unwrap_or(false);
    if freed {
        space.control.announce_space();
    }
    Ok(freed)
}

fn free_orphans(member: &Membership, floor: u64) -> Result<bool> {
    let space = &member.space;
    let control = &space.control;
    let base = control.base();
    let mut freed = false;
    for index in 1..control.granules() {
        let (lane, slot, is_segment) = match control.granule_state(index) {
            GranuleState::Segment { lane, slot } => (lane, slot, true),
            GranuleState::Spare { lane, slot } => (lane, slot, false),
            _ => continue,
        };
        let has_ended = lane.incarnation == member.incarnation && control.lane_owner(lane.rank).1;
        if !(has_ended || lane.incarnation < member.incarnation) || !is_orphan(space, lane, slot) {
            continue;
        }
        let last = control.granule_last(index);
        let is_released = match has_ended {
            // A later segment of the lane tells recovery that it has ended, and with which version.
            true => {
                last < floor
                    && control
                        .find_segment(lane, |later, _| later > control.granule_segment(index).0)
                        .is_some()
            }
            // What an earlier incarnation wrote from the current one's first version on never became complete.
            false => {
                last.min(base.saturating_sub(1)) < floor
                    || base == 0
                    || (last >= base && is_never_complete(space, (member.incarnation, base), index, lane))
            }
        };
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

/// Whether a segment of an incarnation before `current`, whose first version is `base`, holds nothing that became
/// complete, and may go. Only the newest of a lane, also among copies of segments that were, or were to be, moved:
/// recovery takes what lies before a gap for released. The last one of an incarnation goes only where a later one has
/// left some: by it a rebuild tells that writers began again and died. Those of `current` do not count: they may not be
/// durable yet.
fn is_never_complete(space: &Attachment, (current, base): (u32, u64), index: usize, lane: LaneId) -> bool {
    let (control, superblock) = (&space.control, &space.superblock);
    let sequence = control.granule_segment(index).0;
    let (mut is_newest, mut is_told) = (true, false);
    for other in (1..control.granules()).filter(|other| *other != index) {
        match control.granule_state(other) {
            GranuleState::Leaving { lane: of, .. } | GranuleState::Spare { lane: of, .. } => {
                is_newest &= of != lane;
            }
            GranuleState::Segment { lane: of, .. } => {
                is_newest &= of != lane || control.granule_segment(other).0 < sequence;
                is_told |= (lane.incarnation..current).contains(&of.incarnation);
            }
            _ => {}
        }
    }
    let at = index as u64 * superblock.granule_bytes;
    is_newest && is_told && holds_none_below(&*space.device, &superblock.uuid, at, base)
}

/// [`Kind::Fenced`] or [`Kind::ProducerDied`] when this producer's group is over.
pub(crate) fn check_group(member: &Membership) -> Result<()> {
    let space = &member.space;
    let (incarnation, _) = space.control.producers();
    space.control.check()?;
    if incarnation != member.incarnation {
        return Err(fenced(&format!("space {}", space.name), member.rank, member.incarnation, incarnation));
    }
    match settle_producers(space) {
        ProducerState::Died(slot) | ProducerState::Withdrawn(slot) => Err(producer_died(space, slot)),
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
    let mode = match control.execution_mode() {
        ExecutionMode::Serial => "; mode serial keeps all versions until the writers have ended",
        _ => "",
    };
    let what = format!("space {} has no free space for version {version}{when}{mode}", space.name);
    let error = Error::new(Kind::QuotaFull, what)
        .with("quota", crate::format_bytes(space.first_bytes()))
        .with("when_full", space.tiers.when_full)
        .with("oldest_version", oldest)
        .with("complete_versions", control.complete())
        .with("held_by", holders(space, oldest).join("; "));
    let lower: Vec<String> = (1..space.pools.len())
        .map(|pool| {
            let fill = space.fill_of(pool);
            format!(
                "{}: {} of {}",
                space.tiers.path_of(pool, space.first.path()).display(),
                crate::format_bytes(fill.reserved_bytes),
                crate::format_bytes(fill.quota_bytes)
            )
        })
        .collect();
    if let Some(group) = awaited_group(space, oldest) {
        return error.hint(hint_for_awaited(&space.name, &group));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::create::attached;
    use crate::{OpenOptions, Retention, Writer};
    use forebay_tier::TierKind;
    use std::sync::mpsc;

    #[test]
    fn a_put_waits_for_the_granule_table_until_its_own_deadline() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/held", dir.path().display());
        let options = OpenOptions {
            tier: Some(TierKind::Dram),
            quota_bytes: Some(16 << 20),
            timeout: Duration::from_millis(200),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        let space = attached(&name);
        writer.begin_step().unwrap();
        let (held, is_held) = mpsc::channel();
        let (failed, has_failed) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                space.members.with_lock(LOCK_ALLOCATE, LOCK_TIMEOUT, move || {
                    held.send(()).unwrap();
                    // A put that waits longer than it was told succeeds then.
                    let _ = has_failed.recv_timeout(LOCK_TIMEOUT / 2);
                    Ok(())
                })
            });
            is_held.recv().unwrap();
            // More than a segment that was prepared ahead.
            let bytes = 6 << 20;
            let put = writer.put_array("a", &[bytes], &[0], &[bytes], &vec![1u8; bytes as usize]);
            assert_eq!(put.map_err(|e| e.kind()), Err(Kind::TimedOut));
            failed.send(()).unwrap();
        });
    }

    /// Enough is free, in pieces that are too short.
    #[test]
    fn a_version_without_contiguous_space_is_told_so() {
        const GRANULE: u64 = 256 << 10;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/pieces", dir.path().display());
        let options = OpenOptions {
            tier: Some(TierKind::Dram),
            quota_bytes: Some(16 * GRANULE),
            segment_bytes: Some(GRANULE),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        let space = attached(&name);
        // Segments of another rank of the group, with the version that is written.
        let owner = Owner { lane: LaneId { incarnation: 1, rank: 1 }, slot: None };
        let take = || allocate(&space, owner, 0, 1, Place::Anywhere, LOCK_TIMEOUT).unwrap();
        let taken: Vec<usize> =
            std::iter::from_fn(|| take().map(|range| (range.start / GRANULE) as usize)).collect();
        for (at, first) in taken.iter().enumerate() {
            match at % 2 {
                1 => free_run(&space, *first),
                _ => {
                    let segment = GranuleState::Segment { lane: owner.lane, slot: None };
                    space.control.set_granule_state(*first, segment);
                }
            }
        }
        writer.begin_step().unwrap();
        let mut put = |bytes: u64| {
            let put = writer.put_array("a", &[bytes], &[0], &[bytes], &vec![1u8; bytes as usize]);
            let error = put.unwrap_err();
            assert_eq!(error.kind(), Kind::VersionTooLarge, "{error}");
            error.to_string()
        };
        let in_pieces = put(GRANULE + GRANULE / 2);
        assert!(in_pieces.contains("needs more contiguous space than is free"), "{in_pieces}");
        // With the segment that was prepared.
        let free = crate::format_bytes((taken.len() / 2 + 1) as u64 * GRANULE);
        assert!(in_pieces.contains(&format!("free={free}, free_contiguous=256.0 KiB")), "{in_pieces}");
        // More than there is at all: nothing is said of what is free.
        let too_long = put(32 * GRANULE);
        assert!(too_long.contains("exceeds the quota") && !too_long.contains("free="), "{too_long}");
        writer.abandon();
    }

    #[test]
    fn what_never_became_complete_goes_the_newest_first_and_leaves_a_trace() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/killed", dir.path().display());
        let options = OpenOptions {
            tier: Some(TierKind::Dram),
            quota_bytes: Some(16 << 20),
            retention: Some(Retention::Forever),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        // Each in a segment of its own.
        for version in 0..2u8 {
            writer.begin_step().unwrap();
            writer.put_array("a", &[2 << 20], &[0], &[2 << 20], &vec![version; 2 << 20]).unwrap();
            writer.end_step().unwrap();
        }
        writer.abandon();
        let space = attached(&name);
        let control = &space.control;
        let lane = |incarnation| LaneId { incarnation, rank: 0 };
        let taken = |lane| {
            let owner = Owner { lane, slot: None };
            let range = allocate(&space, owner, 0, 1, Place::Anywhere, LOCK_TIMEOUT).unwrap();
            (range.expect("free space").start / space.superblock.granule_bytes) as usize
        };
        let segments: Vec<usize> = (control.runs(1..control.granules()))
            .filter(|run| matches!(run.state, GranuleState::Segment { .. }))
            .map(|run| run.first)
            .collect();
        let [.., before, newest] = segments[..] else { panic!("two segments or more: {segments:?}") };
        let may_go = |current, base, index| is_never_complete(&space, (current, base), index, lane(1));
        assert!(
            may_go(2, 1, newest) && may_go(2, 0, newest) && !may_go(2, 2, newest),
            "only from the base on"
        );
        assert!(!may_go(2, 0, before), "only the newest");
        let copy = taken(lane(1));
        assert!(!may_go(2, 1, newest), "a copy of some segment of the lane is there");
        control.set_granule_state(copy, GranuleState::Leaving { lane: lane(1), slot: None });
        assert!(!may_go(2, 1, newest), "an old place is");
        free_run(&space, copy);
        segments[..segments.len() - 1].iter().for_each(|index| free_run(&space, *index));
        assert!(!may_go(2, 1, newest), "nothing else tells that the group began");
        let other = taken(lane(2));
        control.set_granule_state(other, GranuleState::Segment { lane: lane(2), slot: None });
        assert!(!may_go(2, 1, newest), "it is of the group that asks");
        assert!(may_go(3, 1, newest), "a later group tells it too");
    }
}
