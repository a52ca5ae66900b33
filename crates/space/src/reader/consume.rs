//! The reader's side of a space: waiting for versions, finding pieces, gathering boxes.
//!
//! Not here: what may be called when, and what a step counts ([`crate::step::reader`]).

use forebay_config::{environment, Absent, ExecutionMode, OpenOptions, Verify};
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::{Dims, Dtype, LaneId};
use forebay_tier::host::time::Instant;
use forebay_tier::{wait, watched, Access, Error, Kind, Result};
use rustc_hash::FxHashMap;

use crate::control::{member, ProducerState, Waiting};
use crate::lane::gate::Gate;
use crate::lane::granules::WAIT_SLICE;
use crate::lane::index::{self, Bring, LaneCursor, VariableInfo, VersionIndex};
use crate::lane::view::{Lease, View};
use crate::open::attach::Attachment;
use crate::open::create::Missing;
use crate::open::existing::{group_of, is_streamed};
use crate::open::groups::{self, Keep};
use crate::open::membership::Membership;
use crate::open::opening::run_token;
use crate::open::producers::{missing_producers, producer_died, settle_producers, writers_of};
use crate::open::read_to_end::Member;
use crate::place::demand::{Demand, Wanted};
use crate::reader::prefetch::Prefetch;
use crate::reader::records::{self, Record};
use crate::stats::{CallTimer, Counters};
use crate::step::reader::{
    check_buffer, not_contiguous, target_box, Contents, Rejoined, Start, StepReader, VersionSource,
};
use crate::step::{Channel, Deadline, Handle};
use forebay_log::gather::{contiguous_range, copy_overlap, coverage_gap};
use forebay_log::NdBox;

/// One rank that reads a space.
pub(crate) type SpaceReader = StepReader<SpaceSource>;

/// What a reader knows of a space.
pub(crate) struct SpaceSource {
    pub(crate) handle: Handle,
    member: Arc<Member>,
    cursors: FxHashMap<LaneId, LaneCursor>,
    /// Where the scan of the version that was opened last as a handle of its own ended.
    opened_cursors: FxHashMap<LaneId, LaneCursor>,
    is_of_one_version: bool,
    /// The index of the last step, for its memory.
    last_index: VersionIndex,
    /// How long a wait spins, and this wait still may.
    spin_ns: u64,
    spin_left_ns: u64,
    /// The count of events before the last look.
    seen: u32,
    /// Complete versions, as long as the execution mode keeps this reader from them.
    known: u64,
    prefetch: Option<Prefetch>,
    gate: Gate,
    /// What `open` brings into memory.
    bring: Bring,
    /// The name by which its caller opened it.
    opened_as: String,
    /// Of a reader that waits for writers.
    demand: Option<Box<Demand>>,
}

/// A version that is held, and where its pieces are.
pub(crate) struct SpaceVersion {
    lease: Arc<Lease>,
    index: VersionIndex,
}

impl SpaceReader {
    /// Waits for the space and joins its readers. `options` are resolved.
    pub(crate) fn open(name: &str, options: OpenOptions) -> Result<SpaceReader> {
        let deadline = Instant::now() + options.timeout;
        let (member, is_streaming) = SpaceSource::join(name, &options, deadline)?;
        Ok(Self::of_member(member, name, options, is_streaming))
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
        let space = Attachment::open(&options.place(name), Access::Read, locality, Missing::Fail, deadline)?;
        let keep = absent.map_or(Keep::AsKnown, |absent| Keep::Declared(Some(absent)));
        let member = Membership::join_readers(&space, rank, size, component, Some((group, keep)), deadline)?;
        Ok(Self::of_member(Member::of(member), name, options, true))
    }

    /// For a reader that has joined the space, which its caller calls `name`.
    pub(crate) fn of_member(
        member: Arc<Member>,
        name: &str,
        options: OpenOptions,
        is_streaming: bool,
    ) -> SpaceReader {
        let start = SpaceSource::start_of(&member, &options, is_streaming);
        let handle = Handle::new(("reader", "space"), name, &member.space.dir, options);
        let mut source = SpaceSource::of_nothing(member, handle);
        source.prefetch = Prefetch::start(source.space());
        source.spin_ns = spin_budget(source.space());
        source.opened_as = name.to_string();
        StepReader::new(source, name, start)
    }

    /// Lets versions that are opened from now on stay where they are, but for the headers of their records.
    pub(crate) fn bring_headers_alone(&mut self) {
        self.source.bring = Bring::Headers;
    }

    /// See [`crate::Reader::keep_from`].
    pub(crate) fn keep_from(&self, version: u64) -> Result<Option<Lease>> {
        self.check()?;
        Ok(Lease::take(&self.source.member, version))
    }

    /// The current version for who reads it without this reader: lease and index, and how payloads are checked.
    pub(crate) fn held(&self) -> Result<(&Attachment, &Arc<Lease>, &VersionIndex, Verify)> {
        self.check()?;
        let open = self.current()?;
        Ok((self.source.space(), &open.lease, &open.index, self.source.handle.options.verify))
    }

    /// See [`crate::Reader::records`].
    pub(crate) fn records(&mut self) -> Result<Vec<Record>> {
        self.check()?;
        self.inside(|open, _| watched(|| records::list(open.lease.device(), &open.index)))
    }

    /// See [`crate::Reader::record_view`].
    pub(crate) fn record_view(&mut self, index: usize) -> Result<View> {
        self.check()?;
        self.inside(|open, verify| {
            let lease = open.lease.clone();
            let Gather { index: found, device, always, never } = open.gather_with(verify);
            watched(|| records::view(&lease, found, device, index, (!never).then_some(always)))
        })
    }
}

impl SpaceSource {
    /// Waits for the space and joins its readers; as one that looks on only, where it is not to stream what is there.
    fn join(name: &str, options: &OpenOptions, deadline: Instant) -> Result<(Arc<Member>, bool)> {
        let (rank, size) = (options.rank.expect("resolved"), options.size.expect("resolved"));
        let component = options.component.as_deref().expect("resolved");
        loop {
            let missing = if options.observer { Missing::Fail } else { Missing::Wait(options.finished) };
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

    /// At no version, and without looking ahead.
    fn of_nothing(member: Arc<Member>, handle: Handle) -> SpaceSource {
        SpaceSource {
            handle,
            gate: Gate::new(member.clone()),
            member,
            cursors: FxHashMap::default(),
            opened_cursors: FxHashMap::default(),
            is_of_one_version: false,
            last_index: VersionIndex::default(),
            spin_ns: 0,
            spin_left_ns: 0,
            seen: 0,
            known: 0,
            prefetch: None,
            bring: Bring::default(),
            opened_as: String::new(),
            demand: None,
        }
    }

    fn start_of(member: &Member, options: &OpenOptions, is_streaming: bool) -> Start {
        let next = match options.observer {
            true => member.space.control.oldest(),
            false => member.resumes_at.unwrap_or_else(|| member.cursor()),
        };
        Start { next, read_below: member.read_below, is_streaming }
    }

    /// Goes on with another membership, perhaps of another space under this name.
    fn go_on_as(&mut self, member: Arc<Member>, is_streaming: bool) -> Start {
        let start = Self::start_of(&member, &self.handle.options, is_streaming);
        self.handle.dir.clone_from(&member.space.dir);
        self.prefetch = Prefetch::start(&member.space);
        self.gate = Gate::new(member.clone());
        self.cursors.clear();
        self.opened_cursors.clear();
        self.last_index = VersionIndex::default();
        self.member = member;
        self.demand = None;
        start
    }

    fn space(&self) -> &Arc<Attachment> {
        &self.member.space
    }

    pub(crate) fn uuid(&self) -> String {
        uuid::Uuid::from_bytes(self.space().superblock.uuid).to_string()
    }

    /// Whether the execution mode keeps readers from what is complete.
    fn is_held_back(&self, state: ProducerState) -> bool {
        self.space().control.execution_mode() == ExecutionMode::Serial
            && !self.handle.options.observer
            && matches!(state, ProducerState::None | ProducerState::Open)
    }
}

impl Channel for SpaceSource {
    #[inline]
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn note_waiting(&mut self, version: Option<u64>) -> Result<()> {
        self.member.set_waiting(version.map_or(Waiting::No, Waiting::Version));
        if version.is_some() {
            self.known = self.space().control.complete();
            self.spin_left_ns = self.spin_ns;
        }
        Ok(())
    }

    fn pause(&mut self, left: Duration) {
        let spin_ns = std::mem::take(&mut self.spin_left_ns);
        self.space().control.wait_events(self.seen, spin_ns, left.min(WAIT_SLICE));
    }

    #[inline]
    fn gate(&mut self) -> Option<&mut Gate> {
        Some(&mut self.gate)
    }
}

impl VersionSource for SpaceSource {
    type Open = SpaceVersion;

    fn check(&self) -> Result<()> {
        self.handle.check_fork()?;
        self.space().control.check()
    }

    fn oldest(&self) -> Result<u64> {
        Ok(self.space().control.oldest())
    }

    fn complete(&self) -> Result<u64> {
        Ok(self.space().control.complete())
    }

    fn versions(&self) -> Result<Range<u64>> {
        Ok(index::retained(self.space()))
    }

    fn with_retention(&self, error: Error) -> Error {
        let error = match error.kind() {
            // While it was being opened: because the space is full.
            Kind::TimedOut => error.with("when_full", self.space().tiers.when_full),
            _ => error,
        };
        error.with("retention", self.space().retention())
    }

    fn missing(&self, version: u64) -> Vec<String> {
        missing_producers(self.space(), version)
    }

    fn rejoin(&mut self, until: &Deadline) -> Result<Rejoined> {
        let space = self.space().clone();
        self.seen = space.control.events().load(Acquire);
        if space.control.is_removed() || is_streamed(&space, &self.handle.options) {
            let joined = Self::join(&self.opened_as, &self.handle.options, until.at);
            let no_space = joined.as_ref().is_err_and(|e| e.kind() == Kind::PeerMissing);
            if !no_space {
                let (member, is_streaming) = joined?;
                return Ok(Rejoined::Joined(self.go_on_as(member, is_streaming)));
            }
        }
        space.control.check()?;
        let (opened_as, finished) = (&self.opened_as, self.handle.options.finished);
        let demand = || Box::new(Demand::of(opened_as, Wanted::of(finished, run_token())));
        let demand = self.demand.get_or_insert_with(demand);
        demand.renew(&space.dir)?;
        Ok(Rejoined::No(writers_of(&space)))
    }

    #[inline]
    fn is_ready(&self, version: u64) -> bool {
        let control = &self.space().control;
        control.complete() > version && !self.is_held_back(control.producer_state())
    }

    fn look(&mut self, version: u64, until: &mut Deadline) -> Result<Option<bool>> {
        let space = self.member.space.clone();
        let control = &space.control;
        loop {
            self.seen = control.events().load(Acquire);
            control.check()?;
            let is_held_back = self.is_held_back(control.producer_state());
            if is_held_back && control.complete() > self.known {
                self.known = control.complete();
                until.extend();
            }
            if control.complete() > version && !is_held_back {
                // No process's liveness matters any more, and asking for it takes a system call a rank.
                return Ok(Some(true));
            }
            // The state is read before the count: what was committed before the end is then seen.
            let state = settle_producers(&space);
            if control.complete() > version && !self.is_held_back(state) {
                return Ok(Some(true));
            }
            return match state {
                state if state.is_finished() => Ok(Some(false)),
                // Before the writers: another space has taken its place, whose writers may live.
                _ if control.is_removed() => {
                    Err(Error::new(Kind::PeerMissing, format!("space {} was removed", space.name))
                        .with("directory", space.dir.display()))
                }
                // Of an earlier boot: those who are started again with this reader may come after it. At the deadline
                // it is said why none came.
                ProducerState::Died(None) if Instant::now() < until.at => Ok(None),
                ProducerState::Died(slot) => {
                    let died = producer_died(&space, slot);
                    // Writers that have come meanwhile may have the slot that was described, and go on.
                    if settle_producers(&space) != state {
                        continue;
                    }
                    Err(died)
                }
                _ => Ok(None),
            };
        }
    }

    fn choose(&mut self, next: u64) -> Result<(u64, Option<u64>)> {
        let control = &self.space().control;
        let complete = control.complete();
        let oldest = next.max(control.oldest());
        let version =
            if self.handle.options.latest { oldest.max(complete.saturating_sub(1)) } else { oldest };
        // Where what was complete is dropped, the oldest version that is not dropped does not exist yet.
        Ok((oldest, Some(version).filter(|_| oldest < complete)))
    }

    fn note_ended(&mut self, next: u64) -> Result<()> {
        self.member.note_ended(next)
    }

    /// The member's lease words cover what all its handles hold.
    fn for_one_version(&mut self) -> Result<SpaceSource> {
        let mut source = Self::of_nothing(self.member.clone(), self.handle.clone());
        source.is_of_one_version = true;
        source.bring = self.bring;
        source.cursors.clone_from(&self.opened_cursors);
        Ok(source)
    }

    fn learn(&mut self, opened: &mut SpaceSource) {
        self.opened_cursors = std::mem::take(&mut opened.cursors);
    }

    fn open(&mut self, version: u64) -> Result<Option<SpaceVersion>> {
        let Some(lease) = Lease::take(&self.member, version) else { return Ok(None) };
        let space = &self.member.space;
        self.gate.begin_step(space.control.execution_mode());
        let old = std::mem::take(&mut self.last_index);
        let built = index::build(space, version, self.bring, &mut self.cursors, old);
        // Without the shared state nothing is found, and that is the reason to tell.
        let index = built.or_else(|e| space.control.check().and(Err(e)))?;
        if let Some(prefetch) = &self.prefetch {
            prefetch.want(version + 1);
        }
        Ok(Some(SpaceVersion { lease: Arc::new(lease), index }))
    }

    fn release(&mut self, open: &mut Option<SpaceVersion>, next: Option<u64>, done: Counters) -> Result<u64> {
        if let Some(SpaceVersion { lease, index }) = open.take() {
            self.last_index = index;
            drop(lease);
        }
        let Some(next) = next else { return Ok(0) };
        if !self.handle.options.observer {
            self.member.release_below(next)?;
        }
        self.member.publish_stats(next, done.bytes, done.op_ns, done.wait_ns);
        Ok(0)
    }

    fn leave_group(&mut self, is_streaming: bool) -> Result<()> {
        let deadline = Instant::now() + self.handle.options.timeout;
        if is_streaming || self.handle.options.observer {
            return self.member.leave_for_good(deadline);
        }
        // It waited for writers, as no member of its group.
        let (space, group) = (self.space(), group_of(&self.handle.options));
        space.with_setup_lock(deadline, || groups::leave_unjoined(space, group, self.member.rank).map(drop))
    }

    fn close(&mut self, _done: Counters) -> Result<()> {
        self.prefetch = None;
        if !self.is_of_one_version {
            self.member.leave();
        }
        Ok(())
    }
}

impl SpaceVersion {
    #[inline]
    fn gather_with(&mut self, verify: Verify) -> Gather<'_> {
        Gather {
            index: &mut self.index,
            device: self.lease.device(),
            always: verify == Verify::Always,
            never: verify == Verify::Never,
        }
    }

    /// A view of a variable of one piece; None for any other, whatever the reason.
    #[inline]
    fn view_whole(&mut self, name: &str, verify: Verify, nth: u64) -> Result<Option<(View, u64)>> {
        let lease = self.lease.clone();
        let Gather { index, device, always, never } = self.gather_with(verify);
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
        Ok(Some((View::of_pool(lease, range, dtype, shape), timer.stop())))
    }

    fn view_box(
        &mut self,
        name: &str,
        wanted: Option<&NdBox>,
        verify: Verify,
        nth: u64,
    ) -> Result<(View, u64)> {
        if wanted.is_none() {
            if let Some(viewed) = self.view_whole(name, verify, nth)? {
                return Ok(viewed);
            }
        }
        let timer = CallTimer::start(usize::MAX, 0);
        let lease = self.lease.clone();
        let Gather { index, device, always, never } = self.gather_with(verify);
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
            return Ok((View::of_pool(lease, range, dtype, target.count), timer.stop()));
        }
        Err(not_contiguous(name, &target, pieces.len()))
    }
}

impl Contents for SpaceVersion {
    fn version(&self) -> u64 {
        self.index.version
    }

    fn has(&mut self, name: &str) -> Result<bool> {
        watched(|| Ok(!self.index.find(self.lease.device(), name).is_empty()))
    }

    fn names(&mut self) -> Result<Vec<String>> {
        watched(|| Ok(self.index.names(self.lease.device())))
    }

    fn describe(&mut self, name: &str) -> Result<VariableInfo> {
        watched(|| self.index.describe(self.lease.device(), name))
    }

    #[inline]
    fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        let device = self.lease.device();
        watched(|| {
            let pieces = self.index.find(device, name);
            if pieces.is_empty() {
                return Err(self.index.unknown_variable(device, name));
            }
            self.index.agreed(device, name, &pieces)
        })
    }

    #[inline]
    fn gather(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, out: &mut [u8]) -> Result<()> {
        let mut gather = self.gather_with(verify);
        watched(|| gather.run(name, wanted, out))
    }

    #[inline]
    fn show<R>(
        &mut self,
        name: &str,
        bytes_max: usize,
        verify: Verify,
        look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<(u64, R)>> {
        self.gather_with(verify).look(name, bytes_max, look)
    }

    fn view(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, nth: u64) -> Result<(View, u64)> {
        watched(|| self.view_box(name, wanted, verify, nth))
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
        check_buffer(name, &target, dtype, out)?;
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
