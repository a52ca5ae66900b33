//! The memory below `forebay.window`: a file as a range of addresses of which a budget's worth is in memory.
//!
//! Guarantees: arrays over a window keep it, also when it is closed meanwhile; whatever reads or writes the file on
//! request (hints, `flush`, `close`) runs without the GIL. What is touched is brought by the thread that touches it,
//! with the GIL if it holds it.

use std::path::PathBuf;

use forebay_pager::{OnError, Window, WindowOptions};
use forebay_space::Kind;
use forebay_tier::Result;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::WindowMemory;
use crate::detach::detached;
use crate::errors::{usage, OrRaise};
use crate::paged::{bytes, mode_of, PyPaged};

/// A window on a file; what `forebay.window` stands on.
#[pyclass(name = "_Window", module = "forebay._forebay", extends = WindowMemory, frozen)]
pub struct PyWindow;

impl PyWindow {
    fn with<T: Send>(
        slf: &Bound<'_, Self>,
        work: impl FnOnce(&mut Window) -> Result<T> + Send,
    ) -> PyResult<T> {
        let py = slf.py();
        let memory = slf.as_super().get();
        detached(py, || memory.with(work)).or_raise(py)
    }
}

/// What `forebay.window` is told beside the place: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options<'py> {
    mode: String,
    budget: Bound<'py, PyAny>,
    tile: Bound<'py, PyAny>,
    engine: Option<String>,
    advice: String,
    on_error: String,
}

impl Options<'_> {
    /// The same as the pager spells them; changes of the mode `c` are kept in `overlay`.
    fn parsed(&self, py: Python<'_>, overlay: PathBuf) -> PyResult<WindowOptions> {
        let mut options = WindowOptions::new(bytes("budget", &self.budget)?);
        options.tile_bytes = bytes("tile", &self.tile)? as usize;
        options.mode = mode_of(&self.mode);
        options.engine = self.engine.as_deref().map(str::parse).transpose().or_raise(py)?;
        options.advice = self.advice.parse().or_raise(py)?;
        options.overlay = overlay;
        options.on_error = match self.on_error.as_str() {
            "zeros" => OnError::Zeros,
            "signal" => OnError::Signal,
            other => {
                let what = format!("on_error is `{other}`");
                return Err(usage(py, Kind::Usage, what, "zeros or signal"));
            }
        };
        Ok(options)
    }
}

#[pymethods]
impl PyWindow {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        options: Options<'_>,
        origin: u64,
        nbytes: u64,
    ) -> PyResult<PyClassInitializer<PyWindow>> {
        let mut options = options.parsed(py, forebay_tier::capacity::folder_of(&path))?;
        (options.origin, options.bytes) = (origin, Some(nbytes));
        let window = detached(py, || Window::open(&path, &options)).or_raise(py)?;
        Ok(PyClassInitializer::from(WindowMemory::new(window)).add_subclass(PyWindow))
    }

    /// A window on what lies below an array; mode: "r" or "c", which keeps what is stored in a file without a name in
    /// `overlay`.
    #[staticmethod]
    fn over<'py>(
        py: Python<'py>,
        array: &PyPaged,
        options: Options<'py>,
        overlay: PathBuf,
    ) -> PyResult<Bound<'py, PyWindow>> {
        let mut options = options.parsed(py, overlay)?;
        let array = array.array(py)?;
        let window = py
            .detach(|| {
                (options.origin, options.bytes) = (array.origin(), Some(array.bytes()));
                Window::on(array.backing().clone(), &options)
            })
            .or_raise(py)?;
        Bound::new(py, PyClassInitializer::from(WindowMemory::new(window)).add_subclass(PyWindow))
    }

    fn prefetch(slf: &Bound<'_, Self>, start: u64, end: u64) -> PyResult<()> {
        PyWindow::with(slf, |window| {
            window.prefetch(start..end);
            Ok(())
        })
    }

    fn will_stream(slf: &Bound<'_, Self>, start: u64, end: u64) -> PyResult<()> {
        PyWindow::with(slf, |window| {
            window.will_stream(start..end);
            Ok(())
        })
    }

    fn done_with(slf: &Bound<'_, Self>, start: u64, end: u64) -> PyResult<()> {
        PyWindow::with(slf, |window| {
            window.done_with(start..end);
            Ok(())
        })
    }

    fn advise(slf: &Bound<'_, Self>, advice: &str) -> PyResult<()> {
        let advice = advice.parse().or_raise(slf.py())?;
        PyWindow::with(slf, |window| {
            window.advise(advice);
            Ok(())
        })
    }

    fn check(slf: &Bound<'_, Self>) -> PyResult<()> {
        PyWindow::with(slf, |window| window.check())
    }

    fn flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        PyWindow::with(slf, |window| window.flush().and(window.check()))
    }

    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, memory) = (slf.py(), slf.as_super().get());
        detached(py, || memory.close()).or_raise(py)
    }

    #[getter]
    fn closed(slf: &Bound<'_, Self>) -> bool {
        slf.as_super().get().is_closed()
    }

    #[getter]
    fn statistics<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let seen = PyWindow::with(slf, |window| Ok(window.statistics()))?;
        let dict = PyDict::new(slf.py());
        dict.set_item("engine", seen.engine.name())?;
        dict.set_item("why", seen.why)?;
        dict.set_item("faults", seen.faults)?;
        dict.set_item("read_bytes", seen.read_bytes)?;
        dict.set_item("written_bytes", seen.written_bytes)?;
        dict.set_item("evicted_bytes", seen.evicted_bytes)?;
        dict.set_item("resident_bytes", seen.resident_bytes)?;
        dict.set_item("resident_peak", seen.resident_peak)?;
        dict.set_item("budget", seen.budget)?;
        dict.set_item("tile_bytes", seen.tile_bytes)?;
        dict.set_item("failures", seen.failures)?;
        Ok(dict)
    }
}
