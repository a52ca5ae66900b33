//! Taking part in a space: a slot of the members table, alive as long as the kernel says so.
//!
//! Producers form one group of declared size per incarnation; readers form named groups. Who joins does so under
//! the setup lock; who dies is noticed by those that wait, because the kernel drops a dead process's lock. What a
//! reader still needs stands in its own slot (cursor and lease), so that a survivor can tell a dead member's
//! needs from a live one's. Leases end by release or death, never by time.

use forebay_tier::host::sync::Mutex;
use forebay_tier::host::time::Instant;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use forebay_log::format::{INCARNATION_END, VERSION_END};
use forebay_log::recover::{recover, take_over};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::process::{self, ForkMark};
use forebay_tier::{clock, Error, Kind, Result};

pub(crate) use crate::control::shared_state::{LOCK_ADOPT, LOCK_ALLOCATE};
use crate::control::{
    group, head, member, protocol, too_many, GranuleState, Waiting, HOLDS_NOTHING, MEMBERS_MAX,
};
use crate::open::attach::{lock_timeout, Attachment};
use crate::open::groups::{self, Keep};
use crate::open::member::{describe, is_own_slot, Role};
use crate::open::opening::Writers;
use crate::open::released::{drop_beyond_last, lease_words};
use crate::open::runs::{free_run, is_orphan, wipe_unpublished};
use crate::version_range::format_versions;

/// One member's place in a space. Shared by the handle and its views; the slot is free again when all are gone.
pub struct Membership {
    /// The space.
    pub space: Arc<Attachment>,
    /// Its slot.
    pub slot: u32,
    /// What it does.
    pub role: Role,
    /// Its rank in its group.
    pub rank: u32,
    /// Ranks of its group.
    pub size: u32,
    /// Producers: the incarnation.
    pub incarnation: u32,
    group: Option<usize>,
    /// Readers of a group that keeps a cursor: the version that this rank goes on at, dropped or not.
    pub(crate) resumes_at: Option<u64>,
    /// The version below which this rank has ended all before it joined, where its group keeps cursors.
    pub(crate) read_below: u64,
    mark: ForkMark,
    /// Versions held by views, with their number.
    leases: Mutex<BTreeMap<u64, u32>>,
    guard: Option<SlotGuard>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            // The slot is the parent's. The guard knows that too.
            return;
        }
        let control = &self.space.control;
        protocol::release(control.member(self.slot, member::CURSOR), HOLDS_NOTHING);
        protocol::release(control.member(self.slot, member::LEASE), HOLDS_NOTHING);
        control.member(self.slot, member::STATE).store(0, Release);
        self.guard = None;
        control.announce();
        control.announce_space();
    }
}

/// Under the setup lock: a slot for a member of this process. `joins` is the reader group that it is to be of.
fn claim_slot(
    space: &Arc<Attachment>,
    role: Role,
    (rank, size): (u32, u32),
    component: &str,
    joins: Option<usize>,
) -> Result<(u32, SlotGuard)> {
    let control = &space.control;
    // Slots of dead members come last: what they say is still wanted for messages.
    let unused = |slot: &u32| control.member(*slot, member::STATE).load(Acquire) == 0;
    let slots = 0..MEMBERS_MAX as u32;
    for slot in slots.clone().filter(unused).chain(slots.filter(|s| !unused(s))) {
        let Some(guard) = space.members.lock_slot(slot)? else { continue };
        groups::forget_killed(space, slot, joins)?;
        // First whose it is: a slot that a lane names speaks of its writer, or of another process.
        let start_ticks = process::start_time_ticks(process::pid()).unwrap_or(0);
        control.member(slot, member::PID).store(u64::from(process::pid()), Relaxed);
        control.member(slot, member::START_TICKS).store(start_ticks, Relaxed);
        control.member(slot, member::STATE).store(0, Release);
        let fields = [
            (member::RANK, u64::from(rank) << 32 | u64::from(size)),
            (member::SINCE, clock::realtime_ns()),
            (member::INCARNATION, 0),
            (member::GROUP, u64::MAX),
            (member::CURSOR, HOLDS_NOTHING),
            (member::LEASE, HOLDS_NOTHING),
            (member::LEASE_NEWEST, 0),
            (member::WAITING, 0),
            (member::WAITING_SINCE, 0),
            (member::STEPS, 0),
            (member::BYTES_MOVED, 0),
            (member::OP_NS, 0),
            (member::WAIT_NS, 0),
            (member::CALLS, 0),
        ];
        for (field, value) in fields {
            control.member(slot, field).store(value, Relaxed);
        }
        control.set_member_name(slot, component);
        control.word(head::MEMBERS_HIGH).fetch_max(u64::from(slot) + 1, AcqRel);
        control.member(slot, member::STATE).store(role.state(), Release);
        return Ok((slot, guard));
    }
    Err(too_many("members", MEMBERS_MAX))
}

impl Membership {
    /// Joins the producers of the space as `rank` of `size`; a restarted group becomes a new incarnation.
    /// Errors: [`Kind::NameInUse`], [`Kind::GroupMismatch`], [`Kind::TooMany`].
    #[cfg(test)]
    pub(crate) fn join_producers(
        space: &Arc<Attachment>,
        rank: u32,
        size: u32,
        component: &str,
        token: u64,
        deadline: Instant,
    ) -> Result<Membership> {
        space.with_setup_lock(deadline, || {
            settle_left_behind(space);
            let writers = crate::open::producers::writers_for(space, rank, token);
            Self::join_producers_locked(space, (rank, size), component, token, writers, deadline)
        })
    }

    /// Under the setup lock, with the writers as seen under it: as [`Membership::join_producers`].
    pub(crate) fn join_producers_locked(
        space: &Arc<Attachment>,
        (rank, size): (u32, u32),
        component: &str,
        token: u64,
        writers: Writers,
        deadline: Instant,
    ) -> Result<Membership> {
        let control = &space.control;
        let is_open = writers == Writers::Open;
        if is_open {
            check_joinable(space, rank, size, control.producers().1, token)?;
        }
        let (slot, guard) = claim_slot(space, Role::Writer, (rank, size), component, None)?;
        if !is_open {
            new_incarnation(space, size, component, token, deadline)
                .inspect_err(|_| control.member(slot, member::STATE).store(0, Release))?;
        }
        let (incarnation, _) = control.producers();
        control.member(slot, member::INCARNATION).store(u64::from(incarnation), Relaxed);
        control.lane_pid(rank).store(u64::from(process::pid()), Relaxed);
        let start_ticks = process::start_time_ticks(process::pid()).unwrap_or(0);
        control.lane_start_ticks(rank).store(start_ticks, Relaxed);
        control.set_lane_owner(rank, Some(slot), false);
        if !is_open {
            // Last: until now a kill leaves the state of the group before.
            control.open_producers(incarnation);
        }
        control.announce();
        Ok(Membership {
            space: space.clone(),
            slot,
            role: Role::Writer,
            rank,
            size,
            incarnation,
            group: None,
            resumes_at: None,
            read_below: 0,
            mark: ForkMark::here(),
            leases: Mutex::default(),
            guard: Some(guard),
        })
    }

    /// For a producer that was not opened whole and has written nothing: leaves the lane to another try, and the space
    /// as it was before this rank joined. Errors: those of the setup lock.
    pub(crate) fn withdraw(&self, deadline: Instant) -> Result<()> {
        let control = &self.space.control;
        let left = self.space.with_setup_lock(deadline, || {
            if control.producers().0 == self.incarnation
                && control.lane_owner(self.rank) == (Some(self.slot), false)
            {
                control.settle_reopened(self.incarnation, self.size, Some(self.rank));
                control.set_lane_owner(self.rank, None, false);
                control.announce();
            }
            Ok(())
        });
        left.inspect_err(|_| {
            // The lane still names this member, which leaves: the state of the producers has to say so.
            control.mark_died(self.slot, self.incarnation);
        })
    }

    /// For a producer whose lane has ended: this rank puts nothing more, since now or since another time.
    pub(crate) fn end(&self, deadline: Instant, since_unix_ns: Option<u64>) -> Result<()> {
        self.space.with_setup_lock(deadline, || {
            let control = &self.space.control;
            if control.producers().0 != self.incarnation {
                return Ok(());
            }
            control.word(head::CLOSED).store(since_unix_ns.unwrap_or_else(clock::realtime_ns), Release);
            control.settle_reopened(self.incarnation, self.size, Some(self.rank));
            control.set_lane_owner(self.rank, Some(self.slot), true);
            control.settle_all_ended(self.incarnation, self.size);
            control.announce();
            control.announce_space();
            Ok(())
        })
    }

    /// Joins a reader group as `rank` of `size`, or, without one, looks on as an observer.
    /// Errors: [`Kind::NameInUse`], [`Kind::GroupMismatch`], [`Kind::TooMany`], [`Kind::Damaged`].
    pub(crate) fn join_readers(
        space: &Arc<Attachment>,
        rank: u32,
        size: u32,
        component: &str,
        group: Option<(&str, Keep)>,
        deadline: Instant,
    ) -> Result<Membership> {
        space.with_setup_lock(deadline, || {
            settle_left_behind(space);
            let control = &space.control;
            let role = if group.is_none() { Role::Observer } else { Role::Reader };
            let mut begins = None;
            if let Some((name, keep)) = group {
                let index = groups::find_or_add_group(space, name, size, keep)?;
                if let Some(other) = groups::live_reader(space, index, rank) {
                    let hint = match is_own_slot(space, other) {
                        true => "this process has that reader open: close it first",
                        false => "use another component name for this program, or end the other program",
                    };
                    return Err(Error::new(
                        Kind::NameInUse,
                        format!("rank {rank} of reader group {name} is already reading {}", space.name),
                    )
                    .with("holder", describe(space, other))
                    .hint(hint));
                }
                begins = Some((index, groups::begin(space, index, rank)?));
            }
            let joins = begins.map(|(index, _)| index);
            let (slot, guard) = claim_slot(space, role, (rank, size), component, joins)?;
            let (mut resumes_at, mut read_below) = (None, 0);
            if let Some((index, (start, resumes))) = begins {
                read_below = groups::read_below(control, index, rank);
                join_group(space, slot, (index, rank), (start, resumes))
                    .inspect_err(|_| control.member(slot, member::STATE).store(0, Release))?;
                resumes_at = resumes.then_some(start);
            }
            control.announce();
            Ok(Membership {
                space: space.clone(),
                slot,
                role,
                rank,
                size,
                incarnation: 0,
                group: joins,
                resumes_at,
                read_below,
                mark: ForkMark::here(),
                leases: Mutex::default(),
                guard: Some(guard),
            })
        })
    }

    /// [`Kind::ForkedHandle`] in a forked child.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.mark.is_forked() {
            return self.mark.check(&format!("{} of space {}", self.role.name(), self.space.name));
        }
        Ok(())
    }

    /// The version up to which this reader has released everything.
    pub(crate) fn cursor(&self) -> u64 {
        self.space.control.member(self.slot, member::CURSOR).load(SeqCst)
    }

    /// Releases every version below `version`. Errors: those of the file of cursors; nothing is released then.
    pub(crate) fn release_below(&self, version: u64) -> Result<()> {
        if let Some(group) = self.group {
            groups::advance(&self.space, group, self.rank, version)?;
            groups::note_reads_on(&self.space.control, group, self.rank);
        }
        protocol::release(self.space.control.member(self.slot, member::CURSOR), version);
        self.space.control.announce_space();
        Ok(())
    }

    /// This process holds nothing as a reader any more; views keep their leases, and the group its cursor.
    pub(crate) fn leave(&self) {
        let control = &self.space.control;
        protocol::release(control.member(self.slot, member::CURSOR), HOLDS_NOTHING);
        control.member(self.slot, member::GROUP).store(u64::MAX, SeqCst);
        control.announce_space();
    }

    /// Before [`Membership::leave`]: this rank does not come again.
    pub(crate) fn leave_for_good(&self, deadline: Instant) -> Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        self.space.with_setup_lock(deadline, || groups::leave(&self.space, group, self.rank))
    }

    /// Marks that this reader saw the end of the stream, `version` being the first that is not there.
    pub(crate) fn note_ended(&self, version: u64) -> Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        self.release_below(version)?;
        self.space.control.set_group_bit(group, group::ENDED, self.rank);
        Ok(())
    }

    /// Holds `version` until a matching [`Membership::drop_lease`]. False when it was dropped already.
    pub(crate) fn take_lease(&self, version: u64) -> bool {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        *leases.entry(version).or_insert(0) += 1;
        let control = &self.space.control;
        let words = lease_words(control, self.slot);
        let held = protocol::hold_range(words, Self::range(&leases), control.oldest_word(), version);
        if !held {
            Self::remove_lease(&mut leases, version);
            protocol::release_range(words, Self::range(&leases));
        }
        held
    }

    /// Ends one hold on `version`.
    pub(crate) fn drop_lease(&self, version: u64) {
        if self.mark.is_forked() {
            return;
        }
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Self::range(&leases);
        Self::remove_lease(&mut leases, version);
        if Self::range(&leases) != before {
            let control = &self.space.control;
            protocol::release_range(lease_words(control, self.slot), Self::range(&leases));
            drop_beyond_last(&self.space);
            control.announce_space();
        }
    }

    fn remove_lease(leases: &mut BTreeMap<u64, u32>, version: u64) {
        let count = leases.get_mut(&version).expect("a lease that was taken");
        *count -= 1;
        if *count == 0 {
            leases.remove(&version);
        }
    }

    /// The slot holds two words for all leases. The oldest leased version holds itself and everything newer; movers
    /// also ask for the newest.
    fn range(leases: &BTreeMap<u64, u32>) -> (u64, u64) {
        let newest = leases.keys().next_back().copied().unwrap_or(0);
        (leases.keys().next().copied().unwrap_or(HOLDS_NOTHING), newest)
    }

    /// Says in the slot what this member waits for.
    pub(crate) fn set_waiting(&self, waiting: Waiting) {
        let control = &self.space.control;
        let since = if waiting == Waiting::No { 0 } else { clock::realtime_ns() };
        control.member(self.slot, member::WAITING_SINCE).store(since, Relaxed);
        control.member(self.slot, member::WAITING).store(waiting.word(), Release);
    }

    /// Publishes counters for `ls`, `top` and the runner's progress lines.
    pub(crate) fn publish_stats(&self, steps: u64, bytes: u64, op_ns: u64, wait_ns: u64) {
        let control = &self.space.control;
        for (field, value) in [
            (member::STEPS, steps),
            (member::BYTES_MOVED, bytes),
            (member::OP_NS, op_ns),
            (member::WAIT_NS, wait_ns),
        ] {
            control.member(self.slot, field).store(value, Relaxed);
        }
    }
}

/// Under the setup lock: a member becomes a rank of a reader group, which it holds from `start` on.
fn join_group(
    space: &Attachment,
    slot: u32,
    (index, rank): (usize, u32),
    (start, resumes): (u64, bool),
) -> Result<()> {
    let control = &space.control;
    // The rank lives again: that it was killed before says nothing of the group any more.
    let killed = groups::readers_of(control, index)
        .filter(|old| control.member(*old, member::RANK).load(Relaxed) >> 32 == u64::from(rank));
    killed.for_each(|old| control.member(old, member::GROUP).store(u64::MAX, Relaxed));
    control.member(slot, member::GROUP).store(index as u64, Relaxed);
    // Published before the rank counts as joined: until then the group's start holds for it.
    let at = protocol::settle_on(control.member(slot, member::CURSOR), control.oldest_word(), start);
    groups::note_come(space, index)?;
    // What it missed counts as read when it ends the next version: until then it may be told again.
    groups::advance(space, index, rank, if resumes { start } else { at })?;
    control.set_group_bit(index, group::JOINED, rank);
    Ok(())
}

/// Under the setup lock: finishes a group that was opened after one that had finished, and of which no rank writes, as
/// a process leaves it that is killed while it joins or ends.
pub(crate) fn settle_left_behind(space: &Attachment) {
    groups::forget_unjoined(space);
    let (incarnation, size) = space.control.producers();
    space.control.settle_reopened(incarnation, size, None);
}

fn check_joinable(space: &Attachment, rank: u32, size: u32, known_size: u32, token: u64) -> Result<()> {
    let control = &space.control;
    let in_use = |slot: u32| in_use_by_writer(space, slot);
    let owner = (0..known_size).find_map(|r| control.lane_owner(r).0.filter(|_| !control.lane_owner(r).1));
    let known_token = control.word(head::RUN_TOKEN).load(Relaxed);
    if let (Some(owner), true) = (owner, known_token != token) {
        return Err(in_use(owner));
    }
    if size != known_size {
        return Err(Error::new(
            Kind::GroupMismatch,
            format!("the writers of space {} have another size", space.name),
        )
        .with("size", size)
        .with("known_size", known_size)
        .hint("all ranks of a component must be started with the same size"));
    }
    if rank >= size {
        return Err(Error::new(Kind::Usage, "the rank must be below the size")
            .with("rank", rank)
            .with("size", size));
    }
    match control.lane_owner(rank).0 {
        Some(slot) => Err(in_use(slot).with("rank", rank)),
        None => Ok(()),
    }
}

/// The error for a space that a live writer has open, naming it.
fn in_use_by_writer(space: &Attachment, slot: u32) -> Error {
    if is_own_slot(space, slot) {
        return Error::new(
            Kind::NameInUse,
            format!("this process has space {} open for writing", space.name),
        )
        .with("holder", describe(space, slot))
        .hint("close that writer first");
    }
    Error::new(Kind::NameInUse, format!("space {} is being written by another run", space.name))
        .with("holder", describe(space, slot))
        .hint("choose another name, or wait for that run to end")
}

/// The pool lacks versions that the control segment calls complete: it is an older copy, or was damaged.
#[cold]
fn lost_versions(space: &Attachment, versions: std::ops::Range<u64>) -> Error {
    Error::new(Kind::Damaged, format!("the pool of space {} lacks acknowledged versions", space.name))
        .with("versions", format_versions(versions))
        .with("pool", space.first.path().display())
        .with("control", space.control_path().display())
        .hint(
            "restore the newest copy of the pool if an older one replaced it; to continue with the existing data, \
             remove the control segment",
        )
}

/// Under the setup lock: fences the old incarnation, finds out how far it got, and prepares the next, which its first
/// rank opens.
fn new_incarnation(
    space: &Attachment,
    size: u32,
    component: &str,
    token: u64,
    deadline: Instant,
) -> Result<()> {
    let control = &space.control;
    let (old, old_size) = control.producers();
    let mut incarnation = old.saturating_add(1);
    let mut base = control.base();
    if old > 0 {
        // From here on no late commit of the old incarnation can succeed. What it had committed by now is in the
        // lanes, which are the truth; this control segment may be half changed by a joiner that died here.
        base = control.close_lanes(incarnation, old_size.max(size));
    }
    let found = recover(&*space.device, &space.superblock)?;
    if found.complete < base && control.oldest() < base {
        return Err(lost_versions(space, found.complete.max(control.oldest())..base));
    }
    base = found.complete.max(base);
    // No number is given twice, whatever a damaged control segment says of the last one.
    let known = found.incarnations.last().map_or(0, |last| last.number);
    incarnation = incarnation.max(known + 1);
    if incarnation >= INCARNATION_END || base >= VERSION_END {
        return Err(Error::new(Kind::Damaged, format!("counters of space {} are out of range", space.name))
            .with("incarnation", incarnation)
            .with("version", base)
            .hint("remove its shared state, the file `control`: it is rebuilt from the pool"));
    }
    take_over(&*space.device, &space.superblock, &found, incarnation, size, base)?;
    for rank in 0..old_size.max(size) {
        control.set_lane_owner(rank, None, false);
    }
    control.word(head::RUN_TOKEN).store(token, Relaxed);
    let producer = head::PRODUCER;
    control.set_name(producer, component);
    control.remember(incarnation, size, base);
    groups::forget_ends_of_left_ranks(control);
    control.open_lanes(incarnation, size, base);
    // Neither a drain that adopts a lane nor another producer may be filling such a run meanwhile.
    space.members.with_lock(LOCK_ADOPT, lock_timeout(deadline), || {
        space.members.with_lock(LOCK_ALLOCATE, lock_timeout(deadline), || free_lost_granules(space))
    })
}

/// Under the locks of adoption and of allocation: frees runs that a dead producer had taken but never written a segment
/// header to.
fn free_lost_granules(space: &Attachment) -> Result<()> {
    let control = &space.control;
    for index in 1..control.granules() {
        if let GranuleState::Spare { lane, slot } = control.granule_state(index) {
            if is_orphan(space, lane, slot) {
                wipe_unpublished(space, index)?;
                free_run(space, index);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::kills;
    use crate::control::ProducerState;
    use crate::lane::granules::Owner;
    use crate::lane::granules::{allocate, Place, LOCK_TIMEOUT};
    use crate::open::create::attached;
    use crate::open::producers::settle_producers;
    use crate::{CleanOptions, OpenOptions, Reader, Writer};
    use forebay_log::LaneId;
    use std::time::Duration;

    const GRANULES: usize = 4;

    fn owner(rank: u32) -> Owner {
        Owner { lane: LaneId { incarnation: 1, rank }, slot: None }
    }

    fn take(space: &Attachment, rank: u32, granules: usize) -> Option<usize> {
        let bytes = granules as u64 * space.superblock.granule_bytes;
        let range = allocate(space, owner(rank), 0, bytes, Place::Anywhere, LOCK_TIMEOUT).unwrap()?;
        Some((range.start / space.superblock.granule_bytes) as usize)
    }

    /// Rank 1 takes every granule that is free and publishes a segment in each.
    fn publish_everywhere(space: &Attachment) -> Vec<usize> {
        let taken: Vec<usize> = std::iter::from_fn(|| take(space, 1, 1)).collect();
        for (sequence, granule) in (0..).zip(&taken) {
            space.control.describe_run(*granule, sequence, 1, 0);
            let segment = GranuleState::Segment { lane: owner(1).lane, slot: None };
            space.control.set_granule_state(*granule, segment);
        }
        taken
    }

    /// Rank 0 is killed while it takes a run, or releases one, after `changes` changes. Whether it was.
    fn kill(space: &Attachment, changes: u32, frees: bool) -> bool {
        let run = if frees { take(space, 0, GRANULES) } else { None };
        kills::after(changes, || match run {
            Some(run) => free_run(space, run),
            None => drop(take(space, 0, GRANULES)),
        })
    }

    /// A space that one writer has made, ended and left unread, with its directory.
    fn finished() -> (tempfile::TempDir, String) {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions {
            quota_bytes: Some(2 << 20),
            component: Some("test".into()),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        writer.begin_step().unwrap();
        writer.put_array("x", &[1], &[0], &[1], &[7u64]).unwrap();
        writer.end_step().unwrap();
        writer.close().unwrap();
        (root, name)
    }

    fn join(space: &Arc<Attachment>, rank: u32, size: u32) -> Result<Membership> {
        Membership::join_producers(space, rank, size, "test", 0, Instant::now() + Duration::from_secs(60))
    }

    /// Readers are at the end of the stream, and what they have not read stays.
    fn check_finished(space: &Attachment, when: &str) {
        let state = settle_producers(space);
        assert!(state.is_finished(), "{state:?} {when}");
        let dead = CleanOptions { names: vec![space.name.clone()], dead_only: true, dry_run: false };
        let report = crate::clean(&dead).unwrap();
        assert!(report.removed.is_empty(), "{report:?} {when}");
    }

    /// Another process holds the setup lock for longer than a writer waits to say that it has ended.
    #[test]
    fn a_writer_that_cannot_say_that_it_has_ended_is_dead_and_no_damage() {
        let (_root, name) = finished();
        let space = attached(&name);
        let options = OpenOptions {
            component: Some("test".into()),
            mode: crate::Mode::Append,
            timeout: Duration::from_millis(200),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        writer.begin_step().unwrap();
        writer.put_array("x", &[1], &[0], &[1], &[8u64]).unwrap();
        writer.end_step().unwrap();
        let closed = space.with_setup_lock(Instant::now() + Duration::from_secs(60), || Ok(writer.close()));
        assert_eq!(closed.unwrap().unwrap_err().kind(), Kind::TimedOut);
        // The reader uses the slot of the writer.
        let reader = Reader::open(&name, &OpenOptions { finished: true, ..options }).unwrap();
        let damaged = crate::verify(&name).unwrap().damaged;
        assert!(damaged.is_empty(), "{damaged:?}");
        assert!(matches!(space.control.producer_state(), ProducerState::Died(_)));
        drop((reader, space));
        crate::destroy(&name).unwrap();
    }

    #[test]
    fn a_join_that_finds_no_free_slot_leaves_a_finished_space_as_it_was() {
        let (_root, name) = finished();
        let space = attached(&name);
        let slots: Vec<_> =
            (0..MEMBERS_MAX as u32).map(|slot| space.members.lock_slot(slot).unwrap()).collect();
        assert_eq!(join(&space, 0, 1).err().map(|e| e.kind()), Some(Kind::TooMany));
        drop(slots);
        check_finished(&space, "after a refused join");
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// Killed before each change, while it joins, gives its lane up, or ends.
    #[test]
    fn a_writer_that_is_killed_before_its_first_version_leaves_a_finished_space_as_it_was() {
        let (_root, name) = finished();
        let space = attached(&name);
        let deadline = || Instant::now() + Duration::from_secs(60);
        for size in [1, 2] {
            for step in ["joins", "withdraws", "ends"] {
                let mut changes = 0;
                loop {
                    let mut member = (step != "joins").then(|| join(&space, 0, size).unwrap());
                    let was_killed = kills::after(changes, || match &member {
                        None => member = Some(join(&space, 0, size).unwrap()),
                        Some(member) if step == "withdraws" => member.withdraw(deadline()).unwrap(),
                        Some(member) => member.end(deadline(), None).unwrap(),
                    });
                    drop(member);
                    check_finished(&space, &format!("killed after {changes} changes, {step}, of {size}"));
                    if !was_killed {
                        break;
                    }
                    changes += 1;
                }
                assert!(changes > 0, "it was killed at least once");
            }
        }
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// Rank 0 of two has ended and rank 1 never joined, so the group is still open when a new launch takes it over.
    #[test]
    fn a_rank_that_is_killed_while_it_takes_over_an_open_group_keeps_no_writer_out() {
        let mut changes = 0;
        loop {
            let root = tempfile::tempdir_in("/dev/shm").unwrap();
            let name = format!("{}/s", root.path().display());
            let options = OpenOptions {
                rank: Some(0),
                size: Some(2),
                quota_bytes: Some(2 << 20),
                component: Some("test".into()),
                ..OpenOptions::default()
            };
            Writer::open(&name, &options).unwrap().close().unwrap();
            let space = attached(&name);
            let was_killed = kills::after(changes, || drop(join(&space, 0, 2).unwrap()));
            let next = join(&space, 0, 2);
            assert!(next.is_ok(), "{:?} after {changes} changes", next.err());
            drop((next, space));
            crate::destroy(&name).unwrap();
            if !was_killed {
                break;
            }
            changes += 1;
        }
        assert!(changes > 0, "it was killed at least once");
    }

    /// As an earlier release left it.
    #[test]
    fn a_reopened_group_without_a_writer_is_finished_by_the_next_process() {
        let (_root, name) = finished();
        let space = attached(&name);
        let left_behind = || {
            let (incarnation, size) = space.control.producers();
            (0..size).for_each(|rank| space.control.set_lane_owner(rank, None, false));
            space.control.open_producers(incarnation);
            assert_eq!(space.control.producer_state(), ProducerState::Open);
        };
        left_behind();
        let dead = CleanOptions { names: vec![name.clone()], dead_only: true, dry_run: false };
        assert!(crate::clean(&dead).unwrap().removed.is_empty());
        left_behind();
        let options =
            OpenOptions { finished: true, component: Some("test".into()), ..OpenOptions::default() };
        let mut reader = Reader::open(&name, &options).unwrap();
        reader.set_timeout(Duration::from_secs(20));
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        reader.end_step().unwrap();
        assert_eq!(reader.begin_step(None).unwrap(), None);
        drop(space);
    }

    /// What a killed rank left half done is never another's, and comes free whole.
    #[test]
    fn a_kill_while_a_run_is_taken_or_freed_touches_no_other_run() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions {
            quota_bytes: Some(2 << 20),
            component: Some("test".into()),
            ..OpenOptions::default()
        };
        Writer::open(&name, &options).unwrap().close().unwrap();
        let space = attached(&name);
        let all = (1..space.control.granules()).filter(|i| {
            let is_segment = matches!(space.control.granule_state(*i), GranuleState::Segment { .. });
            is_segment.then(|| free_run(&space, *i));
            true
        });
        let all = all.count();
        for frees in [false, true] {
            let mut changes = 0;
            loop {
                let was_killed = kill(&space, changes, frees);
                let published = publish_everywhere(&space);
                free_lost_granules(&space).unwrap();
                for granule in &published {
                    let stays = space.control.is_segment_of(*granule, owner(1).lane);
                    assert!(stays, "granule {granule} after {changes} changes, frees: {frees}");
                }
                // The killed rank's run is free, and nothing is lost.
                assert_eq!(published.len() + publish_everywhere(&space).len(), all);
                (1..=all).for_each(|granule| free_run(&space, granule));
                if !was_killed {
                    break;
                }
                changes += 1;
            }
            assert!(changes > 0, "it was killed at least once");
        }
        drop(space);
        crate::destroy(&name).unwrap();
    }
}
