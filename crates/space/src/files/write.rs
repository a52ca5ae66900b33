//! The writer's side of the file-per-object channel.
//!
//! One [`FilesWriter`] is one rank. Guarantees: an object's file has its name only when it is whole; the
//! `done` file comes after all of them and, at a durable horizon, after they and their names were flushed; it
//! is written under the lock of the channel after a look whether this rank's incarnation still stands, so
//! that a fenced writer completes nothing. Not here: the format of the files.

use super::object::Object;
use super::object_file;
use super::stream::{note_written, Counters, DoneDf, IncarnationDf, Patience, Producers, Stream, StreamDf};
use crate::attributes::{self, Attribute};
use crate::declared::{disagreement, Declared, First};
use crate::open::agreement::{agree, agree_on, sizes_in_words};
use crate::open::channel::explained;
use crate::open::groups::hint_for_awaited;
use crate::open::opening::{self, Refusal, Writers, Writing};
use crate::place::{name, whole_file};
use crate::stats::{CallTimer, Stats};
use crate::trace::{Side, Trace, TraceHead, TraceStep};
use crate::version_range::format_versions;
use forebay_config::{environment, launch, Mode, OpenOptions, Pace, Retention};
use forebay_log::NdBox;
use forebay_log::{Dims, Dtype, Piece};
use forebay_tier::checksum::crc32c;
use forebay_tier::host::fs::{self, DirBuilder, File};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::process::ForkMark;
use forebay_tier::{clock, Durability, Error, Horizon, Kind, Result};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One rank that writes a file-per-object channel.
pub(crate) struct FilesWriter {
    stream: Stream,
    options: OpenOptions,
    rank: u32,
    size: u32,
    me: IncarnationDf,
    /// None once it is closed.
    slot: Option<SlotGuard>,
    mark: ForkMark,
    /// The version that the next step opens.
    next: u64,
    /// The first version that this rank has not put.
    due: u64,
    step: Step,
    /// What was put in the open step.
    declared: Declared,
    calls: u64,
    stats: Stats,
    trace: Option<Trace>,
    times: TraceStep,
}

enum Step {
    None,
    Open(OpenStep),
    /// The version is complete already: what is put is dropped.
    Skipping(u64),
}

/// The step being written.
struct OpenStep {
    version: u64,
    dir: PathBuf,
    /// Files of the step so far, for the flush at its end and for giving it up.
    files: Vec<PathBuf>,
    bytes: u64,
}

/// Memory for a piece that the caller fills.
pub(crate) struct FilesReservation {
    /// None: the version is complete already and the piece will be dropped.
    version: Option<u64>,
    name: String,
    dtype: Dtype,
    shape: Dims,
    start: Dims,
    count: Dims,
    data: Vec<u8>,
}

/// Notes what a rank puts: a name has one type and shape in a step.
fn declare(declared: &mut Declared, version: u64, rank: u32, piece: &Piece<'_>) -> Result<Option<First>> {
    let noted = declared.note(piece.name, piece.dtype, piece.shape);
    noted.ok_or_else(|| disagreement("this rank", version, rank, piece.name, piece.dtype, piece.shape))
}

impl FilesReservation {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

impl FilesWriter {
    /// Makes or joins the channel. `options` are resolved.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<FilesWriter> {
        refuse_gate(options)?;
        name::make_root_for(name)?;
        let dir = name::directory(name)?;
        let (rank, size) = (options.rank.unwrap_or(0), options.size.unwrap_or(1));
        let mut patience = Patience::new(options.timeout);
        let mut is_over = false;
        let (stream, me, slot) = loop {
            let joined = Self::try_join(name, &dir, rank, size, options);
            match joined.map_err(|e| explained(name, &dir, e))? {
                Some(joined) => break joined,
                // It was replaced, or was read to its end and is being removed at this moment: once more, also when the
                // time is over.
                None if patience.wait() || !std::mem::replace(&mut is_over, true) => {}
                None => {
                    return Err(Error::new(
                        Kind::PeerMissing,
                        format!("another process keeps removing {name}"),
                    ))
                }
            }
        };
        let component = options.component.as_deref().unwrap_or_default();
        let head = TraceHead {
            component,
            rank,
            size,
            channel: name,
            side: Side::Writer,
            placement: None,
            pace: options.pace,
        };
        Ok(FilesWriter {
            trace: Trace::from_environment(&head, &environment::process),
            stream,
            options: options.clone(),
            rank,
            size,
            due: me.first_version,
            next: me.first_version,
            me,
            slot: Some(slot),
            mark: ForkMark::here(),
            step: Step::None,
            declared: Declared::default(),
            calls: 0,
            stats: Stats::default(),
            times: TraceStep::default(),
        })
    }

    /// Makes or opens the channel and joins its writers; `None` when it is being removed.
    fn try_join(
        name: &str,
        dir: &Path,
        rank: u32,
        size: u32,
        options: &OpenOptions,
    ) -> Result<Option<(Stream, IncarnationDf, SlotGuard)>> {
        let Some(mut stream) = Stream::open(name, dir, options, true)? else { return Ok(None) };
        let run = launch(&environment::process).unwrap_or_default();
        let joined = stream.locked(options.timeout, |stream| {
            let slot = stream.members.lock_slot(rank)?.ok_or_else(|| stream.rank_in_use(rank))?;
            let writers = stream.writers_for(rank, &run)?;
            let (holder, unread) = (stream.holder(rank)?, stream.unread()?);
            let missing = stream.unjoined_ranks(rank)?;
            let is_partial = || !missing.is_empty();
            match opening::writing(options, writers, || holder.is_some(), || !unread.is_empty(), is_partial) {
                Writing::Join | Writing::Resume => {
                    check_files(name, &stream.df, options)?;
                    let me = stream.join_writers(rank, size, options, &run, writers)?;
                    note_written(&stream.df.uuid);
                    Ok(Some((me, slot)))
                }
                Writing::Replace => stream.replace(options).map(|()| None),
                Writing::Refuse(why) => Err(refused(name, why, writers, (holder, unread, missing))),
            }
        });
        match joined {
            Ok(Some((me, slot))) => Ok(Some((stream, me, slot))),
            // The next try makes the new one.
            Ok(None) => Ok(None),
            Err(e) if e.kind() == Kind::PeerMissing => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.me.number
    }

    pub(crate) fn name(&self) -> &str {
        &self.stream.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.stream.dir
    }

    pub(crate) fn durability(&self) -> Durability {
        self.stream.durability()
    }

    /// Whether a step is open, or skipped.
    pub(crate) fn is_in_step(&self) -> bool {
        !matches!(self.step, Step::None)
    }

    pub(crate) fn next_version(&self) -> u64 {
        match &self.step {
            Step::Open(OpenStep { version, .. }) | Step::Skipping(version) => version + 1,
            Step::None => self.next,
        }
    }

    fn check_handle(&self) -> Result<()> {
        self.mark.check("writer of a file-per-object channel")?;
        match self.slot {
            Some(_) => Ok(()),
            None => Err(Error::new(Kind::Closed, "the writer is closed")),
        }
    }

    fn check_no_step(&self) -> Result<()> {
        match self.step {
            Step::None => Ok(()),
            _ => Err(Error::new(Kind::StepState, "a step is open").hint("call end_step or abort_step first")),
        }
    }

    /// [`Kind::Fenced`] when a newer incarnation took over.
    fn check_fence(&mut self) -> Result<()> {
        self.stream.refresh()?;
        let current = self.stream.df.current().map_or(0, |i| i.number);
        if current == self.me.number {
            return Ok(());
        }
        Err(Error::new(
            Kind::Fenced,
            format!("a newer incarnation of the writers of {} has taken over", self.stream.name),
        )
        .with("incarnation", self.me.number)
        .with("current", current))
    }

    /// [`Kind::Fenced`] or [`Kind::ProducerDied`].
    pub(crate) fn check_peers(&mut self) -> Result<()> {
        self.check_fence()?;
        match self.stream.producers_but(Some(self.rank))? {
            Producers::Died(rank) => Err(self.stream.producer_died(rank)),
            _ => Ok(()),
        }
    }

    pub(crate) fn resume(&mut self) -> Result<u64> {
        self.check_handle()?;
        self.check_no_step()?;
        self.next = self.next.max(self.due);
        Ok(self.next)
    }

    pub(crate) fn begin_version(&mut self, version: u64) -> Result<bool> {
        self.check_handle()?;
        self.check_no_step()?;
        self.times = TraceStep { begin_ns: clock::now_ns(), version, ..TraceStep::default() };
        self.check_peers()?;
        if version < self.due {
            if self.options.mode != Mode::Append {
                return Err(opening::version_exists(self.name(), version, self.due).with("rank", self.rank));
            }
            self.step = Step::Skipping(version);
            self.times.ready_ns = clock::now_ns();
            return Ok(false);
        }
        if version > self.due {
            return Err(Error::new(
                Kind::VersionOutOfOrder,
                format!("version {version} of {} is not the next one", self.name()),
            )
            .with("due", self.due)
            .hint(format!("versions are consecutive: the next one is {}", self.due)));
        }
        self.wait_for_turn(version)?;
        self.wait_for_space(version)?;
        let dir = self.stream.version_dir(version);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(self.failed(format!("make {}", dir.display()), e)),
        }
        self.declared.clear();
        self.step = Step::Open(OpenStep { version, dir, files: Vec::new(), bytes: 0 });
        self.times.ready_ns = clock::now_ns();
        Ok(true)
    }

    /// Where the sides take turns: waits until the readers have released every version before this one.
    fn wait_for_turn(&mut self, version: u64) -> Result<()> {
        if self.options.pace != Some(Pace::SerialPerStep) {
            return Ok(());
        }
        let mut patience = Patience::new(self.options.timeout);
        while !self.stream.is_released_below(version)? {
            self.check_peers()?;
            if !patience.wait() {
                return Err(Error::new(
                    Kind::TimedOut,
                    format!(
                        "timeout while waiting for the readers of {} (mode serial-per-step)",
                        self.name()
                    ),
                )
                .with("pace", Pace::SerialPerStep)
                .with("version", version)
                .with("held_by", self.stream.holders(version.saturating_sub(1)).join("; "))
                .hint(
                    "in mode serial-per-step a writer continues when all readers have released the previous \
                     version",
                ));
            }
        }
        let waited = patience.waited().as_nanos() as u64;
        self.stats.wait_ns += waited;
        self.times.wait_ns += waited;
        Ok(())
    }

    /// Waits until the versions before this one leave space.
    fn wait_for_space(&mut self, version: u64) -> Result<()> {
        let Some(quota) = self.stream.df.quota_bytes else { return Ok(()) };
        let mut patience = Patience::new(self.options.timeout);
        loop {
            let used = self.stream.bytes_below(version)?;
            if used == 0 || used < quota {
                break;
            }
            let timeout = self.options.timeout;
            // A reader may have died, and no other process would notice.
            self.stream.locked(timeout, |stream| stream.reclaim())?;
            if self.stream.bytes_below(version)? < used {
                continue;
            }
            self.check_peers()?;
            if !patience.wait() {
                let oldest = self.stream.oldest()?;
                return Err(Error::new(
                    Kind::QuotaFull,
                    format!(
                        "the quota of {} is used up; timeout while waiting for readers to release versions",
                        self.name()
                    ),
                )
                .with("quota_bytes", quota)
                .with("used_bytes", used)
                .with("held_by", self.stream.holders(oldest).join("; "))
                .hint(match self.stream.awaited_group(oldest) {
                    Some(group) => hint_for_awaited(self.name(), &group),
                    None => "raise the quota, or let the readers end their steps".into(),
                }));
            }
        }
        let waited = patience.waited().as_nanos() as u64;
        self.stats.wait_ns += waited;
        self.times.wait_ns += waited;
        Ok(())
    }

    /// An error of the operating system, or that a newer incarnation took the directory away.
    fn failed(&mut self, doing: String, error: std::io::Error) -> Error {
        match self.check_fence() {
            Err(fenced) if fenced.kind() == Kind::Fenced => fenced,
            _ => Error::io(doing, error),
        }
    }

    pub(crate) fn put(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        self.check_handle()?;
        self.calls += 1;
        let timer = CallTimer::start(data.len(), self.calls);
        self.check_piece(piece, Some(data.len()))?;
        self.write_object(piece, data)?;
        self.stats.puts += 1;
        self.times.objects += 1;
        self.note_call(timer.stop(), data.len() as u64);
        Ok(())
    }

    /// Checks box, buffer, step and quota; returns the bytes of the piece.
    fn check_piece(&self, piece: &Piece<'_>, given: Option<usize>) -> Result<u64> {
        let bytes = piece.payload_bytes()?;
        if given.is_some_and(|given| given as u64 != bytes) {
            return Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the box")
                .with("variable", piece.name)
                .with("buffer_bytes", given.unwrap_or(0))
                .with("box_bytes", bytes));
        }
        match &self.step {
            Step::None => Err(no_step(piece.name)),
            Step::Skipping(_) => Ok(bytes),
            Step::Open(step) => match self.stream.df.quota_bytes {
                Some(quota) if step.bytes.saturating_add(bytes) > quota => Err(Error::new(
                    Kind::VersionTooLarge,
                    format!("version {} exceeds the quota", step.version),
                )
                .with("quota_bytes", quota)
                .with("bytes", step.bytes.saturating_add(bytes))
                .hint("open the channel with a larger quota")),
                _ => Ok(bytes),
            },
        }
    }

    /// Writes the file of one piece of the open step; nothing in a step that is skipped.
    fn write_object(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        let Step::Open(step) = &self.step else { return Ok(()) };
        let first = declare(&mut self.declared, step.version, self.rank, piece)?;
        let object = Object {
            name: piece.name.to_string(),
            dtype: piece.dtype,
            shape: Dims::from_slice(piece.shape),
            part: NdBox::new(piece.start, piece.count)?,
            version: step.version,
            rank: self.rank,
            incarnation: self.me.number,
            index: step.files.len() as u32,
            payload_bytes: data.len() as u64,
            payload_crc: self.stream.df.checksum.then(|| crc32c(data)),
        };
        let path = step.dir.join(object_file(self.rank, object.index, piece.name));
        let temporary = whole_file::temporary_beside(&path);
        let at_once = self.stream.df.horizon == Horizon::Write;
        let written = whole_file::write_new(&temporary, &[&object.encode(), data], at_once)
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(e) = written {
            let _ = fs::remove_file(&temporary);
            first.into_iter().for_each(|first| self.declared.take_back(first));
            return Err(self.failed(format!("write {}", path.display()), e));
        }
        if let Step::Open(step) = &mut self.step {
            step.files.push(path);
            step.bytes += data.len() as u64;
        }
        self.stats.bytes_put += data.len() as u64;
        self.stats.bytes_copied += data.len() as u64;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, piece: &Piece<'_>) -> Result<FilesReservation> {
        self.check_handle()?;
        let bytes = self.check_piece(piece, None)?;
        let version = match &self.step {
            Step::Open(step) => Some(step.version),
            _ => None,
        };
        if let Some(version) = version {
            declare(&mut self.declared, version, self.rank, piece)?;
        }
        Ok(FilesReservation {
            version,
            name: piece.name.to_string(),
            dtype: piece.dtype,
            shape: Dims::from_slice(piece.shape),
            start: Dims::from_slice(piece.start),
            count: Dims::from_slice(piece.count),
            data: vec![0; bytes as usize],
        })
    }

    pub(crate) fn commit(&mut self, reservation: FilesReservation) -> Result<()> {
        self.check_handle()?;
        let Some(version) = reservation.version else { return Ok(()) };
        if !matches!(&self.step, Step::Open(step) if step.version == version) {
            return Err(Error::new(Kind::StepState, "the step of this reservation has ended")
                .with("version", version));
        }
        let timer = CallTimer::start(usize::MAX, 0);
        let FilesReservation { name, dtype, shape, start, count, data, .. } = &reservation;
        let piece = Piece { name, dtype: *dtype, shape, start, count };
        self.check_piece(&piece, Some(data.len()))?;
        self.write_object(&piece, data)?;
        self.stats.reserves += 1;
        self.times.objects += 1;
        self.note_call(timer.stop(), data.len() as u64);
        Ok(())
    }

    fn note_call(&mut self, op_ns: u64, bytes: u64) {
        self.stats.put_ns += op_ns;
        self.times.op_ns += op_ns;
        self.times.bytes += bytes;
        self.times.calls += 1;
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.check_handle()?;
        let timer = CallTimer::start(usize::MAX, 0);
        match &self.step {
            Step::None => return Err(no_step("end_step")),
            Step::Skipping(version) => {
                self.next = version + 1;
                self.stats.skipped += 1;
            }
            Step::Open(step) => {
                let version = step.version;
                let done = DoneDf {
                    incarnation: self.me.number,
                    objects: step.files.len() as u32,
                    bytes: step.bytes,
                };
                if self.stream.is_durable() {
                    if let Err(e) = flush(step, self.stream.df.horizon) {
                        return Err(self.failed(format!("flush version {version}"), e));
                    }
                }
                self.commit_done(version, &done)?;
                self.due = version + 1;
                self.next = self.due;
                self.stats.steps += 1;
            }
        }
        self.step = Step::None;
        let op_ns = timer.stop();
        self.stats.put_ns += op_ns;
        self.times.op_ns += op_ns;
        // What the program does before it begins the next step belongs to the writers' turn. The step is acknowledged;
        // a turn that does not come is an error of the next one.
        let _ = self.wait_for_turn(self.next);
        self.times.end_ns = clock::now_ns();
        if let Some(trace) = &mut self.trace {
            trace.step(&self.times);
        }
        // The step is acknowledged; what lists show of it is not worth an error.
        let _ = self.stream.note_progress(self.rank, self.me.number, self.counters());
        Ok(())
    }

    fn counters(&self) -> Counters {
        let Stats { steps, bytes_put, put_ns, wait_ns, .. } = self.stats;
        Counters { steps, bytes: bytes_put, op_ns: put_ns, wait_ns }
    }

    /// Says that this rank is done with the version, unless a newer incarnation took over or a peer died.
    fn commit_done(&mut self, version: u64, done: &DoneDf) -> Result<()> {
        self.check_peers()?;
        let (rank, number) = (self.rank, self.me.number);
        let still_mine = self.stream.locked(self.options.timeout, |stream| {
            if stream.df.current().map(|i| i.number) != Some(number) {
                return Ok(false);
            }
            stream.write_done(version, rank, done)?;
            if let Retention::Last(_) = stream.df.retention {
                // The version is there; what cannot be dropped now goes with the next one.
                let _ = stream.reclaim();
            }
            Ok(true)
        })?;
        if still_mine {
            return Ok(());
        }
        self.check_fence()
    }

    pub(crate) fn abort_step(&mut self) -> Result<()> {
        self.check_handle()?;
        if let Step::Open(step) = std::mem::replace(&mut self.step, Step::None) {
            step.files.iter().for_each(|path| {
                let _ = fs::remove_file(path);
            });
        }
        Ok(())
    }

    pub(crate) fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        self.check_handle()?;
        self.stream.set_attribute(key, value, self.options.timeout)
    }

    pub(crate) fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        self.check_handle()?;
        attributes::read(&self.stream.dir)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Ends cleanly: this rank puts nothing more.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.slot.is_none() {
            return Ok(());
        }
        self.abort_step()?;
        let (rank, number, done) = (self.rank, self.me.number, self.counters());
        let closed = self.stream.locked(self.options.timeout, |stream| stream.close_rank(rank, number, done));
        // Only now may it stop being alive: who asks sees a live rank or a closed one.
        self.slot = None;
        self.trace = None;
        closed.and_then(|()| self.stream.remove_if_read(self.options.timeout)).or_else(unless_removed)
    }

    /// Ends as if it had died.
    pub(crate) fn abandon(&mut self) {
        if !self.mark.is_forked() && self.slot.is_some() {
            let _ = self.abort_step();
            self.slot = None;
            self.trace = None;
        }
    }
}

impl Drop for FilesWriter {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            return;
        }
        if std::thread::panicking() || matches!(self.step, Step::Open(_)) {
            self.abandon();
        } else if let Err(e) = self.close() {
            eprintln!("forebay: closing the writer: {e}");
        }
    }
}

/// Flushes the files of a step, unless each was flushed when it was written, and their names.
fn flush(step: &OpenStep, horizon: Horizon) -> std::io::Result<()> {
    if horizon == Horizon::Epoch {
        for path in &step.files {
            File::open(path)?.sync_data()?;
        }
    }
    File::open(&step.dir)?.sync_all()?;
    // The version's own name, which stands in the directory above.
    whole_file::sync_directory_of(&step.dir)
}

/// A channel that is gone needs no farewell.
pub(super) fn unless_removed(error: Error) -> Result<()> {
    if error.kind() == Kind::PeerMissing {
        Ok(())
    } else {
        Err(error)
    }
}

/// See [`crate::check_writable`]; for a channel that is there.
pub(crate) fn check_writable(name: &str, options: &OpenOptions) -> Result<()> {
    let Some(stream) = Stream::open(name, &name::directory(name)?, options, false)? else { return Ok(()) };
    let writers = stream.writers()?;
    let (holder, unread) = (stream.holder(u32::MAX)?, stream.unread()?);
    let missing = stream.unjoined_ranks(u32::MAX)?;
    let decided = match writers {
        Writers::Open => Writing::Refuse(Refusal::Held),
        _ => {
            let is_partial = || !missing.is_empty();
            opening::writing(options, writers, || holder.is_some(), || !unread.is_empty(), is_partial)
        }
    };
    match decided {
        Writing::Refuse(why) => Err(refused(name, why, writers, (holder, unread, missing))),
        _ => Ok(()),
    }
}

/// `found`: who holds it, what is unread, which ranks are missing.
fn refused(
    name: &str,
    why: Refusal,
    writers: Writers,
    found: (Option<String>, Range<u64>, Vec<u32>),
) -> Error {
    let (holder, unread, missing) = found;
    let detail = match why {
        Refusal::Held => holder.unwrap_or_default(),
        Refusal::Partial => opening::format_ranks(&missing),
        _ => format!("versions {}", format_versions(unread)),
    };
    opening::refused(&format!("channel {name}"), why, writers, &detail)
}

/// Processes that share no memory cannot count who is inside.
fn refuse_gate(options: &OpenOptions) -> Result<()> {
    match options.pace {
        Some(pace @ Pace::Gated { .. }) => {
            Err(Error::new(Kind::NotPossibleHere, "a channel of files does not support an admission limit")
                .with("pace", pace)
                .hint("choose another execution mode, or kind = \"space\""))
        }
        _ => Ok(()),
    }
}

fn no_step(what: &str) -> Error {
    Error::new(Kind::StepState, "no step is open").with("in", what).hint("call begin_step first")
}

/// Fails where an option that is given differs from what a channel was made with.
fn check_files(name: &str, made: &StreamDf, options: &OpenOptions) -> Result<()> {
    agree_on(name, "horizon", options.horizon, made.horizon)?;
    agree_on(name, "retention", options.retention, made.retention)?;
    agree_on(name, "checksum", options.checksum, made.checksum)?;
    let Some(wanted) = options.quota_bytes else { return Ok(()) };
    agree(name, "quota", made.quota_bytes == Some(wanted), || match made.quota_bytes {
        Some(is) => sizes_in_words(wanted, is),
        None => (crate::format_bytes(wanted), "none".into()),
    })
}
