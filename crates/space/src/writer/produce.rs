//! The producer's side of a space: lanes, reservations, commits.
//!
//! One [`SpaceSink`] is one rank. Its lane is its own, so nothing here locks between ranks: a put touches only
//! the lane, the end of a step is one compare-and-swap on the lane's progress word. Not here: what may be called when,
//! and what a step counts ([`crate::step::writer`]).

use forebay_config::{environment, ExecutionMode, OpenOptions};
use forebay_tier::host::time::Instant;
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::{Dtype, Lane, LaneOwner, Piece, Reserved};
use forebay_tier::{Access, Durability, Error, Kind, Result};
use rustc_hash::FxHasher;

use crate::attributes::{self, Attribute};
use crate::control::shared_state::LOCK_ATTRIBUTES;
use crate::control::{too_many, Waiting, CURSORS_MAX, GROUPS_MAX, GROUP_RANKS_MAX, LANES_MAX};
use crate::declared::Declared;
use crate::lane::gate::Gate;
use crate::lane::granules::WAIT_SLICE;
use crate::lane::segments::{check_group, LaneSpace};
use crate::open::agreement::check_space;
use crate::open::attach::Attachment;
use crate::open::create::{replace, Missing, New};
use crate::open::directory::settle_name;
use crate::open::existing::{decided, refused_space};
use crate::open::groups::{check_present, find_or_add_group, Keep};
use crate::open::membership::{settle_left_behind, Membership};
use crate::open::opening::{fenced, run_token, Writing};
use crate::open::producers::writers_for;
use crate::open::read_to_end::Member;
use crate::open::released::{drop_beyond_last, holders, released_by_present};
use crate::part::WriterOfPart;
use crate::stats::Counters;
use crate::step::writer::{Memory, StepWriter, VersionSink};
use crate::step::{Channel, Handle};
use crate::trace::{Side, Trace, TraceHead};

/// One rank that writes a space.
pub(crate) type SpaceWriter = StepWriter<SpaceSink>;

/// What a writer has of a space.
pub(crate) struct SpaceSink {
    pub(crate) handle: Handle,
    member: Arc<Member>,
    lane: Lane,
    segments: LaneSpace,
    /// Whether this rank has begun a version.
    has_begun: bool,
    /// Why the last call of the step failed, for readers, should this rank leave now.
    failed: Option<String>,
    /// Of a copy: when the original ended, nanoseconds since 1970.
    ended: Option<u64>,
    /// The count of freed space before the last look.
    seen: u32,
}

/// Under the setup lock: the execution mode that the first rank of a group says holds for all of it.
fn settle_execution_mode(member: &Membership, wanted: Option<ExecutionMode>) -> Result<()> {
    let space = &member.space;
    let settled = space.control.settle_execution_mode(member.incarnation, wanted.unwrap_or_default());
    match wanted {
        Some(execution_mode) if execution_mode != settled && !space.control.is_steered() => Err(Error::new(
            Kind::OptionMismatch,
            format!("space {} is written in another execution mode", space.name),
        )
        .with("asked_for", execution_mode)
        .with("is", settled)
        .hint("all ranks must open it with the same options")),
        _ => Ok(()),
    }
}

/// What no space has place for, before one is made or replaced.
fn check_counts(readers: &[(String, u32)], size: u32) -> Result<()> {
    if size as usize > LANES_MAX {
        return Err(too_many("writer ranks", LANES_MAX).with("size", size));
    }
    if let Some((group, size)) = readers.iter().find(|(_, size)| *size > GROUP_RANKS_MAX) {
        let error = too_many("ranks of a reader group", GROUP_RANKS_MAX as usize);
        return Err(error.with("group", group).with("size", size));
    }
    if readers.len() > GROUPS_MAX {
        return Err(too_many("reader groups", GROUPS_MAX).with("groups", readers.len()));
    }
    let ranks: u64 = readers.iter().map(|(_, size)| u64::from(*size)).sum();
    if ranks > CURSORS_MAX as u64 {
        return Err(too_many("ranks of all reader groups together", CURSORS_MAX).with("ranks", ranks));
    }
    Ok(())
}

impl SpaceWriter {
    /// Makes or joins the space; one that it makes begins at `first_version`. `options` are resolved. `part`: of a
    /// space with writers on several nodes, whose trace is that of the whole.
    pub(crate) fn open(
        name: &str,
        options: OpenOptions,
        first_version: u64,
        part: Option<&WriterOfPart>,
    ) -> Result<SpaceWriter> {
        let deadline = Instant::now() + options.timeout;
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        check_counts(&options.readers, size)?;
        let component = options.component.clone().expect("resolved");
        let new = New { options: &options, ranks: size, first_version };
        let member = loop {
            let space = Attachment::open(
                &options.place(name),
                Access::Write,
                options.locality.unwrap_or_default(),
                Missing::Create(new),
                deadline,
            )?;
            match Self::join(&space, new, rank, &component, deadline) {
                // Replaced just now; or removed between finding and joining, its readers being done. Make a new one.
                Ok(None) => {}
                Err(_) if space.control.is_removed() && Instant::now() < deadline => {}
                joined => {
                    if let Some(member) = joined? {
                        break member;
                    }
                }
            }
        };
        let joined = member.clone();
        Self::of_member(member, name, options, deadline, part).inspect_err(|_| {
            // The first error is the one to report.
            let _ = joined.withdraw(deadline);
        })
    }

    /// Joins the writers of a space, unless it is replaced: then no writer has joined the new one yet (None).
    fn join(
        space: &Arc<Attachment>,
        new: New<'_>,
        rank: u32,
        component: &str,
        deadline: Instant,
    ) -> Result<Option<Arc<Member>>> {
        let New { options, ranks: size, .. } = new;
        let token = run_token();
        space.with_setup_lock(deadline, || {
            settle_left_behind(space);
            let writers = writers_for(space, rank, token);
            match decided(space, options, writers) {
                Writing::Join | Writing::Resume => {
                    check_space(space, options)?;
                    settle_name(&space.dir, space.superblock.horizon)?;
                    let group = (rank, size);
                    Membership::join_producers_locked(space, group, component, token, writers, deadline)
                        .map(|joined| Some(Member::of(joined)))
                }
                Writing::Replace => replace(space, new).map(|()| None),
                Writing::Refuse(why) => Err(refused_space(space, why, writers)),
            }
        })
    }

    /// For a producer that has joined the space, which its caller calls `name`.
    pub(crate) fn of_member(
        member: Arc<Member>,
        name: &str,
        options: OpenOptions,
        deadline: Instant,
        part: Option<&WriterOfPart>,
    ) -> Result<SpaceWriter> {
        let rank = member.rank;
        let space = member.space.clone();
        space.with_setup_lock(deadline, || {
            settle_execution_mode(&member, options.execution_mode)?;
            let keep = Keep::Declared(options.absent);
            options
                .readers
                .iter()
                .try_for_each(|(group, size)| find_or_add_group(&space, group, *size, keep).map(drop))
        })?;
        let (_, size) = space.control.producers();
        let owner = LaneOwner {
            uuid: space.superblock.uuid,
            rank,
            incarnation: member.incarnation,
            group_size: size,
            base_version: space.control.base(),
        };
        let lane = Lane::new(space.first.clone(), owner, space.superblock.horizon, space.superblock.checksum);
        let lane = match options.batch_bytes {
            Some(bytes) => lane.in_batches(bytes as usize),
            None => lane,
        };
        let segments = LaneSpace::new(member.clone(), options.timeout, options.segment_bytes.is_none())?;
        // The first segment was faulted in just now, and a sample of its pages asked for its node.
        let placement = space.first.placement().map(|placement| placement.to_string());
        let execution_mode = Some(space.control.execution_mode());
        let head = TraceHead::new(Side::Writer, name, &options);
        let head = match part {
            Some(part) => TraceHead { channel: &part.name, rank: part.rank, size: part.size, ..head },
            None => TraceHead { size, ..head },
        };
        let head = TraceHead { placement, execution_mode, ..head };
        let trace = Trace::from_environment(&head, &environment::process);
        let (_, next) = space.control.progress(rank);
        let handle = Handle::new(("writer", "space"), name, &space.dir, options);
        let sink = SpaceSink {
            handle,
            member,
            lane,
            segments,
            has_begun: false,
            failed: None,
            ended: None,
            seen: 0,
        };
        Ok(StepWriter::new(sink, next, trace))
    }

    /// Ends this rank, of a copy, as if it had closed at another time, nanoseconds since 1970.
    pub(crate) fn close_as_of(&mut self, ended_unix_ns: u64) -> Result<()> {
        self.sink.ended = Some(ended_unix_ns);
        self.close()
    }

    /// Leaves as if it had died, with the reason that readers are told.
    pub(crate) fn abandon_because(&mut self, reason: &str) {
        self.sink.failed = Some(reason.to_string());
        self.abandon();
    }
}

impl SpaceSink {
    fn space(&self) -> &Arc<Attachment> {
        &self.member.space
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.member.incarnation
    }

    pub(crate) fn durability(&self) -> Durability {
        self.space().device.durability(self.space().superblock.horizon)
    }

    /// Why what this rank puts no longer counts.
    fn taken_over(&self) -> Error {
        // A take-over closes the lanes before it says whose they are.
        check_group(&self.member).err().unwrap_or_else(|| {
            let (current, _) = self.space().control.progress(self.member.rank);
            fenced(&self.handle.what(), self.member.rank, self.member.incarnation, current)
        })
    }

    /// The key under which ranks agree on a variable of a version, by the hash of its name.
    #[inline]
    fn key_of(&self, name: u64, version: u64) -> u64 {
        let mut key = FxHasher::default();
        // What an earlier group put in a version that it did not complete sets no shape.
        (name, version, self.member.incarnation).hash(&mut key);
        mix(key.finish())
    }

    pub(crate) fn keep_alive(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let device = self.space().first.clone();
        device.byte_addressable().then(|| Arc::new(device) as Arc<dyn Any + Send + Sync>)
    }

    /// Frees what no reader needs, of this rank and of producers that are gone, and returns the bytes of all pools that
    /// are in no segment.
    pub(crate) fn free_bytes(&mut self) -> Result<u64> {
        self.handle.check_fork()?;
        self.segments.reclaim_all(Instant::now() + self.handle.options.timeout)?;
        let space = self.space();
        let fills = (0..space.pools.len()).map(|pool| space.fill_of(pool));
        Ok(fills.map(|fill| fill.quota_bytes.saturating_sub(fill.reserved_bytes)).sum())
    }
}

impl Channel for SpaceSink {
    #[inline]
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn note_waiting(&mut self, version: Option<u64>) -> Result<()> {
        self.member.set_waiting(version.map_or(Waiting::No, Waiting::Turn));
        Ok(())
    }

    fn pause(&mut self, left: Duration) {
        self.space().control.wait_free_space(self.seen, left.min(WAIT_SLICE));
    }

    #[inline]
    fn gate(&mut self) -> Option<&mut Gate> {
        Some(&mut self.segments.gate)
    }
}

impl VersionSink for SpaceSink {
    type Memory = Reserved;

    fn check_group(&mut self) -> Result<()> {
        check_group(&self.member)
    }

    /// Behind what was complete before this rank came and what it committed.
    fn due(&self) -> Result<u64> {
        let (incarnation, committed) = self.space().control.progress(self.member.rank);
        if incarnation == self.member.incarnation {
            Ok(committed)
        } else {
            Err(self.taken_over())
        }
    }

    fn check_readers(&self) -> Result<()> {
        check_present(self.space())
    }

    fn execution_mode(&self) -> ExecutionMode {
        self.space().control.execution_mode()
    }

    fn is_turn(&mut self, version: u64, again: bool) -> Result<bool> {
        let space = &self.member.space;
        if again {
            self.seen = space.control.free_space().load(Acquire);
            if space.control.execution_mode() != ExecutionMode::SerialPerStep {
                return Ok(true);
            }
        }
        Ok(released_by_present(space) >= version)
    }

    fn holders(&self, version: u64) -> Vec<String> {
        holders(self.space(), version)
    }

    fn begin(&mut self, version: u64, execution_mode: ExecutionMode) -> Result<()> {
        if !self.has_begun {
            // Said before the first version: this group adds to the stream.
            if !self.space().control.note_begun(self.member.incarnation) {
                return Err(self.taken_over());
            }
            self.has_begun = true;
        }
        self.segments.gate.begin_step(execution_mode);
        self.lane.begin(version);
        Ok(())
    }

    #[inline]
    fn agrees(&self, version: u64, name: u64, dtype: Dtype, shape: &[u64]) -> bool {
        if self.member.size == 1 {
            return true;
        }
        let key = self.key_of(name, version);
        let mut signature = FxHasher::default();
        (dtype, shape).hash(&mut signature);
        self.space().control.agree(key, mix(signature.finish()))
    }

    #[inline]
    fn keeps_back(&self, piece: &Piece<'_>, bytes: u64) -> bool {
        self.lane.keeps_back(piece, bytes)
    }

    #[inline]
    fn begin_call(&mut self) -> u64 {
        // Reading the clock costs more than a small put, so the deadline is set when a segment is asked for.
        self.segments.deadline_in = self.handle.options.timeout;
        self.segments.wait_ns
    }

    #[inline]
    fn waited_ns(&self) -> u64 {
        self.segments.wait_ns
    }

    #[inline]
    fn append(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<u64> {
        self.lane.append(&mut self.segments, piece, data)?;
        self.segments.reclaim_if_grown();
        let copies = 1 + u64::from(self.lane.gathers(piece, data.len() as u64));
        Ok(copies * data.len() as u64)
    }

    fn reserve(&mut self, piece: &Piece<'_>) -> Result<Reserved> {
        self.lane.reserve(&mut self.segments, piece)
    }

    fn fill(&mut self, mut memory: Reserved) -> Result<u64> {
        let bytes = memory.as_mut_slice().len() as u64;
        self.lane.fill(memory)?;
        self.segments.reclaim_if_grown();
        Ok(if self.space().first.byte_addressable() { 0 } else { bytes })
    }

    fn seal(&mut self, _version: u64) -> Result<()> {
        self.lane.seal(&mut self.segments)?.flush()?.commit()
    }

    fn complete(&mut self, version: u64) -> Result<Option<Error>> {
        let control = &self.space().control;
        control.check()?;
        if !control.advance(self.member.rank, self.member.incarnation, version) {
            return Ok(Some(self.taken_over()));
        }
        control.announce();
        drop_beyond_last(self.space());
        self.failed = None;
        Ok(None)
    }

    fn abort(&mut self, version: u64, declared: &Declared) {
        if self.member.size > 1 {
            // What is put instead may have another shape.
            let keys = declared.names().map(|name| self.key_of(name, version));
            keys.for_each(|key| self.space().control.forget(key));
        }
        self.lane.abort(&mut self.segments);
        self.segments.gate.leave_all();
    }

    fn publish(&mut self, next: u64, done: Counters) {
        self.member.publish_stats(next, done.bytes, done.op_ns, done.wait_ns);
    }

    fn reclaim(&mut self) {
        self.segments.reclaim_if_grown();
        let _ = self.segments.reclaim();
    }

    fn note_failed(&mut self, error: &Error) {
        self.failed = Some(format!("{}: {error}", error.kind()));
    }

    fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        let space = self.space();
        let timeout = self.handle.options.timeout;
        attributes::set(&space.dir, key, value, space.is_durable(), &|change| {
            space.members.with_lock(LOCK_ATTRIBUTES, timeout, change)
        })
    }

    fn close(&mut self, _done: Counters) -> Result<()> {
        let moved = self.segments.stop();
        let finished = match check_group(&self.member) {
            Ok(()) => {
                self.segments.deadline_in = self.handle.options.timeout;
                self.due().and_then(|next| self.lane.finish(&mut self.segments, next))
            }
            Err(e) => Err(e),
        };
        let deadline = Instant::now() + self.handle.options.timeout;
        let ended = finished.and_then(|()| self.member.end(deadline, self.ended));
        if ended.is_err() {
            // The rank leaves without an end: the other processes must not wait for it. No effect if the group is over.
            self.space().control.mark_died(self.member.slot, self.member.incarnation);
        }
        ended.and(moved)
    }

    fn abandon(&mut self) {
        self.lane.abort(&mut self.segments);
        if let Err(e) = self.segments.stop() {
            eprintln!("forebay: moving data of space {}: {e}", self.space().name);
        }
        let (control, slot, incarnation) = (&self.space().control, self.member.slot, self.member.incarnation);
        if let Some(reason) = &self.failed {
            control.give_reason(slot, incarnation, reason);
        }
        control.mark_died(slot, incarnation);
    }
}

impl Memory for Reserved {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn variable(&self) -> (&str, Dtype, &[u64]) {
        (self.name(), self.dtype(), self.shape())
    }
}

/// Spreads a weak hash over all bits (the finaliser of MurmurHash3, public domain).
fn mix(mut h: u64) -> u64 {
    h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}
