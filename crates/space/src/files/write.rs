//! The writer's side of the file-per-object channel.
//!
//! One [`FilesSink`] is one rank. Guarantees: an object's file has its name only when it is whole; the
//! `done` file comes after all of them and, at a durable horizon, after they and their names were flushed; it
//! is written under the lock of the channel after a look whether this rank's incarnation still stands, so
//! that a fenced writer completes nothing. Not here: what may be called when, and what a step counts
//! ([`crate::step::writer`]); the format of the files.

use super::object::Object;
use super::object_file;
use super::stream::{note_written, DoneDf, IncarnationDf, Pauses, Producers, Stream, StreamDf};
use crate::attributes::Attribute;
use crate::declared::Declared;
use crate::open::agreement::{agree, agree_on, sizes_in_words};
use crate::open::channel::explained;
use crate::open::groups::hint_for_awaited;
use crate::open::opening::{self, fenced, Refusal, Writers, Writing};
use crate::place::{name, whole_file};
use crate::stats::Counters;
use crate::step::writer::{Memory, StepWriter, VersionSink};
use crate::step::{Channel, Deadline, Handle};
use crate::trace::{Side, Trace, TraceHead};
use crate::version_range::format_versions;
use forebay_config::{environment, launch, ExecutionMode, OpenOptions, Retention};
use forebay_log::NdBox;
use forebay_log::{Dims, Dtype, Piece};
use forebay_tier::checksum::crc32c;
use forebay_tier::host::fs::{self, DirBuilder, File};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::{clock, Durability, Error, Horizon, Kind, Result};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One rank that writes a file-per-object channel.
pub(crate) type FilesWriter = StepWriter<FilesSink>;

/// What a writer has of a channel.
pub(crate) struct FilesSink {
    pub(crate) handle: Handle,
    stream: Stream,
    me: IncarnationDf,
    /// None once it is closed.
    slot: Option<SlotGuard>,
    /// The first version that this rank has not put.
    due: u64,
    /// The step being written.
    step: OpenStep,
    pauses: Pauses,
    wait_ns: u64,
}

/// What was written of a step.
#[derive(Default)]
struct OpenStep {
    version: u64,
    dir: PathBuf,
    /// Files of the step so far, for the flush at its end and for giving it up.
    files: Vec<PathBuf>,
    bytes: u64,
}

/// Memory for a piece that the caller fills.
pub(crate) struct FilesMemory {
    name: String,
    dtype: Dtype,
    shape: Dims,
    start: Dims,
    count: Dims,
    data: Vec<u8>,
}

impl Memory for FilesMemory {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.data
    }

    fn variable(&self) -> (&str, Dtype, &[u64]) {
        (&self.name, self.dtype, &self.shape)
    }
}

impl FilesWriter {
    /// Makes or joins the channel. `options` are resolved.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<FilesWriter> {
        refuse_gate(options)?;
        name::make_root_for(name)?;
        let dir = name::directory(name)?;
        let (rank, size) = (options.rank.unwrap_or(0), options.size.unwrap_or(1));
        let (until, mut pauses) = (Deadline::new(options.timeout), Pauses::new());
        let mut is_over = false;
        let (stream, me, slot) = loop {
            let joined = FilesSink::try_join(name, &dir, rank, size, options);
            match joined.map_err(|e| explained(name, &dir, e))? {
                Some(joined) => break joined,
                // It was replaced, or was read to its end and is being removed at this moment: once more, also when the
                // time is over.
                None if pauses.wait(&until) || !std::mem::replace(&mut is_over, true) => {}
                None => {
                    return Err(Error::new(
                        Kind::PeerMissing,
                        format!("another process keeps removing {name}"),
                    ))
                }
            }
        };
        let head = TraceHead {
            execution_mode: options.execution_mode,
            ..TraceHead::new(Side::Writer, name, options)
        };
        let trace = Trace::from_environment(&head, &environment::process);
        let next = me.first_version;
        let sink = FilesSink {
            handle: Handle::new(("writer", "channel"), name, &dir, options.clone()),
            stream,
            me,
            slot: Some(slot),
            due: next,
            step: OpenStep::default(),
            pauses: Pauses::new(),
            wait_ns: 0,
        };
        Ok(StepWriter::new(sink, next, trace))
    }
}

impl FilesSink {
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

    pub(crate) fn incarnation(&self) -> u32 {
        self.me.number
    }

    pub(crate) fn durability(&self) -> Durability {
        self.stream.durability()
    }

    /// [`Kind::Fenced`] when a newer incarnation took over.
    fn check_fence(&mut self) -> Result<()> {
        self.stream.refresh()?;
        match self.stream.df.current() {
            Some(current) if current.number == self.me.number => Ok(()),
            _ => Err(self.taken_over()),
        }
    }

    fn taken_over(&self) -> Error {
        let current = self.stream.df.current().map_or(0, |i| i.number);
        fenced(&self.handle.what(), self.handle.rank(), self.me.number, current)
    }

    /// Waits until the versions before this one leave space.
    fn wait_for_space(&mut self, version: u64) -> Result<()> {
        let Some(quota) = self.stream.df.quota_bytes else { return Ok(()) };
        let (until, mut pauses) = (Deadline::new(self.handle.options.timeout), Pauses::new());
        loop {
            let used = self.stream.bytes_below(version)?;
            if used == 0 || used < quota {
                return Ok(());
            }
            // A reader may have died, and no other process would notice.
            self.stream.locked(self.handle.options.timeout, |stream| stream.reclaim())?;
            if self.stream.bytes_below(version)? < used {
                continue;
            }
            self.check_group()?;
            if !pauses.wait(&until) {
                return Err(self.quota_full(quota, used));
            }
        }
    }

    #[cold]
    fn quota_full(&self, quota: u64, used: u64) -> Error {
        let (what, oldest) = (self.handle.what(), self.stream.oldest().unwrap_or(0));
        Error::new(
            Kind::QuotaFull,
            format!("the quota of {what} is used up; timeout while waiting for readers to release versions"),
        )
        .with("quota_bytes", quota)
        .with("used_bytes", used)
        .with("held_by", self.stream.holders(oldest).join("; "))
        .hint(match self.stream.awaited_group(oldest) {
            Some(group) => hint_for_awaited(&self.handle.name, &group),
            None => "raise the quota, or let the readers end their steps".into(),
        })
    }

    /// An error of the operating system, or that a newer incarnation took the directory away.
    fn failed(&mut self, doing: String, error: std::io::Error) -> Error {
        match self.check_fence() {
            Err(fenced) if fenced.kind() == Kind::Fenced => fenced,
            _ => Error::io(doing, error),
        }
    }

    /// Gives the step up.
    fn remove_files(&mut self) {
        for path in std::mem::take(&mut self.step).files {
            let _ = fs::remove_file(path);
        }
    }

    /// Whether so many bytes more fit into the quota.
    fn check_quota(&self, bytes: u64) -> Result<()> {
        let all = self.step.bytes.saturating_add(bytes);
        match self.stream.df.quota_bytes {
            Some(quota) if all > quota => Err(Error::new(
                Kind::VersionTooLarge,
                format!("version {} exceeds the quota", self.step.version),
            )
            .with("quota_bytes", quota)
            .with("bytes", all)
            .hint("open the channel with a larger quota")),
            _ => Ok(()),
        }
    }
}

impl Channel for FilesSink {
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn note_waiting(&mut self, _version: Option<u64>) -> Result<()> {
        self.pauses = Pauses::new();
        Ok(())
    }

    fn pause(&mut self, left: Duration) {
        self.pauses.sleep(left);
    }
}

impl VersionSink for FilesSink {
    type Memory = FilesMemory;

    fn check_group(&mut self) -> Result<()> {
        self.check_fence()?;
        match self.stream.producers_but(Some(self.handle.rank()))? {
            Producers::Died(rank) => Err(self.stream.producer_died(rank)),
            _ => Ok(()),
        }
    }

    fn due(&self) -> Result<u64> {
        Ok(self.due)
    }

    fn execution_mode(&self) -> ExecutionMode {
        self.handle.options.execution_mode.unwrap_or_default()
    }

    fn is_turn(&mut self, version: u64, _again: bool) -> Result<bool> {
        self.stream.is_released_below(version)
    }

    fn holders(&self, version: u64) -> Vec<String> {
        self.stream.holders(version)
    }

    fn begin(&mut self, version: u64, _mode: ExecutionMode) -> Result<()> {
        let began = clock::now_ns();
        self.wait_for_space(version)?;
        self.wait_ns += clock::now_ns() - began;
        let dir = self.stream.version_dir(version);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(self.failed(format!("make {}", dir.display()), e))
            }
            _ => {}
        }
        self.step = OpenStep { version, dir, ..OpenStep::default() };
        Ok(())
    }

    fn waited_ns(&self) -> u64 {
        self.wait_ns
    }

    /// Writes the file of one piece.
    fn append(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<u64> {
        self.check_quota(piece.check_data(data)?)?;
        let object = Object {
            name: piece.name.to_string(),
            dtype: piece.dtype,
            shape: Dims::from_slice(piece.shape),
            part: NdBox::new(piece.start, piece.count)?,
            version: self.step.version,
            rank: self.handle.rank(),
            incarnation: self.me.number,
            index: self.step.files.len() as u32,
            payload_bytes: data.len() as u64,
            payload_crc: self.stream.df.checksum.then(|| crc32c(data)),
        };
        let path = self.step.dir.join(object_file(self.handle.rank(), object.index, piece.name));
        let temporary = whole_file::temporary_beside(&path);
        let at_once = self.stream.df.horizon == Horizon::Write;
        let written = whole_file::write_new(&temporary, &[&object.encode(), data], at_once)
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(e) = written {
            let _ = fs::remove_file(&temporary);
            return Err(self.failed(format!("write {}", path.display()), e));
        }
        self.step.files.push(path);
        self.step.bytes += data.len() as u64;
        Ok(data.len() as u64)
    }

    fn reserve(&mut self, piece: &Piece<'_>) -> Result<FilesMemory> {
        let bytes = piece.payload_bytes()?;
        self.check_quota(bytes)?;
        Ok(FilesMemory {
            name: piece.name.to_string(),
            dtype: piece.dtype,
            shape: Dims::from_slice(piece.shape),
            start: Dims::from_slice(piece.start),
            count: Dims::from_slice(piece.count),
            data: vec![0; bytes as usize],
        })
    }

    fn fill(&mut self, memory: FilesMemory) -> Result<u64> {
        let FilesMemory { name, dtype, shape, start, count, data } = &memory;
        self.append(&Piece { name, dtype: *dtype, shape, start, count }, data)
    }

    fn seal(&mut self, version: u64) -> Result<()> {
        if self.stream.is_durable() {
            flush(&self.step, self.stream.df.horizon)
                .map_err(|e| self.failed(format!("flush version {version}"), e))?;
        }
        self.check_group()
    }

    fn complete(&mut self, version: u64) -> Result<Option<Error>> {
        let (rank, number) = (self.handle.rank(), self.me.number);
        let OpenStep { files, bytes, .. } = &self.step;
        let done = DoneDf { incarnation: number, objects: files.len() as u32, bytes: *bytes };
        let still_mine = self.stream.locked(self.handle.options.timeout, |stream| {
            if stream.df.current().map(|i| i.number) != Some(number) {
                return Ok(false);
            }
            stream.write_done(version, rank, &done)?;
            if let Retention::Last(_) = stream.df.retention {
                // The version is there; what cannot be dropped now goes with the next one.
                let _ = stream.reclaim();
            }
            Ok(true)
        })?;
        if !still_mine {
            self.remove_files();
            return Ok(Some(self.taken_over()));
        }
        (self.due, self.step) = (version + 1, OpenStep::default());
        Ok(None)
    }

    fn abort(&mut self, _version: u64, _declared: &Declared) {
        self.remove_files();
    }

    fn publish(&mut self, _next: u64, done: Counters) {
        // The step is acknowledged; what lists show of it is not worth an error.
        let _ = self.stream.note_progress(self.handle.rank(), self.me.number, done);
    }

    fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        self.stream.set_attribute(key, value, self.handle.options.timeout)
    }

    fn close(&mut self, done: Counters) -> Result<()> {
        let (rank, number) = (self.handle.rank(), self.me.number);
        let closed =
            self.stream.locked(self.handle.options.timeout, |stream| stream.close_rank(rank, number, done));
        // Only now may it stop being alive: who asks sees a live rank or a closed one.
        self.slot = None;
        closed.and_then(|()| self.stream.remove_if_read(self.handle.options.timeout)).or_else(unless_removed)
    }

    fn abandon(&mut self) {
        self.remove_files();
        self.slot = None;
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
    match options.execution_mode {
        Some(execution_mode @ ExecutionMode::Gated { .. }) => {
            Err(Error::new(Kind::NotPossibleHere, "a channel of files does not support an admission limit")
                .with("execution_mode", execution_mode)
                .hint("choose another execution mode, or kind = \"space\""))
        }
        _ => Ok(()),
    }
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
