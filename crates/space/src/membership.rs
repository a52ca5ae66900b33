//! Taking part in a space: a slot of the members table, alive as long as the kernel says so.
//!
//! Producers form one group of declared size per incarnation; readers form named groups. Who joins does so under
//! the setup lock; who dies is noticed by whoever waits, because the kernel drops a dead process's lock. What a
//! reader still needs stands in its own slot (cursor and lease), so that a survivor can tell a dead member's
//! needs from a live one's. Leases end by release or death, never by time.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use forebay_log::format::SegmentDf;
use forebay_log::reclaim::retire;
use forebay_log::recover::{recover, take_over};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::process::{self, ForkMark};
use forebay_tier::{clock, Error, Kind, Result};

use crate::attach::Attachment;
use crate::control::{
    group, head, member, too_many, Control, GranuleState, ProducerState, Waiting, GROUPS_MAX,
    GROUP_RANKS_MAX, LANES_MAX, MEMBERS_MAX,
};
use crate::options::Retention;
use crate::protocol;
pub(crate) use crate::protocol::HOLDS_NOTHING;

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A producer rank.
    Writer,
    /// A rank of a registered reader group.
    Reader,
    /// Looks, holds leases, is waited for by nobody.
    Observer,
}

impl Role {
    pub(crate) fn of_state(word: u64) -> Option<Role> {
        match word {
            1 => Some(Role::Writer),
            2 => Some(Role::Reader),
            3 => Some(Role::Observer),
            _ => None,
        }
    }

    fn state(self) -> u64 {
        match self {
            Role::Writer => 1,
            Role::Reader => 2,
            Role::Observer => 3,
        }
    }

    /// As in messages and lists.
    pub fn name(self) -> &'static str {
        match self {
            Role::Writer => "writer",
            Role::Reader => "reader",
            Role::Observer => "observer",
        }
    }
}

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
        control.announce_room();
        crate::clean::remove_if_read(&self.space);
    }
}

fn claim_slot(
    space: &Arc<Attachment>,
    role: Role,
    rank: u32,
    size: u32,
    component: &str,
) -> Result<(u32, SlotGuard)> {
    let control = &space.control;
    // Slots of dead members come last: what they say is still wanted for messages.
    let unused = |slot: &u32| control.member(*slot, member::STATE).load(Acquire) == 0;
    let slots = 0..MEMBERS_MAX as u32;
    for slot in slots.clone().filter(unused).chain(slots.filter(|s| !unused(s))) {
        let Some(guard) = space.members.lock_slot(slot)? else { continue };
        control.member(slot, member::STATE).store(0, Release);
        let fields = [
            (member::RANK, u64::from(rank) << 32 | u64::from(size)),
            (member::PID, u64::from(process::pid())),
            (member::SINCE, clock::realtime_ns()),
            (member::START_TICKS, process::start_time_ticks(process::pid()).unwrap_or(0)),
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
    Err(too_many("member", MEMBERS_MAX))
}

/// A member in words: `writer rank 2 of gray-scott (pid 17, since 12 s)`.
pub(crate) fn describe(space: &Attachment, slot: u32) -> String {
    let control = &space.control;
    let rank = control.member(slot, member::RANK).load(Relaxed) >> 32;
    let pid = control.member(slot, member::PID).load(Relaxed);
    let since = control.member(slot, member::SINCE).load(Relaxed);
    let role = Role::of_state(control.member(slot, member::STATE).load(Acquire)).map_or("member", Role::name);
    let age_s = clock::realtime_ns().saturating_sub(since) / 1_000_000_000;
    format!("{role} rank {rank} of {} (pid {pid}, since {age_s} s)", control.member_name(slot))
}

impl Membership {
    /// Joins the producers of the space as `rank` of `size`; a restarted group becomes a new incarnation.
    /// Errors: [`Kind::NameInUse`], [`Kind::GroupMismatch`], [`Kind::TooMany`].
    pub(crate) fn join_producers(
        space: &Arc<Attachment>,
        rank: u32,
        size: u32,
        component: &str,
        token: u64,
        deadline: Instant,
    ) -> Result<Arc<Membership>> {
        if size as usize > LANES_MAX {
            return Err(too_many("producer rank", LANES_MAX).with("size", size));
        }
        space.with_setup_lock(deadline, || {
            let control = &space.control;
            let (_, known_size) = control.producers();
            let state = settle_producers(space);
            let joinable = match state {
                ProducerState::Open => {
                    check_joinable(space, rank, size, known_size, token)?;
                    true
                }
                _ => false,
            };
            if !joinable {
                new_incarnation(space, size, component, token)?;
            }
            let (incarnation, _) = control.producers();
            let (slot, guard) = claim_slot(space, Role::Writer, rank, size, component)?;
            control.member(slot, member::INCARNATION).store(u64::from(incarnation), Relaxed);
            control.set_lane_owner(rank, Some(slot), false);
            control.announce();
            Ok(Arc::new(Membership {
                space: space.clone(),
                slot,
                role: Role::Writer,
                rank,
                size,
                incarnation,
                group: None,
                mark: ForkMark::here(),
                leases: Mutex::default(),
                guard: Some(guard),
            }))
        })
    }

    /// Joins the reader group `component` as `rank` of `size`, or looks on as an observer.
    /// Errors: [`Kind::NameInUse`], [`Kind::GroupMismatch`], [`Kind::TooMany`].
    pub(crate) fn join_readers(
        space: &Arc<Attachment>,
        rank: u32,
        size: u32,
        component: &str,
        observer: bool,
        deadline: Instant,
    ) -> Result<Arc<Membership>> {
        space.with_setup_lock(deadline, || {
            let control = &space.control;
            let role = if observer { Role::Observer } else { Role::Reader };
            let group = if observer { None } else { Some(find_or_add_group(space, component, size)?) };
            if let Some(index) = group {
                if let Some(other) = live_reader(space, index, rank) {
                    return Err(Error::new(
                        Kind::NameInUse,
                        format!("rank {rank} of reader group {component} is already reading {}", space.name),
                    )
                    .with("holder", describe(space, other))
                    .hint("give this program another component name, or end the other one"));
                }
            }
            let (slot, guard) = claim_slot(space, role, rank, size, component)?;
            if let Some(index) = group {
                control.member(slot, member::GROUP).store(index as u64, Relaxed);
                // Published before the rank counts as joined: until then the group's start holds for it.
                let start = control.group(index, group::START).load(SeqCst);
                protocol::settle_on(control.member(slot, member::CURSOR), control.oldest_word(), start);
                control.set_group_bit(index, group::JOINED, rank);
            }
            control.announce();
            Ok(Arc::new(Membership {
                space: space.clone(),
                slot,
                role,
                rank,
                size,
                incarnation: 0,
                group,
                mark: ForkMark::here(),
                leases: Mutex::default(),
                guard: Some(guard),
            }))
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

    /// Releases every version below `version`.
    pub(crate) fn release_below(&self, version: u64) {
        protocol::release(self.space.control.member(self.slot, member::CURSOR), version);
        self.space.control.announce_room();
    }

    /// Holds nothing as a reader any more; views keep their leases.
    pub(crate) fn leave(&self) {
        let control = &self.space.control;
        protocol::release(control.member(self.slot, member::CURSOR), HOLDS_NOTHING);
        control.member(self.slot, member::GROUP).store(u64::MAX, SeqCst);
        control.announce_room();
    }

    /// Marks that this reader saw the end of the stream.
    pub(crate) fn note_ended(&self) {
        if let Some(group) = self.group {
            self.space.control.set_group_bit(group, group::ENDED, self.rank);
        }
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
            control.announce_room();
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

/// The slot of a live member that reads as `rank` of group `index`.
fn live_reader(space: &Attachment, index: usize, rank: u32) -> Option<u32> {
    (0..space.control.members_high()).find(|slot| {
        space.control.member(*slot, member::STATE).load(Acquire) == Role::Reader.state()
            && space.control.member(*slot, member::GROUP).load(Relaxed) == index as u64
            && space.control.member(*slot, member::RANK).load(Relaxed) >> 32 == u64::from(rank)
            && space.is_alive(*slot)
    })
}

/// Under the setup lock: the group of this name, made if need be. Its start holds for ranks that have not joined.
pub(crate) fn find_or_add_group(space: &Attachment, name: &str, size: u32) -> Result<usize> {
    let control = &space.control;
    if size == 0 || size > GROUP_RANKS_MAX {
        return Err(too_many("rank of a reader group", GROUP_RANKS_MAX as usize).with("size", size));
    }
    let mut free = None;
    for index in 0..GROUPS_MAX {
        if control.group(index, group::STATE).load(Acquire) == 0 {
            free = free.or(Some(index));
        } else if control.group_name(index) == name {
            let known = control.group(index, group::SIZE).load(Relaxed);
            if known != u64::from(size) {
                return Err(Error::new(Kind::GroupMismatch, format!("reader group {name} has another size"))
                    .with("size", size)
                    .with("known_size", known)
                    .hint("all ranks of a component must be started with the same size"));
            }
            return Ok(index);
        }
    }
    let index = free.ok_or_else(|| too_many("reader group", GROUPS_MAX))?;
    control.group(index, group::SIZE).store(u64::from(size), Relaxed);
    control.set_group_name(index, name);
    control.group(index, group::START).store(control.oldest(), SeqCst);
    control.group(index, group::STATE).store(1, SeqCst);
    // Producers that dropped in between raised `oldest` before they could see this group.
    control.group(index, group::START).store(control.oldest(), SeqCst);
    Ok(index)
}

/// The producers' state after asking the kernel who is alive: an open group with a dead rank is dead.
pub(crate) fn settle_producers(space: &Attachment) -> ProducerState {
    let control = &space.control;
    if control.producer_state() == ProducerState::Open {
        let (incarnation, size) = control.producers();
        for rank in 0..size {
            if let (Some(slot), false) = control.lane_owner(rank) {
                if !space.is_alive(slot) && still_owned(space, rank, slot, incarnation) {
                    control.mark_died(slot);
                    break;
                }
            }
        }
    }
    control.producer_state()
}

/// Whether the lane was not ended or taken over between the two looks that found its owner dead.
fn still_owned(space: &Attachment, rank: u32, slot: u32, incarnation: u32) -> bool {
    space.control.lane_owner(rank) == (Some(slot), false) && space.control.producers().0 == incarnation
}

fn check_joinable(space: &Attachment, rank: u32, size: u32, known_size: u32, token: u64) -> Result<()> {
    let control = &space.control;
    let in_use = |slot: u32| {
        Error::new(Kind::NameInUse, format!("space {} is being written by another run", space.name))
            .with("holder", describe(space, slot))
            .hint("choose another name, or wait for that run to end")
    };
    let owner = (0..known_size).find_map(|r| control.lane_owner(r).0);
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

/// Under the setup lock: fences the old incarnation, finds out how far it got, and opens the next.
fn new_incarnation(space: &Attachment, size: u32, component: &str, token: u64) -> Result<()> {
    let control = &space.control;
    let (old, old_size) = control.producers();
    let incarnation = old + 1;
    let mut base = control.base();
    if old > 0 {
        // From here on no late commit of the old incarnation can succeed. What it had committed by now is in the
        // lanes, which are the truth; this control segment may be half changed by a joiner that died here.
        base = control.close_lanes(incarnation, old_size.max(size));
    }
    let found = recover(&*space.device, &space.superblock)?;
    base = found.complete.max(base);
    take_over(&*space.device, &space.superblock, &found, incarnation, size, base)?;
    for rank in 0..old_size.max(size) {
        control.set_lane_owner(rank, None, false);
    }
    control.word(head::RUN_TOKEN).store(token, Relaxed);
    let producer = head::PRODUCER;
    control.set_name(producer, component);
    control.remember(incarnation, size, base);
    control.open_lanes(incarnation, size, base);
    free_lost_granules(space)?;
    control.set_producer_state(ProducerState::Open);
    control.announce();
    Ok(())
}

/// Frees runs that a dead producer had taken but never written a segment header to.
fn free_lost_granules(space: &Attachment) -> Result<()> {
    let control = &space.control;
    for index in 1..control.granules() {
        if let GranuleState::Spare { slot, .. } = control.granule_state(index) {
            if !slot.is_some_and(|s| space.is_alive(s)) {
                wipe_unpublished(space, index)?;
                free_run(space, index);
            }
        }
    }
    Ok(())
}

/// A mover that was killed between copying and publishing leaves a whole segment, which must not be found again.
pub(crate) fn wipe_unpublished(space: &Attachment, index: usize) -> Result<()> {
    let at = index as u64 * space.superblock.granule_bytes;
    let mut head = [0; std::mem::size_of::<SegmentDf>()];
    space.device.read(at, &mut head)?;
    if SegmentDf::decode(&head, &space.superblock.uuid, at).is_some() {
        retire(&*space.device, at, space.superblock.horizon)?;
    }
    Ok(())
}

/// Frees the run of granules that begins at `index`.
pub(crate) fn free_run(space: &Attachment, index: usize) {
    let control = &space.control;
    let (_, length) = control.granule_segment(index);
    // The first granule goes last: until then the run cannot be given to anyone.
    for inside in (index + 1..index + length.max(1)).rev() {
        control.set_granule_state(inside, GranuleState::Free);
    }
    control.set_granule_state(index, GranuleState::Free);
}

/// The version below which no member needs anything: what producers may drop. Never above the complete ones.
pub(crate) fn release_floor(space: &Attachment) -> u64 {
    let control = &space.control;
    let complete = control.complete();
    let floor = match space.retention() {
        Retention::Forever => 0,
        Retention::Last(k) => complete.saturating_sub(k),
        Retention::Released => released_by_groups(space),
    };
    floor.min(complete).min(lowest_lease(space)).max(control.oldest().min(lowest_lease(space)))
}

/// Drops what nobody needs; returns below which version room may be used again.
pub(crate) fn drop_released(space: &Attachment) -> u64 {
    protocol::drop_below(space.control.oldest_word(), || release_floor(space))
}

/// The oldest version that a live view holds.
pub(crate) fn lowest_lease(space: &Attachment) -> u64 {
    let control = &space.control;
    let leases = (0..control.members_high()).map(|slot| control.member(slot, member::LEASE));
    protocol::lowest_held(leases, |slot| space.is_alive(slot as u32))
}

/// Whether a member holds a version from `first` to `last`, or may be about to.
pub(crate) fn is_leased(space: &Attachment, first: u64, last: u64) -> bool {
    protocol::is_held(leases(space), (first, last), |slot| space.is_alive(slot as u32))
}

/// Whether a place that holds versions from `first` to `last`, and was left before this call, is read by nobody.
pub(crate) fn is_deserted(space: &Attachment, first: u64, last: u64) -> bool {
    protocol::is_deserted(leases(space), (first, last), |slot| space.is_alive(slot as u32))
}

fn leases(space: &Attachment) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
    (0..space.control.members_high()).map(|slot| lease_words(&space.control, slot))
}

/// The oldest and the newest version that a member holds.
fn lease_words(control: &Control, slot: u32) -> (&AtomicU64, &AtomicU64) {
    (control.member(slot, member::LEASE), control.member(slot, member::LEASE_NEWEST))
}

/// The version that each reader will ask for next; where ranks or groups are still to come, the oldest there is.
pub(crate) fn reading_positions(space: &Attachment) -> Vec<u64> {
    let control = &space.control;
    let mut out = Vec::new();
    let mut groups = 0;
    for index in (0..GROUPS_MAX).filter(|i| control.group(*i, group::STATE).load(Acquire) != 0) {
        groups += 1;
        let size = control.group_size(index);
        if control.group_count(index, group::JOINED) < size {
            out.push(control.group(index, group::START).load(Acquire));
        }
    }
    for slot in 0..control.members_high() {
        let cursor = control.member(slot, member::CURSOR).load(Acquire);
        let reads = control.member(slot, member::STATE).load(Acquire) == Role::Reader.state();
        if reads && cursor != HOLDS_NOTHING && space.is_alive(slot) {
            out.push(cursor);
        }
    }
    if groups == 0 {
        out.push(control.oldest());
    }
    out
}

pub(crate) fn released_by_groups(space: &Attachment) -> u64 {
    let control = &space.control;
    let mut floor = HOLDS_NOTHING;
    let mut groups = 0;
    for index in 0..GROUPS_MAX {
        if control.group(index, group::STATE).load(SeqCst) == 0 {
            continue;
        }
        groups += 1;
        let size = control.group_size(index);
        if control.group_count(index, group::JOINED) < size {
            floor = floor.min(control.group(index, group::START).load(SeqCst));
        }
    }
    if groups == 0 {
        // Before any reader came everything is kept, until the quota.
        return 0;
    }
    let cursors = (0..control.members_high()).map(|slot| control.member(slot, member::CURSOR));
    floor.min(protocol::lowest_held(cursors, |slot| {
        let state = control.member(slot as u32, member::STATE).load(Acquire);
        state == Role::Reader.state() && space.is_alive(slot as u32)
    }))
}

/// Who keeps version `version` from being dropped, in words; for the error of a full space.
pub(crate) fn holders(space: &Attachment, version: u64) -> Vec<String> {
    let control = &space.control;
    let mut out = Vec::new();
    let mut groups = 0;
    for index in (0..GROUPS_MAX).filter(|i| control.group(*i, group::STATE).load(Acquire) != 0) {
        groups += 1;
        let size = control.group_size(index);
        let missing: Vec<String> = (0..size)
            .filter(|rank| !control.group_bit(index, group::JOINED, *rank))
            .map(|rank| rank.to_string())
            .collect();
        if !missing.is_empty() && control.group(index, group::START).load(Relaxed) <= version {
            out.push(format!(
                "reader group {}: rank {} never joined",
                control.group_name(index),
                missing.join(", ")
            ));
        }
    }
    for slot in 0..control.members_high() {
        let state = control.member(slot, member::STATE).load(Acquire);
        let cursor = control.member(slot, member::CURSOR).load(SeqCst);
        let lease = control.member(slot, member::LEASE).load(SeqCst);
        let reads = state == Role::Reader.state() && space.retention() == Retention::Released;
        if state != 0 && (lease <= version || (reads && cursor <= version)) && space.is_alive(slot) {
            let what = if lease <= version {
                format!("holds a view of version {lease}")
            } else {
                format!("has not released version {cursor}")
            };
            out.push(format!("{} {what}", describe(space, slot)));
        }
    }
    if groups == 0 && space.retention() == Retention::Released {
        out.push("no reader has come yet".into());
    }
    if space.retention() == Retention::Forever {
        out.push("retention forever drops nothing".into());
    }
    out
}

/// The ranks whose commit version `version` lacks, in words.
pub(crate) fn missing_producers(space: &Attachment, version: u64) -> Vec<String> {
    let control = &space.control;
    let (incarnation, size) = control.producers();
    if size == 0 {
        return vec!["no writer has come yet".into()];
    }
    let mut out = Vec::new();
    for rank in 0..size {
        let (lane, committed) = control.progress(rank);
        if lane == incarnation && committed > version {
            continue;
        }
        out.push(match control.lane_owner(rank) {
            (None, _) => format!("writer rank {rank} of {} never joined", control.name(head::PRODUCER)),
            (Some(slot), false) => describe(space, slot),
            (Some(_), true) => format!("writer rank {rank} ended before version {version}"),
        });
    }
    out
}

/// The error for producers of which one died, naming it.
pub(crate) fn producer_died(space: &Attachment, slot: Option<u32>) -> Error {
    let complete = space.control.complete();
    let error = Error::new(Kind::ProducerDied, format!("a writer of space {} died", space.name));
    let error = match slot {
        Some(slot) => {
            let control = &space.control;
            error
                .with("rank", control.member(slot, member::RANK).load(Relaxed) >> 32)
                .with("pid", control.member(slot, member::PID).load(Relaxed))
                .with("component", control.member_name(slot))
        }
        None => error.with("rank", "unknown: it was before this boot, or the shared state was lost"),
    };
    error.with("complete_versions", complete).hint(
        "complete versions stay readable; restart all ranks, they go on behind the last complete version",
    )
}
