//! The reader's side of the file-per-object channel.
//!
//! One [`FilesSource`] is one rank of a reader group. Guarantees: what it reads of a version is what the
//! writers of the incarnation that owns it wrote, or an error: missing, cut off, changed or foreign files are
//! `Damaged`, files that went with a dropped version are `VersionGone`. Headers are read when a variable is
//! asked for, not before. Not here: what may be called when, and what a step counts ([`crate::step::reader`]); waiting
//! without looking (files have no wake-up).

use super::object::Object;
use super::readers::ReaderDf;
use super::stream::{Pauses, Producers, Stream};
use super::write::unless_removed;
use super::{parse_object_file, shown};
use crate::description::{is_reserved, Description};
use crate::lane::index::{self, PieceInfo, VariableInfo};
use crate::lane::view::View;
use crate::open::channel::explained;
use crate::open::opening::Writers;
use crate::place::name;
use crate::stats::{CallTimer, Counters};
use crate::step::reader::{
    check_buffer, gone, not_contiguous, target_box, Contents, Rejoined, Start, StepReader, VersionSource,
};
use crate::step::{Channel, Deadline, Handle};
use forebay_config::{ExecutionMode, OpenOptions, Retention, Verify};
use forebay_log::gather::{contiguous_range, copy_overlap, coverage_gap};
use forebay_log::nd_box::{concatenate, NdBox, CONCAT};
use forebay_log::verify::Damage;
use forebay_log::verify::Report as VerifyReport;
use forebay_log::{Dims, Dtype};
use forebay_tier::host::fs::{self, File};
use forebay_tier::liveness::SlotGuard;
use forebay_tier::{Error, Kind, Result};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Files that one call keeps open between reading headers and payloads.
const FILES_OPEN_MAX: usize = 64;

/// One rank that reads a file-per-object channel.
pub(crate) type FilesReader = StepReader<FilesSource>;

/// What a reader knows of a channel.
pub(crate) struct FilesSource {
    pub(crate) handle: Handle,
    stream: Stream,
    me: ReaderDf,
    /// None once it is closed.
    slot: Option<SlotGuard>,
    pauses: Pauses,
    /// Complete versions, as long as the execution mode keeps this reader from them.
    known: u64,
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

impl FilesReader {
    /// Waits for the channel and joins its readers. `options` are resolved.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<FilesReader> {
        let (source, is_streaming) = FilesSource::open_at(name, &name::directory(name)?, options)?;
        let start = source.start(is_streaming);
        Ok(StepReader::new(source, name, start))
    }
}

impl FilesSource {
    /// Also whether it takes part in the stream.
    fn open_at(name: &str, dir: &Path, options: &OpenOptions) -> Result<(FilesSource, bool)> {
        let (until, mut pauses) = (Deadline::new(options.timeout), Pauses::new());
        let (stream, me, slot, is_streaming) = loop {
            let joined = Self::try_join(name, dir, options);
            if let Some(joined) = joined.map_err(|e| explained(name, dir, e))? {
                break joined;
            }
            if options.observer || !pauses.wait(&until) {
                let what = match options.observer {
                    true => format!("channel {name} does not exist"),
                    false => format!("timeout while waiting for channel {name} to be created"),
                };
                return Err(Error::new(Kind::PeerMissing, what).with("directory", dir.display()).hint(
                    "check that its writer runs on this host, as this user, with the same FOREBAY_DIR",
                ));
            }
        };
        let handle = Handle::new(("reader", "channel"), name, dir, options.clone());
        let source = FilesSource { handle, stream, me, slot: Some(slot), pauses: Pauses::new(), known: 0 };
        Ok((source, is_streaming))
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

    pub(crate) fn uuid(&self) -> String {
        self.stream.df.uuid.clone()
    }

    /// Changes what is known of this reader, under the lock of the channel, to `me`; not when `f` fails.
    fn change(&mut self, me: ReaderDf, f: impl FnOnce(&mut Stream) -> Result<()>) -> Result<()> {
        self.stream.locked(self.handle.options.timeout, |stream| {
            stream.write_reader(&me)?;
            f(stream)
        })?;
        self.me = me;
        Ok(())
    }

    fn start(&self, is_streaming: bool) -> Start {
        Start { next: self.me.cursor, read_below: self.me.read_below, is_streaming }
    }

    /// Whether the execution mode keeps readers from what is complete.
    fn is_serial(&self) -> bool {
        self.handle.options.execution_mode == Some(ExecutionMode::Serial) && !self.handle.options.observer
    }

    fn was_passed(&self, version: u64) -> Result<bool> {
        Ok(self.stream.is_complete(version)? || self.stream.oldest()? > version)
    }

    /// The newest version, or the one that another rank of the group found before.
    fn newest(&mut self, from: u64) -> Result<Option<u64>> {
        let group = self.handle.options.component.clone().unwrap_or_default();
        let observer = self.handle.options.observer;
        self.stream.locked(self.handle.options.timeout, |stream| match observer {
            true => Ok(stream.complete_count()?.checked_sub(1).filter(|version| *version >= from)),
            false => stream.choose_latest(&group, from),
        })
    }

    /// True when this reader's cursor alone keeps the versions of its stream.
    fn is_guarded_by_cursor(&self) -> bool {
        !self.me.observer && !matches!(self.stream.df.retention, Retention::Last(_))
    }

    /// Keeps a version from being dropped; false when it was dropped already.
    fn hold(&mut self, version: u64) -> Result<bool> {
        let mut me = self.me.clone();
        me.lease = Some(version);
        let held = self.stream.locked(self.handle.options.timeout, |stream| {
            let is_there = stream.oldest()? <= version;
            if is_there {
                stream.write_reader(&me)?;
            }
            Ok(is_there)
        })?;
        if held {
            self.me = me;
        }
        Ok(held)
    }
}

impl Channel for FilesSource {
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn note_waiting(&mut self, version: Option<u64>) -> Result<()> {
        self.pauses = Pauses::new();
        if version.is_some() && self.is_serial() {
            self.known = self.stream.complete_count()?;
        }
        Ok(())
    }

    fn pause(&mut self, left: Duration) {
        self.pauses.sleep(left);
    }
}

impl VersionSource for FilesSource {
    type Open = VersionFiles;

    fn oldest(&self) -> Result<u64> {
        self.stream.oldest()
    }

    fn complete(&self) -> Result<u64> {
        self.stream.complete_count()
    }

    fn with_retention(&self, error: Error) -> Error {
        error.with("retention", self.stream.df.retention)
    }

    fn missing(&self, version: u64) -> Vec<String> {
        self.stream.missing_writers(version)
    }

    fn rejoin(&mut self, _until: &Deadline) -> Result<Rejoined> {
        let writers = unless_gone(self.stream.refresh().and_then(|()| self.stream.writers()))?;
        let is_streamed = unless_gone(self.stream.is_streamed(&self.handle.options))?;
        if writers.is_none() || is_streamed != Some(false) {
            if let Some((stream, me, slot, is_streaming)) =
                Self::try_join(&self.handle.name, &self.handle.dir, &self.handle.options)?
            {
                let (old, was) =
                    (std::mem::replace(&mut self.stream, stream), std::mem::replace(&mut self.me, me));
                if old.df.uuid == self.stream.df.uuid {
                    old.remove_reader(&was);
                }
                self.slot = Some(slot);
                return Ok(Rejoined::Joined(self.start(is_streaming)));
            }
        }
        Ok(Rejoined::No(writers.unwrap_or(Writers::Finished)))
    }

    fn look(&mut self, version: u64, until: &mut Deadline) -> Result<Option<bool>> {
        self.stream.refresh()?;
        if self.is_serial() && self.stream.producers()? == Producers::Open {
            let complete = self.stream.complete_count()?;
            if complete > std::mem::replace(&mut self.known, complete) {
                until.extend();
            }
            return Ok(None);
        }
        if self.was_passed(version)? {
            return Ok(Some(true));
        }
        let state = self.stream.producers()?;
        // What was committed between the first look and the end of the writers is seen by the second.
        if self.was_passed(version)? {
            return Ok(Some(true));
        }
        match state {
            Producers::Open => Ok(None),
            Producers::Finished => Ok(Some(false)),
            Producers::Died(rank) => Err(self.stream.producer_died(rank)),
        }
    }

    fn choose(&mut self, next: u64) -> Result<(u64, Option<u64>)> {
        let oldest = next.max(self.stream.oldest()?);
        let version = match self.handle.options.latest {
            true => self.newest(oldest)?,
            // The next one was just seen to be complete.
            false => (oldest == next || self.stream.is_complete(oldest)?).then_some(oldest),
        };
        Ok((oldest, version))
    }

    fn note_ended(&mut self, next: u64) -> Result<()> {
        let mut me = self.me.clone();
        (me.cursor, me.saw_end) = (next, true);
        self.change(me, |_| Ok(()))
    }

    /// An observer, which holds that version and nothing else.
    fn for_one_version(&mut self) -> Result<FilesSource> {
        let options = OpenOptions { observer: true, ..self.handle.options.clone() };
        Ok(Self::open_at(&self.stream.name, &self.stream.dir, &options)?.0)
    }

    fn open(&mut self, version: u64) -> Result<Option<VersionFiles>> {
        if !self.is_guarded_by_cursor() && !self.hold(version)? {
            return Ok(None);
        }
        VersionFiles::list(&self.stream, version).map(Some)
    }

    /// Drops what no reader needs any more, too.
    fn release(&mut self, open: &mut Option<VersionFiles>, next: Option<u64>, done: Counters) -> Result<u64> {
        let timer = CallTimer::start(usize::MAX, 0);
        let mut me = self.me.clone();
        (me.cursor, me.lease, me.done) = (next.unwrap_or(me.cursor), None, done);
        if (me.cursor, me.lease) != (self.me.cursor, self.me.lease) {
            self.change(me, |stream| {
                // What cannot be dropped now goes with the next step: this one is released.
                let _ = stream.reclaim();
                Ok(())
            })?;
        }
        *open = None;
        Ok(timer.stop())
    }

    /// The version may have been dropped meanwhile and its files with it.
    #[cold]
    fn explained(&self, version: u64, error: Error) -> Error {
        let is_of_files = matches!(error.kind(), Kind::Damaged | Kind::Io);
        match self.stream.oldest() {
            Ok(oldest) if is_of_files && oldest > version => gone(self, version),
            _ => error,
        }
    }

    /// Where its group was declared nothing is kept for this rank any more.
    fn leave_group(&mut self, is_streaming: bool) -> Result<()> {
        let is_waiting = !is_streaming && !self.handle.options.observer;
        let (group, rank) = (self.handle.options.component.clone().unwrap_or_default(), self.handle.rank());
        let mut me = self.me.clone();
        (me.lease, me.left) = (None, true);
        let left = self.stream.locked(self.handle.options.timeout, |stream| {
            // What was added since is unread.
            me.saw_end &= me.cursor >= stream.complete_count()?;
            stream.write_reader(&me)?;
            if is_waiting {
                stream.leave_unjoined(&group, rank)?;
            }
            Ok(())
        });
        if left.is_ok() {
            self.me = me;
        }
        left.or_else(unless_removed)
    }

    /// Where its group was declared its cursor holds what it has not ended.
    fn close(&mut self, done: Counters) -> Result<()> {
        let mut me = self.me.clone();
        (me.lease, me.ended, me.done) = (None, true, done);
        let left = self.stream.locked(self.handle.options.timeout, |stream| {
            if me.observer || stream.has_only_looked(&me)? {
                stream.remove_reader(&me);
            } else {
                stream.write_reader(&me)?;
            }
            stream.reclaim()
        });
        self.slot = None;
        left.and_then(|()| self.stream.remove_if_read(self.handle.options.timeout)).or_else(unless_removed)
    }
}

/// None: the channel was replaced or removed meanwhile, and there may be another one.
fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(e) if e.kind() == Kind::PeerMissing => Ok(None),
        result => result.map(Some),
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
            return Err(index::unknown_variable(name, self.version, &self.names()?));
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

    /// Dtype and shape that all pieces of a variable agree on.
    fn agreed(&self, name: &str, found: &[Found]) -> Result<(Dtype, Dims)> {
        let first = &found[0].object;
        match found.iter().find(|f| f.object.dtype != first.dtype || f.object.shape != first.shape) {
            None => Ok((first.dtype, first.shape.clone())),
            Some(Found { object: other, .. }) => Err(index::ranks_disagree(
                name,
                self.version,
                (first.rank, first.dtype, &first.shape),
                (other.rank, other.dtype, &other.shape),
            )),
        }
    }

    /// Pieces, dtype and the box that is meant, checked against the shape.
    fn target(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<(Vec<Found>, Dtype, NdBox)> {
        let found = self.find(name)?;
        let (dtype, shape) = self.agreed(name, &found)?;
        let target = target_box(name, wanted, &shape)?;
        Ok((found, dtype, target))
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
}

impl Contents for VersionFiles {
    fn version(&self) -> u64 {
        self.version
    }

    fn has(&mut self, name: &str) -> Result<bool> {
        Ok(!self.pieces_of(name)?.is_empty())
    }

    fn names(&mut self) -> Result<Vec<String>> {
        VersionFiles::names(self)
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

    fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        let found = self.find(name)?;
        self.agreed(name, &found)
    }

    fn gather(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, out: &mut [u8]) -> Result<()> {
        let (found, dtype, target) = self.target(name, wanted)?;
        check_buffer(name, &target, dtype, out)?;
        for piece in &found {
            if let Some(range) = contiguous_range(&piece.object.part, &target, dtype.size()) {
                return self.read_range(piece, range, verify, out);
            }
        }
        if let Some(gap) = coverage_gap(&target, found.iter().map(|f| &f.object.part)) {
            return Err(index::not_covered(name, self.version, &target, &gap, found.len()));
        }
        for piece in &found {
            if piece.object.part.intersect(&target).is_some() {
                let payload = self.payload(piece, verify)?;
                copy_overlap(&piece.object.part, &payload, &target, out, dtype.size())?;
            }
        }
        Ok(())
    }

    fn view(&mut self, name: &str, wanted: Option<&NdBox>, verify: Verify, _nth: u64) -> Result<(View, u64)> {
        let timer = CallTimer::start(usize::MAX, 0);
        let (found, dtype, target) = self.target(name, wanted)?;
        for piece in &found {
            let Some(range) = contiguous_range(&piece.object.part, &target, dtype.size()) else { continue };
            let mut bytes = vec![0; range.len()];
            self.read_range(piece, range, verify, &mut bytes)?;
            return Ok((View::of_heap(bytes, dtype, target.count, self.version), timer.stop()));
        }
        Err(not_contiguous(name, &target, found.len()))
    }
}
