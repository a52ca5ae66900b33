//! The reader's side of the file-per-object channel.
//!
//! One [`FilesReader`] is one rank of a reader group. Guarantees: what it reads of a version is what the
//! writers of the incarnation that owns it wrote, or an error: missing, cut off, changed or foreign files are
//! `Damaged`, files that went with a dropped version are `VersionGone`. Headers are read when a variable is
//! asked for, not before. Not here: waiting without looking (files have no wake-up).

use super::object::Object;
use super::readers::ReaderDf;
use super::stream::{Counters, Patience, Producers, Stream};
use super::write::unless_removed;
use super::{parse_object_file, shown};
use crate::attributes::{self, Attribute};
use crate::description::{is_reserved, Description};
use crate::lane::index::{PieceInfo, VariableInfo};
use crate::lane::view::View;
use crate::open::channel::explained;
use crate::open::opening::{self, Writers};
use crate::place::name;
use crate::stats::{CallTimer, Stats};
use crate::trace::{Side, Trace, TraceHead, TraceStep};
use crate::version_range::format_versions;
use forebay_config::{environment, OpenOptions, Pace, Retention, Verify};
use forebay_log::gather::{contiguous_range, copy_overlap, coverage_gap};
use forebay_log::nd_box::{concatenate, format_shape, NdBox, CONCAT};
use forebay_log::verify::Damage;
use forebay_log::verify::Report as VerifyReport;
use forebay_log::{Dims, Dtype};
use forebay_tier::host::fs::{self, File};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::process::ForkMark;
use forebay_tier::{clock, Error, Kind, Result};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Files that one call keeps open between reading headers and payloads.
const FILES_OPEN_MAX: usize = 64;

/// Missing writers that an error names.
const NAMED_MAX: usize = 8;

/// One rank that reads a file-per-object channel.
pub(crate) struct FilesReader {
    stream: Stream,
    options: OpenOptions,
    me: ReaderDf,
    /// None once it is closed.
    slot: Option<SlotGuard>,
    mark: ForkMark,
    /// Next version of the stream.
    next: u64,
    /// A handle of one version: its stream is that version, which is open already.
    of_one_version: bool,
    /// Whether it takes part in the stream. If not, its writers had ended before it came, and it waits for others.
    is_streaming: bool,
    /// Whether it has said so.
    has_said: bool,
    /// The name by which its caller opened it.
    opened_as: String,
    current: Option<Current>,
    calls: u64,
    stats: Stats,
    trace: Option<Trace>,
    times: TraceStep,
    /// Versions that were dropped before this reader came to them, behind the version before.
    missed: u64,
}

/// The version that `get` and `view` look into.
struct Current {
    version: u64,
    files: VersionFiles,
}

/// The files of a version.
pub(crate) struct VersionFiles {
    dir: PathBuf,
    version: u64,
    incarnation: u32,
    entries: Vec<Entry>,
    /// Entries by what their file names show of the variable's name.
    by_shown: FxHashMap<String, Vec<usize>>,
}

struct Entry {
    file: String,
    rank: u32,
    index: u32,
    header: Option<Arc<Object>>,
    verified: bool,
}

/// A piece that was found, its file perhaps still open.
struct Found {
    entry: usize,
    object: Arc<Object>,
    file: Option<File>,
}

/// What a look at the stream shows.
enum Look {
    Ready(u64),
    Ended,
    NotYet,
}

impl FilesReader {
    /// Waits for the channel and joins its readers. `options` are resolved.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<FilesReader> {
        Self::open_at(name, &name::directory(name)?, options)
    }

    fn open_at(name: &str, dir: &Path, options: &OpenOptions) -> Result<FilesReader> {
        let mut patience = Patience::new(options.timeout);
        let (stream, me, slot, is_streaming) = loop {
            let joined = Self::try_join(name, dir, options);
            if let Some(joined) = joined.map_err(|e| explained(name, dir, e))? {
                break joined;
            }
            if options.observer || !patience.wait() {
                let what = match options.observer {
                    true => format!("channel {name} does not exist"),
                    false => format!("timeout while waiting for channel {name} to be created"),
                };
                return Err(Error::new(Kind::PeerMissing, what).with("directory", dir.display()).hint(
                    "check that its writer runs on this host, as this user, with the same FOREBAY_DIR",
                ));
            }
        };
        let (rank, size) = (options.rank.unwrap_or(0), options.size.unwrap_or(1));
        let component = options.component.as_deref().unwrap_or_default();
        let head = TraceHead {
            component,
            rank,
            size,
            channel: name,
            side: Side::Reader,
            placement: None,
            pace: None,
        };
        let trace =
            if options.observer { None } else { Trace::from_environment(&head, &environment::process) };
        Ok(FilesReader {
            stream,
            options: options.clone(),
            next: me.cursor,
            of_one_version: false,
            is_streaming,
            has_said: false,
            opened_as: name.to_string(),
            me,
            slot: Some(slot),
            mark: ForkMark::here(),
            current: None,
            calls: 0,
            stats: Stats::default(),
            trace,
            times: TraceStep::default(),
            missed: 0,
        })
    }

    /// Opens the channel and joins its readers; `None` when it is not there yet or is being removed.
    fn try_join(
        name: &str,
        dir: &Path,
        options: &OpenOptions,
    ) -> Result<Option<(Stream, ReaderDf, SlotGuard, bool)>> {
        let Some(mut stream) = Stream::open(name, dir, options, false)? else { return Ok(None) };
        // A channel counts once a writer has joined it.
        if stream.df.current().is_none() {
            return Ok(None);
        }
        let joined = stream.locked(options.timeout, |stream| {
            let is_streaming = options.observer || stream.is_streamed(options)?;
            let options = OpenOptions { observer: options.observer || !is_streaming, ..options.clone() };
            Ok((stream.join_readers(&options)?, is_streaming))
        });
        match joined {
            Ok(((me, slot), is_streaming)) => Ok(Some((stream, me, slot, is_streaming))),
            Err(e) if e.kind() == Kind::PeerMissing => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits for writers, where those of the channel had ended before this reader came, and then streams what they
    /// write.
    fn wait_for_writers(&mut self, patience: &mut Patience) -> Result<()> {
        while !self.is_streaming {
            let writers = match self.stream.refresh().and_then(|()| self.stream.writers()) {
                Err(e) if e.kind() == Kind::PeerMissing => None,
                writers => Some(writers?),
            };
            let is_streamed = match self.stream.is_streamed(&self.options) {
                // Replaced or removed since the look before.
                Err(e) if e.kind() == Kind::PeerMissing => true,
                is_streamed => is_streamed?,
            };
            if writers.is_none() || is_streamed {
                let dir = self.stream.dir.clone();
                if let Some((stream, me, slot, is_streaming)) =
                    Self::try_join(&self.opened_as, &dir, &self.options)?
                {
                    let (old, was) =
                        (std::mem::replace(&mut self.stream, stream), std::mem::replace(&mut self.me, me));
                    if old.df.uuid == self.stream.df.uuid {
                        old.remove_reader(&was);
                    }
                    (self.slot, self.is_streaming, self.next) = (Some(slot), is_streaming, self.me.cursor);
                    continue;
                }
            }
            let (writers, what) = (writers.unwrap_or(Writers::Finished), format!("channel {}", self.name()));
            if !std::mem::replace(&mut self.has_said, true) {
                opening::say_left_behind(&what, writers);
            }
            if !patience.wait() {
                return Err(opening::no_writers(&what, writers));
            }
        }
        Ok(())
    }

    pub(crate) fn rank(&self) -> u32 {
        self.options.rank.unwrap_or(0)
    }

    pub(crate) fn size(&self) -> u32 {
        self.options.size.unwrap_or(1)
    }

    pub(crate) fn name(&self) -> &str {
        &self.stream.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.stream.dir
    }

    pub(crate) fn uuid(&self) -> String {
        self.stream.df.uuid.clone()
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.current.as_ref().map(|c| c.version)
    }

    pub(crate) fn versions(&self) -> Result<Range<u64>> {
        let complete = self.stream.complete_count()?;
        Ok(self.stream.oldest()?.min(complete)..complete)
    }

    pub(crate) fn latest(&self) -> Result<Option<u64>> {
        let versions = self.versions()?;
        Ok((!versions.is_empty()).then(|| versions.end - 1))
    }

    fn check_handle(&self) -> Result<()> {
        self.mark.check("reader of a file-per-object channel")?;
        match self.slot {
            Some(_) => Ok(()),
            None => Err(Error::new(Kind::Closed, "the reader is closed")),
        }
    }

    pub(crate) fn begin_step(&mut self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.check_handle()?;
        if self.current.is_some() {
            return Err(Error::new(Kind::StepState, "a step is open").hint("call end_step first"));
        }
        if self.of_one_version {
            return Ok(None);
        }
        self.times = TraceStep { begin_ns: clock::now_ns(), ..TraceStep::default() };
        let mut patience = Patience::new(timeout.unwrap_or(self.options.timeout));
        self.wait_for_writers(&mut patience)?;
        let version = loop {
            match self.look(self.next, true)? {
                Look::Ready(version) if self.hold(version, !self.guarded_by_cursor())? => break version,
                // It was dropped between the look and the hold.
                Look::Ready(_) => {}
                Look::Ended => {
                    self.note_wait(&patience);
                    self.missed = self.dropped_before(self.stream.oldest()?);
                    return self.note_end().map(|()| None);
                }
                Look::NotYet if patience.wait() => {}
                Look::NotYet => return Err(self.timed_out(self.next)),
            }
        };
        self.note_wait(&patience);
        self.missed = self.dropped_before(self.stream.oldest()?.min(version));
        self.stats.dropped += self.missed;
        self.stats.skipped += version.saturating_sub(self.next);
        self.enter(version)?;
        self.times.version = version;
        self.times.ready_ns = clock::now_ns();
        Ok(Some(version))
    }

    /// Versions before `oldest` that this rank was to be given next.
    fn dropped_before(&self, oldest: u64) -> u64 {
        oldest.saturating_sub(self.next.max(self.me.read_below))
    }

    /// Says that this reader saw the end of the stream.
    pub(super) fn note_end(&mut self) -> Result<()> {
        let mut me = self.me.clone();
        me.saw_end = true;
        self.stream.locked(self.options.timeout, |stream| stream.write_reader(&me))?;
        self.me = me;
        Ok(())
    }

    fn note_wait(&mut self, patience: &Patience) {
        let waited = patience.waited().as_nanos() as u64;
        self.stats.wait_ns += waited;
        self.times.wait_ns += waited;
    }

    /// Whether `from` (in the stream: or what stands for it) is complete, will come, or will never come.
    fn look(&mut self, from: u64, in_stream: bool) -> Result<Look> {
        self.stream.refresh()?;
        let serial = self.options.pace == Some(Pace::Serial) && !self.options.observer;
        if serial && self.stream.producers()? == Producers::Open {
            // At this pace readers begin when all writers have ended.
            return Ok(Look::NotYet);
        }
        if let Some(version) = self.available(from, in_stream)? {
            return Ok(Look::Ready(version));
        }
        let state = self.stream.producers()?;
        // What was committed between the first look and the end of the writers is seen by the second.
        if let Some(version) = self.available(from, in_stream)? {
            return Ok(Look::Ready(version));
        }
        match state {
            Producers::Open => Ok(Look::NotYet),
            Producers::Finished => Ok(Look::Ended),
            Producers::Died(rank) => Err(self.stream.producer_died(rank)),
        }
    }

    fn available(&mut self, from: u64, in_stream: bool) -> Result<Option<u64>> {
        if in_stream && self.options.latest {
            let group = self.options.component.clone().unwrap_or_default();
            let (observer, timeout) = (self.options.observer, self.options.timeout);
            if self.stream.complete_count()? <= from {
                return Ok(None);
            }
            return self.stream.locked(timeout, |stream| match observer {
                true => Ok(stream.complete_count()?.checked_sub(1).filter(|version| *version >= from)),
                false => stream.choose_latest(&group, from),
            });
        }
        if self.stream.is_complete(from)? {
            return Ok(Some(from));
        }
        let oldest = self.stream.oldest()?;
        Ok((oldest > from && (!in_stream || self.stream.is_complete(oldest)?)).then_some(oldest.max(from)))
    }

    /// True when this reader's cursor alone keeps the versions of its stream.
    fn guarded_by_cursor(&self) -> bool {
        !self.options.observer && !matches!(self.stream.df.retention, Retention::Last(_))
    }

    /// Keeps a version from being dropped; false when it was dropped already.
    fn hold(&mut self, version: u64, lease: bool) -> Result<bool> {
        if !lease {
            return Ok(true);
        }
        let mut me = self.me.clone();
        me.lease = Some(version);
        let held = self.stream.locked(self.options.timeout, |stream| {
            if stream.oldest()? > version {
                return Ok(false);
            }
            stream.write_reader(&me)?;
            Ok(true)
        })?;
        if held {
            self.me = me;
        }
        Ok(held)
    }

    fn enter(&mut self, version: u64) -> Result<()> {
        let timer = CallTimer::start(usize::MAX, 0);
        let files = VersionFiles::list(&self.stream, version).map_err(|e| self.or_gone(version, e))?;
        self.current = Some(Current { version, files });
        self.note_call(timer.stop(), 0);
        Ok(())
    }

    fn note_call(&mut self, op_ns: u64, bytes: u64) {
        self.stats.get_ns += op_ns;
        self.stats.bytes_got += bytes;
        self.times.op_ns += op_ns;
        self.times.bytes += bytes;
        self.times.calls += 1;
    }

    #[cold]
    fn timed_out(&self, version: u64) -> Error {
        let missing = self.stream.missing_writers(version);
        let more = missing.len().saturating_sub(NAMED_MAX);
        let mut shown = missing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
        if more > 0 {
            shown.push_str(&format!("; and {more} more"));
        }
        let what = format!("timeout while waiting for version {version} of {} to complete", self.name());
        Error::new(Kind::TimedOut, what)
            .with("missing", shown)
            .with("complete_versions", self.stream.complete_count().unwrap_or(0))
            .hint("check that the missing writer is running; raise the timeout of open or begin_step if it is only \
                   slow")
    }

    #[cold]
    fn gone(&self, version: u64) -> Error {
        let retained = self.versions().unwrap_or(0..0);
        Error::new(Kind::VersionGone, format!("version {version} of {} was dropped", self.name()))
            .with("retained", format_versions(retained))
            .with("retention", self.stream.df.retention)
            .hint("open the reader earlier, or keep more versions: retention=\"last:K\" or \"forever\"")
    }

    /// What went wrong, or that the version was dropped meanwhile and its files with it.
    #[cold]
    fn or_gone(&self, version: u64, error: Error) -> Error {
        match self.stream.oldest() {
            Ok(oldest) if oldest > version => self.gone(version),
            _ => error,
        }
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.check_handle()?;
        let Some(current) = &self.current else {
            return Err(Error::new(Kind::StepState, "no step is open")
                .hint("call begin_step to begin reading a version"));
        };
        let timer = CallTimer::start(usize::MAX, 0);
        let next = if self.of_one_version { self.next } else { current.version + 1 };
        // After an error the step is open still, and can be ended again.
        self.release(next)?;
        self.current = None;
        if !self.of_one_version {
            self.next = next;
            self.stats.steps += 1;
        }
        let op_ns = timer.stop();
        self.stats.get_ns += op_ns;
        self.times.op_ns += op_ns;
        self.times.end_ns = clock::now_ns();
        if let Some(trace) = &mut self.trace {
            trace.step(&self.times);
        }
        Ok(())
    }

    /// Writes down that everything below `next` is released, and drops what no reader needs any more.
    fn release(&mut self, next: u64) -> Result<()> {
        let mut me = self.me.clone();
        (me.cursor, me.lease, me.done) = (next, None, self.counters());
        me.done.steps += u64::from(next > self.next);
        if (me.cursor, me.lease) == (self.me.cursor, self.me.lease) {
            return Ok(());
        }
        self.stream.locked(self.options.timeout, |stream| {
            stream.write_reader(&me)?;
            // What cannot be dropped now goes with the next step: this one is released.
            let _ = stream.reclaim();
            Ok(())
        })?;
        self.me = me;
        Ok(())
    }

    fn counters(&self) -> Counters {
        let Stats { steps, bytes_got, get_ns, wait_ns, .. } = self.stats;
        Counters { steps, bytes: bytes_got, op_ns: get_ns, wait_ns }
    }

    pub(crate) fn wait(&mut self, version: u64, timeout: Option<Duration>) -> Result<()> {
        self.check_handle()?;
        let mut patience = Patience::new(timeout.unwrap_or(self.options.timeout));
        self.wait_for_writers(&mut patience)?;
        loop {
            match self.look(version, false)? {
                Look::Ready(_) => break,
                Look::Ended => {
                    return Err(Error::new(
                        Kind::PeerMissing,
                        format!("{} ended before version {version}", self.name()),
                    )
                    .with("complete_versions", self.stream.complete_count()?)
                    .hint("all writers have closed; no further version will come"));
                }
                Look::NotYet if patience.wait() => {}
                Look::NotYet => return Err(self.timed_out(version)),
            }
        }
        self.note_wait(&patience);
        if version < self.stream.oldest()? {
            return Err(self.gone(version));
        }
        Ok(())
    }

    /// A handle of its own at `version`: an observer, which holds that version and nothing else.
    pub(crate) fn open_version(&mut self, version: u64) -> Result<FilesReader> {
        self.check_handle()?;
        self.stream.refresh()?;
        if version < self.stream.oldest()? {
            return Err(self.gone(version));
        }
        if !self.stream.is_complete(version)? {
            return Err(Error::new(Kind::TimedOut, format!("version {version} is not complete"))
                .with("complete_versions", self.stream.complete_count()?)
                .hint("wait() blocks until it is"));
        }
        let options = OpenOptions { observer: true, ..self.options.clone() };
        let mut opened = Self::open_at(&self.stream.name, &self.stream.dir, &options)?;
        opened.of_one_version = true;
        if !opened.hold(version, true)? {
            return Err(self.gone(version));
        }
        opened.enter(version)?;
        Ok(opened)
    }

    fn files(&mut self) -> Result<&mut VersionFiles> {
        self.check_handle()?;
        match &mut self.current {
            Some(current) => Ok(&mut current.files),
            None => Err(Error::new(Kind::StepState, "no step is open")
                .hint("call begin_step to begin reading a version")),
        }
    }

    /// Runs `f` on the files of the current version.
    fn with_files<T>(&mut self, f: impl FnOnce(&mut VersionFiles) -> Result<T>) -> Result<T> {
        let files = self.files()?;
        let version = files.version;
        f(files).map_err(|e| match e.kind() {
            Kind::Damaged | Kind::Io => self.or_gone(version, e),
            _ => e,
        })
    }

    /// Whether the version holds a variable of this name.
    pub(crate) fn has(&mut self, name: &str) -> Result<bool> {
        self.with_files(|files| Ok(!files.pieces_of(name)?.is_empty()))
    }

    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        self.with_files(VersionFiles::names)
    }

    pub(crate) fn variables(&mut self) -> Result<Vec<VariableInfo>> {
        self.with_files(|files| {
            let names = files.names()?;
            names.iter().map(|name| files.describe(name)).collect()
        })
    }

    pub(crate) fn variable(&mut self, name: &str) -> Result<VariableInfo> {
        self.with_files(|files| files.describe(name))
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        self.with_files(|files| {
            let found = files.find(name)?;
            files.agreed(name, &found)
        })
    }

    pub(crate) fn get(&mut self, name: &str, wanted: Option<&NdBox>, out: &mut [u8]) -> Result<()> {
        self.calls += 1;
        let timer = CallTimer::start(out.len(), self.calls);
        let verify = self.options.verify;
        let bytes = out.len() as u64;
        self.with_files(|files| files.gather(name, wanted, verify, out))?;
        self.stats.gets += 1;
        self.times.objects += 1;
        self.stats.bytes_copied += bytes;
        self.note_call(timer.stop(), bytes);
        Ok(())
    }

    pub(crate) fn view(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<View> {
        let timer = CallTimer::start(usize::MAX, 0);
        let verify = self.options.verify;
        let view = self.with_files(|files| files.view(name, wanted, verify))?;
        let bytes = view.bytes().len() as u64;
        self.stats.views += 1;
        self.times.objects += 1;
        self.stats.bytes_copied += bytes;
        self.note_call(timer.stop(), bytes);
        Ok(view)
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

    /// See [`crate::Reader::missed`].
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Closes for good: nothing is kept for this rank any more, also where its group was declared.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.end(true)
    }

    /// Closes. Where its group was declared its cursor holds what it has not ended.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.end(false)
    }

    fn end(&mut self, for_good: bool) -> Result<()> {
        if self.slot.is_none() {
            return Ok(());
        }
        self.mark.check("reader of a file-per-object channel")?;
        self.current = None;
        self.trace = None;
        let observer = self.me.observer;
        let mut me = self.me.clone();
        (me.cursor, me.lease, me.ended, me.left) = (self.next, None, true, for_good);
        me.done = self.counters();
        // What was added since is unread.
        me.saw_end &= !for_good || me.cursor >= self.stream.complete_count()?;
        let is_waiting = for_good && !self.is_streaming && !self.options.observer;
        let group = || self.options.component.clone().unwrap_or_default();
        let waiting = is_waiting.then(|| (group(), self.rank()));
        let left = self.stream.locked(self.options.timeout, |stream| {
            if observer || stream.has_only_looked(&me)? {
                stream.remove_reader(&me);
            } else {
                stream.write_reader(&me)?;
            }
            if let Some((group, rank)) = &waiting {
                stream.leave_unjoined(group, *rank)?;
            }
            stream.reclaim()
        });
        if for_good && left.as_ref().is_err_and(|e| e.kind() != Kind::PeerMissing) {
            // Its cursor still holds: it can be tried again.
            return left;
        }
        self.slot = None;
        left.and_then(|()| self.stream.remove_if_read(self.options.timeout)).or_else(unless_removed)
    }
}

impl Drop for FilesReader {
    fn drop(&mut self) {
        let _ = if self.mark.is_forked() { Ok(()) } else { self.close() };
    }
}

/// Gives the pieces of a concatenated variable, which are in the order of ranks and puts, their places and its shape.
fn place_concatenated(found: &mut [Found]) {
    let shape = found[0].object.shape.clone();
    // Pieces of several shapes stay as they were put, for the error.
    if shape.first() != Some(&CONCAT) || found.iter().any(|f| f.object.shape != shape) {
        return;
    }
    let objects = found.iter_mut().map(|f| Arc::make_mut(&mut f.object));
    let mut parts: Vec<&mut Object> = objects.collect();
    let extent = concatenate(parts.iter_mut().map(|object| &mut object.part));
    parts.iter_mut().for_each(|object| object.shape[0] = extent);
}

#[cold]
fn missing_objects(version: u64) -> Error {
    Error::new(Kind::Damaged, format!("objects of version {version} are missing"))
}

impl VersionFiles {
    /// Lists the files of a complete version and compares their number with what each rank said.
    pub(crate) fn list(stream: &Stream, version: u64) -> Result<VersionFiles> {
        let dir = stream.version_dir(version);
        let owner = stream.df.owner_of(version).ok_or_else(|| missing_objects(version))?;
        let listing = |e| Error::io(format!("list {}", dir.display()), e);
        let mut entries = Vec::new();
        for item in fs::read_dir(&dir).map_err(listing)? {
            let file = item.map_err(listing)?.file_name().to_string_lossy().into_owned();
            if let Some((rank, index, _)) = parse_object_file(&file).filter(|(rank, ..)| *rank < owner.size) {
                entries.push(Entry { rank, index, file, header: None, verified: false });
            }
        }
        entries.sort_unstable_by_key(|e| (e.rank, e.index));
        for rank in 0..owner.size {
            let done = stream.done(version, rank, owner.number)?.ok_or_else(|| missing_objects(version))?;
            // What an earlier start of the rank left behind lies beyond the number.
            entries.retain(|e| e.rank != rank || e.index < done.objects);
            let found = entries.iter().filter(|e| e.rank == rank).count();
            if found != done.objects as usize {
                return Err(missing_objects(version)
                    .with("rank", rank)
                    .with("objects", done.objects)
                    .with("found", found));
            }
        }
        let mut by_shown: FxHashMap<String, Vec<usize>> = FxHashMap::default();
        for (i, entry) in entries.iter().enumerate() {
            if let Some((_, _, shown)) = parse_object_file(&entry.file) {
                by_shown.entry(shown.to_string()).or_default().push(i);
            }
        }
        let incarnation = owner.number;
        Ok(VersionFiles { dir, version, incarnation, entries, by_shown })
    }

    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Payload bytes of all objects.
    pub(crate) fn payload_bytes(&mut self) -> Result<u64> {
        (0..self.entries.len()).map(|i| Ok(self.header(i)?.0.payload_bytes)).sum()
    }

    /// Reads every object and compares it with its checksum; what is wrong goes into the report.
    pub(crate) fn verify_all(&mut self, report: &mut VerifyReport) {
        for entry in 0..self.entries.len() {
            report.records += 1;
            let mut variable = None;
            let read = self.header(entry).and_then(|(object, file)| {
                variable = Some(object.name.clone());
                let unchecked = object.payload_crc.is_none();
                let bytes = object.payload_bytes;
                self.payload(&Found { entry, object, file }, Verify::Always)?;
                report.bytes += bytes;
                report.unchecked_bytes += if unchecked { bytes } else { 0 };
                Ok(())
            });
            if let Err(e) = read {
                let (version, rank) = (Some(self.version), self.entries[entry].rank);
                report.damaged.push(Damage { version, rank, variable, offset: 0, what: e.to_string() });
            }
        }
    }

    fn path(&self, i: usize) -> PathBuf {
        self.dir.join(&self.entries[i].file)
    }

    fn open_file(&self, i: usize) -> Result<File> {
        let path = self.path(i);
        File::open(&path).map_err(|e| Error::io(format!("open {}", path.display()), e))
    }

    /// The header of a file, read and checked once; also the file when it was opened for that.
    fn header(&mut self, i: usize) -> Result<(Arc<Object>, Option<File>)> {
        if let Some(object) = &self.entries[i].header {
            return Ok((object.clone(), None));
        }
        let (path, file) = (self.path(i), self.open_file(i)?);
        let object = Arc::new(Object::read(&file, &path)?);
        let entry = &mut self.entries[i];
        let said = (object.version, object.incarnation, object.rank, object.index);
        if said != (self.version, self.incarnation, entry.rank, entry.index) {
            return Err(Error::new(Kind::Damaged, "an object file belongs to another version or rank")
                .with("file", path.display())
                .with("version", object.version)
                .with("rank", object.rank)
                .with("incarnation", object.incarnation));
        }
        entry.header = Some(object.clone());
        Ok((object, Some(file)))
    }

    /// All pieces of a variable, at least one. Errors: [`Kind::UnknownVariable`].
    fn find(&mut self, name: &str) -> Result<Vec<Found>> {
        let mut found = self.pieces_of(name)?;
        if found.is_empty() {
            return Err(self.unknown_variable(name));
        }
        place_concatenated(&mut found);
        Ok(found)
    }

    /// The pieces of a variable as they were put; none when the version does not hold it.
    fn pieces_of(&mut self, name: &str) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in self.by_shown.get(&shown(name)).cloned().unwrap_or_default() {
            let (object, file) = self.header(entry)?;
            if object.name == name {
                let file = file.filter(|_| found.len() < FILES_OPEN_MAX);
                found.push(Found { entry, object, file });
            }
        }
        Ok(found)
    }

    /// Names of all variables that users put, each once, in the order of their first piece. Reads every header.
    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        let mut seen = rustc_hash::FxHashSet::default();
        let mut names = Vec::new();
        for i in 0..self.entries.len() {
            let (object, _) = self.header(i)?;
            if !is_reserved(object.name.as_bytes()) && seen.insert(object.name.clone()) {
                names.push(object.name.clone());
            }
        }
        Ok(names)
    }

    #[cold]
    fn unknown_variable(&mut self, name: &str) -> Error {
        let error =
            Error::new(Kind::UnknownVariable, format!("version {} has no variable {name}", self.version));
        let names = match self.names() {
            Ok(names) => names,
            Err(e) => return e,
        };
        match environment::did_you_mean(name, names.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None if names.is_empty() => error.hint("the version is empty"),
            None => {
                let some = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
                error.hint(format!("variables: {some}{}", if names.len() > NAMED_MAX { ", …" } else { "" }))
            }
        }
    }

    /// Dtype and shape that all pieces of a variable agree on.
    fn agreed(&self, name: &str, found: &[Found]) -> Result<(Dtype, Dims)> {
        let first = &found[0].object;
        match found.iter().find(|f| f.object.dtype != first.dtype || f.object.shape != first.shape) {
            None => Ok((first.dtype, first.shape.clone())),
            Some(other) => Err(Error::new(
                Kind::VariableMismatch,
                format!("ranks put {name} with different dtypes or shapes in version {}", self.version),
            )
            .with("rank", first.rank)
            .with("dtype", first.dtype)
            .with("shape", format_shape(&first.shape))
            .with("other_rank", other.object.rank)
            .with("other_dtype", other.object.dtype)
            .with("other_shape", format_shape(&other.object.shape))),
        }
    }

    fn describe(&mut self, name: &str) -> Result<VariableInfo> {
        let found = self.find(name)?;
        let (dtype, shape) = self.agreed(name, &found)?;
        let piece = |f: &Found| PieceInfo {
            rank: f.object.rank,
            start: f.object.part.start.to_vec(),
            count: f.object.part.count.to_vec(),
            bytes: f.object.payload_bytes,
        };
        let (pieces, description) = (found.iter().map(piece).collect(), Description::default());
        Ok(VariableInfo { name: name.to_string(), dtype, shape: shape.to_vec(), description, pieces })
    }

    /// Pieces, dtype and the box that is meant, checked against the shape.
    fn target(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<(Vec<Found>, Dtype, NdBox)> {
        let found = self.find(name)?;
        let (dtype, shape) = self.agreed(name, &found)?;
        let target = match wanted {
            None => NdBox::whole(&shape),
            Some(wanted) => {
                wanted.check_inside(name, &shape)?;
                wanted.clone()
            }
        };
        Ok((found, dtype, target))
    }

    fn gather(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, out: &mut [u8]) -> Result<()> {
        let (found, dtype, target) = self.target(name, wanted)?;
        let bytes = target.bytes(dtype.size())?;
        if bytes != out.len() {
            return Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the box")
                .with("variable", name)
                .with("buffer_bytes", out.len())
                .with("box_bytes", bytes));
        }
        for piece in &found {
            if let Some(range) = contiguous_range(&piece.object.part, &target, dtype.size()) {
                return self.read_range(piece, range, verify, out);
            }
        }
        if let Some(gap) = coverage_gap(&target, found.iter().map(|f| &f.object.part)) {
            return Err(Error::new(
                Kind::BoxNotCovered,
                format!("the pieces of {name} in version {} do not cover the box", self.version),
            )
            .with("box", &target)
            .with("uncovered", gap)
            .with("pieces", found.len())
            .hint("every element of the box must be put by some rank; `forebay cat NAME --json` lists the pieces"));
        }
        for piece in &found {
            if piece.object.part.intersect(&target).is_some() {
                let payload = self.payload(piece, verify)?;
                copy_overlap(&piece.object.part, &payload, &target, out, dtype.size())?;
            }
        }
        Ok(())
    }

    /// Reads a range of a piece straight to `out`, unless the whole piece must be read for its checksum.
    fn read_range(
        &mut self,
        piece: &Found,
        range: Range<usize>,
        verify: Verify,
        out: &mut [u8],
    ) -> Result<()> {
        let whole = range.len() as u64 == piece.object.payload_bytes;
        if !whole && self.must_verify(piece, verify) {
            out.copy_from_slice(&self.payload(piece, verify)?[range]);
            return Ok(());
        }
        self.read_at(piece, range.start, out)?;
        if whole {
            self.check(piece, verify, out)?;
        }
        Ok(())
    }

    /// All bytes of a piece, verified as asked for.
    fn payload(&mut self, piece: &Found, verify: Verify) -> Result<Vec<u8>> {
        let mut bytes = vec![0; piece.object.payload_bytes as usize];
        self.read_at(piece, 0, &mut bytes)?;
        self.check(piece, verify, &bytes)?;
        Ok(bytes)
    }

    fn read_at(&self, piece: &Found, from: usize, out: &mut [u8]) -> Result<()> {
        let opened;
        let file = match &piece.file {
            Some(file) => file,
            None => {
                opened = self.open_file(piece.entry)?;
                &opened
            }
        };
        let at = piece.object.payload_offset() + from as u64;
        file.read_exact_at(out, at).map_err(|e| {
            if e.kind() == std::io::ErrorKind::UnexpectedEof {
                return Error::new(Kind::Damaged, "an object file was cut off")
                    .with("file", self.path(piece.entry).display());
            }
            Error::io(format!("read {}", self.path(piece.entry).display()), e)
        })
    }

    fn must_verify(&self, piece: &Found, verify: Verify) -> bool {
        let pending = match verify {
            Verify::Never => false,
            Verify::Always => true,
            Verify::First => !self.entries[piece.entry].verified,
        };
        pending && piece.object.payload_crc.is_some()
    }

    fn check(&mut self, piece: &Found, verify: Verify, payload: &[u8]) -> Result<()> {
        if self.must_verify(piece, verify) {
            piece.object.verify(payload, &self.path(piece.entry))?;
            self.entries[piece.entry].verified = true;
        }
        Ok(())
    }

    fn view(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify) -> Result<View> {
        let (found, dtype, target) = self.target(name, wanted)?;
        for piece in &found {
            let Some(range) = contiguous_range(&piece.object.part, &target, dtype.size()) else { continue };
            let mut bytes = vec![0; range.len()];
            self.read_range(piece, range, verify, &mut bytes)?;
            return Ok(View::of_heap(bytes, dtype, target.count, self.version));
        }
        Err(Error::new(
            Kind::NotContiguous,
            format!("the box of {name} is not one contiguous range of one piece"),
        )
        .with("box", &target)
        .with("pieces", found.len())
        .hint("use get, which gathers it with one copy"))
    }
}
