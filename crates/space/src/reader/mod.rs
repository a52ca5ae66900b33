//! [`Reader`]: one rank that gets versions from a channel, whatever carries it.

pub(crate) mod backing;
pub(crate) mod consume;
mod prefetch;
pub(crate) mod records;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{environment, Absent, Mechanism, OpenOptions};
use forebay_log::{Dims, Dtype};
use forebay_tier::{Error, Kind, Result};

use crate::attributes::Attribute;
use crate::description::{Descriptions, DESCRIPTIONS};
use crate::element::Element;
use crate::files::FilesReader;
use crate::lane::index::VariableInfo;
use crate::lane::view::{Lease, View};
use crate::part::check_agent;
use crate::reader::backing::VersionBacking;
use crate::reader::consume::SpaceReader;
use crate::reader::records::Record;
use crate::stats::Stats;
use crate::step::reader::VersionSource;
use forebay_log::NdBox;

/// One reader rank of a channel.
///
/// The ranks of a reader group see the same versions; what they want of each is their own choice. A version is
/// visible whole or not at all. A step is [`Reader::begin_step`], any number of gets and views, and
/// [`Reader::end_step`], which releases the version. A reader belongs to one thread at a time and to the process
/// that opened it.
#[must_use = "a reader that is dropped at once reads nothing; `open_version` returns another reader"]
pub struct Reader {
    inner: Inner,
    /// What the current version says of its variables, once asked for.
    described: Option<Arc<Descriptions>>,
}

enum Inner {
    Space(Box<SpaceReader>),
    Files(Box<FilesReader>),
}

macro_rules! either {
    ($self:expr, $r:ident => $e:expr) => {
        match $self {
            Inner::Space($r) => $e,
            Inner::Files($r) => $e,
        }
    };
}

impl Reader {
    /// Opens the channel `name`, waiting for it until the deadline of the options.
    ///
    /// Sees all retained versions, then new ones; with `latest` the newest one at each step.
    ///
    /// # Errors
    /// `PeerMissing` (no process made it in time), `NameInUse` (a live process is this rank of this group),
    /// `GroupMismatch`, `SeveralNodes`, `PoolOwnedElsewhere`, `Damaged`, `UnknownFormat`, `UnknownEnvironment`.
    pub fn open(name: &str, options: &OpenOptions) -> Result<Reader> {
        environment::check()?;
        let (options, spread) = options.resolved_across_nodes(name, &environment::process)?;
        check_agent(name, &options, spread)?;
        Ok(Reader::of(match options.channel {
            Mechanism::Space => Inner::Space(Box::new(SpaceReader::open(name, options)?)),
            Mechanism::Files => Inner::Files(Box::new(FilesReader::open(&options.place(name), &options)?)),
        }))
    }

    /// Joins reader group `group` of a space that is there, in the place of a rank that reads a copy of it elsewhere:
    /// members and messages name it by the component of the options. `absent` is the policy of a group that keeps a
    /// cursor.
    ///
    /// # Errors
    /// Those of [`Reader::open`]; `PeerMissing` at once.
    #[doc(hidden)]
    pub fn stand_in(
        name: &str,
        options: &OpenOptions,
        group: &str,
        absent: Option<Absent>,
    ) -> Result<Reader> {
        let options = options.resolved(name, &environment::process)?;
        Ok(Reader::of(Inner::Space(Box::new(SpaceReader::stand_in(name, options, group, absent)?))))
    }

    /// The records of the current version, of each rank in the order of its puts, with those of Forebay's own
    /// variables: what is needed to make the same version elsewhere.
    ///
    /// # Errors
    /// `StepState`, `Damaged`; `NotPossibleHere` on a channel of files.
    #[doc(hidden)]
    pub fn records(&mut self) -> Result<Vec<Record>> {
        match &mut self.inner {
            Inner::Space(r) => r.records(),
            Inner::Files(_) => Err(records::no_files()),
        }
    }

    /// The payload of record `index` of [`Reader::records`], checked as by `get`. Errors: those of `records`.
    #[doc(hidden)]
    pub fn record_view(&mut self, index: usize) -> Result<View> {
        match &mut self.inner {
            Inner::Space(r) => r.record_view(index),
            Inner::Files(_) => Err(records::no_files()),
        }
    }

    /// Keeps `version`, which need not be there yet, and all versions after it, until the result is dropped; None: it
    /// was dropped. For programs that copy whole versions.
    ///
    /// # Errors
    /// `ForkedHandle`; `NotPossibleHere` on a channel of files.
    #[doc(hidden)]
    pub fn keep_from(&self, version: u64) -> Result<Option<Hold>> {
        match &self.inner {
            Inner::Space(r) => Ok(r.keep_from(version)?.map(|lease| Hold { _lease: lease })),
            Inner::Files(_) => Err(records::no_files()),
        }
    }

    fn of(inner: Inner) -> Reader {
        Reader { inner, described: None }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        either!(&self.inner, r => r.source.handle.rank())
    }

    /// Ranks of the group.
    pub fn size(&self) -> u32 {
        either!(&self.inner, r => r.source.handle.size())
    }

    /// The name it was opened by.
    pub fn name(&self) -> &str {
        either!(&self.inner, r => &r.source.handle.name)
    }

    /// The channel's directory.
    pub fn path(&self) -> &Path {
        either!(&self.inner, r => &r.source.handle.dir)
    }

    /// Identity of the channel: another one that takes its name has another. With a version and the name of a variable
    /// it names data that never change.
    pub fn uuid(&self) -> String {
        either!(&self.inner, r => r.source.uuid())
    }

    /// What carries the channel.
    pub fn mechanism(&self) -> Mechanism {
        match &self.inner {
            Inner::Space(_) => Mechanism::Space,
            Inner::Files(_) => Mechanism::Files,
        }
    }

    /// The version that `get` and `view` look into; None between steps.
    pub fn version(&self) -> Option<u64> {
        either!(&self.inner, r => r.version())
    }

    /// Waits for the next version, at most `timeout` (else the deadline of the options). None at the end of the
    /// stream: all writers closed and every version was seen.
    ///
    /// # Errors
    /// `TimedOut` (names the ranks that are missing), `ProducerDied` (after every complete version was seen; of writers
    /// of an earlier boot only at the deadline, for they may be started again), `StepState`, `Damaged`, `PeerMissing`
    /// (the space was removed).
    pub fn begin_step(&mut self, timeout: Option<Duration>) -> Result<Option<u64>> {
        either!(&mut self.inner, r => r.begin_step(timeout))
    }

    /// Releases the version; views of it keep it. When it returns, the version counts as read: a group that keeps a
    /// cursor is not given it again, once all its ranks have come that far. Does not block, but at a durable horizon
    /// for the medium.
    pub fn end_step(&mut self) -> Result<()> {
        self.described = None;
        either!(&mut self.inner, r => r.end_step())
    }

    /// What the current version holds.
    ///
    /// # Errors
    /// `VariableMismatch`: ranks disagree on the shape or dtype of a variable, or on the names of its dimensions.
    pub fn variables(&mut self) -> Result<Vec<VariableInfo>> {
        let said = self.described()?;
        let mut variables = either!(&mut self.inner, r => r.variables())?;
        variables.iter_mut().try_for_each(|info| describe(&said, info))?;
        Ok(variables)
    }

    /// Names of the variables of the current version, in the order of their first piece. Errors: `StepState`,
    /// `Damaged`.
    pub fn names(&mut self) -> Result<Vec<String>> {
        either!(&mut self.inner, r => r.names())
    }

    /// One variable of the current version. Errors: `UnknownVariable`, `VariableMismatch`.
    pub fn variable(&mut self, name: &str) -> Result<VariableInfo> {
        let said = self.described()?;
        let mut info = either!(&mut self.inner, r => r.variable(name))?;
        describe(&said, &mut info)?;
        Ok(info)
    }

    /// Attributes of the current version, see [`crate::Writer::set_version_attribute`]; those of the whole channel are
    /// not among them. Errors: `StepState`, `VariableMismatch`, `Damaged`.
    pub fn version_attributes(&mut self) -> Result<BTreeMap<String, Attribute>> {
        Ok(self.described()?.version.clone())
    }

    /// What the current version says of its variables and of itself.
    fn described(&mut self) -> Result<Arc<Descriptions>> {
        if let Some(known) = &self.described {
            return Ok(known.clone());
        }
        let said = match either!(&mut self.inner, r => r.has(DESCRIPTIONS))? {
            false => Descriptions::default(),
            true => {
                let lines = self.get_array::<u8>(DESCRIPTIONS, None)?;
                Descriptions::read(&lines, self.version().unwrap_or_default())?
            }
        };
        Ok(self.described.insert(Arc::new(said)).clone())
    }

    /// Dtype and global shape of a variable: what is needed to allocate for `get`, without a list of pieces.
    #[inline]
    pub fn array(&mut self, name: &str) -> Result<(Dtype, Dims)> {
        either!(&mut self.inner, r => r.array(name))
    }

    /// Copies a box (None: the whole variable) to `out`, in C order: one gather over the pieces that cover it.
    ///
    /// # Errors
    /// `UnknownVariable`, `BoxOutsideShape`, `BoxNotCovered`, `BufferMismatch` (`out` must have exactly the box's
    /// bytes), `VariableMismatch`, `Damaged`.
    #[inline]
    pub fn get(&mut self, name: &str, wanted: Option<&NdBox>, out: &mut [u8]) -> Result<()> {
        either!(&mut self.inner, r => r.get(name, wanted, out))
    }

    /// Copies many whole variables of equal size to `out`, one behind the other in the order of `names`. What a call
    /// costs is paid once, and nothing is allocated for variables of one piece.
    ///
    /// # Errors
    /// Those of [`Reader::get`], naming `object` (its index) and `variable`; those before it are in `out` by then.
    /// `BufferMismatch` when `out` is no whole number of bytes for each name.
    pub fn get_many<S: AsRef<str>>(&mut self, names: &[S], out: &mut [u8]) -> Result<()> {
        let bytes = out.len().checked_div(names.len()).unwrap_or(0);
        if bytes * names.len() != out.len() {
            return Err(Error::new(
                Kind::BufferMismatch,
                "the size of the buffer is not a multiple of the number of objects",
            )
            .with("objects", names.len())
            .with("buffer_bytes", out.len()));
        }
        let mut rest = out;
        let objects = names.iter().map(|name| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = behind;
            (name.as_ref(), part)
        });
        self.get_each(objects, &mut 0)
    }

    /// Copies many whole variables, each into memory of its own, as that many calls of [`Reader::get`] would.
    /// `done` rises by one with each.
    ///
    /// # Errors
    /// Those of `get`, for the first that cannot be got; the error names `object` (the value of `done`) and
    /// `variable`. Those before it were copied.
    pub fn get_each<'a>(
        &mut self,
        objects: impl Iterator<Item = (&'a str, &'a mut [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        either!(&mut self.inner, r => r.get_each(objects, done))
    }

    /// Shows `look` a whole variable where it lies, checked, with its dtype and shape: one look-up for a caller who
    /// has to allocate first and then copies. `None`, and `look` not called: it is missing, lies in several pieces
    /// or in a file of its own, or is larger than `bytes_max`; ask with [`Reader::array`] and [`Reader::get`] then.
    /// Counted as a get.
    ///
    /// # Errors
    /// `Damaged`, `StepState`, `ForkedHandle`.
    #[inline]
    pub fn with_object<R>(
        &mut self,
        name: &str,
        bytes_max: usize,
        look: impl FnOnce(Dtype, &[u64], &[u8]) -> R,
    ) -> Result<Option<R>> {
        either!(&mut self.inner, r => r.with_object(name, bytes_max, look))
    }

    /// [`Reader::with_object`] for one variable after the other, what a call costs being paid once: `look` gets the
    /// number of the object as well, and says whether it took it; `done` rises by one with each that it took. Ends
    /// at the first that `with_object` would not show or `look` did not take: go on behind it when it was got
    /// otherwise.
    ///
    /// # Errors
    /// Those of `with_object`; they name `object` (the value of `done`) and `variable`.
    pub fn with_each<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        bytes_max: usize,
        look: impl FnMut(usize, Dtype, &[u64], &[u8]) -> bool,
        done: &mut usize,
    ) -> Result<()> {
        either!(&mut self.inner, r => r.with_each(names, bytes_max, look, done))
    }

    /// [`Reader::get`] as plain numbers. Errors also: `BufferMismatch` when the dtype differs.
    pub fn get_array<T: Element>(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<Vec<T>> {
        let (dtype, shape) = self.array(name)?;
        if dtype != T::DTYPE {
            return Err(Error::new(Kind::BufferMismatch, format!("variable {name} has another dtype"))
                .with("dtype", dtype)
                .with("asked_for", T::DTYPE));
        }
        let whole = NdBox::whole(&shape);
        let wanted = wanted.unwrap_or(&whole);
        wanted.check_inside(name, &shape)?;
        let mut out: Vec<T> = zeroed(name, wanted.bytes(dtype.size())? / dtype.size())?;
        self.get(name, Some(wanted), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// A box without a copy. Errors: `NotContiguous` when it is not one contiguous range of one piece; those of
    /// `get`.
    pub fn view(&mut self, name: &str, wanted: Option<&NdBox>) -> Result<View> {
        either!(&mut self.inner, r => r.view(name, wanted))
    }

    /// A variable of the current version as what lies below an array larger than memory. It holds the version as a
    /// view does, also when the reader was closed, and goes through no gate of the execution mode. To open a version
    /// that is itself larger than memory, take [`crate::VersionBacking::open`].
    ///
    /// # Errors
    /// `UnknownVariable`, `VariableMismatch`, `Damaged`, `StepState`; `NotPossibleHere` on a channel of files.
    pub fn backing(&mut self, name: &str) -> Result<VersionBacking> {
        match &mut self.inner {
            Inner::Space(r) => VersionBacking::of_current(r, name),
            Inner::Files(_) => Err(backing::no_files(name)),
        }
    }

    /// Waits until `version` is complete. Errors: `TimedOut`, `VersionGone`, `ProducerDied`, `PeerMissing`.
    pub fn wait(&mut self, version: u64, timeout: Option<Duration>) -> Result<()> {
        either!(&mut self.inner, r => r.wait(version, timeout))
    }

    /// Opens a retained, complete version as a handle of its own: a reader whose only step is that version, which is
    /// open already. Any number can be open at once, beside the stream of this reader, which they neither move nor
    /// close; each holds its version until it ends its step, is closed or dropped, also when this reader is closed.
    /// Errors: `VersionGone`, `TimedOut` when it is not complete, `Damaged`.
    pub fn open_version(&mut self, version: u64) -> Result<Reader> {
        Ok(Reader::of(match &mut self.inner {
            Inner::Space(r) => Inner::Space(Box::new(r.open_version(version)?)),
            Inner::Files(r) => Inner::Files(Box::new(r.open_version(version)?)),
        }))
    }

    /// The complete versions that are retained now.
    pub fn versions(&self) -> Result<Range<u64>> {
        either!(&self.inner, r => r.source.versions())
    }

    /// The newest complete version, if one is retained.
    pub fn latest(&self) -> Result<Option<u64>> {
        either!(&self.inner, r => r.latest())
    }

    /// Every coming version that holds `name`: its box (None: all of it), copied.
    pub fn subscribe(&mut self, name: &str, wanted: Option<NdBox>) -> Result<Subscription<'_>> {
        Ok(Subscription { reader: self, name: name.to_string(), wanted })
    }

    /// The channel's attributes as they are now.
    pub fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        either!(&self.inner, r => r.attributes())
    }

    /// Versions that were dropped, unread by this reader, between the version before and the one that is open; at the
    /// end of the stream those behind the last one. What `latest` skips does not count. [`Stats::dropped`] is the sum.
    pub fn missed(&self) -> u64 {
        either!(&self.inner, r => r.missed())
    }

    /// Leaves the channel and its reader group for good: nothing is kept for this rank any more, and its cursor is
    /// forgotten. One that comes again begins at the oldest version. Views stay valid, as after [`Reader::close`].
    ///
    /// # Errors
    /// `TimedOut`, `PeerMissing` (the space was removed), `Io`.
    pub fn leave(mut self) -> Result<()> {
        either!(&mut self.inner, r => r.leave())
    }

    /// Leaves the channel; views and versions that [`Reader::open_version`] opened stay valid. A group that keeps a
    /// cursor (see [`OpenOptions::group`]) goes on there when it comes again; for any other nothing is kept.
    pub fn close(mut self) -> Result<()> {
        either!(&mut self.inner, r => r.close())
    }

    /// Changes the deadline of calls that block and are given none.
    pub fn set_timeout(&mut self, timeout: Duration) {
        either!(&mut self.inner, r => r.source.handle.options.timeout = timeout)
    }

    /// Counters so far.
    pub fn stats(&self) -> Stats {
        either!(&self.inner, r => r.stats())
    }
}

/// Versions that are kept; see [`Reader::keep_from`].
#[doc(hidden)]
pub struct Hold {
    _lease: Lease,
}

/// Adds what was said of a variable. Errors: [`Kind::VariableMismatch`].
fn describe(said: &Descriptions, info: &mut VariableInfo) -> Result<()> {
    info.description = said.of(&info.name, info.shape.len())?;
    Ok(())
}

/// Memory for a box of a variable. Its extents come from the pool: more than there is is an error.
fn zeroed<T: bytemuck::Zeroable>(name: &str, elements: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(elements).map_err(|()| {
        Error::new(Kind::TierFull, format!("there is not enough memory for the box of {name}"))
            .with("bytes", elements.saturating_mul(size_of::<T>()))
            .hint("read a part of it, or open it as a paged array")
    })
}

/// A reader that follows one variable. Versions without the variable are passed over.
pub struct Subscription<'a> {
    reader: &'a mut Reader,
    name: String,
    wanted: Option<NdBox>,
}

impl Subscription<'_> {
    /// The next version with the variable and the bytes of the box; None at the end of the stream. The deadline
    /// is for each version waited for. Errors as for [`Reader::begin_step`] and [`Reader::get`].
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<(u64, Vec<u8>)>> {
        while let Some(version) = self.reader.begin_step(timeout)? {
            let got = self.fetch();
            self.reader.end_step()?;
            match got {
                Ok(bytes) => return Ok(Some((version, bytes))),
                Err(e) if e.kind() == Kind::UnknownVariable => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn fetch(&mut self) -> Result<Vec<u8>> {
        let (dtype, shape) = self.reader.array(&self.name)?;
        let whole = NdBox::whole(&shape);
        let wanted = self.wanted.as_ref().unwrap_or(&whole);
        wanted.check_inside(&self.name, &shape)?;
        let mut out: Vec<u8> = zeroed(&self.name, wanted.bytes(dtype.size())?)?;
        self.reader.get(&self.name, Some(wanted), &mut out)?;
        Ok(out)
    }
}
