//! The producer's side of a space: steps, puts, reservations, commits.
//!
//! One [`SpaceWriter`] is one rank. Its lane is its own, so nothing here locks between ranks: a put touches only
//! the lane, the end of a step is one compare-and-swap on the lane's progress word.

use forebay_config::{environment, Mode, OpenOptions, Pace};
use forebay_tier::host::time::Instant;
use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::{Dtype, Lane, LaneOwner, Piece, Reserved};
use forebay_tier::{clock, Access, Durability, Error, Kind, Result};
use rustc_hash::FxHasher;

use crate::attributes::{self, Attribute};
use crate::control::shared_state::LOCK_ATTRIBUTES;
use crate::control::{too_many, ProducerState, Waiting, CURSORS_MAX, GROUPS_MAX, GROUP_RANKS_MAX, LANES_MAX};
use crate::declared::{disagreement, Declared, First};
use crate::lane::granules::WAIT_SLICE;
use crate::lane::segments::{check_group, LaneSpace};
use crate::many::at_object;
use crate::open::agreement::check_space;
use crate::open::attach::Attachment;
use crate::open::create::{replace, Missing, New};
use crate::open::directory::settle_name;
use crate::open::existing::{decided, refused_space};
use crate::open::groups::{check_present, find_or_add_group, Keep};
use crate::open::membership::{settle_left_behind, Membership};
use crate::open::opening::{self, run_token, Writing};
use crate::open::producers::{producer_died, settle_producers, writers_for};
use crate::open::read_to_end::Member;
use crate::open::released::{drop_beyond_last, holders, released_by_present};
use crate::stats::{CallTimer, Stats};
use crate::trace::{Side, Trace, TraceHead, TraceStep};

/// One rank that writes a space.
pub(crate) struct SpaceWriter {
    member: Arc<Member>,
    lane: Lane,
    segments: LaneSpace,
    options: OpenOptions,
    /// Next version this rank will put.
    next: u64,
    step: Step,
    /// What was put in the open step.
    declared: Declared,
    /// Whether this rank has begun a version.
    has_begun: bool,
    /// Why the last call of the step failed, for readers, should this rank leave now.
    failed: Option<String>,
    calls: u64,
    stats: Stats,
    trace: Option<Trace>,
    times: TraceStep,
    timed_out: bool,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    None,
    Open(u64),
    /// The version is complete already: what is put is dropped.
    Skipping(u64),
}

/// Under the setup lock: the pace that the first rank of a group says holds for all of it.
fn settle_pace(member: &Membership, wanted: Option<Pace>) -> Result<()> {
    let space = &member.space;
    let settled = space.control.settle_pace(member.incarnation, wanted.unwrap_or_default());
    match wanted {
        Some(pace) if pace != settled && !space.control.is_steered() => Err(Error::new(
            Kind::OptionMismatch,
            format!("space {} is written in another execution mode", space.name),
        )
        .with("asked_for", pace)
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
    /// Makes or joins the space; one that it makes begins at `first_version`. `options` are resolved.
    pub(crate) fn open(name: &str, options: OpenOptions, first_version: u64) -> Result<SpaceWriter> {
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
        Self::of_member(member, name, options, deadline).inspect_err(|_| {
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
    ) -> Result<SpaceWriter> {
        let rank = member.rank;
        let component = options.component.clone().expect("resolved");
        let space = member.space.clone();
        space.with_setup_lock(deadline, || {
            settle_pace(&member, options.pace)?;
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
        let (side, pace) = (Side::Writer, Some(space.control.pace()));
        let head = TraceHead { component: &component, rank, size, channel: name, side, placement, pace };
        let trace = Trace::from_environment(&head, &environment::process);
        let (_, next) = space.control.progress(rank);
        Ok(SpaceWriter {
            member,
            lane,
            segments,
            options,
            next,
            step: Step::None,
            declared: Declared::default(),
            has_begun: false,
            failed: None,
            calls: 0,
            stats: Stats::default(),
            trace,
            times: TraceStep::default(),
            timed_out: false,
            closed: false,
        })
    }

    fn space(&self) -> &Arc<Attachment> {
        &self.member.space
    }

    pub(crate) fn rank(&self) -> u32 {
        self.member.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.member.size
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.member.incarnation
    }

    pub(crate) fn name(&self) -> &str {
        &self.space().name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.space().dir
    }

    pub(crate) fn durability(&self) -> Durability {
        self.space().device.durability(self.space().superblock.horizon)
    }

    /// Whether a step is open, or skipped.
    pub(crate) fn is_in_step(&self) -> bool {
        self.step != Step::None
    }

    pub(crate) fn next_version(&self) -> u64 {
        match self.step {
            Step::Open(v) | Step::Skipping(v) => v + 1,
            Step::None => self.next,
        }
    }

    pub(crate) fn resume(&mut self) -> Result<u64> {
        self.member.check_fork()?;
        if self.step != Step::None {
            return Err(step_open());
        }
        self.next = self.next.max(self.first_open_version()?);
        Ok(self.next)
    }

    /// The version this rank has to put next: behind what was complete before it came and what it committed.
    /// Errors: [`Kind::Fenced`] or [`Kind::ProducerDied`] when another group is taking over.
    fn first_open_version(&self) -> Result<u64> {
        let (incarnation, committed) = self.space().control.progress(self.member.rank);
        if incarnation == self.member.incarnation {
            Ok(committed)
        } else {
            Err(self.taken_over())
        }
    }

    /// Why this rank's lane no longer counts.
    fn taken_over(&self) -> Error {
        // A take-over closes the lanes before it says whose they are.
        check_group(&self.member).err().unwrap_or_else(|| {
            let (current, _) = self.space().control.progress(self.member.rank);
            Error::new(
                Kind::Fenced,
                format!("a newer incarnation of the writers is taking over space {}", self.name()),
            )
            .with("rank", self.rank())
            .with("incarnation", self.member.incarnation)
            .with("current", current)
            .hint("this process belongs to an older incarnation: end it")
        })
    }

    pub(crate) fn begin_version(&mut self, version: u64) -> Result<bool> {
        self.member.check_fork()?;
        if self.step != Step::None {
            return Err(step_open());
        }
        // A turn that did not come in time and is waited for again is one wait, as a user who looks at the trace sees
        // it.
        if !std::mem::take(&mut self.timed_out) {
            self.times = TraceStep { begin_ns: clock::now_ns(), ..TraceStep::default() };
        }
        check_group(&self.member)?;
        let due = self.first_open_version()?;
        if version < due {
            if self.options.mode != Mode::Append {
                return Err(opening::version_exists(&format!("space {}", self.name()), version, due)
                    .with("rank", self.rank()));
            }
            self.step = Step::Skipping(version);
            self.times.ready_ns = clock::now_ns();
            return Ok(false);
        }
        if version > due {
            return Err(Error::new(
                Kind::VersionOutOfOrder,
                format!("version {version} of space {} is not the next one", self.name()),
            )
            .with("due", due)
            .hint(format!("versions are consecutive: the next one is {due}")));
        }
        check_present(self.space())?;
        let pace = self.space().control.pace();
        if pace == Pace::SerialPerStep {
            self.wait_turn(version).inspect_err(|e| self.timed_out = e.kind() == Kind::TimedOut)?;
        }
        if !self.has_begun {
            self.note_begun()?;
        }
        self.segments.gate.begin_step(pace);
        self.declared.clear();
        self.lane.begin(version);
        self.step = Step::Open(version);
        self.times.ready_ns = clock::now_ns();
        Ok(true)
    }

    /// Says before its first version that this group adds to the stream.
    #[cold]
    fn note_begun(&mut self) -> Result<()> {
        if !self.space().control.note_begun(self.member.incarnation) {
            return Err(self.taken_over());
        }
        self.has_begun = true;
        Ok(())
    }

    /// Waits until the readers have released every version before this one.
    fn wait_turn(&mut self, version: u64) -> Result<()> {
        let space = self.space().clone();
        if released_by_present(&space) >= version {
            return Ok(());
        }
        let deadline = Instant::now() + self.options.timeout;
        let began = clock::now_ns();
        self.member.set_waiting(Waiting::Turn(version));
        let result = loop {
            let seen = space.control.free_space().load(Acquire);
            let in_turns = space.control.pace() == Pace::SerialPerStep;
            if !in_turns || released_by_present(&space) >= version {
                break Ok(());
            }
            if let Err(e) = check_group(&self.member) {
                break Err(e);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(not_its_turn(&space, version));
            }
            space.control.wait_free_space(seen, left.min(WAIT_SLICE));
        };
        self.member.set_waiting(Waiting::No);
        self.note_wait(clock::now_ns() - began);
        result
    }

    fn note_wait(&mut self, ns: u64) {
        self.stats.wait_ns += ns;
        self.times.wait_ns += ns;
    }

    /// Goes inside the gate, for a call that moves data.
    #[inline]
    fn go_in(&mut self) -> Result<()> {
        let gate = &mut self.segments.gate;
        let before = gate.wait_ns;
        let result = gate.enter(self.options.timeout, check_group);
        let waited = gate.wait_ns - before;
        if waited > 0 {
            self.note_wait(waited);
        }
        result
    }

    /// Notes what is put: a name has one type and shape in a step, on all ranks. Of ranks that disagree the one that
    /// comes second is told, of one rank the second put.
    #[inline]
    fn declare(&mut self, version: u64, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Option<First>> {
        let Some(first) = self.declared.note(name, dtype, shape) else {
            return Err(disagreement("this rank", version, self.rank(), name, dtype, shape));
        };
        if let Some(first) = first.filter(|_| self.member.size > 1) {
            let key = self.key_of(self.declared.name(first), version);
            let mut signature = FxHasher::default();
            (dtype, shape).hash(&mut signature);
            if !self.space().control.agree(key, mix(signature.finish())) {
                self.declared.take_back(first);
                return Err(disagreement("another rank", version, self.rank(), name, dtype, shape));
            }
        }
        Ok(first)
    }

    /// The key under which ranks agree on a variable of a version, by the hash of its name.
    #[inline]
    fn key_of(&self, name: u64, version: u64) -> u64 {
        let mut key = FxHasher::default();
        // What an earlier group put in a version that it did not complete sets no shape.
        (name, version, self.member.incarnation).hash(&mut key);
        mix(key.finish())
    }

    #[inline]
    pub(crate) fn put(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        self.calls += 1;
        self.member.check_fork()?;
        // Where only memory of this process is touched, no rank has to leave a place inside.
        let stays_outside = self.lane.keeps_back(piece, data.len() as u64);
        if !stays_outside {
            self.go_in()?;
        }
        let timer = CallTimer::start(data.len(), self.calls);
        let waited = self.begin_call();
        let before = self.stats.bytes_put;
        let put = self.append(piece, data);
        if !stays_outside {
            self.segments.gate.leave();
        }
        if let Err(e) = put {
            self.note_failed(waited, &e);
            return Err(e);
        }
        let waited = self.segments.wait_ns - waited;
        self.note_call(timer.stop().saturating_sub(waited), waited, self.stats.bytes_put - before);
        Ok(())
    }

    /// One piece into the open step; nothing into a step that is skipped.
    #[inline]
    fn append(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        let version = match self.step {
            Step::Open(version) => version,
            Step::Skipping(_) => return piece.payload_bytes().map(drop),
            Step::None => return Err(no_step(piece.name)),
        };
        let first = self.declare(version, piece.name, piece.dtype, piece.shape)?;
        if let Err(e) = self.lane.append(&mut self.segments, piece, data) {
            first.into_iter().for_each(|first| self.declared.take_back(first));
            return Err(e);
        }
        self.segments.reclaim_if_grown();
        self.stats.puts += 1;
        self.times.objects += 1;
        self.stats.bytes_put += data.len() as u64;
        let copies = 1 + u64::from(self.lane.gathers(piece, data.len() as u64));
        self.stats.bytes_copied += copies * data.len() as u64;
        Ok(())
    }

    /// See [`crate::Writer::put_each`].
    pub(crate) fn put_each<'a>(
        &mut self,
        objects: impl Iterator<Item = (Piece<'a>, &'a [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        self.member.check_fork()?;
        self.go_in()?;
        let timer = CallTimer::start(usize::MAX, 0);
        let waited = self.begin_call();
        let before = self.stats.bytes_put;
        let mut result = Ok(());
        for (piece, data) in objects {
            result = self.append(&piece, data).map_err(|e| at_object(e, *done, piece.name));
            if result.is_err() {
                break;
            }
            *done += 1;
        }
        self.segments.gate.leave();
        if let Err(e) = &result {
            self.note_failed(self.segments.wait_ns, e);
        }
        let waited = self.segments.wait_ns - waited;
        self.note_call(timer.stop().saturating_sub(waited), waited, self.stats.bytes_put - before);
        result
    }

    /// Starts the deadline of a call; returns the waiting time so far.
    #[inline]
    fn begin_call(&mut self) -> u64 {
        // Reading the clock costs more than a small put, so the deadline is set when a segment is asked for.
        self.segments.deadline_in = self.options.timeout;
        self.segments.wait_ns
    }

    #[inline]
    fn note_call(&mut self, op_ns: u64, wait_ns: u64, bytes: u64) {
        self.stats.put_ns += op_ns;
        self.stats.wait_ns += wait_ns;
        self.times.op_ns += op_ns;
        self.times.wait_ns += wait_ns;
        self.times.bytes += bytes;
        self.times.calls += 1;
    }

    /// A call that failed has waited all the same; its caller may try again.
    #[cold]
    fn note_failed(&mut self, waited_before: u64, error: &Error) {
        self.failed = Some(format!("{}: {error}", error.kind()));
        let waited = self.segments.wait_ns - waited_before;
        self.stats.wait_ns += waited;
        self.times.wait_ns += waited;
    }

    pub(crate) fn reserve(&mut self, piece: &Piece<'_>) -> Result<Option<Reserved>> {
        self.member.check_fork()?;
        self.calls += 1;
        let version = match self.step {
            Step::Open(version) => version,
            Step::Skipping(_) => return piece.payload_bytes().map(|_| None),
            Step::None => return Err(no_step(piece.name)),
        };
        // Not noted for this rank before the commit: a reservation may be dropped.
        let first = self.declare(version, piece.name, piece.dtype, piece.shape)?;
        first.into_iter().for_each(|first| self.declared.take_back(first));
        // Until the commit: in between the program writes where the data lie.
        self.go_in()?;
        let timer = CallTimer::start(usize::MAX, self.calls);
        let waited = self.begin_call();
        let reserved = self.lane.reserve(&mut self.segments, piece).inspect_err(|e| {
            self.segments.gate.leave();
            self.note_failed(waited, e);
        })?;
        let waited = self.segments.wait_ns - waited;
        self.note_call(timer.stop().saturating_sub(waited), waited, 0);
        Ok(Some(reserved))
    }

    pub(crate) fn commit(&mut self, mut reserved: Reserved) -> Result<()> {
        self.member.check_fork()?;
        let timer = CallTimer::start(usize::MAX, self.calls);
        let bytes = reserved.as_mut_slice().len() as u64;
        let (version, dtype) = (reserved.version(), reserved.dtype());
        let declared = match self.step {
            Step::Open(open) if open == version => {
                self.declare(version, reserved.name(), dtype, reserved.shape()).map(drop)
            }
            // The lane says that its step is over.
            _ => Ok(()),
        };
        let filled = declared.and_then(|()| self.lane.fill(reserved));
        self.segments.gate.leave();
        filled?;
        self.segments.reclaim_if_grown();
        self.stats.reserves += 1;
        self.times.objects += 1;
        self.stats.bytes_put += bytes;
        if !self.space().first.byte_addressable() {
            self.stats.bytes_copied += bytes;
        }
        self.note_call(timer.stop(), 0, bytes);
        Ok(())
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.member.check_fork()?;
        match self.step {
            Step::None => return Err(no_step("end_step")),
            Step::Skipping(version) => {
                self.next = version + 1;
                self.stats.skipped += 1;
            }
            Step::Open(version) => {
                self.go_in()?;
                let timer = CallTimer::start(usize::MAX, 0);
                let waited = self.begin_call();
                let sealed = self.lane.seal(&mut self.segments);
                let committed = sealed.and_then(|sealed| sealed.flush()).and_then(|flushed| flushed.commit());
                // Inside stays only who has a reservation to commit, for which the step was refused.
                self.segments.gate.leave();
                committed.inspect_err(|e| self.note_failed(waited, e))?;
                self.space().control.check()?;
                if !self.space().control.advance(self.member.rank, self.member.incarnation, version) {
                    self.step = Step::None;
                    return Err(self.taken_over());
                }
                self.space().control.announce();
                drop_beyond_last(self.space());
                self.failed = None;
                self.next = version + 1;
                self.stats.steps += 1;
                let waited = self.segments.wait_ns - waited;
                self.note_call(timer.stop().saturating_sub(waited), waited, 0);
            }
        }
        self.step = Step::None;
        self.member.publish_stats(self.next, self.stats.bytes_put, self.stats.put_ns, self.stats.wait_ns);
        if self.space().control.pace() == Pace::SerialPerStep {
            // What the program does before it begins the next step belongs to the writers' turn. The step is
            // acknowledged; a turn that does not come is an error of the next one.
            let _ = self.wait_turn(self.next);
        }
        self.times.end_ns = clock::now_ns();
        if let Some(trace) = &mut self.trace {
            trace.step(&TraceStep { version: self.next - 1, ..self.times });
        }
        // The step is acknowledged, whatever comes of releasing space: what fails there fails again, and is
        // reported, when a put needs the space.
        self.segments.reclaim_if_grown();
        let _ = self.segments.reclaim();
        Ok(())
    }

    pub(crate) fn abort_step(&mut self) -> Result<()> {
        self.member.check_fork()?;
        if let Step::Open(version) = self.step {
            if self.member.size > 1 {
                // What is put instead may have another shape.
                let keys = self.declared.names().map(|name| self.key_of(name, version));
                keys.for_each(|key| self.space().control.forget(key));
            }
            self.lane.abort(&mut self.segments);
            self.segments.gate.leave_all();
        }
        self.step = Step::None;
        Ok(())
    }

    pub(crate) fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        self.member.check_fork()?;
        let space = self.space();
        let timeout = self.options.timeout;
        attributes::set(&space.dir, key, value, space.is_durable(), &|change| {
            space.members.with_lock(LOCK_ATTRIBUTES, timeout, change)
        })
    }

    pub(crate) fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        self.member.check_fork()?;
        attributes::read(&self.space().dir)
    }

    pub(crate) fn keep_alive(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let device = self.space().first.clone();
        device.byte_addressable().then(|| Arc::new(device) as Arc<dyn Any + Send + Sync>)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Frees what no reader needs, of this rank and of producers that are gone, and returns the bytes of all pools that
    /// are in no segment.
    pub(crate) fn free_bytes(&mut self) -> Result<u64> {
        self.member.check_fork()?;
        self.segments.reclaim_all(Instant::now() + self.options.timeout)?;
        let space = self.space();
        let fills = (0..space.pools.len()).map(|pool| space.fill_of(pool));
        Ok(fills.map(|fill| fill.quota_bytes.saturating_sub(fill.reserved_bytes)).sum())
    }

    /// Ends cleanly: this rank puts nothing more.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        self.member.check_fork()?;
        self.closed = true;
        self.abort_step()?;
        let moved = self.segments.stop();
        let finished = match check_group(&self.member) {
            Ok(()) => {
                self.segments.deadline_in = self.options.timeout;
                self.first_open_version().and_then(|next| self.lane.finish(&mut self.segments, next))
            }
            Err(e) => Err(e),
        };
        let deadline = Instant::now() + self.options.timeout;
        let ended = finished.and_then(|()| self.member.end(deadline));
        if ended.is_err() {
            // The rank leaves without an end: the other processes must not wait for it. No effect if the group is over.
            self.space().control.mark_died(self.member.slot, self.member.incarnation);
        }
        self.finish_trace();
        ended.and(moved)
    }

    /// Ends without a clean end: readers and the other ranks see that this producer is gone.
    pub(crate) fn abandon(&mut self) {
        if self.closed || self.member.check_fork().is_err() {
            return;
        }
        self.closed = true;
        self.lane.abort(&mut self.segments);
        if let Err(e) = self.segments.stop() {
            eprintln!("forebay: moving data of space {}: {e}", self.space().name);
        }
        let (control, slot, incarnation) = (&self.space().control, self.member.slot, self.member.incarnation);
        if let Some(reason) = &self.failed {
            control.give_reason(slot, incarnation, reason);
        }
        control.mark_died(slot, incarnation);
        self.finish_trace();
    }

    /// Leaves as if it had died, with the reason that readers are told.
    pub(crate) fn abandon_because(&mut self, reason: &str) {
        self.failed = Some(reason.to_string());
        self.abandon();
    }

    fn finish_trace(&mut self) {
        // Dropping it writes what is left.
        self.trace = None;
    }

    /// [`Kind::ProducerDied`] as soon as a rank of the group is dead.
    pub(crate) fn check_peers(&self) -> Result<()> {
        match settle_producers(self.space()) {
            ProducerState::Died(slot) | ProducerState::Withdrawn(slot) => {
                Err(producer_died(self.space(), slot))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for SpaceWriter {
    fn drop(&mut self) {
        // An open step means that the program failed: a clean end would truncate the stream without an error.
        if std::thread::panicking() || matches!(self.step, Step::Open(_)) {
            self.abandon();
        } else if let Err(e) = self.close() {
            if e.kind() != Kind::ForkedHandle {
                eprintln!("forebay: closing the writer: {e}");
            }
        }
    }
}

#[cold]
fn not_its_turn(space: &Attachment, version: u64) -> Error {
    Error::new(
        Kind::TimedOut,
        format!("timeout while waiting for the readers of space {} (mode serial-per-step)", space.name),
    )
    .with("pace", space.control.pace())
    .with("version", version)
    .with("held_by", holders(space, version.saturating_sub(1)).join("; "))
    .hint("in mode serial-per-step a writer continues when all readers have released the previous version")
}

/// Spreads a weak hash over all bits (the finaliser of MurmurHash3, public domain).
fn mix(mut h: u64) -> u64 {
    h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

fn step_open() -> Error {
    Error::new(Kind::StepState, "a step is open").hint("call end_step or abort_step first")
}

pub(crate) fn no_step(what: &str) -> Error {
    Error::new(Kind::StepState, "no step is open").with("in", what).hint("call begin_step first")
}
