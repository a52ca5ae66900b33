//! `forebay.Pool` and the bytes below `forebay.array`: a range of a file, or a variable of a version, in a budget of
//! frames.
//!
//! Guarantees: transfers run without the GIL; indexing, dtypes and shapes are done in Python (`_array.py`).

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_pager::{
    stripe_lengths, Array, ArrayOptions, Backing, FileBacking, Mode, PoolOptions, StripedBacking,
};
use forebay_space::{parse_bytes, Dtype, Kind, VersionBacking};
use forebay_tier::plain::PlainFile;
use forebay_tier::{Error, Horizon};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays;
use crate::buffer;
use crate::detach::detached;
use crate::errors::{raise, usage, OrRaise};
use crate::options;

/// A hard budget of memory that any number of arrays share.
///
/// budget: bytes, or a text like "2GiB". tile_max: the longest tile of any array in it; None takes what the budget
/// allows, 2 MiB at most.
///
/// Raises Usage when the budget holds fewer than two tiles.
#[pyclass(name = "Pool", module = "forebay", frozen)]
pub struct PyPool(forebay_pager::Pool);

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (budget, *, tile_max=None))]
    fn new(
        py: Python<'_>,
        budget: &Bound<'_, PyAny>,
        tile_max: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyPool> {
        arrays::prepare_numpy(py)?;
        let mut options = PoolOptions::new(bytes("budget", budget)?);
        if let Some(tile) = tile_max {
            options.tile_max = bytes("tile_max", tile)? as usize;
        }
        Ok(PyPool(detached(py, || forebay_pager::Pool::new(options)).or_raise(py)?))
    }

    /// What it has done and holds: tiles loaded, written, evicted and found (hits), bytes of frames, of tables and of
    /// the budget, and the engine.
    #[getter]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (seen, dict) = (self.0.statistics(), PyDict::new(py));
        dict.set_item("loaded", seen.loaded)?;
        dict.set_item("written", seen.written)?;
        dict.set_item("evicted", seen.evicted)?;
        dict.set_item("hits", seen.hits)?;
        dict.set_item("frame_bytes", seen.frame_bytes)?;
        dict.set_item("table_bytes", seen.table_bytes)?;
        dict.set_item("budget", seen.budget)?;
        dict.set_item("engine", self.0.engine())?;
        Ok(dict)
    }

    /// The longest tile of an array in it, in bytes.
    #[getter]
    fn tile_max(&self) -> usize {
        self.0.tile_max()
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Pool of {} bytes, {}>", self.0.statistics().budget, self.0.engine())
    }
}

/// Bytes of a file in a pool; what `forebay.array` stands on.
#[pyclass(name = "_Paged", module = "forebay._forebay", frozen)]
pub struct PyPaged(RwLock<Option<Arc<Array>>>);

/// Where the bytes of an array lie: one file, or stripe after stripe in several.
struct Place {
    paths: Vec<PathBuf>,
    stripe: u64,
    /// "read", "write", "create" or "nameless" (the path is then a folder).
    how: String,
    /// Through the page cache.
    cached: bool,
}

impl Place {
    fn file(&self, path: &std::path::Path, nbytes: u64) -> forebay_tier::Result<FileBacking> {
        let file = match self.how.as_str() {
            "create" => PlainFile::create(path, nbytes)?,
            "nameless" => PlainFile::nameless(path, nbytes)?,
            how => PlainFile::open(path, how == "write")?,
        };
        FileBacking::new(if self.cached { file.without_direct() } else { file })
    }

    /// Opens or makes the files; those that were made are `made`, also when a later one fails.
    fn backing(
        &self,
        nbytes: u64,
        header: &[u8],
        made: &mut Vec<PathBuf>,
    ) -> forebay_tier::Result<Arc<dyn Backing>> {
        let mut files = Vec::new();
        for (path, bytes) in self.paths.iter().zip(stripe_lengths(nbytes, self.paths.len(), self.stripe)) {
            files.push(self.file(path, bytes)?);
            if self.how == "create" {
                made.push(path.clone());
            }
        }
        let backing: Arc<dyn Backing> = match files.len() {
            1 => Arc::new(files.remove(0)),
            _ => Arc::new(StripedBacking::new(files, self.stripe)?),
        };
        if !header.is_empty() {
            backing.write(0, header)?;
        }
        Ok(backing)
    }

    /// Opens the array; of one that cannot be opened no file stays that was made for it.
    fn open(
        &self,
        pool: &forebay_pager::Pool,
        nbytes: u64,
        header: &[u8],
        options: &ArrayOptions,
    ) -> forebay_tier::Result<Array> {
        let mut made = Vec::new();
        let backing = self.backing(nbytes, header, &mut made);
        let opened = backing.and_then(|backing| Array::open(pool, backing, options));
        if opened.is_err() {
            made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        opened
    }
}

/// One variable of a version of a space, held as long as this or an array over it lives.
#[pyclass(name = "_VersionBacking", module = "forebay._forebay", frozen)]
pub struct PyVersionBacking(Arc<VersionBacking>);

#[pymethods]
impl PyVersionBacking {
    /// version: None is the newest that is complete.
    #[new]
    #[pyo3(signature = (space, variable, version=None))]
    fn new(py: Python<'_>, space: &str, variable: &str, version: Option<u64>) -> PyResult<PyVersionBacking> {
        let keywords = PyDict::new(py);
        keywords.set_item("observer", true)?;
        let options = options::from_keywords(py, space, None, Some(&keywords))?;
        let opened = detached(py, || VersionBacking::open(space, variable, version, &options));
        Ok(PyVersionBacking(Arc::new(opened.or_raise(py)?)))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        arrays::dtype_object(py, self.0.dtype())
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version()
    }

    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }
}

/// A `forebay.Array` over a variable of a version, as the keywords say.
pub fn array_over<'py>(
    py: Python<'py>,
    backing: VersionBacking,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let backing = Bound::new(py, PyVersionBacking(Arc::new(backing)))?;
    py.import("forebay._array")?.getattr("over_version")?.call((backing,), keywords)
}

/// A mode as Python spells it.
pub fn mode_of(mode: &str) -> Mode {
    match mode {
        "r" => Mode::ReadOnly,
        "c" => Mode::CopyOnWrite,
        _ => Mode::ReadWrite,
    }
}

impl PyPaged {
    /// The array, unless it is closed.
    pub fn array(&self, py: Python<'_>) -> PyResult<Arc<Array>> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
            .ok_or_else(|| raise(py, Error::new(Kind::Closed, "the array is closed").hint("open it again")))
    }
}

#[pymethods]
impl PyPaged {
    /// how: "read", "write", "create" or "nameless" (the one path is then a folder). Several paths: stripe by stripe.
    #[new]
    #[pyo3(signature = (pool, paths, stripe, how, mode, tile, policy, horizon, origin, nbytes, header, cached))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        pool: &PyPool,
        paths: Vec<PathBuf>,
        stripe: &Bound<'_, PyAny>,
        how: String,
        mode: &str,
        tile: &Bound<'_, PyAny>,
        policy: &str,
        horizon: &str,
        origin: u64,
        nbytes: u64,
        header: &[u8],
        cached: bool,
    ) -> PyResult<PyPaged> {
        let mut options = ArrayOptions::new(bytes("tile", tile)? as usize);
        options.mode = mode_of(mode);
        options.policy = policy.parse().or_raise(py)?;
        options.horizon = horizon.parse::<Horizon>().or_raise(py)?;
        (options.origin, options.bytes) = (origin, Some(nbytes));
        let stripe = bytes("stripe", stripe)?;
        if paths.is_empty() || stripe == 0 {
            let error =
                Error::new(Kind::Usage, format!("{} files in stripes of {stripe} bytes", paths.len()));
            return Err(raise(py, error.hint("one file or more, and a stripe such as \"1MiB\"")));
        }
        options.overlay = forebay_tier::capacity::folder_of(&paths[0]);
        let place = Place { paths, stripe, how, cached };
        let array = detached(py, || place.open(&pool.0, origin + nbytes, header, &options));
        Ok(PyPaged(RwLock::new(Some(Arc::new(array.or_raise(py)?)))))
    }

    /// All of a variable of a version; mode: "r" or "c", which keeps what is written in a file without a name in
    /// `overlay`.
    #[staticmethod]
    fn over(
        py: Python<'_>,
        pool: &PyPool,
        backing: &PyVersionBacking,
        mode: &str,
        tile: &Bound<'_, PyAny>,
        policy: &str,
        overlay: PathBuf,
    ) -> PyResult<PyPaged> {
        let mut options = ArrayOptions::new(bytes("tile", tile)? as usize);
        options.mode = mode_of(mode);
        options.policy = policy.parse().or_raise(py)?;
        options.overlay = overlay;
        let array = detached(py, || Array::open(&pool.0, backing.0.clone(), &options));
        Ok(PyPaged(RwLock::new(Some(Arc::new(array.or_raise(py)?)))))
    }

    /// Reads runs of `length` bytes that begin at these offsets (uint64) into an array of bytes, one behind the other.
    fn read_runs(
        &self,
        py: Python<'_>,
        offsets: &Bound<'_, PyAny>,
        length: usize,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (array, offsets) = (self.array(py)?, places(offsets)?);
        let out = buffer::destination(out).expect("the package hands over arrays of bytes");
        detached(py, || array.read_runs(offsets, length, out.bytes)).or_raise(py)
    }

    /// Writes runs of `length` bytes from an array of bytes.
    fn write_runs(
        &self,
        py: Python<'_>,
        offsets: &Bound<'_, PyAny>,
        length: usize,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (array, offsets) = (self.array(py)?, places(offsets)?);
        let data = buffer::contiguous(data).expect("the package hands over arrays of bytes");
        detached(py, || array.write_runs(offsets, length, data.bytes)).or_raise(py)
    }

    /// Begins to read a range of bytes.
    fn prefetch(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        let array = self.array(py)?;
        detached(py, || array.prefetch(start..end));
        Ok(())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let array = self.array(py)?;
        detached(py, || array.flush()).or_raise(py)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(array) = held else { return Ok(()) };
        detached(py, || match Arc::try_unwrap(array) {
            Ok(array) => array.close(),
            // Another thread reads right now: the array ends with that.
            Err(shared) => shared.flush(),
        })
        .or_raise(py)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    #[getter]
    fn method(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.array(py)?.method())
    }

    #[getter]
    fn tile_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.array(py)?.tile_bytes())
    }
}

/// Offsets that the package made: a contiguous array of uint64.
fn places<'a>(offsets: &'a Bound<'_, PyAny>) -> PyResult<&'a [u64]> {
    let found = buffer::contiguous(offsets).filter(|found| found.dtype == Dtype::U64);
    let found = found.expect("the package hands over offsets as uint64");
    // What lies nowhere need not be aligned.
    Ok(if found.bytes.is_empty() { &[] } else { bytemuck::cast_slice(found.bytes) })
}

/// A number of bytes, or a text like "2GiB".
pub fn bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = value.py();
    if let Ok(text) = value.extract::<String>() {
        return parse_bytes(&text).or_raise(py);
    }
    value.extract::<u64>().map_err(|_| {
        let given = value.repr().map_or_else(|_| "?".into(), |r| r.to_string());
        usage(
            py,
            Kind::Usage,
            format!("{what} is {given}, not a number of bytes"),
            "an integer, or a text like 64MiB",
        )
    })
}
