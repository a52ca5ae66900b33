//! The reader's side of a space: waiting for versions, finding pieces, gathering boxes.

use forebay_config::{environment, Absent, OpenOptions, Pace, Verify};
use forebay_tier::host::time::Instant;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::{Dims, Dtype, LaneId};
use forebay_tier::{clock, counters, wait, watched, Access, Error, Kind, Result};
use rustc_hash::FxHashMap;

use crate::attributes::{self, Attribute};
use crate::control::{member, ProducerState, Waiting};
use crate::lane::gate::Gate;
use crate::lane::granules::WAIT_SLICE;
use crate::lane::index::{self, Bring, LaneCursor, VariableInfo, VersionIndex};
use crate::lane::view::{Lease, View};
use crate::many::at_object;
use crate::open::attach::Attachment;
use crate::open::create::Missing;
use crate::open::existing::{group_of, is_streamed};
use crate::open::groups::{self, Keep};
use crate::open::membership::Membership;
use crate::open::opening;
use crate::open::producers::{missing_producers, producer_died, settle_producers, writers_of};
use crate::open::read_to_end::Member;
use crate::reader::prefetch::Prefetch;
use crate::reader::records::{self, Record};
use crate::stats::{CallTimer, Stats};
use crate::trace::{Side, Trace, TraceHead, TraceStep};
use crate::version_range::format_versions;
use forebay_log::gather::{contiguous_range, copy_overlap, coverage_gap};
use forebay_log::NdBox;

/// One rank that reads a space.
pub(crate) struct SpaceReader {
    member: Arc<Member>,
    options: OpenOptions,
    /// Next version of the stream.
    next: u64,
    current: Option<Current>,
    cursors: FxHashMap<LaneId, LaneCursor>,
    /// Where the scan of the version that `open_version` opened last ended.
    opened_cursors: FxHashMap<LaneId, LaneCursor>,
    /// A handle of one version: its stream is that version, which is open already.
    of_one_version: bool,
    /// The index of the last step, for its memory.
    last_index: VersionIndex,
    spin_ns: u64,
    calls: u64,
    stats: Stats,
    trace: Option<Trace>,
    times: TraceStep,
    prefetch: Option<Prefetch>,
    gate: Gate,
    /// What `enter` brings into memory.
    bring: Bring,
    timed_out: bool,
    /// Versions that were dropped before this reader came to them, behind the version before.
    missed: u64,
    closed: bool,
    /// Whether it takes part in the stream. If not, its writers had ended before it came, and it waits for others.
    is_streaming: bool,
    /// Whether it has said so.
    has_said: bool,
    /// The name by which its caller opened it.
    opened_as: String,
}

/// The version that `get` and `view` look into.
struct Current {
    lease: Arc<Lease>,
    index: VersionIndex,
}

/// How a wait ended.
#[derive(PartialEq, Eq)]
enum Waited {
    Complete,
    EndOfStream,
}

impl SpaceReader {
    /// Waits for the space and joins its readers. `options` are resolved.
    pub(crate) fn open(name: &str, options: OpenOptions) -> Result<SpaceReader> {
        let deadline = Instant::now() + options.timeout;
        let (member, is_streaming) = Self::join(name, &options, deadline)?;
        let mut reader = Self::of_member(member, name, options);
        (reader.is_streaming, reader.opened_as) = (is_streaming, name.to_string());
        Ok(reader)
    }

    /// See [`crate::Reader::stand_in`].
    pub(crate) fn stand_in(
        name: &str,
        options: OpenOptions,
        group: &str,
        absent: Option<Absent>,
    ) -> Result<SpaceReader> {
        let deadline = Instant::now() + options.timeout;
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        let component = options.component.as_deref().expect("resolved");
        let locality = options.locality.unwrap_or_default();
        let space = Attachment::open(name, Access::Read, locality, Missing::Fail, deadline)?;
        let keep = absent.map_or(Keep::AsKnown, |absent| Keep::Declared(Some(absent)));
        let member = Membership::join_readers(&space, rank, size, component, Some((group, keep)), deadline)?;
        Ok(Self::of_member(Member::of(member), name, options))
    }

    /// Waits for the space and joins its readers; as one that looks on only, where it is not to stream what is there.
    fn join(name: &str, options: &OpenOptions, deadline: Instant) -> Result<(Arc<Member>, bool)> {
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        let component = options.component.as_deref().expect("resolved");
        loop {
            let missing = if options.observer { Missing::Fail } else { Missing::Wait };
            let locality = options.locality.unwrap_or_default();
            let space = Attachment::open(&options.place(name), Access::Read, locality, missing, deadline)?;
            let is_streaming = options.observer || is_streamed(&space, options);
            let keep = match options.group.is_some() || options.absent.is_some() {
                true => Keep::Declared(options.absent),
                false => Keep::AsKnown,
            };
            let takes_part = !options.observer && is_streaming;
            let group = takes_part.then_some((options.group.as_deref().unwrap_or(component), keep));
            match Membership::join_readers(&space, rank, size, component, group, deadline) {
                Err(_) if space.control.is_removed() && Instant::now() < deadline => continue,
                other => break Ok((Member::of(other?), is_streaming)),
            }
        }
    }

    /// Waits for writers, where those of the space had ended before this reader came, and then streams what they write.
    fn wait_for_writers(&mut self, deadline: Instant) -> Result<()> {
        while !self.is_streaming {
            let space = self.space().clone();
            let seen = space.control.events().load(Acquire);
            let is_removed = space.control.is_removed();
            if is_removed || is_streamed(&space, &self.options) {
                let joined = Self::join(&self.opened_as, &self.options, deadline);
                let no_space = joined.as_ref().is_err_and(|e| e.kind() == Kind::PeerMissing);
                if !no_space {
                    let (member, is_streaming) = joined?;
                    self.go_on_as(member, is_streaming);
                    continue;
                }
            }
            space.control.check()?;
            let writers = writers_of(&space);
            let what = format!("space {}", self.name());
            if !std::mem::replace(&mut self.has_said, true) {
                opening::say_left_behind(&what, writers);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(opening::no_writers(&what, writers));
            }
            space.control.wait_events(seen, 0, left.min(WAIT_SLICE));
        }
        Ok(())
    }

    /// Goes on with another membership, perhaps of another space under this name.
    fn go_on_as(&mut self, member: Arc<Member>, is_streaming: bool) {
        self.next = member.resumes_at.unwrap_or_else(|| member.cursor());
        self.prefetch = Prefetch::start(&member.space);
        self.gate = Gate::new(member.clone());
        self.cursors.clear();
        self.opened_cursors.clear();
        self.last_index = VersionIndex::default();
        (self.member, self.is_streaming) = (member, is_streaming);
    }

    /// For a reader that has joined the space, which its caller calls `name`.
    pub(crate) fn of_member(member: Arc<Member>, name: &str, options: OpenOptions) -> SpaceReader {
        let (rank, size) = (member.rank, member.size);
        let component = options.component.clone().expect("resolved");
        let side = Side::Reader;
        let head =
            TraceHead { component: &component, rank, size, channel: name, side, placement: None, pace: None };
        let trace =
            if options.observer { None } else { Trace::from_environment(&head, &environment::process) };
        let next = match options.observer {
            true => member.space.control.oldest(),
            false => member.resumes_at.unwrap_or_else(|| member.cursor()),
        };
        let prefetch = Prefetch::start(&member.space);
        let spin_ns = spin_budget(&member.space);
        let mut reader = Self::of_nothing(member, options);
        (reader.prefetch, reader.trace, reader.next, reader.spin_ns) = (prefetch, trace, next, spin_ns);
        reader
    }

    /// A handle at no version, which neither waits nor looks ahead.
    fn of_nothing(member: Arc<Member>, options: OpenOptions) -> SpaceReader {
        SpaceReader {
            spin_ns: 0,
            prefetch: None,
            gate: Gate::new(member.clone()),
            member,
            options,
            next: 0,
            current: None,
            cursors: FxHashMap::default(),
            opened_cursors: FxHashMap::default(),
            of_one_version: false,
            last_index: VersionIndex::default(),
            calls: 0,
            stats: Stats::default(),
            trace: None,
            times: TraceStep::default(),
            bring: Bring::default(),
            timed_out: false,
            missed: 0,
            closed: false,
            is_streaming: true,
            has_said: false,
            opened_as: String::new(),
        }
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

    pub(crate) fn name(&self) -> &str {
        &self.space().name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.space().dir
    }

    pub(crate) fn uuid(&self) -> String {
        uuid::Uuid::from_bytes(self.space().superblock.uuid).to_string()
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.current.as_ref().map(|c| c.index.version)
    }

    pub(crate) fn versions(&self) -> Result<std::ops::Range<u64>> {
        Ok(index::retained(self.space()))
    }

    pub(crate) fn latest(&self) -> Result<Option<u64>> {
        let versions = self.versions()?;
        Ok((!versions.is_empty()).then(|| versions.end - 1))
    }

    fn check_open(&self) -> Result<()> {
        self.member.check_fork()?;
        if self.closed {
            return Err(Error::new(Kind::Closed, "the reader is closed"));
        }
        self.space().control.check()
    }

    pub(crate) fn begin_step(&mut self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.check_open()?;
        if self.current.is_some() {
            return Err(Error::new(Kind::StepState, "a step is open").hint("call end_step first"));
        }
        if self.of_one_version {
            return Ok(None);
        }
        // A wait that timed out and is taken up again is one wait, as a user who looks at the trace sees it.
        if !std::mem::take(&mut self.timed_out) {
            self.times = TraceStep { begin_ns: clock::now_ns(), ..TraceStep::default() };
        }
        let deadline = Instant::now() + timeout.unwrap_or(self.options.timeout);
        self.wait_for_writers(deadline)?;
        let mut wanted = self.next;
        loop {
            if self.wait_complete(wanted, deadline)? == Waited::EndOfStream {
                self.skip_dropped(self.space().control.oldest());
                self.member.note_ended(self.next)?;
                return Ok(None);
            }
            let control = &self.space().control;
            let complete = control.complete();
            wanted = self.next.max(control.oldest());
            if wanted >= complete {
                // What was complete is dropped. The oldest version that is not dropped does not exist yet.
                continue;
            }
            let oldest = wanted;
            if self.options.latest {
                wanted = wanted.max(complete - 1);
            }
            // A version may be dropped between the look and the lease: look again.
            if let Some(lease) = Lease::take(&self.member, wanted) {
                self.skip_dropped(oldest);
                self.stats.skipped += wanted - oldest;
                self.enter(wanted, lease)?;
                if let Some(prefetch) = &self.prefetch {
                    prefetch.want(wanted + 1);
                }
                self.times.ready_ns = clock::now_ns();
                return Ok(Some(wanted));
            }
            if Instant::now() >= deadline {
                self.timed_out = true;
                return Err(self.dropped_too_fast(wanted));
            }
        }
    }

    /// Goes on at `oldest`, counting what this reader missed: what it ended before it came again it did not.
    fn skip_dropped(&mut self, oldest: u64) {
        self.missed = oldest.saturating_sub(self.next.max(self.member.read_below));
        self.stats.dropped += self.missed;
        self.stats.skipped += oldest.saturating_sub(self.next);
        self.next = self.next.max(oldest);
    }

    #[cold]
    fn dropped_too_fast(&self, version: u64) -> Error {
        let control = &self.space().control;
        Error::new(
            Kind::TimedOut,
            format!("version {version} of space {} was dropped while it was being opened", self.name()),
        )
        .with("retained", format_versions(control.oldest()..control.complete()))
        .with("when_full", self.space().tiers.when_full)
        .with("retention", self.space().retention())
        .hint(
            "create the space with a larger quota, or with when_full=\"block\", so that writers wait for readers",
        )
    }

    fn enter(&mut self, version: u64, lease: Lease) -> Result<()> {
        self.gate.begin_step(self.member.space.control.pace());
        let timer = CallTimer::start(usize::MAX, 0);
        let old = std::mem::take(&mut self.last_index);
        let built = index::build(&self.member.space, version, self.bring, &mut self.cursors, old);
        // Without the shared state nothing is found, and that is the reason to tell.
        let index = built.or_else(|e| self.member.space.control.check().and(Err(e)))?;
        self.current = Some(Current { lease: Arc::new(lease), index });
        self.note_call(timer.stop(), 0);
        Ok(())
    }

    #[inline]
    fn note_call(&mut self, op_ns: u64, bytes: u64) {
        self.stats.get_ns += op_ns;
        self.stats.bytes_got += bytes;
        self.times.op_ns += op_ns;
        self.times.bytes += bytes;
        self.times.calls += 1;
    }

    /// Whether the pace keeps readers from what is complete.
    fn is_held_back(&self, state: ProducerState) -> bool {
        self.space().control.pace() == Pace::Serial
            && !self.options.observer
            && matches!(state, ProducerState::None | ProducerState::Open)
    }

    /// Goes inside the gate, for a call that moves data.
    #[inline]
    fn go_in(&mut self) -> Result<()> {
        let before = self.gate.wait_ns;
        let result = self.gate.enter(self.options.timeout, |_| Ok(()));
        let waited = self.gate.wait_ns - before;
        if waited > 0 {
            self.stats.wait_ns += waited;
            self.times.wait_ns += waited;
        }
        result
    }

    /// Waits until `version` is complete, and may be read, or can no longer become so.
    fn wait_complete(&mut self, version: u64, deadline: Instant) -> Result<Waited> {
        let control = &self.space().control;
        if control.complete() > version && !self.is_held_back(control.producer_state()) {
            return Ok(Waited::Complete);
        }
        let began = clock::now_ns();
        self.member.set_waiting(Waiting::Version(version));
        let result = self.wait_slowly(version, deadline);
        self.member.set_waiting(Waiting::No);
        let waited = clock::now_ns() - began;
        self.stats.wait_ns += waited;
        self.times.wait_ns += waited;
        result
    }

    fn wait_slowly(&mut self, version: u64, mut deadline: Instant) -> Result<Waited> {
        let space = self.space().clone();
        let control = &space.control;
        let patience = deadline.saturating_duration_since(Instant::now());
        let mut known = control.complete();
        let mut spin_ns = self.spin_ns;
        loop {
            let seen = control.events().load(Acquire);
            control.check()?;
            let is_held_back = self.is_held_back(control.producer_state());
            if is_held_back && control.complete() > known {
                // The deadline is for one version: writers that go on are not late.
                known = control.complete();
                deadline = Instant::now() + patience;
            }
            if control.complete() > version && !is_held_back {
                // No process's liveness matters any more, and asking for it takes a system call a rank.
                return Ok(Waited::Complete);
            }
            // The state is read before the count: what was committed before the end is then seen.
            let state = settle_producers(&space);
            if control.complete() > version && !self.is_held_back(state) {
                return Ok(Waited::Complete);
            }
            match state {
                state if state.is_finished() => return Ok(Waited::EndOfStream),
                // Before the writers: another space has taken its place, whose writers may live.
                _ if control.is_removed() => {
                    return Err(Error::new(Kind::PeerMissing, format!("space {} was removed", space.name)));
                }
                // Of an earlier boot: those who are started again with this reader may come after it. At the deadline
                // it is said why none came.
                ProducerState::Died(None) if Instant::now() < deadline => {}
                ProducerState::Died(slot) => {
                    let died = producer_died(&space, slot);
                    // Writers that have come meanwhile may have the slot that was described, and go on.
                    if settle_producers(&space) == state {
                        return Err(died);
                    }
                    continue;
                }
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.timed_out = true;
                return Err(self.not_in_time(version));
            }
            control.wait_events(seen, spin_ns, left.min(WAIT_SLICE));
            spin_ns = 0;
        }
    }

    #[cold]
    fn not_in_time(&self, version: u64) -> Error {
        if self.space().control.complete() > version {
            return Error::new(
                Kind::TimedOut,
                format!("timeout while waiting for the writers of space {} to end (mode serial)", self.name()),
            )
            .with("pace", self.space().control.pace())
            .with("complete_versions", self.space().control.complete())
            .hint(
                "in mode serial readers begin when all writers have ended: start the readers later, or raise the \
                 timeout",
            );
        }
        let missing = missing_producers(self.space(), version);
        let shown: Vec<&str> = missing.iter().take(8).map(String::as_str).collect();
        let more =
            if missing.len() > 8 { format!("; and {} more", missing.len() - 8) } else { String::new() };
        Error::new(
            Kind::TimedOut,
            format!("timeout while waiting for version {version} of space {} to complete", self.name()),
        )
        .with("missing", format!("{}{more}", shown.join("; ")))
        .with("complete_versions", self.space().control.complete())
        .hint("check that the missing writer is running; raise the timeout of open or begin_step if it is only slow")
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.check_open()?;
        let Some(current) = self.current.take() else {
            return Err(Error::new(Kind::StepState, "no step is open")
                .hint("call begin_step to begin reading a version"));
        };
        let version = current.index.version;
        self.last_index = current.index;
        drop(current.lease);
        if self.of_one_version {
            return Ok(());
        }
        self.next = version + 1;
        self.stats.steps += 1;
        if !self.options.observer {
            self.member.release_below(self.next)?;
        }
        self.member.publish_stats(self.next, self.stats.bytes_got, self.stats.get_ns, self.stats.wait_ns);
        self.times.end_ns = clock::now_ns();
        if let Some(trace) = &mut self.trace {
            trace.step(&TraceStep { version, ..self.times });
        }
        Ok(())
    }

    pub(crate) fn wait(&mut self, version: u64, timeout: Option<Duration>) -> Result<()> {
        self.check_open()?;
        let deadline = Instant::now() + timeout.unwrap_or(self.options.timeout);
        self.wait_for_writers(deadline)?;
        if self.wait_complete(version, deadline)? == Waited::EndOfStream {
            return Err(Error::new(
                Kind::PeerMissing,
                format!("space {} ended before version {version}", self.name()),
            )
            .with("complete_versions", self.space().control.complete())
            .hint("all writers have closed; no further version will come"));
        }
        if version < self.space().control.oldest() {
            return Err(self.gone(version));
        }
        Ok(())
    }

    #[cold]
    fn gone(&self, version: u64) -> Error {
        let control = &self.space().control;
        Error::new(Kind::VersionGone, format!("version {version} of space {} was dropped", self.name()))
            .with("retained", format_versions(control.oldest()..control.complete()))
            .with("retention", self.space().retention())
            .hint("open the reader earlier, or keep more versions: retention=\"last:K\" or \"forever\"")
    }

    /// A handle of its own at `version`; the member's lease words cover what all its handles hold.
    pub(crate) fn open_version(&mut self, version: u64) -> Result<SpaceReader> {
        self.check_open()?;
        if version >= self.space().control.complete() {
            return Err(Error::new(Kind::TimedOut, format!("version {version} is not complete"))
                .with("complete_versions", self.space().control.complete())
                .hint("wait() blocks until it is"));
        }
        let lease = Lease::take(&self.member, version).ok_or_else(|| self.gone(version))?;
        let mut opened = Self::of_nothing(self.member.clone(), self.options.clone());
        opened.of_one_version = true;
        opened.bring = self.bring;
        opened.cursors = std::mem::take(&mut self.opened_cursors);
        opened.enter(version, lease)?;
        self.opened_cursors.clone_from(&opened.cursors);
        Ok(opened)
    }

    fn current(&self) -> Result<&Current> {
        self.current.as_ref().ok_or_else(no_step)
    }

    /// Whether the current version holds a variable of this name.
    pub(crate) fn has(&mut self, name: &str) -> Result<bool> {
        self.check_open()?;
        let current = self.current()?;
        watched(|| Ok(!current.index.find(&*self.space().device, name).is_empty()))
    }

    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        self.check_open()?;
        let current = self.current()?;
        watched(|| Ok(current.index.names(&*self.space().device)))
    }

    pub(crate) fn variables(&mut self) -> Result<Vec<VariableInfo>> {
        self.check_open()?;
        let current = self.current()?;
        let device = &*self.space().device;
        let describe = |name: &String| current.index.describe(device, name);
        watched(|| current.index.names(device).iter().map(describe).collect())
    }

    pub(crate) fn variable(&mut self, name: &str) -> Result<VariableInfo> {
        self.check_open()?;
        let index = &self.current()?.index;
        watched(|| index.describe(&*self.space().device, name))
    }

    /// Dtype and global shape of a variable.
    #[inline]
    pub(crate) fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        self.member.check_fork()?;
        let current = self.current()?;
        let device = &*self.space().device;
        watched(|| {
            let pieces = current.index.find(device, name);
            if pieces.is_empty() {
                return Err(current.index.unknown_variable(device, name));
            }
            current.index.agreed(device, name, &pieces)
        })
    }

    /// Copies a box of the current version to `out`, which has exactly its bytes.
    #[inline]
    pub(crate) fn get(&mut self, name: &str, wanted: Option<&NdBox>, out: &mut [u8]) -> Result<()> {
        self.member.check_fork()?;
        self.calls += 1;
        self.go_in()?;
        let timer = CallTimer::start(out.len(), self.calls);
        let got = self.gather().and_then(|mut gather| watched(|| gather.run(name, wanted, out)));
        self.gate.leave();
        got?;
        self.stats.gets += 1;
        self.times.objects += 1;
        self.note_copied(out.len() as u64);
        self.note_call(timer.stop(), out.len() as u64);
        Ok(())
    }

    /// Counts bytes copied out, for this handle and for the process.
    #[inline]
    fn note_copied(&mut self, bytes: u64) {
        self.stats.bytes_copied += bytes;
        counters::add_bytes_copied(bytes);
    }

    #[inline]
    fn gather(&mut self) -> Result<Gather<'_>> {
        let Some(current) = self.current.as_mut() else {
            return Err(no_step());
        };
        Ok(Gather {
            index: &mut current.index,
            device: &*self.member.space.device,
            always: self.options.verify == Verify::Always,
            never: self.options.verify == Verify::Never,
        })
    }

    /// See [`crate::Reader::get_each`].
    pub(crate) fn get_each<'a>(
        &mut self,
        objects: impl Iterator<Item = (&'a str, &'a mut [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        self.each(objects, done, |gather, i, (name, out)| {
            watched(|| gather.run(name, None, out)).map_err(|e| at_object(e, i, name))?;
            Ok(Some(out.len() as u64))
        })
    }

    /// Takes one object after the other, what a call costs being paid once. `take` gets the number of the object, and
    /// says how many bytes it was, or None to end before it; `done` rises by one with each that was taken.
    fn each<T>(
        &mut self,
        objects: impl Iterator<Item = T>,
        done: &mut usize,
        mut take: impl FnMut(&mut Gather<'_>, usize, T) -> Result<Option<u64>>,
    ) -> Result<()> {
        self.member.check_fork()?;
        self.current()?;
        self.go_in()?;
        let timer = CallTimer::start(usize::MAX, 0);
        let (before, mut bytes) = (*done, 0);
        let mut gather = self.gather()?;
        let mut result = Ok(());
        for object in objects {
            match take(&mut gather, *done, object) {
                Ok(Some(of_this)) => bytes += of_this,
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            *done += 1;
        }
        self.gate.leave();
        self.stats.gets += (*done - before) as u64;
        self.times.objects += (*done - before) as u64;
        self.note_copied(bytes);
        self.note_call(timer.stop(), bytes);
        result
    }

    /// See [`crate::Reader::with_object`].
    #[inline]
    pub(crate) fn with_object<R>(
        &mut self,
        name: &str,
        bytes_max: usize,
        look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<R>> {
        self.member.check_fork()?;
        self.go_in()?;
        let looked = self.look_inside(name, bytes_max, look);
        self.gate.leave();
        looked
    }

    #[inline]
    fn look_inside<R>(
        &mut self,
        name: &str,
        bytes_max: usize,
        look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<R>> {
        self.calls += 1;
        let timer = CallTimer::start(0, self.calls);
        let Some((bytes, looked)) = self.gather()?.look(name, bytes_max, look)? else { return Ok(None) };
        self.stats.gets += 1;
        self.times.objects += 1;
        self.note_copied(bytes);
        self.note_call(timer.stop(), bytes);
        Ok(Some(looked))
    }

    /// See [`crate::Reader::with_each`].
    pub(crate) fn with_each<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        bytes_max: usize,
        mut look: impl FnMut(usize, Dtype, &[u64], &[u8]) -> bool,
        done: &mut usize,
    ) -> Result<()> {
        self.each(names, done, |gather, i, name| {
            let looked = gather.look(name, bytes_max, |dtype, shape, part| look(i, dtype, shape, part));
            let looked = looked.map_err(|e| at_object(e, i, name))?;
            Ok(looked.and_then(|(bytes, took)| took.then_some(bytes)))
        })
    }

    /// A view of a variable of one piece; None for any other, whatever the reason.
    #[inline]
    fn view_whole(&mut self, name: &str) -> Result<Option<View>> {
        self.calls += 1;
        let nth = self.calls;
        let lease = self.current()?.lease.clone();
        let Gather { index, device, always, never } = self.gather()?;
        let Some((i, header)) = index.single(device, name) else { return Ok(None) };
        let bytes = header.payload_bytes();
        let timer = CallTimer::start(bytes as usize, nth);
        let payload = index.offset(i) + header.payload_offset();
        let range = payload..payload + bytes;
        let (dtype, shape) = (header.dtype(), header.count().collect());
        if never {
            device.will_read(range.clone())?;
        } else {
            index.verify_chunks(device, i, 0, bytes as usize, always, |_, _| {})?;
        }
        self.stats.views += 1;
        self.times.objects += 1;
        self.note_call(timer.stop(), bytes);
        Ok(Some(View::of_pool(lease, range, dtype, shape)))
    }

    /// Inside the gate while the checksums are compared, which reads everything once; not while the program looks.
    pub(crate) fn view(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<View> {
        self.member.check_fork()?;
        self.go_in()?;
        let view = watched(|| self.view_inside(name, wanted));
        self.gate.leave();
        view
    }

    fn view_inside(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<View> {
        if wanted.is_none() {
            if let Some(view) = self.view_whole(name)? {
                return Ok(view);
            }
        }
        let timer = CallTimer::start(usize::MAX, 0);
        let lease = self.current()?.lease.clone();
        let Gather { index, device, always, never } = self.gather()?;
        let pieces = index.find(device, name);
        if pieces.is_empty() {
            return Err(index.unknown_variable(device, name));
        }
        let (dtype, shape) = index.agreed(device, name, &pieces)?;
        let target = target_box(name, wanted, &shape)?;
        // Where pieces overlap the later one is seen, as by get.
        for (i, piece) in pieces.iter().zip(index.boxes(device, &pieces)?).rev() {
            let (header, _) = index.header_there(device, *i)?;
            let Some(range) = contiguous_range(&piece, &target, dtype.size()) else {
                match piece.intersect(&target) {
                    None => continue,
                    Some(_) => break,
                }
            };
            let payload = index.offset(*i) + header.payload_offset();
            if !never {
                index.verify_chunks(device, *i, range.start, range.end, always, |_, _| {})?;
            }
            if never {
                index.payload_part(device, *i, range.clone())?;
            }
            let range = payload + range.start as u64..payload + range.end as u64;
            let bytes = range.end - range.start;
            self.stats.views += 1;
            self.times.objects += 1;
            self.note_call(timer.stop(), bytes);
            return Ok(View::of_pool(lease, range, dtype, target.count));
        }
        Err(Error::new(
            Kind::NotContiguous,
            format!("the box of {name} is not one contiguous range of one piece"),
        )
        .with("box", &target)
        .with("pieces", pieces.len())
        .hint("use get, which gathers it with one copy"))
    }

    /// Lets versions that are opened from now on stay where they are, but for the headers of their records.
    pub(crate) fn bring_headers_alone(&mut self) {
        self.bring = Bring::Headers;
    }

    /// See [`crate::Reader::records`].
    pub(crate) fn records(&mut self) -> Result<Vec<Record>> {
        self.check_open()?;
        let current = self.current()?;
        watched(|| records::list(&*self.member.space.device, &current.index))
    }

    /// See [`crate::Reader::record_view`].
    pub(crate) fn record_view(&mut self, index: usize) -> Result<View> {
        self.check_open()?;
        let lease = self.current()?.lease.clone();
        let Gather { index: found, device, always, never } = self.gather()?;
        watched(|| records::view(&lease, found, device, index, (!never).then_some(always)))
    }

    /// The current version for who reads it without this reader: lease and index, and how payloads are checked.
    pub(crate) fn held(&self) -> Result<(&Attachment, &Arc<Lease>, &VersionIndex, Verify)> {
        self.check_open()?;
        let current = self.current()?;
        Ok((self.space(), &current.lease, &current.index, self.options.verify))
    }

    pub(crate) fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        self.check_open()?;
        attributes::read(&self.space().dir)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// See [`crate::Reader::missed`].
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Leaves its group for good.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.check_open()?;
        self.member.check_fork()?;
        self.current = None;
        let deadline = Instant::now() + self.options.timeout;
        let left = match self.of_one_version {
            true => Ok(()),
            // It waited for writers, as no member of its group.
            false if !self.is_streaming && !self.options.observer => {
                let (space, group) = (self.space(), group_of(&self.options));
                space.with_setup_lock(deadline, || {
                    groups::leave_unjoined(space, group, self.member.rank).map(drop)
                })
            }
            // While it is a member: of a group without live ranks the place in the table may become another one's.
            false => self.member.leave_for_good(deadline),
        };
        self.close()?;
        left
    }

    /// Leaves: holds nothing more, except for views that are still alive.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        self.member.check_fork()?;
        self.current = None;
        self.prefetch = None;
        self.closed = true;
        if !self.of_one_version {
            self.member.leave();
        }
        // Dropping it writes what is left.
        self.trace = None;
        Ok(())
    }
}

impl Drop for SpaceReader {
    fn drop(&mut self) {
        // In a forked child there is nothing to release.
        let _ = self.close();
    }
}

#[cold]
fn no_step() -> Error {
    Error::new(Kind::StepState, "no step is open").hint("call begin_step to begin reading a version")
}

/// The box that is meant, checked against the shape.
fn target_box(name: &str, wanted: Option<&NdBox>, shape: &[u64]) -> Result<NdBox> {
    match wanted {
        None => Ok(NdBox::whole(shape)),
        Some(wanted) => {
            wanted.check_inside(name, shape)?;
            Ok(wanted.clone())
        }
    }
}

struct Gather<'a> {
    index: &'a mut VersionIndex,
    device: &'a dyn forebay_tier::Device,
    always: bool,
    never: bool,
}

impl Gather<'_> {
    /// Shows a whole variable of one piece where it lies, checked; its bytes and what `look` said of it. None for any
    /// other, and for one longer than `bytes_max`.
    #[inline]
    fn look<R>(
        &mut self,
        name: &str,
        bytes_max: usize,
        look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<(u64, R)>> {
        let found = watched(|| {
            let Some((i, header)) = self.index.single(self.device, name) else { return Ok(None) };
            let bytes = header.payload_bytes();
            if bytes > bytes_max as u64 {
                return Ok(None);
            }
            let payload = self.index.offset(i) + header.payload_offset();
            let range = payload..payload + bytes;
            if self.never {
                self.device.will_read(range.clone())?;
            } else {
                self.index.verify_chunks(self.device, i, 0, bytes as usize, self.always, |_, _| {})?;
            }
            Ok(Some((header.dtype(), header.count().collect::<Dims>(), range)))
        })?;
        let Some((dtype, shape, range)) = found else { return Ok(None) };
        let bytes = range.end - range.start;
        // `look` is run once: if another thread lost a page meanwhile, the caller gets the object in the other way.
        let (mut look, mut looked) = (Some(look), None);
        watched(|| {
            looked = look.take().map(|look| look(dtype, &shape, self.device.bytes(range.clone())));
            Ok(())
        })?;
        Ok(looked.map(|looked| (bytes, looked)))
    }

    #[inline]
    fn run(&mut self, name: &str, wanted: Option<&NdBox>, out: &mut [u8]) -> Result<()> {
        if wanted.is_none() {
            if let Some((only, header)) = self.index.single(self.device, name) {
                if header.payload_bytes() == out.len() as u64 {
                    return self.copy_range(only, 0..out.len(), out);
                }
            }
        }
        let pieces = self.index.find(self.device, name);
        if pieces.is_empty() {
            return Err(self.index.unknown_variable(self.device, name));
        }
        let (dtype, shape) = self.index.agreed(self.device, name, &pieces)?;
        let target = target_box(name, wanted, &shape)?;
        let bytes = target.bytes(dtype.size())?;
        if bytes != out.len() {
            return Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the box")
                .with("variable", name)
                .with("buffer_bytes", out.len())
                .with("box_bytes", bytes));
        }
        if let [only] = pieces[..] {
            let part = &self.index.boxes(self.device, &pieces)?[0];
            if let Some(range) = contiguous_range(part, &target, dtype.size()) {
                return self.copy_range(only, range, out);
            }
        }
        self.gather(name, &pieces, &target, dtype, out)
    }

    /// One contiguous range of one piece: verified and copied chunk by chunk, so that each is read from memory once.
    #[inline]
    fn copy_range(&mut self, i: u32, range: std::ops::Range<usize>, out: &mut [u8]) -> Result<()> {
        if self.never {
            out.copy_from_slice(self.index.payload_part(self.device, i, range)?);
            return Ok(());
        }
        let first = range.start;
        self.index.verify_chunks(self.device, i, range.start, range.end, self.always, |at, part| {
            out[at - first..at - first + part.len()].copy_from_slice(part);
        })
    }

    fn gather(
        &mut self,
        name: &str,
        pieces: &[u32],
        target: &NdBox,
        dtype: Dtype,
        out: &mut [u8],
    ) -> Result<()> {
        let boxes = self.index.boxes(self.device, pieces)?;
        if let Some(gap) = coverage_gap(target, &boxes) {
            return Err(index::not_covered(name, self.index.version, target, &gap, pieces.len()));
        }
        for (i, piece) in pieces.iter().zip(&boxes) {
            let Some(overlap) = piece.intersect(target) else { continue };
            let hull = hull_bytes(piece, &overlap, dtype.size());
            if !self.never {
                self.index.verify_chunks(self.device, *i, hull.start, hull.end, self.always, |_, _| {})?;
            }
            if self.never {
                self.index.payload_part(self.device, *i, hull)?;
            }
            let (header, bytes) = self.index.header_there(self.device, *i)?;
            let base = header.payload_offset() as usize;
            let payload = &bytes[base..base + header.payload_bytes() as usize];
            copy_overlap(piece, payload, target, out, dtype.size())?;
        }
        Ok(())
    }
}

/// The bytes of a piece from the first to the last element of a box inside it.
fn hull_bytes(piece: &NdBox, inside: &NdBox, element_bytes: usize) -> std::ops::Range<usize> {
    let (mut first, mut last) = (0u64, 0u64);
    for d in 0..piece.dimensions() {
        let from = inside.start[d] - piece.start[d];
        // What a header says may have changed since it was checked: then the end is beyond the payload.
        first = first.saturating_mul(piece.count[d]).saturating_add(from);
        last = last.saturating_mul(piece.count[d]).saturating_add(from + inside.count[d] - 1);
    }
    let bytes = |elements: u64| (elements as usize).saturating_mul(element_bytes);
    bytes(first)..bytes(last.saturating_add(1))
}

/// How long a wait spins: as the environment says, else by the number of processes in the space and cores.
fn spin_budget(space: &Attachment) -> u64 {
    if let Some(us) = environment::process("FOREBAY_SPIN_US").and_then(|t| t.trim().parse::<u64>().ok()) {
        return us * 1000;
    }
    let members = (0..space.control.members_high())
        .filter(|slot| space.control.member(*slot, member::STATE).load(Acquire) != 0)
        .count();
    let (_, producers) = space.control.producers();
    wait::spin_ns(members.max(producers as usize + 1))
}
