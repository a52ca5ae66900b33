//! The steps of a reader: waiting for versions, opening them in order or one by one, what is read from the open one.
//!
//! Guarantees: a stream shows each version once, in order, or counts it as missed; with `latest` it goes on at the
//! newest one. After an error of `begin_step` no step is open. Not here: how a kind of channel looks at, holds and
//! reads a version ([`VersionSource`], [`Contents`]).

use forebay_config::{environment, ExecutionMode, Verify};
use forebay_log::{Dims, Dtype, NdBox};
use forebay_tier::host::time::Instant;
use forebay_tier::{clock, counters, Error, Kind, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{leave, step_open, Account, Channel, Deadline};
use crate::attributes::{self, Attribute};
use crate::lane::index::VariableInfo;
use crate::lane::view::View;
use crate::many::at_object;
use crate::open::opening::{self, Writers};
use crate::stats::{CallTimer, Counters, Stats};
use crate::trace::{Side, Trace, TraceHead};
use crate::version_range::format_versions;

/// Missing writers that an error names.
const NAMED_MAX: usize = 8;

/// Where a reader that has joined begins.
pub(crate) struct Start {
    /// Next version of the stream.
    pub(crate) next: u64,
    /// The version below which this rank had read all before it came.
    pub(crate) read_below: u64,
    /// Whether it takes part in the stream. If not, its writers had ended before it came, and it waits for others.
    pub(crate) is_streaming: bool,
}

/// What came of looking for writers.
pub(crate) enum Rejoined {
    Joined(Start),
    /// No writers have come; this is how the earlier ones stand.
    No(Writers),
}

/// The reader's side of one kind of channel.
pub(crate) trait VersionSource: Channel + Sized {
    /// A version that is held and can be read.
    type Open: Contents;

    /// [`Kind::ForkedHandle`]; [`Kind::Damaged`] where what the processes share is lost.
    fn check(&self) -> Result<()> {
        self.handle().check_fork()
    }

    /// The first version that was not dropped.
    fn oldest(&self) -> Result<u64>;

    /// Number of versions that were completed: the first one that is not.
    fn complete(&self) -> Result<u64>;

    /// The complete versions that are retained.
    fn versions(&self) -> Result<Range<u64>> {
        let complete = self.complete()?;
        Ok(self.oldest()?.min(complete)..complete)
    }

    /// Adds to an error what decides how long versions stay.
    fn with_retention(&self, error: Error) -> Error;

    /// Whom `version` waits for, in words.
    fn missing(&self, version: u64) -> Vec<String>;

    /// Joins again if there are writers now, for a reader that came after the writers had ended.
    fn rejoin(&mut self, until: &Deadline) -> Result<Rejoined>;

    /// Whether a look would say so without a wait.
    #[inline]
    fn is_ready(&self, _version: u64) -> bool {
        false
    }

    /// Whether `version` is complete and may be read, or was dropped since; false: the writers have ended before it;
    /// None: not yet. Errors: [`Kind::ProducerDied`], [`Kind::PeerMissing`].
    fn look(&mut self, version: u64, until: &mut Deadline) -> Result<Option<bool>>;

    /// Of a stream that stands at `next`: the first version from there that was not dropped, and the one to go on
    /// with; None: it does not exist yet.
    fn choose(&mut self, next: u64) -> Result<(u64, Option<u64>)>;

    /// This reader saw the end of the stream, `next` being the first version that is not there.
    fn note_ended(&mut self, next: u64) -> Result<()>;

    /// The same channel as it is now, for a handle of one version.
    fn for_one_version(&mut self) -> Result<Self>;

    /// Takes over what a handle of one version has found out.
    fn learn(&mut self, _opened: &mut Self) {}

    /// Holds a complete version and opens it; None: it was dropped.
    fn open(&mut self, version: u64) -> Result<Option<Self::Open>>;

    /// Releases the open version and, in a stream, everything below `next`. After an error the step is open still
    /// where `open` is not taken. Returns the time that it took, where it is worth counting.
    fn release(&mut self, open: &mut Option<Self::Open>, next: Option<u64>, done: Counters) -> Result<u64>;

    /// An error of a read in words that say why.
    fn explained(&self, _version: u64, error: Error) -> Error {
        error
    }

    /// This rank does not come again.
    fn leave_group(&mut self, is_streaming: bool) -> Result<()>;

    /// Leaves the channel.
    fn close(&mut self, done: Counters) -> Result<()>;
}

/// What is in an open version.
pub(crate) trait Contents {
    fn version(&self) -> u64;

    /// Whether it holds a variable of this name.
    fn has(&mut self, name: &str) -> Result<bool>;

    /// All names, in the order of their first pieces.
    fn names(&mut self) -> Result<Vec<String>>;

    fn describe(&mut self, name: &str) -> Result<VariableInfo>;

    /// Dtype and global shape.
    fn array(&mut self, name: &str) -> Result<(Dtype, Dims)>;

    /// Copies a box to `out`, which must have exactly its bytes.
    fn gather(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, out: &mut [u8]) -> Result<()>;

    /// Shows a whole variable where it lies; its bytes and what `look` said of it. None: it cannot be shown so.
    #[inline]
    fn show<R>(
        &mut self,
        _name: &str,
        _bytes_max: usize,
        _verify: Verify,
        _look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<(u64, R)>> {
        Ok(None)
    }

    /// A box as a view, and the time that the call, the `nth` of its handle, stands for.
    fn view(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, nth: u64) -> Result<(View, u64)>;
}

/// One rank that reads a channel.
pub(crate) struct StepReader<S: VersionSource> {
    pub(crate) source: S,
    stream: Start,
    current: Option<S::Open>,
    /// A handle of one version: its stream is that version, which is open already.
    is_of_one_version: bool,
    /// Whether it has said that it waits for writers.
    has_said: bool,
    account: Account,
    /// Versions that were dropped before this reader came to them, behind the version before.
    missed: u64,
    closed: bool,
}

/// What is said of a version behind the end of the stream.
const NO_FURTHER: &str = "all writers have closed; no further version will come";

impl<S: VersionSource> StepReader<S> {
    /// A rank that has joined the channel, which its caller calls `name`.
    pub(crate) fn new(source: S, name: &str, stream: Start) -> StepReader<S> {
        let mut reader = StepReader::untraced(source, stream);
        let options = &reader.source.handle().options;
        if !options.observer {
            let head = TraceHead::new(Side::Reader, name, options);
            reader.account.trace = Trace::from_environment(&head, &environment::process);
        }
        reader
    }

    fn untraced(source: S, stream: Start) -> StepReader<S> {
        let (account, is_of_one_version, has_said) = (Account::default(), false, false);
        let (current, missed, closed) = (None, 0, false);
        StepReader { source, stream, current, is_of_one_version, has_said, account, missed, closed }
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.current.as_ref().map(S::Open::version)
    }

    pub(crate) fn latest(&self) -> Result<Option<u64>> {
        let versions = self.source.versions()?;
        Ok((!versions.is_empty()).then(|| versions.end - 1))
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.closed {
            true => Err(self.source.handle().closed()),
            false => self.source.check(),
        }
    }

    /// The version that is open.
    pub(crate) fn current(&self) -> Result<&S::Open> {
        self.current.as_ref().ok_or_else(|| self.no_step())
    }

    #[cold]
    fn no_step(&self) -> Error {
        match self.closed {
            true => self.source.handle().closed(),
            false => Error::new(Kind::StepState, "no step is open")
                .hint("call begin_step to begin reading a version"),
        }
    }

    fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline::new(timeout.unwrap_or(self.source.handle().options.timeout))
    }

    pub(crate) fn begin_step(&mut self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.check()?;
        if self.current.is_some() {
            return Err(step_open("call end_step first"));
        }
        if self.is_of_one_version {
            return Ok(None);
        }
        self.account.begin();
        let mut until = self.deadline(timeout);
        self.begin_until(&mut until).inspect_err(|e| self.account.note_late(e))
    }

    fn begin_until(&mut self, until: &mut Deadline) -> Result<Option<u64>> {
        self.wait_for_writers(until)?;
        let mut wanted = self.stream.next;
        loop {
            if !self.wait_ready(wanted, until)? {
                self.skip_dropped(self.source.oldest()?);
                self.source.note_ended(self.stream.next)?;
                return Ok(None);
            }
            let (oldest, chosen) = self.source.choose(self.stream.next)?;
            wanted = chosen.unwrap_or(oldest);
            let Some(version) = chosen else { continue };
            if self.enter(version)? {
                self.skip_dropped(oldest);
                self.account.stats.skipped += version - oldest;
                self.account.times.ready_ns = clock::now_ns();
                return Ok(Some(version));
            }
            // It was dropped between the look and the hold.
            if Instant::now() >= until.at {
                return Err(self.dropped_too_fast(version));
            }
        }
    }

    /// Waits for writers, where those of the channel had ended before this reader came, and then streams what they
    /// write.
    fn wait_for_writers(&mut self, until: &Deadline) -> Result<()> {
        while !self.stream.is_streaming {
            let writers = match self.source.rejoin(until)? {
                Rejoined::Joined(stream) => {
                    self.stream = stream;
                    continue;
                }
                Rejoined::No(writers) => writers,
            };
            let what = self.source.handle().what();
            if !std::mem::replace(&mut self.has_said, true) {
                opening::say_left_behind(&what, writers);
            }
            let left = until.left();
            if left.is_zero() {
                return Err(opening::no_writers(&what, writers));
            }
            self.source.pause(left);
        }
        Ok(())
    }

    /// Waits until `version` is complete and may be read. False: it can no longer become so.
    fn wait_ready(&mut self, version: u64, until: &mut Deadline) -> Result<bool> {
        if self.source.is_ready(version) {
            return Ok(true);
        }
        let look = |source: &mut S, until: &mut Deadline| source.look(version, until);
        self.account.wait(&mut self.source, version, until, look, |source| not_in_time(source, version))
    }

    /// Goes on at `oldest`, counting what this reader missed: what it ended before it came again it did not.
    fn skip_dropped(&mut self, oldest: u64) {
        let next = self.stream.next;
        self.missed = oldest.saturating_sub(next.max(self.stream.read_below));
        self.account.stats.dropped += self.missed;
        self.account.stats.skipped += oldest.saturating_sub(next);
        self.stream.next = next.max(oldest);
    }

    /// Opens a version. False: it was dropped.
    fn enter(&mut self, version: u64) -> Result<bool> {
        let timer = CallTimer::start(usize::MAX, 0);
        self.current = self.source.open(version).map_err(|e| self.source.explained(version, e))?;
        if self.current.is_some() {
            self.note_call(timer.stop(), 0);
        }
        Ok(self.current.is_some())
    }

    #[inline]
    fn note_call(&mut self, op_ns: u64, bytes: u64) {
        let Account { stats, times, .. } = &mut self.account;
        stats.get_ns += op_ns;
        stats.bytes_got += bytes;
        times.op_ns += op_ns;
        times.bytes += bytes;
        times.calls += 1;
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.check()?;
        let version = self.current()?.version();
        let next = (!self.is_of_one_version).then_some(version + 1);
        let mut done = self.account.stats.got();
        done.steps += u64::from(next.is_some());
        let released = self.source.release(&mut self.current, next, done);
        if let Some(next) = next.filter(|_| self.current.is_none()) {
            self.stream.next = next;
            self.account.stats.steps += 1;
        }
        let op_ns = released?;
        self.account.stats.get_ns += op_ns;
        self.account.times.op_ns += op_ns;
        self.account.end(version);
        Ok(())
    }

    pub(crate) fn wait(&mut self, version: u64, timeout: Option<Duration>) -> Result<()> {
        self.check()?;
        let mut until = self.deadline(timeout);
        self.wait_for_writers(&until)?;
        if !self.wait_ready(version, &mut until)? {
            return Err(Error::new(
                Kind::PeerMissing,
                format!("{} ended before version {version}", self.source.handle().what()),
            )
            .with("complete_versions", self.source.complete()?)
            .hint(NO_FURTHER));
        }
        match version < self.source.oldest()? {
            true => Err(gone(&self.source, version)),
            false => Ok(()),
        }
    }

    /// A handle of its own at `version`.
    pub(crate) fn open_version(&mut self, version: u64) -> Result<StepReader<S>> {
        self.check()?;
        let source = self.source.for_one_version()?;
        let mut opened = StepReader::untraced(source, Start { next: 0, read_below: 0, is_streaming: true });
        opened.is_of_one_version = true;
        let complete = opened.source.complete()?;
        if version >= complete {
            let seen = opened.source.look(version, &mut Deadline::new(Duration::ZERO));
            let hint = match seen {
                Ok(Some(false)) => NO_FURTHER,
                _ => "wait() blocks until it is",
            };
            return Err(Error::new(Kind::TimedOut, format!("version {version} is not complete"))
                .with("complete_versions", complete)
                .hint(hint));
        }
        if !opened.enter(version)? {
            return Err(gone(&self.source, version));
        }
        self.source.learn(&mut opened.source);
        Ok(opened)
    }

    #[cold]
    fn dropped_too_fast(&self, version: u64) -> Error {
        dropped(&self.source, Kind::TimedOut, version, " while it was being opened").hint(
            "create the channel with a larger quota, or with when_full=\"block\", so that writers wait for readers",
        )
    }
}

#[cold]
fn not_in_time(source: &impl VersionSource, version: u64) -> Error {
    let (what, complete) = (source.handle().what(), source.complete().unwrap_or(0));
    if complete > version {
        return Error::new(
            Kind::TimedOut,
            format!("timeout while waiting for the writers of {what} to end (mode serial)"),
        )
        .with("execution_mode", ExecutionMode::Serial)
        .with("complete_versions", complete)
        .hint(
            "in mode serial readers begin when all writers have ended: start the readers later, or raise the \
             timeout",
        );
    }
    let missing = source.missing(version);
    let mut shown = missing[..missing.len().min(NAMED_MAX)].join("; ");
    if missing.len() > NAMED_MAX {
        shown.push_str(&format!("; and {} more", missing.len() - NAMED_MAX));
    }
    Error::new(Kind::TimedOut, format!("timeout while waiting for version {version} of {what} to complete"))
        .with("missing", shown)
        .with("complete_versions", complete)
        .hint("check that the missing writer is running; raise the timeout of open or begin_step if it is only slow")
}

/// What is said of a version that is not there any more.
fn dropped(source: &impl VersionSource, kind: Kind, version: u64, when: &str) -> Error {
    let what = source.handle().what();
    let error = Error::new(kind, format!("version {version} of {what} was dropped{when}"))
        .with("retained", format_versions(source.versions().unwrap_or_default()));
    source.with_retention(error)
}

/// The error for a version that was dropped.
#[cold]
pub(crate) fn gone(source: &impl VersionSource, version: u64) -> Error {
    dropped(source, Kind::VersionGone, version, "")
        .hint("open the reader earlier, or keep more versions: retention=\"last:K\" or \"forever\"")
}

/// The box that is meant, checked against the shape.
pub(crate) fn target_box(name: &str, wanted: Option<&NdBox>, shape: &[u64]) -> Result<NdBox> {
    match wanted {
        None => Ok(NdBox::whole(shape)),
        Some(wanted) => {
            wanted.check_inside(name, shape)?;
            Ok(wanted.clone())
        }
    }
}

/// [`Kind::BufferMismatch`] unless a buffer is as long as its box.
pub(crate) fn check_buffer(name: &str, target: &NdBox, dtype: Dtype, buffer: &[u8]) -> Result<()> {
    let bytes = target.bytes(dtype.size())?;
    if bytes == buffer.len() {
        return Ok(());
    }
    Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the box")
        .with("variable", name)
        .with("buffer_bytes", buffer.len())
        .with("box_bytes", bytes))
}

/// The error for a view of a box that has to be gathered.
#[cold]
pub(crate) fn not_contiguous(name: &str, target: &NdBox, pieces: usize) -> Error {
    Error::new(Kind::NotContiguous, format!("the box of {name} is not one contiguous range of one piece"))
        .with("box", target)
        .with("pieces", pieces)
        .hint("use get, which gathers it with one copy")
}

/// Reading the open version.
impl<S: VersionSource> StepReader<S> {
    /// Runs `f` on the open version.
    #[inline]
    pub(crate) fn inside<T>(&mut self, f: impl FnOnce(&mut S::Open, Verify) -> Result<T>) -> Result<T> {
        let verify = self.source.handle().options.verify;
        let Some(open) = &mut self.current else { return Err(self.no_step()) };
        f(open, verify).map_err(|e| self.source.explained(open.version(), e))
    }

    /// Whether the open version holds a variable of this name.
    pub(crate) fn has(&mut self, name: &str) -> Result<bool> {
        self.check()?;
        self.inside(|open, _| open.has(name))
    }

    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        self.check()?;
        self.inside(|open, _| open.names())
    }

    pub(crate) fn variables(&mut self) -> Result<Vec<VariableInfo>> {
        self.check()?;
        self.inside(|open, _| open.names()?.iter().map(|name| open.describe(name)).collect())
    }

    pub(crate) fn variable(&mut self, name: &str) -> Result<VariableInfo> {
        self.check()?;
        self.inside(|open, _| open.describe(name))
    }

    /// Dtype and global shape of a variable.
    #[inline]
    pub(crate) fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        self.source.handle().check_fork()?;
        self.inside(|open, _| open.array(name))
    }

    /// Copies a box of the open version to `out`, which has exactly its bytes.
    #[inline]
    pub(crate) fn get(&mut self, name: &str, wanted: Option<&NdBox>, out: &mut [u8]) -> Result<()> {
        self.source.handle().check_fork()?;
        self.account.calls += 1;
        self.account.go_in(&mut self.source)?;
        let timer = CallTimer::start(out.len(), self.account.calls);
        let got = self.inside(|open, verify| open.gather(name, wanted, verify, out));
        leave(&mut self.source);
        got?;
        self.account.stats.gets += 1;
        self.account.times.objects += 1;
        self.note_copied(out.len() as u64);
        self.note_call(timer.stop(), out.len() as u64);
        Ok(())
    }

    /// Counts bytes copied out, for this handle and for the process.
    #[inline]
    fn note_copied(&mut self, bytes: u64) {
        self.account.stats.bytes_copied += bytes;
        counters::add_bytes_copied(bytes);
    }

    /// See [`crate::Reader::get_each`].
    pub(crate) fn get_each<'a>(
        &mut self,
        objects: impl Iterator<Item = (&'a str, &'a mut [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        self.each(objects, done, |open, verify, i, (name, out)| {
            open.gather(name, None, verify, out).map_err(|e| at_object(e, i, name))?;
            Ok(Some(out.len() as u64))
        })
    }

    /// Takes one object after the other, what a call costs being paid once. `take` gets the number of the object, and
    /// says how many bytes it was, or None to end before it; `done` rises by one with each that was taken.
    fn each<T>(
        &mut self,
        objects: impl Iterator<Item = T>,
        done: &mut usize,
        mut take: impl FnMut(&mut S::Open, Verify, usize, T) -> Result<Option<u64>>,
    ) -> Result<()> {
        self.source.handle().check_fork()?;
        self.current()?;
        self.account.go_in(&mut self.source)?;
        let timer = CallTimer::start(usize::MAX, 0);
        let (before, mut bytes) = (*done, 0);
        let result = self.inside(|open, verify| {
            for object in objects {
                let Some(of_this) = take(open, verify, *done, object)? else { break };
                bytes += of_this;
                *done += 1;
            }
            Ok(())
        });
        leave(&mut self.source);
        self.account.stats.gets += (*done - before) as u64;
        self.account.times.objects += (*done - before) as u64;
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
        self.source.handle().check_fork()?;
        self.account.go_in(&mut self.source)?;
        self.account.calls += 1;
        let timer = CallTimer::start(0, self.account.calls);
        let shown = self.inside(|open, verify| open.show(name, bytes_max, verify, look));
        let looked = shown.map(|shown| {
            let (bytes, looked) = shown?;
            self.account.stats.gets += 1;
            self.account.times.objects += 1;
            self.note_copied(bytes);
            self.note_call(timer.stop(), bytes);
            Some(looked)
        });
        leave(&mut self.source);
        looked
    }

    /// See [`crate::Reader::with_each`].
    pub(crate) fn with_each<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        bytes_max: usize,
        mut look: impl FnMut(usize, Dtype, &[u64], &[u8]) -> bool,
        done: &mut usize,
    ) -> Result<()> {
        self.each(names, done, |open, verify, i, name| {
            let shown = open.show(name, bytes_max, verify, |dtype, shape, part| look(i, dtype, shape, part));
            let shown = shown.map_err(|e| at_object(e, i, name))?;
            Ok(shown.and_then(|(bytes, took)| took.then_some(bytes)))
        })
    }

    /// Inside the admission limit while the checksums are compared, which reads everything once; not while the
    /// program looks.
    pub(crate) fn view(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<View> {
        self.source.handle().check_fork()?;
        self.account.go_in(&mut self.source)?;
        self.account.calls += 1;
        let nth = self.account.calls;
        let viewed = self.inside(|open, verify| open.view(name, wanted, verify, nth));
        leave(&mut self.source);
        let (view, op_ns) = viewed?;
        self.account.stats.views += 1;
        self.account.times.objects += 1;
        if view.is_copy() {
            self.note_copied(view.byte_count());
        }
        self.note_call(op_ns, view.byte_count());
        Ok(view)
    }
}

/// What belongs to the handle.
impl<S: VersionSource> StepReader<S> {
    pub(crate) fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        self.check()?;
        attributes::read(&self.source.handle().dir)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.account.stats.clone()
    }

    /// See [`crate::Reader::missed`].
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Leaves its group for good.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.check()?;
        self.current = None;
        let left = match self.is_of_one_version {
            true => Ok(()),
            // While it is a member: of a group without live ranks the place in the table may become another one's.
            false => self.source.leave_group(self.stream.is_streaming),
        };
        self.close()?;
        left
    }

    /// Leaves: holds nothing more, except for views that are still alive.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        self.source.handle().check_fork()?;
        self.current = None;
        self.closed = true;
        let left = self.source.close(self.account.stats.got());
        // Dropping it writes what is left.
        self.account.trace = None;
        left
    }
}

impl<S: VersionSource> Drop for StepReader<S> {
    fn drop(&mut self) {
        // In a forked child there is nothing to release.
        let _ = self.close();
    }
}
