//! `forebay.Reader` and its steps: the consuming side.
//!
//! Guarantees: `get` returns a writable array of the caller's own, `view` a read-only one that holds the version's
//! memory (its lease) until garbage collected, also after the step, the reader and the space are gone. With `copy=None`
//! `get` copies only where it must, and what it returns is read-only in either case. A version that `open_version`
//! opened is a step with a reader of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_space::{Dims, Dtype, Error, Kind, NdBox, Reader, Result, View};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::buffer::{self, NewArray};
use crate::cell::{Cell, GIL_BYTES};
use crate::convert::Whole;
use crate::detach::detached;
use crate::errors::{open_in_slices, raise, usage, wait_in_slices, OrRaise};
use crate::handles::{self, Handle, Key};
use crate::{arrays, convert, many, options, paged};

/// Most names of variables in a `repr`.
const NAMED_MAX: usize = 8;

/// Most bytes that are copied with the channel locked and the GIL held.
const SMALL_BYTES_MAX: usize = (16 << 10) - 1;

/// What the handle and its steps share.
pub struct Consuming {
    /// "reader", or "version" for one that was opened out of order: for messages.
    what: &'static str,
    reader: Option<Reader>,
    step: Option<OpenStep>,
    /// Counts steps, so that a step object knows whether it is still the open one.
    serial: u64,
    /// It has left its group for good.
    has_left: bool,
}

#[derive(Clone, Copy)]
struct OpenStep {
    version: u64,
    serial: u64,
    /// Versions dropped before it, unread.
    missed: u64,
    /// Opened by `steps()`: ends by itself.
    automatic: bool,
    /// It was opened, and an error came instead of it: a warning that is one.
    is_unseen: bool,
}

impl Consuming {
    fn reader(&mut self) -> Result<&mut Reader> {
        self.reader.as_mut().ok_or_else(|| closed(self.what))
    }

    #[inline]
    fn in_step(&mut self, serial: u64) -> Result<&mut Reader> {
        match self.step {
            Some(step) if step.serial == serial => self.reader(),
            _ => Err(self.stale()),
        }
    }

    #[cold]
    fn stale(&self) -> Error {
        if self.reader.is_none() {
            return closed(self.what);
        }
        Error::new(Kind::StepState, "this step has ended")
            .hint("call get inside the loop over steps(); arrays returned by get stay valid")
    }

    fn opened(&mut self, version: u64, automatic: bool) -> OpenStep {
        self.serial += 1;
        let missed = self.reader.as_ref().map_or(0, Reader::missed);
        let step = OpenStep { version, serial: self.serial, missed, automatic, is_unseen: false };
        self.step = Some(step);
        step
    }
}

#[cold]
fn closed(what: &str) -> Error {
    Error::new(Kind::Closed, format!("this {what} is closed"))
}

type Shared = Arc<Cell<Consuming>>;

/// One rank of a group that reads a space. Made by `forebay.open(name)`.
#[pyclass(name = "Reader", module = "forebay", frozen)]
pub struct PyReader {
    shared: Shared,
    name: String,
    path: String,
    rank: u32,
    size: u32,
    timeout: Duration,
    observer: bool,
}

impl PyReader {
    /// Opens the space, waiting for it; blocks without the GIL.
    pub fn open(py: Python<'_>, name: &str, options: forebay_space::OpenOptions) -> PyResult<PyReader> {
        let timeout = options.timeout;
        let key = Key::of("reader", name, &options);
        handles::close_former(py, key.as_ref(), name)?;
        let mut reader = open_in_slices(py, timeout, |slice| {
            Reader::open(name, &forebay_space::OpenOptions { timeout: slice, ..options.clone() })
        })?;
        // Of the calls that do not wait in slices: in a gate, and for locks.
        reader.set_timeout(timeout);
        let (rank, size) = (reader.rank(), reader.size());
        let (name, path) = (reader.name().to_string(), reader.path().display().to_string());
        let shared = Arc::new(Cell::new(Consuming {
            what: "reader",
            reader: Some(reader),
            step: None,
            serial: 0,
            has_left: false,
        }));
        handles::note(py, key, Box::new(Former(Arc::downgrade(&shared))));
        Ok(PyReader { shared, name, path, rank, size, timeout, observer: options.observer })
    }

    fn ask<R>(&self, py: Python<'_>, question: impl FnOnce(&mut Reader) -> R) -> PyResult<R> {
        self.shared.with(py, |state| state.reader().map(question)).or_raise(py)
    }

    fn wait_time(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Duration> {
        Ok(options::timeout(py, timeout)?.unwrap_or(self.timeout))
    }

    fn current(&self, py: Python<'_>) -> PyResult<ReadStep> {
        let open = |state: &mut Consuming| {
            state.reader()?;
            Ok(state.step)
        };
        match self.shared.with(py, open).or_raise(py)? {
            Some(step) => Ok(self.step_object(step)),
            None => {
                Err(usage(py, Kind::StepState, "no step is open", "call begin_step() or loop over steps()"))
            }
        }
    }

    fn step_object(&self, step: OpenStep) -> ReadStep {
        ReadStep::new(self.shared.clone(), step, false)
    }
}

#[pymethods]
impl PyReader {
    /// Waits for the next step. StepStatus.OK, or StepStatus.EndOfStream, which is false; raises TimedOut when the
    /// timeout passed.
    #[pyo3(signature = (timeout=None))]
    fn begin_step<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let time = self.wait_time(py, timeout)?;
        match begin(py, &self.shared, time, false)? {
            Some(_) => convert::status(py, "OK"),
            None => convert::status(py, "EndOfStream"),
        }
    }

    /// Releases the open step; arrays that were got stay valid. Returns StepStatus.OK.
    fn end_step<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        end(py, &self.shared)?;
        convert::status(py, "OK")
    }

    /// Iterates over steps until the end of the stream, or over n at most; raises TimedOut when one takes too long.
    #[pyo3(signature = (n=None, timeout=None))]
    fn steps(
        &self,
        py: Python<'_>,
        n: Option<Whole>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReaderSteps> {
        let left = std::sync::atomic::AtomicU64::new(n.map_or(u64::MAX, |n| n.0));
        Ok(ReaderSteps { shared: self.shared.clone(), left, timeout: self.wait_time(py, timeout)? })
    }

    /// The open step.
    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<ReadStep> {
        self.current(py)
    }

    /// Version of the open step, or None.
    #[getter]
    fn version(&self, py: Python<'_>) -> Option<u64> {
        self.shared.with(py, |state| state.step.map(|s| s.version))
    }

    /// Versions that were dropped, unread by this reader, before the open step, or behind the last one at the end of
    /// the stream. A MissedVersions warning says so, too.
    #[getter]
    fn missed(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |reader| reader.missed())
    }

    /// As step.get, of the open step.
    #[pyo3(signature = (name, r#box=None, /, *, start=None, count=None, out=None, copy=Some(true)))]
    #[pyo3(text_signature = "($self, name, box=None, /, *, start=None, count=None, out=None, copy=True)")]
    #[allow(clippy::too_many_arguments)]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        r#box: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.current(py)?.get(py, name, r#box, start, count, out, copy)
    }

    /// As step.get_many, of the open step.
    #[pyo3(signature = (names, *, out=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        names: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.current(py)?.get_many(py, names, out)
    }

    /// As step.view, of the open step.
    #[pyo3(signature = (name, r#box=None, /, *, start=None, count=None))]
    fn view<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        r#box: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.current(py)?.view(py, name, r#box, start, count)
    }

    /// As step.array, of the open step.
    #[pyo3(signature = (name, **options))]
    #[pyo3(text_signature = "($self, name, *, budget=None, pool=None, tile=None, mode='r', policy='s3fifo')")]
    fn array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.current(py)?.array(py, name, options)
    }

    /// Variables of the open step.
    #[getter]
    fn variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.current(py)?.variables(py)
    }

    /// Waits until a version is complete.
    #[pyo3(signature = (version, timeout=None))]
    fn wait(&self, py: Python<'_>, version: Whole, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let time = self.wait_time(py, timeout)?;
        wait_in_slices(py, time, |slice| self.shared.lock().reader()?.wait(version.0, Some(slice)))
    }

    /// Opens a retained version, out of the order of the stream, which stays where it is. Any number can be open at
    /// once; each is held until its close(), the end of its `with` block, or until it is garbage collected.
    fn open_version(&self, py: Python<'_>, version: Whole) -> PyResult<ReadStep> {
        let version = version.0;
        let opened =
            self.shared.without_gil(py, |state| state.reader()?.open_version(version)).or_raise(py)?;
        let mut state =
            Consuming { what: "version", reader: Some(opened), step: None, serial: 0, has_left: false };
        let step = state.opened(version, false);
        Ok(ReadStep::new(Arc::new(Cell::new(state)), step, true))
    }

    /// Retained complete versions, as a range.
    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.ask(py, |reader| reader.versions())?.or_raise(py)?;
        py.import("builtins")?.call_method1("range", (found.start, found.end))
    }

    /// Opens the version that the keywords name: version=17, the one whose attribute is nearest to a number, as in
    /// time=0.25, or without any the newest. As open_version.
    #[pyo3(signature = (version=None, **nearest))]
    fn select<'py>(
        slf: &Bound<'py, Self>,
        version: Option<Whole>,
        nearest: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let select = slf.py().import("forebay._reading")?.getattr("select")?;
        select.call1((slf, version.map(|v| v.0), nearest))
    }

    /// As versions(): a reader is a mapping of versions to what they hold.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.versions(py)
    }

    /// Number of retained complete versions.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let found = self.ask(py, |reader| reader.versions())?.or_raise(py)?;
        Ok((found.end - found.start) as usize)
    }

    /// A reader is true, also while there is no version.
    fn __bool__(&self) -> bool {
        true
    }

    /// Whether a version is complete and retained.
    fn __contains__(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<bool> {
        let found = self.ask(py, |reader| reader.versions())?.or_raise(py)?;
        Ok(version.extract::<u64>().is_ok_and(|version| found.contains(&version)))
    }

    /// reader[17] is reader.open_version(17); reader[-1] the newest.
    fn __getitem__(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<ReadStep> {
        let behind = match version.extract::<i64>() {
            Ok(number) if number < 0 => number.unsigned_abs(),
            _ => return self.open_version(py, version.extract()?),
        };
        let found = self.ask(py, |reader| reader.versions())?.or_raise(py)?;
        match found.end.checked_sub(behind).filter(|version| found.contains(version)) {
            Some(version) => self.open_version(py, Whole(version)),
            None => {
                let what = format!(
                    "version {version} counts from the newest, and {} are retained",
                    found.end - found.start
                );
                Err(usage(py, Kind::VersionGone, what, "reader[-1] is the newest"))
            }
        }
    }

    /// Iterates over the retained versions; steps() waits for new ones.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyIterator>> {
        self.versions(py)?.try_iter()
    }

    /// Iterates over the steps of the stream as steps() does, while other tasks of the event loop run.
    fn __aiter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        ReaderSteps::__aiter__(&Bound::new(py, self.steps(py, None, None)?)?)
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::html(slf.as_any(), "reader")
    }

    /// One that only looks is opened by its path elsewhere.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, reader) = (slf.py(), slf.get());
        if !reader.observer {
            let hint = "open the space in the other process; with observer=True a reader can be pickled";
            return Err(convert::no_pickle(py, "a reader that is a member of a reader group", hint));
        }
        let channel = reader.ask(py, |reader| reader.mechanism().to_string())?;
        convert::reopened(py, "open_reader", (&reader.path, channel))
    }

    /// Newest complete version, or None.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.ask(py, |reader| reader.latest())?.or_raise(py)
    }

    /// Iterates over (version, array) of one variable, or of one box of it, until the end of the stream.
    #[pyo3(signature = (name, *, start=None, count=None, timeout=None))]
    fn subscribe(
        &self,
        py: Python<'_>,
        name: String,
        start: Option<&Bound<'_, PyAny>>,
        count: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Subscription> {
        let region = start_and_count(py, start, count)?;
        let steps = ReaderSteps {
            shared: self.shared.clone(),
            left: std::sync::atomic::AtomicU64::new(u64::MAX),
            timeout: self.wait_time(py, timeout)?,
        };
        Ok(Subscription { steps, name, region })
    }

    /// Attributes of the space, as a read-only mapping.
    #[getter]
    fn attrs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::attributes_object(slf.as_any())
    }

    fn _attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.ask(py, |reader| reader.attributes())?.or_raise(py)?;
        convert::attributes(py, found)
    }

    fn _set_attribute(&self, py: Python<'_>, key: &str, _value: &Bound<'_, PyAny>) -> PyResult<()> {
        let hint = "open the space with mode \"w\" to set attributes";
        Err(usage(py, Kind::Usage, format!("a reader cannot set the attribute {key}"), hint))
    }

    /// Counters and times of this handle.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.ask(py, |reader| reader.stats())?;
        convert::to_python(py, &stats)
    }

    /// What forebay.inspect() says of this space.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::inspect(py, &self.path)
    }

    /// Closes the reader and leaves its group for good: nothing is kept for this rank any more, and its cursor is
    /// forgotten. One that comes again begins at the oldest version.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let (reader, has_left) = self.shared.with(py, |state| {
            state.step = None;
            (state.reader.take(), state.has_left)
        });
        let Some(reader) = reader else {
            let hint =
                "open it again with its group and rank, or remove the group: `forebay clean --readers GROUP NAME`";
            let closed = || usage(py, Kind::Closed, "the reader is closed and has not left its group", hint);
            return has_left.then_some(()).ok_or_else(closed);
        };
        py.detach(|| reader.leave()).or_raise(py)?;
        self.shared.with(py, |state| state.has_left = true);
        Ok(())
    }

    /// Releases everything but the views that still live. A group that keeps a cursor goes on there when it is opened
    /// again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        close(py, &self.shared)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        let done = self.close(py);
        // An error of close would hide the one that is on its way.
        if kind.is_none() {
            done
        } else {
            Ok(())
        }
    }

    /// True once the channel is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.shared.with(py, |state| state.reader.is_none())
    }

    /// Short name, or the path the space was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Directory of the space.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Identity of the space: one that takes its place under its name has another.
    #[getter]
    fn uuid(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |reader| reader.uuid())
    }

    /// This process's rank in its group.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks in the group.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.closed(py) { ", closed" } else { "" };
        format!("<forebay.Reader {:?} rank {} of {}{state}>", self.name, self.rank, self.size)
    }
}

/// One complete version, open for reading.
#[pyclass(module = "forebay", frozen)]
pub struct ReadStep {
    shared: Shared,
    version: u64,
    serial: u64,
    missed: u64,
    /// From `open_version`: the reader is the step's own.
    is_own: bool,
}

#[pymethods]
impl ReadStep {
    /// A variable, or a box of it, as an ndarray.
    ///
    /// The box is start= and count=, or slices. copy=True: a writable array of your own, or your out. copy=False: a
    /// read-only view as of view(), or NotContiguous. copy=None: that view where one piece covers the box, else a copy;
    /// read-only in either case.
    #[pyo3(signature = (name, r#box=None, /, *, start=None, count=None, out=None, copy=Some(true)))]
    #[pyo3(text_signature = "($self, name, box=None, /, *, start=None, count=None, out=None, copy=True)")]
    #[allow(clippy::too_many_arguments)]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        r#box: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let out = out.filter(|o| !o.is_none());
        if out.is_some() && copy != Some(true) {
            return Err(usage(py, Kind::Usage, "out= is a copy", "leave copy= out"));
        }
        if copy == Some(true) && r#box.is_none() && start.is_none() && count.is_none() && out.is_none() {
            if let Some(array) = self.small(py, name)? {
                return Ok(array);
            }
        }
        let (dtype, shape) = self.look_up(py, name)?;
        let asked = asked(py, &shape, r#box, start, count)?;
        let target = Target { name, dtype, asked: &asked, dims: asked.dims(&shape) };
        if let Some(out) = out {
            return self.get_into(py, &target, out);
        }
        match copy {
            Some(true) => self.gather(py, &target),
            Some(false) => over_view(py, self.take_view(py, &target).or_raise(py)?, &target),
            None => self.view_or_copy(py, &target),
        }
    }

    /// Many whole variables of one dtype and shape, as one array: entry i of the first axis is the variable names[i].
    ///
    /// With out=, into that array, which names dtype and shape and must be writable and contiguous.
    #[pyo3(signature = (names, *, out=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        names: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names = many::names(names)?;
        let texts = names.iter().map(|name| name.to_str()).collect::<PyResult<Vec<_>>>()?;
        if let Some(out) = out.filter(|o| !o.is_none()) {
            let into =
                buffer::destination(out).filter(|into| into.dims.first() == Some(&(texts.len() as u64)));
            let Some(into) = into else {
                let what = format!("out= does not fit {} objects", texts.len());
                let hint =
                    "it has to be a writable contiguous array with one entry of its first axis for each";
                return Err(usage(py, Kind::BufferMismatch, what, hint));
            };
            self.fill_many(py, &texts, into.dtype, &into.dims[1..], into.bytes)?;
            return Ok(out.clone());
        }
        let (dtype, shape) = match texts.first() {
            Some(first) => self.look_up(py, first)?,
            None => (Dtype::F64, Dims::new()),
        };
        let descriptor = arrays::descriptor(py, dtype)?;
        let mut dims = Dims::from_slice(&[texts.len() as u64]);
        dims.extend_from_slice(&shape);
        let mut array = NewArray::new(py, dtype, descriptor.as_ref(), &dims)?;
        self.fill_many(py, &texts, dtype, &shape, array.bytes_mut())?;
        Ok(array.finish())
    }

    /// A read-only view without any copy; NotContiguous when the box is not one contiguous range of one piece.
    #[pyo3(signature = (name, r#box=None, /, *, start=None, count=None))]
    fn view<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        r#box: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (dtype, shape) = self.look_up(py, name)?;
        let asked = asked(py, &shape, r#box, start, count)?;
        let target = Target { name, dtype, asked: &asked, dims: asked.dims(&shape) };
        let view = self.take_view(py, &target).or_raise(py)?;
        over_view(py, view, &target)
    }

    /// A variable as a forebay.Array, of which a budget's worth is in memory (options as with forebay.array).
    ///
    /// It holds the version until it is closed, also after the step and the reader.
    #[pyo3(signature = (name, **options))]
    #[pyo3(text_signature = "($self, name, *, budget=None, pool=None, tile=None, mode='r', policy='s3fifo')")]
    fn array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let backing = self.shared.without_gil(py, |state| state.in_step(self.serial)?.backing(name));
        paged::array_over(py, backing.or_raise(py)?, options)
    }

    /// A variable that was put as str.
    fn text(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let (dtype, shape) = self.look_up(py, name)?;
        if dtype != Dtype::Str {
            let what = format!("{name} holds {}, not text", dtype.name());
            return Err(usage(py, Kind::BufferMismatch, what, "get it as an array"));
        }
        let length = shape.iter().try_fold(1, |length: u64, extent| length.checked_mul(*extent));
        let mut bytes = Vec::new();
        let fits =
            length.and_then(|n| usize::try_from(n).ok()).filter(|n| bytes.try_reserve_exact(*n).is_ok());
        let Some(length) = fits else {
            let what =
                format!("there is not enough memory for the text {name} of shape {:?}", shape.as_slice());
            return Err(usage(
                py,
                Kind::TierFull,
                what,
                "its writer gave it a longer shape than what was put",
            ));
        };
        bytes.resize(length, 0);
        self.shared.with(py, |state| state.in_step(self.serial)?.get(name, None, &mut bytes)).or_raise(py)?;
        String::from_utf8(bytes)
            .map_err(|e| raise(py, Error::new(Kind::Damaged, "text is not UTF-8").caused_by(e)))
    }

    /// Name and description of every variable of this version.
    #[getter]
    fn variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.shared.with(py, |state| state.in_step(self.serial)?.variables()).or_raise(py)?;
        let all = PyDict::new(py);
        for variable in found {
            let name = variable.name.clone();
            all.set_item(name, convert::Variable::new(py, variable)?)?;
        }
        Ok(all)
    }

    /// Attributes of this version, a mapping that cannot be set; those of the space are reader.attrs.
    #[getter]
    fn attrs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.shared.with(py, |state| state.in_step(self.serial)?.version_attributes());
        let all = convert::attributes(py, found.or_raise(py)?)?;
        py.import("types")?.getattr("MappingProxyType")?.call1((all,))
    }

    /// Counters of the handle behind this step.
    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.shared.with(py, |state| Ok(state.reader()?.stats())).or_raise(py)?;
        convert::to_python(py, &stats)
    }

    /// What the data of this version are known by, with its number: path and identity of the space.
    fn _identity(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let ask = |state: &mut Consuming| {
            let reader = state.in_step(self.serial)?;
            Ok((reader.path().display().to_string(), reader.uuid()))
        };
        self.shared.with(py, ask).or_raise(py)
    }

    /// Releases the version; arrays that were got stay valid. Does nothing when it is released already.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_own {
            return close(py, &self.shared);
        }
        if self.shared.with(py, |state| state.step.is_some_and(|s| s.serial == self.serial)) {
            end(py, &self.shared)?;
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        let closed = self.close(py);
        // An error of close would hide the one that is on its way.
        if kind.is_none() {
            closed
        } else {
            Ok(())
        }
    }

    /// The version.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// Versions that were dropped before this one, unread by this reader.
    #[getter]
    fn missed(&self) -> u64 {
        self.missed
    }

    /// step["T"] is the variable as a lazy array, which reads when it is indexed; step["T", 0:10, :] is
    /// step.get("T", numpy.s_[0:10, :]).
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, step) = (slf.py(), slf.get());
        let Ok(keys) = key.cast::<PyTuple>() else {
            let variable = step.variable(py, key.extract()?)?;
            return py.import("forebay._step_array")?.getattr("StepArray")?.call1((slf, variable));
        };
        let name = keys.get_item(0)?;
        let slices = keys.get_slice(1, keys.len());
        step.get(py, name.extract()?, Some(slices.as_any()), None, None, None, Some(true))
    }

    /// Names of the variables, as a list.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.shared.with(py, |state| state.in_step(self.serial)?.names()).or_raise(py)
    }

    /// The variables as lazy arrays.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let names = slf.get().keys(slf.py())?;
        names.iter().map(|name| Self::__getitem__(slf, PyString::new(slf.py(), name).as_any())).collect()
    }

    /// Names and lazy arrays.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        Ok(slf.get().keys(slf.py())?.into_iter().zip(Self::values(slf)?).collect())
    }

    /// Description of one variable: as variables[name], without those of all others.
    fn variable(&self, py: Python<'_>, name: &str) -> PyResult<convert::Variable> {
        let found = self.shared.with(py, |state| state.in_step(self.serial)?.variable(name));
        convert::Variable::new(py, found.or_raise(py)?)
    }

    /// Variables of one dimension as a table that pandas, Polars, DuckDB and PyArrow take without a copy (Arrow's
    /// PyCapsule interface): those named, or all of one dimension and the same length. Needs the package nanoarrow.
    #[pyo3(signature = (names=None))]
    fn table<'py>(slf: &Bound<'py, Self>, names: Option<Vec<String>>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("forebay._arrow")?.getattr("table")?.call1((slf, names))
    }

    /// Number of variables.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.keys(py)?.len())
    }

    /// A step is true, also when it holds nothing.
    fn __bool__(&self) -> bool {
        true
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::html(slf.as_any(), "step")
    }

    /// Elsewhere its version is opened by the path of the space.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let ask = |state: &mut Consuming| {
            let reader = state.in_step(self.serial)?;
            Ok((reader.path().display().to_string(), reader.mechanism().to_string(), reader.uuid()))
        };
        let (path, channel, uuid) = self.shared.with(py, ask).or_raise(py)?;
        convert::reopened(py, "open_step", (path, channel, uuid, self.version))
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let found = self.shared.with(py, |state| state.in_step(self.serial)?.array(name).map(|_| ()));
        match found {
            Err(error) if error.kind() == Kind::UnknownVariable => Ok(false),
            other => other.map(|()| true).or_raise(py),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyIterator>> {
        pyo3::types::PyList::new(py, self.keys(py)?)?.try_iter()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let what = match self.shared.with(py, |state| state.in_step(self.serial)?.names()) {
            Ok(names) if names.len() <= NAMED_MAX => names.join(", "),
            Ok(names) => format!("{} variables", names.len()),
            Err(error) if matches!(error.kind(), Kind::Closed | Kind::StepState) => "closed".into(),
            Err(error) => error.kind().name().into(),
        };
        format!("<forebay.ReadStep {}: {what}>", self.version)
    }
}

/// What is to be read.
struct Target<'a> {
    name: &'a str,
    dtype: Dtype,
    asked: &'a Asked,
    dims: Dims,
}

impl Target<'_> {
    #[inline]
    fn bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let items = self.dims.iter().try_fold(1u64, |all, n| all.checked_mul(*n));
        items.and_then(|n| n.checked_mul(self.dtype.size() as u64)).map(|n| n as usize).ok_or_else(|| {
            usage(py, Kind::Usage, format!("{} is larger than the address space", self.name), "")
        })
    }
}

/// The box of a call.
enum Asked {
    Whole,
    Region(NdBox),
    Selected(arrays::Selection),
}

impl Asked {
    #[inline]
    fn region(&self) -> Option<&NdBox> {
        match self {
            Asked::Whole => None,
            Asked::Region(region) => Some(region),
            Asked::Selected(selection) => Some(&selection.region),
        }
    }

    /// Shape of the resulting array.
    #[inline]
    fn dims(&self, shape: &Dims) -> Dims {
        match self {
            Asked::Whole => shape.clone(),
            Asked::Region(region) => region.count.clone(),
            Asked::Selected(selection) => {
                let axes = selection.region.count.iter().zip(&selection.kept);
                axes.filter(|(_, kept)| **kept).map(|(count, _)| *count).collect()
            }
        }
    }
}

#[inline]
fn asked(
    py: Python<'_>,
    shape: &Dims,
    slices: Option<&Bound<'_, PyAny>>,
    start: Option<&Bound<'_, PyAny>>,
    count: Option<&Bound<'_, PyAny>>,
) -> PyResult<Asked> {
    let Some(slices) = slices.filter(|s| !s.is_none()) else {
        return Ok(start_and_count(py, start, count)?.map_or(Asked::Whole, Asked::Region));
    };
    if start.is_some() || count.is_some() {
        return Err(usage(
            py,
            Kind::Usage,
            "a box was given by slices and by start/count",
            "give one of them",
        ));
    }
    arrays::select(slices, shape).map(Asked::Selected)
}

#[inline]
fn start_and_count(
    py: Python<'_>,
    start: Option<&Bound<'_, PyAny>>,
    count: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<NdBox>> {
    match (start.filter(|s| !s.is_none()), count.filter(|c| !c.is_none())) {
        (None, None) => Ok(None),
        (Some(start), Some(count)) => {
            NdBox::new(&arrays::dims(start)?, &arrays::dims(count)?).or_raise(py).map(Some)
        }
        _ => Err(usage(
            py,
            Kind::Usage,
            "a box needs both start= and count=",
            "or slices: step[\"T\", 0:10, :]",
        )),
    }
}

impl ReadStep {
    fn new(shared: Shared, step: OpenStep, is_own: bool) -> ReadStep {
        ReadStep { shared, version: step.version, serial: step.serial, missed: step.missed, is_own }
    }

    #[inline]
    fn look_up(&self, py: Python<'_>, name: &str) -> PyResult<(Dtype, Dims)> {
        self.shared.with(py, |state| state.in_step(self.serial)?.array(name)).or_raise(py)
    }

    /// A whole variable of one piece that is small enough to be copied, with one look-up; None for any other.
    #[inline]
    fn small<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let look = |dtype: Dtype, shape: &[u64], bytes: &[u8]| {
            // bfloat16 needs Python code to be named, which must not run while the channel is locked. Making an
            // ndarray of any other type runs none.
            (dtype != Dtype::BF16).then(|| {
                let mut array = NewArray::new(py, dtype, None, shape)?;
                array.bytes_mut().copy_from_slice(bytes);
                Ok(array.finish())
            })
        };
        let got = self
            .shared
            .with(py, |state| state.in_step(self.serial)?.with_object(name, SMALL_BYTES_MAX, look));
        got.or_raise(py)?.flatten().transpose()
    }

    fn fill_many(
        &self,
        py: Python<'_>,
        names: &[&str],
        dtype: Dtype,
        shape: &[u64],
        out: &mut [u8],
    ) -> PyResult<()> {
        let short = out.len() < GIL_BYTES;
        let get = |state: &mut Consuming| many::get(state.in_step(self.serial)?, names, dtype, shape, out);
        let done = if short { self.shared.with(py, get) } else { self.shared.without_gil(py, get) };
        done.or_raise(py)
    }

    #[inline]
    fn gather<'py>(&self, py: Python<'py>, target: &Target<'_>) -> PyResult<Bound<'py, PyAny>> {
        target.bytes(py)?;
        let descriptor = arrays::descriptor(py, target.dtype)?;
        let mut array = NewArray::new(py, target.dtype, descriptor.as_ref(), &target.dims)?;
        self.fill(py, target, array.bytes_mut())?;
        Ok(array.finish())
    }

    #[inline]
    fn fill(&self, py: Python<'_>, target: &Target<'_>, bytes: &mut [u8]) -> PyResult<()> {
        let short = bytes.len() < GIL_BYTES;
        let get = |state: &mut Consuming| {
            state.in_step(self.serial)?.get(target.name, target.asked.region(), bytes)
        };
        let done = if short { self.shared.with(py, get) } else { self.shared.without_gil(py, get) };
        done.or_raise(py)
    }

    /// Into the caller's array; through one temporary when that is not contiguous.
    #[cold]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        target: &Target<'_>,
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrays::descriptor(py, target.dtype)?;
        if let Some(into) = buffer::destination(out) {
            if convert::same_type(into.dtype, target.dtype) && into.dims == target.dims.as_slice() {
                self.fill(py, target, into.bytes)?;
                return Ok(out.clone());
            }
        } else if arrays::is_on_cuda_device(out)? {
            let about = (out, arrays::dtype_object(py, target.dtype)?, PyTuple::new(py, &target.dims)?);
            let filling = arrays::gpu(py)?.getattr("Filling")?.call1(about)?;
            let host = filling.getattr("host")?;
            if let Some(into) = buffer::destination(&host) {
                self.fill(py, target, into.bytes)?;
                filling.call_method0("finish")?;
                return Ok(out.clone());
            }
        } else if arrays::fits_strided(out, target.dtype, &target.dims)? {
            let gathered = self.gather(py, target)?;
            py.import("numpy")?.call_method1("copyto", (out, gathered))?;
            return Ok(out.clone());
        }
        let shape: Vec<u64> = target.dims.to_vec();
        let what = format!(
            "out= does not fit {}: it needs dtype {}, shape {shape:?}, and to be writable",
            target.name,
            target.dtype.name()
        );
        Err(usage(py, Kind::BufferMismatch, what, "numpy.empty(shape, dtype) makes one that fits"))
    }

    fn take_view(&self, py: Python<'_>, target: &Target<'_>) -> Result<View> {
        let view =
            |state: &mut Consuming| state.in_step(self.serial)?.view(target.name, target.asked.region());
        // The first view of a record compares its checksum: as long as a copy.
        self.shared.without_gil(py, view)
    }

    /// Read-only, however the pieces lie.
    fn view_or_copy<'py>(&self, py: Python<'py>, target: &Target<'_>) -> PyResult<Bound<'py, PyAny>> {
        match self.take_view(py, target) {
            Ok(view) => over_view(py, view, target),
            Err(error) if matches!(error.kind(), Kind::NotContiguous | Kind::NotPossibleHere) => {
                let copy = self.gather(py, target)?;
                copy.getattr("flags")?.setattr("writeable", false)?;
                Ok(copy)
            }
            Err(error) => Err(raise(py, error)),
        }
    }
}

fn over_view<'py>(py: Python<'py>, view: View, target: &Target<'_>) -> PyResult<Bound<'py, PyAny>> {
    let descriptor = arrays::descriptor(py, target.dtype)?;
    let lease = Bound::new(py, Lease { view })?;
    let bytes = lease.get().view.bytes();
    buffer::read_only_over(lease.clone().into_any(), bytes, target.dtype, descriptor.as_ref(), &target.dims)
}

/// Base of a viewed array: holds the version's memory until the last array over it is gone.
#[pyclass(module = "forebay", frozen)]
struct Lease {
    view: View,
}

/// Iterator over steps.
#[pyclass(module = "forebay", frozen)]
pub struct ReaderSteps {
    shared: Shared,
    left: std::sync::atomic::AtomicU64,
    timeout: Duration,
}

#[pymethods]
impl ReaderSteps {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ReadStep>> {
        self.advance(py, self.timeout)
    }

    /// Iterates while other tasks of the event loop run.
    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("forebay._reading")?
            .getattr("AsyncSteps")?
            .call1((slf, slf.get().timeout.as_secs_f64()))
    }

    /// As next(), without waiting; None at the end.
    fn _next_now(&self, py: Python<'_>) -> PyResult<Option<ReadStep>> {
        self.advance(py, Duration::ZERO)
    }
}

impl ReaderSteps {
    fn advance(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<ReadStep>> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.left.load(Relaxed) == 0 {
            if self.shared.with(py, |state| state.step.is_some_and(|s| s.automatic)) {
                end(py, &self.shared)?;
            }
            return Ok(None);
        }
        let Some(step) = begin(py, &self.shared, timeout, true)? else { return Ok(None) };
        self.left.fetch_sub(1, Relaxed);
        Ok(Some(ReadStep::new(self.shared.clone(), step, false)))
    }
}

/// Iterator over (version, array) of one variable.
#[pyclass(module = "forebay", frozen)]
pub struct Subscription {
    steps: ReaderSteps,
    name: String,
    region: Option<NdBox>,
}

#[pymethods]
impl Subscription {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        loop {
            let Some(step) = self.steps.__next__(py)? else { return Ok(None) };
            if !step.__contains__(py, &self.name)? {
                continue;
            }
            let (dtype, shape) = step.look_up(py, &self.name)?;
            let asked = self.region.clone().map_or(Asked::Whole, Asked::Region);
            let target = Target { name: &self.name, dtype, asked: &asked, dims: asked.dims(&shape) };
            return Ok(Some((step.version, step.gather(py, &target)?)));
        }
    }
}

/// Releases a step of `steps()` that is still open, then waits for the next; None at the end of the stream.
fn begin(py: Python<'_>, shared: &Shared, timeout: Duration, automatic: bool) -> PyResult<Option<OpenStep>> {
    let unseen = shared.with(py, |state| {
        let step = state.step.as_mut()?;
        std::mem::take(&mut step.is_unseen).then_some(*step)
    });
    if unseen.is_some() {
        return Ok(unseen);
    }
    if shared.with(py, |state| state.step.is_some_and(|s| s.automatic)) {
        end(py, shared)?;
    }
    let (step, missed) = wait_in_slices(py, timeout, |slice| {
        let mut state = shared.lock();
        let version = state.reader()?.begin_step(Some(slice))?;
        let missed = state.reader()?.missed();
        Ok((version.map(|v| state.opened(v, automatic)), missed))
    })?;
    if missed > 0 {
        say_missed(py, step.map(|step| step.version), missed).inspect_err(|_| {
            let mark = |state: &mut Consuming| state.step.iter_mut().for_each(|step| step.is_unseen = true);
            shared.with(py, mark);
        })?;
    }
    Ok(step)
}

#[cold]
fn say_missed(py: Python<'_>, version: Option<u64>, missed: u64) -> PyResult<()> {
    let before = version.map_or("the end of the stream".to_string(), |version| format!("version {version}"));
    let text = format!("{missed} versions before {before} were dropped before this reader came to them");
    py.import("warnings")?
        .call_method1("warn", (text, py.import("forebay._status")?.getattr("MissedVersions")?, 2))?;
    Ok(())
}

/// Closes a reader, or the version that one is.
fn close(py: Python<'_>, shared: &Shared) -> PyResult<()> {
    let reader = shared.with(py, |state| {
        state.step = None;
        state.reader.take()
    });
    detached(py, || reader.map_or(Ok(()), Reader::close)).or_raise(py)
}

/// A reader in the list of open handles.
struct Former(Weak<Cell<Consuming>>);

impl Handle for Former {
    fn is_open(&self, py: Python<'_>) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.with(py, |state| state.reader.is_some()))
    }

    fn open_step(&self, py: Python<'_>) -> Option<u64> {
        self.0.upgrade()?.with(py, |state| state.step.map(|step| step.version))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.upgrade().map_or(Ok(()), |shared| close(py, &shared))
    }
}

fn end(py: Python<'_>, shared: &Shared) -> PyResult<()> {
    shared
        .without_gil(py, |state| {
            state.reader()?;
            if state.step.is_none() {
                return Err(Error::new(Kind::StepState, "no step is open").hint("call begin_step() first"));
            }
            state.reader()?.end_step()?;
            state.step = None;
            Ok(())
        })
        .or_raise(py)
}
