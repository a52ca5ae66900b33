//! The compiled part of the Python package `forebay`.
//!
//! Thin: arguments in, arrays out; every promise is kept by `forebay-space`. Unsafe code is in `buffer.rs` only.
#![deny(unsafe_code)]

mod arrays;
mod buffer;
mod cell;
mod checkpoint;
mod convert;
mod errors;
mod many;
mod options;
mod paged;
mod reader;
mod region;
mod reserve;
mod window;
mod writer;

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{usage, OrRaise};

/// Opens a space: mode "w" as one rank of its writers, mode "r" as one rank of a group of readers.
#[pyfunction]
#[pyo3(signature = (name, mode="r", **options))]
#[pyo3(text_signature = "(name, mode='r', *, rank=None, size=None, comm=None, component=None, \
    channel='space', tier=None, quota=None, spill=None, when_full=None, segment=None, horizon=None, \
    retention=None, checksum=None, batch=None, \
    on_existing='error', verify='first', timeout=60, latest=False, scope='job', readers=None, observer=False)")]
fn open<'py>(
    py: Python<'py>,
    name: &Bound<'py, PyAny>,
    mode: &str,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let name: String = py.import("os")?.call_method1("fspath", (name,))?.extract()?;
    let options = options::from_keywords(py, &name, options)?;
    match mode {
        "r" => Ok(Bound::new(py, reader::PyReader::open(py, &name, options)?)?.into_any()),
        "w" => Ok(Bound::new(py, writer::PyWriter::open(py, &name, options)?)?.into_any()),
        other => {
            let what = format!("mode {other:?} is not known");
            Err(usage(py, forebay_space::Kind::Usage, what, "mode is \"r\" or \"w\""))
        }
    }
}

/// Every space under the root: what inspect() says, without the versions.
#[pyfunction]
fn list_spaces(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(forebay_space::list).or_raise(py)?;
    convert::to_python(py, &found)
}

/// Describes a space without taking part in it.
#[pyfunction]
fn inspect<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    convert::inspect(py, name)
}

/// Reads every byte of a space and compares checksums.
#[pyfunction]
fn verify<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let report = py.detach(|| forebay_space::verify(name)).or_raise(py)?;
    convert::to_python(py, &report)
}

/// Removes spaces that no live process holds.
#[pyfunction]
#[pyo3(signature = (*names, dead_only=false, dry_run=false))]
fn clean<'py>(
    py: Python<'py>,
    names: Vec<String>,
    dead_only: bool,
    dry_run: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let options = forebay_space::CleanOptions { names, dead_only, dry_run };
    let report = py.detach(|| forebay_space::clean(&options)).or_raise(py)?;
    convert::to_python(py, &report)
}

/// Removes one space.
#[pyfunction]
fn destroy(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| forebay_space::destroy(name)).or_raise(py)
}

/// Directory of short names: $FOREBAY_DIR, else /dev/shm/forebay-<uid>.
#[pyfunction]
fn root(py: Python<'_>) -> PyResult<String> {
    forebay_space::root().map(|path| path.display().to_string()).or_raise(py)
}

/// The `forebay` command with these words; `again` are the words that start it again, `libraries` is the folder of
/// the libraries that come with it. Returns its exit status.
#[pyfunction]
fn command_line(py: Python<'_>, words: Vec<OsString>, again: Vec<OsString>, libraries: PathBuf) -> i32 {
    py.detach(|| forebay_cli::main_with_command(words, again, libraries))
}

/// Kinds of errors with their code and exit status, as compiled in.
#[pyfunction]
fn _kinds() -> Vec<(&'static str, u16, i32)> {
    forebay_space::Kind::ALL.iter().map(|kind| (kind.name(), kind.code(), kind.exit_code())).collect()
}

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("VIEW_BYTES_MIN", reader::VIEW_BYTES_MIN)?;
    module.add_class::<writer::PyWriter>()?;
    module.add_class::<writer::WriteStep>()?;
    module.add_class::<writer::WriterSteps>()?;
    module.add_class::<reader::PyReader>()?;
    module.add_class::<reader::ReadStep>()?;
    module.add_class::<reader::ReaderSteps>()?;
    module.add_class::<reader::Subscription>()?;
    module.add_class::<convert::Variable>()?;
    module.add_class::<convert::Piece>()?;
    module.add_class::<region::PyRegion>()?;
    module.add_class::<paged::PyPool>()?;
    module.add_class::<paged::PyPaged>()?;
    module.add_class::<paged::PyVersionBacking>()?;
    module.add_class::<window::PyWindow>()?;
    module.add_class::<checkpoint::PyCheckpoint>()?;
    module.add_function(wrap_pyfunction!(region::map, module)?)?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(list_spaces, module)?)?;
    module.add_function(wrap_pyfunction!(inspect, module)?)?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(clean, module)?)?;
    module.add_function(wrap_pyfunction!(destroy, module)?)?;
    module.add_function(wrap_pyfunction!(root, module)?)?;
    module.add_function(wrap_pyfunction!(command_line, module)?)?;
    module.add_function(wrap_pyfunction!(_kinds, module)?)
}
