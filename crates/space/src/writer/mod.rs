//! [`Writer`]: one rank that puts versions into a channel, whatever carries it.

pub(crate) mod produce;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{environment, Mechanism, OpenOptions};
use forebay_log::format::DIMS_MAX;
use forebay_log::{Dtype, Piece, CONCAT};
use forebay_tier::{Durability, Error, Kind, Result};

use crate::attributes::Attribute;
use crate::description::{self, Description, Descriptions, DESCRIPTIONS};
use crate::element::Element;
use crate::files::{self, FilesMemory, FilesWriter};
use crate::open::channel::is_stream;
use crate::open::create::attach;
use crate::open::existing::{decided, holder, refused_space};
use crate::open::opening::{refused, Refusal, Writers, Writing};
use crate::open::producers::writers_of;
use crate::part::{not_continued, part_name, without_part, WriterOfPart};
use crate::place::name;
use crate::stats::Stats;
use crate::step::writer::{Memory, Reserved};
use crate::writer::produce::SpaceWriter;

/// One producer rank of a channel.
///
/// A step is one version: [`Writer::begin_step`], any number of puts, [`Writer::end_step`]. The version becomes
/// visible to readers when every rank has ended it. A writer belongs to one thread at a time and to the process
/// that opened it: in a forked child every call gives [`crate::Kind::ForkedHandle`].
///
/// Dropping it between steps ends it cleanly, as [`Writer::close`] does. Dropping it in the middle of a step, as a
/// function does that returns an error, or while the thread is panicking, abandons it ([`Writer::abandon`]): readers
/// and the other ranks see a dead producer.
pub struct Writer {
    inner: Inner,
    /// Of a group with writers on other nodes.
    part: Option<Box<WriterOfPart>>,
    /// What this rank said in the open step.
    described: Descriptions,
    /// Whether some of it is not put yet.
    is_unsaid: bool,
}

enum Inner {
    Space(Box<SpaceWriter>),
    Files(Box<FilesWriter>),
}

/// Memory for a piece that the producer fills in place: the pool itself on byte-addressable tiers.
pub struct Reservation(Reserve);

enum Reserve {
    Pool(Reserved<forebay_log::Reserved>),
    Files(Reserved<FilesMemory>),
    /// The version is complete already; what is written here is dropped.
    Dropped(Vec<u8>),
}

impl Reservation {
    /// The payload's memory, as long as the box has bytes; its content is undefined until written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Reserve::Pool(reserved) => reserved.memory.as_mut_slice(),
            Reserve::Files(reserved) => reserved.memory.as_mut_slice(),
            Reserve::Dropped(bytes) => bytes,
        }
    }
}

macro_rules! either {
    ($self:expr, $w:ident => $e:expr) => {
        match $self {
            Inner::Space($w) => $e,
            Inner::Files($w) => $e,
        }
    };
}

impl Writer {
    /// Makes the channel `name` (a short name, or a path with a `/`) or joins the ranks that made it.
    ///
    /// Options that are not given come from `FOREBAY_CHANNEL_<NAME>`, the `FOREBAY_*` variables, the launcher's
    /// environment and the defaults, in this order. Does not wait for other ranks. The first segments are faulted
    /// in before it returns.
    ///
    /// # Errors
    /// `NameInUse` (a live process is this rank), `GroupMismatch`, `OptionMismatch`, `TierFull`, `SeveralNodes`,
    /// `PoolOwnedElsewhere`, `Damaged`, `UnknownFormat`, `UnknownEnvironment`, `BadName`, `PermissionDenied`.
    pub fn open(name: &str, options: &OpenOptions) -> Result<Writer> {
        Self::open_from(name, options, 0)
    }

    /// [`Writer::open`]; the first version of a space that it makes has the number `first_version`. For copies of
    /// other spaces.
    #[doc(hidden)]
    pub fn open_from(name: &str, options: &OpenOptions, first_version: u64) -> Result<Writer> {
        environment::check()?;
        // One set of options may open readers, too; a writer is always one of its group.
        let options = OpenOptions { observer: false, ..options.clone() };
        let (options, spread) = options.resolved_across_nodes(name, &environment::process)?;
        if let Some(part) = WriterOfPart::of(name, &options, spread)? {
            return Self::open_part(part, options);
        }
        let inner = match options.channel {
            Mechanism::Space => {
                Inner::Space(Box::new(SpaceWriter::open(name, options, first_version, None)?))
            }
            Mechanism::Files => Inner::Files(Box::new(FilesWriter::open(&options.place(name), &options)?)),
        };
        Ok(Writer { inner, part: None, described: Descriptions::default(), is_unsaid: false })
    }

    fn open_part(part: WriterOfPart, options: OpenOptions) -> Result<Writer> {
        let inner = SpaceWriter::open(&part_name(&part.name), part.options(options), 0, Some(&part))?;
        let (key, value) = part.attribute();
        let part = Some(Box::new(part));
        let inner = Inner::Space(Box::new(inner));
        let mut writer = Writer { inner, part, described: Descriptions::default(), is_unsaid: false };
        match writer.set_attribute(&key, &value) {
            Ok(()) => Ok(writer),
            Err(e) => {
                writer.abandon_because(&e.to_string());
                Err(e)
            }
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        let rank = || either!(&self.inner, w => w.sink.handle.rank());
        self.part.as_ref().map_or_else(rank, |part| part.rank)
    }

    /// Ranks of the group.
    pub fn size(&self) -> u32 {
        let size = || either!(&self.inner, w => w.sink.handle.size());
        self.part.as_ref().map_or_else(size, |part| part.size)
    }

    /// Which start of the program this is, counted from 1 over the life of the space.
    pub fn incarnation(&self) -> u32 {
        either!(&self.inner, w => w.sink.incarnation())
    }

    /// The name it was opened by.
    pub fn name(&self) -> &str {
        let name = either!(&self.inner, w => &w.sink.handle.name);
        self.part.as_ref().map_or(name, |part| &part.name)
    }

    /// The channel's directory.
    pub fn path(&self) -> &Path {
        either!(&self.inner, w => &w.sink.handle.dir)
    }

    /// What a version survives once `end_step` has returned on every rank.
    pub fn durability(&self) -> Durability {
        either!(&self.inner, w => w.sink.durability())
    }

    /// The version that the next `begin_step` opens.
    pub fn next_version(&self) -> u64 {
        either!(&self.inner, w => w.next_version())
    }

    /// Goes on behind what is complete: returns the first version that is not, which the next `begin_step` opens.
    /// 0 on a new space. For programs that can be restarted. Does not block.
    ///
    /// # Errors
    /// `StepState` (a step is open); `NotPossibleHere`: writers on other nodes may be at another version.
    pub fn resume(&mut self) -> Result<u64> {
        if let Some(part) = &self.part {
            return Err(not_continued(&part.name));
        }
        either!(&mut self.inner, w => w.resume())
    }

    /// Opens the next version and returns its number.
    ///
    /// # Errors
    /// `StepState` (one is open), `VersionExists`, `ProducerDied`, `Fenced`.
    pub fn begin_step(&mut self) -> Result<u64> {
        let version = self.next_version();
        self.begin_version(version)?;
        Ok(version)
    }

    /// Opens `version`. False: it is complete already and the channel was opened with [`crate::Mode::Append`], so
    /// what is put until `end_step` is dropped.
    ///
    /// # Errors
    /// As for `begin_step`, and `VersionOutOfOrder` when it would leave a gap.
    pub fn begin_version(&mut self, version: u64) -> Result<bool> {
        let begun = either!(&mut self.inner, w => w.begin_version(version))?;
        self.forget_descriptions();
        Ok(begun)
    }

    /// Puts the box `start`, `count` of a variable of global shape `shape`; `data` holds its elements in C order.
    /// One copy. The buffer may be used again on return. Blocks while there is no free space, until the deadline.
    ///
    /// Where the first extent of `shape` is [`crate::CONCAT`], the variable is what all ranks put, one behind the other
    /// along the first dimension in the order of ranks and puts: no rank has to know how much the others bring.
    /// `start` is 0 there. Readers see the whole extent, and the box of each rank in [`crate::VariableInfo::pieces`].
    ///
    /// # Errors
    /// `BoxOutsideShape`, `BufferMismatch`, `BadName`, `VariableMismatch` (another rank gave another shape or
    /// dtype), `QuotaFull` (names who holds the space), `VersionTooLarge`, `TierFull`, `ProducerDied`, `Fenced`,
    /// `Poisoned`.
    #[inline]
    pub fn put(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        start: &[u64],
        count: &[u64],
        data: &[u8],
    ) -> Result<()> {
        description::check_name(name)?;
        let piece = Piece { name, dtype, shape, start, count };
        either!(&mut self.inner, w => w.put(&piece, data))
    }

    /// Puts many objects of one type and shape, each under a name of its own and whole: object `i` is the `i`-th
    /// part of `data`, which holds them one behind the other in C order. One copy and no allocation; what a call
    /// costs is paid once. Blocks and fails as [`Writer::put`]; see [`Writer::put_each`] for what an error leaves.
    ///
    /// # Errors
    /// Those of `put`, naming `object` (its index) and `variable`; `BufferMismatch` before anything is put when
    /// `data` has not the bytes of all objects.
    pub fn put_many<S: AsRef<str>>(
        &mut self,
        names: &[S],
        dtype: Dtype,
        shape: &[u64],
        data: &[u8],
    ) -> Result<()> {
        let start = [0; DIMS_MAX];
        let start = start.get(..shape.len()).unwrap_or(&start);
        let first = names.first().map_or("", |name| name.as_ref());
        let piece = |name| Piece { name, dtype, shape, start, count: shape };
        let bytes = if names.is_empty() { 0 } else { piece(first).payload_bytes()? as usize };
        if bytes.checked_mul(names.len()) != Some(data.len()) {
            return Err(Error::new(Kind::BufferMismatch, "the buffer's length does not fit the objects")
                .with("objects", names.len())
                .with("object_bytes", bytes)
                .with("buffer_bytes", data.len()));
        }
        let objects = names.iter().enumerate();
        let objects = objects.map(|(i, name)| (piece(name.as_ref()), &data[i * bytes..(i + 1) * bytes]));
        self.put_each(objects, &mut 0)
    }

    /// Puts many pieces of any kind, in turn, as that many calls of [`Writer::put`] would, but what a call costs is
    /// paid once. `done` rises by one with each piece that was put.
    ///
    /// # Errors
    /// Those of `put`, for the first piece that cannot be put; the error names `object` (the value of `done`) and
    /// `variable`. What came before it stays in the open step: go on with the rest, end the step without them, or
    /// abort it.
    pub fn put_each<'a>(
        &mut self,
        pieces: impl Iterator<Item = (Piece<'a>, &'a [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        let mut refused = None;
        let pieces = pieces.map_while(|(piece, data)| match description::check_name(piece.name) {
            Ok(()) => Some((piece, data)),
            Err(e) => {
                refused = Some(e);
                None
            }
        });
        either!(&mut self.inner, w => w.put_each(pieces, done))?;
        refused.map_or(Ok(()), |e| Err(e.with("object", *done)))
    }

    /// [`Writer::put`] of plain numbers.
    pub fn put_array<T: Element>(
        &mut self,
        name: &str,
        shape: &[u64],
        start: &[u64],
        count: &[u64],
        data: &[T],
    ) -> Result<()> {
        self.put(name, T::DTYPE, shape, start, count, bytemuck::cast_slice(data))
    }

    /// Memory for a box that the caller fills and hands back to [`Writer::commit`] before the step ends. No copy
    /// on byte-addressable tiers. Errors as for `put`.
    pub fn reserve(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        start: &[u64],
        count: &[u64],
    ) -> Result<Reservation> {
        description::check_name(name)?;
        self.reserve_record(&Piece { name, dtype, shape, start, count })
    }

    /// [`Writer::reserve`] for a record of another space, which may be of Forebay's own variables: what its writers
    /// said of theirs.
    #[doc(hidden)]
    pub fn reserve_record(&mut self, piece: &Piece<'_>) -> Result<Reservation> {
        let reserved = match &mut self.inner {
            Inner::Space(w) => w.reserve(piece)?.map(Reserve::Pool),
            Inner::Files(w) => w.reserve(piece)?.map(Reserve::Files),
        };
        Ok(Reservation(match reserved {
            Some(reserved) => reserved,
            None => Reserve::Dropped(vec![0; piece.payload_bytes()? as usize]),
        }))
    }

    /// Makes a filled reservation part of the open step; its checksum is computed here.
    ///
    /// # Errors
    /// `StepState` when its step is over.
    pub fn commit(&mut self, reservation: Reservation) -> Result<()> {
        match (&mut self.inner, reservation.0) {
            (Inner::Space(w), Reserve::Pool(reserved)) => w.commit(reserved),
            (Inner::Files(w), Reserve::Files(reserved)) => w.commit(reserved),
            (_, Reserve::Dropped(_)) => Ok(()),
            _ => Err(crate::Error::new(crate::Kind::Usage, "the reservation belongs to another channel")),
        }
    }

    /// Ends the step: on return this rank's part of the version is acknowledged and survives what the horizon
    /// promises (see [`Writer::durability`]). Blocks for one flush at horizon `epoch` or `write`.
    ///
    /// # Errors
    /// `StepState`, `ProducerDied`, `Fenced`, `Poisoned`, `TierFull`. After an error the version does not count;
    /// try again, or abort the step. Where the step has descriptions also those of [`Writer::put`], which may block.
    pub fn end_step(&mut self) -> Result<()> {
        if self.is_unsaid {
            self.put_descriptions()?;
        }
        either!(&mut self.inner, w => w.end_step())
    }

    /// Gives the open step up; the same version can be begun again.
    pub fn abort_step(&mut self) -> Result<()> {
        self.forget_descriptions();
        either!(&mut self.inner, w => w.abort_step())
    }

    /// Says what a variable of the open step is: names of its dimensions, attributes. It is put with the end of the
    /// step, is part of the version, and has to be said again for the next. One rank is enough; of attributes said
    /// twice the last value counts, of several ranks that of the highest.
    ///
    /// # Errors
    /// `StepState`; `Usage` (an empty or too long name, too large a value); `VariableMismatch` (this rank named the
    /// dimensions otherwise in this step). Readers get `VariableMismatch` when ranks name them differently, or not as
    /// many as the variable has.
    pub fn describe(&mut self, variable: &str, description: Description) -> Result<()> {
        self.check_in_step("describe")?;
        self.described.describe(variable, description)?;
        self.is_unsaid = true;
        Ok(())
    }

    /// Sets an attribute of the open version, as [`Writer::describe`] does for a variable: the time it stands for, say.
    /// Errors: `StepState`, `Usage`.
    pub fn set_version_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        self.check_in_step("set_version_attribute")?;
        self.described.set(key, value)?;
        self.is_unsaid = true;
        Ok(())
    }

    /// Attributes that this rank set of the open version.
    pub fn version_attributes(&self) -> &BTreeMap<String, Attribute> {
        &self.described.version
    }

    fn check_in_step(&self, what: &str) -> Result<()> {
        either!(&self.inner, w => w.check_in_step(what))
    }

    #[cold]
    fn put_descriptions(&mut self) -> Result<()> {
        let lines = self.described.lines()?;
        let count = [lines.len() as u64];
        let piece =
            Piece { name: DESCRIPTIONS, dtype: Dtype::U8, shape: &[CONCAT], start: &[0], count: &count };
        either!(&mut self.inner, w => w.put(&piece, &lines))?;
        self.is_unsaid = false;
        Ok(())
    }

    fn forget_descriptions(&mut self) {
        if self.described != Descriptions::default() {
            self.described = Descriptions::default();
        }
        self.is_unsaid = false;
    }

    /// Sets an attribute of the channel. Visible to readers at once; the last value wins.
    pub fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        either!(&mut self.inner, w => w.set_attribute(key, value))
    }

    /// The channel's attributes as they are now, of all ranks; of a group on several nodes, of those on this one.
    pub fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        let all = either!(&self.inner, w => w.attributes())?;
        Ok(if self.part.is_some() { without_part(all) } else { all })
    }

    /// Fails with `ProducerDied` or `Fenced` when another rank died or a newer start of the program took over.
    pub fn check_peers(&mut self) -> Result<()> {
        either!(&mut self.inner, w => w.check_peers())
    }

    /// Ends this rank cleanly: an open step is aborted, readers get the end of the stream once all ranks closed.
    pub fn close(mut self) -> Result<()> {
        either!(&mut self.inner, w => w.close())
    }

    /// [`Writer::close`] of a copy, whose original ended at that time, nanoseconds since 1970: by it a reader knows
    /// whether it was started together with the writers.
    #[doc(hidden)]
    pub fn close_as_of(mut self, ended_unix_ns: u64) -> Result<()> {
        match &mut self.inner {
            Inner::Space(w) => w.close_as_of(ended_unix_ns),
            Inner::Files(w) => w.close(),
        }
    }

    /// Ends this rank as if it had died: the open step is aborted and readers get `ProducerDied`, not the end of
    /// the stream. For programs that fail.
    pub fn abandon(mut self) {
        either!(&mut self.inner, w => w.abandon())
    }

    /// [`Writer::abandon`], with the reason that readers and other ranks are told.
    #[doc(hidden)]
    pub fn abandon_because(mut self, reason: &str) {
        match &mut self.inner {
            Inner::Space(w) => w.abandon_because(reason),
            Inner::Files(w) => w.abandon(),
        }
    }

    /// What keeps memory from [`Writer::reserve`] mapped after its commit, also when the writer is gone, for
    /// languages that hold on to addresses. None where reserved memory is a buffer of its own.
    pub fn keep_alive(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        match &self.inner {
            Inner::Space(w) => w.sink.keep_alive(),
            Inner::Files(_) => None,
        }
    }

    /// Changes the deadline of calls that block: for programs that wait in slices to look at something else.
    pub fn set_timeout(&mut self, timeout: Duration) {
        either!(&mut self.inner, w => w.sink.handle.options.timeout = timeout)
    }

    /// Counters so far.
    pub fn stats(&self) -> Stats {
        either!(&self.inner, w => w.stats())
    }

    /// Frees the segments that no reader needs any more, of this rank and of producers that are gone, and returns the
    /// bytes of the quota, that of lower tiers included, which are in no segment: what can be put without anything
    /// being released, but for the ends of segments. None of a channel of files.
    ///
    /// # Errors
    /// `ForkedHandle`, `TimedOut`, `Io`.
    pub fn free_bytes(&mut self) -> Result<Option<u64>> {
        match &mut self.inner {
            Inner::Space(w) => w.sink.free_bytes().map(Some),
            Inner::Files(_) => Ok(None),
        }
    }
}

/// Whether a writer that opens the space `name` with these options now would be let in. Changes nothing; without such a
/// space it would make one.
///
/// # Errors
/// `NameInUse` with the ways on, as of [`crate::Writer::open`]; those of opening the space.
pub fn check_writable(name: &str, options: &OpenOptions) -> Result<()> {
    if is_stream(&name::directory(name)?) {
        return files::check_writable(name, options);
    }
    let space = match attach(name) {
        Err(e) if e.kind() == Kind::PeerMissing => return Ok(()),
        space => space?,
    };
    let writers = writers_of(&space);
    if writers == Writers::Open {
        let detail = holder(&space).unwrap_or_default();
        return Err(refused(&format!("space {name}"), Refusal::Held, writers, &detail));
    }
    match decided(&space, options, writers) {
        Writing::Refuse(why) => Err(refused_space(&space, why, writers)),
        _ => Ok(()),
    }
}
