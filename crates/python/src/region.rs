//! `forebay.map` and `forebay.Region`: a file on a tier as writable memory, persisted where and when the program says.
//!
//! Guarantees: arrays over a region keep its memory mapped, also when the region is closed meanwhile; `persist` and
//! large copies run without the GIL. What a persisted range survives is the tier's promise (`durability`).

use std::path::PathBuf;

use forebay_space::{Error, Kind, Result};
use forebay_tier::{MapMode, SharedRegion, TierKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays;
use crate::buffer::{self, RegionMemory};
use crate::cell::GIL_BYTES;
use crate::detach::detached;
use crate::errors::{raise, usage, OrRaise};

/// Maps a file on a tier as writable memory.
///
/// path: the file. Symbolic links are not followed in its last part.
/// nbytes: its exact size in bytes; may be left out for a file that is there.
/// tier: "dram", "numa:N" (memory of node N, where "dram" is), "numa:N+M" (of both, in turn), "pmem" or "file"; the
///     directory must be on it ("file" is possible everywhere). None finds out.
/// mode: "a+" opens the file, or makes it; "r+" opens it; "r" opens it for reading only; "x+" makes it and fails when
///     it is there; "w+" removes what is there first. A new file holds zeros, is 0600, and appears when complete.
///
/// Free space is checked before a page is touched, and pages are faulted in except on file (some 0.2 ms per MiB); runs
/// without the GIL.
///
/// Raises TierFull, NotPossibleHere (the directory is not on this tier, or the tier cannot be mapped), OptionMismatch
/// (the file has another size), PermissionDenied, Io (missing, or there and must not be), Usage.
#[pyfunction]
#[pyo3(signature = (path, nbytes=None, tier=None, mode="a+"))]
pub fn map<'py>(
    py: Python<'py>,
    path: PathBuf,
    nbytes: Option<&Bound<'py, PyAny>>,
    tier: Option<&str>,
    mode: &str,
) -> PyResult<Bound<'py, PyRegion>> {
    arrays::prepare_numpy(py)?;
    let bytes = nbytes.map(|n| size("nbytes", n)).transpose()?;
    let tier = tier.map(str::parse::<TierKind>).transpose().or_raise(py)?;
    let mode: MapMode = mode.parse().or_raise(py)?;
    let region = detached(py, || SharedRegion::map(&path, bytes, tier, mode)).or_raise(py)?;
    Bound::new(py, PyRegion::over(region))
}

/// A mapped file. Made by `forebay.map`.
///
/// Offers its memory through the buffer protocol (memoryview, numpy.frombuffer) and as arrays. Other processes that map
/// the file see stores at once. Stores survive the end of the process; what `persist` returned for survives what
/// `durability` says. A context manager: it closes at the end.
#[pyclass(name = "Region", module = "forebay", extends = RegionMemory, frozen)]
pub struct PyRegion {
    path: String,
    tier: TierKind,
    durability: String,
    nbytes: usize,
    writable: bool,
}

impl PyRegion {
    fn over(region: SharedRegion) -> PyClassInitializer<PyRegion> {
        let own = PyRegion {
            path: region.path().display().to_string(),
            tier: region.tier(),
            durability: region.durability().to_string(),
            nbytes: region.len(),
            writable: region.is_writable(),
        };
        PyClassInitializer::from(RegionMemory::new(region)).add_subclass(own)
    }

    /// Carries out `work`, without the GIL where that is worth it: a small range takes less time than giving the GIL
    /// back and forth, but a disk always takes more.
    fn work(
        slf: &Bound<'_, Self>,
        bytes: usize,
        work: impl FnOnce(&SharedRegion) -> Result<()> + Send,
    ) -> PyResult<()> {
        let py = slf.py();
        let region = slf.as_super().get().region().or_raise(py)?;
        if bytes >= GIL_BYTES || slf.get().tier == TierKind::File {
            return detached(py, || work(&region)).or_raise(py);
        }
        work(&region).or_raise(py)
    }
}

#[pymethods]
impl PyRegion {
    /// Makes `nbytes` bytes (None: all to the end) from `offset` (in bytes) on persistent, however they were stored.
    ///
    /// On pmem cache lines are written back and fenced; on file the pages go to the disk (one msync), which takes
    /// milliseconds; on dram there is nothing to persist to, and it is one fence.
    ///
    /// Raises Usage (a range outside), PermissionDenied (mode "r"), Closed, and Poisoned: the first flush that fails
    /// poisons the region for good, since the kernel may have dropped the pages that it could not write.
    #[pyo3(signature = (offset=None, nbytes=None))]
    fn persist(
        slf: &Bound<'_, Self>,
        offset: Option<&Bound<'_, PyAny>>,
        nbytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let start = offset.map_or(Ok(0), |n| size("offset", n))?;
        let end = match nbytes {
            Some(bytes) => start.saturating_add(size("nbytes", bytes)?),
            None => slf.get().nbytes.max(start),
        };
        Self::work(slf, end - start, |region| region.persist(start..end))
    }

    /// Copies an array, or anything with a buffer, to `offset` (in bytes) and makes it persistent, in one pass: as a
    /// copy and `persist`, but on pmem from 256 bytes on, and on dram from 16 KiB on, past the cache. An array that is
    /// not C-contiguous is first copied into one that is; the bytes are taken as they are.
    ///
    /// Raises what persist raises; BufferMismatch for Python objects; Usage when the array lies in the very range; on
    /// file also TierFull: a part may then have been copied.
    fn copy_persist(
        slf: &Bound<'_, Self>,
        offset: &Bound<'_, PyAny>,
        array: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let offset = size("offset", offset)?;
        if let Some(found) = buffer::contiguous(array) {
            return Self::work(slf, found.bytes.len(), |region| region.copy_persist(offset, found.bytes));
        }
        let array = as_bytes(array)?;
        let found = buffer::contiguous(&array).expect("made as a contiguous array of bytes");
        Self::work(slf, found.bytes.len(), |region| region.copy_persist(offset, found.bytes))
    }

    /// An array of this shape in the region, from `offset` (in bytes) on, in C order; nothing is copied. Without a
    /// shape, all whole elements from the offset to the end. Read-only in mode "r". It keeps the memory mapped.
    ///
    /// Raises BufferMismatch when it would end outside, Usage for a dtype of Python objects, Closed.
    #[pyo3(signature = (shape=None, dtype=None, offset=None))]
    #[pyo3(text_signature = "(self, shape=None, dtype='float64', offset=0)")]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        shape: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        offset: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let np = arrays::numpy(py)?;
        let offset = offset.map_or(Ok(0), |n| size("offset", n))?;
        let dtype = match dtype {
            Some(dtype) => np.call_method1("dtype", (dtype,))?,
            None => np.call_method1("dtype", ("float64",))?,
        };
        let item: u64 = dtype.getattr("itemsize")?.extract()?;
        if item == 0 || dtype.getattr("hasobject")?.is_truthy()? {
            let what = format!("elements of dtype {} cannot be stored in a file", dtype.str()?);
            return Err(usage(py, Kind::Usage, what, "numbers, and records of numbers, can"));
        }
        let left = slf.get().nbytes.saturating_sub(offset) as u64;
        let dims = match shape {
            Some(shape) => arrays::dims(shape)?,
            None => [left / item].into_iter().collect(),
        };
        let wanted = dims.iter().try_fold(item, |bytes, n| bytes.checked_mul(*n));
        if offset > slf.get().nbytes || wanted.is_none_or(|wanted| wanted > left) {
            return Err(raise(py, outside(&dims, item, offset, slf.get().nbytes)));
        }
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", dtype)?;
        keywords.set_item("buffer", slf)?;
        keywords.set_item("offset", offset)?;
        np.call_method("ndarray", (PyTuple::new(py, &dims)?,), Some(&keywords))
    }

    /// Ends the use of the region. Arrays over it stay valid, and keep the memory mapped; nothing more is persisted.
    /// What was stored is in the file.
    fn close(slf: &Bound<'_, Self>) {
        slf.as_super().get().close();
    }

    /// The file, as it was given.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// The tier: "dram", "numa:0", "pmem" or "file".
    #[getter]
    fn tier(&self) -> String {
        self.tier.to_string()
    }

    /// What a persisted range survives: "process crash" or "power failure".
    #[getter]
    fn durability(&self) -> &str {
        &self.durability
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Whether it may be written to; False in mode "r".
    #[getter]
    fn writable(&self) -> bool {
        self.writable
    }

    /// Whether it was closed.
    #[getter]
    fn closed(slf: &Bound<'_, Self>) -> bool {
        slf.as_super().get().is_closed()
    }

    fn __len__(&self) -> usize {
        self.nbytes
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.as_super().get().region().or_raise(slf.py())?;
        Ok(slf)
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        Self::close(slf);
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let PyRegion { path, tier, durability, nbytes, .. } = slf.get();
        let closed = if Self::closed(slf) { ", closed" } else { "" };
        format!(
            "<forebay.Region {path:?}: {nbytes} bytes on {tier}, persisted ones survive {durability}{closed}>"
        )
    }
}

/// A size or an offset of the caller.
fn size(what: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    value.extract::<usize>().map_err(|_| {
        let given = value.repr().map_or_else(|_| "?".into(), |r| r.to_string());
        usage(value.py(), Kind::Usage, format!("{what} is {given}, not a number of bytes, 0 or more"), "")
    })
}

/// The bytes of anything, as an exact contiguous array of bytes. Those of an ndarray are taken as they are; other
/// objects become arrays as they do for `put`.
fn as_bytes<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let is_array = buffer::type_number(object).is_some();
    if !is_array || object.getattr("dtype")?.getattr("hasobject")?.is_truthy()? {
        return Ok(arrays::to_contiguous(object)?.0);
    }
    let dense = arrays::numpy(py)?.call_method1("ascontiguousarray", (object,))?;
    dense.call_method1("reshape", (-1,))?.call_method1("view", ("u1",))
}

#[cold]
fn outside(dims: &[u64], item: u64, offset: usize, nbytes: usize) -> Error {
    Error::new(Kind::BufferMismatch, "the array would end outside the region")
        .with("shape", format!("{dims:?}"))
        .with("item_bytes", item)
        .with("offset", offset)
        .with("region_bytes", nbytes)
}
