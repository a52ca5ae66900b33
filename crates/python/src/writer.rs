//! `forebay.Writer` and its steps: the producing side.
//!
//! Guarantees: a step is published by `end_step()`, or by asking the iterator that `steps()` returned for the next
//! one, and by nothing else. A writer that is closed, left by `with` or lost while a step is open aborts the step, and
//! readers see a producer that failed, not an end of stream.
//! Arrays from `reserve` (`reserve.rs`) turn read-only at their commit. Does not check boxes: the space does.
//!
//! The space's writer is opened with a deadline of one slice, so that a call that finds no free space comes back soon,
//! whether it holds the GIL or not; it is then repeated in slices, without the GIL, up to the real deadline.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_space::{Description, Dims, Dtype, Error, Kind, OpenOptions, Result, Writer, CONCAT};
use forebay_tier::process::ForkMark;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer;
use crate::cell::{Cell, GIL_BYTES};
use crate::convert::Whole;
use crate::detach::detached;
use crate::errors::{may_come_yet, open_in_slices, usage, wait_in_slices, OrRaise, SLICE};
use crate::handles::{self, Handle, Key};
use crate::reserve::{self, Reserved};
use crate::{arrays, convert, many};

const ZEROS: [u64; 16] = [0; 16];

const END_OR_ABORT: &str =
    "call end_step() to publish it, or abort_step() to drop it, also after `break` in a loop over steps()";

/// What the handle and its steps share.
pub struct Producing {
    writer: Option<Writer>,
    step: Option<OpenStep>,
    reserved: Vec<Reserved>,
    /// Number of the next iterator of `steps()`.
    iterators: u64,
    /// The process that opened it.
    process: ForkMark,
}

#[derive(Clone, Copy)]
struct OpenStep {
    version: u64,
    /// The iterator that opened it and ends it.
    iterator: Option<u64>,
    /// The version is complete already and what is put is dropped.
    skipped: bool,
}

impl Producing {
    /// The writer, unless it is closed.
    pub fn writer(&mut self) -> Result<&mut Writer> {
        self.writer.as_mut().ok_or_else(closed)
    }

    /// The writer, when `version` is still the open step.
    #[inline]
    pub fn in_step(&mut self, version: u64) -> Result<&mut Writer> {
        match self.step {
            Some(step) if step.version == version => self.writer(),
            _ => Err(self.stale(version)),
        }
    }

    #[cold]
    fn stale(&self, version: u64) -> Error {
        if self.writer.is_none() {
            return closed();
        }
        Error::new(Kind::StepState, format!("step {version} has ended"))
            .hint("put inside the loop body of steps(), or between begin_step() and end_step()")
    }
}

#[cold]
fn closed() -> Error {
    Error::new(Kind::Closed, "this writer is closed")
}

/// See [`Producing`].
pub type Shared = Arc<Cell<Producing>>;

/// One rank of the group that writes a space. Made by `forebay.open(name, "w")`.
#[pyclass(name = "Writer", module = "forebay", frozen)]
pub struct PyWriter {
    shared: Shared,
    name: String,
    path: String,
    rank: u32,
    size: u32,
    timeout: Duration,
}

impl PyWriter {
    /// Opens the space; blocks without the GIL.
    pub fn open(py: Python<'_>, name: &str, options: OpenOptions) -> PyResult<PyWriter> {
        let timeout = options.timeout;
        let key = Key::of("writer", name, &options);
        handles::close_former(py, key.as_ref(), name)?;
        let in_slices = OpenOptions { timeout: SLICE.min(timeout), ..options.clone() };
        let writer = open_in_slices(py, timeout, |_| Writer::open(name, &in_slices))?;
        let (rank, size) = (writer.rank(), writer.size());
        let (name, path) = (writer.name().to_string(), writer.path().display().to_string());
        let process = ForkMark::here();
        let state =
            Producing { writer: Some(writer), step: None, reserved: Vec::new(), iterators: 0, process };
        let shared = Arc::new(Cell::new(state));
        handles::note(py, key, Box::new(Former { shared: Arc::downgrade(&shared), timeout }));
        Ok(PyWriter { shared, name, path, rank, size, timeout })
    }

    fn ask<R>(&self, py: Python<'_>, question: impl FnOnce(&mut Writer) -> R) -> PyResult<R> {
        self.shared.with(py, |state| state.writer().map(question)).or_raise(py)
    }

    /// What the open handle and its steps share; `Closed` behind its end.
    fn ask_state<R>(&self, py: Python<'_>, question: impl FnOnce(&mut Producing) -> R) -> PyResult<R> {
        let answer = |state: &mut Producing| {
            state.writer()?;
            Ok(question(state))
        };
        self.shared.with(py, answer).or_raise(py)
    }

    fn current(&self, py: Python<'_>) -> PyResult<WriteStep> {
        match self.ask_state(py, |state| state.step)? {
            Some(step) => Ok(self.step_object(step)),
            None => {
                Err(usage(py, Kind::StepState, "no step is open", "call begin_step() or loop over steps()"))
            }
        }
    }

    fn step_object(&self, step: OpenStep) -> WriteStep {
        WriteStep {
            shared: self.shared.clone(),
            version: step.version,
            skipped: step.skipped,
            size: self.size,
            timeout: self.timeout,
        }
    }
}

#[pymethods]
impl PyWriter {
    /// Begins a step; with version=, that one (see resume()). Returns StepStatus.OK.
    #[pyo3(signature = (version=None))]
    fn begin_step<'py>(&self, py: Python<'py>, version: Option<Whole>) -> PyResult<Bound<'py, PyAny>> {
        begin(py, &self.shared, version.map(|v| v.0), None, self.timeout)?;
        convert::status(py, "OK")
    }

    /// Ends the open step: commits what was reserved and acknowledges this rank's part. Returns StepStatus.OK.
    fn end_step<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        end(py, &self.shared, None, self.timeout)?;
        convert::status(py, "OK")
    }

    /// Gives the open step up; readers never see it.
    fn abort_step(&self, py: Python<'_>) -> PyResult<()> {
        abort(py, &self.shared)
    }

    /// First version that is not complete; later steps go on from there.
    fn resume(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.without_gil(py, |state| state.writer()?.resume()).or_raise(py)
    }

    /// Iterates over n new steps (without end if n is not given). Asking for the next step publishes the one before;
    /// after `break`, call end_step() or abort_step().
    #[pyo3(signature = (n=None))]
    fn steps(&self, py: Python<'_>, n: Option<Whole>) -> WriterSteps {
        let number = self.shared.with(py, |state| {
            state.iterators += 1;
            state.iterators
        });
        WriterSteps {
            shared: self.shared.clone(),
            number,
            left: std::sync::atomic::AtomicU64::new(n.map_or(u64::MAX, |n| n.0)),
            size: self.size,
            timeout: self.timeout,
        }
    }

    /// The open step.
    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<WriteStep> {
        self.current(py)
    }

    /// As step.put, into the open step.
    #[pyo3(signature = (name, array, /, shape=None, start=None, *, dims=None, attrs=None, concat=false))]
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        array: &Bound<'_, PyAny>,
        shape: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
        dims: Option<&Bound<'_, PyAny>>,
        attrs: Option<&Bound<'_, PyAny>>,
        concat: bool,
    ) -> PyResult<()> {
        self.current(py)?.put(py, name, array, shape, start, dims, attrs, concat)
    }

    /// As step.put_many, into the open step.
    #[pyo3(signature = (names, arrays=None, /))]
    fn put_many(
        &self,
        py: Python<'_>,
        names: &Bound<'_, PyAny>,
        arrays: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.current(py)?.put_many(py, names, arrays)
    }

    /// As step.reserve, in the open step.
    #[pyo3(signature = (name, shape, *, dtype=None, start=None, count=None, concat=false))]
    #[allow(clippy::too_many_arguments)]
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
        concat: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.current(py)?.reserve(py, name, shape, dtype, start, count, concat)
    }

    /// As step.commit, in the open step.
    fn commit(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        self.current(py)?.commit(py, array)
    }

    /// Attributes of the space, as a mapping that can be set.
    #[getter]
    fn attrs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::attributes_object(slf.as_any())
    }

    fn _attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.ask(py, |writer| writer.attributes())?;
        convert::attributes(py, found.or_raise(py)?)
    }

    fn _set_attribute(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = convert::attribute(value)?;
        wait_in_slices(py, self.timeout, |_| self.shared.lock().writer()?.set_attribute(key, &value))
    }

    /// Counters and times of this handle.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.ask(py, |writer| writer.stats())?;
        convert::to_python(py, &stats)
    }

    /// Bytes of the quota, that of lower tiers included, that are in no segment, after those that no reader needs were
    /// freed; None of a channel of files.
    #[getter]
    fn free_bytes(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.ask(py, |writer| writer.free_bytes())?.or_raise(py)
    }

    /// What forebay.inspect() says of this space.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::inspect(py, &self.path)
    }

    /// Closes this rank; readers see the end of the stream when every rank has closed. A step that is open is aborted:
    /// readers get ProducerDied behind the last complete version, and StepState is raised unless an exception is
    /// being handled.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        close(py, &self.shared, self.timeout, is_handling_exception(py)?)
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
        if kind.is_none() {
            return close(py, &self.shared, self.timeout, false);
        }
        abandon(py, &self.shared);
        Ok(())
    }

    /// True once the channel is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.shared.with(py, |state| state.writer.is_none())
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

    /// Which start of the group this is; grows by one at each restart.
    #[getter]
    fn incarnation(&self, py: Python<'_>) -> PyResult<u32> {
        self.ask(py, |writer| writer.incarnation())
    }

    /// What an acknowledged step survives: "process crash", "OS crash" or "power failure".
    #[getter]
    fn durability(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |writer| writer.durability().to_string())
    }

    /// Version of the next step.
    #[getter]
    fn next_version(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |writer| writer.next_version())
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::html(slf.as_any(), "writer")
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        Err(convert::no_pickle(py, "a writer", "open the space in the other process, as a rank of its own"))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.closed(py) { ", closed" } else { "" };
        format!("<forebay.Writer {:?} rank {} of {}{state}>", self.name, self.rank, self.size)
    }
}

/// Which part of a variable an array is, as the caller says it.
struct Placed<'a, 'py> {
    shape: Option<&'a Bound<'py, PyAny>>,
    start: Option<&'a Bound<'py, PyAny>>,
    concat: bool,
}

/// One version being written.
#[pyclass(module = "forebay", frozen)]
pub struct WriteStep {
    shared: Shared,
    version: u64,
    skipped: bool,
    size: u32,
    timeout: Duration,
}

#[pymethods]
impl WriteStep {
    /// Copies an array into the space under a name.
    ///
    /// shape is the global shape and start the place of this array in it; both default to the whole when the group
    /// has one rank. Any ndarray, buffer, DLPack object, str or number is taken, also an array in the memory of a CUDA
    /// device. With concat=True the variable is what all ranks put, one behind the other along the first dimension in
    /// the order of ranks, and no rank needs to know what the others bring. dims names the dimensions, attrs are
    /// attributes of the variable in this version.
    #[pyo3(signature = (name, array, /, shape=None, start=None, *, dims=None, attrs=None, concat=false))]
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        array: &Bound<'_, PyAny>,
        shape: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
        dims: Option<&Bound<'_, PyAny>>,
        attrs: Option<&Bound<'_, PyAny>>,
        concat: bool,
    ) -> PyResult<()> {
        let place = Placed { shape, start, concat };
        if let Some(found) = buffer::contiguous(array) {
            let said = description_of(py, name, found.dims, dims, attrs)?;
            self.put_bytes(py, name, found.dtype, found.dims, found.bytes, place)?;
            return self.say(py, name, said);
        }
        let (copy, text) = arrays::to_contiguous(array)?;
        let found = buffer::contiguous(&copy).expect("to_contiguous returns what contiguous reads");
        let dtype = if text { Dtype::Str } else { found.dtype };
        let said = description_of(py, name, found.dims, dims, attrs)?;
        self.put_bytes(py, name, dtype, found.dims, found.bytes, place)?;
        self.say(py, name, said)
    }

    /// Names the dimensions of a variable of this step and sets attributes of it, as put does with dims= and attrs=,
    /// for what is put by reserve or put_many.
    #[pyo3(signature = (name, *, dims=None, attrs=None))]
    fn describe(
        &self,
        py: Python<'_>,
        name: &str,
        dims: Option<&Bound<'_, PyAny>>,
        attrs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.say(py, name, convert::description(py, name, dims, attrs, None)?)
    }

    /// Attributes of this version, as a mapping that can be set.
    #[getter]
    fn attrs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        convert::attributes_object(slf.as_any())
    }

    fn _attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let set = |state: &mut Producing| Ok(state.in_step(self.version)?.version_attributes().clone());
        convert::attributes(py, self.shared.with(py, set).or_raise(py)?)
    }

    fn _set_attribute(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = convert::attribute(value)?;
        let set = |state: &mut Producing| state.in_step(self.version)?.set_version_attribute(key, &value);
        self.shared.with(py, set).or_raise(py)
    }

    /// Puts many objects, each whole and under its own name: put_many(names, array) with one object per entry of
    /// the first axis, put_many(names, arrays), or put_many({name: array}).
    #[pyo3(signature = (names, arrays=None, /))]
    fn put_many(
        &self,
        py: Python<'_>,
        names: &Bound<'_, PyAny>,
        arrays: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let objects = many::Objects::new(names, arrays)?;
        let pieces = objects.pieces()?;
        let bytes: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut done = 0;
        let mut put = |state: &mut Producing| many::put(state.in_step(self.version)?, &pieces, &mut done);
        let first = if bytes < GIL_BYTES {
            self.shared.with(py, &mut put)
        } else {
            self.shared.without_gil(py, &mut put)
        };
        match first {
            Err(error) if may_come_yet(&error) && self.timeout > SLICE => {
                py.check_signals()?;
                wait_in_slices(py, self.timeout - SLICE, |_| put(&mut self.shared.lock()))
            }
            other => other.or_raise(py),
        }
    }

    /// Memory inside the pool for an array that this rank is about to compute: write into it, no copy is made.
    ///
    /// It is committed at the end of the step, or by commit(), and is read-only from then on. With concat=True shape is
    /// that of the array, which is one of those that make up the variable (see put).
    #[pyo3(signature = (name, shape, *, dtype=None, start=None, count=None, concat=false))]
    #[allow(clippy::too_many_arguments)]
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        count: Option<&Bound<'py, PyAny>>,
        concat: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = dtype.map_or(Ok(Dtype::F64), arrays::parse_dtype)?;
        let mut shape = arrays::dims(shape)?;
        let (start, count) = if concat {
            let local = shape;
            shape = self.concatenated(py, &local, start, count)?;
            (Dims::from_slice(zeros(py, &local)?), local)
        } else {
            self.reserved_box(py, &shape, start, count)?
        };
        let place = reserve::Place { name, dtype, shape: &shape, start: &start, count: &count };
        let (version, skipped) = (self.version, self.skipped);
        let (reserved, array) = reserve::reserve(py, &self.shared, version, skipped, &place, self.timeout)?;
        self.shared.with(py, |state| state.reserved.push(reserved));
        Ok(array)
    }

    /// Publishes one reserved array before the end of the step; it is read-only afterwards.
    fn commit(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let found = self.shared.with(py, |state| {
            let at = state.reserved.iter().position(|r| r.is(array))?;
            let name = state.reserved[at].concatenated();
            let is_next = name.is_none_or(|name| !state.reserved[..at].iter().any(|r| r.is_part_of(name)));
            Some(is_next.then(|| (at, state.reserved.remove(at))))
        });
        let (at, reserved) = match found {
            Some(Some(found)) => found,
            Some(None) => return Err(out_of_order(py)),
            None => {
                let hint = "commit takes the array that reserve returned, once, not a slice of it";
                return Err(usage(py, Kind::Usage, "this array is not reserved in the open step", hint));
            }
        };
        commit(py, &self.shared, at, reserved, self.version, self.timeout)
    }

    /// The version that this step will be.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// True when the version is complete already (mode "a") and puts are dropped.
    #[getter]
    fn skipped(&self) -> bool {
        self.skipped
    }

    fn __repr__(&self) -> String {
        format!("<forebay.WriteStep {}>", self.version)
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        Err(convert::no_pickle(py, "a step that is written", "open the space in the other process"))
    }
}

impl WriteStep {
    /// Says what a variable is, behind its put: one that fails leaves nothing.
    #[inline]
    fn say(&self, py: Python<'_>, name: &str, said: Option<Description>) -> PyResult<()> {
        let Some(said) = said else { return Ok(()) };
        self.shared.with(py, |state| state.in_step(self.version)?.describe(name, said)).or_raise(py)
    }

    /// The global shape of an array of size `dims` that is one of those that make up the variable.
    fn concatenated(
        &self,
        py: Python<'_>,
        dims: &[u64],
        shape: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dims> {
        if shape.or(start).is_some_and(|given| !given.is_none()) {
            let hint = "with concat=True shape= and start= are computed from the pieces of all ranks";
            return Err(usage(py, Kind::Usage, "shape= or start= was given with concat=True", hint));
        }
        let mut global = Dims::from_slice(dims);
        match global.first_mut() {
            Some(first) => *first = CONCAT,
            None => {
                return Err(usage(
                    py,
                    Kind::Usage,
                    "a number has no dimension to concatenate along",
                    "put an array",
                ))
            }
        }
        Ok(global)
    }

    #[inline]
    fn put_bytes(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: Dtype,
        dims: &[u64],
        bytes: &[u8],
        place: Placed<'_, '_>,
    ) -> PyResult<()> {
        let Placed { shape, start, concat } = place;
        if concat {
            let global = self.concatenated(py, dims, shape, start)?;
            if self.shared.with(py, |state| state.reserved.iter().any(|r| r.is_part_of(name))) {
                return Err(out_of_order(py));
            }
            return self.hand_over(py, name, dtype, [&global, zeros(py, dims)?, dims], bytes);
        }
        match (shape, start) {
            (None, None) if self.size == 1 => {
                self.hand_over(py, name, dtype, [dims, zeros(py, dims)?, dims], bytes)
            }
            _ => {
                let (shape, start) = self.placed(py, dims, shape, start)?;
                self.hand_over(py, name, dtype, [&shape, &start, dims], bytes)
            }
        }
    }

    /// `[shape, start, count]` and the bytes to the space; the GIL is kept for small arrays.
    #[inline]
    fn hand_over(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: Dtype,
        [shape, start, count]: [&[u64]; 3],
        bytes: &[u8],
    ) -> PyResult<()> {
        let put =
            |state: &mut Producing| state.in_step(self.version)?.put(name, dtype, shape, start, count, bytes);
        let done = if bytes.len() < GIL_BYTES {
            self.shared.with(py, put)
        } else {
            self.shared.without_gil(py, put)
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) if may_come_yet(&error) && self.timeout > SLICE => {
                py.check_signals()?;
                wait_in_slices(py, self.timeout - SLICE, |_| put(&mut self.shared.lock()))
            }
            error => error.or_raise(py),
        }
    }

    /// Global shape and start of an array of size `dims`, as far as the caller said.
    #[cold]
    fn placed(
        &self,
        py: Python<'_>,
        dims: &[u64],
        shape: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Dims, Dims)> {
        let shape = shape.filter(|s| !s.is_none()).map(arrays::dims).transpose()?;
        let start = start.filter(|s| !s.is_none()).map(arrays::dims).transpose()?;
        let hint = "give both: step.put(name, array, shape=(N, M), start=(row, 0))";
        match (shape, start) {
            (Some(shape), Some(start)) => Ok((shape, start)),
            (Some(shape), None) if shape.as_slice() == dims => {
                Ok((shape, Dims::from_slice(zeros(py, dims)?)))
            }
            (None, None) if self.size == 1 => {
                Ok((Dims::from_slice(dims), Dims::from_slice(zeros(py, dims)?)))
            }
            (Some(_), None) => {
                Err(usage(py, Kind::Usage, "shape= differs from the array and start= is missing", hint))
            }
            (None, Some(_)) => Err(usage(py, Kind::Usage, "start= was given without shape=", hint)),
            (None, None) => {
                let what = format!("shape= and start= are missing: the group has {} ranks", self.size);
                Err(usage(py, Kind::Usage, what, hint))
            }
        }
    }

    fn reserved_box(
        &self,
        py: Python<'_>,
        shape: &Dims,
        start: Option<&Bound<'_, PyAny>>,
        count: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Dims, Dims)> {
        let start = start.filter(|s| !s.is_none()).map(arrays::dims).transpose()?;
        let count = count.filter(|s| !s.is_none()).map(arrays::dims).transpose()?;
        match (start, count) {
            (Some(start), Some(count)) => Ok((start, count)),
            (None, None) if self.size == 1 => Ok((Dims::from_slice(zeros(py, shape)?), shape.clone())),
            (None, Some(count)) if count == *shape => Ok((Dims::from_slice(zeros(py, shape)?), count)),
            _ => {
                let hint = "give both: step.reserve(name, shape=(N, M), start=(row, 0), count=(rows, M))";
                Err(usage(py, Kind::Usage, "start= or count= is missing", hint))
            }
        }
    }
}

/// What `dims=` and `attrs=` say of an array with these extents.
#[inline]
fn description_of(
    py: Python<'_>,
    name: &str,
    array: &[u64],
    dims: Option<&Bound<'_, PyAny>>,
    attrs: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Description>> {
    match (dims, attrs) {
        (None, None) => Ok(None),
        _ => convert::description(py, name, dims, attrs, Some(array.len())),
    }
}

/// The error of a part of a concatenated variable that would come before one that was reserved earlier.
#[cold]
fn out_of_order(py: Python<'_>) -> PyErr {
    let hint =
        "commit the parts of a concatenated variable in the order in which they were reserved, before others";
    usage(py, Kind::StepState, "a part of this variable that was reserved before is not committed", hint)
}

/// As many zeros as there are dimensions.
#[inline]
fn zeros(py: Python<'_>, dims: &[u64]) -> PyResult<&'static [u64]> {
    ZEROS.get(..dims.len()).ok_or_else(|| {
        let what = format!("an array of {} dimensions", dims.len());
        usage(py, Kind::Usage, what, "at most 16 dimensions can be kept")
    })
}

/// Iterator over new steps.
#[pyclass(module = "forebay", frozen)]
pub struct WriterSteps {
    shared: Shared,
    number: u64,
    left: std::sync::atomic::AtomicU64,
    size: u32,
    timeout: Duration,
}

#[pymethods]
impl WriterSteps {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<WriteStep>> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.shared.with(py, |state| state.step.is_some_and(|s| s.iterator == Some(self.number))) {
            end(py, &self.shared, None, self.timeout)?;
        }
        if self.left.load(Relaxed) == 0 {
            return Ok(None);
        }
        let step = begin(py, &self.shared, None, Some(self.number), self.timeout)?;
        self.left.fetch_sub(1, Relaxed);
        let (shared, size, timeout) = (self.shared.clone(), self.size, self.timeout);
        Ok(Some(WriteStep { shared, version: step.version, skipped: step.skipped, size, timeout }))
    }
}

/// Begins a step, which an iterator may end.
fn begin(
    py: Python<'_>,
    shared: &Shared,
    version: Option<u64>,
    iterator: Option<u64>,
    timeout: Duration,
) -> PyResult<OpenStep> {
    if let Some(step) = shared.with(py, |state| state.step) {
        return Err(usage(py, Kind::StepState, format!("step {} is open", step.version), END_OR_ABORT));
    }
    wait_in_slices(py, timeout, |_slice| {
        let mut state = shared.lock();
        let version = version.map_or_else(|| state.writer().map(|w| w.next_version()), Ok)?;
        let skipped = !state.writer()?.begin_version(version)?;
        let step = OpenStep { version, iterator, skipped };
        state.step = Some(step);
        Ok(step)
    })
}

/// Commits the array that was reserved as number `at`; one that fails stays reserved, so that no step ends without it.
fn commit(
    py: Python<'_>,
    shared: &Shared,
    at: usize,
    mut reserved: Reserved,
    version: u64,
    timeout: Duration,
) -> PyResult<()> {
    reserved.commit(py, shared, version, timeout).inspect_err(|_| {
        shared.with(py, |state| state.reserved.insert(at.min(state.reserved.len()), reserved));
    })
}

/// Commits what is reserved, then ends the open step (of that version, when one is given).
fn end(py: Python<'_>, shared: &Shared, version: Option<u64>, timeout: Duration) -> PyResult<()> {
    let open = shared
        .with(py, |state| {
            state.writer()?;
            Ok(state.step)
        })
        .or_raise(py)?;
    let Some(step) = open.filter(|s| version.is_none_or(|v| v == s.version)) else {
        return Err(usage(py, Kind::StepState, "no step is open", "call begin_step() first"));
    };
    loop {
        // In the order of their reservation.
        let first = shared.with(py, |state| (!state.reserved.is_empty()).then(|| state.reserved.remove(0)));
        let Some(reserved) = first else { break };
        commit(py, shared, 0, reserved, step.version, timeout)?;
    }
    wait_in_slices(py, timeout, |_slice| {
        let mut state = shared.lock();
        state.writer()?.end_step()?;
        state.step = None;
        Ok(())
    })
}

fn abort(py: Python<'_>, shared: &Shared) -> PyResult<()> {
    let reserved = shared.with(py, |state| std::mem::take(&mut state.reserved));
    let frozen = reserved.iter().try_for_each(|r| r.freeze(py));
    drop(reserved);
    shared
        .without_gil(py, |state| {
            state.writer()?.abort_step()?;
            state.step = None;
            Ok(())
        })
        .or_raise(py)?;
    frozen
}

/// Closes, or leaves as a producer that failed when a step is open; that is an error unless `failing` says that another
/// is on its way.
fn close(py: Python<'_>, shared: &Shared, timeout: Duration, failing: bool) -> PyResult<()> {
    if shared.with(py, |state| state.writer.is_none()) {
        return Ok(());
    }
    if let Some(step) = shared.with(py, |state| state.step) {
        shared.with(py, |state| state.process.check("writer")).or_raise(py)?;
        abandon(py, shared);
        if failing {
            return Ok(());
        }
        let what = format!("step {} was open when its writer closed: it is aborted", step.version);
        return Err(usage(py, Kind::StepState, what, END_OR_ABORT));
    }
    // Closing happens once and cannot be taken up again, so it gets the whole deadline and not a slice of it.
    detached(py, || {
        shared.lock().leave(|mut writer| {
            writer.set_timeout(timeout);
            writer.close()
        })
    })
    .or_raise(py)
}

/// A writer in the list of open handles.
struct Former {
    shared: Weak<Cell<Producing>>,
    timeout: Duration,
}

impl Handle for Former {
    fn is_open(&self, py: Python<'_>) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.with(py, |state| state.writer.is_some()))
    }

    fn open_step(&self, py: Python<'_>) -> Option<u64> {
        self.shared.upgrade()?.with(py, |state| state.step.map(|step| step.version))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.upgrade().map_or(Ok(()), |shared| close(py, &shared, self.timeout, false))
    }

    fn abandon(&self, py: Python<'_>) {
        // A daemon thread that waits in a call keeps the writer until the process ends, which leaves it dead, too.
        if let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_in_use()) {
            abandon(py, &shared);
        }
    }
}

/// Whether the caller runs in `except` or `finally` while an exception passes through.
fn is_handling_exception(py: Python<'_>) -> PyResult<bool> {
    Ok(!py.import("sys")?.call_method0("exception")?.is_none())
}

/// Leaves as a producer that failed: the open step is aborted and no end of stream is announced.
fn abandon(py: Python<'_>, shared: &Shared) {
    // An error here would hide the one that is on its way.
    let _ = abort(py, shared);
    let _ = detached(py, || {
        shared.lock().leave(|writer| {
            writer.abandon();
            Ok(())
        })
    });
}

impl Producing {
    /// Takes the writer out and ends it.
    fn leave(&mut self, end: impl FnOnce(Writer) -> Result<()>) -> Result<()> {
        self.writer.take().map_or(Ok(()), end)
    }
}

/// For a handle that Python lost without closing it.
impl Drop for Producing {
    fn drop(&mut self) {
        let failed = self.step.is_some();
        self.reserved.clear();
        if let (Some(writer), true) = (&mut self.writer, failed) {
            // The program did not come to the end of its step. Errors have nowhere to go from here.
            let _ = writer.abort_step();
        }
        let _ = self.leave(|writer| {
            if failed {
                writer.abandon();
                return Ok(());
            }
            writer.close()
        });
    }
}
